# SPDX-License-Identifier: Apache-2.0
"""Arguments of a wrong kind, layout, device or size, of every entrance of PyTorch and of NumPy: the error is one of
froghopper, names the argument that the caller gave, and is no error of Python's or PyTorch's own."""
import math

import numpy as np
import pytest

import froghopper

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from froghopper import flash_attn_interface as fa
from froghopper.torch import append_kv, attention, paged_attention, quantise, scaled_dot_product_attention

Q, KV, POOL, ROWS = torch.ones(2, 6, 4, 16), torch.ones(2, 9, 2, 16), torch.zeros(6, 4, 2, 16), torch.ones(5, 2, 16)
EIGHT = dict(scale_q=1.0, scale_k=1.0, scale_v=1.0)
TURNED = Q.transpose(1, 2)
QKV, PACKED_QKV = torch.ones(2, 6, 3, 4, 16), torch.ones(11, 3, 4, 16)


def whole(*numbers): return torch.tensor(numbers, dtype=torch.int32)


def small(x): return x.to(torch.float8_e4m3fn)


def held(): return [torch.zeros(2, 6, 4, 16), torch.full((2, 4, 6), -torch.inf)]


def merged(at, change):
    pair = held()
    pair[at] = change(pair[at])
    return attention(Q, KV, KV, accumulate=tuple(pair))


def paged(**words): return paged_attention(Q, POOL, POOL, whole(0, 1, 2, 3).reshape(2, 2), **words)


def cached(**words):
    given = dict(q=Q, k_cache=KV.clone(), v_cache=KV.clone()) | words
    return fa.flash_attn_with_kvcache(**given)


def states(**words):
    given = {name: torch.ones(4, 5) if "lse" in name else torch.ones(5, 4, 16) for name in (
        "output", "prefix_output", "prefix_lse", "suffix_output", "suffix_lse")}
    return fa.merge_attn_states(**given | words)


def combined(**words): return fa.flash_attn_combine(torch.ones(3, 2, 5, 4, 16), torch.ones(3, 2, 5, 4), **words)


def written(**words):
    given = dict(k=ROWS, v=ROWS, k_cache=torch.zeros(3, 8, 2, 16), v_cache=torch.zeros(3, 8, 2, 16)) | words
    return append_kv(**given)


def slots(**words):
    given = dict(key=ROWS, value=ROWS, key_cache=torch.zeros(3, 8, 2, 16), value_cache=torch.zeros(3, 8, 2, 16),
                 slot_mapping=torch.arange(5)) | words
    return fa.reshape_and_cache_flash(**given)


def strided(x): return torch.stack([x, x], -1)[..., 0]


ENDS = dict(cu_seqlens_q=whole(0, 2, 6), cu_seqlens_kv=whole(0, 4, 9))
CASES = [
    (lambda: attention(Q, KV, KV, causal=-3), "causal must be True or False, but is -3"),
    (lambda: attention(Q, KV, KV, causal=2**70), "causal must be True or False"),
    (lambda: attention(Q, KV, KV, gate=Q.to_sparse()), r"gate must be dense, .* Use gate.to_dense\(\)"),
    (lambda: attention(Q, KV, KV, out=Q.to("meta")), "out must be on the device of q, cpu, but is on meta"),
    (lambda: attention(Q, KV, KV, out_dtype=torch.float32), "out_dtype must be None where k is float32"),
    (lambda: attention(Q, KV, KV, scale_k=1.0), "scale_k must be None where k is float32"),
    (lambda: attention(Q.int(), KV, KV), r"q must be float16 or .*, but is int32. Use q.float\(\)"),
    (lambda: attention(Q.tolist(), KV, KV), r"q must be a tensor of PyTorch, but is a list. Use torch.as_tensor\(q\)"),
    (lambda: merged(0, lambda x: x.to("meta")), r"accumulate\[0\] must be on the device of q, cpu"),
    (lambda: merged(1, lambda x: x.to("meta")), r"accumulate\[1\] must be on the device of q, cpu"),
    (lambda: merged(0, strided), r"accumulate\[0\] must have columns side by side"),
    (lambda: merged(1, strided), r"accumulate\[1\] must be contiguous, .* Use accumulate\[1\].contiguous\(\)"),
    (lambda: attention(*map(small, (Q, KV, KV)), **EIGHT, out_dtype="x"), "out_dtype must be a dtype of PyTorch"),
    (lambda: attention(*map(small, (Q, KV, KV)), **EIGHT, out_dtype=[1]), "out_dtype must be a dtype of PyTorch"),
    (lambda: attention(*map(small, (Q, KV, KV)), **EIGHT | dict(scale_k=torch.ones((), device="meta"))),
     "scale_k must be on the device of q"),
    (lambda: attention(Q[0], KV[0], KV[0], **ENDS, max_seqlen_q=2**62), "max_seqlen_q must leave a size that 64 bits"),
    (lambda: paged(sink=torch.ones(3)), r"sink must have the shape \[4\], but has \[3\]"),
    (lambda: paged(sink=torch.ones(4).double()), "sink must be float32, float16 or bfloat16, but is float64"),
    (lambda: paged(alibi_slopes=torch.ones(4).double()), "alibi_slopes must be float32"),
    (lambda: paged(out_dtype=[1]), "out_dtype must be a dtype of PyTorch"),
    (lambda: paged_attention(Q.to_sparse(), POOL, POOL, whole(0, 1, 2, 3).reshape(2, 2)), "q must be dense"),
    (lambda: paged(mean_k=Q), "mean_k must be None where k is float32"),
    (lambda: paged_attention(Q, torch.tensor(1.0), POOL, whole(0, 1)[:, None]), r"k must be \[pages, page_size, heads"),
    (lambda: paged_attention(Q, POOL.to("meta"), POOL, whole(0, 1)[:, None]), "k must be on the device of q"),
    (lambda: paged_attention(Q[0], POOL, POOL, whole(0)[None], cu_seqlens_q=whole(), max_seqlen_q=1),
     "cu_seqlens_q must have one number more than there are sequences, but has 0"),
    (lambda: scaled_dot_product_attention(*[TURNED] * 3, dropout_p=torch.ones(2)), "dropout_p must be a number"),
    (lambda: scaled_dot_product_attention(TURNED, *[TURNED[:, :2]] * 2, enable_gqa="x"),
     "enable_gqa must be True or False"),
    (lambda: quantise(Q, KV, KV, dtype="x"), "dtype must be float8_e4m3fn or float8_e5m2 of torch"),
    (lambda: quantise(Q, KV, KV, max_sms={}), "max_sms must be a whole number"),
    (lambda: quantise(Q, KV, KV, scale_rows=-1), "scale_rows must be 128, or 0 for all rows, but is -1"),
    (lambda: fa.flash_attn_func(Q.to_sparse(), KV, KV), "q, k and v must be dense, .* Use q.to_dense"),
    (lambda: fa.flash_attn_func(Q, KV, KV, alibi_slopes=torch.ones(4).to_sparse()), "alibi_slopes must be dense"),
    (lambda: fa.flash_attn_func(Q, KV, KV, causal=torch.ones(2)), "causal must be True or False, as reading"),
    (lambda: fa.flash_attn_func(Q, KV, KV, dropout_p=torch.ones(2)), "dropout_p must be a number of Python"),
    (lambda: fa.flash_attn_func(Q, KV, KV, s_aux=torch.ones(4).int()), "s_aux must be float32, .* floating-point"),
    (lambda: fa.flash_attn_func(Q, KV, KV, s_aux=[1.0]), "s_aux must be a tensor of PyTorch"),
    (lambda: fa.flash_attn_qkvpacked_func(QKV.int()), r"qkv must be float16 or .*, but are int32. Use qkv.float"),
    (lambda: fa.flash_attn_qkvpacked_func(QKV.to_sparse()), "qkv must be dense"),
    (lambda: fa.flash_attn_qkvpacked_func(QKV[:, :, 0], num_heads_q="x"), "num_heads_q must be a whole number"),
    (lambda: fa.flash_attn_qkvpacked_func(QKV[:, :, 0], num_heads_q=3),
     r"qkv must be \[batch, seq, 3, heads, dim\], or .*, and num_heads_q is 3"),
    (lambda: fa.flash_attn_kvpacked_func(Q, torch.ones(2, 9, 2, 2, 16).half()),
     "kv must have the type of q, .* kv.to"),
    (lambda: fa.flash_attn_varlen_qkvpacked_func(PACKED_QKV, [0, 5, 11], 6), "cu_seqlens must be a tensor of PyTorch"),
    (lambda: fa.flash_attn_varlen_qkvpacked_func(PACKED_QKV, whole(0, 5, 12), 6),
     r"cu_seqlens must be at most 11, .* but cu_seqlens\[2\] is 12"),
    (lambda: fa.flash_attn_varlen_qkvpacked_func(PACKED_QKV, whole(0, 5, 11), 3), "max_seqlen must be at least 6"),
    (lambda: cached(q=None), "q must be a tensor of PyTorch, but is None"),
    (lambda: cached(v_cache=None), "v_cache must be a tensor of PyTorch, but is None"),
    (lambda: cached(window_size="x"), "window_size must be"),
    (lambda: cached(attention_chunk="x"),
     "attention_chunk must be a whole number"),
    (lambda: cached(return_softmax_lse="x"), "return_softmax_lse must be True or False"),
    (lambda: cached(out=Q.to_sparse()), "out must be dense"),
    (lambda: states(output=torch.ones(5, 4, 16).int()), "output must have a floating-point type, but is int32"),
    (lambda: states(suffix_output=torch.ones(5, 4, 16).bool()), "suffix_output must have a floating-point type"),
    (lambda: combined(out=torch.ones(2, 5, 4, 16).int()), "out must have a floating-point type"),
    (lambda: combined(out=torch.ones(1, 5, 4, 16).expand(2, 5, 4, 16)), "out must have elements that do not overlap"),
    (lambda: states(prefix_lse=torch.ones(4, 5).to_sparse()), "prefix_lse must be dense"),
    (lambda: cached(q=Q[:, :1], k=KV[:, :1], v=KV[:, :1], cache_seqlens=1, window_size="x",
                    rotary_cos=torch.ones(9, 8), rotary_sin=torch.ones(9, 8)), "window_size must be .left, right"),
    (lambda: slots(key_cache=torch.zeros(3, 8, 2, 16, dtype=torch.uint8), kv_cache_dtype="fp8",
                   value_cache=torch.zeros(3, 8, 2, 16, dtype=torch.uint8), v_scale=1e39), "v_scale must fit float32"),
    (lambda: combined(out_dtype={1}), "out_dtype must be a dtype of PyTorch"),
    (lambda: fa.get_scheduler_metadata(-5, 1, 9, 4, 2, 64, whole(1, 2)), "batch_size must be 0 or more"),
    (lambda: fa.get_scheduler_metadata(2, 1, 9, 4, 2, 64, np.ones(2)), "cache_seqlens must be a tensor of PyTorch"),
    (lambda: written(block_table=torch.tensor(1, dtype=torch.int32), cu_seqlens=whole(0, 5), max_seqlen=5),
     r"block_table must be \[batch, columns\]"),
    (lambda: slots(key=torch.tensor(1.0)), r"key must be \[tokens, heads, dim\], but has the shape \[\]"),
    (lambda: slots(value=ROWS.to_sparse()), "value must be dense"),
    (lambda: slots(kv_cache_dtype=[1]), r"kv_cache_dtype must be one of .* but is \[1\]"),
]


@pytest.mark.parametrize("call, sentence", [pytest.param(*case, id=case[1][:44]) for case in CASES])
def test_of_torch(call, sentence):
    with torch.no_grad(), pytest.raises(froghopper.Error, match=f"^{sentence}") as told: call()
    assert str(told.value).endswith(".")


def test_results_with_gradients():
    output = torch.ones(5, 4, 16, requires_grad=True)
    with pytest.raises(NotImplementedError, match="^output requires a gradient; .* Use output.detach"):
        states(output=output)
    with torch.no_grad(): states(output=output)


def test_a_cache_without_a_chunk():
    """None is none, also where new rows are rotated."""
    one = dict(q=Q[:, :1], k=KV[:, :1], v=KV[:, :1], cache_seqlens=1, rotary_cos=torch.ones(9, 8),
               rotary_sin=torch.ones(9, 8))
    assert torch.equal(cached(**one, attention_chunk=None), cached(**one))


def of_numpy(**words):
    given = dict(q=np.ones((2, 6, 4, 16), np.float32), k=np.ones((2, 9, 2, 16), np.float32)) | words
    return froghopper.attention(**{"v": given["k"]} | given)


def written_by_numpy(**words):
    given = dict(k=np.ones((5, 2, 16), np.float32), k_cache=np.zeros((3, 8, 2, 16), np.float32)) | words
    return froghopper.append_kv(v=None, v_cache=None, **given)


@pytest.mark.parametrize("call, sentence", [
    (lambda: of_numpy(q=np.float32(3)[None], seqused_q=[1]), r"q must be \[batch, seq, heads, dim\] .* shape \[1\]"),
    (lambda: of_numpy(q=[1.0]), r"q must be an array of NumPy, but is a list. Use numpy.asarray\(q\)"),
    (lambda: of_numpy(causal=-3), "causal must be True or False, but is -3"),
    (lambda: of_numpy(mean_k=np.ones(3), mean_v=np.ones(3)), "mean_k must be None where k is float32"),
    (lambda: of_numpy(out_dtype="float16"), "out_dtype must be None where k is float32"),
    (lambda: written_by_numpy(k=[1.0]), "k must be an array of NumPy, but is a list"),
    (lambda: written_by_numpy(block_table=3, cu_seqlens=[0, 5]), r"block_table must be \[batch, columns\]"),
])
def test_of_numpy(call, sentence):
    with pytest.raises(froghopper.Error, match=f"^{sentence}"): call()


def test_of_jax():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    from froghopper.jax import attention as of_jax
    q, kv = np.ones((2, 6, 4, 16), np.float32), np.ones((2, 9, 2, 16), np.float32)
    for words, sentence in ((dict(q=q.astype(">f4")), "q must have this machine's byte order, but is >f4"),
                            (dict(q=np.array(1, np.float32)), r"q must be \[batch, seq, heads, dim\]")):
        with pytest.raises(froghopper.Error, match=f"^{sentence}"): of_jax(**dict(q=q, k=kv, v=kv) | words)
    with (jax.default_device(jax.devices("cpu")[0]), pytest.raises(
            (ValueError, jax.errors.JaxRuntimeError), match=r"seqused_q\[0\] must be from 0 to 6, .* is -1")):
        of_jax(q, kv, kv, seqused_q=np.full(2, -1, np.int32))


def test_nothing_is_written():
    """What a call refuses at an operator leaves the tensors that it was given as they were."""
    pair = held()
    before = [x.clone() for x in pair]
    with pytest.raises(froghopper.Error, match="k must be on the device of q"):
        attention(Q, KV.to("meta"), KV, accumulate=tuple(pair))
    assert all(map(torch.equal, pair, before)) and not math.isnan(float(pair[0].sum()))
