# SPDX-License-Identifier: Apache-2.0
"""Scales of 8-bit q, k and v: what their shapes say. It knows no framework, only shapes and strides."""
import math
from collections.abc import Sequence
from typing import NamedTuple

from froghopper._call import SCALE_ROWS, Shape, Strides, Types
from froghopper._errors import InvalidProblem, InvalidTensor


SCALES_UNLIKE = ("scale_k and scale_v must be alike, but one has a scale of each row and the other has not. Give both "
                 "a scale of each row, or neither.")


class Scale(NamedTuple):
    """How a tensor of scales lies: strides of sequence, block and head; whether it has more than one block of rows of a
    sequence; whether one for each column of v; whether one for each row of k or v."""
    strides: Strides
    blocked: bool
    columns: bool
    tokens: bool = False


def types_of(kv: str, o: str, scales: Sequence[Scale], smooth: bool) -> Types:
    """What the types of k and v and of o, and the scales of q, k and v put into the problem."""
    _, of_k, of_v = scales
    if of_k.tokens != of_v.tokens:
        raise InvalidProblem(SCALES_UNLIKE)
    if of_k.tokens and smooth:
        raise InvalidProblem("mean_k is given with a scale_k with a scale of each row; means go with other scales. "
                             "Leave mean_k and mean_v out.")
    return Types(kv, o, SCALE_ROWS if any(x.blocked for x in scales) else 0, of_v.columns, smooth, of_k.tokens)


def scale_of(name: str, shape: Shape, strides: Sequence[int], batch: int, rows: int, heads: int, dim_v: int,
             of_rows: Shape = ()) -> Scale:
    """Of scale_q, scale_k or scale_v of q, k or v with so many sequences, rows at most and heads. strides: in elements.
    dim_v: 0 except for v. of_rows: of k and v, their shape without columns. InvalidTensor where the shape is none that
    scales have."""
    blocks = -(-rows // SCALE_ROWS)
    found, by_block, by_column = tuple(shape), (batch, blocks, heads, 1), (batch, 1, heads, dim_v)
    if found in ((), (1,)): return Scale((0, 0, 0), False, False)
    if found == (heads,): return Scale((0, 0, strides[0]), False, False)  # as append_kv takes it
    if batch > 1 and found == (batch, heads) == tuple(of_rows):
        raise InvalidTensor(f"{name} has the shape {list(found)}, which may be a scale of each sequence or of each "
                            f"row, as there are {batch} of both. Use {name}.reshape({batch}, 1, {heads}, 1) for "
                            f"sequences, or {name}.reshape({batch}, {heads}, 1) for rows.")
    if found == (batch, heads): return Scale((strides[0], 0, strides[1]), False, False)
    if found == (batch, 1, heads, 1): return Scale((strides[0], 0, strides[2]), False, False)
    if found == by_block: return Scale((strides[0], strides[1], strides[2]), blocks > 1, False)
    if dim_v and found == by_column:
        if strides[3] != 1: raise InvalidTensor(f"{name} must have columns side by side, the last stride 1, but has "
                                                f"the strides {list(strides)} (elements). Copy it first: "
                                                f"{name}.contiguous() in PyTorch, numpy.ascontiguousarray({name}) in "
                                                "NumPy.")
        return Scale((strides[0], strides[1], strides[2]), False, True)
    if of_rows and found in (tuple(of_rows), (*of_rows, 1)):
        return Scale((0, strides[0], strides[1]) if len(of_rows) == 2 else (strides[0], strides[1], strides[2]), False,
                     False, True)
    by_columns = f", [batch, 1, heads, dim] {list(by_column)}" * bool(dim_v)
    by_rows = f", {list(of_rows)} for one of each row" * bool(of_rows)
    fits = math.prod(found) == batch * heads and len(found) > 1  # one axis may be that of other heads
    raise InvalidTensor(f"{name} must have the shape [] for one scale, [heads] {[heads]}, [batch, heads] "
                        f"{[batch, heads]}{by_columns}{by_rows} or [batch, blocks of {SCALE_ROWS} rows, heads, 1] "
                        f"{list(by_block)}, but has "
                        f"{list(shape)}. " + (f"Use {name}.reshape({batch}, {heads})." if fits else
                                              "Give it one of these shapes."))
