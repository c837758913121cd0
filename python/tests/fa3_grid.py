# SPDX-License-Identifier: Apache-2.0
"""The grid of cases that FlashAttention-3 tests itself with (hopper/test_flash_attn.py), its references and its rule of
tolerance, written anew: plain attention in PyTorch, padded tensors, masks as matrices.

The rule: reference attention in fp32, rounded to the type, is the answer; the same in the type itself, with the scale
moved to k, says how large an error may be. max|x - answer| <= times max|plain - answer| + twice the rounding of adding
0.3 to the answer. All differences are taken in the type.

Cases of the grid that do not exist here (fp8, qv, attention_chunk, rotary embedding, v of 512 columns) are not drawn,
and some that do not exist there are: pages beside cache_batch_idx and cache_leftpad. num_splits and pack_gqa are hints
without effect; each case draws one value of them.
"""
import dataclasses
import itertools
import random

import torch

OUTPUT_LENGTHS = [(1, 1), (64, 128), (128, 192), (256, 256), (239, 1), (799, 3), (113, 203), (113, 128), (128, 217),
                  (113, 211), (108, 256), (256, 512), (384, 256), (640, 128), (512, 256), (1024, 1024), (1023, 1024),
                  (1024, 1023), (4096, 4096), (4224, 4224)]
VARLEN_LENGTHS = [(1, 1), (1, 3), (2, 1), (511, 1), (3, 513), (64, 128), (128, 128), (256, 256), (113, 203), (128, 217),
                  (113, 211), (108, 256), (256, 512), (307, 256), (640, 128), (512, 256), (1024, 1024), (1023, 1024),
                  (1024, 1023), (2048, 2048), (4096, 4096)]
CACHE_LENGTHS = [(1, 128), (1, 339), (3, 1024), (64, 800), (64, 256), (3, 799), (64, 2048), (16, 20000), (128, 128),
                 (256, 512), (2048, 3577)]
REPEAT_LENGTHS = [(1, 239), (239, 1), (3, 799), (799, 3), (1024, 128), (97, 97), (128, 128), (200, 200), (256, 256),
                  (257, 257), (384, 384), (512, 512), (768, 768), (1024, 1024), (2048, 2048)]

COMMON = dict(dtype=["bfloat16", "float16"], heads=[(6, 6), (6, 1), (6, 2)], softcap=[0.0, 15.0], local=[False, True],
              causal=[False, True],
              dims=[(64, 64), (64, 256), (96, 96), (128, 128), (192, 192), (192, 128), (256, 256)],
              hints=[(1, False), (1, True), (3, False), (3, True)])
GRIDS = {
    "output": dict(COMMON, lengths=OUTPUT_LENGTHS),
    "varlen": dict(COMMON, lengths=VARLEN_LENGTHS, unused=[False, True]),
    "kvcache": dict(dtype=["bfloat16", "float16"], heads=[(6, 6), (6, 1), (6, 3)], mask=["full", "causal", "local"],
                    lengths=CACHE_LENGTHS, new=["none", "as_many", "fewer"], leftpad=[False, True],
                    batch_idx=[False, True], varlen=[False, True], dims=[(128, 128)], splits=[1, 3, 0],
                    page=[None, 1, 4, 128]),
    "repeat": dict(dtype=["bfloat16"], heads=[(4, 4), (4, 2)], causal=[False, True], lengths=REPEAT_LENGTHS,
                   dims=[(d, d) for d in (32, 40, 64, 80, 96, 128, 160, 192, 224, 256)]),
    "combine": dict(out_dtype=["float32", "float16", "bfloat16"], dim=[64, 96, 128, 192, 256, 512],
                    rows=[1, 2, 3, 32, 64, 256, 113, 108, 640, 1024], splits=[1, 2, 3, 5, 17, 32, 55, 97, 133]),
}


def whole(name):
    """Every case of a grid, in an order that has no meaning but is always the same."""
    names, values = zip(*GRIDS[name].items())
    cases = [dict(zip(names, case)) for case in itertools.product(*values)]
    random.Random(name).shuffle(cases)
    return cases


def sample(name, number):
    """number cases, or more, in which every value of every parameter appears."""
    rng, columns = random.Random(name), {}
    number = max(number, *map(len, GRIDS[name].values()))
    for parameter, values in GRIDS[name].items():
        column = (values * (number // len(values) + 1))[:number]
        columns[parameter] = column if parameter == "lengths" else rng.sample(column, number)
    return [dict(zip(columns, case)) for case in zip(*columns.values())]


def name_of(case):
    def text(value): return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return "-".join(key + text(value) for key, value in case.items())


@dataclasses.dataclass
class Drawn:
    """Tensors of a case, padded: q [batch, rows, heads, dim] and so on; seen: which keys, [batch, 1, rows, keys]."""
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    window: tuple
    softcap: float
    seen: torch.Tensor = None


def normal(rng, dtype, device, *shape):
    return torch.randn(*shape, generator=rng).to(getattr(torch, dtype)).to(device)


def draw(case, batch, device, seed):
    """q, k and v of a case; the softcap's q is as small as FlashAttention-3's. Of long sequences the CPU has fewer
    heads."""
    rng, (rows, keys), (heads, heads_kv), (dim, dim_v) = torch.Generator().manual_seed(seed), *(
        case[name] for name in ("lengths", "heads", "dims"))
    if device == "cpu" and rows * keys > 2 ** 19: heads, heads_kv = (2, 1) if heads > heads_kv else (1, 1)
    softcap = case.get("softcap", 0.0)
    q = normal(rng, case["dtype"], device, batch, rows, heads, dim)
    if softcap: q = (q * (softcap / 4)).detach()
    k = normal(rng, case["dtype"], device, batch, keys, heads_kv, dim)
    v = normal(rng, case["dtype"], device, batch, keys, heads_kv, dim_v)
    local = case.get("local") or case.get("mask") == "local"
    window = tuple(torch.randint(0, keys, (2,), generator=rng).tolist()) if local else (-1, -1)
    return Drawn(q, k, v, window, softcap), rng


def in_pages(caches, page, rng):
    """(pools, table) of dense caches [rows, keys, heads, dim] in pages in random order, NaN behind the last key."""
    rows, keys = caches[0].shape[:2]
    columns = -(-keys // page)
    order = torch.randperm(rows * columns, generator=rng).to(caches[0].device)
    pools = []
    for cache in caches:
        padded = torch.nn.functional.pad(cache, (0, 0, 0, 0, 0, columns * page - keys), value=torch.nan)
        pools.append(torch.empty_like(padded).view(rows * columns, page, *cache.shape[2:]))
        pools[-1][order] = padded.view_as(pools[-1])
    return pools, order.int().view(rows, columns)


def seen_by(rows, keys, used_q, used_kv, causal, window, first=None):
    """[batch, 1, rows, keys]: key j of a sequence is seen by row i. used_*: [batch], how many count; the last row that
    counts is level with the last key that does. first: [batch], the first key that counts."""
    i, j = torch.arange(rows, device=used_q.device)[:, None], torch.arange(keys, device=used_q.device)[None, :]
    used_q, used_kv = used_q[:, None, None], used_kv[:, None, None]
    level, seen = i + used_kv - used_q, (i < used_q) & (j < used_kv)
    left, right = window[0], 0 if causal else window[1]
    if left >= 0: seen = seen & (j >= level - left)
    if right >= 0: seen = seen & (j <= level + right)
    if first is not None: seen = seen & (j >= first[:, None, None])
    return seen[:, None]


def reference(q, k, v, seen, softcap, wide):
    """(out in the type of q, lse in fp32). wide: computed in fp32; else in the type, with the scale at k.

    In the type: every step's result is rounded to it and, as casts have gradients, so is every step's gradient. The
    steps themselves run in fp32, as processors without fp16 would do them at a crawl.
    """
    dtype, scale, group = q.dtype, q.shape[-1] ** -0.5, q.shape[2] // k.shape[2]

    def step(x): return x if wide else x.to(dtype).float()
    q, k, v = q.float(), k.float(), v.float()
    if wide: q = q * scale
    else: k = step(k * scale)
    k, v = (x.repeat_interleave(group, dim=2) for x in (k, v))
    scores = step(torch.einsum("bihd,bjhd->bhij", q, k))
    if softcap: scores = step(softcap * step(torch.tanh(step(scores / softcap))))
    scores = scores.masked_fill(~seen, -torch.inf)
    weights = step(torch.softmax(scores, -1)).masked_fill(~seen.any(-1, keepdim=True), 0.0)
    lse = torch.logsumexp(scores.detach(), -1)
    return torch.einsum("bhij,bjhd->bihd", weights, v).to(dtype), lse


def rounding(answer):
    """Twice the largest (x + 0.3) - 0.3 - x, each sum computed in fp32 and rounded, as PyTorch does on a GPU; for x = 0
    it is not 0, as 0.3 itself is rounded."""
    def sum_of(x, y): return (x.float() + y).to(answer.dtype)
    return 2 * (sum_of(sum_of(answer, 0.3), -0.3) - answer).abs().max().item()


def excess(found, answer, plain, times, more=0.0):
    """"", or by what found breaks the rule. A NaN breaks it; no element at all does not."""
    if answer.numel() == 0: return "" if found.shape == answer.shape else f"the shape is {list(found.shape)}"
    error, allowed = (found - answer).abs().max().item(), times * (plain - answer).abs().max().item() + more
    return "" if error <= allowed else f"largest error {error:.3e}, allowed are {allowed:.3e}"


def excess_of_output(found, answer, plain, softcap):
    return excess(found, answer, plain, 3 if softcap else 2, rounding(answer) if answer.numel() else 0.0)


def excess_of_gradient(found, answer, plain, softcap):
    more = (rounding(answer) if answer.numel() else 0.0) + (3e-4 if softcap else 0.0)
    return excess(found, answer, plain, 3 if softcap else 2, more)


def excess_of_lse(found, answer, dim, softcap):
    """The fp32 error of plain.py, once for each side; -inf is exact."""
    size = 1 + answer[answer.isfinite()].abs().amax().item() if answer.isfinite().any() else 1.0
    bound = 2 * (8 + 8 * softcap + dim + found.shape[-1]) * size * 2.0 ** -24
    off = torch.where(found == answer, 0.0, (found - answer).abs())
    return "" if bool((off <= bound).all()) else f"lse is off by {off.max().item():.3e}, allowed are {bound:.3e}"
