# SPDX-License-Identifier: Apache-2.0
"""froghopper.explain: what would be computed of a problem that is written in one line."""
import ctypes
from typing import Any

from froghopper import _c
from froghopper._errors import Error, InvalidType
from froghopper._library import library
from froghopper._values import text, type_of

LINE = "fwd bf16 b1 hq8 hkv8 sq4096 skv4096 d128 causal"  # a problem
OPS = {"FH_FORWARD": "fwd", "FH_BACKWARD": "bwd"}  # as a line has them


def explain(problem: _c.Problem | str, target: str = "auto", *others: Any, **options: Any) -> str:
    """Why a problem can or cannot be computed and how, in lines of text: backend, kernel, tiles, memory.

    problem: a line such as "fwd bf16 b2 hq16 hkv4 sq4096 skv4096 d128 causal", or what describe gave. target: "auto",
    "cpu", "hopper", "h200", ...; froghopper.h has all. A contradiction in the problem is told, not raised.
    """
    if others or options or hasattr(problem, "shape"):
        also = f" and {', '.join(options)}" * bool(options)
        raise InvalidType(f"explain takes a problem in one line and a target, but is given {type_of(problem)} first"
                          f"{also}. Write the line, as in froghopper.explain(\"{LINE}\"). For tensors use "
                          "froghopper.torch.explain or froghopper.jax.explain, which take what attention takes.")
    target = text("target", target, "auto")
    if not isinstance(problem, _c.Problem):
        line = text("problem", problem, LINE)
        try: problem = library().problem(line)
        except Error as error: return f"problem      {line}\nnot computed {error}"
    told = str(library().calls.fh_explain(ctypes.byref(problem), target.encode()).decode())
    for name, word in OPS.items(): told = told.replace(name, word)
    return told if told.startswith("problem ") else f"not computed {told}"  # a contradiction alone
