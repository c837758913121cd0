# SPDX-License-Identifier: Apache-2.0
"""Positional arguments of froghopper.flash_attn_interface that are not of Python where their kinds tell FlashAttention
2's order from 3's: scalars of NumPy, tensors without dimensions."""
import pytest

torch = pytest.importorskip("torch", reason="the interface of FlashAttention-3 needs torch, which is not installed")

import numpy as np  # noqa: E402
from test_flash_words import ENDS_K, ENDS_Q, K, PK, PQ, PV, Q, V, drawn, packed  # noqa: E402

from froghopper import _flash_orders, flash_attn_interface as fa  # noqa: E402


@pytest.mark.parametrize("kind", ("float64", "float32", "int64", "array", "tensor"))
def test_numbers_that_are_not_of_python(kind, caplog, monkeypatch):
    """Scalars of NumPy and tensors without dimensions stand where Python's do: a 0 that became the scale would be seen
    in no shape, and the order would be taken for FlashAttention 3's."""
    made = dict(array=np.array, tensor=torch.tensor)
    zero, true = made.get(kind, getattr(np, kind, None))(0), np.bool_(True)
    qkv, kv, varlen = drawn(2, 5, 3, 4, 64), torch.stack((K, V), 2), (PQ, PK, PV, ENDS_Q, ENDS_K, 5, 9)
    for given in ((zero,), (zero, None, True), (zero, None, true), (zero, 0.25, True)):
        of_python = (0.0, *given[1:])
        for function, tensors in ((fa.flash_attn_func, (Q, K, V)), (fa.flash_attn_qkvpacked_func, (qkv,)),
                                  (fa.flash_attn_kvpacked_func, (Q, kv)), (fa.flash_attn_varlen_func, varlen)):
            assert torch.equal(function(*tensors, *given), function(*tensors, *of_python))
    assert torch.equal(fa.flash_attn_func(Q, K, V, zero, causal=True), fa.flash_attn_func(Q, K, V, causal=True))
    for flag in (True, true):
        with pytest.raises(TypeError, match="0 and True are given behind the tensors"):
            fa.flash_attn_func(Q, K, V, zero, flag)
    if kind == "int64": return
    monkeypatch.setattr(_flash_orders, "_told", set())
    tenth = made.get(kind, getattr(np, kind, None))(0.1)
    for call in (lambda: fa.flash_attn_func(Q, K, V, tenth, None, True),
                 lambda: fa.flash_attn_varlen_func(*varlen, tenth),
                 lambda: fa.flash_attn_kvpacked_func(Q, kv, tenth)):
        with pytest.raises(NotImplementedError, match="dropout_p must be 0"): call()
    assert not caplog.records
    if kind == "tensor":
        with pytest.raises(TypeError, match="softmax_scale must be .* of Python"): fa.flash_attn_func(Q, K, V, tenth)
        return
    for call in (lambda: fa.flash_attn_func(Q, K, V, 0.125), lambda: fa.flash_attn_func(Q, K, V, tenth)): call()
    record, = caplog.records
    assert "is given 0.1 behind" in record.getMessage()


def test_flags_in_the_place_of_others():
    """None or a flag for a dropout: causal comes third in FlashAttention 2 alone."""
    varlen = PQ, PK, PV, ENDS_Q, ENDS_K, 5, 9
    assert torch.equal(fa.flash_attn_func(Q, K, V, None, None, True), fa.flash_attn_func(Q, K, V, causal=True))
    assert torch.equal(fa.flash_attn_varlen_func(*varlen, None, None, True), packed(causal=True))
    for call in (lambda: fa.flash_attn_func(Q, K, V, True, None, True),
                 lambda: fa.flash_attn_varlen_func(*varlen, True, None, True)):
        with pytest.raises(NotImplementedError, match="dropout_p must be 0"): call()


def test_whole_numbers_that_are_not_of_python():
    five = np.int64(5)
    wanted = fa.flash_attn_with_kvcache(Q[:, :1], K, V, cache_seqlens=5)
    assert torch.equal(fa.flash_attn_with_kvcache(Q[:, :1], K, V, None, None, None, None, five), wanted)
    with pytest.raises(TypeError, match="two whole numbers first"):
        fa.flash_attn_varlen_func(PQ, PK, PV, five, np.int64(9), ENDS_Q, ENDS_K)
