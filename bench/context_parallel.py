#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Context parallelism on the GPUs of one host, under torchrun: whether it is right, and how long it takes beside one
GPU and PyTorch's own context_parallel.

  torchrun --nproc-per-node 4 bench/context_parallel.py [check] [decode] [speed] [--json FILE]

check   o and gradients of every scheme beside fp64, at odd lengths: their error may be 1.1 times that of one GPU, and
        deterministic gradients are the same bits in two runs.
decode  The same of decoding with a cache that the ranks share, by NCCL and captured into a CUDA graph; then
        microseconds of a replay.
speed   Milliseconds of the slowest rank, forward, and forward with backward: of a call among others in a row, as the
        layers of a model call, and of one that is waited for. The share of linear is one GPU's time in the same run,
        divided by the ranks and by the first of the two. PyTorch's context_parallel has cuDNN's attention below it.

What is measured is the package froghopper that Python finds, or else that of this checkout with build/libfroghopper.so;
FROGHOPPER_LIBRARY names another library, beside which libfroghopper-cp.so lies.
"""
import os
import sys

from measure import command


def main():
    p = command.parser(__doc__)
    p.add_argument("parts", nargs="*", help="check, decode, speed; default all")
    p.add_argument("--rounds", type=int, default=5, help="default 5")
    p.add_argument("--cases", type=int, help="speed: only so many cases, the first ones")
    p.add_argument("--only", default="", metavar="TEXT", help="speed: cases whose problem has it, as window or varlen")
    p.add_argument("--long", action="store_true", help="speed: also 512k tokens, a minute more")
    p.add_argument("--no-rivals", dest="rivals", action="store_false", help="speed: froghopper alone")
    command.add_json(p, "a problem, a pass and a scheme")
    a = p.parse_args()
    a.parts = a.parts or ["check", "decode", "speed"]
    if unknown := set(a.parts) - {"check", "decode", "speed"}:
        p.error(f"no part is called {unknown.pop()}: check, decode or speed")
    if "LOCAL_RANK" not in os.environ: p.error("each GPU has a process. Run it under torchrun, as --help shows")
    command.need_torch("cuda")
    command.find_froghopper()
    from measure import parallel
    return command.end_on_errors(parallel.run, a)


if __name__ == "__main__": sys.exit(main())
