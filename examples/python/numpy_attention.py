# SPDX-License-Identifier: Apache-2.0
"""Attention and its gradients on NumPy arrays, beside the formulas in double precision.

usage: python3 examples/python/numpy_attention.py      on this machine's CPU; needs the package and NumPy
"""
import froghopper
import numpy as np

BATCH, ROWS, HEADS, KEY_HEADS, DIM = 2, 300, 8, 2, 64


def by_formula(q, k, v, causal):
    """softmax(q k^T / sqrt(dim)) v in double precision; every key head serves HEADS / KEY_HEADS query heads."""
    q, k, v = (x.astype(np.float64).swapaxes(1, 2) for x in (q, *(x.repeat(HEADS // KEY_HEADS, 2) for x in (k, v))))
    scores = q @ k.swapaxes(2, 3) / np.sqrt(DIM)
    if causal: scores = np.where(np.tri(ROWS, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights @ v / weights.sum(-1, keepdims=True)).swapaxes(1, 2)


def main():
    numbers = np.random.default_rng(0)
    q, grad_o = (numbers.standard_normal((BATCH, ROWS, HEADS, DIM), np.float32) for _ in range(2))
    k, v = (numbers.standard_normal((BATCH, ROWS, KEY_HEADS, DIM), np.float32) for _ in range(2))

    o, lse = froghopper.attention(q, k, v, causal=True, return_lse=True)
    error = np.abs(o - by_formula(q, k, v, causal=True)).max()
    print(f"o {o.shape}, lse {lse.shape}; largest error against double precision {error:.1e}")
    assert error < 1e-5, error

    # o is linear in v, so a step of v changes the sum of o grad_o by exactly step . grad_v.
    grads = froghopper.attention_backward(grad_o, q, k, v, o, lse, causal=True)
    step = numbers.standard_normal(v.shape, np.float32)
    change = ((by_formula(q, k, v + step, causal=True) - by_formula(q, k, v, causal=True)) * grad_o).sum()
    predicted = (step.astype(np.float64) * grads.v).sum()
    print(f"a step of v changes the sum of o grad_o by {change:.4f}; its gradient says {predicted:.4f}")
    assert abs(change - predicted) < 1e-4 * abs(change), (change, predicted)


if __name__ == "__main__":
    main()
