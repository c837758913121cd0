# SPDX-License-Identifier: Apache-2.0
"""froghopper.torch on a Hopper GPU: results, streams, a CUDA graph, that nothing waits, devices, views. Skipped with
the reason where there is none. More of graphs, and what memory lives when, is in test_torch_gpu_graphs.py."""
import dataclasses

import pytest
from test_numpy import CASES

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch_cases import check_case, drawn, layer, qkv, same, samples, step

from froghopper import _torch_calls as calls
from froghopper import _torch_ops as ops
from froghopper.torch import attention


def why_no_gpu():
    if not torch.cuda.is_available(): return "there is no GPU that PyTorch can use"
    if torch.cuda.get_device_capability() != (9, 0): return f"{torch.cuda.get_device_name()} is no Hopper GPU"
    return ""


pytestmark = pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one")


@pytest.mark.parametrize("dtype, name", [("bfloat16", name) for name in CASES] + [("float16", "full"),
                                                                               ("float16", "everything")])
def test_attention_and_gradients(name, dtype):
    """With head dims whose kernels are compiled already, but for float16, softcap, slopes and chunks."""
    case = CASES[name]
    check_case(dataclasses.replace(case, dims=(192, 128) if case.dims[0] != case.dims[1] else (64, 64)), dtype, "cuda")


def on(device, **options): return qkv(2, 200, 4, 64, dtype=torch.bfloat16, device=device, **options)


def test_streams():
    """A call runs on the current stream: behind what was put there, and before what comes after."""
    tensors = on("cuda")
    wanted, stream = attention(*tensors, causal=True), torch.cuda.Stream()
    torch.cuda.synchronize()
    late = [torch.zeros_like(x) for x in tensors]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        for x, y in zip(late, tensors): x.copy_(y)
        found = attention(*late, causal=True)
        done = stream.record_event()
    assert not done.query(), "the call waited for the GPU"
    stream.synchronize()
    assert torch.equal(found, wanted)


def test_nothing_waits_for_the_gpu():
    tensors, sink = on("cuda", grad=True), drawn(4, device="cuda", grad=True)
    ends_of = torch.tensor([0, 150, 400], dtype=torch.int32, device="cuda")
    packed = [x.detach().flatten(0, 1).requires_grad_() for x in tensors]

    def work():
        attention(*tensors, sink=sink).sum().backward()
        attention(*packed, cu_seqlens_q=ends_of, cu_seqlens_kv=ends_of, max_seqlen_q=250, max_seqlen_kv=250,
                  causal=True).sum().backward()
    work()
    torch.cuda.set_sync_debug_mode("error")
    try: work()
    finally: torch.cuda.set_sync_debug_mode("default")
    with pytest.raises(ValueError, match="max_seqlen_q must be given where cu_seqlens_q is on cuda:0"):
        attention(*packed, cu_seqlens_q=ends_of, cu_seqlens_kv=ends_of)


def test_cuda_graphs():
    tensors = on("cuda", grad=True)
    grad = drawn(2, 200, 4, 64, seed=5, dtype=torch.bfloat16, device="cuda")

    def work():
        o = attention(*tensors, causal=True, deterministic=True)
        return [o, *torch.autograd.grad(o, tensors, grad)]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side): work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph): held = work()
    for seed in (11, 12):
        with torch.no_grad():
            for x in tensors: x.copy_(drawn(*x.shape, seed=seed))
        graph.replay()
        same(held, work())


def test_compile():
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (100, 333):
        tensors = qkv(2, rows, 4, 64, dtype=torch.bfloat16, device="cuda", grad=True)
        for mine, right in zip(step(compiled, tensors), step(layer, tensors)): torch.testing.assert_close(mine, right)


@pytest.mark.parametrize("arguments", [pytest.param(a, id=name) for name, a in samples() if name != "looked"])
def test_opcheck(arguments):
    """In float16; what is on the CPU alone, lengths that nobody gave and invariant beside chunks, is left out."""
    there = [x.detach().to("cuda", torch.float16 if x.is_floating_point() and x.ndim > 1 else x.dtype)
             .requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x for x in arguments]
    torch.library.opcheck(ops.forward_op, (*there[:-2], False, "", True, True))


def test_views_and_copies(monkeypatch):
    copies, copy = [], calls.dense_copy
    monkeypatch.setattr(calls, "dense_copy", lambda x: copies.append(x) or copy(x))
    packed = drawn(2, 200, 3, 4, 64, dtype=torch.bfloat16, device="cuda")
    q, k, v = packed.unbind(2)
    wanted = attention(*(x.contiguous() for x in (q, k, v)))
    assert torch.equal(attention(q, k, v), wanted) and not copies
    odd = torch.empty(2 * 200 * 4 * 64 + 1, dtype=torch.bfloat16, device="cuda")[1:].view_as(q).copy_(q)
    assert torch.equal(attention(odd, k, v), wanted) and len(copies) == 1
    wide = torch.zeros(2, 200, 4, 65, dtype=torch.bfloat16, device="cuda")[..., :64].copy_(q)
    assert torch.equal(attention(wide, k, v), wanted) and len(copies) == 2
    with pytest.raises(ValueError, match="o.stride|out"): attention(q, k, v, out=torch.empty_like(odd).resize_(
        2, 200, 4, 65)[..., :64])


def test_what_a_gpu_refuses():
    q, k, v = on("cuda")
    with pytest.raises(ValueError, match="k must be .* cuda:0, but is on cpu"): attention(q, k.cpu(), v)
    with pytest.raises(NotImplementedError, match="but are float32"): attention(q.float(), k.float(), v.float())
    out = torch.full(q.shape, 7.0, device="cuda")
    with pytest.raises(NotImplementedError): attention(q.float(), k.float(), v.float(), out=out)
    assert (out == 7).all()


def test_another_gpu():
    if torch.cuda.device_count() < 2: pytest.skip("there is one GPU")
    wanted, there = step(layer, on("cuda:0", grad=True)), on("cuda:1", grad=True)
    with torch.cuda.device(0): found = step(layer, there)
    assert all(x.device.index == 1 for x in found)
    for mine, right in zip(found, wanted): torch.testing.assert_close(mine.cpu(), right.cpu())


def test_autocast():
    with torch.autocast("cuda", torch.bfloat16): assert attention(*(x.float() for x in on("cuda"))).dtype == (
        torch.bfloat16)
