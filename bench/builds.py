#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several builds of the library in turns, in one process: what a change of a kernel brings.

  bench/builds.py --build before=LIB.so --build after=LIB.so [LINE|SUITE ...] [--hints 'widened=0'] [--device cpu]

Prints microseconds of a call of the first build, and how many times as fast the others are. Builds without presets
will do (-DFROGHOPPER_PRESETS=OFF, minutes to make): kernels that are missing are compiled first, side by side, each in
a process of its own. Needs PyTorch. For other libraries there is compare.py, which also keeps what it measures.
"""
import argparse
import collections
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import time

import torch

import contenders
import gradients
import turns
from compare import read_suite
from froghopper_ctypes import Error, Froghopper

LINES = [f"bwd bf16 b{16384 // rows} hq16 hkv16 sq{rows} skv{rows} d128{mask}" for mask in ("", " causal")
         for rows in (512, 1024, 4096, 16384)]
COMPILE = "compile"  # the word by which this program calls itself
Build = collections.namedtuple("Build", "library path target")


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("lines", nargs="*", default=LINES, metavar="LINE|SUITE", help="problem lines and files of them")
    p.add_argument("--build", action="append", required=True, dest="builds", metavar="NAME=LIB.so",
                   help="one of them; the first is what the others are compared with")
    p.add_argument("--hints", default="", help="of all builds but the first, e.g. 'widened=0'")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("--rounds", type=int, default=9, help="turns of every build (default 9)")
    p.add_argument("--ms", type=float, default=6, help="length of one turn (default 6)")
    p.add_argument("--budget", type=float, default=0, metavar="SECONDS", help="begin no further line after this time")
    a = p.parse_args()
    a.lines = [line for what in a.lines for line in (read_suite(what) if pathlib.Path(what).is_file() else [what])]
    return a


def call_of(cell, library, target):
    """A call of the pass that the line names."""
    if not cell.problem.is_backward(): return next(iter(contenders.froghopper(cell, library, target).values()))
    layer = next(iter(gradients.froghopper_layer("froghopper", cell.problem, cell, library, target).values()))
    layer.forward()  # whose lse the gradients need
    return layer.backward


def kernels_of(library, line, target):
    return frozenset(word for word in library.plan(library.problem(line), target).name().split() if "." in word)


def compile_missing(a, builds):
    """Everything that is not in a library or in the disk cache yet."""
    wanted = []
    for library, path, target in builds.values():
        seen = set()
        for line in a.lines:
            try: kernels = kernels_of(library, line, target)
            except Error: continue  # said when its turn comes
            if not kernels <= seen: wanted.append([path, target, line])
            seen |= kernels
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda job: subprocess.run([sys.executable, __file__, COMPILE, *job], stdout=subprocess.DEVNULL,
                                                 stderr=subprocess.DEVNULL), wanted))


def compile_one(path, target, line):
    library = Froghopper(path)
    torch.cuda.set_stream(torch.cuda.Stream())
    call_of(contenders.Cell.make(library, line, "cuda"), library, target)()
    torch.cuda.synchronize()


def row(a, builds, clock, line):
    first = next(iter(builds))
    cell = contenders.Cell.make(builds[first].library, line, a.device)
    calls = {(name,): call_of(cell, build.library, build.target) for name, build in builds.items()}
    measured = turns.in_turns(calls, a.device == "cuda", a.ms, a.rounds, clock, print)
    if len(measured) < len(builds): return f"  {line}: not measured"  # and in_turns has said why
    mine = measured.pop((first,))
    others = " ".join(f"{name} {mine.ms / its.ms:5.3f}" for (name,), its in measured.items())
    return f"{mine.ms * 1e3:10.1f} us {mine.spread:4.1f} % {mine.sm_clock_mhz or '-':>5} MHz  {others}  {line}"


def main():
    if sys.argv[1:2] == [COMPILE]: return compile_one(*sys.argv[2:])
    a, began = arguments(), time.time()
    builds = {}
    for name, path in (text.split("=", 1) for text in a.builds):
        target = " ".join(filter(None, (contenders.TARGETS[a.device], a.hints if builds else "")))
        builds[name] = Build(Froghopper(os.path.abspath(path)), os.path.abspath(path), target)
    if a.device == "cuda":
        torch.cuda.set_stream(torch.cuda.Stream())
        compile_missing(a, builds)
    clock = turns.Clock() if a.device == "cuda" else None
    for i, line in enumerate(a.lines):
        if a.budget and time.time() - began > a.budget:
            print(f"out of time: {len(a.lines) - i} of {len(a.lines)} lines were not measured, from {line}")
            break
        try: print(row(a, builds, clock, line), flush=True)
        except Error as problem: print(f"  {line}: {problem}", flush=True)


if __name__ == "__main__":
    main()
