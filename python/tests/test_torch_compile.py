# SPDX-License-Identifier: Apache-2.0
"""torch.compile with whole numbers that change from call to call: one compilation serves all of them, also where they
come from a tensor. Counted by a backend of PyTorch's that keeps what it is given."""
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch_cases import drawn, one_thread, qkv, same, step

from froghopper.flash_attn_interface import flash_attn_with_kvcache
from froghopper.torch import append_kv, attention, paged_attention

ENDS = torch.tensor([0, 14, 40], dtype=torch.int32)


def packed(q, k, v, longest):
    return attention(q, k, v, cu_seqlens_q=ENDS, cu_seqlens_kv=ENDS, max_seqlen_q=longest, max_seqlen_kv=longest + 1)


PLACES = {
    "max_seqlen": (packed, (40, 3, 8), range(36, 42)),
    "window": (lambda *x: attention(*x[:3], window=(x[3], x[3] + 1)), (4, 25, 3, 8), range(11, 17)),
    "one bound": (lambda *x: attention(*x[:3], causal=True, window=(x[3], None)), (4, 25, 3, 8), range(11, 17)),
    "attention_chunk": (lambda *x: attention(*x[:3], attention_chunk=x[3]), (4, 25, 3, 8), range(5, 11)),
    "max_sms": (lambda *x: attention(*x[:3], max_sms=x[3]), (4, 25, 3, 8), range(5, 11)),
    "out": (lambda *x: attention(*x[:3], window=(x[3], 0), out=torch.empty_like(x[0])), (4, 25, 3, 8), range(11, 17)),
    "merged": (lambda *x: attention(*x[:3], window=(x[3], 0), accumulate=nothing())[0], (4, 25, 3, 8), range(11, 17)),
    "with max_logit": (lambda *x: attention(*x[:3], window=(x[3], 0), return_max_logit=True)[0], (4, 25, 3, 8),
                       range(11, 17)),
}


def nothing(): return torch.zeros(4, 25, 3, 8), torch.full((4, 3, 25), -torch.inf)


class Counter:
    """A backend: what was compiled, run by PyTorch's own operators."""

    def __init__(self):
        torch._dynamo.reset()
        self.graphs = []

    def __call__(self, graph, inputs):
        self.graphs.append(graph)
        return torch._dynamo.backends.debugging.aot_eager(graph, inputs)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PLACES)
def test_one_compilation_for_all_values(name, dynamic):
    function, shape, values = PLACES[name]
    counter, grad = Counter(), name not in ("out", "merged")
    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend=counter)
    tensors = qkv(*shape, grad=grad)
    for value in values:
        def one(*x): return function(*x, value)
        def two(*x): return compiled(*x, value)
        if grad: same(step(two, tensors), step(one, tensors))
        else: assert torch.equal(two(*tensors), one(*tensors))
    # PyTorch takes the first value of a number for a constant, unless it is told that it is none.
    assert len(counter.graphs) == (1 if dynamic else 2)


@pytest.mark.parametrize("name", ["max_seqlen", "one bound"])
def test_one_compilation_for_values_of_a_tensor(name):
    function, shape, values = PLACES[name]
    counter, tensors = Counter(), qkv(*shape)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(lambda *x: function(*x[:3], x[3].max().item()), fullgraph=True, backend=counter)
        for value in values:
            found = compiled(*tensors, torch.tensor([1, value, 2]))
            assert torch.equal(found, function(*tensors, value))
    assert len(counter.graphs) == 1


def test_caches_with_padding_at_the_left():
    """One graph, which is not made again for a longer cache."""
    counter, q = Counter(), drawn(2, 1, 3, 8)
    used, left = torch.tensor([7, 9], dtype=torch.int32), torch.tensor([2, 0], dtype=torch.int32)

    def decode(q, cache): return flash_attn_with_kvcache(q, cache, cache, cache_seqlens=used, cache_leftpad=left)
    compiled = torch.compile(decode, fullgraph=True, dynamic=True, backend=counter)
    for rows in range(11, 17):
        cache = drawn(2, rows, 3, 8, seed=rows)
        assert torch.equal(compiled(q, cache), decode(q, cache))
        if rows == 11: first = len(counter.graphs)
    assert len(counter.graphs) == first


def test_a_step_of_decoding_is_one_graph():
    """New rows are written to a pool and attention reads it, in that order; batch, lengths and table change. No batch
    is another extent too, since PyTorch takes extents that are equal at first for ones that always are."""
    counter = Counter()

    def step(q, k, v, pool, table, used, out):
        new_q = append_kv(k, v, *pool.unbind(1), q=q, block_table=table, seqused_kv=used, norm_epsilon=1e-5)
        return paged_attention(new_q, *pool.unbind(1), table, seqused_kv=used + 1, causal=True, window=(30, 0),
                               return_lse=True, out=out)
    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend=counter)
    for batch in (5, 6, 7, 9):
        used = torch.arange(batch, dtype=torch.int32) * 7
        q, k, v = drawn(batch, 1, 4, 8), drawn(batch, 1, 2, 8, seed=1), drawn(batch, 1, 2, 8, seed=2)
        table = torch.randperm(90)[:batch * 10].reshape(batch, 10).int()
        found, wanted = [drawn(90, 2, 16, 2, 8, seed=3) for _ in range(2)]
        outs = [torch.full_like(q, torch.nan) for _ in range(2)]
        same(compiled(q, k, v, found, table, used, outs[0]), step(q, k, v, wanted, table, used, outs[1]))
        same((found, outs[0]), (wanted, outs[1]))
        if batch == 5: first = len(counter.graphs)
    assert len(counter.graphs) == first


@pytest.mark.parametrize("longest", [-1, -3])
def test_what_compiled_code_refuses(longest):
    """Lengths are checked when it runs, if not before."""
    compiled = torch.compile(packed, fullgraph=True, dynamic=True, backend=Counter())
    tensors = qkv(40, 3, 8)
    compiled(*tensors, 39)
    with pytest.raises(ValueError, match=f"{longest}"): compiled(*tensors, longest)
