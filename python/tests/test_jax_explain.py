# SPDX-License-Identifier: Apache-2.0
"""froghopper.jax.explain: what it tells of a call, and that it raises nothing."""
import re

import pytest
from jax_cases import attention, jax, jnp

import froghopper.jax
from froghopper.jax import explain

Q, KV = (jnp.zeros(shape, jnp.bfloat16) for shape in ((2, 6, 4, 16), (2, 9, 2, 16)))  # a GPU computes them too


def line(**words): return re.search(r"problem +(.*)", explain(**dict(q=Q, k=KV, v=KV) | words))[1]


@pytest.mark.parametrize("words, said", [
    (dict(causal=True), "causal"), (dict(window=(3, 0)), "window3,0"), (dict(window_size=(3, 0)), "window3,0"),
    (dict(sink=jnp.zeros(4)), "sink"), (dict(seqused_q=[6, 2], seqused_kv=[9, 4]), None),
    (dict(accumulate=(jnp.zeros((2, 6, 4, 16)), jnp.zeros((2, 4, 6)))), "acc"),
    (dict(return_max_logit=True), "maxlogit"), (dict(gate=Q), "gate"),
])
def test_the_line_is_that_of_the_call(words, said):
    if said is None:
        words = {name: jnp.asarray(x) for name, x in words.items()}
        said = "seqused"
    assert said in line(**words).split()
    lowered = jax.jit(lambda q, k, v: attention(q, k, v, **words)).lower(Q, KV, KV).as_text()
    assert re.search(r'problem = "([^"]*)"', lowered)[1] == line(**words)


def test_both_passes_of_arrays_that_are_only_described():
    q, kv = (jax.ShapeDtypeStruct((2, 2**17, heads, 128), jnp.bfloat16) for heads in (16, 4))
    told = explain(q, kv, kv, causal=True, target="h200", gradients=True)
    assert re.findall(r"problem +(\w+)", told) == ["fwd", "bwd"] and "  kernel     delta" in told


def test_axes_that_look_exchanged_are_named():
    with pytest.warns(UserWarning, match="256 heads"):
        told = explain(jnp.zeros((2, 16, 256, 64)), *[jnp.zeros((2, 4, 256, 64))] * 2, causal=True)
    assert "\naxes " in told


@pytest.mark.parametrize("words, says", [
    (dict(v=None), "v must be an array of JAX, but is None"), (dict(causal=2), "causal must be True or False"),
    (dict(window_sized=1), "has no argument window_sized"),
    (dict(k=KV[:, :, :, :8]), "k must have the dim of q, 16, but has 8"),
    (dict(gradients=True, scale_k=1.0, scale_v=1.0, k=KV.astype(jnp.float8_e4m3fn), v=KV.astype(jnp.float8_e4m3fn),
          q=Q.astype(jnp.bfloat16)), "a gradient is asked for and k is float8_e4m3fn"),
])
def test_what_is_wrong_is_told(words, says):
    told = explain(**dict(q=Q, k=KV, v=KV) | words)
    assert told.startswith("not computed ") and says in told, told


def test_a_gpu_that_nobody_knows(): assert "target is \"h300\"" in explain(Q, KV, KV, target="h300")


def test_it_is_public():
    assert "explain" in dir(froghopper.jax) and "not computed explain() takes" not in explain(Q, KV, KV)
    assert explain(Q, KV, KV, 3).startswith("not computed ")
