# SPDX-License-Identifier: Apache-2.0
"""Options of froghopper.torch as users give them -> what the operators are told.

torch.compile traces these functions. A whole number that changes from call to call is then open: nothing here looks at
its value, so that one compilation serves all values; the operator checks it when it runs.
"""
import math
from typing import Any, TypeAlias

import torch
from torch import Tensor

from froghopper import _c
from froghopper._errors import InvalidProblem, InvalidType, Unsupported
from froghopper._torch_calls import LOOK, check_tensor
from froghopper._values import Align as Align
from froghopper._values import Window, check_window, flag, number, shown, whole_name, whole_number

Scale: TypeAlias = Tensor | float | None
LARGEST_FLOAT = torch.finfo(torch.float32).max


def scale_tensor(name: str, scale: Scale, q: Tensor) -> Tensor | None:
    """A scale of 8-bit numbers that is a number of Python or a scalar of NumPy as a tensor; others as they are."""
    one: Any = scale
    if type(one).__module__ == "numpy" and getattr(one, "shape", None) == (): one = one.item()
    if not isinstance(one, (float, int)):
        tensor: Tensor | None = one
        return tensor
    if isinstance(one, bool): number(name, one)  # says what is wrong
    if not torch.compiler.is_compiling():
        if LARGEST_FLOAT < abs(one) < math.inf:
            raise InvalidProblem(f"{name} must fit float32, but is {shown(one)}. Give a smaller one.")
        one = float(one)  # PyTorch takes no int above 2^63
    return torch.full((), one, dtype=torch.float32, device=q.device)


# What to do with a tensor of many numbers, which is no option.
MANY = {"causal": "Use causal=True; a mask of numbers is computed nowhere, see window and seqused_kv",
        "scale": "Give one number; for a scale of each head multiply q by it"}


def plain(read: Any, name: str, value: Any) -> Any:
    """An option that is no tensor; reading one would wait for a GPU."""
    if isinstance(value, Tensor):
        gradient = "; for its gradient multiply q by it" * name.endswith("scale")
        kind = "True or False" if read is flag else "a number of Python"
        if value.numel() != 1:
            way = MANY.get(name.removeprefix("softmax_"), f"Give {kind}")
            raise InvalidType(f"{name} must be {kind}, as reading a tensor would wait for its device, but is a tensor "
                              f"with the shape {list(value.shape)}. {way}.")
        raise InvalidType(f"{name} must be {kind}, as reading a tensor would wait for its device, but is a tensor. Use "
                          f"{name}.item(){gradient}.")
    return read(name, value)


def whole(name: str, value: Any) -> int:
    """A whole number, or one that is open: in code that torch.compile traces it looks like any int."""
    found: int = value if is_open(value) else plain(whole_number, name, value)
    return found


def is_open(value: Any) -> bool:
    return isinstance(value, torch.SymInt) or (type(value) is int and torch.compiler.is_compiling())


def decided(deterministic: bool) -> bool:
    return bool(plain(flag, "deterministic", deterministic) or torch.are_deterministic_algorithms_enabled())


def window_of(window: Window | None) -> tuple[int, int]:
    """Keys before and after, -1 for no bound."""
    if window is None: return _c.ALL, _c.ALL
    if not isinstance(window, (tuple, list)) or len(window) != 2: return check_window(window)
    left, right = window
    return (_c.ALL if left is None else whole("window[0]", left),
            _c.ALL if right is None else whole("window[1]", right))


def bound_of(name: str, value: int | None) -> int:
    """max_seqlen of packed sequences."""
    if value is None: return LOOK
    found = whole(name, value)
    if not is_open(found) and found < 0:
        raise InvalidProblem(f"{name} must be 0 or more, as it counts rows, but is {found}. Give the longest "
                             "sequence's.")
    return found


def check_dtype(name: str, value: Any) -> None:
    if isinstance(value, torch.dtype): return
    known = isinstance(value, str) and isinstance(getattr(torch, whole_name(value), None), torch.dtype)
    way = f"torch.{whole_name(value)}" if known else "torch.float32, or another"
    raise InvalidType(f"{name} must be a dtype of PyTorch, but is {shown(value)}. Use {way}.")


def check_slopes(slopes: Any) -> None:
    check_tensor("alibi_slopes", slopes)
    if slopes.requires_grad and torch.is_grad_enabled():
        raise Unsupported("alibi_slopes requires a gradient; it has none here. Use alibi_slopes.detach().")


def check_packed(begins_q: Any, begins_kv: Any) -> None:
    if begins_q is None or begins_kv is None:
        given, other = ("q", "kv") if begins_kv is None else ("kv", "q")
        raise InvalidProblem(f"cu_seqlens_q and cu_seqlens_kv must be given together, but cu_seqlens_{other} is "
                             f"None. Give cu_seqlens_{other}.")
    check_lengths("cu_seqlens_q", begins_q)
    check_lengths("cu_seqlens_kv", begins_kv)


def check_lengths(name: str, x: Any) -> None:
    """A tensor; the operator checks what is in it."""
    check_tensor(name, x, f"torch.as_tensor({name}, dtype=torch.int32, device=q.device)")
