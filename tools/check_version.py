# SPDX-License-Identifier: Apache-2.0
"""The version is written in include/froghopper/froghopper.h, which CMake, pyproject.toml and the Conan recipe read.
Where else it is written it must be the same.

usage: python3 tools/check_version.py      prints what is wrong, exit code 1 if anything is
"""
import re
import sys

import tree

HEADER = "include/froghopper/froghopper.h"
# File: how the version stands there, everywhere that it does. MINOR is "0.4", or "0_4" in the name of a namespace.
VERSION, MINOR = r"(\d+\.\d+\.\d+)", r"(\d+[._]\d+)"
COPIES = {
    HEADER: [rf"/\* of the library, as \"{VERSION}\""],
    "include/froghopper/froghopper.hpp": [rf"\bnamespace v{MINOR}\b"],
    "CITATION.cff": [rf"^version: {VERSION}"],
    "python/froghopper/_c.py": [rf"^VERSION = \"{VERSION}\""],
    "packaging/vcpkg/vcpkg.json": [rf"\"version\": \"{VERSION}\""],
    "docs/12-using.md": [rf"\blibfroghopper\.so\.{MINOR}", rf"\bFROGHOPPER_{MINOR}"],
    "docs/decisions/0007-one-copy-of-the-presets.md": [rf"\bFROGHOPPER_PRIVATE_{VERSION}"],
    "cmake/exports.map.in": [rf"\blibfroghopper\.so\.{MINOR}"],
}


def of_header(text):
    """ "0.4.0" """
    return ".".join(re.search(rf"^#define FH_VERSION_{part} (\d+)\b", text, re.MULTILINE)[1]
                    for part in ("MAJOR", "MINOR", "PATCH"))


def problems_of(texts):
    """texts: {file: its text}, of the header and of all copies."""
    version = of_header(texts[HEADER])
    for path, patterns in COPIES.items():
        for pattern in patterns:
            found = list(re.finditer(pattern, texts[path], re.MULTILINE))
            if not found: yield f"{path}: names no version; tools/check_version.py looks for {pattern}"
            for one in found:
                said = one[1].replace("_", ".")
                wanted = version if said.count(".") == 2 else version.rpartition(".")[0]
                if said != wanted:
                    line = texts[path].count("\n", 0, one.start()) + 1
                    yield f"{path}:{line}: says {one[1]}, and {HEADER} says {version}"


def main():
    bad = list(problems_of({path: (tree.ROOT / path).read_text() for path in COPIES}))
    print("\n".join(bad) or "version: ok")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
