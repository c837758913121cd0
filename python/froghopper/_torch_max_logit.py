# SPDX-License-Identifier: Apache-2.0
"""attention(return_max_logit=True) of PyTorch: operators beside those of _torch_ops.py, so that calls which do not ask
for it are what they were.

    froghopper::forward_max_logit   o, lse and max_logit; o and lse have gradients, max_logit has none
    froghopper::attend              the same into tensors that are there, also of 8-bit k and v; merges: they become
                                    those over these keys too. Without gradients
"""
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from froghopper import _torch_8_bit as scaled
from froghopper import _torch_calls as calls
from froghopper import _torch_ops as ops
from froghopper._call import check_held
from froghopper._errors import InvalidProblem, Unsupported
from froghopper._torch_calls import check_dense
from froghopper._torch_library import library_of

_library = library_of(__name__)
_library.define(f"forward_max_logit({ops.INPUTS.format('')}, {ops.OPTIONS}, bool with_lse, bool with_grad) -> "
                    "(Tensor, Tensor, Tensor)")
_library.define(f"attend(Tensor(a!) o, Tensor(b!)? lse, Tensor(c!) max_logit, {ops.INPUTS.format('')}, "
                    "Tensor? scale_q, Tensor? scale_k, Tensor? scale_v, Tensor? mean_k, Tensor? mean_v, "
                    f"{ops.OPTIONS}, bool merges) -> ()")
forward_op: Any = torch.ops.froghopper.forward_max_logit.default
attend_op: Any = torch.ops.froghopper.attend.default


def attention(held: Any, out: Tensor | None, out_dtype: torch.dtype | None, with_grad: bool, return_lse: bool,
              inputs: tuple[Any, ...], scales: tuple[Tensor | None, ...], options: tuple[Any, ...]) -> tuple[Any, ...]:
    """(o, lse, max_logit), lse None where nobody asks for it. held: attention's accumulate."""
    q, k, v = inputs[:3]
    if held is not None: check_merged(held, out, out_dtype)
    for name, x in (("out", out), *zip(ops.SCALES, scales)):
        if x is not None: check_dense(name, x)
    if held is None and out is None and not of_8_bits(q, k):
        found = plain_forward(with_grad, *inputs, *options, return_lse or with_grad, with_grad)
        return found[0], found[1], found[2]
    if with_grad or (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (out, *(held or ())))):
        raise Unsupported("return_max_logit is given with accumulate, out or 8-bit k and v, and a tensor requires a "
                          "gradient; these have none. Leave out accumulate and out and give k and v in 16 bits, or "
                          "call under torch.no_grad().")
    if held is not None:
        attend_op(*held, *inputs, *scales, *options, True)
        return tuple(held)
    of_o, of_lse = calls.shapes_of(q.shape, v.shape)
    if out is None: out = q.new_empty(of_o, dtype=out_dtype or (torch.bfloat16 if q.dtype in calls.FLOAT8 else q.dtype))
    lse = q.new_empty(of_lse, dtype=torch.float32) if return_lse else None
    largest = new_max_logit(q, inputs[4])
    attend_op(out, lse, largest, *inputs, *scales, *options, False)
    return out, lse, largest


def check_merged(held: Any, out: Tensor | None, out_dtype: torch.dtype | None) -> None:
    """accumulate, where it has three tensors."""
    for at, _ in enumerate(check_held(held, True, "tensors")): check_dense(f"accumulate[{at}]", held[at])
    if out is not None or out_dtype not in (None, torch.float32):
        raise InvalidProblem(f"accumulate is given and {'out' if out is not None else 'out_dtype'} too; results are "
                             "merged with what accumulate holds, in float32. Leave it out.")


def of_8_bits(q: Tensor, k: Tensor) -> bool: return q.dtype in calls.FLOAT8 or k.dtype in calls.FLOAT8


def new_max_logit(q: Tensor, cu_seqlens_q: Tensor | None) -> Tensor:
    return q.new_empty(calls.max_logit_shape(q.shape, cu_seqlens_q), dtype=torch.float32)


def forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    largest = new_max_logit(q, rest[1])
    write: Any = calls.forward
    o, lse = write(None, q, k, v, *rest, max_logit=largest)
    return o, ops.no_lse(q) if lse is None else lse, largest


def attend(o: Tensor, lse: Tensor | None, largest: Tensor, *rest: Any) -> None:
    inputs, scales = rest[:ops.FIRST_OPTION], rest[ops.FIRST_OPTION:-ops.OPTION_COUNT - 1]
    options, merges = rest[-ops.OPTION_COUNT - 1:-1], rest[-1]
    held = lse if merges else None
    plain: Any = calls.forward
    narrow: Any = scaled.forward
    if of_8_bits(*inputs[:2]): found = narrow(o, *inputs, *scales, *options, o.dtype, lse is not None, held, largest)
    else: found = plain(o, *inputs, *options, lse is not None, False, held, largest)
    if lse is not None and not merges: lse.copy_(found[1])
    for x in (o, lse, largest):
        if x is not None: torch.autograd.graph.increment_version(x)


def fake_forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return *ops.fake_forward(q, k, v, *rest), new_max_logit(q, rest[1])


class Transformed(torch.autograd.Function):
    """The gradients under torch.func, which wants the context set up apart."""
    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, rest: tuple[Any, ...]) -> Any:
        return forward_op(q, k, v, sink, *rest)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: keep(ctx, (*inputs[:4], *inputs[4]), output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any: return *ops.four_gradients(ctx, *grads[:2]), None


def plain_forward(with_grad: bool, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, *rest: Any) -> Any:
    if torch.compiler.is_compiling(): return forward_op(q, k, v, sink, *rest)
    if forward_ad._current_level >= 0: ops.check_tangents(dict(zip(ops.NAMES, (q, k, v, sink, *rest))))
    if with_grad and ops.transforms_active(): return Transformed.apply(q, k, v, sink, rest)
    return forward_op(q, k, v, sink, *rest)


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[2])
    ops.keep(ctx, inputs, output[:2])


def gradients(ctx: Any, grad_o: Tensor | None, grad_lse: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    return ops.gradients(ctx, grad_o, grad_lse)


def vmap_forward(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
    folded, batch = ops.fold(info, in_dims, arguments, range(3))
    o, lse, largest = forward_op(*folded)
    unfold = ops.unfold
    outputs = unfold(info, o, batch), unfold(info, lse, batch) if arguments[-2] else lse, unfold(info, largest, batch)
    return outputs, (0, 0 if arguments[-2] else None, 0)


ops.register_kernels(_library, forward_op, forward, fake_forward)
ops.register_kernels(_library, attend_op, attend, lambda *arguments: None, ops.HELD)
ops.register_derivatives(_library, forward_op, gradients, keep)
ops.register_derivatives(_library, attend_op)
torch.library.register_vmap("froghopper::forward_max_logit", vmap_forward, lib=_library)
