#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The CPU backend beside PyTorch's scaled_dot_product_attention, in turns, on this machine's CPU.

  bench/cpu_vs_torch.py --lib build/libfroghopper.so
  bench/cpu_vs_torch.py --lib build/libfroghopper.so --json bench/results/cpu.jsonl
  bench/cpu_vs_torch.py --only 'f32.*causal' --threads 1

Both read the same tensors, [batch, heads, seq, dim] in memory, which is the order that PyTorch likes best, and both
use the same number of threads. A ratio is the median over rounds of PyTorch's time over ours in the same round, so
that what else the machine does in a round meets both. Exit status 1: a ratio is below what the project promises.
Needs PyTorch.
"""
import argparse
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
import turns
import work
from froghopper_ctypes import Froghopper

HERE = pathlib.Path(__file__).resolve().parent


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lib", default=str(HERE.parent / "build/libfroghopper.so"))
    p.add_argument("--suite", default=str(HERE / "suites/cpu_fwd.txt"), help="a file of problem lines")
    p.add_argument("--only", default="", metavar="REGEX", help="lines of the suite that match")
    p.add_argument("--threads", type=int, help="of both; default: one a core")
    p.add_argument("--rounds", type=int, default=15)
    p.add_argument("--ms", type=float, default=60, help="length of one turn")
    p.add_argument("--json", metavar="FILE.jsonl", help="append one line a measurement")
    p.add_argument("--commit", default=os.environ.get("FROGHOPPER_COMMIT", ""))
    return p.parse_args()


def main():
    a = arguments()
    torch.set_num_threads(a.threads or os.cpu_count())
    library = Froghopper(os.path.abspath(a.lib))
    facts = {"sm_clock_mhz": None, "gpu": compare.device_name("cpu"), "driver": "",
             "commit": a.commit or compare.commit_here()}
    print(f"froghopper {facts['commit']}, torch {torch.__version__}, {facts['gpu']}")
    print(f"{'problem':58}{'ours':>8}{'torch':>8}  GFLOP/s{'ratio':>8}{'promised':>10}")
    below = 0
    for line in compare.read_suite(a.suite):
        if not re.search(a.only, line): continue
        cell = contenders.Cell.make(library, line + (f" sms{a.threads}" if a.threads else ""), "cpu")
        times = in_turns(heads_outside(cell), library, a)
        ratio = statistics.median(t / o for o, t in zip(*times.values()))
        speeds = [work.flops(cell.problem) / statistics.median(t) / 1e6 for t in times.values()]
        below += ratio < promised(cell.problem)
        print(f"{line:58}{speeds[0]:8.0f}{speeds[1]:8.0f}{ratio:17.2f}{promised(cell.problem):10.2f}", flush=True)
        if a.json: record(a.json, library, cell.problem, times, facts)
    return 1 if below else 0


def promised(p):
    """What the CPU backend is held to: its speed over PyTorch's."""
    if p.dtype == 2: return 1.3
    if not p.is_causal(): return 1.0
    return 1.5 if p.seq_q <= 512 else 1.1


def heads_outside(cell):
    """The same cell, its tensors [batch, heads, seq, dim] in memory."""
    for name in ("q", "k", "v", "o"):
        setattr(cell, name, getattr(cell, name).transpose(1, 2).contiguous().transpose(1, 2))
    return cell


def in_turns(cell, library, a):
    """{(impl, plan): milliseconds, round by round}, ours first."""
    calls = {**contenders.froghopper(cell, library, "cpu"), **contenders.rival("torch")(cell)}
    bursts = {key: turns.LoopBurst(call, a.ms) for key, call in calls.items()}
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
                "problem": library.line(problem), "pass": "fwd", "impl": impl, "plan": plan, "ms": round(m.ms, 6),
                "spread": round(m.spread, 2), "tflops": round(work.flops(problem) / m.ms / 1e9, 4),
                "gbps": round(work.bytes_moved(problem) / m.ms / 1e6, 1), **facts,
                "date": f"{now:%Y-%m-%dT%H:%M:%SZ}", "turn_group": group}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
