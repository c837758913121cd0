# SPDX-License-Identifier: Apache-2.0
"""What a second walk through the package met: ways out that are followed to the letter, words of other libraries that
no list has, and what PyTorch's own tools (FlopCounterMode, DTensor, torch.func, torch.compile) make of a call."""
import os
import re
import sys

import numpy as np
import pytest

import froghopper

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from torch_cases import qkv  # noqa: E402
from ways import said, way  # noqa: E402

from froghopper import flash_attn_interface as fa  # noqa: E402
from froghopper.torch import (append_kv, attention, context_parallel, explain, norm_rotary,  # noqa: E402
                              paged_attention, quantise, scaled_dot_product_attention)

Q, K, V = qkv(2, 30, 4, 64, kv=(2, 30, 2, 64))
TABLE = torch.arange(4, dtype=torch.int32).view(2, 2)
POOL = torch.cat((K, V)), torch.cat((V, K))  # 4 pages of 30 rows
USED = torch.zeros(2, dtype=torch.int32)
ENDS = torch.tensor([0, 30, 60], dtype=torch.int32)
ANGLES = torch.arange(30.0)[:, None] * torch.arange(1, 33) / 40


def empty_caches(dtype=torch.float32): return [torch.zeros(2, 30, 2, 64, dtype=dtype) for _ in range(2)]


@pytest.mark.parametrize("wrong, way_out", [(-1, "Use 0 for rows of padding"), (30, "Use longer tables")])
def test_positions_that_the_tables_lack(wrong, way_out):
    """PyTorch would count the negative ones from the end, and append_kv refuses both."""
    positions = torch.arange(30).repeat(2, 1)
    positions[1, 3] = wrong
    text = said(lambda: norm_rotary(Q, K, rotary_cos=ANGLES.cos(), rotary_sin=ANGLES.sin(), positions=positions))
    assert f"must be from 0 to 29, the rows of rotary_cos, but positions[1, 3] is {wrong}. {way_out}" in text
    norm_rotary(Q[:0], K[:0], rotary_cos=ANGLES.cos(), rotary_sin=ANGLES.sin(), positions=positions[:0])


def flops(call):
    with FlopCounterMode(display=False) as counted, torch.no_grad(): call()
    return counted.get_total_flops()


PAIR = 4 * 4 * 64  # of a query and a key, in all heads


@pytest.mark.parametrize("call, wanted", [
    (lambda: attention(Q, K, V, return_max_logit=True), 2 * 30 * 30),
    (lambda: attention(Q, K, V, return_max_logit=True, out=torch.empty_like(Q)), 2 * 30 * 30),
    (lambda: attention(Q, K, V, gate=Q, out=torch.empty_like(Q)), 2 * 30 * 30),
    (lambda: paged_attention(Q, *POOL, TABLE), 2 * 30 * 60),
    (lambda: attention(Q, *POOL, block_table=TABLE, seqused_kv=USED + 40), 2 * 30 * 40),
    (lambda: paged_attention(Q, *POOL, TABLE, seqused_kv=USED + 40, out=torch.empty_like(Q)), 2 * 30 * 40),
    (lambda: paged_attention(Q.flatten(0, 1), *POOL, TABLE, seqused_kv=ENDS[1:], max_seqlen_q=50,
                             cu_seqlens_q=torch.tensor([0, 10, 60], dtype=torch.int32)), 10 * 30 + 50 * 60),
    (lambda: fa.flash_attn_with_kvcache(Q, *POOL, page_table=TABLE, cache_seqlens=USED + 40), 2 * 30 * 40)])
def test_flops(call, wanted): assert flops(call) == wanted * PAIR


def test_flops_of_gradients_beside_the_largest_score():
    leaf = Q.clone().requires_grad_()
    o, largest = attention(leaf, K, V, return_max_logit=True)
    with FlopCounterMode(display=False) as counted: o.sum().backward()
    assert counted.get_total_flops() == 2 * 30 * 30 * PAIR * 5 // 2


def test_torch_func():
    """quantise has no memory to read there, and calls that write have none to write to."""
    examples = torch.stack((Q, Q / 2))
    found = torch.func.vmap(lambda x: attention(**quantise(x, x, x)._asdict()))(examples)
    for o, x in zip(found, examples): assert torch.equal(o, attention(**quantise(x, x, x)._asdict()))

    def mapped(call): return said(lambda: torch.func.vmap(lambda x: call(x, torch.empty_like(x)))(Q[None]))
    held = torch.zeros(2, 30, 4, 64), torch.full((2, 4, 30), -torch.inf)
    for name, call in (("out", lambda x, out: attention(x, x, x, out=out)),
                       ("out", lambda x, out: paged_attention(x, *POOL, TABLE, out=out)),
                       ("accumulate", lambda x, out: attention(x, x, x, accumulate=held)),
                       ("append_kv", lambda x, out: append_kv(x, x, *[torch.zeros(2, 30, 4, 64)] * 2))):
        assert mapped(call).startswith(name) and "under a transform of torch.func" in mapped(call)
    assert "append_kv" in said(lambda: torch.func.grad(lambda x: append_kv(x, x, *[torch.zeros(2, 30, 4, 64)] * 2))(Q))


def test_quantise_without_memory():
    found = quantise(*(x.to("meta") for x in (Q, K, V)))
    assert [list(x.shape) for x in found] == [list(x.shape) for x in quantise(Q, K, V)]
    with FlopCounterMode(display=False): seen = quantise(Q, K, V)
    assert all(torch.equal(x.float(), y.float()) for x, y in zip(seen, quantise(Q, K, V)))


def test_explain_under_torch_func():
    told = []
    def look(x):
        told.append(explain(x, x, x, causal=True))
        return x.sum()
    torch.func.vmap(look)(Q[None])
    torch.func.grad(look)(Q)
    with torch.autocast("cpu", torch.bfloat16): torch.func.vmap(look)(Q[None])
    assert [text.split()[:3] for text in told] == [["problem", "fwd", kind] for kind in ("f32", "f32", "bf16")]
    assert ["a call adds all examples to the batch" in text for text in told] == [True, False, True]
    assert "\nproblem      bwd f32" in told[1]


def test_explain_in_compiled_code():
    def call(x): return attention(x, x, x), explain(x, x, x)
    with pytest.raises(Exception, match="explain is called in code that torch.compile traces"):
        torch.compile(call, backend="eager", fullgraph=True)(Q)
    torch._dynamo.reset()
    o, text = torch.compile(call, backend="eager")(Q)
    assert text == explain(Q, Q, Q) and torch.equal(o, attention(Q, Q, Q))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_rows_for_a_cache_of_bytes(dtype):
    """A cast of new rows to such a type loses their numbers."""
    k, caches = K[:, :3], empty_caches(torch.uint8)
    bytes_of = [x.view(dtype) for x in caches]
    text = said(lambda: append_kv(k, k, *bytes_of, seqused_kv=USED, scale_k=1, scale_v=1))
    append_kv(k, k, way(text, k_cache=bytes_of[0]), bytes_of[1].view(torch.float8_e4m3fn), seqused_kv=USED, scale_k=1,
              scale_v=1)
    assert torch.equal(caches[0].view(torch.float8_e4m3fn)[:, :3].float(), k.to(torch.float8_e4m3fn).float())
    text = said(lambda: fa.flash_attn_with_kvcache(Q[:, :3].bfloat16(), *bytes_of, k=k.bfloat16(), v=k.bfloat16(),
                                                   cache_seqlens=USED))
    stored = way(text, k_cache=bytes_of[0])
    assert stored.dtype == torch.float8_e4m3fn
    text = said(lambda: fa.flash_attn_with_kvcache(Q[:, :3].bfloat16(), stored, stored, k=k.bfloat16(), v=k.bfloat16(),
                                                   cache_seqlens=USED))
    assert "Use k.to(k_cache.dtype) and v.to(v_cache.dtype), after a division by their descales." in text


def test_rows_for_a_cache_of_another_type():
    k = K[:, :3]
    assert way(said(lambda: append_kv(k, k, *empty_caches(torch.float16))), k=k, k_cache=empty_caches(torch.float16)[0]
               ).dtype == torch.float16
    assert "Use a cache of one of these types." in said(lambda: append_kv(k, k, *empty_caches(torch.int32)))
    arrays = [x.numpy() for x in (k, k, *empty_caches(torch.float16))]
    found = way(said(lambda: froghopper.append_kv(*arrays)), k=arrays[0], k_cache=arrays[2])
    froghopper.append_kv(found, found, *arrays[2:])
    assert np.array_equal(arrays[2][:, :3], found)
    small = [x.numpy() for x in empty_caches(torch.int8)]
    text = said(lambda: froghopper.append_kv(k.numpy(), k.numpy(), *small))
    small[0] = way(text, k_cache=small[0])
    froghopper.append_kv(k.numpy(), None, small[0], None, dtype="float8_e4m3fn", scale_k=1)
    assert np.array_equal(small[0][:, :3], k.to(torch.float8_e4m3fn).view(torch.uint8).numpy())


def test_new_rows_in_front_of_the_cache():
    """As append_kv has them."""
    new, caches = (K[:, :1], V[:, :1]), empty_caches()
    text = said(lambda: fa.flash_attn_with_kvcache(Q[:, :1], *new, *caches, cache_seqlens=USED))
    assert "Use a longer cache, or fewer new rows; if k is the cache, give k_cache and v_cache first, then k" in text
    found = fa.flash_attn_with_kvcache(Q[:, :1], *caches, *new, cache_seqlens=USED, causal=True)
    torch.testing.assert_close(found, attention(Q[:, :1], *new))


def test_short_names_of_types():
    arrays = [x.numpy() for x in (Q, K, V)]
    small = froghopper.quantise(*arrays)
    as_bytes = small._replace(**{name: getattr(small, name).view(np.uint8) for name in "qkv"})._asdict()
    wanted = froghopper.attention(**as_bytes, dtype="float8_e4m3fn", out_dtype="float32")
    assert np.array_equal(froghopper.attention(**as_bytes, dtype="e4m3", out_dtype="f32"), wanted)
    stored = [np.zeros((2, 30, 2, 64), np.uint8) for _ in range(4)]
    for caches, dtype in ((stored[:2], "e4m3"), (stored[2:], "float8_e4m3fn")):
        froghopper.append_kv(*arrays[1:], *caches, dtype=dtype, scale_k=1, scale_v=1)
    assert np.array_equal(stored[0], stored[2]) and stored[0].any()
    text = said(lambda: attention(**quantise(Q, K, V)._asdict(), out_dtype="bf16"))
    assert way(text) is torch.bfloat16
    assert "Use torch.float32, or another." in said(lambda: attention(Q, K, V, out_dtype="dtype"))
    if torch.distributed.is_available():
        from froghopper import _torch_cp_8_bit
        assert _torch_cp_8_bit.name_of_type("e5m2") == "float8_e5m2"


def test_a_type_that_says_nothing():
    """NumPy's dtype= tells what uint8 holds."""
    assert "dtype must be None where k is float32" in said(
        lambda: froghopper.attention(*(x.numpy() for x in (Q, K, V)), dtype=np.float16))


def test_quantise_without_q():
    for call in (lambda *x: quantise(*x), lambda *x: froghopper.quantise(*(y if y is None else y.numpy() for y in x))):
        text = said(lambda: call(None, K, V))
        assert "q must be given, as q, k and v are quantised together here" in text
        assert "Give v." in said(lambda: call(Q, K, None))
        assert "quantise(k, k, v, rotate=False), its k and v" in text
    of = quantise(K, K, V, rotate=False)
    torch.testing.assert_close(attention(Q.bfloat16(), of.k, of.v, scale_k=of.scale_k, scale_v=of.scale_v).float(),
                               attention(Q, K, V), atol=0.15, rtol=0.1)
    jax = pytest.importorskip("froghopper.jax", reason="JAX is not installed")
    assert "quantised together" in said(lambda: jax.quantise(None, K.numpy(), V.numpy()))


def test_complex_rotary_tables():
    """e^(i angle), as models of Meta have them. A cast would lose the imaginary part."""
    table, caches = torch.polar(torch.ones(30, 32), ANGLES), empty_caches()
    text = said(lambda: append_kv(K, V, *caches, rotary_cos=table, rotary_sin=table))
    cos, sin = way(text, rotary_cos=table), way(text.partition(" and ")[2].join(("Use ", "")), rotary_cos=table)
    append_kv(K, V, *caches, rotary_cos=cos, rotary_sin=sin)
    rotated = norm_rotary(Q, K, rotary_cos=ANGLES.cos(), rotary_sin=ANGLES.sin())[1]
    torch.testing.assert_close(caches[0], rotated)
    assert "rotary_cos.imag" in said(lambda: norm_rotary(Q, K, rotary_cos=table, rotary_sin=table))
    arrays = [x.numpy() for x in (K, V, *empty_caches())]
    text = said(lambda: froghopper.append_kv(*arrays, rotary_cos=table.numpy(), rotary_sin=table.numpy()))
    assert np.array_equal(way(text, rotary_cos=table.numpy()), cos.numpy())
    text = said(lambda: append_kv(K, V, *caches, rotary_cos=cos.double(), rotary_sin=sin.double()))
    assert "rotary_cos must be float32, as k is, but is float64. Convert it to float32." in text
    assert "real and its imaginary part" in said(lambda: append_kv(K, V, *caches, freqs_cis=table))


def test_packed_rows_behind_heads():
    q, k, v = (x.flatten(0, 1) for x in (Q, K, V))
    turned, ends = [x.transpose(0, 1) for x in (q, k, v)], dict(cu_seqlens_q=ENDS, cu_seqlens_kv=ENDS)
    for text in (said(lambda: attention(*turned, **ends)), said(lambda: froghopper.attention(
            *(x.contiguous().numpy() for x in turned), cu_seqlens_q=[0, 30, 60], cu_seqlens_kv=[0, 30, 60]))):
        assert torch.equal(way(text.partition("Or, if q is [heads, total, dim], ")[2], q=turned[0]), q)
    assert "Or, if" not in said(lambda: attention(q, k, v, cu_seqlens_q=ENDS + (ENDS > 30), cu_seqlens_kv=ENDS))


def test_v_alone_with_heads_before_rows():
    for q, k, v in ((Q, K, V), (Q.flatten(0, 1), K.flatten(0, 1), V.flatten(0, 1))):
        ends = {} if q.ndim == 4 else dict(cu_seqlens_q=ENDS, cu_seqlens_kv=ENDS)
        turned = v.transpose(-3, -2)
        assert torch.equal(way(said(lambda: attention(q, k, turned, **ends)), v=turned), v)
    assert "Give both equally many rows" in said(lambda: attention(Q, K, V[:, :9]))


def test_a_pool_of_slots_and_one_of_both():
    def call(k, v): return paged_attention(Q, k, v, TABLE)
    wanted = call(*POOL)
    slots = [x.flatten(0, 1) for x in POOL]
    found = [way(said(lambda: call(*slots)), k=x, page_size=30) for x in slots]
    assert torch.equal(call(*found), wanted)
    for at in (0, 1):
        both = torch.stack(POOL, at)
        text = said(lambda: call(both, both))
        assert torch.equal(way(text, k=both), POOL[0]) and f"k[{':, ' * at}1] as v" in text
    assert "where K and V are in one tensor give both" in said(lambda: paged_attention(Q, both, TABLE))


def test_one_row_without_its_axis():
    q = Q[:, 0]
    text = said(lambda: attention(q, K, V))
    assert "q[None] for one sequence or q[:, None] for one row of each" in text
    assert torch.equal(attention(q[:, None], K, V), attention(Q[:, :1], K, V))


def test_nested_tensors():
    """Said once for k and v, which have the same ends."""
    parts = [[x[0], x[1, :9]] for x in (Q, K, V)]
    jagged = [torch.nested.nested_tensor(part, layout=torch.jagged) for part in parts]
    text = said(lambda: attention(*jagged))
    assert "Use q.values(), k.values() and v.values(), with q.offsets().int() as cu_seqlens_q and " in text
    assert text.count("cu_seqlens_kv") == 1 and text.count("froghopper.torch.attention") == 1
    found = attention(*(x.values() for x in jagged), cu_seqlens_q=jagged[0].offsets().int(),
                      cu_seqlens_kv=jagged[1].offsets().int())
    torch.testing.assert_close(found[30:], attention(*(part[1][None] for part in parts))[0])
    older = [torch.nested.nested_tensor(part) for part in parts]
    assert said(lambda: attention(*older)).count("the ends of the parts as cu_seqlens_q and cu_seqlens_kv") == 1
    assert said(lambda: attention(older[0], K, V)).count("cu_seqlens") == 1


def test_a_proxy():
    with pytest.raises(TypeError, match="of torch.fx.symbolic_trace, which knows no values; use torch.export.export"):
        torch.fx.symbolic_trace(lambda x: attention(x, x, x))


def under(function): return lambda **words: function(Q, K, V, **words)


FUNCTIONS = {"attention": under(attention), "flash": under(fa.flash_attn_func), "parallel": under(
    context_parallel.attention), "sdpa": under(scaled_dot_product_attention), "quantise": under(quantise),
    "pages": lambda **words: paged_attention(Q, *POOL, TABLE, **words), "rotary": lambda **words: norm_rotary(
        Q, K, **words), "decode": under(context_parallel.decode),
    "append": lambda **words: append_kv(K, V, K.clone(), V.clone(), **words),
    "numpy": lambda **words: froghopper.attention(*(x.numpy() for x in (Q, K, V)), **words),
    "backward": lambda **words: froghopper.attention_backward(*[Q.numpy()] * 6, **words)}
ALL = ("attention", "flash", "parallel", "pages", "numpy")
MOST = ("attention", "pages", "numpy")


@pytest.mark.parametrize("functions, word, says", [
    (ALL, "attn_dropout", "not dropped here"), (ALL, "attn_logit_softcapping", "Did you mean softcap[?]"),
    (ALL, "logit_softcapping", "Did you mean softcap"), (ALL, "window_size_left", "Did you mean window(_size)?[?]"),
    (ALL, "custom_mask", "no masks of numbers"), (ALL, "atten_mask", "no masks of numbers"),
    (ALL, "position_bias", "no bias here"), (ALL, "rope_scale", "norm_rotary"), (ALL, "cos", "norm_rotary"),
    (ALL, "num_kv_heads", "shapes of q, k and v"), (ALL, "is_training", "same in training"),
    (ALL, "kernel_options", "device of q"), (ALL, "norm_factor", "1 / norm_factor"), (ALL, "slot_mapping", "append_kv"),
    (ALL, "scale_value", "Did you mean (softmax_)?scale[?]"), (ALL, "qk_scale", "Did you mean (softmax_)?scale[?]"),
    (ALL, "kv", r"k, v = kv.unbind\(-3\)"), (ALL, "head_first", r"x.transpose\(1, 2\)"),
    (("attention", "flash", "numpy"), "chunk_size", "Did you mean attention_chunk"),
    (MOST, "q_scale", "Did you mean scale_q[?]"), (MOST, "num_threads", "Did you mean max_sms"),
    (MOST, "kv_len", "Did you mean seqused_kv[?]"), (MOST, "kv_seq_lens", "Did you mean seqused_kv[?]"),
    (MOST, "q_len", "Did you mean seqused_q[?]"), (MOST, "lengths", "Did you mean seqused_kv"),
    (MOST, "lse", "Did you mean return_lse"), (("flash",), "return_softmax", "Did you mean return_attn_probs"),
    (("attention", "numpy"), "max_s", "Did you mean max_seqlen_q or max_seqlen_kv[?]"),
    (("attention", "numpy"), "cumulative_sequence_length", "Did you mean cu_seqlens_q or cu_seqlens_kv"),
    (("parallel", "decode"), "device_mesh", "Did you mean group"),
    (("parallel",), "load_balance", "Did you mean layout"),
    (("quantise",), "causal", "attends to nothing"), (("rotary",), "cu_seqlens", "positions says where"),
    (("decode",), "causal", "every key of all parts"), (("backward",), "scale_k", "gradients are computed of float16"),
    (("backward",), "return_lse", "options of the forward call")])
def test_words(functions, word, says):
    """No list has them all: their parts say what they are about."""
    for name in functions:
        text = said(lambda: FUNCTIONS[name](**{word: [3]}))
        assert re.search(says, text), (name, text)


@pytest.mark.parametrize("word", ["rng_state", "attn_type", "name"])
def test_words_that_say_nothing(word): assert "Did you mean" not in said(lambda: attention(Q, K, V, **{word: 3}))


def test_the_forward_pass_is_deterministic():
    """Where a function has no such option, since its bits are the same in any case."""
    assert np.array_equal(FUNCTIONS["numpy"](deterministic=True), FUNCTIONS["numpy"]())
    assert torch.equal(FUNCTIONS["pages"](deterministic=True), FUNCTIONS["pages"]())


def test_jax():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    from froghopper import jax as here
    q, k, v = (jax.numpy.asarray(x.numpy()) for x in (Q, K, V))
    with pytest.raises(TypeError, match="an array that JAX traces. Name it .* or multiply q by it, with scale=1[.]"):
        jax.jit(lambda s: here.attention(q, k, v, scale=s))(0.1)
    scaled = jax.jit(lambda s: here.attention(q * s, k, v, scale=1))(0.1)
    assert np.allclose(scaled, here.attention(q, k, v, scale=0.1), atol=1e-5)
    for name in ("ring", None):
        text = said(lambda: here.context_parallel.attention(q, q, q, axis_name=name, causal=True))
        assert "axis_name must be an axis of a jax.shard_map around the call" in text
    with pytest.raises(AttributeError, match="'paged_attention'. Use attention with block_table"): here.paged_attention
    told = []
    jax.vmap(lambda x: (told.append(here.explain(x, x, x)), x)[1])(q[None])
    assert "a call adds all examples to the batch" in told[0] and "adds" not in here.explain(q, k, v)


def one_of_two(rank, file):
    compare_parts(rank, file)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # without gloo's tear-down


def compare_parts(rank, file):
    import torch.distributed as dist
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    whole = attention(Q, K, V, causal=True, return_lse=True, return_max_logit=True)
    for cut in (Shard(0), Shard(2), Replicate()):
        parts = [distribute_tensor(x, mesh, [cut]) for x in (Q, K, V)]
        found = attention(*parts, causal=True, return_lse=True, return_max_logit=True)
        for x, y in zip(found, whole): torch.testing.assert_close(x.full_tensor(), y)
        for options in ({}, dict(smooth=True), dict(scale_rows=0)):
            small, wanted = quantise(*parts, **options), quantise(Q, K, V, **options)
            assert small.k.placements == small.scale_k.placements == (cut,)
            for x, y in zip(small, wanted):
                assert torch.equal(x.to_local().float(), distribute_tensor(y.float(), mesh, [cut]).to_local())
            o = attention(**small._asdict(), causal=True).full_tensor()
            torch.testing.assert_close(o, attention(**wanted._asdict(), causal=True))
        assert "a rank computes the part that it has" in explain(*parts)
        for call in (lambda: paged_attention(*parts, TABLE[:, :1]), lambda: append_kv(*parts[1:], *parts[1:])):
            assert "is a DTensor, of which each rank has a part" in said(call)
    rows = [x[:, 15 * rank:15 * rank + 15].contiguous() for x in (Q, K, V)]
    documents = [x[:1] for x in rows]
    for call, pairs in ((lambda: context_parallel.attention(*rows, layout="contiguous"), 2 * 15 * 30),
                        (lambda: context_parallel.attention(*documents, cu_seqlens=[0, 10, 30]), (100 + 400) // 2),
                        (lambda: context_parallel.decode(Q[:, :1], *rows[1:]), 2 * 15),
                        (lambda: context_parallel.decode(Q[:, :1], *rows[1:], seqused_kv=USED + 7), 2 * 7)):
        assert flops(call) == pairs * PAIR, (flops(call), pairs * PAIR)
    leaf = rows[0].clone().requires_grad_()
    o = context_parallel.attention(leaf, *rows[1:], layout="contiguous")
    with FlopCounterMode(display=False) as counted: o.sum().backward()
    assert counted.get_total_flops() == 2 * 15 * 30 * PAIR * 5 // 2


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
def test_two_processes(tmp_path):
    pytest.importorskip("torch.distributed.tensor", reason="this PyTorch has no DTensor")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.multiprocessing.spawn(one_of_two, (str(tmp_path / "meeting"),), nprocs=2)
