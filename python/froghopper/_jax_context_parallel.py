# SPDX-License-Identifier: Apache-2.0
"""Exact attention of JAX over sequences whose rows are spread over an axis of a mesh, under shard_map.

    from froghopper.jax import context_parallel as cp
    rows = PartitionSpec(None, "ring")
    attend = jax.shard_map(functools.partial(cp.attention, axis_name="ring", causal=True), mesh=mesh,
                           in_specs=(rows, rows, rows), out_specs=rows)
    o = cp.unzigzag(attend(*(cp.zigzag(x, devices) for x in (q, k, v))), devices)

k and v go round the devices of the axis, and what each part of them gives is merged in fp32 as it is computed. For the
gradients they go round once more, with their own gradients, to which each device adds in fp32. These are rounded once.
"""
# JAX has few types, and mypy runs where it is not installed, too.
# mypy: disable-error-code="import-not-found,no-any-return,no-untyped-call,untyped-decorator"
import functools
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, TypeAlias, get_args, overload

import jax
import jax.numpy as jnp

from froghopper import jax as single
from froghopper._errors import InvalidProblem
from froghopper._jax_arrays import vary, varying_alike, varying_axes
from froghopper._values import flag, plain, shown
from froghopper._words import takes_words_of_others
from froghopper._xla_kind import Options

__all__ = ["attention", "unzigzag", "zigzag"]


def __dir__() -> list[str]: return sorted(__all__)


Array: TypeAlias = jax.Array
Layout = Literal["zigzag", "contiguous"]


class Setup(NamedTuple):
    axis: str
    causal: bool
    zigzag: bool
    scale: float | None
    softcap: float
    deterministic: bool


class Piece(NamedTuple):
    """Rows of this device and keys of another one that attend to each other whole; numbers may be traced. seen: how
    many of the keys count, None for all."""
    row: Any
    rows: int
    key: Any
    keys: int
    seen: Any = None


@overload
def attention(q: Array, k: Array, v: Array, axis_name: str, *, causal: bool = ..., scale: float | None = ...,
              softcap: float | None = ..., layout: Layout = ..., deterministic: bool = ...,
              return_lse: Literal[False] = ...) -> Array: ...


@overload
def attention(q: Array, k: Array, v: Array, axis_name: str, *, causal: bool = ..., scale: float | None = ...,
              softcap: float | None = ..., layout: Layout = ..., deterministic: bool = ...,
              return_lse: Literal[True]) -> tuple[Array, Array]: ...


@takes_words_of_others("jax.context_parallel")
def attention(q: Array, k: Array, v: Array, axis_name: str, *, causal: bool = False, scale: float | None = None,
              softcap: float | None = None, layout: Layout = "zigzag", deterministic: bool = False,
              return_lse: bool = False) -> Array | tuple[Array, Array]:
    """softmax(scale q k^T + mask) v over the rows of all devices along an axis, with gradients of q, k and v.

    q          [batch, rows of this device, heads_q, dim]; as many rows on every device
    k, v       [batch, rows of this device, heads_kv, dim]; v may have its own dim
    axis_name  of the shard_map around the call
    causal, scale, softcap, deterministic   as for froghopper.jax.attention
    layout     which rows this device has: "contiguous", as PartitionSpec cuts them; "zigzag", as it cuts what zigzag
               gives, so that all devices have equal work under a causal mask. Without causal both are the same

    Returns o [batch, rows of this device, heads_q, dim of v] in the type of q; with return_lse (o, lse), lse [batch,
    heads_q, rows] in float32. Raises what froghopper.jax.attention raises, while it is traced.
    """
    if layout not in get_args(Layout):
        raise InvalidProblem(f"layout must be \"zigzag\" or \"contiguous\", but is {shown(layout)}. Use \"zigzag\" for "
                             "causal attention.")
    if q.shape[1] != k.shape[1]:
        raise InvalidProblem(f"k must have the rows of q, {q.shape[1]}, but has {k.shape[1]}. Give k and v of the same "
                             "rows.")
    of = plain(causal=causal, scale=scale, softcap=softcap, deterministic=deterministic)
    try: devices = jax.lax.psum(1, axis_name)
    except (NameError, TypeError, ValueError) as error:  # JAX's, of no axis and of what can be none
        text = f"axis_name must be an axis of a jax.shard_map around the call, but is {shown(axis_name)}."
        raise InvalidProblem(f"{text} Call inside of one: help(froghopper.jax.context_parallel).") from error
    halves = layout == "zigzag" and of["causal"] and devices > 1
    if halves and q.shape[1] % 2:
        raise InvalidProblem(f"q must have a multiple of 2 rows on each device with layout \"zigzag\", but has "
                             f"{q.shape[1]}. Use layout=\"contiguous\".")
    setup = Setup(axis_name, of["causal"], halves, of["scale"], of["softcap"], of["deterministic"])
    o, lse = ring(setup, q, k, v)
    return (o, lse) if flag("return_lse", return_lse) else o


@takes_words_of_others("jax.context_parallel")
def zigzag(x: Array, devices: int, axis: int = 1) -> Array:
    """A whole array with its rows in another order, so that PartitionSpec gives each of so many devices two chunks: one
    from the beginning and, counted from the end, the same one. x: as many rows as a multiple of 2 devices."""
    parts = chunks_of(x, devices, axis)
    return jnp.concatenate([parts[at] for at in order(devices)], axis)


@takes_words_of_others("jax.context_parallel")
def unzigzag(x: Array, devices: int, axis: int = 1) -> Array:
    """The inverse of zigzag."""
    parts, places = chunks_of(x, devices, axis), order(devices)
    return jnp.concatenate([parts[places.index(at)] for at in range(2 * devices)], axis)


def order(devices: int) -> list[int]: return [at for here in range(devices) for at in (here, 2 * devices - 1 - here)]


def chunks_of(x: Array, devices: int, axis: int) -> list[Array]:
    if x.shape[axis] % (2 * devices):
        raise InvalidProblem(f"x must have a multiple of {2 * devices} rows, two chunks for each device, but has "
                             f"{x.shape[axis]}. Pad it, or use layout=\"contiguous\".")
    return jnp.split(x, 2 * devices, axis)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def ring(setup: Setup, q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """(o, lse) of this device's rows."""
    axes = tuple(sorted(varying_axes(q)))
    o = vary(jnp.zeros((*q.shape[:3], v.shape[3]), jnp.float32), axes)
    lse = vary(jnp.full((q.shape[0], q.shape[2], q.shape[1]), -jnp.inf, jnp.float32), axes)
    words: dict[str, Any] = dict(scale=setup.scale, softcap=setup.softcap)
    o, lse = single.attention(q, k, v, causal=setup.causal, accumulate=(o, lse), **words)
    for peer in peers(setup):
        k, v = passed_on(setup, k, v)
        for at in pieces(setup, peer, q.shape[1]):
            held = cut(o, at.row, at.rows), cut(lse, at.row, at.rows, 2)
            found = single.attention(cut(q, at.row, at.rows), cut(k, at.key, at.keys), cut(v, at.key, at.keys),
                                     seqused_kv=counted(q, at.seen), accumulate=held, **words)
            o = jax.lax.dynamic_update_slice_in_dim(o, found[0], at.row, 1)
            lse = jax.lax.dynamic_update_slice_in_dim(lse, found[1], at.row, 2)
    return o.astype(q.dtype), lse


def forward(setup: Setup, q: Array, k: Array, v: Array) -> Any:
    o, lse = ring(setup, q, k, v)
    return (o, lse), (q, k, v, o, lse)


def backward(setup: Setup, kept: tuple[Array, ...], grads: tuple[Array, Array]) -> tuple[Array, Array, Array]:
    q, k, v, o, lse = kept
    dtype, rows = q.dtype, q.shape[1]
    dq, dk, dv = (jnp.zeros(x.shape, jnp.float32) for x in (q, k, v))

    def add(at: Piece, causal: bool) -> None:
        """The gradients that a piece gives, in fp32."""
        nonlocal dq, dk, dv
        sums = {"grad_q": cut(dq, at.row, at.rows), "grad_k": cut(dk, at.key, at.keys),
                "grad_v": cut(dv, at.key, at.keys)}
        given = {"q": cut(q, at.row, at.rows), "k": cut(k, at.key, at.keys), "v": cut(v, at.key, at.keys)}
        if at.seen is not None: given["seqused_kv"] = counted(q, at.seen)
        options = Options(causal=causal, window=(-1, -1), scale=setup.scale, softcap=setup.softcap,
                          deterministic=setup.deterministic)
        rest = cut(grads[0], at.row, at.rows), cut(grads[1], at.row, at.rows, 2)
        kept = varying_alike(given), cut(o, at.row, at.rows), cut(lse, at.row, at.rows, 2)
        found, = single.backward(options, ("o", "lse"), kept, rest, varying_alike(sums))
        dq = put(dq, found["q"], at.row)
        dk, dv = put(dk, found["k"], at.key), put(dv, found["v"], at.key)

    add(Piece(0, rows, 0, rows), setup.causal)
    for peer in peers(setup):
        k, v, dk, dv = passed_on(setup, k, v, dk, dv)
        for at in pieces(setup, peer, rows): add(at, False)
    dk, dv = passed_on(setup, dk, dv)
    return dq.astype(dtype), dk.astype(dtype), dv.astype(dtype)


ring.defvjp(forward, backward)


def peers(setup: Setup) -> Iterator[Any]:
    """Whose k and v this device has after each step; its own come first, and are not among them."""
    devices, here = jax.lax.psum(1, setup.axis), jax.lax.axis_index(setup.axis)
    for step in range(1, devices): yield (here - step) % devices


def passed_on(setup: Setup, *arrays: Array) -> list[Array]:
    """What the device before this one had."""
    devices = jax.lax.psum(1, setup.axis)
    around = [(at, (at + 1) % devices) for at in range(devices)]
    return [jax.lax.ppermute(x, setup.axis, around) for x in arrays]


def pieces(setup: Setup, peer: Any, rows: int) -> list[Piece]:
    """What this device's rows attend to of another one's keys. Zigzag: the later half of rows attends to the earlier
    half of keys; so does the earlier half of rows, or else the later half of rows attends to the later half too."""
    if not setup.causal: return [Piece(0, rows, 0, rows)]
    earlier = peer < jax.lax.axis_index(setup.axis)
    if not setup.zigzag: return [Piece(0, rows, 0, rows, jnp.where(earlier, rows, 0))]
    half = rows // 2
    other = jnp.where(earlier, 0, half)
    return [Piece(half, half, 0, half), Piece(other, half, other, half)]


def cut(x: Array, begin: Any, length: int, axis: int = 1) -> Array:
    return x if x.shape[axis] == length else jax.lax.dynamic_slice_in_dim(x, begin, length, axis)


def put(x: Array, part: Any, begin: Any) -> Array:
    return part if x.shape == part.shape else jax.lax.dynamic_update_slice_in_dim(x, part, begin, 1)


def counted(q: Array, seen: Any) -> Any:
    """How many keys of each sequence count."""
    return None if seen is None else jnp.full(q.shape[:1], seen, jnp.int32)
