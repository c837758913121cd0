# SPDX-License-Identifier: Apache-2.0
"""Continuous batching of transformers with froghopper's attention: the tokens of sdpa's continuous batching and of
eager attention, prompt by prompt, with prompts in chunks beside sequences that decode; small models with random
weights, on the CPU and on a Hopper GPU where there is one."""
import inspect

import pytest

torch = pytest.importorskip("torch", reason="the plug of transformers needs torch, which is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
if not hasattr(transformers, "ContinuousBatchingConfig"):
    pytest.skip("this transformers has no ContinuousBatchingConfig", allow_module_level=True)

from torch_cases import DEVICES, one_thread  # noqa: E402, F401

import froghopper.transformers  # noqa: E402
from froghopper import _transformers_paged as paged  # noqa: E402

VOCABULARY, MORE, PAGE = 97, 10, 8
SIZES = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             head_dim=16, vocab_size=VOCABULARY, max_position_embeddings=128, initializer_range=0.2)
MODELS = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)),
    "mistral": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**SIZES, sliding_window=5)),
    "gemma2": lambda: transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
        **SIZES, sliding_window=7, attn_logit_softcapping=2.0, query_pre_attn_scalar=16)),
    "gpt_oss": lambda: transformers.GptOssForCausalLM(transformers.GptOssConfig(
        **SIZES, sliding_window=6, num_local_experts=2, num_experts_per_tok=1)),
}
LENGTHS = (5, 17, 40, 3)  # the third one takes two steps of 24 tokens


def prompts(): return [torch.randint(1, VOCABULARY, (n,), generator=torch.Generator().manual_seed(n)).tolist()
                       for n in LENGTHS]


def model_of(name, device):
    torch.manual_seed(3)
    model = MODELS[name]().eval().to(device)
    if name == "gpt_oss":
        for layer in model.model.layers: torch.nn.init.normal_(layer.self_attn.sinks)
    return model


def settings(): return transformers.GenerationConfig(max_new_tokens=MORE, do_sample=False, eos_token_id=-1,
                                                     pad_token_id=0)


def batched(model):
    """Tokens of each prompt."""
    known = inspect.signature(transformers.ContinuousBatchingConfig).parameters
    sizes = {("page_size" if "page_size" in known else "block_size"): PAGE, "num_blocks": 64, "max_batch_tokens": 24}
    if "auto_switch_to_flash" in known: sizes["auto_switch_to_flash"] = False
    found = model.generate_batch(inputs=prompts(), generation_config=settings(), progress_bar=False,
                                 continuous_batching_config=transformers.ContinuousBatchingConfig(**sizes))
    assert all(x.error is None for x in found.values())
    return [found[key].generated_tokens for key in sorted(found, key=lambda key: int(key.split("_")[-1]))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_the_tokens_of_sdpa_and_of_eager(name, device, monkeypatch):
    """float32 on the CPU, where tokens are equal; a GPU computes bfloat16, whose tokens may be others."""
    model = model_of(name, device)
    if device == "cuda": model = model.to(torch.bfloat16)
    called, real = [], paged.attention
    monkeypatch.setattr(paged, "attention", lambda *given, **words: called.append(
        words["cu_seqlens_q"].numel()) or real(*given, **words))
    found = batched(froghopper.transformers.continuous_batching(model))
    assert called and max(called) == len(LENGTHS) + 1  # all four sequences in one call
    assert [len(x) for x in found] == [MORE] * len(LENGTHS)
    if device == "cuda": return
    for how in ("eager", "sdpa"):
        if how == "sdpa" and not model._supports_sdpa: continue
        model.set_attn_implementation(how)
        assert batched(model) == found, how
    if name != "llama": return  # transformers 5.12 has other windows there
    for tokens, after in zip(prompts(), found):
        whole = model.generate(torch.tensor([tokens]), attention_mask=torch.ones(1, len(tokens)),
                               generation_config=settings())
        assert whole[0, len(tokens):].tolist() == after


def test_it_is_not_for_generate():
    model = froghopper.transformers.continuous_batching(model_of("llama", "cpu"))
    ids = torch.ones(1, 4, dtype=torch.long)
    with pytest.raises(ValueError, match="has all of them. Use attn_implementation=\"froghopper\""): model(ids)
    seen = torch.tensor([[0, 1, 1, 1]])
    with pytest.raises(NotImplementedError, match="where lengths say what is seen"): model(ids, attention_mask=seen)
    model.set_attn_implementation("froghopper")
    assert model(ids, attention_mask=seen).logits.isfinite().all()
