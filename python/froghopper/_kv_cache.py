# SPDX-License-Identifier: Apache-2.0
"""What flash_attn_with_kvcache does with a cache: everything is checked, then new rows are written into it, then q
attends to it where it lies.

Lengths in host memory are read and checked. Those on a GPU are not, since that would wait for it: there a row that has
no place in the cache is not written, and no index leaves a tensor, whatever the numbers are.
"""
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from froghopper._call import cached, check_rank, whole_number
from froghopper._errors import InvalidProblem, InvalidTensor, InvalidType, Unsupported
from froghopper._spans import ends_of, merges, spans_of_keys, spans_of_queries
from froghopper._torch_calls import FLOAT8, check_place, check_tensor, kind
from froghopper._torch_ops import PLAIN
from froghopper._torch_options import bound_of
from froghopper.torch import attention

_tried: dict[Hashable, bool] = {}


def check_tensors(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None, v: Tensor | None,
                  lengths: dict[str, Any], cu_seqlens_q: Tensor | None, max_seqlen_q: int | None) -> None:
    """Kinds, places, types and shapes of all that is given. lengths: under the names that users know."""
    for name, x in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache), ("k", k), ("v", v)):
        if x is not None: check_tensor(name, x)
        if x is not None: check_place(name, x, q)
    check_rank("q", q.shape, cu_seqlens_q is not None)
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.ndim != 4 or cache.stride(-1) != 1:
            raise InvalidTensor(f"{name} must be [rows, seq, heads, dim] with the last stride 1, but has the shape "
                                f"{list(cache.shape)} and the strides {list(cache.stride())}. Use "
                                f"{name}.contiguous().")
    if k_cache.shape[:3] != v_cache.shape[:3]:
        raise InvalidTensor(f"v_cache must have the rows, seq and heads of k_cache, {list(k_cache.shape[:3])}, but "
                            f"has the shape {list(v_cache.shape)}. Change one.")
    if cu_seqlens_q is not None:
        check_tensor("cu_seqlens_q", cu_seqlens_q)
        check_counts("cu_seqlens_q", cu_seqlens_q, max(cu_seqlens_q.numel(), 1), q)
    batch = batch_of(q, cu_seqlens_q)
    for name, x in lengths.items():
        if isinstance(x, Tensor): check_counts(name, x, batch + 1 if name == "cu_seqlens_k_new" else batch, q)
        elif x is not None and name != "cache_seqlens": check_tensor(name, x)
    if lengths["cache_batch_idx"] is None and k_cache.shape[0] != batch:
        raise InvalidProblem(f"k_cache must have a row for each of the {batch} sequences of q, but has "
                             f"{k_cache.shape[0]}. Give cache_batch_idx.")
    if cu_seqlens_q is not None and max_seqlen_q is None:
        raise InvalidProblem("max_seqlen_q must be given with cu_seqlens_q, but is None. Give an upper bound on the "
                             "rows of a sequence.")
    if max_seqlen_q is not None and bound_of("max_seqlen_q", max_seqlen_q) < q.shape[1] and cu_seqlens_q is None:
        raise InvalidProblem(f"max_seqlen_q must be at least the {q.shape[1]} rows of q that sequences have, but is "
                             f"{max_seqlen_q}. Leave it out.")
    check_new(k_cache, v_cache, k, v, batch, lengths)


def check_new(k_cache: Tensor, v_cache: Tensor, k: Tensor | None, v: Tensor | None, batch: int,
              lengths: dict[str, Any]) -> None:
    """New keys and values beside the cache that they go to."""
    begins = lengths["cu_seqlens_k_new"]
    if k is None and v is None:
        if begins is None: return
        raise InvalidProblem("k and v must be given with cu_seqlens_k_new, which says where their sequences begin, "
                             "but are None. Give them, or leave out cu_seqlens_k_new.")
    if k is None or v is None or lengths["cache_seqlens"] is None:
        raise InvalidProblem("k, v and cache_seqlens must be given together, as new rows go where cache_seqlens "
                             "ends, but one is None. Give all three, or cache_seqlens alone.")
    if k.dtype != k_cache.dtype or v.dtype != v_cache.dtype:
        raise InvalidType(f"k and v must have the types of the cache, {k_cache.dtype} and {v_cache.dtype}, but are "
                          f"{k.dtype} and {v.dtype}. Use k.to(k_cache.dtype) and v.to(v_cache.dtype).")
    reads = "[batch, seq_new, heads_k, dim]" if begins is None else "[total_new, heads_k, dim] with cu_seqlens_k_new"
    rows = [batch, k.shape[1] if k.ndim == 4 else "seq_new"] if begins is None else k.shape[:1]
    if begins is None and k.ndim == 4 and k.shape[1] > k_cache.shape[1]:
        raise InvalidTensor(f"k must have at most the {k_cache.shape[1]} rows of the cache, but has {k.shape[1]} for "
                            "each sequence. Use a longer cache.")
    for name, x, cache in (("k", k, k_cache), ("v", v, v_cache)):
        wanted = [*rows, *cache.shape[2:]]
        if list(x.shape) != wanted:
            raise InvalidTensor(f"{name} must be {reads}, here {wanted}, as long as k and with the heads and columns "
                                f"of the cache, but has the shape {list(x.shape)}. Reshape it.")


def check_counts(name: str, x: Tensor, count: int, q: Tensor) -> None:
    check_place(name, x, q)
    types = (torch.int32, torch.int64) if name == "cache_batch_idx" else (torch.int32,)
    if x.dtype not in types or x.shape != (count,):
        raise InvalidType(f"{name} must be int32 [{count}], a number for each "
                          f"sequence{' and the end' * name.startswith('cu_')}, but is {x.dtype} with the shape "
                          f"{list(x.shape)}. Use {name}.int() for the type.")


def batch_of(q: Tensor, cu_seqlens_q: Tensor | None) -> int:
    batch: int = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    return batch


def check_numbers(q: Tensor, k_cache: Tensor, k: Tensor | None, lengths: dict[str, Any], cu_seqlens_q: Tensor | None,
                  max_seqlen_q: int | None) -> None:
    """The lengths that lie in host memory, and cache_batch_idx wherever it lies."""
    rows, batch, begins = k_cache.shape[1], batch_of(q, cu_seqlens_q), lengths["cu_seqlens_k_new"]
    if max_seqlen_q is not None and known(cu_seqlens_q): check_ends("cu_seqlens_q", cu_seqlens_q, len(q), max_seqlen_q)
    added = [0 if k is None or begins is not None else k.shape[1]] * batch
    if k is not None and known(begins):
        check_ends("cu_seqlens_k_new", begins, len(k), len(k))
        added = begins.diff().tolist()
    used = lengths["cache_seqlens"]
    if isinstance(used, Tensor): used = used.tolist() if known(used) else []
    elif used is not None: used = [whole_number("cache_seqlens", used)] * batch
    for at, (count, more) in enumerate(zip(used or [], added)):
        if 0 <= count <= rows - more: continue
        raise InvalidTensor(f"cache_seqlens[{at}] is {count}, and {more} rows are added to it; the cache has {rows}. "
                            f"Use 0 to {max(rows - more, 0)}, or a longer cache.")
    left, index = lengths["cache_leftpad"], lengths["cache_batch_idx"]
    if known(left): check_range("cache_leftpad", left.tolist(), rows)
    if index is None: return
    held = index.tolist()
    check_range("cache_batch_idx", held, k_cache.shape[0] - 1)
    if len(set(held)) != len(held):
        raise Unsupported(f"cache_batch_idx is {held}; two sequences cannot share a row of the cache here. Copy that "
                          "row, or call once for each.")


def known(x: Tensor | None) -> bool:
    """Whether its numbers may be read: in host memory, and there is more than a trace of it."""
    if x is None or type(x) not in PLAIN or torch.compiler.is_compiling(): return False
    return bool(x.device.type == "cpu")


def check_ends(name: str, ends: Any, total: int, longest: int) -> None:
    held = ends.tolist()
    if held[0] != 0 or held[-1] > total or any(not 0 <= b - a <= longest for a, b in zip(held, held[1:])):
        raise InvalidTensor(f"{name} must begin with 0, not fall, have at most {longest} rows between two numbers "
                            f"and end at {total} at most, but is {held}. Change it.")


def check_range(name: str, held: list[int], most: int) -> None:
    for at, value in enumerate(held):
        if not 0 <= value <= most:
            raise InvalidTensor(f"{name}[{at}] must be from 0 to {most}, but is {value}. Change it.")


def try_once(q: Tensor, k_cache: Tensor, v_cache: Tensor, used: Tensor, packed: bool, max_seqlen_q: int | None,
             options: dict[str, Any]) -> None:
    """The checks of attention and of the plan, before anything is written: a call of the same kind, of no sequence.
    What has passed is kept by all that they see."""
    if torch.compiler.is_compiling(): return  # there shapes and types are checked when the graph is made
    device = q.device.type
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    key = (kind(q), kind(k_cache), kind(v_cache), packed, max_seqlen_q, autocast,
           *((name, kind(x) if isinstance(x, Tensor) else x) for name, x in options.items()))

    def call() -> bool:
        given: dict[str, Any] = {name: x[:0] if isinstance(x, Tensor) and x.ndim > 1 else x
                                 for name, x in options.items()}
        tensors = q[:0], k_cache[:0], v_cache[:0]
        if packed:
            ends = torch.zeros(1, dtype=torch.int32, device=q.device)
            if q.ndim == 4: tensors = tensors[0].flatten(0, 1), *tensors[1:]
            tensors = tensors[0], tensors[1].flatten(0, 1), tensors[2].flatten(0, 1)
            given |= dict(cu_seqlens_q=ends, cu_seqlens_kv=ends, max_seqlen_q=max_seqlen_q or q.shape[1],
                          max_seqlen_kv=k_cache.shape[1])
        attention(*tensors, seqused_kv=used[:0], return_lse=True, **given)
        return True
    cached(_tried, key, call)


def append(k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, used: Tensor, cache_batch_idx: Tensor | None,
           cu_seqlens_k_new: Tensor | None) -> Tensor:
    """Writes k and v behind the used rows of the cache, where there is a place; returns how many rows count then,
    [batch] int32, which may be below 0 or above all where used is.

    Leaving out rows that have no place would wait for the GPU to count them. They write what the cache holds, to a row
    of their sequence that nobody else writes.
    """
    rows, added = k_cache.shape[1], k.shape[-3]
    if k.numel() == 0 or v.numel() == 0 or rows == 0: return used
    if cu_seqlens_k_new is not None: return append_packed(k_cache, v_cache, k, v, used, cache_batch_idx,
                                                          cu_seqlens_k_new)
    row = used[:, None] + torch.arange(added, device=used.device)
    place = row.remainder(rows)  # no two are equal: there are no more of them than rows
    sequence = torch.arange(len(used), device=used.device) if cache_batch_idx is None else cache_batch_idx
    write(k_cache, v_cache, k, v, (sequence[:, None], place), row == place)
    return used.clamp(max=rows) + added


def append_packed(k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, used: Tensor, cache_batch_idx: Tensor | None,
                  cu_seqlens_k_new: Tensor) -> Tensor:
    """The same of packed k and v, which may have any number of rows, also behind the last sequence. Those without a
    place write what is written anyway: the nearest row of their sequence that has one, or where none has, what the
    cache holds."""
    rows, batch, at = k_cache.shape[1], len(used), torch.arange(len(k), device=used.device)
    base, count = used.clamp(max=rows), cu_seqlens_k_new.diff()
    sequence = torch.searchsorted(cu_seqlens_k_new, at, right=True).clamp(1, batch) - 1
    first, begin = cu_seqlens_k_new[sequence], base[sequence]
    last = (base + count).clamp(max=rows)[sequence] - 1  # the last place
    place = torch.minimum(begin + at - first, last).clamp(0, rows - 1)
    source = (first + place - begin).clamp(0, len(k) - 1)
    written = (last >= 0) & (begin <= last)
    where = (sequence if cache_batch_idx is None else cache_batch_idx[sequence], place)
    write(k_cache, v_cache, k[source], v[source], where, written)
    return base + count


def write(k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, where: tuple[Tensor, Tensor],
          written: Tensor) -> None:
    """k and v to those rows of the caches; what is not written stays."""
    if k_cache.dtype in FLOAT8:  # PyTorch writes bytes by index, not these
        k_cache, v_cache, k, v = (x.view(torch.uint8) for x in (k_cache, v_cache, k, v))
    for cache, new in ((k_cache, k), (v_cache, v)):
        cache[where] = torch.where(written[..., None, None], new, cache[where])


def check_merged(k_cache: Tensor, v_cache: Tensor) -> None:
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if not merges(cache):
            raise Unsupported(f"{name} has the strides {list(cache.stride())}; with cache_batch_idx, cache_leftpad or "
                              "cu_seqlens_q sequences must lie one after the other, as the cache is not copied. "
                              "Make it contiguous.")


def placed_slopes(options: dict[str, Any], rows: int, cache_batch_idx: Tensor | None, spans: bool) -> dict[str, Any]:
    """The options with alibi_slopes [batch, heads] in the order of the cache; spans: each sequence has one before it
    that nobody reads."""
    slopes = options.get("alibi_slopes")
    if slopes is None or slopes.ndim != 2: return options
    if cache_batch_idx is not None:
        slopes = slopes.new_zeros(rows, slopes.shape[1]).index_copy_(0, cache_batch_idx.long(), slopes)
    return options | dict(alibi_slopes=slopes.repeat_interleave(2, 0) if spans else slopes)


def attend_in_place(q: Tensor, k_cache: Tensor, v_cache: Tensor, used: Tensor, cache_batch_idx: Tensor | None,
                    cache_leftpad: Tensor | None, cu_seqlens_q: Tensor | None, max_seqlen_q: int | None,
                    options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Attention to the cache as packed sequences, in the order in which it lies; (out, lse) in the order of q."""
    batch, rows = len(used), k_cache.shape[0]
    begin, ends, longest, packed = cache_leftpad, cu_seqlens_q, max_seqlen_q, q
    if ends is None: ends, longest, packed = ends_of(batch, q.shape[1], used), q.shape[1], q.flatten(0, 1)
    if cache_batch_idx is not None:
        def placed(values: Tensor) -> Tensor:
            return values.new_zeros(rows).index_copy_(0, cache_batch_idx.long(), values)
        at = torch.arange(len(packed), device=q.device, dtype=torch.int32)
        sequence = torch.searchsorted(ends, at, right=True).clamp(1, batch) - 1
        sorted_ends = torch.nn.functional.pad(placed(ends.diff()).cumsum(0, dtype=torch.int32), (1, 0))
        place = torch.where(at < ends[-1], sorted_ends[cache_batch_idx[sequence]] + at - ends[sequence], at)
        place = place.clamp(0, max(len(packed) - 1, 0)).long()
        packed = torch.empty_like(packed).index_copy_(0, place, packed)
        ends, used, begin = sorted_ends, placed(used), None if begin is None else placed(begin)
    if begin is None: ends_kv, used_kv = ends_of(rows, k_cache.shape[1], used), used
    else:
        begin = begin.clamp(0, k_cache.shape[1])
        ends_kv, used_kv = spans_of_keys(rows, k_cache.shape[1], begin, torch.maximum(used, begin))
        ends = spans_of_queries(ends)
    options = placed_slopes(options, rows, cache_batch_idx, begin is not None)
    out, lse = attention(packed, k_cache.flatten(0, 1), v_cache.flatten(0, 1), cu_seqlens_q=ends, cu_seqlens_kv=ends_kv,
                         max_seqlen_q=longest, max_seqlen_kv=k_cache.shape[1], seqused_kv=used_kv, return_lse=True,
                         **options)
    if cache_batch_idx is not None: out, lse = out[place], lse[:, place]
    if cu_seqlens_q is not None: return out, lse
    lse = lse.reshape(lse.shape[0], *q.shape[:2]).transpose(0, 1).contiguous()
    return out.reshape(*q.shape[:2], *out.shape[1:]), lse
