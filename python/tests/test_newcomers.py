# SPDX-License-Identifier: Apache-2.0
"""Mistakes of a first day: each is answered with the argument, its value, the rule and a way out, by the function that
was called; and what is no mistake is taken."""
import pathlib
import re

import numpy as np
import pytest

import froghopper
from froghopper._library_words import in_python

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.nn.attention.bias import causal_lower_right  # noqa: E402
from torch_cases import drawn, one_thread, qkv  # noqa: E402

from froghopper import flash_attn_interface as fa  # noqa: E402
from froghopper.torch import (append_kv, attention, explain, paged_attention,  # noqa: E402
                              scaled_dot_product_attention)

PACKAGE = pathlib.Path(froghopper.__file__).parent
Q, K, V = qkv(2, 40, 4, 64, kv=(2, 40, 2, 64))
LENGTHS = torch.tensor([30, 20], dtype=torch.int32)
POOL, TABLE = drawn(10, 16, 2, 64), torch.tensor([[0, 1, 2], [3, 4, 5]], dtype=torch.int32)
E4M3 = torch.float8_e4m3fn
ENDS = torch.tensor([0, 15, 40], dtype=torch.int32)
ROWS = torch.ones(2, 40, 2)  # a scale for each row


def refused(error, words, call):
    with pytest.raises(error, match=words) as told: call()
    assert isinstance(told.value, froghopper.Error)
    return str(told.value)


def test_explain_says_of_each_call_that_axes_look_exchanged():
    turned = [x.transpose(1, 2) for x in (Q, K, V)]
    for _ in range(2): assert "more heads than rows. If they are [batch, heads, seq, dim], use" in explain(*turned)
    for right in ((Q, K, V), (Q[:, :1], K, V), (Q[:, :1], K[:, :1], V[:, :1])):
        assert "heads than rows" not in explain(*right)
    assert "heads than rows" not in explain(Q[:, :2], POOL[:, :1], POOL[:, :1], block_table=TABLE)


def test_a_mask_without_its_name():
    words = "attention takes 3 arguments without a name, q, k and v, but is given 4, .*use causal, window, or seq"
    mask = torch.ones(40, 40, dtype=torch.bool)
    refused(TypeError, words, lambda: attention(Q, K, V, mask))
    refused(TypeError, words, lambda: froghopper.attention(Q.numpy(), K.numpy(), V.numpy(), mask.numpy()))
    assert "For a mask" not in refused(TypeError, "the fourth a bool. Give", lambda: attention(Q, K, V, True))
    assert explain(Q, K, V, mask).startswith("not computed attention takes 3 arguments without a name")
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    x = jax.numpy.zeros((1, 8, 2, 16))
    refused(TypeError, words, lambda: froghopper.jax.attention(x, x, x, x))


def test_what_must_be_given():
    refused(TypeError, r"^block_table must be given to paged_attention, .* use froghopper.torch.attention\(q, k, v, "
            "seqused_kv=", lambda: paged_attention(Q, K, V, seqused_kv=LENGTHS))
    refused(TypeError, "^v and block_table must be given to paged_attention, but are missing. Give v and",
            lambda: paged_attention(Q, k=K))
    refused(TypeError, "^k_cache and v_cache must be given to append_kv", lambda: append_kv(K, V, seqused=LENGTHS))
    refused(TypeError, "^scaled_dot_product_attention takes 8 arguments without a name, but is given 9",
            lambda: scaled_dot_product_attention(Q, K, V, None, 0.0, False, None, False, 3))
    assert paged_attention(Q, POOL, v=POOL, page_table=TABLE).shape == Q.shape


def test_columns_of_q_k_and_v_are_padded_in_one_step():
    narrow = [x[..., :60] for x in (Q, K, V)]
    refused(NotImplementedError, r"q and k is 60 and that of v is 60. Pad q and k with zero columns to 64, v to 64, "
            r"and set scale to 1/sqrt\(60\); o has 64 then", lambda: attention(*narrow))
    padded = [torch.nn.functional.pad(x, (0, 4)) for x in narrow]
    found = attention(*padded, scale=60**-0.5)
    wanted = scaled_dot_product_attention(*(x.transpose(1, 2) for x in narrow), enable_gqa=True).transpose(1, 2)
    torch.testing.assert_close(found[..., :60], wanted)
    assert not found[..., 60:].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sinks_of_a_model(dtype):
    sink = torch.tensor([1.5, -2.0, 0.25, 3.0], dtype=dtype, requires_grad=True)
    attention(Q, K, V, sink=sink).square().sum().backward()
    same = sink.detach().float().requires_grad_()
    wanted = attention(Q, K, V, sink=same)
    wanted.square().sum().backward()
    torch.testing.assert_close(attention(Q, K, V, sink=sink), wanted)
    torch.testing.assert_close(sink.grad, same.grad.to(dtype))
    with torch.no_grad():
        torch.testing.assert_close(paged_attention(Q, POOL, POOL, TABLE, sink=sink),
                                   paged_attention(Q, POOL, POOL, TABLE, sink=same))
    assert " sink" in explain(Q, K, V, sink=sink.detach())
    refused(TypeError, "sink must be float32, float16 or bfloat16, but is float64",
            lambda: attention(Q, K, V, sink=sink.detach().double()))


def test_masks_of_pytorch():
    x, mask = Q.transpose(1, 2), torch.ones(40, 40, dtype=torch.bool).tril()
    refused(NotImplementedError, "For a lower triangle use is_causal=True; for a band .* with window, for keys that "
            "are padding with seqused_kv[.]", lambda: scaled_dot_product_attention(x, x, x, attn_mask=mask))
    torch.testing.assert_close(scaled_dot_product_attention(x, x, x, is_causal=True),
                               torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask))


def test_ways_out_that_can_be_written():
    wrong = TABLE.clone()
    wrong[0, 2] = 11
    refused(ValueError, r"block_table\[0, 2\] must name a page of the pool, 0 to 9, but is 11. .*Use one of these",
            lambda: paged_attention(Q, POOL, POOL, wrong))
    refused(ValueError, "but has .3.. Give it 4 numbers, not 3", lambda: attention(Q, K, V, sink=torch.zeros(3)))
    pools = [POOL.clone(), POOL.clone()]
    for slots, out in ((torch.tensor([3, 4], dtype=torch.int32), r"Use slot_mapping.long\(\)"),
                       (torch.arange(4)[::2], r"Use slot_mapping.contiguous\(\)"),
                       (torch.arange(3), "Give it 2 numbers")):
        refused(TypeError, out, lambda: append_kv(K[:, 0], V[:, 0], *pools, slot_mapping=slots))
    append_kv(K[:, 0], V[:, 0], *pools, slot_mapping=torch.tensor([3, 4], dtype=torch.int32).long())
    refused(TypeError, r"Use v.to\(torch.float32\)",
            lambda: append_kv(K[:, 0], V[:, 0].half(), *pools, slot_mapping=torch.arange(2)))
    refused(ValueError, "Use window=.None, 0. for no bound there, or window=.5, 0..$",
            lambda: attention(Q, K, V, window=(-5, 0)))


VAGUE = re.compile(r"(Convert (it|one|them)|Give that|Give one of that shape)\. ?[\"']")


def test_no_way_out_is_vague():
    """In the sources: none says only that something else should be given."""
    found = [f"{path.name}: {line.strip()}" for path in sorted(PACKAGE.glob("*.py"))
             for line in path.read_text().splitlines() if VAGUE.search(line)]
    assert found == []


def test_orders_of_flash_attention():
    """Neither order that is taken begins with two bounds."""
    ends = torch.tensor([0, 15, 40], dtype=torch.int32)
    packed = Q[0], K[0], V[0]
    for bound in (25, torch.tensor(25)):
        refused(TypeError, "takes cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k in this order, or max_se"
                "qlen_q, cu_seqlens_q, .*Give the four by name",
                lambda: fa.flash_attn_varlen_func(*packed, bound, bound, ends, ends))
    torch.testing.assert_close(fa.flash_attn_varlen_func(*packed, 25, ends, 25, ends),
                               fa.flash_attn_varlen_func(*packed, ends, ends, 25, 25))


def nested(heads, layout, *rest):
    return torch.nested.nested_tensor([drawn(rows, *rest, heads, 64, seed=rows) for rows in (5, 7)], layout=layout)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors(layout):
    """Of both kinds, in the place of every tensor."""
    q, k, v = nested(4, layout), nested(2, layout), nested(2, layout)
    qkv = nested(4, layout, 3)
    way = r"values\(\),? with .*offsets\(\)" if layout is torch.jagged else r"torch.cat\(.*unbind\(\)\)"
    dense = [drawn(2, 8, heads, 64) for heads in (4, 2, 2)]
    cache = [torch.zeros(2, 64, 2, 64) for _ in "kv"]
    narrow = [x.to(E4M3) for x in dense[1:]]
    for call in (
            lambda: attention(q, k, v), lambda: attention(q, k, v, causal=True, return_lse=True),
            lambda: attention(q, *dense[1:]), lambda: attention(dense[0], k, v),
            lambda: attention(q, k, v, return_max_logit=True), lambda: attention(q, k, v, lse_by_row=True,
                                                                                 return_lse=True),
            lambda: attention(*dense, out=q), lambda: attention(*dense, gate=q), lambda: attention(*dense, sink=q),
            lambda: attention(*dense, seqused_kv=q), lambda: attention(*dense, alibi_slopes=q, return_max_logit=True),
            lambda: attention(*dense, accumulate=(q, q)), lambda: attention(q, POOL, POOL, block_table=TABLE),
            lambda: attention(dense[0].half(), *narrow, scale_k=k, scale_v=1),
            lambda: attention(q.detach().requires_grad_(), k, v),
            lambda: fa.flash_attn_func(q, k, v), lambda: fa.flash_attn_func(dense[0], k, v),
            lambda: fa.flash_attn_func(q, k, v, causal=True, window_size=(3, 0)),
            lambda: fa.flash_attn_varlen_func(q, k, v, LENGTHS, LENGTHS, 8, 8),
            lambda: fa.flash_attn_qkvpacked_func(qkv), lambda: fa.flash_attn_with_kvcache(q, *dense[1:]),
            lambda: fa.flash_attn_with_kvcache(*dense, k, v, cache_seqlens=LENGTHS),
            lambda: paged_attention(q, POOL, POOL, TABLE), lambda: paged_attention(dense[0], k, v, TABLE),
            lambda: paged_attention(dense[0], POOL, POOL, TABLE, seqused_kv=q),
            lambda: paged_attention(dense[0], POOL, POOL, TABLE, out=q),
            lambda: append_kv(k, v, *cache), lambda: append_kv(*dense[1:], k, v),
            lambda: append_kv(None, None, None, None, q=q, norm_epsilon=1e-5),
            lambda: append_kv(*dense[1:], *cache, seqused_kv=q)):
        for context in (torch.enable_grad(), torch.no_grad()):
            with context: refused(TypeError, rf"must be dense, but .*(nested|jagged).*{way}", call)
    assert explain(q, k, v).startswith("not computed q, k and v must be dense")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_way_out_of_nested_tensors():
    parts, ends = [drawn(5, 4, 64), drawn(7, 4, 64, seed=1)], torch.tensor([0, 5, 12], dtype=torch.int32)
    old = torch.nested.nested_tensor(parts)
    wanted = [attention(*[part[None]] * 3)[0] for part in parts]
    found = attention(*[torch.cat(old.unbind())] * 3, cu_seqlens_q=ends, cu_seqlens_kv=ends)
    torch.testing.assert_close(found, torch.cat(wanted))
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    padded = torch.stack([torch.cat([part, part])[:9] for part in parts])
    gaps = torch.nested.narrow(padded, 1, torch.tensor([0, 0]), torch.tensor([5, 7]), layout=torch.jagged)
    for x in (jagged, jagged.transpose(1, 2), gaps):  # as the message says
        with pytest.raises(froghopper.Error) as refusal: attention(x, x, x)
        values, offsets = re.search(r"Use q(.*?), k.*? with q(.*?) as cu_seqlens", str(refusal.value)).groups()
        ends, packed = eval("x" + offsets), eval("x" + values)
        found = attention(packed, packed, packed, cu_seqlens_q=ends, cu_seqlens_kv=ends)
        torch.testing.assert_close(found, torch.cat(wanted))


def test_scales_are_told_of_in_words():
    """No option of the C interface, and each number of a place has its axis."""
    q, k, v = Q.half(), K.to(E4M3), V.to(E4M3)
    rows = dict(scale_k=ROWS, scale_v=ROWS)
    refused(NotImplementedError, "^invariant must be False where scale_k and scale_v have a scale for each row, but is",
            lambda: attention(q, k, v, **rows, invariant=True))
    long = [x.repeat(1, 4, 1, 1) for x in (Q, K, V)]
    refused(ValueError, r"^scale_q must be one number, or .batch, heads., where scale_k and scale_v have a scale for",
            lambda: attention(*(x.to(E4M3) for x in long), scale_q=torch.ones(2, 2, 4, 1),
                              scale_k=torch.ones(2, 160, 2), scale_v=torch.ones(2, 160, 2)))
    def wrong(x, *at):
        x = x.clone()
        x[at] = 0
        return x
    for scales, place in (
            (rows | dict(scale_k=wrong(ROWS, 1, 39, 1)), "sequence 1, row 39, head 1 is 0"),
            (dict(scale_k=1, scale_v=wrong(torch.ones(2, 1, 2, 64), 1, 0, 1, 33)), "sequence 1, head 1, column 33 is"),
            (dict(scale_k=wrong(torch.ones(2, 2), 0, 1), scale_v=1), "sequence 0, head 1 is 0")):
        refused(ValueError, f"^scale_. must be positive, .*, but that of {place}",
                lambda: attention(q, k, v, **scales))
    pool, scale = POOL.to(E4M3), torch.ones(10, 16, 2)
    refused(ValueError, "that of page 3, row 5, head 1 is 0", lambda: paged_attention(
        q, pool, pool, TABLE, scale_k=wrong(scale, 3, 5, 1), scale_v=scale))
    refused(ValueError, "that of sequence 1, block 1, head 0 is 0", lambda: attention(
        long[0].half(), *(x.to(E4M3) for x in long[1:]), scale_k=wrong(torch.ones(2, 2, 2, 1), 1, 1, 0, 0), scale_v=1))


@pytest.mark.parametrize("options, told", [
    (dict(invariant=True), "invariant must be False where k and v have 8 bits, but is True"),
    (dict(), "q must be float16 or bfloat16 where scale_k and scale_v have a scale for each row, but has 8 bits")])
def test_what_only_gpus_refuse_is_told_in_words(options, told):
    q, k = Q.bfloat16(), K.to(E4M3)
    given = (q, k, k)
    if not options: given, options = (q.to(E4M3), k, k), dict(scale_q=1, scale_k=ROWS, scale_v=ROWS)
    else: options = options | dict(scale_k=1, scale_v=1)
    found = explain(*given, **options, target="h200")
    assert f"on a GPU, {told}" in found and not re.search("dtype is|scale_tokens|is set", found)
    assert "float16 or bfloat16, but are float32" in explain(Q, K, V, target="h200")
    assert in_python("invariant is set and dim_qk is 320; the Hopper kernels have it up to 256. Set it.").startswith(
        "on a GPU, invariant must be False where q and k have more than 256 columns, but is True, and they have 320")
    for said, wanted in (
            ("rotary_dim is 8; the Hopper kernel rotates columns by multiples of 16. Use target \"cpu\".",
             "on a GPU, a multiple of 16 columns must be rotated, but rotary_cos, one column for two of them, says 8"),
            ("rotary_rows is 2147483648; the Hopper kernel knows 2^31 - 1 positions. Use shorter tables.",
             "on a GPU, rotary_cos must have fewer than 2^31 rows, but has 2147483648. Use shorter tables.")):
        assert in_python(said).startswith(wanted)


@pytest.mark.parametrize("options", [{}, dict(return_max_logit=True)])
def test_compiled_code_of_any_shape_tells_of_axes(options):
    """As a call does that is not compiled."""
    x = drawn(2, 40, 3, 64)
    words = r"k \[2, 40, 3, 64\]; they must be .* if they are \[batch, heads, seq, dim\], use q"
    refused(ValueError, words, lambda: attention(Q, x, x, **options))
    compiled = torch.compile(lambda q, k: attention(q, k, k, **options), backend="aot_eager", dynamic=True)
    refused(ValueError, words, lambda: compiled(Q, x))


def test_what_is_missing_for_packed_sequences_and_tables():
    """The words of the function that was called, and a way out of what is wrong."""
    q = drawn(2, 4, 64)
    refused(ValueError, "Add the missing dimension, .* of each, or give cu_seqlens_q and max_seqlen_q for",
            lambda: paged_attention(q, POOL, POOL, TABLE, seqused_kv=LENGTHS))
    for table, way in ((TABLE[0], "Give a row of pages for each"), (TABLE.float(), r"Use block_table.int\(\)")):
        refused(ValueError, f"block_table must be int32 .batch, columns. .*{way}",
                lambda table=table: paged_attention(q[:, None], POOL, POOL, table, seqused_kv=LENGTHS))


def test_one_step_in_one_set_of_names():
    """Rows of a prefill are appended with the names that paged_attention has, and the other way is told."""
    rows, ends = drawn(12, 2, 64), torch.tensor([0, 5, 12], dtype=torch.int32)
    pools = [[torch.zeros_like(POOL) for _ in "kv"] for _ in range(2)]
    append_kv(rows, rows, *pools[0], block_table=TABLE, cu_seqlens=ends, max_seqlen=7)
    append_kv(rows, rows, *pools[1], block_table=TABLE, cu_seqlens_q=ends, max_seqlen_q=7)
    assert torch.equal(pools[0][0], pools[1][0]) and pools[0][0].any()
    refused(TypeError, "Did you mean seqused_kv", lambda: paged_attention(
        drawn(2, 1, 4, 64), POOL, POOL, TABLE, seqused_kv=LENGTHS, cu_seqlens_kv=ends))


def test_bytes_that_are_no_type():
    refused(TypeError, "k and v must have an 8-bit type where scale_k is given, but are uint8.*k.view",
            lambda: attention(Q.half(), *[x.to(torch.uint8) for x in (K, V)], scale_k=1.0, scale_v=1.0))


@pytest.mark.parametrize("call, says", [
    (lambda: fa.flash_attn_func(Q, K, K, 0.0, True), "0 and True are given behind the tensors"),
    (lambda: fa.flash_attn_func(Q, K, K, True), "softmax_scale must be a number, but is True"),
    (lambda: attention(Q, K, K, scale=True), "scale must be a number, but is True"),
    (lambda: attention(Q, K, K, softcap=np.True_), "softcap must be a number, but is np.True_"),
    (lambda: attention(Q, K, K, window=(True, 0)), r"window\[0\] must be a whole number, but is True"),
    (lambda: attention(Q, K, K, out=torch.empty_like(Q).half()),
     r"but is float16. Use torch.empty\(\[2, 40, 4, 64\], dtype=torch.float32, device=q.device\)"),
    (lambda: attention(Q, K, K, out=torch.empty(1)), r"Use torch.empty\(\[2, 40, 4, 64\]"),
    (lambda: attention(Q, K, K, alibi_slopes=torch.ones(3, 4)), "Give 4 slopes"),
    (lambda: attention(Q, K, K, sinks=[0.0] * 4), r"sinks must be a tensor .* Use torch.as_tensor\(sinks\)"),
    (lambda: attention(Q[0], K[0], K[0], cu_seqlens_q=ENDS.flip(0), cu_seqlens_kv=ENDS), "cu_seqlens_q must"),
    (lambda: append_kv(K, V, POOL, POOL, block_table=TABLE, seqused_kv=LENGTHS, q=Q, q_out=Q.half()),
     r"but is float16. Use torch.empty\(\[2, 40, 4, 64\], dtype=torch.float32"),
    (lambda: attention(Q, K, K, dropout_p=0.1), r"dropout_p of attention\(\) must be 0, .* but is 0.1"),
    (lambda: scaled_dot_product_attention(Q.transpose(1, 2), K.transpose(1, 2), K.transpose(1, 2),
                                          attn_mask=causal_lower_right(40, 40)), "whose causal mask is that one"),
])
def test_third_list(call, says):
    with pytest.raises(froghopper.Error, match=says): call()


def test_the_table_of_files_names_each_file():
    """Of docs/9-python.md; an installed package has no documents beside it."""
    page = PACKAGE.parent.parent / "docs" / "9-python.md"
    if not page.exists(): pytest.skip("the sources are not here")
    table = page.read_text().partition("## Files of python/froghopper")[2]
    assert set(re.findall(r"`(\w+\.py)`", table)) == {path.name for path in PACKAGE.glob("*.py")}
