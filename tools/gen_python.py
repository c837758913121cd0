# SPDX-License-Identifier: Apache-2.0
"""Writes python/froghopper/_c.py: structs, enumerators and functions of include/froghopper/froghopper.h as ctypes; and
_c_parallel.py, the same of include/froghopper/cp.h, which includes the former.

usage: python3 tools/gen_python.py [cp]      prints the module; tools/check_current.py keeps the files

It understands the style of these headers and no more: structs and enums as `typedef struct NAME {...} NAME;`, fields
of numbers, pointers, functions, enums and structs that came before, prototypes that begin with FH_API. What it does not
understand it refuses, with its line. FH_BF16 of fh_dtype becomes Dtype.BF16, fh_problem becomes Problem; functions keep
their names.
"""
import re
import sys

import check_version
import tree

HEADER, CP_HEADER = "include/froghopper/froghopper.h", "include/froghopper/cp.h"
NUMBERS = {"int": "c_int", "float": "c_float", "double": "c_double", "size_t": "c_size_t", "int32_t": "c_int32",
           "uint32_t": "c_uint32", "int64_t": "c_int64", "uint64_t": "c_uint64"}

OPENING = '''# SPDX-License-Identifier: Apache-2.0
"""The C interface as ctypes: structs, enumerators, types of functions. Nothing is loaded here.

Written by tools/gen_python.py from HEADER, which says what each field means. Do not edit; to
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

    def __init__(self, text, included=None):
        """included: the Header that this one includes; its types are known here, and its structs written from there."""
        self.included = included
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
                arguments = [] if arguments.strip() == "void" else statements(arguments, ",")
                self.functions[name] = (self._type(result), [self._type(re.sub(r"\w+$", "", a)) for a in arguments])

    def _fields(self, line):
        """[(name, type)] of a declaration: "int64_t a, b" has two."""
        if function := re.fullmatch(r"[\w* ]+\(\*(\w+)\)\(.*\)", line): return [(function[1], "void*")]
        if addresses := re.fullmatch(r"\w+\* const\* (\w+)", line): return [(addresses[1], "void*")]
        if pointers := re.fullmatch(r"((?:const )?\w+) (\*\w+(?:, \*\w+)+)", line):
            return [(name, self._type(pointers[1] + "*")) for name in pointers[2].replace("*", "").split(", ")]
        declaration = re.fullmatch(r"((?:const )?\w+ ?\*?) ?(\w+(?:, \w+)*)", line)
        if declaration is None or ("*" in line and "," in line):
            raise ValueError(f"gen_python.py does not understand the field \"{line}\"")
        return [(name, self._type(declaration[1])) for name in declaration[2].split(", ")]

    def _type(self, written):
        """The same with single blanks, if it is known."""
        written = " ".join(written.replace("*", " * ").split()).replace(" *", "*")
        plain = written.removeprefix("const ")
        if not (plain.endswith("*") or plain == "void" or plain in NUMBERS or self.knows(plain)):
            raise ValueError(f"gen_python.py does not understand the type \"{written}\"")
        return written

    def knows(self, name):
        here = name in self.enums or name in self.structs or name in self.opaque
        return here or (self.included is not None and self.included.knows(name))

    def is_enum(self, name): return name in self.enums or (self.included is not None and self.included.is_enum(name))

    def struct_name(self, name):
        """The class of a struct, None for what is none."""
        if name in self.structs: return class_name(name)
        if self.included is not None and name in self.included.structs: return "_c." + class_name(name)
        return None


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
    if struct := header.struct_name(plain): return struct
    if header.is_enum(plain): return "ctypes.c_int"
    return "ctypes." + NUMBERS.get(plain, "c_void_p")  # a pointer, maybe to a function


def python_type(header, written):
    """What a field of that type is when it is read."""
    plain = written.removeprefix("const ")
    if struct := header.struct_name(plain): return struct
    if plain.endswith("*") or not (plain in NUMBERS or header.is_enum(plain)): return "int | None"
    return "float" if plain in ("float", "double") else "int"


def module(header, version=None, name=HEADER):
    lines = [OPENING.replace("HEADER", name)]
    if header.included is not None: lines += ["from froghopper import _c"]
    if version is not None: lines += [f"VERSION = \"{version}\""]
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


def main(of=""):
    text = (tree.ROOT / HEADER).read_text()
    if not of: print(module(Header(text), check_version.of_header(text)), end="")
    else: print(module(Header((tree.ROOT / CP_HEADER).read_text(), Header(text)), name=CP_HEADER), end="")


if __name__ == "__main__":
    main(*sys.argv[1:])
