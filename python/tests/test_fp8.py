# SPDX-License-Identifier: Apache-2.0
"""8-bit q, k and v, of NumPy and of PyTorch: on the CPU the result is bit for bit that of float32 arrays that hold what
the stored numbers stand for; FlashAttention-3's descales; what is refused."""
import numpy as np
import pytest

import froghopper

ml_dtypes = pytest.importorskip("ml_dtypes", reason="arrays of 8-bit numbers need ml_dtypes, which is not installed")

TYPES = ["float8_e4m3fn", "float8_e5m2"]
BATCH, ROWS, KEYS, HEADS, HEADS_KV, DIM = 2, 200, 300, 4, 2, 64
SHAPES = {"q": (BATCH, ROWS, HEADS, DIM), "k": (BATCH, KEYS, HEADS_KV, DIM), "v": (BATCH, KEYS, HEADS_KV, DIM)}


def drawn(seed, shape, dtype="float32"):
    return np.random.default_rng(seed).standard_normal(shape).astype(getattr(ml_dtypes, dtype, dtype))


def stored(dtype): return [drawn(seed, shape, dtype) for seed, shape in enumerate(SHAPES.values())]


def scales(kind, seed=9):
    """(the arguments, what each of the numbers of q, k and v is multiplied by)"""
    made, wide = {}, []
    for at, (name, (batch, rows, heads, dim)) in enumerate(SHAPES.items()):
        shape = {"one": (), "heads": (batch, heads), "blocks": (batch, -(-rows // 128), heads, 1),
                 "rows": () if name == "q" else (batch, rows, heads)}[kind.split()[0]]
        if name == "v" and kind.endswith("columns"): shape = (batch, 1, heads, dim)
        scale = np.exp2(np.random.default_rng(seed + at).uniform(-1, 1, shape)).astype(np.float32)
        made["scale_" + name] = scale
        if scale.ndim == 2: scale = scale[:, None, :, None]
        if scale.ndim == 3: scale = scale[..., None]
        if scale.ndim == 4 and 1 < scale.shape[1] < rows: scale = np.repeat(scale, 128, 1)[:, :rows]
        wide.append(np.broadcast_to(scale, (batch, rows, heads, dim)))
    return made, wide


def close(found, wanted):
    """Kernels of bf16 compute 8-bit numbers on some processors: they round weights to it, and o may be bf16."""
    np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in (found, wanted)), rtol=2**-7, atol=6e-3)


KINDS = ["one", "heads", "blocks", "one columns", "blocks columns", "rows"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES)
def test_numpy_computes_what_the_numbers_stand_for(dtype, kind):
    given, factors = scales(kind)
    arrays = stored(dtype)
    wanted, wanted_lse = froghopper.attention(*(x.astype(np.float32) * f for x, f in zip(arrays, factors)), causal=True,
                                              return_lse=True)
    o, lse = froghopper.attention(*arrays, causal=True, return_lse=True, out_dtype=np.float32, **given)
    close(o, wanted)
    np.testing.assert_allclose(lse, wanted_lse, rtol=1e-6, atol=1e-5)
    bits = froghopper.attention(*(x.view(np.uint8) for x in arrays), causal=True, dtype=dtype, **given)
    assert bits.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(bits, o.astype(ml_dtypes.bfloat16))


def test_numpy_takes_16_bit_q_and_out():
    given, factors = scales("blocks")
    del given["scale_q"]
    q, k, v = drawn(0, SHAPES["q"], "float16"), *stored("float8_e4m3fn")[1:]
    out = np.empty(SHAPES["q"], np.float16)
    assert froghopper.attention(q, k, v, out=out, **given) is out
    wide = [x.astype(np.float32) * f for x, f in zip((k, v), factors[1:])]
    wanted = froghopper.attention(q.astype(np.float32), *wide)
    close(out, wanted)


def test_scales_of_packed_rows():
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in stored("float8_e4m3fn"))
    rows = np.array([0, 150, 400], np.int32), np.array([0, 250, 600], np.int32)
    given, factors = scales("rows")
    wide = [x.astype(np.float32) * f.reshape(x.shape) for x, f in zip((q, k, v), factors)]
    given |= {name: given[name].reshape(-1, HEADS_KV) for name in ("scale_k", "scale_v")}
    lengths = dict(cu_seqlens_q=rows[0], cu_seqlens_kv=rows[1])
    close(froghopper.attention(q, k, v, out_dtype=np.float32, **lengths, **given),
          froghopper.attention(*wide, **lengths))
    with pytest.raises(froghopper.InvalidProblem, match="scale_k and scale_v must be alike"):
        froghopper.attention(q, k, v, **lengths, **(given | {"scale_v": 1}))


def test_scales_of_as_many_rows_as_sequences():
    """[3, heads] may be of 3 sequences or of their 3 rows in all, of which the first has two and the second none."""
    q, k, v = (np.random.default_rng(i).standard_normal((3, heads, 32), np.float32)
               for i, heads in enumerate((4, 2, 2)))
    stored_k, stored_v = (x.astype("float8_e4m3fn") for x in (k, v))
    of_rows = np.array([[1, 1], [5, 5], [0.1, 0.1]], np.float32)
    lengths = dict(cu_seqlens_q=[0, 1, 2, 3], cu_seqlens_kv=[0, 2, 2, 3])
    wide = [x.astype(np.float32) * of_rows[..., None] for x in (stored_k, stored_v)]
    o = froghopper.attention(q.astype("bfloat16"), stored_k, stored_v, scale_k=of_rows[..., None],
                             scale_v=of_rows[..., None], out_dtype="float32", **lengths)
    close(o, froghopper.attention(q.astype("bfloat16").astype(np.float32), *wide, **lengths))
    with pytest.raises(froghopper.InvalidTensor, match=r"a scale of each sequence or of each row.*reshape\(3, 2, 1\)"):
        froghopper.attention(q.astype("bfloat16"), stored_k, stored_v, scale_k=of_rows, scale_v=of_rows,
                             out_dtype="float32", **lengths)


def test_scales_of_too_few_rows_are_not_to_be_reshaped():
    q, k, v = drawn(0, SHAPES["q"], "bfloat16"), *stored("float8_e4m3fn")[1:]
    few = np.ones((*k.shape[:2], k.shape[2]), np.float32)[:, 1:]
    with pytest.raises(froghopper.InvalidTensor, match="Give it one of these shapes"):
        froghopper.attention(q, k, v, scale_k=few, scale_v=few)


def test_numpy_counts_blocks_in_each_packed_sequence():
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in stored("float8_e4m3fn"))
    ends = np.array([0, 150, 400], np.int32)
    scale_k = np.array([1, 2, 4, 0.5, 0.25, 1], np.float32).reshape(2, 3, 1, 1).repeat(2, 2)
    factor = np.concatenate([np.repeat(scale_k[b, :, 0, 0], 128)[:n] for b, n in enumerate((250, 350))])
    lengths = dict(cu_seqlens_q=ends, cu_seqlens_kv=[0, 250, 600])
    o = froghopper.attention(q, k, v, scale_q=1, scale_k=scale_k, scale_v=1, out_dtype="float32", **lengths)
    wide = [x.astype(np.float32) for x in (q, k, v)]
    close(o, froghopper.attention(wide[0], wide[1] * factor[:, None, None], wide[2], **lengths))


ONES = dict(scale_q=1, scale_k=1, scale_v=1)
REFUSED = {
    "no_scales": (TypeError, {}, "scale_q, scale_k and scale_v must .*, but are None. Use scale_q=1, scale_k=1, scale"),
    "no_scale_of_v": (TypeError, dict(scale_q=1, scale_k=1), "scale_v must .*, but is None"),
    "shape": (ValueError, ONES | dict(scale_k=np.ones((2, 4), np.float32)), "scale_k must .*, but has .2, 4"),
    "columns_of_k": (ValueError, ONES | dict(scale_k=np.ones((2, 1, 2, 64), np.float32)), "scale_k must .*, but has"),
    "zero": (ValueError, ONES | dict(scale_k=0), "scale_k must .*, but that of sequence 0, head 0 is 0"),
    "nan": (ValueError, ONES | dict(scale_v=np.nan), "scale_v must .*, but that of sequence 0, head 0 is nan"),
    "complex": (TypeError, ONES | dict(scale_q=1j), "scale_q must .*, but is complex128"),
    "out_dtype": (TypeError, ONES | dict(out_dtype="int8"), "out_dtype must .*, but is int8"),
    "out": (TypeError, ONES | dict(out=np.empty(SHAPES["q"], np.float16)), "out must .*, but is float16"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_numpy_refuses(name):
    error, arguments, words = REFUSED[name]
    with pytest.raises(error, match=words): froghopper.attention(*stored("float8_e4m3fn"), **arguments)


def test_numpy_refuses_types():
    wide, narrow = stored("float32"), stored("float8_e4m3fn")
    for arrays, arguments, words in (
            (wide, dict(scale_k=1), "k is float32"), (wide, dict(scale_q=1), "scale_q must .*, but is given"),
            ([wide[0], *narrow[1:]], ONES, "q must .*, but is float32"),
            ([*narrow[:2], stored("float8_e5m2")[2]], ONES, "v must .*, but is float8_e5m2"),
            ([x.view(np.uint8) for x in narrow], ONES, "dtype must .* where q is uint8"),
            ([narrow[0].astype(np.float16), *narrow[1:]], ONES, "scale_q must .*, but is given")):
        with pytest.raises(TypeError, match=words): froghopper.attention(*arrays, **arguments)
    with pytest.raises(NotImplementedError, match="head dims of 8-bit types must .*, but that of q and k is 24"):
        froghopper.attention(*(x[..., :24] for x in narrow), **ONES)


def tensors(dtype):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    return [torch.from_numpy(x.view(np.uint8)).view(getattr(torch, dtype)) for x in stored(dtype)]


def in_torch(given):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    return {name: torch.from_numpy(np.asarray(scale)) for name, scale in given.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES)
def test_torch_computes_what_the_numbers_stand_for(dtype, kind):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from froghopper.torch import attention
    given, factors = scales(kind)
    given, qkv = in_torch(given), tensors(dtype)
    wide = [x.float() * torch.from_numpy(f.copy()) for x, f in zip(qkv, factors)]
    wanted, wanted_lse = attention(*wide, causal=True, return_lse=True)
    o, lse = attention(*qkv, causal=True, return_lse=True, out_dtype=torch.float32, **given)
    close(o, wanted)
    torch.testing.assert_close(lse, wanted_lse, rtol=1e-6, atol=1e-5)
    wanted = o
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(attention(*qkv, causal=True, **given), wanted.bfloat16())
    out = torch.empty_like(wanted, dtype=torch.float16)
    assert attention(*qkv, causal=True, out=out, out_dtype=torch.float16, **given) is out
    assert torch.equal(out, wanted.half())
    moved = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in qkv]
    assert torch.equal(attention(*moved, causal=True, out_dtype=torch.float32, **given), wanted)
    strided = [x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in qkv]  # copied
    assert torch.equal(attention(*strided, causal=True, out_dtype=torch.float32, **given), wanted)


def test_torch_compiles():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from froghopper.torch import attention
    given, qkv = in_torch(scales("blocks")[0]), tensors("float8_e4m3fn")
    compiled = torch.compile(lambda *x: attention(*x, **given), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*qkv), attention(*qkv, **given))
    torch.library.opcheck(torch.ops.froghopper.forward_8_bit.default, (
        *qkv, *[None] * 6, *given.values(), None, None, -1, -1, True, -1, -1, 0.0, None, False, False, 0, 0, False,
        "", None, True), test_utils="test_faketensor")  # test_schema multiplies these numbers, which PyTorch does not


def test_torch_refuses():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from froghopper.torch import attention
    q, k, v = tensors("float8_e4m3fn")
    given = in_torch(scales("one")[0])
    for error, arrays, arguments, words in (
            (TypeError, (q, k, v), {}, "scale_q, scale_k and scale_v must be given where q, k and v are float8"),
            (TypeError, (q.half(), k, v), {}, "^scale_k and scale_v must be given where k and v are float8_e4m3fn"),
            (TypeError, (q, k.float(), v.float()), given, "k and v must be float8_e4m3fn, as q is, but are float32"),
            (TypeError, (q.float(), k.float(), v.float()), given, "scale_q must be None where k is float32"),
            (TypeError, (q.half(), k, v), given, "scale_q must .*, but is given"),
            (TypeError, (q, k, v), given | dict(scale_k=given["scale_k"].double()), "scale_k must .*, but is float64"),
            (ValueError, (q, k, v), given | dict(scale_v=torch.ones(2, 3, 2, 2)), "scale_v must have the shape"),
            (ValueError, (q, k, v), given | dict(scale_v=torch.tensor(-1.0)), "scale_v must be positive, .* is -1"),
            (NotImplementedError, (q, k, v.clone().requires_grad_()), given,
             "^v requires a gradient and k is float8_e4m3fn; gradients are computed of float16")):
        with pytest.raises(error, match=words): attention(*arrays, **arguments)
    with torch.no_grad(): attention(q, k, v.clone().requires_grad_(), **given)


def test_flash_attention_3_descales():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from froghopper import flash_attn_interface as fa
    q, k, v = tensors("float8_e4m3fn")
    descales = [torch.from_numpy(np.abs(drawn(20 + at, (BATCH, HEADS_KV))) + 0.5) for at in range(3)]
    wide = [x.float() * (d if x is not q else d.repeat_interleave(2, 1))[:, None, :, None]
            for x, d in zip((q, k, v), descales)]
    named = dict(zip(("q_descale", "k_descale", "v_descale"), descales))
    wanted, wanted_lse = fa.flash_attn_func(*wide, causal=True, return_attn_probs=True)
    out, lse = fa.flash_attn_func(q, k, v, causal=True, return_attn_probs=True, **named)
    close(out.float(), wanted)
    torch.testing.assert_close(lse, wanted_lse, rtol=1e-6, atol=1e-5)
    close(fa.flash_attn_func(q, k, v).float(), fa.flash_attn_func(q.float(), k.float(), v.float()))
    ends = [torch.arange(BATCH + 1, dtype=torch.int32) * rows for rows in (ROWS, KEYS)]
    packed = fa.flash_attn_varlen_func(*(x.flatten(0, 1) for x in (q, k, v)), *ends, ROWS, KEYS, causal=True, **named)
    assert torch.equal(packed, out.flatten(0, 1))
    caches = [torch.zeros(BATCH, KEYS + 20, HEADS_KV, DIM, dtype=torch.uint8).view(k.dtype) for _ in range(2)]
    for cache, x in zip(caches, (k, v)): cache.view(torch.uint8)[:, :290] = x.view(torch.uint8)[:, :290]
    cached = fa.flash_attn_with_kvcache(q, *caches, k[:, 290:], v[:, 290:], cache_seqlens=290, causal=True, **named)
    assert torch.equal(cached, out)
    left = fa.flash_attn_with_kvcache(q, *caches, cache_seqlens=KEYS, causal=True,
                                      cache_leftpad=torch.full((BATCH,), 5, dtype=torch.int32), **named)
    close(left.float(), fa.flash_attn_func(q, k[:, 5:], v[:, 5:], causal=True, **named).float())
    # Descales beside tensors that have no scales are ignored, as FlashAttention-3 and vLLM do.
    assert torch.equal(fa.flash_attn_func(*wide, q_descale=descales[0]), fa.flash_attn_func(*wide))
    # q in 16 bits on a cache in 8
    half, of_cache = q.float().bfloat16(), {name: named[name] for name in ("k_descale", "v_descale")}
    wanted = fa.flash_attn_func(half.float(), *wide[1:], causal=True).bfloat16()
    found = fa.flash_attn_func(half, k, v, causal=True, **of_cache)
    close(found.float(), wanted.float())
    cached = fa.flash_attn_with_kvcache(half, *caches, cache_seqlens=KEYS, causal=True, **of_cache)
    assert cached.dtype == torch.bfloat16 and torch.equal(cached, found)
    assert torch.equal(fa.flash_attn_func(half, k, v, causal=True, **named), found)
    with pytest.raises(TypeError, match="k and v must have the types of the cache"):
        fa.flash_attn_with_kvcache(half, *caches, half[:, :1, :HEADS_KV], half[:, :1, :HEADS_KV], cache_seqlens=2)
