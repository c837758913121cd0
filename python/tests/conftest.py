# SPDX-License-Identifier: Apache-2.0
"""The tests import the package of this source tree where it is not installed."""
import importlib.util
import pathlib
import sys

PYTHON = pathlib.Path(__file__).resolve().parent.parent
if importlib.util.find_spec("froghopper") is None: sys.path.insert(0, str(PYTHON))
