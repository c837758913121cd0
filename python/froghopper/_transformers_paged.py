# SPDX-License-Identifier: Apache-2.0
"""Continuous batching of transformers (generate_batch, init_continuous_batching) with froghopper's attention.

    froghopper.transformers.continuous_batching(model).generate_batch(inputs=prompts)

Every step is one packed call: sequences that decode one token lie beside others whose prompts come in chunks. Up to
transformers 5.22 an attention of this kind is called paged|NAME, and a model of attention NAME is switched to it.
Newer ones read such a name as NAME and take, beside sdpa and paged|eager, names with "flash" in them alone, which they
look up nowhere if the model's config has one already: continuous_batching writes it there.

transformers itself writes new keys to the pages of its cache and hands over the rows of a step, packed. Pages are read
where they lie if it has a function flash_attn_with_kvcache for the model's attention, that is of a repository of
kernels: docs/14-engines.md.
"""
import functools
import inspect
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers import masking_utils as masks

from froghopper._errors import Error, InvalidProblem, InvalidType, Unsupported
from froghopper._flash_words import as_float, length_of
from froghopper._torch_calls import check_tensor
from froghopper._transformers_words import check_arguments, in_words, is_compiling, refuse
from froghopper._values import type_of
from froghopper._words import takes_words_of_others
from froghopper.torch import attention

Model = TypeVar("Model", bound=torch.nn.Module)
AGAIN = "Use attn_implementation=\"froghopper\" for generate and for training."


def register(name: str) -> None:
    """The names of continuous batching beside the attention of this name."""
    for given in (f"paged|{name}", f"{name}_flash"):
        AttentionInterface.register(given, attention_forward)
        masks.AttentionMaskInterface.register(given, no_mask)


@takes_words_of_others("transformers")
def continuous_batching(model: Model, name: str = "froghopper") -> Model:
    """The model, whose attention is froghopper's for continuous batching from now on. For generate and training set it
    back: model.set_attn_implementation("froghopper"). name: as given to register, which is called too.

    A model with sliding windows has them. Raises NotImplementedError for what froghopper.transformers refuses.
    """
    from froghopper import transformers as plug
    if not isinstance(model, torch.nn.Module) or not hasattr(model, "config"):
        raise InvalidType(f"model must be a model of transformers, with a config, but is {type_of(model)}. Give what "
                          "from_pretrained returns.")
    plug.register(name)
    held: Any = model
    names: Any = AttentionInterface  # has no types
    if "paged|sdpa" in names().valid_keys(): held.set_attn_implementation(f"paged|{name}")
    else: held.config._attn_implementation = f"{name}_flash"
    return model


def no_mask(*_: Any, attention_mask: Tensor | None = None, **others: Any) -> None:
    """Lengths say what a sequence attends to."""
    if attention_mask is not None:
        raise Unsupported("attention_mask is given and the model's attention is that of continuous batching, where "
                          f"lengths say what is seen. {AGAIN}")


@functools.cache
def takes_kwargs(kind: Any) -> bool:
    """Whether such a cache is updated as a regular one: transformers 5.23 and newer. Asked once, not in each layer."""
    return "kwargs" in inspect.signature(kind.update).parameters


def with_cache(cache: Any, key: Tensor, value: Tensor, layer: int, others: dict[str, Any],
               of_layers: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Writes the keys and values of this step to the cache, and returns those of all steps, [keys, heads_kv, dim]."""
    if takes_kwargs(cache.__class__):
        found = cache.update(key_states=key, value_states=value, layer_idx=layer, kwargs=others | of_layers)
        return found[0][0].transpose(0, 1), found[1][0].transpose(0, 1)
    k, v = cache.update(key_states=key, value_states=value, layer_idx=layer, read_index=others["read_index"],
                        write_index=others["write_index"])
    return k, v


def attention_forward(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor,
                      attention_mask: Tensor | None = None, dropout: float = 0.0, scaling: float | None = None,
                      sliding_window: int | None = None, softcap: float | None = None, s_aux: Tensor | None = None,
                      position_bias: Tensor | None = None, cache: Any = None, cu_seq_lens_q: Tensor | None = None,
                      cu_seq_lens_k: Any = None, max_length_q: Any = None, max_length_k: Any = None,
                      max_seqlen_q: Any = None, max_seqlen_k: Any = None, is_causal: bool | None = None,
                      **others: Any) -> tuple[Tensor, None]:
    """The attention of transformers' attention interface for packed sequences of a paged cache.

    query           [1, heads, rows, dim], rows of all sequences; key, value [1, heads_kv, keys, dim], of this step or
                    with those of the cache; with cache, those of this step
    cu_seq_lens_*   [sequences + 1]; of k, with cache one for each kind of layer, as max_length_k
    max_length_*    the longest sequence; max_seqlen_* before transformers 5.13

    Returns (out [1, rows, heads, dim of value], None).
    """
    refuse(module, attention_mask, dropout, position_bias, None, others)
    if not is_compiling():
        check_arguments(query, key, value, dict(scaling=scaling, sliding_window=sliding_window, softcap=softcap,
                                                cu_seq_lens_q=cu_seq_lens_q))
        if not isinstance(cu_seq_lens_k, (dict, Tensor, type(None))): check_tensor("cu_seq_lens_k", cu_seq_lens_k)
    window = getattr(module, "sliding_window", None) if sliding_window is None else sliding_window
    of_layers = dict(cu_seq_lens_k=cu_seq_lens_k, max_length_k=max_length_k)
    if isinstance(cu_seq_lens_k, dict):
        kind = "sliding_attention" if window else "full_attention"
        cu_seq_lens_k, max_length_k, max_seqlen_k = (x[kind] if isinstance(x, dict) else x for x in (
            cu_seq_lens_k, max_length_k, max_seqlen_k))
    longest = [length_of(name, given if given is not None else older) for name, given, older in (
        ("max_length_q", max_length_q, max_seqlen_q), ("max_length_k", max_length_k, max_seqlen_k))]
    if cu_seq_lens_q is None or cu_seq_lens_k is None or None in longest:
        raise InvalidProblem("cu_seq_lens_q, cu_seq_lens_k, max_length_q or max_length_k is None; the attention of "
                             f"continuous batching has all of them. {AGAIN}")
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    if cache is not None:
        layer: Any = module.layer_idx
        k, v = with_cache(cache, key, value, layer, others, of_layers)
    options: dict[str, Any] = dict(
        cu_seqlens_q=cu_seq_lens_q.to(torch.int32), cu_seqlens_kv=cu_seq_lens_k.to(torch.int32),
        max_seqlen_q=longest[0], max_seqlen_kv=longest[1], causal=is_causal is not False, scale=scaling,
        window=(window - 1, None) if window else None, softcap=softcap or 0.0,
        sink=None if s_aux is None else as_float("s_aux", s_aux))
    if is_compiling(): return attention(q, k, v, **options)[None], None
    try: return attention(q, k, v, **options)[None], None
    except Error as error: raise in_words(error, (query, key, value), module) from None
