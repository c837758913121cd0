# SPDX-License-Identifier: Apache-2.0
"""scripts/setup says what to do where it cannot do it itself, and touches nothing then."""
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent


def setup_on(stand_ins):
    """With a PATH that has nothing but a few tools of this machine and programs that stand in for others."""
    with tempfile.TemporaryDirectory() as folder:
        for tool in ("bash", "dirname", "realpath", "env"):
            pathlib.Path(folder, tool).symlink_to(shutil.which(tool))
        for name, script in stand_ins.items():
            program = pathlib.Path(folder, name)
            program.write_text(f"#!{shutil.which('bash')}\n{script}\n")
            program.chmod(0o755)
        return subprocess.run([ROOT / "scripts/setup"], env={"PATH": folder}, capture_output=True, text=True, cwd="/",
                              stdin=subprocess.DEVNULL, timeout=30)


class Setup(unittest.TestCase):
    def test_without_root_it_names_the_command(self):
        said = setup_on({"dpkg-query": "exit 1", "id": "echo 1000", "apt-get": "echo called >&2"})
        self.assertEqual(said.returncode, 1)
        self.assertIn("needs root. Run: sudo apt-get install -y", said.stderr)
        self.assertIn("ninja-build", said.stderr)
        self.assertNotIn("called", said.stderr)

    def test_only_what_is_missing_is_named(self):
        installed = '[ "${!#}" = cmake ] || echo -n installed'
        said = setup_on({"dpkg-query": installed, "id": "echo 1000"})
        self.assertTrue(said.stderr.endswith("--no-install-recommends cmake\n"), said.stderr)

    def test_elsewhere_than_on_debian_it_names_what_is_missing(self):
        said = setup_on({"g++": "exit 0", "id": "echo 0"})
        self.assertEqual(said.returncode, 1)
        self.assertIn("cmake is missing", said.stderr)


if __name__ == "__main__":
    unittest.main()
