# SPDX-License-Identifier: Apache-2.0
"""The backward pass of everybody who takes part in bench/speed.py, with the forward pass that it needs.

Each offers layers for one cell, keyed by (impl, plan), or none where it does not compute that problem. A layer's
backward reads what its own forward left, so forward runs once before. An impl that ends in "_det" gives the same bits
in every run. Gradients are those of q, k and v, shaped like them.
"""
import ctypes
import dataclasses
import os
import types

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from . import froghopper_ctypes
from .contenders import fa3_arguments, stream_of, version_of
from .froghopper_ctypes import Error

DETERMINISTIC = "_det"


@dataclasses.dataclass
class Layer:
    forward: types.FunctionType
    backward: types.FunctionType  # returns the gradients of q, k and v

    def both(self):
        self.forward()
        return self.backward()


def froghopper(cell, library, target, note=print):
    """The problem as it is, and its deterministic form where that is another one, which on a CPU it is not."""
    layers = {}
    forms = {"froghopper": cell.problem}
    if not cell.problem.deterministic and cell.q.is_cuda:
        forms["froghopper" + DETERMINISTIC] = cell.problem.but(deterministic=1)
    for impl, problem in forms.items():
        try: layers.update(froghopper_layer(impl, problem, cell, library, target))
        except Error as refusal:
            if impl == "froghopper": raise
            note(f"  no {impl} for {cell.line}: {refusal}")
    return layers


def froghopper_layer(impl, problem, cell, library, target):
    device = cell.q.device.type
    lengths = cell.lengths()
    if problem.sink:
        lengths |= dict(sink=torch.zeros(problem.heads_q, device=device))
        grads = dict(grad_sink=torch.zeros(problem.heads_q, device=device))
    else: grads = {}
    grads |= dict(grad_o=cell.grad_o, grad_q=cell.grad_q, grad_k=cell.grad_k, grad_v=cell.grad_v)
    def runner(problem, target, **more):
        plan = library.plan(problem, target)
        workspace = torch.empty(max(256, plan.workspace_bytes), dtype=torch.uint8, device=device)
        held = froghopper_ctypes.tensors(cell.q, cell.k, cell.v, cell.o, cell.lse, **lengths, **more)
        def run(keep=(cell, lengths, more)):
            plan.run(held, workspace.data_ptr(), workspace.numel(), stream_of(device))
            return cell.grad_q, cell.grad_k, cell.grad_v
        return plan, run
    _, forward = runner(problem.forward(), target.split(" ")[0])  # hints are for the backward pass
    plan, backward = runner(problem, target, **grads)
    return {(impl, plan.name()): Layer(forward, backward)}


def backward_calls(layers):
    """{key: backward} of layers whose forward, which a backward reads, has run."""
    for layer in layers.values(): layer.forward()
    return {key: layer.backward for key, layer in layers.items()}


def by_autograd(impl, plan, attention):
    """A rival whose backward PyTorch calls: attention(cell, q, k, v) gives o, of tensors like the cell's."""
    def offer(cell):
        if not cell.is_plain(): return {}
        leaves = [t.detach().requires_grad_() for t in (cell.q, cell.k, cell.v)]
        held = {}
        def forward(): held["o"] = attention(cell, *leaves)
        def backward(): return torch.autograd.grad(held["o"], leaves, cell.grad_o, retain_graph=True)
        return {(impl, plan): Layer(forward, backward)}
    return offer


def sdpa(backend):
    def attention(cell, *qkv):
        if cell.lens is not None: return packed(backend, cell, *qkv)
        turned = (t.transpose(1, 2) for t in qkv)
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(
                *turned, is_causal=cell.problem.is_causal(), scale=cell.scale(),
                enable_gqa=cell.problem.heads_q != cell.problem.heads_kv).transpose(1, 2)
    return attention


def packed(backend, cell, q, k, v):
    """What PyTorch's nested tensors call, without what they do on the host."""
    ends, longest, causal = cell.cu_seqlens, max(cell.lens), cell.problem.is_causal()
    places = (ends, ends, longest, longest)
    if backend == SDPBackend.CUDNN_ATTENTION:
        return torch.ops.aten._cudnn_attention_forward(q, k, v, None, *places, True, 0.0, causal, False,
                                                       scale=cell.scale())[0]
    return torch.ops.aten._flash_attention_forward(q, k, v, *places, 0.0, causal, False, scale=cell.scale())[0]


def fa4():
    """FlashAttention-4's kernels for this GPU from the wheel flash-attn-4; a new kind of problem compiles."""
    import flash_attn.cute.interface as interface
    plan = version_of("flash-attn-4")
    def offer(cell):
        if not cell.is_plain() or cell.problem.dtype == 3: return {}
        options = dict(causal=cell.problem.is_causal(), softmax_scale=cell.scale())
        if cell.lens is not None:
            options |= dict(cu_seqlens_q=cell.cu_seqlens, cu_seqlens_k=cell.cu_seqlens, max_seqlen_q=max(cell.lens),
                            max_seqlen_k=max(cell.lens))
        def layer(deterministic):
            held = {}
            def forward():
                found = interface._flash_attn_fwd(cell.q, cell.k, cell.v, return_lse=True, **options)
                held["o"], held["lse"] = found[:2]
            def backward():
                return interface._flash_attn_bwd(cell.q, cell.k, cell.v, held["o"], cell.grad_o, held["lse"],
                                                 deterministic=deterministic, **options)[:3]
            return Layer(forward, backward)
        return {("fa4", plan): layer(False), ("fa4" + DETERMINISTIC, plan): layer(True)}
    return offer


def fa3(path):
    """FlashAttention-3: the forward from the wheel fa3-fwd, and the backward, which no wheel has, from a library built
    of its source: one C function a head dim, see Fa3Backward."""
    import fa3_fwd_interface  # noqa: F401  registers the operator
    if not path: raise Error("its backward is in no wheel; name a library of it, --fa3bwd libfa3bwd.so")
    operator, library = torch.ops.fa3_fwd.fwd, ctypes.CDLL(os.path.abspath(path))
    plan = "built from its source, forward " + version_of("fa3-fwd")
    def offer(cell):
        p = cell.problem
        default_scale = abs(p.scale - p.dim_qk ** -0.5) < 1e-6
        plain = cell.is_dense() and p.dtype == 2 and p.dim_qk == p.dim_v and default_scale
        grouped = p.heads_q != p.heads_kv
        if not plain or p.dim_qk not in (64, 128, 256) or (grouped and p.dim_qk != 128): return {}
        def layer(deterministic):
            o, held = torch.empty_like(cell.o), {}
            arguments = fa3_arguments(cell, o, splits=1)
            gradients = Fa3Backward(library, cell, deterministic)
            def forward():
                held["lse"] = operator(cell.q, cell.k, cell.v, *arguments)[1]
                return o
            def backward(): return gradients.run(o, held["lse"])
            return Layer(forward, backward)
        layers = {("fa3", plan): layer(False)}
        if p.dim_qk < 256 and not grouped: layers["fa3" + DETERMINISTIC, plan] = layer(True)
        return layers
    return offer


class Fa3Backward:
    """fa3_bwd_dD(grad_o, q, k, v, o, lse, grad_q, grad_k, grad_v, delta, lse in base 2, sums of grad_q, of grad_k, of
    grad_v, order of tiles, batch, seq_q, seq_kv, heads_q, heads_kv, causal, deterministic, stream), all dense;
    fa3_bwd_block_m_dD(causal) is its tile of query rows, to which its buffers are rounded up."""

    def __init__(self, library, cell, deterministic):
        p, self.cell = cell.problem, cell
        self.call = getattr(library, f"fa3_bwd_d{p.dim_qk}")
        tile = getattr(library, f"fa3_bwd_block_m_d{p.dim_qk}")(int(p.is_causal()))
        tiles, rows_kv = -(-p.seq_q // tile), -(-p.seq_kv // 128) * 128 + 128
        rows = p.batch * p.heads_q * tiles * tile
        def zeros(count): return torch.zeros(count, device=cell.q.device)
        self.grads = [torch.empty_like(t) for t in (cell.q, cell.k, cell.v)]
        self.sums = [zeros(p.batch * p.heads_kv * rows_kv * p.dim_qk) for _ in "kv"]
        order = torch.zeros(tiles * p.batch * p.heads_q, device=cell.q.device, dtype=torch.int32)
        self.buffers = [zeros(rows), zeros(rows), zeros(rows * p.dim_qk), *self.sums, order]
        self.sizes = [ctypes.c_int(int(x)) for x in (p.batch, p.seq_q, p.seq_kv, p.heads_q, p.heads_kv,
                                                     p.is_causal(), deterministic)]
        self.grouped = p.heads_q != p.heads_kv

    def run(self, o, lse):
        if self.grouped:
            for t in self.sums: t.zero_()  # its interface does so at every call
        cell = self.cell
        pointers = (cell.grad_o, cell.q, cell.k, cell.v, o, lse, *self.grads, *self.buffers)
        stream = ctypes.c_void_p(stream_of(cell.q.device.type))
        if code := self.call(*(ctypes.c_void_p(t.data_ptr()) for t in pointers), *self.sizes, stream):
            raise RuntimeError(f"its launch failed with error {code}")
        return tuple(self.grads)


def rival(name, fa3bwd=""):
    """A function from Cell to layers; raises where the rival is not installed."""
    if name == "cudnn":
        return by_autograd("cudnn", f"cudnn {torch.backends.cudnn.version()}", sdpa(SDPBackend.CUDNN_ATTENTION))
    if name in ("fa2", "torch"):
        return by_autograd(name, f"torch {torch.__version__}", sdpa(SDPBackend.FLASH_ATTENTION))
    if name == "efficient":  # any head dim, as "math" has
        return by_autograd(name, f"torch {torch.__version__}", sdpa(SDPBackend.EFFICIENT_ATTENTION))
    if name == "math": return by_autograd(name, f"torch {torch.__version__}", sdpa(SDPBackend.MATH))
    if name == "fa3": return fa3(fa3bwd)
    if name == "fa4": return fa4()
    raise ValueError(f"no rival is called {name}; there are cudnn, fa2, fa3, fa4, torch, efficient and math")
