# SPDX-License-Identifier: Apache-2.0
"""Arrays of NumPy as the library takes them: checked, in one type, with their strides and addresses; lengths as int32.
What _numpy.py and _numpy_quantise.py share."""
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from froghopper._call import Packed, Shape, Strides, check_held, element_strides, slope_strides
from froghopper._errors import InvalidProblem, InvalidTensor, InvalidType

Array = NDArray[Any]
Lengths = NDArray[np.integer[Any]] | Sequence[int]


class HeldLengths(NamedTuple):
    """int32 and contiguous; None where not given."""
    cu_seqlens_q: Array | None
    cu_seqlens_kv: Array | None
    seqused_q: Array | None
    seqused_kv: Array | None

    @property
    def used(self) -> bool: return self.seqused_q is not None or self.seqused_kv is not None

    def addresses(self) -> tuple[int, int, int, int]:
        q, kv, used_q, used_kv = map(address, self)
        return q, kv, used_q, used_kv


def read_lengths(*given: Lengths | None) -> HeldLengths:
    return HeldLengths(*(read_one_length(name, value) for name, value in zip(HeldLengths._fields, given)))


def read_one_length(name: str, value: Lengths | None) -> Array | None:
    if value is None: return None
    array = np.asarray(value)
    if array.size == 0: array = array.astype(np.int32)  # an empty list is one of floats
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise InvalidType(f"{name} is {array.dtype.name} with the shape {list(array.shape)}; it is a list of whole "
                          "numbers. Give int32.")
    if array.size and not (array.min() >= -2**31 and array.max() < 2**31):
        raise InvalidTensor(f"{name} holds {array.max()}; rows are counted in int32. Split the batch.")
    return np.ascontiguousarray(array, np.int32)


def packed_of(lengths: HeldLengths, q: Array, k: Array, max_seqlen_q: int | None,
              max_seqlen_kv: int | None) -> Packed | None:
    """How many sequences there are and how long, where they are packed; checks that all lengths fit each other."""
    begins_q, begins_kv = lengths.cu_seqlens_q, lengths.cu_seqlens_kv
    if (begins_q is None) != (begins_kv is None):
        given, other = ("q", "kv") if begins_kv is None else ("kv", "q")
        raise InvalidProblem(f"cu_seqlens_{given} is given and cu_seqlens_{other} is not; both sides are packed or "
                             f"none. Give cu_seqlens_{other}.")
    packed, batch = None, q.shape[0] if q.ndim else 0
    if begins_q is not None and begins_kv is not None:
        for name, begins in (("q", begins_q), ("kv", begins_kv)):
            if len(begins) < 1 or len(begins) != len(begins_q):
                raise InvalidProblem(f"cu_seqlens_{name} has {len(begins)} numbers and cu_seqlens_q {len(begins_q)}; "
                                     "both have one more than there are sequences. Make them equally long.")
        packed = Packed(len(begins_q) - 1, longest(begins_q, max_seqlen_q), longest(begins_kv, max_seqlen_kv))
        batch = packed.batch
    elif max_seqlen_q is not None or max_seqlen_kv is not None:
        raise InvalidProblem("max_seqlen_q or max_seqlen_kv is given without cu_seqlens; only packed sequences have a "
                             "longest one. Leave them out.")
    for name, used in (("seqused_q", lengths.seqused_q), ("seqused_kv", lengths.seqused_kv)):
        if used is not None and len(used) != batch:
            raise InvalidProblem(f"{name} has {len(used)} numbers and there are {batch} sequences; it has one for "
                                 f"each. Give it {batch}.")
    return packed


def longest(begins: Array, given: int | None) -> int:
    if given is not None: return given
    return max(0, int(np.diff(begins).max(initial=0)))


def check_array(name: str, array: Any, q: Any) -> None:
    """It is an array of NumPy in the type of q, in this machine's byte order."""
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        where = type(array).__module__.partition(".")[0]
        out = f"Use froghopper.{where} for it." if where in ("torch", "jax") else "Use numpy.asarray."
        raise InvalidType(f"{name} is a {type(array).__name__}; this function computes on arrays of NumPy. {out}")
    if array.dtype != q.dtype:
        raise InvalidType(f"{name} is {array.dtype} and q is {q.dtype}; they have the same type. Convert one.")
    if not array.dtype.isnative: raise InvalidType(f"{name} has the other byte order. Convert to {array.dtype.name}.")


def check_shape(name: str, array: Array, shape: Shape) -> None:
    if array.shape != tuple(shape):
        raise InvalidTensor(f"{name} has the shape {list(array.shape)}; it must be {list(shape)}. Reshape it.")


def check_writeable(name: str, array: Array) -> None:
    if not array.flags.writeable: raise InvalidTensor(f"{name} is read-only; results go there. Give another array.")


def dense(name: str, array: Any, shape: Shape) -> Any:
    """The same, contiguous: a float32 array of that shape, or None."""
    if array is None: return None
    if not isinstance(array, np.ndarray) or array.dtype != np.float32:
        kind = array.dtype.name if isinstance(array, np.ndarray) else "a " + type(array).__name__
        raise InvalidType(f"{name} is {kind}; it is an array of float32. Convert it.")
    check_shape(name, array, shape)
    return np.ascontiguousarray(array)


def result_shape(q: Array, v: Array) -> tuple[int, ...]: return (*q.shape[:-1], *v.shape[-1:])


def lse_shape(q: Array) -> tuple[int, ...]:
    return (q.shape[1], q.shape[0]) if q.ndim == 3 else (q.shape[0], q.shape[2], q.shape[1])


def dense_strides(shape: Shape) -> Strides:
    return 0 if len(shape) == 3 else shape[-3] * shape[-2] * shape[-1], shape[-2] * shape[-1], shape[-1]


def strides_of(name: str, array: Array) -> Strides:
    if any(stride % array.itemsize for stride in array.strides):
        raise InvalidTensor(f"{name} has the strides {list(array.strides)} (bytes); elements have {array.itemsize} "
                            "bytes and lie at multiples of that. Copy it first.")
    return element_strides(name, array.shape, [stride // array.itemsize for stride in array.strides])


def window_key(window: Any) -> Any: return tuple(window) if isinstance(window, list) else window


def key_of(arrays: Any, options: dict[str, Any]) -> Hashable:
    """Everything that makes a Call another one."""
    return (*((x.shape, x.strides, x.dtype) for x in arrays), *options.values())


def address(array: Array | None) -> int:
    return 0 if array is None else int(array.__array_interface__["data"][0])


def slope_array(given: Any) -> Array | None:
    if given is None: return None
    array = np.asarray(given)
    if array.dtype.kind not in "fiu":
        raise InvalidType(f"alibi_slopes is {array.dtype}; it is float32. Convert it.")
    return array.astype(np.float32, copy=False)


def slopes_of(slopes: Array | None, problem: Any) -> Strides:
    if slopes is None: return 0, 0, 0
    strides = [stride // slopes.itemsize for stride in slopes.strides]
    return slope_strides(slopes.shape, strides, problem.batch, problem.heads_q)


def held_arrays(*arrays: Array | None) -> list[Array]: return [x for x in arrays if x is not None]


def layout_of(array: Array | None) -> tuple[Shape, Strides]:
    if array is None: return (), (0, 0, 0)
    return array.shape, tuple(stride // array.itemsize for stride in array.strides)  # type: ignore[return-value]


def held_arrays_of(given: Any, out: Any, with_max_logit: bool) -> tuple[Array, ...]:
    """The o and lse, and max_logit, that are merged with; their shapes are looked at when those of q, k and v are
    right."""
    names = check_held(given, with_max_logit, "arrays")
    if out is not None:
        raise InvalidProblem("out and accumulate are given; results are merged with what accumulate holds and stay "
                             "there. Leave out out.")
    for at, array in enumerate(given):
        if not isinstance(array, np.ndarray) or array.dtype != np.float32 or not array.dtype.isnative:
            raise InvalidType(f"accumulate[{at}] is {getattr(array, 'dtype', type(array).__name__)}; it is an array of "
                              "float32. Give that.")
    return tuple(given[:len(names)])


def lse_for(q: Array, held: tuple[Array, ...] | None, return_lse: bool) -> Array | None:
    if held is None: return np.empty(lse_shape(q), np.float32) if return_lse else None
    return dense_held(1, "lse", held, lse_shape(q))


def max_logit_for(q: Array, batch: int, held: tuple[Array, ...] | None, wanted: bool) -> Array | None:
    """[batch, heads_q], of sequences, also packed ones."""
    if not wanted: return None
    if held is None: return np.empty((batch, q.shape[-2]), np.float32)
    return dense_held(2, "max_logit", held, (batch, q.shape[-2]))


def dense_held(at: int, name: str, held: tuple[Array, ...], shape: Shape) -> Array:
    check_shape(f"accumulate[{at}]", held[at], shape)
    check_writeable(f"accumulate[{at}]", held[at])
    if not held[at].flags.c_contiguous:
        raise InvalidTensor(f"accumulate[{at}] is not contiguous; {name} is dense. Give a contiguous array.")
    return held[at]
