# SPDX-License-Identifier: Apache-2.0
"""froghopper.flash_attn_interface as FlashAttention 2, vLLM and transformers call it: orders of positional arguments,
words that only they have, values that FlashAttention-3 refuses; merge_attn_states."""
import pytest

torch = pytest.importorskip("torch", reason="the interface of FlashAttention-3 needs torch, which is not installed")

from froghopper import _merge, flash_attn_interface as fa  # noqa: E402

ROWS, KEYS = (3, 5), (9, 4)


def drawn(*shape, seed=0, dtype=torch.bfloat16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32).to(dtype)


def ints(*numbers): return torch.tensor(numbers, dtype=torch.int32)


Q, K, V = drawn(2, 5, 4, 64), drawn(2, 9, 2, 64, seed=1), drawn(2, 9, 2, 64, seed=2)
PQ, PK, PV = drawn(8, 4, 64), drawn(13, 2, 64, seed=1), drawn(13, 2, 64, seed=2)
ENDS_Q, ENDS_K = ints(0, 3, 8), ints(0, 9, 13)
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])


def packed(**more):
    return fa.flash_attn_varlen_func(PQ, PK, PV, **(dict(
        cu_seqlens_q=ENDS_Q, cu_seqlens_k=ENDS_K, max_seqlen_q=5, max_seqlen_k=9) | more))


def differs(a, b): return not torch.equal(a, b)


@pytest.mark.parametrize("given, wanted", [
    ((0.0,), {}), ((0.0, 0.3), dict(softmax_scale=0.3)), ((0.0, None, True), dict(causal=True)),
    ((0.0, 0.3, True, (2, 2), 5.0, SLOPES, True),
     dict(softmax_scale=0.3, causal=True, window_size=(2, 2), softcap=5.0, alibi_slopes=SLOPES, deterministic=True)),
    ((0.3, True), dict(softmax_scale=0.3, causal=True)), ((None, True), dict(causal=True)),  # FlashAttention-3's
    ((0.3,), dict(softmax_scale=0.3)),
])
def test_order_of_flash_attention_2(given, wanted):
    assert torch.equal(fa.flash_attn_func(Q, K, V, *given), fa.flash_attn_func(Q, K, V, **wanted))
    if not isinstance(given[0], float) or given[0]: return
    names = ENDS_Q, ENDS_K, 5, 9
    assert torch.equal(fa.flash_attn_varlen_func(PQ, PK, PV, *names, *given), packed(**wanted))


@pytest.mark.parametrize("given, wanted", [
    ((0.0,), {}), ((0.0, None, True), dict(causal=True)),
    ((0, 0.3, False, (2, 2)), dict(softmax_scale=0.3, window_size=(2, 2))),
    ((0.3, True), dict(softmax_scale=0.3, causal=True)),  # FlashAttention-3's
])
def test_tensors_in_one(given, wanted):
    qkv, packed_qkv = drawn(2, 5, 3, 4, 64), drawn(8, 3, 4, 64)
    assert torch.equal(fa.flash_attn_qkvpacked_func(qkv, *given), fa.flash_attn_func(*qkv.unbind(2), **wanted))
    kv, packed_kv = torch.stack((K, V), 2), torch.stack((PK, PV), 1)
    assert torch.equal(fa.flash_attn_kvpacked_func(Q, kv, *given), fa.flash_attn_func(Q, K, V, **wanted))
    if given[0]: return  # of packed sequences FlashAttention-3 has another order
    assert torch.equal(fa.flash_attn_varlen_qkvpacked_func(packed_qkv, ENDS_Q, 5, *given),
                       fa.flash_attn_varlen_func(*packed_qkv.unbind(1), ENDS_Q, ENDS_Q, 5, 5, **wanted))
    assert torch.equal(fa.flash_attn_varlen_kvpacked_func(PQ, packed_kv, ENDS_Q, ENDS_K, 5, 9, *given),
                       packed(**wanted))


def test_a_number_that_can_only_be_dropout():
    """FlashAttention-3 has no kvpacked, and a scale that is named does not stand in its place too."""
    qkv, kv = drawn(2, 5, 3, 4, 64), torch.stack((K, V), 2)
    for call in (lambda: fa.flash_attn_kvpacked_func(Q, kv, 0.1, causal=True),
                 lambda: fa.flash_attn_kvpacked_func(Q, kv, 0.1, softmax_scale=0.3),
                 lambda: fa.flash_attn_qkvpacked_func(qkv, 0.1, softmax_scale=0.3),
                 lambda: fa.flash_attn_func(Q, K, V, 0.1, softmax_scale=0.3)):
        with pytest.raises(NotImplementedError, match="dropout_p must be 0"): call()
    assert torch.equal(fa.flash_attn_func(Q, K, V, 0.0, softmax_scale=0.3),
                       fa.flash_attn_func(Q, K, V, softmax_scale=0.3))


def test_a_number_that_looks_like_dropout(caplog, monkeypatch):
    """It is the scale, as FlashAttention-3 reads it, and a record of the log says so once."""
    from froghopper import _flash_orders
    qkv = drawn(2, 5, 3, 4, 64)
    calls = {"flash_attn_func": lambda x: fa.flash_attn_func(Q, K, V, x, causal=True),
             "flash_attn_qkvpacked_func": lambda x: fa.flash_attn_qkvpacked_func(qkv, x, causal=True)}
    for name, call in calls.items():
        monkeypatch.setattr(_flash_orders, "_told", set())
        caplog.clear()
        for silent in (0.125, 64 ** -0.5, 0.0, 1.0, 2.0, 1 / 3, None): call(silent)
        fa.flash_attn_func(Q, K, V, 0.1, True)  # FlashAttention-3's causal
        fa.flash_attn_func(Q, K, V, softmax_scale=0.1)
        assert not caplog.records
        for _ in range(2): found = call(0.1)
        record, = caplog.records
        text = record.getMessage()
        assert record.name == "froghopper" and record.levelname == "WARNING"
        assert text.startswith(f"{name} is given 0.1 behind")
        assert "taken as softmax_scale" in text and "dropout_p=0.0" in text and "softmax_scale=0.1" in text
        tensors = (Q, K, V) if name == "flash_attn_func" else qkv.unbind(2)
        assert torch.equal(found, fa.flash_attn_func(*tensors, softmax_scale=0.1, causal=True))


def test_tensors_in_one_of_other_shapes():
    with pytest.raises(ValueError, match=r"kv must be \[batch, seq, 2, heads, dim\], .*torch.stack\(\(k, v\), -3\)"):
        fa.flash_attn_kvpacked_func(Q, K)
    with pytest.raises(ValueError, match=r"qkv must be \[total, 3, heads, dim\]"):
        fa.flash_attn_varlen_qkvpacked_func(PQ, ENDS_Q, 5)


@pytest.mark.parametrize("turned", (False, True))
def test_order_of_flash_attention_2_with_a_cache(turned):
    """k, v, rotary_cos, rotary_sin, cache_seqlens: no qv."""
    tables = (drawn(16, 16, seed=3), drawn(16, 16, seed=4)) if turned else (None, None)
    new, lengths = (drawn(2, 1, 2, 64, seed=5), drawn(2, 1, 2, 64, seed=6)), ints(3, 5)
    found, wanted = (K.clone(), V.clone()), (K.clone(), V.clone())
    o = fa.flash_attn_with_kvcache(Q[:, :1], *found, *new, *tables, lengths, causal=True)
    assert torch.equal(o, fa.flash_attn_with_kvcache(
        Q[:, :1], *wanted, *new, rotary_cos=tables[0], rotary_sin=tables[1], cache_seqlens=lengths, causal=True))
    assert all(torch.equal(a, b) for a, b in zip(found, wanted)) and differs(found[0], K)
    third = fa.flash_attn_with_kvcache(Q[:, :1], K, V, None, None, None, None, None, lengths)  # FlashAttention-3's
    assert torch.equal(third, fa.flash_attn_with_kvcache(Q[:, :1], K, V, cache_seqlens=lengths))


def test_words_that_are_nearly_ours():
    import froghopper.torch
    def say(**words):
        with pytest.raises((TypeError, NotImplementedError)) as error: froghopper.torch.attention(Q, K, V, **words)
        return str(error.value)
    assert "Did you mean seqused_kv?" in say(cache_seqlens=3) and "Did you mean seqused_kv?" in say(seq_lens=3)
    assert "Did you mean alibi_slopes?" in say(alibi=SLOPES) and "seqused_kv" in say(key_padding_mask=SLOPES)
    assert "Did you mean window?" in say(sliding_window_size=3) and "dim" in say(layout="bhsd")
    assert "top_left" in say(is_causal=True)
    with pytest.raises(TypeError) as error: fa.flash_attn_func(Q, K, V, is_causal=True)
    assert "top_left" not in str(error.value)


def test_orders_that_are_refused():
    with pytest.raises(NotImplementedError, match="dropout_p must .*,"): fa.flash_attn_func(Q, K, V, 0.1, None, True)
    with pytest.raises(NotImplementedError, match="dropout_p must .*, bu"): fa.flash_attn_func(Q, K, V, dropout_p=0.1)
    with pytest.raises(TypeError, match="softmax_scale is given twice"):
        fa.flash_attn_func(Q, K, V, 0.0, 0.3, True, softmax_scale=0.3)
    with pytest.raises(TypeError, match="has 8. Give them by name"):
        fa.flash_attn_func(Q, K, V, 0.0, None, True, (1, 1), 0.0, None, False, False, None)


def test_vllm():
    """Its order, and its words: out, one number of its tensors, sinks in 16 bits."""
    wanted, lse = packed(causal=True, window_size=(2, 0), return_attn_probs=True)
    out = torch.empty_like(PQ)
    found = fa.flash_attn_varlen_func(PQ, PK, PV, 5, ENDS_Q, 9, ENDS_K, causal=True, window_size=[2, 0], out=out,
                                      fa_version=3, num_splits=0, scheduler_metadata=None, return_softmax_lse=True)
    assert found[0] is out and torch.equal(out, wanted) and torch.equal(found[1], lse)
    whole = fa.flash_attn_varlen_func(PQ, PK, PV, 5, ENDS_Q, 9, ENDS_K, None, None, 0.0, 0.3, True, None, 0.0, SLOPES)
    assert torch.equal(whole, packed(softmax_scale=0.3, causal=True, alibi_slopes=SLOPES))
    assert differs(whole, packed(softmax_scale=0.3, causal=True))
    sinks = drawn(4, seed=7)
    with_sinks = packed(s_aux=sinks)
    assert torch.equal(with_sinks, packed(s_aux=sinks.float())) and differs(with_sinks, packed())
    assert torch.equal(with_sinks, packed(sinks=sinks))  # SGLang's word
    with pytest.raises(NotImplementedError, match="block_table is .*flash_attn_varlen_func"):
        fa.flash_attn_func(Q, K, V, block_table=ints(0, 1)[None])
    with pytest.raises(NotImplementedError, match="cp_world_size.*merge_attn_states"): packed(cp_world_size=2)
    assert torch.equal(packed(cp_world_size=1, cp_rank=0, q_v=None), packed())


def test_keys_without_ends():
    """cu_seqlens_k=None: k is [batch, seq, heads, dim], and seqused_k counts its rows."""
    used = ints(9, 4)
    found = fa.flash_attn_varlen_func(q=PQ, k=K, v=V, cu_seqlens_q=ENDS_Q, max_seqlen_q=5, seqused_k=used,
                                      max_seqlen_k=9, causal=True)
    k, v = (torch.cat([x[0], x[1, :4]]) for x in (K, V))
    wanted = fa.flash_attn_varlen_func(PQ, k, v, ENDS_Q, ENDS_K, 5, 9, causal=True)
    torch.testing.assert_close(found, wanted)
    assert torch.equal(found, fa.flash_attn_varlen_func(PQ, K, V, 5, ENDS_Q, 9, None, used, causal=True))
    with pytest.raises(ValueError, match="cu_seqlens_k is None and k has the shape"): packed(cu_seqlens_k=None)


def test_pages():
    """As vLLM calls it, and of caches: the result over the gathered keys."""
    pools, table, used = [drawn(6, 4, 2, 64, seed=seed) for seed in (1, 2)], ints(5, 0, 3, 2, 4, 9).reshape(2, 3), ints(
        9, 7)
    k, v = (torch.cat([pool[table[0].long()].flatten(0, 1)[:9], pool[[2, 4]].flatten(0, 1)[:7]]) for pool in pools)
    words = dict(causal=True, softmax_scale=0.3, s_aux=drawn(4, seed=7))
    wanted, lse = fa.flash_attn_varlen_func(PQ, k, v, ENDS_Q, ints(0, 9, 16), 5, 9, return_attn_probs=True, **words)
    out = torch.empty_like(PQ)
    found, lse_found = fa.flash_attn_varlen_func(
        q=PQ, k=pools[0], v=pools[1], out=out, cu_seqlens_q=ENDS_Q, max_seqlen_q=5, seqused_k=used, max_seqlen_k=9,
        window_size=[-1, -1], block_table=table, softcap=0, fa_version=3, num_splits=0, return_softmax_lse=True,
        **words)
    assert found is out
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(lse_found, lse)
    for name in ("page_table", "block_table"):
        cached, of_cache, *_ = fa.flash_attn_with_kvcache(
            PQ, *pools, cache_seqlens=used, cu_seqlens_q=ENDS_Q, max_seqlen_q=torch.tensor(5), return_softmax_lse=True,
            **words, **{name: table})
        assert torch.equal(cached, found) and torch.equal(of_cache, lse_found)
    same_length = fa.flash_attn_with_kvcache(Q, *pools, cache_seqlens=7, page_table=table)
    assert torch.equal(same_length, fa.flash_attn_with_kvcache(Q, *pools, cache_seqlens=ints(7, 7), page_table=table))
    with pytest.raises(ValueError, match="k, v and cache_seqlens must be given together"):
        fa.flash_attn_with_kvcache(Q, *pools, K[:, :1], cache_seqlens=used, page_table=table)


def test_how_many_rows_of_pages_count():
    """Said once: with seqused_k as of FlashAttention-3 and vLLM, or as of FlashAttention 2. A bound alone says nothing
    of it, and may not leave rows out."""
    pools, used = [drawn(6, 4, 2, 64, seed=seed) for seed in (1, 2)], ints(9, 7)
    table = ints(5, 0, 3, 2, 4, 1).reshape(2, 3)
    def call(**words): return fa.flash_attn_varlen_func(PQ, *pools, ENDS_Q, max_seqlen_q=5, **words)
    wanted = call(block_table=table, seqused_k=used)
    assert torch.equal(call(block_table=table, cu_seqlens_k=ints(0, 9, 16)), wanted)
    for ends, lengths, name in (("cu_seqlens_k", "seqused_k", "block_table"),
                                ("cu_seqlens_kv", "seqused_kv", "page_table")):
        with pytest.raises(TypeError, match=f"^{ends} and {lengths} are given with {name}.* Leave out {ends}"):
            call(**{ends: ints(0, 9, 16), lengths: used, name: table})
    with pytest.raises(ValueError, match="^max_seqlen_k must be at least 12 without seqused_k, .* but is 9"):
        call(block_table=table, max_seqlen_k=9)
    assert torch.equal(call(block_table=table, max_seqlen_k=12), call(block_table=table))


def test_lengths_may_be_tensors():
    """As transformers hands FlashAttention-3 the longest sequence."""
    longest = dict(max_seqlen_q=ENDS_Q.diff().max(), max_seqlen_k=ENDS_K.diff().max())
    assert torch.equal(packed(**longest), packed())
    vllm = fa.flash_attn_varlen_func(PQ, PK, PV, longest["max_seqlen_q"], ENDS_Q, longest["max_seqlen_k"], ENDS_K)
    assert torch.equal(vllm, packed())
    with pytest.raises(TypeError, match="max_seqlen_q must .*, but is a tensor"): packed(max_seqlen_q=torch.tensor(5.0))


@pytest.mark.parametrize("given, wanted", [(None, (-1, -1)), ([2, 1], (2, 1)), (3, (3, 3)), (-1, (-1, -1)),
                                           ((None, 1), (-1, 1)), (torch.tensor(3), (3, 3))])
def test_windows(given, wanted):
    for causal in (False, True):
        assert torch.equal(packed(window_size=given, causal=causal), packed(window_size=wanted, causal=causal))
    assert wanted == (-1, -1) or differs(packed(window_size=given), packed())


@pytest.mark.parametrize("cache_batch_idx", [None, ints(2, 0)])
@pytest.mark.parametrize("leftpad", [None, ints(1, 0)])
def test_slopes_and_sinks_of_caches(cache_batch_idx, leftpad):
    """Slopes of each sequence follow it to its row of the cache; every sequence alone gives the same."""
    k, v = drawn(3, 9, 2, 64, seed=4), drawn(3, 9, 2, 64, seed=5)
    if cache_batch_idx is None: k, v = k[:2], v[:2]
    slopes, sinks, used = torch.stack([SLOPES, 2 * SLOPES]), drawn(4, seed=7), ints(8, 5)
    found = fa.flash_attn_with_kvcache(Q, k, v, cache_seqlens=used, cache_batch_idx=cache_batch_idx, causal=True,
                                       cache_leftpad=leftpad, alibi_slopes=slopes, s_aux=sinks)
    for b in range(2):
        row, first = b if cache_batch_idx is None else int(cache_batch_idx[b]), 0 if leftpad is None else leftpad[b]
        part = slice(first, int(used[b]))
        wanted = fa.flash_attn_func(Q[b:b + 1], k[row:row + 1, part], v[row:row + 1, part], causal=True,
                                    alibi_slopes=slopes[b], s_aux=sinks)
        torch.testing.assert_close(found[b:b + 1], wanted, rtol=2e-2, atol=2e-2)
    new = drawn(2, 1, 2, 64, seed=6)  # the checks before the cache is written know both
    fa.flash_attn_with_kvcache(Q, k, v, new, new, cache_seqlens=used, cache_batch_idx=cache_batch_idx,
                               cache_leftpad=leftpad, alibi_slopes=slopes, s_aux=sinks)


def test_descales():
    """Not read with 16 bits, a number or a tensor with 8."""
    plain = fa.flash_attn_func(Q, K, V)
    assert torch.equal(plain, fa.flash_attn_func(Q, K, V, q_descale=torch.full((2, 2), 3.0), k_descale=2.0))
    eight = [x.to(torch.float8_e4m3fn) for x in (Q, K, V)]
    found = fa.flash_attn_func(*eight, k_descale=0.5, v_descale=2.0)
    wanted = fa.flash_attn_func(*eight, k_descale=torch.full((2, 2), 0.5), v_descale=torch.full((2, 2), 2.0))
    torch.testing.assert_close(found, wanted)
    assert differs(found, fa.flash_attn_func(*eight))


@pytest.mark.parametrize("word, says", [
    ("is_causal", "Use causal=True"), ("attn_mask", "no masks of numbers"), ("causl", "Did you mean causal"),
    ("quantize", "does not quantise"), ("something", "has no argument something")])
def test_unknown_words(word, says):
    with pytest.raises((TypeError, NotImplementedError), match=says): fa.flash_attn_func(Q, K, V, **{word: True})


def merged(prefix, prefix_lse, suffix, suffix_lse):
    lse = torch.stack([prefix_lse, suffix_lse]).double().transpose(1, 2)
    weights = torch.softmax(lse, 0).nan_to_num(0.0)[..., None]
    return (weights * torch.stack([prefix, suffix]).double()).sum(0), torch.logsumexp(lse, 0).T


@pytest.mark.parametrize("block", [None, 2048])
def test_merge_attn_states(block, monkeypatch):
    """Two halves of the keys are all of them, also in place and in many blocks; +inf is no key, as vLLM has it."""
    if block: monkeypatch.setattr(_merge, "BLOCK_BYTES", block)
    prefix, suffix = drawn(7, 4, 32, seed=1), drawn(7, 4, 32, seed=2)
    lse = [drawn(4, 7, seed=3, dtype=torch.float32), drawn(4, 7, seed=4, dtype=torch.float32) + 5]
    lse[0][1, 2], lse[1][2, 3] = torch.inf, -torch.inf
    lse[0][3, 4] = lse[1][3, 4] = -torch.inf
    prefix[2, 1] = torch.nan  # weighs nothing
    clean = [torch.where(x == torch.inf, -torch.inf, x) for x in lse]
    wanted, wanted_lse = merged(prefix.nan_to_num(0.0), clean[0], suffix, clean[1])
    out, out_lse = torch.empty_like(prefix), torch.empty(4, 7)
    assert fa.merge_attn_states(out, prefix, lse[0], suffix, lse[1], out_lse) is None
    torch.testing.assert_close(out.double(), wanted, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(out_lse.double(), wanted_lse)
    assert out[4, 3].eq(0).all() and out_lse[3, 4] == -torch.inf
    fa.merge_attn_states(prefix, prefix, lse[0], suffix, lse[1])
    assert torch.equal(prefix, out)
    before = out.clone()
    with pytest.raises(ValueError, match="suffix_lse must .*, but has the shape .7, 4."):
        fa.merge_attn_states(out, prefix, lse[0], suffix, lse[1].T)
    assert torch.equal(out, before)


def test_combining_in_blocks(monkeypatch):
    """The same bits in one block and in many, and memory for one block alone."""
    parts, lse = drawn(6, 2, 40, 3, 16, dtype=torch.float32), drawn(6, 2, 40, 3, dtype=torch.float32, seed=1)
    wanted = fa.flash_attn_combine(parts, lse)
    monkeypatch.setattr(_merge, "BLOCK_BYTES", 20000)
    largest, original = [], _merge.weighed

    def noted(part, weight):
        largest.append(part.nbytes)
        return original(part, weight)
    monkeypatch.setattr(_merge, "weighed", noted)
    found = fa.flash_attn_combine(parts, lse)
    assert torch.equal(found[0], wanted[0]) and torch.equal(found[1], wanted[1])
    assert len(largest) > 4 and max(largest) <= 20000


def test_one_graph():
    """torch.compile sees through the orders and words, without a break."""
    calls = {"order": lambda q, k, v: fa.flash_attn_func(q, k, v, 0.0, 0.3, True, (3, 0)),
             "usual": lambda q, k, v: fa.flash_attn_func(q, k, v, causal=True),
             "words": lambda q, k, v: fa.flash_attn_func(q, k, v, sinks=q[0, 0, :, 0], num_splits=3)}
    for name, call in calls.items():
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(Q, K, V), call(Q, K, V)), name


WORDS_OF_FLAGS = ["return_attn_probs", "return_softmax_lse", "return_lse", "deterministic", "sm_margin"]


@pytest.mark.parametrize("word", WORDS_OF_FLAGS)
def test_none_counts_as_false(word):
    """Wherever FlashAttention asks `if`, in the usual way and with a window."""
    if word != "sm_margin":
        for call in CALLS_OF_FLAGS[:2]:
            with pytest.raises(TypeError, match=f"^{word} must be True or False, but is 'yes'"): call(**{word: "yes"})
    for call in CALLS_OF_FLAGS:
        if call is CALLS_OF_FLAGS[-1] and word == "deterministic": continue  # which it has not
        for more in ({}, dict(window_size=(3, 0))):
            found = call(**{word: None}, **more)
            assert torch.is_tensor(found) and torch.equal(found, call(**more))


CALLS_OF_FLAGS = [
    lambda **words: fa.flash_attn_func(Q, K, V, **words),
    lambda **words: fa.flash_attn_varlen_func(PQ, *(x.flatten(0, 1) for x in (K, V)), ENDS_Q, ENDS_K, 5, 9, **words),
    lambda **words: fa.flash_attn_kvpacked_func(Q, torch.stack((K, V), 2), **words),
    lambda **words: fa.flash_attn_qkvpacked_func(torch.stack((Q, Q, Q), 2), **words),
    lambda **words: fa.flash_attn_with_kvcache(Q, K, V, **words)]
