# SPDX-License-Identifier: Apache-2.0
"""Words of other libraries given to attention of NumPy, PyTorch and JAX, to attention to pages and to append_kv: taken
where they mean the same, else TypeError or NotImplementedError that says what to use; numbers of Python as scales."""
import pathlib

import numpy as np
import pytest

import froghopper
from froghopper._library import library


def of_numpy(): return froghopper.attention, np.asarray


def of_torch():
    torch = pytest.importorskip("torch", reason="froghopper.torch needs torch, which is not installed")
    from froghopper.torch import attention
    return attention, torch.from_numpy


def of_jax():
    jax = pytest.importorskip("jax", reason="froghopper.jax needs jax, which is not installed")
    if not (pathlib.Path(library().path).resolve().parent / "libfroghopper_xla.so").exists():
        pytest.skip("libfroghopper_xla.so is not beside the library: it was built without XLA's header")
    from froghopper.jax import attention
    return attention, lambda x: jax.device_put(x, jax.devices("cpu")[0])


FRAMEWORKS = [of_numpy, of_torch, of_jax]


def drawn(array):
    random = np.random.default_rng(3)
    return [array(random.standard_normal(shape).astype(np.float32)) for shape in
            ((2, 5, 4, 16), (2, 9, 2, 16), (2, 9, 2, 16))]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("theirs, ours", [
    (dict(softmax_scale=0.5), dict(scale=0.5)), (dict(window_size=(3, -1)), dict(window=(3, None))),
    (dict(causal=True, window_size=[3, 2]), dict(causal=True, window=(3, None))),
    (dict(local_window_size=2, align="top_left"), dict(window=(2, 2), align="top_left")),
    (dict(logits_soft_cap=5.0), dict(softcap=5.0)),
    (dict(num_splits=3, dropout_p=0.0, attn_mask=None, is_causal=False, enable_gqa=True), {})])
def test_same_meaning(framework, theirs, ours):
    attention, array = framework()
    q, k, v = drawn(array)
    found, wanted = (np.asarray(attention(q, k, v, **words)) for words in (theirs, ours))
    assert np.array_equal(found, wanted)
    assert not ours or not np.array_equal(found, np.asarray(attention(q, k, v)))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_tensors_and_results(framework):
    attention, array = framework()
    q, k, v = drawn(array)
    sinks, used = array(np.ones(4, np.float32)), array(np.array([3, 9], np.int32))
    found = attention(q, k, v, sinks=sinks, seqused_k=used, return_softmax_lse=True)
    wanted = attention(q, k, v, sink=sinks, seqused_kv=used, return_lse=True)
    for a, b in zip(found, wanted, strict=True): assert np.array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("word, value, kind, says", [
    ("is_causal", True, TypeError, "has no argument is_causal.*Use causal=True.*top_left"),
    ("q_descale", 2.0, TypeError, "Use scale_q"), ("quantize", True, NotImplementedError, "does not quantise"),
    ("dropout_p", 0.5, NotImplementedError, "Use dropout_p=0.0"),
    ("attn_mask", [1], NotImplementedError, "Use causal or a window"),
    ("block_table", [1], NotImplementedError, "paged_attention, .*. Use one of them, or gather"),
    ("sm_margin", 8, NotImplementedError, "Use max_sms"),
    ("causl", True, TypeError, "has no argument causl. Did you mean causal"),
    ("bananas", True, TypeError, "has no argument bananas. It has accumulate, "),
    ("softmax_scale", 2.0, TypeError, "^scale and softmax_scale are given, and mean the same here. Leave")])
def test_explained(framework, word, value, kind, says):
    attention, array = framework()
    more = dict(scale=0.5) if word == "softmax_scale" else {}
    if word == "block_table" and framework is not of_numpy: kind, says = TypeError, "block_table must be .* is a list"
    with pytest.raises(kind, match=says): attention(*drawn(array), **{word: value}, **more)


@pytest.mark.parametrize("word", ["block_table", "block_tables", "page_table"])
def test_pages_where_there_are_none(word):
    """NumPy's functions, and those of q, k and v in one tensor, say who reads pages, under every name of theirs."""
    torch = pytest.importorskip("torch", reason="froghopper.torch needs torch, which is not installed")
    from froghopper import flash_attn_interface as fa
    q, k, v = drawn(np.asarray)
    o, lse = froghopper.attention(q, k, v, return_lse=True)
    for call in (lambda **words: froghopper.attention(q, k, v, **words),
                 lambda **words: froghopper.attention_backward(o, q, k, v, o, lse, **words),
                 lambda **words: fa.flash_attn_qkvpacked_func(torch.ones(1, 3, 3, 2, 16), **words)):
        with pytest.raises(NotImplementedError, match=f"has no argument {word}; pages are read by .*paged_attention, "
                           "froghopper.jax.attention, flash_attn_varlen_func and flash_attn_with_kvcache. Use one"):
            call(**{word: [[0]]})
        call(**{word: None})


def of_pages(torch):
    """paged_attention's arguments."""
    q, k, v = drawn(torch.from_numpy)
    pool = dict(k=k.reshape(6, 3, 2, 16), v=v.reshape(6, 3, 2, 16))
    return dict(q=q, **pool, block_table=torch.arange(6, dtype=torch.int32).reshape(2, 3))


@pytest.mark.parametrize("theirs, ours", [
    (dict(softmax_scale=0.5), dict(scale=0.5)), (dict(window_size=(3, -1)), dict(window=(3, None))),
    (dict(causal=True, window_size=[3, 2]), dict(causal=True, window=(3, None))),
    (dict(logits_soft_cap=5.0), dict(softcap=5.0)), (dict(num_splits=3, q_descale=None, is_causal=False), {})])
def test_same_meaning_for_pages(theirs, ours):
    torch = pytest.importorskip("torch", reason="froghopper.torch needs torch, which is not installed")
    from froghopper.torch import paged_attention
    given = of_pages(torch)
    wanted = paged_attention(**given, **ours)
    given["block_tables"] = given.pop("block_table")
    assert torch.equal(paged_attention(**given, **theirs), wanted)
    assert not ours or not torch.equal(paged_attention(**of_pages(torch)), wanted)


@pytest.mark.parametrize("word, value, kind, says", [
    ("is_causal", True, TypeError, "paged_attention.. has no argument is_causal.*Use causal=True.*top_left"),
    ("q_descale", 2.0, TypeError, "Use scale_q"), ("k_scale", 2.0, TypeError, "Did you mean scale_k"),
    ("cache_seqlens", 2, TypeError, "Did you mean seqused_kv"),
    ("dropout_p", 0.5, NotImplementedError, "Use dropout_p=0.0"),
    ("page_table", [1], TypeError, "block_table and page_table are given, and mean the same"),
    ("bananas", True, TypeError, "of froghopper.torch has no argument bananas. It has alibi_slopes, ")])
def test_explained_for_pages(word, value, kind, says):
    torch = pytest.importorskip("torch", reason="froghopper.torch needs torch, which is not installed")
    from froghopper.torch import paged_attention
    with pytest.raises(kind, match=says): paged_attention(**of_pages(torch), **{word: value})


@pytest.mark.parametrize("framework", FRAMEWORKS[:2])
@pytest.mark.parametrize("word, says", [
    ("cache_seqlens", "has no argument cache_seqlens. Did you mean seqused_kv"), ("key", "Did you mean k[?]"),
    ("key_cache", "Did you mean k_cache"), ("k_scale", "Did you mean scale_k"), ("k_descale", "Did you mean scale_k"),
    ("position_ids", "Did you mean positions"), ("is_neox", "rotary_interleaved. It is the opposite"),
    ("is_causal", "It has block_table, .* It attends to nothing"),
    ("softmax_scale", "It has block_table, .*It attends to nothing: attention of the same module")])
def test_explained_for_new_rows(framework, word, says):
    _, array = framework()
    module = pytest.importorskip("froghopper.torch") if framework is of_torch else froghopper
    _, k, v = drawn(array)
    with pytest.raises(TypeError, match=says): module.append_kv(k, v, k, v, **{word: array(np.ones(2, np.float32))})


def test_new_rows_in_other_words():
    torch = pytest.importorskip("torch", reason="froghopper.torch needs torch, which is not installed")
    from froghopper.torch import append_kv
    pool, (_, k, v), table = torch.zeros(2, 9, 2, 16), drawn(torch.from_numpy), torch.tensor([[1], [0]]).int()
    append_kv(k, v, pool, pool.clone(), block_tables=table, seqused_k=torch.zeros(2).int())
    assert torch.equal(pool.flip(0), k)


@pytest.mark.parametrize("word, says", [
    ("causal", "Did you mean is_causal.* It aligns the first query with the first key"), ("q", "Did you mean query"),
    ("window_size", "It has attn_mask, .* froghopper.torch.attention has more"), ("q_descale", "has more"),
    ("block_tables", "has more"), ("sinks", "has more")])
def test_explained_for_the_signature_of_pytorch(word, says):
    torch = pytest.importorskip("torch", reason="froghopper.torch needs torch, which is not installed")
    from froghopper.torch import scaled_dot_product_attention
    q, k, v = (x.transpose(1, 2) for x in drawn(torch.from_numpy))
    with pytest.raises(TypeError, match=says): scaled_dot_product_attention(q, k, v, enable_gqa=True, **{word: True})
    found = scaled_dot_product_attention(q, k, v, enable_gqa=True, softmax_scale=0.5, num_splits=2)
    assert torch.equal(found, scaled_dot_product_attention(q, k, v, enable_gqa=True, scale=0.5))


def test_spelling():
    assert froghopper.quantize is froghopper.quantise
    torch = pytest.importorskip("froghopper.torch", reason="it needs torch, which is not installed")
    assert torch.quantize is torch.quantise


def test_numbers_as_scales():
    torch = pytest.importorskip("torch", reason="froghopper.torch needs torch, which is not installed")
    from froghopper.torch import attention
    q, k, v = (x.to(torch.float8_e4m3fn) for x in drawn(torch.from_numpy))
    scales = dict(scale_q=0.5, scale_k=2, scale_v=0.25)
    wanted = attention(q, k, v, **{name: torch.tensor(float(x)) for name, x in scales.items()})
    assert torch.equal(attention(q, k, v, **scales), wanted)
    largest = attention(q, k, v, **scales, return_max_logit=True)
    assert torch.equal(largest[0], wanted)
