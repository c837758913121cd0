#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is lost on the way through froghopper.torch: the same problems from Python and by plans of the C library, one
eager call after the other, in turns.

  FROGHOPPER_LIBRARY=build/libfroghopper.so PYTHONPATH=python python3 bench/python_speed.py [--json FILE]

"both" is forward and backward; from Python the latter is called by PyTorch's engine. Where a call takes the GPU less
time than the host, the host's is what is seen.
"""
import argparse
import json
import statistics

import torch

import froghopper_ctypes  # puts python/ on the path
from froghopper.torch import attention
from froghopper._library import library

PROBLEMS = [(8, 512, 16, 128), (4, 1024, 16, 128), (1, 2048, 16, 128), (1, 4096, 16, 128), (4, 4096, 16, 128),
            (1, 4096, 8, 256)]  # batch, rows and keys, heads, columns


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--calls", type=int, default=20, help="calls a round")
    p.add_argument("--json", help="append the figures there, one line a problem")
    a = p.parse_args()
    for batch, rows, heads, dim in PROBLEMS:
        line = f"bf16 b{batch} hq{heads} hkv{heads} sq{rows} skv{rows} d{dim} causal"
        us = medians(runs(line, batch, rows, heads, dim), a.rounds, a.calls)
        ratios = (f"{name} {us['Python ' + name] / us['C ' + name]:.3f}" for name in ("forward", "both"))
        print(f"{line}: " + ", ".join(f"{name} {time:.0f} us" for name, time in us.items()), "; Python / C", *ratios,
              flush=True)
        if a.json:
            with open(a.json, "a") as file:
                file.write(json.dumps(dict(problem=line, us=us, gpu=torch.cuda.get_device_name(),
                                           torch=torch.__version__)) + "\n")


def runs(line, batch, rows, heads, dim):
    """name -> what is timed."""
    q, k, v, grad_o = (torch.randn(batch, rows, heads, dim, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    o, lse = torch.empty_like(q), torch.empty(batch, heads, rows, device="cuda")
    grads = dict(zip(("grad_q", "grad_k", "grad_v"), (torch.empty_like(x) for x in (q, k, v))))
    stream = torch.cuda.current_stream().cuda_stream

    def planned(of, **more):
        plan = froghopper_ctypes.Plan(library().problem(of + line), "hopper", library())
        workspace = torch.empty(max(256, plan.workspace_bytes), dtype=torch.uint8, device="cuda")
        held = froghopper_ctypes.tensors(q, k, v, o, lse, **more)
        return lambda: plan.run(held, workspace.data_ptr(), workspace.numel(), stream)
    forward, backward = planned("fwd "), planned("bwd ", grad_o=grad_o, **grads)

    def both():
        forward()
        backward()
    return {"C forward": forward, "Python forward": lambda: attention(q, k, v, causal=True), "C both": both,
            "Python both": lambda: torch.autograd.grad(attention(*leaves, causal=True), leaves, grad_o)}


def medians(calls, rounds, count):
    """name -> microseconds a call."""
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(count): call()
            end.record()
            torch.cuda.synchronize()
            times[name].append(begin.elapsed_time(end) / count * 1000)
    return {name: statistics.median(each) for name, each in times.items()}


if __name__ == "__main__": main()
