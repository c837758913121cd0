# SPDX-License-Identifier: Apache-2.0
"""attention(accumulate=(o, lse)) of NumPy, PyTorch and JAX: keys in pieces give what all of them give; what is
refused. Rows that see nothing, sinks and rings of devices are tests/merge_test.cpp's."""
import numpy as np
import pytest

import froghopper

BATCH, ROWS, KEYS, HEADS, HEADS_KV, DIM = 2, 20, 36, 4, 2, 32
PIECES = [slice(0, 5), slice(5, 21), slice(21, 36)]


def drawn(dtype="float32"):
    random = np.random.default_rng(3)
    shapes = ((BATCH, ROWS, HEADS, DIM), (BATCH, KEYS, HEADS_KV, DIM), (BATCH, KEYS, HEADS_KV, DIM))
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


def nothing():
    """The pair to begin with. o is not read where lse is -inf."""
    return np.full((BATCH, ROWS, HEADS, DIM), np.nan, np.float32), np.full((BATCH, HEADS, ROWS), -np.inf, np.float32)


ATOL = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1e-2}


def close(found, wanted, dtype="float32"):
    for x, y in zip(found, wanted): np.testing.assert_allclose(np.asarray(x), y, atol=ATOL[dtype])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_numpy(dtype):
    q, k, v = drawn(dtype)
    wanted = froghopper.attention(*(x.astype(np.float32) for x in (q, k, v)), softcap=8.0, return_lse=True)
    held = nothing()
    for piece in PIECES:
        found = froghopper.attention(q, k[:, piece], v[:, piece], softcap=8.0, accumulate=held)
        assert found[0] is held[0] and found[1] is held[1]  # both, whatever return_lse
    close(held, wanted, dtype)
    assert froghopper.attention(q, k[:, :0], v[:, :0], accumulate=held, return_lse=True)[1] is held[1]
    close(held, wanted, dtype)


def test_numpy_packed():
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in drawn())
    ends_q, ends_kv = [0, 7, 40], [0, 30, 72]
    words = dict(cu_seqlens_q=ends_q, cu_seqlens_kv=ends_kv, causal=True, return_lse=True)
    wanted, wanted_lse = froghopper.attention(q, k, v, **words)
    held = np.zeros_like(wanted), np.full_like(wanted_lse, -np.inf)
    froghopper.attention(q, k, v, accumulate=held, **words)
    close(held, (wanted, wanted_lse))
    froghopper.attention(q, k, v, accumulate=held, **words)  # every key twice
    close(held, (wanted, wanted_lse + np.log(2)))


O, LSE = nothing()


@pytest.mark.parametrize("given, error, sentence", [
    (dict(accumulate=O), TypeError, "accumulate must .*, but is an ndarray"),
    (dict(accumulate=(O, LSE), out=O), ValueError, "out and accumulate are given"),
    (dict(accumulate=(O.astype(np.float64), LSE)), TypeError, "accumulate.0. must .*, but is float64"),
    (dict(accumulate=(O[:1], LSE)), ValueError, "accumulate.0. must .*, but has .1, 20, 4, 32"),
    (dict(accumulate=(O, LSE[:, :1])), ValueError, "accumulate.1. must .*, but has .2, 1, 20"),
    (dict(accumulate=(O, np.asfortranarray(LSE))), ValueError, "accumulate.1. must .*, but has the strides .4, 8, 3"),
    (dict(accumulate=(O, LSE), sink=np.zeros(HEADS, np.float32)), ValueError, "sink must .*, but is given"),
])
def test_numpy_refuses(given, error, sentence):
    with pytest.raises(error, match=sentence): froghopper.attention(*drawn(), **given)


def test_torch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from froghopper.torch import attention
    q, k, v = map(torch.from_numpy, drawn())
    wanted = attention(q, k, v, return_lse=True)
    held = tuple(map(torch.from_numpy, nothing()))
    before = held[0]._version
    for piece in PIECES: found = attention(q, k[:, piece], v[:, piece], accumulate=held, return_lse=True)
    assert found[0] is held[0] and found[1] is held[1] and held[0]._version > before
    close(held, wanted)
    with pytest.raises(NotImplementedError, match="accumulate is given and a tensor requires a gradient"):
        attention(q.clone().requires_grad_(), k, v, accumulate=held)
    with pytest.raises(TypeError, match=r"accumulate\[0\] must be float32, but is float16"):
        attention(q, k, v, accumulate=(held[0].half(), held[1]))
    with pytest.raises(ValueError, match="accumulate is given and out too"):
        attention(q, k, v, accumulate=held, out=held[0])


def test_torch_of_8_bits():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from froghopper.torch import attention
    q, k, v = (torch.from_numpy(x).to(torch.float8_e4m3fn) for x in drawn())
    scales = dict(scale_q=torch.tensor(0.5), scale_k=torch.tensor(2.0), scale_v=torch.tensor(1.5))
    wanted = attention(q, k, v, return_lse=True, out_dtype=torch.float32, **scales)
    held = tuple(map(torch.from_numpy, nothing()))
    for piece in PIECES: attention(q, k[:, piece], v[:, piece], accumulate=held, **scales)
    close(held, wanted, "bfloat16")  # some processors round weights to it


def test_torch_compiled():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from froghopper.torch import attention
    q, k, v = map(torch.from_numpy, drawn())
    wanted = attention(q, k, v, return_lse=True)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(held, k, v): return attention(q, k, v, accumulate=held, return_lse=True)[0] * 2
    held = tuple(map(torch.from_numpy, nothing()))
    for piece in PIECES: doubled = step(held, k[:, piece], v[:, piece])
    close(held, wanted)
    close([doubled], [2 * wanted[0]])


def test_jax():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    from froghopper.jax import attention
    q, k, v = map(jax.numpy.asarray, drawn())
    with jax.default_device(jax.devices("cpu")[0]):
        wanted = attention(q, k, v, return_lse=True)
        begin = held = tuple(map(jax.numpy.asarray, nothing()))
        for piece in PIECES: held = attention(q, k[:, piece], v[:, piece], accumulate=held)
        close(held, wanted)
        close(jax.jit(lambda *x: attention(*x[:3], accumulate=x[3:], return_lse=True))(q, k, v, *begin), wanted)
        assert np.isnan(begin[0]).all()  # arrays of JAX stay as they are
        twice = jax.vmap(lambda *x: attention(*x[:3], accumulate=x[3:], return_lse=True))(
            *(x[:, None] for x in (q, k, v, *held)))
        close([twice[1][:, 0]], [wanted[1] + np.log(2)])
        with pytest.raises(NotImplementedError, match="accumulate is given and a gradient is asked for"):
            jax.grad(lambda x: attention(x, k, v, accumulate=held)[0].sum())(q)
        with pytest.raises(ValueError, match="accumulate.0. must .*, but has .1, 20, 4, 32"):
            attention(q, k, v, accumulate=(held[0][:1], held[1]))
        with pytest.raises(TypeError, match=r"accumulate\[1\] must be an array of JAX, but is None"):
            attention(q, k, v, accumulate=(held[0], None))
        merged = jax.grad(lambda x: merge_by_hand(jax.numpy, held, attention(x, k, v, return_lse=True)).sum())(q)
        alone = jax.grad(lambda x: merge_by_hand(jax.numpy, held, plain(jax.numpy, x, k, v)).sum())(q)
        close([merged], [alone])  # as that refusal says


def plain(np, q, k, v):
    k, v = (np.repeat(x, HEADS // HEADS_KV, axis=2) for x in (k, v))
    s = np.einsum("bshd,bthd->bhst", q, k) / DIM**0.5
    lse = np.log(np.exp(s).sum(-1))
    return np.einsum("bhst,bthd->bshd", np.exp(s - lse[..., None]), v), lse


def merge_by_hand(np, held, found):
    """o of both sets of keys."""
    lse = np.logaddexp(held[1], found[1])
    first, second = (np.exp(part - lse).swapaxes(1, 2)[..., None] for part in (held[1], found[1]))
    return first * held[0] + second * found[0]
