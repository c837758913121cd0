# SPDX-License-Identifier: Apache-2.0
"""What tests of froghopper.torch.context_parallel on groups of processes need. Where PyTorch has no gloo, importing it
skips the test module."""
import pathlib

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

from programs import run_python

from froghopper import _library, _parallel


def need_library():
    """Skips the test module where the library is not there."""
    if not pathlib.Path(_library.library().path).resolve().with_name(_parallel.NAME).exists():
        pytest.skip(f"{_parallel.NAME} is not beside the library", allow_module_level=True)


def run_ranks(program, folder):
    """All groups of a program beside these tests, which writes what each rank finds to the folder."""
    run_python(str(pathlib.Path(__file__).resolve().with_name(program)), str(folder), OMP_NUM_THREADS="1",
               FROGHOPPER_THREADS="1")
