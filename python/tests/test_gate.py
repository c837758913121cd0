# SPDX-License-Identifier: Apache-2.0
"""The output gate: attention(gate=...) beside sigmoid(gate) times attention without it, computed apart, and its
gradients; in NumPy, PyTorch and JAX."""
import numpy as np
import pytest

import froghopper

ROWS, HEADS, HEADS_KV, DIM = 37, 4, 2, 24
OPTIONS = [{}, {"causal": True}, {"window": (5, 3)}, {"causal": True, "softcap": 8.0}]


def drawn(dtype=np.float32, rows_kv=41):
    """q, k, v, gate and a gradient of o."""
    random = np.random.default_rng(3)
    shapes = [(2, ROWS, HEADS, DIM), *[(2, rows_kv, HEADS_KV, DIM)] * 2, *[(2, ROWS, HEADS, DIM)] * 2]
    return [(random.standard_normal(shape) * (3 if i == 3 else 1)).astype(dtype) for i, shape in enumerate(shapes)]


def sigmoid(x): return 1 / (1 + np.exp(-x.astype(np.float64)))


def near(found, exact, dtype=np.float32):
    """Of magnitudes near 1, with room for sums of some rows."""
    size = max(1.0, float(np.abs(exact).max()))
    assert np.abs(np.asarray(found, np.float64) - exact).max() <= 64 * np.finfo(dtype).eps * size


@pytest.mark.parametrize("options", OPTIONS)
def test_numpy(options):
    q, k, v, gate, grad_o = drawn()
    plain, lse = froghopper.attention(q, k, v, return_lse=True, **options)
    o, with_gate = froghopper.attention(q, k, v, gate=gate, return_lse=True, **options)
    near(o, sigmoid(gate) * plain)
    assert np.array_equal(lse, with_gate)
    grads = froghopper.attention_backward(grad_o, q, k, v, o, lse, gate=gate, **options)
    inner = (grad_o * sigmoid(gate)).astype(np.float32)
    for found, exact in zip(grads, froghopper.attention_backward(inner, q, k, v, plain, lse, **options)[:3]):
        near(found, exact)
    near(grads.gate, grad_o * plain * sigmoid(gate) * sigmoid(-gate))
    assert isinstance(grads, froghopper.GatedGradients) and grads.sink is None
    out = tuple(np.empty_like(x) for x in (q, k, v, gate))
    froghopper.attention_backward(grad_o, q, k, v, o, lse, gate=gate, out=out, **options)
    for found, other in zip(out, (grads.q, grads.k, grads.v, grads.gate)): assert np.array_equal(found, other)


def test_numpy_float16_rounds_once():
    q, k, v, gate, _ = drawn(np.float16)
    o = froghopper.attention(q, k, v, gate=gate)
    exact = sigmoid(gate) * froghopper.attention(*(x.astype(np.float32) for x in (q, k, v)))
    assert np.abs(o - exact).max() <= 2 * np.finfo(np.float16).eps * np.abs(exact).max()


def test_numpy_ends_of_the_range():
    q, k, v, gate, _ = drawn()
    gate[..., 0], gate[..., 1], gate[..., 2], gate[..., 3] = np.inf, -np.inf, 1e30, -1e30
    plain, o = froghopper.attention(q, k, v), froghopper.attention(q, k, v, gate=gate)
    for open_column, shut_column in ((0, 1), (2, 3)):
        assert np.array_equal(o[..., open_column], plain[..., open_column])
        assert not o[..., shut_column].any()


def test_numpy_does_not_read_the_gate_of_rows_without_keys():
    """causal with fewer keys than queries: the first rows attend to none. A sink is in their lse."""
    q, k, v, gate, grad_o = drawn(rows_kv=30)
    gate[:, :ROWS - 30] = np.nan
    for sink in (None, np.ones(HEADS, np.float32)):
        o, lse = froghopper.attention(q, k, v, causal=True, gate=gate, sink=sink, return_lse=True)
        grads = froghopper.attention_backward(grad_o, q, k, v, o, lse, causal=True, gate=gate, sink=sink)
        assert not o[:, :ROWS - 30].any() and not grads.gate[:, :ROWS - 30].any()
        assert all(np.isfinite(x).all() for x in (o, *grads) if x is not None)


def test_numpy_8_bit():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="8-bit arrays of NumPy have the types of ml_dtypes")
    q, k, v, gate, _ = drawn()
    q, k, v = (x[..., :16].astype(ml_dtypes.float8_e4m3fn) for x in (q, k, v))
    given = dict(scale_q=1, scale_k=1, scale_v=1, out_dtype="float32")
    near(froghopper.attention(q, k, v, gate=gate[..., :16], **given),
         sigmoid(gate[..., :16]) * froghopper.attention(q, k, v, **given))


@pytest.mark.parametrize("wrong, said", [
    (lambda gate: gate[:1], r"gate must have the shape \[2, 37, 4, 24\], but has \[1, 37, 4, 24\]"),
    (lambda gate: gate.astype(np.float16), "gate must have the type of q, float32, but is float16"),
    (lambda gate: gate.tolist(), "gate must be an array of NumPy, but is a list")])
def test_numpy_refuses(wrong, said):
    q, k, v, gate, _ = drawn()
    with pytest.raises(froghopper.Error, match=said): froghopper.attention(q, k, v, gate=wrong(gate))


def test_numpy_refuses_accumulate():
    q, k, v, gate, _ = drawn()
    held = np.zeros(q.shape, np.float32), np.full((2, HEADS, ROWS), -np.inf, np.float32)
    with pytest.raises(froghopper.InvalidProblem, match="gate must be None with accumulate"):
        froghopper.attention(q, k, v, gate=gate, accumulate=held)


def tensors(dtype=None):
    torch = pytest.importorskip("torch", reason="froghopper.torch needs torch, which is not installed")
    made = [torch.from_numpy(x).to(dtype or torch.float32) for x in drawn()]
    return torch, [x.requires_grad_() for x in made[:4]], made[4]


@pytest.mark.parametrize("options, compiled", [*((options, False) for options in OPTIONS), ({"sink": True}, False),
                                               ({}, True)])
def test_torch(options, compiled):
    torch, (q, k, v, gate), grad_o = tensors()
    from froghopper.torch import attention
    inputs, options = [q, k, v, gate], dict(options)
    if "sink" in options:
        options["sink"] = torch.ones(HEADS, requires_grad=True)
        inputs.append(options["sink"])

    def call(q, k, v, gate): return attention(q, k, v, gate=gate, return_lse=True, **options)
    o, lse = (torch.compile(call, fullgraph=True) if compiled else call)(q, k, v, gate)
    plain, its_lse = attention(q, k, v, return_lse=True, **options)
    exact = torch.sigmoid(gate) * plain
    grad_lse = torch.ones_like(lse)
    found = torch.autograd.grad((o, lse), inputs, (grad_o, grad_lse))
    wanted = torch.autograd.grad((exact, its_lse), inputs, (grad_o, grad_lse))
    near(o.detach(), exact.detach().numpy())
    assert torch.equal(lse, its_lse)
    for x, y in zip(found, wanted): near(x, y.numpy())


def test_torch_packed():
    torch, (q, k, v, gate), grad_o = tensors()
    from froghopper.torch import attention
    ends = dict(cu_seqlens_q=torch.tensor([0, 20, 37], dtype=torch.int32),
                cu_seqlens_kv=torch.tensor([0, 9, 41], dtype=torch.int32), causal=True)
    one = [x.detach()[0].requires_grad_() for x in (q, k, v, gate)]
    o, plain = attention(*one[:3], gate=one[3], **ends), attention(*one[:3], **ends)
    for x, y in zip(torch.autograd.grad(o, one, grad_o[0]),
                    torch.autograd.grad(torch.sigmoid(one[3]) * plain, one, grad_o[0])): near(x, y.numpy())


def test_torch_gate_that_is_half_of_a_projection():
    """Its rows are apart, as in models that make q and gate with one matrix; and one whose columns are apart."""
    torch, (q, k, v, gate), _ = tensors()
    from froghopper.torch import attention
    with torch.no_grad():
        wanted = attention(q, k, v, gate=gate)
        both = torch.cat((q, gate), -1)
        assert torch.equal(attention(q, k, v, gate=both[..., DIM:]), wanted)
        apart = gate.transpose(1, 3).contiguous().transpose(1, 3)
        assert torch.equal(attention(q, k, v, gate=apart), wanted)
        out = torch.full_like(q, float("nan"))
        assert attention(q, k, v, gate=gate, out=out) is out and torch.equal(out, wanted)
        found, largest = attention(q, k, v, gate=gate, return_max_logit=True)
        assert torch.equal(found, wanted)
        assert torch.equal(largest, attention(q, k, v, return_max_logit=True)[1])


def test_torch_transforms():
    torch, (q, k, v, gate), _ = tensors()
    from froghopper.torch import attention
    k, v = k.detach(), v.detach()

    def loss(q, gate): return attention(q, k, v, gate=gate).square().sum()
    for found, wanted in zip(torch.func.grad(loss, (0, 1))(q.detach(), gate.detach()),
                             torch.autograd.grad(loss(q, gate), (q, gate))): assert torch.equal(found, wanted)
    pair = torch.stack((gate, -gate)).detach()
    mapped = torch.vmap(lambda gate: attention(q.detach(), k, v, gate=gate))(pair)
    assert torch.equal(mapped[1], attention(q.detach(), k, v, gate=-gate.detach()))
    with pytest.raises(NotImplementedError, match="gradient of a gradient"):
        torch.autograd.grad(torch.autograd.grad(loss(q, gate), gate, create_graph=True)[0].sum(), q)


def test_torch_bfloat16_and_autocast():
    torch, (q, k, v, gate), _ = tensors()
    from froghopper.torch import attention
    with torch.autocast("cpu", torch.bfloat16): o = attention(q, k, v, gate=gate)
    assert o.dtype == torch.bfloat16
    o.sum().backward()
    assert gate.grad.dtype == torch.float32 and gate.grad.isfinite().all()
    assert torch.equal(o, attention(*(x.bfloat16() for x in (q, k, v)), gate=gate.bfloat16()))


def test_torch_refuses():
    torch, (q, k, v, gate), _ = tensors()
    from froghopper.torch import attention, explain
    table = torch.zeros((2, 2), dtype=torch.int32)
    held = torch.zeros(q.shape), torch.zeros(2, HEADS, ROWS)
    for words, error, said in (
            (dict(gate=gate[:1]), ValueError, "gate must have the shape"),
            (dict(gate=gate.half()), TypeError, "gate must have the type of q, float32, but is float16"),
            (dict(gate=3.0), TypeError, "gate must be a tensor of PyTorch, but is a float"),
            (dict(gate=gate, accumulate=held), ValueError, r"Leave out gate, and multiply o by torch.sigmoid\(gate\)"),
            (dict(gate=gate, out=torch.empty_like(q)), NotImplementedError, "gate is given with out"),
            (dict(gate=gate, block_table=table), NotImplementedError, "q requires a gradient; attention to pages has")):
        with pytest.raises(error, match=said): attention(q, k, v, **words)
    assert "bwd f32 b2 hq4 hkv2 sq37 skv41 d24 gate" in explain(q, k, v, gate=gate)


def test_jax():
    jax = pytest.importorskip("jax", reason="froghopper.jax needs jax, which is not installed")
    from froghopper._errors import LibraryNotFound
    from froghopper.jax import attention
    q, k, v, gate, grad_o = map(jax.numpy.asarray, drawn())

    def with_gate(q, k, v, gate): return attention(q, k, v, causal=True, gate=gate)
    def apart(q, k, v, gate): return jax.nn.sigmoid(gate) * attention(q, k, v, causal=True)
    with jax.default_device(jax.devices("cpu")[0]):
        try: o, pull = jax.vjp(jax.jit(with_gate), q, k, v, gate)
        except LibraryNotFound as error: pytest.skip(str(error))
        exact, pull_apart = jax.vjp(apart, q, k, v, gate)
        near(o, np.asarray(exact, np.float64))
        for x, y in zip(pull(grad_o), pull_apart(grad_o)): near(x, np.asarray(y, np.float64))
        mapped = jax.vmap(lambda gate: with_gate(q, k, v, gate))(jax.numpy.stack((gate, -gate)))
        near(mapped[1], np.asarray(with_gate(q, k, v, -gate), np.float64))
        with pytest.raises(ValueError, match="gate must have the shape"): attention(q, k, v, gate=gate[:1])
        with pytest.raises(TypeError, match="gate must be float32, as q is, but is float16"):
            attention(q, k, v, gate=gate.astype("float16"))
