# SPDX-License-Identifier: Apache-2.0
"""froghopper.torch.context_parallel.decode: new queries attend to a KV cache that is spread over the ranks of a group.

    froghopper::context_parallel_decode    o and lse of this rank's heads; without gradients

Each rank attends to its part and gets o and lse in fp32, which lie in one piece of memory, so that one collective
operation carries both. The parts are then merged in the order of ranks, with the sink as one part more that has no
values. On the CPU the ranks compare what they are given before that, and hear what one of them refuses. On a GPU they
do not, since nothing is read on the host there, and a CUDA graph would not compare again.
"""
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args, overload

import torch
import torch.distributed as dist
from torch import Tensor

from froghopper import _torch_calls as calls
from froghopper import _torch_cp_group as groups
from froghopper import _torch_flops as flops
from froghopper import _torch_ops as ops
from froghopper import _torch_paged as paged
from froghopper._axes import check_axes_of_cache
from froghopper._call import number
from froghopper._errors import InvalidProblem, InvalidTensor, Unsupported
from froghopper._merge import terms_of, weights_of
from froghopper._torch_calls import FLOAT8, check_place, check_side, check_tensor, sink_of
from froghopper._torch_cp_calls import numbers_of
from froghopper._torch_cp_ops import fake_forward
from froghopper._torch_cp_words import tell, tells_others
from froghopper._torch_library import library_of
from froghopper._torch_options import plain, whole
from froghopper._values import flag, shown
from froghopper._words import takes_words_of_others

Heads = Literal["all", "sharded"]

_library = library_of(__name__)
_library.define(
    "context_parallel_decode(Tensor q, Tensor k, Tensor v, Tensor? block_table, Tensor? seqused_kv, Tensor? sink, "
    "Tensor? newest_of, str group, str heads, bool newest, SymInt? max_seqlen_kv, float softcap, float? scale) -> "
    "(Tensor, Tensor)")
decode_op: Any = torch.ops.froghopper.context_parallel_decode.default


class Cache(NamedTuple):
    """This rank's part of the cache, and how its scores are computed; block_table is None for a dense one."""
    k: Tensor
    v: Tensor
    block_table: Tensor | None
    max_seqlen_kv: int | None
    softcap: float
    scale: float | None


@overload
def decode(q: Tensor, k: Tensor, v: Tensor, group: Any = ..., *, seqused_kv: Tensor | None = ...,
           block_table: Tensor | None = ..., max_seqlen_kv: int | None = ..., newest: bool | Tensor | None = ...,
           scale: float | None = ..., softcap: float | None = ..., sink: Tensor | None = ..., heads: Heads = ...,
           return_lse: Literal[False] = ...) -> Tensor: ...


@overload
def decode(q: Tensor, k: Tensor, v: Tensor, group: Any = ..., *, seqused_kv: Tensor | None = ...,
           block_table: Tensor | None = ..., max_seqlen_kv: int | None = ..., newest: bool | Tensor | None = ...,
           scale: float | None = ..., softcap: float | None = ..., sink: Tensor | None = ..., heads: Heads = ...,
           return_lse: Literal[True]) -> tuple[Tensor, Tensor]: ...


@tells_others
@takes_words_of_others("torch.context_parallel")
def decode(q: Tensor, k: Tensor, v: Tensor, group: Any = None, *, seqused_kv: Tensor | None = None,
           block_table: Tensor | None = None, max_seqlen_kv: int | None = None, newest: bool | Tensor | None = None,
           scale: float | None = None, softcap: float | None = None, sink: Tensor | None = None, heads: Heads = "all",
           return_lse: bool = False) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale q k^T) v over the parts of a KV cache that the ranks of a group have. Without gradients.

    q              [batch, new rows, heads_q, dim]; float16, bfloat16, on the CPU float32. The same on every rank, or
                   with heads="sharded" of this rank's heads
    k, v           this rank's part of the cache: [batch, rows, heads_kv, dim], or with block_table a pool
                   [pages, page_size, heads_kv, dim]. Any split of a sequence's rows over the ranks will do, and a rank
                   may have none; v may have its own dim
    group          whose ranks share the cache: a ProcessGroup, a DeviceMesh of one dimension, None for all ranks
    seqused_kv     [batch] int32: how many rows of each sequence this rank has, maybe 0; None for all rows of k. Rows
                   after them may hold anything, also NaN
    block_table    [batch, columns] int32, as froghopper.torch.paged_attention has it, of this rank's pages
    max_seqlen_kv  with block_table: an upper bound on seqused_kv
    newest         needed where there are several new rows: whether this rank has the newest rows of the cache, those of
                   the new queries, as the last ones of its part. Query i of n then attends to all rows of that part
                   except for the last n - 1 - i, and to all rows of other ranks. True, False, or [batch] bool for each
                   sequence. False on every rank: each query attends to every row
    scale, softcap as for froghopper.torch.attention
    sink           [heads_q], float32 or 16 bits, of the heads of q; counted once. With heads="all" the same on every
                   rank
    heads          "all": every rank gets o of all heads, by one all-gather of o and lse. "sharded": rank r has the r-th
                   of equal parts of the query heads and gets o of these, by an all-gather of q and one all-to-all of o
                   and lse; k and v have the key heads of the query heads of all ranks
    return_lse     also the logarithm of the softmax's denominator, [batch, heads_q, new rows] float32

    Returns o [batch, new rows, heads_q, dim of v] in the type of q, or (o, lse). Partial results are float32, merged in
    the order of the ranks and rounded once: with heads="all" all ranks get the same bits. A row that no rank has a key
    for has o = 0 and lse = -inf, or the sink. Shapes and transfers do not depend on lengths, which the host does not
    read. Ranks must give the same shapes, types and options, and with heads="all" the same sink. On the CPU they
    compare these, and ValueError names what differs, or what one of them refuses. On a GPU they do not, and where a
    rank raises on its own, the others wait for the group's timeout. Raises TypeError, ValueError, NotImplementedError
    as froghopper.torch.attention does, RuntimeError where a transfer fails.
    """
    try:
        for name, x in (("q", q), ("k", k), ("v", v)): check_tensor(name, x)
        sink = sink_of(sink)
        for name, maybe in (("seqused_kv", seqused_kv), ("block_table", block_table)):
            if maybe is not None: check_tensor(name, maybe)
        if heads not in get_args(Heads):
            raise InvalidProblem(f"heads must be \"all\" or \"sharded\", but is {shown(heads)}. Use \"all\" where "
                                 "every rank has all query heads.")
        if q.ndim != 4:
            raise InvalidProblem(f"q must be [batch, new rows, heads_q, dim], but has the shape {list(q.shape)}. Use "
                                 "q.unsqueeze(1) where each sequence has one new row.")
        if k.dtype in FLOAT8:
            raise Unsupported(f"k must have the type of q, {calls.name_of(q.dtype)}, but is {calls.name_of(k.dtype)}; "
                              "a cache that is spread over ranks has no scales. Use k.to(q.dtype) times its scale, "
                              "and v.")
        if max_seqlen_kv is not None:
            if block_table is None:
                raise InvalidProblem("max_seqlen_kv must be None without block_table, but is given. Leave it out, or "
                                     "cut k and v to that many rows.")
            max_seqlen_kv = whole("max_seqlen_kv", max_seqlen_kv)
        if heads == "all" and k.ndim == 4:
            read = "[pages, page_size, heads, dim]" if block_table is not None else "[batch, rows, heads, dim]"
            check_axes_of_cache(q.shape, k.shape, read)
        newest_of = check_newest(newest, q)
        if sink is not None: check_side("sink", sink, q, torch.float32, q.shape[2:3])
        of_rank = newest_of is None and newest is not None and plain(flag, "newest", newest)
        softcap = 0.0 if softcap is None else plain(number, "softcap", softcap)
        if scale is not None: scale = plain(number, "scale", scale)
        with_lse = plain(flag, "return_lse", return_lse)
    except Exception as error:  # other ranks are told where they hear it
        tell("decode", dict(q=q, k=k, v=v, group=group), error)
        raise
    o, lse = decode_op(q, k, v, block_table, seqused_kv, sink, newest_of, groups.resolved(group).group_name, heads,
                       of_rank, max_seqlen_kv, softcap, scale)
    return (o, lse) if with_lse else o


def check_newest(newest: Any, q: Tensor) -> Tensor | None:
    """newest where it is a tensor."""
    if newest is None and q.shape[1] > 1:
        raise InvalidProblem(f"newest must be given where q has several new rows, but is None and q has {q.shape[1]}. "
                             "Say on each rank whether it has the newest rows of the cache, newest=True or False or a "
                             "bool for each sequence; where these lie on several ranks, call for each row alone.")
    if not isinstance(newest, Tensor): return None
    check_place("newest", newest, q)
    if newest.dtype != torch.bool or newest.shape != q.shape[:1]:
        raise InvalidTensor(f"newest must be True, False or bool [batch] with batch {q.shape[0]}, but is "
                            f"{calls.name_of(newest.dtype)} with the shape {list(newest.shape)}. Use newest.bool() for "
                            "the type.")
    return newest


def forward(q: Tensor, k: Tensor, v: Tensor, block_table: Tensor | None, seqused_kv: Tensor | None,
            sink: Tensor | None, newest_of: Tensor | None, group: str, heads: Heads, newest: bool,
            max_seqlen_kv: int | None, softcap: float, scale: float | None) -> tuple[Tensor, Tensor]:
    held = groups.resolved(group)
    cache = Cache(k, v, block_table, max_seqlen_kv, softcap, scale)
    ranks, of_part = held.size(), (seqused_kv, newest_of, newest)
    agreed = functools.partial(agree, held, q, v, sink, heads, softcap, scale,
                               newest if newest_of is None else newest_of)
    if heads == "all":
        part = agreed(functools.partial(part_of, q, cache, *of_part))
        parts = groups.gathered(held, part)
    else:
        agreed(lambda: q)
        every = groups.gathered(held, q).permute(1, 2, 0, 3, 4).flatten(2, 3)
        part = agreed(functools.partial(part_of, every, cache, *of_part))
        batch, rows, own = q.shape[:3]
        o, lse = cut(part, *sizes_of(every, v))
        of_o = o.view(batch, rows, ranks, own, v.shape[-1]).permute(2, 0, 1, 3, 4).flatten(1)
        of_lse = lse.view(batch, ranks, own, rows).transpose(0, 1).flatten(1)
        parts = exchanged(held, torch.cat([of_o, of_lse], 1))
    numbers, *shapes = sizes_of(q, v)
    return merged(*cut(parts, numbers, *((ranks, *shape) for shape in shapes)), sink, q.dtype)


def sizes_of(q: Tensor, v: Tensor) -> Any:
    """(how many numbers o and lse have, the shape of o, that of lse)."""
    shapes = calls.shapes_of(q.shape, v.shape)
    return [torch.Size(shape).numel() for shape in shapes], *shapes


def part_of(q: Tensor, cache: Cache, used: Tensor | None, newest_of: Tensor | None, newest: bool) -> Tensor:
    """o and lse of attention to the rows of this rank, behind each other."""
    numbers, *shapes = sizes_of(q, cache.v)
    part = q.new_empty(sum(numbers), dtype=torch.float32)
    attend_to_part(q, cache, used, newest_of, newest, *cut(part, numbers, *shapes))
    return part


def agree(group: Any, q: Tensor, v: Tensor, sink: Tensor | None, heads: Heads, softcap: float, scale: float | None,
          newest: bool | Tensor, made: Callable[[], Tensor]) -> Tensor:
    """What this rank makes, once all have; on the CPU also once all have given the same of what they must give alike.
    What one cannot make it refuses, before others wait for it. With heads="sharded" a rank's sink has its own numbers.
    """
    if not q.is_cpu: return made()
    found = []

    def same() -> dict[str, Any]:
        of_sink = numbers_of(sink) if heads == "all" else None if sink is None else "given"
        found.append(made())
        return {"heads": heads, "dtype of q": calls.name_of(q.dtype), "the shape of q": list(q.shape),
                "dim of v": v.shape[-1], "softcap": softcap, "scale": scale, "sink": of_sink}
    def own() -> dict[str, Any]:
        if q.shape[1] == 1: return {"newest": []}  # it says nothing then
        return {"newest": newest.tolist() if isinstance(newest, Tensor) else [newest] * q.shape[0]}
    said = groups.agree(group, "decode", same, own)
    for sequence, of_ranks in enumerate(zip(*(each["newest"] for each in said))):
        if sum(of_ranks) > 1:
            those = " and ".join(str(rank) for rank, has in enumerate(of_ranks) if has)
            raise InvalidProblem(f"newest must be True on one rank, which has the newest rows of a sequence, but for "
                                 f"sequence {sequence} it is on ranks {those}. Give newest=False on the others.")
    return found[0]


def attend_to_part(q: Tensor, cache: Cache, used: Tensor | None, newest_of: Tensor | None, newest: bool, o: Tensor,
                   lse: Tensor) -> None:
    """Attention to the rows of this rank: o, which need not be set, and lse in float32."""
    if newest_of is None or q.shape[1] < 2: return run_part(q, cache, used, newest and q.shape[1] > 1, o, lse)
    # One launch has one mask: sequences of the other mask have no rows in it, and the second one lets them be.
    if used is None: used = torch.full(q.shape[:1], rows_of(cache), dtype=torch.int32, device=q.device)
    for causal in (True, False): run_part(q, cache, used * (newest_of == causal), causal, o, lse, first=causal)


def rows_of(cache: Cache) -> int:
    if cache.max_seqlen_kv is not None: return cache.max_seqlen_kv
    columns = 1 if cache.block_table is None else int(cache.block_table.shape[1])
    return columns * int(cache.k.shape[1])


def run_part(q: Tensor, cache: Cache, used: Tensor | None, causal: bool, o: Tensor, lse: Tensor,
             first: bool = True) -> None:
    """o and lse become those over these rows; not first: over those that they hold too. The first call has the kernels
    of decoding, which merge with nothing that is there."""
    k, v, table, most, softcap, scale = cache
    if table is None:
        calls.forward(o, q, k, v, None, None, None, None, used, None, calls.LOOK, calls.LOOK, causal, -1, -1, softcap,
                      scale, False, False, 0, 0, False, True, False, lse, first=first)
        return
    sides = paged.Sides(table, None, None, used, *[None] * 8)
    options = paged.Options(None, most, causal, -1, -1, softcap, scale, False, 0, 0, False, None)
    paged.run(q, k, v, sides, options, o, True, lse, first)


def cut(x: Tensor, numbers: list[int], *shapes: Any) -> tuple[Tensor, Tensor]:
    """Views of o and lse, which lie behind each other in the last dimension."""
    return x.narrow(-1, 0, numbers[0]).view(shapes[0]), x.narrow(-1, *numbers).view(shapes[1])


def exchanged(group: Any, x: Tensor) -> Tensor:
    """x[r] goes to rank r; what comes from rank r is row r of the result."""
    return groups.collective(group, dist.all_to_all_single, torch.empty_like(x), x)


def merged(o: Tensor, lse: Tensor, sink: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(o, lse) over the keys of all ranks, of o [ranks, batch, rows, heads, dim] and lse [ranks, batch, heads, rows].
    Added up one rank after the other: a sum of PyTorch may take another order."""
    if sink is not None: lse = torch.cat([lse, sink.view(1, 1, -1, 1).expand(1, *lse.shape[1:])])
    weights, all_lse = weights_of(lse)
    terms = terms_of(o, weights[:o.shape[0]].transpose(2, 3))
    return functools.reduce(torch.add, terms).to(dtype), all_lse


for _device in ("CPU", "CUDA"): _library.impl("context_parallel_decode", forward, _device)
torch.library.register_fake("froghopper::context_parallel_decode", fake_forward, lib=_library)
ops.register_derivatives(_library, decode_op, function="decode")
flops.count([torch.ops.froghopper.context_parallel_decode], flops.of_decode)
