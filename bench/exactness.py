# SPDX-License-Identifier: Apache-2.0
"""Errors of froghopper's forward on a GPU against fp64 computed by PyTorch there: shapes that cut tiles in every way.

Each problem runs four times: with garbage in the workspace, twice from one CUDA graph of a single call (a replay
must not depend on what the one before it left in the workspace), and with another garbage. Outputs start as NaN.
"""
import math

import torch

import contenders
from froghopper_ctypes import Error

# Relative error (2-norm) of o, absolute error of lse. bf16 rounds to 2^-9 = 2e-3 a value, fp16 to an eighth of that.
ALLOWED = {1: 1e-3, 2: 8e-3}
LSE_ALLOWED = 1e-4

# batch, seq_q, seq_kv, heads_q, heads_kv
SHAPES = ((2, 1024, 1024, 4, 4), (2, 999, 999, 4, 4), (2, 130, 130, 4, 2), (3, 1000, 1000, 12, 4),
          (2, 300, 1000, 4, 4), (2, 1000, 300, 4, 4), (9, 64, 999, 16, 16), (5, 257, 2000, 15, 3), (1, 1, 4096, 8, 2),
          (40, 17, 33, 4, 4))
DIMS = ("d64", "d96", "d128", "d192", "d192 dv128", "d256", "d40", "d72 dv200")
MASKS = ("", "causal", "causal topleft", "window100,30")


def lines():
    for dim in DIMS:
        for mask in MASKS:
            for b, sq, skv, hq, hkv in SHAPES:
                yield f"fwd bf16 b{b} hq{hq} hkv{hkv} sq{sq} skv{skv} {dim} {mask}".strip()
            yield f"fwd f16 b2 hq4 hkv2 sq515 skv700 {dim} {mask}".strip()


def exact(cell):
    """o and lse in fp64."""
    p = cell.problem
    q, k, v = (t.transpose(1, 2).double() for t in (cell.q, cell.k, cell.v))
    k, v = (t.repeat_interleave(p.heads_q // p.heads_kv, 1) for t in (k, v))
    scores = (q @ k.mT * cell.scale()).masked_fill_(~visible(p, q.device), -math.inf)
    return (torch.softmax(scores, -1).nan_to_num_(0.0) @ v).transpose(1, 2), scores.logsumexp(-1)


def visible(p, device):
    """[seq_q, seq_kv]: the mask rule of froghopper.h once more, in PyTorch's words."""
    offset = p.seq_kv - p.seq_q if p.align == 0 else 0
    ahead = torch.arange(p.seq_kv, device=device) - torch.arange(p.seq_q, device=device)[:, None] - offset
    right = 0 if p.causal else p.window_right
    seen = torch.ones_like(ahead, dtype=torch.bool)
    if p.window_left >= 0: seen &= ahead >= -p.window_left
    if right >= 0: seen &= ahead <= right
    return seen


def errors(exact_o, exact_lse, o, lse):
    """Relative error of o and absolute error of lse; equal infinities are right, NaN is not."""
    o_error = ((o.double() - exact_o).norm() / exact_o.norm().clamp_min(1e-30)).item()
    gap = torch.where(lse.double() == exact_lse, 0.0, (lse.double() - exact_lse).abs())
    return o_error, gap.max().item()


def outputs(cell, library, target):
    """o and lse of four runs of one plan, each from NaN."""
    plan = library.plan(cell.problem, target)
    workspace = torch.empty(max(16, plan.workspace_bytes), dtype=torch.uint8, device=cell.q.device)
    held = contenders.froghopper_ctypes.tensors(cell.q, cell.k, cell.v, cell.o, cell.lse)
    def call():
        plan.run(held, workspace.data_ptr(), workspace.numel(), contenders.stream_of(cell.q.device.type))
    runs = [lambda: (workspace.fill_(255), call()), lambda: (workspace.random_(0, 256), call())]
    if plan.on_gpu:
        call()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()): call()
        runs[1:1] = [graph.replay, graph.replay]
    for run in runs:
        cell.o.fill_(math.nan), cell.lse.fill_(math.nan)
        run()
        yield cell.o.clone(), cell.lse.clone()


def report(library, target, note):
    """Prints BAD lines and one line a head dim; returns how many were bad."""
    bad, refused, total, worst = 0, 0, 0, {}
    for line in lines():
        try:
            cell = contenders.Cell.make(library, line, "cuda" if target == "hopper" else "cpu")
            truth = exact(cell)
            for run, (o, lse) in enumerate(outputs(cell, library, target)):
                error, lse_error = errors(*truth, o, lse)
                total += 1
                key = " ".join(t for t in line.split() if t[0] == "d")
                worst[key] = max(worst.get(key, 0.0), error if cell.problem.dtype == 2 else 0.0)
                if not (error < ALLOWED[cell.problem.dtype] and lse_error < LSE_ALLOWED):
                    bad += 1
                    print(f"BAD {line} run {run}: o {error:.1e} lse {lse_error:.1e}", flush=True)
        except Error as problem:
            refused += 1
            print(f"refused {line}: {problem}"[:300], flush=True)
    note("largest error against fp64, bf16: " + ", ".join(f"{key} {error:.1e}" for key, error in worst.items()))
    note(f"{total} results checked, {bad} bad, {refused} problems refused")
    return bad
