# SPDX-License-Identifier: Apache-2.0
"""Tensors of PyTorch -> Call: what the operators of _torch_ops.py do on the CPU and on a GPU.

What is computed, and how tensors lie, is checked when it is met first and then found by a key that has everything but
addresses. On a GPU nothing waits, nothing is read on the host, and memory comes from PyTorch's allocator on the current
stream of the tensors' GPU. No memory outlives its call except for the results: a workspace that is kept would lie in
the pool of whatever CUDA graph is warmed up or recorded at that time, or be written by two streams at once.
"""
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from froghopper import _c
from froghopper._call import (Call, Packed, Shape, Strides, Types, cached, check_rank, check_shapes, describe,
                              element_strides, plan_of, slope_strides)
from froghopper._errors import InvalidProblem, InvalidTensor, InvalidType, about_o
from froghopper._lse import lse_by_row_of
from froghopper._torch_checks import check_dense as check_dense
from froghopper._torch_checks import check_floating as check_floating
from froghopper._torch_checks import check_held as check_held
from froghopper._torch_checks import check_lengths as check_lengths
from froghopper._torch_checks import check_like as check_like
from froghopper._torch_checks import check_place as check_place
from froghopper._torch_checks import check_shape as check_shape
from froghopper._torch_checks import check_side as check_side
from froghopper._torch_checks import check_slopes as check_slopes
from froghopper._torch_checks import check_table as check_table
from froghopper._torch_checks import check_tensor as check_tensor
from froghopper._torch_checks import dense_of as dense_of
from froghopper._torch_checks import is_dense as is_dense
from froghopper._torch_checks import layout_of as layout_of
from froghopper._torch_checks import name_of as name_of
from froghopper._torch_checks import name_of_o as name_of_o
from froghopper._torch_checks import sink_of as sink_of
from froghopper._torch_layout import BYTES as BYTES
from froghopper._torch_layout import dense_strides as dense_strides
from froghopper._torch_layout import gate_strides as gate_strides
from froghopper._torch_layout import max_logit_shape as max_logit_shape
from froghopper._torch_layout import must_copy as must_copy
from froghopper._torch_layout import shapes_of as shapes_of
from froghopper._torch_layout import strides_of as strides_of
from froghopper._values import counted, way_to_all, way_to_type

LOOK = -2**62  # as max_seqlen: find the longest sequence. On the CPU alone. No length that anybody gives
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
DTYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32"}
_forward: dict[Hashable, "Ready"] = {}
_backward: dict[Hashable, "Ready"] = {}


class Inputs(NamedTuple):
    """What both operators read, under the names that users know."""
    q: Tensor
    k: Tensor
    v: Tensor
    sink: Tensor | None
    cu_seqlens_q: Tensor | None
    cu_seqlens_kv: Tensor | None
    seqused_q: Tensor | None
    seqused_kv: Tensor | None
    alibi_slopes: Tensor | None


class Options(NamedTuple):
    """What both operators are told; max_seqlen is LOOK where nobody said, scale None for 1/sqrt(dim)."""
    max_seqlen_q: int
    max_seqlen_kv: int
    causal: bool
    window_left: int
    window_right: int
    softcap: float
    scale: float | None
    top_left: bool
    deterministic: bool
    max_sms: int
    attention_chunk: int
    invariant: bool


class Ready(NamedTuple):
    """A Call, and what to make for it. copied: which of the tensors that are read are copied first, () for none. gpu:
    its index, -1 for the CPU."""
    call: Call
    o_shape: Shape
    lse_shape: Shape
    copied: tuple[bool, ...]
    gpu: int
    workspace_bytes: int
    o_dtype: torch.dtype | None = None  # where it is not that of q


def forward(out: Tensor | None, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, cu_seqlens_q: Tensor | None,
            cu_seqlens_kv: Tensor | None, seqused_q: Tensor | None, seqused_kv: Tensor | None,
            alibi_slopes: Tensor | None, max_seqlen_q: int, max_seqlen_kv: int, causal: bool, window_left: int,
            window_right: int, softcap: float, scale: float | None, top_left: bool, deterministic: bool, max_sms: int,
            attention_chunk: int, invariant: bool, with_lse: bool, with_grad: bool = False,
            held_lse: Tensor | None = None, max_logit: Tensor | None = None,
            gate: Tensor | None = None, lse_by_row: bool = False, first: bool = False) -> tuple[Tensor, Tensor | None]:
    """(o, lse), lse None unless with_lse. with_grad: refuse also what has no gradients. held_lse: out and it are merged
    with what they hold, or, where this is the first call, written in float32. max_logit: written, or merged. gate: o is
    multiplied by its sigmoid. lse_by_row: as attention has it, not of held_lse."""
    if cu_seqlens_q is not None:
        max_seqlen_q, max_seqlen_kv = longest(cu_seqlens_q, max_seqlen_q), longest(cu_seqlens_kv, max_seqlen_kv)
    options = (max_seqlen_q, max_seqlen_kv, causal, window_left, window_right, softcap, scale, top_left, deterministic,
               max_sms or threads_for(q), attention_chunk, invariant)
    if is_negated(q, k, v, sink, alibi_slopes, gate):
        q, k, v, sink, alibi_slopes, gate = map(as_stored, (q, k, v, sink, alibi_slopes, gate))
    inputs = (q, k, v, sink, cu_seqlens_q, cu_seqlens_kv, seqused_q, seqused_kv, alibi_slopes)
    ready = forward_ready(inputs, options, with_grad, out, held_lse, max_logit, gate, lse_by_row, first)
    index, copied = ready.gpu, ready.copied
    if copied:
        if gate is not None and copied[3]: gate = dense_copy(gate)
        if copied[0]: q = dense_copy(q)
        if copied[1]: k = dense_copy(k)
        if copied[2]: v = dense_copy(v)
    at_q, at_k, at_v, at_gate = q.data_ptr(), k.data_ptr(), v.data_ptr(), address(gate)
    if index >= 0 and (at_q | at_k | at_v | at_gate) % BYTES: return forward_aligned(
        out, q, k, v, gate, sink, cu_seqlens_q, cu_seqlens_kv, seqused_q, seqused_kv, alibi_slopes, *options, with_lse,
        with_grad, held_lse, max_logit, lse_by_row=lse_by_row, first=first)
    o = q.new_empty(ready.o_shape) if out is None else out
    lse = held_lse if held_lse is not None else (
        q.new_empty(ready.lse_shape, dtype=torch.float32) if with_lse else None)
    workspace = workspace_of(q, ready.workspace_bytes) if ready.workspace_bytes else None
    try:
        ready.call.forward(
            at_q, at_k, at_v, o.data_ptr(), address(lse), address(cu_seqlens_q), address(cu_seqlens_kv),
            address(seqused_q), address(seqused_kv), address(sink), address(workspace),
            stream_of(index) if index >= 0 else None, address(alibi_slopes), address(max_logit), at_gate)
    except InvalidTensor as error: raise about_o(error, held_lse is not None, q.shape)
    return o, lse


def forward_aligned(out: Tensor | None, q: Tensor, k: Tensor, v: Tensor, gate: Tensor | None, *rest: Any,
                    lse_by_row: bool, first: bool) -> tuple[Tensor, Tensor | None]:
    """The same after copies of what does not begin at a multiple of 16 bytes. They lie in another way, so that what was
    made for the call does not fit them."""
    gate = None if gate is None else aligned(gate)
    return forward(out, aligned(q), aligned(k), aligned(v), *(*rest, gate, lse_by_row, first))


def backward(grad_o: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
             sink: Tensor | None, cu_seqlens_q: Tensor | None, cu_seqlens_kv: Tensor | None, seqused_q: Tensor | None,
             seqused_kv: Tensor | None, alibi_slopes: Tensor | None, max_seqlen_q: int, max_seqlen_kv: int,
             causal: bool, window_left: int, window_right: int, softcap: float, scale: float | None, top_left: bool,
             deterministic: bool, max_sms: int, attention_chunk: int, invariant: bool,
             gate: Tensor | None = None) -> tuple[Tensor, ...]:
    """The gradients of q, k, v and sink, that [0] where there is no sink, and of gate where there is one."""
    if cu_seqlens_q is not None:
        max_seqlen_q, max_seqlen_kv = longest(cu_seqlens_q, max_seqlen_q), longest(cu_seqlens_kv, max_seqlen_kv)
    options = (max_seqlen_q, max_seqlen_kv, causal, window_left, window_right, softcap, scale, top_left, deterministic,
               max_sms or threads_for(q), attention_chunk, invariant)
    if is_negated(q, k, v, sink, alibi_slopes, gate, grad_o, grad_lse):
        q, k, v, sink, alibi_slopes = map(as_stored, (q, k, v, sink, alibi_slopes))
        gate, grad_o, grad_lse = map(as_stored, (gate, grad_o, grad_lse))
    inputs = (q, k, v, sink, cu_seqlens_q, cu_seqlens_kv, seqused_q, seqused_kv, alibi_slopes)
    ready = backward_ready(inputs, options, o, lse, grad_o, grad_lse, gate)
    index, read = ready.gpu, [q, k, v, o, grad_o, *(() if gate is None else (gate,))]
    if ready.copied: read = [dense_copy(x) if copy else x for x, copy in zip(read, ready.copied)]
    if gate is not None: gate = read[5]
    if index >= 0 and any(x.data_ptr() % BYTES for x in read):  # copies lie in another way: a call of their own
        q, k, v, o, grad_o = map(aligned, read[:5])
        return backward(grad_o, grad_lse, q, k, v, o, lse, sink, cu_seqlens_q, cu_seqlens_kv, seqused_q, seqused_kv,
                        alibi_slopes, *options, None if gate is None else aligned(gate))
    at_q, at_k, at_v, at_o, at_grad_o = (x.data_ptr() for x in read[:5])
    grads = [q.new_empty(x.shape) for x in (q, k, v)]
    grad_gate = None if gate is None else q.new_empty(gate.shape)
    grad_sink = q.new_empty((0,) if sink is None else sink.shape, dtype=torch.float32)
    lse = lse.contiguous()
    if grad_lse is not None: grad_lse = grad_lse.contiguous()
    workspace = workspace_of(q, ready.workspace_bytes) if ready.workspace_bytes else None
    ready.call.backward(
        at_q, at_k, at_v, at_o, lse.data_ptr(), address(cu_seqlens_q), address(cu_seqlens_kv), address(seqused_q),
        address(seqused_kv), address(sink), at_grad_o, grads[0].data_ptr(), grads[1].data_ptr(), grads[2].data_ptr(),
        address(grad_lse), address(grad_sink) if sink is not None else 0, address(workspace),
        stream_of(index) if index >= 0 else None, address(alibi_slopes), address(gate), address(grad_gate))
    return *grads, grad_sink, *(() if grad_gate is None else (grad_gate,))


def forward_ready(inputs: tuple[Any, ...], options: tuple[Any, ...], with_grad: bool,
                  out: Tensor | None = None, held_lse: Tensor | None = None, max_logit: Tensor | None = None,
                  gate: Tensor | None = None, lse_by_row: bool = False, first: bool = False) -> Ready:
    """What was made for such a call, or is made now, with all checks."""
    key = (*[kind(x) for x in inputs], kind(out), options, with_grad, kind(held_lse), kind(max_logit), kind(gate),
           lse_by_row, first)
    return _forward.get(key) or cached(_forward, key, lambda: ready_forward(
        Inputs(*inputs), out, Options(*options), with_grad, held_lse, max_logit, gate, lse_by_row, first))


def backward_ready(inputs: tuple[Any, ...], options: tuple[Any, ...], o: Tensor, lse: Tensor, grad_o: Tensor,
                   grad_lse: Tensor | None, gate: Tensor | None = None) -> Ready:
    key = (*[kind(x) for x in inputs], kind(o), kind(grad_o), kind(lse), kind(grad_lse), options, kind(gate))
    return _backward.get(key) or cached(_backward, key, lambda: ready_backward(
        Inputs(*inputs), o, lse, grad_o, grad_lse, Options(*options), gate))


def kind(x: Tensor | None) -> Hashable:
    """Everything of a tensor but its address."""
    return None if x is None else (x.shape, x.stride(), x.dtype, x.device)


def threads_for(q: Tensor) -> int:
    """max_sms where nobody said: on the CPU as many threads as PyTorch uses (torch.set_num_threads), on a GPU 0, for
    all. The library uses no more than it finds, FROGHOPPER_THREADS among them."""
    return torch.get_num_threads() if q.is_cpu else 0


def address(x: Tensor | None) -> int:
    if x is None: return 0
    if x.is_neg(): raise InvalidTensor(f"a tensor of the shape {list(x.shape)} is a view that negates what is in "
                                       "memory. Use its resolve_neg().")
    at: int = x.data_ptr()
    return at


def is_negated(*tensors: Tensor | None) -> bool:
    """Whether one is a view whose elements are those in memory with the other sign, such as z.conj().imag."""
    return any(x is not None and x.is_neg() for x in tensors)


def as_stored(x: Any) -> Any: return None if x is None else x.resolve_neg()


def public_stream_of(gpu: int) -> int: return int(torch.cuda.current_stream(gpu).cuda_stream)


# The current stream of that GPU, as the library takes it; PyTorch's compiled code has it without an object around it.
stream_of: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", public_stream_of)


def workspace_of(q: Tensor, size: int) -> Tensor:
    """For one call. The library takes any content, and the allocator hands the memory on when the tensor goes, behind
    the call's kernels: to the same stream, or to the graph that is recorded."""
    return q.new_empty(size, dtype=torch.uint8)


def dense_copy(x: Tensor) -> Tensor: return x.clone(memory_format=torch.contiguous_format)


def aligned(x: Tensor) -> Tensor: return dense_copy(x) if x.data_ptr() % BYTES else x


def longest(begins: Tensor | None, given: int) -> int:
    """Rows of the longest sequence: what is given, or what cu_seqlens say that lie in host memory."""
    if given != LOOK or begins is None or begins.device.type != "cpu": return given
    ends = begins.tolist()
    # At least 0 where ends fall, which is said of them later.
    return max((0, *(after - before for before, after in zip(ends, ends[1:])))) if begins.ndim == 1 else 0


def ready_forward(inputs: Inputs, out: Tensor | None, options: Options, with_grad: bool,
                  held_lse: Tensor | None, max_logit: Tensor | None, gate: Tensor | None, lse_by_row: bool,
                  first: bool) -> Ready:
    check(inputs, options)
    if max_logit is not None: check_max_logit(max_logit, inputs)
    q, k, v = inputs[:3]
    o_shape, lse_shape = shapes_of(q.shape, v.shape, lse_by_row)
    if out is not None and held_lse is not None: check_held(out, held_lse, q, o_shape, lse_shape)
    elif out is not None: check_like("out", out, q, o_shape)
    if gate is not None: check_like("gate", gate, q, o_shape)
    problem = problem_of(inputs, options, backward=False, merges=held_lse is not None, max_logit=max_logit is not None,
                         gate=gate is not None)
    if first: set_first(problem)
    index, target = target_of(q)
    if with_grad: plan_of(problem_of(inputs, options, backward=True, gate=gate is not None), target)
    gates = () if gate is None else (gate,)
    copied = tuple(must_copy(x, index >= 0) for x in (*inputs[:3], *gates))
    plan = plan_of(problem, target)
    of_o = dense_strides(o_shape) if out is None else element_strides(name_of_o(held_lse), out.shape, out.stride())
    strides = [dense_strides(x.shape) if copy else strides_of(x) for x, copy in zip((q, k, v), copied)]
    call = Call(plan, [*strides, of_o], slopes_of(inputs), gates=[gate_strides(x, copied[3]) for x in gates],
                of_lse=lse_by_row_of(q.shape)[1] if lse_by_row else None, sums=first)
    return Ready(call, o_shape, lse_shape, copied if any(copied) else (), index, plan.workspace_bytes)


def set_first(problem: _c.Problem) -> None:
    """Of a problem with accumulate: what is merged is not there yet."""
    problem.accumulate, problem.phase = 0, _c.Phase.PHASE_FIRST


def ready_backward(inputs: Inputs, o: Tensor, lse: Tensor, grad_o: Tensor, grad_lse: Tensor | None,
                   options: Options, gate: Tensor | None) -> Ready:
    check(inputs, options)
    q, k, v = inputs[:3]
    gates = () if gate is None else (gate,)
    o_shape, lse_shape = shapes_of(q.shape, v.shape)
    for name, x in (("o", o), ("grad_o", grad_o), *(("gate", x) for x in gates)): check_like(name, x, q, o_shape)
    for name, maybe in (("lse", lse), ("grad_lse", grad_lse)):
        if maybe is not None: check_side(name, maybe, q, torch.float32, lse_shape)
    index, target = target_of(q)
    plan = plan_of(problem_of(inputs, options, backward=True, gate=gate is not None), target)
    read = (q, k, v, o, grad_o)
    copied = tuple(must_copy(x, index >= 0) for x in (*read, *gates))
    strides = [dense_strides(x.shape) if copy else strides_of(x) for x, copy in zip(read, copied)]
    of_gates = [gate_strides(x, copied[5]) for x in gates]
    call = Call(plan, [*strides, *(dense_strides(x.shape) for x in (q, k, v))], slopes_of(inputs),
                gates=[*of_gates, dense_strides(o_shape)])
    return Ready(call, o_shape, lse_shape, copied if any(copied) else (), index, plan.workspace_bytes)


def check(inputs: Inputs, options: Options, of_8_bits: bool = False) -> None:
    """Types, devices, shapes and lengths of everything that is read; for tensors without memory too."""
    q, k, v, sink, begins_q, begins_kv, used_q, used_kv, slopes = inputs
    for name, x in (("q", q), ("k", k), ("v", v)): check_place(name, x, q)
    if not of_8_bits: check_one_type(q, k, v)
    for name, x in (("q", q), ("k", k), ("v", v)): check_rank(name, x.shape, begins_q is not None)
    check_shapes(q.shape, k.shape, v.shape)
    if sink is not None: check_side("sink", sink, q, torch.float32, q.shape[-2:-1])
    batch = q.shape[0]
    if begins_q is not None and begins_kv is not None:
        check_lengths("cu_seqlens_q", begins_q, q)
        check_lengths("cu_seqlens_kv", begins_kv, q)
        if begins_q.shape[0] == begins_kv.shape[0] == 0:
            raise InvalidProblem("cu_seqlens_q and cu_seqlens_kv must have one number more than there are sequences, "
                                 "but have 0. Use [0] for no sequence.")
        if begins_q.shape[0] != begins_kv.shape[0]:
            raise InvalidProblem("cu_seqlens_q and cu_seqlens_kv must have one number more than there are sequences, "
                                 f"but have {begins_q.shape[0]} and {begins_kv.shape[0]}. Make them equally long.")
        batch = begins_q.shape[0] - 1
        for name, x, given in (("q", begins_q, options.max_seqlen_q), ("kv", begins_kv, options.max_seqlen_kv)):
            if given == LOOK and x.device.type not in ("cpu", "meta"):
                raise InvalidProblem(f"max_seqlen_{name} must be given where cu_seqlens_{name} is on {x.device}, as "
                                     f"nothing is read back from there. Use max_seqlen_{name}=N, an upper bound on "
                                     "the longest sequence.")
    for name, maybe in (("seqused_q", used_q), ("seqused_kv", used_kv)):
        if maybe is None: continue
        check_lengths(name, maybe, q)
        if maybe.shape[0] != batch:
            raise InvalidProblem(f"{name} must have {counted(batch, 'number')}, one for each sequence, but has "
                                 f"{maybe.shape[0]}. Give it {batch}.")
    if slopes is not None: check_slopes(slopes, q, batch)


def check_one_type(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Where none has 8 bits."""
    if q.dtype not in DTYPES:
        if not q.dtype == k.dtype == v.dtype:
            raise InvalidType(f"q must be {' or '.join(DTYPES.values())}, but is {name_of(q.dtype)}. Use q.float(), on "
                              "a GPU q.bfloat16().")
        way = way_to_all(name_of(q.dtype), "q.float(), k.float() and v.float(), on a GPU q.bfloat16() and so on",
                         "q.view(torch.float8_e4m3fn)")
        raise InvalidType(f"q, k and v must be {' or '.join(DTYPES.values())}, but are {name_of(q.dtype)}. {way}.")
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype:
            way = way_to_type(name, name_of(x.dtype), f"{name}.to(q.dtype)", f"{name}.view(torch.float8_e4m3fn)")
            raise InvalidType(f"{name} must have the type of q, {name_of(q.dtype)}, but is {name_of(x.dtype)}. {way}.")


def slopes_of(inputs: Inputs) -> Strides:
    """Strides of the slopes; check has seen them."""
    slopes, begins = inputs.alibi_slopes, inputs.cu_seqlens_q
    if slopes is None: return 0, 0, 0
    batch = inputs.q.shape[0] if begins is None else begins.shape[0] - 1
    return slope_strides(slopes.shape, slopes.stride(), batch, inputs.q.shape[-2])


def problem_of(inputs: Inputs, options: Options, backward: bool, types: Types | None = None,
               merges: bool = False, max_logit: bool = False, gate: bool = False) -> Any:
    q, k, v, sink, begins_q, _, used_q, used_kv, slopes = inputs
    packed = None
    if begins_q is not None: packed = Packed(begins_q.shape[0] - 1, options.max_seqlen_q, options.max_seqlen_kv)
    return describe(q.shape, k.shape, v.shape, name_of(q.dtype), types=types, backward=backward, causal=options.causal,
                    window=(options.window_left, options.window_right), softcap=options.softcap,
                    scale=options.scale, align="top_left" if options.top_left else "bottom_right",
                    sink=sink is not None, packed=packed, seqused=used_q is not None or used_kv is not None,
                    deterministic=backward and options.deterministic, max_sms=options.max_sms, accumulate=merges,
                    alibi=slopes is not None, attention_chunk=options.attention_chunk,
                    invariant=options.invariant, max_logit=max_logit, gate=gate, layout_is_known=True)


def check_max_logit(x: Tensor, inputs: Inputs) -> None:
    check_side("max_logit", x, inputs.q, torch.float32, max_logit_shape(inputs.q.shape, inputs.cu_seqlens_q))
    if not x.is_contiguous():
        raise InvalidTensor("max_logit must be contiguous, but is not. Use max_logit.contiguous().")


def target_of(q: Tensor) -> tuple[int, str]:
    """(index of the GPU or -1, target)."""
    if q.device.type == "cpu": return -1, "cpu"
    if torch.version.hip is not None:
        raise InvalidTensor(f"q must be on an NVIDIA Hopper GPU or on the CPU, but is on {q.device}, a GPU of AMD. "
                            "Use q.cpu().")
    return q.get_device(), f"hopper:{q.get_device()}"
