# SPDX-License-Identifier: Apache-2.0
"""What bench/python_host.py steps measures: whole steps of models of transformers."""
import statistics
import sys
import time

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import (Gemma2Config, Gemma2ForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM,
                          ViTConfig, ViTForImageClassification)

import froghopper.transformers

from .command import append, commit_here, device_name, now

ATTENTIONS = ("froghopper", "sdpa")


def run(a):
    if a.only and a.only not in MODELS: sys.exit(f"--only is {a.only}; the models are {'; '.join(MODELS)}")
    froghopper.transformers.register()
    wanted = {name: make for name, make in MODELS.items() if a.only in ("", name)}
    times = {name: of_models(make, a.device, lambda steps: in_turns(steps, a.rounds, a.device))
             for name, make in wanted.items()}
    # Last, because launches stay slower in a process that has once been profiled: a step of GPT-2 took 46 instead of
    # 22 ms then.
    for name, make in wanted.items():
        kernels = of_models(make, a.device, lambda steps: {attention: kernels_ms(step) if a.device != "cpu" else 0.0
                                                           for attention, step in steps.items()})
        figures = {attention: dict(ms=round(statistics.median(times[name][attention]), 3),
                                   kernels=round(kernels[attention], 3)) for attention in ATTENTIONS}
        ratio = figures["sdpa"]["ms"] / figures["froghopper"]["ms"]
        print(f"{name:28}" + "".join(f"  {attention} {f['ms']:8.2f} ms, kernels {f['kernels']:8.2f}"
                                     for attention, f in figures.items()) + f"  sdpa / froghopper {ratio:.3f}",
              flush=True)
        append(a.json, dict(model=name, figures=figures, gpu=device_name(a.device), torch=torch.__version__,
                            commit=a.commit or commit_here(), date=now()))


def of_models(make, device, measure):
    """What measure finds of the model's steps, one for each attention; then their memory is given back."""
    found = measure({attention: make(attention, device) for attention in ATTENTIONS})
    if device != "cpu": torch.cuda.empty_cache()
    return found


def llama(layers=8):
    return LlamaConfig(hidden_size=768, intermediate_size=2048, num_hidden_layers=layers, num_attention_heads=12,
                       num_key_value_heads=4, vocab_size=4096, max_position_embeddings=2048)


def training(make_model, batch, tokens):
    """A step that learns to tell the next token."""
    def made(attention, device):
        torch.manual_seed(0)
        model = make_model().to(device, torch.bfloat16)
        model.set_attn_implementation(attention)
        ids = torch.randint(0, 4096, (batch, tokens), device=device)

        def step():
            model.zero_grad()
            model(ids, labels=ids, use_cache=False).loss.backward()
        return step
    return made


def images(attention, device):
    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig()).to(device, torch.bfloat16)
    model.set_attn_implementation(attention)
    pixels = torch.randn(64, 3, 224, 224, device=device, dtype=torch.bfloat16)
    labels = torch.zeros(64, dtype=torch.long, device=device)

    def step():
        model.zero_grad()
        model(pixels, labels=labels).loss.backward()
    return step


def generation(attention, device):
    torch.manual_seed(0)
    model = LlamaForCausalLM(llama()).to(device, torch.bfloat16).eval()
    model.set_attn_implementation(attention)
    ids = torch.randint(0, 4096, (8, 512), device=device)
    all_of_them = torch.ones_like(ids)  # else tokens that are the one for padding are taken for padding
    return lambda: model.generate(ids, attention_mask=all_of_them, max_new_tokens=32, min_new_tokens=32,
                                  do_sample=False, pad_token_id=0)


GPT2 = dict(vocab_size=4096, n_positions=1024, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
GEMMA2 = dict(hidden_size=1024, intermediate_size=4096, num_hidden_layers=8, num_attention_heads=8,
              num_key_value_heads=4, head_dim=128, vocab_size=4096, sliding_window=1024)
MODELS = {
    "Llama, 8 x 2048": training(lambda: LlamaForCausalLM(llama()), 8, 2048),
    "Llama, 2 x 512": training(lambda: LlamaForCausalLM(llama()), 2, 512),
    "GPT-2, 8 x 1024": training(lambda: GPT2LMHeadModel(GPT2Config(**GPT2)), 8, 1024),
    "Gemma 2, 4 x 2048": training(lambda: Gemma2ForCausalLM(Gemma2Config(**GEMMA2)), 4, 2048),
    "ViT, 64 images": images,
    "Llama generates 8 x 32 tokens": generation,
}


def in_turns(steps, rounds, device):
    """Milliseconds of every step."""
    found = {name: [] for name in steps}
    for at in range(rounds + 3):
        for name, step in steps.items():
            if device != "cpu": torch.cuda.synchronize()
            begin = time.perf_counter()
            step()
            if device != "cpu": torch.cuda.synchronize()
            if at >= 3: found[name].append((time.perf_counter() - begin) * 1000)
    return found


def kernels_ms(step):
    """Of all kernels of one step."""
    step()  # what a first step loads and compiles
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in seen.key_averages()) / 1000
