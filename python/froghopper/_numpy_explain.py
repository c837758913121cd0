# SPDX-License-Identifier: Apache-2.0
"""froghopper.explain of NumPy arrays: how a call of attention, or of append_kv, would be computed, without computing
it."""
import difflib
from typing import Any

from froghopper import _c
from froghopper._append import check_named
from froghopper._axes import SWAPPED, note_of_axes
from froghopper._call import check_means, check_scale_is_there, describe
from froghopper._errors import InvalidType, of_numpy
from froghopper._library_words import in_python
from froghopper._lse import check_lse_by_row
from froghopper._numpy import attention
from froghopper._numpy_8_bit import is_8_bit, read_8_bit
from froghopper._numpy_append import append_kv, read_call, strides_in
from froghopper._numpy_arrays import (check_array, check_is_array, check_shape, check_writeable, dense, float32_of,
                                      held_arrays_of, packed_of, read_lengths, result_shape, slopes_of, strides_of)
from froghopper._values import flag, plain
from froghopper._words import named_by, names_said, too_many, translated

DEFAULTS: dict[str, Any] = dict.fromkeys("qkv") | (attention.__kwdefaults__ or {})
OF_APPEND: dict[str, Any] = dict.fromkeys(("q", "k", "v", "k_cache", "v_cache")) | (
    getattr(append_kv, "__wrapped__").__kwdefaults__ or {})
PLAIN = ("causal", "window", "softcap", "scale", "align", "max_sms", "attention_chunk", "invariant")


def told_of_call(explain_problem: Any, given: tuple[Any, ...], target: str | None, gradients: Any,
                 options: dict[str, Any]) -> str:
    """The explanation. explain_problem: explains one of the problems that the call has. given: q, k and v, as far as
    they have no names."""
    names: dict[str, str] = {}
    try:
        if len(given) > 3: too_many("attention", given[3:])
        call = options | dict(zip("qkv", given))
        appends = any(call.get(name) is not None for name in ("k_cache", "v_cache"))
        if appends: check_named(call.get("v"), call, given)
        function, known = ("append_kv", OF_APPEND) if appends else ("attention", DEFAULTS)
        check_own_words(call, known)
        names = names_said(function, "", call, known)
        call = known | translated(function, "", call, known)
        problems = of_append(call, gradients) if appends else of_attention(call, gradients)
        told = "\n\n".join(in_python(explain_problem(problem, target or "cpu")) for problem in problems)
        if target: told = told.replace("tensors on the CPU", 'target="cpu"')
        note = "" if appends else note_of_axes(call["q"].shape, call["k"].shape, SWAPPED)
        return f"{told.rstrip()}\naxes         {note}\n" if note else told
    except Exception as error: return f"not computed {named_by(names, error)}"  # also what NumPy says of its arrays


def check_own_words(call: dict[str, Any], known: dict[str, Any]) -> None:
    for word in call.keys() - known.keys():
        if near := difflib.get_close_matches(word, ("target", "gradients"), 1, 0.8):
            raise InvalidType(f"explain() of froghopper has no argument {word}. Did you mean {near[0]}?")


@of_numpy
def of_append(call: dict[str, Any], gradients: Any) -> list[_c.Problem]:
    if flag("gradients", gradients):
        raise InvalidType("gradients must be False with k_cache, as append_kv has none, but is True. Leave it out.")
    problem, tensors = read_call(call)
    strides_in(tensors)
    return [problem]


@of_numpy
def of_attention(call: dict[str, Any], gradients: Any) -> list[_c.Problem]:
    """One, and with gradients that of the backward pass too. Checked as attention does."""
    q, k, v, gate, out = (call[name] for name in ("q", "k", "v", "gate", "out"))
    for name, x in (("q", q), ("k", k), ("v", v)): check_is_array(name, x)
    lengths = read_lengths(*(call[name] for name in ("cu_seqlens_q", "cu_seqlens_kv", "seqused_q", "seqused_kv")))
    with_max, accumulate = flag("return_max_logit", call["return_max_logit"]), call["accumulate"]
    flag("return_lse", call["return_lse"])
    check_lse_by_row(flag("lse_by_row", call["lse_by_row"]), accumulate)
    held = None if accumulate is None else held_arrays_of(accumulate, out, with_max)
    options = plain(**{name: call[name] for name in PLAIN})
    bounds = call["max_seqlen_q"], call["max_seqlen_kv"]
    scales, means = ({name: call[name] for name in names} for names in (("scale_q", "scale_k", "scale_v"),
                                                                       ("mean_k", "mean_v")))
    if check_means(*means.values()) or is_8_bit(q) or is_8_bit(k) or any(
            call[name] is not None for name in ("dtype", "out_dtype", "scale_k")):
        if flag("gradients", gradients):
            raise InvalidType(f"gradients must be False with 8-bit q, k or v, which have none, but is True, and k is "
                              f"{k.dtype}. Leave it out, or multiply them by their scales in float32.")
        return [read_8_bit(q, k, v, scales, means, call["dtype"], call["out_dtype"], lengths, call["sink"],
                           held is not None, with_max, *bounds, call["alibi_slopes"], gate is not None,
                           options).problem]
    for name in ("scale_q", "scale_v"):
        if call[name] is not None: check_scale_is_there(name, call[name], name[-1], q.dtype.name)
    name_of_o, out = ("out", out) if held is None else ("accumulate[0]", held[0])
    arrays = {"q": q, "k": k, "v": v} | {name: x for name, x in (("gate", gate), ("out", out)) if x is not None}
    if held is not None: arrays.pop("out")
    for name, array in arrays.items(): check_array(name, array, q)
    packed = packed_of(lengths, q, k, *bounds)
    sink, slopes = dense("sink", call["sink"], q.shape[-2:-1]), float32_of("alibi_slopes", call["alibi_slopes"])
    options |= dict(packed=packed, seqused=lengths.used, sink=sink is not None, alibi=slopes is not None,
                    gate=gate is not None, accumulate=held is not None)
    problems = [describe(q.shape, k.shape, v.shape, q.dtype.name, **options, max_logit=with_max)]
    for name, array in (*list(arrays.items())[3:], (name_of_o, out)):
        if array is not None: check_shape(name, array, result_shape(q, v))
    for name, array in arrays.items(): strides_of(name, array)
    if out is not None: check_writeable(name_of_o, out)
    slopes_of(slopes, problems[0])
    if flag("gradients", gradients):
        problems.append(describe(q.shape, k.shape, v.shape, q.dtype.name, **options, backward=True))
    return problems
