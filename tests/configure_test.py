# SPDX-License-Identifier: Apache-2.0
"""CMake stops where an option names what is not there, and says what to give: it takes no other one in silence."""
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Configure(unittest.TestCase):
    def refused(self, option):
        with tempfile.TemporaryDirectory() as folder:
            said = subprocess.run(["cmake", "-S", ROOT, "-B", folder, "-DFROGHOPPER_TESTS=OFF", option],
                                  capture_output=True, text=True, timeout=100)
        self.assertNotEqual(said.returncode, 0, option)
        return " ".join(said.stderr.split())  # CMake breaks lines

    def test_a_folder_without_the_header_is_refused(self):
        with tempfile.TemporaryDirectory() as empty:
            for folder in ("/nonexistent", empty):
                self.assertIn(f"FROGHOPPER_CUDA_INCLUDE is {folder}, which has no cuda.h. Name the folder that has it, "
                              "or leave it out.", self.refused(f"-DFROGHOPPER_CUDA_INCLUDE={folder}"))

    def test_a_python_that_is_none_is_refused(self):
        self.assertIn("FROGHOPPER_PYTHON is /nonexistent, which is no program here. Give the path of a python, or "
                      "leave it out.", self.refused("-DFROGHOPPER_PYTHON=/nonexistent"))


if __name__ == "__main__":
    unittest.main()
