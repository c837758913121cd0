# SPDX-License-Identifier: Apache-2.0
"""froghopper as a repository of kernels: FlashAttention-3's functions for Hopper GPUs and CPUs.

layout.py writes this file as __init__.py of every variant, beside the package froghopper as the wheel has it. Names of
PyTorch's operators are those of froghopper, so that a process has one copy of it: one that is imported already, or else
this one.
"""
import importlib.util
import pathlib
import sys


def package():
    """The module froghopper, from this folder where no other one has been imported; sys.path stays as it is."""
    if "froghopper" not in sys.modules:
        folder = pathlib.Path(__file__).parent / "froghopper"
        spec = importlib.util.spec_from_file_location("froghopper", folder / "__init__.py",
                                                      submodule_search_locations=[str(folder)])
        module = sys.modules["froghopper"] = importlib.util.module_from_spec(spec)
        try: spec.loader.exec_module(module)
        except BaseException:
            del sys.modules["froghopper"]
            raise
    return sys.modules["froghopper"]


__version__ = package().__version__

from froghopper.flash_attn_interface import (  # noqa: E402
    flash_attn_combine, flash_attn_func, flash_attn_qkvpacked_func, flash_attn_varlen_func, flash_attn_with_kvcache,
    get_scheduler_metadata, merge_attn_states)
from froghopper.torch import attention, paged_attention  # noqa: E402

__all__ = ["attention", "flash_attn_combine", "flash_attn_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
           "flash_attn_with_kvcache", "get_scheduler_metadata", "merge_attn_states", "paged_attention"]
