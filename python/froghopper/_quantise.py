# SPDX-License-Identifier: Apache-2.0
"""Quantising, for every framework: the plan of a problem, the shapes of its scales, and its call by addresses."""
import ctypes
from typing import Any, NamedTuple

from froghopper import _c
from froghopper._call import DTYPES_8_BIT, Packed, Plan, Shape, Strides, describe, plan_of
from froghopper._errors import InvalidProblem, InvalidType
from froghopper._values import flag, shown, whole_number


class Quantising(NamedTuple):
    """A problem, and what it writes: [batch, blocks, heads, 1] of scale_q, scale_k and scale_v; with smooth [batch, 1,
    heads_kv, dim] of mean_k and mean_v."""
    problem: _c.Problem
    scale_shapes: tuple[Shape, Shape, Shape]
    mean_shapes: tuple[Shape, ...]


class Quantiser(NamedTuple):
    """The same with the plan for the problem."""
    plan: Plan
    scale_shapes: tuple[Shape, Shape, Shape]
    mean_shapes: tuple[Shape, ...]


def check_given(q: Any, k: Any, v: Any) -> None:
    """The library quantises each of q, k and v by itself, functions of Python all three."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x is not None: continue
        way = f"Give {name}"
        if name == "q":
            way = "For a cache of k and v alone use quantise(k, k, v, rotate=False), its k and v, and q in 16 bits"
        raise InvalidType(f"{name} must be given, as q, k and v are quantised together here, but is None. {way}.")


def check_packed(begins_q: Any, begins_kv: Any) -> None:
    if (begins_q is None) != (begins_kv is None):
        raise InvalidProblem("cu_seqlens_q and cu_seqlens_kv must be given together, but one is None. Give both or "
                             "none.")


def quantiser(shapes: tuple[Shape, Shape, Shape], stored: str, dtype: str, target: str, **options: Any) -> Quantiser:
    """options: those of quantising."""
    problem, scale_shapes, mean_shapes = quantising(shapes, stored, dtype, **options)
    return Quantiser(plan_of(problem, target), scale_shapes, mean_shapes)


def quantising(shapes: tuple[Shape, Shape, Shape], stored: str, dtype: str, *, packed: Packed | None, seqused: bool,
               scale_rows: int, rotate: bool, rotate_seed: int, smooth: bool, max_sms: int) -> Quantising:
    """Of q, k and v of these shapes, which hold `stored` and become `dtype`."""
    if not isinstance(dtype, str) or dtype not in DTYPES_8_BIT:
        raise InvalidType(f"dtype must be {' or '.join(DTYPES_8_BIT)}, but is "
                          f"{dtype if isinstance(dtype, str) else shown(dtype)}. Give one of them.")
    rotate, smooth = flag("rotate", rotate), flag("smooth", smooth)
    rotate_seed, scale_rows = whole_number("rotate_seed", rotate_seed), whole_number("scale_rows", scale_rows)
    if not 0 <= rotate_seed < 2**32:
        raise InvalidProblem(f"rotate_seed must be from 0 to 2^32 - 1, but is {rotate_seed}. Use rotate_seed=0.")
    problem = describe(*shapes, stored, packed=packed, seqused=seqused, max_sms=max_sms)
    problem.op, problem.dtype_kv = _c.Op.QUANTISE, DTYPES_8_BIT[dtype]
    problem.scale_rows, problem.smooth = scale_rows, smooth
    problem.rotate, problem.rotate_seed = rotate, rotate_seed if rotate else 0
    rows = (problem.seq_q, problem.seq_kv, problem.seq_kv)
    of_q, of_k, of_v = ((problem.batch, blocks_of(n, scale_rows), shape[-2], 1) for n, shape in zip(rows, shapes))
    means = tuple((problem.batch, 1, shape[-2], shape[-1]) for shape in shapes[1:]) if smooth else ()
    return Quantising(problem, (of_q, of_k, of_v), means)


def blocks_of(rows: int, scale_rows: int) -> int:
    return -(-rows // scale_rows) if scale_rows else 1


def run(plan: Plan, tensors: dict[str, tuple[int, Strides]], lengths: dict[str, int], workspace: int = 0,
        stream: int | None = None) -> None:
    """tensors: the address and the strides of each field of fh_tensors; lengths: addresses, 0 for none."""
    given = _c.Tensors(size=ctypes.sizeof(_c.Tensors))
    for name, (at, strides) in tensors.items(): setattr(given, name, _c.Tensor(at, *strides))
    for name, at in lengths.items(): setattr(given, name, at or None)
    plan.library.check(plan.library.calls.fh_plan_run(plan.handle, ctypes.byref(given), workspace or None,
                                                      plan.workspace_bytes, stream))
