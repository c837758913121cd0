# SPDX-License-Identifier: Apache-2.0
"""The measurements of bench/energy.py."""
import os
import statistics
import sys
import time

import torch

from . import contenders, gradients, turns, work
from .command import append, commit_here, now
from .froghopper_ctypes import Froghopper


def run(a):
    library = Froghopper(os.path.abspath(a.library))
    torch.cuda.set_stream(torch.cuda.Stream())
    clock = turns.Clock()
    if not clock.handle: sys.exit("energy.py: NVML does not answer; without it there is no energy to read")
    print(f"{'ms':>9} {'W':>5} {'pJ/FLOP':>8} {'MHz':>5}  who, problem")
    for line in a.lines:
        for (impl, plan), found in energies(a, library, clock, line).items():
            print(f"{found['ms']:9.4f} {found['watts']:5.0f} {found['pj_per_flop']:8.3f} {found['sm_clock_mhz']:5}  "
                  f"{impl}, {line}", flush=True)
            write(a, clock, {"problem": line, "impl": impl, "plan": plan, **found})


def energies(a, library, clock, line):
    import pynvml
    cell = contenders.Cell.make(library, line, "cuda")
    bursts = {key: turns.GraphBurst(call, 20) for key, call in calls_of(a, library, cell).items()}
    joules, seconds, calls, spans = ({key: [] for key in bursts} for _ in range(4))
    for _ in range(a.rounds):
        for key, burst in bursts.items():
            for _ in range(10): burst.run()  # until its power is its own
            before, begin, count = pynvml.nvmlDeviceGetTotalEnergyConsumption(clock.handle), time.perf_counter(), 0
            while time.perf_counter() - begin < a.seconds:
                burst.run()
                count += burst.calls
            end = time.perf_counter()
            joules[key].append(1e-3 * (pynvml.nvmlDeviceGetTotalEnergyConsumption(clock.handle) - before))
            seconds[key].append(end - begin), calls[key].append(count), spans[key].append((begin, end))
    flops = work.flops(cell.problem)
    def of(key):
        each = [j / n for j, n in zip(joules[key], calls[key])]
        return {"ms": 1e3 * statistics.median(s / n for s, n in zip(seconds[key], calls[key])),
                "watts": statistics.median(j / s for j, s in zip(joules[key], seconds[key])),
                "pj_per_flop": 1e12 * statistics.median(each) / flops, "sm_clock_mhz": clock.between(spans[key])}
    return {key: of(key) for key in bursts}


def calls_of(a, library, cell):
    if not cell.problem.is_backward():
        calls = contenders.froghopper(cell, library, "hopper")
        for offer in contenders.installed(a.rivals, contenders.rival): calls |= offer(cell)
        return calls
    layers = gradients.froghopper(cell, library, "hopper")
    for offer in contenders.installed(a.rivals, lambda name: gradients.rival(name, a.fa3bwd)): layers |= offer(cell)
    calls = gradients.backward_calls(layers)
    return {key: call for key, call in calls.items() if not key[0].endswith(gradients.DETERMINISTIC)}


def write(a, clock, record):
    record = {key: round(x, 4) if isinstance(x, float) else x for key, x in record.items()}
    append(a.json, record | {"gpu": torch.cuda.get_device_name(), "driver": clock.driver,
                             "commit": a.commit or commit_here(), "date": now()})
