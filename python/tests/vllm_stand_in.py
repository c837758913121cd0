# SPDX-License-Identifier: Apache-2.0
"""What froghopper.vllm uses of vLLM, written by hand from the signatures of vLLM 0.33, for test_vllm.py where vLLM is
not installed. Nothing here computes; a machine with vLLM tests with its own classes."""
import abc
import enum
import os
import types
from dataclasses import dataclass
from typing import Generic, TypeVar

M = TypeVar("M")


class AttentionType(str, enum.Enum):
    DECODER, ENCODER, ENCODER_ONLY, ENCODER_DECODER = "decoder", "encoder", "encoder_only", "encoder_decoder"


@dataclass(frozen=True)
class MultipleOf:
    base: int


class AttentionCGSupport(enum.Enum):
    ALWAYS, UNIFORM_BATCH, UNIFORM_SINGLE_TOKEN_DECODE, NEVER = 3, 2, 1, 0


class AttentionMetadata: pass


class AttentionBackend(abc.ABC):
    @staticmethod
    @abc.abstractmethod
    def get_name(): ...

    @staticmethod
    @abc.abstractmethod
    def get_impl_cls(): ...

    @staticmethod
    @abc.abstractmethod
    def get_builder_cls(): ...

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec=None): ...

    @classmethod
    def customize_spec(cls, spec): return spec

    @classmethod
    def supports_head_size(cls, head_size): ...

    @classmethod
    def supports_attn_type(cls, attn_type): ...

    @classmethod
    def supports_compute_capability(cls, capability): ...

    @classmethod
    def supports_combination(cls, head_size, dtype, kv_cache_dtype, block_size, use_mla, has_sink, use_sparse,
                             use_mm_prefix, device_capability): ...


class AttentionMetadataBuilder(abc.ABC, Generic[M]):
    @abc.abstractmethod
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device): self.device = device

    @abc.abstractmethod
    def build(self, common_prefix_len, common_attn_metadata, fast_build=False): ...

    def update_block_table(self, metadata, blk_table, slot_mapping): ...


class AttentionImpl(abc.ABC, Generic[M]):
    @abc.abstractmethod
    def __init__(self, num_heads, head_size, scale, num_kv_heads=None, alibi_slopes=None, sliding_window=None,
                 kv_cache_dtype="auto", logits_soft_cap=None, attn_type=AttentionType.DECODER,
                 kv_sharing_target_layer_name=None): ...

    @abc.abstractmethod
    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None,
                output_block_scale=None): ...


class AttentionBackendEnum(enum.Enum):
    FLASH_ATTN = "vllm.v1.attention.backends.flash_attn.FlashAttentionBackend"
    CUSTOM = None

    def is_overridden(self): return self in OVERRIDES

    def get_path(self): return OVERRIDES[self]

    def get_class(self):
        module, _, name = self.get_path().rpartition(".")
        return getattr(__import__(module, fromlist=[name]), name)

    def clear_override(self): OVERRIDES.pop(self, None)


OVERRIDES = {}


def register_backend(backend, class_path=None, is_mamba=False): OVERRIDES[backend] = class_path


def setting(name):
    """vllm.envs reads the environment whenever it is asked."""
    if not name.startswith("VLLM_"): raise AttributeError(name)
    return bool(int(os.environ.get(name, "0")))


def modules():
    """{name: module} for sys.modules."""
    made = {name: types.ModuleType(name) for name in (
        "vllm", "vllm.envs", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backend", "vllm.v1.attention.backends",
        "vllm.v1.attention.backends.registry")}
    for x in made.values(): x.__path__ = []
    made["vllm"].envs = made["vllm.envs"]
    made["vllm.envs"].__getattr__ = setting
    for at in (AttentionType, MultipleOf, AttentionCGSupport, AttentionMetadata, AttentionBackend,
               AttentionMetadataBuilder, AttentionImpl): setattr(made["vllm.v1.attention.backend"], at.__name__, at)
    for at in (AttentionBackendEnum, register_backend): setattr(made["vllm.v1.attention.backends.registry"],
                                                                at.__name__, at)
    return made
