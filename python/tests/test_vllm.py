# SPDX-License-Identifier: Apache-2.0
"""froghopper.vllm: vLLM's own base classes where vLLM can be imported, also from its wheel without the native part, and
else those of vllm_stand_in.py, written by hand from its signatures; real forward passes on CPU tensors, and on a Hopper
GPU where there is one, against plain loops in fp64."""
import importlib
import inspect
import types
from dataclasses import dataclass

import numpy as np
import plain
import pytest

torch = pytest.importorskip("torch", reason="the plug of vLLM needs torch, which is not installed")

import vllm_stand_in  # noqa: E402
from torch_cases import DEVICES, standing_in  # noqa: E402

try:
    import vllm.v1.attention.backend  # noqa: F401
    import vllm.v1.attention.backends.registry  # noqa: F401
    STAND_IN = {}
except ImportError:
    STAND_IN = vllm_stand_in.modules()


def engine(): return standing_in(STAND_IN)


with engine():
    from froghopper import _engines as engines
    from froghopper import vllm as plug
    base = importlib.import_module("vllm.v1.attention.backend")
    registry = importlib.import_module("vllm.v1.attention.backends.registry")

HEADS, HEADS_KV, DIM, BLOCK, NO_BLOCK = 4, 2, 64, 16, 2147480000
CAPABILITY = types.SimpleNamespace(major=9, minor=0)
SCALE = 0.1


def impl_of(**changed):
    given = dict(num_heads=HEADS, head_size=DIM, scale=SCALE, num_kv_heads=HEADS_KV)
    with engine(): return plug.Impl(**given | changed)


def built(common):
    with engine(): return plug.MetadataBuilder(None, ["layer"], None, torch.device("cpu")).build(0, common)


class Step:
    """A batch of vLLM: what each sequence had before and has now; keys of before are written to the cache."""

    def __init__(self, impl, lie, before, now, device="cpu", dtype=torch.bfloat16, k_scale=1.0, v_scale=1.0):
        torch.manual_seed(5)
        draw = lambda rows, heads: torch.randn(rows, heads, DIM, device=device).to(dtype)
        self.before, self.now, self.device = before, now, device
        lengths, blocks = [a + b for a, b in zip(before, now)], 40
        self.k, self.v = ([draw(n, HEADS_KV) for n in lengths] for _ in range(2))
        self.q = draw(sum(now) + 3, HEADS)  # three tokens of padding, as in a graph
        scales = dict(_k_scale=torch.tensor(k_scale, device=device), _v_scale=torch.tensor(v_scale, device=device))
        self.layer = types.SimpleNamespace(**scales)
        bits = torch.uint8 if impl.kv_cache_dtype.startswith("fp8") else dtype
        shapes = {"packed": (blocks, BLOCK, HEADS_KV, 2 * DIM), "heads": (blocks, HEADS_KV, BLOCK, 2 * DIM),
                  "halves": plug.Backend.get_kv_cache_shape(blocks, BLOCK, HEADS_KV, DIM)}
        if impl.kv_cache_dtype == plug.OF_ROWS:
            shapes = {lie: (*shape[:-1], shape[-1] + plug.SCALE_BYTES) for lie, shape in shapes.items()}
        self.cache = torch.empty(shapes[lie], dtype=bits, device=device)
        self.cache.view(torch.uint8).fill_(255)  # NaN
        if lie == "packed": self.cache = self.cache.transpose(1, 2)  # [blocks, heads, block, K and V]
        self.table = torch.full((len(now), 9), NO_BLOCK, dtype=torch.int32, device=device)[:, :8]
        free = iter(torch.randperm(blocks).tolist())
        slots = []
        for b, n in enumerate(lengths):
            for column in range(-(-n // BLOCK)): self.table[b, column] = next(free)
            slots.append([int(self.table[b, at // BLOCK]) * BLOCK + at % BLOCK for at in range(n)])
        tensor = lambda x, dtype: torch.tensor(x, dtype=dtype, device=device)
        self.starts = tensor(np.cumsum([0, *now]), torch.int32)
        old = [slots[b][at] for b, n in enumerate(before) for at in range(n)]
        new = [slots[b][before[b] + at] for b, n in enumerate(now) for at in range(n)]
        part = lambda xs, new: torch.cat([x[n:] if new else x[:n] for x, n in zip(xs, before)])
        impl.do_kv_cache_update(self.layer, part(self.k, False), part(self.v, False), self.cache,
                                tensor(old, torch.int64))
        padding = torch.zeros(3, HEADS_KV, DIM, device=device, dtype=dtype)
        self.key, self.value = (torch.cat([part(x, True), padding]) for x in (self.k, self.v))
        impl.do_kv_cache_update(self.layer, self.key, self.value, self.cache, tensor([*new, -1, -1, -1], torch.int64))
        self.common = types.SimpleNamespace(
            num_reqs=len(now), num_actual_tokens=sum(now), max_query_len=max(now), max_seq_len=max(lengths),
            query_start_loc=self.starts, seq_lens=tensor(lengths, torch.int32), block_table_tensor=self.table,
            slot_mapping=tensor(new, torch.int64), causal=True)

    def run(self, impl):
        out = torch.full((len(self.q), HEADS, DIM), 7.0, dtype=self.q.dtype, device=self.device)
        with torch.inference_mode():
            assert impl.forward(self.layer, self.q, self.key, self.value, self.cache, built(self.common), out) is out
        assert (out[sum(self.now):] == 7).all()  # padding is not written
        return out[:sum(self.now)]

    def check(self, found, options, dtype, k=None, v=None):
        flat = lambda x: x.double().cpu().numpy()[None]
        k, v, at, begin = flat(torch.cat(k or self.k)), flat(torch.cat(v or self.v)), [], 0
        for b, n in enumerate(self.now):
            at.append(plain.Sequence(0, slice(int(self.starts[b]), int(self.starts[b]) + n),
                                     slice(begin, begin + n + self.before[b])))
            begin += n + self.before[b]
        exact, bound = plain.forward(flat(self.q[:sum(self.now)]), k, v, at, dtype, options)["o"]
        error = np.abs(found.double().cpu().numpy()[None] - exact)
        assert (error <= bound + 1e-30).all(), (error - bound).max()

    def check_8_bits(self, found, k, v):
        """k, v: what an 8-bit cache holds of each sequence."""
        wanted = []
        for b, n in enumerate(self.now):
            seen = torch.ones(n, len(k[b]), dtype=torch.bool, device=self.device).tril(len(k[b]) - n)
            q, *kv = (x.transpose(0, 1) for x in (self.q[int(self.starts[b]):int(self.starts[b]) + n].float(),
                                                  *(x[b].repeat_interleave(2, 1) for x in (k, v))))
            o = torch.nn.functional.scaled_dot_product_attention(q, *kv, scale=SCALE, attn_mask=seen)
            wanted.append(o.transpose(0, 1))
        torch.testing.assert_close(found.float(), torch.cat(wanted), rtol=2e-2, atol=2e-2)


BATCHES = {"decode": ([33, 0, 16, 100], [1, 1, 1, 1]), "mixed": ([60, 31, 0, 9], [1, 20, 17, 3]),
           "idle": ([15, 0, 40], [1, 0, 4])}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("lie", ["packed", "heads", "halves"])
def test_layouts_and_batches(lie, batch, device):
    impl = impl_of()
    step = Step(impl, lie, *BATCHES[batch], device)
    step.check(step.run(impl), plain.Options(causal=True, scale=SCALE), "bfloat16")


SLOPES = [0.5, 0.25, 0.125, 0.0625]
OPTIONS = {
    "window": (dict(sliding_window=12), dict(window=(11, None))),
    "softcap": (dict(logits_soft_cap=3.0), dict(softcap=3.0)),
    "sinks": (dict(sinks=torch.tensor([0.5, -1.0, 2.0, 0.0]).bfloat16()), dict(sink=np.array([0.5, -1.0, 2.0, 0.0]))),
    "slopes": (dict(alibi_slopes=SLOPES), dict(alibi_slopes=np.array(SLOPES))),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPTIONS)
def test_masks_and_scores(name, device):
    given, options = OPTIONS[name]
    given = {key: x.to(device) if isinstance(x, torch.Tensor) else x for key, x in given.items()}
    impl = impl_of(**given)
    step = Step(impl, "packed", *BATCHES["mixed"], device, torch.float16)
    step.check(step.run(impl), plain.Options(causal=True, scale=SCALE, **options), "float16")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["fp8", "fp8_e4m3", "fp8_e5m2"])
def test_8_bit_cache(name, device):
    """Scales of the tensor and of each head; the reference has the numbers that the cache holds."""
    impl, dtype = impl_of(kv_cache_dtype=name), plug.FLOAT8[name]
    step = Step(impl, "packed", *BATCHES["mixed"], device, k_scale=[0.25, 0.5], v_scale=0.125)
    scales = torch.tensor([0.25, 0.5], device=device)[:, None], torch.tensor(0.125, device=device)
    k, v = ([(x.float() / scale).to(dtype).float() * scale for x in xs] for xs, scale in zip((step.k, step.v), scales))
    step.check_8_bits(step.run(impl), k, v)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lie", ["packed", "heads"])
@pytest.mark.parametrize("batch", BATCHES)
def test_scales_of_each_row(batch, lie, device):
    """They are computed as rows are written, and lie behind their rows; what was never written is NaN."""
    impl = impl_of(kv_cache_dtype="fp8_per_token_head")
    step = Step(impl, lie, *BATCHES[batch], device)
    def restored(x):
        x = x.float().cpu()  # a GPU multiplies by 1 / 448, which moves some scales by a bit and with it ties
        scale = x.abs().amax(-1, keepdim=True) / 448
        return ((x / scale).to(torch.float8_e4m3fn).float() * scale).to(device)
    step.check_8_bits(step.run(impl), *([restored(x) for x in xs] for xs in (step.k, step.v)))
    for xs, scales in zip((step.k, step.v), plug.scales_of_rows(step.cache)):
        assert scales.shape == (40, BLOCK, HEADS_KV)
        written = scales.reshape(-1, HEADS_KV)[~scales.reshape(-1, HEADS_KV).isnan().any(-1)].sort(0)[0]
        wanted = torch.cat(xs).float().abs().amax(-1).sort(0)[0] / 448
        torch.testing.assert_close(written, wanted, rtol=1e-6, atol=0)


@dataclass(frozen=True)
class Spec:
    """What a backend reads of vLLM's AttentionSpec."""
    head_size: int
    head_size_v: int
    kv_quant_mode: types.SimpleNamespace
    state_content_bytes: int | None = None


def test_the_bytes_of_rows_with_scales():
    assert ("fp8_per_token_head" in plug.Backend.supported_kv_cache_dtypes) == hasattr(base.AttentionBackend,
                                                                                       "customize_spec")
    spec = Spec(128, 64, types.SimpleNamespace(name="FP8_PER_TOKEN_HEAD"))
    assert plug.Backend.customize_spec(spec).state_content_bytes == 128 + 64 + 16
    for other in (Spec(128, 64, types.SimpleNamespace(name="FP8_PER_TENSOR")), Spec(128, 64, spec.kv_quant_mode, 7)):
        assert plug.Backend.customize_spec(other) is other
    says = lambda head, cache: plug.Backend.supports_combination(head, torch.float16, cache, 16, *[False] * 4,
                                                                 CAPABILITY)
    assert says(72, "auto") is None and says(80, "fp8_per_token_head") is None
    for cache in ("fp8", "fp8_per_token_head"): assert "multiples of 16" in says(72, cache)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["encoder", "encoder_only", "decoder"])
def test_without_a_causal_mask(kind, device):
    """Encoders have no cache; a window is to both sides. Decoders may be told so by the step."""
    impl = impl_of(attn_type=kind, sliding_window=5)
    step = Step(impl, "heads", [0, 0, 0], [7, 1, 30], device)
    step.common.causal = False
    if kind != "decoder": assert (step.cache.contiguous().view(torch.uint8) == 255).all()
    step.check(step.run(impl), plain.Options(scale=SCALE, window=(4, 4)), "bfloat16")


def test_batch_invariance(monkeypatch):
    """The bits of a sequence are those that it has alone."""
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    impl = impl_of()
    assert impl.invariant
    step = Step(impl, "packed", *BATCHES["mixed"])
    found = step.run(impl)
    for b, n in enumerate(step.now):
        rows = slice(int(step.starts[b]), int(step.starts[b]) + n)
        alone = plug.Metadata(n, n, int(step.common.seq_lens[b]), torch.tensor([0, n], dtype=torch.int32),
                              step.common.seq_lens[b:b + 1], step.table[b:b + 1], step.common.slot_mapping, True)
        out = torch.empty(n, HEADS, DIM).bfloat16()
        impl.forward(step.layer, step.q[rows], None, None, step.cache, alone, out)
        assert torch.equal(out, found[rows])
    says = lambda head, cache: plug.Backend.supports_combination(head, torch.float16, cache, 16, *[False] * 4,
                                                                 CAPABILITY)
    assert says(128, "auto") is None and "batch invariance" in says(128, "fp8") and "256" in says(512, "auto")
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "0")
    assert says(512, "fp8") is None


def test_the_run_that_measures_memory():
    out = torch.ones(3, HEADS, DIM)
    assert impl_of().forward(None, None, None, None, None, None, out) is out and (out == 0).all()


@pytest.mark.parametrize("mine, of_engine, methods", [
    (plug.Backend, base.AttentionBackend, ("get_supported_kernel_block_sizes", "supports_head_size",
                                           "supports_attn_type", "supports_compute_capability", "customize_spec",
                                           "supports_combination")),
    (plug.MetadataBuilder, base.AttentionMetadataBuilder, ("__init__", "build", "update_block_table")),
    (plug.Impl, base.AttentionImpl, ("__init__", "forward"))])
def test_classes_are_whole_and_take_what_vllm_gives(mine, of_engine, methods):
    assert issubclass(mine, of_engine) and not mine.__abstractmethods__
    for name in methods:
        ours, theirs = (list(inspect.signature(getattr(x, name)).parameters.values()) for x in (mine, of_engine))
        assert [x.name for x in ours][:len(theirs)] == [x.name for x in theirs]
        assert all(x.default is not x.empty for x in ours[len(theirs):])
        assert [x.default is x.empty for x in ours][:len(theirs)] == [x.default is x.empty for x in theirs]


@pytest.mark.skipif(bool(STAND_IN), reason="vLLM cannot be imported")
def test_vllm_chooses_it():
    """By vLLM's own check of a configuration."""
    capability = importlib.import_module("vllm.platforms.interface").DeviceCapability
    given = dict(head_size=128, dtype=torch.bfloat16, kv_cache_dtype="fp8", block_size=16, use_mla=False, has_sink=True,
                 use_sparse=False, use_mm_prefix=False, use_per_head_quant_scales=True,
                 device_capability=capability(9, 0), attn_type="decoder", has_sliding_window=True, use_non_causal=True,
                 use_batch_invariant=True)
    says = lambda **changed: plug.Backend.validate_configuration(**given | changed)
    assert says() == [] and says(head_size=512, block_size=544, kv_cache_dtype="auto") == []
    for changed, why in ((dict(use_mla=True), "MLA"), (dict(use_dcp=True), "DCP"), (dict(head_size=72), "of 16"),
                         (dict(device_capability=capability(10, 0)), "compute capability"), (dict(use_pcp=True), "PCP"),
                         (dict(dtype=torch.float32), "dtype"), (dict(use_mm_prefix=True), "multimodal"),
                         (dict(use_sparse=True), "sparse"), (dict(use_rswa=True), "R-SWA"),
                         (dict(block_size=8), "block_size"), (dict(kv_cache_dtype="int8"), "kv_cache_dtype")):
        assert len(says(**changed)) == 1 and why in says(**changed)[0], changed


def test_the_entry_point(caplog):
    custom = registry.AttentionBackendEnum.CUSTOM
    with engine():
        custom.clear_override()
        for _ in range(2): engines.register_vllm()  # vLLM calls it in every process, and may do so again
        assert custom.get_class() is plug.Backend and registry.AttentionBackendEnum[plug.Backend.get_name()] is custom
        registry.register_backend(custom, "somebody.Else")
        engines.register_vllm()
        assert custom.get_path() == "somebody.Else" and "CUSTOM is somebody.Else already" in caplog.text
        custom.clear_override()


def test_metadata_of_another_group():
    step = Step(impl_of(), "packed", *BATCHES["decode"])
    held = built(step.common)
    with engine(): builder = plug.MetadataBuilder(None, ["layer"], None, torch.device("cpu"))
    table, slots = step.table.clone(), torch.zeros(4, dtype=torch.int64)
    changed = builder.update_block_table(held, table, slots)
    assert changed.block_table is table and changed.slot_mapping is slots and held.block_table is step.table
    assert changed.seq_lens is held.seq_lens


def test_messages():
    step = Step(impl_of(), "packed", *BATCHES["decode"])
    step.common.causal = torch.ones(4, dtype=torch.int32)
    with pytest.raises(NotImplementedError, match="causal is a tensor, one number a sequence"): built(step.common)
    with pytest.raises(NotImplementedError, match="output_scale is given"):
        impl_of().forward(None, None, None, None, None, None, None, output_scale=torch.ones(1))
    with pytest.raises(TypeError, match="sinks must .* 4 in all, but has 3"): impl_of(sinks=torch.ones(3))


def test_words_of_the_engine():
    """A layer and a step are told of by what vLLM calls their parts."""
    def run(change=lambda step: None, **changed):
        impl = impl_of(**changed)
        step = Step(impl, "packed", *BATCHES["decode"])
        change(step)
        step.run(impl)
    def all_at(page):
        def change(step): step.table[:] = page
        return change
    for call, sentence in ((lambda: run(scale=-1.0), "scale must be from 0"),
                           (lambda: run(logits_soft_cap=-2.0), "logits_soft_cap must be finite and positive"),
                           (lambda: run(alibi_slopes=[1.0]), r"alibi_slopes must have the shape \[heads\] \[4\]"),
                           (lambda: run(all_at(99)), r"attn_metadata.block_table\[0, 0\] must name a page .* is 99"),
                           (lambda: impl_of(sliding_window=-4), "sliding_window must be 1 or more keys, .* is -4"),
                           (lambda: impl_of(sliding_window="x"), "sliding_window must be a whole number, but is 'x'"),
                           (lambda: impl_of(scale="x"), "scale must be a number, but is 'x'")):
        with pytest.raises((TypeError, ValueError), match=f"^{sentence}"): call()
