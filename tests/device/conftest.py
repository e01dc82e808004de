"""Every test here runs on the simulated accelerator: torch's device "sim", whose memory the host can't touch.

A folder, and so a process, of its own: torch knows one more accelerator from then on.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(_TESTS / "sim" / "torch"), str(_TESTS / "python")]

import sim_device  # noqa: E402


@pytest.fixture(autouse=True)
def sim() -> Iterator[sim_device.Simulator]:
    """The simulator as at its start. At the end no rule was broken and no memory of a device is left."""
    simulator = sim_device.start()
    simulator.reset()
    yield simulator
    violations = simulator.violations()
    simulator.reset()
    gc.collect()
    simulator.empty_cache()
    assert violations == []
    assert simulator.leaks(sim_device.DEVICE_MEMORY) == []
