# SPDX-License-Identifier: Apache-2.0
"""froghopper.jax.append_kv beside plain writes of NumPy, bit for bit, and beside froghopper.append_kv: dense caches and
pages, eager, under jit with donated caches, in loops, under vmap and over several devices. Memory that no row of a
sequence needs holds NaN, before and after."""
import functools

import numpy as np
import pytest
from jax_cases import attention, close, jax, jnp, on_the_cpu  # noqa: F401
from test_jax_devices import NamedSharding, PartitionSpec, gpu, mesh_of

import froghopper
from froghopper.jax import append_kv

PAGE, COLUMNS, HEADS, HEADS_Q = 16, 3, 2, 4
DIMS = (64, 32)  # of k and v
BEFORE = np.array([0, 1, PAGE - 1, PAGE, PAGE + 1], np.int32)  # rows that the sequences have already
BATCH = len(BEFORE)
NOWHERE = 2**30  # a page that no pool has


def drawn(*shape, seed=0, dtype="float32"):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def new_rows(*lead, dtype="float32"): return [drawn(*lead, HEADS, dim, seed=dim, dtype=dtype) for dim in DIMS]


def caches(paged, dtype="float32"):
    """Of NaN but in rows that count; and where each row of a sequence is."""
    pages = BATCH * COLUMNS + 2 if paged else BATCH
    rows = PAGE if paged else PAGE * COLUMNS
    table = np.random.default_rng(5).permutation(pages)[:BATCH * COLUMNS].reshape(BATCH, COLUMNS) if paged else None
    place = (lambda b, row: (table[b, row // PAGE], row % PAGE)) if paged else lambda b, row: (b, row)
    found = [np.full((pages, rows, HEADS, dim), np.nan, "float32") for dim in DIMS]
    for cache in found:
        for b, rows in enumerate(BEFORE):
            for row in range(rows): cache[place(b, row)] = b + row / 64
    words = {}
    if paged:
        held = table.astype(np.int32)
        for b, rows in enumerate(BEFORE): held[b, (rows + 3) // PAGE + 1:] = NOWHERE
        words["block_table"] = jnp.asarray(held)
    return [jnp.asarray(x, dtype) for x in found], place, words


def written(cache, rows, place, counts):
    """Those rows behind the ones that are there, by plain writes."""
    cache = np.array(cache)
    for b, count in enumerate(counts):
        for i in range(count): cache[place(b, BEFORE[b] + i)] = rows[b][i]
    return cache


def same_bits(found, wanted):
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    assert found.tobytes() == wanted.tobytes()


enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
CALLS = {"eager": append_kv, "jit": jax.jit(append_kv, static_argnames="max_seqlen"),
         "donated": jax.jit(append_kv, static_argnames="max_seqlen", donate_argnums=(2, 3))}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("how", CALLS)
def test_what_plain_writes_give(how, paged, dtype):
    new, (held, place, words) = new_rows(BATCH, 4, dtype=dtype), caches(paged, dtype)
    counts = [4, 0, 1, 3, 2]
    wanted = [written(cache, x, place, counts) for cache, x in zip(held, new)]
    found = CALLS[how](*new, *held, seqused_kv=jnp.asarray(BEFORE), seqused=jnp.asarray(counts), **words)
    assert len(found) == 2
    for x, y in zip(found, wanted): same_bits(x, y)
    if how != "donated":
        for x, y in zip(held, caches(paged, dtype)[0]): same_bits(x, y)  # arrays of JAX do not change


@pytest.mark.parametrize("bound", [None, 4])
@pytest.mark.parametrize("paged", [False, True])
def test_packed_rows(paged, bound):
    counts = np.array([2, 0, 4, 1, 1])
    new, (held, place, words) = new_rows(counts.sum() + 2), caches(paged)  # two rows of no sequence
    ends = np.append(0, np.cumsum(counts)).astype(np.int32)
    wanted = [written(cache, np.split(x, ends[1:]), place, counts) for cache, x in zip(held, new)]
    for call in CALLS.values():
        if call is CALLS["donated"]: held = [jnp.copy(x) for x in held]
        found = call(*new, *held, seqused_kv=jnp.asarray(BEFORE), cu_seqlens=jnp.asarray(ends), max_seqlen=bound,
                     **words)
        for x, y in zip(found, wanted): same_bits(x, y)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("of", [np, jnp])
def test_slots_of_any_type(dtype, of):
    """JAX has 64 bits only where it is told so; -1 stays negative in all."""
    slots = np.array([100, 3, 17, 64, 0])
    with enable_x64(dtype.endswith("64")):
        given = of.asarray(slots, dtype)
        if not dtype.startswith("u"): given = of.where(given == 64, -1, given).astype(dtype)
        new, (held, _, _) = new_rows(5), caches(True)
        for shape in ((5,), (1, 5)):
            found = append_kv(*new, *held, slot_mapping=given.reshape(shape))
            for cache, x, after in zip(held, new, found):
                wanted = np.array(cache)
                for row, slot in zip(np.asarray(x), np.asarray(given).tolist()):
                    if slot >= 0: wanted[slot // PAGE, slot % PAGE] = row
                same_bits(after, wanted)


@pytest.mark.parametrize("paged", [False, True])
def test_donated_caches_are_written_where_they_lie(paged):
    new, (held, _, words) = new_rows(BATCH, 1), caches(paged)
    held = [jnp.copy(x) for x in held]  # out of the memory of NumPy, which JAX does not give away
    before = [x.unsafe_buffer_pointer() for x in held]
    found = CALLS["donated"](*new, *held, seqused_kv=jnp.asarray(BEFORE), **words)
    assert [x.unsafe_buffer_pointer() for x in found] == before
    assert all(x.is_deleted() for x in held)
    program = CALLS["donated"].lower(*new, *found, seqused_kv=jnp.asarray(BEFORE), **words).compile()
    assert not copies_of(found, program)


def copies_of(caches, program):
    """Lines of XLA's program that copy an array of such a shape."""
    shapes = [f"[{','.join(map(str, x.shape))}]" for x in caches]
    return [line for line in program.as_text().splitlines() if " copy(" in line and any(x in line for x in shapes)]


def test_results_with_memory_of_their_own():
    """As XLA's fusions may give them: the handler copies the caches and scales first."""
    from froghopper import _xla
    _xla.register()
    new, held = new_rows(2, 1, dtype="float16"), [jnp.full((2, 5, HEADS, dim), 0.5, "float8_e4m3fn") for dim in DIMS]
    scales = [jnp.full((2, 5, HEADS), 7.0)] * 2
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (*held, *scales)]
    found = jax.ffi.ffi_call(_xla.TARGET, types)(
        *new, *held, *scales, operands="k v cache_k cache_v scale_k scale_v", results="cache_k cache_v scale_k scale_v",
        problem="append f16 kv=e4m3 b2 hq2 hkv2 sq1 skv5 d64 dv32 tokenscales", names="")
    wanted = append_kv(*new, *held, scale_k=scales[0], scale_v=scales[1])
    for x, y, before in zip(found, wanted, (*held, *scales), strict=True):
        same_bits(x, y)
        same_bits(x[:, 1:], before[:, 1:])


def test_one_array_for_both_caches():
    k, held = drawn(2, 1, HEADS, 64), jnp.zeros((2, 3, HEADS, 64))
    found = jax.jit(append_kv)(k, 2 * k, held, held)
    for x, factor in zip(found, (1, 2)): same_bits(x, held.at[:, 0].set(factor * k[:, 0]))


def test_new_rows_of_the_cache_itself():
    held = drawn(2, 8, HEADS, 64)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def move(k, v): return append_kv(k[:, 2:4], v[:, 4:6], k, v, seqused_kv=jnp.array([6, 0]))
    wanted = [np.array(held) for _ in range(2)]
    for cache, rows in zip(wanted, (slice(2, 4), slice(4, 6))):
        cache[0, 6:], cache[1, :2] = held[0, rows], held[1, rows]
    for x, y in zip(move(jnp.copy(held), jnp.copy(held)), wanted): same_bits(x, y)


def beside_numpy(k, v, k_cache, v_cache, jit=True, **words):
    """The same call of both, of arrays of NumPy: results of JAX, those of NumPy."""
    held = [None if x is None else np.array(x) for x in (k_cache, v_cache)]
    of_jax = {name: jnp.asarray(x) if isinstance(x, np.ndarray) else x for name, x in words.items()}
    static = {name: of_jax.pop(name) for name in list(of_jax) if not isinstance(of_jax[name], jax.Array)}
    call = functools.partial(append_kv, **static)
    new = (None if x is None else jnp.asarray(x) for x in (k, v, k_cache, v_cache))
    found = (jax.jit(call) if jit else call)(*new, **of_jax)
    own = {name: np.array(words[name]) for name in ("scale_k", "scale_v") if np.ndim(words.get(name)) > 2}
    q = froghopper.append_kv(k, v, *held, **words | own)
    return found, [*held, *[q] * ("q" in words), *own.values()]


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("tables", ["float16", "float32"])
@pytest.mark.parametrize("where", ["dense", "pages", "slots"])
def test_norm_rotation_and_q(where, tables, jit):
    k, v = (np.asarray(x) for x in new_rows(BATCH, 3, dtype="float16"))
    held, _, words = caches(where != "dense", "float16")
    q, cos, sin = (np.asarray(drawn(*shape, seed=9, dtype=dtype)) for shape, dtype in (
        ((BATCH, 3, HEADS_Q, 64), "float16"), ((99, 16), tables), ((99, 16), tables)))
    words = {name: np.asarray(x) for name, x in words.items()} | dict(
        q=q, rotary_cos=cos, rotary_sin=sin, norm_epsilon=1e-5, norm_q=np.asarray(drawn(64, dtype=tables)))
    if where == "slots":
        k, v, words["q"] = (x.reshape(-1, *x.shape[2:]) for x in (k, v, q))
        del words["block_table"]
        words |= dict(slot_mapping=np.arange(15)[::-1] * 7, positions=np.arange(15) * 3, rotary_interleaved=True)
    else: words["seqused_kv"] = BEFORE
    found, wanted = beside_numpy(k, v, *map(np.asarray, held), jit=jit, **words)
    assert len(found) == 3
    for x, y in zip(found, wanted, strict=True): same_bits(x, y)


@pytest.mark.parametrize("scales", [(0.5, 0.25), ([0.5, 0.05], [0.1, 1]), "own", "own, as attention has them"])
@pytest.mark.parametrize("paged", [False, True])
def test_8_bit_caches(paged, scales):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    k, v = (4 * np.asarray(x) for x in new_rows(BATCH, 2, dtype="float16"))
    held, _, words = caches(paged, ml_dtypes.float8_e4m3fn)
    shape = held[0].shape[:3]
    if isinstance(scales, str):
        shape = (*shape, *[1] * ("," in scales))
        scales = [np.full(shape, np.nan, "float32") for _ in range(2)]
    else: scales = [np.asarray(x, np.float32) if isinstance(x, list) else x for x in scales]
    words = {name: np.asarray(x) for name, x in words.items()} | dict(seqused_kv=BEFORE)
    found, wanted = beside_numpy(k, v, *map(np.asarray, held), scale_k=scales[0], scale_v=scales[1], **words)
    for x, y in zip(found, wanted, strict=True): same_bits(x, y)


def test_q_alone_and_k_alone():
    q, cos, sin = drawn(2, 3, HEADS_Q, 64), drawn(9, 8), drawn(9, 8)
    found = append_kv(None, None, None, None, q=q, rotary_cos=cos, rotary_sin=sin)
    assert found[:2] == (None, None)
    same_bits(found[2], froghopper.append_kv(None, None, None, None, q=np.asarray(q), rotary_cos=np.asarray(cos),
                                             rotary_sin=np.asarray(sin)))
    k, held = drawn(2, 3, HEADS, 64), jnp.zeros((2, 5, HEADS, 64))
    found = append_kv(k, None, held, None)
    same_bits(found[0], held.at[:, :3].set(k))
    assert found[1] is None and len(found) == 2


def test_no_rows_and_no_cache():
    new, held = new_rows(2, 0), [jnp.ones((2, 3, HEADS, dim)) for dim in DIMS]
    for x, y in zip(append_kv(*new, *held), held, strict=True): same_bits(x, y)
    pool = [jnp.ones((0, PAGE, HEADS, dim)) for dim in DIMS]
    for x in append_kv(*new_rows(3), *pool, slot_mapping=jnp.full(3, -1)): assert x.shape[0] == 0


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("loop", ["fori", "scan"])
def test_decoding_in_a_loop(loop, paged):
    """Beside attention to all rows at once, with a cache that is NaN where no row is yet."""
    steps, first = 20, 13
    q, k, v = (drawn(2, first + steps, heads, 64, seed=heads) for heads in (HEADS_Q, HEADS, HEADS))
    lead, words = (2, 40), {}
    if paged: lead, words = (8, 10), dict(block_table=jnp.array([[7, 1, 2, 4], [0, 5, 6, 3]]))
    held = [jnp.full((*lead, HEADS, 64), jnp.nan)] * 2

    def one(step, held):
        there = jnp.full(2, first + step)
        new = (jax.lax.dynamic_slice_in_dim(x, first + step, 1, 1) for x in (q, k, v))
        one_q, one_k, one_v = new
        held = append_kv(one_k, one_v, *held, seqused_kv=there, **words)
        return held, attention(one_q, *held, seqused_kv=there + 1, causal=True, **words)

    @jax.jit
    def decode(k_cache, v_cache):
        held = append_kv(k[:, :first], v[:, :first], k_cache, v_cache, **words)
        if loop == "scan": return jax.lax.scan(lambda held, step: one(step, held), held, jnp.arange(steps))[1][:, :, 0]

        def body(step, state):
            held, o = one(step, state[0])
            return held, state[1].at[step].set(o[:, 0])
        return jax.lax.fori_loop(0, steps, body, (held, jnp.zeros((steps, 2, HEADS_Q, 64))))[1]
    close(decode(*held).swapaxes(0, 1), attention(q, k, v, causal=True)[:, first:])


def test_a_loop_copies_no_cache():
    """XLA's program has the caches once: as what is donated."""
    held = [jnp.zeros((2, 64, HEADS, dim)) for dim in DIMS]

    def decode(k_cache, v_cache):
        def body(step, held): return append_kv(*new_rows(2, 1), *held, seqused_kv=jnp.full(2, step))
        return jax.lax.fori_loop(0, 64, body, (k_cache, v_cache))
    program = jax.jit(decode, donate_argnums=(0, 1)).lower(*held).compile()
    assert not copies_of(held, program)
    found = program(*held)
    for x, y in zip(found, new_rows(2, 1)): same_bits(x, np.broadcast_to(y, x.shape))


@pytest.mark.parametrize("own", ["all", "rows", "tables"])
@pytest.mark.parametrize("paged", [False, True])
def test_vmap(paged, own):
    """Examples of their own rows and caches, of one cache that all begin with, and with tables of their own."""
    new, (held, _, words) = new_rows(3, BATCH, 2), caches(paged)
    cos = drawn(3, 99, 8)
    given = [*new, *(jnp.stack([x, x + 1, x + 2]) if own == "all" else x for x in held),
             cos if own == "tables" else cos[0]]
    axes = [0, 0, *[0 if own == "all" else None] * 2, 0 if own == "tables" else None]

    def one(k, v, k_cache, v_cache, cos):
        return append_kv(k, v, k_cache, v_cache, seqused_kv=jnp.asarray(BEFORE), rotary_cos=cos, rotary_sin=cos,
                         **words)
    found = jax.jit(jax.vmap(one, in_axes=axes))(*given)
    for i in range(3):
        wanted = one(*(x if axis is None else x[i] for x, axis in zip(given, axes)))
        for x, y in zip(found, wanted): same_bits(x[i], y)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("heads", [1, 2])
def test_over_devices(heads, paged, kind):
    """Also heads of q that share a head of k: each device then writes it. Donated parts are written where they lie."""
    mesh = mesh_of((2, 2), kind == "explicit")
    new, table = [drawn(4, 2, heads, dim, seed=dim) for dim in DIMS], jnp.arange(8).reshape(4, 2)
    q, held = drawn(4, 2, HEADS_Q, 64), [drawn(*((8, 8) if paged else (4, 16)), heads, dim) for dim in DIMS]
    words = dict(seqused_kv=jnp.array([0, 7, 8, 9]), rotary_cos=drawn(20, 8), rotary_sin=drawn(20, 8, seed=1))
    if paged: words["block_table"] = table
    wanted = append_kv(*new, *held, q=q, **words)
    across = "y" if heads > 1 else None
    of_q, of_rows = PartitionSpec("x", None, "y", None), PartitionSpec("x", None, across, None)
    of_caches = PartitionSpec(None, None, across, None) if paged else of_rows
    def put(x, spec): return jax.device_put(jnp.copy(x), NamedSharding(mesh, spec))
    given = [*(put(x, of_rows) for x in new), *(put(x, of_caches) for x in held)]
    before = [part.data.unsafe_buffer_pointer() for x in given[2:] for part in x.addressable_shards]
    found = CALLS["donated"](*given, q=put(q, of_q), **{name: put(x, PartitionSpec()) for name, x in words.items()})
    for x, y in zip(found, wanted, strict=True): same_bits(x, y)
    for x in found[:2]: assert x.sharding.is_equivalent_to(NamedSharding(mesh, of_caches), 4), x.sharding
    assert [part.data.unsafe_buffer_pointer() for x in found[:2] for part in x.addressable_shards] == before


def test_under_shard_map():
    if not hasattr(jax, "shard_map"): pytest.skip("this JAX has shard_map elsewhere")
    new, held = [drawn(4, 2, HEADS, dim) for dim in DIMS], [jnp.zeros((4, 8, HEADS, dim)) for dim in DIMS]
    part = PartitionSpec("x")
    call = jax.shard_map(lambda *arrays: append_kv(*arrays, seqused_kv=jnp.full(1, 3)), mesh=mesh_of((4,)),
                         in_specs=(part,) * 4, out_specs=(part, part))
    for x, y in zip(jax.jit(call)(*new, *held), append_kv(*new, *held, seqused_kv=jnp.full(4, 3))): same_bits(x, y)


def test_without_compiled_programs():
    new, (held, _, _) = new_rows(BATCH, 1), caches(False)
    with jax.disable_jit(): found = append_kv(*new, *held, seqused_kv=jnp.asarray(BEFORE))
    for x, y in zip(found, append_kv(*new, *held, seqused_kv=jnp.asarray(BEFORE))): same_bits(x, y)


def test_lowered_for_gpus():
    """As attention is: with a plan of a GPU that need not be here, and results in the memory of the caches."""
    new, (held, _, words) = new_rows(BATCH, 1, dtype="bfloat16"), caches(True, "bfloat16")
    exported = jax.export.export(jax.jit(append_kv), platforms=["cuda"],
                                 disabled_checks=[jax.export.DisabledSafetyCheck.custom_call("froghopper_attention")])
    text = exported(*new, *held, seqused_kv=jnp.asarray(BEFORE), **words).mlir_module()
    assert "append bf16" in text and text.count("output_operand_alias<") == 2


def test_on_a_gpu():
    device = gpu()
    new, (held, place, words) = new_rows(BATCH, 4, dtype="bfloat16"), caches(True, "bfloat16")
    wanted = [written(cache, x, place, [4] * BATCH) for cache, x in zip(held, new)]
    arrays = [jax.device_put(x, device) for x in (*new, *held)]
    words = {name: jax.device_put(x, device) for name, x in (words | {"seqused_kv": jnp.asarray(BEFORE)}).items()}
    for x, y in zip(append_kv(*arrays, **words), wanted): same_bits(x, y)
    before = [x.unsafe_buffer_pointer() for x in arrays[2:]]
    found = CALLS["donated"](*arrays, **words)
    assert [x.unsafe_buffer_pointer() for x in found] == before
    for x, y in zip(found, wanted): same_bits(x, y)
