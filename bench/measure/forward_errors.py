# SPDX-License-Identifier: Apache-2.0
"""The measurements of bench/errors.py forward."""
import os

import torch

from . import contenders
from .command import append, commit_here, now
from .froghopper_ctypes import Froghopper
from .inputs import attention, outliers, rmse

DIMS, BATCH, ROWS, HEADS = (64, 128, 256), 4, 4096, 8
KINDS = {"outliers": None, "normal": (1, 1), "q x 4": (4, 1), "q x 10": (10, 1), "q and k x 4": (4, 4)}
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}


def run(a):
    library, fa3 = Froghopper(os.path.abspath(a.library)), flash_attention_3()
    facts = dict(gpu=torch.cuda.get_device_name(), commit=a.commit or commit_here(), date=now())
    for kind in KINDS:
        for name in DTYPES:
            for dim in DIMS:
                line = f"fwd {name} b{BATCH} hq{HEADS} hkv{HEADS} sq{ROWS} skv{ROWS} d{dim}"
                errors = errors_of(library, fa3, line, kind)
                print(f"{kind:<12} {name:<5} d{dim:<4}" + "".join(f" {k} {e:.3e}" for k, e in errors.items()) +
                      (f"  ours/fa3 {errors['froghopper'] / errors['fa3']:.3f}" if "fa3" in errors else ""), flush=True)
                append(a.json, *({"problem": line, "pass": "fwd error", "data": kind, "impl": impl,
                                  "rmse": float(f"{error:.4g}"), **facts} for impl, error in errors.items()))


def errors_of(library, fa3, line, kind):
    """{implementation: root mean square error of o}"""
    cell = contenders.Cell.make(library, line, "cuda")
    for tensor, draw in zip((cell.q, cell.k, cell.v), inputs(kind, cell)): tensor.copy_(draw)
    exact = attention(cell.q, cell.k, cell.v)
    (_, call), = contenders.froghopper(cell, library, "hopper").items()
    call()
    torch.cuda.synchronize()
    found = {"froghopper": cell.o, "standard": attention(cell.q, cell.k, cell.v, cell.q.dtype)}
    if fa3: found["fa3"] = fa3(cell.q, cell.k, cell.v)
    return {impl: rmse(o, exact) for impl, o in found.items()}


def inputs(kind, cell):
    generator = torch.Generator("cuda").manual_seed(1)
    def normal(like): return torch.randn(like.shape, device="cuda", generator=generator)
    for i, like in enumerate((cell.q, cell.k, cell.v)):
        if kind == "outliers": yield outliers(like.shape, "cuda", generator)
        else: yield normal(like) * (*KINDS[kind], 1)[i]


def flash_attention_3():
    try: from flash_attn_interface import flash_attn_func
    except Exception as problem:
        print(f"no fa3: {type(problem).__name__}: {problem}"[:300])
        return None
    def call(q, k, v):
        o = flash_attn_func(q, k, v)
        return o[0] if isinstance(o, tuple) else o
    return call
