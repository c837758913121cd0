# SPDX-License-Identifier: Apache-2.0
"""The measurements of bench/builds.py: what is missing in a build is compiled first, then every line is timed."""
import collections
import concurrent.futures
import os
import subprocess
import sys
import time

import torch

from . import contenders, gradients, turns
from .command import BENCH
from .froghopper_ctypes import Error, Froghopper

COMPILE = "compile"  # the word by which bench/builds.py is called for one kernel
Build = collections.namedtuple("Build", "library path target")


def call_of(cell, library, target):
    """A call of the pass that the line names."""
    if not cell.problem.is_backward(): return next(iter(contenders.froghopper(cell, library, target).values()))
    layers = gradients.froghopper_layer("froghopper", cell.problem, cell, library, target)
    return next(iter(gradients.backward_calls(layers).values()))


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
        program = [sys.executable, str(BENCH / "builds.py"), COMPILE]
        list(pool.map(lambda job: subprocess.run([*program, *job], stdout=subprocess.DEVNULL,
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


def run(a):
    began, builds = time.time(), {}
    for name, path in (text.split("=", 1) for text in a.builds):
        target = " ".join(filter(None, (contenders.TARGETS[a.device], a.hints if builds else "")))
        builds[name] = Build(Froghopper(os.path.abspath(path)), os.path.abspath(path), target)
    if a.device == "cuda":
        torch.cuda.set_stream(torch.cuda.Stream())
        if not a.presets: compile_missing(a, builds)
    clock = turns.Clock() if a.device == "cuda" else None
    for i, line in enumerate(a.lines):
        if a.budget and time.time() - began > a.budget:
            print(f"out of time: {len(a.lines) - i} of {len(a.lines)} lines were not measured, from {line}")
            break
        try: print(row(a, builds, clock, line), flush=True)
        except Error as problem: print(f"  {line}: {problem}", flush=True)
