# SPDX-License-Identifier: Apache-2.0
"""The measurements of bench/speed.py: who takes part in a cell, in turns, printed and recorded."""
import contextlib
import dataclasses
import os
import re
import secrets
import time

import torch

from . import contenders, gradient_errors, gradients, other_process, promises, turns, work
from .command import append, commit_here, device_name, now, read_suite
from .froghopper_ctypes import Error, Froghopper
from .speed_tables import LAYER, print_lowest, print_table, title_of

BEGIN = time.time()
TRY = "with "  # contenders of --try: names of no implementation
LAYER_FROM = 2048  # rows: --layers leaves shorter ones out


def note(text):
    print(f"{text}  [{time.time() - BEGIN:.0f} s]", flush=True)


@dataclasses.dataclass
class Run:
    """What all cells of one command share."""
    a: object
    library: Froghopper
    target: str
    clock: turns.Clock  # None on a CPU
    facts: dict         # of every record
    without_amx: other_process.OtherProcess = None  # PyTorch there; None where there is no AMX to go without
    kept: list = dataclasses.field(default_factory=list)  # whether each promise of the CPU backend is


def run(a):
    library = Froghopper(os.path.abspath(a.library))
    if a.device == "cuda": torch.cuda.set_stream(torch.cuda.Stream())
    else: torch.set_num_threads(a.threads or os.cpu_count())
    clock = turns.Clock() if a.device == "cuda" else None
    facts = dict(gpu=device_name(a.device), driver=clock.driver if clock else "", commit=a.commit or commit_here())
    if a.device == "cpu": facts |= {"cpu_bf16": other_process.bf16_instructions(), "torch": torch.__version__}
    described = f"froghopper {library.version()} {facts['commit']}, torch {torch.__version__}"
    note(f"{described}, {facts['gpu']}, driver {facts['driver'] or 'none'}")
    this = Run(a, library, contenders.TARGETS[a.device], clock, facts)
    with contextlib.ExitStack() as stack:
        if "torch" in a.rivals.split(",") and "amx_bf16" in facts.get("cpu_bf16", ()):
            this.without_amx = stack.enter_context(other_process.OtherProcess(
                other_process.WITHOUT_AMX, os.path.abspath(a.library), torch.get_num_threads()))
        print_lowest(time_suite(this))
    return 0 if all(this.kept) else 1


def time_suite(run):
    """[(pass and line, {(impl, plan): TFLOP/s})], printed table by table."""
    a = run.a
    lines = a.lines or [line for path in a.suite for line in read_suite(path)]
    lines = [line for line in lines if re.search(a.only, line)]
    offers = Offers(run, {line.startswith("bwd ") for line in lines})
    rows, tables = [], {}
    for i, line in enumerate(lines):
        if a.budget and time.time() - BEGIN > a.budget:
            note(f"out of time: {len(lines) - i} of {len(lines)} cells were not measured, from {line}")
            break
        for kind, measured in measure(run, offers, line).items():
            rows.append((line if kind != LAYER else f"{LAYER}: {line}", measured))
            tables.setdefault(kind, []).append((line, measured))
        if i + 1 == len(lines) or title_of(lines[i + 1]) != title_of(line):
            for kind, table in tables.items(): print_table(kind, table, a.device, time.time() - BEGIN)
            tables = {}
    for kind, table in tables.items(): print_table(kind, table, a.device, time.time() - BEGIN)
    return rows


class Offers:
    """Who takes part, in the forward pass and in the backward pass."""

    def __init__(self, run, kinds):
        self.a, self.library, self.target, self.facts = run.a, run.library, run.target, run.facts
        def of_gradients(name): return gradients.rival(name, self.a.fa3bwd)
        self.forward = contenders.installed(self.a.rivals, contenders.rival, note) if False in kinds else []
        self.backward = contenders.installed(self.a.rivals, of_gradients, note) if True in kinds else []
        self.wrong = {}  # title: {impl: why}

    def calls(self, cell):
        """{pass: {(impl, plan): call}}"""
        if cell.problem.is_backward(): return self.backward_calls(cell)
        calls = contenders.froghopper(cell, self.library, self.target)
        for hints in self.a.tries:
            (_, plan), call = next(iter(contenders.froghopper(cell, self.library, f"{self.target} {hints}").items()))
            calls[TRY + hints, plan] = call
        calls |= contenders.beside_16_bits(cell, self.library, self.target)
        for offer in self.forward: calls.update(offer(cell))
        return {"fwd": calls}

    def backward_calls(self, cell):
        wrong = self.who_is_wrong(cell.line)
        layers = gradients.froghopper(cell, self.library, self.target, note)
        for hints in self.a.tries:
            (_, plan), layer = next(iter(gradients.froghopper(cell, self.library, f"{self.target} {hints}").items()))
            layers[TRY + hints, plan] = layer
        for offer in self.backward: layers.update(offer(cell))
        ready = {}
        for key, layer in layers.items():
            if key[0] in wrong: continue
            try: layer.forward()
            except Exception as problem: note(f"  {' '.join(key)} failed: {type(problem).__name__}: {problem}"[:400])
            else: ready[key] = layer
        calls = {"bwd": {key: layer.backward for key, layer in ready.items()}}
        if self.a.layers and max(cell.problem.seq_q, cell.problem.seq_kv) >= LAYER_FROM:
            calls[LAYER] = {key: layer.both for key, layer in ready.items()}
        return calls

    def who_is_wrong(self, line):
        """{impl: why}, found once for every kind of problem."""
        title = title_of(line)
        if title in self.wrong: return self.wrong[title]
        small = contenders.Cell.make(self.library, gradient_errors.small(line, self.a.error_rows), self.a.device)
        if not small.is_plain():
            note(f"  {title}: nobody's gradients are compared with fp64, here only full and causal ones are")
            return self.wrong.setdefault(title, {})
        layers = gradients.froghopper(small, self.library, self.target, note)
        for offer in self.backward: layers.update(offer(small))
        errors, wrong = gradient_errors.errors_of(small, layers)
        gradient_errors.print_errors(small.line, errors)
        for impl, why in wrong.items(): note(f"  {impl} is not timed for {title}: {why}")
        gradient_errors.record(self.a.errors, small.line, "normal", errors, self.facts | {"date": now()})
        return self.wrong.setdefault(title, wrong)


def measure(run, offers, line):
    """{pass: {(impl, plan): TFLOP/s}} of one cell, whose JSON lines are written at once."""
    try:
        cell = cell_of(run, line)
        calls = offers.calls(cell)
    except Error as problem:
        note(f"  {line}: {problem}")
        return {}
    return {kind: measure_pass(run, cell, kind, of_pass) for kind, of_pass in calls.items()}


def cell_of(run, line):
    """On a CPU with as many threads as PyTorch has, and in the order of memory that PyTorch likes best."""
    if run.a.device == "cuda": return contenders.Cell.make(run.library, line, "cuda")
    text, colon, lens = line.partition(":")
    if run.a.threads: line = f"{text.strip()} sms{run.a.threads}{' ' + colon if colon else ''}{lens}"
    return contenders.heads_outside(contenders.Cell.make(run.library, line, "cpu"))


def measure_pass(run, cell, kind, calls):
    a, others = run.a, {}
    if run.without_amx and kind != LAYER and any(impl == "torch" for impl, _ in calls):
        others["torch", promises.WITHOUT_AMX] = run.without_amx.burst(cell.line, a.ms)
    measured = turns.in_turns(calls, a.device == "cuda", a.ms, a.rounds, run.clock, note, others)
    facts = run.facts
    if a.device == "cpu":
        gain = promises.amx_gain(measured)
        facts = facts | {"torch_amx_gain": gain and round(gain, 3)}
        if kind != LAYER: run.kept += promises.look(cell, measured, gain)
    problems = [cell.problem] if kind != LAYER else [cell.problem, cell.problem.forward()]
    flops = sum(work.flops(p, cell.lens) for p in problems)
    moved = sum(work.bytes_moved(p) for p in problems)
    date = now()
    group = f"{re.sub('[:-]', '', date)}-{secrets.token_hex(3)}"
    line = run.library.line(cell.problem) + (f" : lens_q={','.join(map(str, cell.lens))}" if cell.lens else "")
    append(a.json, *({
        "problem": line, "pass": kind, "impl": impl, "plan": plan,
        "ms": round(m.ms, 6), "spread": round(m.spread, 2), "tflops": float(f"{flops / m.ms / 1e9:.5g}"),
        "gbps": round(moved / m.ms / 1e6, 1), "sm_clock_mhz": m.sm_clock_mhz, **facts,
        "date": date, "turn_group": group} for (impl, plan), m in measured.items() if not impl.startswith(TRY)))
    return {key: flops / m.ms / 1e9 for key, m in measured.items()}
