# SPDX-License-Identifier: Apache-2.0
"""What somebody who is new to the packages tries first: calls that are taken, or answered with a way out."""
import contextlib
import logging
import subprocess
import sys

import numpy as np
import pytest

import froghopper

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch_cases import drawn  # noqa: E402

from froghopper import flash_attn_interface as fa  # noqa: E402
from froghopper import torch as ft  # noqa: E402

Q, NEW, CACHE = drawn(2, 1, 8, 64), drawn(2, 1, 2, 64), drawn(2, 64, 2, 64)
POOL, TURNED = drawn(10, 16, 2, 64), drawn(10, 2, 16, 64)
TABLE = torch.tensor([[0, 1, 2], [3, 4, 5]], dtype=torch.int32)
USED = torch.tensor([3, 3], dtype=torch.int32)
E4M3 = torch.float8_e4m3fn


def refused(words, call):
    with pytest.raises(froghopper.Error, match=words): call()


def test_pools_with_heads_before_rows():
    refused(r"Use k.swapaxes\(1, 2\) and v.swapaxes\(1, 2\), views",
            lambda: ft.paged_attention(Q, TURNED, TURNED, TABLE, seqused_kv=USED))
    refused(r"swapaxes\(1, 2\), views",
            lambda: fa.flash_attn_with_kvcache(Q, TURNED, TURNED, cache_seqlens=USED, block_table=TABLE))
    with contextlib.suppress(ImportError):
        from froghopper.jax import attention
        q, pool, table, used = (x.numpy() for x in (Q, TURNED, TABLE, USED))
        refused(r"swapaxes\(1, 2\), views", lambda: attention(q, pool, pool, block_table=table, seqused_kv=used))
    assert ft.paged_attention(Q, *[TURNED.swapaxes(1, 2)] * 2, TABLE, seqused_kv=USED).shape == Q.shape


def test_new_rows_and_cache_exchanged():
    for of, cache, more in ((ft, CACHE, {}), (ft, POOL, dict(block_table=TABLE)),
                            (ft, POOL, dict(slot_mapping=torch.tensor([1, 2]))), (froghopper, CACHE, {}),
                            (froghopper, POOL, dict(block_table=TABLE))):
        more = more | ({} if "slot_mapping" in more else dict(seqused_kv=USED))
        given = [cache, cache.clone(), NEW.clone(), NEW.clone()]
        if of is froghopper: given, more = [x.numpy() for x in given], {name: x.numpy() for name, x in more.items()}
        refused(r"Give longer caches or fewer rows; if k is the cache and k_cache the new rows, use append_kv\(k, v, ",
                lambda: of.append_kv(*given, **more))
        given = [*given[2:], *given[:2]]
        of.append_kv(*given, **more)


@pytest.mark.parametrize("smooth", [False, True])
def test_quantise_is_traced(smooth):
    q, k = drawn(2, 40, 4, 64).bfloat16(), drawn(2, 40, 2, 64).bfloat16()
    def both(q, k, v): return ft.attention(**ft.quantise(q, k, v, smooth=smooth)._asdict(), causal=True)
    compiled = torch.compile(both, fullgraph=True, dynamic=smooth, backend="aot_eager")
    assert torch.equal(compiled(q, k, k), both(q, k, k))
    whole = torch.compile(lambda: ft.quantise(q, k, k, smooth=smooth), fullgraph=True, backend="aot_eager")()
    for ours, theirs in zip(whole, ft.quantise(q, k, k, smooth=smooth)):
        assert ours.shape == theirs.shape and torch.equal(ours.float(), theirs.float())


def test_quantise_of_packed_sequences_is_traced():
    x, ends = drawn(40, 2, 64).bfloat16(), torch.tensor([0, 15, 40], dtype=torch.int32)
    def small(**given): return ft.quantise(x, x, x, cu_seqlens_q=ends, cu_seqlens_kv=ends, **given)
    compiled = torch.compile(small, fullgraph=True, backend="aot_eager")
    bounds = dict(max_seqlen_q=25, max_seqlen_kv=25)
    assert torch.equal(compiled(**bounds).scale_k, small(**bounds).scale_k)
    with pytest.raises(Exception, match="max_seqlen_q and max_seqlen_kv must be given"): compiled()


def test_explain_says_how_to_ask():
    line = "fwd f32 b1 hq1 hkv1 sq64 skv64 d64"
    for call, found in ((lambda: froghopper.explain(line, causal=True), "a str, causal"),
                        (lambda: froghopper.explain(line, "cpu", "h200"), "a str, a str, a str"),
                        (lambda: froghopper.explain(line, CACHE), "a str, a Tensor"),
                        (lambda: froghopper.explain(), "nothing")):
        refused(f"or what attention or append_kv takes, but is given {found}. Write the line, as in froghopper.explain",
                call)


def test_a_contradiction_is_told_as_not_computed():
    assert ft.explain(CACHE, CACHE, CACHE, max_sms=-1).startswith("not computed max_sms must be 0 or more")


def asked(*words):
    return subprocess.run([sys.executable, "-m", "froghopper", "explain", *words], capture_output=True, text=True)


def test_a_line_without_quotes():
    line = "fwd bf16 b1 hq8 hkv8 sq64 skv64 d128"
    for target in ([], ["h200"]):
        assert asked(*line.split(), *target).stdout == asked(line, *target).stdout != ""
    found = asked(line, "causal", "h200")
    assert found.returncode == 2 and "Quote the line" in found.stderr


def test_the_first_call_logs_its_plan_once(caplog):
    x = drawn(1, 23, 3, 48)
    with caplog.at_level(logging.INFO, "froghopper"):
        for _ in range(3): ft.attention(x, x, x)
    assert len([line for line in caplog.messages if line.startswith("plan: ")]) == 1


def test_a_scale_for_each_head():
    pool, scale = POOL.to(E4M3), torch.tensor([0.5, 3.0])
    of_sequences = scale.expand(2, 2).clone()
    def paged(scale): return ft.paged_attention(Q.half(), pool, pool, TABLE, seqused_kv=USED, scale_k=scale,
                                                scale_v=scale)
    assert torch.equal(paged(scale), paged(of_sequences))
    ft.append_kv(NEW, NEW, pool, pool.clone(), seqused_kv=USED, block_table=TABLE, scale_k=scale, scale_v=scale)
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    x = jax.numpy.asarray(CACHE.numpy()).astype("float8_e4m3fn")
    def dense(scale): return froghopper.jax.attention(x, x, x, scale_q=scale, scale_k=scale, scale_v=scale)
    assert (dense(scale.numpy()) == dense(of_sequences.numpy())).all()


def test_words_that_context_parallel_of_jax_has_not():
    pytest.importorskip("jax", reason="JAX is not installed")
    refused("has no argument window. It has axis_name, causal",
            lambda: froghopper.jax.context_parallel.attention(NEW, NEW, NEW, "ring", window=(3, 0)))


def test_help_has_all_that_is_public():
    for module in (froghopper, ft):
        for name in set(module.__all__) - {"__version__", "context_parallel"}:
            if not issubclass(type(getattr(module, name)), type): assert name in module.__doc__, name
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    assert jax
    for name in ("attention", "context_parallel", "explain", "quantise"): assert name in froghopper.jax.__doc__
    for name in froghopper.MODULES: assert f"froghopper.{name} " in froghopper.__doc__


def test_what_a_cache_is_told_in_its_own_words():
    def call(cache=CACHE, **words):
        return fa.flash_attn_with_kvcache(Q, cache, cache, **dict(cache_seqlens=USED) | words)
    refused("^page_table and block_table are given, and .* Leave out one",
            lambda: call(POOL, block_table=TABLE, page_table=TABLE))
    refused("cache_seqlens must be int32.*Give it 2 numbers", lambda: call(cache_seqlens=USED[:1]))
    refused("k_cache must be .batch, seq, heads, dim.*Give it 4 dimensions", lambda: call(CACHE[0]))
    refused("Give cache_batch_idx or, for a pool of pages, page_table", lambda: call(POOL))


def test_axes_in_the_words_of_jax():
    jax = pytest.importorskip("froghopper.jax", reason="JAX is not installed")
    told = jax.explain(np.zeros((2, 16, 256, 64), "float32"), *[np.zeros((2, 4, 256, 64), "float32")] * 2, causal=True)
    assert "swapaxes" in told and "froghopper.torch" not in told


def test_words_of_decode():
    from froghopper.torch import context_parallel as cp
    refused("decode.* has no argument causal. It has block_table", lambda: cp.decode(Q, CACHE, CACHE, causal=True))
