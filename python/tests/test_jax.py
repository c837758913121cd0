# SPDX-License-Identifier: Apache-2.0
"""Attention of JAX on the CPU beside fp64 formulas (plain.py) and jax.numpy: under jit, grad and vmap; what is refused;
what compiles again."""
import threading

import numpy as np
import pytest
from jax_cases import all_close, attention, causal, close, given, jax, jnp, loss, on_the_cpu, plain, qkv  # noqa: F401
from plain import Options, backward, excess
from programs import example, run_python
from test_numpy import CASES, Case, drawn, ends, exact_of, options_of

import froghopper
from froghopper import _xla
from froghopper import jax as of_jax

NARROW = ("causal", "window", "softcap", "sink_blind_rows", "packed_causal", "used", "everything")
GIVEN = [(name, "float32") for name in CASES] + [(name, dtype) for name in NARROW for dtype in ("float16", "bfloat16")]


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
    wanted, wanted_grads = jax.jit(jax.value_and_grad(loss(plain), argnums=(0, 1, 2, 3)))(*arrays)
    close(found, wanted)
    all_close(grads, wanted_grads)
    all_close(jax.grad(jax.checkpoint(loss(causal)), argnums=(0, 1))(*arrays), wanted_grads[:2])
    def steps(q): return jax.lax.scan(lambda q, _: (causal(q, *arrays[1:3], arrays[3])[..., :8].repeat(2, -1), None), q,
                                      length=3)[0].sum()
    def plain_steps(q):
        for _ in range(3): q = plain(q, *arrays[1:])[..., :8].repeat(2, -1)
        return q.sum()
    close(jax.jit(jax.grad(steps))(arrays[0]), jax.jit(jax.grad(plain_steps))(arrays[0]))


def test_a_gradient_through_the_lse_alone():
    q, k, v = qkv()
    def by_hand(q, k):
        s = jnp.einsum("bshd,bthd->bhst", q, jnp.repeat(k, 2, axis=2)) / 4
        return jnp.cos(jax.nn.logsumexp(s, axis=-1)).sum()
    found = jax.grad(lambda q, k, v: jnp.cos(attention(q, k, v, return_lse=True)[1]).sum(), argnums=(0, 1, 2))(q, k, v)
    all_close(found, [*jax.jit(jax.grad(by_hand, argnums=(0, 1)))(q, k), jnp.zeros_like(v)])


@pytest.mark.parametrize("axes", [(0, 0, 0), (0, None, None), (None, 0, 1), (2, 1, 0)])
def test_vmap(axes):
    arrays = [x if axis is None else jnp.moveaxis(x, 0, axis) for x, axis in
              zip([x if axis is not None else x[0] for x, axis in zip(qkv(3, batch=2), axes)], axes)]
    def each(f): return jax.jit(jax.vmap(jax.value_and_grad(loss(f), argnums=(0, 1, 2)), axes))(*arrays)
    def summed(f): return jax.jit(jax.grad(lambda *x: jax.vmap(loss(f), axes)(*x).sum(), argnums=(0, 1, 2)))(*arrays)
    close(jax.vmap(causal, axes)(*arrays), jax.jit(jax.vmap(plain, axes))(*arrays))
    close(each(causal)[0], each(plain)[0])
    all_close(each(causal)[1], each(plain)[1])
    all_close(summed(causal), summed(plain))


@pytest.mark.parametrize("sinks", ["one", "one an example"])
def test_vmap_with_a_sink(sinks):
    """The gradient of a sink is one for each example, also where they share the sink."""
    sink, axis = (jnp.linspace(-1, 2, 8), None) if sinks == "one" else (jnp.linspace(-1, 2, 24).reshape(3, 8), 0)
    axes, arrays = (0, 0, 0, axis), [*qkv(3, batch=2), sink]
    close(jax.vmap(causal, axes)(*arrays), jax.jit(jax.vmap(plain, axes))(*arrays))
    found, wanted = (jax.jit(jax.vmap(jax.grad(loss(f), argnums=(0, 1, 2, 3)), axes))(*arrays) for f in (causal, plain))
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
    gradients = jax.jit(jax.grad(sum_of_all, argnums=(0, 1, 2)))
    grads = jax.jit(jax.vmap(gradients, axes))(q, k, v, *(first if shared else all_ends))
    for i in range(2):
        mine = first if shared else [x[i] for x in all_ends]
        wanted_o, wanted_lse = call(q[i], k[i], v[i], *mine)
        assert np.array_equal(o[i], wanted_o) and np.array_equal(lse[i], wanted_lse)
        all_close([x[i] for x in grads], gradients(q[i], k[i], v[i], *mine))


def test_vmap_with_used_lengths():
    q, k, v = qkv(3, batch=2)
    used = jnp.asarray([[20, 3], [0, 7], [11, 20]], jnp.int32)
    def call(q, k, v, used): return attention(q, k, v, seqused_kv=used)
    found = jax.vmap(call)(q, k, v, used)
    for i in range(3): assert np.array_equal(found[i], call(q[i], k[i], v[i], used[i]))
    same = jax.vmap(call, (0, 0, 0, None))(q, k, v, used[0])
    for i in range(3): assert np.array_equal(same[i], call(q[i], k[i], v[i], used[0]))


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


def test_max_sms():
    """In the problem of both passes; the same bits."""
    arrays = qkv()
    def two(*arrays): return attention(*arrays, causal=True, max_sms=2)
    text = jax.jit(jax.grad(loss(two))).lower(*arrays).as_text()
    assert "causal sms2" in text and "bwd f32" in text
    assert np.array_equal(two(*arrays), causal(*arrays))
    for given, error in ((1.0, TypeError), (-1, ValueError)):
        with pytest.raises(error, match="max_sms"): attention(*arrays, max_sms=given)


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
    "k must .*, but is bfloat16": lambda q, k, v: attention(q, k.astype(jnp.bfloat16), v),
    "q must .*, but is a list": lambda q, k, v: attention([1.0], k, v),
    "q, k and v must .*, but are int32": lambda q, k, v: attention(*(x.astype(jnp.int32) for x in (q, k, v))),
    "sink must .*, but is bfloat16": lambda q, k, v: attention(q, k, v, sink=jnp.zeros(8, jnp.bfloat16)),
    "sink must .*, but has .4": lambda q, k, v: attention(q, k, v, sink=jnp.zeros(4)),
    "q must .*, but has the shape .12, 8, 16": lambda q, k, v: attention(q[0], k, v),
    "k must .*, but has 8: their shapes are .4, 20, 4, 8. and .4, 12, 8": lambda q, k, v: attention(q, k[..., :8], v),
    "heads_kv must .*, but is 3": lambda q, k, v: attention(q, k[:, :, :3], v[:, :, :3]),
    "dim": lambda q, k, v: attention(q[..., :12], k[..., :12], v),
    "window must .*, but is 3": lambda q, k, v: attention(q, k, v, window=3),
    "causal must .*, but is 'yes'": lambda q, k, v: attention(q, k, v, causal="yes"),
    "align must .*, but is 'left'": lambda q, k, v: attention(q, k, v, align="left"),
    "scale must .*, but is -1.0": lambda q, k, v: attention(q, k, v, scale=-1.0),
    "softcap must .*, but is -1": lambda q, k, v: attention(q, k, v, softcap=-1.0),
    "cu_seqlens_q and cu_seqlens_kv must .*, but cu_seqlens_kv is None":
        lambda q, k, v: attention(q[0], k[0], v[0], cu_seqlens_q=np.asarray([0, 12])),
    "cu_seqlens_q and cu_seqlens_kv must .*, but have 2 and 3":
        lambda q, k, v: attention(q[0], k[0], v[0], cu_seqlens_q=np.asarray([0, 12]), cu_seqlens_kv=np.arange(3)),
    "cu_seqlens_q must .*, but i": lambda q, k, v: attention(q[0], k[0], v[0], cu_seqlens_q=jnp.asarray([0.0, 12.0])),
    "max_seqlen_q must .*, but is 12": lambda q, k, v: attention(q, k, v, max_seqlen_q=12),
    "seqused_kv must .*, but has .3": lambda q, k, v: attention(q, k, v, seqused_kv=jnp.zeros(3, jnp.int32)),
    "a derivative of the gradients": lambda q, k, v: jax.grad(lambda q: jax.grad(loss(causal))(q, k, v).sum())(q),
}


@pytest.mark.parametrize("sentence", REFUSED)
@pytest.mark.parametrize("traced", [False, True])
def test_refused(sentence, traced):
    call = REFUSED[sentence]
    with pytest.raises(froghopper.Error, match=sentence) as refused: (jax.jit(call) if traced else call)(*qkv())
    assert isinstance(refused.value, (TypeError, ValueError, NotImplementedError))


def test_what_only_the_numbers_show():
    (q, k, v), ends_kv = (x[0] for x in qkv()), np.asarray([0, 5, 20])
    for ends_q, sentence in (([0, 5, 3], "cu_seqlens_q"), ([0, 5, 13], "cu_seqlens_q"), ([1, 5, 12], "cu_seqlens_q")):
        with pytest.raises(Exception, match=f"INVALID_ARGUMENT.*{sentence}") as refused:
            jax.block_until_ready(attention(q, k, v, cu_seqlens_q=np.asarray(ends_q), cu_seqlens_kv=ends_kv))
        assert "RuntimeError" in type(refused.value).__name__
    # An error that JAX raises later, while the result is awaited, has the words of the C interface.
    with pytest.raises(Exception, match="INVALID_ARGUMENT.*(max_seqlen_q must be at least 7, the rows of .* 3|seq_q)"):
        jax.block_until_ready(attention(q, k, v, cu_seqlens_q=np.asarray([0, 5, 12]), cu_seqlens_kv=ends_kv,
                                        max_seqlen_q=3, max_seqlen_kv=20))
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
    with pytest.raises(froghopper.LibraryNotFound, match="libfroghopper_xla.so is not here"):
        _xla.register.__wrapped__()


def test_importing_froghopper_imports_no_jax():
    run_python("-c", "import sys, froghopper; sys.exit('jax' in sys.modules)")


def test_the_example():
    assert "same losses" in run_python(example("jax_training.py"), "--check", JAX_PLATFORMS="cpu")
