# SPDX-License-Identifier: Apache-2.0
"""torch.nn.attention.activate_flash_attention_impl("froghopper"): forward, backward and packed sequences by PyTorch's
own operators; an import activates nothing. On the CPU, whose operators PyTorch leaves empty, they are filled for the
tests; on a GPU a model runs unchanged."""
import pytest

torch = pytest.importorskip("torch", reason="froghopper.torch needs torch, which is not installed")

from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

from froghopper import _torch_flash as flash  # noqa: E402
from froghopper.torch import attention  # noqa: E402

NAME, of_pytorch = "froghopper", torch.nn.attention
if not hasattr(of_pytorch, "register_flash_attention_impl"):
    pytest.skip(f"PyTorch {torch.__version__} knows no implementations of flash attention", allow_module_level=True)
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
aten = torch.ops.aten


def drawn(*shape, seed=0, device="cpu", dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


@pytest.fixture
def on_cpu():
    handle = flash.activate("CPU")
    yield handle
    handle.remove()


def test_nothing_is_activated():
    assert NAME in of_pytorch.list_flash_attention_impls() and of_pytorch.current_flash_attention_impl() is None
    of_pytorch.activate_flash_attention_impl(NAME)
    assert of_pytorch.current_flash_attention_impl() == NAME
    of_pytorch.restore_flash_attention_impl()
    assert of_pytorch.current_flash_attention_impl() is None


def test_removed():
    handle = flash.activate("CPU")
    q = drawn(1, 2, 3, 16)
    aten._scaled_dot_product_flash_attention(q, q, q)
    handle.remove()
    with pytest.raises(NotImplementedError): aten._scaled_dot_product_flash_attention(q, q, q)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("words", [{}, dict(is_causal=True), dict(scale=0.3)])
def test_sdpa(words, turned, on_cpu):
    """The bits of attention, also of gradients; strides as PyTorch tells its compiler."""
    q, k, v = ((drawn(2, 9, 4, 16, seed=seed).transpose(1, 2) if turned else drawn(2, 4, 9, 16, seed=seed))
               .requires_grad_() for seed in range(3))
    o, lse, *_ = aten._scaled_dot_product_flash_attention(q, k, v, **words)
    wanted, wanted_lse = attention(*(x.transpose(1, 2) for x in (q, k, v)), causal=words.get("is_causal", False),
                                   scale=words.get("scale"), return_lse=True)
    assert torch.equal(o, wanted.transpose(1, 2)) and torch.equal(lse, wanted_lse) and o.stride() == q.stride()
    grad = drawn(*o.shape, seed=5)
    found = torch.autograd.grad(o, (q, k, v), grad)
    for a, b, x in zip(found, torch.autograd.grad(wanted, (q, k, v), grad.transpose(1, 2)), (q, k, v)):
        assert torch.equal(a, b) and a.stride() == x.stride()


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (2, 1)])
def test_varlen(window, on_cpu):
    q, k, v = (drawn(9, heads, 16, seed=heads).requires_grad_() for heads in (4, 2, 2))
    ends = torch.tensor([0, 4, 9], dtype=torch.int32)
    o, lse, *_ = aten._flash_attention_forward(q, k, v, ends, ends, 5, 5, 0.0, window == (-1, 0), False,
                                               window_size_left=window[0], window_size_right=window[1])
    wanted, wanted_lse = attention(q, k, v, cu_seqlens_q=ends, cu_seqlens_kv=ends, window=window, return_lse=True)
    torch.testing.assert_close(o, wanted)
    torch.testing.assert_close(lse, wanted_lse)
    grad = drawn(*o.shape, seed=5)
    found = aten._flash_attention_backward(grad, q.detach(), k.detach(), v.detach(), o.detach(), lse.detach(), ends,
                                           ends, 5, 5, 0.0, window == (-1, 0), torch.zeros(2), torch.zeros(1),
                                           window_size_left=window[0], window_size_right=window[1])
    for a, b in zip(found, torch.autograd.grad(wanted, (q, k, v), grad)): torch.testing.assert_close(a, b)
    if not hasattr(aten, "_flash_attention_forward_no_dropout_inplace"): return  # PyTorch 2.11
    out = torch.empty_like(q.detach())
    with torch.no_grad():
        lse_too = aten._flash_attention_forward_no_dropout_inplace(
            out, q, k, v, ends, ends, 5, 5, 0.0, window == (-1, 0), False, window_size_left=window[0],
            window_size_right=window[1])
    assert torch.equal(out, o) and torch.equal(lse_too, lse)


def test_8_bits(on_cpu):
    q, k, v = (drawn(2, 4, 9, 16, seed=seed).to(torch.float8_e4m3fn) for seed in range(3))
    descale = torch.full((2, 4), 0.5)
    o, *_ = aten._scaled_dot_product_flash_attention.quantized(q, k, v, descale, descale, descale)
    wanted = attention(*(x.transpose(1, 2) for x in (q, k, v)), scale_q=0.5, scale_k=0.5, scale_v=0.5)
    assert o.dtype == torch.bfloat16
    torch.testing.assert_close(o, wanted.transpose(1, 2))


def test_refused(on_cpu):
    q, ends = drawn(1, 2, 3, 16), torch.tensor([0, 3], dtype=torch.int32)
    with pytest.raises(NotImplementedError, match="dropout_p is 0.5.*restore_flash_attention_impl"):
        aten._scaled_dot_product_flash_attention(q, q, q, 0.5)
    with pytest.raises(NotImplementedError, match="return_debug_mask"):
        aten._scaled_dot_product_flash_attention(q, q, q, 0.0, False, True)
    if "block_table" not in str(aten._flash_attention_forward.default._schema): return  # PyTorch 2.11
    with pytest.raises(NotImplementedError, match="block_table is given"):
        aten._flash_attention_forward(*[q[0, 0, :, None]] * 3, ends, ends, 3, 3, 0.0, False, False,
                                      block_table=ends[None])


@pytest.mark.skipif(not HOPPER, reason="there is no Hopper GPU")
@pytest.mark.parametrize("compiled", [False, True])
def test_model_on_gpu(compiled):
    """A layer of PyTorch, forward and backward, and packed sequences: close to PyTorch's flash attention, and computed
    here, as froghopper.torch.attention's bits say."""
    def run():
        q, k, v = (drawn(2, 8, 512, 64, seed=seed, device="cuda", dtype=torch.bfloat16).requires_grad_()
                   for seed in range(3))
        with of_pytorch.sdpa_kernel(of_pytorch.SDPBackend.FLASH_ATTENTION):
            o = (torch.compile(scaled_dot_product_attention) if compiled else scaled_dot_product_attention)(
                q, k, v, is_causal=True)
        return [o, *torch.autograd.grad(o, (q, k, v), torch.ones_like(o))], (q, k, v)
    theirs, _ = run()
    of_pytorch.activate_flash_attention_impl(NAME)
    try:
        ours, leaves = run()
        from torch.nn.attention.varlen import varlen_attn
        ends = torch.tensor([0, 200, 512], dtype=torch.int32, device="cuda")
        packed = [x[0].detach().transpose(0, 1).contiguous() for x in leaves]
        found = varlen_attn(*packed, ends, ends, 312, 312)
    finally: of_pytorch.restore_flash_attention_impl()
    for a, b in zip(ours, theirs): torch.testing.assert_close(a, b, rtol=3e-2, atol=3e-2)
    wanted = attention(*(x.transpose(1, 2) for x in leaves), causal=True).transpose(1, 2)
    assert torch.equal(ours[0], wanted)
    wanted = attention(*packed, cu_seqlens_q=ends, cu_seqlens_kv=ends, max_seqlen_q=312, max_seqlen_kv=312)
    assert torch.equal(found[0] if isinstance(found, tuple) else found, wanted)
