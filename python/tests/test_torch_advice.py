# SPDX-License-Identifier: Apache-2.0
"""The ways out that messages of froghopper.torch name: each is gone, and gives what is right."""
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.nn import functional
from torch_cases import drawn, one_thread, qkv, same

from froghopper.torch import attention, quantise, scaled_dot_product_attention

USED = torch.tensor([5, 9], dtype=torch.int32)  # of 9 rows
ENDS = torch.tensor([0, 4, 9], dtype=torch.int32)


def refused(function, words, kind=Exception):
    with pytest.raises(kind, match=words): function()


def exact(q, k, v, keep):
    """PyTorch's own attention in fp64. keep: [rows, keys] or [batch, 1, rows, keys], True where a key is seen."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=keep).transpose(1, 2).float()


CAUSAL = torch.ones(9, 9).tril().bool()
REAL = torch.arange(9) < USED[:, None, None, None]  # [batch, 1, 1, keys]


def test_a_mask_of_padded_keys():
    q, k, v = qkv(2, 9, 4, 16)
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    refused(lambda: scaled_dot_product_attention(*turned, attn_mask=REAL), "for keys that are padding with seqused_kv. "
            "Where such padding meets causal or window, give align=\"top_left\" or seqused_q too", NotImplementedError)
    torch.testing.assert_close(attention(q, k, v, seqused_kv=USED), exact(q, k, v, REAL))
    for window, keep in ((None, CAUSAL & REAL), ((2, None), CAUSAL.triu(-2) & REAL)):
        wanted, options = exact(q, k, v, keep), dict(causal=True, window=window, seqused_kv=USED)
        rows = REAL[:, 0, 0, :, None, None]  # where rows are padding nobody reads what comes of them
        for found in (attention(q, k, v, **options, align="top_left"), attention(q, k, v, **options, seqused_q=USED)):
            torch.testing.assert_close(found * rows, wanted.nan_to_num() * rows)
        # What the advice is for: the last query of 9 would be level with the last key of 5.
        assert (attention(q, k, v, **options) - wanted)[0, :5].abs().max() > 0.1


def test_heads_that_are_fewer():
    q, k, v = (x.transpose(1, 2) for x in qkv(2, 9, 4, 16, kv=(2, 9, 2, 16)))
    refused(lambda: scaled_dot_product_attention(q, k, v), "query, key and value must .*, but have 4, 2", ValueError)
    wanted = attention(*(x.transpose(1, 2) for x in (q, k, v)))
    same([scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2)], [wanted])
    refused(lambda: scaled_dot_product_attention(q[:, :3], k, v), "must .*, but have 3, 2 and 2",
            ValueError)
    refused(lambda: scaled_dot_product_attention(q, k, v[:, :1].repeat(1, 4, 1, 1)), "one number of heads", ValueError)


def test_layouts():
    parts = [drawn(4, 2, 8), drawn(5, 2, 8, seed=1)]
    nested, sparse = torch.nested.nested_tensor(parts, layout=torch.jagged), drawn(2, 9, 4, 16).to_sparse()
    refused(lambda: attention(nested, nested, nested), r"Use q.values\(\), k.* with q.offsets\(\).int\(\) as cu_",
            TypeError)
    ends = dict(cu_seqlens_q=nested.offsets().int(), cu_seqlens_kv=nested.offsets().int())
    found = attention(nested.values(), nested.values(), nested.values(), **ends)
    for part, o in zip(parts, found.split([4, 5])): torch.testing.assert_close(attention(*[part[None]] * 3)[0], o)
    refused(lambda: attention(sparse, sparse, sparse), r"Use q.to_dense\(\) and k.to_dense\(\)", TypeError)
    assert attention(sparse.to_dense(), sparse.to_dense(), sparse.to_dense()).shape == sparse.shape


@pytest.mark.parametrize("call", [attention, quantise])
def test_lists_of_lengths(call):
    tensors = qkv(9, 2, 16)
    given = dict(cu_seqlens_q=ENDS.tolist(), cu_seqlens_kv=ENDS)
    refused(lambda: call(*tensors, **given),
            r"Use torch.as_tensor\(cu_seqlens_q, dtype=torch.int32, device=q.device\)", TypeError)
    given["cu_seqlens_q"] = torch.as_tensor(given["cu_seqlens_q"], dtype=torch.int32, device=tensors[0].device)
    refused(lambda: call(*tensors, **given, seqused_kv=[1, 2]), r"Use torch.as_tensor\(seqused_kv, dtype", TypeError)
    call(*tensors, **given, seqused_kv=torch.as_tensor([1, 2], dtype=torch.int32))
    refused(lambda: call(tensors[0].tolist(), *tensors[1:]), "q must .*, but is a list", TypeError)
    refused(lambda: call(*tensors, **given, max_seqlen_q=torch.tensor(5)), "max_seqlen_q must .*, but is", TypeError)
    refused(lambda: call(*tensors, **given, max_seqlen_q=-1), "max_seqlen_q must .*, but is -1", ValueError)


def test_gradients_of_8_bits():
    q, k, v = (x.to(torch.float8_e4m3fn) for x in qkv(2, 9, 4, 16))
    scales = dict(scale_q=torch.tensor(0.5), scale_k=torch.tensor(2.0), scale_v=torch.tensor(1.5))
    leaf = v.clone().requires_grad_()
    refused(lambda: attention(q, k, leaf, **scales), "Multiply q, k and v by their scales in one of these and give no "
            r"scales, or call under torch.no_grad\(\)", NotImplementedError)
    with torch.no_grad(): wanted = attention(q, k, leaf, **scales, out_dtype=torch.float32)
    wide = [(x.float() * s).requires_grad_() for x, s in zip((q, k, v), scales.values())]
    o = attention(*wide)
    torch.testing.assert_close(o.detach(), wanted, atol=2e-2, rtol=2e-2)  # some processors round weights to bf16
    o.sum().backward()


def test_results_into_tensors_that_are_there():
    q, k, v = qkv(1, 5, 2, 8, grad=True)
    held = torch.zeros(1, 5, 2, 8), torch.full((1, 2, 5), -torch.inf)
    refused(lambda: attention(q, k, v, out=torch.empty(1, 5, 2, 8)), "Leave out out, or call under torch.no_grad",
            NotImplementedError)
    refused(lambda: attention(q, k, v, accumulate=held), "Merge .o, lse. of attention.*yourself", NotImplementedError)
    most = torch.full((1, 2), -torch.inf)
    for options in (dict(out=torch.empty(1, 5, 2, 8)), dict(accumulate=(*held, most))):
        refused(lambda: attention(q, k, v, return_max_logit=True, **options),
                "Leave out accumulate and out and give k and v in 16 bits, or call", NotImplementedError)
        with torch.no_grad(): attention(q, k, v, return_max_logit=True, **options)
    halves = [attention(q, k[:, at], v[:, at], return_lse=True) for at in (slice(0, 2), slice(2, 5))]
    lse = torch.logaddexp(*(x for _, x in halves))
    merged = sum(o * (x - lse).exp().transpose(1, 2)[..., None] for o, x in halves)
    torch.testing.assert_close(merged, attention(q, k, v))
    torch.testing.assert_close(torch.autograd.grad(merged.square().sum(), [q, k, v]),
                               torch.autograd.grad(attention(q, k, v).square().sum(), [q, k, v]))
    slopes = torch.ones(2, requires_grad=True)
    refused(lambda: attention(q, k, v, alibi_slopes=slopes), r"Use alibi_slopes.detach\(\)", NotImplementedError)
    attention(q, k, v, alibi_slopes=slopes.detach())


def test_second_derivatives():
    q, k, v = qkv(1, 5, 2, 8, grad=True)
    grad, = torch.autograd.grad(attention(q, k, v).square().sum(), q, create_graph=True)
    refused(grad.sum().backward, "with SDPBackend.MATH for it", NotImplementedError)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        o = functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)))
        torch.autograd.grad(o.square().sum(), q, create_graph=True)[0].sum().backward()
    assert q.grad is not None


def test_operators_without_gradients():
    q, k, v = (x.to(torch.float8_e4m3fn) for x in qkv(2, 9, 4, 16))
    one, leaf = torch.tensor(1.0), torch.tensor(1.0, requires_grad=True)
    refused(lambda: attention(q, k, v, scale_q=leaf, scale_k=one, scale_v=one), "scale_q requires a gradient; "
            r"attention of 8-bit k and v has none. Use scale_q.detach\(\)", NotImplementedError)
    refused(lambda: attention(q, k, v, scale_q=one, scale_k=leaf, scale_v=one, out=torch.empty(q.shape).bfloat16()),
            "scale_k requires a gradient; attention of 8-bit k and v has none", NotImplementedError)
    mean = torch.zeros(2, 1, 4, 16, requires_grad=True)
    refused(lambda: attention(q, k, v, scale_q=one, scale_k=one, scale_v=one, mean_k=mean, mean_v=mean.detach()),
            "mean_k requires a gradient; attention of 8-bit k and v has none", NotImplementedError)
    from froghopper.flash_attn_interface import flash_attn_func
    refused(lambda: flash_attn_func(q, k, v, k_descale=torch.ones(2, 4, requires_grad=True)),
            "k_descale requires a gradient; attention of 8-bit k and v has none", NotImplementedError)
    attention(q, k, v, scale_q=leaf.detach(), scale_k=one, scale_v=one)
