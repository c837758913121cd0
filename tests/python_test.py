# SPDX-License-Identifier: Apache-2.0
"""Runs what checks the Python package: pytest on python/tests, or mypy --strict on python/froghopper. Where the tool is
not installed nothing is tested, and the exit code is 77.

usage: python3 tests/python_test.py pytest build/libfroghopper.so [PYTEST_ARGUMENT ...]
       python3 tests/python_test.py mypy
"""
import importlib.util
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
NEEDED = {"pytest": ("pytest", "numpy"), "mypy": ("mypy", "numpy")}


def main(tool, *arguments):
    for module in NEEDED[tool]:
        if importlib.util.find_spec(module): continue
        print(f"Skipped\nthe Python package is checked with {module}, which is not installed\n\n")
        return 77
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
    if tool == "mypy":
        command = ["mypy", "--config-file", "python/mypy.ini", "--cache-dir", os.devnull, "python/froghopper"]
    else:
        environment["FROGHOPPER_LIBRARY"] = str(pathlib.Path(arguments[0]).resolve())
        command = ["pytest", "-q", "-p", "no:cacheprovider", "-rs", "python/tests", *arguments[1:]]
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in NEEDED: sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
