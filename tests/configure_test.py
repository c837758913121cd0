# SPDX-License-Identifier: Apache-2.0
"""CMake says where an option names what is not there, and what to give: it takes no other one in silence."""
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Configure(unittest.TestCase):
    def said(self, option):
        """The exit code of CMake and its words, of which it breaks the lines."""
        with tempfile.TemporaryDirectory() as folder:
            ran = subprocess.run(["cmake", "-G", "Ninja", "-S", ROOT, "-B", folder, "-DFROGHOPPER_TESTS=OFF",
                                  "-DFROGHOPPER_CLI=OFF", option], capture_output=True, text=True, timeout=100)
        return ran.returncode, " ".join(ran.stderr.split())

    def test_a_folder_without_the_header_is_refused(self):
        with tempfile.TemporaryDirectory() as empty:
            for folder in ("/nonexistent", empty):
                code, words = self.said(f"-DFROGHOPPER_CUDA_INCLUDE={folder}")
                self.assertNotEqual(code, 0)
                self.assertIn(f"FROGHOPPER_CUDA_INCLUDE is {folder}, which has no cuda.h. Name the folder that has it, "
                              "or leave it out.", words)

    def test_a_python_that_is_none_is_named(self):
        self.assertIn("FROGHOPPER_PYTHON is /nonexistent, which is no program here, so cuda.h and NVRTC are looked for "
                      "in CUDA toolkits alone.", self.said("-DFROGHOPPER_PYTHON=/nonexistent")[1])


if __name__ == "__main__":
    unittest.main()
