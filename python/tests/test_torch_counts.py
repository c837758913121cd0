# SPDX-License-Identifier: Apache-2.0
"""FlopCounterMode counts of froghopper.torch what it counts of PyTorch's own attention; DTensors are cut along batch
and heads without a copy to every process, on two processes of gloo."""
import faulthandler
import os
import sys

import pytest

torch = pytest.importorskip("torch", reason="froghopper.torch needs torch, which is not installed")

from torch.nn.functional import scaled_dot_product_attention  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from froghopper.torch import attention  # noqa: E402


def drawn(*shape, seed=0): return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def flops(call, *tensors):
    with FlopCounterMode(display=False) as counted: o = call(*tensors)
    with FlopCounterMode(display=False) as of_backward: o.sum().backward()
    return counted.get_total_flops(), of_backward.get_total_flops()


@pytest.mark.parametrize("causal", [False, True])
def test_flops(causal):
    q, k, v = (drawn(2, heads, 8, 16, seed=heads).requires_grad_() for heads in (4, 4, 4))
    wanted = flops(lambda *x: scaled_dot_product_attention(*x, is_causal=causal), q, k, v)
    found = flops(lambda *x: attention(*(y.transpose(1, 2) for y in x), causal=causal), q, k, v)
    assert found == (2 * 2 * 2 * 4 * 8 * 8 * 16, 5 * 2 * 2 * 4 * 8 * 8 * 16)
    assert wanted in (found, (0, 0))  # PyTorch 2.11 counts nothing of its own on the CPU


def test_flops_of_packed_and_grouped():
    """Of each sequence, for all query heads."""
    q, k, v = (drawn(9, heads, 16, seed=heads).requires_grad_() for heads in (4, 2, 2))
    ends = torch.tensor([0, 4, 9], dtype=torch.int32)
    words = dict(cu_seqlens_q=ends, cu_seqlens_kv=ends)
    pairs = 2 * 4 * 16 * (4 * 4 + 5 * 5)
    assert flops(lambda *x: attention(*x, **words), q, k, v) == (2 * pairs, 5 * pairs)
    dense = [torch.randn(1, 4, heads, 16) for heads in (4, 1, 1)]
    with FlopCounterMode(display=False) as counted: attention(*dense)
    assert counted.get_total_flops() == 2 * 2 * 4 * 16 * 4 * 4
    eight = [x.detach().to(torch.float8_e4m3fn) for x in (q, k, v)]
    with FlopCounterMode(display=False) as counted: attention(*eight, scale_q=1.0, scale_k=1.0, scale_v=1.0, **words)
    assert counted.get_total_flops() == 2 * pairs
    out = torch.empty_like(q)
    with FlopCounterMode(display=False) as counted, torch.no_grad(): attention(q, k, v, out=out, **words)
    assert counted.get_total_flops() == 2 * pairs


def one_of_two(rank, file):
    faulthandler.enable()  # a rank that aborts says where
    compare_dtensors(rank, file)
    # Without gloo's tear-down: a rank whose peer has closed its sockets a moment before may abort there.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def compare_dtensors(rank, file):
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    q, k, v = (drawn(2, 6, heads, 16, seed=heads) for heads in (4, 2, 2))
    sink, slopes = drawn(4, seed=8), drawn(4, seed=9).abs()
    whole = [x.clone().requires_grad_() for x in (q, k, v, sink)]
    wanted = attention(*whole[:3], sink=whole[3], alibi_slopes=slopes, causal=True, return_lse=True)
    grads = torch.autograd.grad(wanted[0].square().sum() + wanted[1].sum(), whole)
    for cut, of_lse, of_sink in ((Shard(0), Shard(0), Replicate()), (Shard(2), Shard(1), Shard(0)),
                                 (Replicate(), Replicate(), Replicate())):
        places = (cut, cut, cut, of_sink)
        leaves = [distribute_tensor(x, mesh, [place]).requires_grad_() for x, place in zip((q, k, v, sink), places)]
        slopes_too = distribute_tensor(slopes, mesh, [of_sink])
        o, lse = attention(*leaves[:3], sink=leaves[3], alibi_slopes=slopes_too, causal=True, return_lse=True)
        assert isinstance(o, DTensor) and o.placements == (cut,) and lse.placements == (of_lse,), o.placements
        torch.testing.assert_close(o.full_tensor(), wanted[0])
        torch.testing.assert_close(lse.full_tensor(), wanted[1])
        found = torch.autograd.grad(o.square().sum() + lse.sum(), leaves)
        for a, b in zip(found, grads): torch.testing.assert_close(a.full_tensor(), b, rtol=1e-4, atol=1e-5)
        compare_gated(mesh, cut, of_lse)
    one = [distribute_tensor(x[:, :, :1], mesh, [Shard(2)]) for x in (k, v)]  # heads that cannot be divided
    o = attention(distribute_tensor(q, mesh, [Shard(2)]), *one)
    torch.testing.assert_close(o.full_tensor(), attention(q, k[:, :, :1], v[:, :, :1]))
    ends = torch.tensor([0, 5, 12], dtype=torch.int32)
    packed = [distribute_tensor(x.flatten(0, 1), mesh, [Shard(1)]) for x in (q, k, v)]
    words = dict(cu_seqlens_q=ends, cu_seqlens_kv=ends, max_seqlen_q=7, max_seqlen_kv=7)
    given = {name: distribute_tensor(x, mesh, [Replicate()]) if torch.is_tensor(x) else x for name, x in words.items()}
    o = attention(*packed, **given)
    assert o.placements == (Shard(1),)
    torch.testing.assert_close(o.full_tensor(), attention(*(x.flatten(0, 1) for x in (q, k, v)), **words))


def compare_gated(mesh, cut, of_heads):
    from torch.distributed.tensor import distribute_tensor
    qkvg = [drawn(2, 6, heads, 16, seed=20 + heads) for heads in (4, 2, 2, 4)]
    whole = [x.clone().requires_grad_() for x in qkvg]
    options = dict(causal=True, return_lse=True, return_max_logit=True)
    wanted = attention(*whole[:3], gate=whole[3], **options)
    grads = torch.autograd.grad(wanted[0].square().sum() + wanted[1].sum(), whole)
    leaves = [distribute_tensor(x, mesh, [cut]).requires_grad_() for x in qkvg]
    found = attention(*leaves[:3], gate=leaves[3], **options)
    assert [x.placements for x in found] == [(cut,), (of_heads,), (of_heads,)], [x.placements for x in found]
    for a, b in zip(found, wanted): torch.testing.assert_close(a.full_tensor(), b)
    of_leaves = torch.autograd.grad(found[0].square().sum() + found[1].sum(), leaves)
    for a, b in zip(of_leaves, grads): torch.testing.assert_close(a.full_tensor(), b, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
def test_two_processes(tmp_path):
    pytest.importorskip("torch.distributed.tensor", reason="this PyTorch has no DTensor")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.multiprocessing.spawn(one_of_two, (str(tmp_path / "meeting"),), nprocs=2)
