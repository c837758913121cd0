# SPDX-License-Identifier: Apache-2.0
"""8-bit q, k and v of JAX on the CPU: bit for bit what NumPy's attention computes of the same arrays, under jit, vmap
and over several devices; gradients are refused."""
import functools

import numpy as np
import pytest
from jax_cases import attention, jax, jnp, on_the_cpu  # noqa: F401
from test_fp8 import DIM, HEADS, HEADS_KV, KINDS, SHAPES, TYPES, drawn, scales, stored
from test_jax_devices import NamedSharding, PartitionSpec, gpu, mesh_of

import froghopper

ONES = dict(scale_q=1, scale_k=1.0, scale_v=jnp.float32(1))
PACKED = dict(cu_seqlens_q=np.array([0, 150, 400], np.int32), cu_seqlens_kv=np.array([0, 250, 600], np.int32))


def in_jax(words): return {name: jnp.asarray(x) if isinstance(x, np.ndarray) else x for name, x in words.items()}


def same(found, wanted):
    """Of attention with and without further results."""
    found, wanted = (x if isinstance(x, tuple) else (x,) for x in (found, wanted))
    assert len(found) == len(wanted)
    for x, y in zip(found, wanted):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(np.asarray(x, np.float32), np.asarray(y, np.float32))


def compared(*arrays, **words):
    wanted = froghopper.attention(*arrays, **words)
    for call in (attention, jax.jit(attention, static_argnames=("causal", "return_lse", "return_max_logit", "out_dtype",
                                                               "max_seqlen_q", "max_seqlen_kv", "align"))):
        same(call(*map(jnp.asarray, arrays), **in_jax(words)), wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES)
def test_what_numpy_computes(dtype, kind):
    given, _ = scales(kind)
    compared(*stored(dtype), causal=True, **given)
    compared(*stored(dtype), return_lse=True, return_max_logit=True, out_dtype="float32", **given)


@pytest.mark.parametrize("kind", ["blocks", "rows", "heads columns"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_q(dtype, kind):
    given, _ = scales(kind)
    del given["scale_q"]
    compared(drawn(0, SHAPES["q"], dtype), *stored("float8_e4m3fn")[1:], **given)


@pytest.mark.parametrize("kind", ["one", "heads", "rows", "heads columns"])
def test_packed_sequences(kind):
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in stored("float8_e5m2"))
    given, _ = scales(kind)
    if kind == "rows": given |= {name: given[name].reshape(-1, HEADS_KV) for name in ("scale_k", "scale_v")}
    compared(q, k, v, causal=True, **given, **PACKED)
    compared(q, k, v, max_seqlen_q=250, max_seqlen_kv=350, **given, **PACKED)


def test_blocks_of_packed_sequences():
    """There are as many blocks as the bound on the longest sequence has."""
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in stored("float8_e4m3fn"))
    scale_k = np.array([1, 2, 4, 0.5, 0.25, 1], np.float32).reshape(2, 3, 1, 1).repeat(2, 2)
    compared(q, k, v, max_seqlen_q=250, max_seqlen_kv=350, scale_q=1.0, scale_k=scale_k, scale_v=2.0, **PACKED)


def test_means_and_what_goes_with_any_types():
    q, k, v = (drawn(i, shape, "float16") for i, shape in enumerate(SHAPES.values()))
    given = froghopper.quantise(q, k, v, smooth=True)._asdict()
    arrays = [given.pop(name) for name in "qkv"]
    compared(*arrays, causal=True, return_lse=True, **given)
    gate = drawn(5, SHAPES["q"], "bfloat16")
    words = dict(sink=np.arange(4, dtype=np.float32), alibi_slopes=np.full(4, 0.1, np.float32),
                 seqused_kv=np.array([300, 7], np.int32), gate=gate)
    compared(*stored("float8_e4m3fn"), **scales("heads")[0], **words)


def test_accumulate():
    arrays, given = stored("float8_e4m3fn"), scales("blocks")[0]
    held = froghopper.attention(*arrays, return_lse=True, out_dtype="float32", **given)
    found = attention(*map(jnp.asarray, arrays), accumulate=tuple(map(jnp.asarray, held)), **in_jax(given))
    same(found, froghopper.attention(*arrays, accumulate=held, **given))
    with pytest.raises(froghopper.InvalidProblem, match="accumulate is given and out_dtype too"):
        attention(*arrays, accumulate=held, out_dtype=jnp.bfloat16, **given)


def test_arrays_without_rows():
    q, k, v = (jnp.zeros((2, 0, heads, DIM), jnp.float8_e4m3fn) for heads in (HEADS, HEADS_KV, HEADS_KV))
    assert attention(q, k, v, **ONES).shape == q.shape
    q, scale_q = jnp.ones((2, 3, HEADS, DIM), q.dtype), jnp.ones((2, 1, HEADS, 1))
    o = attention(q, k, v, **ONES | dict(scale_q=scale_q, scale_k=jnp.ones((2, 0, HEADS_KV, 1))))
    assert o.dtype == jnp.bfloat16 and not np.asarray(o, np.float32).any()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", ["one", "blocks", "heads columns", "rows"])
def test_vmap(kind, shared):
    """Examples become sequences. shared: the scales are those of every example."""
    examples = [[jnp.asarray(x) for x in (drawn(i, shape, "float8_e4m3fn"), drawn(i + 7, shape, "float8_e4m3fn"))]
                for i, shape in enumerate(SHAPES.values())]
    of_each = [in_jax(scales(kind, seed)[0]) for seed in (9, 9 if shared else 4)]
    together = of_each[0] if shared else {name: jnp.stack([x[name] for x in of_each]) for name in of_each[0]}
    def call(q, k, v, given): return attention(q, k, v, causal=True, return_lse=True, **given)
    axes = (0, 0, 0, None if shared else 0)
    found = jax.jit(jax.vmap(call, axes))(*map(jnp.stack, examples), together)
    for i in range(2): same(tuple(x[i] for x in found), call(*(x[i] for x in examples), of_each[i]))


@pytest.mark.parametrize("kind", ["heads", "rows"])
def test_vmap_of_packed_sequences_and_of_sinks(kind):
    """Examples become heads."""
    packed = [x.reshape(-1, *x.shape[2:]) for x in stored("float8_e4m3fn")]
    given = in_jax(scales(kind)[0])
    sinks = jnp.arange(2.0 * HEADS).reshape(2, HEADS)
    q, k, v = (jnp.stack([jnp.asarray(x), jnp.asarray(x[::-1].copy())]) for x in stored("float8_e4m3fn"))
    def with_sink(q, k, v, sink): return attention(q, k, v, sink=sink, **given)
    found = jax.vmap(with_sink)(q, k, v, sinks)
    for i in range(2): same(found[i], with_sink(q[i], k[i], v[i], sinks[i]))
    if kind == "rows": given |= {name: given[name].reshape(-1, HEADS_KV) for name in ("scale_k", "scale_v")}
    q, k, v = (jnp.stack([jnp.asarray(x), jnp.asarray(x[::-1].copy())]) for x in packed)
    call = functools.partial(attention, **given, **PACKED)
    found = jax.vmap(call)(q, k, v)
    for i in range(2): same(found[i], call(q[i], k[i], v[i]))


def test_vmap_of_scales_and_means_alone():
    q, k, v = map(jnp.asarray, stored("float8_e4m3fn"))
    factors = jnp.array([0.5, 3])
    found = jax.vmap(lambda x: attention(q, k, v, scale_q=1, scale_k=x, scale_v=1))(factors)
    for x, factor in zip(found, factors): same(x, attention(q, k, v, scale_q=1, scale_k=factor, scale_v=1))
    means = jnp.asarray(drawn(3, (2, 2, 1, HEADS_KV, DIM)))
    def with_means(mean, sink): return attention(q, k, v, mean_k=mean, mean_v=-mean, sink=sink, **ONES)
    sinks = jnp.arange(2.0 * HEADS).reshape(2, HEADS)
    found = jax.vmap(with_means)(means, sinks)
    for x, mean, sink in zip(found, means, sinks): same(x, with_means(mean, sink))


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("kind", ["one", "blocks", "heads columns", "rows"])
def test_over_several_devices(kind, explicit):
    """Scales go with their sequences and heads."""
    mesh, given = mesh_of((2, 2), explicit), in_jax(scales(kind)[0])
    arrays = [*map(jnp.asarray, stored("float8_e4m3fn"))]
    wanted = attention(*arrays, causal=True, **given)
    held = [jax.device_put(x, NamedSharding(mesh, PartitionSpec("x", None, "y"))) for x in arrays]
    given = {name: jax.device_put(x, NamedSharding(mesh, PartitionSpec())) for name, x in given.items()}
    call = jax.jit(lambda q, k, v, given: attention(q, k, v, causal=True, **given))
    found = call(*held, given)
    same(np.asarray(found), np.asarray(wanted))
    text = call.lower(*held, given).compile().as_text()
    assert "froghopper_attention" in text and "all-gather" not in text
    assert found.sharding.is_equivalent_to(held[0].sharding, 4)


def test_under_shard_map():
    if not hasattr(jax, "shard_map"): pytest.skip("this JAX has no jax.shard_map")
    arrays, given = [*map(jnp.asarray, stored("float8_e4m3fn"))], in_jax(scales("heads")[0])
    rows, heads = PartitionSpec("x", None, "y"), PartitionSpec("x", "y")
    def call(q, k, v, given): return attention(q, k, v, **given)
    spread = jax.shard_map(call, mesh=mesh_of((2, 2)), in_specs=(rows, rows, rows, heads), out_specs=rows)
    same(np.asarray(jax.jit(spread)(*arrays, given)), np.asarray(call(*arrays, given)))


def test_types_and_shapes_without_numbers():
    shaped = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in stored("float8_e4m3fn")]
    o, lse = jax.eval_shape(lambda *x: attention(*x, return_lse=True, out_dtype=jnp.float16, **ONES), *shaped)
    assert o.shape == SHAPES["q"] and o.dtype == jnp.float16 and lse.dtype == jnp.float32


def test_gradients_are_refused():
    q, k, v = drawn(0, SHAPES["q"], "bfloat16"), *stored("float8_e4m3fn")[1:]
    def loss(q, scale): return attention(q, k, v, scale_k=scale, scale_v=1).astype(jnp.float32).sum()
    for of in (0, 1):
        with pytest.raises(NotImplementedError, match="a gradient is .* k is float8_e4m3fn; .*stop_gradient"):
            jax.grad(loss, of)(q, jnp.float32(1))
    assert not jax.grad(lambda x: loss(*jax.lax.stop_gradient((q, x))) * 0 + x)(jnp.float32(3)) - 1


NARROW, WIDE = stored("float8_e4m3fn"), stored("float32")
REFUSED = {
    "scale_q must be given where q is float8_e4m3fn, but is None": (NARROW, {}),
    "scale_k must .*, but has .2, 4": (NARROW, ONES | dict(scale_k=jnp.ones((2, 4)))),
    "scale_k must be float32, but is float16": (NARROW, ONES | dict(scale_k=jnp.ones((), jnp.float16))),
    "scale_k must be a number, but is 'one'": (NARROW, ONES | dict(scale_k="one")),
    "scale_v must be positive, .* but is 1e\\+39": (NARROW, ONES | dict(scale_v=1e39)),
    "scale_k and scale_v must be alike": (NARROW, ONES | dict(scale_k=jnp.ones((2, 300, 2)))),
    "out_dtype must .*, but is int8": (NARROW, ONES | dict(out_dtype="int8")),
    "mean_k and mean_v must be given together": (NARROW, ONES | dict(mean_k=jnp.ones((2, 1, 2, 64)))),
    "mean_v must have the shape": (NARROW, ONES | dict(mean_k=jnp.ones((2, 1, 2, 64)), mean_v=jnp.ones((2, 2, 64)))),
    "gate must be bfloat16, as o is, but is float32": (NARROW, ONES | dict(gate=jnp.ones(SHAPES["q"]))),
    "scale_q must be None where k is float32": (WIDE, dict(scale_q=1)),
    "out_dtype must be None where k is float32": (WIDE, dict(out_dtype=jnp.float32)),
    "q must .*, but is float32": ([WIDE[0], *NARROW[1:]], ONES),
    "v must have the type of k, float8_e4m3fn, but is float8_e5m2": ([*NARROW[:2], stored("float8_e5m2")[2]], ONES),
    "scale_q must be None where q is float16": ([NARROW[0].astype(np.float16), *NARROW[1:]], ONES),
    "k must be an array of JAX, but is a list": ([NARROW[0], [1], NARROW[2]], ONES),
    "head dims of 8-bit types must .*, but that of q and k is 24": ([x[..., :24] for x in NARROW], ONES),
    "it is scale_k here": (NARROW, dict(scale_q=1, k_descale=1, scale_v=1)),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_refused(sentence):
    arrays, words = REFUSED[sentence]
    with pytest.raises(froghopper.Error, match=sentence) as refused: attention(*arrays, **words)
    assert isinstance(refused.value, (TypeError, ValueError, NotImplementedError))


def test_what_only_the_numbers_show():
    with pytest.raises(Exception, match="scale_k .*sequence 0, head 0 is 0"):
        jax.block_until_ready(attention(*map(jnp.asarray, NARROW), **ONES | dict(scale_k=jnp.zeros(()))))


@pytest.mark.parametrize("scale", [0, -1.0, float("nan"), float("inf"), 1e-60])
def test_a_number_that_is_no_scale_is_refused_while_it_is_traced(scale):
    given = ONES | dict(scale_k=scale)
    for call in (attention, jax.jit(functools.partial(attention, **given))):
        with pytest.raises(froghopper.InvalidProblem, match="scale_k must be positive, from 1.2e-38 .* Use 1 for"):
            call(*map(jnp.asarray, NARROW), **(given if call is attention else {}))


@pytest.mark.parametrize("kind", ["one", "heads", "blocks", "heads columns", "rows"])
def test_on_a_gpu(kind):
    """Weights are 8-bit there with 8-bit q."""
    device, given = gpu(), scales(kind)[0]
    arrays = stored("float8_e4m3fn")
    if kind == "rows": arrays[0] = drawn(0, SHAPES["q"], "bfloat16") * given.pop("scale_q").astype("bfloat16")
    def call(*x): return np.asarray(attention(*x, causal=True, out_dtype="float32", **in_jax(given)))
    found = call(*(jax.device_put(x, device) for x in arrays))
    np.testing.assert_allclose(found, call(*map(jnp.asarray, arrays)), rtol=0.05, atol=0.1)


def test_types_that_are_none_of_ours_are_told_of_first():
    """Not that they have no scales; and what is no type of q is no way out."""
    q, k, v = map(jnp.asarray, NARROW)
    for dtype in ("int8", "uint8", "float8_e4m3fnuz"):
        with pytest.raises(TypeError, match=f"q, k and v must be .*float32.*, but are {dtype}"):
            attention(*(x.astype(dtype) for x in (q, k, v)), **ONES)
        with pytest.raises(TypeError, match="Give all three in 8 bits, as quantise.q, k, v. makes them.$"):
            attention(q, k.astype(dtype), v.astype(dtype), **ONES)
