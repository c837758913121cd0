# SPDX-License-Identifier: Apache-2.0
"""froghopper.jax.append_kv: new keys and values into a cache, in place where XLA lets it."""
# JAX has few types, and mypy runs where it is not installed, too.
# mypy: disable-error-code="import-not-found,no-any-return,no-untyped-call,untyped-decorator"
import contextlib
import functools
from collections.abc import Hashable, Iterator
from typing import Any, TypeAlias

import jax
import numpy as np

from froghopper._append import WORDS
from froghopper._append_checks import (Given, check_caches, check_factors, check_new, check_own_scale, check_sides,
                                       check_whole, first, has_scale, rotary_of, sizes_of, type_of_caches,
                                       without_last, wrong_scale)
from froghopper._call import Shape, cached
from froghopper._errors import Error, InvalidProblem, InvalidTensor
from froghopper._jax_8_bit import float32_of
from froghopper._jax_arrays import Array, check_is_array, checked, checked_lengths, is_traced, varying_alike
from froghopper._jax_problem import in_users_words
from froghopper._numpy_append import whole_numbers
from froghopper._scales import SCALES_UNLIKE
from froghopper._values import flag, number, whole_number
from froghopper._words import named_by, takes_words_of_others
from froghopper._xla import check_problem, compute, in_explicit_mesh, is_explicit
from froghopper._xla_append import NAMES, OF_LIBRARY, AppendOptions, Appending, longest_of

Scale: TypeAlias = float | Array | None


@takes_words_of_others("jax")
def append_kv(k: Array | None, v: Array | None, k_cache: Array | None, v_cache: Array | None, *,
              q: Array | None = None, slot_mapping: Array | None = None, block_table: Array | None = None,
              seqused_kv: Array | None = None, cu_seqlens: Array | None = None, max_seqlen: int | None = None,
              seqused: Array | None = None, rotary_cos: Array | None = None, rotary_sin: Array | None = None,
              rotary_interleaved: bool = False, positions: Array | None = None, norm_q: Array | None = None,
              norm_k: Array | None = None, norm_epsilon: float | None = None, scale_k: Scale = None,
              scale_v: Scale = None, max_sms: int = 0) -> tuple[Any, ...]:
    """The caches with new keys and values in them, normed, rotated and in 8 bits where that is asked for; q with them.

        k_cache, v_cache = append_kv(k, v, k_cache, v_cache, seqused_kv=lengths)

    Under jit with donated caches, and in loops of jax.lax that carry them, rows are written where the caches lie. A
    call that is not traced copies the caches first, as arrays of JAX do not change.

    k, v           new rows, [batch, seq, heads_kv, dim], or [tokens, heads_kv, dim] with cu_seqlens or slot_mapping; v
                   may have its own dim. float16, bfloat16, on CPUs also float32. Each may be None, with its cache
    k_cache        [batch, rows, heads_kv, dim]; with block_table or slot_mapping pages, [pages, page_size, heads_kv,
    v_cache        dim]. Of k's type, or float8_e4m3fn or float8_e5m2. Only rows that are named change
    q              [batch, seq, heads_q, dim] or [tokens, heads_q, dim]: normed and rotated too

    Where rows go. Two rows may not go to one place: what is there then is undefined
    slot_mapping   [tokens] whole numbers, in any shape: page * page_size + row in the page; negative for none
    seqused_kv     without slot_mapping: [batch] how many rows of each sequence are there already; None for 0. Row i of
                   the new ones goes behind them
    block_table    [batch, columns] whole numbers: the pages of each sequence
    cu_seqlens     [batch + 1] where each packed sequence begins, and the end; q's too
    max_seqlen     with cu_seqlens: an upper bound on the new rows of a sequence; None for all rows
    seqused        [batch] how many of the new rows count; None for all

    rotary_cos     [positions, rotary_dim / 2], of k's type or float32: the first rotary_dim columns of q and k are
    rotary_sin     rotated
    rotary_interleaved  pairs are columns 2i and 2i + 1; else i and i + rotary_dim / 2
    positions      [tokens] whole numbers, in any shape: of each row, for rotary_cos; None for the row of the sequence
                   that it goes to; needed with slot_mapping
    norm_epsilon   not None: rows of q and k are divided by sqrt(mean of squares + norm_epsilon) before they are rotated
    norm_q, norm_k [dim], of k's type or float32: what their columns are multiplied by then; None for 1
    scale_k        float8 caches: what is stored is a number divided by it: a number, [], [1] or [heads_kv] float32; or
    scale_v        [pages, page_size, heads_kv] (as the cache without its last dimension, or with 1 for it): each row of
                   a head gets a scale of its own, which is written in these arrays, and they are returned. It is inf
                   for a row with an infinite number, which attention cannot read; NaN is left out: docs/13-serving.md
    max_sms        SMs of a GPU, or threads of a CPU, that it may use; 0 for all

    Everything but arrays is static. Returns (k_cache, v_cache), with q (k_cache, v_cache, q), and behind them (scale_k,
    scale_v) if each row has its own; None for what is not given. All is computed in float32 and rounded once. jax.vmap
    makes examples of dense caches further sequences, and computes others one by one. Without derivatives. Raises
    TypeError, ValueError and NotImplementedError while it is traced. Slots, lengths, pages and positions are checked
    when it runs, on CPUs alone: jax.errors.JaxRuntimeError. On a GPU a row is not written whose slot, page or position
    does not exist.
    """
    new = {name: x for name, x in (("q", q), ("k", k), ("v", v)) if x is not None}
    for name, x in new.items(): check_is_array(name, x)
    if not new: raise InvalidTensor("q, k or v must be given, but all are None. Give one, with what is written of it.")
    some = first(k, v, q)
    check_new(new, some)
    caches = check_caches(k, v, k_cache, v_cache, check_is_array)
    given = Given(*(checked_side(name, x, some) for name, x in (
        ("block_table", block_table), ("cu_seqlens", cu_seqlens), ("seqused", seqused), ("seqused_kv", seqused_kv),
        ("slot_mapping", slot_mapping), ("positions", positions), ("rotary_cos", rotary_cos),
        ("rotary_sin", rotary_sin), ("norm_q", norm_q), ("norm_k", norm_k))))
    bound = None if max_seqlen is None else whole_number("max_seqlen", max_seqlen)
    cache = next(iter(caches.values()), None)
    sizes = sizes_of(given, some, cache, bound, longest_of(some, bound))
    rows = some.shape[:-2]
    check_sides(given, sizes, int(np.prod(rows)), q, k)
    options = AppendOptions(bound, flag("rotary_interleaved", rotary_interleaved),
                            None if norm_epsilon is None else number("norm_epsilon", norm_epsilon),
                            whole_number("max_sms", max_sms))
    rotary_of(given, options.rotary_interleaved, first(k, q, v).shape[-1])
    dtype_kv = type_of_caches({x.dtype.name for x in caches.values()}, some, '.view("float8_e4m3fn")')
    scales = {"scale_k": scale_of("scale_k", scale_k, k_cache, dtype_kv),
              "scale_v": scale_of("scale_v", scale_v, v_cache, dtype_kv)}
    own = {x.ndim == 3 for x in scales.values() if x is not None}
    if len(own) > 1: raise InvalidProblem(SCALES_UNLIKE)
    if given.cu_seqlens is None and some.ndim == 3: rows = (1, *rows)  # of slots
    sides = given._asdict() | {name: None if x is None else in_pairs(name, x, rows) for name, x in (
        ("slot_mapping", given.slot_mapping), ("positions", given.positions))}
    named = {OF_LIBRARY.get(name, name): x for name, x in (new | caches | scales | sides).items() if x is not None}
    for name in new: named[name] = named[name].reshape(*rows, *named[name].shape[-2:])
    arrays = {name: jax.numpy.asarray(named[name]) for name in NAMES if name in named}
    changed = [name for name, its in (("cache_k", k), ("cache_v", v)) if its is not None]
    results = (*changed, *("q_out",) * (q is not None),
               *(f"scale_{name[-1]}" for name in changed if own == {True}))
    if is_traced(arrays): options = options._replace(names=IN_PROGRAMS)
    kind = Appending(options, tuple(arrays), results)
    with in_words_of_append():
        cached(_fit, (kind, *((x.shape, x.dtype) for x in arrays.values())), lambda: fits(kind, arrays))
        found = dict(zip(results, run(kind, tuple(varying_alike(arrays).values()))))
    of_q = () if q is None else (found["q_out"].reshape(q.shape),)
    as_given: list[Any] = [scale_k, scale_v]
    of_scales = tuple(None if x is None else x.reshape(one.shape) for x, one in zip(
        (found.get("scale_k"), found.get("scale_v")), as_given)) if own == {True} else ()
    return found.get("cache_k"), found.get("cache_v"), *of_q, *of_scales


# What a compiled program calls fields of the library in its messages, as the handlers of src/xla read it.
IN_PROGRAMS = ";".join(f"{field}={name}" for field, name in (WORDS | {
    "cache_k": "k_cache", "cache_v": "v_cache", "seq_q": "max_seqlen", "total_q": "the number of rows of k",
    "seq_kv": "the number of rows of a sequence in the cache",
    "rotary_rows": "the number of rows of rotary_cos"}).items())
_fit: dict[Hashable, bool] = {}  # what was checked already, so that a call that is not traced costs less


def fits(kind: Appending, arrays: dict[str, Array]) -> bool:
    check_problem(kind, tuple(arrays.values()))
    return True


@contextlib.contextmanager
def in_words_of_append() -> Iterator[None]:
    """What the library says, of the arguments of append_kv."""
    try:
        with in_users_words(): yield
    except (Error, RuntimeError, ValueError) as error: raise named_by(WORDS, error) from None


@functools.partial(jax.jit, static_argnums=0)
def run(kind: Appending, arrays: tuple[Array, ...]) -> Any:
    """One program for a problem."""
    if not any(map(is_explicit, arrays)): return compute(kind, arrays)
    def function(of: dict[str, Array]) -> Any: return compute(kind, tuple(of[name] for name in kind.names))
    return in_explicit_mesh(kind, function, dict(zip(kind.names, arrays)))


def checked_side(name: str, array: Any, some: Array) -> Array | None:
    """What goes beside new rows, of the right type; lengths and pages as int32."""
    if array is None: return None
    if name == "block_table": return checked(name, array, some)
    check_is_array(name, array)
    if name in ("cu_seqlens", "seqused", "seqused_kv"): return checked_lengths(name, array)
    if name in ("slot_mapping", "positions"): check_whole(name, array, f"{name}.astype(\"int32\")")
    else: check_factors(name, array, some)
    return array


def in_pairs(name: str, array: Any, rows: Shape) -> Array:
    """Whole numbers of any type as those of 64 bits, each a pair of int32 whose lower half is first: JAX has no int64
    unless jax_enable_x64 is set."""
    of = jax.numpy
    if isinstance(array, np.ndarray):
        found: Any = whole_numbers(name, array, np.int64)
        return of.asarray(found.reshape(-1).view(np.int32).reshape(*rows, 2))
    if array.dtype.itemsize == 8:
        if array.dtype.kind == "u": array = of.minimum(array, np.iinfo(np.int64).max)
        return jax.lax.bitcast_convert_type(array.astype(np.int64), np.int32).reshape(*rows, 2)
    low = array.astype(np.int32)
    high = of.zeros_like(low) if array.dtype.kind == "u" else low >> 31
    return of.stack([low, high], -1).reshape(*rows, 2)


def scale_of(name: str, given: Any, cache: Array | None, dtype_kv: str) -> Any:
    """One for each head, or the caller's one for each row and head."""
    if not has_scale(name, given, cache, dtype_kv) or cache is None: return None
    given = without_last(given, cache.shape[:3])
    if getattr(given, "ndim", 0) == 3:
        check_is_array(name, given)
        check_own_scale(name, given, cache.shape[:3], "jax.numpy")
        return given
    found = float32_of(name, given)
    if found.shape not in ((), (1,), cache.shape[2:3]): wrong_scale(name, found.shape, cache.shape[:3])
    return (np if isinstance(found, np.ndarray) else jax.numpy).broadcast_to(found, cache.shape[2:3])
