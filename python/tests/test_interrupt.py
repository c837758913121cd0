# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends a long call on the CPU within 0.3 s, as a KeyboardInterrupt, in both passes and with any number of
threads; the next call gives the right results. A process that has SIGINT's default is ended by it, one that ignores it
goes on."""
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

import froghopper

# The program that is interrupted in `call`; what `small` gives afterwards must be what it gave before.
PROGRAM = """
import signal, sys, time
import numpy as np
import froghopper
signal.signal(signal.SIGINT, signal.default_int_handler)  # which it has not where the tests run in a shell's background
SETUP
before = [np.asarray(x).copy() for x in small()]
assert all(np.isfinite(x).all() and x.any() for x in before)
print("ready", flush=True)
try: call()
except KeyboardInterrupt: print("interrupted", time.monotonic(), flush=True)
for x, y in zip(before, small(), strict=True): np.testing.assert_array_equal(x, np.asarray(y))
print("again", flush=True)
"""
RANDOM = """
def numbers(rows, heads=4): return np.random.default_rng(1).standard_normal((1, rows, heads, 64), dtype=np.float32)
"""
NUMPY = RANDOM + """
def attend(x): return froghopper.attention(x, x, x, causal=True),
few, many = numbers(300), numbers(60000)
def small(): return attend(few)
def call(): attend(many)
"""
NUMPY_BACKWARD = RANDOM + """
def gradients(x, o, lse): return froghopper.attention_backward(x, x, x, x, o, lse, causal=True)[:3]
few, many = numbers(300), numbers(40000)
kept = froghopper.attention(few, few, few, causal=True, return_lse=True)
def small(): return gradients(few, *kept)
def call(): gradients(many, many, np.ones((1, 4, 40000), np.float32))
"""
# One pair of a sequence and a head: its chunks of keys, one behind the other, are all that threads can share.
NUMPY_BACKWARD_IN_ORDER = NUMPY_BACKWARD.replace("heads=4", "heads=1").replace("(1, 4,", "(1, 1,").replace(
    "40000", "80000")
TORCH = RANDOM + """
import torch
from froghopper.torch import attention
few, many = torch.from_numpy(numbers(300)), torch.from_numpy(numbers(60000))
def small(): return attention(few, few, few, causal=True),
def call(): attention(many, many, many, causal=True)
"""
TORCH_BACKWARD = RANDOM + """
import torch
from froghopper.torch import attention
few, many = (torch.from_numpy(numbers(rows)).requires_grad_() for rows in (300, 16000))
def small(): return torch.autograd.grad(attention(few, few, few, causal=True).square().sum(), few)
o = attention(many, many, many).sum()
def call(): o.backward()
"""
JAX = RANDOM + """
import jax
from froghopper.jax import attention
few, many = jax.numpy.asarray(numbers(300)), jax.numpy.asarray(numbers(60000))
def small(): return attention(few, few, few, causal=True),
def call(): attention(many, many, many, causal=True).block_until_ready()
"""


def begin(setup, **environment):
    path = os.pathsep.join([str(pathlib.Path(froghopper.__file__).parents[1]), *sys.path])
    return subprocess.Popen([sys.executable, "-c", PROGRAM.replace("SETUP", setup)], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True,
                            env={**os.environ, "PYTHONPATH": path, **environment})


def interrupted_after(setup, threads, environment):
    """Seconds from SIGINT to KeyboardInterrupt."""
    with begin(setup, FROGHOPPER_THREADS=str(threads), **environment) as program:
        try:
            assert program.stdout.readline() == "ready\n"
            time.sleep(0.4)  # it is in the call
            sent = time.monotonic()
            program.send_signal(signal.SIGINT)
            rest = program.communicate(timeout=60)[0].splitlines()
        finally: program.kill()
    assert rest[0].startswith("interrupted"), rest
    assert rest[1] == "again" and program.returncode == 0, rest
    return float(rest[0].split()[1]) - sent


def check_interrupt(setup, threads, **environment):
    """Others who use the machine may take the processor away for longer than that once, but not always."""
    took = []
    while not took or (took[-1] > 0.3 and len(took) < 4): took.append(interrupted_after(setup, threads, environment))
    assert took[-1] <= 0.3, took


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("setup", [NUMPY, NUMPY_BACKWARD, NUMPY_BACKWARD_IN_ORDER],
                         ids=["forward", "backward", "backward_in_order"])
def test_numpy(setup, threads): check_interrupt(setup, threads)


@pytest.mark.parametrize("setup", [TORCH, TORCH_BACKWARD], ids=["forward", "backward"])
def test_pytorch(setup):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    check_interrupt(setup, 3)


def test_jax():
    pytest.importorskip("jax", reason="JAX is not installed")
    if not (pathlib.Path(froghopper._library.library().path).resolve().parent / "libfroghopper_xla.so").exists():
        pytest.skip("libfroghopper_xla.so is not built")
    check_interrupt(JAX, 3, JAX_PLATFORMS="cpu")


def test_other_dispositions():
    """The default ends the process at once, and a process that ignores SIGINT computes to the end."""
    usual = "signal.signal(signal.SIGINT, signal.SIG_DFL)\n" + NUMPY
    with begin(usual) as program:
        assert program.stdout.readline() == "ready\n"
        time.sleep(0.3)
        program.send_signal(signal.SIGINT)
        program.communicate(timeout=60)
        assert program.returncode == -signal.SIGINT
    ignored = "signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + NUMPY.replace("60000", "4000")
    with begin(ignored) as program:
        assert program.stdout.readline() == "ready\n"
        program.send_signal(signal.SIGINT)
        assert program.communicate(timeout=60)[0] == "again\n" and program.returncode == 0
