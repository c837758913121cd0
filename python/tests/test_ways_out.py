# SPDX-License-Identifier: Apache-2.0
"""What a message advises works, with the numbers that the user gave: where it is followed, the call is computed, and is
what was meant. No argument is called otherwise than by the user, and none that must be given is Python's own error."""
import re

import numpy as np
import pytest

import froghopper

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch_cases import drawn, one_thread, qkv  # noqa: E402

from froghopper import flash_attn_interface as fa  # noqa: E402
from froghopper.torch import (append_kv, attention, explain, norm_rotary, paged_attention, quantise,  # noqa: E402
                              scaled_dot_product_attention)

Q, K, V = qkv(2, 9, 4, 16, kv=(2, 9, 2, 16))
E4M3 = torch.float8_e4m3fn
NARROW = [Q.half(), K.to(E4M3), V.to(E4M3)]
POOL, TABLE = drawn(6, 4, 2, 16), torch.tensor([[0, 1, 2], [3, 4, 5]], dtype=torch.int32)
USED = torch.tensor([5, 9], dtype=torch.int32)


def told(error, call):
    with pytest.raises(error) as refusal: call()
    assert isinstance(refusal.value, froghopper.Error)
    return str(refusal.value)


def way(text, **given):
    """The value of the first expression that a message says to use."""
    written = re.search(r"Use (?:\w+=)?(.*?)(?: for .*|, if .*|; for .*|\.)?$", text)[1]
    return eval(written, dict(torch=torch, numpy=np, q=Q, batch=2) | given)


@pytest.mark.parametrize("name, value, right", [
    ("window", 3, dict(window=(3, 0))), ("window", (3,), dict(window=(3, 0))),
    ("window", torch.tensor([3, 1]), dict(window=(3, 1))), ("window_size", 3, dict(window=(3, 0))),
    ("window", -1, {}), ("sink", 0.5, dict(sink=torch.full((4,), 0.5))), ("s_aux", torch.zeros(4, 1), dict(
        sink=torch.zeros(4))), ("softmax_scale", torch.tensor(0.25), dict(scale=0.25)),
    ("causal", torch.tensor(True), dict(causal=True)), ("seqused_k", [5, 9], dict(seqused_kv=USED)),
    ("seqused_k", 5, dict(seqused_kv=torch.full_like(USED, 5))),
    ("alibi_slopes", torch.arange(8.0).reshape(4, 2), dict(alibi_slopes=torch.arange(8.0).reshape(4, 2).T)),
    ("gate", drawn(2, 4, 9, 16), dict(gate=drawn(2, 4, 9, 16).transpose(1, 2)))])
def test_of_torch(name, value, right):
    text = told(Exception, lambda: attention(Q, K, V, **{name: value}))
    assert text.startswith(name) and not re.search(r"\b(scale|sink)\.", text)
    found = attention(Q, K, V, **{name: way(text, **{name: value})})
    assert torch.equal(found, attention(Q, K, V, **right))


@pytest.mark.parametrize("call", [
    lambda lse: froghopper.attention(*(x.numpy() for x in (Q, K, V)), accumulate=(np.zeros((2, 9, 4, 16), "f"), lse)),
    lambda lse: froghopper.attention_backward(*(x.numpy() for x in (Q, Q, K, V, Q)), lse),
    lambda lse: attention(Q, K, V, accumulate=(torch.zeros_like(Q), torch.tensor(lse)))])
def test_axes_are_exchanged_and_not_reshaped(call):
    """lse as another library has it: a reshape would give each row the number of another one."""
    assert re.search(r"Use (lse|accumulate\[1\])\.swapaxes\(1, 2\)\.$", told(
        ValueError, lambda: call(np.zeros((2, 9, 4), np.float32))))


def test_axes_of_jax():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    q, k, v, gate = (jax.numpy.asarray(x.numpy()) for x in (Q, K, V, drawn(2, 4, 9, 16)))
    assert told(ValueError, lambda: froghopper.jax.attention(q, k, v, gate=gate)).endswith("Use gate.swapaxes(1, 2).")


@pytest.mark.parametrize("call, says", [
    (lambda: norm_rotary(Q, K, norm_epsilon=1e-6, norm_q=torch.ones(15)), "Give it 16 numbers, not 15"),
    (lambda: attention(*NARROW, scale_k=True, scale_v=1.0), "^scale_k must be a number, but is True"),
    (lambda: paged_attention(NARROW[0], POOL.to(E4M3), POOL.to(E4M3), TABLE, scale_k=1.0, scale_v=True),
     "^scale_v must be a number, but is True"),
    (lambda: fa.flash_attn_func(*(x.to(E4M3) for x in (Q, K, V)), q_descale=True), "^q_descale must be a number"),
    (lambda: fa.flash_attn_func(*(x.to(E4M3) for x in (Q, K, V)), q_descale=torch.ones(2, 4)),
     "Give one for all query heads of a key head"),
    (lambda: paged_attention(Q, POOL, POOL, TABLE.tolist()), r"torch.as_tensor\(block_table, dtype=torch.int32\)"),
    (lambda: attention(Q, K, V, gate=True), "but is a bool. Give a tensor"),
    (lambda: fa.flash_attn_with_kvcache(Q[:, :1], K, V, cache_seqlens=20), "^cache_seqlens must be from 0 to 9,"),
    (lambda: fa.flash_attn_with_kvcache(Q[:, :1], K, V, cache_seqlens=[2, 3]), r"torch.tensor\(cache_seqlens, dtype="),
    (lambda: fa.flash_attn_func(Q, K, V, window_size=(3,)), r"Use window_size=\(3, 0\)"),
    (lambda: append_kv(K[:, :1].transpose(1, 2), V[:, :1].transpose(1, 2), K.clone(), V.clone(), seqused_kv=USED - 5),
     r"Use k.swapaxes\(1, 2\), if it is \[batch, heads, seq, dim\]"),
    (lambda: attention(Q, K, V, sliding_window=3), r"It is a pair here: \(sliding_window - 1, 0\) with causal=True"),
    (lambda: attention(Q, K, V, block_mask=Q), "masks and scores are not written by the caller here"),
    (lambda: attention(Q, K, V, out=Q), "^out and q are at the same address"),
    (lambda: attention(Q, K, V[:, :5]), "Give both equally many rows"),
    (lambda: attention(Q[0, 0], K, V), "Add the missing dimensions"),
    (lambda: attention(Q[None], K, V), r"Use q.reshape\(2, 9, 4, 16\)"),
    (lambda: attention(Q, K, V, window=(3.0, 0)), "Give the int 3"),
    (lambda: attention(Q, K, V, attention_chunk=None), "but is None. Give attention_chunk=0"),
    (lambda: fa.flash_attn_with_kvcache(Q, K, V, seqused_k=USED), "Did you mean cache_seqlens"),
    (lambda: fa.flash_attn_func(Q, K, V, seqused_k=USED), "flash_attn_varlen_func has lengths of sequences"),
    (lambda: paged_attention(Q, POOL, POOL, TABLE, cu_seqlens_k=USED), "Did you mean seqused_kv"),
    (lambda: scaled_dot_product_attention(Q, K, V, scale=float("nan")), r"^scale must be from -2\^127 to 2\^127,"),
    (lambda: scaled_dot_product_attention(Q, K, V, dropout_p="no"), "but is 'no'"),
    (lambda: scaled_dot_product_attention(Q, K, V, True), "^attn_mask must be None, .* but is a bool"),
])
def test_words(call, says): assert re.search(says, told(Exception, call))


@pytest.mark.parametrize("options, says", [
    (dict(q=Q.double().numpy()), r"^q must be float16, .* but is float64. Use q.astype\(\"float32\"\)"),
    (dict(q=Q.double().numpy(), k=K.double().numpy(), v=V.double().numpy()), r"Use q.astype\(\"float32\"\), and k"),
    (dict(cu_seqlens_q="a", cu_seqlens_k=[0, 9]), "Give a list of ints"),
    (dict(seqused_k=3), r"Use \[seqused_k\] \* batch"), (dict(s_aux=[0.0] * 4), r"numpy.asarray\(s_aux, \"float32\"\)"),
    (dict(out=np.empty((2, 9, 4, 16))), r"Use numpy.empty\(out.shape, q.dtype\)"),
])
def test_of_numpy(options, says):
    given = dict(zip("qkv", (x.numpy() for x in (Q, K, V)))) | options
    assert re.search(says, told(Exception, lambda: froghopper.attention(**given)))


def frameworks():
    yield attention, (Q, K, V)
    yield froghopper.attention, tuple(x.numpy() for x in (Q, K, V))
    try: import jax
    except ImportError: return
    yield froghopper.jax.attention, tuple(jax.numpy.asarray(x.numpy()) for x in (Q, K, V))


def test_names_of_pytorch():
    for function, (q, k, v) in frameworks():
        assert "no argument query; it is q here. Use q" in told(TypeError, lambda: function(query=q, key=k, value=v))
        assert "no argument value; it is v here" in told(TypeError, lambda: function(q, k, value=v))
        for given in ((q, k), (q,), ()): assert "but is None. Give " in told(TypeError, lambda: function(*given))
        np.testing.assert_array_equal(np.asarray(function(q=q, k=k, v=v)), np.asarray(function(q, k, v)))


@pytest.mark.parametrize("call, says", [
    (lambda: froghopper.attention_backward(dout=1), "no argument dout. Did you mean grad_o"),
    (lambda: froghopper.attention_backward(*[Q.numpy()] * 4), "^o and lse must be given to attention_backward"),
    (lambda: froghopper.quantise(Q.numpy(), K.numpy()), "^v must be given to quantise"),
    (lambda: froghopper.quantise(Q.numpy(), K.numpy(), V.numpy(), block=64), "no argument block. It has "),
    (lambda: quantise(Q, K, V, cu_seqlens_k=USED), "^cu_seqlens_q and cu_seqlens_k must be given together"),
    (lambda: norm_rotary(Q, K, cos=Q), "no argument cos. Did you mean rotary_cos"),
    (lambda: norm_rotary(Q), "^k must be given to norm_rotary")])
def test_words_that_no_function_has(call, says): assert re.search(says, told((TypeError, ValueError), call))


def test_words_of_others_in_the_backward_pass_of_numpy():
    q, k, v = (x.numpy() for x in (Q, K, V))
    o, lse = froghopper.attention(q, k, v, scale=0.5, window=(3, 0), return_lse=True)
    found = froghopper.attention_backward(q, q, k, v, o, lse, softmax_scale=0.5, window_size=(3, 0))
    wanted = froghopper.attention_backward(q, q, k, v, o, lse, scale=0.5, window=(3, 0))
    for x, y in zip(found[:3], wanted[:3]): np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("options, says", [
    (dict(softmax_scale=-1), "softmax_scale must be"), (dict(window_size=3.5), "window_size must be"),
    (dict(s_aux=torch.zeros(3)), "s_aux must have"), (dict(seqused_k=USED[:1]), "seqused_k must have"),
    (dict(logits_soft_cap=-1), "logits_soft_cap must be"), (dict(return_softmax_lse=2), "return_softmax_lse must be")])
def test_explain_calls_arguments_as_its_caller_does(options, says):
    assert explain(Q, K, V, **options).startswith("not computed " + says)
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    arrays = [jax.numpy.asarray(x.numpy()) for x in (Q, K, V)]
    options = {name: jax.numpy.asarray(x.numpy()) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    assert froghopper.jax.explain(*arrays, **options).startswith("not computed " + says)


def test_each_explain_knows_the_other():
    assert "use froghopper.explain." in explain("fwd bf16 b2")
    assert froghopper.explain(Q, K, V) == explain(Q, K, V) != ""
    for given, says in (((Q, K), "v must be a tensor of PyTorch"), ((Q,), "k must be a tensor of PyTorch"),
                        ((Q.numpy(),), "k must be an array of NumPy")):
        assert froghopper.explain(*given).startswith(f"not computed {says}, but is None. Give ")


@pytest.mark.parametrize("call, says", [
    (lambda x: attention(Q, K, V, s_aux=x), r"s_aux must have the shape \[4\], but has \[3\]"),
    (lambda x: attention(Q, K, V, seqused_k=x), "seqused_k must be a one-dimensional int32 tensor"),
    (lambda x: paged_attention(Q, POOL, POOL, page_table=x), "page_table must be int32"),
    (lambda x: fa.flash_attn_func(Q, K, V, sinks=x), r"sinks must have the shape \[4\]")])
@pytest.mark.parametrize("whole", [False, True])
def test_names_in_code_that_is_compiled_behind_a_graph_break(call, says, whole):
    """PyTorch breaks the graph at the first exception, compiles the rest alone and quotes the second one."""
    torch._dynamo.reset()
    with pytest.raises(Exception) as refusal: torch.compile(call, backend="eager", fullgraph=whole)(torch.ones(3))
    assert re.search(says, str(refusal.value))
