#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/15-context-parallel-scale.md: what the plans of libfroghopper-cp predict for 2 to 4096 GPUs.

usage: python3 tools/context_parallel_plan.py LIBRARY

LIBRARY is libfroghopper.so, libfroghopper-cp.so beside it. No GPU is needed: plans for "h100" are made and read, not
run.
"""
import ctypes
import functools
import itertools
import json
import os
import sys

import tree

RANKS = (2, 4, 8, 64, 512, 4096)
GPUS = [f"{ranks} GPUs" for ranks in RANKS]
PER_HOST = 8
LENGTHS = (32768, 131072, 1048576)
HEADS = ((16, 16), (64, 8))
PASSES = {"fwd": "forward", "bwd": "backward"}
LONGEST = 26  # of the search for a length: 2^26 tokens
WORTH_IT = 0.9
SCHEMES = ("ring", "all_gather", "all_to_all")
LAYOUTS = {"window": "contiguous", "varlen": "by_document"}  # of bench/measure/parallel.py
MEASURED = tree.ROOT / "bench/results/context_parallel"

OPENING = f"""# 15. Context parallelism at scale

tools/context_parallel_plan.py writes this page from the plans of libfroghopper-cp; do not edit it. **Only the last
table has measurements**, on 2 and 4 GPUs. All other figures are predictions of the model of time that
[15-context-parallel-c.md](15-context-parallel-c.md) explains. They are for H100 or H200 SXM. The {PER_HOST} GPUs of a
host have NVLink, and between hosts each GPU has a NIC of 400 Gbit. Up to {PER_HOST} GPUs copy into the memory of their
peers; more GPUs send and receive. src/cp/time.cpp says which of its figures were measured, and which come from data
sheets. Every problem is in bf16 with head dim 128 and batch 1, and is causal.

Each cell has the share of linear speed, the scheme that was chosen, and the workspace of a rank. The share is the time
of one GPU, divided by the number of GPUs and by the time of the plan. The schemes all_to_all_ring and
all_to_all_gather have two levels: the first number is how many neighbours exchange heads, and the second is how many
groups of these there are.
"""


def line_of(name, heads, tokens):
    return f"{name} bf16 b1 hq{heads[0]} hkv{heads[1]} sq{tokens} skv{tokens} d128 causal"


class Planner:
    def __init__(self, library):
        os.environ["FROGHOPPER_LIBRARY"] = library
        sys.path.insert(0, str(tree.ROOT / "python"))
        from froghopper import _library, _parallel
        self.library, self.parallel, self.calls = _library.library(), _parallel, _parallel.calls()

    @functools.cache
    def plan(self, line, ranks, scheme="auto", layout="zigzag", copies=None, chunks=True):
        """Seconds of the slowest rank, the scheme's name, bytes of workspace. copies: ranks of one host copy into their
        peers' memory; None: where they can, as in Python. chunks: an all-gather may have some. Lengths of documents
        follow a varlen line."""
        os.environ["FROGHOPPER_CP_CHUNKS"] = "" if chunks else "0"
        if copies is None: copies = 1 < ranks <= PER_HOST
        line, _, lengths = line.partition(" : lens_q=")
        whole, pointer, ends = self.library.problem(line), ctypes.c_void_p(), None
        if lengths:  # one row, as plans over ranks have it
            documents = [0, *itertools.accumulate(map(int, lengths.split(",")))]
            ends = (ctypes.c_int64 * len(documents))(*documents)
            whole.varlen, whole.batch, whole.seq_q, whole.seq_kv = 0, 1, documents[-1], documents[-1]
            whole.total_q = whole.total_kv = 0
        asked = self.parallel.described(whole, ranks, ranks // 2, scheme, layout, 0 if copies else PER_HOST, copies,
                                        ends)
        self.parallel.check_status(self.calls.fh_cp_plan_create(ctypes.byref(asked), b"h100", ctypes.byref(pointer)))
        scheme = self.calls.fh_cp_scheme_name(self.calls.fh_cp_plan_scheme(pointer)).decode()
        if neighbours := self.calls.fh_cp_plan_heads_ranks(pointer): scheme += f" {neighbours} x {ranks // neighbours}"
        found = self.calls.fh_cp_plan_seconds(pointer), scheme, self.calls.fh_cp_plan_workspace_bytes(pointer)
        self.calls.fh_cp_plan_destroy(pointer)
        return found

    def share(self, line, ranks): return self.plan(line, 1)[0] / ranks / self.plan(line, ranks)[0]

    def worth_it_from(self, name, heads, ranks):
        """The first power of two of tokens, at least as many as ranks, with WORTH_IT of linear speed; None up to
        2^LONGEST."""
        shortest = max(10, ranks.bit_length())
        return next((2**n for n in range(shortest, LONGEST + 1)
                     if self.share(line_of(name, heads, 2**n), ranks) >= WORTH_IT), None)


def thousands(tokens): return f"{tokens >> 20}M" if tokens >= 1 << 20 else f"{tokens >> 10}k"


def table(names, figures, rows):
    """Columns of names, then of figures."""
    lines = [[*names, *figures], ["---"] * len(names) + ["---:"] * len(figures), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def predicted(planner):
    rows = []
    for heads in HEADS:
        for name, long_name in PASSES.items():
            for tokens in LENGTHS:
                line = line_of(name, heads, tokens)
                alone = planner.plan(line, 1)[0]
                cells = []
                for ranks in RANKS:
                    seconds, scheme, workspace = planner.plan(line, ranks)
                    cells.append(f"{alone / ranks / seconds:.2f} {scheme}, {workspace / 2**30:.1f} GiB")
                rows.append([f"{heads[0]}/{heads[1]}", long_name, thousands(tokens), f"{1e3 * alone:.0f} ms", *cells])
    return table(["heads", "pass", "tokens", "one GPU"], GPUS, rows)


def lengths(planner):
    rows = []
    for heads in HEADS:
        for name, long_name in PASSES.items():
            found = [planner.worth_it_from(name, heads, ranks) for ranks in RANKS]
            rows.append([f"{heads[0]}/{heads[1]}", long_name,
                         *(thousands(x) if x else f"over {thousands(2**LONGEST)}" for x in found)])
    return table(["heads", "pass"], GPUS, rows)


def compared(planner):
    """How many predicted times are near the measured ones of MEASURED, of how many; a table of their ratios."""
    records = [json.loads(line) for path in sorted(MEASURED.glob("*.jsonl")) for line in path.read_text().splitlines()]
    cells = {}
    for r in records:  # where there are several, the last
        impl, _, transfers = r["impl"].partition(", ")
        if r["pass"] == "decode" or impl not in ("one GPU", *SCHEMES): continue  # the plans are those of attention
        ranks, scheme = (1, "auto") if impl == "one GPU" else (r["ranks"], impl)
        layout = next((found for word, found in LAYOUTS.items() if word in r["problem"]), "zigzag")
        chunks = r.get("chunks", False)
        predicted = sum(planner.plan(f"{name} {r['problem']}", ranks, scheme, layout, bool(transfers), chunks)[0]
                        for name in r["pass"].split("+"))
        on = f"{r['ranks']} x {r['gpu'].removeprefix('NVIDIA ')}{transfers and ', ' + transfers}"
        cells.setdefault((r["problem"].removeprefix("bf16 b1 "), r["pass"], on), {})[impl] = 1e3 * predicted / r["ms"]
    names = ["one GPU", *SCHEMES]
    rows = [[*of_row, *(f"{row[name]:.2f}" if name in row else "" for name in names)] for of_row, row in cells.items()]
    near = [0.9 <= x <= 1.1 for row in cells.values() for x in row.values()]
    return sum(near), len(near), table(["problem", "pass", "on"], names, rows)


def main():
    planner = Planner(sys.argv[1])
    print(OPENING)
    print(predicted(planner))
    print("\n## From which length on it is worth it\n")
    print(f"Each cell is the first power of two of tokens at which the share is at least {WORTH_IT}.\n")
    print(lengths(planner))
    near, count, ratios = compared(planner)
    print("\n## Predicted and measured\n")
    print("Each cell is the predicted time divided by the measured one of bench/results/context_parallel. "
          f"{near} of {count} lie between\n0.90 and 1.10. The longest of these problems gave the model its rates of "
          "attention. Some problems were measured before the\nall-gather had chunks. They are compared with plans "
          "without chunks.\n")
    print(ratios)
    return 0


if __name__ == "__main__":
    sys.exit(main())
