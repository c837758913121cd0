#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The CPU backend against PyTorch's scaled_dot_product_attention, both passes, in turns, on this machine's CPU.

  bench/cpu_vs_torch.py --lib build/libfroghopper.so
  bench/cpu_vs_torch.py --lib build/libfroghopper.so --json bench/results/cpu.jsonl
  bench/cpu_vs_torch.py --only 'bwd f32.*causal' --threads 1

Both read the same tensors, [batch, heads, seq, dim] in memory, which is the order that PyTorch likes best, and both
use the same number of threads. A ratio is the median over rounds of PyTorch's time over ours in the same round, so
that what else the machine does in a round meets both.

Where the processor has AMX, PyTorch runs twice, the second time without it (bench/other_process.py): a ratio to both is
printed, and "AMX gain" says whether PyTorch used it. Every JSON line has what the processor has for bf16 and that gain;
which instructions ours used is the first word of its plan. Exit status 1: a ratio to PyTorch as it is by default is
below what the project promises. Needs PyTorch.
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import random
import re
import secrets
import statistics
import sys

import torch

import compare
import contenders
import cpu_calls
import other_process
import turns
import work
from froghopper_ctypes import Froghopper

HERE = pathlib.Path(__file__).resolve().parent
AMX_IN_USE = 1.1  # a gain above this is no noise


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lib", default=str(HERE.parent / "build/libfroghopper.so"))
    p.add_argument("--suite", nargs="+", default=[str(HERE / f"suites/cpu_{kind}.txt") for kind in ("fwd", "bwd")],
                   help="files of problem lines")
    p.add_argument("--only", default="", metavar="REGEX", help="lines of the suite that match")
    p.add_argument("--threads", type=int, help="of both; default: one a core")
    p.add_argument("--rounds", type=int, default=15)
    p.add_argument("--ms", type=float, default=60, help="length of one turn")
    p.add_argument("--json", metavar="FILE.jsonl", help="append one line a measurement")
    p.add_argument("--commit", default=os.environ.get("FROGHOPPER_COMMIT", ""))
    return p.parse_args()


def main():
    a = arguments()
    a.threads_used = a.threads or os.cpu_count()
    torch.set_num_threads(a.threads_used)
    library = Froghopper(os.path.abspath(a.lib))
    instructions = other_process.bf16_instructions()
    facts = {"sm_clock_mhz": None, "gpu": compare.device_name("cpu"), "driver": "",
             "commit": a.commit or compare.commit_here(), "cpu_bf16": instructions, "torch": torch.__version__}
    print(f"froghopper {facts['commit']}, torch {torch.__version__}, {facts['gpu']}, "
          f"for bf16: {', '.join(instructions) or 'nothing'}")
    columns = f"{'ours':>7}{'torch':>7}{'no AMX':>7} GFLOP/s{'ratio':>7}{'no AMX':>7}{'promised':>10}{'AMX gain':>10}"
    print(f"{'problem':54}{columns}")
    with contextlib.ExitStack() as stack:
        without_amx = stack.enter_context(other_process.OtherProcess(
            other_process.WITHOUT_AMX, os.path.abspath(a.lib), a.threads_used)) if "amx_bf16" in instructions else None
        lines = [line for suite in a.suite for line in compare.read_suite(suite) if re.search(a.only, line)]
        kept = [measure(a, library, line, without_amx, facts) for line in lines]
    return 0 if all(kept) else 1


def measure(a, library, line, without_amx, facts):
    """One row of the table and its JSON lines; whether the promise is kept."""
    cell = contenders.Cell.make(library, line + (f" sms{a.threads}" if a.threads else ""), "cpu")
    times = in_turns(contenders.heads_outside(cell), library, a, without_amx)
    ours, *theirs = times.values()
    ratios = [statistics.median(t / o for o, t in zip(ours, other)) for other in theirs]
    gain = statistics.median(t / with_it for with_it, t in zip(*theirs)) if without_amx else None
    speeds = [f"{work.flops(cell.problem) / statistics.median(t) / 1e6:.0f}" for t in times.values()]
    absent = [] if without_amx else ["-"]
    row = [*speeds, *absent], [*(f"{ratio:.2f}" for ratio in ratios), *absent]
    print(f"{line:54}{''.join(f'{x:>7}' for x in row[0])}        {''.join(f'{x:>7}' for x in row[1])}"
          f"{promised(cell.problem, gain):10.2f}{f'{gain:.2f}' if gain else '-':>10}", flush=True)
    if a.json:
        record(a.json, library, cell.problem, times, {**facts, "torch_amx_gain": gain and round(gain, 3)})
    return ratios[0] >= promised(cell.problem, gain)


def promised(p, amx_gain):
    """What the CPU backend is held to: its speed over PyTorch's. amx_gain: None where there is no AMX."""
    if p.dtype == 2: return 1.3 if (amx_gain or 0) > AMX_IN_USE else 1.5
    return 1.3 if p.is_causal() else 1.1


def in_turns(cell, library, a, without_amx):
    """{(impl, plan): milliseconds, round by round}: ours, PyTorch, and PyTorch without AMX where there is AMX."""
    calls = {**cpu_calls.ours(cell, library), **cpu_calls.pytorchs(cell)}
    bursts = {key: turns.LoopBurst(call, a.ms) for key, call in calls.items()}
    if without_amx: bursts["torch", f"torch {torch.__version__} without AMX"] = without_amx.burst(cell.line, a.ms)
    times = {key: [] for key in bursts}
    for _ in range(a.rounds):
        for key in random.sample(list(bursts), len(bursts)): times[key].append(bursts[key].run())
    return times


def record(path, library, problem, times, facts):
    now = datetime.datetime.now(datetime.timezone.utc)
    group = f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    with open(path, "a") as file:
        for (impl, plan), ms in times.items():
            m = turns.summary(ms, None)
            file.write(json.dumps({
                "problem": library.line(problem), "pass": "bwd" if problem.is_backward() else "fwd", "impl": impl,
                "plan": plan, "ms": round(m.ms, 6), "spread": round(m.spread, 2),
                "tflops": round(work.flops(problem) / m.ms / 1e9, 4),
                "gbps": round(work.bytes_moved(problem) / m.ms / 1e6, 1), **facts,
                "date": f"{now:%Y-%m-%dT%H:%M:%SZ}", "turn_group": group}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
