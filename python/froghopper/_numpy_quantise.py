# SPDX-License-Identifier: Apache-2.0
"""q, k and v of NumPy -> 8-bit copies and scales, as froghopper.attention takes them."""
from typing import Any, NamedTuple

import numpy as np

from froghopper._call import DTYPES, SCALE_ROWS, check_rank, check_shapes
from froghopper._errors import InvalidProblem, InvalidType
from froghopper._numpy_arrays import (Array, Lengths, address, check_array, check_is_array, dense_strides, layout_of,
                                      packed_of, read_lengths, strides_of)
from froghopper._quantise import check_given, check_packed, quantiser, run
from froghopper._values import whole_name
from froghopper._words import takes_words_of_others


class Quantised(NamedTuple):
    """q, k and v in 8 bits and what their values are multiplied by: [batch, blocks, heads, 1] float32."""
    q: Array
    k: Array
    v: Array
    scale_q: Array
    scale_k: Array
    scale_v: Array


class Smoothed(NamedTuple):
    """Quantised, and what every row of a sequence's k and v has besides: [batch, 1, heads_kv, dim] float32."""
    q: Array
    k: Array
    v: Array
    scale_q: Array
    scale_k: Array
    scale_v: Array
    mean_k: Array
    mean_v: Array


@takes_words_of_others("")
def quantise(q: Array, k: Array, v: Array, *, dtype: str = "float8_e4m3fn", rotate: bool = True, rotate_seed: int = 0,
             scale_rows: int = SCALE_ROWS, cu_seqlens_q: Lengths | None = None, cu_seqlens_kv: Lengths | None = None,
             seqused_q: Lengths | None = None, seqused_kv: Lengths | None = None, max_sms: int = 0,
             max_seqlen_q: int | None = None, max_seqlen_kv: int | None = None,
             smooth: bool = False) -> Quantised | Smoothed:
    """8-bit copies and scales for froghopper.attention, of NumPy arrays.

        o = froghopper.attention(**froghopper.quantise(q, k, v)._asdict(), causal=True)

    q, k, v        as attention has them: float16, float32, or ml_dtypes' bfloat16; head dims are multiples of 16
    dtype          "float8_e4m3fn" or "float8_e5m2", also "e4m3" or "e5m2"; the copies have ml_dtypes' type of that
                   name, or without ml_dtypes uint8, which attention takes together with "float8_e4m3fn" or
                   "float8_e5m2" as dtype
    rotate         q and k are multiplied by an orthogonal matrix first, so that q k^T stays as it is and outliers are
                   spread over their row: docs/11-quantise.md. False where q stays as it was and attention gets only the
                   8-bit k and v
    rotate_seed    of that matrix's signs, 0 to 2^32 - 1; q and k that meet need the same
    scale_rows     rows of a sequence that share a scale: 128, or 0 for all of them
    smooth         the mean of all rows of a sequence is taken out of k and v first, and given as mean_k and mean_v,
                   which attention adds again: for models whose k and v have one
    others         as attention has them

    Rows of no sequence, and rows that do not count, hold anything. Raises TypeError, ValueError and NotImplementedError
    as attention does.
    """
    arrays, dtype = (q, k, v), whole_name(dtype)
    check_given(q, k, v)
    check_is_array("q", q)
    for name, array in zip("qkv", arrays): check_array(name, array, q)
    if q.dtype.name not in DTYPES:
        raise InvalidType(f"q, k and v must be {' or '.join(DTYPES)}, but are {q.dtype}. Use q.astype(\"float32\"), "
                          "and k and v likewise.")
    check_packed(cu_seqlens_q, cu_seqlens_kv)
    lengths = read_lengths(cu_seqlens_q, cu_seqlens_kv, seqused_q, seqused_kv)
    packed = packed_of(lengths, q, k, max_seqlen_q, max_seqlen_kv)
    for name, array in zip("qkv", arrays): check_rank(name, array.shape, packed is not None)
    check_shapes(q.shape, k.shape, v.shape)
    plan, shapes, mean_shapes = quantiser((q.shape, k.shape, v.shape), q.dtype.name, dtype, "cpu", packed=packed,
                             seqused=lengths.used, scale_rows=scale_rows, rotate=rotate, rotate_seed=rotate_seed,
                             smooth=smooth, max_sms=max_sms)
    small = [np.empty(array.shape, array_type(dtype)) for array in arrays]
    try: scales, means = ([np.empty(shape, np.float32) for shape in each] for each in (shapes, mean_shapes))
    except (MemoryError, ValueError) as error:
        raise InvalidProblem(f"scales have the shapes {', '.join(str(list(shape)) for shape in shapes)}, by "
                             "max_seqlen_q and max_seqlen_kv; there is no memory for them. Give bounds near the "
                             "truth.") from error
    tensors = {name: (address(array), strides_of(name, array)) for name, array in zip("qkv", arrays)}
    tensors |= {f"quantised_{name}": (address(array), dense_strides(array.shape)) for name, array in zip("qkv", small)}
    tensors |= {f"scale_{name}": (address(array), layout_of(array)[1][:3]) for name, array in zip("qkv", scales)}
    tensors |= {f"mean_{name}": (address(array), layout_of(array)[1][:3]) for name, array in zip("kv", means)}
    run(plan, tensors, dict(zip(lengths._fields, lengths.addresses())))
    return Smoothed(*small, *scales, *means) if means else Quantised(*small, *scales)


def array_type(name: str) -> Any:
    try: import ml_dtypes
    except ImportError: return np.dtype(np.uint8)
    return np.dtype(getattr(ml_dtypes, name))
