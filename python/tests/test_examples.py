# SPDX-License-Identifier: Apache-2.0
"""The example that needs NumPy alone, as a user runs it; those of the frameworks are run by the frameworks' tests."""
from programs import example, run_python


def test_numpy_attention(tmp_path):
    assert "largest error against double precision" in run_python(example("numpy_attention.py"), cwd=tmp_path)
