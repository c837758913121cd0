# SPDX-License-Identifier: Apache-2.0
"""What is wrong with one tensor of PyTorch: its kind, layout, device, type, shape, under the name that a user knows."""
from typing import Any

import torch
from torch import Tensor

from froghopper._call import Shape, slope_strides
from froghopper._errors import InvalidTensor, InvalidType
from froghopper._values import is_of_padding, is_result, listed, new_result, type_of, wrong_shape


def check_slopes(slopes: Tensor, q: Tensor, batch: int) -> None:
    check_place("alibi_slopes", slopes, q)
    if slopes.dtype != torch.float32:
        raise InvalidType(f"alibi_slopes must be float32, but is {name_of(slopes.dtype)}. Use alibi_slopes.float().")
    slope_strides(slopes.shape, slopes.stride(), batch, q.shape[-2])


def check_tensor(name: str, x: Any, out: str = "") -> None:
    if x is None: raise InvalidType(f"{name} must be a tensor of PyTorch, but is None. Give {name}.")
    if not isinstance(x, Tensor):
        way = f"Use {out or as_tensor(name)}" if hasattr(x, "__len__") and not isinstance(x, str) else filled(name, x)
        if isinstance(x, (list, tuple)) and any(isinstance(part, Tensor) and part.numel() != 1 for part in x):
            way = f"Use torch.stack({name})" + f", or torch.cat({name}) with cu_seqlens" * (name in ("q", "k", "v"))
        if type(x).__name__ == "Proxy":
            way = "It is of torch.fx.symbolic_trace, which knows no values; use torch.export.export instead"
        if is_result(name) and not hasattr(x, "__array_interface__"): way = "Give a tensor"  # it would be written alone
        raise InvalidType(f"{name} must be a tensor of PyTorch, but is {type_of(x)}. {way}.")


WHOLE = ("cu_seqlens", "cu_seq_lens", "seqused", "cache_seqlens", "block_table", "page_table", "cache_leftpad")


def as_tensor(name: str) -> str:
    return f"torch.as_tensor({name}{', dtype=torch.int32' * name.startswith(WHOLE)})"


def filled(name: str, x: Any) -> str:
    """What to give in place of one number, or of what is no numbers at all."""
    if isinstance(x, (int, float)) and not isinstance(x, bool):
        if name in ("sink", "s_aux", "alibi_slopes"): return f"Use torch.full((q.shape[-2],), {name})"
        if name.startswith(("seqused", "cache_")): return f"Use torch.full((batch,), {name}, dtype=torch.int32)"
        if "scale" in name: return f"Use torch.tensor({name}, dtype=torch.float32)"
    return "Give a tensor"


def check_dense(name: str, x: Any) -> None:
    """A tensor that an operator is given: PyTorch has no kernels of it for other layouts, and would say so."""
    check_tensor(name, x)
    if is_dense(x): return
    out = f"Use {dense_of(name, x)}"
    if is_result(name) and not x.is_nested: out = new_result(name)
    raise InvalidType(f"{name} must be dense, but is {layout_of(x)}. {out}.")


def is_dense(x: Tensor) -> bool:
    """PyTorch says of its older nested tensors that they are strided, and has no shapes of them."""
    return x.layout == torch.strided and (torch.compiler.is_compiling() or not x.is_nested)


def layout_of(x: Tensor) -> str:
    """As a message says it, of a tensor that may be nested."""
    return "a nested tensor" if x.layout == torch.strided and x.is_nested else str(x.layout)


def check_floating(name: str, x: Any) -> None:
    """A tensor that may be cast."""
    check_tensor(name, x)
    if not x.is_floating_point():
        out = new_result(name, dtype="torch.float32") if is_result(name) else f"Use {name}.float()"
        raise InvalidType(f"{name} must have a floating-point type, but is {name_of(x.dtype)}. {out}.")


def as_float(name: str, x: Any) -> Tensor:
    """In float32, of any floating-point type."""
    check_tensor(name, x)
    if not x.is_floating_point():
        raise InvalidType(f"{name} must be float32, float16, bfloat16 or another floating-point type, but is "
                          f"{name_of(x.dtype)}. Use {name}.float().")
    found: Tensor = x.float()
    return found


def sink_of(x: Any) -> Tensor | None:
    """In float32; float16 and bfloat16, as the parameters of a model may be, become it. Nothing is lost so."""
    if x is None: return None
    check_tensor("sink", x)
    sink: Tensor = x
    if sink.dtype == torch.float32: return sink
    if sink.dtype in (torch.float16, torch.bfloat16): return sink.float()
    raise InvalidType(f"sink must be float32, float16 or bfloat16, but is {name_of(sink.dtype)}. Use "
                      f"{'sink.real' if sink.is_complex() else 'sink'}.float().")


def check_place(name: str, x: Tensor, q: Tensor) -> None:
    """On the device of q, with memory of its own kind."""
    check_dense(name, x)
    if x.device != q.device:
        out = f"Use torch.empty({name}.shape, dtype={name}.dtype, device=q.device)" if is_result(name) else (
            f"Use {name}.to(q.device)")
        raise InvalidTensor(f"{name} must be on the device of q, {q.device}, but is on {x.device}. {out}.")


def dense_of(name: str, x: Tensor) -> str:
    """How to get a dense tensor of one that is not, as a message says it."""
    rows, ends = rows_and_ends(name, x)
    if not ends: return rows
    word = f"{ends_word(name)} of froghopper.torch.attention"
    return f"{rows} with {ends} as {word}" if x.layout is torch.jagged else f"{rows}, {OF_PARTS} as {word}"


def all_dense_of(tensors: dict[str, Tensor]) -> str:
    """The same of q, k and v or some of them: the ends of k are those of v."""
    kinds = {str(x.layout) for x in tensors.values()}
    parts = {name: rows_and_ends(name, x) for name, x in tensors.items()}
    if len(tensors) < 3 or len(kinds) > 1 or not all(ends for _, ends in parts.values()):
        return " and ".join(dense_of(name, x) for name, x in tensors.items())
    rows = listed([rows for rows, _ in parts.values()])
    if kinds != {str(torch.jagged)}:
        return f"{rows}, {OF_PARTS} as cu_seqlens_q and cu_seqlens_kv of froghopper.torch.attention"
    ends = [f"{parts[name][1]} as {ends_word(name)}" for name in [*tensors][:2]]
    return f"{rows}, with {' and '.join(ends)} of froghopper.torch.attention"


OF_PARTS = "if their parts are [rows, heads, dim], with 0 and the ends of the parts"


def ends_word(name: str) -> str: return f"cu_seqlens_{'q' if name in ('q', 'query') else 'kv'}"


def rows_and_ends(name: str, x: Tensor) -> tuple[str, str]:
    """What has the numbers, and what says where sequences begin in it; "" where it is no nested tensor."""
    if x.layout is torch.jagged:
        jagged: Any = x  # whose class PyTorch does not name
        rows = jagged._ragged_idx  # the dimension of unequal lengths: 2 where heads come first
        packed = name if rows == 1 else f"{name}.transpose(1, {rows})"
        if jagged.lengths() is not None: packed += ".contiguous()"  # there are gaps between the parts
        return f"{packed}.values()", f"{packed}.offsets().int()"
    if x.layout is not torch.strided: return f"{name}.to_dense()", ""
    return f"torch.cat({name}.unbind())", "0"


def check_like(name: str, x: Tensor, q: Tensor, shape: Shape) -> None:
    """A tensor of the type of q."""
    check_place(name, x, q)
    if x.dtype != q.dtype:
        out = f"{name}.to({q.dtype})"  # not q.dtype: autocast may have cast q
        if is_result(name): out = f"torch.empty({list(shape)}, dtype={q.dtype}, device=q.device)"
        raise InvalidType(f"{name} must have the type of q, {name_of(q.dtype)}, but is {name_of(x.dtype)}. Use {out}.")
    check_shape(name, x, shape)


def check_out(out: Tensor, q: Tensor, dtype: torch.dtype, shape: Shape, of_8_bits: bool) -> None:
    """Where o goes, of a type that is not that of q alone."""
    check_place("out", out, q)
    if out.dtype != dtype:
        way = f"Use torch.empty({list(shape)}, dtype=torch.{name_of(dtype)}, device=q.device)"
        if of_8_bits and out.dtype in (torch.float16, torch.bfloat16, torch.float32): way += ", or out_dtype=out.dtype"
        raise InvalidType(f"out must be {name_of(dtype)}, but is {name_of(out.dtype)}. {way}.")
    check_shape("out", out, shape)


def check_side(name: str, x: Tensor, q: Tensor, dtype: torch.dtype, shape: Shape) -> None:
    check_place(name, x, q)
    if x.dtype != dtype:
        raise InvalidType(f"{name} must be {name_of(dtype)}, but is {name_of(x.dtype)}. Use "
                          f"{name}.to(torch.{name_of(dtype)}).")
    check_shape(name, x, shape)
    if name == "sink" and not x.is_contiguous():
        raise InvalidTensor("sink must be contiguous, but is not. Use sink.contiguous().")


def check_held(o: Tensor, lse: Tensor, q: Tensor, o_shape: Shape, lse_shape: Shape) -> None:
    """What is merged with."""
    check_side("accumulate[0]", o, q, torch.float32, o_shape)
    check_side("accumulate[1]", lse, q, torch.float32, lse_shape)
    if not lse.is_contiguous():
        raise InvalidTensor("accumulate[1] must be contiguous, as lse is dense, but is not. Use "
                            "accumulate[1].contiguous().")


def name_of_o(held_lse: Tensor | None) -> str: return "out" if held_lse is None else "accumulate[0]"


def check_shape(name: str, x: Tensor, shape: Shape) -> None:
    if tuple(x.shape) != tuple(shape): wrong_shape(name, x.shape, shape)


def check_lengths(name: str, x: Tensor, q: Tensor) -> None:
    check_place(name, x, q)
    if x.dtype != torch.int32 or x.ndim != 1:
        way = f"Use {name}.int(){'' if x.ndim == 1 else '.flatten()'}"
        if is_of_padding(name, x.shape): way = f"If it is a mask, with padding at the end, use {name}.sum(-1).int()"
        raise InvalidType(f"{name} must be a one-dimensional int32 tensor, but is {name_of(x.dtype)} with the shape "
                          f"{list(x.shape)}. {way}.")
    if not x.is_contiguous(): raise InvalidTensor(f"{name} must be contiguous, but is not. Use {name}.contiguous().")


def check_table(table: Tensor, batch: int) -> None:
    if table.dtype == torch.int32 and table.ndim == 2 and table.shape[0] == batch: return
    out = "Use block_table.int()." if table.dtype != torch.int32 else "Give a row of pages for each sequence."
    raise InvalidTensor(f"block_table must be int32 [batch, columns] with batch {batch}, but is {name_of(table.dtype)} "
                        f"with the shape {list(table.shape)}. {out}")


def name_of(dtype: torch.dtype) -> str: return str(dtype).removeprefix("torch.")
