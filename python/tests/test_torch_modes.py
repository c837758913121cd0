# SPDX-License-Identifier: Apache-2.0
"""froghopper.torch inside of PyTorch's machinery: opcheck, compile, export, autocast, checkpoints, hooks, FSDP,
torch.func, meta and fake tensors, and the example of training."""
import shutil
import sys

import pytest
from programs import example

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch_cases import drawn, layer, one_thread, qkv, same, samples, step

from froghopper import _torch_calls as calls
from froghopper import _torch_ops as ops
from froghopper.torch import attention, scaled_dot_product_attention


@pytest.mark.parametrize("arguments", [pytest.param(a, id=name) for name, a in samples()])
def test_opcheck(arguments):
    torch.library.opcheck(ops.forward_op, (*arguments, True, True))
    still = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments]
    torch.library.opcheck(ops.forward_op, (*still, False, False))
    o, lse = ops.forward_op(*still, True, False)
    torch.library.opcheck(ops.forward_out_op, (torch.empty_like(o), *still, True))
    torch.library.opcheck(ops.backward_op, (torch.ones_like(o), lse.clone(), *still[:3], o, lse, *still[3:]))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic):
    torch._dynamo.reset()
    seen = []

    def backend(graph, inputs):
        seen.append(graph)
        return torch._dynamo.backends.debugging.aot_eager(graph, inputs)
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend=backend)
    for rows in (9, 11, 30):
        tensors = qkv(2, rows, 4, 16, grad=True)
        same(step(compiled, tensors), step(layer, tensors))
        with torch.no_grad(): assert torch.equal(compiled(*tensors), layer(*tensors))
    if dynamic: assert len(seen) == 2  # with gradients and without, for all lengths


def test_compile_packed_with_sinks():
    torch._dynamo.reset()
    q, k, v = qkv(9, 4, 16, kv=(12, 2, 16), grad=True)
    sink, (of_q, of_kv) = drawn(4, grad=True), [torch.tensor(x, dtype=torch.int32) for x in ([0, 4, 9], [0, 7, 12])]

    def both(q, k, v, sink):
        o, lse = attention(q, k, v, sink=sink, cu_seqlens_q=of_q, cu_seqlens_kv=of_kv, causal=True, return_lse=True)
        return o * lse.sigmoid().transpose(0, 1)[..., None]
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    for mine, right in zip(step(compiled, [q, k, v, sink]), step(both, [q, k, v, sink])): torch.testing.assert_close(
        mine, right, rtol=1e-5, atol=1e-5)  # PyTorch's own operations may be taken apart


def test_compile_sdpa_out_and_bounds():
    torch._dynamo.reset()
    q, k, v = qkv(2, 3, 9, 16)
    compiled = torch.compile(scaled_dot_product_attention, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, k, v, is_causal=True), scaled_dot_product_attention(q, k, v, is_causal=True))

    def into(q, k, v):
        out = torch.zeros_like(q)
        return attention(q, k, v, out=out) + out
    assert torch.equal(torch.compile(into, fullgraph=True, backend="aot_eager")(q, k, v), 2 * attention(q, k, v))


def test_compile_to_code():
    """With PyTorch's default backend, which plans memory itself."""
    if not (shutil.which("g++") or shutil.which("c++")): pytest.skip("no C++ compiler for PyTorch's generated code")
    torch._dynamo.reset()
    tensors = qkv(2, 9, 4, 16, grad=True)
    for mine, right in zip(step(torch.compile(layer, fullgraph=True), tensors), step(layer, tensors)):
        torch.testing.assert_close(mine, right, rtol=1e-5, atol=1e-5)


class Module(torch.nn.Module):
    def forward(self, q, k, v): return layer(q, k, v)


def test_export():
    rows = torch.export.Dim("rows", min=2, max=4096)
    program = torch.export.export(Module(), tuple(qkv(2, 9, 4, 16)), dynamic_shapes=[{1: rows}] * 3)
    assert any(node.target is ops.forward_op for node in program.graph.nodes)
    for n in (9, 40): same([program.module()(*qkv(2, n, 4, 16))], [layer(*qkv(2, n, 4, 16))])


def test_autocast():
    tensors = qkv(2, 9, 4, 16, grad=True)
    sink = drawn(4, grad=True)
    with torch.autocast("cpu", torch.bfloat16): found = attention(*tensors, sink=sink, causal=True)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, attention(*(x.bfloat16() for x in tensors), sink=sink, causal=True))
    grads = torch.autograd.grad(found.float().sum(), [*tensors, sink])
    assert all(x.dtype == torch.float32 for x in grads)
    with torch.autocast("cpu", torch.float16):
        assert scaled_dot_product_attention(*tensors).dtype == torch.float16
        with pytest.raises(TypeError, match="are float64"): attention(*(x.detach().double() for x in tensors))
    with torch.autocast("cpu", torch.bfloat16, enabled=False): assert attention(*tensors).dtype == torch.float32


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    from torch.utils.checkpoint import checkpoint
    tensors = qkv(2, 9, 4, 16, grad=True)
    same(step(lambda *x: checkpoint(layer, *x, use_reentrant=reentrant), tensors), step(layer, tensors))


@pytest.mark.parametrize("shape", [(1, 4, 11, 16), (4, 12, 16), (2, 1, 4, 13, 16)])
def test_checkpoint_of_a_first_call_that_has_heads_first(shape):
    """The first call of new shapes goes through Python and the one that computes again does not: both save alike."""
    from torch.utils.checkpoint import checkpoint

    from froghopper.torch import scaled_dot_product_attention
    tensors = [torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_() for seed in range(3)]
    found = torch.autograd.grad(checkpoint(scaled_dot_product_attention, *tensors, use_reentrant=False).sum(), tensors)
    wanted = torch.autograd.grad(scaled_dot_product_attention(*tensors).sum(), tensors)
    for x, y in zip(found, wanted): torch.testing.assert_close(x, y)


def test_saved_tensors_go_through_hooks():
    tensors, packed = qkv(2, 9, 4, 16, grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x.shape) or x.clone(), lambda x: x):
        found = step(attention, tensors)
    same(found, step(attention, tensors))
    assert sorted(map(len, packed)) == [3, 4, 4, 4, 4]  # lse and q, k, v, o


def test_fully_sharded():
    """FSDP with one process: its hooks see the same gradients."""
    distributed = pytest.importorskip("torch.distributed")
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not distributed.is_available() or not hasattr(fsdp, "fully_shard"): pytest.skip("PyTorch has no FSDP 2 here")
    if not distributed.is_gloo_available(): pytest.skip("PyTorch has no gloo, which FSDP needs on CPUs")

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.qkv = torch.nn.Linear(16, 48)

        def forward(self, x): return attention(*self.qkv(x).unflatten(-1, (3, 2, 8)).unbind(2), causal=True)
    x, plain = drawn(2, 5, 16), Layer()
    plain(x).square().sum().backward()
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        from torch.distributed.device_mesh import init_device_mesh
        sharded = fsdp.fully_shard(Layer(), mesh=init_device_mesh("cpu", (1,)))
        sharded(x).square().sum().backward()
        found = [p.grad.full_tensor() for p in sharded.parameters()]
    finally: distributed.destroy_process_group()
    for mine, right in zip(found, plain.parameters()): torch.testing.assert_close(mine, right.grad)


def test_torch_func():
    many = [drawn(3, 2, 5, 4, 16, seed=seed) for seed in range(3)]
    def loss(q, k, v): return attention(q, k, v, causal=True).square().sum()
    found = torch.vmap(lambda *x: attention(*x, causal=True))(*many)
    same([found], [torch.stack([attention(*x, causal=True) for x in zip(*many)])])
    one = torch.vmap(attention, in_dims=(2, None, 0))(many[0].movedim(0, 2), many[1][0], many[2])
    same([one], [torch.stack([attention(q, many[1][0], v) for q, v in zip(many[0], many[2])])])
    grads = torch.func.grad(loss, (0, 1, 2))
    right = [torch.stack(x) for x in zip(*(grads(*x) for x in zip(*many)))]
    same(torch.vmap(grads)(*many), right)
    leaves = [x[0].clone().requires_grad_() for x in many]
    same(torch.autograd.grad(loss(*leaves), leaves), [x[0] for x in right])
    used = torch.tensor([[1, 5], [2, 3], [4, 4]], dtype=torch.int32)
    same([torch.vmap(lambda q, k, v, n: attention(q, k, v, seqused_kv=n))(*many, used)],
         [torch.stack([attention(*x, seqused_kv=n) for *x, n in zip(*many, used)])])
    sinks = drawn(3, 4)
    with pytest.raises(NotImplementedError, match="sink is given under vmap"):
        torch.vmap(lambda q, k, v, s: attention(q, k, v, sink=s))(*many, sinks)


def test_meta_and_fake_tensors_stay_away(monkeypatch):
    def reached(*_): raise AssertionError("a plan was made")
    monkeypatch.setattr(calls, "plan_of", reached)
    from torch._subclasses.fake_tensor import FakeTensorMode
    lengths = dict(cu_seqlens_q=[0, 4, 9], cu_seqlens_kv=[0, 7, 12])
    for made in (FakeTensorMode(), torch.device("meta")):
        with made:
            q, k, v = (torch.empty(2, n, h, 8, dtype=torch.float16, requires_grad=True) for n, h in
                       ((3, 4), (5, 2), (5, 2)))
            o, lse = attention(q, k, v, causal=True, return_lse=True)
            assert (o.shape, o.dtype, o.device) == (q.shape, q.dtype, q.device) and lse.shape == (2, 4, 3)
            o.sum().backward()
            assert k.grad.shape == k.shape
            packed = [torch.empty(n, h, 8) for n, h in ((9, 4), (12, 2), (12, 2))]
            tensors = {name: torch.empty(len(x), dtype=torch.int32) for name, x in lengths.items()}
            assert attention(*packed, **tensors).shape == (9, 4, 8)
            with pytest.raises(ValueError, match="k must have the dim of q"): attention(q[..., :4], k, v)
            with torch.no_grad(): assert attention(q, k, v, out=torch.empty_like(q)).shape == q.shape
    real = torch.zeros(2, 5, 2, 8, dtype=torch.float16)
    with pytest.raises(Exception, match="meta"): attention(torch.empty(2, 3, 4, 8, dtype=real.dtype, device="meta"),
                                                          real, real)


def test_the_operator_is_seen_by_those_who_look(monkeypatch):
    """Where nobody does, its kernels are called without it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))
    tensors = [x.requires_grad_() for x in qkv(1, 12, 2, 16)]
    with Names() as names: attention(*tensors).sum().backward()
    assert {"froghopper.forward.default", "froghopper.backward.default"} <= set(names.seen)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile, torch.no_grad():
        attention(*tensors)
    assert "froghopper::forward" in {event.key for event in profile.key_averages()}

    def refuse(*_): raise AssertionError("the operator was called")
    monkeypatch.setattr(ops, "forward_op", refuse)
    monkeypatch.setattr(ops, "backward_op", refuse)
    attention(*tensors).sum().backward()
    with torch.no_grad(): attention(*tensors)
    class Other(torch.Tensor): pass
    with torch.no_grad(), pytest.raises(AssertionError, match="operator"):
        attention(*(x.detach().as_subclass(Other) for x in tensors))


def test_lengths_on_a_gpu_are_not_looked_at():
    """With tensors that have no memory, so no GPU is needed."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    gpu = f"cuda:{torch.cuda.device_count() - 1}" if torch.cuda.is_available() else "cuda:1"
    with FakeTensorMode():
        try: q, k, v = (torch.empty(9, 4, 16, dtype=torch.float16, device=gpu) for _ in range(3))
        except (RuntimeError, AssertionError) as why: pytest.skip(f"PyTorch makes no fake tensor of a GPU here: {why}")
        ends = torch.empty(3, dtype=torch.int32, device=gpu)
        with pytest.raises(ValueError, match=f"max_seqlen_q must be given where cu_seqlens_q is on {gpu}"):
            attention(q, k, v, cu_seqlens_q=ends, cu_seqlens_kv=ends)
        o = attention(q, k, v, cu_seqlens_q=ends, cu_seqlens_kv=ends, max_seqlen_q=9, max_seqlen_kv=9)
        assert o.device == q.device


def test_the_training_example():
    sys.path.insert(0, str(example("torch_training.py").parent))
    try: import torch_training
    finally: sys.path.pop(0)
    losses = torch_training.train(steps=40)
    assert losses[0] > 2 and losses[-1] < 0.5
