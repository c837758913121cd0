# SPDX-License-Identifier: Apache-2.0
"""What froghopper.jax says of lengths that only the numbers in an array show: the names of the call, whichever library
they come from, whether the program is the user's or not. Of axes it tells once."""
import re

import pytest
from jax_cases import attention, jax, jnp, on_the_cpu, qkv  # noqa: F401

ENDS, USED = jnp.asarray([0, 5, 12], jnp.int32), jnp.asarray([3, 21, 4, 4], jnp.int32)
OF_C = re.compile(r"\bfh_|\bseq_(q|kv)\b|\btotal_(q|kv)\b")


def packed(**options): return [x[0, :12] for x in qkv()], options


CALLS = [
    (lambda: (qkv(), {}, dict(seqused_k=USED)), r"seqused_k\[1\]"),
    (lambda: (qkv(), {}, dict(key_value_seq_lengths=USED)), r"key_value_seq_lengths\[1\]"),
    (lambda: (qkv(), {}, dict(seqused_kv=USED)), r"seqused_kv\[1\]"),
    (lambda: (*packed(max_seqlen_q=12, max_seqlen_k=3), dict(cu_seqlens_q=ENDS, cu_seqlens_k=ENDS)),
     "7 rows and max_seqlen_k is 3.*Set max_seqlen_k to 7|max_seqlen_k must be at least 7"),
    (lambda: (*packed(max_seqlen_q=3, max_seqlen_kv=12), dict(cu_seqlens_q=ENDS, cu_seqlens_kv=ENDS)),
     "7 rows and max_seqlen_q is 3.*Set max_seqlen_q to 7|max_seqlen_q must be at least 7"),
    (lambda: (*packed(), dict(cu_seqlens_q=ENDS, cu_seqlens_k=ENDS + jnp.asarray([0, 0, 1], jnp.int32))),
     "(13 and the number of rows of k is 12|cu_seqlens_k must be at most 12).* Give all rows, or end earlier"),
    (lambda: (*packed(), dict(cu_seqlens_q=ENDS, cu_seqlens_k=ENDS[jnp.asarray([0, 2, 1])])),
     "cu_seqlens_k (must not fall|falls)")]


@pytest.mark.parametrize("transformed", [
    lambda f: f, jax.jit, lambda f: jax.grad(lambda *x: f(*x).sum()),
    lambda f: jax.jit(jax.grad(lambda *x: f(*x).sum())), lambda f: lambda *x: jax.vmap(f, (0, *[None] * (len(x) - 1)))(
        x[0][None], *x[1:])])
@pytest.mark.parametrize("given, says", CALLS)
def test_lengths_under_the_names_of_the_call(given, says, transformed):
    arrays, options, lengths = given()
    def call(q, k, v, *rest): return attention(q, k, v, **options, **dict(zip(lengths, rest)))
    with pytest.raises(Exception, match=says) as told:
        jax.block_until_ready(transformed(call)(*arrays, *lengths.values()))
    assert "RuntimeError" in type(told.value).__name__ and not OF_C.search(str(told.value))


OF_BOUNDS = re.compile(r"Raise it|max_seqlen_|Set pages|must be None")


@pytest.mark.parametrize("used", [[3, 21, 4, 4], [3, -1, 4, 4]])
@pytest.mark.parametrize("transformed", [lambda f: f, jax.jit])
def test_no_bound_is_advised_where_there_is_none_to_give(transformed, used):
    """The rows of k are all that there are, of dense arrays and of a pool whose table has so many columns."""
    q, k, v = qkv()
    table = jnp.arange(4, dtype=jnp.int32)[:, None]
    for rest, options in ((k, {}), (k[:, :0], {}), (k, dict(block_table=table)), (k[:0], dict(block_table=table))):
        values = v[:rest.shape[0], :rest.shape[1]]
        def call(used): return attention(q, rest, values, **options, seqused_kv=used)
        with pytest.raises(Exception, match=r"seqused_kv\[[01]\]|block_table\[0, ?0\]|block_table\[0\]\[0\]") as told:
            jax.block_until_ready(transformed(call)(jnp.asarray(used, jnp.int32)))
        assert not OF_BOUNDS.search(str(told.value)), told.value


def test_names_of_one_call_are_not_those_of_the_next():
    """Programs of the same arrays, one compiled for each set of names."""
    for name in ("seqused_k", "seqused_kv", "key_value_seq_lengths", "seqused_k"):
        with pytest.raises(Exception, match=rf"[: ]{name}\[1\]"):
            jax.block_until_ready(jax.jit(lambda *x: attention(*x, **{name: USED}))(*qkv()))


@pytest.mark.parametrize("rows, options", [(29, {}), (31, dict(return_lse=True))])
def test_exchanged_axes_are_told_of_once(rows, options):
    turned = [jnp.ones((2, heads, rows, 16)) for heads in (8, 2, 2)]
    with pytest.warns(UserWarning, match="which is read as") as told: attention(*turned, causal=True, **options)
    assert [warning.filename for warning in told] == [__file__]


@pytest.mark.parametrize("used, says", [
    (3, r"but is an int. Use jax.numpy.full\(\(batch,\), seqused_kv, \"int32\"\), one for each sequence"),
    (jnp.int32(3), r"whole numbers in one dimension, but .* Use jax.numpy.full\(\(batch,\), seqused_kv, \"int32\"\)"),
    ([3, 4, 4, 4], r"must be an array of JAX, but is a list. Use jax.numpy.asarray\(seqused_kv\)"),
    (jnp.ones(4), r"whole numbers in one dimension, but is float32 .* Use seqused_kv.astype")])
def test_lengths_of_another_kind(used, says):
    """What is advised is taken: none is sent from a number to an array of no dimension, or from a list to a list."""
    q, k, v = qkv()
    with pytest.raises(TypeError, match=says) as told: attention(q, k, v, seqused_kv=used)
    way = re.search(r"Use (.*?\))(?:, one .*)?\.$", str(told.value))[1]
    attention(q, k, v, seqused_kv=eval(way, dict(jax=jax, batch=q.shape[0], seqused_kv=used)))


def test_symbolic_shapes():
    """JAX would say that an extent is no integer, or that a comparison is inconclusive."""
    from froghopper.jax import explain, quantise
    batch, rows = jax.export.symbolic_shape("b, s")
    for call, shape in ((attention, (batch, 16, 2, 16)), (attention, (2, rows, 2, 16)),
                        (lambda q, k, v: attention(q, k, v, return_lse=True), (2, rows, 2, 16)),
                        (lambda q, k, v: attention(q.astype("bfloat16"), k.astype("float8_e4m3fn"),
                                                   v.astype("float8_e4m3fn"), scale_k=1.0, scale_v=1.0),
                         (2, rows, 2, 16)),
                        (lambda q, k, v: jax.grad(lambda x: attention(x, k, v).sum())(q), (batch, 16, 2, 16)),
                        (lambda q, k, v: quantise(q, k, v).q, (batch, 16, 2, 16))):
        given = [jax.ShapeDtypeStruct(shape, jax.numpy.float32)] * 3
        with pytest.raises(NotImplementedError, match="^q must have a shape of numbers, .*symbolic dimensions"):
            jax.export.export(jax.jit(call))(*given)
    lengths = [jax.ShapeDtypeStruct((2, 16, 2, 16), jax.numpy.float32), jax.ShapeDtypeStruct((batch,), jax.numpy.int32)]
    with pytest.raises(NotImplementedError, match=r"^seqused_kv must have a shape of numbers, .*but has \[b\], "):
        jax.export.export(jax.jit(lambda q, n: attention(q, q, q, seqused_kv=n)))(*lengths)
    assert "q must have a shape of numbers" in explain(given[0], given[0], given[0])
