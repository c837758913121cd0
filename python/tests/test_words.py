# SPDX-License-Identifier: Apache-2.0
"""Words of other libraries given to attention of NumPy, PyTorch and JAX: taken where they mean the same, else TypeError
or NotImplementedError that says what to use; numbers of Python as scales."""
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
    return attention, jax.numpy.asarray


FRAMEWORKS = [of_numpy, of_torch, of_jax]


def drawn(array):
    random = np.random.default_rng(3)
    return [array(random.standard_normal(shape).astype(np.float32)) for shape in
            ((2, 5, 4, 16), (2, 9, 2, 16), (2, 9, 2, 16))]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("theirs, ours", [
    (dict(softmax_scale=0.5), dict(scale=0.5)), (dict(window_size=(3, -1)), dict(window=(3, None))),
    (dict(causal=True, window_size=[3, 2]), dict(causal=True, window=(3, None))),
    (dict(local_window_size=2), dict(window=(2, 2))), (dict(logits_soft_cap=5.0), dict(softcap=5.0)),
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
    ("dropout_p", 0.5, NotImplementedError, "Use 0.0"), ("attn_mask", [1], NotImplementedError, "Use causal, window"),
    ("block_table", [1], NotImplementedError, "paged_attention. Use that"),
    ("sm_margin", 8, NotImplementedError, "Use max_sms"),
    ("causl", True, TypeError, "has no argument causl. Did you mean causal"),
    ("bananas", True, TypeError, "has no argument bananas. It has accumulate, "),
    ("softmax_scale", 2.0, TypeError, "softmax_scale is given, which is scale here, and scale too")])
def test_explained(framework, word, value, kind, says):
    attention, array = framework()
    more = dict(scale=0.5) if word == "softmax_scale" else {}
    if word == "block_table" and framework is of_torch: kind, says = TypeError, "block_table must be .* is a list"
    with pytest.raises(kind, match=says): attention(*drawn(array), **{word: value}, **more)


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
