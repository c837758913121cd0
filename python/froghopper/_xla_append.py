# SPDX-License-Identifier: Apache-2.0
"""What a call of froghopper.jax.append_kv computes, except for shapes: beside Kind (_xla_kind.py), to _xla.py alike."""
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from froghopper import _c
from froghopper._append_checks import Given, described, first, sizes_of
from froghopper._xla_kind import Q_HEADS, grouped, letters_in

# The dimensions of arrays whose names and letters _xla_kind.py does not have: positions of tables, their columns, two
# halves of a number. n are sequences that stay whole, as rows of any may lie in any page.
OTHERS = {"rotary_cos": "x y", "rotary_sin": "x y", "norm_q": "d", "norm_k": "d", "cu_seqlens_q": "m",
          "block_table": "n w", "seqused_q": "n", "seqused_kv": "n"}
NEW_ROWS = {"q": f"n s {Q_HEADS} d", "q_out": f"n s {Q_HEADS} d", "k": "n s h d", "v": "n s h e",
            "slot_mapping": "n s j", "positions": "n s j"}
CACHES = {"cache_k": "n t h d", "cache_v": "n t h e", "scale_k": "n t h", "scale_v": "n t h"}
NAMES = (*NEW_ROWS, *CACHES, *OTHERS)
CHANGED = ("cache_k", "cache_v", "scale_k", "scale_v")  # where they are results
OF_LIBRARY = {"k_cache": "cache_k", "v_cache": "cache_v", "cu_seqlens": "cu_seqlens_q", "seqused": "seqused_q"}


def longest_of(new: Any, max_seqlen: int | None) -> Callable[[Any], int]:
    """The most new rows of a packed sequence: ends cannot be read while a program is traced."""
    return lambda _: new.shape[0] if max_seqlen is None else max_seqlen


class AppendOptions(NamedTuple):
    """max_seqlen: None for as many rows as there are. names: as Options has them."""
    max_seqlen: int | None = None
    rotary_interleaved: bool = False
    norm_epsilon: float | None = None
    max_sms: int = 0
    names: str = ""


class Appending(NamedTuple):
    """names and results: fields of fh_tensors. New rows are [batch, seq, heads, dim], packed [total, heads, dim]; slots
    and positions are pairs of int32, as the handlers of src/xla read them."""
    options: AppendOptions
    names: tuple[str, ...]
    results: tuple[str, ...]

    @property
    def packed(self) -> bool: return "cu_seqlens_q" in self.names

    @property
    def paged(self) -> bool: return "block_table" in self.names or "slot_mapping" in self.names

    @property
    def own_scales(self) -> bool: return "scale_k" in self.results or "scale_v" in self.results

    @property
    def in_place(self) -> tuple[str, ...]: return CHANGED

    @property
    def lead(self) -> str: return next(name for name in "qkv" if name in self.names)

    @property
    def no_derivative(self) -> str:
        return ("a derivative of append_kv is asked for; what is written to a cache has none. Give "
                "jax.lax.stop_gradient of every array.")

    def dims_of(self, name: str) -> list[str]:
        if name in CHANGED and not self.own_scales and name.startswith("scale"): return ["h"]
        found = NEW_ROWS.get(name) or CACHES.get(name) or OTHERS[name]
        if self.packed and name in NEW_ROWS: found = found.removeprefix("n ")
        if self.paged and name in CACHES: found = found.replace("n t", "z p")
        if not self.packed and not self.paged: found = found.replace("n", "b")
        return letters_in(found)

    def heads(self, arrays: Sequence[Any]) -> tuple[int, int]:
        """As Kind has it; q by itself has heads of its own."""
        of = dict(zip(self.names, arrays))
        heads_kv = first(of.get("k"), of.get("v"), of.get("q")).shape[-2]
        return grouped(of["q"].shape[-2] if "q" in of else heads_kv, heads_kv)

    def folded_into(self, batched: dict[str, bool]) -> str:
        """As Kind has it: further sequences, where all that examples have of their own goes with a sequence."""
        return "b" if all("b" in self.dims_of(name) for name, its in batched.items() if its) else ""

    def problem(self, arrays: Sequence[Any], looked: bool = False) -> _c.Problem:
        """arrays: anything with shapes and types."""
        of = dict(zip(self.names, arrays))
        given = Given(**{name: of.get(OF_LIBRARY.get(name, name)) for name in Given._fields})
        new, cache = first(of.get("k"), of.get("v"), of.get("q")), of.get("cache_k", of.get("cache_v"))
        options = self.options
        sizes = sizes_of(given, new, cache, options.max_seqlen, longest_of(new, options.max_seqlen))
        return described(of.get("q"), of.get("k"), of.get("v"), given, sizes,
                         (new if cache is None else cache).dtype.name, rotary_interleaved=options.rotary_interleaved,
                         norm_epsilon=options.norm_epsilon, own_scales=self.own_scales, max_sms=options.max_sms)

    def result_types(self, arrays: Sequence[Any]) -> list[tuple[tuple[int, ...], Any]]:
        """Those of what the results change, or of q."""
        of = dict(zip(self.names, arrays))
        return [(x.shape, x.dtype) for x in (of["q" if name == "q_out" else name] for name in self.results)]
