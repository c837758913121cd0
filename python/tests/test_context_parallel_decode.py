# SPDX-License-Identifier: Apache-2.0
"""froghopper.torch.context_parallel.decode on groups of 2 and 4 processes: caches in parts, beside fp64 of whole ones.

All groups are run once, by context_parallel_decode_ranks.py; the tests look at what their ranks have found.
"""
import functools
import pickle
import re

import numpy as np
import pytest

from context_parallel_groups import run_ranks, torch  # first: it skips the module where there is no PyTorch

from context_parallel_decode_ranks import CASES, LENGTHS, WAYS, lengths_of, parts_of, whole_of
from plain import Options, Sequence, excess, forward

import froghopper
from froghopper.torch import context_parallel as cp


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A function of a job: what its ranks have found."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks("context_parallel_decode_ranks.py", folder)
    return lambda job, size: [pickle.loads((folder / f"{job}.{rank}").read_bytes()) for rank in range(size)]


@functools.lru_cache(None)
def exact_of(name):
    """Exact results of the whole caches, and their bounds."""
    case = CASES[name]
    q, k, v, given = whole_of(case)
    given = {name: x.double().numpy() if torch.is_tensor(x) else x for name, x in given.items()}
    options = Options(**given, causal=case["newest"] != "none")
    every = [Sequence(at, slice(None), slice(0, length)) for at, length in enumerate(lengths_of(case))]
    return forward(*(x.double().numpy() for x in (q, k, v)), every, case["dtype"], options)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_parts_give_what_the_whole_does(found, name, way, size):
    ranks = [each[name, way] for each in found(f"numbers {size}", size)]
    results = [ranks[0][:2]] if way == "all" else [
        (torch.cat([o for o, *_ in ranks], 2), torch.cat([lse for _, lse, _ in ranks], 1))]
    exact = exact_of(name)
    for o, lse in results:
        assert o.dtype == getattr(torch, CASES[name]["dtype"]) and lse.dtype == torch.float32
        assert not excess(o.double().numpy(), *exact["o"]) and not excess(lse.double().numpy(), *exact["lse"])


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_bits_are_the_same_on_all_ranks_and_in_two_runs(found, name, size):
    ranks = found(f"numbers {size}", size)
    assert all(each[name, way][2] for each in ranks for way in WAYS)
    for each in ranks[1:]:
        for x, y in zip(ranks[0][name, "all"][:2], each[name, "all"]): assert torch.equal(x, y)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", ["equal weights", "paged, equal weights"])
def test_results_are_rounded_once(found, name, size):
    """With a scale of 0 the weights are exact, so that o is the bfloat16 nearest to the right answer, or one as near to
    within fp32; parts that were rounded before they are merged would give others."""
    exact = exact_of(name)["o"][0]
    nearest = np.abs(torch.from_numpy(exact).bfloat16().double().numpy() - exact)
    o = found(f"numbers {size}", size)[0][name, "all"][0].double().numpy()
    assert (np.abs(o - exact) <= nearest + 1e-6).all()


def test_the_cases_have_what_they_say():
    """Parts that are empty, on ranks that have others; parts that together are every row."""
    for size in (2, 4):
        for case in CASES.values():
            for length, spans in zip(lengths_of(case), parts_of(case, size)):
                assert sorted(row for span in spans for row in range(*span)) == list(range(length))
        assert any(begin == end for begin, end in parts_of(CASES["one part"], size)[0])
    assert 0 in LENGTHS


def test_compiled_functions(found):
    assert [same for same, *_ in found("other", 2)] == [[True] * 4] * 2


def test_o_alone_and_gradients(found):
    for _, of_o, (kind, text) in found("other", 2):
        assert of_o == (torch.bfloat16, (len(LENGTHS), 1, 8, 16))
        assert kind == "Unsupported" and "q requires a gradient" in text


@pytest.mark.parametrize("case, text", [
    ("numbers of a sink", r"sink must be the same on every rank .* is \[.* checksum .* on rank 0 and \[.* on rank 1"),
    ("no sink", r"sink must be the same .* checksum .* on rank 0 and None on rank 1"),
    ("no sink, sharded", "sink must be the same .* is None on rank 0 and given on rank 1"),
    ("softcap", "softcap must be the same .* is 1.0 on rank 0 and 2.0 on rank 1"),
    ("numbers of a sink, sharded", None),
    ("newest on both", "newest must be True on one rank, .* but for sequence 0 it is on ranks 0 and 1"),
    ("nothing", None),
])
def test_ranks_that_differ(found, case, text):
    """Every rank of a group on the CPU is told; the group remains usable."""
    for each in found("different", 2):
        kind, said, _ = each[case]
        assert kind == ("InvalidProblem" if text else "") and re.search(text or "^$", said)


@pytest.mark.parametrize("case, text", [
    ("a name", "has no argument sofcap. Did you mean softcap"), ("v missing", "v must be given to decode"),
    ("q missing", "q must be given to decode"), ("heads", "heads must be"), ("newest", "newest must be"),
    ("twice", r"decode\(\) got multiple values for argument 'q'"), ("seqused_kv", "seqused_kv must"),
    ("seqused_kv, sharded", "seqused_kv must"),
])
def test_what_one_rank_refuses_is_told_on_all(found, case, text):
    """Wherever it is refused, or this rank's next call would be taken for the one that it has not made."""
    first, second = (each[case] for each in found("refused", 2))
    assert first[0] == "InvalidProblem" and re.search(f"^rank 1 refuses its arguments of decode.*{text}", first[1])
    assert second[0] != "" and re.search(text, second[1]) and first[3] and second[3]


@pytest.mark.parametrize("changes, kind, text", [
    (dict(q=torch.ones(1, 2, 2, 8)), froghopper.InvalidProblem, "newest must be given .* new rows, .* has 2"),
    (dict(q=torch.ones(1, 2, 2, 8), newest=torch.tensor([1])), froghopper.InvalidTensor, "newest .*bool .* is int64"),
    (dict(q=torch.ones(1, 2, 8)), froghopper.InvalidProblem, r"q must be \[batch, new rows, heads_q, dim\]"),
    (dict(q=torch.ones(1, 2, 1, 8)), froghopper.InvalidProblem, r"Use q.swapaxes\(1, 2\), if q has heads before rows"),
    (dict(k=torch.ones(1, 2, 7, 8), v=torch.ones(1, 2, 7, 8)), froghopper.InvalidProblem,
     r"Use k.swapaxes\(1, 2\) and v.swapaxes\(1, 2\), views, if they have heads before rows"),
    (dict(heads="some"), froghopper.InvalidProblem, 'heads must be "all" or "sharded", but is'),
    (dict(max_seqlen_kv=4), froghopper.InvalidProblem, "max_seqlen_kv must be None without block_table"),
    (dict(k=torch.ones(1, 4, 2, 8, dtype=torch.float8_e4m3fn)), froghopper.Unsupported, "k must have the type of q"),
    (dict(sink=torch.ones(3)), froghopper.InvalidTensor, r"sink must .*\[2\]"),
    (dict(k=None), froghopper.InvalidType, "k must be a tensor"),
    ({}, froghopper.InvalidProblem, "group .* not initialised"),
])
def test_what_is_refused(changes, kind, text):
    given = dict(q=torch.ones(1, 1, 2, 8), k=torch.ones(1, 4, 2, 8), v=torch.ones(1, 4, 2, 8)) | changes
    with pytest.raises(kind, match=text): cp.decode(**given)
