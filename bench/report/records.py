# SPDX-License-Identifier: Apache-2.0
"""The lines of bench/results, read and put in order for the tables and the pictures: machine, table, cell.

A cell is one problem on one machine. A ratio is only ever taken within one A/B group, whose measurements ran in turns.
A problem is shown by its newest A/B group in which a rival ran too, or by its newest one if none ever did.
"""
import collections
import dataclasses
import json
import re
import statistics

KEYS = ("problem", "pass", "impl", "plan", "ms", "spread", "tflops", "gbps", "sm_clock_mhz", "gpu", "driver",
        "commit", "date", "turn_group")
OURS = "froghopper"
DETERMINISTIC = "_det"      # ends the name of an implementation that gives the same bits in every run
OLDER_BUILDS = ("sketch",)  # our own, shown in docs/results.md; not rivals
LAYER = "fwd+bwd"           # a pass: forward and backward of one layer
HOST = "host: "             # plans of host cost, from `froghopper bench --host`


@dataclasses.dataclass
class Cell:
    """One problem on one machine: its chosen A/B group, the fastest plan of every implementation."""
    problem: str
    best: dict  # impl -> record

    def tokens(self): return dict(re.findall(r"\b(b|sq|skv|tq)(\d+)\b", self.problem))

    def column(self):
        t = self.tokens()
        return t["sq"] if t["sq"] == t["skv"] else f"{t['sq']} x {t['skv']}"

    def rivals(self, ending=""):
        """Those whose names end so: without an ending, all but the deterministic ones."""
        def wanted(impl):
            return impl.endswith(ending) if ending else not impl.endswith(DETERMINISTIC)
        return {i: r for i, r in self.best.items() if i != OURS + ending and i not in OLDER_BUILDS and wanted(i)}

    def ratio(self, impls, ours=OURS):
        """Speed of froghopper over that of the fastest of these; None where one side is missing."""
        times = [self.best[i]["ms"] for i in impls if i in self.best]
        return min(times) / self.best[ours]["ms"] if times and ours in self.best else None


def read(paths):
    """All records; a line that is not one is refused with its place."""
    records = []
    for path in paths:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if not line.strip(): continue
            try: record = json.loads(line)
            except json.JSONDecodeError as problem: raise ValueError(f"{path.name}:{number}: {problem}") from None
            missing = [key for key in KEYS if key not in record]
            if missing: raise ValueError(f"{path.name}:{number}: no {', '.join(missing)}")
            records.append(record)
    return records


def is_packed(problem): return " : " in problem  # its lengths come after the colon


def machines_of(records, kind="fwd", packed=False):
    """{machine: {table title: [Cell]}}, the fastest machine first, tables as the files have them, cells by length."""
    groups = collections.defaultdict(lambda: collections.defaultdict(list))
    for r in records:
        if r["pass"] == kind and is_packed(r["problem"]) == packed and not r["plan"].startswith(HOST):
            groups[machine_of(r), r["problem"]][r["turn_group"]].append(r)
    machines = {}
    for (machine, problem), by_group in groups.items():
        if cell := newest_cell(problem, by_group):
            machines.setdefault(machine, {}).setdefault(title_of(problem), []).append(cell)
    for tables in machines.values():
        for cells in tables.values(): cells.sort(key=lambda c: [int(c.tokens()[t]) for t in ("sq", "skv")])
    return dict(sorted(machines.items(), key=lambda item: -top_speed(item[1])))


def machine_of(record):
    """The machine's name; of a CPU also what it has for bf16, since virtual machines of many kinds share one."""
    if not re.search(r", \d+ threads?$", record["gpu"]): return record["gpu"]
    if "cpu_bf16" not in record: return f"{record['gpu']}, bf16 instructions not recorded"
    return f"{record['gpu']}, {' and '.join(record['cpu_bf16']) or 'no bf16 instructions'}"


def top_speed(tables):
    return max(c.best[OURS]["tflops"] for cells in tables.values() for c in cells)


def newest_cell(problem, by_group):
    cells = [Cell(problem, fastest_by_impl(records)) for records in by_group.values()]
    cells = [c for c in cells if OURS in c.best]
    return max(cells, key=lambda c: (bool(c.rivals()), c.best[OURS]["date"]), default=None)


def fastest_by_impl(records):
    best = {}
    for r in records:
        if r["impl"] not in best or r["ms"] < best[r["impl"]]["ms"]: best[r["impl"]] = r
    return best


def title_of(problem):
    """What the columns of one table share: all but batch and lengths, and the tokens of all sequences together."""
    t = dict(re.findall(r"\b(b|sq|tq)(\d+)\b", problem))
    rows = int(t["tq"]) if "tq" in t else int(t["b"]) * int(t["sq"])
    rest = [x for x in problem.split() if not re.fullmatch(r"(b|sq|skv)\d+", x)]
    return f"{' '.join(rest)}, {rows} tokens"


def newest_host_costs(records):
    """The newest record of every machine and call."""
    host = sorted((r for r in records if r["plan"].startswith(HOST)), key=lambda r: r["date"])
    return list({(r["gpu"], r["plan"]): r for r in host}.values())


# What a table is called and measured in.

def sizes_of(words):
    """{"hq": "16", ...} of the words that are a name and a number."""
    return dict(m.groups() for w in words if (m := re.fullmatch(r"([a-z]+)(\d+)", w)))


def short_title(title):
    """"fwd bf16 hq16 hkv16 d128 causal, 16384 tokens" -> "bf16, 16 heads of 128, causal"."""
    words = title.split(",")[0].split()[1:]
    sizes = sizes_of(words)
    rest = [w for w in words[1:] if not re.fullmatch(r"(hq|hkv|d|dv|tq|tkv)\d+", w)]
    heads = sizes["hq"] if sizes["hq"] == sizes["hkv"] else f"{sizes['hq']}/{sizes['hkv']}"
    dims = sizes["d"] + (f", {sizes['dv']}" if "dv" in sizes else "")
    return ", ".join([words[0], f"{heads} heads of {dims}", " ".join(rest) or "non-causal"])


def unit_of(tables):
    """(name, factor on TFLOP/s): one unit a machine, small ones for a CPU."""
    return ("TFLOP/s", 1) if top_speed(tables) >= 2 else ("GFLOP/s", 1000)


def amx_in_torch(tables):
    """Whether PyTorch used the processor's AMX, in words; "" where there is none or no PyTorch."""
    theirs = [r for cells in tables.values() for c in cells for r in c.rivals().values() if r["impl"] == "torch"]
    bf16 = [r for r in theirs if " bf16 " in r["problem"]]
    may_have_it = [r for r in bf16 if "amx_bf16" in r.get("cpu_bf16", ["amx_bf16"])]
    if not may_have_it: return ""
    gains = [r.get("torch_amx_gain") for r in may_have_it]
    if None in gains: return "whether PyTorch used AMX is not recorded"
    gain = statistics.median(gains)
    return f"PyTorch uses AMX for bf16, {gain:.1f}x by it" if gain > 1.1 else "PyTorch makes no use of AMX"


def worth_drawing(tables):
    """Those with a rival at more than two lengths."""
    return {title: cells for title, cells in tables.items() if len(cells) > 2 and any(c.rivals() for c in cells)}
