# SPDX-License-Identifier: Apache-2.0
"""What froghopper.torch says, in the words of the caller: names and shapes of each entrance, in eager and in compiled
code; the user's line under a warning; counts."""
import re
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import froghopper
from froghopper import flash_attn_interface as fa
from froghopper._values import counted
from froghopper.torch import attention, explain, paged_attention, scaled_dot_product_attention

Q, KV = torch.zeros(2, 4, 8, 16), torch.zeros(2, 2, 6, 16)  # [batch, heads, seq, dim]
OF_ATTENTION = re.compile(r"(?<![\w.])[qkv]\b(?! )|\b[kv]_cache\b|\bscale_[kv]\b|append_kv")


def compiled(function, fullgraph=True):
    torch._dynamo.reset()
    return torch.compile(function, backend="eager", fullgraph=fullgraph)


def in_each_way(function):
    return (function, compiled(function), compiled(function, fullgraph=False))


def grouped(query, key, value): return scaled_dot_product_attention(query, key, value, enable_gqa=True)


@pytest.mark.parametrize("given, sentence", [
    ((Q, KV.half(), KV), "key must have the type of query, float32, but is float16. Use key.to.query.dtype"),
    ((Q, KV, KV[:, :, :5]), r"value must have the seq of key, 6, but has 5: their shapes are \[2, 2, 5, 16\]"),
    ((Q, KV[..., :8], KV), r"key must have the dim of query, 16, but has 8: .* \[2, 2, 6, 8\] and \[2, 4, 8, 16\]"),
    ((Q.int(), KV.int(), KV.int()), "query, key and value must be .* but are int32. Use query.float"),
    ((Q, KV[:, :1].expand(2, 3, 6, 16), KV[:, :1].expand(2, 3, 6, 16)),
     "the number of heads of key must divide the number of heads of query, 4, but is 3. Use 1, 2 or 4 for keys")])
def test_names_and_shapes_of_scaled_dot_product_attention(given, sentence):
    for call in in_each_way(grouped):
        with pytest.raises(Exception, match=sentence) as told: call(*given)
        if call is grouped: assert isinstance(told.value, froghopper.Error) and not OF_ATTENTION.search(str(told.value))


def test_shapes_are_those_before_columns_are_added():
    """Head dims that are no multiples of 8 are copied with zeros; an error tells of what was given."""
    with pytest.raises(ValueError, match=r"value must have the seq of key, 6, but has 5: .* \[2, 2, 5, 12\] and"):
        grouped(Q[..., :12], KV[..., :12], KV[:, :, :5, :12])


def write(*given): fa.reshape_and_cache_flash(*given)


def write_fp8(*given): fa.reshape_and_cache_flash(*given, "fp8", torch.ones(7))


ROWS, CACHE, SLOTS = torch.zeros(5, 4, 16), torch.zeros(3, 8, 4, 16), torch.arange(5)


@pytest.mark.parametrize("function, given, sentence", [
    (write, (ROWS, ROWS[:, :3], CACHE, CACHE, SLOTS), "value_cache must be .* heads and columns of value, but has"),
    (write, (ROWS, ROWS, CACHE.half(), CACHE, SLOTS),
     "key_cache must be float32, as key is, or float8, but is float16"),
    (write, (ROWS, ROWS, CACHE[0], CACHE[0], SLOTS), r"key_cache must be \[batch or pages"),
    (write, (ROWS, ROWS, CACHE, CACHE, SLOTS.int()), "slot_mapping must be int64, .* 5 in all, but is int32"),
    (write, (ROWS[0], ROWS[0], CACHE, CACHE, SLOTS), "key must be .batch, seq, heads, dim."),
    (write_fp8, (ROWS, ROWS, CACHE.byte(), CACHE.byte(), SLOTS), "k_scale must be float32 and")])
def test_names_of_reshape_and_cache_flash(function, given, sentence):
    for call in in_each_way(function):
        with pytest.raises(Exception, match=sentence) as told: call(*given)
        if call is function: assert not OF_ATTENTION.search(str(told.value))


def test_what_is_no_tensor_is_named_by_reshape_and_cache_flash():
    with pytest.raises(TypeError, match="^value must be a tensor of PyTorch, but is None. Give value."):
        write(ROWS, None, CACHE, CACHE, SLOTS)
    with pytest.raises(NotImplementedError, match="^key requires a gradient; reshape_and_cache_flash has none. Use"):
        write(ROWS.clone().requires_grad_(), ROWS, CACHE, CACHE, SLOTS)


def test_names_of_flash_attention_in_compiled_code():
    q, kv = Q.transpose(1, 2), KV.transpose(1, 2)
    call = compiled(lambda q, k, s: fa.flash_attn_func(q, k, k, s_aux=s))
    with pytest.raises(Exception, match=r"s_aux must have the shape \[4\]"): call(q, kv, torch.zeros(3))


EXCHANGED = torch.zeros(2, 16, 300, 8), torch.zeros(2, 4, 300, 8)  # [batch, heads, seq, dim]


@pytest.mark.parametrize("function", [
    lambda q, k: attention(q, k, k), lambda q, k: fa.flash_attn_func(q, k, k),
    lambda q, k: attention(q, k, k, out=q.new_empty(q.shape)),
    lambda q, k: attention(q, k, k, return_max_logit=True)[0]])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_exchanged_axes_are_warned_of_where_code_is_traced(function, backend):
    torch._dynamo.reset()
    call = torch.compile(function, backend=backend, fullgraph=True)
    with pytest.warns(UserWarning, match=r"300 heads of 16 queries and 4 keys.*transpose\(1, 2\)") as told:
        call(*EXCHANGED)
    assert [(each.filename, each.lineno) for each in told if "300 heads" in str(each.message)] == [
        (__file__, function.__code__.co_firstlineno)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(*(x.transpose(1, 2) for x in EXCHANGED))
        call(*EXCHANGED)  # once


def test_exchanged_axes_where_a_function_of_the_package_is_compiled_itself():
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match="300 heads of 16 queries and 4 keys") as told:
        torch.compile(attention, backend="eager")(*EXCHANGED, EXCHANGED[1])
    assert [each.filename for each in told if "300 heads" in str(each.message)] == [__file__]


def test_what_is_left_to_pytorch_is_told_at_the_line_of_the_user():
    from froghopper import _torch_sdpa
    _torch_sdpa._told.clear()
    x = torch.zeros(1, 2, 3, 8, dtype=torch.float64)
    with pytest.warns(UserWarning, match="float64") as told: scaled_dot_product_attention(x, x, x)
    assert {each.filename for each in told} == {__file__}


def test_windows_are_shown_as_they_were_given():
    q = torch.zeros(1, 6, 2, 16)
    for window, causal, shown in (((-5, 0), False, "is .-5, 0.. Use window=.None, 0."),
                                  ((None, -5), True, "is .None, -5.. Use window=.None, None."),
                                  ((3, 5), True, "is .3, 5.. Use window=.3, 0., or causal=False")):
        for call in (attention, explain, lambda q, k, v, **words: froghopper.attention(
                *(x.numpy() for x in (q, k, v)), **words)):
            try: text = call(q, q, q, window=window, causal=causal)
            except ValueError as error: text = str(error)
            assert re.search(f"window must .* but {shown}", text)


def test_explain_tells_what_is_missing():
    q = torch.zeros(1, 6, 2, 16)
    assert explain(q, q) == "not computed v must be a tensor of PyTorch, but is None. Give v."
    assert explain().startswith("not computed q must be a tensor")
    assert explain(q, q, q, q).startswith("not computed attention takes 3 arguments without a name, q, k and v, but")
    assert "query" in explain(query=q, key=q, value=q)


def test_a_bound_below_a_length_is_what_is_wrong():
    pool, table = torch.zeros(6, 4, 2, 16), torch.arange(4, dtype=torch.int32).reshape(2, 2)
    q, used = torch.zeros(2, 3, 4, 16), torch.tensor([3, 7], dtype=torch.int32)
    sentence = r"must be at least 7, which {}\[1\] is, but is 5. Use {}=7"
    with pytest.raises(ValueError, match="^max_seqlen_kv " + sentence.format("seqused_kv", "max_seqlen_kv")):
        paged_attention(q, pool, pool, table, seqused_kv=used, max_seqlen_kv=5)
    with pytest.raises(ValueError, match="^max_seqlen_kv " + sentence.format("seqused_kv", "max_seqlen_kv")):
        attention(q, pool, pool, block_table=table, seqused_kv=used, max_seqlen_kv=5)
    with pytest.raises(ValueError, match="^max_seqlen_k " + sentence.format("cache_seqlens", "max_seqlen_k")):
        fa.flash_attn_with_kvcache(q, pool, pool, page_table=table, cache_seqlens=used, max_seqlen_k=5)
    for most in (None, 8):
        with pytest.raises(ValueError, match=r"^seqused_kv\[1\] must be from 0 to 8, .* but is 9"):
            paged_attention(q, pool, pool, table, seqused_kv=used + 2, max_seqlen_kv=most)


def test_one_is_not_many():
    assert [counted(1, "row"), counted(2, "row"), counted(0, "query"), counted(1, "query")] == [
        "1 row", "2 rows", "0 queries", "1 query"]
    cache, one = torch.zeros(1, 1, 2, 16), torch.zeros(1, 1, 2, 16)
    with pytest.raises(ValueError, match="as the cache has 1 row and 1 row is added, but is 1. Use 0, or"):
        fa.flash_attn_with_kvcache(one, cache, cache, one, one, cache_seqlens=1)
    with pytest.raises(ValueError, match="seqused_q must have 1 number, one for each sequence, but has 2"):
        attention(one, one, one, seqused_q=torch.ones(2, dtype=torch.int32))


def test_names_are_looked_up_for_errors_alone(monkeypatch):
    """A call that nothing is wrong with costs the host no more for it."""
    from froghopper import _flash_words, _kv_cache, _torch_sdpa, _torch_traced
    def never(*_): raise AssertionError("a name was looked up")
    for module in (_flash_words, _kv_cache, _torch_sdpa): monkeypatch.setattr(module, "named_by", never)
    monkeypatch.setattr(_flash_words, "names_of", never)
    monkeypatch.setattr(_torch_traced, "place", never)
    q, cache = torch.zeros(1, 1, 2, 16), [torch.zeros(1, 8, 2, 16) for _ in "kv"]
    fa.flash_attn_func(q, *cache)
    fa.flash_attn_with_kvcache(q, *cache, cache_seqlens=3)
    grouped(Q, KV, KV)
    write(ROWS, ROWS, CACHE.clone(), CACHE.clone(), SLOTS)


def test_caches_have_the_names_of_their_arguments():
    """fh_tensors calls them cache_k and cache_v."""
    with pytest.raises(ValueError, match="^v_cache and k_cache are at the same address"):
        froghopper.torch.append_kv(ROWS, ROWS, CACHE, CACHE, slot_mapping=SLOTS)
    with pytest.raises(ValueError, match="^value_cache and key_cache are at the same address"):
        write(ROWS, ROWS, CACHE, CACHE, SLOTS)
    turned = torch.zeros(3, 8, 16, 4).transpose(2, 3)
    with pytest.raises(ValueError, match="^k_cache must have columns side by side"):
        froghopper.torch.append_kv(ROWS, ROWS, turned, CACHE, slot_mapping=SLOTS)


def test_caches_without_memory():
    """Meta and fake tensors have shapes and types alone; nothing is written."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    write(*(x.to("meta") for x in (ROWS, ROWS, CACHE, CACHE, SLOTS)))
    with pytest.raises(ValueError, match="^value_cache must be"):
        write(*(x.to("meta") for x in (ROWS, ROWS[:, :3], CACHE, CACHE, SLOTS)))
    write(ROWS, ROWS, CACHE.clone(), CACHE.clone(), SLOTS)
    q, cache = torch.zeros(2, 1, 2, 16), torch.zeros(2, 8, 2, 16)
    with FakeTensorMode() as mode:
        write(*map(mode.from_tensor, (ROWS, ROWS, CACHE, CACHE, SLOTS)))
        q, cache = mode.from_tensor(q), mode.from_tensor(cache)
        used = torch.ones(2, dtype=torch.int32)
        assert fa.flash_attn_with_kvcache(q, cache, cache, q, q, cache_seqlens=used).shape == (2, 1, 2, 16)


def test_what_is_no_matrix_is_told_of():
    with pytest.raises(ValueError, match=r"^query must be \[..., heads, seq, dim\], but has the shape \[\]"):
        scaled_dot_product_attention(*[torch.zeros(())] * 3)


def test_forward_over_reverse_is_refused_in_words():
    q = torch.zeros(1, 2, 1, 8)
    with pytest.raises(NotImplementedError, match="froghopper has gradients in reverse alone"):
        torch.func.hessian(lambda x: attention(x, q, q).sum())(q)


def whole(*numbers): return torch.tensor(numbers, dtype=torch.int32)


@pytest.mark.parametrize("words, sentence", [
    (dict(slot_mapping=SLOTS, seqused=whole(1)), "^seqused and seqused_kv must be None with slot_mapping"),
    (dict(slot_mapping=SLOTS, cu_seqlens=whole(0, 5), max_seqlen=5), "^cu_seqlens must be None with slot_mapping"),
    (dict(slot_mapping=SLOTS, rotary_cos=torch.ones(9, 4), rotary_sin=torch.ones(9, 4)),
     "^positions must be given with"),
    (dict(cu_seqlens=whole(0, 1, 3, 9), max_seqlen=9), r"^cu_seqlens must be at most 5, .* but cu_seqlens\[3\] is 9"),
    (dict(cu_seqlens=whole(0, 0, 0, 5), max_seqlen=2), "^max_seqlen must be at least 5, .* Use max_seqlen=5"),
    (dict(cu_seqlens=whole(0, 1, 3, 5), max_seqlen=-2), "^max_seqlen must be 0 or more rows, but is -2"),
    (dict(cu_seqlens=whole(0, 1, 3, 5), max_seqlen=5, seqused_kv=whole(0, 0, 7)),
     r"^seqused_kv\[2\] must leave room in the cache, whose rows are 8, for 2 more rows, but is 7"),
    (dict(slot_mapping=SLOTS, norm_k=torch.ones(16)), "^norm_k must be None without norm_epsilon"),
    (dict(slot_mapping=SLOTS, positions=SLOTS, rotary_cos=torch.ones(2, 4), rotary_sin=torch.ones(2, 4)),
     "^the position of row 2 must be 0 or more and below 2, the rows of rotary_cos, but is 2"),
    (dict(cu_seqlens=whole(0, 1, 3, 5), max_seqlen=2, rotary_cos=torch.ones(1, 4), rotary_sin=torch.ones(1, 4)),
     "^the position of row 1 of sequence 1 must be below 1, the rows of rotary_cos, but is 1"),
    (dict(slot_mapping=SLOTS, positions=SLOTS, rotary_cos=torch.ones(9, 0), rotary_sin=torch.ones(9, 0)),
     "^rotary_cos must have columns"),
    (dict(slot_mapping=SLOTS, k_cache=CACHE[:1].expand(3, 8, 4, 16)), "^k_cache must have rows that do not overlap")])
def test_append_kv_speaks_of_its_own_arguments(words, sentence):
    given = dict(k=ROWS, v=ROWS, k_cache=CACHE.clone(), v_cache=CACHE.clone()) | words
    with pytest.raises(ValueError, match=sentence): froghopper.torch.append_kv(**given)


def test_a_softcap_that_is_no_number_is_named():
    q = torch.zeros(1, 2, 1, 8)
    with pytest.raises(TypeError, match="^softcap must be a number, but is 'x'"):
        fa.flash_attn_func(q, q, q, softcap="x")


def test_what_is_often_mistaken_is_told_how_it_is_given():
    x = torch.zeros(2, 4, 4, 16)
    with pytest.raises(ValueError, match="If it holds lengths, give their cumulative sums behind a 0"):
        attention(x[0], x[0], x[0], cu_seqlens_q=whole(2, 2), cu_seqlens_kv=whole(2, 2))
    with pytest.raises(TypeError, match=r"cache_seqlens must be a whole number or an int32 tensor \[batch\], but is"):
        fa.flash_attn_with_kvcache(x[:, :1], x, x, cache_seqlens=[3, 2])
    with pytest.raises(ValueError, match=r"Use k\[:, None\] if it is one new row of each sequence"):
        froghopper.torch.append_kv(x[:, 0], x[:, 0], x.clone(), x.clone())
    from froghopper.torch import context_parallel
    with pytest.raises(TypeError, match="cu_seqlens_kv must be what the other list .* Use cu_seqlens, the ends in the"):
        context_parallel.attention(x, x, x, cu_seqlens_q=[0, 4], cu_seqlens_kv=[0, 3])
    with pytest.raises(NotImplementedError, match=r"dropout_p of attention\(\) must be 0, as"):
        context_parallel.attention(x, x, x, dropout_p=0.1)
