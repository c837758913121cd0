# SPDX-License-Identifier: Apache-2.0
"""Compares the machine code of kernels before and after a change that must not alter it, such as a rename.

usage: python3 tools/same_code.py BEFORE AFTER  folders that froghopper_compile --out filled from one list

Prints one line for each kernel that differs or is missing in AFTER, and how many are the same. Exit code 1 if one
differs.
"""
import pathlib
import struct
import sys


def code_of(kernel):
    """The bytes of all .text sections of the cubin in a kernel file; the cubin is an ELF file behind a header."""
    elf = kernel[kernel.index(b"\x7fELF"):]
    table, = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_at = struct.unpack_from("<3H", elf, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    names = elf[sections[names_at][4]:]
    found = {}
    for name, _, _, _, offset, length in sections:
        word = names[name:names.index(b"\0", name)].decode()
        if word.startswith(".text"):
            found[word] = elf[offset:offset + length]
    return found


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    before, after = map(pathlib.Path, sys.argv[1:])
    same = different = 0
    for file in sorted(before.glob("*.kernel")):
        other = after / file.name
        if not other.exists():
            print(f"missing    {file.stem}")
            different += 1
        elif code_of(file.read_bytes()) != code_of(other.read_bytes()):
            print(f"different  {file.stem}")
            different += 1
        else:
            same += 1
    print(f"{same} kernels have the same machine code, {different} have not")
    return 1 if different or not same else 0


if __name__ == "__main__":
    sys.exit(main())
