# SPDX-License-Identifier: Apache-2.0
"""Arrays of NumPy as the library takes them: checked, in one type, with their strides and addresses; lengths as int32.
What _numpy.py and _numpy_quantise.py share."""
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from froghopper._call import (DTYPES, DTYPES_8_BIT, Packed, Shape, Strides, check_held, check_rank, element_strides,
                              slope_strides)
from froghopper._errors import InvalidProblem, InvalidTensor, InvalidType
from froghopper._lse import lse_by_row_of
from froghopper._values import (counted, is_of_padding, is_result, listed, new_result, number, shown, type_of,
                                way_to_dense, way_to_type, whole_number, wrong_shape)

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
    array = array_of(name, value)
    if array.shape == (0,): array = np.empty(0, np.int32)  # an empty list is one of floats
    if array.dtype.kind not in "iu" or array.ndim != 1:
        out = f"Use numpy.asarray({name}, \"int32\").ravel()"
        if array.dtype.kind not in "iuf": out = f"Give a list of ints, such as {name}=[0, {len(array.ravel())}]"
        elif name.startswith("seqused") and array.ndim == 0: out = f"Use [{name}] * batch"
        if is_of_padding(name, array.shape): out = f"If it is a mask, with padding at the end, use {name}.sum(-1)"
        raise InvalidType(f"{name} must be a list of whole numbers, but is {array.dtype.name} with the shape "
                          f"{list(array.shape)}. {out}.")
    for end in (array.min(initial=0), array.max(initial=0)):
        if not -2**31 <= end < 2**31:
            raise InvalidTensor(f"{name} must fit int32, but holds {end}. Split the batch.")
    return contiguous(array.astype(np.int32, copy=False))


def packed_of(lengths: HeldLengths, q: Array, k: Array, max_seqlen_q: int | None,
              max_seqlen_kv: int | None) -> Packed | None:
    """How many sequences there are and how long, where they are packed; checks that all lengths fit each other."""
    begins_q, begins_kv = lengths.cu_seqlens_q, lengths.cu_seqlens_kv
    if (begins_q is None) != (begins_kv is None):
        given, other = ("q", "kv") if begins_kv is None else ("kv", "q")
        raise InvalidProblem(f"cu_seqlens_q and cu_seqlens_kv must be given together, but cu_seqlens_{other} is "
                             f"None. Give cu_seqlens_{other}.")
    for name, x in (("q", q), ("k", k)): check_rank(name, x.shape, begins_q is not None)
    packed, batch = None, q.shape[0]
    if begins_q is not None and begins_kv is not None:
        for name, begins in (("q", begins_q), ("kv", begins_kv)):
            if len(begins) < 1:
                raise InvalidProblem(f"cu_seqlens_{name} must have one number more than there are sequences, but has "
                                     "0. Use [0] for no sequence.")
            if len(begins) != len(begins_q):
                raise InvalidProblem(f"cu_seqlens_{name} must have as many numbers as cu_seqlens_q, {len(begins_q)}, "
                                     f"but has {len(begins)}. Make them equally long.")
        packed = Packed(len(begins_q) - 1, longest("max_seqlen_q", begins_q, max_seqlen_q),
                        longest("max_seqlen_kv", begins_kv, max_seqlen_kv))
        batch = packed.batch
    elif max_seqlen_q is not None or max_seqlen_kv is not None:
        raise InvalidProblem("max_seqlen_q and max_seqlen_kv must be None without cu_seqlens, but one is given. "
                             "Leave them out.")
    for name, used in (("seqused_q", lengths.seqused_q), ("seqused_kv", lengths.seqused_kv)):
        if used is not None and len(used) != batch:
            raise InvalidProblem(f"{name} must have {counted(batch, 'number')}, one for each sequence, but has "
                                 f"{len(used)}. Give {counted(batch, 'number')}.")
    return packed


def longest(name: str, begins: Array, given: int | None) -> int:
    rows = max(0, int(np.diff(begins.astype(np.int64)).max(initial=0)))
    if given is None: return rows
    bound = whole_number(name, given)
    if bound < rows:
        raise InvalidProblem(f"{name} must be at least {rows}, the rows of the longest sequence, but is {bound}. Use "
                             f"{name}={rows}, or None.")
    return bound


def array_of(name: str, given: Any) -> Array:
    """Numbers of any kind as an array of NumPy."""
    check_no_mask(name, given)
    try: return np.asarray(given)
    except Exception as error:  # what other classes raise where they are asked for an array is theirs
        raise InvalidType(f"{name} must be an array, but is {shown(given)}, of which NumPy makes none "
                          f"({error}). Give an array.") from error


def check_no_mask(name: str, array: Any) -> None:
    if isinstance(array, np.ma.MaskedArray):
        raise InvalidType(f"{name} must be an array without a mask, which would be lost, but is a "
                          f"{type(array).__name__}. Use {name}.{'data' if is_result(name) else 'filled(0)'}.")


# What to do about a list for what is written: what goes to a copy of it alone is lost.
WRITTEN = {name: f"Keep an array, to which rows go then: {name} = numpy.asarray({name})."
           for name in ("k_cache", "v_cache")} | {"out": "Leave it out, or give an array that you keep."}


def check_is_array(name: str, array: Any) -> None:
    check_no_mask(name, array)
    if isinstance(array, np.ndarray): return
    where = type(array).__module__.partition(".")[0].removesuffix("lib")  # arrays of JAX are jaxlib's
    out = f"Use froghopper.{where} for it." if where in ("torch", "jax") else f"Use numpy.asarray({name})."
    if array is None: out = f"Give {name}."
    elif "numpy" in out: out = WRITTEN.get(name, out)
    raise InvalidType(f"{name} must be an array of NumPy, but is {type_of(array)}. {out}")


def check_array(name: str, array: Any, q: Any) -> None:
    """It is an array of NumPy in the type of q, in this machine's byte order."""
    check_is_array(name, array)
    if array.dtype != q.dtype:
        if q.dtype.name not in (*DTYPES, *DTYPES_8_BIT, "uint8"):  # no type to follow
            raise InvalidType(f"q must be float16, float32 or ml_dtypes.bfloat16, but is {q.dtype}. Use "
                              "q.astype(\"float32\").")
        out = f"Use numpy.empty({name}.shape, q.dtype)" if is_result(name) else way_to_type(
            name, array.dtype.name, f"{name}.astype(q.dtype)", f"{name}.view(ml_dtypes.float8_e4m3fn)")
        raise InvalidType(f"{name} must have the type of q, {q.dtype}, but is {array.dtype}. {out}.")
    if not array.dtype.isnative:
        out = f"numpy.empty({name}.shape, q.dtype)" if is_result(name) else f"{name}.astype(\"{array.dtype.name}\")"
        raise InvalidType(f"{name} must have this machine's byte order, but has the other one. Use {out}.")


def contiguous(array: Array) -> Array:
    """Without gaps, each number at a multiple of its size, as the library reads what has no strides."""
    return np.require(array, requirements=("C", "A"))


def float32_of(name: str, given: Any) -> Array | None:
    """Numbers that are read as float32, a copy where they lie otherwise: strides are counted in elements."""
    if given is None: return None
    array = array_of(name, given)
    if isinstance(given, (int, float)) and not isinstance(given, bool): array = np.asarray(number(name, given))
    if array.dtype.kind not in "fiu": raise InvalidType(f"{name} must be float32, but is {array.dtype}. Use "
                                                        f"{name}.astype(\"float32\").")
    with np.errstate(over="raise"):
        try: narrow = array.astype(np.float32, copy=False)
        except FloatingPointError:
            raise InvalidTensor(f"{name} must hold numbers of float32, but some are larger. Give smaller "
                                "ones.") from None
    return narrow if narrow.flags.aligned else narrow.copy()


def check_shape(name: str, array: Array, shape: Shape) -> None:
    if array.shape != tuple(shape): wrong_shape(name, array.shape, shape)


def check_writeable(name: str, array: Array) -> None:
    if array.flags.writeable: return
    out = f"numpy.empty({name}.shape, {name}.dtype)" if is_result(name) else f"{name}.copy(), or another array"
    raise InvalidTensor(f"{name} must be writeable, as results go there, but is read-only. Use {out}.")


def dense(name: str, array: Any, shape: Shape) -> Any:
    """The same, contiguous: a float32 array of that shape, or None."""
    if array is None: return None
    check_float32(name, array)
    check_shape(name, array, shape)
    return contiguous(array)


def check_float32(name: str, array: Any) -> None:
    check_no_mask(name, array)
    if isinstance(array, np.ndarray) and array.dtype == np.float32: return
    kind = array.dtype if isinstance(array, np.ndarray) else type_of(array)
    raise InvalidType(f"{name} must be an array of float32, but is {kind}. Use numpy.asarray({name}, \"float32\").")


def check_place(name: str, array: Array, what: str) -> None:
    """It may be written to by the address of its first number alone."""
    check_writeable(name, array)
    if not array.flags.c_contiguous:
        raise InvalidTensor(f"{name} must be contiguous, but has the strides {list(array.strides)} (bytes); {what} "
                            f"is dense. {way_to_dense(name)}.")
    if not array.flags.aligned:
        raise InvalidTensor(f"{name} must lie at a multiple of the {array.itemsize} bytes that its numbers have, but "
                            f"is at address {address(array)}. "
                            f"{new_result(name) if is_result(name) else f'Use {name}.copy()'}.")


def result_shape(q: Array, v: Array) -> tuple[int, ...]: return (*q.shape[:-1], *v.shape[-1:])


OF_GRADIENTS = ("grad_o", "q", "k", "v", "o", "lse")  # arguments of attention_backward, in its order
OTHER_ORDERS = (("q", "k", "v", "o", "lse", "grad_o"), ("q", "k", "v", "o", "grad_o", "lse"),
                ("q", "k", "v", "grad_o", "o", "lse"), ("grad_o", "q", "k", "v", "lse", "o"),
                ("grad_o", "o", "q", "k", "v", "lse"), ("o", "lse", "grad_o", "q", "k", "v"))


def check_order(*given: Array) -> None:
    """Whether the arrays that attention_backward is given fit in its order, or at least in none that others have."""
    check_is_array("q", given[1])
    if not all(isinstance(x, np.ndarray) for x in given) or fit_as(OF_GRADIENTS, given): return
    shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in zip(OF_GRADIENTS, given))
    for order in OTHER_ORDERS:
        if not fit_as(order, given): continue
        raise InvalidProblem(f"grad_o, q, k, v, o and lse must be in this order, but their shapes are those of "
                             f"{listed(order)}: {shapes}. Use attention_backward({', '.join(OF_GRADIENTS)}), or give "
                             "all six by name.")


def fit_as(order: Sequence[str], given: Sequence[Array]) -> bool:
    """Whether these would be arrays of one call."""
    shapes = {name: x.shape for name, x in zip(order, given)}
    q, k, v = shapes["q"], shapes["k"], shapes["v"]
    if len(q) not in (3, 4) or not len(q) == len(k) == len(v) or k[:-1] != v[:-1] or q[-1] != k[-1]: return False
    rows = (q[1], q[0]) if len(q) == 3 else (q[0], q[2], q[1])
    of_one_batch = (len(q) == 3 or q[0] == k[0]) and k[-2] > 0 and q[-2] % k[-2] == 0
    return of_one_batch and shapes["o"] == shapes["grad_o"] == (*q[:-1], v[-1]) and shapes["lse"] == rows


def lse_shape(q: Array) -> tuple[int, ...]:
    return (q.shape[1], q.shape[0]) if q.ndim == 3 else (q.shape[0], q.shape[2], q.shape[1])


def dense_strides(shape: Shape) -> Strides:
    return 0 if len(shape) == 3 else shape[-3] * shape[-2] * shape[-1], shape[-2] * shape[-1], shape[-1]


def strides_of(name: str, array: Array) -> Strides:
    if any(stride % array.itemsize for stride, n in zip(array.strides, array.shape) if n > 1):
        raise InvalidTensor(f"{name} must have strides that are multiples of the {array.itemsize} bytes of its "
                            f"numbers, but has {list(array.strides)}. "
                            f"{new_result(name) if is_result(name) else f'Use {name}.copy()'}.")
    return element_strides(name, array.shape, [stride // array.itemsize for stride in array.strides])


def key_of(arrays: Any, options: dict[str, Any]) -> Hashable:
    """Everything that makes a Call another one."""
    return (*((x.shape, x.strides, x.dtype) for x in arrays), *options.values())


def address(array: Array | None) -> int:
    return 0 if array is None else int(array.__array_interface__["data"][0])


def slopes_of(slopes: Array | None, problem: Any) -> Strides:
    if slopes is None: return 0, 0, 0
    return slope_strides(*layout_of(slopes), problem.batch, problem.heads_q)


def gates_of(*gates: Array | None) -> list[Strides]:
    """Of gate, and of its gradient."""
    return [strides_of("gate", x) for x in held_arrays(*gates)]


def held_arrays(*arrays: Array | None) -> list[Array]: return [x for x in arrays if x is not None]


def layout_of(array: Array | None) -> tuple[Shape, Strides]:
    """Shape, and strides in elements, of what float32_of gave."""
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
        check_float32(f"accumulate[{at}]", array)
    return tuple(given[:len(names)])


def lse_for(q: Array, held: tuple[Array, ...] | None, return_lse: bool, by_row: bool) -> Array | None:
    if held is None:
        return np.empty(lse_by_row_of(q.shape)[0] if by_row else lse_shape(q), np.float32) if return_lse else None
    return dense_held(1, "lse", held, lse_shape(q))


def max_logit_for(q: Array, batch: int, held: tuple[Array, ...] | None, wanted: bool) -> Array | None:
    """[batch, heads_q], of sequences, also packed ones."""
    if not wanted: return None
    if held is None: return np.empty((batch, q.shape[-2]), np.float32)
    return dense_held(2, "max_logit", held, (batch, q.shape[-2]))


def dense_held(at: int, name: str, held: tuple[Array, ...], shape: Shape) -> Array:
    check_shape(f"accumulate[{at}]", held[at], shape)
    check_place(f"accumulate[{at}]", held[at], name)
    return held[at]
