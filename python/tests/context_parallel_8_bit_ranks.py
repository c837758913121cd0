# SPDX-License-Identifier: Apache-2.0
"""The ranks of test_context_parallel_8_bit.py, started as context_parallel_ranks.py starts its own.

usage: python3 context_parallel_8_bit_ranks.py FOLDER      writes what each rank found to FOLDER/JOB.RANK
"""
import itertools
import pathlib
import sys

import torch
from context_parallel_ranks import CASES, GRIDS, SCHEMES, caught, main, padded, places_of, whole_of

import froghopper
from froghopper.torch import context_parallel as cp

OF_8_BITS = {"causal": "float8_e4m3fn", "six heads": "float8_e5m2", "one key head": "float8_e4m3fn",
             "window": "float8_e4m3fn", "softcap, scale, sink": "float8_e4m3fn",
             "fewer rows than ranks": "float8_e4m3fn", "documents, everything": "float8_e5m2",
             "no rows": "float8_e4m3fn"}  # case -> type of k and v


def case_of_8_bits(name): return CASES[name] | dict(dtype="bfloat16", dims=(32, 16))


def in_8_bits(rank, size):
    """Of each of OF_8_BITS and scheme: places, o, lse and the bytes that this rank has received, or the refusal; what
    calls that cannot be are answered with; and what infinite gives."""
    found = {}
    for (name, kv_dtype), scheme in itertools.product(OF_8_BITS.items(), SCHEMES[1:]):
        case = case_of_8_bits(name)
        places, (*tensors, _, _, options) = places_of(case), whole_of(case)
        q, k, v = (padded(x[:, places]) for x in tensors)
        before = cp.moved()
        try:
            o, lse = cp.attention(q, k, v, scheme=scheme, heads_ranks=2 if scheme in GRIDS else 0, return_lse=True,
                                  layout=case["layout"], kv_dtype=kv_dtype, **options)
            found[name, scheme] = places, o, lse, cp.moved() - before
        except froghopper.Error as error: found[name, scheme] = str(error)
    x = torch.ones(1, 4, 2, 16, dtype=torch.bfloat16)
    return found, [caught(call) for call in (
        lambda: cp.attention(x.clone().requires_grad_(), x, x, kv_dtype=torch.float8_e4m3fn),
        lambda: cp.attention(x.float(), x.float(), x.float(), kv_dtype="float8_e4m3fn"),
        lambda: cp.attention(x, x, x, kv_dtype=torch.int8),
        lambda: cp.attention(x, x, x, kv_dtype="float8_e5m2" if rank else "float8_e4m3fn"))], infinite(rank)


def infinite(rank):
    """o where rank 1's first key has an infinite element in head 0, and of the same without it; contiguous."""
    places = cp.positions(64, layout="contiguous")
    q, k, v = (x[:, places] for x in whole_of(case_of_8_bits("bf16") | dict(rows=64))[:3])
    other = k.clone()
    if rank == 1: other[:, 0, 0, 0] = float("inf")
    return [cp.attention(q, each, v, causal=True, layout="contiguous", kv_dtype="float8_e4m3fn")
            for each in (other, k)]


ROUNDS = [[("2", in_8_bits, 2, 30), ("4", in_8_bits, 4, 30)]]

if __name__ == "__main__": main(pathlib.Path(sys.argv[1]), ROUNDS)
