# SPDX-License-Identifier: Apache-2.0
"""froghopper.explain of calls: arrays of NumPy, those of other frameworks, append_kv. The line that it tells is that of
the call, nothing is computed, and what is wrong is told."""
import importlib.util

import numpy as np
import pytest

import froghopper
from froghopper import _call, _numpy, _numpy_append

explain = froghopper.explain
Q, K, V = (np.zeros(shape, np.float32) for shape in ((2, 6, 4, 16), (2, 9, 2, 16), (2, 9, 2, 24)))
CACHE = dict(k=K, v=V, k_cache=np.zeros((2, 40, 2, 16), np.float32), v_cache=np.zeros((2, 40, 2, 24), np.float32))
EACH = np.array([0, 4, 6]), np.array([0, 5, 9])


def lines_of(told): return [line.split(maxsplit=1)[1] for line in told.splitlines() if line.startswith("problem ")]


def made(monkeypatch, module, call):
    """The line of the plan that a call makes."""
    found = []
    def plan_of(problem, target): return found.append(plan := _call.Plan(problem, target)) or plan
    for name in ("plan_of", "plan_for"):
        if hasattr(module, name): monkeypatch.setattr(module, name, plan_of)
    if hasattr(module, "_calls"): monkeypatch.setattr(module, "_calls", {})
    if hasattr(module, "_bare_calls"): monkeypatch.setattr(module, "_bare_calls", {})
    call()
    return found[-1].line.partition(" -> ")[0]


@pytest.mark.parametrize("words", [
    {}, dict(causal=True, align="top_left"), dict(window=(3, 0), softcap=20.0, max_sms=1), dict(sm_scale=0.5),
    dict(sink=np.zeros(4, np.float32), seqused_kv=[3, 9]), dict(alibi_slopes=[1, 2, 3, 4], return_lse=True),
    dict(return_max_logit=True, invariant=True), dict(gate=np.zeros((2, 6, 4, 24), np.float32), attention_chunk=4),
    dict(accumulate=(np.zeros((2, 6, 4, 24), np.float32), np.zeros((2, 4, 6), np.float32))),
    dict(q=Q[0], k=K[0], v=V[0], cu_seqlens_q=EACH[0], cu_seqlens_k=EACH[1]),
])
def test_the_line_is_that_of_the_call(words, monkeypatch):
    call = dict(q=Q, k=K, v=V) | words
    told = explain(**call)
    assert "\nruns on      cpu\n" in told
    assert lines_of(told) == [made(monkeypatch, _numpy, lambda: froghopper.attention(**call))]
    assert told == explain(*(call.pop(name) for name in "qkv"), **call)


def test_8_bit():
    types = pytest.importorskip("ml_dtypes")
    found = explain(*(x.astype(types.float8_e4m3fn) for x in (Q, K, K)), scale_q=1, scale_k=1, scale_v=1, target="h200")
    assert lines_of(found) == ["fwd e4m3 b2 hq4 hkv2 sq6 skv9 d16"]
    bits = dict(zip("qkv", (x.astype(np.uint8) for x in (Q, K, K)))) | dict(scale_q=1, scale_k=1, scale_v=1)
    assert "e5m2" in explain(**bits, dtype="e5m2") and "dtype must be" in explain(**bits)
    assert "gradients must be False with 8-bit" in explain(**bits, dtype="e5m2", gradients=True)


def test_both_passes_and_another_target():
    found = explain(*(x.astype(np.float16) for x in (Q, K, K)), target="h200", gradients=True)
    assert lines_of(found) == [f"{op} f16 b2 hq4 hkv2 sq6 skv9 d16" for op in ("fwd", "bwd")]
    assert found.count("on a GPU     h200") == 2
    assert 'use target="cpu"' in explain(Q, K, V, target="h200")


@pytest.mark.parametrize("words", [{}, dict(seqused_kv=[3, 4], q=np.repeat(K, 2, 2)),
                                   dict(norm_epsilon=1e-6, max_sms=1)])
def test_append_kv(words, monkeypatch):
    call, before = CACHE | words, CACHE["k_cache"].copy()
    told = explain(**call)
    assert (CACHE["k_cache"] == before).all() and "\nruns on      cpu\n" in told
    assert lines_of(told) == [made(monkeypatch, _numpy_append, lambda: froghopper.append_kv(**call))]
    assert "append f32" in explain(**call, target="h200") and "float16 or bfloat16" in explain(**call, target="h200")


@pytest.mark.parametrize("given, words, says", [
    ((Q, K), {}, "v must be an array of NumPy, but is None"), ((Q, K, V, V), {}, "takes 3 arguments without a name"),
    ((Q, K, V), dict(sm_scale=-1), "sm_scale must be from 0"), ((Q, K, V), dict(targets="cpu"), "Did you mean target?"),
    ((Q, K, V), dict(cause=True), "Did you mean causal?"), ((Q, K, V), dict(target="h300"), "target is \"h300\""),
    ((Q, K.astype(np.float16), V), {}, "k must have the type of q"), ((Q, K, K[:1]), {}, "v must have the batch of k"),
    ((Q, K, V), dict(gradients=2), "gradients must be"), ((Q, K, V), dict(out=Q), "out must have the shape"),
    ((), CACHE | dict(slots=[1]), "append_kv() of froghopper has no argument slots. Did you mean slot_mapping?"),
    ((), CACHE | dict(seqused_kv=[1]), "seqused_kv must have 2 numbers"),
    ((), CACHE | dict(gradients=True), "append_kv has none"),
    ((K, V), {name: CACHE[name] for name in ("k_cache", "v_cache")}, "Use explain(k=k, v=v, k_cache=k_cache"),
])
def test_what_is_wrong_is_told(given, words, says):
    told = explain(*given, **words)
    assert told.startswith("not computed ") and says in told, told


def test_axes_that_look_exchanged_are_named():
    turned = (np.zeros((1, 4, 6, 16), np.float32),) * 3
    assert "\naxes         q has the shape [1, 4, 6, 16]" in explain(*turned)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="there is no PyTorch")
def test_tensors_of_pytorch():
    import torch
    def tensors(call): return {name: torch.as_tensor(x) for name, x in call.items()}
    ours, call = tensors(dict(q=Q, k=K, v=V)), tensors(CACHE)
    assert explain(**ours, causal=True) == froghopper.torch.explain(**ours, causal=True) != ""
    assert explain(*ours.values(), target="h100").startswith("problem ")
    for tell in (explain, froghopper.torch.explain):
        told = tell(**call, seqused_kv=torch.tensor([3, 4], dtype=torch.int32))
        assert lines_of(told)[0].startswith("append f32 b2 hq2 hkv2 sq9 skv40 d16 dv24 seqused"), told
        assert "kernel     append.f16" in tell(**{name: x.half() for name, x in call.items()}, target="h200")
        assert "seqused_kv must be a tensor" in tell(**call, seqused_kv=[3, 4])
        assert "no argument slots. Did you mean slot_mapping?" in tell(**call, slots=ours["q"])
        assert "Use explain(k=k, v=v, k_cache" in tell(ours["k"], ours["v"], k_cache=ours["k"], v_cache=ours["v"])
    assert not call["k_cache"].any()
    meta = {name: x.to("meta") for name, x in call.items()}
    assert lines_of(froghopper.torch.explain(**meta)) == lines_of(explain(**meta, target="h200")) != []


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="there is no JAX")
def test_arrays_of_jax():
    import jax
    described = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (Q, K, V)]
    assert explain(*described) == froghopper.jax.explain(*described) and lines_of(explain(*described)) != []
    assert len(lines_of(explain(*map(jax.numpy.asarray, (Q, K, V)), gradients=True))) == 2
    told = explain(**{name: jax.numpy.asarray(x) for name, x in CACHE.items()})
    assert "explains calls of attention alone. For append_kv give arrays of NumPy" in told


@pytest.mark.parametrize("line, says", [
    ("quantise f16 b1 hq1 hkv1 sq9 skv9 d64 causal", "to the attention of what is quantised. Leave causal out."),
    ("bwd bf16 b1 hq1 hkv1 sq9 skv9 d64 page16 pages3", "or set op to fwd or append."),
    ("append bf16 b1 hq1 hkv1 sq9 skv9 d64 slots rotary64 rows9", "Add positions."),
])
def test_a_line_is_answered_in_its_words(line, says):
    told = explain(line)
    assert says in told and "FH_" not in told and told.startswith(f"problem      {line}\nnot computed "), told
