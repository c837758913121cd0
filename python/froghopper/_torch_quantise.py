# SPDX-License-Identifier: Apache-2.0
"""q, k and v of PyTorch -> 8-bit copies and scales, as froghopper.torch.attention takes them. Without gradients.

    froghopper::quantise   the eight results, means with no numbers where none are asked for, for code that
                           torch.compile traces, for torch.func and for DTensors; other calls go past it
"""
from typing import Any, NamedTuple

import torch
from torch import Tensor

from froghopper import _c
from froghopper import _torch_ops as ops
from froghopper import _torch_sharding as sharding
from froghopper import _torch_traced as traced
from froghopper._call import DTYPES_8_BIT, SCALE_ROWS, Packed
from froghopper._errors import InvalidProblem, InvalidTensor, InvalidType, Unsupported
from froghopper._quantise import blocks_of, check_given, check_packed, quantiser, run
from froghopper._torch_calls import (BYTES, DTYPES, LOOK, Inputs, Options, address, check, check_tensor, dense_copy,
                                     dense_strides, longest, must_copy, name_of, stream_of, strides_of, target_of,
                                     threads_for, workspace_of)
from froghopper._torch_library import library_of
from froghopper._torch_options import bound_of, check_lengths, whole
from froghopper._torch_paged import refuse_gradients
from froghopper._values import flag, shown, whole_name
from froghopper._words import takes_words_of_others

# The arguments are those of computed.
_library = library_of(__name__)
_library.define("quantise(Tensor q, Tensor k, Tensor v, ScalarType dtype, bool rotate, SymInt rotate_seed, "
                    "SymInt scale_rows, Tensor? cu_seqlens_q, Tensor? cu_seqlens_kv, SymInt max_seqlen_q, "
                    "SymInt max_seqlen_kv, Tensor? seqused_q, Tensor? seqused_kv, SymInt max_sms, bool smooth, "
                    "str caller) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)")
quantise_op: Any = torch.ops.froghopper.quantise.default
Found = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


class Quantised(NamedTuple):
    """q, k and v in 8 bits and what their values are multiplied by: [batch, blocks, heads, 1] float32."""
    q: Tensor
    k: Tensor
    v: Tensor
    scale_q: Tensor
    scale_k: Tensor
    scale_v: Tensor


class Smoothed(NamedTuple):
    """Quantised, and what every row of a sequence's k and v has besides: [batch, 1, heads_kv, dim] float32."""
    q: Tensor
    k: Tensor
    v: Tensor
    scale_q: Tensor
    scale_k: Tensor
    scale_v: Tensor
    mean_k: Tensor
    mean_v: Tensor


@takes_words_of_others("torch")
def quantise(q: Tensor, k: Tensor, v: Tensor, *, dtype: torch.dtype | str = torch.float8_e4m3fn, rotate: bool = True,
             rotate_seed: int = 0, scale_rows: int = SCALE_ROWS, cu_seqlens_q: Tensor | None = None,
             cu_seqlens_kv: Tensor | None = None, max_seqlen_q: int | None = None, max_seqlen_kv: int | None = None,
             seqused_q: Tensor | None = None, seqused_kv: Tensor | None = None, max_sms: int = 0,
             smooth: bool = False) -> Quantised | Smoothed:
    """8-bit copies and scales for froghopper.torch.attention.

        o = attention(**quantise(q, k, v)._asdict(), causal=True)

    q, k, v        as attention has them: float16 or bfloat16, on the CPU also float32; head dims are multiples of 16
    dtype          torch.float8_e4m3fn or torch.float8_e5m2, or its name, also "e4m3" or "e5m2"
    rotate         q and k are multiplied by an orthogonal matrix first, so that q k^T stays as it is and outliers are
                   spread over their row: docs/11-quantise.md. False where q stays as it was and attention gets only the
                   8-bit k and v
    rotate_seed    of that matrix's signs, 0 to 2^32 - 1; q and k that meet need the same
    scale_rows     rows of a sequence that share a scale: 128, or 0 for all of them
    smooth         the mean of all rows of a sequence is taken out of k and v first, and given as mean_k and mean_v,
                   which attention adds again: for models whose k and v have one
    others         as attention has them

    Rows of no sequence, and rows that do not count, are left as they come from the allocator. Without gradients, so a
    tensor that requires one is refused. Raises TypeError, ValueError and NotImplementedError as attention does.
    """
    check_given(q, k, v)
    for name, x in (("q", q), ("k", k), ("v", v)): check_tensor(name, x)
    refuse_gradients({"q": q, "k": k, "v": v}, "quantise")
    if q.dtype not in DTYPES:
        raise InvalidType(f"q, k and v must be {' or '.join(DTYPES.values())}, but are {name_of(q.dtype)}. Use "
                          "q.bfloat16(), and k and v likewise.")
    dtype = whole_name(dtype)
    if isinstance(dtype, str) and dtype in DTYPES_8_BIT: dtype = getattr(torch, dtype)
    if not isinstance(dtype, torch.dtype):
        raise InvalidType(f"dtype must be {' or '.join(DTYPES_8_BIT)} of torch, or its name, but is {shown(dtype)}. "
                          "Give one of them.")
    max_sms, scale_rows = whole("max_sms", max_sms), whole("scale_rows", scale_rows)
    check_packed(cu_seqlens_q, cu_seqlens_kv)
    for of, lengths in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_kv", cu_seqlens_kv), ("seqused_q", seqused_q),
                        ("seqused_kv", seqused_kv)):
        if lengths is not None: check_lengths(of, lengths)
    if cu_seqlens_q is None and not max_seqlen_q is max_seqlen_kv is None:
        raise InvalidProblem("max_seqlen_q and max_seqlen_kv must be None without cu_seqlens, but one is given. "
                             "Leave them out.")
    most_q, most_kv = bound_of("max_seqlen_q", max_seqlen_q), bound_of("max_seqlen_kv", max_seqlen_kv)
    given = (dtype, flag("rotate", rotate), whole("rotate_seed", rotate_seed), scale_rows, cu_seqlens_q, cu_seqlens_kv,
             most_q, most_kv, seqused_q, seqused_kv, max_sms, flag("smooth", smooth))
    if torch.compiler.is_compiling(): found = quantise_op(q, k, v, *given, traced.caller())
    elif is_seen(q, k, v, cu_seqlens_q, cu_seqlens_kv, seqused_q, seqused_kv):
        sharding.register()
        sharding.check_mixed(dict(q=q, k=k, v=v))
        found = quantise_op(q, k, v, *given, "")
    else: found = computed(q.detach(), k.detach(), v.detach(), *given)
    return Smoothed(*found) if smooth else Quantised(*found[:6])


def is_seen(*tensors: Tensor | None) -> bool:
    """Whether a tensor has no memory of its own that could be read here: under torch.func, in a mode of PyTorch, of a
    class of its own such as DTensor."""
    return ops.transforms_active() or bool(ops.modes()) or any(
        x is not None and (type(x) not in ops.PLAIN or x.is_meta) for x in tensors)


def computed(q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype, rotate: bool, rotate_seed: int, scale_rows: int,
             cu_seqlens_q: Tensor | None, cu_seqlens_kv: Tensor | None, max_seqlen_q: int,
             max_seqlen_kv: int, seqused_q: Tensor | None, seqused_kv: Tensor | None, max_sms: int,
             smooth: bool) -> Found:
    options = Options(longest(cu_seqlens_q, max_seqlen_q), longest(cu_seqlens_kv, max_seqlen_kv), False,
                      _c.ALL, _c.ALL, 0.0, None, False, False, max_sms, 0, False)
    check(Inputs(q, k, v, None, cu_seqlens_q, cu_seqlens_kv, seqused_q, seqused_kv, None), options)
    index, target = target_of(q)
    if q.device.type not in ("cpu", "cuda"):
        raise InvalidTensor(f"q must be on the CPU or on a GPU, but is on {q.device}. Use q.cuda() or q.cpu(), and k "
                            "and v likewise.")
    packed = None
    if cu_seqlens_q is not None:
        packed = Packed(cu_seqlens_q.shape[0] - 1, options.max_seqlen_q, options.max_seqlen_kv)
    plan, shapes, mean_shapes = quantiser(
        (q.shape, k.shape, v.shape), name_of(q.dtype), name_of(dtype), target, packed=packed,
        seqused=seqused_q is not None or seqused_kv is not None, scale_rows=scale_rows, rotate=rotate,
        rotate_seed=rotate_seed, smooth=smooth, max_sms=max_sms or threads_for(q))
    read = [dense_copy(x) if must_copy(x, index >= 0) or index >= 0 and x.data_ptr() % BYTES else x for x in (q, k, v)]
    small = [torch.empty(x.shape, dtype=dtype, device=x.device) for x in read]
    scales, means = ([torch.empty(shape, dtype=torch.float32, device=q.device) for shape in each]
                     for each in (shapes, mean_shapes))
    tensors = {name: (x.data_ptr(), strides_of(x)) for name, x in zip("qkv", read)}
    tensors |= {f"quantised_{name}": (x.data_ptr(), dense_strides(x.shape)) for name, x in zip("qkv", small)}
    tensors |= {name: (x.data_ptr(), (x.stride(0), x.stride(1), x.stride(2)))
                for name, x in zip(("scale_q", "scale_k", "scale_v", "mean_k", "mean_v"), scales + means)}
    workspace = workspace_of(q, plan.workspace_bytes) if plan.workspace_bytes else None
    run(plan, tensors, dict(cu_seqlens_q=address(cu_seqlens_q), cu_seqlens_kv=address(cu_seqlens_kv),
                            seqused_q=address(seqused_q), seqused_kv=address(seqused_kv)), address(workspace),
        stream_of(index) if index >= 0 else None)
    if not smooth: means = [scales[0].new_empty(0), scales[0].new_empty(0)]
    return small[0], small[1], small[2], scales[0], scales[1], scales[2], means[0], means[1]


def without_memory(q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype, rotate: bool, rotate_seed: int,
                   scale_rows: int, cu_seqlens_q: Tensor | None, cu_seqlens_kv: Tensor | None,
                   max_seqlen_q: int, max_seqlen_kv: int, seqused_q: Tensor | None,
                   seqused_kv: Tensor | None, max_sms: int, smooth: bool) -> Found:
    """The results of computed, which checks the rest when it runs."""
    batch, rows_q, rows_kv = q.shape[0], q.shape[1], k.shape[1]
    if cu_seqlens_q is not None:
        if LOOK in (max_seqlen_q, max_seqlen_kv):
            raise Unsupported("max_seqlen_q and max_seqlen_kv must be given with cu_seqlens under torch.compile, as "
                              "the shapes of scales depend on them. Give both.")
        batch, rows_q, rows_kv = cu_seqlens_q.shape[0] - 1, max_seqlen_q, max_seqlen_kv
    small = [x.new_empty(x.shape, dtype=dtype) for x in (q, k, v)]
    scales = [x.new_empty((batch, blocks_of(rows, scale_rows), x.shape[-2], 1), dtype=torch.float32)
              for x, rows in ((q, rows_q), (k, rows_kv), (v, rows_kv))]
    means = [x.new_empty((batch, 1, *x.shape[-2:]) if smooth else (0,), dtype=torch.float32) for x in (k, v)]
    return small[0], small[1], small[2], scales[0], scales[1], scales[2], means[0], means[1]


ops.register_kernels(_library, quantise_op, computed, without_memory)
ops.register_derivatives(_library, quantise_op, function="quantise")
