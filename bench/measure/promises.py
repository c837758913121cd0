# SPDX-License-Identifier: Apache-2.0
"""What the CPU backend is held to: its speed over PyTorch's, in the turns of one cell.

A ratio is the median over rounds of PyTorch's time over ours in the same round, so that what else the machine does in a
round meets both.
"""
import statistics

import torch

AMX_IN_USE = 1.1  # a gain above this is no noise
WITHOUT_AMX = f"torch {torch.__version__} without AMX"  # as the plan of PyTorch in bench/measure/other_process.py


def promised(p, amx_gain):
    """Ours over PyTorch's. amx_gain: None where there is no AMX."""
    if p.dtype == 2: return 1.3 if (amx_gain or 0) > AMX_IN_USE else 1.5
    return 1.3 if p.is_causal() else 1.1


def ratio(measured, over, under):
    """Median over the rounds; None where one of the two is missing."""
    if over not in measured or under not in measured: return None
    return statistics.median(t / u for t, u in zip(measured[over].times, measured[under].times))


def by_default(measured, impl):
    """The key of an implementation as it is by default."""
    return next((key for key in measured if key[0] == impl and key[1] != WITHOUT_AMX), None)


def amx_gain(measured):
    """PyTorch's time without AMX over that with it; None where it ran only one way."""
    return ratio(measured, ("torch", WITHOUT_AMX), by_default(measured, "torch"))


def look(cell, measured, gain):
    """[whether the promise is kept], which is printed; none where not both were measured."""
    ours = by_default(measured, "froghopper")
    found = ratio(measured, by_default(measured, "torch"), ours)
    if found is None: return []
    least, amx = promised(cell.problem, gain), ""
    if gain: amx = f", without AMX {ratio(measured, ('torch', WITHOUT_AMX), ours):.2f}, AMX gain {gain:.2f}"
    print(f"  {cell.line:54} {found:5.2f} times PyTorch's speed, promised {least:.2f}{amx}"
          f"{'' if found >= least else '  BELOW'}", flush=True)
    return [found >= least]
