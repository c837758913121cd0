# SPDX-License-Identifier: Apache-2.0
"""The figures that context_parallel.probe makes of what it measures, without ranks."""
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from froghopper import _torch_cp_probe as probing  # noqa: E402


@pytest.mark.parametrize("few, many", [(3e-3, 2e-3), (2e-3, 2e-3)])
def test_a_busy_machine_has_no_rate_without_bound(few, many):
    """Its latency comes out longer than a transfer; a quiet one is measured once."""
    def measured(few, many):
        asked, sizes = object.__new__(probing.Probe), []
        asked.size, asked.found, asked.ranks, asked.rank, asked.per_host = probing.SIZES["cpu"], {}, 2, 0, 2
        asked.of_groups = lambda link, peers, size: sizes.append(size) or (few if size == probing.FEW else many)
        asked.slowdown = lambda *_: 1.0
        asked.transfers(None, "", 1e-3)
        return asked.found, len(sizes), asked.size.many
    found, calls, size = measured(few, many)
    assert calls == 3 * probing.TRIES
    for name in ("bandwidth", "gather_bandwidth"): assert found[name] <= 2.1 * size / many
    found, calls, size = measured(1e-5, many)
    assert calls == 3 and abs(found["bandwidth"] * (many - 1e-5) / size - 1) < 1e-9
