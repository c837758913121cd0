# SPDX-License-Identifier: Apache-2.0
"""The Python packages beside docs/options.md, which is written from the table that the library goes through: who has
which argument, its default, its overloads, its words in the docstring, and that it reaches the problem line."""
import importlib
import inspect
import pathlib
import re
import typing

import numpy as np
import pytest

import froghopper
from froghopper import _c, _call, _numpy, _numpy_8_bit, _numpy_quantise
from froghopper._library import library

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "options.md"
if not TABLE.exists(): pytest.skip("docs/options.md is not here: this is no source tree", allow_module_level=True)


def names_in(cell): return re.findall(r"`([^`]+)`", cell)


ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in TABLE.read_text().splitlines()
        if line.startswith("| `")]
COLUMNS = {"numpy": 6, "torch": 7, "jax": 8, "quantise": 9}
# The arguments that are no options: tensors, what comes out and where it goes, and words of other libraries.
NO_OPTIONS = {"q", "k", "v", "scale_q", "out", "return_lse", "lse_by_row", "more", "others"}
ONLY_HERE = {"numpy": {"dtype"}, "torch": set(), "jax": set(), "quantise": set()}  # numpy: what uint8 stands for


def arguments_of(column): return {name for row in ROWS for name in names_in(row[COLUMNS[column]])}


def module(name):
    if name == "numpy": return froghopper
    return importlib.import_module(f"froghopper.{name}")


def function(column, name="attention"):
    if column != "numpy":
        pytest.importorskip(column, reason=f"froghopper.{column} needs {column}, which is not installed")
    return getattr(module(column), name)


def keywords(of):
    return {name: p.default for name, p in inspect.signature(of).parameters.items() if p.kind is p.KEYWORD_ONLY}


PACKAGES = ("numpy", "torch", "jax")


def test_every_field_has_a_row():
    fields = [name for name, _ in _c.Problem._fields_]
    assert sorted(names_in(row[0])[0] for row in ROWS) == sorted(set(fields) - {"size", "reserved"})
    types = dict(_c.Problem._fields_)
    sizes = {"int64": 8, "uint32": 4, "float": 4, "flag": 4, "fh_op": 4, "fh_dtype": 4, "fh_align": 4, "fh_phase": 4}
    for row in ROWS:
        field = types[names_in(row[0])[0]]
        assert np.dtype(field).itemsize == sizes[row[1]], row[0]
        assert (np.dtype(field).kind == "f") == (row[1] == "float"), row[0]


@pytest.mark.parametrize("package", PACKAGES)
def test_attention_has_its_arguments_and_no_others(package):
    wanted, had = arguments_of(package), set(keywords(function(package)))
    if package == "numpy": had |= set(keywords(froghopper.attention_backward)) - {"grad_lse"}
    assert had - NO_OPTIONS - ONLY_HERE[package] == wanted


@pytest.mark.parametrize("package", PACKAGES)
def test_quantise_has_its_arguments_and_no_others(package):
    assert set(keywords(function(package, "quantise"))) == arguments_of("quantise")


def test_defaults_are_the_same_everywhere():
    """Of one name, and so of the option: None and 0.0 are two programs under torch.compile."""
    pytest.importorskip("torch", reason="froghopper.torch needs torch, which is not installed")
    from froghopper import _torch_explain
    from froghopper.torch import attention, paged_attention
    functions = {"numpy": froghopper.attention, "torch": attention, "paged": paged_attention}
    try: functions["jax"] = importlib.import_module("froghopper.jax").attention
    except ImportError: pass
    backward = keywords(froghopper.attention_backward)
    for name, of in functions.items():
        for argument, default in keywords(of).items():
            for other in functions.values():
                assert keywords(other).get(argument, default) == default, f"{argument} of {name} and of {other}"
            if argument not in ("accumulate", "out"):
                assert backward.get(argument, default) == default, f"{argument} of {name} and of attention_backward"
    assert _torch_explain.DEFAULTS == keywords(attention)
    assert keywords(_call.describe)["softcap"] is None is keywords(attention)["softcap"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_overload_has_every_argument(package):
    if not hasattr(typing, "get_overloads"): pytest.skip("typing.get_overloads came with Python 3.11")
    of = function(package)
    overloads = typing.get_overloads(of)
    assert overloads
    for overload in overloads: assert set(inspect.signature(overload).parameters) == \
        set(inspect.signature(of).parameters) - {"more", "others"}, inspect.signature(overload)
    annotations = {name: p.annotation for name, p in inspect.signature(of).parameters.items()}
    chosen = ("return_lse", "return_max_logit", "accumulate")  # which overload it is
    for overload in overloads:
        for name, parameter in inspect.signature(overload).parameters.items():
            assert name in chosen or parameter.annotation == annotations[name], name


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("name", ("attention", "quantise"))
def test_the_docstring_has_every_argument(package, name):
    of = function(package, name)
    words = set(re.findall(r"^ {0,4}(\w+\*?) +\S", of.__doc__, re.MULTILINE))
    for argument in keywords(of).keys() - {"others"}:
        starred = re.sub(r"_(q|k|v|kv)$", "_*", argument)
        said = argument in words or starred in words or f"{argument}=" in of.__doc__
        if name == "quantise": said |= argument in arguments_of(package)  # as attention has them
        assert said, argument


# What an argument is given, and what it goes with. Arrays are made of their shape.
HEADS_Q, HEADS_KV, DIM, BATCH, SEQ_Q, SEQ_KV = 4, 2, 16, 2, 130, 131
GIVEN = {
    "causal": {"causal": True}, "window": {"window": (3, 2)}, "attention_chunk": {"attention_chunk": 5},
    "align": {"align": "top_left", "causal": True}, "scale": {"scale": 0.5}, "softcap": {"softcap": 7.0},
    "sink": {"sink": np.ones(HEADS_Q, np.float32)}, "alibi_slopes": {"alibi_slopes": np.ones(HEADS_Q, np.float32)},
    "deterministic": {"deterministic": True}, "invariant": {"invariant": True},
    "return_max_logit": {"return_max_logit": True}, "max_sms": {"max_sms": 77},
    "gate": {"gate": np.ones((BATCH, SEQ_Q, HEADS_Q, DIM), np.float32)},
    "accumulate": {"accumulate": (np.zeros((BATCH, SEQ_Q, HEADS_Q, DIM), np.float32),
                                  np.full((BATCH, HEADS_Q, SEQ_Q), -np.inf, np.float32))},
    "seqused_q": {"seqused_q": np.array([5, 130], np.int32)},
    "seqused_kv": {"seqused_kv": np.array([7, 131], np.int32)},
}
PACKED = {"cu_seqlens_q": np.array([0, 60, 130], np.int32), "cu_seqlens_kv": np.array([0, 70, 131], np.int32),
          "max_seqlen_q": 77, "max_seqlen_kv": 88}
OF_8_BITS = {"scale_k": "scales128", "scale_v": "vcolumns", "mean_k": "smooth", "mean_v": "smooth",
             "out_dtype": "o=f32"}


def word_of(package, argument):
    """The letters of the option in a line."""
    row = next(row for row in ROWS if argument in names_in(row[COLUMNS[package]]))
    return re.match(r"[a-z]+", names_in(row[4])[0])[0]


def drawn(dtype=np.float32):
    random = np.random.default_rng(1)
    shapes = ((BATCH, SEQ_Q, HEADS_Q, DIM), (BATCH, SEQ_KV, HEADS_KV, DIM), (BATCH, SEQ_KV, HEADS_KV, DIM))
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


def packed_arrays(): return [x[0] for x in drawn()]


def line_of_numpy(monkeypatch, call, *arrays, **words):
    """The problem line that a function asks a plan for."""
    lines = []

    def plan_of(problem, target):
        lines.append(library().line(problem))
        return _call.plan_of(problem, target)
    for where in (_numpy, _numpy_8_bit): monkeypatch.setattr(where, "plan_of", plan_of)
    monkeypatch.setattr(_numpy, "_calls", {})
    call(*arrays, **words)
    line, = lines
    return line


def line_of_torch(monkeypatch, q, k, v, **words):
    """That of the call itself, and explain says the same."""
    import torch

    from froghopper import _torch_8_bit, _torch_calls, _torch_paged
    from froghopper.torch import attention, explain
    lines = []

    def plan_of(problem, target):
        lines.append(library().line(problem))
        return _call.plan_of(problem, target)
    for where in (_torch_calls, _torch_8_bit, _torch_paged): monkeypatch.setattr(where, "plan_of", plan_of)

    def tensor(x):
        if isinstance(x, np.ndarray): return torch.from_numpy(x)
        return tuple(map(tensor, x)) if isinstance(x, tuple) and isinstance(x[0], np.ndarray) else x
    q, k, v = map(tensor, (q, k, v))
    words = {name: tensor(x) for name, x in words.items()}
    if "deterministic" in words: q.requires_grad_()  # of gradients alone
    attention(q, k, v, **words)
    told = re.findall(r"(?:fwd|bwd) .*", explain(q, k, v, target="cpu", **words))
    assert told and set(told) <= set(lines), (told, lines)
    return told[-1] if "max_sms" in words else re.sub(r" sms\d+", "", told[-1])  # PyTorch's threads


def line_of_jax(q, k, v, **words):
    import jax

    from froghopper.jax import attention
    arrays = {name: x for name, x in words.items() if isinstance(x, (np.ndarray, tuple)) and name != "window"}
    others = {name: x for name, x in words.items() if name not in arrays}
    with jax.default_device(jax.devices("cpu")[0]):
        lowered = jax.jit(lambda q, k, v, arrays: attention(q, k, v, **arrays, **others)).lower(q, k, v, arrays)
    return re.search(r'problem = "([^"]*)"', lowered.as_text())[1]


def line_of(monkeypatch, package, *arrays, **words):
    if package == "numpy": return line_of_numpy(monkeypatch, froghopper.attention, *arrays, **words)
    if package == "jax" and not pathlib.Path(library().path).resolve().with_name("libfroghopper_xla.so").exists():
        pytest.skip("libfroghopper_xla.so is not beside the library: it was built without XLA's header")
    if package == "torch": return line_of_torch(monkeypatch, *arrays, **words)
    return line_of_jax(*arrays, **words)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_argument_reaches_the_line(monkeypatch, package):
    of, arrays = function(package), drawn()
    plain = line_of(monkeypatch, package, *arrays)
    for argument in arguments_of(package) & set(keywords(of)):
        if argument in PACKED or argument in OF_8_BITS or argument == "block_table": continue  # below
        found = line_of(monkeypatch, package, *arrays, **GIVEN[argument]).split()
        word = word_of(package, argument)
        new = set(found) - set(plain.split())
        assert any(re.fullmatch(rf"{word}[^a-z]*", each) for each in new), f"{argument}: {found}"
    if package == "numpy":
        o, lse = froghopper.attention(*arrays, return_lse=True)
        line = line_of_numpy(monkeypatch, froghopper.attention_backward, o, *arrays, o, lse, deterministic=True)
        assert word_of("numpy", "deterministic") in line.split()


@pytest.mark.parametrize("package", PACKAGES)
def test_packed_lengths_reach_the_line(monkeypatch, package):
    function(package)
    found = line_of(monkeypatch, package, *packed_arrays(), **PACKED).split()
    assert {"b2", "sq77", "skv88", "varlen", "tq130", "tkv131"} <= set(found)


@pytest.mark.parametrize("package", PACKAGES)
def test_8_bit_arguments_reach_the_line(monkeypatch, package):
    function(package)
    quantise = function("torch" if package == "torch" else "numpy", "quantise")
    assert OF_8_BITS.keys() == arguments_of(package) & OF_8_BITS.keys()
    if package != "torch": pytest.importorskip("ml_dtypes", reason="8-bit arrays of NumPy have the types of ml_dtypes")
    arrays = drawn(np.float16)
    if package == "torch":
        import torch
        arrays = [torch.from_numpy(x) for x in arrays]
    given = quantise(*arrays, smooth=True)._asdict()
    columns = np.ones((BATCH, 1, HEADS_KV, DIM), np.float32)
    given |= {"out_dtype": torch.float32 if package == "torch" else "float32"}
    line = line_of(monkeypatch, package, *(given.pop(name) for name in "qkv"), **given)
    for argument in OF_8_BITS.keys() - {"scale_v"}: assert OF_8_BITS[argument] in line.split(), (argument, line)
    given = quantise(*arrays)._asdict()
    given["scale_v"] = torch.from_numpy(columns) if package == "torch" else columns
    line = line_of(monkeypatch, package, *(given.pop(name) for name in "qkv"), **given)
    assert OF_8_BITS["scale_v"] in line.split()


def test_pages_reach_the_line(monkeypatch):
    torch = pytest.importorskip("torch", reason="froghopper.torch needs torch, which is not installed")
    q, pool = drawn()[0], np.zeros((20, 16, HEADS_KV, DIM), np.float32)
    line = line_of_torch(monkeypatch, q, pool, pool, block_table=torch.zeros((BATCH, 9), dtype=torch.int32).numpy())
    assert {"page16", "pages20"} <= set(line.split())


def test_quantise_reaches_the_line(monkeypatch):
    lines = []

    def plan_of(problem, target):
        lines.append(library().line(problem))
        return _call.plan_of(problem, target)
    from froghopper import _quantise
    monkeypatch.setattr(_quantise, "plan_of", plan_of)
    packed = packed_arrays()
    words = {"dtype": "float8_e5m2", "rotate": True, "rotate_seed": 3, "scale_rows": 128, "smooth": True, "max_sms": 1,
             "seqused_q": np.array([5, 70], np.int32), "seqused_kv": np.array([7, 61], np.int32), **PACKED}
    assert words.keys() == arguments_of("quantise") == keywords(_numpy_quantise.quantise).keys()
    froghopper.quantise(*packed, **words)
    assert {"kv=e5m2", "rotate", "seed3", "scales128", "smooth", "sms1", "seqused", "varlen", "sq77",
            "skv88"} <= set(lines[0].split())


def test_the_handlers_of_xla_know_every_array_of_jax():
    pytest.importorskip("jax", reason="froghopper.jax needs jax, which is not installed")
    from froghopper import _xla_append, _xla_kind
    handlers = (ROOT / "src" / "xla" / "handlers.cpp").read_text()
    arrays = (ROOT / "src" / "xla" / "arrays.hpp").read_text()
    known = re.findall(r'^    \{"(\w+)", Role::', arrays, re.M)
    fields = {name for name, _ in _c.Tensors._fields_}
    assert known and set(known) <= fields
    gradients = {f"grad_{name}" for name in ("q", "k", "v", "o", "lse", "sink", "gate")}
    copies = {f"quantised_{name}" for name in "qkv"}
    assert set(_xla_kind.DIMS) | set(_xla_append.NAMES) | gradients | copies == set(known)
    for attribute in ("problem", "operands", "results"): assert f'"{attribute}"' in handlers


def test_attention_of_torch_hands_on_every_argument():
    """Where argument names of other libraries are translated, and to paged_attention."""
    of = function("torch")
    handed_on = set(re.findall(r"\b(\w+)=\1\b", inspect.getsource(of)))
    assert handed_on >= set(keywords(of))
