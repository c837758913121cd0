#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Energy of a call: long problems are bound by the card's power, and there a joule saved is time saved.

  bench/energy.py [LINE ...] [--rivals cudnn,fa3] [--fa3bwd LIB.so] [--json FILE.jsonl]

Each contender runs for some seconds in turns with the others, from a CUDA graph; NVML's counter of the whole card's
energy is read before and after, so memory and leakage are in the figure. That counter moves every 20 to 100 ms, so less
than a second says little. pJ/FLOP is energy over the FLOPs of bench/measure/work.py. Needs PyTorch, pynvml and a GPU.
"""
import sys

from measure import command

LINES = ["fwd bf16 b1 hq16 hkv16 sq16384 skv16384 d128", "fwd bf16 b1 hq16 hkv16 sq16384 skv16384 d128 causal",
         "fwd bf16 b1 hq32 hkv32 sq16384 skv16384 d64", "fwd bf16 b1 hq8 hkv8 sq16384 skv16384 d256",
         "fwd e4m3 b1 hq16 hkv16 sq16384 skv16384 d128", "bwd bf16 b1 hq16 hkv16 sq16384 skv16384 d128"]


def main():
    p = command.parser(__doc__)
    p.add_argument("lines", nargs="*", default=LINES, metavar="LINE", help="problem lines instead of some long ones")
    command.add_library(p)
    command.add_rivals(p, "cudnn,fa3")
    p.add_argument("--seconds", type=float, default=1.0, help="of one turn (default 1)")
    p.add_argument("--rounds", type=int, default=2, help="turns of every contender (default 2)")
    command.add_json(p, "a contender")
    a = p.parse_args()
    command.need_torch("cuda")
    from measure import energy
    return command.end_on_errors(energy.run, a)


if __name__ == "__main__":
    sys.exit(main())
