# SPDX-License-Identifier: Apache-2.0
"""Head dims that are no multiples of 8, of 8-bit types of 16, in functions that other libraries have: FlashAttention 2
pads q, k and v with columns of zeros and cuts out, and so is done here. A call of flash_attn_interface whose head dims
need nothing never comes here, except in code that torch.compile traces, where it costs a look at the shapes: the others
come with the error that they have got.

Caches and pages are not padded, as a copy of all of them would be made at every call.
"""
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from froghopper._errors import Error, Unsupported
from froghopper._torch_calls import FLOAT8
from froghopper._values import listed, wrong_shape

MULTIPLE, OF_8_BITS = 8, 16  # head dims are multiples of this
PADDED = ("flash_attn_func", "flash_attn_varlen_func")
IN_PLACE = {"flash_attn_with_kvcache": ("cache", "k_cache", "v_cache"), "flash_attn_varlen_func": ("pool", "k", "v")}


def arguments(function: Callable[..., Any], given: tuple[Any, ...], words: Mapping[str, Any]) -> dict[str, Any]:
    return dict(zip(function.__code__.co_varnames, given)) | dict(words)


def is_odd(function: Callable[..., Any], given: tuple[Any, ...], words: Mapping[str, Any]) -> bool:
    """Whether padding makes something that can be computed of q, k and v."""
    if function.__name__ not in PADDED: return False
    named = arguments(function, given, words)
    q, k, v = (named.get(name) for name in "qkv")
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)): return False
    if named.get("block_table") is not None or q.ndim == 0 or k.ndim == 0 or v.ndim == 0: return False
    multiple = multiple_of(q, k)
    return bool(q.shape[-1] == k.shape[-1] and (q.shape[-1] % multiple or v.shape[-1] % multiple))


def multiple_of(q: Tensor, k: Tensor) -> int:
    return OF_8_BITS if q.dtype in FLOAT8 or k.dtype in FLOAT8 else MULTIPLE


def is_of_widths(error: Error) -> bool:
    return isinstance(error, Unsupported) and str(error).startswith("head dims ") and ". Pad " in str(error)


def padded(function: Callable[..., Any], given: tuple[Any, ...], words: Mapping[str, Any]) -> Any:
    """What the function returns, of tensors with columns of zeros: they add nothing to scores, and columns to out that
    are cut."""
    named = arguments(function, given, words)
    q, k, v = tensors = [named[name] for name in "qkv"]
    out = named.get("out")
    multiple = multiple_of(q, k)
    if named.get("softmax_scale") is None: named["softmax_scale"] = q.shape[-1] ** -0.5
    named |= {name: widened(x, multiple) for name, x in zip("qkv", tensors)}
    if isinstance(out, Tensor):
        wanted = [*q.shape[:-1], v.shape[-1]]
        if list(out.shape) != wanted: wrong_shape("out", out.shape, wanted)
        wide = torch.empty([*q.shape[:-1], named["v"].shape[-1]], dtype=out.dtype, device=out.device)
        named["out"] = wide.requires_grad_() if out.requires_grad else wide  # and is refused where a gradient is
    found: Any = function(**named)
    o = (found[0] if isinstance(found, tuple) else found)[..., :v.shape[-1]]
    if isinstance(out, Tensor): o = out.copy_(o)
    return (o, *found[1:]) if isinstance(found, tuple) else o


def widened(x: Tensor, multiple: int) -> Tensor:
    """With columns of zeros up to the next multiple."""
    missing = -x.shape[-1] % multiple
    if not missing: return x
    if x.dtype not in FLOAT8: return torch.nn.functional.pad(x, (0, missing))
    bytes_of: Tensor = x.detach().view(torch.uint8)  # PyTorch does not pad 8-bit floats everywhere
    return torch.nn.functional.pad(bytes_of, (0, missing)).view(x.dtype)


def has_odd_columns(q: Tensor, v: Tensor) -> bool: return bool(q.shape[-1] % MULTIPLE or v.shape[-1] % MULTIPLE)


def wider(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> tuple[Tensor, Tensor, Tensor, float]:
    """q, k and v of 16 or 32 bits as they are computed, with the scale of what they were."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return widened(q, MULTIPLE), widened(k, MULTIPLE), widened(v, MULTIPLE), scale


def of_cache(function: str, error: Error) -> Error:
    """The error with the way out for tensors that are not copied."""
    found = re.fullmatch(r"(.*?)\. Pad .*", str(error))
    if function not in IN_PLACE or found is None: return error
    kind, k, v = IN_PLACE[function]
    dims = {name: int(dim) for names, dim in re.findall(r"that of ([\w ]+?) is (\d+)", str(error))
            for name in names.split(" and ")}
    multiple = OF_8_BITS if "8-bit" in found[1] else MULTIPLE
    ways = [f"{name} with {dims[name] + -dims[name] % multiple}" for name in (k, v) if name in dims]
    ends = ["pad q", f"give softmax_scale=1/sqrt({dims['q']})"] if "q" in dims else []
    if v in dims: ends.append(f"cut out to {dims[v]} columns")
    error.args = (f"{found[1]}. A {kind} is read where it lies, as padding would copy all of it at every call. Make "
                  f"{listed(ways)} columns, zeros behind those of the model; {listed(ends)}.",)
    return error
