# SPDX-License-Identifier: Apache-2.0
"""What the library logs (plans that are made, kernels that are compiled and how long that took) as records of the
logger "froghopper" of the module logging, level INFO. FROGHOPPER_LOG=1 prints them to stderr.

Every line is heard from the first call on, since a program may set up logging later; what no logger wants ends here.
There is a line for a plan that is made and for a kernel that is compiled, none for a call whose plan is known.
"""
import ctypes
import logging
import os
from typing import Any

VARIABLE = "FROGHOPPER_LOG"
logger = logging.getLogger("froghopper")
FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p)


def record(line: bytes, _: Any) -> None: logger.info("%s", line.decode(errors="replace"))


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
