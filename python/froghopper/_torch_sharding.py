# SPDX-License-Identifier: Apache-2.0
"""How DTensor may cut the tensors of attention and quantise: along the batch, or along heads where those of keys can be
divided, as it may for PyTorch's own attention. Packed sequences are cut along heads alone.

torch.distributed.tensor takes long to import. register() is called when it is there already: with froghopper.torch, and
when a tensor that is not PyTorch's own is met.
"""
import sys
from typing import Any

import torch

from froghopper._errors import InvalidType, Unsupported
from froghopper._values import listed

Placements = list[Any]
Rule = tuple[Placements, Placements]  # of results and of arguments, None for what is no tensor

_registered = False


def register() -> None:
    global _registered
    if _registered or "torch.distributed.tensor" not in sys.modules: return
    try: from torch.distributed.tensor.experimental import register_sharding
    except ImportError: return  # an older PyTorch
    known: Any = register_sharding
    packet: Any = torch.ops.froghopper
    known(packet.forward.default)(of_forward)
    known(packet.forward_8_bit.default)(of_forward_8_bit)
    known(packet.backward.default)(of_backward)
    known(packet.forward_gated.default)(of_forward_gated)
    known(packet.backward_gated.default)(of_backward_gated)
    known(packet.forward_max_logit.default)(of_forward_max_logit)
    known(packet.quantise.default)(of_quantise)
    _registered = True


def is_dtensor(x: Any) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def refuse_parts(function: str, tensors: dict[str, Any]) -> None:
    """Of an operator that no rule is there for: PyTorch would say that it has no sharding strategy."""
    for name, x in tensors.items():
        if not is_dtensor(x): continue
        raise Unsupported(f"{name} is a DTensor, of which each rank has a part; {function} computes with tensors of "
                          f"one rank. Use {name}.to_local(), and so the others.")


def check_mixed(tensors: dict[str, Any]) -> None:
    """All are DTensors or none is: PyTorch would say of an operator that it got both. None stands for what is not
    given; the first one is q."""
    given = {name: x for name, x in tensors.items() if x is not None}
    parts = [name for name, x in given.items() if is_dtensor(x)]
    others = [name for name in given if name not in parts]
    if not parts or not others: return
    first, one = others[0], parts[0]
    if "q" in others and one not in OF_ROWS:
        raise InvalidType(f"{one} must be a plain tensor, as q is, but is a DTensor. Use {one}.full_tensor().")
    places = f"{one}.placements" if first in OF_ROWS else f"[Replicate()] * {one}.device_mesh.ndim"
    local = f", DTensor.from_local({first}, {one}.device_mesh, {places}) if it is this rank's part"
    if first not in OF_ROWS: local = ""
    raise InvalidType(f"{listed(others)} must be {'a DTensor' if len(others) == 1 else 'DTensors'}, as {listed(parts)} "
                      f"{'is' if len(parts) == 1 else 'are'}, but {'is' if len(others) == 1 else 'are'} not. If "
                      f"{first} is whole, use torch.distributed.tensor.distribute_tensor({first}, {one}.device_mesh, "
                      f"{places}){local}; or use {one}.to_local() for a call of this rank alone.")


OF_ROWS = {"q", "k", "v", "gate"}  # which are placed alike


def of_forward(*arguments: Any) -> list[Rule]:
    with_lse = arguments[-2]
    return rules(arguments[:9], arguments, [], lambda o, lse, sink: [o, lse if with_lse else replicated()])


def of_forward_8_bit(*arguments: Any) -> list[Rule]:
    """Scales of one number are shared, those of sequences and heads are cut as q, k and v are."""
    with_lse = arguments[-1]
    return rules(arguments[:9], arguments, [], lambda o, lse, sink: [o, lse if with_lse else replicated()],
                 arguments[9:14])


def of_backward(*arguments: Any) -> list[Rule]:
    grad_lse, sink = arguments[1], arguments[7]

    def results(o: Any, lse: Any, of_sink: Any) -> Placements:
        return [o, o, o, replicated() if sink is None else of_sink]

    def before(o: Any, lse: Any) -> Placements: return [o, None if grad_lse is None else lse]
    return rules((*arguments[2:5], *arguments[7:13]), arguments, before, results, between=2)


def of_forward_max_logit(*arguments: Any) -> list[Rule]:
    with_lse = arguments[-2]
    return rules(arguments[:9], arguments, [],
                 lambda o, lse, sink: [o, lse if with_lse else replicated(), of_max_logit(o)])


def of_max_logit(o: Any) -> Any:
    """[batch, heads], where o has this placement."""
    from torch.distributed.tensor import Shard
    return o if o in (replicated(), Shard(0)) else Shard(1)


def of_quantise(*arguments: Any) -> list[Rule]:
    """Scales and means are [batch, ., heads, .]; every sequence and head is quantised by itself."""
    from torch.distributed.tensor import Shard
    k, ends, used, smooth = arguments[1], arguments[7:9], arguments[11:13], arguments[14]
    packed = ends[0] is not None
    ways = [(replicated(), replicated(), replicated())]
    if not packed: ways.append((Shard(0), Shard(0), Shard(0)))
    if k.shape[-2] % k.mesh.size() == 0: ways.append((Shard(1 if packed else 2), Shard(2), replicated()))
    found = []
    for of_rows, of_scales, of_lengths in ways:
        sides = {at: of_lengths for at, x in ((11, used[0]), (12, used[1])) if x is not None}
        sides |= {at: replicated() for at, x in ((7, ends[0]), (8, ends[1])) if x is not None}
        given = [of_rows] * 3 + [sides.get(at) for at in range(3, len(arguments))]
        means = [of_scales if smooth else replicated()] * 2
        found.append(([of_rows] * 3 + [of_scales] * 3 + means, given))
    return found


def of_forward_gated(*arguments: Any) -> list[Rule]:
    with_lse, with_max_logit = arguments[-3], arguments[-1]

    def results(o: Any, lse: Any, of_sink: Any) -> Placements:
        return [o, lse if with_lse else replicated(), of_max_logit(o) if with_max_logit else replicated()]
    return rules(arguments[:9], arguments, [], results, gates=1)


def of_backward_gated(*arguments: Any) -> list[Rule]:
    grad_lse, sink = arguments[1], arguments[7]

    def results(o: Any, lse: Any, of_sink: Any) -> Placements:
        return [o, o, o, replicated() if sink is None else of_sink, o]

    def before(o: Any, lse: Any) -> Placements: return [o, None if grad_lse is None else lse]
    return rules((*arguments[2:5], *arguments[7:13]), arguments, before, results, between=2, gates=1)


def rules(inputs: tuple[Any, ...], arguments: tuple[Any, ...], before: Any, results: Any,
          scales: tuple[Any, ...] = (), between: int = 0, gates: int = 0) -> list[Rule]:
    """inputs: those of calls.Inputs. before: placements of what comes before them; between: how many there are behind
    v, which lie as o and lse; gates: how many there are behind the inputs, which lie as o. results: placements of
    results of those of o, lse and of the sink's gradient."""
    from torch.distributed.tensor import Partial, Shard
    k, packed = inputs[1], inputs[4] is not None
    ways: list[tuple[str, Any, Any, Any]] = [("whole", replicated(), replicated(), replicated())]
    if not packed: ways.append(("batch", Shard(0), Shard(0), Partial()))
    heads = 1 if packed else 2
    if k.shape[heads] % k.mesh.size() == 0: ways.append(("heads", Shard(heads), Shard(heads - 1), Shard(0)))
    found = []
    for name, o, lse, of_sink in ways:
        first = before(o, lse) if before else []
        sides = [placed(name, at, x, packed) for at, x in enumerate(inputs[3:])]
        of_scales = [scale_placed(name, x) for x in scales]
        given = [*first, o, o, o, *((o, lse) if between else ()), *sides, *[o] * gates, *of_scales]
        found.append((results(o, lse, of_sink), [*given, *[None] * (len(arguments) - len(given))]))
    return found


def placed(way: str, at: int, x: Any, packed: bool) -> Any:
    """Of sink, cu_seqlens_q, cu_seqlens_kv, seqused_q, seqused_kv and alibi_slopes."""
    from torch.distributed.tensor import Shard
    if x is None: return None
    if way == "heads": return Shard(0) if at == 0 else Shard(len(x.shape) - 1) if at == 5 else replicated()
    if way == "batch" and (at in (3, 4) or (at == 5 and len(x.shape) == 2)): return Shard(0)
    return replicated()


def scale_placed(way: str, x: Any) -> Any:
    """Of a scale or mean: [], [batch, heads] or [batch, ., heads, .]."""
    from torch.distributed.tensor import Shard
    if x is None: return None
    if way == "whole" or len(x.shape) == 0: return replicated()
    return Shard(0) if way == "batch" else Shard(1 if len(x.shape) == 2 else 2)


def replicated() -> Any:
    from torch.distributed.tensor import Replicate
    return Replicate()
