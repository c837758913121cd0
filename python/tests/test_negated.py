# SPDX-License-Identifier: Apache-2.0
"""Views of PyTorch whose elements are those in memory with the other sign (torch.Tensor.is_neg), such as the imaginary
part of a conjugate: each call computes with the elements, or refuses."""
import pytest

torch = pytest.importorskip("torch")

import froghopper.torch as fh
from froghopper import InvalidTensor


def negated(x):
    """Equal to x, by such a view."""
    view = torch._neg_view(-x)
    assert view.is_neg() and torch.equal(view, x)
    return view


def drawn(*shape): return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def arguments():
    return dict(q=drawn(2, 19, 4, 32), k=drawn(2, 19, 2, 32), v=drawn(2, 19, 2, 32), sink=drawn(4),
                alibi_slopes=drawn(4).abs(), gate=drawn(2, 19, 4, 32))


@pytest.mark.parametrize("name", ["q", "k", "v", "sink", "alibi_slopes", "gate"])
@pytest.mark.parametrize("calls", [0, 3])  # before it: the first calls of a shape go another way
def test_attention_reads_elements(name, calls):
    given = arguments()
    if name != "gate": del given["gate"]
    for _ in range(calls): fh.attention(**given, causal=True, softcap=5.0 + calls)
    wanted = fh.attention(**given, causal=True, softcap=5.0 + calls)
    for _ in range(3):
        found = fh.attention(**given | {name: negated(given[name])}, causal=True, softcap=5.0 + calls)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_slopes_that_are_the_imaginary_part_of_a_conjugate():
    given = arguments()
    del given["gate"], given["sink"]
    slopes = torch.view_as_complex(drawn(4, 2)).conj().imag
    assert slopes.is_neg()
    for _ in range(3):
        found, wanted = (fh.attention(**given | {"alibi_slopes": x}, causal=True)
                         for x in (slopes, slopes.resolve_neg().contiguous()))
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("lse", [False, True])
def test_gradients(lse):
    def gradients(negate):
        leaves = [arguments()[name].requires_grad_() for name in ("q", "k", "v", "sink")]
        q, k, v, sink = (negate(x) for x in leaves)
        made = fh.attention(q, k, v, sink=sink, causal=True, return_lse=lse)
        outs = made if lse else (made,)
        torch.autograd.backward(outs, [negate(drawn(*x.shape)) for x in outs])
        return [x.grad for x in leaves]

    wanted = gradients(lambda x: x)
    for _ in range(2):
        for x, y in zip(gradients(lambda x: negated(x) if not x.requires_grad else x), wanted):
            torch.testing.assert_close(x, y)


def test_others_refuse_what_they_would_misread():
    table, used = torch.arange(4, dtype=torch.int32).view(2, 2), torch.tensor([19, 5], dtype=torch.int32)
    pool, sink = drawn(4, 16, 2, 32), drawn(4)
    call = dict(q=drawn(2, 1, 4, 32), k=pool, v=pool, block_table=table, seqused_kv=used)
    wanted = fh.attention(**call, sink=sink)
    try: found = fh.attention(**call, sink=negated(sink))
    except InvalidTensor as error: assert "resolve_neg()" in str(error)
    else: torch.testing.assert_close(found, wanted)
