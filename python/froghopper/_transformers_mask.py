# SPDX-License-Identifier: Apache-2.0
"""What stands for a mask between transformers' models and froghopper.transformers: bounds and lengths, no matrix."""
import dataclasses
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from froghopper._errors import Unsupported

EAGER = "Use attn_implementation=\"eager\", or \"sdpa\" where the model has it."


class NoMatrix(Unsupported, AttributeError):
    """A model reads of a Mask what only a matrix has. An AttributeError too, so that hasattr says no."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Mask(BlockMask):
    """What attention_mask hands to attention_forward, through a model that does not look into it. It is a BlockMask by
    name alone: generate prepares masks before it calls the model, which then knows a finished mask by that type.

    causal    the diagonal ends at the last query and the last key that counts
    window    (left, right), None for no bound
    made_for  (batch, queries, keys): the lengths that it speaks of
    keys      the end of the rows of k that are attended; None for all
    first     where they begin
    chunk     a query attends only to keys of its chunk, which are counted from the first key that counts; 0 for none
    begin     [batch] int32: the first row of k that counts; None for 0
    end       [batch] int32: the end of those that count; None for all
    rows      [batch] int32: how many rows of q count, the first ones; None for all
    ends      [sequences + 1] int32: packed sequences in the batch, as cu_seqlens; longest is the longest of them
    of_tokens an attention_mask of the caller's is in it

    It has the shape of a matrix, [batch, 1, queries, keys], may be sliced where that leaves all of it, and has no type:
    to() moves it to a device. Whatever else is done to a matrix (arithmetic, functions of torch, other attributes)
    raises NotImplementedError.
    """
    causal: bool
    window: tuple[int | None, int | None]
    made_for: tuple[int, int, int]
    keys: int | None = None
    begin: Tensor | None = None
    end: Tensor | None = None
    rows: Tensor | None = None
    ends: Tensor | None = None
    longest: int | None = None
    first: int = 0
    chunk: int = 0
    of_tokens: bool = False

    @property
    def shape(self) -> tuple[int, ...]: return self.made_for[0], 1, *self.made_for[1:]

    @property
    def ndim(self) -> int: return 4

    def dim(self) -> int: return 4

    def size(self, dim: int | None = None) -> Any: return self.shape if dim is None else self.shape[dim]

    def contiguous(self) -> "Mask": return self

    def to(self, *where: Any, device: Any = None, **_: Any) -> "Mask":
        """Its tensors on another device, as accelerate moves what layers are given. A type changes nothing."""
        for x in where:
            if isinstance(x, Tensor): x = x.device
            if isinstance(x, (str, int, torch.device)): device = x
        if device is None: return self
        moved: dict[str, Any] = {name: x.to(device) for name, x in vars(self).items() if isinstance(x, Tensor)}
        return dataclasses.replace(self, **moved)

    def __getitem__(self, index: Any) -> "Mask":
        """Itself, for slices that leave all of it: models cut masks to the keys that they have."""
        parts = list(index) if isinstance(index, tuple) else [index]
        for at in [at for at, part in enumerate(parts) if part is Ellipsis][:1]:
            parts[at:at + 1] = [slice(None)] * (5 - len(parts))
        if len(parts) <= 4 and all(isinstance(part, slice) and part.indices(extent) == (0, extent, 1)
                                   for part, extent in zip(parts, self.shape)): return self
        no_matrix(f"attention_mask is sliced, {index!r} of the shape {list(self.shape)}")

    def __repr__(self) -> str:
        """Without the numbers of tensors: reading them would wait for their device."""
        said = [f"{name}={list(x.shape) if isinstance(x, Tensor) else x}" for name, x in vars(self).items()
                if x is not None and name != "of_tokens" and not (type(x) is int and x == 0)]
        return f"Mask({', '.join(said)})"

    __str__ = __repr__

    def __getattr__(self, name: str) -> NoReturn: no_matrix(f"attention_mask.{name} is read")

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any, **__: Any) -> NoReturn:
        no_matrix(f"attention_mask is given to torch's function {getattr(function, '__name__', function)}")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (Tensor, int, float)): no_matrix("attention_mask is compared")
        return self is other

    __hash__ = object.__hash__


def no_matrix(what: str) -> NoReturn:
    raise NoMatrix(f"{what}; froghopper's mask is bounds and lengths, not a matrix. {EAGER}")


def refusal(name: str) -> Any:
    def refused(*_: Any) -> NoReturn: no_matrix(f"attention_mask is computed with ({name})")
    return refused


for _name in ("add", "sub", "mul", "truediv", "and", "or", "xor"):
    for _side in ("", "r"): setattr(Mask, f"__{_side}{_name}__", refusal(_name))
for _name in ("neg", "invert", "lt", "le", "gt", "ge"): setattr(Mask, f"__{_name}__", refusal(_name))
