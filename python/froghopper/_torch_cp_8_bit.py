# SPDX-License-Identifier: Apache-2.0
"""k and v of froghopper.torch.context_parallel in 8 bits: each head has one scale, that of its largest element on any
rank. So a rank quantises its own rows as one rank would quantise all, and results do not depend on the ranks."""
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from froghopper import _torch_cp_group as groups
from froghopper._call import DTYPES_8_BIT
from froghopper._errors import InvalidProblem
from froghopper._torch_calls import FLOAT8, name_of
from froghopper._values import shown, whole_name


def name_of_type(kv_dtype: Any) -> str:
    """The type's name, "" for that of q."""
    if kv_dtype is None: return ""
    name = name_of(kv_dtype) if isinstance(kv_dtype, torch.dtype) else whole_name(kv_dtype)
    if not isinstance(name, str) or name not in DTYPES_8_BIT:
        raise InvalidProblem(f"kv_dtype must be {' or '.join(map(str, FLOAT8))}, the name of one, or None for the "
                             f"type of q, but is {shown(kv_dtype)}. Give one of them.")
    return name


def check(q: Tensor, kv_dtype: str, with_grad: bool) -> None:
    if not kv_dtype: return
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise InvalidProblem(f"q must be float16 or bfloat16 with kv_dtype, but is {q.dtype}. Convert q, k and v, or "
                             "leave kv_dtype out.")
    if with_grad:
        raise InvalidProblem("kv_dtype rounds k and v, which has no gradient, but q, k, v or sink require one. Call "
                             "under torch.no_grad(), or leave kv_dtype out.")


def quantised(group: Any, k: Tensor, v: Tensor, kv_dtype: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """k and v in that type, and their scales [heads_kv] float32. All ranks call it."""
    dtype: torch.dtype = getattr(torch, kv_dtype)
    largest = torch.cat([largest_of(k), largest_of(v)])
    of_device = groups.host_group(group) if largest.is_cpu else group
    groups.collective(of_device, of_all_ranks, largest, largest)
    scales = torch.where(largest > 0, largest / torch.finfo(dtype).max, 1.0)
    heads = k.shape[2]
    return rounded(k, scales[:heads], dtype), rounded(v, scales[heads:], dtype), scales[:heads], scales[heads:]


def rounded(x: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """In units of the scales. Not all releases of PyTorch make NaN of an infinite element; some make 448 of it."""
    units = x / scales[:, None]
    return units.masked_fill_(units.isinf(), float("nan")).to(dtype)


def largest_of(x: Tensor) -> Tensor:
    """[heads] float32, 0 where there are no rows. Infinite elements and NaN do not count: they become NaN, and so do
    the rows that attend to them, but no others."""
    if not x.numel(): return x.new_zeros(x.shape[2], dtype=torch.float32)
    return x.abs().nan_to_num_(0.0, 0.0).amax(dim=(0, 1, 3)).float()


def of_all_ranks(x: Tensor, _: Tensor, group: Any) -> None: dist.all_reduce(x, dist.ReduceOp.MAX, group=group)
