# SPDX-License-Identifier: Apache-2.0
"""froghopper.quantise of NumPy arrays: what it writes beside ml_dtypes' own rounding, what attention makes of it."""
import sys

import numpy as np
import pytest

import froghopper

LARGEST = {"float8_e4m3fn": 448, "float8_e5m2": 57344}


def draw(*shape): return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def by_rows(scale, rows): return np.repeat(scale, 128, 1)[:, :rows]


@pytest.mark.parametrize("dtype", LARGEST)
def test_numbers_are_rounded_by_blocks(dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="arrays of 8-bit numbers need ml_dtypes")
    q, k, v = draw(2, 200, 4, 64), draw(2, 300, 2, 64), draw(2, 300, 2, 48)
    found = froghopper.quantise(q, k, v, dtype=dtype, rotate=False)
    assert found.scale_k.shape == (2, 3, 2, 1) and found.q.dtype == getattr(ml_dtypes, dtype)
    for x, small, scale in ((q, found.q, found.scale_q), (v, found.v, found.scale_v)):
        np.testing.assert_allclose(scale[:, 0, :, 0], np.abs(x[:, :128]).max((1, 3)) / LARGEST[dtype], rtol=1e-6)
        expected = (x / by_rows(scale, x.shape[1])).astype(small.dtype)
        np.testing.assert_array_equal(small.view(np.uint8), expected.view(np.uint8))


def test_one_call_quantises_and_attends_also_without_ml_dtypes(monkeypatch):
    q, k, v = draw(2, 150, 4, 64), draw(2, 300, 2, 64), draw(2, 300, 2, 64)
    exact = froghopper.attention(q, k, v, causal=True)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    found = froghopper.quantise(q, k, v, rotate_seed=5)
    assert found.k.dtype == np.uint8
    o = froghopper.attention(**found._asdict(), dtype="float8_e4m3fn", out_dtype=np.float32, causal=True)
    assert np.square(o - exact).mean() < 0.06**2 * np.square(exact).mean()


def test_smoothing_takes_means_out_and_attention_adds_them():
    q, k, v = draw(2, 150, 4, 64), draw(2, 300, 2, 64) + 8 * draw(64), draw(2, 300, 2, 64) + 4
    exact, words = froghopper.attention(q, k, v), dict(dtype="float8_e4m3fn", out_dtype=np.float32)
    errors = [np.square(froghopper.attention(**froghopper.quantise(q, k, v, smooth=smooth)._asdict(), **words) -
                        exact).mean() for smooth in (False, True)]
    assert errors[1] < 0.25 * errors[0]
    found = froghopper.quantise(q, k, v, smooth=True)
    assert isinstance(found, froghopper.Smoothed)
    np.testing.assert_allclose(found.mean_v[:, 0], v.mean(1), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="mean_k and mean_v must .*, but mean_k is None"):
        froghopper.attention(**found._replace(mean_k=None)._asdict(), **words)


def test_packed_sequences_have_blocks_of_their_own():
    q, k, v = draw(400, 2, 64), draw(400, 2, 64), draw(400, 2, 64)
    found = froghopper.quantise(q, k, v, cu_seqlens_q=[0, 130, 400], cu_seqlens_kv=[0, 130, 400])
    alone = froghopper.quantise(q[None, 130:], k[None, 130:], v[None, 130:])
    assert found.scale_q.shape == (2, 3, 2, 1)
    np.testing.assert_array_equal(found.k[130:].view(np.uint8), alone.k[0].view(np.uint8))
    np.testing.assert_array_equal(found.scale_k[1], alone.scale_k[0])


@pytest.mark.parametrize("change, message", [
    (dict(dtype="float16"), "dtype must .*, but is float16"),
    (dict(rotate_seed=2**32), "rotate_seed must .*, but is 4294967296"),
    (dict(scale_rows=64), "scale_rows must be 128, or 0 for all rows, but is 64"),
    (dict(cu_seqlens_q=[0, 10]), "cu_seqlens_q and cu_seqlens_kv must .*, but one is None"),
    (dict(v=draw(1, 10, 2, 64).astype(np.float16)), "v must .*, but is float16"),
    (dict(k=draw(1, 10, 3, 64)), "heads"),
])
def test_what_is_wrong_is_named(change, message):
    x = draw(1, 10, 2, 64)
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=message):
        froghopper.quantise(**(dict(q=x, k=x, v=x) | change))


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("ends_q, ends_kv", [([0, 0, 0], [0, 3, 7]), ([0, 3, 7], [0, 0, 0]), ([0, 0], [0, 0]),
                                             ([0], [0])])
def test_sequences_without_rows(ends_q, ends_kv, smooth):
    """All of one side may be empty, with rows of no sequence behind them."""
    x, batch = draw(9, 2, 16), len(ends_q) - 1
    found = froghopper.quantise(x, x, x, cu_seqlens_q=ends_q, cu_seqlens_kv=ends_kv, smooth=smooth)
    assert found.scale_q.shape == (batch, min(ends_q[-1], 1), 2, 1)
    assert found.scale_k.shape == found.scale_v.shape == (batch, min(ends_kv[-1], 1), 2, 1)
    if not ends_kv[-1] or smooth: return
    alone = froghopper.quantise(x[None, :3], x[None, :3], x[None, :3])
    np.testing.assert_array_equal(found.k[:3].view(np.uint8), alone.k[0].view(np.uint8))
    np.testing.assert_array_equal(found.scale_v[0], alone.scale_v[0])


def test_the_one_scale_of_all_rows_is_1_where_there_are_none():
    some, none = draw(2, 4, 2, 16), draw(2, 0, 2, 16)
    for q, kv in ((none, some), (some, none), (none, none)):
        found = froghopper.quantise(q, kv, kv, scale_rows=0)
        assert found.scale_q.shape == found.scale_k.shape == found.scale_v.shape == (2, 1, 2, 1)
        for x, scale in ((q, found.scale_q), (kv, found.scale_k), (kv, found.scale_v)):
            if not x.size: np.testing.assert_array_equal(scale, 1)
