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
        _held[module]._destroy()
        del _held[module]
    library: Any = torch.library.Library  # has no types
    _held[module] = made = library(namespace, "FRAGMENT")
    return made
