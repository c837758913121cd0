# SPDX-License-Identifier: Apache-2.0
"""8-bit k and v of PyTorch, with q alike or of 16 bits -> Call: what froghopper::forward_8_bit does. As in
_torch_calls.py, what is computed is checked when it is met first and then found by a key that has everything but
addresses; scales are never read on the host.
"""
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from froghopper._call import (Call, Strides, Types, cached, check_means, check_scales_are_there, element_strides,
                              mean_of, output_of, plan_of)
from froghopper._errors import InvalidProblem, InvalidTensor, InvalidType, about_o
from froghopper._scales import SCALES_UNLIKE, Scale, scale_of, types_of
from froghopper._torch_calls import (BYTES, DTYPES, FLOAT8, Inputs, Options, Ready, address, aligned, check, check_held,
                                     check_max_logit, check_place, check_side, dense_copy, dense_strides,
                                     gate_strides, kind, longest, must_copy, name_of, name_of_o, problem_of, shapes_of,
                                     slopes_of, stream_of, strides_of, target_of, threads_for, workspace_of)
from froghopper._torch_checks import check_out

BY_NAME = {name: dtype for dtype, name in DTYPES.items()}
_ready: dict[Hashable, Ready] = {}


def forward(out: Tensor | None, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, cu_seqlens_q: Tensor | None,
            cu_seqlens_kv: Tensor | None, seqused_q: Tensor | None, seqused_kv: Tensor | None,
            alibi_slopes: Tensor | None, scale_q: Tensor | None, scale_k: Tensor | None, scale_v: Tensor | None,
            mean_k: Tensor | None, mean_v: Tensor | None, max_seqlen_q: int, max_seqlen_kv: int, causal: bool,
            window_left: int, window_right: int, softcap: float, scale: float | None, top_left: bool,
            deterministic: bool, max_sms: int, attention_chunk: int, invariant: bool, out_dtype: torch.dtype | None,
            with_lse: bool, held_lse: Tensor | None = None,
            max_logit: Tensor | None = None, gate: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """(o, lse) of 8-bit k and v, lse None unless with_lse. held_lse: out and it are merged with what they hold.
    max_logit: written, or merged. gate: o is multiplied by its sigmoid."""
    if cu_seqlens_q is not None:
        max_seqlen_q, max_seqlen_kv = longest(cu_seqlens_q, max_seqlen_q), longest(cu_seqlens_kv, max_seqlen_kv)
    options = (max_seqlen_q, max_seqlen_kv, causal, window_left, window_right, softcap, scale, top_left, deterministic,
               max_sms or threads_for(q), attention_chunk, invariant)
    inputs = Inputs(q, k, v, sink, cu_seqlens_q, cu_seqlens_kv, seqused_q, seqused_kv, alibi_slopes)
    scales = (scale_q, scale_k, scale_v, mean_k, mean_v)
    key = (*map(kind, inputs), *map(kind, scales), kind(out), options, out_dtype, kind(held_lse),
           kind(max_logit), kind(gate))
    ready = _ready.get(key)
    if ready is None:
        ready = cached(_ready, key, lambda: ready_of(inputs, scales, out, Options(*options), out_dtype, held_lse,
                                                     max_logit, gate))
    read = [q, k, v]
    if ready.copied: read = [dense_copy(x) if copy else x for x, copy in zip(read, ready.copied)]
    if gate is not None and must_copy(gate, ready.gpu >= 0): gate = dense_copy(gate)
    if ready.gpu >= 0 and (address(gate) % BYTES or any(x.data_ptr() % BYTES for x in read)):
        q, k, v = map(aligned, read)  # copies lie in another way: a call of their own
        if gate is not None: gate = aligned(gate)
        return forward(out, q, k, v, sink, cu_seqlens_q, cu_seqlens_kv, seqused_q, seqused_kv, alibi_slopes, scale_q,
                       scale_k, scale_v, mean_k, mean_v, *options, out_dtype, with_lse, held_lse, max_logit, gate)
    o = q.new_empty(ready.o_shape, dtype=ready.o_dtype) if out is None else out
    lse = held_lse if held_lse is not None else (
        q.new_empty(ready.lse_shape, dtype=torch.float32) if with_lse else None)
    workspace = workspace_of(q, ready.workspace_bytes) if ready.workspace_bytes else None
    try:
        ready.call.forward_with_all(
            read[0].data_ptr(), read[1].data_ptr(), read[2].data_ptr(), o.data_ptr(), address(lse),
            address(cu_seqlens_q), address(cu_seqlens_kv), address(seqused_q), address(seqused_kv), address(sink),
            address(scale_q), address(scale_k), address(scale_v), address(mean_k), address(mean_v), address(workspace),
            stream_of(ready.gpu) if ready.gpu >= 0 else None, address(alibi_slopes), address(max_logit),
            gate=address(gate))
    except InvalidTensor as error: raise about_o(error, held_lse is not None, q.shape)
    return o, lse


def ready_of(inputs: Inputs, scales: tuple[Tensor | None, ...], out: Tensor | None, options: Options,
             out_dtype: torch.dtype | None, held_lse: Tensor | None, max_logit: Tensor | None,
             gate: Tensor | None) -> Ready:
    o_dtype, types, lie = check_scaled(inputs, scales, options, out_dtype)
    q, k, v = inputs[:3]
    if max_logit is not None: check_max_logit(max_logit, inputs)
    o_shape, lse_shape = shapes_of(q.shape, v.shape)
    if out is not None and held_lse is not None: check_held(out, held_lse, q, o_shape, lse_shape)
    elif out is not None: check_out(out, q, o_dtype, o_shape, True)
    if gate is not None: check_side("gate", gate, q, o_dtype, o_shape)
    index, target = target_of(q)
    plan = plan_of(problem_of(inputs, options, backward=False, types=types, merges=held_lse is not None,
                              max_logit=max_logit is not None, gate=gate is not None), target)
    copied = tuple(must_copy(x, index >= 0) for x in inputs[:3])
    of_o = dense_strides(o_shape) if out is None else element_strides(
        name_of_o(held_lse), out.shape, out.stride())
    strides = [dense_strides(x.shape) if copy else strides_of(x) for x, copy in zip((q, k, v), copied)]
    gates = [] if gate is None else [gate_strides(gate, must_copy(gate, index >= 0))]
    return Ready(Call(plan, [*strides, of_o, *lie], slopes_of(inputs), gates=gates), o_shape, lse_shape,
                 copied if any(copied) else (), index, plan.workspace_bytes, o_dtype)


def check_scaled(inputs: Inputs, scales: tuple[Tensor | None, ...], options: Options,
                 out_dtype: torch.dtype | None) -> tuple[torch.dtype, Types, list[Strides]]:
    """The checks of everything that is read; the type of o, what goes into the problem, how scales and means lie."""
    q, k, v = inputs[:3]
    names = [name_of(x.dtype) for x in (q, k, v)]
    of_o = output_of(names[0], names[1], names[2], None if out_dtype is None else name_of(out_dtype),
                     list(DTYPES.values()))
    check(inputs, options, of_8_bits=True)
    begins = inputs.cu_seqlens_q
    batch = q.shape[0] if begins is None else begins.shape[0] - 1
    rows_q = q.shape[1] if begins is None else options.max_seqlen_q
    rows_kv = k.shape[1] if begins is None else options.max_seqlen_kv
    check_scales_are_there(dict(zip(("scale_q", "scale_k", "scale_v"), scales)), names)
    lie: list[Scale] = []
    for name, scale, x, rows, dim in zip(("scale_q", "scale_k", "scale_v"), scales, (q, k, v),
                                         (rows_q, rows_kv, rows_kv), (0, 0, v.shape[-1])):
        if scale is not None:
            check_place(name, scale, q)
            if scale.dtype != torch.float32:
                raise InvalidType(f"{name} must be float32, but is {name_of(scale.dtype)}. Use {name}.float().")
        lie.append(scale_of(name, () if scale is None else scale.shape, () if scale is None else scale.stride(), batch,
                            rows, x.shape[-2], dim, () if x is q else x.shape[:-1]))
    means = []
    for name, mean, x in zip(("mean_k", "mean_v"), scales[3:], (k, v)):
        if mean is not None:
            check_place(name, mean, q)
            if mean.dtype != torch.float32:
                raise InvalidType(f"{name} must be float32, but is {name_of(mean.dtype)}. Use {name}.float().")
        means.append((0, 0, 0) if mean is None else
                     mean_of(name, mean.shape, mean.stride(), batch, x.shape[-2], x.shape[-1]))
    return (BY_NAME[of_o], types_of(names[1], of_o, lie, check_means(*scales[3:])),
            [*(x.strides for x in lie), *means])


def own_scales(given: Any) -> bool:
    """Whether each row of a float8 cache gets a scale of its own. given: what append_kv is given."""
    own = set()
    for name, scale, cache in (("scale_k", given.scale_k, given.k_cache), ("scale_v", given.scale_v, given.v_cache)):
        if cache is None or cache.dtype not in FLOAT8:
            if scale is not None:
                raise InvalidType(f"{name} must be None with {name[-1]}_cache that is "
                                  f"{'None' if cache is None else name_of(cache.dtype)}, as only float8 has scales, "
                                  "but is given. Leave it out.")
            continue
        if scale is None:
            raise InvalidType(f"{name} must be given with {name[-1]}_cache of {name_of(cache.dtype)}, as what is "
                              "stored is a number divided by it, but is None. Give 1 where values stand for "
                              "themselves.")
        heads, rows, found = cache.shape[2], tuple(cache.shape[:3]), tuple(scale.shape)
        if scale.dtype != torch.float32 or found not in ((), (1,), (heads,), rows, (*rows, 1)):
            raise InvalidType(f"{name} must be float32 and [], [1], [heads] {[heads]}, or {list(cache.shape[:3])} for "
                              f"a scale of each row, but is {name_of(scale.dtype)} with the shape {list(found)}. "
                              + (f"Use {name}.float()." if scale.dtype != torch.float32 else
                                 "Give it one of these shapes."))
        own.add(len(found) > 2)
    if len(own) > 1:
        raise InvalidProblem(SCALES_UNLIKE)
    return own == {True}


def scale_strides(x: Tensor, own: bool) -> Strides:
    if own: return x.stride(0), x.stride(1), x.stride(2)
    return 0, 0, x.stride(0) if x.numel() > 1 else 0
