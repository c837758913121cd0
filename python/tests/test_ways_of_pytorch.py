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
