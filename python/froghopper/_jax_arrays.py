# SPDX-License-Identifier: Apache-2.0
"""The arrays that froghopper.jax.attention is given: which types and shapes they must have."""
# JAX has few types, and mypy runs where it is not installed, too.
# mypy: disable-error-code="import-not-found,no-any-return,no-untyped-call,untyped-decorator"
from typing import Any, TypeAlias

import jax
import numpy as np

from froghopper._axes import check_begins, check_pool, room_in_pages
from froghopper._call import DTYPES, check_held, check_rank, slopes_out
from froghopper._errors import InvalidProblem, InvalidTensor, InvalidType, Unsupported
from froghopper._values import (counted, is_of_padding, shown, type_of, way_to_all, way_to_type, whole_number,
                                wrong_shape)
from froghopper._xla_kind import LENGTHS, SCALES

Array: TypeAlias = jax.Array
Given: TypeAlias = dict[str, Array]
HELD = {"o": "accumulate[0]", "lse": "accumulate[1]", "max_logit": "accumulate[2]"}  # as a user knows them
FLOAT32 = np.dtype("float32")
FLOATS = ("sink", "o", "lse", "alibi_slopes", "max_logit", *SCALES)


def checked(name: str, array: Any, q: Any, of_o: str = "") -> Array:
    """An array of JAX (or NumPy, which JAX takes too) of the type that this argument has. of_o: the type of o where k
    and v have 8 bits; q, k and v then have types of their own."""
    check_is_array(name, array)
    if name == "block_table":
        if jax.numpy.issubdtype(array.dtype, jax.numpy.integer) and array.ndim == 2: return lengths_of(array)
        raise InvalidType(f"block_table must be whole numbers, [batch, columns], but is {array.dtype.name} with the "
                          f"shape {list(array.shape)}. Use int32 and one row for each sequence.")
    if name in LENGTHS: return checked_lengths(name, array)
    if name == "q" and not of_o and array.dtype.name not in DTYPES:
        way = way_to_all(array.dtype.name, "q.astype(\"float32\"), on a GPU \"bfloat16\", and k and v likewise",
                         "q.view(\"float8_e4m3fn\")")
        raise InvalidType(f"q, k and v must be {' or '.join(DTYPES)}, but are {array.dtype.name}. {way}.")
    wanted, whose = (FLOAT32, "") if name in FLOATS else (getattr(q, "dtype", array.dtype), ", as q is")
    if of_o and name == "gate": wanted, whose = jax.numpy.dtype(of_o), ", as o is"
    elif of_o and name in ("q", "k", "v"): wanted = array.dtype
    if array.dtype == wanted: return array if isinstance(array, jax.Array) else jax.numpy.asarray(array)
    said = HELD.get(name, name)
    way = way_to_type(name, array.dtype.name, f"{said}.astype(\"{wanted.name}\")", f"{said}.view(\"float8_e4m3fn\")")
    raise InvalidType(f"{said} must be {wanted.name}{whose}, but is {array.dtype.name}. {way}.")


def checked_lengths(name: str, array: Any) -> Array:
    """Of an array: as int32, in one dimension."""
    if jax.numpy.issubdtype(array.dtype, jax.numpy.integer) and array.ndim == 1: return lengths_of(array)
    way_out = f"{name}.astype(\"int32\").ravel()"
    if array.ndim == 0: way_out = of_every_sequence(name)
    if is_of_padding(name, array.shape): way_out = f"{name}.sum(-1), if it is a mask with padding at the end"
    raise InvalidType(f"{name} must be whole numbers in one dimension, but is {array.dtype.name} with the shape "
                      f"{list(array.shape)}. Use {way_out}.")


def of_every_sequence(name: str) -> str: return f"jax.numpy.full((batch,), {name}, \"int32\"), one for each sequence"


def check_is_array(name: str, array: Any) -> None:
    said = HELD.get(name, name)
    if isinstance(array, np.ma.MaskedArray):
        raise InvalidType(f"{said} must be an array without a mask, which would be lost, but is a "
                          f"{type(array).__name__}. Use {said}.filled(0).")
    if not isinstance(array, (jax.Array, np.ndarray)):
        out = f"Give {said}" if array is None else f"Use jax.numpy.asarray({said})"
        if name.startswith("seqused") and isinstance(array, int): out = f"Use {of_every_sequence(name)}"
        raise InvalidType(f"{said} must be an array of JAX, but is {type_of(array)}. {out}.")
    if not array.dtype.isnative:
        raise InvalidType(f"{said} must have this machine's byte order, but is {array.dtype}. Use "
                          f"{said}.astype({said}.dtype.newbyteorder(\"=\")).")
    if isinstance(array, jax.core.Tracer) and any(type(extent) is not int for extent in array.shape):
        raise Unsupported(f"{said} must have a shape of numbers, as kernels are made for them, but has "
                          f"[{', '.join(map(str, array.shape))}], symbolic dimensions of jax.export. Export a function "
                          "for each shape, or pad to the largest one, with seqused_q and seqused_kv for the rows that "
                          "count.")


def lengths_of(array: Any) -> Array:
    """As int32. What does not fit becomes the nearest number that does, and the library says that it is no length."""
    if array.dtype.itemsize >= 4 and array.dtype != np.int32:
        ends = np.iinfo(np.int32)
        of = np if isinstance(array, np.ndarray) else jax.numpy
        low = 0 if array.dtype.kind == "u" else ends.min
        array = of.clip(array, of.asarray(low, array.dtype), of.asarray(ends.max, array.dtype))
    return jax.numpy.asarray(array, np.int32)


def bounds(arrays: Given, **given: int | None) -> dict[str, Any]:
    """The largest lengths, which only packed sequences have; both cu_seqlens are there or none, equally long."""
    if "block_table" in arrays: return bounds_in_pages(arrays, **given)
    ends = [name for name in ("cu_seqlens_q", "cu_seqlens_kv") if name in arrays]
    if len(ends) == 1:
        other = {"cu_seqlens_q": "cu_seqlens_kv", "cu_seqlens_kv": "cu_seqlens_q"}[ends[0]]
        raise InvalidProblem(f"cu_seqlens_q and cu_seqlens_kv must be given together, but {other} is None. Give "
                             f"{other}.")
    for name, bound in given.items():
        if bound is None or ends: continue
        raise InvalidProblem(f"{name} must be None without cu_seqlens, but is {shown(bound)}. Leave it out.")
    counts = [arrays[name].shape[0] for name in ends]
    if 0 in counts:
        raise InvalidProblem(f"{ends[counts.index(0)]} must have one number more than there are sequences, but has "
                             "0. Use [0] for no sequence.")
    if ends and counts[0] != counts[1]:
        raise InvalidProblem("cu_seqlens_q and cu_seqlens_kv must have one number more than there are sequences, but "
                             f"have {counts[0]} and {counts[1]}. Make them equally long.")
    return {name: None if bound is None else whole_number(name, bound) for name, bound in given.items()}


def bounds_in_pages(arrays: Given, max_seqlen_q: int | None, max_seqlen_kv: int | None) -> dict[str, Any]:
    """The same of k and v in pages, whose rows a block table names: q alone may be packed."""
    if "cu_seqlens_kv" in arrays:
        raise InvalidProblem("cu_seqlens_kv is given with block_table, which says where the rows of a sequence are. "
                             "Leave cu_seqlens_kv out, and give the lengths in seqused_kv.")
    if "cu_seqlens_q" not in arrays and max_seqlen_q is not None:
        raise InvalidProblem(f"max_seqlen_q must be None without cu_seqlens_q, but is {shown(max_seqlen_q)}. Leave it "
                             "out.")
    check_rank("q", arrays["q"].shape, "cu_seqlens_q" in arrays, "cu_seqlens_q")
    check_pool(arrays["q"].shape, arrays["k"].shape, arrays["v"].shape)
    if "cu_seqlens_q" in arrays: check_begins(arrays["cu_seqlens_q"].shape)
    table, batch = arrays["block_table"].shape, batch_of(arrays)
    if table[0] != batch:
        raise InvalidProblem(f"block_table must have a row for each of {counted(batch, 'sequence')}, but has "
                             f"{table[0]}. Give it {batch}.")
    most = room_in_pages(table[1], arrays["k"].shape[1],
                         None if max_seqlen_kv is None else whole_number("max_seqlen_kv", max_seqlen_kv),
                         "seqused_kv" in arrays)
    return {"max_seqlen_q": None if max_seqlen_q is None else whole_number("max_seqlen_q", max_seqlen_q),
            "max_seqlen_kv": most}


def batch_of(arrays: Given) -> int:
    """How many sequences there are."""
    return int(arrays["cu_seqlens_q"].shape[0] - 1 if "cu_seqlens_q" in arrays else arrays["q"].shape[0])


def slopes_of(arrays: Given) -> Array:
    """A row for each sequence."""
    slopes, q = arrays["alibi_slopes"], arrays["q"]
    if isinstance(slopes, jax.core.Tracer): slopes = constant_slopes(slopes)
    batch = batch_of(arrays)
    if slopes.ndim == 1: slopes = jax.numpy.broadcast_to(slopes, (batch, *slopes.shape))
    if slopes.shape == (batch, q.shape[-2]): return slopes
    raise InvalidTensor("alibi_slopes must have the shape [heads_q] or [batch, heads_q], here "
                        f"{[batch, q.shape[-2]]}, but has {list(arrays['alibi_slopes'].shape)}. "
                        f"{slopes_out(arrays['alibi_slopes'].shape, batch, q.shape[-2])}.")


@jax.custom_jvp
def constant_slopes(slopes: Array) -> Array:
    """Themselves, which nothing may differentiate. JAX asks for the rule only where something does. (It would not do to
    raise in forward of jax.py: what JAX keeps of that function serves later gradients of q too.)"""
    return slopes


@constant_slopes.defjvp
def refuse_slopes(primals: Any, tangents: Any) -> Any:
    raise Unsupported("alibi_slopes requires a gradient; it has none here. Use jax.lax.stop_gradient(alibi_slopes).")


def held_arrays(given: Any, with_max_logit: bool) -> Given:
    """o and lse of accumulate, and max_logit."""
    return {} if given is None else dict(zip(check_held(given, with_max_logit, "arrays"), given))


def check_sizes(arrays: Given) -> None:
    """Of seqused, sink and accumulate; the shapes of q, k and v are right."""
    q, batch = arrays["q"], batch_of(arrays)
    rows = (q.shape[1], q.shape[0]) if q.ndim == 3 else (q.shape[0], q.shape[2], q.shape[1])
    for name, shape in (("seqused_q", (batch,)), ("seqused_kv", (batch,)), ("sink", (q.shape[-2],)),
                        ("o", (*q.shape[:-1], arrays["v"].shape[-1])), ("lse", rows),
                        ("max_logit", (batch, q.shape[-2])), ("gate", (*q.shape[:-1], arrays["v"].shape[-1]))):
        if name in arrays and arrays[name].shape != shape:
            wrong_shape(HELD.get(name, name), arrays[name].shape, shape)


def is_traced(arrays: Given) -> bool: return any(isinstance(x, jax.core.Tracer) for x in arrays.values())


def varying_alike(arrays: Given) -> Given:
    """In a shard_map that keeps track of what varies along which axes: all arrays vary along those of any."""
    if not is_traced(arrays): return arrays
    axes = {name: varying_axes(x) for name, x in arrays.items()}
    every = frozenset[str]().union(*axes.values())
    return {name: vary(x, tuple(sorted(every - axes[name]))) for name, x in arrays.items()}


def varying_axes(array: Array) -> frozenset[str]:
    """As the type of the array says, in each JAX in its own way."""
    type_of: Any = jax.typeof(array) if hasattr(jax, "typeof") else None
    if hasattr(type_of, "manual_axis_type"): return frozenset(type_of.manual_axis_type.varying)
    return frozenset(getattr(type_of, "vma", ()))


def vary(array: Any, axes: tuple[str, ...]) -> Any:
    if not axes: return array
    if hasattr(jax.lax, "pcast"): return jax.lax.pcast(array, axes, to="varying")
    return getattr(jax.lax, "pvary")(array, axes)  # what it was called before
