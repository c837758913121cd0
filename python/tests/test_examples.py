# SPDX-License-Identifier: Apache-2.0
"""The example that needs NumPy alone, as a user runs it; those of the frameworks are run by the frameworks' tests."""
import os
import pathlib
import subprocess
import sys

import froghopper
import pytest

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples/python/numpy_attention.py"


def test_numpy_attention(tmp_path):
    if not EXAMPLE.exists(): pytest.skip("tests of an installed package: there are no examples")
    package = pathlib.Path(froghopper.__file__).parent.parent
    done = subprocess.run([sys.executable, EXAMPLE], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(package)},
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "largest error against double precision" in done.stdout
