# SPDX-License-Identifier: Apache-2.0
"""What flash_attn_with_kvcache looks at before it writes or computes anything: kinds, places, types and shapes of all
that it is given, under the names that it has there, and lengths that lie in host memory.

Lengths on a GPU are not looked at, since that would wait for it.
"""
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from froghopper import _torch_paged as of_pages
from froghopper._axes import check_axes_of_cache, unlike
from froghopper._call import check_rank, whole_number
from froghopper._errors import InvalidProblem, InvalidTensor, InvalidType, Unsupported
from froghopper._flash_words import check_tangents, window_of
from froghopper._torch_calls import FLOAT8, check_dense, check_place, check_tensor
from froghopper._torch_ops import PLAIN
from froghopper._torch_options import bound_of, is_open
from froghopper._values import counted, from_0_to, is_of_padding, way_to_shape, wrong_kind


def check_tensors(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None, v: Tensor | None,
                  lengths: dict[str, Any], cu_seqlens_q: Tensor | None, max_seqlen_q: int | None,
                  table: Tensor | None) -> None:
    """Kinds, places, types and shapes of all that is given. lengths: under the names that users know."""
    for name, x in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache), ("k", k), ("v", v)):
        if x is not None or name in ("q", "k_cache", "v_cache"): check_dense(name, x)
        if x is not None: check_place(name, x, q)
    check_rank("q", q.shape, cu_seqlens_q is not None, "cu_seqlens_q and max_seqlen_q")
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.ndim != 4 or cache.stride(-1) != 1:
            out = f"Use {name}.contiguous()" if cache.ndim == 4 else "Give it 4 dimensions"
            raise InvalidTensor(f"{name} must be [batch, seq, heads, dim] with the last stride 1, but has the shape "
                                f"{list(cache.shape)} and the strides {list(cache.stride())}. {out}.")
    if k_cache.shape[:3] != v_cache.shape[:3]:
        raise InvalidTensor(f"v_cache must have the rows, seq and heads of k_cache, {list(k_cache.shape[:3])}, but "
                            f"has the shape {list(v_cache.shape)}. Give both caches equally many of them.")
    if k_cache.shape[-1] != q.shape[-1]:
        raise unlike("k_cache", k_cache.shape, "q", q.shape, "dim", k_cache.shape[-1], q.shape[-1])
    read = "[batch, seq, heads, dim]" if table is None else "[pages, page_size, heads, dim]"
    check_axes_of_cache(q.shape, k_cache.shape, read, "k_cache", "v_cache")
    if cu_seqlens_q is not None:
        check_tensor("cu_seqlens_q", cu_seqlens_q)
        check_counts("cu_seqlens_q", cu_seqlens_q, max(cu_seqlens_q.numel(), 1), q)
    batch = batch_of(q, cu_seqlens_q)
    for name, x in lengths.items():
        if isinstance(x, Tensor): check_counts(name, x, batch + 1 if name == "cu_seqlens_k_new" else batch, q)
        elif x is not None and name != "cache_seqlens": check_tensor(name, x)
    if table is not None: check_table(table, q)
    held, name = (k_cache, "k_cache") if table is None else (table, "page_table")
    if lengths["cache_batch_idx"] is None and held.shape[0] != batch:
        raise InvalidProblem(f"{name} must have a row for each sequence of q, {batch} in all, but has {held.shape[0]}. "
                             f"Give cache_batch_idx{' or, for a pool of pages, page_table' * (table is None)}.")
    if cu_seqlens_q is not None and max_seqlen_q is None:
        raise InvalidProblem("max_seqlen_q must be given with cu_seqlens_q, but is None. Give an upper bound on the "
                             "rows of a sequence.")
    if max_seqlen_q is not None and bound_of("max_seqlen_q", max_seqlen_q) < q.shape[1] and cu_seqlens_q is None:
        raise InvalidProblem(f"max_seqlen_q must be at least {q.shape[1]}, the rows of q that sequences have, but is "
                             f"{max_seqlen_q}. Leave it out.")
    check_new(k_cache, v_cache, k, v, batch, lengths, rows_of(k_cache, table))


WITH_GRADIENTS = ("q", "k_cache", "v_cache", "k", "v", "s_aux", "out", "alibi_slopes", "rotary_cos", "rotary_sin")


def refuse_gradients(tensors: tuple[Any, ...]) -> None:
    """What is written to a cache has no gradients, and attention to a cache none either. Beside fp8 they are dropped,
    as in every function here. tensors: those of WITH_GRADIENTS."""
    recorded = torch.is_grad_enabled() and any(x is not None and getattr(x, "requires_grad", False) for x in tensors)
    if not recorded and forward_ad._current_level < 0: return
    given: dict[str, Tensor | None] = {
        name: x for name, x in zip(WITH_GRADIENTS, tensors) if isinstance(x, Tensor)}
    if tensors[1].dtype in FLOAT8: check_tangents(given)
    else: of_pages.refuse_gradients(given, "flash_attn_with_kvcache")


def within(bound: Any, pages: Tensor, table: Tensor | None) -> Any:
    """A bound on the keys of a sequence, at most those that its pages hold: engines give those of a model."""
    if type(bound) is not int or pages.ndim != 4 or table is not None and table.ndim != 2: return bound
    return min(bound, rows_of(pages, table))


def rows_of(k_cache: Tensor, table: Tensor | None) -> int:
    """How many rows a sequence may have."""
    rows: int = k_cache.shape[1] * (1 if table is None else table.shape[1])
    return rows


def check_table(table: Tensor, q: Tensor) -> None:
    check_tensor("page_table", table)
    check_place("page_table", table, q)
    if table.dtype != torch.int32 or table.ndim != 2:
        way = "Give a row of pages for each sequence" if table.ndim != 2 else "Use page_table.int()"
        raise InvalidType(f"page_table must be int32 [batch, columns], but is {table.dtype} with the shape "
                          f"{list(table.shape)}. {way}.")


def check_new(k_cache: Tensor, v_cache: Tensor, k: Tensor | None, v: Tensor | None, batch: int,
              lengths: dict[str, Any], most: int) -> None:
    """New keys and values beside the cache that they go to."""
    begins = lengths["cu_seqlens_k_new"]
    if k is None and v is None:
        if begins is None: return
        raise InvalidProblem("k and v must be given with cu_seqlens_k_new, which says where their sequences begin, "
                             "but are None. Give them, or leave out cu_seqlens_k_new.")
    if k is None or v is None or lengths["cache_seqlens"] is None:
        raise InvalidProblem("k, v and cache_seqlens must be given together, as new rows go where cache_seqlens "
                             "ends, but one is None. Give all three, or cache_seqlens alone.")
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.dtype in (torch.int8, torch.uint8):  # a cast of the new rows would lose their numbers
            raise InvalidType(f"{name} must have a floating-point type, but is {cache.dtype}. If it holds the bytes "
                              f"of an 8-bit type, use {name}.view(torch.float8_e4m3fn), with k_descale and v_descale.")
    if k.dtype != k_cache.dtype or v.dtype != v_cache.dtype:
        scaled = ", after a division by their descales" * (k_cache.dtype in FLOAT8)
        raise InvalidType(f"k and v must have the types of the cache, {k_cache.dtype} and {v_cache.dtype}, but are "
                          f"{k.dtype} and {v.dtype}. Use k.to(k_cache.dtype) and v.to(v_cache.dtype){scaled}.")
    reads = "[batch, seq_new, heads_k, dim]" if begins is None else "[total_new, heads_k, dim] with cu_seqlens_k_new"
    rows = [batch, k.shape[1] if k.ndim == 4 else "seq_new"] if begins is None else k.shape[:1]
    if begins is None and k.ndim == 4 and k.shape[1] > most:
        swapped = k_cache.ndim == 4 and k.shape[0] == k_cache.shape[0] and k.shape[2:] == k_cache.shape[2:]
        other = "; if k is the cache, give k_cache and v_cache first, then k and v, the new rows" * swapped
        raise InvalidTensor(f"k must have at most {counted(most, 'row')}, as the cache has, but has {k.shape[1]} for "
                            f"each sequence. Use a longer cache, or fewer new rows{other}.")
    for name, x, cache in (("k", k, k_cache), ("v", v, v_cache)):
        wanted = [*rows, *cache.shape[2:]]
        if list(x.shape) != wanted:
            long = ("as long as k and " * (name == "v")) + "with the heads and columns of the cache"
            out = way_to_shape(name, x.shape, wanted) if "seq_new" not in wanted else "Add the missing dimensions"
            if x.ndim == 3 and begins is None: out += ", or give cu_seqlens_k_new, where packed sequences begin"
            if x.ndim == 4 and [x.shape[1], x.shape[3]] == wanted[2:]:
                out = f"Use {name}.swapaxes(1, 2), if it is [batch, heads, seq, dim]"
            raise InvalidTensor(f"{name} must be {reads}, here {wanted}, {long}, but has the shape {list(x.shape)}. "
                                f"{out}.")


def check_counts(name: str, x: Tensor, count: int, q: Tensor) -> None:
    check_place(name, x, q)
    types = (torch.int32, torch.int64) if name == "cache_batch_idx" else (torch.int32,)
    if x.dtype not in types or x.shape != (count,):
        cast = "" if x.dtype in types else ".int()"
        flat = ".flatten()" * (x.shape != (count,) and x.numel() == count)
        out = f"Use {name}{cast}{flat}." if cast or flat else f"Give it {counted(count, 'number')}."
        if cast and not flat and x.shape != (count,): out = f"Give it {counted(count, 'number')}, and use {name}.int()."
        if is_of_padding(name, x.shape): out = f"If it is a mask, with padding at the end, use {name}.sum(-1).int()."
        raise InvalidType(f"{name} must be int32 [{count}], a number for each "
                          f"sequence{' and the end' * name.startswith('cu_')}, but is {x.dtype} with the shape "
                          f"{list(x.shape)}. {out}")


def batch_of(q: Tensor, cu_seqlens_q: Tensor | None) -> int:
    batch: int = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    return batch


def check_numbers(q: Tensor, rows: int, k: Tensor | None, lengths: dict[str, Any], cu_seqlens_q: Tensor | None,
                  max_seqlen_q: int | None, max_seqlen_k: int | None, sequences: int) -> None:
    """The lengths that lie in host memory, and cache_batch_idx wherever it lies if rows are written. rows: of a
    sequence of the cache; sequences: how many it has."""
    batch, begins = batch_of(q, cu_seqlens_q), lengths["cu_seqlens_k_new"]
    if max_seqlen_q is not None and known(cu_seqlens_q):
        check_ends("cu_seqlens_q", cu_seqlens_q, "q", len(q), "max_seqlen_q", max_seqlen_q)
    added = [0 if k is None or begins is not None else k.shape[1]] * batch
    if k is not None and known(begins):
        check_ends("cu_seqlens_k_new", begins, "k", len(k))
        added = begins.diff().tolist()
    used = lengths["cache_seqlens"]
    if isinstance(used, Tensor): used = used.tolist() if known(used) else []
    elif used is not None:
        array = type(used).__name__ == "ndarray"
        if array or not hasattr(used, "__index__"):
            out = "torch.tensor(cache_seqlens, dtype=torch.int32)"
            if array and not used.ndim: out = "int(cache_seqlens)"
            wrong_kind("cache_seqlens", used, "a whole number or an int32 tensor [batch]",
                       out if array or isinstance(used, (list, tuple)) else "one of them")
        used = [whole_number("cache_seqlens", used)] * batch
    for at, (count, more) in enumerate(zip(used or [], added)):
        if 0 <= count <= rows - more: continue
        added_rows = f" and {counted(more, 'row')} {'is' if more == 1 else 'are'} added" * (more > 0)
        most = from_0_to(max(rows - more, 0))
        of = f"[{at}]" * isinstance(lengths["cache_seqlens"], Tensor)
        raise InvalidTensor(f"cache_seqlens{of} must be {'from ' * (most != '0')}{most}, as the cache has "
                            f"{counted(rows, 'row')}{added_rows}, but is {count}. Use {most}, or a longer cache.")
    totals = None if used == [] else [count + more for count, more in zip(used or [rows] * batch, added)]
    if max_seqlen_k is not None:
        check_longest(bound_of("max_seqlen_k", max_seqlen_k), totals, lengths["cache_seqlens"], any(added))
    left, index = lengths["cache_leftpad"], lengths["cache_batch_idx"]
    if known(left): check_left(left.tolist(), rows, totals, any(added))
    if index is None or not (known(index) or k is not None): return
    held = index.tolist()
    check_range("cache_batch_idx", held, sequences - 1)
    if k is not None and len(set(held)) != len(held):
        raise Unsupported(f"cache_batch_idx is {held}; two sequences cannot share a row of the cache that k and v are "
                          "written to. Copy that row, or write k and v before the call.")


def known(x: Tensor | None) -> bool:
    """Whether its numbers may be read: in host memory, and there is more than a trace of it."""
    if x is None or type(x) not in PLAIN or torch.compiler.is_compiling(): return False
    return bool(x.device.type == "cpu")


def check_ends(name: str, ends: Any, of: str, total: int, bound: str = "", longest: int = 0) -> None:
    """of: the tensor whose rows they count. bound: of what longest is, the most rows of a sequence; none if empty."""
    held = ends.tolist()
    if held[0] != 0:
        raise InvalidTensor(f"{name} must begin with 0, but begins with {held[0]}. Sum lengths up behind a 0.")
    for at, (begin, end) in enumerate(zip(held, held[1:])):
        if end < begin:
            raise InvalidTensor(f"{name} must not fall, as sequences lie end to end, but falls from {begin} to {end} "
                                f"at entry {at + 1}. Let it rise.")
        if bound and end - begin > longest:
            raise InvalidProblem(f"{bound} must be at least {end - begin}, the rows of sequence {at}, but is "
                                 f"{longest}. Use {bound}={end - begin}.")
    if held[-1] > total:
        raise InvalidTensor(f"{name} must end at {total} at most, as {of} has {counted(total, 'row')}, but ends at "
                            f"{held[-1]}. Sum lengths up behind a 0.")


def check_range(name: str, held: list[int], most: int) -> None:
    for at, value in enumerate(held):
        if not 0 <= value <= most:
            raise InvalidTensor(f"{name}[{at}] must be from 0 to {most}, but is {value}. Use {from_0_to(most)}.")


def check_longest(bound: int, totals: list[int] | None, used: Any, more: bool) -> None:
    """max_seqlen_k beside how many keys sequences have; None where that is not known. used: cache_seqlens; more:
    whether new rows come behind these."""
    if not totals or is_open(bound) or bound >= max(totals): return
    at = totals.index(most := max(totals))
    if used is None: of = "the rows of the cache, which all count without cache_seqlens"
    elif more: of = f"the keys of sequence {at} with its new rows"
    else: of = f"which cache_seqlens{f'[{at}]' * isinstance(used, Tensor)} is"
    raise InvalidProblem(f"max_seqlen_k must be at least {most}, {of}, but is {bound}. Use max_seqlen_k={most}.")


def check_left(left: list[int], rows: int, totals: list[int] | None, more: bool) -> None:
    """cache_leftpad beside the same. more: whether new rows are among them."""
    check_range("cache_leftpad", left, rows)
    for at, (first, total) in enumerate(zip(left, totals or [])):
        if first <= total: continue
        by = "cache_seqlens" + " and the new rows" * more
        raise InvalidTensor(f"cache_leftpad[{at}] must be at most {total}, where that sequence ends by {by}, but is "
                            f"{first}. If cache_seqlens counts the rows behind the padding alone, use cache_seqlens + "
                            "cache_leftpad.")


class Rotary(NamedTuple):
    """flash_attn_with_kvcache's words for it. moves: a row of q is one position further than the row before it, as k's
    are; else, where the whole cache is seen by each, all are at the first."""
    cos: Tensor | None
    sin: Tensor | None
    seqlens: Tensor | None
    interleaved: bool
    moves: bool


def moves_on(causal: bool, window_size: Any, attention_chunk: int | None) -> bool:
    """Whether FlashAttention rotates each row of q by its own position, and not all by the first's."""
    return bool(causal) or bool(attention_chunk) or window_of(window_size) != (None, None)


def check_rotary(rotary: Rotary, k: Tensor | None, q: Tensor, batch: int) -> None:
    for name, x in (("rotary_cos", rotary.cos), ("rotary_sin", rotary.sin)):
        if x is not None: check_tensor(name, x)
        if x is not None: check_place(name, x, q)
    if (rotary.cos is None) != (rotary.sin is None):
        raise InvalidProblem("rotary_cos and rotary_sin must be given together, but one is None. Give both or none.")
    if rotary.cos is None: return
    if k is None:
        raise InvalidProblem("k must be given with rotary_cos, as q is rotated together with new keys, but is None. "
                             "Give k and v, or leave rotary_cos out.")
    if rotary.seqlens is not None:
        check_tensor("rotary_seqlens", rotary.seqlens)
        check_counts("rotary_seqlens", rotary.seqlens, batch, q)
