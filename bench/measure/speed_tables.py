# SPDX-License-Identifier: Apache-2.0
"""What bench/speed.py prints: tables by length of {(impl, plan): TFLOP/s}, and the lowest ratios."""
import re
import sys

from .command import RIVALS
from .gradients import DETERMINISTIC

LAYER = "fwd+bwd"


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
    return impl.endswith(DETERMINISTIC)


def is_other(impl):
    return impl.removesuffix(DETERMINISTIC) not in ("froghopper", *RIVALS)


def ratios(measured):
    """{label: froghopper's speed over the best of those}"""
    def over(ours, name, wanted):
        mine, theirs = best(measured, lambda i: i == ours), best(measured, wanted)
        return {f"{ours} / {name}": mine / theirs} if mine and theirs else {}
    rivals = {impl for impl, _ in measured if impl.removesuffix(DETERMINISTIC) in RIVALS}
    found = over("froghopper", "best rival", lambda i: i in rivals and not is_deterministic(i))
    found |= over("froghopper" + DETERMINISTIC, "best such rival",
                  lambda i: i in rivals and is_deterministic(i))
    for name in dict.fromkeys(impl for impl, _ in measured if is_other(impl)):
        found |= over("froghopper", name, lambda i, name=name: i == name)
    return found


def print_table(kind, cells, device, seconds):
    unit, factor = ("TFLOP/s", 1) if device == "cuda" else ("GFLOP/s", 1000)
    what = "forward and backward of " if kind == LAYER else ""
    print(f"\n{what}{title_of(cells[0][0])}, {unit}   [{seconds:.0f} s]")
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
