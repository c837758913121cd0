#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What 8-bit q, k and v cost: root mean square error of o against fp64, quantised by the library and attended to by it.

  bench/fp8_errors.py --library build/libfroghopper.so [--rows 512] [--target cpu] [--means 4] [--json FILE.jsonl]

Inputs are those of the error table of the FlashAttention-3 paper (section 4.3): entries of q, k and v from
N(0, 1) + N(0, 100) Bernoulli(0.001), 4096 keys, 8 heads. "inputs" is exact attention of the quantised numbers, which no
kernel can be better than; the exact answer is computed in fp64 from the inputs before. On the CPU from fp32, on a GPU
(--target hopper) from bf16. Fewer rows of queries than 4096 are a sample: few rows with one dominant score make most of
the error, so samples of 512 differ by a quarter. With --means k and v have one besides, N(0, MEANS^2) a column, as the
keys of real models have, and are quantised also without it. Needs PyTorch.
"""
import argparse
import json
import math
import os
import sys

import torch

from froghopper_ctypes import Froghopper, tensors

DIMS, HEADS, KEYS = (64, 128, 256), 8, 4096
WAYS = {"one scale a head": "", "blocks of 128 rows": " scales128", "one scale a head, rotated": " rotate",
        "blocks of 128 rows, rotated": " scales128 rotate"}
SMOOTH_WAYS = {"blocks, smooth": " scales128 smooth", "blocks, smooth, rotated": " scales128 smooth rotate"}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--library", default="build/libfroghopper.so")
    p.add_argument("--rows", type=int, default=512, help="of queries")
    p.add_argument("--type", choices=("e4m3", "e5m2"), default="e4m3")
    p.add_argument("--target", choices=("cpu", "hopper"), default="cpu")
    p.add_argument("--means", type=float, default=0.0, help="of k and v: the deviation of their columns' means")
    p.add_argument("--json", metavar="FILE.jsonl", help="append one line an error")
    a = p.parse_args()
    library = Froghopper(os.path.abspath(a.library))
    for dim in DIMS:
        inputs = list(draw(a.rows, dim, a.target, a.means))
        exact = attention(*(x.double() for x in inputs))
        for way, words in (WAYS | SMOOTH_WAYS if a.means else WAYS).items():
            found, of_inputs = errors(library, a, inputs, dim, words, exact)
            print(f"d{dim:<4} {way:<28} {found:.3e}  inputs {of_inputs:.3e}  ratio {found / of_inputs:.3f}", flush=True)
            if a.json:
                with open(a.json, "a") as file:
                    file.write(json.dumps({"dim": dim, "rows": a.rows, "type": a.type, "target": a.target,
                                           "means": a.means, "way": way,
                                           "rmse": float(f"{found:.4g}"), "inputs": float(f"{of_inputs:.4g}")}) + "\n")


def draw(rows, dim, target, means):
    """q, k, v: [1, rows, heads, dim]"""
    generator = torch.Generator().manual_seed(1)
    dtype, device = (torch.float32, "cpu") if target == "cpu" else (torch.bfloat16, "cuda")
    for count, of_columns in ((rows, 0.0), (KEYS, means), (KEYS, means)):
        shape = (1, count, HEADS, dim)
        rare = torch.rand(shape, generator=generator) < 0.001
        x = torch.randn(shape, generator=generator) + 10 * torch.randn(shape, generator=generator) * rare
        if of_columns: x += of_columns * torch.randn((HEADS, dim), generator=generator)
        yield x.to(device, dtype)


def attention(q, k, v):
    q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
    return (torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v).transpose(0, 1)[None]


def errors(library, a, inputs, dim, words, exact):
    """(error of the library's o, error of exact attention of the quantised numbers)"""
    q, k, v = inputs
    shape = f"b1 hq{HEADS} hkv{HEADS} sq{a.rows} skv{KEYS} d{dim}"
    dtype = {torch.float32: "f32", torch.bfloat16: "bf16"}[q.dtype]
    blocks = " scales128" if "scales128" in words else ""
    small = [torch.empty_like(x, dtype=torch.uint8) for x in inputs]
    scales = [torch.empty((1, -(-x.shape[1] // 128) if blocks else 1, HEADS, 1), device=x.device) for x in inputs]
    named = dict(zip(("scale_q", "scale_k", "scale_v"), scales))
    smooth = " smooth" if "smooth" in words else ""
    means = [torch.zeros((1, 1, HEADS, dim), device=x.device) for x in (k, v)]
    if smooth: named |= dict(zip(("mean_k", "mean_v"), means))
    run(library, a, f"quantise {dtype} kv={a.type} {shape}{words}",
        tensors(q, k, v, None, **named, **dict(zip(("quantised_q", "quantised_k", "quantised_v"), small))))
    o = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    run(library, a, f"fwd {a.type} o=f32 {shape}{blocks}{smooth}", tensors(*small, o, **named))
    numbers = torch.float8_e4m3fn if a.type == "e4m3" else torch.float8_e5m2
    stood_for = [x.view(numbers).double() * of_rows(scale, x.shape[1]) for x, scale in zip(small, scales)]
    for i, mean in zip((1, 2), means): stood_for[i] += mean
    return rmse(o, exact), rmse(attention(*stood_for), exact)


def of_rows(scale, rows):
    return scale.double().repeat_interleave(128, 1)[:, :rows] if scale.shape[1] > 1 else scale.double()


def rmse(o, exact):
    return (o.double() - exact).square().mean().sqrt().item()


def run(library, a, line, given):
    plan = library.plan(library.problem(line), a.target)
    gpu = a.target == "hopper"
    workspace = torch.empty(max(1, plan.workspace_bytes), dtype=torch.uint8, device="cuda" if gpu else "cpu")
    stream = torch.cuda.current_stream().cuda_stream if gpu else None
    plan.run(given, workspace.data_ptr() if gpu else None, plan.workspace_bytes, stream)
    if gpu: torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
