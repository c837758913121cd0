# SPDX-License-Identifier: Apache-2.0
"""Shapes of results, and how tensors of PyTorch lie: strides as the library counts them, and which are copied first."""
from torch import Tensor

from froghopper._call import Shape, Strides

BYTES = 16  # where rows begin on a GPU, at multiples of that


def must_copy(x: Tensor, on_gpu: bool) -> bool:
    """Its columns do not lie side by side, or its strides are none that the GPU's copy engine takes."""
    if x.numel() == 0: return False
    if x.shape[-1] > 1 and x.stride(-1) != 1: return True
    per_row = BYTES // x.element_size()
    return on_gpu and any(stride % per_row for stride, extent in zip(x.stride()[:-1], x.shape) if extent > 1)


def strides_of(x: Tensor) -> Strides:
    return (0, x.stride(0), x.stride(1)) if x.ndim == 3 else (x.stride(0), x.stride(1), x.stride(2))


def dense_strides(shape: Shape) -> Strides:
    return 0 if len(shape) == 3 else shape[-3] * shape[-2] * shape[-1], shape[-2] * shape[-1], shape[-1]


def gate_strides(gate: Tensor, copied: bool) -> Strides:
    return dense_strides(gate.shape) if copied else strides_of(gate)


def shapes_of(q: Shape, v: Shape, lse_by_row: bool = False) -> tuple[Shape, Shape]:
    """Of o and of lse."""
    batch, rows, heads = ((), q[0], q[1]) if len(q) == 3 else ((q[0],), q[1], q[2])
    return (*q[:-1], v[-1]), (*batch, rows, heads) if lse_by_row else (*batch, heads, rows)


def max_logit_shape(q: Shape, cu_seqlens_q: Tensor | None) -> Shape:
    """A number for each sequence and query head."""
    return (q[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1), q[-2]
