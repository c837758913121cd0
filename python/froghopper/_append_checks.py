# SPDX-License-Identifier: Apache-2.0
"""What append_kv asks of arrays whose types are those of NumPy, as JAX's are too: shapes and types beside each other.
"""
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, TypeAlias

from froghopper import _c
from froghopper._append import (Rotary, Sizes, check_rotary, problem_of, sizes_in, types_of_tables, way_to_cache,
                                way_to_parts, way_to_tables, way_to_type_of_cache)
from froghopper._call import DTYPES, DTYPES_8_BIT, Shape
from froghopper._errors import InvalidProblem, InvalidTensor, InvalidType
from froghopper._values import counted, wrong_shape

Array: TypeAlias = Any


class Given(NamedTuple):
    """What says where rows go and what becomes of them: dense, in the library's types, None where not given."""
    block_table: Array | None
    cu_seqlens: Array | None
    seqused: Array | None
    seqused_kv: Array | None
    slot_mapping: Array | None
    positions: Array | None
    rotary_cos: Array | None
    rotary_sin: Array | None
    norm_q: Array | None
    norm_k: Array | None


def first(*arrays: Array | None) -> Array:
    """The first that is there."""
    return next(x for x in arrays if x is not None)


def check_new(new: dict[str, Array], some: Array) -> None:
    """New rows are of one type, alike in rows, and fit each other in heads and columns."""
    for name, x in new.items():
        if x.dtype.name not in DTYPES:
            raise InvalidType(f"{name} must be one of {', '.join(DTYPES)}, but is {x.dtype}. Use {name}.astype("
                              "\"float32\").")
        if x.dtype != some.dtype:
            raise InvalidType(f"{name} must be of the type of the others, {some.dtype}, but is {x.dtype}. Use "
                              f"{name}.astype(\"{some.dtype}\").")
        if x.ndim not in (3, 4) or x.shape[:-2] != some.shape[:-2]:
            raise InvalidTensor(f"{name} must be [batch, seq, heads, dim], or [tokens, heads, dim] with cu_seqlens or "
                                f"slot_mapping, with the rows of the others, {list(some.shape[:-2])}, but has the "
                                f"shape {list(x.shape)}. Give all equally many rows.")
    for name, other, axis in (("v", "k", -2), ("q", "k", -1)):
        if name in new and other in new and new[name].shape[axis] != new[other].shape[axis]:
            raise InvalidTensor(f"{name} must have the {'heads' if axis == -2 else 'columns'} of {other}, "
                                f"{new[other].shape[axis]}, but has {new[name].shape[axis]}. Give both equally many.")


def check_caches(k: Array | None, v: Array | None, k_cache: Array | None, v_cache: Array | None,
                 check: Callable[[str, Array], None]) -> dict[str, Array]:
    """check: what a framework asks of a cache by itself."""
    found: dict[str, Array] = {}
    for name, x, cache in (("k", k, k_cache), ("v", v, v_cache)):
        if (x is None) != (cache is None):
            raise InvalidTensor(f"{name} and {name}_cache must be given together, but one is None. Give both or none.")
        if x is None or cache is None: continue
        check(f"{name}_cache", cache)
        lead = next(iter(found.values()), cache).shape[:2]
        if cache.ndim != 4 or cache.shape != (*lead, *x.shape[-2:]):
            raise InvalidTensor(f"{name}_cache must be [batch or pages, rows, heads, dim], with the rows of the other "
                                f"cache and the heads and columns of {name}, {list(x.shape[-2:])}, but has the shape "
                                f"{list(cache.shape)}. {way_to_cache(name, x.shape, cache.shape)}.")
        found[f"{name}_cache"] = cache
    return found


def type_of_caches(types: set[str], some: Array, view: str) -> str:
    """types: of the caches. view: the call that sees bytes as an 8-bit type."""
    if not types: return str(some.dtype.name)
    if len(types) > 1:
        raise InvalidType(f"v_cache must be of the type of k_cache, but they are {' and '.join(sorted(types))}. "
                          "Use v_cache.astype(k_cache.dtype).")
    found, = types
    if found != some.dtype.name and found not in DTYPES_8_BIT:
        way = way_to_type_of_cache("k", found, ".astype(k_cache.dtype)", view)
        raise InvalidType(f"k_cache and v_cache must be {some.dtype}, as k is, or float8, but are {found}. {way}.")
    return found


def sizes_of(given: Given, new: Array, cache: Array | None, max_seqlen: int | None,
             longest: Callable[[Array], int]) -> Sizes:
    """How many rows there are, of how many sequences, and how the cache lies. longest: the bound on the rows of packed
    sequences that begin there."""
    packed, flat = given.cu_seqlens is not None, new.ndim == 3
    if not packed and max_seqlen is not None:
        raise InvalidProblem("max_seqlen must be None without cu_seqlens, but is given. Leave it out.")
    if packed and not flat or (flat and not packed and given.slot_mapping is None and cache is not None):
        raise InvalidProblem("k must be [batch, seq, heads, dim], or [tokens, heads, dim] with cu_seqlens or "
                             f"slot_mapping, which say where a row goes, but has the shape {list(new.shape)}. Reshape "
                             "it.")
    batch, seq, total = (1, new.shape[0], -1) if flat else (new.shape[0], new.shape[1], -1)
    if given.cu_seqlens is not None:
        if given.cu_seqlens.shape[0] < 1:
            raise InvalidProblem("cu_seqlens must have one number more than there are sequences, but has 0. Use [0] "
                                 "for no sequence.")
        batch, seq = given.cu_seqlens.shape[0] - 1, longest(given.cu_seqlens)
        total = new.shape[0]
    return sizes_in(batch, seq, total, None if cache is None else cache.shape, given.block_table, given.slot_mapping,
                    new.shape)


def check_sides(given: Given, sizes: Sizes, tokens: int, q: Array | None, k: Array | None) -> None:
    """Shapes of what goes beside the new rows."""
    rows, sequences = (tokens, "row"), (sizes.batch, "sequence")
    for name, x, (count, of) in (("slot_mapping", given.slot_mapping, rows), ("positions", given.positions, rows),
                                 ("seqused", given.seqused, sequences), ("seqused_kv", given.seqused_kv, sequences)):
        if x is not None and x.size != count:
            raise InvalidProblem(f"{name} must have {counted(count, 'number')}, one for each {of}, but has {x.size}. "
                                 f"Give {counted(count, 'number')}.")
    table = given.block_table
    if table is not None and (table.ndim != 2 or table.shape[0] != sizes.batch):
        raise InvalidTensor(f"block_table must be [batch, columns] with batch {sizes.batch}, but has the shape "
                            f"{list(table.shape)}. Give a row of pages for each sequence.")
    for name, x, beside in (("norm_q", given.norm_q, q), ("norm_k", given.norm_k, k)):
        if x is None: continue
        if beside is None: raise InvalidTensor(f"{name} must be None without {name[-1]}, but is given. Leave it out.")
        if x.shape != beside.shape[-1:]: wrong_shape(name, x.shape, beside.shape[-1:])
    if given.norm_q is not None and given.norm_k is not None and given.norm_q.dtype != given.norm_k.dtype:
        raise InvalidType(f"norm_q must be of the type of norm_k, {given.norm_k.dtype}, but is {given.norm_q.dtype}. "
                          "Use norm_q.astype(norm_k.dtype).")


def rotary_of(given: Given, interleaved: bool, dim: int) -> Rotary | None:
    cos, sin = given.rotary_cos, given.rotary_sin
    if cos is None and sin is None and given.positions is None: return None
    if cos is None or sin is None:
        raise InvalidTensor("rotary_cos and rotary_sin must be given together, and with positions, but one is None. "
                            "Give both, or none and no positions.")
    if cos.ndim != 2 or cos.shape != sin.shape or cos.dtype != sin.dtype:
        raise InvalidTensor("rotary_cos and rotary_sin must be [positions, rotary_dim / 2], of one type, but are "
                            f"{cos.dtype} {list(cos.shape)} and {sin.dtype} {list(sin.shape)}. "
                            + (f"{way_to_tables(cos.shape, dim, sin.shape)}." if cos.dtype == sin.dtype else
                               "Use rotary_sin.astype(rotary_cos.dtype)."))
    check_rotary(dim, 2 * cos.shape[1])
    return Rotary(2 * cos.shape[1], cos.shape[0], interleaved, cos.dtype.name)


def described(q: Array | None, k: Array | None, v: Array | None, given: Given, sizes: Sizes, dtype_kv: str, *,
              rotary_interleaved: bool, norm_epsilon: float | None, own_scales: bool, max_sms: int) -> _c.Problem:
    """own_scales: each row and head of the cache has some."""
    of_kv, of_qk, of_v = first(k, v, q), first(k, q, v), first(v, k, q)
    weights = given.norm_q if given.norm_k is None else given.norm_k
    if weights is not None and norm_epsilon is None:
        name = "norm_q" if given.norm_k is None else "norm_k"
        raise InvalidTensor(f"{name} must be None without norm_epsilon, as nothing is normed then, but is given. Leave "
                            "it out, or give norm_epsilon.")
    return problem_of(
        sizes, (first(q, of_kv).shape[-2], of_kv.shape[-2]), (of_qk.shape[-1], of_v.shape[-1]), of_kv.dtype.name,
        dtype_kv, seqused=given.seqused is not None or given.seqused_kv is not None,
        slots=given.slot_mapping is not None, positions=given.positions is not None,
        rotary=rotary_of(given, rotary_interleaved, of_qk.shape[-1]), norm_epsilon=norm_epsilon,
        norm_dtype=None if weights is None else weights.dtype.name, scale_tokens=own_scales, max_sms=max_sms)


def check_whole(name: str, array: Array, way: str) -> None:
    if array.dtype.kind not in "iu":
        raise InvalidType(f"{name} must be whole numbers, but is {array.dtype.name}. Use {way}.")


def check_factors(name: str, given: Array, some: Array) -> None:
    """A table or weights: of the type of the new rows, or float32."""
    if given.dtype != some.dtype and given.dtype.name != "float32":
        way = way_to_parts(name, given.dtype.name, ".astype(\"float32\")") or f"Use {name}.astype(\"float32\")"
        raise InvalidType(f"{name} must be {types_of_tables(some.dtype.name, 'k')}, but is {given.dtype}. {way}.")


def has_scale(name: str, given: Any, cache: Array | None, dtype_kv: str) -> bool:
    """Raises where a cache has no scale and needs one, or the other way about."""
    if cache is None or dtype_kv not in DTYPES_8_BIT:
        if given is None: return False
        raise InvalidType(f"{name} must be None with {name[-1]}_cache that is not float8, but is given. Leave it "
                          "out.")
    if given is None:
        raise InvalidType(f"{name} must be given with {name[-1]}_cache of {dtype_kv}, as what is stored is a number "
                          "divided by it, but is None. Give 1 where values stand for themselves.")
    return True


def without_last(scale: Any, rows: Shape) -> Any:
    """A scale of each row, whose last axis attention's have and which need not be there, without it."""
    return scale[..., 0] if getattr(scale, "shape", None) == (*rows, 1) else scale


def check_own_scale(name: str, scale: Array, rows: Shape, module: str) -> None:
    """One for each row and head, which is written."""
    if tuple(scale.shape) != tuple(rows): wrong_shape(name, scale.shape, rows)
    if scale.dtype.name != "float32":
        raise InvalidType(f"{name} must be float32 where it is written, but is {scale.dtype}. Use "
                          f"{module}.empty(shape, \"float32\").")


def wrong_scale(name: str, shape: Shape, rows: Shape) -> NoReturn:
    raise InvalidTensor(f"{name} must be a number, [{rows[2]}], or {list(rows)} for a scale of each row, but has the "
                        f"shape {list(shape)}. Give it one of these shapes.")
