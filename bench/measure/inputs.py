# SPDX-License-Identifier: Apache-2.0
"""What errors are taken of, and how one is summed up."""
import torch


def outliers(shape, device, generator=None):
    """N(0, 1) + N(0, 100) Bernoulli(0.001), as the error table of the FlashAttention-3 paper has it (section 4.3)."""
    rare = torch.rand(shape, device=device, generator=generator) < 0.001
    normal = torch.randn(shape, device=device, generator=generator)
    return normal + 10 * torch.randn(shape, device=device, generator=generator) * rare


def rmse(o, exact):
    return (o.double() - exact).square().mean().sqrt().item()
