#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What Python and the host cost around a kernel: single calls, calls beside plans in C, steps of models, a training.

  bench/python_host.py [calls] [--device cuda] [--json FILE]
  bench/python_host.py plans [--json FILE]
  bench/python_host.py steps [--only 'ViT, 64 images'] [--json FILE]
  bench/python_host.py training [--attention froghopper,sdpa,fa3,eager --fa3bwd libfa3bwd.so] [--json FILE]

calls     What one call of attention costs the host, by every entrance that Python has, beside each framework's own
          attention. The problem is so small that computing it costs next to nothing: 8 rows, 4 heads of 64, causal. A
          call of PyTorch is timed until it returns: without gradients, recording for a backward pass, and with the
          backward pass. All are timed in turns, a figure is that of the fastest round, as other programs on the machine
          only ever add to it; between rounds the GPU is waited for. JAX and NumPy wait for the result, and so does a
          call on the CPU.
plans     What is lost on the way through froghopper.torch: the same problems from Python and by plans of the C library,
          one eager call after the other, in turns. "both" is forward and backward; from Python the latter is called by
          PyTorch's engine. Where a call takes the GPU less time than the host, the host's is what is seen. A GPU alone.
steps     Whole steps of models of transformers, eager, with froghopper's attention and with PyTorch's: what is left of
          a faster kernel where the host has its share. A Llama, a GPT-2, a Gemma 2 and a ViT take training steps
          (forward, backward, no optimizer), a Llama generates with a cache. The weights are random and the same for
          both. Steps are taken in turns; a figure is the median, from the first launch to the end of the GPU's work.
          "kernels" is the time of all of a step's kernels on the GPU, by PyTorch's profiler: the step cannot be
          shorter, and what it is longer is the host's.
training  A Llama of transformers learns on froghopper's attention, on PyTorch's and on transformers' own: the losses of
          every step, and the time of a step. All begin with the same weights and see the same tokens, which are drawn
          by a rule that can be learnt: a token follows from the one before it and from the one eight places before.
          They take their steps in turns. How far the losses may be apart shows in those of two attentions that are not
          ours: they differ by rounding alone too.

What is measured is the package froghopper that Python finds, or else that of this checkout with build/libfroghopper.so;
FROGHOPPER_LIBRARY names another library. Needs PyTorch; calls also show JAX where it is, steps and training need
transformers.
"""
import importlib
import sys

from measure import command

SUITES = {"calls": ("cpu", "host_calls"), "plans": ("cuda", "host_plans"), "steps": ("cuda", "host_steps"),
          "training": ("cuda", "host_training")}  # the default device, and the module


def arguments():
    p = command.parser(__doc__)
    p.add_argument("suite", nargs="?", choices=SUITES, default="calls", help="default calls")
    p.add_argument("--device", choices=("cuda", "cpu"), help="default cpu for calls, cuda for the others")
    p.add_argument("--rounds", type=int, help="default 300 for calls, 9 for plans, 30 for steps")
    p.add_argument("--calls", type=int, default=20, help="calls, plans: calls a round (default 20)")
    p.add_argument("--only", default="", metavar="NAME", help="steps: this model alone")
    p.add_argument("--steps", type=int, default=50, help="training: default 50")
    p.add_argument("--batch", type=int, default=4, help="training: default 4")
    p.add_argument("--tokens", type=int, default=2048, help="training: of a sequence (default 2048)")
    p.add_argument("--layers", type=int, default=4, help="training: default 4")
    p.add_argument("--attention", default="froghopper,sdpa,eager", help="training: names, with commas")
    p.add_argument("--fa3bwd", default="", metavar="LIB.so",
                   help="training: FlashAttention-3's backward, for the name fa3, see bench/measure/gradients.py")
    command.add_json(p, "an entrance, a problem, a model or an attention")
    a = p.parse_args()
    a.device = a.device or SUITES[a.suite][0]
    a.rounds = a.rounds or {"calls": 300, "plans": 9, "steps": 30, "training": 1}[a.suite]
    if a.suite == "plans" and a.device == "cpu": p.error("plans are timed by a GPU's clock; --device cpu has calls")
    return a


def main():
    a = arguments()
    command.need_torch(a.device)
    command.find_froghopper()
    try: suite = importlib.import_module(f"measure.{SUITES[a.suite][1]}")
    except ImportError as missing: sys.exit(f"python_host.py: {a.suite} needs a module that is missing: {missing}")
    return command.end_on_errors(suite.run, a)


if __name__ == "__main__":
    sys.exit(main())
