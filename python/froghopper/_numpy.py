# SPDX-License-Identifier: Apache-2.0
"""Attention on NumPy arrays, on this machine's CPU. No other framework is needed.

Arrays read [batch, seq, heads, dim], or [total, heads, dim] with cu_seqlens_q and cu_seqlens_kv; float16, float32, or
ml_dtypes' bfloat16, and with scales its float8_e4m3fn and float8_e5m2. Any strides will do as long as
columns lie side by side; nothing is copied but lse, grad_lse and sink where they are not contiguous, lengths that are
not int32, and scales, means and slopes that are not float32 or lie at no multiple of 4 bytes. Arrays with masks are
refused.
"""
from collections.abc import Hashable, Sequence
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from froghopper._call import (Call, Window, cached, check_means, check_scale_is_there, describe, plan_of, results_of)
from froghopper._errors import Error, InvalidProblem, InvalidTensor, InvalidType, about_o, of_numpy
from froghopper._lse import check_lse_by_row, lse_by_row_of
from froghopper._numpy_8_bit import attention_8_bit, is_8_bit
from froghopper._numpy_arrays import (Array, Lengths, address, check_array, check_is_array, check_no_mask, check_order,
                                      check_place, check_shape, check_writeable, dense, dense_strides, float32_of,
                                      held_arrays, gates_of, held_arrays_of, key_of, lse_for, lse_shape, max_logit_for,
                                      packed_of, read_lengths, result_shape, slopes_of, strides_of)
from froghopper._values import Align, flag, plain, type_of
from froghopper._words import MISSING, again, named_by, takes_words_of_others, too_many

_calls: dict[Hashable, Call] = {}


class Gradients(NamedTuple):
    """With respect to q, k, v, and to sink where there is one."""
    q: Array
    k: Array
    v: Array
    sink: Array | None


class GatedGradients(NamedTuple):
    """The same, and with respect to gate."""
    q: Array
    k: Array
    v: Array
    sink: Array | None
    gate: Array


@overload
def attention(q: Array, k: Array, v: Array, *, causal: bool = ..., window: Window | None = ...,
              softcap: float | None = ..., scale: float | None = ..., sink: Array | None = ...,
              cu_seqlens_q: Lengths | None = ..., cu_seqlens_kv: Lengths | None = ...,
              seqused_q: Lengths | None = ..., seqused_kv: Lengths | None = ..., return_lse: Literal[False] = ...,
              out: Array | None = ..., align: Align = ..., max_sms: int = ..., max_seqlen_q: int | None = ...,
              max_seqlen_kv: int | None = ..., scale_q: ArrayLike | None = ..., scale_k: ArrayLike | None = ...,
              scale_v: ArrayLike | None = ..., dtype: str | None = ..., out_dtype: DTypeLike | None = ...,
              mean_k: Array | None = ..., mean_v: Array | None = ..., accumulate: None = ...,
              alibi_slopes: ArrayLike | None = ..., attention_chunk: int = ..., invariant: bool = ...,
              gate: Array | None = ..., lse_by_row: bool = ..., return_max_logit: Literal[False] = ...) -> Array: ...


@overload
def attention(q: Array, k: Array, v: Array, *, causal: bool = ..., window: Window | None = ...,
              softcap: float | None = ..., scale: float | None = ..., sink: Array | None = ...,
              cu_seqlens_q: Lengths | None = ..., cu_seqlens_kv: Lengths | None = ...,
              seqused_q: Lengths | None = ..., seqused_kv: Lengths | None = ..., return_lse: Literal[True],
              out: Array | None = ..., align: Align = ..., max_sms: int = ..., max_seqlen_q: int | None = ...,
              max_seqlen_kv: int | None = ..., scale_q: ArrayLike | None = ..., scale_k: ArrayLike | None = ...,
              scale_v: ArrayLike | None = ..., dtype: str | None = ..., out_dtype: DTypeLike | None = ...,
              mean_k: Array | None = ..., mean_v: Array | None = ..., accumulate: None = ...,
              alibi_slopes: ArrayLike | None = ..., attention_chunk: int = ..., invariant: bool = ...,
              gate: Array | None = ..., lse_by_row: bool = ...,
              return_max_logit: Literal[False] = ...) -> tuple[Array, Array]: ...


@overload
def attention(q: Array, k: Array, v: Array, *, causal: bool = ..., window: Window | None = ...,
              softcap: float | None = ..., scale: float | None = ..., sink: Array | None = ...,
              cu_seqlens_q: Lengths | None = ..., cu_seqlens_kv: Lengths | None = ...,
              seqused_q: Lengths | None = ..., seqused_kv: Lengths | None = ..., return_lse: Literal[False] = ...,
              out: Array | None = ..., align: Align = ..., max_sms: int = ..., max_seqlen_q: int | None = ...,
              max_seqlen_kv: int | None = ..., scale_q: ArrayLike | None = ..., scale_k: ArrayLike | None = ...,
              scale_v: ArrayLike | None = ..., dtype: str | None = ..., out_dtype: DTypeLike | None = ...,
              mean_k: Array | None = ..., mean_v: Array | None = ..., accumulate: None = ...,
              alibi_slopes: ArrayLike | None = ..., attention_chunk: int = ..., invariant: bool = ...,
              gate: Array | None = ..., lse_by_row: bool = ...,
              return_max_logit: Literal[True]) -> tuple[Array, Array]: ...


@overload
def attention(q: Array, k: Array, v: Array, *, causal: bool = ..., window: Window | None = ...,
              softcap: float | None = ..., scale: float | None = ..., sink: Array | None = ...,
              cu_seqlens_q: Lengths | None = ..., cu_seqlens_kv: Lengths | None = ...,
              seqused_q: Lengths | None = ..., seqused_kv: Lengths | None = ..., return_lse: Literal[True],
              out: Array | None = ..., align: Align = ..., max_sms: int = ..., max_seqlen_q: int | None = ...,
              max_seqlen_kv: int | None = ..., scale_q: ArrayLike | None = ..., scale_k: ArrayLike | None = ...,
              scale_v: ArrayLike | None = ..., dtype: str | None = ..., out_dtype: DTypeLike | None = ...,
              mean_k: Array | None = ..., mean_v: Array | None = ..., accumulate: None = ...,
              alibi_slopes: ArrayLike | None = ..., attention_chunk: int = ..., invariant: bool = ...,
              gate: Array | None = ..., lse_by_row: bool = ...,
              return_max_logit: Literal[True]) -> tuple[Array, Array, Array]: ...


@overload
def attention(q: Array, k: Array, v: Array, *, causal: bool = ..., window: Window | None = ...,
              softcap: float | None = ..., scale: float | None = ..., sink: Array | None = ...,
              cu_seqlens_q: Lengths | None = ..., cu_seqlens_kv: Lengths | None = ...,
              seqused_q: Lengths | None = ..., seqused_kv: Lengths | None = ..., return_lse: bool = ...,
              out: Array | None = ..., align: Align = ..., max_sms: int = ..., max_seqlen_q: int | None = ...,
              max_seqlen_kv: int | None = ..., scale_q: ArrayLike | None = ..., scale_k: ArrayLike | None = ...,
              scale_v: ArrayLike | None = ..., dtype: str | None = ..., out_dtype: DTypeLike | None = ...,
              mean_k: Array | None = ..., mean_v: Array | None = ..., accumulate: tuple[Array, ...],
              alibi_slopes: ArrayLike | None = ..., attention_chunk: int = ..., invariant: bool = ...,
              gate: Array | None = ..., lse_by_row: bool = ...,
              return_max_logit: Literal[False] = ...) -> tuple[Array, Array]: ...


@overload
def attention(q: Array, k: Array, v: Array, *, causal: bool = ..., window: Window | None = ...,
              softcap: float | None = ..., scale: float | None = ..., sink: Array | None = ...,
              cu_seqlens_q: Lengths | None = ..., cu_seqlens_kv: Lengths | None = ...,
              seqused_q: Lengths | None = ..., seqused_kv: Lengths | None = ..., return_lse: bool = ...,
              out: Array | None = ..., align: Align = ..., max_sms: int = ..., max_seqlen_q: int | None = ...,
              max_seqlen_kv: int | None = ..., scale_q: ArrayLike | None = ..., scale_k: ArrayLike | None = ...,
              scale_v: ArrayLike | None = ..., dtype: str | None = ..., out_dtype: DTypeLike | None = ...,
              mean_k: Array | None = ..., mean_v: Array | None = ..., accumulate: tuple[Array, ...],
              alibi_slopes: ArrayLike | None = ..., attention_chunk: int = ..., invariant: bool = ...,
              gate: Array | None = ..., lse_by_row: bool = ...,
              return_max_logit: Literal[True]) -> tuple[Array, Array, Array]: ...


@of_numpy
def attention(q: Array = MISSING, k: Array = MISSING, v: Array = MISSING, *more: Any, causal: bool = False,
              window: Window | None = None, softcap: float | None = None, scale: float | None = None,
              sink: Array | None = None, cu_seqlens_q: Lengths | None = None, cu_seqlens_kv: Lengths | None = None,
              seqused_q: Lengths | None = None, seqused_kv: Lengths | None = None, return_lse: bool = False,
              out: Array | None = None, align: Align = "bottom_right", max_sms: int = 0,
              max_seqlen_q: int | None = None, max_seqlen_kv: int | None = None, scale_q: ArrayLike | None = None,
              scale_k: ArrayLike | None = None, scale_v: ArrayLike | None = None, dtype: str | None = None,
              out_dtype: DTypeLike | None = None, mean_k: Array | None = None, mean_v: Array | None = None,
              accumulate: tuple[Array, ...] | None = None, alibi_slopes: ArrayLike | None = None,
              attention_chunk: int = 0, invariant: bool = False, return_max_logit: bool = False,
              gate: Array | None = None, lse_by_row: bool = False, **others: Any) -> Array | tuple[Array, ...]:
    """softmax(scale q k^T + mask) v of NumPy arrays; with return_lse also the logarithm of the softmax's denominator.

    q              [batch, seq_q, heads_q, dim], packed [total_q, heads_q, dim]
    k, v           [batch, seq_kv, heads_kv, dim], packed [total_kv, heads_kv, dim]; heads_kv divides heads_q, and v may
                   have its own dim
    causal         no query attends to a later key; the diagonal ends at the last query and key (align="top_left": it
                   begins at the first ones)
    window         (left, right): keys that a query attends to before and after its own; None or -1 for no bound
    softcap        scores become softcap tanh(score / softcap); None or 0 for none
    scale          of q k^T, from 0 to 2^127; None for 1/sqrt(dim). 0 makes all keys alike, and so does what float32
                   rounds to 0
    sink           [heads_q] float32: one more logit a head, in the denominator alone
    cu_seqlens_*   [batch + 1] rows where each packed sequence begins, and the end; both or none
    seqused_*      [batch] how many rows of a sequence count. With causal or a window the diagonal ends at the last
                   query and the last key that count; where both sides are padded, give both, or align="top_left"
    return_lse     also the logarithm of the softmax's denominator
    out            where the result goes, and what is returned then; shape of the result, type of q, memory of its own
    max_sms        threads it may use; 0 for all
    max_seqlen_*   packed: an upper bound on the longest sequence; None looks
    scale_*        8-bit q, k, v: factors of values, float32: one; [heads]; [batch, heads]; [batch, blocks, heads,
                   1] for 128 rows each; scale_v [batch, 1, heads_kv, dim]; scale_k and _v for each row, k.shape[:-1]
    dtype          "float8_e4m3fn" or "float8_e5m2": what q, k and v hold where they are uint8, for want of ml_dtypes
    out_dtype      with 8-bit k and v: the type of o, float16, bfloat16 (the usual one with 8-bit q) or float32;
                   "bfloat16" without ml_dtypes gives its bits as uint16
    mean_*         8-bit k, v: [batch, 1, heads_kv, dim] float32, the means that smoothing subtracted; both or none
    accumulate     (o, lse) in float32: attention over the keys of earlier calls, which becomes that over these keys
                   too, as in ring attention. Both are returned, whatever return_lse. Begin with o = 0 and lse = -inf,
                   or the sink. Rows that attend to no key do not change. Without sink and out
    alibi_slopes   [heads_q] or [batch, heads_q] float32: query i's score of key j gets -slope |i + keys - rows - j| on
                   top, or -slope |i - j| with align="top_left", after scale and softcap
    attention_chunk  keys lie in chunks of so many, from the first on; a query attends to the chunk that the diagonal
                   crosses in its row, as far as causal and window let it; 0 for none
    invariant      a row of o and lse has the same bits whatever batch, bounds, max_sms and other queries it is
                   computed with, as prefill or as decoding: docs/1-math.md.
    return_max_logit  also [batch, heads_q] float32: the largest score of the rows of a sequence, after scale, softcap
                   and slopes, without sinks and NaN; -inf where no row attends to a key. With accumulate, which then is
                   (o, lse, max_logit), it is the larger one of it and what is there
    gate           shape and type of o, which is multiplied by 1 / (1 + exp(-gate)) before it is rounded; lse and
                   max_logit are without it. Without accumulate
    lse_by_row     lse is [batch, seq_q, heads_q], packed [total_q, heads_q]. Without accumulate

    Returns o [batch, seq_q, heads_q, dim of v], packed [total_q, ...], in the type of q; with return_lse (o, lse), lse
    [batch, heads_q, seq_q] or [heads_q, total_q] in float32, natural logarithm, with return_max_logit (o, max_logit) or
    (o, lse, max_logit). A row that attends to no key has o = 0 and lse = -inf, or the sink. Raises TypeError for
    arguments of a wrong kind, ValueError for shapes, options and memory that do not fit, NotImplementedError; `out` is
    unwritten then. docs/1-math.md has the mathematics and the bounds.
    """
    if more: too_many("attention", more)
    if others:
        made: Array | tuple[Array, ...] = again(attention, "", locals())
        return made
    key = bare_key(q, k, v, window, (causal, softcap, scale, align, max_sms, attention_chunk, invariant, return_lse,
                                     return_max_logit, lse_by_row),
                   (sink, cu_seqlens_q, cu_seqlens_kv, seqused_q, seqused_kv, out, max_seqlen_q, max_seqlen_kv, scale_q,
                    scale_k, scale_v, dtype, out_dtype, mean_k, mean_v, accumulate, alibi_slopes, gate))
    if key is not None and (known := _bare_calls.get(key)) is not None:
        done: Array | tuple[Array, ...] = known.run(q, k, v)
        return done
    for name, x in (("q", q), ("k", k), ("v", v)): check_is_array(name, x)
    lengths = read_lengths(cu_seqlens_q, cu_seqlens_kv, seqused_q, seqused_kv)
    return_lse, return_max_logit = flag("return_lse", return_lse), flag("return_max_logit", return_max_logit)
    check_lse_by_row(lse_by_row := flag("lse_by_row", lse_by_row), accumulate)
    held = None if accumulate is None else held_arrays_of(accumulate, out, return_max_logit)
    return_lse |= held is not None
    plain_options = plain(causal=causal, window=window, softcap=softcap, scale=scale, align=align, max_sms=max_sms,
                          attention_chunk=attention_chunk, invariant=invariant)
    smooth = check_means(mean_k, mean_v)
    if dtype is not None or out_dtype is not None or scale_k is not None or smooth or is_8_bit(q) or is_8_bit(k):
        found: Array | tuple[Array, ...] = attention_8_bit(
            q, k, v, {"scale_q": scale_q, "scale_k": scale_k, "scale_v": scale_v},
            {"mean_k": mean_k, "mean_v": mean_v}, dtype, out_dtype, lengths, sink, out, held, return_lse,
            return_max_logit, max_seqlen_q, max_seqlen_kv, alibi_slopes=alibi_slopes, gate=gate, lse_by_row=lse_by_row,
            **plain_options)
        return found
    for name, value in (("scale_q", scale_q), ("scale_v", scale_v)):
        if value is not None: check_scale_is_there(name, value, name[-1], q.dtype.name)
    arrays = {"q": q, "k": k, "v": v} | ({} if gate is None else {"gate": gate})
    if out is not None: arrays["out"] = out
    for name, array in arrays.items(): check_array(name, array, q)
    name_of_o, given = ("out", out) if held is None else ("accumulate[0]", held[0])
    if held is not None: arrays[name_of_o] = held[0]
    packed = packed_of(lengths, q, k, max_seqlen_q, max_seqlen_kv)
    sink, slopes = dense("sink", sink, q.shape[-2:-1]), float32_of("alibi_slopes", alibi_slopes)
    options = plain_options | dict(packed=packed, seqused=lengths.used, sink=sink is not None,
                                   accumulate=held is not None, alibi=slopes is not None, max_logit=return_max_logit,
                                   gate=gate is not None)

    def make() -> Call:
        problem = describe(q.shape, k.shape, v.shape, q.dtype.name, **options)
        for name, array in ((name_of_o, given), ("gate", gate)):
            if array is not None: check_shape(name, array, result_shape(q, v))
        of_o = strides_of(name_of_o, given) if given is not None else dense_strides(result_shape(q, v))
        return Call(plan_of(problem, "cpu"), [*(strides_of(name, arrays[name]) for name in "qkv"), of_o],
                    slopes_of(slopes, problem), gates=gates_of(gate),
                    of_lse=lse_by_row_of(q.shape)[1] if lse_by_row else None)
    call = cached(_calls, key_of([*arrays.values(), *held_arrays(slopes)], options | {"lse_by_row": lse_by_row}), make)
    if given is not None: check_writeable(name_of_o, given)
    o = np.empty(result_shape(q, v), q.dtype) if given is None else given
    lse = lse_for(q, held, return_lse, lse_by_row)
    largest = max_logit_for(q, packed.batch if packed else q.shape[0], held, return_max_logit)
    try:
        call.forward(address(q), address(k), address(v), address(o), address(lse), *lengths.addresses(), address(sink),
                     alibi_slopes=address(slopes), max_logit=address(largest), gate=address(gate))
    except InvalidTensor as error: raise about_o(error, held is not None, q.shape) from None
    if key is not None: cached(_bare_calls, key, lambda: BareCall(call, *(None if x is None else x.shape
                                                                          for x in (o, lse, largest))))
    results: Array | tuple[Array, ...] = results_of(o, lse, largest, return_lse, return_max_logit)
    return results


class BareCall(NamedTuple):
    """A call on q, k and v alone that was made once, with the shapes of what it gives: it needs no check again."""
    call: Call
    of_o: tuple[int, ...] | None
    of_lse: tuple[int, ...] | None
    of_largest: tuple[int, ...] | None

    def run(self, q: Array, k: Array, v: Array) -> Any:
        o = np.empty(self.of_o or (), q.dtype)
        lse = None if self.of_lse is None else np.empty(self.of_lse, np.float32)
        largest = None if self.of_largest is None else np.empty(self.of_largest, np.float32)
        self.call.forward(address(q), address(k), address(v), address(o), address(lse), max_logit=address(largest))
        return results_of(o, lse, largest, lse is not None, largest is not None)


_bare_calls: dict[Hashable, BareCall] = {}
PLAIN = {bool, int, float, str, type(None)}  # a value of another type may change, or be equal to what it is not
NOT_GIVEN = {type(None)}


def bare_key(q: Any, k: Any, v: Any, window: Any, options: tuple[Any, ...], others: tuple[Any, ...]) -> Hashable:
    """All that a call on nothing but q, k and v depends on, at little cost; None where the values must be looked at.
    Types belong to it, since 1, 1.0 and True are the same key."""
    if not type(q) is type(k) is type(v) is np.ndarray or {*map(type, others)} != NOT_GIVEN: return None
    kinds = (*map(type, window if type(window) is tuple else (window,)), *map(type, options))
    if not PLAIN.issuperset(kinds): return None
    return q.shape, q.strides, q.dtype, k.shape, k.strides, k.dtype, v.shape, v.strides, v.dtype, window, options, kinds


@overload
def attention_backward(grad_o: Array, q: Array, k: Array, v: Array, o: Array, lse: Array, *,
                       grad_lse: Array | None = ..., causal: bool = ..., window: Window | None = ...,
                       softcap: float | None = ..., scale: float | None = ..., sink: Array | None = ...,
                       cu_seqlens_q: Lengths | None = ..., cu_seqlens_kv: Lengths | None = ...,
                       seqused_q: Lengths | None = ..., seqused_kv: Lengths | None = ..., deterministic: bool = ...,
                       out: Gradients | Sequence[Array | None] | None = ..., accumulate: bool = ...,
                       align: Align = ..., max_sms: int = ..., max_seqlen_q: int | None = ...,
                       max_seqlen_kv: int | None = ..., alibi_slopes: ArrayLike | None = ...,
                       attention_chunk: int = ..., gate: None = ...) -> Gradients: ...


@overload
def attention_backward(grad_o: Array, q: Array, k: Array, v: Array, o: Array, lse: Array, *,
                       grad_lse: Array | None = ..., causal: bool = ..., window: Window | None = ...,
                       softcap: float | None = ..., scale: float | None = ..., sink: Array | None = ...,
                       cu_seqlens_q: Lengths | None = ..., cu_seqlens_kv: Lengths | None = ...,
                       seqused_q: Lengths | None = ..., seqused_kv: Lengths | None = ..., deterministic: bool = ...,
                       out: GatedGradients | Sequence[Array | None] | None = ..., accumulate: bool = ...,
                       align: Align = ..., max_sms: int = ..., max_seqlen_q: int | None = ...,
                       max_seqlen_kv: int | None = ..., alibi_slopes: ArrayLike | None = ...,
                       attention_chunk: int = ..., gate: Array) -> GatedGradients: ...


@takes_words_of_others("")
def attention_backward(grad_o: Array, q: Array, k: Array, v: Array, o: Array, lse: Array, *,
                       grad_lse: Array | None = None, causal: bool = False, window: Window | None = None,
                       softcap: float | None = None, scale: float | None = None, sink: Array | None = None,
                       cu_seqlens_q: Lengths | None = None, cu_seqlens_kv: Lengths | None = None,
                       seqused_q: Lengths | None = None, seqused_kv: Lengths | None = None,
                       deterministic: bool = False,
                       out: Gradients | GatedGradients | Sequence[Array | None] | None = None,
                       accumulate: bool = False, align: Align = "bottom_right", max_sms: int = 0,
                       max_seqlen_q: int | None = None, max_seqlen_kv: int | None = None,
                       alibi_slopes: ArrayLike | None = None, attention_chunk: int = 0,
                       gate: Array | None = None) -> Gradients | GatedGradients:
    """The gradients of q, k, v, sink and gate, of NumPy arrays.

    o, lse         what attention(..., return_lse=True) gave for the same arguments. The order is grad_o, q, k, v, o,
                   lse; arrays in another one that their shapes show are refused
    grad_o         the gradient of o, its shape and type
    grad_lse       the gradient of lse, where lse is used further on; float32
    deterministic  the same bits in every run; on the CPU they always are
    out            arrays for the gradients of q, k, v (and sink, and gate), in that order; their shapes, type of q
    accumulate     add to what is in out, whose arrays are float32 then; without gate

    The other arguments are those of attention; alibi_slopes have no gradient. Returns Gradients(q, k, v, sink), sink
    None where there is none, and with gate GatedGradients(q, k, v, sink, gate); raises as attention does, and out is
    unwritten then. docs/8-backward.md has the formulas.
    """
    lengths = read_lengths(cu_seqlens_q, cu_seqlens_kv, seqused_q, seqused_kv)
    arrays = {"q": q, "k": k, "v": v, "o": o, "grad_o": grad_o} | ({} if gate is None else {"gate": gate})
    check_order(grad_o, q, k, v, o, lse)
    for name, array in arrays.items(): check_array(name, array, q)
    packed = packed_of(lengths, q, k, max_seqlen_q, max_seqlen_kv)
    sink, slopes = dense("sink", sink, q.shape[-2:-1]), float32_of("alibi_slopes", alibi_slopes)
    options = plain(causal=causal, window=window, softcap=softcap, scale=scale, align=align, max_sms=max_sms,
                    attention_chunk=attention_chunk, deterministic=deterministic, accumulate=accumulate)
    options |= dict(packed=packed, seqused=lengths.used, sink=sink is not None, alibi=slopes is not None, backward=True,
                    gate=gate is not None)
    describe(q.shape, k.shape, v.shape, q.dtype.name, **options)  # shapes make sense from here on
    for name in list(arrays)[3:]: check_shape(name, arrays[name], result_shape(q, v))
    if lse is None: raise InvalidType("lse must be given for gradients, but is None. Use o, lse = attention(..., "
                                      "return_lse=True).")
    lse = dense("lse", lse, lse_shape(q))
    grad_lse = dense("grad_lse", grad_lse, lse_shape(q))
    arrays.pop("gate", None)
    grads = gradients_for(out, q, k, v, sink, options["accumulate"], gate)
    grad_gate = grads.gate if isinstance(grads, GatedGradients) else None
    arrays |= {"out[0]": grads.q, "out[1]": grads.k, "out[2]": grads.v}

    def make() -> Call:
        problem = describe(q.shape, k.shape, v.shape, q.dtype.name, **options)
        return Call(plan_of(problem, "cpu"), [strides_of(name, array) for name, array in arrays.items()],
                    slopes_of(slopes, problem), gates=gates_of(gate, grad_gate))
    call = cached(_calls, key_of([*arrays.values(), *held_arrays(slopes, gate, grad_gate)], options), make)

    try:
        call.backward(address(q), address(k), address(v), address(o), address(lse), *lengths.addresses(), address(sink),
                      address(grad_o), address(grads.q), address(grads.k), address(grads.v), address(grad_lse),
                      address(grads.sink), alibi_slopes=address(slopes), gate=address(gate),
                      grad_gate=address(grad_gate))
    except Error as error:
        raise named_by({"grad_q": "out[0]", "grad_k": "out[1]", "grad_v": "out[2]"}, error) from None
    return grads


def gradients_for(out: Any, q: Array, k: Array, v: Array, sink: Array | None, accumulate: bool,
                  gate: Array | None) -> Gradients | GatedGradients:
    """Where gradients go: the user's arrays, checked, or new ones."""
    if out is None:
        if accumulate: raise InvalidProblem("out must be given with accumulate=True, as gradients are added to it, "
                                            "but is None. Use out=(grad_q, grad_k, grad_v).")
        new_q, new_k, new_v = (np.empty(x.shape, q.dtype) for x in (q, k, v))
        of_sink = None if sink is None else np.empty_like(sink)
        if gate is not None: return GatedGradients(new_q, new_k, new_v, of_sink, np.empty(gate.shape, q.dtype))
        return Gradients(new_q, new_k, new_v, of_sink)
    if not isinstance(out, (tuple, list)):
        raise InvalidType(f"out must be a tuple with an array for each gradient, but is {type_of(out)}. Use "
                          "out=(grad_q, grad_k, grad_v).")
    likes = [x for x in (q, k, v, sink, gate) if x is not None]
    held = [*out[:3], *out[4:]] if len(out) == 4 + (gate is not None) and sink is None and out[3] is None else out
    if len(held) != len(likes):
        raise InvalidType(f"out must have {len(likes)} arrays, for the gradients of q, k, "
                          f"v{', sink' * (sink is not None)}{', gate' * (gate is not None)}, but has {len(held)}. "
                          f"Give {len(likes)}.")
    for at, (array, like) in enumerate(zip(held, likes)):
        check_no_mask(f"out[{at}]", array)
        wanted = np.dtype(np.float32) if accumulate else like.dtype
        if not isinstance(array, np.ndarray) or array.dtype != wanted:
            kind = array.dtype if isinstance(array, np.ndarray) else type_of(array)
            raise InvalidType(f"out[{at}] must be an array of "
                              f"{wanted.name}{', as accumulate adds in float32' * accumulate}, but is {kind}. Use "
                              f"numpy.zeros(shape, \"{wanted.name}\").")
        check_shape(f"out[{at}]", array, like.shape)
        check_writeable(f"out[{at}]", array)
    if sink is not None: check_place("out[3]", held[3], "the gradient of sink")
    of_sink = held[3] if sink is not None else None
    if gate is not None: return GatedGradients(held[0], held[1], held[2], of_sink, held[-1])
    return Gradients(held[0], held[1], held[2], of_sink)
