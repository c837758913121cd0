# SPDX-License-Identifier: Apache-2.0
"""The measurements of bench/errors.py fp8."""
import math
import os

import torch

from .command import append, commit_here, now
from .contenders import TARGETS
from .froghopper_ctypes import Froghopper, tensors
from .inputs import attention, outliers, rmse

DIMS, HEADS, SEED = (64, 128, 256), 8, 0
WAYS = {"one scale a head": "", "blocks of 128 rows": " scales128", "one scale a head, rotated": " rotate",
        "blocks of 128 rows, rotated": " scales128 rotate"}
SMOOTH_WAYS = {"blocks, smooth": " scales128 smooth", "blocks, smooth, rotated": " scales128 smooth rotate"}
Q16 = "16-bit q, "
Q16_WAYS = {Q16 + "blocks": " scales128", Q16 + "blocks, rotated": " scales128 rotate"}


def run(a):
    library = Froghopper(os.path.abspath(a.library))
    for keys in map(int, a.keys.split(",")):
        for dim in DIMS: one_dim(library, a, keys, dim)


def one_dim(library, a, keys, dim):
    inputs = list(draw(a, keys, dim))
    exact = attention(*inputs)
    ways = WAYS | (SMOOTH_WAYS if a.means else {}) | (Q16_WAYS if a.device == "cuda" else {})
    for way, words in ways.items():
        case = Case(library, a, inputs, words, keeps_q=way.startswith(Q16))
        found, of_inputs = rmse(case.attend(), exact), rmse(attention(*case.stood_for()), exact)
        record = {"data": a.data, "keys": keys, "dim": dim, "rows": a.rows, "type": a.type, "target": TARGETS[a.device],
                  "means": a.means, "way": way, "rmse": found, "inputs": of_inputs}
        if a.rivals and not words.split(): record["fa3"] = rmse(case.by_fa3(), exact)
        fa3 = f"  fa3 {record['fa3']:.3e}" if "fa3" in record else ""
        print(f"{keys} keys d{dim:<4} {way:<28} {found:.3e}  inputs {of_inputs:.3e}  ratio "
              f"{found / of_inputs:.3f}{fa3}", flush=True)
        write(a, record)


def write(a, record):
    record = {key: float(f"{x:.4g}") if isinstance(x, float) else x for key, x in record.items()}
    record["gpu"] = torch.cuda.get_device_name() if a.device == "cuda" else "cpu"
    append(a.json, record | {"commit": a.commit or commit_here(), "date": now()})


def draw(a, keys, dim):
    """q, k, v: [1, rows, heads, dim]"""
    generator = torch.Generator(a.device).manual_seed(1)
    def normal(shape): return torch.randn(shape, generator=generator, device=a.device)
    for count, of_columns in ((a.rows, 0.0), (keys, a.means), (keys, a.means)):
        shape = (1, count, HEADS, dim)
        if a.data == "outliers": x = outliers(shape, a.device, generator)
        else:
            torch.rand(shape, generator=generator, device=a.device)  # so that the numbers are those of bench/results
            x = normal(shape)
        if of_columns: x += of_columns * normal((HEADS, dim))
        yield x.to(torch.bfloat16 if a.device == "cuda" else torch.float32)


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
        plan, gpu = self.library.plan(self.library.problem(line), TARGETS[self.a.device]), self.a.device == "cuda"
        workspace = torch.empty(max(1, plan.workspace_bytes), dtype=torch.uint8, device=self.a.device)
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
