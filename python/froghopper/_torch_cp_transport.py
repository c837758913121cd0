# SPDX-License-Identifier: Apache-2.0
"""How bytes move between ranks for froghopper.torch.context_parallel: the functions of fh_cp_transport over a group of
torch.distributed, whatever its backend.

The library gives addresses; here they become views of the tensors that hold them, so that PyTorch keeps these alive
while a transfer is on its way, also after a failure.
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
from froghopper._errors import Internal
from froghopper._parallel import calls, check_status

POINTER, WORDS, NUMBER = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int64
FAILED = 1  # what a function returns that has failed; the exception itself is kept

exchange_type = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, POINTER, NUMBER, POINTER, NUMBER, POINTER,
                                 ctypes.POINTER(POINTER))
wait_type = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, POINTER, POINTER)
agree_type = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, WORDS, ctypes.POINTER(WORDS))


@functools.lru_cache(maxsize=None)
def cuda_memory() -> c.CpMemory:
    """What the library does to a GPU's memory, by functions of its own."""
    found = c.CpMemory(size=ctypes.sizeof(c.CpMemory))
    check_status(calls().fh_cp_cuda_memory(ctypes.byref(found)))
    return found


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
