# SPDX-License-Identifier: Apache-2.0
"""A small transformer in JAX learns a text, character by character; its attention and gradients are froghopper's.

usage: python3 examples/python/jax_training.py [TEXT_FILE]   200 steps; prints the loss, the mean of -log(probability
                                                             of the character that comes)
       python3 examples/python/jax_training.py --check       20 steps, and the same with attention in jax.numpy: the
                                                             loss falls, and both have the same losses

It needs jax and froghopper. On a Hopper GPU it computes in bfloat16 there, else in float32 on the CPU.
"""
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

from froghopper.jax import attention

TEXT = pathlib.Path(__file__).resolve().parents[2] / "data/alice.txt"
BATCH, LENGTH, LAYERS, HEADS, KEY_HEADS, DIM = 8, 64, 2, 4, 2, 16
WIDTH = HEADS * DIM
RATE, DECAY_OF_MEAN, DECAY_OF_SQUARE = 3e-3, 0.9, 0.99


def by_jax_numpy(q, k, v, sink):
    """The same as froghopper's attention with causal=True."""
    k, v = (jnp.repeat(x, HEADS // KEY_HEADS, axis=2) for x in (k, v))
    scores = jnp.einsum("bshd,bthd->bhst", q, k) / DIM ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    sinks = jnp.broadcast_to(sink[None, :, None, None], (*scores.shape[:3], 1))
    weights = jax.nn.softmax(jnp.concatenate([scores, sinks], axis=-1), axis=-1)[..., :-1]
    return jnp.einsum("bhst,bthd->bshd", weights, v)


def by_froghopper(q, k, v, sink):
    on_gpu = jax.default_backend() == "gpu"
    q, k, v = (x.astype(jnp.bfloat16) if on_gpu else x for x in (q, k, v))
    return attention(q, k, v, sink=sink, causal=True).astype(jnp.float32)


def parameters(letters, key):
    """A dict of arrays and a list of such dicts, one a layer."""
    keys = iter(jax.random.split(key, 2 + 5 * LAYERS))
    def matrix(rows, columns): return jax.random.normal(next(keys), (rows, columns)) / rows ** 0.5
    layers = [{"q": matrix(WIDTH, WIDTH), "kv": matrix(WIDTH, 2 * KEY_HEADS * DIM), "o": matrix(WIDTH, WIDTH),
               "up": matrix(WIDTH, 2 * WIDTH), "down": matrix(2 * WIDTH, WIDTH), "sink": jnp.zeros(HEADS)}
              for _ in range(LAYERS)]
    return {"letters": matrix(letters, WIDTH) * letters ** 0.5, "places": matrix(LENGTH, WIDTH), "layers": layers}


def normal(x): return x * jax.lax.rsqrt((x ** 2).mean(-1, keepdims=True) + 1e-6)


def loss_of(values, text, attend):
    """text: [batch, LENGTH + 1] numbers of letters."""
    x = values["letters"][text[:, :-1]] + values["places"]
    for layer in values["layers"]:
        y = normal(x)
        q = (y @ layer["q"]).reshape(*y.shape[:2], HEADS, DIM)
        k, v = jnp.split((y @ layer["kv"]).reshape(*y.shape[:2], 2 * KEY_HEADS, DIM), 2, axis=2)
        x = x + attend(q, k, v, layer["sink"]).reshape(y.shape) @ layer["o"]
        x = x + jax.nn.gelu(normal(x) @ layer["up"]) @ layer["down"]
    scores = jax.nn.log_softmax(normal(x) @ values["letters"].T / WIDTH ** 0.5)
    return -jnp.take_along_axis(scores, text[:, 1:, None], axis=-1).mean()


def train(text, letters, steps, attend):
    """The loss of each step. Adam, on windows of the text drawn at random, the same in every run."""
    @jax.jit
    def step(values, means, squares, count, windows):
        loss, grads = jax.value_and_grad(loss_of)(values, windows, attend)
        means = jax.tree.map(lambda m, g: DECAY_OF_MEAN * m + (1 - DECAY_OF_MEAN) * g, means, grads)
        squares = jax.tree.map(lambda s, g: DECAY_OF_SQUARE * s + (1 - DECAY_OF_SQUARE) * g ** 2, squares, grads)
        mean_part, square_part = 1 - DECAY_OF_MEAN ** count, 1 - DECAY_OF_SQUARE ** count
        values = jax.tree.map(lambda x, m, s: x - RATE * (m / mean_part) / (jnp.sqrt(s / square_part) + 1e-8), values,
                              means, squares)
        return loss, values, means, squares

    values = parameters(letters, jax.random.key(0))
    means = squares = jax.tree.map(jnp.zeros_like, values)
    drawn, losses = np.random.default_rng(1), []
    for count in range(1, steps + 1):
        begins = drawn.integers(0, len(text) - LENGTH - 1, BATCH)
        windows = jnp.asarray(np.stack([text[begin:begin + LENGTH + 1] for begin in begins]))
        loss, values, means, squares = step(values, means, squares, float(count), windows)
        losses.append(float(loss))
    return losses


def main(arguments):
    check = arguments == ["--check"]
    characters = pathlib.Path(TEXT if check or not arguments else arguments[0]).read_text(encoding="utf-8")
    letters = sorted(set(characters))
    text = np.asarray([letters.index(x) for x in characters], np.int32)
    if not check:
        losses = train(text, len(letters), 200, by_froghopper)
        for count in range(0, 200, 20):
            print(f"steps {count + 1:3} to {count + 20:3}: {np.mean(losses[count:count + 20]):.4f}")
        return 0
    losses, wanted = (np.asarray(train(text, len(letters), 20, attend)) for attend in (by_froghopper, by_jax_numpy))
    allowed = 1e-3 if jax.default_backend() == "cpu" else 3e-2
    if losses[-5:].mean() > losses[:5].mean() - 0.3: return f"the loss does not fall: {losses}"
    if not np.abs(losses - wanted).max() < allowed: return f"not the losses of jax.numpy: {losses}, {wanted}"
    print(f"the loss falls from {losses[0]:.3f} to {losses[-1]:.3f}; same losses as with jax.numpy, within "
          f"{np.abs(losses - wanted).max():.1e}")
    return 0


if __name__ == "__main__": sys.exit(main(sys.argv[1:]))
