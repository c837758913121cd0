# SPDX-License-Identifier: Apache-2.0
"""Attention and gradients of NumPy arrays beside fp64 formulas (plain.py); what is refused, and that nothing is written
then; threads."""
import dataclasses
import threading

import numpy as np
import pytest
from plain import Options, Sequence, backward, excess, forward

import froghopper

try: import ml_dtypes
except ImportError: ml_dtypes = None

TYPES = ["float32", "float16", "bfloat16"]


def type_of(name):
    if name != "bfloat16": return np.dtype(name)
    if ml_dtypes is None: pytest.skip("bfloat16 needs ml_dtypes, which is not installed")
    return np.dtype(ml_dtypes.bfloat16)


def drawn(seed, dtype, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(type_of(dtype))


def ends(lengths): return np.concatenate([[0], np.cumsum(lengths)])


@dataclasses.dataclass
class Case:
    """One problem. rows, keys: of each sequence; used_q, used_kv: how many count, None for all."""
    rows: list
    keys: list
    heads: tuple = (4, 2)
    dims: tuple = (16, 16)
    packed: bool = False
    spare: int = 0  # packed: rows of no sequence at the end
    used_q: list = None
    used_kv: list = None
    options: dict = dataclasses.field(default_factory=dict)

    def arrays(self, dtype):
        """q, k, v and grad_o, [batch, seq, heads, dim] or packed."""
        def shape(rows, heads, dim):
            return (sum(rows) + self.spare, heads, dim) if self.packed else (len(rows), rows[0], heads, dim)
        shapes = [shape(self.rows, self.heads[0], self.dims[0]), shape(self.keys, self.heads[1], self.dims[0]),
                  shape(self.keys, self.heads[1], self.dims[1]), shape(self.rows, self.heads[0], self.dims[1])]
        return [drawn(seed, dtype, *shape) for seed, shape in enumerate(shapes)]

    def given(self):
        """The keywords of froghopper.attention."""
        lengths = dict(seqused_q=self.used_q, seqused_kv=self.used_kv)
        if self.packed: lengths |= dict(cu_seqlens_q=ends(self.rows), cu_seqlens_kv=ends(self.keys))
        return {**{name: value for name, value in lengths.items() if value is not None}, **self.options}

    def sequences(self):
        begins_q, begins_kv = (ends(x) if self.packed else [0] * len(x) for x in (self.rows, self.keys))
        for b, (used_q, used_kv) in enumerate(zip(self.used_q or self.rows, self.used_kv or self.keys)):
            yield Sequence(0 if self.packed else b, slice(begins_q[b], begins_q[b] + used_q),
                           slice(begins_kv[b], begins_kv[b] + used_kv))

    def exact(self, arrays, dtype):
        """(fp64 arrays with a batch, forward's answer)."""
        wide = [x.astype(np.float64)[None] if self.packed else x.astype(np.float64) for x in arrays]
        return wide, forward(*wide[:3], list(self.sequences()), dtype, Options(**self.options))


SINK = np.linspace(-2, 3, 4).astype(np.float32)
SLOPES = np.array([0.5, 0.125, 0, -0.03], np.float32)
CASES = {
    "full": Case([33] * 2, [70] * 2),
    "one_head_each": Case([17], [17], heads=(3, 3), dims=(8, 8)),
    "multi_query": Case([40], [41], heads=(4, 1), dims=(64, 24)),
    "wide": Case([20], [130], dims=(256, 128)),
    "causal": Case([70] * 2, [70] * 2, options=dict(causal=True)),
    "causal_more_keys": Case([9], [70], options=dict(causal=True)),
    "causal_blind_rows": Case([70], [9], options=dict(causal=True)),
    "causal_top_left": Case([30], [70], options=dict(causal=True, align="top_left")),
    "window": Case([70], [70], options=dict(window=(5, 3))),
    "window_left": Case([70], [80], options=dict(window=(5, None))),
    "window_right": Case([70], [80], options=dict(window=(-1, 0), align="top_left")),
    "window_causal": Case([70], [70], options=dict(window=(0, -1), causal=True)),
    "softcap": Case([33], [40], options=dict(softcap=1.5, causal=True)),
    "scale": Case([33], [40], options=dict(scale=0.7)),
    "scale_zero": Case([33], [40], options=dict(scale=0.0, causal=True)),
    "sink": Case([33], [40], options=dict(sink=SINK)),
    "sink_blind_rows": Case([33], [10], options=dict(sink=SINK, causal=True)),
    "packed": Case([5, 0, 64, 1], [7, 3, 80, 0], packed=True),
    "packed_causal": Case([5, 40, 17], [9, 40, 3], packed=True, options=dict(causal=True, sink=SINK)),
    "packed_spare_rows": Case([5, 4], [6, 5], packed=True, spare=3),
    "used": Case([20] * 3, [30] * 3, used_q=[20, 3, 0], used_kv=[1, 30, 5], options=dict(causal=True)),
    "used_keys": Case([20] * 2, [30] * 2, used_kv=[11, 0]),
    "packed_used": Case([8, 9], [30, 20], packed=True, used_kv=[5, 20], options=dict(window=(4, 0), softcap=3.0)),
    "one_thread": Case([33], [40], options=dict(max_sms=1)),
    "everything": Case([30, 50], [60, 50], packed=True, used_q=[30, 40], used_kv=[60, 33],
                       options=dict(causal=True, window=(20, None), softcap=4.0, scale=0.4, sink=SINK)),
    "alibi": Case([33] * 2, [40] * 2, options=dict(alibi_slopes=SLOPES, causal=True)),
    "alibi_packed": Case([5, 40, 17], [9, 40, 3], packed=True, options=dict(
        alibi_slopes=SLOPES, softcap=2.0, align="top_left", sink=SINK)),
}
CASES |= {
    "chunk": Case([33] * 2, [40] * 2, options=dict(attention_chunk=7)),
    "chunk_causal": Case([70], [70], options=dict(attention_chunk=16, causal=True)),
    "chunk_blind_rows": Case([70], [30], options=dict(attention_chunk=9, window=(5, 3))),
    "chunk_packed": Case([5, 40, 17], [9, 40, 3], packed=True, options=dict(attention_chunk=4, align="top_left")),
}


@pytest.fixture(params=CASES)
def case(request): return CASES[request.param]


def options_of(case): return {k: v for k, v in case.options.items() if k != "max_sms"}


def exact_of(case, arrays, dtype):
    return dataclasses.replace(case, options=options_of(case)).exact(arrays, dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_attention(case, dtype):
    arrays = case.arrays(dtype)
    q, k, v, _ = arrays
    _, exact = exact_of(case, arrays, dtype)
    o, lse = froghopper.attention(q, k, v, **case.given(), return_lse=True)
    assert o.dtype == q.dtype and lse.dtype == np.float32
    assert not excess(o[None] if case.packed else o, *exact["o"])
    assert not excess(lse[None] if case.packed else lse, *exact["lse"])
    assert np.array_equal(froghopper.attention(q, k, v, **case.given()), o)


@pytest.mark.parametrize("dtype", TYPES)
def test_gradients(case, dtype):
    arrays = case.arrays(dtype)
    q, k, v, grad_o = arrays
    wide, exact = exact_of(case, arrays, dtype)
    o, lse = froghopper.attention(q, k, v, **case.given(), return_lse=True)
    grad_lse = drawn(9, "float32", *lse.shape)
    held = grad_lse[None] if case.packed else grad_lse
    wanted = backward(*wide[:3], exact["o"][0], exact["lse"][0], wide[3], held.astype(np.float64),
                      list(case.sequences()), dtype, Options(**options_of(case)))
    grads = froghopper.attention_backward(grad_o, q, k, v, o, lse, grad_lse=grad_lse, **case.given())
    assert (grads.sink is None) == ("sink" not in case.options)
    for name, found in grads._asdict().items():
        if found is None: continue
        assert not excess(found[None] if case.packed and name != "sink" else found, *wanted[name]), name
    assert grads.q.dtype == grads.k.dtype == grads.v.dtype == q.dtype


def test_the_yardstick_sees_a_wrong_mask():
    case = CASES["causal"]
    arrays = case.arrays("float16")
    _, exact = case.exact(arrays, "float16")
    wrong = froghopper.attention(*arrays[:3], window=(None, 1))
    assert "are off" in excess(wrong, *exact["o"])


def test_the_yardstick_sees_a_wrong_gradient():
    q, k, v, grad_o = arrays = CASES["full"].arrays("float32")
    wide, exact = CASES["full"].exact(arrays, "float32")
    o, lse = froghopper.attention(q, k, v, return_lse=True)
    wanted = backward(*wide[:3], exact["o"][0], exact["lse"][0], wide[3], np.zeros(lse.shape),
                      list(CASES["full"].sequences()), "float32", Options())
    right = froghopper.attention_backward(grad_o, q, k, v, o, lse)
    for name in "qkv":
        found = getattr(right, name)
        assert not excess(found, *wanted[name])
        assert "are off" in excess(found * np.float32(1.001), *wanted[name])
        assert "are off" in excess(np.where(found == found.flat[0], np.nan, found), *wanted[name])


def test_finite_differences():
    """The formulas themselves: the change of sum(o grad_o) + sum(lse grad_lse) when q, k, v or sink change a little."""
    case = Case([6], [7], dims=(8, 8), options=dict(softcap=2.0, sink=SINK, window=(3, 1)))
    arrays = case.arrays("float32")
    wide, exact = case.exact(arrays, "float32")
    grad_lse = drawn(9, "float32", *exact["lse"][0].shape).astype(np.float64)
    options = Options(**case.options)
    options.sink = SINK.astype(np.float64)
    inputs = dict(zip("qkv", wide), sink=options.sink)
    wanted = backward(*wide[:3], exact["o"][0], exact["lse"][0], wide[3], grad_lse, list(case.sequences()), "float32",
                      options)
    for name, array in inputs.items():
        step, moved = np.random.default_rng(5).standard_normal(array.shape), []
        for sign in (1, -1):
            changed = {**inputs, name: array + sign * 1e-5 * step}
            found = forward(changed["q"], changed["k"], changed["v"], list(case.sequences()), "float32",
                            dataclasses.replace(options, sink=changed["sink"]))
            moved.append((found["o"][0] * wide[3]).sum() + (found["lse"][0] * grad_lse).sum())
        assert (moved[0] - moved[1]) / 2e-5 == pytest.approx((wanted[name][0] * step).sum(), rel=1e-6, abs=1e-6), name


def test_strides_and_out():
    q, k, v, _ = CASES["full"].arrays("float32")
    o = froghopper.attention(q, k, v)
    def turned(x): return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    def sliced(x): return np.concatenate([x, x], axis=3)[..., :x.shape[3]]
    for change in (turned, sliced):
        assert np.array_equal(froghopper.attention(change(q), change(k), change(v)), o)
        out = change(np.zeros_like(o))
        assert froghopper.attention(q, k, v, out=out) is out and np.array_equal(out, o)
    wide = np.full((*o.shape[:3], 32), 7, np.float32)
    froghopper.attention(q, k, v, out=wide[..., :16])
    assert np.array_equal(wide[..., :16], o) and (wide[..., 16:] == 7).all()
    one = np.broadcast_to(k[:1], k.shape)  # a stride of 0 may be read
    assert np.array_equal(froghopper.attention(q, one, v), froghopper.attention(q, one.copy(), v))


def test_gradients_are_added_up():
    q, k, v, grad_o = CASES["sink"].arrays("float16")
    given = CASES["sink"].given()
    o, lse = froghopper.attention(q, k, v, **given, return_lse=True)
    once = froghopper.attention_backward(grad_o, q, k, v, o, lse, **given)
    held = [np.full(x.shape, 2, np.float32) for x in once]
    found = froghopper.attention_backward(grad_o, q, k, v, o, lse, **given, out=held, accumulate=True)
    for name, before, after, there in zip("qkvs", once, found, held):
        assert after is there
        wide = before.astype(np.float64)
        assert np.abs(after - 2 - wide).max() <= 2.0 ** -11 * np.abs(wide).max() + 2.0 ** -20, name


def test_lengths_of_every_kind():
    case = CASES["packed_causal"]
    q, k, v, _ = case.arrays("float32")
    o = froghopper.attention(q, k, v, **case.given())
    for kind in (list, lambda x: np.array(x, np.int32), lambda x: np.repeat(x, 2).astype(np.uint8)[::2]):
        given = case.given() | dict(cu_seqlens_q=kind(ends(case.rows)), cu_seqlens_kv=kind(ends(case.keys)))
        assert np.array_equal(froghopper.attention(q, k, v, **given, max_seqlen_q=64, max_seqlen_kv=100), o)


def test_nothing_to_do():
    none = np.zeros((0, 5, 2, 8), np.float32)
    assert froghopper.attention(none, none, none).shape == (0, 5, 2, 8)
    q, k = np.ones((2, 3, 2, 8), np.float32), np.ones((2, 0, 2, 8), np.float32)
    o, lse = froghopper.attention(q, k, k, return_lse=True)
    assert (o == 0).all() and np.isneginf(lse).all()
    empty = np.zeros((0, 2, 8), np.float32)
    assert froghopper.attention(empty, empty, empty, cu_seqlens_q=[0], cu_seqlens_kv=[0]).shape == (0, 2, 8)


Q, KV = np.zeros((2, 5, 4, 16), np.float32), np.zeros((2, 7, 2, 16), np.float32)
PQ, PKV = Q.reshape(10, 4, 16), KV.reshape(14, 2, 16)
ENDS = dict(cu_seqlens_q=[0, 5, 10], cu_seqlens_kv=[0, 7, 14])
LOCKED = np.zeros_like(Q)
LOCKED.flags.writeable = False
BAD = [
    (dict(q=[[1.0]]), TypeError, "q must .*, but is a list"),
    (dict(q=np.ma.masked_array(Q)), TypeError, "q must .*, but is a MaskedArray"),
    (dict(q=Q.astype(np.float64), k=KV.astype(np.float64), v=KV.astype(np.float64)), TypeError,
     "q, k and v must .*, but are float64"),
    (dict(q=Q.astype(np.int32), k=KV.astype(np.int32), v=KV.astype(np.int32)), TypeError, "are int32"),
    (dict(k=KV.astype(np.float16)), TypeError, "k must .*, but is float16"),
    (dict(q=Q.astype(">f4"), k=KV.astype(">f4"), v=KV.astype(">f4")), TypeError, "q must .*, but has the other one"),
    (dict(q=np.float32(1) * Q[0, 0, 0, 0]), TypeError, "q must .*, but is a float32"),
    (dict(q=Q[0]), ValueError, "q must .*, but has the shape .5, 4, 16"),
    (dict(q=Q[None]), ValueError, "q must"),
    (dict(ENDS), ValueError, "q must .*, but has the shape .2, 5, 4, 16"),
    (dict(k=KV[:1], v=KV[:1]), ValueError, "k must .*, but has 1: their shapes are .1, 7, 2, 16. and .2, 5, 4, 16"),
    (dict(v=KV[:, :6]), ValueError, "v must .*, but has 6: their shapes are .2, 6, 2, 16. and .2, 7, 2, 16"),
    (dict(v=KV[:, :, :1]), ValueError, "v must .*, but has 1: their shapes are .2, 7, 1, 16. and .2, 7, 2, 16"),
    (dict(k=KV[..., :8]), ValueError, "k must .*, but has 8: their shapes are .2, 7, 2, 8. and .2, 5, 4, 16"),
    (dict(v=KV[..., :0]), ValueError, "v must .*, but has 0"),
    (dict(k=KV[:, :, :0], v=KV[:, :, :0]), ValueError, "heads_kv must .*, but is 0"),
    (dict(k=np.zeros((2, 7, 3, 16), np.float32), v=np.zeros((2, 7, 3, 16), np.float32)), ValueError,
     "heads_kv must .*, but is 3"),
    (dict(q=Q[..., :12], k=KV[..., :12]), NotImplementedError, "head dims must .*, but that of q and k is 12"),
    (dict(q=np.zeros((2, 5, 4, 32), np.float32)[..., ::2]), ValueError, "q must .*, but has the strides .640, 128,"),
    (dict(q=np.frombuffer(bytes(8 * 40 * 16 + 4), np.dtype([("a", "f4"), ("b", "i1"), ("c", "i1")]), 640)["a"]
          .reshape(2, 5, 4, 16)), ValueError, "q must .*, but has .1920, 384, 96, 6"),
    (dict(k=KV[:, ::-1]), ValueError, "k must .*, but that of seq is -32"),
    (dict(q=np.frombuffer(bytes(Q.nbytes + 1), np.uint8)[1:].view(np.float32).reshape(Q.shape)), ValueError,
     "q must begin at a multiple of 4 bytes"),
    (dict(causal="yes"), TypeError, "causal must .*, but is 'yes'"),
    (dict(causal=np.zeros(2)), TypeError, "causal must .*, but is array..0., 0"),
    (dict(window=3), TypeError, "window must .*, but is 3"),
    (dict(window=(1, 2, 3)), TypeError, "window must .*, but is .1, 2, 3"),
    (dict(window=[1.5, 2]), TypeError, "window.0. must .*, but is 1.5"),
    (dict(window=(-2, 0)), ValueError, "window must .*, but is .-2, 0."),
    (dict(window=(2**70, 0)), ValueError, "window.0. must .*, but is 1180591620717411303424"),
    (dict(window=(None, 3), causal=True), ValueError, "window must .*, but is .None, 3."),
    (dict(softcap="x"), TypeError, "softcap must .*, but is 'x'"),
    (dict(softcap=-1.0), ValueError, "softcap must .*, but is -1"),
    (dict(softcap=float("nan")), ValueError, "softcap must .*, but is nan"),
    (dict(scale=-1.0), ValueError, "scale must .*, but is -1.0"),
    (dict(scale=float("inf")), ValueError, "scale must .*, but is inf"),
    (dict(scale=[1.0]), TypeError, "scale must .*, but is .1.0"),
    (dict(align="left"), ValueError, "align must .*, but is 'left'"),
    (dict(max_sms=-1), ValueError, "max_sms must .*, but is -1"),
    (dict(max_sms=1.0), TypeError, "max_sms must .*, but is 1.0"),
    (dict(sink=np.zeros(4)), TypeError, "sink must .*, but is float64"),
    (dict(sink=[0.0] * 4), TypeError, "sink must .*, but is a list"),
    (dict(sink=np.zeros(2, np.float32)), ValueError, "sink must .*, but has .2"),
    (dict(cu_seqlens_q=[0, 5, 10]), ValueError, "cu_seqlens_q and cu_seqlens_kv must .*, but cu_seqlens_kv is None"),
    (dict(q=PQ, k=PKV, v=PKV, cu_seqlens_q=[0, 10], cu_seqlens_kv=[0, 7, 14]), ValueError,
     "cu_seqlens_kv must .*, but has 3"),
    (dict(q=PQ, k=PKV, v=PKV, cu_seqlens_q=[], cu_seqlens_kv=[]), ValueError, "cu_seqlens_q must .*, but has 0"),
    (dict(q=PQ, k=PKV, v=PKV, cu_seqlens_q=[0., 10.], cu_seqlens_kv=[0, 14]), TypeError, "cu_seqlens_q must .*, but"),
    (dict(q=PQ, k=PKV, v=PKV, cu_seqlens_q=[1, 10], cu_seqlens_kv=[0, 14]), ValueError, "cu_seqlens_q must .*, but"),
    (dict(q=PQ, k=PKV, v=PKV, cu_seqlens_q=[0, 8, 6], cu_seqlens_kv=[0, 7, 14]), ValueError, "falls from 8 to 6"),
    (dict(q=PQ, k=PKV, v=PKV, cu_seqlens_q=[0, 11], cu_seqlens_kv=[0, 14]), ValueError, "cu_seqlens_q must .*, but"),
    (dict(q=PQ, k=PKV, v=PKV, cu_seqlens_q=[0, 2**31], cu_seqlens_kv=[0, 14]), ValueError, "cu_seqlens_q must .*, b"),
    (dict(q=PQ, k=PKV, v=PKV, max_seqlen_q=3, **ENDS), ValueError,
     "max_seqlen_q must .*, but is 3"),
    (dict(max_seqlen_q=3), ValueError, "without cu_seqlens"),
    (dict(seqused_q=[1, 2, 3]), ValueError, "seqused_q must .*, but has 3"),
    (dict(seqused_kv=[1, 8]), ValueError, "seqused_kv.1. must .*, but is 8"),
    (dict(seqused_kv=[[1, 2]]), TypeError, "a list of whole numbers"),
    (dict(out=np.full((2, 5, 4, 8), 7, np.float32)), ValueError, "out must .*, but has .2, 5, 4, 8"),
    (dict(out=np.full(3, 7, np.float32)), ValueError, "out must .*, but has .3"),
    (dict(out=np.full(Q.shape, 7, np.float16)), TypeError, "out must .*, but is float16"),
    (dict(out=LOCKED), ValueError, "out must .*, but is read-only"),
    (dict(out=np.full((2, 5, 4, 32), 7, np.float32)[..., ::2]), ValueError, "out must .*, but has the strides .640,"),
    (dict(out=np.broadcast_to(np.full((1, 5, 4, 16), 7, np.float32), Q.shape)), ValueError, "out must .*, but is re"),
]


@pytest.mark.parametrize("bad, kind, words", BAD, ids=[words for *_, words in BAD])
def test_what_is_refused(bad, kind, words):
    arrays = [bad.get(name, like) for name, like in (("q", Q), ("k", KV), ("v", KV))]
    options = {name: value for name, value in bad.items() if name not in "qkv"}
    shape = np.shape(arrays[0])[:-1] + np.shape(arrays[2])[-1:]
    out = options.setdefault("out", np.full(shape, 7, getattr(arrays[0], "dtype", np.float32)))
    before = out.copy()
    for _ in range(2):  # the second time what was made the first time may be kept
        with pytest.raises(kind, match=words) as refused: froghopper.attention(*arrays, **options)
        assert isinstance(refused.value, froghopper.Error) and str(refused.value).endswith(".")
        assert np.array_equal(out, before)


def test_what_shares_memory_is_refused():
    q = np.zeros((2, 5, 4, 16), np.float32)
    with pytest.raises(ValueError, match="at the same address"): froghopper.attention(q, KV, KV, out=q)


BAD_GRADIENTS = [
    (dict(grad_o=Q[:, :4]), ValueError, "grad_o must .*, but has .2, 4, 4, 16"),
    (dict(grad_o=Q.astype(np.float16)), TypeError, "grad_o must .*, but is float16"),
    (dict(o=Q[..., :8]), ValueError, "o must .*, but has .2, 5, 4, 8"),
    (dict(lse=np.zeros((2, 5, 4), np.float32)), ValueError, "lse must .*, but has .2, 5, 4"),
    (dict(lse=np.zeros((2, 4, 5))), TypeError, "lse must .*, but is float64"),
    (dict(lse=None), TypeError, "lse must .*, but is None"),
    (dict(grad_lse=np.zeros((2, 5, 4), np.float32)), ValueError, "grad_lse must .*, but has .2, 5, 4"),
    (dict(q=Q[0]), ValueError, "q must"),
    (dict(accumulate=True), ValueError, "out must .*, but is None"),
    (dict(out=[Q, KV]), TypeError, "out must .*, but has 2"),
    (dict(out=[Q, KV, KV.astype(np.float16)]), TypeError, "out.2. must .*, but is float16"),
    (dict(out=[Q, KV, KV[:, :1]]), ValueError, "out.2. must .*, but has .2, 1, 2, 16"),
    (dict(out=[LOCKED, KV, KV]), ValueError, "out.0. must .*, but is read-only"),
    (dict(out=Q), TypeError, "out must .*, but is an ndarray"),
    (dict(out=5), TypeError, "out must .*, but is an int"),
    (dict(deterministic="no"), TypeError, "deterministic must .*, but is 'no'"),
]


@pytest.mark.parametrize("bad, kind, words", BAD_GRADIENTS, ids=[words for *_, words in BAD_GRADIENTS])
def test_what_is_refused_of_gradients(bad, kind, words):
    given = dict(grad_o=Q, q=Q, k=KV, v=KV, o=Q, lse=np.zeros((2, 4, 5), np.float32)) | bad
    with pytest.raises(kind, match=words) as refused: froghopper.attention_backward(**given)
    assert isinstance(refused.value, froghopper.Error)


def test_threads():
    """Eight threads run the same problems at once, the first of them making the plans, each with inputs of its own."""
    begin, wrong = threading.Barrier(8), []
    def work(seed):
        inputs = [[drawn(seed, "float32", 1, rows, heads, 16) for heads in (4, 2, 2)] for rows in range(51, 61)]
        begin.wait()
        first = [froghopper.attention(*qkv, causal=True) for qkv in inputs]
        for _ in range(20):
            for qkv, o in zip(inputs, first):
                if not np.array_equal(froghopper.attention(*qkv, causal=True), o): wrong.append(seed)
        for (q, k, v), o in zip(inputs, first):
            of = [Sequence(0, slice(0, q.shape[1]), slice(0, q.shape[1]))]
            exact = forward(*(x.astype(np.float64) for x in (q, k, v)), of, "float32", Options(causal=True))
            if why := excess(o, *exact["o"]): wrong.append(why)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert not wrong
