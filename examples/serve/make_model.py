#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a tiny Llama with random weights, which are the same for the same seed: config.json and model.safetensors, as
examples/serve and Hugging Face's transformers read them. It needs nothing but Python.

usage: make_model.py FOLDER [--seed N] [--layers N] [--width N] [--hidden N] [--heads-q N] [--heads-kv N] [--dim N]
                            [--vocabulary N]
"""
import argparse
import array
import json
import math
import pathlib
import random
import struct
import sys


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    for name, default in (("seed", 1), ("layers", 4), ("width", 256), ("hidden", 512), ("heads-q", 8), ("heads-kv", 2),
                          ("dim", 64), ("vocabulary", 512)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def shapes(a):
    """The name and the shape of every tensor, by Hugging Face's names."""
    yield "model.embed_tokens.weight", (a.vocabulary, a.width)
    for layer in range(a.layers):
        name = f"model.layers.{layer}."
        yield name + "input_layernorm.weight", (a.width,)
        yield name + "post_attention_layernorm.weight", (a.width,)
        yield name + "self_attn.q_proj.weight", (a.heads_q * a.dim, a.width)
        yield name + "self_attn.k_proj.weight", (a.heads_kv * a.dim, a.width)
        yield name + "self_attn.v_proj.weight", (a.heads_kv * a.dim, a.width)
        yield name + "self_attn.o_proj.weight", (a.width, a.heads_q * a.dim)
        yield name + "mlp.gate_proj.weight", (a.hidden, a.width)
        yield name + "mlp.up_proj.weight", (a.hidden, a.width)
        yield name + "mlp.down_proj.weight", (a.width, a.hidden)
    yield "model.norm.weight", (a.width,)
    yield "lm_head.weight", (a.vocabulary, a.width)


def numbers(name, shape, draw):
    """Gains of norms about 1; rows of matrices about as long as what they are multiplied with. f32, little endian."""
    middle, spread = (1, 0.2) if len(shape) == 1 else (0, math.sqrt(3 / shape[1]))
    if name == "model.embed_tokens.weight": spread = 1
    values = array.array("f", (middle + spread * (2 * draw() - 1) for _ in range(math.prod(shape))))
    if sys.byteorder == "big": values.byteswap()
    return values.tobytes()


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers are aligned
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values()))


def main():
    a = arguments()
    a.folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(a.seed).random
    write_safetensors(a.folder / "model.safetensors",
                      {name: (shape, numbers(name, shape, draw)) for name, shape in shapes(a)})
    (a.folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": a.vocabulary,
        "hidden_size": a.width, "intermediate_size": a.hidden, "num_hidden_layers": a.layers,
        "num_attention_heads": a.heads_q, "num_key_value_heads": a.heads_kv, "head_dim": a.dim, "hidden_act": "silu",
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "torch_dtype": "float32"}, indent=2) + "\n")


main()
