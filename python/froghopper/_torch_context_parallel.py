# SPDX-License-Identifier: Apache-2.0
"""Exact attention over sequences whose rows are spread over the ranks of a group, with gradients.

    from froghopper.torch import context_parallel as cp          under torchrun, after init_process_group
    x = cp.shard(tokens)                                         this rank's rows of what all ranks have
    rotary = table[cp.positions(tokens.shape[1])]                where these lie in the sequence
    o = cp.attention(q, k, v, causal=True)                       q, k, v, o: this rank's rows
    whole = cp.unshard(o.detach())                               all rows on every rank
    o = cp.decode(q, k_part, v_part, seqused_kv=lengths)         a step of decoding: this rank's part of the cache
    cp.probe(file="machine.txt")                                 measure the machine, for plans to come
    print(cp.explain("fwd bf16 b1 hq64 hkv8 sq1048576 skv1048576 d128 causal", 8, "h100"))

attention moves k and v, or heads, between the ranks, as its scheme says, and computes on every rank the rows that the
rank has. Partial results are merged, and gradients added, in fp32 and in a fixed order. All ranks must call it with the
same options, in the same order; where they do not, each gets an error. docs/15-context-parallel.md has the rest.
"""
import functools
from collections.abc import Sequence
from typing import Any, Literal, get_args, overload

import torch
from torch import Tensor

from froghopper import _torch_cp_8_bit as of_8_bits
from froghopper import _torch_cp_calls as calls
from froghopper import _torch_cp_documents as packing
from froghopper import _torch_cp_dtensors as dtensors
from froghopper import _torch_cp_group as groups
from froghopper import _torch_cp_ops as ops
from froghopper._call import Window, flag, number
from froghopper._errors import InvalidProblem, Unsupported
from froghopper._parallel import explain, scheme_for
from froghopper._torch_calls import check_tensor
from froghopper._torch_checks import sink_of
from froghopper._torch_cp_decode import decode
from froghopper._torch_cp_calls import moved
from froghopper._torch_cp_layout import Layout, check_layout, positions, shard, unshard
from froghopper._torch_cp_probe import probe
from froghopper._torch_cp_words import tells_others
from froghopper._torch_eager import PLAIN, computable, is_compiling, modes, requires_grad
from froghopper._torch_options import check_slopes, decided, plain, window_of
from froghopper._values import shown, whole_number
from froghopper._words import takes_words_of_others

Scheme = Literal["auto", "ring", "all_gather", "all_to_all", "all_to_all_ring", "all_to_all_gather"]
Transfers = Literal["auto", "copies", "send_recv"]

__all__ = ["attention", "decode", "explain", "moved", "positions", "probe", "shard", "unshard"]


def __dir__() -> list[str]: return sorted(__all__)


@overload
def attention(q: Tensor, k: Tensor, v: Tensor, group: Any = ..., *, causal: bool = ..., window: Window | None = ...,
              scale: float | None = ..., softcap: float | None = ..., sink: Tensor | None = ...,
              alibi_slopes: Tensor | None = ..., cu_seqlens: Tensor | Sequence[int] | None = ...,
              scheme: Scheme = ..., heads_ranks: int = ..., layout: Layout | None = ..., deterministic: bool = ...,
              transfers: Transfers = ..., kv_dtype: torch.dtype | str | None = ...,
              return_lse: Literal[False] = ...) -> Tensor: ...


@overload
def attention(q: Tensor, k: Tensor, v: Tensor, group: Any = ..., *, causal: bool = ..., window: Window | None = ...,
              scale: float | None = ..., softcap: float | None = ..., sink: Tensor | None = ...,
              alibi_slopes: Tensor | None = ..., cu_seqlens: Tensor | Sequence[int] | None = ...,
              scheme: Scheme = ..., heads_ranks: int = ..., layout: Layout | None = ..., deterministic: bool = ...,
              transfers: Transfers = ..., kv_dtype: torch.dtype | str | None = ...,
              return_lse: Literal[True]) -> tuple[Tensor, Tensor]: ...


@tells_others
@takes_words_of_others("torch.context_parallel")
def attention(q: Tensor, k: Tensor, v: Tensor, group: Any = None, *, causal: bool = False,
              window: Window | None = None, scale: float | None = None, softcap: float | None = None,
              sink: Tensor | None = None, alibi_slopes: Tensor | None = None,
              cu_seqlens: Tensor | Sequence[int] | None = None, scheme: Scheme = "auto", heads_ranks: int = 0,
              layout: Layout | None = None, deterministic: bool = False, transfers: Transfers = "auto",
              kv_dtype: torch.dtype | str | None = None, return_lse: bool = False) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale q k^T + mask) v over the rows of all ranks, with gradients of q, k, v and sink.

    q              [batch, rows of this rank, heads_q, dim]; float16, bfloat16, on the CPU float32. As many rows as
                   shard gives this rank, maybe none
    k, v           [batch, rows of this rank, heads_kv, dim], the rows of q; v may have its own dim
    group          whose ranks share the sequence: a ProcessGroup, a DeviceMesh of one dimension, None for all ranks
    causal, window, scale, softcap   as for froghopper.torch.attention, of rows and keys as they lie in the whole
                   sequence
    alibi_slopes   [heads_q] float32, the same on every rank; without gradient
    sink           [heads_q], float32 or 16 bits, the same on every rank. Its gradient is that of this rank's rows, as
                   that of any parameter which all ranks hold: add it up over the group
    cu_seqlens     packed sequences: the rows of all ranks are documents, one after the other, and a row attends only
                   to keys of its own. [documents + 1], 0 and then the end of each, the same on every rank, wherever
                   the borders of ranks lie; masks and slopes count within a document, and batch is 1. A list, or an
                   int32 or int64 tensor. What is sent depends on it, so one on a GPU is read back once a call, for
                   which the host waits: give one in host memory. Equal cu_seqlens_q and cu_seqlens_kv are taken for
                   it, and bounds such as max_seqlen_q are not needed
    scheme         how k and v come to the queries. "ring": from rank to rank, a part at a time; "all_gather": all parts
                   at once, or in chunks; "all_to_all": each rank gets all rows of some heads; "all_to_all_ring": heads
                   go between neighbours, k and v between such groups, as in a ring; "all_to_all_gather": the same with
                   an all-gather; "auto": what is expected to take least time
    heads_ranks    of these last two: how many neighbours exchange heads, such as the ranks of a host; it divides the
                   ranks of the group. 0: as many as are expected to take least time. 0 with other schemes
    layout         which rows this rank has: "zigzag", "contiguous", "by_document", as shard cuts them. None:
                   "contiguous" for DTensors, else "zigzag". "by_document" needs cu_seqlens, and divides each document
                   by itself, so that ranks have equal work under a causal mask
    deterministic  gradients are the same bits in every run, also after torch.use_deterministic_algorithms(True); o
                   always is
    transfers      how bytes move between ranks. "copies": the GPUs of one host copy into each other's memory, beside
                   which attention keeps its speed; "send_recv": by the group's backend; "auto": copies where they can
                   be, which needs ranks on one host, and no CUDA graph
    kv_dtype       for inference: torch.float8_e4m3fn or torch.float8_e5m2, in which k and v move, half as many bytes,
                   and are attended to. Each head of k and of v has one scale, of its largest element on any rank, so
                   that results do not depend on the number of ranks. None: they stay as they are
    return_lse     also the logarithm of the softmax's denominator, [batch, heads_q, rows] float32, differentiable too

    Returns o [batch, rows of this rank, heads_q, dim of v] in the type of q, or (o, lse). DTensors that are sharded
    along the rows over one dimension of their mesh, which then is the group, give DTensors; other dimensions may
    divide the batch and the heads. For the backward pass q, k, v, o and lse of this rank's rows are kept, no others.
    Raises what froghopper.torch.attention raises, on every rank where one refuses its arguments or where they disagree
    (ValueError, which names the argument and both values); RuntimeError where a rank does not answer within the group's
    timeout, after which a new group is needed.
    """
    try:
        for name, x in (("q", q), ("k", k), ("v", v)): check_tensor(name, x)
        if layout is not None: check_layout(layout, cu_seqlens)
        for name, word, known in (("scheme", scheme, get_args(Scheme)),
                                  ("transfers", transfers, get_args(Transfers))):
            if not isinstance(word, str) or word not in known:
                words = ", ".join(f'"{each}"' for each in known)
                meant = scheme_for(word) if name == "scheme" else "auto"
                raise InvalidProblem(f"{name} must be one of {words}, but is {shown(word)}. Use \"{meant}\".")
        sink = sink_of(sink)
        if alibi_slopes is not None: check_slopes(alibi_slopes)
        documents = None if cu_seqlens is None else packing.documents_of(cu_seqlens)
        options = calls.Options(scheme, plain(flag, "causal", causal), *window_of(window),
                              0.0 if softcap is None else plain(number, "softcap", softcap),
                              None if scale is None else plain(number, "scale", scale), decided(deterministic),
                                transfers, plain(whole_number, "heads_ranks", heads_ranks),
                                of_8_bits.name_of_type(kv_dtype))
        with_lse = plain(flag, "return_lse", return_lse)
        of_dtensors = dtensors.among(q, k, v)
        if of_dtensors: group = dtensors.group_of(q, k, v, group)
    except Exception as error:  # other ranks are told, or they would take this rank's next call for this one
        if dtensors.among(q, k, v): dtensors.refuse_together((q, k, v), group, error)
        groups.refuse_together(group, "attention", error)
    call = functools.partial(attend, documents=documents)
    if of_dtensors: o, lse = dtensors.attention(call, q, k, v, group, sink, alibi_slopes, layout, options)
    else: o, lse = call(q, k, v, group, sink, alibi_slopes, layout or "zigzag", options)
    return (o, lse) if with_lse else o


def attend(q: Tensor, k: Tensor, v: Tensor, group: Any, sink: Tensor | None, slopes: Tensor | None, layout: Layout,
           options: calls.Options, documents: Tensor | None) -> tuple[Tensor, Tensor]:
    """(o, lse) of tensors of this rank."""
    name = groups.resolved(group).group_name
    try:
        q, k, v = computable(q, k, v, False)
        calls.check_has_memory(q, q=q, k=k, v=v, sink=sink, alibi_slopes=slopes)
    except Exception as error: groups.refuse_together(group, "attention", error)
    with_grad = requires_grad(q, k, v, sink)
    if is_meta_now(q):  # the operator would return at once, and other ranks would wait
        calls.agreed(groups.resolved(name), "attention", q, k, v, sink, slopes, documents, layout, options,
                     {calls.REQUIRES_GRAD: with_grad})
    try: found: tuple[Tensor, Tensor] = ops.forward_op(q, k, v, sink, slopes, documents, name, layout, *options,
                                                      with_grad)
    except RuntimeError as error:
        if "setup_context" not in str(error): raise
        refused = Unsupported("a derivative by torch.func is asked for; attention over several ranks has gradients of "
                              "autograd alone. Use requires_grad_() and torch.autograd.grad.")
        with torch._C._DisableFuncTorch(): groups.refuse_together(group, "attention", refused)  # its tensors are plain
    return found


def is_meta_now(q: Tensor) -> bool:
    """Whether the caller has given a tensor of the device "meta", and nobody traces."""
    return q.is_meta and type(q) in PLAIN and not (is_compiling() or modes())
