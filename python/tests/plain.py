# SPDX-License-Identifier: Apache-2.0
"""Attention and its gradients in fp64 by the formulas of docs/1-math.md, one sequence and head at a time, and how far a
right answer may be from them.

A result is a sum of products; size is the sum of their absolute values. Weights or ds, the other factor and the result
are each rounded to the storage type at most once, so an error is at most 3 u size, u being the largest relative error
of such a rounding: 2^-11, 2^-8 or 2^-24. (A factor below the type's smallest normal number counts as that number.)
Everything else is fp32: weights are exp(s - lse), known to (8 + 8 softcap + dim) (1 + L) 2^-24 with L the largest |s|
or |lse|, and sums of n numbers to n 2^-24 of their size. This bounds every single element; how errors are spread is
judged by check/compare.cpp, which has far tighter bounds, on the same library.
"""
import dataclasses
import itertools

import numpy as np

U32 = 2.0 ** -24
ROUNDOFF = {"float16": 2.0 ** -11, "bfloat16": 2.0 ** -8, "float32": U32}
NORMAL = {"float16": 2.0 ** -14, "bfloat16": 2.0 ** -126, "float32": 2.0 ** -126}


@dataclasses.dataclass
class Sequence:
    """Rows of one sequence in arrays [batch, seq, heads, dim], those that count. Packed arrays have a batch of 1."""
    batch: int
    q: slice
    kv: slice


@dataclasses.dataclass
class Options:
    causal: bool = False
    window: tuple = (None, None)
    align: str = "bottom_right"
    softcap: float = 0.0
    scale: float = None
    sink: np.ndarray = None
    alibi_slopes: np.ndarray = None  # [heads]
    attention_chunk: int = 0


def distance(rows, keys, options):
    """[rows, keys], from the key that a row is level with."""
    level = np.arange(rows)[:, None] + (keys - rows if options.align == "bottom_right" else 0)
    return level - np.arange(keys)[None, :]


def visible(rows, keys, options):
    """[rows, keys], True where the key is seen."""
    left, right = (None if bound in (None, -1) else bound for bound in options.window or (None, None))
    if options.causal: right = 0
    level = np.arange(rows)[:, None] + (keys - rows if options.align == "bottom_right" else 0)
    key, seen = np.arange(keys)[None, :], np.ones((rows, keys), bool)
    if left is not None: seen &= key >= level - left
    if right is not None: seen &= key <= level + right
    if options.attention_chunk: seen &= key // options.attention_chunk == level // options.attention_chunk
    return seen


def weights_of(q, k, head, options):
    """Of one sequence and head: (weights, lse, slope of the softcap, largest |score|)."""
    scale = 1 / np.sqrt(q.shape[-1]) if options.scale is None else options.scale
    s, slope = scale * (q @ k.T), 1.0
    if options.softcap:
        bent = np.tanh(s / options.softcap)
        s, slope = options.softcap * bent, 1 - bent ** 2
    if options.alibi_slopes is not None: s = s - float(options.alibi_slopes[head]) * np.abs(distance(*s.shape, options))
    seen = visible(*s.shape, options)
    largest = np.abs(s[seen]).max(initial=0)
    s = np.where(seen, s, -np.inf)
    sink = -np.inf if options.sink is None else float(options.sink[head])
    with np.errstate(divide="ignore"):
        top = np.maximum(np.maximum(s.max(axis=1, initial=-np.inf), sink), -1e300)
        lse = top + np.log(np.exp(s - top[:, None]).sum(axis=1) + np.exp(sink - top))
    lse = np.where(lse < -1e299, -np.inf, lse)
    weights = np.where(seen, np.exp(s - np.where(np.isinf(lse), 0, lse)[:, None]), 0)
    return weights, lse, slope, largest


def heads_of(sequences, q, k):
    group = q.shape[2] // k.shape[2]
    for at, head in itertools.product(sequences, range(q.shape[2])):
        yield head, (at.batch, at.q, head), (at.batch, at.kv, head // group)


def fp32_error(q, k, softcap, largest):
    """Of a weight or a sum in fp32, relative to the size."""
    return ((8 + 8 * softcap + q.shape[-1]) * (1 + largest) + q.shape[1] + k.shape[1]) * U32


def forward(q, k, v, sequences, dtype, options):
    """{"o": (exact, bound), "lse": ...}; q, k, v are fp64 and [batch, seq, heads, dim], lse [batch, heads, seq]. Rows
    of no sequence have o = 0 and lse = -inf."""
    o, size = (np.zeros((*q.shape[:3], v.shape[3])) for _ in range(2))
    lse, largest = np.full((q.shape[0], q.shape[2], q.shape[1]), -np.inf), 0
    for head, at_q, at_kv in heads_of(sequences, q, k):
        weights, log, _, high = weights_of(q[at_q], k[at_kv], head, options)
        o[at_q], size[at_q] = weights @ v[at_kv], np.maximum(weights, NORMAL[dtype] * (weights > 0)) @ np.abs(v[at_kv])
        lse[at_q[0], head, at_q[1]] = log
        largest = max(largest, high, np.abs(log[np.isfinite(log)]).max(initial=0))
    known = fp32_error(q, k, options.softcap, largest)
    return {"o": (o, (3 * ROUNDOFF[dtype] + known) * size), "lse": (lse, np.where(np.isinf(lse), 0, known))}


def backward(q, k, v, o, lse, grad_o, grad_lse, sequences, dtype, options):
    """{"q": (exact, bound), "k": ..., "v": ..., "sink": ...}; all fp64, o and lse the exact ones. The library is given
    o and lse as they are rounded, which changes delta = o . grad_o by a rounding of each product."""
    exact = {name: np.zeros(x.shape) for name, x in (("q", q), ("k", k), ("v", v), ("sink", np.zeros(q.shape[2])))}
    size = {name: np.zeros(x.shape) for name, x in exact.items()}
    tiny, largest = NORMAL[dtype], 0
    scale = 1 / np.sqrt(q.shape[-1]) if options.scale is None else options.scale
    for head, at_q, at_kv in heads_of(sequences, q, k):
        p, log, slope, high = weights_of(q[at_q], k[at_kv], head, options)
        row_grad = grad_lse[at_q[0], head, at_q[1]]
        delta = (o[at_q] * grad_o[at_q]).sum(axis=1) - row_grad
        ds = p * (grad_o[at_q] @ v[at_kv].T - delta[:, None]) * slope * scale
        added = np.abs(o[at_q] * grad_o[at_q]).sum(axis=1) + np.abs(row_grad)
        normal = tiny * (p > 0)
        ds_size = np.maximum(p * (np.abs(grad_o[at_q]) @ np.abs(v[at_kv]).T + added[:, None]) * scale, normal)
        for name, at, product, products in (
                ("q", at_q, ds @ k[at_kv], ds_size @ np.abs(k[at_kv])),
                ("k", at_kv, ds.T @ q[at_q], ds_size.T @ np.abs(q[at_q])),
                ("v", at_kv, p.T @ grad_o[at_q], np.maximum(p, normal).T @ np.abs(grad_o[at_q]))):
            exact[name][at] += product
            size[name][at] += products
        if options.sink is not None:
            of_sink = np.exp(float(options.sink[head]) - log)
            exact["sink"][head] -= (of_sink * delta).sum()
            size["sink"][head] += (of_sink * added).sum()
        largest = max(largest, high, np.abs(log[np.isfinite(log)]).max(initial=0))
    known = fp32_error(q, k, options.softcap, largest)
    return {name: (exact[name], (3 * ROUNDOFF[dtype] + known) * size[name]) for name in exact}


def excess(found, exact, bound):
    """What is wrong, in words, or ""; written so that a NaN is an excess. Where the bound is 0 the answer is exact."""
    found = np.asarray(found, np.float64)
    with np.errstate(invalid="ignore"): off = np.where(found == exact, 0, np.abs(found - exact))
    wrong = ~(off <= bound)
    if not wrong.any(): return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{wrong.sum()} of {wrong.size} are off, the first at {at}: {found[at]}, exact {exact[at]} +- {bound[at]}"
