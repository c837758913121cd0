# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own signature of attention, [batch, heads, seq, dim]: froghopper.torch.scaled_dot_product_attention."""
import re
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.bias import CausalBias, CausalVariant

from froghopper import _torch_traced as traced
from froghopper._axes import Shape, unlike
from froghopper._errors import Error, InvalidProblem, Unsupported, warn_user
from froghopper._flash_widths import MULTIPLE, has_odd_columns, wider
from froghopper._torch_calls import DTYPES, LOOK, check_tensor, is_dense
from froghopper._torch_eager import NO_SIDES, attend
from froghopper._torch_kinds import BARE, check_kinds
from froghopper._torch_native import HEADS_FIRST
from froghopper._torch_options import decided, plain, whole
from froghopper._values import LARGEST_SCALE, flag, number, shown, type_of
from froghopper._words import named_by, takes_words_of_others

HEADS = {"heads_q": "the number of heads of query", "heads_kv": "the number of heads of key"}
NAMES = {"q": "query", "k": "key", "v": "value", "causal": "is_causal", **HEADS}  # of attention -> of the function here
LARGEST_DIM = 512
# Not torch.nn.functional's, which a user may have replaced by the function below.
of_pytorch: Any = getattr(torch._C._nn, "scaled_dot_product_attention")
_told: set[str] = set()


@takes_words_of_others("torch")
def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
                                 enable_gqa: bool = False, *, max_sms: int = 0) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, its signature and meaning, without masks and dropout, and with
    one argument more.

    query          [..., heads, seq_q, dim]; dimensions before heads are batch and may be missing or many
    key, value     [..., heads_kv, seq_kv, dim]; dimensions before seq broadcast, as PyTorch's do
    attn_mask      None; any mask, even one that is true everywhere, is NotImplementedError: its content would have to
                   be read on the host. attention has causal masks, windows, and seqused_kv for padding: see there
                   where their diagonal is
    dropout_p      0.0; others are NotImplementedError
    is_causal      the diagonal begins at the first query and key, whatever the lengths
    scale          None for 1/sqrt(dim); may be negative, which copies query once
    enable_gqa     heads_kv may divide heads
    max_sms        SMs of a GPU, or threads of a CPU, that it may use; 0 for all, on a CPU torch.get_num_threads()

    Returns [..., heads, seq_q, dim of value]. Nothing is copied where attention copies nothing, unless there are
    several batch dimensions that cannot be seen as one, or all rows of a tensor are one in memory, which attention
    refuses, or head dims are no multiples of 8: then query, key and value are copied with zeros up to the next one.
    float64 is left to PyTorch's own function, with one warning. Raises as
    attention does.
    """
    if torch.compiler.is_compiling():  # which tells what it sees of errors where nobody handles them
        traced.check_known(scale=scale)
        return compute(apart(query), apart(key), apart(value), attn_mask, dropout_p, is_causal, scale, enable_gqa,
                       max_sms)
    try: return compute(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, max_sms)
    except Error as error:
        copied = apart(query), apart(key), apart(value)
        if OF_ONE_ROW not in str(error) or all(a is b for a, b in zip(copied, (query, key, value))):
            raise in_words(error, (query, key, value)) from None
    except BARE:
        check_kinds(compute, (query, key, value), dict(dropout_p=dropout_p, is_causal=is_causal,
                                                       enable_gqa=enable_gqa) | ({} if scale is None else
                                                                                 dict(scale=scale)))
        raise
    return scaled_dot_product_attention(*copied, attn_mask, dropout_p, is_causal, scale, enable_gqa, max_sms=max_sms)


OF_ONE_ROW = "must have more than one row in memory"


def apart(x: Any) -> Any:
    """A copy where all rows are one in memory, as in torch.ones(1, 1, 1, 8).expand(2, 4, 16, 8)."""
    if not isinstance(x, Tensor) or not is_dense(x) or x.ndim < 2 or any(x.stride()[:-1]): return x
    return x.contiguous()


def in_words(error: Error, tensors: tuple[Any, Any, Any], names: dict[str, str] = NAMES) -> Error:
    """An error of attention as one of a function like that above, with the names and the shapes that it was given."""
    query, key, value = tensors
    if "their shapes are" in str(error):
        for name, x, of, like, axis, at in (("key", key, "query", query, "dim", -1),
                                            ("value", value, "key", key, "seq", -2),
                                            ("value", value, "key", key, "heads", -3)):
            if x.shape[at] == like.shape[at]: continue
            return unlike(name, x.shape, of, like.shape, axis, x.shape[at], like.shape[at])
    if names is NAMES: error.args = (str(error).replace(OF_SCALES, f"{OF_SCALES} of froghopper.torch.attention"),)
    error = named_by(names, error)
    text = re.sub(" If heads are before rows, .*? lie\\.", "", str(error))  # they are, here
    if names is NAMES and OF_HEADS.match(text) and looks_exchanged(query.shape, key.shape, value.shape):
        if key.shape[1] > key.shape[2]:  # and in most models there are fewer heads than rows
            text = (f"{text.partition('. ')[0]}: query has the shape {list(query.shape)} and key {list(key.shape)}, "
                    f"which look like [batch, seq, heads, dim]. Use {TURNED}.")
        else: text = f"{text} Or, if they are [batch, seq, heads, dim], use {TURNED}."
    error.args = (text,)
    return error


TURNED = ("query.transpose(1, 2), key.transpose(1, 2) and value.transpose(1, 2), or froghopper.torch.attention, which "
          "has that layout")


OF_SCALES = "with scale_q, scale_k and scale_v"  # which are not arguments here
OF_HEADS = re.compile("the number of heads of key must divide|query, key and value must have equally many heads")


def looks_exchanged(query: Shape, key: Shape, value: Shape) -> bool:
    """Whether what would be rows are heads that divide, where heads as read do not."""
    if not len(query) == len(key) == len(value) == 4 or key[1:3] != value[1:3]: return False
    return bool(query[2] and key[2] and query[2] % key[2] == 0)


def compute(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool,
            scale: float | None, enable_gqa: bool, max_sms: int) -> Tensor:
    if attn_mask is None and dropout_p == 0 and usual(query, key, value, is_causal, scale, enable_gqa, max_sms):
        o, _ = attend(HEADS_FIRST, query, key, value, NO_SIDES, (
            LOOK, LOOK, is_causal, -1, -1, 0.0, scale, True, decided(False), max_sms, 0, False), False)
        return o
    for name, x in (("query", query), ("key", key), ("value", value)):
        check_tensor(name, x)
        if x.dim() < 2:
            raise InvalidProblem(f"{name} must be [..., heads, seq, dim], but has the shape {list(x.shape)}. Add the "
                                 "missing dimensions.")
    if isinstance(attn_mask, CausalBias) and attn_mask.variant == CausalVariant.LOWER_RIGHT:
        raise Unsupported("attn_mask is a triangle at the lower right, which this function does not compute. Use "
                          "froghopper.torch.attention, whose causal mask is that one.")
    if attn_mask is not None:
        kind = f"a tensor {list(attn_mask.shape)}" if isinstance(attn_mask, Tensor) else type_of(attn_mask)
        raise Unsupported(f"attn_mask must be None, as froghopper computes no mask of numbers, but is {kind}. For a "
                          "lower triangle use is_causal=True; for a band froghopper.torch.attention with window, for "
                          "keys that are padding with seqused_kv. Where such padding meets causal or window, give "
                          "align=\"top_left\" or seqused_q too.")
    if dropout_p != 0: raise Unsupported(f"dropout_p must be 0, as froghopper drops no weights, but is "
                                         f"{shown(dropout_p)}. Use dropout_p=0.0.")
    enable_gqa = plain(flag, "enable_gqa", enable_gqa)
    if query.dtype == key.dtype == value.dtype == torch.float64:
        say_once("query, key and value are float64, which froghopper does not compute; PyTorch's own attention does.")
        found: Tensor = of_pytorch(query, key, value, None, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
        return found
    if isinstance(scale, (int, float)) and not isinstance(scale, bool):
        if not -LARGEST_SCALE <= scale <= LARGEST_SCALE:
            raise InvalidProblem(f"scale must be from -2^127 to 2^127, but is {shown(scale)}. Use scale=None for "
                                 "1/sqrt(dim).")
        if scale < 0: query, scale = -query, -scale  # exact: a sign of each product
    if max(query.shape[-1], value.shape[-1]) > LARGEST_DIM:
        raise Unsupported(f"query, key and value must have at most {LARGEST_DIM} columns, but query has "
                          f"{query.shape[-1]} and value has {value.shape[-1]}. Use "
                          "torch.nn.functional.scaled_dot_product_attention.")
    if has_odd_columns(query, value):
        columns = value.shape[-1]
        query, key, value, scale = wider(query, key, value, scale)
        return scaled_dot_product_attention(query, key, value, None, 0.0, is_causal, scale, enable_gqa,
                                            max_sms=max_sms)[..., :columns]
    q, k, v, lead = heads_fourth(query, key, value, enable_gqa)
    o, _ = attend(HEADS_FIRST, q, k, v, NO_SIDES, (
        LOOK, LOOK, plain(flag, "is_causal", is_causal), -1, -1, 0.0,
        None if scale is None else plain(number, "scale", scale), True, decided(False), whole("max_sms", max_sms), 0,
        False), False)
    if len(lead) == 1: return o
    return o[0, 0] if query.dim() == key.dim() == value.dim() == 2 else o.reshape(*lead, *o.shape[1:])


def usual(query: Any, key: Any, value: Any, is_causal: Any, scale: Any, enable_gqa: Any,
          max_sms: Any) -> bool:
    """What needs nothing but the native operators, which exchange strides: they check the rest."""
    if not (isinstance(query, Tensor) and isinstance(key, Tensor) and isinstance(value, Tensor)): return False
    if not ((is_causal is True or is_causal is False) and query.dtype in DTYPES and type(max_sms) is int and
            (scale is None or (type(scale) is float and 0 <= scale <= LARGEST_SCALE))): return False
    q, k, v = query.shape, key.shape, value.shape
    if not len(q) == len(k) == len(v) == 4: return False
    return bool(q[0] == k[0] == v[0] and k[1] == v[1] and
                (enable_gqa is True or (enable_gqa is False and q[1] == k[1])) and
                not q[3] % MULTIPLE and not v[3] % MULTIPLE)


def say_once(reason: str) -> None:
    if torch.compiler.is_compiling() or reason in _told: return
    _told.add(reason)
    warn_user(f"froghopper.torch.scaled_dot_product_attention: {reason}")


def heads_fourth(query: Tensor, key: Tensor, value: Tensor,
                 enable_gqa: bool) -> tuple[Tensor, Tensor, Tensor, tuple[int, ...]]:
    """(q, k, v as [batch, heads, seq, dim], the batch dimensions that were)."""
    all_three = [x if x.dim() > 2 else x.unsqueeze(0) for x in (query, key, value)]
    heads = [x.shape[-3] for x in all_three] if enable_gqa else shared_heads(all_three)
    leads = [x.shape[:-3] for x in all_three]
    if leads[0] == leads[1] == leads[2]: lead = tuple(leads[0])
    else:
        broadcast: Any = torch.broadcast_shapes  # has no types
        try: lead = tuple(broadcast(*leads))
        except RuntimeError:
            raise InvalidProblem("query, key and value must have dimensions before heads that are equal or "
                                 f"1, but have the shapes {list(query.shape)}, {list(key.shape)} and "
                                 f"{list(value.shape)}. Give all three one batch.") from None
    made = []
    for x, count in zip(all_three, heads):
        if x.shape[:-3] != lead or x.shape[-3] != count: x = x.expand(*lead, count, *x.shape[-2:])
        if len(lead) == 0: x = x.unsqueeze(0)
        elif len(lead) > 1: x = x.flatten(0, len(lead) - 1)
        made.append(x)
    return made[0], made[1], made[2], lead


def shared_heads(tensors: list[Tensor]) -> list[int]:
    """Heads of each without enable_gqa, where 1 is as many as others have: key and value may keep their 1."""
    heads = [x.shape[-3] for x in tensors]
    most, of_kv = max(heads), max(heads[1:])
    if any(count not in (most, 1) for count in heads):
        grouped = heads[1] == heads[2] and heads[0] % max(heads[1], 1) == 0
        raise InvalidProblem("query, key and value must have equally many heads, or 1, without enable_gqa, but have "
                             f"{heads[0]}, {heads[1]} and {heads[2]}. "
                             f"{'Use enable_gqa=True' if grouped else 'Give all three one number of heads'}.")
    return [most, of_kv, of_kv]


traced.told_by["scaled_dot_product_attention"] = lambda error, tensors: in_words(
    error, (tensors[0].transpose(1, 2), tensors[1].transpose(1, 2), tensors[2].transpose(1, 2)))
