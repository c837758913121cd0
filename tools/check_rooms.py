# SPDX-License-Identifier: Apache-2.0
"""Every source file lives in a room. A room includes rooms below it and has its own words: a foreign one is an error.

usage: python3 tools/check_rooms.py      prints what is wrong, exit code 1 if anything is
"""
import re
import sys

import tree

CUDA = r"cu[A-Z]\w+|CU[a-z]\w+|CUDA_\w+|nvrtc\w+|NVRTC_\w+|cuda[A-Z]\w+"
MANNERS = r"printf|fprintf|vprintf|puts|fputs|putchar|cout|cerr|clog|exit|_exit|quick_exit|abort|terminate|throw"
PLANNING = r"(?i:streams?|modules?|tensor_?maps?|tma_?maps?)"

# room: rooms it may include, other headers (the beginning of what stands in <>; "std" for C and C++), words it may
# not say outside comments and strings. A longer room's name wins over a shorter one.
ROOMS = {
    "contract": (["contract"], [], rf"asm|std|{CUDA}"),
    "device/ptx": (["device/ptx"], [], rf"std|tile|heads?|seq\w*|softmax|causal|mask|{CUDA}"),
    "device/tile": (["device/ptx", "device/tile"], [], rf"asm|std|heads?|seq\w*|softmax|causal|mask|batch|{CUDA}"),
    "device/fwd": (["contract", "device/ptx", "device/tile", "device/fwd"], [], rf"asm|std|{CUDA}"),
    "include": ([], ["std", "froghopper/"], rf"{CUDA}|printf|cout|cerr|exit|abort"),
    "src/base": (["contract", "src/base"], ["std", "froghopper/", "fmt/"], rf"asm|{CUDA}|{MANNERS}"),
    "src/problem": (["contract", "src/base", "src/problem"], ["std", "froghopper/"], rf"asm|{CUDA}|{MANNERS}"),
    "src/plan": (["contract", "src/base", "src/problem", "src/plan"], ["std", "froghopper/"],
                 rf"asm|{CUDA}|{PLANNING}|{MANNERS}"),
    "src/oracle": (["contract", "src/base", "src/problem", "src/oracle"], ["std", "froghopper/"],
                   rf"asm|{CUDA}|{MANNERS}|tile"),
    "src/cpu": (["contract", "src/base", "src/problem", "src/cpu"], ["std", "froghopper/", "hwy/", "immintrin"],
                rf"{CUDA}|{MANNERS}"),
    "src/runtime": (["contract", "src/base", "src/problem", "src/plan", "src/runtime"],
                    ["std", "froghopper/", "cuda.h", "nvrtc.h"], rf"asm|{MANNERS}|cuda[A-Z]\w+"),
    "src/api": (["contract", "src/base", "src/problem", "src/plan", "src/cpu", "src/runtime", "src/api"],
                ["std", "froghopper/"], rf"asm|{CUDA}|{MANNERS}"),
    "files": (["contract", "src/base", "files"], ["std", "froghopper/", "nlohmann/"], rf"asm|{CUDA}|{MANNERS}"),
    "check": (["contract", "src/base", "src/problem", "src/plan", "src/oracle", "src/cpu", "src/runtime", "src/api",
               "check"], ["std", "froghopper/", "nlohmann/"], rf"asm|{CUDA}|{MANNERS}"),
    "check/gpu": (["contract", "src/base", "src/runtime", "check/gpu"], ["std", "froghopper/", "cuda.h"],
                  rf"asm|{MANNERS}|cuda[A-Z]\w+"),
    "cli": (["contract", "src", "check", "files", "cli"], ["std", "froghopper/", "CLI/", "nlohmann/", "fmt/"],
            rf"asm|{CUDA}"),
    "examples": ([], ["std", "froghopper/"], rf"{CUDA}"),
    "bench": (["contract", "src", "check", "cli", "bench"], ["std", "froghopper/", "nlohmann/", "fmt/"], r"asm"),
    "tests": (["contract", "device", "src", "check", "files", "cli", "tests"],
              ["std", "froghopper/", "gtest/", "gmock/", "nlohmann/", "fmt/", "cuda.h"], r"asm"),
    "tools": (["contract", "src", "tools"], ["std", "froghopper/", "fmt/", "nvrtc.h"], r"asm"),
}
SYSTEM = r"[a-z0-9_]+(\.h)?|sys/[a-z]+\.h"  # what "std" stands for: <vector>, <math.h>, <unistd.h>, <sys/stat.h>
THIRD_PARTY_IN_ONE_WORD = {"cuda.h", "nvrtc.h", "immintrin.h"}
SOURCES = {".h", ".hpp", ".cpp", ".c", ".cuh", ".cu"}


def room_of(path):
    names = [room for room in ROOMS if path.as_posix().startswith(room + "/")]
    return max(names, key=len) if names else None


def without_comments_and_strings(source):
    """The same lines, with blanks where comments and the insides of strings were."""
    pattern = r'R"(\w*)\((?:.|\n)*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|//[^\n]*|/\*(?:.|\n)*?\*/'
    return re.sub(pattern, lambda found: re.sub(r"[^\n]", " ", found[0]), source)


def include_problem(room, line):
    may, headers, _ = ROOMS[room]
    if quoted := re.match(r'\s*#\s*include\s+"([^"]+)"', line):
        folder = quoted[1].rpartition("/")[0]
        if any(folder == name or folder.startswith(name + "/") for name in may):
            return None
        if any(quoted[1].startswith(header) for header in headers if header != "std"):
            return None
        return f'{room} may not include "{quoted[1]}"; from here: {", ".join(may) or "no room"}'
    if angled := re.match(r"\s*#\s*include\s+<([^>]+)>", line):
        name = angled[1]
        if any(name.startswith(header) for header in headers if header != "std"):
            return None
        if "std" in headers and name not in THIRD_PARTY_IN_ONE_WORD and re.fullmatch(SYSTEM, name):
            return None
        return f'{room} may not include <{name}>; from here: {", ".join(headers) or "nothing"}'
    return None


def problems_of(path, source):
    room = room_of(path)
    if room is None:
        yield 1, f"no room has this file; rooms are {', '.join(ROOMS)}"
        return
    words = re.compile(rf"\b({ROOMS[room][2]})\b")
    plain = without_comments_and_strings(source).splitlines()
    for number, (line, code) in enumerate(zip(source.splitlines(), plain), 1):
        if code.lstrip().startswith("#") and "include" in code:
            if problem := include_problem(room, line):
                yield number, problem
        elif found := words.search(code):
            yield number, f"the word '{found[0]}' does not belong in {room}"


def main():
    bad = []
    for path in tree.files():
        if path.suffix in SOURCES:
            bad += [f"{path}:{number}: {problem}" for number, problem in problems_of(path, tree.text(path) or "")]
    print("\n".join(bad) or "rooms: ok")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
