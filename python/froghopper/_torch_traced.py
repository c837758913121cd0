# SPDX-License-Identifier: Apache-2.0
"""Code that torch.compile traces: which function of the package it is in, and which line of the user called that. The
operators' kernels for tensors without memory run then, and PyTorch keeps the stack of what it traces. They ask where
something is wrong, or may be; a stack that PyTorch does not show is empty.
"""
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from froghopper._errors import Error

HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
Told = Callable[[Error, tuple[Any, Any, Any]], Error]
told_by: dict[str, Told] = {}  # by function: its words for an error of q, k and v, [batch, seq, heads, dim]
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
    if True not in ours or ours[0]: return Place((), None)
    first = ours.index(True)
    user = stack[first - 1]
    return Place(tuple(frame.name for frame, own in zip(stack, ours) if own), (user.filename, user.lineno or 0))


def line_of_axes() -> tuple[str, int] | None:
    """The line of the user that a warning of exchanged axes points at; None where nothing is traced, or by a function
    whose tensors have heads first."""
    entrances, where = place()
    return None if any(name in HEADS_FIRST for name in entrances) else where


def in_words_of_caller(error: Error, tensors: tuple[Any, Any, Any]) -> Error:
    """The error as the function says it that the traced code has called."""
    names = place().entrances
    return next((told_by[name](error, tensors) for name in names if name in told_by), error)
