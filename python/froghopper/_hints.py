# SPDX-License-Identifier: Apache-2.0
"""An argument's name that neither a function nor a list of _words.py has: what its parts say that it is about. Names of
other libraries are many, and what they are made of is little: window_size_left, attn_logit_softcapping, kv_len."""
import re
from collections.abc import Collection

# Names of here where a function has one of them, or what there is to say where attention has no such argument.
Meant = tuple[str, ...] | str
SHAPES = "The shapes of q, k and v say it. Leave it out."
ROTATED = ("q and k are rotated before the call here. Use froghopper.torch.norm_rotary, or append_kv for new rows of a "
           "cache.")
OF_EACH = {"q": ("scale_q", "q_descale"), "k": ("scale_k", "k_descale"), "v": ("scale_v", "v_descale")}
LENGTHS = ("seqused_kv", "seqused_k", "cache_seqlens", "seqused")
ENDS = ("cu_seqlens", "cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_k")
BOUNDS = ("max_seqlen", "max_seqlen_q", "max_seqlen_kv", "max_seqlen_k")

PARTS: tuple[tuple[str, Meant], ...] = (
    ("drop", "Weights are not dropped here. Leave it out."),
    ("mask", "There are no masks of numbers here. Use causal or a window, and for padding the lengths of the keys."),
    ("soft_?cap|logits?_cap|tanh", ("softcap",)),
    ("rope|rotary|freqs|theta|^cos|^sin(_|$)|pos_enc|positions?$", ROTATED),
    ("bias|rel_pos", "Scores have no bias here but ALiBi's. Use alibi_slopes, or causal=True for one that is a causal "
                     "mask."),
    ("window|(pre|next)_tokens|^sliding$", ("window", "window_size")),
    ("chunk", ("attention_chunk",)),
    ("slope|alibi", ("alibi_slopes",)),
    ("sink", ("sink", "s_aux")),
    ("seg|doc|seq_?id", ENDS),
    ("cumul|^cu_|indptr", ENDS),
    ("offset|start", "causal aligns the last query with the last key that counts. Use that, with the lengths of the "
                     "keys."),
    ("max.*(len|_s$)", BOUNDS),
    ("^q.*len|len.*_q$|_qlen$", ("seqused_q", "seqused")),
    ("len", LENGTHS),
    ("mesh|group$", ("group",)),
    ("cp_size|world_size|cp_rank", ("group",)),
    ("balanc|zigzag", ("layout",)),
    ("ulysses|ring", ("scheme",)),
    ("layout|format|_first$", "q is [batch, seq, heads, dim], and packed [total, heads, dim]. Use x.transpose(1, 2) "
                              "for heads before rows, x.transpose(0, 1) for rows before sequences, and turn o back."),
    ("heads|head_(dim|size)|n_rep|gqa|multi_query|^dim$", SHAPES),
    ("thread|_sms?$", ("max_sms",)),
    ("train", "A call is the same in training. Leave it out."),
    ("max_?logit", ("return_max_logit",)),
    ("weights$|attentions$", "Weights are never there as a whole. Use return_lse, or leave it out."),
    ("softmax$|lse|prob|weight|aux", ("return_lse", "return_attn_probs", "return_softmax_lse")),
    ("^o$|^output", ("out",)),
    ("gat(e|ing)", ("gate",)),
    ("slot|cache|past", "The caller keeps the cache here. Use append_kv for new rows, and give k and v with all rows."),
    ("fp8|quant|smooth", "It is for quantise, whose results attention(**quantise(q, k, v)._asdict()) takes."),
    ("kernel|impl|device|stream|workspace|plan$|flash", "The device of q says what computes. Leave it out."),
    ("temp|norm_factor", "Scores are multiplied by scale: 1 / (temperature * sqrt(dim)), or 1 / norm_factor."),
    ("scal(e|ing)|factor", ("scale", "softmax_scale")),
)


def by_parts(word: str, known: Collection[str]) -> tuple[list[str], str]:
    """(names of the function that may be meant, what to say). known: its arguments. What is said of attention is said
    only by what attends."""
    attends = "softcap" in known or "attn_mask" in known
    one = re.match(r"([qkv])_(\w+_)?scale|\w*scale_([qkv])(_|$)", word)
    if one: return [name for name in OF_EACH[one[1] or one[3]] if name in known], ""
    for parts, meant in PARTS:
        if not re.search(parts, word): continue
        if isinstance(meant, str): return [], meant if attends else ""
        if found := [name for name in meant if name in known]: return found[:2], ""
    return [], ""
