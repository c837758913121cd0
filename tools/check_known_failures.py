# SPDX-License-Identifier: Apache-2.0
"""docs/known-failures.md against the tree: what it claims is there, and every R number that is cited has its row.

usage: python3 tools/check_known_failures.py      prints what is wrong, exit code 1 if anything is

A row names files in backticks, and after a file the tests in it, as `Suite.name`. A file of cases that is named has
the row's number on a line of its own. A row that names no file says "not yet: needs ...".
"""
import re
import sys

import tree

TABLE = "docs/known-failures.md"
ROW = re.compile(r"\| R(\d+) \| (.+) \| (.+) \|")
CITED = re.compile(r"(?<![\w.\[])R([1-9]\d?)\b")
REGISTERS = {"tests/spills_test.py"}  # machine code, whose registers are called like rows
NOT_YET = "not yet: needs "


def rows_of(table):
    """(line number, row number, what holds it)"""
    for at, line in enumerate(table.splitlines(), 1):
        if match := ROW.fullmatch(line):
            yield at, int(match[1]), match[3]


def holds(test, source):
    """A test of GoogleTest or of unittest, by its Suite.name."""
    suite, _, name = test.partition(".")
    return re.search(rf"\b{suite}, {name}\)|\bclass {suite}\b(.|\n)*\bdef {name}\(", source) is not None


def row_problems(number, claim, text_of):
    """text_of: path -> the file's text, or None where there is no such file."""
    file = source = None
    for name in re.findall(r"`([^`]+)`", claim):
        if "/" in name:
            file, source = name, text_of(name)
            if source is None:
                yield f"there is no {name}"
            elif name.startswith("tests/cases/") and number not in cited_in(source):
                yield f"no line of {name} cites R{number}"
        elif file is None:
            yield f"`{name}` comes before any file"
        elif source is not None and not holds(name, source):
            yield f"{file} has no test {name}"
    if file is None and NOT_YET not in claim:
        yield f'neither a test nor "{NOT_YET}..."'


def cited_in(source):
    return {int(number) for number in CITED.findall(source)}


def problems_of(table, sources):
    """sources: {path: text} of the tree."""
    numbers = []
    for at, number, claim in rows_of(table):
        numbers.append(number)
        for problem in row_problems(number, claim, sources.get):
            yield f"{TABLE}:{at}: R{number}: {problem}"
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"{TABLE}: the rows are R1, R2, ... in order, each once"
    for path, source in sources.items():
        for number in sorted(cited_in(source) - set(numbers)) if path not in REGISTERS | {TABLE} else ():
            yield f"{path}: cites R{number}, which has no row in {TABLE}"


def main():
    texts = {path.as_posix(): tree.text(path) for path in tree.files()}
    sources = {path: text for path, text in texts.items() if text is not None}
    bad = list(problems_of(sources.get(TABLE, ""), sources))
    print("\n".join(bad) or "known failures: ok")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
