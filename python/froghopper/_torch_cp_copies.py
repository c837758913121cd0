# SPDX-License-Identifier: Apache-2.0
"""Transfers between the GPUs of one host by copies of the driver, for froghopper.torch.context_parallel: ranks write to
the workspaces of their peers, and no SM takes part. NCCL's sends and receives are kernels, beside which attention takes
1.5 times as long.

A group's workspace lies in PyTorch's symmetric memory, which all its ranks have mapped, and stays from call to call. It
grows when a call needs more; then, and at the first call, the host waits for the GPU.
"""
import contextlib
import ctypes
import logging
import os
import queue
import signal
import threading
import time
import weakref
from typing import Any

import torch
from torch import Tensor

from froghopper import _c_parallel as c
from froghopper import _torch_cp_group as groups
from froghopper._call import KEPT
from froghopper._errors import LaunchFailed, Unsupported
from froghopper._parallel import calls, check_status

HEAD = 64 << 10  # bytes before the workspace, for the signals: two words of 64 bits for each of up to 4096 ranks
RUNS = 1 << 20  # of a transport, which makes 2^32 - 1 exchanges; a run makes fewer than 4096
FIRST = 1 << 20  # bytes of the first workspace, with which it is tried whether there can be one
LOOKS = 0.05  # seconds between two looks at a run that is not done
GRACE = 10  # seconds in which a run may end whose peer has ended: all that it sent may be there
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: a thread that only asks does not end the capture of another

_shared: weakref.WeakKeyDictionary[Any, "Shared | None"] = weakref.WeakKeyDictionary()
_cuda: Any = torch.cuda  # whose streams and events have no types
_log = logging.getLogger("froghopper")


class Shared:
    """Memory of a group's ranks on this rank's GPU. All ranks make it, and let it grow, at the same time."""

    def __init__(self, group: Any, device: torch.device):
        self.group, self.device = weakref.ref(group), device
        self.stream = _cuda.Stream(device)
        self.transport = c.CpTransport()
        self.known: set[Any] = set()  # plans that fit
        self.runs = 0  # of this transport; the same number on all ranks
        self.last_run: Any = None
        self.running: queue.SimpleQueue[Any] = queue.SimpleQueue()  # None at last
        self.memory: Any = None
        self.mapped: Any = None
        self.allocate(group, FIRST)
        weakref.finalize(self, calls().fh_cp_copy_transport_destroy, ctypes.byref(self.transport))
        weakref.finalize(self, self.running.put, None)
        threading.Thread(target=watch, daemon=True, args=(
            self.running, device, groups.board_of(group), groups.timeout_of(group, "cuda").total_seconds())).start()

    def allocate(self, group: Any, size: int) -> None:
        from torch.distributed import _symmetric_memory as symmetric
        self.failed = True  # where one of these raises, plans that fitted the old workspace have none
        calls().fh_cp_copy_transport_destroy(ctypes.byref(self.transport))
        self.memory = symmetric.empty(HEAD + size, dtype=torch.uint8, device=self.device)
        self.memory[:HEAD].zero_()
        torch.cuda.synchronize(self.device)
        handle = symmetric.rendezvous(self.memory, group.group_name)
        ranks, rank = group.size(), group.rank()
        self.mapped = [self.memory if peer == rank else handle.get_buffer(peer, (HEAD + size,), torch.uint8)
                       for peer in range(ranks)]
        bases = [x.data_ptr() for x in self.mapped]
        signals = (ctypes.c_void_p * ranks)(*bases)
        workspaces = (ctypes.c_void_p * ranks)(*(base + HEAD for base in bases))
        peers = c.CpPeers(size=ctypes.sizeof(c.CpPeers), ranks=ranks, rank=rank,
                          workspaces=ctypes.addressof(workspaces), signals=ctypes.addressof(signals),
                          copy_stream=self.stream.cuda_stream)
        check_status(calls().fh_cp_copy_transport(ctypes.byref(peers), ctypes.byref(self.transport)))
        # To let waits pass would copy into peers that are not ready. All ranks wait, and their threads end them.
        self.transport.cancel = None
        self.size, self.runs, self.failed = size, 0, False

    def workspace(self, size: int, key: Any) -> Tensor:
        """Of so many bytes, for the run of a plan that all ranks are about to run, who call this too. key: of that plan
        on any rank."""
        if key not in self.known or self.runs == RUNS:
            group = self.group()
            assert group is not None
            most = max(int(said) for said in groups.exchange(group, str(size).encode()))
            if most > self.size or self.runs == RUNS:
                torch.cuda.synchronize(self.device)
                groups.exchange(group, b"")  # nobody uses the old one any more
                self.memory = self.mapped = None
                self.allocate(group, max(most, self.size))
            if len(self.known) >= KEPT: self.known.clear()  # on all ranks at the same call
            self.known.add(key)
        self.runs += 1
        found: Tensor = self.memory[HEAD:]
        return found

    def begin(self) -> None:
        """The stream waits for the last run, which may have been in another one, before it uses the workspace."""
        if self.last_run is not None: torch.cuda.current_stream(self.device).wait_event(self.last_run)

    def end(self) -> None:
        self.last_run = _cuda.Event()
        self.last_run.record(torch.cuda.current_stream(self.device))
        self.running.put((self.last_run, time.monotonic()))


def watch(running: Any, device: torch.device, board: Any, seconds: float) -> None:
    """A thread that ends the process where a run does not end, as PyTorch's own does for NCCL: a rank whose peer is
    gone waits on the GPU, and what it would compute without the peer is wrong. It also ends the process where CUDA
    itself fails, after which no call of this process gets through and the peers wait for it."""
    try:
        torch.cuda.set_device(device)
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(RELAXED)))
        while (run := running.get()) is not None:
            done, began = run
            what = missed(done, began, board, seconds)
            if what is not None:
                return end_process(f"a rank of the group of {board.ranks} {what} while data moved. This process ends, "
                                   "as its results would be wrong.")
    except Exception as error:
        _log.critical("context_parallel: CUDA has failed while rank %d of the group of %d was running: %s", board.rank,
                      board.ranks, error)
        time.sleep(GRACE)  # in which the thread that has called may say what has failed, or end the process itself
        end_process("This process ends, since the other ranks wait for it.")


def missed(done: Any, began: float, board: Any, seconds: float) -> str | None:
    """Waits until the run is done: None; or what a peer has done instead, so that it will not be."""
    gone_since = None
    while not done.query():
        time.sleep(LOOKS)
        now = time.monotonic()
        if gone_since is None and any(board.is_gone(rank) for rank in range(board.ranks) if rank != board.rank):
            gone_since = now
        if (gone_since is None or now < gone_since + GRACE) and now < began + seconds: continue
        return "has ended" if gone_since is not None else f"has not answered for {seconds:g} seconds"
    return None


def end_process(why: str) -> None:
    _log.critical("context_parallel: %s", why)
    os.kill(os.getpid(), signal.SIGABRT)


def of(group: Any, x: Tensor, wanted: str) -> Shared | None:
    """The group's memory; None where transfers go another way. wanted: "auto", "copies" or "send_recv", the same on all
    ranks, which call this at the same time. Raises where copies are wanted and cannot be."""
    if wanted == "send_recv" or group.size() == 1: return None
    if not x.is_cuda:
        if wanted == "auto": return None
        raise Unsupported("transfers is \"copies\", which are between GPUs, but q is on the CPU. Use \"auto\".")
    if torch.cuda.is_current_stream_capturing():  # signals are numbers that grow, which a graph would repeat
        if wanted == "auto": return None
        raise Unsupported("transfers must not be \"copies\" in a CUDA graph. Use \"send_recv\".")
    if group not in _shared: _shared[group] = tried(group, x.device)
    found = _shared[group]
    if found is not None and found.failed:  # its signals are not those of its peers any more
        raise LaunchFailed("group must have ranks whose calls have not failed, but one of this rank has failed while "
                           "data moved. End all ranks and make a new group.")
    if found is None and wanted == "copies":
        raise Unsupported("transfers is \"copies\", but the ranks cannot map each other's memory: they are on several "
                          "hosts, or their GPUs are not peers, or this PyTorch has no symmetric memory. Use \"auto\".")
    return found


def tried(group: Any, device: torch.device) -> Shared | None:
    """All ranks get one or none does."""
    made: Shared | None = None
    if groups.board_of(group) is not None:  # one host
        try: made = Shared(group, device)
        except Exception as error: _log.info("context_parallel: no copies between GPUs: %s", error)
    everywhere = all(said == b"yes" for said in groups.exchange(group, b"yes" if made else b"no"))
    return made if everywhere else None
