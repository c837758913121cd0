# SPDX-License-Identifier: Apache-2.0
"""local_window_size, the word of jax.nn.dot_product_attention, which counts from the first key: taken where window of
here is the same, and refused where it would be counted from the last key."""
import re

import numpy as np
import pytest
from test_words import FRAMEWORKS, of_jax, of_numpy, of_torch

import froghopper

Q, K = (2, 5, 4, 16), (2, 9, 2, 16)
USED = np.array([3, 5], np.int32)


def drawn(array, shape_q=Q, shape_k=K):
    random = np.random.default_rng(5)
    return [array(random.standard_normal(shape).astype(np.float32)) for shape in (shape_q, shape_k, shape_k)]


# What jax.nn takes beside local_window_size, and what that is here. Of each row at least one key is left, as a row
# without one is the mean of all values in jax.nn, and 0 here.
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("rows_k, theirs, ours", [
    (5, dict(local_window_size=2), {}), (5, dict(local_window_size=(3, 0)), {}),
    (5, dict(local_window_size=(1, 2), is_causal=True), dict(causal=True)),
    (9, dict(local_window_size=(1, 1)), dict(align="top_left")),
    (9, dict(local_window_size=(0, 6)), dict(align="top_left")),
    (9, dict(local_window_size=(2, 3), is_causal=True), dict(causal=True, align="top_left")),
    (5, dict(local_window_size=(4, 1), key_value_seq_lengths=USED), dict(align="top_left")),
    (9, dict(local_window_size=(4, 0), key_value_seq_lengths=USED, query_seq_lengths=USED), dict(align="top_left"))])
def test_as_jax_counts(framework, rows_k, theirs, ours):
    jax = pytest.importorskip("jax", reason="jax is not installed")
    attention, array = framework()
    tensors = drawn(array, Q, (2, rows_k, 2, 16))
    wanted = jax.nn.dot_product_attention(*map(np.asarray, tensors), **theirs)
    words = {word: array(x) if isinstance(x, np.ndarray) else x for word, x in theirs.items() if word != "is_causal"}
    np.testing.assert_allclose(np.asarray(attention(*tensors, **words, **ours)), np.asarray(wanted), atol=2e-5)
    assert not ours.get("align") or "query_seq_lengths" in words or not np.allclose(  # and it does matter
        np.asarray(attention(*tensors, window_size=words.pop("local_window_size"), **words, **ours |
                             dict(align="bottom_right"))), np.asarray(wanted), atol=1e-3)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("words, reason", [
    ({}, "q has 5 rows, k 9"), (dict(causal=True), "q has 5 rows, k 9"),
    (dict(seqused_kv=USED), "seqused_kv is given"),
    (dict(key_value_seq_lengths=USED), "key_value_seq_lengths is given"),
    (dict(query_seq_lengths=USED, key_value_seq_lengths=USED),
     "query_seq_lengths and key_value_seq_lengths are given")])
def test_refused(framework, words, reason):
    attention, array = framework()
    given = {word: array(x) if isinstance(x, np.ndarray) else x for word, x in words.items()}
    tensors = drawn(array, Q, Q if words and "causal" not in words else K)
    for window, meant in ((2, "(2, 2)"), ((3, 1), "(3, 1)")):
        if "causal" in words: meant = f"{meant[:2]}, None)"
        said = f"local_window_size is {window} and {reason}: "
        with pytest.raises(ValueError, match=f"^{re.escape(said)}jax.nn.* from the first key.*Add align=.top_left. .*"
                           f" or give window={re.escape(meant)} to"):
            attention(*tensors, local_window_size=window, **given)
    attention(*tensors, local_window_size=2, align="top_left", **given)
    attention(*tensors, local_window_size=None, **given)
    attention(*tensors, local_window_size=(-1, -1), **given)  # says nothing


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_packed(framework):
    attention, array = framework()
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in drawn(array))
    ends = dict(cu_seqlens_q=array(np.array([0, 10], np.int32)), cu_seqlens_k=array(np.array([0, 18], np.int32)))
    with pytest.raises(ValueError, match="^local_window_size is 2 and cu_seqlens_q and cu_seqlens_k are given"):
        attention(q, k, v, local_window_size=2, **ends)
    attention(q, k, v, local_window_size=2, align="top_left", **ends)


def test_gradients_of_numpy():
    attention, array = of_numpy()
    q, k, v = drawn(array)
    o, lse = attention(q, k, v, window=(2, 2), align="top_left", return_lse=True)
    with pytest.raises(ValueError, match="^local_window_size is 2 and q has 5 rows, k 9"):
        froghopper.attention_backward(o, q, k, v, o, lse, local_window_size=2)
    froghopper.attention_backward(o, q, k, v, o, lse, local_window_size=2, align="top_left")


def test_pages_and_explain():
    attention, array = of_torch()
    import torch

    from froghopper.torch import explain, paged_attention
    q, k, v = drawn(array, (1, 6, 4, 16), (2, 3, 2, 16))
    table = torch.arange(2, dtype=torch.int32)[None]
    for call in (lambda **words: paged_attention(q, k, v, table, **words),
                 lambda **words: attention(q, k, v, block_table=table, **words)):
        with pytest.raises(ValueError, match="^local_window_size is 2 and keys are in pages"): call(local_window_size=2)
        call(local_window_size=2, align="top_left")
    told = explain(*drawn(array), local_window_size=2)
    assert told.startswith("not computed local_window_size is 2 and q has 5 rows, k 9") and "window=(2, 2)" in told


def test_traced():
    """Under torch.compile with open numbers, and under jax.jit."""
    attention, array = of_torch()
    import torch
    compiled = torch.compile(lambda q, k, v, n: attention(q, k, v, local_window_size=n), backend="eager", dynamic=True)
    with pytest.raises(ValueError, match="^local_window_size is 3 and q has 5 rows, k 9"): compiled(*drawn(array), 3)
    attention, array = of_jax()
    import jax

    from froghopper.jax import explain
    with pytest.raises(ValueError, match=r"^local_window_size is \(3, 1\) and q has 5 rows, k 9"):
        jax.jit(lambda *x: attention(*x, local_window_size=(3, 1)))(*drawn(array))
    told = explain(*drawn(array), local_window_size=2)
    assert told.startswith("not computed local_window_size is 2 and q has 5 rows, k 9") and "window=(2, 2)" in told
