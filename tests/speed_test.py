# SPDX-License-Identifier: Apache-2.0
"""bench/speed.py on the CPU with made-up contenders: who is timed, who is refused, what is written; bench/builds.py
with one library twice; bench/errors.py. Needs PyTorch; without it nothing is tested, and the exit code is 77.

usage: python3 tests/speed_test.py build/libfroghopper.so
"""
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

try: import torch
except ImportError as missing:
    print(f"Skipped\nbench/speed.py needs PyTorch: {missing}\n\n")  # as GoogleTest says it, for test_summary.py
    sys.exit(77)

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
import builds
import errors
import speed
from measure import command, contenders, froghopper_ctypes, gradient_errors, gradients, other_process, promises, turns
from measure import speed as measured_speed

LIBRARY = sys.argv.pop(1)
DENSE = "bwd f32 b1 hq2 hkv2 sq64 skv64 d8 causal"
GROUPED = "bwd f32 b2 hq4 hkv2 sq32 skv32 d16"
PACKED = "bwd f32 b2 hq2 hkv1 sq20 skv20 d8 varlen tq25 tkv25 causal : lens_q=5,20"


def exact_layer(cell, spoil=lambda grads: grads):
    return gradients.Layer(lambda: None, lambda: spoil(gradient_errors.by_plain_products(cell, torch.float32)))


def ours(cell, library, target, note=print):
    return {(impl, "made up"): exact_layer(cell) for impl in ("froghopper", "froghopper_det")}


class Runner(unittest.TestCase):
    def run_speed(self, *arguments, rivals=()):
        """(what it printed, JSON lines, lines of errors) with these rivals instead of real ones."""
        def rival(name, fa3bwd=""): return lambda cell: {(name, "made up"): rivals[name](cell)}
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            files = [pathlib.Path(folder, name) for name in ("times", "errors")]
            argv = ["speed.py", "--library", LIBRARY, "--device", "cpu", "--rounds", "1", "--ms", "0.1", "--rivals",
                    ",".join(rivals), "--error-rows", "32", "--json", str(files[0]), "--errors", str(files[1])]
            stack.enter_context(unittest.mock.patch.object(sys, "argv", argv + list(arguments)))
            stack.enter_context(unittest.mock.patch.object(gradients, "froghopper", ours))
            stack.enter_context(unittest.mock.patch.object(gradients, "rival", rival))
            printed = stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            self.status = speed.main()
            lines = [[json.loads(x) for x in f.read_text().splitlines()] if f.exists() else [] for f in files]
        return printed.getvalue(), *lines


class Speed(Runner):
    def test_who_takes_part(self):
        printed, times, errors = self.run_speed(DENSE, rivals={"cudnn": exact_layer})
        self.assertEqual([(r["pass"], r["impl"]) for r in times],
                         [("bwd", "froghopper"), ("bwd", "froghopper_det"), ("bwd", "cudnn")])
        self.assertEqual({r["problem"] for r in times}, {DENSE})
        self.assertEqual([r["impl"] for r in errors], ["froghopper", "froghopper_det", "cudnn", "standard"])
        self.assertLess(max(r[name] for r in errors for name in gradient_errors.GRADS), 1e-5)
        self.assertIn("froghopper / best rival: 1 cells", printed)

    def test_wrong_gradients_are_named_and_not_timed(self):
        def wrong(cell): return exact_layer(cell, lambda grads: [grads[0], 1.1 * grads[1], grads[2]])
        def absent(cell): return exact_layer(cell, lambda grads: [g * float("nan") for g in grads])
        printed, times, _ = self.run_speed(DENSE, GROUPED, rivals={"fa3": wrong, "fa4": absent})
        self.assertEqual({r["impl"] for r in times}, {"froghopper", "froghopper_det"})
        self.assertIn("fa3 is not timed for bwd f32 hq2 hkv2 d8 causal: its gradients are off by 0.1", printed)
        self.assertIn("fa4 is not timed for bwd f32 hq4 hkv2 d16: its gradients are off by nan", printed)

    def test_a_deterministic_form_whose_bits_change_is_not_timed(self):
        def changing(cell): return exact_layer(cell, lambda grads: [g + 1e-6 * torch.rand(g.shape) for g in grads])
        printed, times, _ = self.run_speed(DENSE, rivals={"fa3": changing, "fa3_det": changing})
        self.assertIn("fa3_det is not timed for bwd f32 hq2 hkv2 d8 causal: its bits change", printed)
        self.assertIn("fa3", {r["impl"] for r in times})

    def test_one_that_fails_leaves_the_others(self):
        def fails(cell): return gradients.Layer(lambda: None, lambda: 1 / 0)
        printed, times, _ = self.run_speed(DENSE, rivals={"fa4": fails, "cudnn": exact_layer})
        self.assertIn("fa4 is not timed for bwd f32 hq2 hkv2 d8 causal: ZeroDivisionError", printed)
        self.assertEqual([r["impl"] for r in times], ["froghopper", "froghopper_det", "cudnn"])

    def test_layers_from_some_length_on(self):
        longer = "bwd f32 b1 hq8 hkv8 sq128 skv128 d64"
        with unittest.mock.patch.object(measured_speed, "LAYER_FROM", 128):
            _, times, _ = self.run_speed("--layers", longer, DENSE)
        passes = [(r["problem"], r["pass"]) for r in times if r["impl"] == "froghopper"]
        self.assertEqual(passes, [(longer, "bwd"), (longer, "fwd+bwd"), (DENSE, "bwd")])
        flops = [r["tflops"] * r["ms"] for r in times if r["problem"] == longer and r["impl"] == "froghopper"]
        self.assertAlmostEqual(flops[1] / flops[0], 3.5 / 2.5, delta=0.1)  # of rounded numbers

    def test_packed_problems_keep_their_lengths(self):
        printed, times, errors = self.run_speed(PACKED, rivals={"fa4": exact_layer})
        self.assertEqual({r["problem"] for r in times}, {PACKED})
        self.assertEqual(errors[0]["problem"],
                         "bwd f32 b4 hq2 hkv1 sq32 skv32 d8 varlen tq62 tkv62 causal : lens_q=32,10,4,16")

    def test_packed_problems_have_a_forward_pass(self):
        line = PACKED.replace("bwd", "fwd")
        with unittest.mock.patch.object(contenders, "rival", lambda name: contenders.sdpa("torch", [], "made up")):
            _, times, _ = self.run_speed(line, rivals={"torch": None})
        self.assertEqual([(r["problem"], r["impl"]) for r in times], [(line, "froghopper")])
        library = froghopper_ctypes.Froghopper(LIBRARY)
        cell = contenders.Cell.make(library, line, "cpu")
        for call in contenders.froghopper(cell, library, "cpu").values(): call()
        for begin, end in ((0, 5), (5, 25)):
            q, k, v = (t[begin:end].transpose(0, 1) for t in (cell.q, cell.k, cell.v))
            alone = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=cell.scale(),
                                                                     enable_gqa=True)
            torch.testing.assert_close(cell.o[begin:end], alone.transpose(0, 1), rtol=1e-4, atol=1e-5)

    def test_8_bit_problems_have_scales(self):
        narrow = ("fwd e4m3 b1 hq2 hkv2 sq32 skv32 d64", "fwd bf16 kv=e5m2 b2 hq4 hkv2 sq20 skv30 d32 causal")
        with unittest.mock.patch.object(contenders, "rival", lambda name: contenders.sdpa("torch", [], "made up")):
            printed, times, _ = self.run_speed(*narrow, rivals={"torch": None})
        self.assertEqual([(r["problem"], r["impl"]) for r in times], [
            (narrow[0], "froghopper"), (narrow[1], "froghopper"), (narrow[1], contenders.BESIDE_16_BITS)])
        self.assertIn("froghopper / " + contenders.BESIDE_16_BITS, printed)
        self.assertNotIn("failed", printed)

    def test_beside_16_bits_are_the_same_numbers(self):
        library = froghopper_ctypes.Froghopper(LIBRARY)
        cell = contenders.Cell.make(library, "fwd bf16 kv=e4m3 b1 hq4 hkv2 sq30 skv300 d32 scales128 causal", "cpu")
        found = []
        for offer in (contenders.froghopper, contenders.beside_16_bits):
            ((_, call),) = offer(cell, library, "cpu").items()
            call()
            found.append(cell.o.clone())
            cell.o.zero_()
        torch.testing.assert_close(*found)
        self.assertGreater(found[0].abs().max(), 0.1)

    def test_lengths_that_are_not_the_problems_are_refused(self):
        printed, times, _ = self.run_speed(PACKED.replace("5,20", "5,19"))
        self.assertIn("lens_q has 2 lengths, 24 rows, the longest 19", printed)
        self.assertEqual(times, [])


    def test_a_scale_of_zero_is_one(self):
        library = froghopper_ctypes.Froghopper(LIBRARY)
        line = "bwd f32 b1 hq2 hkv2 sq32 skv32 d8"
        scales = [contenders.Cell.make(library, line + word, "cpu").scale() for word in ("", " scale0", " scale0.5")]
        self.assertEqual(scales, [library.problem(line).scale, 0.0, 0.5])
        default = froghopper_ctypes.Problem(dim_qk=64, scale=0.0)
        self.assertEqual(default.softmax_scale(), 0.125)
        cell = contenders.Cell.make(library, line + " scale0", "cpu")
        errors, wrong = gradient_errors.errors_of(cell, gradients.froghopper(cell, library, "cpu"))
        self.assertEqual(wrong, {})
        self.assertLess(max(errors["froghopper"]), 1e-5)


class Cpu(Runner):
    """What only --device cpu has: PyTorch without AMX, and what the project promises over PyTorch."""

    def measurement(self, *times):
        return turns.summary(times, None)

    def test_a_promise_is_kept_or_broken(self):
        cell = contenders.Cell.make(froghopper_ctypes.Froghopper(LIBRARY), DENSE.replace("bwd", "fwd"), "cpu")
        ours, theirs, other = ("froghopper", "x"), ("torch", "torch 1"), ("torch", promises.WITHOUT_AMX)
        for of_torch, kept in (((1.4, 2.7, 1.5), [True]), ((1.2, 2.3, 1.2), [False])):  # causal fp32: 1.3
            measured = {ours: self.measurement(1, 2, 1), theirs: self.measurement(*of_torch)}
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                self.assertEqual(promises.look(cell, measured, None), kept)
            self.assertEqual("BELOW" in printed.getvalue(), not kept[0])
        measured[other] = self.measurement(2.4, 4.6, 2.4)
        self.assertAlmostEqual(promises.amx_gain(measured), 2.0)
        self.assertEqual(promises.look(cell, {ours: self.measurement(1, 1, 1)}, None), [])

    def test_the_exit_status_is_whether_all_are_kept(self):
        line, status = DENSE.replace("bwd", "fwd"), []
        for least in (0.0, 1e9):
            with unittest.mock.patch.object(promises, "promised", lambda problem, gain, least=least: least), \
                    unittest.mock.patch.object(contenders, "rival", lambda name: contenders.sdpa(
                        name, [contenders.SDPBackend.MATH], "made up")):
                self.run_speed(line, rivals={"torch": None})
            status.append(self.status)
        self.assertEqual(status, [0, 1])

    def test_pytorch_runs_twice_where_there_is_amx(self):
        with unittest.mock.patch.object(other_process, "bf16_instructions", lambda: ["amx_bf16"]):
            _, times, _ = self.run_speed("fwd f32 b1 hq2 hkv2 sq32 skv32 d16", "--threads", "1", rivals={"torch": None})
        self.assertEqual([(r["impl"], "without AMX" in r["plan"]) for r in times],
                         [("froghopper", False), ("torch", False), ("torch", True)])
        self.assertTrue(all(r["torch_amx_gain"] > 0 and r["cpu_bf16"] == ["amx_bf16"] for r in times))
        self.assertEqual({r["problem"] for r in times}, {"fwd f32 b1 hq2 hkv2 sq32 skv32 d16 sms1"})


class FlashAttention3(unittest.TestCase):
    """Its operator has 34 arguments without names, and in one wheel sinks besides."""

    def arguments(self, line, *sinks):
        cell, seen = contenders.Cell.make(froghopper_ctypes.Froghopper(LIBRARY), line, "cpu"), []
        contenders.fa3_call(lambda *arguments: seen.extend(arguments), cell, *sinks)()
        return cell, seen

    def test_windows(self):
        cell, seen = self.arguments("fwd bf16 b1 hq2 hkv2 sq300 skv300 d64 window127,0", None)
        self.assertEqual(len(seen), 35)
        self.assertEqual(seen[23:29], [cell.scale(), False, 127, 0, 0, 0.0])
        self.assertEqual(seen[31], 1)

    def test_packed_sequences(self):
        cell, seen = self.arguments("fwd bf16 b2 hq2 hkv1 sq20 skv20 d64 varlen tq25 tkv25 causal : lens_q=5,20")
        self.assertEqual(len(seen), 34)
        self.assertTrue(seen[7] is cell.cu_seqlens and seen[8] is cell.cu_seqlens)
        self.assertEqual(seen[9:14], [None, None, None, 20, 20])
        self.assertEqual(seen[24:27], [True, -1, -1])

    def test_one_row_may_be_split(self):
        _, seen = self.arguments("fwd e4m3 b1 hq2 hkv1 sq1 skv300 d64")
        self.assertEqual(seen[31], 0)
        self.assertEqual([tuple(t.shape) for t in seen[20:23]], [(1, 1)] * 3)


class GradErrors(unittest.TestCase):
    def test_small_problems_write_their_gradients(self):
        self.assertEqual(gradient_errors.small("bwd bf16 b9 hq4 hkv2 sq77 skv77 d64 causal det acc", 16),
                         "bwd bf16 b2 hq4 hkv2 sq16 skv16 d64 causal det")

    def test_every_kind_of_inputs_has_its_lines(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            json_lines = pathlib.Path(folder, "errors")
            argv = ["errors.py", "gradients", "--library", LIBRARY, "--device", "cpu", "--rivals", "torch", "--json",
                    str(json_lines), DENSE]
            stack.enter_context(unittest.mock.patch.object(sys, "argv", argv))
            stack.enter_context(unittest.mock.patch.object(gradients, "froghopper", ours))
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            errors.main()
            found = [json.loads(line) for line in json_lines.read_text().splitlines()]
        self.assertEqual([(e["data"], e["impl"]) for e in found],
                         [(kind, impl) for kind in ("normal", "outliers")
                          for impl in ("froghopper", "froghopper_det", "torch", "standard")])
        self.assertLess(max(e[name] for e in found for name in gradient_errors.GRADS), 1e-5)


class Rivals(unittest.TestCase):
    """PyTorch's own attention, called as its CUDA backends are."""

    def test_gradients_of_autograd(self):
        library = froghopper_ctypes.Froghopper(LIBRARY)
        for line in (DENSE, GROUPED, DENSE.replace("f32", "bf16")):
            cell = contenders.Cell.make(library, line, "cpu")
            errors, wrong = gradient_errors.errors_of(cell, gradients.rival("torch")(cell))
            self.assertEqual((wrong, set(errors)), ({}, {"torch", "standard"}))
            self.assertLess(max(errors["torch"]), 2e-2 if "bf16" in line else 1e-5)

    def test_suites_can_be_read(self):
        library = froghopper_ctypes.Froghopper(LIBRARY)
        suites = sorted((command.BENCH / "suites").glob("*.txt"))
        self.assertIn("gqa_bwd", [path.stem for path in suites])
        for path in suites:
            for line in command.read_suite(path):
                text, _, keys = line.partition(":")
                problem = library.problem(text.strip())
                self.assertEqual(problem.is_backward(), path.stem.endswith("_bwd"), line)
                self.assertEqual(contenders.lengths_of(problem, keys) is not None, bool(problem.varlen))


class Builds(unittest.TestCase):
    def test_a_row_for_every_line_that_can_be_measured(self):
        argv = ["builds.py", "--build", f"before={LIBRARY}", "--build", f"after={LIBRARY}", "--device", "cpu",
                "--rounds", "1", "--ms", "0.1", DENSE, DENSE.replace("bwd", "fwd"), "no problem"]
        with unittest.mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(io.StringIO()) as printed:
            builds.main()
        rows = printed.getvalue().splitlines()
        self.assertEqual(len(rows), 3)
        for row, line in zip(rows, argv[-3:-1]): self.assertRegex(row, rf"^ *[0-9.]+ us .* after +[0-9.]+  {line}$")
        self.assertIn("no problem: ", rows[2])


if __name__ == "__main__":
    unittest.main()
