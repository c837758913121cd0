# SPDX-License-Identifier: Apache-2.0
"""Partial results over different keys -> one, in PyTorch: flash_attn_combine of FlashAttention-3 and merge_attn_states
of vLLM. Rows are merged in blocks, and each goes straight to its place: besides the results there is memory for one
block and for what each row weighs."""
from collections.abc import Iterator

import torch
from torch import Tensor

from froghopper._errors import InvalidProblem, InvalidTensor, InvalidType, Unsupported
from froghopper._torch_calls import check_dense, check_floating
from froghopper._torch_options import check_dtype
from froghopper._values import is_result, new_result, way_to_shape
from froghopper._words import takes_words_of_others

BLOCK_BYTES = 64 * 2**20  # of float32 that are there at once; on a GPU a block of that size fills it


@takes_words_of_others("flash_attn_interface")
def flash_attn_combine(out_partial: Tensor, lse_partial: Tensor, out: Tensor | None = None,
                       out_dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """One result of several over different keys: softmax over their lse is the weight of each.

    out_partial    [splits, batch, seq, heads, dim] float32, or packed [splits, total, heads, dim]
    lse_partial    [splits, batch, seq, heads] float32, or packed [splits, total, heads]
    out            where the result goes; out_dtype: its type, float32 if neither is given

    Returns (out [batch, seq, heads, dim], lse [batch, seq, heads]), packed the same without batch. Rows whose lse are
    all -inf get 0 and -inf. Written in PyTorch, not a kernel of this library; besides the results it needs at most
    some 64 MiB of memory and that of lse_partial three times. Raises TypeError, ValueError.
    """
    for name, part in (("out_partial", out_partial), ("lse_partial", lse_partial)):
        check_dense(name, part)
        if part.dtype != torch.float32:
            raise InvalidType(f"{name} must be float32, but is {part.dtype}. Use {name}.float().")
    if out_partial.ndim not in (4, 5) or out_partial.shape[:-1] != lse_partial.shape:
        raise InvalidProblem("lse_partial must be [splits, batch, seq, heads] or [splits, total, heads] and "
                             f"out_partial have dim columns more, but they have the shapes {list(lse_partial.shape)} "
                             f"and {list(out_partial.shape)}. {way_to_parts(lse_partial, out_partial)}.")
    if out is not None: check_written("out", out)
    for name, x in (("lse_partial", lse_partial), ("out", out)):
        if x is not None and x.device != out_partial.device:
            raise InvalidTensor(f"{name} must be on the device of out_partial, {out_partial.device}, but is on "
                                f"{x.device}. Use {name}.to(out_partial.device).")
    if out_dtype is not None: check_dtype("out_dtype", out_dtype)
    shape = out_partial.shape[1:]
    if out is None: out = out_partial.new_empty(shape, dtype=out_dtype or torch.float32)
    elif out.shape != shape or out.dtype != (out_dtype or out.dtype):
        raise InvalidTensor(f"out must have the shape {list(shape)} and be {out_dtype or out.dtype}, but has "
                            f"{list(out.shape)} and is {out.dtype}. Use torch.empty for another, or give none.")
    weights, lse = weights_of(lse_partial)
    for axis, begin, count in blocks_of(shape, out_partial.shape[0]):
        part, weight = out_partial.narrow(axis + 1, begin, count), weights.narrow(axis + 1, begin, count)
        out.narrow(axis, begin, count).copy_(weighed(part, weight))
    return out, lse


@takes_words_of_others("flash_attn_interface")
def merge_attn_states(output: Tensor, prefix_output: Tensor, prefix_lse: Tensor, suffix_output: Tensor,
                      suffix_lse: Tensor, output_lse: Tensor | None = None) -> None:
    """vLLM's: output becomes attention over the keys of a prefix and of a suffix.

    output, prefix_output, suffix_output   [tokens, heads, dim]; output may be one of the others
    prefix_lse, suffix_lse                 [heads, tokens] float32, natural logarithm; +inf counts as -inf, no key
    output_lse                             [heads, tokens] float32, written too, or None

    Rows without any key get 0 and -inf. Raises TypeError, ValueError; nothing is written then.
    """
    given = dict(output=output, prefix_output=prefix_output, suffix_output=suffix_output, prefix_lse=prefix_lse,
                 suffix_lse=suffix_lse) | ({} if output_lse is None else dict(output_lse=output_lse))
    for name, x in given.items(): check_dense(name, x)
    for name, x in given.items(): check_floating(name, x)
    for name in given.keys() & {"output", "output_lse"}: check_written(name, given[name])
    if output.ndim != 3: raise InvalidProblem("output must be [tokens, heads, dim], but has the shape "
                                              f"{list(output.shape)}. Use output.reshape(-1, heads, dim).")
    for name, x in given.items():
        of_lse = name.endswith("_lse")
        wanted = (output.shape[1], output.shape[0]) if of_lse else tuple(output.shape)
        if tuple(x.shape) != wanted:
            raise InvalidTensor(f"{name} must be {'[heads, tokens]' if of_lse else '[tokens, heads, dim]'} "
                                f"{list(wanted)}, as output is {list(output.shape)}, but has the shape "
                                f"{list(x.shape)}. {way_to_shape(name, x.shape, wanted)}.")
        if x.device != output.device:
            out = f"torch.empty({name}.shape, device=output.device)" if name == "output_lse" else (
                f"{name}.to(output.device)")
            raise InvalidTensor(f"{name} must be on the device of output, {output.device}, but is on {x.device}. Use "
                                f"{out}.")
        if of_lse and x.dtype != torch.float32:
            out = new_result(name, dtype="torch.float32") if is_result(name) else f"Use {name}.float()"
            raise InvalidType(f"{name} must be float32, but is {x.dtype}. {out}.")
    both = torch.stack([prefix_lse, suffix_lse])
    weights, lse = weights_of(torch.where(both == torch.inf, -torch.inf, both).transpose(1, 2))
    for axis, begin, count in blocks_of(output.shape, 2):
        parts = torch.stack([x.narrow(axis, begin, count).float() for x in (prefix_output, suffix_output)])
        output.narrow(axis, begin, count).copy_(weighed(parts, weights.narrow(axis + 1, begin, count)))
    if output_lse is not None: output_lse.copy_(lse.transpose(0, 1))


def way_to_parts(lse_partial: Tensor, out_partial: Tensor) -> str:
    """What to do about shapes that do not fit. lse of attention has heads before rows, where a reshape would put
    numbers into other rows without a word."""
    if out_partial.ndim not in (4, 5): return "Stack the parts along a new first axis"
    if lse_partial.ndim > 1 and lse_partial.transpose(-1, -2).shape == out_partial.shape[:-1]:
        return "Use lse_partial.transpose(-1, -2)"
    return f"Give lse_partial the shape {list(out_partial.shape[:-1])}"


def check_written(name: str, x: Tensor) -> None:
    """A tensor that the result goes to."""
    check_dense(name, x)
    check_floating(name, x)
    if torch.is_grad_enabled() and x.requires_grad:
        raise Unsupported(f"{name} requires a gradient; what is written to it has none. Use {name}.detach(), or call "
                          "under torch.no_grad().")
    if any(stride == 0 and extent > 1 for stride, extent in zip(x.stride(), x.shape)):
        raise InvalidTensor(f"{name} must have elements that do not overlap, as they are written, but has the strides "
                            f"{list(x.stride())}. {new_result(name)}.")


def weights_of(lse_partial: Tensor) -> tuple[Tensor, Tensor]:
    """(what each part weighs, the lse of all), parts first. Weights add up to 1, or are 0 where no part has a key."""
    lse = torch.logsumexp(lse_partial, 0)
    # Not exp(lse_partial - lse): of a large lse the logarithm of the sum is lost in rounding, and weights sum to more.
    weights = torch.softmax(torch.where(lse == -torch.inf, 0.0, lse_partial), 0)
    return torch.where(lse_partial == -torch.inf, 0.0, weights), lse


def weighed(parts: Tensor, weights: Tensor) -> Tensor:
    """The sum of parts times weights; what weighs nothing adds nothing, also where it is NaN."""
    return terms_of(parts, weights).sum(0)


def terms_of(parts: Tensor, weights: Tensor) -> Tensor:
    """Parts times weights, which are 0 where a part weighs nothing, also where it is NaN."""
    weights = weights.unsqueeze(-1)
    return (parts * weights).masked_fill_(weights == 0, 0.0)


def blocks_of(shape: torch.Size, splits: int) -> Iterator[tuple[int, int, int]]:
    """(axis, begin, count) of the blocks of rows: along the longest axis but that of columns."""
    axis = max(range(len(shape) - 1), key=lambda at: shape[at])
    blocks = max(1, -(-4 * shape.numel() * max(splits, 1) // BLOCK_BYTES))
    count = max(1, -(-shape[axis] // blocks))
    for begin in range(0, shape[axis], count): yield axis, begin, min(count, shape[axis] - begin)
