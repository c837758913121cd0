# SPDX-License-Identifier: Apache-2.0
"""What NumPy, PyTorch and JAX share: arguments -> Problem -> Plan -> Call. It knows no framework, only shapes, names
of types, strides and addresses.

    describe    checks shapes and options and makes a Problem of them; the one place where that is done
    Plan        a fh_plan; plan_of keeps those that were made
    Call        a plan with the strides of its tensors; run fills in addresses and calls the library

An eager call should find its Call by a key of its own with `cached` and then cost one look into a table, one
struct.pack and one foreign call.
"""
import ctypes
import math
import struct
import sys
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

from froghopper import _c
from froghopper._axes import LAYOUT, PACKED_LAYOUT, SWAPPED, check_axes, check_pool, missing_dimensions, unlike
from froghopper._axes import Shape as Shape
from froghopper._errors import InvalidProblem, InvalidTensor, InvalidType, error_of
from froghopper._library import Library, library
from froghopper._values import ALIGNS, check_softcap, listed, type_of, way_to_all, way_to_dense, way_to_shape
from froghopper._values import Window as Window
from froghopper._values import check_align as check_align
from froghopper._values import check_scale as check_scale
from froghopper._values import check_window as check_window
from froghopper._values import flag as flag
from froghopper._values import number as number
from froghopper._values import whole_number as whole_number

Strides = tuple[int, int, int]  # of batch, seq and head, in elements
T = TypeVar("T")

DTYPES = {"float16": _c.Dtype.F16, "bfloat16": _c.Dtype.BF16, "float32": _c.Dtype.F32}
DTYPES_8_BIT = {"float8_e4m3fn": _c.Dtype.E4M3, "float8_e5m2": _c.Dtype.E5M2}  # a scale goes with each number
SCALE_ROWS = 128  # rows that share a scale where there is more than one for a sequence
KEPT = 1024  # plans and calls; a table that is full is emptied, so that new lengths at every step do not add up


class Types(NamedTuple):
    """Of 8-bit k and v, beside q alike or of 16 bits: names of the types of k and v and of o, what shares a scale, and
    whether means are added to them."""
    kv: str
    o: str
    scale_rows: int
    scale_v_columns: bool
    smooth: bool = False
    scale_tokens: bool = False


class Packed(NamedTuple):
    """Of sequences that lie end to end: how many there are, and upper bounds on the rows of the longest."""
    batch: int
    max_seqlen_q: int
    max_seqlen_kv: int


def describe(q: Shape, k: Shape, v: Shape, dtype: str, *, backward: bool = False, causal: bool = False,
             window: Window | None = None, softcap: float | None = None, scale: float | None = None,
             align: str = "bottom_right", sink: bool = False, packed: Packed | None = None, seqused: bool = False,
             deterministic: bool = False, accumulate: bool = False, max_sms: int = 0, alibi: bool = False,
             attention_chunk: int = 0, invariant: bool = False, max_logit: bool = False, gate: bool = False,
             types: Types | None = None, layout_is_known: bool = False) -> _c.Problem:
    """Shapes of q, k and v, the name of their type, options -> the problem.

    Shapes are [batch, seq, heads, dim], or [total, heads, dim] where packed is given; dtype is the type of q, and types
    are there where k and v are 8-bit. scale: None for 1/sqrt(dim), and a zero of either sign for zero. layout_is_known:
    nobody can have exchanged axes, or who calls has looked. What is wrong with one argument alone or between the shapes
    is said here, InvalidType or InvalidProblem; what the library knows better (heads that do not divide, head dims) it
    says itself when the plan is made.
    """
    if dtype not in DTYPES and types is None:
        way = way_to_all(dtype, "q.astype(\"float32\"), and k and v likewise", "q.view(ml_dtypes.float8_e4m3fn)")
        raise InvalidType(f"q, k and v must be {' or '.join(DTYPES)}, but are {dtype}. {way}.")
    for name, shape in (("q", q), ("k", k), ("v", v)): check_rank(name, shape, packed is not None)
    check_shapes(q, k, v)
    if not (layout_is_known or backward): check_axes(q, k, bool(causal), turned=SWAPPED)
    if packed: batch, seq_q, seq_kv = packed
    else: batch, seq_q, seq_kv = q[0], q[1], k[1]
    left, right = check_window(window, bool(causal))
    check_align(align)
    known, of_8_bits = DTYPES | DTYPES_8_BIT, {}
    if types is not None:
        of_8_bits = dict(dtype_kv=known[types.kv], dtype_o=known[types.o], scale_rows=types.scale_rows,
                         scale_v_columns=types.scale_v_columns, smooth=types.smooth, scale_tokens=types.scale_tokens)
    return _c.Problem(
        size=ctypes.sizeof(_c.Problem), op=_c.Op.BACKWARD if backward else _c.Op.FORWARD, dtype=known[dtype],
        batch=batch, heads_q=q[-2], heads_kv=k[-2], seq_q=seq_q, seq_kv=seq_kv, dim_qk=q[-1], dim_v=positive_dim(v[-1]),
        total_q=q[0] if packed else 0, total_kv=k[0] if packed else 0, varlen=packed is not None,
        seqused=flag("seqused", seqused), causal=flag("causal", causal), align=ALIGNS[align], window_left=left,
        window_right=right, scale=0.0 if scale is None else check_scale(scale), softcap=check_softcap(softcap),
        sink=flag("sink", sink), deterministic=flag("deterministic", deterministic),
        accumulate=flag("accumulate", accumulate), max_sms=whole_number("max_sms", max_sms), alibi=alibi,
        attention_chunk=whole_number("attention_chunk", attention_chunk),
        invariant=flag("invariant", invariant) and not backward, max_logit=max_logit and not backward, gate=gate,
        **of_8_bits)


class Paged(NamedTuple):
    """Of k and v in pages: how many sequences there are, upper bounds on the rows of q and of keys that one has, and
    whether q is packed."""
    batch: int
    max_seqlen_q: int
    max_seqlen_kv: int
    packed: bool


def describe_paged(q: Shape, k: Shape, v: Shape, dtype: str, paged: Paged, **options: Any) -> _c.Problem:
    """As describe, of k and v [pages, page_size, heads, dim]."""
    check_pool(q, k, v)
    if tuple(k[:3]) != tuple(v[:3]):
        raise InvalidProblem(f"v must have the pages, rows and heads of k, {list(k[:3])}, but has the shape "
                             f"{list(v)}. Give both one number of pages, rows and heads.")
    rows = (paged.max_seqlen_kv,) if paged.packed else (paged.batch, paged.max_seqlen_kv)
    packed = Packed(paged.batch, paged.max_seqlen_q, paged.max_seqlen_kv) if paged.packed else None
    problem = describe(q, (*rows, *k[2:]), (*rows, *v[2:]), dtype, packed=packed, layout_is_known=True, **options)
    problem.total_kv, problem.page_size, problem.pages = 0, k[1], k[0]
    return problem


def output_of(q: str, k: str, v: str, out_dtype: str | None, names: Sequence[str]) -> str:
    """The type of o of 8-bit k and v; q, k and v: names of their types. names: of the types that o may have."""
    if k != v: raise InvalidType(f"v must have the type of k, {k}, but is {v}. Give both {k}, or both {v}.")
    if k not in DTYPES_8_BIT:
        also = f", or q in {k} too" if k in DTYPES else ""
        raise InvalidType(f"k and v must be {q}, as q is, but are {k}. Give all three in 8 bits, as quantise(q, k, v) "
                          f"makes them{also}.")
    if q != k and q not in ("float16", "bfloat16"):
        raise InvalidType(f"q must be {k}, as k is, or float16, or bfloat16, but is {q}. Convert it to one of these.")
    if out_dtype is None: return q if q in DTYPES else "bfloat16"
    if out_dtype not in names: raise InvalidType(f"out_dtype must be {' or '.join(names)}, but is {out_dtype}. Give "
                                                 "one of them.")
    return out_dtype


def check_means(mean_k: Any, mean_v: Any) -> bool:
    """Whether means are added to k and v: both or none."""
    if (mean_k is None) != (mean_v is None):
        given, other = ("v", "k") if mean_k is None else ("k", "v")
        raise InvalidProblem(f"mean_k and mean_v must be given together, but mean_{other} is None. Give it, or leave "
                             f"out mean_{given}.")
    return mean_k is not None


def mean_of(name: str, shape: Shape, strides: Sequence[int], batch: int, heads: int, dim: int) -> Strides:
    """Strides of sequence, block and head of mean_k or mean_v. strides: in elements."""
    if tuple(shape) != (batch, 1, heads, dim):
        raise InvalidTensor(f"{name} must have the shape [batch, 1, heads, dim] {[batch, 1, heads, dim]}, as "
                            f"quantise gives it, but has {list(shape)}. Use {name}.reshape{(batch, 1, heads, dim)}.")
    if strides[3] != 1: raise InvalidTensor(f"{name} must have columns side by side, the last stride 1, but has the "
                                            f"strides {list(strides)} (elements). Copy it first: {name}.contiguous() "
                                            f"in PyTorch, numpy.ascontiguousarray({name}) in NumPy.")
    return strides[0], strides[1], strides[2]


def slope_strides(shape: Shape, strides: Sequence[int], batch: int, heads: int) -> Strides:
    """Of alibi_slopes; strides: in elements."""
    found = tuple(shape)
    if found == (heads,): return 0, 0, strides[0]
    if found == (batch, heads): return strides[0], 0, strides[1]
    raise InvalidTensor(f"alibi_slopes must have the shape [heads] {[heads]} or [batch, heads] {[batch, heads]}, a "
                        f"slope for each query head, but has {list(shape)}. {slopes_out(shape, batch, heads)}.")


def slopes_out(shape: Sequence[int], batch: int, heads: int) -> str:
    """The way out where alibi_slopes have a shape that is none."""
    count = math.prod(shape)
    if count not in (heads, batch * heads): return f"Give {heads} slopes"
    return way_to_shape("alibi_slopes", shape, (heads,) if count == heads else (batch, heads))


def check_scales_are_there(scales: dict[str, Any], dtypes: Sequence[str]) -> None:
    """Of scale_q, scale_k and scale_v beside q, k and v of these types: all that are missing are named at once."""
    missing = [name for (name, scale), dtype in zip(scales.items(), dtypes) if scale is None and dtype in DTYPES_8_BIT]
    if len(missing) > 1:
        raise InvalidType(f"{listed(missing)} must be given where {listed([name[-1] for name in missing])} are "
                          f"{dtypes[-1]}, but are None. Use {', '.join(f'{name}=1' for name in missing)} where the "
                          "values stand for themselves.")
    for (name, scale), dtype in zip(scales.items(), dtypes): check_scale_is_there(name, scale, name[-1], dtype)


def check_scale_is_there(name: str, scale: Any, of: str, dtype: str) -> None:
    """A scale is given where the type has 8 bits, and not elsewhere."""
    if dtype in DTYPES_8_BIT and scale is None:
        raise InvalidType(f"{name} must be given where {of} is {dtype}, but is None. Use {name}=1 where the values "
                          "stand for themselves.")
    if dtype not in DTYPES_8_BIT and scale is not None:
        raise InvalidType(f"{name} must be None where {of} is {dtype}, as only 8-bit types have scales, but is "
                          "given. Leave it out.")


def check_rank(name: str, shape: Shape, packed: bool, ends: str = "cu_seqlens_q and cu_seqlens_kv") -> None:
    """ends: what says where packed sequences are; empty where the caller takes none in this way."""
    if len(shape) == (3 if packed else 4): return
    reads = PACKED_LAYOUT + " with cu_seqlens" if packed else LAYOUT + " without cu_seqlens"
    extents = [math.prod(shape[:-2 if packed else -3]), *shape[-2 if packed else -3:]]
    out = missing_dimensions(name, len(shape), "" if packed else ends)
    if len(shape) > 4: out = f"Use {name}.reshape({', '.join(map(str, extents))})."
    if packed and len(shape) == 4:
        out = f"Use {name}[0]." if shape[0] == 1 else f"Without cu_seqlens_q and cu_seqlens_kv it is {LAYOUT}."
    raise InvalidProblem(f"{name} must be {reads}, but has the shape {list(shape)}. {out}")


def check_shapes(q: Shape, k: Shape, v: Shape) -> None:
    """Extents that must be those of another tensor; the ranks are right."""
    rows = ("batch", "seq") if len(q) == 4 else ("total",)
    axes = (*rows, "heads", "dim")
    for name, shape, other, like, shared in (("k", k, "q", q, {"batch", "dim"}), ("v", v, "k", k, {*rows, "heads"})):
        for axis, extent, wanted in zip(axes, shape, like):
            if axis in shared and extent != wanted:
                raise unlike(name, shape, other, like, axis, extent, wanted)


def check_heads(q: Shape, k: Shape) -> None:
    """What the library says when the plan is made, where there is none yet."""
    if k[-2] < 1 or q[-2] % k[-2] == 0: return
    *fewer, most = (str(heads) for heads in range(1, q[-2] + 1) if q[-2] % heads == 0)
    raise InvalidProblem(f"heads_kv must divide heads_q, {q[-2]}, but is {k[-2]}. Use "
                         f"{' or '.join((', '.join(fewer), most)) if fewer else most} for keys and values.")


def positive_dim(dim: int) -> int:
    """0 columns would mean "as many as q" to the library."""
    if dim < 1: raise InvalidProblem("v must have columns, a multiple of 8 from 8 to 512, but has 0. Give it "
                                     "columns.")
    return dim


def check_held(given: Any, with_max_logit: bool, kind: str) -> tuple[str, ...]:
    """What accumulate is made of; kind: of what it is, in words."""
    names = ("o", "lse", "max_logit") if with_max_logit else ("o", "lse")
    if isinstance(given, (tuple, list)) and len(given) == len(names): return names
    number, found = {2: "two", 3: "three"}[len(names)], type_of(given)
    if isinstance(given, (tuple, list)): found += f" of {len(given)}"
    raise InvalidType(f"accumulate must be ({', '.join(names)}) of earlier "
                      f"calls{', as return_max_logit asks' * with_max_logit}, but is {found}. Give {number} {kind}: "
                      f"accumulate=({', '.join(names)}).")


def results_of(o: T, lse: T, max_logit: T, return_lse: bool, return_max_logit: bool) -> Any:
    """What attention returns."""
    if return_max_logit: return (o, lse, max_logit) if return_lse else (o, max_logit)
    return (o, lse) if return_lse else o


class Plan:
    """A fh_plan: immutable, may be run by any number of threads at once."""

    def __init__(self, problem: _c.Problem, target: str, found: Library | None = None):
        """target: "cpu", "hopper", "hopper:1", "auto"; froghopper.h has all. Raises what the library refuses."""
        self.problem, self.target = problem, target
        found, handle = found or library(), ctypes.c_void_p()
        found.check(found.calls.fh_plan_create(ctypes.byref(problem), target.encode(), ctypes.byref(handle)))
        self.handle = handle
        self.library, self.forget = found, found.calls.fh_plan_destroy  # __del__ may run when modules are gone
        self.line = str(found.calls.fh_plan_line(handle).decode())
        self.workspace_bytes = int(found.calls.fh_plan_workspace_bytes(handle))
        self.on_gpu = bool(found.calls.fh_plan_on_gpu(handle))

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "forget") and not finalizing(): self.forget(self.handle)  # at exit a thread may still run it


class Call:
    """A plan and the strides of its tensors. Any number of threads may run one at once.

    Addresses are ints, 0 or None where a tensor is not there; arrays without strides are dense. workspace: 256-byte
    aligned, plan.workspace_bytes long, on the tensors' GPU. stream: a CUstream or cudaStream_t as an int.
    """
    FORWARD = struct.Struct("@N" + "Pqqq" * 4 + "P" * 6)  # fh_tensors up to sink; later fields are "as before"
    WHOLE = struct.Struct("@N" + "Pqqq" * 4 + "P" * 6 + "Pqqq" * 4 + "PP")

    # Scales, what quantising writes, means, alibi_slopes; max_logit; block_table.
    REST = struct.Struct("@" + "Pqqq" * 9 + "P" + "Pqqq")
    GATES = struct.Struct("@" + "Pqqq" * 3 + "PP" + "Pqqq" * 6)  # what appending has; gate and grad_gate
    LSE = struct.Struct("@qqq")  # its strides
    SUM = struct.Struct("@Pqqq")  # o_sum

    def __init__(self, plan: Plan, strides: Sequence[Strides], slopes: Strides = (0, 0, 0),
                 table: Strides = (0, 0, 0), gates: Sequence[Strides] = (), of_lse: Strides | None = None,
                 sums: bool = False):
        """strides: of q, k, v, o, for a backward problem of grad_o, grad_q, grad_k, grad_v, and where k and v are 8-bit
        of scale_q, scale_k, scale_v, mean_k, mean_v. slopes: of alibi_slopes. table: of block_table. gates: of gate,
        for a backward problem of grad_gate. of_lse: None where it is dense. sums: o is o_sum, that of a first call."""
        self.plan, self.strides, self.slopes, self.table, self.gates = plan, tuple(strides), slopes, table, gates
        self.workspace_bytes, self.of_lse, self.sums = plan.workspace_bytes, of_lse, sums
        self._run, self._handle = plan.library.calls.fh_plan_run, plan.handle

    def forward(self, q: int, k: int, v: int, o: int, lse: int = 0, cu_seqlens_q: int = 0, cu_seqlens_kv: int = 0,
                seqused_q: int = 0, seqused_kv: int = 0, sink: int = 0, workspace: int | None = None,
                stream: int | None = None, alibi_slopes: int = 0, max_logit: int = 0, gate: int = 0) -> None:
        if alibi_slopes or max_logit or gate or (lse and self.of_lse) or self.sums: return self.forward_with_all(
            q, k, v, o, lse, cu_seqlens_q, cu_seqlens_kv, seqused_q, seqused_kv, sink, 0, 0, 0, 0, 0, workspace, stream,
            alibi_slopes, max_logit, gate=gate)
        of_q, of_k, of_v, of_o = self.strides
        tensors = PACK_FORWARD(FORWARD_BYTES, q, *of_q, k, *of_k, v, *of_v, o, *of_o, lse, cu_seqlens_q, cu_seqlens_kv,
                               seqused_q, seqused_kv, sink)
        status = self._run(self._handle, tensors, workspace, self.workspace_bytes, stream)
        if status: raise error_of(status, self.plan.library.last_error())

    def forward_with_all(self, q: int, k: int, v: int, o: int, lse: int, cu_seqlens_q: int, cu_seqlens_kv: int,
                         seqused_q: int, seqused_kv: int, sink: int, scale_q: int, scale_k: int, scale_v: int,
                         mean_k: int, mean_v: int, workspace: int | None = None, stream: int | None = None,
                         alibi_slopes: int = 0, max_logit: int = 0, block_table: int = 0, gate: int = 0) -> None:
        """What a forward problem may have beside q, k, v and o, in 8 bits or not."""
        of_q, of_k, of_v, of_o, *of_8_bits = self.strides
        of_lse = self.of_lse if lse else None
        size = STRIDED_LSE_BYTES if of_lse else GATED_BYTES if gate else ALL_BYTES
        o_sum = NONE
        if self.sums: size, o_sum, o, of_o = SUMS_BYTES, (o, *of_o), 0, NONE[1:]
        tensors = PACK_WHOLE(size, q, *of_q, k, *of_k, v, *of_v, o, *of_o, lse, cu_seqlens_q, cu_seqlens_kv, seqused_q,
                             seqused_kv, sink, *NONE * 4, 0, 0)
        tensors += self.rest((scale_q, scale_k, scale_v, mean_k, mean_v), of_8_bits, alibi_slopes, max_logit,
                             block_table)
        if gate or of_lse or self.sums:
            tensors += self.rest_of_gates(gate) + (self.LSE.pack(*of_lse or (0, 0, 0)) if of_lse or self.sums else b"")
        if self.sums: tensors += self.SUM.pack(*o_sum)
        status = self._run(self._handle, tensors, workspace, self.workspace_bytes, stream)
        if status: raise error_of(status, self.plan.library.last_error())

    def rest(self, of_8_bits: Sequence[int], strides: Sequence[Strides], alibi_slopes: int, max_logit: int = 0,
             block_table: int = 0) -> bytes:
        """The fields of fh_tensors behind those that every problem may have; of_8_bits: scales and means."""
        pairs = list(zip(of_8_bits, strides or [(0, 0, 0)] * 5))
        scales, means = ([x for at, lies in part for x in (at, *lies)] for part in (pairs[:3], pairs[3:]))
        return self.REST.pack(*scales, *NONE * 3, *means, alibi_slopes, *self.slopes, max_logit,
                              block_table, *self.table)

    def rest_of_gates(self, *given: int) -> bytes:
        """The fields behind those, up to gate and grad_gate."""
        found = [x for at, lies in zip(given, self.gates) for x in (at, *lies)]
        return self.GATES.pack(*NONE * 3, 0, 0, *NONE * 4, *found, *NONE * (2 - len(found) // len(NONE)))

    def backward(self, q: int, k: int, v: int, o: int, lse: int, cu_seqlens_q: int, cu_seqlens_kv: int, seqused_q: int,
                 seqused_kv: int, sink: int, grad_o: int, grad_q: int, grad_k: int, grad_v: int, grad_lse: int = 0,
                 grad_sink: int = 0, workspace: int | None = None, stream: int | None = None,
                 alibi_slopes: int = 0, gate: int = 0, grad_gate: int = 0) -> None:
        of_q, of_k, of_v, of_o, of_grad_o, of_grad_q, of_grad_k, of_grad_v = self.strides
        size = GATED_BYTES if gate else ALL_BYTES if alibi_slopes else WHOLE_BYTES
        tensors = PACK_WHOLE(size, q, *of_q, k, *of_k, v, *of_v, o, *of_o, lse, cu_seqlens_q, cu_seqlens_kv, seqused_q,
                             seqused_kv, sink, grad_o, *of_grad_o, grad_q, *of_grad_q, grad_k, *of_grad_k, grad_v,
                             *of_grad_v, grad_lse, grad_sink)
        if alibi_slopes or gate: tensors += self.rest((0, 0, 0, 0, 0), (), alibi_slopes)
        if gate: tensors += self.rest_of_gates(gate, grad_gate)
        status = self._run(self._handle, tensors, workspace, self.workspace_bytes, stream)
        if status: raise error_of(status, self.plan.library.last_error())


# As names of the module they cost a call less than as attributes of a class.
PACK_FORWARD, FORWARD_BYTES = Call.FORWARD.pack, Call.FORWARD.size
PACK_WHOLE, WHOLE_BYTES = Call.WHOLE.pack, Call.WHOLE.size
ALL_BYTES, NONE = WHOLE_BYTES + Call.REST.size, (0, 0, 0, 0)
GATED_BYTES = ALL_BYTES + Call.GATES.size
STRIDED_LSE_BYTES = GATED_BYTES + Call.LSE.size
SUMS_BYTES = STRIDED_LSE_BYTES + Call.SUM.size

_plans: dict[Hashable, Plan] = {}


def plan_of(problem: _c.Problem, target: str) -> Plan:
    """The plan for a problem and a target, made when it is asked for first."""
    return cached(_plans, (bytes(problem), target), lambda: Plan(problem, target))


def cached(table: dict[Hashable, T], key: Hashable, make: Callable[[], T]) -> T:
    """What the table has under the key, else what make gives. Without a lock: single operations of a dict are atomic,
    and a process that forks in the middle of one leaves none behind. Two threads may make the same; one is kept."""
    try: found = table.get(key)
    except TypeError: return make()  # an argument that is no fitting type has no hash; make says what is wrong with it
    if found is not None: return found
    made = make()
    if len(table) >= KEPT: table.clear()
    return table.setdefault(key, made)


def element_strides(name: str, shape: Shape, strides: Sequence[int]) -> Strides:
    """Strides in elements, of each dimension -> those of batch, seq and head. InvalidTensor unless columns lie side by
    side."""
    if shape[-1] > 1 and strides[-1] != 1 and 0 not in shape:
        raise InvalidTensor(f"{name} must have columns side by side, the last stride 1, but has the strides "
                            f"{list(strides)} (elements). {way_to_dense(name)}.")
    if len(shape) == 3: return 0, strides[0], strides[1]
    return strides[0], strides[1], strides[2]
