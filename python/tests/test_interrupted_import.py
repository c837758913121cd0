# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in the middle of the first import of froghopper.torch, or of what comes later: the next import is one as if
nothing had been. Each program is interrupted once at every line that an import runs in a file that registers something,
also inside of functions; what other files do is forgotten with them."""
import os
import pathlib
import subprocess
import sys

import pytest

import froghopper

pytest.importorskip("torch", reason="PyTorch is not installed")

# An import that is interrupted again and again, each time one line later, until nothing is left. Modules that are
# complete stay.
PROGRAM = """
import sys
import torch, torch.distributed
from torch.utils.flop_counter import FlopCounterMode
import froghopper
HERE = froghopper.__file__.removesuffix("__init__.py")
seen = set()
registers = {}  # by file

def of_registering(name):
    if name not in registers:
        with open(name) as file: text = file.read()
        registers[name] = any(word in text for word in ("library_of", "torch.library", "register"))
    return registers[name]

def ours(frame):
    name = frame.f_code.co_filename
    return name.startswith(HERE) and name[len(HERE):].startswith(("_torch", "torch.py")) and of_registering(name)

def trace(frame, event, argument):
    if not ours(frame): return None
    if event != "line": return trace
    path, caller = [], frame
    while caller is not None:
        if ours(caller): path.append((caller.f_code.co_filename, caller.f_lineno))
        caller = caller.f_back
    if (path := tuple(path)) not in seen:
        seen.add(path)
        raise KeyboardInterrupt
    return trace

def interrupted(action):
    count = 0
    while True:
        sys.settrace(trace)
        try: found = action()
        except KeyboardInterrupt: count += 1
        else:
            print(count)
            return found
        finally: sys.settrace(None)

"""
IMPORT = """
def action():
    import froghopper.torch
    return froghopper.torch

module = interrupted(action)
attention, paged_attention, append_kv = module.attention, module.paged_attention, module.append_kv
q = torch.randn(2, 4, 2, 16, requires_grad=True)
def forward(q): return attention(q, q, q, causal=True)
wanted = torch.nn.functional.scaled_dot_product_attention(*(q.transpose(1, 2),) * 3, is_causal=True).transpose(1, 2)
grad, = torch.autograd.grad(wanted.sum(), q)
compiled = torch.compile(forward, fullgraph=True, backend="aot_eager")
for call in (forward, compiled, torch.func.vmap(lambda x: forward(x[None])[0])):
    torch.testing.assert_close(call(q), wanted)
    torch.testing.assert_close(torch.autograd.grad(call(q).sum(), q)[0], grad)
x = q.detach()
assert attention(x, x, x, return_max_logit=True)[1].shape == (2, 2)
torch.testing.assert_close(attention(q, q, q, causal=True, gate=torch.zeros_like(q)), wanted / 2)
table = torch.arange(2, dtype=torch.int32)[:, None]
torch.testing.assert_close(paged_attention(x, x, x, table, causal=True), wanted.detach())
cache = torch.zeros_like(x)
append_kv(x, x, cache, cache.clone(), seqused_kv=torch.zeros(2, dtype=torch.int32))
assert torch.equal(cache, x)
module.quantise(x, x, x)
with FlopCounterMode(display=False) as counter: forward(x)
assert counter.get_total_flops() == 4 * 2 * 2 * 4 * 4 * 16
"""
FIRST_CALL = """
import froghopper.torch
from froghopper import _torch_native as native
interrupted(native.load)
assert native.why_not == "", native.why_not
q = torch.randn(2, 4, 2, 16)
torch.testing.assert_close(froghopper.torch.attention(q, q, q), torch.nn.functional.scaled_dot_product_attention(
    *(q.transpose(1, 2),) * 3).transpose(1, 2))
"""
CONTEXT_PARALLEL = """
import froghopper.torch
parallel = interrupted(lambda: froghopper.torch.context_parallel)
for name in ("context_parallel", "context_parallel_backward", "context_parallel_decode"):
    assert getattr(torch.ops.froghopper, name).default is not None
assert callable(parallel.attention) and callable(parallel.decode)
"""


def run(program):
    path = os.pathsep.join([str(pathlib.Path(froghopper.__file__).parents[1]), *sys.path])
    done = subprocess.run([sys.executable, "-c", PROGRAM + program], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": path}, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return int(done.stdout.split()[0])


def test_import(): assert run(IMPORT) > 300


def test_first_call():
    from froghopper import _torch_native as native
    native.load()
    if native.why_not: pytest.skip(native.why_not)
    assert run(FIRST_CALL) > 5


def test_context_parallel():
    from context_parallel_groups import need_library
    need_library()
    assert run(CONTEXT_PARALLEL) > 100
