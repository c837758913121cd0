# SPDX-License-Identifier: Apache-2.0
"""froghopper.flash_attn_interface beside FlashAttention-3's own tests: its grid, its rule of tolerance
(fa3_grid.py), and besides lse, gradients of padding, bits that stay, signatures, and what is refused.

On the CPU a sample runs in which every value of every parameter appears. On a Hopper GPU --fa3-grid=small is a larger
sample and --fa3-grid=full every case that exists here; --fa3-minutes=N skips what has not begun after N minutes.
"""
import inspect
import time

import pytest

torch = pytest.importorskip("torch", reason="the interface of FlashAttention-3 needs torch, which is not installed")

import fa3_grid as grid  # noqa: E402

from froghopper import flash_attn_interface as fa  # noqa: E402

CPU_CASES = {"output": 20, "varlen": 21, "kvcache": 22, "repeat": 15, "combine": 18}
GPU_CASES = {"output": 400, "varlen": 400, "kvcache": 300, "repeat": 60, "combine": 100}
SMALL_BATCH, BATCH, CACHE_BATCH = 2, 9, 5  # the first is the CPU's
STARTED = time.monotonic()


def without_hopper():
    """Why there are no tests on the GPU, or ""."""
    if not torch.cuda.is_available(): return "PyTorch sees no GPU"
    if torch.cuda.get_device_capability() != (9, 0): return f"{torch.cuda.get_device_name()} is no Hopper GPU"
    return ""


def pytest_generate_tests(metafunc):
    """Tests with the fixture `case` are run for the cases of the grid of their name."""
    if "case" not in metafunc.fixturenames: return
    name, size = metafunc.function.__name__.removeprefix("test_"), metafunc.config.getoption("--fa3-grid")
    cases = [("cpu", case) for case in grid.sample(name, CPU_CASES[name])]
    reason, skipped = without_hopper(), []
    if reason: skipped = [pytest.param("cuda", None, marks=pytest.mark.skip(reason=reason), id="cuda")]
    else:
        cases += [("cuda", case) for case in
                  (grid.whole(name) if size == "full" else grid.sample(name, GPU_CASES[name]))]
    named = [pytest.param(*each, id=f"{each[0]}-{grid.name_of(each[1])}") for each in cases]
    metafunc.parametrize("device, case", named + skipped)


@pytest.fixture(autouse=True)
def minutes(request):
    limit = request.config.getoption("--fa3-minutes")
    if limit and time.monotonic() - STARTED > 60 * limit: pytest.skip(f"the {limit} minutes of --fa3-minutes are over")


def batch_of(device, case):
    long = max(case["lengths"]) > 2048
    return (1 if max(case["lengths"]) >= 1000 else SMALL_BATCH) if device == "cpu" else (2 if long else BATCH)


def leaves(*tensors): return [x.detach().clone().requires_grad_() for x in tensors]


def check(found, drawn, out_grad, lse):
    """found: (out, q, k, v's gradients), and lse, beside the references of drawn."""
    answers = []
    for wide in (True, False):
        held = leaves(drawn.q, drawn.k, drawn.v)
        out, logs = grid.reference(*held, drawn.seen, drawn.softcap, wide)
        if wide: lse_answer = logs
        answers.append([out.detach(), *torch.autograd.grad(out, held, out_grad)])
    wrong = {"out": grid.excess_of_output(found[0], *(x[0] for x in answers), drawn.softcap)}
    for at, name in enumerate("qkv", 1):
        wrong["d" + name] = grid.excess_of_gradient(found[at], *(x[at] for x in answers), drawn.softcap)
    wrong["lse"] = grid.excess_of_lse(lse, lse_answer, drawn.q.shape[-1], drawn.softcap)
    assert not any(wrong.values()), {name: text for name, text in wrong.items() if text}


def test_output(device, case):
    batch, (rows, keys), (splits, pack) = batch_of(device, case), case["lengths"], case["hints"]
    drawn, rng = grid.draw(case, batch, device, seed=0)
    count = [torch.full((batch,), n, device=device) for n in (rows, keys)]
    drawn.seen = grid.seen_by(rows, keys, *count, case["causal"], drawn.window)
    held = leaves(drawn.q, drawn.k, drawn.v)
    out, lse = fa.flash_attn_func(*held, causal=case["causal"], window_size=drawn.window, softcap=drawn.softcap,
                                  num_splits=splits, pack_gqa=pack, return_attn_probs=True)
    assert lse.dtype == torch.float32 and lse.shape == (batch, drawn.q.shape[2], rows)
    out_grad = grid.normal(rng, case["dtype"], device, *out.shape)
    check([out.detach(), *torch.autograd.grad(out, held, out_grad)], drawn, out_grad, lse.detach())


def packed_lengths(rng, batch, most, unused, zeros, device):
    """(rows of each sequence, how many count): two lengths are drawn, and where rows are unused both have a meaning."""
    least = max(0 if zeros else 1, most - 20)
    first, second = (torch.randint(least, most + 1, (batch,), generator=rng) for _ in range(2))
    for each in (first, second):
        if zeros: each[::5], each[-1] = 0, 0
    if not unused: return first.to(device), first.to(device)
    return torch.maximum(first, second).to(device), torch.minimum(first, second).to(device)


def ends(lengths): return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)


def test_varlen(device, case):
    batch, (rows, keys), (splits, pack) = max(3, batch_of(device, case)), case["lengths"], case["hints"]
    seed = rows + keys + case["dims"][0] + 2 * case["causal"] + case["local"]
    drawn, rng = grid.draw(case, batch, device, seed)
    (span_q, used_q), (span_kv, used_kv) = (packed_lengths(rng, batch, n, case["unused"], zeros, device)
                                            for n, zeros in ((rows, False), (keys, True)))
    drawn.seen = grid.seen_by(rows, keys, used_q, used_kv, case["causal"], drawn.window)
    in_q, in_kv = (torch.arange(n, device=device) < span[:, None] for n, span in ((rows, span_q), (keys, span_kv)))
    held = leaves(drawn.q[in_q], drawn.k[in_kv], drawn.v[in_kv])
    used = dict(seqused_q=used_q.int(), seqused_k=used_kv.int()) if case["unused"] else {}
    out, lse = fa.flash_attn_varlen_func(*held, ends(span_q), ends(span_kv), rows, keys, **used, causal=case["causal"],
                                         window_size=drawn.window, softcap=drawn.softcap, num_splits=splits,
                                         pack_gqa=pack, return_attn_probs=True)
    assert out.shape == (*held[0].shape[:2], drawn.v.shape[-1]) and lse.shape == (out.shape[1], out.shape[0])
    out_grad = grid.normal(rng, case["dtype"], device, batch, rows, *out.shape[1:])

    def padded(x, where): return x.new_zeros(*where.shape, *x.shape[1:]).masked_scatter_(where[:, :, None, None], x)
    found = torch.autograd.grad(out, held, out_grad[in_q])
    all_lse = torch.full((batch, rows, out.shape[1]), -torch.inf, device=device)
    all_lse[in_q] = lse.detach().T
    check([padded(out.detach(), in_q), padded(found[0], in_q), padded(found[1], in_kv), padded(found[2], in_kv)], drawn,
          out_grad, all_lse.transpose(1, 2))


def test_kvcache(device, case):
    batch = SMALL_BATCH if device == "cpu" else CACHE_BATCH
    (rows, keys), causal = case["lengths"], case["mask"] == "causal"
    drawn, rng = grid.draw(case, batch, device, seed=0)

    def whole_numbers(low, high): return torch.randint(low, max(high, low + 1), (batch,), generator=rng)
    fewer = int(torch.randint(1, rows + 1, (1,), generator=rng)) if case["new"] == "fewer" else rows
    added = 0 if case["new"] == "none" else fewer
    used = whole_numbers(0 if added else 1, keys - added + 1)
    counts = [whole_numbers(max(1, n - 20), n + 1) if case["varlen"] else torch.full((batch,), n)
              for n in (rows, added)]
    if not added: counts[1] = torch.zeros(batch, dtype=torch.long)
    left = (whole_numbers(0, 2 ** 30) % used.clamp(min=1)) if case["leftpad"] else torch.zeros(batch, dtype=torch.long)
    cache_rows = 2 * batch if case["batch_idx"] else batch
    idx = torch.randperm(cache_rows, generator=rng)[:batch] if case["batch_idx"] else torch.arange(batch)
    idx, used, left, count_q, count_new = (x.to(device) for x in (idx, used, left, *counts))

    caches = [x.new_full((cache_rows, keys, *x.shape[2:]), 9.0) for x in (drawn.k, drawn.v)]
    for cache, x in zip(caches, (drawn.k, drawn.v)): cache[idx] = x
    new = [grid.normal(rng, case["dtype"], device, batch, added, *x.shape[2:]) for x in caches]
    wanted = [cache.clone() for cache in caches]
    for b in range(batch):
        for cache, x in zip(wanted, new): cache[idx[b], used[b]:used[b] + count_new[b]] = x[b, :count_new[b]]
    drawn.k, drawn.v = (cache[idx] for cache in wanted)
    drawn.seen = grid.seen_by(rows, keys, count_q, used + count_new, causal, drawn.window, left)

    def in_sequence(count, most): return torch.arange(most, device=device) < count[:, None]
    in_q, given = in_sequence(count_q, rows), {}
    if case["varlen"]: given |= dict(cu_seqlens_q=ends(count_q), max_seqlen_q=rows)
    if case["batch_idx"]: given |= dict(cache_batch_idx=idx.int())
    if case["leftpad"]: given |= dict(cache_leftpad=left.int())
    if case["page"]:  # new keys are there already, as engines write them
        caches, given["page_table"] = grid.in_pages(wanted, case["page"], rng)
        wanted, used = [x.clone() for x in caches], used + count_new
    elif added:
        if case["varlen"]: given |= dict(cu_seqlens_k_new=ends(count_new))
        given |= dict(zip("kv", (x[in_sequence(count_new, added)] if case["varlen"] else x for x in new)))
    q = drawn.q[in_q] if case["varlen"] else drawn.q
    metadata = fa.get_scheduler_metadata(batch, rows, keys, *case["heads"], 128, used.int(), causal=causal)
    out, lse, *parts = fa.flash_attn_with_kvcache(
        q, *caches, cache_seqlens=used.int(), causal=causal, window_size=drawn.window, num_splits=case["splits"],
        scheduler_metadata=metadata, return_softmax_lse=True, **given)
    assert len(parts) == 2 and not any(part.numel() for part in parts)
    for cache, x in zip(caches, wanted): assert torch.equal(cache.view(torch.uint8), x.view(torch.uint8))  # also NaN

    answer, plain = (grid.reference(drawn.q, drawn.k, drawn.v, drawn.seen, 0.0, wide) for wide in (True, False))
    if case["varlen"]:
        found = torch.zeros_like(answer[0])
        found[in_q] = out
        lse_found = torch.full_like(answer[1].transpose(1, 2), -torch.inf)
        lse_found[in_q] = lse.T
        lse_found = lse_found.transpose(1, 2)
    else: found, lse_found = out, lse
    error, allowed = ((x - answer[0]).abs() for x in (found, plain[0]))
    assert error.max().item() <= 2 * allowed.max().item() + 1e-5
    assert error.mean().item() <= 1.5 * allowed.mean().item()
    assert not grid.excess_of_lse(lse_found, answer[1], 128, 0.0)


def test_repeat(device, case):
    """The same bits again and again: the result always, gradients with deterministic=True."""
    drawn, rng = grid.draw(case, SMALL_BATCH if device == "cpu" else 60, device, seed=0)
    held, first = leaves(drawn.q, drawn.k, drawn.v), None
    out_grad = grid.normal(rng, case["dtype"], device, *drawn.q.shape)
    for _ in range(3 if device == "cpu" else 50):
        out = fa.flash_attn_func(*held, causal=case["causal"], deterministic=True)
        found = [out.detach(), *torch.autograd.grad(out, held, out_grad)]
        first = first or found
        for a, b in zip(found, first): assert torch.equal(a, b)


def test_combine(device, case):
    rng, (batch, heads) = torch.Generator().manual_seed(1), (1, 1) if device == "cpu" else (5, 16)
    shape = (case["splits"], batch, case["rows"], heads)
    partial, lse_partial = (torch.randn(*x, generator=rng) for x in ((*shape, case["dim"]), shape))
    lse_partial[torch.rand(shape, generator=rng) < 0.2] = -torch.inf
    partial, lse_partial = partial.to(device), lse_partial.to(device)
    dtype = getattr(torch, case["out_dtype"])
    out, lse = fa.flash_attn_combine(partial, lse_partial, out_dtype=dtype)
    answer_lse = torch.logsumexp(lse_partial.double(), 0)
    weights = torch.exp(lse_partial.double() - answer_lse).nan_to_num(0.0)
    answer = (weights[..., None] * partial.double()).sum(0)
    assert out.dtype == dtype
    torch.testing.assert_close(lse.double(), answer_lse, rtol=1e-5, atol=1e-5)
    error, allowed = (out.double() - answer).abs().max(), 2 * (answer.to(dtype).double() - answer).abs().max()
    assert error <= allowed or torch.allclose(out, answer.to(dtype), 1e-5, 1e-5)
    assert out[answer_lse == -torch.inf].eq(0).all()


@pytest.mark.parametrize("name", grid.GRIDS)
def test_every_value_is_in_the_sample(name):
    cases = grid.sample(name, CPU_CASES[name])
    for parameter, values in grid.GRIDS[name].items(): assert {case[parameter] for case in cases} == set(values)


def some(*shape, dtype=torch.bfloat16): return torch.randn(*shape, generator=torch.Generator().manual_seed(5)).to(dtype)


@pytest.mark.parametrize("grouped", [False, True])
def test_qkvpacked(grouped):
    qkv = some(2, 33, 10, 64) if grouped else some(2, 33, 3, 4, 64)
    parts = [x.detach().requires_grad_() for x in (qkv.split([6, 2, 2], 2) if grouped else qkv.unbind(2))]
    qkv.requires_grad_()
    out = fa.flash_attn_qkvpacked_func(qkv, causal=True, num_heads_q=6 if grouped else None)
    wanted = fa.flash_attn_func(*parts, causal=True)
    assert torch.equal(out, wanted)
    out_grad = some(*out.shape)
    found, parts_found = torch.autograd.grad(out, qkv, out_grad)[0], torch.autograd.grad(wanted, parts, out_grad)
    assert torch.equal(found, torch.cat(parts_found, 2) if grouped else torch.stack(parts_found, 2))


def test_lse_has_a_gradient():
    """Unlike there, where it is dropped: the gradient of lse with respect to q is scale * weights k."""
    q, k, v = leaves(some(1, 5, 1, 16, dtype=torch.float32), some(1, 7, 1, 16, dtype=torch.float32),
                     some(1, 7, 1, 16, dtype=torch.float32))
    _, lse = fa.flash_attn_func(q, k, v, return_attn_probs=True)
    found, = torch.autograd.grad(lse.sum(), q)
    weights = torch.softmax(q[0, :, 0] @ k[0, :, 0].T / 4, -1)
    torch.testing.assert_close(found[0, :, 0], (weights @ k[0, :, 0] / 4).detach(), rtol=1e-4, atol=1e-5)


def test_without_keys():
    """lse is -inf also where k has no rows, where FlashAttention-3 says +inf; combining needs that."""
    out, lse = fa.flash_attn_func(some(1, 3, 2, 64), some(1, 0, 2, 64), some(1, 0, 2, 64), return_attn_probs=True)
    assert out.eq(0).all() and lse.eq(-torch.inf).all() and lse.shape == (1, 2, 3)


def test_strided_columns_are_copied():
    q, k, v = some(2, 9, 4, 64), some(2, 9, 4, 64), some(2, 9, 4, 64)
    turned = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v)]
    assert turned[0].stride(-1) != 1
    assert torch.equal(fa.flash_attn_func(*turned), fa.flash_attn_func(q, k, v))


def test_halves_combine_to_the_whole():
    q, k, v = (some(2, 40, 4, 64, dtype=torch.float32) + at for at in range(3))
    parts = [fa.flash_attn_func(q, k[:, half], v[:, half], return_attn_probs=True)
             for half in (slice(0, 13), slice(13, 40))]
    out, lse = fa.flash_attn_combine(*(torch.stack(x) for x in ([o for o, _ in parts],
                                                                [log.transpose(1, 2) for _, log in parts])))
    wanted, wanted_lse = fa.flash_attn_func(q, k, v, return_attn_probs=True)
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(lse, wanted_lse.transpose(1, 2))


SIGNATURES = {
    "flash_attn_func": "q k v softmax_scale=None causal=False qv=None q_descale=None k_descale=None v_descale=None "
                       "window_size=(-1,-1) attention_chunk=0 softcap=0.0 num_splits=1 pack_gqa=None "
                       "deterministic=False sm_margin=0 return_attn_probs=False",
    "flash_attn_varlen_func": "q k v cu_seqlens_q=None cu_seqlens_k=None max_seqlen_q=None max_seqlen_k=None "
                              "seqused_q=None seqused_k=None softmax_scale=None causal=False qv=None q_descale=None "
                              "k_descale=None v_descale=None "
                              "window_size=(-1,-1) attention_chunk=0 softcap=0.0 num_splits=1 pack_gqa=None "
                              "deterministic=False sm_margin=0 return_attn_probs=False",
    "flash_attn_qkvpacked_func": "qkv softmax_scale=None causal=False q_descale=None k_descale=None v_descale=None "
                                 "window_size=(-1,-1) attention_chunk=0 softcap=0.0 deterministic=False "
                                 "num_heads_q=None sm_margin=0 return_attn_probs=False",
    "flash_attn_with_kvcache": "q k_cache v_cache k=None v=None qv=None rotary_cos=None rotary_sin=None "
                               "cache_seqlens=None cache_batch_idx=None cache_leftpad=None page_table=None "
                               "cu_seqlens_q=None cu_seqlens_k_new=None max_seqlen_q=None rotary_seqlens=None "
                               "q_descale=None k_descale=None v_descale=None softmax_scale=None causal=False "
                               "window_size=(-1,-1) attention_chunk=0 softcap=0.0 rotary_interleaved=True "
                               "scheduler_metadata=None num_splits=0 pack_gqa=None sm_margin=0 "
                               "return_softmax_lse=False",
    "flash_attn_combine": "out_partial lse_partial out=None out_dtype=None",
    "get_scheduler_metadata": "batch_size max_seqlen_q max_seqlen_k num_heads_q num_heads_kv headdim cache_seqlens "
                              "qkv_dtype=torch.bfloat16 headdim_v=None cu_seqlens_q=None cu_seqlens_k_new=None "
                              "cache_leftpad=None page_size=None max_seqlen_k_new=0 causal=False window_size=(-1,-1) "
                              "attention_chunk=0 has_softcap=False num_splits=0 pack_gqa=None sm_margin=0",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name):
    parameters = inspect.signature(getattr(fa, name)).parameters.values()
    said = [p.name if p.default is p.empty else f"{p.name}={p.default!r}".replace(" ", "") for p in parameters
            if p.kind is not p.KEYWORD_ONLY]  # those are FlashAttention 2's and vLLM's
    assert said == SIGNATURES[name].split()
    assert name in fa.__all__


def test_attention_chunk():
    """Of FlashAttention-3: row i sees keys of the chunk in which key i + seq_k - seq_q lies."""
    q, k, v = (some(2, rows, heads, 64).float() for rows, heads in ((9, 4), (21, 2), (21, 2)))
    level = torch.arange(9)[:, None] + 12
    seen = (torch.arange(21) // 5 == level // 5) & (torch.arange(21) <= level)
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), attn_mask=seen, enable_gqa=True).transpose(1, 2)
    words = dict(causal=True, attention_chunk=5)
    torch.testing.assert_close(fa.flash_attn_func(q, k, v, **words), wanted)
    torch.testing.assert_close(fa.flash_attn_with_kvcache(q, k, v, **words), wanted)
    ends_q, ends_k = (torch.tensor([0, n, 2 * n], dtype=torch.int32) for n in (9, 21))
    found = fa.flash_attn_varlen_func(*(x.flatten(0, 1) for x in (q, k, v)), ends_q, ends_k, 9, 21, **words)
    torch.testing.assert_close(found, wanted.flatten(0, 1))


ONE = torch.ones(1)
REFUSED = {
    "qv": (NotImplementedError, dict(qv=ONE), "second query"),
    "attention_chunk": (ValueError, dict(attention_chunk=-1), "attention_chunk must .*, but is -1"),
    "window_size": (TypeError, dict(window_size=(1, 2, 3)), "window_size must .*, but is .1, 2, 3"),
    "nothing_for_hints": (None, dict(sm_margin=8, num_splits=7, pack_gqa=True), ""),
}
REFUSED_CACHE = {
    "page_table": (TypeError, dict(page_table=ONE), "page_table must .*, but is torch.float32 with the shape .1"),
    "rotary_cos": (NotImplementedError, dict(rotary_cos=ONE), "rotate"),
    "rotary_sin": (NotImplementedError, dict(rotary_sin=ONE), "rotate"),
    "k_alone": (ValueError, dict(k=some(2, 1, 2, 64), cache_seqlens=3), "k, v and cache_seqlens must .*, but one is"),
    "kv_without_seqlens": (ValueError, dict(k=some(2, 1, 2, 64), v=some(2, 1, 2, 64)), "k, v and cache_seqlens must"),
    "wide_lengths": (TypeError, dict(cache_seqlens=torch.ones(2, dtype=torch.int64)), "cache_seqlens must .*, but i"),
    "other_batch": (TypeError, dict(cache_seqlens=torch.ones(3, dtype=torch.int32)), r"\[3\]"),
    "shared_rows": (NotImplementedError, dict(cache_batch_idx=torch.tensor([1, 1]), k=some(2, 1, 2, 64),
                                              v=some(2, 1, 2, 64), cache_seqlens=3), r"cache_batch_idx is \[1, 1\]"),
    "no_bound": (ValueError, dict(q=some(4, 4, 64), cu_seqlens_q=torch.tensor([0, 2, 4], dtype=torch.int32)),
                 "max_seqlen_q must .*, but is None"),
    "scattered_cache": (NotImplementedError, dict(k_cache=some(2, 18, 2, 64)[:, :9],
                                                  cache_leftpad=torch.zeros(2, dtype=torch.int32)), "in common"),
    "strided_cache": (ValueError, dict(k_cache=some(2, 9, 64, 2).transpose(2, 3)), "k_cache must .*, but has the sh"),
    "batches": (ValueError, dict(k_cache=some(3, 9, 2, 64), v_cache=some(3, 9, 2, 64),
                                 cache_leftpad=torch.zeros(2, dtype=torch.int32)), "cache_batch_idx"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    error, given, says = REFUSED[name]
    q, k, v = some(2, 3, 4, 64), some(2, 9, 2, 64), some(2, 9, 2, 64)
    lengths = [torch.tensor([0, n, 2 * n], dtype=torch.int32) for n in (3, 9)]
    calls = [lambda: fa.flash_attn_func(q, k, v, **given),
             lambda: fa.flash_attn_varlen_func(*(x.flatten(0, 1) for x in (q, k, v)), *lengths, 3, 9, **given),
             lambda: fa.flash_attn_with_kvcache(q, k, v, **given)]
    for call in calls:
        if error is None: call()
        else:
            with pytest.raises(error, match=says): call()


@pytest.mark.parametrize("name", REFUSED_CACHE)
def test_refused_with_kvcache(name):
    error, given, says = REFUSED_CACHE[name]
    tensors = dict(q=some(2, 3, 4, 64), k_cache=some(2, 9, 2, 64), v_cache=some(2, 9, 2, 64)) | given
    before = tensors["k_cache"].clone(), tensors["v_cache"].clone()
    with pytest.raises(error, match=says): fa.flash_attn_with_kvcache(**tensors)
    assert torch.equal(tensors["k_cache"], before[0]) and torch.equal(tensors["v_cache"], before[1])


def test_refused_types():
    q = some(1, 8, 2, 64)
    for float8 in fa.FLOAT8:  # R10
        found = fa.flash_attn_func(*[q.to(float8).requires_grad_()] * 3)
        assert not found.requires_grad and torch.equal(found, fa.flash_attn_func(*[q.to(float8)] * 3))
    with pytest.raises(ValueError, match="num_heads_q"): fa.flash_attn_qkvpacked_func(some(1, 8, 6, 64))
    with pytest.raises(ValueError, match="qkv must .*, but has t"): fa.flash_attn_qkvpacked_func(some(1, 8, 2, 2, 64))
    with pytest.raises(TypeError, match="out_partial must .*, but is torch.bfloat16"):
        fa.flash_attn_combine(some(2, 1, 8, 2, 64), torch.zeros(2, 1, 8, 2))
    with pytest.raises(ValueError, match="lse_partial"):
        fa.flash_attn_combine(torch.zeros(2, 1, 8, 2, 64), torch.zeros(2, 1, 2, 8))
    with pytest.raises(ValueError, match="out must .*, but has .3"):
        fa.flash_attn_combine(torch.zeros(2, 1, 8, 2, 64), torch.zeros(2, 1, 8, 2), out=torch.zeros(3))
    with pytest.raises((NotImplementedError, ValueError), match="520"):
        fa.flash_attn_func(q, q, some(1, 8, 2, 520))
