# SPDX-License-Identifier: Apache-2.0
"""Attention of JAX over four devices, all on the CPU: under jit with meshes of either kind, and under shard_map. On a
Hopper GPU, where JAX has one, beside fp64 formulas (plain.py) and the CPU."""
import pathlib

import numpy as np
import pytest
from jax_cases import (CPU, all_close, attention, causal, close, given, jax, jnp, loss, on_the_cpu,  # noqa: F401
                       plain, qkv)
from plain import Options, backward, excess
from test_numpy import CASES, drawn, exact_of, options_of

import froghopper

NamedSharding, PartitionSpec = jax.sharding.NamedSharding, jax.sharding.PartitionSpec


def mesh_of(shape, explicit=False):
    if len(CPU) < 4: pytest.skip(f"JAX has {len(CPU)} CPU devices, 4 are needed; it was started before this file")
    names = ("x", "y")[:len(shape)]
    if explicit and not hasattr(jax, "shard_map"): pytest.skip("this JAX has no explicit axes yet, or not all of them")
    if not hasattr(jax.sharding, "AxisType"): return jax.make_mesh(shape, names, devices=CPU)
    kind = jax.sharding.AxisType.Explicit if explicit else jax.sharding.AxisType.Auto
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(shape), devices=CPU)


SPREAD = {"batch": ((4,), ("x",), (8, 4)), "heads": ((4,), (None, None, "x"), (8, 4)),
          "both": ((2, 2), ("x", None, "y"), (8, 4)), "group": ((2, 2), (None, None, ("x", "y")), (8, 2)),
          "multi_query": ((2, 2), ("x", None, "y"), (8, 1)), "uneven": ((4,), (None, None, "x"), (8, 2)),
          "rows": ((4,), (None, "x"), (8, 4))}


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("name", SPREAD)
def test_over_several_devices(name, kind):
    shape, spec, heads = SPREAD[name]
    mesh = mesh_of(shape, kind == "explicit")
    arrays = [*qkv(heads=heads), jnp.linspace(-1, 2, 8)]
    wanted = jax.jit(jax.value_and_grad(loss(plain), argnums=(0, 1, 2, 3)))(*arrays)
    def put(x, dims):
        """As much of spec as the extents of k and v allow."""
        def size(axes): return np.prod([mesh.shape[a] for a in ([axes] if isinstance(axes, str) else axes or [])])
        fitting = [axes if x.shape[i] % size(axes) == 0 else None for i, axes in enumerate(dims)]
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*fitting)))
    held = [put(x, spec) for x in arrays[:3]] + [put(arrays[3], ())]
    function = jax.jit(jax.value_and_grad(loss(causal), argnums=(0, 1, 2, 3)))
    found = function(*held)
    close(found[0], wanted[0])
    all_close([np.asarray(x) for x in found[1]], wanted[1])
    if name not in ("rows", "uneven"):
        text = jax.jit(causal).lower(*held).compile().as_text()
        assert "froghopper_attention" in text and "all-gather" not in text
        assert jax.jit(causal)(*held).sharding.is_equivalent_to(held[0].sharding, 4)


def test_packed_sequences_over_several_devices():
    case = CASES["packed_causal"]
    words = given(case)
    arrays = [jnp.asarray(x) for x in case.arrays("float32")[:3]]
    heads = NamedSharding(mesh_of((2, 2)), PartitionSpec(None, "x"))
    wanted, grads = jax.value_and_grad(lambda *x: (attention(*x, **words) ** 2).sum(), argnums=(0, 1, 2))(*arrays)
    held = [jax.device_put(x, heads) for x in arrays]
    found, found_grads = jax.jit(jax.value_and_grad(lambda *x: (attention(*x, **words) ** 2).sum(), argnums=(0, 1, 2)))(
        *held)
    close(found, wanted)
    all_close([np.asarray(x) for x in found_grads], grads)


@pytest.mark.parametrize("tracked", [False, True])
def test_under_shard_map(tracked):
    if not hasattr(jax, "shard_map"): pytest.skip("this JAX has no jax.shard_map")
    spec = PartitionSpec("x", None, "y")
    arrays = [*qkv(), jnp.linspace(-1, 2, 8)]
    spread = jax.shard_map(causal, mesh=mesh_of((2, 2)), in_specs=(spec, spec, spec, PartitionSpec("y")),
                           out_specs=spec, check_vma=tracked)
    close(jax.jit(spread)(*arrays), plain(*arrays))
    found, wanted = (jax.jit(jax.grad(loss(f), argnums=(0, 1, 2, 3)))(*arrays) for f in (spread, plain))
    all_close([np.asarray(x) for x in found], wanted)


def test_the_ring_of_the_documents():
    """docs/9-python.md as it stands, on two devices: o and gradients are those of causal attention."""
    if not hasattr(jax, "shard_map"): pytest.skip("this JAX has no jax.shard_map")
    document = pathlib.Path(__file__).parents[2] / "docs/9-python.md"
    if not document.exists(): pytest.skip("the documents are not here")
    code = next(part for part in document.read_text().split("```") if "cp.unzigzag(" in part).removeprefix("python")
    held = {}
    exec(code.replace("jax.devices()", "jax.devices('cpu')[:2]"), held)
    assert held["mesh"].size == 2
    arrays = [drawn(seed, "float32", 2, 20, heads, 16) for seed, heads in enumerate((4, 2, 2))]
    close(held["attend"](*arrays), plain(*arrays))
    found, wanted = (jax.jit(jax.grad(loss(f), argnums=(0, 1, 2)))(*arrays) for f in (held["attend"], plain))
    all_close([np.asarray(x) for x in found], wanted)


def gpu():
    """The first Hopper GPU of JAX, or the test is skipped."""
    try: devices = jax.devices("cuda")
    except RuntimeError as error: pytest.skip(f"JAX has no GPU: {error}")
    if not froghopper.explain("fwd bf16 b1 hq1 hkv1 sq64 skv64 d64", "hopper").splitlines()[1].endswith("hopper"):
        pytest.skip("the GPU is no Hopper GPU")
    return devices[0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu(name, dtype):
    device, case = gpu(), CASES[name]
    arrays = case.arrays(dtype)
    wide, exact = exact_of(case, arrays, dtype)
    words = {key: jax.device_put(value, device) if isinstance(value, np.ndarray) else value
             for key, value in given(case).items()}
    sink = [words.pop("sink")] if "sink" in words else []
    held = [jax.device_put(x, device) for x in arrays]
    def call(q, k, v, *sink): return attention(q, k, v, **words, **({"sink": sink[0]} if sink else {}), return_lse=True)
    (o, lse), pull = jax.vjp(call, *held[:3], *sink)
    def outer(x): return np.asarray(x)[None] if case.packed else np.asarray(x)
    assert o.devices() == {device}
    assert not excess(outer(o), *exact["o"]) and not excess(outer(lse), *exact["lse"])
    grad_lse = drawn(9, "float32", *lse.shape)
    wanted = backward(*wide[:3], exact["o"][0], exact["lse"][0], wide[3], outer(grad_lse).astype(np.float64),
                      list(case.sequences()), dtype, Options(**options_of(case)))
    for at, found in zip(("q", "k", "v", "sink"), pull((held[3], jax.device_put(grad_lse, device)))):
        assert not excess(np.asarray(found) if at == "sink" else outer(found), *wanted[at]), at


def test_a_gpu_under_jit_vmap_and_again():
    """Also with command buffers, which XLA makes of programs that run more than once."""
    device = gpu()
    arrays = [jax.device_put(x, device) for x in qkv(3, batch=2, dtype="bfloat16", heads=(4, 2))]
    def step(q, k, v):
        for _ in range(3): q = q + jax.vmap(causal)(q, k, v).repeat(2, -1)
        return q
    function, results = jax.jit(step), []
    for _ in range(4): results.append(np.asarray(function(*arrays)))
    assert all(np.array_equal(x, results[0]) for x in results)
    on_cpu = jax.jit(step)(*(jax.device_put(x, CPU[0]) for x in arrays))
    np.testing.assert_allclose(results[0].astype(np.float32), np.asarray(on_cpu, np.float32), rtol=0.05, atol=0.05)


def test_a_gpu_refuses_float32_while_it_is_traced():
    device = gpu()
    with pytest.raises(froghopper.Unsupported, match="float16 or bfloat16, but are float32"):
        causal(*(jax.device_put(x, device) for x in qkv()))
