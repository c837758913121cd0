#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Scores that rise, fall, jump and alternate far beyond what random data shows: errors of froghopper's forward.

  bench/adversarial.py --library build/libfroghopper.so [--dims 64,128,256] [--device cuda|cpu]

A softmax that keeps a stale maximum, or an overflow guard with a hole, shows here and nowhere else. A result is BAD
when o is off by 8e-3 or lse by 1e-5 of itself. Where the scores themselves are so large that a plain fp32 computation
comes near that (4e4 in "rising 20 a key"), four times the error of plain fp32 is allowed instead.
"""
import argparse
import collections
import os
import sys

import torch

import contenders
import exactness
from froghopper_ctypes import Froghopper

ROWS, HEADS = 2000, 4
O_ALLOWED, LSE_ALLOWED, OF_PLAIN_FP32 = 8e-3, 1e-5, 4
MASKS = ("", "causal", "window700,200")


def patterns(device):
    """label -> score of every key, on top of noise; None: q and k are 30 times larger instead."""
    j = torch.arange(ROWS, device=device).float()
    random = torch.Generator(device).manual_seed(3)
    def normal(n): return torch.randn(n, device=device, generator=random)
    return {
        "rising 100 a tile": (ROWS - 1 - j) // 128 * 100,
        "falling 100 a tile": j // 128 * 100,
        "rising 20 a key": (ROWS - j) * 20,
        "+200 at the end of the walk": torch.where(j < 3, 200.0, 0.0),
        "+200 in the middle": torch.where((j > 1000) & (j < 1003), 200.0, 0.0),
        "+90 in the middle": torch.where((j > 1000) & (j < 1003), 90.0, 0.0),
        "+20": torch.where((j > 700) & (j < 1003), 20.0, 0.0),
        "alternating 1e4": torch.where(j.long() % 2 == 0, 1e4, -1e4),
        "random 300": normal(ROWS) * 300,
        "random 3000 a tile": normal(ROWS // 64 + 1).repeat_interleave(64)[:ROWS] * 3000,
        "first half -1e4": torch.where(j > ROWS // 2, -1e4, 0.0),
        "huge": torch.where(j == 17, 3e8, 0.0),
        "rows differ": None,
    }


def fill(cell, scores):
    """The first column of q is 1, that of k carries the scores; the other columns are noise."""
    torch.manual_seed(0)
    q, k = (torch.randn(t.shape, device=t.device) * 0.5 for t in (cell.q, cell.k))
    if scores is None: q, k = q * 30, k * 30
    else: q[..., 0], k[..., 0] = 1.0, (scores / cell.scale())[None, :, None]
    cell.q.copy_(q), cell.k.copy_(k)


def relative_errors(cell, o, lse):
    exact_o, exact_lse = exactness.exact(cell)
    o_error = ((o.double() - exact_o).norm() / exact_o.norm()).item()
    return o_error, ((lse.double() - exact_lse).abs() / (exact_lse.abs() + 1)).max().item()


def plain_fp32(cell):
    """The same computation with fp32 scores, without tiles."""
    torch.backends.cuda.matmul.allow_tf32 = False
    q, k, v = (t.transpose(1, 2).float() for t in (cell.q, cell.k, cell.v))
    scores = (q @ k.mT * cell.scale()).masked_fill_(~exactness.visible(cell.problem, q.device), float("-inf"))
    return (torch.softmax(scores, -1) @ v).transpose(1, 2), scores.logsumexp(-1)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--library", default="build/libfroghopper.so")
    p.add_argument("--dims", default="64,96,128,192,256")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    a = p.parse_args()
    library, counts = Froghopper(os.path.abspath(a.library)), collections.Counter()
    for dim in a.dims.split(","):
        for mask in MASKS:
            line = f"fwd bf16 b1 hq{HEADS} hkv{HEADS} sq{ROWS} skv{ROWS} d{dim} {mask}".strip()
            run_patterns(library, line, a.device, counts)
    print(f"{counts['checked']} results, {counts['loose']} allowed by plain fp32, {counts['bad']} bad")
    return 1 if counts["bad"] else 0


def run_patterns(library, line, device, counts):
    cell, shown = contenders.Cell.make(library, line, device), []
    (key, call), = contenders.froghopper(cell, library, "hopper" if device == "cuda" else "cpu").items()
    for label, scores in patterns(device).items():
        fill(cell, scores)
        cell.o.fill_(float("nan")), cell.lse.fill_(float("nan"))
        call()
        if device == "cuda": torch.cuda.synchronize()
        counts["checked"] += 1
        o_error, lse_error = relative_errors(cell, cell.o, cell.lse)
        shown.append(f"{o_error:.1e}")
        if o_error < O_ALLOWED and lse_error < LSE_ALLOWED: continue
        plain_o, plain_lse = relative_errors(cell, *plain_fp32(cell))
        fine = (o_error < max(O_ALLOWED, OF_PLAIN_FP32 * plain_o) and
                lse_error < max(LSE_ALLOWED, OF_PLAIN_FP32 * plain_lse))
        counts["loose" if fine else "bad"] += 1
        print(f"{'loose' if fine else 'BAD'} {key[1]} | {line} | {label}: o {o_error:.1e} lse {lse_error:.1e}, "
              f"plain fp32 {plain_o:.1e} {plain_lse:.1e}", flush=True)
    print(line, *shown, flush=True)


if __name__ == "__main__":
    sys.exit(main())
