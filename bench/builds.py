#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several builds of the library in turns, in one process: what a change of a kernel brings.

  bench/builds.py --build before=LIB.so --build after=LIB.so [LINE|SUITE ...] [--hints 'dequantised=0']
  bench/builds.py --build before=LIB.so --build after=LIB.so --device cpu bench/suites/cpu_fwd.txt

Prints microseconds of a call of the first build, its spread and clock, and how many times as fast the others are: all
run in turns, as bench/speed.py says. Builds without presets will do (-DFROGHOPPER_PRESETS=OFF, minutes to make):
kernels that are missing are compiled first, side by side, each in a process of its own. For other libraries there is
bench/speed.py, which also keeps what it measures. Needs PyTorch, and for --device cuda a Hopper GPU.
"""
import pathlib
import sys

from measure import command

LINES = [f"bwd bf16 b{16384 // rows} hq16 hkv16 sq{rows} skv{rows} d128{mask}" for mask in ("", " causal")
         for rows in (512, 1024, 4096, 16384)]


def arguments():
    p = command.parser(__doc__)
    p.add_argument("lines", nargs="*", default=LINES, metavar="LINE|SUITE", help="problem lines and files of them")
    p.add_argument("--build", action="append", required=True, dest="builds", metavar="NAME=LIB.so",
                   help="one of them; the first is what the others are compared with")
    p.add_argument("--hints", default="", help="of all builds but the first, e.g. 'dequantised=0'")
    p.add_argument("--presets", action="store_true", help="no build lacks kernels: compile none first")
    command.add_device(p)
    p.add_argument("--rounds", type=int, default=9, help="turns of every build (default 9)")
    p.add_argument("--ms", type=float, default=6, help="length of one turn (default 6)")
    p.add_argument("--budget", type=float, default=0, metavar="SECONDS", help="begin no further line after this time")
    a = p.parse_args()
    for text in a.builds:
        if "=" not in text: p.error(f"--build is {text}; it is NAME=LIB.so, such as before=build/libfroghopper.so")
    a.lines = [line for what in a.lines
               for line in (command.read_suite(what) if pathlib.Path(what).is_file() else [what])]
    return a


def main():
    if sys.argv[1:2] == ["compile"]:  # which bench/measure/builds.py calls, a process for each kernel
        from measure import builds
        return builds.compile_one(*sys.argv[2:])
    a = arguments()
    command.need_torch(a.device)
    from measure import builds
    return command.end_on_errors(builds.run, a)


if __name__ == "__main__":
    sys.exit(main())
