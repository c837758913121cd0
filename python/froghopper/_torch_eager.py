# SPDX-License-Identifier: Apache-2.0
"""attention of PyTorch without 8-bit types, out and accumulate: the quickest way that a call can take.

    attend     the native operators where they know the call and nobody looks at what PyTorch does; else in_python
    in_python  checks, autocast and the operators of _torch_ops.py: everything else, and every first call
    _Recorded  the gradients of what the native operators have computed

Tensors lie as form says: ROWS_FIRST [batch, seq, heads, dim], HEADS_FIRST [batch, heads, seq, dim], or TURNED, which
has q, k and v of the second form and o of the first. Nothing is transposed on the way where the native operators do the
work: they exchange strides.
"""
import contextlib
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from froghopper import _torch_calls as calls
from froghopper import _torch_native as native
from froghopper import _torch_ops as ops
from froghopper import _torch_sharding as sharding
from froghopper import _torch_traced as traced
from froghopper._axes import check_axes
from froghopper._errors import InvalidType, Unsupported
from froghopper._torch_calls import LOOK, check_dense, is_dense, layout_of
from froghopper._torch_checks import all_dense_of
from froghopper._torch_native import GRADIENTS, HEADS_FIRST, ROWS_FIRST

DEVICES = ("cpu", "cuda")  # with memory; of autocast too
Sides = tuple[Tensor | None, ...]
NAMES_OF_SIDES = ("sink", "cu_seqlens_q", "cu_seqlens_kv", "seqused_q", "seqused_kv", "alibi_slopes")
NO_SIDES: Sides = (None,) * 6
modes, function_modes, profiler_enabled = ops.modes, ops.function_modes, ops.profiler_enabled
tracing_state, transforms_active, in_old_vmap, PLAIN = (
    ops.tracing_state, ops.transforms_active, ops.in_old_vmap, ops.PLAIN)
autocast_anywhere: Any = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
is_grad_enabled, is_compiling = torch.is_grad_enabled, torch.compiler.is_compiling


def attend(form: int, q: Tensor, k: Tensor, v: Tensor, sides: Sides, options: tuple[Any, ...],
           return_lse: bool) -> tuple[Tensor, Tensor | None]:
    """(o, lse), lse None unless it is asked for. options: calls.Options, of the right types."""
    if is_compiling():
        traced.check_known(softcap=options[5], scale=options[6])
        return in_python(form, q, k, v, sides, options, return_lse)
    if native.forward is None: native.load()
    if q.is_cpu and not options[9]: options = (*options[:9], calls.threads_for(q), *options[10:])  # max_sms
    with_grad, ticket = requires_grad(q, k, v, sides[0]), 0
    if native.forward is not None and quick(q, k, v, sides, options):
        number, purpose = native.number_of(options), GRADIENTS if with_grad else return_lse
        try: o, lse, ticket = native.forward(q, k, v, *sides, number, form, purpose)
        except RuntimeError: ticket = native.NOT_HERE  # a tensor without memory that PyTorch knows; said below
        if ticket == native.DONE:
            if not with_grad: return o, lse if return_lse else None
            rest = (sides[0], (o, lse), sides, options, number, form)
            if not return_lse: return recorded(q, k, v, *rest), None
            pair: tuple[Tensor, Tensor] = recorded_pair(q, k, v, *rest)
            return pair
        if ticket < native.LIBRARY_SAYS: raise native.error(ticket)
    if ticket <= 0: return in_python(form, q, k, v, sides, options, return_lse)
    # The native operators take the next such call. Checkpointing computes a call again and wants tensors of the same
    # shapes to be saved, so the first one saves what the next ones save.
    saves_as_native = with_grad and form != 0
    with torch.no_grad() if saves_as_native else contextlib.nullcontext():
        o, of_rows = in_python(form, q, k, v, sides, options, return_lse or saves_as_native)
    native.keep(ticket, calls.forward_ready((*rows_first(form, q, k, v), *sides), options, with_grad))
    if not saves_as_native or of_rows is None: return o, of_rows
    saved = (sides[0], (o, of_rows), sides, options, native.number_of(options), form)
    if not return_lse: return recorded(q, k, v, *saved), None
    both: tuple[Tensor, Tensor] = recorded_pair(q, k, v, *saved)
    return both


def attend_by_row(q: Tensor, k: Tensor, v: Tensor, sides: Sides, options: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """attend with lse_by_row: lse is written so where nobody records or looks, else it is a copy."""
    if is_compiling() or requires_grad(q, k, v, sides[0]) or not quick(q, k, v, sides, options):
        o, lse = attend(ROWS_FIRST, q, k, v, sides, options, True)
        return o, turned(lse, True)
    q, k, v = computable(q, k, v, False)
    check_axes(q.shape, k.shape, bool(options[2]))
    not_given = (False, None, None, None)  # with_grad, held_lse, max_logit, gate
    rest: Any = (*sides, *options, True, *not_given, True)
    found: Any = calls.forward(None, q, k, v, *rest)
    return found[0], found[1]


def turned(lse: Any, by_row: bool) -> Any:
    """lse [..., heads, rows] as [..., rows, heads] where that is asked for."""
    return lse.transpose(-1, -2).contiguous() if by_row else lse


def quick(q: Tensor, k: Tensor, v: Tensor, sides: Sides, options: tuple[Any, ...]) -> bool:
    """Nobody would see the difference: no mode, profiler, tracer or transform, no subclass of Tensor, no cast."""
    if (modes() or function_modes() or profiler_enabled() or tracing_state() or transforms_active() or
            autocast_anywhere() or forward_ad._current_level >= 0): return False
    if type(q) not in PLAIN or type(k) not in PLAIN or type(v) not in PLAIN or q.is_meta: return False
    if q.is_neg() or k.is_neg() or v.is_neg(): return False
    if sides is NO_SIDES: return True
    if sides[1] is not None and (options[0] == LOOK or options[1] == LOOK): return False  # read on the host
    return all(x is None or type(x) in PLAIN and not x.is_neg() for x in sides)


def in_python(form: int, q: Tensor, k: Tensor, v: Tensor, sides: Sides, options: tuple[Any, ...],
              return_lse: bool) -> tuple[Tensor, Tensor | None]:
    """attend with all of its checks."""
    if not is_compiling() and type(q) not in PLAIN: sharding.register()
    if not (is_dense(q) and is_dense(k) and is_dense(v)): computable(q, k, v, False)  # they may have no shape
    q, k, v = rows_first(form, q, k, v)
    q, k, v = computable(q, k, v, False)
    check_sides(sides, q)
    if not form and not is_compiling(): check_axes(q.shape, k.shape, bool(options[2]))
    with_grad = requires_grad(q, k, v, sides[0]) or recorded_outside(q, k, v, sides[0])
    said_by = traced.caller() if is_compiling() else ""
    arguments = (q, k, v, *sides, *options, said_by, return_lse or with_grad, with_grad)
    o, lse = ops.forward_op(*arguments) if is_compiling() else ops.eager_forward(with_grad, *arguments)
    return o.transpose(1, 2) if form == HEADS_FIRST else o, lse if return_lse else None


def rows_first(form: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v as [batch, seq, heads, dim]."""
    return (q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)) if form else (q, k, v)


def requires_grad(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> bool:
    return is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad or (
        sink is not None and sink.requires_grad))


def recorded_outside(*tensors: Tensor | None) -> bool:
    """Whether gradients are recorded outside of a vmap, which hides that from who looks at its tensors."""
    if is_compiling() or not (transforms_active() and is_grad_enabled()): return False
    for x in tensors:
        while x is not None and ops.is_wrapped(x):
            x = ops.unwrapped(x)
            if x.requires_grad: return True
    return False


def computable(q: Tensor, k: Tensor, v: Tensor, of_8_bits: bool) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v in the type of autocast, dense and on a device that computes; 8-bit ones as they are."""
    if not (type(q) in PLAIN and type(k) in PLAIN and type(v) in PLAIN or is_compiling()):
        sharding.check_mixed(dict(q=q, k=k, v=v))
    if (device := q.device.type) in DEVICES:
        if not of_8_bits and torch.is_autocast_enabled(device): q, k, v = autocast(q, k, v)
    elif device != "meta":
        raise Unsupported(f"q must be on the CPU or an NVIDIA Hopper GPU, but is on {q.device}. Use q.cpu() or "
                          "q.cuda().")
    if not (is_dense(q) and is_dense(k) and is_dense(v)):
        way = all_dense_of({name: x for name, x in (("q", q), ("k", k), ("v", v)) if not is_dense(x)})
        raise InvalidType(f"q, k and v must be dense, but have the layouts {layout_of(q)}, {layout_of(k)} and "
                          f"{layout_of(v)}. Use {way}.")
    return q, k, v


def check_sides(sides: Sides, q: Tensor) -> None:
    """That nothing beside q, k and v has a layout which no operator takes, or is a DTensor by itself."""
    if is_compiling() or sides is NO_SIDES: return  # PyTorch 2.11 compiles no "is" of tuples
    if type(q) not in PLAIN or any(x is not None and type(x) not in PLAIN for x in sides):
        sharding.check_mixed(dict(zip(("q", *NAMES_OF_SIDES), (q, *sides))))
    for name, x in zip(NAMES_OF_SIDES, sides):
        if x is not None and not is_dense(x): check_dense(name, x)


def autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """In the type of autocast, as PyTorch casts the operands of its own attention: all but float64."""
    dtype = torch.get_autocast_dtype(q.device.type)
    made = [x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in (q, k, v)]
    return made[0], made[1], made[2]


def save(ctx: Any, q: Tensor, k: Tensor, v: Tensor, found: tuple[Tensor, Tensor], sides: Sides,
         *rest: Any) -> tuple[Tensor, Tensor]:
    ctx.set_materialize_grads(False)
    if sides is NO_SIDES: ctx.save_for_backward(q, k, v, *found)
    else: ctx.save_for_backward(q, k, v, *found, *sides)
    ctx.rest = rest
    return found


class _Recorded(torch.autograd.Function):
    """The gradients of o, which is computed already."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, *rest: Any) -> Any:
        return save(ctx, q, k, v, *rest)[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any: return *gradients(ctx, grads[0], None), *NO_GRADIENTS


class _RecordedPair(torch.autograd.Function):
    """The gradients of o and lse."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, *rest: Any) -> Any:
        return save(ctx, q, k, v, *rest)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any: return *gradients(ctx, *grads), *NO_GRADIENTS


NO_GRADIENTS = (None,) * 5  # of what apply is given withs q, k, v and sink
# PyTorch's own apply, without Function.apply around it: that looks for transforms of torch.func, as quick() has.
recorded: Any = super(torch.autograd.Function, _Recorded).apply
recorded_pair: Any = super(torch.autograd.Function, _RecordedPair).apply


def gradients(ctx: Any, grad_o: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    """Of q, k, v and sink."""
    if grad_o is None and grad_lse is None: return None, None, None, None
    q, k, v, o, lse, *given = ctx.saved_tensors
    sides, (options, number, form) = given or NO_SIDES, ctx.rest
    if grad_o is None: grad_o = torch.zeros_like(o)
    ticket = 0
    if not (is_grad_enabled() or is_compiling() or modes() or function_modes() or profiler_enabled() or tracing_state()
            or transforms_active() or forward_ad._current_level >= 0 or type(grad_o) not in PLAIN or
            in_old_vmap(grad_o) or (grad_lse is not None and in_old_vmap(grad_lse))):
        assert native.backward is not None  # it computed the forward pass
        grad_q, grad_k, grad_v, grad_sink, ticket = native.backward(grad_o, grad_lse, q, k, v, o, lse, *sides, number,
                                                                    form)
        if ticket == native.DONE: return grad_q, grad_k, grad_v, None if sides[0] is None else grad_sink
        if ticket < native.LIBRARY_SAYS: raise native.error(ticket)
    q, k, v = rows_first(form, q, k, v)
    if form == HEADS_FIRST: o, grad_o = o.transpose(1, 2), grad_o.transpose(1, 2)
    found = ops.gradients_of(grad_o, grad_lse, q, k, v, o, lse, sides, (*options, ""))
    if ticket > 0 and lse.is_contiguous() and (grad_lse is None or grad_lse.is_contiguous()):
        native.keep(ticket, calls.backward_ready((q, k, v, *sides), options, o, lse, grad_o, grad_lse))
    if form: return *(x.transpose(1, 2) for x in found[:3]), found[3]
    return found
