# SPDX-License-Identifier: Apache-2.0
"""What someone met who came from PyTorch's own functions: what these take or refuse, and what is said of groups of one
rank, of DTensors and of 8-bit types."""
import re

import pytest

torch = pytest.importorskip("torch", reason="what PyTorch has needs torch, which is not installed")

import froghopper  # noqa: E402
from froghopper.torch import attention, scaled_dot_product_attention  # noqa: E402


def drawn(*shape, seed=0): return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def group():
    """Of this process alone."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_gloo_available(): pytest.skip("PyTorch has no gloo here")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_second_derivatives_over_ranks(group):
    from froghopper.torch import context_parallel as cp
    q, k, v = (drawn(1, 8, 2, 64, seed=seed).requires_grad_() for seed in range(3))
    grad, = torch.autograd.grad(cp.attention(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="On a rank that has all rows of q, k and v, .*MATH for it"):
        grad.sum().backward()
    assert torch.equal(cp.unshard(q.detach()), q)  # as is said there


@pytest.mark.parametrize("compiled", (False, True))
def test_rows_that_are_one_in_memory(compiled):
    """PyTorch's function takes them, so a function in its place does; attention refuses them, which copies nothing."""
    call = torch.compile(scaled_dot_product_attention) if compiled else scaled_dot_product_attention
    plain = torch.nn.functional.scaled_dot_product_attention
    for at in ((0,), (1,), (2,), (0, 1, 2)):
        given = [drawn(2, 4, 16, 8, seed=seed) for seed in range(3)]
        for place in at: given[place] = drawn(8, seed=place).expand(2, 4, 16, 8)
        torch.testing.assert_close(call(*given), plain(*given))
    leaf, (k, v) = drawn(1, 1, 1, 8).requires_grad_(), (drawn(2, 4, 16, 8, seed=seed) for seed in (1, 2))
    grads = [torch.autograd.grad(each(leaf.expand(2, 4, 16, 8), k, v).square().sum(), leaf)[0]
             for each in (call, plain)]
    torch.testing.assert_close(*grads)
    with pytest.raises(ValueError, match=r"one row in memory, .*: q.contiguous\(\) in PyTorch, numpy\S+ in NumPy"):
        attention(leaf.expand(2, 4, 16, 8), k, v)


@pytest.mark.parametrize("value", ("x", None, 2, torch.tensor(True)), ids=repr)
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=str)
def test_enable_gqa_that_is_no_flag(value, dtype):
    q = drawn(2, 4, 16, 8).to(dtype)
    with pytest.raises(TypeError, match="^enable_gqa must be True or False"):
        scaled_dot_product_attention(q, q, q, enable_gqa=value)


def test_dtensors_beside_plain_tensors(group):
    """PyTorch says of an operator that it got both. What is advised is taken."""
    tensor = pytest.importorskip("torch.distributed.tensor", reason="this PyTorch has no DTensor")
    from froghopper.flash_attn_interface import flash_attn_func
    from froghopper.torch import quantise
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    q, k, v = (drawn(2, 9, 4, 16, seed=seed) for seed in range(3))
    part, ones = tensor.distribute_tensor(q, mesh, [tensor.Shard(2)]), torch.ones(4)

    def refused(text, call, *given, **words):
        with pytest.raises((TypeError, NotImplementedError)) as error: call(*given, **words)
        assert re.search(text, str(error.value)), error.value
    for words in ({}, dict(return_lse=True, lse_by_row=True), dict(return_max_logit=True), dict(gate=q),
                  dict(out=torch.empty_like(q))):
        refused("^k and v must be DTensors, as q is, .*distribute_tensor.k, q.device_mesh, q.placements.*"
                "from_local.k, .* q.to_local", attention, part, k, v, **words)
        refused("^q and v must be DTensors, as k is", attention, q, part, v, **words)
    heads = [x.transpose(1, 2) for x in (part, k, v)]
    refused("^key and value must be DTensors, as query is", scaled_dot_product_attention, *heads)
    refused("^k and v must be DTensors", flash_attn_func, part, k, v)
    refused("^k and v must be DTensors", quantise, part, k, v)
    refused(r"^sink must be a DTensor, as q is, .*\(sink, q.device_mesh, \[Replicate\(\)\] \* q.device_mesh.ndim\); or",
            attention, part, part, part, sink=ones)
    refused("^sink must be a plain tensor, as q is, .*sink.full_tensor", attention, q, k, v,
            sink=tensor.distribute_tensor(ones, mesh, [tensor.Replicate()]))
    refused("^s_aux must be a DTensor, as q is", flash_attn_func, part, part, part, s_aux=ones)
    refused("^gate must be a DTensor, as q is", attention, part, part, part, gate=q)
    refused("^q is a DTensor, .*attention with out computes", attention, part, part, part, out=torch.empty_like(part))
    k, v = tensor.distribute_tensor(k, part.device_mesh, part.placements), tensor.DTensor.from_local(
        v, part.device_mesh, part.placements)
    sink = tensor.distribute_tensor(ones, part.device_mesh, [tensor.Replicate()] * part.device_mesh.ndim)
    wanted = attention(q, k.to_local(), v.to_local(), sink=ones)
    assert torch.equal(attention(part, k, v, sink=sink).full_tensor(), wanted)


BASE = drawn(1, 8, 2, 16, seed=5)


def refusal(call, *given, **words):
    with pytest.raises(TypeError) as error: call(*given, **words)
    return str(error.value)


@pytest.mark.parametrize("dtype", ("uint8", "int8"))
def test_bytes_of_8_bit_types(dtype):
    """A cast takes each byte for a number; what is said of them gives the right result."""
    import numpy as np
    small = BASE.to(torch.float8_e4m3fn)
    x = small.view(getattr(torch, dtype))
    text = refusal(attention, x, x, x)
    assert re.search(r"If they hold the bytes of an 8-bit type, use q.view\(torch.float8_e4m3fn\) and so on, with "
                     r"scale_q, scale_k and scale_v; else q.float\(\)", text), text
    scales = dict(scale_q=1.0, scale_k=1.0, scale_v=1.0)
    y = x.view(torch.float8_e4m3fn)
    assert torch.equal(attention(y, y, y, **scales), attention(small, small, small, **scales))
    text = refusal(scaled_dot_product_attention, x, x, x)
    assert "query.view(torch.float8_e4m3fn)" in text and "scale_v of froghopper.torch.attention; else" in text, text
    from froghopper.flash_attn_interface import flash_attn_func
    assert "with q_descale, k_descale and v_descale; else" in refusal(flash_attn_func, x, x, x)
    assert "q.view(ml_dtypes.float8_e4m3fn)" in refusal(froghopper.attention, *[np.asarray(x)] * 3)


@pytest.mark.parametrize("dtype", ("float8_e4m3fnuz", "float8_e5m2fnuz"))
def test_8_bit_types_of_amd(dtype):
    """Their bytes are other numbers; numbers times scales are right."""
    x, half = BASE.to(getattr(torch, dtype)), BASE.bfloat16()
    for text in (refusal(attention, x, x, x), refusal(scaled_dot_product_attention, x, x, x),
                 refusal(attention, half, x, x)):
        assert "times its scale. Do not view" in text and "other numbers in float8_e4m3fn" in text, text
    text = refusal(attention, x, x, x, scale_q=2.0, scale_k=2.0, scale_v=2.0)
    assert f"but are {dtype}. Multiply them by their scales in float16 or bfloat16, and give no scales" in text, text
    assert not torch.equal(x.view(torch.float8_e4m3fn).float(), x.float())
    text = refusal(scaled_dot_product_attention, *[BASE.to(torch.float8_e5m2)] * 3)
    assert text.endswith("on a GPU query.bfloat16() and so on, each times its scale."), text
