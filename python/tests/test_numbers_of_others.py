# SPDX-License-Identifier: Apache-2.0
"""Scalars and arrays of NumPy and words of other libraries where PyTorch's functions are called: what is taken, and
ways out that end in a call that works."""
import pytest

torch = pytest.importorskip("torch", reason="these calls are PyTorch's, which is not installed")

import numpy as np  # noqa: E402

import froghopper  # noqa: E402
from froghopper import flash_attn_interface as fa  # noqa: E402
from froghopper.torch import append_kv, attention  # noqa: E402

Q, K = torch.randn(2, 7, 4, 16), torch.randn(2, 7, 2, 16)
K8 = K.to(torch.float8_e4m3fn)
USED = torch.tensor([7, 7], dtype=torch.int32)


def cached(**more): return fa.flash_attn_with_kvcache(Q[:, -1:], K, K, **more)


@pytest.mark.parametrize("given, sentence", [
    (np.array(7), r"is array\(7\). Give int\(cache_seqlens\).$"),
    (np.array([7, 7], np.int32), r"Give torch.tensor\(cache_seqlens, dtype=torch.int32\).$"),
    (torch.tensor(7), r"Give it 2 numbers, and use cache_seqlens.int\(\).$"),
    (USED[:, None], r"Use cache_seqlens.flatten\(\).$"),
    (USED.long(), r"Use cache_seqlens.int\(\).$"),
    (USED.long()[:, None], r"Use cache_seqlens.int\(\).flatten\(\).$")])
def test_lengths_of_a_cache(given, sentence):
    with pytest.raises(TypeError, match=sentence): cached(cache_seqlens=given)
    assert torch.equal(cached(cache_seqlens=np.int64(7)), cached(cache_seqlens=USED))


def test_a_table_of_one_dimension():
    with pytest.raises(TypeError, match=r"the shape \[2\]. Give a row of pages for each sequence.$"):
        cached(cache_seqlens=USED, page_table=torch.tensor([0, 1], dtype=torch.int32))


def test_scales_are_numbers_of_numpy_too():
    wanted = attention(Q.half(), K8, K8, scale_k=0.5, scale_v=2.0)
    assert torch.equal(attention(Q.half(), K8, K8, scale_k=np.float32(0.5), scale_v=np.int64(2)), wanted)
    with pytest.raises(ValueError, match=r"has \[4\]. Give it one of these shapes.$"):  # perhaps of query heads
        attention(Q.half(), K8, K8, scale_k=torch.ones(4), scale_v=1.0)


def test_a_window_of_one_number():
    wanted = attention(Q, K, K, window=(3, 3))
    assert torch.equal(attention(Q, K, K, local_window_size=np.int64(3)), wanted)
    found = froghopper.attention(Q.numpy(), K.numpy(), K.numpy(), local_window_size=np.int32(3))
    torch.testing.assert_close(torch.from_numpy(found), wanted)
    with pytest.raises(TypeError, match="local_window_size must be .* is True"):
        attention(Q, K, K, local_window_size=True)


def test_words_that_mean_something_else():
    """jax.nn's has its heads last, which would be seen in no shape with as many heads as rows."""
    with pytest.raises(TypeError, match=r"Did you mean return_lse\? It gives \[batch, heads, seq\]; .*swapaxes"):
        attention(Q, K, K, return_residual=True)
    with pytest.raises(TypeError, match="no argument scale_tokens. The shape of scale_k says it"):
        append_kv(K, K, K8, K8, scale_tokens=True)


def test_tables_with_a_batch_axis():
    """Of half the columns: to cut them again would rotate a part of them."""
    cos, sin = torch.randn(1, 9, 8), torch.randn(1, 9, 8)
    with pytest.raises(ValueError, match=r"Use rotary_cos\[0\] and rotary_sin\[0\], with a row for each position"):
        append_kv(K, K, K.clone(), K.clone(), rotary_cos=cos, rotary_sin=sin)
    with pytest.raises(ValueError, match=r"use rotary_cos\[0, :, :8\] and rotary_sin\[0, :, :8\]"):
        append_kv(K, K, K.clone(), K.clone(), rotary_cos=torch.cat([cos] * 2, -1), rotary_sin=torch.cat([sin] * 2, -1))
    append_kv(K, K, K.clone(), K.clone(), rotary_cos=cos[0], rotary_sin=sin[0])
