# SPDX-License-Identifier: Apache-2.0
"""froghopper.torch.paged_attention: attention to keys and values in pages of a pool.

As in _torch_calls.py, what is computed is checked when it is met first and then found by a key that has everything but
addresses. Nothing of a GPU is read on the host, nothing waits, and the pool is never copied.

    froghopper::paged      o and lse, for code that torch.compile traces and wherever somebody looks; without gradients
    froghopper::paged_out  the same into a tensor that is there
"""
from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from froghopper import _c
from froghopper import _scales as scales
from froghopper import _torch_calls as calls
from froghopper import _torch_ops as ops
from froghopper import _torch_traced as traced
from froghopper._call import (Call, Paged, Strides, Types, cached, check_align, check_means,
                              check_rank, check_scales_are_there, describe_paged, element_strides, flag, mean_of,
                              number, output_of, plan_of, slope_strides)
from froghopper._axes import check_begins, check_beside_pages, check_pool, room_in_pages
from froghopper._errors import InvalidProblem, InvalidTensor, InvalidType, Unsupported, about_o
from froghopper._lse import lse_by_row_of
from froghopper._torch_8_bit import BY_NAME
from froghopper._torch_calls import (DTYPES, FLOAT8, address, check_dense, check_place, check_tensor, kind, name_of,
                                     sink_of, stream_of, workspace_of)
from froghopper._torch_checks import check_out
from froghopper._torch_library import library_of
from froghopper._torch_options import (Align, Scale as ScaleOf, check_dtype, plain, scale_tensor, whole,
                                       window_of)
from froghopper._torch_sharding import refuse_parts
from froghopper._values import Window, check_not_8_bit, counted
from froghopper._words import takes_words_of_others

_ready: dict[Hashable, "Ready"] = {}
# The arguments are those of run: q, k and v, Sides, Options.
ARGUMENTS = ("Tensor q, Tensor k, Tensor v, Tensor block_table, Tensor? cu_seqlens_q, Tensor? seqused_q, "
             "Tensor? seqused_kv, Tensor? sink, Tensor? alibi_slopes, Tensor? scale_q, Tensor? scale_k, "
             "Tensor? scale_v, Tensor? mean_k, Tensor? mean_v, Tensor? gate, SymInt? max_seqlen_q, "
             "SymInt? max_seqlen_kv, bool causal, SymInt window_left, SymInt window_right, float softcap, "
             "float? scale, bool top_left, SymInt max_sms, SymInt attention_chunk, bool invariant, "
             "ScalarType? out_dtype, bool lse_by_row, str caller, bool with_lse")
_library = library_of(__name__)
_library.define(f"paged({ARGUMENTS}) -> (Tensor, Tensor)")
_library.define(f"paged_out(Tensor(a!) out, {ARGUMENTS}) -> Tensor")
paged_op: Any = torch.ops.froghopper.paged.default
paged_out_op: Any = torch.ops.froghopper.paged_out.default


class Sides(NamedTuple):
    """What may be given beside q, k and v, under the names that users know."""
    block_table: Tensor
    cu_seqlens_q: Tensor | None
    seqused_q: Tensor | None
    seqused_kv: Tensor | None
    sink: Tensor | None
    alibi_slopes: Tensor | None
    scale_q: Tensor | None
    scale_k: Tensor | None
    scale_v: Tensor | None
    mean_k: Tensor | None
    mean_v: Tensor | None
    gate: Tensor | None


class Options(NamedTuple):
    """What is told; a max_seqlen is None where it is that of the shapes, scale None for 1/sqrt(dim)."""
    max_seqlen_q: int | None
    max_seqlen_kv: int | None
    causal: bool
    window_left: int
    window_right: int
    softcap: float
    scale: float | None
    top_left: bool
    max_sms: int
    attention_chunk: int
    invariant: bool
    out_dtype: torch.dtype | None
    lse_by_row: bool = False


class Ready(NamedTuple):
    """A Call, and what to make for it; gpu: its index, -1 for the CPU."""
    call: Call
    o_shape: tuple[int, ...]
    lse_shape: tuple[int, ...]
    o_dtype: torch.dtype
    copies_q: bool
    gpu: int
    workspace_bytes: int


@takes_words_of_others("torch")
def paged_attention(q: Tensor, k: Tensor, v: Tensor, block_table: Tensor, *, seqused_kv: Tensor | None = None,
                    cu_seqlens_q: Tensor | None = None, max_seqlen_q: int | None = None,
                    max_seqlen_kv: int | None = None, seqused_q: Tensor | None = None, causal: bool = False,
                    window: Window | None = None, softcap: float | None = None, scale: float | None = None,
                    sink: Tensor | None = None, align: Align = "bottom_right", return_lse: bool = False,
                    out: Tensor | None = None, max_sms: int = 0, scale_q: ScaleOf = None, scale_k: ScaleOf = None,
                    scale_v: ScaleOf = None, out_dtype: torch.dtype | None = None, mean_k: Tensor | None = None,
                    mean_v: Tensor | None = None, alibi_slopes: Tensor | None = None, attention_chunk: int = 0,
                    invariant: bool = False, lse_by_row: bool = False, gate: Tensor | None = None) -> Any:
    """softmax(scale q k^T + mask) v, where k and v lie in pages of a pool (PagedAttention). Without gradients.

    q              [batch, seq_q, heads_q, dim]; or packed [total_q, heads_q, dim] with cu_seqlens_q and max_seqlen_q,
                   so that one call serves sequences that decode beside others that prefill
    k, v           the pool, [pages, page_size, heads_kv, dim]; any page size, any strides whose last is 1 (on a GPU
                   multiples of 16 bytes), so also a view of [pages, heads_kv, page_size, dim] or of K and V in one
                   tensor. The pool is never copied
    block_table    [batch, columns] int32: the page that holds rows column * page_size and on of a sequence. Columns
                   past its last row that counts may hold anything
    seqused_kv     [batch] int32: how many rows of a sequence count; None for columns * page_size. Rows after them may
                   hold anything, also NaN
    max_seqlen_kv  an upper bound on seqused_kv; None for columns * page_size, and without seqused_kv nothing less.
                   Plans are made for it
    gate           shape and type of o, any strides: o is multiplied by its sigmoid. Rows of o that belong to no
                   sequence, do not count or attend to no key may have anything there, also NaN

    All other arguments are those of froghopper.torch.attention. Returns o, shaped as q with the columns of v; with
    return_lse (o, lse), as attention does, and lse_by_row always writes lse so. On the CPU entries of block_table are
    checked; on a GPU they must be right. Raises as attention does; `out` is unwritten then. CUDA graphs may capture the
    call and replay it with other lengths and tables in the same memory.
    """
    for name, x in (("q", q), ("k", k), ("v", v), ("block_table", block_table)): check_tensor(name, x)
    given = Sides(block_table, cu_seqlens_q, seqused_q, seqused_kv, sink_of(sink), alibi_slopes,
                  scale_tensor("scale_q", scale_q, q), scale_tensor("scale_k", scale_k, q),
                  scale_tensor("scale_v", scale_v, q), mean_k, mean_v, gate)
    for name, side in (*zip(Sides._fields[1:], given[1:]), ("out", out)):
        if side is not None: check_tensor(name, side)
    if type(q) not in ops.PLAIN or type(k) not in ops.PLAIN: refuse_parts(
        "attention to pages", dict(q=q, k=k, v=v))
    refuse_gradients(dict(q=q, k=k, v=v, out=out, **given._asdict()))
    options = options_of(max_seqlen_q=max_seqlen_q, max_seqlen_kv=max_seqlen_kv, causal=causal, window=window,
                         softcap=softcap, scale=scale, align=align, max_sms=max_sms, attention_chunk=attention_chunk,
                         invariant=invariant, out_dtype=out_dtype, lse_by_row=lse_by_row)
    return_lse = plain(flag, "return_lse", return_lse)
    if out is not None: ops.refuse_writing("out is given", q, k, v, out)
    if is_seen(q, k, v, given, out):
        check_layouts(q, k, v, given, out)
        o, lse = through_operator(q, k, v, given, options, out, return_lse)
    else:
        try: o, lse = run(q, k, v, given, options, out, return_lse)
        except RuntimeError:  # of a sparse or nested tensor, which has no memory or no shape
            check_layouts(q, k, v, given, out)
            raise
    return (o, lse) if return_lse else o


def check_layouts(q: Tensor, k: Tensor, v: Tensor, given: Sides, out: Tensor | None) -> None:
    for name, x in zip(("q", "k", "v", *Sides._fields, "out"), (q, k, v, *given, out)):
        if x is not None: check_dense(name, x)


def options_of(*, max_seqlen_q: int | None, max_seqlen_kv: int | None, causal: bool, window: Window | None,
               softcap: float | None, scale: float | None, align: Align, max_sms: int, attention_chunk: int,
               invariant: bool, out_dtype: torch.dtype | None, lse_by_row: bool = False) -> Options:
    """Of what users give."""
    check_align(align)
    if out_dtype is not None: check_dtype("out_dtype", out_dtype)
    if torch.compiler.is_compiling(): traced.check_known(softcap=softcap, scale=scale)
    return Options(None if max_seqlen_q is None else whole("max_seqlen_q", max_seqlen_q),
                   None if max_seqlen_kv is None else whole("max_seqlen_kv", max_seqlen_kv),
                   plain(flag, "causal", causal), *window_of(window),
                   0.0 if softcap is None else plain(number, "softcap", softcap),
                   None if scale is None else plain(number, "scale", scale), align == "top_left",
                   whole("max_sms", max_sms), whole("attention_chunk", attention_chunk),
                   plain(flag, "invariant", invariant), out_dtype, plain(flag, "lse_by_row", lse_by_row))


def from_pages(given: dict[str, Any]) -> Any:
    """froghopper.torch.attention with block_table; given: its arguments."""
    if given["cu_seqlens_kv"] is not None:
        raise InvalidProblem("cu_seqlens_kv is given with block_table, which says where the rows of a sequence are. "
                             "Leave cu_seqlens_kv out, and give the lengths in seqused_kv.")
    check_beside_pages(given["accumulate"] is not None, plain(flag, "return_max_logit", given["return_max_logit"]))
    beside = ("cu_seqlens_kv", "accumulate", "return_max_logit", "deterministic", "others", "more")
    return paged_attention(**{name: value for name, value in given.items() if name not in beside})


def is_seen(q: Tensor, k: Tensor, v: Tensor, given: Sides, out: Tensor | None) -> bool:
    """Whether the operator is called, and not what it does without it, which costs the host less."""
    return torch.compiler.is_compiling() or ops.transforms_active() or not ops.unseen(q, k, v, out, *given)


def through_operator(q: Tensor, k: Tensor, v: Tensor, given: Sides, options: Options, out: Tensor | None,
                     return_lse: bool) -> tuple[Tensor, Tensor | None]:
    said_by = traced.caller() if torch.compiler.is_compiling() else ""
    arguments = (q, k, v, *given, *options, said_by, return_lse)
    o, lse = paged_op(*arguments) if out is None else (out, paged_out_op(out, *arguments))
    return o, lse if return_lse else None


def run(q: Tensor, k: Tensor, v: Tensor, given: Sides, options: Options, out: Tensor | None, return_lse: bool,
        held_lse: Tensor | None = None, first: bool = False) -> tuple[Tensor, Tensor | None]:
    """held_lse: out, in float32, and it are merged with what they hold, as attention's accumulate, or where this is the
    first call, written; not of 8-bit k."""
    max_sms = options.max_sms or calls.threads_for(q)
    if given.gate is not None: given = given._replace(gate=readable(given.gate))
    key = (kind(q), kind(k), kind(v), *map(kind, given), kind(out), kind(held_lse), options, max_sms, first)
    ready = _ready.get(key) or cached(
        _ready, key, lambda: ready_of(q, k, v, given, options._replace(max_sms=max_sms), out, held_lse, first))
    if ready.copies_q: q = calls.dense_copy(q)
    elif ready.gpu >= 0 and q.data_ptr() % calls.BYTES:  # the copy lies in another way: a call of its own
        return run(calls.dense_copy(q), k, v, given, options, out, return_lse, held_lse, first)
    o = q.new_empty(ready.o_shape, dtype=ready.o_dtype) if out is None else out
    lse = held_lse if held_lse is not None else (
        q.new_empty(ready.lse_shape, dtype=torch.float32) if return_lse else None)
    workspace = workspace_of(q, ready.workspace_bytes) if ready.workspace_bytes else None
    try:
        ready.call.forward_with_all(
            q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), address(lse), address(given.cu_seqlens_q), 0,
            address(given.seqused_q), address(given.seqused_kv), address(given.sink), address(given.scale_q),
            address(given.scale_k), address(given.scale_v), address(given.mean_k), address(given.mean_v),
            address(workspace), stream_of(ready.gpu) if ready.gpu >= 0 else None, address(given.alibi_slopes), 0,
            given.block_table.data_ptr(), address(given.gate))
    except InvalidTensor as error:
        check_bound(k, given, options)
        raise about_o(error, held_lse is not None, q.shape)
    if out is not None: torch.autograd.graph.increment_version(out)
    return o, lse


def readable(gate: Tensor) -> Tensor:
    """The gate, or a dense copy where its strides or its first byte are none that the kernels read."""
    if not gate.ndim or gate.layout != torch.strided: return gate  # refused when it is checked
    if calls.must_copy(gate, gate.is_cuda): return calls.dense_copy(gate)
    return calls.aligned(gate) if gate.is_cuda else gate


def check_bound(k: Tensor, given: Sides, options: Options) -> None:
    """Whether max_seqlen_kv is what is wrong where a length is more than the library was told."""
    most, used = options.max_seqlen_kv, given.seqused_kv
    if most is None or used is None or not used.is_cpu or not used.numel(): return
    at = int(used.argmax())
    longest = int(used[at])
    if most < longest <= given.block_table.shape[1] * k.shape[1]:
        raise InvalidProblem(f"max_seqlen_kv must be at least {longest}, which seqused_kv[{at}] is, but is {most}. Use "
                             f"max_seqlen_kv={longest}.") from None


def refuse_gradients(tensors: dict[str, Tensor | None], function: str = "attention to pages") -> None:
    if forward_ad._current_level >= 0: ops.check_tangents(tensors)
    if torch.is_grad_enabled(): ops.refuse_gradients(tensors, function)


def ready_of(q: Tensor, k: Tensor, v: Tensor, given: Sides, options: Options, out: Tensor | None,
             held_lse: Tensor | None, first: bool) -> Ready:
    paged = lengths_of(q, k, v, given, options)
    for name, x in (("k", k), ("v", v)):
        check_place(name, x, q)
        element_strides(name, x.shape, x.stride())
    o_dtype, types, lie = types_of(q, k, v, given, options, paged)
    o_shape, lse_shape = calls.shapes_of(q.shape, v.shape, options.lse_by_row)
    if out is not None and held_lse is not None: calls.check_held(out, held_lse, q, o_shape, lse_shape)
    elif out is not None: check_out(out, q, o_dtype, o_shape, k.dtype in FLOAT8)
    check_gate(q, v, given, o_dtype)
    gpu, target = calls.target_of(q)
    problem = problem_of(q, k, v, given, options, paged, types, held_lse is not None)
    if first: calls.set_first(problem)
    plan = plan_of(problem, target)
    copies_q = calls.must_copy(q, gpu >= 0)
    of_q = calls.dense_strides(q.shape) if copies_q else calls.strides_of(q)
    of_o = calls.dense_strides(o_shape) if out is None else element_strides(
        calls.name_of_o(held_lse), out.shape, out.stride())
    slopes, table = (0, 0, 0), given.block_table.stride()
    if given.alibi_slopes is not None:
        slopes = slope_strides(given.alibi_slopes.shape, given.alibi_slopes.stride(), paged.batch, q.shape[-2])
    call = Call(plan, [of_q, calls.strides_of(k), calls.strides_of(v), of_o, *lie], slopes, (table[0], table[1], 0),
                gates=[] if given.gate is None else [calls.strides_of(given.gate)],
                of_lse=lse_by_row_of(q.shape)[1] if options.lse_by_row else None, sums=first)
    return Ready(call, tuple(o_shape), tuple(lse_shape), o_dtype, copies_q, gpu, plan.workspace_bytes)


def problem_of(q: Tensor, k: Tensor, v: Tensor, given: Sides, options: Options, paged: Paged,
               types: Types | None, merges: bool = False) -> _c.Problem:
    return describe_paged(
        q.shape, k.shape, v.shape, name_of(q.dtype), paged, types=types, causal=options.causal,
        window=(options.window_left, options.window_right), softcap=options.softcap, scale=options.scale,
        align="top_left" if options.top_left else "bottom_right", sink=given.sink is not None,
        seqused=given.seqused_q is not None or given.seqused_kv is not None, max_sms=options.max_sms,
        alibi=given.alibi_slopes is not None, attention_chunk=options.attention_chunk, invariant=options.invariant,
        accumulate=merges, gate=given.gate is not None)


def check_gate(q: Tensor, v: Tensor, given: Sides, o_dtype: torch.dtype) -> None:
    """That it lies as o."""
    if given.gate is not None:
        calls.check_side("gate", given.gate, q, o_dtype, calls.shapes_of(q.shape, v.shape)[0])


def lengths_of(q: Tensor, k: Tensor, v: Tensor, given: Sides, options: Options) -> Paged:
    """How many sequences there are, and bounds on their rows; the checks of everything that says so."""
    table, begins = given.block_table, given.cu_seqlens_q
    for name, x in (("cu_seqlens_q", begins), ("seqused_q", given.seqused_q), ("seqused_kv", given.seqused_kv)):
        if x is not None: calls.check_lengths(name, x, q)
    packed = begins is not None
    check_rank("q", q.shape, packed, "cu_seqlens_q and max_seqlen_q")
    check_pool(q.shape, k.shape, v.shape)
    if begins is not None: check_begins(begins.shape)
    batch = q.shape[0] if begins is None else begins.shape[0] - 1
    check_place("block_table", table, q)
    calls.check_table(table, batch)
    for name, x in (("seqused_q", given.seqused_q), ("seqused_kv", given.seqused_kv)):
        if x is not None and x.shape[0] != batch:
            raise InvalidProblem(f"{name} must have {counted(batch, 'number')}, one for each sequence, but has "
                                 f"{x.shape[0]}. Give it {batch}.")
    if given.sink is not None: calls.check_side("sink", given.sink, q, torch.float32, q.shape[-2:-1])
    if given.alibi_slopes is not None: calls.check_slopes(given.alibi_slopes, q, batch)
    if packed == (options.max_seqlen_q is None):
        raise InvalidProblem("max_seqlen_q must be given with cu_seqlens_q, and only then: an upper bound on the "
                             f"rows of q that one sequence has. {'Add it.' if packed else 'Leave it out.'}")
    most = room_in_pages(table.shape[1], k.shape[1], options.max_seqlen_kv, given.seqused_kv is not None)
    return Paged(batch, q.shape[1] if options.max_seqlen_q is None else options.max_seqlen_q, most, packed)


def types_of(q: Tensor, k: Tensor, v: Tensor, given: Sides, options: Options,
             paged: Paged) -> tuple[torch.dtype, Types | None, list[Strides]]:
    """The type of o, what 8-bit types put into the problem, how scales and means lie."""
    given_scales, means = given[6:9], given[9:11]
    if k.dtype not in FLOAT8:
        check_not_8_bit(name_of(k.dtype), dict(zip((*ops.SCALES, "out_dtype"), (*given[6:11], options.out_dtype))))
        calls.check_one_type(q, k, v)
        return q.dtype, None, []
    names = [name_of(x.dtype) for x in (q, k, v)]
    of_o = output_of(names[0], names[1], names[2], None if options.out_dtype is None else name_of(options.out_dtype),
                     list(DTYPES.values()))
    check_scales_are_there(dict(zip(("scale_q", "scale_k", "scale_v"), given_scales)), names)
    lie: list[scales.Scale] = []
    for name, scale, x, rows, dim in zip(("scale_q", "scale_k", "scale_v"), given_scales, (q, k, v),
                                         (paged.max_seqlen_q, paged.max_seqlen_kv, paged.max_seqlen_kv),
                                         (0, 0, v.shape[-1])):
        if scale is not None:
            check_place(name, scale, q)
            if scale.dtype != torch.float32:
                raise InvalidType(f"{name} must be float32, but is {name_of(scale.dtype)}. Use {name}.float().")
        lie.append(scales.scale_of(name, () if scale is None else scale.shape, () if scale is None else scale.stride(),
                            paged.batch, rows, x.shape[-2], dim, () if x is q else x.shape[:-1]))
    of_means = [(0, 0, 0) if mean is None else mean_of(name, mean.shape, mean.stride(), paged.batch, x.shape[-2],
                                                       x.shape[-1])
                for name, mean, x in zip(("mean_k", "mean_v"), means, (k, v))]
    return (BY_NAME[of_o], scales.types_of(names[1], of_o, lie, check_means(*means)),
            [*(x.strides for x in lie), *of_means])


def parted(arguments: tuple[Any, ...]) -> tuple[Tensor, Tensor, Tensor, Sides, Options, bool]:
    """The arguments of an operator."""
    (q, k, v), sides, options = arguments[:3], arguments[3:FIRST_OPTION], arguments[FIRST_OPTION:-1]
    return q, k, v, Sides(*sides), Options(*options), arguments[-1]


def forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    q, k, v, given, options, with_lse = parted(arguments)
    o, lse = run(q, k, v, given, options, None, with_lse)
    return o, ops.no_lse(q) if lse is None else lse


def forward_out(out: Tensor, *arguments: Any) -> Tensor:
    q, k, v, given, options, with_lse = parted(arguments)
    _, lse = run(q, k, v, given, options, out, with_lse)
    return ops.no_lse(q) if lse is None else lse


def fake_forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    q, k, v, given, options, with_lse = parted(arguments)
    check_known(q, k, v, given, options)
    o, lse = calls.shapes_of(q.shape, v.shape, options.lse_by_row)
    of_o = (options.out_dtype if k.dtype in FLOAT8 else None) or (torch.bfloat16 if q.dtype in FLOAT8 else q.dtype)
    return q.new_empty(o, dtype=of_o), q.new_empty(lse if with_lse else (0,), dtype=torch.float32)


def fake_forward_out(out: Tensor, *arguments: Any) -> Tensor: return fake_forward(*arguments)[1]


def check_known(q: Tensor, k: Tensor, v: Tensor, given: Sides, options: Options) -> None:
    """The checks of shapes and types, where all extents are numbers; else they are made when it runs."""
    numbers: list[Any] = [extent for x in (q, k, v, *given) if x is not None for extent in x.shape]
    if any(type(number) is torch.SymInt for number in (*numbers, *options)): return
    paged = lengths_of(q, k, v, given, options)
    o_dtype, types, _ = types_of(q, k, v, given, options, paged)
    check_gate(q, v, given, o_dtype)
    problem_of(q, k, v, given, options, paged, types)


FIRST_OPTION = 3 + len(Sides._fields)
ops.register_kernels(_library, paged_op, forward, fake_forward)
ops.register_kernels(_library, paged_out_op, forward_out, fake_forward_out)
for _op in (paged_op, paged_out_op): ops.register_derivatives(_library, _op, function="attention to pages")
