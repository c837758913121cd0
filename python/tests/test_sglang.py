# SPDX-License-Identifier: Apache-2.0
"""froghopper.sglang: SGLang's own base classes where SGLang can be imported, also from its wheel without the native
part, and else those of sglang_stand_in.py, written by hand from its signatures; real forward passes on CPU tensors, and
on a Hopper GPU where there is one, against plain loops in fp64."""
import importlib
import inspect
import types

import numpy as np
import plain
import pytest

torch = pytest.importorskip("torch", reason="the plug of SGLang needs torch, which is not installed")

import sglang_stand_in  # noqa: E402
from torch_cases import DEVICES, standing_in  # noqa: E402

try:
    import sglang.srt.layers.attention.attention_registry  # noqa: F401
    STAND_IN = {}
except ImportError:
    STAND_IN = sglang_stand_in.modules()


def engine(): return standing_in(STAND_IN)


with engine():
    from froghopper import _engines as engines
    from froghopper import sglang as plug
    base = importlib.import_module("sglang.srt.layers.attention.base_attn_backend")
    registry = importlib.import_module("sglang.srt.layers.attention.attention_registry")
    choices = importlib.import_module("sglang.srt.arg_groups.choices")
    Mode = importlib.import_module("sglang.srt.model_executor.forward_batch_info").ForwardMode

HEADS, HEADS_KV, DIM, CONTEXT, SLOTS, REQUESTS, SCALE = 4, 2, 64, 128, 512, 6, 0.1
NAN = dict(fill_value=255, dtype=torch.uint8)


@pytest.fixture(autouse=True)
def not_deterministic(monkeypatch): switch(monkeypatch, False)


def switch(monkeypatch, on):
    monkeypatch.setattr(plug, "get_exec", lambda: types.SimpleNamespace(
        deterministic=types.SimpleNamespace(enable_deterministic_inference=on)))


class Pool:
    """As MHATokenToKVPool: one tensor of slots for K and one for V of the only layer; with page-major ones too."""

    def __init__(self, dtype, device, page, heads_first):
        shape = (SLOTS // page, HEADS_KV, page, DIM) if heads_first else (SLOTS, HEADS_KV, DIM)
        self.buffers = [torch.full((*shape[:-1], DIM * dtype.itemsize), device=device, **NAN).view(dtype)
                        for _ in range(2)]
        self.page, self.heads_first = page, heads_first

    def get_kv_buffer(self, layer_id): return self.buffers

    def set_kv_buffer(self, layer, where, k, v, k_scale=None, v_scale=None):
        for x, scale, to in zip((k, v), (k_scale, v_scale), self.buffers):
            x = x.view(-1, HEADS_KV, DIM).float() / (1.0 if scale is None else scale)
            for at, slot in enumerate(where.loc.tolist()):
                row = to[slot // self.page, :, slot % self.page] if self.heads_first else to[slot]
                row.copy_(x[at].to(to.dtype))


class WindowPool(Pool):
    """As SWAKVPool for a layer with a window: its slots are others than those of all tokens."""

    def translate_loc_from_full_to_swa(self, slots): return (SLOTS - self.page - slots // self.page * self.page +
                                                             slots % self.page).to(slots.dtype)

    def set_kv_buffer(self, layer, where, *rest):
        super().set_kv_buffer(layer, types.SimpleNamespace(loc=where.swa_loc), *rest)


def runner_of(pool, page, device, **changed):
    slots = torch.zeros(REQUESTS, CONTEXT, dtype=torch.int32, device=device)
    return types.SimpleNamespace(**dict(
        device=device, page_size=page, req_to_token_pool=types.SimpleNamespace(req_to_token=slots),
        token_to_kv_pool=pool, use_mla_backend=False, attention_chunk_size=16, kv_index_translator=None,
        spec_algorithm=types.SimpleNamespace(is_speculative=lambda: False),
        model_config=types.SimpleNamespace(context_len=CONTEXT, is_encoder_decoder=False)) | changed)


def layer_of(**changed):
    with engine(): kind = plug.AttentionType.DECODER
    return types.SimpleNamespace(**dict(
        layer_id=0, tp_q_head_num=HEADS, tp_k_head_num=HEADS_KV, tp_v_head_num=HEADS_KV, qk_head_dim=DIM, head_dim=DIM,
        v_head_dim=DIM, scaling=SCALE, logit_cap=0.0, sliding_window_size=-1, is_cross_attention=False, attn_type=kind,
        use_irope=False, xai_temperature_len=-1, k_scale=None, v_scale=None) | changed)


class Step:
    """A batch of SGLang: what each sequence had before, which is in the pool already, and has now."""

    def __init__(self, before, now, page=1, device="cpu", dtype=torch.bfloat16, layer=None, pool=Pool,
                 heads_first=False, cache=None):
        torch.manual_seed(7)
        self.before, self.now, self.layer = before, now, layer or layer_of()
        lengths = [a + b for a, b in zip(before, now)]
        draw = lambda rows, heads: torch.randn(rows, heads, DIM, device=device).to(dtype)
        self.k, self.v = ([draw(n, HEADS_KV) for n in lengths] for _ in range(2))
        self.q = draw(sum(now), HEADS)
        self.pool = pool(cache or dtype, device, page, heads_first)
        self.runner = runner_of(self.pool, page, device)
        with engine(): self.backend = plug.Backend(self.runner)
        free = iter(torch.randperm(SLOTS // page - 1).add(1).tolist())  # slot 0 is for padding
        requests = torch.randperm(REQUESTS, device=device)[:len(now)]
        self.slots = []
        for b, n in enumerate(lengths):
            pages = [next(free) for _ in range(-(-n // page))]
            mine = torch.tensor([pages[at // page] * page + at % page for at in range(n)], device=device)
            self.runner.req_to_token_pool.req_to_token[requests[b], :n] = mine.int()
            self.slots.append(mine)
        part = lambda xs, new: torch.cat([x[n:] if new else x[:n] for x, n in zip(xs, before)])
        old, new = part(self.slots, False), part(self.slots, True)
        where = types.SimpleNamespace(loc=old)
        if pool is WindowPool: where.swa_loc = self.pool.translate_loc_from_full_to_swa(old)
        self.pool.set_kv_buffer(self.layer, where, part(self.k, False), part(self.v, False), self.layer.k_scale,
                                self.layer.v_scale)
        self.key, self.value = part(self.k, True), part(self.v, True)
        decode = all(n == 1 for n in now)
        self.batch = types.SimpleNamespace(
            forward_mode=Mode.DECODE if decode else Mode.EXTEND, batch_size=len(now), req_pool_indices=requests,
            seq_lens=torch.tensor(lengths, device=device), seq_lens_cpu=torch.tensor(lengths), out_cache_loc=new,
            extend_seq_lens=torch.tensor(now, dtype=torch.int32, device=device), extend_seq_lens_cpu=now,
            encoder_lens=None, out_cache_loc_is_physical=False)

    def run(self, **words):
        self.backend.init_forward_metadata(self.batch)
        return self.attend(**words)

    def attend(self, **words):
        with torch.inference_mode():
            return self.backend.forward(self.q.flatten(1), self.key, self.value, self.layer, self.batch, **words)

    def check(self, found, options, dtype="bfloat16"):
        flat = lambda x: x.double().cpu().numpy()[None]
        at, begin, first = [], 0, 0
        for before, n in zip(self.before, self.now):
            at.append(plain.Sequence(0, slice(first, first + n), slice(begin, begin + before + n)))
            begin, first = begin + before + n, first + n
        k, v = (flat(torch.cat(x)) for x in (self.k, self.v))
        exact, bound = plain.forward(flat(self.q), k, v, at, dtype, options)["o"]
        error = np.abs(found.double().cpu().numpy().reshape(exact.shape) - exact)
        assert (error <= bound + 1e-30).all(), (error - bound).max()


BATCHES = {"decode": ([33, 0, 16, 100], [1, 1, 1, 1]), "chunks": ([60, 31, 0, 9], [1, 20, 17, 3])}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("page, heads_first", [(1, False), (16, False), (16, True)])
def test_pages_and_batches(page, heads_first, batch, device):
    step = Step(*BATCHES[batch], page, device, heads_first=heads_first)
    step.check(step.run(), plain.Options(causal=True, scale=SCALE))
    step.batch.seq_lens_cpu = None  # as where nothing is copied to the host
    step.check(step.run(save_kv_cache=False), plain.Options(causal=True, scale=SCALE))


SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])
OPTIONS = {
    "window": (dict(sliding_window_size=11), {}, dict(window=(11, None))),
    "softcap": (dict(logit_cap=3.0), {}, dict(softcap=3.0)),
    "sinks": ({}, dict(sinks=SINKS.bfloat16()), dict(sink=SINKS.numpy())),
    "chunk": (dict(use_irope=True), {}, dict(attention_chunk=16)),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPTIONS)
def test_masks_and_scores(name, device):
    of_layer, words, options = OPTIONS[name]
    step = Step(*BATCHES["chunks"], 1, device, torch.float16, layer_of(**of_layer))
    found = step.run(**{key: x.to(device) for key, x in words.items()})
    step.check(found, plain.Options(causal=True, scale=SCALE, **options), "float16")


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("batch", BATCHES)
def test_a_pool_for_sliding_windows(batch, page):
    step = Step(*BATCHES[batch], page, layer=layer_of(sliding_window_size=11), pool=WindowPool)
    step.check(step.run(), plain.Options(causal=True, scale=SCALE, window=(11, None)))


def test_both_ways():
    step = Step([0, 0], [9, 30], layer=layer_of(attn_type=plug.AttentionType.ENCODER_ONLY, sliding_window_size=4))
    step.check(step.run(), plain.Options(scale=SCALE, window=(4, 4)))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("scales", [False, True])
def test_8_bit_pools(scales, dtype):
    given = dict(k_scale=torch.tensor(0.25), v_scale=torch.tensor([0.5])) if scales else {}
    step = Step(*BATCHES["chunks"], 16, layer=layer_of(**given), cache=dtype)
    found = step.run()
    for name, xs in (("k_scale", step.k), ("v_scale", step.v)):  # what the pool holds
        scale = given.get(name, torch.tensor(1.0))
        xs[:] = [((x.float() / scale).to(dtype).float() * scale).bfloat16() for x in xs]
    step.check(found, plain.Options(causal=True, scale=SCALE))


def test_lse():
    step = Step(*BATCHES["chunks"])
    found, lse = step.run(return_lse=True)
    assert found.shape == (41, HEADS, DIM) and lse.shape == (41, HEADS) and lse.is_contiguous()
    k = step.k[1].repeat_interleave(2, 1).float()
    scores = torch.einsum("hd,khd->hk", step.q[20].float(), k) * SCALE  # the last one of the second sequence
    torch.testing.assert_close(lse[20], scores.logsumexp(1), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("pool", [Pool, WindowPool])
def test_what_a_graph_records(pool, page):
    """Buffers keep their place, and the recorded operations read each step's lengths and slots: two other steps."""
    layer = layer_of(sliding_window_size=11 if pool is WindowPool else -1)
    step = Step([33, 0, 16, 100], [1, 1, 1, 1], page, layer=layer, pool=pool)
    step.backend.init_cuda_graph_state(REQUESTS, REQUESTS)
    step.backend.init_forward_metadata_out_graph(step.batch, in_capture=True)
    step.backend.init_forward_metadata_in_graph(step.batch)
    held = step.backend.forward_metadata
    for before in ([33, 0, 16, 100], [1, 50, 20, 3]):
        other = Step(before, [1, 1, 1, 1], page, layer=layer, pool=pool)
        other.backend.captured, other.backend.in_graphs = step.backend.captured, step.backend.in_graphs
        other.backend.init_forward_metadata_out_graph(other.batch)
        other.backend.init_forward_metadata_in_graph(other.batch)
        assert other.backend.forward_metadata is held
        options = dict(window=(11, None)) if pool is WindowPool else {}
        other.check(other.attend(), plain.Options(causal=True, scale=SCALE, **options))
    step.batch.forward_mode = Mode.EXTEND
    with pytest.raises(NotImplementedError, match="forward_mode is EXTEND; graphs are captured of decoding"):
        step.backend.init_forward_metadata_out_graph(step.batch)
    assert step.backend.get_cuda_graph_seq_len_fill_value() == 1


def test_deterministic_inference(monkeypatch):
    """The bits of a chunk are those of the whole prompt at once."""
    switch(monkeypatch, True)
    whole, chunk = Step([0], [80]), Step([60], [20])
    for x in ("q", "key", "value"): setattr(chunk, x, getattr(whole, x)[60:])
    chunk.pool.set_kv_buffer(chunk.layer, types.SimpleNamespace(loc=chunk.slots[0][:60]), whole.key[:60],
                             whole.value[:60])
    assert whole.backend.invariant and torch.equal(chunk.run(), whole.run()[60:])


@pytest.mark.parametrize("name", ["init_forward_metadata", "init_forward_metadata_out_graph", "init_cuda_graph_state",
                                  "init_forward_metadata_in_graph", "forward_extend", "forward_decode"])
def test_it_takes_what_sglang_gives(name):
    ours, theirs = (inspect.signature(getattr(x, name)).parameters for x in (plug.Backend, base.AttentionBackend))
    assert [x for x in ours if x not in ("kwargs", "words")] == [x for x in theirs if x != "kwargs"]
    assert [x.default for x in ours.values()] == [x.default for x in theirs.values()]


def test_the_entry_point():
    with engine():
        for _ in range(2): engines.register_sglang()  # SGLang calls it in every process
        made = registry.ATTENTION_BACKENDS["froghopper"](runner_of(Pool(torch.float16, "cpu", 1, False), 1, "cpu"))
    assert isinstance(made, plug.Backend) and isinstance(made, base.AttentionBackend)
    for name in ("ATTENTION_BACKEND_CHOICES", "DETERMINISTIC_ATTENTION_BACKEND_CHOICES",
                 "RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND"):
        assert getattr(choices, name).count("froghopper") == 1


@pytest.mark.parametrize("changed, says", [
    (dict(use_mla_backend=True), "latent attention"),
    (dict(model_config=types.SimpleNamespace(context_len=8, is_encoder_decoder=True)), "an encoder beside"),
    (dict(spec_algorithm=types.SimpleNamespace(is_speculative=lambda: True)), "speculative decoding is on"),
    (dict(kv_index_translator=types.SimpleNamespace(is_translating=True)), "unified memory is on")])
def test_refused_at_the_start(changed, says):
    with engine(), pytest.raises(NotImplementedError, match=f"{says}.*Use another --attention-backend"):
        plug.Backend(runner_of(None, 1, "cpu", **changed))


def test_refused_in_a_step():
    step = Step(*BATCHES["chunks"])
    step.batch.forward_mode = Mode.TARGET_VERIFY
    with pytest.raises(NotImplementedError, match="forward_mode is TARGET_VERIFY"): step.run()
    step.batch.forward_mode = Mode.EXTEND
    with pytest.raises(NotImplementedError, match="layer 0 has q_rope; it is not"): step.run(q_rope=step.q)
    step.layer.xai_temperature_len = None
    assert step.run().shape == (41, HEADS * DIM)
    step.layer.is_cross_attention = True
    with pytest.raises(NotImplementedError, match="cross attention"): step.run()


def test_words_of_the_engine():
    """A layer is told of by what SGLang calls its parts."""
    for field, value, sentence in (("scaling", -1.0, "layer.scaling must be from 0"),
                                   ("logit_cap", -2.0, "layer.logit_cap must be finite"),
                                   ("sliding_window_size", 2**70, "layer.sliding_window_size must have 64 bits")):
        step = Step(*BATCHES["decode"])
        setattr(step.layer, field, value)
        with pytest.raises(ValueError, match=f"^{sentence}"): step.run()
    with pytest.raises(ValueError, match=r"^sinks must have the shape \[4\], but has \[3\]"):
        Step(*BATCHES["decode"]).run(sinks=torch.zeros(3))
