# SPDX-License-Identifier: Apache-2.0
"""What froghopper.jax.append_kv says of wrong arguments, eager and while a program is traced; of values that only a run
shows; and words of other libraries."""
import numpy as np
import pytest
from jax_cases import jax, jnp, on_the_cpu  # noqa: F401
from test_jax_append import BATCH, BEFORE, HEADS, caches, drawn, new_rows, same_bits

import froghopper
from froghopper.jax import append_kv


def test_no_derivatives():
    new, (held, _, _) = new_rows(BATCH, 1), caches(False)
    for call in (append_kv, jax.jit(append_kv)):
        with pytest.raises(NotImplementedError, match="a derivative of append_kv is asked for.*stop_gradient"):
            jax.grad(lambda k: call(k, new[1], *held)[0].sum())(new[0])

    def constant(k): return append_kv(jax.lax.stop_gradient(k), new[1], *held)[0][:, :1]
    same_bits(jax.grad(lambda k: (constant(k) * k).sum())(new[0]), new[0])


WRONG = [
    (dict(k=None, v=None, k_cache=None, v_cache=None), "q, k or v must be given, but all are None"),
    (dict(k=[1.0]), "k must be an array of JAX, but is a list. Use jax.numpy.asarray"),
    (dict(k=jnp.zeros((BATCH, 1, HEADS, 64), int)), "k must be one of float16, .*, but is int32. Use k.astype"),
    (dict(v=drawn(BATCH, 1, HEADS, 32, dtype="float16")),
     "v must be of the type of the others, float32, but is float16"),
    (dict(v=drawn(2, 1, HEADS, 32)), r"v must be .* with the rows of the others, \[5, 1\]"),
    (dict(k_cache=None), "k and k_cache must be given together, but one is None"),
    (dict(v_cache=drawn(2, 48, HEADS, 32)), r"v_cache must be .*, but has the shape \[2, 48, 2, 32\]"),
    (dict(k_cache=jnp.zeros((BATCH, 48, HEADS, 64), "uint8"), v_cache=jnp.zeros((BATCH, 48, HEADS, 32), "uint8")),
     r"but are uint8. If it holds the bytes of an 8-bit type, use k_cache.view\(\"float8_e4m3fn\"\)"),
    (dict(block_table=jnp.zeros((2, 1), int)), r"block_table must be .* with batch 5, but has the shape \[2, 1\]"),
    (dict(block_table=jnp.zeros((BATCH, 1))), "block_table must be whole numbers"),
    (dict(seqused_kv=jnp.zeros(2, int)), "seqused_kv must have 5 numbers, one for each sequence, but has 2"),
    (dict(seqused_kv=7), r"seqused_kv must be an array of JAX, but is .*Use jax.numpy.full\(\(batch,\), seqused_kv"),
    (dict(slot_mapping=jnp.zeros(5)), r"slot_mapping must be whole numbers, but is float32. Use slot_mapping.astype"),
    (dict(slot_mapping=jnp.zeros(4, int), seqused_kv=None),
     "slot_mapping must have 5 numbers, one for each row, but has 4"),
    (dict(slot_mapping=jnp.zeros(5, int)), "seqused and seqused_kv must be None with slot_mapping"),
    (dict(max_seqlen=4), "max_seqlen must be None without cu_seqlens"),
    (dict(positions=jnp.zeros(5, int)), "rotary_cos and rotary_sin must be given together, and with positions"),
    (dict(rotary_cos=drawn(9, 99), rotary_sin=drawn(9, 99)), "rotary_cos must have at most 32 columns"),
    (dict(norm_q=drawn(64), norm_epsilon=0.0), "norm_q must be None without q"),
    (dict(norm_k=drawn(64)), "norm_k must be None without norm_epsilon"),
    (dict(scale_k=1.0), "scale_k must be None with k_cache that is not float8"),
    (dict(q_out=drawn(64)), "append_kv.* of froghopper.jax has no argument q_out. It is returned"),
    (dict(dtype="float8_e4m3fn"), "append_kv.* of froghopper.jax has no argument dtype. The type of the cache says it"),
    (dict(cache_seqlens=jnp.asarray(BEFORE), seqused_kv=None), "no argument cache_seqlens. Did you mean seqused_kv"),
]


@pytest.mark.parametrize("changed, says", WRONG)
@pytest.mark.parametrize("traced", [False, True])
def test_wrong_arguments(changed, says, traced):
    """Said at once, also while a program is traced."""
    new, (held, _, _) = new_rows(BATCH, 1), caches(False)
    words = dict(zip(("k", "v", "k_cache", "v_cache"), (*new, *held)), seqused_kv=jnp.asarray(BEFORE)) | changed
    words = {name: x for name, x in words.items() if x is not None or name[-1] in "kv" or name.endswith("cache")}
    arrays = {name: x for name, x in words.items() if isinstance(x, jax.Array)} if traced else {}
    rest = {name: x for name, x in words.items() if name not in arrays}
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=says) as raised:
        jax.jit(lambda **of: append_kv(**of, **rest)).lower(**arrays) if traced else append_kv(**rest)
    assert isinstance(raised.value, froghopper.Error), raised.value


WRONG_VALUES = [
    (r"seqused_kv\[2\] .* 99", dict(seqused_kv=jnp.array([0, 0, 99, 0, 0]))),
    (r"block_table\[1(, |\]\[)0\] must name a page", dict(seqused_kv=None)),
    (r"slot_mapping\[3\] .* 999", dict(seqused_kv=None, block_table=None, slot_mapping=jnp.arange(20).at[3].set(999))),
    (r"the position of row 2 .* is 9|row 2 of .* position 9", dict(rotary_cos=drawn(9, 8), rotary_sin=drawn(9, 8))),
]


@pytest.mark.parametrize("call", [append_kv, jax.jit(append_kv)])
@pytest.mark.parametrize("says, changed", WRONG_VALUES)
def test_what_only_the_values_show(says, changed, call):
    new, (held, _, words) = new_rows(BATCH, 4), caches(True)
    words = dict(block_table=words["block_table"].at[1, 0].set(-4) if "must name" in says else words["block_table"],
                 seqused_kv=jnp.asarray(BEFORE + 7)) | changed
    words = {name: x for name, x in words.items() if x is not None}
    with pytest.raises(jax.errors.JaxRuntimeError, match=says) as raised:
        jax.block_until_ready(call(*new, *held, **words))
    for word in ("cache_k", "seq_kv", "fh_", "rotary_rows"): assert word not in str(raised.value)


def test_a_bound_that_is_too_low_is_named_as_the_call_names_it():
    cache = jnp.zeros((2, 9, HEADS, 64))
    with pytest.raises(jax.errors.JaxRuntimeError, match="max_seqlen must be at least 3.* Use max_seqlen=3"):
        jax.block_until_ready(append_kv(drawn(4, HEADS, 64), None, cache, None, cu_seqlens=jnp.array([0, 1, 4]),
                                        max_seqlen=2))


def test_words_of_others():
    new, (held, _, words) = new_rows(BATCH, 1), caches(True)
    wanted = append_kv(*new, *held, seqused_kv=jnp.asarray(BEFORE), **words)
    found = append_kv(*new, k_pool=held[0], v_pool=held[1], block_tables=words["block_table"],
                      seqused_k=jnp.asarray(BEFORE))
    for x, y in zip(found, wanted): same_bits(x, y)
