# SPDX-License-Identifier: Apache-2.0
"""alibi_slopes, beside the cases of test_numpy.py, which every framework computes: slopes of each sequence, what has no
gradient, what is refused."""
import numpy as np
import pytest
from test_numpy import SLOPES, drawn

import froghopper

SLOPES_OF_EACH = np.stack([SLOPES, SLOPES[::-1]])


def arrays(): return drawn(0, "float32", 2, 9, 4, 16), *(drawn(i, "float32", 2, 12, 2, 16) for i in (1, 2))


def one_by_one(function):
    q, k, v = arrays()
    return np.concatenate([np.asarray(function(q[i:i + 1], k[i:i + 1], v[i:i + 1], alibi_slopes=SLOPES_OF_EACH[i]))
                           for i in range(2)])


def test_numpy_takes_slopes_of_each_sequence():
    wanted = one_by_one(froghopper.attention)
    for slopes in (SLOPES_OF_EACH, np.asfortranarray(SLOPES_OF_EACH), SLOPES_OF_EACH.tolist()):
        np.testing.assert_array_equal(froghopper.attention(*arrays(), alibi_slopes=slopes), wanted)
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in arrays())
    packed = froghopper.attention(q, k, v, cu_seqlens_q=[0, 9, 18], cu_seqlens_kv=[0, 12, 24],
                                  alibi_slopes=SLOPES_OF_EACH)
    np.testing.assert_array_equal(packed, wanted.reshape(packed.shape))


@pytest.mark.parametrize("slopes, error, sentence", [
    (SLOPES[:3], ValueError, "alibi_slopes must .*, but has .3"),
    (SLOPES > 0, TypeError, "alibi_slopes must .*, but is bool"),
])
def test_numpy_refuses(slopes, error, sentence):
    with pytest.raises(error, match=sentence): froghopper.attention(*arrays(), alibi_slopes=slopes)


def test_torch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from froghopper.torch import attention
    q, k, v = map(torch.from_numpy, arrays())
    slopes = torch.from_numpy(SLOPES_OF_EACH)
    found = attention(q, k, v, alibi_slopes=slopes)
    np.testing.assert_array_equal(found, one_by_one(froghopper.attention))
    with pytest.raises(NotImplementedError, match="alibi_slopes requires a gradient; it has none here"):
        attention(q, k, v, alibi_slopes=slopes.clone().requires_grad_())
    with pytest.raises(ValueError, match="alibi_slopes must have"): attention(q, k, v, alibi_slopes=slopes[:, :2])
    with pytest.raises(TypeError, match="alibi_slopes must .*, but"): attention(q, k, v, alibi_slopes=slopes.double())
    shared = torch.func.vmap(lambda q, k, v: attention(q[None], k[None], v[None], alibi_slopes=slopes[0]))(q, k, v)
    assert torch.equal(shared[:, 0], attention(q, k, v, alibi_slopes=slopes[0]))
    narrow = [x.to(torch.float8_e4m3fn) for x in (q, k, v)]
    one = torch.ones(())
    found = attention(*narrow, scale_q=one, scale_k=one, scale_v=one, out_dtype=torch.float32, alibi_slopes=slopes)
    wanted = attention(*(x.float() for x in narrow), alibi_slopes=slopes)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-2)  # weights may be rounded to bf16


def test_jax():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    from froghopper.jax import attention
    with jax.default_device(jax.devices("cpu")[0]):
        q, k, v = map(jax.numpy.asarray, arrays())
        np.testing.assert_array_equal(attention(q, k, v, alibi_slopes=SLOPES_OF_EACH), one_by_one(froghopper.attention))
        def one(*x): return attention(*(y[None] for y in x[:3]), alibi_slopes=x[3])[0]
        mapped = jax.vmap(one)(q, k, v, SLOPES_OF_EACH)
        np.testing.assert_array_equal(mapped, one_by_one(froghopper.attention))
        with pytest.raises(ValueError, match="alibi_slopes must have"): attention(q, k, v, alibi_slopes=SLOPES[:2])
