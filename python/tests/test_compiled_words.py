# SPDX-License-Identifier: Apache-2.0
"""Errors of code that torch.compile has made, when it runs: they name the arguments of the function that the user
called, under the names that the user gave them, as eager calls do. Numbers are open, so that nothing is known of them
when the graph is made."""
import re

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from froghopper import _torch_traced as traced
from froghopper import flash_attn_interface as fa
from froghopper.torch import attention, paged_attention, scaled_dot_product_attention

Q, KV, POOL = torch.ones(1, 6, 4, 16), torch.ones(1, 9, 2, 16), torch.zeros(4, 8, 2, 16)
OF_OPERATORS = re.compile(r"window_(left|right)|FH_|\b(seq|total)_(q|kv)\b")


def whole(*numbers): return torch.tensor(numbers, dtype=torch.int32)


ENDS_Q, ENDS_K, TABLE, NOWHERE = whole(0, 6), whole(0, 9), whole(0, 1)[None], whole(0, 77)[None]
TURNED_Q, TURNED = Q.transpose(1, 2), KV.transpose(1, 2)
EIGHT = [x.to(torch.float8_e4m3fn) for x in (Q, KV, KV)]


def held(): return torch.zeros(1, 6, 4, 16), torch.zeros(1, 4, 6)


def varlen(ends, longest, **words):
    return fa.flash_attn_varlen_func(Q[0], KV[0], KV[0], ENDS_Q, ends, max_seqlen_q=6, max_seqlen_k=longest, **words)


CASES = {  # what is called, what it takes, what it refuses, and how
    "window": (lambda w: attention(Q, KV, KV, window=(w, 0)), (5, 4), -3, r"window must .* but is \(-3, 0\)"),
    "one number": (lambda w: attention(Q, KV, KV, local_window_size=w, align="top_left"), (5, 4), -3,
                   "local_window_size must .* but is -3. Use local_window_size=None."),
    "scale": (lambda s: attention(Q, KV, KV, sm_scale=s), (0.5, 0.25), -3.0, "sm_scale must .* Use sm_scale=None"),
    "chunk": (lambda n: attention(Q, KV, KV, attention_chunk=n), (5, 4), -3, "attention_chunk must .* but is -3"),
    "merged": (lambda w: attention(Q, KV, KV, local_window_size=w, align="top_left", accumulate=held())[0], (5, 4), -3,
               "local_window_size must .* but is -3"),
    "gate": (lambda w: attention(Q, KV, KV, local_window_size=w, align="top_left", gate=Q), (5, 4), -3,
             "local_window_size must"),
    "max_logit": (lambda w: attention(Q, KV, KV, local_window_size=w, align="top_left", return_max_logit=True)[1],
                  (5, 4), -3, "local_window_size must"),
    "out": (lambda w: attention(Q, KV, KV, local_window_size=w, align="top_left", out=torch.zeros_like(Q)), (5, 4), -3,
            "local_window_size must"),
    "sdpa": (lambda n: scaled_dot_product_attention(TURNED_Q, TURNED, TURNED, enable_gqa=True, max_sms=n), (5, 4), -6,
             "max_sms must be 0 or more"),
    "sdpa's key": (lambda k: scaled_dot_product_attention(TURNED_Q, k, TURNED, enable_gqa=True), (TURNED, TURNED * 2),
                   torch.zeros(1, 2, 8, 16), r"value must have the seq of key, 8, but has 9: .* \[1, 2, 9, 16\]"),
    "flash": (lambda n: fa.flash_attn_func(Q, KV, KV, attention_chunk=n), (5, 4), -3, "attention_chunk must"),
    "flash's scale": (lambda s: fa.flash_attn_func(Q, KV, KV, softmax_scale=s), (0.5, 0.25), -1.5,
                      "softmax_scale must"),
    "flash's k_descale": (lambda s: fa.flash_attn_func(*EIGHT, k_descale=s), (torch.ones(1, 2), 2 * torch.ones(1, 2)),
                          -torch.ones(1, 2), r"k_descale must be positive, .* but that of sequence 0, head 0 is -1"),
    "varlen": (lambda n: varlen(ENDS_K, n), (9, 10), 3, "max_seqlen_k must be at least 9, .* Use max_seqlen_k=9"),
    "varlen's ends": (lambda ends: varlen(ends, 9), (ENDS_K, ENDS_K + 0), whole(0, 19), "cu_seqlens_k must be at most"),
    "varlen's rows": (lambda n: varlen(ENDS_K, 9, seqused_kv=n), (whole(9), whole(8)), whole(99),
                      r"seqused_kv\[0\] must be from 0 to 9, .* but is 99"),
    "page_table": (lambda t: fa.flash_attn_with_kvcache(Q, POOL, POOL, page_table=t), (TABLE, TABLE + 1), NOWHERE,
                   r"page_table\[0, 1\] must name a page .* but is 77"),
    "block_table": (lambda t: fa.flash_attn_with_kvcache(Q, POOL, POOL, block_table=t), (TABLE, TABLE + 1), NOWHERE,
                    r"block_table\[0, 1\] must name a page .* but is 77"),
    "cache_seqlens": (lambda n: fa.flash_attn_with_kvcache(Q, POOL, POOL, page_table=TABLE, cache_seqlens=n),
                      (whole(7), whole(8)), whole(77), r"cache_seqlens\[0\] must be from 0 to 16"),
    "paged": (lambda t: paged_attention(Q, POOL, POOL, page_table=t), (TABLE, TABLE + 1), NOWHERE,
              r"page_table\[0, 1\] must name a page"),
    "pages of attention": (lambda t: attention(Q, POOL, POOL, block_tables=t), (TABLE, TABLE + 1), NOWHERE,
                           r"block_tables\[0, 1\] must name a page"),
}


@pytest.mark.parametrize("name", CASES)
def test_words(name):
    function, good, bad, sentence = CASES[name]
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for value in good: torch.testing.assert_close(compiled(value), function(value))
    for call in (compiled, function):
        with pytest.raises(ValueError, match=f"^{sentence}") as told: call(bad)
        assert not OF_OPERATORS.search(str(told.value))


def test_gradients_and_the_eager_backend():
    function = lambda q, n: attention(q, KV, KV, local_window_size=n, align="top_left")
    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        compiled, q = torch.compile(function, fullgraph=True, dynamic=True, backend=backend), Q.clone().requires_grad_()
        for n in (5, 4): assert torch.equal(*(torch.autograd.grad(f(q, n).sum(), q)[0] for f in (compiled, function)))
        with pytest.raises(ValueError, match="^local_window_size must .* but is -3"): compiled(q, -3)


def test_two_words_for_one_argument():
    """Each call of a graph has its own."""
    torch._dynamo.reset()
    def function(a, b):
        return attention(Q, KV, KV, sm_scale=a) + attention(Q, KV, KV, softmax_scale=b) + attention(Q, KV, KV, scale=b)
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for scale in (0.5, 0.25): compiled(scale, scale + 1)
    with pytest.raises(ValueError, match="^sm_scale must"): compiled(-1.5, 0.5)
    with pytest.raises(ValueError, match="^softmax_scale must"): compiled(0.5, -1.5)


def test_texts_of_callers():
    error = ValueError("scale must be 1, but k is 2.")
    assert str(traced.in_words("", error, (Q, KV, KV))) == "scale must be 1, but k is 2."
    found = traced.in_words("scale=softmax_scale, softmax_scale=sm_scale k=key", error, (Q, KV, KV))
    assert str(found) == "sm_scale must be 1, but key is 2."
