# SPDX-License-Identifier: Apache-2.0
"""Every relative link of the documents in a folder leads to a file that is there.

usage: python3 tests/links.py FOLDER      prints those that do not, exit code 1 if there is one
"""
import pathlib
import re
import sys


def dead_links(folder):
    for document in sorted(folder.rglob("*.md")):
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text()):
            if "://" not in link and not (document.parent / link).exists():
                yield f"{document.relative_to(folder)} links to {link}"


def main():
    folder = pathlib.Path(sys.argv[1])
    bad = list(dead_links(folder))
    if not list(folder.rglob("*.md")):
        bad.append(f"{folder} has no documents")
    print("\n".join(bad) or "links: ok")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
