# SPDX-License-Identifier: Apache-2.0
"""flash_attn_with_kvcache and its cache: nothing is written before everything is checked, and on a GPU, where lengths
are not read, nothing is written or read outside of it and nothing waits."""
import contextlib
import copy

import pytest

torch = pytest.importorskip("torch", reason="the interface of FlashAttention-3 needs torch, which is not installed")

from torch.autograd import forward_ad  # noqa: E402
from torch_cases import GPU  # noqa: E402

from froghopper import _kv_cache as kv_cache  # noqa: E402
from froghopper import flash_attn_interface as fa  # noqa: E402
from froghopper.torch import attention  # noqa: E402

ROWS, KEYS, NEW = 3, 9, 2


def drawn(*shape, seed=0, dtype=torch.bfloat16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def ints(*numbers, dtype=torch.int32): return torch.tensor(numbers, dtype=dtype)


def given(**changed):
    """A call that is right, changed."""
    tensors = dict(q=drawn(2, ROWS, 4, 64), k_cache=drawn(2, KEYS, 2, 64, seed=1),
                   v_cache=drawn(2, KEYS, 2, 64, seed=2), k=drawn(2, NEW, 2, 64, seed=3),
                   v=drawn(2, NEW, 2, 64, seed=4), cache_seqlens=ints(4, 7))
    return {name: x for name, x in (tensors | changed).items() if x is not None}


def packed(**changed):
    return given(**dict(q=drawn(6, 4, 64), cu_seqlens_q=ints(0, 3, 6), max_seqlen_q=3) | changed)


def new_packed(ends): return dict(k=drawn(4, 2, 64), v=drawn(4, 2, 64), cu_seqlens_k_new=ends)


def without_a_kernel(): return given(**{name: drawn(2, rows, heads, 60) for name, rows, heads in (
    ("q", ROWS, 4), ("k_cache", KEYS, 2), ("v_cache", KEYS, 2), ("k", NEW, 2), ("v", NEW, 2))})


REFUSED = {
    "a_full_cache": (ValueError, given(cache_seqlens=ints(4, 8)),
                     r"cache_seqlens\[1\] must .* 2 rows are added, but is 8.*Use 0 to 7"),
    "a_negative_length": (ValueError, given(cache_seqlens=ints(-2, 3)), r"cache_seqlens\[0\] must .*, but is -2"),
    "a_negative_number": (ValueError, given(cache_seqlens=-1), r"cache_seqlens must .*, but is -1"),
    "a_number_too_large": (ValueError, given(cache_seqlens=8), r"cache_seqlens must .*, but is 8"),
    "no_number": (TypeError, given(cache_seqlens=2.5), "cache_seqlens must .*, but is 2.5"),
    "negative_without_new": (ValueError, given(cache_seqlens=-1, k=None, v=None),
                             r"cache_seqlens must .*, but is -1"),
    "large_without_new": (ValueError, given(cache_seqlens=ints(1, 10), k=None, v=None),
                          r"cache_seqlens\[1\] must .*, but is 10"),
    "one_head": (ValueError, given(k=drawn(2, NEW, 1, 64)), r"k must .*here \[2, 2, 2, 64\].* shape \[2, 2, 1, 64\]"),
    "one_sequence": (ValueError, given(v=drawn(1, NEW, 2, 64)), r"v must .* the shape \[1, 2, 2, 64\]"),
    "one_column": (ValueError, given(v=drawn(2, NEW, 2, 1)), r"v must .* the shape \[2, 2, 2, 1\]"),
    "fewer_values": (ValueError, given(v=drawn(2, 1, 2, 64)), r"v must .* the shape \[2, 1, 2, 64\]"),
    "packed_without_ends": (ValueError, given(k=drawn(4, 2, 64), v=drawn(4, 2, 64)),
                            "k must .*, but has the shape .*, or give cu_seqlens_k_new"),
    "other_type": (TypeError, given(v=drawn(2, NEW, 2, 64).half()), "k and v must .*, but are torch.bfloat16 and to"),
    "other_columns_of_q": (ValueError, given(q=drawn(2, ROWS, 4, 32)), "dim"),
    "other_type_of_q": (TypeError, given(q=drawn(2, ROWS, 4, 64).half()), "k_cache must .*, but is bfloat16"),
    "heads": (ValueError, given(q=drawn(2, ROWS, 3, 64)), "heads"),
    "head_dim": (NotImplementedError, without_a_kernel(), "head dims must .*, but that of q and k_cache is 60"),
    "more_than_all": (ValueError, given(k=drawn(2, KEYS + 1, 2, 64), v=drawn(2, KEYS + 1, 2, 64)),
                      "k must .*, but has 10 for each sequence"),
    "two_caches": (ValueError, given(v_cache=drawn(2, KEYS - 1, 2, 64)), "v_cache must .* the shape"),
    "another_batch": (ValueError, given(k_cache=drawn(3, KEYS, 2, 64), v_cache=drawn(3, KEYS, 2, 64)),
                      "Give cache_batch_idx"),
    "chunks": (ValueError, given(attention_chunk=-1), "attention_chunk must .*, but is -1"),
    "scale": (ValueError, given(softmax_scale=float("nan")), "softmax_scale must .*, but is nan"),
    "softcap": (ValueError, given(softcap=float("nan")), "softcap must .*, but is nan"),
    "window": (TypeError, given(window_size=(1, 2, 3)), "window_size"),
    "margin": (ValueError, given(sm_margin=-1), "sm_margin must .*, but is -1"),
    "left": (ValueError, given(cache_leftpad=ints(0, 10)), r"cache_leftpad\[1\] must be from 0 to 9, but is 10"),
    "left_past_the_end": (ValueError, given(k=None, v=None, cache_seqlens=ints(3, 7), cache_leftpad=ints(5, 2)),
                          r"cache_leftpad\[0\] must be at most 3, .* by cache_seqlens, but is 5. If .* use cache_s"),
    "left_past_new_rows": (ValueError, given(cache_seqlens=ints(3, 0), cache_leftpad=ints(3 + NEW, 1 + NEW)),
                           rf"cache_leftpad\[1\] must be at most {NEW}, .* and the new rows, but is {1 + NEW}"),
    "left_past_an_int": (ValueError, given(k=None, v=None, cache_seqlens=4, cache_leftpad=ints(4, 5)),
                         r"cache_leftpad\[1\] must be at most 4"),
    "keys_past_a_bound": (ValueError, given(k=None, v=None, cache_seqlens=ints(3, 7), max_seqlen_k=6),
                          r"max_seqlen_k must be at least 7, which cache_seqlens\[1\] is, but is 6. Use .*=7"),
    "new_keys_past_a_bound": (ValueError, given(cache_seqlens=ints(7, 3), max_seqlen_k=torch.tensor(6 + NEW)),
                              f"max_seqlen_k must be at least {7 + NEW}, the keys of sequence 0"),
    "new_keys_past_a_bound_of_pages": (ValueError, given(
        k_cache=drawn(4, 16, 2, 64), v_cache=drawn(4, 16, 2, 64), page_table=ints([0, 1], [2, 3]), max_seqlen_k=7,
        cache_seqlens=ints(7, 3)), f"max_seqlen_k must be at least {7 + NEW}, the keys of sequence 0"),
    "all_keys_past_a_bound": (ValueError, given(k=None, v=None, cache_seqlens=None, max_seqlen_k=KEYS - 1),
                              f"max_seqlen_k must be at least {KEYS}, the rows of the cache, which all"),
    "a_bound_below_0": (ValueError, given(max_seqlen_k=-1), "max_seqlen_k must be 0 or more"),
    **{f"a_bound_that_is_{wrong}": (TypeError, given(max_seqlen_k=wrong), "max_seqlen_k must be a whole number")
       for wrong in ("x", [1.0], float("nan"))},
    "left_of_others": (TypeError, given(cache_leftpad=ints(0, 1, 2)), r"cache_leftpad.*\[3\]"),
    "left_wide": (TypeError, given(cache_leftpad=ints(0, 1, dtype=torch.int64)), "cache_leftpad must .*, but is tor"),
    "index": (ValueError, given(cache_batch_idx=ints(0, 2)), r"cache_batch_idx\[1\] must be from 0 to 1, but is 2"),
    "index_negative": (ValueError, given(cache_batch_idx=ints(-1, 0)), "cache_batch_idx.0. must .*, but is -1"),
    "index_twice": (NotImplementedError, given(cache_batch_idx=ints(1, 1)), "cannot share"),
    "scattered": (NotImplementedError, given(k_cache=drawn(2, 2 * KEYS, 2, 64)[:, :KEYS], cache_leftpad=ints(0, 0)),
                  "a whole number that both have in common"),
    "no_bound": (ValueError, packed(max_seqlen_q=None), "max_seqlen_q must .*, but is None"),
    "a_low_bound": (ValueError, packed(max_seqlen_q=2),
                    "max_seqlen_q must be at least 3, the rows of sequence 0, but is 2. Use max_seqlen_q=3"),
    "a_low_bound_of_a_batch": (ValueError, given(max_seqlen_q=2), "max_seqlen_q must .*, but is 2"),
    "ends_that_fall": (ValueError, packed(cu_seqlens_q=ints(0, 3, 2)),
                       "cu_seqlens_q must not fall, .*, but falls from 3 to 2 at entry 2"),
    "ends_without_a_0": (ValueError, packed(cu_seqlens_q=ints(1, 3, 6)), "cu_seqlens_q must begin with 0, but begins"),
    "ends_past_q": (ValueError, packed(cu_seqlens_q=ints(0, 6, 9), max_seqlen_q=9),
                    "cu_seqlens_q must end at 6 at most, as q has 6 rows, but ends at 9"),
    "packed_q_without_ends": (ValueError, packed(cu_seqlens_q=None, max_seqlen_q=None),
                              "or give cu_seqlens_q and max_seqlen_q for"),
    "ends_of_nothing": (TypeError, packed(cu_seqlens_q=ints()), "cu_seqlens_q"),
    "new_ends_past_k": (ValueError, given(**new_packed(ints(0, 2, 5))),
                        "cu_seqlens_k_new must end at 4 at most, as k has 4 rows, but ends at 5"),
    "new_ends_that_fall": (ValueError, given(**new_packed(ints(0, 3, 2))),
                           "cu_seqlens_k_new must not fall, .*, but falls from 3 to 2 at entry 2"),
    "too_many_new": (ValueError, given(**new_packed(ints(0, 1, 4))),
                     r"cache_seqlens\[1\] must .* 3 rows are added, but is 7"),
    "new_ends_of_others": (TypeError, given(**new_packed(ints(0, 1, 2, 3))), "cu_seqlens_k_new"),
    "new_ends_alone": (ValueError, given(k=None, v=None, cu_seqlens_k_new=ints(0, 1, 2)), "k and v must .*, but are"),
    "elsewhere": (ValueError, given(k=drawn(2, NEW, 2, 64).to("meta")), "k must be .* is on meta"),
    "a_list": (TypeError, given(k=[1]), "k must be .* is a list"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_nothing_is_written_before_all_is_checked(name):
    error, call, says = REFUSED[name]
    before = [call[cache].clone() for cache in ("k_cache", "v_cache")]
    with pytest.raises(error, match=says): fa.flash_attn_with_kvcache(**call)
    assert torch.equal(call["k_cache"], before[0]) and torch.equal(call["v_cache"], before[1])


@pytest.mark.parametrize("name", ["q", "k", "v", "k_cache", "v_cache"])
def test_tangents_are_refused_before_it(name):
    call = copy.deepcopy(given())
    with forward_ad.dual_level():
        before = call["k_cache"].clone(), call["v_cache"].clone()
        held = dict(call)
        held[name] = forward_ad.make_dual(call[name], torch.ones_like(call[name]))
        with pytest.raises(NotImplementedError, match=f"{name} has a tangent"): fa.flash_attn_with_kvcache(**held)
    assert torch.equal(call["k_cache"], before[0]) and torch.equal(call["v_cache"], before[1])


def test_ways_out():
    """What the messages name: shorter lengths, a longer cache, the index of a cache with other rows."""
    call = copy.deepcopy(given(cache_seqlens=ints(4, 7)))
    wanted = call["k_cache"].clone()
    wanted[0, 4:6], wanted[1, 7:9] = call["k"][0], call["k"][1]
    fa.flash_attn_with_kvcache(**call)
    assert torch.equal(call["k_cache"], wanted)
    longer = {name: drawn(2, KEYS + 1, 2, 64) for name in ("k_cache", "v_cache")}
    fa.flash_attn_with_kvcache(**given(cache_seqlens=ints(4, 8), **longer))
    other = {name: drawn(3, KEYS, 2, 64) for name in ("k_cache", "v_cache")}
    fa.flash_attn_with_kvcache(**given(cache_batch_idx=ints(2, 0), **other))
    scattered = drawn(2, 2 * KEYS, 2, 64)[:, :KEYS].contiguous()
    fa.flash_attn_with_kvcache(**given(k_cache=scattered, cache_leftpad=ints(0, 0)))
    fa.flash_attn_with_kvcache(**packed())


def test_four_results():
    """As FlashAttention-3 has them: partial results of splits are empty tensors where there are none."""
    found = fa.flash_attn_with_kvcache(**given(), return_softmax_lse=True)
    assert len(found) == 4 and all(isinstance(x, torch.Tensor) for x in found)
    assert found[1].shape == (2, 4, ROWS) and [x.numel() for x in found] == [found[0].numel(), 8 * ROWS, 0, 0]


@contextlib.contextmanager
def nothing_waits(device):
    """An error for what waits for the GPU."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
    try: yield
    finally:
        if device == "cuda": torch.cuda.set_sync_debug_mode("default")


USED = (-2, -1, 0, 3, KEYS - NEW, KEYS - 1, KEYS, KEYS + 4, 2**31 - 1)


def placed(cache, new, used, counts):
    """(the cache with new rows, as loops write them; how many rows count then)."""
    cache, found = cache.clone(), []
    for b, (first, count) in enumerate(zip(used, counts)):
        for at in range(count):
            if 0 <= first + at < cache.shape[1]: cache[b, first + at] = new[b][at]
        found.append(max(0, min(first + count, cache.shape[1])))
    return cache, found


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("how", ["dense", "packed", "fp8"])
def test_rows_without_a_place_are_not_written(device, how):
    """Lengths that nobody checked: those on a GPU."""
    batch, dtype = len(USED), torch.float8_e4m3fn if how == "fp8" else torch.bfloat16
    caches = [drawn(batch, KEYS, 2, 64, seed=at).to(device).to(dtype) for at in range(2)]
    counts = [1, 3, 0, 3, 2, 3, 1, 2, 2] if how == "packed" else [NEW] * batch
    new = [[drawn(count, 2, 64, seed=9 * at + b).to(device).to(dtype) for b, count in enumerate(counts)]
           for at in range(2)]
    begins, used = None, ints(*USED).to(device)
    given_new = [torch.stack(x) for x in new] if how != "packed" else None
    if given_new is None:  # three rows more than the sequences have
        begins = ints(*[sum(counts[:b]) for b in range(batch + 1)]).to(device)
        given_new = [torch.cat([*x, torch.ones_like(x[2])]) for x in new]

    def bytes_of(x): return x.view(torch.uint8) if how == "fp8" else x
    wanted = [placed(bytes_of(cache), [bytes_of(rows) for rows in x], USED, counts) for cache, x in zip(caches, new)]
    def append(): return kv_cache.append_and_rotate(given_new[0], *caches, *given_new, used, None, None, begins)[1]
    if device == "cpu":
        before = [bytes_of(cache).clone() for cache in caches]
        with pytest.raises(ValueError, match=r"seqused_kv\[0\] must be 0 or more, .* but is -2"): append()
        assert all(torch.equal(bytes_of(cache), x) for cache, x in zip(caches, before))
        return
    with nothing_waits(device): found = append()
    assert found.clamp(0, KEYS).tolist() == wanted[0][1] and found.dtype == torch.int32
    for cache, (held, _) in zip(caches, wanted): assert torch.equal(bytes_of(cache), held)


@pytest.mark.parametrize("device", [GPU])
@pytest.mark.parametrize("left", [False, True])
def test_a_call_with_such_lengths(device, left):
    """On a GPU: the cache, out and lse of what counts, without waiting; a sequence of no rows gets 0 and -inf."""
    batch = len(USED)
    q, k_cache, v_cache, k, v = (drawn(batch, rows, heads, 64, seed=at).to(device) for at, (rows, heads) in enumerate(
        ((ROWS, 4), (KEYS, 2), (KEYS, 2), (NEW, 2), (NEW, 2))))
    begin = [0, 0, 2, 4, 0, -3, 20, 1, 8] if left else [0] * batch
    given_left = dict(cache_leftpad=ints(*begin).to(device)) if left else {}
    wanted, counts = placed(k_cache, k, USED, [NEW] * batch)
    wanted_v, _ = placed(v_cache, v, USED, [NEW] * batch)
    used = ints(*USED).to(device)
    fa.flash_attn_with_kvcache(q, k_cache.clone(), v_cache.clone(), k, v, cache_seqlens=used.clamp(0, 5), causal=True,
                               **({"cache_leftpad": used.clamp(0, 3)} if left else {}))  # the kernels are loaded
    with nothing_waits(device):
        out, lse, *_ = fa.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=used, causal=True,
                                                  return_softmax_lse=True, **given_left)
    assert torch.equal(k_cache, wanted) and torch.equal(v_cache, wanted_v)
    for b, count in enumerate(counts):
        rows = slice(min(max(begin[b], 0), KEYS), count)
        alone, alone_lse = attention(q[b:b + 1], wanted[b:b + 1, rows], wanted_v[b:b + 1, rows], causal=True,
                                     return_lse=True)
        torch.testing.assert_close(out[b:b + 1], alone, rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(lse[b:b + 1], alone_lse, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["q", "k_cache", "v_cache", "k", "v", "s_aux", "alibi_slopes", "out", "rotary_cos"])
@pytest.mark.parametrize("without", [(), ("k", "v")])
def test_gradients_are_refused(name, without):
    """As attention to pages refuses them: what is written to a cache has no gradients, and o would silently have
    none."""
    if name in without or (without and name == "rotary_cos"): pytest.skip("it is not given")
    more = dict(s_aux=torch.ones(4), alibi_slopes=torch.ones(4), out=torch.empty(2, ROWS, 4, 64, dtype=torch.bfloat16),
                rotary_cos=torch.ones(KEYS, 32), rotary_sin=torch.zeros(KEYS, 32))
    call = given(**more) if not without else given(**dict.fromkeys((*without, "k", "v")), **{
        at: x for at, x in more.items() if "rotary" not in at})
    call[name] = call[name].clone().requires_grad_()
    before = call["k_cache"].detach().clone()
    with pytest.raises(NotImplementedError, match=f"^{name} requires a gradient; flash_attn_with_kvcache has none. Use "
                                                  rf"{name}.detach\(\), or call under torch.no_grad\(\)"):
        fa.flash_attn_with_kvcache(**call)
    assert torch.equal(call["k_cache"], before)
    with torch.no_grad(): assert not fa.flash_attn_with_kvcache(**call).requires_grad or name == "out"


def test_fp8_has_no_gradients_to_refuse():
    """As flash_attn_func, which drops them there."""
    call = given(k=None, v=None)
    call |= {name: call[name].to(torch.float8_e4m3fn) for name in ("q", "k_cache", "v_cache")}
    wanted = fa.flash_attn_with_kvcache(**call)
    call["q"] = call["q"].requires_grad_()
    found = fa.flash_attn_with_kvcache(**call)
    assert not found.requires_grad and torch.equal(found, wanted)
