"""How statistics and progress read."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

import penstock
import pytest
import torch
from penstock import _progress

MIB = 2**18


def test_stats_print_as_three_lines(path: Path) -> None:
    saved = penstock.save({"x": torch.zeros(3 * MIB), "y": torch.zeros(1)}, path)
    stats = penstock.Stats()
    penstock.load(path, stats=stats, cache="direct")
    for each in (saved, stats):
        amount, way, reason = str(each).splitlines()
        assert re.fullmatch(r"2 tensors, 3\.0 MiB in \d+\.\d{3} s, \d+\.\d\d GiB/s", amount)
        assert way.startswith(("direct, ", "buffered, "))
        assert reason == each["reason"]
        assert repr(each) == str(each)


def test_stats_of_large_loads_are_in_gib_and_need_no_time() -> None:
    stats = penstock.Stats(
        bytes=3 * 2**30, seconds=2.0, tensors=1, path="mapped", landing="mapped", backend="inline", reason="cached"
    )
    assert str(stats) == "1 tensor, 3.00 GiB in 2.000 s, 1.50 GiB/s\nmapped, inline\ncached"
    stats["seconds"] = 0.0
    assert str(stats).splitlines()[0] == "1 tensor, 3.00 GiB"


def test_stats_stay_a_dict() -> None:
    stats = penstock.Stats()
    assert repr(stats) == "Stats({})"
    stats.update(bytes=3, method="direct")
    assert (stats["bytes"], stats.bytes, dict(stats)) == (3, 3, {"bytes": 3, "method": "direct"})
    assert repr(stats) == "Stats({'bytes': 3, 'method': 'direct'})"


@pytest.mark.parametrize(
    ("done", "total", "seconds", "expected"),
    [
        (2**29, 2**31, 0.25, "512.0 of 2,048.0 MiB, 2.00 GiB/s"),
        (2**31, 2**31, 0.0, "2,048.0 of 2,048.0 MiB"),
        (0, 0, 0.0, "0.0 of 0.0 MiB"),
    ],
)
def test_progress_has_one_unit_and_needs_no_time(done: int, total: int, seconds: float, expected: str) -> None:
    assert _progress.moved_text(done, total, seconds) == expected


class Terminal(io.StringIO):
    """Standard error, as if somebody looked at it."""

    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Called by the test itself: pytest sets up its own standard error after the fixtures."""
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm-256color")
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    return made


def test_a_bar_shows_mib_and_gib_per_second(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    terminal = open_terminal(monkeypatch)
    penstock.save({"x": torch.zeros(MIB)}, path, progress=True)
    penstock.load(path, progress=True)
    shown = terminal.getvalue()
    assert "saving model.safetensors" in shown
    assert "loading model.safetensors" in shown
    assert "1.0 of 1.0 MiB, " in shown
    assert "GiB/s" in shown
    assert "MB" not in shown


def test_a_bar_of_nothing_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    with _progress.reporting(True, "loading nothing") as callback:
        assert callback is not None
        callback(0, 0)
    assert "loading nothing" in terminal.getvalue()
    assert "0.0 of 0.0 MiB" in terminal.getvalue()
    assert "━" * 40 in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())


def test_work_that_tells_nothing_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    with _progress.reporting(True, "loading nothing"):
        pass
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("tensors", [{}, {"x": torch.zeros(0)}, {"x": torch.zeros(1)}])
def test_an_instant_load_is_survived(monkeypatch: pytest.MonkeyPatch, path: Path, tensors: dict[str, Any]) -> None:
    open_terminal(monkeypatch)
    penstock.save(tensors, path, progress=True)
    assert list(penstock.load(path, progress=True)) == list(tensors)
    assert list(dict(penstock.stream(path, progress=True))) == list(tensors)


def test_steps_report_as_one() -> None:
    calls: list[tuple[int, int]] = []
    first, second = _progress.in_parts(lambda done, total: calls.append((done, total)), [10, 5])
    assert first is not None
    assert second is not None
    first(4, 10)
    first(10, 10)
    second(5, 5)
    assert calls == [(4, 15), (10, 15), (15, 15)]
    assert _progress.in_parts(None, [1, 2]) == [None, None]
