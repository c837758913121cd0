# SPDX-License-Identifier: Apache-2.0
"""Finds and loads the shared library: $FROGHOPPER_LIBRARY, else the package's own, else the build of a source tree."""
import ctypes
import os
import pathlib
import re

from froghopper import _c
from froghopper._errors import LibraryNotFound, error_of
from froghopper._log import listen

VARIABLE, NAME = "FROGHOPPER_LIBRARY", "libfroghopper.so"
HERE = pathlib.Path(__file__).resolve().parent


class Library:
    """One shared library. calls: the functions of froghopper.h, called by their names, their types set."""

    def __init__(self, path: str | os.PathLike[str]):
        """path: of libfroghopper.so. LibraryNotFound where it cannot be loaded or its structs are of other sizes."""
        self.path = os.fspath(path)
        try: self.calls = ctypes.CDLL(self.path)
        except OSError as error: raise LibraryNotFound(f"{self.path} cannot be loaded: {error}") from error
        for name, (result, arguments) in _c.FUNCTIONS.items():
            if function := getattr(self.calls, name, None):  # an older library has fewer
                function.restype, function.argtypes = result, arguments
        if (there := self.size_of_problem()) != (here := ctypes.sizeof(_c.Problem)):
            raise LibraryNotFound(f"{self.path}: fh_problem has {there} bytes there and {here} in this package; the "
                                  "two are of different versions. Use the library that came with it.")

    def size_of_problem(self) -> int:
        """What the library takes for sizeof(fh_problem): the first byte that it does not know of a longer struct."""
        longer = (ctypes.c_ubyte * 4096)(*[255] * 4096)
        ctypes.c_size_t.from_buffer(longer).value = len(longer)
        self.calls.fh_problem_print(longer, None, 0, None)
        return first_unknown_byte(self.last_error())

    def problem(self, line: str) -> _c.Problem:
        """A line of text as the problem. InvalidProblem names the word that it does not understand."""
        problem = _c.Problem(size=ctypes.sizeof(_c.Problem))
        status = self.calls.fh_problem_parse(line.encode(), ctypes.byref(problem))
        if status: raise error_of(status, self.last_error(), of_line=True)
        return problem

    def line(self, problem: _c.Problem) -> str:
        """The problem as one line of text: "fwd bf16 b2 hq16 hkv4 sq4096 skv4096 d128 causal"."""
        text = ctypes.create_string_buffer(512)
        self.check(self.calls.fh_problem_print(ctypes.byref(problem), ctypes.addressof(text), len(text), None))
        return text.value.decode()

    def version(self) -> str:
        return str(self.calls.fh_version().decode())

    def last_error(self) -> str:
        """Of this thread."""
        return str(self.calls.fh_last_error().decode())

    def check(self, status: int) -> None:
        """Raises what went wrong in the call of this thread that returned status."""
        if status: raise error_of(status, self.last_error())


def first_unknown_byte(message: str) -> int:
    """Of a struct that is longer than the library's, as its message names it; 0 where it names none."""
    found = re.search(r"field at byte (\d+) ", message)
    return int(found[1]) if found else 0


def places() -> list[pathlib.Path]:
    """Where the library may be, the first that exists being it."""
    if given := os.environ.get(VARIABLE): return [pathlib.Path(given)]
    found, source = [HERE / "lib" / NAME], HERE.parent.parent
    if (source / "include/froghopper/froghopper.h").exists(): found.append(source / "build" / NAME)
    return found


def load() -> Library:
    """The library of this package. LibraryNotFound lists where it was looked for."""
    looked = places()
    path = next((place for place in looked if place.exists()), None)
    if path is None:
        raise LibraryNotFound(f"{NAME} is not here; looked for {', '.join(map(str, looked))}. Install the wheel, build "
                              f"the source tree with scripts/setup, or set {VARIABLE} to its path.")
    loaded = Library(path)
    if loaded.version() != _c.VERSION:
        raise LibraryNotFound(f"{path} is version {loaded.version()} and this package is {_c.VERSION}. Use the library "
                              f"that came with it; {VARIABLE} names another one.")
    listen(loaded.calls)
    loaded.calls.fh_watch_interrupts(1)  # Python's own handler of SIGINT waits until a call has returned
    return loaded


_loaded: Library | None = None


def library() -> Library:
    """The same for all who ask; loaded when the first one does."""
    global _loaded
    if _loaded is None: _loaded = load()
    return _loaded
