# SPDX-License-Identifier: Apache-2.0
"""Every source file lives in a room. A room includes rooms below it and has its own words: a foreign one is an error.

usage: python3 tools/check_rooms.py      prints what is wrong, exit code 1 if anything is
"""
import re
import sys

import tree

CUDA = r"cu[A-Z]\w+|CU[a-z]\w+|CUDA_\w+|nvrtc\w+|NVRTC_\w+|cuda[A-Z]\w+"
MANNERS = (r"printf|fprintf|vprintf|vfprintf|dprintf|puts|fputs|putchar|putc|fputc|perror|stdout|stderr|cout|cerr|clog|"
           r"exit|_exit|_Exit|quick_exit|abort|terminate|__builtin_trap|throw|rethrow_exception")
LAUNCHING = r"cu(Mem|Array)(Alloc|Create)\w*|cu\w*Synchronize\w*"  # a run allocates nothing on a GPU and waits for none
PLANNING = r"(?i:streams?|modules?|tensor_?maps?|tma_?maps?)"

# room: rooms it may include, other headers (the beginning of what is in <>; "std" for C and C++), words it may
# not say outside comments and strings. A longer room's name wins over a shorter one.
ROOMS = {
    "contract": (["contract"], [], rf"asm|std|{CUDA}"),
    "device/ptx": (["device/ptx"], [], rf"std|tile|heads?|seq\w*|softmax|causal|mask|{CUDA}"),
    "device/tile": (["device/ptx", "device/tile"], [], rf"asm|std|heads?|seq\w*|softmax|causal|mask|batch|{CUDA}"),
    "device/attn": (["contract", "device/ptx", "device/tile", "device/attn"], [],
                    rf"asm|std|FwdParams|FwdVariant|{CUDA}"),
    "device/fwd": (["contract", "device/ptx", "device/tile", "device/attn", "device/fwd"], [], rf"asm|std|{CUDA}"),
    "device/bwd": (["contract", "device/ptx", "device/tile", "device/attn", "device/bwd"], [], rf"asm|std|{CUDA}"),
    "device/quantise": (["contract", "device/ptx", "device/tile", "device/attn", "device/quantise"], [],
                        rf"asm|std|{CUDA}"),
    "device/elementwise": (["contract", "device/ptx", "device/attn", "device/elementwise"], [], rf"asm|std|{CUDA}"),
    "device/append": (["contract", "device/ptx", "device/attn", "device/append"], [], rf"asm|std|{CUDA}"),
    "include": ([], ["std", "froghopper/"], rf"{CUDA}|printf|cout|cerr|exit|abort"),
    "src/base": (["contract", "src/base"], ["std", "froghopper/", "fmt/"], rf"asm|{CUDA}|{MANNERS}"),
    "src/problem": (["contract", "src/base", "src/problem"], ["std", "froghopper/"], rf"asm|{CUDA}|{MANNERS}"),
    "src/plan": (["contract", "src/base", "src/problem", "src/plan"], ["std", "froghopper/"],
                 rf"asm|{CUDA}|{PLANNING}|{MANNERS}"),
    "src/oracle": (["contract", "src/base", "src/problem", "src/oracle"], ["std", "froghopper/"],
                   rf"asm|{CUDA}|{MANNERS}|tile"),
    "src/cpu": (["contract", "src/base", "src/problem", "src/cpu"],
                ["std", "froghopper/", "hwy/", "immintrin", "cpuid"],
                rf"{CUDA}|{MANNERS}"),
    "src/runtime": (["contract", "src/base", "src/problem", "src/plan", "src/runtime"],
                    ["std", "froghopper/", "cuda.h", "nvrtc.h", "xxhash.h", "zstd.h"],
                    rf"asm|{MANNERS}|{LAUNCHING}|cuda[A-Z]\w+"),
    "src/api": (["contract", "src/base", "src/problem", "src/plan", "src/cpu", "src/runtime", "src/api"],
                ["std", "froghopper/"], rf"asm|{CUDA}|{MANNERS}"),
    "src/xla": (["src/xla"], ["std", "froghopper/", "xla/ffi/api/c_api.h"], rf"asm|{CUDA}|{MANNERS}"),
    "src/torch": (["src/base", "src/torch"], ["std", "froghopper/"], rf"asm|{CUDA}|{MANNERS}"),
    "src/cp": (["contract", "src/base", "src/cp"], ["std", "froghopper/", "cuda.h", "xxhash.h"],
               rf"asm|{MANNERS}|{LAUNCHING}|cuda[A-Z]\w+"),
    "files": (["contract", "src/base", "files"], ["std", "froghopper/", "nlohmann/"], rf"asm|{CUDA}|{MANNERS}"),
    "check": (["contract", "src/base", "src/problem", "src/plan", "src/oracle", "src/cpu", "src/runtime", "src/api",
               "check"], ["std", "froghopper/", "nlohmann/"], rf"asm|{CUDA}|{MANNERS}"),
    "check/gpu": (["contract", "src/base", "src/runtime", "check/gpu"], ["std", "froghopper/", "cuda.h"],
                  rf"asm|{MANNERS}|cuda[A-Z]\w+"),
    "cli": (["contract", "src", "check", "files", "cli"], ["std", "froghopper/", "CLI/", "nlohmann/", "fmt/"],
            rf"asm|{CUDA}"),
    "examples": ([], ["std", "froghopper/"], rf"{CUDA}"),
    "examples/context_parallel_copies": ([], ["std", "froghopper/", "cuda_runtime_api.h"], r"asm"),
    "examples/gpu": ([], ["std", "froghopper/", "cuda_runtime_api.h"], r"asm"),
    "examples/serve": ([], ["std", "froghopper/", "cuda_runtime_api.h", "nlohmann/", "attention.hpp", "batch.hpp",
                            "device.hpp", "model.hpp", "pool.hpp", "reference.hpp", "scheduler.hpp", "threads.hpp",
                            "weights.hpp"], r"asm"),
    "bench": (["contract", "src", "check", "cli", "bench"], ["std", "froghopper/", "nlohmann/", "fmt/"], r"asm"),
    "tests": (["contract", "device", "src", "check", "files", "cli", "tests"],
              ["std", "froghopper/", "gtest/", "gmock/", "nlohmann/", "fmt/", "cuda.h"], r"asm"),
    "tools": (["contract", "src", "tools"], ["std", "froghopper/", "fmt/", "nvrtc.h", "zstd.h"], r"asm"),
}
# What "std" means: <vector>, <sys/stat.h>, and these of C and POSIX. Any other <name.h> is somebody's library.
C_AND_POSIX = ("assert ctype dirent dlfcn elf errno fcntl fenv float glob inttypes limits link locale math poll "
               "pthread sched setjmp signal spawn stdarg stdatomic stdbool stddef stdint stdio stdlib string threads "
               "time unistd").split()
SYSTEM = rf"[a-z0-9_]+|sys/[a-z]+\.h|({'|'.join(C_AND_POSIX)})\.h"
SOURCES = {".h", ".hpp", ".cpp", ".c", ".cuh", ".cu"}
OTHER_ENDINGS = {".cc", ".cxx", ".hh", ".hxx", ".inc", ".inl", ".ipp", ".tcc"}  # no checker reads them
INCLUDE = re.compile(r"\s*#\s*include(_next)?\b")


def room_of(path):
    names = [room for room in ROOMS if path.as_posix().startswith(room + "/")]
    return max(names, key=len) if names else None


def without_comments_and_strings(source):
    """The same lines, with blanks where comments and the insides of strings were."""
    pattern = r'R"(\w*)\((?:.|\n)*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|//[^\n]*|/\*(?:.|\n)*?\*/'
    return re.sub(pattern, lambda found: re.sub(r"[^\n]", " ", found[0]), source)


def include_problem(room, line):
    may, headers, _ = ROOMS[room]
    if re.search(r'["</]\.\.?/', line):
        return f"an include names its file from the project's folder, without '..'; from here: {', '.join(may)}"
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
        if "std" in headers and re.fullmatch(SYSTEM, name):
            return None
        return f'{room} may not include <{name}>; from here: {", ".join(headers) or "nothing"}'
    return 'an include names its file in "" or <>'


def problems_of(path, source):
    if path.suffix in OTHER_ENDINGS:
        yield 1, f"{path.suffix} is no ending of this project; one of {', '.join(sorted(SOURCES))} is"
        return
    room = room_of(path)
    if room is None:
        yield 1, f"no room has this file; rooms are {', '.join(ROOMS)}"
        return
    words = re.compile(rf"\b(?:__)?({ROOMS[room][2]})(?:__)?\b")  # __asm__ is asm too
    plain = without_comments_and_strings(source).splitlines()
    for number, (line, code) in enumerate(zip(source.splitlines(), plain), 1):
        if INCLUDE.match(code):
            if problem := include_problem(room, line):
                yield number, problem
        elif found := words.search(code):
            yield number, f"the word '{found[0]}' does not belong in {room}"


def main():
    bad = []
    for path in tree.files():
        if path.suffix in SOURCES | OTHER_ENDINGS:
            bad += [f"{path}:{number}: {problem}" for number, problem in problems_of(path, tree.text(path) or "")]
    print("\n".join(bad) or "rooms: ok")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
