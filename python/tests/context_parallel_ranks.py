# SPDX-License-Identifier: Apache-2.0
"""The ranks of test_context_parallel.py: groups of processes over gloo, which are forked from one that has imported
PyTorch and has computed nothing yet, so that all groups together cost one import.

usage: python3 context_parallel_ranks.py FOLDER      writes what each rank found to FOLDER/JOB.RANK
"""
import contextlib
import datetime
import io
import itertools
import os
import pathlib
import pickle
import runpy
import signal
import socket
import sys
import tempfile
import time
import traceback

import torch
import torch.distributed as dist

from context_parallel_wrong_calls import caught, disagreeing

import froghopper
from froghopper import _torch_cp_group as groups
from froghopper import _torch_cp_probe as probing
from froghopper import _torch_cp_transport as transport
from froghopper.torch import context_parallel as cp

TIMEOUT = 4  # seconds, of the groups in which ranks fail
LIMIT = 50  # seconds, after which a rank that still runs is killed

# What is computed: rows, heads, columns and options. heads: of q, of k; dims: of q and k, of v.
PLAIN = dict(batch=2, rows=77, heads=(4, 2), dims=(16, 16), dtype="float32", layout="zigzag", options={})
CASES = {name: PLAIN | changes for name, changes in {
    "full": {},
    "causal": dict(options=dict(causal=True)),
    "causal, contiguous": dict(options=dict(causal=True), layout="contiguous"),
    "bf16": dict(options=dict(causal=True), dtype="bfloat16", rows=96),
    "many heads, two dims": dict(options=dict(causal=True), heads=(8, 8), dims=(24, 16)),
    "six heads": dict(options=dict(causal=True), heads=(6, 3)),
    "one key head": dict(options=dict(causal=True), heads=(4, 1)),
    "window": dict(options=dict(causal=True, window=(9, None)), layout="contiguous"),
    "window, both sides": dict(options=dict(window=(5, 7))),
    "softcap, scale, sink": dict(options=dict(causal=True, softcap=3.0, scale=0.4, sink="drawn")),
    "slopes": dict(options=dict(causal=True, alibi_slopes="drawn")),
    "fewer rows than ranks": dict(options=dict(causal=True), rows=3, batch=1),
    "one row": dict(rows=1, batch=1, layout="contiguous"),
    "no rows": dict(rows=0, batch=1),
    "deterministic": dict(options=dict(causal=True, deterministic=True)),
    "documents": dict(options=dict(causal=True, cu_seqlens=[0, 0, 10, 11, 62, 62, 77]), batch=1),
    "documents, contiguous": dict(options=dict(cu_seqlens=[0, 30, 77]), batch=1, layout="contiguous"),
    "documents, everything": dict(options=dict(causal=True, window=(9, None), softcap=3.0, sink="drawn",
                                               cu_seqlens=[0, 5, 60, 96, 96]), batch=1, dtype="bfloat16", rows=96),
    "documents, both sides": dict(options=dict(window=(5, 7), cu_seqlens=[0, 50, 51, 77]), batch=1),
    "documents, slopes": dict(options=dict(causal=True, alibi_slopes="drawn", cu_seqlens=[0, 20, 77]), batch=1,
                              heads=(4, 1)),
    "by document": dict(options=dict(causal=True, cu_seqlens=[0, 0, 10, 11, 62, 62, 77]), batch=1,
                        layout="by_document"),
    "by document, everything": dict(options=dict(causal=True, window=(9, None), softcap=3.0, sink="drawn",
                                                 cu_seqlens=[0, 5, 60, 96, 96]), batch=1, dtype="bfloat16", rows=96,
                                    layout="by_document"),
    "by document, no mask": dict(options=dict(cu_seqlens=[0, 1, 3, 10]), rows=10, batch=1, heads=(4, 1),
                                 layout="by_document"),
    "documents, few rows": dict(options=dict(causal=True, deterministic=True, cu_seqlens=[0, 1, 3]), rows=3, batch=1),
}.items()}
SCHEMES = ("auto", "ring", "all_gather", "all_to_all", "all_to_all_ring", "all_to_all_gather")
GRIDS = SCHEMES[4:]  # two neighbours exchange heads
ONLY = {"auto": ("causal", "window", "documents"),
        **dict.fromkeys(GRIDS, ("causal", "six heads", "one key head", "window, both sides", "softcap, scale, sink",
                                "slopes", "fewer rows than ranks", "documents, everything", "by document",
                                 "by document, everything"))}
CHUNKS = ("1", "2", "3", "2/4")  # FROGHOPPER_CP_CHUNKS
CHUNKED = ("full", "causal", "causal, contiguous", "bf16", "one key head", "window", "softcap, scale, sink",
           "fewer rows than ranks", "deterministic")
RUNS = [(name, scheme) for name in CASES for scheme in SCHEMES if name in ONLY.get(scheme, CASES)]


def drawn(*shape, seed, dtype="float32"):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(getattr(torch, dtype))


def whole_of(case):
    """q, k, v, the gradients of o and lse, and options, of the whole sequence."""
    (heads, heads_kv), (dim, dim_v), batch, rows = case["heads"], case["dims"], case["batch"], case["rows"]
    shapes = ((heads, dim), (heads_kv, dim), (heads_kv, dim_v), (heads, dim_v))
    made = [drawn(batch, rows, *shape, seed=seed, dtype=case["dtype"]) for seed, shape in enumerate(shapes)]
    options = {name: drawn(heads, seed=9).abs() if value == "drawn" else value
               for name, value in case["options"].items()}
    return *made, drawn(batch, rows, heads, seed=8), options


def places_of(case, group=None): return places(case["rows"], case["layout"], case["options"].get("cu_seqlens"), group)


def places(rows, layout, documents=None, group=None):
    """In the whole, also where positions are those within documents."""
    return cp.shard(torch.arange(rows), group, dim=0, layout=layout, cu_seqlens=documents)


def padded(x):
    """The same numbers in memory that has NaN around every row: nobody may read these."""
    held = x.new_full((x.shape[0] + 1, x.shape[1] + 2, x.shape[2] + 1, x.shape[3] + 8), float("nan"))
    inner = held[1:, 1:-1, :-1, :x.shape[3]]
    inner.copy_(x)
    return inner


def compute(case, scheme, places, around=lambda x: x, group=None):
    """(places, o, lse, gradients of q, k, v and sink) of this rank's rows."""
    *tensors, grad_o, grad_lse, options = whole_of(case)
    q, k, v = (around(x[:, places]).requires_grad_() for x in tensors)
    options = {name: x.clone() if torch.is_tensor(x) else x for name, x in options.items()}
    if "sink" in options: options["sink"].requires_grad_()
    o, lse = cp.attention(q, k, v, group, scheme=scheme, heads_ranks=2 if scheme in GRIDS else 0,
                          layout=case["layout"], return_lse=True, **options)
    asked = [q, k, v, *([options["sink"]] if "sink" in options else [])]
    grads = torch.autograd.grad([o, lse], asked, [around(grad_o[:, places]), grad_lse[:, places].transpose(1, 2)])
    return places, o.detach(), lse.detach(), *grads


def numbers(rank, size):
    """Every case by every scheme: results, or what it was refused with."""
    found = {}
    for name, scheme in RUNS:
        try: found[name, scheme] = compute(CASES[name], scheme, places_of(CASES[name]))
        except froghopper.Error as error: found[name, scheme] = str(error)
    return found


def in_chunks(way):
    """A job with that number of chunks: of each of CHUNKED results by an all-gather, whether a second run gave the same
    bits, and the first line of a plan."""
    def job(rank, size):
        os.environ["FROGHOPPER_CP_CHUNKS"] = way
        found = {}
        for name in CHUNKED:
            runs = [compute(CASES[name], "all_gather", places_of(CASES[name])) for _ in range(2)]
            found[name] = runs[0], all(torch.equal(x, y) for x, y in zip(*runs))
        line = "fwd bf16 b1 hq4 hkv4 sq64 skv64 d64 causal"
        return found, cp.explain(line, size, "cpu", scheme="all_gather").partition("\n")[0]
    return job


def repeats(rank, size):
    """(scheme, the same bits in a second run and with NaN around rows)."""
    found = []
    names = ("softcap, scale, sink", "documents, everything")[:2 if size == 2 else 1]
    for name, scheme in itertools.product(names, SCHEMES[1:]):
        case = CASES[name] | dict(heads=(8, 2))
        runs = [compute(case, scheme, places_of(case), around) for around in (padded, padded, torch.clone)]
        found.append((scheme, [all(torch.equal(x, y) for x, y in zip(runs[0], run)) for run in runs]))
    return found


def part_of_the_ranks(rank, size):
    """The last rank and the first one, with numbers of their own; the others do not take part."""
    group = dist.new_group([0, size - 1])
    case = CASES["causal"]
    if rank not in (0, size - 1): return None
    return compute(case, "ring", places_of(case, group), group=group)


def without_host_memory(rank, size):
    """What ranks hear of each other over a group whose backend moves memory of GPUs alone."""
    group = dist.new_group(backend="cuda:gloo", timeout=datetime.timedelta(seconds=7))
    said = [groups.agree(group, "a test", lambda: {"same": 1}, lambda: {"rank": rank}) for _ in range(2)]
    return said, groups.host_group(group) is not group, groups.timeout_of(groups.host_group(group), "cpu").seconds


def kept(rank, size):
    """Most rows of what is kept for the backward pass, and how many rows this rank has."""
    case, rows = CASES["causal"], []
    places = places_of(case)
    q, k, v = (x[:, places].requires_grad_() for x in whole_of(case)[:3])
    with torch.autograd.graph.saved_tensors_hooks(lambda x: rows.append(x.numel()) or x, lambda x: x):
        o = cp.attention(q, k, v, causal=True)
    del o
    return sum(rows), sum(x.numel() for x in (q, k, v, q)) + q[..., 0].numel()


def lse_on_one_rank(rank, size):
    """Whether a rank that does not use lse gives what one gives whose lse has a gradient of 0."""
    case, runs = CASES["causal"], []
    places = places_of(case)
    *tensors, grad_o, grad_lse, _ = whole_of(case)
    for with_lse in (rank == 1, True):
        q, k, v = (x[:, places].requires_grad_() for x in tensors)
        results = cp.attention(q, k, v, causal=True, return_lse=True)
        grads = grad_o[:, places], rank * grad_lse[:, places].transpose(1, 2)
        runs.append(torch.autograd.grad(results[:1 + with_lse], (q, k, v), grads[:1 + with_lse]))
    return all(torch.equal(x, y) for x, y in zip(*runs))


def layouts(rank, size):
    """shard, unshard and positions, for lengths that ranks divide and that they do not."""
    found = []
    for layout in ("zigzag", "contiguous", "by_document"):
        for rows in (0, 1, 2 * size - 1, 2 * size, 50):
            x, documents = torch.arange(2 * rows).reshape(2, rows), [0, rows // 3, rows // 3, rows]
            own = cp.shard(x, layout=layout, cu_seqlens=documents)
            at = places(rows, layout, documents) if layout == "by_document" else cp.positions(rows, layout=layout)
            found.append((layout, rows, own, at, cp.unshard(own, layout=layout, cu_seqlens=documents),
                          cp.positions(rows, layout=layout, cu_seqlens=documents)))
    return found


def gradient_of_shard(rank, size):
    """Of a sum over this rank's rows times their places, and these places."""
    x, documents = torch.ones(9, requires_grad=True), torch.tensor([0, 2, 9])
    at = places(9, "by_document", documents)
    own = cp.shard(x, dim=0, layout="by_document", cu_seqlens=documents)
    return torch.autograd.grad((own * at).sum(), x)[0], at


def probed(rank, size):
    """What is measured of small sizes on two hosts, where rank 1 is slow: the numbers, the text of the file, and what a
    file that cannot be written is answered with."""
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    probing.SIZES["cpu"] = probing.Size(1 << 16, (2, 64, 16), torch.float32)
    call = probing.attention
    if rank == 1: probing.attention = lambda *inputs, **options: time.sleep(0.02) or call(*inputs, **options)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "machine.txt"
        numbers = cp.probe(file=file)
        text = file.read_text() if rank == 0 else None
    return numbers, text, caught(lambda: cp.probe(file="/proc/nowhere"))


def example(rank, size):
    """What examples/long_context.py says, as torchrun starts it."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1"}
    program, said = pathlib.Path(__file__).resolve().parents[2] / "examples/long_context.py", io.StringIO()
    if not program.exists(): return None
    sys.argv = [str(program), "--tokens", "301", "--check"]
    with contextlib.redirect_stdout(said): runpy.run_path(str(program), run_name="__main__")
    return said.getvalue()


def failing(sign, calls):
    """Rank 1 gets that signal before so many transfers of its second call, or before that call."""
    def job(rank, size):
        case = CASES["causal"]
        compute(case, "ring", places_of(case))
        if rank == 1:
            if not calls: os.kill(os.getpid(), sign)
            exchange, made = transport.Functions.exchange, itertools.count(1)

            def watched(*arguments):
                if next(made) == calls: os.kill(os.getpid(), sign)
                exchange(*arguments)
            transport.Functions.exchange = watched
        return caught(lambda: compute(case, "ring", places_of(case)))
    return job


def elsewhere(rank, size):
    """Rank 0 does not call at all."""
    if rank == 0: time.sleep(TIMEOUT + 2)
    return caught(lambda: cp.attention(*[torch.ones(1, 4, 2, 8)] * 3)) if rank else None


def compiled(rank, size):
    """Whether a compiled function gives what the plain one does, without a break; and other parts of PyTorch."""
    case = CASES["causal"]
    places = places_of(case)

    def layer(q, k, v): return cp.attention(q * 2, k, v, causal=True, window=(30, None)) + 1
    runs = []
    for function in (layer, torch.compile(layer, backend="aot_eager", fullgraph=True)):
        q, k, v = (x[:, places].requires_grad_() for x in whole_of(case)[:3])
        o = function(q, k, v)
        runs.append([o.detach(), *torch.autograd.grad(o, (q, k, v), torch.ones_like(o))])
    same = all(torch.equal(x, y) for x, y in zip(*runs))
    return same and compiled_documents(case, places), dtensors(rank, size), inside_of_pytorchs(rank, size)


def compiled_documents(case, places):
    """The same of documents, without gradients; the second ones come after the compilation."""
    def layer(q, k, v, documents): return cp.attention(q, k, v, causal=True, cu_seqlens=documents) + 1
    def by_document(q, k, v, documents):
        return cp.attention(q, k, v, causal=True, cu_seqlens=documents, layout="by_document")
    q, k, v = (x[:1, places] for x in whole_of(case)[:3])
    return all(torch.equal(call(q, k, v, ends), function(q, k, v, ends))
               for call in (layer, by_document) for function in [torch.compile(call, backend="aot_eager",
                                                                               fullgraph=True)]
               for ends in (torch.tensor([0, 30, 77]), torch.tensor([0, 7, 77])))


def inside_of_pytorchs(rank, size):
    """Whether buffers of PyTorch's context_parallel are what shard gives, and attention takes them."""
    from torch.distributed.tensor import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    mesh = init_device_mesh("cpu", (size,))
    whole = whole_of(PLAIN | dict(rows=8 * size))[:3]
    buffers = [x.clone() for x in whole]
    with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[1, 1, 1]):
        o = cp.attention(*buffers, mesh, causal=True)
    return torch.equal(o, cp.attention(*(cp.shard(x) for x in whole), causal=True))


def dtensors(rank, size):
    """(placements of o, all of o, whether gradients are those of plain tensors, what is said of an odd length)."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
    mesh, whole = init_device_mesh("cpu", (size,)), whole_of(CASES["bf16"])[:4]

    def spread(x): return distribute_tensor(x, mesh, [Shard(1)])
    runs = []
    for cut in (spread, lambda x: cp.shard(x, layout="contiguous")):
        q, k, v, grad_o = (cut(x).detach() for x in whole)
        o = cp.attention(q.requires_grad_(), k.requires_grad_(), v, causal=True,
                         layout=None if cut is spread else "contiguous")
        runs.append([o.detach(), *torch.autograd.grad(o, (q, k), grad_o)])
    same = all(torch.equal(x.to_local(), y) for x, y in zip(*runs))
    packed = [cp.attention(*(cut(x[:1]).detach() for x in whole[:3]), causal=True, cu_seqlens=[0, 29, 96],
                           layout="contiguous") for cut in (spread, lambda x: cp.shard(x, layout="contiguous"))]
    same &= torch.equal(packed[0].to_local(), packed[1])
    options = dict(layout="by_document", cu_seqlens=[0, 29, 96])
    own = [cp.shard(x[:1], **options).detach() for x in whole[:3]]
    placed = [DTensor.from_local(x, mesh, [Shard(1)]) for x in own]
    packed = [cp.attention(*three, causal=True, **options) for three in (placed, own)]
    same &= torch.equal(packed[0].to_local(), packed[1])
    uneven = caught(lambda: cp.attention(*[spread(torch.ones(1, 3, 2, 8))] * 3))
    x = spread(torch.ones(1, 4, 2, 8))
    whole_x = distribute_tensor(torch.ones(1, 4, 2, 8), mesh, [Replicate()])
    alone = [caught(call) for call in (  # rank 1 alone is wrong
        lambda: cp.attention(x, x.to_local() if rank else x, x), lambda: cp.attention(x, x, whole_x if rank else x),
        lambda: cp.attention(*[whole_x if rank else x] * 3),
        lambda: cp.attention(x, x, x, causal=3.5 if rank else True),
        lambda: cp.attention(x, x, x, scheme="round" if rank else "ring"))]
    alone.append(cp.attention(x, x, x).to_local().sum().item())
    return str(runs[0][0].placements), runs[0][0].full_tensor(), same, uneven, alone


# Groups that run at the same time; then the next ones. (job, what it does, ranks, seconds of the group's timeout, 0
# where the job makes its group itself)
ROUNDS = [
    [("numbers 2", numbers, 2, 30)],
    [("numbers 4", numbers, 4, 30)],
    [(f"chunks {way.replace('/', ' of ')} {size}", in_chunks(way), size, 30) for way in CHUNKS for size in (2, 4)],
    [("repeats", repeats, 2, 30), ("layouts", layouts, 3, 30), ("part", part_of_the_ranks, 3, 30),
     ("kept", kept, 2, 30), ("gradient of shard", gradient_of_shard, 2, 30), ("lse", lse_on_one_rank, 2, 30),
     ("disagreeing", disagreeing, 3, 30), ("without host memory", without_host_memory, 2, 30),
     ("probe", probed, 4, 30)],
    [("compiled", compiled, 2, 30), ("repeats 8", repeats, 8, 30), ("example", example, 2, 0)],
    [("killed", failing(signal.SIGKILL, 0), 3, TIMEOUT), ("killed within", failing(signal.SIGKILL, 2), 3, TIMEOUT),
     ("stopped", failing(signal.SIGSTOP, 0), 3, TIMEOUT), ("stopped within", failing(signal.SIGSTOP, 2), 3, TIMEOUT),
     ("elsewhere", elsewhere, 2, TIMEOUT)],
]


def run_rank(folder, name, job, rank, size, seconds):
    if seconds:
        store = dist.FileStore(str(folder / f"{name}.store"), size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size,
                                timeout=datetime.timedelta(seconds=seconds))
    found = job(rank, size)
    (folder / f"{name}.{rank}.part").write_bytes(pickle.dumps(found))
    (folder / f"{name}.{rank}.part").rename(folder / f"{name}.{rank}")


def start(folder, name, job, rank, size, seconds):
    """The process of a rank, which never returns from here."""
    if child := os.fork(): return child
    try:
        torch.set_num_threads(1)
        run_rank(folder, name, job, rank, size, seconds)
    except BaseException: traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


def main(folder, rounds):
    """Runs the groups of each round at the same time, and the rounds one after the other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    for jobs in rounds:
        ranks = {start(folder, name, job, rank, size, seconds): (name, rank)
                 for name, job, size, seconds in jobs for rank in range(size)}
        stopped = {child for child, (name, rank) in ranks.items() if name.startswith("stopped") and rank == 1}
        left, end = set(ranks), time.monotonic() + LIMIT
        while left > stopped and time.monotonic() < end:
            child, _ = os.waitpid(-1, os.WNOHANG)
            if child: left.discard(child)
            else: time.sleep(0.01)
        for child in left:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), ROUNDS)
