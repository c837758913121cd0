# SPDX-License-Identifier: Apache-2.0
"""froghopper.jax.quantise on the CPU: bit for bit what NumPy's writes, under jit, vmap and over several devices; and
what attention of JAX makes of it."""
import functools

import numpy as np
import pytest
from jax_cases import attention, jax, jnp, on_the_cpu  # noqa: F401
from test_jax_devices import NamedSharding, PartitionSpec, gpu, mesh_of
from test_numpy_quantise import draw

import froghopper
from froghopper.jax import Smoothed, quantise

SHAPES = ((4, 200, 8, 64), (4, 300, 4, 64), (4, 300, 4, 48))
ENDS = dict(cu_seqlens_q=np.array([0, 130, 400], np.int32), cu_seqlens_kv=np.array([0, 90, 600], np.int32))
KINDS = {"blocks": {}, "whole sequences": dict(scale_rows=0, dtype="float8_e5m2"), "smooth": dict(smooth=True),
         "as it is": dict(rotate=False), "another seed": dict(rotate_seed=7, max_sms=1)}


def drawn(dtype="float32"): return [jnp.asarray(draw(*shape), dtype) for shape in SHAPES]


def packed(): return [x.reshape(-1, *x.shape[2:])[:rows] for x, rows in zip(drawn(), (400, 600, 600))]


def bits(x): return np.asarray(x).view(np.uint8) if x.dtype.itemsize == 1 else np.asarray(x)


def same(found, wanted):
    assert found._fields == wanted._fields
    for name, x, y in zip(found._fields, found, wanted):
        assert x.dtype == y.dtype and x.shape == y.shape, name
        np.testing.assert_array_equal(bits(x), bits(y), name)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_numpy_writes(kind, dtype):
    arrays = drawn(dtype)
    wanted = froghopper.quantise(*map(np.asarray, arrays), **KINDS[kind])
    for call in (quantise, jax.jit(quantise, static_argnames=KINDS[kind].keys())):
        same(call(*arrays, **KINDS[kind]), wanted)


LONGEST = dict(max_seqlen_q=270, max_seqlen_kv=510)


@pytest.mark.parametrize("words", [LONGEST, dict(smooth=True, max_seqlen_q=300, max_seqlen_kv=520), dict(scale_rows=0)])
def test_packed_sequences(words):
    same(quantise(*packed(), **ENDS, **words), froghopper.quantise(*map(np.asarray, packed()), **ENDS, **words))


def test_packed_sequences_without_bounds():
    """More blocks, which hold nothing and do not matter."""
    def o(words): return attention(**quantise(*packed(), **ENDS, **words)._asdict(), **ENDS, **words, causal=True)
    assert quantise(*packed(), **ENDS).scale_k.shape == (2, 5, 4, 1)
    np.testing.assert_array_equal(o({}), o(LONGEST))


def test_types_of_jax_name_the_copies():
    for dtype in (jnp.float8_e5m2, np.dtype(jnp.float8_e5m2)): assert quantise(*drawn(), dtype=dtype).k.dtype == dtype


@pytest.mark.parametrize("smooth", [False, True])
def test_examples_of_vmap_are_sequences(smooth):
    arrays = [x.reshape(2, 2, *x.shape[1:]) for x in drawn()]
    wanted = quantise(*drawn(), smooth=smooth)
    found = jax.vmap(functools.partial(quantise, smooth=smooth))(*arrays)
    same(type(found)(*(x.reshape(-1, *x.shape[2:]) for x in found)), wanted)


def test_packed_examples_of_vmap():
    """They share their lengths, or have their own."""
    stacked = [jnp.stack([x, x[::-1]]) for x in packed()]
    ends = {name: jnp.stack([x, jnp.asarray(x).at[1].set(70)]) for name, x in ENDS.items()}
    shared = jax.vmap(lambda q, k, v: quantise(q, k, v, **ENDS))(*stacked)
    own = jax.vmap(lambda q, k, v, ends: quantise(q, k, v, **ends))(*stacked, ends)
    for i in range(2):
        arrays = [x[i] for x in stacked]
        same(type(shared)(*(x[i] for x in shared)), quantise(*arrays, **ENDS))
        same(type(own)(*(x[i] for x in own)), quantise(*arrays, **{name: x[i] for name, x in ends.items()}))


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("shape, spec", [((4,), ("x",)), ((4,), (None, None, "x")), ((2, 2), ("x", None, "y"))])
def test_over_several_devices(shape, spec, explicit):
    sharding = NamedSharding(mesh_of(shape, explicit), PartitionSpec(*spec))
    held = [jax.device_put(x, sharding) for x in drawn()]
    call = jax.jit(functools.partial(quantise, smooth=True))
    found = call(*held)
    same(Smoothed(*map(np.asarray, found)), froghopper.quantise(*map(np.asarray, drawn()), smooth=True))
    assert found.k.sharding.is_equivalent_to(held[1].sharding, 4)
    assert "all-gather" not in call.lower(*held).compile().as_text()


@pytest.mark.parametrize("words", [{}, dict(smooth=True)])
def test_one_program_quantises_and_attends(words):
    arrays = drawn()
    exact = attention(*arrays, causal=True)
    found = jax.jit(lambda *x: attention(**quantise(*x, **words)._asdict(), causal=True, out_dtype="float32"))(*arrays)
    assert jnp.square(found - exact).mean() < 0.06**2 * jnp.square(exact).mean()
    wanted = froghopper.attention(**froghopper.quantise(*map(np.asarray, arrays), **words)._asdict(), causal=True,
                                  out_dtype="float32")
    np.testing.assert_array_equal(np.asarray(found), wanted)


def test_it_has_no_derivatives():
    def loss(q, k, v): return quantise(q, k, v).scale_q.sum()
    with pytest.raises(froghopper.Unsupported, match="Give jax.lax.stop_gradient of them"): jax.grad(loss)(*drawn())
    constants = jax.grad(lambda q, k, v: loss(*map(jax.lax.stop_gradient, (q, k, v))) + q.sum())(*drawn())
    np.testing.assert_array_equal(constants, 1)


@pytest.mark.parametrize("change, message", [
    (dict(dtype="float16"), "dtype must be float8_e4m3fn or float8_e5m2, but is float16"),
    (dict(dtype=jnp.float32), "dtype must be float8_e4m3fn or float8_e5m2, but is float32"),
    (dict(dtype=3.5), "dtype must be float8_e4m3fn or float8_e5m2, but is 3.5"),
    (dict(rotate_seed=2**32), "rotate_seed must .*, but is 4294967296"),
    (dict(rotate="yes"), "rotate must be"), (dict(smooth=2), "smooth must be"),
    (dict(scale_rows=64), "scale_rows must be 128, or 0 for all rows, but is 64"),
    (dict(cu_seqlens_q=np.array([0, 10], np.int32)), "cu_seqlens_q and cu_seqlens_kv must be given together"),
    (dict(seqused_kv=np.array([1, 2], np.int32)), "seqused_kv must"),
    (dict(v=draw(1, 10, 2, 64).astype(np.float16)), "v must be float32, as q is, but is float16"),
    (dict(k=draw(1, 10, 3, 64)), "heads"), (dict(q=None), "q must be given, as q, k and v are quantised"),
    (dict(q=draw(10, 2, 64)), "q must"), (dict(max_seqlen_q=3), "max_seqlen_q must be None without cu_seqlens"),
])
def test_what_is_wrong_is_named(change, message):
    x = draw(1, 10, 2, 64)
    for call in (quantise, lambda **words: jax.jit(lambda: quantise(**words))()):
        with pytest.raises((TypeError, ValueError, NotImplementedError), match=message) as refused:
            call(**(dict(q=x, k=x, v=x) | change))
        assert isinstance(refused.value, froghopper.Error)


def test_sequences_without_rows():
    x = draw(9, 2, 16)
    for words in ({}, dict(scale_rows=0), dict(smooth=True)):
        given = dict(cu_seqlens_q=np.zeros(3, np.int32), cu_seqlens_kv=np.array([0, 3, 7], np.int32), max_seqlen_q=0,
                     max_seqlen_kv=4, **words)
        found, wanted = quantise(x, x, x, **given), froghopper.quantise(x, x, x, **given)
        assert [y.shape for y in found] == [y.shape for y in wanted]
        np.testing.assert_array_equal(bits(found.k)[:7], bits(wanted.k)[:7])
        np.testing.assert_array_equal(found.scale_v, wanted.scale_v)


@pytest.mark.parametrize("words", [{}, dict(smooth=True, rotate=False)])
def test_on_a_gpu(words):
    """Sums of a rotation are rounded in another order there."""
    device = gpu()
    arrays = [x.astype("bfloat16") for x in drawn()]
    found = jax.jit(functools.partial(quantise, **words))(*(jax.device_put(x, device) for x in arrays))
    wanted = quantise(*arrays, **words)
    for x, y in zip(found[3:], wanted[3:]): np.testing.assert_allclose(np.asarray(x), y, rtol=1e-2, atol=1e-5)
    for x, y, scales in zip(found[:3], wanted[:3], wanted[3:6]):
        rows = np.repeat(np.asarray(scales), 128, 1)[:, :x.shape[1]]
        far = np.abs(np.asarray(x, np.float32) - np.asarray(y, np.float32)) * rows
        assert far.mean() < 0.01 * np.abs(np.asarray(y, np.float32) * rows).mean()
