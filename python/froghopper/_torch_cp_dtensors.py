# SPDX-License-Identifier: Apache-2.0
"""DTensors in and out of froghopper.torch.context_parallel: their rows are spread over one dimension of the mesh, which
is the group; over other dimensions batches and heads may be spread, or nothing."""
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from froghopper import _torch_cp_group as groups
from froghopper._errors import InvalidProblem, InvalidTensor, InvalidType
from froghopper._values import type_of

BATCH, ROWS, HEADS = 0, 1, 2  # dimensions of q, k and v
OF_LSE = {BATCH: 0, HEADS: 1, ROWS: 2}  # where they are in lse


def among(*tensors: Tensor) -> bool:
    """torch.distributed.tensor takes long to import; it is there where a tensor is of its kind."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and any(isinstance(x, module.DTensor) for x in tensors)


def refuse_together(tensors: tuple[Any, ...], group: Any, error: Exception) -> NoReturn:
    """As of groups, of the group along which rows are spread, as far as the placements of one of them say it. Where
    they do not, this rank is alone: no other knows what group it should be in."""
    for x in tensors:
        if not among(x): continue
        at = rows_at(x.placements)
        if len(at) == 1 or x.device_mesh.ndim == 1: group = x.device_mesh.get_group(at[0] if at else 0)
        break
    if group is None: raise error
    groups.refuse_together(group, "attention", error)


def rows_at(placements: Any) -> list[int]:
    """Dimensions of the mesh over which rows are spread."""
    return [dim for dim, place in enumerate(placements) if place.is_shard(ROWS)]


def group_of(q: Any, k: Any, v: Any, group: Any) -> Any:
    """The group along which rows are spread, after all checks of how q, k and v are placed."""
    from torch.distributed.tensor import DTensor
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, DTensor):
            raise InvalidType(f"{name} must be a DTensor beside other DTensors, but is {type_of(x)}. Use "
                              "DTensor.from_local.")
        if x.device_mesh != q.device_mesh or x.placements != q.placements:
            raise InvalidProblem(f"{name} must be placed as q is, {q.placements} on {q.device_mesh}, but is placed "
                                 f"{x.placements} on {x.device_mesh}. Use {name}.redistribute.")
    check_placed(q, k)
    of_rows = q.device_mesh.get_group(rows_at(q.placements)[0])
    if group is not None and groups.resolved(group).group_name != of_rows.group_name:
        raise InvalidProblem("group must be that of the mesh along which the rows of q are spread, but is another one. "
                             "Leave it out.")
    return of_rows


def attention(attend: Callable[..., tuple[Tensor, Tensor]], q: Any, k: Any, v: Any, of_rows: Any, sink: Any,
              slopes: Any, layout: Any, options: Any) -> tuple[Tensor, Tensor]:
    """(o, lse), placed as q is. attend: the same for the tensors of this rank. of_rows: what group_of gives."""
    from torch.distributed.tensor import Shard
    mesh, placements = q.device_mesh, q.placements
    local = [x.to_local() for x in (q, k, v)]
    sides = [local_side(x, mesh, placements) for x in (sink, slopes)]
    try: o, lse = attend(*local, of_rows, *sides, layout or "contiguous", options)
    except InvalidTensor as error: raise padded(error, q.shape[ROWS], of_rows.size(), layout or "contiguous") from None
    of_lse = [Shard(OF_LSE[place.dim]) if place.is_shard() else place for place in placements]
    batch, rows, heads = q.shape[:3]
    return (whole(o, mesh, placements, (batch, rows, heads, v.shape[3])),
            whole(lse, mesh, of_lse, (batch, heads, rows)))


def padded(error: InvalidTensor, rows: int, ranks: int, layout: str) -> InvalidTensor:
    """shard, which is the way out for tensors of a rank, divides a length otherwise than DTensor does."""
    step = {"contiguous": ranks, "zigzag": 2 * ranks}.get(layout)
    if step is None or not str(error).endswith(" Use shard."): return error
    way = f"Pad q, k and v to {-(-rows // step) * step} rows, which DTensor divides alike."
    error.args = (str(error).replace("Use shard.", way),)
    return error


def check_placed(q: Any, k: Any) -> None:
    """Rows over one dimension of the mesh; heads, where they are divided, in equal parts of both."""
    at = rows_at(q.placements)
    others = [place for place in q.placements if not place.is_shard(ROWS)]
    if len(at) != 1 or not all(place.is_replicate() or place.is_shard(BATCH) or place.is_shard(HEADS)
                               for place in others):
        raise InvalidProblem("q must be sharded along its rows, dimension 1, over one dimension of the mesh, and along "
                             f"batch or heads or not at all over others, but is placed {q.placements}. Use "
                             "q.redistribute.")
    parts = 1
    for dim, place in enumerate(q.placements): parts *= q.device_mesh.size(dim) if place.is_shard(HEADS) else 1
    if k.shape[HEADS] % parts:
        raise InvalidProblem(f"k must have a multiple of {parts} heads, as so many parts of the mesh divide them, but "
                             f"has {k.shape[HEADS]}. Replicate the heads.")


def local_side(x: Any, mesh: Any, placements: Any) -> Any:
    """sink or slopes of this rank: a plain tensor as it is; a DTensor's gradients are partial where ranks have rows of
    their own."""
    from torch.distributed.tensor import DTensor, Partial, Shard
    if x is None or not isinstance(x, DTensor): return x
    wanted = [Shard(x.ndim - 1) if place.is_shard(HEADS) else x.placements[dim]
              for dim, place in enumerate(placements)]
    grads = [Partial() if place.is_replicate() and not placements[dim].is_replicate() else place
             for dim, place in enumerate(wanted)]
    return x.redistribute(mesh, wanted).to_local(grad_placements=grads)


def whole(x: Tensor, mesh: Any, placements: Any, shape: tuple[int, ...]) -> Any:
    """The DTensor of that shape, of which this rank has x."""
    from torch.distributed.tensor import DTensor
    strides = [1]
    for extent in shape[:0:-1]: strides.insert(0, strides[0] * extent)
    return DTensor.from_local(x, mesh, placements, run_check=False, shape=torch.Size(shape), stride=tuple(strides))
