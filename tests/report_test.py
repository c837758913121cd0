# SPDX-License-Identifier: Apache-2.0
"""What bench/report divides by what, what it writes and refuses."""
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
from measure import other_process
from report import headlines, pages, records, roof, side_tables, targets

LINE = "fwd bf16 b{} hq16 hkv16 sq{} skv{} d128 causal"


def record(seq, impl, ms, group, date="2026-01-01T00:00:00Z", **more):
    return {"problem": LINE.format(16384 // seq, seq, seq), "pass": "fwd", "impl": impl, "plan": impl + " plan",
            "ms": ms, "spread": 0.5, "tflops": 100 / ms, "gbps": 900.0, "sm_clock_mhz": 1600, "gpu": "Some GPU",
            "driver": "1.2", "commit": "abc", "date": date, "turn_group": group, **more}


class Ratios(unittest.TestCase):
    def cell(self, *lines):
        (tables,) = records.machines_of(list(lines)).values()
        ((cell,),) = tables.values()
        return cell

    def test_within_one_turn_group_only(self):
        cell = self.cell(record(512, "froghopper", 1.0, "a"), record(512, "cudnn", 1.2, "a"),
                         record(512, "fa3", 0.5, "b"), record(512, "froghopper", 0.4, "b", "2025-01-01T00:00:00Z"))
        self.assertEqual(set(cell.best), {"froghopper", "cudnn"})
        self.assertAlmostEqual(cell.ratio(cell.rivals()), 1.2)

    def test_the_newest_group_with_a_rival_is_shown(self):
        cell = self.cell(record(512, "froghopper", 1.0, "a", "2026-01-01T00:00:00Z"), record(512, "cudnn", 1.5, "a"),
                         record(512, "froghopper", 2.0, "b", "2026-01-02T00:00:00Z"), record(512, "cudnn", 2.2, "b"),
                         record(512, "froghopper", 0.1, "c", "2026-01-03T00:00:00Z"))
        self.assertEqual(cell.best["froghopper"]["ms"], 2.0)

    def test_fastest_plan_of_an_implementation_counts(self):
        cell = self.cell(record(512, "froghopper", 1.0, "a"), record(512, "sketch", 3.0, "a", plan="slow"),
                         record(512, "sketch", 2.0, "a", plan="fast"))
        self.assertEqual(cell.best["sketch"]["plan"], "fast")
        self.assertAlmostEqual(cell.ratio(["sketch"]), 2.0)
        self.assertEqual(cell.rivals(), {})

    def test_machines_stay_apart(self):
        machines = records.machines_of([record(512, "froghopper", 1.0, "a"), record(512, "cudnn", 1.0, "a"),
                                       record(512, "froghopper", 1.0, "b", gpu="Another")])
        self.assertEqual(list(machines), ["Some GPU", "Another"])


BACKWARD = LINE.replace("fwd", "bwd")
PACKED = "bwd bf16 b2 hq4 hkv2 sq300 skv300 d64 varlen tq400 tkv400 causal : lens_q=300,100"


def backward(seq, impl, ms, kind="bwd", **more):
    return record(seq, impl, ms, f"{kind} {seq}", **{"pass": kind}) | {
        "problem": BACKWARD.format(16384 // seq, seq, seq)} | more


class Backward(unittest.TestCase):
    lines = [backward(512, "froghopper", 1.0), backward(512, "froghopper_det", 1.25), backward(512, "cudnn", 1.1),
             backward(512, "fa3", 1.2), backward(512, "fa3_det", 2.5), backward(1024, "froghopper", 1.0),
             backward(1024, "fa3_det", 0.5),
             *(backward(2048, impl, ms, "fwd+bwd") for impl, ms in (("froghopper", 1.0), ("cudnn", 1.5)))]

    def cells(self, kind="bwd"):
        (tables,) = records.machines_of(self.lines, kind).values()
        (cells,) = tables.values()
        return cells

    def test_passes_stay_apart(self):
        self.assertEqual(records.machines_of(self.lines), {})
        self.assertEqual([c.column() for c in self.cells()], ["512", "1024"])
        self.assertEqual([c.ratio(c.rivals()) for c in self.cells("fwd+bwd")], [1.5])

    def test_deterministic_forms_are_compared_with_their_like(self):
        first, second = self.cells()
        self.assertEqual(set(first.rivals()), {"cudnn", "fa3"})
        self.assertEqual(set(first.rivals("_det")), {"fa3_det"})
        self.assertAlmostEqual(first.ratio(first.rivals()), 1.1)
        self.assertAlmostEqual(first.ratio(first.rivals("_det"), "froghopper_det"), 2.0)
        self.assertIsNone(second.ratio(second.rivals()))
        self.assertIsNone(second.ratio(second.rivals("_det"), "froghopper_det"))

    def test_what_the_overview_says(self):
        passes = {kind: records.machines_of(self.lines, kind) for kind in pages.PASSES}
        text = "\n".join(pages.overview(passes))
        self.assertIn("**Some GPU**, backward, TFLOP/s, in brackets the ratio to the fastest of cudnn, fa3,", text)
        self.assertIn("| bf16, 16 heads of 128, causal | 100 (1.10) | 100 |", text)
        self.assertIn("Deterministic mode (`det`) has 0.80 to 0.80 (median 0.80) times that speed, "
                      "2.00 to 2.00 (median 2.00) times that of the fastest deterministic rival. Forward and backward "
                      "of one layer together: 1.50 to 1.50 (median 1.50) times the best rival.", text)

    def test_what_the_results_say(self):
        passes = {kind: records.machines_of(self.lines, kind) for kind in pages.PASSES}
        text = pages.long_report(passes, [])
        for row in ("## Some GPU, backward", "| froghopper_det | 80 |  |",
                    "| froghopper / best rival | **1.10** |  |",
                    "| froghopper_det / best such rival | **2.00** |  |",
                    "| froghopper_det / froghopper | **0.80** |  |",
                    "## Some GPU, forward and backward of one layer"):
            self.assertIn(row + "\n", text)

    def test_packed_problems_have_a_table_of_their_own(self):
        lines = [backward(512, impl, ms, problem=PACKED) for impl, ms in (("froghopper", 1.0), ("fa4", 2.0))]
        lines.append(backward(512, "froghopper", 1.0, problem=PACKED.replace("300,100", "100,300")))
        self.assertEqual(records.machines_of(lines, "bwd"), {})
        (tables,) = records.machines_of(lines, "bwd", packed=True).values()
        title = "bf16 hq4 hkv2 d64 causal, 2 sequences of 100 to 300 rows, 400 in all"
        self.assertEqual(side_tables.packed_rows(tables),
                         [["problem", "froghopper", "fa4", "froghopper / best rival"],
                          [title, "100", "50", "**2.00**"], [title, "100", "-", ""]])

    def test_ranks_share_a_row_of_documents(self):
        problem = PACKED.removeprefix("bwd ").replace("tq400 tkv400", "tq131072 tkv131072")
        lines = [{"problem": problem, "pass": "fwd", "impl": impl, "ranks": ranks, "ms": ms}
                 for impl, ranks, ms in (("one GPU", 1, 8.0), ("auto", 4, 2.5))]
        self.assertEqual(side_tables.parallel_rows(lines)[1],
                         ["4/2 heads, 128k, 2 documents", "fwd", "8.00", "2.50 (0.80)"])
        self.assertEqual(side_tables.parallel_title("bf16 b1 hq16 hkv8 sq32768 skv32768 d128 window4096,0"),
                         "16/8 heads, 32k, window 4096")
        decoding = [{"problem": "b64 skv8192", "impl": impl, "ranks": 2, "ms": ms}
                    for impl, ms in (("one GPU", 0.8), ("decode", 0.5))]
        self.assertEqual(side_tables.parallel_decode_rows(decoding)[1], ["64 sequences of 8k", "800.0", "500.0 (0.80)"])

    def test_errors_of_gradients(self):
        def error(impl, x): return {"problem": "bwd x", "data": "normal", "impl": impl, "gpu": "Some GPU",
                                    "grad_q": x, "grad_k": 2 * x, "grad_v": 3 * x}
        self.assertEqual(side_tables.grad_error_rows([error("froghopper", 1e-3), error("fa3", 2e-3),
                                                      error("fa3_det", 2e-3)]),
                         [["problem", "inputs", "froghopper", "fa3"],
                          ["`bwd x`", "normal", "1.00, 2.00, 3.00", "2.00, 4.00, 6.00"]])


class Processors(unittest.TestCase):
    """Records of a CPU say what it has for bf16 and whether PyTorch used it; older ones do not."""

    def headings(self, *lines):
        machines = records.machines_of(list(lines))
        return [(machine, records.amx_in_torch(tables)) for machine, tables in machines.items()]

    def pair(self, **facts):
        return [record(512, impl, 100.0, "a", gpu="Some CPU, 2 threads") | facts for impl in ("froghopper", "torch")]

    def test_not_recorded(self):
        self.assertEqual(self.headings(*self.pair()), [("Some CPU, 2 threads, bf16 instructions not recorded",
                                                        "whether PyTorch used AMX is not recorded")])

        self.assertEqual(self.headings(*self.pair(cpu_bf16=["amx_bf16"])),
                         [("Some CPU, 2 threads, amx_bf16", "whether PyTorch used AMX is not recorded")])

    def test_without_amx(self):
        self.assertEqual(self.headings(*self.pair(cpu_bf16=["avx512_bf16"], torch_amx_gain=None)),
                         [("Some CPU, 2 threads, avx512_bf16", "")])
        self.assertEqual(self.headings(*self.pair(cpu_bf16=[])), [("Some CPU, 2 threads, no bf16 instructions", "")])

    def test_with_amx(self):
        for gain, words in ((2.34, "PyTorch uses AMX for bf16, 2.3x by it"), (1.02, "PyTorch makes no use of AMX")):
            lines = self.pair(cpu_bf16=["avx512_bf16", "amx_bf16"], torch_amx_gain=gain)
            self.assertEqual(self.headings(*lines), [("Some CPU, 2 threads, avx512_bf16 and amx_bf16", words)])

    def test_processors_of_one_name_are_not_mixed(self):
        lines = self.pair() + self.pair(cpu_bf16=["amx_bf16"], torch_amx_gain=2.0, turn_group="b")
        self.assertEqual(len(self.headings(*lines)), 2)

    def test_a_ratio_is_to_the_faster_pytorch(self):
        ours, torch = self.pair(cpu_bf16=["amx_bf16"], torch_amx_gain=2.0)
        (tables,) = records.machines_of([ours, torch, torch | {"plan": "torch without AMX", "ms": 200.0}]).values()
        ((cell,),) = tables.values()
        self.assertEqual(cell.ratio(cell.rivals()), 1.0)

    def test_a_gpu_keeps_its_name(self):
        self.assertEqual(records.machine_of(record(512, "froghopper", 1.0, "a")), "Some GPU")

    def test_what_linux_says_of_a_processor(self):
        with tempfile.NamedTemporaryFile("w+") as cpuinfo:
            cpuinfo.write("processor\t: 0\nflags\t\t: fpu avx512_bf16 amx_bf16 amx_tile\n")
            cpuinfo.flush()
            self.assertEqual(other_process.bf16_instructions(cpuinfo.name), ["avx512_bf16", "amx_bf16"])


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "bench/results").mkdir(parents=True)
        (self.root / "docs").mkdir()
        (self.root / "README.md").write_text(f"before\n{pages.BEGIN}\nold\n{pages.END}\nafter\n")

    def run_report(self, *options):
        errors = io.StringIO()
        with unittest.mock.patch.object(sys, "argv", ["bench/report", "--root", str(self.root), *options]):
            with contextlib.redirect_stderr(errors):
                return pages.main(), errors.getvalue()

    def write(self, *lines):
        (self.root / "bench/results/x.jsonl").write_text("\n".join(lines) + "\n")

    def test_tables(self):
        host = record(512, "froghopper", 0.0031, "h", plan="host: fh_plan_run", tflops=None, gbps=None)
        self.write(*map(json.dumps, [record(512, "froghopper", 0.5, "a"), record(512, "cudnn", 0.6, "a"),
                                     record(1024, "froghopper", 0.25, "b"), record(1024, "fa3", 0.2, "b"), host]))
        self.assertEqual(self.run_report("--check", "--no-plots")[0], 1)
        self.assertEqual(self.run_report("--no-plots"), (0, ""))
        self.assertEqual(self.run_report("--check", "--no-plots")[0], 0)
        readme, results = ((self.root / name).read_text() for name in ("README.md", "docs/results.md"))
        self.assertTrue(readme.startswith("before\n") and readme.endswith("\nafter\n"))
        self.assertIn("No measurement", readme)  # of the six problems that it shows
        self.assertIn("| sequence length | 512 | 1024 |", results)
        self.assertIn("| bf16, 16 heads of 128, causal | 200 (1.20) | 400 (0.80) |", results)
        self.assertIn("| Some GPU | fh_plan_run |", results)
        self.assertIn("| froghopper / best rival | **1.20** | **0.80** |", results)
        self.assertIn("| cudnn | 167 |  |", results)

    def test_the_readme_shows_the_headlines_alone(self):
        of_row = {problem: record(16384, "froghopper", 0.5, problem) | {"problem": problem, "pass": problem.split()[0]}
                  for _, problem, *_ in headlines.ROWS}
        for folder in ("", pages.NARROW, "decode"):
            here = [r for r in of_row.values() if folder == self.folder_of(r["problem"])]
            here += [r | {"impl": "fa3", "ms": 0.6, "tflops": 100 / 0.6} for r in here]
            path = self.root / "bench/results" / folder / "x.jsonl"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(json.dumps(r) + "\n" for r in here))
        self.assertEqual(self.run_report("--no-plots"), (0, ""))
        table = [line for line in (self.root / "README.md").read_text().splitlines() if line.startswith("|")]
        self.assertEqual(len(table), 2 + 6)
        causal = "fwd bf16 b1 hq16 hkv16 sq16384 skv16384 d128 causal"
        self.assertIn(f"| forward | `{causal}` | Some GPU 200 TFLOP/s | Some GPU 1.20 (fa3) |", table)
        self.assertIn("900 GB/s", table[6])

    def folder_of(self, problem):
        return pages.NARROW if " e4m3 " in problem else "decode" if " sq1 " in problem else ""

    def test_8_bit_problems_have_a_page_of_their_own(self):
        page, folder = self.root / pages.NARROW_PAGE, self.root / "bench/results" / pages.NARROW
        page.write_text(f"before\n{pages.BEGIN}\n{pages.END}\n")
        folder.mkdir()
        cells = [record(512, "froghopper", 0.5, "a"), record(512, "fa3", 0.6, "a"), record(1024, "froghopper", 1, "b")]
        (folder / "x.jsonl").write_text("".join(json.dumps(cell) + "\n" for cell in cells))
        self.assertEqual(self.run_report("--no-plots"), (0, ""))
        self.assertIn("| bf16, 16 heads of 128, causal | 200 (1.20) | 100 |", page.read_text())
        self.assertIn("No measurement", (self.root / "README.md").read_text())

    def test_8_bit_keys_are_shown_beside_16_bit_ones(self):
        page = self.root / pages.NARROW_PAGE
        page.write_text(f"before\n{pages.BEGIN}\n{pages.END}\n")
        line = LINE.replace("bf16", "bf16 kv=e4m3").format
        for name, problems in ((pages.NARROW_KV, [line(32, 512, 512), line(16, 1024, 1024)]),
                               (pages.NARROW_DECODE, [line(8, 1, 4096)])):
            (folder := self.root / "bench/results" / name).mkdir()
            (folder / "x.jsonl").write_text("".join(json.dumps(record(512, impl, ms, p) | {"problem": p}) + "\n" for p
                                            in problems for impl, ms in (("froghopper", 0.5), ("other", 0.45))))
        self.assertEqual(self.run_report("--no-plots"), (0, ""))
        self.assertIn("in brackets the ratio to other", page.read_text())
        self.assertIn("| bf16, 16 heads of 128, kv=e4m3 causal | 200 (0.90) | 200 (0.90) |", page.read_text())
        self.assertIn(f"| `{line(8, 1, 4096)}` | 900 (0.90) |", page.read_text())
        self.assertIn("16-bit ones | >= 0.95 | 0 of 2; least 0.90", (self.root / "docs/results.md").read_text())

    def test_nothing_measured_yet(self):
        self.assertEqual(self.run_report()[0], 0)
        self.assertIn("No measurement", (self.root / "README.md").read_text())

    def test_bad_lines_are_refused_with_their_place(self):
        self.write(json.dumps(record(512, "froghopper", 1, "a")), "{torn")
        self.assertIn("x.jsonl:2:", self.run_report("--no-plots")[1])
        self.write(json.dumps({"problem": "fwd"}))
        self.assertIn("x.jsonl:1: no pass, impl", self.run_report("--no-plots")[1])

    def test_readme_without_markers(self):
        (self.root / "README.md").write_text("nothing")
        self.assertIn("README.md needs one", self.run_report("--no-plots")[1])


class SideTables(unittest.TestCase):
    def error(self, impl, rmse, dtype="f16", dim=64):
        return {"problem": f"fwd {dtype} b4 hq8 hkv8 sq4096 skv4096 d{dim}", "data": "outliers", "impl": impl,
                "rmse": rmse, "gpu": "Some GPU"}

    def test_errors_are_divided_by_flash_attention_3s(self):
        errors = [self.error("froghopper", 2e-5), self.error("fa3", 1e-5), self.error("standard", 8e-5),
                  self.error("froghopper", 3e-5, dim=128)]
        self.assertEqual(side_tables.error_rows(errors, ["outliers"]),
                         [["inputs", "head dim 64", "head dim 128"],
                          ["f16, outliers", "2.00e-05 (2.00), 8.00e-05", "3.00e-05"]])

    def test_the_newest_error_counts(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "x.jsonl")
            dated = [(1e-5, "2026-01-01"), (4e-5, "2026-01-03"), (2e-5, "2026-01-02")]
            path.write_text("\n".join(json.dumps(self.error("fa3", x) | {"date": date}) for x, date in dated) + "\n")
            (newest,) = side_tables.read_errors([path])
        self.assertEqual(newest["rmse"], 4e-5)

    def test_cards_are_not_mixed(self):
        def error(gpu, x): return {"problem": "bwd x", "data": "normal", "impl": "froghopper", "gpu": gpu, "date": "1",
                                   "grad_q": x, "grad_k": x, "grad_v": x}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "x.jsonl")
            path.write_text("\n".join(json.dumps(error(gpu, x)) for gpu, x in (("H100", 1e-3), ("H200", 2e-3))) + "\n")
            both = side_tables.read_errors([path])
        said = pages.error_parts([], both)
        self.assertEqual([said[i] for i in (2, 4)], ["**H100**:", "**H200**:"])
        self.assertIn("| `bwd x` | normal | 1.00, 1.00, 1.00 |", said[3])
        self.assertIn("| `bwd x` | normal | 2.00, 2.00, 2.00 |", said[5])
        both = [self.error("froghopper", x) | {"gpu": gpu} for gpu, x in (("H100", 1e-5), ("H200", 2e-5))]
        self.assertEqual(["1.00e-05" in part for part in pages.error_parts(both, [])],
                         [False, False, False, True, False, False, False])

    def test_little_work_has_a_row_a_problem_and_a_column_a_machine(self):
        lines = [record(512, "froghopper", 1.0, "a"), record(512, "cudnn", 1.5, "a"),
                 record(512, "froghopper", 2.0, "b", gpu="Another")]
        rows = side_tables.list_rows(lines, "TFLOP/s")
        self.assertEqual(rows[1][0], f"`{LINE.format(32, 512, 512)}`")
        self.assertEqual(rows[1][1:], ["100 (1.50)", "50"])
        self.assertEqual(side_tables.list_rows(lines, "GB/s")[0][2], "Another, GB/s")

    def test_serving_shows_bytes_and_their_share_a_card(self):
        paged = {"problem": "fwd bf16 b1 hq4 hkv4 sq1 skv64 d64 page16 pages4", "bytes": 2.1e6, "read_share": 0.968}
        rows = {"problem": "append bf16 b1 hq4 hkv4 sq1 skv64 d64", "pass": "append", "tflops": None, "gbps": None}
        older = record(1, "froghopper", 0.9, "a", "2025-01-01T00:00:00Z") | paged
        lines = [older, record(1, "froghopper", 0.5, "b") | paged, record(1, "fa3", 0.6, "b") | paged,
                 record(1, "froghopper", 0.25, "c", gpu="Another") | paged]
        said = pages.served_parts({"serving": lines, "append": [record(1, "froghopper", 0.002, "d") | rows]})
        self.assertEqual(said[0], "## K and V in pages")
        self.assertIn("bench/suites/serving.txt", said[1])
        self.assertEqual(said[2], "**Some GPU**, commit abc:")
        self.assertEqual(said[3].splitlines()[2:], [f"| `{paged['problem']}` | 500.0 (1.20) | 2.1 | 900 | 97 |"])
        self.assertIn("| 250.0 | 2.1 | 900 | 97 |", said[5])
        self.assertIn(f"| `{rows['problem']}` | 2.0 | - | - | - |", said[-1])
        self.assertEqual(pages.served_parts({"serving": [], "append": []}), [])

    def test_a_list_is_summed_up(self):
        lines = [record(512, "froghopper", 1.0, "a"), record(512, "cudnn", 1.5, "a"),
                 record(1024, "froghopper", 2.0, "b"), record(1024, "cudnn", 2.0, "b")]
        said = pages.overview({"fwd": {}, "bwd": {}}, lists={"decode": lines, "real": []})
        self.assertEqual(said, ["Decoding and short queries, ratio to the best rival: "
                                "Some GPU 1.00 to 1.50 (median 1.25)."])


class Targets(unittest.TestCase):
    def test_say_how_many_problems_reach_them_and_which_is_least(self):
        machines = records.machines_of([record(512, "froghopper", 1.0, "a"), record(512, "cudnn", 1.0, "a"),
                                        record(1024, "froghopper", 1.0, "b"), record(1024, "cudnn", 1.21, "b")])
        heading, row = targets.rows({"fwd": machines})
        self.assertEqual(heading, ["problems", "aim", "Some GPU"])
        self.assertEqual(row, ["forward, head dim 128", ">= 1.08, mean 1.15",
                               "1 of 2; least 1.00 (512, causal), mean 1.10"])

    def test_of_gradients_ask_what_the_words_of_a_problem_say(self):
        tables = {"bwd": records.machines_of(Backward.lines, "bwd")}
        found = {row[0]: row[2] for row in targets.rows(tables)[1:]}
        self.assertEqual(found["gradients, up to 1024 rows"], "1 of 1; least 1.10 (512, causal), mean 1.10")
        for over, said in (("the default", "0 of 1; least 0.80 (512, causal), mean 0.80"),
                             ("such rivals", "1 of 1; least 2.00 (512, causal), mean 2.00")):
            self.assertEqual(found["gradients with `det`, over " + over], said)
        self.assertNotIn("gradients, 64/8 heads of 128, causal", found)  # every query head has its keys

    def test_processors_have_none(self):
        machines = records.machines_of([record(512, "froghopper", 1.0, "a", gpu="A CPU, 2 threads")])
        self.assertEqual(targets.rows({"fwd": machines}), [])


class Roof(unittest.TestCase):
    def test_shares_are_of_the_highest_clock_and_of_the_measured_one(self):
        self.assertAlmostEqual(roof.tensor_roof(1980), 1070.5, 1)
        half = {"tflops": roof.tensor_roof(1980) / 2, "sm_clock_mhz": 1320}
        self.assertEqual(roof.share_field(half), "50, 75")
        self.assertEqual(roof.share_field({**half, "sm_clock_mhz": None}), "50")
        self.assertEqual(roof.share_field(None), "")

    def test_energy_is_the_newest_of_every_contender(self):
        lines = [{"gpu": "A card", "problem": "fwd x", "impl": impl, "pj_per_flop": pj, "commit": "abc",
                  "date": "2026-01-01"} for impl, pj in (("froghopper", 2), ("fa3", 1.25), ("froghopper", 0.996))]
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
            heading, table = pages.energy_parts(pathlib.Path(folder))
        self.assertTrue(heading.startswith("**A card**") and heading.endswith("commit abc:"))
        self.assertEqual(table.splitlines()[0], "| problem | froghopper | fa3 |")
        self.assertEqual(table.splitlines()[2], "| `fwd x` | 1.00 | 1.25 |")
        self.assertEqual(pages.energy_parts(pathlib.Path("nowhere")), [])

    def test_only_known_cards_have_a_roof(self):
        lines = [record(seq, "froghopper", 1, f"g{seq}", gpu=gpu) for seq in (512, 1024, 2048)
                 for gpu in ("Some GPU", "NVIDIA H200")]
        text = roof.section({"forward": records.machines_of(lines)}, pages.markdown)
        self.assertIn("**NVIDIA H200**, forward", text)
        self.assertNotIn("Some GPU", text)
        self.assertIn("| bf16, 16 heads of 128, causal | 9, 12 | 9, 12 | 9, 12 |", text)


if __name__ == "__main__":
    unittest.main()
