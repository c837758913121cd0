# SPDX-License-Identifier: Apache-2.0
"""froghopper.torch in CUDA graphs of PyTorch on a Hopper GPU: torch.compile's, which are recorded in a pool that knows
every tensor that lives on, and the user's own; streams and graphs side by side; static caches of transformers. Skipped
with the reason where there is none.

The model tests run on the CPU as well, where nothing is recorded."""
import itertools

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from test_torch_gpu import on, why_no_gpu
from torch_cases import drawn, one_thread, same

from froghopper.torch import attention, quantise

on_a_gpu = pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one")
MODES = ["reduce-overhead", "max-autotune"]
SHAPES = [(1, 16), (200, 200), (1, 5000), (77, 300), (1, 17)]  # rows, keys; many keys are split into parts


def tensors_of(rows, keys, grad=False, seed=0):
    shapes = ((2, rows, 4, 64), (2, keys, 2, 64), (2, keys, 2, 64))
    return [drawn(*shape, seed=seed + at, dtype=torch.bfloat16, device="cuda", grad=grad)
            for at, shape in enumerate(shapes)]


def attend(q, k, v): return attention(q, k, v, causal=True, deterministic=True)


def train(function, tensors):
    """o and the gradients, copied: a graph writes to the same memory again."""
    torch.compiler.cudagraph_mark_step_begin()
    o = function(*tensors)
    found = [o, *torch.autograd.grad(o, tensors, torch.ones_like(o))]
    return [x.clone() for x in found]


def infer(function, tensors):
    torch.compiler.cudagraph_mark_step_begin()
    with torch.no_grad(): return function(*tensors).clone()


def compiled(function, mode):
    torch._dynamo.reset()
    return torch.compile(function, mode=mode, fullgraph=True, dynamic=False)


@on_a_gpu
@pytest.mark.parametrize("mode", MODES)
def test_compiled_graphs_of_one_query(mode):
    """The first call warms up, the second records, later ones replay."""
    function, tensors = compiled(attention, mode), tensors_of(1, 16)
    for _ in range(4): same([infer(function, tensors)], [infer(attention, tensors)])


@on_a_gpu
@pytest.mark.parametrize("mode", MODES)
def test_compiled_graphs_of_several_shapes(mode):
    function = compiled(attend, mode)
    for turn, (rows, keys) in itertools.product(range(4), SHAPES):
        tensors = tensors_of(rows, keys, seed=turn)
        same([infer(function, tensors)], [infer(attend, tensors)])


@on_a_gpu
@pytest.mark.parametrize("mode", MODES)
def test_compiled_graphs_of_gradients(mode):
    function = compiled(attend, mode)
    for turn, (rows, keys) in itertools.product(range(4), SHAPES[:2]):
        tensors = tensors_of(rows, keys, grad=True, seed=turn)
        same(train(function, tensors), train(attend, tensors))


@on_a_gpu
def test_compiled_graphs_of_everything_else():
    """Merging, the largest score, 8 bits and out, each of which has memory of its own."""
    def work(q, k, v, narrow_k, narrow_v, scale):
        held = torch.zeros(q.shape, device="cuda"), torch.full((2, 4, q.shape[1]), -torch.inf, device="cuda")
        o, lse = attention(q, k, v, accumulate=held)
        _, most = attention(q, k, v, return_max_logit=True)
        small = attention(q, narrow_k, narrow_v, scale_k=scale, scale_v=scale)
        return o, lse, most, small, attention(q, k, v, out=torch.empty_like(q))
    function = compiled(work, "reduce-overhead")
    for turn in range(4):
        q, k, v = tensors_of(1, 1000, seed=turn)
        given = (q, k, v, k.to(torch.float8_e4m3fn), v.to(torch.float8_e4m3fn), torch.tensor(1.0, device="cuda"))
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad(): same([x.clone() for x in function(*given)], work(*given))


@on_a_gpu
@pytest.mark.parametrize("mode", MODES)
def test_compiled_graphs_on_two_streams(mode):
    function, streams = compiled(attend, mode), [torch.cuda.Stream() for _ in range(2)]
    tensors = [tensors_of(rows, keys) for rows, keys in SHAPES[:2]]
    wanted = [infer(attend, x) for x in tensors]
    found = []
    for _ in range(6):
        for stream, x in zip(streams, tensors):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream): found.append(infer(function, x))
            torch.cuda.current_stream().wait_stream(stream)  # one pool of graphs is for one after the other
            same([infer(attend, x)], [wanted[len(found) % 2 - 1]])
    torch.cuda.synchronize()
    same(found, wanted * 6)


@on_a_gpu
def test_graphs_and_streams_side_by_side():
    """Two graphs that are replayed at the same time, and eager calls on two streams beside them."""
    tensors = on("cuda")
    wanted, small = attention(*tensors, causal=True), quantise(*tensors)
    graphs, streams = [torch.cuda.CUDAGraph() for _ in range(2)], [torch.cuda.Stream() for _ in range(4)]
    held = []
    for graph in graphs:
        with torch.cuda.graph(graph): held.append((attention(*tensors, causal=True), quantise(*tensors)))
    torch.cuda.synchronize()
    found = []
    for _ in range(50):
        for graph, stream in zip(graphs, streams):
            with torch.cuda.stream(stream): graph.replay()
        for stream in streams[2:]:
            with torch.cuda.stream(stream): found.append((attention(*tensors, causal=True), quantise(*tensors)))
    torch.cuda.synchronize()
    for o, narrow in (*held, *found):
        same([o], [wanted])
        same([x.view(torch.uint8) for x in narrow], [x.view(torch.uint8) for x in small])


@on_a_gpu
def test_no_memory_outlives_a_call():
    """Neither on new streams nor in the pool of a graph."""
    tensors = [tensors_of(*shape) for shape in SHAPES]
    for x in tensors: attention(*x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(20):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for x in tensors: attention(*x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for x in tensors: attention(*x)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


MODELS = ("llama", "gpt2", "gemma2", "mistral", "qwen3")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_a_gpu)])
@pytest.mark.parametrize("name", MODELS)
def test_static_caches(name, device):
    """generate with a static cache, which transformers compiles with graphs on a GPU, beside eager attention."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    from torch_models import check_text, model_of, text_of

    import froghopper.transformers
    froghopper.transformers.register()
    torch._dynamo.reset()
    dtype, bound = (torch.float32, 1e-3) if device == "cpu" else (torch.float16, 0.1)
    with torch.no_grad():
        wanted = text_of(model_of(name, "eager", dtype, device), None)
        compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        model = model_of(name, "froghopper", dtype, device)
        for _ in range(2): check_text(text_of(model, "static"), wanted, bound)
    if device == "cuda": assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > compiled
