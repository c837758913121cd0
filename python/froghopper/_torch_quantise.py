# SPDX-License-Identifier: Apache-2.0
"""q, k and v of PyTorch -> 8-bit copies and scales, as froghopper.torch.attention takes them. Called as it is, not
as an operator: torch.compile does not look into it, and nothing has gradients."""
import ctypes
from typing import Any, NamedTuple

import torch
from torch import Tensor

from froghopper import _c
from froghopper._call import SCALE_ROWS, Packed, Plan, describe, flag, plan_of, whole_number
from froghopper._errors import InvalidProblem, InvalidTensor, InvalidType
from froghopper._torch_calls import (BYTES, DTYPES, FLOAT8, LOOK, Inputs, Options, address, check, dense_copy,
                                     dense_strides, longest, must_copy, name_of, stream_of, strides_of, target_of,
                                     workspace_of)

TO = {torch.float8_e4m3fn: _c.Dtype.E4M3, torch.float8_e5m2: _c.Dtype.E5M2}


class Quantised(NamedTuple):
    """q, k and v in 8 bits and what their numbers are multiplied by: [batch, blocks, heads, 1] float32."""
    q: Tensor
    k: Tensor
    v: Tensor
    scale_q: Tensor
    scale_k: Tensor
    scale_v: Tensor


def quantise(q: Tensor, k: Tensor, v: Tensor, *, dtype: torch.dtype = torch.float8_e4m3fn, rotate: bool = True,
             rotate_seed: int = 0, scale_rows: int = SCALE_ROWS, cu_seqlens_q: Tensor | None = None,
             cu_seqlens_kv: Tensor | None = None, max_seqlen_q: int | None = None, max_seqlen_kv: int | None = None,
             seqused_q: Tensor | None = None, seqused_kv: Tensor | None = None, max_sms: int = 0) -> Quantised:
    """8-bit copies and scales for froghopper.torch.attention.

        o = attention(**quantise(q, k, v)._asdict(), causal=True)

    q, k, v        as attention has them: float16 or bfloat16, on the CPU also float32; head dims are multiples of 16
    dtype          torch.float8_e4m3fn or torch.float8_e5m2
    rotate         q and k are multiplied by an orthogonal matrix first, so that q k^T stays as it is and outliers are
                   spread over their row: docs/11-quantise.md
    rotate_seed    of that matrix's signs, 0 to 2^32 - 1; q and k that meet need the same
    scale_rows     rows of a sequence that share a scale: 128, or 0 for all of them
    others         as attention has them

    Rows of no sequence, and rows that do not count, are left as they come from the allocator. Without gradients. Raises
    TypeError, ValueError and NotImplementedError as attention does.
    """
    if dtype not in FLOAT8:
        raise InvalidType(f"dtype is {name_of(dtype)}; q, k and v become float8_e4m3fn or float8_e5m2. Give one.")
    if q.dtype not in DTYPES:
        raise InvalidType(f"q, k and v are {name_of(q.dtype)}; they can be {', '.join(DTYPES.values())}. Convert them.")
    if (cu_seqlens_q is None) != (cu_seqlens_kv is None):
        raise InvalidProblem("one of cu_seqlens_q and cu_seqlens_kv is given; sequences are packed on both sides. Give "
                             "both or none.")
    if flag("rotate", rotate) is False and rotate_seed: rotate_seed = 0
    if not 0 <= whole_number("rotate_seed", rotate_seed) < 2**32:
        raise InvalidProblem(f"rotate_seed is {rotate_seed}; it has 32 bits. Use 0 to 2^32 - 1.")
    most_q, most_kv = (LOOK if most is None else most for most in (max_seqlen_q, max_seqlen_kv))
    options = Options(longest(cu_seqlens_q, most_q), longest(cu_seqlens_kv, most_kv), False, _c.ALL, _c.ALL, 0.0, 0.0,
                      False, False, max_sms)
    q, k, v = q.detach(), k.detach(), v.detach()
    inputs = Inputs(q, k, v, None, cu_seqlens_q, cu_seqlens_kv, seqused_q, seqused_kv)
    check(inputs, options)
    index, target = target_of(q)
    if q.device.type not in ("cpu", "cuda"):
        raise InvalidTensor(f"q is on {q.device}; tensors have memory on the CPU or on a GPU. Move them.")
    problem = problem_of(inputs, options, TO[dtype], scale_rows, rotate, rotate_seed)
    plan = plan_of(problem, target)
    read = [dense_copy(x) if must_copy(x, index >= 0) or index >= 0 and x.data_ptr() % BYTES else x for x in (q, k, v)]
    small = [torch.empty(x.shape, dtype=dtype, device=x.device) for x in read]
    scales = [torch.empty((problem.batch, blocks_of(rows, scale_rows), x.shape[-2], 1), dtype=torch.float32,
                          device=x.device) for x, rows in zip(read, (problem.seq_q, problem.seq_kv, problem.seq_kv))]
    run(plan, q, index, {**dict(zip("qkv", read)), **dict(zip(("quantised_q", "quantised_k", "quantised_v"), small))},
        dict(zip(("scale_q", "scale_k", "scale_v"), scales)),
        dict(cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv, seqused_q=seqused_q, seqused_kv=seqused_kv))
    return Quantised(small[0], small[1], small[2], scales[0], scales[1], scales[2])


def blocks_of(rows: int, scale_rows: int) -> int:
    return -(-rows // scale_rows) if scale_rows else min(rows, 1)


def problem_of(inputs: Inputs, options: Options, to: int, scale_rows: int, rotate: bool, rotate_seed: int) -> Any:
    q, k, v, _, begins_q, _, used_q, used_kv = inputs
    packed = None
    if begins_q is not None: packed = Packed(begins_q.shape[0] - 1, options.max_seqlen_q, options.max_seqlen_kv)
    problem = describe(q.shape, k.shape, v.shape, name_of(q.dtype), packed=packed,
                       seqused=used_q is not None or used_kv is not None, max_sms=options.max_sms)
    problem.op, problem.dtype_kv, problem.scale_rows = _c.Op.QUANTISE, to, whole_number("scale_rows", scale_rows)
    problem.rotate, problem.rotate_seed = rotate, rotate_seed
    return problem


def run(plan: Plan, q: Tensor, index: int, rows: dict[str, Tensor], scales: dict[str, Tensor],
        lengths: dict[str, Tensor | None]) -> None:
    tensors = _c.Tensors(size=ctypes.sizeof(_c.Tensors))
    for name, x in rows.items():
        given = strides_of(x) if name in "qkv" else dense_strides(x.shape)
        setattr(tensors, name, _c.Tensor(x.data_ptr(), *given))
    for name, x in scales.items(): setattr(tensors, name, _c.Tensor(x.data_ptr(), *x.stride()[:3]))
    for name, maybe in lengths.items(): setattr(tensors, name, address(maybe) or None)
    stream = stream_of(index) if index >= 0 else None
    workspace = workspace_of(q, plan.workspace_bytes, stream) if plan.workspace_bytes else None
    plan.library.check(plan.library.calls.fh_plan_run(plan.handle, ctypes.byref(tensors), address(workspace) or None,
                                                      plan.workspace_bytes, stream))
