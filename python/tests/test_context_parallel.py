# SPDX-License-Identifier: Apache-2.0
"""froghopper.torch.context_parallel on groups of 2, 3, 4 and 8 processes: every scheme beside fp64 of the whole
sequence, layouts, repeats, DTensors, compiled functions, ranks that disagree, that die and that hang.

All groups are run once, by context_parallel_ranks.py; the tests look at what their ranks have found.
"""
import ctypes
import functools
import pickle
import re
import types

import numpy as np
import pytest

from context_parallel_groups import need_library, run_ranks, torch

need_library()

from context_parallel_ranks import CASES, CHUNKED, CHUNKS, GRIDS, RUNS, SCHEMES, TIMEOUT, whole_of
from plain import Options, Sequence, backward, excess, forward

import froghopper
from froghopper import _library, _parallel
from froghopper import _torch_cp_documents as documents
from froghopper import torch as froghopper_torch

REFUSED = {("window, both sides", "ring"): "window.*the ring takes", ("slopes", "ring"): "alibi.*ring",
           ("window, both sides", "all_to_all_ring"): "window.*the ring.*Use scheme=\"all_to_all_gather\"",
           ("slopes", "all_to_all_ring"): "alibi.*Use scheme=\"all_to_all_gather\"\\.",
           **{("six heads", grid): "heads_kv.* 3.*heads_ranks.* 2" for grid in GRIDS},
           ("six heads", "all_to_all"): "heads_.* is (6|3)",
           ("documents, both sides", "ring"): "window.*the ring takes.*Use scheme=\"all_gather\"",
           ("documents, slopes", "ring"): "alibi.*ring"}
SLOW = 3  # seconds that a busy machine may add to a timeout


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A function of a job: what its ranks have found, None for those that did not end."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks("context_parallel_ranks.py", folder)

    def of(job, size):
        files = [folder / f"{job}.{rank}" for rank in range(size)]
        return [pickle.loads(file.read_bytes()) if file.exists() else None for file in files]
    return of


@functools.lru_cache(None)
def exact_of(name):
    """Exact results of the whole sequence, and their bounds."""
    case = CASES[name]
    *tensors, grad_o, grad_lse, given = whole_of(case)
    q, k, v, grad_o = (x.double().numpy() for x in (*tensors, grad_o))
    given = {name: x.double().numpy() if torch.is_tensor(x) else x for name, x in given.items()}
    given.pop("deterministic", None)
    ends = given.pop("cu_seqlens", None)
    every = [Sequence(at, slice(None), slice(None)) for at in range(case["batch"])]
    if ends: every = [Sequence(0, *[slice(begin, end)] * 2) for begin, end in zip(ends, ends[1:]) if begin < end]
    options = Options(**given)
    exact = forward(q, k, v, every, case["dtype"], options)
    grads = backward(q, k, v, exact["o"][0], exact["lse"][0], grad_o, grad_lse.transpose(1, 2).double().numpy(), every,
                     case["dtype"], options)
    return exact | {f"grad_{name}": pair for name, pair in grads.items()}


def joined(case, ranks):
    """The whole tensors, of the rows that ranks have; gradients of the sink are added up."""
    *tensors, grad_o, grad_lse, _ = whole_of(case)
    shapes = {"o": grad_o, "lse": grad_lse.transpose(1, 2), **dict(zip(("grad_q", "grad_k", "grad_v"), tensors))}
    whole = {name: np.full(x.shape, np.nan) for name, x in shapes.items()}
    for places, *results in ranks:
        places = places.numpy()
        for name, x in zip(whole, results):
            at = (slice(None), slice(None), places) if name == "lse" else (slice(None), places)
            whole[name][at] = x.double().numpy()
    if "sink" in case["options"]: whole["grad_sink"] = sum(results[-1].double().numpy() for _, *results in ranks)
    return whole


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name, scheme", RUNS)
def test_ranks_compute_what_one_would(found, name, scheme, size):
    ranks = [each and each[name, scheme] for each in found(f"numbers {size}", size)]
    if refusal := REFUSED.get((name, scheme)):
        for each in ranks: assert re.search(refusal, each)
        return
    exact = exact_of(name)
    for result, x in joined(CASES[name], ranks).items(): assert not excess(x, *exact[result]), result


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("way", CHUNKS)
def test_an_all_gather_in_chunks(found, way, size):
    ranks = found(f"chunks {way.replace('/', ' of ')} {size}", size)
    for name in CHUNKED:
        assert all(each[name][1] for each, _ in ranks), name
        exact = exact_of(name)
        for result, x in joined(CASES[name], [each[name][0] for each, _ in ranks]).items():
            assert not excess(x, *exact[result]), (name, result)
    assert f"all_gather in {way[0]} chunk" in ranks[0][1]


def test_a_group_of_some_ranks(found):
    first, none, last = found("part", 3)
    assert none is None
    exact = exact_of("causal")
    for result, x in joined(CASES["causal"], [first, last]).items(): assert not excess(x, *exact[result]), result


@pytest.mark.parametrize("size", [2, 8])
def test_repeats_and_padding_change_no_bit(found, size):
    for rank in found("repeats" if size == 2 else "repeats 8", size):
        assert [scheme for scheme, _ in rank] == [*SCHEMES[1:]] * (2 if size == 2 else 1)
        assert all(all(same) for _, same in rank)


def test_layouts(found):
    ranks = found("layouts", 3)
    assert len(ranks[0]) == 15
    for at, (layout, rows, *_) in enumerate(ranks[0]):
        places = [each[at][3].tolist() for each in ranks]
        assert sorted(sum(places, [])) == list(range(rows))
        if layout == "contiguous": assert sum(places, []) == list(range(rows))
        most = 1 if layout == "by_document" else 2
        if rows == 50: assert max(map(len, places)) - min(map(len, places)) <= most
        whole = torch.arange(2 * rows).reshape(2, rows)
        for each in ranks:
            assert torch.equal(each[at][2], whole[:, each[at][3]]) and torch.equal(each[at][4], whole)
            border = rows // 3
            assert each[at][5].tolist() == [place - border * (place >= border) for place in each[at][3].tolist()]


def test_zigzag_balances_causal_pairs(found):
    at = next(i for i, each in enumerate(found("layouts", 3)[0]) if each[:2] == ("zigzag", 50))
    pairs = [int((each[at][3] + 1).sum()) for each in found("layouts", 3)]
    assert max(pairs) < 1.15 * min(pairs)


def test_the_layout_by_document_balances_causal_pairs_of_documents(found):
    at = next(i for i, each in enumerate(found("layouts", 3)[0]) if each[:2] == ("by_document", 50))
    pairs = [int((each[at][5] + 1).sum()) for each in found("layouts", 3)]
    assert max(pairs) < 1.15 * min(pairs)


def test_the_layout_by_document_is_that_of_the_library(found):
    """Python shards without a plan."""
    whole = _library.library().problem("fwd f32 b1 hq2 hkv2 sq50 skv50 d8 causal")
    at = next(i for i, each in enumerate(found("layouts", 3)[0]) if each[:2] == ("by_document", 50))
    for rank, each in enumerate(found("layouts", 3)):
        plan = _parallel.Plan(whole, 3, rank, "ring", "by_document", "cpu", 0, False, [0, 16, 16, 50])
        ends = [*map(int, re.findall(r" (\d+)", re.search(r"rows(( \d+ to \d+)+)", plan.text())[1]))]
        assert sum((list(range(*span)) for span in zip(ends[::2], ends[1::2])), []) == each[at][3].tolist()


def test_shard_by_document_has_a_gradient(found):
    ranks = found("gradient of shard", 2)
    assert sorted(torch.cat([at for _, at in ranks]).tolist()) == list(range(9))
    for grad, at in ranks: assert torch.equal(grad, torch.zeros(9).index_copy(0, at, at.float()))


@pytest.mark.parametrize("name, wanted", [
    ("heads", "heads of q .* is 2 on rank 0 and 4 on rank 2"),
    ("batch", "batch of q .* is 1 on rank 0 and 2 on rank 2"),
    ("dtype", "dtype of q .* is float32 on rank 0 and bfloat16 on rank 2"),
    ("causal", "causal .*False on rank 0 and True on rank 2"),
    ("window", r"^window must be the same .* is None on rank 0 and \(3, 0\) on rank 2"),
    ("window_size", r"^window_size must be the same .* is \(2, None\) on rank 0 and \(3, None\) on rank 2"),
    ("kv_dtype", "^kv_dtype must be the same .* is None on rank 0 and float8_e4m3fn on rank 2"),
    ("scale", "scale .* on rank 0 and 0.5 on rank 2"),
    ("scheme", "scheme .*ring on rank 0 and all_gather on rank 2"),
    ("heads_ranks", "heads_ranks .* is 1 on rank 0 and 3 on rank 2"),
    ("heads_ranks of others", "heads_ranks is 2, but must divide ranks, 3. Use heads_ranks 1, 3 or 0"),
    ("slopes of a ring", "alibi_slopes is given: blocks of the ring .*all_gather"),
    ("heads_ranks of a ring", "heads_ranks is 3, but must be 0 with scheme=\"ring\", which has no groups.*"
                              "Use heads_ranks 0, or scheme=\"all_to_all_ring\""),
    ("layout", "layout .*zigzag on rank 0 and contiguous on rank 2"),
    ("transfers", "transfers .*auto on rank 0 and send_recv on rank 2"),
    ("copies on the CPU", "transfers is \"copies\", which are between GPUs, but q is on the CPU"),
    ("unknown transfers", "transfers must be one of .*\"copies\".*, but is 'nccl'"),
    ("requires_grad", "^requires_grad of q, k, v or sink .* must be .* is False on rank 0 and True on rank 2"),
    ("values of sink", "^sink must .* is .0.5, 1.0. ... with the checksum .* on rank 0 and .0.5, 2.0. .* on rank 2"),
    ("values of slopes", "^alibi_slopes must .* is .0.5, 1.0. .* on rank 0 and .0.5, 2.0. .* on rank 2"),
    ("sink", "^sink must .* is None on rank 0 and .1.0, 1.0. .* on rank 2"),
    ("refusal", "(rank 2 refuses its arguments|v must)"),
    ("heads for rows", "k must have the rows of q, 4, .* Or, if all three are .batch, heads, rows, dim., use q.tra"),
    ("heads for rows of k", r"k must have the rows of q.* if k and v are .*, use k.transpose\(1, 2\) and v.transpose"),
    ("two lists", "cu_seqlens_k must be what the other list of ends is, .* but differs. Use cu_seqlens, the ends"),
    ("rows of zigzag", "q must have 5 rows on rank 0"),
    ("documents, other ones", r"cu_seqlens must .* is \[0, 5, 12\] on rank 0 and \[0, 6, 12\] on rank 2"),
    ("documents, many", "cu_seqlens must .* of 12 documents with the checksum .* on rank 0 and .*0, 1, 2.* on rank 2"),
    ("documents, on one rank", r"cu_seqlens must .* is None on rank 0 and \[0, 12\] on rank 2"),
    ("documents, begin", "cu_seqlens must begin with 0, but begins with 1"),
    ("documents, fall", "cu_seqlens must not fall.* falls from 7 to 6 after document 1"),
    ("documents, total", "cu_seqlens must end with 12, the rows of all ranks, but ends with 13"),
    ("documents, none", r"cu_seqlens must be \[documents \+ 1\] .* has the shape \[1\]"),
    ("documents, type", "cu_seqlens must be int32 or int64, but is torch.float32"),
    ("documents, not a list", "cu_seqlens must be a tensor or a list, but is an int"),
    ("by document, one rank", "cu_seqlens must say where documents are with layout=\"by_document\", but is None"),
    ("by document, rows", "q must have 3 rows on rank 1, as layout \"by_document\" deals 10 rows to 3 ranks"),
    ("sparse", "q, k and v must be dense, .* torch.sparse_coo"), ("quantised", "v must be .* dense .* quantised"),
    ("nested", "q, k and v must be dense, .* a nested tensor, torch.strided and"),
    ("all without memory", "^device must be the same on every rank .* is cpu on rank 0 and meta on rank 2"),
    ("without memory", "k must be on cpu.* but is on meta"),
    ("sparse sink", "sink must be .* torch.sparse_coo"), ("sink without memory", "sink must be on cpu.* is on meta"),
    ("sparse documents", "cu_seqlens must be .* torch.sparse_coo"),
    ("documents without memory", "cu_seqlens must be .* that holds numbers, but is .* on meta"),
    ("array for a layout", "layout must be"), ("array for a scheme", "scheme must be"),
    ("unknown group", "group must be .* none is called 'no such group'"),
    ("CHUNKS", "^FROGHOPPER_CP_CHUNKS must be the same on every rank .* is 0 on rank 0 and 2 on rank 2"),
    ("CHUNKS of none", "^FROGHOPPER_CP_CHUNKS must .* is not set on rank 0 and 2 on rank 2"),
    ("CHUNKS of one", "^FROGHOPPER_CP_CHUNKS must .* is 0 on rank 0 and x on rank 2"),
    ("TOPOLOGY", "^the file of FROGHOPPER_CP_TOPOLOGY must .* checksum .* on rank 0 and not readable .* on rank 2"),
    ("LOCAL_WORLD_SIZE", "^LOCAL_WORLD_SIZE, .* but stands for 3 on rank 0 and 1 on rank 2. Give all ranks the same."),
    ("documents, batch", "q must have a batch of 1 with cu_seqlens, .* but has 2"),
])
def test_ranks_that_disagree_are_told_so(found, name, wanted):
    for rank in found("disagreeing", 3): assert re.search(wanted, rank[name]), rank[name]


@pytest.mark.parametrize("name, wanted", [
    ("a name", "has no argument casual. Did you mean causal"), ("a name of the group", "has no argument process_group"),
    ("v missing", "v must be given to attention, but is missing"), ("all missing", "q and k and v must be given"),
    ("too many", "attention takes 4 arguments without a name, but is given 5"),
    ("twice", r"attention\(\) got multiple values for argument 'q'"),
    ("unshard", "has no argument dims. Did you mean dim"), ("probe", "has no argument files. Did you mean file"),
])
def test_what_is_refused_before_the_body_is_told_on_all_ranks(found, name, wanted):
    """Or this rank's next call would be taken for the one that it has not made."""
    *others, last = [rank["before the body"][name] for rank in found("disagreeing", 3)]
    assert last[0].endswith(("InvalidType", "TypeError")) and re.search(wanted, last[1]), last
    for rank in others:
        assert rank[0] == "InvalidProblem" and re.search(f"^rank 2 refuses its arguments of .*{wanted}", rank[1]), rank
    assert all(rank[3] for rank in (*others, last))


def test_a_group_goes_on_after_a_disagreement(found):
    for rank in found("disagreeing", 3):
        assert rank["then"] == 64 and rank["16-bit sinks"] == [True, True]
        assert rank["words of packing"] == [True] * 4
        assert rank["unshard"][0] == "InvalidProblem" and "on rank 0" in rank["unshard"][1]
        for name, said in (("sparse", "must be dense"), ("meta", "must have memory"), ("file", "file must be")):
            name = name if name == "file" else "unshard " + name
            assert rank[name][0].startswith("Invalid") and said in rank[name][1], (name, rank[name])
        assert rank["unshard float8"][1] == str([float(i) for i in range(3)])


@pytest.mark.parametrize("job", ["killed", "killed within", "stopped", "stopped within"])
def test_a_rank_that_ends_or_hangs_is_an_error_on_the_others(found, job):
    ranks = found(job, 3)
    assert ranks[1] is None
    for rank in (ranks[0], ranks[2]):
        assert rank is not None, "the rank has waited on"
        kind, text, seconds = rank
        assert kind == "LaunchFailed" and "group must have ranks that answer" in text
        assert seconds < TIMEOUT + SLOW


def test_a_rank_that_does_not_call_is_an_error_on_the_others(found):
    kind, text, seconds = found("elsewhere", 2)[1]
    assert kind == "LaunchFailed" and seconds < TIMEOUT + SLOW


def test_a_machine_is_measured(found, tmp_path):
    numbers, text, _ = found("probe", 4)[0]
    names = ["latency", "bandwidth", "gather_bandwidth", "slowdown", "far_latency", "far_bandwidth", "memory",
             "forward_flops", "backward_flops"]
    assert list(numbers) == names and all(x > 0 for x in numbers.values()) and numbers["slowdown"] >= 1
    assert [line.split()[0] for line in text.splitlines()] == ["#", *names]
    for each, _, (kind, said, _) in found("probe", 4):
        assert each == numbers
        assert kind == "InvalidProblem" and "file must be one that can be written" in said
    (tmp_path / "machine.txt").write_text(text)
    line = "fwd f32 b1 hq4 hkv4 sq4096 skv4096 d64 causal"
    for topology in (numbers, tmp_path / "machine.txt"):
        assert "times by the caller's topology" in _parallel.explain(line, 4, topology=topology)
    assert "times by" not in _parallel.explain(line, 4)


@pytest.mark.parametrize("topology, wanted", [
    ({"speed": 3}, "topology must have the fields that probe returns, latency, .*, but has 'speed'. Leave it out"),
    ({"bandwith": 3}, "has 'bandwith'. Did you mean bandwidth?"),
    ({"bandwidth": "3 GB/s"}, r"topology\['bandwidth'\] must be a number, but is '3 GB/s'"),
    ("/nowhere/machine.txt", "can be read, but .*such"), ("/dev/null", "a file of figures, but /dev/null has none"),
    ({"slowdown": 0.5}, "topology.slowdown is 0.5"),
    (3, "topology must be what probe returns, or a file, but is 3"),
])
def test_figures_that_make_no_sense(topology, wanted):
    assert re.search(wanted, _parallel.explain("fwd f32 b1 hq4 hkv4 sq64 skv64 d64", 4, topology=topology))


def test_compiled_functions(found):
    assert [same for same, *_ in found("compiled", 2)] == [True, True]


def test_inside_of_pytorchs_context_parallel(found):
    assert [same for *_, same in found("compiled", 2)] == [True, True]


def test_dtensors(found):
    exact = exact_of("bf16")
    for _, (placements, o, same, uneven, _), _ in found("compiled", 2):
        assert "Shard(dim=1)" in placements
        assert not excess(o.double().numpy(), *exact["o"])
        assert same
        assert uneven[0] == "InvalidTensor" and "q must have 1 row on rank 0" in uneven[1]
        assert uneven[1].endswith("Pad q, k and v to 4 rows, which DTensor divides alike.")


def test_what_is_wrong_with_dtensors_of_one_rank_is_told_on_all(found):
    for rank, (_, (*_, alone), _) in enumerate(found("compiled", 2)):
        *refusals, then = alone
        for (kind, told, seconds), wanted in zip(refusals, (
                "k must be a DTensor", "v must be placed as q is", "q must be sharded along its rows",
                "causal must be True or False", "scheme must be one of"), strict=True):
            assert re.match(wanted if rank else f"rank 1 refuses its arguments of attention.*: {wanted}", told), told
            assert kind == "InvalidProblem" or rank
            assert seconds < SLOW
        assert then == 32  # the group goes on


def test_the_example(found):
    said, nothing = found("example", 2)
    if said is None: pytest.skip("tests of an installed package: there are no examples")
    assert nothing == "" and "301 tokens on 2 ranks" in said and "attention, backward" in said
    assert float(re.search(r"beside one rank: (\S+)", said)[1]) < 1e-4
    assert float(re.search(r"has received (\S+) MB", said)[1]) > 0


def test_a_group_that_moves_no_host_memory_gets_one_that_does(found):
    for said, another, seconds in found("without host memory", 2):
        assert said == [[{"rank": 0}, {"rank": 1}]] * 2 and another and seconds == 7


def test_ranks_that_use_lse_and_ranks_that_do_not(found):
    assert found("lse", 2) == [True, True]


def test_no_rows_of_other_ranks_are_kept(found):
    for numbers, own in found("kept", 2): assert numbers == own


def test_tables_of_a_plan_on_a_gpu(monkeypatch):
    """They are copied once, and another stream waits for that; here to host memory, where no GPU is."""
    whole = _library.library().problem("fwd f32 b1 hq2 hkv2 sq30 skv30 d8 causal")
    plan = _parallel.Plan(whole, 2, 1, "all_gather", "contiguous", "cpu", 0, False, [0, 10, 20, 30])
    waited, events = [], iter(range(9))
    stream = types.SimpleNamespace(wait_event=waited.append, record_event=lambda: next(events))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: x)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda x, stream: None)
    at = documents.tables_on(plan, torch.device("cpu"))
    assert documents.tables_on(plan, torch.device("cpu")) == at and waited == [0, 0]
    assert list((ctypes.c_int32 * plan.table_count).from_address(at)) == plan.tables() == [0, 5, 15, 0, 10, 20]
    alone = _parallel.Plan(whole, 2, 1, "all_gather", "contiguous", "cpu", 0, False, [0, 30])
    assert documents.tables_on(alone, torch.device("cpu")) == 0


def test_explain():
    line = "fwd bf16 b1 hq64 hkv8 sq1048576 skv1048576 d128 causal"
    text = froghopper_torch.context_parallel.explain(line, 4, "h100", rank=3, scheme="ring")
    assert "ring rank 3 of 4" in text and "rows 393216 to 655360" in text
    text = froghopper_torch.context_parallel.explain(line, 4, "h100", cu_seqlens=torch.tensor([0, 9, 1048576]))
    assert "2 documents, the longest of 1048567 rows" in text
    text = froghopper_torch.context_parallel.explain(line, 4, "h100", cu_seqlens=[0, 9, 1048576], layout="by_document",
                                                     scheme="ring")
    assert "by_document layout" in text and "a rank has 1.00 to 1.00 of the mean pairs" in text
    for wrong, told in ((dict(layout="by_document"), "cu_seqlens must say where documents are"),
                        (dict(scheme="round"), "scheme must be 'auto' or 'ring'"), (dict(layout=3), "layout must be"),
                        (dict(rank=1.5), "rank must be a whole number"), (dict(target=3), "target must be a text"),
                        (dict(problem="fwd bananas"), "bananas"), (dict(problem=3), "problem must be a text"),
                        (dict(ranks=0), "not computed ranks is 0"), (dict(target="h1000"), "not computed target is"),
                        (dict(cu_seqlens=[0, 5]), "not computed cu_seqlens[1] is 5, but must be 1048576"),
                        (dict(cu_seqlens=[0, 5.5]), "not computed cu_seqlens[1] must be a whole number"),
                        (dict(cu_seqlens=[]), "not computed documents is"), (dict(cu_seqlens=5), "cu_seqlens must be")):
        said = froghopper_torch.context_parallel.explain(**dict(problem=line, ranks=4) | wrong)
        assert told in said, said
        assert said.startswith("not computed ")


def test_without_a_group():
    with pytest.raises(froghopper.InvalidProblem, match="not initialised"):
        froghopper_torch.context_parallel.attention(*[torch.ones(1, 2, 1, 8)] * 3)


@pytest.mark.parametrize("dtype, packed, line", [
    (torch.float32, False, "fwd f32 b2 hq4 hkv2 sq600 skv600 d64 causal"),
    (torch.bfloat16, False, "fwd bf16 b2 hq4 hkv2 sq600 skv600 d64 causal"),
    (torch.bfloat16, True, _parallel.LINE)])
def test_explain_is_given_tensors(dtype, packed, line):
    """What attention takes, and froghopper.torch.explain: it is answered with a line that explain takes."""
    explain = froghopper_torch.context_parallel.explain
    q, k = torch.zeros(2, 300, 4, 64, dtype=dtype), torch.zeros(2, 300, 2, 64, dtype=dtype)
    if packed: q, k = q[0], k[0]
    for call in (lambda: explain(q, k, k, causal=True), lambda: explain(q=q, k=k, v=k, causal=True)):
        with pytest.raises(froghopper.InvalidType) as error: call()
        assert f"explain(\"{line}\", 2)." in str(error.value) and "the number of ranks" in str(error.value)
    assert "not computed" not in explain(line, 2)
