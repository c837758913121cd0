# SPDX-License-Identifier: Apache-2.0
"""Arrays of NumPy as they may lie: fields of records, whose strides and addresses are no multiples of what they hold;
arrays with masks; scalars where there are no scalars. The answer is that of a plain copy, or a refusal."""
import numpy as np
import pytest

import froghopper

BATCH, ROWS, KEYS, HEADS, HEADS_KV, DIM = 2, 5, 150, 4, 2, 16
BLOCKS = 2  # of 128 keys


def drawn(seed, *shape): return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


Q, K, V = drawn(0, BATCH, ROWS, HEADS, DIM), drawn(1, BATCH, KEYS, HEADS_KV, DIM), drawn(2, BATCH, KEYS, HEADS_KV, DIM)
LSE = froghopper.attention(Q, K, V, return_lse=True)[1]


def field(array, before=1, after=0):
    """The same numbers as a field of records, beside others: at odd addresses, odd bytes apart."""
    record = np.dtype([("before", "u1", before), ("field", array.dtype), ("after", "u1", after)])
    records = np.zeros(array.shape, record)
    records.view(np.uint8)[...] = 0xa5
    records["field"] = array
    assert records["field"].strides[-1] % array.itemsize
    return records["field"]


def shifted(array):
    """The same, dense, from an odd address on."""
    room = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    room[...] = array
    return room


@pytest.fixture(scope="module")
def small():
    """Of 8 bits: what attention is given, with means, a scale for each block, and one for each column of v."""
    found = froghopper.quantise(Q, K, V, smooth=True)._asdict() | dict(out_dtype=np.float32)
    if found["q"].dtype == np.uint8: found |= dict(dtype="float8_e4m3fn")
    return found


@pytest.mark.parametrize("lie", [field, shifted])
@pytest.mark.parametrize("name", ["scale_q", "scale_k", "scale_v", "mean_k", "mean_v"])
def test_scales_and_means_of_8_bits(small, name, lie):
    wanted = froghopper.attention(**small)
    assert np.array_equal(froghopper.attention(**small | {name: lie(small[name])}), wanted)


@pytest.mark.parametrize("lie", [field, shifted])
def test_scales_of_other_shapes(small, lie):
    plain = {name: x for name, x in small.items() if not name.startswith("mean")}
    for shape in ((BATCH, HEADS_KV), (BATCH, 1, HEADS_KV, 1), (BATCH, 1, HEADS_KV, DIM)):
        words = plain | dict(scale_v=np.abs(drawn(5, *shape)) + 1)
        wanted = froghopper.attention(**words)
        assert np.array_equal(froghopper.attention(**words | dict(scale_v=lie(words["scale_v"]))), wanted)
    one = np.asarray(np.float32(1.5))
    words = plain | dict(scale_v=one)
    assert np.array_equal(froghopper.attention(**words | dict(scale_v=shifted(one))), froghopper.attention(**words))


@pytest.mark.parametrize("lie", [field, shifted])
@pytest.mark.parametrize("shape", [(HEADS,), (BATCH, HEADS)])
def test_slopes(shape, lie):
    slopes = np.abs(drawn(3, *shape))
    for causal in (False, True):
        wanted = froghopper.attention(Q, K, V, causal=causal, alibi_slopes=slopes)
        assert np.array_equal(froghopper.attention(Q, K, V, causal=causal, alibi_slopes=lie(slopes)), wanted)
    o, lse = froghopper.attention(Q, K, V, alibi_slopes=slopes, return_lse=True)
    wanted = froghopper.attention_backward(Q, Q, K, V, o, lse, alibi_slopes=slopes)
    found = froghopper.attention_backward(Q, Q, K, V, o, lse, alibi_slopes=lie(slopes))
    assert all(np.array_equal(x, y) for x, y in zip(found[:3], wanted[:3]))


@pytest.mark.parametrize("lie", [field, shifted, lambda x: x.astype(">i4"), lambda x: np.repeat(x, 2)[::2]])
def test_lengths(lie):
    used = np.array([3, 5], np.int32)
    wanted = froghopper.attention(Q, K, V, seqused_q=used)
    assert np.array_equal(froghopper.attention(Q, K, V, seqused_q=lie(used))[:, :3], wanted[:, :3])
    ends = np.array([0, 4, 10], np.int32)
    words = dict(cu_seqlens_q=ends, cu_seqlens_kv=ends * (BATCH * KEYS // 10))
    flat = [x.reshape(-1, *x.shape[2:]) for x in (Q, K, V)]
    wanted = froghopper.attention(*flat, **words)
    assert np.array_equal(froghopper.attention(*flat, **{name: lie(x) for name, x in words.items()}), wanted)


@pytest.mark.parametrize("lie", [field, shifted])
def test_sinks_and_logarithms(lie):
    sink = drawn(4, HEADS)
    o, lse = froghopper.attention(Q, K, V, sink=sink, return_lse=True)
    assert np.array_equal(froghopper.attention(Q, K, V, sink=lie(sink)), o)
    words = dict(sink=sink, grad_lse=drawn(6, *lse.shape))
    wanted = froghopper.attention_backward(Q, Q, K, V, o, lse, **words)
    found = froghopper.attention_backward(Q, Q, K, V, o, lie(lse), **{name: lie(x) for name, x in words.items()})
    assert all(np.array_equal(x, y) for x, y in zip(found, wanted))


@pytest.mark.parametrize("lie", [field, shifted])
def test_what_would_be_large_or_written_is_refused(lie):
    """q, k and v are never copied, and a copy of a result would be lost."""
    held = np.zeros(Q.shape, np.float32), np.full(LSE.shape, -np.inf, np.float32), np.zeros((BATCH, HEADS), np.float32)
    calls = {name: lambda x, name=name, like=like: froghopper.attention(**dict(q=Q, k=K, v=V) | {name: lie(like)})
             for name, like in (("q", Q), ("k", K), ("v", V), ("out", np.zeros_like(Q)))}
    for at in range(3):
        calls[f"accumulate[{at}]"] = lambda x, at=at: froghopper.attention(
            Q, K, V, return_max_logit=True, accumulate=tuple(lie(x) if i == at else x for i, x in enumerate(held)))
    grads = Q.copy(), K.copy(), V.copy(), np.zeros(HEADS, np.float32)
    for at in range(4):
        calls[f"out[{at}]"] = lambda x, at=at: froghopper.attention_backward(
            Q, Q, K, V, Q, LSE, sink=grads[3], out=[lie(x) if i == at else x.copy() for i, x in enumerate(grads)])
    for name, call in calls.items():
        with pytest.raises(froghopper.InvalidTensor) as refused: call(None)
        assert str(refused.value).startswith(name), refused.value


def test_a_dimension_of_one_may_lie_anywhere():
    one = Q[:1]
    odd = np.lib.stride_tricks.as_strided(one, one.shape, (3, *one.strides[1:]))
    assert np.array_equal(froghopper.attention(odd, K[:1], V[:1]), froghopper.attention(one, K[:1], V[:1]))


def test_masks_are_refused(small):
    def masked(x): return np.ma.masked_array(x, np.zeros(np.shape(x), bool))
    ends = np.array([0, 5, 10])
    attention = dict(q=Q, k=K, v=V, out=np.zeros_like(Q), sink=drawn(4, HEADS), alibi_slopes=drawn(3, HEADS),
                     seqused_q=np.array([3, 5]), seqused_kv=np.array([3, 5]))
    packed = dict(zip("qkv", (x.reshape(-1, *x.shape[2:]) for x in (Q, K, V)))) | dict(
        cu_seqlens_q=ends, cu_seqlens_kv=ends * 30)
    held = np.zeros(Q.shape, np.float32), np.full(LSE.shape, -np.inf, np.float32)
    backward = dict(grad_o=Q, q=Q, k=K, v=V, o=Q, lse=LSE, grad_lse=LSE)
    quantise = dict(q=Q, k=K, v=V, seqused_q=np.array([3, 5]))
    for function, words in ((froghopper.attention, attention), (froghopper.attention, packed),
                            (froghopper.attention, small), (froghopper.attention_backward, backward),
                            (froghopper.quantise, quantise)):
        for name, x in words.items():
            if not isinstance(x, np.ndarray): continue
            with pytest.raises(TypeError, match=f"^{name} must be .* without a mask, .* a MaskedArray"):
                function(**words | {name: masked(x)})
            function(**words | {name: masked(x).filled()})  # as it says
    for at in range(2):
        with pytest.raises(TypeError, match=rf"accumulate\[{at}\] must .*, but is a MaskedArray"):
            froghopper.attention(Q, K, V, accumulate=tuple(masked(x) if i == at else x for i, x in enumerate(held)))
    for at in range(3):
        grads = [masked(x) if i == at else x.copy() for i, x in enumerate((Q, K, V))]
        with pytest.raises(TypeError, match=rf"out\[{at}\] must .*, but is a MaskedArray"):
            froghopper.attention_backward(**backward, out=grads)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (BATCH, 1, HEADS_KV, 0), (BATCH, HEADS_KV)])
@pytest.mark.parametrize("name", ["mean_k", "mean_v"])
def test_a_mean_of_another_shape_is_refused(small, name, shape):
    with pytest.raises(froghopper.InvalidTensor, match=f"{name} must have the shape"):
        froghopper.attention(**small | {name: np.zeros(shape, np.float32)})


def test_scalars_are_no_arrays_elsewhere(small):
    one = np.ones((), np.float32)
    for name in ("sink", "alibi_slopes", "seqused_q", "seqused_kv", "out"):
        with pytest.raises(froghopper.Error, match=name): froghopper.attention(Q, K, V, **{name: one})
    for name in ("lse", "grad_lse"):
        words = dict(lse=LSE) | {name: one}
        with pytest.raises(froghopper.InvalidTensor, match=name): froghopper.attention_backward(Q, Q, K, V, Q, **words)
    for name in ("scale_q", "scale_k", "scale_v"):
        with pytest.raises(froghopper.InvalidTensor, match=name):
            froghopper.attention(**small | {name: np.zeros(0, np.float32)})


def test_gradients_lie_in_the_order_of_what_they_are_of():
    grads = [np.zeros_like(x) for x in (Q, K, V)]
    froghopper.attention_backward(Q, Q, K, V, Q, LSE, out=[*grads, None])
    with pytest.raises(TypeError, match="out must .*, but has 4"):
        froghopper.attention_backward(Q, Q, K, V, Q, LSE, out=[None, *grads])
