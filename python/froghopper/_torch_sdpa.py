# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own signature of attention, [batch, heads, seq, dim]: froghopper.torch.scaled_dot_product_attention."""
from typing import Any

import torch
from torch import Tensor

from froghopper._errors import InvalidProblem, Unsupported
from froghopper._torch_attention import attention
from froghopper._torch_calls import check_tensor


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
                                 enable_gqa: bool = False) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, its signature and meaning, without masks and dropout.

    query          [..., heads, seq_q, dim]; dimensions before heads are batch and may be missing or many
    key, value     [..., heads_kv, seq_kv, dim]; dimensions before seq broadcast, as PyTorch's do
    attn_mask      None; any mask, even one that is true everywhere, is NotImplementedError: its content would have to
                   be read on the host. attention has causal masks, windows, and seqused_kv for padding: see there
                   what these are level with
    dropout_p      0.0; others are NotImplementedError
    is_causal      the first query sees the first key, whatever the lengths
    scale          None for 1/sqrt(dim)
    enable_gqa     heads_kv may divide heads

    Returns [..., heads, seq_q, dim of value]. Nothing is copied where attention copies nothing, unless there are
    several batch dimensions that cannot be seen as one. Raises as attention does.
    """
    for name, x in (("query", query), ("key", key), ("value", value)): check_tensor(name, x)
    if attn_mask is not None:
        raise Unsupported("attn_mask is given; froghopper computes no mask of numbers. Use is_causal, or "
                          "froghopper.torch.attention: with window, or with seqused_kv for keys that are padding; "
                          "where that is causal or has a window, with align=\"top_left\" or with seqused_q too.")
    if dropout_p != 0: raise Unsupported(f"dropout_p is {dropout_p}; froghopper drops no weights. Use 0.0.")
    q, k, v, lead = heads_fourth(query, key, value, enable_gqa)
    o = attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal=is_causal, scale=scale,
                  align="top_left").transpose(1, 2)
    if len(lead) == 1: return o
    return o[0, 0] if query.dim() == key.dim() == value.dim() == 2 else o.reshape(*lead, *o.shape[1:])


def heads_fourth(query: Tensor, key: Tensor, value: Tensor,
                 enable_gqa: bool) -> tuple[Tensor, Tensor, Tensor, tuple[int, ...]]:
    """(q, k, v as [batch, heads, seq, dim], the batch dimensions that were)."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() < 2:
            raise InvalidProblem(f"{name} has the shape {list(x.shape)}; it reads [..., heads, seq, dim]. Add the "
                                 "missing dimensions.")
    all_three = [x if x.dim() > 2 else x.unsqueeze(0) for x in (query, key, value)]
    heads = [x.shape[-3] for x in all_three] if enable_gqa else shared_heads(all_three)
    leads = [x.shape[:-3] for x in all_three]
    if leads[0] == leads[1] == leads[2]: lead = tuple(leads[0])
    else:
        broadcast: Any = torch.broadcast_shapes  # has no types
        try: lead = tuple(broadcast(*leads))
        except RuntimeError:
            raise InvalidProblem(f"query, key and value have the shapes {list(query.shape)}, {list(key.shape)} and "
                                 f"{list(value.shape)}; dimensions before heads are equal or 1. Change one.") from None
    made = []
    for x, count in zip(all_three, heads):
        if x.shape[:-3] != lead or x.shape[-3] != count: x = x.expand(*lead, count, *x.shape[-2:])
        if len(lead) == 0: x = x.unsqueeze(0)
        elif len(lead) > 1: x = x.flatten(0, len(lead) - 1)
        made.append(x)
    return made[0], made[1], made[2], lead


def shared_heads(tensors: list[Tensor]) -> list[int]:
    """Heads of each without enable_gqa, where 1 is as many as others have: key and value may keep their 1."""
    heads = [x.shape[-3] for x in tensors]
    most, of_kv = max(heads), max(heads[1:])
    if any(count not in (most, 1) for count in heads):
        grouped = heads[1] == heads[2] and heads[0] % max(heads[1], 1) == 0
        raise InvalidProblem(f"query, key and value have {heads[0]}, {heads[1]} and {heads[2]} heads; without "
                             "enable_gqa they have equally many, or 1. "
                             f"{'Use enable_gqa=True.' if grouped else 'Change one.'}")
    return [most, of_kv, of_kv]
