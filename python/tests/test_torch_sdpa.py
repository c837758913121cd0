# SPDX-License-Identifier: Apache-2.0
"""froghopper.torch.scaled_dot_product_attention and flash_attn_func go straight to the native operators where a call is
the usual one, with the bits and gradients that attention gives; what PyTorch computes instead is said once."""
import warnings

import pytest

torch = pytest.importorskip("torch", reason="froghopper.torch needs torch, which is not installed")

from froghopper import _torch_sdpa as sdpa  # noqa: E402
from froghopper import flash_attn_interface as fa  # noqa: E402
from froghopper.torch import attention, scaled_dot_product_attention  # noqa: E402


def drawn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def leaves(*tensors): return [x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for x in tensors]


def step(call, tensors):
    """The result, and gradients of it, twice: the second call finds what the first has made."""
    found = []
    for _ in range(2):
        held = leaves(*tensors)
        o = call(*held)
        found += [o.detach(), *torch.autograd.grad(o, held, torch.ones_like(o))]
    with torch.no_grad(): return [*found, call(*tensors)]


def same(a, b):
    for x, y in zip(a, b, strict=True): assert torch.equal(x, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("words", [{}, dict(causal=True), dict(scale=0.3), dict(causal=True, scale=0.0)])
def test_shorter_ways(words, dtype, monkeypatch):
    q, k, v = drawn(2, 5, 4, 16, dtype=dtype), drawn(2, 9, 2, 16, seed=1, dtype=dtype), drawn(2, 9, 2, 24, seed=2,
                                                                                              dtype=dtype)
    wanted = step(lambda *x: attention(*x, **words), (q, k, v))
    monkeypatch.setattr(fa, "attention", None)  # not called
    scale = dict(softmax_scale=words["scale"]) if "scale" in words else {}
    same(step(lambda *x: fa.flash_attn_func(*x, causal="causal" in words, **scale), (q, k, v)), wanted)
    turned = step(lambda *x: attention(*x, **words, align="top_left"), (q, k, v))
    monkeypatch.setattr(sdpa, "heads_fourth", None)
    rest = dict(scale=words.get("scale"), is_causal="causal" in words, enable_gqa=True)
    found = step(lambda *x: scaled_dot_product_attention(*x, **rest), [x.transpose(1, 2) for x in (q, k, v)])
    same([x.transpose(1, 2) for x in found], turned)


def test_float64_is_left_to_pytorch(monkeypatch):
    """With one warning, in its own bits, also where torch.nn.functional has been replaced."""
    monkeypatch.setattr(sdpa, "_told", set())
    q, k, v = (drawn(2, 3, 9, 16, seed=seed).double() for seed in range(3))
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", scaled_dot_product_attention)
    with pytest.warns(UserWarning, match="are float64, which froghopper does not compute; PyTorch's own"):
        assert torch.equal(scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3), wanted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3), wanted)


@pytest.mark.parametrize("dim, dim_v", [(513, 513), (64, 601)])
def test_more_columns_than_there_are(dim, dim_v):
    q, v = torch.zeros(1, 1, 3, dim), torch.zeros(1, 1, 3, dim_v)
    with pytest.raises(NotImplementedError, match=f"at most 512 columns, but query has {dim} and value has {dim_v}. "
                                                  "Use torch.nn.functional"):
        scaled_dot_product_attention(q, q, v)


def test_dims_and_scales_under_compile():
    """Odd head dims and negative scales in one graph, as eager calls give them."""
    compiled = torch.compile(scaled_dot_product_attention, fullgraph=True, backend="aot_eager")
    q, k, v = (drawn(2, 3, 9, 12, seed=seed) for seed in range(3))
    for words in ({}, dict(scale=-0.3)):
        assert torch.equal(compiled(q, k, v, **words), scaled_dot_product_attention(q, k, v, **words))
