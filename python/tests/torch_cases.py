# SPDX-License-Identifier: Apache-2.0
"""What the tests of froghopper.torch share: devices, stand-ins for engines, tensors, the cases of
test_numpy.py with tensors beside the formulas of plain.py, arguments of the operators."""
import contextlib
import sys

import numpy as np
import pytest
import torch
from plain import Options, backward, excess
from test_numpy import exact_of, options_of

from froghopper._torch_calls import LOOK
from froghopper.torch import attention

GPU = pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="there is no Hopper GPU"))
DEVICES = ["cpu", GPU]

TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors here are small, and threads that wait for each other are slow
    yield
    torch.set_num_threads(before)


@contextlib.contextmanager
def standing_in(modules):
    """{name: module} among those that are imported, for so long: other libraries look whether they are there."""
    sys.modules.update(modules)
    try: yield
    finally:
        for name in modules: sys.modules.pop(name, None)


def drawn(*shape, seed=0, dtype=torch.float32, grad=False, device="cpu"):
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)
    return made.requires_grad_(grad)


def qkv(*shape, grad=False, dtype=torch.float32, kv=None, device="cpu"):
    """q of that shape, k and v of kv."""
    shapes = [shape, kv or shape, kv or shape]
    return [drawn(*s, seed=seed, grad=grad, dtype=dtype, device=device) for seed, s in enumerate(shapes)]


def given(case, device="cpu"):
    """The keywords of a case of test_numpy.py, with tensors."""
    floats = ("sink", "alibi_slopes")
    made = {name: torch.tensor(np.asarray(value, np.float32 if name in floats else np.int32), device=device)
            if name.startswith(("cu_", "seqused", "sink", "alibi")) else value for name, value in case.given().items()}
    if case.packed and device != "cpu": made |= dict(max_seqlen_q=max(case.rows), max_seqlen_kv=max(case.keys))
    return made


def wide(x, case): return x.detach().double().cpu().numpy()[None if case.packed else slice(None)]


def check_case(case, dtype, device):
    """Forward and backward of a case beside the formulas."""
    tensors = [torch.tensor(x, device=device).to(TYPES[dtype]) for x in case.arrays("float32")]
    exact_in = [x.double().cpu().numpy() for x in tensors]
    inputs, exact = exact_of(case, exact_in, dtype)
    options = given(case, device)
    asked = [x.requires_grad_() for x in tensors[:3]]
    if "sink" in options: asked.append(options["sink"].requires_grad_())
    o, lse = attention(*tensors[:3], **options, return_lse=True)
    assert o.dtype == tensors[0].dtype and lse.dtype == torch.float32 and o.is_contiguous()
    assert not excess(wide(o, case), *exact["o"])
    assert not excess(wide(lse, case), *exact["lse"])
    grad_lse = drawn(*lse.shape, seed=9, device=device)
    wanted = backward(*inputs[:3], exact["o"][0], exact["lse"][0], inputs[3], wide(grad_lse, case),
                      list(case.sequences()), dtype, Options(**options_of(case)))
    grads = torch.autograd.grad([o, lse], asked, [tensors[3], grad_lse])
    for name, found in zip(("q", "k", "v", "sink"), grads):
        held = found.double().cpu().numpy() if name == "sink" else wide(found, case)
        assert not excess(held, *wanted[name]), name
    with torch.no_grad(): assert torch.equal(attention(*tensors[:3], **options), o)


def samples():
    """(problem, arguments of forward_op up to with_lse)."""
    q, k, v = qkv(2, 9, 4, 16, kv=(2, 12, 2, 16), grad=True)
    packed = qkv(9, 4, 16, kv=(12, 2, 16), grad=True)
    sink = drawn(4, grad=True)
    lengths = [torch.tensor(x, dtype=torch.int32) for x in ([0, 4, 9], [0, 7, 12], [4, 3], [7, 1])]
    none = [None] * 5
    yield "dense", [q, k, v, None, *none, -1, -1, False, -1, -1, 0.0, None, False, False, 0, 0, False, ""]
    yield "causal", [q, k, v, sink, *none, -1, -1, True, 4, -1, 2.0, 0.3, True, True, 1, 5, True, ""]
    yield "packed", [*packed, sink, *lengths[:2], None, None, None, 5, 7, True, -1, -1, 0.0, None, False, False, 0, 0,
                     False, ""]
    yield "looked", [*packed, None, *lengths[:2], None, lengths[3], None, LOOK, LOOK, True, -1, -1, 0.0, None, False,
                     False, 0, 0, False, ""]
    yield "alibi", [q, k, v, None, *none[1:], drawn(4), -1, -1, True, -1, -1, 0.0, None, False, False, 0, 0, False, ""]
    yield "used", [q, k, v, None, None, None, *lengths[2:], None, -1, -1, False, 3, 3, 0.0, None, False, False, 0, 0,
                   False, ""]


def step(function, tensors, **options):
    """o and all gradients."""
    for x in tensors: x.grad = None
    o = function(*tensors, **options)
    o.backward(torch.ones_like(o).cumsum(0))
    return [o, *(x.grad for x in tensors)]


def same(found, wanted): assert all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True))


def layer(q, k, v): return attention(q * 2, k, v, causal=True, window=(5, None), softcap=3.0) + 1
