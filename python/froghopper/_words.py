# SPDX-License-Identifier: Apache-2.0
"""Arguments of attention as other libraries call them. A function looks here when it is given a name that it does not
have: it goes on with its own word where both mean the same, and says what the word is otherwise. It costs a call that
knows its words nothing.
"""
import difflib
import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn, TypeVar, cast

from froghopper._errors import Error, InvalidType, Unsupported, of_numpy
from froghopper._hints import by_parts
from froghopper._values import listed, shown, type_of
from froghopper._word_checks import check_corner, is_whole, same_list

MISSING: Any = None  # of arguments that must be given: the function says so itself, also of their names elsewhere
F = TypeVar("F", bound=Callable[..., Any])

# Meant alike in all libraries: their word -> words of functions here, of which a function has at most one.
SAME = {
    "softmax_scale": ("scale",), "sm_scale": ("scale",), "scaling": ("scale",), "scale": ("softmax_scale",),
    "window_size": ("window",), "local_window_size": ("window",), "window": ("window_size",),
    "logits_soft_cap": ("softcap",), "soft_cap": ("softcap",),
    "sinks": ("sink", "s_aux"), "s_aux": ("sink",), "learnable_sink": ("sink", "s_aux"), "sink": ("s_aux",),
    "cu_seqlens_k": ("cu_seqlens_kv",), "cu_seqlens_kv": ("cu_seqlens_k",),
    "cu_seq_lens_q": ("cu_seqlens_q",), "cu_seq_lens_k": ("cu_seqlens_kv", "cu_seqlens_k"),
    "max_seqlen_k": ("max_seqlen_kv",), "max_seqlen_kv": ("max_seqlen_k",),
    "max_length_q": ("max_seqlen_q",), "max_length_k": ("max_seqlen_kv", "max_seqlen_k"),
    "seqused_k": ("seqused_kv",), "seqused_kv": ("seqused_k",),
    "query_seq_lengths": ("seqused_q",), "key_value_seq_lengths": ("seqused_kv",),
    "return_lse": ("return_softmax_lse", "return_attn_probs"), "return_attn_probs": ("return_lse",
                                                                                    "return_softmax_lse"),
    "cu_seqlens_q": ("cu_seqlens",), "max_seqlen_q": ("max_seqlen",), "seqused_q": ("seqused",),
    "k_pool": ("k_cache", "k"), "v_pool": ("v_cache", "v"), "return_softmax_lse": ("return_lse", "return_attn_probs"),
    "q_v": ("qv",), "block_tables": ("block_table",), "page_table": ("block_table",),
}
# Of a function with one list of documents, which are those of q and of keys, and that needs no bound on them.
ENDS = ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_k", "cu_seq_lens_q", "cu_seq_lens_k")
BOUNDS = ("max_seqlen", "max_seqlen_q", "max_seqlen_kv", "max_seqlen_k", "max_length_q", "max_length_k")
# Nearly meant alike, or spelled like another one: what a wrong word is answered with.
NEAR = {
    "cache_seqlens": ("seqused_kv", "seqused_k"), "seq_lens": ("seqused_kv", "seqused_k"),
    "seqlens_k": ("seqused_kv", "seqused_k"), "kv_lens": ("seqused_kv", "seqused_k"),
    "alibi": ("alibi_slopes",), "sliding_window": ("window", "window_size"),
    "sliding_window_size": ("window", "window_size"), "context_lens": ("seqused_kv", "seqused_k"),
    "k_scale": ("scale_k", "k_descale"), "v_scale": ("scale_v", "v_descale"), "q": ("query",), "k": ("key",),
    "v": ("value",), "key_cache": ("k_cache", "k"), "value_cache": ("v_cache", "v"), "k_cache": ("k",),
    "v_cache": ("v",), "dout": ("grad_o",), "do": ("grad_o",), "softmax_lse": ("lse",),
    "query": ("q",), "key": ("k",), "value": ("v",), "k_descale": ("scale_k",),
    "v_descale": ("scale_v",), "causal": ("is_causal",), "cu_seqlens_kv": ("seqused_kv", "cu_seqlens"),
    "cu_seqlens_k": ("seqused_kv", "cu_seqlens"), "seqused_k": ("cache_seqlens",), "seqused_kv": ("cache_seqlens",),
    "cu_seqlens_k_new": ("cu_seqlens",), "max_seqlen_k_new": ("max_seqlen",),
    "interleaved": ("rotary_interleaved",), "is_neox": ("rotary_interleaved",), "cos": ("rotary_cos",),
    "sin": ("rotary_sin",), "cos_sin_cache": ("rotary_cos", "rotary_sin"), "rotary_seqlens": ("positions",),
    "position_ids": ("positions",), "slots": ("slot_mapping",), "eps": ("norm_epsilon",),
    **dict.fromkeys(("attn_gate", "output_gate", "head_gate", "gating", "gate_score"), ("gate",)),
    **dict.fromkeys(("scale_factor", "scale_value", "qk_scale", "temperature"), ("scale", "softmax_scale")),
    "process_group": ("group",), "return_residual": ("return_lse",),
    "query_layer": ("q", "query"), "key_layer": ("k", "key"), "value_layer": ("v", "value"),
    "attn_mask_type": ("causal", "is_causal"), "cache_position": ("seqused_kv", "cache_seqlens"),
    **dict.fromkeys(("kv_indptr", "kv_indices", "kv_last_page_len", "paged_kv_indptr", "paged_kv_indices",
                     "paged_kv_last_page_len"), ("block_table", "page_table")),
    "qo_indptr": ("cu_seqlens_q", "cu_seqlens"),
    "epsilon": ("norm_epsilon",), "q_weight": ("norm_q",), "k_weight": ("norm_k",),
    "freqs_cis": ("rotary_cos", "rotary_sin"), "return_softmax": ("return_lse", "return_attn_probs"),
    "max_s": ("max_seqlen", "max_seqlen_q", "max_seqlen_kv", "max_seqlen_k"), "q_scale": ("scale_q", "q_descale"),
    **dict.fromkeys(("kv_seq_lens", "seqlens", "kv_seqlens", "kv_lengths"), ("seqused_kv", "seqused_k",
                                                                               "cache_seqlens")),
    "q_seq_lens": ("seqused_q", "seqused"), "seqlens_q": ("cu_seqlens_q", "seqused_q"),
}
NOTES = {
    "causal": " It aligns the first query with the first key, as PyTorch does; causal=True of "
              "froghopper.torch.attention aligns the last ones.",
    **dict.fromkeys(("sliding_window", "sliding_window_size"),
                    " It is a pair here: (sliding_window - 1, 0) with causal=True, as a sliding_window counts the "
                    "query's own key too."),
    "temperature": " It is what scores are multiplied by: 1 / (temperature * sqrt(dim)).",
    "attn_mask_type": " \"causal\" there aligns the first query with the first key, \"causal_bottom_right\" the last "
                      "ones, as causal=True of froghopper.torch.attention does; padding is told by lengths.",
    "return_residual": " It gives [batch, heads, seq]; for jax.nn's [batch, seq, heads] use its swapaxes(1, 2).",
    "cache_position": " It is how many rows a sequence has; the last query is aligned with the last of them.",
    **dict.fromkeys(("kv_indptr", "kv_indices", "kv_last_page_len", "paged_kv_indptr", "paged_kv_indices",
                     "paged_kv_last_page_len"),
                    " It has a row of pages for each sequence, whose lengths are given beside it."),
    "is_neox": " It is the opposite: True for pairs of neighbours.",
    "freqs_cis": " They are its real and its imaginary part, in float32.",
    **dict.fromkeys(("kv_seq_lens", "seqlens", "kv_seqlens", "kv_lengths"),
                    " It is how many rows of each sequence count; where packed sequences begin is in cu_seqlens."),
}
# What a function says that has nothing of the kind.
MORE = {
    "scaled_dot_product_attention": " It has PyTorch's arguments alone, and query is [batch, heads, seq, dim]; "
                                    "froghopper.torch.attention has more, for [batch, seq, heads, dim].",
    "flash_attn_func": " flash_attn_varlen_func has lengths of sequences, flash_attn_with_kvcache those of a cache.",
    "append_kv": " It attends to nothing: attention of the same module does.",
    "quantise": " It attends to nothing: options of attention go there, with what quantise returns.",
    "norm_rotary": " It attends to nothing. positions says where rows are in their sequences, packed or not.",
    "decode": " Each query attends to every key of all parts, but with newest to no later ones among the new keys.",
    "attention_backward": " It takes the options of the forward call that say which numbers are computed.",
}
# What takes no word here, in any function that has not got it, or in one.
NOWHERE = {
    "kv": "Give k and v: k, v = kv.unbind(-3) are views of it, where it is [batch, seq, 2, heads, dim].",
    "qkv": "Give q, k and v: q, k, v = qkv.unbind(-3) are views of it, where it is [batch, seq, 3, heads, dim].",
    "scale_tokens": "The shape of scale_k says it, [pages, page_size, heads_kv] for a scale of each row and head.",
    "append_kv.dtype": "The type of the cache says it. See a cache of bytes as float8 with its view(), and give "
                       "scale_k and scale_v.",
    "q_out": "It is returned: k_cache, v_cache, q = append_kv(k, v, k_cache, v_cache, q=q).",
    "kv_cache_dtype": "The type of the cache says it. For a cache of bytes give its .view(torch.float8_e4m3fn), with "
                      "scales of k and v.",
}
# What gradients have nothing of.
OF_8_BITS = ("scale_q", "scale_k", "scale_v", "mean_k", "mean_v", "out_dtype", "dtype")
# The same where a sequence lies on several devices.
ON_ONE_DEVICE = ("seqused_q", "seqused_k", "seqused_kv", "attention_chunk", "out", "accumulate")
# What a function says that is not given these.
LESS: dict[tuple[str, ...], str] = {
    ("quantise", "q"): "Give q; for a cache of k and v alone use quantise(k, k, v, rotate=False), its k and v.",
    ("paged_attention", "block_table"): "Give it; for a cache without pages use froghopper.torch.attention(q, k, v, "
                                        "seqused_kv=), and where K and V are in one tensor give both parts of it."}
# Without effect on results, here and there.
HINTS = ("num_splits", "pack_gqa", "fa_version", "scheduler_metadata", "enable_gqa", "rotary_interleaved",
         "deterministic", "cp_tot_seqused_k", "implementation", "ver", "rel_bias_prep_cache", "dropout_rng")
DROPOUT = ("dropout_p", "dropout", "dropout_rate", "p")
# Harmless with this value, and with others refused in these words.
ONLY: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(DROPOUT, (0, "weights are not dropped here")),
    "key_padding_mask": (None, "there are no masks of numbers here. Use seqused_kv, how many keys of each count"),
    **dict.fromkeys(("layout", "qkv_format", "qkv_layout", "tensor_layout", "kv_layout", "input_layout"),
                    (None, "q is [batch, seq, heads, dim] (\"bshd\", \"NHD\"), and packed [total, heads, dim] "
                           "(\"thd\"). Use x.transpose(1, 2) for heads before rows (\"bhsd\", \"HND\"), "
                           "x.transpose(0, 1) for rows before sequences (\"sbhd\"), and turn o back likewise")),
    **dict.fromkeys(("segment_ids", "q_segment_ids", "kv_segment_ids", "document_ids", "doc_ids", "sequence_ids"),
                    (None, "sequences that are packed are told apart by the rows where they begin")),
    "gate": (None, "it is an argument of froghopper.torch.attention and paged_attention. Use one of these"),
    **dict.fromkeys(("attn_mask", "attention_mask", "mask"),
                    (None, "there are no masks of numbers here. Use causal or a window, and for padding the lengths of "
                           "the keys")),
    **dict.fromkeys(("attn_bias", "bias", "core_attention_bias", "core_attention_bias_type"),
                    (None, "scores have no bias here but ALiBi's. Use causal=True for one that is a causal mask, "
                           "alibi_slopes for ALiBi's")),
    **dict.fromkeys(("rotary_cos", "rotary_sin", "position_ids"),
                    (None, "q and k are rotated before the call here. Use froghopper.torch.norm_rotary, or append_kv "
                           "for new rows of a cache")),
    **dict.fromkeys(("need_weights", "output_attentions", "return_weights", "return_attention_weights"),
                    (False, "weights are never there as a whole. Use return_lse, or leave it out")),
    **dict.fromkeys(("use_cache", "past_key_values", "past_key_value"),
                    (False, "the caller keeps the cache here. Use append_kv for new rows, and give k and v with all "
                            "rows")),
    **dict.fromkeys(("q_offset", "start_pos"), (0, "causal aligns the last query with the last key that counts. Use "
                                                   "that, with the lengths of the keys")),
    **dict.fromkeys(("page_size", "block_size"), (None, "the shape of the pool says it, [pages, page_size, heads, "
                                                        "dim]. Leave it out")),
    "num_key_value_groups": (None, "it is heads_q / heads_kv, which the shapes of q and k say. Leave it out"),
    "checkpoint_core_attention": (False, "weights are computed again in the backward pass in any case. Leave it out"),
    "smooth_k": (False, "this function does not quantise. Use attention(**quantise(q, k, v, smooth=True)._asdict())"),
    "backend": (None, "the device of q says what computes. Leave it out"),
    "precision": (None, "products are summed in float32 always. Leave it out"),
    **dict.fromkeys(("block_table", "block_tables", "page_table"),
                    (None, "pages are read by froghopper.torch.paged_attention, froghopper.jax.attention, "
                           "flash_attn_varlen_func and flash_attn_with_kvcache. Use one of them, or gather the pages")),
    "qv": (None, "a second query is not computed here. Append its columns to those of q, and v's to k"),
    "is_causal": (False, "which corner it aligns differs from library to library. Use causal=True, which aligns the "
                         "last query with the last key"),
    "quantize": (False, "this function does not quantise. Use attention(**quantise(q, k, v)._asdict())"),
    "quantise": (False, "this function does not quantise. Use attention(**quantise(q, k, v)._asdict())"),
    "q_descale": (None, "it is scale_q here, a number, [heads_q] or [batch, heads_q]. Use scale_q"),
    "k_descale": (None, "it is scale_k here, a number, [heads_kv] or [batch, heads_kv]. Use scale_k"),
    "v_descale": (None, "it is scale_v here, a number, [heads_kv] or [batch, heads_kv]. Use scale_v"),
    "sm_margin": (0, "max_sms says how many SMs a call may use, not how many it leaves. Use max_sms"),
    "cp_world_size": (1, "keys of other ranks are merged by the caller. Use flash_attn_interface.merge_attn_states"),
    "cp_rank": (0, "keys of other ranks are merged by the caller. Use flash_attn_interface.merge_attn_states"),
    "only_qv": (False, "a second query is not computed here. Append its columns to those of q, and v's to k"),
    "dynamic_causal": (None, "causal is one for all sequences here. Call once for those that are causal"),
    "output_scale": (None, "o is not quantised here. Quantise it after the call"),
    **dict.fromkeys(("block_mask", "mask_mod", "score_mod", "aux_tensors", "aux_tensor_leading_dims", "rel_bias"),
                    (None, "masks and scores are not written by the caller here. Use causal, window, attention_chunk, "
                           "softcap or alibi_slopes")),
    **dict.fromkeys(("block_sparse_tensors", "gather_kv_indices", "gather_kv_valid_length"),
                    (None, "keys are not chosen one by one or block by block here. Use window or attention_chunk")),
    **dict.fromkeys(("sfq", "sfk", "sfv"), (None, "scales of blocks of columns are not read here. Use q_descale, "
                                                 "k_descale and v_descale")),
    **{f"{word}_{kind}": (None, f"it is {word[0]} here. Use {word[0]}, with block_table where it has pages")
       for word in ("k", "v", "key", "value") for kind in ("pool", "cache")},
    **{f"{word}{kind}": (None, f"it is {name} here. Use {name}") for kind in ("", "_layer")
       for word, name in (("query", "q"), ("key", "k"), ("value", "v"))},
}


NAMED_OTHERWISE = ("query", "key", "value", "is_causal", "k_", "v_")


def takes_words_of_others(module: str) -> Callable[[F], F]:
    """A function of froghopper or of a module of it that takes the words of others in place of its own, also of those
    that must be given."""
    def decorate(function: F) -> F:
        known, code = arguments_of(function), function.__code__
        most = code.co_argcount
        least = most - len(function.__defaults__ or ())
        needed = code.co_varnames[:least]
        if not module: function = of_numpy(function)

        def checked(*given: Any, **words: Any) -> Any:
            if not least <= len(given) <= most: check_given(function.__name__, needed, most, given, words)
            return function(*given, **words)
        functools.update_wrapper(checked, function)

        @functools.wraps(function)
        def call(*given: Any, **words: Any) -> Any:
            for word in words:
                if word not in known: return translated_call(checked, module, given, words, known)
            if not least <= len(given) <= most: check_given(function.__name__, needed, most, given, words)
            return function(*given, **words)
        return cast(F, call)
    return decorate


def check_given(function: str, needed: Sequence[str], most: int, given: Sequence[Any], words: Collection[str]) -> None:
    """Whether a call has what it needs, and not more without a name than the function takes. needed: the arguments
    that have no default."""
    if len(given) > most:
        raise InvalidType(f"{function} takes {most} arguments without a name, but is given {len(given)}. Give the "
                          "others by name.")
    missing = [name for name in needed[len(given):] if name not in words]
    if missing: raise InvalidType(f"{' and '.join(missing)} must be given to {function}, but "
                                  f"{'is' if len(missing) == 1 else 'are'} missing. "
                                  f"{LESS.get((function, *missing), 'Give ' + ' and '.join(missing) + '.')}")


def too_many(function: str, more: tuple[Any, ...]) -> NoReturn:
    """Of what attention is given behind q, k and v without a name. more: that."""
    of_mask = "For a mask use causal, window, or seqused_kv for padding. " * hasattr(more[0], "shape")
    if len(more) in (3, 5) and all(hasattr(x, "shape") for x in more):
        of_mask = f"For what quantise returns use {function}(**quantise(q, k, v)._asdict()). "
    raise InvalidType(f"{function} takes 3 arguments without a name, q, k and v, but is given {3 + len(more)}, the "
                      f"fourth {type_of(more[0])}. {of_mask}Give the others by name.")


def arguments_of(function: Callable[..., Any]) -> frozenset[str]:
    code = function.__code__
    return frozenset(code.co_varnames[:code.co_argcount + code.co_kwonlyargcount])


def translated_call(function: Callable[..., Any], module: str, given: tuple[Any, ...], words: dict[str, Any],
                    known: Collection[str]) -> Any:
    """A call with words of which some are not known. Its errors name arguments as the caller does."""
    own = translated(function.__name__, module, words, known, given)
    names = names_said(function.__name__, module, words, known)
    tell(names)
    try: return function(*given, **own)
    except Error as error: raise named_by(names, error)
    except RuntimeError as error:
        if type(error).__name__ in QUOTING: raise named_by(names, error)
        raise


# Errors of frameworks whose texts are sentences of the package, or have one in them.
QUOTING = ("JaxRuntimeError", "XlaRuntimeError", "TorchRuntimeError")


def names_said(function: str, module: str, words: dict[str, Any], known: Collection[str]) -> dict[str, str]:
    """Names of here -> those that the caller has used for them."""
    return {shaped(own_word(function, module, word, value, known), word, value): word
            for word, value in words.items() if word not in known and not ignored(word, value, known)}


E = TypeVar("E", bound=Exception)


def named_by(names: Mapping[str, str], error: E) -> E:
    """The error, with its arguments' names of here as those of there. A name that is a word of the language too is one
    only in front of what follows an argument; a single letter is none. A pair here that is one number there is in
    brackets: "(window)"."""
    plain = {name.strip("()"): word for name, word in names.items()}
    words = [name if "_" in name or len(name) == 1 else
             rf"(?:(?<=_tensor\()|(?<=asarray\()|(?<=tuple\()){name}(?=[),.])|"
             rf"{name}(?= must\b| is\b|=|\[|\.[a-z_]+\(|\)\. )" for name in plain]
    text = re.sub(rf"\b({'|'.join(words)})\b", lambda found: plain[found[0]], str(error)) if words else str(error)
    for word in {word for word in plain.values() if [*plain.values()].count(word) > 1}:  # said once
        text = re.sub(rf"\b{word}(\S*)(?:, {word}\1)*(?:,? and {word}\1)+(?!\w)", rf"{word}\1", text)
    for name, word in names.items():
        if name[0] != "(" or not re.match(rf"{word}(\[\d\])? must", text): continue
        for found, put in OF_ONE_NUMBER: text = re.sub(found, put, text)
    error.args = (text,)
    return error if str(error) == text else type(error)(text)  # JAX's keeps its text elsewhere


OF_ONE_NUMBER = [(r"\[[01]\](?= must)", ""), (r"\(left, right\), keys before and after,", "keys to both sides,"),
                 (r"\((\S+), \1\)", r"\1")]


def shaped(name: str, word: str, value: Any) -> str:
    """The name, in brackets where it is a pair and the value one number."""
    return f"({name})" if word == "local_window_size" and is_whole(value) else name


def nothing_is_traced(names: dict[str, str]) -> None: return None


tell: Callable[[dict[str, str]], None] = nothing_is_traced  # froghopper.torch has one that knows


def translated(function: str, module: str, words: dict[str, Any], known: Collection[str],
               given: Sequence[Any] = ()) -> dict[str, Any]:
    """The words as the function knows them, or TypeError that says what to use. known: its arguments; given: those
    without a name."""
    found: dict[str, Any] = {}
    said: dict[str, str] = {}  # words for what is found
    for word, value in words.items():
        if word in known: name = word
        elif ignored(word, value, known): continue
        else: name = own_word(function, module, word, value, known)
        if word in ENDS and has_documents(known) and name in found:
            if same_list(found[name], value): continue
            raise InvalidType(f"{word} must be what the other list of ends is, as q and k have the same documents "
                              f"here, but differs. Use {name}, the ends in the rows of all ranks.")
        if name in found or (name != word and name in words):
            raise InvalidType(f"{said.get(name, name)} and {word} are given, and mean the same here. Leave out one.")
        found[name], said[name] = converted(word, name, value), word
        if name == "window" != word and words.get("causal") and isinstance(found[name], tuple) and found[name]:
            found[name] = (*found[name][:-1], None)  # FlashAttention does not read the bound to the right then
    if "local_window_size" in said.values() and not has_documents(known):
        check_corner(function, given, words, found, said)
    return found


def check_own_words(function: str, module: str, words: Collection[str], known: Collection[str],
                    own: Collection[str]) -> None:
    """Of a function that takes what another one does, and arguments of its own: raises where one of these is meant.
    known: the other one's."""
    for word in words:
        near = difflib.get_close_matches(word, own, 1, 0.8)
        if near and word not in known and word not in ONLY and word not in SAME:
            raise InvalidType(f"{function}() of froghopper.{module} has no argument {word}. Did you mean {near[0]}?")


def again(function: Any, module: str, given: dict[str, Any]) -> Any:
    """The call once more with words that the function knows. given: its arguments by name, and the unknown ones as
    others."""
    known = {name: given[name] for name in given if name in function.__kwdefaults__}
    told = {name: value for name, value in known.items() if value is not function.__kwdefaults__[name]}
    return translated_call(function, module, (given["q"], given["k"], given["v"]), told | given["others"], known)


def has_documents(known: Collection[str]) -> bool: return "cu_seqlens" in known and "max_seqlen" not in known


def own_word(function: str, module: str, word: str, value: Any, known: Collection[str]) -> str:
    if word in ENDS and has_documents(known): return "cu_seqlens"
    for name in SAME.get(word, ()):
        if name in known: return name
    if word.endswith("_cache") and word[0] in known: pass  # nearly meant alike
    elif word in ONLY and "causal" in known:  # they tell of arguments of attention
        error = InvalidType if word.startswith(NAMED_OTHERWISE) or "_descale" in word else Unsupported
        if word in DROPOUT:
            raise error(f"{word} of {function}() must be 0, as {ONLY[word][1]}, but is {shown(value)}. Use "
                        f"{word}=0.0.")
        if "begin" in ONLY[word][1]:
            ends = listed([name for name in ("cu_seqlens", "cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_k") if
                           name in known])
            if not ends: ends = "cu_seqlens_q and cu_seqlens_k of flash_attn_varlen_func"
            raise error(f"{function}() has no argument {word}; {ONLY[word][1]}. Use {ends}.")
        corner = ", with align=\"top_left\" the first with the first" * (word == "is_causal" and "align" in known)
        raise error(f"{function}() has no argument {word}; {ONLY[word][1]}{corner}.")
    if function == "attention_backward" and word in OF_8_BITS:
        raise Unsupported(f"{function}() has no argument {word}; gradients are computed of float16, bfloat16 and "
                          "float32. Multiply 8-bit q, k and v by their scales in one of these.")
    near = [name for name in NEAR.get(word, ()) if name in known]
    more = NOWHERE.get(f"{function}.{word}", NOWHERE.get(word, ""))
    if word in ON_ONE_DEVICE and has_documents(known):
        more = f"It goes with whole sequences on one device: {word} of froghopper.torch.attention."
    if not near and not more and word not in SAME and word not in ONLY:
        near = difflib.get_close_matches(word, known, 2, 0.8)
        if not near: near, more = by_parts(word, known)
        if not near and not more: near = difflib.get_close_matches(word, known, 2, 0.7)
    if more: out = more
    elif near: out = f"Did you mean {' or '.join(near)}?{NOTES.get(word, '')}"
    else: out = f"It has {', '.join(sorted(known)) or 'none'}.{MORE.get(function, '')}"
    raise InvalidType(f"{function}() of froghopper{'.' * bool(module)}{module} has no argument {word}. {out}")


def ignored(word: str, value: Any, known: Collection[str]) -> bool:
    """Whether it says nothing."""
    if word in BOUNDS and has_documents(known): return True
    if word not in ONLY: return word in HINTS
    none = ONLY[word][0]
    if value is None: return True
    return isinstance(value, (bool, int, float)) and none is not None and value == none


def converted(word: str, name: str, value: Any) -> Any:
    """A value as the argument of this name takes it."""
    if name == word: return value
    if word == "local_window_size" and is_whole(value): return (value if isinstance(value, int) else int(value),) * 2
    if name == "window" and isinstance(value, (tuple, list)):
        return tuple(None if bound is None or bound < 0 else bound for bound in value)
    if name == "softcap" and value is None: return 0.0
    if name == "sink" and getattr(value, "is_floating_point", bool)(): return value.float()  # else refused
    return value
