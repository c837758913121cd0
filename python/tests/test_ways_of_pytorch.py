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
