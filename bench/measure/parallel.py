# SPDX-License-Identifier: Apache-2.0
"""Context parallelism on the GPUs of one host: right or not, and how long it takes. bench/context_parallel.py has the
words; every rank runs this."""
import datetime
import functools
import itertools
import os
import statistics
import time

import torch
import torch.distributed as dist
from froghopper.torch import attention
from froghopper.torch import context_parallel as cp

from . import command, parallel_decode

SCHEMES = ("ring", "all_gather", "all_to_all", "auto")
GRIDS = ("all_to_all_ring", "all_to_all_gather")  # two neighbours exchange heads
TRANSFERS = {"send_recv": "", "copies": ", copies"}  # what follows a scheme's name in records
RIVALS = {"torch all-gather": "allgather", "torch all-to-all": "alltoall"}  # as set_rotate_method calls them
DIM = 128
# 8 documents of uneven length in one row of 131072; no border is one of a rank.
DOCUMENTS = (0, 41011, 46100, 61503, 63499, 94251, 102397, 106500, 131072)
# Query heads, key heads, rows, window, documents.
CASES = [(16, 16, 32768, None, None), (16, 16, 131072, None, None), (64, 8, 32768, None, None),
         (64, 8, 131072, None, None), (16, 16, 131072, 4096, None), (16, 16, 131072, None, DOCUMENTS),
         (64, 8, 131072, None, DOCUMENTS)]
LONG = [(64, 8, 524288, None, None)]
# What is checked: rows, heads, columns, options, layout.
CHECKS = [(1023, (8, 8), 128, dict(causal=True), "zigzag"), (777, (8, 2), 64, {}, "zigzag"),
          (1500, (8, 4), 128, dict(causal=True, window=(99, None)), "contiguous"),
          (3, (8, 8), 64, dict(causal=True), "zigzag"),
          (1901, (8, 8), 128, dict(causal=True, cu_seqlens=(0, 0, 300, 301, 1500, 1901)), "zigzag"),
          (1901, (16, 4), 64, dict(cu_seqlens=(0, 700, 1901)), "contiguous"),
          (1901, (8, 8), 128, dict(causal=True, deterministic=True, cu_seqlens=(0, 0, 300, 301, 1500, 1901)),
           "by_document"),
          (2777, (16, 4), 64, dict(cu_seqlens=(0, 3, 1700, 2777)), "by_document"),
          (1500, (8, 4), 128, dict(causal=True, window=(99, None), deterministic=True,
                                   cu_seqlens=(0, 40, 900, 1500)), "contiguous"),
          (2050, (16, 8), 128, dict(causal=True, deterministic=True), "zigzag")]
MOST_ERROR = 1.1  # times that of one GPU; sums in another order are rounded otherwise
# Of calls in a row: so many that the time before the first kernel, about a millisecond, does not count.
ROUND_MS, MOST_CALLS = 400, 60


def run(a):
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", timeout=datetime.timedelta(minutes=3))
    try: return Bench(a, rank).all()
    finally: dist.destroy_process_group()


class Bench:
    def __init__(self, a, rank):
        self.a, self.rank, self.ranks = a, rank, dist.get_world_size()

    def say(self, *words):
        if self.rank == 0: print(*words, flush=True)

    def all(self):
        wrong = sum(self.check(*case) for case in CHECKS) if "check" in self.a.parts else 0
        if "decode" in self.a.parts: wrong += self.decode()
        if "speed" in self.a.parts:
            cases = [case for case in CASES + LONG * self.a.long if self.a.only in line_of(*case)]
            for case in cases[:self.a.cases]: self.speed(*case)
        self.say(f"{wrong} wrong" if wrong else "all right")
        return 1 if wrong else 0

    def decode(self):
        wrong = parallel_decode.check(self.rank, self.ranks, self.say)
        for problem, times in parallel_decode.speed(self.rank, self.ranks, self.say).items():
            for impl, us in zip(("one GPU", "decode"), times):
                self.append({"problem": problem, "pass": "decode", "impl": impl, "ms": round(us / 1e3, 4)})
        return wrong

    def check(self, rows, heads, dim, options, layout):
        """How many schemes are further from fp64 than they may be, or differ between two runs though deterministic."""
        q, k, v, grad = whole = drawn(rows, *heads, dim)
        wanted = in_fp64(*whole, options)
        alone = [x.detach().requires_grad_() for x in (q, k, v)]
        o = on_one_gpu(*alone, **options)
        o.backward(grad)
        of_one = errors((o.detach(), *(x.grad for x in alone)), wanted)
        wrong = 0
        for scheme, transfers in itertools.product((*SCHEMES[:3], *GRIDS), TRANSFERS):
            first, again = (self.spread(whole, scheme, transfers, layout, options) for _ in range(2))
            ratio = max(x / y for x, y in zip(errors(first, wanted), of_one))
            same = all(torch.equal(x, y) for x, y in zip(first, again))
            bad = not ratio <= MOST_ERROR or (options.get("deterministic", False) and not same)
            wrong += bad
            self.say(f"{'WRONG' if bad else 'right'} {rows} rows, {heads[0]}/{heads[1]} heads of {dim}, {options}, "
                     f"{scheme} by {transfers}: error {ratio:.3f} of one GPU's, "
                     f"two runs {'the same' if same else 'differ'}")
        return wrong

    def spread(self, whole, scheme, transfers, layout, options):
        """o and the gradients of q, k and v of all rows."""
        where = dict(layout=layout, cu_seqlens=options.get("cu_seqlens"))
        q, k, v, grad = (cp.shard(x, **where).detach() for x in whole)
        leaves = [x.requires_grad_() for x in (q, k, v)]
        o = cp.attention(*leaves, scheme=scheme, heads_ranks=2 if scheme in GRIDS else 0, transfers=transfers,
                         layout=layout, **options)
        o.backward(grad)
        return [cp.unshard(x.detach(), **where) for x in (o, *(x.grad for x in leaves))]

    def speed(self, heads, heads_kv, rows, window, documents):
        whole = drawn(rows, heads, heads_kv, DIM)
        options = dict(causal=True, **({} if window is None else {"window": (window, None)}),
                       **({} if documents is None else {"cu_seqlens": documents}))
        layout = "contiguous" if window is not None else "zigzag" if documents is None else "by_document"
        problem = line_of(heads, heads_kv, rows, window, documents)
        alone = self.times(lambda *x: on_one_gpu(*x, **options), whole)
        self.record(problem, "one GPU", alone, alone)
        parts = [cp.shard(x, layout=layout, cu_seqlens=documents).contiguous() for x in whole]
        for scheme, (transfers, said) in itertools.product(SCHEMES, TRANSFERS.items()):
            self.record(problem, scheme + said, alone, self.times(
                lambda *x: cp.attention(*x, scheme=scheme, transfers=transfers, layout=layout, **options), parts))
        if window is documents is None:
            for transfers, said in TRANSFERS.items(): self.record(problem, "auto with e4m3" + said, alone, {
                "fwd": self.time(lambda: in_8_bits(*parts[:3], transfers=transfers, layout=layout, **options))})
        if window is documents is None and heads == heads_kv and self.a.rivals:
            for name, method in RIVALS.items(): self.record(problem, name, alone, self.of_torch(whole, method))

    def of_torch(self, whole, method):
        """PyTorch's own context_parallel, over cuDNN's attention."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.experimental import context_parallel
        from torch.distributed.tensor.experimental._attention import set_rotate_method
        from torch.nn import functional  # it replaces a function of this module
        from torch.nn.attention import SDPBackend, sdpa_kernel
        set_rotate_method(method)
        buffers = [x.transpose(1, 2).clone() for x in whole]
        with context_parallel(init_device_mesh("cuda", (self.ranks,)), buffers=buffers, buffer_seq_dims=[2] * 4,
                              no_restore_buffers=set(buffers)), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return self.times(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True), buffers)

    def times(self, call, tensors):
        """{pass: (milliseconds of a call among others in a row, of one that is waited for)} of the slowest rank."""
        *inputs, grad = tensors
        leaves = [x.detach().requires_grad_() for x in inputs]

        def forward():
            with torch.no_grad(): call(*inputs)

        def both():
            for x in leaves: x.grad = None
            call(*leaves).backward(grad)
        return {"fwd": self.time(forward), "fwd+bwd": self.time(both)}

    def time(self, call):
        self.round(call, 1)  # compiles, and connects the ranks
        calls = max(1, min(MOST_CALLS, round(ROUND_MS / self.round(call, 1))))
        return tuple(statistics.median(self.round(call, n) for _ in range(self.a.rounds)) for n in (calls, 1))

    def round(self, call, calls):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(calls): call()
        torch.cuda.synchronize()
        took = torch.tensor(time.perf_counter() - began)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        return 1e3 * float(took) / calls

    def record(self, problem, impl, alone, times):
        ranks = 1 if impl == "one GPU" else self.ranks
        self.say(f"{problem}, {impl}: " + "; ".join(
            f"{name} {row:.2f} ms, alone {single:.2f} ms, {alone[name][0] / ranks / row:.2f} of linear"
            for name, (row, single) in times.items()))
        for name, (row, single) in times.items():
            self.append({"problem": problem, "pass": name, "impl": impl, "ms": round(row, 3),
                         "single_ms": round(single, 3), "chunks": os.environ.get("FROGHOPPER_CP_CHUNKS") != "0"})

    def append(self, record):
        if self.rank: return
        command.append(self.a.json, record | {
            "ranks": self.ranks, "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
            "commit": self.a.commit or command.commit_here(), "date": command.now()})


def line_of(heads, heads_kv, rows, window, documents):
    """The problem on one GPU, without the pass."""
    shape = f"hq{heads} hkv{heads_kv}"
    if documents is None:
        return f"bf16 b1 {shape} sq{rows} skv{rows} d{DIM} " + ("causal" if window is None else f"window{window},0")
    lengths = lengths_of(documents)
    return (f"bf16 b{len(lengths)} {shape} sq{max(lengths)} skv{max(lengths)} d{DIM} varlen tq{rows} tkv{rows} causal "
            f": lens_q={','.join(map(str, lengths))}")


def lengths_of(documents): return [end - begin for begin, end in itertools.pairwise(documents)]


@functools.cache
def on_gpu(documents): return torch.tensor(documents, dtype=torch.int32, device="cuda")


def on_one_gpu(q, k, v, cu_seqlens=None, **options):
    if cu_seqlens is None: return attention(q, k, v, **options)
    ends, longest = on_gpu(cu_seqlens), max(lengths_of(cu_seqlens))
    return attention(q[0], k[0], v[0], cu_seqlens_q=ends, cu_seqlens_kv=ends, max_seqlen_q=longest,
                     max_seqlen_kv=longest, **options)[None]


@torch.no_grad()
def in_8_bits(q, k, v, **options):
    """k and v are quantised in the call; nothing of this has a gradient."""
    return cp.attention(q, k, v, kv_dtype=torch.float8_e4m3fn, **options)


def drawn(rows, heads, heads_kv, dim):
    """q, k, v and the gradient of o, the same on every rank."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    return [torch.randn(1, rows, n, dim, device="cuda", dtype=torch.bfloat16, generator=generator)
            for n in (heads, heads_kv, heads_kv, heads)]


def in_fp64(q, k, v, grad, options):
    """o and the gradients of q, k and v."""
    q, k, v = (x.double().requires_grad_() for x in (q, k, v))
    at = torch.arange(q.shape[1], device=q.device)
    seen = torch.ones(len(at), len(at), dtype=torch.bool, device=q.device)
    if options.get("causal"): seen &= at <= at[:, None]
    if "window" in options: seen &= at >= at[:, None] - options["window"][0]
    if "cu_seqlens" in options:
        document = torch.searchsorted(torch.tensor(options["cu_seqlens"], device=q.device), at, right=True)
        seen &= document == document[:, None]
    of_keys = [x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v)]
    scores = torch.einsum("bqhd,bkhd->bhqk", q, of_keys[0]) / q.shape[3] ** 0.5
    o = torch.einsum("bhqk,bkhd->bqhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), of_keys[1])
    o.backward(grad.double())
    return o.detach(), q.grad, k.grad, v.grad


def errors(found, wanted): return [float((x.double() - y).norm() / y.norm()) for x, y in zip(found, wanted)]
