# SPDX-License-Identifier: Apache-2.0
"""What a third walk through the package met: each message names what the caller wrote, and a way out that works."""
import numpy as np
import pytest

import froghopper

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch_cases import qkv  # noqa: E402
from ways import said  # noqa: E402

from froghopper import flash_attn_interface as fa  # noqa: E402
from froghopper.torch import attention, explain, paged_attention, quantise  # noqa: E402

Q, K, V = qkv(2, 30, 4, 64, kv=(2, 30, 2, 64))
TABLE = torch.arange(4, dtype=torch.int32).view(2, 2)
POOL = torch.cat((K, V)), torch.cat((V, K))  # 4 pages of 30 rows
ENDS = torch.tensor([0, 30, 60], dtype=torch.int32)
FLAT = [x.flatten(0, 1) for x in (Q, K, V)]
PACKED = dict(cu_seqlens_q=ENDS, cu_seqlens_k=ENDS, max_seqlen_q=30, max_seqlen_k=30)


@pytest.mark.parametrize("wrong, found", [(True, "a bool"), (3, "an int"), (Q, "a Tensor"), (object(), "an object"),
                                          ((), "of 0"), ((Q,), "of 1")])
def test_accumulate_that_is_no_pair(wrong, found):
    held = ["o, lse", "o, lse, max_logit"]
    for largest in (False, True):
        for given in (dict(q=Q, k=K, v=V), quantise(Q, K, V)._asdict()):
            text = said(lambda: attention(**given, accumulate=wrong, return_max_logit=largest))
            assert text.startswith(f"accumulate must be ({held[largest]}) of earlier calls") and found in text
    assert "not computed accumulate must be (o, lse)" in explain(Q, K, V, accumulate=wrong)


def test_flags_are_named_as_they_are_written():
    for name in ("return_softmax_lse", "return_attn_probs", "return_lse"):
        text = said(lambda: fa.flash_attn_varlen_func(*FLAT, **PACKED, **{name: "yes"}))
        assert text.startswith(f"{name} must be True or False, but is 'yes'")
    text = said(lambda: fa.flash_attn_varlen_func(*FLAT, **PACKED, return_attn_probs=True, return_softmax_lse="yes"))
    assert text.startswith("return_softmax_lse must be")


SINK = torch.zeros(4)
TWICE = [
    (lambda: attention(Q, K, V, softmax_scale=0.1, sm_scale=0.1), "softmax_scale and sm_scale"),
    (lambda: attention(Q, K, V, sm_scale=0.1, scale=0.1), "scale and sm_scale"),
    (lambda: attention(Q, K, V, window_size=(1, 1), local_window_size=1), "window_size and local_window_size"),
    (lambda: attention(Q, K, V, s_aux=SINK, learnable_sink=SINK), "s_aux and learnable_sink"),
    (lambda: attention(*FLAT, cu_seqlens_q=ENDS, cu_seqlens_k=ENDS, cu_seq_lens_k=ENDS),
     "cu_seqlens_k and cu_seq_lens_k"),
    (lambda: paged_attention(Q, *POOL, page_table=TABLE, block_tables=TABLE), "page_table and block_tables"),
    (lambda: froghopper.attention(*map(np.asarray, (Q, K, V)), softmax_scale=0.1, scaling=0.1),
     "softmax_scale and scaling"),
    (lambda: fa.flash_attn_func(Q, K, V, sinks=SINK, sink=SINK), "sinks and sink"),
    (lambda: fa.flash_attn_with_kvcache(Q, *POOL, page_table=TABLE, block_table=TABLE), "page_table and block_table"),
    (lambda: fa.flash_attn_with_kvcache(Q, *POOL, page_table=TABLE, block_tables=TABLE),
     "page_table and block_tables")]


@pytest.mark.parametrize("call, words", TWICE, ids=[words for _, words in TWICE])
def test_one_argument_by_two_words(call, words):
    text = said(call)
    assert text.startswith(f"{words} are given, and ") and text.endswith("Leave out one.")
