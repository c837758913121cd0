# SPDX-License-Identifier: Apache-2.0
"""The types of the package that is imported, beside frameworks that have types of their own."""
import importlib.util
import pathlib
import subprocess
import sys

import pytest

NEEDED = ("mypy", "numpy", "torch", "jax", "transformers")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]


CALLS = """
import torch
from froghopper import attention as of_numpy
from froghopper.flash_attn_interface import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from froghopper.torch import attention
q = torch.zeros(1, 2, 2, 16)
o: torch.Tensor = flash_attn_func(q, q, q, causal=True)
two: tuple[torch.Tensor, torch.Tensor] = flash_attn_func(q, q, q, return_attn_probs=True)
packed: tuple[torch.Tensor, torch.Tensor] = flash_attn_varlen_func(q, q, q, 1, q, 1, q, return_softmax_lse=True)
cached: torch.Tensor = flash_attn_with_kvcache(q, q, q)
scaled: torch.Tensor = attention(q, q, q, align="top_left", scale_k=1.0, scale_v=1.0)
"""
WRONG = {"align": 'attention(q, q, q, align="middle")', "scale": 'attention(q, q, q, scale_k="1")',
         "result": "o = flash_attn_func(q, q, q, return_attn_probs=True)",
         "numpy": 'of_numpy(q.numpy(), q.numpy(), q.numpy(), align="middle")'}


@pytest.mark.skipif(bool(MISSING), reason=f"mypy must know the types of all frameworks: no {', '.join(MISSING)}")
def test_types(tmp_path):
    """The package is strict; what users write has the types that they expect, and each wrong line is found. One test,
    because the second run of mypy takes what the first has found in the frameworks."""
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache")]
    settings = pathlib.Path(__file__).parent.parent / "mypy.ini"
    if settings.exists(): command += ["--config-file", str(settings)]
    def mypy(*words): return subprocess.run([*command, *words], cwd=tmp_path, capture_output=True, text=True)

    found = mypy("-p", "froghopper")
    assert found.returncode == 0, found.stdout + found.stderr
    (tmp_path / "calls.py").write_text(CALLS + "\n".join(WRONG.values()) + "\n")
    found = mypy("calls.py")
    first = CALLS.count("\n") + 1
    lines = {int(line.split(":")[1]) for line in found.stdout.splitlines() if ": error:" in line}
    assert lines == set(range(first, first + len(WRONG))), found.stdout + found.stderr
