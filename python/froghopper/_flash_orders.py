# SPDX-License-Identifier: Apache-2.0
"""Which library's order positional arguments of froghopper.flash_attn_interface have, known by their types and, of a 0
that is a dropout, by its value. An order is the names of what is given behind q, k and v; None for FlashAttention-3's.
"""
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from froghopper._errors import InvalidType
from froghopper._log import logger
from froghopper._values import shown

# Positional arguments of the others. Of FlashAttention 2 those after q, k and v, or after max_seqlen_k.
FLASH_2 = ("dropout_p", "softmax_scale", "causal", "window_size", "softcap", "alibi_slopes", "deterministic",
           "return_attn_probs", "block_table")
FLASH_2_CACHE = ("k", "v", "rotary_cos", "rotary_sin", "cache_seqlens", "cache_batch_idx", "cache_leftpad",
                 "block_table", "softmax_scale", "causal", "window_size", "softcap", "rotary_interleaved",
                 "alibi_slopes", "num_splits", "return_softmax_lse")
PACKED = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
VLLM = ("max_seqlen_q", "cu_seqlens_q", "max_seqlen_k", "cu_seqlens_k", "seqused_k", "qv", *FLASH_2,
        "return_softmax_lse", "out", "scheduler_metadata", "q_descale", "k_descale", "v_descale", "num_splits",
        "fa_version", "s_aux")


OF_PYTHON = frozenset((int, float, bool, type(None)))


def read(x: Any) -> Any:
    """The number or flag of Python in a scalar of NumPy, or in a tensor without dimensions on the CPU; others as they
    are. A tensor whose number is not known here, as on a GPU, is 1 or True: of the kind, and no 0."""
    if type(x) in OF_PYTHON or getattr(x, "ndim", None) != 0: return x
    if isinstance(x, Tensor):
        if x.is_complex(): return x
        if torch.compiler.is_compiling() or not x.is_cpu: return True if x.dtype == torch.bool else 1
    try: found = x.item()
    except (AttributeError, RuntimeError, TypeError): return x  # a tensor without memory, or what is no scalar
    return found if type(found) in OF_PYTHON else x


def is_number(x: Any) -> bool: return type(x) in (int, float) or type(read(x)) in (int, float)


def is_whole(x: Any) -> bool: return type(x) is int or type(read(x)) is int


def is_flag(x: Any) -> bool: return isinstance(x, bool) or isinstance(read(x), bool)


def dense_order(given: Sequence[Any], words: Collection[str]) -> Sequence[str] | None:
    """FlashAttention 2's order, where what follows q, k and v cannot be FlashAttention-3's softmax_scale, causal, qv,
    as where words name that scale. A 0 alone is its dropout_p: FlashAttention-3 has a scale there, and a scale of 0 is
    given by its name."""
    if "softmax_scale" in words: return FLASH_2[:-1]
    first = given[0]
    if type(first) not in (int, float) and type(first := read(first)) not in (int, float):
        return FLASH_2[:-1] if len(given) > 2 and is_flag(given[2]) else None  # a qv is no flag
    if len(given) == 1: return FLASH_2[:-1] if first == 0 else None
    ours = is_flag(given[1]) and not (len(given) > 2 and is_flag(given[2]))
    if ours and first == 0:
        raise InvalidType(f"0 and {shown(read(given[1]))} are given behind the tensors: FlashAttention 2 has dropout_p "
                          "there, and FlashAttention 3 softmax_scale and causal. Give causal by its name, and a scale "
                          "of 0 too.")
    return None if ours else FLASH_2[:-1]


def tell_of_scale(function: str, tensor: Any, given: Any) -> None:
    """A softmax_scale of FlashAttention-3 stands where FlashAttention 2 has dropout_p. A warning of the log, once in a
    process, where a number alone behind the tensors looks like the latter: few digits, and not 1/sqrt(dim)."""
    if torch.compiler.is_compiling() or _told or isinstance(given, Tensor): return  # a tensor is refused
    # Few digits in its own type: 0.1 of float32 has more of them in Python's.
    if type(given) is not float: given = float(str(given)) if type(read(given)) is float else None
    if given is None or not 0 < given < 1: return
    dim = tensor.shape[-1] if isinstance(tensor, Tensor) and tensor.ndim else 0
    if dim and abs(given * dim ** 0.5 - 1) < 0.01 or abs(given * 1000 - round(given * 1000)) > 1e-6: return
    _told.add(function)
    logger.warning("%s is given %s behind the tensors, which is taken as softmax_scale, as in FlashAttention 3. In "
                   "FlashAttention 2 it is dropout_p, of which there is none here: leave it out, or give "
                   "dropout_p=0.0. If it is the scale, give softmax_scale=%s.", function, given, given)


_told: set[str] = set()  # the function that did


def pair_order(given: Sequence[Any], words: Collection[str]) -> Sequence[str] | None:
    """Of flash_attn_kvpacked_func, which FlashAttention-3 has not: a number alone is a dropout_p."""
    return FLASH_2[:-1] if len(given) == 1 and is_number(given[0]) else dense_order(given, words)


def packed_order(given: Sequence[Any], _: Collection[str]) -> Sequence[str] | None:
    """vLLM's order, where a whole number comes first; FlashAttention 2's, where a number follows max_seqlen_k."""
    if len(given) > 2 and all(is_whole(x) or (isinstance(x, Tensor) and x.ndim == 0) for x in given[:2]):
        raise InvalidType("flash_attn_varlen_func takes cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k in this "
                          "order, or max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k, but is given two whole "
                          "numbers first. Give the four by name.")
    if not isinstance(given[0], Tensor) or (given[0].ndim == 0 and len(given) > 1 and
                                            isinstance(given[1], Tensor) and given[1].ndim == 1): return VLLM
    if len(given) > 4 and is_number(given[4]): return (*PACKED, *FLASH_2)
    if len(given) > 6 and is_flag(given[6]): return (*PACKED, *FLASH_2)  # a scale is no flag
    return None


def cache_order(given: Sequence[Any], _: Collection[str]) -> Sequence[str] | None:
    """FlashAttention 2's order, which has no qv before rotary_cos: whole numbers come fifth instead of sixth, or what
    would be qv has two dimensions."""
    def whole(x: Any) -> bool:
        return is_whole(x) or (isinstance(x, Tensor) and not x.is_floating_point() and not x.is_complex())
    if len(given) > 4 and whole(given[4]): return FLASH_2_CACHE
    return FLASH_2_CACHE if len(given) > 2 and isinstance(given[2], Tensor) and given[2].ndim == 2 else None
