# SPDX-License-Identifier: Apache-2.0
"""The checkers of tools/ find what they are for, each rule once, and let good code pass."""
import ast
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
import check_current
import check_known_failures
import check_rooms
import check_style
import check_version
import compile_golden
import races
import test_summary

LICENCE = "// SPDX-License-Identifier: Apache-2.0\n// What this file is for.\n"


def rooms(path, source):
    return [text for _, text in check_rooms.problems_of(pathlib.PurePath(path), source)]


def style(path, source):
    return [text for _, text in check_style.problems_of(pathlib.PurePath(path), source)]


class Rooms(unittest.TestCase):
    def test_words_in_comments_and_strings_are_free(self):
        self.assertEqual(rooms("src/plan/a.cpp", '// a stream\nauto s = "cuInit";  /* module\n throw */\n'), [])

    def test_planner_knows_no_driver(self):
        self.assertIn("'stream'", rooms("src/plan/a.cpp", "int stream;\n")[0])
        self.assertIn("'CUstream'", rooms("src/plan/a.cpp", "CUstream s;\n")[0])

    def test_only_ptx_has_asm(self):
        self.assertIn("'asm'", rooms("device/fwd/a.cuh", 'asm volatile("");\n')[0])
        self.assertEqual(rooms("device/ptx/a.cuh", 'asm volatile("");\n'), [])

    def test_tiles_know_no_attention(self):
        self.assertIn("'softmax'", rooms("device/tile/a.cuh", "void softmax();\n")[0])

    def test_includes_go_down_only(self):
        self.assertIn("may not include", rooms("src/problem/a.cpp", '#include "src/plan/plan.hpp"\n')[0])
        self.assertIn("may not include", rooms("src/plan/a.cpp", "#include <cuda.h>\n")[0])
        self.assertEqual(rooms("src/runtime/a.cpp", '#include <cuda.h>\n#include "src/plan/plan.hpp"\n'), [])

    def test_the_library_never_prints_exits_or_throws(self):
        for word in ("std::printf(x);", "std::exit(1);", "throw 1;", "std::cerr << 1;"):
            self.assertEqual(len(rooms("src/api/a.cpp", word + "\n")), 1, word)
        self.assertEqual(rooms("src/api/a.cpp", "std::snprintf(a, 1, f);\n"), [])

        for word in ("std::fputs(x, stderr);", "perror(x);", "_Exit(1);", "std::rethrow_exception(e);"):
            self.assertEqual(len(rooms("src/api/a.cpp", word + "\n")), 1, word)

    def test_every_way_to_write_asm_is_one(self):
        for word in ("asm", "__asm", "__asm__"):
            self.assertEqual(len(rooms("src/api/a.cpp", word + '("");\n')), 1, word)

    def test_a_run_allocates_nothing_and_waits_for_nothing(self):
        for word in ("cuMemAlloc", "cuMemAllocAsync", "cuStreamSynchronize", "cuCtxSynchronize"):
            self.assertEqual(len(rooms("src/runtime/a.cpp", f"driver.{word}(x);\n")), 1, word)

    def test_an_include_says_what_it_means(self):
        for line in ("#include HEADER", '#include "src/base/../api/run.hpp"', '#include "../api/run.hpp"',
                     '#include "problem.hpp"', "#include <cuda_fp16.h>", "#include <omp.h>", "#include <xxhash.h>",
                     '# include_next "src/api/run.hpp"'):
            self.assertEqual(len(rooms("src/problem/a.cpp", line + "\n")), 1, line)
        for line in ('#include "src/base/log.hpp"', "#include <math.h>", "#include <sys/stat.h>", "#include <vector>"):
            self.assertEqual(rooms("src/problem/a.cpp", line + "\n"), [], line)

    def test_a_macro_whose_name_has_include_is_looked_into(self):
        self.assertEqual(len(rooms("src/api/a.cpp", "#define include_and_leave std::exit(1)\n")), 1)

    def test_other_endings_are_refused(self):
        self.assertIn("no ending of this project", rooms("src/api/a.cc", "int a;\n")[0])

    def test_no_room_is_written_twice(self):
        tree = ast.parse(pathlib.Path(check_rooms.__file__).read_text())
        for table in (node for node in ast.walk(tree) if isinstance(node, ast.Dict)):
            keys = [ast.literal_eval(key) for key in table.keys]
            self.assertEqual(len(keys), len(set(keys)), f"line {table.lineno}: a key is here twice")

    def test_every_file_has_a_room(self):
        self.assertIn("no room", rooms("elsewhere/a.cpp", "int a;\n")[0])


class Style(unittest.TestCase):
    def test_good_file(self):
        self.assertEqual(style("src/plan/a.cpp", LICENCE + "int a;\n"), [])

    def test_each_rule(self):
        for source, words in (
            ("int a;\n", "SPDX"),
            ("// SPDX-License-Identifier: Apache-2.0\nint a;\n", "right after the licence line"),
            (LICENCE + "int a; \n", "blanks at the end"),
            (LICENCE + "\tint a;\n", "a tab"),
            (LICENCE + "// " + "x" * 130 + "\n", "columns"),
            (LICENCE + "// caf\u00e9\n", "not ASCII"),
            (LICENCE + "// FIX" + "ME later\n", "finish it"),
            (LICENCE + '#include "/ho' + 'me/me/a.h"\n', "path of one machine"),
            (LICENCE + "// a = b(c);\n", "code in a comment"),
            (LICENCE + "int a;\n" * 400, "the limit is 400"),
            (LICENCE + "int a;", "the last line has no end"),
        ):
            with self.subTest(words):
                self.assertIn(words, " ".join(style("src/plan/a.cpp", source)))

    def test_all_lanes_vote(self):
        for line, wrong in (("bool a = b && __ballot_sync(~0u, b) == 1;", 1), ("bool a = b || __any_sync(~0u, c);", 1),
                            ("return __all_sync(~0u, a && b) && c;", 0)):
            self.assertEqual(len(style("device/attn/a.cuh", LICENCE + line + "\n")), wrong, line)

    def test_a_kernels_banner_has_its_cast(self):
        def kernel(sections):
            banner = "".join(f"// {section} something\n" for section in sections)
            return LICENCE + banner + "#pragma once\n"
        cast = ("Work", "Roles", "Order", "Overlap", "Barriers", "Shared")
        for path in ("fwd/forward.cuh", "fwd/forward_fp8.cuh", "bwd/backward.cuh", "bwd/by_keys.cuh"):
            self.assertEqual(style("device/" + path, kernel(cast)), [], path)
            for missing in cast:
                wrong = style("device/" + path, kernel(section for section in cast if section != missing))
                self.assertEqual(len(wrong), 1, (path, missing))
                self.assertIn(f"has the section {missing}:", wrong[0])
        for path in ("bwd/delta.cuh", "bwd/grad_q.cuh"):
            self.assertEqual(style("device/" + path, kernel(("Work", "Shared"))), [], path)
            self.assertEqual(len(style("device/" + path, kernel(()))), 2, path)
        self.assertEqual(style("device/bwd/weights.cuh", kernel(())), [], "a part of kernels is none")

    def test_what_is_a_banner(self):
        c, script = "// SPDX-License-Identifier: Apache-2.0\n", "# SPDX-License-Identifier: Apache-2.0\n"
        for path, source in (
            ("src/plan/a.cpp", c + "// plan: what\n// this is for. More.\n#pragma once\n"),
            ("tests/a.c", "/* SPDX-License-Identifier: Apache-2.0\n *\n * What this is for. */\nint a;\n"),
            ("tools/a.py", "#!/usr/bin/env python3\n" + script + '"""What this\nis for."""\nimport re\n'),
            ("cmake/a.cmake", script + "# What this is for:\n#   cmake a\nset(a)\n"),
        ):
            with self.subTest(source):
                self.assertEqual(style(path, source), [])

    def test_what_is_none(self):
        c, script = "// SPDX-License-Identifier: Apache-2.0\n", "# SPDX-License-Identifier: Apache-2.0\n"
        for path, source in (
            ("src/plan/a.cpp", c + '#include "src/plan/a.hpp"\n\n// What this is for.\nint a;\n'),
            ("src/plan/a.hpp", c + "#pragma once\n// What this is for.\n"),
            ("src/plan/a.cpp", c + "\n// What this is for.\nint a;\n"),
            ("src/plan/a.cpp", c + "// clang-format off\nint a;\n"),
            ("src/plan/a.cpp", c + "// Helpers.\nint a;\n"),
            ("src/plan/a.cpp", c + "// plan: some words\nint a;\n"),
            ("tools/a.py", script + "import re  # What this is for.\n"),
        ):
            with self.subTest(source):
                self.assertIn("right after the licence line", " ".join(style(path, source)))

    def test_a_kernel_begins_with_its_cast_list(self):
        self.assertIn("section Barriers", " ".join(style("device/fwd/forward.cuh", LICENCE + "//   Work    one\n")))

    def test_generated_files_say_so(self):
        self.assertIn("Do not edit", " ".join(style("device/ptx/x_generated.cuh", LICENCE + "int a;\n")))


class KnownFailures(unittest.TestCase):
    TREE = {"tests/a_test.cpp": "TEST_F(Suite, name) {}", "tests/cases/c.txt": "fwd # R1, R2: why",
            "tests/b_test.py": "class Suite(Case):\n    def test_it(self):"}

    def problems(self, *claims, **more):
        table = "".join(f"| R{at} | what | {claim} |\n" for at, claim in enumerate(claims, 1))
        return list(check_known_failures.problems_of(table, self.TREE | more))

    def test_claims_that_are_true(self):
        self.assertEqual(self.problems("`tests/cases/c.txt`, `tests/a_test.cpp` `Suite.name`",
                                       "`tests/b_test.py` `Suite.test_it`", "not yet: needs pages"), [])

    def test_claims_that_are_not(self):
        for claim, words in (("`tests/d_test.cpp`", "there is no tests/d_test.cpp"), ("it works", "neither a test nor"),
                             ("`tests/a_test.cpp` `Suite.nam`", "has no test Suite.nam"),
                             ("`tests/b_test.py` `Suite.name`", "has no test Suite.name"),
                             ("`Suite.name`", "before any file"), ("`tests/cases/c.txt`", "no line of")):
            with self.subTest(claim):
                self.assertIn(words, " ".join(self.problems("not yet: needs it", "not yet: needs it", claim)))

    def test_what_is_cited_has_a_row(self):
        found = self.problems("not yet: needs it", "not yet: needs it", **{"src/x.cpp": "// R3, and R525 is a driver"})
        self.assertEqual(found, ["src/x.cpp: cites R3, which has no row in docs/known-failures.md"])

    def test_rows_are_in_order(self):
        table = "| R2 | what | not yet: needs it |\n| R1 | what | not yet: needs it |\n"
        self.assertIn("in order", " ".join(check_known_failures.problems_of(table, {})))


JUNIT = """<testsuite>
<testcase name="A.one" status="run"><system-out>[       OK ] A.one (0 ms)</system-out></testcase>
<testcase name="A.gpu" status="notrun"><skipped/><system-out>[ RUN      ] A.gpu
tests/a.cpp:12: Skipped
no Hopper GPU here

[  SKIPPED ] A.gpu (0 ms)</system-out></testcase>
<testcase name="checks.rooms" status="fail"><failure/><system-out>bad</system-out></testcase>
</testsuite>"""


class Version(unittest.TestCase):
    """The copies as they are in the tree, one of them changed."""
    texts = {path: (check_version.tree.ROOT / path).read_text() for path in check_version.COPIES}

    def problems(self, path, old, new):
        self.assertIn(old, self.texts[path])
        return " ".join(check_version.problems_of(self.texts | {path: self.texts[path].replace(old, new, 1)}))

    def test_the_headers_version_is_that_of_all(self):
        version = check_version.of_header(self.texts[check_version.HEADER])
        minor = version.rpartition(".")[0]
        self.assertEqual(list(check_version.problems_of(self.texts)), [])
        for path, written in (("CITATION.cff", version), ("python/froghopper/_c.py", version),
                              ("packaging/vcpkg/vcpkg.json", version), ("docs/12-using.md", minor)):
            self.assertIn(f"says 9{written}", self.problems(path, written, "9" + written), path)
        self.assertIn("says 9_9", self.problems("include/froghopper/froghopper.hpp", minor.replace(".", "_"), "9_9"))
        patch = f"#define FH_VERSION_PATCH {version.rpartition('.')[2]}"
        self.assertIn("CITATION.cff", self.problems(check_version.HEADER, patch, "#define FH_VERSION_PATCH 99"))

    def test_a_copy_that_is_gone_is_told(self):
        self.assertIn("names no version", self.problems("CITATION.cff", "\nversion: ", "\nedition: "))


class Names(unittest.TestCase):
    sources = {"src/a.cpp": "int here(int keys_bytes);\nvoid b::there();  // aside", "src/b.cpp": "int other;"}

    def stale(self, text): return list(check_current.stale_names(self.sources | {"docs/x.md": text}))

    def test_what_is_there_may_be_named(self):
        text = "`here()` (src/a.cpp), `b::there`, `aside`, `_bytes`, `other`,\nsrc/b.cpp, `1 + x`"
        self.assertEqual(self.stale(text), [])

    def test_what_is_nowhere_may_not(self):
        self.assertEqual(self.stale("a\n`her`"), ["docs/x.md:2: `her` is nowhere but in documents: no her"])
        self.assertEqual(len(self.stale("`b::nowhere`, `_rows`")), 2)

    def test_nor_what_is_in_another_file(self):
        self.assertEqual(self.stale("one (`other`,\nsrc/a.cpp)"), ["docs/x.md:1: `other` is not in src/a.cpp"])
        self.assertEqual(len(self.stale("`other`, src/c.cpp")), 2)  # there is no such file either

    def test_nor_a_file_that_is_not_there(self):
        self.assertEqual(self.stale("src/a.cpp,\nsrc/c.cpp"), ["docs/x.md:2: src/c.cpp is not there"])
        self.assertEqual(self.stale("theirs/c.cpp, https://x.org/src/c.cpp"), [])

    def test_documents_do_not_vouch_for_each_other(self):
        both = self.sources | {"README.md": "`gone`", "CHANGELOG.md": "`gone`"}
        self.assertEqual(len(list(check_current.stale_names(both))), 1)


class Golden(unittest.TestCase):
    PLANS = ["# h200 132sm | fwd ... -> a plan",
             "h200 132sm | fwd bf16 b1 d64 -> fwd.bf16.d64.invariant grid 4; combine.bf16.dv64 grid 2 ws 8",
             "cpu | fwd f16 b1 d64 -> cpu amx q64"]

    def test_every_launch_names_its_kernel(self):
        self.assertEqual(compile_golden.kernels_of(self.PLANS[1]), {"fwd.bf16.d64.invariant", "combine.bf16.dv64"})

    def test_presets_are_left_out(self):
        others = compile_golden.other_kernels(self.PLANS, ["combine.bf16.dv64  # a comment"])
        self.assertEqual(others, ["fwd.bf16.d64.invariant"])


class Races(unittest.TestCase):
    BWD = "froghopper::bwd::"
    PUBLISH = BWD + "Dispatcher<froghopper::bwd::Backward<(froghopper::Mask)0>>::publish(const WorkItem &)"
    PUT = BWD + "InRegisterOrder<froghopper::tile::Accum<(int)64>>::put(const froghopper::tile::Accum<64> &)"
    TAKE = BWD + "InRegisterOrder<froghopper::tile::Accum<(int)64>>::take(froghopper::tile::Accum<64> &) const"
    TURN = f"void {BWD}Backward<(int)1>::Consumer<(int)0>::turn<(bool)1>(bool, froghopper::tile::Accum<64> &)"

    def found(self, first, *others):
        text = f"========= Error: Race reported between {first} access at %s+0x1f0 in a.cuh:1\n"
        text += "".join(f"=========     and {kind} access at %s+0x20 in b.cuh:2 [8 hazards]\n" for kind in others)
        return lambda *places: races.races(text % places)

    def test_a_function_is_known_by_its_name(self):
        self.assertEqual(races.function_of(self.PUBLISH), "bwd::Dispatcher::publish")
        self.assertEqual(races.function_of(self.TAKE), "bwd::InRegisterOrder::take")
        self.assertEqual(races.function_of(self.TURN), "bwd::Backward::Consumer::turn")

    def test_known_hand_overs_pass_in_both_directions(self):
        for kinds in (("Write", "Read"), ("Read", "Write")):
            places = (self.PUBLISH, self.TURN) if kinds[0] == "Write" else (self.TURN, self.PUBLISH)
            known, new = self.found(*kinds)(*places)
            self.assertEqual((len(known), len(new)), (1, 0), kinds)
        self.assertFalse(self.found("Write", "Read")(self.PUT, self.TAKE)[1])

    def test_what_is_none_of_them_is_a_race(self):
        read, write = ("Write", "Read"), ("Write", "Write")
        for kinds, *places in ((read, self.PUT, self.TURN), (read, self.TURN, self.PUBLISH),
                               (write, self.PUBLISH, self.PUBLISH), (write, self.PUT, self.PUT)):
            self.assertEqual(len(self.found(*kinds)(*places)[1]), 1, (kinds, places))
        known, new = self.found("Write", "Read", "Write")(self.PUBLISH, self.TURN, self.TURN)
        self.assertEqual((len(known), len(new)), (1, 1), "every access of a report counts")

    def test_a_run_that_did_not_end_is_none_without_races(self):
        begin, end = "= COMPUTE-SANITIZER\n", "= RACECHECK SUMMARY: 0 hazards\n"
        for text, code in ((begin + end, 0), (begin + end + begin, 1), ("", 1)):
            with tempfile.NamedTemporaryFile("w") as log, contextlib.redirect_stdout(io.StringIO()):
                print(text, file=log, flush=True)
                with unittest.mock.patch.object(sys, "argv", ["races.py", log.name]):
                    self.assertEqual(races.main(), code, text)

    def test_a_report_without_places_is_a_race(self):
        text = "Error: Race reported between Write access at fh_kernel+0x1f0"
        self.assertEqual(len(races.races(text)[1]), 1)
        self.assertEqual(len(races.races(f"{text}\n and Read access at {self.TURN}+0x20 in b.cuh:2")[1]), 1)

    def test_a_write_without_a_line_is_known_by_a_reader(self):
        text = "Error: Race reported between {} access at fh_kernel+0x1f0\n"
        reader = f" and {{}} access at {self.BWD}DqSum<1>::remember(const QIteration &)+0x20 in b.cuh:2 [8 hazards]\n"
        for kinds, new in ((("Write", "Read"), 0), (("Read", "Read"), 1), (("Write", "Write"), 1)):
            self.assertEqual(len(races.races(text.format(kinds[0]) + reader.format(kinds[1]))[1]), new, kinds)


class Summary(unittest.TestCase):
    def test_counts_and_reasons(self):
        outcome = test_summary.read(JUNIT)
        self.assertEqual(test_summary.closing_line(outcome), "1 passed, 1 failed, 1 skipped")
        self.assertEqual(outcome.failed, {"checks.rooms": "bad"})
        self.assertEqual(outcome.skipped, {"no Hopper GPU here": ["A.gpu"]})

    def test_scripts_of_cmake_say_why_they_skip(self):
        self.assertEqual(test_summary.reason("-- Skipped: doxygen is not installed\n"), "doxygen is not installed")
        self.assertEqual(test_summary.reason("a program\n"), "no reason given")

    def test_a_program_in_parts_counts_by_its_cases(self):
        part = """<testsuites><testsuite>
            <testcase name="on_cpu/a_1" classname="C/F" status="run" result="completed" time="0.1"/>
            <testcase name="on_gpu/a_1" classname="C/F" status="run" result="skipped" time="0"><skipped
             message="f.cpp:1&#x0A;no Hopper&#x0A;GPU here"/></testcase>%s</testsuite></testsuites>"""
        wrong = ('<testcase name="on_cpu/a_2" classname="C/F" value_param="fwd" time="0"><failure message="x">f.cpp:2 '
                 'is 3</failure></testcase>')
        for status, cases, failed in (("run", "", {}), ("fail", wrong, {"C/F.on_cpu/a_2": "fwd\nf.cpp:2 is 3"}),
                                      ("fail", "", {"p.1_of_2": "timed out"})):
            with tempfile.TemporaryDirectory() as folder:
                (pathlib.Path(folder) / "p.1_of_2.xml").write_text(part % cases)
                outcome = test_summary.read(
                    f'<testsuite><testcase name="p.1_of_2" classname="p" status="{status}" time="1">'
                    '<system-out>timed out</system-out></testcase></testsuite>', pathlib.Path(folder))
            self.assertEqual((outcome.passed, outcome.failed), (1, failed))
            self.assertEqual(outcome.skipped, {"no Hopper GPU here": ["C/F.on_gpu/a_1"]})
            self.assertEqual(outcome.seconds["C/F.on_cpu/a_1"], 0.1)

    def test_pytest_says_it_in_its_own_way(self):
        outcome = test_summary.read("""<testsuites><testsuite><testcase classname="test_a" name="test_one"/>
            <testcase classname="test_a" name="test_two"><failure message="assert 0">E assert 0</failure></testcase>
            <testcase classname="test_a" name="test_three"><error message="in a fixture">E no</error></testcase>
            <testcase classname="test_b" name="test_gpu"><skipped message="no Hopper GPU here"/></testcase>
            <testcase classname="" name="test_c"><skipped message="collection skipped">('c.py', 18, "Skipped: no jax, a
             framework")</skipped></testcase>
            </testsuite></testsuites>""")
        self.assertEqual(test_summary.closing_line(outcome), "1 passed, 2 failed, 2 skipped")
        self.assertEqual(outcome.failed, {"test_a.test_two": "E assert 0", "test_a.test_three": "E no"})
        self.assertEqual(outcome.skipped, {"no Hopper GPU here": ["test_b.test_gpu"],
                                           "Skipped: no jax, a framework": [".test_c"]})

    def test_the_slowest_are_named_the_longest_first(self):
        junit = '<testsuite>%s</testsuite>' % "".join(
            f'<testcase name="t{i}" classname="t{i}" status="run" time="{i}.5"/>' for i in range(20))
        lines = test_summary.slowest(test_summary.read(junit).seconds).splitlines()
        self.assertEqual(len(lines), 1 + 10)
        self.assertEqual(lines[0], "slowest of 200 s, counted test by test:")
        self.assertEqual(lines[1].split(), ["19.5", "s", "t19"])
        self.assertEqual(test_summary.slowest({"quick": 0.5}), "")

    def test_tests_of_one_family_take_one_line(self):
        self.assertEqual(test_summary.families(["C/F.gpu/a_1", "A.b", "C/F.gpu/a_2"]), ["C/F.gpu/* (2)", "A.b"])


if __name__ == "__main__":
    unittest.main()
