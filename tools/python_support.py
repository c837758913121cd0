# SPDX-License-Identifier: Apache-2.0
"""Writes docs/python-support.md: what can be asked of the Python package, and where it is computed.

usage: python3 tools/python_support.py LIBRARY      tools/check_current.py runs it

Which function takes an argument is read from its signature in the sources, so no framework is needed here. Where it is
computed is the answer of the library to a problem that asks for it.
"""
import ast
import sys

import tree

sys.dont_write_bytecode = True
sys.path.insert(0, str(tree.ROOT / "python"))
from froghopper import Error
from froghopper._call import Plan
from froghopper._library import Library

HEADER = """# What the Python package computes

Written by `tools/python_support.py` from the signatures and from the library's answers; do not edit.

A column says which arguments a function of the package froghopper takes; the last ones, what the library computes where
they are given. `torch.paged_attention` and `flash_attn_interface.flash_attn_with_kvcache` have no gradients, and
neither have K and V in pages. [support.md](support.md) has every type and head dim, [9-python.md](9-python.md) what is
where.

"""
OF_CACHES = """
## Writing to a cache

New rows of k and v, and q with them: normed, rotated, stored. `torch.norm_rotary` stores nothing and has gradients,
on any device of PyTorch.

"""
# Functions side by side: the file of python/froghopper, the function, how the column is called.
FUNCTIONS = [
    ("_numpy.py", "attention", "attention"),
    ("_numpy.py", "attention_backward", "attention_backward"),
    ("_torch_attention.py", "attention", "torch.attention"),
    ("_torch_paged.py", "paged_attention", "torch.paged_attention"),
    ("_torch_sdpa.py", "scaled_dot_product_attention", "torch.scaled_dot_product_attention"),
    ("jax.py", "attention", "jax.attention"),
    ("flash_attn_interface.py", "flash_attn_func", "flash_attn_interface.flash_attn_func"),
    ("flash_attn_interface.py", "flash_attn_varlen_func", "flash_attn_interface.flash_attn_varlen_func"),
    ("flash_attn_interface.py", "flash_attn_with_kvcache", "flash_attn_interface.flash_attn_with_kvcache"),
]
ONLY_NONE = [("flash_attn_func", "block_table")]  # arguments that are there and refused
WRITERS = [
    ("_numpy_append.py", "append_kv", "append_kv"),
    ("_torch_append.py", "append_kv", "torch.append_kv"),
    ("_jax_append.py", "append_kv", "jax.append_kv"),
    ("_torch_norm_rotary.py", "norm_rotary", "torch.norm_rotary"),
    ("flash_attn_interface.py", "flash_attn_with_kvcache", "flash_attn_interface.flash_attn_with_kvcache"),
    ("_kv_cache.py", "reshape_and_cache_flash", "flash_attn_interface.reshape_and_cache_flash"),
]
# What a user asks for: the arguments of which one is enough, and the words of a problem's line.
PACKED = "varlen tq2000 tkv2000"
ROWS = [
    ("no options", (), ""),
    ("causal", ("causal",), "causal"),
    ("causal, top left", ("align", "is_causal"), "causal topleft"),
    ("sliding window", ("window", "window_size"), "window100,50"),
    ("attention chunk", ("attention_chunk",), "chunk=300"),
    ("softcap", ("softcap",), "softcap20"),
    ("scale of your own", ("scale", "softmax_scale"), "scale0.5"),
    ("ALiBi", ("alibi_slopes",), "alibi"),
    ("sink", ("sink", "s_aux"), "sink"),
    ("output gate", ("gate",), "gate"),
    ("grouped query heads", (), "hkv2"),
    ("packed sequences", ("cu_seqlens_q",), PACKED),
    ("keys in pages of a pool", ("block_table", "page_table"), "seqused page16 pages200"),
    ("used lengths", ("seqused_kv", "seqused_k", "cache_seqlens"), "seqused"),
    ("the largest score", ("return_max_logit",), "maxlogit"),
    ("the log-sum-exp", ("return_lse", "lse", "return_attn_probs", "return_softmax_lse"), ""),
    ("the log-sum-exp as [rows, heads]", ("lse_by_row",), ""),
    ("deterministic", ("deterministic",), "det"),
    ("the same bits in any company", ("invariant",), "invariant"),
    ("added to or merged with what is there", ("accumulate",), "acc"),
    ("results into arrays of yours", ("out",), ""),
    ("fewer SMs", ("max_sms", "sm_margin"), "sms8"),
    ("8-bit k and v", ("scale_k", "k_descale"), "kv=e4m3"),
    ("8-bit q, k and v", ("scale_q", "q_descale"), "e4m3"),
]
ROTARY = "seqused rotary64 rows4096"
WRITES = [
    ("behind the rows that are there", ("seqused_kv", "cache_seqlens"), "seqused"),
    ("to slots", ("slot_mapping",), "slots page16 pages200"),
    ("to pages of a pool", ("block_table", "page_table", "slot_mapping"), "seqused page16 pages200"),
    ("packed sequences", ("cu_seqlens", "cu_seqlens_k_new"), "seqused varlen tq2000"),
    ("used lengths of new rows", ("seqused",), "seqused"),
    ("rotated", ("rotary_cos", "cos"), ROTARY),
    ("rotated, pairs of neighbours", ("rotary_interleaved", "interleaved"), f"{ROTARY} interleaved"),
    ("at positions of your own", ("positions", "rotary_seqlens"), f"{ROTARY} positions"),
    ("q too", ("q",), ROTARY),
    ("RMS norm", ("norm_epsilon", "eps"), f"{ROTARY} norm eps1e-06"),
    ("8-bit cache", ("scale_k", "k_scale"), "seqused kv=e4m3"),
    ("8-bit cache, a scale of each row", ("scale_k",), "seqused kv=e4m3 tokenscales"),
    ("fewer SMs", ("max_sms", "sm_margin"), "seqused sms8"),
]


def signature(file, function):
    """Names of the arguments of a file's function, the last definition counting; None where there is no such file."""
    path = tree.ROOT / "python/froghopper" / file
    if not path.exists(): return None
    found = [node.args for node in ast.parse(path.read_text()).body
             if isinstance(node, ast.FunctionDef) and node.name == function]
    if not found: raise SystemExit(f"{path} has no function {function}, which tools/python_support.py asks for")
    names = {argument.arg for argument in (*found[-1].posonlyargs, *found[-1].args, *found[-1].kwonlyargs)}
    return names - {argument for of, argument in ONLY_NONE if of == function}


def line_of(op, dtype, words):
    if words == "e4m3": dtype, words = words, ""
    heads = "hq4 hkv2" if "hkv2" in words else "hq4 hkv4"
    rows_kv = 0 if "slots" in words else 1024  # slots say where rows are
    return f"{op} {dtype} b2 {heads} sq1024 skv{rows_kv} d64 {words.replace('hkv2', '')}".strip()


def computed(library, target, dtypes, words, ops=(("fwd", "forward"), ("bwd", "backward"))):
    """The names of ops, or "no": what the library plans for all these types."""
    done = []
    if words == "kv=e4m3": dtypes = [dtype for dtype in dtypes if dtype != "f32"]
    for op, name in ops:
        try:
            for dtype in dtypes: Plan(library.problem(line_of(op, dtype, words)), target, library)
            done.append(name)
        except Error: pass
    return ", ".join(done) or "no"


def main(path):
    library = Library(path)
    print(HEADER + table(library, FUNCTIONS, ROWS))
    print(OF_CACHES + table(library, WRITERS, WRITES, (("append", "yes"),)))


def table(library, functions, rows, *ops):
    columns = [(name, arguments) for file, function, name in functions if (arguments := signature(file, function))]
    titles = ["", *(f"`{name}`" for name, _ in columns), "CPU: fp32, fp16, bf16", "Hopper: fp16, bf16"]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for what, names, words in rows:
        takes = ["yes" if not names or arguments & set(names) else "" for _, arguments in columns]
        cpu, hopper = (computed(library, target, dtypes, words, *ops)
                       for target, dtypes in (("cpu", ("f32", "f16", "bf16")), ("h200", ("f16", "bf16"))))
        lines.append(f"| {' | '.join((what, *takes, cpu, hopper))} |".replace("|  |", "| |").replace("|  |", "| |"))
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) != 2: sys.exit(__doc__)
    main(sys.argv[1])
