# SPDX-License-Identifier: Apache-2.0
"""froghopper: exact attention on NVIDIA Hopper GPUs and on CPUs.

    import froghopper
    # q [batch, seq_q, heads_q, dim], k and v [batch, seq_kv, heads_kv, dim]
    o = froghopper.attention(q, k, v, causal=True)                     NumPy arrays, on the CPU
    froghopper.append_kv(k, v, k_cache, v_cache, seqused_kv=lengths)   new rows into a cache of NumPy arrays
    o = froghopper.torch.attention(q, k, v, causal=True)               tensors of PyTorch
    o = froghopper.jax.attention(q, k, v, causal=True)                 arrays of JAX
    print(froghopper.explain(q, k, v, causal=True))                    how that would be computed
    print(froghopper.explain("fwd bf16 b2 hq16 hkv4 sq4096 skv4096 d128 causal", "h200"))

    froghopper                         attention, attention_backward, append_kv and quantise of NumPy arrays, explain
    froghopper.torch                   attention, paged_attention, scaled_dot_product_attention, append_kv, norm_rotary,
                                       quantise, explain, context_parallel
    froghopper.jax                     attention, append_kv, quantise, explain, context_parallel
    froghopper.transformers            models of transformers: attn_implementation="froghopper"
    froghopper.flash_attn_interface    the functions of FlashAttention 2 and 3 and of vLLM
    froghopper.vllm                    a backend of attention for vLLM
    froghopper.sglang                  a backend of attention for SGLang

Importing it loads neither NumPy nor another framework nor the shared library; each comes with the first use.
"""
import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from froghopper._c import VERSION as __version__
from froghopper._explain import explain
from froghopper._errors import (CompileFailed, Error, Internal, InvalidProblem, InvalidTensor, InvalidType,
                                LaunchFailed, LibraryNotFound, NoDevice, Unsupported)
from froghopper._later import no_attribute

if TYPE_CHECKING:
    from froghopper import flash_attn_interface, jax, sglang, torch, transformers, vllm
    from froghopper._numpy import GatedGradients, Gradients, attention, attention_backward
    from froghopper._numpy_append import append_kv
    from froghopper._numpy_quantise import Quantised, Smoothed, quantise

__all__ = ["CompileFailed", "Error", "GatedGradients", "Gradients", "Internal", "InvalidProblem", "InvalidTensor",
           "InvalidType", "LaunchFailed", "LibraryNotFound", "NoDevice", "Quantised", "Smoothed", "Unsupported",
           "__version__", "append_kv", "attention", "attention_backward", "explain", "quantise"]
MODULES = {"flash_attn_interface": "torch", "jax": "jax", "sglang": "sglang", "torch": "torch",
           "transformers": "transformers", "vllm": "vllm"}  # and the framework that each imports


def __dir__() -> list[str]:
    """Without the modules whose framework is not installed: help() imports all that is named here."""
    found = (name for name, framework in MODULES.items() if importlib.util.find_spec(framework) is not None)
    return sorted((*__all__, *found))


def __getattr__(name: str) -> Any:
    """The modules of frameworks and the functions on NumPy arrays, when one is asked for first."""
    if name in MODULES: return importlib.import_module("froghopper." + name)
    homes = {"Quantised": "_numpy_quantise", "Smoothed": "_numpy_quantise", "quantise": "_numpy_quantise",
             "append_kv": "_numpy_append"}
    homes |= dict.fromkeys(("GatedGradients", "Gradients", "attention", "attention_backward"), "_numpy")
    if name == "quantize": name = "quantise"  # as other libraries spell it
    if name not in homes: raise no_attribute(__name__, name)
    globals()[name] = found = getattr(importlib.import_module("froghopper." + homes[name]), name)
    return found
