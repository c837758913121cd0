# SPDX-License-Identifier: Apache-2.0
"""Attention of JAX on the CPU beside fp64 formulas (plain.py) and jax.numpy: under jit, grad, vmap, over four devices;
what is refused; what compiles again. On a GPU, where JAX has one, beside the CPU."""
import os
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest
from plain import Options, backward, excess
from test_numpy import CASES, SINK, Case, drawn, ends, exact_of, options_of

import froghopper
from froghopper import _library

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + (
    " --xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0")  # what is around it compiles faster
jax = pytest.importorskip("jax", reason="JAX is not installed")
if not pathlib.Path(_library.library().path).resolve().with_name("libfroghopper_xla.so").exists():
    pytest.skip("libfroghopper_xla.so is not beside the library: it was built without XLA's header",
                allow_module_level=True)

import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from froghopper import _xla
from froghopper import jax as of_jax
from froghopper.jax import attention

ROOT = pathlib.Path(__file__).resolve().parents[2]
CPU = jax.devices("cpu")
NARROW = ("causal", "window", "softcap", "sink_blind_rows", "packed_causal", "used", "everything")
GIVEN = [(name, "float32") for name in CASES] + [(name, dtype) for name in NARROW for dtype in ("float16", "bfloat16")]


@pytest.fixture(autouse=True)
def on_the_cpu():
    with jax.default_device(CPU[0]): yield


def given(case):
    """Keywords of attention: those of NumPy's, lengths as int32, bounds on them."""
    words = {name: np.asarray(value, np.int32) if name in _xla.LENGTHS else value
             for name, value in case.given().items() if name != "max_sms"}
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


@pytest.mark.parametrize("name, dtype", GIVEN)
def test_attention_and_gradients(name, dtype):
    case = CASES[name]
    arrays = case.arrays(dtype)
    q, k, v, grad_o = map(jnp.asarray, arrays)
    wide, exact = exact_of(case, arrays, dtype)
    words = given(case)
    sink = [jnp.asarray(words.pop("sink"))] if "sink" in words else []
    def call(q, k, v, *sink): return attention(q, k, v, **words, **({"sink": sink[0]} if sink else {}), return_lse=True)

    (o, lse), pull = jax.vjp(call, q, k, v, *sink)
    assert o.dtype == q.dtype and lse.dtype == jnp.float32
    def outer(x): return np.asarray(x)[None] if case.packed else np.asarray(x)
    assert not excess(outer(o), *exact["o"])
    assert not excess(outer(lse), *exact["lse"])
    of_numpy = froghopper.attention(*arrays[:3], **case.given())
    if name != "one_thread": assert np.array_equal(np.asarray(o), of_numpy)

    grad_lse = drawn(9, "float32", *lse.shape)
    wanted = backward(*wide[:3], exact["o"][0], exact["lse"][0], wide[3], outer(grad_lse).astype(np.float64),
                      list(case.sequences()), dtype, Options(**options_of(case)))
    for at, found in zip(("q", "k", "v", "sink"), pull((grad_o, jnp.asarray(grad_lse)))):
        assert found.dtype == (jnp.float32 if at == "sink" else q.dtype)
        assert not excess(np.asarray(found) if at == "sink" else outer(found), *wanted[at]), at


def test_lengths_without_bounds():
    case = CASES["packed_causal"]
    words = given(case)
    bounded = attention(*case.arrays("float32")[:3], **words)
    free = attention(*case.arrays("float32")[:3], **{**words, "max_seqlen_q": None, "max_seqlen_kv": None})
    assert np.array_equal(bounded, free)


def test_jit_and_grad_are_those_of_jax_numpy():
    arrays = [*qkv(), jnp.linspace(-1, 2, 8)]
    close(jax.jit(causal)(*arrays), plain(*arrays))
    close(causal(*arrays[:3]), plain(*arrays[:3]))
    found, grads = jax.jit(jax.value_and_grad(loss(causal), argnums=(0, 1, 2, 3)))(*arrays)
    wanted, wanted_grads = jax.value_and_grad(loss(plain), argnums=(0, 1, 2, 3))(*arrays)
    close(found, wanted)
    all_close(grads, wanted_grads)
    all_close(jax.grad(jax.checkpoint(loss(causal)), argnums=(0, 1))(*arrays), wanted_grads[:2])
    def steps(q): return jax.lax.scan(lambda q, _: (causal(q, *arrays[1:3], arrays[3])[..., :8].repeat(2, -1), None), q,
                                      length=3)[0].sum()
    def plain_steps(q):
        for _ in range(3): q = plain(q, *arrays[1:])[..., :8].repeat(2, -1)
        return q.sum()
    close(jax.grad(steps)(arrays[0]), jax.grad(plain_steps)(arrays[0]))


def test_a_gradient_through_the_lse_alone():
    q, k, v = qkv()
    def by_hand(q, k):
        s = jnp.einsum("bshd,bthd->bhst", q, jnp.repeat(k, 2, axis=2)) / 4
        return jnp.cos(jax.nn.logsumexp(s, axis=-1)).sum()
    found = jax.grad(lambda q, k, v: jnp.cos(attention(q, k, v, return_lse=True)[1]).sum(), argnums=(0, 1, 2))(q, k, v)
    all_close(found, [*jax.grad(by_hand, argnums=(0, 1))(q, k), jnp.zeros_like(v)])


@pytest.mark.parametrize("axes", [(0, 0, 0), (0, None, None), (None, 0, 1), (2, 1, 0)])
def test_vmap(axes):
    arrays = [x if axis is None else jnp.moveaxis(x, 0, axis) for x, axis in
              zip([x if axis is not None else x[0] for x, axis in zip(qkv(3, batch=2), axes)], axes)]
    close(jax.vmap(causal, axes)(*arrays), jax.vmap(plain, axes)(*arrays))
    found, wanted = (jax.vmap(jax.grad(loss(f), argnums=(0, 1, 2)), axes)(*arrays) for f in (causal, plain))
    all_close(found, wanted)
    def summed(f): return jax.grad(lambda *x: jax.vmap(loss(f), axes)(*x).sum(), argnums=(0, 1, 2))
    all_close(jax.jit(summed(causal))(*arrays), summed(plain)(*arrays))


@pytest.mark.parametrize("sinks", ["one", "one an example"])
def test_vmap_with_a_sink(sinks):
    """The gradient of a sink is one for each example, also where they share the sink."""
    sink, axis = (jnp.linspace(-1, 2, 8), None) if sinks == "one" else (jnp.linspace(-1, 2, 24).reshape(3, 8), 0)
    axes, arrays = (0, 0, 0, axis), [*qkv(3, batch=2), sink]
    close(jax.vmap(causal, axes)(*arrays), jax.vmap(plain, axes)(*arrays))
    found, wanted = (jax.vmap(jax.grad(loss(f), argnums=(0, 1, 2, 3)), axes)(*arrays) for f in (causal, plain))
    all_close(found, wanted)
    assert found[3].shape == (3, 8)


def test_vmap_twice():
    arrays = qkv(2, 3, batch=1)
    close(jax.vmap(jax.vmap(causal))(*arrays), jax.vmap(jax.vmap(plain))(*arrays))


@pytest.mark.parametrize("lengths", ["shared", "one an example"])
def test_vmap_of_packed_sequences(lengths):
    case = Case([5, 40, 17], [9, 40, 3], packed=True, spare=3)
    q, k, v, _ = (jnp.stack([jnp.asarray(x), jnp.asarray(x[::-1].copy())]) for x in case.arrays("float32"))
    first = [jnp.asarray(ends(x), jnp.int32) for x in (case.rows, case.keys)]
    all_ends = [jnp.stack([x, jnp.asarray(ends(y[::-1]), jnp.int32)]) for x, y in zip(first, (case.rows, case.keys))]
    shared = lengths == "shared"
    def call(q, k, v, ends_q, ends_kv):
        return attention(q, k, v, cu_seqlens_q=ends_q, cu_seqlens_kv=ends_kv, causal=True, return_lse=True)
    def sum_of_all(q, k, v, *ends):
        o, lse = call(q, k, v, *ends)
        return (o ** 2).sum() + jnp.where(jnp.isfinite(lse), lse, 0).sum()
    axes = (0, 0, 0, None, None) if shared else 0
    o, lse = jax.vmap(call, axes)(q, k, v, *(first if shared else all_ends))
    grads = jax.vmap(jax.grad(sum_of_all, argnums=(0, 1, 2)), axes)(q, k, v, *(first if shared else all_ends))
    for i in range(2):
        mine = first if shared else [x[i] for x in all_ends]
        wanted_o, wanted_lse = call(q[i], k[i], v[i], *mine)
        assert np.array_equal(o[i], wanted_o) and np.array_equal(lse[i], wanted_lse)
        all_close([x[i] for x in grads], jax.grad(sum_of_all, argnums=(0, 1, 2))(q[i], k[i], v[i], *mine))


def test_vmap_with_used_lengths():
    q, k, v = qkv(3, batch=2)
    used = jnp.asarray([[20, 3], [0, 7], [11, 20]], jnp.int32)
    def call(q, k, v, used): return attention(q, k, v, seqused_kv=used)
    found = jax.vmap(call)(q, k, v, used)
    for i in range(3): assert np.array_equal(found[i], call(q[i], k[i], v[i], used[i]))
    same = jax.vmap(call, (0, 0, 0, None))(q, k, v, used[0])
    for i in range(3): assert np.array_equal(same[i], call(q[i], k[i], v[i], used[0]))


def mesh_of(shape, explicit=False):
    if len(CPU) < 4: pytest.skip(f"JAX has {len(CPU)} CPU devices, 4 are needed; it was started before this file")
    names = ("x", "y")[:len(shape)]
    if not hasattr(jax.sharding, "AxisType"):
        if explicit: pytest.skip("this JAX has no explicit axes")
        return jax.make_mesh(shape, names, devices=CPU)
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
    wanted = jax.value_and_grad(loss(plain), argnums=(0, 1, 2, 3))(*arrays)
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
    spread = jax.shard_map(causal, mesh=mesh_of((2, 2)), in_specs=(spec, spec, spec, PartitionSpec("y")), out_specs=spec,
                           check_vma=tracked)
    close(jax.jit(spread)(*arrays), plain(*arrays))
    found, wanted = (jax.jit(jax.grad(loss(f), argnums=(0, 1, 2, 3)))(*arrays) for f in (spread, plain))
    all_close([np.asarray(x) for x in found], wanted)


def test_new_lengths_compile_nothing():
    case = CASES["packed"]
    q, k, v, _ = map(jnp.asarray, case.arrays("float32"))
    function = jax.jit(lambda q, k, v, *lengths: attention(q, k, v, cu_seqlens_q=lengths[0], cu_seqlens_kv=lengths[1]))
    results = []
    before = of_jax.run._cache_size()
    for i in range(3):
        rows, keys = ([*x[i:], *x[:i]] for x in (case.rows, case.keys))
        lengths = [np.asarray(ends(x), np.int32) for x in (rows, keys)]
        results.append(function(q, k, v, *lengths))
        eager = attention(q, k, v, cu_seqlens_q=lengths[0], cu_seqlens_kv=lengths[1])
        assert np.array_equal(results[-1], eager)
    assert function._cache_size() == 1 and of_jax.run._cache_size() <= before + 1
    assert not np.array_equal(results[0], results[1])


def test_the_problem_can_be_read_in_the_program():
    text = jax.jit(causal).lower(*qkv()).as_text()
    assert 'problem = "fwd f32 b4 hq8 hkv4 sq12 skv20 d16 dv8 causal"' in text and 'results = "o"' in text


def test_empty_arrays():
    q, k, v = qkv()
    assert attention(q[:0], k[:0], v[:0]).shape == (0, 12, 8, 8)
    assert attention(q[:, :0], k, v).shape == (4, 0, 8, 8)
    assert not attention(q, k[:, :0], v[:, :0]).any()
    grads = jax.grad(lambda k: attention(q[:, :0], k, v).sum())(k)
    assert grads.shape == k.shape and not grads.any()


def test_threads():
    arrays = qkv()
    wanted, wrong = causal(*arrays), []
    def work():
        for _ in range(20):
            if not np.array_equal(causal(*arrays), wanted): wrong.append(True)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert not wrong


REFUSED = {
    "k is bfloat16; q is float32": lambda q, k, v: attention(q, k.astype(jnp.bfloat16), v),
    "q is a list; this function computes on arrays of JAX": lambda q, k, v: attention([1.0], k, v),
    "they can be float16, bfloat16, float32": lambda q, k, v: attention(*(x.astype(jnp.int32) for x in (q, k, v))),
    "sink is bfloat16; it is float32": lambda q, k, v: attention(q, k, v, sink=jnp.zeros(8, jnp.bfloat16)),
    "sink has the shape .4.; it must be .8.": lambda q, k, v: attention(q, k, v, sink=jnp.zeros(4)),
    "q has the shape .* without cu_seqlens": lambda q, k, v: attention(q[0], k, v),
    "they have the same dim": lambda q, k, v: attention(q, k[..., :8], v),
    "heads_kv is 3 and heads_q is 8": lambda q, k, v: attention(q, k[:, :, :3], v[:, :, :3]),
    "dim": lambda q, k, v: attention(q[..., :12], k[..., :12], v),
    "window is 3": lambda q, k, v: attention(q, k, v, window=3),
    "causal is 'yes'": lambda q, k, v: attention(q, k, v, causal="yes"),
    "align is 'left'": lambda q, k, v: attention(q, k, v, align="left"),
    "scale is 0": lambda q, k, v: attention(q, k, v, scale=0.0),
    "softcap is -1": lambda q, k, v: attention(q, k, v, softcap=-1.0),
    "cu_seqlens_q is given and cu_seqlens_kv is not":
        lambda q, k, v: attention(q[0], k[0], v[0], cu_seqlens_q=np.asarray([0, 12])),
    "cu_seqlens_q has 2 numbers and cu_seqlens_kv 3":
        lambda q, k, v: attention(q[0], k[0], v[0], cu_seqlens_q=np.asarray([0, 12]), cu_seqlens_kv=np.arange(3)),
    "cu_seqlens_q is float32": lambda q, k, v: attention(q[0], k[0], v[0], cu_seqlens_q=jnp.asarray([0.0, 12.0])),
    "max_seqlen_q is 12 without cu_seqlens": lambda q, k, v: attention(q, k, v, max_seqlen_q=12),
    "seqused_kv has the shape": lambda q, k, v: attention(q, k, v, seqused_kv=jnp.zeros(3, jnp.int32)),
    "a derivative of the gradients": lambda q, k, v: jax.grad(lambda q: jax.grad(loss(causal))(q, k, v).sum())(q),
}


@pytest.mark.parametrize("sentence", REFUSED)
@pytest.mark.parametrize("traced", [False, True])
def test_refused(sentence, traced):
    call = REFUSED[sentence]
    with pytest.raises(froghopper.Error, match=sentence) as refused: (jax.jit(call) if traced else call)(*qkv())
    assert isinstance(refused.value, (TypeError, ValueError, NotImplementedError))


def test_what_only_the_numbers_show():
    q, k, v = (x[0] for x in qkv())
    for ends_q, sentence in (([0, 5, 3], "cu_seqlens_q"), ([0, 5, 13], "cu_seqlens_q"), ([1, 5, 12], "cu_seqlens_q")):
        with pytest.raises(Exception, match=f"INVALID_ARGUMENT.*{sentence}") as refused:
            attention(q, k, v, cu_seqlens_q=np.asarray(ends_q), cu_seqlens_kv=np.asarray([0, 5, 20])).block_until_ready()
        assert "RuntimeError" in type(refused.value).__name__
    assert np.isfinite(attention(q[None], k[None], v[None])).all()  # the next call is as if nothing had been


def test_a_handler_that_is_called_by_hand():
    """Arrays that are not what the problem says never reach the library."""
    causal(*qkv())  # registers it
    q, k, v = qkv()
    def call(problem, operands="q k v", results="o", *arrays):
        made = jax.ffi.ffi_call("froghopper_attention", jax.ShapeDtypeStruct((4, 12, 8, 8), jnp.float32))
        return made(*(arrays or (q, k, v)), problem=problem, operands=operands, results=results).block_until_ready()
    line = "fwd f32 b4 hq8 hkv4 sq12 skv20 d16 dv8"
    assert np.array_equal(call(line), attention(q, k, v))
    for problem, operands, results, sentence in (
            (line.replace("b4", "b5"), "q k v", "o", r"q has the shape \[4, 12, 8, 16\].* \[5, 12, 8, 16\]"),
            (line.replace("f32", "f16"), "q k v", "o", "q has the shape .* type 11; .* and 10"),
            (line, "q k", "o", "there are 3 operands and these names: q k"), (line, "q k v sink", "o", "there are 3"),
            (line, "q k w", "o", "'w' is no field of fh_tensors"), (line, "q k v", "lse", "lse has the shape"),
            ("fwd f32 of mine", "q k v", "o", "of"), (line.replace("fwd", "bwd") + " acc", "q k v", "o", "acc")):
        with pytest.raises(Exception, match=sentence): call(problem, operands, results)


def test_without_the_handlers(tmp_path, monkeypatch):
    class Elsewhere: path = str(tmp_path / "libfroghopper.so")
    monkeypatch.setattr(_xla, "library", lambda: Elsewhere)
    with pytest.raises(froghopper.LibraryNotFound, match="libfroghopper_xla.so is not here"): _xla.register.__wrapped__()


def test_importing_froghopper_imports_no_jax():
    script = "import sys, froghopper; sys.exit('jax' in sys.modules)"
    path = os.pathsep.join([str(pathlib.Path(froghopper.__file__).parents[1]), *sys.path])
    assert subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path}).returncode == 0


def test_the_example():
    example = ROOT / "examples/python/jax_training.py"
    if not example.exists(): pytest.skip("tests of an installed package: there are no examples")
    path = os.pathsep.join([str(pathlib.Path(froghopper.__file__).parents[1]), *sys.path])
    said = subprocess.run([sys.executable, example, "--check"], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"})
    assert said.returncode == 0, said.stdout + said.stderr
    assert "same losses" in said.stdout


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
    with pytest.raises(froghopper.Unsupported, match="f32"): causal(*(jax.device_put(x, device) for x in qkv()))
