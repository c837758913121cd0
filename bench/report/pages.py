# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of README.md (six rows), docs/results.md, docs/performance.md, docs/10-fp8.md and
docs/15-context-parallel.md from the lines of bench/results, and the pictures. It measures nothing and needs neither a
GPU nor PyTorch.

  .venv/bin/python bench/report       everything; the pictures need matplotlib
  python3 bench/report --no-plots     tables only
  python3 bench/report --check        writes nothing; fails if one of them is not what this would write

What is read, what is divided by what, and which A/B group is shown: bench/report/records.py.
"""
import argparse
import pathlib
import re
import statistics
import sys

from . import headlines, roof, side_tables, targets
from .records import (DETERMINISTIC, HOST, LAYER, OLDER_BUILDS, OURS, amx_in_torch, machines_of, newest_host_costs,
                      read, short_title, unit_of, worth_drawing)

PASSES = {"fwd": "forward", "bwd": "backward", LAYER: "forward and backward of one layer"}
DRAWN = ("fwd", "bwd")
NARROW_PAGE = "docs/10-fp8.md"
PARALLEL_PAGE = "docs/15-context-parallel.md"
NARROW = "fp8"  # folders of bench/results with 8-bit problems, whose tables that page has
NARROW_KV, NARROW_DECODE = "fp8_kv", "fp8_kv_decode"  # of 16-bit q, beside 8-bit k and v
NARROW_ERRORS = "fp8_errors"  # of bench/errors.py fp8
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    p = argparse.ArgumentParser(prog="bench/report", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--root", type=pathlib.Path, default=root, help="the project's folder")
    p.add_argument("--no-plots", action="store_true", help="tables only")
    p.add_argument("--check", action="store_true", help="write nothing; fail if a table is not up to date")
    a = p.parse_args()
    try:
        records = read(sorted((a.root / "bench/results").glob("*.jsonl")))
        return write(a, records)
    except ValueError as problem:
        print(f"bench/report: {problem}", file=sys.stderr)
        return 2


def write(a, records):
    passes = {kind: machines_of(records, kind) for kind in PASSES}
    readme, results = a.root / "README.md", a.root / "docs/results.md"
    host = newest_host_costs(records)
    errors = side_tables.read_errors(sorted((a.root / "bench/results/errors").glob("*.jsonl")))
    lists = {name: read(sorted((a.root / "bench/results" / name).glob("*.jsonl"))) for name in side_tables.LISTS}
    served = {name: read(sorted((a.root / "bench/results" / name).glob("*.jsonl"))) for name in side_tables.SERVED}
    grads = side_tables.read_errors(sorted((a.root / "bench/results/grad_errors").glob("*.jsonl")))
    packed = {kind: machines_of(records, kind, packed=True) for kind in DRAWN}
    narrow = {name: read(sorted((a.root / "bench/results" / name).glob("*.jsonl")))
              for name in (NARROW, NARROW_KV, NARROW_DECODE)}
    aims = targets.rows(passes | {"packed": packed["fwd"]} | {name: machines_of(r) for name, r in narrow.items()} |
                        {name: machines_of(found) for name, found in lists.items()})
    shown = [*(passes[kind] for kind in DRAWN), machines_of(narrow[NARROW]), machines_of(lists["decode"])]
    wanted = {readme: between_markers(readme.read_text(), short_report(shown)),
              results: long_report(passes, host, errors, lists, packed, grads, aims, served)}
    if (performance := a.root / roof.FILE).exists():
        of_roof = {PASSES[kind]: passes[kind] for kind in DRAWN}
        parts = [roof.section(of_roof, markdown), *energy_parts(a.root / "bench/results/energy"),
                 *host_parts(a.root / "bench/results/host"), *step_parts(a.root / "bench/results/steps")]
        wanted[performance] = between_markers(performance.read_text(), "\n\n".join(parts))
    if (page := a.root / PARALLEL_PAGE).exists():
        parts = parallel_parts(a.root / "bench/results/context_parallel")
        wanted[page] = between_markers(page.read_text(), "\n\n".join(parts))
    if (page := a.root / NARROW_PAGE).exists():
        lost = side_tables.read_errors(sorted((a.root / "bench/results" / NARROW_ERRORS).glob("*.jsonl")),
                                       side_tables.NARROW_NAMES)
        wanted[page] = between_markers(page.read_text(), "\n\n".join(narrow_parts(narrow, lost)))
    stale = [path.name for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    if a.check:
        if stale: print(f"bench/report: {', '.join(stale)} not up to date; run bench/report", file=sys.stderr)
        return 1 if stale else 0
    for path, text in wanted.items(): path.write_text(text)
    if any(passes.values()) and not a.no_plots:
        from . import plots
        for kind in DRAWN:
            for machine, tables in passes[kind].items():
                path = a.root / "docs" / picture_name(machine, kind)
                if drawn := plots.draw(f"{PASSES[kind]}, {machine}", tables, path): print(drawn)
        if performance.exists() and (drawn := roof.draw(of_roof, a.root / "docs/roofline.png")): print(drawn)
    return 0


# From cells to text.

def energy_parts(folder):
    """A heading and a table for every card."""
    records = side_tables.read_errors(sorted(folder.glob("*.jsonl")), ("gpu", "problem", "impl"))
    parts = []
    for gpu, here in side_tables.by_card(records).items():
        parts += [f"**{gpu}**. {side_tables.ENERGY}, commit {here[-1]['commit']}:",
                  markdown(side_tables.energy_rows(here))]
    return parts


def host_parts(folder):
    """Of every device: what a call costs the host, for all frameworks."""
    records = side_tables.read_errors(sorted(folder.glob("*.jsonl")), ("device", "entrance"))
    parts = ["## What a call costs the host", side_tables.HOST + "."] if records else []
    for device in dict.fromkeys(r["device"] for r in records):
        here = [r for r in records if r["device"] == device]
        parts += [f"**{device}**, {here[-1]['host']}, PyTorch {here[-1]['torch']}, commit {here[-1]['commit']}:",
                  markdown(side_tables.host_rows(here))]
    return parts


def step_parts(folder):
    records = side_tables.read_errors(sorted(folder.glob("*.jsonl")), ("gpu", "model"))
    parts = ["## Steps of models", side_tables.STEPS + "."] if records else []
    for gpu, here in side_tables.by_card(records).items():
        parts += [f"**{gpu}**, PyTorch {here[-1]['torch']}, commit {here[-1]['commit']}:",
                  markdown(side_tables.step_rows(here))]
    return parts


def parallel_parts(folder):
    records = side_tables.read_errors(sorted(folder.glob("*.jsonl")), ("gpu", "ranks", "problem", "pass", "impl"))
    parts = [side_tables.PARALLEL + "."] if records else []
    for gpu, of_card in side_tables.by_card(records).items():
        for ranks in sorted({r["ranks"] for r in of_card}):
            here = [r for r in of_card if r["ranks"] == ranks]
            decoding = [r for r in here if r["pass"] == "decode"]
            here = [r for r in here if r["pass"] != "decode"]
            parts += [f"**{ranks} x {gpu}**, PyTorch {here[-1]['torch']}, {commits_of(here)}:",
                      markdown(side_tables.parallel_rows(here))]
            if decoding: parts += [side_tables.PARALLEL_DECODE, markdown(side_tables.parallel_decode_rows(decoding))]
    return parts


def narrow_parts(narrow, lost):
    """Speed of 8-bit q, of 16-bit q beside 8-bit k and v, and errors. narrow: {folder: records}."""
    def tables_of(name):
        return [part for machine, tables in machines_of(narrow[name]).items()
                for part in short_tables(machine, "fwd", tables, False)]
    parts, of_kv, decoding = tables_of(NARROW), tables_of(NARROW_KV), narrow[NARROW_DECODE]
    if of_kv: parts += [side_tables.BESIDE_16_BITS, *of_kv]
    if decoding: parts += [side_tables.DECODING_BESIDE_16_BITS, markdown(side_tables.list_rows(decoding, "GB/s"))]
    for gpu, here in side_tables.by_card(lost).items():
        parts += [f"{side_tables.NARROW_ERRORS}, {gpu}:", markdown(side_tables.narrow_error_rows(here))]
    return parts


def short_report(machines):
    """For the README: six rows. machines: [{machine: {table title: [Cell]}}]."""
    rows = headlines.rows(machines)
    return markdown(rows) if rows else (
        "No measurement is recorded yet: `froghopper bench` and bench/speed.py make them.")


def overview(passes, lists=None):
    """A table for each machine and pass, a row for each kind of problem; then a line for each list."""
    parts = []
    for kind in DRAWN:
        for machine, tables in passes[kind].items():
            parts += short_tables(machine, kind, tables)
            if kind == "bwd": parts += said_of_backward(tables, passes.get(LAYER, {}).get(machine, {}))
    return parts + [said for name, records in (lists or {}).items() if (said := said_of_list(name, records))]


def short_tables(machine, kind, tables, drawn=True):
    wide = {title: cells for title, cells in tables.items() if len(cells) > 1}
    if not wide: return []
    rivals = sorted({i for cells in wide.values() for c in cells for i in c.rivals()})
    among = f"the fastest of {', '.join(rivals)}" if len(rivals) > 1 else "".join(rivals)
    against = f", in brackets the ratio to {among}, interleaved" if rivals else ""
    amx = f"; {said}" if (said := amx_in_torch(wide)) else ""
    columns = columns_of(wide.values())
    rows = [[short_title(title)] + [short_field(by_column(cells).get(c), unit_of(wide)) for c in columns]
            for title, cells in wide.items()]
    parts = [f"**{machine}**, {PASSES[kind]}, {unit_of(wide)[0]}{against}{amx}:",
             markdown([["sequence length"] + columns] + rows)]
    if drawn and worth_drawing(tables): parts.append(f"![speed by length]({picture_name(machine, kind)})")
    return parts


def said_of_backward(tables, layers):
    """One paragraph: the deterministic form, and forward and backward together."""
    ours = OURS + DETERMINISTIC
    of_itself = [c.ratio([OURS], ours) for cells in tables.values() for c in cells]
    of_rivals = [c.ratio(c.rivals(DETERMINISTIC), ours) for cells in tables.values() for c in cells]
    together = [c.ratio(c.rivals()) for cells in layers.values() for c in cells]
    said = []
    if span := span_of(of_itself): said.append(f"Deterministic mode (`det`) has {span} times that speed")
    if said and (span := span_of(of_rivals)): said[0] += f", {span} times that of the fastest deterministic rival"
    if span := span_of(together):
        said.append(f"Forward and backward of one layer together: {span} times the best rival")
    return [". ".join(said) + "."] if said else []


def said_of_list(name, records):
    spans = {machine: span_of(ratios) for machine, ratios in side_tables.ratios_of(records).items()}
    said = ", ".join(f"{machine} {span}" for machine, span in spans.items() if span)
    return f"{side_tables.LISTS[name][0]}, ratio to the best rival: {said}." if said else ""


def span_of(ratios):
    """"0.91 to 1.20, median 1.05"; "" where there is none."""
    known = sorted(x for x in ratios if x)
    return f"{known[0]:.2f} to {known[-1]:.2f} (median {statistics.median(known):.2f})" if known else ""


def long_report(passes, host, errors=(), lists=None, packed=None, grads=(), aims=(), served=None):
    parts = ["# Results", "Written by bench/report from the lines of bench/results; do not edit. How times are "
             "taken: bench/speed.py. What FLOPs are counted (causal as half, backward as 2.5 times forward): "
             "bench/measure/work.py. A ratio stands only between measurements that were interleaved in one run (an A/B "
             "group)."]
    if aims: parts += ["## Aims", "Ratio to the best rival of a run, and how many problems reach what is aimed at.",
                       markdown(aims)]
    if of_all := overview(passes, lists): parts += ["## Overview", *of_all]
    for kind, machines in passes.items():
        for machine, tables in machines.items():
            parts.append(f"## {machine}" if kind == "fwd" else f"## {machine}, {PASSES[kind]}")
            if amx := amx_in_torch(tables): parts.append(f"{amx[0].upper()}{amx[1:]}.")
            unit = unit_of(tables)
            for title, cells in tables.items():
                parts.append(f"### {title}" if len(cells) > 1 else f"### {cells[0].problem}")
                parts.append(markdown(long_table(cells, unit)))
                parts.append(origin_of(cells))
    for kind, machines in (packed or {}).items():
        for machine, tables in machines.items():
            parts += [f"## {machine}, {PASSES[kind]} of packed sequences", f"{unit_of(tables)[0]}; "
                      f"{side_tables.ABSENT}: that implementation does not compute it. FlashAttention-3's packed "
                      "backward is not in the library that is timed.", markdown(side_tables.packed_rows(tables))]
    for name, records in (lists or {}).items():
        heading, unit = side_tables.LISTS[name]
        if records: parts += [f"## {heading}", f"{unit}, in brackets the ratio to the best rival, interleaved.",
                              markdown(side_tables.list_rows(records, unit))]
    parts += served_parts(served or {})
    parts += error_parts(errors, grads)
    if host: parts += ["## Host cost of one call", markdown(host_table(host))]
    return "\n\n".join(parts) + "\n"


def served_parts(served):
    """served: {folder: records}; of every folder that has some, a table a card."""
    parts = []
    for name, records in served.items():
        parts += [f"## {side_tables.SERVED[name]}", side_tables.SERVED_TITLE.format(name)] if records else []
        for gpu, here in side_tables.by_card(records).items():
            newest = max(here, key=lambda r: r["date"])
            parts += [f"**{gpu}**, commit {newest['commit']}:", markdown(side_tables.served_rows(here))]
    return parts


def error_parts(errors, grads):
    """Of every card: errors of o, then errors of gradients."""
    parts = ["## Errors"] if errors else []
    for gpu, here in side_tables.by_card(errors).items():
        parts += [side_tables.errors_heading(gpu) + ".",
                  "`outliers` are the inputs of the FlashAttention-3 paper's table: N(0, 1) + N(0, 100) "
                  "Bernoulli(0.001); the others make rows more and more peaked. Made by bench/errors.py forward.",
                  markdown(side_tables.error_rows(here, dict.fromkeys(r["data"] for r in here)))]
    parts += ["## Errors of gradients", side_tables.GRAD_ERRORS] if grads else []
    for gpu, here in side_tables.by_card(grads).items():
        parts += [f"**{gpu}**:", markdown(side_tables.grad_error_rows(here))]
    return parts


def long_table(cells, unit):
    mine = OURS + DETERMINISTIC
    order = {i: (i not in (OURS, mine), i in OLDER_BUILDS, i) for c in cells for i in c.best}
    impls = sorted(order, key=order.get)
    rows = [[unit[0]] + [c.column() for c in cells]]
    for impl in impls:
        rows.append([impl] + [speed(c.best[impl], unit) if impl in c.best else "" for c in cells])
    ratios = {f"{OURS} / best rival": [c.ratio(c.rivals()) for c in cells]}
    ratios |= {f"{OURS} / {i}": [c.ratio([i]) for c in cells] for i in impls if i in OLDER_BUILDS}
    ratios |= {f"{mine} / best such rival": [c.ratio(c.rivals(DETERMINISTIC), mine) for c in cells],
               f"{mine} / {OURS}": [c.ratio([OURS], mine) for c in cells]}
    for label, row in ratios.items():
        if any(row): rows.append([label] + [f"**{x:.2f}**" if x else "" for x in row])
    rows.append(["ms"] + [f"{c.best[OURS]['ms']:.4g}" for c in cells])
    rows.append(["spread %"] + [f"{c.best[OURS]['spread']:.1f}" for c in cells])
    rows.append(["GB/s"] + [f"{c.best[OURS]['gbps']:.0f}" for c in cells])
    if any(c.best[OURS]["sm_clock_mhz"] for c in cells):
        rows.append(["SM clock MHz"] + [str(c.best[OURS]["sm_clock_mhz"] or "") for c in cells])
    return rows


def commits_of(records):
    """That of all rows, or those of the first and the later ones."""
    found = list(dict.fromkeys(record["commit"] for record in records))
    return f"commit {found[0]}" if len(found) == 1 else f"commits {', '.join(found)}, of the last rows {found[-1]}"


def origin_of(cells):
    """Whose figures these are: kernels, versions, commits, dates."""
    def listed(values): return ", ".join(dict.fromkeys(v for v in values if v))
    ours = [c.best[OURS] for c in cells]
    theirs = [f"{r['impl']}: {plan_name(r['plan'])}" for c in cells for i, r in c.best.items() if i != OURS]
    days = sorted({r["date"][:10] for r in ours})
    beside = f"Compared with {listed(theirs)}. " if theirs else ""
    driver = f", driver {listed(r['driver'] for r in ours)}" if any(r["driver"] for r in ours) else ""
    return (f"Kernels: {listed(plan_name(r['plan']) for r in ours)}. {beside}"
            f"Commit {listed(r['commit'] for r in ours)}, {listed(days)}{driver}.")


def host_table(records):
    return [["machine", "call", "problem", "microseconds", "commit"]] + [
        [r["gpu"], r["plan"][len(HOST):], r["problem"], f"{r['ms'] * 1e3:.2f}", r["commit"]] for r in records]


def plan_name(plan):
    """The kernel's name alone: grid and order change with every length."""
    return plan.split(" ")[0] if plan.startswith(("fwd.", "bwd.")) else plan


def speed(record, unit): return f"{record['tflops'] * unit[1]:.0f}"


def short_field(cell, unit):
    if not cell: return ""
    ratio = cell.ratio(cell.rivals())
    return speed(cell.best[OURS], unit) + (f" ({ratio:.2f})" if ratio else "")


def columns_of(tables):
    cells = sorted((c for cells in tables for c in cells), key=lambda c: [int(c.tokens()[t]) for t in ("sq", "skv")])
    return list(dict.fromkeys(c.column() for c in cells))


def by_column(cells): return {c.column(): c for c in cells}


def markdown(rows):
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" + "|---:" * (len(rows[0]) - 1) + "|"] + lines[1:])


def between_markers(text, new):
    if text.count(BEGIN) != 1 or text.count(END) != 1: raise ValueError(f"README.md needs one {BEGIN} and one {END}")
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    return f"{head}{BEGIN}\n{new}\n{END}{tail}"


def picture_name(machine, kind="fwd"):
    which = "" if kind == "fwd" else f"{kind}_"
    return f"results_{which}" + re.sub(r"[^a-z0-9]+", "_", machine.lower()).strip("_") + ".png"


if __name__ == "__main__":
    sys.exit(main())
