# SPDX-License-Identifier: Apache-2.0
"""The pictures of the results: speed by length, one panel for every kind of problem, one picture a machine.

Rows of panels are masks, columns are types and head dims; after four columns come new rows. The figure above each
point of froghopper is its ratio to the fastest rival of that cell, in its own A/B group. Of the deterministic forms
ours alone is drawn, with dashes.
"""
import re

import matplotlib

from . import records

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  after the backend is chosen
from matplotlib import patheffects  # noqa: E402

INK, FAINT = "#1c2321", "#d9ddd9"
COLORS = {"froghopper": "#1b7f3b", "froghopper_det": "#1b7f3b", "cudnn": "#5b6ee1", "fa3": "#d9662b",
          "fa3kv": "#a8481a", "fa2": "#a07cc5", "fa4": "#c2a000", "torch": "#d9662b"}
SPARE = ("#4aa3b5", "#8c6d4f", "#b04a6f")
ACROSS = 4  # panels side by side, as wide as a page shows legibly
MARKS = {"froghopper": "o", "froghopper_det": "o", "cudnn": "s", "fa3": "^", "fa3kv": "<", "fa2": "v", "fa4": "D",
         "torch": "^"}


def draw(title, tables, path):
    """Writes the picture and returns its path; None where there is nothing to compare."""
    panels = {panel_of(title): cells for title, cells in records.worth_drawing(tables).items()}
    if not panels: return None
    kinds, masks = list(dict.fromkeys(k for k, _ in panels)), list(dict.fromkeys(m for _, m in panels))
    across, bands = min(ACROSS, len(kinds)), -(-len(kinds) // ACROSS)
    size = (max(7.5, 4.2 * across), 1.2 + 3.2 * len(masks) * bands)
    figure, axes = plt.subplots(len(masks) * bands, across, figsize=size, squeeze=False, sharey=True,
                                layout="constrained")
    unit = records.unit_of(tables)
    top = max(r["tflops"] for cells in panels.values() for c in cells for r in c.best.values()) * unit[1]
    axes[0][0].set_ylim(0, 1.1 * top)  # shared by all; the room above is for the ratios
    for (kind, mask), cells in panels.items():
        band, column = divmod(kinds.index(kind), ACROSS)
        axis = axes[band * len(masks) + masks.index(mask)][column]
        draw_panel(axis, cells, unit)
        axis.set_title(f"{kind}, {mask}", fontsize=11, color=INK, loc="left", pad=8)
    for row in axes: row[0].set_ylabel(unit[0], fontsize=11)
    for axis in (a for row in axes for a in row if not a.lines): axis.set_visible(False)
    for axis in axes[-1]: axis.set_xlabel("rows of queries and of keys", fontsize=10)
    # The second line of the title is room for the legend, which is 0.4 inches below the top.
    figure.suptitle(f"Attention {title}\n", fontsize=14, color=INK, fontweight="bold", x=0.012, ha="left")
    figure.legend(*legend_of(axes), loc="upper left", bbox_to_anchor=(0.003, 1 - 0.32 / size[1]), ncols=6,
                  frameon=False, fontsize=11)
    figure.get_layout_engine().set(h_pad=0.08, w_pad=0.08)
    figure.savefig(path, dpi=130, facecolor="white")
    plt.close(figure)
    return path


def draw_panel(axis, cells, unit):
    columns = [c.column() for c in cells]
    deterministic = records.OURS + records.DETERMINISTIC
    impls = dict.fromkeys(i for c in cells for i in [*c.rivals(), records.OURS, deterministic] if i in c.best)
    for number, impl in enumerate(sorted(impls, key=lambda i: i == records.OURS)):
        ours = impl == records.OURS
        points = [(x, c.best[impl]["tflops"] * unit[1]) for x, c in enumerate(cells) if impl in c.best]
        axis.plot(*zip(*points), color=COLORS.get(impl, SPARE[number % len(SPARE)]), marker=MARKS.get(impl, "X"),
                  linewidth=2.6 if ours else 1.5, markersize=6 if ours else 4.5, label=impl, zorder=3 if ours else 2,
                  linestyle="--" if impl == deterministic else "-")
    for x, cell in enumerate(cells):
        if ratio := cell.ratio(cell.rivals()):
            axis.annotate(f"{ratio:.2f}x", (x, max(r["tflops"] for r in cell.best.values()) * unit[1]), xytext=(0, 7),
                          textcoords="offset points", ha="center", fontsize=9, color=COLORS[records.OURS], zorder=4,
                          path_effects=[patheffects.withStroke(linewidth=3, foreground="white")])
    axis.set_xticks(range(len(columns)), [short_length(c) for c in columns], fontsize=9.5)
    axis.margins(x=0.08)
    axis.grid(axis="y", color=FAINT, linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(length=0, colors=INK)
    for side in ("top", "right", "left"): axis.spines[side].set_visible(False)


def panel_of(title):
    """(the text above a column of panels, mask)"""
    kind, _, mask = records.short_title(title).rpartition(", ")
    return kind, mask


def short_length(column):
    """"16384" -> "16k"."""
    return re.sub(r"\d+", lambda n: f"{int(n[0]) // 1024}k" if int(n[0]) % 1024 == 0 else n[0], column)


def legend_of(axes):
    """Every implementation once, froghopper first."""
    drawn = [pair for row in axes for axis in row for pair in zip(*axis.get_legend_handles_labels())]
    handles = {label: handle for handle, label in drawn}
    names = sorted(handles, key=lambda name: name != records.OURS)
    return [handles[name] for name in names], names
