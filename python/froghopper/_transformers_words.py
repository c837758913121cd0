# SPDX-License-Identifier: Apache-2.0
"""What froghopper.torch says of its arguments, in the words of transformers' attention interface: the names that models
hand over, and the module or the field of its config that a value comes from."""
import importlib
import importlib.util
import re
import weakref
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from froghopper import _torch_sdpa as sdpa
from froghopper import _torch_traced as traced
from froghopper._errors import Error, InvalidProblem, InvalidType, Unsupported, warn_user
from froghopper._torch_checks import check_dense
from froghopper._torch_kinds import check_kind
from froghopper._transformers_mask import EAGER, Mask

NAMES = {"q": "query", "k": "key", "v": "value", "causal": "is_causal", "scale": "scaling", "sink": "s_aux",
         "(window)": "sliding_window", "cu_seqlens_q": "cu_seq_lens_q", "cu_seqlens_kv": "cu_seq_lens_k",
         "max_seqlen_q": "max_length_q", "max_seqlen_kv": "max_length_k", **sdpa.HEADS}
# Arguments -> fields of configs that they come from.
FIELDS = {"softcap": ("attn_logit_softcapping", "attn_logit_softcap"), "sliding_window": ("sliding_window",),
          "scaling": ("query_pre_attn_scalar", "attention_multiplier"), "attention_chunk": ("attention_chunk_size",)}
LAYOUT = "[batch, heads, rows, dim]"
# Ways out that only who writes the layer could take -> those of who calls a model.
OF_MODELS = [(r"Use query\.(float|bfloat16)\(\).*", "Use model.float(), or on a GPU model.bfloat16()."),
             (r"Pad query and key .*", EAGER)]


def in_words(error: Error, tensors: tuple[Any, Any, Any], module: Any = None) -> Error:
    """tensors: query, key and value. module: the layer, where it is known."""
    error = sdpa.in_words(error, tensors, NAMES)
    text = str(error)
    for found, put in OF_MODELS: text = re.sub(found, put, text)
    error.args = (text,)
    if module is not None: error.args = (str(error) + source_of(str(error).partition(" ")[0], module),)
    return error


def source_of(argument: str, module: Any) -> str:
    """A sentence about where the layer has the argument from; "" where that is not known."""
    layer, config = type(module).__name__, getattr(module, "config", None)
    if argument == "s_aux" and hasattr(module, "sinks"): return f" It is sinks of {layer}."
    for field in FIELDS.get(argument, ()):
        if getattr(config, field, None) is not None: return f" It is {field} of {type(config).__name__}."
    return ""


def check_arguments(query: Any, key: Any, value: Any, others: dict[str, Any]) -> None:
    """What is wrong with arguments that are no tensors, have other dimensions or are no numbers. others may be None."""
    tensors = dict(query=query, key=key, value=value)
    for name, x in tensors.items(): check_dense(name, x)
    for name, x in others.items():
        if x is not None: check_kind(name, x)
    for name, x in tensors.items():
        if x.ndim == 4: continue
        raise InvalidProblem(f"{name} must be {LAYOUT}, but has the shape {list(x.shape)}. Give all four.")


# Keywords of attention functions that change what is computed, and are not computed here.
CHANGES = {
    "output_attentions": "weights are never written out here. Use attn_implementation=\"eager\".",
    "sinks": f"sinks are s_aux here, one for each head. {EAGER}",
    "indices": f"keys are not chosen one by one here. {EAGER}",
    "block_indices": f"keys are not chosen block by block here. {EAGER}",
    "head_mask": f"heads are not masked here. {EAGER}",
    "block_table": "pages are read by continuous batching. Use froghopper.transformers.continuous_batching(model).",
}


def refuse(module: torch.nn.Module, mask: Any, dropout: float, position_bias: Tensor | None, cache: Any,
           others: dict[str, Any]) -> None:
    """NotImplementedError for what the library does not compute."""
    if dropout:
        raise Unsupported(f"dropout must be 0, as attention weights are not dropped here, but is {dropout}. Set it "
                          f"to 0 in the config{dropout_field(module, dropout)}, before the model is made: its layers "
                          "keep the number. Or call eval().")
    if position_bias is not None: raise Unsupported(f"position_bias is given; scores have no bias here. {EAGER}")
    for name, value in others.items():
        if name in CHANGES and value is not None and value is not False:
            raise Unsupported(f"{type(module).__name__} has {name}; {CHANGES[name]}")
    if wants_weights(module, others):
        raise Unsupported(f"{type(module).__name__} has output_attentions; {CHANGES['output_attentions']}")
    if cache is not None: raise Unsupported(f"cache is a {type(cache).__name__}; {CHANGES['block_table']}")
    if mask is not None and not isinstance(mask, Mask):
        shape = list(mask.shape) if isinstance(mask, Tensor) else ""
        raise Unsupported(f"{type(module).__name__} has attention_mask, a {type(mask).__name__} {shape}; froghopper "
                          f"reads masks that transformers makes for it, not matrices. Give padding as [batch, "
                          f"tokens]. {EAGER}")


# What models collect of their layers, in a transformers that keeps it so; torch.compile reads it too.
_collector: Any = None
if importlib.util.find_spec("transformers.utils.output_capturing") is not None:
    _collector = getattr(importlib.import_module("transformers.utils.output_capturing"), "_active_collector", None)


def wants_weights(module: torch.nn.Module, others: dict[str, Any]) -> bool:
    """Whether the model was asked for weights, by its call or its config, also where it keeps that from its layers: it
    would return as many as it gets, which is none, and say nothing."""
    if _collector is not None and (collected := _collector.get()) is not None:
        for name in collected:
            if "attentions" in name: return True
        return False
    if is_compiling(): return False  # which cannot look into what follows
    config = getattr(module, "config", None)
    return bool(getattr(config, "output_attentions", False)) and others.get("output_attentions") is None


def dropout_field(module: torch.nn.Module, dropout: float) -> str:
    """Where the model's config has that dropout: the field of attention, or else those that have its value."""
    config = getattr(module, "config", None)
    fields = {name: value for name, value in vars(config).items() if "drop" in name or name.endswith("pdrop")
              } if config is not None else {}
    named = [name for name in fields if name.startswith(("attention", "attn"))]
    found = [name for name in named if fields[name] == dropout] or named or [
        name for name, value in fields.items() if value == dropout]
    if found: return f", where it is {' or '.join(found)}"
    return ", where it is attention_dropout, attention_probs_dropout_prob or attn_pdrop"


def check_packed(mask: Mask, query: Tensor, lengths: dict[str, Any]) -> None:
    """Packed sequences that the caller tells: all about them, and nothing else."""
    if mask.first or any(x is not None for x in (mask.keys, mask.begin, mask.end)):
        raise Unsupported("cu_seq_lens are given beside an attention_mask with padding or a cache with room left; "
                          "packed sequences have neither. Leave out one of them.")
    needed = lengths if query.is_cuda else ("cu_seq_lens_q", "cu_seq_lens_k")
    for name in needed:
        if lengths[name] is None:
            given = ", ".join(other for other, x in lengths.items() if x is not None)
            raise InvalidProblem(f"{given} without {name}; packed sequences are told by all of {', '.join(needed)}. "
                                 f"Give {name}.")


def check_name(name: str, ours: Any) -> None:
    """Raises for names of attention that transformers has or reads as something else. ours: the function that may have
    the name already."""
    names: Any = AttentionInterface  # has no types
    taken = name == "eager" or (name in names().valid_keys() and names()[name] is not ours)
    if "flash" in name: rule = 'have no "flash" in it, as transformers takes such names for its own'
    elif taken: rule = "be one that transformers has not, as other models would compute what froghopper computes"
    elif not re.fullmatch(r"[\w.-]+", name):
        rule = "be of letters, digits, _, . and -, as transformers reads \"|\" and \"/\" in another way"
    else: return
    raise InvalidType(f"name must {rule}, but is {name!r}. Use \"froghopper\".")


def turned(x: Any) -> Any: return x.transpose(1, 2) if isinstance(x, Tensor) and x.ndim == 4 else x


traced.told_by["attention_forward"] = lambda error, tensors: in_words(error, (turned(tensors[0]), turned(tensors[1]),
                                                                              turned(tensors[2])))
is_compiling = torch.compiler.is_compiling


Models = dict[int, "weakref.ref[Any]"]  # by id of what all layers of a model share, as configs have no hash
_on_gpus: Models = {}  # whose positions on a GPU were looked at, which waits for it: once for each model
_told: Models = {}


def shared_by_layers(module: Any) -> Any:
    config = getattr(module, "config", None)
    return module if config is None or type(config) is dict else config


def is_one_of(models: Models, module: Any) -> bool:
    owner = shared_by_layers(module)
    return (found := models.get(id(owner))) is not None and found() is owner


def add_to(models: Models, module: Any) -> None:
    owner = shared_by_layers(module)
    at = id(owner)
    def forget(_: Any) -> None: models.pop(at, None)
    models[at] = weakref.ref(owner, forget)


def warn_of_packing(module: Any, query: Tensor, mask: Mask, positions: Any) -> None:
    """A warning, once for each model, where positions begin again within a row and no mask says where sequences end:
    transformers finds packed sequences by their positions where there is neither a cache nor an attention_mask, and
    with one of these says nothing of them."""
    if query.shape[2] < 2 or not mask.causal or getattr(module, "layer_idx", 0) != 0: return
    if is_one_of(_told, module): return
    if not mask.begin is mask.end is mask.rows is mask.ends is None: return
    if type(positions) is not Tensor or positions.ndim != 2 or positions.shape[1] != query.shape[2]: return
    if positions.device.type not in ("cpu", "cuda") or (positions.is_cuda and is_one_of(_on_gpus, module)): return
    if positions.is_cuda:
        if torch.cuda.is_current_stream_capturing(): return
        add_to(_on_gpus, module)
    if not bool((positions.diff() <= 0).any()): return
    add_to(_told, module)
    way = "Leave out attention_mask, and give" if mask.of_tokens else "Give"
    warn_user("froghopper.transformers: position_ids begin again within the row, as those of packed sequences do, but "
              "the mask does not tell sequences apart, and each attends to those before it. transformers finds them by "
              "position_ids only without a KV cache and an attention_mask, and in models that give position_ids to "
              f"their mask, as Llama does, but not OPT and GPT-OSS. {way} the model use_cache=False, or any model "
              "cu_seq_lens_q, cu_seq_lens_k and their lengths.")
