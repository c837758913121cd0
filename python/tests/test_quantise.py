# SPDX-License-Identifier: Apache-2.0
"""froghopper.torch.quantise on the CPU: what it writes beside PyTorch's own rounding, what attention makes of it."""
import pytest

torch = pytest.importorskip("torch")

from froghopper.torch import attention, quantise

# Some processors compute 8-bit numbers by kernels of bf16, which round weights to it.
BF16 = dict(rtol=2**-7, atol=0.02)


def draw(*shape, outliers=0.001):
    generator = torch.Generator().manual_seed(sum(shape))
    rare = torch.rand(shape, generator=generator) < outliers
    return torch.randn(shape, generator=generator) + 10 * torch.randn(shape, generator=generator) * rare


def stood_for(x, scale):
    """The numbers; scale: [batch, blocks, heads, 1]"""
    return x.float() * scale.repeat_interleave(128, 1)[:, :x.shape[1]]


@pytest.mark.parametrize("dtype, largest", [(torch.float8_e4m3fn, 448), (torch.float8_e5m2, 57344)])
def test_numbers_are_rounded_by_blocks(dtype, largest):
    q, k, v = draw(2, 200, 4, 64), draw(2, 300, 2, 64), draw(2, 300, 2, 48)
    found = quantise(q, k, v, dtype=dtype, rotate=False)
    assert found.scale_k.shape == (2, 3, 2, 1) and found.q.dtype == dtype
    for x, small, scale in ((q, found.q, found.scale_q), (v, found.v, found.scale_v)):
        first = x[:, :128].abs().amax((1, 3)) / largest
        torch.testing.assert_close(scale[:, 0, :, 0], first, rtol=1e-6, atol=0)
        expected = (x / scale.repeat_interleave(128, 1)[:, :x.shape[1]]).to(dtype)
        assert torch.equal(small.view(torch.uint8), expected.view(torch.uint8))


def test_a_rotation_keeps_scores_and_lowers_the_error():
    q, k, v = draw(1, 256, 8, 64), draw(1, 2000, 8, 64), draw(1, 2000, 8, 64)
    exact, scores = attention(q, k, v), torch.einsum("bqhd,bkhd->bhqk", q, k)
    errors = []
    for rotate in (False, True):
        found = quantise(q, k, v, rotate=rotate, rotate_seed=3 if rotate else 0)
        of_found = torch.einsum("bqhd,bkhd->bhqk", stood_for(found.q, found.scale_q), stood_for(found.k, found.scale_k))
        assert (of_found - scores).square().mean().sqrt() < 0.06 * scores.square().mean().sqrt()
        o = attention(**found._asdict(), out_dtype=torch.float32)
        errors.append((o - exact).square().mean().sqrt().item())
    assert errors[1] < 0.85 * errors[0]


def test_all_rows_of_a_sequence_may_share_a_scale():
    q, k, v = draw(2, 150, 4, 64), draw(2, 300, 2, 64), draw(2, 300, 2, 64)
    found = quantise(q, k, v, scale_rows=0)
    assert found.scale_k.shape == (2, 1, 2, 1)
    whole = (x.float() * scale for x, scale in zip(found[:3], found[3:]))
    torch.testing.assert_close(attention(**found._asdict(), out_dtype=torch.float32), attention(*whole), **BF16)


def test_one_call_quantises_and_attends():
    q, k, v = (x.bfloat16() for x in (draw(2, 150, 4, 64), draw(2, 300, 2, 64), draw(2, 300, 2, 64)))
    found = attention(**quantise(q, k, v)._asdict(), causal=True)
    exact = attention(q.float(), k.float(), v.float(), causal=True)
    assert found.dtype == torch.bfloat16
    assert (found.float() - exact).square().mean().sqrt() < 0.06 * exact.square().mean().sqrt()


def test_packed_sequences_have_blocks_of_their_own():
    q, k, v = draw(400, 2, 64), draw(400, 2, 64), draw(400, 2, 64)
    begins = torch.tensor([0, 130, 400], dtype=torch.int32)
    found = quantise(q, k, v, cu_seqlens_q=begins, cu_seqlens_kv=begins)
    alone = quantise(q[None, 130:], k[None, 130:], v[None, 130:])
    assert found.scale_q.shape == (2, 3, 2, 1)
    assert torch.equal(found.k[130:].view(torch.uint8), alone.k[0].view(torch.uint8))
    assert torch.equal(found.scale_k[1], alone.scale_k[0])
    assert found.scale_k[0, 2].tolist() == [[1.0], [1.0]]  # a block without rows
    o = attention(**found._asdict(), cu_seqlens_q=begins, cu_seqlens_kv=begins, out_dtype=torch.float32)
    assert torch.equal(o[130:], attention(**alone._asdict(), out_dtype=torch.float32)[0])


@pytest.mark.parametrize("change, message", [
    (dict(dtype=torch.bfloat16), "dtype must .*, but is bfloat16"),
    (dict(rotate_seed=-1), "rotate_seed must .*, but is -1"),
    (dict(max_seqlen_q=3), "max_seqlen_q and max_seqlen_kv must be None without cu_seqlens, but one is given"),
    (dict(max_seqlen_kv=30), "max_seqlen_q and max_seqlen_kv must be None without cu_seqlens"),
    (dict(scale_rows=64), "scale_rows must be 128, or 0 for all rows, but is 64"),
])
def test_what_is_wrong_is_named(change, message):
    x = draw(1, 10, 2, 64)
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=message): quantise(x, x, x, **change)


def test_smoothing_takes_means_out_and_attention_adds_them():
    q, k, v = draw(2, 150, 4, 64), draw(2, 300, 2, 64) + 8 * draw(64), draw(2, 300, 2, 48) + 4
    exact = attention(q, k, v, causal=True)
    errors = []
    for smooth in (False, True):
        found = quantise(q, k, v, smooth=smooth)
        o, lse = attention(**found._asdict(), causal=True, return_lse=True, out_dtype=torch.float32)
        errors.append((o - exact).square().mean().sqrt().item())
    assert found.mean_k.shape == (2, 1, 2, 64) and found.mean_v.shape == (2, 1, 2, 48)
    torch.testing.assert_close(found.mean_v[:, 0], v.mean(1), rtol=1e-5, atol=1e-5)
    assert errors[1] < 0.5 * errors[0]
    whole = (stood_for(found.q, found.scale_q), stood_for(found.k, found.scale_k) + found.mean_k,
             stood_for(found.v, found.scale_v) + found.mean_v)
    wanted, wanted_lse = attention(*whole, causal=True, return_lse=True)
    torch.testing.assert_close(o, wanted, **BF16)
    torch.testing.assert_close(lse, wanted_lse, rtol=1e-5, atol=1e-5)
    sink = torch.tensor([1.0, 2.0, 3.0, 60.0])  # the last one takes all the weight there is
    o = attention(**found._asdict(), sink=sink, out_dtype=torch.float32)
    expected = attention(q, k, v, sink=sink)
    assert o[..., 3, :].abs().max() < 1e-3 * 4
    assert (o - expected).square().mean().sqrt() < 0.06 * expected.square().mean().sqrt()


def test_means_that_do_not_fit_are_refused():
    q, k, v = draw(1, 20, 2, 64), draw(1, 30, 2, 64), draw(1, 30, 2, 64)
    given = quantise(q, k, v, smooth=True)._asdict()
    with pytest.raises(ValueError, match="mean_k and mean_v must .*, but mean"): attention(**given | {"mean_v": None})
    with pytest.raises(ValueError, match="mean_k must .*, but has .2, 64"):
        attention(**given | {"mean_k": given["mean_k"][0, 0]})
    with pytest.raises(ValueError, match="softcap must be 0 .* but is 20"): attention(**given, softcap=20.0)
    with pytest.raises(TypeError, match="must be None where k is .*, as it goes with 8-bit k and v"):
        attention(q, k, v, mean_k=given["mean_k"], mean_v=given["mean_v"])


def test_names_of_types_and_what_is_none():
    q, k, v = (torch.randn(1, 9, 2, 16) for _ in range(3))
    assert torch.equal(quantise(q, k, v, dtype="float8_e5m2").k.view(torch.uint8),
                       quantise(q, k, v, dtype=torch.float8_e5m2).k.view(torch.uint8))
    for wrong in ("float8", torch.float16, None, 8):
        with pytest.raises(TypeError, match="dtype must be .*float8_e4m3fn or float8_e5m2.* Give one of them"):
            quantise(q, k, v, dtype=wrong)


def test_gradients_are_not_dropped_in_silence():
    q, k, v = (torch.randn(1, 9, 2, 16) for _ in range(3))
    with pytest.raises(NotImplementedError, match="k requires a gradient; quantise has none. Use k.detach"):
        quantise(q, k.requires_grad_(), v)
    with torch.no_grad(): quantise(q, k, v)


def test_rotated_keys_need_rotated_queries():
    """16-bit q goes with k that was not rotated."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 64, 2, 64, dtype=torch.bfloat16) for _ in range(3))
    exact = attention(q.float(), k.float(), v.float())
    found = quantise(q, k, v, rotate=False)
    o = attention(q, found.k, found.v, scale_k=found.scale_k, scale_v=found.scale_v).float()
    assert (o - exact).norm() < 0.1 * exact.norm()
