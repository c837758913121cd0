# SPDX-License-Identifier: Apache-2.0
"""What a call of froghopper.jax computes, except for shapes: everything that is known when a program is traced."""
# JAX has few types, and mypy runs where it is not installed, too.
# mypy: disable-error-code="import-not-found,no-any-return,no-untyped-call"
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from froghopper import _c
from froghopper._call import Packed, Paged, Types, Window, describe, describe_paged
from froghopper._quantise import blocks_of, quantising

# What the dimensions of each array are: examples, rows, keys, heads, columns, ends, used lengths, pages. A head of q is
# (h g), the g-th of those that share the key head h. First of sequences of equal length, then packed.
Q_HEADS = "(h g)"
DIMS = {
    "q": ("b s (h g) d", "s (h g) d"), "k": ("b t h d", "t h d"), "v": ("b t h e", "t h e"),
    "o": ("b s (h g) e", "s (h g) e"), "lse": ("b (h g) s", "(h g) s"), "sink": ("(h g)", "(h g)"),
    "cu_seqlens_q": ("", "m"), "cu_seqlens_kv": ("", "m"), "seqused_q": ("b", "n"), "seqused_kv": ("b", "n"),
    "alibi_slopes": ("b (h g)", "n (h g)"), "max_logit": ("b (h g)", "n (h g)"),
    "gate": ("b s (h g) e", "s (h g) e"), "scale_q": ("b c (h g)", "n c (h g)"), "scale_k": ("b u h", "n u h"),
    "scale_v": ("b u h", "n u h"), "mean_k": ("b h d", "n h d"), "mean_v": ("b h e", "n h e"),
    "block_table": ("b w", "n w"),
}
POOLS = {"k": "z p h d", "v": "z p h e"}  # pages of a pool, which any sequence may have
COPY, GRADIENT = "quantised_", "grad_"  # before the name of what has the same dimensions
OF_TOKENS = ("b t h", "t h")  # scales of each row of k and v
# Also pages, lengths of packed sequences, blocks of rows of q, k and v, and what _xla_append.py has: they stay whole.
ROWS_AND_COLUMNS = "stdemncuzpwxyj"
LENGTHS = ("cu_seqlens_q", "cu_seqlens_kv", "seqused_q", "seqused_kv")
WHOLE_NUMBERS = (*LENGTHS, "block_table")  # they have no derivatives
SCALES = ("scale_q", "scale_k", "scale_v", "mean_k", "mean_v")


class Options(NamedTuple):
    """Of describe, except for what shapes and arrays say. max_seqlen_*: None for as many as there are rows."""
    causal: bool = False
    window: Window | None = None
    softcap: float | None = 0.0
    scale: float | None = None
    align: str = "bottom_right"
    deterministic: bool = False
    max_seqlen_q: int | None = None
    max_seqlen_kv: int | None = None
    attention_chunk: int = 0
    invariant: bool = False
    max_sms: int = 0
    types: Types | None = None
    names: str = ""  # of fields, for messages of a program that runs when nobody is there to say them otherwise


class Copies(NamedTuple):
    """What a quantise problem has besides max_sms."""
    dtype: str
    scale_rows: int
    rotate: bool
    rotate_seed: int
    smooth: bool


def letters_in(dims: str) -> list[str]:
    """The dimensions that are named, with those of query heads as one."""
    return [Q_HEADS if word == "hg" else word for word in dims.replace(Q_HEADS, "hg").split()]


def grouped(heads_q: int, heads_kv: int) -> tuple[int, int]:
    """Key heads, and query heads of each; 1 where they do not divide, which the library refuses later."""
    return heads_kv, heads_q // heads_kv if heads_kv and heads_q % heads_kv == 0 else 1


class Kind(NamedTuple):
    """names and results: fields of fh_tensors, of the arrays that are given and of those that come out, in order.
    copies: of a quantise problem; its scales are [batch, blocks, heads] and its means [batch, heads, dim] here."""
    options: Options
    names: tuple[str, ...]
    results: tuple[str, ...]
    copies: Copies | None = None

    @property
    def backward(self) -> bool: return "grad_o" in self.names

    @property
    def merges(self) -> bool:
        """The results are what o and lse, which are given, become."""
        return "o" in self.names and not self.backward

    @property
    def adds(self) -> bool:
        """The results are what gradients in float32, which are given, become."""
        return "grad_q" in self.names

    @property
    def in_place(self) -> tuple[str, ...]: return self.results if self.merges or self.adds else ()

    @property
    def lead(self) -> str:
        """The array that says how all are spread over devices."""
        return "q"

    @property
    def no_derivative(self) -> str:
        """Why another derivative is refused."""
        if self.merges:
            return ("accumulate is given and a derivative is asked for; what is merged has none. Merge (o, lse) of "
                    "attention(..., return_lse=True) yourself.")
        if self.copies:
            return ("q, k and v must be constants to derivatives where they are quantised, but a derivative is asked "
                    "for. Give jax.lax.stop_gradient of them.")
        return ("a derivative of the gradients of froghopper.jax.attention is asked for; it has first derivatives "
                "alone, in reverse mode. Use plain jax.numpy for the inner function.")

    @property
    def packed(self) -> bool: return "cu_seqlens_q" in self.names

    @property
    def paged(self) -> bool: return "block_table" in self.names

    def dims_of(self, name: str) -> list[str]:
        """Names of the dimensions of an array; a gradient has those of what it is the gradient of, and a copy too."""
        dims, types = DIMS[name.removeprefix(GRADIENT).removeprefix(COPY)], self.options.types
        if self.paged and name in POOLS: return POOLS[name].split()
        if types and types.scale_tokens and name in ("scale_k", "scale_v"):
            if self.paged: return POOLS["k"].split()[:-1]
            dims = OF_TOKENS
        elif types and types.scale_v_columns and name == "scale_v": dims = DIMS["mean_v"]
        return letters_in(dims[self.packed])

    def heads(self, arrays: Sequence[Any]) -> tuple[int, int]:
        """Key heads, and query heads of each; 1 where they do not divide, which the library refuses later."""
        return grouped(*(arrays[self.names.index(name)].shape[-2] for name in "qk"))

    def folded_into(self, batched: dict[str, bool]) -> str:
        """The dimension that examples of jax.vmap become part of, or none where they are computed one by one. batched:
        which arrays each example has of its own."""
        as_heads = self.packed or batched.get("sink", False) or "grad_sink" in self.results
        own_lengths = as_heads and (self.paged or any(batched.get(name, False) for name in LENGTHS))
        own_pool = any(is_batched and "z" in self.dims_of(name) for name, is_batched in batched.items())
        return "" if own_lengths or own_pool else "h" if as_heads else "b"

    def problem(self, arrays: Sequence[Any], looked: bool = False) -> _c.Problem:
        """arrays: anything with shapes and types. Raises what describe raises. looked: at whether axes are exchanged,
        when the arrays were as the user gave them."""
        of = dict(zip(self.names, arrays))
        q, k, v = (of[name].shape for name in "qkv")
        options = self.options._asdict()
        longest_q, longest_kv, _ = (options.pop(name) for name in ("max_seqlen_q", "max_seqlen_kv", "names"))
        options |= dict(seqused="seqused_q" in of or "seqused_kv" in of, sink="sink" in of, gate="gate" in of,
                        alibi="alibi_slopes" in of)
        if self.paged:
            return describe_paged(q, k, v, of["q"].dtype.name, self.lengths_in_pages(of), **options)
        packed = Packed(of["cu_seqlens_q"].shape[0] - 1, q[0] if longest_q is None else longest_q,
                        k[0] if longest_kv is None else longest_kv) if self.packed else None
        if self.copies:
            return quantising((q, k, v), of["q"].dtype.name, packed=packed, seqused=options["seqused"],
                              max_sms=self.options.max_sms, **self.copies._asdict()).problem
        return describe(q, k, v, of["q"].dtype.name, backward=self.backward, packed=packed,
                        accumulate=self.merges or self.adds, max_logit="max_logit" in self.results,
                        layout_is_known=looked, **options)

    def lengths_in_pages(self, of: dict[str, Any]) -> Paged:
        """Of arrays of these names, where k and v are pools: None for a bound is all rows that there are."""
        q, table = of["q"].shape, of["block_table"].shape
        most_q, most_kv = self.options.max_seqlen_q, self.options.max_seqlen_kv
        return Paged(table[0], (q[0] if self.packed else q[1]) if most_q is None else most_q,
                     table[1] * of["k"].shape[1] if most_kv is None else most_kv, self.packed)

    def result_types(self, arrays: Sequence[Any]) -> list[tuple[tuple[int, ...], Any]]:
        """Shape and type of each result."""
        of = dict(zip(self.names, arrays))
        if self.copies: return self.copy_types(of, self.problem(arrays))
        q, v = of["q"], of["v"]
        batch = of["cu_seqlens_q"].shape[0] - 1 if self.packed else q.shape[0]
        shapes = {"o": (*q.shape[:-1], v.shape[-1]), "max_logit": (batch, q.shape[-2]),
                  "lse": (q.shape[1], q.shape[0]) if self.packed else (q.shape[0], q.shape[2], q.shape[1])}
        types = self.options.types
        of_o = jnp.dtype("float32" if self.merges else types.o if types else q.dtype)
        return [(shapes[name], of_o if name == "o" else jnp.dtype("float32")) if name in shapes
                else (of[name.removeprefix("grad_")].shape,
                      jnp.dtype("float32") if self.adds else of[name.removeprefix("grad_")].dtype)
                for name in self.results]

    def copy_types(self, of: dict[str, Any], problem: _c.Problem) -> list[tuple[tuple[int, ...], Any]]:
        """Those of a quantise problem."""
        def blocks(name: str) -> int:
            rows = problem.seq_q if name == "q" else problem.seq_kv
            return blocks_of(rows, problem.scale_rows) if problem.scale_rows else 1

        def result(name: str) -> tuple[tuple[int, ...], Any]:
            x = of[name[-1]]
            if name.startswith(COPY): return x.shape, jnp.dtype(self.copies.dtype if self.copies else x.dtype)
            if name.startswith("mean_"): return (problem.batch, *x.shape[-2:]), jnp.dtype("float32")
            return (problem.batch, blocks(name[-1]), x.shape[-2]), jnp.dtype("float32")
        return list(map(result, self.results))
