#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What 8-bit q, k and v cost: root mean square error of o against fp64, quantised by the library and attended to by it.

  bench/fp8_errors.py --library build/libfroghopper.so [--rows 512] [--target cpu] [--means 4] [--json FILE.jsonl]
  bench/fp8_errors.py --library build/libfroghopper.so --target hopper --keys 1024,16384,131072 --rivals fa3

Inputs are those of the error table of the FlashAttention-3 paper (section 4.3): entries of q, k and v from
N(0, 1) + N(0, 100) Bernoulli(0.001), 4096 keys, 8 heads; with --data normal from N(0, 1). "inputs" is exact attention
of the quantised numbers, which no kernel can be better than; the exact answer is computed in fp64 from the inputs
before. On the CPU from fp32, on a GPU (--target hopper) from bf16. Fewer rows of queries than 4096 are a sample: few
rows with one dominant score make most of the error, so samples of 512 differ by a quarter. With --means k and v have
one besides, N(0, MEANS^2) a column, as the keys of real models have, and are quantised also without it. With "16-bit
q" k and v alone are quantised, and q, in bf16, is rotated by PyTorch where k is. --rivals fa3: FlashAttention-3 on our
numbers with one scale a head, of which it takes no other. Needs PyTorch.
"""
import argparse
import datetime
import json
import math
import os
import sys

import torch

from froghopper_ctypes import Froghopper, tensors

DIMS, HEADS, SEED = (64, 128, 256), 8, 0
WAYS = {"one scale a head": "", "blocks of 128 rows": " scales128", "one scale a head, rotated": " rotate",
        "blocks of 128 rows, rotated": " scales128 rotate"}
SMOOTH_WAYS = {"blocks, smooth": " scales128 smooth", "blocks, smooth, rotated": " scales128 smooth rotate"}
Q16 = "16-bit q, "
Q16_WAYS = {Q16 + "blocks": " scales128", Q16 + "blocks, rotated": " scales128 rotate"}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--library", default="build/libfroghopper.so")
    p.add_argument("--rows", type=int, default=512, help="of queries")
    p.add_argument("--keys", default="4096", help="one number or several, with commas")
    p.add_argument("--data", choices=("outliers", "normal"), default="outliers")
    p.add_argument("--type", choices=("e4m3", "e5m2"), default="e4m3")
    p.add_argument("--target", choices=("cpu", "hopper"), default="cpu")
    p.add_argument("--means", type=float, default=0.0, help="of k and v: the deviation of their columns' means")
    p.add_argument("--rivals", choices=("", "fa3"), default="", help="also the error of FlashAttention-3, on a GPU")
    p.add_argument("--json", metavar="FILE.jsonl", help="append one line an error")
    p.add_argument("--commit", default="unknown")
    a = p.parse_args()
    library = Froghopper(os.path.abspath(a.library))
    for keys in map(int, a.keys.split(",")):
        for dim in DIMS: one_dim(library, a, keys, dim)


def one_dim(library, a, keys, dim):
    inputs = list(draw(a, keys, dim))
    exact = attention(*inputs)
    ways = WAYS | (SMOOTH_WAYS if a.means else {}) | (Q16_WAYS if a.target == "hopper" else {})
    for way, words in ways.items():
        case = Case(library, a, inputs, words, keeps_q=way.startswith(Q16))
        found, of_inputs = rmse(case.attend(), exact), rmse(attention(*case.stood_for()), exact)
        record = {"data": a.data, "keys": keys, "dim": dim, "rows": a.rows, "type": a.type, "target": a.target,
                  "means": a.means, "way": way, "rmse": found, "inputs": of_inputs}
        if a.rivals and not words.split(): record["fa3"] = rmse(case.by_fa3(), exact)
        fa3 = f"  fa3 {record['fa3']:.3e}" if "fa3" in record else ""
        print(f"{keys} keys d{dim:<4} {way:<28} {found:.3e}  inputs {of_inputs:.3e}  ratio "
              f"{found / of_inputs:.3f}{fa3}", flush=True)
        if a.json: write(a, record)


def write(a, record):
    record = {key: float(f"{x:.4g}") if isinstance(x, float) else x for key, x in record.items()}
    record["gpu"] = torch.cuda.get_device_name() if a.target == "hopper" else "cpu"
    record |= {"commit": a.commit, "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")}
    with open(a.json, "a") as file: file.write(json.dumps(record) + "\n")


def draw(a, keys, dim):
    """q, k, v: [1, rows, heads, dim]"""
    gpu = a.target == "hopper"
    device = "cuda" if gpu else "cpu"
    generator = torch.Generator(device).manual_seed(1)
    def normal(shape): return torch.randn(shape, generator=generator, device=device)
    for count, of_columns in ((a.rows, 0.0), (keys, a.means), (keys, a.means)):
        shape = (1, count, HEADS, dim)
        rare = torch.rand(shape, generator=generator, device=device) < 0.001
        x = normal(shape)
        if a.data == "outliers": x += 10 * normal(shape) * rare
        if of_columns: x += of_columns * normal((HEADS, dim))
        yield x.to(torch.bfloat16 if gpu else torch.float32)


def attention(q, k, v):
    """In fp64, a head at a time: scores of many keys take room."""
    heads = []
    for head in range(HEADS):
        one_q, one_k, one_v = (x[0, :, head].double() for x in (q, k, v))
        heads.append(torch.softmax(one_q @ one_k.mT / math.sqrt(q.shape[-1]), -1) @ one_v)
    return torch.stack(heads, 1)[None]


class Case:
    """q, k and v in 8 bits, or k and v alone, with their scales and means."""

    def __init__(self, library, a, inputs, words, keeps_q):
        self.library, self.a, self.keeps_q = library, a, keeps_q
        q, k, v = inputs
        self.q, dim = q, q.shape[-1]
        self.shape = f"b1 hq{HEADS} hkv{HEADS} sq{a.rows} skv{k.shape[1]} d{dim}"
        self.words = "".join(f" {word}" for word in ("scales128", "smooth") if word in words)
        dtype = {torch.float32: "f32", torch.bfloat16: "bf16"}[q.dtype]
        self.small = [torch.empty_like(x, dtype=torch.uint8) for x in inputs]
        self.scales = [torch.empty((1, -(-x.shape[1] // 128) if "scales128" in words else 1, HEADS, 1), device=x.device)
                       for x in inputs]
        self.means = [torch.zeros((1, 1, HEADS, dim), device=x.device) for x in (k, v)]
        self.named = dict(zip(("scale_q", "scale_k", "scale_v"), self.scales))
        if "smooth" in words: self.named |= dict(zip(("mean_k", "mean_v"), self.means))
        copies = dict(zip(("quantised_q", "quantised_k", "quantised_v"), self.small))
        self.run(f"quantise {dtype} kv={a.type} {self.shape}{words}", tensors(q, k, v, None, **self.named, **copies))
        if keeps_q and "rotate" in words: self.q = (q.float() @ rotation(dim).to(q.device)).to(q.dtype)

    def attend(self):
        o = torch.empty(self.q.shape, dtype=torch.float32, device=self.q.device)
        if self.keeps_q:
            named = {name: x for name, x in self.named.items() if name != "scale_q"}
            line, given = f"fwd bf16 kv={self.a.type}", tensors(self.q, *self.small[1:], o, **named)
        else:
            line, given = f"fwd {self.a.type}", tensors(*self.small, o, **self.named)
        self.run(f"{line} o=f32 {self.shape}{self.words}", given)
        return o

    def stood_for(self):
        numbers = torch.float8_e4m3fn if self.a.type == "e4m3" else torch.float8_e5m2
        x = [x.view(numbers).double() * of_rows(scale, x.shape[1]) for x, scale in zip(self.small, self.scales)]
        for i, mean in zip((1, 2), self.means): x[i] += mean
        return [self.q, *x[1:]] if self.keeps_q else x

    def by_fa3(self):
        import fa3_fwd_interface  # noqa: F401  registers the operator
        q, k, v = (x.view(torch.float8_e4m3fn) for x in self.small)
        descales = [scale.view(1, HEADS).contiguous() for scale in self.scales]
        no_append_o_lengths_rotary, no_window_chunk_cap = [None] * 17, [-1, -1, 0, 0.0]
        return torch.ops.fa3_fwd.fwd(q, k, v, *no_append_o_lengths_rotary, *descales, q.shape[-1] ** -0.5, False,
                                     *no_window_chunk_cap, True, None, 1, None, 0)[0]

    def run(self, line, given):
        plan = self.library.plan(self.library.problem(line), self.a.target)
        gpu = self.a.target == "hopper"
        workspace = torch.empty(max(1, plan.workspace_bytes), dtype=torch.uint8, device="cuda" if gpu else "cpu")
        stream = torch.cuda.current_stream().cuda_stream if gpu else None
        plan.run(given, workspace.data_ptr() if gpu else None, plan.workspace_bytes, stream)
        if gpu: torch.cuda.synchronize()


def rotation(dim):
    """What contract/quantise.h says, of q @ it: rotated[i] = sum over j of x[j] matrix[j, i]."""
    def flips(column):
        x = (SEED * 0x9e3779b9 + column) & 0xffffffff
        x = (x ^ x >> 16) * 0x85ebca6b & 0xffffffff
        x = (x ^ x >> 13) * 0xc2b2ae35 & 0xffffffff
        return (x ^ x >> 16) >> 31
    block, matrix = dim & -dim, torch.zeros(dim, dim)
    for j in range(dim):
        first = j // block * block
        for i in range(first, first + block):
            odd = flips(j) ^ (((i - first) & (j - first)).bit_count() & 1)
            matrix[j, i] = (-1 if odd else 1) / math.sqrt(block)
    return matrix


def of_rows(scale, rows):
    return scale.double().repeat_interleave(128, 1)[:, :rows] if scale.shape[1] > 1 else scale.double()


def rmse(o, exact):
    return (o.double() - exact).square().mean().sqrt().item()


if __name__ == "__main__":
    sys.exit(main())
