# SPDX-License-Identifier: Apache-2.0
"""What the library aims at, over the best rival of a run, and how far it is: the first table of docs/results.md."""
import dataclasses
import statistics

from .records import DETERMINISTIC, LAYER, OURS, sizes_of


@dataclasses.dataclass
class Target:
    """Problems of a pass, or of a folder of bench/results, and the least ratio that each of them shall have."""
    name: str
    where: str  # a pass, or a folder
    least: float
    mean: float = 0       # geometric, of all; 0: nothing is asked of it
    dims: tuple = ()      # as problem lines have them, "192 dv128"; none: all
    shared: bool = False  # where dims are named: query heads share keys, or each has its own
    causal: bool | None = None
    rows: tuple = (0, 1 << 62)
    ours: str = OURS
    itself: bool = False  # beside the default instead of rivals

    def wants(self, cell):
        words = cell.problem.split()
        sizes = sizes_of(words)
        dims = sizes["d"] + (f" dv{sizes['dv']}" if "dv" in sizes else "")
        return ((not self.dims or dims in self.dims) and self.rows[0] <= int(sizes["sq"]) <= self.rows[1] and
                (self.causal is None or self.causal == ("causal" in words)) and
                (not self.dims or self.shared == (sizes["hq"] != sizes["hkv"])))

    def ratio(self, cell):
        if self.itself: return cell.ratio([OURS], self.ours)
        return cell.ratio(cell.rivals(DETERMINISTIC if self.ours != OURS else ""), self.ours)


DET = OURS + DETERMINISTIC
OTHER_DIMS = ("96", "192", "192 dv128", "40")
TARGETS = [
    Target("forward, head dim 128", "fwd", 1.08, 1.15, ("128",)),
    Target("forward, head dim 64", "fwd", 1.12, 1.25, ("64",)),
    Target("forward, head dim 256", "fwd", 1.0, 1.04, ("256",)),
    Target("forward, head dims 96, 192, (192, 128), 40", "fwd", 1.05, 0, OTHER_DIMS),
    Target("gradients, head dim 128", "bwd", 1.05, 1.12, ("128",)),
    Target("gradients, head dim 64", "bwd", 1.05, 1.12, ("64",)),
    Target("gradients, head dim 256", "bwd", 1.1, 1.2, ("256",)),
    Target("gradients, up to 1024 rows", "bwd", 1.1, 0, ("64", "128", "256"), rows=(0, 1024)),
    Target("gradients, 64/8 heads of 128, causal", "bwd", 1.15, 0, ("128",), shared=True, causal=True),
    Target("gradients with `det`, over the default", "bwd", 0.95, ours=DET, itself=True),
    Target("gradients with `det`, over such rivals", "bwd", 1.25, ours=DET),
    Target("forward and backward of a layer, 2048 rows and more", LAYER, 1.08, rows=(2048, 1 << 62)),
    Target("packed sequences", "packed", 1.2),
    Target("low occupancy", "few_items", 1.15),
    Target("windows", "windows", 1.1),
    Target("decoding", "decode", 1.0),
    Target("e4m3, non-causal, 4096 rows and more, head dim 64", "fp8", 1.25, 0, ("64",), causal=False,
           rows=(4096, 1 << 62)),
    Target("the same, head dim 128", "fp8", 1.3, 0, ("128",), causal=False, rows=(4096, 1 << 62)),
    Target("the same, head dim 256", "fp8", 1.2, 0, ("256",), causal=False, rows=(4096, 1 << 62)),
    Target("e4m3, all", "fp8", 1.15, 0, ("64", "128", "256")),
    Target("16-bit q, 8-bit k and v, over 16-bit ones", "fp8_kv", 0.95),
]


def rows(of):
    """A row a target, a column a machine. of: {pass or folder: {machine: {table title: [Cell]}}}."""
    machines = list(dict.fromkeys(m for tables in of.values() for m in tables if "thread" not in m))
    if not machines: return []
    found = [[target.name, asked(target)] + [field(target, of.get(target.where, {}).get(m, {})) for m in machines]
             for target in TARGETS]
    return [["problems", "aim"] + machines] + [row for row in found if any(row[2:])]


def asked(target):
    return f">= {target.least:g}" + (f", mean {target.mean:g}" if target.mean else "")


def field(target, tables):
    """How many problems reach it, the least ratio and where, the geometric mean."""
    cells = [(target.ratio(c), c) for cells in tables.values() for c in cells if target.wants(c)]
    known = [(ratio, c) for ratio, c in cells if ratio]
    if not known: return ""
    least, worst = min(known, key=lambda pair: pair[0])
    reached = sum(round(ratio, 2) >= target.least for ratio, _ in known)
    mean = statistics.geometric_mean(ratio for ratio, _ in known)
    mask = ", causal" if "causal" in worst.problem.split() else ""
    return f"{reached} of {len(known)}; least {least:.2f} ({worst.column()}{mask}), mean {mean:.2f}"
