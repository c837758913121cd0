#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""froghopper against other implementations, in turns, on one machine: a table of TFLOP/s, ratios, and JSON lines.

  bench/compare.py --library build/libfroghopper.so                       training_fwd against cudnn and fa2
  bench/compare.py --library ... --rivals cudnn,fa3 --json bench/results/h200.jsonl --commit 1a2b3c4
  bench/compare.py --library ... --other old=old.so --other-variants fwd_variants.inc --only d128
  bench/compare.py --library ... --only d128 --try section=16MiB --try 'tiles=128x64s4 late=8'
  bench/compare.py --library ... --device cpu --rivals torch --suite bench/suites/cpu_fwd.txt

Needs PyTorch; on a GPU also one of Hopper's. A rival that is not installed is named and left out. Every cell is one
turn group: its measurements may be divided by each other. What FLOPs and bytes are counted: bench/work.py. Errors are
not measured here but by `froghopper check tests/cases/exactness.txt`.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import secrets
import subprocess
import sys
import time

import torch

import contenders
import other_process
import turns
import work
from froghopper_ctypes import Error, Froghopper

HERE = pathlib.Path(__file__).resolve().parent
BEGIN = time.time()
TRY = "with "  # contenders of --try: names of no implementation


def note(text):
    print(f"{text}  [{time.time() - BEGIN:.0f} s]", flush=True)


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("lines", nargs="*", metavar="LINE", help="problem lines instead of a suite")
    p.add_argument("--library", default=str(HERE.parent / "build/libfroghopper.so"))
    p.add_argument("--suite", default=str(HERE / "suites/training_fwd.txt"), help="a file of problem lines")
    p.add_argument("--only", default="", metavar="REGEX", help="lines of the suite that match, e.g. 'd128 causal'")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("--rivals", default="cudnn,fa2", help="of cudnn, fa2, fa3, fa4, torch; '' for none")
    p.add_argument("--other", action="append", default=[], metavar="NAME=LIB.so", help="another build of ours")
    p.add_argument("--other-variants", metavar="FILE.inc", help="its functions: FWD(name, dim, ..., Mask::m)")
    p.add_argument("--try", action="append", default=[], dest="tries", metavar="HINTS",
                   help="our kernels with hints, e.g. 'tiles=128x64s3 late=8': shown, not written to --json")
    p.add_argument("--rounds", type=int, default=7, help="turns of every contender (default 7)")
    p.add_argument("--ms", type=float, default=8, help="length of one turn (default 8)")
    p.add_argument("--budget", type=float, default=0, metavar="SECONDS", help="begin no further cell after this time")
    p.add_argument("--json", metavar="FILE.jsonl", help="append one line a measurement")
    p.add_argument("--commit", default=os.environ.get("FROGHOPPER_COMMIT", ""))
    return p.parse_args()


def main():
    a = arguments()
    library = Froghopper(os.path.abspath(a.library))
    target = {"cuda": "hopper", "cpu": "cpu"}[a.device]
    if a.device == "cuda": torch.cuda.set_stream(torch.cuda.Stream())
    clock = turns.Clock() if a.device == "cuda" else None
    facts = dict(gpu=device_name(a.device), driver=clock.driver if clock else "", commit=a.commit or commit_here())
    if a.device == "cpu": facts |= {"cpu_bf16": other_process.bf16_instructions(), "torch": torch.__version__}
    described = f"froghopper {library.version()} {facts['commit']}, torch {torch.__version__}"
    note(f"{described}, {facts['gpu']}, driver {facts['driver']}")
    print_lowest(time_suite(a, library, target, clock, facts))


def time_suite(a, library, target, clock, facts):
    """[(line, {(impl, plan): TFLOP/s})], printed table by table."""
    offers = offers_of(a)
    rows, table = [], []
    lines = [line for line in a.lines or read_suite(a.suite) if re.search(a.only, line)]
    for i, line in enumerate(lines):
        if a.budget and time.time() - BEGIN > a.budget:
            note(f"out of time: {len(lines) - i} of {len(lines)} cells were not measured, from {line}")
            break
        measured = measure(a, library, target, clock, facts, offers, line)
        rows.append((line, measured))
        table.append((line, measured))
        if i + 1 == len(lines) or title_of(lines[i + 1]) != title_of(line):
            print_table(table, a.device)
            table = []
    if table: print_table(table, a.device)
    return rows


def offers_of(a):
    offers = []
    for name in filter(None, a.rivals.split(",")):
        try: offers.append(contenders.rival(name))
        except Exception as problem: note(f"no {name}: {type(problem).__name__}: {problem}"[:400])
    if a.other and not a.other_variants: sys.exit("compare.py: --other needs --other-variants, its functions")
    for name, _, path in (text.partition("=") for text in a.other):
        offers.append(contenders.other(name, path, a.other_variants))
    return offers


def measure(a, library, target, clock, facts, offers, line):
    """{(impl, plan): TFLOP/s} of one cell, whose JSON lines are written at once."""
    try:
        cell = contenders.Cell.make(library, line, a.device)
        if cell.problem.varlen or cell.problem.seqused: raise Error("lengths of its own are not compared here")
        calls = contenders.froghopper(cell, library, target)
        for hints in a.tries:
            (_, plan), call = next(iter(contenders.froghopper(cell, library, f"{target} {hints}").items()))
            calls[TRY + hints, plan] = call
    except Error as problem:
        note(f"  {line}: {problem}")
        return {}
    for offer in offers: calls.update(offer(cell))
    measured = turns.in_turns(calls, a.device == "cuda", a.ms, a.rounds, clock, note)
    flops, moved = work.flops(cell.problem), work.bytes_moved(cell.problem)
    now = datetime.datetime.now(datetime.timezone.utc)
    group = f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    if a.json:
        with open(a.json, "a") as file:
            for (impl, plan), m in measured.items():
                if impl.startswith(TRY): continue
                file.write(json.dumps({
                    "problem": library.line(cell.problem), "pass": "fwd", "impl": impl, "plan": plan,
                    "ms": round(m.ms, 6), "spread": round(m.spread, 2), "tflops": round(flops / m.ms / 1e9, 4),
                    "gbps": round(moved / m.ms / 1e6, 1), "sm_clock_mhz": m.sm_clock_mhz, **facts,
                    "date": f"{now:%Y-%m-%dT%H:%M:%SZ}", "turn_group": group}) + "\n")
    return {key: flops / m.ms / 1e9 for key, m in measured.items()}


def read_suite(path):
    with open(path) as file:
        lines = [line.split("#")[0].strip() for line in file]
    return [line for line in lines if line]


def title_of(line):
    """What the cells of one table share: everything but batch and lengths."""
    return " ".join(t for t in line.split() if not re.fullmatch(r"(b|sq|skv)\d+", t))


def column_of(line):
    lengths = dict(re.findall(r"\b(sq|skv)(\d+)", line))
    return lengths["sq"] if lengths["sq"] == lengths["skv"] else f"{lengths['sq']}x{lengths['skv']}"


def best(measured, wanted):
    return max((x for (impl, _), x in measured.items() if wanted(impl)), default=0)


def is_other(impl):
    return impl not in ("froghopper", "cudnn", "fa2", "fa3", "fa4", "torch")


def ratios(measured):
    """{label: froghopper's speed over the best of those}"""
    ours = best(measured, lambda i: i == "froghopper")
    against = {"best rival": best(measured, lambda i: i != "froghopper" and not is_other(i))}
    for name in {impl for impl, _ in measured if is_other(impl)}: against[name] = best(measured, lambda i: i == name)
    return {f"froghopper / {name}": ours / x for name, x in against.items() if ours and x}


def print_table(cells, device):
    unit, factor = ("TFLOP/s", 1) if device == "cuda" else ("GFLOP/s", 1000)
    print(f"\n{title_of(cells[0][0])}, {unit}   [{time.time() - BEGIN:.0f} s]")
    print(f"  {'seq':<34}" + "".join(f"{column_of(line):>8}" for line, _ in cells))
    def print_row(label, values, factor, form):
        print(f"  {label:<34}" + "".join(f"{format(x * factor, form):>8}" if x else f"{'-':>8}" for x in values))
    impls = dict.fromkeys(impl for _, measured in cells for impl, _ in measured)
    for impl in impls:
        plans = dict.fromkeys(plan for _, measured in cells for i, plan in measured if i == impl)
        if is_other(impl) and len(plans) > 1:
            for plan in plans: print_row(f"{impl} {plan}", [m.get((impl, plan)) for _, m in cells], factor, ".0f")
        else: print_row(impl, [best(m, lambda i: i == impl) for _, m in cells], factor, ".0f")
    for label in dict.fromkeys(label for _, m in cells for label in ratios(m)):
        print_row(label, [ratios(m).get(label) for _, m in cells], 1, ".3f")
    sys.stdout.flush()


def print_lowest(rows, shown=3):
    """The last lines: where froghopper compares worst."""
    print()
    for label in dict.fromkeys(label for _, m in rows for label in ratios(m)):
        cells = sorted((ratios(m)[label], line) for line, m in rows if label in ratios(m))
        below = sum(x < 0.97 for x, _ in cells)
        lowest = "; ".join(f"{x:.3f} {line}" for x, line in cells[:shown])
        print(f"{label}: {len(cells)} cells, {below} below 0.97; lowest {lowest}")


def device_name(device):
    if device == "cuda": return torch.cuda.get_device_name()
    with open("/proc/cpuinfo") as file:
        names = re.findall(r"^model name\s*: (.*)$", file.read(), re.M)
    return f"{names[0] if names else platform.machine()}, {torch.get_num_threads()} threads"


def commit_here():
    """Of the checkout this file is in; none where git or the history is missing."""
    answer = subprocess.run(["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return answer.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
