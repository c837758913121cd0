# SPDX-License-Identifier: Apache-2.0
"""Left padding: sequences in a dense cache that begin at any row of their part of it. cu_seqlens_kv says where, and
seqused_kv how many keys there are; what is before, between and behind them is NaN here."""
import numpy as np
import pytest

import froghopper


BATCH, CAPACITY, ROWS, HEADS, HEADS_KV, DIM = 4, 50, 3, 4, 2, 16
LEFTPAD, LENGTHS = np.array([7, 0, 49, 20]), np.array([50, 12, 50, 20])  # of the last one nothing is left


def case():
    """q, the cache, and o and lse of each sequence by itself."""
    random = np.random.default_rng(2)
    q = random.standard_normal((BATCH, ROWS, HEADS, DIM)).astype(np.float32)
    k, v = (np.full((BATCH, CAPACITY, HEADS_KV, DIM), np.nan, np.float32) for _ in "kv")
    alone = []
    for b, (first, end) in enumerate(zip(LEFTPAD, LENGTHS)):
        for x in (k, v): x[b, first:end] = random.standard_normal((end - first, HEADS_KV, DIM))
        alone.append(froghopper.attention(q[b:b + 1], k[b:b + 1, first:end], v[b:b + 1, first:end], causal=True,
                                          return_lse=True))
    return q, k, v, [np.concatenate(x) for x in zip(*alone)]


def lengths():
    begins = np.append(np.arange(BATCH) * CAPACITY + LEFTPAD, BATCH * CAPACITY).astype(np.int32)
    return dict(cu_seqlens_q=np.arange(BATCH + 1, dtype=np.int32) * ROWS, cu_seqlens_kv=begins,
                seqused_kv=(LENGTHS - LEFTPAD).astype(np.int32))


def check(o, lse, wanted):
    np.testing.assert_allclose(o.reshape(BATCH, ROWS, HEADS, DIM), wanted[0], atol=1e-6)
    np.testing.assert_allclose(lse.reshape(HEADS, BATCH, ROWS).swapaxes(0, 1), wanted[1], atol=1e-5)


def test_of_numpy():
    q, k, v, wanted = case()
    check(*froghopper.attention(*(x.reshape(-1, *x.shape[2:]) for x in (q, k, v)), causal=True, return_lse=True,
                                **lengths()), wanted)


def test_what_is_wrong_is_said():
    torch = pytest.importorskip("torch", reason="froghopper.torch needs torch, which is not installed")
    from froghopper.torch import attention
    tensors = [torch.from_numpy(np.nan_to_num(x)).flatten(0, 1) for x in case()[:3]]
    bounds = dict(max_seqlen_q=ROWS, max_seqlen_kv=CAPACITY)
    for name, at, value, says in (
            ("cu_seqlens_kv", 0, -1, "cu_seqlens_kv must begin with 0 or more, but begins with -1"),
            ("seqused_kv", 1, 51, r"max_seqlen_kv must be at least 51, which seqused_kv\[1\] is, but is 50"),
            ("cu_seqlens_q", 0, 1, "cu_seqlens_q must begin with 0")):
        words = {key: torch.from_numpy(x.copy()) for key, x in lengths().items()}
        words[name][at] = value
        with pytest.raises(ValueError, match=says): attention(*tensors, **words, **bounds)
    words = {key: torch.from_numpy(x) for key, x in lengths().items() if key != "seqused_kv"}
    with pytest.raises(ValueError, match="cu_seqlens_kv must begin with 0, but begins with 7"):
        attention(*tensors, **words, max_seqlen_q=ROWS, max_seqlen_kv=2 * CAPACITY)


def test_of_torch():
    torch = pytest.importorskip("torch", reason="froghopper.torch needs torch, which is not installed")
    from froghopper.torch import attention
    q, k, v, wanted = case()
    tensors = [torch.from_numpy(x).flatten(0, 1) for x in (q, k, v)]
    words = {name: torch.from_numpy(x) for name, x in lengths().items()}
    for bounds in ({}, dict(max_seqlen_q=ROWS, max_seqlen_kv=CAPACITY)):
        o, lse = attention(*tensors, causal=True, return_lse=True, **words, **bounds)
        check(o.numpy(), lse.numpy(), wanted)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("new", [False, True])
def test_flash_attn_with_kvcache_writes_no_table(monkeypatch, new, packed):
    """Of a dense cache, also where results go to a tensor of the caller or rows are written first."""
    torch = pytest.importorskip("torch", reason="froghopper.torch needs torch, which is not installed")
    from froghopper import _kv_cache
    from froghopper.flash_attn_interface import flash_attn_with_kvcache
    monkeypatch.setattr(_kv_cache, "from_left", None)
    q, k, v, wanted = case()
    tensor = lambda x: torch.from_numpy(np.asarray(x).copy())
    q, k, v, used, left = map(tensor, (q, k, v, LENGTHS.astype(np.int32), LEFTPAD.astype(np.int32)))
    given = dict(cu_seqlens_q=torch.arange(BATCH + 1, dtype=torch.int32) * ROWS, max_seqlen_q=ROWS) if packed else {}
    if packed: q = q.flatten(0, 1)
    if new:
        given |= {name: torch.stack([x[b, n - 1:n] for b, n in enumerate(LENGTHS)]).nan_to_num() for name, x in
                  (("k", k), ("v", v))}
        used -= 1
    out = torch.full_like(q, 7)
    found, lse, *_ = flash_attn_with_kvcache(q, k, v, cache_seqlens=used, cache_leftpad=left, causal=True,
                                             return_softmax_lse=True, out=out, **given)
    assert found.data_ptr() == out.data_ptr() and found.shape == q.shape and lse.is_contiguous()
    check(out.numpy(), lse.numpy() if packed else lse.transpose(0, 1).flatten(1).numpy(), wanted)
