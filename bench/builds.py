#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several builds of the library in turns, in one process: what a change of a kernel brings.

  bench/builds.py --build before=LIB.so --build after=LIB.so [LINE|SUITE ...] [--hints 'widened=0'] [--device cpu]

Prints microseconds of a call of the first build, and how many times as fast the others are. Builds without presets
will do (-DFROGHOPPER_PRESETS=OFF, minutes to make): kernels that are missing are compiled first, side by side, each in
a process of its own. Needs PyTorch. For other libraries there is compare.py, which also keeps what it measures.
"""
import argparse
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
    p.add_argument("--only-compile", action="store_true", help="run every line once and print nothing")
    a = p.parse_args()
    a.lines = [line for what in a.lines for line in (read_suite(what) if pathlib.Path(what).is_file() else [what])]
    return a


def call_of(cell, library, target):
    """A call of the pass that the line names."""
    of_pass = gradients.froghopper_layer("froghopper", cell.problem, cell, library, target) \
        if cell.problem.is_backward() else contenders.froghopper(cell, library, target)
    call = next(iter(of_pass.values()))
    if not cell.problem.is_backward(): return call
    call.forward()  # whose lse the gradients need
    return call.backward


def kernels_of(library, line, target):
    return frozenset(word for word in library.plan(library.problem(line), target).name().split() if "." in word)


def compile_missing(a, builds, target):
    """Everything that is not in a library or in the disk cache yet."""
    wanted = []
    for name, path in builds.items():
        library, seen = Froghopper(path), set()
        for line in a.lines:
            try: kernels = kernels_of(library, line, target)
            except Error: continue  # said when its turn comes
            if not kernels <= seen: wanted.append((name, path, line))
            seen |= kernels
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda job: subprocess.run(
            [sys.executable, __file__, "--build", f"{job[0]}={job[1]}", "--device", a.device, "--only-compile", job[2]],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL), wanted))


def row(a, libraries, target, clock, line):
    first = next(iter(libraries))
    cell = contenders.Cell.make(libraries[first], line, a.device)
    calls = {(name,): call_of(cell, library, target if name == first else f"{target} {a.hints}".strip())
             for name, library in libraries.items()}
    if a.only_compile:
        for call in calls.values(): call()
        return ""
    measured = turns.in_turns(calls, a.device == "cuda", a.ms, a.rounds, clock, print)
    mine = measured[first,]
    others = " ".join(f"{name} {mine.ms / measured[name,].ms:5.3f}" for name in libraries if name != first)
    return f"{mine.ms * 1e3:10.1f} us {mine.spread:4.1f} % {mine.sm_clock_mhz or '-':>5} MHz  {others}  {line}"


def main():
    a, began = arguments(), time.time()
    builds = {name: os.path.abspath(path) for name, path in (text.split("=", 1) for text in a.builds)}
    target = {"cuda": "hopper", "cpu": "cpu"}[a.device]
    if a.device == "cuda": torch.cuda.set_stream(torch.cuda.Stream())
    if a.device == "cuda" and not a.only_compile: compile_missing(a, builds, target)
    libraries = {name: Froghopper(path) for name, path in builds.items()}
    clock = turns.Clock() if a.device == "cuda" and not a.only_compile else None
    for i, line in enumerate(a.lines):
        if a.budget and time.time() - began > a.budget:
            print(f"out of time: {len(a.lines) - i} of {len(a.lines)} lines were not measured, from {line}")
            break
        try: print(row(a, libraries, target, clock, line), flush=True)
        except (Error, KeyError) as problem: print(f"  {line}: {problem}", flush=True)


if __name__ == "__main__":
    main()
