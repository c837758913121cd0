# SPDX-License-Identifier: Apache-2.0
"""What torch.utils.flop_counter.FlopCounterMode counts of the operators of _torch_ops.py: as of PyTorch's own
attention, every pair of a query and a key of a sequence, whatever masks and used lengths leave of them."""
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from froghopper import _torch_ops as ops

Shapes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def register() -> None:
    from torch.utils import flop_counter
    formula: Any = flop_counter.register_flop_formula
    packets: Any = torch.ops.froghopper
    formula([packets.forward, packets.forward_8_bit, packets.forward_gated], get_raw=True)(of_forward)
    formula([packets.forward_out], get_raw=True)(lambda out, *rest, **words: of_forward(*rest, **words))
    formula([packets.merge], get_raw=True)(lambda o, lse, *rest, **words: of_forward(*rest, **words))
    formula([packets.backward, packets.backward_gated], get_raw=True)(of_backward)


def of_forward(q: Tensor, k: Tensor, v: Tensor, sink: Any, cu_seqlens_q: Tensor | None, cu_seqlens_kv: Tensor | None,
               *rest: Any, out_val: Any = None, **_: Any) -> int:
    """Scores, and their sums of values."""
    from torch.utils.flop_counter import sdpa_flop_count
    count: Any = sdpa_flop_count
    return sum(count(*shapes) for shapes in sequences(q, k, v, cu_seqlens_q, cu_seqlens_kv, rest))


def of_backward(grad_o: Tensor, grad_lse: Any, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Any, sink: Any,
                cu_seqlens_q: Tensor | None, cu_seqlens_kv: Tensor | None, *rest: Any, out_val: Any = None,
                **_: Any) -> int:
    """Scores again, and the four products of the gradients."""
    from torch.utils.flop_counter import sdpa_backward_flop_count
    count: Any = sdpa_backward_flop_count
    return sum(count((*of_q[:3], of_v[3]), of_q, of_k, of_v)
               for of_q, of_k, of_v in sequences(q, k, v, cu_seqlens_q, cu_seqlens_kv, rest))


def sequences(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor | None, cu_seqlens_kv: Tensor | None,
              rest: tuple[Any, ...]) -> Iterator[Shapes]:
    """Shapes of q, k and v [batch, heads, seq, dim], of each sequence where they are packed; k and v with the heads of
    q, since formulas of PyTorch before 2.12 take no fewer. rest: the arguments behind cu_seqlens_kv, whose last three
    inputs and scales are followed by max_seqlen."""
    if cu_seqlens_q is None or cu_seqlens_kv is None:
        dense = [(x.shape[0], q.shape[2], x.shape[1], x.shape[3]) for x in (q, k, v)]
        yield dense[0], dense[1], dense[2]
        return
    bounds = [x for x in rest if isinstance(x, int) and not isinstance(x, bool)][:2]
    rows = [lengths(ends, most) for ends, most in zip((cu_seqlens_q, cu_seqlens_kv), bounds)]
    for of_q, of_kv in zip(*rows):
        heads = q.shape[1]
        yield (1, heads, of_q, q.shape[2]), (1, heads, of_kv, k.shape[2]), (1, heads, of_kv, v.shape[2])


def lengths(ends: Tensor, most: int) -> list[int]:
    """Of each sequence; the longest for all where there are no numbers."""
    if type(ends) in ops.PLAIN and not ends.is_meta:
        found: list[int] = ends.diff().tolist()
        return found
    return [max(most, 0)] * (ends.shape[0] - 1)
