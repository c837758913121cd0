# SPDX-License-Identifier: Apache-2.0
"""Mistakes of those who come from another library, and the way out that the message names: followed to the letter it
gives the right numbers. What could not be known from the call is said as a condition."""
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import froghopper

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch_cases import drawn, qkv  # noqa: E402
from ways import said, way  # noqa: E402

from froghopper import flash_attn_interface as fa  # noqa: E402
from froghopper.torch import (append_kv, attention, context_parallel, explain, norm_rotary,  # noqa: E402
                              paged_attention, quantise, scaled_dot_product_attention)

Q, K, V = qkv(2, 30, 4, 64, kv=(2, 30, 2, 64))
TABLE = torch.tensor([[0], [1]], dtype=torch.int32)
USED = torch.zeros(2, dtype=torch.int32)
ENDS = torch.tensor([0, 30, 60], dtype=torch.int32)


@pytest.mark.parametrize("call", [lambda q, k, **words: attention(q, k, k, **words),
                                  lambda q, k, **words: paged_attention(q, k, k, TABLE, **words),
                                  lambda q, k, **words: fa.flash_attn_with_kvcache(q, k, k, **words)])
def test_a_cache_of_bytes(call):
    """vLLM's fp8 caches are uint8. A cast would take each byte for a number."""
    q, stored = Q.bfloat16(), K.to(torch.float8_e4m3fn)
    text = said(lambda: call(q, stored.view(torch.uint8)))
    found = way(text, k=stored.view(torch.uint8), k_cache=stored.view(torch.uint8))
    assert found.dtype == torch.float8_e4m3fn and torch.equal(found.float(), stored.float())
    names = ("k_descale", "v_descale") if "with k_descale" in text else ("scale_k", "scale_v")
    torch.testing.assert_close(call(q, found, **{name: torch.ones(2, 2) for name in names}),
                               attention(q, *[stored.to(torch.bfloat16)] * 2), atol=0.02, rtol=0.02)


def test_a_cache_of_bytes_in_numpy_and_jax():
    stored = torch.zeros(2, 30, 2, 64, dtype=torch.uint8).numpy()
    assert "use k.view(ml_dtypes.float8_e4m3fn)" in said(lambda: froghopper.attention(Q.numpy(), stored, stored))
    jax = pytest.importorskip("froghopper.jax", reason="JAX is not installed")
    assert 'use k.view("float8_e4m3fn")' in said(lambda: jax.attention(Q.numpy(), stored, stored))


@pytest.mark.parametrize("packed", [False, True])
def test_lse_of_attention_in_flash_attn_combine(packed):
    """It has heads before rows. A reshape would put numbers into other rows."""
    q, k, v = (x[0] if packed else x for x in (Q, K, V))

    def ends(n):
        return dict(cu_seqlens_q=ENDS[:2], cu_seqlens_kv=torch.tensor([0, n], dtype=torch.int32)) if packed else {}
    axis = 0 if packed else 1
    parts = [attention(q, x, y, **ends(15), return_lse=True)
             for x, y in zip(k.split(15, axis), v.split(15, axis))]
    out, lse = (torch.stack(each) for each in zip(*parts))
    text = said(lambda: fa.flash_attn_combine(out, lse))
    found = fa.flash_attn_combine(out, way(text, lse_partial=lse))[0]
    torch.testing.assert_close(found, attention(q, k, v, **ends(30)))
    assert "Give lse_partial the shape [2, " in said(lambda: fa.flash_attn_combine(out, lse[..., :7]))
    assert "Use torch.stack(out_partial)" in said(lambda: fa.flash_attn_combine([*out], [*lse]))


def test_packed_rows_with_a_batch_of_1():
    q, k, v = (x.flatten(0, 1) for x in (Q, K, V))
    ends = dict(cu_seqlens_q=ENDS, cu_seqlens_kv=ENDS)
    assert torch.equal(way(said(lambda: attention(q[None], k[None], v[None], **ends)), q=q[None]), q)
    assert "Use [0] for no sequence" in said(lambda: attention(q, k, v, cu_seqlens_q=ENDS[:0], cu_seqlens_kv=ENDS[:0],
                                                               max_seqlen_q=1, max_seqlen_kv=1))


@pytest.mark.parametrize("word", ["qkv_format", "layout"])
def test_rows_before_sequences(word):
    """The default of Megatron and Transformer Engine."""
    assert 'x.transpose(0, 1) for rows before sequences ("sbhd")' in said(lambda: attention(Q, K, V, **{word: "sbhd"}))


def test_a_mask_of_padding_as_lengths():
    mask = torch.arange(30) < torch.tensor([[12], [30]])
    wanted = attention(Q, K, V, seqused_kv=torch.tensor([12, 30], dtype=torch.int32))
    for given in (mask, mask.long()):
        text = said(lambda: attention(Q, K, V, seqused_kv=given))
        assert "If it is a mask, with padding at the end" in text
        assert torch.equal(attention(Q, K, V, seqused_kv=way(text, seqused_kv=given)), wanted)
        text = said(lambda: fa.flash_attn_with_kvcache(Q, K, V, cache_seqlens=given))
        assert way(text, cache_seqlens=given).tolist() == [12, 30]
    arrays = [x.numpy() for x in (Q, K, V)]
    found = way(said(lambda: froghopper.attention(*arrays, seqused_kv=mask.numpy())), seqused_kv=mask.numpy())
    assert np.array_equal(froghopper.attention(*arrays, seqused_kv=found), wanted.numpy())
    jax = pytest.importorskip("froghopper.jax", reason="JAX is not installed")
    assert way(said(lambda: jax.attention(*arrays, seqused_kv=mask.numpy())), seqused_kv=mask.numpy()).tolist() == [
        12, 30]


def test_tensors_of_many_numbers_as_options():
    assert "Use causal=True; a mask of numbers" in said(lambda: attention(Q, K, V, causal=torch.ones(30, 30).tril()))
    for call in (lambda x: attention(Q, K, V, scale=x), lambda x: fa.flash_attn_func(Q, K, V, softmax_scale=x)):
        assert "for a scale of each head multiply q by it" in said(lambda: call(torch.ones(4)))
    assert "item()" not in said(lambda: attention(Q, K, V, softcap=torch.ones(4)))
    assert "Use scale.item()" in said(lambda: attention(Q, K, V, scale=torch.ones(())))


def test_a_cache_with_heads_before_rows():
    k, cache = K[:, :3], torch.zeros(2, 2, 16, 64)
    text = said(lambda: append_kv(k, k, cache, cache.clone(), seqused_kv=USED))
    right = way(text, k_cache=cache)
    append_kv(k, k, right, right.clone(), seqused_kv=USED)
    assert torch.equal(cache[:, :, :3], k.swapaxes(1, 2))
    assert "the new rows first" in said(lambda: append_kv(K, K, k.clone(), k.clone(), seqused_kv=USED))


@pytest.mark.parametrize("shape", [(1, 30, 64), (30, 64)])
@pytest.mark.parametrize("numpy", [False, True])
def test_rotary_tables_of_transformers(shape, numpy):
    angles = torch.arange(30.)[:, None] * torch.arange(1, 33) / 40
    cos, sin = (torch.cat((x, x), -1).reshape(shape) for x in (angles.cos(), angles.sin()))
    k = K[:, :3]

    def written(cos, sin):
        caches = [torch.zeros(2, 30, 2, 64) for _ in range(2)]
        of = [x.numpy() if numpy else x for x in (k, k, *caches)]
        if numpy: froghopper.append_kv(*of, rotary_cos=cos.numpy(), rotary_sin=sin.numpy(), seqused_kv=[0, 0])
        else: append_kv(*of, rotary_cos=cos, rotary_sin=sin, seqused_kv=USED)
        return caches[0]
    found = way(said(lambda: written(cos, sin)), rotary_cos=cos)
    assert torch.equal(found, angles.cos())
    rotated = written(found, angles.sin())[:, :3]
    x, y = k.chunk(2, -1)
    c, s = angles.cos()[:3, None], angles.sin()[:3, None]
    torch.testing.assert_close(rotated, torch.cat((x * c - y * s, y * c + x * s), -1))
    assert torch.equal(way(said(lambda: norm_rotary(Q, K, rotary_cos=cos, rotary_sin=sin)), rotary_cos=cos), found)


def test_positions_of_one_sequence_for_all():
    tables = dict(rotary_cos=torch.ones(60, 32), rotary_sin=torch.zeros(60, 32))
    for given in (torch.arange(30), torch.arange(30).int()[None], torch.arange(60).int(), torch.zeros(2, 30).int()):
        text = said(lambda: norm_rotary(Q, K, **tables, positions=given))
        norm_rotary(Q, K, **tables, positions=way(text, positions=given))
    assert "Give 60 numbers" in said(lambda: norm_rotary(Q, K, **tables, positions=torch.arange(7)))


@pytest.mark.parametrize("smooth", [False, True])
def test_what_quantise_returns_without_names(smooth):
    text = said(lambda: attention(*quantise(Q, K, V, smooth=smooth)))
    assert "use attention(**quantise(q, k, v)._asdict())" in text and "mask" not in text
    assert "For a mask use" in said(lambda: attention(Q, K, V, Q))


def test_other_types_of_8_bits():
    given = [x.to(torch.float8_e4m3fnuz) for x in (Q, K, V)]
    text = said(lambda: attention(*given, scale_q=1, scale_k=1, scale_v=1))
    assert "float8_e4m3fn or float8_e5m2 where scale_q is given, but are float8_e4m3fnuz. Multiply them" in text


def test_lists_of_tensors():
    text = said(lambda: attention([*Q], [*K], [*V]))
    assert torch.equal(way(text.replace(", or", " and "), q=[*Q]), Q) and "torch.cat(q) with cu_seqlens" in text
    assert "torch.as_tensor(sink)" in said(lambda: attention(Q, K, V, sink=[0.0] * 4))


def test_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        out = torch.empty_like(Q)
        fits = way(said(lambda: attention(Q, K, V, out=out)), q=Q)
        assert attention(Q, K, V, out=fits) is fits
        assert explain(Q, K, V).startswith("problem      fwd bf16 ")
        assert explain(Q.bfloat16(), K, V).startswith("problem      fwd bf16 ")
        assert "kernel     fwd.bf16" in explain(Q, K, V, target="h200")
        assert "\nproblem      bwd bf16 " in explain(Q, K, V.clone().requires_grad_())
        assert explain(Q, K, V, block_table=TABLE).startswith("problem      fwd f32 ")  # as paged_attention has it
        assert explain(Q.double(), K, V).startswith("not computed q must be ")
    assert explain(Q, K, V).startswith("problem      fwd f32 ")


def test_explain_of_pytorch():
    assert "no argument gradients. It shows the backward pass" in explain(Q, K, V, gradients=True)
    told = explain(Q, K, V, target="hopper")
    assert "tensors on the CPU" not in told


def under(function): return lambda **words: function(Q, K, V, **words)


FUNCTIONS = {"attention": under(attention), "flash": under(fa.flash_attn_func), "parallel": under(
    context_parallel.attention), "sdpa": under(scaled_dot_product_attention),
    "pages": lambda **words: paged_attention(Q, K, V, TABLE, **words),
    "append": lambda **words: append_kv(K, V, K.clone(), V.clone(), **words),
    "numpy": lambda **words: froghopper.attention(*(x.numpy() for x in (Q, K, V)), **words)}
MOST = ("attention", "flash", "parallel", "pages", "numpy")  # a mask is theirs to choose


@pytest.mark.parametrize("functions, word, says", [
    (MOST, "scale_factor", "Did you mean (softmax_)?scale[?]"), (MOST, "temperature", r"1 / \(temperature \* sqrt"),
    (MOST, "attn_bias", "Use causal=True for one that is a causal mask"), (MOST, "p", "p of .* must be 0"),
    (MOST, "core_attention_bias_type", "Use causal=True"), (MOST, "query_layer", "Did you mean q|Use q"),
    (MOST, "attn_mask_type", "Did you mean causal[?].*last ones"),
    (("sdpa",), "attn_mask_type", "Did you mean is_causal[?].*first key"),
    (MOST, "need_weights", "never there as a whole"), (MOST, "output_attentions", "never there as a whole"),
    (MOST, "past_key_values", "append_kv for new rows"), (MOST, "use_cache", "append_kv for new rows"),
    (MOST, "position_ids", "norm_rotary"), (MOST, "rotary_cos", "norm_rotary"), (MOST, "page_size", "the pool says it"),
    (MOST, "num_key_value_groups", "heads_q / heads_kv"), (MOST, "q_offset", "causal aligns the last query"),
    (MOST, "start_pos", "causal aligns the last query"), (MOST, "smooth_k", "smooth=True"),
    (MOST, "backend", "device of q"), (MOST, "precision", "float32"),
    (MOST, "checkpoint_core_attention", "backward pass"),
    (("attention", "pages"), "kv_indptr", "Did you mean block_table[?].*row of pages"),
    (("attention", "pages"), "kv_last_page_len", "Did you mean block_table"), (("pages",), "qo_indptr", "cu_seqlens_q"),
    (("pages", "append"), "kv_cache_dtype", r"the cache says it.*view\(torch.float8_e4m3fn\)"),
    (("attention", "pages", "append", "numpy"), "cache_position", "Did you mean seqused_kv"),
    (("parallel",), "process_group", "Did you mean group"), (("parallel",), "attention_chunk", "on one device"),
    (("parallel",), "seqused_kv", "on one device")])
def test_words(functions, word, says):
    for name in functions:
        text = said(lambda: FUNCTIONS[name](**{word: [3]}))
        assert re.search(says, text), text
        assert name in ("parallel",) or ". It has " not in text


def test_a_key_of_dropout_without_dropout():
    assert torch.equal(attention(Q, K, V, dropout_rng=3, dropout_rate=0.0), attention(Q, K, V))


OPEN = {"attention": lambda s: attention(Q, K, V, scale=s), "softcap": lambda s: attention(Q, K, V, softcap=s),
        "gate": lambda s: attention(Q, K, V, scale=s, gate=Q), "flash": lambda s: fa.flash_attn_func(
            Q, K, V, softmax_scale=s), "pages": lambda s: paged_attention(Q, K, V, TABLE, scale=s),
        "sdpa": lambda s: scaled_dot_product_attention(Q, K, V, scale=s, enable_gqa=True)}


@pytest.mark.skipif(not hasattr(torch.fx.experimental.symbolic_shapes, "guard_or_false"), reason="PyTorch is older")
@pytest.mark.parametrize("name", OPEN)
def test_a_number_that_is_read_in_compiled_code(name):
    """An operator takes numbers that are known when it is traced; a scale goes to q otherwise."""
    call = OPEN[name]
    compiled = torch.compile(lambda x: call(x.item()), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="must be known where torch.compile traces") as told: compiled(torch.tensor(0.1))
    if name != "softcap": assert "Multiply q by it, and give scale=1" in str(told.value)
    if name == "sdpa": return  # its axes are others
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: call(x), backend="eager", fullgraph=True)
    for number in (0.1, 0.2, 0.3): assert torch.equal(compiled(number), call(number))


def test_names_that_are_elsewhere():
    for module, name, use in ((froghopper, "paged_attention", "froghopper.torch.paged_attention"),
                              (froghopper.torch, "flash_attn_func", "froghopper.flash_attn_interface.flash_attn_func"),
                              (froghopper.torch, "varlen_attention", "attention with cu_seqlens_q")):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'. Use {use}"): getattr(module, name)


SUBMODULES = """
import sys
import froghopper.torch
home = "froghopper._torch_context_parallel"
for module in [*sys.modules.values()]: hasattr(module, "__file__")
assert home not in sys.modules
from froghopper.torch.context_parallel import attention, shard
import froghopper.torch.context_parallel as cp
assert cp.attention is attention and cp is froghopper.torch.context_parallel and home in sys.modules
import os, torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
q = torch.ones(1, 8, 2, 64)
for call in (lambda: torch.func.grad(lambda x: attention(x, q, q).sum())(q),
             lambda: attention(q, q, q, scheme="ulysses")):
    try: call()
    except froghopper.Error as error: print(error)
assert torch.equal(torch.func.vmap(lambda x: attention(x, x, x))(q[None])[0], attention(q, q, q))
"""


def test_context_parallel_as_a_module():
    """Also what only a group shows."""
    if not torch.distributed.is_available(): pytest.skip("this PyTorch has no torch.distributed")
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", SUBMODULES], capture_output=True, text=True,
                           env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    assert found.returncode == 0, found.stderr
    assert "gradients of autograd alone. Use requires_grad_()" in found.stdout
    assert "but is 'ulysses'. Use \"all_to_all\"." in found.stdout


def test_types_by_the_names_of_problems():
    for name, dtype in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
        assert all(torch.equal(a.float(), b.float()) for a, b in zip(quantise(Q, K, V, dtype=name),
                                                                     quantise(Q, K, V, dtype=dtype)))
        small = froghopper.quantise(Q.numpy(), K.numpy(), V.numpy(), dtype=name)[0]
        assert np.array_equal(small.view(np.uint8), quantise(Q, K, V, dtype=dtype).q.view(torch.uint8).numpy())
    jax = pytest.importorskip("froghopper.jax", reason="JAX is not installed")
    assert jax.quantise(Q.numpy(), K.numpy(), V.numpy(), dtype="e5m2").q.dtype.name == "float8_e5m2"
