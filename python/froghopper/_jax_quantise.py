# SPDX-License-Identifier: Apache-2.0
"""q, k and v of JAX -> 8-bit copies and scales, as froghopper.jax.attention takes them."""
# JAX has few types, and mypy runs where it is not installed, too.
# mypy: disable-error-code="import-not-found,no-any-return,no-untyped-call,untyped-decorator"
import functools
from collections.abc import Hashable
from typing import Any, NamedTuple

import jax

from froghopper._call import SCALE_ROWS, cached, check_rank, check_shapes
from froghopper._errors import InvalidType
from froghopper._jax_arrays import Array, Given, bounds, check_sizes, checked, varying_alike
from froghopper._jax_problem import in_users_words, with_names
from froghopper._quantise import blocks_of, check_given
from froghopper._values import flag, shown, whole_name, whole_number
from froghopper._words import takes_words_of_others
from froghopper._xla import check_problem, compute, in_explicit_mesh, is_explicit
from froghopper._xla_kind import Copies, Kind, Options

COPIES = ("quantised_q", "quantised_k", "quantised_v", "scale_q", "scale_k", "scale_v")
MEANS = ("mean_k", "mean_v")


class Quantised(NamedTuple):
    """q, k and v in 8 bits and what their values are multiplied by: [batch, blocks, heads, 1] float32."""
    q: Array
    k: Array
    v: Array
    scale_q: Array
    scale_k: Array
    scale_v: Array


class Smoothed(NamedTuple):
    """Quantised, and the mean that was subtracted from each sequence's k and v: [batch, 1, heads_kv, dim] float32."""
    q: Array
    k: Array
    v: Array
    scale_q: Array
    scale_k: Array
    scale_v: Array
    mean_k: Array
    mean_v: Array


@takes_words_of_others("jax")
def quantise(q: Array, k: Array, v: Array, *, dtype: Any = "float8_e4m3fn", rotate: bool = True, rotate_seed: int = 0,
             scale_rows: int = SCALE_ROWS, cu_seqlens_q: Array | None = None, cu_seqlens_kv: Array | None = None,
             max_seqlen_q: int | None = None, max_seqlen_kv: int | None = None, seqused_q: Array | None = None,
             seqused_kv: Array | None = None, max_sms: int = 0, smooth: bool = False) -> Quantised | Smoothed:
    """8-bit copies and scales for froghopper.jax.attention, also under jit, vmap and over several devices.

        o = attention(**quantise(q, k, v)._asdict(), causal=True)

    q, k, v        as attention has them: float16 or bfloat16, on CPUs also float32; head dims are multiples of 16
    dtype          jax.numpy.float8_e4m3fn or jax.numpy.float8_e5m2, or its name, also "e4m3" or "e5m2"
    rotate         q and k are multiplied by an orthogonal matrix first, so that q k^T stays as it is and outliers are
                   spread over their row: docs/11-quantise.md. False where q stays as it was and attention gets only the
                   8-bit k and v
    rotate_seed    of that matrix's signs, 0 to 2^32 - 1; q and k that meet need the same
    scale_rows     rows of a sequence that share a scale: 128, or 0 for all of them
    smooth         the mean of all rows of a sequence is subtracted from k and v first, and given as mean_k and mean_v,
                   which attention adds again: for models whose k and v have one
    others         as attention has them

    Everything but arrays is static, so packed sequences without max_seqlen_* have as many blocks as all rows together
    would need; attention takes them as they are. Rows of no sequence, and rows that do not count, hold anything. It has
    no derivatives. Raises TypeError, ValueError and NotImplementedError as attention does.
    """
    check_given(q, k, v)
    found = {"q": q, "k": k, "v": v, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_kv": cu_seqlens_kv,
             "seqused_q": seqused_q, "seqused_kv": seqused_kv}
    arrays = {name: checked(name, array, q) for name, array in found.items()
              if array is not None or name in ("q", "k", "v")}
    most = bounds(arrays, max_seqlen_q=max_seqlen_q, max_seqlen_kv=max_seqlen_kv)
    copies = Copies(name_of(whole_name(dtype)), whole_number("scale_rows", scale_rows), flag("rotate", rotate),
                    whole_number("rotate_seed", rotate_seed), flag("smooth", smooth))
    options = with_names(Options(max_sms=whole_number("max_sms", max_sms), **most), arrays)
    key = (copies, options, *((name, x.shape, x.dtype) for name, x in arrays.items()))
    cached(_fit, key, lambda: fits(options, copies, arrays))
    with in_users_words(): made = run(options, copies, varying_alike(arrays))
    rows_q = arrays["q"].shape[-3] if options.max_seqlen_q is None else options.max_seqlen_q
    rows_kv = arrays["k"].shape[-3] if options.max_seqlen_kv is None else options.max_seqlen_kv
    counts = (blocks_of(rows, copies.scale_rows) for rows in (rows_q, rows_kv, rows_kv))
    scales = [x[:, :count, :, None] for x, count in zip(made[3:6], counts)]
    if copies.smooth: return Smoothed(*made[:3], *scales, *(x[:, None] for x in made[6:]))
    return Quantised(*made[:3], *scales)


_fit: dict[Hashable, bool] = {}  # what was checked already, so that a call that is not traced costs less


def name_of(dtype: Any) -> str:
    """Of a type of JAX, or a name. Whether it has 8 bits is seen later."""
    if isinstance(dtype, str): return dtype
    try: return str(jax.numpy.dtype(dtype).name)
    except Exception as error:  # NumPy's own of a tensor that is no type
        raise InvalidType(f"dtype must be float8_e4m3fn or float8_e5m2, but is {shown(dtype)}. Give one of them.") \
            from error


def fits(options: Options, copies: Copies, arrays: Given) -> bool:
    """Raises what is wrong with the shapes, and with the options for them."""
    for name in "qkv": check_rank(name, arrays[name].shape, "cu_seqlens_q" in arrays)
    check_shapes(*(arrays[name].shape for name in "qkv"))
    check_problem(kind_of(options, copies, arrays), tuple(arrays.values()))
    check_sizes(arrays)
    return True


def kind_of(options: Options, copies: Copies, arrays: Given) -> Kind:
    return Kind(options, tuple(arrays), COPIES + MEANS * copies.smooth, copies)


@functools.partial(jax.jit, static_argnums=(0, 1))
def run(options: Options, copies: Copies, arrays: Given) -> Any:
    """One program for a problem."""
    def function(arrays: Given) -> Any: return compute(kind_of(options, copies, arrays), tuple(arrays.values()))
    if not any(map(is_explicit, arrays.values())): return function(arrays)
    return in_explicit_mesh(kind_of(options, copies, arrays), function, arrays)
