# SPDX-License-Identifier: Apache-2.0
"""Decoding with a cache that the GPUs of one host share: right or not, captured into a CUDA graph too, and how long a
replay takes beside one GPU with the whole cache. Every rank runs this."""
import statistics

import torch
import torch.distributed as dist
from froghopper.torch import attention, paged_attention
from froghopper.torch import context_parallel as cp

PAGE = 16
# What is checked: sequences, rows of a rank at most, query and key heads, new rows, heads, pages.
CHECKS = [(9, 700, (16, 4), 1, "all", False), (9, 700, (16, 4), 1, "all", True), (5, 300, (16, 4), 4, "all", True),
          (9, 700, (16, 16), 1, "sharded", False), (33, 1100, (32, 8), 1, "sharded", True)]
# What is timed, in pages: sequences, rows of all ranks.
TIMED = [(64, 8192), (8, 32768), (1, 131072)]
HEADS, DIM = (32, 8), 128
MOST_ERROR = 1.1  # times that of one GPU, which rounds once too


class Cache:
    """The parts of all ranks, the same on every rank; that of `rank` lies in pages where these are wanted."""

    def __init__(self, sequences, rows, heads, ranks, paged):
        self.sequences, self.rows, self.ranks, self.paged = sequences, rows, ranks, paged
        self.of_ranks = [[drawn(r, x, sequences, rows, heads) for x in range(2)] for r in range(ranks)]
        self.columns = -(-rows // PAGE)
        self.table = torch.randperm(sequences * self.columns, generator=torch.Generator().manual_seed(5)).to(
            "cuda", torch.int32).view(sequences, self.columns)

    def part(self, rank):
        k, v = self.of_ranks[rank]
        return (self.pool(k), self.pool(v)) if self.paged else (k, v)

    def pool(self, x):
        pages = torch.full((self.table.numel(), PAGE, *x.shape[2:]), float("nan"), dtype=x.dtype, device="cuda")
        whole = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, self.columns * PAGE - x.shape[1]), value=float("nan"))
        pages[self.table.long()] = whole.view(self.sequences, self.columns, PAGE, *x.shape[2:])
        return pages

    def options(self, used):
        if not self.paged: return dict(seqused_kv=used)
        return dict(seqused_kv=used, block_table=self.table, max_seqlen_kv=self.rows)

    def whole(self, lengths):
        """[(k, v)] of each sequence: the rows of rank 0, then of rank 1, and so on."""
        return [[torch.cat([self.of_ranks[r][x][i, :lengths[r][i]] for r in range(self.ranks)]) for x in range(2)]
                for i in range(self.sequences)]


def drawn(rank, which, sequences, rows, heads):
    generator = torch.Generator(device="cuda").manual_seed(7 + 2 * rank + which)
    return torch.randn(sequences, rows, heads, DIM, device="cuda", dtype=torch.bfloat16, generator=generator)


def lengths_of(seed, ranks, sequences, rows, least):
    """[rank][sequence]; some are empty, but the newest rows are on the last rank."""
    all_of = torch.randint(0, rows + 1, (ranks, sequences), generator=torch.Generator().manual_seed(seed))
    all_of[:, 0] = 0
    all_of[-1] = all_of[-1].clamp(min=least)
    return all_of.tolist()


def check(rank, ranks, say):
    """How many checks fail."""
    return sum(check_one(rank, ranks, say, *case) for case in CHECKS)


def check_one(rank, ranks, say, sequences, rows, heads, new_rows, split, paged):
    heads_q, heads_kv = heads
    cache = Cache(sequences, rows, heads_kv, ranks, paged)
    k, v = cache.part(rank)
    q = drawn(50, 0, sequences, new_rows, heads_q)
    share = slice(rank * heads_q // ranks, (rank + 1) * heads_q // ranks) if split == "sharded" else slice(None)
    newest = {} if new_rows == 1 else dict(newest=rank == ranks - 1)
    first, second = (lengths_of(seed, ranks, sequences, rows, new_rows) for seed in (1, 2))
    used = torch.tensor(first[rank], dtype=torch.int32, device="cuda")

    def call(): return cp.decode(q[:, :, share].contiguous(), k, v, heads=split, **cache.options(used), **newest)

    eager = call()
    with torch.no_grad(): graph, captured = capture(call)
    wrong = 0
    for lengths, what in ((first, "at first"), (second, "replayed with other lengths")):
        used.copy_(torch.tensor(lengths[rank], dtype=torch.int32))
        graph.replay()
        wanted, alone = zip(*(both(q[i], *kv) for i, kv in enumerate(cache.whole(lengths))))
        wanted, alone = torch.stack(wanted)[:, :, share], torch.stack(alone)[:, :, share]
        error, of_one = (float((x.double() - wanted).norm() / wanted.norm()) for x in (captured, alone))
        same = torch.equal(captured, eager) if lengths is first else torch.equal(captured, call())
        bad = torch.tensor(float(not error <= MOST_ERROR * of_one or not same), device="cuda")
        dist.all_reduce(bad)
        wrong += bool(bad)
        say(f"{'WRONG' if bad else 'right'} decode, {sequences} sequences, {heads_q}/{heads_kv} heads {split}, "
            f"{new_rows} new rows, {'pages' if paged else 'dense'}, captured, {what}: error {error / of_one:.3f} of "
            f"one GPU's, {'the bits' if same else 'NOT the bits'} of a call without a graph")
    return wrong


def both(q, k, v):
    """o of one sequence in fp64, and of one GPU; 0 where there is no key. Bottom-right aligned, as new rows are."""
    if not len(k): return torch.zeros_like(q, dtype=torch.float64), torch.zeros_like(q)
    alone = attention(q[None], k[None], v[None], causal=True)[0]
    repeated = [x.double().repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v)]
    scores = torch.einsum("qhd,khd->hqk", q.double(), repeated[0]) / DIM**0.5
    at = torch.arange(len(k), device="cuda")
    seen = at <= torch.arange(len(q), device="cuda")[:, None] + len(k) - len(q)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), repeated[1]), alone


def capture(call):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side): call()  # NCCL connects the ranks at their first transfer
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph): o = call()
    return graph, o


def speed(rank, ranks, say):
    """{problem: (one GPU's microseconds, those of the slowest rank)} of one query, replayed among others in a row."""
    found = {}
    for sequences, rows in TIMED:
        q, own = drawn(50, 0, sequences, 1, HEADS[0]), rows // ranks
        cache = Cache(sequences, own, HEADS[1], ranks, True)
        full = torch.full((sequences,), own, dtype=torch.int32, device="cuda")
        k, v = cache.part(rank)
        shared = timed(capture(lambda: cp.decode(q, k, v, **cache.options(full)))[0])
        whole = Cache(sequences, rows, HEADS[1], 1, True)
        k, v = whole.part(0)
        one = timed(capture(lambda: paged_attention(q, k, v, **whole.options(ranks * full)))[0])
        problem = f"bf16 b{sequences} hq{HEADS[0]} hkv{HEADS[1]} sq1 skv{rows} d{DIM} page{PAGE}"
        found[problem] = one, shared
        say(f"{problem}, decode, one GPU {one:.1f} us; {ranks} GPUs {shared:.1f} us, "
            f"{one / ranks / shared:.2f} of linear")
    return found


def timed(graph):
    took = []
    for _ in range(5):
        torch.cuda.synchronize()
        dist.barrier()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(50): graph.replay()
        end.record()
        torch.cuda.synchronize()
        took.append(start.elapsed_time(end) * 1e3 / 50)
    slowest = torch.tensor(statistics.median(took))
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest)
