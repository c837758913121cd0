# SPDX-License-Identifier: Apache-2.0
"""What bench/python_host.py plans measures: froghopper.torch beside plans of the C library."""
import statistics

import torch

from froghopper._library import library
from froghopper.torch import attention

from . import froghopper_ctypes
from .command import append

PROBLEMS = [(8, 512, 16, 128), (4, 1024, 16, 128), (1, 2048, 16, 128), (1, 4096, 16, 128), (4, 4096, 16, 128),
            (1, 4096, 8, 256)]  # batch, rows and keys, heads, columns


def run(a):
    for batch, rows, heads, dim in PROBLEMS:
        line = f"bf16 b{batch} hq{heads} hkv{heads} sq{rows} skv{rows} d{dim} causal"
        us = medians(runs(line, batch, rows, heads, dim), a.rounds, a.calls)
        ratios = (f"{name} {us['Python ' + name] / us['C ' + name]:.3f}" for name in ("forward", "both"))
        print(f"{line}: " + ", ".join(f"{name} {time:.0f} us" for name, time in us.items()), "; Python / C", *ratios,
              flush=True)
        append(a.json, dict(problem=line, us=us, gpu=torch.cuda.get_device_name(), torch=torch.__version__))


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
