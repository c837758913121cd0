# SPDX-License-Identifier: Apache-2.0
"""Code that torch.compile traces: which function of the package it is in, and which line of the user called that.
PyTorch keeps the stack of what it traces; one that it does not show is empty.

An operator that is traced gets the text of caller() as its last option, and its errors are then said in the words of
the function that the user called, when it is traced and when it runs, long after that function has returned.
"""
import os
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.fx.experimental.symbolic_shapes

from froghopper import _words
from froghopper._errors import Error, InvalidType
from froghopper._words import named_by

HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
Told = Callable[[Error, tuple[Any, Any, Any]], Error]
told_by: dict[str, Told] = {}  # by function: its words for an error of q, k and v, [batch, seq, heads, dim]
_said: dict[tuple[Any, ...], str] = {}  # by frames: the names that a function of the package was given
KEPT = 1024  # of these
HEADS_FIRST = ("scaled_dot_product_attention", "attention_forward")


class Place(NamedTuple):
    """Where a call of the package stands. entrances: functions of the package that are at work, the outermost first;
    where: the user's file and line."""
    entrances: tuple[str, ...]
    where: tuple[str, int] | None


def place() -> Place:
    """Of what is being traced; empty where nothing is."""
    context: Any = getattr(getattr(torch, "_guards", None), "TracingContext", None)
    try: stack = list(context.extract_stack())
    except Exception: return Place((), None)  # a PyTorch that has no such thing, or something else under its name
    ours = [os.path.abspath(frame.filename).startswith(HERE) for frame in stack]
    if True not in ours: return Place((), None)
    entrances = tuple(frame.name for frame, own in zip(stack, ours) if own)
    if ours[0]: return Place(entrances, line_outside())  # what is compiled is a function of the package itself
    user = stack[ours.index(True) - 1]
    return Place(entrances, (user.filename, user.lineno or 0))


def line_outside() -> tuple[str, int] | None:
    """Where the call stands that made PyTorch trace: the first line outside of it and of the package."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("torch", __package__):
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def line_of_axes() -> tuple[str, int] | None:
    """The line of the user that a warning of exchanged axes points at; None where nothing is traced, or by a function
    whose tensors have heads first."""
    entrances, where = place()
    return None if any(name in HEADS_FIRST for name in entrances) else where


def frames() -> list[tuple[str, int | None, str]]:
    """Of what is being traced."""
    context: Any = getattr(getattr(torch, "_guards", None), "TracingContext", None)
    try: return [(frame.filename, frame.lineno, frame.name) for frame in context.extract_stack()]
    except Exception: return []


def reached(path: list[tuple[str, int | None, str]], at: int) -> tuple[Any, ...]:
    """A frame of the path: the lines that led to it, and its function."""
    return *path[:at], path[at][2]


def say_now(names: str) -> None:
    """The traced function calls its arguments by other names for what it calls further on: "of there=of here ..."."""
    path = frames()
    if len(_said) >= KEPT: _said.clear()
    if len(path) > 1: _said[reached(path, len(path) - 2)] = names  # the last frame is that of tell


def caller_now() -> str:
    """Which functions of the package are at work in traced code, the innermost first, each by its name or the names
    that it has said. A constant of the graph."""
    path, found = frames(), []
    for at in reversed(range(len(path))):
        names = _said.get(reached(path, at))
        if names is not None: found.append(names)
        elif path[at][2] in told_by and path[at][0].startswith(HERE): found.append(path[at][2])
    return ", ".join(found)


# Whether a comparison is known to hold, as PyTorch 2.8 and newer say it; without it operators refuse what is not known.
holds: Callable[[Any], bool] | None = getattr(torch.fx.experimental.symbolic_shapes, "guard_or_false", None)
UNKNOWN = {"scale": "Multiply q by it, and give scale=1", "softcap": "Give a number, or compile without fullgraph=True"}


def check_known(**numbers: float | None) -> None:
    """Of options that an operator takes as numbers: torch.compile has them where it traces, unless they are read from a
    tensor in traced code."""
    if holds is None: return
    for name, value in numbers.items():
        if type(value) is not float or holds(value >= 0) or holds(value < 0) or holds(value != value): continue
        raise InvalidType(f"{name} must be known where torch.compile traces the call, but is read from a tensor "
                          f"there. {UNKNOWN[name]}.")


# torch.compile calls these while it traces, and takes what they return for a constant.
constant: Any = torch.compiler.assume_constant_result  # has no types
say: Callable[[str], None] = constant(say_now)
caller: Callable[[], str] = constant(caller_now)


def in_words(said_by: str, error: Error, tensors: tuple[Any, Any, Any]) -> Error:
    """The error in the words of the functions that a text of caller() tells of."""
    for part in said_by.split(", ") if said_by else ():
        if part in told_by: error = told_by[part](error, tensors)
        else: error = named_by(dict(pair.split("=") for pair in part.split()), error)
    return error


def spoken(op: Any, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of an operator, which gets no caller; its errors name arguments as that one does."""
    names = [argument.name for argument in op._schema.arguments]
    at, of_tensors = names.index("caller"), [names.index(name) for name in "qkv"]

    def run(*arguments: Any) -> Any:
        try: return kernel(*arguments[:at], *arguments[at + 1:])
        except Error as error:
            q, k, v = (arguments[place] for place in of_tensors)
            raise in_words(arguments[at], error, (q, k, v)) from None
    return run


def tell(names: dict[str, str]) -> None:
    """say, where code is traced."""
    if names and torch.compiler.is_compiling(): say(" ".join(f"{own}={word}" for own, word in names.items()))


_words.tell = tell
