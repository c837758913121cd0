#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""froghopper against other implementations, in turns, on one machine: a table of TFLOP/s, ratios, and JSON lines.

  bench/compare.py --library build/libfroghopper.so                       training_fwd against cudnn and fa2
  bench/compare.py --library ... --rivals cudnn,fa3 --json bench/results/h200.jsonl --commit 1a2b3c4
  bench/compare.py --library ... --other old=old.so --other-variants fwd_variants.inc --only d128
  bench/compare.py --library ... --only d128 --try section=16MiB --try 'tiles=128x64s4 late=8'
  bench/compare.py --library ... --device cpu --rivals torch --suite bench/suites/cpu_fwd.txt
  bench/compare.py --library ... --suite bench/suites/training_bwd.txt --rivals cudnn,fa3,fa4 --fa3bwd libfa3bwd.so \
      --layers --errors bench/results/grad_errors/h200.jsonl

Needs PyTorch; on a GPU also one of Hopper's. A rival that is not installed is named and left out. Every cell is one
turn group: its measurements may be divided by each other. What FLOPs and bytes are counted: bench/work.py. Errors of
the forward are not measured here but by `froghopper check tests/cases/exactness.txt`; of the backward, everybody's
gradients are compared with fp64 once for every kind of problem, and who is wrong is named and not timed
(bench/grad_errors.py). A backward problem is timed alone, and with --layers also together with its forward.
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
import grad_errors
import gradients
import other_process
import turns
import work
from contenders import RIVALS
from froghopper_ctypes import Error, Froghopper

HERE = pathlib.Path(__file__).resolve().parent
BEGIN = time.time()
TRY = "with "  # contenders of --try: names of no implementation
LAYER = "fwd+bwd"
LAYER_FROM = 2048  # rows: --layers leaves shorter ones out


def note(text):
    print(f"{text}  [{time.time() - BEGIN:.0f} s]", flush=True)


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("lines", nargs="*", metavar="LINE", help="problem lines instead of a suite")
    p.add_argument("--library", default=str(HERE.parent / "build/libfroghopper.so"))
    p.add_argument("--suite", action="append", help="a file of problem lines (default training_fwd), or several")
    p.add_argument("--only", default="", metavar="REGEX", help="lines of the suite that match, e.g. 'd128 causal'")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("--rivals", default="cudnn,fa2", help=f"of {', '.join(RIVALS)}; '' for none")
    p.add_argument("--fa3bwd", default="", metavar="LIB.so", help="FlashAttention-3's backward, see gradients.py")
    p.add_argument("--layers", action="store_true", help="also forward and backward together, from 2048 rows")
    p.add_argument("--errors", metavar="FILE.jsonl", help="append one line for everybody's errors of gradients")
    p.add_argument("--error-rows", type=int, default=grad_errors.ROWS, help="of the problems that they are taken of")
    p.add_argument("--other", action="append", default=[], metavar="NAME=LIB.so", help="another build of ours")
    p.add_argument("--other-variants", metavar="FILE.inc", help="its functions: FWD(name, dim, ..., Mask::m)")
    p.add_argument("--try", action="append", default=[], dest="tries", metavar="HINTS",
                   help="our kernels with hints, e.g. 'tiles=128x64s3 late=8': shown, not written to --json")
    p.add_argument("--rounds", type=int, default=7, help="turns of every contender (default 7)")
    p.add_argument("--ms", type=float, default=8, help="length of one turn (default 8)")
    p.add_argument("--budget", type=float, default=0, metavar="SECONDS", help="begin no further cell after this time")
    p.add_argument("--json", metavar="FILE.jsonl", help="append one line a measurement")
    p.add_argument("--commit", default=os.environ.get("FROGHOPPER_COMMIT", ""))
    a = p.parse_args()
    a.suite = a.suite or [str(HERE / "suites/training_fwd.txt")]
    return a


def main():
    a = arguments()
    library = Froghopper(os.path.abspath(a.library))
    target = contenders.TARGETS[a.device]
    if a.device == "cuda": torch.cuda.set_stream(torch.cuda.Stream())
    clock = turns.Clock() if a.device == "cuda" else None
    facts = dict(gpu=device_name(a.device), driver=clock.driver if clock else "", commit=a.commit or commit_here())
    if a.device == "cpu": facts |= {"cpu_bf16": other_process.bf16_instructions(), "torch": torch.__version__}
    described = f"froghopper {library.version()} {facts['commit']}, torch {torch.__version__}"
    note(f"{described}, {facts['gpu']}, driver {facts['driver']}")
    print_lowest(time_suite(a, library, target, clock, facts))


def time_suite(a, library, target, clock, facts):
    """[(pass and line, {(impl, plan): TFLOP/s})], printed table by table."""
    lines = a.lines or [line for path in a.suite for line in read_suite(path)]
    lines = [line for line in lines if re.search(a.only, line)]
    offers = Offers(a, library, target, facts, {line.startswith("bwd ") for line in lines})
    rows, tables = [], {}
    for i, line in enumerate(lines):
        if a.budget and time.time() - BEGIN > a.budget:
            note(f"out of time: {len(lines) - i} of {len(lines)} cells were not measured, from {line}")
            break
        for kind, measured in measure(a, library, clock, facts, offers, line).items():
            rows.append((line if kind != LAYER else f"{LAYER}: {line}", measured))
            tables.setdefault(kind, []).append((line, measured))
        if i + 1 == len(lines) or title_of(lines[i + 1]) != title_of(line):
            for kind, table in tables.items(): print_table(kind, table, a.device)
            tables = {}
    for kind, table in tables.items(): print_table(kind, table, a.device)
    return rows


class Offers:
    """Who takes part, in the forward pass and in the backward pass."""

    def __init__(self, a, library, target, facts, kinds):
        self.a, self.library, self.target, self.facts = a, library, target, facts
        names = list(filter(None, a.rivals.split(",")))
        self.forward = self.load(names, contenders.rival) if False in kinds else []
        self.backward = self.load(names, lambda name: gradients.rival(name, a.fa3bwd)) if True in kinds else []
        self.wrong = {}  # title: {impl: why}
        if a.other and not a.other_variants: sys.exit("compare.py: --other needs --other-variants, its functions")
        for name, _, path in (text.partition("=") for text in a.other):  # forward alone
            self.forward.append(contenders.other(name, path, a.other_variants))

    @staticmethod
    def load(names, load):
        offers = []
        for name in names:
            try: offers.append(load(name))
            except Exception as problem: note(f"no {name}: {type(problem).__name__}: {problem}"[:400])
        return offers

    def calls(self, cell):
        """{pass: {(impl, plan): call}}"""
        if cell.problem.is_backward(): return self.backward_calls(cell)
        calls = contenders.froghopper(cell, self.library, self.target)
        for hints in self.a.tries:
            (_, plan), call = next(iter(contenders.froghopper(cell, self.library, f"{self.target} {hints}").items()))
            calls[TRY + hints, plan] = call
        calls |= contenders.beside_16_bits(cell, self.library, self.target)
        for offer in self.forward: calls.update(offer(cell))
        return {"fwd": calls}

    def backward_calls(self, cell):
        wrong = self.who_is_wrong(cell.line)
        layers = gradients.froghopper(cell, self.library, self.target, note)
        for hints in self.a.tries:
            (_, plan), layer = next(iter(gradients.froghopper(cell, self.library, f"{self.target} {hints}").items()))
            layers[TRY + hints, plan] = layer
        for offer in self.backward: layers.update(offer(cell))
        ready = {}
        for key, layer in layers.items():
            if key[0] in wrong: continue
            try: layer.forward()
            except Exception as problem: note(f"  {' '.join(key)} failed: {type(problem).__name__}: {problem}"[:400])
            else: ready[key] = layer
        calls = {"bwd": {key: layer.backward for key, layer in ready.items()}}
        if self.a.layers and max(cell.problem.seq_q, cell.problem.seq_kv) >= LAYER_FROM:
            calls[LAYER] = {key: layer.both for key, layer in ready.items()}
        return calls

    def who_is_wrong(self, line):
        """{impl: why}, found once for every kind of problem."""
        title = title_of(line)
        if title in self.wrong: return self.wrong[title]
        small = contenders.Cell.make(self.library, grad_errors.small(line, self.a.error_rows), self.a.device)
        if not small.is_plain():
            note(f"  {title}: nobody's gradients are compared with fp64, here only full and causal ones are")
            return self.wrong.setdefault(title, {})
        layers = gradients.froghopper(small, self.library, self.target, note)
        for offer in self.backward: layers.update(offer(small))
        errors, wrong = grad_errors.errors_of(small, layers)
        grad_errors.print_errors(small.line, errors)
        for impl, why in wrong.items(): note(f"  {impl} is not timed for {title}: {why}")
        if self.a.errors:
            grad_errors.append(self.a.errors, small.line, "normal", errors, self.facts | {"date": now()})
        return self.wrong.setdefault(title, wrong)


def measure(a, library, clock, facts, offers, line):
    """{pass: {(impl, plan): TFLOP/s}} of one cell, whose JSON lines are written at once."""
    try:
        cell = contenders.Cell.make(library, line, a.device)
        calls = offers.calls(cell)
    except Error as problem:
        note(f"  {line}: {problem}")
        return {}
    return {kind: measure_pass(a, library, clock, facts, cell, kind, of_pass) for kind, of_pass in calls.items()}


def measure_pass(a, library, clock, facts, cell, kind, calls):
    measured = turns.in_turns(calls, a.device == "cuda", a.ms, a.rounds, clock, note)
    problems = [cell.problem] if kind != LAYER else [cell.problem, cell.problem.forward()]
    flops = sum(work.flops(p, cell.lens) for p in problems)
    moved = sum(work.bytes_moved(p) for p in problems)
    date = now()
    group = f"{re.sub('[:-]', '', date)}-{secrets.token_hex(3)}"
    line = library.line(cell.problem) + (f" : lens_q={','.join(map(str, cell.lens))}" if cell.lens else "")
    if a.json:
        with open(a.json, "a") as file:
            for (impl, plan), m in measured.items():
                if impl.startswith(TRY): continue
                file.write(json.dumps({
                    "problem": line, "pass": kind, "impl": impl, "plan": plan,
                    "ms": round(m.ms, 6), "spread": round(m.spread, 2), "tflops": float(f"{flops / m.ms / 1e9:.5g}"),
                    "gbps": round(moved / m.ms / 1e6, 1), "sm_clock_mhz": m.sm_clock_mhz, **facts,
                    "date": date, "turn_group": group}) + "\n")
    return {key: flops / m.ms / 1e9 for key, m in measured.items()}


def now():
    return f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def read_suite(path):
    lines = [line.split("#")[0].strip() for line in pathlib.Path(path).read_text().splitlines()]
    return [line for line in lines if line]


def title_of(line):
    """What the cells of one table share: everything but batch and lengths."""
    return " ".join(t for t in line.partition(":")[0].split() if not re.fullmatch(r"(b|sq|skv|tq|tkv)\d+", t))


def column_of(line):
    lengths = dict(re.findall(r"\b(b|sq|skv)(\d+)", line))
    if ":" in line: return f"{lengths['b']}<{lengths['sq']}"  # so many sequences, none of them longer
    return lengths["sq"] if lengths["sq"] == lengths["skv"] else f"{lengths['sq']}x{lengths['skv']}"


def best(measured, wanted):
    return max((x for (impl, _), x in measured.items() if wanted(impl)), default=0)


def is_deterministic(impl):
    return impl.endswith(gradients.DETERMINISTIC)


def is_other(impl):
    return impl.removesuffix(gradients.DETERMINISTIC) not in ("froghopper", *RIVALS)


def ratios(measured):
    """{label: froghopper's speed over the best of those}"""
    def over(ours, name, wanted):
        mine, theirs = best(measured, lambda i: i == ours), best(measured, wanted)
        return {f"{ours} / {name}": mine / theirs} if mine and theirs else {}
    rivals = {impl for impl, _ in measured if impl.removesuffix(gradients.DETERMINISTIC) in RIVALS}
    found = over("froghopper", "best rival", lambda i: i in rivals and not is_deterministic(i))
    found |= over("froghopper" + gradients.DETERMINISTIC, "best such rival",
                  lambda i: i in rivals and is_deterministic(i))
    for name in dict.fromkeys(impl for impl, _ in measured if is_other(impl)):
        found |= over("froghopper", name, lambda i, name=name: i == name)
    return found


def print_table(kind, cells, device):
    unit, factor = ("TFLOP/s", 1) if device == "cuda" else ("GFLOP/s", 1000)
    what = "forward and backward of " if kind == LAYER else ""
    print(f"\n{what}{title_of(cells[0][0])}, {unit}   [{time.time() - BEGIN:.0f} s]")
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
