# SPDX-License-Identifier: Apache-2.0
"""What holds around copies between GPUs, without a GPU: the thread that looks after runs, and how long a transport
serves."""
import os
import queue
import signal
import time
import types

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from froghopper import _torch_cp_copies as copies

SECONDS = 100.0


class Done:
    """An event of a run: what query answers, in turn; an exception is raised."""
    def __init__(self, *answers): self.answers = list(answers)

    def query(self):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception): raise answer
        return answer


@pytest.fixture
def watched(monkeypatch, caplog):
    """A function of events and of whether rank 1 has ended: which signals this process got, and what was logged."""
    sent = []
    monkeypatch.setattr(os, "kill", lambda process, number: sent.append((process, number)))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    for name in ("LOOKS", "GRACE"): monkeypatch.setattr(copies, name, 0.001)

    def call(*events, gone=False, seconds=SECONDS):
        running = queue.SimpleQueue()
        for event in events: running.put((event, time.monotonic()))
        running.put(None)
        board = types.SimpleNamespace(ranks=2, rank=0, is_gone=lambda rank: gone)
        copies.watch(running, torch.device("cuda", 0), board, seconds)
        return sent, caplog.text
    return call


ABORTED = [(os.getpid(), signal.SIGABRT)]


def test_runs_that_end(watched): assert watched(Done(True), Done(False, False, True)) == ([], "")


def test_a_failure_of_cuda_ends_the_process(watched):
    sent, said = watched(Done(True), Done(False, RuntimeError("CUDA error: an illegal memory access")), Done(True))
    assert sent == ABORTED
    assert "rank 0 of the group of 2" in said and "an illegal memory access" in said
    assert "the other ranks wait for it" in said


def test_a_device_that_is_lost_ends_the_process(watched, monkeypatch):
    def lost(device): raise RuntimeError("CUDA error: unknown")
    monkeypatch.setattr(torch.cuda, "set_device", lost)
    assert watched(Done(True))[0] == ABORTED


def test_a_peer_that_has_ended_ends_the_process(watched):
    sent, said = watched(Done(False), gone=True)
    assert sent == ABORTED and "a rank of the group of 2 has ended" in said


def test_a_peer_that_does_not_answer_ends_the_process(watched):
    sent, said = watched(Done(False), seconds=0.01)
    assert sent == ABORTED and "has not answered for 0.01 seconds" in said


def test_a_transport_is_replaced_before_its_numbers_end(monkeypatch):
    """On all ranks in the same run; the workspace does not shrink."""
    monkeypatch.setattr(copies, "RUNS", 3)
    monkeypatch.setattr(copies.groups, "exchange", lambda group, said: [said])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    made = []

    def allocate(self, group, size):
        made.append(size)
        self.memory = torch.empty(copies.HEAD + size, dtype=torch.uint8)
        self.size, self.runs = size, 0
    monkeypatch.setattr(copies.Shared, "allocate", allocate)
    shared = object.__new__(copies.Shared)
    shared.group, shared.device, shared.known = lambda: "a group", torch.device("cuda", 0), set()
    shared.allocate("a group", 64)
    for run in range(9): assert shared.workspace(16, "a key").numel() == 64
    assert made == [64] * 3
