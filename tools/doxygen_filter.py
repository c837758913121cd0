# SPDX-License-Identifier: Apache-2.0
"""Prints a public header with its comments in Doxygen's spelling, so that they need no marks in the header: one that
follows code on its line documents that, any other what comes next. Where a line declares several names, each gets its
comment; a field of froghopper.hpp without one means what the C interface says.

usage: python3 tools/doxygen_filter.py include/froghopper/froghopper.h
"""
import re
import sys

COMMENT = r"/\*(?:.|\n)*?\*/|//[^\n]*"
FIELDS = re.compile(rf"^(  (?:const )?[\w:]+\*? )((?:\*?\w+(?: = [\w:()]+|\{{\}})?(?:, )?)+);(?: *({COMMENT}))?$",
                    re.MULTILINE)


def apart(cpp):
    """Of FIELDS: a line for each name."""
    def lines(match):
        kind, names, comment = match.groups()
        comment = comment or ("// As in froghopper.h." if cpp else "")
        return "\n".join(f"{kind}{name}; {comment}".rstrip() for name in names.split(", "))
    return lines


def marked(line):
    match = re.match(r"(.*?)(/\*|//)(?![*/<!])(.*)", line)
    if match is None or re.match(r" *#(?!define)", line): return line
    code, mark, rest = match.groups()
    return code + {"/*": "/**", "//": "///"}[mark] + ("<" if code.strip() else "") + rest


def filtered(text, cpp):
    # The first comment is about the file, and laid out by hand; its licence line is no documentation.
    text = re.sub(r"\A/\* SPDX[^\n]*\n \*\n((?:(?! \*/).*\n)*)", r"/** @file\n@verbatim\n\1@endverbatim\n", text)
    text = re.sub(r"\A// SPDX[^\n]*\n((?://.*\n)*)", r"// @file\n// @verbatim\n\1// @endverbatim\n", text)
    return "\n".join(map(marked, FIELDS.sub(apart(cpp), text).split("\n")))


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file: print(filtered(file.read(), sys.argv[1].endswith(".hpp")), end="")
