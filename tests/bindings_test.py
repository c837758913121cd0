# SPDX-License-Identifier: Apache-2.0
"""bench/measure/froghopper_ctypes.py computes on the CPU through the structs that tools/gen_python.py reads in the
header, and they are as the library has them.

usage: python3 tests/bindings_test.py build/libfroghopper.so
"""
import ctypes
import math
import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tools")]
import gen_python
from measure import froghopper_ctypes as binding
from measure import work
from froghopper._library import first_unknown_byte

LIBRARY = sys.argv.pop(1)


class Floats:
    """As much of a PyTorch tensor as the binding asks for: [batch, seq, heads, dim] or less, dense, in fp32."""

    def __init__(self, *shape, value=lambda i: 0.0):
        count = math.prod(shape)
        self.shape, self.numbers = shape, (ctypes.c_float * count)(*map(value, range(count)))

    def dim(self): return len(self.shape)

    def stride(self, axis): return math.prod(self.shape[axis % len(self.shape) + 1:])

    def data_ptr(self): return ctypes.addressof(self.numbers)

    def row(self, *at):
        begin = sum(i * self.stride(axis) for axis, i in enumerate(at))
        return self.numbers[begin:begin + self.stride(len(at) - 1)]


def by_hand(q, keys, values):
    """o and lse of one row."""
    weights = [math.exp(sum(a * b for a, b in zip(q, key)) / math.sqrt(len(q))) for key in keys]
    o = [sum(w * value[c] for w, value in zip(weights, values)) / sum(weights) for c in range(len(values[0]))]
    return o, math.log(sum(weights))


class Library(unittest.TestCase):
    def setUp(self):
        self.library = binding.Froghopper(LIBRARY)

    def test_structs_are_as_long_as_the_library_has_them(self):
        self.assertEqual(self.library.size_of_problem(), ctypes.sizeof(binding.Problem))
        plan = self.library.plan(self.library.problem("fwd f32 b1 hq1 hkv1 sq1 skv1 d8"), "cpu")
        longer = (ctypes.c_ubyte * 4096)(*[255] * 4096)
        ctypes.c_size_t.from_buffer(longer).value = len(longer)
        with self.assertRaises(binding.Error) as refused: plan.run(longer, None, 0, None)
        self.assertEqual(first_unknown_byte(str(refused.exception)), ctypes.sizeof(binding.Tensors))

    def test_a_struct_of_another_size_is_refused(self):
        problem = self.library.problem("fwd f32 b1 hq1 hkv1 sq1 skv1 d8")
        for size in (0, 8, ctypes.sizeof(problem) + 1, 1 << 20):
            problem.size = size
            with self.assertRaisesRegex(binding.Error, "must hold sizeof"): self.library.line(problem)

    def test_every_kind_of_field_comes_back(self):
        line = ("bwd f16 b2 hq8 hkv4 sq256 skv512 d128 dv64 seqused window3,5 topleft scale0.5 softcap2 sink det acc "
                "sms7")
        p = self.library.problem(line)
        self.assertEqual(self.library.line(p), line)
        self.assertEqual((p.op, p.dtype, p.align, p.batch, p.dim_v, p.window_left, p.scale, p.sink, p.max_sms,
                          p.accumulate),
                         (2, 1, 1, 2, 64, 3, 0.5, 1, 7, 1))

    def test_attention_on_the_cpu(self):
        q, k, v = (Floats(2, rows, 2, dim, value=lambda i: math.sin(i * (rows + dim)))
                   for rows, dim in ((3, 8), (5, 8), (5, 16)))
        o, lse = Floats(2, 3, 2, 16), Floats(2, 2, 3)
        plan = self.library.plan(self.library.problem("fwd f32 b2 hq2 hkv2 sq3 skv5 d8 dv16"), "cpu")
        self.assertFalse(plan.on_gpu)
        plan.run(binding.tensors(q, k, v, o, lse), None, plan.workspace_bytes, None)
        for b, row, head in ((b, row, head) for b in range(2) for row in range(3) for head in range(2)):
            expected, log = by_hand(q.row(b, row, head), *([x.row(b, j, head) for j in range(5)] for x in (k, v)))
            for got, wanted in zip(o.row(b, row, head), expected): self.assertAlmostEqual(got, wanted, places=5)
            self.assertAlmostEqual(lse.row(b, head, row)[0], log, places=5)

    def test_tensors_that_the_struct_has_not(self):
        x = Floats(1, 1, 1, 8)
        with self.assertRaisesRegex(binding.Error, "no field bias"): binding.tensors(x, x, x, x, bias=x)


class Work(unittest.TestCase):
    """tests/bench_test.cpp asks cli/work.hpp for the same."""

    def test_is_what_the_golden_file_says(self):
        library = binding.Froghopper(LIBRARY)
        golden = pathlib.Path(__file__).resolve().parent / "golden/work.txt"
        lines = [line for line in golden.read_text().splitlines() if not line.startswith("#")]
        self.assertGreater(len(lines), 10)
        for line in lines:
            with self.subTest(line):
                problem, arrow, counts = line.partition(" -> ")
                p = library.problem(problem)
                self.assertEqual(f"{work.flops(p):.0f} {work.bytes_moved(p):.0f}", counts)


class Header(unittest.TestCase):
    def test_what_it_understands(self):
        header = gen_python.Header("""
            typedef enum kind { A = 3, B, /* C */ D = 9 } kind; // E
            typedef struct part { void* data; int64_t x, y; } part;
            typedef struct whole { kind k; part p; const float* f; const kind* ks;
                                   float g; /* int32_t h; */ } whole;
            #define NONE INT64_C(-1) /* of them */
            typedef struct hidden hidden;
            typedef void (*call)(const char* line, void* user);
            FH_API kind make(const whole* w, size_t bytes,
                             hidden** out);
            FH_API const char* words(void);
            FH_API void listen(call f);""")
        self.assertEqual(header.enums, {"kind": {"A": 3, "B": 4, "D": 9}})
        self.assertEqual(header.structs, {
            "part": [("data", "void*"), ("x", "int64_t"), ("y", "int64_t")],
            "whole": [("k", "kind"), ("p", "part"), ("f", "const float*"), ("ks", "const kind*"), ("g", "float")]})
        self.assertEqual(header.functions, {"make": ("kind", ["const whole*", "size_t", "hidden**"]),
                                            "words": ("const char*", []), "listen": ("void", ["call"])})
        self.assertEqual(header.constants, {"NONE": -1})

    def test_what_it_writes_can_be_imported(self):
        header = gen_python.Header("""
            typedef enum fh_kind { FH_A = 3 } fh_kind;
            typedef struct fh_part { fh_kind k; const float* f; } fh_part;
            typedef struct fh_whole { fh_part p; float g; } fh_whole;
            FH_API const char* fh_words(const fh_whole* w);""")
        made = {}
        exec(gen_python.module(header, "1.2.3"), made)
        self.assertEqual((made["VERSION"], made["Kind"].A), ("1.2.3", 3))
        self.assertEqual(made["Part"]._fields_, [("k", ctypes.c_int), ("f", ctypes.c_void_p)])
        self.assertEqual(made["Whole"]._fields_, [("p", made["Part"]), ("g", ctypes.c_float)])
        self.assertEqual(made["FUNCTIONS"], {"fh_words": (ctypes.c_char_p, [ctypes.c_void_p])})

    def test_a_header_that_includes_another(self):
        first = gen_python.Header("""
            typedef enum fh_kind { FH_A = 3 } fh_kind;
            typedef struct fh_part { int x; } fh_part;""")
        header = gen_python.Header("""
            typedef struct fh_ways { fh_kind k; fh_part p; const float *a, *b;
                                     int (*go)(void* c, fh_kind k); } fh_ways;
            FH_API fh_kind fh_go(
                void);""", first)
        self.assertEqual(header.structs, {"fh_ways": [("k", "fh_kind"), ("p", "fh_part"), ("a", "const float*"),
                                                      ("b", "const float*"), ("go", "void*")]})
        self.assertEqual(header.functions, {"fh_go": ("fh_kind", [])})
        written = gen_python.module(header, name="cp.h")
        self.assertIn("from froghopper import _c\n", written)
        self.assertIn('("p", _c.Part),', written)
        self.assertIn('("k", ctypes.c_int),', written)
        self.assertIn('("go", ctypes.c_void_p),', written)
        self.assertNotIn("VERSION", written)

    def test_what_it_does_not_understand_it_names(self):
        for field in ("int64_t x[4]", "unsigned int x", "unknown_t x", "int x : 3", "float *a, b"):
            with self.subTest(field), self.assertRaisesRegex(ValueError, "does not understand"):
                gen_python.Header("typedef struct s { " + field + "; } s;")


if __name__ == "__main__":
    unittest.main()
