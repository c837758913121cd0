# SPDX-License-Identifier: Apache-2.0
"""What the entry points of pyproject.toml name. A serving engine calls these when it starts, in each of its processes
and maybe more than once; only then is anything of it imported."""
import logging
from typing import Any

logger = logging.getLogger("froghopper")
BACKEND = "froghopper.vllm.Backend"
NAME = "froghopper"


def register_vllm() -> None:
    """vLLM's attention backend CUSTOM is froghopper, unless another plug-in has taken it: --attention-backend CUSTOM.
    The class is imported when it is chosen."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    custom = AttentionBackendEnum.CUSTOM
    if custom.is_overridden() and custom.get_path() != BACKEND:
        logger.warning("vLLM's attention backend CUSTOM is %s already; froghopper's stays out. Uninstall one of the "
                       "two, or call register_backend(AttentionBackendEnum.CUSTOM, %r).", custom.get_path(), BACKEND)
        return
    register_backend(custom, BACKEND)


def register_sglang() -> None:
    """SGLang's --attention-backend froghopper, also where it asks for deterministic inference. The class is imported
    when it is chosen."""
    from sglang.srt.arg_groups import choices
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS, register_attention_backend
    if NAME not in choices.ATTENTION_BACKEND_CHOICES: choices.add_attention_backend_choices([NAME])
    for held, add in (("DETERMINISTIC_ATTENTION_BACKEND_CHOICES", "add_deterministic_attention_backend_choices"),
                      ("RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND",
                       "add_radix_supported_deterministic_attention_backend_choices")):
        if NAME not in getattr(choices, held, [NAME]): getattr(choices, add)([NAME])
    if NAME not in ATTENTION_BACKENDS: register_attention_backend(NAME)(sglang_backend)


def sglang_backend(runner: Any) -> Any:
    from froghopper.sglang import Backend
    return Backend(runner)
