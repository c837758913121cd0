# SPDX-License-Identifier: Apache-2.0
"""Chunked masks (Llama 4) of froghopper.transformers beside the matrix that transformers makes of the same rule:
prompts, decoding, caches that lost their first keys, static caches, padding. And the shorter way of a usual call."""
import pytest

torch = pytest.importorskip("torch", reason="transformers needs torch, which is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from torch.nn.functional import scaled_dot_product_attention  # noqa: E402
from transformers import masking_utils as masks  # noqa: E402

from froghopper import transformers as froghopper_transformers  # noqa: E402
from froghopper.torch import attention  # noqa: E402
from froghopper.transformers import Mask, attention_forward, attention_mask  # noqa: E402

CHUNK = 5


class Layer(torch.nn.Module):
    is_causal = True


def drawn(*shape, seed=0): return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def padding(total, *left):
    """[batch, tokens], so many at the left of each sequence are padding."""
    return torch.arange(total) >= torch.tensor(left)[:, None] if left else None


def check(rows, keys, q_offset, kv_offset, tokens=None, chunk=CHUNK):
    batch = 2 if tokens is None else len(tokens)
    left = torch.zeros(batch, dtype=torch.int64) if tokens is None else (tokens.cumsum(1) == 0).sum(1)
    rule = masks.chunked_causal_mask_function(chunk, left)
    mask = attention_mask(batch, rows, keys, q_offset, kv_offset, rule, tokens)
    q, k, v = drawn(batch, 4, rows, 16), drawn(batch, 2, keys, 16, seed=1), drawn(batch, 2, keys, 16, seed=2)
    found, _ = attention_forward(Layer(), q, k, v, mask)
    at_q, at_kv = torch.arange(rows) + int(q_offset), torch.arange(keys) + kv_offset
    seen = torch.stack([rule(b, 0, at_q[:, None], at_kv[None]) for b in range(batch)])
    if tokens is not None: seen = seen & tokens[:, None, kv_offset:kv_offset + keys]
    wanted = scaled_dot_product_attention(q, k, v, seen[:, None], enable_gqa=True)
    real = seen.any(-1)[:, :, None, None]  # rows of padding see nothing
    torch.testing.assert_close(found * real, (wanted.transpose(1, 2) * real).nan_to_num(), rtol=1e-4, atol=1e-5)
    return mask


@pytest.mark.parametrize("rows, keys, q_offset, kv_offset", [
    (4, 4, 0, 0), (13, 13, 0, 0), (20, 20, 0, 0), (1, 13, 12, 0), (3, 13, 10, 0), (7, 20, 13, 0),
    (1, 5, 12, 8), (1, 5, 14, 10), (1, 5, 10, 6), (4, 8, 12, 8), (9, 13, 11, 7), (2, 5, 13, 10), (3, 20, 10, 0)])
def test_without_padding(rows, keys, q_offset, kv_offset):
    check(rows, keys, q_offset, kv_offset)
    if kv_offset == 0 or q_offset >= kv_offset + CHUNK - 1: check(rows, keys, torch.tensor(q_offset), kv_offset)


@pytest.mark.parametrize("left", [(0, 0), (3, 0), (6, 1), (11, 5)])
@pytest.mark.parametrize("rows, keys, q_offset, kv_offset", [
    (13, 13, 0, 0), (1, 13, 12, 0), (3, 13, 10, 0), (1, 5, 12, 8), (4, 8, 12, 8)])
def test_with_padding(rows, keys, q_offset, kv_offset, left):
    check(rows, keys, q_offset, kv_offset, padding(kv_offset + keys, *left))


def test_chunks_that_say_nothing_are_dropped():
    """One query, or fewer keys than a chunk has: the usual call, without a chunk."""
    assert check(1, 13, 12, 0).chunk == 0 and check(4, 4, 0, 0).chunk == 0 and check(13, 13, 0, 0).chunk == CHUNK
    assert check(1, 13, 12, 0).first == 10
    for tokens in (None, padding(20, 1, 0)):
        with pytest.raises(NotImplementedError, match="whose first ones the cache has no more"):
            check(9, 11, 9, 9, tokens, chunk=8)


@pytest.mark.parametrize("words", [{}, dict(scaling=0.3), dict(sliding_window=3), dict(is_causal=False)])
def test_the_shorter_way(words, monkeypatch):
    """The bits and gradients of attention, which is not called."""
    q, k, v = (drawn(2, heads, 9, 16, seed=heads).requires_grad_() for heads in (4, 2, 2))
    given = dict(causal=words.get("is_causal", True), scale=words.get("scaling"),
                 window=(2, None) if "sliding_window" in words else None)
    wanted = attention(*(x.transpose(1, 2) for x in (q, k, v)), **given)
    gradients = torch.autograd.grad(wanted.square().sum(), (q, k, v))
    monkeypatch.setattr(froghopper_transformers, "attention", None)
    for mask in (None, Mask(given["causal"], given["window"] or (None, None), (2, 9, 9))):
        for _ in range(2):
            found, _ = attention_forward(Layer(), q, k, v, mask, **words)
            assert torch.equal(found, wanted) and found.is_contiguous()
            for a, b in zip(torch.autograd.grad(found.square().sum(), (q, k, v)), gradients): assert torch.equal(a, b)


def test_longest_in_a_tensor():
    """As transformers hands it over for packed sequences."""
    q, k, v = drawn(1, 4, 9, 16), drawn(1, 2, 9, 16, seed=1), drawn(1, 2, 9, 16, seed=2)
    ends = torch.tensor([0, 4, 9], dtype=torch.int32)
    packed = dict(cu_seq_lens_q=ends, cu_seq_lens_k=ends)
    wanted, _ = attention_forward(Layer(), q, k, v, None, **packed, max_length_q=5, max_length_k=5)
    longest = ends.diff().max()
    found, _ = attention_forward(Layer(), q, k, v, None, **packed, max_length_q=longest, max_length_k=longest)
    assert torch.equal(found, wanted)
