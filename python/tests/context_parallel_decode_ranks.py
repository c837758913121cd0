# SPDX-License-Identifier: Apache-2.0
"""The ranks of test_context_parallel_decode.py, started as context_parallel_ranks.py starts its own.

usage: python3 context_parallel_decode_ranks.py FOLDER      writes what each rank found to FOLDER/JOB.RANK
"""
import pathlib
import sys

import torch
from context_parallel_ranks import caught, drawn, main

from froghopper.torch import context_parallel as cp

PAGE = 16
NO_PAGE = 2147480000

# LENGTHS are those of the whole caches. split: how they are spread; new: rows of q; newest: "none", "last" rank, or
# "each", a rank of its own for each sequence.
LENGTHS = (53, 0, 17, 130)
PLAIN = dict(heads=(8, 2), dims=(16, 16), dtype="float32", paged=False, split="uneven", new=1, newest="none", used=True,
             options={})
CASES = {name: PLAIN | changes for name, changes in {
    "dense": {},
    "dense, bf16": dict(dtype="bfloat16"),
    "paged": dict(paged=True),
    "paged, bf16": dict(paged=True, dtype="bfloat16"),
    "paged, one part": dict(paged=True, split="one", dtype="bfloat16"),
    "one part": dict(split="one"),
    "all rows of k": dict(split="even", used=False),
    "one key head": dict(heads=(8, 1), paged=True),
    "as many key heads, two dims": dict(heads=(4, 4), dims=(24, 16)),
    "sink": dict(options=dict(sink="drawn")),
    "paged, sink, bf16": dict(options=dict(sink="drawn"), paged=True, dtype="bfloat16"),
    "softcap, scale": dict(options=dict(softcap=3.0, scale=0.4), paged=True),
    "softcap, sink": dict(options=dict(softcap=3.0, sink="drawn")),
    "equal weights": dict(options=dict(scale=0.0), dtype="bfloat16"),
    "paged, equal weights": dict(options=dict(scale=0.0), dtype="bfloat16", paged=True),
    "new rows that see all": dict(new=3),
    "new rows, the last rank": dict(new=3, newest="last"),
    "new rows, each its rank": dict(new=3, newest="each"),
    "new rows, each its rank, pages": dict(new=3, newest="each", paged=True, dtype="bfloat16",
                                           options=dict(sink="drawn")),
    "new rows, each its rank, all rows of k": dict(new=3, newest="each", split="even", used=False),
}.items()}
WAYS = ("all", "sharded")


def whole_of(case):
    """q, k and v of the whole caches, padded to one length, and options."""
    (heads, heads_kv), (dim, dim_v), batch = case["heads"], case["dims"], len(LENGTHS)
    rows = max(lengths_of(case))
    shapes = ((case["new"], heads, dim), (rows, heads_kv, dim), (rows, heads_kv, dim_v))
    tensors = [drawn(batch, *shape, seed=seed, dtype=case["dtype"]) for seed, shape in enumerate(shapes)]
    return *tensors, {name: drawn(heads, seed=9) if value == "drawn" else value
                      for name, value in case["options"].items()}


def lengths_of(case): return LENGTHS if case["used"] else (64,) * len(LENGTHS)


def newest_of(case, size):
    """Which rank has the newest rows of each sequence; that of the last rows of the whole."""
    return [size - 1 if case["newest"] != "each" else at % size for at in range(len(LENGTHS))]


def parts_of(case, size):
    """[sequence][rank]: (first row, end). The ranks' parts lie in their order, but for that of the newest rows, which
    is the last one."""
    found = []
    for length, newest in zip(lengths_of(case), newest_of(case, size)):
        # The weights of "uneven" leave the first rank nothing of a short sequence; "one" all ranks but the second.
        weights = {"even": [1] * size, "uneven": [rank**3 for rank in range(1, size + 1)],
                   "one": [rank == 1 for rank in range(size)]}[case["split"]]
        ends = [length * sum(weights[:rank + 1]) // sum(weights) for rank in range(size)]
        spans = list(zip([0, *ends], ends))
        order = [rank for rank in range(size) if rank != newest] + [newest]
        found.append([spans[order.index(rank)] for rank in range(size)])
    return found


def cache_of(case, rank, size):
    """k, v and what decode takes beside them: rows that do not count are NaN."""
    _, k, v, _ = whole_of(case)
    spans = [of_ranks[rank] for of_ranks in parts_of(case, size)]
    used = torch.tensor([end - begin for begin, end in spans], dtype=torch.int32)
    if not case["paged"]:
        rows = int(used.max()) + (3 if case["used"] else 0)
        parts = [x.new_full((len(spans), rows, *x.shape[2:]), float("nan")) for x in (k, v)]
        for at, (begin, end) in enumerate(spans):
            for part, x in zip(parts, (k, v)): part[at, :end - begin] = x[at, begin:end]
        return *parts, dict(seqused_kv=used) if case["used"] else {}
    columns = -(-max(lengths_of(case)) // PAGE)  # of every rank, as an engine has one shape for all
    table = torch.full((len(spans), columns), NO_PAGE, dtype=torch.int32)
    pools = [x.new_full((len(spans) * columns, PAGE, *x.shape[2:]), float("nan")) for x in (k, v)]
    pages = iter(torch.randperm(len(spans) * columns, generator=torch.Generator().manual_seed(rank)).tolist())
    for at, (begin, end) in enumerate(spans):
        for column, row in enumerate(range(begin, end, PAGE)):
            table[at, column] = page = next(pages)
            count = min(PAGE, end - row)
            for pool, x in zip(pools, (k, v)): pool[page, :count] = x[at, row:row + count]
    return *pools, dict(seqused_kv=used, block_table=table)


def arguments_of(case, way, rank, size):
    """What decode is given on this rank."""
    q, *_, options = whole_of(case)
    k, v, beside = cache_of(case, rank, size)
    if case["new"] > 1:
        newest = [each == rank for each in newest_of(case, size)]
        beside["newest"] = {"none": False, "last": newest[0], "each": torch.tensor(newest)}[case["newest"]]
    if way == "sharded":
        q = q.chunk(size, 2)[rank]
        if "sink" in options: options["sink"] = options["sink"].chunk(size)[rank].clone()
    return (q, k, v), dict(heads=way, return_lse=True) | beside | options


def numbers(rank, size):
    """Of every case: o, lse and whether a second run has the same bits."""
    found = {}
    for name, case in CASES.items():
        for way in WAYS:
            tensors, options = arguments_of(case, way, rank, size)
            runs = [cp.decode(*tensors, **options) for _ in range(2)]
            found[name, way] = *runs[0], all(torch.equal(x, y) for x, y in zip(*runs))
    return found


def other(rank, size):
    """Whether a compiled function gives what the plain one does, without a break; types of results without lse; and
    what is said of gradients."""
    same = []
    for name in ("sink", "new rows, each its rank, pages"):
        for way in WAYS:
            tensors, options = arguments_of(CASES[name], way, rank, size)

            def layer(q, k, v, options=options):
                o, lse = cp.decode(q * 2, k, v, **options)
                return o + 1, lse
            made = torch.compile(layer, backend="aot_eager", fullgraph=True)(*tensors)
            same.append(all(torch.equal(x, y) for x, y in zip(layer(*tensors), made)))
    (q, k, v), options = arguments_of(CASES["dense, bf16"], "all", rank, size)
    o = cp.decode(q, k, v, seqused_kv=options["seqused_kv"])
    kept = caught(lambda: cp.decode(q.clone().requires_grad_(), k, v, seqused_kv=options["seqused_kv"]))
    return same, (o.dtype, o.shape), kept[:2]


def different(rank, size):
    """What is said where ranks differ in what they must give alike, and whether a call after that gets through."""
    q, k, v = drawn(1, 1, 4, 8, seed=1), drawn(1, 5, 2, 8, seed=2), drawn(1, 5, 2, 8, seed=3)
    sink = drawn(4, seed=4)
    other_sink = sink.clone()
    other_sink[3] += rank
    whole = dict(sink=sink)
    given = {
        "numbers of a sink": dict(sink=other_sink),
        "no sink": whole if rank == 0 else {},
        "no sink, sharded": dict(heads="sharded") | (whole if rank == 1 else {}),
        "softcap": dict(softcap=1.0 + rank),
        "numbers of a sink, sharded": dict(heads="sharded", sink=other_sink),
        "nothing": whole,
        "newest on both": dict(q=drawn(1, 2, 4, 8, seed=1), newest=True),
    }
    def call(options): return cp.decode(**(dict(q=q, k=k, v=v) | options))
    return {name: caught(lambda options=options: call(options)) for name, options in given.items()}


def refused(rank, size):
    """What is said on each rank where rank 1 refuses its arguments, and o of the next call, which must be the next one
    on every rank."""
    q, k, v = drawn(1, 1, 4, 8, seed=1), drawn(1, 5, 2, 8, seed=2), drawn(1, 5, 2, 8, seed=3)
    of_rank_1 = {
        "a name": lambda: cp.decode(q, k, v, sofcap=2.0),
        "v missing": lambda: cp.decode(q, k),
        "q missing": lambda: cp.decode(k=k, v=v),
        "heads": lambda: cp.decode(q, k, v, heads="some"),
        "newest": lambda: cp.decode(q, k, v, newest=3),
        "twice": lambda: cp.decode(q, k, v, q=q),
        "seqused_kv": lambda: cp.decode(q, k, v, seqused_kv=torch.tensor([2, 3], dtype=torch.int32)),
        "seqused_kv, sharded": lambda: cp.decode(q, k, v, seqused_kv=torch.tensor([2, 3], dtype=torch.int32),
                                                 heads="sharded"),
    }
    k[:, 3:] *= rank + 1
    right = cp.decode(q, k, v)
    found = {}
    for name, call in of_rank_1.items():
        way = "sharded" if name.endswith("sharded") else "all"
        said = caught(call if rank == 1 else lambda way=way: cp.decode(q, k, v, heads=way))
        cp.decode(2 * q, k, v)
        found[name] = *said, torch.equal(cp.decode(q, k, v), right)
    return found


ROUNDS = [[("numbers 2", numbers, 2, 30), ("other", other, 2, 30), ("different", different, 2, 30),
           ("refused", refused, 2, 30)],
          [("numbers 4", numbers, 4, 30)]]

if __name__ == "__main__": main(pathlib.Path(sys.argv[1]), ROUNDS)
