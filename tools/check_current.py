# SPDX-License-Identifier: Apache-2.0
"""Text that a program writes and git keeps must be what the program writes today.

usage: python3 tools/check_current.py PROGRAM [--write]

PROGRAM is the built froghopper, libfroghopper.so beside it; --write brings the files up to date.
"""
import difflib
import pathlib
import subprocess
import sys

import tree


SUPPORT = """# What computes what

Written by `froghopper info --support-table` from the answers of the library itself; do not edit.

"""


def makers(program):
    """File that is kept: what it begins with, the command whose standard output follows."""
    return {
        "device/ptx/wgmma_generated.cuh": ("", [sys.executable, "tools/gen_wgmma.py"]),
        "python/froghopper/_c.py": ("", [sys.executable, "tools/gen_python.py"]),
        "docs/support.md": (SUPPORT, [program, "info", "--support-table"]),
        "docs/python-support.md": ("", [sys.executable, "tools/python_support.py",
                                        str(pathlib.Path(program).resolve().parent / "libfroghopper.so")]),
    }


def main():
    program, write = sys.argv[1], "--write" in sys.argv
    stale = 0
    for name, (opening, command) in makers(program).items():
        fresh = opening + subprocess.run(command, cwd=tree.ROOT, check=True, capture_output=True, text=True).stdout
        file = tree.ROOT / name
        kept = file.read_text() if file.exists() else ""
        if write:
            file.write_text(fresh)
        elif fresh != kept:
            stale += 1
            difference = difflib.unified_diff(kept.splitlines(), fresh.splitlines(), name, "now", lineterm="", n=1)
            print("\n".join(list(difference)[:20]))
            print(f"{name} is not what {' '.join(command)} writes.")
            print(f"To write it: python3 tools/check_current.py {program} --write")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
