# SPDX-License-Identifier: Apache-2.0
"""Attention on arrays of JAX: on Hopper GPUs and on CPUs, under jit, grad, vmap and over several devices.

    from froghopper.jax import attention
    o = attention(q, k, v, causal=True)

jit     one call of the library per call here; a new shape or option compiles, new lengths in cu_seqlens_* and seqused_*
        do not
grad    reverse mode, first derivatives: of q, k, v, sink and gate, also through lse. jax.jvp, forward mode, raises
        JAX's own TypeError
vmap    examples become sequences of one larger call. Packed examples that share cu_seqlens_*, and gradients of a sink
        for each example, become heads of one; packed examples with lengths of their own are computed one by one
devices jit over a mesh follows the sharding of q: sequences (the first dimension, where not packed) and heads may be
        spread. Key heads go with their query heads; a device may have some of the query heads of one key head, not of
        several. What else is spread (rows, columns) is gathered first. Under shard_map each device computes what it
        has; context_parallel.attention attends across the devices of an axis, each of which has some of the rows

append_kv writes new keys and values to a cache; quantise makes q, k and v of 8 bits and their scales for attention;
explain says how a call would be computed.
"""
# JAX has few types, and mypy runs where it is not installed, too.
# mypy: disable-error-code="import-not-found,no-any-return,no-untyped-call,untyped-decorator"
import functools
import importlib
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import jax

from froghopper._call import Window, cached
from froghopper._jax_arrays import Array, Given, is_traced, varying_alike
from froghopper._jax_problem import (check_derivative, described, fits, in_users_words, kind_of, results_of, saying,
                                     with_names, without_gradient)
from froghopper._later import name_module, no_attribute
from froghopper._values import Align
from froghopper._words import MISSING, again, names_said, too_many
from froghopper._xla import compute, in_explicit_mesh, is_explicit
from froghopper._xla_kind import SCALES, WHOLE_NUMBERS, Options

if TYPE_CHECKING:
    from froghopper import _jax_context_parallel as context_parallel
    from froghopper._jax_append import append_kv
    from froghopper._jax_explain import explain
    from froghopper._jax_quantise import Quantised, Smoothed, quantise

name_module("froghopper.jax.context_parallel", "froghopper._jax_context_parallel")
__all__ = ["Quantised", "Smoothed", "append_kv", "attention", "context_parallel", "explain", "quantise"]


def __dir__() -> list[str]: return sorted(__all__)


Scale: TypeAlias = float | Array | None
ARGUMENTS = ("q", "k", "v", *WHOLE_NUMBERS, "sink", "o", "lse", "alibi_slopes", "max_logit", "gate", *SCALES)


@overload
def attention(q: Array, k: Array, v: Array, *, causal: bool = ..., window: Window | None = ...,
              softcap: float | None = ..., scale: float | None = ..., sink: Array | None = ...,
              cu_seqlens_q: Array | None = ..., cu_seqlens_kv: Array | None = ..., max_seqlen_q: int | None = ...,
              max_seqlen_kv: int | None = ..., seqused_q: Array | None = ..., seqused_kv: Array | None = ...,
              return_lse: Literal[False] = ..., deterministic: bool = ..., align: Align = ..., accumulate: None = ...,
              alibi_slopes: Array | None = ..., attention_chunk: int = ..., invariant: bool = ...,
              max_sms: int = ..., gate: Array | None = ...,
              scale_q: Scale = ..., scale_k: Scale = ..., scale_v: Scale = ..., out_dtype: Any = ...,
              mean_k: Array | None = ..., mean_v: Array | None = ..., block_table: Array | None = ...,
              return_max_logit: Literal[False] = ...) -> Array: ...


@overload
def attention(q: Array, k: Array, v: Array, *, causal: bool = ..., window: Window | None = ...,
              softcap: float | None = ..., scale: float | None = ..., sink: Array | None = ...,
              cu_seqlens_q: Array | None = ..., cu_seqlens_kv: Array | None = ..., max_seqlen_q: int | None = ...,
              max_seqlen_kv: int | None = ..., seqused_q: Array | None = ..., seqused_kv: Array | None = ...,
              return_lse: Literal[True], deterministic: bool = ..., align: Align = ..., accumulate: None = ...,
              alibi_slopes: Array | None = ..., attention_chunk: int = ..., invariant: bool = ...,
              max_sms: int = ..., gate: Array | None = ...,
              scale_q: Scale = ..., scale_k: Scale = ..., scale_v: Scale = ..., out_dtype: Any = ...,
              mean_k: Array | None = ..., mean_v: Array | None = ..., block_table: Array | None = ...,
              return_max_logit: Literal[False] = ...) -> tuple[Array, Array]: ...


@overload
def attention(q: Array, k: Array, v: Array, *, causal: bool = ..., window: Window | None = ...,
              softcap: float | None = ..., scale: float | None = ..., sink: Array | None = ...,
              cu_seqlens_q: Array | None = ..., cu_seqlens_kv: Array | None = ..., max_seqlen_q: int | None = ...,
              max_seqlen_kv: int | None = ..., seqused_q: Array | None = ..., seqused_kv: Array | None = ...,
              return_lse: Literal[False] = ..., deterministic: bool = ..., align: Align = ..., accumulate: None = ...,
              alibi_slopes: Array | None = ..., attention_chunk: int = ..., invariant: bool = ...,
              max_sms: int = ..., gate: Array | None = ...,
              scale_q: Scale = ..., scale_k: Scale = ..., scale_v: Scale = ..., out_dtype: Any = ...,
              mean_k: Array | None = ..., mean_v: Array | None = ..., block_table: Array | None = ...,
              return_max_logit: Literal[True]) -> tuple[Array, Array]: ...


@overload
def attention(q: Array, k: Array, v: Array, *, causal: bool = ..., window: Window | None = ...,
              softcap: float | None = ..., scale: float | None = ..., sink: Array | None = ...,
              cu_seqlens_q: Array | None = ..., cu_seqlens_kv: Array | None = ..., max_seqlen_q: int | None = ...,
              max_seqlen_kv: int | None = ..., seqused_q: Array | None = ..., seqused_kv: Array | None = ...,
              return_lse: Literal[True], deterministic: bool = ..., align: Align = ..., accumulate: None = ...,
              alibi_slopes: Array | None = ..., attention_chunk: int = ..., invariant: bool = ...,
              max_sms: int = ..., gate: Array | None = ...,
              scale_q: Scale = ..., scale_k: Scale = ..., scale_v: Scale = ..., out_dtype: Any = ...,
              mean_k: Array | None = ..., mean_v: Array | None = ..., block_table: Array | None = ...,
              return_max_logit: Literal[True]) -> tuple[Array, Array, Array]: ...


@overload
def attention(q: Array, k: Array, v: Array, *, causal: bool = ..., window: Window | None = ...,
              softcap: float | None = ..., scale: float | None = ..., sink: Array | None = ...,
              cu_seqlens_q: Array | None = ..., cu_seqlens_kv: Array | None = ..., max_seqlen_q: int | None = ...,
              max_seqlen_kv: int | None = ..., seqused_q: Array | None = ..., seqused_kv: Array | None = ...,
              return_lse: bool = ..., deterministic: bool = ..., align: Align = ..., accumulate: tuple[Array, ...],
              alibi_slopes: Array | None = ..., attention_chunk: int = ..., invariant: bool = ...,
              max_sms: int = ..., gate: Array | None = ...,
              scale_q: Scale = ..., scale_k: Scale = ..., scale_v: Scale = ..., out_dtype: Any = ...,
              mean_k: Array | None = ..., mean_v: Array | None = ..., block_table: Array | None = ...,
              return_max_logit: Literal[False] = ...) -> tuple[Array, Array]: ...


@overload
def attention(q: Array, k: Array, v: Array, *, causal: bool = ..., window: Window | None = ...,
              softcap: float | None = ..., scale: float | None = ..., sink: Array | None = ...,
              cu_seqlens_q: Array | None = ..., cu_seqlens_kv: Array | None = ..., max_seqlen_q: int | None = ...,
              max_seqlen_kv: int | None = ..., seqused_q: Array | None = ..., seqused_kv: Array | None = ...,
              return_lse: bool = ..., deterministic: bool = ..., align: Align = ..., accumulate: tuple[Array, ...],
              alibi_slopes: Array | None = ..., attention_chunk: int = ..., invariant: bool = ...,
              max_sms: int = ..., gate: Array | None = ...,
              scale_q: Scale = ..., scale_k: Scale = ..., scale_v: Scale = ..., out_dtype: Any = ...,
              mean_k: Array | None = ..., mean_v: Array | None = ..., block_table: Array | None = ...,
              return_max_logit: Literal[True]) -> tuple[Array, Array, Array]: ...


def attention(q: Array = MISSING, k: Array = MISSING, v: Array = MISSING, *more: Any, causal: bool = False,
              window: Window | None = None, softcap: float | None = None, scale: float | None = None,
              sink: Array | None = None, cu_seqlens_q: Array | None = None, cu_seqlens_kv: Array | None = None,
              max_seqlen_q: int | None = None, max_seqlen_kv: int | None = None, seqused_q: Array | None = None,
              seqused_kv: Array | None = None, return_lse: bool = False, deterministic: bool = False,
              align: Align = "bottom_right", accumulate: tuple[Array, ...] | None = None,
              alibi_slopes: Array | None = None, attention_chunk: int = 0, invariant: bool = False,
              return_max_logit: bool = False, max_sms: int = 0, gate: Array | None = None, scale_q: Scale = None,
              scale_k: Scale = None, scale_v: Scale = None, out_dtype: Any = None, mean_k: Array | None = None,
              mean_v: Array | None = None, block_table: Array | None = None,
              **others: Any) -> Array | tuple[Array, ...]:
    """softmax(scale q k^T + mask) v; with return_lse also the logarithm of the softmax's denominator.

    q              [batch, seq_q, heads_q, dim], packed [total_q, heads_q, dim]; float16, bfloat16, on CPUs also float32
    k, v           [batch, seq_kv, heads_kv, dim], packed [total_kv, heads_kv, dim]; heads_kv divides heads_q, and v may
                   have its own dim
    causal         a query attends to no later key. The diagonal ends at the last query and the last key; with
                   align="top_left" it begins at the first ones
    window         (left, right): keys that a query attends to before and after its own; None or -1 for no bound
    softcap        scores become softcap tanh(score / softcap); None or 0 for none
    scale          of q k^T, from 0 to 2^127; None for 1/sqrt(dim). 0 makes all keys alike, and so does what float32
                   rounds to 0
    sink           [heads_q] float32: one more logit a head, in the denominator alone
    cu_seqlens_*   [batch + 1] int32, rows where each packed sequence begins, and the end; both or none. On a GPU they
                   are not checked
    max_seqlen_*   packed: an upper bound on the longest sequence; None for all rows. A bound near the truth is planned
                   better
    seqused_*      [batch] int32, how many rows of a sequence count. With causal or a window the diagonal ends at the
                   last query and the last key that count; where both sides are padded, give both, or align="top_left"
    return_lse     also the logarithm of the softmax's denominator
    deterministic  gradients are bit-equal from run to run; the forward pass always is
    accumulate     (o, lse) in float32: attention over the keys of earlier calls; what is returned, both whatever
                   return_lse, is that over these keys too, as in ring attention. Begin with o = 0 and lse = -inf, or
                   the sink. Rows that attend to no key do not change. Without sink and derivatives
    alibi_slopes   [heads_q] or [batch, heads_q] float32: query i's score of key j gets -slope |i + keys - rows - j| on
                   top, or -slope |i - j| with align="top_left", after scale and softcap. What is differentiated takes
                   them for constants
    attention_chunk  keys lie in chunks of so many, from the first on; a query attends to the chunk that the diagonal
                   crosses in its row, as far as causal and window let it; 0 for none
    invariant      a row of o and lse has the same bits whatever batch, bounds, max_sms and other queries it is
                   computed with, as prefill or as decoding: docs/1-math.md. Gradients are as without it
    return_max_logit  also [batch, heads_q] float32: the largest score of the rows of a sequence, after scale, softcap
                   and slopes, without sinks and NaN; -inf where no row attends to a key. Without gradients: a
                   loss may have jax.lax.stop_gradient of it. With accumulate, which then is (o, lse, max_logit), it is
                   the larger one of it and what is there
    max_sms        SMs of a GPU, or threads of a CPU, that it may use; 0 for all
    gate           shape and type of o, which is multiplied by 1 / (1 + exp(-gate)) before it is rounded; lse and
                   max_logit are without it. It has a gradient. Without accumulate
    scale_*        q, k and v may be float8_e4m3fn or float8_e5m2, or k and v with q in float16 or bfloat16: what
                   their values are multiplied by: a number, or float32 [], [heads] or [batch, heads]; [batch, blocks,
                   heads, 1] for blocks of 128 rows of each sequence; scale_v also [batch, 1, heads_kv, dim];
                   scale_k and scale_v for each row, shaped as k without its columns (on a GPU with 16-bit q). No
                   gradients
    out_dtype      with 8-bit k and v: the type of o; None for that of q, or bfloat16 with 8-bit q
    block_table    [batch, columns] int32: k and v are a pool, [pages, page_size, heads_kv, dim], and this is the page
                   that holds rows column * page_size and on of a sequence. Columns past its last row that counts may
                   hold anything. seqused_kv says how many rows count, None for all columns; q may be packed, with
                   cu_seqlens_q alone. Without gradients, accumulate and return_max_logit. Only on CPUs is it checked
    mean_*         8-bit k, v: [batch, 1, heads_kv, dim] float32, the mean of each sequence, which was subtracted before
                   it was quantised; both or none

    Everything but arrays is static. Returns o [batch, seq_q, heads_q, dim of v], packed [total_q, ...], in the type of
    q; with return_lse (o, lse), lse [batch, heads_q, seq_q] or [heads_q, total_q] in float32, natural logarithm, with
    return_max_logit (o, max_logit) or (o, lse, max_logit). A row that attends to no key has o = 0 and lse = -inf, or
    the sink. Raises TypeError, ValueError, NotImplementedError while it is traced; what only the values show (lengths
    that do not rise) is a jax.errors.JaxRuntimeError when it runs, with the library's sentence. docs/1-math.md has the
    mathematics and the bounds.
    """
    if more: too_many("attention", more)
    if others:
        with saying(names_said("attention", "jax", others, attention.__kwdefaults__ or {})):
            made: Array | tuple[Array, ...] = again(attention, "jax", locals())
            return made
    options, results, arrays = described(locals())
    options = with_names(options, arrays)
    key = (options, *((name, x.shape, x.dtype) for name, x in arrays.items()))
    cached(_fit, key, lambda: fits(options, arrays))
    with in_users_words():
        found: Array | tuple[Array, ...] = run(options, results, varying_alike(arrays))
    if return_max_logit and is_traced({"max_logit": found[-1]}): found = (*found[:-1], without_gradient(found[-1]))
    return found


_fit: dict[Hashable, bool] = {}  # what was checked already, so that a call that is not traced costs less


def in_order(arrays: Given) -> Given:
    """jit sorts a dict by its names; programs read better in the order of the arguments."""
    return {name: arrays[name] for name in ARGUMENTS if name in arrays}


@functools.partial(jax.jit, static_argnums=(0, 1))
def run(options: Options, results: tuple[str, ...], arrays: Given) -> Any:
    """One program for a problem and the choice of results."""
    function = functools.partial(differentiable, options, results)
    if not any(map(is_explicit, arrays.values())): return function(arrays)
    arrays = in_order(arrays)
    return in_explicit_mesh(kind_of(options, arrays, results), function, arrays)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def differentiable(options: Options, results: tuple[str, ...], arrays: Given) -> Any:
    arrays = in_order(arrays)
    found = compute(kind_of(options, arrays, results), tuple(arrays.values()))
    return found if len(results) > 1 else found[0]


def forward(options: Options, results: tuple[str, ...], arrays: Given) -> Any:
    """What differentiable returns, and what its gradients are computed from."""
    arrays = in_order(arrays)
    check_derivative(options, arrays)
    all_results = results_of(True, "max_logit" in results)
    found = dict(zip(all_results, compute(kind_of(options, arrays, all_results), tuple(arrays.values()))))
    asked = tuple(found[name] for name in results)
    return asked if len(results) > 1 else asked[0], (arrays, found["o"], found["lse"])


def backward(options: Options, results: tuple[str, ...], kept: tuple[Given, Array, Array], grads: Any,
             sums: Given | None = None) -> tuple[dict[str, Array | None]]:
    """The gradient of each array; that of lengths is none. sums: grad_q, grad_k and so on in float32, which become the
    gradients added to them."""
    arrays, o, lse = in_order(kept[0]), *kept[1:]
    of_results = dict(zip(results, grads if len(results) > 1 else (grads,)))
    of_results.pop("max_logit", None)  # without_gradient has refused another one than 0
    wanted = tuple("grad_" + name for name in arrays if name not in (*WHOLE_NUMBERS, "alibi_slopes"))
    given = {**arrays, "o": o, "lse": lse, **{"grad_" + name: x for name, x in of_results.items()}, **(sums or {})}
    found = dict(zip(wanted, compute(kind_of(options, given, wanted), tuple(given.values()))))
    return {name: found.get("grad_" + name) for name in arrays},


differentiable.defvjp(forward, backward)


def __getattr__(name: str) -> Any:
    """What is made of what is above, when it is asked for first."""
    if name == "quantize": name = "quantise"  # as other libraries spell it
    homes = {"context_parallel": "context_parallel", "explain": "explain", "append_kv": "append",
             **dict.fromkeys(("Quantised", "Smoothed", "quantise"), "quantise")}
    if name not in homes: raise no_attribute(__name__, name)
    found: Any = importlib.import_module(f"froghopper._jax_{homes[name]}")
    globals()[name] = found = found if name == "context_parallel" else getattr(found, name)
    return found
