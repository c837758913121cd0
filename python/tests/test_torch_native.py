# SPDX-License-Identifier: Apache-2.0
"""The native operators of PyTorch against the same calls in Python: bit for bit, and that it is they who compute."""
import os
import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch")

from test_numpy import CASES  # noqa: E402
from torch_cases import drawn, given, qkv, same, step  # noqa: E402

from froghopper import _torch_eager as eager  # noqa: E402
from froghopper import _torch_native as native  # noqa: E402
from froghopper._torch_calls import LOOK  # noqa: E402
from froghopper.torch import attention  # noqa: E402

native.load()
pytestmark = pytest.mark.skipif(native.why_not != "", reason=f"there are no native operators: {native.why_not}")
ON_GPU = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not ON_GPU, reason="there is no Hopper GPU"))]
PLAIN = (LOOK, LOOK, True, -1, -1, 0.0, None, False, False, 0, 0, False)  # options of causal attention


@pytest.fixture
def statuses(monkeypatch):
    """What the operators have said."""
    said = []

    def listens(operator, at):
        def call(*arguments):
            found = operator(*arguments)
            said.append(found[at])
            return found
        return call
    monkeypatch.setattr(native, "forward", listens(native.forward, 2))
    monkeypatch.setattr(native, "backward", listens(native.backward, 4))
    return said


def without(monkeypatch, call):
    """The same in Python."""
    with monkeypatch.context() as patched:
        patched.setattr(native, "forward", None)
        return call()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_every_case(name, device, monkeypatch, statuses):
    case = CASES[name]
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    inputs = [torch.tensor(x, device=device).to(dtype) for x in case.arrays("float32")]
    options = given(case, device)
    if case.packed: options |= dict(max_seqlen_q=max(case.rows), max_seqlen_kv=max(case.keys))
    asked = [x.requires_grad_() for x in inputs[:3]] + [x.requires_grad_() for n, x in options.items() if n == "sink"]
    grad_lse = None

    def call():
        o, lse = attention(*inputs[:3], **options, return_lse=True)
        of_lse = torch.ones_like(lse) if grad_lse is None else grad_lse
        grads = torch.autograd.grad([o, lse], asked, [inputs[3], of_lse])
        alone = attention(*inputs[:3], **options)
        of_alone = torch.autograd.grad(alone, asked, inputs[3])
        with torch.no_grad(): return [o, lse, alone, *grads, *of_alone, attention(*inputs[:3], **options)]
    grad_lse = drawn(*call()[1].shape, seed=9, device=device)
    wanted = without(monkeypatch, call)
    call()
    statuses.clear()
    found = call()
    assert statuses == [0] * 5
    same(found, wanted)
    for x, y in zip(found, wanted): assert x.stride() == y.stride() and x.dtype == y.dtype


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", [native.HEADS_FIRST, native.TURNED])
def test_other_forms(form, device, statuses):
    """Heads before rows: what transposing gives, without a transpose."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    rows_first = qkv(2, 9, 4, 64, kv=(2, 12, 2, 64), dtype=dtype, device=device)
    tensors = [x.transpose(1, 2).contiguous().requires_grad_() for x in rows_first]
    leaves = [x.requires_grad_() for x in rows_first]
    wanted, wanted_lse = eager.attend(native.ROWS_FIRST, *leaves, eager.NO_SIDES, PLAIN, True)
    grad = drawn(*wanted.shape, seed=7, dtype=dtype, device=device)
    wanted_grads = torch.autograd.grad(wanted, leaves, grad)
    turned_grad = grad.transpose(1, 2) if form == native.HEADS_FIRST else grad
    for known in (False, False, True):
        statuses.clear()
        o, lse = eager.attend(form, *tensors, eager.NO_SIDES, PLAIN, True)
        grads = torch.autograd.grad(o, tensors, turned_grad)
        assert not known or statuses == [0, 0]
        same([o.transpose(1, 2) if form == native.HEADS_FIRST else o, lse], [wanted, wanted_lse])
        same([x.transpose(1, 2) for x in grads], wanted_grads)
        assert [x.shape for x in grads] == [x.shape for x in tensors]


@pytest.mark.parametrize("words", [{}, dict(softcap=30.0), dict(scaling=0.1), dict(deterministic=True),
                                   dict(s_aux=torch.ones(4, dtype=torch.bfloat16))], ids=lambda words: "".join(words))
def test_layers_of_transformers(words, statuses, monkeypatch):
    """What layers of Llama, Gemma 2 and gpt-oss ask for goes straight to the operators."""
    layers = pytest.importorskip("froghopper.transformers")
    monkeypatch.setattr(layers, "compute", lambda *_: pytest.fail("the way with more checks is taken"))
    tensors = [x.transpose(1, 2).requires_grad_() for x in qkv(1, 9, 4, 64, kv=(1, 9, 2, 64), dtype=torch.bfloat16)]
    for _ in range(3):
        statuses.clear()
        o, _ = layers.attention_forward(torch.nn.Module(), *tensors, None, **words)
        o.backward(torch.ones_like(o))
    assert statuses == [0, 0]


def test_layouts_that_python_copies(statuses):
    """Columns that do not lie side by side, and a gradient that is one number: the operators leave them alone."""
    q, k, v = (x[..., ::2] for x in qkv(1, 5, 2, 16))
    for _ in range(3): found = attention(q, k, v)
    assert all(status > 0 for status in statuses)
    assert torch.equal(found, attention(*(x.contiguous() for x in (q, k, v))))
    leaves = qkv(1, 5, 2, 8, grad=True)
    for _ in range(3): attention(*leaves).sum().backward()
    wanted = torch.autograd.grad(attention(*leaves), leaves, torch.ones(1, 5, 2, 8))
    for x, y in zip(leaves, wanted): assert torch.allclose(x.grad, 3 * y)


def test_gradients_are_checked_before_they_are_promised():
    """A call without gradients does not let one with them pass that nothing computes."""
    q, k, v = (x.to(torch.float32) for x in qkv(1, 4, 2, 8))
    with torch.no_grad():
        for _ in range(2): attention(q, k, v, max_sms=1)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    first = step(attention, leaves, max_sms=1)
    same(step(attention, leaves, max_sms=1), first)


def test_errors_are_those_of_python():
    """Wrong at each call, known tensors or not."""
    q, k, v = qkv(1, 4, 2, 8)
    for _ in range(3): attention(q, k, v)
    for _ in range(2):
        with pytest.raises(ValueError, match="heads"): attention(q, k[:, :, :1].expand(1, 4, 3, 8), v)
        with pytest.raises(TypeError, match="float64"): attention(q.double(), k.double(), v.double())
        with pytest.raises(TypeError, match="sparse"): attention(q.to_sparse(), k, v)
        with pytest.raises(ValueError, match="window"): attention(q, k, v, window=(-5, 0))
    packed = [x[0] for x in (q, k, v)]
    for ends in ([0, 4], [0, 4], [0, 3]):  # the last leaves a row out, which is right
        begins = torch.tensor(ends, dtype=torch.int32)
        attention(*packed, cu_seqlens_q=begins, cu_seqlens_kv=begins, max_seqlen_q=4, max_seqlen_kv=4)
    falling = torch.tensor([0, 9], dtype=torch.int32)
    with pytest.raises(ValueError, match="cu_seqlens_q"):  # what the library itself finds, when it runs
        attention(*packed, cu_seqlens_q=falling, cu_seqlens_kv=begins, max_seqlen_q=4, max_seqlen_kv=4)


def test_more_problems_than_are_kept(statuses):
    """Lengths that never repeat push others out; what comes back is computed all the same."""
    k, v = qkv(1, 700, 1, 8)[1:]
    q = drawn(1, 1, 1, 8)
    for keys in range(1, 700): attention(q, k[:, :keys], v[:, :keys])
    statuses.clear()
    for _ in range(2):
        for keys in (1, 350, 699):
            wanted = torch.softmax(q[0, :, 0] @ k[0, :keys, 0].T / 8 ** 0.5, -1) @ v[0, :keys, 0]
            assert torch.allclose(attention(q, k[:, :keys], v[:, :keys])[0, :, 0], wanted, atol=1e-6)
    assert statuses[-3:] == [0] * 3


def test_each_thread_has_its_own():
    leaves = qkv(2, 9, 2, 8, grad=True)
    wanted, failed = step(attention, leaves, causal=True), []

    def work():
        try:
            mine = [x.detach().clone().requires_grad_() for x in leaves]
            for _ in range(50): same(step(attention, mine, causal=True), wanted)
        except BaseException as error: failed.append(error)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert not failed


def test_a_child_of_fork_goes_on():
    q, k, v = qkv(1, 4, 2, 8)
    for _ in range(2): wanted = attention(q, k, v)
    child = os.fork()
    if child == 0: os._exit(0 if torch.equal(attention(q, k, v), wanted) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_saved_tensors_are_guarded():
    leaves = qkv(1, 4, 2, 8, grad=True)
    for _ in range(2):
        o = attention(*(x * 1 for x in leaves))
        o.backward(torch.ones_like(o))
    with pytest.raises(RuntimeError, match="second time"): o.backward(torch.ones_like(o))
    moved = leaves[0] * 1
    o = attention(moved, *leaves[1:])
    with torch.no_grad(): moved.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"): o.backward(torch.ones_like(o))


def test_second_derivatives_are_refused_when_known():
    leaves = qkv(1, 4, 2, 8, grad=True)
    for _ in range(3):
        grads = torch.autograd.grad(attention(*leaves), leaves, torch.ones(1, 4, 2, 8), create_graph=True)
        with pytest.raises(NotImplementedError, match="first derivatives"): grads[0].sum().backward()


@pytest.mark.parametrize("setting, words", [("0", "FROGHOPPER_TORCH_NATIVE is 0"), ("1", "")])
def test_python_alone(setting, words):
    program = ("import torch, froghopper.torch, froghopper._torch_native as native\n"
               "q = torch.ones(1, 4, 2, 8, requires_grad=True)\n"
               "for _ in range(3): froghopper.torch.attention(q, q, q).sum().backward()\n"
               "print(native.why_not); assert q.grad.shape == q.shape")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          env=os.environ | {native.VARIABLE: setting})
    assert done.returncode == 0 and done.stdout.strip() == words, done.stderr
