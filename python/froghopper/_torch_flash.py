# SPDX-License-Identifier: Apache-2.0
"""froghopper as an implementation of PyTorch's own flash attention, PyTorch 2.11 and newer:

    import froghopper.torch
    torch.nn.attention.activate_flash_attention_impl("froghopper")

From then on what PyTorch computes with its flash backend (torch.nn.functional.scaled_dot_product_attention,
torch.nn.attention.varlen, nested tensors) is computed here, on GPUs, until restore_flash_attention_impl(). An import
registers the name alone.

What the operators of PyTorch are told and this library does not have raises NotImplementedError: dropout, the mask that
dropout would return, pages.
"""
from typing import Any, NoReturn

import torch
from torch import Tensor

from froghopper import _torch_8_bit as scaled
from froghopper import _torch_calls as calls
from froghopper._errors import Unsupported
from froghopper._flash_words import dense_keys, scales_of, sms_without
from froghopper._torch_calls import FLOAT8, LOOK

NAME = "froghopper"
RESTORE = "Call torch.nn.attention.restore_flash_attention_impl() for PyTorch's own flash attention."


class Handle:
    """What PyTorch keeps while this implementation is active."""

    def __init__(self, library: Any): self.library = library

    def remove(self) -> None: self.library = None  # its kernels go with it


def register() -> None:
    """Tells PyTorch the name, where it asks for names; activates nothing."""
    known: Any = getattr(torch.nn.attention, "register_flash_attention_impl", None)
    if known is not None: known(NAME, register_fn=activate)


def activate(*devices: str) -> Handle:
    """The kernels of PyTorch's operators, on GPUs if no other devices are named."""
    library: Any = torch.library.Library
    made = library("aten", "IMPL")
    for device in devices or ("CUDA",):
        for name, kernel in KERNELS.items():
            if has_operator(name): made.impl(name, kernel, device)
    return Handle(made)


def has_operator(name: str) -> bool:
    """Older releases lack some overloads."""
    packet, _, overload = name.partition(".")
    found: Any = getattr(torch.ops.aten, packet, None)
    return found is not None and (overload or "default") in found.overloads()


def forward(query: Tensor, key: Tensor, value: Tensor, cum_seq_q: Tensor | None, cum_seq_k: Tensor | None, max_q: int,
            max_k: int, dropout_p: float, is_causal: bool, return_debug_mask: bool, *, scale: float | None = None,
            window_size_left: int | None = None, window_size_right: int | None = None,
            seqused_k: Tensor | None = None, alibi_slopes: Tensor | None = None, block_table: Tensor | None = None,
            num_splits: int | None = None, out: Tensor | None = None,
            descales: tuple[Tensor | None, ...] = (None,) * 3) -> tuple[Any, ...]:
    """aten::_flash_attention_forward: [batch, seq, heads, dim], or packed."""
    check(dropout_p, return_debug_mask, block_table)
    if cum_seq_q is not None and cum_seq_k is None:
        dense = dense_keys(key, value, seqused_k)
        key, value, cum_seq_k, max_k = dense["k"], dense["v"], dense["cu_seqlens_kv"], dense["max_seqlen_kv"]
    inputs: Any = (query, key, value, None, cum_seq_q, cum_seq_k, None, seqused_k, alibi_slopes)
    options = options_of(query, cum_seq_q, max_q, max_k, is_causal, window_size_left, window_size_right, scale)
    o_dtype = torch.bfloat16 if query.dtype in FLOAT8 else query.dtype
    if out is None and value.shape[-1] == query.shape[-1]: out = torch.empty_like(query, dtype=o_dtype)
    if out is not None and out.stride(-1) != 1: out = torch.empty(out.shape, dtype=o_dtype, device=query.device)
    plain: Any = calls.forward
    of_8_bits: Any = scaled.forward
    if key.dtype in FLOAT8:
        scales = scales_of(query, key, *descales)
        found = of_8_bits(out, *inputs, scales.get("scale_q"), scales["scale_k"], scales["scale_v"], None, None,
                          *options, o_dtype, True)
    else: found = plain(out, *inputs, *options, True)
    made = [torch.zeros(shape, dtype=torch.uint64, device=query.device) for shape in ((2,), ())]  # states of no dropout
    return found[0], found[1], *made, query.new_empty(0, dtype=o_dtype)


def forward_quantized(query: Tensor, key: Tensor, value: Tensor, cum_seq_q: Tensor | None, cum_seq_k: Tensor | None,
                      max_q: int, max_k: int, dropout_p: float, is_causal: bool, return_debug_mask: bool,
                      q_descale: Tensor | None = None, k_descale: Tensor | None = None,
                      v_descale: Tensor | None = None, **rest: Any) -> tuple[Any, ...]:
    return forward(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask,
                   descales=(q_descale, k_descale, v_descale), **rest)


def forward_in_place(out: Tensor, *arguments: Any, **rest: Any) -> Tensor:
    """aten::_flash_attention_forward_no_dropout_inplace: into out; the lse."""
    found = forward(*arguments, out=out, **rest)
    if found[0] is not out: out.copy_(found[0])
    lse: Tensor = found[1]
    return lse


def backward(grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor,
             cum_seq_q: Tensor | None, cum_seq_k: Tensor | None, max_q: int, max_k: int, dropout_p: float,
             is_causal: bool, rng_state: Any, unused: Any, *, scale: float | None = None,
             window_size_left: int | None = None, window_size_right: int | None = None) -> tuple[Tensor, ...]:
    """aten::_flash_attention_backward."""
    check(dropout_p, False, None)
    packed = cum_seq_q is not None and cum_seq_q.numel() > 0
    if not packed: cum_seq_q = cum_seq_k = None
    options = options_of(query, cum_seq_q, max_q, max_k, is_causal, window_size_left, window_size_right, scale)
    grads = calls.backward(grad_out, None, query, key, value, out, logsumexp, None, cum_seq_q, cum_seq_k, None, None,
                           None, *options)
    return tuple(laid_as(grad, x) for grad, x in zip(grads[:3], (query, key, value)))


def sdpa_forward(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
                 return_debug_mask: bool = False, *, scale: float | None = None,
                 descales: tuple[Tensor | None, ...] = (None,) * 3) -> tuple[Any, ...]:
    """aten::_scaled_dot_product_flash_attention: [batch, heads, seq, dim]."""
    rows_q, rows_k = query.shape[2], key.shape[2]
    q, k, v = turned(query, key, value)
    o, lse, *rest = forward(q, k, v, None, None, rows_q, rows_k, dropout_p, is_causal,
                            return_debug_mask, scale=scale, descales=descales)
    return o.transpose(1, 2), lse, None, None, rows_q, rows_k, *rest


def sdpa_forward_quantized(query: Tensor, key: Tensor, value: Tensor, q_descale: Tensor | None = None,
                           k_descale: Tensor | None = None, v_descale: Tensor | None = None,
                           *arguments: Any, **rest: Any) -> tuple[Any, ...]:
    return sdpa_forward(query, key, value, *arguments, descales=(q_descale, k_descale, v_descale), **rest)


def sdpa_backward(grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor,
                  cum_seq_q: Any, cum_seq_k: Any, max_q: int, max_k: int, dropout_p: float, is_causal: bool,
                  philox_seed: Any, philox_offset: Any, *, scale: float | None = None) -> tuple[Tensor, ...]:
    """aten::_scaled_dot_product_flash_attention_backward."""
    grad_o, q, k, v, o = turned(grad_out, query, key, value, out)
    grads = backward(grad_o, q, k, v, o, logsumexp, None, None, max_q, max_k, dropout_p, is_causal, None, None,
                     scale=scale)
    return turned(*grads)


def turned(*tensors: Tensor) -> tuple[Tensor, ...]: return tuple(x.transpose(1, 2) for x in tensors)


def laid_as(grad: Tensor, x: Tensor) -> Tensor:
    """With the strides that PyTorch promises to its compiler: those of empty_like."""
    if grad.stride() == torch.empty_like(x, device="meta").stride(): return grad
    return torch.empty_like(x).copy_(grad)


def options_of(query: Tensor, cum_seq_q: Tensor | None, max_q: int, max_k: int, is_causal: bool, left: int | None,
               right: int | None, scale: float | None) -> tuple[Any, ...]:
    """calls.Options. The last query is aligned with the last key, as in every flash attention of PyTorch."""
    packed = cum_seq_q is not None
    carveout: Any = getattr(torch._C, "_get_sm_carveout_experimental", lambda: None)
    bounds = [-1 if bound is None or bound < 0 else bound for bound in (left, None if is_causal else right)]
    return (max_q if packed else LOOK, max_k if packed else LOOK, is_causal, *bounds, 0.0, scale, False,
            torch.are_deterministic_algorithms_enabled(), sms_without(query, carveout() or 0), 0, False)


def check(dropout_p: float, return_debug_mask: bool, block_table: Tensor | None) -> None:
    if dropout_p: refused(f"dropout_p is {dropout_p}; froghopper drops no weights. Use 0.0, or eval()")
    if return_debug_mask: refused("return_debug_mask is True; it shows which weights are dropped, and none is. Use "
                                  "False")
    if block_table is not None: refused("block_table is given; pages are not read here. Gather them into keys and "
                                        "values")


def refused(why: str) -> NoReturn: raise Unsupported(f"{why}. {RESTORE}")


KERNELS = {
    "_flash_attention_forward": forward, "_flash_attention_forward.quantized": forward_quantized,
    "_flash_attention_forward_no_dropout_inplace": forward_in_place, "_flash_attention_backward": backward,
    "_scaled_dot_product_flash_attention": sdpa_forward,
    "_scaled_dot_product_flash_attention.quantized": sdpa_forward_quantized,
    "_scaled_dot_product_flash_attention_backward": sdpa_backward,
}
