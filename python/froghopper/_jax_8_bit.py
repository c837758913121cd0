# SPDX-License-Identifier: Apache-2.0
"""8-bit q, k and v of JAX: the type of o, and scales and means in the shapes that the handlers of src/xla read. Each
array is whole, so that jax.vmap and meshes divide it as they divide q, k and v."""
# JAX has few types, and mypy runs where it is not installed, too.
# mypy: disable-error-code="import-not-found,no-any-return,no-untyped-call"
import ctypes
import itertools
from typing import Any

import jax
import numpy as np

from froghopper._call import (DTYPES, DTYPES_8_BIT, Shape, Types, check_means, check_rank, check_scale_is_there,
                              check_shapes, mean_of, output_of)
from froghopper._errors import InvalidProblem
from froghopper._jax_arrays import Given, batch_of, check_is_array, checked
from froghopper._numpy_8_bit import name_of_type
from froghopper._scales import Scale, scale_of, types_of
from froghopper._values import check_not_8_bit, number, shown

FLOAT8 = {jax.numpy.dtype(name) for name in DTYPES_8_BIT}


def type_of_o(q: Any, k: Any, v: Any, out_dtype: Any, sides: dict[str, Any], merges: bool) -> str:
    """The name of the type of o; empty where neither q nor k has 8 bits, and nothing of sides may be given."""
    of_8_bits = getattr(q, "dtype", None) in FLOAT8 or getattr(k, "dtype", None) in FLOAT8
    if not of_8_bits and out_dtype is None and not any(x is not None for x in sides.values()): return ""
    for name, x in (("q", q), ("k", k), ("v", v)): check_is_array(name, x)
    if not of_8_bits:
        checked("q", q, q)
        check_not_8_bit(k.dtype.name, sides | {"out_dtype": out_dtype})
        return ""
    wanted = None if out_dtype is None else name_of_type(out_dtype)
    if merges and wanted not in (None, "float32"):
        raise InvalidProblem("accumulate is given and out_dtype too; results are merged with what accumulate holds, "
                             "in float32. Leave it out.")
    return output_of(q.dtype.name, k.dtype.name, v.dtype.name, "float32" if merges else wanted, list(DTYPES))


def with_scales(arrays: Given, sides: dict[str, Any], of_o: str, max_seqlen_q: int | None,
                max_seqlen_kv: int | None) -> tuple[Types, Given]:
    """What types and scales put into the problem, and the scales and means in the shapes of Kind.dims_of."""
    q, k, v = (arrays[name] for name in "qkv")
    packed = "cu_seqlens_q" in arrays
    if "block_table" not in arrays:  # else they were looked at with it
        for name, x in zip("qkv", (q, k, v)): check_rank(name, x.shape, packed)
        check_shapes(q.shape, k.shape, v.shape)
    batch, rows_q = batch_of(arrays), q.shape[-3] if max_seqlen_q is None else max_seqlen_q
    rows_kv = k.shape[-3] if max_seqlen_kv is None else max_seqlen_kv
    scaled = (("scale_q", q, rows_q), ("scale_k", k, rows_kv), ("scale_v", v, rows_kv))
    found: dict[str, Any] = {}
    lie: dict[str, Scale] = {}
    for name, x, rows in scaled:
        check_scale_is_there(name, sides[name], name[-1], x.dtype.name)
        if sides[name] is not None: found[name] = float32_of(name, sides[name])
        shape = found[name].shape if name in found else ()
        lie[name] = scale_of(name, shape, dense_strides(shape), batch, rows, x.shape[-2],
                             x.shape[-1] if name == "scale_v" else 0, x.shape[:-1] if name != "scale_q" else ())
    types = types_of(k.dtype.name, of_o, list(lie.values()), check_means(sides["mean_k"], sides["mean_v"]))
    for name, x, rows in scaled:
        if name not in found: continue
        if lie[name].columns: shape = (batch, *x.shape[-2:])
        elif lie[name].tokens: shape = x.shape[:-1]
        else: shape = (batch, -(-rows // types.scale_rows) if types.scale_rows else 1, x.shape[-2])
        found[name] = jax.numpy.asarray(laid_out(found[name], lie[name], shape))
    for name, x in (("mean_k", k), ("mean_v", v)):
        if sides[name] is None: continue
        found[name] = checked(name, sides[name], q)
        mean_of(name, found[name].shape, dense_strides(found[name].shape), batch, *x.shape[-2:])
        found[name] = found[name].reshape(batch, *x.shape[-2:])
    return types, found


def laid_out(scale: Any, lies: Scale, shape: Shape) -> Any:
    """A scale that has one of the shapes of users in this one; what several blocks of rows share is repeated."""
    if lies.columns or lies.tokens: return scale.reshape(shape)
    batch, blocks, heads = shape
    if scale.ndim == 1: scale = scale.reshape(1, 1, -1)
    elif scale.ndim > 0: scale = scale.reshape(batch, scale.shape[1] if scale.ndim == 4 else 1, heads)
    of = np if isinstance(scale, np.ndarray) else jax.numpy
    if scale.ndim == 3 and scale.shape[1] == 0: return of.ones(shape, np.float32)  # of no rows: it is not read
    return of.broadcast_to(scale, shape)


def dense_strides(shape: Shape) -> list[int]:
    """In elements."""
    return [*itertools.accumulate(reversed(shape[1:]), lambda below, extent: below * extent, initial=1)][::-1]


def float32_of(name: str, scale: Any) -> Any:
    """An array, or a number as one of NumPy, which is no operation of JAX."""
    if isinstance(scale, (jax.Array, np.ndarray)):
        check_is_array(name, scale)
        return scale if isinstance(scale, np.ndarray) and scale.dtype == np.float32 else checked(name, scale, scale)
    narrow = ctypes.c_float(number(name, scale)).value
    if not 2.0**-126 <= narrow <= 2.0**126:  # of an array only the library sees that, when it runs
        raise InvalidProblem(f"{name} must be positive, from 1.2e-38 to 8.5e37 (2^-126 to 2^126), but is "
                             f"{shown(scale)}. Use 1 for values that stand for themselves.")
    return np.full((), narrow, np.float32)
