# SPDX-License-Identifier: Apache-2.0
"""froghopper.torch.norm_rotary: what append_kv does to rows of q and k before it stores them, with gradients.

It is made of PyTorch's own operations, which torch.compile fuses. One autograd function saves the rows as they came and
computes the rest again in the backward pass, so nothing in float32 is kept between the two.
"""
import math
from typing import Any

import torch
from torch import Tensor

from froghopper import _torch_ops as ops
from froghopper._append import types_of_tables, way_to_parts, way_to_tables
from froghopper._call import flag, number
from froghopper._errors import InvalidProblem, InvalidTensor, InvalidType, Unsupported
from froghopper._torch_calls import DTYPES, check_place, check_tensor, name_of
from froghopper._torch_options import plain
from froghopper._values import from_0_to, way_to_shape
from froghopper._words import takes_words_of_others


@takes_words_of_others("torch")
def norm_rotary(q: Tensor, k: Tensor, *, norm_q: Tensor | None = None, norm_k: Tensor | None = None,
                norm_epsilon: float | None = None, rotary_cos: Tensor | None = None, rotary_sin: Tensor | None = None,
                positions: Tensor | None = None, rotary_interleaved: bool = False) -> tuple[Tensor, Tensor]:
    """Rows of q and k, normed and rotated as append_kv does it, with gradients: for training.

    q, k           [batch, seq, heads, dim] or [tokens, heads, dim]; the same rows, heads of their own; float16,
                   bfloat16 or float32
    norm_epsilon   not None: rows of q and k are divided by sqrt(mean of squares + norm_epsilon) before they are
                   rotated
    norm_q         [dim], of q's type or float32: what their columns are multiplied by then; None for 1
    norm_k
    rotary_cos     [positions, rotary_dim / 2], of q's type or float32: the first rotary_dim columns are rotated
    rotary_sin
    positions      int64, the shape of q without heads and dim: of each row, for the tables; None for the number of the
                   row in its sequence; needed for [tokens, heads, dim]. They must be rows of rotary_cos: on the CPU
                   that is checked, outside of torch.compile and torch.func
    rotary_interleaved
                   pairs are columns 2i and 2i + 1; else i and i + rotary_dim / 2

    Returns (q, k), new tensors of the shapes and types that were given. All is computed in float32 and rounded once.
    q, k, norm_q and norm_k have gradients, also second ones, under torch.compile and torch.func too; the tables have
    none.
    """
    if norm_epsilon is not None: norm_epsilon = epsilon_of(norm_epsilon)
    rotary_interleaved = plain(flag, "rotary_interleaved", rotary_interleaved)
    for name, x in (("q", q), ("k", k)): check_rows(name, x, q)
    for name, weight, x in (("norm_q", norm_q, q), ("norm_k", norm_k, k)):
        if weight is None: continue
        if norm_epsilon is None:
            raise InvalidProblem(f"{name} must be None without norm_epsilon, as weights belong to the norm, but is "
                                 "given. Give norm_epsilon, or leave it out.")
        check_side(name, weight, x)
        if tuple(weight.shape) != (x.shape[-1],):
            raise InvalidTensor(f"{name} must have the shape [dim] {[x.shape[-1]]}, but has {list(weight.shape)}. "
                                f"{way_to_shape(name, weight.shape, x.shape[-1:])}.")
    check_tables(q, k, rotary_cos, rotary_sin, positions)
    if norm_epsilon is None and rotary_cos is None:
        raise InvalidProblem("norm_epsilon or rotary_cos must be given, but both are None; nothing is left to do. Give "
                             "norm_epsilon, or rotary_cos and rotary_sin.")
    of_q, of_k = (NormRotary.apply(x, weight, rotary_cos, rotary_sin, positions, norm_epsilon, rotary_interleaved)
                  for x, weight in ((q, norm_q), (k, norm_k)))
    return of_q.contiguous(), of_k.contiguous()


def epsilon_of(given: Any) -> float:
    """As the library asks it of append_kv: of others every number would become NaN."""
    found: float = plain(number, "norm_epsilon", given)
    if not 0 <= found < math.inf:
        raise InvalidProblem("norm_epsilon must be 0 or positive, as it is added to a mean of squares, but is "
                             f"{found}. Use 0 or 1e-6.")
    return found


def check_rows(name: str, x: Tensor, q: Tensor) -> None:
    check_tensor(name, x)
    if x.dtype not in DTYPES:
        raise InvalidType(f"{name} must be {' or '.join(DTYPES.values())}, but is {name_of(x.dtype)}. Use "
                          f"{name}.float().")
    if x.ndim not in (3, 4):
        raise InvalidProblem(f"{name} must be [batch, seq, heads, dim] or [tokens, heads, dim], but has the shape "
                             f"{list(x.shape)}. Give it one of these shapes.")
    if x.shape[:-2] != q.shape[:-2] or x.dtype != q.dtype:
        raise InvalidProblem(f"k must have the rows and the type of q, {list(q.shape[:-2])} and {name_of(q.dtype)}, "
                             f"but has {list(x.shape[:-2])} and {name_of(x.dtype)}. "
                             + ("Use k.to(q.dtype)." if x.dtype != q.dtype else "Give both equally many rows."))
    check_place(name, x, q)


def check_side(name: str, x: Tensor, q: Tensor) -> None:
    """A weight or a table."""
    check_tensor(name, x)
    check_place(name, x, q)
    if x.dtype not in (q.dtype, torch.float32):
        raise InvalidType(f"{name} must be {types_of_tables(name_of(q.dtype), 'q')}, but is {name_of(x.dtype)}. "
                          f"{way_to_parts(name, name_of(x.dtype)) or f'Use {name}.float()'}.")


def check_tables(q: Tensor, k: Tensor, cos: Tensor | None, sin: Tensor | None, positions: Tensor | None) -> None:
    """cos and sin: rotary_cos and rotary_sin."""
    if (cos is None) != (sin is None):
        given, other = ("rotary_sin", "rotary_cos") if cos is None else ("rotary_cos", "rotary_sin")
        raise InvalidProblem(f"rotary_cos and rotary_sin must be given together, but {other} is None. Give it, or "
                             f"leave out {given}.")
    if cos is None or sin is None:
        if positions is not None:
            raise InvalidProblem("positions must be None without rotary_cos and rotary_sin, whose rows they are, but "
                                 "is given. Give these two, or leave it out.")
        return
    for name, table in (("rotary_cos", cos), ("rotary_sin", sin)):
        check_side(name, table, q)
        if table.requires_grad and torch.is_grad_enabled():
            raise Unsupported(f"{name} requires a gradient; tables have none. Use {name}.detach().")
    most = min(q.shape[-1], k.shape[-1])
    if cos.ndim != 2 or cos.shape != sin.shape or 2 * cos.shape[1] > most or cos.dtype != sin.dtype:
        raise InvalidTensor(f"rotary_cos and rotary_sin must both be [positions, rotary_dim / 2] of one type, with "
                            f"{most // 2} columns at most, but are {name_of(cos.dtype)} {list(cos.shape)} and "
                            f"{name_of(sin.dtype)} {list(sin.shape)}. "
                            + ("Convert or cut them." if cos.shape != sin.shape or cos.dtype != sin.dtype else
                               f"{way_to_tables(cos.shape, most)}."))
    if positions is None:
        if q.ndim == 3: raise InvalidProblem("positions must be given with [tokens, heads, dim], but is None. Give the "
                                             "position of each row.")
        if q.shape[1] > cos.shape[0]:
            raise InvalidProblem(f"rotary_cos must have a row for each of {q.shape[1]} rows of a sequence, but has "
                                 f"{cos.shape[0]}. Give more, or positions.")
        return
    check_tensor("positions", positions)
    check_place("positions", positions, q)
    if positions.dtype != torch.int64 or positions.shape != q.shape[:-2]:
        raise InvalidTensor(f"positions must be int64 {list(q.shape[:-2])}, one for each row, but is "
                            f"{name_of(positions.dtype)} {list(positions.shape)}. "
                            f"{way_to_positions(positions, q.shape[:-2])}.")
    check_rows_of_tables(positions, cos.shape[0])


def check_rows_of_tables(positions: Tensor, rows: int) -> None:
    """Of positions whose numbers are there: in host memory, and nothing but PyTorch's own functions reads them. PyTorch
    would count negative ones from the end of the tables."""
    if not positions.is_cpu or type(positions) not in ops.PLAIN or torch.compiler.is_compiling(): return
    if ops.modes() or ops.transforms_active() or ops.tracing_state() or not positions.numel(): return
    least, most = (int(x) for x in positions.aminmax())
    if least >= 0 and most < rows: return
    wrong = least if least < 0 else most
    at = (positions == wrong).nonzero()[0].tolist()
    raise InvalidTensor(f"positions must be {'from ' * (rows > 1)}{from_0_to(rows - 1)}, the rows of rotary_cos, but "
                        f"positions{at} is {wrong}. "
                        + ("Use 0 for rows of padding." if wrong < 0 else "Use longer tables."))


def way_to_positions(positions: Tensor, wanted: torch.Size) -> str:
    """What to do about positions of another type or shape, maybe those of one sequence for all."""
    way = "positions" + ".long()" * (positions.dtype != torch.int64)
    if positions.shape == wanted: return f"Use {way}"
    if len(wanted) == 2 and positions.shape in (wanted[1:], (1, wanted[1])): return f"Use {way}.expand{tuple(wanted)}"
    if positions.numel() == wanted.numel(): return f"Use {way}.reshape{tuple(wanted)}"
    return f"Give {wanted.numel()} numbers"


class NormRotary(torch.autograd.Function):
    """One of q and k. Its gradients are made of what PyTorch can differentiate again."""
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor | None, cos: Tensor | None, sin: Tensor | None, positions: Tensor | None,
                eps: float | None, interleaved: bool) -> Tensor:
        y = x.float()
        if eps is not None: y = y * root_of(y, eps)
        if weight is not None: y = y * weight.float()
        if cos is not None and sin is not None: y = turned(y, *angles(cos, sin, positions, x), interleaved)
        return y if y.dtype == x.dtype else y.to(x.dtype)  # no operation may return what it was given: PyTorch 2.11

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:5])
        ctx.eps, ctx.interleaved = inputs[5:]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight, cos, sin, positions = ctx.saved_tensors
        grad = grads[0].float()
        if cos is not None:
            of_cos, of_sin = angles(cos, sin, positions, x)
            grad = turned(grad, of_cos, -of_sin, ctx.interleaved)
        grad_weight = None
        if ctx.eps is not None:
            y = x.float()
            root = root_of(y, ctx.eps)
            y = y * root
            if weight is not None:
                grad_weight = (grad * y).flatten(0, -2).sum(0).to(weight.dtype)
                grad = grad * weight.float()
            grad = root * (grad - y * (grad * y).mean(-1, keepdim=True))
        return grad.to(x.dtype), grad_weight, None, None, None, None, None


def root_of(x: Tensor, eps: float) -> Tensor: return (x.square().mean(-1, keepdim=True) + eps).rsqrt()


def angles(cos: Tensor, sin: Tensor, positions: Tensor | None, x: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of the tables for each row of x, in float32, alike for all heads."""
    of_cos, of_sin = (table[:x.shape[1]] if positions is None else table[positions] for table in (cos, sin))
    return of_cos.float().unsqueeze(-2), of_sin.float().unsqueeze(-2)


def turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """With -sin it turns back."""
    columns = 2 * cos.shape[-1]
    first, rest = x[..., :columns], x[..., columns:]
    a, b = (first[..., 0::2], first[..., 1::2]) if interleaved else first.chunk(2, -1)
    pair = a * cos - b * sin, b * cos + a * sin
    made = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat((made, rest), -1) if rest.shape[-1] else made
