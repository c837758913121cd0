# SPDX-License-Identifier: Apache-2.0
"""Fails when a kernel spills inside its inner loop: spills.py NVDISASM FILE_OR_FOLDER...

The inner loops are the innermost ones with wgmma, that is HGMMA or QGMMA. Their main path has no load or store of local
memory (LDL, STL). The rare path, which computes a tile's scores again, may spill.
It is recognised by two things together: it holds HMMA, the instruction for one warp, and a path through the loop goes
around it. Instructions that both paths use (LDSM) tell nothing. Kernels whose header says that they spill nothing are
not looked at.

The address of a global variable counts as a spill: what is read there is a constant that the compiler took for a
variable, such as a field of a template argument that a member function reads.
"""
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

HEADER_BYTES = 128  # of a kernel file; see src/runtime/kernel_file.cpp
SPILLS_AT = 40 + 8  # of its two int32: bytes of spill stores and loads

INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]+)\*/\s+(?:@!?U?P\w+ )?\s*([A-Z][\w.]*)(.*)")
ADDRESSES = "c[0x4]"  # the bank of constants that holds the addresses of global variables
LABEL = re.compile(r"^(\.L_x_\d+):")
TARGET = re.compile(r"`\((\.L_x_\d+)\)")


class Block:
    def __init__(self, label):
        self.label, self.opcodes, self.spills, self.next = label, [], [], []

    def has(self, *names):
        return any(op.split(".")[0] in names for op in self.opcodes)

    def multiplies(self):
        return self.has("HGMMA", "QGMMA")  # of 2-byte types, of 8-bit types


def blocks_of(sass):
    """Basic blocks in order of address; a block ends at a label or after a branch."""
    blocks, block, ended = [], Block("entry"), False
    for line in sass.splitlines():
        if match := LABEL.match(line):
            blocks.append(block)
            block, ended = Block(match[1]), False
        elif match := INSTRUCTION.match(line):
            if ended:
                blocks.append(block)
                block, ended = Block(None), False
            address, opcode, rest = match.groups()
            block.opcodes.append(opcode)
            name = opcode.split(".")[0]
            if name in ("LDL", "STL") or name == "LDC" and ADDRESSES in rest:
                block.spills.append(f"{address} {opcode}{rest.split('(*')[0].rstrip()}")
            if name in ("BRA", "EXIT"):
                target = TARGET.search(rest)[1] if name == "BRA" else None
                block.next.append((target, "@" in line or opcode != name or "P" in rest.split("`")[0]))
                ended = True
    blocks.append(block)
    at = {block.label: i for i, block in enumerate(blocks)}
    for i, block in enumerate(blocks):
        edges = {at[target] for target, _ in block.next if target is not None}
        if i + 1 < len(blocks) and all(predicated for _, predicated in block.next):
            edges.add(i + 1)  # it falls through
        block.next = sorted(edges)
    return blocks


def reach(starts, edges, inside):
    """What can be reached from `starts` by `edges` within `inside`, the starts among it."""
    seen, todo = set(), [s for s in starts if s in inside]
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += [n for n in edges[node] if n in inside]
    return seen


def dominators(forward):
    """Of every block that the first one leads to: the blocks that are on all paths to it."""
    order = sorted(reach([0], forward, set(forward)))
    before = {i: [p for p in order if i in forward[p]] for i in order}
    dominate = {i: set(order) for i in order}
    dominate[0] = {0}
    changed = True
    while changed:
        changed = False
        for i in order[1:]:
            new = {i} | set.intersection(*(dominate[p] for p in before[i]))
            changed |= new != dominate[i]
            dominate[i] = new
    return dominate


def inner_loops(blocks):
    """(header, ends, members) of the innermost loops with wgmma; an edge to a dominating block closes a loop."""
    forward = {i: block.next for i, block in enumerate(blocks)}
    back = {i: [] for i in forward}
    for i, targets in forward.items():
        for target in targets:
            back[target].append(i)
    ends = {}
    for i, dominate in dominators(forward).items():
        for header in dominate & set(forward[i]):
            ends.setdefault(header, []).append(i)
    loops = [(h, e, reach(e, back, set(forward) - {h}) | {h}) for h, e in ends.items()]
    loops = [loop for loop in loops if any(blocks[m].multiplies() for m in loop[2])]
    return [loop for loop in loops if not any(other[2] < loop[2] for other in loops)], forward, back


def main_path(blocks, loop, forward, back):
    """The members of a loop that may not spill: all but the rare path; every wgmma is on the paths around it."""
    header, ends, members = loop

    def on_ways_around(avoided):
        rest = members - avoided
        return reach([header], forward, rest) & reach(ends, back, rest)

    rare = {m for m in members if blocks[m].has("HMMA") and on_ways_around({m})}
    main = on_ways_around(rare)
    # Several blocks, each of which can be avoided, but not all at once: then none of them is rare.
    return main if all(m in main for m in members if blocks[m].multiplies()) else members


def spills_in_inner_loops(sass):
    blocks = blocks_of(sass)
    loops, forward, back = inner_loops(blocks)
    found = [spill for loop in loops for m in sorted(main_path(blocks, loop, forward, back))
             for spill in blocks[m].spills]
    return len(loops), found


def disassemble(nvdisasm, cubin):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([nvdisasm, "-c", file.name], check=True, capture_output=True, text=True).stdout


def main():
    nvdisasm, places = sys.argv[1], [pathlib.Path(p) for p in sys.argv[2:]]
    files = [f for p in places for f in (sorted(p.glob("*.kernel")) if p.is_dir() else [p])]
    looked_at, bad = 0, 0
    for file in files:
        data = file.read_bytes()
        if not any(struct.unpack_from("<2i", data, SPILLS_AT)):
            continue
        looked_at += 1
        loops, found = spills_in_inner_loops(disassemble(nvdisasm, data[HEADER_BYTES:]))
        where = f"{file.parent.name}/{file.stem}"
        if loops == 0:
            print(f"{where}: no loop with wgmma was found; is this still how the kernel looks?")
        for spill in found:
            print(f"{where}: a spill in the inner loop at {spill}")
        bad += loops == 0 or bool(found)
    print(f"{len(files)} kernels, {looked_at} of them spill something, {bad} in the inner loop")
    return 1 if bad or not files else 0


if __name__ == "__main__":
    sys.exit(main())
