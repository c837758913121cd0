# SPDX-License-Identifier: Apache-2.0
"""What bench/python_host.py calls measures: one small call of attention by every entrance that Python has."""
import collections
import time

import torch

import froghopper
from froghopper import _torch_native as native
from froghopper import flash_attn_interface, transformers
from froghopper.torch import attention, scaled_dot_product_attention

from .command import append, commit_here, now, processor

ROWS, HEADS, DIM = 8, 4, 64
AIMS = {"without gradients": 25, "recording": 45, "with the backward pass": 170}  # microseconds


def run(a):
    torch.set_num_threads(1)
    native.load()
    rows = {(framework, name, kind): call for framework, group in entrances(a.device).items()
            for (name, kind), call in group.items()}
    times = in_turns(rows, a.rounds, a.calls, a.device)
    by_entrance = collections.defaultdict(dict)
    for (framework, name, kind), us in times.items(): by_entrance[framework, name][kind] = round(us, 1)
    for (framework, name), us in by_entrance.items():
        print(f"{framework:8} {name:58}" + "".join(f"  {value:7.1f} us {kind}" for kind, value in us.items()))
    about = dict(device=device_name(a.device), host=processor(), torch=torch.__version__,
                 commit=a.commit or commit_here(), native=native.why_not == "", date=now())
    append(a.json, *(dict(framework=framework, entrance=name, us=us) | about
                     for (framework, name), us in by_entrance.items()))
    missed = [f"{name} {kind} {us:.0f}" for (framework, name, kind), us in times.items()
              if framework == "PyTorch" and us > AIMS[kind]]
    print(f"torch {torch.__version__}, {device_name(a.device)}, native operators: {native.why_not or 'used'}; aims of "
          f"{list(AIMS.values())} us {'missed by ' + ', '.join(missed) if missed else 'kept'}")


class Layer(torch.nn.Module):
    """What transformers hands to an attention function."""
    is_causal = True


def entrances(device):
    """framework -> (entrance, what is done) -> a call."""
    return {"PyTorch": of_torch(device), "NumPy": of_numpy(), "JAX": of_jax()}


def of_torch(device):
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    rows_first = [torch.randn(1, ROWS, HEADS, DIM, device=device, dtype=dtype) for _ in range(4)]
    heads_first = [x.transpose(1, 2) for x in rows_first]
    layer = Layer()
    sdpa = torch.nn.functional.scaled_dot_product_attention
    calls = {
        "froghopper.torch.attention": (rows_first, rows_first[3], lambda q, k, v: attention(q, k, v, causal=True)),
        "froghopper.torch.scaled_dot_product_attention": (
            heads_first, heads_first[3], lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True)),
        "froghopper.flash_attn_interface.flash_attn_func": (
            rows_first, rows_first[3], lambda q, k, v: flash_attn_interface.flash_attn_func(q, k, v, causal=True)),
        "froghopper.transformers.attention_forward": (
            heads_first, rows_first[3], lambda q, k, v: transformers.attention_forward(layer, q, k, v, None)[0]),
        "PyTorch's own scaled_dot_product_attention": (
            heads_first, heads_first[3], lambda q, k, v: sdpa(q, k, v, is_causal=True)),
    }
    made = {}
    for name, (tensors, grad, call) in calls.items():
        leaves = [x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for x in tensors[:3]]
        made[name, "without gradients"] = without_gradients(call, tensors[:3])
        made[name, "recording"] = lambda call=call, leaves=leaves: call(*leaves)
        made[name, "with the backward pass"] = (
            lambda call=call, leaves=leaves, grad=grad: torch.autograd.grad(call(*leaves), leaves, grad))
    return made


def without_gradients(call, tensors):
    def made():
        with torch.no_grad(): return call(*tensors)
    return made


def of_numpy():
    import numpy as np
    q, k, v = (np.random.default_rng(seed).standard_normal((1, ROWS, HEADS, DIM), np.float32) for seed in range(3))
    hidden = np.triu(np.full((ROWS, ROWS), -np.inf, np.float32), 1)

    def plain():
        """What one would write in NumPy."""
        scores = np.einsum("bqhd,bkhd->bhqk", q, k) * DIM ** -0.5 + hidden
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v)
    return {("froghopper.attention", "a call"): lambda: froghopper.attention(q, k, v, causal=True),
            ("the formula in NumPy", "a call"): plain}


def of_jax():
    try:
        import jax
        from froghopper.jax import attention as of_froghopper
        q, k, v = (jax.random.normal(jax.random.key(seed), (1, ROWS, HEADS, DIM)) for seed in range(3))
        if jax.default_backend() != "cpu": q, k, v = (x.astype("bfloat16") for x in (q, k, v))
        functions = {"froghopper.jax.attention": lambda q, k, v: of_froghopper(q, k, v, causal=True),
                     "jax.nn.dot_product_attention": lambda q, k, v: jax.nn.dot_product_attention(
                         q, k, v, is_causal=True)}
        functions["froghopper.jax.attention"](q, k, v)
    except ImportError as missing:
        print(f"JAX is left out: {missing}")
        return {}
    made = {}
    for name, function in functions.items():
        made[name, "a call"] = lambda function=function: jax.block_until_ready(function(q, k, v))
        made[name, "under jit"] = lambda jitted=jax.jit(function): jax.block_until_ready(jitted(q, k, v))
    return made


def in_turns(rows, rounds, count, device):
    """Microseconds a call of each row, the fastest of the rounds."""
    best = dict.fromkeys(rows, float("inf"))
    for _ in range(rounds):
        for name, call in rows.items():
            for _ in range(3): call()
            if device != "cpu": torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(count): call()
            best[name] = min(best[name], (time.perf_counter() - begin) / count * 1e6)
            if device != "cpu": torch.cuda.synchronize()
    return best


def device_name(device): return "CPU" if device == "cpu" else torch.cuda.get_device_name()
