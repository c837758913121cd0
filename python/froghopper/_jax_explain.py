# SPDX-License-Identifier: Apache-2.0
"""froghopper.jax.explain: where and how a call of attention would be computed, without computing it."""
# JAX has few types, and mypy runs where it is not installed, too.
# mypy: disable-error-code="import-not-found,no-any-return,no-untyped-call"
from typing import Any

import jax
import numpy as np

from froghopper._axes import OF_EXAMPLES, SWAPPED, note_of_axes
from froghopper._explain import explain_problem
from froghopper._errors import InvalidType
from froghopper._jax_problem import check_derivative, described, fits, kind_of
from froghopper._library_words import in_python
from froghopper._words import check_own_words, named_by, names_said, too_many, translated
from froghopper.jax import attention


def explain(q: Any = None, k: Any = None, v: Any = None, *others: Any, target: str | None = None,
            gradients: bool = False, **options: Any) -> str:
    """Why froghopper.jax.attention(q, k, v, **options) can or cannot be computed and how, in lines of text: backend,
    kernel, tiles, memory. Nothing is computed, and of arrays only shapes, types and devices count, so they may be
    jax.ShapeDtypeStruct.

    target         instead of the arrays' device: "cpu", "hopper", "h200", ...; froghopper.h has all
    gradients      whether the backward pass is explained too

    A contradiction is told, not raised, and so is an array that is missing.
    """
    problems: list[Any] = []

    def look(arrays: dict[str, Any]) -> None:
        call, results, read = described(given | arrays)
        fits(call, read)
        passes = [read]
        if gradients:
            check_derivative(call, read)
            passes.append(read | {"grad_o": read["q"]})  # which only says that this is the backward pass
        problems.extend(kind_of(call, of_pass, results).problem(tuple(of_pass.values())) for of_pass in passes)
    names: dict[str, str] = {}
    try:
        if isinstance(q, str): raise InvalidType("q must be an array of JAX, but is a str. For a line use "
                                                 "froghopper.explain.")
        if others: too_many("attention", others)
        if options.get("k_cache") is not None or options.get("v_cache") is not None:
            raise InvalidType("explain() of froghopper.jax has no argument k_cache, as it explains calls of attention "
                              "alone. For append_kv give arrays of NumPy of the same shapes to froghopper.explain, or "
                              "a line, as in froghopper.explain(\"append bf16 b8 hq8 hkv8 sq1 skv4096 d128\").")
        defaults: dict[str, Any] = attention.__kwdefaults__ or {}
        check_own_words("explain", "jax", options, defaults.keys(), ("target", "gradients"))
        given = defaults | translated("attention", "jax", options, defaults.keys(), (q, k)) | dict(q=q, k=k, v=v)
        names = names_said("attention", "jax", options, defaults.keys())
        jax.eval_shape(look, {name: x for name, x in given.items() if all(map(is_described, leaves_of(x)))})
        told = "\n\n".join(in_python(explain_problem(problem, target or target_of(q))) for problem in problems)
        if target: told = told.replace("tensors on the CPU", 'target="cpu"')
        note = note_of_axes(q.shape, k.shape, SWAPPED)
        notes = f"axes         {note}\n" * bool(note) + OF_EXAMPLES * any(map(is_mapped, (q, k, v)))
        return f"{told.rstrip()}\n{notes}" if notes else told
    except Exception as error: return f"not computed {named_by(names, error)}"  # also what JAX says of its arrays


def is_mapped(x: Any) -> bool: return type(x).__name__ == "BatchTracer"  # by jax.vmap


def leaves_of(x: Any) -> Any: return x if isinstance(x, tuple) and x else (x,)


def is_described(x: Any) -> bool: return isinstance(x, (jax.Array, jax.ShapeDtypeStruct, np.ndarray))


def target_of(array: Any) -> str:
    """Where JAX would compute with it; what is traced or only described is on the default device."""
    device: Any = None
    if isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer): device = next(iter(array.devices()))
    config: Any = jax.config
    if device is None: device = config.jax_default_device or jax.devices()[0]
    if getattr(device, "platform", device) == "cpu": return "cpu"
    return f"hopper:{device.id}" if hasattr(device, "id") else "hopper"
