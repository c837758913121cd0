# SPDX-License-Identifier: Apache-2.0
"""Calls of froghopper.torch.context_parallel that are wrong on one rank or on all, for context_parallel_ranks.py."""
import os
import time

import numpy as np
import torch
import torch.distributed as dist

import froghopper
from froghopper.torch import context_parallel as cp


def disagreeing(rank, size):
    """What each disagreement is answered with, on this rank; the group goes on after each."""
    def q(*shape, dtype=torch.float32): return torch.ones(*shape, dtype=dtype)
    last, found = rank == size - 1, {}
    found["unknown group"] = caught(lambda: cp.attention(*[q(1, 4, 2, 8)] * 3, "no such group"))[1]
    sides = {
        "heads": lambda: (q(1, 4, 4 if last else 2, 8), *[q(1, 4, 2, 8)] * 2, {}),
        "batch": lambda: (*[q(2 if last else 1, 4, 2, 8)] * 3, {}),
        "dtype": lambda: (*[q(1, 4, 2, 8, dtype=torch.bfloat16 if last else torch.float32)] * 3, {}),
        "causal": lambda: (*[q(1, 4, 2, 8)] * 3, dict(causal=last)),
        "window": lambda: (*[q(1, 4, 2, 8)] * 3, dict(window=(3, 0) if last else None)),
        "window_size": lambda: (*[q(1, 4, 2, 8)] * 3, dict(window_size=(3 if last else 2, -1))),
        "kv_dtype": lambda: (*[q(1, 4, 2, 8, dtype=torch.bfloat16)] * 3, dict(
            kv_dtype="float8_e4m3fn" if last else None)),
        "scale": lambda: (*[q(1, 4, 2, 8)] * 3, dict(scale=0.5 if last else None)),
        "scheme": lambda: (*[q(1, 4, 2, 8)] * 3, dict(scheme="all_gather" if last else "ring")),
        "heads_ranks": lambda: (*[q(1, 4, 6, 8)] * 3, dict(scheme="all_to_all_ring", heads_ranks=3 if last else 1)),
        "heads_ranks of others": lambda: (*[q(1, 4, 6, 8)] * 3, dict(heads_ranks=2)),
        "heads_ranks of a ring": lambda: (*[q(1, 4, 6, 8)] * 3, dict(scheme="ring", heads_ranks=3)),
        "layout": lambda: (*[q(1, 4, 2, 8)] * 3, dict(layout="contiguous" if last else "zigzag")),
        "transfers": lambda: (*[q(1, 4, 2, 8)] * 3, dict(transfers="send_recv" if last else "auto")),
        "copies on the CPU": lambda: (*[q(1, 4, 2, 8)] * 3, dict(transfers="copies")),
        "unknown transfers": lambda: (*[q(1, 4, 2, 8)] * 3, dict(transfers="nccl")),
        "requires_grad": lambda: (q(1, 4, 2, 8).requires_grad_(last), *[q(1, 4, 2, 8)] * 2, {}),
        "values of sink": lambda: (*[q(1, 4, 2, 8)] * 3, dict(sink=torch.tensor([0.5, 2.0 if last else 1.0]))),
        "values of slopes": lambda: (*[q(1, 4, 2, 8)] * 3, dict(alibi_slopes=torch.tensor([0.5, 2.0 if last else 1]),
                                                                scheme="all_gather")),
        "slopes of a ring": lambda: (*[q(1, 4, 2, 8)] * 3, dict(alibi_slopes=torch.ones(2), scheme="ring")),
        "sink": lambda: (*[q(1, 4, 2, 8)] * 3, dict(sink=torch.ones(2) if last else None)),
        "refusal": lambda: (*[q(1, 4, 2, 8)] * 2, q(1, 4, 2, 8)[0] if last else q(1, 4, 2, 8), {}),
        "heads for rows": lambda: (q(1, 4, 12, 8), *[q(1, 2, 12, 8)] * 2, {}),
        "heads for rows of k": lambda: (q(1, 12, 4, 8), *[q(1, 2, 12, 8)] * 2, dict(sink=q(4))),
        "two lists": lambda: (*[q(1, 4, 2, 8)] * 3, dict(cu_seqlens_q=[0, 5, 12], cu_seqlens_k=[0, 6, 12])),
        "rows of zigzag": lambda: (*[q(1, 9 if last else 4, 2, 8)] * 3, {}),
        **{f"documents, {name}": lambda options=options: (*[q(1, 4, 2, 8)] * 3, options) for name, options in {
            "other ones": dict(cu_seqlens=torch.tensor([0, 6 if last else 5, 12])),
            "many": dict(cu_seqlens=[*range(7), 6 if last else 7, *range(8, 13)]),
            "on one rank": dict(cu_seqlens=[0, 12] if last else None),
            "begin": dict(cu_seqlens=[1, 12]), "fall": dict(cu_seqlens=(0, 7, 6, 12)),
            "total": dict(cu_seqlens=[0, 5, 13]), "none": dict(cu_seqlens=[0] if last else [0, 12]),
            "type": dict(cu_seqlens=torch.ones(3)), "not a list": dict(cu_seqlens=12),
        }.items()},
        "by document, one rank": lambda: (*[q(1, 4, 2, 8)] * 3, dict(
            layout="by_document", cu_seqlens=None if last else [0, 5, 12])),
        "by document, rows": lambda: (*[q(1, 2 if last else 4, 2, 8)] * 3, dict(layout="by_document",
                                                                                cu_seqlens=[0, 5, 10])),
        "documents, batch": lambda: (*[q(2, 4, 2, 8)] * 3, dict(cu_seqlens=[0, 5, 12])),
    }
    plain = q(1, 4, 2, 8)
    strange = {  # what no operator of PyTorch takes, on one rank alone
        "sparse": dict(k=plain.to_sparse()), "quantised": dict(v=torch.quantize_per_tensor(plain, 1, 0, torch.quint8)),
        "nested": dict(q=torch.nested.nested_tensor([plain[0]])), "without memory": dict(k=plain.to("meta")),
        "all without memory": dict.fromkeys("qkv", plain.to("meta")),
        "sparse sink": dict(sink=q(2).to_sparse()), "sink without memory": dict(sink=q(2).to("meta")),
        "sparse documents": dict(cu_seqlens=torch.tensor([0, 12]).to_sparse()),
        "documents without memory": dict(cu_seqlens=torch.tensor([0, 12], device="meta")),
        "array for a layout": dict(layout=np.array(["zigzag", "ring"])),
        "array for a scheme": dict(scheme=np.array(["zigzag", "ring"])),
    }
    sides |= {name: lambda wrong=wrong: (
        *[(wrong if last else {}).get(name, plain) for name in "qkv"],
        {name: x for name, x in wrong.items() if last and name not in "qkv"}) for name, wrong in strange.items()}
    for name, made in sides.items():
        *tensors, options = made()
        try: found[name] = repr(cp.attention(*tensors, **options).shape)
        except froghopper.Error as error: found[name] = str(error)
    for name, of_rank in (("CHUNKS", ("0", "2")), ("CHUNKS of none", ("", "2")), ("CHUNKS of one", ("0", "x")),
                          ("TOPOLOGY", (__file__, "/none"))):
        variable = f"FROGHOPPER_CP_{name.partition(' ')[0]}"
        os.environ[variable] = of_rank[last]
        try: found[name] = repr(cp.attention(*[q(1, 4, 2, 8)] * 3, scheme="all_gather").shape)
        except froghopper.Error as error: found[name] = str(error)
        del os.environ[variable]
    if last: os.environ["LOCAL_WORLD_SIZE"] = "1"  # so that other transfers look fast, and "auto" takes another scheme
    found["LOCAL_WORLD_SIZE"] = caught(lambda: cp.attention(*[q(1, 100, 3, 64)] * 3))[1]
    os.environ.pop("LOCAL_WORLD_SIZE", None)
    found["then"] = cp.attention(*[q(1, 4, 2, 8)] * 3).sum().item()
    rows, sink = q(1, 4, 2, 8), torch.tensor([0.5, 2.0])
    found["16-bit sinks"] = [torch.equal(*(call(sink=x) for x in (sink, sink.bfloat16()))) for call in (
        lambda **options: cp.attention(rows, rows, rows, **options),
        lambda **options: cp.decode(rows[:, :1], rows, rows, **options))]
    ends = torch.tensor([0, 5, 12], dtype=torch.int32)
    one = cp.attention(rows, rows, rows, causal=True, cu_seqlens=ends)
    found["words of packing"] = [torch.equal(one, cp.attention(rows, rows, rows, causal=True, **words)) for words in (
        dict(cu_seqlens_q=ends, cu_seqlens_k=ends.clone(), max_seqlen_q=7, max_seqlen_k=7), dict(cu_seqlens_kv=ends),
        dict(cu_seqlens_q=[0, 5, 12], cu_seqlens_kv=(0, 5, 12)), dict(cu_seqlens=ends, max_seqlen=7))]
    if last: found["unshard"] = caught(lambda: cp.unshard(q(2, 3)))
    else: found["unshard"] = caught(lambda: cp.unshard(q(3, 3)))
    for name, wrong in (("sparse", q(2, 3).to_sparse()), ("meta", q(2, 3).to("meta"))):
        found["unshard " + name] = caught(lambda x=wrong if last else q(2, 3): cp.unshard(x, dim=0))
    bytes_of = cp.unshard(torch.full((1, 2), rank).to(torch.float8_e4m3fn), dim=0, layout="contiguous")
    found["unshard float8"] = "", str(bytes_of.float()[:, 0].tolist()), 0
    found["file"] = caught(lambda: cp.probe(file=3.5))
    found["before the body"] = refused_before_the_body(last)
    return found


def refused_before_the_body(last):
    """Of arguments that the last rank's call refuses before it looks at them: what this rank hears, and whether the
    next call has tensors of one call alone."""
    q, k, v = (torch.linspace(-1, 1, 64).view(1, 4, 2, 8) * (at + last) for at in (1, 2, 3))
    right, found = cp.attention(q, k, v, causal=True), {}
    for name, wrong, call in (
            ("a name", lambda: cp.attention(q, k, v, casual=True), lambda: cp.attention(q, k, v, causal=True)),
            ("a name of the group", lambda: cp.attention(q, k, v, process_group=dist.group.WORLD),
             lambda: cp.attention(q, k, v)),
            ("v missing", lambda: cp.attention(q, k, causal=True), lambda: cp.attention(q, k, v, causal=True)),
            ("all missing", lambda: cp.attention(), lambda: cp.attention(q, k, v)),
            ("too many", lambda: cp.attention(q, k, v, None, True), lambda: cp.attention(q, k, v)),
            ("twice", lambda: cp.attention(q, k, v, q=q), lambda: cp.attention(q, k, v)),
            ("unshard", lambda: cp.unshard(q, dims=1), lambda: cp.unshard(q)),
            ("probe", lambda: cp.probe(files="x"), lambda: cp.probe())):
        said = caught(wrong if last else call)
        cp.attention(2 * q, k, v, causal=True)
        found[name] = *said, torch.equal(cp.attention(q, k, v, causal=True), right)
    return found


def caught(call):
    """(what a call raised, after how many seconds)."""
    begun = time.monotonic()
    try: call()
    except Exception as error: return type(error).__name__, str(error), time.monotonic() - begun
    return "", "", time.monotonic() - begun
