# SPDX-License-Identifier: Apache-2.0
"""flash_attn_with_kvcache of pages, and of dense caches in another order: every combination of page_table,
cache_batch_idx, cache_leftpad and packed q gives what flash_attn_func gives of each sequence alone; in 8 bits, and of
pools that lie otherwise. On the CPU, and on a Hopper GPU where there is one."""
import itertools

import pytest

torch = pytest.importorskip("torch", reason="the interface of FlashAttention-3 needs torch, which is not installed")

from torch_cases import DEVICES  # noqa: E402

from froghopper import _pages as pages  # noqa: E402
from froghopper import flash_attn_interface as fa  # noqa: E402

NO_PAGE, BATCH, NEW, ROOM, DIM = 2147480000, 3, 3, 48, 64
USED, LEFT = [40, 17, 5], [3, 16, 0]


def ints(numbers, device="cpu"): return torch.tensor(numbers, dtype=torch.int32, device=device)


class Pool:
    """Four sequences of 48 rows in pages in random order; page 0 for a dense cache. NaN where nothing counts."""

    def __init__(self, page, device, dtype=torch.bfloat16, used=USED, rows=(0, 1, 2), heads_first=False):
        torch.manual_seed(page)
        self.k, self.v = (torch.randn(4, ROOM, 2, DIM, device=device).to(dtype) for _ in range(2))
        held = [0] * 4
        for row, count in zip(rows, used): held[row] = max(held[row], count)
        if not page:
            self.pools, self.table = [x.clone() for x in (self.k, self.v)], None
            for x, row in itertools.product(self.pools, range(4)): x[row, held[row]:].view(torch.uint8).fill_(255)
            return
        columns = -(-ROOM // page)
        shape = (4 * columns, 2, page, DIM) if heads_first else (4 * columns, page, 2, DIM)
        pools = [torch.full((*shape[:-1], DIM * dtype.itemsize), 255, dtype=torch.uint8, device=device).view(dtype)
                 for _ in range(2)]  # NaN
        self.pools = [x.transpose(1, 2) if heads_first else x for x in pools]
        self.table = torch.full((4, columns), NO_PAGE, dtype=torch.int32, device=device)
        order = iter(torch.randperm(4 * columns).tolist())
        for row, first in itertools.product(range(4), range(0, ROOM, page)):
            if first >= held[row]: continue
            number = self.table[row, first // page] = next(order)
            for x, to in zip((self.k, self.v), self.pools):
                part = x[row, first:min(first + page, held[row])]
                to[int(number), :len(part)] = part


def expected(q, pool, rows, used, left, **words):
    """Each sequence alone; q a list."""
    found = []
    for b, (row, count, first) in enumerate(zip(rows, used, left)):
        scales = {name: x[b:b + 1] for name, x in words.items() if name.endswith("_descale")}
        found.append(fa.flash_attn_func(q[b][None], pool.k[row:row + 1, first:count], pool.v[row:row + 1, first:count],
                                        return_attn_probs=True, **words | scales))
    return [o[0] for o, _ in found], [lse[0] for _, lse in found]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("index", ["none", "other", "shared"])
@pytest.mark.parametrize("page", [0, 1, 5, 16])
def test_every_combination(page, index, left, packed, device):
    rows = {"none": (0, 1, 2), "other": (2, 0, 3), "shared": (1, 3, 1)}[index]
    pool = Pool(page, device, rows=rows)
    given = {} if index == "none" else dict(cache_batch_idx=ints(rows, device))
    k, v = pool.pools
    if index == "none" and page: given["page_table"] = pool.table[:BATCH]
    elif index == "none": k, v = k[:BATCH], v[:BATCH]
    elif page: given["page_table"] = pool.table
    if left: given["cache_leftpad"] = ints(LEFT, device)
    counts = [2, 1, 3] if packed else [NEW] * BATCH
    q = [torch.randn(count, 4, DIM, device=device).bfloat16() for count in counts]
    words = dict(causal=True, window_size=(9, 0), softcap=5.0, s_aux=torch.randn(4, device=device))
    if packed:
        ends = torch.tensor([0, *counts], device=device).cumsum(0, dtype=torch.int32)
        given |= dict(cu_seqlens_q=ends, max_seqlen_q=3)
    out, lse, *_ = fa.flash_attn_with_kvcache(torch.cat(q) if packed else torch.stack(q), k, v, return_softmax_lse=True,
                                              cache_seqlens=ints(USED, device), **given, **words)
    wanted, wanted_lse = expected(q, pool, rows, USED, LEFT if left else [0] * BATCH, **words)
    torch.testing.assert_close(out, torch.cat(wanted) if packed else torch.stack(wanted), rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(lse, torch.cat(wanted_lse, 1) if packed else torch.stack(wanted_lse), rtol=1e-3,
                               atol=1e-3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page", [0, 16])
def test_8_bits_with_scales_of_each_sequence(page, device):
    rows = (2, 0, 3)
    pool = Pool(page, device, torch.float8_e4m3fn, rows=rows)
    q = torch.randn(BATCH, NEW, 4, DIM, device=device).bfloat16()
    scales = {f"{name}_descale": torch.rand(BATCH, 2, device=device) + 0.5 for name in "kv"}
    given = dict(page_table=pool.table) if page else {}
    found = fa.flash_attn_with_kvcache(q, *pool.pools, cache_seqlens=ints(USED, device), causal=True, **given, **scales,
                                       cache_batch_idx=ints(rows, device), cache_leftpad=ints(LEFT, device))
    wanted, _ = expected(q, pool, rows, USED, LEFT, causal=True, **scales)
    torch.testing.assert_close(found, torch.stack(wanted), rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("page", [0, 1, 5, 16])
def test_new_rows(page, packed, left, device):
    """They go to the pages of their sequences: o is as if they had been there, and no other byte changes."""
    rows, counts = (2, 0, 3), [2, 1, 3] if packed else [2] * BATCH
    pool = Pool(page, device, rows=rows)
    q, given = torch.randn(BATCH, NEW, 4, DIM, device=device).bfloat16(), dict(cache_batch_idx=ints(rows, device))
    if page: given["page_table"] = pool.table
    if left: given["cache_leftpad"] = ints(LEFT, device)
    wanted = fa.flash_attn_with_kvcache(q, *pool.pools, cache_seqlens=ints(USED, device), causal=True, **given)
    held, new = [x.clone() for x in pool.pools], []
    for row, end, count in zip(rows, USED, counts):
        for at in range(end - count, end):
            where = (int(pool.table[row, at // page]), at % page) if page else (row, at)
            for x in pool.pools: x[where].fill_(float("nan"))
        new.append([x[row, end - count:end] for x in (pool.k, pool.v)])
    k, v = ((torch.cat if packed else torch.stack)(x) for x in zip(*new))
    if packed: given["cu_seqlens_k_new"] = torch.tensor([0, *counts], device=device).cumsum(0, dtype=torch.int32)
    before = ints([end - count for end, count in zip(USED, counts)], device)
    found = fa.flash_attn_with_kvcache(q, *pool.pools, k, v, cache_seqlens=before, causal=True, **given)
    assert torch.equal(found, wanted)
    for x, to in zip(held, pool.pools): assert torch.equal(x.view(torch.uint8), to.view(torch.uint8))


@pytest.mark.parametrize("device", DEVICES)
def test_pools_that_lie_otherwise(device):
    """Heads outside of rows, K and V side by side, a dense cache with room between its sequences."""
    q, used, left = torch.randn(BATCH, NEW, 4, DIM, device=device).bfloat16(), ints(USED, device), ints(LEFT, device)
    call = lambda k, v, **words: fa.flash_attn_with_kvcache(q, k, v, cache_seqlens=used, cache_leftpad=left, **words)
    pool, other = Pool(16, device), Pool(16, device, heads_first=True)
    wanted = call(*pool.pools, page_table=pool.table[:BATCH])
    assert torch.equal(call(*other.pools, page_table=other.table[:BATCH]), wanted)
    both = torch.cat(pool.pools, -1).split(DIM, -1)
    assert torch.equal(call(*both, page_table=pool.table[:BATCH]), wanted)
    dense = Pool(0, device)
    held = [torch.cat([x, x], 1)[:BATCH, :ROOM] for x in dense.pools]
    assert torch.equal(call(*held), call(*(x[:BATCH] for x in dense.pools)))


def test_a_pool_with_too_many_slots():
    """Of which no number of int32 names the last one."""
    large = torch.empty(2**29, 4, 1, 8, device="meta")
    with pytest.raises(NotImplementedError, match="its numbers are int32"): pages.slots_of(large, large)


def test_bounds_and_hints():
    """What vLLM, SGLang and transformers give beside the rest, and where the result goes."""
    pool = Pool(16, "cpu")
    q = torch.randn(BATCH, 1, 4, DIM).bfloat16()
    given = dict(cache_seqlens=ints(USED), page_table=pool.table[:BATCH])
    wanted = fa.flash_attn_with_kvcache(q, *pool.pools, **given)
    metadata = fa.get_scheduler_metadata(BATCH, 1, ROOM, 4, 2, DIM, given["cache_seqlens"])
    assert metadata.dtype == torch.int32 and metadata.shape == (1 + 4 * 4,)
    out = torch.empty_like(wanted)
    found = fa.flash_attn_with_kvcache(
        q, *pool.pools, out=out, max_seqlen_q=1, max_seqlen_k=40, scheduler_metadata=metadata, ver=3, num_splits=8,
        attention_chunk=None, cu_seqlens_k_new=ints([0, 40, 57, 62]), mask_mod=None, aux_tensors=None, sfq=None,
        only_qv=False, sinks=None, **given)
    assert found is out and torch.equal(out, wanted)
    with pytest.raises(NotImplementedError, match="mask_mod; masks and scores are not written by the caller"):
        fa.flash_attn_with_kvcache(q, *pool.pools, mask_mod=lambda *_: True, **given)


def test_lengths_of_pages_in_the_words_of_others():
    """cu_seqlens_k, as FlashAttention 2 has it beside block_table, and a bound of the whole model."""
    pool = Pool(16, "cpu")
    q, starts = torch.randn(BATCH, 4, DIM).bfloat16(), ints(range(BATCH + 1))
    call = lambda **words: fa.flash_attn_varlen_func(q, *pool.pools, cu_seqlens_q=starts, max_seqlen_q=1,
                                                     block_table=pool.table[:BATCH], causal=True, **words)
    wanted = call(seqused_k=ints(USED))
    ends = torch.tensor([0, *USED]).cumsum(0, dtype=torch.int32)
    assert torch.equal(call(cu_seqlens_k=ends, max_seqlen_k=40), wanted)
    assert torch.equal(call(seqused_k=ints(USED), max_seqlen_k=131072), wanted)
    cached = fa.flash_attn_with_kvcache(q[:, None], *pool.pools, cache_seqlens=ints(USED), max_seqlen_k=131072,
                                        page_table=pool.table[:BATCH], causal=True)
    assert torch.equal(cached[:, 0], wanted)


@pytest.mark.parametrize("name, changed, says", [
    ("batch", dict(page_table=ints([[0, 1]])),
     "page_table must .* each sequence of q, 3 in all, but has 1. Give cache_batch_idx"),
    ("index", dict(cache_batch_idx=ints([0, 4, 1])), r"cache_batch_idx\[1\] must be from 0 to 3, but is 4"),
    ("left", dict(cache_leftpad=ints([0, 49, 1])), r"cache_leftpad\[1\] must be from 0 to 48, but is 49"),
    ("length", dict(cache_seqlens=ints([0, 49, 1])), r"cache_seqlens\[1\] must .*the cache has 48 rows, but is 49"),
    ("table", dict(page_table=torch.zeros(3, 3)), "page_table must be int32 .*, but is torch.float32")])
def test_messages(name, changed, says):
    pool = Pool(16, "cpu")
    given = dict(cache_seqlens=ints(USED), page_table=pool.table, cache_batch_idx=ints([0, 1, 2]))
    if name == "batch": del given["cache_batch_idx"]
    with pytest.raises((ValueError, TypeError), match=says):
        fa.flash_attn_with_kvcache(torch.randn(3, 1, 4, DIM).bfloat16(), *pool.pools, **given | changed)
