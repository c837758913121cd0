# SPDX-License-Identifier: Apache-2.0
"""The arguments of froghopper.flash_attn_interface: each is used or refused, none depends on PyTorch's default type or
device, scales of 0, tiny ones and softcaps of None mean what they say, tangents are refused, parts are combined without
loss, and the ways out that messages name work."""
import inspect

import pytest

torch = pytest.importorskip("torch", reason="the interface of FlashAttention-3 needs torch, which is not installed")

from torch.autograd import forward_ad  # noqa: E402

from froghopper import flash_attn_interface as fa  # noqa: E402

FLOAT8 = torch.float8_e4m3fn


def drawn(*shape, seed=0, dtype=torch.bfloat16):
    found = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32, device="cpu")
    return found.to(dtype)


def ints(*numbers): return torch.tensor(numbers, dtype=torch.int32, device="cpu")


def qkv(rows=3, keys=9, dtype=torch.bfloat16, dim_v=64):
    return drawn(2, rows, 4, 64, dtype=dtype), drawn(2, keys, 2, 64, seed=1, dtype=dtype), drawn(
        2, keys, 2, dim_v, seed=2, dtype=dtype)


def dense(**more):
    q, k, v = qkv()
    return fa.flash_attn_func(**(dict(q=q, k=k, v=v, return_attn_probs=True) | more))


def varlen(**more):
    q, k, v = (x.flatten(0, 1) for x in qkv())
    return fa.flash_attn_varlen_func(**(dict(
        q=q, k=k, v=v, cu_seqlens_q=ints(0, 3, 6), cu_seqlens_k=ints(0, 9, 18), max_seqlen_q=3, max_seqlen_k=9,
        return_attn_probs=True) | more))


def qkvpacked(**more):
    return fa.flash_attn_qkvpacked_func(**(dict(qkv=drawn(2, 9, 3, 4, 64), return_attn_probs=True) | more))


def cached(**more):
    q, k, v = qkv()
    return fa.flash_attn_with_kvcache(**(dict(q=q, k_cache=k, v_cache=v, cache_seqlens=ints(5, 7),
                                              return_softmax_lse=True) | more))


def combined(**more):
    return fa.flash_attn_combine(**(dict(out_partial=drawn(2, 1, 3, 2, 16, dtype=torch.float32),
                                         lse_partial=drawn(2, 1, 3, 2, dtype=torch.float32)) | more))


def metadata(**more):
    return [fa.get_scheduler_metadata(**(dict(batch_size=2, max_seqlen_q=1, max_seqlen_k=9, num_heads_q=4,
                                              num_heads_kv=2, headdim=64, cache_seqlens=ints(5, 7)) | more))]


Q, K, V = qkv()
OTHER_Q, OTHER_K, OTHER_V = (x.flip(1) for x in qkv())
ONE, NEW = torch.ones(2, 2), drawn(2, 1, 2, 64, seed=5)
SCORES = dict(softmax_scale=0.01, causal=True, window_size=(1, 0), attention_chunk=2, softcap=0.5, qv=ONE,
              sm_margin=-1, dropout_p=0.5, alibi_slopes=torch.ones(4), s_aux=torch.ones(4), block_table=ONE)
# Have no effect, as the module says; descales of 16-bit tensors.
HINTS = {"num_splits": 3, "pack_gqa": True, "q_descale": ONE, "k_descale": ONE, "v_descale": ONE}
FP8_HINTS = {name: ONE for name in ("q_descale", "k_descale", "v_descale")}
# Of each function: what changes its results or is refused, and what has no effect by its documentation.
CHANGES = {
    "flash_attn_func": (dense, SCORES | dict(q=OTHER_Q, k=OTHER_K, v=OTHER_V, return_attn_probs=False),
                        HINTS | dict(deterministic=True)),
    "flash_attn_varlen_func": (varlen, SCORES | dict(
        q=OTHER_Q.flatten(0, 1), k=OTHER_K.flatten(0, 1), v=OTHER_V.flatten(0, 1), cu_seqlens_q=ints(0, 2, 5),
        cu_seqlens_k=ints(0, 7, 16), max_seqlen_q=2, max_seqlen_k=8, seqused_q=ints(1, 2), seqused_k=ints(4, 9),
        return_attn_probs=False, out=torch.zeros(3)), HINTS | dict(deterministic=True, return_softmax_lse=True)),
    "flash_attn_qkvpacked_func": (qkvpacked, {name: x for name, x in SCORES.items()
                                              if name not in ("qv", "block_table")} | dict(
        qkv=drawn(2, 9, 3, 4, 64, seed=8), num_heads_q=2, return_attn_probs=False),
        FP8_HINTS | dict(deterministic=True)),
    "flash_attn_with_kvcache": (cached, {name: x for name, x in SCORES.items() if name != "dropout_p"} | dict(
        q=OTHER_Q, k_cache=OTHER_K, v_cache=OTHER_V, k=NEW, v=NEW, rotary_cos=ONE, rotary_sin=ONE, cache_seqlens=4,
        cache_batch_idx=ints(1, 0), cache_leftpad=ints(1, 2), page_table=ONE, cu_seqlens_q=ints(0, 3, 6),
        cu_seqlens_k_new=ints(0, 1, 2), max_seqlen_q=2, return_softmax_lse=False, out=torch.zeros(3)),
        HINTS | dict(rotary_interleaved=False, rotary_seqlens=ONE, scheduler_metadata=ONE, max_seqlen_k=9)),
    "flash_attn_combine": (combined, dict(
        out_partial=drawn(2, 1, 3, 2, 16, seed=4, dtype=torch.float32),
        lse_partial=drawn(2, 1, 3, 2, seed=4, dtype=torch.float32), out=torch.zeros(1, 3, 2, 16).half(),
        out_dtype=torch.bfloat16), {}),
    "get_scheduler_metadata": (metadata, dict(cache_seqlens=torch.zeros(2, device="meta"), batch_size=5), dict(
        page_size=16, num_splits=3, pack_gqa=True, max_seqlen_q=2, max_seqlen_k=3,
        num_heads_q=2, num_heads_kv=1,
        headdim=128, qkv_dtype=torch.float16, headdim_v=64, cu_seqlens_q=ONE, cu_seqlens_k_new=ONE, cache_leftpad=ONE,
        max_seqlen_k_new=1, causal=True, window_size=(1, 1), attention_chunk=2, has_softcap=True, sm_margin=1)),
}


def same(found, wanted):
    if isinstance(found, torch.Tensor) or isinstance(wanted, torch.Tensor): return False  # without lse
    return all(a.dtype == b.dtype and a.shape == b.shape and a.device == b.device and torch.equal(a, b)
               for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("name", CHANGES)
def test_no_argument_is_ignored(name):
    call, changes, hints = CHANGES[name]
    parameters = inspect.signature(getattr(fa, name)).parameters
    assert set(parameters) == set(changes) | set(hints) and not set(changes) & set(hints)
    wanted = call()
    for parameter, value in changes.items():
        try: found = call(**{parameter: value})
        except (TypeError, ValueError, NotImplementedError): continue
        assert not same(found, wanted), parameter
    for parameter, value in hints.items(): assert same(call(**{parameter: value}), wanted), parameter


def test_contradictions_are_refused():
    """What says the same thing twice, and what has no meaning beside the rest."""
    with pytest.raises(ValueError, match="num_heads_q must be 4, .*, but is 2"): qkvpacked(num_heads_q=2)
    assert same(qkvpacked(num_heads_q=4), qkvpacked()) and same(qkvpacked(num_heads_q=None), qkvpacked())
    with pytest.raises(ValueError, match="sm_margin must .*, but is -1"): dense(sm_margin=-1)
    with pytest.raises(TypeError, match="sm_margin"): dense(sm_margin=0.5)
    with pytest.raises(TypeError, match="window_size must .*, but is 'all'"): dense(window_size="all")
    with pytest.raises(TypeError, match="window_size must .*, but is .'all', 1."): dense(window_size=("all", 1))
    with pytest.raises(ValueError, match="lse_partial must be .* cpu, but is on meta"):
        combined(lse_partial=torch.zeros(2, 1, 3, 2, device="meta"))
    with pytest.raises(ValueError, match="out must be .* cpu, but is on meta"):
        combined(out=torch.zeros(1, 3, 2, 16, device="meta"))
    with pytest.raises(TypeError, match="lse_partial must be .* is a list"): combined(lse_partial=[1])
    out = torch.zeros(1, 3, 2, 16)
    with pytest.raises(ValueError, match="out must have the shape"): combined(out=out, out_dtype=torch.bfloat16)
    assert not out.any() and combined(out=out, out_dtype=torch.float32)[0] is out


CALLS = {"flash_attn_func": dense, "flash_attn_varlen_func": varlen, "flash_attn_qkvpacked_func": qkvpacked,
         "flash_attn_with_kvcache": cached}


@pytest.mark.parametrize("name", CALLS)
def test_scales(name):
    """None is 1/sqrt(dim), 0 makes all keys alike, and a tiny one nearly."""
    call = CALLS[name]
    assert same(call(softmax_scale=None), call(softmax_scale=0.125))
    flat, lse = call(softmax_scale=0.0)[:2]
    counts = {"flash_attn_with_kvcache": torch.tensor([5.0, 7.0]).log()[:, None, None]}.get(
        name, torch.tensor(9.0).log())
    torch.testing.assert_close(lse, counts.expand_as(lse), rtol=1e-6, atol=1e-6)
    for tiny in (1e-30, 1e-20): assert same(call(softmax_scale=tiny)[:2], (flat, lse)), tiny
    values = dict(flash_attn_qkvpacked_func=drawn(2, 9, 3, 4, 64)[:, :, 2]).get(name, V).float()
    wanted = values.mean(1, keepdim=True)
    if name == "flash_attn_with_kvcache": wanted = torch.stack([values[0, :5].mean(0), values[1, :7].mean(0)])[:, None]
    wanted = wanted.repeat_interleave(4 // wanted.shape[2], 2)
    if name == "flash_attn_varlen_func": wanted = wanted.expand(2, 3, 4, 64).flatten(0, 1)
    torch.testing.assert_close(flat.float(), wanted.expand_as(flat), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", CALLS)
def test_softcaps(name):
    call = CALLS[name]
    for none in (None, 0, 0.0): assert same(call(softcap=none), call())
    assert not same(call(softcap=1.0), call())
    with pytest.raises(ValueError, match="^softcap must be finite and positive.*, but is -1.0"): call(softcap=-1.0)


@pytest.mark.parametrize("name", CALLS)
def test_tangents(name):
    """Of q, k, v and descales: refused, not dropped."""
    call, with_fp8 = CALLS[name], dict(zip(("k", "v"), (x.to(FLOAT8) for x in (K, V))))
    tensor = {"flash_attn_qkvpacked_func": ("qkv", drawn(2, 9, 3, 4, 64)),
              "flash_attn_varlen_func": ("k", K.flatten(0, 1)), "flash_attn_with_kvcache": ("k_cache", K)}
    with forward_ad.dual_level():
        which, x = tensor.get(name, ("k", K))
        with pytest.raises(NotImplementedError, match="has a tangent"):
            call(**{which: forward_ad.make_dual(x, torch.ones_like(x))})
        if name == "flash_attn_func":
            dual = forward_ad.make_dual(torch.ones(2, 2), torch.ones(2, 2))
            with pytest.raises(NotImplementedError, match="k_descale has a tangent"): call(**with_fp8, k_descale=dual)


def everything():
    """What makes tensors of its own."""
    fp8 = [x.to(FLOAT8) for x in qkv()]
    yield dense(q=fp8[0], k=fp8[1], v=fp8[2])
    yield dense(k=fp8[1], v=fp8[2], causal=True)
    yield cached(q=fp8[0], k_cache=fp8[1], v_cache=fp8[2], k=NEW.to(FLOAT8), v=NEW.to(FLOAT8))
    yield cached(cache_seqlens=4, k=NEW, v=NEW)
    yield cached(cache_seqlens=None, cache_leftpad=ints(1, 3))
    yield cached(cache_batch_idx=ints(1, 0), cache_leftpad=ints(1, 3), causal=True, k=NEW, v=NEW)
    yield cached(q=Q.flatten(0, 1), cu_seqlens_q=ints(0, 2, 6), max_seqlen_q=4, k=NEW.flatten(0, 1),
                 v=NEW.flatten(0, 1), cu_seqlens_k_new=ints(0, 0, 2))
    yield combined(lse_partial=torch.full((2, 1, 3, 2), -torch.inf, dtype=torch.float32, device="cpu"))
    yield combined()
    yield metadata()


@pytest.mark.parametrize("dtype, device", [(torch.bfloat16, "cpu"), (torch.float64, "cpu"), (torch.float32, "meta"),
                                           (torch.float16, "meta")])
def test_defaults_of_pytorch(dtype, device):
    """torch.set_default_dtype and set_default_device change nothing."""
    wanted = [[x.clone() for x in found] for found in everything()]
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    torch.set_default_device(device)
    try: found = list(everything())
    finally:
        torch.set_default_dtype(before)
        torch.set_default_device(None)
    for a, b in zip(found, wanted, strict=True): assert same(a, b)


def test_combining_keeps_every_lse():
    """Parts without keys count nothing, whatever their out holds; all of them without keys are -inf; those far apart,
    equal, large and small ones add up as they do in float64."""
    lse = torch.tensor([[-torch.inf, 0.0, -200.0, 1e30, -1e30, 80.0], [-torch.inf, -torch.inf, 0.0, 1e30, -1e30, 80.0]])
    parts = torch.stack([torch.full((6, 2), 3.0), torch.full((6, 2), 5.0)])
    parts[:, 0], parts[1, 1] = torch.nan, torch.inf
    out, found = fa.flash_attn_combine(parts[:, None, :, None], lse[:, None, :, None])
    torch.testing.assert_close(found.flatten().double(), torch.logsumexp(lse.double(), 0), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(out[0, :, 0, 0], torch.tensor([0.0, 3.0, 5.0, 4.0, 4.0, 4.0]))
    empty, none = fa.flash_attn_combine(torch.zeros(0, 1, 3, 2, 16), torch.zeros(0, 1, 3, 2))
    assert empty.eq(0).all() and none.eq(-torch.inf).all()


def test_ways_out():
    """What messages name instead."""
    q, k, v = qkv()
    fa.flash_attn_func(torch.cat([q, q], 3), torch.cat([k, k], 3), v)  # qv: its columns beside those of q
    table, pages = torch.tensor([[1, 0], [3, 2]]), drawn(4, 3, 2, 64)
    cached(k_cache=pages[table].flatten(1, 2), v_cache=pages[table].flatten(1, 2), cache_seqlens=ints(5, 6))
    index = torch.tensor([1, 1])
    once = cached(k_cache=k[index], v_cache=v[index])  # a row that is copied
    each = [cached(q=q[b:b + 1], k_cache=k, v_cache=v, cache_seqlens=ints(5 + 2 * b), cache_batch_idx=ints(1))
            for b in range(2)]  # one call for each
    torch.testing.assert_close(once[0], torch.cat([found[0] for found in each]))
    fp8 = [x.to(FLOAT8) for x in (q, k, v)]
    cached(q=fp8[0], k_cache=fp8[1][[1, 0]], v_cache=fp8[2][[1, 0]])  # the cache in the order of the batch
    fa.flash_attn_qkvpacked_func(drawn(2, 9, 8, 64), num_heads_q=4)
    combined(out_partial=drawn(2, 1, 3, 2, 16).float())
