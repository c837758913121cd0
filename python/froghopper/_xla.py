# SPDX-License-Identifier: Apache-2.0
"""What froghopper.jax is made of: one call of the library as a function of JAX, with its rules.

    compute    a Kind (_xla_kind.py, or _xla_append.py) and arrays -> arrays. Layers from the outside in, each knows
               only the next:
      again        a second derivative is refused in words
      batched      jax.vmap: examples become sequences or heads of one larger call
      partitioned  jax.jit over several devices: sequences and heads may be spread, nothing else
      bound        the primitive; lowered to a call of libfroghopper_xla.so, for the platform that is lowered for
"""
# JAX has few types, and mypy runs where it is not installed, too.
# mypy: disable-error-code="import-not-found,no-any-return,no-untyped-call,untyped-decorator"
import ctypes
import functools
import inspect
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec

from froghopper import _c
from froghopper._call import plan_of
from froghopper._errors import LibraryNotFound, NoDevice, Unsupported
from froghopper._library import library
from froghopper._xla_append import Appending
from froghopper._xla_kind import Q_HEADS, ROWS_AND_COLUMNS, Kind

Arrays = tuple[jax.Array, ...]
Function = Callable[..., Arrays]
Called = Kind | Appending  # alike for what is here

HANDLERS, TARGET = "libfroghopper_xla.so", "froghopper_attention"
ALIGNMENT_SPARE = 255  # the handler aligns the workspace to 256 bytes
NAMED_GPU = "h200"  # what a program is lowered for where GPUs are meant and none is here


def compute(kind: Called, arrays: Sequence[jax.Array]) -> Arrays:
    """The results of a kind for its arrays, under any transformation of JAX but a derivative."""
    return tuple(again(kind)(*arrays))


@functools.lru_cache(maxsize=None)
def again(kind: Called) -> Function:
    """One more derivative is refused: gradients of gradients are not computed."""
    function = jax.custom_jvp(lambda *arrays: batched(kind)(*arrays))

    def refuse(primals: Any, tangents: Any) -> Any:
        raise Unsupported(kind.no_derivative)
    function.defjvp(refuse)
    return function


@functools.lru_cache(maxsize=None)
def batched(kind: Called) -> Function:
    """jax.vmap's rule. Examples become further sequences; where they share packed lengths, or have sinks of their own,
    further heads; where packed examples differ in lengths, or have pools of their own, they are computed one after the
    other."""
    function = custom_vmap(lambda *arrays: tuple(partitioned(kind, *kind.heads(arrays))(*arrays)))

    def rule(size: int, are_batched: Sequence[bool], *arrays: jax.Array) -> tuple[Arrays, tuple[bool, ...]]:
        into = kind.folded_into(dict(zip(kind.names, are_batched)))
        results = larger(kind, size, are_batched, arrays, into) if into else one_by_one(kind, are_batched, arrays)
        return results, (True,) * len(results)
    function.def_vmap(rule)
    return function


def one_by_one(kind: Called, are_batched: Sequence[bool], arrays: Sequence[jax.Array]) -> Arrays:
    def one(given: list[jax.Array]) -> Arrays:
        rest = iter(given)
        return batched(kind)(*(next(rest) if is_batched else x for is_batched, x in zip(are_batched, arrays)))
    found: Arrays = jax.lax.map(one, [x for is_batched, x in zip(are_batched, arrays) if is_batched])
    return found


def larger(kind: Called, size: int, are_batched: Sequence[bool], arrays: Sequence[jax.Array], into: str) -> Arrays:
    """One call whose dimension `into` ("b" or "h") counts examples too."""
    def axis_of(name: str) -> int | None:
        dims = kind.dims_of(name)
        wanted = (into, Q_HEADS) if into == "h" else (into,)
        return next((i - len(dims) for i, dim in enumerate(dims) if dim in wanted), None)

    folded = []
    for name, is_batched, x in zip(kind.names, are_batched, arrays):
        axis = axis_of(name)
        if axis is None: folded.append(x)  # the same for all examples
        elif not is_batched and name == "sink" and into == "b": folded.append(x)
        else: folded.append(fold(x if is_batched else jnp.broadcast_to(x, (size, *x.shape)), axis))
    results = batched(kind)(*folded)
    axes = [axis_of(name) for name in kind.results]
    return tuple(unfold(x, size, axis) for x, axis in zip(results, axes) if axis is not None)


def fold(x: jax.Array, axis: int) -> jax.Array:
    """Examples, the first dimension, become part of another one, outermost. axis: negative."""
    x, at = jnp.moveaxis(x, 0, axis - 1), x.ndim + axis
    return x.reshape(*x.shape[:at - 1], x.shape[at - 1] * x.shape[at], *x.shape[at + 1:])


def unfold(x: jax.Array, size: int, axis: int) -> jax.Array:
    at = x.ndim + axis
    return jnp.moveaxis(x.reshape(*x.shape[:at], size, x.shape[at] // size, *x.shape[at + 1:]), at, 0)


class Spread(NamedTuple):
    """Axes of the mesh over which sequences, key heads, and the query heads of each key head are spread."""
    batch: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    group: tuple[str, ...] = ()

    def spec(self, name: str, kind: Called) -> PartitionSpec:
        of = {"b": self.batch, "h": self.heads, Q_HEADS: self.heads + self.group}
        return PartitionSpec(*(of.get(dim) or None for dim in kind.dims_of(name)))


def spread_of(kind: Called, mesh: Any, arrays: Sequence[Any]) -> Spread:
    """As much of the sharding of kind.lead, which is q if there is one, as the library can follow: whole sequences and
    whole groups of heads; or, where a device has one key head, parts of the query heads that share it. arrays: with
    shape, and that one with sharding."""
    q, (heads, group) = arrays[kind.names.index(kind.lead)], kind.heads(arrays)
    spec = tuple(getattr(q.sharding, "spec", ())) + (None,) * len(q.shape)
    axes = [(dim,) if isinstance(dim, str) else tuple(dim or ()) for dim in spec]
    found: dict[str, list[str]] = {"b": [], "h": [], "g": []}
    by_sequence = kind.dims_of(kind.lead)[0] == "b"
    left = {"b": q.shape[0] if by_sequence else 1, "h": heads, "g": group}

    def take(axis: str, dim: str) -> bool:
        size = mesh.shape[axis]
        if left[dim] == 0 or left[dim] % size: return False
        left[dim] //= size
        found[dim].append(axis)
        return True
    for axis in axes[0] if by_sequence else ():
        if not take(axis, "b"): break
    for axis in axes[len(q.shape) - 2]:
        if not (not found["g"] and take(axis, "h") or left["h"] == 1 and take(axis, "g")): break
    return Spread(*(tuple(found[dim]) for dim in "bhg"))


@functools.lru_cache(maxsize=None)
def partitioned(kind: Called, heads: int, group: int) -> Function:
    """The rule for several devices. heads, group: key heads, and query heads of each."""
    function = custom_partitioning(lambda *arrays: bound(kind, *arrays))

    def shardings(mesh: Any, arrays: Sequence[Any]) -> tuple[Spread, list[NamedSharding], tuple[NamedSharding, ...]]:
        spread = spread_of(kind, mesh, arrays)
        given, found = ([NamedSharding(mesh, spread.spec(name, kind)) for name in names]
                        for names in (kind.names, kind.results))
        return spread, given, tuple(found)

    def partition(mesh: Any, arrays: Any, results: Any) -> Any:
        spread, given, found = shardings(mesh, arrays)
        return mesh, lambda *parts: summed(kind, spread, bound(kind, *parts)), found, tuple(given)

    def infer(mesh: Any, arrays: Any, results: Any) -> Any: return shardings(mesh, arrays)[2]

    def rule(mesh: Any, given: Any, found: Any) -> Any: return shardy_rule(kind, heads, group, mesh.shape.values())
    follows_rules = "need_replication_factors" in inspect.signature(function.def_partition).parameters
    function.def_partition(partition, infer_sharding_from_operands=infer, sharding_rule=rule if follows_rules else None)
    return function


def shardy_rule(kind: Called, heads: int, group: int, axes: Iterable[int]) -> tuple[str, dict[str, Any]]:
    """What partition can follow, in Shardy's words: "b s (h g) d, b t h d, ... -> b s (h g) e". axes: their sizes.

    Shardy would spread 2 key heads over half of an axis of 4, which no PartitionSpec says; so where an axis does not
    divide them, it is not told that the heads of q and k belong together, and the partition gathers what it must."""
    sizes: dict[str, int] = {}
    if group == 1: heads_q = "h"
    elif heads == 1: heads_q = "g"
    elif any(heads % axis for axis in axes): heads_q = "i"
    else: heads_q, sizes = Q_HEADS, {"g": group}
    given, found = (", ".join(" ".join(kind.dims_of(name)).replace(Q_HEADS, heads_q) for name in names)
                    for names in (kind.names, kind.results))
    whole = tuple(dim for dim in dict.fromkeys(given) if dim in ROWS_AND_COLUMNS)  # in this order: Shardy asks for it
    return f"{given} -> {found}", {"need_replication_factors": whole, **sizes}


def in_explicit_mesh(kind: Called, function: Function, arrays: dict[str, jax.Array]) -> Any:
    """function(arrays), where types have shardings: results are spread as q is, as far as Spread can say it."""
    types = [jax.typeof(x) for x in arrays.values()]
    sharding = types[kind.names.index(kind.lead)].sharding
    spread = spread_of(kind, sharding.mesh, types)
    found = tuple(NamedSharding(sharding.mesh, spread.spec(name, kind)) for name in kind.results)
    return jax.sharding.auto_axes(function, out_sharding=found if len(found) > 1 else found[0])(arrays)


def is_explicit(x: jax.Array) -> bool:
    """Its type says how it is spread."""
    sharding = getattr(jax.typeof(x), "sharding", None) if hasattr(jax, "typeof") else None
    return sharding is not None and bool(getattr(sharding.mesh, "explicit_axes", ()))


def summed(kind: Called, spread: Spread, results: Arrays) -> Arrays:
    """What several devices have a part of, added up: the gradients of what they share."""
    shared = {"grad_sink": spread.batch, "grad_k": spread.group, "grad_v": spread.group}
    return tuple(jax.lax.psum(x, shared[name]) if shared.get(name) else x for name, x in zip(kind.results, results))


primitive = Primitive("froghopper_attention")
primitive.multiple_results = True


def bound(kind: Called, *arrays: jax.Array) -> Arrays: return tuple(primitive.bind(*arrays, kind=kind))


@primitive.def_abstract_eval
def abstract(*arrays: Any, kind: Called) -> list[Any]:
    """Types of the results; they vary along the axes of a shard_map along which q does."""
    q = arrays[kind.names.index(kind.lead)]
    return [q.update(shape=shape, dtype=dtype, weak_type=False, **unsharded(q, shape))
            for shape, dtype in kind.result_types(arrays)]


def unsharded(like: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    """Of a type in JAX, where types have shardings."""
    sharding = getattr(like, "sharding", None)
    return {} if sharding is None else {"sharding": NamedSharding(sharding.mesh, PartitionSpec(*[None] * len(shape)))}


@functools.partial(primitive.def_impl)
def run_now(*arrays: jax.Array, kind: Called) -> Any:
    """Compiled also where programs are not (jax.disable_jit): there is nothing else that computes it."""
    with jax.disable_jit(False): return jax.jit(functools.partial(bound, kind))(*arrays)


def lowered_for(platform: str) -> Callable[..., Any]:
    """The rule by which the primitive becomes a call of the library."""
    def rule(context: Any, *operands: Any, kind: Called) -> Any:
        register()
        problem = kind.problem(context.avals_in, looked=True)
        types = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in kind.result_types(context.avals_in)]
        results = kind.results
        if bytes_needed := workspace_bytes(problem, platform):
            types.append(jax.ShapeDtypeStruct((bytes_needed + ALIGNMENT_SPARE,), jnp.uint8))
            results += ("workspace",)

        # The library merges, adds and appends in place, so these results lie where what they change is given.
        shared = {kind.names.index(name): at for at, name in enumerate(kind.results) if name in kind.in_place}

        def call(*arrays: jax.Array) -> list[jax.Array]:
            function = jax.ffi.ffi_call(TARGET, types, input_output_aliases=shared or None)
            found = function(*arrays, problem=library().line(problem), operands=" ".join(kind.names),
                             results=" ".join(results), names=kind.options.names)
            return list(found)[:len(kind.results)]
        return mlir.lower_fun(call, multiple_results=True)(context, *operands)
    return rule


for name in ("cpu", "cuda"): mlir.register_lowering(primitive, lowered_for(name), platform=name)


def workspace_bytes(problem: _c.Problem, platform: str) -> int:
    """Raises what the library refuses on that platform."""
    if platform == "cpu": return plan_of(problem, "cpu").workspace_bytes
    try: return plan_of(problem, f"hopper:{gpu_here()}").workspace_bytes
    except NoDevice: return plan_of(problem, NAMED_GPU).workspace_bytes


def gpu_here() -> int:
    """The driver's number of JAX's first GPU. NoDevice where JAX has none."""
    try: return int(jax.local_devices(backend="cuda")[0].local_hardware_id or 0)
    except RuntimeError as error: raise NoDevice(str(error)) from error


def check_problem(kind: Called, arrays: Sequence[Any]) -> None:
    """Raises at once what no backend would compute; what one of them would not is said when a program is lowered."""
    problem = kind.problem(arrays)
    try: plan_of(problem, "cpu")
    except Unsupported: pass


@functools.lru_cache(maxsize=None)
def register() -> None:
    """Tells XLA the handlers; LibraryNotFound where they are not there."""
    path = pathlib.Path(library().path).resolve().parent / HANDLERS
    if not path.exists():
        raise LibraryNotFound(f"{path} is not here; it is what JAX calls. Install the wheel, or build the source tree "
                              "with -DFROGHOPPER_XLA_INCLUDE=FOLDER, the folder that jax.ffi.include_dir() names.")
    handlers = ctypes.CDLL(str(path))  # finds the library that is loaded already by its name
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(handlers.froghopper_xla_cpu), platform="cpu")
    gpu = {"initialize": jax.ffi.pycapsule(handlers.froghopper_xla_gpu_prepare),
           "execute": jax.ffi.pycapsule(handlers.froghopper_xla_gpu)}
    jax.ffi.register_ffi_target(TARGET, gpu, platform="CUDA")
