# SPDX-License-Identifier: Apache-2.0
"""froghopper.explain: what would be computed of a problem that is written in one line, or of a call with arrays."""
import ctypes
import importlib
from typing import Any, overload

from froghopper import _c
from froghopper._errors import Error, InvalidType
from froghopper._library import library
from froghopper._values import text, type_of

LINE = "fwd bf16 b1 hq8 hkv8 sq4096 skv4096 d128 causal"  # a problem


@overload
def explain(problem: _c.Problem | str, target: str = ...) -> str: ...


@overload
def explain(q: Any, k: Any, v: Any, *, target: str | None = ..., gradients: bool = ..., **options: Any) -> str: ...


@overload
def explain(*, k_cache: Any, v_cache: Any, target: str | None = ..., **options: Any) -> str: ...


def explain(*given: Any, target: Any = None, **options: Any) -> str:
    """Why something can or cannot be computed and how, in lines of text: backend, kernel, tiles, memory. Nothing is
    computed, and a contradiction is told, not raised.

        explain("fwd bf16 b2 hq16 hkv4 sq4096 skv4096 d128 causal", "h200")      a problem in one line
        explain(q, k, v, causal=True)                                            attention(q, k, v, causal=True)
        explain(q, k, v, causal=True, gradients=True)                            and attention_backward
        explain(k=k, v=v, k_cache=k_cache, v_cache=v_cache, seqused_kv=lengths)  append_kv, all by name

    target         "auto", "cpu", "hopper", "h200", ...; froghopper.h has all. Of a line "auto"; of arrays None, where
                   they are, which for arrays of NumPy is the CPU

    Tensors of PyTorch and arrays of JAX are explained as froghopper.torch.explain and froghopper.jax.explain do.
    """
    some = next((x for x in (*given, *map(options.get, "qkv")) if hasattr(x, "shape")), None)
    if some is not None or {"q", "k", "v", "k_cache", "v_cache"} & options.keys():
        if given and isinstance(given[0], (str, _c.Problem)): not_both(given, options)
        target = None if target is None else text("target", target, "cpu")
        framework = framework_of(some)
        if framework: return told_by(framework, given, options | {"target": target})
        from froghopper._numpy_explain import told_of_call
        return told_of_call(explain_problem, given, target, options.pop("gradients", False), options)
    if not given and "problem" in options: given = (options.pop("problem"),)
    if not 1 <= len(given) <= 2 or (len(given) == 2 and target is not None) or options: not_both(given, options)
    where = given[1] if len(given) == 2 else target
    return explain_problem(given[0], "auto" if where is None else where)


def explain_problem(problem: _c.Problem | str, target: str) -> str:
    """problem: a line, or what describe gave."""
    target = text("target", target, "auto")
    if not isinstance(problem, _c.Problem):
        line = text("problem", problem, LINE)
        try: problem = library().problem(line)
        except Error as error: return f"problem      {line}\nnot computed {error}"
    told = str(library().calls.fh_explain(ctypes.byref(problem), target.encode()).decode())
    return told if told.startswith("problem ") else f"not computed {told}"  # a contradiction alone


def not_both(given: tuple[Any, ...], options: dict[str, Any]) -> None:
    found = ", ".join([type_of(x) for x in given] + list(options)) or "nothing"
    raise InvalidType(f"explain takes a problem in one line and a target, or what attention or append_kv takes, but is "
                      f"given {found}. Write the line, as in froghopper.explain(\"{LINE}\"), or give arrays, as in "
                      "froghopper.explain(q, k, v, causal=True).")


def framework_of(some: Any) -> str:
    """"torch" or "jax", whose array it is, also one that is only described; "" for any other."""
    where = type(some).__module__.partition(".")[0].removesuffix("lib")  # arrays of JAX are jaxlib's
    bases = {base.__module__.partition(".")[0] for base in type(some).__mro__}  # as of torch.nn.Parameter's subclasses
    return where if where in ("torch", "jax") else "torch" if "torch" in bases else ""


def told_by(framework: str, given: tuple[Any, ...], options: dict[str, Any]) -> str:
    return str(importlib.import_module(f"froghopper.{framework}").explain(*given, **options))
