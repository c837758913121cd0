# SPDX-License-Identifier: Apache-2.0
"""The arguments of froghopper.transformers.attention_forward and attention_mask: each is used or refused, and the ways
out that messages name work."""
import inspect

import pytest

torch = pytest.importorskip("torch", reason="the plug of transformers needs torch, which is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from torch.autograd import forward_ad  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

import froghopper.transformers  # noqa: E402
from froghopper.transformers import Mask, attention_forward, attention_mask  # noqa: E402

NAME = froghopper.transformers.register()
masks = transformers.masking_utils


class Layer(torch.nn.Module):
    is_causal = True


class Encoder(torch.nn.Module):
    is_causal = False


def drawn(*shape, seed=0): return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def attend(rows=5, keys=5, **more):
    given = dict(module=Layer(), query=drawn(2, 4, rows, 16), key=drawn(2, 4, keys, 16, seed=1),
                 value=drawn(2, 4, keys, 16, seed=2), attention_mask=None) | more
    out, weights = attention_forward(**given)
    assert weights is None and out.is_contiguous()
    return out


ENDS = torch.tensor([0, 3, 10], dtype=torch.int32)
LENGTHS = dict(cu_seq_lens_q=ENDS, cu_seq_lens_k=ENDS, max_length_q=7, max_length_k=7)


def test_no_argument_is_ignored():
    """Each changes the result or is refused; others is what models hand to every layer."""
    changes = dict(
        module=Encoder(), query=drawn(2, 4, 5, 16, seed=5), key=drawn(2, 4, 5, 16, seed=5),
        value=drawn(2, 4, 5, 16, seed=5), attention_mask=Mask(False, (1, 1), (2, 5, 5)), dropout=0.1, scaling=1.0,
        is_causal=False, sliding_window=2, softcap=0.5, s_aux=torch.zeros(4), position_bias=torch.zeros(1),
        cache=object(), cu_seq_lens_q=ENDS, cu_seq_lens_k=ENDS, max_length_q=7, max_length_k=7)
    parameters = inspect.signature(attention_forward).parameters
    assert set(parameters) == set(changes) | {"deterministic", "others"}
    wanted = attend()
    for name, value in changes.items():
        try: found = attend(**{name: value})
        except (ValueError, NotImplementedError): continue
        assert not torch.equal(found, wanted), name
    assert torch.equal(attend(position_ids=torch.arange(5), use_cache=True, output_attentions=False), wanted)
    for name in ("sinks", "indices", "block_indices", "head_mask", "block_table", "output_attentions"):
        with pytest.raises(NotImplementedError, match=f"Layer has {name}; "): attend(**{name: torch.ones(2)})
        assert torch.equal(attend(**{name: None}), wanted)


def test_deterministic():
    """Of gradients: handed on to the plan."""
    q = drawn(2, 4, 5, 16).requires_grad_()
    grads = [torch.autograd.grad(attend(query=q, deterministic=how).sum(), q)[0] for how in (None, True)]
    torch.testing.assert_close(*grads)
    with pytest.raises(TypeError, match="deterministic"): attend(query=q, deterministic="yes")


def test_scales_and_softcaps():
    assert torch.equal(attend(scaling=None), attend(scaling=0.25))
    flat = attend(module=Encoder(), scaling=0.0)
    values = drawn(2, 4, 5, 16, seed=2)
    torch.testing.assert_close(flat, values.mean(2)[:, None].expand_as(flat), rtol=1e-5, atol=1e-6)
    assert torch.equal(attend(softcap=None), attend(softcap=0.0))
    assert not torch.equal(attend(softcap=0.5), attend())


class Config:
    attn_logit_softcapping, query_pre_attn_scalar = 50.0, 256


class Capped(Layer):
    config = Config()


class Sinks(Layer):
    def __init__(self):
        super().__init__()
        self.sinks = torch.zeros(3)


HALF = dict(key=drawn(2, 2, 5, 16), value=drawn(2, 2, 5, 16))
PACKED = {name: drawn(1, 4, 10, 16) for name in ("query", "key", "value")} | LENGTHS
WORDS = [
    (dict(key=drawn(2, 4, 5, 8)), r"key must have the dim of query, 16, but has 8: .* \[2, 4, 5, 8\] and"),
    (dict(value=drawn(2, 4, 4, 16)), "value must have the seq of key, 5, but has 4"),
    (HALF | dict(query=drawn(2, 3, 5, 16)), "the number of heads of key must divide the number of heads of query, 3"),
    (dict(key=drawn(2, 4, 5, 16).half()), r"key must have the type of query, float32, .* Use key.to\(query.dtype\)"),
    (dict(query=drawn(2, 4, 5, 16).int()), r"query must be float16 or .*, but is int32. Use model.float\(\)"),
    (dict(key=None), "key must be a tensor of PyTorch, but is None"),
    (dict(query=drawn(5, 16)), r"query must be \[batch, heads, rows, dim\], but has the shape \[5, 16\]"),
    (dict(scaling=-1.0), "scaling must be from 0 to 2.127, but is -1.0. Use scaling=None"),
    (dict(scaling="x", module=Capped()), "scaling must be a number, .* It is query_pre_attn_scalar of Config.$"),
    (dict(softcap=-2.0, module=Capped()), "softcap must be .* but is -2.0. .* It is attn_logit_softcapping of Config"),
    (dict(s_aux=torch.zeros(3)), r"s_aux must have the shape \[4\], but has \[3\]. Give it 4 numbers, not 3.$"),
    (dict(s_aux=torch.zeros(3), module=Sinks()), "s_aux must .* It is sinks of Sinks.$"),
    (dict(s_aux=[1.0, 2.0]), "s_aux must be a tensor of PyTorch, but is a list"),
    (dict(sliding_window="x"), "sliding_window must be a whole number, but is 'x'"),
    (dict(sliding_window=2**70), "sliding_window must have 64 bits"),
    (dict(is_causal="x"), "is_causal must be True or False, but is 'x'"),
    (PACKED | dict(max_length_k=3), "max_length_k must be at least 7, the rows of sequence 1, but is 3. Use"),
    (PACKED | dict(cu_seq_lens_q=[0, 3, 10]), "cu_seq_lens_q must be a tensor of PyTorch, but is a list"),
    (PACKED | dict(cu_seq_lens_k=torch.tensor([0, 3, 19])), r"cu_seq_lens_k must .* but cu_seq_lens_k\[2\] is 19"),
]


@pytest.mark.parametrize("given, sentence", [pytest.param(*x, id=x[1][:40]) for x in WORDS])
def test_words(given, sentence):
    """Errors have the names that a model hands over, and say where in its config a value is."""
    with pytest.raises((TypeError, ValueError), match=f"^{sentence}") as told: attend(**given)
    assert isinstance(told.value, froghopper.Error) and "It is" not in str(told.value) or "module" in given


def test_words_of_compiled_layers():
    torch._dynamo.reset()
    fixed = {name: x for name, x in PACKED.items() if name != "max_length_k"} | dict(module=Layer())
    compiled = torch.compile(lambda scale, longest: attention_forward(**fixed, attention_mask=None, scaling=scale,
                                                                      max_length_k=longest)[0],
                             fullgraph=True, dynamic=True, backend="aot_eager")
    for scale, longest in ((1.0, 7), (0.5, 8)): compiled(scale, longest)
    with pytest.raises(ValueError, match="^scaling must be from 0 .* but is -2.0"): compiled(-2.0, 7)
    with pytest.raises(ValueError, match="^max_length_k must be at least 7"): compiled(1.0, 3)


def test_tangents():
    for name in ("query", "key", "value", "s_aux"):
        x = torch.zeros(4) if name == "s_aux" else drawn(2, 4, 5, 16)
        with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="has a tangent"):
            attend(**{name: forward_ad.make_dual(x, torch.ones_like(x))})


@pytest.mark.parametrize("without", list(LENGTHS))
def test_packed_lengths(without):
    """Of any whole-number type; both ends are needed, and the longest where nothing can be read."""
    alone = dict(query=drawn(1, 4, 10, 16), key=drawn(1, 4, 10, 16, seed=1), value=drawn(1, 4, 10, 16, seed=2))
    parts = [attend(**{name: x[:, :, part] for name, x in alone.items()}) for part in (slice(0, 3), slice(3, 10))]
    for dtype in (torch.int32, torch.int64):
        given = {name: x.to(dtype) if name.startswith("cu") else x for name, x in LENGTHS.items()}
        torch.testing.assert_close(attend(**alone, **given), torch.cat(parts, 1))
    fewer = {name: x for name, x in LENGTHS.items() if name != without}
    if without.startswith("cu"):
        with pytest.raises(ValueError, match=f"without {without}; .* Give {without}"): attend(**alone, **fewer)
    else: torch.testing.assert_close(attend(**alone, **fewer), torch.cat(parts, 1))
    with pytest.raises(ValueError, match="without cu_seq_lens_q"): attend(max_length_q=7)
    tokens = torch.tensor([[0, 1, 1, 1, 1, 1, 1, 1, 1, 1]])
    with pytest.raises(NotImplementedError, match="beside an attention_mask with padding"):
        attend(**alone, **LENGTHS, attention_mask=attention_mask(1, 10, 10, attention_mask=tokens))
    torch.testing.assert_close(attend(**alone, **LENGTHS, attention_mask=attention_mask(1, 10, 10)),
                               torch.cat(parts, 1))


def matrix(function, rows, keys, offset=0):
    """The rule as transformers evaluates it: [rows, keys]."""
    return function(0, 0, torch.arange(rows)[:, None] + offset, torch.arange(keys)).expand(rows, keys)


def by_hand(seen, rows, keys):
    return scaled_dot_product_attention(drawn(2, 4, rows, 16), drawn(2, 4, keys, 16, seed=1),
                                        drawn(2, 4, keys, 16, seed=2), seen).transpose(1, 2)


def test_without_a_mask():
    """A causal module that has more keys than queries has to say where its queries are; the message says how."""
    with pytest.raises(NotImplementedError, match="Layer is causal, has 3 queries and 9 keys.*attention_mask makes, "
                                                  "with q_offset=6"): attend(3, 9)
    seen = matrix(masks.causal_mask_function, 3, 9, 6)
    found = attend(3, 9, attention_mask=attention_mask(2, 3, 9, q_offset=6))
    torch.testing.assert_close(found, by_hand(seen, 3, 9), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(attend(3, 9, is_causal=False), by_hand(None, 3, 9), rtol=1e-4, atol=1e-5)


def test_windows():
    """One of 0 would be none to the library; it is refused where it is used: models make masks that no layer uses."""
    rule = masks.sliding_window_causal_mask_function
    for window in (0, -3):
        mask = attention_mask(2, 5, 5, mask_function=rule(window))
        with pytest.raises(ValueError, match=f"sliding_window must be .* is {window}. Use 1 or more"):
            attend(attention_mask=mask)
    with pytest.raises(ValueError, match="sliding_window must .*, but is 0"): attend(sliding_window=0)
    for window in (1, 3):
        wanted = by_hand(matrix(rule(window), 5, 5), 5, 5)
        for found in (attend(attention_mask=attention_mask(2, 5, 5, mask_function=rule(window))),
                      attend(sliding_window=window)): torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert torch.equal(attend(sliding_window=None), attend())


MADE = {
    "three_dimensions": (ValueError, dict(attention_mask=torch.ones(2, 5, 5)), "attention_mask must .*, but has the"),
    "another_batch": (ValueError, dict(attention_mask=torch.ones(3, 5)), "with a batch of 2"),
    "behind_all_keys": (NotImplementedError, dict(q_offset=3), "the last query is at key 7 and there are 5 keys"),
    "behind_them_in_a_tensor": (NotImplementedError, dict(q_offset=torch.tensor(3)), "at key 7 and there are 5"),
    "window_to_both_sides": (NotImplementedError, dict(
        q_length=3, mask_function=masks.sliding_window_bidirectional_mask_function(2)), "3 queries and 5 keys"),
    "packed_and_padded": (NotImplementedError, dict(
        mask_function=masks.packed_sequence_mask_function(torch.zeros(2, 5)), attention_mask=torch.ones(2, 5)),
        "5 queries and 5 keys and an attention_mask"),
    "packed_with_a_cache": (NotImplementedError, dict(
        q_length=3, mask_function=masks.packed_sequence_mask_function(torch.zeros(2, 3))), "3 queries and 5 keys"),
    "holes": (NotImplementedError, dict(attention_mask=torch.tensor([[1, 0, 1, 1, 1]] * 2)), "Pad at one side alone"),
    "own": (NotImplementedError, dict(mask_function=lambda *_: True), "the model's mask is made by MADE|made by"),
}


@pytest.mark.parametrize("name", MADE)
def test_masks_that_are_not_made(name):
    error, given, says = MADE[name]
    with pytest.raises(error, match=says): attention_mask(**(dict(batch_size=2, q_length=5, kv_length=5) | given))


def test_padding_of_one_row_is_that_of_all():
    tokens = torch.tensor([[0, 0, 1, 1, 1]])
    mask, each = (attention_mask(2, 5, 5, attention_mask=x) for x in (tokens, tokens.expand(2, -1)))
    assert mask.begin.tolist() == each.begin.tolist() == [2, 2]
    assert torch.equal(attend(attention_mask=mask), attend(attention_mask=each))


def test_ways_out():
    """dropout: eval() and the config's names; weights: eager; biases: eager and sdpa, where the model has it."""
    sizes = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4, vocab_size=61)
    bert = transformers.BertModel._from_config(transformers.BertConfig(**sizes), attn_implementation=NAME).train()
    ids = torch.arange(9)[None]
    with pytest.raises(NotImplementedError, match="dropout must .*attention_probs_dropout_prob.*eval()"): bert(ids)
    bert.eval()(ids)
    quiet = transformers.BertConfig(**sizes, attention_probs_dropout_prob=0.0)
    transformers.BertModel._from_config(quiet, attn_implementation=NAME).train()(ids)
    gpt2 = transformers.GPT2Config(n_embd=64, n_layer=1, n_head=4, vocab_size=61, attn_pdrop=0.0)
    transformers.GPT2Model._from_config(gpt2, attn_implementation=NAME).train()(ids)
    llama = transformers.LlamaConfig(**sizes, attention_dropout=0.0)
    transformers.LlamaModel._from_config(llama, attn_implementation=NAME).train()(ids)
    for field, kind, config in (
            ("attention_probs_dropout_prob", "BertModel", transformers.BertConfig(**sizes)),
            ("attn_pdrop", "GPT2Model", transformers.GPT2Config(n_embd=64, n_layer=1, n_head=4, vocab_size=61)),
            ("attention_dropout", "LlamaModel", transformers.LlamaConfig(**sizes, attention_dropout=0.1))):
        model = getattr(transformers, kind)._from_config(config, attn_implementation=NAME).train()
        with pytest.raises(NotImplementedError, match=f"config, where it is {field}, before .* made: .* Or call eval"):
            model(ids)
    with pytest.raises(NotImplementedError, match="output_attentions"): bert(ids, output_attentions=True)
    bert.set_attn_implementation("eager")
    assert bert(ids, output_attentions=True).attentions[0].shape == (1, 4, 9, 9)
    t5 = transformers.T5Config(d_model=64, d_kv=16, d_ff=96, num_layers=1, num_heads=4, vocab_size=61)
    for how in ("eager", "sdpa", NAME):
        try: model = transformers.T5EncoderModel._from_config(t5, attn_implementation=how).eval()
        except ValueError: continue  # this transformers has no sdpa for it
        if how != NAME: model(ids)
        else:
            with pytest.raises(NotImplementedError, match="position_bias is given"): model(ids)
    assert froghopper.transformers.register("frog_two") == "frog_two"


def test_ways_out_of_models():
    """What who calls a model can do: its query is not theirs, nor its head dim."""
    sizes = dict(intermediate_size=96, num_hidden_layers=1, num_attention_heads=4, vocab_size=61)
    ids = torch.arange(9)[None]
    wide = transformers.LlamaModel._from_config(transformers.LlamaConfig(hidden_size=64, **sizes),
                                                attn_implementation=NAME).double()
    with pytest.raises(TypeError, match="are float64. Use model.float.., or on a GPU model.bfloat16..[.]$"): wide(ids)
    wide.float()(ids)
    odd = transformers.LlamaModel._from_config(transformers.LlamaConfig(hidden_size=48, **sizes),
                                               attn_implementation=NAME)
    found = odd(ids).last_hidden_state  # 12 columns are padded
    odd.set_attn_implementation("eager")
    torch.testing.assert_close(found, odd(ids).last_hidden_state)


@pytest.mark.parametrize("given, sentence", [
    (dict(q_length="x"), "q_length must be a whole number, but is 'x'"),
    (dict(kv_length=None), "kv_length must be a whole number, but is None"),
    (dict(q_offset=[1]), r"q_offset must be a whole number, but is \[1\]"),
    (dict(attention_mask=[[1]]), "attention_mask must be a tensor of PyTorch, but is a list")])
def test_kinds_of_masks(given, sentence):
    with pytest.raises(TypeError, match=f"^{sentence}") as told:
        attention_mask(**(dict(batch_size=2, q_length=5, kv_length=5) | given))
    assert isinstance(told.value, froghopper.Error)


@pytest.mark.parametrize("name, rule", [
    (3, "be a text, but is 3"), ("sdpa", "be one that transformers has not"), ("eager", "be one that transformers has"),
    ("paged|x", "be of letters"), ("a/b", "be of letters"),
    ("", "be of letters"), ("my_flash", "have no \"flash\" in it")])
def test_names_that_are_refused(name, rule):
    """Models of "sdpa" would compute what froghopper computes, and other names are read as something else."""
    with pytest.raises(TypeError, match=f"^name must {rule}.*Use \"froghopper\""):
        froghopper.transformers.register(name)


@pytest.mark.parametrize("model", [3, None, torch.nn.Linear(2, 2)])
def test_models_of_continuous_batching(model):
    with pytest.raises(TypeError, match="^model must be a model of transformers, with a config, but is"):
        froghopper.transformers.continuous_batching(model)


@pytest.mark.parametrize("given, sentence", [
    (dict(query=None), "query must be a tensor of PyTorch, but is None"),
    (dict(key=drawn(10, 16)), r"key must be \[batch, heads, rows, dim\], but has the shape \[10, 16\]"),
    (dict(cu_seq_lens_q=[0, 10]), "cu_seq_lens_q must be a tensor of PyTorch, but is a list"),
    (dict(cu_seq_lens_k=[0, 10]), "cu_seq_lens_k must be a tensor of PyTorch, but is a list"),
    (dict(sliding_window="x"), "sliding_window must be a whole number, but is 'x'"),
    (dict(max_length_k=3), "max_length_k must be at least 7"), (dict(scaling=-1.0), "scaling must be from 0"),
    (dict(s_aux=torch.zeros(3)), r"s_aux must have the shape \[4\], but has \[3\]")])
def test_words_of_continuous_batching(given, sentence):
    from froghopper._transformers_paged import attention_forward as forward
    with pytest.raises(froghopper.Error, match=f"^{sentence}"): forward(**(PACKED | dict(module=Layer()) | given))


def test_weights_that_layers_are_not_told_of():
    """GPT-2 keeps output_attentions from its layers, and a config hands nothing to any: the tuple would be empty."""
    ids = torch.randint(0, 61, (1, 9), generator=torch.Generator().manual_seed(3))
    gpt2 = transformers.GPT2LMHeadModel._from_config(transformers.GPT2Config(
        n_embd=64, n_layer=1, n_head=4, vocab_size=61), attn_implementation=NAME).eval()
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=96, vocab_size=61,
        output_attentions=True)).eval()
    llama.set_attn_implementation(NAME)
    compiled = [torch.compile(model, backend="eager") for model in (gpt2, llama)]
    for call in (lambda: gpt2(ids, output_attentions=True), lambda: llama(ids),
                 lambda: compiled[0](ids, output_attentions=True), lambda: compiled[1](ids)):
        with pytest.raises(NotImplementedError, match="Attention has output_attentions; .*attn_implementation=\"eager"):
            call()
    for call in (lambda: gpt2(ids), lambda: llama(ids, output_attentions=False), lambda: compiled[0](ids)):
        assert not call().attentions
