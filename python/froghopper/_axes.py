# SPDX-License-Identifier: Apache-2.0
"""Whether q, k and v are given as [batch, heads, seq, dim], as PyTorch's own attention has them, where
[batch, seq, heads, dim] is read. Shapes alone say so, and only where no other reading makes sense: a step of decoding,
[batch, 1, heads, dim], is right, and so is a short sequence with many heads.
"""
import contextlib
import threading
from collections.abc import Iterator, Sequence

from froghopper._errors import InvalidProblem, warn_user

Shape = Sequence[int]

LAYOUT, PACKED_LAYOUT = "[batch, seq, heads, dim]", "[total, heads, dim]"
TURNED = ("use q.transpose(1, 2), k.transpose(1, 2) and v.transpose(1, 2) (in NumPy and JAX swapaxes), or "
          "froghopper.torch.scaled_dot_product_attention")
HEADS_KV_OF_MODELS = 128
_thread = threading.local()


def check_axes(q: Shape, k: Shape, causal: bool, warn: bool = True) -> None:
    """Whether the axis before the heads looks like that of the heads, as in PyTorch's own attention: heads as read do
    not divide, but that axis does. Warns where heads do divide, and are more than any model has; or where a causal call
    would have more queries than keys, by a factor as query heads have it over key heads, and more heads than both."""
    if len(q) != 4 or len(k) != 4 or 0 in (q[1], k[1], k[2]) or q[1] % k[1]: return
    if getattr(_thread, "layout_is_known", False): return
    found = f"q has the shape {list(q)} and k {list(k)}"
    if q[2] % k[2] == 0:
        grouped = causal and q[1] > k[1] and q[2] == k[2]
        if not warn or q[2] <= q[1] or not (grouped or k[2] > HEADS_KV_OF_MODELS): return
        warn_user(f"{found}, which is read as {LAYOUT}: {q[2]} heads of {q[1]} queries and {k[1]} keys. If they are "
                  f"[batch, heads, seq, dim], {TURNED}.")
        return
    wrong = f"{found}; they must be {LAYOUT}, and heads_kv, {k[2]}, must divide heads_q, {q[2]}."
    if k[2] > k[1]:
        raise InvalidProblem(f"{wrong} They look like [batch, heads, seq, dim]. {TURNED[0].upper()}{TURNED[1:]}.")
    if k[1] <= HEADS_KV_OF_MODELS:
        raise InvalidProblem(f"{wrong} Use k and v with fewer heads; or, if they are [batch, heads, seq, dim], "
                             f"{TURNED}.")


@contextlib.contextmanager
def layout_is_known() -> Iterator[None]:
    """Where a function has said that heads come first, and its tensors are turned, nobody can have exchanged them."""
    _thread.layout_is_known = True
    try: yield
    finally: _thread.layout_is_known = False
