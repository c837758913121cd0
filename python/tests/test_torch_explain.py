# SPDX-License-Identifier: Apache-2.0
"""froghopper.torch.explain takes what attention takes, and tells what attention would raise; PyTorch's number of
threads counts on the CPU; swapped axes are recognised."""
import inspect
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import froghopper
from froghopper import _torch_calls as calls
from froghopper import _torch_explain
from froghopper.torch import attention, explain


def qkv(*, heads_kv=2, **options):
    return torch.zeros(2, 30, 4, 64, **options), *(torch.zeros(2, 50, heads_kv, 64, **options) for _ in range(2))


def test_a_call_is_explained():
    told = explain(*qkv(), causal=True, window=(9, 0), softcap=20.0, sink=torch.zeros(4))
    assert "fwd f32 b2 hq4 hkv2 sq30 skv50 d64 window9,0" in told and "softcap20 sink" in told and "cpu" in told
    told = explain(*qkv(dtype=torch.bfloat16, device="meta"), causal=True, target="h200")
    assert "fwd bf16" in told and "h200" in told and "kernel" in told and "bwd" not in told
    q, k, v = qkv(dtype=torch.bfloat16)
    told = explain(q.requires_grad_(), k, v, target="h200")
    assert "fwd bf16" in told and "bwd bf16" in told
    pool = torch.zeros(9, 16, 2, 64, dtype=torch.bfloat16)
    told = explain(q.detach(), pool, pool, block_table=torch.zeros(2, 4, dtype=torch.int32), target="h200")
    assert "page16 pages9" in told and "skv64" in told
    assert "kv=e4m3" in explain(q.detach(), k.to(torch.float8_e4m3fn), v.to(torch.float8_e4m3fn), scale_k=1.0,
                                scale_v=2.0)


def test_words_of_other_libraries_are_taken():
    assert "scale0.1" in explain(*qkv(), softmax_scale=0.1)
    assert "window3,0" in explain(*qkv(), window_size=(3, 0), enable_gqa=True, attn_mask=None)


@pytest.mark.parametrize("words, sentence", [
    (dict(cu_seqlens_q=[0, 30], cu_seqlens_kv=[0, 50]), "cu_seqlens_q must be a tensor of PyTorch, but is a list"),
    (dict(max_seqlen_q=30), "must be None without cu_seqlens"), (dict(out=[]), "out must be a tensor of PyTorch"),
    (dict(out=torch.zeros(1, 30, 4, 64)), r"out must have the shape \[2, 30, 4, 64\]"),
    (dict(accumulate=(torch.zeros(2, 30, 4, 64),)), "accumulate must be"), (dict(is_causal=True), "is_causal"),
    (dict(sink=torch.zeros(4, requires_grad=True), out=torch.zeros(2, 30, 4, 64)), "requires a gradient"),
])
def test_what_a_call_refuses_is_told(words, sentence):
    """By the sentence of the call itself."""
    with pytest.raises(froghopper.Error, match=sentence) as refused: attention(*qkv(), **words)
    assert explain(*qkv(), **words) == f"not computed {refused.value}"


def test_a_call_of_pages_that_is_refused_is_told():
    pool, words = torch.zeros(9, 16, 2, 64), dict(block_table=torch.zeros(2, 4, dtype=torch.int32))
    assert "return_max_logit" in explain(qkv()[0], pool, pool, **words, return_max_logit=True)
    assert "requires a gradient" in explain(qkv(requires_grad=True)[0], pool, pool, **words)


def test_a_call_without_memory():
    q, k, v = qkv(device="meta")
    assert attention(q, k, v, causal=True).shape == q.shape


def test_a_contradiction_is_told():
    assert "heads_kv must divide heads_q, 4, but is 3" in explain(*qkv(heads_kv=3))
    assert "not computed" in (told := explain(*qkv(), causl=True)) and "causl" in told
    assert "not computed" in explain(1, 2, 3)


def test_it_knows_every_argument():
    known = inspect.signature(attention).parameters
    assert {name: p.default for name, p in known.items() if p.kind is p.KEYWORD_ONLY} == _torch_explain.DEFAULTS


def test_threads_of_pytorch():
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        attention(*qkv())
        assert calls.threads_for(torch.zeros(1)) == 1
        assert any("sms1" in ready.call.plan.line for ready in calls._forward.values())
        assert "sms1" in explain(*qkv()) and "sms1" in explain(*qkv(device="meta"), target="cpu")
        assert "sms3" in explain(*qkv(), max_sms=3) and "sms" not in explain(*qkv(dtype=torch.bfloat16), target="h200")
    finally: torch.set_num_threads(threads)


def test_max_sms_of_the_other_forms():
    """The same numbers with one thread; a wrong kind is named."""
    q, k, v = (x.transpose(1, 2).contiguous() for x in (torch.randn_like(x) for x in qkv(heads_kv=4)))
    attend = froghopper.torch.scaled_dot_product_attention
    torch.testing.assert_close(attend(q, k, v, max_sms=1), attend(q, k, v), atol=0, rtol=0)
    assert any("sms1" in ready.call.plan.line for ready in calls._forward.values())
    torch.testing.assert_close(attend(q[..., :60], k[..., :60], v, max_sms=2), attend(q[..., :60], k[..., :60], v))
    with pytest.raises(TypeError, match="max_sms"): attend(q, k, v, max_sms=1.0)
    with pytest.raises(ValueError, match="max_sms"): attend(q, k, v, max_sms=-1)


@pytest.mark.parametrize("call, way", [(attention, "transpose"), (froghopper.attention, "swapaxes")])
def test_swapped_axes_are_recognised(call, way):
    """Each framework's own way out is named."""
    q, k, v = (torch.zeros(2, heads, rows, 64) for heads, rows in ((16, 100), (4, 300), (4, 300)))
    if call is froghopper.attention: q, k, v = (x.numpy() for x in (q, k, v))
    with pytest.raises(ValueError, match=rf"look like \[batch, heads, seq, dim\]. Use q.{way}\(1, 2\)") as told:
        call(q, k, v)
    assert ("froghopper.torch" in str(told.value)) == (call is attention)
    with pytest.raises(ValueError, match=r"look like \[batch, heads, seq, dim\]"): call(q[:, :, :1], k, v)  # decoding
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    assert call(q, k, v).shape == (2, 100, 16, 64)


def test_nothing_is_raised_by_explain():
    """Whatever is wrong is told, also what PyTorch or the target's name is told of."""
    q, k, v = qkv()
    nested = torch.nested.nested_tensor([q[0], q[1]], layout=torch.jagged)
    for told in (explain(q, k, v, target=3), explain(q, k, v, max_sms=2**70), explain(nested, k, v),
                 explain(q, k, v, bananas=1), explain([1], k, v), explain(q, k, v, out=3)):
        assert told.startswith("not computed ")
    assert "names neither a backend nor a Hopper GPU" in explain(q, k, v, target="bananas")


def test_only_as_many_numbers_can_be_reshaped():
    q, k, v = qkv()
    for shape, out in (((2,), "Give it 4 numbers, not 2"), ((2, 2), r"Use sink.reshape\(4\)")):
        with pytest.raises(ValueError, match=out): attention(q, k, v, sink=torch.zeros(shape))


def test_swapped_axes_that_fit_are_warned_of():
    """At the line of the user, whatever is between: there are more heads than models have."""
    q = torch.zeros(2, 16, 300, 8)
    calls_of_users = [
        lambda: attention(q, q, q), lambda: froghopper.torch.explain(q, q, q),
        lambda: froghopper.attention(q.numpy(), q.numpy(), q.numpy()),
        lambda: froghopper.flash_attn_interface.flash_attn_func(q[:1], q[:1], q[:1]),
        lambda: attention(q[:, :4], q[:, :4], q[:, :4], return_max_logit=True),
    ]
    for call in calls_of_users:
        with pytest.warns(UserWarning, match=r"300 heads of (16|8|4) queries and .*(pose|axes)\(1") as told: call()
        assert {each.filename for each in told} == {__file__}
    right = [x.transpose(1, 2) for x in (q, q, q)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attention(*right)
        froghopper.torch.scaled_dot_product_attention(q, q, q)


GROUPED = torch.zeros(2, 16, 300, 8), torch.zeros(2, 4, 300, 8)  # [batch, heads, seq, dim]


@pytest.mark.parametrize("call", [
    attention, froghopper.attention, lambda *x: attention(*x, return_max_logit=True),
    lambda *x: froghopper.flash_attn_interface.flash_attn_func(*(y[:1] for y in x))])
def test_swapped_axes_of_grouped_heads_are_warned_of(call):
    """Not refused: 300 key heads may be meant, as windows or chunks."""
    q, k = (x.numpy() for x in GROUPED) if call is froghopper.attention else GROUPED
    with pytest.warns(UserWarning, match="300 heads of 16 queries and 4 keys. If they are .batch, heads"):
        call(q, k, k)
    call(*(x.swapaxes(1, 2) for x in (q, k, k)))


def test_swapped_axes_of_few_rows():
    """With fewer rows than models have heads: a causal call shows it, where queries are more than keys as query heads
    are more than key heads; and an error of heads names both ways out."""
    q, k = torch.zeros(2, 16, 60, 8), torch.zeros(2, 4, 60, 8)
    for call in (attention, lambda *x, causal: froghopper.attention(*(y.numpy() for y in x), causal=causal)):
        with pytest.warns(UserWarning, match="60 heads of 16 queries and 4 keys. If they are .batch, heads"):
            call(q, k, k, causal=True)
    with pytest.raises(ValueError, match="must divide heads_q, 12. Use k and v with fewer heads; or, if they"):
        attention(torch.zeros(2, 16, 12, 8), *[torch.zeros(2, 16, 5, 8)] * 2)


@pytest.mark.parametrize("of_q, of_kv, causal", [
    ((8, 1, 64, 8), (8, 300, 8, 8), True), ((8, 1, 128, 8), (8, 1, 128, 8), True),  # steps of decoding
    ((2, 16, 64, 8), (2, 16, 64, 8), True), ((2, 16, 60, 8), (2, 4, 60, 8), False),  # short, and to few keys
    ((2, 300, 16, 8), (2, 100, 4, 8), False), ((2, 300, 16, 8), (2, 100, 4, 8), True)])
def test_right_axes_are_not_warned_of(of_q, of_kv, causal):
    q, k = torch.zeros(of_q), torch.zeros(of_kv)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attention(q, k, k, causal=causal)
        froghopper.attention(*(x.numpy() for x in (q, k, k)), causal=causal)


def test_compiled_calls_of_heads_first_are_not_warned_of():
    """The operator in compiled code does not know which function its tensors come from."""
    q, k = (x.transpose(1, 2) for x in GROUPED)
    compiled = torch.compile(lambda q, k: froghopper.torch.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), k.transpose(1, 2), enable_gqa=True), backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(q, k)
        compiled(*GROUPED)


def test_heads_first_cannot_be_swapped():
    """PyTorch's signature says which axis is which: 300 windows in the place of heads are meant."""
    q, k = (x.contiguous() for x in GROUPED)
    attend = froghopper.torch.scaled_dot_product_attention
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for query, key in ((q, q), (q, k)):
            query, key = query.transpose(1, 2), key.transpose(1, 2)
            assert attend(query, key, key).shape == (2, 300, 16, 8)
            assert attend(query[..., :4], key[..., :4], key[..., :4]).shape == (2, 300, 16, 4)
            assert attend(query[:, None], key[:, None], key[:, None]).shape == (2, 1, 300, 16, 8)
