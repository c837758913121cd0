# SPDX-License-Identifier: Apache-2.0
"""Writes python/froghopper/_c.py: structs, enumerators and functions of include/froghopper/froghopper.h as ctypes.

usage: python3 tools/gen_python.py      prints the module; tools/check_current.py keeps the file

It understands the style of that header and no more: structs and enums as `typedef struct NAME {...} NAME;`, fields of
numbers, pointers, enums and structs that came before, prototypes that begin with FH_API. What it does not understand
it refuses, with its line. FH_BF16 of fh_dtype becomes Dtype.BF16, fh_problem becomes Problem; functions keep their
names.
"""
import re

import check_version
import tree

HEADER = "include/froghopper/froghopper.h"
NUMBERS = {"int": "c_int", "float": "c_float", "double": "c_double", "size_t": "c_size_t", "int32_t": "c_int32",
           "uint32_t": "c_uint32", "int64_t": "c_int64", "uint64_t": "c_uint64"}

OPENING = '''# SPDX-License-Identifier: Apache-2.0
"""The C interface as ctypes: structs, enumerators, types of functions. Nothing is loaded here.

Written by tools/gen_python.py from include/froghopper/froghopper.h, which says what each field means. Do not edit; to
write it again: python3 tools/check_current.py build/froghopper --write
"""
import ctypes
import enum
from typing import Any
'''


class Header:
    """Types are as the header writes them, without names of arguments.

    enums: name -> {enumerator: number}; structs: name -> [(field, type)]; functions: name -> (result, [types]);
    constants: name -> number; opaque: names of pointers to functions, of which no more is known.
    """

    def __init__(self, text):
        text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)
        self.enums, self.structs, self.functions = {}, {}, {}
        self.constants = {name: int(value) for name, value in re.findall(r"#define (\w+) INT64_C\((-?\d+)\)", text)}
        self.opaque = set(re.findall(r"typedef [^;{}]*\(\*(\w+)\)\(", text))
        for kind, name, body in re.findall(r"typedef (enum|struct) (\w+) \{(.*?)\} \2;", text, re.DOTALL):
            if kind == "enum": self.enums[name] = enumerators(body)
            else: self.structs[name] = [field for line in statements(body, ";") for field in self._fields(line)]
        for declaration in statements(text, ";"):
            if prototype := re.search(r"\bFH_API (.*?)(\w+)\((.*)\)$", declaration):
                result, name, arguments = prototype.groups()
                arguments = [] if arguments == "void" else statements(arguments, ",")
                self.functions[name] = (self._type(result), [self._type(re.sub(r"\w+$", "", a)) for a in arguments])

    def _fields(self, line):
        """[(name, type)] of a declaration: "int64_t a, b" has two."""
        declaration = re.fullmatch(r"((?:const )?\w+ ?\*?) ?(\w+(?:, \w+)*)", line)
        if declaration is None or ("*" in line and "," in line):
            raise ValueError(f"gen_python.py does not understand the field \"{line}\"")
        return [(name, self._type(declaration[1])) for name in declaration[2].split(", ")]

    def _type(self, written):
        """The same with single blanks, if it is known."""
        written = " ".join(written.replace("*", " * ").split()).replace(" *", "*")
        plain = written.removeprefix("const ")
        if not (plain.endswith("*") or plain == "void" or plain in NUMBERS or plain in self.enums or
                plain in self.structs or plain in self.opaque):
            raise ValueError(f"gen_python.py does not understand the type \"{written}\"")
        return written


def statements(text, end):
    """What is between the ends, each on one line with single blanks."""
    return [" ".join(part.split()) for part in text.split(end) if part.strip()]


def enumerators(body):
    numbers, following = {}, 0
    for line in statements(body, ","):
        name, _, value = (part.strip() for part in line.partition("="))
        numbers[name] = int(value, 0) if value else following
        following = numbers[name] + 1
    return numbers


def class_name(name):
    """fh_problem -> Problem."""
    return "".join(part.capitalize() for part in name.removeprefix("fh_").split("_"))


def c_type(header, written):
    """The expression for a type of ctypes."""
    plain = written.removeprefix("const ")
    if written == "const char*": return "ctypes.c_char_p"
    if plain == "void": return "None"
    if plain.endswith("*") or plain in header.opaque: return "ctypes.c_void_p"
    if plain in header.structs: return class_name(plain)
    return "ctypes." + ("c_int" if plain in header.enums else NUMBERS[plain])


def python_type(header, written):
    """What a field of that type is when it is read."""
    plain = written.removeprefix("const ")
    if plain in header.structs: return class_name(plain)
    if plain.endswith("*"): return "int | None"
    return "float" if plain in ("float", "double") else "int"


def module(header, version):
    lines = [OPENING, f"VERSION = \"{version}\""]
    lines += [f"{name.removeprefix('FH_')} = {value}" for name, value in header.constants.items()]
    for name, numbers in header.enums.items():
        lines += ["", "", f"class {class_name(name)}(enum.IntEnum):"]
        lines += [f"    {entry.removeprefix('FH_')} = {number}" for entry, number in numbers.items()]
    for name, fields in header.structs.items():
        lines += ["", "", f"class {class_name(name)}(ctypes.Structure):"]
        lines += [f"    {field}: {python_type(header, written)}" for field, written in fields]
        lines += ["    _fields_ = ["]
        lines += [f"        (\"{field}\", {c_type(header, written)})," for field, written in fields] + ["    ]"]
    lines += ["", "", "# name: (type of the result, types of the arguments)",
              "FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {"]
    for name, (result, arguments) in header.functions.items():
        types = ", ".join(c_type(header, argument) for argument in arguments)
        lines += [f"    \"{name}\": ({c_type(header, result)}, [{types}]),"]
    return "\n".join(lines + ["}", ""])


def main():
    text = (tree.ROOT / HEADER).read_text()
    print(module(Header(text), check_version.of_header(text)), end="")


if __name__ == "__main__":
    main()
