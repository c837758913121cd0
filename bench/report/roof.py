# SPDX-License-Identifier: Apache-2.0
"""How near a Hopper GPU's roof the measured times are, for docs/performance.md: tables and a picture.

The roof of the tensor cores is 4096 FLOPs of 16-bit products a clock and SM, so it moves with the clock, and a card
that is out of power lowers that. Two shares say both: of the roof at the highest clock, and at the measured one.
"""
import re

from .records import OURS, short_title

SMS, HIGHEST_MHZ, FLOPS = 132, 1980, 4096
MEMORY_TBPS = {"NVIDIA H100 80GB HBM3": 3.35, "NVIDIA H200": 4.8}  # NVIDIA's data sheets
FILE = "docs/performance.md"


def tensor_roof(mhz):
    """TFLOP/s at this clock."""
    return SMS * FLOPS * mhz / 1e6


def is_known(machine): return machine in MEMORY_TBPS


def share_rows(tables):
    """A row a kind of problem; in each field the share of the roof at the highest clock, and at the measured one."""
    tables = {title: cells for title, cells in tables.items() if len(cells) > 2}
    columns = list(dict.fromkeys(c.column() for cells in tables.values() for c in cells))
    columns.sort(key=lambda column: [int(n) for n in re.findall(r"\d+", column)])
    rows = [["sequence length", *columns]]
    for title, cells in tables.items():
        here = {c.column(): c.best[OURS] for c in cells}
        rows.append([short_title(title), *(share_field(here.get(column)) for column in columns)])
    return rows


def share_field(record):
    if record is None: return ""
    of_highest = 100 * record["tflops"] / tensor_roof(HIGHEST_MHZ)
    if not record["sm_clock_mhz"]: return f"{of_highest:.0f}"
    return f"{of_highest:.0f}, {100 * record['tflops'] / tensor_roof(record['sm_clock_mhz']):.0f}"


def section(passes, markdown):
    """passes: {pass: {machine: tables}} -> the text between the markers of docs/performance.md."""
    parts = []
    for kind, machines in passes.items():
        for machine, tables in machines.items():
            if not is_known(machine): continue
            parts.append(f"**{machine}**, {kind}: percent of {tensor_roof(HIGHEST_MHZ):.0f} TFLOP/s, and of what the "
                         "tensor cores could do at the clock that was measured:")
            parts.append(markdown(share_rows(tables)))
    return "\n\n".join(parts)


def draw(passes, path):
    """The roofline: each measured problem by its FLOPs a byte. Returns the path; None where there is no such GPU."""
    from . import plots
    machines = list(dict.fromkeys(m for tables in passes.values() for m in tables if is_known(m)))
    if not machines: return None
    figure, axes = plots.plt.subplots(1, len(machines), figsize=(5.6 * len(machines), 4.4), squeeze=False, sharey=True,
                                      layout="constrained")
    for axis, machine in zip(axes[0], machines):
        draw_machine(axis, machine, {kind: tables[machine] for kind, tables in passes.items() if machine in tables})
    axes[0][0].set_ylabel("TFLOP/s")
    axes[0][0].legend(frameon=False, fontsize=9, loc="lower right")
    figure.savefig(path, dpi=130, facecolor="white")
    plots.plt.close(figure)
    return path


def draw_machine(axis, machine, by_pass):
    top, bandwidth = tensor_roof(HIGHEST_MHZ), MEMORY_TBPS[machine]
    ridge = top / bandwidth
    axis.plot([20, ridge, 2e4], [20 * bandwidth, top, top], color="#1c2321", linewidth=1.5)
    for (kind, tables), (color, mark) in zip(by_pass.items(), (("#1b7f3b", "o"), ("#d9662b", "^"))):
        ours = [c.best[OURS] for cells in tables.values() for c in cells if c.best[OURS]["gbps"]]
        axis.plot([1e3 * r["tflops"] / r["gbps"] for r in ours], [r["tflops"] for r in ours], mark, color=color,
                  markersize=4.5, label=kind)
    axis.set(xscale="log", yscale="log", title=machine, xlabel="FLOPs a byte that must be moved")
    axis.grid(color="#d9ddd9", linewidth=0.8)
    axis.set_axisbelow(True)
