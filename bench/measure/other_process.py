# SPDX-License-Identifier: Apache-2.0
"""PyTorch's attention in a process of its own, whose environment is another one: libraries read theirs once, at start.

  with OtherProcess(WITHOUT_AMX, "build/libfroghopper.so", threads) as torch_without_amx:
      burst = torch_without_amx.burst("fwd bf16 b8 hq8 hkv8 sq512 skv512 d128", ms)
      burst.run()   milliseconds of one call; only one process computes at a time
"""
import dataclasses
import multiprocessing
import os
import pathlib
import re
import unittest.mock

# The largest instruction sets short of AMX. PyTorch multiplies bf16 with MKL or with oneDNN, by shape and version.
WITHOUT_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "MKL_ENABLE_INSTRUCTIONS": "AVX512_E3"}


def bf16_instructions(cpuinfo="/proc/cpuinfo"):
    """Of the instruction sets that multiply bf16, those that this processor has; Linux's names."""
    flags = re.search(r"^(?:flags|Features)\s*: (.*)$", pathlib.Path(cpuinfo).read_text(), re.M)
    return [name for name in ("avx512_bf16", "amx_bf16", "bf16") if flags and name in flags[1].split()]


class OtherProcess:
    def __init__(self, environment, library, threads):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        with unittest.mock.patch.dict(os.environ, environment):
            self.process = context.Process(target=serve, args=(theirs, library, threads), daemon=True)
            self.process.start()
        theirs.close()  # so that a process that ended is an EOFError here, not a wait without end

    def __enter__(self): return self

    def __exit__(self, *failure):
        self.pipe.close()  # its end of the conversation
        self.process.join()

    def burst(self, line, ms):
        """What turns.LoopBurst is for a call of this process; holds until the next line is asked for."""
        self.ask((line, ms))
        return Burst(self)

    def ask(self, question):
        self.pipe.send(question)
        return self.pipe.recv()


@dataclasses.dataclass
class Burst:
    process: OtherProcess

    def run(self): return self.process.ask(None)


def serve(pipe, library, threads):
    """(line, ms) makes a burst, None runs it; each is answered with the milliseconds of a call."""
    import torch

    from . import contenders, gradients, turns
    from .froghopper_ctypes import Froghopper
    torch.set_num_threads(threads)
    library, burst = Froghopper(library), None
    while True:
        try: question = pipe.recv()
        except EOFError: return
        if question:
            line, ms = question
            cell = contenders.heads_outside(contenders.Cell.make(library, line, "cpu"))
            if cell.problem.is_backward(): (call,) = gradients.backward_calls(gradients.rival("torch")(cell)).values()
            else: (call,) = contenders.rival("torch")(cell).values()
            burst = turns.LoopBurst(call, ms)
        pipe.send(burst.run())
