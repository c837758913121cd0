# SPDX-License-Identifier: Apache-2.0
"""The types of the package that is imported, beside frameworks that have types of their own."""
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

NEEDED = ("mypy", "numpy", "torch", "jax", "transformers")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]


@pytest.mark.skipif(bool(MISSING), reason=f"mypy must know the types of all frameworks: no {', '.join(MISSING)}")
def test_mypy_strict(tmp_path):
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull, "-p", "froghopper"]
    settings = pathlib.Path(__file__).parent.parent / "mypy.ini"
    if settings.exists(): command += ["--config-file", str(settings)]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
