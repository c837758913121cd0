# SPDX-License-Identifier: Apache-2.0
"""What the entry points of pyproject.toml name. A serving engine calls these when it starts, in each of its processes
and maybe more than once; only then is anything of it imported."""
import logging

logger = logging.getLogger("froghopper")
BACKEND = "froghopper.vllm.Backend"


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
