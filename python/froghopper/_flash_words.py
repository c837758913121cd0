# SPDX-License-Identifier: Apache-2.0
"""The words of FlashAttention 2 and 3 and of vLLM's fork -> those of froghopper.torch.attention.

    in_any_order   a function that also takes the positional arguments of the other libraries (_flash_orders)
    options_of     mask, scores and scales
    extras_of      what only some of the libraries have: dropout_p, alibi_slopes, s_aux, block_table, out
"""
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from froghopper import _flash_widths as widths
from froghopper import _torch_ops as ops
from froghopper import _torch_traced as traced
from froghopper._call import whole_number
from froghopper._errors import Error, InvalidProblem, InvalidTensor, InvalidType, Unsupported
from froghopper._flash_orders import dense_order, tell_of_scale
from froghopper._torch_calls import FLOAT8, check_dense, is_dense
from froghopper._torch_checks import as_float as as_float
from froghopper._torch_kinds import BARE, check_kinds
from froghopper._torch_options import plain
from froghopper._values import counted, flag, scale_in_range, shown, way_to_window
from froghopper._words import arguments_of, named_by, translated_call

WHOLE = (-1, -1)  # the window that nobody gave
PAGES = "pages are read by flash_attn_varlen_func, flash_attn_with_kvcache and paged_attention. Use one of them."
REFUSED = {
    "qv": "a second query, for v, is not computed here. Append its columns to those of q and v's to k, 512 in all.",
    "block_table": PAGES,
}
# What errors of froghopper.torch name, in the words of these functions.
NAMES = {"cu_seqlens_kv": "cu_seqlens_k", "max_seqlen_kv": "max_seqlen_k", "scale_q": "q_descale",
         "scale_k": "k_descale", "scale_v": "v_descale", "window": "window_size", "sink": "s_aux",
         "scale": "softmax_scale", "return_lse": "return_attn_probs", "heads_q": "heads", "heads_kv": "heads_k"}


def in_any_order(order: Callable[[Sequence[Any], Collection[str]], Sequence[str] | None] | None = None,
                 first: int = 3) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function whose positional arguments behind the first ones may come in another order, and whose unknown words
    are translated or explained."""
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        name, known = function.__name__, arguments_of(function)

        def told(*given: Any, **words: Any) -> Any:
            if torch.compiler.is_compiling():
                traced.tell(names_of(name, words))
                if widths.is_odd(function, given, words): return widths.padded(function, given, words)
            try: return function(*given, **words)
            except Error as error: return after(error, function, given, words)
            except BARE:
                check_kinds(function, given, words)
                raise

        functools.update_wrapper(told, function)
        traced.told_by[name] = lambda error, _: named_by(names_of(name, {}), error)

        @functools.wraps(function)
        def call(*given: Any, **words: Any) -> Any:
            if order is not None and len(given) > first and (names := order(given[first:], words)) is not None:
                given, words = given[:first], by_name(name, names, given[first:], words)
            elif order is dense_order and len(given) == first + 1: tell_of_scale(name, given[0], given[first])
            for word in words:
                if word not in known: return translated_call(told, "flash_attn_interface", given, words, known)
            if torch.compiler.is_compiling():
                traced.tell(names_of(name, words))
                if widths.is_odd(function, given, words): return widths.padded(function, given, words)
                return function(*given, **words)
            try: return function(*given, **words)  # as told, at less of the host's time
            except Error as error: return after(error, function, given, words)
            except BARE:
                check_kinds(function, given, words)
                raise
        return call
    return decorate


def after(error: Error, function: Callable[..., Any], given: tuple[Any, ...], words: dict[str, Any]) -> Any:
    """Of a call that ended with the error: what it returns with wider tensors, or the error in the caller's words."""
    names = names_of(function.__name__, words)
    if not widths.is_of_widths(error): raise named_by(names, error)
    if not widths.is_odd(function, given, words):
        raise widths.of_cache(function.__name__, named_by(names, error))
    try: return widths.padded(function, given, words)
    except Error as other: raise named_by(names, other) from None


def speaks_of(names: dict[str, str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function that calls another one with parts of what it is given. names: arguments there -> those here."""
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*given: Any, **words: Any) -> Any:
            if torch.compiler.is_compiling():
                traced.tell(names)
                return function(*given, **words)
            try: return function(*given, **words)
            except Error as error:
                if str(error).startswith(tuple(f"{name} " for name in names.values())): raise
                raise named_by(names, error)
        return call
    return decorate


OF_QKV, OF_KV = {"q": "qkv", "k": "qkv", "v": "qkv"}, {"k": "kv", "v": "kv"}
OF_CACHE = {"k": "k_cache", "v": "v_cache"}
OF_ENDS = {"cu_seqlens_q": "cu_seqlens", "cu_seqlens_k": "cu_seqlens", "max_seqlen_q": "max_seqlen",
           "max_seqlen_k": "max_seqlen"}


def names_of(function: str, words: dict[str, Any]) -> dict[str, str]:
    """Arguments of froghopper.torch -> those of a function here. words: that it was given."""
    of_cache = function == "flash_attn_with_kvcache"
    table, other = "block_table", "page_table"
    if of_cache and words.get(table) is None: table, other = other, table
    if words.get(other) is not None: table = other  # both are given, and one_table says so
    return NAMES | {"seqused_kv": "cache_seqlens" if of_cache else "seqused_k", other: table}


def one_table(page_table: Tensor | None, block_table: Tensor | None) -> Tensor | None:
    """FlashAttention 3's word, or that of FlashAttention 2."""
    if page_table is not None and block_table is not None:
        raise InvalidType("page_table and block_table are given, and both are the table of pages, in the words of "
                          "FlashAttention 3 and 2. Leave out one.")
    return page_table if block_table is None else block_table


def by_name(function: str, names: Sequence[str], given: Sequence[Any], words: dict[str, Any]) -> dict[str, Any]:
    if len(given) > len(names):
        raise InvalidType(f"{function} is given {counted(len(given), 'argument')} in the order {', '.join(names)}, "
                          f"which has {len(names)}. Give them by name.")
    found = dict(zip(names, given))
    for name in found.keys() & words.keys():
        raise InvalidType(f"{name} is given twice, by its place in the order {', '.join(names[:len(given)])} and by "
                          "name. Leave out one.")
    return found | words


def extras_of(q: Tensor, dropout_p: float, alibi_slopes: Tensor | None, s_aux: Tensor | None,
              block_table: Tensor | None, out: Tensor | None) -> dict[str, Any]:
    """Arguments of attention; of block_table and dropout NotImplementedError."""
    refuse(block_table=block_table)
    if dropout_p: raise Unsupported(f"dropout_p must be 0, as froghopper drops no weights, but is "
                                    f"{shown(dropout_p)}. Use dropout_p=0.0.")
    made: dict[str, Any] = {}
    if alibi_slopes is not None: made["alibi_slopes"] = alibi_slopes
    if s_aux is not None: made["sink"] = as_float("s_aux", s_aux)
    if out is not None: made["out"] = out
    return made


def parts_of(name: str, x: Tensor, ndim: int, parts: int) -> tuple[Tensor, ...]:
    """What lies beside each other in the last but two dimensions of x."""
    check_dense(name, x)
    if x.ndim != ndim or x.shape[-3] != parts:
        lead = "batch, seq" if ndim == 5 else "total"
        raise InvalidProblem(f"{name} must be [{lead}, {parts}, heads, dim], but has the shape {list(x.shape)}. Stack "
                             f"its parts with torch.stack(({', '.join('qkv'[-parts:])}), -3).")
    found: tuple[Tensor, ...] = x.unbind(-3)
    return found


def length_of(name: str, value: Any) -> Any:
    """max_seqlen as an int. transformers hands over a tensor. It is read, which waits for its GPU, as there."""
    if not isinstance(value, Tensor): return value
    if value.numel() != 1 or value.is_floating_point() or value.is_complex():
        raise InvalidType(f"{name} must be one whole number, but is a tensor {list(value.shape)} of {value.dtype}. "
                          f"Use int({name}.max()).")
    return value.item()


def dense_keys(k: Tensor, v: Tensor, seqused_k: Tensor | None) -> dict[str, Any]:
    """k and v [batch, seq, heads, dim] beside packed q, as FlashAttention-3 has them without cu_seqlens_k: as packed
    ones."""
    if not (isinstance(k, Tensor) and isinstance(v, Tensor) and k.ndim == v.ndim == 4):
        raise InvalidProblem(f"cu_seqlens_k is None and k has the shape {list(getattr(k, 'shape', ()))}; without "
                             "cu_seqlens_k, k and v are [batch, seq, heads, dim], and seqused_k [batch] says how many "
                             "of their rows count. Give cu_seqlens_k.")
    batch, rows = k.shape[:2]
    ends = torch.arange(0, (batch + 1) * rows, rows, dtype=torch.int32, device=k.device) if rows else torch.zeros(
        batch + 1, dtype=torch.int32, device=k.device)
    return dict(k=k.flatten(0, 1), v=v.flatten(0, 1), cu_seqlens_kv=ends, max_seqlen_kv=rows, seqused_kv=seqused_k)


def used_of_pages(cu_seqlens_k: Tensor | None, seqused_k: Tensor | None) -> Tensor | None:
    """How many rows of each sequence count. FlashAttention-3 and vLLM say it with seqused_k, and refuse cu_seqlens_k
    beside it; FlashAttention 2 says it with the differences of cu_seqlens_k."""
    if cu_seqlens_k is None: return seqused_k
    if seqused_k is not None:
        raise InvalidType("cu_seqlens_k and seqused_k are given with block_table, and both say how many rows of a "
                          "sequence count: pages do not lie behind each other as packed sequences do. Leave out "
                          "cu_seqlens_k.")
    check_dense("cu_seqlens_k", cu_seqlens_k)
    return cu_seqlens_k.diff()


def refuse(**arguments: Any) -> None:
    """NotImplementedError for what is given and cannot be computed."""
    for name, value in arguments.items():
        if value is None: continue
        shown = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise Unsupported(f"{name} is {shown}; {REFUSED[name]}")


def scales_of(q: Tensor, k: Tensor, q_descale: Tensor | float | None, k_descale: Tensor | float | None,
              v_descale: Tensor | float | None) -> dict[str, Any]:
    """FlashAttention-3's descales, [batch, heads_k] -> scales of froghopper.torch.attention; {} without fp8, where
    vLLM gives them too and nobody reads them. That of q is one number for all query heads of a key head; q in 16 bits
    has none."""
    descales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    check_tangents(descales)
    if getattr(k, "dtype", None) not in FLOAT8: return {}
    if q.dtype not in FLOAT8: del descales["q_descale"]
    one, made = None, {}
    for name, value in descales.items():
        if value is None: value = one = torch.ones((), dtype=torch.float32, device=q.device) if one is None else one
        elif isinstance(value, Tensor) and name == "q_descale" and value.ndim == 2:
            if value.shape[1] != k.shape[-2]:
                raise InvalidTensor(f"q_descale must be [batch, {k.shape[-2]}], a number for each key head, but has "
                                    f"the shape {list(value.shape)}. Give one for all query heads of a key head; "
                                    "scale_q of froghopper.torch.attention has one for each query head.")
            value = value.repeat_interleave(q.shape[-2] // k.shape[-2], 1)
        made["scale_" + name[0]] = value
    return made


def without_gradients(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v, detached where k is fp8, of which there are no gradients here and in FlashAttention-3."""
    if getattr(k, "dtype", None) not in FLOAT8: return q, k, v
    return q.detach(), k.detach(), v.detach()


def window_of(window_size: Any) -> tuple[int | None, int | None]:
    """(left, right), None for no bound. One number is a bound to both sides."""
    if window_size is WHOLE or window_size is None: return None, None
    given = window_size
    if not isinstance(window_size, (tuple, list)):
        try: window_size = (whole_number("window_size", window_size),) * 2
        except InvalidType: window_size = (window_size,)
    if len(window_size) != 2 or not all(bound is None or hasattr(bound, "__index__") for bound in window_size):
        raise InvalidType("window_size must be (left, right), negative for no bound, one number for both, or None, "
                          f"but is {shown(given)}. {way_to_window(given, 'window_size')}.")
    left, right = (None if bound is None or bound < 0 else bound for bound in window_size)
    return left, right


def options_of(q: Tensor, softmax_scale: float | None, causal: bool, window_size: Any, attention_chunk: int | None,
               softcap: float | None, sm_margin: int | None) -> dict[str, Any]:
    """FlashAttention-3's words for a mask and its scores -> those of froghopper.torch.attention."""
    left, right = window_of(window_size)
    if softmax_scale is not None and not torch.compiler.is_compiling():  # an operator looks at one that is open
        plain(scale_in_range, "softmax_scale", softmax_scale)
    return dict(scale=softmax_scale, causal=causal, window=(left, None if causal else right),
                softcap=0.0 if softcap is None else softcap,  # below 0 FlashAttention has none; here it is refused
                attention_chunk=0 if attention_chunk is None else attention_chunk, max_sms=sms_without(q, sm_margin))


def sms_without(q: Tensor, sm_margin: int | None) -> int:
    """max_sms: 0 for all."""
    if sm_margin is None: return 0
    if whole_number("sm_margin", sm_margin) < 0:
        raise InvalidProblem(f"sm_margin must be 0 or more SMs that are left alone, but is {sm_margin}. Use "
                             "sm_margin=0.")
    if sm_margin == 0 or not q.is_cuda: return 0
    sms = torch.cuda.get_device_properties(q.device).multi_processor_count
    if not 0 < sm_margin < sms:
        raise InvalidProblem(f"sm_margin must be from 0 to {sms - 1}, as the GPU has {counted(sms, 'SM')}, but is "
                             f"{sm_margin}. Use sm_margin=0.")
    return int(sms - sm_margin)


def check_tangents(tensors: dict[str, Any]) -> None:
    """Of forward-mode differentiation, which there is none of: they would be dropped."""
    if forward_ad._current_level >= 0: ops.check_tangents(tensors)


def asked(name: str, value: Any) -> bool:
    """A flag; None is False, as where FlashAttention asks `if`."""
    return value is not None and bool(plain(flag, name, value))


def columns(x: Tensor) -> Tensor:
    """Itself, or a copy where columns do not lie side by side."""
    if not isinstance(x, Tensor) or not is_dense(x): return x  # refused later
    return x.contiguous() if x.ndim and x.stride(-1) != 1 else x
