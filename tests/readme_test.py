# SPDX-License-Identifier: Apache-2.0
"""The programs of the README and of docs/13-serving.md compile without a warning and run, and examples in C are
C11; the files that documents link to exist; the README names both commands.

usage: python3 tests/readme_test.py BUILD_FOLDER
"""
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
C11 = ["gcc", "-std=c11", "-pedantic"]


def printed_in_c(text):
    """What the program prints on the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        file, program = pathlib.Path(folder, "example.c"), pathlib.Path(folder, "example")
        file.write_text(text)
        command = [*C11, "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/include", str(file), f"-L{BUILD}", "-lfroghopper",
                   "-o", str(program)]
        subprocess.run(command, check=True, timeout=120)
        environment = {**os.environ, "LD_LIBRARY_PATH": str(BUILD)}
        return subprocess.run([program], check=True, timeout=60, env=environment, stdout=subprocess.PIPE,
                              text=True).stdout


class Readme(unittest.TestCase):
    text = (ROOT / "README.md").read_text()

    def programs(self):
        return re.findall(r"^```(python|c)\n(.*?)^```$", self.text, re.MULTILINE | re.DOTALL)

    def test_there_is_one_program_per_language(self):
        self.assertEqual([language for language, _ in self.programs()], ["python", "c"])

    @unittest.skipUnless(importlib.util.find_spec("numpy"), "NumPy is not installed")
    def test_the_python_program_runs(self):
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}/python", "PYTHONDONTWRITEBYTECODE": "1",
                       "FROGHOPPER_LIBRARY": f"{BUILD}/libfroghopper.so"}
        subprocess.run([sys.executable, "-c", dict(self.programs())["python"]], check=True, timeout=60, env=environment)

    def test_the_c_program_runs(self):
        self.assertEqual(printed_in_c(dict(self.programs())["c"]), "1\n")  # o, the mean of values that all are 1

    def test_examples_in_c_are_c11(self):
        """Without the extensions of GNU, which CMake's c_std_11 allows: users compile them by hand too."""
        cache = pathlib.Path(BUILD, "CMakeCache.txt").read_text()
        cuda = pathlib.Path(re.search(r"^FROGHOPPER_CUDA_INCLUDE:\w+=(.*)$", cache, re.MULTILINE)[1])
        for file in sorted((ROOT / "examples").rglob("*.c")):
            needs_runtime = "cuda_runtime_api.h" in file.read_text()
            if needs_runtime and not pathlib.Path(cuda, "crt/host_defines.h").exists(): continue
            said = subprocess.run([*C11, "-Wall", "-Wextra", "-fsyntax-only", f"-I{ROOT}/include", "-isystem",
                                   str(cuda), str(file)], capture_output=True, text=True, timeout=120).stderr
            self.assertEqual(said, "", file)

    def test_an_older_cpp_is_told_what_to_do(self):
        for options, words in ((["-std=c++17"], "-std=c++20"), (["-std=c++20"], ""),
                               (["-std=c++20", "-fno-exceptions"], "compile with exceptions")):
            said = subprocess.run(["g++", *options, "-fsyntax-only", f"-I{ROOT}/include", "-x", "c++", "-"],
                                  input="#include <froghopper/froghopper.hpp>\n", capture_output=True, text=True,
                                  timeout=120)
            self.assertEqual(said.returncode == 0, not words, options)
            self.assertIn(words, said.stderr)

    def test_an_older_c_is_told_what_to_do(self):
        for header in ("froghopper.h", "cp.h"):
            for standard, works in (("c89", False), ("gnu89", True), ("c99", True)):
                said = subprocess.run(["gcc", f"-std={standard}", "-fsyntax-only", f"-I{ROOT}/include", "-x", "c", "-"],
                                      input=f"#include <froghopper/{header}>\n", capture_output=True, text=True,
                                      timeout=120)
                self.assertEqual(said.returncode == 0, works, (header, standard, said.stderr))
                self.assertEqual("compile with -std=c99" in said.stderr, not works, said.stderr)

    def test_links_lead_somewhere(self):
        for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
            for link in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
                self.assertTrue((document.parent / link).exists(), f"{document.name} links to {link}")

    def test_both_commands_are_named(self):
        for command in ("scripts/demo", "scripts/test"):
            self.assertIn(command, self.text)
            self.assertTrue(os.access(ROOT / command, os.X_OK), command)


class Serving(unittest.TestCase):
    """The steps of docs/13-serving.md run on the CPU."""
    programs = dict(re.findall(r"^```(cpp|python|c)\n(.*?)^```$", (ROOT / "docs/13-serving.md").read_text(),
                               re.MULTILINE | re.DOTALL))

    def test_the_cpp_program_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            file, program = pathlib.Path(folder, "step.cpp"), pathlib.Path(folder, "step")
            file.write_text(self.programs["cpp"])
            subprocess.run(["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/include", str(file),
                            f"-L{BUILD}", "-lfroghopper", "-o", str(program)], check=True, timeout=120)
            run = subprocess.run([program], check=True, timeout=60, env={**os.environ, "LD_LIBRARY_PATH": str(BUILD)},
                                 capture_output=True, text=True)
            self.assertEqual(run.stdout, "be9a 4000\n")  # a key of the prefill, rotated; the row that was decoded

    def test_the_c_program_appends(self):
        self.assertEqual(printed_in_c(self.programs["c"]), "1 -2\n")  # k of the first sequence, v of the second

    @unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
    def test_the_python_program_runs(self):
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}/python", "PYTHONDONTWRITEBYTECODE": "1",
                       "FROGHOPPER_LIBRARY": f"{BUILD}/libfroghopper.so"}
        subprocess.run([sys.executable, "-c", self.programs["python"]], check=True, timeout=120, env=environment)


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
