# SPDX-License-Identifier: Apache-2.0
"""Head dims of flash_attn_interface that are no multiples of 8: padded with zeros as FlashAttention 2 pads them, with
gradients, into out, packed, in 8 bits and where torch.compile traces; refused of caches and pages, which are not
copied."""
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from froghopper import _flash_widths as widths
from froghopper import flash_attn_interface as fa

WIDTHS = [(12, 12), (20, 20), (16, 12), (12, 16), (1, 3), (250, 250)]
ENDS = torch.tensor([0, 2, 6], dtype=torch.int32)


def drawn(dim, dim_v, heads_k=2):
    torch.manual_seed(dim)
    return [torch.randn(shape, requires_grad=True) for shape in ((1, 6, 4, dim), (1, 6, heads_k, dim),
                                                                 (1, 6, heads_k, dim_v))]


def plain(q, k, v, causal=False, scale=None):
    """PyTorch's own, of equal lengths."""
    return torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal, enable_gqa=True, scale=scale).transpose(1, 2)


def same(found, wanted): torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("dim, dim_v", WIDTHS)
@pytest.mark.parametrize("scale", [None, 0.3])
def test_dense(dim, dim_v, scale):
    q, k, v = drawn(dim, dim_v)
    found, wanted = fa.flash_attn_func(q, k, v, scale, causal=True), plain(q, k, v, True, scale)
    assert found.shape == (1, 6, 4, dim_v)
    same(found, wanted)
    grad = torch.randn_like(wanted)
    for of_ours, of_theirs in zip(*(torch.autograd.grad(o, (q, k, v), grad) for o in (found, wanted))):
        same(of_ours, of_theirs)
    o, lse = fa.flash_attn_func(q, k, v, softmax_scale=scale, causal=True, return_attn_probs=True)
    assert torch.equal(o, found) and lse.shape == (1, 4, 6)


@pytest.mark.parametrize("dim, dim_v", WIDTHS)
def test_packed(dim, dim_v):
    q, k, v = (x.detach()[0] for x in drawn(dim, dim_v))
    parts = [plain(q[None, a:b], k[None, a:b], v[None, a:b])[0] for a, b in ((0, 2), (2, 6))]
    same(fa.flash_attn_varlen_func(q, k, v, ENDS, ENDS, 4, 4), torch.cat(parts))
    same(fa.flash_attn_varlen_func(q, k, v, 4, ENDS, 4, ENDS), torch.cat(parts))  # vLLM's order
    out = torch.full((6, 4, dim_v), 7.0)
    found, lse = fa.flash_attn_varlen_func(q, k, v, ENDS, ENDS, 4, 4, out=out, return_softmax_lse=True)
    assert found is out and lse.shape == (4, 6)
    same(out, torch.cat(parts))
    same(fa.flash_attn_varlen_func(q, k[None], v[None], torch.tensor([0, 6], dtype=torch.int32), max_seqlen_q=6),
         plain(q[None], k[None], v[None])[0])


def test_in_one_tensor():
    q, k, v = drawn(12, 12, 4)
    qkv, kv = torch.stack((q, k, v), 2).detach().requires_grad_(), torch.stack((k, v), 2)
    wanted, grad = plain(q, k, v), torch.randn(1, 6, 4, 12)
    of_parts = torch.stack(torch.autograd.grad(wanted, (q, k, v), grad), 2)
    found = fa.flash_attn_qkvpacked_func(qkv)
    same(found, wanted)
    same(torch.autograd.grad(found, qkv, grad)[0], of_parts)
    same(fa.flash_attn_kvpacked_func(q, kv), wanted)
    end = torch.tensor([0, 6], dtype=torch.int32)
    same(fa.flash_attn_varlen_qkvpacked_func(qkv[0], end, 6), wanted[0])
    same(fa.flash_attn_varlen_kvpacked_func(q[0], kv[0], end, end, 6, 6), wanted[0])


def test_eight_bits():
    q, k, v = (x.detach().to(torch.float8_e4m3fn) for x in drawn(24, 20))
    found = fa.flash_attn_func(q, k, v)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), plain(q.float(), k.float(), v.float()), atol=0.2, rtol=0.1)


def test_compiled():
    q, k, v = drawn(12, 20)
    for call in (lambda *x: fa.flash_attn_func(*x, causal=True), lambda *x: fa.flash_attn_func(*x, is_causal=False)):
        torch._dynamo.reset()
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        grads = [torch.autograd.grad(f(q, k, v).square().sum(), (q, k, v)) for f in (compiled, call)]
        for one, other in zip(*grads): same(one, other)


def test_refused():
    """What is wrong with wider tensors too, and what would copy a cache."""
    q, k, v = (x.detach() for x in drawn(12, 12))
    with pytest.raises(ValueError, match="k must have the dim of q, 12, but has 16"):
        fa.flash_attn_func(q, *(torch.zeros(1, 6, 2, 16),) * 2)
    with pytest.raises(NotImplementedError, match="multiples of 8 from 8 to 512, but that of q and k is 513"):
        fa.flash_attn_func(*(torch.zeros(1, 6, 2, 513),) * 3)
    with pytest.raises(ValueError, match=r"^out must have the shape \[6, 4, 12\], but has \[6, 4, 16\]"):
        fa.flash_attn_varlen_func(q[0], k[0], v[0], ENDS, ENDS, 4, 4, out=torch.empty(6, 4, 16))
    with pytest.raises(NotImplementedError, match="^out is given and a tensor requires a gradient"):
        fa.flash_attn_varlen_func(q[0].requires_grad_(), k[0], v[0], ENDS, ENDS, 4, 4, out=torch.empty(6, 4, 12))
    says = (r"12. A cache is read where it lies, .* Make k_cache with 16 and v_cache with 16 columns, .* pad q, give "
            r"softmax_scale=1/sqrt\(12\) and cut out to 12 columns")
    with pytest.raises(NotImplementedError, match=says): fa.flash_attn_with_kvcache(q, k, v)
    table = torch.zeros(1, 1, dtype=torch.int32)
    with pytest.raises(NotImplementedError, match="that of v is 12. A pool is .* Make v with 16 columns, .*; cut out"):
        fa.flash_attn_varlen_func(torch.zeros(6, 4, 16), torch.zeros(1, 6, 2, 16), v, ENDS[::2].contiguous(), None, 6,
                                  6, block_table=table)


def test_costs_nothing_where_nothing_is_padded(monkeypatch):
    for name in ("is_odd", "padded", "is_of_widths"): monkeypatch.setattr(widths, name, None)
    fa.flash_attn_func(*drawn(16, 24))
