#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One training step of an attention block over a sequence that no single rank holds. Every rank has its rows of the
tokens, of q, k and v and of all activations; froghopper.torch.context_parallel attends across them.

usage: torchrun --nproc-per-node 4 examples/long_context.py [--tokens N] [--scheme NAME] [--check] ...

On CPUs 1,024 tokens over gloo; on Hopper GPUs 1,048,576 tokens over NCCL. --check computes the same step on one rank
with the whole sequence, and compares the loss and all gradients; it needs memory for that.
"""
import argparse
import contextlib
import datetime
import os
import time

import torch
import torch.distributed as dist
from torch import nn

from froghopper.torch import attention
from froghopper.torch import context_parallel as cp

SYMBOLS = 64


class Block(nn.Module):
    """Symbols -> attention -> what the next symbol is."""

    def __init__(self, heads, heads_kv, dim, width):
        super().__init__()
        self.heads = [heads, heads_kv, heads_kv]
        self.symbols, self.norm = nn.Embedding(SYMBOLS, width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, sum(self.heads) * dim, bias=False)
        self.out, self.head = nn.Linear(heads * dim, width, bias=False), nn.Linear(width, SYMBOLS)

    def forward(self, symbols, positions, attend):
        x = self.symbols(symbols)
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (sum(self.heads), -1)).split(self.heads, dim=2)
        o = attend(rotated(q, positions), rotated(k, positions), v)
        return self.head(x + self.out(o.flatten(-2)))


def rotated(x, positions):
    """Rotary embedding, by where the rows lie in the whole sequence."""
    half = x.shape[-1] // 2
    angles = positions[:, None, None] * 10000.0 ** (-torch.arange(half, device=x.device) / half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class Stopwatch:
    """Seconds of each part of a step. It waits for the GPU at both ends of a part, which a real training would not."""

    def __init__(self, device):
        self.device, self.seconds, self.begun = device, {}, {}

    def now(self):
        if self.device.type == "cuda": torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def begin(self, part): self.begun[part] = self.now()

    def end(self, part): self.seconds[part] = self.now() - self.begun[part]

    @contextlib.contextmanager
    def part(self, name):
        self.begin(name)
        yield
        self.end(name)


def loss_of(block, symbols, labels, positions, attend, tokens):
    """The part of the mean loss that these rows have: parts of all ranks add up to the whole."""
    with torch.autocast(symbols.device.type, torch.bfloat16, enabled=symbols.device.type == "cuda"):
        logits = block(symbols, positions, attend)
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="sum") / tokens


def step(block, sequence, watch, scheme):
    """(loss, gradients) of the whole sequence, of which this rank computes its rows."""
    symbols, labels = cp.shard(sequence[:, :-1]), cp.shard(sequence[:, 1:])
    tokens = sequence.shape[1] - 1
    positions = cp.positions(tokens, device=sequence.device)

    def attend(q, k, v):
        with watch.part("attention, forward"): o = cp.attention(q, k, v, causal=True, scheme=scheme)
        o.register_hook(lambda grad: watch.begin("attention, backward"))
        torch.autograd.graph.register_multi_grad_hook((q, k, v), lambda grads: watch.end("attention, backward"))
        return o
    with watch.part("forward, all of it"): loss = loss_of(block, symbols, labels, positions, attend, tokens)
    with watch.part("backward, all of it"): loss.backward()
    loss = loss.detach()
    with watch.part("sum of gradients over ranks"):
        for x in (loss, *(p.grad for p in block.parameters())): dist.all_reduce(x)
    return loss, [p.grad.clone() for p in block.parameters()]


def largest_error(block, sequence, loss, grads):
    """Of loss and gradients beside those of one rank that has all rows, relative to the largest number of each."""
    block.zero_grad()
    tokens = sequence.shape[1] - 1
    alone = loss_of(block, sequence[:, :-1], sequence[:, 1:], torch.arange(tokens, device=sequence.device),
                    lambda q, k, v: attention(q, k, v, causal=True), tokens)
    alone.backward()
    pairs = [(loss, alone.detach()), *((grad, p.grad) for grad, p in zip(grads, block.parameters()))]
    return max(float((x - y).abs().max() / y.abs().max()) for x, y in pairs)


def arguments():
    made = argparse.ArgumentParser(description="One training step of attention over a sequence spread over ranks.")
    made.add_argument("--tokens", type=int, help="of the sequence; 1048576 on GPUs, 1024 on CPUs")
    made.add_argument("--heads", type=int, default=8)
    made.add_argument("--heads-kv", type=int, default=2)
    made.add_argument("--dim", type=int, help="columns of a head; 128 on GPUs, 32 on CPUs")
    made.add_argument("--width", type=int, default=256)
    made.add_argument("--scheme", default="auto", help="as of attention: auto, ring, all_to_all_ring ...")
    made.add_argument("--explain", action="store_true", help="print what rank 0 does in the forward pass, step by step")
    made.add_argument("--check", action="store_true", help="compare with one rank that has all rows")
    return made.parse_args()


def main():
    asked = arguments()
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu: torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=datetime.timedelta(minutes=5))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tokens = asked.tokens or (2**20 if on_gpu else 2**10)
    dim = asked.dim or (128 if on_gpu else 32)
    torch.manual_seed(0)  # the same weights and tokens on every rank
    block = Block(asked.heads, asked.heads_kv, dim, asked.width).to(device)
    sequence = torch.randint(SYMBOLS, (1, tokens + 1), generator=torch.Generator().manual_seed(1)).to(device)
    watch, before = Stopwatch(device), cp.moved()
    loss, grads = step(block, sequence, watch, asked.scheme)
    moved = cp.moved() - before
    if rank == 0:
        print(f"{tokens} tokens on {ranks} ranks, {asked.heads} query heads and {asked.heads_kv} key heads of {dim} "
              f"columns on {device.type}; loss {loss.item():.4f}")
        print(f"rank 0 has received {moved / 1e6:.2f} MB of k, v and gradients for {cp.positions(tokens).numel()} rows")
        for part, seconds in watch.seconds.items(): print(f"{part:30} {1e3 * seconds:10.2f} ms")
        if asked.explain:
            heads = f"hq{asked.heads} hkv{asked.heads_kv}"
            line = f"fwd {'bf16' if on_gpu else 'f32'} b1 {heads} sq{tokens} skv{tokens} d{dim} causal"
            print(cp.explain(line, ranks, "hopper" if on_gpu else "cpu", scheme=asked.scheme))
        if on_gpu: print(f"most memory in use: {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")
    if asked.check:
        error = largest_error(block, sequence, loss, grads)
        if rank == 0: print(f"largest relative error beside one rank: {error:.1e}")
        if not error < (2e-2 if on_gpu else 1e-4): raise SystemExit("the ranks together do not compute what one does")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
