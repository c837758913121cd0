# SPDX-License-Identifier: Apache-2.0
"""The Mask between transformers' models and froghopper.transformers: it knows the lengths that it was made for, and
what it cannot do as a matrix it says in words. Model classes that read, slice and add masks either agree with eager
attention or raise NotImplementedError."""
import pytest

torch = pytest.importorskip("torch", reason="the plug of transformers needs torch, which is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

import froghopper.transformers  # noqa: E402
from froghopper.transformers import Mask, attention_forward, attention_mask  # noqa: E402

NAME, VOCABULARY = froghopper.transformers.register(), 61
masks = transformers.masking_utils


class Layer(torch.nn.Module):
    is_causal = True


def qkv(rows, keys, batch=2):
    return [torch.randn(batch, 4, n, 16, generator=torch.Generator().manual_seed(at))
            for at, n in enumerate((rows, keys, keys))]


def ints(*numbers): return torch.tensor(numbers, dtype=torch.int32)


@pytest.mark.parametrize("rows, keys, batch, says", [
    (5, 8, 2, "Layer has 5 queries and 8 keys, and its attention_mask is made for 5 queries and 5 keys"),
    (5, 4, 2, "has 5 queries and 4 keys.* made for 5 queries and 5 keys"),
    (3, 5, 2, "has 3 queries and 5 keys.* made for 5 queries and 5 keys"),
    (5, 5, 3, "has a batch of 3.* made for one of 2")])
@pytest.mark.parametrize("padded", [False, True])
def test_a_mask_is_for_its_lengths(rows, keys, batch, says, padded):
    """A model that compresses its keys has more of them than its mask was made for."""
    tokens = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]]) if padded else None
    mask = attention_mask(2, 5, 5, attention_mask=tokens)
    if batch == 3 and not padded: attention_forward(Layer(), *qkv(rows, keys, batch), mask)  # it says no lengths
    else:
        with pytest.raises(NotImplementedError, match=says): attention_forward(Layer(), *qkv(rows, keys, batch), mask)
    attention_forward(Layer(), *qkv(5, 5), mask)


@pytest.mark.skipif(not hasattr(transformers, "DeepseekV4Config"), reason="this transformers has no DeepSeek-V4")
def test_compressed_keys():
    config = transformers.DeepseekV4Config(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1, head_dim=16, q_lora_rank=32,
        vocab_size=VOCABULARY, moe_intermediate_size=32, n_routed_experts=4, num_experts_per_tok=1,
        layer_types=["compressed_sparse_attention", "sliding_attention"], sliding_window=7)
    model = transformers.DeepseekV4ForCausalLM._from_config(config, attn_implementation=NAME).eval()
    with pytest.raises(NotImplementedError, match="keys, and its attention_mask is made for 13 queries and 13 keys"):
        model(torch.arange(13)[None])
    model.set_attn_implementation("eager")
    model(torch.arange(13)[None])


def test_one_key_stands_for_all():
    """As a matrix [batch, 1, 1, 1] does: encoders that decode make a mask for the new token alone."""
    q, k, v = qkv(1, 9)
    mask = attention_mask(2, 1, 1, mask_function=masks.bidirectional_mask_function)
    found, _ = attention_forward(Layer(), q, k, v, mask)
    torch.testing.assert_close(found, scaled_dot_product_attention(q, k, v).transpose(1, 2), rtol=1e-4, atol=1e-5)


def test_offsets_in_tensors():
    """A static cache's: one number for all of the batch, which lies dense."""
    q, k, v = qkv(3, 9)
    mask = attention_mask(2, 3, 9, q_offset=torch.tensor(4))
    assert mask.end.is_contiguous() and mask.end.tolist() == [7, 7]
    seen = torch.arange(9) <= torch.arange(4, 7)[:, None]
    wanted = scaled_dot_product_attention(q, k, v, seen).transpose(1, 2)
    torch.testing.assert_close(attention_forward(Layer(), q, k, v, mask)[0], wanted, rtol=1e-4, atol=1e-5)


def made(): return Mask(True, (3, None), (2, 5, 9), begin=ints(0, 4), end=ints(9, 9))


def test_what_a_mask_has_of_a_matrix():
    mask = made()
    assert mask.shape == (2, 1, 5, 9) and mask.ndim == mask.dim() == 4 and mask.size() == mask.shape
    assert mask.size(-1) == 9 and mask.numel() == 90
    assert mask[:, :, :, :9] is mask[..., :12] is mask[:] is mask.contiguous() is mask
    assert mask.to(torch.bool) is mask is mask.to(dtype=torch.float32)
    assert str(mask) == repr(mask) == "Mask(causal=True, window=(3, None), made_for=(2, 5, 9), begin=[2], end=[2])"
    moved = mask.to("meta")
    assert moved.begin.is_meta and moved.made_for == mask.made_for and mask.to(device="meta").end.is_meta
    assert mask == mask and mask != made() and mask != None and hash(mask) == hash(mask)  # noqa: E711
    assert not hasattr(mask, "kv_num_blocks") and not hasattr(mask, "dtype")


READS = {
    "one_head": lambda mask: mask[:, 0], "rows": lambda mask: mask[:, :, -1:, :], "fewer_keys": lambda m: m[..., :4],
    "chosen": lambda mask: mask[torch.tensor([0])], "new_axis": lambda mask: mask[:, None],
    "sum": lambda mask: mask + 1,
    "of_one": lambda mask: 1.0 - mask, "added": lambda mask: torch.zeros(2, 1, 5, 9) + mask, "not": lambda mask: ~mask,
    "where": lambda mask: torch.where(mask, 0.0, 1.0), "cat": lambda mask: torch.cat([mask, mask]),
    "type": lambda mask: mask.dtype, "expand": lambda mask: mask.expand(2, 4, 5, 9), "equal": lambda mask: mask == 0,
    "compared": lambda mask: mask > 0, "and": lambda mask: torch.ones(2, 1, 5, 9, dtype=torch.bool) & mask,
    "blocks": lambda mask: mask.kv_num_blocks, "dense": lambda mask: mask.to_dense(), "rare": lambda m: m.sparsity(),
    "text": lambda mask: mask.to_string(), "rule": lambda mask: mask.mask_mod, "each": lambda mask: list(mask),
}


@pytest.mark.parametrize("name", READS)
def test_what_it_has_not(name):
    with pytest.raises(NotImplementedError, match="^attention_mask.*bounds and lengths, not a matrix. Use attn_impl"):
        READS[name](made())


SMALL = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, vocab_size=VOCABULARY,
             max_position_embeddings=64, pad_token_id=0)
PAIR = dict(d_model=64, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4,
            encoder_ffn_dim=96, decoder_ffn_dim=96, vocab_size=VOCABULARY, max_position_embeddings=64)
QUIET = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
T5 = dict(d_model=64, d_kv=16, d_ff=96, num_layers=1, num_heads=4, vocab_size=VOCABULARY, decoder_start_token_id=0)
NEOX = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4, vocab_size=VOCABULARY)
# (class, its config, "" where it agrees with eager or the words in which it is refused)
CLASSES = {
    "gpt2": ("GPT2LMHeadModel", dict(n_embd=64, n_layer=2, n_head=4, vocab_size=VOCABULARY, n_positions=64), ""),
    "gpt_neox": ("GPTNeoXForCausalLM", NEOX, ""),
    "opt": ("OPTForCausalLM", dict(hidden_size=64, ffn_dim=96, num_hidden_layers=1, num_attention_heads=4,
                                   word_embed_proj_dim=64, vocab_size=VOCABULARY, max_position_embeddings=64), ""),
    "bert": ("BertForMaskedLM", SMALL | QUIET, ""),
    "bert_decoder": ("BertLMHeadModel", SMALL | QUIET | dict(is_decoder=True), ""),
    "roberta": ("RobertaForCausalLM", SMALL | QUIET, ""),
    "modernbert": ("ModernBertForMaskedLM", SMALL | dict(local_attention=8), ""),
    "bart": ("BartForConditionalGeneration", PAIR, ""),
    "marian": ("MarianMTModel", PAIR | dict(decoder_start_token_id=0, pad_token_id=0), ""),
    "mbart": ("MBartForConditionalGeneration", PAIR, ""),
    "t5": ("T5ForConditionalGeneration", T5, "position_bias is given"),
    "bloom": ("BloomForCausalLM", dict(hidden_size=64, n_layer=1, n_head=4, vocab_size=VOCABULARY), "not a matrix"),
    "big_bird": ("BigBirdForMaskedLM", SMALL | dict(attention_type="original_full", sep_token_id=3), "not a matrix"),
    "bigbird_pegasus": ("BigBirdPegasusForConditionalGeneration", PAIR | dict(attention_type="original_full"),
                        "not a matrix"),
    "llama4_text": ("Llama4ForCausalLM", SMALL | dict(
        num_key_value_heads=2, head_dim=16, attention_chunk_size=8, num_local_experts=2, intermediate_size_mlp=96),
        ""),
    "doge": ("DogeForCausalLM", SMALL | dict(num_key_value_heads=2), "not matrices"),
}


def logits_of(model, cache):
    """Of a padded batch, then of tokens one by one."""
    ids = torch.randint(3, VOCABULARY, (2, 13), generator=torch.Generator().manual_seed(4))
    tokens = torch.ones_like(ids)
    tokens[0, :3] = 0
    given = dict(input_ids=ids, attention_mask=tokens)
    if model.config.is_encoder_decoder: given |= dict(decoder_input_ids=ids[:, :5])
    with torch.no_grad():
        logits = model(**given).logits
        found = [logits if model.config.is_encoder_decoder else logits[tokens.bool()]]
        if not type(model).__name__.endswith("MaskedLM"):
            found.append(torch.stack(model.generate(
                ids, attention_mask=tokens, max_new_tokens=4, min_new_tokens=4, do_sample=False, num_beams=1,
                cache_implementation=cache, output_logits=True, return_dict_in_generate=True, disable_compile=True,
                pad_token_id=0, eos_token_id=None).logits))
    return found


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", CLASSES)
def test_model_classes(name, cache):
    kind, sizes, refused = CLASSES[name]
    if not hasattr(transformers, kind): pytest.skip(f"this transformers has no {kind}")
    if cache and (refused or kind.endswith("MaskedLM")): pytest.skip("it has no cache, or is refused before it has one")
    torch.manual_seed(3)
    kind = getattr(transformers, kind)
    model = kind._from_config(kind.config_class(**sizes), attn_implementation="eager").eval()
    wanted = logits_of(model, cache)  # the way out
    state = model.state_dict()
    model = kind._from_config(kind.config_class(**sizes), attn_implementation=NAME).eval()
    model.load_state_dict(state)
    if refused:
        with pytest.raises(NotImplementedError, match=refused): logits_of(model, cache)
        return
    for found, x in zip(logits_of(model, cache), wanted, strict=True):
        torch.testing.assert_close(found, x, rtol=1e-4, atol=1e-5)


OWN_NAMES = {"Falcon": dict(hidden_size=64, num_hidden_layers=1, num_attention_heads=4, vocab_size=VOCABULARY),
             "GPTJ": dict(n_embd=64, n_layer=1, n_head=4, rotary_dim=8, vocab_size=VOCABULARY),
             "GPTNeo": dict(hidden_size=64, num_layers=2, num_heads=4, vocab_size=VOCABULARY,
                            attention_types=[[["global", "local"], 1]])}


@pytest.mark.parametrize("name", OWN_NAMES)
def test_models_with_names_of_their_own(name, monkeypatch):
    """What docs/9-python.md says of them; where transformers changes it, the document is wrong."""
    kind = getattr(transformers, f"{name}ForCausalLM")
    def made(word): return kind._from_config(kind.config_class(**OWN_NAMES[name]), attn_implementation=word).eval()
    with pytest.raises(KeyError, match=NAME): made(NAME)
    ids = torch.arange(3, 13)[None]
    with torch.no_grad(): assert made("eager")(ids).logits.isfinite().all()
    if name != "Falcon": return
    model = made("sdpa")
    with torch.no_grad(): model(ids)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention",
                        froghopper.torch.scaled_dot_product_attention)
    with pytest.raises(NotImplementedError, match="attn_mask must be None"): model(ids)
