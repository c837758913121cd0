# SPDX-License-Identifier: Apache-2.0
"""froghopper.torch.attention: what users give it -> the operators of _torch_ops.py."""
from typing import Any, Literal, overload

import torch
from torch import Tensor

from froghopper import _torch_gate as gated
from froghopper import _torch_max_logit as largest
from froghopper import _torch_ops as ops
from froghopper import _torch_sharding as sharding
from froghopper import _torch_traced as traced
from froghopper._axes import check_axes
from froghopper._call import Window, check_align, check_held, flag, number, results_of
from froghopper._errors import Error, InvalidProblem, InvalidType, Unsupported
from froghopper._lse import check_lse_by_row
from froghopper._torch_calls import FLOAT8, LOOK, check_dense, check_tensor, name_of
from froghopper._torch_checks import sink_of
from froghopper._torch_eager import (NO_SIDES, attend, attend_by_row, check_sides, computable,
                                      recorded_outside, requires_grad, turned)
from froghopper._torch_native import ROWS_FIRST
from froghopper._torch_options import (Align, Scale, bound_of, check_dtype, check_lengths, check_packed, check_slopes,
                                       decided, plain, scale_tensor, whole, window_of)
from froghopper._torch_paged import from_pages
from froghopper._values import check_not_8_bit, listed
from froghopper._words import MISSING, again, too_many


@overload
def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = ..., window: Window | None = ...,
              softcap: float | None = ..., scale: float | None = ..., sink: Tensor | None = ...,
              cu_seqlens_q: Tensor | None = ..., cu_seqlens_kv: Tensor | None = ...,
              max_seqlen_q: int | None = ..., max_seqlen_kv: int | None = ...,
              seqused_q: Tensor | None = ..., seqused_kv: Tensor | None = ..., align: Align = ...,
              return_lse: Literal[False] = ..., deterministic: bool = ..., out: Tensor | None = ...,
              max_sms: int = ..., scale_q: Scale = ..., scale_k: Scale = ...,
              scale_v: Scale = ..., out_dtype: torch.dtype | None = ..., mean_k: Tensor | None = ...,
              mean_v: Tensor | None = ..., accumulate: None = ...,
              alibi_slopes: Tensor | None = ..., attention_chunk: int = ...,
              invariant: bool = ..., block_table: Tensor | None = ..., gate: Tensor | None = ...,
              lse_by_row: bool = ..., return_max_logit: Literal[False] = ...) -> Tensor: ...


@overload
def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = ..., window: Window | None = ...,
              softcap: float | None = ..., scale: float | None = ..., sink: Tensor | None = ...,
              cu_seqlens_q: Tensor | None = ..., cu_seqlens_kv: Tensor | None = ...,
              max_seqlen_q: int | None = ..., max_seqlen_kv: int | None = ...,
              seqused_q: Tensor | None = ..., seqused_kv: Tensor | None = ..., align: Align = ...,
              return_lse: Literal[True], deterministic: bool = ..., out: Tensor | None = ...,
              max_sms: int = ..., scale_q: Scale = ..., scale_k: Scale = ...,
              scale_v: Scale = ..., out_dtype: torch.dtype | None = ..., mean_k: Tensor | None = ...,
              mean_v: Tensor | None = ..., accumulate: None = ...,
              alibi_slopes: Tensor | None = ..., attention_chunk: int = ...,
              invariant: bool = ..., block_table: Tensor | None = ..., gate: Tensor | None = ...,
              lse_by_row: bool = ..., return_max_logit: Literal[False] = ...) -> tuple[Tensor, Tensor]: ...


@overload
def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = ..., window: Window | None = ...,
              softcap: float | None = ..., scale: float | None = ..., sink: Tensor | None = ...,
              cu_seqlens_q: Tensor | None = ..., cu_seqlens_kv: Tensor | None = ...,
              max_seqlen_q: int | None = ..., max_seqlen_kv: int | None = ...,
              seqused_q: Tensor | None = ..., seqused_kv: Tensor | None = ..., align: Align = ...,
              return_lse: Literal[False] = ..., deterministic: bool = ..., out: Tensor | None = ...,
              max_sms: int = ..., scale_q: Scale = ..., scale_k: Scale = ...,
              scale_v: Scale = ..., out_dtype: torch.dtype | None = ..., mean_k: Tensor | None = ...,
              mean_v: Tensor | None = ..., accumulate: None = ...,
              alibi_slopes: Tensor | None = ..., attention_chunk: int = ...,
              invariant: bool = ..., block_table: Tensor | None = ..., gate: Tensor | None = ...,
              lse_by_row: bool = ..., return_max_logit: Literal[True]) -> tuple[Tensor, Tensor]: ...


@overload
def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = ..., window: Window | None = ...,
              softcap: float | None = ..., scale: float | None = ..., sink: Tensor | None = ...,
              cu_seqlens_q: Tensor | None = ..., cu_seqlens_kv: Tensor | None = ...,
              max_seqlen_q: int | None = ..., max_seqlen_kv: int | None = ...,
              seqused_q: Tensor | None = ..., seqused_kv: Tensor | None = ..., align: Align = ...,
              return_lse: Literal[True], deterministic: bool = ..., out: Tensor | None = ...,
              max_sms: int = ..., scale_q: Scale = ..., scale_k: Scale = ...,
              scale_v: Scale = ..., out_dtype: torch.dtype | None = ..., mean_k: Tensor | None = ...,
              mean_v: Tensor | None = ..., accumulate: None = ...,
              alibi_slopes: Tensor | None = ..., attention_chunk: int = ...,
              invariant: bool = ..., block_table: Tensor | None = ..., gate: Tensor | None = ...,
              lse_by_row: bool = ..., return_max_logit: Literal[True]) -> tuple[Tensor, Tensor, Tensor]: ...


@overload
def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = ..., window: Window | None = ...,
              softcap: float | None = ..., scale: float | None = ..., sink: Tensor | None = ...,
              cu_seqlens_q: Tensor | None = ..., cu_seqlens_kv: Tensor | None = ...,
              max_seqlen_q: int | None = ..., max_seqlen_kv: int | None = ...,
              seqused_q: Tensor | None = ..., seqused_kv: Tensor | None = ..., align: Align = ...,
              return_lse: bool = ..., deterministic: bool = ..., out: Tensor | None = ...,
              max_sms: int = ..., scale_q: Scale = ..., scale_k: Scale = ...,
              scale_v: Scale = ..., out_dtype: torch.dtype | None = ..., mean_k: Tensor | None = ...,
              mean_v: Tensor | None = ..., accumulate: tuple[Tensor, ...],
              alibi_slopes: Tensor | None = ..., attention_chunk: int = ...,
              invariant: bool = ..., block_table: Tensor | None = ..., gate: Tensor | None = ...,
              lse_by_row: bool = ..., return_max_logit: bool = ...) -> tuple[Tensor, ...]: ...


def attention(q: Tensor = MISSING, k: Tensor = MISSING, v: Tensor = MISSING, *more: Any, causal: bool = False,
              window: Window | None = None, softcap: float | None = None, scale: float | None = None,
              sink: Tensor | None = None, cu_seqlens_q: Tensor | None = None, cu_seqlens_kv: Tensor | None = None,
              max_seqlen_q: int | None = None, max_seqlen_kv: int | None = None, seqused_q: Tensor | None = None,
              seqused_kv: Tensor | None = None, align: Align = "bottom_right", return_lse: bool = False,
              deterministic: bool = False, out: Tensor | None = None, max_sms: int = 0, scale_q: Scale = None,
              scale_k: Scale = None, scale_v: Scale = None, out_dtype: torch.dtype | None = None,
              mean_k: Tensor | None = None, mean_v: Tensor | None = None,
              accumulate: tuple[Tensor, ...] | None = None, alibi_slopes: Tensor | None = None,
              attention_chunk: int = 0, invariant: bool = False, return_max_logit: bool = False,
              block_table: Tensor | None = None, gate: Tensor | None = None, lse_by_row: bool = False,
              **others: Any) -> Tensor | tuple[Tensor, ...]:
    """softmax(scale q k^T + mask) v, with gradients of q, k, v, sink and gate.

    q              [batch, seq_q, heads_q, dim], packed [total_q, heads_q, dim]; float16, bfloat16, on the CPU float32
    k, v           [batch, seq_kv, heads_kv, dim], packed [total_kv, heads_kv, dim]; heads_kv divides heads_q, and v may
                   have its own dim
    causal         a query attends to no later key. The diagonal ends at the last query and the last key; with
                   align="top_left" it begins at the first ones
    window         (left, right): keys that a query attends to before and after its own; None or -1 for no bound
    softcap        scores become softcap tanh(score / softcap); None or 0 for none
    scale          of q k^T; None for 1/sqrt(dim). With 0 all keys that are seen have the same weight
    sink           [heads_q], float32 or 16 bits: one more logit a head, in the denominator alone
    cu_seqlens_*   [batch + 1] int32: rows where each packed sequence begins, and the end; both or none
    max_seqlen_*   packed: an upper bound on the longest sequence; None looks, on the CPU alone
    seqused_*      [batch] int32: how many rows of a sequence count, the first ones; other rows of q get o = 0. With
                   causal or a window the diagonal ends at the last query and the last key that count; where both sides
                   are padded, give both, or align="top_left"
    return_lse     also the logarithm of the softmax's denominator
    deterministic  gradients are the same bits in every run, also after torch.use_deterministic_algorithms(True); o
                   always is
    out            where the result goes, and what is returned then; without gradients
    max_sms        SMs or threads it may use; 0 for all
    scale_*        q, k and v may be float8_e4m3fn or float8_e5m2, or k and v with q in float16 or bfloat16: what
                   their values are multiplied by: a number, or float32 [], [heads] or [batch, heads]; [batch, blocks,
                   heads, 1] for blocks of 128 rows of each sequence; scale_v also [batch, 1, heads_kv, dim];
                   scale_k and scale_v for each row, shaped as k without its columns (on a GPU with 16-bit q). No
                   gradients
    out_dtype      with 8-bit k and v: the type of o; None for that of q, or bfloat16 with 8-bit q
    mean_*         8-bit k, v: [batch, 1, heads_kv, dim] float32, the mean of each sequence, which was subtracted before
                   it was quantised; both or none
    accumulate     (o, lse) in float32: attention over the keys of earlier calls, which becomes that over these keys
                   too, as in ring attention. The pair itself is returned, whatever return_lse says. Begin with o = 0
                   and lse = -inf, or the sink. Rows that attend to no key do not change. Without sink, out and
                   gradients
    alibi_slopes   [heads_q] or [batch, heads_q] float32: query i's score of key j gets -slope |i + keys - rows - j| on
                   top, or -slope |i - j| with align="top_left", after scale and softcap. They have no gradient
    attention_chunk  keys lie in chunks of so many, from the first on; a query attends to the chunk that the diagonal
                   crosses in its row, as far as causal and window let it; 0 for none
    invariant      a row of o and lse has the same bits whatever batch, bounds, max_sms and other queries it is
                   computed with, as prefill or as decoding: docs/1-math.md. Gradients are as without it
    return_max_logit  also [batch, heads_q] float32: the largest score of the rows of a sequence, after scale, softcap
                   and slopes, without sinks and NaN; -inf where no row attends to a key. QK-clip needs it. It has no
                   gradient; o and lse have theirs. With accumulate, which then is (o, lse, max_logit) and is returned
                   as such, it is the larger one of it and what is there
    gate           shape and type of o, which is multiplied by 1 / (1 + exp(-gate)) before it is rounded, as in gated
                   attention; lse and max_logit are without it. It has a gradient, except with block_table. Without
                   accumulate
    lse_by_row     lse is [batch, seq_q, heads_q], packed [total_q, heads_q]: the values of a row lie together. Where
                   nothing requires a gradient it is written so, else copied. Without accumulate
    block_table    [batch, columns] int32: k and v are a pool [pages, page_size, heads_kv, dim], as paged_attention has
                   it; without gradients

    Returns o [batch, seq_q, heads_q, dim of v], packed [total_q, ...], in the type of q; with return_lse (o, lse), lse
    [batch, heads_q, seq_q] or [heads_q, total_q] in float32, natural logarithm, differentiable too; with
    return_max_logit (o, max_logit) or (o, lse, max_logit). A row that attends to no key has o = 0 and lse = -inf, or
    the sink. Under autocast q, k and v are cast to its type, as by PyTorch's attention itself. Raises TypeError for
    arguments of a wrong kind, ValueError for shapes, options, devices and memory that do not fit, NotImplementedError
    for what nothing computes, RuntimeError from GPUs; `out` is unwritten then. docs/1-math.md and docs/8-backward.md
    have the mathematics and the bounds.
    """
    if more: too_many("attention", more)
    if others or block_table is not None:
        given = dict(  # PyTorch 2.11 does not compile locals()
            q=q, k=k, v=v, causal=causal, window=window, softcap=softcap, scale=scale, sink=sink,
            cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv, max_seqlen_q=max_seqlen_q,
            max_seqlen_kv=max_seqlen_kv, seqused_q=seqused_q, seqused_kv=seqused_kv, align=align, return_lse=return_lse,
            deterministic=deterministic, out=out, max_sms=max_sms, scale_q=scale_q, scale_k=scale_k, scale_v=scale_v,
            out_dtype=out_dtype, mean_k=mean_k, mean_v=mean_v, accumulate=accumulate, alibi_slopes=alibi_slopes,
            attention_chunk=attention_chunk, invariant=invariant, return_max_logit=return_max_logit,
            block_table=block_table, gate=gate, lse_by_row=lse_by_row)
        if others: made: Tensor | tuple[Tensor, ...] = again(attention, "torch", given | {"others": others})
        else: made = from_pages(given)
        return made
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        for name, x in (("q", q), ("k", k), ("v", v)): check_tensor(name, x)
    if causal is not True and causal is not False: causal = plain(flag, "causal", causal)
    left, right = (-1, -1) if window is None else window_of(window)
    if softcap is None: softcap = 0.0
    elif type(softcap) is not float: softcap = plain(number, "softcap", softcap)
    if scale is not None and type(scale) is not float: scale = plain(number, "scale", scale)
    check_align(align)
    if return_lse is not True and return_lse is not False: return_lse = plain(flag, "return_lse", return_lse)
    if type(attention_chunk) is not int: attention_chunk = whole("attention_chunk", attention_chunk)
    if invariant is not True and invariant is not False: invariant = plain(flag, "invariant", invariant)
    if return_max_logit is not False: return_max_logit = plain(flag, "return_max_logit", return_max_logit)
    if lse_by_row is not False:
        lse_by_row = plain(flag, "lse_by_row", lse_by_row)
        check_lse_by_row(lse_by_row, accumulate)
        lse_by_row &= return_lse
    if type(max_sms) is not int: max_sms = whole("max_sms", max_sms)
    if deterministic is not True: deterministic = decided(deterministic)
    if sink is not None: sink = sink_of(sink)
    if seqused_q is not None: check_lengths("seqused_q", seqused_q)
    if seqused_kv is not None: check_lengths("seqused_kv", seqused_kv)
    if alibi_slopes is not None: check_slopes(alibi_slopes)
    bound_q = bound_kv = LOOK
    if cu_seqlens_q is not None or cu_seqlens_kv is not None:
        check_packed(cu_seqlens_q, cu_seqlens_kv)
        bound_q, bound_kv = bound_of("max_seqlen_q", max_seqlen_q), bound_of("max_seqlen_kv", max_seqlen_kv)
    elif max_seqlen_q is not None or max_seqlen_kv is not None:
        raise InvalidProblem("max_seqlen_q and max_seqlen_kv must be None without cu_seqlens, but one is given. "
                             "Leave them out.")
    of_8_bits = k.dtype in FLOAT8 or q.dtype in FLOAT8
    if out_dtype is not None: check_dtype("out_dtype", out_dtype)
    if not of_8_bits and not (scale_q is scale_k is scale_v is mean_k is mean_v is None and out_dtype is None):
        check_not_8_bit(name_of(k.dtype), dict(zip((*ops.SCALES, "out_dtype"), (scale_q, scale_k, scale_v, mean_k,
                                                                               mean_v, out_dtype))))
    options = (bound_q, bound_kv, causal, left, right, softcap, scale, align == "top_left", deterministic, max_sms,
               attention_chunk, invariant)
    sides = NO_SIDES
    if not (sink is cu_seqlens_q is cu_seqlens_kv is seqused_q is seqused_kv is alibi_slopes is None):
        sides = (sink, cu_seqlens_q, cu_seqlens_kv, seqused_q, seqused_kv, alibi_slopes)
    if not (of_8_bits or return_max_logit) and accumulate is None and out is None and gate is None:
        if lse_by_row: return attend_by_row(q, k, v, sides, options)
        o, lse = attend(ROWS_FIRST, q, k, v, sides, options, return_lse)
        return o if lse is None else (o, lse)
    q, k, v = computable(q, k, v, of_8_bits)
    check_sides(sides, q)
    if torch.compiler.is_compiling(): traced.check_known(softcap=softcap, scale=scale)
    else: check_axes(q.shape, k.shape, causal)
    if accumulate is not None: check_held(accumulate, return_max_logit, "tensors")
    for name, written in (("out", out), ("accumulate", accumulate)):
        if written is None: continue
        ops.refuse_writing(f"{name} is given", q, k, v, *(accumulate or (out,)))
        if type(q) not in ops.PLAIN: sharding.refuse_parts(f"attention with {name}", dict(q=q))
    told = (*options, traced.caller() if torch.compiler.is_compiling() else "")
    scale_q, scale_k, scale_v = (scale_tensor(name, scale, q) for name, scale in zip(ops.SCALES, (scale_q, scale_k,
                                                                                                  scale_v)))
    with_grad = requires_grad(q, k, v, sink) or recorded_outside(q, k, v, sink)
    if gate is not None:
        check_tensor("gate", gate)
        if type(q) not in ops.PLAIN: sharding.check_mixed(dict(q=q, gate=gate))
        with_grad |= (torch.is_grad_enabled() and gate.requires_grad) or recorded_outside(gate)
        found: Any = gated.attention(accumulate, out, out_dtype, with_grad, return_lse, return_max_logit, gate,
                                     (q, k, v, *sides), (scale_q, scale_k, scale_v, mean_k, mean_v), told)
        of_gate: Tensor | tuple[Tensor, ...] = results_of(
            found[0], turned(found[1], lse_by_row), found[2], return_lse, return_max_logit)
        return of_gate
    if return_max_logit:
        found = largest.attention(
            accumulate, out, out_dtype, with_grad, return_lse,
            (q, k, v, *sides), (scale_q, scale_k, scale_v, mean_k, mean_v), told)
        results: Tensor | tuple[Tensor, ...] = results_of(
            found[0], turned(found[1], lse_by_row), found[2], return_lse or accumulate is not None, True)
        return results
    if accumulate is not None:
        merge(accumulate, out, out_dtype, with_grad, q, k, v, *sides, scale_q, scale_k, scale_v, mean_k, mean_v,
              *told)
        return accumulate[0], accumulate[1]
    if of_8_bits:
        if with_grad or (out is not None and out.requires_grad and torch.is_grad_enabled()):
            recorded = [name for name, x in (("q", q), ("k", k), ("v", v), ("sink", sink), ("out", out))
                        if x is not None and x.requires_grad]
            raise Unsupported(f"{listed(recorded)} require{'s' * (len(recorded) == 1)} a gradient and k is "
                              f"{name_of(k.dtype)}; gradients are computed of float16, bfloat16 and float32. Multiply "
                              "q, k and v by their scales in one of these and give no scales, or call under "
                              "torch.no_grad().")
        for name, x in zip((*ops.SCALES, "out"), (scale_q, scale_k, scale_v, mean_k, mean_v, out)):
            if x is not None: check_dense(name, x)
        rest: Any = (q, k, v, *sides, scale_q, scale_k, scale_v, mean_k, mean_v, *told, out_dtype, return_lse)
        found = ops.forward_8_bit_op(*rest) if out is None else ops.eager_8_bit_out(out, *rest)
        return (found[0], turned(found[1], lse_by_row)) if return_lse else found[0]
    check_dense("out", out)
    assert out is not None  # accumulate and out are not there together
    if with_grad or (out.requires_grad and torch.is_grad_enabled()):
        raise Unsupported("out is given and a tensor requires a gradient; what is written to out has none. Leave out "
                          "out, or call under torch.no_grad().")
    write = ops.forward_out_op if torch.compiler.is_compiling() else ops.eager_forward_out
    lse = write(out, q, k, v, *sides, *told, return_lse)
    return (out, turned(lse, lse_by_row)) if return_lse else out


def merge(held: tuple[Tensor, ...], out: Tensor | None, out_dtype: torch.dtype | None, with_grad: bool,
          *arguments: Any) -> None:
    """attention's accumulate; arguments: those of the operator after o and lse."""
    for at, x in enumerate(held): check_dense(f"accumulate[{at}]", x)
    if out is not None or out_dtype not in (None, torch.float32):
        raise InvalidProblem(f"accumulate is given and {'out' if out is not None else 'out_dtype'} too; results are "
                             "merged with what accumulate holds, in float32. Leave it out.")
    if with_grad or (torch.is_grad_enabled() and (held[0].requires_grad or held[1].requires_grad)):
        raise Unsupported("accumulate is given and a tensor requires a gradient; what is merged has none. Merge "
                          "(o, lse) of attention(..., return_lse=True) yourself, or call under torch.no_grad().")
    for name, x in zip(ops.SCALES, arguments[9:14]):
        if x is not None: check_dense(name, x)
    ops.merge_op(*held, *arguments)


def with_shapes(error: Error, tensors: tuple[Any, Any, Any]) -> Error:
    """What a call says that is not compiled, where compiled code learns of extents when it runs: with the shapes, and
    the hint at exchanged axes."""
    if str(error).startswith("heads_kv must divide"):
        try: check_axes(tensors[0].shape, tensors[1].shape, causal=False)
        except InvalidProblem as found: return found
    return error


traced.told_by["attention"] = with_shapes
