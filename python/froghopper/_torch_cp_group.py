# SPDX-License-Identifier: Apache-2.0
"""Groups of torch.distributed for froghopper.torch.context_parallel: who is in one, and what its ranks agree on.

Before a call moves data, every rank sends all others a few words about it: shapes, types, options, its number of rows,
or why it refuses its arguments. So what disagrees is an error on every rank, not a rank that waits for what never
comes. Ranks of one host write that on a board in shared memory, others gather it over gloo; a GPU does not wait for it.
"""
import collections
import datetime
import json
import os
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from froghopper import _torch_cp_board as boards
from froghopper._errors import Error, InvalidProblem, InvalidType, LaunchFailed
from froghopper._torch_cp_board import Board
from froghopper._values import shown

BYTES = 4096  # of what a rank says; all say equally much
LONGEST_REASON = 600  # bytes of a refusal that others repeat, each of which may take six in JSON

# Group without a backend for host memory -> one that has it; group -> the board of its host, None where there are
# several; group -> how many calls its ranks have agreed on; groups that have moved memory of GPUs.
_host_groups: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_boards: weakref.WeakKeyDictionary[Any, Board | None] = weakref.WeakKeyDictionary()
_calls: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_connected: weakref.WeakSet[Any] = weakref.WeakSet()


def resolved(group: Any) -> Any:
    """The group itself. group: a ProcessGroup, a one-dimensional DeviceMesh, a group's name, or None for all ranks."""
    if not dist.is_available() or not dist.is_initialized():
        raise InvalidProblem("group must be one of torch.distributed, which is not initialised. Call "
                             "torch.distributed.init_process_group first, and run under torchrun.")
    if group is None: return dist.group.WORLD
    if isinstance(group, str):
        by_name: Any = getattr(dist.distributed_c10d, "_resolve_process_group")
        try: return by_name(group)
        except RuntimeError as error:
            raise InvalidProblem(f"group must be a group or the name of one, but none is called {shown(group)}. Use "
                                 "torch.distributed.new_group.") from error
    if isinstance(group, dist.ProcessGroup): return group
    if hasattr(group, "get_group") and hasattr(group, "ndim"):
        if group.ndim != 1:
            raise InvalidProblem(f"group must be a mesh of one dimension, but has {group.ndim}. Use mesh[\"NAME\"].")
        return group.get_group()
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise InvalidProblem("group must be one that this rank is in, but it is not. Call on the group's ranks alone.")
    raise InvalidType(f"group must be a ProcessGroup, a DeviceMesh of one dimension or None, but is {shown(group)}. "
                      "Use torch.distributed.new_group.")


def size_and_rank(group: Any) -> tuple[int, int]:
    held = resolved(group)
    return held.size(), held.rank()


def timeout_of(group: Any, device: str) -> datetime.timedelta:
    """What the group was made with."""
    found: datetime.timedelta = group._get_backend(torch.device(device)).options._timeout
    return found


def host_group(group: Any) -> Any:
    """The group, or where its backend moves memory of GPUs alone, one of gloo with the same ranks and timeout."""
    kinds = {device.type for device in group._device_types}
    if "cpu" in kinds: return group
    if group not in _host_groups:
        _host_groups[group] = dist.new_group(dist.get_process_group_ranks(group), timeout_of(group, kinds.pop()),
                                             "gloo", use_local_synchronization=True)
    return _host_groups[group]


def ranks_per_host(group: Any) -> int:
    """Most ranks of the group on one host, as torchrun deals them; 0 where it has not started this process."""
    on_host = int(os.environ.get("LOCAL_WORLD_SIZE", 0))
    if not on_host: return 0
    return max(collections.Counter(rank // on_host for rank in dist.get_process_group_ranks(group)).values())


def connect(group: Any, x: Tensor) -> None:
    """NCCL connects the ranks of a group when they first call it, and all of them must: later a rank that has nothing
    to move does not. x: any tensor on the GPU."""
    if group in _connected: return
    dist.all_reduce(x.new_zeros(1), group=group)
    _connected.add(group)


def calls_of(group: Any) -> int:
    """On how many calls the ranks have agreed."""
    return _calls.get(group, 0)


def agree(group: Any, call: str, same: Callable[[], dict[str, Any]],
          own: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
    """What own says on every rank, rank 0 first, once all have said the same of what same says.

    call: what is called. same, own: arguments -> values that JSON keeps; they may raise what is wrong with them, and
    then every rank raises. InvalidProblem names the argument that differs, and both values.
    """
    number = calls_of(group)
    refusal: Exception | None = None
    said: dict[str, Any]
    try: said = {"call": call, "number": number, "same": same(), "own": own()}
    except Exception as error:
        refusal = error
        said = {"call": call, "number": number, "refusal": str(error).encode()[:LONGEST_REASON].decode(errors="ignore")}
    sent = json.dumps(said, ensure_ascii=False).encode()
    heard = exchange(group, sent)
    _calls[group] = number + 1
    if refusal is not None: raise refusal
    all_said: list[dict[str, Any]] = [said if each == sent else json.loads(each) for each in heard]
    for rank, each in enumerate(all_said):
        if "refusal" in each:
            raise InvalidProblem(f"rank {rank} refuses its arguments of {call}, and so all ranks do: "
                                 f"{each['refusal']}")
    first = all_said[0]
    for rank, each in enumerate(all_said[1:], 1):
        for name, a, b in (("the call", first["call"], each["call"]),
                           ("the number of calls before", first["number"], each["number"])):
            if a != b: raise differs(name, a, b, rank)
        for name in first["same"]:
            if (a := first["same"][name]) != (b := each["same"].get(name)): raise differs(name, a, b, rank)
    return [each["own"] for each in all_said]


def refuse_together(group: Any, call: str, error: Exception) -> NoReturn:
    """Raises the error here, and on every other rank of the group what it says."""
    def same() -> dict[str, Any]: raise error
    agree(resolved(group), call, same, dict)
    raise error


def differs(name: str, of_first: Any, of_rank: Any, rank: int) -> Error:
    return InvalidProblem(f"{name} must be the same on every rank of the group, but is {of_first} on rank 0 and "
                          f"{of_rank} on rank {rank}. Give all ranks the same.")


def exchange(group: Any, said: bytes) -> list[bytes]:
    """What each rank says, rank 0 first. LaunchFailed where one says nothing within the group's timeout."""
    if group not in _boards: _boards[group] = new_board(group)
    board = _boards[group]
    return gathered_words(group, said) if board is None else board.exchange(said)


def board_of(group: Any) -> Board | None:
    """That on which the group's ranks have agreed on a call; None where they are on several hosts."""
    return _boards.get(group)


def new_board(group: Any) -> Board | None:
    """All ranks of the group call it; all get one, or None where they do not share a host's memory."""
    ranks, rank = group.size(), group.rank()
    path = gathered_words(group, boards.new_file(ranks, BYTES).encode() if rank == 0 else b"")[0].decode()
    board = boards.opened(path, ranks, rank, BYTES, timeout_of(host_group(group), "cpu"))
    # Each rank holds its lock before another looks whether it does.
    everywhere = all(each == b"yes" for each in gathered_words(group, b"yes" if board else b"no"))
    if rank == 0: boards.remove(path)
    return board if everywhere else None


def gathered_words(group: Any, said: bytes) -> list[bytes]:
    sent = torch.frombuffer(bytearray(said.ljust(BYTES)), dtype=torch.uint8)
    return [bytes(each.numpy()).rstrip() for each in gathered(host_group(group), sent)]


def gathered(group: Any, x: Tensor) -> Tensor:
    """[ranks, ...]: x of each rank, which have one shape."""
    return collective(group, dist.all_gather_into_tensor, x.new_empty((group.size(), *x.shape)), x)


def collective(group: Any, transfer: Callable[..., Any], to: Tensor, x: Tensor) -> Tensor:
    """to, which is dense, after a transfer of x; LaunchFailed where it fails."""
    try:
        if x.numel(): transfer(to.flatten(), x.contiguous().flatten(), group=group)
    except RuntimeError as error: raise lost(group, error) from error
    return to


def lost(group: Any, error: BaseException) -> Error:
    """What is raised where a transfer has failed."""
    return LaunchFailed(f"group must have ranks that answer, but a transfer between its {group.size()} ranks has "
                        f"failed: {' '.join(str(error).split())[:400]} A rank has died, hangs or calls something else. "
                        "End all ranks and make a new group.")
