# SPDX-License-Identifier: Apache-2.0
"""Tables beside those of speed by length, each from a folder of bench/results: errors (bench/errors.py forward) and
grad_errors (bench/errors.py gradients, bench/speed.py), energy (bench/energy.py), host and steps
(bench/python_host.py), packed sequences, lists of problems that share no table (LISTS, bench/speed.py), and serving and
append (SERVED, `froghopper bench`)."""
import json
import re

from .records import DETERMINISTIC, OURS, machine_of, machines_of, newest_cell, unit_of

ABSENT = "-"
PAPER = "outliers"  # the inputs of the error table of the FlashAttention-3 paper
# Folder of bench/results: heading, and the unit in which its problems are shown.
LISTS = {"few_items": ("Low occupancy", "TFLOP/s"), "decode": ("Decoding and short queries", "GB/s"),
         "windows": ("Windows", "TFLOP/s"), "real": ("Shapes of models", "TFLOP/s"),
         "above_256": ("Head dims above 256", "TFLOP/s"),
         "above_256_bwd": ("Gradients of head dims above 256", "TFLOP/s")}
FIGURES = {"TFLOP/s": "tflops", "GB/s": "gbps"}


def read_errors(paths, names=("gpu", "problem", "data", "impl")):
    """The newest record of everything that these names tell apart; of one date the last."""
    newest = {}
    for path in paths:
        for line in path.read_text().splitlines():
            record = json.loads(line)
            key = tuple(record[name] for name in names)
            if key not in newest or newest[key]["date"] <= record["date"]: newest[key] = record
    return list(newest.values())


def by_card(records):
    """{card: its records}: no two cards share a table."""
    cards = dict.fromkeys(r["gpu"] for r in records)
    return {gpu: [r for r in records if r["gpu"] == gpu] for gpu in cards}


def dtype_of(record): return record["problem"].split()[1]


def dim_of(record): return next(w for w in record["problem"].split() if w[0] == "d")[1:]


def error_rows(errors, kinds):
    """A row a kind of inputs and type; in each field our error, and in brackets its ratio to FlashAttention-3's."""
    dims = sorted({dim_of(r) for r in errors}, key=int)
    rows = [["inputs"] + [f"head dim {dim}" for dim in dims]]
    for kind in kinds:
        for dtype in dict.fromkeys(dtype_of(r) for r in errors):
            here = {(dim_of(r), r["impl"]): r["rmse"] for r in errors if (dtype_of(r), r["data"]) == (dtype, kind)}
            rows.append([f"{dtype}, {kind}"] + [error_field(here, dim) for dim in dims])
    return rows


def error_field(errors, dim):
    ours, fa3, plain = (errors.get((dim, impl)) for impl in ("froghopper", "fa3", "standard"))
    if ours is None: return ""
    return f"{ours:.2e}" + (f" ({ours / fa3:.2f})" if fa3 else "") + (f", {plain:.2e}" if plain else "")


def errors_heading(gpu):
    return (f"**Errors**, root mean square of o against fp64, 4096 keys, {gpu}; in brackets the ratio to "
            "FlashAttention-3's on the same inputs, after it the error of standard attention in the same type")


def machines_of_list(records):
    """A list holds problems of one pass."""
    return machines_of(records, *{r["pass"] for r in records})


def list_rows(records, unit):
    """A row a problem; in each field our speed on a machine, and in brackets its ratio to the best rival."""
    machines = machines_of_list(records)
    cells = {machine: {c.problem: c for cells in tables.values() for c in cells}
             for machine, tables in machines.items()}
    problems = dict.fromkeys(r["problem"] for r in records if machine_of(r) in cells)
    rows = [["problem"] + [f"{machine}, {unit}" for machine in machines]]
    for problem in problems:
        rows.append([f"`{problem}`"] + [list_field(of.get(problem), FIGURES[unit]) for of in cells.values()])
    return rows


def list_field(cell, figure):
    if not cell: return ""
    ratio = cell.ratio(cell.rivals())
    return f"{cell.best[OURS][figure]:.0f}" + (f" ({ratio:.2f})" if ratio else "")


def ratios_of(records):
    """{machine: ratios to the best rival of all problems that had one}."""
    return {machine: [c.ratio(c.rivals()) for cells in tables.values() for c in cells]
            for machine, tables in machines_of_list(records).items()}


# Folder of bench/results, and suite: heading.
SERVED = {"serving": "K and V in pages", "append": "New rows of a cache"}
SERVED_TITLE = ("Microseconds of a call, in brackets the ratio to the best rival, interleaved; the MB that must be "
                "moved, GB/s, and these as percent of what a kernel that only reads has reached in the same run. "
                "Made by `froghopper bench bench/suites/{}.txt --backend hopper --cold --json`: no call "
                "finds its tensors in L2.")


def served_rows(records):
    """Of one card: a row a problem."""
    groups = {}
    for r in records: groups.setdefault(r["problem"], {}).setdefault(r["turn_group"], []).append(r)
    cells = [cell for problem, by_group in groups.items() if (cell := newest_cell(problem, by_group))]
    return [["problem", "us", "MB", "GB/s", "% of reads"], *map(served_row, cells)]


def served_row(cell):
    ours, ratio = cell.best[OURS], cell.ratio(cell.rivals())
    share, moved = ours.get("read_share"), ours.get("bytes")
    return [f"`{cell.problem}`", f"{ours['ms'] * 1e3:.1f}" + (f" ({ratio:.2f})" if ratio else ""),
            ABSENT if moved is None else f"{moved / 1e6:.4g}",
            ABSENT if ours["gbps"] is None else f"{ours['gbps']:.0f}",
            ABSENT if share is None else f"{100 * share:.0f}"]


BESIDE_16_BITS = ("16-bit q with 8-bit k and v. `froghopper_16_bits` is this library with the same k and v in q's "
                  "type: `bench/speed.py --suite bench/suites/fp8_kv_fwd.txt --rivals ''`.")
DECODING_BESIDE_16_BITS = ("The same, decoding (bench/suites/fp8_kv_decode.txt): GB/s, in brackets the ratio of times.")

NARROW_NAMES = ("gpu", "data", "means", "keys", "way", "dim")
OF_MEANS = ("one scale a head", "blocks, smooth")  # ways to quantise that show what means of columns do
NARROW_ERRORS = ("**Errors of e4m3**, root mean square of o against fp64 on the inputs before they were quantised, 512 "
                 "rows of queries; in brackets its ratio to what exact arithmetic on the quantised inputs has, and to "
                 "FlashAttention-3's on the same values; with means: columns of k and v have one, N(0, 16)")


def narrow_error_rows(errors):
    """Of bench/errors.py fp8: a row a kind of inputs, number of keys and way to quantise them."""
    found = {tuple(r[name] for name in NARROW_NAMES[1:]): r for r in errors}
    dims = sorted({r["dim"] for r in errors})
    rows = [["inputs, keys", "quantised"] + [f"head dim {dim}" for dim in dims]]
    for data, means, keys, way in dict.fromkeys(key[:4] for key in found):
        if data == "normal" and "rotated" in way: continue  # rotated normal numbers are normal numbers
        if means and way not in OF_MEANS: continue
        fields = [narrow_error_field(found.get((data, means, keys, way, dim))) for dim in dims]
        rows.append([f"{data}{' with means' if means else ''}, {keys}", way] + fields)
    return rows


def narrow_error_field(record):
    if record is None: return ABSENT
    fa3 = f", {record['rmse'] / record['fa3']:.3f}" if "fa3" in record else ""
    return f"{record['rmse']:.2e} ({record['rmse'] / record['inputs']:.3f}{fa3})"


GRAD_ERRORS = ("Of grad_q, grad_k and grad_v against fp64, in thousandths: the norm of the difference over that of the "
               "exact gradient. `standard` is the same computation in the type of the inputs, one matrix product after "
               "the other. Made by bench/speed.py and bench/errors.py gradients.")


def grad_error_rows(errors):
    """A row a problem and kind of inputs, a column an implementation."""
    impls = dict.fromkeys(r["impl"] for r in errors if not r["impl"].endswith(DETERMINISTIC))
    fields = {(r["problem"], r["data"], r["impl"]): grad_error_field(r) for r in errors}
    rows = [["problem", "inputs", *impls]]
    for problem, data in dict.fromkeys((r["problem"], r["data"]) for r in errors):
        rows.append([f"`{problem}`", data] + [fields.get((problem, data, impl), ABSENT) for impl in impls])
    return rows


def grad_error_field(record):
    return ", ".join(f"{1e3 * record[name]:.2f}" for name in ("grad_q", "grad_k", "grad_v"))


ENERGY = ("Energy of a call in pJ/FLOP, of the whole card by its own counter, each contender for some seconds in "
          "turns; it reads 682 to 733 W of cards limited to 700 W, so within 5 %. Made by bench/energy.py")


def energy_rows(records):
    """A row a problem, a column a library, of one card."""
    impls = dict.fromkeys(r["impl"] for r in records)
    found = {(r["problem"], r["impl"]): f"{r['pj_per_flop']:.2f}" for r in records}
    rows = [["problem", *impls]]
    for problem in dict.fromkeys(r["problem"] for r in records):
        rows.append([f"`{problem}`"] + [found.get((problem, impl), ABSENT) for impl in impls])
    return rows


def packed_rows(tables):
    """A row a problem, a column an implementation, ours first, and last our ratio to the best rival."""
    cells = [c for cells in tables.values() for c in cells]
    ours = (OURS, OURS + DETERMINISTIC)
    impls = sorted({i for c in cells for i in c.best}, key=lambda i: (i not in ours, i))
    factor = unit_of(tables)[1]
    rows = [["problem", *impls, f"{OURS} / best rival"]]
    for c in cells:
        speeds = [f"{c.best[i]['tflops'] * factor:.0f}" if i in c.best else ABSENT for i in impls]
        ratio = c.ratio(c.rivals())
        rows.append([packed_title(c.problem), *speeds, f"**{ratio:.2f}**" if ratio else ""])
    return rows


def packed_title(problem):
    """"bwd bf16 b2 hq4 hkv2 ... : lens_q=300,100" -> "bf16 hq4 hkv2 d64 causal, 2 sequences of 100 to 300 rows, 400 in
    all"."""
    line, _, lens = problem.partition(" : lens_q=")
    lens = [int(n) for n in lens.split(",")]
    words = [w for w in line.split()[1:] if not re.fullmatch(r"(b|sq|skv|tq|tkv)\d+|varlen", w)]
    return f"{' '.join(words)}, {len(lens)} sequences of {min(lens)} to {max(lens)} rows, {sum(lens)} in all"


HOST = ("Microseconds of the host for one small call, by entrance (bench/python_host.py: 8 rows, 4 heads of 64; the "
        "fastest round of many in turns)")
KINDS = ("without gradients", "recording", "with the backward pass", "a call", "under jit")
STEPS = ("Milliseconds of a whole step of models of transformers, eager bf16, and of its kernels alone "
         "(bench/python_host.py steps; medians in turns)")


def host_rows(records):
    """Of one device: an entrance a row, a column for each way to call that any has."""
    kinds = [kind for kind in KINDS if any(kind in r["us"] for r in records)]
    rows = [["", *kinds]]
    rows += [[r["entrance"], *(f"{r['us'][kind]:.0f}" if kind in r["us"] else ABSENT for kind in kinds)]
             for r in records]
    return rows


def step_rows(records):
    names = list(records[0]["figures"])
    rows = [["", *names, *(f"kernels with {name}" for name in names), "ratio of steps", "ratio of kernels"]]
    for r in records:
        ours, other = (r["figures"][name] for name in names)
        rows.append([r["model"], f"{ours['ms']:.2f}", f"{other['ms']:.2f}", f"{ours['kernels']:.2f}",
                     f"{other['kernels']:.2f}", f"{other['ms'] / ours['ms']:.2f}",
                     f"{other['kernels'] / ours['kernels']:.2f}"])
    return rows


PARALLEL = ("Milliseconds of the slowest rank, of a call among others in a row, and in brackets the share of linear: "
            "one GPU's time in the same run, divided by the ranks and by it (bench/context_parallel.py; medians)")


def parallel_rows(records):
    """A row a problem and a pass, of one number of ranks."""
    impls = [name for name in dict.fromkeys(r["impl"] for r in records) if name != "one GPU"]
    rows = [["", "pass", "one GPU", *impls]]
    for problem, kind in dict.fromkeys((r["problem"], r["pass"]) for r in records):
        here = {r["impl"]: r for r in records if (r["problem"], r["pass"]) == (problem, kind)}
        alone = here["one GPU"]
        fields = [f"{here[name]['ms']:.2f} ({alone['ms'] / here[name]['ranks'] / here[name]['ms']:.2f})"
                  if name in here else ABSENT for name in impls]
        rows.append([parallel_title(problem), kind, f"{alone['ms']:.2f}", *fields])
    return rows


PARALLEL_DECODE = ("Decoding one token of each sequence in the same way, bf16, 32/8 heads of 128, pages of 16, each "
                   "rank with an equal part of every sequence: microseconds of a replay of a CUDA graph among others "
                   "in a row.")


def parallel_decode_rows(records):
    times = {}
    for r in records: times.setdefault(r["problem"], {})[r["impl"]] = r
    rows = [["", "one GPU", "decode"]]
    for problem, of in times.items():
        batch, keys = (int(re.search(rf"\b{word}(\d+)", problem)[1]) for word in ("b", "skv"))
        alone, shared = of["one GPU"]["ms"], of["decode"]["ms"]
        rows.append([f"{batch} sequences of {keys // 1024}k", f"{1e3 * alone:.1f}",
                     f"{1e3 * shared:.1f} ({alone / of['decode']['ranks'] / shared:.2f})"])
    return rows


def parallel_title(problem):
    packed = " varlen " in problem
    heads, heads_kv, rows, batch = (int(re.search(rf"\b{word}(\d+)", problem)[1])
                                    for word in ("hq", "hkv", "tq" if packed else "sq", "b"))
    window = re.search(r"window(\d+)", problem)
    return (f"{heads}/{heads_kv} heads, {rows // 1024}k" + (f", {batch} documents" if packed else "") +
            (f", window {window[1]}" if window else ""))
