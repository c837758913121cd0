# SPDX-License-Identifier: Apache-2.0
"""What froghopper.torch and NumPy's functions say to those who come from another library: a value that has a meaning
there, exchanged axes, words, results that go to a tensor of the caller. The way out that is named is the right one."""
import numpy as np
import pytest

import froghopper

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch_cases import drawn, qkv  # noqa: E402

from froghopper import flash_attn_interface as fa  # noqa: E402
from froghopper.torch import attention, paged_attention  # noqa: E402

Q, K, V = qkv(2, 9, 4, 16, kv=(2, 9, 2, 16))
ENDS = torch.tensor([0, 9], dtype=torch.int32)
TABLE = torch.tensor([[0], [1]], dtype=torch.int32)


def refused(kind, says, call):
    with pytest.raises(kind, match=says) as told: call()
    assert isinstance(told.value, froghopper.Error)
    return str(told.value)


@pytest.mark.parametrize("call", [
    lambda softcap: fa.flash_attn_func(Q, K, V, softcap=softcap),
    lambda softcap: fa.flash_attn_varlen_func(Q[0], K[0], V[0], ENDS, ENDS, 9, 9, softcap=softcap),
    lambda softcap: fa.flash_attn_with_kvcache(Q, K, V, softcap=softcap)])
def test_a_negative_softcap_is_none_nowhere(call):
    """FlashAttention takes it for none; so 0 and None are here, as everywhere."""
    for softcap in (-1, -1.0):
        refused(ValueError, "^softcap must be finite and positive.* but is -1", lambda: call(softcap))
    assert torch.equal(call(0), call(None)) and not torch.equal(call(0), call(0.5))


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.complex64])
def test_sinks_that_are_no_floats(dtype):
    """Also under the names of other libraries: no number is lost in a cast."""
    sink = torch.ones(4).to(dtype)
    said = rf"must be float32, float16 or bfloat16, but is {str(dtype)[6:]}. Use \w+(.real)?.float\(\)."
    refused(TypeError, f"^sink {said}", lambda: attention(Q, K, V, sink=sink))
    refused(TypeError, f"^s_aux {said}", lambda: attention(Q, K, V, s_aux=sink))
    refused(TypeError, f"^sinks {said}", lambda: paged_attention(Q, K, V, TABLE, sinks=sink))
    refused(TypeError, "^s_aux must be float32, float16, bfloat16 or another",
            lambda: fa.flash_attn_func(Q, K, V, s_aux=sink))
    assert torch.equal(attention(Q, K, V, s_aux=torch.ones(4).double()), attention(Q, K, V, sink=torch.ones(4)))
