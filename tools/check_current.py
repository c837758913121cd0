# SPDX-License-Identifier: Apache-2.0
"""Text that a program writes and git keeps must be what it writes today, and what documents name must be there.

usage: python3 tools/check_current.py PROGRAM [--write]

PROGRAM is the built froghopper, libfroghopper.so beside it; --write brings the files up to date. A name in backticks
must be in some file that is no document, and one that is followed by a file, as in "`item_at`, contract/order.h", in
that file. A file that is named with its folder must be there.
"""
import difflib
import pathlib
import re
import subprocess
import sys

import tree


SUPPORT = """# What computes what

Written by `froghopper info --support-table` from the answers of the library itself; do not edit.

"""

OPTIONS = """# Options

Written by `froghopper info --options` from the table that the library goes through, src/problem/option_table.cpp; do
not edit. An option is a field of `fh_problem`, and of `froghopper::Problem` in C++. In a problem line
([names.md](names.md)) N is a whole number, X any number, L and R those of a window. Then come the arguments of the
Python functions `froghopper.attention` and its gradients, `froghopper.torch.attention` and `froghopper.jax.attention`;
and of `quantise` in the same three packages. Where such a cell is empty, the arrays say it, or the
function does not have it.

"""

TENSORS = """# Tensors

Written by `froghopper info --tensors` from the table that the library goes through, src/problem/table.cpp; do not edit.
A tensor is a field of `fh_tensors`; one that a table does not have is NULL there. Where several shapes or types are
given, the first one is that of a problem without the options that follow. Lists without strides are dense. "only with"
says what of a problem asks for a tensor; where it is empty, every problem of the operation has it.

"""


def makers(program):
    """File that is kept: what it begins with, the command whose standard output follows."""
    return {
        "device/ptx/wgmma_generated.cuh": ("", [sys.executable, "tools/gen_wgmma.py"]),
        "python/froghopper/_c.py": ("", [sys.executable, "tools/gen_python.py"]),
        "python/froghopper/_c_parallel.py": ("", [sys.executable, "tools/gen_python.py", "cp"]),
        "packaging/completion/froghopper.bash": ("", [sys.executable, "tools/gen_completion.py", program, "bash"]),
        "packaging/completion/_froghopper": ("", [sys.executable, "tools/gen_completion.py", program, "zsh"]),
        "docs/support.md": (SUPPORT, [program, "info", "--support-table"]),
        "docs/options.md": (OPTIONS, [program, "info", "--options"]),
        "docs/tensors.md": (TENSORS, [program, "info", "--tensors"]),
        "docs/python-support.md": ("", [sys.executable, "tools/python_support.py",
                                        str(pathlib.Path(program).resolve().parent / "libfroghopper.so")]),
        "docs/15-context-parallel-scale.md": ("", [sys.executable, "tools/context_parallel_plan.py",
                                                   str(pathlib.Path(program).resolve().parent / "libfroghopper.so")]),
    }


NAME = re.compile(r"`([A-Za-z_][\w.:]*)(?:\(\))?`")
PLACED = re.compile(r"`([A-Za-z_][\w.:]*)(?:\(\))?`(?:,| \()\s*((?:\w+/)+\w+\.\w+)")
FILE = re.compile(r"(?<![\w/.\-])((?:[\w-]+/)+[\w-]+\.(?:cpp|hpp|h|cuh|c|py|md|txt|cmake))\b")
OTHERS = ("stall_",)  # what names of other programs begin with: Nsight Compute's columns


def words_of(text): return set(re.findall(r"[A-Za-z_]\w*", text))


def is_there(word, words):
    """A word that begins with an underscore stands for all that end so: `_bytes`."""
    return word in words or word.startswith(OTHERS) or (word[0] == "_" and any(w.endswith(word) for w in words))


def stale_names(texts):
    """texts: {path: text} of the tree. What documents name and nothing has."""
    documents = {path: text for path, text in texts.items() if re.fullmatch(r"(docs/.*|README|CONTRIBUTING)\.md", path)}
    words = set().union(*(words_of(text) for path, text in texts.items() if not path.endswith(".md")))
    folders = {path.split("/")[0] for path in texts if "/" in path}
    for path, text in documents.items():
        for file in FILE.finditer(text):
            if file[1] not in texts and file[1].split("/")[0] in folders:
                yield f"{path}:{text.count(chr(10), 0, file.start()) + 1}: {file[1]} is not there"
        for name in NAME.finditer(text):
            at = f"{path}:{text.count(chr(10), 0, name.start()) + 1}"
            its, placed = words_of(name[1]), PLACED.match(text, name.start())
            if missing := [word for word in sorted(its) if not is_there(word, words)]:
                yield f"{at}: `{name[1]}` is nowhere but in documents: no {', '.join(missing)}"
            elif placed and not its <= words_of(texts.get(placed[2], "")):
                yield f"{at}: `{name[1]}` is not in {placed[2]}"


def main():
    program, write = sys.argv[1], "--write" in sys.argv
    stale = 0
    for name, (opening, command) in makers(program).items():
        fresh = opening + subprocess.run(command, cwd=tree.ROOT, check=True, capture_output=True, text=True).stdout
        file = tree.ROOT / name
        kept = file.read_text() if file.exists() else ""
        if write:
            file.write_text(fresh)
        elif fresh != kept:
            stale += 1
            difference = difflib.unified_diff(kept.splitlines(), fresh.splitlines(), name, "now", lineterm="", n=1)
            print("\n".join(list(difference)[:20]))
            print(f"{name} is not what {' '.join(command)} writes.")
            print(f"To write it: python3 tools/check_current.py {program} --write")
    texts = {path.as_posix(): tree.text(path) for path in tree.files()}
    names = list(stale_names({path: text for path, text in texts.items() if text is not None}))
    print("\n".join(names), end="\n" if names else "")
    return 1 if stale or names else 0


if __name__ == "__main__":
    sys.exit(main())
