#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small transformer learns to copy with froghopper.torch: grouped heads, a causal window, attention sinks that are
trained, bf16 on a GPU. A second on a CPU.

usage: python3 examples/python/torch_training.py [STEPS]

It reads 16 random symbols and then has to say them again, which only attention can do: the loss of the second half
falls from log(16) = 2.8 nats a symbol to nearly nothing.
"""
import sys

import torch
from torch import nn

from froghopper.torch import attention

SYMBOLS, LENGTH, WIDTH, HEADS, HEADS_KV, DIM = 16, 16, 64, 4, 2, 16


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * HEADS_KV) * DIM, bias=False)
        self.out = nn.Linear(HEADS * DIM, WIDTH, bias=False)
        self.sink = nn.Parameter(torch.zeros(HEADS))  # float32, whatever the type of the rest

    def forward(self, x):
        heads = self.qkv(x).unflatten(-1, (-1, DIM))  # [batch, seq, heads of q, k and v, dim]
        q, k, v = heads.split([HEADS, HEADS_KV, HEADS_KV], dim=2)  # views: attention reads them where they are
        return self.out(attention(q, k, v, causal=True, window=(2 * LENGTH, None), sink=self.sink).flatten(-2))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.mlp = Attention(), nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
                                                              nn.Linear(4 * WIDTH, WIDTH))
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.symbols, self.places = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(2 * LENGTH, WIDTH)
        self.layers, self.head = nn.Sequential(Layer(), Layer()), nn.Linear(WIDTH, SYMBOLS)

    def forward(self, symbols):
        places = self.places(torch.arange(symbols.shape[1], device=symbols.device))
        return self.head(self.layers(self.symbols(symbols) + places))


def train(steps=60, seed=0):
    """The losses of all steps, of the half that can be known."""
    torch.manual_seed(seed)
    device = "cuda" if torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0) else "cpu"
    model, losses = Model().to(device), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        symbols = torch.randint(SYMBOLS, (32, LENGTH), device=device).repeat(1, 2)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = model(symbols[:, :-1])[:, LENGTH - 1:]
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), symbols[:, LENGTH:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    losses = train(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
    for step in range(0, len(losses), 10): print(f"step {step:4}   loss {losses[step]:.3f}")
    print(f"the last     loss {losses[-1]:.3f}")
