# SPDX-License-Identifier: Apache-2.0
"""What flash_attn_with_kvcache does with a cache: it checks everything, then writes new rows, then attends to them all.

Lengths in host memory are read and checked. Those on a GPU are not, since that would wait for it: there a row that has
no place in the cache is not written, and no index leaves a tensor, whatever the numbers are.
"""
from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from froghopper import _torch_paged as of_pages
from froghopper import _torch_traced as traced
from froghopper._call import cached, check_rank, whole_number
from froghopper._errors import Error, InvalidProblem, InvalidTensor, InvalidType, Unsupported
from froghopper._flash_words import WHOLE, check_tangents, window_of, without_gradients
from froghopper._pages import from_left, packed_from_left, slots_of
from froghopper._torch_calls import FLOAT8, check_dense, check_place, check_tensor, kind
from froghopper._torch_kinds import BARE, check_kinds
from froghopper._torch_ops import PLAIN
from froghopper._torch_options import bound_of, whole
from froghopper._values import counted, from_0_to, way_to_shape, wrong_kind
from froghopper._words import named_by
from froghopper.torch import append_kv, attention, paged_attention

_tried: dict[Hashable, bool] = {}


def check_tensors(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None, v: Tensor | None,
                  lengths: dict[str, Any], cu_seqlens_q: Tensor | None, max_seqlen_q: int | None,
                  table: Tensor | None) -> None:
    """Kinds, places, types and shapes of all that is given. lengths: under the names that users know."""
    for name, x in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache), ("k", k), ("v", v)):
        if x is not None or name in ("q", "k_cache", "v_cache"): check_dense(name, x)
        if x is not None: check_place(name, x, q)
    check_rank("q", q.shape, cu_seqlens_q is not None)
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.ndim != 4 or cache.stride(-1) != 1:
            out = f"Use {name}.contiguous()" if cache.ndim == 4 else "Give it 4 dimensions"
            raise InvalidTensor(f"{name} must be [batch, seq, heads, dim] with the last stride 1, but has the shape "
                                f"{list(cache.shape)} and the strides {list(cache.stride())}. {out}.")
    if k_cache.shape[:3] != v_cache.shape[:3]:
        raise InvalidTensor(f"v_cache must have the rows, seq and heads of k_cache, {list(k_cache.shape[:3])}, but "
                            f"has the shape {list(v_cache.shape)}. Give both caches equally many of them.")
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
        raise InvalidType(f"page_table must be int32 [batch, columns], but is {table.dtype} with the shape "
                          f"{list(table.shape)}. Use page_table.int() for the type.")


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
    if k.dtype != k_cache.dtype or v.dtype != v_cache.dtype:
        raise InvalidType(f"k and v must have the types of the cache, {k_cache.dtype} and {v_cache.dtype}, but are "
                          f"{k.dtype} and {v.dtype}. Use k.to(k_cache.dtype) and v.to(v_cache.dtype).")
    reads = "[batch, seq_new, heads_k, dim]" if begins is None else "[total_new, heads_k, dim] with cu_seqlens_k_new"
    rows = [batch, k.shape[1] if k.ndim == 4 else "seq_new"] if begins is None else k.shape[:1]
    if begins is None and k.ndim == 4 and k.shape[1] > most:
        raise InvalidTensor(f"k must have at most {counted(most, 'row')}, as the cache has, but has {k.shape[1]} for "
                            "each sequence. Use a longer cache.")
    for name, x, cache in (("k", k, k_cache), ("v", v, v_cache)):
        wanted = [*rows, *cache.shape[2:]]
        if list(x.shape) != wanted:
            long = ("as long as k and " * (name == "v")) + "with the heads and columns of the cache"
            out = way_to_shape(name, x.shape, wanted) if "seq_new" not in wanted else "Add the missing dimensions"
            raise InvalidTensor(f"{name} must be {reads}, here {wanted}, {long}, but has the shape {list(x.shape)}. "
                                f"{out}.")


def check_counts(name: str, x: Tensor, count: int, q: Tensor) -> None:
    check_place(name, x, q)
    types = (torch.int32, torch.int64) if name == "cache_batch_idx" else (torch.int32,)
    if x.dtype not in types or x.shape != (count,):
        out = f"Give it {counted(count, 'number')}." if x.dtype in types else f"Use {name}.int() for the type."
        raise InvalidType(f"{name} must be int32 [{count}], a number for each "
                          f"sequence{' and the end' * name.startswith('cu_')}, but is {x.dtype} with the shape "
                          f"{list(x.shape)}. {out}")


def batch_of(q: Tensor, cu_seqlens_q: Tensor | None) -> int:
    batch: int = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    return batch


def check_numbers(q: Tensor, rows: int, k: Tensor | None, lengths: dict[str, Any], cu_seqlens_q: Tensor | None,
                  max_seqlen_q: int | None, sequences: int) -> None:
    """The lengths that lie in host memory, and cache_batch_idx wherever it lies if rows are written. rows: of a
    sequence of the cache; sequences: how many it has."""
    batch, begins = batch_of(q, cu_seqlens_q), lengths["cu_seqlens_k_new"]
    if max_seqlen_q is not None and known(cu_seqlens_q): check_ends("cu_seqlens_q", cu_seqlens_q, len(q), max_seqlen_q)
    added = [0 if k is None or begins is not None else k.shape[1]] * batch
    if k is not None and known(begins):
        check_ends("cu_seqlens_k_new", begins, len(k), len(k))
        added = begins.diff().tolist()
    used = lengths["cache_seqlens"]
    if isinstance(used, Tensor): used = used.tolist() if known(used) else []
    elif used is not None:
        if not hasattr(used, "__index__"):
            wrong_kind("cache_seqlens", used, "a whole number or an int32 tensor [batch]", "one of them" if not
                       isinstance(used, (list, tuple)) else "torch.tensor(cache_seqlens, dtype=torch.int32)")
        used = [whole_number("cache_seqlens", used)] * batch
    for at, (count, more) in enumerate(zip(used or [], added)):
        if 0 <= count <= rows - more: continue
        added_rows = f" and {counted(more, 'row')} {'is' if more == 1 else 'are'} added" * (more > 0)
        most = from_0_to(max(rows - more, 0))
        of = f"[{at}]" * isinstance(lengths["cache_seqlens"], Tensor)
        raise InvalidTensor(f"cache_seqlens{of} must be {'from ' * (most != '0')}{most}, as the cache has "
                            f"{counted(rows, 'row')}{added_rows}, but is {count}. Use {most}, or a longer cache.")
    left, index = lengths["cache_leftpad"], lengths["cache_batch_idx"]
    if known(left): check_range("cache_leftpad", left.tolist(), rows)
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


def check_ends(name: str, ends: Any, total: int, longest: int) -> None:
    held = ends.tolist()
    if held[0] != 0 or held[-1] > total or any(not 0 <= b - a <= longest for a, b in zip(held, held[1:])):
        raise InvalidTensor(f"{name} must begin with 0, not fall, have at most {counted(longest, 'row')} between two "
                            f"numbers and end at {total} at most, but is {held}. Sum lengths up behind a 0.")


def check_range(name: str, held: list[int], most: int) -> None:
    for at, value in enumerate(held):
        if not 0 <= value <= most:
            raise InvalidTensor(f"{name}[{at}] must be from 0 to {most}, but is {value}. Use {from_0_to(most)}.")


def try_once(q: Tensor, k_cache: Tensor, v_cache: Tensor, used: Tensor, table: Tensor | None,
             cache_leftpad: Tensor | None, max_seqlen_q: int | None, options: dict[str, Any]) -> None:
    """The checks of attention and of the plan, before anything is written: a call of the same kind, of no sequence.
    What has passed once is not checked again: the key is all that the checks look at."""
    if torch.compiler.is_compiling(): return  # there shapes and types are checked when the graph is made
    device = q.device.type
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    key = (kind(q), kind(k_cache), kind(v_cache), kind(table), cache_leftpad is None, max_seqlen_q, autocast,
           *((name, kind(x) if isinstance(x, Tensor) else x) for name, x in options.items()))

    def call() -> bool:
        given: dict[str, Any] = {name: x[:0] if isinstance(x, Tensor) and x.ndim > 1 else x
                                 for name, x in options.items()}
        if table is not None:
            attend_to_pages(q[:0], k_cache, v_cache, table[:0], used[:0],
                            None if cache_leftpad is None else cache_leftpad[:0],
                            used.new_zeros(1) if q.ndim == 3 else None, max_seqlen_q, None, given)
        elif cache_leftpad is not None:
            slots_of(k_cache, v_cache)
            attend_from_left(q[:0], k_cache[:0], v_cache[:0], used[:0], cache_leftpad[:0],
                             used.new_zeros(1) if q.ndim == 3 else None, max_seqlen_q, None, given)
        else: attention(q[:0], k_cache[:0], v_cache[:0], seqused_kv=used[:0], return_lse=True, **given)
        return True
    cached(_tried, key, call)


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


def append_and_rotate(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, used: Tensor,
                      table: Tensor | None, cu_seqlens_q: Tensor | None, cu_seqlens_k_new: Tensor | None,
                      rotary: Rotary = Rotary(None, None, None, False, True)) -> tuple[Tensor, Tensor]:
    """Writes k and v behind the used rows of the cache, where there is a place; returns q, rotated where that is asked
    for, and how many rows count then, [batch] int32, which may be below 0 or above all where used is. table: pages."""
    rows = rows_of(k_cache, table)
    options: dict[str, Any] = dict(block_table=table, seqused_kv=used)
    if cu_seqlens_k_new is not None: options |= dict(cu_seqlens=cu_seqlens_k_new, max_seqlen=len(k))
    of_q: dict[str, Any] = {}
    if rotary.cos is not None:
        first = used if rotary.seqlens is None else rotary.seqlens
        of_q = dict(rotary_cos=rotary.cos, rotary_sin=rotary.sin, rotary_interleaved=rotary.interleaved)
        options |= of_q | dict(positions=positions_of(first, k, cu_seqlens_k_new, True))
        together = rotary.moves and cu_seqlens_q is cu_seqlens_k_new is None and q.shape[:2] == k.shape[:2]
        if together and k.numel() > 0 and rows > 0: options["q"] = q
        elif q.numel() > 0:
            alone = append_kv(None, None, None, None, q=q, **of_q,
                              positions=positions_of(first, q, cu_seqlens_q, rotary.moves))
            if alone is not None: q = alone
    if k.numel() > 0 and v.numel() > 0 and rows > 0:
        if k.dtype in FLOAT8:  # bytes that are copied as they are: two of them as one number
            k_cache, v_cache, k, v = (x.view(torch.float16) for x in (k_cache, v_cache, k, v))
        rotated = append_kv(k, v, k_cache, v_cache, **options)
        if rotated is not None: q = rotated
    else: return q, used
    if cu_seqlens_k_new is None: return q, used.clamp(max=rows) + k.shape[1]
    return q, used.clamp(max=rows) + cu_seqlens_k_new.diff()


def positions_of(first: Tensor, x: Tensor, ends: Tensor | None, moves: bool) -> Tensor:
    """Of each row of x, whose sequences' first ones have these positions."""
    if ends is None:
        step = torch.arange(x.shape[1], device=x.device) if moves else x.new_zeros(x.shape[1], dtype=torch.int64)
        return (first.long()[:, None] + step).contiguous()
    at = torch.arange(len(x), device=x.device)
    sequence = torch.searchsorted(ends, at, right=True).clamp(1, len(first)) - 1
    return first.long()[sequence] + (at - ends[sequence] if moves else 0)


def reshape_and_cache_flash(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor,
                            kv_cache_dtype: str = "auto", k_scale: Tensor | float | None = None,
                            v_scale: Tensor | float | None = None) -> None:
    """vLLM's function of this name: new rows to their slots of a paged cache, in one launch.

    key, value     [tokens, heads, dim]; there may be more tokens than slots, as behind a batch that is padded
    key_cache      [pages, page_size, heads, dim], any strides whose last is 1; of key's type with "auto",
    value_cache    else torch.uint8 or the float8 type
    slot_mapping   [slots] int64: page * page_size + row; negative: the token is padding
    kv_cache_dtype "auto", "float16" or "bfloat16"; or "fp8" and "fp8_e4m3", or "fp8_e5m2": key / k_scale is stored
    k_scale        one number, [1] or [heads] float32; read with fp8 alone. Or [pages, page_size, heads] float32: each
    v_scale        row of a head gets a scale of its own, which is written there. Of v likewise

    It is froghopper.torch.append_kv with other words, which checks what it is given.
    """
    given = (key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale)
    if torch.compiler.is_compiling(): return write_to_slots(*given)
    try: write_to_slots(*given)
    except Error as error: raise named_by(NAMES_OF_SLOTS, error) from None
    except BARE:
        check_kinds(reshape_and_cache_flash, given, {})
        for name, x in (("key", key), ("value", value)):
            if x.ndim != 3: raise InvalidProblem(f"{name} must be [tokens, heads, dim], but has the shape "
                                                 f"{list(x.shape)}. Use {name}.reshape(-1, heads, dim).") from None
        raise


# Arguments of append_kv -> those of reshape_and_cache_flash.
NAMES_OF_SLOTS = {"k": "key", "v": "value", "k_cache": "key_cache", "v_cache": "value_cache", "scale_k": "k_scale",
                  "scale_v": "v_scale", "append_kv": "reshape_and_cache_flash"}
traced.told_by["reshape_and_cache_flash"] = lambda error, _: named_by(NAMES_OF_SLOTS, error)


def write_to_slots(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor,
                   kv_cache_dtype: str, k_scale: Tensor | float | None, v_scale: Tensor | float | None) -> None:
    stored = {"auto": None, "float16": None, "bfloat16": None, "fp8": torch.float8_e4m3fn,
              "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
    if not isinstance(kv_cache_dtype, str) or kv_cache_dtype not in stored:
        raise InvalidProblem(f"kv_cache_dtype must be one of {', '.join(stored)}, but is {kv_cache_dtype!r}. Use "
                             "\"auto\" for a cache of the type of key.")
    check_tensor("slot_mapping", slot_mapping)
    count, dtype = slot_mapping.numel(), stored[kv_cache_dtype]
    scales: dict[str, Any] = {}
    if dtype is not None:
        key_cache, value_cache = (x.view(dtype) for x in (key_cache, value_cache))
        scales = dict(scale_k=1.0 if k_scale is None else k_scale, scale_v=1.0 if v_scale is None else v_scale)
    append_kv(key[:count], value[:count], key_cache, value_cache, slot_mapping=slot_mapping, **scales)


def attend_to_pages(q: Tensor, k_cache: Tensor, v_cache: Tensor, table: Tensor, used: Tensor | None,
                    cache_leftpad: Tensor | None, cu_seqlens_q: Tensor | None, max_seqlen_q: int | None,
                    max_seqlen_k: int | None, options: dict[str, Any]) -> Any:
    """(out, lse) of q to the pages that table [batch, columns] names; used: None where all rows count."""
    options = {name: value for name, value in options.items() if name != "deterministic"}  # it always is
    if cache_leftpad is not None:
        used = left_over(used, cache_leftpad, rows_of(k_cache, table))
        k_cache, v_cache, table = from_left(k_cache, v_cache, table, cache_leftpad)
    return paged_attention(*without_gradients(q, k_cache, v_cache), table, seqused_kv=used, cu_seqlens_q=cu_seqlens_q,
                           max_seqlen_q=None if cu_seqlens_q is None else max_seqlen_q, max_seqlen_kv=max_seqlen_k,
                           return_lse=True, **options)


def left_over(used: Tensor | None, cache_leftpad: Tensor, rows: int) -> Tensor:
    """How many keys count of sequences without their first ones; used: None where all rows count."""
    used = torch.full_like(cache_leftpad, rows) if used is None else used.clamp(max=rows)
    return (used - cache_leftpad.clamp(min=0)).clamp(min=0)


def is_packed(q: Tensor, v_cache: Tensor, out: Tensor | None) -> bool:
    """Whether q, out and a dense cache have rows that may be read as those of packed sequences. A scale of each
    sequence of one row would look like one of each row."""
    if v_cache.shape[1] < 2 or q.ndim == 4 and q.shape[1] == 0: return False
    if out is None or q.ndim == 3: return True
    if out.shape != (*q.shape[:3], v_cache.shape[-1]): return False  # which is said in the words of the caller
    return bool(out.shape[1] == 1 or out.stride(0) == out.shape[1] * out.stride(1))


def attend_from_left(q: Tensor, k_cache: Tensor, v_cache: Tensor, used: Tensor | None, cache_leftpad: Tensor,
                     cu_seqlens_q: Tensor | None, max_seqlen_q: int | None, max_seqlen_k: int | None,
                     options: dict[str, Any]) -> Any:
    """(out, lse) of q to a dense cache for which is_packed; sequence b begins at its row cache_leftpad[b]."""
    rows, batch = k_cache.shape[1], q.shape[0]
    k, v, begins = packed_from_left(k_cache, v_cache, cache_leftpad)
    words = options | dict(cu_seqlens_kv=begins, seqused_kv=left_over(used, cache_leftpad, rows), return_lse=True,
                           max_seqlen_kv=rows if max_seqlen_k is None else max_seqlen_k)
    if cu_seqlens_q is not None:
        return attention(q, k, v, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q, **words)
    begins_q = torch.arange(batch + 1, dtype=torch.int32, device=q.device) * q.shape[1]
    if options.get("out") is not None: words["out"] = options["out"].flatten(0, 1)
    found, lse = attention(q.flatten(0, 1), k, v, cu_seqlens_q=begins_q, max_seqlen_q=q.shape[1], **words)
    return found.unflatten(0, (batch, q.shape[1])), lse.unflatten(1, (batch, q.shape[1])).transpose(0, 1)


def get_scheduler_metadata(batch_size: int, max_seqlen_q: int, max_seqlen_k: int, num_heads_q: int, num_heads_kv: int,
                           headdim: int, cache_seqlens: Tensor, qkv_dtype: torch.dtype = torch.bfloat16,
                           headdim_v: int | None = None, cu_seqlens_q: Tensor | None = None,
                           cu_seqlens_k_new: Tensor | None = None, cache_leftpad: Tensor | None = None,
                           page_size: int | None = None, max_seqlen_k_new: int = 0, causal: bool = False,
                           window_size: Any = WHOLE, attention_chunk: int = 0, has_softcap: bool = False,
                           num_splits: int = 0, pack_gqa: bool | None = None, sm_margin: int = 0) -> Tensor:
    """Zeros, as many as vLLM keeps room for, int32 [1 + 4 * (batch_size rounded up to fours)] on cache_seqlens' device.
    Nobody reads them: this library's kernels read lengths themselves when they hand out their work. Nothing waits, and
    a CUDA graph may capture the call."""
    check_tensor("cache_seqlens", cache_seqlens)
    batch_size = whole("batch_size", batch_size)
    if batch_size < 0:
        raise InvalidProblem(f"batch_size must be 0 or more sequences, but is {batch_size}. Give the number of them.")
    return torch.zeros(1 + 4 * (-(-batch_size // 4) * 4), dtype=torch.int32, device=cache_seqlens.device)
