# SPDX-License-Identifier: Apache-2.0
"""What the library logs (plans that are made, kernels that are compiled and how long that took) as records of the
logger "froghopper" of the module logging, level INFO. FROGHOPPER_LOG=1 prints them to stderr.

Every line is heard from the first call on, since a program may set up logging later; what no logger wants ends here.
There is a line for a plan that is made and for a kernel that is compiled, none for a call whose plan is known.
"""
import contextlib
import ctypes
import logging
import os
import threading
from collections.abc import Iterator
from typing import Any

VARIABLE = "FROGHOPPER_LOG"
logger = logging.getLogger("froghopper")
FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p)


_quiet = threading.local()  # about a plan that this thread has made before


def record(line: bytes, _: Any) -> None:
    if line.startswith(b"plan: ") and getattr(_quiet, "again", False): return
    logger.info("%s", line.decode(errors="replace"))


@contextlib.contextmanager
def plan_again() -> Iterator[None]:
    """A plan that is made inside has been logged: another library keeps one of its own for the same problem."""
    _quiet.again = True
    try: yield
    finally: _quiet.again = False


_record = FUNCTION(record)  # lives as long as the library may call it


def listen(calls: Any) -> None:
    """From now on lines of this library are records."""
    if os.environ.get(VARIABLE, "0") not in ("", "0"):
        logger.setLevel(logging.INFO)
        if not logger.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("froghopper: %(message)s"))
            logger.addHandler(handler)
    calls.fh_set_log(_record, None)
