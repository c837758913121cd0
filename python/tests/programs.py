# SPDX-License-Identifier: Apache-2.0
"""Programs that tests run, with the package that is tested: that of the source tree or an installed one."""
import os
import pathlib
import subprocess
import sys

import froghopper
import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples/python"


def example(name):
    """The path of an example; the test is skipped where the tests lie alone."""
    if not (EXAMPLES / name).exists(): pytest.skip("tests of an installed package: there are no examples")
    return EXAMPLES / name


def run_python(*arguments, cwd=None, **environment):
    """What `python3 ARGUMENTS` said; the test fails where it fails. environment: more variables."""
    path = os.pathsep.join([str(pathlib.Path(froghopper.__file__).parents[1]), *sys.path])
    done = subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": path, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
