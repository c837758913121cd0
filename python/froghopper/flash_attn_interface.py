# SPDX-License-Identifier: Apache-2.0
"""The functions of FlashAttention-3's module flash_attn_interface, computed by froghopper.

    from froghopper.flash_attn_interface import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

Names, order and defaults of arguments, layouts and results are those of FlashAttention-3 (Dao-AILab/flash-attention,
hopper/flash_attn_interface.py, package 3.0.0): q [batch, seq, heads, dim], packed [total, heads, dim]; masks aligned
bottom-right; lse [batch, heads, seq], packed [heads, total], float32, natural logarithm. Besides Hopper GPUs they run
on the CPU, also in float32. q, k and v are copied where froghopper.torch says so, and where their last stride is not 1,
as there.

What FlashAttention-3 does and this library does not raises NotImplementedError before anything is computed: qv, and
pages in flash_attn_func. So does attention to caches and pages where a gradient is recorded, which is dropped there.

fp8: q, k and v are float8_e4m3fn, here also float8_e5m2; q_descale, k_descale and v_descale are [batch, heads_k]
float32, or one number, and 1 where they are not given; out is bfloat16. There are no gradients of it, there as here.
Here q may also be float16 or bfloat16 with k and v in fp8, as in a cache; then q_descale is left out, and out has the
type of q. Descales of 16-bit tensors are not read.

FlashAttention 2 and vLLM's fork: their orders of positional arguments are known by the types of these, and their words
are taken too: dropout_p of 0, alibi_slopes, s_aux (sinks), return_softmax_lse, out, fa_version, scheduler_metadata, a
window_size that is None, a list or one number, and keys without cu_seqlens_k. merge_attn_states and
reshape_and_cache_flash are vLLM's. Any other word raises TypeError with the one to use (docs/9-python.md).

What differs on purpose
  return_attn_probs   gives (out, lse) as there; a gradient of lse is used here and is dropped there
  a 0 in the fourth   is FlashAttention 2's dropout_p where FlashAttention-3 has softmax_scale; a scale of 0 needs its
  place               name
  no keys at all      lse is -inf here, and +inf there if k has no rows; for sequences without keys both say -inf
  deterministic       works for every head dim; there not above 192
  head dims           v may have any of its own; up to 512. No multiples of 8 are padded, in caches and pages refused
  num_splits,         hints there; accepted and without effect here, where a plan decides. A result does not depend
  pack_gqa            on them
  scheduler_metadata  the same: get_scheduler_metadata gives zeros, and any is accepted
  sm_margin           becomes max_sms: that many SMs are left alone. On the CPU it has no effect
  rotary_interleaved  and rotary_seqlens say nothing without rotary_cos, there too
  forward-mode        tangents of tensors raise NotImplementedError; they are dropped there
"""
import contextlib
from typing import Any, Literal, TypeAlias, overload

import torch
from torch import Tensor

from froghopper import _kv_cache as kv_cache
from froghopper import _kv_checks as kv_checks
from froghopper._errors import InvalidProblem
from froghopper._flash_orders import cache_order, dense_order, packed_order, pair_order
from froghopper._flash_words import (OF_ENDS, OF_KV, OF_QKV, WHOLE, asked, by_name, columns, dense_keys, extras_of,
                                     in_any_order, length_of, one_table, options_of, parts_of, refuse, scales_of,
                                     speaks_of, used_of_pages, without_gradients)
from froghopper._kv_cache import get_scheduler_metadata, reshape_and_cache_flash
from froghopper._merge import flash_attn_combine, merge_attn_states
from froghopper._pages import table_of
from froghopper._torch_calls import DTYPES, FLOAT8, LOOK, check_dense
from froghopper._torch_eager import NO_SIDES, attend
from froghopper._torch_native import ROWS_FIRST
from froghopper._torch_options import decided, whole
from froghopper._values import LARGEST_SCALE
from froghopper.torch import attention, paged_attention

Result: TypeAlias = Tensor | tuple[Tensor, Tensor]
Window: TypeAlias = tuple[int, int] | list[int] | int | None
Scale: TypeAlias = Tensor | float | None

__all__ = ["FLOAT8", "flash_attn_combine", "flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func",
           "flash_attn_varlen_func", "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func",
           "flash_attn_with_kvcache", "get_scheduler_metadata", "merge_attn_states", "reshape_and_cache_flash"]


def __dir__() -> list[str]: return sorted(__all__)


@overload
def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, *rest: Any, return_attn_probs: Literal[True],
                    **words: Any) -> tuple[Tensor, Tensor]: ...


@overload
def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, *rest: Any, return_attn_probs: Literal[False] = ...,
                    **words: Any) -> Tensor: ...


@overload
def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, *rest: Any, **words: Any) -> Any: ...


@in_any_order(dense_order)
def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False,
                    qv: Tensor | None = None, q_descale: Scale = None, k_descale: Scale = None,
                    v_descale: Scale = None, window_size: Window = WHOLE, attention_chunk: int = 0,
                    softcap: float | None = 0.0, num_splits: int = 1, pack_gqa: bool | None = None,
                    deterministic: bool = False, sm_margin: int = 0, return_attn_probs: bool = False, *,
                    dropout_p: float = 0.0, alibi_slopes: Tensor | None = None, s_aux: Tensor | None = None,
                    block_table: Tensor | None = None) -> Result:
    """softmax(scale q k^T + mask) v, differentiable.

    q              [batch, seq_q, heads, dim]
    k, v           [batch, seq_k, heads_k, dim]; heads_k divides heads, and v may have its own dim
    softmax_scale  None for 1/sqrt(dim); 0 makes all keys alike
    causal         the last query attends to all keys, every query before it to one key less
    window_size    (left, right): query i attends to keys i + seq_k - seq_q - left to i + seq_k - seq_q + right;
                   negative for no bound; one number for both, None for no window
    attention_chunk  query i attends only to keys of the chunk, of so many, in which key i + seq_k - seq_q lies; 0 for
                   none. With gradients, which FlashAttention-3 does not have of it
    softcap        scores become softcap tanh(score / softcap); None or 0 for none; negative is refused
    deterministic  gradients are bit-equal from run to run; the result always is
    *_descale      fp8: [batch, heads_k] float32 or a number, what q, k and v are multiplied by; None for 1
    dropout_p      0
    alibi_slopes   [heads] or [batch, heads] float32: scores get -slope |i + seq_k - seq_q - j|
    s_aux          [heads]: one more logit a head, in the denominator alone; float32, and others are cast to it
    block_table    None: pages are read by flash_attn_varlen_func and flash_attn_with_kvcache

    Returns out [batch, seq_q, heads, dim of v]; with return_attn_probs (out, lse [batch, heads, seq_q]). Rows that
    attend to no key are 0 and their lse is -inf. Raises TypeError, ValueError, NotImplementedError as the module says.
    """
    if (qv is q_descale is k_descale is v_descale is alibi_slopes is s_aux is block_table is None and
            window_size is WHOLE and not (dropout_p or attention_chunk or sm_margin or return_attn_probs) and
            (causal is True or causal is False) and usual(q, k, v, softmax_scale, softcap, deterministic)):
        o, _ = attend(ROWS_FIRST, q, k, v, NO_SIDES, (
            LOOK, LOOK, causal, -1, -1, 0.0, softmax_scale, False, decided(deterministic), 0, 0, False), False)
        return o
    refuse(qv=qv)
    options = options_of(q, softmax_scale, causal, window_size, attention_chunk, softcap, sm_margin)
    options |= scales_of(q, k, q_descale, k_descale, v_descale)
    options |= extras_of(q, dropout_p, alibi_slopes, s_aux, block_table, None)
    options |= dict(deterministic=asked("deterministic", deterministic),
                    return_lse=asked("return_attn_probs", return_attn_probs))
    found: Result = attention(*without_gradients(columns(q), columns(k), columns(v)), **options)
    return found


def usual(q: Any, k: Any, v: Any, softmax_scale: Any, softcap: Any, deterministic: Any) -> bool:
    """What attention has nothing to say about before it asks the native operators: their way is open at once."""
    return bool(isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor) and q.dtype in DTYPES and
                k.dtype in DTYPES and softcap == 0.0 and deterministic is not None and
                (softmax_scale is None or (type(softmax_scale) is float and 0 <= softmax_scale <= LARGEST_SCALE)))


@overload
def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, *rest: Any, return_attn_probs: Literal[True],
                           **words: Any) -> tuple[Tensor, Tensor]: ...


@overload
def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, *rest: Any, return_softmax_lse: Literal[True],
                           **words: Any) -> tuple[Tensor, Tensor]: ...


@overload
def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, *rest: Any, return_attn_probs: Literal[False] = ...,
                           return_softmax_lse: Literal[False] = ..., **words: Any) -> Tensor: ...


@overload
def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, *rest: Any, **words: Any) -> Any: ...


@in_any_order(packed_order)
def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor | None = None,
                           cu_seqlens_k: Tensor | None = None, max_seqlen_q: int | Tensor | None = None,
                           max_seqlen_k: int | Tensor | None = None, seqused_q: Tensor | None = None,
                           seqused_k: Tensor | None = None, softmax_scale: float | None = None, causal: bool = False,
                           qv: Tensor | None = None, q_descale: Scale = None, k_descale: Scale = None,
                           v_descale: Scale = None, window_size: Window = WHOLE,
                           attention_chunk: int = 0, softcap: float | None = 0.0, num_splits: int = 1,
                           pack_gqa: bool | None = None, deterministic: bool = False, sm_margin: int = 0,
                           return_attn_probs: bool = False, *, dropout_p: float = 0.0,
                           alibi_slopes: Tensor | None = None, s_aux: Tensor | None = None,
                           block_table: Tensor | None = None, out: Tensor | None = None,
                           return_softmax_lse: bool = False) -> Result:
    """The same of packed sequences.

    q              [total_q, heads, dim]; k, v [total_k, heads_k, dim]
    cu_seqlens_*   [batch + 1] int32: rows where each sequence begins, and the end
    max_seqlen_*   upper bounds on the rows of a sequence. A tensor of one number is read, which waits for its GPU
    seqused_*      [batch] int32: how many rows of a sequence count; the other rows of q get 0 and lse = -inf
    out            where the result goes; without gradients

    block_table    [batch, columns] int32: k and v are pages [pages, page_size, heads_k, dim] then, and seqused_k, or
                   the differences of cu_seqlens_k, say how many rows count, not both; without gradients.
                   froghopper.torch.paged_attention has the rest

    Without cu_seqlens_k, k and v are [batch, seq_k, heads_k, dim], and seqused_k may say how many rows count. The order
    max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k is vLLM's and is taken too, with what follows there.

    Returns out [total_q, heads, dim of v]; with return_attn_probs or return_softmax_lse (out, lse [heads, total_q]).
    The other arguments are those of flash_attn_func.
    """
    refuse(qv=qv)
    options = options_of(q, softmax_scale, causal, window_size, attention_chunk, softcap, sm_margin)
    options |= scales_of(q, k, q_descale, k_descale, v_descale)
    options |= extras_of(q, dropout_p, alibi_slopes, s_aux, None, out)
    options |= dict(deterministic=asked("deterministic", deterministic), return_lse=asked(
        "return_attn_probs", return_attn_probs) | asked("return_softmax_lse", return_softmax_lse))
    if block_table is not None:
        used = used_of_pages(cu_seqlens_k, seqused_k)
        paged: Result = in_pages(q, k, v, block_table, options, cu_seqlens_q=cu_seqlens_q, seqused_q=seqused_q,
                                 seqused_kv=used, max_seqlen_q=length_of("max_seqlen_q", max_seqlen_q),
                                 max_seqlen_kv=kv_checks.within(length_of("max_seqlen_k", max_seqlen_k), k,
                                                                block_table))
        return paged
    q, k, v = without_gradients(columns(q), columns(k), columns(v))
    keys: dict[str, Any] = dict(k=k, v=v, cu_seqlens_kv=cu_seqlens_k, seqused_kv=seqused_k,
                                max_seqlen_kv=length_of("max_seqlen_k", max_seqlen_k))
    if cu_seqlens_k is None and cu_seqlens_q is not None: keys = dense_keys(k, v, seqused_k)
    found: Result = attention(q, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=length_of("max_seqlen_q", max_seqlen_q),
                              seqused_q=seqused_q, **keys, **options)
    return found


@overload
def flash_attn_qkvpacked_func(qkv: Tensor, *rest: Any, return_attn_probs: Literal[True],
                              **words: Any) -> tuple[Tensor, Tensor]: ...


@overload
def flash_attn_qkvpacked_func(qkv: Tensor, *rest: Any, return_attn_probs: Literal[False] = ...,
                              **words: Any) -> Tensor: ...


@overload
def flash_attn_qkvpacked_func(qkv: Tensor, *rest: Any, **words: Any) -> Any: ...


@speaks_of(OF_QKV)
@in_any_order(dense_order, first=1)
def flash_attn_qkvpacked_func(qkv: Tensor, softmax_scale: float | None = None, causal: bool = False,
                              q_descale: Scale = None, k_descale: Scale = None,
                              v_descale: Scale = None, window_size: Window = WHOLE,
                              attention_chunk: int = 0, softcap: float | None = 0.0, deterministic: bool = False,
                              num_heads_q: int | None = None, sm_margin: int = 0,
                              return_attn_probs: bool = False, *, dropout_p: float = 0.0,
                              alibi_slopes: Tensor | None = None, s_aux: Tensor | None = None) -> Result:
    """flash_attn_func of q, k and v in one tensor, which is read where it lies.

    qkv            [batch, seq, 3, heads, dim], or [batch, seq, heads_q + 2 heads_k, dim] with num_heads_q
    num_heads_q    with five dimensions heads, or None

    Its gradient comes in one tensor too, which costs one copy of it. Raises ValueError where qkv is neither.
    """
    check_dense("qkv", qkv)
    if num_heads_q is not None: num_heads_q = whole("num_heads_q", num_heads_q)
    shape = list(qkv.shape)
    if qkv.ndim == 5:
        if shape[2] != 3:
            raise InvalidProblem("qkv must have 3 in the third of five dimensions, for q, k and v, but has the shape "
                                 f"{shape}. Give [batch, seq, 3, heads, dim], or [batch, seq, heads_q + 2 heads_k, "
                                 "dim].")
        if num_heads_q not in (None, shape[3]):
            raise InvalidProblem(f"num_heads_q must be {shape[3]}, the heads of qkv, or None where qkv has five "
                                 f"dimensions, here {shape}, but is {num_heads_q}. Leave it out.")
        q, k, v = qkv.unbind(2)
    else:
        if qkv.ndim != 4 or num_heads_q is None or not 0 < num_heads_q < shape[2] or (shape[2] - num_heads_q) % 2:
            raise InvalidProblem("qkv must be [batch, seq, 3, heads, dim], or [batch, seq, num_heads_q + 2 heads_k, "
                                 f"dim] with num_heads_q, but has the shape {shape}, and num_heads_q is {num_heads_q}. "
                                 "Give five dimensions, or num_heads_q too.")
        heads_k = (shape[2] - num_heads_q) // 2
        q, k, v = torch.split(qkv, [num_heads_q, heads_k, heads_k], 2)
    found: Result = flash_attn_func(
        q, k, v, softmax_scale=softmax_scale, causal=causal, q_descale=q_descale, k_descale=k_descale,
        v_descale=v_descale, window_size=window_size, attention_chunk=attention_chunk, softcap=softcap,
        deterministic=deterministic, sm_margin=sm_margin, return_attn_probs=return_attn_probs, dropout_p=dropout_p,
        alibi_slopes=alibi_slopes, s_aux=s_aux)
    return found


@speaks_of(OF_KV)
def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *rest: Any, **words: Any) -> Any:
    """FlashAttention 2's, and its order: flash_attn_func of q and kv [batch, seq_k, 2, heads_k, dim], read in place."""
    if rest and (names := pair_order(rest, words)):
        rest, words = (), by_name("flash_attn_kvpacked_func", names, rest, words)
    return flash_attn_func(q, *parts_of("kv", kv, 5, 2), *rest, **words)


@speaks_of(OF_QKV | OF_ENDS)
def flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, *rest: Any,
                                     **words: Any) -> Any:
    """FlashAttention 2's: flash_attn_varlen_func of qkv [total, 3, heads, dim], which is read where it lies."""
    where = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return flash_attn_varlen_func(*parts_of("qkv", qkv, 4, 3), *where, *rest, **words)


@speaks_of(OF_KV)
def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, *rest: Any, **words: Any) -> Any:
    """FlashAttention 2's: flash_attn_varlen_func of q and kv [total_k, 2, heads_k, dim], read where it lies."""
    return flash_attn_varlen_func(q, *parts_of("kv", kv, 4, 2), *rest, **words)


@overload
def flash_attn_with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, *rest: Any, return_softmax_lse: Literal[True],
                            **words: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...


@overload
def flash_attn_with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, *rest: Any,
                            return_softmax_lse: Literal[False] = ..., **words: Any) -> Tensor: ...


@overload
def flash_attn_with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, *rest: Any, **words: Any) -> Any: ...


@in_any_order(cache_order)
def flash_attn_with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None,
                            v: Tensor | None = None, qv: Tensor | None = None, rotary_cos: Tensor | None = None,
                            rotary_sin: Tensor | None = None, cache_seqlens: int | Tensor | None = None,
                            cache_batch_idx: Tensor | None = None, cache_leftpad: Tensor | None = None,
                            page_table: Tensor | None = None, cu_seqlens_q: Tensor | None = None,
                            cu_seqlens_k_new: Tensor | None = None, max_seqlen_q: int | Tensor | None = None,
                            rotary_seqlens: Tensor | None = None, q_descale: Scale = None,
                            k_descale: Scale = None, v_descale: Scale = None,
                            softmax_scale: float | None = None, causal: bool = False,
                            window_size: Window = WHOLE, attention_chunk: int = 0,
                            softcap: float | None = 0.0, rotary_interleaved: bool = True,
                            scheduler_metadata: Tensor | None = None, num_splits: int = 0,
                            pack_gqa: bool | None = None, sm_margin: int = 0,
                            return_softmax_lse: bool = False, *, alibi_slopes: Tensor | None = None,
                            s_aux: Tensor | None = None, block_table: Tensor | None = None,
                            out: Tensor | None = None, max_seqlen_k: int | Tensor | None = None
                            ) -> Tensor | tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attention of q to keys and values in a cache. New ones are written into it first. There are no gradients: a
    tensor that requires one, unless it is 8-bit, is NotImplementedError unless under torch.no_grad().

    q                [batch, seq_q, heads, dim], or [total_q, heads, dim] with cu_seqlens_q [batch + 1] and max_seqlen_q
    k_cache, v_cache [rows, seq_k, heads_k, dim]; rows is batch, or any number with cache_batch_idx
                     with page_table (FlashAttention 2: block_table) [batch, columns] int32 pages of a pool, [pages,
                     page_size, heads_k, dim], and seq_k is columns * page_size
    k, v             [batch, seq_new, heads_k, dim], or [total_new, heads_k, dim] with cu_seqlens_k_new: written to the
                     cache or its pages from row cache_seqlens[b] on, by froghopper.torch.append_kv
    rotary_cos       [positions, rotary_dim / 2], of q's type or float32: k is rotated before it is written, and q,
    rotary_sin       which has cache_seqlens[b] for its first row's position, or rotary_seqlens[b], and without causal,
    rotary_seqlens   window and chunk for all rows'. rotary_interleaved: columns 2i and 2i + 1 are a pair
    cache_seqlens    [batch] int32, or an int: how many rows of the cache count, before k and v are added; None for all.
                     0 to seq_k, less the new rows
    cache_batch_idx  [batch] int32: which row of the cache, or of page_table, a sequence has. With k and v no two may be
                     equal (this is looked up, and the call waits for the GPU)
    cache_leftpad    [batch] int32: the first row of a sequence that counts, 0 to cache_seqlens and the new rows
    max_seqlen_q     packed: an upper bound on the rows of a sequence; max_seqlen_k: one on cache_seqlens and new rows
    out              where the result goes

    Nothing is written before everything is checked. Of tensors on a GPU the numbers are not, except for cache_batch_idx
    with k and v, as reading them would wait for it. There nothing outside of the cache is read or written if
    page_table is right: new rows that have no place in it are dropped, and a sequence has no fewer rows than 0 and no
    more than the cache. One that has none, as with a length of -1, has out = 0 and lse = -inf.

    The cache is never copied: with cache_batch_idx or cu_seqlens_q its sequences are read as pages, and with
    cache_leftpad as packed ones. cache_leftpad with cache_batch_idx or page_table writes a table, one number a row.
    Returns out, shaped as q with the columns of v; with return_softmax_lse a tuple of four as FlashAttention-3 does,
    (out, lse, empty, empty): the last two are partial results of splits there, and here there are none.
    """
    refuse(qv=qv)
    if return_softmax_lse is not False: return_softmax_lse = asked("return_softmax_lse", return_softmax_lse)
    table, longest = one_table(page_table, block_table), length_of("max_seqlen_q", max_seqlen_q)
    longest_k = length_of("max_seqlen_k", max_seqlen_k)
    lengths = dict(cache_seqlens=cache_seqlens, cache_batch_idx=cache_batch_idx, cache_leftpad=cache_leftpad,
                   cu_seqlens_k_new=None if k is None and table is not None else cu_seqlens_k_new)  # as engines do
    kv_checks.check_tensors(q, k_cache, v_cache, k, v, lengths, cu_seqlens_q, longest, table)
    rotary = kv_checks.Rotary(rotary_cos, rotary_sin, rotary_seqlens if rotary_cos is not None else None,
                             rotary_interleaved,
                             rotary_cos is not None and kv_checks.moves_on(causal, window_size, attention_chunk))
    kv_checks.check_rotary(rotary, k, q, kv_checks.batch_of(q, cu_seqlens_q))
    kv_checks.refuse_gradients((q, k_cache, v_cache, k, v, s_aux, out, alibi_slopes, rotary_cos, rotary_sin))
    rows = kv_checks.rows_of(k_cache, table)
    kv_checks.check_numbers(q, rows, k, lengths, cu_seqlens_q, longest, longest_k,
                            len(k_cache if table is None else table))
    options = options_of(q, softmax_scale, causal, window_size, attention_chunk, softcap, sm_margin)
    options |= scales_of(q, k_cache, q_descale, k_descale, v_descale)
    options |= extras_of(q, 0.0, alibi_slopes, s_aux, None, out)
    q, batch = columns(q), kv_checks.batch_of(q, cu_seqlens_q)
    if isinstance(cache_seqlens, Tensor): used = cache_seqlens.contiguous()
    else: used = torch.full((batch,), rows if cache_seqlens is None else cache_seqlens, dtype=torch.int32,
                            device=q.device)
    given = None if cache_seqlens is None else used
    found: Tensor
    lse: Tensor
    with torch.no_grad() if torch.is_grad_enabled() else contextlib.nullcontext():
        from_left = cache_leftpad is not None and table is None and cache_batch_idx is None
        from_left = from_left and kv_cache.is_packed(q, v_cache, out)
        if table is None and not from_left and not cache_batch_idx is cache_leftpad is cu_seqlens_q is None:
            table = table_of(k_cache.shape[0], batch, cache_batch_idx, q)
        elif table is not None and cache_batch_idx is not None:
            table = table[cache_batch_idx.clamp(0, len(table) - 1).long()]
        if k is not None and v is not None:
            kv_cache.try_once(q, k_cache, v_cache, used, table, cache_leftpad, longest, options)
            q, given = kv_cache.append_and_rotate(q, k_cache, v_cache, columns(k), columns(v), used, table,
                                                  cu_seqlens_q, cu_seqlens_k_new, rotary)
        longest_k = kv_checks.within(longest_k, k_cache, table)
        found, lse = kv_cache.attend_to_cache(q, k_cache, v_cache, given, table, cache_leftpad, cu_seqlens_q, longest,
                                              longest_k, options)
    if not return_softmax_lse: return found
    return found, lse.contiguous(), lse.new_empty(0), lse.new_empty(0)


def in_pages(q: Tensor, k: Tensor, v: Tensor, block_table: Tensor, options: dict[str, Any], **lengths: Any) -> Any:
    """paged_attention, which has no gradients and so nothing to make deterministic."""
    words = {name: value for name, value in options.items() if name != "deterministic"}
    q, k, v = without_gradients(q, k, v)
    return paged_attention(q, k, v, block_table, **words, **lengths)
