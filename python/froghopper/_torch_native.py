# SPDX-License-Identifier: Apache-2.0
"""The operators of libfroghopper_torch.so, froghopper_native::forward and backward: what an eager call costs the host
is little more than PyTorch's dispatcher, since they find the plan of a call that was made before, make the results and
fill in addresses themselves. They are there with PyTorch 2.10 and newer; otherwise Python does the same.

    status = 0     computed
    status > 0     a call that this thread has not made: compute it in Python, then keep() what that has found
    status = -1    nothing for the operators; Python computes it, or says what is wrong
    status < -100  the library's own error

Options are one number for the operators: the same for the same twelve.
"""
import ctypes
import itertools
import os
import pathlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from froghopper._call import KEPT
from froghopper._errors import error_of
from froghopper._library import library
from froghopper._log import plan_again
from froghopper._torch_calls import BYTES, Ready
from froghopper._torch_library import library_of

NAME, VARIABLE = "libfroghopper_torch.so", "FROGHOPPER_TORCH_NATIVE"
OLDEST = (2, 10)  # whose stable interface has what is called
DONE, NOT_HERE, LIBRARY_SAYS = 0, -1, -100
GRADIENTS = 2  # what a forward call is for, beside False and True, which say whether lse is asked for
ROWS_FIRST, HEADS_FIRST, TURNED = 0, 1, 2  # how tensors lie; src/torch/operators.cpp

forward: Callable[..., tuple[Tensor, Tensor, int]] | None = None
backward: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor, int]] | None = None
_keep: Any = None
why_not = "no call has been made yet"  # "" where the operators are used


def load() -> None:
    """Loads the operators; why_not says why there are none."""
    global why_not
    if why_not == "no call has been made yet": why_not = load_once()


def load_once() -> str:
    global forward, backward, _keep
    if os.environ.get(VARIABLE) == "0": return f"{VARIABLE} is 0"
    release = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2]))
    if release < OLDEST: return f"PyTorch {torch.__version__} is older than 2.10"
    path = pathlib.Path(library().path).resolve().parent / NAME
    try: found = ctypes.CDLL(str(path))  # finds the library that is loaded already by its name
    except OSError as error: return f"{path} cannot be loaded: {error}"
    found.froghopper_torch_register.restype = ctypes.c_char_p
    if not hasattr(torch.ops.froghopper_native, "backward"):  # they are there where Ctrl-C has ended a load behind this
        if missing := found.froghopper_torch_register(): return f"PyTorch has no {missing.decode()}"
    fallthrough = library_of(__name__, "froghopper_native")
    for name in ("forward", "backward"): fallthrough.impl(name, torch.library.fallthrough_kernel, "Autograd")
    _keep = found.froghopper_torch_keep
    _keep.argtypes = (ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64)
    # Called without the object around it, which would cost a tenth of the call.
    forward = getattr(torch.ops.froghopper_native.forward.default, "_op")
    backward = getattr(torch.ops.froghopper_native.backward.default, "_op")
    return ""


def keep(ticket: int, ready: Ready) -> None:
    """From now on the operators know the call that got the ticket, on this thread; none that copies first."""
    if ready.copied: return
    plan, slopes = ready.call.plan, (ctypes.c_int64 * 3)(*ready.call.slopes)
    with plan_again():
        _keep(ticket, ctypes.addressof(plan.problem), plan.target.encode(), slopes, BYTES if ready.gpu >= 0 else 1)


def error(status: int) -> BaseException:
    """Of a status below LIBRARY_SAYS."""
    return error_of(LIBRARY_SAYS - status, library().last_error())


_numbers: dict[tuple[Any, ...], int] = {}
_count = itertools.count()  # a number that was used means the same for ever


def number_of(options: tuple[Any, ...]) -> int:
    if (found := _numbers.get(options)) is not None: return found
    if len(_numbers) >= KEPT: _numbers.clear()
    return _numbers.setdefault(options, next(_count))
