# SPDX-License-Identifier: Apache-2.0
"""attention(return_max_logit=True) of NumPy, PyTorch and JAX: the largest score of each sequence and head, beside o and
lse and their gradients; merged, packed, in 8 bits; what is refused. Masks and edges are tests/max_logit_test.cpp's."""
import numpy as np
import pytest

import froghopper

BATCH, ROWS, KEYS, HEADS, HEADS_KV, DIM = 2, 20, 36, 4, 2, 32


def drawn(dtype="float32"):
    random = np.random.default_rng(3)
    shapes = ((BATCH, ROWS, HEADS, DIM), (BATCH, KEYS, HEADS_KV, DIM), (BATCH, KEYS, HEADS_KV, DIM))
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


def plain(q, k, causal=False):
    """[batch, heads] of dense q and k."""
    k = np.repeat(np.asarray(k, np.float64), HEADS // HEADS_KV, axis=2)
    s = np.einsum("bihd,bjhd->bhij", np.asarray(q, np.float64), k) / np.sqrt(DIM)
    level = np.arange(s.shape[2])[:, None] + s.shape[3] - s.shape[2]
    if causal: s = np.where(np.arange(s.shape[3]) <= level, s, -np.inf)
    return s.max(axis=(2, 3))


def close(found, wanted): np.testing.assert_allclose(np.asarray(found), wanted, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_numpy(dtype):
    q, k, v = drawn(dtype)
    o, lse = froghopper.attention(q, k, v, causal=True, return_lse=True)
    found = froghopper.attention(q, k, v, causal=True, return_max_logit=True)
    assert len(found) == 2 and found[1].shape == (BATCH, HEADS) and found[1].dtype == np.float32
    close(found[1], plain(q, k, causal=True))
    np.testing.assert_array_equal(found[0], o)
    found = froghopper.attention(q, k, v, causal=True, return_lse=True, return_max_logit=True)
    np.testing.assert_array_equal(found[1], lse)
    close(found[2], plain(q, k, causal=True))


def test_numpy_packed():
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in drawn())
    _, found = froghopper.attention(q, k, v, cu_seqlens_q=[0, 7, 7, 40], cu_seqlens_kv=[0, 30, 40, 72],
                                    return_max_logit=True)
    assert found.shape == (3, HEADS) and (found[1] == -np.inf).all()
    close(found[[0, 2]], [plain(q[None, a:b], k[None, c:d])[0] for a, b, c, d in ((0, 7, 0, 30), (7, 40, 40, 72))])


def test_numpy_merged():
    q, k, v = drawn()
    held = np.zeros_like(q), np.full((BATCH, HEADS, ROWS), -np.inf, np.float32), np.full((BATCH, HEADS), -np.inf,
                                                                                         np.float32)
    for piece in (slice(0, 5), slice(5, 36)):
        found = froghopper.attention(q, k[:, piece], v[:, piece], accumulate=held, return_max_logit=True)
    assert all(x is y for x, y in zip(found, held, strict=True))  # all three, whatever return_lse
    close(held[2], plain(q, k))
    held[2][:] = 100
    froghopper.attention(q, k, v, accumulate=held, return_max_logit=True)
    assert (held[2] == 100).all()


def test_numpy_of_8_bits():
    q, k, v = (np.random.default_rng(1).integers(0, 100, x.shape).astype(np.uint8) for x in drawn())
    words = dict(dtype="float8_e4m3fn", out_dtype="float32", scale_q=0.5, scale_k=0.25, scale_v=1)
    o, lse, found = froghopper.attention(q, k, v, return_lse=True, return_max_logit=True, **words)
    wanted = froghopper.attention(q, k, v, return_lse=True, **words)
    np.testing.assert_array_equal(o, wanted[0])
    assert (found <= lse.max(axis=2) + 1e-5).all() and (found >= lse.max(axis=2) - np.log(KEYS) - 1e-5).all()


O, LSE = np.zeros((BATCH, ROWS, HEADS, DIM), np.float32), np.zeros((BATCH, HEADS, ROWS), np.float32)
MOST = np.zeros((BATCH, HEADS), np.float32)


@pytest.mark.parametrize("given, error, sentence", [
    (dict(return_max_logit="no"), TypeError, "return_max_logit must .*, but is 'no'"),
    (dict(accumulate=(O, LSE)), TypeError,
     "accumulate must .*, but is a tuple of 2"),
    (dict(accumulate=(O, LSE, MOST), return_max_logit=False), TypeError,
     "accumulate must .*, but is a tuple of 3"),
    (dict(accumulate=(O, LSE, MOST[:1])), ValueError, "accumulate.2. must .*, but has .1, 4"),
    (dict(accumulate=(O, LSE, MOST.astype(np.float64))), TypeError, "accumulate.2. must .*, but is float64"),
    (dict(accumulate=(O, LSE, np.asfortranarray(MOST))), ValueError, "accumulate.2. must .*, but has the strides .4"),
])
def test_numpy_refuses(given, error, sentence):
    with pytest.raises(error, match=sentence): froghopper.attention(*drawn(), **dict(return_max_logit=True) | given)


def torch_of(*arrays):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from froghopper.torch import attention
    return torch, attention, [torch.from_numpy(x) for x in arrays]


def test_torch():
    torch, attention, (q, k, v) = torch_of(*drawn())
    o, lse, found = attention(q, k, v, causal=True, return_lse=True, return_max_logit=True)
    close(found, plain(q, k, causal=True))
    assert torch.equal(o, attention(q, k, v, causal=True))
    out = torch.empty_like(o)
    again = attention(q, k, v, causal=True, out=out, return_max_logit=True)
    assert again[0] is out and torch.equal(out, o) and torch.equal(again[1], found)
    again = attention(q, k, v, causal=True, out=out, return_lse=True, return_max_logit=True)
    assert torch.equal(again[1], lse) and torch.equal(again[2], found)
    assert attention(q[:0], k[:0], v[:0], return_max_logit=True)[1].shape == (0, HEADS)
    assert (attention(q[:, :0], k, v, return_max_logit=True)[1] == -torch.inf).all()


def test_torch_with_gradients():
    torch, attention, tensors = torch_of(*drawn())
    tensors = [x.requires_grad_() for x in tensors]
    for words in (dict(), dict(return_lse=True)):
        wanted = attention(*tensors, causal=True, return_lse=True)
        loss = wanted[0].square().sum() + (wanted[1].sum() if words else 0)
        expected = torch.autograd.grad(loss, tensors)
        found = attention(*tensors, causal=True, return_max_logit=True, **words)
        assert not found[-1].requires_grad and found[0].requires_grad
        loss = found[0].square().sum() + (found[1].sum() if words else 0)
        for x, y in zip(torch.autograd.grad(loss, tensors), expected): assert torch.equal(x, y)
    with pytest.raises(NotImplementedError, match="return_max_logit is given with accumulate, out or 8-bit"):
        attention(*tensors, out=torch.empty(BATCH, ROWS, HEADS, DIM), return_max_logit=True)
    q, k, v = tensors
    grad = torch.func.grad(lambda x: attention(x, k, v, return_max_logit=True)[0].sum())(q)
    torch.testing.assert_close(grad, torch.autograd.grad(attention(q, k, v).sum(), q)[0])


def test_torch_merged_and_of_8_bits():
    torch, attention, (q, k, v) = torch_of(*drawn())
    held = torch.zeros_like(q), torch.full((BATCH, HEADS, ROWS), -torch.inf), torch.full((BATCH, HEADS), -torch.inf)
    before = held[2]._version
    for piece in (slice(0, 5), slice(5, 36)):
        found = attention(q, k[:, piece], v[:, piece], accumulate=held, return_lse=True, return_max_logit=True)
    assert all(x is y for x, y in zip(found, held)) and held[2]._version > before
    close(held[2], plain(q, k))
    with pytest.raises(TypeError, match="accumulate must be .o, lse, max_logit. of earlier calls, .* is a tuple of 2"):
        attention(q, k, v, accumulate=held[:2], return_max_logit=True)
    with pytest.raises(ValueError, match=r"max_logit must have .*, but has \[1, 4\]"):
        attention(q, k, v, accumulate=(*held[:2], held[2][:1]), return_max_logit=True)
    narrow = [x.to(torch.float8_e4m3fn) for x in (q, k, v)]
    one = torch.tensor(1.0)
    words = dict(scale_q=one, scale_k=one, scale_v=one, return_max_logit=True)
    o, found = attention(*narrow, **words)
    assert o.dtype == torch.bfloat16
    close(found, plain(narrow[0].float(), narrow[1].float()))
    o, lse, found = attention(q.half(), *narrow[1:], return_lse=True, **words | dict(scale_q=None))
    assert o.dtype == torch.float16 and lse.shape == (BATCH, HEADS, ROWS)
    close(found, plain(q.half(), narrow[1].float()))


def test_torch_compiled_and_mapped():
    torch, attention, (q, k, v) = torch_of(*drawn())

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(q, k, v):
        o, found = attention(q, k, v, causal=True, return_max_logit=True)
        return o * 2, found + 1
    doubled, found = step(q, k, v)
    close(found, plain(q, k, causal=True) + 1)
    torch.testing.assert_close(doubled, 2 * attention(q, k, v, causal=True))
    x = q.clone().requires_grad_()
    step(x, k, v)[0].sum().backward()
    wanted = torch.autograd.grad(2 * attention(x, k, v, causal=True).sum(), x)[0]
    torch.testing.assert_close(x.grad, wanted)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def merge(held, k, v): return attention(q, k, v, accumulate=held, return_max_logit=True)[2] * 1
    held = torch.zeros_like(q), torch.full((BATCH, HEADS, ROWS), -torch.inf), torch.full((BATCH, HEADS), -torch.inf)
    for piece in (slice(0, 5), slice(5, 36)): once = merge(held, k[:, piece], v[:, piece])
    close(once, plain(q, k))
    close(held[2], plain(q, k))
    o, mapped = torch.func.vmap(lambda *x: attention(*(y[None] for y in x), return_max_logit=True))(q, k, v)
    close(mapped[:, 0], plain(q, k))
    assert attention(*(x.to("meta") for x in (q, k, v)), return_max_logit=True)[1].shape == (BATCH, HEADS)


def test_jax():
    jax = pytest.importorskip("jax")
    import jax_cases  # noqa: F401  (skips where the library has no handlers)
    from froghopper.jax import attention
    with jax.default_device(jax.devices("cpu")[0]):
        q, k, v = map(jax.numpy.asarray, drawn())
        o, lse, found = attention(q, k, v, causal=True, return_lse=True, return_max_logit=True)
        close(found, plain(q, k, causal=True))
        wanted = attention(q, k, v, causal=True, return_lse=True)
        np.testing.assert_array_equal(o, wanted[0])
        np.testing.assert_array_equal(lse, wanted[1])
        close(jax.jit(lambda x: attention(x, k, v, return_max_logit=True)[1])(q), plain(q, k))

        def loss(x, **words): return attention(x, k, v, causal=True, **words)
        grad, also = jax.grad(lambda x: (lambda o, most: (o.sum() + 3 * jax.lax.stop_gradient(most).sum(), most))(
            *loss(x, return_max_logit=True)), has_aux=True)(q)
        np.testing.assert_allclose(grad, jax.grad(lambda x: loss(x).sum())(q), atol=1e-5)
        close(also, plain(q, k, causal=True))
        mapped = jax.vmap(lambda *x: attention(*(y[None] for y in x), return_max_logit=True)[1][0])(q, k, v)
        close(mapped, plain(q, k))
        held = jax.numpy.zeros(q.shape), jax.numpy.full((BATCH, HEADS, ROWS), -np.inf), jax.numpy.full(
            (BATCH, HEADS), -np.inf)
        for piece in (slice(0, 5), slice(5, 36)):
            held = attention(q, k[:, piece], v[:, piece], accumulate=held, return_max_logit=True)
        close(held[2], plain(q, k))
        assert len(attention(q, k, v, accumulate=held, return_lse=True, return_max_logit=True)) == 3
        flat, ends = [x.reshape(-1, *x.shape[2:]) for x in (q, k, v)], jax.numpy.asarray([0, 20, 40], "int32")
        packed = attention(*flat, cu_seqlens_q=ends, cu_seqlens_kv=jax.numpy.asarray([0, KEYS, 2 * KEYS], "int32"),
                           return_max_logit=True)[1]
        close(packed, plain(q, k))
        with pytest.raises(ValueError, match="accumulate.2. must .*, but has .1, 4"):
            attention(q, k, v, accumulate=(*held[:2], held[2][:1]), return_max_logit=True)
