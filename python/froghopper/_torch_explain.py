# SPDX-License-Identifier: Apache-2.0
"""froghopper.torch.explain: where and how a call of attention or append_kv would be computed, without computing it."""
from typing import Any

import torch
from torch import Tensor

from froghopper import _c
from froghopper import _torch_append as appending
from froghopper import _torch_calls as calls
from froghopper import _torch_paged as pages
from froghopper._append import check_named
from froghopper._axes import OF_EXAMPLES, note_of_axes
from froghopper._explain import explain_problem
from froghopper._errors import InvalidType, Unsupported
from froghopper._library_words import in_python
from froghopper._torch_attention import attention
from froghopper._torch_8_bit import check_scaled
from froghopper._torch_calls import FLOAT8, LOOK, check_tensor
from froghopper._torch_checks import sink_of
from froghopper._torch_eager import DEVICES, autocast
from froghopper._torch_ops import is_wrapped, transforms_active, unwrapped
from froghopper._torch_options import bound_of, decided, scale_tensor, window_of
from froghopper._torch_sharding import is_dtensor
from froghopper._values import listed
from froghopper._words import check_own_words, named_by, names_said, too_many, translated

DEFAULTS: dict[str, Any] = dict(
    causal=False, window=None, softcap=None, scale=None, sink=None, cu_seqlens_q=None, cu_seqlens_kv=None,
    max_seqlen_q=None, max_seqlen_kv=None, seqused_q=None, seqused_kv=None, align="bottom_right", return_lse=False,
    deterministic=False, out=None, max_sms=0, scale_q=None, scale_k=None, scale_v=None, out_dtype=None, mean_k=None,
    mean_v=None, accumulate=None, alibi_slopes=None, attention_chunk=0, invariant=False, return_max_logit=False,
    block_table=None, gate=None, lse_by_row=False)
OF_PAGES = ("max_seqlen_q", "max_seqlen_kv", "causal", "window", "softcap", "scale", "align", "max_sms",
            "attention_chunk", "invariant", "out_dtype")
SCALES = ("scale_q", "scale_k", "scale_v")
is_batched: Any = getattr(torch._C._functorch, "is_batchedtensor", lambda x: False)


def explain(q: Tensor | None = None, k: Tensor | None = None, v: Tensor | None = None, *others: Any,
            target: str | None = None, **options: Any) -> str:
    """Why froghopper.torch.attention(q, k, v, **options) can or cannot be computed and how, in lines of text: backend,
    kernel, tiles, memory. Nothing is computed, and of the tensors only shapes, types and devices count, so they may be
    on the device "meta".

    target         instead of the tensors' device: "cpu", "hopper", "h200", ...; froghopper.h has all

    With k_cache or v_cache, a call of append_kv is explained, whose arguments are all given by name: explain(k=k, v=v,
    k_cache=k_cache, v_cache=v_cache, seqused_kv=lengths).

    Where q, k, v or sink requires a gradient, the backward pass is explained too. A contradiction is told, not raised,
    and so is a tensor that is missing. Code that torch.compile traces cannot call it: there is no place for a text.
    """
    names: dict[str, str] = {}
    if torch.compiler.is_compiling():
        raise Unsupported("explain is called in code that torch.compile traces, which has no place for its text. Call "
                          "it outside of that, with tensors of the same shapes and types; they may be on the device "
                          "\"meta\".")
    try:
        if isinstance(q, str): raise InvalidType("q must be a tensor of PyTorch, but is a str. For a line use "
                                                 "froghopper.explain.")
        if not others and appends(options):
            check_named(v, options, (q,))
            options, new = options | {"q": q, "k": k, "v": v}, next((x for x in (k, v, q) if x is not None), None)
            names = names_said("append_kv", "torch", options, OF_APPEND.keys())
            return of_append(options, new, target)
        if others: too_many("attention", others)
        names, options = said_and_meant(q, k, options)
        for name, x in (("q", q), ("k", k), ("v", v)): check_tensor(name, x)
        assert q is not None and k is not None and v is not None
        parts = parts_of(q, k, v)
        if options.get("block_table") is None: q, k, v = as_cast(q, k, v)  # a pool keeps its type
        given = DEFAULTS | options
        given["sink"] = sink_of(given["sink"])
        attention(without_memory(q), without_memory(k), without_memory(v),
                  **{name: without_memory(x) for name, x in options.items()})
        where = target or ("auto" if q.is_meta else calls.target_of(q)[1])
        recorded = torch.is_grad_enabled() and any(
            x is not None and x.requires_grad for x in (q, k, v, given["sink"], given["gate"]))
        if where == "cpu" and not given["max_sms"]: given["max_sms"] = torch.get_num_threads()  # as a call has it
        passes = [problem_of(q, k, v, given, backward) for backward in (False, True)[:1 + recorded]]
        told = "\n\n".join(in_python(explain_problem(problem, where)) for problem in passes)
        if target: told = told.replace("tensors on the CPU", 'target="cpu"')
        note = "" if given["block_table"] is not None else note_of_axes(q.shape, k.shape)
        notes = f"axes         {note}\n" * bool(note) + needed_on_gpu(where, given) + parts
        return f"{told.rstrip()}\n{notes}" if notes else told
    except Exception as error: return f"not computed {named_by(names, error)}"  # also what PyTorch says of its tensors


OF_APPEND: dict[str, Any] = dict.fromkeys(("k", "v", "k_cache", "v_cache")) | (
    getattr(appending.append_kv, "__wrapped__").__kwdefaults__ or {})


def appends(options: dict[str, Any]) -> bool:
    """Whether the arguments are those of append_kv."""
    return options.get("k_cache") is not None or options.get("v_cache") is not None


def of_append(options: dict[str, Any], new: Any, target: str | None) -> str:
    """What explain says of a call of append_kv. new: one of its new rows."""
    check_own_words("explain", "torch", options, OF_APPEND.keys(), ("target",))
    call = OF_APPEND | translated("append_kv", "torch", options, OF_APPEND.keys())
    looked = {name: without_memory(x) for name, x in call.items()}
    appending.append_kv(**looked)  # checks, and computes nothing without memory
    where = target or ("auto" if new.is_meta else calls.target_of(new)[1])
    if where == "cpu" and not looked["max_sms"]: looked["max_sms"] = torch.get_num_threads()
    some = without_memory(new)
    given = {name: looked[name] for name in appending.Given._fields} | {
        name: scale_tensor(name, looked[name], some) for name in ("scale_k", "scale_v")}
    problem = appending.checked(appending.Given(**given), appending.Options(
        looked["max_seqlen"], looked["rotary_interleaved"], looked["norm_epsilon"], looked["max_sms"]))
    told = in_python(explain_problem(problem, where))
    return told.replace("tensors on the CPU", 'target="cpu"') if target else told


def parts_of(*tensors: Tensor) -> str:
    """A line about tensors whose shapes are not those that are computed with."""
    if transforms_active() and any(is_mapped(x) for x in tensors):
        return OF_EXAMPLES
    if any(is_dtensor(x) for x in tensors):
        return "DTensor      these are the shapes of whole tensors; a rank computes the part that it has\n"
    return ""


def needed_on_gpu(where: str, given: dict[str, Any]) -> str:
    """A line about what calls with tensors on the CPU may leave out, and those of the target that is explained not."""
    if where.partition(":")[0] in ("cpu", "auto"): return ""
    missing = [(name, calls.longest(begins, LOOK)) for name, begins in (
        ("max_seqlen_q", given["cu_seqlens_q"]), ("max_seqlen_kv", given["cu_seqlens_kv"]))
        if isinstance(begins, Tensor) and given[name] is None]
    if not missing: return ""
    words = ", ".join(f"{name}={rows}" for name, rows in missing)
    return (f"lengths      on a GPU {listed([name for name, _ in missing])} must be given, as looking for it "
            f"would wait for the GPU. Give {words}.\n")


def is_mapped(x: Tensor) -> bool:
    """Whether torch.func.vmap maps over it, perhaps inside of another transform."""
    while is_wrapped(x):
        if is_batched(x): return True
        x = unwrapped(x)
    return False


def said_and_meant(q: Any, k: Any, options: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """The names that a call uses for arguments of attention, and its options by those."""
    if "gradients" in options:  # of froghopper.jax.explain
        raise InvalidType("explain() of froghopper.torch has no argument gradients. It shows the backward pass where a "
                          "tensor requires a gradient.")
    known = DEFAULTS.keys()
    check_own_words("explain", "torch", options, known, ("target",))
    return names_said("attention", "torch", options, known), translated("attention", "torch", options, known, (q, k))


def as_cast(*given: Tensor) -> list[Tensor]:
    """q, k and v, under autocast as a call casts them: of their types and shapes, without their numbers."""
    device = given[0].device.type
    if device not in DEVICES or not torch.is_autocast_enabled(device) or any(x.dtype in FLOAT8 for x in given[:2]):
        return list(given)
    made = []
    for x in given:
        one = torch.empty((), dtype=x.dtype, device=x.device)
        dtype = autocast(one, one, one)[0].dtype
        made.append(x if x.dtype == dtype else recorded_as(x, one.to(dtype).expand(x.shape)))
    return made


def without_memory(x: Any) -> Any:
    """A tensor that attention checks and does not compute; what is no tensor as it is."""
    if isinstance(x, (tuple, list)): return type(x)(without_memory(each) for each in x)
    if not isinstance(x, Tensor) or x.is_meta or not calls.is_dense(x): return x
    made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
    return recorded_as(x, made)


def recorded_as(x: Tensor, made: Tensor) -> Tensor:
    """Requires a gradient where x does. PyTorch lets no tensor start to under torch.func."""
    return made if transforms_active() else made.requires_grad_(x.requires_grad)


def problem_of(q: Tensor, k: Tensor, v: Tensor, given: dict[str, Any], backward: bool) -> _c.Problem:
    if given["block_table"] is not None: return problem_of_pages(q, k, v, given)
    begins = [given["cu_seqlens_q"], given["cu_seqlens_kv"]]
    longest_q, longest_kv = (calls.longest(begin, bound_of(name, given[name]))
                             for name, begin in zip(("max_seqlen_q", "max_seqlen_kv"), begins))
    left, right = window_of(given["window"])
    options = calls.Options(longest_q, longest_kv, given["causal"], left, right, given["softcap"] or 0.0,
                            given["scale"], given["align"] == "top_left", decided(given["deterministic"]),
                            given["max_sms"], given["attention_chunk"], given["invariant"])
    inputs = calls.Inputs(q, k, v, given["sink"], begins[0], begins[1], given["seqused_q"], given["seqused_kv"],
                          given["alibi_slopes"])
    types = None
    if k.dtype in FLOAT8 or q.dtype in FLOAT8:
        scales = (*(scale_tensor(name, given[name], q) for name in SCALES), given["mean_k"],
                  given["mean_v"])
        types = check_scaled(inputs, scales, options, given["out_dtype"])[1]
    else:
        calls.check(inputs, options)
        if given["out"] is not None: calls.check_like("out", given["out"], q, calls.shapes_of(q.shape, v.shape)[0])
    found: _c.Problem = calls.problem_of(inputs, options, backward, types, merges=given["accumulate"] is not None,
                                         max_logit=bool(given["return_max_logit"]), gate=given["gate"] is not None)
    return found


def problem_of_pages(q: Tensor, k: Tensor, v: Tensor, given: dict[str, Any]) -> _c.Problem:
    scales = {name: scale_tensor(name, given[name], q) for name in SCALES}
    sides = pages.Sides(**{name: (given | scales)[name] for name in pages.Sides._fields})
    options = pages.options_of(**{name: given[name] for name in OF_PAGES})
    paged = pages.lengths_of(q, k, v, sides, options)
    return pages.problem_of(q, k, v, sides, options, paged, pages.types_of(q, k, v, sides, options, paged)[1])
