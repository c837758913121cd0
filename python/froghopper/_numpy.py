# SPDX-License-Identifier: Apache-2.0
"""Attention on NumPy arrays, on this machine's CPU. No other framework is needed.

Arrays read [batch, seq, heads, dim], or [total, heads, dim] with cu_seqlens_q and cu_seqlens_kv; float16, float32, or
ml_dtypes' bfloat16, and with scales its float8_e4m3fn and float8_e5m2. Any strides will do as long as
columns lie side by side; nothing is copied but lse, grad_lse and sink where they are not contiguous, lengths that are
not int32, and scales that are not float32.
"""
from collections.abc import Hashable, Sequence
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from froghopper._call import (DTYPES, DTYPES_8_BIT, SCALE_ROWS, Call, Packed, Shape, Strides, Types, Window, cached,
                              check_means, check_rank, check_scale_is_there, describe, element_strides, mean_of,
                              output_of, plan_of, scale_of)
from froghopper._errors import InvalidProblem, InvalidTensor, InvalidType

Array = NDArray[Any]
Lengths = NDArray[np.integer[Any]] | Sequence[int]
_calls: dict[Hashable, Call] = {}


class Gradients(NamedTuple):
    """With respect to q, k, v, and to sink where there is one."""
    q: Array
    k: Array
    v: Array
    sink: Array | None


@overload
def attention(q: Array, k: Array, v: Array, *, causal: bool = ..., window: Window | None = ..., softcap: float = ...,
              scale: float | None = ..., sink: Array | None = ..., cu_seqlens_q: Lengths | None = ...,
              cu_seqlens_kv: Lengths | None = ..., seqused_q: Lengths | None = ..., seqused_kv: Lengths | None = ...,
              return_lse: Literal[False] = ..., out: Array | None = ..., align: str = ..., max_sms: int = ...,
              max_seqlen_q: int | None = ..., max_seqlen_kv: int | None = ..., scale_q: ArrayLike | None = ...,
              scale_k: ArrayLike | None = ..., scale_v: ArrayLike | None = ..., dtype: str | None = ...,
              out_dtype: DTypeLike | None = ..., mean_k: Array | None = ..., mean_v: Array | None = ...) -> Array: ...


@overload
def attention(q: Array, k: Array, v: Array, *, causal: bool = ..., window: Window | None = ..., softcap: float = ...,
              scale: float | None = ..., sink: Array | None = ..., cu_seqlens_q: Lengths | None = ...,
              cu_seqlens_kv: Lengths | None = ..., seqused_q: Lengths | None = ..., seqused_kv: Lengths | None = ...,
              return_lse: Literal[True], out: Array | None = ..., align: str = ..., max_sms: int = ...,
              max_seqlen_q: int | None = ..., max_seqlen_kv: int | None = ..., scale_q: ArrayLike | None = ...,
              scale_k: ArrayLike | None = ..., scale_v: ArrayLike | None = ..., dtype: str | None = ...,
              out_dtype: DTypeLike | None = ..., mean_k: Array | None = ...,
              mean_v: Array | None = ...) -> tuple[Array, Array]: ...


def attention(q: Array, k: Array, v: Array, *, causal: bool = False, window: Window | None = None,
              softcap: float = 0.0, scale: float | None = None, sink: Array | None = None,
              cu_seqlens_q: Lengths | None = None, cu_seqlens_kv: Lengths | None = None,
              seqused_q: Lengths | None = None, seqused_kv: Lengths | None = None, return_lse: bool = False,
              out: Array | None = None, align: str = "bottom_right", max_sms: int = 0,
              max_seqlen_q: int | None = None, max_seqlen_kv: int | None = None, scale_q: ArrayLike | None = None,
              scale_k: ArrayLike | None = None, scale_v: ArrayLike | None = None, dtype: str | None = None,
              out_dtype: DTypeLike | None = None, mean_k: Array | None = None,
              mean_v: Array | None = None) -> Array | tuple[Array, Array]:
    """softmax(scale q k^T + mask) v of NumPy arrays; with return_lse also the logarithm of the softmax's denominator.

    q              [batch, seq_q, heads_q, dim], packed [total_q, heads_q, dim]
    k, v           [batch, seq_kv, heads_kv, dim], packed [total_kv, heads_kv, dim]; heads_kv divides heads_q, and v may
                   have its own dim
    causal         a query sees no later key; the last query sees the last key (align="top_left": the first the first)
    window         (left, right): keys that a query sees before and after its own; None or -1 for no bound
    softcap        scores become softcap tanh(score / softcap); 0 for none
    scale          of q k^T; None for 1/sqrt(dim)
    sink           [heads_q] float32: one more logit a head, in the denominator alone
    cu_seqlens_*   [batch + 1] rows where each packed sequence begins, and the end; both or none
    seqused_*      [batch] how many rows of a sequence count
    out            where the result goes, and what is returned then; shape of the result, type of q, memory of its own
    max_sms        threads it may use; 0 for all
    max_seqlen_*   packed: an upper bound on the longest sequence; None looks
    scale_*        8-bit q, k, v: what their numbers are multiplied by, float32: one number; [batch, heads]; [batch,
                   blocks, heads, 1] for blocks of 128 rows of each sequence; scale_v also [batch, 1, heads_kv, dim]
    dtype          "float8_e4m3fn" or "float8_e5m2": what q, k and v hold where they are uint8, for want of ml_dtypes
    out_dtype      beside 8-bit k and v: the type of o, float16, bfloat16 (the usual one beside 8-bit q) or float32;
                   "bfloat16" without ml_dtypes gives its bits as uint16
    mean_*         8-bit k, v: [batch, 1, heads_kv, dim] float32, what every row of a sequence has beside its stored
                   numbers times their scales; both or none

    Returns o [batch, seq_q, heads_q, dim of v], packed [total_q, ...], in the type of q; with return_lse (o, lse), lse
    [batch, heads_q, seq_q] or [heads_q, total_q] in float32, natural logarithm. A row that sees no key has o = 0 and
    lse = -inf, or the sink. Raises TypeError for arguments of a wrong kind, ValueError for shapes, options and memory
    that do not fit, NotImplementedError; `out` is unwritten then. docs/1-math.md has the mathematics and the bounds.
    """
    lengths = read_lengths(cu_seqlens_q, cu_seqlens_kv, seqused_q, seqused_kv)
    smooth = check_means(mean_k, mean_v)
    if dtype is not None or out_dtype is not None or scale_k is not None or smooth or is_8_bit(q) or is_8_bit(k):
        found: Array | tuple[Array, Array] = attention_8_bit(
            q, k, v, {"scale_q": scale_q, "scale_k": scale_k, "scale_v": scale_v},
            {"mean_k": mean_k, "mean_v": mean_v}, dtype, out_dtype, lengths, sink, out, return_lse,
            max_seqlen_q, max_seqlen_kv, causal=causal, window=window_key(window), softcap=softcap,
            scale=scale, align=align, max_sms=max_sms)
        return found
    for name, value in (("scale_q", scale_q), ("scale_v", scale_v)):
        if value is not None: check_scale_is_there(name, value, name[-1], q.dtype.name)
    arrays = {"q": q, "k": k, "v": v}
    if out is not None: arrays["out"] = out
    for name, array in arrays.items(): check_array(name, array, q)
    packed = packed_of(lengths, q, k, max_seqlen_q, max_seqlen_kv)
    sink = dense("sink", sink, q.shape[-2:-1])
    options = dict(causal=causal, window=window_key(window), softcap=softcap, scale=scale, align=align, packed=packed,
                   seqused=lengths.used, sink=sink is not None, max_sms=max_sms)

    def make() -> Call:
        problem = describe(q.shape, k.shape, v.shape, q.dtype.name, **options)
        if out is not None: check_shape("out", out, result_shape(q, v))
        of_o = strides_of("out", out) if out is not None else dense_strides(result_shape(q, v))
        return Call(plan_of(problem, "cpu"), [*(strides_of(name, arrays[name]) for name in "qkv"), of_o])
    call = cached(_calls, key_of(arrays.values(), options), make)

    if out is not None: check_writeable("out", out)
    o = np.empty(result_shape(q, v), q.dtype) if out is None else out
    lse = np.empty(lse_shape(q), np.float32) if return_lse else None
    call.forward(address(q), address(k), address(v), address(o), address(lse), *lengths.addresses(), address(sink))
    return o if lse is None else (o, lse)


def attention_8_bit(q: Array, k: Array, v: Array, scales: dict[str, Any], means: dict[str, Array | None],
                    dtype: str | None, out_dtype: Any, lengths: "HeldLengths", sink: Array | None, out: Array | None,
                    return_lse: bool, max_seqlen_q: int | None, max_seqlen_kv: int | None, **options: Any) -> Any:
    """attention of 8-bit k and v. Scales are looked at anew in each call: on the CPU that is little beside the rest."""
    names = {}
    for name, array in {"q": q, "k": k, "v": v}.items():
        check_array(name, array, array)
        names[name] = type_name(name, array, dtype)
    wanted = out_dtype if out_dtype is None or out_dtype == "bfloat16" else np.dtype(out_dtype).name
    of_o = output_of(names["q"], names["k"], names["v"], wanted, list(DTYPES))
    if names["k"] not in DTYPES_8_BIT:
        raise InvalidType(f"k is {names['k']}; scales, means, dtype and out_dtype go with 8-bit k and v. Leave them "
                          "out.")
    packed = packed_of(lengths, q, k, max_seqlen_q, max_seqlen_kv)
    for name, array in (("q", q), ("k", k), ("v", v)): check_rank(name, array.shape, packed is not None)
    batch, rows_q, rows_kv = packed or (q.shape[0], q.shape[1], k.shape[1])
    held, lie = [], []
    for (name, given), array, rows, dim in zip(scales.items(), (q, k, v), (rows_q, rows_kv, rows_kv),
                                              (0, 0, v.shape[-1])):
        check_scale_is_there(name, given, name[-1], names[name[-1]])
        held.append(None if given is None else scale_array(name, given))
        lie.append(scale_of(name, *layout_of(held[-1]), batch, rows, array.shape[-2], dim))
    of_means = []
    for (name, mean), array in zip(means.items(), (k, v)):
        if mean is not None: held.append(scale_array(name, mean))
        else: held.append(None)
        of_means.append(mean_of(name, *layout_of(held[-1]), batch, array.shape[-2], array.shape[-1]))
    sink = dense("sink", sink, q.shape[-2:-1])
    types = Types(names["k"], of_o, SCALE_ROWS if any(x.blocked for x in lie) else 0, lie[2].columns,
                  smooth=means["mean_k"] is not None)
    problem = describe(q.shape, k.shape, v.shape, names["q"], packed=packed, seqused=lengths.used,
                       sink=sink is not None, types=types, **options)
    shape = result_shape(q, v)
    o = np.empty(shape, array_type(of_o)) if out is None else out
    check_shape("out", o, shape)
    if o.dtype != array_type(of_o): raise InvalidType(f"out is {o.dtype}; o is {of_o} here. Give that.")
    check_writeable("out", o)
    strides = [strides_of(name, x) for name, x in (("q", q), ("k", k), ("v", v), ("out", o))]
    call = Call(plan_of(problem, "cpu"), [*strides, *(x.strides for x in lie), *of_means])
    lse = np.empty(lse_shape(q), np.float32) if return_lse else None
    call.forward_8_bit(address(q), address(k), address(v), address(o), address(lse), *lengths.addresses(),
                       address(sink), *map(address, held))
    return o if lse is None else (o, lse)


def is_8_bit(array: Any) -> bool: return isinstance(array, np.ndarray) and array.dtype.name in DTYPES_8_BIT


def type_name(name: str, array: Array, dtype: str | None) -> str:
    """What the numbers are: uint8 holds those of dtype."""
    if array.dtype != np.uint8: return array.dtype.name
    if dtype not in DTYPES_8_BIT:
        raise InvalidType(f"{name} is uint8 and dtype is {dtype!r}; it says which 8-bit numbers those are. Use "
                          f"{' or '.join(map(repr, DTYPES_8_BIT))}.")
    return dtype


def array_type(name: str) -> Any:
    """NumPy's type of o; without ml_dtypes bfloat16 is held as its bits."""
    if name != "bfloat16": return np.dtype(name)
    try: import ml_dtypes
    except ImportError: return np.dtype(np.uint16)
    return np.dtype(ml_dtypes.bfloat16)


def scale_array(name: str, given: Any) -> Array:
    array = np.asarray(given)
    if array.dtype.kind not in "fiu": raise InvalidType(f"{name} is {array.dtype}; scales are float32. Convert it.")
    return array.astype(np.float32, copy=False)


def layout_of(array: Array | None) -> tuple[Shape, Strides]:
    if array is None: return (), (0, 0, 0)
    return array.shape, tuple(stride // array.itemsize for stride in array.strides)  # type: ignore[return-value]


def attention_backward(grad_o: Array, q: Array, k: Array, v: Array, o: Array, lse: Array, *,
                       grad_lse: Array | None = None, causal: bool = False, window: Window | None = None,
                       softcap: float = 0.0, scale: float | None = None, sink: Array | None = None,
                       cu_seqlens_q: Lengths | None = None, cu_seqlens_kv: Lengths | None = None,
                       seqused_q: Lengths | None = None, seqused_kv: Lengths | None = None,
                       deterministic: bool = False, out: Gradients | Sequence[Array | None] | None = None,
                       accumulate: bool = False, align: str = "bottom_right", max_sms: int = 0,
                       max_seqlen_q: int | None = None, max_seqlen_kv: int | None = None) -> Gradients:
    """The gradients of q, k, v and sink, of NumPy arrays.

    o, lse         what attention(..., return_lse=True) gave for the same arguments
    grad_o         the gradient of o, its shape and type
    grad_lse       the gradient of lse, where lse is used further on; float32
    deterministic  the same bits in every run; on the CPU they always are
    out            arrays for the gradients of q, k, v (and sink), in that order; shapes of q, k, v, type of q
    accumulate     add to what is in out, whose arrays are float32 then

    The other arguments are those of attention. Returns Gradients(q, k, v, sink), sink None where there is none; raises
    as attention does, and out is unwritten then. docs/8-backward.md has the formulas.
    """
    lengths = read_lengths(cu_seqlens_q, cu_seqlens_kv, seqused_q, seqused_kv)
    arrays = {"q": q, "k": k, "v": v, "o": o, "grad_o": grad_o}
    for name, array in arrays.items(): check_array(name, array, q)
    packed = packed_of(lengths, q, k, max_seqlen_q, max_seqlen_kv)
    sink = dense("sink", sink, q.shape[-2:-1])
    options = dict(causal=causal, window=window_key(window), softcap=softcap, scale=scale, align=align, packed=packed,
                   seqused=lengths.used, sink=sink is not None, max_sms=max_sms, deterministic=deterministic,
                   accumulate=accumulate, backward=True)
    describe(q.shape, k.shape, v.shape, q.dtype.name, **options)  # shapes make sense from here on
    for name in ("o", "grad_o"): check_shape(name, arrays[name], result_shape(q, v))
    if lse is None: raise InvalidType("lse is None; gradients need it. Use attention(..., return_lse=True).")
    lse = dense("lse", lse, lse_shape(q))
    grad_lse = dense("grad_lse", grad_lse, lse_shape(q))
    grads = gradients_for(out, q, k, v, sink, accumulate)
    arrays |= {"out[0]": grads.q, "out[1]": grads.k, "out[2]": grads.v}

    def make() -> Call:
        problem = describe(q.shape, k.shape, v.shape, q.dtype.name, **options)
        return Call(plan_of(problem, "cpu"), [strides_of(name, array) for name, array in arrays.items()])
    call = cached(_calls, key_of(arrays.values(), options), make)

    call.backward(address(q), address(k), address(v), address(o), address(lse), *lengths.addresses(), address(sink),
                  address(grad_o), address(grads.q), address(grads.k), address(grads.v), address(grad_lse),
                  address(grads.sink))
    return grads


class HeldLengths(NamedTuple):
    """int32 and contiguous; None where not given."""
    cu_seqlens_q: Array | None
    cu_seqlens_kv: Array | None
    seqused_q: Array | None
    seqused_kv: Array | None

    @property
    def used(self) -> bool: return self.seqused_q is not None or self.seqused_kv is not None

    def addresses(self) -> tuple[int, int, int, int]:
        q, kv, used_q, used_kv = map(address, self)
        return q, kv, used_q, used_kv


def read_lengths(*given: Lengths | None) -> HeldLengths:
    return HeldLengths(*(read_one_length(name, value) for name, value in zip(HeldLengths._fields, given)))


def read_one_length(name: str, value: Lengths | None) -> Array | None:
    if value is None: return None
    array = np.asarray(value)
    if array.size == 0: array = array.astype(np.int32)  # an empty list is one of floats
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise InvalidType(f"{name} is {array.dtype.name} with the shape {list(array.shape)}; it is a list of whole "
                          "numbers. Give int32.")
    if array.size and not (array.min() >= -2**31 and array.max() < 2**31):
        raise InvalidTensor(f"{name} holds {array.max()}; rows are counted in int32. Split the batch.")
    return np.ascontiguousarray(array, np.int32)


def packed_of(lengths: HeldLengths, q: Array, k: Array, max_seqlen_q: int | None,
              max_seqlen_kv: int | None) -> Packed | None:
    """How many sequences there are and how long, where they are packed; checks that all lengths fit each other."""
    begins_q, begins_kv = lengths.cu_seqlens_q, lengths.cu_seqlens_kv
    if (begins_q is None) != (begins_kv is None):
        given, other = ("q", "kv") if begins_kv is None else ("kv", "q")
        raise InvalidProblem(f"cu_seqlens_{given} is given and cu_seqlens_{other} is not; both sides are packed or "
                             f"none. Give cu_seqlens_{other}.")
    packed, batch = None, q.shape[0] if q.ndim else 0
    if begins_q is not None and begins_kv is not None:
        for name, begins in (("q", begins_q), ("kv", begins_kv)):
            if len(begins) < 1 or len(begins) != len(begins_q):
                raise InvalidProblem(f"cu_seqlens_{name} has {len(begins)} numbers and cu_seqlens_q {len(begins_q)}; "
                                     "both have one more than there are sequences. Make them equally long.")
        packed = Packed(len(begins_q) - 1, longest(begins_q, max_seqlen_q), longest(begins_kv, max_seqlen_kv))
        batch = packed.batch
    elif max_seqlen_q is not None or max_seqlen_kv is not None:
        raise InvalidProblem("max_seqlen_q or max_seqlen_kv is given without cu_seqlens; only packed sequences have a "
                             "longest one. Leave them out.")
    for name, used in (("seqused_q", lengths.seqused_q), ("seqused_kv", lengths.seqused_kv)):
        if used is not None and len(used) != batch:
            raise InvalidProblem(f"{name} has {len(used)} numbers and there are {batch} sequences; it has one for "
                                 f"each. Give it {batch}.")
    return packed


def longest(begins: Array, given: int | None) -> int:
    if given is not None: return given
    return max(0, int(np.diff(begins).max(initial=0)))


def check_array(name: str, array: Any, q: Any) -> None:
    """It is an array of NumPy in the type of q, in this machine's byte order."""
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        where = type(array).__module__.partition(".")[0]
        out = f"Use froghopper.{where} for it." if where in ("torch", "jax") else "Use numpy.asarray."
        raise InvalidType(f"{name} is a {type(array).__name__}; this function computes on arrays of NumPy. {out}")
    if array.dtype != q.dtype:
        raise InvalidType(f"{name} is {array.dtype} and q is {q.dtype}; they have the same type. Convert one.")
    if not array.dtype.isnative: raise InvalidType(f"{name} has the other byte order. Convert to {array.dtype.name}.")


def check_shape(name: str, array: Array, shape: Shape) -> None:
    if array.shape != tuple(shape):
        raise InvalidTensor(f"{name} has the shape {list(array.shape)}; it must be {list(shape)}. Reshape it.")


def check_writeable(name: str, array: Array) -> None:
    if not array.flags.writeable: raise InvalidTensor(f"{name} is read-only; results go there. Give another array.")


def dense(name: str, array: Any, shape: Shape) -> Any:
    """The same, contiguous: a float32 array of that shape, or None."""
    if array is None: return None
    if not isinstance(array, np.ndarray) or array.dtype != np.float32:
        kind = array.dtype.name if isinstance(array, np.ndarray) else "a " + type(array).__name__
        raise InvalidType(f"{name} is {kind}; it is an array of float32. Convert it.")
    check_shape(name, array, shape)
    return np.ascontiguousarray(array)


def gradients_for(out: Any, q: Array, k: Array, v: Array, sink: Array | None, accumulate: bool) -> Gradients:
    """Where gradients go: the user's arrays, checked, or new ones."""
    if out is None:
        if accumulate: raise InvalidProblem("accumulate is True and out is None; gradients are added to it. Give out.")
        new_q, new_k, new_v = (np.empty(x.shape, q.dtype) for x in (q, k, v))
        return Gradients(new_q, new_k, new_v, None if sink is None else np.empty_like(sink))
    if not isinstance(out, (tuple, list)):
        raise InvalidType(f"out is a {type(out).__name__}; it has an array for each gradient. Give a tuple of them.")
    held = [x for x in out if x is not None]
    likes = [x for x in (q, k, v, sink) if x is not None]
    if len(held) != len(likes):
        raise InvalidType(f"out has {len(held)} arrays; there are gradients of q, k, v{', sink' * (sink is not None)}. "
                          f"Give {len(likes)}.")
    for at, (array, like) in enumerate(zip(held, likes)):
        wanted = np.dtype(np.float32) if accumulate else like.dtype
        if not isinstance(array, np.ndarray) or array.dtype != wanted:
            kind = getattr(array, "dtype", type(array).__name__)
            raise InvalidType(f"out[{at}] is {kind}; it is an array of {wanted.name}"
                              f"{', as accumulate adds in float32' * accumulate}. Give that.")
        check_shape(f"out[{at}]", array, like.shape)
        check_writeable(f"out[{at}]", array)
    if sink is not None and not held[3].flags.c_contiguous:
        raise InvalidTensor("out[3] is not contiguous; the gradient of sink is dense. Give a contiguous array.")
    return Gradients(held[0], held[1], held[2], held[3] if sink is not None else None)


def result_shape(q: Array, v: Array) -> tuple[int, ...]: return (*q.shape[:-1], *v.shape[-1:])


def lse_shape(q: Array) -> tuple[int, ...]:
    return (q.shape[1], q.shape[0]) if q.ndim == 3 else (q.shape[0], q.shape[2], q.shape[1])


def dense_strides(shape: Shape) -> Strides:
    return 0 if len(shape) == 3 else shape[-3] * shape[-2] * shape[-1], shape[-2] * shape[-1], shape[-1]


def strides_of(name: str, array: Array) -> Strides:
    if any(stride % array.itemsize for stride in array.strides):
        raise InvalidTensor(f"{name} has the strides {list(array.strides)} (bytes); elements have {array.itemsize} "
                            "bytes and lie at multiples of that. Copy it first.")
    return element_strides(name, array.shape, [stride // array.itemsize for stride in array.strides])


def window_key(window: Any) -> Any: return tuple(window) if isinstance(window, list) else window


def key_of(arrays: Any, options: dict[str, Any]) -> Hashable:
    """Everything that makes a Call another one."""
    return (*((x.shape, x.strides, x.dtype) for x in arrays), *options.values())


def address(array: Array | None) -> int:
    return 0 if array is None else int(array.__array_interface__["data"][0])
