# SPDX-License-Identifier: Apache-2.0
"""Refusals of froghopper.torch.context_parallel that come before a function's own checks: of a name that it does not
have, and of an argument that is missing. Other ranks hear of them, or they would take this rank's next call for the one
that it has not made, and give results of tensors that belong to different calls.
"""
import functools
import traceback
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor

from froghopper import _torch_cp_dtensors as dtensors
from froghopper import _torch_cp_group as groups
from froghopper._errors import Error
from froghopper._torch_eager import is_compiling
from froghopper._words import F


def tells_others(call: F) -> F:
    """The function, whose ranks agree before they move anything; what is raised before its body runs is told too."""
    code = call.__wrapped__.__code__  # type: ignore[attr-defined]  # of what takes_words_of_others has wrapped
    names = code.co_varnames[:code.co_argcount]

    @functools.wraps(call)
    def told(*given: Any, **words: Any) -> Any:
        try: return call(*given, **words)
        except Exception as error:  # the body tells its own refusals
            if any(frame.f_code is code for frame, _ in traceback.walk_tb(error.__traceback__)): raise
            tell(call.__name__, dict(zip(names, given)) | words, error)
            raise
    return told  # type: ignore[return-value]


def tell(call: str, given: dict[str, Any], error: Exception) -> None:
    """Raises the error on all ranks of the group, as far as what is given says which one it is."""
    if is_compiling() or not (dist.is_available() and dist.is_initialized()): return  # there is nobody to tell
    first: list[Any] = [given.get(name) for name in ("q", "k", "v")]
    group = given.get("group")
    if group is None:  # maybe under a name that is not known
        group = next((x for x in given.values() if isinstance(x, dist.ProcessGroup) or hasattr(x, "get_group")), None)
    if call == "attention" and dtensors.among(*first, *given.values()):
        dtensors.refuse_together((*first, *given.values()), group, error)
    if call == "decode" and not is_told(given.values()): return
    try: held = groups.resolved(group)
    except Error: return  # no other rank knows of such a group
    groups.refuse_together(held, call, error)


def is_told(given: Any) -> bool:
    """Whether ranks of decode agree: where q is in host memory. On a GPU they do not, and would not hear a word."""
    return next((x.is_cpu for x in given if isinstance(x, Tensor)), False)
