# SPDX-License-Identifier: Apache-2.0
"""Appending to a cache, for every framework: the problem of shapes and options, and its call by addresses."""
import ctypes
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from froghopper import _c
from froghopper._call import DTYPES, DTYPES_8_BIT, Plan, Shape, Strides, plan_of
from froghopper._errors import Error, InvalidProblem, InvalidTensor, InvalidType, error_of
from froghopper._values import counted, flag, number, whole_number
from froghopper._words import named_by

NAMES = ("q", "k", "v", "q_out", "cache_k", "cache_v", "scale_k", "scale_v", "rotary_cos", "rotary_sin", "norm_q",
         "norm_k", "block_table", "cu_seqlens_q", "seqused_q", "seqused_kv", "slot_mapping", "positions")
POINTERS = NAMES[13:]  # without strides


class Sizes(NamedTuple):
    """Of new rows: sequences, rows of each, rows of all where they are packed (-1: they are not). Of the cache: rows of
    a sequence, rows of a page and pages, 0 without pages."""
    batch: int
    seq: int
    total: int
    seq_kv: int
    page_size: int
    pages: int


def way_to_cache(name: str, new: Sequence[int], cache: Sequence[int]) -> str:
    """Of new rows that do not fit a cache [.., rows, heads, dim]."""
    if len(new) == 4 and len(cache) == 4 and (new[1], new[3]) == (cache[2], cache[3]):
        return f"Use {name}.swapaxes(1, 2), if it is [batch, heads, seq, dim]"
    if len(cache) == 4 and (new[-2], new[-1]) == (cache[1], cache[3]):
        return f"Use {name}_cache.swapaxes(1, 2), a view, if it has heads before rows"
    if len(new) == len(cache) == 4 and (new[1], new[3]) == (cache[1], cache[3]):
        return f"Use {name}.swapaxes(1, 2) and {name}_cache.swapaxes(1, 2), a view, if both have heads before rows"
    return f"Give {name} the heads and columns of the cache, {list(cache[2:])}"


def way_to_type_of_cache(name: str, found: str, cast: str, view: str) -> str:
    """What to do about a cache of another type than the new rows, with the calls that cast and view."""
    if found in DTYPES: return f"Use {name}{cast}"
    if found not in ("int8", "uint8"): return "Use a cache of one of these types"
    return f"If it holds the bytes of an 8-bit type, use {name}_cache{view}, with scale_k and scale_v"


def sizes_in(batch: int, seq: int, total: int, cache: Shape | None, block_table: Any, slot_mapping: Any,
             new: Shape = ()) -> Sizes:
    """Of new rows and a cache [batch or pages, rows, ...], which may be None: it is dense, or in pages as one of the
    two says. new: the shape of the new rows."""
    if cache is None: return Sizes(batch, seq, total, 0, 0, 0)
    pages, rows = cache[:2]
    if total < 0 and looks_exchanged(batch, seq, pages, rows, block_table, slot_mapping):
        room = (f"k_cache must have room for the rows of k, {seq} of each of {counted(batch, 'sequence')}, but has "
                f"{rows} of each of {pages}")
        if len(new) == len(cache) == 4 and tuple(new[2:]) == (cache[1], cache[3]) and seq <= cache[2]:
            raise InvalidProblem(f"{room}, and looks like [batch, heads, rows, dim]. Use k_cache.swapaxes(1, 2) and "
                                 "v_cache.swapaxes(1, 2), views.")
        raise InvalidProblem(f"{room}. Give longer caches or fewer rows; if k is the cache and k_cache the new rows, "
                             "use append_kv(k, v, k_cache, v_cache), the new rows first.")
    if slot_mapping is not None and block_table is not None:
        raise InvalidProblem("block_table must be None with slot_mapping, as each says where rows go, but both are "
                             "given. Leave out one.")
    if slot_mapping is not None: return Sizes(batch, seq, total, 0, rows, pages)
    if block_table is not None:
        if block_table.ndim != 2:
            raise InvalidTensor(f"block_table must be [batch, columns] with batch {batch}, but has the shape "
                                f"{list(block_table.shape)}. Give a row of pages for each sequence.")
        return Sizes(batch, seq, total, block_table.shape[1] * rows, rows, pages)
    if pages != batch:
        raise InvalidProblem(f"k_cache must have a row for each sequence of k, {batch} in all, but has {pages}. Give "
                             "block_table or slot_mapping, or change one.")
    return Sizes(batch, seq, total, rows, 0, 0)


def looks_exchanged(batch: int, seq: int, pages: int, rows: int, block_table: Any, slot_mapping: Any) -> bool:
    """Whether what is given as new rows is the cache, and the other way about: [batch, seq] and [pages, rows]. A table
    has a row for each sequence, and slots are as many as new rows."""
    if block_table is not None:
        return slot_mapping is None and block_table.ndim == 2 and bool(batch != block_table.shape[0] == pages)
    if slot_mapping is not None:
        return slot_mapping.ndim == 1 and bool(batch * seq != slot_mapping.shape[0] == pages * rows)
    return pages == batch and seq > rows


class Rotary(NamedTuple):
    """Columns that are rotated, positions of the tables, their type."""
    dim: int
    rows: int
    interleaved: bool
    dtype: str


def problem_of(sizes: Sizes, heads: tuple[int, int], dims: tuple[int, int], dtype: str, dtype_kv: str, *,
               seqused: bool, slots: bool, positions: bool, rotary: Rotary | None, norm_epsilon: float | None,
               norm_dtype: str | None, scale_tokens: bool, max_sms: int) -> _c.Problem:
    """heads: of q and of k. dims: of q and k, and of v."""
    if dtype not in DTYPES:
        raise InvalidType(f"k must be one of {', '.join(DTYPES)}, but is {dtype}. Convert it to one of these.")
    known = DTYPES | DTYPES_8_BIT
    if dtype_kv not in known:
        raise InvalidType(f"k_cache must be one of {', '.join(known)}, but is {dtype_kv}. Use a view of one of these.")
    problem = _c.Problem(
        size=ctypes.sizeof(_c.Problem), op=_c.Op.APPEND, dtype=known[dtype], batch=sizes.batch, heads_q=heads[0],
        heads_kv=heads[1], seq_q=sizes.seq, seq_kv=sizes.seq_kv, dim_qk=dims[0], dim_v=dims[1],
        total_q=max(sizes.total, 0), varlen=sizes.total >= 0, seqused=seqused, window_left=_c.ALL, window_right=_c.ALL,
        max_sms=whole_number("max_sms", max_sms), page_size=sizes.page_size, pages=sizes.pages, slots=slots,
        positions=positions, scale_tokens=scale_tokens)
    if dtype_kv != dtype: problem.dtype_kv = known[dtype_kv]
    if rotary is not None:
        problem.rotary_dim, problem.rotary_rows = rotary.dim, rotary.rows
        problem.rotary_interleaved = flag("rotary_interleaved", rotary.interleaved)
        if rotary.dtype != dtype: problem.dtype_rotary = table_type("rotary_cos", rotary.dtype, dtype)
    if norm_epsilon is not None:
        problem.norm, problem.norm_epsilon = 1, number("norm_epsilon", norm_epsilon)
        if norm_dtype is not None and norm_dtype != dtype:
            problem.dtype_norm = table_type("norm_k", norm_dtype, dtype)
    return problem


def table_type(name: str, found: str, dtype: str) -> int:
    if found != "float32":
        raise InvalidType(f"{name} must be {types_of_tables(dtype, 'k')}, but is {found}. "
                          f"{way_to_parts(name, found) or 'Convert it to float32'}.")
    return int(_c.Dtype.F32)


def types_of_tables(dtype: str, beside: str) -> str:
    """What may be the type of tables and weights beside rows of this type."""
    return f"float32, as {beside} is" if dtype == "float32" else f"{dtype}, as {beside} is, or float32"


def way_to_parts(name: str, found: str, cast: str = ".float().contiguous()") -> str:
    """What to do about complex tables, e^(i angle), as models of Meta have them; a cast would lose a part."""
    if not found.startswith("complex") or not name.startswith("rotary"): return ""
    return f"Use {name}.real{cast} as rotary_cos and {name}.imag{cast} as rotary_sin"


def check_rotary(dim: int, rotary_dim: int) -> None:
    if rotary_dim > dim:
        raise InvalidProblem(f"rotary_cos must have at most {counted(dim // 2, 'column')}, each of two columns of k, "
                             f"but has {rotary_dim // 2}. {way_to_tables((1, rotary_dim // 2), dim)}.")


def way_to_tables(shape: Shape, dim: int, other: Shape | None = None) -> str:
    """What to do about tables that have another dimension or more than dim / 2 columns, or different shapes. Those of
    transformers are [batch, positions, dim], with each column twice."""
    if other is not None and tuple(shape) != tuple(other): return "Give both one shape"
    if len(shape) not in (2, 3) or not 0 < shape[-1] <= dim or shape[-1] % 2:
        return f"Give them one column for each two of k that are rotated, {dim // 2} at most"
    if len(shape) == 3 and shape[-1] <= dim // 2:
        return "Use rotary_cos[0] and rotary_sin[0], with a row for each position from 0 on"
    cut = f"[{'0, ' * (len(shape) == 3)}:, :{shape[-1] // 2}]"
    return (f"If their columns are there twice, as in transformers, use rotary_cos{cut} and rotary_sin{cut}, with a "
            "row for each position from 0 on")


def check_named(v: Any, call: Mapping[str, Any], given: Sequence[Any]) -> None:
    """Of what explain is given with a cache. given: what has no name, or has one of attention's."""
    if v is None and call.get("v_cache") is not None and any(x is not None for x in given):
        raise InvalidType("k and v must be given to explain by name with k_cache and v_cache, as without one they are "
                          "q and k of attention, but v has none. Use explain(k=k, v=v, k_cache=k_cache, "
                          "v_cache=v_cache).")


# Arguments of attention, which the library's sentences have here -> those of append_kv.
WORDS = {"cu_seqlens_q": "cu_seqlens", "max_seqlen_q": "max_seqlen", "seqused_q": "seqused"}


# q_out may be q, so that what is wrong where both begin at one address is how they lie.
AT_ONE_ADDRESS = re.compile(r"q_out and q are at the same address ([^;]+);.*")
WITH_OTHER_STRIDES = (r"q_out must have the strides of q where it is q's memory, at the address \1, as rows would be "
                      "written over others that are still read, but has others. Give q_out=q, which is written in "
                      "place, or memory of its own.")


def in_words(error: BaseException) -> BaseException:
    if not isinstance(error, Error): return error
    error.args = (AT_ONE_ADDRESS.sub(WITH_OTHER_STRIDES, str(error)),)
    return named_by(WORDS, error)


def plan_for(problem: _c.Problem, target: str) -> Plan:
    try: return plan_of(problem, target)
    except Error as error: raise in_words(error) from None


class AppendCall:
    """A plan and the strides of its tensors, by name; those without strides lie dense. Any number of threads may run
    one at once."""

    def __init__(self, plan: Plan, strides: dict[str, Strides]):
        template = _c.Tensors(size=ctypes.sizeof(_c.Tensors))
        for name, its in strides.items(): setattr(template, name, _c.Tensor(None, *its))
        self.plan, self._bytes = plan, bytes(template)
        self._run, self._handle = plan.library.calls.fh_plan_run, plan.handle

    def run(self, addresses: Sequence[int], stream: int | None) -> None:
        """addresses: in the order of NAMES, 0 for none."""
        tensors = bytearray(self._bytes)
        for at, place in zip(addresses, PLACES):
            if at: PACK(tensors, place, at)
        status = self._run(self._handle, bytes(tensors), None, 0, stream)
        if status: raise in_words(error_of(status, self.plan.library.last_error()))


PACK = struct.Struct("@P").pack_into
PLACES: tuple[Any, ...] = tuple(getattr(_c.Tensors, name).offset for name in NAMES)
