# SPDX-License-Identifier: Apache-2.0
"""Messages speak Python: "X must be B, but is A", X as the caller wrote it, and what to write instead. No name of the C
interface is in them, whoever found the mistake."""
import ast
import pathlib
import re

import numpy as np
import pytest

import froghopper
from froghopper._library_words import in_python

PACKAGE = pathlib.Path(froghopper.__file__).parent
Q, KV = np.zeros((1, 6, 4, 16), np.float32), np.zeros((1, 9, 2, 16), np.float32)
LENGTHS = dict(q=Q[0], k=KV[0], v=KV[0], cu_seqlens_q=[0, 6], cu_seqlens_kv=[0, 9])
OF_C = re.compile(r"FH_|\bfh_|NULL|window_(left|right)|\b(seq|total)_(q|kv)\b|\bdim_(qk|v)\b|\bop is\b|stride_")

# Of the functions called attention, in all frameworks.
TABLE = [
    (dict(window=(-5, 0)), "window must be .* but is .-5, 0.. Use window=.None, 0. for no bound there, or .*5, 0."),
    (dict(window=(3, -5)), "window must be .* but is .3, -5.. Use window=.3, None. for no bound there, or .*3, 5."),
    (dict(window=(3, 2), causal=True),
     "window must end with 0 or None where causal is True, .* but is .3, 2.. Use window=.3, 0."),
    (dict(window=7), r"window must be \(left, right\), .* but is 7. Use window=\(7, 0\) for"),
    (dict(attention_chunk=-1), "attention_chunk must be 0 or more keys, but is -1. Use attention_chunk=0"),
    (dict(max_sms=-1), "max_sms must be 0 or more SMs or threads, but is -1. Use max_sms=0"),
    (dict(max_sms=1.5), "max_sms must be a whole number, but is 1.5. Give an int"),
    (dict(causal="yes"), "causal must be True or False, but is 'yes'. Use causal=True or causal=False"),
    (dict(align="left"), "align must be 'bottom_right' or 'top_left', but is 'left'. Use align=\"top_left\""),
    (dict(scale=float("nan")), "scale must be from 0 to 2.127, but is nan. Use scale=None"),
    (dict(softcap=float("nan")), "softcap must be finite and positive, .* but is nan. Use 0 or None"),
    (dict(k=KV[..., :8]), "k must have the dim of q, 16, but has 8"),
    (dict(k=np.zeros((1, 9, 3, 16), np.float32), v=np.zeros((1, 9, 3, 16), np.float32)),
     "heads_kv must divide heads_q, 4, but is 3. Use 1, 2 or 4 for keys and values"),
    (dict(q=Q[..., :12], k=KV[..., :12], v=KV[..., :12]),
     "head dims must be multiples of 8 from 8 to 512, but that of q and k is 12 and that of v is 12. Pad q"),
    (dict(q=Q[0]), r"q must be \[batch, seq, heads, dim\] without cu_seqlens, but has the shape \[6, 4, 16\]"),
    (dict(max_seqlen_q=3), "None without cu_seqlens, but "),
    (LENGTHS | dict(cu_seqlens_kv=None), "cu_seqlens_q and cu_seqlens_kv must be given together, but cu_seqlens_kv is"),
    (LENGTHS | dict(max_seqlen_q=3, max_seqlen_kv=9), "max_seqlen_q must be at least 6, .* but is 3. Use max_seqlen_q"),
    (LENGTHS | dict(cu_seqlens_q=[1, 6]), "cu_seqlens_q must begin with 0, but begins with 1"),
    (LENGTHS | dict(cu_seqlens_q=[0, 7]), "cu_seqlens_q must be at most 6, .* but cu_seqlens_q.1. is 7"),
    (dict(seqused_kv=[10]), "seqused_kv.0. must be from 0 to 9, .* but is 10"),
]


def of_torch(words):
    torch = pytest.importorskip("torch", reason="froghopper.torch needs torch, which is not installed")
    from froghopper.torch import attention
    def tensor(name, x):
        if isinstance(x, np.ndarray): return torch.from_numpy(x.copy())
        return torch.tensor(x, dtype=torch.int32) if "seq" in name and isinstance(x, list) else x
    return lambda: attention(**{name: tensor(name, x) for name, x in words.items()})


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("words, sentence", TABLE)
def test_attention(framework, words, sentence):
    words = dict(q=Q, k=KV, v=KV) | words
    call = of_torch(words) if framework == "torch" else lambda: froghopper.attention(**words)
    with pytest.raises(froghopper.Error, match=sentence) as told: call()
    assert not OF_C.search(str(told.value))


@pytest.mark.parametrize("scale", [float("nan"), -1.0, 1e39, "1"])
def test_the_scale_of_flash_attention_has_its_name(scale):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from froghopper import flash_attn_interface as fa
    q, kv = torch.from_numpy(Q), torch.from_numpy(KV)
    for call in (lambda: fa.flash_attn_func(q, kv, kv, softmax_scale=scale),
                 lambda: fa.flash_attn_with_kvcache(q, kv, kv, softmax_scale=scale)):
        with pytest.raises(froghopper.Error, match="^softmax_scale must be "): call()


@pytest.mark.parametrize("said, told", [
    ("seq_q is -3; sizes are not negative. Use 0 for none.", "max_seqlen_q must be 0 or more rows, but is -3"),
    ("block_table[0][1] is 5 and pages is 0, so the pool has no page. Set pages.",
     "block_table[0, 1] must name a page"),
    ("q is NULL; a problem needs it.", "q is None; a problem needs it."),
    ("accumulate is 1 and sink is set; each call would. Set sink to 0.", "sink must be None with accumulate"),
    ("accumulate is 1 and gate is set; each call would. Set gate to 0.", "gate must be None with accumulate"),
    ("q.stride_seq is -64; strides are not negative. Point data to it.", "q must have strides that are not negative"),
    ("dim_v is 24; head dims of 8-bit types are multiples of 16 from 16 to 256. Pad v.",
     "head dims of 8-bit types must be multiples of 16 from 16 to 256, but that of v is 24. Pad v."),
    ("all strides of k are 0, so its 2 x 5 x 4 rows would be the same one. Without gaps the strides are 1, 1 and 1.",
     "k must have more than one row in memory, but its 2 x 5 x 4 rows are the same one. Copy it first"),
    ("all strides of gate are 0, so its 2 x 5 x 4 rows would be the same one. Without gaps the strides are 1, 1 and 1.",
     "gate must have more than one row in memory, but its 2 x 5 x 4 rows are the same one. Copy it first"),
    ("seqused_kv[0] is 9 and seq_kv is 0, so no sequence has rows. Set seq_kv to the most that one may have, or use 0.",
     "seqused_kv[0] must be 0, as the sequence has no rows, but is 9. Use 0."),
    ("seqused_q[2] is 1 and the sequence has 0 rows; at most all of them count. Use 0.",
     "seqused_q[2] must be 0, as the sequence has no rows, but is 1. Use 0."),
    ("o at 0x1 to 0x9 and q at 0x2 to 0x5 have memory in common; o is written while q is still read. Give o its own "
     "memory, or check the strides and sizes of both.",
     "out (or what accumulate holds) at 0x1 to 0x9 and q at 0x2 to 0x5 have memory in common"),
    ("o and q are at the same address 0x1; o is written while q is still read. Give o its own memory.",
     "out (or what accumulate holds) and q are at the same address 0x1; it is written while q is still read. Give it"),
    ("q.data must be at a multiple of 4 bytes, as its elements have so many, but is at address 0x1. Align it.",
     "q must begin at a multiple of 4 bytes, as its elements have so many, but is at address 0x1. Copy it: q.copy()"),
    ("fwd bf16 b1 hq8 hkv8 sq4096 skv4096 d128", "fwd bf16 b1 hq8 hkv8 sq4096 skv4096 d128"),
])
def test_words_of_the_library(said, told):
    assert in_python(said).startswith(told) and not OF_C.search(in_python(said))


SAYS_HOW_IT_IS = re.compile(r"; (it|they|that|o|tensors|both|all tensors) (is|are|can be|reads?|has|have|counts?) ")


def test_every_message_says_must():
    """In the sources: no sentence about a wrong argument of the kind "X is A; it is B"."""
    wrong = []
    for path in sorted(PACKAGE.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call): continue
            text = ast.unparse(node.exc)
            if text.startswith("Invalid") and SAYS_HOW_IT_IS.search(text):
                wrong.append(f"{path.name}:{node.lineno}: {text}")
    assert wrong == []


def test_words_of_flash_attention():
    """Arguments have the names of the function that was called, not those of froghopper.torch, which computes it."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from froghopper import flash_attn_interface as fa
    q, kv, pool = torch.from_numpy(Q), torch.from_numpy(KV), torch.zeros(4, 8, 2, 16)
    def whole(*numbers): return torch.tensor(numbers, dtype=torch.int32)
    def dense(**words): return lambda: fa.flash_attn_func(q, kv, kv, **words)
    def packed(ends_q, ends_k, most_q=6, most_k=9, **words):
        return lambda: fa.flash_attn_varlen_func(q[0], kv[0], kv[0], ends_q, ends_k, most_q, most_k, **words)
    def cached(**words): return lambda: fa.flash_attn_with_kvcache(q, pool, pool, **words)
    eight = [x.to(torch.float8_e4m3fn) for x in (q, kv, kv)]
    table = whole(0, 77)[None]
    for call, sentence in [
            (packed(whole(0, 6), whole(0, 9), most_k=3), "^max_seqlen_k must be at least 9, .* Use max_seqlen_k=9"),
            (packed(whole(0, 6), whole(0, 9), most_q=3), "^max_seqlen_q must be at least 6"),
            (packed(whole(0, 6), whole(0, 19)), r"^cu_seqlens_k must be at most 9, .* but cu_seqlens_k\[1\] is 19"),
            (packed(whole(0, 6), whole(0, 9), most_k=-3), "^max_seqlen_k must be 0 or more"),
            (packed(whole(0, 6), whole(0, 9), seqused_k=whole(99)), r"^seqused_k\[0\] must be from 0 to 9"),
            (packed(whole(0, 6), whole(0, 9), window_size=(1.5, 2)), r"^window_size must be .*but is .1.5, 2"),
            (dense(s_aux=torch.zeros(3)), "^s_aux must have the shape"),
            (dense(sink=torch.zeros(3)), "^sink must have the shape"),
            (dense(return_attn_probs="x"), "^return_attn_probs must be .* Use return_attn_probs=True"),
            (dense(softmax_scale=float("nan")), "^softmax_scale must be from 0 .* but is nan. Use softmax_scale=None"),
            (lambda: fa.flash_attn_func(*eight, k_descale=-1.0), "^k_descale must be positive, .* that of seq.* is -1"),
            (lambda: fa.flash_attn_func(*eight, q_descale=torch.ones(1, 4)), r"^q_descale must be \[batch, 2\]"),
            (cached(page_table=table), r"^page_table\[0, 1\] must name a page of the pool, 0 to 3, but is 77"),
            (cached(block_table=table), r"^block_table\[0, 1\] must name a page of the pool, 0 to 3"),
            (cached(page_table=table[:, :1], max_seqlen_k=-2), "^max_seqlen_k must be 0 or more, .* but is -2")]:
        with pytest.raises(froghopper.Error, match=sentence) as told: call()
        assert not OF_C.search(str(told.value))


def test_words_of_other_libraries():
    """An argument that was taken under another name is told of under that name."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from froghopper.torch import attention, paged_attention, scaled_dot_product_attention
    q, kv, pool = torch.from_numpy(Q), torch.from_numpy(KV), torch.zeros(4, 8, 2, 16)
    table = torch.zeros(1, 2, dtype=torch.int32)
    for call in (lambda **words: attention(q, kv, kv, **words),
                 lambda **words: froghopper.attention(Q, KV, KV, **words),
                 lambda **words: paged_attention(q, pool, pool, table, **words)):
        with pytest.raises(ValueError, match="^softmax_scale must be .*nan. Use softmax_scale=None"):
            call(softmax_scale=float("nan"))
        with pytest.raises(ValueError, match="^sm_scale must be .* but is -1"): call(sm_scale=-1)
        with pytest.raises(TypeError, match="^window_size must be .left, right.*, but is 7. Use window_size="):
            call(window_size=7)
    with pytest.raises(TypeError, match="^block_tables must be a tensor"):
        paged_attention(q, pool, pool, block_tables=3)
    with pytest.raises(ValueError, match="^softmax_scale must be"):
        scaled_dot_product_attention(*[q.transpose(1, 2)] * 3, softmax_scale=float("nan"))


def test_bounds_of_pages():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from froghopper.torch import paged_attention
    pool, table = torch.zeros(4, 8, 2, 16), torch.zeros(1, 2, dtype=torch.int32)
    ends = torch.tensor([0, 6], dtype=torch.int32)
    for most, sentence in ((3, "must be at least 6, .* is 3. Use max_seqlen_q=6"), (-3, "must be 0 or more .* is -3")):
        with pytest.raises(ValueError, match=f"^max_seqlen_q {sentence}"):
            paged_attention(torch.from_numpy(Q[0]), pool, pool, table, cu_seqlens_q=ends, max_seqlen_q=most)
