# SPDX-License-Identifier: Apache-2.0
"""Whether q, k and v are given as [batch, heads, seq, dim], as PyTorch's own attention has them, where
[batch, seq, heads, dim] is read. Shapes alone say so, and only where no other reading makes sense: a step of decoding,
[batch, 1, heads, dim], is right, and so is a short sequence with many heads.
"""
from collections.abc import Sequence

from froghopper._errors import InvalidProblem, Unsupported, warn_user
from froghopper._values import counted

Shape = Sequence[int]

LAYOUT, PACKED_LAYOUT = "[batch, seq, heads, dim]", "[total, heads, dim]"
TURNED = ("use q.transpose(1, 2), k.transpose(1, 2) and v.transpose(1, 2), or "
          "froghopper.torch.scaled_dot_product_attention")
SWAPPED = "use q.swapaxes(1, 2), k.swapaxes(1, 2) and v.swapaxes(1, 2)"  # of NumPy and JAX
HEADS_KV_OF_MODELS = 128


def check_axes(q: Shape, k: Shape, causal: bool, where: tuple[str, int] | None = None,
               turned: str = TURNED) -> None:
    """Whether the axis before the heads looks like that of the heads, as in PyTorch's own attention: heads as read do
    not divide, but that axis does. Warns where heads do divide, and are more than any model has; or where a causal call
    would have more queries than keys, by a factor as query heads have it over key heads, and more heads than both.
    where: the user's line, if it is known; else warn_user finds it. turned: what to do about it."""
    if len(q) != 4 or len(k) != 4 or 0 in (q[1], k[1], k[2]) or q[1] % k[1]: return
    found = f"q has the shape {list(q)} and k {list(k)}"
    if q[2] % k[2] == 0:
        grouped = causal and q[1] > k[1] and q[2] == k[2]
        if q[2] <= q[1] or not (grouped or k[2] > HEADS_KV_OF_MODELS): return
        warn_user(f"{found}, which is read as {LAYOUT}: {counted(q[2], 'head')} of {counted(q[1], 'query')} and "
                  f"{counted(k[1], 'key')}. If they are [batch, heads, seq, dim], {turned}.", where)
        return
    wrong = f"{found}; they must be {LAYOUT}, and heads_kv, {k[2]}, must divide heads_q, {q[2]}."
    if k[2] > k[1]:
        raise InvalidProblem(f"{wrong} They look like [batch, heads, seq, dim]. {turned[0].upper()}{turned[1:]}.")
    if k[1] <= HEADS_KV_OF_MODELS:
        raise InvalidProblem(f"{wrong} Use k and v with fewer heads; or, if they are [batch, heads, seq, dim], "
                             f"{turned}.")


def note_of_axes(q: Shape, k: Shape, turned: str = TURNED) -> str:
    """What explain says of shapes that right axes have too, but rarely: there are more heads than rows, of queries and
    of keys. A step of decoding has one row."""
    if len(q) != 4 or len(k) != 4 or q[1] == 1 or q[2] <= q[1] or k[2] <= k[1]: return ""
    return (f"q has the shape {list(q)} and k {list(k)}, which is read as {LAYOUT}: more heads than rows. If they are "
            f"[batch, heads, seq, dim], {turned}.")


# What explain says of examples that a framework maps over.
OF_EXAMPLES = "vmap         these are the shapes of one example; a call adds all examples to the batch\n"
SAME_AXES = {"batch": "sequences", "seq": "rows", "total": "rows", "heads": "heads", "dim": "columns"}


def unlike(name: str, shape: Shape, other: str, like: Shape, axis: str, extent: int, wanted: int) -> InvalidProblem:
    """Of an extent that must be that of another tensor."""
    way = f"Give both equally many {SAME_AXES[axis]}"
    if name == "v" and shape[-3] != shape[-2] and (shape[-3], shape[-2]) == (like[-2], like[-3]):
        way = f"Use {name}.swapaxes({len(shape) - 3}, {len(shape) - 2}), if it has heads before rows"
    return InvalidProblem(f"{name} must have the {axis} of {other}, {wanted}, but has {extent}: their shapes are "
                          f"{list(shape)} and {list(like)}. {way}.")


def missing_dimensions(name: str, count: int, ends: str) -> str:
    """What to do about a tensor of fewer than four. ends: what says where packed sequences are, if it may be given."""
    if count != 3: return "Add the missing dimensions."
    packed = f", or give {ends} for {PACKED_LAYOUT}" * bool(ends)
    return (f"Add the missing dimension, {name}[None] for one sequence or {name}[:, None] for one row of each"
            f"{packed}.")


def room_in_pages(columns: int, page_size: int, max_seqlen_kv: int | None, used: bool) -> int:
    """The most keys that a sequence has; None: what a row of the block table has room for. used: whether lengths are
    given; without, so many keys count, and a bound below that would leave some out."""
    room = columns * page_size
    most = room if max_seqlen_kv is None else max_seqlen_kv
    if most == room or (used and 0 <= most < room): return most
    if not used and 0 <= most < room:
        raise InvalidProblem(f"max_seqlen_kv must be at least {room} without seqused_kv, as all rows of "
                             f"{counted(columns, 'column')} of block_table count then, but is {most}. Give seqused_kv, "
                             "how many rows of each sequence count, or leave max_seqlen_kv out.")
    raise InvalidProblem(f"max_seqlen_kv must be from 0 to {room}, the rows of {counted(columns, 'column')} of "
                         f"block_table, but is {most}. Use max_seqlen_kv={room}, or give block_table more columns.")


def check_beside_pages(accumulate: bool, return_max_logit: bool) -> None:
    """Of attention with block_table: what it has only without."""
    if accumulate:
        raise Unsupported("accumulate must be None with block_table, as attention to pages merges its result with no "
                          "earlier one, but is given. Leave it out, and merge the pairs (o, lse) of return_lse=True.")
    if return_max_logit:
        raise Unsupported("return_max_logit must be False with block_table, as attention to pages does not look for "
                          "the largest score, but is True. Leave it out.")


def check_begins(begins_q: Shape) -> None:
    """Of cu_seqlens_q beside a block table."""
    if not begins_q[0]:
        raise InvalidProblem("cu_seqlens_q must have one number more than there are sequences, but has 0. Use [0] for "
                             "no sequence.")


def check_pool(q: Shape, k: Shape, v: Shape) -> None:
    """Of k and v in pages. Heads before rows are told where the heads as read do not divide those of q, and the axis
    before them does."""
    for name, shape in (("k", k), ("v", v)):
        if len(shape) != 4 or shape[1] < 1:
            raise InvalidProblem(f"{name} must be [pages, page_size, heads, dim] with block_table, but has the shape "
                                 f"{list(shape)}. {way_to_pool(name, shape)}.")
    check_axes_of_cache(q, k, "[pages, page_size, heads, dim]")


def way_to_pool(name: str, shape: Shape) -> str:
    """What to do about a pool of slots, or of K and V in one tensor."""
    if len(shape) == 3:
        return f"If it is [slots, heads, dim], use {name}.reshape(-1, page_size, {shape[1]}, {shape[2]})"
    for at, part in ((0, ""), (1, ":, ")):
        if len(shape) == 5 and shape[at] == 2:
            return f"If it has K and V of all pages, use {name}[{part}0] as k and {name}[{part}1] as v"
    return "Give the whole pool, of all pages"


def check_axes_of_cache(q: Shape, k: Shape, read: str, name_k: str = "k", name_v: str = "v") -> None:
    """Whether a cache, q or both have heads before rows: heads as read do not divide, and those of another reading do.
    Where none does, the library says which heads would. read: the axes of k; q may be packed."""
    if not k[2] or q[-2] % k[2] == 0: return
    caches, at = f"{name_k}.swapaxes(1, 2) and {name_v}.swapaxes(1, 2)", len(q) - 3
    of_q, rows = f"q.swapaxes({at}, {at + 1})", q[at]
    ways = []
    if k[1] and q[-2] % k[1] == 0: ways.append(f"use {caches}, views, if they have heads before rows")
    elif k[1] and rows and rows % k[1] == 0:
        ways.append(f"use {of_q}, {caches}, views, if all three have heads before rows")
    if rows and rows % k[2] == 0: ways.append(f"use {of_q}, if q has heads before rows")
    if not ways: return
    way = "; or ".join(ways)
    raise InvalidProblem(f"{name_k} has the shape {list(k)}, read as {read}, and q {list(q)}; heads_kv, {k[2]}, must "
                         f"divide heads_q, {q[-2]}. {way[0].upper()}{way[1:]}.")
