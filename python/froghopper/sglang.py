# SPDX-License-Identifier: Apache-2.0
"""froghopper as an attention backend of SGLang 0.5.

    python3 -m sglang.launch_server --model-path MODEL --attention-backend froghopper

The package's entry point tells SGLang the name; nothing else has to be imported. Prefill, chunked prefill, mixed
batches and decode are one call, from the slots of SGLang's pools, which are read where they lie:

    pages                 of one slot, as SGLang has them without --page-size, or of any number
    heads and dims        GQA, MQA; head dims that are multiples of 8, up to 512, and V's own
    caches                float16, bfloat16, e4m3 and e5m2 with a 16-bit q, with a scale of the tensor or of each
                          head; pools of sliding windows beside those of all tokens
    masks and scores      causal and not, sliding windows, chunks (Llama 4), softcap, sinks
    --enable-deterministic-inference    a row's bits depend on its own keys alone
    CUDA graphs           of decoding

NotImplementedError at the start, with the reason, for latent attention (MLA), speculative decoding, encoder-decoder
models and unified memory.
"""
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.runtime_context import get_exec
from torch import Tensor

from froghopper._errors import Error, Unsupported
from froghopper._pages import rounded_up, rows_apart
from froghopper._torch_calls import FLOAT8
from froghopper._words import named_by
from froghopper.torch import paged_attention

# Arguments of froghopper.torch -> what a layer of SGLang has and is given.
NAMES = {"k": "token_to_kv_pool", "v": "token_to_kv_pool", "scale": "layer.scaling", "softcap": "layer.logit_cap",
         "(window)": "layer.sliding_window_size", "sink": "sinks", "scale_k": "layer.k_scale",
         "scale_v": "layer.v_scale",
         "heads_q": "layer.tp_q_head_num", "heads_kv": "layer.tp_k_head_num", "seqused_kv": "forward_batch.seq_lens",
         "cu_seqlens_q": "forward_batch.extend_seq_lens", "max_seqlen_q": "forward_batch.extend_seq_lens",
         "block_table": "req_to_token_pool", "attention_chunk": "attention_chunk_size"}
OTHER = "Use another --attention-backend, such as fa3."

__all__ = ["Backend", "Metadata"]


def __dir__() -> list[str]: return sorted(__all__)


@dataclass
class Metadata:
    """Of one step, for all layers. Tables: [batch, columns] int32, pages of each sequence; window: those of the pool of
    sliding windows, with the slots that new rows have there."""
    starts: Tensor
    lengths: Tensor
    table: Tensor
    longest: int
    window_table: Tensor | None = None
    window_slots: Tensor | None = None


class Backend(AttentionBackend):
    needs_cpu_seq_lens: bool = False

    def __init__(self, model_runner: Any) -> None:
        super().__init__()
        refuse(model_runner)
        self.device, self.page = model_runner.device, getattr(model_runner, "page_size", 1) or 1
        self.slots = model_runner.req_to_token_pool.req_to_token  # [requests, tokens]: the slot of each token
        self.pool = model_runner.token_to_kv_pool
        self.translate = getattr(self.pool, "translate_loc_from_full_to_swa", None)
        self.columns = -(-model_runner.model_config.context_len // self.page)
        self.chunk = getattr(model_runner, "attention_chunk_size", None) or 0
        self.invariant = bool(get_exec().deterministic.enable_deterministic_inference)
        self.forward_metadata: Metadata | None = None
        self.in_graphs: Metadata | None = None  # buffers of the largest batch
        self.captured: dict[int, Metadata] = {}

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Eager steps."""
        mode, count = forward_batch.forward_mode, forward_batch.batch_size
        lengths = forward_batch.seq_lens.to(torch.int32)
        if mode.is_decode_or_idle():
            starts, longest = torch.arange(count + 1, dtype=torch.int32, device=lengths.device), 1
        else:
            self.check_mode(mode)
            starts = torch.nn.functional.pad(forward_batch.extend_seq_lens.cumsum(0, dtype=torch.int32), (1, 0))
            longest = max((int(x) for x in forward_batch.extend_seq_lens_cpu), default=0)
        held, columns = forward_batch.seq_lens_cpu, self.columns
        if held is not None: columns = min(columns, max(1, -(-int(held.max() if len(held) else 0) // self.page)))
        table = torch.empty(count, columns, dtype=torch.int32, device=lengths.device)
        found = Metadata(starts, lengths, table, longest)
        if self.translate is not None:
            found.window_table = torch.empty_like(table)
            if forward_batch.out_cache_loc is not None:
                found.window_slots = self.translate(forward_batch.out_cache_loc)
        self.fill(found, forward_batch.req_pool_indices)
        self.forward_metadata = found

    def fill(self, found: Metadata, requests: Tensor) -> None:
        """Pages of these requests into the tables, by operations that a graph may record. SGLang gives the slots of a
        page one after the other, so the first one tells the page."""
        reach = found.table.shape[1] * self.page
        slots = torch.index_select(self.slots[:, :reach:self.page], 0, requests)
        for table, translate in ((found.table, None), (found.window_table, self.translate)):
            if table is None: continue
            there = slots if translate is None else translate(slots)
            table[:, :there.shape[1]] = there if self.page == 1 else there // self.page

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        table = torch.zeros(max_bs, self.columns, dtype=torch.int32, device=self.device)
        starts = torch.arange(max_bs + 1, dtype=torch.int32, device=self.device)
        made = Metadata(starts, torch.zeros_like(starts[:-1]), table, 1)
        if self.translate is not None:
            made.window_table = torch.zeros_like(table)
            made.window_slots = torch.zeros(max_num_tokens, dtype=torch.int64, device=self.device)
        self.in_graphs, self.captured = made, {}

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        mode, count, held = forward_batch.forward_mode, forward_batch.batch_size, self.in_graphs
        if not mode.is_decode_or_idle() or held is None:
            raise Unsupported(f"forward_mode is {mode.name}; graphs are captured of decoding here. Leave out graphs of "
                              f"prefill. {OTHER}")
        if in_capture or count not in self.captured:
            window = held.window_table, held.window_slots
            self.captured[count] = Metadata(held.starts[:count + 1], held.lengths[:count], held.table[:count], 1,
                                            *(None if x is None else x[:count] for x in window))
        self.forward_metadata = self.captured[count]

    def init_forward_metadata_in_graph(self, forward_batch: Any) -> None:
        """Recorded: a replay reads the lengths and slots of its own step."""
        found, count = self.captured[forward_batch.batch_size], forward_batch.batch_size
        found.lengths.copy_(forward_batch.seq_lens[:count])
        if self.translate is not None and found.window_slots is not None:
            found.window_slots.copy_(self.translate(forward_batch.out_cache_loc[:count]))
        self.fill(found, forward_batch.req_pool_indices[:count])
        self.forward_metadata = found

    def get_cuda_graph_seq_len_fill_value(self) -> int: return 1

    def support_triton(self) -> bool: return True

    def forward_extend(self, q: Tensor, k: Tensor, v: Tensor, layer: Any, forward_batch: Any,
                       save_kv_cache: bool = True, **words: Any) -> Any:
        return self.attend(q, k, v, layer, forward_batch, save_kv_cache, **words)

    def forward_decode(self, q: Tensor, k: Tensor, v: Tensor, layer: Any, forward_batch: Any,
                       save_kv_cache: bool = True, **words: Any) -> Any:
        return self.attend(q, k, v, layer, forward_batch, save_kv_cache, **words)

    def attend(self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: Any, forward_batch: Any,
               save_kv_cache: bool, sinks: Tensor | None = None, return_lse: bool = False, **words: Any) -> Any:
        """Writes k and v to their slots; attention of q [tokens, heads * dim], as wide. With return_lse (o [tokens,
        heads, dim of V], lse [tokens, heads])."""
        for name, value in words.items():
            if value is not None:
                raise Unsupported(f"layer {layer.layer_id} has {name}; it is not computed here. {OTHER}")
        if layer.is_cross_attention or (getattr(layer, "xai_temperature_len", None) or -1) > 0:
            raise Unsupported(f"layer {layer.layer_id} has cross attention or temperatures of positions; they are not "
                              f"computed here. {OTHER}")
        its = self.forward_metadata
        assert its is not None
        if k is not None and save_kv_cache:
            where = KVWriteLoc.for_layer(forward_batch, layer, swa_loc=its.window_slots)
            self.pool.set_kv_buffer(layer, where, k, v, layer.k_scale, layer.v_scale)
        keys, values = (rows_apart(pages_of(x, self.page)) for x in self.pool.get_kv_buffer(layer.layer_id))
        causal = layer.attn_type not in (AttentionType.ENCODER_ONLY, AttentionType.DECODER_BIDIRECTIONAL)
        window = layer.sliding_window_size if (layer.sliding_window_size or -1) > -1 else None
        table = its.table if window is None or its.window_table is None else its.window_table
        options: dict[str, Any] = dict(
            causal=causal, scale=layer.scaling, softcap=layer.logit_cap or 0.0, invariant=self.invariant,
            window=None if window is None else (window, None if causal else window),
            attention_chunk=self.chunk if getattr(layer, "use_irope", False) else 0,
            sink=None if sinks is None else sinks.float())
        if keys.dtype in FLOAT8:
            shape = (table.shape[0], layer.tp_k_head_num)
            options |= {f"scale_{name}": 1.0 if scale is None else scale.float().expand(shape)
                        for name, scale in (("k", layer.k_scale), ("v", layer.v_scale))}
        rows = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        try: found = paged_attention(rows, keys, values, table, seqused_kv=its.lengths, cu_seqlens_q=its.starts,
                                     max_seqlen_q=rounded_up(its.longest), return_lse=return_lse, lse_by_row=True,
                                      **options)
        except Error as error: raise named_by(NAMES, error) from None
        if return_lse: return found
        return found.view(-1, layer.tp_q_head_num * layer.v_head_dim)

    def check_mode(self, mode: Any) -> None:
        if mode.is_target_verify() or mode.is_draft_extend_v2() or mode.is_dllm_extend():
            raise Unsupported(f"forward_mode is {mode.name}; prefill, decoding and both in one batch are computed "
                              f"here. {OTHER}")


def refuse(runner: Any) -> None:
    """NotImplementedError for models and settings that have no kernels here."""
    translator = getattr(runner, "kv_index_translator", None)
    for given, why in ((getattr(runner, "use_mla_backend", False), "the model has latent attention (MLA)"),
                       (runner.model_config.is_encoder_decoder, "the model has an encoder beside its decoder"),
                       (runner.spec_algorithm.is_speculative(), "speculative decoding is on"),
                       (translator is not None and translator.is_translating, "unified memory is on")):
        if given: raise Unsupported(f"{why}; froghopper does not serve it in SGLang yet. {OTHER}")


def pages_of(pool: Tensor, page: int) -> Tensor:
    """A pool of slots [slots, heads, dim], or of pages with heads outside of rows, as [pages, page_size, heads, dim],
    a view."""
    if pool.ndim == 4: return pool.transpose(1, 2)
    count, step = pool.shape[0] // page, pool.stride(0)
    return pool.as_strided((count, page, *pool.shape[1:]), (page * step, step, *pool.stride()[1:]))
