# SPDX-License-Identifier: Apache-2.0
"""attention(gate=...) of PyTorch: operators beside those of _torch_ops.py, so that calls without a gate are what they
were. The native operators do not know gates; Python computes these calls.

    froghopper::forward_gated   o, lse and max_logit; o and lse have gradients, max_logit has none
    froghopper::attend_gated    the same into tensors that are there, also of 8-bit k and v; without gradients
    froghopper::backward_gated  gradients of q, k, v, sink and gate; without gradients of its own
"""
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from froghopper import _torch_8_bit as scaled
from froghopper import _torch_calls as calls
from froghopper import _torch_ops as ops
from froghopper._errors import InvalidProblem, Unsupported
from froghopper._torch_calls import check_dense
from froghopper._torch_library import library_of
from froghopper._torch_max_logit import new_max_logit, of_8_bits

_library = library_of(__name__)
_library.define(f"forward_gated({ops.INPUTS.format('')}, Tensor gate, {ops.OPTIONS}, bool with_lse, "
                    "bool with_grad, bool with_max_logit) -> (Tensor, Tensor, Tensor)")
_library.define(f"attend_gated(Tensor(a!) o, Tensor(b!)? lse, Tensor(c!)? max_logit, {ops.INPUTS.format('')}, "
                    "Tensor gate, Tensor? scale_q, Tensor? scale_k, Tensor? scale_v, Tensor? mean_k, Tensor? mean_v, "
                    f"{ops.OPTIONS}) -> ()")
_library.define("backward_gated(Tensor grad_o, Tensor? grad_lse, "
                    f"{ops.INPUTS.format('Tensor o, Tensor lse, ')}, Tensor gate, {ops.OPTIONS}) -> "
                    "(Tensor, Tensor, Tensor, Tensor, Tensor)")
forward_op: Any = torch.ops.froghopper.forward_gated.default
attend_op: Any = torch.ops.froghopper.attend_gated.default
backward_op: Any = torch.ops.froghopper.backward_gated.default
GATE = ops.FIRST_OPTION  # its place among the arguments of forward
NOT_DIFFERENTIATED = (None,) * (ops.OPTION_COUNT + 4)  # behind it
FLAGS = 3


def attention(held: Any, out: Tensor | None, out_dtype: torch.dtype | None, with_grad: bool, return_lse: bool,
              return_max_logit: bool, gate: Tensor, inputs: tuple[Any, ...], scales: tuple[Tensor | None, ...],
              options: tuple[Any, ...]) -> tuple[Any, ...]:
    """(o, lse, max_logit), None where nobody asks for it. held: attention's accumulate."""
    q, k, v = inputs[:3]
    if held is not None:
        raise InvalidProblem("accumulate and gate are given; each call would multiply all of o by the gate again. "
                             "Leave out gate, and multiply o by torch.sigmoid(gate) after the last call.")
    for name, x in (("gate", gate), ("out", out), *zip(ops.SCALES, scales)):
        if x is not None or name == "gate": check_dense(name, x)
    if not (q.is_meta or of_8_bits(q, k)) and torch.is_autocast_enabled(q.device.type): gate = gate.to(q.dtype)
    if out is None and not of_8_bits(q, k):
        found = plain_forward(with_grad, *inputs, gate, *options, return_lse or with_grad, with_grad, return_max_logit)
        return found[0], found[1], found[2]
    if with_grad or (torch.is_grad_enabled() and out is not None and out.requires_grad):
        raise Unsupported("gate is given with out or 8-bit k and v, and a tensor requires a gradient; these have none. "
                          "Leave out out and give k and v in 16 bits, or call under torch.no_grad().")
    of_o, of_lse = calls.shapes_of(q.shape, v.shape)
    if out is None: out = q.new_empty(of_o, dtype=out_dtype or (torch.bfloat16 if q.dtype in calls.FLOAT8 else q.dtype))
    lse = q.new_empty(of_lse, dtype=torch.float32) if return_lse else None
    largest = new_max_logit(q, inputs[4]) if return_max_logit else None
    attend_op(out, lse, largest, *inputs, gate, *scales, *options)
    return out, lse, largest


def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    inputs, gate, rest = arguments[:GATE], arguments[GATE], arguments[GATE + 1:-1]
    largest = new_max_logit(inputs[0], inputs[4]) if arguments[-1] else None
    write: Any = calls.forward
    o, lse = write(None, *inputs, *rest, max_logit=largest, gate=gate)
    empty = ops.no_lse(inputs[0])
    return o, empty if lse is None else lse, empty.clone() if largest is None else largest


def attend(o: Tensor, lse: Tensor | None, largest: Tensor | None, *rest: Any) -> None:
    inputs, gate, options = rest[:GATE], rest[GATE], rest[-ops.OPTION_COUNT:]
    plain: Any = calls.forward
    narrow: Any = scaled.forward
    if of_8_bits(*inputs[:2]):
        found = narrow(o, *inputs, *rest[GATE + 1:], o.dtype, lse is not None, max_logit=largest, gate=gate)
    else: found = plain(o, *inputs, *options, lse is not None, max_logit=largest, gate=gate)
    if lse is not None: lse.copy_(found[1])
    for x in (o, lse, largest):
        if x is not None: torch.autograd.graph.increment_version(x)


def backward(*arguments: Any) -> tuple[Tensor, ...]:
    """grad_o, grad_lse, q, k, v, o, lse, the sides, gate, options."""
    at = GATE + 4
    compute: Any = calls.backward
    found: tuple[Tensor, ...] = compute(*arguments[:at], *arguments[at + 1:], gate=arguments[at])
    return found


def fake_forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, gate = *arguments[:3], arguments[GATE]
    rest = (*arguments[:GATE], *arguments[GATE + 1:-1])
    o, lse = ops.fake_forward(*rest)
    if all(type(extent) is not torch.SymInt for extent in (*gate.shape, *o.shape)):
        calls.check_like("gate", gate, q, tuple(o.shape))
    return o, lse, new_max_logit(q, arguments[4]) if arguments[-1] else ops.no_lse(q)


def fake_backward(*arguments: Any) -> tuple[Tensor, ...]:
    found: Any = ops.fake_backward
    return *found(*arguments), arguments[5].new_empty(arguments[5].shape)


class Transformed(torch.autograd.Function):
    """The gradients under torch.func, which wants the context set up apart."""
    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, gate: Tensor, rest: tuple[Any, ...]) -> Any:
        return forward_op(q, k, v, sink, *rest[:GATE - 4], gate, *rest[GATE - 4:])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        q, k, v, sink, gate, rest = inputs
        keep(ctx, (q, k, v, sink, *rest[:GATE - 4], gate, *rest[GATE - 4:]), output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any: return *five_gradients(ctx, *grads[:2]), None


class TransformedBackward(torch.autograd.Function):
    """The backward pass under torch.func, which records it as what may be differentiated again."""
    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> Any: return backward_op(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: return None

    backward = staticmethod(ops.second)


def plain_forward(with_grad: bool, *arguments: Any) -> Any:
    if torch.compiler.is_compiling(): return forward_op(*arguments)
    if forward_ad._current_level >= 0:
        ops.check_tangents(dict(zip((*ops.NAMES, "gate"), arguments)))
    if with_grad and ops.transforms_active():
        return Transformed.apply(*arguments[:4], arguments[GATE], (*arguments[4:GATE], *arguments[GATE + 1:]))
    return forward_op(*arguments)


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    """For the backward pass: what was read, and what came of it."""
    if not inputs[-FLAGS]:
        raise Unsupported("return_lse must be True here, as q, k, v, sink or gate requires a gradient and the backward "
                          "pass reads lse, but is False. Use return_lse=True.")
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:3], *output[:2], *inputs[3:GATE + 1])
    ctx.options = inputs[GATE + 1:-FLAGS]


def gradients(ctx: Any, grad_o: Tensor | None, grad_lse: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    """Of all arguments of forward."""
    *of_inputs, of_gate = five_gradients(ctx, grad_o, grad_lse)
    return *of_inputs, *[None] * (GATE - 4), of_gate, *NOT_DIFFERENTIATED


def five_gradients(ctx: Any, grad_o: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    """Of q, k, v, sink and gate."""
    if grad_o is None and grad_lse is None: return (None,) * 5
    saved = ctx.saved_tensors
    if grad_o is None: grad_o = torch.zeros_like(saved[3])
    if forward_ad._current_level >= 0: ops.check_tangents({"grad_o": grad_o, "grad_lse": grad_lse})
    arguments = (grad_o, grad_lse, *saved, *ctx.options)
    if ops.transforms_active(): found = TransformedBackward.apply(*arguments)
    elif torch.is_grad_enabled() or torch.compiler.is_compiling(): found = backward_op(*arguments)
    else:
        with ops.below_autograd(): found = backward_op(*arguments)
    return *found[:3], None if saved[5] is None else found[3], found[4]


def one_by_one(op: Any) -> Any:
    """vmap's rule: one call after the other."""
    def rule(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
        each = [op(*(x if dim is None else x.select(dim, at) for x, dim in zip(arguments, in_dims)))
                for at in range(info.batch_size)]
        found = tuple(map(torch.stack, zip(*each)))
        return found, (0,) * len(found)
    return rule


ops.register_kernels(_library, forward_op, forward, fake_forward)
ops.register_kernels(_library, attend_op, attend, lambda *arguments: None, {"o": "out"})
ops.register_kernels(_library, backward_op, backward, fake_backward)
ops.register_derivatives(_library, forward_op, gradients, keep)
ops.register_derivatives(_library, attend_op)
ops.register_derivatives(_library, backward_op, ops.second, lambda *_: None)
torch.library.register_vmap("froghopper::forward_gated", one_by_one(forward_op), lib=_library)
torch.library.register_vmap("froghopper::backward_gated", one_by_one(backward_op), lib=_library)
