# SPDX-License-Identifier: Apache-2.0
"""Compiles the kernels of tests/golden/plans.txt that are no presets: what a user's machine compiles at first use.

usage: compile_golden.py FROGHOPPER_COMPILE NVRTC FOLDER

Exits 1 where one does not compile, or serialises wgmma. A preset fails the build; nothing else compiles these without
a GPU.
"""
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def kernels_of(plan):
    """The kernels in the text of a plan: the first word of each launch. What the CPU does has no dot in it."""
    launches = plan.partition(" -> ")[2].split(";")
    words = (launch.split()[0] for launch in launches if launch.strip())
    return {word for word in words if "." in word}


def other_kernels(plans, presets):
    names = set().union(*map(kernels_of, plans))
    return sorted(names - {line.partition("#")[0].strip() for line in presets})


def lines_of(paths):
    return [line for path in paths for line in path.read_text().splitlines()]


def main():
    program, nvrtc, folder = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    presets = [path for path in (ROOT / "presets").glob("*.txt") if path.name != "registers.txt"]
    names = other_kernels(lines_of([ROOT / "tests/golden/plans.txt"]), lines_of(presets))
    if not names: sys.exit("tests/golden/plans.txt names no kernel that is no preset")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "names.txt").write_text("\n".join(names) + "\n")
    done = subprocess.run([program, "--nvrtc", nvrtc, "--out", folder, folder / "names.txt"], check=False)
    print(f"{len(names)} kernels of the golden plans are no presets; {'not ' * (done.returncode != 0)}all compile")
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
