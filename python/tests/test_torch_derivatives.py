# SPDX-License-Identifier: Apache-2.0
"""Derivatives of froghopper.torch beyond one backward pass: many gradients at once, and tangents, which are refused
wherever they would be dropped."""
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.autograd import forward_ad
from torch_cases import drawn, one_thread, qkv, same

from froghopper.torch import attention, quantise

ENDS = torch.tensor([0, 3, 9], dtype=torch.int32)
PROBLEMS = {
    "dense": ((2, 5, 4, 8), dict(causal=True)),
    "sink": ((2, 5, 4, 8), dict(sink=drawn(4, seed=5, grad=True))),
    "slopes": ((2, 5, 4, 8), dict(alibi_slopes=drawn(2, 4, seed=6).abs())),
    "packed": ((9, 4, 8), dict(causal=True, cu_seqlens_q=ENDS, cu_seqlens_kv=ENDS, sink=drawn(4, seed=7, grad=True))),
    "with lse": ((2, 5, 4, 8), dict(return_lse=True)),
    "with max_logit": ((2, 5, 4, 8), dict(return_max_logit=True)),
}


def problem(name):
    """(a function of q, k, v and maybe sink to one tensor, what it is called with)"""
    shape, options = PROBLEMS[name]
    tensors, sinks = qkv(*shape, grad=True), {"sink": options["sink"]} if "sink" in options else {}

    def function(q, k, v, *sink):
        found = attention(q, k, v, **options | dict(zip(sinks, sink)))
        if name == "with lse": return found[0] * found[1].transpose(1, 2)[..., None]
        return found[0] if isinstance(found, tuple) else found
    return function, [*tensors, *sinks.values()]


@pytest.mark.parametrize("compiled", ["", "eager", "aot_eager"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_gradients_of_many_at_once(name, compiled):
    function, tensors = problem(name)
    if compiled:
        torch._dynamo.reset()
        function = torch.compile(function, backend=compiled)
    o = function(*tensors)
    grads = drawn(3, *o.shape, seed=8)
    found = torch.autograd.grad(o, tensors, grads, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad(o, tensors, grad, retain_graph=True) for grad in grads]
    same(found, [torch.stack(x) for x in zip(*each)])


@pytest.mark.parametrize("name", PROBLEMS)
def test_jacobians(name):
    function, tensors = problem(name)

    def few(*x): return function(*x)[..., 1, 2].flatten()[:7]
    wanted = torch.autograd.functional.jacobian(few, tuple(tensors))
    same(torch.autograd.functional.jacobian(few, tuple(tensors), vectorize=True), wanted)
    same(torch.func.jacrev(few, tuple(range(len(tensors))))(*tensors), wanted)


@pytest.mark.parametrize("shared", ["sink", "alibi_slopes"])
def test_gradients_for_each_of_many(shared):
    """vmap of grad beside something that all have."""
    many, other, at = [drawn(3, 2, 5, 4, 8, seed=seed) for seed in range(3)], drawn(4).abs(), (0, 2)
    if shared == "sink": at = (0, 3)

    def loss(q, k, v, other): return attention(q, k, v, causal=True, **{shared: other}).square().sum()
    found = torch.vmap(torch.func.grad(loss, at), in_dims=(0, 0, 0, None))(*many, other)
    each = [torch.func.grad(loss, at)(*x, other) for x in zip(*many)]
    same(found, [torch.stack(x) for x in zip(*each)])


def ways():
    """Every way to attention that takes a tangent of q."""
    k, v = drawn(1, 5, 2, 8, seed=1), drawn(1, 5, 2, 8, seed=2)
    held = torch.zeros(1, 5, 2, 8), torch.full((1, 2, 5), -torch.inf)
    largest = torch.full((1, 2), -torch.inf)
    narrow, one = [x.to(torch.float8_e4m3fn) for x in (drawn(1, 5, 2, 16), drawn(1, 5, 2, 16))], torch.tensor(1.0)
    in_8_bits = dict(scale_k=one, scale_v=one)
    yield "plain", lambda q: attention(q, k, v)
    yield "key", lambda q: attention(k, q, v)
    yield "lse", lambda q: attention(q, k, v, return_lse=True)[1]
    yield "sink", lambda q: attention(k, k, v, sink=q[0, 0, :, 0].contiguous())
    yield "slopes", lambda q: attention(k, k, v, alibi_slopes=q[0, 0, :, 0].contiguous())
    yield "out", lambda q: attention(q, k, v, out=torch.empty(1, 5, 2, 8))
    yield "merged", lambda q: attention(q, k, v, accumulate=held)[0]
    yield "max_logit", lambda q: attention(q, k, v, return_max_logit=True)[0]
    yield "max_logit and out", lambda q: attention(q, k, v, return_max_logit=True, out=torch.empty(1, 5, 2, 8))[0]
    yield "max_logit, merged", lambda q: attention(q, k, v, return_max_logit=True, accumulate=(*held, largest))[0]
    yield "8 bits", lambda q: attention(torch.cat([q, q], -1).half(), *narrow, **in_8_bits)
    yield "8 bits and out", lambda q: attention(torch.cat([q, q], -1).half(), *narrow, **in_8_bits, out=torch.empty(
        1, 5, 2, 16, dtype=torch.float16))
    yield "quantise", lambda q: quantise(*[torch.cat([q, q], -1)] * 3).scale_q


Q, TANGENT = drawn(1, 5, 2, 8), drawn(1, 5, 2, 8, seed=3)


def dual(function):
    with forward_ad.dual_level(): function(forward_ad.make_dual(Q, TANGENT))


def jvp(function): torch.func.jvp(function, (Q,), (TANGENT,))


@pytest.mark.parametrize("how", [dual, jvp])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("function", [pytest.param(function, id=name) for name, function in ways()])
def test_tangents_are_refused(function, grad, how):
    with torch.set_grad_enabled(grad), pytest.raises(NotImplementedError, match="has a tangent of forward-mode"):
        how(function)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", ["plain", "out", "merged", "max_logit"])
def test_tangents_are_refused_in_compiled_code(name, grad, backend):
    """Where a tangent comes from outside, PyTorch 2.15 refuses it itself."""
    function = dict(ways())[name]
    with torch.set_grad_enabled(grad):
        torch._dynamo.reset()
        with pytest.raises(Exception, match="has a tangent of forward-mode"):
            torch.compile(lambda x, t: torch.func.jvp(function, (x,), (t,)), backend=backend)(Q, TANGENT)
        torch._dynamo.reset()
        compiled = torch.compile(function, backend=backend)
        compiled(Q)
        with pytest.raises(Exception, match="has a tangent of forward-mode|forward-mode AD tangent"): dual(compiled)


def test_tangents_of_gradients_are_refused():
    q, k, v = qkv(1, 5, 2, 8, grad=True)
    o = attention(q, k, v)
    with pytest.raises(NotImplementedError, match="grad_o has a tangent"):
        dual(lambda grad: torch.autograd.grad(o, q, grad))


def test_what_is_told_about_tangents_works():
    _, k, v = qkv(1, 5, 2, 8)
    wanted = attention(Q, k, v)
    with forward_ad.dual_level():
        q = forward_ad.make_dual(Q, TANGENT)
        assert torch.equal(attention(torch.autograd.forward_ad.unpack_dual(q).primal, k, v), wanted)
    o, gradient = torch.func.vjp(lambda q: attention(q, k, v), Q)
    assert torch.equal(o, wanted) and gradient(TANGENT)[0].shape == Q.shape


def test_gradcheck_with_the_tolerances_of_the_documents():
    """docs/9-python.md: in float32, since float64 is not computed."""
    random = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, 5, 2, 8, generator=random).requires_grad_() for _ in range(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, about float32
        assert torch.autograd.gradcheck(lambda *x: attention(*x, causal=True), (q, k, v), eps=1e-2, atol=1e-2,
                                        rtol=1e-2, nondet_tol=0)


def plain(x): return attention(*x, causal=True)


@pytest.mark.parametrize("call", [
    plain, lambda x: attention(*x, causal=True, return_max_logit=True)[0],
    lambda x: attention(*x, causal=True, return_lse=True)[0], lambda x: attention(*x, causal=True, gate=x[0])])
@pytest.mark.parametrize("axes", [(0, 0, 0), (0, None, None), (1, 1, 1)])
def test_gradients_of_what_vmap_hides(call, axes):
    """Inside of vmap no tensor says that it requires a gradient outside."""
    tensors = [drawn(*(2, 2)[axis is None:], 9, 2, 8, seed=at, grad=True) for at, axis in enumerate(axes)]
    cut = [[x.select(axis, at) if axis is not None else x for x, axis in zip(tensors, axes)] for at in range(2)]
    mapped = torch.func.vmap(lambda *x: call(x), axes)
    found, wanted = mapped(*tensors), torch.stack([call(x) for x in cut])
    weights = drawn(*found.shape, seed=9)
    same([found], [wanted])
    wanted_gradients = torch.autograd.grad(wanted, tensors, weights)
    same(torch.autograd.grad(found, tensors, weights), wanted_gradients)
    of_function = torch.func.grad(lambda *x: (mapped(*x) * weights).sum(), (0, 1, 2))
    same(of_function(*(x.detach() for x in tensors)), wanted_gradients)
    with torch.no_grad(): assert not mapped(*tensors).requires_grad


def test_what_vmap_hides_from_results_without_gradients():
    q, k, v = qkv(2, 2, 9, 2, 8, grad=True)
    narrow = [x.to(torch.float8_e4m3fn) for x in (k, v)]
    with pytest.raises(NotImplementedError, match="gradient"):
        torch.func.vmap(lambda q, k, v: attention(q, k, v, scale_k=1.0, scale_v=1.0))(q.half(), *narrow)


def test_an_example_of_vmap_is_shown_as_it_is():
    """Not with the shape that it is computed in."""
    with pytest.raises(ValueError, match=r"q must be \[batch, seq, heads, dim\] .* but has the shape \[9, 2, 8\]"):
        torch.func.vmap(lambda *x: plain(x))(*qkv(2, 9, 2, 8))
