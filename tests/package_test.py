# SPDX-License-Identifier: Apache-2.0
"""What pyproject.toml says, and with a wheel, what is in it: the package and its library, nothing else.

usage: python3 tests/package_test.py [libfroghopper.so] [froghopper-VERSION-py3-none-PLATFORM.whl]
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import check_version

WHEEL = pathlib.Path(sys.argv.pop()) if sys.argv[-1].endswith(".whl") else None
LIBRARY = pathlib.Path(sys.argv.pop()) if ".so" in sys.argv[-1] else None
MOST, MOST_OF_LIBRARY = 12e6, 20e6  # bytes of a wheel, and of the library in it
OLDEST_GLIBC = "manylinux_2_27_x86_64"
OF_FRAMEWORK = re.compile(r"libfroghopper[_-](xla|torch|cp)\.so")  # small libraries beside the library
SYSTEM = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}


def version():
    return check_version.of_header((ROOT / check_version.HEADER).read_text())


def pins_of(name):
    return dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / f"tools/{name}.txt").read_text(), re.MULTILINE))


class Pyproject(unittest.TestCase):
    text = (ROOT / "pyproject.toml").read_text()

    def test_compilers_are_those_of_scripts_setup(self):
        """A preset of another compiler would be another kernel than the one that is tested."""
        pins = pins_of("requirements")
        asked = dict(re.findall(r'"(nvidia-[\w-]+)==([^"]+)"', self.text))
        self.assertEqual(set(asked), {"nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime"})
        for name, pin in asked.items(): self.assertEqual(pin, pins[name], name)

    def test_the_header_of_xla_has_bounds(self):
        """Names in it change, and pip takes the newest; and Pythons are named, which scripts/wheel pythons takes."""
        self.assertRegex(self.text, r'"jaxlib>=[\d.]+,<[\d.]+"')
        named = re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', self.text)
        self.assertEqual(re.search(r'requires-python = ">=3\.(\d+)"', self.text)[1], named[0])
        self.assertGreaterEqual(int(named[-1]), 13)

    def test_the_version_is_found(self):
        where, pattern, result = (re.search(rf"^{key} = ['\"](.+)['\"]$", self.text, re.MULTILINE)[1]
                                  for key in ("input", "regex", "result"))
        found = re.search(pattern, (ROOT / where).read_text(), re.MULTILINE)
        self.assertEqual(result.format(**found.groupdict()), version())

    def test_entry_points_name_functions(self):
        """A command and what engines load when they start."""
        named = re.findall(r'^froghopper = "froghopper\.(\w+):(\w+)"$', self.text, re.MULTILINE)
        self.assertEqual({x for x, _ in named}, {"__main__", "_engines"})
        for module, function in named:
            self.assertIn(f"\ndef {function}(", (ROOT / f"python/froghopper/{module}.py").read_text())

    def test_frameworks_are_tested_with_the_tools_of_scripts_setup(self):
        pins, frameworks = pins_of("requirements"), pins_of("requirements-frameworks")
        self.assertEqual(set(frameworks) - set(pins), {"torch", "transformers", "jax"})
        for name in set(frameworks) & set(pins): self.assertEqual(frameworks[name], pins[name], name)


@unittest.skipIf(LIBRARY is None, "no library was named")
class Library(unittest.TestCase):
    """The library as it is built here, long before a wheel is."""

    def test_no_function_is_newer_than_the_oldest_glibc(self):
        """What is newer gets its oldest version from cmake/old_glibc.cmake or is written in tools/old_glibc.c."""
        oldest = tuple(map(int, re.findall(r"\d+", OLDEST_GLIBC)[:2]))
        provided = re.findall(r"\w+", "".join(re.findall(
            r"set\(old_glibc_(?:dl|pthread)([^)]*)\)", (ROOT / "cmake/old_glibc.cmake").read_text())))
        provided += re.findall(r"\b(\w+)(?: = 0;|\([^;{]*\) \{)", (ROOT / "tools/old_glibc.c").read_text())
        symbols = subprocess.run(["readelf", "--dyn-syms", "--wide", LIBRARY], check=True, capture_output=True,
                                 text=True).stdout
        asked = re.findall(r"UND (\w+)@GLIBC_(\d+)\.(\d+)", symbols)
        self.assertGreater(len(asked), 20)
        newer = {name for name, *version in asked if tuple(map(int, version)) > oldest}
        newer = {name for name in newer if not name.startswith("__isoc23_")}  # glibc 2.38's headers rename strtol
        self.assertEqual(newer - set(provided), set())


@unittest.skipIf(WHEEL is None, "no wheel was named")
class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.archive = zipfile.ZipFile(WHEEL)
        cls.names = set(cls.archive.namelist())
        cls.libraries = {name for name in cls.names if name.endswith(".so")}
        cls.info = f"froghopper-{version()}.dist-info"

    def elf(self, option):
        """What readelf says of each library, by the file's name."""
        with tempfile.TemporaryDirectory() as folder:
            return {pathlib.Path(name).name: subprocess.run(
                        ["readelf", option, "--wide", self.archive.extract(name, folder)], check=True,
                        capture_output=True, text=True).stdout for name in self.libraries}

    def test_name_tag_and_size(self):
        self.assertEqual(WHEEL.name, f"froghopper-{version()}-py3-none-{OLDEST_GLIBC}.whl")
        said = self.archive.read(f"{self.info}/WHEEL").decode()
        self.assertIn(f"Tag: py3-none-{OLDEST_GLIBC}\n", said)
        self.assertIn("Root-Is-Purelib: false", said)
        self.assertLessEqual(WHEEL.stat().st_size, MOST)
        self.assertLessEqual(self.archive.getinfo("froghopper/lib/libfroghopper.so").file_size, MOST_OF_LIBRARY)

    def test_holds_the_package_and_nothing_else(self):
        package = {path.relative_to(ROOT / "python").as_posix() for path in (ROOT / "python/froghopper").rglob("*")
                   if path.suffix in (".py", ".pyi", ".typed")}
        libraries = {f"froghopper/lib/lib{name}.so" for name in
                     ("froghopper", "froghopper-cp", "froghopper_xla", "froghopper_torch")}
        of_wheel = {f"{self.info}/{name}" for name in
                    ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE",
                     "licenses/LICENSE-third-party.txt")}
        self.assertIn("froghopper/py.typed", package)
        self.assertEqual({name for name in self.names if not name.endswith("/")}, package | libraries | of_wheel)

    def test_needs_nothing(self):
        metadata = self.archive.read(f"{self.info}/METADATA").decode().partition("\n\n")[0]
        self.assertIn(f"\nVersion: {version()}\n", metadata)
        self.assertIn("\nLicense-Expression: Apache-2.0\n", metadata)
        for line in re.findall(r"^Requires-Dist: .*", metadata, re.MULTILINE): self.assertIn("extra ==", line)

    def test_libraries_ask_for_the_systems_alone(self):
        for name, dynamic in self.elf("--dynamic").items():
            needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic))
            searched = re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.+)\]", dynamic)
            self.assertLessEqual(needed - SYSTEM, {"libfroghopper.so"} if OF_FRAMEWORK.search(name) else set(), name)
            self.assertEqual(searched, ["$ORIGIN"] if OF_FRAMEWORK.search(name) else [], name)

    def test_libraries_show_their_interface_alone(self):
        for name, symbols in self.elf("--dyn-syms").items():
            shown = re.findall(r"(?:GLOBAL|WEAK|UNIQUE) +DEFAULT +\d+ (\w+)", symbols)
            self.assertGreater(len(shown), 0, name)
            beside = OF_FRAMEWORK.search(name)
            own = "^fh_" if beside is None else "^fh_cp_" if beside[1] == "cp" else f"^froghopper_{beside[1]}_"
            for symbol in shown: self.assertRegex(symbol, own)

    def test_every_preset_is_inside(self):
        library = self.archive.read("froghopper/lib/libfroghopper.so")
        presets = {file.stem: {line for line in file.read_text().splitlines() if line and line[0] != "#"}
                   for file in (ROOT / "presets").glob("*.txt") if file.name != "registers.txt"}
        for name in set().union(*presets.values()):
            sets = 2 if name in presets["cuda12"] else 1  # of two compilers
            self.assertGreaterEqual(library.count(b"\0" + name.encode() + b"\0"), sets, name)

    def test_nvrtc_is_found_beside_the_package(self):
        """As NVIDIA's wheel lies beside this one in site-packages, whoever's python it is."""
        wheels = next((ROOT / ".venv/lib").glob("python3*/site-packages/nvidia"), None)
        if wheels is None: self.skipTest("no .venv holds NVRTC; scripts/setup makes one")
        version = pins_of("requirements")["nvidia-cuda-nvrtc"]
        with tempfile.TemporaryDirectory() as folder:
            self.archive.extractall(folder)
            problem = "fwd bf16 b1 hq1 hkv1 sq64 skv64 d128 softcap3"  # no preset
            ask = [sys.executable, "-m", "froghopper", "explain", problem, "h200"]
            here = {"PYTHONPATH": folder, "HOME": folder, "PATH": "/usr/bin:/bin"}
            for beside in (False, True):
                if beside: pathlib.Path(folder, "nvidia").symlink_to(wheels)
                said = subprocess.run(ask, env=here, check=True, capture_output=True, text=True, cwd=folder).stdout
                self.assertIn("compiled by NVRTC", said)
                if beside: self.assertIn(f"(nvrtc {version.rpartition('.')[0]})", said)
                else: self.assertNotIn(f"(nvrtc {version.rpartition('.')[0]})", said)


if __name__ == "__main__":
    unittest.main()
