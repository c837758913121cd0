# SPDX-License-Identifier: Apache-2.0
"""The tests import the package of this source tree where it is not installed."""
import importlib.util
import pathlib
import sys

PYTHON = pathlib.Path(__file__).resolve().parent.parent
if importlib.util.find_spec("froghopper") is None: sys.path.insert(0, str(PYTHON))


def pytest_addoption(parser):
    parser.addoption("--fa3-grid", choices=("small", "full"), default="small",
                     help="on a Hopper GPU: a sample of FlashAttention-3's grid, or all cases that exist here")
    parser.addoption("--fa3-minutes", type=float, default=0,
                     help="skip cases that have not begun after so many minutes")
