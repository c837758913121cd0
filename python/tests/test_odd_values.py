# SPDX-License-Identifier: Apache-2.0
"""Every argument of the functions on NumPy arrays, and of froghopper.jax, with values of many kinds: there is a result,
or one of froghopper's errors that names the argument. What is refused is so, too, after its like was accepted."""
import decimal
import fractions
import inspect
import re

import numpy as np
import pytest

import froghopper
from froghopper import _values


class Odd:
    """Asked for a number, an array or its text, it raises."""
    def __float__(self): raise ValueError("no float")
    def __index__(self): raise ValueError("no index")
    def __array__(self, *arguments, **words): raise ValueError("no array")
    def __repr__(self): raise RuntimeError("no text")


class Lying(list):
    """Longer than it says."""
    def __len__(self): return 2


VALUES = [
    None, True, False, np.True_, -1, 0, 1, 2, 3, 2**31, 2**32 + 1, 2**64 + 3, -2**63 - 1, 10**400, 10**5000, -1.0, -0.0,
    0.5, 2.0, 1e-50, 1e39, float("nan"), float("inf"), 1j, np.complex64(1j), np.array(1j), decimal.Decimal("0.5"),
    fractions.Fraction(1, 2), "", "3", "x", "float16", "top_left", "\0", "\udce9", b"x", object(), Odd(), Odd, len, [],
    [[]], {}, (), set(), [1], [1.5], [None], ["a"], [1, 2], [[1], [2, 3]], (1, "a"), (None, 2**70), (None,) * 2,
    (None,) * 3, [None] * 4, Lying([1, 2, 3]), range(2), slice(2), np.float32(2), np.int8(2), np.uint64(2**63),
    np.array(1.0), np.array(2), np.zeros(0), np.zeros(2), np.zeros(4, np.float32), np.zeros((0, 0)), np.zeros((2, 4)),
    np.zeros((2, 5, 4, 16), np.float32), np.zeros((2, 5, 4, 16), np.float16), np.zeros((2, 4, 5), np.float32),
    np.ma.masked_array(np.zeros(4, np.float32), [0, 1, 0, 0]), np.ma.masked, np.array([1, None]), np.array("a"),
    np.zeros(2, "f4,i1"), np.zeros(2, "datetime64[s]"), np.datetime64("2020"), np.dtype("f4"), np.float32, "bfloat16",
]

Q, KV = np.zeros((2, 5, 4, 16), np.float32), np.zeros((2, 7, 2, 16), np.float32)
LSE = np.zeros((2, 4, 5), np.float32)
ENDS = dict(cu_seqlens_q=[0, 5, 10], cu_seqlens_kv=[0, 7, 14])
QKV, PQ, PKV = dict(q=Q, k=KV, v=KV), Q.reshape(10, 4, 16), KV.reshape(14, 2, 16)
PACKED = dict(q=PQ, k=PKV, v=PKV, **ENDS)
SMALL = {name: np.zeros(x.shape, np.uint8) for name, x in QKV.items()} | dict(
    scale_q=1.0, scale_k=1.0, scale_v=1.0, dtype="float8_e4m3fn", out_dtype=np.float32)
BACKWARD = dict(grad_o=Q, **QKV, o=Q, lse=LSE)
CALLS = {
    "attention": (froghopper.attention, QKV), "attention of packed": (froghopper.attention, PACKED),
    "attention of 8 bits": (froghopper.attention, SMALL),
    "attention_backward": (froghopper.attention_backward, BACKWARD),
    "quantise": (froghopper.quantise, QKV),
    "explain": (froghopper.explain, dict(problem="fwd f32 b1 hq2 hkv1 sq9 skv9 d16", target="cpu")),
}
OF_LENGTHS = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_kv", "seqused_q", "seqused_kv", "max_seqlen_q",
              "max_seqlen_kv")


def names(error, argument): return re.search(rf"\b{argument}", str(error))


def arguments():
    """Of each function; of one that is there twice those that matter there."""
    for name, (function, _) in CALLS.items():
        for argument, kind in inspect.signature(function).parameters.items():
            if kind.kind is kind.VAR_POSITIONAL: continue  # has no name to be given by
            if "packed" not in name or argument in OF_LENGTHS: yield name, argument


@pytest.mark.parametrize("name, argument", list(arguments()))
@pytest.mark.filterwarnings("ignore::UserWarning")  # NumPy's, where np.ma.masked becomes NaN
def test_numpy(name, argument):
    function, given = CALLS[name]
    wrong = []
    for at, value in enumerate(VALUES):
        words = {key: x.copy() if isinstance(x, np.ndarray) else x for key, x in given.items()} | {argument: value}
        try: function(**words)
        except froghopper.Error as error:
            if not names(error, argument): wrong.append(f"{at} {_values.shown(value)}: unnamed: {error}")
            if not str(error).endswith("."): wrong.append(f"{at} {_values.shown(value)}: no way out: {error}")
        except BaseException as error: wrong.append(f"{at} {_values.shown(value)}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)


def test_a_bound_for_which_there_is_no_memory():
    with pytest.raises(froghopper.InvalidProblem, match="by max_seqlen_q and max_seqlen_kv; there is no memory"):
        froghopper.quantise(**PACKED, max_seqlen_q=2**48)


LIKES = [("max_sms", 2, 2.0), ("causal", True, 1.0), ("causal", False, 0.0), ("attention_chunk", 3, 3.0),
         ("window", (2, 0), (2.0, 0)), ("window", [2, 0], [2, 0.0]), ("invariant", True, 1.0),
         ("align", "top_left", [])]


@pytest.mark.parametrize("name, fit, unfit", LIKES)
def test_what_is_refused_is_so_after_its_like_was_computed(name, fit, unfit):
    """2, 2.0 and True are the same key of a dict."""
    words = QKV | {name: unfit}
    for _ in range(2):
        with pytest.raises(froghopper.InvalidType, match=name): froghopper.attention(**words)
        froghopper.attention(**QKV, **{name: fit})
    if name == "invariant": return
    for _ in range(2):
        with pytest.raises(froghopper.InvalidType, match=name):
            froghopper.attention_backward(**BACKWARD, **{name: unfit})
        froghopper.attention_backward(**BACKWARD, **{name: fit})


def test_lengths_and_seeds_are_refused_after_their_likes_too():
    froghopper.attention(**PACKED, max_seqlen_q=5)
    for bound, error in ((5.0, TypeError), (2**64 + 5, ValueError), (4, ValueError), ("5", TypeError)):
        with pytest.raises(error, match="max_seqlen_q"): froghopper.attention(**PACKED, max_seqlen_q=bound)
    froghopper.quantise(**QKV, rotate_seed=1, scale_rows=128)
    for words in (dict(rotate_seed=1.0), dict(scale_rows=128.0), dict(rotate=1.0), dict(smooth=0.0)):
        with pytest.raises(TypeError, match=next(iter(words))): froghopper.quantise(**QKV, **words)
    for rotate in (np.True_, True, 1):
        found = froghopper.quantise(**QKV, rotate=rotate, smooth=np.False_)
        assert type(found) is froghopper.Quantised


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_jax():
    from jax_cases import CPU, attention, jax
    with jax.default_device(CPU[0]):
        given = {name: jax.numpy.asarray(x) for name, x in QKV.items()}
        wrong = []
        for argument in inspect.signature(attention).parameters:
            for value in VALUES:
                try: attention(**given | {argument: value})
                except froghopper.Error as error:
                    if not names(error, argument): wrong.append(f"{argument} {_values.shown(value)}: unnamed: {error}")
                except BaseException as error:
                    wrong.append(f"{argument} {_values.shown(value)}: {type(error).__name__}: {error}")
        assert not wrong, "\n".join(wrong)
        for name, fit, unfit in LIKES:
            if name == "max_sms": continue
            attention(**given, **{name: fit})
            with pytest.raises(froghopper.InvalidType, match=name): attention(**given, **{name: unfit})
