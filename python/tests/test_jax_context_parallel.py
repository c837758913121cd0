# SPDX-License-Identifier: Apache-2.0
"""froghopper.jax.context_parallel on two and four devices, all on the CPU, beside attention of the whole sequence as
jax.numpy has it and beside fp64."""
import functools

import numpy as np
import pytest
from jax_cases import CPU, all_close, close, jax, jnp, loss, on_the_cpu, plain, qkv  # noqa: F401
from plain import Options, Sequence, excess
from plain import forward as exact_forward

import froghopper

if not hasattr(jax, "shard_map"): pytest.skip("this JAX has no jax.shard_map", allow_module_level=True)
from froghopper.jax import attention
from froghopper.jax import context_parallel as cp

ROWS = jax.sharding.PartitionSpec(None, "ring")


def spread(devices, layout, tracked=True, **options):
    """Attention of whole arrays over so many devices."""
    if len(CPU) < devices: pytest.skip(f"JAX has {len(CPU)} CPU devices; it was started before this file")
    mesh = jax.sharding.Mesh(CPU[:devices], ("ring",))
    results = (ROWS, jax.sharding.PartitionSpec(None, None, "ring")) if options.get("return_lse") else ROWS
    inner = jax.shard_map(functools.partial(cp.attention, axis_name="ring", layout=layout, **options), mesh=mesh,
                          in_specs=(ROWS, ROWS, ROWS), out_specs=results, check_vma=tracked)
    if layout == "contiguous": return jax.jit(inner)

    def ordered(q, k, v):
        found = inner(*(cp.zigzag(x, devices) for x in (q, k, v)))
        if not options.get("return_lse"): return cp.unzigzag(found, devices)
        return cp.unzigzag(found[0], devices), cp.unzigzag(found[1], devices, 2)
    return jax.jit(ordered)


def drawn(rows, heads=(4, 2), dim=16, dtype="float32"):
    random = np.random.default_rng(rows)
    return [jnp.asarray(random.standard_normal((2, rows, n, dim)), dtype) for n in (heads[0], heads[1], heads[1])]


@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_gradients_of_causal_attention(devices, layout):
    arrays, function = drawn(24), spread(devices, layout, tracked=devices != 2, causal=True)
    close(function(*arrays), plain(*arrays))
    found, wanted = (jax.jit(jax.grad(loss(f), argnums=(0, 1, 2)))(*arrays) for f in (function, plain))
    all_close([np.asarray(x) for x in found], wanted)


def test_without_a_mask_and_through_lse():
    arrays = drawn(16, heads=(4, 4))
    function = spread(4, "zigzag", return_lse=True, scale=0.3, softcap=2.0)

    def whole(q, k, v):
        s = 2.0 * jnp.tanh(0.3 * jnp.einsum("bshd,bthd->bhst", q, k) / 2.0)
        return jnp.einsum("bhst,bthd->bshd", jax.nn.softmax(s, axis=-1), v), jax.nn.logsumexp(s, axis=-1)

    def both(f): return lambda *x: sum((jnp.sin(part) ** 2).sum() for part in f(*x))
    for x, y in zip(function(*arrays), whole(*arrays)): close(x, y)
    found, wanted = (jax.jit(jax.grad(both(f), argnums=(0, 1, 2)))(*arrays) for f in (function, whole))
    all_close([np.asarray(x) for x in found], wanted)


def test_bf16_is_rounded_once():
    """Partial results are merged in fp32: the bounds are those of a single call."""
    arrays = drawn(32, dtype="bfloat16")
    wide = [np.asarray(x, np.float64) for x in arrays]
    exact = exact_forward(*wide, [Sequence(at, slice(None), slice(None)) for at in range(2)], "bfloat16",
                          Options(causal=True))
    o = spread(4, "zigzag", causal=True)(*arrays)
    assert o.dtype == jnp.bfloat16 and not excess(np.asarray(o, np.float64), *exact["o"])


@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
def test_bf16_gradients_are_rounded_once(layout):
    """Each device adds to float32: they are as close to exact ones as those of a single call."""
    arrays = drawn(256, dtype="bfloat16")
    exact = jax.grad(loss(plain), argnums=(0, 1, 2))(*(x.astype(jnp.float32) for x in arrays))

    def errors(function):
        found = jax.jit(jax.grad(lambda *x: loss(lambda *y: function(*y).astype(jnp.float32))(*x), argnums=(0, 1, 2)))
        return [float(jnp.linalg.norm(x.astype(jnp.float32) - y) / jnp.linalg.norm(y))
                for x, y in zip(found(*arrays), exact)]
    alone = errors(functools.partial(attention, causal=True))
    for over, single in zip(errors(spread(4, layout, causal=True)), alone): assert over < 1.1 * single


def test_messages():
    q, k, v = drawn(12)
    with pytest.raises(froghopper.InvalidProblem, match="layout must be"): spread(2, "stripe", causal=True)(q, k, v)
    with pytest.raises(froghopper.InvalidProblem, match="multiple of 8 rows"): cp.zigzag(q, 4)
    with pytest.raises(froghopper.InvalidProblem, match="k must have the rows of q, 6, but has 3"):
        spread(2, "contiguous")(q, k[:, :6], v[:, :6])
