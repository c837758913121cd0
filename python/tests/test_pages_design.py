# SPDX-License-Identifier: Apache-2.0
"""New rows are appended to pages and attended to, on the CPU, beside loops in float64: a seeded design in which every
pair of values of two factors occurs. What must not be read is NaN, or no number of a page."""
import itertools
import random

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from froghopper.torch import append_kv, paged_attention

NO_PAGE = 2147480000
FACTORS = {
    "page": (1, 8, 16, 24, 64, 256),
    "layout": ("NHD", "HND", "K beside V", "layers"),
    "types": (*((x, x) for x in (torch.float16, torch.bfloat16, torch.float32)),  # of q and of the cache
              *itertools.product((torch.float16, torch.bfloat16), (torch.float8_e4m3fn, torch.float8_e5m2))),
    "dims": ((64, 64), (128, 128), (192, 128), (32, 96), (256, 256)),
    "mask": ("none", "causal", "window", "chunk"),
    "scores": ("plain", "softcap", "sink", "alibi"),
    "heads": ((4, 4), (4, 2), (8, 1)),
    "rows": ("one", "three", "packed"),
    "lengths": ((0, 1, 37, 130), (65, 0, 256, 7), (16, 24, 64, 8)),
}
UNIT = {torch.float16: 2**-11, torch.bfloat16: 2**-8, torch.float32: 2**-24}


def covering():
    """Cases of which every pair of values of two factors is in one at least: each is the best of some drawn ones."""
    draw, names = random.Random(43), list(FACTORS)
    open_pairs = {((a, x), (b, y)) for a, b in itertools.combinations(names, 2)
                  for x in range(len(FACTORS[a])) for y in range(len(FACTORS[b]))}

    def pairs(case): return set(itertools.combinations(case, 2)) & open_pairs
    while open_pairs:
        first, second = draw.choice(sorted(open_pairs))
        tried = [[first if name == first[0] else second if name == second[0] else
                  (name, draw.randrange(len(FACTORS[name]))) for name in names] for _ in range(40)]
        best = max(tried, key=lambda case: len(pairs(case)))
        open_pairs -= pairs(best)
        yield {name: FACTORS[name][at] for name, at in best}


CASES = list(covering())


def pool(case, pages, heads):
    """k and v [pages, page, heads, dim] of the layout; all of their memory is NaN."""
    dtype = case["types"][1]
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]

    def memory(*shape): return torch.full(shape, -1 if bits != torch.uint8 else 255, dtype=bits).view(dtype)
    dim, dim_v = case["dims"]
    if case["layout"] == "K beside V": return memory(pages, case["page"], heads, dim + dim_v).split((dim, dim_v), -1)
    if case["layout"] == "HND": return [memory(pages, heads, case["page"], x).transpose(1, 2) for x in (dim, dim_v)]
    if case["layout"] == "layers": return [memory(pages, 3, case["page"], heads, x)[:, 1] for x in (dim, dim_v)]
    return [memory(pages, case["page"], heads, x) for x in (dim, dim_v)]


def exact(q, k, v, case, options):
    """One sequence, float64: q [rows, heads_q, dim], k and v [keys, heads_kv, dim]; o [rows, heads_q, dim_v], lse."""
    rows, keys, group = len(q), len(k), q.shape[1] // max(k.shape[1], 1)
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("ihd,jhd->hij", q, k) * q.shape[-1]**-0.5
    if case["scores"] == "softcap": scores = 3 * torch.tanh(scores / 3)
    level, key = torch.arange(rows)[:, None] + keys - rows, torch.arange(keys)[None]
    if case["scores"] == "alibi":
        scores = scores - options["alibi_slopes"].double()[:, None, None] * (level - key).abs()
    seen = torch.ones(rows, keys, dtype=torch.bool)
    if case["mask"] == "causal": seen = key <= level
    if case["mask"] == "window": seen = (key >= level - 20) & (key <= level + 2)
    if case["mask"] == "chunk": seen = (key // 19 == level.div(19, rounding_mode="floor")) & (key <= level)
    scores = scores.masked_fill(~seen, -torch.inf)
    if case["scores"] == "sink":
        scores = torch.cat([scores, options["sink"].double()[:, None, None].expand(-1, rows, 1)], -1)
    lse = scores.logsumexp(-1) if scores.shape[-1] else torch.full((q.shape[1], rows), -torch.inf).double()
    weights = (scores - lse[..., None].clamp(min=-1e300)).exp()[..., :keys]
    return torch.einsum("hij,jhd->ihd", weights, v), lse


@pytest.mark.parametrize("at", range(len(CASES)))
def test_append_and_attention(at):
    case, (heads_q, heads), (dtype, cached_as) = CASES[at], CASES[at]["heads"], CASES[at]["types"]
    draw = torch.Generator().manual_seed(at)

    def drawn(*shape): return torch.randn(shape, generator=draw).to(dtype)
    dim, dim_v = case["dims"]
    keys, page = case["lengths"], case["page"]
    columns = -(-max(keys) // page) + 1
    counts = [min(n, {"one": 1, "three": 3}.get(case["rows"], (5, 1, 40, 0)[b])) for b, n in enumerate(keys)]
    used = torch.tensor(keys, dtype=torch.int32)
    table = torch.full((4, columns + 2), NO_PAGE, dtype=torch.int32)[:, :columns]  # a slice of a larger one
    numbers = torch.randperm(4 * columns, generator=draw).tolist()
    for b, n in enumerate(keys):
        for column in range(-(-n // page)): table[b, column] = numbers.pop()
    pool_k, pool_v = pool(case, 4 * columns, heads)
    scales = {} if cached_as is dtype else dict(scale_k=0.5, scale_v=0.25)
    k, v = [drawn(n, heads, dim) for n in keys], [drawn(n, heads, dim_v) for n in keys]

    # The first rows of each sequence in one call, those that q goes with in another.
    for begin, end in (([0] * 4, [n - m for n, m in zip(keys, counts)]), ([n - m for n, m in zip(keys, counts)], keys)):
        ends = torch.tensor([0, *itertools.accumulate(b - a for a, b in zip(begin, end))], dtype=torch.int32)
        new = [torch.cat([x[a:b] for x, a, b in zip(rows, begin, end)]) for rows in (k, v)]
        append_kv(*new, pool_k, pool_v, block_table=table, seqused_kv=torch.tensor(begin, dtype=torch.int32),
                  cu_seqlens=ends, max_seqlen=max(keys), **scales)

    packed = case["rows"] == "packed"
    longest = max(counts) if packed else {"one": 1, "three": 3}[case["rows"]]
    q = [drawn(n if packed else longest, heads_q, dim) for n in counts]
    options = dict(return_lse=True, seqused_kv=used, **scales)
    if packed: options |= dict(cu_seqlens_q=ends, max_seqlen_q=longest)
    options |= {"causal": dict(causal=True), "window": dict(window=(20, 2)), "none": {},
                "chunk": dict(attention_chunk=19, causal=True)}[case["mask"]]
    options |= {"plain": {}, "softcap": dict(softcap=3.0), "sink": dict(sink=torch.randn(heads_q, generator=draw)),
                "alibi": dict(alibi_slopes=torch.rand(heads_q, generator=draw) / 8)}[case["scores"]]
    o, lse = paged_attention(torch.cat(q) if packed else torch.stack(q), pool_k, pool_v, table, **options)

    first = 0
    for b, n in enumerate(keys):
        held = [x[table[b, :-(-n // page)].long()].flatten(0, 1)[:n].double() for x in (pool_k, pool_v)]
        for x, cached, scale in ((k[b], held[0], 0.5), (v[b], held[1], 0.25)):
            assert torch.equal(cached, ((x.float() / scale).to(cached_as) if scales else x).double())
        if scales: held = [held[0] * 0.5, held[1] * 0.25]
        wanted, wanted_lse = exact(q[b].double(), *held, case, options)
        rows = slice(first, first + len(q[b]))
        found, found_lse = (o[rows], lse[:, rows]) if packed else (o[b], lse[b])
        first += len(q[b])
        # The weights and the result are rounded to the type, the sums of the scores to float32.
        size = held[1].abs().max() if n else 1.0
        if found.numel(): assert float((found.double() - wanted).abs().max()) <= 2 * UNIT[dtype] * size + 1e-5
        torch.testing.assert_close(found_lse.double(), wanted_lse, rtol=1e-4, atol=1e-4)


def test_the_design_has_all_pairs():
    for a, b in itertools.combinations(FACTORS, 2):
        assert {(case[a], case[b]) for case in CASES} == set(itertools.product(FACTORS[a], FACTORS[b])), (a, b)
