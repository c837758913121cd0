# SPDX-License-Identifier: Apache-2.0
"""Attention of PyTorch tensors, forward and backward, on Hopper GPUs and on the CPU.

    from froghopper.torch import attention
    o = attention(q, k, v, causal=True)                                 [batch, seq, heads, dim]
    o.sum().backward()

It works under autograd, torch.compile (fullgraph, dynamic shapes), torch.export, autocast, activation checkpointing
and torch.func.vmap, may be captured in CUDA graphs, and runs on the current stream of the tensors' GPU, whatever the
current device. Nothing waits for a GPU, and no tensor of a GPU is read on the host. The first call of a new
problem makes its plan; on a GPU it loads the kernels, or compiles them, also while a graph is captured.

Copies: none where the columns of q, k, v and gradients lie side by side (the last stride is 1) and, on a GPU, rows
begin at multiples of 16 bytes (other strides are multiples of 8 elements); else the tensor is copied, once in each pass
that reads it. out is never copied.

paged_attention reads k and v from pages of a pool, without gradients; append_kv writes new rows to them, or to any
cache. scaled_dot_product_attention has PyTorch's own arguments, explain says how a call would be computed, and
norm_rotary norms and rotates q and k as append_kv does, with gradients, for training.

With scale_q, scale_k and scale_v, q, k and v may be float8, see attention; that has no gradients. One call that
quantises and attends is attention(**quantise(q, k, v)._asdict(), causal=True).

torch.nn.attention.activate_flash_attention_impl("froghopper") makes PyTorch's own flash attention this one, in PyTorch
2.11 and newer; an import does not.

There are no second derivatives, no forward-mode derivatives, no dropout and no masks but causal ones and windows.
Under vmap q, k, v and seqused may be mapped, cu_seqlens and sink not; the backward pass may be mapped over whatever
there is, as is_grads_batched and torch.func.jacrev do. Under torch.compile whole numbers (max_seqlen, window,
attention_chunk, max_sms) may change from call to call, as extents may; each value of scale or softcap is compiled anew.
PyTorch 2.5 or newer.

context_parallel.attention attends over sequences whose rows are spread over the ranks of a group, decode to a KV cache
that is; they and torch.distributed are loaded when context_parallel is first named.
"""
import importlib
from typing import TYPE_CHECKING, Any

from froghopper import _torch_flash as flash
from froghopper import _torch_flops as flops
from froghopper import _torch_sharding as sharding
from froghopper._later import name_module, no_attribute
from froghopper._torch_append import append_kv
from froghopper._torch_attention import attention
from froghopper._torch_explain import explain
from froghopper._torch_norm_rotary import norm_rotary
from froghopper._torch_paged import paged_attention
from froghopper._torch_quantise import Quantised, Smoothed, quantise
from froghopper._torch_sdpa import scaled_dot_product_attention

if TYPE_CHECKING: from froghopper import _torch_context_parallel as context_parallel

quantize = quantise  # as other libraries spell it

flash.register()
flops.register()
sharding.register()
name_module("froghopper.torch.context_parallel", "froghopper._torch_context_parallel")
__all__ = ["Quantised", "Smoothed", "append_kv", "attention", "context_parallel", "explain", "norm_rotary",
           "paged_attention", "quantise", "scaled_dot_product_attention"]


def __dir__() -> list[str]: return sorted(__all__)


def __getattr__(name: str) -> Any:
    """context_parallel, when it is asked for first."""
    if name != "context_parallel": raise no_attribute(__name__, name)
    globals()[name] = found = importlib.import_module("froghopper._torch_context_parallel")
    return found
