# SPDX-License-Identifier: Apache-2.0
"""The C interface as ctypes: structs, enumerators, types of functions. Nothing is loaded here.

Written by tools/gen_python.py from include/froghopper/cp.h, which says what each field means. Do not edit; to
write it again: python3 tools/check_current.py build/froghopper --write
"""
import ctypes
import enum
from typing import Any

from froghopper import _c


class CpScheme(enum.IntEnum):
    CP_AUTO = 0
    CP_RING = 1
    CP_ALL_GATHER = 2
    CP_ALL_TO_ALL = 3
    CP_ALL_TO_ALL_RING = 4
    CP_ALL_TO_ALL_GATHER = 5


class CpLayout(enum.IntEnum):
    CP_LAYOUT_AUTO = 0
    CP_CONTIGUOUS = 1
    CP_ZIGZAG = 2
    CP_BY_DOCUMENT = 3


class CpTransfers(enum.IntEnum):
    CP_SEND_RECV = 0
    CP_PEER_COPIES = 1


class CpTopology(ctypes.Structure):
    size: int
    latency: float
    bandwidth: float
    gather_bandwidth: float
    slowdown: float
    copy_latency: float
    copy_bandwidth: float
    copy_gather_bandwidth: float
    copy_slowdown: float
    far_latency: float
    far_bandwidth: float
    memory: float
    call: float
    forward_flops: float
    backward_flops: float
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("latency", ctypes.c_double),
        ("bandwidth", ctypes.c_double),
        ("gather_bandwidth", ctypes.c_double),
        ("slowdown", ctypes.c_double),
        ("copy_latency", ctypes.c_double),
        ("copy_bandwidth", ctypes.c_double),
        ("copy_gather_bandwidth", ctypes.c_double),
        ("copy_slowdown", ctypes.c_double),
        ("far_latency", ctypes.c_double),
        ("far_bandwidth", ctypes.c_double),
        ("memory", ctypes.c_double),
        ("call", ctypes.c_double),
        ("forward_flops", ctypes.c_double),
        ("backward_flops", ctypes.c_double),
    ]


class CpProblem(ctypes.Structure):
    size: int
    whole: int | None
    ranks: int
    rank: int
    scheme: int
    layout: int
    dtype_out: int
    check_interval: int
    ranks_per_host: int
    workspace_limit: int
    transfers: int
    documents: int
    cu_seqlens: int | None
    heads_ranks: int
    topology: int | None
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("whole", ctypes.c_void_p),
        ("ranks", ctypes.c_int64),
        ("rank", ctypes.c_int64),
        ("scheme", ctypes.c_int),
        ("layout", ctypes.c_int),
        ("dtype_out", ctypes.c_int),
        ("check_interval", ctypes.c_int32),
        ("ranks_per_host", ctypes.c_int64),
        ("workspace_limit", ctypes.c_uint64),
        ("transfers", ctypes.c_int),
        ("documents", ctypes.c_int32),
        ("cu_seqlens", ctypes.c_void_p),
        ("heads_ranks", ctypes.c_int64),
        ("topology", ctypes.c_void_p),
    ]


class CpRange(ctypes.Structure):
    begin: int
    end: int
    _fields_ = [
        ("begin", ctypes.c_int64),
        ("end", ctypes.c_int64),
    ]


class CpTransfer(ctypes.Structure):
    peer: int
    data: int | None
    bytes: int
    peer_offset: int
    _fields_ = [
        ("peer", ctypes.c_int64),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("peer_offset", ctypes.c_uint64),
    ]


class CpTransport(ctypes.Structure):
    size: int
    context: int | None
    ranks: int
    rank: int
    exchange: int | None
    wait: int | None
    cancel: int | None
    error: int | None
    agree: int | None
    transfers: int
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("context", ctypes.c_void_p),
        ("ranks", ctypes.c_int64),
        ("rank", ctypes.c_int64),
        ("exchange", ctypes.c_void_p),
        ("wait", ctypes.c_void_p),
        ("cancel", ctypes.c_void_p),
        ("error", ctypes.c_void_p),
        ("agree", ctypes.c_void_p),
        ("transfers", ctypes.c_int),
    ]


class CpMemory(ctypes.Structure):
    size: int
    context: int | None
    fill: int | None
    copy: int | None
    add: int | None
    convert: int | None
    spread: int | None
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("context", ctypes.c_void_p),
        ("fill", ctypes.c_void_p),
        ("copy", ctypes.c_void_p),
        ("add", ctypes.c_void_p),
        ("convert", ctypes.c_void_p),
        ("spread", ctypes.c_void_p),
    ]


class CpTensors(ctypes.Structure):
    size: int
    call: int
    q: int | None
    k: int | None
    v: int | None
    o: int | None
    lse: int | None
    sink: int | None
    alibi_slopes: int | None
    grad_o: int | None
    grad_lse: int | None
    grad_q: int | None
    grad_k: int | None
    grad_v: int | None
    grad_sink: int | None
    tables: int | None
    scale_k: int | None
    scale_v: int | None
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("call", ctypes.c_uint64),
        ("q", ctypes.c_void_p),
        ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("o", ctypes.c_void_p),
        ("lse", ctypes.c_void_p),
        ("sink", ctypes.c_void_p),
        ("alibi_slopes", ctypes.c_void_p),
        ("grad_o", ctypes.c_void_p),
        ("grad_lse", ctypes.c_void_p),
        ("grad_q", ctypes.c_void_p),
        ("grad_k", ctypes.c_void_p),
        ("grad_v", ctypes.c_void_p),
        ("grad_sink", ctypes.c_void_p),
        ("tables", ctypes.c_void_p),
        ("scale_k", ctypes.c_void_p),
        ("scale_v", ctypes.c_void_p),
    ]


class CpPeers(ctypes.Structure):
    size: int
    ranks: int
    rank: int
    workspaces: int | None
    signals: int | None
    copy_stream: int | None
    library: int | None
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("ranks", ctypes.c_int64),
        ("rank", ctypes.c_int64),
        ("workspaces", ctypes.c_void_p),
        ("signals", ctypes.c_void_p),
        ("copy_stream", ctypes.c_void_p),
        ("library", ctypes.c_char_p),
    ]


# name: (type of the result, types of the arguments)
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "fh_cp_topology_parse": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_void_p]),
    "fh_cp_plan_create": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]),
    "fh_cp_plan_destroy": (None, [ctypes.c_void_p]),
    "fh_cp_plan_rows": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]),
    "fh_cp_plan_workspace_bytes": (ctypes.c_uint64, [ctypes.c_void_p]),
    "fh_cp_plan_on_gpu": (ctypes.c_int, [ctypes.c_void_p]),
    "fh_cp_plan_scheme": (ctypes.c_int, [ctypes.c_void_p]),
    "fh_cp_plan_layout": (ctypes.c_int, [ctypes.c_void_p]),
    "fh_cp_plan_heads_ranks": (ctypes.c_int64, [ctypes.c_void_p]),
    "fh_cp_plan_bytes_in": (ctypes.c_uint64, [ctypes.c_void_p]),
    "fh_cp_plan_bytes_out": (ctypes.c_uint64, [ctypes.c_void_p]),
    "fh_cp_plan_tables": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_void_p]),
    "fh_cp_plan_seconds": (ctypes.c_double, [ctypes.c_void_p]),
    "fh_cp_plan_text": (ctypes.c_char_p, [ctypes.c_void_p]),
    "fh_cp_explain": (ctypes.c_char_p, [ctypes.c_void_p, ctypes.c_char_p]),
    "fh_cp_plan_run": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p]),
    "fh_cp_nccl_transport": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_double, ctypes.c_void_p, ctypes.c_void_p]),
    "fh_cp_nccl_transport_destroy": (None, [ctypes.c_void_p]),
    "fh_cp_copy_transport": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "fh_cp_copy_transport_destroy": (None, [ctypes.c_void_p]),
    "fh_cp_cuda_memory": (ctypes.c_int, [ctypes.c_void_p]),
    "fh_cp_last_error": (ctypes.c_char_p, []),
    "fh_cp_scheme_name": (ctypes.c_char_p, [ctypes.c_int]),
}
