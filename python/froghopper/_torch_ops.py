# SPDX-License-Identifier: Apache-2.0
"""The operators of froghopper in PyTorch: schemas, and what they do on the CPU, on a GPU, without memory (meta and
fake tensors), for autograd and under vmap.

    froghopper::forward        o and lse
    froghopper::forward_out    the same into a tensor that is there; without gradients
    froghopper::forward_8_bit  o and lse of 8-bit k and v; without gradients
    froghopper::merge          o and lse of earlier calls become those over these keys too; without gradients
    froghopper::backward       gradients of q, k, v and sink; without gradients of its own

They are made with torch.library.Library, whose calls cost the host less than those of torch.library.custom_op. All
arguments are given in order; none has a default. froghopper/torch.py is how they are called.
"""
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from froghopper import _torch_8_bit as scaled
from froghopper import _torch_calls as calls
from froghopper import _torch_traced as traced
from froghopper._axes import check_axes
from froghopper._call import check_heads, check_rank
from froghopper._errors import Error, Unsupported
from froghopper._torch_library import library_of

INPUTS = ("Tensor q, Tensor k, Tensor v, {0}Tensor? sink, Tensor? cu_seqlens_q, Tensor? cu_seqlens_kv, "
          "Tensor? seqused_q, Tensor? seqused_kv, Tensor? alibi_slopes")
OPTIONS = ("SymInt max_seqlen_q, SymInt max_seqlen_kv, bool causal, SymInt window_left, SymInt window_right, "
           "float softcap, float? scale, bool top_left, bool deterministic, SymInt max_sms, SymInt attention_chunk, "
           "bool invariant, str caller")  # caller: of _torch_traced.py; "" where errors are told by who calls
NAMES = calls.Inputs._fields  # of what comes first, then of what 8-bit k and v have besides
SCALES = ("scale_q", "scale_k", "scale_v", "mean_k", "mean_v")
FIRST_OPTION, OPTION_COUNT = len(NAMES), len(calls.Options._fields)  # options without caller, as kernels get them

_library = library_of(__name__)
_library.define(f"forward({INPUTS.format('')}, {OPTIONS}, bool with_lse, bool with_grad) -> (Tensor, Tensor)")
_library.define(f"forward_out(Tensor(a!) out, {INPUTS.format('')}, {OPTIONS}, bool with_lse) -> Tensor")
_library.define(f"forward_8_bit({INPUTS.format('')}, Tensor? scale_q, Tensor? scale_k, Tensor? scale_v, "
                f"Tensor? mean_k, Tensor? mean_v, {OPTIONS}, "
                "ScalarType? out_dtype, bool with_lse) -> (Tensor, Tensor)")
_library.define(f"merge(Tensor(a!) o, Tensor(b!) lse, {INPUTS.format('')}, Tensor? scale_q, Tensor? scale_k, "
                f"Tensor? scale_v, Tensor? mean_k, Tensor? mean_v, {OPTIONS}) -> ()")
_library.define(f"backward(Tensor grad_o, Tensor? grad_lse, {INPUTS.format('Tensor o, Tensor lse, ')}, {OPTIONS}) -> "
                "(Tensor, Tensor, Tensor, Tensor)")
forward_op = torch.ops.froghopper.forward.default
forward_out_op = torch.ops.froghopper.forward_out.default
forward_8_bit_op = torch.ops.froghopper.forward_8_bit.default
merge_op = torch.ops.froghopper.merge.default
backward_op = torch.ops.froghopper.backward.default

# How a kernel for autograd goes on below it, as those of torch.library.register_autograd do; and whether torch.func is
# at work.
below_autograd: Any = torch._C._AutoDispatchBelowAutograd
KEYS_BELOW: Any = getattr(torch._C, "_after_autograd_keyset")
transforms_active: Any = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)
# How unseen() asks. A PyTorch that lacks one of them answers that somebody looks.
modes: Any = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)
function_modes: Any = getattr(torch._C, "_len_torch_function_stack", lambda: 1)
profiler_enabled: Any = getattr(torch._C._autograd, "_profiler_enabled", lambda: True)
tracing_state: Any = getattr(torch._C, "_get_tracing_state", lambda: True)
in_old_vmap: Any = getattr(torch._C._functorch, "is_legacy_batchedtensor", lambda x: True)
is_wrapped: Any = getattr(torch._C._functorch, "is_functorch_wrapped_tensor", lambda x: False)  # by torch.func
unwrapped: Any = getattr(torch._C._functorch, "get_unwrapped", None)
PLAIN = (Tensor, torch.nn.Parameter)


def forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    o, lse = calls.forward(None, q, k, v, *rest)
    return o, no_lse(q) if lse is None else lse


def forward_out(out: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
    _, lse = calls.forward(out, q, k, v, *rest)
    torch.autograd.graph.increment_version(out)
    return no_lse(q) if lse is None else lse


def forward_8_bit(q: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    o, lse = scaled.forward(None, q, *rest)
    return o, no_lse(q) if lse is None else lse


def merge(o: Tensor, lse: Tensor, *rest: Any) -> None:
    """Of k and v that are not 8-bit, and of those that are."""
    inputs, scales, options = rest[:FIRST_OPTION], rest[FIRST_OPTION:-OPTION_COUNT], rest[-OPTION_COUNT:]
    plain: Any = calls.forward
    of_8_bits: Any = scaled.forward
    if any(x is not None for x in scales): of_8_bits(o, *inputs, *scales, *options, torch.float32, True, lse)
    else: plain(o, *inputs, *options, True, False, lse)
    for x in (o, lse): torch.autograd.graph.increment_version(x)


def no_lse(q: Tensor) -> Tensor: return q.new_empty((0,), dtype=torch.float32)


def fake_forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    check_known((q, k, v, *rest))
    o, lse = calls.shapes_of(q.shape, v.shape)
    return q.new_empty(o), q.new_empty(lse if rest[-2] else (0,), dtype=torch.float32)


def fake_forward_out(out: Tensor, *arguments: Any) -> Tensor:
    check_known(arguments)
    _, lse = calls.shapes_of(arguments[0].shape, arguments[2].shape)
    return out.new_empty(lse if arguments[-1] else (0,), dtype=torch.float32)


def fake_forward_8_bit(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    o, lse = calls.shapes_of(q.shape, v.shape)
    of_o = rest[-2] or (torch.bfloat16 if q.dtype in calls.FLOAT8 else q.dtype)
    return q.new_empty(o, dtype=of_o), q.new_empty(lse if rest[-1] else (0,), dtype=torch.float32)


def fake_backward(grad_o: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
                  sink: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    of_sink = q.new_empty((0,) if sink is None else sink.shape, dtype=torch.float32)
    return q.new_empty(q.shape), q.new_empty(k.shape), q.new_empty(v.shape), of_sink


def check_known(arguments: tuple[Any, ...]) -> None:
    """The checks of shapes and types, where all extents are numbers; else they are made when it runs."""
    inputs, options = arguments[:FIRST_OPTION], arguments[FIRST_OPTION:][:OPTION_COUNT]
    extents = [extent for x in inputs if x is not None for extent in x.shape]
    if any(type(number) is torch.SymInt for number in (*extents, *options)): return
    q, k = inputs[:2]
    calls.check(calls.Inputs(*inputs), calls.Options(*options))
    where = traced.line_of_axes()
    if where is not None: check_axes(q.shape, k.shape, bool(calls.Options(*options).causal), where)
    check_heads(q.shape, k.shape)


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """For the backward pass: what was read, and what came of it."""
    if not inputs[-2]:
        raise Unsupported("return_lse must be True here, as q, k, v or sink requires a gradient and the backward pass "
                          "reads lse, but is False. Use return_lse=True.")
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:3], *output, *inputs[3:FIRST_OPTION])
    ctx.options = inputs[FIRST_OPTION:FIRST_OPTION + OPTION_COUNT + 1]


def gradients(ctx: Any, grad_o: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    """Of all arguments of forward."""
    return (*four_gradients(ctx, grad_o, grad_lse), *[None] * (FIRST_OPTION - 4 + OPTION_COUNT + 3))


def four_gradients(ctx: Any, grad_o: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    """Of q, k, v and sink."""
    if grad_o is None and grad_lse is None: return None, None, None, None
    q, k, v, o, lse, *sides = ctx.saved_tensors
    if grad_o is None: grad_o = torch.zeros_like(o)
    return gradients_of(grad_o, grad_lse, q, k, v, o, lse, sides, ctx.options)


def gradients_of(grad_o: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
                 sides: Any, options: Any) -> tuple[Any, ...]:
    """The same, of what was saved. sides: sink, lengths and slopes. options: with caller."""
    if forward_ad._current_level >= 0: check_tangents({"grad_o": grad_o, "grad_lse": grad_lse})
    arguments = (grad_o, grad_lse, q, k, v, o, lse, *sides, *options)
    if transforms_active(): grads = TransformedBackward.apply(*arguments)
    elif torch.is_grad_enabled() or torch.compiler.is_compiling(): grads = backward_op(*arguments)
    elif unseen(*arguments[:13]) and not any(x is not None and in_old_vmap(x) for x in arguments[:2]):
        grads = calls.backward(*arguments[:-1])
    else:
        with below_autograd(): grads = backward_op(*arguments)
    return *grads[:3], None if sides[0] is None else grads[3]


def second(ctx: Any, *grads: Any) -> Any:
    raise Unsupported("the gradient of a gradient of attention is asked for; froghopper has first derivatives alone. "
                      "Use torch.nn.functional.scaled_dot_product_attention with SDPBackend.MATH for it.")


def forward_mode(ctx: Any, *tangents: Any) -> Any:
    raise Unsupported("a tangent of forward-mode differentiation is given; froghopper has gradients in reverse alone. "
                      "Use torch.func.vjp, or torch.func.jacrev for all rows.")


class Eager(torch.autograd.Function):
    """The gradients of froghopper::forward outside of compiled code, at a tenth of the host's time that the operator's
    own registration takes: PyTorch sees five arguments, not twenty."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, rest: tuple[Any, ...]) -> Any:
        output: Any
        if unseen(q, k, v, sink, *rest[:5]): output = calls.forward(None, q, k, v, sink, *rest[:-3], *rest[-2:])
        else:
            with below_autograd(): output = forward_op(q, k, v, sink, *rest)
        keep(ctx, (q, k, v, sink, *rest), output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any: return *four_gradients(ctx, *grads), None


class Transformed(torch.autograd.Function):
    """The same under torch.func, which wants the context set up apart."""
    generate_vmap_rule = True

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, rest: tuple[Any, ...]) -> Any:
        return forward_op(q, k, v, sink, *rest)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: keep(ctx, (*inputs[:4], *inputs[4]), output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any: return *four_gradients(ctx, *grads), None

    jvp = staticmethod(forward_mode)


class TransformedBackward(torch.autograd.Function):
    """The backward pass under torch.func, which records it as what may be differentiated again."""
    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> Any: return backward_op(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: return None

    backward, jvp = staticmethod(second), staticmethod(forward_mode)


def eager_forward(with_grad: bool, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, *rest: Any) -> Any:
    """forward_op outside of compiled code; rest: the arguments behind sink."""
    if forward_ad._current_level >= 0: check_tangents(dict(zip(NAMES, (q, k, v, sink, *rest))))
    if transforms_active():
        return Transformed.apply(q, k, v, sink, rest) if with_grad else forward_op(q, k, v, sink, *rest)
    if with_grad: return Eager.apply(q, k, v, sink, rest)
    if unseen(q, k, v, sink, *rest[:5]): return calls.forward(None, q, k, v, sink, *rest[:-3], *rest[-2:])
    with below_autograd(): return forward_op(q, k, v, sink, *rest)


def eager_forward_out(out: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
    """forward_out_op outside of compiled code."""
    if transforms_active() or not unseen(out, q, k, v, *rest[:6]):
        found: Tensor = forward_out_op(out, q, k, v, *rest)
        return found
    if forward_ad._current_level >= 0: check_tangents(dict(zip(("out", *NAMES), (out, q, k, v, *rest))))
    return forward_out(out, q, k, v, *rest[:-2], rest[-1])


def eager_8_bit_out(out: Tensor, *rest: Any) -> tuple[Tensor, Tensor | None]:
    """forward_8_bit into out. There is no operator for it."""
    if forward_ad._current_level >= 0: check_tangents(dict(zip(("out", *NAMES, *SCALES), (out, *rest))))
    if torch.is_grad_enabled(): refuse_gradients(dict(zip((*NAMES, *SCALES), rest)))
    found = scaled.forward(out, *rest[:-3], *rest[-2:])
    torch.autograd.graph.increment_version(out)
    return found


def refuse_writing(what: str, *tensors: Tensor | None) -> None:
    """Of a call that writes to tensors of the caller. What torch.func wraps has no memory that a call could write, and
    PyTorch would say so in its own words. Tangents are told of by check_tangents."""
    if torch.compiler.is_compiling() or not transforms_active() or forward_ad._current_level >= 0: return
    if any(isinstance(x, Tensor) and is_wrapped(x) for x in tensors):
        raise Unsupported(f"{what} under a transform of torch.func, such as vmap, which gives its tensors no memory "
                          "that could be written. Call outside of it, or give nothing to write to.")


def unseen(*tensors: Tensor | None) -> bool:
    """Nobody would see the operator: no mode, profiler or tracer, no subclass of Tensor, no tensor without memory. Then
    its kernel may be called without it, which saves a quarter of the host's time."""
    return (not (modes() or function_modes() or profiler_enabled() or tracing_state()) and
            all(x is None or (type(x) in PLAIN and not x.is_meta) for x in tensors))


def vmap_forward(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
    """Another batch dimension is part of the batch."""
    folded, batch = fold(info, in_dims, arguments, range(3))
    o, lse = forward_op(*folded)
    outputs = unfold(info, o, batch), unfold(info, lse, batch) if arguments[-2] else lse
    return outputs, (0, 0 if arguments[-2] else None)


def vmap_backward(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
    """Folded as the forward pass is, where that has been mapped and nothing is added up over the batch; else one call
    after the other, which copies nothing that is shared."""
    inputs, slopes = calls.Inputs(*arguments[2:5], *arguments[7:13]), arguments[12]
    shared = slopes is None or (in_dims[12] is None and slopes.ndim == 1)
    if None not in in_dims[2:5] and inputs.sink is None and inputs.cu_seqlens_q is None and shared:
        folded, batch = fold(info, in_dims, arguments, range(7))
        *grads, of_sink = backward_op(*folded)
        return (*(unfold(info, x, batch) for x in grads), of_sink), (0, 0, 0, None)
    each = [backward_op(*(x if dim is None else x.select(dim, at) for x, dim in zip(arguments, in_dims)))
            for at in range(info.batch_size)]
    return tuple(map(torch.stack, zip(*each))), (0, 0, 0, 0)


def fold(info: Any, in_dims: tuple[Any, ...], arguments: tuple[Any, ...], dense: range) -> tuple[list[Any], int]:
    """(arguments with the mapped dimension as part of the batch, the batch before). dense: which have a batch."""
    names = [argument.name for argument in (forward_op if len(dense) == 3 else backward_op)._schema.arguments]
    folded, batch = list(arguments), 0
    for at, (name, x) in enumerate(zip(names, arguments)):
        if not isinstance(x, Tensor): continue
        if name.startswith("cu_seqlens") or (name == "sink" and in_dims[at] is not None):
            raise Unsupported(f"{name} is given under vmap, which maps over dense q, k and v alone. Call without vmap.")
        if name == "alibi_slopes" and (in_dims[at] is not None or x.ndim > 1):
            raise Unsupported("alibi_slopes is mapped by vmap or has a row for each sequence; under vmap all share "
                              "[heads]. Call without vmap.")
        if name in ("sink", "alibi_slopes"): continue
        moved = x.unsqueeze(0).expand(info.batch_size, *x.shape) if in_dims[at] is None else x.movedim(in_dims[at], 0)
        if name in ("q", "k", "v"): check_rank(name, moved.shape[1:], packed=False)
        folded[at], batch = moved.flatten(0, 1), moved.shape[1]
    return folded, batch


def unfold(info: Any, x: Tensor, batch: int) -> Tensor: return x.reshape(info.batch_size, batch, *x.shape[1:])


def check_tangents(arguments: dict[str, Any]) -> None:
    """PyTorch's fallback would drop them without a word."""
    unpack: Any = forward_ad.unpack_dual  # has no types
    for name, x in arguments.items():
        if isinstance(x, Tensor) and unpack(x).tangent is not None:
            raise Unsupported(f"{name} has a tangent of forward-mode differentiation; froghopper has gradients in "
                              "reverse alone. Use torch.func.vjp or backward(); or, to leave the tangent out, give "
                              f"torch.autograd.forward_ad.unpack_dual({name}).primal.")


OF_8_BITS = "attention of 8-bit k and v"


def refuse_gradients(arguments: dict[str, Any], function: str = OF_8_BITS) -> None:
    """Of what has none, under the name that users know."""
    for name, x in arguments.items():
        if isinstance(x, Tensor) and x.requires_grad:
            raise Unsupported(f"{name} requires a gradient; {function} has none. Use {name}.detach(), or call "
                              "under torch.no_grad().")


def register_derivatives(library: Any, op: Any, gradients: Any = None, keep: Any = None,
                         function: str = OF_8_BITS) -> None:
    """What autograd makes of an operator: its gradients, from what keep has saved; refused where it has none."""
    names = [argument.name for argument in op._schema.arguments]

    def below(keyset: Any, *arguments: Any) -> Any:
        with below_autograd(): return op.redispatch(keyset & KEYS_BELOW, *arguments)

    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, keyset: Any, *arguments: Any) -> Any:
            output = below(keyset, *arguments)
            keep(ctx, arguments, output)
            return output

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any: return None, *gradients(ctx, *grads)

    def kernel(keyset: Any, *arguments: Any) -> Any:
        if forward_ad._current_level >= 0: check_tangents(dict(zip(names, arguments)))
        if torch.is_grad_enabled():
            if gradients is None: refuse_gradients(dict(zip(names, arguments)), function)
            elif any(isinstance(x, Tensor) and x.requires_grad for x in arguments):
                return Recorded.apply(keyset, *arguments)
        return below(keyset, *arguments)
    library.impl(op.name(), kernel, "Autograd", with_keyset=True)


HELD = {"o": "accumulate[0]", "lse": "accumulate[1]", "max_logit": "accumulate[2]"}  # of what is merged


def register_kernels(library: Any, op: Any, kernel: Any, fake: Any, names: dict[str, str] = {}) -> None:
    """What an operator does on the CPU and on a GPU, and what it does without memory. names: of arguments that users
    call otherwise."""
    name = op.name().partition("::")[2].partition(".")[0]
    told = [names.get(argument.name, argument.name) for argument in op._schema.arguments]

    def without_memory(*arguments: Any) -> Any:
        check_places(told, arguments)
        return fake(*arguments)
    for device in ("CPU", "CUDA"): library.impl(name, traced.spoken(op, kernel), device)
    torch.library.register_fake(f"froghopper::{name}", traced.spoken(op, without_memory), lib=library)


def check_places(names: list[str], arguments: tuple[Any, ...]) -> None:
    """All tensors are on the device of q: PyTorch takes an operator for one without memory as soon as one of its
    tensors has none. names: of the arguments, tensors first."""
    given = {name: x for name, x in zip(names, arguments) if isinstance(x, Tensor)}
    q = given.get("q", next(iter(given.values())))
    for name, x in given.items(): calls.check_place(name, x, q)


register_kernels(_library, forward_op, forward, fake_forward)
register_kernels(_library, forward_out_op, forward_out, fake_forward_out)
register_kernels(_library, forward_8_bit_op, forward_8_bit, fake_forward_8_bit)
register_kernels(_library, merge_op, merge, lambda *arguments: None, HELD)
register_kernels(_library, backward_op, calls.backward, fake_backward)
register_derivatives(_library, forward_op, gradients, keep)
for _op in (forward_out_op, forward_8_bit_op, merge_op): register_derivatives(_library, _op)
register_derivatives(_library, backward_op, second, lambda *_: None)
torch.library.register_vmap("froghopper::forward", vmap_forward, lib=_library)
torch.library.register_vmap("froghopper::backward", vmap_backward, lib=_library)
