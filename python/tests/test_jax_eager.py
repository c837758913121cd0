# SPDX-License-Identifier: Apache-2.0
"""froghopper.jax where programs are not compiled (jax.disable_jit), accumulate and vmap, jacobians, and the values at
the edges of what int32 and float32 hold."""
import numpy as np
import pytest
from jax_cases import all_close, attention, causal, close, jax, jnp, loss, on_the_cpu, plain, qkv  # noqa: F401

import froghopper


def test_without_jit():
    arrays = qkv()
    wanted, wanted_grads = jax.value_and_grad(loss(causal), argnums=(0, 1, 2))(*arrays)
    with jax.disable_jit():
        close(causal(*arrays), plain(*arrays))
        found, grads = jax.value_and_grad(loss(causal), argnums=(0, 1, 2))(*arrays)
        close(found, wanted)
        all_close(grads, wanted_grads)
        close(jax.vmap(causal)(*(x[:, None] for x in arrays))[:, 0], plain(*arrays))
        close(jax.jit(causal)(*arrays), plain(*arrays))
        o, lse, most = attention(*arrays, return_lse=True, return_max_logit=True)
        zero = jnp.zeros(o.shape), jnp.full(lse.shape, -jnp.inf), jnp.full(most.shape, -jnp.inf)
        all_close(attention(*arrays, accumulate=zero, return_max_logit=True), (o, lse, most))
        ends = dict(cu_seqlens_q=jnp.asarray([0, 12], jnp.int32), cu_seqlens_kv=jnp.asarray([0, 20], jnp.int32))
        close(attention(*(x[0] for x in arrays), **ends, causal=True), plain(*arrays)[0])
        assert jax.config.jax_disable_jit


def test_results_that_do_not_lie_where_they_are_merged():
    """As where XLA fuses a slice of an operand into the call and gives its result other memory."""
    from froghopper import _xla
    _xla.register()
    q, k, v = (x.astype(jnp.float32) for x in qkv())
    o, lse = attention(q, k[:, :8], v[:, :8], return_lse=True)
    line = (f"fwd f32 b{q.shape[0]} hq{q.shape[2]} hkv{k.shape[2]} sq{q.shape[1]} skv{k.shape[1] - 8} "
            f"d{q.shape[3]} dv{v.shape[3]} acc")
    call = jax.ffi.ffi_call(_xla.TARGET, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (o, lse)])
    found = jax.jit(lambda *x: call(*x, problem=line, operands="q k v o lse", results="o lse", names=""))(
        q, k[:, 8:], v[:, 8:], o, lse)
    all_close(found, attention(q, k, v, return_lse=True))


def test_jacobians():
    q, k, v = (x[:1, :3] for x in qkv(heads=(2, 1)))
    for function in (lambda *x: causal(*x), jax.jit(causal)):
        found = jax.jacrev(function, argnums=(0, 1, 2))(q, k, v)
        all_close(found, jax.jacrev(plain, argnums=(0, 1, 2))(q, k, v))
    with jax.disable_jit(): close(jax.jacrev(causal)(q, k, v), found[0])
    with pytest.raises(TypeError, match="forward-mode|custom_vjp"): jax.jacfwd(causal)(q, k, v)


@pytest.mark.parametrize("axes", [(0, 0, 0, (0, 0)), (0, None, None, (0, 0)), (None, 0, 0, (None, None))])
def test_vmap_of_accumulate(axes):
    first, second = qkv(3), qkv(3, seed=5)
    def whole(q, k, v): return attention(q, k, v, return_lse=True)
    held = jax.vmap(whole)(*first)
    given = [x if axis == 0 else x[0] for x, axis in zip((first[0], *second[1:]), axes)]
    held = tuple(x if axis == 0 else x[0] for x, axis in zip(held, axes[3]))
    found = jax.vmap(lambda q, k, v, held: attention(q, k, v, accumulate=held), in_axes=axes)(*given, held)
    for i in range(3):
        q, k, v, o, lse = (x[i] if axis == 0 else x for x, axis in zip((*given, *held), (*axes[:3], *axes[3])))
        all_close([x[i] for x in found], attention(q, k, v, accumulate=(o, lse)))
    assert isinstance(found, tuple) and len(found) == 2


def test_accumulate_in_a_loop():
    """A carry has one structure, whatever return_lse."""
    q, k, v = qkv()
    wanted = attention(q, k, v, return_lse=True)
    parts = [jnp.stack(jnp.split(x, 4, axis=1)) for x in (k, v)]
    begin = jnp.zeros(wanted[0].shape), jnp.full(wanted[1].shape, -jnp.inf)
    found, _ = jax.lax.scan(lambda held, kv: (attention(q, *kv, accumulate=held), None), begin, parts)
    all_close(found, wanted)


@pytest.mark.parametrize("dtype", ["int64", "uint32", "uint64"])
def test_lengths_beyond_int32_are_refused(dtype):
    q, k, v = qkv()
    used = np.asarray([12, 12, 12, 2**32 - 2 if dtype == "uint32" else 2**32 + 3], dtype)
    with pytest.raises(Exception, match=r"INVALID_ARGUMENT.*seqused_q\[3\]"):
        jax.block_until_ready(attention(q, k, v, seqused_q=used))
    fit = attention(q, k, v, seqused_q=np.asarray([12, 5, 12, 3], dtype))
    close(fit[1, :5], attention(q, k, v)[1, :5])
    if dtype != "uint32": return
    with pytest.raises(Exception, match=r"INVALID_ARGUMENT.*seqused_q\[3\]"):
        jax.block_until_ready(jax.jit(lambda used: attention(q, k, v, seqused_q=used))(used))


def test_scales_and_caps_at_the_edge_of_float32():
    q, k, v = qkv()
    uniform = np.repeat(np.asarray(v).mean(1, keepdims=True), 2, axis=2)
    for scale in (0.0, -0.0, 1e-50):
        close(attention(q, k, v, scale=scale), np.broadcast_to(uniform, (*q.shape[:3], 8)))
        close(jax.grad(lambda q: attention(q, k, v, scale=scale).sum())(q), jnp.zeros_like(q))
    close(attention(q, k, v, softcap=None), attention(q, k, v))
    for words in (dict(scale=1e39), dict(scale=-1.0), dict(softcap=1e-50), dict(softcap=float("inf"))):
        with pytest.raises(froghopper.InvalidProblem, match=next(iter(words))): attention(q, k, v, **words)


def test_masks_are_refused():
    q, k, v = map(np.asarray, qkv())
    sink, lengths = np.zeros(8, np.float32), np.full(4, 12, np.int32)
    for name, x in dict(q=q, k=k, v=v, sink=sink, seqused_q=lengths, alibi_slopes=sink).items():
        masked = np.ma.masked_array(x, np.zeros(x.shape, bool))
        with pytest.raises(TypeError, match=f"{name} must .*, but is a MaskedArray"):
            attention(**dict(q=q, k=k, v=v) | {name: masked})
