# SPDX-License-Identifier: Apache-2.0
"""Which rows of a sequence each rank of a group has: shard, unshard and positions of froghopper.torch.context_parallel.

A sequence is cut into chunks whose lengths differ by one at most. "contiguous" makes a chunk for each rank; "zigzag"
makes two, and rank r has chunk r and, counted from the end, chunk r again, so that under a causal mask all ranks have
equally many pairs of a query and a key that it attends to. "by_document" does so with each document of a packed
sequence by itself: include/froghopper/cp.h has the rule, FH_CP_BY_DOCUMENT.
"""
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from froghopper import _torch_cp_documents as packing
from froghopper import _torch_cp_group as groups
from froghopper._errors import InvalidProblem, InvalidTensor, Unsupported
from froghopper._parallel import check_by_document
from froghopper._torch_calls import FLOAT8, check_dense, check_tensor
from froghopper._torch_cp_words import tells_others
from froghopper._values import counted, shown, whole_number
from froghopper._words import takes_words_of_others

Layout = Literal["zigzag", "contiguous", "by_document"]
Span = tuple[int, int]  # [begin, end)
# Types whose numbers no collective of gloo knows travel as those of another type.
SENT_AS = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64,
           **{dtype: torch.uint8 for dtype in FLOAT8}}


def check_layout(layout: Any, cu_seqlens: Any) -> None:
    if not isinstance(layout, str) or layout not in get_args(Layout):
        words = " or ".join(f'"{word}"' for word in get_args(Layout))
        raise InvalidProblem(f"layout must be {words}, but is {shown(layout)}. Use layout=\"zigzag\" for causal "
                             "attention.")
    check_by_document(layout, cu_seqlens)


def spans(layout: Layout, total: int, ranks: int, rank: int, documents: Sequence[int] | None) -> list[Span]:
    """The rows of that rank in the whole sequence, in the order in which the rank has them."""
    if layout == "contiguous": return [chunk(total, ranks, rank)]
    chunks = rank, 2 * ranks - 1 - rank
    if layout == "zigzag": return [chunk(total, 2 * ranks, at) for at in chunks]
    assert documents is not None
    return [(cut(document, ranks, at), cut(document, ranks, at + 1)) for document in pairwise(documents)
            for at in chunks]


def chunk(total: int, chunks: int, at: int) -> Span: return at * total // chunks, (at + 1) * total // chunks


def cut(document: Span, ranks: int, at: int) -> int:
    """Where the chunk of that number begins. Rows are dealt from document to document: first chunks get the rows t with
    t % (2 * ranks) == 0, 1, ..., the last one, the one before it, ... those with ranks, ranks + 1, ..."""
    begin, end = document
    if at <= ranks: return begin + dealt(document, ranks, at)
    return end - dealt(document, ranks, 3 * ranks - at) + dealt(document, ranks, ranks)


def dealt(document: Span, ranks: int, most: int) -> int:
    """How many of its rows t have t % (2 * ranks) < most."""
    begin, end = (t // (2 * ranks) * most + min(t % (2 * ranks), most) for t in document)
    return end - begin


def rows_of(layout: Layout, total: int, ranks: int, rank: int) -> int:
    """How many rows that rank has, whatever the documents are."""
    if layout == "by_document": return (total + ranks - 1 - rank) // ranks
    return sum(end - begin for begin, end in spans(layout, total, ranks, rank, None))


def places_in(own: list[Span]) -> Tensor:
    """The rows of these spans, in host memory."""
    begins, ends = (torch.tensor(each, dtype=torch.int64) for each in zip(*own)) if own else [torch.zeros(0).long()] * 2
    lengths = ends - begins
    return torch.repeat_interleave(ends - lengths.cumsum(0), lengths) + torch.arange(int(lengths.sum()))


def documents_for(layout: Any, cu_seqlens: Any, rows: int) -> list[int] | None:
    """After all checks of both."""
    check_layout(layout, cu_seqlens)
    if cu_seqlens is None: return None
    found: list[int] = packing.documents_of(cu_seqlens).tolist()
    packing.check_documents(found, rows)
    return found


@takes_words_of_others("torch.context_parallel")
def shard(x: Tensor, group: Any = None, *, dim: int = 1, layout: Layout = "zigzag", cu_seqlens: Any = None) -> Tensor:
    """The rows of this rank, of a tensor that every rank has whole.

    x       any tensor with the rows of a sequence: tokens [batch, seq] and labels, q [batch, seq, heads, dim], tables
            of positions with dim=0. The length need not be a multiple of anything
    group   whose ranks share the sequence; None for all
    dim     of the rows
    layout  "zigzag", "contiguous" or "by_document", as attention is told
    cu_seqlens   where documents are, as attention is told; needed for layout="by_document"

    Returns x with fewer rows, maybe none: a view where they follow each other, else a copy. It may be differentiated.
    """
    check_tensor("x", x)
    at = dim_of(x, dim)
    documents = documents_for(layout, cu_seqlens, x.shape[at])
    own = spans(layout, x.shape[at], *groups.size_and_rank(group), documents)
    if layout == "by_document": return x.index_select(at, places_in(own).to(x.device))
    parts = [x.narrow(at, begin, end - begin) for begin, end in own]
    return parts[0] if len(parts) == 1 else torch.cat(parts, at)


@takes_words_of_others("torch.context_parallel")
def positions(length: int, group: Any = None, *, layout: Layout = "zigzag", device: torch.device | str | None = None,
              cu_seqlens: Any = None) -> Tensor:
    """Where the rows that shard gives this rank lie in a sequence of that length, from 0 on: [rows] int64, as tables of
    rotary embeddings are indexed. cu_seqlens: as of attention; then where each row lies in its document."""
    if (found := whole_number("length", length)) < 0:
        raise InvalidProblem(f"length must be 0 or more rows, but is {found}. Give the length of the whole sequence.")
    documents = documents_for(layout, cu_seqlens, found)
    own = spans(layout, found, *groups.size_and_rank(group), documents)
    if layout == "by_document": places = places_in(own).to(device)
    else: places = torch.cat([torch.arange(begin, end, device=device) for begin, end in own])
    return places if documents is None else packing.places_within(places, documents)


@tells_others
@takes_words_of_others("torch.context_parallel")
def unshard(x: Tensor, group: Any = None, *, dim: int = 1, layout: Layout = "zigzag", cu_seqlens: Any = None) -> Tensor:
    """The inverse of shard: the whole tensor on every rank, from the rows that each has.

    x       this rank's rows, as many as shard gives. Other extents and the type are those of all ranks
    dim, layout, cu_seqlens   as shard was told

    It has no gradient: a loss that every rank computes of the whole would count once for each rank. Compute the loss of
    the rank's own rows, and add the losses up. What disagrees between ranks is an error on each of them.
    """
    held = groups.resolved(group)
    size, rank = groups.size_and_rank(held)

    def described() -> dict[str, Any]:
        check_dense("x", x)
        if x.is_meta: raise InvalidTensor("x must have memory, but is a meta tensor. Give x on a device.")
        check_layout(layout, cu_seqlens)
        if x.requires_grad and torch.is_grad_enabled():
            raise Unsupported("x requires a gradient and unshard has none. Use x.detach(), or compute the loss of each "
                              "rank's own rows.")
        at = dim_of(x, dim)
        rest = list(x.shape)
        rest[at] = -1
        return {"x": f"{x.dtype} {rest}", "dim": at, "layout": layout,
                "cu_seqlens": None if cu_seqlens is None else packing.in_words(packing.documents_of(cu_seqlens))}
    rows = [each["rows"] for each in groups.agree(
        held, "unshard", described, lambda: {"rows": x.shape[dim_of(x, dim)]})]
    at, total = dim_of(x, dim), sum(rows)
    check_rows(layout, "x", rows, size)
    documents = documents_for(layout, cu_seqlens, total)
    own = x.detach().movedim(at, 0)
    own = own.view(SENT_AS.get(x.dtype, x.dtype))
    padded = own.new_zeros((max(rows), *own.shape[1:]))
    padded[:rows[rank]] = own
    parts = groups.gathered(held, padded)
    whole = padded.new_empty((total, *padded.shape[1:]))
    for peer, part in enumerate(parts):
        taken = 0
        for begin, end in spans(layout, total, size, peer, documents):
            whole[begin:end] = part[taken:taken + end - begin]
            taken += end - begin
    return whole.view(x.dtype).movedim(0, at)


def check_rows(layout: Layout, name: str, rows: list[int], ranks: int) -> None:
    """The layout fixes how many rows each rank has, since their places follow from it."""
    for rank, found in enumerate(rows):
        if found != (wanted := rows_of(layout, sum(rows), ranks, rank)):
            raise InvalidTensor(f"{name} must have {counted(wanted, 'row')} on rank {rank}, as layout \"{layout}\" "
                                f"deals {counted(sum(rows), 'row')} to {counted(ranks, 'rank')}, but has {found}. Use "
                                "shard.")


def dim_of(x: Tensor, dim: int) -> int:
    """Counted from the first one."""
    found = whole_number("dim", dim)
    if not -x.ndim <= found < x.ndim:
        raise InvalidProblem(f"dim must be from {-x.ndim} to {x.ndim - 1}, as x has {counted(x.ndim, 'dimension')}, "
                             f"but is {found}. Give the dimension of the rows.")
    return found % int(x.ndim)
