# SPDX-License-Identifier: Apache-2.0
"""What is said where PyTorch or Python has refused a value before froghopper has looked at it: which argument is of a
wrong kind. A call whose arguments are right never comes here."""
import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

from froghopper._errors import Error
from froghopper._torch_checks import check_dense
from froghopper._torch_options import plain
from froghopper._values import flag, number, whole_number

# What Python and PyTorch raise of values that are no tensors, or cannot be compared; AttributeError among them of None.
BARE = (AttributeError, IndexError, RuntimeError, TypeError, ValueError)

FLAGS = ("causal", "is_causal", "deterministic", "return_attn_probs", "return_softmax_lse", "rotary_interleaved",
         "enable_gqa")
NUMBERS = ("softmax_scale", "softcap", "dropout_p", "scale", "scaling", "dropout")
WHOLE = ("attention_chunk", "sm_margin", "num_heads_q", "max_sms", "sliding_window", "batch_size", "q_length",
         "kv_length", "kv_offset")
TENSORS = ("q", "k", "v", "qkv", "kv", "k_cache", "v_cache", "query", "key", "value", "key_cache", "value_cache",
           "slot_mapping", "s_aux", "out", "alibi_slopes", "block_table", "page_table", "cache_batch_idx",
           "cache_leftpad", "rotary_cos", "rotary_sin", "rotary_seqlens", "cu_seqlens", "cu_seqlens_q", "cu_seqlens_k",
           "cu_seqlens_k_new", "seqused_q", "seqused_k", "cu_seq_lens_q", "cu_seq_lens_k", "attention_mask")


def tells_kinds(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that looks at the kinds of its arguments where something else has refused them."""
    @functools.wraps(function)
    def call(*given: Any, **words: Any) -> Any:
        try: return function(*given, **words)
        except Error: raise
        except BARE:
            check_kinds(function, given, words)
            raise
    return call


def check_kinds(function: Callable[..., Any], given: tuple[Any, ...], words: dict[str, Any]) -> None:
    """Raises InvalidType of the first argument of a call whose kind is wrong."""
    parameters = inspect.signature(function).parameters
    for name, x in (*zip(parameters, given), *words.items()):
        if x is None and name in parameters and parameters[name].default is not inspect.Parameter.empty: continue
        check_kind(name, x)


def check_kind(name: str, x: Any) -> None:
    if name in TENSORS: check_dense(name, x)
    elif name in FLAGS: plain(flag, name, x)
    elif name in NUMBERS: plain(number, name, x)
    elif name in WHOLE or (name == "q_offset" and not isinstance(x, Tensor)): plain(whole_number, name, x)
