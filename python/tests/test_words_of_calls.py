# SPDX-License-Identifier: Apache-2.0
"""Calls with a mistake: each message names what the caller wrote, and a way out that works."""
import re

import numpy as np
import pytest

import froghopper
from froghopper import _parallel

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch_cases import qkv  # noqa: E402
from ways import said  # noqa: E402

from froghopper import flash_attn_interface as fa  # noqa: E402
from froghopper.torch import (attention, explain, paged_attention, quantise,  # noqa: E402
                              scaled_dot_product_attention)

Q, K, V = qkv(2, 30, 4, 64, kv=(2, 30, 2, 64))
TABLE = torch.arange(4, dtype=torch.int32).view(2, 2)
POOL = torch.cat((K, V)), torch.cat((V, K))  # 4 pages of 30 rows
ENDS = torch.tensor([0, 30, 60], dtype=torch.int32)
FLAT = [x.flatten(0, 1) for x in (Q, K, V)]
PACKED = dict(cu_seqlens_q=ENDS, cu_seqlens_k=ENDS, max_seqlen_q=30, max_seqlen_k=30)


@pytest.mark.parametrize("wrong, found", [(True, "a bool"), (3, "an int"), (Q, "a Tensor"), (object(), "an object"),
                                          ((), "of 0"), ((Q,), "of 1")])
def test_accumulate_that_is_no_pair(wrong, found):
    held = ["o, lse", "o, lse, max_logit"]
    for largest in (False, True):
        for given in (dict(q=Q, k=K, v=V), quantise(Q, K, V)._asdict()):
            text = said(lambda: attention(**given, accumulate=wrong, return_max_logit=largest))
            assert text.startswith(f"accumulate must be ({held[largest]}) of earlier calls") and found in text
    assert "not computed accumulate must be (o, lse)" in explain(Q, K, V, accumulate=wrong)


def test_flags_are_named_as_they_are_written():
    for name in ("return_softmax_lse", "return_attn_probs", "return_lse"):
        text = said(lambda: fa.flash_attn_varlen_func(*FLAT, **PACKED, **{name: "yes"}))
        assert text.startswith(f"{name} must be True or False, but is 'yes'")
    text = said(lambda: fa.flash_attn_varlen_func(*FLAT, **PACKED, return_attn_probs=True, return_softmax_lse="yes"))
    assert text.startswith("return_softmax_lse must be")


SINK = torch.zeros(4)
TWICE = [
    (lambda: attention(Q, K, V, softmax_scale=0.1, sm_scale=0.1), "softmax_scale and sm_scale"),
    (lambda: attention(Q, K, V, sm_scale=0.1, scale=0.1), "scale and sm_scale"),
    (lambda: attention(Q, K, V, window_size=(1, 1), local_window_size=1), "window_size and local_window_size"),
    (lambda: attention(Q, K, V, s_aux=SINK, learnable_sink=SINK), "s_aux and learnable_sink"),
    (lambda: attention(*FLAT, cu_seqlens_q=ENDS, cu_seqlens_k=ENDS, cu_seq_lens_k=ENDS),
     "cu_seqlens_k and cu_seq_lens_k"),
    (lambda: paged_attention(Q, *POOL, page_table=TABLE, block_tables=TABLE), "page_table and block_tables"),
    (lambda: froghopper.attention(*map(np.asarray, (Q, K, V)), softmax_scale=0.1, scaling=0.1),
     "softmax_scale and scaling"),
    (lambda: fa.flash_attn_func(Q, K, V, sinks=SINK, sink=SINK), "sinks and sink"),
    (lambda: fa.flash_attn_with_kvcache(Q, *POOL, page_table=TABLE, block_table=TABLE), "page_table and block_table"),
    (lambda: fa.flash_attn_with_kvcache(Q, *POOL, page_table=TABLE, block_tables=TABLE),
     "page_table and block_tables")]


@pytest.mark.parametrize("call, words", TWICE, ids=[words for _, words in TWICE])
def test_one_argument_by_two_words(call, words):
    text = said(call)
    assert text.startswith(f"{words} are given, and ") and text.endswith("Leave out one.")


def test_weights_are_no_lse():
    for word in ("return_weights", "return_attention_weights", "return_attn_weights", "output_attentions"):
        assert "eights are never there as a whole. Use return_lse" in said(lambda: attention(Q, K, V, **{word: True}))


def test_a_cache_alone_is_quantised():
    for call in (lambda: quantise(k=K, v=V), lambda: froghopper.quantise(k=K.numpy(), v=V.numpy())):
        assert "for a cache of k and v alone use quantise(k, k, v, rotate=False)" in said(call)
    found = quantise(K, K, V, rotate=False)
    assert found.k.shape == K.shape and found.v.shape == V.shape


def test_scales_that_no_int_of_64_bits_holds():
    given = quantise(Q, K, V)._asdict()
    for name in ("scale_q", "scale_k", "scale_v"):
        for same in (2**70, torch.tensor(2.0**70)):
            assert attention(**given | {name: same}).shape == Q.shape
    given = {name: x if x is None else np.asarray(x) for name, x in froghopper.quantise(
        *(x.numpy() for x in (Q, K, V)))._asdict().items()}
    assert froghopper.attention(**given | dict(scale_k=2**70)).shape == Q.shape
    assert said(lambda: froghopper.attention(**given | dict(scale_k=2**2000))).startswith("scale_k must fit a float")


def test_a_type_that_is_a_tensor_is_no_type_of_jax():
    jax = pytest.importorskip("froghopper.jax", reason="JAX is not installed")
    arrays = [x.numpy() for x in (Q, K, V)]
    assert said(lambda: jax.quantise(*arrays, dtype=Q)).startswith("dtype must be float8_e4m3fn or float8_e5m2")


def test_what_is_written_is_no_copy():
    q, k, v = (x.numpy() for x in (Q, K, V))
    told = said(lambda: froghopper.append_kv(k, v, k_cache=k.tolist(), v_cache=v))
    assert told.endswith("Keep an array, to which rows go then: k_cache = numpy.asarray(k_cache).")
    assert "asarray" not in said(lambda: froghopper.attention(q, k, v, out=[1]))


def test_axes_of_pytorchs_function():
    turned = [torch.zeros(2, rows, heads, 64) for rows, heads in ((100, 8), (80, 2), (80, 2))]
    told = said(lambda: scaled_dot_product_attention(*turned, enable_gqa=True))
    assert "which look like [batch, seq, heads, dim]. Use query.transpose(1, 2), " in told
    assert "fewer" not in told and "strides" not in told and "1, 2, 4, 5" not in told
    right = [x.transpose(1, 2) for x in turned]
    assert scaled_dot_product_attention(*right, enable_gqa=True).shape == right[0].shape
    wrong = [torch.zeros(2, heads, 50, 64) for heads in (8, 3, 3)]
    assert "strides" not in said(lambda: scaled_dot_product_attention(*wrong, enable_gqa=True))


def test_explain_says_what_a_gpu_needs():
    bfloat16 = [x.bfloat16() for x in FLAT]
    ends = dict(cu_seqlens_q=ENDS, cu_seqlens_kv=ENDS)
    told = explain(*bfloat16, **ends, target="h200")
    assert "lengths      on a GPU max_seqlen_q and max_seqlen_kv must be given" in told
    assert "Give max_seqlen_q=30, max_seqlen_kv=30." in told
    assert "on a GPU max_seqlen_q must be given" in explain(*bfloat16, **ends, max_seqlen_kv=30, target="h200")
    for fine in (dict(target="cpu"), {}, dict(target="h200", max_seqlen_q=30, max_seqlen_kv=30)):
        assert "on a GPU max_seqlen" not in explain(*bfloat16, **ends, **fine)


def test_packed_heads_that_are_not_counted():
    told = said(lambda: fa.flash_attn_qkvpacked_func(torch.zeros(2, 9, 8, 64)))
    assert told.endswith("Give five dimensions, or num_heads_q too.")


@pytest.mark.parametrize("line, wanted", [
    ("fwd f32 b1 hq4 hkv4 sq1 skv64 d64", "not computed sq must be skv, .* but sq is 1 and skv 64. .*parallel.decode"),
    ("fwd f32 b1 hq4 hkv4 sq64 skv64 d64 varlen tq64 tkv64", "not computed varlen must be left out over ranks"),
    ("bwd e4m3 b1 hq4 hkv4 sq64 skv64 d64", "op is bwd; gradients")])
def test_lines_are_answered_in_their_words(line, wanted):
    for told in (_parallel.explain(line, 4), froghopper.explain(line, "h200") if "bwd" in line else ""):
        if told: assert re.search(wanted, told) and "FH_" not in told and "->" not in told
