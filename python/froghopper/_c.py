# SPDX-License-Identifier: Apache-2.0
"""The C interface as ctypes: structs, enumerators, types of functions. Nothing is loaded here.

Written by tools/gen_python.py from include/froghopper/froghopper.h, which says what each field means. Do not edit; to
write it again: python3 tools/check_current.py build/froghopper --write
"""
import ctypes
import enum
from typing import Any

VERSION = "0.4.0"
ALL = -1


class Status(enum.IntEnum):
    OK = 0
    INVALID_PROBLEM = 1
    UNSUPPORTED = 2
    INVALID_TENSOR = 3
    NO_DEVICE = 4
    COMPILE_FAILED = 5
    LAUNCH_FAILED = 6
    INTERNAL = 7
    INTERRUPTED = 8


class Op(enum.IntEnum):
    FORWARD = 1
    BACKWARD = 2
    QUANTISE = 3
    APPEND = 4


class Dtype(enum.IntEnum):
    USUAL = 0
    F16 = 1
    BF16 = 2
    F32 = 3
    E4M3 = 4
    E5M2 = 5


class Align(enum.IntEnum):
    BOTTOM_RIGHT = 0
    TOP_LEFT = 1


class Phase(enum.IntEnum):
    PHASE_NONE = 0
    PHASE_FIRST = 1
    PHASE_MIDDLE = 2
    PHASE_LAST = 3
    PHASE_ONLY = 4


class Problem(ctypes.Structure):
    size: int
    op: int
    dtype: int
    batch: int
    heads_q: int
    heads_kv: int
    seq_q: int
    seq_kv: int
    dim_qk: int
    dim_v: int
    total_q: int
    total_kv: int
    varlen: int
    seqused: int
    causal: int
    align: int
    window_left: int
    window_right: int
    scale: float
    softcap: float
    sink: int
    deterministic: int
    max_sms: int
    accumulate: int
    alibi: int
    dtype_kv: int
    dtype_o: int
    scale_rows: int
    scale_v_columns: int
    invariant: int
    rotate: int
    rotate_seed: int
    smooth: int
    max_logit: int
    attention_chunk: int
    page_size: int
    pages: int
    slots: int
    positions: int
    rotary_dim: int
    rotary_rows: int
    rotary_interleaved: int
    norm: int
    norm_epsilon: float
    scale_tokens: int
    dtype_rotary: int
    dtype_norm: int
    gate: int
    phase: int
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("op", ctypes.c_int),
        ("dtype", ctypes.c_int),
        ("batch", ctypes.c_int64),
        ("heads_q", ctypes.c_int64),
        ("heads_kv", ctypes.c_int64),
        ("seq_q", ctypes.c_int64),
        ("seq_kv", ctypes.c_int64),
        ("dim_qk", ctypes.c_int64),
        ("dim_v", ctypes.c_int64),
        ("total_q", ctypes.c_int64),
        ("total_kv", ctypes.c_int64),
        ("varlen", ctypes.c_int32),
        ("seqused", ctypes.c_int32),
        ("causal", ctypes.c_int32),
        ("align", ctypes.c_int),
        ("window_left", ctypes.c_int64),
        ("window_right", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("sink", ctypes.c_int32),
        ("deterministic", ctypes.c_int32),
        ("max_sms", ctypes.c_int64),
        ("accumulate", ctypes.c_int32),
        ("alibi", ctypes.c_int32),
        ("dtype_kv", ctypes.c_int),
        ("dtype_o", ctypes.c_int),
        ("scale_rows", ctypes.c_int64),
        ("scale_v_columns", ctypes.c_int32),
        ("invariant", ctypes.c_int32),
        ("rotate", ctypes.c_int32),
        ("rotate_seed", ctypes.c_uint32),
        ("smooth", ctypes.c_int32),
        ("max_logit", ctypes.c_int32),
        ("attention_chunk", ctypes.c_int64),
        ("page_size", ctypes.c_int64),
        ("pages", ctypes.c_int64),
        ("slots", ctypes.c_int32),
        ("positions", ctypes.c_int32),
        ("rotary_dim", ctypes.c_int64),
        ("rotary_rows", ctypes.c_int64),
        ("rotary_interleaved", ctypes.c_int32),
        ("norm", ctypes.c_int32),
        ("norm_epsilon", ctypes.c_float),
        ("scale_tokens", ctypes.c_int32),
        ("dtype_rotary", ctypes.c_int),
        ("dtype_norm", ctypes.c_int),
        ("gate", ctypes.c_int32),
        ("phase", ctypes.c_int),
    ]


class Tensor(ctypes.Structure):
    data: int | None
    stride_batch: int
    stride_seq: int
    stride_head: int
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("stride_batch", ctypes.c_int64),
        ("stride_seq", ctypes.c_int64),
        ("stride_head", ctypes.c_int64),
    ]


class Tensors(ctypes.Structure):
    size: int
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    lse: int | None
    cu_seqlens_q: int | None
    cu_seqlens_kv: int | None
    seqused_q: int | None
    seqused_kv: int | None
    sink: int | None
    grad_o: Tensor
    grad_q: Tensor
    grad_k: Tensor
    grad_v: Tensor
    grad_lse: int | None
    grad_sink: int | None
    scale_q: Tensor
    scale_k: Tensor
    scale_v: Tensor
    quantised_q: Tensor
    quantised_k: Tensor
    quantised_v: Tensor
    mean_k: Tensor
    mean_v: Tensor
    alibi_slopes: Tensor
    max_logit: int | None
    block_table: Tensor
    cache_k: Tensor
    cache_v: Tensor
    q_out: Tensor
    slot_mapping: int | None
    positions: int | None
    rotary_cos: Tensor
    rotary_sin: Tensor
    norm_q: Tensor
    norm_k: Tensor
    gate: Tensor
    grad_gate: Tensor
    lse_stride_batch: int
    lse_stride_seq: int
    lse_stride_head: int
    o_sum: Tensor
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("o", Tensor),
        ("lse", ctypes.c_void_p),
        ("cu_seqlens_q", ctypes.c_void_p),
        ("cu_seqlens_kv", ctypes.c_void_p),
        ("seqused_q", ctypes.c_void_p),
        ("seqused_kv", ctypes.c_void_p),
        ("sink", ctypes.c_void_p),
        ("grad_o", Tensor),
        ("grad_q", Tensor),
        ("grad_k", Tensor),
        ("grad_v", Tensor),
        ("grad_lse", ctypes.c_void_p),
        ("grad_sink", ctypes.c_void_p),
        ("scale_q", Tensor),
        ("scale_k", Tensor),
        ("scale_v", Tensor),
        ("quantised_q", Tensor),
        ("quantised_k", Tensor),
        ("quantised_v", Tensor),
        ("mean_k", Tensor),
        ("mean_v", Tensor),
        ("alibi_slopes", Tensor),
        ("max_logit", ctypes.c_void_p),
        ("block_table", Tensor),
        ("cache_k", Tensor),
        ("cache_v", Tensor),
        ("q_out", Tensor),
        ("slot_mapping", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("rotary_cos", Tensor),
        ("rotary_sin", Tensor),
        ("norm_q", Tensor),
        ("norm_k", Tensor),
        ("gate", Tensor),
        ("grad_gate", Tensor),
        ("lse_stride_batch", ctypes.c_int64),
        ("lse_stride_seq", ctypes.c_int64),
        ("lse_stride_head", ctypes.c_int64),
        ("o_sum", Tensor),
    ]


# name: (type of the result, types of the arguments)
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "fh_plan_create": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]),
    "fh_plan_destroy": (None, [ctypes.c_void_p]),
    "fh_plan_workspace_bytes": (ctypes.c_size_t, [ctypes.c_void_p]),
    "fh_plan_on_gpu": (ctypes.c_int, [ctypes.c_void_p]),
    "fh_plan_line": (ctypes.c_char_p, [ctypes.c_void_p]),
    "fh_plan_run": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]),
    "fh_attention": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]),
    "fh_workspace_bytes": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]),
    "fh_problem_parse": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_void_p]),
    "fh_problem_print": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]),
    "fh_explain": (ctypes.c_char_p, [ctypes.c_void_p, ctypes.c_char_p]),
    "fh_last_error": (ctypes.c_char_p, []),
    "fh_status_name": (ctypes.c_char_p, [ctypes.c_int]),
    "fh_version": (ctypes.c_char_p, []),
    "fh_set_log": (None, [ctypes.c_void_p, ctypes.c_void_p]),
    "fh_watch_interrupts": (None, [ctypes.c_int]),
}
