# SPDX-License-Identifier: Apache-2.0
"""What the operators of _torch_cp_ops.py do: the ranks agree, the plan is made or found, its workspace and results are
allocated, and libfroghopper-cp.so runs it over the group's transport.
"""
import contextlib
import zlib
from typing import Any, NamedTuple

import torch
from torch import Tensor

from froghopper import _torch_calls as calls
from froghopper import _torch_cp_8_bit as of_8_bits
from froghopper import _torch_cp_copies as copies
from froghopper import _torch_cp_documents as packing
from froghopper import _torch_cp_group as groups
from froghopper import _torch_cp_layout as layouts
from froghopper._c import ALL, Status
from froghopper._call import Shape, Types, cached, check_rank, describe
from froghopper._errors import Error, InvalidProblem, InvalidTensor, InvalidType
from froghopper._parallel import Plan, check_status, environment
from froghopper._torch_calls import address
from froghopper._torch_cp_copies import Shared
from froghopper._torch_cp_layout import Layout
from froghopper._torch_cp_transport import Functions, cuda_memory
from froghopper._values import listed
from froghopper._words import takes_words_of_others

ALIGNMENT = 256  # of a workspace
NO_ROWS = 4  # an address for what is given and has no rows; not 0, which says that it is not given, and not read
REQUIRES_GRAD = "requires_grad of q, k, v or sink (where gradients are enabled)"  # any, of what all ranks give alike
_plans: dict[Any, Plan] = {}
_received = 0


class Options(NamedTuple):
    """What a call is told besides its tensors, group and layout; windows are -1 without a bound."""
    scheme: str
    causal: bool
    window_left: int
    window_right: int
    softcap: float
    scale: float | None
    deterministic: bool
    transfers: str
    heads_ranks: int
    kv_dtype: str

    def in_words(self) -> dict[str, Any]:
        """As the caller has written them: one window, and None for what is not given. Values are as JSON keeps them."""
        words = self._asdict()
        ends = [None if end == ALL else end for end in (words.pop("window_left"), words.pop("window_right"))]
        window = None if ends == [None, None] else f"({ends[0]}, {ends[1]})"
        return {**words, "window": window, "kv_dtype": self.kv_dtype or None}


@takes_words_of_others("torch.context_parallel")
def moved() -> int:
    """Bytes of k, v, q, o and gradients that this process has received in all calls so far."""
    return _received


def forward(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, slopes: Tensor | None, documents: Tensor | None,
            group: str, layout: Layout, options: Options, with_grad: bool) -> tuple[Tensor, Tensor]:
    """(o, lse) of this rank's rows."""
    held = groups.resolved(group)
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    said = agreed(held, "attention", q, k, v, sink, slopes, documents, layout, options,
                  {REQUIRES_GRAD: with_grad})
    scales: dict[str, Tensor] = {}
    if options.kv_dtype:
        k, v, scales["scale_k"], scales["scale_v"] = of_8_bits.quantised(held, k, v, options.kv_dtype)
    o_shape, lse_shape = calls.shapes_of(q.shape, v.shape)
    o, lse = q.new_empty(o_shape), q.new_empty(lse_shape, dtype=torch.float32)
    arguments = held, total_of(said), q, k, v, sink, slopes, documents, layout, options
    shared = copies.of(held, q, options.transfers)
    key, plan = plan_of(*arguments, shared is not None, backward=False)
    if with_grad: plan_of(*arguments, shared is not None, backward=True)  # refuses what has no gradients
    run(key, plan, held, shared, dict(q=q, k=k, v=v, sink=sink, alibi_slopes=slopes, o=o, lse=lse, **scales))
    return o, lse


def backward(grad_o: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
             sink: Tensor | None, slopes: Tensor | None, documents: Tensor | None, group: str, layout: Layout,
             options: Options) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, v and sink of this rank's rows, the last [0] where there is no sink."""
    held = groups.resolved(group)
    q, k, v, o, grad_o = (x.contiguous() for x in (q, k, v, o, grad_o))
    said = agreed(held, "the backward pass of attention", q, k, v, sink, slopes, documents, layout, options, {},
                  {"grad_lse": grad_lse is not None})
    if any(each["grad_lse"] for each in said):  # the library is given one by all ranks or by none
        grad_lse = torch.zeros_like(lse) if grad_lse is None else grad_lse.contiguous()
    grads = [torch.empty_like(x) for x in (q, k, v)]
    grad_sink = q.new_empty((0,) if sink is None else sink.shape, dtype=torch.float32)
    shared = copies.of(held, q, options.transfers)
    key, plan = plan_of(held, total_of(said), q, k, v, sink, slopes, documents, layout, options, shared is not None,
                        backward=True)
    run(key, plan, held, shared, dict(
        q=q, k=k, v=v, sink=sink, alibi_slopes=slopes, o=o, lse=lse, grad_o=grad_o, grad_lse=grad_lse, grad_q=grads[0],
        grad_k=grads[1], grad_v=grads[2], grad_sink=None if sink is None else grad_sink))
    return grads[0], grads[1], grads[2], grad_sink


def agreed(group: Any, call: str, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, slopes: Tensor | None,
           documents: Tensor | None, layout: Layout, options: Options, same: dict[str, Any],
           own: dict[str, Any] | None = None) -> Any:
    """What each rank says of itself, once all have said the same of the rest."""
    def shared() -> dict[str, Any]:
        check(q, k, v, sink, slopes, documents, options)
        of_8_bits.check(q, options.kv_dtype, same.get(REQUIRES_GRAD, False))
        return {**of_all_ranks(q, k, v), "layout": layout, "device": name_of(q), **options.in_words(),
                "sink": numbers_of(sink), "alibi_slopes": numbers_of(slopes),
                "cu_seqlens": packing.in_words(documents), **environment(), **same}
    said = groups.agree(group, call, shared, lambda: {"rows": q.shape[1], **(own or {})})
    layouts.check_rows(layout, "q", [each["rows"] for each in said], group.size())
    if documents is not None: packing.check_documents(documents.tolist(), total_of(said))
    return said


def of_all_ranks(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Any]:
    """What ranks have in common of their tensors: all but the number of rows."""
    found: dict[str, Any] = {"dtype of q": calls.name_of(q.dtype), "batch of q": q.shape[0]}
    for name, x in (("q", q), ("k", k), ("v", v)):
        found |= {f"heads of {name}": x.shape[2], f"dim of {name}": x.shape[3]}
    return found


def numbers_of(x: Tensor | None) -> str | None:
    """What all ranks must have alike, in a few words: a checksum of numbers in host memory. Those of a GPU are not
    looked at, as that would wait for it."""
    if x is None: return None
    if not x.is_cpu: return "given"
    held = x.detach().contiguous().numpy() + 0  # so that -0 is 0
    return f"{held.ravel()[:2].tolist()} ... with the checksum {zlib.crc32(held.tobytes()):08x}"


def name_of(q: Tensor) -> str: return torch.cuda.get_device_name(q.device) if q.is_cuda else str(q.device)


def total_of(said: list[dict[str, Any]]) -> int: return sum(each["rows"] for each in said)


def check(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, slopes: Tensor | None, documents: Tensor | None,
          options: Options) -> None:
    """Types, devices and shapes of this rank's tensors."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if documents is not None and x.ndim == 3:
            raise InvalidProblem(f"{name} must be [1, rows, heads, dim] with cu_seqlens, but has the shape "
                                 f"{list(x.shape)}. Use {name}[None].")
        check_rank(name, x.shape, False, ends="")
    check_rows_alike(q.shape, k.shape)
    calls.check(calls.Inputs(q, k, v, sink, None, None, None, None, slopes), calls.Options(
        calls.LOOK, calls.LOOK, *options[1:6], False, options.deterministic, 0, 0, False))
    if documents is not None and q.shape[0] != 1:
        raise InvalidTensor("q must have a batch of 1 with cu_seqlens, as documents are packed into one row, but has "
                            f"{q.shape[0]}. Call for each row.")
    if slopes is not None and slopes.ndim != 1:
        raise InvalidProblem("alibi_slopes must be [heads_q], the same for all sequences, but has the shape "
                             f"{list(slopes.shape)}. Call for each sequence.")


def check_rows_alike(q: Shape, k: Shape) -> None:
    """Before other extents are looked at: rows that are unlike may be heads."""
    if len(q) != 4 or len(k) != 4 or q[1] == k[1]: return
    ways = [f"if {what} [batch, heads, rows, dim], use {listed([f'{name}.transpose(1, 2)' for name in names])}"
            for looks, what, names in ((q[2] == k[2] and k[1] and q[1] % k[1] == 0, "all three are", "qkv"),
                                       (q[2] == k[1], "q is", "q"), (q[1] == k[2], "k and v are", "kv")) if looks]
    way = f" Or, {'; '.join(ways)}." if ways else ""
    raise InvalidTensor(f"k must have the rows of q, {q[1]}, as they are spread alike, but has {k[1]}: their shapes "
                        f"are {list(k)} and {list(q)}. Give k and v of the same rows.{way}")


def check_has_memory(like: Tensor, **tensors: Tensor | None) -> None:
    """What PyTorch itself would refuse on this rank alone: the operators take plain tensors on the device of q."""
    for name, x in tensors.items():
        if x is None: continue
        if x.layout is not torch.strided or x.is_quantized or x.is_nested:
            kind = "nested" if x.is_nested else "quantised" if x.is_quantized else str(x.layout)
            raise InvalidType(f"{name} must be a plain dense tensor, but is {kind}. Make a dense one of it.")
        if x.is_meta != like.is_meta:
            raise InvalidProblem(f"{name} must be on {like.device}, as q is, but is on {x.device}. Use "
                                 f"{name}.to(q.device).")


def plan_of(group: Any, total: int, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, slopes: Tensor | None,
            documents: Tensor | None, layout: Layout, options: Options, peer_copies: bool,
            backward: bool) -> tuple[Any, Plan]:
    """What tells plans apart, but for the rank, and the plan, the same one for the same shapes and options."""
    of_q, of_k, of_v = ((x.shape[0], total, *x.shape[2:]) for x in (q, k, v))
    target, per_host = calls.target_of(q)[1], groups.ranks_per_host(group)
    packed = None if documents is None else documents.numpy().tobytes()
    key = (of_q, of_k, of_v, q.dtype, sink is None, slopes is None, packed, layout, options, peer_copies, backward)
    of_rank = (key, group.size(), group.rank(), target, per_host)

    def made() -> Plan:
        whole = describe(of_q, of_k, of_v, calls.name_of(q.dtype), backward=backward, causal=options.causal,
                         window=(options.window_left, options.window_right), softcap=options.softcap,
                         scale=options.scale, sink=sink is not None, alibi=slopes is not None,
                         deterministic=backward and options.deterministic,
                         types=Types(options.kv_dtype, calls.name_of(q.dtype), 0, False) if options.kv_dtype else None)
        try: return Plan(whole, group.size(), group.rank(), options.scheme, layout, target, per_host, peer_copies,
                         None if documents is None else documents.tolist(), options.heads_ranks)
        except Error as error:  # alibi is the library's word, and that of lines for explain
            error.args = (str(error).replace("alibi is set", "alibi_slopes is given"),)
            raise
    return key, _plans.get(of_rank) or cached(_plans, of_rank, made)


def run(key: Any, plan: Plan, group: Any, shared: Shared | None, tensors: dict[str, Tensor | None]) -> None:
    """All that this rank does, with the transfers in between; what is to be written is written then. key: of plan_of.
    shared: the group's memory, for transfers by copies."""
    global _received
    q = tensors["q"]
    assert q is not None
    workspace = (calls.workspace_of(q, plan.workspace_bytes + ALIGNMENT - 1) if shared is None else
                 shared.workspace(plan.workspace_bytes, key))
    if q.is_cuda and group.size() > 1 and shared is None: groups.connect(group, q)
    functions = Functions(group, [x for x in (*tensors.values(), workspace) if x is not None])
    addresses = {name: address(x) for name, x in tensors.items()}
    if tensors.get("grad_lse") is not None: addresses["grad_lse"] = addresses["grad_lse"] or NO_ROWS
    with torch.cuda.device(q.device) if q.is_cuda else contextlib.nullcontext():
        if plan.on_gpu: addresses["tables"] = packing.tables_on(plan, q.device)
        if shared is not None: shared.begin()
        transport = functions.transport() if shared is None else shared.transport
        status = plan.run(transport if group.size() > 1 else None,
                          cuda_memory() if plan.on_gpu else None,
                          addresses, groups.calls_of(group),
                          -(-workspace.data_ptr() // ALIGNMENT) * ALIGNMENT,
                          calls.stream_of(q.get_device()) if q.is_cuda else 0)
        if shared is not None:
            shared.failed = status != Status.OK
            shared.end()
    if isinstance(functions.error, Exception): raise groups.lost(group, functions.error) from functions.error
    if functions.error is not None: raise functions.error
    check_status(status)
    _received += plan.bytes_in
