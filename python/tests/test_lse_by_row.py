# SPDX-License-Identifier: Apache-2.0
"""lse as [rows, heads]: the bits of the usual one, its numbers of a row side by side."""
import numpy as np
import pytest

import froghopper

BATCH, ROWS, KEYS, HEADS, HEADS_KV, DIM = 3, 20, 33, 6, 2, 16
ENDS_Q, ENDS_KV = np.array([0, 7, 7, 60], np.int32), np.array([0, 5, 50, 99], np.int32)
OPTIONS = {
    "plain": {}, "causal": {"causal": True}, "sink": {"sink": np.linspace(-1, 3, HEADS).astype(np.float32)},
    "slopes": {"alibi_slopes": np.linspace(0, 1, HEADS).astype(np.float32)},
    "gate": {"gate": np.linspace(-3, 3, BATCH * ROWS * HEADS * DIM, dtype=np.float32).reshape(BATCH, ROWS, HEADS, DIM)},
    "max": {"return_max_logit": True},
    "used": {"seqused_q": np.array([20, 3, 0], np.int32), "seqused_kv": np.array([1, 33, 9], np.int32)},
}


def drawn(*shapes):
    random = np.random.default_rng(5)
    return [random.standard_normal(shape).astype(np.float32) for shape in shapes]


def dense_arrays(): return drawn((BATCH, ROWS, HEADS, DIM), *[(BATCH, KEYS, HEADS_KV, DIM)] * 2)


def packed_arrays(): return drawn((BATCH * ROWS, HEADS, DIM), *[(BATCH * KEYS, HEADS_KV, DIM)] * 2)


def check(usual, by_row, flags=lambda x: x.flags.c_contiguous):
    """usual, by_row: what attention returned with return_lse, tuples of arrays."""
    assert len(usual) == len(by_row)
    assert tuple(by_row[1].shape) == tuple(np.swapaxes(np.asarray(usual[1]), -1, -2).shape) and flags(by_row[1])
    np.testing.assert_array_equal(np.asarray(by_row[1]), np.swapaxes(np.asarray(usual[1]), -1, -2))
    for at in (0, *range(2, len(usual))): np.testing.assert_array_equal(np.asarray(by_row[at]), np.asarray(usual[at]))


@pytest.mark.parametrize("name", OPTIONS)
def test_of_numpy(name):
    arrays, words = dense_arrays(), OPTIONS[name] | {"return_lse": True}
    for _ in range(2):  # the second call is found, not made
        check(froghopper.attention(*arrays, **words), froghopper.attention(*arrays, **words, lse_by_row=True))
    if name == "gate": return
    words |= {"cu_seqlens_q": ENDS_Q, "cu_seqlens_kv": ENDS_KV}
    words = {key: value for key, value in words.items() if not key.startswith("seqused")}
    check(froghopper.attention(*packed_arrays(), **words),
          froghopper.attention(*packed_arrays(), **words, lse_by_row=True))


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 5, 1), (2, 1, 4), (0, 3, 2), (2, 0, 2)])
def test_of_few_rows_and_heads(shape):
    q, k, v = drawn((*shape, DIM), (shape[0], 4, 1, DIM), (shape[0], 4, 1, DIM))
    check(froghopper.attention(q, k, v, return_lse=True),
          froghopper.attention(q, k, v, return_lse=True, lse_by_row=True))


def test_without_lse_it_changes_nothing():
    arrays = dense_arrays()
    np.testing.assert_array_equal(froghopper.attention(*arrays), froghopper.attention(*arrays, lse_by_row=True))


def test_beside_accumulate_it_is_refused():
    arrays = dense_arrays()
    held = (np.zeros((BATCH, ROWS, HEADS, DIM), np.float32), np.full((BATCH, HEADS, ROWS), -np.inf, np.float32))
    with pytest.raises(NotImplementedError, match="lse_by_row is given with accumulate"):
        froghopper.attention(*arrays, accumulate=held, lse_by_row=True)
    with pytest.raises(TypeError, match="lse_by_row must be"): froghopper.attention(*arrays, lse_by_row="rows")


def test_of_numpy_in_8_bits():
    pytest.importorskip("ml_dtypes", reason="8-bit arrays of NumPy have the types of ml_dtypes")
    given = froghopper.quantise(*[x.astype(np.float16) for x in dense_arrays()])._asdict()
    arrays = [given.pop(name) for name in "qkv"]
    check(froghopper.attention(*arrays, **given, return_lse=True),
          froghopper.attention(*arrays, **given, return_lse=True, lse_by_row=True))


# ---- PyTorch ----

def tensors(arrays, dtype=None):
    torch = pytest.importorskip("torch", reason="froghopper.torch needs torch, which is not installed")
    return [torch.from_numpy(x).to(dtype or torch.float32) for x in arrays]


def words_of(name):
    torch = pytest.importorskip("torch", reason="froghopper.torch needs torch, which is not installed")
    return {key: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            for key, value in OPTIONS[name].items()} | {"return_lse": True}


def dense(x): return x.is_contiguous()


@pytest.mark.parametrize("name", OPTIONS)
def test_of_torch(name):
    arrays, words = tensors(dense_arrays()), words_of(name)
    from froghopper.torch import attention
    for _ in range(2): check(attention(*arrays, **words), attention(*arrays, **words, lse_by_row=True), dense)
    if name == "gate": return
    import torch
    words |= {"cu_seqlens_q": torch.from_numpy(ENDS_Q), "cu_seqlens_kv": torch.from_numpy(ENDS_KV)}
    words = {key: value for key, value in words.items() if not key.startswith("seqused")}
    packed = tensors(packed_arrays())
    check(attention(*packed, **words), attention(*packed, **words, lse_by_row=True), dense)


def test_of_torch_is_written_so_where_nothing_requires_a_gradient(monkeypatch):
    arrays = tensors(dense_arrays())
    from froghopper import _torch_eager
    from froghopper.torch import attention
    monkeypatch.setattr(_torch_eager, "turned", lambda *_: pytest.fail("lse was copied"))
    attention(*arrays, return_lse=True, lse_by_row=True)


def test_of_torch_has_gradients():
    arrays = tensors(dense_arrays())
    from froghopper.torch import attention
    found = []
    for by_row in (False, True):
        q, k, v = (x.clone().requires_grad_() for x in arrays)
        o, lse = attention(q, k, v, return_lse=True, lse_by_row=by_row)
        ((o ** 2).sum() + (lse ** 3).sum()).backward()
        found.append((q.grad, k.grad, v.grad))
    for one, other in zip(*found): np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_of_torch_with_out_and_in_8_bits():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    arrays = tensors(dense_arrays(), torch.float16)
    from froghopper.torch import attention, quantise
    o = torch.empty(BATCH, ROWS, HEADS, DIM, dtype=torch.float16)
    check(attention(*arrays, return_lse=True), attention(*arrays, return_lse=True, lse_by_row=True, out=o), dense)
    given = quantise(*arrays)._asdict()
    arrays = [given.pop(name) for name in "qkv"]
    usual, by_row = (attention(*arrays, **given, return_lse=True, lse_by_row=way) for way in (False, True))
    check([x.float() for x in usual], [x.float() for x in by_row], dense)


def paged_case():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    q, = tensors(drawn((BATCH * ROWS, HEADS, DIM)))
    pool = tensors(drawn(*[(9, 16, HEADS_KV, DIM)] * 2))
    table = torch.tensor([[3, 1, 5], [0, 8, 2], [7, 4, 6]], dtype=torch.int32)
    return (q, *pool, table), dict(seqused_kv=torch.tensor([40, 0, 17], dtype=torch.int32), causal=True,
                                   cu_seqlens_q=torch.from_numpy(ENDS_Q), max_seqlen_q=53, return_lse=True)


def test_of_pages():
    arrays, words = paged_case()
    from froghopper.torch import attention, paged_attention
    check(paged_attention(*arrays, **words), paged_attention(*arrays, **words, lse_by_row=True), dense)
    q, k, v, table = arrays
    words_without = words | {"return_lse": False}
    assert paged_attention(*arrays, **words_without, lse_by_row=True).equal(paged_attention(*arrays, **words)[0])
    check(paged_attention(*arrays, **words), attention(q, k, v, block_table=table, **words, lse_by_row=True), dense)


def test_of_pages_in_compiled_code():
    arrays, words = paged_case()
    import torch
    from froghopper.torch import attention, paged_attention
    compiled = torch.compile(lambda *x: paged_attention(*x, **words, lse_by_row=True), backend="aot_eager",
                             fullgraph=True)
    check(paged_attention(*arrays, **words), compiled(*arrays), dense)
    dense_ones = tensors(dense_arrays())
    compiled = torch.compile(lambda *x: attention(*x, return_lse=True, lse_by_row=True), backend="aot_eager",
                             fullgraph=True)
    check(attention(*dense_ones, return_lse=True), compiled(*dense_ones), dense)


def test_the_schema_is_right():
    arrays, words = paged_case()
    import torch
    from froghopper import _torch_paged as pages
    given = pages.Sides(arrays[3], words["cu_seqlens_q"], None, words["seqused_kv"], *[None] * 8)
    options = pages.Options(53, None, True, -1, -1, 0.0, None, False, 0, 0, False, None, True)
    torch.library.opcheck(pages.paged_op, (*arrays[:3], *given, *options, "", True),
                          test_utils=("test_schema", "test_faketensor"))
