# SPDX-License-Identifier: Apache-2.0
"""append_kv on NumPy arrays: new keys and values into a cache, on this machine's CPU. What is new is looked at in each
call, since that is little beside writing the rows."""
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from froghopper import _c
from froghopper._append import NAMES, AppendCall, plan_for
from froghopper._append_checks import (Given, check_caches, check_factors, check_new, check_own_scale, check_sides,
                                       check_whole, described, first, has_scale, sizes_of, type_of_caches,
                                       without_last, wrong_scale)
from froghopper._call import DTYPES_8_BIT, Strides
from froghopper._errors import InvalidProblem, InvalidTensor, InvalidType
from froghopper._numpy_8_bit import type_name
from froghopper._numpy_arrays import (Array, Lengths, address, array_of, check_array, check_is_array, check_shape,
                                      check_writeable, contiguous, float32_of, longest, read_one_length, strides_of)
from froghopper._scales import SCALES_UNLIKE
from froghopper._values import flag, number, one_of, whole_name
from froghopper._words import takes_words_of_others


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
    scale_v        [pages, page_size, heads_kv] (as the cache without its last dimension, or with 1 for it): each row of
                   a head gets a scale of its own, which is written there. It is inf for a row with an infinite number,
                   which attention cannot read; NaN is left out: docs/13-serving.md
    dtype          "float8_e4m3fn" or "float8_e5m2": what the caches hold where they are uint8, for want of ml_dtypes
    max_sms        threads that it may use; 0 for all

    Returns q_out, None without q. All is computed in float32 and rounded once. Slots, lengths, pages and positions are
    checked before anything is written. Raises TypeError for arguments of a wrong kind, ValueError for shapes, numbers
    and memory that do not fit, NotImplementedError for what makes sense and is not computed.
    """
    problem, tensors = read_call(locals())
    AppendCall(plan_for(problem, "cpu"), strides_in(tensors)).run([address(tensors[name]) for name in NAMES], None)
    written: Array | None = tensors["q_out"]
    return written


def read_call(call: dict[str, Any]) -> tuple[_c.Problem, dict[str, Any]]:
    """What is asked for, and the arrays by the names of the library's tensors, all of it checked. call: the arguments
    of append_kv by name."""
    q, k, v, k_cache, v_cache = (call[name] for name in ("q", "k", "v", "k_cache", "v_cache"))
    new = {name: x for name, x in (("q", q), ("k", k), ("v", v)) if x is not None}
    for name, x in new.items(): check_is_array(name, x)
    if not new: raise InvalidTensor("q, k or v must be given, but all are None. Give one, with what is written of it.")
    of_kv = first(k, v, q)
    for name, x in new.items(): check_array(name, x, x)
    check_new(new, of_kv)
    q_out = check_q_out(q, call["q_out"])
    caches = check_caches(k, v, k_cache, v_cache, check_cache)
    read: dict[str, Array | None] = {
        name: whole_numbers(name, call[name], dtype) for name, dtype in (
            ("block_table", np.int32), ("slot_mapping", np.int64), ("positions", np.int64))}
    read |= {name: read_one_length(name, call[name]) for name in ("cu_seqlens", "seqused", "seqused_kv")}
    read |= {name: factors(name, call[name], of_kv) for name in ("rotary_cos", "rotary_sin", "norm_q", "norm_k")}
    given = Given(**read)
    sizes = sizes_of(given, of_kv, None if not caches else next(iter(caches.values())), call["max_seqlen"],
                     lambda begins: longest("max_seqlen", begins, call["max_seqlen"]))
    check_sides(given, sizes, of_kv.size // max(of_kv.shape[-2] * of_kv.shape[-1], 1), q, k)
    dtype = None if call["dtype"] is None else stored_as(call["dtype"], caches)
    dtype_kv = type_of_caches({type_name(name, x, dtype) for name, x in caches.items()}, of_kv,
                              '.view("uint8") and dtype="float8_e4m3fn"')
    scales = {"scale_k": scale_of("scale_k", call["scale_k"], k_cache, dtype_kv),
              "scale_v": scale_of("scale_v", call["scale_v"], v_cache, dtype_kv)}
    own = {scale.ndim == 3 for scale in scales.values() if scale is not None}
    if len(own) > 1:
        raise InvalidProblem(SCALES_UNLIKE)
    epsilon = call["norm_epsilon"]
    problem = described(
        q, k, v, given, sizes, dtype_kv, rotary_interleaved=flag("rotary_interleaved", call["rotary_interleaved"]),
        norm_epsilon=None if epsilon is None else number("norm_epsilon", epsilon), own_scales=own == {True},
        max_sms=call["max_sms"])
    tensors = {"q": q, "k": k, "v": v, "q_out": q_out, "cache_k": k_cache, "cache_v": v_cache, **scales,
               **given._asdict()}
    tensors["cu_seqlens_q"], tensors["seqused_q"] = tensors.pop("cu_seqlens"), tensors.pop("seqused")
    return problem, tensors


def stored_as(dtype: Any, caches: dict[str, Array]) -> str:
    """The 8-bit type that the caches are said to hold. Of caches that can hold none it would have no effect."""
    found = one_of("dtype", whole_name(dtype), DTYPES_8_BIT)
    if not caches:
        raise InvalidProblem(f"dtype must be None without k_cache and v_cache, whose type it says, but is {found}. "
                             "Leave it out.")
    for name, cache in caches.items():
        if cache.dtype == np.uint8 or cache.dtype.name in DTYPES_8_BIT: continue
        raise InvalidType(f"dtype must be None where {name} is {cache.dtype}, as it says what uint8 holds, but is "
                          f"{found}. Leave it out, or give caches of uint8, with scale_k and scale_v.")
    return found


def check_q_out(q: Array | None, q_out: Array | None) -> Array | None:
    if q is None and q_out is not None: raise InvalidTensor("q must be given with q_out, but is None. Give q.")
    if q is None: return None
    if q_out is None: return np.empty(q.shape, q.dtype)
    check_array("q_out", q_out, q)
    check_shape("q_out", q_out, q.shape)
    check_writeable("q_out", q_out)
    return q_out


def check_cache(name: str, cache: Array) -> None:
    check_array(name, cache, cache)
    check_writeable(name, cache)


def whole_numbers(name: str, given: Any, dtype: Any) -> Array | None:
    if given is None: return None
    array = array_of(name, given)
    check_whole(name, array, f"numpy.asarray({name}, \"{np.dtype(dtype).name}\")")
    ends = np.iinfo(dtype)
    if array.size and not ends.min <= int(array.min()) <= int(array.max()) <= ends.max:
        raise InvalidTensor(f"{name} must fit {np.dtype(dtype).name}, but holds {array.min()} to {array.max()}. Change "
                            "it.")
    return contiguous(array.astype(dtype, copy=False))


def factors(name: str, given: Any, some: Array) -> Array | None:
    """A table or weights, dense."""
    if given is None: return None
    check_is_array(name, given)
    check_factors(name, given, some)
    return contiguous(given)


def scale_of(name: str, given: Any, cache: Array | None, dtype_kv: str) -> Array | None:
    """One for all, one a head, or the caller's own array of one for each row and head, which is written."""
    if not has_scale(name, given, cache, dtype_kv) or cache is None: return None
    given = without_last(given, cache.shape[:3])
    if np.ndim(given) == 3:
        check_is_array(name, given)
        check_own_scale(name, given, cache.shape[:3], "numpy")
        check_writeable(name, given)
        own: Array = given
        return own
    found = float32_of(name, given)
    if found is None or found.shape not in ((), (1,), cache.shape[2:3]):
        wrong_scale(name, np.shape(given), cache.shape[:3])
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
