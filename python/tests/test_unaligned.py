# SPDX-License-Identifier: Apache-2.0
"""Tensors that do not begin at a multiple of 16 bytes and whose rows have gaps: on a GPU they are copied, and copies
have no gaps, so that a call which was made for the gaps would read other memory. Here the CPU stands in for the GPU."""
import pytest

torch = pytest.importorskip("torch")

from froghopper import _torch_8_bit, _torch_append, _torch_calls, _torch_paged  # noqa: E402
from froghopper.torch import append_kv, attention, paged_attention  # noqa: E402

CACHES = ((_torch_calls, "_forward"), (_torch_calls, "_backward"), (_torch_8_bit, "_ready"), (_torch_paged, "_ready"),
          (_torch_append, "_ready"))


def with_gaps(*shape, seed):
    """The same values without gaps at a multiple of 16 bytes, and with gaps of 4 numbers at 4 bytes behind one."""
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    wide = torch.full((*shape[:-1], shape[-1] + 4), float("nan"))
    wide[..., 1:-3] = values
    return values, wide[..., 1:-3]


def as_on_a_gpu(monkeypatch, call):
    """The result of a call that has been made before, and takes itself for one on a GPU."""
    call()
    for module, name in CACHES:
        cache = {key: ready._replace(gpu=0) for key, ready in getattr(module, name).items()}
        monkeypatch.setattr(module, name, cache)
        monkeypatch.setattr(module, "stream_of", lambda gpu: None)
    return call()


@pytest.mark.parametrize("gapped", ["q", "k", "v", "gate"])
def test_attention(monkeypatch, gapped):
    dense, others = {}, {}
    for seed, name in enumerate(("q", "k", "v", "gate")):
        values, wide = with_gaps(2, 9, 4, 16, seed=seed)
        dense[name], others[name] = values, wide if name == gapped else values
    found = as_on_a_gpu(monkeypatch, lambda: attention(**others))
    assert torch.equal(found, attention(**dense))


@pytest.mark.parametrize("gapped", ["q", "k", "v", "gate", "grad_o"])
def test_gradients(monkeypatch, gapped):
    def gradients(tensors, grad_o):
        leaves = {name: x.detach().requires_grad_() for name, x in tensors.items()}
        o = attention(**leaves)
        return torch.autograd.grad(o, list(leaves.values()), grad_o)
    dense, others = {}, {}
    for seed, name in enumerate(("q", "k", "v", "gate", "grad_o")):
        values, wide = with_gaps(2, 9, 4, 16, seed=seed)
        dense[name], others[name] = values, wide if name == gapped else values
    grad_o, grad_o_with_gaps = dense.pop("grad_o"), others.pop("grad_o")
    found = as_on_a_gpu(monkeypatch, lambda: gradients(others, grad_o_with_gaps))
    for x, wanted in zip(found, gradients(dense, grad_o)): assert torch.equal(x, wanted)


def test_gate_beside_8_bit_keys(monkeypatch):
    q = torch.randn(2, 3, 4, 16, dtype=torch.bfloat16)
    k, v = (torch.randn(2, 9, 2, 16).to(torch.float8_e4m3fn) for _ in range(2))
    gate, wide = with_gaps(2, 3, 4, 16, seed=5)
    options = dict(scale_k=1.0, scale_v=1.0, out_dtype=torch.float32)
    found = as_on_a_gpu(monkeypatch, lambda: attention(q, k, v, gate=wide, **options))
    assert torch.equal(found, attention(q, k, v, gate=gate, **options))


@pytest.mark.parametrize("gapped", ["q", "gate"])
def test_pages(monkeypatch, gapped):
    k, v = torch.randn(6, 16, 2, 16), torch.randn(6, 16, 2, 16)
    table = torch.tensor([[3, 0], [5, 1]], dtype=torch.int32)
    dense, others = {}, {}
    for seed, name in enumerate(("q", "gate")):
        values, wide = with_gaps(2, 3, 4, 16, seed=seed)
        dense[name], others[name] = values, wide if name == gapped else values
    found = as_on_a_gpu(monkeypatch, lambda: paged_attention(k=k, v=v, block_table=table, **others))
    assert torch.equal(found, paged_attention(k=k, v=v, block_table=table, **dense))


def test_new_rows(monkeypatch):
    (k, k_wide), (v, v_wide), (q, q_wide) = (with_gaps(2, 3, 2, 16, seed=seed) for seed in range(3))

    def caches(k, v, q):
        k_cache, v_cache = torch.zeros(2, 8, 2, 16), torch.zeros(2, 8, 2, 16)
        out = append_kv(k, v, k_cache, v_cache, q=q, q_out=torch.zeros(2, 3, 2, 16),
                        seqused_kv=torch.tensor([0, 4], dtype=torch.int32))
        return k_cache, v_cache, out
    found = as_on_a_gpu(monkeypatch, lambda: caches(k_wide, v_wide, q_wide))
    for x, wanted in zip(found, caches(k, v, q)): assert torch.equal(x, wanted)
