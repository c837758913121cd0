# SPDX-License-Identifier: Apache-2.0
"""Attention of PyTorch tensors beside fp64 formulas (plain.py) and PyTorch's own attention in fp64; views, copies, out;
what is refused, and that nothing is written then; threads.

Bits are compared where two ways must reach the library with the same numbers."""
import threading

import numpy as np
import pytest
from plain import Options, Sequence, backward, excess, forward
from test_numpy import CASES

import froghopper

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.nn import functional
from torch_cases import TYPES, check_case, drawn, layer, one_thread, qkv, same, step

from froghopper import _torch_calls as calls
from froghopper import _torch_ops as ops
from froghopper.torch import attention, scaled_dot_product_attention


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", CASES)
def test_attention_and_gradients(name, dtype): check_case(CASES[name], dtype, "cpu")


# Of scaled_dot_product_attention: shapes of query, key, value, further arguments.
SHAPES = {
    "2-d": ((9, 16), (12, 16), (12, 8), {}),
    "3-d": ((3, 9, 16), (3, 12, 16), (3, 12, 8), {}),
    "4-d": ((2, 3, 9, 16), (2, 3, 12, 16), (2, 3, 12, 8), {}),
    "5-d": ((2, 4, 3, 9, 16), (2, 4, 3, 12, 16), (2, 4, 3, 12, 16), {}),
    "6-d": ((2, 1, 4, 3, 9, 16), (2, 1, 4, 3, 12, 16), (2, 1, 4, 3, 12, 16), {}),
    "causal": ((2, 3, 9, 16), (2, 3, 9, 16), (2, 3, 9, 16), dict(is_causal=True)),
    "causal, more keys": ((2, 3, 9, 16), (2, 3, 20, 16), (2, 3, 20, 16), dict(is_causal=True)),
    "causal, fewer keys": ((2, 3, 20, 16), (2, 3, 9, 16), (2, 3, 9, 16), dict(is_causal=True)),
    "scale": ((2, 3, 9, 16), (2, 3, 12, 16), (2, 3, 12, 16), dict(scale=0.7)),
    "gqa": ((2, 6, 9, 16), (2, 2, 12, 16), (2, 2, 12, 16), dict(enable_gqa=True)),
    "gqa, 3-d": ((6, 9, 16), (2, 12, 16), (2, 12, 16), dict(enable_gqa=True)),
    "one batch of keys": ((2, 3, 9, 16), (1, 3, 12, 16), (1, 3, 12, 16), {}),
    "keys without batch": ((2, 3, 9, 16), (3, 12, 16), (3, 12, 16), {}),
    "one head of keys": ((2, 3, 9, 16), (2, 1, 12, 16), (2, 1, 12, 16), {}),
    "one head of values": ((2, 3, 9, 16), (2, 3, 12, 16), (2, 1, 12, 16), {}),
    "one head of queries": ((2, 1, 9, 16), (2, 3, 12, 16), (2, 3, 12, 16), {}),
    "odd dims": ((2, 3, 9, 12), (2, 3, 12, 12), (2, 3, 12, 5), {}),
    "odd dim of values": ((2, 3, 9, 16), (2, 3, 12, 16), (2, 3, 12, 3), dict(scale=0.7)),
    "negative scale": ((2, 3, 9, 16), (2, 3, 12, 16), (2, 3, 12, 16), dict(scale=-0.7, is_causal=True)),
    "negative scale, odd dims": ((2, 9, 7), (2, 12, 7), (2, 12, 7), dict(scale=-0.7)),
    "queries of 2-d": ((9, 16), (2, 3, 12, 16), (2, 3, 12, 16), {}),
}


def bounds_of(tensors, grad, options):
    """Of o and of the three gradients: how far they may be from fp64, by plain.py, on tensors that are broadcast by
    hand. A gradient of what was broadcast is a sum again, whose rounding doubles the bound at most."""
    heads = [x.shape[-3] if x.ndim > 2 else 1 for x in tensors]
    lead = torch.broadcast_shapes(*(x.shape[:-3] for x in tensors))
    if not options.get("enable_gqa"): heads = [max(heads)] * 3
    full = [x.double().expand(*lead, count, *x.shape[-2:]) for x, count in zip([*tensors, grad], [*heads, heads[0]])]
    q, k, v, grad_o = (x.reshape(-1, *x.shape[-3:]).transpose(1, 2).numpy() for x in full)
    whole = [Sequence(batch, slice(0, q.shape[1]), slice(0, k.shape[1])) for batch in range(q.shape[0])]
    scale = options.get("scale")
    if scale is not None and scale < 0: q, scale = -q, -scale
    chosen = Options(causal=options.get("is_causal", False), align="top_left", scale=scale)
    exact = forward(q, k, v, whole, "float32", chosen)
    (o, of_o), (lse, _) = exact["o"], exact["lse"]
    found = backward(q, k, v, o, lse, grad_o, np.zeros(lse.shape), whole, "float32", chosen)

    def like(bound, x, shape): return torch.tensor(bound).transpose(1, 2).reshape(x.shape).sum_to_size(shape)
    gradients = [2 * like(found[name][1], x, tensor.shape) for name, x, tensor in zip("qkv", full, tensors)]
    return [like(of_o, full[3], grad.shape), *gradients]


@pytest.mark.parametrize("name", SHAPES)
def test_sdpa(name):
    """Beside PyTorch's attention in fp64."""
    *shapes, options = SHAPES[name]
    tensors = [drawn(*shape, seed=seed, grad=True) for seed, shape in enumerate(shapes)]
    doubles = [x.detach().double().requires_grad_() for x in tensors]
    found = scaled_dot_product_attention(*tensors, **options)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        exact = functional.scaled_dot_product_attention(*doubles, **options)
    grad = drawn(*exact.shape, seed=7)
    mine = [found, *torch.autograd.grad(found, tensors, grad)]
    right = [exact, *torch.autograd.grad(exact, doubles, grad.double())]
    for x, wanted, bound in zip(mine, right, bounds_of([x.detach() for x in tensors], grad, options), strict=True):
        assert x.shape == wanted.shape
        assert not excess(x.detach().numpy(), wanted.detach().numpy(), bound.numpy())


@pytest.mark.parametrize("bad, kind, words", [
    (dict(attn_mask=torch.ones(9, 9, dtype=torch.bool)), NotImplementedError, "attn_mask must be None, .* a tensor"),
    (dict(dropout_p=0.1), NotImplementedError, "dropout_p must .*, but is 0.1"),
    (dict(enable_gqa=True, key=torch.zeros(2, 2, 9, 16), value=torch.zeros(2, 2, 9, 16)), ValueError,
     "the number of heads of key must .*, but is 2"),
    (dict(key=torch.zeros(2, 2, 9, 16), value=torch.zeros(2, 2, 9, 16)), ValueError, "query, key and value must .*,"),
    (dict(key=torch.zeros(5, 3, 9, 16)), ValueError, "query, key and value must .*, but have the shapes .2, 3, 9, 1"),
    (dict(query=torch.zeros(16)), ValueError, "query must .*, but has the shape .16"),
    (dict(query=[1]), TypeError, "query must .*, but is a list"),
    (dict(query=torch.zeros(2, 3, 9, 16).double()), TypeError, "^query must .*, but is float64. Use query"),
], ids=str)
def test_what_sdpa_refuses(bad, kind, words):
    like = torch.zeros(2, 3, 9, 16)
    given = dict(query=like, key=like, value=like) | bad
    with pytest.raises(kind, match=words): scaled_dot_product_attention(**given)


def test_views_are_read_where_they_are(monkeypatch):
    def copied(x): raise AssertionError(f"a copy of {list(x.shape)}")
    monkeypatch.setattr(calls, "dense_copy", copied)
    packed = drawn(2, 9, 3, 4, 16)
    for tensors in (packed.unbind(2), drawn(3, 2, 4, 9, 16).transpose(2, 3).unbind(0),
                    drawn(2, 9, 4, 48).split(16, dim=-1), drawn(2, 9, 2, 3 * 16).split(16, dim=-1)):
        views = [x.detach().requires_grad_() for x in tensors]
        assert not views[0].is_contiguous()
        same(step(attention, views), step(attention, [x.detach().contiguous().requires_grad_() for x in views]))
    q, k, v = qkv(2, 4, 9, 16)
    assert torch.equal(scaled_dot_product_attention(q, k, v),
                       attention(*(x.transpose(1, 2).contiguous() for x in (q, k, v))).transpose(1, 2))


def test_others_are_copied_once(monkeypatch):
    copies, copy = [], calls.dense_copy
    monkeypatch.setattr(calls, "dense_copy", lambda x: copies.append(x) or copy(x))
    q, k, v = qkv(2, 9, 4, 16)
    turned = k.transpose(2, 3).contiguous().transpose(2, 3)
    assert turned.stride(-1) != 1
    assert torch.equal(attention(q, turned, v), attention(q, k, v)) and len(copies) == 1
    copies.clear()
    q.requires_grad_()
    attention(q, k, v).sum().backward()  # a gradient with strides of 0
    assert len(copies) == 1
    assert torch.equal(q.grad, torch.autograd.grad(attention(q, k, v), q, torch.ones(2, 9, 4, 16))[0])


@pytest.mark.parametrize("shape, strides, cpu, gpu", [
    ((2, 9, 4, 16), (576, 64, 16, 1), False, False),
    ((2, 9, 4, 16), (576, 16, 144, 1), False, False),
    ((2, 9, 4, 16), (0, 64, 0, 1), False, False),
    ((2, 9, 4, 16), (576, 64, 1, 4), True, True),
    ((2, 9, 4, 16), (612, 68, 17, 1), False, True),
    ((1, 9, 1, 16), (3, 64, 5, 1), False, False),  # of extents of 1 no stride counts
    ((9, 4, 16), (68, 16, 1), False, True),
    ((0, 4, 16), (68, 16, 3), False, False),
])
def test_what_must_be_copied(shape, strides, cpu, gpu):
    x = torch.zeros(4096, dtype=torch.bfloat16).as_strided(shape, strides)
    assert [calls.must_copy(x, on_gpu) for on_gpu in (False, True)] == [cpu, gpu]


def test_out():
    q, k, v = qkv(2, 9, 4, 16)
    o, lse = attention(q, k, v, return_lse=True)
    whole = torch.full((2, 9, 4, 32), 7.0)
    out, version = whole[..., :16], whole._version
    found = attention(q, k, v, out=out, return_lse=True)
    assert found[0] is out and torch.equal(out, o) and torch.equal(found[1], lse) and (whole[..., 16:] == 7).all()
    assert whole._version > version  # autograd sees that what was saved of it is gone
    with torch.no_grad(): assert attention(q.requires_grad_(), k, v, out=out) is out


def test_merging_gives_back_what_it_writes():
    q, k, v = qkv(2, 9, 4, 16)
    held, most = (torch.zeros(2, 9, 4, 16), torch.full((2, 4, 9), -torch.inf)), torch.full((2, 4), -torch.inf)
    for return_lse in (False, True):
        found = attention(q, k, v, accumulate=held, return_lse=return_lse)
        assert len(found) == 2 and found[0] is held[0] and found[1] is held[1]
        found = attention(q, k, v, accumulate=(*held, most), return_lse=return_lse, return_max_logit=True)
        assert len(found) == 3 and all(x is y for x, y in zip(found, (*held, most)))


@pytest.mark.parametrize("scale", [0, 0.0, -0.0, 1e-46, 1e-300])
def test_a_scale_of_zero(scale):
    """Every key has the same weight. Only None is 1/sqrt(dim)."""
    tensors = qkv(2, 5, 4, 16, kv=(2, 7, 4, 16), grad=True)
    o, lse = attention(*tensors, scale=scale, return_lse=True)
    torch.testing.assert_close(o, tensors[2].mean(1, keepdim=True).expand_as(o))
    torch.testing.assert_close(lse, torch.full_like(lse, 7.0).log())
    grads = torch.autograd.grad(o.sum(), tensors)
    assert grads[0].abs().max() < 1e-40 and grads[1].abs().max() < 1e-40
    torch.testing.assert_close(grads[2], torch.full_like(grads[2], 5 / 7))
    compiled = torch.compile(lambda *x: attention(*x, scale=scale), backend="eager")
    assert torch.equal(compiled(*tensors), o)


def test_a_softcap_of_none():
    tensors = qkv(2, 5, 4, 16)
    for none in (None, 0, 0.0): assert torch.equal(attention(*tensors, softcap=none), attention(*tensors))
    assert not torch.equal(attention(*tensors, softcap=1e-30), attention(*tensors))


def test_only_lse_is_used():
    q, k, v = qkv(1, 5, 2, 8, grad=True)
    _, lse = attention(q, k, v, return_lse=True)
    found = torch.autograd.grad(lse.sum(), [q, k, v])
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 8 ** 0.5
    right = torch.autograd.grad(scores.logsumexp(-1).sum(), [q, k])
    for mine, wanted in zip(found, right): torch.testing.assert_close(mine, wanted)
    assert (found[2] == 0).all()


def test_some_gradients():
    q, k, v = qkv(1, 5, 2, 8)
    o = attention(q, k.requires_grad_(), v)
    o.sum().backward()
    assert k.grad is not None and q.grad is None and not attention(q, k.detach(), v).requires_grad
    with torch.inference_mode(): assert torch.equal(attention(q, k, v), o)


def test_deterministic(monkeypatch):
    seen, make = [], calls.plan_of
    monkeypatch.setattr(calls, "plan_of", lambda problem, target: seen.append(problem.deterministic) or
                        make(problem, target))
    tensors = qkv(1, 5, 2, 24, grad=True)
    attention(*tensors, deterministic=True).sum().backward()
    torch.use_deterministic_algorithms(True)
    try: attention(*(x[:, :4] for x in tensors)).sum().backward()
    finally: torch.use_deterministic_algorithms(False)
    attention(*(x[:, :3] for x in tensors)).sum().backward()
    assert seen == [1, 0, 1] * 2 + [0, 0, 0]  # the forward problem, which always is, does not say so


def test_second_derivatives_are_refused():
    q, k, v = qkv(1, 5, 2, 8, grad=True)
    grad, = torch.autograd.grad(attention(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="first derivatives alone"): grad.sum().backward()
    grad, = torch.autograd.grad(torch.compile(attention, backend="eager")(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="first derivatives alone"): grad.sum().backward()
    with pytest.raises(NotImplementedError, match="q has a tangent"):
        torch.func.jvp(lambda x: attention(x, k.detach(), v.detach()), (q.detach(),), (q.detach(),))


def test_nothing_to_do():
    empty = torch.zeros(0, 5, 2, 8, requires_grad=True)
    assert attention(empty, empty, empty).shape == (0, 5, 2, 8)
    q, none = torch.ones(2, 3, 2, 8, requires_grad=True), torch.ones(2, 0, 2, 8, requires_grad=True)
    o, lse = attention(q, none, none, return_lse=True)
    assert (o == 0).all() and torch.isneginf(lse).all()
    o.sum().backward()
    assert (q.grad == 0).all() and none.grad.shape == none.shape


Q, KV = torch.zeros(2, 5, 4, 16), torch.zeros(2, 7, 2, 16)
PACKED = dict(q=Q.flatten(0, 1), k=KV.flatten(0, 1), v=KV.flatten(0, 1))


def ints(*numbers): return torch.tensor(numbers, dtype=torch.int32)


ENDS = dict(cu_seqlens_q=ints(0, 5, 10), cu_seqlens_kv=ints(0, 7, 14))
BAD = [
    (dict(q=[[1.0]]), TypeError, "q must .*, but is a list"),
    (dict(q=Q.numpy()), TypeError, "q must .*, but is an ndarray"),
    (dict(q=Q.double(), k=KV.double(), v=KV.double()), TypeError, "q, k and v must .*, but are float64"),
    (dict(q=Q.int(), k=KV.int(), v=KV.int()), TypeError, "are int32"),
    (dict(k=KV.half()), TypeError, "k must .*, but is float16"),
    (dict(q=Q.to_sparse()), TypeError, "have the layouts torch.sparse_coo, torch.strided and"),
    (dict(k=torch.nested.as_nested_tensor([x for x in KV], layout=torch.jagged)), TypeError, "torch.jagged"),
    (dict(q=Q[0]), ValueError, "q must .*, but has the shape .5, 4, 16"),
    (dict(ENDS), ValueError, "q must .*, but has the shape .2, 5, 4, 16"),
    (dict(k=KV[:1], v=KV[:1]), ValueError, "k must .*, but has 1: their shapes are .1, 7, 2, 16. and .2, 5, 4, 16"),
    (dict(v=KV[:, :6]), ValueError, "v must .*, but has 6: their shapes are .2, 6, 2, 16. and .2, 7, 2, 16"),
    (dict(k=KV[..., :8]), ValueError, "k must .*, but has 8: their shapes are .2, 7, 2, 8. and .2, 5, 4, 16"),
    (dict(v=KV[..., :0]), ValueError, "v must .*, but has 0"),
    (dict(k=torch.zeros(2, 7, 3, 16), v=torch.zeros(2, 7, 3, 16)), ValueError, "heads_kv must .*, but is 3"),
    (dict(q=Q[..., :12], k=KV[..., :12]), NotImplementedError, "head dims must .*, but that of q and k is 12"),
    (dict(causal="yes"), TypeError, "causal must .*, but is 'yes'"),
    (dict(causal=torch.tensor(True)), TypeError, "causal must .*, but is a tensor"),
    (dict(window=3), TypeError, "window must .*, but is 3"),
    (dict(window=(-2, 0)), ValueError, "window must .*, but is .-2, 0."),
    (dict(softcap="x"), TypeError, "softcap must .*, but is 'x'"),
    (dict(softcap=torch.tensor(1.0)), TypeError, "softcap must .*, but is a tensor"),
    (dict(softcap=-1.0), ValueError, "softcap must .*, but is -1"),
    (dict(softcap=1e-300), ValueError, "softcap must .*, but is 1e-300"),
    (dict(scale=float("inf")), ValueError, "scale must .*, but is inf"),
    (dict(align="left"), ValueError, "align must .*, but is 'left'"),
    (dict(max_sms=-1), ValueError, "max_sms must .*, but is -1"),
    (dict(max_sms=1.5), TypeError, "max_sms must .*, but is 1.5"),
    (dict(deterministic="no"), TypeError, "deterministic must .*, but is 'no'"),
    (dict(return_lse=2.5), TypeError, "return_lse must .*, but is 2.5"),
    (dict(sink=torch.zeros(4).double()), TypeError, "sink must .*, but is float64"),
    (dict(sink=[0.0] * 4), TypeError, "sink must .*, but is a list"),
    (dict(sink=torch.zeros(2)), ValueError, "sink must .*, but has .2"),
    (dict(sink=torch.zeros(8)[::2]), ValueError, "sink must .*, but is not"),
    (dict(sink=torch.zeros(4, device="meta")), ValueError, "sink must .*, but is on meta"),
    (dict(cu_seqlens_q=ints(0, 5, 10)), ValueError, "cu_seqlens_q and cu_seqlens_kv must .*, but cu_seqlens_kv is N"),
    (dict(cu_seqlens_kv=ints(0, 5, 10)), ValueError, "cu_seqlens_q and cu_seqlens_kv must .*, but cu_seqlens_q is N"),
    (PACKED | dict(cu_seqlens_q=ints(0, 10), cu_seqlens_kv=ints(0, 7, 14)), ValueError, ".*, but have 2 and 3"),
    (PACKED | dict(cu_seqlens_q=[0, 10], cu_seqlens_kv=[0, 14]), TypeError, "cu_seqlens_q must .*, but is a list"),
    (PACKED | dict(cu_seqlens_q=ints(0, 10).long(), cu_seqlens_kv=ints(0, 14)), TypeError, "cu_seqlens_q must .*, b"),
    (PACKED | dict(cu_seqlens_q=ints(0, 10)[None], cu_seqlens_kv=ints(0, 14)), TypeError, "one-dimensional int32"),
    (PACKED | dict(cu_seqlens_q=ints(0, 5, 10)[::2], cu_seqlens_kv=ints(0, 14)), ValueError, "cu_seqlens_q must .*,"),
    (PACKED | dict(cu_seqlens_q=ints(1, 10), cu_seqlens_kv=ints(0, 14)), ValueError, "cu_seqlens_q must .*, but beg"),
    (PACKED | dict(cu_seqlens_q=ints(0, 8, 6), cu_seqlens_kv=ints(0, 7, 14)), ValueError, "falls from 8 to 6"),
    (PACKED | dict(cu_seqlens_q=ints(0, 11), cu_seqlens_kv=ints(0, 14)), ValueError, "cu_seqlens_q must .*, but cu_"),
    (PACKED | ENDS | dict(max_seqlen_q=3), ValueError, "max_seqlen_q must .*, but is 3"),
    (PACKED | ENDS | dict(max_seqlen_q=-3), ValueError, "max_seqlen_q must .*, but is -3"),
    (PACKED | ENDS | dict(max_seqlen_q=torch.tensor(5)), TypeError, "max_seqlen_q must .*, but is a tensor"),
    (dict(max_seqlen_q=3), ValueError, "without cu_seqlens"),
    (dict(seqused_q=ints(1, 2, 3)), ValueError, "seqused_q must .*, but has 3"),
    (dict(seqused_kv=ints(1, 8)), ValueError, "seqused_kv.1. must .*, but is 8"),
    (dict(seqused_kv=[1, 2]), TypeError, "seqused_kv must .*, but is a list"),
    (dict(out=torch.full((2, 5, 4, 8), 7.0)), ValueError, "out must .*, but has .2, 5, 4, 8"),
    (dict(out=torch.full(Q.shape, 7).half()), TypeError, "out must .*, but is float16"),
    (dict(out=torch.full((2, 5, 4, 32), 7.0)[..., ::2]), ValueError, "out must .*, but has the strides .640, 128, 3"),
    (dict(out=torch.full((1, 5, 4, 16), 7.0).expand(2, 5, 4, 16)), ValueError,
     "out must have rows that do not .*, but its"),
    (dict(out=torch.full(Q.shape, 7.0).requires_grad_()), NotImplementedError, "out is given and a tensor requires"),
    (dict(q=Q.clone().requires_grad_()), NotImplementedError, "out is given and a tensor requires"),
]


@pytest.mark.parametrize("bad, kind, words", BAD, ids=[words for *_, words in BAD])
def test_what_is_refused(bad, kind, words):
    tensors = [bad.get(name, like) for name, like in (("q", Q), ("k", KV), ("v", KV))]
    options = {name: value for name, value in bad.items() if name not in "qkv"}
    like = tensors[0] if isinstance(tensors[0], torch.Tensor) and tensors[0].layout == torch.strided else Q
    out = options.setdefault("out", torch.full((*like.shape[:-1], tensors[2].shape[-1]), 7, dtype=like.dtype))
    before = out.detach().clone()
    for _ in range(2):  # the second time what was made the first time may be kept
        with pytest.raises(kind, match=words) as refused: attention(*tensors, **options)
        assert isinstance(refused.value, froghopper.Error) and str(refused.value).endswith(".")
        assert torch.equal(out, before)


def test_what_the_operators_refuse():
    q, k, v = qkv(2, 5, 4, 16, grad=True)
    arguments = [q, k, v, *[None] * 6, -1, -1, False, -1, -1, 0.0, None, False, False, 0, 0, False, ""]
    with pytest.raises(NotImplementedError, match="return_lse must be True here, as q"):
        ops.forward_op(*arguments, False, False)
    o, lse = (x.detach() for x in ops.forward_op(*arguments, True, True))
    still = [q.detach(), k.detach(), v.detach()]
    for bad, kind, words in (((o[:, :4], None, *still, o, lse), ValueError, "grad_o must .*, but has .2, 4, 4, 16"),
                             ((o, lse[:1], *still, o, lse), ValueError, "grad_lse must .*, but has .1, 4, 5"),
                             ((o, None, *still, o, lse.double()), TypeError, "lse must .*, but is float64"),
                             ((o, None, *still, o.half(), lse), TypeError, "o must .*, but is float16")):
        with pytest.raises(kind, match=words): ops.backward_op(*bad, *arguments[3:])


def test_threads():
    """Forward and backward in eight threads at once, the first of them making the plans."""
    begin, wrong = threading.Barrier(8), []

    def work(seed):
        try:
            tensors = [[drawn(1, rows, 2, 8, seed=seed + at, grad=True) for at in range(3)] for rows in range(71, 77)]
            begin.wait()
            first = [step(layer, x) for x in tensors]
            for _ in range(5):
                for x, wanted in zip(tensors, first): same(step(layer, x), wanted)
        except BaseException as error: wrong.append(error)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert not wrong
