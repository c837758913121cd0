# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends a long call on the CPU soon, as a KeyboardInterrupt, in both passes and with any number of threads; the
next call works. A process that has SIGINT's default is ended by it, one that ignores it goes on."""
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

import froghopper

START = """
import sys, time
import numpy as np
import froghopper
def small(): return froghopper.attention(*(np.ones((1, 3, 1, 8), np.float32) for _ in range(3)))
small()
"""
NUMPY = START + """
x = np.ones((1, 40000, 4, 64), np.float32)
print("ready", flush=True)
try: froghopper.attention(x, x, x)
except KeyboardInterrupt: print("interrupted", time.monotonic(), flush=True)
print("again", small().sum(), flush=True)
"""
NUMPY_BACKWARD = START + """
x, lse = np.ones((1, 20000, 4, 64), np.float32), np.ones((1, 4, 20000), np.float32)
print("ready", flush=True)
try: froghopper.attention_backward(x, x, x, x, x, lse)
except KeyboardInterrupt: print("interrupted", time.monotonic(), flush=True)
print("again", small().sum(), flush=True)
"""
TORCH = START + """
import torch
from froghopper.torch import attention
x = torch.ones(1, 40000, 4, 64, requires_grad=BACKWARD)
o = attention(x[:, :2000], x[:, :2000], x[:, :2000]) if BACKWARD else None
if BACKWARD:  # the pass that is interrupted
    x = torch.ones(1, 12000, 4, 64, requires_grad=True)
    o = attention(x, x, x).sum()
print("ready", flush=True)
try: o.backward() if BACKWARD else attention(x, x, x)
except KeyboardInterrupt: print("interrupted", time.monotonic(), flush=True)
print("again", small().sum(), flush=True)
"""


def begin(code, **environment):
    path = os.pathsep.join([str(pathlib.Path(froghopper.__file__).parents[1]), *sys.path])
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env={**os.environ, "PYTHONPATH": path, **environment})


def interrupt(code, threads, at_most):
    with begin(code, FROGHOPPER_THREADS=str(threads)) as program:
        try:
            assert program.stdout.readline() == "ready\n"
            time.sleep(0.5)  # it is in the call
            sent = time.monotonic()
            program.send_signal(signal.SIGINT)
            rest = program.communicate(timeout=60)[0].splitlines()
        finally: program.kill()
    assert rest[0].startswith("interrupted"), rest
    assert float(rest[0].split()[1]) - sent < at_most, rest
    assert rest[1] == "again 24.0" and program.returncode == 0, rest


# The call itself ends within 0.3 s; a machine that runs other tests besides takes longer.
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("code", [NUMPY, NUMPY_BACKWARD])
def test_numpy(code, threads): interrupt(code, threads, 1.5)


@pytest.mark.parametrize("backward", [False, True])
def test_pytorch(backward):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    interrupt(TORCH.replace("BACKWARD", str(backward)), 2, 1.5)


def test_other_dispositions():
    """The default ends the process at once, and a process that ignores SIGINT computes to the end."""
    usual = NUMPY.replace("import numpy as np", "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
                          "import numpy as np", 1)
    with begin(usual) as program:
        assert program.stdout.readline() == "ready\n"
        time.sleep(0.3)
        program.send_signal(signal.SIGINT)
        program.communicate(timeout=60)
        assert program.returncode == -signal.SIGINT
    ignored = NUMPY.replace("40000", "4000").replace(
        "import numpy as np", "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nimport numpy as np", 1)
    with begin(ignored) as program:
        assert program.stdout.readline() == "ready\n"
        program.send_signal(signal.SIGINT)
        assert program.communicate(timeout=60)[0] == "again 24.0\n" and program.returncode == 0
