# SPDX-License-Identifier: Apache-2.0
"""What has no gradient in froghopper.jax.attention: a derivative by alibi_slopes or of max_logit is refused, however
JAX gets to it; those by q go on as without it, before a refusal and after it."""
import numpy as np
import pytest
from jax_cases import CPU, attention, jax, jnp, on_the_cpu  # noqa: F401
from test_numpy import drawn

import froghopper

Q, K, V = (drawn(seed, "float32", 4, 12, heads, 16) for seed, heads in enumerate((8, 4, 4)))
HEADS = Q.shape[2]
SLOPES = np.linspace(0.1, 0.5, HEADS, dtype=np.float32)
SPEC = jax.sharding.PartitionSpec


def with_slopes(q, slopes): return attention(q, K, V, causal=True, alibi_slopes=slopes)


def with_largest(q): return attention(q, K, V, causal=True, return_max_logit=True)


def over_devices(function, shared):
    """Sequences lie on several devices; the last arguments on each."""
    if not hasattr(jax, "shard_map"): pytest.skip("this JAX has no jax.shard_map")
    mesh = jax.sharding.Mesh(CPU[:2], ("x",))
    def call(*given):
        whole = SPEC("x"), *(SPEC(),) * shared
        found = jax.shard_map(lambda q, k, v, *more: function(q, k, v, *more), mesh=mesh,
                              in_specs=(SPEC("x"), SPEC("x"), *whole), out_specs=SPEC("x"))
        return found(given[0], K, V, *given[1:])
    return call


WAYS = {"plain": lambda f: f, "jit": jax.jit, "remat": jax.checkpoint,
        "remat in jit": lambda f: jax.jit(jax.checkpoint(f)),
        "vmap": lambda f: lambda q, *more: jax.vmap(lambda q: f(q, *more))(q[None])}


def of_way(way, function, shared=0):
    if way != "shard_map": return WAYS[way](function)
    words = dict(causal=True)
    if shared: return over_devices(lambda q, k, v, slopes: attention(q, k, v, alibi_slopes=slopes, **words), 1)
    return over_devices(lambda q, k, v: attention(q, k, v, return_max_logit=True, **words), 0)


@pytest.mark.parametrize("way", [*WAYS, "shard_map"])
def test_slopes(way):
    function = of_way(way, with_slopes, 1)
    def loss(q, slopes): return (function(q, slopes) ** 2).sum()
    wanted = jax.grad(lambda q: (with_slopes(q, SLOPES) ** 2).sum())(Q)
    for argnums in (1, (0, 1)):
        np.testing.assert_allclose(jax.grad(loss)(Q, SLOPES), wanted, atol=1e-5)
        with pytest.raises(froghopper.Unsupported, match=r"alibi_slopes requires a gradient; it has none here. Use "
                                                         r"jax.lax.stop_gradient\(alibi_slopes\)\."):
            jax.grad(loss, argnums)(Q, SLOPES)
        with pytest.raises(froghopper.Unsupported, match="alibi_slopes requires a gradient"):
            jax.jit(jax.grad(loss, argnums))(Q, SLOPES)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(Q, SLOPES), wanted, atol=1e-5)
    of_both = jax.grad(lambda q, x: loss(q, jax.lax.stop_gradient(x)), (0, 1))(Q, SLOPES)
    np.testing.assert_allclose(of_both[0], wanted, atol=1e-5)
    assert not of_both[1].any()


def test_slopes_in_a_scan():
    def layers(q, slopes):
        def layer(carry, _): return (with_slopes(*carry), carry[1]), None
        return jax.lax.scan(layer, (q, slopes), None, length=2)[0][0].sum()
    wanted = jax.grad(lambda q: with_slopes(with_slopes(q, SLOPES), SLOPES).sum())(Q)
    np.testing.assert_allclose(jax.grad(layers)(Q, SLOPES), wanted, atol=1e-5)
    with pytest.raises(froghopper.Unsupported, match="alibi_slopes requires"): jax.grad(layers, 1)(Q, SLOPES)


@pytest.mark.parametrize("way", [*WAYS, "shard_map"])
def test_largest_score(way):
    function = of_way(way, with_largest)
    def rest(q):
        o, largest = function(q)
        return o.sum(), largest
    def both(q): return sum(x.sum() for x in function(q))
    def alone(q): return function(q)[1].sum()
    wanted = jax.grad(lambda q: attention(q, K, V, causal=True).sum())(Q)
    for transform in (lambda f: f, jax.jit):
        (_, largest), grad = transform(jax.value_and_grad(rest, has_aux=True))(Q)
        np.testing.assert_allclose(grad, wanted, atol=1e-5)
        np.testing.assert_allclose(np.reshape(largest, (-1, HEADS)), with_largest(Q)[1], atol=1e-5)
        for loss in (both, alone):
            with pytest.raises(froghopper.Unsupported, match=r"a gradient of max_logit is asked for; it has none here. "
                                                             r"Use jax.lax.stop_gradient\(max_logit\)\."):
                transform(jax.grad(loss))(Q)
        np.testing.assert_allclose(transform(jax.grad(lambda q: rest(q)[0]))(Q), wanted, atol=1e-5)
    with_constant = jax.grad(lambda q: rest(q)[0] + jax.lax.stop_gradient(function(q)[1]).sum())(Q)
    np.testing.assert_allclose(with_constant, wanted, atol=1e-5)


@pytest.mark.parametrize("kept", ["stacked", "largest so far"])
@pytest.mark.parametrize("way", ["plain", "jit", "remat"])
def test_largest_score_of_layers(way, kept):
    """Of a scan, whose body returns it, or carries it."""
    def layers(q):
        def layer(carry, _):
            o, largest = with_largest(carry[0])
            return (o, jnp.maximum(carry[1], largest)), largest
        start = q, jnp.full((q.shape[0], HEADS), -jnp.inf)
        (o, most), every = jax.lax.scan(WAYS["remat" if way == "remat" else "plain"](layer), start, None, length=2)
        return o.sum(), every if kept == "stacked" else most
    wanted = jax.grad(lambda q: attention(attention(q, K, V, causal=True), K, V, causal=True).sum())(Q)
    function = jax.value_and_grad(layers, has_aux=True)
    (_, largest), grad = (jax.jit(function) if way == "jit" else function)(Q)
    np.testing.assert_allclose(grad, wanted, atol=1e-5)
    assert np.isfinite(largest).all()
