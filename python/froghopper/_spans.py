# SPDX-License-Identifier: Apache-2.0
"""Sequences that begin and end somewhere inside the rows of a dense batch, told to the library as packed ones.

A dense batch [batch, rows, heads, dim] is also a packed tensor [batch * rows, heads, dim]. Where the keys of sequence b
are its rows begin[b] to end[b] (a cache with padding at its left), twice as many packed sequences lie in it: one of the
rows before begin[b], which has no queries, and one of the rest, of which end[b] - begin[b] count.
"""
import torch
from torch import Tensor


def ends_of(batch: int, rows: int, like: Tensor) -> Tensor:
    """cu_seqlens of a dense batch: [batch + 1] int32, on the device of like."""
    return torch.arange(batch + 1, dtype=torch.int32, device=like.device) * rows


def pairs(first: Tensor, second: Tensor) -> Tensor:
    """[batch], [batch] -> [2 batch]: first[0], second[0], first[1], ..."""
    return torch.stack([first, second], 1).flatten().to(torch.int32)


def spans_of_keys(batch: int, rows: int, begin: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """(cu_seqlens_kv [2 batch + 1], seqused_kv [2 batch]) of the packed sequences; begin <= end, both [batch]."""
    ends = ends_of(batch, rows, begin)
    return torch.cat([pairs(ends[:-1], ends[:-1] + begin), ends[-1:]]), pairs(torch.zeros_like(end), end - begin)


def spans_of_queries(cu_seqlens_q: Tensor) -> Tensor:
    """cu_seqlens_q [batch + 1] -> [2 batch + 1]: an empty sequence before each."""
    return torch.cat([pairs(cu_seqlens_q[:-1], cu_seqlens_q[:-1]), cu_seqlens_q[-1:]])
