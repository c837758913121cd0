# SPDX-License-Identifier: Apache-2.0
"""Hugging Face transformers with froghopper's attention.

    import froghopper.transformers
    froghopper.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="froghopper", dtype=torch.bfloat16)

register() adds two functions under one name: the attention, and the mask that goes with it, which says in numbers what
eager attention says with a matrix. What models ask for and how it is done:

    grouped heads, scaling, softcap, sinks (s_aux), head dims of V    as the library has them, with gradients
    causal, sliding windows to the left or to both sides              masks by index
    a cache that grows, slides or has room left                       lengths; the last query is at the last key
    padding at the right or the left, one run of tokens a sequence    lengths; rows of padding give 0. At the left, keys
                                                                      and values that do not lie packed, as those of a
                                                                      cache, are copied once
    several sequences in a row, by position_ids or cu_seq_lens_q      packed sequences
    chunks of keys (Llama 4)                                          attention_chunk, from the first token on

What cannot be said so raises NotImplementedError with the reason: dropout, output_attentions, position biases, masks of
the caller's own (4 dimensions), tokens between padding, keys chosen one by one, and models that cut, add or read their
mask as a matrix, or have other keys than it was made for. Finding padding looks at the mask once a step and waits for
the GPU, as transformers does for its own. Under torch.compile the mask is made between two graphs, so a whole model is
not one (fullgraph). Tested with transformers 5.

continuous_batching(model) serves generate_batch.

diffusers and timm call torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p,
is_causal, scale) or take a function of that shape: froghopper.torch.scaled_dot_product_attention is one. In timm, and
wherever a module looks the function up when it runs, torch.nn.functional.scaled_dot_product_attention may be replaced
by it.
"""
import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers import masking_utils as masks

from froghopper import _transformers_paged as paged
from froghopper._errors import Error, InvalidProblem, InvalidType, Unsupported
from froghopper._flash_widths import has_odd_columns, is_of_widths, wider
from froghopper._flash_words import as_float, length_of
from froghopper._spans import ends_of, pairs, spans_of_keys, spans_of_queries
from froghopper._torch_calls import DTYPES, LOOK
from froghopper._torch_eager import NO_SIDES, attend
from froghopper._torch_kinds import BARE, tells_kinds
from froghopper._torch_native import TURNED
from froghopper._torch_options import decided, plain, whole
from froghopper._transformers_mask import EAGER, Mask
from froghopper._transformers_paged import continuous_batching
from froghopper._transformers_words import (check_arguments, check_name, check_packed, in_words, is_compiling, refuse,
                                            warn_of_packing)
from froghopper._values import counted, flag, text
from froghopper._words import takes_words_of_others
from froghopper.torch import attention

Rule = TypeVar("Rule", bound=Callable[..., Any])

__all__ = ["Mask", "attention_forward", "attention_mask", "continuous_batching", "register"]


def __dir__() -> list[str]: return sorted(__all__)


@takes_words_of_others("transformers")
def register(name: str = "froghopper") -> str:
    """Makes attn_implementation=name work in every model that has transformers' attention interface; returns the name.
    Again is harmless."""
    check_name(text("name", name, "froghopper"), attention_forward)
    AttentionInterface.register(name, attention_forward)
    masks.AttentionMaskInterface.register(name, attention_mask)
    paged.register(name)
    return name


@dataclasses.dataclass
class Pattern:
    """A mask function of transformers, read: bounds on key - query, and what separates packed sequences."""
    left: int | None = None
    right: int | None = None
    sequence: Tensor | None = None
    chunk: int = 0
    left_padding: Tensor | None = None  # tokens before the first chunk, [batch]

    @property
    def aligned(self) -> bool: return self.left is not None or self.right is not None or self.chunk > 0


def outside_of_graphs(function: Rule) -> Rule:
    """The function, which torch.compile runs and does not look into: it would find no rule in a mask function."""
    disable: Any = torch.compiler.disable  # has no types
    reason = dict(reason="froghopper.transformers makes its mask between two graphs")  # PyTorch 2.5 takes none
    made: Rule = disable(function, **reason if "reason" in inspect.signature(disable).parameters else {})
    return made


@outside_of_graphs
@tells_kinds
def attention_mask(batch_size: int, q_length: int, kv_length: int, q_offset: int | Tensor = 0, kv_offset: int = 0,
                   mask_function: Callable[..., Any] = masks.causal_mask_function,
                   attention_mask: Tensor | None = None, **_: Any) -> Mask:
    """The mask function of transformers' mask interface: what create_causal_mask and its like call.

    mask_function   a rule (query, key) -> seen, of queries q_offset... and keys kv_offset...
    attention_mask  [batch, tokens] bool, False for padding

    Raises NotImplementedError for rules and paddings that are not bounds and lengths.
    """
    pattern = read(mask_function)
    shift = q_offset - kv_offset  # row i of q is at row i + shift of k
    mask = Mask(pattern.right == 0, (pattern.left, None if pattern.right == 0 else pattern.right),
                (batch_size, q_length, kv_length), chunk=pattern.chunk, of_tokens=attention_mask is not None)
    if attention_mask is not None: check_tokens(attention_mask, batch_size)
    if pattern.sequence is not None:
        if attention_mask is not None or q_length != kv_length:
            raise Unsupported(f"position_ids tell of packed sequences, beside {counted(q_length, 'query')} and "
                              f"{counted(kv_length, 'key')}{' and an attention_mask' * (attention_mask is not None)}; "
                              f"they are computed for as many keys as queries and without one. {EAGER}")
        return packed(mask, pattern.sequence)
    if pattern.aligned and not mask.causal and not (isinstance(shift, int) and shift == 0 and q_length == kv_length):
        raise Unsupported(f"a window to both sides has {counted(q_length, 'query')} and {counted(kv_length, 'key')}; "
                          f"it is computed for as many keys as queries. {EAGER}")
    stop = shift + q_length if mask.causal else kv_length  # later keys are not seen
    if not (isinstance(stop, Tensor) and stop.device.type != "cpu") and stop > kv_length:
        raise Unsupported(f"the last query is at key {int(stop) - 1} and there {'is' if kv_length == 1 else 'are'} "
                          f"{counted(kv_length, 'key')}; queries behind all keys are not computed here. {EAGER}")
    if isinstance(stop, Tensor):
        mask = dataclasses.replace(mask, end=stop.to(torch.int32).expand(batch_size).contiguous())
    elif stop < kv_length: mask = dataclasses.replace(mask, keys=stop)
    if attention_mask is None: return mask if not mask.chunk else chunked(mask, q_offset, kv_offset)
    starts = None
    if mask.chunk:
        assert pattern.left_padding is not None
        starts = chunk_starts(mask, pattern.left_padding, q_offset, kv_offset)
    return padded(mask, attention_mask.bool().expand(batch_size, -1), kv_offset, stop, starts)


def check_tokens(attention_mask: Tensor, batch_size: int) -> None:
    if attention_mask.ndim == 2 and attention_mask.shape[0] in (1, batch_size): return
    raise InvalidProblem(f"attention_mask must be [batch, tokens] with a batch of {batch_size}, but has the shape "
                         f"{list(attention_mask.shape)}. Give that, 0 where a token is padding.")


def read(function: Callable[..., Any]) -> Pattern:
    """A mask function of transformers.masking_utils, or NotImplementedError."""
    if function is masks.causal_mask_function: return Pattern(right=0)
    if function is masks.bidirectional_mask_function: return Pattern()
    made_by = getattr(function, "__qualname__", None) or repr(function)
    made_by = made_by.partition(".")[0]
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    held = {name: cell.cell_contents for name, cell in zip(code.co_freevars, cells)} if code and cells else {}
    if getattr(function, "__module__", "") == masks.__name__:
        if made_by == "and_masks": return merged([read(part) for part in held["mask_functions"]])
        if made_by == "sliding_window_overlay": return Pattern(left=held["sliding_window"] - 1)
        if made_by == "sliding_window_bidirectional_overlay":
            return Pattern(left=held["sliding_window"], right=held["sliding_window"])
        if made_by == "chunked_overlay": return Pattern(chunk=held["chunk_size"], left_padding=held["left_padding"])
        if made_by == "packed_sequence_mask_function": return Pattern(sequence=held["packed_sequence_mask"])
        if made_by == "remap_positions_for_packed_sequence": return read(held["mask_function"])
    raise Unsupported(f"the model's mask is made by {made_by}; masks that froghopper reads are causal, sliding "
                      f"windows, padding and packed sequences. {EAGER}")


def merged(patterns: list[Pattern]) -> Pattern:
    """What all of them attend to."""
    def least(bounds: list[int | None]) -> int | None:
        return min((bound for bound in bounds if bound is not None), default=None)
    sequence = next((pattern.sequence for pattern in patterns if pattern.sequence is not None), None)
    chunks = {p.chunk for p in patterns} - {0}
    if len(chunks) > 1: raise Unsupported(f"the model's mask has chunks of {sorted(chunks)} keys; one size is computed "
                                          f"at a time. {EAGER}")
    padding = next((pattern.left_padding for pattern in patterns if pattern.left_padding is not None), None)
    return Pattern(least([p.left for p in patterns]), least([p.right for p in patterns]), sequence,
                   max(chunks, default=0), padding)


def packed(mask: Mask, sequence: Tensor) -> Mask:
    """sequence: [batch, tokens], another number for every packed sequence of a row."""
    first = torch.ones_like(sequence, dtype=torch.bool)
    first[:, 1:] = sequence.diff(dim=1) != 0
    begins = first.flatten().nonzero().flatten()
    ends = torch.nn.functional.pad(begins, (0, 1), value=sequence.numel()).to(torch.int32)
    return dataclasses.replace(mask, ends=ends, longest=int(ends.diff().max()))


def chunked(mask: Mask, q_offset: int | Tensor, kv_offset: int) -> Mask:
    """The mask with keys from the chunk of the first query on, so that chunks are counted from the first key."""
    if isinstance(q_offset, Tensor):  # of a static cache, which still has the keys of that chunk
        start = (q_offset // mask.chunk * mask.chunk - kv_offset).clamp(min=0).to(torch.int32)
        return dataclasses.replace(mask, begin=start.expand(mask.made_for[0]).contiguous())
    _, q_length, kv_length = mask.made_for
    first, last = (at // mask.chunk * mask.chunk - kv_offset for at in (q_offset, q_offset + q_length - 1))
    if first < 0 and last > first: lost_keys(mask)
    first = max(first, 0)
    short = (kv_length if mask.keys is None else mask.keys) - first <= mask.chunk
    return dataclasses.replace(mask, first=first, chunk=0 if short else mask.chunk)


def chunk_starts(mask: Mask, left_padding: Tensor, q_offset: int | Tensor, kv_offset: int) -> tuple[Tensor, Tensor]:
    """The rows of k at which the chunks of the first and of the last query begin, [batch] each."""
    def start(at: int | Tensor) -> Tensor:
        return left_padding + (at - left_padding).clamp(min=0) // mask.chunk * mask.chunk - kv_offset
    return start(q_offset), start(q_offset + mask.made_for[1] - 1)


def lost_keys(mask: Mask) -> NoReturn:
    raise Unsupported(f"the first query is in a chunk of {mask.chunk} keys whose first ones the cache has no more, and "
                      f"the last query in a later one; chunks are counted from the first key. {EAGER}")


def padded(mask: Mask, tokens: Tensor, kv_offset: int, stop: int | Tensor,
           starts: tuple[Tensor, Tensor] | None = None) -> Mask:
    """The mask without the keys whose tokens are False: those, and rows of q at such keys, do not count. starts: of the
    chunks of the first and of the last query; keys before the first do not count either."""
    _, q_length, kv_length = mask.made_for
    if starts is None and tokens.shape[1] >= kv_offset + kv_length and bool(tokens.all()): return mask  # most are so
    missing = kv_offset + kv_length - tokens.shape[1]
    if missing > 0: tokens = torch.nn.functional.pad(tokens, (0, missing))
    tokens, at = tokens[:, kv_offset:kv_offset + kv_length], torch.arange(kv_length, device=tokens.device)
    if mask.causal: tokens = tokens & (at < stop)
    end = torch.where(tokens, at + 1, 0).amax(1)
    begin = torch.where(tokens, at, kv_length).amin(1).minimum(end)
    one_run, lost = (tokens.sum(1) == end - begin).all(), torch.zeros((), dtype=torch.bool, device=tokens.device)
    if starts is not None:
        begin, lost = begin.maximum(starts[0]).minimum(end), ((starts[0] < 0) & (starts[1] > starts[0])).any()
    whole, from_0, one_run, lost = torch.stack([((begin == 0) & (end == stop)).all(), (begin == 0).all(), one_run,
                                                lost]).tolist()
    if lost: lost_keys(mask)
    if not one_run:
        raise Unsupported("attention_mask has padding between tokens of one sequence; froghopper computes one run of "
                          f"tokens a sequence. Pad at one side alone, for generation at the left. {EAGER}")
    if whole: return mask
    # Bottom-right: the last row of q that counts is at the last key that does.
    aligned = mask.causal or mask.window != (None, None) or mask.chunk > 0
    rows = (end - (stop - q_length)).clamp(0, q_length).to(torch.int32) if aligned else None
    return dataclasses.replace(mask, keys=None, begin=None if from_0 else begin.to(torch.int32),
                               end=end.to(torch.int32), rows=rows)


def attention_forward(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any,
                      dropout: float = 0.0, scaling: float | None = None, is_causal: bool | None = None,
                      sliding_window: int | None = None, softcap: float | None = None, s_aux: Tensor | None = None,
                      position_bias: Tensor | None = None, cache: Any = None, cu_seq_lens_q: Tensor | None = None,
                      cu_seq_lens_k: Tensor | None = None, max_length_q: int | Tensor | None = None,
                      max_length_k: int | Tensor | None = None, deterministic: bool | None = None,
                      **others: Any) -> tuple[Tensor, None]:
    """The attention of transformers' attention interface.

    query           [batch, heads, rows, dim]; key, value [batch, heads_kv, keys, dim]
    attention_mask  a Mask, which says all about masks; None where the model makes none: then is_causal, or else the
                    module's, and sliding_window count
    scaling         None for 1/sqrt(dim); 0 makes all keys alike
    softcap         None or 0 for none
    cu_seq_lens_*   [sequences + 1], max_length_*: packed sequences in a batch of 1; without padding
    deterministic   gradients are the same bits in every run; None as torch.use_deterministic_algorithms says
    others          what models hand to every layer and attention does not read, such as position_ids. Those that would
                    change attention are refused

    Returns (out [batch, rows, heads, dim of value], None).
    """
    if is_compiling():  # which tells what it sees of errors where nobody handles them
        mask = mask_for(module, query, key, attention_mask, dropout, is_causal, sliding_window, position_bias, cache,
                        others)
        columns = value.shape[-1]
        if has_odd_columns(query, value): query, key, value, scaling = wider(query, key, value, scaling)
        out, _ = compute(query, key, value, mask, scaling, softcap, s_aux, cu_seq_lens_q, cu_seq_lens_k, max_length_q,
                         max_length_k, deterministic)
        return out if out.shape[-1] == columns else out[..., :columns].contiguous(), None
    try:
        mask = mask_for(module, query, key, attention_mask, dropout, is_causal, sliding_window, position_bias, cache,
                        others)
        dense = cu_seq_lens_q is cu_seq_lens_k is None and max_length_q is max_length_k is None
        if dense and "position_ids" in others: warn_of_packing(module, query, mask, others["position_ids"])
        if dense and (softcap is None or type(softcap) is float) and (
                deterministic is None or type(deterministic) is bool) and usual(mask, query, key, scaling):
            left, right = mask.window
            sides = NO_SIDES if s_aux is None else (as_float("s_aux", s_aux), *NO_SIDES[1:])
            o, _ = attend(TURNED, query, key, value, sides, (
                LOOK, LOOK, mask.causal, -1 if left is None else left, -1 if right is None else right, softcap or 0.0,
                scaling, False, decided(deterministic is True), 0, 0, False), False)
            return o.contiguous(), None
        return compute(query, key, value, mask, scaling, softcap, s_aux, cu_seq_lens_q, cu_seq_lens_k, max_length_q,
                       max_length_k, deterministic)
    except Error as error:
        if not (is_of_widths(error) and has_odd_columns(query, value)):
            raise in_words(error, (query, key, value), module) from None
        columns = value.shape[-1]
        query, key, value, scaling = wider(query, key, value, scaling)
        out, _ = attention_forward(module, query, key, value, attention_mask, dropout, scaling, is_causal,
                                   sliding_window, softcap, s_aux, position_bias, cache, cu_seq_lens_q, cu_seq_lens_k,
                                   max_length_q, max_length_k, deterministic, **others)
        return out[..., :columns].contiguous(), None
    except BARE:
        check_arguments(query, key, value, dict(scaling=scaling, dropout=dropout, softcap=softcap, s_aux=s_aux,
                                                cu_seq_lens_q=cu_seq_lens_q, cu_seq_lens_k=cu_seq_lens_k))
        raise


def mask_for(module: torch.nn.Module, query: Tensor, key: Tensor, attention_mask: Any, dropout: float,
             is_causal: bool | None, sliding_window: int | None, position_bias: Tensor | None, cache: Any,
             others: dict[str, Any]) -> Mask:
    """What is seen, after the checks of what is not computed."""
    refuse(module, attention_mask, dropout, position_bias, cache, others)
    mask = attention_mask if attention_mask is not None else unsaid(module, query, key, is_causal, sliding_window)
    check_made_for(module, mask, query, key)
    found: Mask = mask
    return found


def compute(query: Tensor, key: Tensor, value: Tensor, mask: Mask, scaling: float | None, softcap: float | None,
            s_aux: Tensor | None, cu_seq_lens_q: Tensor | None, cu_seq_lens_k: Tensor | None,
            max_length_q: int | Tensor | None, max_length_k: int | Tensor | None,
            deterministic: bool | None) -> tuple[Tensor, None]:
    """All that the native operators do not take at once."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    options: dict[str, Any] = dict(causal=mask.causal, window=mask.window, scale=scaling, softcap=softcap or 0.0,
                                   attention_chunk=mask.chunk,
                                   sink=None if s_aux is None else as_float("s_aux", s_aux),
                                   deterministic=False if deterministic is None else deterministic)
    lengths = dict(cu_seq_lens_q=cu_seq_lens_q, cu_seq_lens_k=cu_seq_lens_k,
                   max_length_q=length_of("max_length_q", max_length_q),
                   max_length_k=length_of("max_length_k", max_length_k))
    if any(x is not None for x in lengths.values()):
        check_packed(mask, query, lengths)
        assert cu_seq_lens_q is not None and cu_seq_lens_k is not None
        mask = dataclasses.replace(mask, ends=cu_seq_lens_q.to(torch.int32), longest=lengths["max_length_q"])
        options |= dict(cu_seqlens_kv=cu_seq_lens_k.to(torch.int32), max_seqlen_kv=lengths["max_length_k"])
    if mask.ends is not None:
        options = dict(cu_seqlens_q=mask.ends, cu_seqlens_kv=mask.ends, max_seqlen_q=mask.longest,
                       max_seqlen_kv=mask.longest) | options
    elif mask.begin is not None: options |= spans(mask, q, k)
    else:
        k, v = k[:, mask.first:mask.keys], v[:, mask.first:mask.keys]
        return attention(q, k, v, seqused_q=mask.rows, seqused_kv=mask.end, **options).contiguous(), None
    out = attention(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), **options)
    return out.reshape(*q.shape[:2], *out.shape[1:]).contiguous(), None


def usual(mask: Mask, query: Tensor, key: Tensor, scaling: Any) -> bool:
    """No lengths and nothing of another kind than the native operators take: attention would go there too."""
    return bool(mask.keys is None and mask.begin is mask.end is mask.rows is mask.ends is None and
                not (mask.first or mask.chunk) and query.dtype in DTYPES and key.dtype in DTYPES and
                (scaling is None or type(scaling) is float))


def check_made_for(module: torch.nn.Module, mask: Mask, query: Tensor, key: Tensor) -> None:
    """A mask says lengths: rows that it does not know of would be seen, or take the place of others. One query or one
    key without a bound stands for all, as in a matrix."""
    (batch, queries, keys), left = mask.made_for, mask.window[0]
    found, lengths = (query.shape[0], query.shape[2], key.shape[2]), (mask.begin, mask.end, mask.rows, mask.ends)
    told = any(x is not None for x in lengths)
    bounded = (told or mask.keys is not None or mask.window != (None, None) or (mask.causal and queries > 1) or
               mask.first > 0 or mask.chunk > 0)
    if not (found[2] == keys or (keys == 1 and not bounded)) or not (
            found[1] == queries or (queries == 1 and not bounded and not mask.causal)):
        raise Unsupported(f"{type(module).__name__} has {counted(found[1], 'query')} and {counted(found[2], 'key')}, "
                          f"and its attention_mask is made for {counted(queries, 'query')} and {counted(keys, 'key')}; "
                          f"what it says ends there. {EAGER}")
    if found[0] != batch and told:
        raise Unsupported(f"{type(module).__name__} has a batch of {found[0]}, and its attention_mask is made for one "
                          f"of {batch}, with lengths for each. {EAGER}")
    if left is not None and left < 0:  # -1 would mean no bound to the library
        raise InvalidProblem(f"sliding_window must be 1 or more keys, a query's own among them, but is {left + 1}. "
                             "Use 1 or more, or None for no window.")


def unsaid(module: torch.nn.Module, query: Tensor, key: Tensor, is_causal: bool | None,
           sliding_window: int | None) -> Mask:
    """The mask of a module that was given none."""
    rows, keys = query.shape[2], key.shape[2]
    if is_causal is not None: is_causal = plain(flag, "is_causal", is_causal)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal) and rows > 1
    if causal and rows != keys:
        raise Unsupported(f"{type(module).__name__} is causal, has {counted(rows, 'query')} and {counted(keys, 'key')} "
                          "and no mask that says where the queries are. Give it one that "
                          f"froghopper.transformers.attention_mask makes, with q_offset={keys - rows} if the last "
                          "query is at the last key.")
    if sliding_window is not None: sliding_window = whole("sliding_window", sliding_window)
    left = None if sliding_window is None or sliding_window > keys else sliding_window - 1
    return Mask(causal, (left, None if causal else left), (query.shape[0], rows, keys))


def spans(mask: Mask, q: Tensor, k: Tensor) -> dict[str, Any]:
    """Where sequences lie in the packed rows of q and k, [batch, rows, heads, dim]."""
    assert mask.begin is not None and mask.end is not None
    ends_kv, used_kv = spans_of_keys(k.shape[0], k.shape[1], mask.begin, mask.end)
    found = dict(cu_seqlens_q=spans_of_queries(ends_of(q.shape[0], q.shape[1], q)), cu_seqlens_kv=ends_kv,
                 max_seqlen_q=q.shape[1], max_seqlen_kv=k.shape[1], seqused_kv=used_kv)
    if mask.rows is not None: found["seqused_q"] = pairs(torch.zeros_like(mask.rows), mask.rows)
    return found
