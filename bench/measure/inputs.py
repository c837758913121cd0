# SPDX-License-Identifier: Apache-2.0
"""What errors are taken of, what is exact, and how an error is summed up. Tensors are [batch, seq, heads, dim]."""
import math

import torch


def outliers(shape, device, generator=None):
    """N(0, 1) + N(0, 100) Bernoulli(0.001), as the error table of the FlashAttention-3 paper has it (section 4.3)."""
    rare = torch.rand(shape, device=device, generator=generator) < 0.001
    normal = torch.randn(shape, device=device, generator=generator)
    return normal + 10 * torch.randn(shape, device=device, generator=generator) * rare


def attention(q, k, v, dtype=torch.float64):
    """softmax(q k^T / sqrt(dim)) v in this type, a head at a time: the scores of all in fp64 would be gigabytes."""
    o = torch.empty((*q.shape[:3], v.shape[3]), device=q.device, dtype=dtype)
    for head in range(q.shape[2]):
        of_q, of_k, of_v = (t[:, :, head].to(dtype) for t in (q, k, v))
        o[:, :, head] = torch.softmax(of_q @ of_k.mT * (1 / math.sqrt(q.shape[-1])), -1) @ of_v
    return o


def rmse(o, exact):
    return (o.double() - exact).square().mean().sqrt().item()
