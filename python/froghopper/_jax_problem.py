# SPDX-License-Identifier: Apache-2.0
"""What a call of froghopper.jax.attention asks for: its arrays, its options and its results."""
# JAX has few types, and mypy runs where it is not installed, too.
# mypy: disable-error-code="import-not-found,no-any-return,no-untyped-call,untyped-decorator"
import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero

from froghopper._axes import check_beside_pages
from froghopper._call import check_rank
from froghopper._errors import Error, Unsupported
from froghopper._jax_8_bit import type_of_o, with_scales
from froghopper._jax_arrays import (HELD, Array, Given, bounds, check_sizes, checked, held_arrays, is_traced,
                                    slopes_of)
from froghopper._library_words import in_python
from froghopper._values import flag, plain
from froghopper._xla import check_problem
from froghopper._xla_kind import SCALES, Kind, Options

ARRAYS = ("cu_seqlens_q", "cu_seqlens_kv", "seqused_q", "seqused_kv", "block_table", "sink")
OPTIONS = ("causal", "window", "softcap", "scale", "align", "deterministic", "attention_chunk", "invariant", "max_sms")

# What a compiled program calls fields of the library in its messages, and what the call that is being made calls them;
# and where rows are those of q and k, so that there is no bound to give.
NAMES = {"seq_q": "max_seqlen_q", "seq_kv": "max_seqlen_kv", "total_q": "the number of rows of q",
         "total_kv": "the number of rows of k"}
BOUNDED_BY = {"seq_q": ("cu_seqlens_q",), "seq_kv": ("cu_seqlens_kv", "block_table")}
_said: contextvars.ContextVar[dict[str, str]] = contextvars.ContextVar("said", default={})


@contextlib.contextmanager
def saying(names: dict[str, str]) -> Iterator[None]:
    """A call whose arguments have these names: of here -> of there."""
    before = _said.set(names)
    try: yield
    finally: _said.reset(before)


def with_names(options: Options, arrays: Given) -> Options:
    """Where a program is traced: also what its messages call fields, as the handlers of src/xla read it."""
    if not is_traced(arrays): return options
    said = _said.get()
    names = {field: said.get(name, name) for field, name in NAMES.items()} | said
    for field, bounding in BOUNDED_BY.items():
        if not any(name in arrays for name in bounding): names[field] = NAMES[f"total_{field[4:]}"]
    return options._replace(names=";".join(f"{field}={name}" for field, name in names.items()))


def described(given: dict[str, Any]) -> tuple[Options, tuple[str, ...], Given]:
    """given: the arguments of attention by name. Raises what is wrong with one of them alone, and with arrays beside
    others."""
    q, k, v = (given[name] for name in "qkv")
    return_lse, return_max_logit = (flag(name, given[name]) for name in ("return_lse", "return_max_logit"))
    sides = {name: given[name] for name in SCALES}
    of_o = type_of_o(q, k, v, given["out_dtype"], sides, given["accumulate"] is not None)
    found = {"q": q, "k": k, "v": v, **{name: given[name] for name in ARRAYS},
             **held_arrays(given["accumulate"], return_max_logit),
             **{name: given[name] for name in ("alibi_slopes", "gate")}}
    arrays = {name: checked(name, array, q, of_o) for name, array in found.items()
              if array is not None or name in ("q", "k", "v", *HELD)}
    if given["block_table"] is not None: check_beside_pages("o" in arrays, return_max_logit)
    if given["alibi_slopes"] is not None:
        check_rank("q", arrays["q"].shape, given["cu_seqlens_q"] is not None)
        arrays["alibi_slopes"] = slopes_of(arrays)
    most = bounds(arrays, max_seqlen_q=given["max_seqlen_q"], max_seqlen_kv=given["max_seqlen_kv"])
    types, scales = with_scales(arrays, sides, of_o, **most) if of_o else (None, {})
    arrays |= scales
    options = Options(types=types, **most, **plain(**{name: given[name] for name in OPTIONS}))
    return options, results_of(return_lse or "o" in arrays, return_max_logit), arrays


def results_of(with_lse: bool, with_max_logit: bool) -> tuple[str, ...]:
    return "o", *("lse",) * with_lse, *("max_logit",) * with_max_logit


def kind_of(options: Options, arrays: Given, results: tuple[str, ...] = ("o", "lse")) -> Kind:
    return Kind(options, tuple(arrays), results)


def fits(options: Options, arrays: Given) -> bool:
    """Raises what is wrong with the shapes, and with the options for them."""
    check_problem(kind_of(options, arrays), tuple(arrays.values()))
    check_sizes(arrays)
    return True


def check_derivative(options: Options, arrays: Given) -> None:
    """Raises where there is none."""
    if "o" in arrays:
        raise Unsupported("accumulate is given and a gradient is asked for; what is merged has none. Merge (o, lse) of "
                          "attention(..., return_lse=True) yourself.")
    if "block_table" in arrays:
        raise Unsupported("block_table is given and a gradient is asked for; attention to pages has none. Give "
                          "jax.lax.stop_gradient of every array.")
    if options.types:
        raise Unsupported(f"a gradient is asked for and k is {options.types.kv}; gradients are computed of float16, "
                          "bfloat16 and float32. Multiply q, k and v by their scales in one of these and give no "
                          "scales, or give jax.lax.stop_gradient of every array.")


@jax.custom_vjp
def without_gradient(max_logit: Array) -> Array:
    """Itself, whose cotangent may be none but what JAX knows to be 0."""
    return max_logit


def refuse_gradient(_: None, cotangent: Any) -> tuple[None]:
    if isinstance(cotangent, SymbolicZero): return None,
    raise Unsupported("a gradient of max_logit is asked for; it has none here. Use jax.lax.stop_gradient(max_logit).")


without_gradient.defvjp(lambda max_logit: (max_logit.value, None), refuse_gradient, symbolic_zeros=True)


@contextlib.contextmanager
def in_users_words() -> Iterator[None]:
    """What the library says when a call runs, in the words of Python. In a program that the user compiles, JAX alone
    sees it."""
    try: yield
    except (RuntimeError, ValueError) as error:
        if isinstance(error, Error) or "fh_attention: " not in str(error): raise
        raise type(error)(in_python(str(error).replace("fh_attention: ", ""))) from None
