# SPDX-License-Identifier: Apache-2.0
"""Reads what ctest wrote with --output-junit: which tests failed, which were skipped and why, and the closing line.

usage: python3 tools/test_summary.py JUNIT.xml      exit code 1 if a test failed or none ran
"""
import collections
import dataclasses
import pathlib
import re
import sys
import xml.etree.ElementTree

LINES_OF_A_FAILURE = 60


@dataclasses.dataclass
class Outcome:
    passed: int = 0
    failed: dict = dataclasses.field(default_factory=dict)   # name: output
    skipped: dict = dataclasses.field(default_factory=dict)  # reason: names


def reason(output):
    """What GoogleTest prints after 'Skipped': the text that the test gave."""
    found = re.search(r"Skipped\n(.*?)\n\s*(\n|\[  SKIPPED)", output, re.DOTALL)
    return " ".join(found[1].split()) if found and found[1].strip() else "no reason given"


def read(junit):
    outcome = Outcome()
    for case in xml.etree.ElementTree.fromstring(junit).iter("testcase"):
        if case.find("failure") is not None or case.get("status") == "fail":
            outcome.failed[case.get("name")] = case.findtext("system-out") or ""
        elif case.find("skipped") is not None or case.get("status") == "notrun":
            why = reason(case.findtext("system-out") or "")
            outcome.skipped.setdefault(why, []).append(case.get("name"))
        else:
            outcome.passed += 1
    return outcome


def families(names):
    """Tests that differ in their parameter alone as one: "Cases/Forward.on_hopper/* (12)"."""
    counts = collections.Counter(name.rpartition("/")[0] or name for name in names)
    return [f"{family}/* ({count})" if count > 1 else next(name for name in names if name.startswith(family))
            for family, count in counts.items()]


def closing_line(outcome):
    skipped = sum(len(names) for names in outcome.skipped.values())
    return f"{outcome.passed} passed, {len(outcome.failed)} failed, {skipped} skipped"


def main():
    outcome = read(pathlib.Path(sys.argv[1]).read_text(errors="replace"))
    for why, names in outcome.skipped.items():
        print(f"skipped, {why}:")
        print("".join(f"  {family}\n" for family in families(names)), end="")
    for name, output in outcome.failed.items():
        print(f"FAILED {name}")
        print("".join(f"  {line}\n" for line in output.splitlines()[-LINES_OF_A_FAILURE:]), end="")
    print(closing_line(outcome))
    return 1 if outcome.failed or outcome.passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
