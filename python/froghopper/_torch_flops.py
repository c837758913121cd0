# SPDX-License-Identifier: Apache-2.0
"""What torch.utils.flop_counter.FlopCounterMode counts of the operators of attention: as of PyTorch's own
attention, every pair of a query and a key of a sequence, whatever masks and used lengths leave of them. Of a KV cache
the keys of a sequence are those that it holds."""
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from froghopper import _torch_ops as ops

Shapes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def register() -> None:
    packets: Any = torch.ops.froghopper
    count([packets.forward, packets.forward_8_bit, packets.forward_gated], of_forward)
    count([packets.forward_out], lambda out, *rest, **words: of_forward(*rest, **words))
    count([packets.merge], lambda o, lse, *rest, **words: of_forward(*rest, **words))
    count([packets.forward_max_logit], of_forward)
    count([packets.attend, packets.attend_gated], lambda o, lse, largest, *rest, **words: of_forward(*rest, **words))
    count([packets.paged], of_pages)
    count([packets.paged_out], lambda out, *rest, **words: of_pages(*rest, **words))
    count([packets.backward, packets.backward_gated], of_backward)


def count(packets: list[Any], function: Any) -> None:
    """As PyTorch's register_flop_formula, which takes no operator twice: Ctrl-C may have ended an import."""
    from torch.utils import flop_counter
    formula: Any = flop_counter.register_flop_formula
    for packet in packets: flop_counter.flop_registry.pop(packet, None)
    formula(packets, get_raw=True)(function)


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


def of_pages(q: Tensor, k: Tensor, v: Tensor, block_table: Tensor, cu_seqlens_q: Tensor | None, seqused_q: Any,
             seqused_kv: Tensor | None, *rest: Any, out_val: Any = None, **_: Any) -> int:
    """As of_forward. The keys of a sequence are those that seqused_kv counts, or all of its pages."""
    rows_kv = block_table.shape[1] * k.shape[1]
    keys = [rows_kv] * block_table.shape[0] if seqused_kv is None else numbers(seqused_kv, rows_kv)
    rows = [q.shape[1]] * len(keys)
    if cu_seqlens_q is not None: rows = lengths(cu_seqlens_q, next(x for x in rest if isinstance(x, int)))
    found: int = 2 * q.shape[-2] * (q.shape[-1] + v.shape[-1]) * sum(a * b for a, b in zip(rows, keys))
    return found


def of_rank(q: Tensor, k: Tensor, v: Tensor, *rest: Any, out_val: Any = None, **_: Any) -> int:
    """What this rank has to do: its rows of q, and the keys of all ranks."""
    found: int = 2 * q.shape[0] * q.shape[2] * (q.shape[3] + v.shape[3]) * pairs(q, k, rest[2], rest[3])
    return found


def of_rank_backward(grad_o: Tensor, grad_lse: Any, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Any, *rest: Any,
                     out_val: Any = None, **_: Any) -> int:
    found: int = 2 * q.shape[0] * q.shape[2] * (3 * q.shape[3] + 2 * v.shape[3]) * pairs(q, k, rest[2], rest[3])
    return found


def of_decode(q: Tensor, k: Tensor, v: Tensor, block_table: Tensor | None, seqused_kv: Tensor | None, sink: Any,
              newest: Any, group: str, heads: str, *rest: Any, out_val: Any = None, **_: Any) -> int:
    """What this rank has to do: the queries of all heads, and the keys of its part of the cache."""
    rows = k.shape[1] * (1 if block_table is None else block_table.shape[1])
    keys = [rows] * q.shape[0] if seqused_kv is None else numbers(seqused_kv, rows)
    of_all = q.shape[2] * (ranks_of(group) if heads == "sharded" else 1)
    found: int = 2 * of_all * q.shape[1] * (q.shape[3] + v.shape[3]) * sum(keys)
    return found


def ranks_of(group: str) -> int:
    from froghopper._torch_cp_group import resolved
    ranks: int = resolved(group).size()
    return ranks


def pairs(q: Tensor, k: Tensor, documents: Tensor | None, group: str) -> int:
    """Of a query of this rank and a key of its document, as if all ranks had equally many rows. documents: their ends
    in the rows of all ranks."""
    ranks = ranks_of(group)
    keys: int = k.shape[1] * ranks
    rows: int = q.shape[1]
    return rows * keys if documents is None else sum(n * n for n in lengths(documents, keys)) // ranks


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


def numbers(lengths: Tensor, most: int) -> list[int]:
    """What a tensor holds; the most for all where there are no numbers."""
    if type(lengths) not in ops.PLAIN or lengths.is_meta: return [most] * lengths.shape[0]
    found: list[int] = lengths.tolist()
    return found


def lengths(ends: Tensor, most: int) -> list[int]:
    """Of each sequence; the longest for all where there are no numbers."""
    if type(ends) in ops.PLAIN and not ends.is_meta:
        found: list[int] = ends.diff().tolist()
        return found
    return [max(most, 0)] * (ends.shape[0] - 1)
