# SPDX-License-Identifier: Apache-2.0
"""What the tests of froghopper.jax share: JAX with four devices on the CPU, attention as jax.numpy has it, inputs."""
import os
import pathlib

import numpy as np
import pytest
from test_numpy import drawn

from froghopper import _library

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + (
    " --xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0")  # what is around it compiles faster
jax = pytest.importorskip("jax", reason="JAX is not installed")
if not pathlib.Path(_library.library().path).resolve().with_name("libfroghopper_xla.so").exists():
    pytest.skip("libfroghopper_xla.so is not beside the library: it was built without XLA's header",
                allow_module_level=True)

import jax.numpy as jnp

from froghopper import _xla_kind
from froghopper.jax import attention

CPU = jax.devices("cpu")


@pytest.fixture(autouse=True)
def on_the_cpu():
    """Where arrays are made and results wanted are computed, also if there is a GPU."""
    with jax.default_device(CPU[0]): yield


def given(case):
    """Keywords of attention: those of NumPy's, lengths as int32, bounds on them."""
    words = {name: np.asarray(value, np.int32) if name in _xla_kind.LENGTHS else value
             for name, value in case.given().items()}
    if case.packed: words |= dict(max_seqlen_q=max(case.rows), max_seqlen_kv=max(case.keys))
    return words


def plain(q, k, v, sink=None):
    """Causal attention of equal lengths as jax.numpy has it."""
    k, v = (jnp.repeat(x, q.shape[2] // k.shape[2], axis=2) for x in (k, v))
    s = jnp.einsum("bshd,bthd->bhst", q, k) / q.shape[-1] ** 0.5
    s = jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool), s.shape[-1] - s.shape[-2]), s, -jnp.inf)
    if sink is not None:
        s = jnp.concatenate([s, jnp.broadcast_to(sink[None, :, None, None], (*s.shape[:3], 1))], axis=-1)
    weights = jax.nn.softmax(s, axis=-1)
    return jnp.einsum("bhst,bthd->bshd", weights if sink is None else weights[..., :-1], v)


def causal(q, k, v, sink=None): return attention(q, k, v, sink=sink, causal=True)


def loss(function): return lambda *arrays: (jnp.sin(function(*arrays)) ** 2).sum()


def close(found, wanted): np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


def qkv(*outer, batch=4, heads=(8, 4), dtype="float32", seed=0):
    """q, k and v; more queries than rows of a tile are not needed here."""
    shapes = [(*outer, batch, 12, heads[0], 16), (*outer, batch, 20, heads[1], 16), (*outer, batch, 20, heads[1], 8)]
    return [jnp.asarray(drawn(seed + i, dtype, *shape)) for i, shape in enumerate(shapes)]


def all_close(found, wanted):
    assert len(found) == len(wanted)
    for x, y in zip(found, wanted): close(x, y)
