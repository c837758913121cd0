# SPDX-License-Identifier: Apache-2.0
"""The operators of froghopper.torch.context_parallel, as _torch_ops.py has those of froghopper.torch.

    froghopper::context_parallel            o and lse of this rank's rows
    froghopper::context_parallel_backward   gradients of q, k, v and sink, without gradients of its own

A group goes by its name, as in PyTorch's own collectives, so that torch.compile takes a call as one operator.
"""
from typing import Any

import torch
from torch import Tensor

from froghopper import _torch_calls as calls
from froghopper import _torch_cp_calls as parallel
from froghopper import _torch_flops as flops
from froghopper import _torch_ops as ops
from froghopper._errors import Unsupported
from froghopper._torch_cp_layout import Layout
from froghopper._torch_library import library_of

TENSORS = "Tensor q, Tensor k, Tensor v, {0}Tensor? sink, Tensor? alibi_slopes, Tensor? cu_seqlens"
OPTIONS = ("str group, str layout, str scheme, bool causal, SymInt window_left, SymInt window_right, float softcap, "
           "float? scale, bool deterministic, str transfers, SymInt heads_ranks, str kv_dtype")
OPTION_COUNT = 2 + len(parallel.Options._fields)
_library = library_of(__name__)
_library.define(f"context_parallel({TENSORS.format('')}, {OPTIONS}, bool with_grad) -> (Tensor, Tensor)")
_library.define("context_parallel_backward(Tensor grad_o, Tensor? grad_lse, "
                    f"{TENSORS.format('Tensor o, Tensor lse, ')}, {OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)")
forward_op: Any = torch.ops.froghopper.context_parallel.default
backward_op: Any = torch.ops.froghopper.context_parallel_backward.default


def forward(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, slopes: Tensor | None, documents: Tensor | None,
            group: str, layout: Layout, *rest: Any) -> tuple[Tensor, Tensor]:
    *options, with_grad = rest
    return parallel.forward(q, k, v, sink, slopes, documents, group, layout, parallel.Options(*options), with_grad)


def backward(grad_o: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
             sink: Tensor | None, slopes: Tensor | None, documents: Tensor | None, group: str, layout: Layout,
             *options: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return parallel.backward(grad_o, grad_lse, q, k, v, o, lse, sink, slopes, documents, group, layout,
                             parallel.Options(*options))


def fake_forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    o, lse = calls.shapes_of(q.shape, v.shape)
    return q.new_empty(o), q.new_empty(lse, dtype=torch.float32)


def fake_backward(grad_o: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
                  sink: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    of_sink = q.new_empty((0,) if sink is None else sink.shape, dtype=torch.float32)
    return q.new_empty(q.shape), q.new_empty(k.shape), q.new_empty(v.shape), of_sink


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """For the backward pass: what this rank has given and got, nothing of other ranks."""
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:3], *output, *inputs[3:6])
    ctx.options = inputs[6:6 + OPTION_COUNT]


def gradients(ctx: Any, grad_o: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    """Of all arguments of forward. All ranks take part, also one whose results nobody has used."""
    q, k, v, o, lse, sink, slopes, documents = ctx.saved_tensors
    if grad_o is None: grad_o = torch.zeros_like(o)
    *grads, of_sink = backward_op(grad_o, grad_lse, q, k, v, o, lse, sink, slopes, documents, *ctx.options)
    return *grads, None if sink is None else of_sink, None, None, *[None] * (OPTION_COUNT + 1)


def second(ctx: Any, *grads: Any) -> Any:
    raise Unsupported("the gradient of a gradient of context_parallel.attention is asked for; froghopper has first "
                      "derivatives alone, and a rank has not the rows of the others. On a rank that has all rows of q, "
                      "k and v, such as unshard(x.detach()) gives, use "
                      "torch.nn.functional.scaled_dot_product_attention with SDPBackend.MATH for it.")


flops.count([torch.ops.froghopper.context_parallel], flops.of_rank)
flops.count([torch.ops.froghopper.context_parallel_backward], flops.of_rank_backward)
for _device in ("CPU", "CUDA"):
    _library.impl("context_parallel", forward, _device)
    _library.impl("context_parallel_backward", backward, _device)
torch.library.register_fake("froghopper::context_parallel", fake_forward, lib=_library)
torch.library.register_fake("froghopper::context_parallel_backward", fake_backward, lib=_library)
ops.register_derivatives(_library, forward_op, gradients, keep)
ops.register_derivatives(_library, backward_op, second, lambda *_: None)
