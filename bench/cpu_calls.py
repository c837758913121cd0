# SPDX-License-Identifier: Apache-2.0
"""What bench/cpu_vs_torch.py times: {(impl, plan): call} for the forward or the backward pass of a cell's problem."""
import contenders
import gradients


def ours(cell, library):
    if not cell.problem.is_backward(): return contenders.froghopper(cell, library, "cpu")
    return backward_of(gradients.froghopper_layer("froghopper", cell.problem, cell, library, "cpu"))


def pytorchs(cell):
    if not cell.problem.is_backward(): return contenders.rival("torch")(cell)
    return backward_of(gradients.rival("torch")(cell))


def backward_of(layers):
    """A backward pass reads what a forward pass left, so that has run once."""
    for layer in layers.values(): layer.forward()
    return {key: layer.backward for key, layer in layers.items()}
