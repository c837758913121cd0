# SPDX-License-Identifier: Apache-2.0
"""Attention of 8-bit k and v in arrays of NumPy, which have ml_dtypes' types or hold the bits as uint8."""
from typing import Any, NamedTuple

import numpy as np

from froghopper import _c
from froghopper._call import (DTYPES, DTYPES_8_BIT, Call, Strides, check_rank, check_scales_are_there, describe,
                              mean_of, output_of, plan_of, results_of)
from froghopper._errors import InvalidTensor, InvalidType, about_o
from froghopper._lse import lse_by_row_of
from froghopper._numpy_arrays import (Array, HeldLengths, address, check_array, check_is_array, check_shape,
                                      check_writeable, dense, float32_of, gates_of, layout_of, lse_for, max_logit_for,
                                      packed_of, result_shape, slopes_of, strides_of)
from froghopper._scales import scale_of, types_of
from froghopper._values import check_not_8_bit, one_of, shown, whole_name


class Read(NamedTuple):
    """A call: its problem, the type of o, how many sequences there are, and what is read beside q, k and v: scales,
    then means, with the strides of both."""
    problem: _c.Problem
    of_o: str
    batch: int
    scaled: list[Array | None]
    strides: list[Strides]
    sink: Array | None
    slopes: Array | None


def attention_8_bit(q: Array, k: Array, v: Array, scales: dict[str, Any], means: dict[str, Array | None],
                    dtype: str | None, out_dtype: Any, lengths: HeldLengths, sink: Array | None, out: Array | None,
                    held: tuple[Array, ...] | None, return_lse: bool, with_max: bool, max_seqlen_q: int | None,
                    max_seqlen_kv: int | None, alibi_slopes: Any = None, gate: Array | None = None,
                    lse_by_row: bool = False, **options: Any) -> Any:
    """attention of 8-bit k and v. Scales are looked at anew in each call: on the CPU that is little beside the rest."""
    read = read_8_bit(q, k, v, scales, means, dtype, out_dtype, lengths, sink, held is not None, with_max, max_seqlen_q,
                      max_seqlen_kv, alibi_slopes, gate is not None, options)
    problem, of_o, batch, scaled, lie, sink, slopes = read
    name_of_o, out = ("out", out) if held is None else ("accumulate[0]", held[0])
    shape = result_shape(q, v)
    o = np.empty(shape, array_type(of_o)) if out is None else out
    check_is_array(name_of_o, o)
    check_shape(name_of_o, o, shape)
    if o.dtype != array_type(of_o):
        raise InvalidType(f"{name_of_o} must be {of_o}, but is {o.dtype}. Give another array, or "
                          "out_dtype.")
    check_writeable(name_of_o, o)
    if gate is not None:
        check_array("gate", gate, gate)
        check_shape("gate", gate, shape)
        if gate.dtype != o.dtype: raise InvalidType(f"gate must have the type of o, {of_o}, but is {gate.dtype}. "
                                                    f"Use gate.astype(\"{of_o}\").")
    strides = [strides_of(name, x) for name, x in (("q", q), ("k", k), ("v", v), (name_of_o, o))]
    call = Call(plan_of(problem, "cpu"), [*strides, *lie], slopes_of(slopes, problem),
                gates=gates_of(gate), of_lse=lse_by_row_of(q.shape)[1] if lse_by_row else None)
    lse, largest = lse_for(q, held, return_lse, lse_by_row), max_logit_for(q, batch, held, with_max)
    try:
        call.forward_with_all(address(q), address(k), address(v), address(o), address(lse), *lengths.addresses(),
                              address(sink), address(scaled[0]), address(scaled[1]), address(scaled[2]),
                              address(scaled[3]), address(scaled[4]), alibi_slopes=address(slopes),
                              max_logit=address(largest), gate=address(gate))
    except InvalidTensor as error: raise about_o(error, held is not None, q.shape) from None
    return results_of(o, lse, largest, return_lse, with_max)


def read_8_bit(q: Array, k: Array, v: Array, scales: dict[str, Any], means: dict[str, Array | None], dtype: str | None,
               out_dtype: Any, lengths: HeldLengths, sink: Array | None, merges: bool, with_max: bool,
               max_seqlen_q: int | None, max_seqlen_kv: int | None, alibi_slopes: Any, gate: bool,
               options: dict[str, Any]) -> Read:
    """What attention of 8-bit k and v is asked for, checked but for where o goes. merges: with earlier calls."""
    arrays = {"q": q, "k": k, "v": v}
    for name, array in arrays.items(): check_array(name, array, array)
    if dtype is not None:
        if not any(is_8_bit(x) or x.dtype == np.uint8 for x in (q, k, v)):
            check_not_8_bit(k.dtype.name, {"dtype": dtype})
        dtype = one_of("dtype", whole_name(dtype), DTYPES_8_BIT)
    names = {name: type_name(name, array, dtype) for name, array in arrays.items()}
    wanted = None if out_dtype is None else name_of_type(out_dtype)
    if merges: wanted = wanted or "float32"
    if names["k"] not in DTYPES_8_BIT:
        check_not_8_bit(names["k"], scales | means | {"dtype": dtype, "out_dtype": out_dtype})
    of_o = output_of(names["q"], names["k"], names["v"], wanted, list(DTYPES))
    packed = packed_of(lengths, q, k, max_seqlen_q, max_seqlen_kv)
    check_rank("v", v.shape, packed is not None)
    batch, rows_q, rows_kv = packed or (q.shape[0], q.shape[1], k.shape[1])
    check_scales_are_there(scales, list(names.values()))
    scaled, lie = [], []
    for (name, given), array, rows, dim in zip(scales.items(), (q, k, v), (rows_q, rows_kv, rows_kv),
                                              (0, 0, v.shape[-1])):
        scaled.append(float32_of(name, given))
        lie.append(scale_of(name, *layout_of(scaled[-1]), batch, rows, array.shape[-2], dim,
                            () if array is q else array.shape[:-1]))
    of_means = []
    for (name, mean), array in zip(means.items(), (k, v)):
        scaled.append(float32_of(name, mean))
        of_means.append((0, 0, 0) if mean is None else
                        mean_of(name, *layout_of(scaled[-1]), batch, array.shape[-2], array.shape[-1]))
    sink, slopes = dense("sink", sink, q.shape[-2:-1]), float32_of("alibi_slopes", alibi_slopes)
    types = types_of(names["k"], of_o, lie, smooth=means["mean_k"] is not None)
    problem = describe(q.shape, k.shape, v.shape, names["q"], packed=packed, seqused=lengths.used,
                       sink=sink is not None, types=types, accumulate=merges,
                       alibi=slopes is not None, max_logit=with_max, gate=gate, **options)
    return Read(problem, of_o, batch, scaled, [*(x.strides for x in lie), *of_means], sink, slopes)


def is_8_bit(array: Any) -> bool: return isinstance(array, np.ndarray) and array.dtype.name in DTYPES_8_BIT


def type_name(name: str, array: Array, dtype: str | None) -> str:
    """What the numbers are: uint8 holds those of dtype."""
    if array.dtype != np.uint8:
        if dtype is not None and array.dtype.name in DTYPES_8_BIT and array.dtype.name != dtype:
            raise InvalidType(f"dtype must be {array.dtype}, the type of {name}, or None, but is {dtype}; it says "
                              "what uint8 holds. Leave it out.")
        return array.dtype.name
    if dtype is None:
        raise InvalidType(f"dtype must be {' or '.join(map(repr, DTYPES_8_BIT))} where {name} is uint8, to say which "
                          "numbers those are, but is None. Use dtype=\"float8_e4m3fn\".")
    return dtype


def name_of_type(out_dtype: Any) -> str:
    """Of what NumPy takes for a type; "bfloat16" is known without ml_dtypes too."""
    if isinstance(out_dtype, str) and whole_name(out_dtype) == "bfloat16": return "bfloat16"
    try: return str(np.dtype(whole_name(out_dtype)).name)
    except Exception as error:  # what other classes raise where they are asked for a type is theirs
        raise InvalidType(f"out_dtype must be {' or '.join(DTYPES)}, but is {shown(out_dtype)}. Give one "
                          "of them.") from error


def array_type(name: str) -> Any:
    """NumPy's type of o; without ml_dtypes bfloat16 is held as its bits."""
    if name != "bfloat16": return np.dtype(name)
    try: import ml_dtypes
    except ImportError: return np.dtype(np.uint16)
    return np.dtype(ml_dtypes.bfloat16)
