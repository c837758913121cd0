# SPDX-License-Identifier: Apache-2.0
"""Documents, which are packed into one row of all ranks, for froghopper.torch.context_parallel: cu_seqlens as users
give it, in host memory, since what a rank sends depends on it; and on a GPU the tables of a plan.
"""
import weakref
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from froghopper._errors import InvalidProblem, InvalidTensor, InvalidType
from froghopper._parallel import Plan
from froghopper._values import counted, shown, type_of, whole_number

SHOWN = 12  # numbers of cu_seqlens that a message has, if there are no more
TYPES = (torch.int32, torch.int64)

_tables: weakref.WeakKeyDictionary[Plan, tuple[Tensor, Any]] = weakref.WeakKeyDictionary()


def documents_of(cu_seqlens: Any) -> Tensor:
    """[documents + 1] int64 in host memory. Reading one that is on a GPU waits for it."""
    if isinstance(cu_seqlens, Tensor):
        if cu_seqlens.dtype not in TYPES:
            raise InvalidType(f"cu_seqlens must be int32 or int64, but is {cu_seqlens.dtype}. Use cu_seqlens.long().")
        if cu_seqlens.layout is not torch.strided or cu_seqlens.is_nested or cu_seqlens.is_meta:
            raise InvalidType("cu_seqlens must be a plain dense tensor that holds numbers, but is "
                              f"{'nested' if cu_seqlens.is_nested else cu_seqlens.layout} on {cu_seqlens.device}. Give "
                              "a list.")
        found = cu_seqlens.detach().to("cpu", torch.int64)
    elif isinstance(cu_seqlens, (list, tuple)):
        found = torch.tensor([whole_number(f"cu_seqlens[{i}]", x) for i, x in enumerate(cu_seqlens)],
                             dtype=torch.int64)
    else:
        raise InvalidType(f"cu_seqlens must be a tensor or a list, but is {type_of(cu_seqlens)}. Use "
                          "torch.tensor(cu_seqlens).")
    if found.ndim != 1 or found.shape[0] < 2:
        raise InvalidTensor("cu_seqlens must be [documents + 1] with one document at least, but has the shape "
                            f"{list(found.shape)}. Use [0, rows] for one document.")
    return found


def check_documents(cu_seqlens: Sequence[int], rows: int) -> None:
    """rows: of all ranks."""
    if cu_seqlens[0] != 0:
        raise InvalidProblem(f"cu_seqlens must begin with 0, but begins with {cu_seqlens[0]}. If it holds lengths, "
                             "give their cumulative sums behind a 0; else use cu_seqlens - cu_seqlens[0] with the rows "
                             "from there on.")
    for at, (begin, end) in enumerate(zip(cu_seqlens, cu_seqlens[1:])):
        if end < begin:
            raise InvalidProblem(f"cu_seqlens must not fall, as documents lie end to end, but falls from {begin} to "
                                 f"{end} after document {at}. Let it rise.")
    if cu_seqlens[-1] != rows:
        raise InvalidProblem(f"cu_seqlens must end with {rows}, the rows of all ranks, but ends with {cu_seqlens[-1]}. "
                             "Let the last document end there; rows of padding may be a document.")


def in_words(documents: Tensor | None) -> str | None:
    """What all ranks must have alike, in a few words."""
    if documents is None: return None
    if documents.numel() <= SHOWN: return shown(documents.tolist())
    return (f"{documents[:SHOWN // 2].tolist()} ... of {counted(documents.numel() - 1, 'document')} with the checksum "
            f"{zlib.crc32(documents.numpy().tobytes()):08x}")


def places_within(places: Tensor, documents: list[int]) -> Tensor:
    """places: rows of the whole. Where each is in its document."""
    begins = torch.tensor(documents, device=places.device)
    return places - begins[torch.searchsorted(begins, places, right=True) - 1]


def tables_on(plan: Plan, device: torch.device) -> int:
    """The address of the plan's tables on that GPU, for work in the current stream; 0: it has none. They are copied
    once, without waiting."""
    if not plan.table_count: return 0
    stream: Any = torch.cuda.current_stream(device)
    if plan not in _tables:
        held = torch.tensor(plan.tables(), dtype=torch.int32).pin_memory().to(device, non_blocking=True)
        _tables[plan] = held, stream.record_event()
    held, copied = _tables[plan]
    if not torch.cuda.is_current_stream_capturing():  # a capture begins when all streams are done
        stream.wait_event(copied)
        held.record_stream(stream)
    return int(held.data_ptr())
