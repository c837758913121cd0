# SPDX-License-Identifier: Apache-2.0
"""The shells complete what the program has. That packaging/completion is what the program's --help says today is
checks.current's affair; here it is run. The man page names every command too.

usage: python3 tests/completion_test.py PROGRAM
"""
import pathlib
import shutil
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import gen_completion

PROGRAM = sys.argv.pop(1)
COMMANDS = gen_completion.commands_of(PROGRAM)


def said(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")[:-1]


class Completion(unittest.TestCase):
    def bash(self, *words):
        script = ('. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _froghopper; '
                  '[ ${#COMPREPLY[@]} = 0 ] || printf "%s\\n" "${COMPREPLY[@]}"')
        return said("bash", "-c", script, str(ROOT / "packaging/completion/froghopper.bash"), *words)

    def test_the_help_is_understood(self):
        self.assertIn("check", COMMANDS)
        for name, (words, options) in COMMANDS.items():
            self.assertTrue(words, name)
            self.assertIn("--help", [names[-1] for names, *_ in options], name)

    def test_bash_completes_commands_options_and_values(self):
        self.assertEqual(self.bash("froghopper", ""), [*COMMANDS, "--help", "--version"])
        self.assertEqual(self.bash("froghopper", "ch"), ["check"])
        self.assertEqual(self.bash("froghopper", "check", "--b"), ["--backend"])
        for name in ("--backend", "--target"):
            self.assertEqual(self.bash("froghopper", "check", name, ""), ["auto", "cpu", "hopper"])
        for words in (("check", "--json"), ("attend", "x.npy", "-o"), ("explain", "--target"), ("bench", "--ms")):
            self.assertEqual(self.bash("froghopper", *words, ""), [], words)  # a value follows, and no other option
        self.assertEqual(self.bash("froghopper", "attend", "x.npy", "--so"), ["--softcap"])
        self.assertEqual(self.bash("froghopper", "attend", "x"), [])  # then bash takes files

    @unittest.skipIf(shutil.which("zsh") is None, "zsh is not installed")
    def test_zsh_completes_commands_options_and_values(self):
        script = ("_describe() { print -rl -- $commands }; _arguments() { print -rl -- $@ }; file=$1; shift; "
                  "words=(\"$@\"); CURRENT=$#; complete() { . $file }; complete")
        def zsh(*words):
            return said("zsh", "-fc", script, "zsh", str(ROOT / "packaging/completion/_froghopper"), *words)
        self.assertEqual([line.partition(":")[0] for line in zsh("froghopper", "")], list(COMMANDS))
        check = zsh("froghopper", "check", "")
        self.assertEqual(len(check), len(COMMANDS["check"][1]) + 1)
        self.assertIn("--backend[where to run]:text:(auto cpu hopper)", check)

    def test_the_man_page_has_every_command(self):
        page = (ROOT / "docs/froghopper.1").read_text()
        for name in COMMANDS: self.assertEqual(page.count(f"\n.TP\n.B {name}\n"), 1, name)


if __name__ == "__main__":
    unittest.main()
