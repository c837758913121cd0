# SPDX-License-Identifier: Apache-2.0
"""Structs, enumerators and functions of a C header as ctypes, so that no script repeats them by hand.

Understands the style of include/froghopper/froghopper.h and no more: structs and enums as `typedef struct NAME {...}
NAME;`, fields of numbers, pointers, enums and structs that came before, prototypes that begin with FH_API. What it does
not understand it refuses, with its line.
"""
import ctypes
import re

NUMBERS = {"int": ctypes.c_int, "float": ctypes.c_float, "double": ctypes.c_double, "size_t": ctypes.c_size_t,
           "int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32, "int64_t": ctypes.c_int64,
           "uint64_t": ctypes.c_uint64}


class Header:
    """structs: name -> [(field, type)]; enumerators: name -> number; functions: name -> (result, [argument types])."""

    def __init__(self, text):
        text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)
        self.types, self.enumerators, self.structs, self.functions = dict(NUMBERS), {}, {}, {}
        for kind, name, body in re.findall(r"typedef (enum|struct) (\w+) \{(.*?)\} \2;", text, re.DOTALL):
            if kind == "enum":
                self.types[name] = ctypes.c_int
                self._enumerate(body)
            else:
                self.structs[name] = [field for line in statements(body, ";") for field in self._fields(line)]
                self.types[name] = type(name, (ctypes.Structure,), {"_fields_": self.structs[name]})
        for name in re.findall(r"typedef [^;{}]*\(\*(\w+)\)\(", text):  # pointers to functions
            self.types[name] = ctypes.c_void_p
        for declaration in statements(text, ";"):
            if prototype := re.search(r"\bFH_API (.*?)(\w+)\((.*)\)$", declaration):
                result, name, arguments = prototype.groups()
                arguments = [] if arguments == "void" else statements(arguments, ",")
                self.functions[name] = (self._type(result), [self._type(re.sub(r"\w+$", "", a)) for a in arguments])

    def _enumerate(self, body):
        following = 0
        for line in statements(body, ","):
            name, _, value = (part.strip() for part in line.partition("="))
            self.enumerators[name] = int(value, 0) if value else following
            following = self.enumerators[name] + 1

    def _fields(self, line):
        """[(name, type)] of a declaration: "int64_t a, b" has two."""
        declaration = re.fullmatch(r"((?:const )?\w+ ?\*?) ?(\w+(?:, \w+)*)", line)
        if declaration is None or ("*" in line and "," in line):
            raise ValueError(f"c_header.py does not understand the field \"{line}\"")
        kind = self._type(declaration[1])
        return [(name, kind) for name in declaration[2].split(", ")]

    def _type(self, written):
        """The type that is written so; None for void."""
        plain = written.replace("const ", "").strip()
        if plain.endswith("*"): return ctypes.c_char_p if plain == "char*" and "const" in written else ctypes.c_void_p
        if plain == "void": return None
        if plain not in self.types: raise ValueError(f"c_header.py does not understand the type \"{written.strip()}\"")
        return self.types[plain]


def statements(text, end):
    """What is between the ends, each on one line with single blanks."""
    return [" ".join(part.split()) for part in text.split(end) if part.strip()]
