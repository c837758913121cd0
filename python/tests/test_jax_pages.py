# SPDX-License-Identifier: Apache-2.0
"""froghopper.jax.attention with block_table: keys and values in pages of a pool, beside the same call on rows that were
gathered, under jit, vmap and over several devices. What no row of a sequence needs holds NaN."""
import functools

import numpy as np
import pytest
from jax_cases import attention, close, jax, jnp, on_the_cpu  # noqa: F401
from test_jax_devices import NamedSharding, PartitionSpec, gpu, mesh_of

import froghopper
from froghopper.jax import explain

BATCH, COLUMNS, HEADS, HEADS_KV = 4, 5, 8, 4
USED = np.array([70, 3, 0, 48], np.int32)
NOWHERE = 2**30  # a page that no pool has


def pool_of(page, dtype="float32", used=USED, seed=0):
    """q, k, v, block_table: NaN in rows that do not count, and no page in columns that no row needs."""
    random = np.random.default_rng(seed)
    columns = -(-80 // page)
    pages = len(used) * columns + 3
    q = random.standard_normal((len(used), 6, HEADS, 64)).astype("float32")
    k, v = (np.full((pages, page, HEADS_KV, dim), np.nan, "float32") for dim in (64, 48))
    table = random.permutation(pages)[:len(used) * columns].reshape(len(used), columns).astype(np.int32)
    for sequence, rows in enumerate(used):
        for row in range(rows):
            for x in (k, v):
                x[table[sequence, row // page], row % page] = random.standard_normal(x.shape[2:])
        table[sequence, -(-rows // page):] = NOWHERE
    return [jnp.asarray(x, dtype) for x in (q, k, v)] + [jnp.asarray(table)]


def gathered(x, table, used=USED):
    """Dense rows of each sequence, zeros behind those that count."""
    rows = x[jnp.clip(table, 0, x.shape[0] - 1)].reshape(table.shape[0], -1, *x.shape[2:])
    counts = np.arange(rows.shape[1])[None] < np.asarray(used)[:, None]
    return jnp.where(counts[..., None, None], rows, 0)


@pytest.mark.parametrize("page", [1, 7, 16, 64])
@pytest.mark.parametrize("words", [{}, dict(causal=True), dict(window=(20, 0), softcap=5.0), dict(attention_chunk=16)])
def test_what_gathered_rows_give(page, words):
    q, k, v, table = pool_of(page)
    wanted = attention(q, gathered(k, table), gathered(v, table), seqused_kv=USED, return_lse=True,
                       seqused_q=np.full(BATCH, 6, np.int32), **words)
    for call in (attention, jax.jit(attention, static_argnames=(*words, "return_lse"))):
        found = call(q, k, v, block_table=table, seqused_kv=USED, return_lse=True, **words)
        for x, y in zip(found, wanted): close(x, y)


def test_all_rows_count_without_lengths():
    q, k, v, table = pool_of(16, used=np.full(BATCH, 80))
    close(attention(q, k, v, block_table=table), attention(q, *(gathered(x, table, [80] * BATCH) for x in (k, v))))


@pytest.mark.parametrize("words", [{}, dict(max_seqlen_q=6, max_seqlen_kv=75)])
def test_packed_queries(words):
    q, k, v, table = pool_of(16)
    ends = np.array([0, 1, 4, 4, 10], np.int32)
    packed = jnp.concatenate([q[i, 6 - n:] for i, n in enumerate(np.diff(ends))])
    found = attention(packed, k, v, block_table=table, cu_seqlens_q=ends, seqused_kv=USED, causal=True, **words)
    wanted = attention(q, k, v, block_table=table, seqused_kv=USED, causal=True)
    close(found, jnp.concatenate([wanted[i, 6 - n:] for i, n in enumerate(np.diff(ends))]))


@pytest.mark.parametrize("side", ["sink", "gate", "alibi_slopes"])
def test_what_goes_with_it(side):
    q, k, v, table = pool_of(16)
    draw = np.random.default_rng(3).standard_normal
    given = {"sink": draw(HEADS), "gate": draw((BATCH, 6, HEADS, 48)), "alibi_slopes": draw((BATCH, HEADS))}[side]
    words = {side: jnp.asarray(given, "float32"), "seqused_kv": USED}
    close(attention(q, k, v, block_table=table, **words),
          attention(q, gathered(k, table), gathered(v, table), seqused_q=np.full(BATCH, 6, np.int32), **words))


@pytest.mark.parametrize("kind", ["one", "heads", "rows"])
@pytest.mark.parametrize("of_q", ["float32", "float8_e4m3fn"])
def test_8_bit_caches(kind, of_q):
    q, k, v, table = pool_of(16)
    k, v = (x.astype("float8_e4m3fn") for x in (k, v))
    draw = np.random.default_rng(5).uniform
    shape = {"one": (), "heads": (BATCH, HEADS_KV), "rows": k.shape[:3]}[kind]
    scales = {name: jnp.asarray(draw(0.5, 2, shape), "float32") for name in ("scale_k", "scale_v")}
    q = q.astype("float16" if of_q == "float32" else of_q)
    words = dict(seqused_kv=USED, out_dtype="float32")
    if of_q != "float32": words["scale_q"] = 0.5
    dense = {name: gathered(x[..., None], table)[..., 0] + 1e-3 if kind == "rows" else x for name, x in scales.items()}
    found = attention(q, k, v, block_table=table, **scales, **words)
    rows = [gathered(x.astype("float32"), table).astype(x.dtype) for x in (k, v)]
    wanted = attention(q, *rows, seqused_q=np.full(BATCH, 6, np.int32), **dense, **words)
    np.testing.assert_allclose(found, wanted, rtol=2e-2, atol=2e-2)


def test_examples_of_vmap():
    """They share the pool, or each has its own."""
    q, k, v, table = pool_of(16)
    pairs = [x.reshape(2, 2, *x.shape[1:]) for x in (q, table, jnp.asarray(USED))]
    wanted = attention(q, k, v, block_table=table, seqused_kv=USED)
    def call(q, table, used, k=k, v=v): return attention(q, k, v, block_table=table, seqused_kv=used)
    close(jax.vmap(call)(*pairs).reshape(wanted.shape), wanted)
    close(jax.vmap(call)(*pairs, *(jnp.stack([x, x]) for x in (k, v))).reshape(wanted.shape), wanted)
    close(jax.vmap(lambda q: call(q, table, USED))(jnp.stack([q, q]))[1], wanted)
    sinks = jnp.asarray(np.random.default_rng(1).standard_normal((2, HEADS)), "float32")
    found = jax.vmap(lambda sink: attention(q, k, v, block_table=table, seqused_kv=USED, sink=sink))(sinks)
    for x, sink in zip(found, sinks): close(x, attention(q, k, v, block_table=table, seqused_kv=USED, sink=sink))


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("shape, spec", [((4,), ("x",)), ((4,), (None, None, "x")), ((2, 2), ("x", None, "y"))])
def test_over_several_devices(shape, spec, explicit):
    q, k, v, table = pool_of(16)
    mesh = mesh_of(shape, explicit)
    def put(x, *dims): return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*dims)))
    batch, heads = spec[0], spec[2] if len(spec) > 2 else None
    call = jax.jit(lambda q, k, v, table, used: attention(q, k, v, block_table=table, seqused_kv=used, causal=True))
    found = call(put(q, *spec), put(k, None, None, heads), put(v, None, None, heads), put(table, batch),
                 put(jnp.asarray(USED), batch))
    close(np.asarray(found), attention(q, k, v, block_table=table, seqused_kv=USED, causal=True))


def test_explain():
    q, k, v, table = pool_of(16)
    told = explain(q, k, v, block_table=table, seqused_kv=USED, causal=True)
    assert "page16 pages23" in told and "not computed" not in told.splitlines()[0]


@pytest.mark.parametrize("change, message", [
    (dict(block_table=np.zeros((3, 5), np.int32)), "block_table must have a row for each of 4 sequences, but has 3"),
    (dict(block_table=np.zeros(4, np.int32)), r"block_table must be whole numbers, \[batch, columns\], but is int32"),
    (dict(block_table=np.zeros((4, 5), np.float32)), "block_table must be whole numbers"),
    (dict(cu_seqlens_kv=np.array([0, 80], np.int32)), "cu_seqlens_kv is given with block_table.*give the lengths in"),
    (dict(max_seqlen_q=6), "max_seqlen_q must be None without cu_seqlens_q, but is 6"),
    (dict(max_seqlen_kv=81), "max_seqlen_kv must be from 0 to 80, the rows of 5 columns of block_table, but is 81"),
    (dict(max_seqlen_kv=79, seqused_kv=None), "max_seqlen_kv must be at least 80 without seqused_kv, .* but is 79"),
    (dict(return_max_logit=True), "return_max_logit must be False with block_table"),
    (dict(accumulate=(jnp.zeros((4, 6, 8, 48)), jnp.zeros((4, 8, 6)))), "accumulate must be None with block_table"),
    (dict(seqused_kv=np.array([1, 2], np.int32)), "seqused_kv must"),
    (dict(k=np.zeros((4, 8, 64), np.float32)), "k must"),
])
def test_what_is_wrong_is_named(change, message):
    q, k, v, table = pool_of(16)
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=message) as refused:
        attention(**(dict(q=q, k=k, v=v, block_table=table) | change))
    assert isinstance(refused.value, froghopper.Error)


def test_pages_that_the_pool_does_not_have():
    q, k, v, table = pool_of(16)
    with pytest.raises(Exception, match=r"block_table\[0, 1\] must name a page of the pool, 0 to 22, but is 23"):
        jax.block_until_ready(attention(q, k, v, block_table=table.at[0, 1].set(23), seqused_kv=USED))


def test_it_has_no_gradients():
    q, k, v, table = pool_of(16, used=np.full(BATCH, 80))
    with pytest.raises(froghopper.Unsupported, match="block_table is given and a gradient is asked for"):
        jax.grad(lambda q: attention(q, k, v, block_table=table).sum())(q)


@pytest.mark.parametrize("page", [1, 16])
def test_on_a_gpu(page):
    device = gpu()
    arrays = pool_of(page, "bfloat16")
    call = functools.partial(attention, seqused_kv=USED, causal=True)
    on_gpu = [jax.device_put(x, device) for x in arrays]
    found = jax.jit(lambda q, k, v, table: call(q, k, v, block_table=table))(*on_gpu)
    wanted = call(*arrays[:3], block_table=arrays[3])
    np.testing.assert_allclose(np.asarray(found, "float32"), np.asarray(wanted, "float32"), rtol=2e-2, atol=2e-2)


def test_one_length_for_all_sequences_is_told_how_to_be_written():
    q, k, v, table = pool_of(16)
    with pytest.raises(TypeError, match=r'Use jax.numpy.full\(\(batch,\), seqused_kv, "int32"\), one for each'):
        attention(q, k, v, block_table=table, seqused_kv=jnp.int32(3))
