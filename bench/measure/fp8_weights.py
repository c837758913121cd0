# SPDX-License-Identifier: Apache-2.0
"""The simulation of bench/errors.py weights: numpy alone, no library and no GPU."""
import ml_dtypes
import numpy as np

LARGEST, TILE_KEYS, WARP_ROWS = 448.0, 128, 16


def run(a, refuse):
    dims = [int(dim) for dim in a.dims.split(",")]
    if a.keys <= 0 or a.keys % TILE_KEYS: refuse(f"--keys is {a.keys}; a tile has {TILE_KEYS}, take a multiple of it")
    if a.rows <= 0 or a.rows % WARP_ROWS: refuse(f"--rows is {a.rows}; a warp has {WARP_ROWS}, take a multiple of it")
    if any(dim <= 0 or dim & (dim - 1) for dim in dims):
        refuse(f"--dims is {a.dims}; the rotation is for powers of two, such as 64,128")
    begins = [tuple(map(float, text.split(","))) for text in a.begin or ["16,16", "16,64", "64,64"]]
    rng = np.random.default_rng(a.seed)
    for dim in dims:
        heads = [one_head(rng, a, dim, begins) for _ in range(a.heads)]
        exact, *others = np.mean([squares for squares, _ in heads], axis=0)
        moves = np.mean([share for _, share in heads], axis=0)
        cells = [f"{first:g}, {moved:g}: {np.sqrt(square / exact):.3f} ({100 * share:.1f})"
                 for (first, moved), square, share in zip(begins, others, moves)]
        print(f"{a.data}, {a.keys} keys, {dim} columns, error {np.sqrt(exact):.2e}; " + "; ".join(cells), flush=True)


def one_head(rng, a, dim, begins):
    """Mean squares of the error: with exact weights, then of every form; and the share of tiles that each moves."""
    q, k, v = (draw(rng, a.data, (rows, dim)) for rows in (a.rows, a.keys, a.keys))
    true = attention(weights(scores_of(q, k)), v)
    if a.data == "outliers":
        rotation = np.where(rng.random(dim) < 0.5, -1.0, 1.0)[:, None] * hadamard(dim)
        q, k = q @ rotation, k @ rotation
    q, k, v = map(quantised, (q, k, v))
    scores = scores_of(q, k)
    squares, shares = [mean_square(attention(weights(scores), v) - true)], []
    for first, moved in begins:
        o, share = in_tiles(scores, v, first, moved)
        squares.append(mean_square(o - true))
        shares.append(share)
    return squares, shares


def in_tiles(scores, v, first, moved):
    reference, o, moves = None, 0.0, []
    for begin in range(scores.shape[1] - TILE_KEYS, -1, -TILE_KEYS):
        tile = scores[:, begin:begin + TILE_KEYS]
        most = tile.max(1, keepdims=True)
        if reference is None: reference = most - np.log2(first)
        else:
            outgrown = most - reference > np.log2(LARGEST)
            lower = np.where(outgrown, most - np.log2(moved), reference)
            o, reference = o * np.exp2(reference - lower), lower
            moves.append(outgrown.reshape(-1, WARP_ROWS).any(1).mean())
        o = o + rounded(np.exp2(tile - reference)) @ v[begin:begin + TILE_KEYS]
    of_unrounded = np.exp2(scores - reference).sum(1, keepdims=True)
    return o / of_unrounded, np.mean(moves) if moves else 0.0


def draw(rng, data, shape):
    x = rng.standard_normal(shape)
    return x if data == "normal" else x + 10 * rng.standard_normal(shape) * (rng.random(shape) < 0.001)


def hadamard(dim):
    matrix = np.ones((1, 1))
    while len(matrix) < dim: matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.sqrt(dim)


def scores_of(q, k): return q @ k.T / np.sqrt(q.shape[1]) * np.log2(np.e)  # in base 2
def weights(scores): return np.exp2(scores - scores.max(1, keepdims=True))
def attention(w, v): return w @ v / w.sum(1, keepdims=True)
def mean_square(x): return (x * x).mean()
def rounded(x): return np.clip(x, -LARGEST, LARGEST).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)


def quantised(x):
    scale = np.abs(x).max() / LARGEST
    return rounded(x / scale) * scale
