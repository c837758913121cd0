# SPDX-License-Identifier: Apache-2.0
"""Modules that are imported when something of them is asked for: froghopper.torch.context_parallel for
froghopper._torch_context_parallel, which loads torch.distributed. And names that are somewhere else."""
import importlib
import sys
import types
from typing import Any

FLASH = ("flash_attn_func", "flash_attn_varlen_func", "flash_attn_qkvpacked_func", "flash_attn_kvpacked_func",
         "flash_attn_with_kvcache", "flash_attn_combine", "merge_attn_states")
TORCH = ("paged_attention", "scaled_dot_product_attention", "norm_rotary", "context_parallel")
# Names that users look for in froghopper or a module of it -> what to use.
ELSEWHERE = {
    **{name: f"froghopper.flash_attn_interface.{name}" for name in FLASH},
    **{name: f"froghopper.torch.{name}" for name in TORCH},
    "varlen_attention": "attention with cu_seqlens_q and cu_seqlens_kv",
    "varlen_attn": "attention with cu_seqlens_q and cu_seqlens_kv",
}


# The same in froghopper.jax, whose arrays those functions do not take.
IN_JAX = {
    "paged_attention": "attention with block_table, and append_kv for new rows",
    **dict.fromkeys(("scaled_dot_product_attention", "dot_product_attention"), "attention"),
}


def no_attribute(module: str, name: str) -> AttributeError:
    elsewhere = {"context_parallel": ELSEWHERE["context_parallel"]} | IN_JAX if module.endswith(".jax") else ELSEWHERE
    way = f". Use {elsewhere[name]}" if name in elsewhere else ""
    return AttributeError(f"module {module!r} has no attribute {name!r}{way}")


def name_module(name: str, home: str) -> None:
    """Lets `from name import something` work where name's parent is a file, whose submodules Python does not look for.
    home: the module that is meant."""
    class Later(types.ModuleType):
        def __getattr__(self, what: str) -> Any:
            # Tools ask every module where it lies, which is no reason to import one.
            if what.startswith("__") and what != "__all__": raise no_attribute(name, what)
            return getattr(importlib.import_module(home), what)
    sys.modules.setdefault(name, Later(name))
