# SPDX-License-Identifier: Apache-2.0
"""froghopper.append_kv on NumPy arrays beside loops in float64: where rows go, norm, rotation, 8-bit caches; every
other byte stays as it was, and what is wrong is refused before anything is written."""
import numpy as np
import pytest

import froghopper
from froghopper import append_kv

PAGES, PAGE, HEADS, DIM = 9, 16, 2, 64


def drawn(*shape, seed=0, dtype=np.float16): return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def caches(layout, dtype=np.float16):
    """k_cache and v_cache, and all of their memory, which is NaN."""
    if layout == "k_beside_v": memory = np.full((PAGES, PAGE, HEADS, 2 * DIM), np.nan, dtype)
    elif layout == "heads_first": memory = np.full((2, PAGES, HEADS, PAGE, DIM), np.nan, dtype)
    else: memory = np.full((2, PAGES, PAGE, HEADS, DIM), np.nan, dtype)
    if layout == "k_beside_v": return memory[..., :DIM], memory[..., DIM:], memory
    return *(x.swapaxes(1, 2) if layout == "heads_first" else x for x in memory), memory


def rotated(x, cos, sin, interleaved):
    """x [rows, heads, dim], cos and sin [rows, rotary_dim / 2]."""
    x, half = x.astype(np.float64), cos.shape[1]
    first, second = (np.arange(half) * 2, np.arange(half) * 2 + 1) if interleaved else (
        np.arange(half), np.arange(half) + half)
    turned, cos, sin = x.copy(), cos.astype(np.float64)[:, None], sin.astype(np.float64)[:, None]
    turned[..., first] = x[..., first] * cos - x[..., second] * sin
    turned[..., second] = x[..., second] * cos + x[..., first] * sin
    return turned


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("layout", ["rows_first", "heads_first", "k_beside_v"])
def test_slots_norm_rotation_and_q(layout, interleaved):
    tokens = 23
    q, k, v = drawn(tokens, 4, DIM), drawn(tokens, HEADS, DIM, seed=1), drawn(tokens, HEADS, DIM, seed=2)
    k_cache, v_cache, memory = caches(layout)
    slots = np.random.default_rng(1).permutation(PAGES * PAGE)[:tokens]
    slots[[5, -1]] = -1, -7
    positions = np.random.default_rng(2).integers(0, 40, tokens)
    cos, sin = np.split(drawn(40, 32, seed=5, dtype=np.float32), 2, axis=1)  # beside each other
    weights = [1 + drawn(DIM, seed=at) / 4 for at in (7, 8)]
    out = append_kv(k, v, k_cache, v_cache, q=q, slot_mapping=slots, positions=positions, rotary_cos=cos,
                    rotary_sin=sin, rotary_interleaved=interleaved, norm_q=weights[0], norm_k=weights[1],
                    norm_epsilon=1e-5)

    def exact(x, weight):
        x = x.astype(np.float64)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight
        return rotated(x, cos[positions], sin[positions], interleaved)
    counts = slots >= 0
    at = slots[counts] // PAGE, slots[counts] % PAGE
    np.testing.assert_allclose(out, exact(q, weights[0]), rtol=2**-11, atol=1e-5)
    np.testing.assert_allclose(k_cache[at], exact(k, weights[1])[counts], rtol=2**-11, atol=1e-5)
    assert np.array_equal(v_cache[at], v[counts])
    assert (~np.isnan(memory)).sum() == counts.sum() * 2 * HEADS * DIM


@pytest.mark.parametrize("how", ["dense", "pages", "packed"])
def test_places_by_lengths(how):
    before, counts = [3, 0, 20 if how != "dense" else 12], [2, 4, 1]
    k_cache, v_cache, memory = caches("rows_first", np.float32)
    table = [[4, 0, 2147480000], [7, 8, -5], [1, 3, 2147480000]]
    options = {"block_table": table}
    if how == "dense": k_cache, v_cache, options = k_cache[:3], v_cache[:3], {}
    if how == "packed":
        k, v = (drawn(9, HEADS, DIM, seed=at, dtype=np.float32) for at in (1, 2))  # two rows of no sequence
        options["cu_seqlens"] = [0, 2, 6, 7]
        rows = [[x[:2], x[2:6], x[6:7]] for x in (k, v)]
    else:
        k, v = (drawn(3, 4, HEADS, DIM, seed=at, dtype=np.float32) for at in (1, 2))
        options["seqused"] = counts
        rows = [[x[b, :count] for b, count in enumerate(counts)] for x in (k, v)]
    assert append_kv(k, v, k_cache, v_cache, seqused_kv=before, **options) is None
    for cache, x in zip((k_cache, v_cache), rows):
        for b, first in enumerate(before):
            for i, row in enumerate(x[b]):
                page = b if how == "dense" else table[b][(first + i) // PAGE]
                assert np.array_equal(cache[page, (first + i) % PAGE], row)
    assert (~np.isnan(memory)).sum() == sum(counts) * 2 * HEADS * DIM


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("bits", [False, True])
def test_float8(bits, own):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="float8 needs ml_dtypes, which is not installed")
    k, v = (4 * drawn(17, HEADS, DIM, seed=at) for at in (1, 2))
    held = [np.full((PAGES, PAGE, HEADS, DIM), 0xff, np.uint8) for _ in range(2)]
    given = held if bits else [x.view(ml_dtypes.float8_e4m3fn) for x in held]
    scales = [np.zeros((PAGES, PAGE, HEADS), np.float32) for _ in range(2)] if own else [[0.05, 0.5], 0.25]
    slots = np.arange(17) * 3
    append_kv(k, v, *given, slot_mapping=slots, scale_k=scales[0], scale_v=scales[1],
              dtype="float8_e4m3fn" if bits else None)
    for x, cache, scale in zip((k, v), held, scales):
        if own:
            found = scale.reshape(-1, HEADS)
            np.testing.assert_allclose(found[slots], np.abs(x).max(-1).astype(np.float32) / 448, rtol=1e-6)
            assert (found != 0).sum() == 17 * HEADS
            scale = found[slots][..., None]
        else: scale = np.broadcast_to(np.float32(scale), HEADS)[:, None]
        wanted = np.clip(x.astype(np.float32) / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        rows = cache.reshape(-1, HEADS, DIM)
        assert np.array_equal(rows[slots], wanted)
        assert (np.delete(rows, slots, axis=0) == 0xff).all()


def test_q_alone_in_place():
    q, cos, sin = drawn(5, 4, DIM), drawn(9, 8, seed=1), drawn(9, 8, seed=2)
    wanted = rotated(q, cos[[0, 2, 4, 6, 8]], sin[[0, 2, 4, 6, 8]], False)
    assert append_kv(None, None, None, None, q=q, q_out=q, positions=[0, 2, 4, 6, 8], rotary_cos=cos,
                     rotary_sin=sin) is q
    np.testing.assert_allclose(q, wanted, rtol=2**-11, atol=2**-11)


def test_q_out_at_the_address_of_q():
    q = drawn(4, 4, DIM)
    with pytest.raises(ValueError, match="^q_out must have the strides of q .* Give q_out=q, which is written in"):
        append_kv(None, None, None, None, q=q, q_out=q.swapaxes(0, 1), positions=[0, 2, 4, 6],
                  rotary_cos=drawn(9, 8), rotary_sin=drawn(9, 8))


def test_messages():
    k, v = drawn(3, 4, HEADS, DIM), drawn(3, 4, HEADS, DIM, seed=1)
    k_cache, v_cache, memory = caches("rows_first")
    flat = {"k": k[0], "v": v[0], "block_table": None, "seqused_kv": None, "slot_mapping": [0, 1, 2, 3]}
    read_only = k_cache.copy()
    read_only.flags.writeable = False
    for changed, message in (
            ({"k": None, "v": None, "k_cache": None, "v_cache": None}, "q, k or v must be given, but all are None"),
            ({"k": k.astype(int)}, "k must be one of float16, .*, but is int64. Use k.astype"),
            ({"v": v.astype(np.float32)}, "v must be of the type of the others, float16, but is float32"),
            ({"v": v[:2]}, r"v must be .* with the rows of the others, \[3, 4\], but has the shape \[2, 4, 2, 64\]"),
            ({"v": v[..., :1, :], "v_cache": v_cache[..., :1, :]}, "v must have the heads of k, 2, but has 1"),
            ({"k_cache": None}, "k and k_cache must be given together, but one is None"),
            ({"v_cache": v_cache[:5]}, r"v_cache must be .*, but has the shape \[5, 16, 2, 64\]"),
            ({"k_cache": read_only}, "k_cache must be writeable"),
            ({"k_cache": k_cache.astype(np.float32), "v_cache": v_cache.astype(np.float32)},
             "k_cache and v_cache must be float16, as k is, or float8, but are float32"),
            ({"block_table": [[1.5]] * 3}, "block_table must be whole numbers, but is float64"),
            ({"block_table": [[2**31]] * 3}, "block_table must fit int32, but holds 2147483648"),
            ({"block_table": [[1], [2]]}, r"block_table must be .* with batch 3, but has the shape \[2, 1\]"),
            ({"block_table": [[0], [1], [9]]},
             r"block_table\[2, 0\] must name a page of the pool, 0 to 8, but is 9"),
            ({"block_table": None}, "k_cache must have a row for each sequence of k, 3 in all, but has 9"),
            ({"seqused_kv": [1, 2]}, "seqused_kv must have 3 numbers, one for each sequence, but has 2"),
            ({"seqused_kv": [0, 0, 13]}, r"seqused_kv\[2\] must leave room .* for 4 more rows, but is 13"),
            ({"slot_mapping": [1] * 12}, "block_table must be None with slot_mapping"),
            (flat | {"slot_mapping": [1]}, "slot_mapping must have 4 numbers, one for each row, but has 1"),
            (flat | {"slot_mapping": [1, 2, 3, 144]}, "144"),
            (flat | {"slot_mapping": None}, r"k must be .*, but has the shape \[4, 2, 64\]"),
            ({"max_seqlen": 4}, "max_seqlen must be None without cu_seqlens"),
            ({"positions": [0] * 12}, "rotary_cos and rotary_sin must be given together, and with positions"),
            ({"norm_q": drawn(DIM), "norm_epsilon": 0.0}, "norm_q must be None without q"),
            ({"norm_k": drawn(8), "norm_epsilon": 0.0}, r"norm_k must have the shape \[64\], but has \[8\]"),
            ({"scale_k": 1.0}, "scale_k must be None with k_cache that is not float8"),
            ({"dtype": "float8_e4m3fn"}, "dtype must be None where k_cache is float16, .*, but is float8_e4m3fn."),
            (dict.fromkeys(("k", "v", "k_cache", "v_cache", "block_table", "seqused_kv")) | {
                "q": k, "norm_epsilon": 0.1, "dtype": "e5m2"}, "dtype must be None without k_cache and v_cache"),
            ({"q_out": drawn(2)}, "q must be given with q_out, but is None")):
        call = dict(k=k, v=v, k_cache=k_cache, v_cache=v_cache, block_table=[[4], [0], [7]], seqused_kv=[3, 0, 2])
        with pytest.raises((TypeError, ValueError, NotImplementedError), match=message): append_kv(**(call | changed))
    assert np.isnan(memory).all() and "append_kv" in dir(froghopper)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_cache_with_heads_before_rows_is_recognised(framework):
    of = pytest.importorskip("torch") if framework == "torch" else np
    call = pytest.importorskip("froghopper.torch").append_kv if framework == "torch" else append_kv
    k, cache, used = of.ones((2, 1, 2, 32)), of.zeros((2, 2, 64, 32)), of.zeros(2, dtype=of.int32)
    if framework == "numpy": k, cache = k.astype("float32"), cache.astype("float32")
    with pytest.raises(ValueError, match=r"Use k_cache.swapaxes\(1, 2\), a view, if it has heads before rows"):
        call(k, k, cache, of.zeros_like(cache), seqused_kv=used)
    call(k, k, cache.swapaxes(1, 2), of.zeros_like(cache).swapaxes(1, 2), seqused_kv=used)
    assert (cache[:, :, 0] == 1).all() and (cache[:, :, 1:] == 0).all()
