# SPDX-License-Identifier: Apache-2.0
"""froghopper.torch.context_parallel.attention with kv_dtype on groups of 2 and 4 processes, beside fp64 of the whole
sequence whose k and v are quantised as one rank would quantise them.

All groups are run once, by context_parallel_8_bit_ranks.py; the tests look at what their ranks have found.
"""
import functools
import pickle
import re

import numpy as np
import pytest

from context_parallel_groups import need_library, run_ranks, torch

need_library()

from context_parallel_8_bit_ranks import OF_8_BITS, case_of_8_bits
from context_parallel_ranks import GRIDS, SCHEMES, whole_of
from plain import Options, Sequence, excess, forward

from froghopper.torch import context_parallel as cp

REFUSED = dict.fromkeys((("six heads", scheme) for scheme in ("all_to_all", *GRIDS)), "heads_.* is (6|3)")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A function of a number of ranks: what they have found."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks("context_parallel_8_bit_ranks.py", folder)
    return lambda size: [pickle.loads((folder / f"{size}.{rank}").read_bytes()) for rank in range(size)]


def joined(case, ranks):
    """o and lse of the whole sequence, of what ranks have."""
    (heads, _), (_, dim_v), batch, rows = case["heads"], case["dims"], case["batch"], case["rows"]
    o, lse = np.full((batch, rows, heads, dim_v), np.nan), np.full((batch, heads, rows), np.nan)
    for places, of_rank, lse_of_rank, _ in ranks:
        o[:, places.numpy()], lse[..., places.numpy()] = of_rank.double().numpy(), lse_of_rank.double().numpy()
    return o, lse


@functools.lru_cache(None)
def exact_of(name):
    """(o, lse) and their bounds, of what one rank would make of all k and v."""
    case, dtype = case_of_8_bits(name), getattr(torch, OF_8_BITS[name])
    (q, k, v, *_), given = whole_of(case)[:3], dict(whole_of(case)[-1])
    rounded = []
    for x in (k, v):
        most = x.abs().amax(dim=(0, 1, 3)).float() if x.numel() else torch.zeros(x.shape[2])
        scale = torch.where(most > 0, most / torch.finfo(dtype).max, 1.0)[:, None]
        rounded.append((x / scale).to(dtype).double() * scale)
    ends = given.pop("cu_seqlens", None)
    every = [Sequence(at, slice(None), slice(None)) for at in range(case["batch"])]
    if ends: every = [Sequence(0, *[slice(begin, end)] * 2) for begin, end in zip(ends, ends[1:]) if begin < end]
    given = {name: x.double().numpy() if torch.is_tensor(x) else x for name, x in given.items()}
    return forward(q.double().numpy(), *(x.numpy() for x in rounded), every, "bfloat16", Options(**given))


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("scheme", SCHEMES[1:])
@pytest.mark.parametrize("name", OF_8_BITS)
def test_k_and_v_in_8_bits(found, name, scheme, size):
    ranks = [each and each[0][name, scheme] for each in found(size)]
    if refusal := REFUSED.get((name, scheme)):
        for each in ranks: assert re.search(refusal, each)
        return
    case, exact = case_of_8_bits(name), exact_of(name)
    for result, x in zip(("o", "lse"), joined(case, ranks)): assert not excess(x, *exact[result]), result


def test_8_bits_move_half_the_bytes_and_ranks_agree(found):
    two, four = ([each[0] for each in found(size)] for size in (2, 4))
    wide, narrow = (cp.explain(f"fwd bf16{kv} b2 hq4 hkv2 sq77 skv77 d32 dv16 causal", 4, scheme="ring")
                    for kv in ("", " kv=e4m3"))
    moved_in = [int(re.search(r"in (\d+) and out", each)[1]) for each in (wide, narrow)]
    assert moved_in[0] == 2 * moved_in[1] == 2 * four[0]["causal", "ring"][3]
    assert "k and v move and are attended to in e4m3" in narrow
    of_two, of_four = (joined(case_of_8_bits("causal"), [each["causal", "ring"] for each in ranks])[0]
                       for ranks in (two, four))
    largest = np.abs(of_two).max(-1, keepdims=True)  # of a row: weights are rounded, too
    assert np.all(np.abs(of_two - of_four) <= 2.0 ** -7 * largest)


def test_an_infinite_element_is_nan_for_rows_that_attend_to_it(found):
    (bad, good), (bad_1, _), *_ = (each[2] for each in found(2))
    assert torch.equal(bad, good), "no row of rank 0 attends to it"
    assert bad_1[:, :, 0].isnan().all() and bad_1[:, :, 2:].isfinite().all(), "those of key head 0 do"


def test_8_bits_that_cannot_be(found):
    for each in found(2):
        for (kind, said, *_), wanted in zip(each[1], (
                "has no gradient.* Call under torch.no_grad", "q must be float16 or bfloat16 with kv_dtype",
                "kv_dtype must be torch.float8_e4m3fn or torch.float8_e5m2, .* torch.int8",
                "kv_dtype must be the same on every rank .* is float8_e4m3fn on rank 0 and float8_e5m2 on rank 1")):
            assert re.search(wanted, said), said
