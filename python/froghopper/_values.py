# SPDX-License-Identifier: Apache-2.0
"""Options as a user writes them -> plain values of Python, or what is wrong with them: InvalidType where a value is of
another kind, InvalidProblem where nothing could be computed with it. Both name the argument.

Plans and calls are kept under keys that options are part of. These must be plain values, since 2, 2.0 and True are the
same key; a kind that is refused must not be found under that of one that is not.
"""
import ctypes
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NoReturn

from froghopper import _c
from froghopper._errors import InvalidProblem, InvalidTensor, InvalidType

Window = tuple[int | None, int | None]
Align = Literal["bottom_right", "top_left"]

LARGEST_SCALE = 2.0**127  # of the library
ALIGNS = {"bottom_right": _c.Align.BOTTOM_RIGHT, "top_left": _c.Align.TOP_LEFT}


def shown(value: Any) -> str:
    """A value in one line of a message, cut where it is long."""
    if is_traced(value): return "an array that JAX traces"
    try: line = " ".join(repr(value).split())
    except Exception: return type_of(value)  # a number of more digits than Python prints, or a class's own
    return line if len(line) <= 100 else line[:97] + "..."


def type_of(value: Any) -> str:
    """What a value is, where its type is the wrong one: "a list", "an int", "None"."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiouAEIOU' or name.startswith('nd') else 'a'} {name}"


def counted(count: int, what: str) -> str:
    """1 row, 2 rows."""
    many = f"{what[:-1]}ies" if what.endswith("ry") else f"{what}s"
    return f"{count} {what if count == 1 else many}"


def from_0_to(most: int) -> str:
    """The numbers from 0 to most, of which there is at least one."""
    return f"0 to {most}" if most else "0"


def listed(words: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else "".join(words)


def wrong_shape(name: str, found: Sequence[int], wanted: Sequence[int]) -> NoReturn:
    raise InvalidTensor(f"{name} must have the shape {list(wanted)}, but has {list(found)}. "
                        f"{way_to_shape(name, found, wanted)}.")


def way_to_shape(name: str, found: Sequence[int], wanted: Sequence[int]) -> str:
    """What makes an array of the shape that is wanted, in PyTorch, NumPy and JAX alike. Axes in another order are
    exchanged: a reshape would put numbers into other rows without a word."""
    count, needed = math.prod(found), math.prod(wanted)
    turned = [at for at, extent in enumerate(found) if len(found) == len(wanted) and extent != wanted[at]]
    exchanged = len(turned) == 2 and sorted(found) == sorted(wanted)
    of_heads = list(found) == [*wanted[:-1]] or list(found) == [*wanted[:-1], 1]
    if name == "gate" and of_heads and count * wanted[-1] == needed:
        one = "gate" if len(found) == len(wanted) else "gate[..., None]"
        return (f"If each head has one, use {one}.expand({', '.join(map(str, wanted))}) in PyTorch, "
                f"numpy.repeat({one}, {wanted[-1]}, -1) in NumPy, and so jax.numpy.repeat in JAX")
    if is_result(name) and not exchanged: return new_result(name, list(wanted))
    if count != needed: return f"Give it {counted(needed, 'number')}, not {count}"
    real, asked = [n for n in found if n != 1], [n for n in wanted if n != 1]
    if (real == asked or sorted(real) != sorted(asked)) and not is_result(name):
        return f"Use {name}.reshape({', '.join(map(str, wanted)) or '()'})"
    return f"Use {name}.swapaxes({turned[0]}, {turned[1]})" if exchanged else "Put its axes into that order"


RESULTS = ("out", "q_out", "output", "output_lse")  # where results go: a copy would be written in their place
HELD = ("k_cache", "v_cache", "key_cache", "value_cache")  # written, and read later


def is_result(name: str) -> bool:
    """Also "out[0]"."""
    return name.partition("[")[0] in RESULTS


def new_result(name: str, shape: Sequence[int] | str = "", dtype: str = "") -> str:
    """What to give in place of one that does not fit, in PyTorch and in NumPy."""
    shape, dtype = str(shape) or f"{name}.shape", dtype or f"{name}.dtype"
    if name.startswith("out["): return f"Use numpy.zeros({shape}, {dtype})"  # of NumPy alone
    return (f"Use torch.empty({shape}, dtype={dtype}, device={name}.device) in PyTorch, numpy.empty({shape}, {dtype}) "
            "in NumPy")


def way_to_dense(name: str) -> str:
    """What to do about strides that do not fit."""
    if is_result(name): return new_result(name)
    if name in HELD:
        return (f"Keep a copy, to which rows go then: {name} = {name}.contiguous() in PyTorch, {name} = "
                f"numpy.ascontiguousarray({name}) in NumPy")
    return f"Copy it first: {name}.contiguous() in PyTorch, numpy.ascontiguousarray({name}) in NumPy"


def how_to_give(out: str, value: Any, name: str = "") -> str:
    """What to do about a value. One that jax.jit traces is no value yet."""
    if not is_traced(value): return out
    return "Name it in static_argnames of jax.jit" + (", or multiply q by it, with scale=1" * (name == "scale"))


def is_traced(value: Any) -> bool: return type(value).__name__.endswith("Tracer")


def is_bool(value: Any) -> bool: return type(value).__name__ in ("bool", "bool_")  # Python's, NumPy's


def flag(name: str, value: Any) -> bool:
    if is_bool(value): return bool(value)
    if isinstance(value, int) and value in (0, 1): return bool(value)
    raise InvalidType(f"{name} must be True or False, but is {shown(value)}. "
                      f"{how_to_give(f'Use {name}=True or {name}=False', value)}.")


def number(name: str, value: Any) -> float:
    if is_bool(value) or not is_real(value): wrong_kind(name, value, "a number", "a float")
    try: return float(value)
    except OverflowError as error:
        raise InvalidProblem(f"{name} must fit a float, but is {shown(value)}. Give a smaller one.") from error
    except (TypeError, ValueError): wrong_kind(name, value, "a number", "a float")


ZERO_IS_NONE = ("attention_chunk", "max_sms", "sm_margin")


def whole_number(name: str, value: Any) -> int:
    if is_bool(value) or not hasattr(value, "__index__"):
        out = f"the int {int(value)}" if isinstance(value, float) and value.is_integer() else "an int"
        if value is None and name in ZERO_IS_NONE: out = f"{name}=0"
        wrong_kind(name, value, "a whole number", out)
    try: found = int(value.__index__())
    except (TypeError, ValueError, OverflowError): wrong_kind(name, value, "a whole number", "an int")
    if not -2**63 <= found < 2**63:
        raise InvalidProblem(f"{name} must have 64 bits, but is {shown(found)}. Give one from -2^63 to 2^63 - 1.")
    return found


def wrong_kind(name: str, value: Any, kind: str, out: str) -> NoReturn:
    raise InvalidType(f"{name} must be {kind}, but is {shown(value)}. {how_to_give(f'Give {out}', value, name)}.")


def is_real(value: Any) -> bool:
    """A number, or a scalar of a framework, which has no dimensions; complex ones would lose a part."""
    if isinstance(value, (int, float)): return True
    if getattr(value, "shape", ()) or getattr(getattr(value, "dtype", None), "kind", "") == "c": return False
    return hasattr(value, "__float__") and not isinstance(value, complex)


def text(name: str, value: Any, out: str) -> str:
    """A text that may go to the library. out: one that could be given."""
    if not isinstance(value, str): raise InvalidType(f"{name} must be a text, but is {shown(value)}. Use \"{out}\".")
    if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise InvalidProblem(f"{name} must be UTF-8 without zeros, but is {shown(value)}. Use \"{out}\".")
    return value


def one_of(name: str, value: Any, names: Iterable[str]) -> str:
    """One of a few names; what has another kind is not looked up, since it need not have a hash."""
    if isinstance(value, str) and value in names: return value
    raise InvalidType(f"{name} must be {' or '.join(map(repr, names))}, but is {shown(value)}. Give one of them.")


def check_align(align: str) -> None:
    if not isinstance(align, str) or align not in ALIGNS:
        error = InvalidProblem if isinstance(align, str) else InvalidType
        raise error(f"align must be {' or '.join(map(repr, ALIGNS))}, but is {shown(align)}. Use align=\"top_left\" "
                    "where the diagonal begins at the first query and key.")


def check_window(window: Window | None, causal: bool = False) -> tuple[int, int]:
    """As the library takes it. -1, which may be what None became, is shown as None."""
    if window is None: return _c.ALL, _c.ALL
    found = tuple(window) if isinstance(window, (tuple, list)) else ()
    if len(found) != 2:
        raise InvalidType("window must be (left, right), keys before and after, None or -1 for no bound, but is "
                          f"{shown(window)}. {way_to_window(window)}.")
    left, right = (_c.ALL if bound is None else whole_number(f"window[{i}]", bound) for i, bound in enumerate(found))
    if left >= _c.ALL <= right and not (causal and right > 0): return left, right
    given = tuple(None if bound == _c.ALL else bound for bound in (left, right))
    bounds = tuple(None if bound < 0 else bound for bound in (left, right))
    if min(left, right) < _c.ALL:
        counts = tuple(None if bound is None else abs(bound) for bound in given)
        raise InvalidProblem("window must be (left, right), keys before and after, None or -1 for no bound, but is "
                             f"{given}. Use window={bounds} for no bound there, or window={counts}.")
    raise InvalidProblem("window must end with 0 or None where causal is True, as a causal query attends to no later "
                         f"key, but is {given}. Use window=({bounds[0]}, 0), or causal=False.")


def way_to_window(given: Any, name: str = "window") -> str:
    """What to write in place of what is no pair, with its own numbers."""
    if isinstance(given, (tuple, list)) and len(given) == 1: given = given[0]
    if getattr(given, "shape", None) == (2,) and hasattr(given, "tolist"): return f"Use {name}=tuple({name}.tolist())"
    if is_bool(given) or not isinstance(given, int) or given >= 2**63:
        return f"Use {name}=(128, 0), or None for no window"
    if given < 0: return f"Use {name}=None for no window"
    both = f", or {name}=({given}, {given}) to both sides" * bool(given)
    return f"Use {name}=({given}, 0) for the keys before{both}"


def check_scale(scale: Any, name: str = "scale") -> float:
    """As the library takes it: in float32, where 0 is -0.0, since 0.0 means 1/sqrt(dim) there. What rounds to 0 in
    float32 is 0, as it is for every score of float32."""
    return ctypes.c_float(scale_in_range(name, scale)).value or -0.0


def scale_in_range(name: str, scale: Any) -> float:
    found = number(name, scale)
    if not 0 <= found <= LARGEST_SCALE:
        raise InvalidProblem(f"{name} must be from 0 to 2^127, but is {shown(scale)}. Use {name}=None for "
                             "1/sqrt(dim), or -q and the positive number for one below 0.")
    return found


def check_softcap(softcap: Any) -> float:
    """None is 0, for none. A cap that float32 cannot hold would be none, too, or no number."""
    if softcap is None: return 0.0
    found = number("softcap", softcap)
    narrow = ctypes.c_float(found).value
    if not 0 <= narrow < math.inf or (narrow == 0) != (found == 0):
        raise InvalidProblem("softcap must be finite and positive, and more than 0 in float32 too, but is "
                             f"{shown(softcap)}. Use 0 or None for none.")
    return narrow


def plain_scale(name: str, scale: Any) -> float | None:
    return None if scale is None else check_scale(scale, name)


def plain_align(name: str, align: Any) -> str:
    check_align(align)
    return str(align)


KINDS: dict[str, Callable[[str, Any], Any]] = {
    "causal": flag, "window": lambda name, window: check_window(window), "scale": plain_scale, "align": plain_align,
    "softcap": lambda name, softcap: check_softcap(softcap), "max_sms": whole_number, "attention_chunk": whole_number,
    "invariant": flag, "deterministic": flag, "accumulate": flag,
}


def plain(**options: Any) -> dict[str, Any]:
    """Options of describe as plain values."""
    return {name: KINDS[name](name, value) for name, value in options.items()}


# Of the types of AMD: 0x40 is 2 in float8_e4m3fn and 1 in float8_e4m3fnuz.
OTHER_NUMBERS = "the same bytes are other numbers in float8_e4m3fn and float8_e5m2"


def way_to_all(found: str, way: str, view: str) -> str:
    """What to do about q, k and v that all have a type which nothing computes; way and view: of q. As way_to_type."""
    if found in ("int8", "uint8"):
        return (f"If they hold the bytes of an 8-bit type, use {view} and so on, with scale_q, scale_k and scale_v; "
                f"else {way}")
    if found.endswith("fnuz"): return f"Use {way}, each times its scale. Do not view them: {OTHER_NUMBERS}"
    return f"Use {way}" + ", each times its scale" * found.startswith("float8")


def way_to_type(name: str, found: str, way: str, view: str) -> str:
    """What to do about a type that is not that of q. Whole numbers of 8 bits are bytes of a cache of float8 in most
    cases, and a cast would take each byte for a number."""
    if found.endswith("fnuz"): return f"Use {way}, times its scale. Do not view it: {OTHER_NUMBERS}"
    if found not in ("int8", "uint8") or not name.startswith(("k", "v")): return f"Use {way}"
    return f"If it holds the bytes of an 8-bit type, use {view}, with scale_k and scale_v; else {way}"


# What the types are called in a line of a problem.
SHORT = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "f16": "float16", "bf16": "bfloat16", "f32": "float32"}


def whole_name(dtype: Any) -> Any:
    """A name of a type as frameworks have it; else as it is."""
    return SHORT.get(dtype, dtype) if isinstance(dtype, str) else dtype


def is_of_padding(name: str, shape: Sequence[int]) -> bool:
    """Whether what is given for lengths looks like a mask, with a number for each row."""
    return name.startswith(("seqused", "cache_seqlens")) and len(shape) == 2 and 1 not in shape


def check_not_8_bit(dtype: str, given: dict[str, Any]) -> None:
    """Of what goes with 8-bit k and v alone, where k has another type: nothing is given."""
    for name, value in given.items():
        if value is None: continue
        if dtype in ("int8", "uint8"):
            raise InvalidType(f"k and v must have an 8-bit type where {name} is given, but are {dtype}. If they hold "
                              "the bytes of such a type, use k.view(torch.float8_e4m3fn), or what views it in NumPy "
                              "or JAX.")
        if dtype.startswith("float8"):
            way = "Convert them to one of these."
            if dtype.endswith("fnuz"):
                way = f"Multiply them by their scales in float16 or bfloat16, and give no scales: {OTHER_NUMBERS}."
            raise InvalidType(f"k and v must be float8_e4m3fn or float8_e5m2 where {name} is given, but are {dtype}. "
                              f"{way}")
        raise InvalidType(f"{name} must be None where k is {dtype}, as it goes with 8-bit k and v, but is given. "
                          "Leave it out.")
