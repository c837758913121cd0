# SPDX-License-Identifier: Apache-2.0
"""froghopper.torch.paged_attention gives what attention gives of the same rows in dense tensors: any page size, any
order of pages, rows and heads, all types, NaN and no page where nothing counts; what is wrong is refused before
anything is written. On the CPU, and on a Hopper GPU where there is one."""
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import froghopper
from froghopper.torch import append_kv, attention, explain, paged_attention


def why_no_gpu():
    if not torch.cuda.is_available(): return "there is no GPU that PyTorch can use"
    if torch.cuda.get_device_capability() != (9, 0): return f"{torch.cuda.get_device_name()} is no Hopper GPU"
    return ""


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "a GPU"))]
NO_PAGE = 2147480000
USED, ROWS = [200, 1, 0, 77], 200


class Cache:
    """A pool with pages in random order, and the same rows one after the other."""

    def __init__(self, page, device, dtype=torch.bfloat16, heads=2, dim=64, dim_v=None):
        torch.manual_seed(page)
        columns = -(-ROWS // page)
        pages = columns * len(USED)
        draw = lambda *shape: torch.randn(*shape, device=device)
        self.k, self.v = (draw(len(USED), ROWS, heads, x).to(dtype) for x in (dim, dim_v or dim))
        self.table = torch.full((len(USED), columns), NO_PAGE, dtype=torch.int32, device=device)
        bits = torch.uint8 if dtype.itemsize == 1 else torch.int16 if dtype.itemsize == 2 else torch.int32
        pool = [torch.full((pages, page, heads, x.shape[-1]), -1, dtype=bits, device=device).view(dtype)  # NaN
                for x in (self.k, self.v)]
        order = torch.randperm(pages).tolist()
        for b, used in enumerate(USED):
            for column in range(-(-used // page)):
                number, first = order.pop(), column * page
                self.table[b, column] = number
                for x, to in zip((self.k, self.v), pool):
                    rows = x[b, first:min(first + page, used)]
                    to[number, :rows.shape[0]] = rows
        self.pool_k, self.pool_v = pool
        self.used = torch.tensor(USED, dtype=torch.int32, device=device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page", [1, 5, 16, 64, 256])
def test_decode_and_verification(page, device):
    cache = Cache(page, device)
    for rows in (1, 3):
        q = torch.randn(len(USED), rows, 4, 64, device=device).bfloat16()
        o, lse = paged_attention(q, cache.pool_k, cache.pool_v, cache.table, seqused_kv=cache.used, causal=True,
                                 return_lse=True)
        wanted, wanted_lse = attention(q, cache.k, cache.v, seqused_kv=cache.used, causal=True, return_lse=True)
        torch.testing.assert_close(o, wanted, atol=0.02, rtol=0.02)
        torch.testing.assert_close(lse, wanted_lse, atol=1e-3, rtol=1e-3)
        assert (o[2] == 0).all() and (lse[2] == -torch.inf).all()  # a sequence without keys


@pytest.mark.parametrize("device", DEVICES)
def test_mixed_batch(device):
    """Sequences that decode one token beside one that prefills a chunk, in one call."""
    cache = Cache(16, device)
    lengths = [60, 1, 0, 7]
    begins = torch.tensor([0, 60, 61, 61, 68], dtype=torch.int32, device=device)
    q = torch.randn(68, 4, 64, device=device).bfloat16()
    options = dict(causal=True, softcap=20.0, window=(100, 0), sink=torch.randn(4, device=device))
    found = paged_attention(q, cache.pool_k, cache.pool_v, cache.table, seqused_kv=cache.used, cu_seqlens_q=begins,
                            max_seqlen_q=60, **options)
    for b, rows in enumerate(lengths):
        mine = q[begins[b]:begins[b] + rows][None]
        wanted = attention(mine, cache.k[b:b + 1], cache.v[b:b + 1], seqused_kv=cache.used[b:b + 1], **options)
        torch.testing.assert_close(found[begins[b]:begins[b] + rows][None], wanted, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("device", DEVICES)
def test_views_of_the_pool(device):
    """Heads outside of rows, K and V interleaved in one tensor, a slice of a larger table: read where they lie."""
    cache = Cache(16, device)
    q = torch.randn(len(USED), 1, 4, 64, device=device).bfloat16()
    wanted = paged_attention(q, cache.pool_k, cache.pool_v, cache.table, seqused_kv=cache.used)
    hnd = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (cache.pool_k, cache.pool_v)]
    both = torch.cat([cache.pool_k, cache.pool_v], dim=-1)
    table = torch.cat([cache.table, cache.table], dim=1)[:, :cache.table.shape[1]]
    for k, v in (hnd, both.split(64, dim=-1)):
        assert torch.equal(paged_attention(q, k, v, table, seqused_kv=cache.used), wanted)
    out = torch.empty_like(wanted)
    assert paged_attention(q, cache.pool_k, cache.pool_v, cache.table, seqused_kv=cache.used, out=out) is out
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("of_q", [torch.bfloat16, torch.float8_e4m3fn])
def test_8_bit_cache(of_q, device):
    cache = Cache(16, device, torch.float8_e4m3fn)
    q = torch.randn(len(USED), 1, 4, 64, device=device).to(of_q)
    scales = dict(scale_k=torch.rand(len(USED), 2, device=device) + 0.5, scale_v=0.5)
    if of_q != torch.bfloat16: scales["scale_q"] = 1.0
    found = paged_attention(q, cache.pool_k, cache.pool_v, cache.table, seqused_kv=cache.used, **scales)
    wanted = attention(q, cache.k, cache.v, seqused_kv=cache.used, **scales)
    torch.testing.assert_close(found, wanted, atol=0.03, rtol=0.03)
    assert found.dtype == torch.bfloat16


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.parametrize("dim", [64, 512])
def test_scales_of_rows_as_append_writes_them(dim, page, device):
    """What append_kv has quantised, times its scales, in fp32. Scales of rows that do not count are NaN."""
    cache = Cache(page, device, dim=dim)
    pages = cache.pool_k.shape[0]
    pool = [torch.full((pages, page, 2, dim), -1, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)
            for _ in range(2)]
    scales = [torch.full((pages, page, 2), torch.nan, device=device) for _ in range(2)]
    slots = torch.tensor([int(cache.table[b, row // page]) * page + row % page
                          for b, used in enumerate(USED) for row in range(used)], device=device)
    new = [torch.cat([x[b, :used] for b, used in enumerate(USED)]) for x in (cache.k, cache.v)]
    append_kv(*new, *pool, slot_mapping=slots, scale_k=scales[0], scale_v=scales[1])
    dense = []
    for x, scale in zip(pool, scales):
        rows = (x.float() * scale[..., None]).flatten(0, 1)[slots].cpu().split(USED)
        dense.append(torch.stack([torch.cat([its, its.new_zeros(ROWS - len(its), 2, dim)]) for its in rows]))
    for count in (1, 70):
        q = torch.randn(len(USED), count, 4, dim, device=device).bfloat16()
        found, lse = paged_attention(q, *pool, cache.table, seqused_kv=cache.used, causal=True, return_lse=True,
                                     scale_k=scales[0], scale_v=scales[1])
        wanted, wanted_lse = attention(q.float().cpu(), *dense, seqused_kv=cache.used.cpu(), causal=True,
                                       return_lse=True)
        torch.testing.assert_close(found.float().cpu(), wanted, atol=0.02, rtol=0.02)
        torch.testing.assert_close(lse.cpu(), wanted_lse, atol=1e-3, rtol=1e-3)


@pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "a GPU")
def test_a_graph_serves_grown_and_shrunk_lengths():
    cache = Cache(16, "cuda")
    q = torch.randn(len(USED), 1, 4, 64, device="cuda").bfloat16()
    call = lambda: paged_attention(q, cache.pool_k, cache.pool_v, cache.table, seqused_kv=cache.used, causal=True)
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph): o = call()
    for lengths in ([200, 1, 0, 77], [3, 1, 0, 16], [0, 1, 0, 50], [150, 0, 0, 64]):
        cache.used.copy_(torch.tensor(lengths, dtype=torch.int32))
        graph.replay()
        wanted = attention(q, cache.k, cache.v, seqused_kv=cache.used, causal=True)
        torch.testing.assert_close(o, wanted, atol=0.02, rtol=0.02)


def test_messages():
    cache = Cache(16, "cpu", torch.float32)
    q = torch.randn(len(USED), 1, 4, 64)
    call = lambda **changed: paged_attention(**dict(dict(q=q, k=cache.pool_k, v=cache.pool_v, block_table=cache.table,
                                                         seqused_kv=cache.used), **changed))
    out = torch.full((len(USED), 1, 4, 64), torch.nan)
    table = cache.table.clone()
    table[3, 4] = -5
    for changed, message in (
            (dict(block_table=table), r"block_table\[3, 4\] must name a page of the pool, 0 to 51, but is -5"),
            (dict(block_table=cache.table.long()), "block_table must .*, but is int64 with the shape .4, 13"),
            (dict(block_table=cache.table[:2]), r"must be int32 \[batch, columns\] with batch 4"),
            (dict(k=cache.pool_k[0]), "k must .*, but has the shape .16, 2, 64"),
            (dict(v=cache.pool_v[:5]), "v must have the pages, rows and heads of k"),
            (dict(k=cache.pool_k.half()), "k must .*, but is float16"),
            (dict(max_seqlen_kv=209), "max_seqlen_kv must be from 0 to 208, .* but is 209"),
            (dict(max_seqlen_kv=207, seqused_kv=None), "max_seqlen_kv must be at least 208 without seqused_kv"),
            (dict(max_seqlen_q=1), "max_seqlen_q must be given with cu_seqlens_q"),
            (dict(seqused_kv=cache.used[:3]), "seqused_kv must have 4 numbers, .* but has 3"),
            (dict(scale_k=1.0), "scale_k must be None where k is float32, as it goes with 8-bit k and v"),
            (dict(q=q.clone().requires_grad_()), "q requires a gradient; attention to pages has none")):
        with pytest.raises((TypeError, ValueError, NotImplementedError), match=message): call(**changed, out=out)
    assert out.isnan().all()


def test_attention_takes_pages():
    cache = Cache(16, "cpu", torch.float32)
    q = torch.randn(len(USED), 1, 4, 64)
    wanted = paged_attention(q, cache.pool_k, cache.pool_v, cache.table, seqused_kv=cache.used, causal=True)
    given = dict(seqused_kv=cache.used, causal=True, block_table=cache.table)
    assert torch.equal(attention(q, cache.pool_k, cache.pool_v, **given), wanted)
    with pytest.raises(NotImplementedError, match="return_max_logit must be False with block_table, .* but is True"):
        attention(q, cache.pool_k, cache.pool_v, **given, return_max_logit=True)
    with pytest.raises(NotImplementedError, match="^q requires a gradient; attention to pages has none"):
        attention(q.clone().requires_grad_(), cache.pool_k, cache.pool_v, **given)
    with pytest.raises(ValueError, match="cu_seqlens_kv is given with block_table"):
        attention(q, cache.pool_k, cache.pool_v, **given, cu_seqlens_kv=cache.used)


@pytest.mark.parametrize("return_lse", [False, True])
@pytest.mark.parametrize("of_q", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_the_operator(of_q, return_lse):
    """PyTorch's own checks of it, and what it gives is what a call without it gives; also of tensors without memory."""
    cache = Cache(16, "cpu", of_q)
    q = torch.randn(len(USED), 1, 4, 64).to(of_q)
    scales = dict(scale_q=1.0, scale_k=0.5, scale_v=2.0) if of_q.itemsize == 1 else {}
    call = lambda q, k, v, table, used: paged_attention(q, k, v, table, seqused_kv=used, causal=True, softcap=15.0,
                                                        return_lse=return_lse, **scales)
    given = q, cache.pool_k, cache.pool_v, cache.table, cache.used
    wanted = call(*given)
    found = torch.compile(call, fullgraph=True, backend="aot_eager")(*given)
    bare = call(*(x.to("meta") for x in given))
    for x, y, z in zip(*(one if return_lse else (one,) for one in (found, wanted, bare))):
        assert torch.equal(x, y) and x.dtype == z.dtype and x.shape == z.shape and x.stride() == z.stride()
    factors = [None if not scales else torch.tensor(1.0)] * 3
    arguments = (*given[:4], None, None, cache.used, None, None, *factors, None, None)
    options = (None, None, True, -1, -1, 0.0, None, False, 0, 0, False, None, False, "", return_lse)
    if of_q.itemsize == 1: return  # opcheck draws random numbers, which PyTorch has not for float8
    for gate in (None, torch.randn_like(q)):
        torch.library.opcheck(torch.ops.froghopper.paged.default, (*arguments, gate, *options))
        torch.library.opcheck(torch.ops.froghopper.paged_out.default, (torch.empty_like(q), *arguments, gate, *options))


def test_what_compiled_code_refuses():
    """What shapes and types tell is refused when the graph is made, gradients likewise."""
    cache = Cache(16, "cpu", torch.float32)
    q = torch.randn(len(USED), 1, 4, 64)
    compiled = torch.compile(lambda q, k: paged_attention(q, k, cache.pool_v, cache.table), fullgraph=True,
                             backend="aot_eager")
    with pytest.raises(Exception, match="k must .*, but is float16"): compiled(q, cache.pool_k.half())
    with pytest.raises(Exception, match="q requires a gradient; attention to pages has none"):
        compiled(q.requires_grad_(), cache.pool_k)


def gated_exactly(q, cache, b, gate, rows_used=None):
    """float64 of one sequence, causal, for the first rows_used queries: the last one is level with the last key."""
    used, rows = USED[b], q.shape[0] if rows_used is None else rows_used
    q, gate, k, v = (x.cpu().double() for x in (q[:rows], gate[:rows], cache.k[b, :used], cache.v[b, :used]))
    group = q.shape[1] // k.shape[1]
    scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(group, 1)) / q.shape[-1] ** 0.5
    unseen = torch.arange(used) > torch.arange(rows)[:, None] + used - rows
    weights = scores.masked_fill(unseen, -torch.inf).softmax(-1).nan_to_num()  # NaN: a row that sees no key
    return torch.sigmoid(gate) * torch.einsum("hqk,khd->qhd", weights, v.repeat_interleave(group, 1))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page", [1, 16])
def test_gate(page, device):
    """Beside float64, and the bits of attention's gate where there is one page a row."""
    cache = Cache(page, device)
    q, gate = (torch.randn(len(USED), 3, 4, 64, device=device).bfloat16() for _ in range(2))
    given = dict(seqused_kv=cache.used, causal=True)
    pools = q, cache.pool_k, cache.pool_v
    gate[0] *= 100
    plain, plain_lse = paged_attention(*pools, cache.table, return_lse=True, **given)
    gate[2] = torch.nan  # a sequence without keys
    o, lse = paged_attention(*pools, cache.table, gate=gate, return_lse=True, **given)
    for b in (0, 3):
        torch.testing.assert_close(o[b].cpu().double(), gated_exactly(q[b], cache, b, gate[b]), atol=0.02, rtol=0.02)
    torch.testing.assert_close(o, attention(q, cache.k, cache.v, gate=gate, **given), atol=0.02, rtol=0.02)
    assert torch.equal(lse, plain_lse) and not torch.equal(o, plain) and not o[2].any()
    for x in (gate.transpose(1, 3).contiguous().transpose(1, 3), torch.cat((q, gate), -1)[..., 64:]):
        assert torch.equal(paged_attention(*pools, cache.table, gate=x, **given), o)  # no columns side by side; a half
    assert torch.equal(attention(*pools, block_table=cache.table, gate=gate, **given), o)
    out = torch.full_like(o, torch.nan)
    assert paged_attention(*pools, cache.table, gate=gate, out=out, **given) is out and torch.equal(out, o)
    found, by_row = paged_attention(*pools, cache.table, gate=gate, return_lse=True, lse_by_row=True, **given)
    assert torch.equal(found, o) and torch.equal(by_row.transpose(1, 2), lse)
    assert torch.equal(paged_attention(*pools, cache.table, **given), plain)  # nothing of the gate is remembered


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page", [1, 16])
def test_gate_of_packed_rows(page, device):
    """Rows of q that do not count, and rows behind the last sequence, have NaN as gate."""
    cache = Cache(page, device)
    firsts, counted = [0, 60, 61, 61, 68], [50, 1, 0, 4]
    begins, used_q = (torch.tensor(x, dtype=torch.int32, device=device) for x in (firsts, counted))
    q, gate = (torch.randn(70, 4, 64, device=device).bfloat16() for _ in range(2))
    nobodys = torch.ones(70, dtype=torch.bool)
    for first, rows in zip(firsts, counted): nobodys[first:first + rows] = False
    gate[nobodys.to(device)] = torch.nan
    o = paged_attention(q, cache.pool_k, cache.pool_v, cache.table, seqused_kv=cache.used, seqused_q=used_q,
                        cu_seqlens_q=begins, max_seqlen_q=60, causal=True, gate=gate)
    for b, (first, rows) in enumerate(zip(firsts, counted)):
        mine = slice(first, firsts[b + 1])
        if USED[b]:
            torch.testing.assert_close(o[mine][:rows].cpu().double(),
                                       gated_exactly(q[mine], cache, b, gate[mine], rows), atol=0.02, rtol=0.02)
        assert not o[mine][rows:].any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("of_q", [torch.float16, torch.float8_e4m3fn])
def test_gate_of_an_8_bit_cache(of_q, device):
    cache = Cache(16, device, torch.float8_e4m3fn)
    q = torch.randn(len(USED), 1, 4, 64, device=device).to(of_q)
    given = dict(seqused_kv=cache.used, scale_k=0.5, scale_v=2.0, out_dtype=torch.bfloat16)
    if of_q != torch.float16: given["scale_q"] = 1.0
    pools = q, cache.pool_k, cache.pool_v, cache.table
    gate = torch.randn(len(USED), 1, 4, 64, device=device).bfloat16()
    found, plain = paged_attention(*pools, gate=gate, **given), paged_attention(*pools, **given)
    torch.testing.assert_close(found, torch.sigmoid(gate) * plain, atol=0.02, rtol=0.02)
    with pytest.raises(TypeError, match="gate must be bfloat16, but is float16"):
        paged_attention(*pools, gate=gate.half(), **given)


@pytest.mark.parametrize("dynamic", [False, True])
def test_gate_compiled(dynamic):
    cache = Cache(16, "cpu")
    q, gate = (torch.randn(len(USED), 1, 4, 64).bfloat16() for _ in range(2))

    def call(q, gate, out): return paged_attention(q, cache.pool_k, cache.pool_v, cache.table, gate=gate,
                                                   seqused_kv=cache.used, out=out, return_lse=True)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for out in (None, torch.full_like(q, torch.nan)):
        for found, wanted in zip(compiled(q, gate, out), call(q, gate, None)): assert torch.equal(found, wanted)
    with pytest.raises(Exception, match="gate must have the shape"): compiled(q, gate[:1], None)
    assert torch.equal(compiled(q, None, None)[0], call(q, None, None)[0])


def test_gate_refused():
    cache = Cache(16, "cpu")
    q = torch.randn(len(USED), 1, 4, 64).bfloat16()
    out = torch.full_like(q, 7)
    held = torch.zeros(q.shape), torch.zeros(len(USED), 4, 1)
    for gate, error, said in (
            (q[:1], ValueError, r"gate must have the shape \[4, 1, 4, 64\], but has \[1, 1, 4, 64\]"),
            (torch.tensor(1.0).bfloat16(), ValueError, "gate must have the shape"),
            (q.float(), TypeError, "gate must be bfloat16, but is float32"),
            (q.to("meta"), ValueError, "gate must be on the device of q, cpu, but is on meta"),
            (q.to_sparse(), TypeError, r"gate must be dense, .* Use gate.to_dense\(\)"),
            (3.0, TypeError, "gate must be a tensor of PyTorch, but is a float"),
            (q.clone().requires_grad_(), NotImplementedError, r"gate requires a gradient; .* Use gate.detach\(\)")):
        with pytest.raises(error, match=said):
            paged_attention(q, cache.pool_k, cache.pool_v, cache.table, gate=gate, out=out)
    assert (out == 7).all()
    with pytest.raises(NotImplementedError, match="accumulate must be None with block_table"):
        attention(q, cache.pool_k, cache.pool_v, block_table=cache.table, gate=q, accumulate=held)
    assert "gate" in explain(q, cache.pool_k, cache.pool_v, block_table=cache.table, gate=q, target="h200")


def test_scales_have_no_gradients():
    k = torch.zeros(4, 8, 2, 32).to(torch.float8_e4m3fn)
    scale, table = torch.ones(4, 8, 2, requires_grad=True), torch.tensor([[2, 0], [3, 1]], dtype=torch.int32)
    with pytest.raises(froghopper.Unsupported, match="scale_k requires a gradient; attention to pages has none"):
        paged_attention(torch.randn(2, 3, 4, 32).bfloat16(), k, k, table, scale_k=scale, scale_v=scale.detach())
