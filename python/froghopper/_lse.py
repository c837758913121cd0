# SPDX-License-Identifier: Apache-2.0
"""lse_by_row: lse as [rows, heads], for NumPy and PyTorch."""
from typing import Any

from froghopper._axes import Shape
from froghopper._errors import Unsupported


def lse_by_row_of(q: Shape) -> tuple[tuple[int, ...], tuple[int, int, int]]:
    """The shape and the strides of lse whose numbers of one row lie together."""
    rows, heads = q[-3], q[-2]
    return (*q[:-3], rows, heads), (rows * heads, heads, 1)


def check_lse_by_row(lse_by_row: bool, accumulate: Any) -> None:
    if lse_by_row and accumulate is not None:
        raise Unsupported("lse_by_row is given with accumulate, whose lse is [batch, heads, rows] or [heads, rows] "
                          "and is what is returned. Leave lse_by_row out.")
