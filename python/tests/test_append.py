# SPDX-License-Identifier: Apache-2.0
"""New rows into a cache from PyTorch: append_kv beside loops in float64, vLLM's reshape_and_cache_flash, and
flash_attn_with_kvcache with rotary embedding and with pages; on the CPU and on a Hopper GPU."""
import pytest

torch = pytest.importorskip("torch", reason="append_kv needs torch, which is not installed")

from torch_cases import GPU  # noqa: E402

from froghopper import flash_attn_interface as fa  # noqa: E402
from froghopper.torch import append_kv, attention  # noqa: E402

DEVICES = pytest.mark.parametrize("device", ["cpu", GPU])
NAN = float("nan")
PAGES, PAGE = 9, 16
E4M3 = torch.float8_e4m3fn


def drawn(*shape, seed=0, dtype=torch.bfloat16, device="cpu"):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(device)


def ints(*numbers, device="cpu", dtype=torch.int32): return torch.tensor(numbers, dtype=dtype, device=device)


def normed(x, weight, epsilon): return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * weight.double()


def rotated(x, cos, sin, interleaved):
    """x [rows, heads, dim], cos and sin [rows, rotary_dim / 2]; float64."""
    cos, sin, half = cos.double()[:, None], sin.double()[:, None], cos.shape[-1]
    turned, rest = x[..., :2 * half], x[..., 2 * half:]
    a, b = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    pair = a * cos - b * sin, b * cos + a * sin
    return torch.cat([torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1), rest], -1)


def near(found, exact, unit=2**-8):
    return bool(((found.double() - exact).abs() <= unit * exact.abs() + 1e-5).all())


def caches(layout, heads=2, dim=64, dtype=torch.bfloat16, device="cpu"):
    """k_cache and v_cache, and all of their memory, which is NaN."""
    if layout == "k_beside_v":
        memory = torch.full((PAGES, PAGE, heads, 2 * dim), NAN, device=device).to(dtype)
        return *memory.split(dim, -1), memory
    if layout == "heads_first":
        memory = torch.full((2, PAGES, heads, PAGE, dim), NAN, device=device).to(dtype)
        return memory[0].transpose(1, 2), memory[1].transpose(1, 2), memory
    memory = torch.full((2, PAGES, PAGE, heads, dim), NAN, device=device).to(dtype)
    return memory[0], memory[1], memory


def rows_of(cache): return cache.reshape(-1, *cache.shape[2:])


@DEVICES
@pytest.mark.parametrize("layout", ["rows_first", "heads_first", "k_beside_v"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_slots_norm_rotation_and_q(device, layout, interleaved):
    tokens, columns = 23, 32
    q, k, v = (drawn(tokens, heads, 64, seed=at, device=device) for at, heads in enumerate((4, 2, 2)))
    k_cache, v_cache, memory = caches(layout, device=device)
    slots = torch.randperm(PAGES * PAGE, generator=torch.Generator().manual_seed(1))[:tokens].to(device)
    slots[5], slots[-1] = -1, -7
    positions = torch.randint(0, 40, (tokens,), generator=torch.Generator().manual_seed(2)).to(device)
    table = drawn(40, columns, seed=5, dtype=torch.float32, device=device)  # cos and sin beside each other
    cos, sin = table.chunk(2, -1)
    weights = [1 + drawn(64, seed=at, device=device) / 4 for at in (7, 8)]
    out = append_kv(k, v, k_cache, v_cache, q=q, slot_mapping=slots, positions=positions, rotary_cos=cos,
                    rotary_sin=sin, rotary_interleaved=interleaved, norm_q=weights[0], norm_k=weights[1],
                    norm_epsilon=1e-5)
    exact = [rotated(normed(x.double(), weight, 1e-5), cos[positions], sin[positions], interleaved)
             for x, weight in zip((q, k), weights)]
    # A pair's two products may cancel; both were rounded from numbers below 16.
    assert near(out, exact[0]) and out.dtype == q.dtype
    counts = slots >= 0
    assert near(rows_of(k_cache)[slots[counts]], exact[1][counts])
    assert torch.equal(rows_of(v_cache)[slots[counts]], v[counts])
    assert int((~memory.isnan()).sum()) == int(counts.sum()) * 2 * 2 * 64
    given = q.clone()
    assert append_kv(None, None, None, None, q=given, q_out=given, positions=positions, rotary_cos=cos, rotary_sin=sin,
                     rotary_interleaved=interleaved, norm_q=weights[0], norm_epsilon=1e-5) is given
    assert torch.equal(given, out)


@DEVICES
@pytest.mark.parametrize("how", ["dense", "pages", "packed"])
def test_places_by_lengths(device, how):
    before, counts = [3, 0, 20], [2, 4, 1]
    k_cache, v_cache, memory = caches("rows_first", device=device)
    table = ints([4, 0, 2147480000], [7, 8, -5], [1, 3, 2147480000], device=device)
    options = dict(block_table=table)
    if how == "dense": k_cache, v_cache, options, before = k_cache[:3], v_cache[:3], {}, [3, 0, 12]
    used, new = ints(*before, device=device), ints(*counts, device=device)
    if how == "packed":
        k, v = drawn(9, 2, 64, device=device), drawn(9, 2, 64, seed=1, device=device)  # two rows of no sequence
        append_kv(k, v, k_cache, v_cache, cu_seqlens=ints(0, 2, 6, 7, device=device), max_seqlen=4, seqused_kv=used,
                  **options)
        rows = [[k[:2], k[2:6], k[6:7]], [v[:2], v[2:6], v[6:7]]]
    else:
        k, v = drawn(3, 4, 2, 64, device=device), drawn(3, 4, 2, 64, seed=1, device=device)
        append_kv(k, v, k_cache, v_cache, seqused_kv=used, seqused=new, **options)
        rows = [[x[b, :count] for b, count in enumerate(counts)] for x in (k, v)]
    for cache, x in zip((k_cache, v_cache), rows):
        for b, first in enumerate(before):
            for i, row in enumerate(x[b]):
                at = first + i
                page = b if how == "dense" else int(table[b, at // PAGE])
                assert torch.equal(cache[page, at % PAGE], row)
    assert int((~memory.isnan()).sum()) == sum(counts) * 2 * 2 * 64


@DEVICES
@pytest.mark.parametrize("own", ["", "a row", "a row, as attention has them"])
def test_float8(device, own):
    tokens, heads = 17, 2
    k, v = (4 * drawn(tokens, heads, 64, seed=at, device=device) for at in range(2))
    k_cache, v_cache, memory = caches("k_beside_v", dtype=E4M3, device=device)
    slots = torch.arange(tokens, device=device) * 3
    if own: scales = [torch.zeros(PAGES, PAGE, heads, *[1] * ("," in own), device=device) for _ in range(2)]
    else: scales = [torch.tensor([0.05, 0.5], device=device), torch.tensor(0.25, device=device)]
    append_kv(k, v, k_cache, v_cache, slot_mapping=slots, scale_k=scales[0], scale_v=scales[1])
    for x, cache, scale in ((k, k_cache, scales[0]), (v, v_cache, scales[1])):
        if own:
            held = rows_of(scale)[slots].reshape(tokens, heads)
            assert torch.allclose(held, x.abs().amax(-1).float() / 448, rtol=1e-6)
            assert int((scale != 0).sum()) == tokens * heads
            scale = held[..., None]
        else: scale = scale.expand(heads)[:, None]
        wanted = (x.float() / scale).clamp(-448, 448).to(E4M3)
        assert torch.equal(rows_of(cache.view(torch.uint8))[slots], wanted.view(torch.uint8))
    assert int((~memory.float().isnan()).sum()) == tokens * heads * 2 * 64


@DEVICES
def test_latent_cache(device):
    """MLA: 512 columns and 64 that are rotated, in one row."""
    tokens = 12
    latent, rope = drawn(tokens, 1, 512, device=device), drawn(tokens, 1, 64, seed=1, device=device)
    q = drawn(tokens, 16, 64, seed=2, device=device)
    cache = torch.full((PAGES, PAGE, 1, 576), NAN, dtype=torch.bfloat16, device=device)
    cos, sin = (drawn(50, 32, seed=at, device=device) for at in (3, 4))
    slots, positions = (torch.arange(tokens, device=device) + at for at in (20, 5))
    out = append_kv(rope, latent, cache[..., 512:], cache[..., :512], q=q, slot_mapping=slots, positions=positions,
                    rotary_cos=cos, rotary_sin=sin)
    rows = rows_of(cache)[slots]
    assert torch.equal(rows[..., :512], latent)
    for found, x in ((rows[..., 512:], rope), (out, q)):
        assert near(found, rotated(x.double(), cos[positions], sin[positions], False))
    assert int((~cache.isnan()).sum()) == tokens * 576


@DEVICES
@pytest.mark.parametrize("stored", ["auto", "fp8", "fp8_e5m2"])
def test_reshape_and_cache_flash(device, stored):
    """As vLLM calls it: bytes for fp8, scales of one number, slots for fewer tokens than there are."""
    key, value = drawn(20, 2, 64, device=device), drawn(20, 2, 64, seed=1, device=device)
    slots = torch.tensor([17, 3, -1, 99], device=device)
    dtype = torch.bfloat16 if stored == "auto" else torch.uint8
    held = [torch.zeros(PAGES, PAGE, 2, 64, dtype=dtype, device=device) for _ in range(2)]
    scales = [torch.tensor([0.5], device=device), torch.tensor(2.0, device=device)]
    fa.reshape_and_cache_flash(key, value, *held, slots, stored, *scales)
    for x, cache, scale in zip((key, value), held, scales):
        wanted = torch.zeros_like(cache)
        for at, slot in enumerate(slots.tolist()):
            if slot < 0: continue
            row = x[at]
            if stored != "auto":
                row = (row.float() / scale).to(E4M3 if stored == "fp8" else torch.float8_e5m2).view(torch.uint8)
            rows_of(wanted)[slot] = row
        assert torch.equal(cache, wanted)
    with pytest.raises(ValueError, match="kv_cache_dtype must .*, but is 'int8'"):
        fa.reshape_and_cache_flash(key, value, *held, slots, "int8", *scales)


@pytest.mark.parametrize("stored, word, message", [
    (E4M3, "fp8_e5m2", 'key_cache must be torch.uint8 or torch.float8_e5m2 .* is torch.float8_e4m3fn. Use .*="fp8"'),
    (torch.float8_e5m2, "fp8", 'key_cache must be .* is torch.float8_e5m2. Use kv_cache_dtype="fp8_e5m2"'),
    (torch.float8_e5m2, "fp8_e4m3", "key_cache must be torch.uint8 or torch.float8_e4m3fn"),
    (torch.float16, "fp8", 'key_cache must be .*, but is torch.float16. Use kv_cache_dtype="auto" for a cache of the'),
    (torch.float32, "fp8", "or a key_cache of torch.uint8"), (torch.int8, "fp8", "but is torch.int8"),
    (E4M3, "auto", 'kv_cache_dtype must be "fp8" where key_cache is torch.float8_e4m3fn, but is \'auto\''),
    (torch.float8_e5m2, "bfloat16", 'kv_cache_dtype must be "fp8_e5m2" where key_cache is'),
    (torch.float32, "float16", 'kv_cache_dtype must be "auto" where key_cache is torch.float32, but is \'float16\''),
    (torch.float16, "bfloat16", 'kv_cache_dtype must be "auto" where key_cache is torch.float16'),
])
def test_reshape_and_cache_flash_has_one_type(stored, word, message):
    """A cache that says another type than kv_cache_dtype is not filled with bytes of it, whatever fits by its size."""
    size = torch.empty(0, dtype=stored).element_size()
    key = torch.ones(3, 2, 64, dtype=stored if word in ("float16", "bfloat16") and size > 1 else torch.float16)
    columns = 64 // size if word.startswith("fp8") else 64
    held = [torch.zeros(4, 16, 2, columns).to(stored) for _ in range(2)]
    for caches in (held, (torch.zeros(4, 16, 2, columns, dtype=torch.uint8), held[1])):
        if caches is not held: message = message.replace("key_cache", "value_cache")
        if caches is not held and not word.startswith("fp8"): continue
        with pytest.raises(TypeError, match=message):
            fa.reshape_and_cache_flash(key, key, *caches, torch.arange(3), word, torch.ones(1), torch.ones(1))
    assert all((cache.float() == 0).all() for cache in held)
    if word.startswith("fp8") and size == 1 and stored != torch.int8:
        own = "fp8" if stored == E4M3 else "fp8_e5m2"
        fa.reshape_and_cache_flash(key, key, *held, torch.arange(3), own, torch.ones(1), torch.ones(1))
        assert (held[0].float().view(-1, 2, 64)[:3] == 1).all()


def by_hand(call, moves):
    """The same call with q and k rotated before it."""
    cos, sin, interleaved = call.pop("rotary_cos"), call.pop("rotary_sin"), call.pop("rotary_interleaved", True)
    first = call.pop("rotary_seqlens", call["cache_seqlens"])

    def turn(x, steps):
        positions = (first.long()[:, None] + (torch.arange(x.shape[1], device=x.device) if steps else 0))
        positions = positions.expand(x.shape[:2]).flatten()
        return rotated(x.double().flatten(0, 1), cos[positions], sin[positions], interleaved).to(x.dtype).view(x.shape)
    return call | dict(q=turn(call["q"], moves), k=turn(call["k"], True))


@DEVICES
@pytest.mark.parametrize("pages", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows", [3, 5])
def test_flash_attn_with_kvcache_rotates(device, pages, causal, rows):
    def call():
        k_cache, v_cache, _ = caches("rows_first", device=device)
        options = dict(page_table=ints([4, 0], [7, 8], [1, 3], device=device))
        if not pages: k_cache, v_cache, options = k_cache[:3], v_cache[:3], {}
        k_cache, v_cache = (x.copy_(drawn(*x.shape, seed=at, device=device)) for at, x in ((8, k_cache), (9, v_cache)))
        return options | dict(
            q=drawn(3, rows, 4, 64, device=device), k_cache=k_cache, v_cache=v_cache,
            k=drawn(3, 3, 2, 64, seed=1, device=device), v=drawn(3, 3, 2, 64, seed=2, device=device),
            cache_seqlens=ints(2, 13, 0, device=device), rotary_cos=drawn(40, 16, seed=3, device=device),
            rotary_sin=drawn(40, 16, seed=4, device=device), causal=causal, rotary_interleaved=rows == 3)
    for more in ({}, dict(rotary_seqlens=ints(9, 4, 1, device=device))):
        mine, other = call() | more, by_hand(call() | more, causal)
        found, wanted = fa.flash_attn_with_kvcache(**mine), fa.flash_attn_with_kvcache(**other)
        assert torch.equal(mine["v_cache"], other["v_cache"])
        assert near(mine["k_cache"], other["k_cache"].double(), 2**-7)
        assert torch.allclose(found.float(), wanted.float(), atol=0.03, rtol=0.03)


def test_compiled():
    k, v, slots = drawn(4, 2, 64), drawn(4, 2, 64, seed=1), torch.arange(4) * 5
    eager, compiled = caches("rows_first"), caches("rows_first")
    append_kv(k, v, *eager[:2], slot_mapping=slots)
    step = torch.compile(lambda *caches: append_kv(k, v, *caches, slot_mapping=slots), fullgraph=True)
    step(*compiled[:2])
    assert torch.equal(eager[2].isnan(), compiled[2].isnan())
    assert torch.equal(eager[2].nan_to_num(), compiled[2].nan_to_num())


@pytest.mark.parametrize("device", [GPU])
def test_graph(device):
    """Captured once, replayed with other slots and positions."""
    k, v, q = (drawn(8, heads, 64, seed=at, device=device) for at, heads in enumerate((2, 2, 4)))
    k_cache, v_cache, _ = caches("heads_first", device=device)
    slots, positions = (torch.arange(8, device=device) + at for at in (3, 1))
    cos, sin = (drawn(99, 32, seed=at, device=device) for at in (5, 6))
    out = torch.empty_like(q)

    def step(): append_kv(k, v, k_cache, v_cache, q=q, q_out=out, slot_mapping=slots, positions=positions,
                          rotary_cos=cos, rotary_sin=sin)
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph): step()
    for at in (0, 50):
        slots.copy_(torch.arange(8) * 7 + at), positions.copy_(torch.arange(8) * 11 + at // 5)
        graph.replay()
        torch.cuda.synchronize()
        assert near(rows_of(k_cache)[slots], rotated(k.double(), cos[positions], sin[positions], False))
        assert near(out, rotated(q.double(), cos[positions], sin[positions], False))
        assert torch.equal(rows_of(v_cache)[slots], v)


def call(**changed):
    k_cache, v_cache, _ = caches("rows_first")
    right = dict(k=drawn(4, 2, 64), v=drawn(4, 2, 64), k_cache=k_cache, v_cache=v_cache,
                 slot_mapping=torch.arange(4))
    return right | changed


REFUSED = {
    "nothing": (ValueError, call(k=None, v=None), "q, k or v must be given, but all are None"),
    "no_cache": (ValueError, call(v_cache=None), "v and v_cache must .*, but one is None"),
    "int32_slots": (TypeError, call(slot_mapping=ints(0, 1, 2, 3)), "slot_mapping must be int64.*, but is int32"),
    "few_slots": (TypeError, call(slot_mapping=torch.arange(3)), "for each row, 4 in all"),
    "a_slot_outside": (ValueError, call(slot_mapping=torch.tensor([0, 1, 2, 144])),
                       r"slot_mapping\[3\] must be a row .* but is 144"),
    "two_places": (ValueError, call(block_table=ints([0])), "block_table must be None with slot_mapping"),
    "no_place": (ValueError, call(slot_mapping=None), "without cu_seqlens and slot_mapping, but has the shape"),
    "other_heads": (ValueError, call(v=drawn(4, 1, 64)), r"v_cache must .*, but has the shape \[9, 16, 2, 64\]"),
    "other_type": (TypeError, call(k=drawn(4, 2, 64, dtype=torch.float16)), "must be of the type of the others"),
    "no_scale": (TypeError, call(**dict(zip(("k_cache", "v_cache"), caches("rows_first", dtype=E4M3)))),
                 "scale_k must be given .*, but is None"),
    "a_scale": (TypeError, call(scale_k=0.5), "only float8 has scales"),
    "sin_alone": (ValueError, call(rotary_sin=drawn(9, 8)), "rotary_cos and rotary_sin must .*, but one is None"),
    "no_positions": (ValueError, call(rotary_cos=drawn(9, 8), rotary_sin=drawn(9, 8)), "^positions must be given with"),
    "a_position": (ValueError, call(rotary_cos=drawn(9, 8), rotary_sin=drawn(9, 8),
                                    positions=torch.tensor([0, 8, 9, 0])), "position of row 2 must .* but is 9"),
    "positions_alone": (ValueError, call(positions=torch.arange(4)), "nothing is rotated"),
    "a_gradient": (NotImplementedError, call(k=drawn(4, 2, 64).requires_grad_()), "k requires a gradient"),
    "weights_alone": (ValueError, call(norm_q=drawn(64), norm_epsilon=0.0), "norm_q must be None without q"),
    "list": (TypeError, call(slot_mapping=[0, 1, 2, 3]), "slot_mapping must .*, but is a list"),
    "no_tensor": (TypeError, call(k=[1.0]), "k must .*, but is a list"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    error, given, sentence = REFUSED[name]
    before = [None if given[name] is None else given[name].view(torch.uint8).clone() for name in ("k_cache", "v_cache")]
    with torch.no_grad() if error is TypeError else torch.enable_grad(), pytest.raises(error, match=sentence):
        append_kv(**given)
    for x, name in zip(before, ("k_cache", "v_cache")):
        assert x is None or torch.equal(x, given[name].view(torch.uint8))


def test_q_out_at_the_address_of_q():
    """q itself will do; other strides there would write rows over others."""
    words = dict(q=(q := drawn(4, 4, 64)), positions=torch.arange(4), rotary_cos=drawn(9, 8), rotary_sin=drawn(9, 8))
    wanted = append_kv(**call(**words, q_out=torch.empty_like(q)))
    with pytest.raises(ValueError, match="^q_out must have the strides of q where it is q's memory, at the address "
                       "0x.* but has others. Give q_out=q, which is written in place, or memory of its own.$"):
        append_kv(**call(**words, q_out=q.as_strided(q.shape, (64, 256, 1))))
    assert append_kv(**call(**words, q_out=q)) is q and torch.equal(q, wanted)


def test_scales_that_are_written_are_new_versions():
    cache = torch.zeros(2, 2, 16, 2, 32).to(torch.float8_e4m3fn)
    scale_k, scale_v, rows = torch.ones(2, 16, 2), torch.ones(2, 16, 2), torch.randn(2, 3, 2, 32).bfloat16()
    weights = torch.ones(2, 16, 2, requires_grad=True)
    loss = (weights * scale_k).sum()
    append_kv(rows, rows, cache[0], cache[1], scale_k=scale_k, scale_v=scale_v)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"): loss.backward()


@DEVICES
@pytest.mark.parametrize("dtype", [E4M3, torch.float8_e5m2])
def test_numbers_that_are_not_finite(dtype, device):
    """As docs/13-serving.md says it; rows beside them are as they would be."""
    largest = torch.finfo(dtype).max
    for bad in (float("inf"), -float("inf"), NAN):
        k = torch.ones(1, 3, 2, 16, dtype=torch.bfloat16, device=device)
        k[0, 1, 0, 3], k[0, 1, 0, 4] = bad, -2
        (k_cache, scale), (given, one) = ((torch.zeros(1, 8, 2, 16, dtype=dtype, device=device), x) for x in (
            torch.zeros(1, 8, 2, device=device), torch.full((), 0.5, device=device)))
        append_kv(k, k, k_cache, k_cache.clone(), scale_k=scale, scale_v=scale.clone())
        append_kv(k, k, given, given.clone(), scale_k=one, scale_v=one)
        row, other = k_cache[0, 1, 0].float(), [k_cache[0, 0, 0].float(), k_cache[0, 1, 1].float()]
        assert row[3].isnan() and all((x == largest).all() for x in other)
        if bad == bad:
            assert scale[0, 1, 0] == torch.inf and (row[[0, 1, 4]] == 0).all()
            assert given[0, 1, 0, 3].float() == (largest if bad > 0 else -largest)
        else:
            torch.testing.assert_close(scale[0, 1, 0].cpu(), torch.tensor(2 / largest))
            assert row[4] == -largest and given[0, 1, 0, 3].float().isnan()
        assert given[0, 1, 0, 4].float() == -4 and (given[0, 0].float() == 2).all()
    if device != "cpu": return
    append_kv(k.fill_(torch.inf), k, k_cache, k_cache.clone(), scale_k=scale, scale_v=scale.clone())
    with pytest.raises(ValueError, match="scale_k must be positive, .* that of sequence 0, row 0, head 0 is inf"):
        attention(k[:, :1], k_cache, k_cache, scale_k=scale, scale_v=torch.ones_like(scale),
                  seqused_kv=ints(3))
