# SPDX-License-Identifier: Apache-2.0
"""Timing in turns: every contender runs a short burst, in an order drawn anew each round, so that all of them meet
the same clock, power and temperature. Only times taken this way in one group may be divided by each other.

On a GPU a burst is a CUDA graph of a few calls: no time of the host counts. On a CPU it is a loop.
"""
import dataclasses
import random
import statistics
import threading
import time

import torch


@dataclasses.dataclass
class Measurement:
    ms: float             # median over the rounds, of one call
    spread: float         # median absolute deviation, percent of the median
    sm_clock_mhz: object  # median of the samples taken while it ran; None without a driver library


class Clock:
    """Samples the SM clock in a thread; between() gives the median of a span of time."""

    def __init__(self, period_s=0.001):
        self.samples, self.period_s, self.handle = [], period_s, None
        try:
            import pynvml
            pynvml.nvmlInit()
            self.driver = pynvml.nvmlSystemGetDriverVersion()
            self.read = lambda: pynvml.nvmlDeviceGetClockInfo(self.handle, pynvml.NVML_CLOCK_SM)
            try: self.handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
            except Exception: self.handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            self.read()
        except Exception as problem:
            print(f"no SM clock: {type(problem).__name__}: {problem}", flush=True)
            self.handle, self.driver = None, "unknown"
            return
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self):
        while True:
            self.samples.append((time.perf_counter(), self.read()))
            time.sleep(self.period_s)

    def between(self, spans):
        if not self.handle: return None
        inside = [mhz for at, mhz in self.samples if any(begin <= at <= end for begin, end in spans)]
        return int(statistics.median(inside)) if inside else self.read()


class GraphBurst:
    """A CUDA graph of as many calls as take about ms milliseconds."""

    def __init__(self, call, ms):
        for _ in range(2): call()
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        begin.record(), call(), call(), end.record()
        torch.cuda.synchronize()
        self.calls = max(2, min(64, int(ms / max(5e-3, begin.elapsed_time(end) / 2))))
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=torch.cuda.current_stream()):
            for _ in range(self.calls): call()

    def run(self):
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        begin.record(), self.graph.replay(), end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / self.calls


class LoopBurst:
    """Calls that return when their result is there, timed by the host."""

    def __init__(self, call, ms):
        self.call, self.calls = call, 1
        call()
        self.calls = max(1, min(10000, int(ms / self.run())))

    def run(self):
        begin = time.perf_counter()
        for _ in range(self.calls): self.call()
        return (time.perf_counter() - begin) * 1e3 / self.calls


def in_turns(calls, on_gpu, ms, rounds, clock, note):
    """{key: call} -> {key: Measurement}; a contender that fails is named and left out."""
    bursts = {}
    for key, call in calls.items():
        try:
            bursts[key] = (GraphBurst if on_gpu else LoopBurst)(call, ms)
            bursts[key].run()
        except Exception as problem:
            bursts.pop(key, None)
            note(f"  {' '.join(key)} failed: {type(problem).__name__}: {problem}"[:400])
            if on_gpu: torch.cuda.synchronize()
    times, spans = {key: [] for key in bursts}, {key: [] for key in bursts}
    for _ in range(rounds):
        for key in random.sample(list(bursts), len(bursts)):
            begin = time.perf_counter()
            times[key].append(bursts[key].run())
            spans[key].append((begin, time.perf_counter()))
    return {key: summary(times[key], clock.between(spans[key]) if clock else None) for key in bursts}


def summary(times, mhz):
    middle = statistics.median(times)
    return Measurement(middle, 100 * statistics.median(abs(t - middle) for t in times) / middle, mhz)
