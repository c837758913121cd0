# SPDX-License-Identifier: Apache-2.0
"""The scripts of bench: what they import, what --help needs, what they say where PyTorch is missing."""
import ast
import graphlib
import pathlib
import subprocess
import sys
import unittest

BENCH = pathlib.Path(__file__).resolve().parent.parent / "bench"


class Scripts(unittest.TestCase):
    def test_none_is_imported_by_what_it_imports(self):
        """Of bench and its packages: a package's module is known by the package's name and its own."""
        names = {tuple(file.relative_to(BENCH).with_suffix("").parts): file for file in BENCH.rglob("*.py")}
        imports = {name: {found for node in ast.walk(ast.parse(file.read_text()))
                          for found in self.imported(node, name[:-1])} & set(names) for name, file in names.items()}
        self.assertIn(("report", "records"), imports["report", "pages"])
        graphlib.TopologicalSorter(imports).prepare()  # raises CycleError

    def test_help_needs_nothing(self):
        """Every script says what it measures and how, where neither PyTorch nor a GPU is."""
        scripts = [[str(file)] for file in sorted(BENCH.glob("*.py"))] + [[str(BENCH / "report")]]
        scripts += [[str(BENCH / "errors.py"), kind] for kind in ("forward", "gradients", "fp8", "weights")]
        self.assertGreater(len(scripts), 8)
        for script in scripts:
            with self.subTest(script):
                done = subprocess.run([sys.executable, "-S", *script, "--help"], capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertIn("usage: ", done.stdout)

    def test_without_pytorch_a_measurement_ends_in_one_line(self):
        for script in (["speed.py"], ["energy.py"], ["errors.py", "fp8"], ["python_host.py"], ["errors.py", "weights"],
                       ["builds.py", "--build", "a=a.so"]):
            with self.subTest(script):
                done = subprocess.run([sys.executable, "-S", str(BENCH / script[0]), *script[1:]], capture_output=True,
                                      text=True)
                self.assertEqual(done.returncode, 1)
                self.assertRegex(done.stderr, rf"^{script[0]}: .*(PyTorch is needed|needs numpy)[^\n]*\n$")

    @staticmethod
    def imported(node, package):
        if isinstance(node, ast.Import): return [tuple(alias.name.split(".")) for alias in node.names]
        if not isinstance(node, ast.ImportFrom): return []
        begin = (package if node.level else ()) + tuple(filter(None, (node.module or "").split(".")))
        return [begin, *((*begin, alias.name) for alias in node.names)]


if __name__ == "__main__":
    unittest.main()
