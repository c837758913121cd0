# SPDX-License-Identifier: Apache-2.0
"""What bench/python_host.py training measures: a Llama that learns on each attention in turns."""
import copy
import statistics
import time
import types

import torch
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM
from transformers import masking_utils as masks

import froghopper.transformers

from . import gradients
from .command import append, device_name

WARM_UP = 5  # steps that are not timed


def run(a):
    froghopper.transformers.register()
    if "fa3" in a.attention.split(","): register_fa3(a.fa3bwd)
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=2048, intermediate_size=5504, num_hidden_layers=a.layers, num_attention_heads=16,
                         num_key_value_heads=4, vocab_size=VOCABULARY, max_position_embeddings=a.tokens)
    first = LlamaForCausalLM(config).to(a.device, torch.bfloat16)
    learners = {name: Learner(copy.deepcopy(first), name) for name in a.attention.split(",")}
    draw = torch.Generator(a.device).manual_seed(1)
    for _ in range(a.steps):
        tokens = drawn(draw, a.batch, a.tokens)
        for learner in learners.values(): learner.step(tokens)
    names = list(learners)
    for name, learner in learners.items():
        apart = {other: max(abs(x - y) for x, y in zip(learner.losses, learners[other].losses))
                 for other in names if other != name}
        print(f"{name:>10}: loss {learner.losses[0]:.4f} -> {learner.losses[-1]:.4f} in {a.steps} steps, "
              f"{statistics.median(learner.ms[WARM_UP:]):.2f} ms a step; largest difference of a loss to "
              + ", ".join(f"{other} {x:.1e}" for other, x in apart.items()), flush=True)
        append(a.json, dict(attention=name, batch=a.batch, tokens=a.tokens, layers=a.layers, losses=learner.losses,
                            ms=statistics.median(learner.ms[WARM_UP:]), apart=apart, torch=torch.__version__,
                            gpu=device_name(a.device)))


VOCABULARY, NOISE = 4096, 0.05


def drawn(draw, batch, count):
    """[batch, count] tokens: mostly a sum of two before, sometimes any."""
    tokens = torch.randint(VOCABULARY, (batch, count), generator=draw, device=draw.device)
    any_token = torch.rand(batch, count, generator=draw, device=draw.device) < NOISE
    small = tokens % 64
    for at in range(8, count):
        follows = (small[:, at - 1] + small[:, at - 8]) % 64
        small[:, at] = torch.where(any_token[:, at], small[:, at], follows)
    return small


def register_fa3(library):
    """FlashAttention-3 as transformers' attention "fa3", for causal models without padding. A layer of the model keeps
    its buffers from step to step."""
    offer, held = gradients.fa3(library), {}

    def layer_of(number, q, k, v):
        if number not in held:
            (batch, tokens, heads, dim), heads_kv = q.shape, k.shape[2]
            problem = types.SimpleNamespace(batch=batch, seq_q=tokens, seq_kv=tokens, heads_q=heads, heads_kv=heads_kv,
                                            dim_qk=dim, dim_v=dim, dtype=2, scale=dim ** -0.5, is_causal=lambda: True)
            cell = types.SimpleNamespace(problem=problem, q=q, k=k, v=v, o=torch.empty_like(q),
                                         cu_seqlens=None, is_dense=lambda: True, scale=lambda: problem.scale)
            [layer] = (layer for (impl, _), layer in offer(cell).items() if impl == "fa3")
            held[number] = cell, layer
        cell, layer = held[number]
        cell.q, cell.k, cell.v = q, k, v
        return cell, layer

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(context, number, q, k, v):
            context.number, context.qkv = number, (q, k, v)
            return layer_of(number, q, k, v)[1].forward().detach()  # the buffer has no place in autograd's graph

        @staticmethod
        def backward(context, grad_o):
            cell, layer = layer_of(context.number, *context.qkv)
            cell.grad_o = grad_o.contiguous()
            return None, *layer.backward()

    def attention_forward(module, query, key, value, mask, **_):
        q, k, v = (t.transpose(1, 2).contiguous() for t in (query, key, value))
        return Attention.apply(module.layer_idx, q, k, v), None

    AttentionInterface.register("fa3", attention_forward)
    masks.AttentionMaskInterface.register("fa3", lambda **_: None)


class Learner:
    def __init__(self, model, attention):
        model.set_attn_implementation(attention)
        self.model, self.losses, self.ms = model, [], []
        self.optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=True)

    def step(self, tokens):
        begin = time.perf_counter()
        loss = self.model(tokens, labels=tokens).loss
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        if tokens.is_cuda: torch.cuda.synchronize()
        self.ms.append((time.perf_counter() - begin) * 1000)
