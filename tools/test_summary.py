# SPDX-License-Identifier: Apache-2.0
"""Reads what ctest wrote with --output-junit or pytest with --junit-xml: which tests failed, which were skipped and
why, which took longest, and the closing line.

usage: python3 tools/test_summary.py JUNIT.xml [PARTS]      exit code 1 if a test failed or none ran

PARTS: the folder where tests of ctest that have many cases wrote NAME.xml, as GoogleTest does: the cases count.
"""
import collections
import dataclasses
import pathlib
import re
import sys
import xml.etree.ElementTree

LINES_OF_A_FAILURE = 60
SLOWEST = 10


@dataclasses.dataclass
class Outcome:
    passed: int = 0
    failed: dict = dataclasses.field(default_factory=dict)   # name: output
    skipped: dict = dataclasses.field(default_factory=dict)  # reason: names
    seconds: dict = dataclasses.field(default_factory=dict)  # name: how long it took


def reason(output, message=""):
    """What GoogleTest prints after 'Skipped' and what CMake scripts print after 'Skipped: '; else pytest's message."""
    found = re.search(r"Skipped\n(.*?)\n\s*(\n|\[  SKIPPED)", output, re.DOTALL) or re.search(r"Skipped: (.*)", output)
    return " ".join((found[1] if found else message).split()) or "no reason given"


def pytest_reason(skipped):
    """The message; of a file that is skipped as a whole it says no more, and the text has ('FILE', LINE, 'REASON')."""
    message, text = skipped.get("message", ""), skipped.text or ""
    return text.strip("() \n").split(", ", 2)[-1].strip("'\"") if message == "collection skipped" and text else message


def add_cases(outcome, part):
    """The cases of a program of GoogleTest; how many failed."""
    failed = len(outcome.failed)
    for case in xml.etree.ElementTree.fromstring(part).iter("testcase"):
        name, skipped = f"{case.get('classname')}.{case.get('name')}", case.find("skipped")
        failures = [failure.text or failure.get("message", "") for failure in case.iter("failure")]
        outcome.seconds[name] = float(case.get("time") or 0)
        if failures:
            outcome.failed[name] = "\n".join([case.get("value_param", ""), *failures])
        elif skipped is not None:
            why = skipped.get("message", "").partition("\n")[2]  # the place comes first
            outcome.skipped.setdefault(" ".join(why.split()) or "no reason given", []).append(name)
        else:
            outcome.passed += 1
    return len(outcome.failed) - failed


def read(junit, parts=None):
    outcome = Outcome()
    for case in xml.etree.ElementTree.fromstring(junit).iter("testcase"):
        part = parts / f"{case.get('name')}.xml" if parts else None
        if part and part.exists():
            # Without a failed case it ended in another way.
            if add_cases(outcome, part.read_text(errors="replace")) or case.get("status") != "fail": continue
        output, skipped = case.findtext("system-out") or "", case.find("skipped")
        failure = case.find("failure") if case.find("failure") is not None else case.find("error")
        name = f"{case.get('classname')}.{case.get('name')}" if case.get("status") is None else case.get("name")
        outcome.seconds[name] = float(case.get("time") or 0)
        if failure is not None or case.get("status") == "fail":
            outcome.failed[name] = output + (failure.text or "" if failure is not None else "")
        elif skipped is not None or case.get("status") == "notrun":
            by_pytest = case.get("status") is None and skipped is not None
            outcome.skipped.setdefault(reason(output, pytest_reason(skipped) if by_pytest else ""), []).append(name)
        else:
            outcome.passed += 1
    return outcome


def families(names):
    """Tests that differ in their parameter alone as one: "Cases/Forward.on_hopper/* (12)"."""
    counts = collections.Counter(name.rpartition("/")[0] or name for name in names)
    return [f"{family}/* ({count})" if count > 1 else next(name for name in names if name.startswith(family))
            for family, count in counts.items()]


def slowest(seconds):
    """The longest of tests that took a second at least, the longest first, and what all took."""
    longest = sorted((name for name in seconds if seconds[name] >= 1), key=seconds.get, reverse=True)[:SLOWEST]
    lines = [f"  {seconds[name]:6.1f} s  {name}\n" for name in longest]
    return f"slowest of {sum(seconds.values()):.0f} s, counted test by test:\n{''.join(lines)}" if lines else ""


def closing_line(outcome):
    skipped = sum(len(names) for names in outcome.skipped.values())
    return f"{outcome.passed} passed, {len(outcome.failed)} failed, {skipped} skipped"


def main():
    junit, *parts = map(pathlib.Path, sys.argv[1:])
    outcome = read(junit.read_text(errors="replace"), *parts)
    for why, names in outcome.skipped.items():
        print(f"skipped, {why}:")
        print("".join(f"  {family}\n" for family in families(names)), end="")
    for name, output in outcome.failed.items():
        print(f"FAILED {name}")
        print("".join(f"  {line}\n" for line in output.splitlines()[-LINES_OF_A_FAILURE:]), end="")
    print(slowest(outcome.seconds), end="")
    print(closing_line(outcome))
    return 1 if outcome.failed or outcome.passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
