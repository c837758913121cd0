# SPDX-License-Identifier: Apache-2.0
"""froghopper.transformers beside eager attention: small models with random weights, on the CPU; logits and gradients of
all weights in fp32, and in bf16 beside eager in fp32; padding, caches, packed sequences; what is refused.

fp32: at most 2e-5 of the largest number of the same tensor, some hundred roundings. bf16: a tensor's error, as root of
the mean square, is at most 1.2 times eager's own in bf16, 1e-3 of its size and 1e-5 of the largest tensor's (a bias of
keys changes no weight, its gradient is 0 but for roundings).
"""
import pytest
from programs import example, run_python

torch = pytest.importorskip("torch", reason="the plug of transformers needs torch, which is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import froghopper.transformers  # noqa: E402
from froghopper.torch import scaled_dot_product_attention  # noqa: E402

NAME = froghopper.transformers.register()
VOCABULARY = 61


def llama(**more):
    return transformers.LlamaForCausalLM, transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=VOCABULARY, max_position_embeddings=128, **more)


def gemma2():
    return transformers.Gemma2ForCausalLM, transformers.Gemma2Config(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=24, query_pre_attn_scalar=20, sliding_window=7, attn_logit_softcapping=2.0, vocab_size=VOCABULARY)


def mistral():
    return transformers.MistralForCausalLM, transformers.MistralConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1,
        sliding_window=5, vocab_size=VOCABULARY)


def gpt_oss():
    return transformers.GptOssForCausalLM, transformers.GptOssConfig(
        hidden_size=64, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, sliding_window=6, num_local_experts=2, num_experts_per_tok=1, vocab_size=VOCABULARY)


def bert():
    return transformers.BertForMaskedLM, transformers.BertConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, vocab_size=VOCABULARY,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def vit():
    return transformers.ViTForImageClassification, transformers.ViTConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, image_size=24, patch_size=4)


MODELS = {"llama": llama, "gemma2": gemma2, "mistral": mistral, "gpt_oss": gpt_oss, "bert": bert, "vit": vit}
CAUSAL = ["llama", "gemma2", "mistral", "gpt_oss"]


def model_of(name, dtype=torch.float32):
    torch.manual_seed(3)
    kind, config = MODELS[name]()
    model = kind(config).to(dtype).eval()
    if name == "gpt_oss":
        with torch.no_grad():
            for layer in model.model.layers: layer.self_attn.sinks.copy_(torch.tensor([-1.0, 0.0, 1.0, 2.0]))
    return model


def inputs_of(name, batch=3, tokens=23):
    rng = torch.Generator().manual_seed(4)
    if name == "vit": return dict(pixel_values=torch.randn(batch, 3, 24, 24, generator=rng))
    return dict(input_ids=torch.randint(0, VOCABULARY, (batch, tokens), generator=rng))


def answers(model, implementation, inputs, counts=None):
    """{"logits": ..., name of a weight: its gradient}. counts: [batch, tokens], True where logits have a meaning."""
    model.set_attn_implementation(implementation)
    model.zero_grad()
    dtype = next(model.parameters()).dtype
    logits = model(**{name: x.to(dtype) if x.is_floating_point() else x for name, x in inputs.items()}).logits
    if counts is not None: logits = logits[counts]
    weight = torch.randn(logits.shape, generator=torch.Generator().manual_seed(6)).to(dtype)
    (logits * weight).sum().backward()
    grads = {name: p.grad.float().clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"logits": logits.detach().float()} | grads


def agree(found, wanted, part=2e-5):
    assert found.keys() == wanted.keys() and len(found) > 1
    for name, x in wanted.items():
        assert (found[name] - x).abs().max() <= part * x.abs().max() + 1e-7, name


@pytest.mark.parametrize("name", MODELS)
def test_fp32(name):
    model, inputs = model_of(name), inputs_of(name)
    agree(answers(model, NAME, inputs), answers(model, "eager", inputs))


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "vit"])
def test_bf16(name):
    inputs, rounded = inputs_of(name), model_of(name, torch.bfloat16)
    exact = answers(rounded.float(), "eager", inputs)
    rounded = rounded.bfloat16()
    eager, found = (answers(rounded, how, inputs) for how in ("eager", NAME))

    def size(x): return x.square().mean().sqrt().item()
    largest = max(map(size, exact.values()))
    for part, x in exact.items():
        assert size(found[part] - x) <= 1.2 * size(eager[part] - x) + 1e-3 * size(x) + 1e-5 * largest, part


def padding(side, tokens=23):
    """[3, tokens]: 0, 4 and 9 tokens of padding; both: some at each side."""
    at = torch.arange(tokens)
    sides = {"right": ([0, 0, 0], [0, 4, 9]), "left": ([0, 4, 9], [0, 0, 0]), "both": ([0, 2, 9], [1, 4, 0])}
    left, right = sides[side]
    return torch.stack([(at >= a) & (at < tokens - b) for a, b in zip(left, right)])


@pytest.mark.parametrize("name", [*CAUSAL, "bert"])
@pytest.mark.parametrize("side", ["right", "left", "both"])
def test_padding(name, side):
    model, counts = model_of(name), padding(side)
    inputs = inputs_of(name) | dict(attention_mask=counts.long())
    agree(answers(model, NAME, inputs, counts), answers(model, "eager", inputs, counts))


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("cache", [None, "static"])
def test_generate(name, cache):
    """Prompts of several lengths, padded at the left, and 12 tokens more, past the windows; the same logits."""
    model, counts, found = model_of(name), padding("left", 9 + 5), {}
    inputs = inputs_of(name, tokens=14) | dict(attention_mask=counts.long())
    for how in ("eager", NAME):
        model.set_attn_implementation(how)
        found[how] = model.generate(**inputs, max_new_tokens=12, do_sample=False, cache_implementation=cache,
                                    output_logits=True, return_dict_in_generate=True, disable_compile=True,
                                    pad_token_id=0, eos_token_id=None)
    assert torch.equal(found[NAME].sequences, found["eager"].sequences)
    for a, b in zip(found[NAME].logits, found["eager"].logits): torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CAUSAL)
def test_a_prompt_in_two_parts(name):
    """The second part has several queries and a cache before them."""
    model, inputs = model_of(name), inputs_of(name)
    model.set_attn_implementation("eager")
    whole = model(**inputs).logits
    model.set_attn_implementation(NAME)
    first = model(input_ids=inputs["input_ids"][:, :9], use_cache=True)
    second = model(input_ids=inputs["input_ids"][:, 9:], past_key_values=first.past_key_values)
    torch.testing.assert_close(torch.cat([first.logits, second.logits], 1), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CAUSAL)
def test_packed_sequences(name):
    """Three sequences in one row, told by position_ids where the model listens to them, and by cu_seq_lens, as
    FlashAttention's users do."""
    model, positions = model_of(name), torch.cat([torch.arange(n) for n in (5, 1, 17)])[None]
    model.config.use_cache = False  # else transformers looks for no packed sequences
    inputs = inputs_of(name, batch=2) | dict(position_ids=positions.expand(2, -1))
    found, wanted = (answers(model, how, inputs) for how in (NAME, "eager"))
    agree(found, wanted)
    parts = torch.cat([model(input_ids=part).logits for part in inputs["input_ids"].split([5, 1, 17], 1)], 1).detach()
    if name != "gpt_oss": torch.testing.assert_close(found["logits"], parts, rtol=1e-4, atol=1e-5)
    model.set_attn_implementation(NAME)
    ends = torch.tensor([0, 5, 6, 23], dtype=torch.int32)
    alone = {name: x[:1] for name, x in inputs.items()} | dict(cu_seq_lens_q=ends, cu_seq_lens_k=ends, max_length_q=17,
                                                               max_length_k=17)
    model.config.use_cache = True  # now the lengths alone tell
    torch.testing.assert_close(model(**alone).logits.detach(), parts[:1], rtol=1e-4, atol=1e-5)


def test_sliding_windows_to_both_sides():
    config = transformers.LlamaConfig(hidden_size=64, num_attention_heads=4, attn_implementation=NAME)
    config.sliding_window, x = 3, torch.zeros(2, 11, 64)
    mask = transformers.masking_utils.create_bidirectional_sliding_window_mask(config, x, None)
    assert (mask.causal, mask.window) == (False, (3, 3))
    q, k, v = torch.randn(3, 2, 4, 11, 16, generator=torch.Generator().manual_seed(7))
    found, _ = froghopper.transformers.attention_forward(torch.nn.Module(), q, k, v, mask)
    at = torch.arange(11)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, (at[:, None] - at).abs() <= 3)
    torch.testing.assert_close(found, wanted.transpose(1, 2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padded", [False, True])
def test_compile(padded):
    """Compiled a model computes what it does otherwise; the mask is made between graphs."""
    torch._dynamo.reset()
    model, tokens = model_of("llama"), inputs_of("llama")["input_ids"]
    model.set_attn_implementation(NAME)
    given = dict(input_ids=tokens, labels=tokens, use_cache=False)
    if padded: given["attention_mask"] = (torch.arange(tokens.shape[1]) < torch.tensor([[9], [23], [1]])).long()
    wanted = model(**given)
    found = torch.compile(model, backend="aot_eager")(**given)
    assert torch.equal(found.logits, wanted.logits)
    of_wanted, of_found = (torch.autograd.grad(out.loss, list(model.parameters())) for out in (wanted, found))
    for x, y in zip(of_found, of_wanted): torch.testing.assert_close(x, y)


def test_training_steps():
    """Eight steps of Adam: the loss falls, and is eager's."""
    losses = {}
    for how in ("eager", NAME):
        model, inputs = model_of("llama").train(), inputs_of("llama")
        model.set_attn_implementation(how)
        steps, losses[how] = torch.optim.Adam(model.parameters(), 3e-3), []
        for _ in range(8):
            loss = model(**inputs, labels=inputs["input_ids"]).loss
            steps.zero_grad()
            loss.backward()
            steps.step()
            losses[how].append(loss.item())
    assert losses[NAME][-1] < 0.9 * losses[NAME][0]
    assert losses[NAME] == pytest.approx(losses["eager"], rel=1e-3)


def attend(**given):
    q = torch.zeros(1, 2, 4, 16)
    return froghopper.transformers.attention_forward(torch.nn.Module(), q, q, q, given.pop("mask", None), **given)


def run(mask, **given):
    model = model_of("llama")
    model.set_attn_implementation(NAME)
    return model(**inputs_of("llama"), attention_mask=mask, **given)


HOLES = torch.ones(3, 23, dtype=torch.long)
HOLES[1, 5:7] = 0
REFUSED = {
    "dropout": (NotImplementedError, lambda: attend(dropout=0.1), "dropout must .* but is 0.1"),
    "position_bias": (NotImplementedError, lambda: attend(position_bias=torch.zeros(1)), "position_bias"),
    "paged_cache": (NotImplementedError, lambda: attend(cache=object()), "pages"),
    "matrix": (NotImplementedError, lambda: attend(mask=torch.zeros(1, 1, 4, 4)), r"not matrices"),
    "matrix_of_the_caller": (NotImplementedError, lambda: run(torch.zeros(3, 1, 23, 23)), r"not matrices"),
    "weights": (NotImplementedError, lambda: attend(output_attentions=True), "output_attentions"),
    "holes": (NotImplementedError, lambda: run(HOLES), "padding between tokens"),
    "own_rule": (NotImplementedError, lambda: froghopper.transformers.attention_mask(1, 4, 4, mask_function=max),
                 "made by max"),
    "name": (TypeError, lambda: froghopper.transformers.register("my_flash"), "my_flash"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    error, call, says = REFUSED[name]
    with pytest.raises(error, match=says): call()


@pytest.mark.parametrize("compiled", [False, True])
def test_head_dims_that_are_padded(compiled):
    """20 is no multiple of 8: q, k and v get columns of zeros, and the scale stays that of 20."""
    torch.manual_seed(3)
    kind, config = llama(head_dim=20)
    model, ids = kind(config).eval(), torch.arange(26).reshape(2, 13)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0  # padding at the left
    found = {}
    for how in ("eager", NAME):
        model.set_attn_implementation(how)
        model.zero_grad()
        call = torch.compile(model, backend="aot_eager") if compiled and how == NAME else model
        logits = call(ids, attention_mask=mask).logits[mask.bool()]
        logits.square().sum().backward()
        found[how] = [logits.detach(), *(x.grad.clone() for x in model.parameters())]
        if not compiled: found[how].append(model.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0))
    for x, y in zip(found[NAME], found["eager"], strict=True): torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


class VisionAttention(torch.nn.Module):
    """As timm writes it: one projection, heads apart, PyTorch's function looked up when it runs."""

    def __init__(self, dim=48, heads=3):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, torch.nn.Linear(dim, 3 * dim), torch.nn.Linear(dim, dim)

    def forward(self, x):
        batch, rows, dim = x.shape
        q, k, v = self.qkv(x).reshape(batch, rows, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        x = torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.0)
        return self.proj(x.transpose(1, 2).reshape(batch, rows, dim))


def test_in_place_of_pytorchs_function(monkeypatch):
    """timm's way: the function replaced; forward and backward."""
    torch.manual_seed(8)
    module, x, calls, found = VisionAttention(), torch.randn(2, 37, 48), [], {}
    for how in ("torch", "froghopper"):
        if how == "froghopper":
            def counted(*arguments, **options):
                calls.append(1)
                return scaled_dot_product_attention(*arguments, **options)
            monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
        module.zero_grad()
        out = module(x)
        out.square().sum().backward()
        found[how] = {"out": out.detach()} | {name: p.grad.clone() for name, p in module.named_parameters()}
    assert calls == [1]
    agree(found["froghopper"], found["torch"])


def test_example():
    said = run_python(example("transformers_llama.py"))
    assert "froghopper: loss" in said and "tokens more" in said
