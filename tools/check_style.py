# SPDX-License-Identifier: Apache-2.0
"""How files look: clang-format, ASCII, 120 columns, 400 lines, licence line, banner, nothing unfinished.

usage: python3 tools/check_style.py      prints what is wrong, exit code 1 if anything is
"""
import itertools
import pathlib
import re
import shutil
import subprocess
import sys

import tree

FORMATTED = {".h", ".hpp", ".cpp", ".c", ".cuh", ".cu"}
SCRIPTS = {".py", ".cmake", ".sh"}
COLUMNS, LINES = 120, 400  # clang-format breaks code at 118; comments are broken by hand
CLANG_FORMAT = "14."  # every version formats differently; tools/requirements.txt brings this one

# Text that is somebody else's, made by a program, or made to be long.
FOREIGN = ("LICENSE", "data/", "tests/broken/", "bench/results/")
UNFINISHED = re.compile("|".join(rf"\b{word}\b" for word in ("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")))
OWN_MACHINE = re.compile(r"(?<![\w.$}])/(work|home|opt|Users)/\w")
CODE_IN_COMMENT = re.compile(r"^\s*// ?[\w.>*&:<\[\]-]+\s*(=[^=]|\(.*\)).*;\s*$")
# Behind && or || some lanes do not call it, and the others wait for them.
NOT_BY_ALL_LANES = re.compile(r"(&&|\|\|)[^;]*_sync\(")
# What a kernel file's banner says, in sections of these names; a kernel whose threads all do the same has no roles.
WITH_ROLES, OF_LIKE_THREADS = ("Work", "Roles", "Order", "Overlap", "Barriers", "Shared"), ("Work", "Shared")
CASTS = {re.compile(r"device/fwd/forward\w*\.cuh"): WITH_ROLES,
         re.compile(r"device/bwd/(backward|by_keys|by_columns)\w*\.cuh"): WITH_ROLES,
         re.compile(r"device/bwd/(delta|grad_q)\.cuh"): OF_LIKE_THREADS,
         re.compile(r"device/quantise/quantise\.cuh"): WITH_ROLES,
         re.compile(r"device/append/append\.cuh"): WITH_ROLES}


def is_code(path, source):
    return path.suffix in FORMATTED | SCRIPTS or path.name == "CMakeLists.txt" or source.startswith("#!")


def line_problems(path, lines):
    long_allowed = path.suffix in (".md", ".txt", ".jsonl", ".json")
    for number, line in enumerate(lines, 1):
        if not line.isascii():
            yield number, "not ASCII"
        if len(line) > COLUMNS and not long_allowed and not tree.generated(path):
            yield number, f"{len(line)} columns, the limit is {COLUMNS}"
        if line != line.rstrip():
            yield number, "blanks at the end"
        if "\t" in line:
            yield number, "a tab"
        if found := UNFINISHED.search(line):
            yield number, f"{found[0]}: finish it or file it elsewhere"
        if found := OWN_MACHINE.search(line):
            yield number, f"a path of one machine: {found[0]}..."
        if path.suffix in FORMATTED and CODE_IN_COMMENT.match(line):
            yield number, "code in a comment"
        if path.suffix == ".cuh" and NOT_BY_ALL_LANES.search(line):
            yield number, "a function of the whole warp behind && or ||: call it before"


def banner_of(path, head):
    """The text of the comment that follows the licence line at once; "" where something else does."""
    if head[1:] and head[1].startswith('"""'):
        return "\n".join(head[1:])[3:].partition('"""')[0]
    mark = " *" if head[0].startswith("/*") else "//" if path.suffix in FORMATTED else "#"
    lines = itertools.takewhile(lambda line: line.startswith(mark), head[1:])
    return "\n".join(line[len(mark):].removesuffix("*/").strip() for line in lines)


def says_something(banner):
    """Three words or more up to a full stop, or to a colon at the end of a line."""
    ends = [end.start() for end in re.finditer(r"\.(\s|$)|:(\n|$)", banner)]
    return bool(ends) and len(banner[:ends[-1]].split()) >= 3


def banner_problems(path, lines):
    """The first lines: an optional #!, the licence, then a sentence about what the file is for."""
    head = lines[1:] if lines and lines[0].startswith("#!") else lines
    if not head or "SPDX-License-Identifier: Apache-2.0" not in head[0]:
        yield 1, "the first line must be the SPDX line"
        return
    banner = banner_of(path, head)
    if not says_something(banner):
        yield 2, "right after the licence line comes a comment that says in a sentence what the file is for"
    if tree.generated(path) and "Do not edit" not in banner:
        yield 2, "a generated file says who made it, and 'Do not edit'"
    for files, cast in CASTS.items():
        if not files.fullmatch(path.as_posix()): continue
        for section in cast:
            if not any(line.startswith(f"// {section} ") for line in lines[:100]):
                yield 1, f"a kernel's banner has the section {section}: {', '.join(cast)}"


def problems_of(path, source):
    lines = source.split("\n")
    if lines.pop() != "":
        yield len(lines) + 1, "the last line has no end"
    yield from line_problems(path, lines)
    if is_code(path, source):
        yield from banner_problems(path, lines)
        if len(lines) > LINES and not tree.generated(path):
            yield LINES + 1, f"{len(lines)} lines, the limit is {LINES}"


def clang_format():
    beside = pathlib.Path(sys.executable).parent / "clang-format"
    local = tree.ROOT / ".venv/bin/clang-format"
    for program in (beside, local, shutil.which("clang-format")):
        if program and pathlib.Path(program).exists():
            said = subprocess.run([str(program), "--version"], capture_output=True, text=True).stdout
            if f"version {CLANG_FORMAT}" in said:
                return str(program)
    return None


def format_problems(paths):
    program = clang_format()
    if program is None:
        return [f"clang-format {CLANG_FORMAT}x is not here; scripts/setup puts it into .venv"]
    command = [program, "--dry-run", "-Werror", "--ferror-limit=1", "--style=file", *map(str, paths)]
    said = subprocess.run(command, cwd=tree.ROOT, capture_output=True, text=True)
    if said.returncode == 0:
        return []
    lines = [line.split(" error: ")[0] for line in said.stderr.splitlines() if " error: " in line]
    return [f"{line} not as clang-format has it; run clang-format -i on it" for line in lines] or [said.stderr]


def main():
    bad, formatted = [], []
    for path in tree.files():
        source = tree.text(path)
        if source is None or path.as_posix().startswith(FOREIGN):
            continue
        bad += [f"{path}:{number}: {problem}" for number, problem in problems_of(path, source)]
        if path.suffix in FORMATTED and not tree.generated(path):
            formatted.append(path)
    bad += format_problems(formatted)
    print("\n".join(bad) or f"style: ok, {len(formatted)} files formatted")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
