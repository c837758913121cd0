# SPDX-License-Identifier: Apache-2.0
"""froghopper.transformers token by token beside eager attention: every cache that generate knows, batches of one and
two, with padding and without, prompts in one piece and in chunks; small models with random weights."""
import gc
import warnings

import pytest

torch = pytest.importorskip("torch", reason="the plug of transformers needs torch, which is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from test_transformers import VOCABULARY  # noqa: E402
from torch_cases import DEVICES, one_thread  # noqa: E402, F401

import froghopper._transformers_words  # noqa: E402
import froghopper.transformers  # noqa: E402

NAME = froghopper.transformers.register()
SIZES = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             head_dim=16, vocab_size=VOCABULARY, max_position_embeddings=64)
MODELS = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)),
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_embd=64, n_layer=2, n_head=4, vocab_size=VOCABULARY, n_positions=64, bos_token_id=1, eos_token_id=2)),
    "gemma2": lambda: transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
        **SIZES, sliding_window=7, attn_logit_softcapping=2.0, query_pre_attn_scalar=16)),
    "mistral": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**SIZES, sliding_window=5)),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES)),
}
CACHES = {"dynamic": None, "static": "static", "sliding_window": "sliding_window"}
TOKENS, MORE = 11, 6


def tokens_of(model, how, **given):
    """(tokens, logits of each step)."""
    model.set_attn_implementation(how)
    found = model.generate(max_new_tokens=MORE, do_sample=False, output_logits=True, return_dict_in_generate=True,
                           disable_compile=True, pad_token_id=0, eos_token_id=None, **given)
    return found.sequences, torch.stack(found.logits)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", MODELS)
def test_token_by_token(name, cache, batch, padded, device):
    """With chunks of 4 of the prompt too; on a GPU in bfloat16, whose roundings the logits have."""
    torch.manual_seed(3)
    model = MODELS[name]().eval().to(device, torch.bfloat16 if device == "cuda" else torch.float32)
    ids = torch.randint(1, VOCABULARY, (batch, TOKENS), generator=torch.Generator().manual_seed(4)).to(device)
    seen = torch.ones_like(ids)
    if padded: seen[-1, :3] = 0
    given = dict(input_ids=ids, attention_mask=seen, cache_implementation=CACHES[cache])
    tolerance = dict(rtol=0, atol=0.012) if device == "cuda" else dict(rtol=1e-4, atol=1e-5)
    for chunk in ({}, dict(prefill_chunk_size=4)):
        wanted, logits = tokens_of(model, "eager", **given, **chunk)
        found, found_logits = tokens_of(model, NAME, **given, **chunk)
        if device == "cpu": assert torch.equal(found, wanted)
        same = (found == wanted).cumprod(1).bool()[:, TOKENS - 1:-1].T  # what comes before a step
        torch.testing.assert_close(found_logits[same], logits[same], **tolerance)
        assert same[0].all()


def test_packed_sequences_beside_a_cache_are_warned_of(monkeypatch):
    """transformers tells attention nothing of them, so each attends to those before it."""
    monkeypatch.setattr(froghopper._transformers_words, "_told", {})
    model = MODELS["llama"]().eval()
    model.set_attn_implementation(NAME)
    ids = torch.arange(9)[None]
    packed = dict(input_ids=ids, position_ids=torch.cat([torch.arange(4), torch.arange(5)])[None])
    ends = torch.tensor([0, 4, 9], dtype=torch.int32)
    lengths = dict(cu_seq_lens_q=ends, cu_seq_lens_k=ends, max_length_q=5, max_length_k=5)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for fine in (dict(input_ids=ids), packed | dict(use_cache=False), packed | lengths): model(**fine)
    with torch.no_grad(), pytest.warns(UserWarning, match="position_ids begin again .* use_cache=False") as said:
        for _ in range(2): model(**packed)
    assert len(said) == 1
    other = MODELS["llama"]().eval()  # may be the one that is trained
    other.set_attn_implementation(NAME)
    with torch.no_grad(), pytest.warns(UserWarning, match="position_ids begin again") as said: other(**packed)
    assert len(said) == 1 and len(froghopper._transformers_words._told) == 2
    del model, other
    gc.collect()
    assert not froghopper._transformers_words._told


def test_models_whose_mask_does_not_look_at_positions_are_told_of(monkeypatch):
    """use_cache=False does not help there; lengths do."""
    monkeypatch.setattr(froghopper._transformers_words, "_told", {})
    config = transformers.OPTConfig(hidden_size=64, ffn_dim=96, num_hidden_layers=1, num_attention_heads=4,
                                    vocab_size=61, word_embed_proj_dim=64, max_position_embeddings=32)
    model = transformers.OPTForCausalLM._from_config(config, attn_implementation=NAME).eval()
    places = torch.cat([torch.arange(4), torch.arange(5)])[None]
    ends = torch.tensor([0, 4, 9], dtype=torch.int32)
    lengths = dict(cu_seq_lens_q=ends, cu_seq_lens_k=ends, max_length_q=5, max_length_k=5)
    packed = dict(input_ids=torch.arange(9)[None], position_ids=places, use_cache=False)
    with torch.no_grad(), pytest.warns(UserWarning, match="but not OPT and GPT-OSS.*or any model cu_seq_lens_q"):
        model(**packed)
    with torch.no_grad():
        found = model(**packed, **lengths).logits[:, 4:]
        alone = model(input_ids=torch.arange(4, 9)[None], position_ids=places[:, 4:], use_cache=False).logits
    torch.testing.assert_close(found, alone)


def test_packed_sequences_beside_an_attention_mask_are_warned_of(monkeypatch):
    """The mask alone switches them off, also without a cache: the way out leaves it out."""
    monkeypatch.setattr(froghopper._transformers_words, "_told", {})
    model = MODELS["llama"]().eval()
    model.set_attn_implementation(NAME)
    ids = torch.arange(9)[None]
    packed = dict(input_ids=ids, position_ids=torch.cat([torch.arange(4), torch.arange(5)])[None], use_cache=False)
    with torch.no_grad(), pytest.warns(UserWarning, match="begin again .* Leave out attention_mask, and give"):
        model(attention_mask=torch.ones_like(ids), **packed)
