# SPDX-License-Identifier: Apache-2.0
"""What flash_attn_with_kvcache does with a cache after the checks of _kv_checks.py: it tries the call on no sequence,
then writes new rows, then attends to them all. vLLM's reshape_and_cache_flash.

Lengths on a GPU are not read, since that would wait for it: there a row that has no place in the cache is not written,
and no index leaves a tensor, whatever the numbers are.
"""
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from froghopper import _torch_traced as traced
from froghopper._call import cached
from froghopper._errors import Error, InvalidProblem, InvalidType
from froghopper._flash_words import OF_CACHE, WHOLE, speaks_of, without_gradients
from froghopper._kv_checks import Rotary, rows_of
from froghopper._pages import from_left, packed_from_left, slots_of, table_of
from froghopper._torch_calls import FLOAT8, check_tensor, kind
from froghopper._torch_kinds import BARE, check_kinds
from froghopper._torch_options import whole
from froghopper._words import named_by, takes_words_of_others
from froghopper.torch import append_kv, attention, paged_attention

_tried: dict[Hashable, bool] = {}


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
        k, v = (k_cache, v_cache) if table is not None else (k_cache[:0], v_cache[:0])
        if table is None and cache_leftpad is not None: slots_of(k_cache, v_cache)
        attend_to_cache(q[:0], k, v, used[:0], None if table is None else table[:0],
                        None if cache_leftpad is None else cache_leftpad[:0],
                        used.new_zeros(1) if q.ndim == 3 else None, max_seqlen_q, None, given)
        return True
    cached(_tried, key, call)


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


@takes_words_of_others("flash_attn_interface")
def reshape_and_cache_flash(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor,
                            kv_cache_dtype: str = "auto", k_scale: Tensor | float | None = None,
                            v_scale: Tensor | float | None = None) -> None:
    """vLLM's function of this name: new rows to their slots of a paged cache, in one launch.

    key, value     [tokens, heads, dim]; there may be more tokens than slots, as behind a batch that is padded
    key_cache      [pages, page_size, heads, dim], any strides whose last is 1; of key's type with "auto",
    value_cache    else torch.uint8 or the float8 type that kv_cache_dtype says
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
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        check_tensor(name, cache)
        check_stored(name, cache.dtype, kv_cache_dtype, dtype)
    scales: dict[str, Any] = {}
    if dtype is not None:
        key_cache, value_cache = (x.view(dtype) for x in (key_cache, value_cache))
        scales = dict(scale_k=1.0 if k_scale is None else k_scale, scale_v=1.0 if v_scale is None else v_scale)
    append_kv(key[:count], value[:count], key_cache, value_cache, slot_mapping=slot_mapping, **scales)


def check_stored(name: str, held: torch.dtype, word: str, stored: torch.dtype | None) -> None:
    """Whether a cache of the type held may be told to hold what the word says, stored where that has 8 bits. Bytes
    would be written into numbers of any other type that is as long."""
    is_8_bit = held in (*FLOAT8, torch.uint8)
    if stored is not None and held not in (stored, torch.uint8):
        if is_8_bit: way = f"Use kv_cache_dtype=\"{'fp8_e5m2' if held == torch.float8_e5m2 else 'fp8'}\""
        else: way = f"Use kv_cache_dtype=\"auto\" for a cache of the type of key, or a {name} of torch.uint8"
        raise InvalidType(f"{name} must be torch.uint8 or {stored} with kv_cache_dtype={word!r}, but is {held}. {way}.")
    if stored is None and held in FLOAT8:
        fitting = "fp8_e5m2" if held == torch.float8_e5m2 else "fp8"
        raise InvalidType(f"kv_cache_dtype must be \"{fitting}\" where {name} is {held}, but is {word!r}. Use "
                          f"kv_cache_dtype=\"{fitting}\", with k_scale and v_scale.")
    if word in ("float16", "bfloat16") and not is_8_bit and held != getattr(torch, word):
        raise InvalidType(f"kv_cache_dtype must be \"auto\" where {name} is {held}, but is {word!r}. Use "
                          "kv_cache_dtype=\"auto\", which is the type of key.")


@speaks_of(OF_CACHE)
def attend_to_cache(q: Tensor, k_cache: Tensor, v_cache: Tensor, used: Tensor | None, table: Tensor | None,
                    cache_leftpad: Tensor | None, cu_seqlens_q: Tensor | None, max_seqlen_q: int | None,
                    max_seqlen_k: int | None, options: dict[str, Any]) -> Any:
    """(out, lse) of q to the used rows; None where all count. table: of pages. Errors of attention, which has k and v
    where the caches are, name these."""
    rest = cu_seqlens_q, max_seqlen_q, max_seqlen_k, options
    if table is not None: return attend_to_pages(q, k_cache, v_cache, table, used, cache_leftpad, *rest)
    if cache_leftpad is not None: return attend_from_left(q, k_cache, v_cache, used, cache_leftpad, *rest)
    return attention(q, k_cache, v_cache, seqused_kv=used, return_lse=True, **options)


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


@takes_words_of_others("flash_attn_interface")
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
