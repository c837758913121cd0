# SPDX-License-Identifier: Apache-2.0
"""What froghopper.sglang uses of SGLang, written by hand from the signatures of SGLang 0.5.23, for test_sglang.py where
SGLang cannot be imported. Nothing here computes."""
import abc
import enum
import types
from dataclasses import dataclass
from typing import Any


class ForwardMode(enum.IntEnum):
    EXTEND, DECODE, MIXED, IDLE, TARGET_VERIFY, DRAFT_EXTEND_V2, DLLM_EXTEND = range(1, 8)

    def is_decode(self): return self == ForwardMode.DECODE

    def is_idle(self): return self == ForwardMode.IDLE

    def is_mixed(self): return self == ForwardMode.MIXED

    def is_decode_or_idle(self): return self in (ForwardMode.DECODE, ForwardMode.IDLE)

    def is_target_verify(self): return self == ForwardMode.TARGET_VERIFY

    def is_draft_extend_v2(self): return self == ForwardMode.DRAFT_EXTEND_V2

    def is_dllm_extend(self): return self == ForwardMode.DLLM_EXTEND


class AttentionBackend(abc.ABC):
    needs_cpu_seq_lens = True

    def init_forward_metadata(self, forward_batch): ...

    def init_forward_metadata_out_graph(self, forward_batch, in_capture=False): ...

    def init_forward_metadata_in_graph(self, forward_batch): ...

    def init_cuda_graph_state(self, max_bs, max_num_tokens): raise NotImplementedError

    def get_cuda_graph_seq_len_fill_value(self): raise NotImplementedError

    def forward(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        if forward_batch.forward_mode.is_idle(): return q.new_empty(q.shape[0], layer.tp_q_head_num * layer.v_head_dim)
        step = self.forward_decode if forward_batch.forward_mode.is_decode() else self.forward_extend
        return step(q, k, v, layer, forward_batch, save_kv_cache=save_kv_cache, **kwargs)

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs): raise NotImplementedError

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs): raise NotImplementedError

    def support_triton(self): return True


class AttentionType(enum.Enum):
    DECODER, DECODER_BIDIRECTIONAL, ENCODER_ONLY = "decoder", "decoder_bidirectional", "encoder_only"


@dataclass
class KVWriteLoc:
    loc: Any
    swa_loc: Any = None

    @classmethod
    def for_layer(cls, forward_batch, layer, *, swa_loc=None, full_loc=None):
        return cls(forward_batch.out_cache_loc, swa_loc)


def register_attention_backend(name): return lambda make: ATTENTION_BACKENDS.setdefault(name, make)


ATTENTION_BACKENDS = {}
WHERE = {
    "sglang.srt.layers.attention.base_attn_backend": (AttentionBackend,),
    "sglang.srt.layers.radix_attention": (AttentionType,),
    "sglang.srt.layers.attention.attention_registry": (register_attention_backend,),
    "sglang.srt.mem_cache.memory_pool": (KVWriteLoc,),
    "sglang.srt.model_executor.forward_batch_info": (ForwardMode,),
    "sglang.srt.runtime_context": (), "sglang.srt.arg_groups.choices": (),
}


def modules():
    """{name: module} for sys.modules."""
    made = {}
    for name, things in WHERE.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            made.setdefault(".".join(parts[:end]), types.ModuleType(".".join(parts[:end]))).__path__ = []
        for thing in things: setattr(made[name], thing.__name__, thing)
    for name, x in made.items():
        parent, _, last = name.rpartition(".")
        if parent: setattr(made[parent], last, x)
    made["sglang.srt.runtime_context"].get_exec = lambda: types.SimpleNamespace(
        deterministic=types.SimpleNamespace(enable_deterministic_inference=False))
    choices = made["sglang.srt.arg_groups.choices"]
    for name, add in (("ATTENTION_BACKEND_CHOICES", "add_attention_backend_choices"),
                      ("DETERMINISTIC_ATTENTION_BACKEND_CHOICES", "add_deterministic_attention_backend_choices"),
                      ("RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND",
                       "add_radix_supported_deterministic_attention_backend_choices")):
        held = ["fa3"]
        setattr(choices, name, held)
        setattr(choices, add, held.extend)
    made["sglang.srt.layers.attention.attention_registry"].ATTENTION_BACKENDS = ATTENTION_BACKENDS
    return made
