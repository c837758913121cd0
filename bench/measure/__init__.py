# SPDX-License-Identifier: Apache-2.0
"""How speed, errors, energy and the host's share are measured; the scripts in bench/ are the command lines of this.

contenders.py and gradients.py say who takes part, turns.py times them in turns, work.py counts FLOPs and bytes. All but
command.py, work.py, froghopper_ctypes.py and fp8_weights.py need PyTorch, so that the command lines import them late.
"""
