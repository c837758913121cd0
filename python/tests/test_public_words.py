# SPDX-License-Identifier: Apache-2.0
"""Every public function of every module, given an argument that it does not have: a TypeError that is froghopper's own
and names the argument meant, also where all others are right."""
import ast
import importlib
import inspect
import pathlib

import numpy as np
import pytest

import froghopper

MODULES = ("", ".torch", ".torch.context_parallel", ".flash_attn_interface", ".transformers", ".jax",
           ".jax.context_parallel")
OF_ENGINES = ("vllm", "sglang")
# transformers hands every layer's words to these, of which attention reads some.
TAKE_ANY = {".transformers": ("attention_forward", "attention_mask")}
ENDS = np.array([0, 4], np.int32)


def module_of(suffix):
    framework = {"": "numpy", ".flash_attn_interface": "torch"}.get(suffix) or suffix.split(".")[1]
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    if framework == "transformers": pytest.importorskip("torch", reason="torch is not installed")
    if framework == "jax": importlib.import_module("jax_cases")  # skips where the library has no handlers
    parent, _, last = ("froghopper" + suffix).rpartition(".")
    return getattr(importlib.import_module(parent), last) if parent else froghopper


def functions_of(module):
    """By name; classes have what Python says of them."""
    return {name: found for name in dir(module)
            if callable(found := getattr(module, name)) and not inspect.isclass(found)}


def given(suffix, name):
    """Something of the right kind for the arguments that must be given."""
    shapes = {"kv": (1, 4, 2, 2, 16), "qkv": (1, 4, 3, 2, 16), "cu_seqlens": ENDS}
    if "varlen" in name or name == "merge_attn_states": shapes |= {"qkv": (4, 3, 2, 16), "kv": (4, 2, 2, 16)}
    array = importlib.import_module("torch").as_tensor if "jax" not in suffix and suffix else np.asarray
    if "jax" in suffix: array = importlib.import_module("jax").numpy.asarray

    def one(argument):
        if argument == "problem": return "fwd f32 b1 hq2 hkv2 sq4 skv4 d16"
        if argument in ("axis_name", "name"): return "ring"
        if argument in ("ranks", "devices", "max_seqlen", "length"): return 2
        shape = shapes.get(argument, (1, 4, 2, 16))
        return array(shape if isinstance(shape, np.ndarray) else np.ones(shape, np.float32))
    return one


def misspelled(name):
    """Two letters are exchanged."""
    at = next(at for at in range(1, len(name)) if name[at] != name[at + 1])
    return name[:at] + name[at + 1] + name[at] + name[at + 2:]


def said_of(call):
    """The text of a refusal, raised or told."""
    try: told = call()
    except froghopper.InvalidType as error: return str(error)
    assert isinstance(told, str) and told.startswith("not computed "), told
    return told


@pytest.mark.parametrize("suffix", MODULES)
def test_unknown_words(suffix):
    module = module_of(suffix)
    found = functions_of(module)
    assert found
    for name, function in found.items():
        if name in TAKE_ANY.get(suffix, ()): continue
        parameters = inspect.signature(function).parameters.values()
        one = given(suffix, name)
        first = {x.name: one(x.name) for x in parameters if x.default is x.empty and x.kind is x.POSITIONAL_OR_KEYWORD}
        known = [x.name for x in parameters if x.kind in (x.POSITIONAL_OR_KEYWORD, x.KEYWORD_ONLY)
                 and len(x.name) > 4 and x.name not in first]
        for word in known or ["bananas"]:
            wrong = misspelled(word) if known else word
            text = said_of(lambda: function(**first, **{wrong: 1}))
            assert wrong in text and (word in text.replace(wrong, "")) == bool(known), (name, word, text)
            assert name in text or "packed" in name, (name, text)  # those speak of the functions that they call
        text = said_of(lambda: function(**first, bananas=1))
        assert "bananas" in text, (name, text)


@pytest.mark.parametrize("name", OF_ENGINES)
def test_engines_have_classes(name):
    """Their public names are classes, whose functions the engines call."""
    tree = ast.parse((pathlib.Path(froghopper.__file__).parent / f"{name}.py").read_text())
    public, = (ast.literal_eval(x.value) for x in tree.body if isinstance(x, ast.Assign)
               and getattr(x.targets[0], "id", "") == "__all__")
    assert set(public) <= {x.name for x in tree.body if isinstance(x, ast.ClassDef)}
