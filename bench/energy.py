#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Energy of a call: long problems are bound by the card's power, and there a joule saved is time saved.

  bench/energy.py --library build/libfroghopper.so [LINE ...] [--rivals cudnn,fa3] [--fa3bwd LIB.so] [--json FILE.jsonl]

Each contender runs for some seconds in turns with the others, from a graph; NVML's counter of the whole card's energy
is read before and after, so memory and leakage are in the figure. That counter moves every 20 to 100 ms, so less than
a second says little. pJ/FLOP is energy over the FLOPs of bench/work.py. Needs PyTorch and pynvml.
"""
import argparse
import datetime
import json
import os
import statistics
import sys
import time

import torch

import contenders
import gradients
import turns
import work
from froghopper_ctypes import Froghopper

LINES = ["fwd bf16 b1 hq16 hkv16 sq16384 skv16384 d128", "fwd bf16 b1 hq16 hkv16 sq16384 skv16384 d128 causal",
         "fwd bf16 b1 hq32 hkv32 sq16384 skv16384 d64", "fwd bf16 b1 hq8 hkv8 sq16384 skv16384 d256",
         "fwd e4m3 b1 hq16 hkv16 sq16384 skv16384 d128", "bwd bf16 b1 hq16 hkv16 sq16384 skv16384 d128"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("lines", nargs="*", default=LINES)
    p.add_argument("--library", default="build/libfroghopper.so")
    p.add_argument("--rivals", default="cudnn,fa3", help=f"of {', '.join(contenders.RIVALS)}; '' for none")
    p.add_argument("--fa3bwd", default="", metavar="LIB.so", help="FlashAttention-3's backward, see gradients.py")
    p.add_argument("--seconds", type=float, default=1.0, help="of one turn")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--json", metavar="FILE.jsonl", help="append one line a contender")
    p.add_argument("--commit", default=os.environ.get("FROGHOPPER_COMMIT", "unknown"))
    a = p.parse_args()
    library = Froghopper(os.path.abspath(a.library))
    torch.cuda.set_stream(torch.cuda.Stream())
    clock = turns.Clock()
    if not clock.handle: sys.exit("energy.py: NVML does not answer; without it there is no energy to read")
    print(f"{'ms':>9} {'W':>5} {'pJ/FLOP':>8} {'MHz':>5}  who, problem")
    for line in a.lines:
        for (impl, plan), found in energies(a, library, clock, line).items():
            print(f"{found['ms']:9.4f} {found['watts']:5.0f} {found['pj_per_flop']:8.3f} {found['sm_clock_mhz']:5}  "
                  f"{impl}, {line}", flush=True)
            if a.json: write(a, clock, {"problem": line, "impl": impl, "plan": plan, **found})


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
    names = list(filter(None, a.rivals.split(",")))
    if not cell.problem.is_backward():
        offers = [contenders.froghopper(cell, library, "hopper")]
        return {key: call for offer in offers + [contenders.rival(name)(cell) for name in names]
                for key, call in offer.items()}
    layers = dict(gradients.froghopper(cell, library, "hopper", print))
    for name in names: layers.update(gradients.rival(name, a.fa3bwd)(cell))
    for layer in layers.values(): layer.forward()
    return {key: layer.backward for key, layer in layers.items() if not key[0].endswith(gradients.DETERMINISTIC)}


def write(a, clock, record):
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    record = {key: round(x, 4) if isinstance(x, float) else x for key, x in record.items()}
    record |= {"gpu": torch.cuda.get_device_name(), "driver": clock.driver, "commit": a.commit, "date": now}
    with open(a.json, "a") as file: file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    sys.exit(main())
