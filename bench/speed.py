#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Speed: froghopper against other implementations, in turns, on one machine: TFLOP/s, ratios, and JSON lines.

  bench/speed.py                                                          training_fwd against cudnn and fa2
  bench/speed.py --rivals cudnn,fa3 --json bench/results/h200.jsonl --commit 1a2b3c4
  bench/speed.py --only d128 --try section=16MiB --try 'tiles=128x64s4 deferred=8'
  bench/speed.py --suite bench/suites/training_bwd.txt --rivals cudnn,fa3,fa4 --fa3bwd libfa3bwd.so \\
      --layers --errors bench/results/grad_errors/h200.jsonl
  bench/speed.py --device cpu --json bench/results/cpu.jsonl              both passes against PyTorch
  bench/speed.py --device cpu --only 'bwd f32.*causal' --threads 1

Every cell is one A/B group: each contender runs a short burst, in a new order each round, so that all of them meet the
same clock, power and temperature. Its measurements, medians over the rounds, may be divided by each other. On a GPU a
burst is a CUDA graph, so that no time of the host counts; on a CPU it is a loop, and both sides use the same threads
and tensors that are [batch, heads, seq, dim] in memory, which PyTorch likes best. A rival that is not installed is
named and left out. What FLOPs and bytes are counted: bench/measure/work.py.

A backward problem is timed alone, and with --layers also together with its forward. Everybody's gradients are compared
with fp64 once for every kind of problem, and who is wrong is named and not timed (bench/errors.py gradients). Errors of
the forward are those of `froghopper check tests/cases/exactness.txt` and of bench/errors.py forward.

On a CPU that has AMX, PyTorch runs twice, the second time without it, and "AMX gain" says whether PyTorch used it. The
exit status is 1 if a ratio to PyTorch as it is by default is below what the project promises.

Two builds of the library in turns: bench/builds.py. The tables of the documents: bench/report. Needs PyTorch, and for
--device cuda a Hopper GPU.
"""
import sys

from measure import command

# What a device has where the command line says nothing: files of bench/suites, rivals, rounds, milliseconds of a turn.
DEFAULTS = {"cuda": (["training_fwd"], "cudnn,fa2", 7, 8), "cpu": (["cpu_fwd", "cpu_bwd"], "torch", 15, 60)}


def arguments():
    p = command.parser(__doc__)
    p.add_argument("lines", nargs="*", metavar="LINE", help="problem lines instead of a suite")
    command.add_library(p)
    p.add_argument("--suite", action="append", metavar="FILE",
                   help="a file of problem lines, or several (default training_fwd, on a CPU cpu_fwd and cpu_bwd)")
    p.add_argument("--only", default="", metavar="REGEX", help="lines of the suite that match, e.g. 'd128 causal'")
    command.add_device(p)
    command.add_rivals(p, None, "cudnn,fa2, on a CPU torch")
    p.add_argument("--layers", action="store_true", help="also forward and backward together, from 2048 rows")
    p.add_argument("--errors", metavar="FILE.jsonl", help="append one line for everybody's errors of gradients")
    p.add_argument("--error-rows", type=int, default=1024, help="of the problems that they are taken of")
    p.add_argument("--try", action="append", default=[], dest="tries", metavar="HINTS",
                   help="our kernels with hints, e.g. 'tiles=128x64s3 deferred=8': shown, not written to --json")
    p.add_argument("--threads", type=int, help="of both sides, on a CPU (default one a core)")
    p.add_argument("--rounds", type=int, help="turns of every contender (default 7, on a CPU 15)")
    p.add_argument("--ms", type=float, help="length of one turn (default 8, on a CPU 60)")
    p.add_argument("--budget", type=float, default=0, metavar="SECONDS", help="begin no further cell after this time")
    command.add_json(p, "a measurement")
    a = p.parse_args()
    if a.threads and a.device != "cpu": p.error("--threads is for --device cpu; a GPU has none")
    for name, default in zip(("suite", "rivals", "rounds", "ms"), DEFAULTS[a.device]):
        if getattr(a, name) is None: setattr(a, name, default)
    a.suite = [name if name.endswith(".txt") else str(command.BENCH / f"suites/{name}.txt") for name in a.suite]
    return a


def main():
    a = arguments()
    command.need_torch(a.device)
    from measure import speed
    return command.end_on_errors(speed.run, a)


if __name__ == "__main__":
    sys.exit(main())
