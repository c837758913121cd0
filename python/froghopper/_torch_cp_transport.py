# SPDX-License-Identifier: Apache-2.0
"""How bytes move between ranks for froghopper.torch.context_parallel: the functions of fh_cp_transport over a group of
torch.distributed, whatever its backend; and for GPUs the copies of fh_cp_memory, by PyTorch's own kernels.

The library gives addresses; here they become views of the tensors that hold them, so that PyTorch keeps these alive
while a transfer is on its way, also after a failure. Small copies, and fills, are left to the driver.
"""
import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from froghopper import _c_parallel as c
from froghopper import _torch_cp_group as groups
from froghopper._errors import Internal, LaunchFailed
from froghopper._parallel import calls, check_status

POINTER, WORDS, NUMBER = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int64
FAILED = 1  # what a function returns that has failed; the exception itself is kept
# Bytes up to which the driver copies: it takes 8 us of the host and PyTorch 16, but twice the time of a GPU for more.
DRIVER_COPIES = 8 << 20

exchange_type = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, POINTER, NUMBER, POINTER, NUMBER, POINTER,
                                 ctypes.POINTER(POINTER))
wait_type = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, POINTER, POINTER)
agree_type = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, WORDS, ctypes.POINTER(WORDS))
copy_type = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, POINTER, WORDS, POINTER, WORDS, WORDS, WORDS, POINTER)


@functools.lru_cache(maxsize=None)
def driver_memory() -> c.CpMemory:
    """The library's own functions."""
    found = c.CpMemory(size=ctypes.sizeof(c.CpMemory))
    check_status(calls().fh_cp_cuda_memory(ctypes.byref(found)))
    return found


@functools.lru_cache(maxsize=None)
def driver_copy() -> Callable[..., int]: return copy_type(driver_memory().copy or 0)


class Functions:
    """Functions of Python that C calls during one run, over the tensors of that run. error: what one has raised."""

    def __init__(self, group: Any, tensors: Sequence[Tensor]):
        """tensors: dense, all that an address may lie in."""
        self.group = group
        self.error: BaseException | None = None
        self.spans = [(x.data_ptr(), x.view(-1).view(torch.uint8)) for x in tensors if x.numel()]
        self.works: dict[int, list[Any]] = {}
        self.started = 0
        self.kept: list[Any] = []  # what C has the addresses of

    def transport(self) -> c.CpTransport:
        return c.CpTransport(size=ctypes.sizeof(c.CpTransport), ranks=self.group.size(), rank=self.group.rank(),
                             exchange=self.called(exchange_type, self.exchange), wait=self.called(wait_type, self.wait),
                             agree=self.called(agree_type, self.agree))

    def memory(self) -> c.CpMemory:
        """For GPUs: the library's functions, but for large copies, which PyTorch's kernels make in half the time. They
        are made in the current stream, which is that of the run."""
        driver = driver_memory()
        return c.CpMemory(size=ctypes.sizeof(c.CpMemory), fill=driver.fill, copy=self.called(copy_type, self.copy),
                          add=driver.add, convert=driver.convert, spread=driver.spread)

    def called(self, kind: Any, function: Callable[..., None]) -> int | None:
        """The address of a function for C that calls this one."""
        def guarded(context: Any, *arguments: Any) -> int:
            try: function(*arguments)
            except BaseException as error:
                self.error = error
                return FAILED
            return 0
        made = kind(guarded)
        self.kept.append(made)
        return ctypes.cast(made, POINTER).value

    def exchange(self, sends: int, send_count: int, recvs: int, recv_count: int, stream: int, ticket: Any) -> None:
        given = (each for at, count in ((sends, send_count), (recvs, recv_count)) for each in
                 ((c.CpTransfer * count).from_address(at) if count else ()))
        kinds = [dist.isend] * send_count + [dist.irecv] * recv_count
        operations = [dist.P2POp(kind, self.view(each.data or 0, each.bytes),
                                 dist.get_global_rank(self.group, each.peer), self.group)
                      for kind, each in zip(kinds, given)]
        self.started += 1
        self.works[self.started] = dist.batch_isend_irecv(operations) if operations else []
        ticket[0] = self.started

    def wait(self, ticket: int, stream: int) -> None:
        for work in self.works.pop(ticket): work.wait()

    def agree(self, digest: int, digests: Any) -> None:
        heard = groups.exchange(self.group, digest.to_bytes(8, "little").hex().encode())
        for rank, said in enumerate(heard): digests[rank] = int.from_bytes(bytes.fromhex(said.decode()), "little")

    def view(self, address: int, count: int) -> Tensor:
        """Those bytes of the tensor that they lie in."""
        for base, x in self.spans:
            begin = address - base
            if 0 <= begin <= x.numel() - count: return x[begin:begin + count]
        raise Internal(f"{count} bytes at {address} are in no tensor of the call. Report it.")

    def copy(self, to: int, to_pitch: int, source: int, from_pitch: int, size: int, rows: int, stream: int) -> None:
        if size * rows <= DRIVER_COPIES:
            code = driver_copy()(None, to, to_pitch, source, from_pitch, size, rows, stream)
            if code: raise LaunchFailed(f"the CUDA driver has failed to copy {size * rows} bytes, with error {code}.")
            return
        ends = [self.view(at, pitch * (rows - 1) + size).as_strided((rows, size), (pitch, 1))
                for at, pitch in ((to, to_pitch), (source, from_pitch))]
        ends[0].copy_(ends[1])
