# SPDX-License-Identifier: Apache-2.0
"""froghopper.torch.append_kv: new keys and values into a cache, in one launch.

As in _torch_calls.py, what is computed is checked when it is met first and then found by a key that has everything but
addresses. Nothing of a GPU is read on the host, nothing waits, and the cache is never copied.
"""
from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from froghopper import _torch_calls as calls
from froghopper import _torch_traced as traced
from froghopper._append import (AppendCall, Rotary, Sizes, check_rotary, plan_for, problem_of, sizes_in, way_to_cache,
                                way_to_tables, way_to_type_of_cache)
from froghopper._call import Strides, cached, element_strides, flag, number
from froghopper._errors import InvalidProblem, InvalidTensor, InvalidType, Unsupported
from froghopper._torch_8_bit import own_scales, scale_strides
from froghopper._torch_calls import (FLOAT8, address, check_dense, check_place, check_tensor, kind, name_of,
                                     stream_of)
from froghopper._torch_library import library_of
from froghopper._torch_options import Scale, plain, scale_tensor, whole
from froghopper._torch_ops import PLAIN, check_tangents, modes, refuse_writing, register_kernels
from froghopper._torch_sharding import refuse_parts
from froghopper._values import counted, way_to_shape
from froghopper._words import takes_words_of_others

_ready: dict[Hashable, "Ready"] = {}
# For code that torch.compile traces; its arguments are Given, then Options and caller.
_library = library_of(__name__)
_library.define("append_kv(Tensor? q, Tensor? k, Tensor? v, Tensor(a!)? q_out, Tensor(b!)? k_cache, Tensor(c!)? "
                "v_cache, Tensor(d!)? scale_k, Tensor(e!)? scale_v, "
                "Tensor? rotary_cos, Tensor? rotary_sin, Tensor? norm_q, "
                "Tensor? norm_k, Tensor? block_table, Tensor? cu_seqlens, Tensor? seqused, Tensor? seqused_kv, "
                "Tensor? slot_mapping, Tensor? positions, SymInt? max_seqlen, bool interleaved, float? norm_epsilon, "
                "SymInt max_sms, str caller) -> ()")
append_op: Any = torch.ops.froghopper.append_kv.default


class Given(NamedTuple):
    """The tensors, under the names that users know."""
    q: Tensor | None
    k: Tensor | None
    v: Tensor | None
    q_out: Tensor | None
    k_cache: Tensor | None
    v_cache: Tensor | None
    scale_k: Tensor | None
    scale_v: Tensor | None
    rotary_cos: Tensor | None
    rotary_sin: Tensor | None
    norm_q: Tensor | None
    norm_k: Tensor | None
    block_table: Tensor | None
    cu_seqlens: Tensor | None
    seqused: Tensor | None
    seqused_kv: Tensor | None
    slot_mapping: Tensor | None
    positions: Tensor | None


class Options(NamedTuple):
    max_seqlen: int | None
    interleaved: bool
    norm_epsilon: float | None
    max_sms: int


class Ready(NamedTuple):
    """An AppendCall, which of q, k and v to copy first, the GPU's index (-1: CPU), whether scales are written."""
    call: AppendCall
    copies: tuple[bool, bool, bool]
    gpu: int
    writes_scales: bool


@takes_words_of_others("torch")
def append_kv(k: Tensor | None, v: Tensor | None, k_cache: Tensor | None, v_cache: Tensor | None, *,
              q: Tensor | None = None, q_out: Tensor | None = None, slot_mapping: Tensor | None = None,
              block_table: Tensor | None = None, seqused_kv: Tensor | None = None, cu_seqlens: Tensor | None = None,
              max_seqlen: int | None = None, seqused: Tensor | None = None, rotary_cos: Tensor | None = None,
              rotary_sin: Tensor | None = None, rotary_interleaved: bool = False, positions: Tensor | None = None,
              norm_q: Tensor | None = None, norm_k: Tensor | None = None, norm_epsilon: float | None = None,
              scale_k: Scale = None, scale_v: Scale = None, max_sms: int = 0) -> Tensor | None:
    """Writes new keys and values into a cache, normed, rotated and in 8 bits where that is asked for; q with them.

    k, v           new rows, [batch, seq, heads_kv, dim], or [tokens, heads_kv, dim] with cu_seqlens or slot_mapping; v
                   may have its own dim. Each may be None, with its cache
    k_cache        [batch, rows, heads_kv, dim]; with block_table or slot_mapping pages, [pages, page_size, heads_kv,
    v_cache        dim]. Any strides whose last is 1 (on a GPU multiples of 16 bytes): a transposed view of [pages,
                   heads_kv, page_size, dim] will do, or K and V beside each other in one tensor. Of k's type, or
                   float8. Only rows that are named are written; never copied
    q              [batch, seq, heads_q, dim] or [tokens, heads_q, dim]: normed and rotated too
    q_out          where it is written; None for a new tensor; q itself will do

    Where rows go. Two rows may not go to one place: what is there then is undefined
    slot_mapping   [tokens] int64, in any shape: page * page_size + row in the page; negative for none, as of padding
    seqused_kv     without slot_mapping: [batch] int32, how many rows of each sequence are there already; None for 0.
                   Row i of the new ones goes behind them
    block_table    [batch, columns] int32: the pages of each sequence
    cu_seqlens     [batch + 1] int32 and max_seqlen: packed rows, q's too
    seqused        [batch] int32: how many of the new rows count; None for all

    rotary_cos     [positions, rotary_dim / 2], of k's type or float32, last stride 1: the first rotary_dim columns of q
    rotary_sin     and k are rotated. Slices of one [positions, rotary_dim] tensor will do
    rotary_interleaved  pairs are columns 2i and 2i + 1; else i and i + rotary_dim / 2
    positions      [tokens] int64, in any shape: of each row, for rotary_cos; None for the row of the sequence that it
                   goes to; needed with slot_mapping
    norm_epsilon   not None: rows of q and k are divided by sqrt(mean of squares + norm_epsilon) before they are rotated
    norm_q, norm_k [dim], of k's type or float32: what their columns are multiplied by then; None for 1
    scale_k        float8 caches: what is stored is a number divided by it: a number, [], [1] or [heads_kv] float32; or
    scale_v        [pages, page_size, heads_kv] (as the cache without its last dimension, or with 1 for it): each row of
                   a head gets a scale of its own, which is written there. It is inf for a row with an infinite number,
                   which attention cannot read; NaN is left out: docs/13-serving.md
    max_sms        SMs or threads that it may use; 0 for all

    Returns q_out, None without q. Without gradients. All is computed in float32 and rounded once. On the CPU slots,
    lengths, pages and positions are checked, ValueError. On a GPU they are not: a row is not written there whose slot,
    page or position does not exist. CUDA graphs may capture the call and replay it with other numbers in these tensors.
    """
    some = next((x for x in (k, v, q) if x is not None), None)
    if some is None:
        raise InvalidTensor("q, k or v must be given, but all are None. Give one, with what is written of it.")
    if q is not None and q_out is None:
        check_dense("q", q)
        q_out = torch.empty_like(q, memory_format=torch.contiguous_format)
    given = Given(q, k, v, q_out, k_cache, v_cache, scale_tensor("scale_k", scale_k, some),
                  scale_tensor("scale_v", scale_v, some),
                  rotary_cos, rotary_sin, norm_q, norm_k, block_table, cu_seqlens, seqused, seqused_kv, slot_mapping,
                  positions)
    refuse_writing("append_kv writes to caches", *given)
    if torch.is_grad_enabled() or forward_ad._current_level >= 0: refuse_gradients(given)
    if isinstance(some, Tensor) and type(some) not in PLAIN: refuse_parts("append_kv", given._asdict())
    options = Options(None if max_seqlen is None else whole("max_seqlen", max_seqlen),
                      plain(flag, "rotary_interleaved", rotary_interleaved),
                      None if norm_epsilon is None else plain(number, "norm_epsilon", norm_epsilon),
                      whole("max_sms", max_sms))
    if torch.compiler.is_compiling() or without_memory(some):
        check_tensors(given)
        said_by = traced.caller() if torch.compiler.is_compiling() else ""
        for part in parts_of(given): append_op(*part, *options, said_by)
    else: run(given, options)
    return q_out


def without_memory(x: Any) -> bool:
    """Whether it may be a tensor that has shape and type alone, which the operator takes."""
    return isinstance(x, Tensor) and bool(modes() or type(x) not in PLAIN or x.is_meta)


def parts_of(given: Given) -> list[Given]:
    """One for each of q, k and v. torch.compile's code for an operator that writes to two views of one memory, as K and
    V often are, copies the second one wrongly (2.11)."""
    of_q = dict(q=None, q_out=None, norm_q=None)
    of_k = dict(k=None, k_cache=None, scale_k=None, norm_k=None)
    of_v = dict(v=None, v_cache=None, scale_v=None)
    of_pairs = dict(rotary_cos=None, rotary_sin=None, positions=None)
    parts = [given._replace(**of_k, **of_v, slot_mapping=None, block_table=None), given._replace(**of_q, **of_v),
             given._replace(**of_q, **of_k, **of_pairs)]
    return [part for part in parts if not part.q is part.k is part.v is None]


def run_op(*arguments: Any) -> None:
    count = len(Given._fields)
    run(Given(*arguments[:count]), Options(*arguments[count:]))


def fake(*arguments: Any) -> None:
    """The checks of shapes and types, where all extents are numbers; else they are made when it runs."""
    given, options = Given(*arguments[:len(Given._fields)]), Options(*arguments[len(Given._fields):])
    numbers: list[Any] = [extent for x in given if x is not None for extent in x.shape]
    if any(type(number) is torch.SymInt for number in (*numbers, *options)): return
    checked(given, options)


register_kernels(_library, append_op, run_op, fake)


def run(given: Given, options: Options) -> None:
    try:
        if options.max_sms == 0: options = options._replace(max_sms=threads_for(given))
        key = (*map(kind, given), options)
    except (AttributeError, RuntimeError):  # what is no tensor, or a nested one, which has no shape
        check_tensors(given)
        raise
    ready = _ready.get(key) or cached(_ready, key, lambda: ready_of(given, options))
    new = [calls.dense_copy(x) if x is not None and copies else x for x, copies in zip(given[:3], ready.copies)]
    if ready.gpu >= 0 and any(address(x) % calls.BYTES for x in new):  # copies lie in another way: a call of their own
        return run(given._replace(**{name: x if x is None else calls.aligned(x)
                                     for name, x in zip(Given._fields, new)}), options)
    try: addresses = [address(x) for x in new] + [address(x) for x in given[3:]]
    except RuntimeError:  # of a sparse tensor, which has the strides of a dense one
        check_tensors(given)
        raise
    ready.call.run(addresses, stream_of(ready.gpu) if ready.gpu >= 0 else None)
    for x in (given.q_out, given.k_cache, given.v_cache, *((given.scale_k, given.scale_v) * ready.writes_scales)):
        if x is not None: torch.autograd.graph.increment_version(x)


def threads_for(given: Given) -> int:
    new = next((x for x in given[:3] if x is not None), None)
    return 0 if new is None else calls.threads_for(new)


def check_tensors(given: Given) -> None:
    for name, x in zip(Given._fields, given):
        if x is not None: check_dense(name, x)


def refuse_gradients(given: Given) -> None:
    check_tensors(given)
    tensors = {name: x for name, x in zip(Given._fields, given) if x is not None}
    check_tangents(tensors)
    if not torch.is_grad_enabled(): return
    for name, x in tensors.items():
        if x.requires_grad:
            raise Unsupported(f"{name} requires a gradient; append_kv has none. Use {name}.detach(), or call under "
                              "torch.no_grad().")


def checked(given: Given, options: Options) -> Any:
    """The problem, after the checks of everything that is given."""
    new = given.k if given.k is not None else given.v if given.v is not None else given.q
    assert new is not None
    for name, x in zip(Given._fields, given):
        if x is not None: check_place(name, x, new)
    sizes = sizes_of(given, options, new)
    caches = [x for x in (given.k_cache, given.v_cache) if x is not None]
    check_rows(given, sizes, new)
    heads_kv = (given.k if given.k is not None else given.v if given.v is not None else new).shape[-2]
    heads_q = heads_kv if given.q is None else given.q.shape[-2]
    of_qk = given.k if given.k is not None else given.q if given.q is not None else given.v
    dims = of_qk.shape[-1] if of_qk is not None else 0, (given.v if given.v is not None else new).shape[-1]
    own = own_scales(given)
    weights = given.norm_k if given.norm_k is not None else given.norm_q
    return problem_of(sizes, (heads_q, heads_kv), dims, name_of(new.dtype),
                      name_of(caches[0].dtype if caches else new.dtype),
                      seqused=given.seqused is not None or given.seqused_kv is not None,
                      slots=given.slot_mapping is not None, positions=given.positions is not None,
                      rotary=rotary_of(given, options, dims[0]), norm_epsilon=options.norm_epsilon,
                      norm_dtype=None if weights is None else name_of(weights.dtype), scale_tokens=own,
                      max_sms=options.max_sms)


def ready_of(given: Given, options: Options) -> Ready:
    problem = checked(given, options)
    new = given.k if given.k is not None else given.v if given.v is not None else given.q
    assert new is not None
    own = problem.scale_tokens != 0
    gpu, target = calls.target_of(new)
    copies = tuple(x is not None and calls.must_copy(x, gpu >= 0) for x in given[:3])
    strides: dict[str, Strides] = {}
    for name, x, copied in zip("qkv", given[:3], copies):
        if x is not None: strides[name] = calls.dense_strides(x.shape) if copied else calls.strides_of(x)
    for name, told, x in (("q_out", "q_out", given.q_out), ("cache_k", "k_cache", given.k_cache),
                          ("cache_v", "v_cache", given.v_cache)):
        if x is not None: strides[name] = element_strides(told, x.shape, x.stride())
    for name, x in (("scale_k", given.scale_k), ("scale_v", given.scale_v)):
        if x is not None: strides[name] = scale_strides(x, own)
    for name, x in (("rotary_cos", given.rotary_cos), ("rotary_sin", given.rotary_sin)):
        if x is not None: strides[name] = (0, x.stride(0), 0)
    if (table := given.block_table) is not None: strides["block_table"] = (table.stride(0), table.stride(1), 0)
    return Ready(AppendCall(plan_for(problem, target), strides), (copies[0], copies[1], copies[2]), gpu, own)


def sizes_of(given: Given, options: Options, new: Tensor) -> Sizes:
    """How many rows there are, of how many sequences, and how the cache lies."""
    packed = given.cu_seqlens is not None
    if packed == (options.max_seqlen is None):
        raise InvalidProblem("max_seqlen must be given with cu_seqlens, and only then: an upper bound on the new rows "
                             "of a sequence. " + ("Add it." if packed else "Leave it out."))
    flat = new.ndim == 3
    if new.ndim not in (3, 4) or (packed and not flat):
        raise InvalidProblem("k must be [batch, seq, heads, dim], or [tokens, heads, dim] with cu_seqlens or "
                             f"slot_mapping, but has the shape {list(new.shape)}. "
                             + ("Use k.flatten(0, 1), and v likewise." if new.ndim == 4 else
                                "Give it one of these shapes."))
    cached_at = given.k_cache if given.k_cache is not None else given.v_cache
    if flat and not packed and given.slot_mapping is None and cached_at is not None:
        raise InvalidProblem("k must be [batch, seq, heads, dim] without cu_seqlens and slot_mapping, but has the "
                             f"shape {list(new.shape)}. Use k[:, None] if it is one new row of each "
                             "sequence; else give cu_seqlens or slot_mapping, which say where a row goes.")
    if given.cu_seqlens is not None:
        calls.check_lengths("cu_seqlens", given.cu_seqlens, new)
        batch, seq, total = given.cu_seqlens.shape[0] - 1, options.max_seqlen or 0, new.shape[0]
    else:
        batch, seq, total = (1, new.shape[0], -1) if flat else (new.shape[0], new.shape[1], -1)
    if cached_at is not None and cached_at.ndim != 4:
        raise InvalidTensor("k_cache must be [batch or pages, rows, heads, dim], but has the shape "
                            f"{list(cached_at.shape)}. Give the whole cache.")
    return sizes_in(batch, seq, total, None if cached_at is None else cached_at.shape, given.block_table,
                    given.slot_mapping, new.shape)


def check_rows(given: Given, sizes: Sizes, new: Tensor) -> None:
    """Types and shapes of everything, beside those of the new rows."""
    rows = new.shape[:-2]
    for name, x in (("q", given.q), ("k", given.k), ("v", given.v)):
        if x is None: continue
        if x.dtype != new.dtype:
            raise InvalidType(f"{name} must be of the type of the others, {name_of(new.dtype)}, but is "
                              f"{name_of(x.dtype)}. Use {name}.to({new.dtype}).")
        if x.shape[:-2] != rows or x.ndim < 3:
            raise InvalidTensor(f"{name} must have the rows of the others, {list(rows)}, but has the shape "
                                f"{list(x.shape)}. Give q, k and v equally many rows.")
    if given.q is not None and given.k is not None and given.q.shape[-1] != given.k.shape[-1]:
        raise InvalidTensor(f"q must have the columns of k, {given.k.shape[-1]}, but has {given.q.shape[-1]}. Change "
                            "one.")
    if given.q_out is not None:
        if given.q is None: raise InvalidTensor("q must be given with q_out, but is None. Give q.")
        calls.check_like("q_out", given.q_out, given.q, tuple(given.q.shape))
    lead = None
    for name, x, cache in (("k", given.k, given.k_cache), ("v", given.v, given.v_cache)):
        if (x is None) != (cache is None):
            raise InvalidTensor(f"{name} and {name}_cache must be given together, but one is None. Give both or none.")
        if x is None or cache is None: continue
        if cache.dtype != new.dtype and cache.dtype not in FLOAT8:
            way = way_to_type_of_cache(name, name_of(cache.dtype), f".to({name}_cache.dtype)",
                                       ".view(torch.float8_e4m3fn)")
            raise InvalidType(f"{name}_cache must be {name_of(new.dtype)}, as {name} is, or float8, but is "
                              f"{name_of(cache.dtype)}. {way}.")
        lead = cache if lead is None else lead
        wanted = [*lead.shape[:2], *x.shape[-2:]]
        if list(cache.shape) != wanted:
            raise InvalidTensor(f"{name}_cache must be {wanted}, with the heads and columns of {name}, but has the "
                                f"shape {list(cache.shape)}. {way_to_cache(name, x.shape, cache.shape)}.")
        if cache.dtype != lead.dtype:
            raise InvalidType(f"v_cache must be of the type of k_cache, {name_of(lead.dtype)}, but is "
                              f"{name_of(cache.dtype)}. Use v_cache.to(k_cache.dtype).")
    if given.k is not None and given.v is not None and given.k.shape[-2] != given.v.shape[-2]:
        raise InvalidTensor(f"v must have the heads of k, {given.k.shape[-2]}, but has {given.v.shape[-2]}. Give "
                            "both equally many.")
    tokens = rows.numel()
    for name, x in (("slot_mapping", given.slot_mapping), ("positions", given.positions)):
        if x is None: continue
        if x.dtype != torch.int64 or x.numel() != tokens or not x.is_contiguous():
            out = f"Give it {counted(tokens, 'number')}" if x.numel() != tokens else (
                f"Use {name}.{'contiguous' if x.dtype == torch.int64 else 'long'}()")
            raise InvalidType(f"{name} must be int64, dense, with a number for each row, {tokens} in all, but is "
                              f"{name_of(x.dtype)} with the shape {list(x.shape)}. {out}.")
    for name, x in (("seqused", given.seqused), ("seqused_kv", given.seqused_kv)):
        if x is None: continue
        calls.check_lengths(name, x, new)
        if x.shape[0] != sizes.batch:
            raise InvalidProblem(f"{name} must have a number for each sequence, {sizes.batch} in all, but has "
                                 f"{x.shape[0]}. Give it {sizes.batch}.")
    if given.block_table is not None: calls.check_table(given.block_table, sizes.batch)
    check_norm(given)


def check_norm(given: Given) -> None:
    for name, x, beside in (("norm_q", given.norm_q, given.q), ("norm_k", given.norm_k, given.k)):
        if x is None: continue
        if beside is None: raise InvalidTensor(f"{name} must be None without {name[-1]}, but is given. Leave it out.")
        if tuple(x.shape) != (beside.shape[-1],) or not x.is_contiguous():
            raise InvalidTensor(f"{name} must be [{beside.shape[-1]}], dense, a weight for each column, but has the "
                                f"shape {list(x.shape)}. {way_to_shape(name, x.shape, beside.shape[-1:])}.")
    both = given.norm_q, given.norm_k
    if both[0] is not None and both[1] is not None and both[0].dtype != both[1].dtype:
        raise InvalidType(f"norm_q must be of the type of norm_k, {name_of(both[1].dtype)}, but is "
                          f"{name_of(both[0].dtype)}. Use norm_q.to(norm_k.dtype).")


def rotary_of(given: Given, options: Options, dim: int) -> Rotary | None:
    cos, sin = given.rotary_cos, given.rotary_sin
    if cos is None and sin is None:
        if given.positions is not None:
            raise InvalidProblem("positions must be None without rotary_cos, as nothing is rotated, but are given. "
                                 "Leave them out.")
        return None
    if cos is None or sin is None:
        raise InvalidTensor("rotary_cos and rotary_sin must be given together, but one is None. Give both or none.")
    if cos.ndim != 2 or cos.shape != sin.shape or cos.dtype != sin.dtype:
        raise InvalidTensor("rotary_cos and rotary_sin must be [positions, rotary_dim / 2], of one type, but are "
                            f"{name_of(cos.dtype)} {list(cos.shape)} and {name_of(sin.dtype)} {list(sin.shape)}. "
                            + (f"{way_to_tables(cos.shape, dim, sin.shape)}." if cos.dtype == sin.dtype else
                               "Use rotary_sin.to(rotary_cos.dtype)."))
    for name, x in (("rotary_cos", cos), ("rotary_sin", sin)):
        if x.shape[1] > 1 and x.stride(1) != 1:
            raise InvalidTensor(f"{name} must have the last stride 1, but has the strides {list(x.stride())}. Make it "
                                "contiguous.")
    check_rotary(dim, 2 * cos.shape[1])
    return Rotary(2 * cos.shape[1], cos.shape[0], options.interleaved, name_of(cos.dtype))
