# SPDX-License-Identifier: Apache-2.0
"""Words of other libraries that mean the same as one of here only in some calls: those in which they do not are
refused, since results would differ without a word."""
from collections.abc import Mapping, Sequence
from typing import Any

from froghopper._errors import InvalidProblem
from froghopper._values import listed, shown

OF_LENGTHS = ("seqused_q", "seqused_kv", "cu_seqlens_q", "cu_seqlens_kv")


def same_list(one: Any, other: Any) -> bool:
    """Whether both are the same numbers. Those on a GPU are not read."""
    if one is other: return True
    lists = [x.tolist() if getattr(x, "is_cpu", False) else x for x in (one, other)]
    return all(isinstance(x, (list, tuple)) for x in lists) and list(lists[0]) == list(lists[1])


def is_whole(value: Any) -> bool:
    """A whole number of Python or a scalar of NumPy."""
    return isinstance(value, int) or (type(value).__module__ == "numpy" and hasattr(value, "__index__") and
                                      not getattr(value, "shape", ()))


def check_corner(function: str, given: Sequence[Any], words: Mapping[str, Any], own: Mapping[str, Any],
                 said: Mapping[str, str]) -> None:
    """Of local_window_size, which jax.nn.dot_product_attention counts from the first key, whatever the lengths: raises
    where window would be counted from another one. given: arguments without a name; own: the others, by names of here;
    said: names of here -> those of the call."""
    window = own.get("window")
    if own.get("align") == "top_left" or window is None: return
    if isinstance(window, tuple) and all(bound is None for bound in window): return
    reason = different_ends(function, given, words, own, said)
    if not reason: return
    value, window = written(words["local_window_size"]), written(window)
    raise InvalidProblem(
        f"local_window_size is {value} and {reason}: jax.nn.dot_product_attention counts it from the first key, "
        f"and {function}() from the last one. Add align=\"top_left\" to count as jax.nn does, or give "
        f"window={window} to count from the last key.")


def written(value: Any) -> str:
    """As shown, also of whole numbers that torch.compile does not know while it traces, which have no repr."""
    if isinstance(value, tuple): return f"({', '.join([written(each) for each in value])})"
    return f"{value}" if isinstance(value, int) else shown(value)


def different_ends(function: str, given: Sequence[Any], words: Mapping[str, Any], own: Mapping[str, Any],
                   said: Mapping[str, str]) -> str:
    """Why the last query and key may not be beside each other when the first ones are; "" where they are."""
    names = [said[name] for name in OF_LENGTHS if own.get(name) is not None]
    if names: return f"{listed(names)} {'is' if len(names) == 1 else 'are'} given"
    if function == "paged_attention" or own.get("block_table") is not None: return "keys are in pages"
    first = 1 if function == "attention_backward" else 0  # behind grad_o
    q, k = (given[first + at] if len(given) > first + at else words.get(name) for at, name in enumerate("qk"))
    shapes: list[Any] = [getattr(x, "shape", ()) for x in (q, k)]
    rows_q, rows_k = (shape[1] if len(shape) == 4 else 0 for shape in shapes)
    return f"q has {rows_q} rows, k {rows_k}" if rows_q and rows_k and rows_q != rows_k else ""
