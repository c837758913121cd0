# SPDX-License-Identifier: Apache-2.0
"""What bench/fit_times.py files a kernel under. That the library looks there too is fit_times.py --check's."""
import pathlib
import re
import sys
import types
import unittest
import unittest.mock

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import fit_times

KERNEL = "fwd.bf16.d128.q192.kv64.s4"


def time(kernel, us, iterations, items, found="1.000, 1.00"):
    return types.SimpleNamespace(card="h200", kernel=kernel, us=us, iterations=iterations, items=items, rest_us=0.0,
                                 hidden=False, found=found)


class Keys(unittest.TestCase):
    def test_every_kind_of_mask_has_its_own(self):
        body = re.search(r"enum class Mask[^{]*{(.*?)}", (ROOT / "contract/types.h").read_text(), re.DOTALL)[1]
        kinds = re.findall(r"^ *(\w+)", body, re.MULTILINE)
        self.assertEqual(len(kinds), 4)
        self.assertIn("window", kinds)
        for kind in kinds:
            kernel = KERNEL if kind == "none" else f"{KERNEL}.{kind}"
            self.assertEqual(fit_times.key("h100", kernel),
                             f'{{"h100", {{false, false, false, {{128, 128}}, 192, 64, Mask::{kind}}}, ')

    def test_hold_what_else_changes_the_time(self):
        self.assertEqual(fit_times.key("h200", "bwd.bf16.d64.q128.kv128.s2.causal.det"),
                         '{"h200", {true, true, false, {64, 64}, 128, 128, Mask::causal}, ')
        self.assertEqual(fit_times.key("h200", "fwd.e5m2.d192.dv128.q128.kv128.s2"),
                         '{"h200", {false, false, true, {192, 128}, 128, 128, Mask::none}, ')

    def test_parts_and_stages_do_not(self):
        self.assertEqual(fit_times.key("h100", "fwd.f16.d128.q192.kv64.s3.split"), fit_times.key("h100", KERNEL))

    def test_kernels_whose_time_is_derived_are_refused(self):
        for kernel in (f"{KERNEL}.softcap", f"{KERNEL}.causal.alibi", "fwd.bf16.e4m3.d128.q192.kv64.s3",
                       "fwd.bf16.d128.q64.kv64.s3.packgqa.split", f"{KERNEL}.ragged", f"{KERNEL}.window.exact"):
            with self.assertRaises(ValueError, msg=kernel): fit_times.key("h100", kernel)


class Times(unittest.TestCase):
    def test_the_newest_counts_however_its_items_are_drawn(self):
        plan = "fwd.bf16.d128.q192.kv64.s4 grid 132 section 1 tail 0 {}smem 225KiB ws {}"
        def record(date, drawn, workspace, impl="froghopper"):
            return {"gpu": "NVIDIA H200", "pass": "fwd", "problem": "fwd bf16 b1 hq16 hkv16 sq4096 skv4096 d128",
                    "impl": impl, "plan": plan.format(drawn, workspace), "date": date, "ms": 1.0}
        found = [record("2026-01-02", "", 8), record("2026-01-03", "late 8 ", 16), record("2026-01-01", "early ", 8)]
        class Read:
            def __init__(self, record, _): self.record, self.current = record, True
        with unittest.mock.patch.object(fit_times.records, "read", return_value=found), \
                unittest.mock.patch.object(fit_times, "Time", Read):
            (newest,), _ = fit_times.measured(None)
        self.assertEqual(newest.record["date"], "2026-01-03")


class Table(unittest.TestCase):
    def test_kernels_of_one_key_share_a_line(self):
        times = [time(KERNEL, 12.0, 10, 1), time(KERNEL + ".split", 22.0, 20, 1), time(KERNEL + ".window", 5.0, 2, 1)]
        lines = fit_times.table(times, {})
        self.assertEqual(len(lines), 2)
        self.assertIn("    " + fit_times.key("h200", KERNEL) + "1.000, 2.00},", lines)

    def test_a_line_is_kept_where_another_is_hardly_better(self):
        start = fit_times.key("h200", KERNEL)
        times = [time(KERNEL, 12.0, 10, 1), time(KERNEL, 22.0, 20, 1)]
        self.assertEqual(fit_times.table(times, {start: "1.003, 1.98"}), [f"    {start}1.003, 1.98}},"])
        self.assertEqual(fit_times.table(times, {start: "1.100, 2.00"}), [f"    {start}1.000, 2.00}},"])

    def test_a_window_has_nearly_the_iterations_of_a_causal_kernel(self):
        causal = {fit_times.key("h200", KERNEL + ".causal"): "1.000, 2.00"}
        line, = fit_times.table([time(KERNEL + ".window", 8.0, 4, 1)], causal)
        self.assertTrue(line.endswith("1.000, 4.00},"), line)

    def test_memory_hides_iterations(self):
        hidden = time(KERNEL, 12.0, 10, 1)
        hidden.hidden = True
        self.assertEqual(fit_times.table([hidden], {}), [])

    def test_a_line_that_the_library_does_not_find_is_named(self):
        kept = {fit_times.key("h200", KERNEL + ".window"): "1.100, 3.00"}
        said, = fit_times.lost([time(KERNEL + ".window", 8.0, 4, 1, found="1.000, 1.00")], kept)
        self.assertIn(f"{KERNEL}.window: the table has 1.100, 3.00, the library finds 1.000, 1.00", said)
        self.assertEqual(fit_times.lost([time(KERNEL + ".window", 8.0, 4, 1, found="1.100, 3.00")], kept), [])


if __name__ == "__main__":
    unittest.main()
