# SPDX-License-Identifier: Apache-2.0
"""What froghopper raises: one class for every fh_status, each also a Python exception of the fitting kind.

The text is the library's own sentence: the argument, its value, the rule and a way out.
"""
import functools
import re
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from froghopper._c import Status
from froghopper._library_words import in_python, of_numpy_alone, of_one_o

FRAMEWORKS = ("torch", "jax")
F = TypeVar("F", bound=Callable[..., Any])


class Error(Exception):
    """Everything that froghopper raises on purpose."""


class InvalidProblem(Error, ValueError):
    """The shapes and options contradict each other."""


class InvalidTensor(Error, ValueError):
    """A stride, an alignment, a length or the memory of an array does not fit."""


class InvalidType(Error, TypeError):
    """An argument is of a kind that cannot be used there."""


class Unsupported(Error, NotImplementedError):
    """The problem makes sense, but nothing on the chosen target computes it."""


class NoDevice(Error, RuntimeError):
    """No Hopper GPU, no driver, or one that is too old."""


class CompileFailed(Error, RuntimeError):
    """A kernel could not be compiled or loaded."""


class LaunchFailed(Error, RuntimeError):
    """The driver refused the launch."""


class Internal(Error, RuntimeError):
    """Out of host memory or threads, or a bug in the library."""


class LibraryNotFound(Error, ImportError):
    """The shared library is not there, or is another version's."""


OF_CALLS = re.compile(r"^(fh_\w+: )+")
_warned: dict[tuple[str, int], dict[Any, Any]] = {}  # what has been told of lines of traced code
BY_STATUS: dict[int, type[Error]] = {
    Status.INVALID_PROBLEM: InvalidProblem,
    Status.UNSUPPORTED: Unsupported,
    Status.INVALID_TENSOR: InvalidTensor,
    Status.NO_DEVICE: NoDevice,
    Status.COMPILE_FAILED: CompileFailed,
    Status.LAUNCH_FAILED: LaunchFailed,
    Status.INTERNAL: Internal,
}


def error_of(status: int, sentence: str, of_line: bool = False) -> BaseException:
    """The exception for a status that is not FH_OK. sentence: fh_last_error's. It begins with the name of a C function,
    or of two where one library has called the other; these are left out. of_line: it has the words of a problem line,
    where others get those of arguments here."""
    if status == Status.INTERRUPTED: return KeyboardInterrupt()
    plain = OF_CALLS.sub("", sentence)
    return BY_STATUS.get(status, Internal)(plain if of_line else in_python(plain))


def about_o(error: InvalidTensor, held: bool, q: Sequence[int]) -> InvalidTensor:
    """An error of the library that may speak of o, which is out, or where held what accumulate holds; or of the ends of
    packed sequences, where another axis of q has so many rows. q: its shape."""
    text = of_one_o(str(error), held)
    found = re.match(r"cu_seqlens_q must be at most (\d+), .* is (\d+)\.", text)
    if found and len(q) == 3 and q[0] == int(found[1]) and q[1] >= int(found[2]):
        text += " Or, if q is [heads, total, dim], use q.swapaxes(0, 1), and k and v likewise."
    error.args = (text,)
    return error


def of_numpy(function: F) -> F:
    """A function on arrays of NumPy, whose errors say what to do with those alone."""
    @functools.wraps(function)
    def call(*given: Any, **words: Any) -> Any:
        try: return function(*given, **words)
        except Error as error:
            error.args = (of_numpy_alone(str(error)),)
            raise
    made: Any = call
    made.__kwdefaults__ = function.__kwdefaults__  # which others ask for
    return cast(F, made)


def warn_user(text: str, where: tuple[str, int] | None = None) -> None:
    """A UserWarning at the line that called the package. Frameworks may be between its functions, and around them.
    where: file and line of code that is traced, not run."""
    if where is not None:
        warnings.warn_explicit(text, UserWarning, *where, registry=_warned.setdefault(where, {}))
        return
    modules: list[str] = []
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        modules.append(frame.f_globals.get("__name__", "").partition(".")[0])
        frame = frame.f_back
    level = len(modules) - modules[::-1].index(__package__)  # of the frame outside the outermost one of the package
    while level < len(modules) and modules[level] in FRAMEWORKS: level += 1
    warnings.warn(text, UserWarning, stacklevel=level + 1)
