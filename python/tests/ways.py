# SPDX-License-Identifier: Apache-2.0
"""What a message says to use, as code: the way out is followed to the letter."""
import re

import numpy as np
import pytest
import torch

import froghopper


def said(call):
    with pytest.raises(froghopper.Error) as told: call()
    return str(told.value)


def way(text, **given):
    """What the message says to use, as Python has it."""
    found = re.search(r"[Uu]se (.+?)(?:, with | and | as |, and |, if |; else |, which |, views|\.$|\. )", text + " ")
    assert found, text
    return eval(found[1], {"torch": torch, "numpy": np, **given})
