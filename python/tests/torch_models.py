# SPDX-License-Identifier: Apache-2.0
"""Small random models of transformers, and whether two attentions give the same text."""
import torch
import transformers

SIZES = dict(vocab_size=97, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128)
GROUPED = SIZES | dict(num_key_value_heads=1, head_dim=64, max_position_embeddings=256, pad_token_id=0)
MODELS = {
    "llama": lambda: transformers.LlamaConfig(**GROUPED),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=97, n_embd=128, n_layer=2, n_head=2, n_positions=256,
                                            bos_token_id=0, eos_token_id=0, pad_token_id=0, attn_pdrop=0.0),
    "gemma2": lambda: transformers.Gemma2Config(**GROUPED, sliding_window=16, query_pre_attn_scalar=64),
    "mistral": lambda: transformers.MistralConfig(**GROUPED, sliding_window=16),
    "qwen3": lambda: transformers.Qwen3Config(**GROUPED),
}
STEPS, PROMPT = 24, 9


def model_of(name, attention, dtype, device):
    """The same numbers for every attention. Weights are large enough for logits that differ."""
    torch.manual_seed(1)
    config = MODELS[name]()
    config.initializer_range = 0.1
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).to(device, dtype)
    return model.eval()


def text_of(model, cache):
    """(tokens [batch, steps], logits [steps, batch, words]) that a prompt goes on with."""
    prompt = torch.randint(1, 97, (2, PROMPT), generator=torch.Generator().manual_seed(2)).to(model.device)
    found = model.generate(prompt, attention_mask=torch.ones_like(prompt), cache_implementation=cache, do_sample=False,
                           max_new_tokens=STEPS, min_new_tokens=STEPS, return_dict_in_generate=True, output_logits=True)
    return found.sequences[:, PROMPT:], torch.stack(found.logits).float()


def check_text(found, wanted, bound):
    """Token by token. bound: how far logits may be apart; where the two best ones are closer, either may be taken, and
    what comes after it is another text."""
    for row in range(wanted[0].shape[0]):
        for step in range(STEPS):
            mine, right = found[1][step, row], wanted[1][step, row]
            assert (mine - right)[right.isfinite()].abs().max() < bound, f"row {row}, step {step}"
            if found[0][row, step] == wanted[0][row, step]: continue
            best = right.topk(2).values
            assert best[0] - best[1] < 2 * bound, f"row {row}, step {step}"
            break
