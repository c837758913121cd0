# SPDX-License-Identifier: Apache-2.0
"""What froghopper.torch and NumPy's functions say to those who come from another library: a value that has a meaning
there, exchanged axes, words, results that go to a tensor of the caller. The way out that is named is the right one."""
import numpy as np
import pytest

import froghopper

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch_cases import drawn, qkv  # noqa: E402

from froghopper import flash_attn_interface as fa  # noqa: E402
from froghopper.torch import (append_kv, attention, context_parallel, paged_attention,  # noqa: E402
                              scaled_dot_product_attention)

Q, K, V = qkv(2, 9, 4, 16, kv=(2, 9, 2, 16))
ENDS = torch.tensor([0, 9], dtype=torch.int32)
TABLE = torch.tensor([[0], [1]], dtype=torch.int32)


def refused(kind, says, call):
    with pytest.raises(kind, match=says) as told: call()
    assert isinstance(told.value, froghopper.Error)
    return str(told.value)


@pytest.mark.parametrize("call", [
    lambda softcap: fa.flash_attn_func(Q, K, V, softcap=softcap),
    lambda softcap: fa.flash_attn_varlen_func(Q[0], K[0], V[0], ENDS, ENDS, 9, 9, softcap=softcap),
    lambda softcap: fa.flash_attn_with_kvcache(Q, K, V, softcap=softcap)])
def test_a_negative_softcap_is_none_nowhere(call):
    """FlashAttention takes it for none; so 0 and None are here, as everywhere."""
    for softcap in (-1, -1.0):
        refused(ValueError, "^softcap must be finite and positive.* but is -1", lambda: call(softcap))
    assert torch.equal(call(0), call(None)) and not torch.equal(call(0), call(0.5))


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.complex64])
def test_sinks_that_are_no_floats(dtype):
    """Also under the names of other libraries: no number is lost in a cast."""
    sink = torch.ones(4).to(dtype)
    said = rf"must be float32, float16 or bfloat16, but is {str(dtype)[6:]}. Use \w+(.real)?.float\(\)."
    refused(TypeError, f"^sink {said}", lambda: attention(Q, K, V, sink=sink))
    refused(TypeError, f"^s_aux {said}", lambda: attention(Q, K, V, s_aux=sink))
    refused(TypeError, f"^sinks {said}", lambda: paged_attention(Q, K, V, TABLE, sinks=sink))
    refused(TypeError, "^s_aux must be float32, float16, bfloat16 or another",
            lambda: fa.flash_attn_func(Q, K, V, s_aux=sink))
    assert torch.equal(attention(Q, K, V, s_aux=torch.ones(4).double()), attention(Q, K, V, sink=torch.ones(4)))


NEW = dict(k=K[:, :1], v=V[:, :1], cache_seqlens=3)
PACKED_Q = dict(q=Q[:, :1].flatten(0, 1), cu_seqlens_q=torch.tensor([0, 1, 2], dtype=torch.int32), max_seqlen_q=1)


@pytest.mark.parametrize("given", [{}, NEW, dict(page_table=TABLE), dict(cache_leftpad=torch.zeros(2).int()), dict(
    cache_batch_idx=TABLE[:, 0]), PACKED_Q])
def test_the_cache_is_what_is_wrong_with_a_cache(given):
    """And not k and v, which are new rows, or nothing at all."""
    def call(k_cache=K, v_cache=V, **words):
        return fa.flash_attn_with_kvcache(**dict(q=Q[:, :1], k_cache=k_cache.clone(), v_cache=v_cache.clone()) |
                                          given | words)
    new = {name: x.half() for name, x in given.items() if name in "kv"}
    for says, wrong in (
            (r"^k_cache must have the type of q, float32, but is float16. Use k_cache.to\(q.dtype\).$",
             lambda: call(K.half(), V.half(), **new)),
            (r"^q, k_cache and v_cache must be .* Use q.float\(\), k_cache.float\(\) and", lambda: call(
                K.double(), V.double(), q=given.get("q", Q[:, :1]).double(), **{name: x.double() for name, x in
                                                                                 new.items()})),
            (r"^k_cache must have the dim of q, 16, but has 8: their shapes are \[2, 9, 2, 8\] and \[",
             lambda: call(K[..., :8].contiguous(), **{name: x[..., :8] for name, x in new.items()})),
            (r"^v_cache must have the rows, seq and heads of k_cache", lambda: call(v_cache=V[:, :, :1].contiguous()))):
        refused((TypeError, ValueError), says, wrong)
    compiled = torch.compile(call, backend="eager")
    with pytest.raises(Exception, match="k_cache must have the type of q"): compiled(K.half(), V.half(), **new)


def turned(x): return x.transpose(1, 2).contiguous()


@pytest.mark.parametrize("q, k_cache, v_cache", [(Q[:, :5], turned(K), turned(V)), (turned(Q[:, :5]), K, V),
                                                 (turned(Q[:, :5]), turned(K), turned(V))])
@pytest.mark.parametrize("function", ["flash_attn_with_kvcache", "its pages", "paged_attention"])
def test_exchanged_axes_of_a_cache(function, q, k_cache, v_cache):
    """The way that fits is among those that are named, and gives what right axes give."""
    def call(q, k_cache, v_cache):
        if function == "paged_attention": return paged_attention(q, k_cache, v_cache, TABLE)
        return fa.flash_attn_with_kvcache(q, k_cache, v_cache, page_table=TABLE if function == "its pages" else None)
    given = dict(q=q, k_cache=k_cache, v_cache=v_cache)
    said = refused(ValueError, "heads_k.*, must divide heads.*if .* heads before rows", lambda: call(**given))
    said = said.replace(" k.swapaxes", " k_cache.swapaxes").replace(" v.swapaxes", " v_cache.swapaxes")
    ways = [{name for name in given if f"{name}.swapaxes(1, 2)" in way} for way in said.split("; or ")]
    wrong = {name for name, x, right in zip(given, given.values(), (Q[:, :5], K, V)) if x.shape != right.shape}
    assert wrong in ways
    torch.testing.assert_close(call(**{name: x.swapaxes(1, 2) if name in wrong else x for name, x in given.items()}),
                               call(Q[:, :5], K, V))


def test_exchanged_axes_of_new_rows():
    new = dict(k=turned(K[:, :1]), v=turned(V[:, :1]))
    refused(ValueError, r"^k must be .*Use k.swapaxes\(1, 2\), if it is \[batch, heads, seq, dim\]",
            lambda: fa.flash_attn_with_kvcache(Q[:, :1], K, V, **new, cache_seqlens=3))
    refused(ValueError, r"Use k.swapaxes\(1, 2\) and k_cache.swapaxes\(1, 2\), a view, if both have heads before rows",
            lambda: append_kv(**new, k_cache=turned(K), v_cache=turned(V), seqused_kv=TABLE[:, 0]))


def overlapping(x): return torch.as_strided(x.new_empty(x.numel()), x.shape, (0, *x.stride()[1:]))


OUTS = {"shape": lambda x: x[..., :8], "type": lambda x: x.half(), "columns": lambda x: torch.cat((x, x), -1)[..., ::2],
        "rows": overlapping, "axes": turned}
WAYS = {"attention": lambda **words: attention(Q, K, V, **words),
        "pages": lambda **words: paged_attention(Q, K, V, TABLE, **words),
        "cache": lambda **words: fa.flash_attn_with_kvcache(Q, K, V, **words),
        "NumPy": lambda out: froghopper.attention(*(x.numpy() for x in (Q, K, V)), out=out)}


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("wrong", OUTS)
def test_a_tensor_for_results_that_does_not_fit(name, wrong):
    """Of a copy the caller sees nothing: another tensor, or a view, is what fits, and what is written then."""
    call, out = WAYS[name], OUTS[wrong](torch.empty_like(Q))
    if name == "NumPy": out = np.lib.stride_tricks.as_strided(out.numpy(), strides=[4 * n for n in out.stride()]) if (
        wrong == "rows") else out.numpy()
    said = refused((TypeError, ValueError), "^out ", lambda: call(out=out))
    assert "contiguous" not in said and "cop" not in said
    ways = [way.partition("; of what")[0] for way in said.partition("Use ")[2].rstrip(".").split(" in PyTorch, ")]
    assert ("in PyTorch" in said and "in NumPy" in said) == (len(ways) == 2) and (name != "NumPy" or len(ways) == 1)
    given = dict(torch=torch, numpy=np, out=out, q=Q.numpy() if name == "NumPy" else Q)
    fits = eval((ways[-1] if name == "NumPy" else ways[0]).removesuffix(" in NumPy"), given)
    found = call(out=fits)
    torch.testing.assert_close(torch.as_tensor(found), attention(Q, K, V))
    assert found is fits and (wrong != "axes" or np.shares_memory(np.asarray(fits), np.asarray(out)))


def test_arrays_for_results_of_numpy():
    q, k, v = (x.numpy() for x in (Q, K, V))
    read_only, masked = np.zeros_like(q), np.ma.masked_array(np.zeros_like(q))
    read_only.setflags(write=False)
    refused(ValueError, r"read-only. Use numpy.empty\(out.shape, out.dtype\)[.]$",
            lambda: froghopper.attention(q, k, v, out=read_only))
    refused(TypeError, r"mask, .* Use out.data[.]$", lambda: froghopper.attention(q, k, v, out=masked))
    froghopper.attention(q, k, v, out=masked.data)
    assert masked.any()
    o, lse = froghopper.attention(q, k, v, return_lse=True)
    for wrong in (np.zeros_like(k)[:, ::-1], np.zeros_like(k)[..., :8], np.zeros((2, 9, 2, 32), "f")[..., ::2]):
        refused(ValueError, r"^out\[1\] .*Use numpy.zeros\((\[2, 9, 2, 16\]|out\[1\].shape), out\[1\].dtype\)[.]$",
                lambda: froghopper.attention_backward(o, q, k, v, o, lse,
                                                      out=(np.zeros_like(q), wrong, np.zeros_like(k))))


def test_rows_of_a_cache_that_is_copied_go_to_the_copy():
    caches = [torch.zeros(2, 9, 2, 32)[..., ::2] for _ in range(2)]
    said = refused(ValueError, "^k_cache must have columns side by side", lambda: append_kv(
        K[:, :1], V[:, :1], *caches, seqused_kv=TABLE[:, 0]))
    assert "Keep a copy, to which rows go then: k_cache = k_cache.contiguous() in PyTorch" in said


def bits(call): return froghopper.attention(*(x.numpy() for x in (Q, K, V)), **call)


@pytest.mark.parametrize("word", ["qkv_format", "tensor_layout", "layout", "qkv_layout"])
@pytest.mark.parametrize("function", [lambda **words: attention(Q, K, V, **words), lambda **words: bits(words),
                                      lambda **words: fa.flash_attn_func(Q, K, V, **words)])
def test_words_for_layouts(function, word):
    refused(NotImplementedError, rf"no argument {word}; q is \[batch, seq, heads, dim\] .\"bshd\", \"NHD\".* heads "
            "before rows .\"bhsd\"", lambda: function(**{word: "bhsd"}))
    function(**{word: None})


@pytest.mark.parametrize("call, says", [
    (lambda word: attention(Q, K, V, **word), "Use cu_seqlens_q and cu_seqlens_kv[.]"),
    (lambda word: fa.flash_attn_varlen_func(Q[0], K[0], V[0], ENDS, ENDS, 9, 9, **word),
     "Use cu_seqlens_q and cu_seqlens_k[.]"),
    (lambda word: fa.flash_attn_func(Q, K, V, **word), "Use cu_seqlens_q and cu_seqlens_k of flash_attn_varlen_func"),
    (lambda word: context_parallel.attention(Q, K, V, **word), "Use cu_seqlens[.]")])
@pytest.mark.parametrize("word", ["segment_ids", "q_segment_ids", "document_ids"])
def test_words_for_packed_sequences(call, says, word):
    refused(NotImplementedError, f"no argument {word}; .* rows where they begin. {says}", lambda: call({word: ENDS}))


def test_words_for_pools():
    wanted, used = paged_attention(Q, K, V, TABLE), TABLE[:, 0] + 4
    assert torch.equal(paged_attention(Q, k_pool=K, v_pool=V, block_table=TABLE), wanted)
    assert torch.equal(fa.flash_attn_with_kvcache(Q, k_pool=K, v_pool=V, page_table=TABLE), wanted)
    found = [K.clone(), V.clone()]
    append_kv(K[:, :1], V[:, :1], k_pool=found[0], v_pool=found[1], block_table=TABLE, seqused_kv=used)
    assert torch.equal(found[0][0, 4], K[0, 0])
    for word in ("k_pool", "key_cache"):
        refused(TypeError, f"no argument {word}; it is k here. Use k, with block_table where it has pages",
                lambda: attention(Q, v=V, block_table=TABLE, **{word: K}))
    refused(TypeError, "^k_pool must have the type of q", lambda: paged_attention(
        Q, k_pool=K.half(), v_pool=V, block_table=TABLE))


@pytest.mark.parametrize("shape", [(2, 9, 4), (2, 9, 4, 1)])
def test_a_gate_of_each_head(shape):
    gate, o = drawn(*shape, seed=7), attention(Q, K, V)
    wanted = o * gate.reshape(2, 9, 4, 1).sigmoid()
    for numpy, call in ((False, lambda x: attention(Q, K, V, gate=x)), (True, lambda x: bits(dict(gate=x))),
                        (False, lambda x: paged_attention(Q, K, V, TABLE, gate=x))):
        given = gate.numpy() if numpy else gate
        said = refused(ValueError, "^gate must have the shape .* If each head has one, use ", lambda: call(given))
        ways = said.partition(", use ")[2].split(" in PyTorch, ")
        way = eval(ways[-1].rstrip(".") if numpy else ways[0], dict(gate=given, numpy=np))
        torch.testing.assert_close(torch.as_tensor(call(way)), wanted)
    refused(NotImplementedError, "it is an argument of froghopper.torch.attention and paged_attention", lambda:
            fa.flash_attn_func(Q, K, V, gate=gate))
    refused(TypeError, "Did you mean gate", lambda: attention(Q, K, V, output_gate=gate))


@pytest.mark.parametrize("heads, options", [(2, dict(enable_gqa=True)), (4, {})])
def test_rows_before_heads_for_pytorch(heads, options):
    q, k, v = qkv(2, 5, 4, 16, kv=(2, 9, heads, 16))
    says = (r", which look like \[batch, seq, heads, dim\]. Use query.transpose\(1, 2\), key.transpose\(1, 2\) and "
            r"value.transpose\(1, 2\), or froghopper.torch.attention")
    def call(*given): return scaled_dot_product_attention(*given, **options)
    refused(ValueError, says, lambda: call(q, k, v))
    with pytest.raises(Exception, match=says): torch.compile(call, backend="eager")(q, k, v)
    torch.testing.assert_close(call(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2), attention(q, k, v))
    said = refused(ValueError, "heads", lambda: call(*(x.transpose(1, 2) for x in (q, k[:, :, :1].repeat(1, 1, 3, 1),
                                                                                   v[:, :, :1].repeat(1, 1, 3, 1)))))
    assert "look like" not in said


@pytest.mark.parametrize("order", [("q", "k", "v", "o", "lse", "grad_o"), ("q", "k", "v", "o", "grad_o", "lse"),
                                   ("grad_o", "q", "k", "v", "lse", "o"), ("grad_o", "o", "q", "k", "v", "lse")])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_arrays_of_a_backward_pass_in_another_order(order, dtype):
    """Told by shapes and not by types, of which that of lse is another one."""
    given = dict(zip("qkv", (x[:, rows].numpy().astype(dtype) for x, rows in ((Q, slice(5)), (K, slice(9)),
                                                                            (V, slice(9))))))
    o, lse = froghopper.attention(**given, return_lse=True)
    given |= dict(o=o, lse=lse, grad_o=o)
    names = ", ".join(order[:-1]) + " and " + order[-1]
    said = refused(ValueError, f"^grad_o, q, k, v, o and lse must be in this order, but .* those of {names}: "
                   r"grad_o \[.*Use attention_backward\(grad_o, q, k, v, o, lse\), or",
                   lambda: froghopper.attention_backward(*(given[name] for name in order)))
    assert f"lse {list(given[order[-1]].shape)}." in said
    found = froghopper.attention_backward(*(given[name] for name in ("grad_o", "q", "k", "v", "o", "lse")))
    for x, y in zip(found, froghopper.attention_backward(**given)): assert x is y or np.array_equal(x, y)


def own_texts():
    """Every text of the package that says what to do in PyTorch and in NumPy, as far as it stands in one place."""
    from froghopper import _library_words, _values
    for name in ("q", "out", "k_cache"): yield _values.way_to_dense(name) + "."
    yield _values.new_result("out") + "."
    yield _values.way_to_shape("gate", (2, 9, 4), (2, 9, 4, 16)) + "."
    for _, put in _library_words.SENTENCES:
        if "PyTorch" in put: yield put


@pytest.mark.parametrize("text", [*own_texts()])
def test_a_way_in_numpy_alone(text):
    """Of what to do in either, what NumPy has is left, as a sentence."""
    from froghopper._library_words import of_numpy_alone
    found = of_numpy_alone(f"q must be so. {text}")
    assert "PyTorch" not in found and "NumPy" not in found and "torch." not in found and ".contiguous()" not in found
    assert found.startswith("q must be so. ") and "numpy." in found or ".copy()" in found


IN_NUMPY = {
    "columns": lambda q, k: froghopper.attention(np.asfortranarray(q), k, k),
    "backwards": lambda q, k: froghopper.attention(q[:, ::-1], k, k),
    "one row": lambda q, k: froghopper.attention(np.broadcast_to(q[:1, :1, :1], q.shape), k, k),
    "gate": lambda q, k: froghopper.attention(q, k, k, gate=q[..., 0]),
    "out": lambda q, k: froghopper.attention(q, k, k, out=np.asfortranarray(q)),
    "gradients": lambda q, k: froghopper.attention_backward(
        np.asfortranarray(q), q, k, k, q, np.zeros((2, 4, 9), "f")),
    "quantise": lambda q, k: froghopper.quantise(np.asfortranarray(q), k, k),
    "cache": lambda q, k: froghopper.append_kv(k[:, :1], k[:, :1], np.asfortranarray(k), k, seqused_kv=[0, 0])}


@pytest.mark.parametrize("call", IN_NUMPY.values(), ids=IN_NUMPY)
def test_numpy_is_told_of_numpy(call):
    said = refused((TypeError, ValueError), "numpy.|copy", lambda: call(Q.numpy(), K.numpy()))
    assert "PyTorch" not in said and "contiguous()" not in said and "torch." not in said, said
