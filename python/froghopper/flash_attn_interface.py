# SPDX-License-Identifier: Apache-2.0
"""The functions of FlashAttention-3's module flash_attn_interface, computed by froghopper.

    from froghopper.flash_attn_interface import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

Names, order and defaults of arguments, layouts and results are those of FlashAttention-3 (Dao-AILab/flash-attention,
hopper/flash_attn_interface.py, package 3.0.0): q [batch, seq, heads, dim], packed [total, heads, dim]; masks aligned
bottom-right; lse [batch, heads, seq], packed [heads, total], float32, natural logarithm. Besides Hopper GPUs they run
on the CPU, also in float32. q, k and v are copied where froghopper.torch says so, and where their last stride is not 1,
as there.

What FlashAttention-3 does and this library does not raises NotImplementedError before anything is computed: qv,
page_table, rotary embedding in flash_attn_with_kvcache, and fp8 in
flash_attn_with_kvcache together with cache_batch_idx, cache_leftpad or cu_seqlens_q.

fp8: q, k and v are float8_e4m3fn, here also float8_e5m2; q_descale, k_descale and v_descale are [batch, heads_k]
float32 and 1 where they are not given; out is bfloat16. There are no gradients of it, there as here. Here q may also be
float16 or bfloat16 beside k and v in fp8, as in a cache; then q_descale is left out, and out has the type of q.

What differs on purpose
  return_attn_probs   gives (out, lse) as there; a gradient of lse is used here and is dropped there
  no keys at all      lse is -inf here, and +inf there if k has no rows; for sequences without keys both say -inf
  deterministic       works for every head dim; there not above 192
  head dims           v may have any of its own, forward and backward; up to 512
  num_splits,         hints there; accepted and without effect here, where a plan decides. A result does not depend
  pack_gqa            on them
  scheduler_metadata  the same: get_scheduler_metadata gives an empty tensor, and any is accepted
  sm_margin           becomes max_sms: that many SMs are left alone. On the CPU it has no effect
  rotary_interleaved  says nothing without rotary_cos, there too
  forward-mode        tangents of tensors raise NotImplementedError; they are dropped there
"""
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad

from froghopper import _kv_cache as kv_cache
from froghopper import _torch_ops as ops
from froghopper._call import whole_number
from froghopper._errors import InvalidProblem, InvalidTensor, InvalidType, Unsupported
from froghopper._torch_calls import FLOAT8, check_tensor
from froghopper.torch import attention

Result: TypeAlias = Tensor | tuple[Tensor, Tensor]

__all__ = ["flash_attn_combine", "flash_attn_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
           "flash_attn_with_kvcache", "get_scheduler_metadata"]

ROTARY = "the library does not rotate. Rotate q and k before the call, and give no rotary_cos and rotary_sin."
PAGES = "pages are not read here. Gather them into a cache [batch, seq, heads, dim]."
REFUSED = {
    "qv": "a second query, for v, is not computed here. Append its columns to those of q and v's to k, 512 in all.",
    "page_table": PAGES, "page_size": PAGES,
    "rotary_cos": ROTARY, "rotary_sin": ROTARY, "rotary_seqlens": ROTARY,
}


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False,
                    qv: Tensor | None = None, q_descale: Tensor | None = None, k_descale: Tensor | None = None,
                    v_descale: Tensor | None = None, window_size: tuple[int, int] = (-1, -1), attention_chunk: int = 0,
                    softcap: float | None = 0.0, num_splits: int = 1, pack_gqa: bool | None = None,
                    deterministic: bool = False, sm_margin: int = 0, return_attn_probs: bool = False) -> Result:
    """softmax(scale q k^T + mask) v, differentiable.

    q              [batch, seq_q, heads, dim]
    k, v           [batch, seq_k, heads_k, dim]; heads_k divides heads, and v may have its own dim
    softmax_scale  None for 1/sqrt(dim); 0 makes all keys alike
    causal         the last query sees the last key, every query before it one key less
    window_size    (left, right): query i sees keys i + seq_k - seq_q - left to i + seq_k - seq_q + right; negative for
                   no bound
    attention_chunk  query i sees keys of the chunk of so many alone in which key i + seq_k - seq_q lies; 0 for none.
                   With gradients, which FlashAttention-3 does not have of it
    softcap        scores become softcap tanh(score / softcap); None, 0 or negative for none, as there
    deterministic  gradients are bit-equal from run to run; the result always is
    *_descale      fp8: [batch, heads_k] float32, what q, k and v are multiplied by; None for 1

    Returns out [batch, seq_q, heads, dim of v]; with return_attn_probs (out, lse [batch, heads, seq_q]). Rows that see
    no key are 0 and their lse is -inf. Raises TypeError, ValueError, NotImplementedError as the module says.
    """
    refuse(qv=qv)
    options = options_of(q, softmax_scale, causal, window_size, attention_chunk, softcap, sm_margin)
    options |= scales_of(q, k, q_descale, k_descale, v_descale)
    options |= dict(deterministic=deterministic, return_lse=return_attn_probs)
    found: Result = attention(columns(q), columns(k), columns(v), **options)
    return found


def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                           max_seqlen_q: int, max_seqlen_k: int, seqused_q: Tensor | None = None,
                           seqused_k: Tensor | None = None, softmax_scale: float | None = None, causal: bool = False,
                           qv: Tensor | None = None, q_descale: Tensor | None = None, k_descale: Tensor | None = None,
                           v_descale: Tensor | None = None, window_size: tuple[int, int] = (-1, -1),
                           attention_chunk: int = 0, softcap: float | None = 0.0, num_splits: int = 1,
                           pack_gqa: bool | None = None, deterministic: bool = False, sm_margin: int = 0,
                           return_attn_probs: bool = False) -> Result:
    """The same of packed sequences.

    q              [total_q, heads, dim]; k, v [total_k, heads_k, dim]
    cu_seqlens_*   [batch + 1] int32: rows where each sequence begins, and the end
    max_seqlen_*   upper bounds on the rows of a sequence
    seqused_*      [batch] int32: how many rows of a sequence count; the other rows of q get 0 and lse = -inf

    Returns out [total_q, heads, dim of v]; with return_attn_probs (out, lse [heads, total_q]). The other arguments are
    those of flash_attn_func.
    """
    refuse(qv=qv)
    options = options_of(q, softmax_scale, causal, window_size, attention_chunk, softcap, sm_margin)
    options |= scales_of(q, k, q_descale, k_descale, v_descale)
    options |= dict(deterministic=deterministic, return_lse=return_attn_probs)
    found: Result = attention(columns(q), columns(k), columns(v), cu_seqlens_q=cu_seqlens_q,
                              cu_seqlens_kv=cu_seqlens_k, max_seqlen_q=max_seqlen_q, max_seqlen_kv=max_seqlen_k,
                              seqused_q=seqused_q, seqused_kv=seqused_k, **options)
    return found


def flash_attn_qkvpacked_func(qkv: Tensor, softmax_scale: float | None = None, causal: bool = False,
                              q_descale: Tensor | None = None, k_descale: Tensor | None = None,
                              v_descale: Tensor | None = None, window_size: tuple[int, int] = (-1, -1),
                              attention_chunk: int = 0, softcap: float | None = 0.0, deterministic: bool = False,
                              num_heads_q: int | None = None, sm_margin: int = 0,
                              return_attn_probs: bool = False) -> Result:
    """flash_attn_func of q, k and v in one tensor, which is read where it lies.

    qkv            [batch, seq, 3, heads, dim], or [batch, seq, heads_q + 2 heads_k, dim] with num_heads_q
    num_heads_q    with five dimensions heads, or None

    Its gradient comes in one tensor too, which costs one copy of it. Raises ValueError where qkv is neither.
    """
    check_tensor("qkv", qkv)
    shape = list(qkv.shape)
    if qkv.ndim == 5:
        if shape[2] != 3:
            raise InvalidProblem(f"qkv has the shape {shape}; with five dimensions the third is 3, for q, k and v. "
                                 "Give [batch, seq, 3, heads, dim], or [batch, seq, heads_q + 2 heads_k, dim].")
        if num_heads_q not in (None, shape[3]):
            raise InvalidProblem(f"num_heads_q is {num_heads_q} and qkv has the shape {shape}, {shape[3]} heads; with "
                                 "five dimensions the shape says it. Leave it out.")
        q, k, v = qkv.unbind(2)
    else:
        if qkv.ndim != 4 or num_heads_q is None or not 0 < num_heads_q < shape[2] or (shape[2] - num_heads_q) % 2:
            raise InvalidProblem(f"qkv has the shape {shape} and num_heads_q is {num_heads_q}; with four dimensions "
                                 "the third is num_heads_q + 2 heads_k. Give both, or [batch, seq, 3, heads, dim].")
        heads_k = (shape[2] - num_heads_q) // 2
        q, k, v = torch.split(qkv, [num_heads_q, heads_k, heads_k], 2)
    return flash_attn_func(q, k, v, softmax_scale, causal, None, q_descale, k_descale, v_descale, window_size,
                           attention_chunk, softcap, deterministic=deterministic, sm_margin=sm_margin,
                           return_attn_probs=return_attn_probs)


def flash_attn_with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None,
                            v: Tensor | None = None, qv: Tensor | None = None, rotary_cos: Tensor | None = None,
                            rotary_sin: Tensor | None = None, cache_seqlens: int | Tensor | None = None,
                            cache_batch_idx: Tensor | None = None, cache_leftpad: Tensor | None = None,
                            page_table: Tensor | None = None, cu_seqlens_q: Tensor | None = None,
                            cu_seqlens_k_new: Tensor | None = None, max_seqlen_q: int | None = None,
                            rotary_seqlens: Tensor | None = None, q_descale: Tensor | None = None,
                            k_descale: Tensor | None = None, v_descale: Tensor | None = None,
                            softmax_scale: float | None = None, causal: bool = False,
                            window_size: tuple[int, int] = (-1, -1), attention_chunk: int = 0,
                            softcap: float | None = 0.0, rotary_interleaved: bool = True,
                            scheduler_metadata: Tensor | None = None, num_splits: int = 0,
                            pack_gqa: bool | None = None, sm_margin: int = 0,
                            return_softmax_lse: bool = False) -> Tensor | tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attention of q to keys and values in a cache, without gradients; new ones are first written into it.

    q                [batch, seq_q, heads, dim], or [total_q, heads, dim] with cu_seqlens_q [batch + 1] and max_seqlen_q
    k_cache, v_cache [rows, seq_k, heads_k, dim]; rows is batch, or any number with cache_batch_idx
    k, v             [batch, seq_new, heads_k, dim], or [total_new, heads_k, dim] with cu_seqlens_k_new: written to the
                     cache from row cache_seqlens[b] on, by PyTorch's indexing, one operation each
    cache_seqlens    [batch] int32, or an int: how many rows of the cache count, before k and v are added; None for all.
                     0 to seq_k, less the new rows
    cache_batch_idx  [batch] int32: which row of the cache a sequence has. No two may be equal (this is looked up, and
                     the call waits for the GPU)
    cache_leftpad    [batch] int32: the first row of the cache that counts, 0 to seq_k
    max_seqlen_q     packed: an upper bound on the rows of a sequence

    Nothing is written before everything is checked. Of tensors on a GPU the numbers are not, but for cache_batch_idx,
    as reading them would wait for it. There nothing outside of the cache is read or written: new rows that have no
    place in it are dropped, and a sequence has no fewer rows than 0 and no more than the cache. One that has none, as
    with a length of -1, has out = 0 and lse = -inf.

    The cache is never copied: with cache_batch_idx, cache_leftpad or cu_seqlens_q its sequences must lie one after the
    other in memory, as torch.empty gives them, and q, which is small, is put in their order. Returns out, shaped as q
    with the columns of v; with return_softmax_lse a tuple of four as FlashAttention-3 does, (out, lse, empty, empty):
    the last two are partial results of splits there, and here there are none.
    """
    refuse(qv=qv, rotary_cos=rotary_cos, rotary_sin=rotary_sin, rotary_seqlens=rotary_seqlens, page_table=page_table)
    lengths = dict(cache_seqlens=cache_seqlens, cache_batch_idx=cache_batch_idx, cache_leftpad=cache_leftpad,
                   cu_seqlens_k_new=cu_seqlens_k_new)
    kv_cache.check_tensors(q, k_cache, v_cache, k, v, lengths, cu_seqlens_q, max_seqlen_q)
    scales = scales_of(q, k_cache, q_descale, k_descale, v_descale)
    packed = not cache_batch_idx is cache_leftpad is cu_seqlens_q is None
    if scales and packed:
        raise Unsupported(f"k_cache is {k_cache.dtype} and cache_batch_idx, cache_leftpad or cu_seqlens_q is given; "
                          "scales are not put in the order of such a cache here. Give the cache in the order of the "
                          "batch.")
    if packed: kv_cache.check_merged(k_cache, v_cache)
    check_tangents(dict(q=q, k_cache=k_cache, v_cache=v_cache, k=k, v=v))
    kv_cache.check_numbers(q, k_cache, k, lengths, cu_seqlens_q, max_seqlen_q)
    options = options_of(q, softmax_scale, causal, window_size, attention_chunk, softcap, sm_margin) | scales
    q, batch = columns(q), kv_cache.batch_of(q, cu_seqlens_q)
    if isinstance(cache_seqlens, Tensor): used = cache_seqlens.contiguous()
    else:
        count = k_cache.shape[1] if cache_seqlens is None else cache_seqlens
        used = torch.full((batch,), count, dtype=torch.int32, device=q.device)
    out: Tensor
    lse: Tensor
    with torch.no_grad():
        if k is not None and v is not None:
            kv_cache.try_once(q, k_cache, v_cache, used, packed, max_seqlen_q, options)
            used = kv_cache.append(k_cache, v_cache, k, v, used, cache_batch_idx, cu_seqlens_k_new)
        if packed:
            out, lse = kv_cache.attend_in_place(q, k_cache, v_cache, used, cache_batch_idx, cache_leftpad, cu_seqlens_q,
                                                max_seqlen_q, options)
        else:
            given = None if cache_seqlens is None else used
            out, lse = attention(q, k_cache, v_cache, seqused_kv=given, return_lse=True, **options)
    if not return_softmax_lse: return out
    return out, lse, lse.new_empty(0), lse.new_empty(0)


def flash_attn_combine(out_partial: Tensor, lse_partial: Tensor, out: Tensor | None = None,
                       out_dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """One result of several over different keys: softmax over their lse is the weight of each.

    out_partial    [splits, batch, seq, heads, dim] float32, or packed [splits, total, heads, dim]
    lse_partial    [splits, batch, seq, heads] float32, or packed [splits, total, heads]
    out            where the result goes; out_dtype: its type, float32 if neither is given

    Returns (out [batch, seq, heads, dim], lse [batch, seq, heads]), packed the same without batch. Rows whose lse are
    all -inf get 0 and -inf. Written in PyTorch, not a kernel of this library. Raises TypeError, ValueError.
    """
    for name, part in (("out_partial", out_partial), ("lse_partial", lse_partial)):
        check_tensor(name, part)
        if part.dtype != torch.float32:
            raise InvalidType(f"{name} is {part.dtype}; partial results are float32. Convert it.")
    if out_partial.ndim not in (4, 5) or out_partial.shape[:-1] != lse_partial.shape:
        raise InvalidProblem(f"out_partial has the shape {list(out_partial.shape)} and lse_partial "
                             f"{list(lse_partial.shape)}; the latter is [splits, batch, seq, heads] or [splits, total, "
                             "heads], the former has dim columns more. Reshape them.")
    for name, x in (("lse_partial", lse_partial), ("out", out)):
        if x is not None and x.device != out_partial.device:
            raise InvalidTensor(f"{name} is on {x.device} and out_partial on {out_partial.device}; all tensors are on "
                                "one device. Move one.")
    lse = torch.logsumexp(lse_partial, 0)
    # Not exp(lse_partial - lse): of a large lse the logarithm of the sum is lost in rounding, and weights sum to more.
    weights = torch.softmax(torch.where(lse == -torch.inf, 0.0, lse_partial), 0)
    weights = torch.where(lse_partial == -torch.inf, 0.0, weights).unsqueeze(-1)
    found = torch.where(weights == 0, 0.0, weights * out_partial).sum(0)
    if out is None: return found.to(out_dtype or torch.float32), lse
    if out.shape != found.shape or out.dtype != (out_dtype or out.dtype):
        raise InvalidTensor(f"out has the shape {list(out.shape)} and is {out.dtype}; it must be {list(found.shape)} "
                            f"and {out_dtype or out.dtype}. Give another tensor, or none.")
    return out.copy_(found), lse


def get_scheduler_metadata(batch_size: int, max_seqlen_q: int, max_seqlen_k: int, num_heads_q: int, num_heads_kv: int,
                           headdim: int, cache_seqlens: Tensor, qkv_dtype: torch.dtype = torch.bfloat16,
                           headdim_v: int | None = None, cu_seqlens_q: Tensor | None = None,
                           cu_seqlens_k_new: Tensor | None = None, cache_leftpad: Tensor | None = None,
                           page_size: int | None = None, max_seqlen_k_new: int = 0, causal: bool = False,
                           window_size: tuple[int, int] = (-1, -1), attention_chunk: int = 0, has_softcap: bool = False,
                           num_splits: int = 0, pack_gqa: bool | None = None, sm_margin: int = 0) -> Tensor:
    """An empty int32 tensor on cache_seqlens' device, for flash_attn_with_kvcache, which needs none: this library's
    kernels read lengths themselves when they hand out their work. page_size is refused, as pages are."""
    refuse(page_size=page_size)
    return torch.empty(0, dtype=torch.int32, device=cache_seqlens.device)


def refuse(**arguments: Any) -> None:
    """NotImplementedError for what is given and cannot be computed."""
    for name, value in arguments.items():
        if value is None: continue
        shown = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise Unsupported(f"{name} is {shown}; {REFUSED[name]}")


def scales_of(q: Tensor, k: Tensor, q_descale: Tensor | None, k_descale: Tensor | None,
              v_descale: Tensor | None) -> dict[str, Any]:
    """FlashAttention-3's descales, [batch, heads_k] -> scales of froghopper.torch.attention; {} without fp8. That of
    q is one number for all query heads of a key head; q in 16 bits has none."""
    descales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    check_tangents(descales)
    for name, value in descales.items():
        of = "q" if name == "q_descale" else "k"
        dtype = getattr(q if of == "q" else k, "dtype", None)
        if value is not None and dtype not in FLOAT8:
            raise InvalidProblem(f"{name} is given and {of} is {dtype}; descales belong to fp8. Leave it out.")
    if getattr(k, "dtype", None) not in FLOAT8: return {}
    if q.dtype not in FLOAT8: del descales["q_descale"]
    one, made = None, {}
    for name, value in descales.items():
        if value is None: value = one = torch.ones((), dtype=torch.float32, device=q.device) if one is None else one
        elif name == "q_descale" and value.ndim == 2: value = value.repeat_interleave(q.shape[-2] // k.shape[-2], 1)
        made["scale_" + name[0]] = value
    return made


def options_of(q: Tensor, softmax_scale: float | None, causal: bool, window_size: tuple[int, int],
               attention_chunk: int, softcap: float | None, sm_margin: int) -> dict[str, Any]:
    """FlashAttention-3's words for a mask and its scores -> those of froghopper.torch.attention."""
    if not isinstance(window_size, (tuple, list)) or len(window_size) != 2:
        raise InvalidType(f"window_size is {window_size!r}; it is (left, right), negative for no bound. Give "
                          "two numbers.")
    left, right = (None if bound is None or bound < 0 else bound for bound in window_size)
    return dict(scale=softmax_scale, causal=causal, window=(left, None if causal else right),
                softcap=0.0 if softcap is None or softcap < 0 else softcap,
                attention_chunk=attention_chunk, max_sms=sms_without(q, sm_margin))


def sms_without(q: Tensor, sm_margin: int) -> int:
    """max_sms: 0 for all."""
    if whole_number("sm_margin", sm_margin) < 0:
        raise InvalidProblem(f"sm_margin is {sm_margin}; so many SMs are left alone. Use 0 or more.")
    if sm_margin == 0 or not q.is_cuda: return 0
    sms = torch.cuda.get_device_properties(q.device).multi_processor_count
    if not 0 < sm_margin < sms:
        raise InvalidProblem(f"sm_margin is {sm_margin} and the GPU has {sms} SMs; as many are left alone. Use 0 to "
                             f"{sms - 1}.")
    return int(sms - sm_margin)


def check_tangents(tensors: dict[str, Tensor | None]) -> None:
    """Of forward-mode differentiation, which there is none of: they would be dropped."""
    if forward_ad._current_level >= 0: ops.check_tangents(tensors)


def columns(x: Tensor) -> Tensor:
    """Itself, or a copy where columns do not lie side by side."""
    return x.contiguous() if isinstance(x, Tensor) and x.ndim and x.stride(-1) != 1 else x
