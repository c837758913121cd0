# SPDX-License-Identifier: Apache-2.0
"""A Llama of transformers on froghopper's attention: one step of training on padded text, then some tokens more.

usage: python3 transformers_llama.py

The model is small and its weights are random, so nothing is downloaded and the CPU will do. On a Hopper GPU it runs
there, in bfloat16. The loss is printed beside that of transformers' own eager attention.
"""
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import froghopper.transformers


def main():
    froghopper.transformers.register()
    hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    device, dtype = ("cuda", torch.bfloat16) if hopper else ("cpu", torch.float32)
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8,
                         num_key_value_heads=2, vocab_size=256)
    model = LlamaForCausalLM(config).to(device, dtype)

    texts = ["Alice was beginning to get very tired", "of sitting by her sister on the bank"]
    rows = [torch.tensor(list(text.encode())) for text in texts]

    def batch(side):
        tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_side=side).to(device)
        return tokens, (tokens != 0).long()
    tokens, mask = batch("right")
    labels = torch.where(mask == 1, tokens, -100)

    losses = {}
    for implementation in ("eager", "froghopper"):
        model.set_attn_implementation(implementation)
        loss = model(tokens, attention_mask=mask, labels=labels).loss
        model.zero_grad()
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        losses[implementation] = loss.item()
        print(f"{implementation:>10}: loss {loss.item():.5f}, norm of all gradients {norm.item():.5f}")
    assert abs(losses["froghopper"] - losses["eager"]) < (2e-2 if hopper else 1e-4)

    steps = torch.optim.AdamW(model.parameters(), 1e-3)
    steps.step()
    after = model(tokens, attention_mask=mask, labels=labels).loss
    print(f"after one step of AdamW: loss {after.item():.5f}")
    assert after < losses["froghopper"]

    tokens, mask = batch("left")  # as generation continues at the right
    more = model.eval().generate(tokens, attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=0)
    print(f"{more.shape[1] - tokens.shape[1]} tokens more for each of {len(texts)} texts: {more[:, -8:].tolist()}")


if __name__ == "__main__": main()
