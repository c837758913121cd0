# SPDX-License-Identifier: Apache-2.0
"""append_kv on NumPy arrays: new keys and values into a cache, on this machine's CPU. What is new is looked at in each
call, since that is little beside writing the rows."""
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from froghopper._append import (NAMES, AppendCall, Rotary, Sizes, check_rotary, plan_for, problem_of, sizes_in,
                                types_of_tables, way_to_cache, way_to_parts, way_to_tables,
                                way_to_type_of_cache)
from froghopper._call import DTYPES, DTYPES_8_BIT, Strides
from froghopper._errors import InvalidProblem, InvalidTensor, InvalidType
from froghopper._numpy_8_bit import type_name
from froghopper._numpy_arrays import (Array, Lengths, address, array_of, check_array, check_is_array, check_shape,
                                      check_writeable, contiguous, float32_of, longest, read_one_length, strides_of)
from froghopper._scales import SCALES_UNLIKE
from froghopper._values import counted, flag, number, one_of, whole_name
from froghopper._words import takes_words_of_others


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


@takes_words_of_others("")
def append_kv(k: Array | None, v: Array | None, k_cache: Array | None, v_cache: Array | None, *,
              q: Array | None = None, q_out: Array | None = None, slot_mapping: ArrayLike | None = None,
              block_table: ArrayLike | None = None, seqused_kv: Lengths | None = None,
              cu_seqlens: Lengths | None = None, max_seqlen: int | None = None, seqused: Lengths | None = None,
              rotary_cos: Array | None = None, rotary_sin: Array | None = None, rotary_interleaved: bool = False,
              positions: ArrayLike | None = None, norm_q: Array | None = None, norm_k: Array | None = None,
              norm_epsilon: float | None = None, scale_k: ArrayLike | None = None, scale_v: ArrayLike | None = None,
              dtype: str | None = None, max_sms: int = 0) -> Array | None:
    """Writes new keys and values into a cache, normed, rotated and in 8 bits where that is asked for; q with them.

    k, v           new rows, [batch, seq, heads_kv, dim], or [tokens, heads_kv, dim] with cu_seqlens or slot_mapping; v
                   may have its own dim. float16, float32 or ml_dtypes' bfloat16. Each may be None, with its cache
    k_cache        [batch, rows, heads_kv, dim]; with block_table or slot_mapping pages, [pages, page_size, heads_kv,
    v_cache        dim]. Any strides as long as columns lie side by side. Of k's type, or ml_dtypes' float8; never
                   copied, and only rows that are named are written
    q              [batch, seq, heads_q, dim] or [tokens, heads_q, dim]: normed and rotated too
    q_out          where it is written; None for a new array; q itself will do

    Where rows go. Two rows may not go to one place: what is there then is undefined
    slot_mapping   [tokens] whole numbers, in any shape: page * page_size + row in the page; negative for none
    seqused_kv     without slot_mapping: [batch] how many rows of each sequence are there already; None for 0. Row i of
                   the new ones goes behind them
    block_table    [batch, columns] whole numbers: the pages of each sequence
    cu_seqlens     [batch + 1] where each packed sequence begins, and the end; q's too
    max_seqlen     with cu_seqlens: an upper bound on the new rows of a sequence; None looks
    seqused        [batch] how many of the new rows count; None for all

    rotary_cos     [positions, rotary_dim / 2], of k's type or float32: the first rotary_dim columns of q and k are
    rotary_sin     rotated
    rotary_interleaved  pairs are columns 2i and 2i + 1; else i and i + rotary_dim / 2
    positions      [tokens] whole numbers, in any shape: of each row, for rotary_cos; None for the row of the sequence
                   that it goes to; needed with slot_mapping
    norm_epsilon   not None: rows of q and k are divided by sqrt(mean of squares + norm_epsilon) before they are rotated
    norm_q, norm_k [dim], of k's type or float32: what their columns are multiplied by then; None for 1
    scale_k        float8 caches: what is stored is a number divided by it: a number or [heads_kv]; or a float32 array
    scale_v        [pages, page_size, heads_kv] (as the cache without its last dimension): each row of a head gets a
                   scale of its own, which is written there. It is inf for a row with an infinite number, which
                   attention cannot read; NaN is left out: docs/13-serving.md
    dtype          "float8_e4m3fn" or "float8_e5m2": what the caches hold where they are uint8, for want of ml_dtypes
    max_sms        threads that it may use; 0 for all

    Returns q_out, None without q. All is computed in float32 and rounded once. Slots, lengths, pages and positions are
    checked before anything is written. Raises TypeError for arguments of a wrong kind, ValueError for shapes, numbers
    and memory that do not fit, NotImplementedError for what makes sense and is not computed.
    """
    new = {name: x for name, x in (("q", q), ("k", k), ("v", v)) if x is not None}
    for name, x in new.items(): check_is_array(name, x)
    if not new: raise InvalidTensor("q, k or v must be given, but all are None. Give one, with what is written of it.")
    of_kv, of_qk, of_v = first(k, v, q), first(k, q, v), first(v, k, q)
    check_new(new, of_kv)
    q_out = check_q_out(q, q_out)
    caches = check_caches(k, v, k_cache, v_cache)
    given = Given(
        block_table=whole_numbers("block_table", block_table, np.int32),
        cu_seqlens=read_one_length("cu_seqlens", cu_seqlens), seqused=read_one_length("seqused", seqused),
        seqused_kv=read_one_length("seqused_kv", seqused_kv),
        slot_mapping=whole_numbers("slot_mapping", slot_mapping, np.int64),
        positions=whole_numbers("positions", positions, np.int64), rotary_cos=factors("rotary_cos", rotary_cos, of_kv),
        rotary_sin=factors("rotary_sin", rotary_sin, of_kv), norm_q=factors("norm_q", norm_q, of_kv),
        norm_k=factors("norm_k", norm_k, of_kv))
    sizes = sizes_of(given, of_kv, None if not caches else next(iter(caches.values())), max_seqlen)
    check_sides(given, sizes, of_kv.size // max(of_kv.shape[-2] * of_kv.shape[-1], 1), q, k)
    dtype_kv = type_of_caches(caches, of_kv, dtype)
    scales = {"scale_k": scale_of("scale_k", scale_k, k_cache, dtype_kv),
              "scale_v": scale_of("scale_v", scale_v, v_cache, dtype_kv)}
    own = {scale.ndim == 3 for scale in scales.values() if scale is not None}
    if len(own) > 1:
        raise InvalidProblem(SCALES_UNLIKE)
    weights = given.norm_q if given.norm_k is None else given.norm_k
    problem = problem_of(
        sizes, (first(q, of_kv).shape[-2], of_kv.shape[-2]), (of_qk.shape[-1], of_v.shape[-1]), of_kv.dtype.name,
        dtype_kv, seqused=given.seqused is not None or given.seqused_kv is not None,
        slots=given.slot_mapping is not None, positions=given.positions is not None,
        rotary=rotary_of(given, flag("rotary_interleaved", rotary_interleaved), of_qk.shape[-1]),
        norm_epsilon=None if norm_epsilon is None else number("norm_epsilon", norm_epsilon),
        norm_dtype=None if weights is None else weights.dtype.name, scale_tokens=own == {True}, max_sms=max_sms)
    tensors = {"q": q, "k": k, "v": v, "q_out": q_out, "cache_k": k_cache, "cache_v": v_cache, **scales,
               **given._asdict()}
    tensors["cu_seqlens_q"], tensors["seqused_q"] = tensors.pop("cu_seqlens"), tensors.pop("seqused")
    AppendCall(plan_for(problem, "cpu"), strides_in(tensors)).run([address(tensors[name]) for name in NAMES], None)
    return q_out


def first(*arrays: Array | None) -> Array:
    """The first that is there."""
    return next(x for x in arrays if x is not None)


def check_new(new: dict[str, Array], some: Array) -> None:
    """New rows are of one type, alike in rows, and fit each other in heads and columns."""
    for name, x in new.items():
        check_array(name, x, x)
        if x.dtype.name not in DTYPES:
            raise InvalidType(f"{name} must be one of {', '.join(DTYPES)}, but is {x.dtype}. Use {name}.astype("
                              "numpy.float32).")
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


def check_q_out(q: Array | None, q_out: Array | None) -> Array | None:
    if q is None and q_out is not None: raise InvalidTensor("q must be given with q_out, but is None. Give q.")
    if q is None: return None
    if q_out is None: return np.empty(q.shape, q.dtype)
    check_array("q_out", q_out, q)
    check_shape("q_out", q_out, q.shape)
    check_writeable("q_out", q_out)
    return q_out


def check_caches(k: Array | None, v: Array | None, k_cache: Array | None, v_cache: Array | None) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for name, x, cache in (("k", k, k_cache), ("v", v, v_cache)):
        if (x is None) != (cache is None):
            raise InvalidTensor(f"{name} and {name}_cache must be given together, but one is None. Give both or none.")
        if x is None or cache is None: continue
        check_array(f"{name}_cache", cache, cache)
        lead = next(iter(found.values()), cache).shape[:2]
        if cache.ndim != 4 or cache.shape != (*lead, *x.shape[-2:]):
            raise InvalidTensor(f"{name}_cache must be [batch or pages, rows, heads, dim], with the rows of the other "
                                f"cache and the heads and columns of {name}, {list(x.shape[-2:])}, but has the shape "
                                f"{list(cache.shape)}. {way_to_cache(name, x.shape, cache.shape)}.")
        check_writeable(f"{name}_cache", cache)
        found[f"{name}_cache"] = cache
    return found


def type_of_caches(caches: dict[str, Array], some: Array, dtype: str | None) -> str:
    if dtype is not None: dtype = one_of("dtype", whole_name(dtype), DTYPES_8_BIT)
    types = {type_name(name, x, dtype) for name, x in caches.items()} or {some.dtype.name}
    if len(types) > 1:
        raise InvalidType(f"v_cache must be of the type of k_cache, but they are {' and '.join(sorted(types))}. "
                          "Use v_cache.astype(k_cache.dtype).")
    found = types.pop()
    if found != some.dtype.name and found not in DTYPES_8_BIT:
        way = way_to_type_of_cache("k", found, ".astype(k_cache.dtype)", '.view("uint8") and dtype="float8_e4m3fn"')
        raise InvalidType(f"k_cache and v_cache must be {some.dtype}, as k is, or float8, but are {found}. {way}.")
    return found


def whole_numbers(name: str, given: Any, dtype: Any) -> Array | None:
    if given is None: return None
    array = array_of(name, given)
    if array.dtype.kind not in "iu":
        raise InvalidType(f"{name} must be whole numbers, but is {array.dtype.name}. Use numpy.asarray({name}, "
                          f"\"{np.dtype(dtype).name}\").")
    ends = np.iinfo(dtype)
    if array.size and not ends.min <= int(array.min()) <= int(array.max()) <= ends.max:
        raise InvalidTensor(f"{name} must fit {np.dtype(dtype).name}, but holds {array.min()} to {array.max()}. Change "
                            "it.")
    return contiguous(array.astype(dtype, copy=False))


def factors(name: str, given: Any, some: Array) -> Array | None:
    """A table or weights, dense: of the type of the new rows, or float32."""
    if given is None: return None
    check_is_array(name, given)
    if given.dtype != some.dtype and given.dtype != np.float32:
        way = way_to_parts(name, given.dtype.name, ".astype(\"float32\")") or f"Use {name}.astype(\"float32\")"
        raise InvalidType(f"{name} must be {types_of_tables(some.dtype.name, 'k')}, but is {given.dtype}. {way}.")
    return contiguous(given)


def sizes_of(given: Given, new: Array, cache: Array | None, max_seqlen: int | None) -> Sizes:
    """How many rows there are, of how many sequences, and how the cache lies."""
    packed, flat = given.cu_seqlens is not None, new.ndim == 3
    if not packed and max_seqlen is not None:
        raise InvalidProblem("max_seqlen must be None without cu_seqlens, but is given. Leave it out.")
    if packed and not flat or (flat and not packed and given.slot_mapping is None and cache is not None):
        raise InvalidProblem("k must be [batch, seq, heads, dim], or [tokens, heads, dim] with cu_seqlens or "
                             f"slot_mapping, which say where a row goes, but has the shape {list(new.shape)}. Reshape "
                             "it.")
    batch, seq, total = (1, new.shape[0], -1) if flat else (new.shape[0], new.shape[1], -1)
    if given.cu_seqlens is not None:
        if len(given.cu_seqlens) < 1:
            raise InvalidProblem("cu_seqlens must have one number more than there are sequences, but has 0. Use [0] "
                                 "for no sequence.")
        batch, seq = len(given.cu_seqlens) - 1, longest("max_seqlen", given.cu_seqlens, max_seqlen)
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
        check_shape(name, x, beside.shape[-1:])
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


def scale_of(name: str, given: Any, cache: Array | None, dtype_kv: str) -> Array | None:
    """One for all, one a head, or the caller's own array of one for each row and head, which is written."""
    if cache is None or dtype_kv not in DTYPES_8_BIT:
        if given is None: return None
        raise InvalidType(f"{name} must be None with {name[-1]}_cache that is not float8, but is given. Leave it "
                          "out.")
    if given is None:
        raise InvalidType(f"{name} must be given with {name[-1]}_cache of {dtype_kv}, as what is stored is a number "
                          "divided by it, but is None. Give 1 where values stand for themselves.")
    rows, heads = cache.shape[:3], cache.shape[2]
    if np.ndim(given) == 3:
        check_is_array(name, given)
        check_shape(name, given, rows)
        if given.dtype != np.float32:
            raise InvalidType(f"{name} must be float32 where it is written, but is {given.dtype}. Use "
                              "numpy.empty(shape, \"float32\").")
        check_writeable(name, given)
        own: Array = given
        return own
    found = float32_of(name, given)
    if found is None or found.shape not in ((), (1,), (heads,)):
        raise InvalidTensor(f"{name} must be a number, [{heads}], or {list(rows)} for a scale of each row, but has the "
                            f"shape {list(np.shape(given))}. Give it one of these shapes.")
    return contiguous(found)


AS_GIVEN = {"cache_k": "k_cache", "cache_v": "v_cache"}


def strides_in(tensors: dict[str, Any]) -> dict[str, Strides]:
    """Of those that may lie otherwise than dense, and of all whose strides say how many numbers there are."""
    strides: dict[str, Strides] = {}
    for name in ("q", "k", "v", "q_out", "cache_k", "cache_v"):
        if tensors[name] is not None: strides[name] = strides_of(AS_GIVEN.get(name, name), tensors[name])
    for name in ("scale_k", "scale_v"):
        if (scale := tensors[name]) is None: continue
        steps = [step // 4 for step in scale.strides]
        strides[name] = (steps[0], steps[1], steps[2]) if scale.ndim == 3 else (0, 0, int(scale.size > 1))
    for name in ("rotary_cos", "rotary_sin"):
        if (table := tensors[name]) is not None: strides[name] = (0, table.shape[1], 0)
    if (table := tensors["block_table"]) is not None: strides["block_table"] = (table.shape[1], 1, 0)
    return strides
