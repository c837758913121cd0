# SPDX-License-Identifier: Apache-2.0
"""The board on which the ranks of one host write for one another, each rank a process of its own."""
import datetime
import multiprocessing
import os
import random
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch")
import froghopper
from froghopper import _torch_cp_board as boards

MOST = 4096
RANKS = 3


def run(ranks, timeout=20.0):
    """Every function is given a board, in a process of its own, and must return."""
    path = boards.new_file(len(ranks), MOST)
    if not path: pytest.skip(f"{boards.FOLDER} is not there")
    processes = multiprocessing.get_context("fork")
    ready = processes.Barrier(len(ranks))

    def call(rank, function):
        board = boards.opened(path, len(ranks), rank, MOST, datetime.timedelta(seconds=timeout))
        ready.wait()
        function(board)
    children = [processes.Process(target=call, args=each) for each in enumerate(ranks)]
    for child in children: child.start()
    for child in children: child.join()
    boards.remove(path)
    assert [child.exitcode for child in children] == [0] * len(ranks)


def words(rank, call):
    """Of every length, and different for each rank and call."""
    draw = random.Random(1000 * call + rank)
    return draw.randbytes(draw.choice([0, 1, 17, 700, MOST]))


def test_all_hear_what_each_says():
    def speak(board):
        for call in range(300):
            if random.Random(call).randrange(RANKS) == board.rank: time.sleep(1e-4)
            assert board.exchange(words(board.rank, call)) == [words(rank, call) for rank in range(RANKS)]
    run([speak] * RANKS)


def test_a_rank_that_is_gone():
    """What it has said still counts; then the others know soon, not after the timeout."""
    def speak(board):
        board.exchange(b"first")
        if board.rank == 1: return
        begin = time.monotonic()
        with pytest.raises(froghopper.LaunchFailed, match="rank 1 of 3 has died or left"): board.exchange(b"second")
        assert time.monotonic() < begin + 5
    run([speak] * RANKS)


def test_a_rank_that_says_nothing():
    def speak(board):
        board.exchange(b"first")
        if board.rank == 1: time.sleep(2)
        else:
            with pytest.raises(froghopper.LaunchFailed, match="rank 1 of 3 has said nothing for 0.5 seconds"):
                board.exchange(b"second")
    run([speak] * RANKS, 0.5)


def test_what_is_half_written_is_not_read():
    """The number is there already, the words not all."""
    def speak(board):
        if board.rank == 1:
            board.number = 1
            at = board.at(1)
            board.memory[at:at + boards.HEADER.size] = boards.HEADER.pack(1, 5, board.checksum(b"words"))
            time.sleep(0.2)
            board.memory[at + boards.HEADER.size:at + boards.HEADER.size + 5] = b"words"
            time.sleep(0.5)
        else: assert board.exchange(b"own") == [b"own", b"words"]
    run([speak] * 2)


def test_no_shared_memory(monkeypatch):
    monkeypatch.setattr(boards, "FOLDER", "/nowhere")
    assert boards.new_file(2, MOST) == ""
    for path in ("", "/nowhere/froghopper-0"):
        assert boards.opened(path, 2, 0, MOST, datetime.timedelta(seconds=1)) is None


def test_words_that_are_too_many():
    def speak(board):
        with pytest.raises(froghopper.Internal, match="4097 bytes"): board.exchange(b"x" * (MOST + 1))
        assert board.exchange(b"x") == [b"x"] * 2
    run([speak] * 2)


def test_a_process_that_forks_keeps_its_place():
    """A child, as of a data loader, that ends is not taken for its rank."""
    def speak(board):
        board.exchange(b"first")
        subprocess.run([sys.executable, "-c", ""], check=True)
        if (child := os.fork()) == 0: os._exit(0)
        os.waitpid(child, 0)
        if board.rank == 1: time.sleep(0.3)
        assert board.exchange(b"second") == [b"second"] * 2
    run([speak] * 2)
