# SPDX-License-Identifier: Apache-2.0
"""What options of attention on NumPy arrays mean at the edges of float32, and what messages and docstrings advise."""
import numpy as np
import pytest
from test_numpy import CASES, drawn

import froghopper


def test_scales_and_caps_that_float32_rounds():
    """What is given is used, or refused: it never becomes the default."""
    q, k, v, _ = CASES["full"].arrays("float32")
    uniform = np.repeat(v.mean(1, keepdims=True), 2, axis=2)
    for scale in (0.0, -0.0, 0, 1e-50, np.float32(0), 1e-44):
        found = froghopper.attention(q, k, v, scale=scale)
        np.testing.assert_allclose(found, np.broadcast_to(uniform, q.shape), atol=1e-6)
    assert not np.allclose(froghopper.attention(q, k, v), uniform, atol=1e-2)
    assert np.array_equal(froghopper.attention(q, k, v, softcap=None), froghopper.attention(q, k, v, softcap=0))
    for scale in (-1.0, 2.0**128, 1e39, -1e-50, float("nan")):
        with pytest.raises(froghopper.InvalidProblem, match="scale must be from 0 to 2.127, but is"):
            froghopper.attention(q, k, v, scale=scale)
    turned = froghopper.attention(-q, k, v, scale=1.0)  # as that says
    np.testing.assert_allclose(turned, froghopper.attention(q, -k, v, scale=1.0), atol=1e-6)
    for softcap in (1e-50, -1e-50, 1e39, -1.0, float("inf")):
        with pytest.raises(froghopper.InvalidProblem, match="softcap must be finite and positive, .* but is "):
            froghopper.attention(q, k, v, softcap=softcap)
    try: found = froghopper.attention(q, k, v, softcap=1e-40)
    except froghopper.Error as error: assert "softcap is 1e-40" in str(error)
    else: np.testing.assert_allclose(found, np.broadcast_to(uniform, q.shape), atol=1e-6)


def test_ways_out():
    """What messages advise is accepted."""
    q, k, v, grad_o = CASES["full"].arrays("float32")
    o, lse = froghopper.attention(q, k, v, return_lse=True)
    flat, none = [x.reshape(-1, *x.shape[2:]) for x in (q, k, v)], [x[:0, 0] for x in (q, k, v)]
    whole = dict(cu_seqlens_q=[0, 33, 66], cu_seqlens_kv=[0, 70, 140])
    ways = [
        (dict(q=q.tolist()), "Use numpy.asarray", dict(q=np.asarray(q.tolist(), np.float32))),
        (dict(q=q.astype(">f4"), k=k.astype(">f4"), v=v.astype(">f4")), "Use q.astype..float32..",
         {name: x.astype(">f4").astype("float32") for name, x in zip("qkv", (q, k, v))}),
        (dict(q=q[0]), "Add the missing dimension", dict(q=q[0][None], k=k[:1], v=v[:1])),
        (dict(q=q[None]), "Use q.reshape", dict(q=q[None].reshape(q.shape))),
        (dict(whole), "Without cu_seqlens_q and cu_seqlens_kv it is", {}),
        (dict(cu_seqlens_q=[0, 66]), "Give cu_seqlens_kv", dict(zip("qkv", flat)) | whole),
        (dict(zip("qkv", none)) | dict(cu_seqlens_q=[], cu_seqlens_kv=[]), "Use .0. for no sequence",
         dict(zip("qkv", none)) | dict(cu_seqlens_q=[0], cu_seqlens_kv=[0])),
        (dict(zip("qkv", flat)) | whole | dict(max_seqlen_q=3), "Use max_seqlen_q=33, or None",
         dict(zip("qkv", flat)) | whole | dict(max_seqlen_q=33)),
        (dict(max_seqlen_kv=70), "Leave them out", {}), (dict(seqused_q=[1]), "Give 2 numbers", dict(seqused_q=[1, 1])),
        (dict(window=5), "Use window=.5, 0. for", dict(window=(5, 0))),
        (dict(align=0), "top_left", dict(align="top_left")),
        (dict(softcap=-1), "Use 0 or None for none", dict(softcap=None)), (dict(scale_q=1.0), "Leave it out", {}),
        (dict(scale_k=1.0), "Leave it out", {}), (dict(scale=-1), "Use scale=None", dict(scale=None)),
        (dict(sink=np.zeros(4)), "Use numpy.asarray.sink, .float32..", dict(sink=np.zeros(4, np.float32))),
        (dict(out=q, accumulate=(o, lse)), "Leave out out", dict(accumulate=(o.copy(), lse.copy()))),
        (dict(alibi_slopes=np.zeros((1, 4))), "Use alibi_slopes.reshape.4.", dict(alibi_slopes=np.zeros(4))),
        (dict(alibi_slopes=[1e39] * 4), "Give smaller ones", dict(alibi_slopes=[1e38] * 4)),
        (dict(q=q[..., ::-1]), "numpy.ascontiguousarray.q.", dict(q=np.ascontiguousarray(q[..., ::-1]))),
    ]
    for wrong, advice, right in ways:
        with pytest.raises(froghopper.Error, match=advice): froghopper.attention(**dict(q=q, k=k, v=v) | wrong)
        assert froghopper.attention(**dict(q=q, k=k, v=v) | right) is not None
    with pytest.raises(ValueError, match="Use out=.grad_q, grad_k, grad_v."):
        froghopper.attention_backward(grad_o, q, k, v, o, lse, accumulate=True)
    grads = [np.zeros_like(x) for x in (q, k, v)]
    froghopper.attention_backward(grad_o, q, k, v, o, lse, accumulate=True, out=grads)


def test_used_lengths_and_masks():
    """As the docstring says: causal aligns the last rows that count, so both lengths are given, or top_left."""
    q, k, v = drawn(0, "float32", 1, 6, 2, 8), drawn(1, "float32", 1, 9, 2, 8), drawn(2, "float32", 1, 9, 2, 8)
    both = froghopper.attention(q, k, v, causal=True, seqused_q=[4], seqused_kv=[5])
    assert np.array_equal(both[:, :4], froghopper.attention(q[:, :4], k[:, :5], v[:, :5], causal=True))
    alone = froghopper.attention(q, k, v, causal=True, seqused_kv=[5])  # query 5 is level with key 4
    assert np.array_equal(alone, froghopper.attention(q, k[:, :5], v[:, :5], causal=True))
    first = froghopper.attention(q, k, v, causal=True, seqused_kv=[5], align="top_left")
    assert np.array_equal(first, froghopper.attention(q, k[:, :5], v[:, :5], causal=True, align="top_left"))


def test_a_call_that_is_known_is_still_looked_at():
    """A table keeps calls on q, k and v alone; values that are equal but of another kind are not found there."""
    q, k, v, _ = CASES["full"].arrays("float32")
    for _ in range(2):
        plain = froghopper.attention(q, k, v, causal=True, window=(40, 0), scale=1.0, softcap=2.0)
    same = dict(causal=1, window=[40, 0], scale=np.float64(1), softcap=2)  # other kinds that are taken
    for name, value in same.items():
        given = dict(causal=True, window=(40, 0), scale=1.0, softcap=2.0) | {name: value}
        np.testing.assert_array_equal(froghopper.attention(q, k, v, **given), plain)
    for name, value in dict(causal=1.0, window=(40.0, 0), scale="1.0", softcap="2.0", max_sms=0.0, align=b"top_left",
                            attention_chunk=0.0, invariant=0.0, return_lse=0.0).items():
        given = dict(causal=True, window=(40, 0), scale=1.0, softcap=2.0) | {name: value}
        with pytest.raises(froghopper.InvalidType, match=name): froghopper.attention(q, k, v, **given)
    with pytest.raises(froghopper.InvalidType, match="mask"):
        froghopper.attention(np.ma.masked_array(q, q > 0), k, v, causal=True, window=(40, 0), scale=1.0, softcap=2.0)
    with pytest.raises(froghopper.InvalidType, match="float64"): froghopper.attention(q, k, v.astype(np.float64))
    kept = q.copy()
    first, again = (froghopper.attention(q, k, v, causal=True) for _ in range(2))
    assert not np.shares_memory(first, again) and np.array_equal(first, again) and np.array_equal(q, kept)
    flags = [dict(return_lse=True), dict(return_max_logit=True), dict(return_lse=True, return_max_logit=True)]
    for given in flags:
        one, two = (froghopper.attention(q, k, v, causal=True, **given) for _ in range(2))
        assert len(one) == len(two) and all(np.array_equal(x, y) for x, y in zip(one, two))
        np.testing.assert_array_equal(one[0], first)
