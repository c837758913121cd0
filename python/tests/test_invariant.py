# SPDX-License-Identifier: Apache-2.0
"""attention(invariant=True) of NumPy, PyTorch and JAX: a row alone, in a batch and packed has the same bits. All kinds
of company are tests/invariant_test.cpp's."""
import numpy as np
import pytest

import froghopper

ROWS, HEADS, DIM = 300, 2, 32


def drawn():
    random = np.random.default_rng(5)
    return [random.standard_normal((3, ROWS, HEADS, DIM)).astype(np.float32) for _ in range(3)]


def check(attention, pack, arrays):
    """attention and pack: of this framework; pack makes its arrays of lengths."""
    q, k, v = arrays
    words = dict(causal=True, invariant=True, return_lse=True)
    o, lse = (np.asarray(x) for x in attention(q, k, v, **words))
    alone = attention(q[1:2, -1:], k[1:2], v[1:2], **words)
    np.testing.assert_array_equal(np.asarray(alone[0])[0, 0], o[1, -1])
    np.testing.assert_array_equal(np.asarray(alone[1])[0, :, 0], lse[1, :, -1])
    ends = pack([0, ROWS, 2 * ROWS, 3 * ROWS])
    flat = [x.reshape(3 * ROWS, HEADS, DIM) for x in arrays]
    packed = attention(*flat, cu_seqlens_q=ends, cu_seqlens_kv=ends, max_seqlen_q=ROWS, max_seqlen_kv=ROWS, **words)
    np.testing.assert_array_equal(np.asarray(packed[0]).reshape(o.shape), o)


def test_numpy():
    check(froghopper.attention, list, drawn())
    with pytest.raises(TypeError, match="invariant must .*, but is 'no'"):
        froghopper.attention(*drawn(), invariant="no")


def test_torch():
    torch = pytest.importorskip("torch")
    from froghopper.torch import attention
    tensors = [torch.from_numpy(x) for x in drawn()]
    check(attention, lambda ends: torch.tensor(ends, dtype=torch.int32), tensors)
    tensors = [x.requires_grad_() for x in tensors]
    attention(*tensors, invariant=True).sum().backward()  # gradients are as without it
    grads = [x.grad.clone() for x in tensors]
    for x in tensors: x.grad = None
    attention(*tensors).sum().backward()
    for x, wanted in zip(tensors, grads): torch.testing.assert_close(x.grad, wanted)
    with pytest.raises(TypeError, match="invariant must .*, but is 'no'"):
        attention(*tensors, invariant="no")


def test_jax():
    jax = pytest.importorskip("jax")
    import jax_cases  # noqa: F401  (skips where the library has no handlers)
    from froghopper.jax import attention
    with jax.default_device(jax.devices("cpu")[0]):
        check(attention, lambda ends: jax.numpy.asarray(ends, "int32"), [jax.numpy.asarray(x) for x in drawn()])
        q, k, v = (jax.numpy.asarray(x) for x in drawn())
        wanted = jax.grad(lambda x: attention(x, k, v).sum())(q)
        np.testing.assert_allclose(jax.grad(lambda x: attention(x, k, v, invariant=True).sum())(q), wanted, atol=1e-5)
