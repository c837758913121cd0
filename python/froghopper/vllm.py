# SPDX-License-Identifier: Apache-2.0
"""froghopper as an attention backend of vLLM 0.30 and newer.

    vllm serve MODEL --attention-backend CUSTOM

The package's entry point tells vLLM the name; nothing else has to be imported. One call serves prefill, chunked
prefill, decode and the verification of drafts, from pages that are read where they lie:

    heads and dims        GQA, MQA; head dims that are multiples of 8, up to 512, and V's own
    caches                [blocks, heads, block, dim of K and V] in any physical order, [2, blocks, block, heads, dim];
                          float16, bfloat16, e4m3 and e5m2 with a 16-bit q, with a scale of the tensor or of each
                          head. fp8_per_token_head is e4m3, and each row of a head has scales, which are computed when
                          it is written; only where vLLM asks the backend for the bytes of a row
    masks and scores      causal and not, sliding windows, softcap, sinks, ALiBi; encoders and cross attention
    batch invariance      VLLM_BATCH_INVARIANT=1, with 16-bit caches and head dims up to 256
    CUDA graphs           always: lengths, starts and tables are read by the kernels, and nothing waits

Not here, and said so to vLLM, which then takes another backend: latent attention (MLA), sparse keys, decode and prefill
context parallelism, ranges of images that see both ways, R-SWA. A causal that differs from sequence to sequence raises
NotImplementedError.

New keys go to the pages by flash_attn_interface.reshape_and_cache_flash.
"""
import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import vllm.envs as envs
from torch import Tensor
from vllm.v1.attention.backend import (AttentionBackend, AttentionCGSupport, AttentionImpl, AttentionMetadata,
                                       AttentionMetadataBuilder, AttentionType, MultipleOf)

from froghopper._errors import Error, InvalidProblem, InvalidType, Unsupported
from froghopper._kv_cache import reshape_and_cache_flash
from froghopper._pages import rounded_up, rows_apart
from froghopper._values import number, whole_number
from froghopper._words import named_by
from froghopper.torch import attention, paged_attention

OF_ROWS = "fp8_per_token_head"  # a cache of which each row of a head has its own scales
FLOAT8 = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2,
          OF_ROWS: torch.float8_e4m3fn}
FLOAT8_DIMS = 16  # head dims of 8-bit caches are multiples of it
SCALE_BYTES = 16  # behind K and V of a row: their scales, 4 bytes each, and a gap, as kernels copy 16 bytes at once
INVARIANT_DIM = 256  # the largest head dim of Hopper kernels with invariant
# Arguments of froghopper.torch -> what a layer of vLLM was made with, and is given in a step.
NAMES = {"q": "query", "k": "kv_cache", "v": "kv_cache", "out": "output", "sink": "sinks", "softcap": "logits_soft_cap",
         "(window)": "sliding_window", "heads_q": "num_heads", "heads_kv": "num_kv_heads", "scale_k": "layer._k_scale",
         "scale_v": "layer._v_scale", "seqused_kv": "attn_metadata.seq_lens",
         "cu_seqlens_q": "attn_metadata.query_start_loc", "cu_seqlens_kv": "attn_metadata.query_start_loc",
         "max_seqlen_q": "attn_metadata.max_query_len", "max_seqlen_kv": "attn_metadata.max_seq_len",
         "block_table": "attn_metadata.block_table"}

__all__ = ["Backend", "Impl", "Metadata", "MetadataBuilder"]


def __dir__() -> list[str]: return sorted(__all__)


class Backend(AttentionBackend):
    """What the backend can do, asked by vLLM before it is chosen."""
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "float16", "bfloat16", *(
        name for name in FLOAT8 if name != OF_ROWS or hasattr(AttentionBackend, "customize_spec"))]
    forward_includes_kv_cache_update = False
    supports_kv_cache_update_bypass = True

    @staticmethod
    def get_name() -> str: return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type["Impl"]: return Impl

    @staticmethod
    def get_builder_cls() -> type["MetadataBuilder"]: return MetadataBuilder

    @staticmethod
    def get_kv_cache_shape(num_blocks: int, block_size: int, num_kv_heads: int, head_size: int,
                           cache_dtype_str: str = "auto") -> tuple[int, ...]:
        """Of versions that ask a backend for it; newer ones give [blocks, heads, block, dim of K and V]."""
        return 2, num_blocks, block_size, num_kv_heads, head_size

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        """How many bytes a row of a head takes, where they are not those of K and V alone."""
        if spec.state_content_bytes is not None or spec.kv_quant_mode.name != OF_ROWS.upper(): return spec
        return replace(spec, state_content_bytes=spec.head_size + spec.head_size_v + SCALE_BYTES)

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]: return [MultipleOf(16)]

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool: return head_size % 8 == 0 and 8 <= head_size <= 512

    @classmethod
    def supports_sink(cls) -> bool: return True

    @classmethod
    def supports_sliding_window(cls) -> bool: return True

    @classmethod
    def supports_per_head_quant_scales(cls) -> bool: return True

    @classmethod
    def supports_non_causal(cls) -> bool: return True

    @classmethod
    def supports_batch_invariance(cls) -> bool: return True

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type in (AttentionType.DECODER, AttentionType.ENCODER, AttentionType.ENCODER_ONLY,
                             AttentionType.ENCODER_DECODER)

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        """Hopper's alone."""
        return bool(capability.major == 9)

    @classmethod
    def supports_combination(cls, head_size: int, dtype: torch.dtype, kv_cache_dtype: Any, block_size: int | None,
                             use_mla: bool, has_sink: bool, use_sparse: bool, use_mm_prefix: bool,
                             device_capability: Any) -> str | None:
        if kv_cache_dtype in FLOAT8 and head_size % FLOAT8_DIMS:
            return f"8-bit caches are there for head sizes that are multiples of {FLOAT8_DIMS} alone"
        if not envs.VLLM_BATCH_INVARIANT: return None
        if kv_cache_dtype in FLOAT8: return "batch invariance is there for float16 and bfloat16 caches alone"
        if head_size > INVARIANT_DIM: return f"batch invariance is there for head sizes up to {INVARIANT_DIM} alone"
        return None


@dataclass
class Metadata(AttentionMetadata):
    """Of one step, for all layers of a group. Tensors are vLLM's own, so that graphs see new numbers in them."""
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    query_start_loc: Tensor
    seq_lens: Tensor
    block_table: Tensor
    slot_mapping: Tensor
    causal: bool


class MetadataBuilder(AttentionMetadataBuilder[Metadata]):
    # Bounds alone decide about a plan, and a graph is captured with the largest ones.
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.ALWAYS
    supports_update_block_table: bool = True

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Metadata:
        given = common_attn_metadata
        if not isinstance(given.causal, bool):
            raise Unsupported("causal is a tensor, one number a sequence; here it is one for all. Use another "
                              "attention backend, such as FLASH_ATTN.")
        return Metadata(given.num_actual_tokens, given.max_query_len, given.max_seq_len, given.query_start_loc,
                        given.seq_lens, given.block_table_tensor, given.slot_mapping, given.causal)

    def update_block_table(self, metadata: Metadata, blk_table: Tensor, slot_mapping: Tensor) -> Metadata:
        changed = copy.copy(metadata)
        changed.block_table, changed.slot_mapping = blk_table, slot_mapping
        return changed


class Impl(AttentionImpl[Metadata]):
    """One layer."""

    def __init__(self, num_heads: int, head_size: int, scale: float, num_kv_heads: int | None = None,
                 alibi_slopes: list[float] | None = None, sliding_window: int | None = None,
                 kv_cache_dtype: str = "auto", logits_soft_cap: float | None = None,
                 attn_type: str = AttentionType.DECODER, kv_sharing_target_layer_name: str | None = None,
                 sinks: Tensor | None = None) -> None:
        if sinks is not None and sinks.shape[0] != num_heads:
            raise InvalidType(f"sinks must have a number for each head of the layer, {num_heads} in all, but has "
                              f"{sinks.shape[0]}. Give as many.")
        if sliding_window is not None and whole_number("sliding_window", sliding_window) < 0:
            raise InvalidProblem(f"sliding_window must be 1 or more keys, a query's own among them, but is "
                                 f"{sliding_window}. Use 1 or more, or None or 0 for no window.")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, number("scale", scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.alibi_slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        self.window = sliding_window - 1 if sliding_window else None
        self.kv_cache_dtype, self.attn_type, self.sinks = kv_cache_dtype, attn_type, sinks
        self.softcap = logits_soft_cap or 0.0
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.invariant = bool(envs.VLLM_BATCH_INVARIANT)

    def forward(self, layer: Any, query: Tensor, key: Tensor, value: Tensor, kv_cache: Tensor, attn_metadata: Metadata,
                output: Tensor, output_scale: Tensor | None = None,
                output_block_scale: Tensor | None = None) -> Tensor:
        """Writes attention of query [tokens, heads, dim] into output [tokens, heads, dim of V] and returns it."""
        if output_scale is not None or output_block_scale is not None:
            raise Unsupported("output_scale is given; o is not quantised here. Leave out the fusion of attention and "
                              "quantisation.")
        if attn_metadata is None: return output.fill_(0)  # the run that measures memory
        its, tokens = attn_metadata, attn_metadata.num_actual_tokens
        q, out = query[:tokens], output[:tokens]
        causal = its.causal and self.attn_type not in (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)
        options: dict[str, Any] = dict(
            causal=causal, scale=self.scale, softcap=self.softcap, invariant=self.invariant,
            window=None if self.window is None else (self.window, None if causal else self.window),
            sink=None if self.sinks is None else self.sinks.float(), alibi_slopes=self.slopes_on(q.device))
        longest = rounded_up(its.max_query_len)
        if self.attn_type in (AttentionType.ENCODER, AttentionType.ENCODER_ONLY):
            starts = its.query_start_loc
            try: attention(q, key[:tokens], value[:tokens], cu_seqlens_q=starts, cu_seqlens_kv=starts,
                           max_seqlen_q=longest, max_seqlen_kv=longest, out=out, **options)
            except Error as error: raise named_by(NAMES | {"k": "key", "v": "value"}, error) from None
            return output
        k, v = self.pools(kv_cache)
        if self.kv_cache_dtype == OF_ROWS: options |= dict(zip(("scale_k", "scale_v"), scales_of_rows(kv_cache)))
        elif k.dtype in FLOAT8.values():
            shape = (its.block_table.shape[0], self.num_kv_heads)
            options |= dict(scale_k=layer._k_scale.expand(shape), scale_v=layer._v_scale.expand(shape))
        room = its.block_table.shape[1] * k.shape[1]
        most = min(rounded_up(its.max_seq_len), room)
        try: paged_attention(q, k, v, its.block_table, seqused_kv=its.seq_lens, cu_seqlens_q=its.query_start_loc,
                             max_seqlen_q=longest, max_seqlen_kv=most, out=out, **options)
        except Error as error: raise named_by(NAMES, error) from None
        return output

    def do_kv_cache_update(self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor,
                           slot_mapping: Tensor) -> None:
        """New keys and values to their slots; those of slots below 0 are not written."""
        if self.attn_type in (AttentionType.ENCODER, AttentionType.ENCODER_ONLY): return
        k, v = self.pools(kv_cache)
        if self.kv_cache_dtype == OF_ROWS:
            reshape_and_cache_flash(key, value, k, v, slot_mapping, "fp8", *scales_of_rows(kv_cache))
        else:
            reshape_and_cache_flash(key, value, k, v, slot_mapping, self.kv_cache_dtype, layer._k_scale, layer._v_scale)

    def pools(self, kv_cache: Tensor) -> tuple[Tensor, Tensor]:
        """K and V as [blocks, block, heads, dim], views."""
        if kv_cache.ndim == 5: k, v = kv_cache.unbind(0)
        else:
            both = kv_cache.transpose(1, 2)
            if self.kv_cache_dtype == OF_ROWS: both = both[..., :-SCALE_BYTES]
            k, v = both[..., :self.head_size], both[..., self.head_size:]
        dtype = FLOAT8.get(self.kv_cache_dtype)
        if dtype is not None: k, v = k.view(dtype), v.view(dtype)
        return rows_apart(k), rows_apart(v)

    def slopes_on(self, device: torch.device) -> Tensor | None:
        if self.alibi_slopes is not None and self.alibi_slopes.device != device:
            self.alibi_slopes = self.alibi_slopes.to(device)
        return self.alibi_slopes


def scales_of_rows(kv_cache: Tensor) -> list[Tensor]:
    """Of K and of V as [blocks, block, heads] float32, views of what lies behind each row; Backend.customize_spec."""
    floats = kv_cache.transpose(1, 2)[..., -SCALE_BYTES:].view(torch.float32)
    return [floats[..., 0], floats[..., 1]]
