# SPDX-License-Identifier: Apache-2.0
"""Pages of a pool as engines hand them over: dense caches as pools, and sequences that do not begin with a page.
Nothing here reads a number of a GPU or copies a pool.

A slot is a row of a pool: slot s lies in page s // page_size, row s % page_size.
"""
import torch
from torch import Tensor

from froghopper._errors import Unsupported
from froghopper._values import counted

LARGEST = 2**31 - 1  # of a slot in a table


def table_of(rows: int, batch: int, cache_batch_idx: Tensor | None, like: Tensor) -> Tensor:
    """A dense cache [rows, seq, heads, dim] is a pool whose pages are its rows; this is its table, [batch, 1] int32.
    Numbers beside the cache become the nearest row."""
    if cache_batch_idx is None: return torch.arange(batch, dtype=torch.int32, device=like.device)[:, None]
    return cache_batch_idx.clamp(0, max(rows - 1, 0)).to(torch.int32)[:, None]


def slots_of(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, int]:
    """The pools k and v [pages, page_size, heads, dim] with pages of one row, and how many of those lie from the
    beginning of a page to that of the next one: page_size, or more where heads lie outside of rows or other tensors lie
    between."""
    pages, page = k.shape[:2]
    if page == 1: return k, v, 1
    steps = [x.stride(0) // x.stride(1) if x.stride(1) and x.stride(0) % x.stride(1) == 0 else 0 for x in (k, v)]
    if pages <= 1: steps = [page, page]
    if not steps[0] == steps[1] > 0:
        raise Unsupported(f"k_cache and v_cache have the strides {list(k.stride())} and {list(v.stride())}; with "
                          "cache_leftpad a page begins so many rows behind the one before, a whole number that both "
                          "have in common. Leave out cache_leftpad, or use pools that lie alike.")
    count = (pages - 1) * steps[0] + page if pages else 0
    if count > LARGEST:
        raise Unsupported(f"k_cache has {counted(pages, 'page')}, and a table of slots up to {count} for "
                          "cache_leftpad; its numbers are int32. Leave out cache_leftpad, or use a pool of at most "
                          f"{LARGEST} slots.")
    slots = [x.as_strided((count, 1, *x.shape[2:]), (x.stride(1), *x.stride()[1:])) for x in (k, v)]
    return slots[0], slots[1], steps[0]


def from_left(k: Tensor, v: Tensor, table: Tensor, begin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The pools and the table of sequences without their first begin[b] rows: pages of one row each, since a sequence
    may begin in the middle of a page. It costs four bytes a row."""
    slots_k, slots_v, step = slots_of(k, v)
    page, rows = k.shape[1], table.shape[1] * k.shape[1]
    at = begin.clamp(min=0).long()[:, None] + torch.arange(rows, device=table.device)
    at = at.clamp(max=max(rows - 1, 0))  # behind the last row nothing counts
    pages = table.gather(1, at // page)
    return slots_k, slots_v, (pages * step + at % page).to(torch.int32)


def packed_from_left(k: Tensor, v: Tensor, begin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A dense cache whose sequences begin at row begin[b] of their part of it: all of it as packed rows [total, heads,
    dim], and where sequences begin, as cu_seqlens_kv beside seqused_kv says it."""
    slots_k, slots_v, step = slots_of(k, v)
    parts = torch.arange(k.shape[0] + 1, dtype=torch.int32, device=begin.device) * step
    begins = parts + torch.nn.functional.pad(begin.clamp(0, k.shape[1]), (0, 1))
    return slots_k.squeeze(1), slots_v.squeeze(1), begins.clamp(max=slots_k.shape[0])  # the end of the last part


def rows_apart(x: Tensor) -> Tensor:
    """The pool [pages, page_size, heads, dim] as it lies, with strides of dimensions of one number that are multiples
    of the others: engines leave any there, and a GPU's tensor maps take multiples of 16 bytes."""
    if 1 not in x.shape[:3]: return x
    strides = list(x.stride())
    for at in (2, 1, 0):
        if x.shape[at] == 1: strides[at] = max(x.shape[at + 1] * strides[at + 1], x.shape[3])
    return x.as_strided(x.shape, strides)


def rounded_up(length: int) -> int:
    """To a power of two. A plan is made for bounds on lengths, and those of engines change from step to step."""
    return 1 << max(length - 1, 0).bit_length()
