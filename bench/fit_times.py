#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/results -> src/plan/rates.hpp: how long kernels take for an iteration and a work item, which the planner's
model of time multiplies by what the busiest SM has to do (src/plan/time.cpp, docs/4-planning.md).

  bench/fit_times.py --lib build/libfroghopper.so           writes the table; build, and again until nothing changes
  bench/fit_times.py --lib build/libfroghopper.so --check   writes nothing; fails if fewer than 90 % of the measured
                                                            times are within 10 % of the model's, or if the library
                                                            looks a kernel up elsewhere than the table has it
  ... --list                                                prints both for every time

Counted are times of plans that this planner still makes, the newest of each. A row of the table is for all kernels of
one key (MeasuredKernel in src/plan/rates.hpp) on one card. Its two numbers are those with the least sum of squared
relative errors; neither is negative. A row keeps those that it has where others are hardly better: what is counted
depends a little on the numbers themselves, and the last digits would go to and fro.
"""
import argparse
import collections
import ctypes
import os
import pathlib
import re
import statistics
import sys

from measure.froghopper_ctypes import Froghopper
from report import records

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "src/plan/rates.hpp"
CARDS = {"NVIDIA H100 80GB HBM3": "h100", "NVIDIA H200": "h200"}
WITHIN, SHARE = 0.10, 0.90
FITTED_LISTS = ("few_items", "windows", "real", "fp8", "above_256")  # beside the tables; decoding waits for memory
# A work item of a kernel that was measured at one length alone: near this, in microseconds.
USUAL_ITEM, WEIGHT_OF_USUAL = 1.5, 0.003
# Memory hides iterations: where it takes more of the time than this, a forward time says too little of them.
HIDDEN = 2 / 3
# In the middle a window's iteration is a causal one: near that of the same tiles. Its two ends are in the work item.
WEIGHT_OF_CAUSAL = 0.5
# Of a root mean square of relative errors: `explain` rounds, and one run differs from the next by more.
HARDLY = 0.005
# The kernels that have rates; of others the library derives the time from these (rate_of, src/plan/rates.cpp).
KERNEL = re.compile(r"(?P<family>fwd|bwd)\.(?P<dtype>\w+)\.d(?P<qk>\d+)(\.dv(?P<v>\d+))?\.q(?P<q>\d+)\.kv(?P<kv>\d+)"
                    r"\.s\d+(\.(?P<mask>causal|window|chunk))?(\.split)?(?P<det>\.det)?")


class Time:
    """One measured time, and what the model says of its plan."""

    def __init__(self, record, library):
        self.card, self.us = CARDS[record["gpu"]], 1e3 * record["ms"]
        line = record["problem"] + (" det" if record["impl"].endswith(records.DETERMINISTIC) else "")
        self.line = line
        problem = library.problem(line)
        self.current = work(library.plan(problem, self.card).name()) == work(record["plan"])
        said = library.calls.fh_explain(ctypes.byref(problem), self.card.encode()).decode()
        self.kernel = re.search(r"\b(?:fwd|bwd)\.\S+\.d\d+\S*", said)[0]
        model = re.search(r"time +([\d.]+) us by the model; the busiest \w+ has (\d+) iterations? of ([\d.]+) us and "
                          r"(\d+) work items? of ([\d.]+) us", said)
        self.model_us, self.iterations, iteration_us, self.items, item_us = map(float, model.groups())
        self.rest_us = self.model_us - self.iterations * iteration_us - self.items * item_us
        self.found = numbers(iteration_us, item_us)
        memory_us = self.model_us * int(re.search(r"memory +(\d+) %", said)[1]) / 100
        self.hidden = self.kernel.startswith("fwd") and memory_us > HIDDEN * self.us

    def error(self): return self.model_us / self.us - 1


def work(plan):
    """A plan's kernels and their order of work, by which times are told apart: not when the next item is drawn."""
    return re.sub(r" (early|late \d+|ws \d+)\b", "", plan)


def measured(library):
    """The newest of our times of each problem on each card, as far as its plan is still made."""
    newest = {}
    results = ROOT / "bench/results"
    lists = [path for name in FITTED_LISTS for path in sorted((results / name).glob("*.jsonl"))]
    for r in records.read(sorted(results.glob("*.jsonl")) + lists):
        ours = r["impl"].removesuffix(records.DETERMINISTIC) == records.OURS
        if not ours or r["gpu"] not in CARDS or r["pass"] not in ("fwd", "bwd"): continue
        if r["plan"].startswith(records.HOST) or records.is_packed(r["problem"]): continue
        if re.search(r" sq\d ", r["problem"]): continue  # decoding
        of = r["gpu"], r["problem"], r["impl"], work(r["plan"])
        if of not in newest or newest[of]["date"] < r["date"]: newest[of] = r
    times = [Time(r, library) for r in newest.values()]
    return [t for t in times if t.current], sum(not t.current for t in times)


def equations(times, causal_us):
    """Of one kernel on one card: (a, b, c) where a * iteration_us + b * item_us should be c, each by its weight."""
    rows = [(t.iterations / t.us, t.items / t.us, (t.us - t.rest_us) / t.us) for t in times]
    rows.append((0.0, WEIGHT_OF_USUAL, WEIGHT_OF_USUAL * USUAL_ITEM))
    if causal_us: rows.append((WEIGHT_OF_CAUSAL, 0.0, WEIGHT_OF_CAUSAL * causal_us))
    return rows


def fit(rows):
    """(iteration_us, item_us): two unknowns, least squares, by their normal equations."""
    aa, ab, bb = (sum(r[i] * r[j] for r in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    ay, by = (sum(r[i] * r[2] for r in rows) for i in (0, 1))
    determinant = aa * bb - ab * ab
    iteration, item = (ay * bb - by * ab) / determinant, (by * aa - ay * ab) / determinant
    return (iteration, item) if item > 0 else (ay / aa, 0.0)


def root_mean_square(rows, words):
    """Of what these numbers of a line of the table leave of the equations."""
    iteration_us, item_us = map(float, words.split(","))
    return statistics.fmean((a * iteration_us + b * item_us - c) ** 2 for a, b, c in rows) ** .5


def numbers(iteration_us, item_us): return f"{iteration_us:.3f}, {item_us:.2f}"


def key(card, kernel):
    """What a line of the table begins with: the card, and what the library looks the kernel up by."""
    words = KERNEL.fullmatch(kernel)
    if not words: raise ValueError(f"{kernel} has no rates of its own: src/plan/rates.cpp derives its time from others")
    def flag(is_so): return "true" if is_so else "false"
    return (f'{{"{card}", {{{flag(words["family"] == "bwd")}, {flag(words["det"])}, '
            f'{flag(words["dtype"] in ("e4m3", "e5m2"))}, {{{words["qk"]}, {words["v"] or words["qk"]}}}, '
            f'{words["q"]}, {words["kv"]}, Mask::{words["mask"] or "none"}}}, ')


def kept_numbers(text):
    """What the lines of the table have, by their keys."""
    return dict(re.findall(r'^    (\{"\w+", \{.*\}, )([\d.]+, [\d.]+)\},$', text, re.MULTILINE))


def table(times, kept):
    """The lines of the table, one for each key."""
    by_key = collections.defaultdict(list)
    for t in times:
        if not t.hidden: by_key[key(t.card, t.kernel)].append(t)
    lines = []
    for start, of_key in sorted(by_key.items()):
        causal = kept.get(start.replace("Mask::window", "Mask::causal")) if "Mask::window" in start else None
        rows, old = equations(of_key, causal and float(causal.split(",")[0])), kept.get(start)
        best = numbers(*fit(rows))
        keep = old and root_mean_square(rows, old) < root_mean_square(rows, best) + HARDLY
        lines.append(f"    {start}{old if keep else best}}},")
    return lines


def lost(times, kept):
    """The kernels whose numbers the library finds elsewhere than in their line of the table, and what it finds."""
    of_times = {(t.card, t.kernel): (kept.get(key(t.card, t.kernel)), t.found) for t in times}
    return [f"{card} {kernel}: the table has {its}, the library finds {found}"
            for (card, kernel), (its, found) in sorted(of_times.items()) if its not in (None, found)]


def write(times):
    before = TABLE.read_text()
    rows = table(times, kept_numbers(before))
    first, last = re.search(r".*measured_rates\[\] = \{\n.*?\n", before, re.DOTALL).end(), before.index("};\n\n}  //")
    TABLE.write_text(before[:first] + "\n".join(rows) + "\n" + before[last:])
    done = "same as before" if TABLE.read_text() == before else "build, and again"
    print(f"fit_times.py: {len(rows)} rows from {len(times)} times; {done}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lib", type=pathlib.Path, required=True, help="libfroghopper.so")
    p.add_argument("--check", action="store_true")
    p.add_argument("--list", action="store_true")
    a = p.parse_args()
    os.environ["FROGHOPPER_NVRTC"] = os.devnull  # explain compiles what is no preset, for its registers
    times, others = measured(Froghopper(a.lib))
    for t in sorted(times, key=lambda t: (t.card, t.kernel, t.us)) if a.list else ():
        print(f"{t.card}  {t.us:9.1f} us  {100 * t.error():+5.1f} %  {t.line}")
    near = sum(abs(t.error()) <= WITHIN for t in times)
    print(f"fit_times.py: {near} of {len(times)} times within {100 * WITHIN:.0f} % of the model, median error "
          f"{100 * statistics.median(abs(t.error()) for t in times):.1f} %; {others} of plans that are no longer made")
    if a.check:
        elsewhere = lost(times, kept_numbers(TABLE.read_text()))
        for line in elsewhere: print(f"fit_times.py: {line}")
        return 0 if near >= SHARE * len(times) and not elsewhere else 1
    write(times)
    return 0


if __name__ == "__main__":
    sys.exit(main())
