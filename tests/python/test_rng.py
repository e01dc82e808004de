"""The state of random number generators: saved, restored, of devices too, and without torch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import penstock
import pytest
import torch


def draw() -> list[float]:
    return [random.gauss(0, 1), float(np.random.normal()), torch.randn(()).item()]


def test_generators_go_on_where_they_were(tmp_path: Path) -> None:
    draw()
    penstock.save(penstock.rng_state(), tmp_path / "rng.pt")
    expected = [draw() for _ in range(3)]
    penstock.set_rng_state(penstock.load(tmp_path / "rng.pt"))
    assert [draw() for _ in range(3)] == expected


def test_an_object_takes_part_in_states(tmp_path: Path) -> None:
    rng = penstock.Rng()
    state = rng.state_dict()
    expected = draw()
    rng.load_state_dict(state)
    assert draw() == expected


class FakeDevices:
    """Two devices of a kind, each with a state of one number."""

    def __init__(self, count: int) -> None:
        self.states = [torch.tensor([number]) for number in range(count)]

    def is_available(self) -> bool:
        return len(self.states) > 0

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return len(self.states)

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return list(self.states)

    def set_rng_state(self, state: torch.Tensor, number: int) -> None:
        self.states[number] = state


def test_every_device_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "xpu", FakeDevices(2))
    state = penstock.rng_state()
    assert [each.item() for each in state["devices"]["xpu"]] == [0, 1]
    fewer: Any = FakeDevices(1)
    fewer.states[0] = torch.tensor([9])
    monkeypatch.setattr(torch, "xpu", fewer)
    penstock.set_rng_state(state)
    assert [each.item() for each in fewer.states] == [0]
    monkeypatch.setattr(torch, "xpu", FakeDevices(0))
    penstock.set_rng_state(state)


def test_libraries_that_nobody_imported_are_left_alone() -> None:
    script = """
    import sys, penstock
    print(sorted(penstock.rng_state()), "torch" in sys.modules)
    state = penstock.rng_state()
    import random
    first = random.random()
    penstock.set_rng_state(state)
    print(random.random() == first)
    """
    lines = helpers.run_python(script).stdout.splitlines()
    assert lines[0] in ("['numpy', 'python'] False", "['python'] False")
    assert lines[1] == "True"


@pytest.mark.parametrize("state", [None, {}, [1]])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(penstock.ArgumentError, match="expected what rng_state"):
        penstock.set_rng_state(state)
