# SPDX-License-Identifier: Apache-2.0
"""The six rows of results in README.md: one problem of each kind that people ask about, with the best rival of its run.

docs/results.md has these and all other problems.
"""
import re

from .records import OURS

ROWS = (  # what it is, the problem, the unit, what a record calls the figure, by what to multiply it
    ("forward", "fwd bf16 b1 hq16 hkv16 sq16384 skv16384 d128 causal", "TFLOP/s", "tflops", 1),
    ("gradients", "bwd bf16 b1 hq16 hkv16 sq16384 skv16384 d128 causal", "TFLOP/s", "tflops", 1),
    ("forward, GQA", "fwd bf16 b1 hq64 hkv8 sq16384 skv16384 d128 causal", "TFLOP/s", "tflops", 1),
    ("forward, FP8", "fwd e4m3 b1 hq16 hkv16 sq16384 skv16384 d128 causal", "TFLOP/s", "tflops", 1),
    ("decoding", "fwd bf16 b64 hq32 hkv8 sq1 skv8192 d128", "GB/s", "gbps", 1),
    ("forward, CPU, 2 threads", "fwd bf16 b2 hq8 hkv8 sq2048 skv2048 d128 causal", "GFLOP/s", "tflops", 1000),
)
BRIEF = re.compile(r"\bH\d{3}\b|\bXeon\b|\bEPYC\b")  # of a machine's name


def rows(machines):
    """A row for each problem that was measured. machines: [{machine: {table title: [Cell]}}], of any passes."""
    cells = {}
    for tables_of in machines:
        for machine, tables in tables_of.items():
            for cell in (c for of_title in tables.values() for c in of_title):
                cells.setdefault(cell.problem, {})[machine] = cell
    found = [row(name, problem, unit, figure, factor, cells[problem])
             for name, problem, unit, figure, factor in ROWS if problem in cells]
    return [["", "problem", "speed", "ratio to the best rival"]] + found if found else []


def row(name, problem, unit, figure, factor, by_machine):
    speeds, ratios = [], []
    for machine, cell in sorted(by_machine.items(), key=lambda item: brief(item[0])):
        speeds.append(f"{brief(machine)} {cell.best[OURS][figure] * factor:.0f}")
        if rivals := cell.rivals():
            fastest = min(rivals, key=lambda impl: rivals[impl]["ms"])
            ratios.append(f"{brief(machine)} {cell.ratio(rivals):.2f} ({fastest})")
    return [name, f"`{problem}`", f"{', '.join(speeds)} {unit}", ", ".join(ratios)]


def brief(machine):
    found = BRIEF.search(machine)
    return found[0] if found else machine
