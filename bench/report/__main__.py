# SPDX-License-Identifier: Apache-2.0
"""Runs the package from its folder: python3 bench/report."""
import pathlib
import sys

sys.path[0] = str(pathlib.Path(__file__).resolve().parent.parent)
from report import pages  # noqa: E402  after the package can be found

sys.exit(pages.main())
