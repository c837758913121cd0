# SPDX-License-Identifier: Apache-2.0
"""Where the operators of a module are registered with PyTorch. Ctrl-C in the middle of an import leaves operators of a
module that Python then forgets and imports again: what it had registered is undone first. What is kept for that is
here, in a module that is complete before anything is registered."""
from typing import Any

import torch

_held: dict[str, Any] = {}  # by module


def library_of(module: str, namespace: str = "froghopper") -> Any:
    """A new torch.library.Library for the operators that the module defines, and for all that is said of them."""
    if module in _held:
        old = _held[module]
        old._destroy()
        # PyTorch does it again when Python frees the object, which may be after the new one has defined the same
        # operators: then it would forget those, and torch.ops would make other objects of them.
        for names in (old._op_defs, old._op_impls): names.clear()
        del _held[module]
    library: Any = torch.library.Library  # has no types
    _held[module] = made = library(namespace, "FRAGMENT")
    return made
