"""The model of loads to a device: its formula and its simulation agree, its limits hold, the page shows its table."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import pipeline  # noqa: E402
from pipeline import GB, MIB, DriveInOrder, DriveShared, Pipeline, closed_rate, simulate, simulated_rate  # noqa: E402

TOLERANCE = 1e-9  # that the two may differ where a drive serves in order: the formula is exact there
ROUGHLY = 0.02  # requests that share a drive don't repeat themselves exactly, so their rate depends on when one looks
RATES = (0.8 * GB, 7 * GB, 56 * GB)
GRID = [
    Pipeline(drive, link, block, slots, drive_latency, copy_latency)
    for drive, link in product(RATES, RATES)
    for block in (64 << 10, 2 * MIB)
    for slots in (1, 2, 5, 24)
    for drive_latency, copy_latency in ((0.0, 0.0), (20e-6, 10e-6), (250e-6, 10e-6))
]


def test_formula_and_simulation_agree_where_a_drive_serves_in_order() -> None:
    worst = max(GRID, key=lambda one: abs(simulated_rate(one) / closed_rate(one) - 1))
    assert simulated_rate(worst) == pytest.approx(closed_rate(worst), rel=TOLERANCE), worst


def test_a_drive_that_shares_its_bandwidth_is_never_faster_than_the_formula() -> None:
    for one in GRID:
        assert simulated_rate(one, DriveShared) <= closed_rate(one) * (1 + ROUGHLY), one


def test_a_single_slot_pays_for_every_step_of_its_way() -> None:
    alone = Pipeline(7 * GB, 25 * GB, slots=1)
    seconds = 250e-6 + 2 * MIB / (7 * GB) + 10e-6 + 2 * MIB / (25 * GB)
    for kind in (DriveInOrder, DriveShared):
        assert simulate(alone, 3, kind) == pytest.approx([seconds, 2 * seconds, 3 * seconds])
    assert closed_rate(alone) == pytest.approx(2 * MIB / seconds)


def test_two_requests_that_share_a_drive_end_together() -> None:
    pair = Pipeline(GB, 1e18, block=10**6, slots=2, drive_latency=0.0, copy_latency=0.0)
    assert simulate(pair, 2, DriveInOrder) == pytest.approx([0.001, 0.002])
    assert simulate(pair, 2, DriveShared) == pytest.approx([0.002, 0.002])


def test_copies_wait_for_the_link_in_order() -> None:
    slow_link = Pipeline(1e18, GB, block=10**6, slots=3, drive_latency=0.0, copy_latency=0.0)
    assert simulate(slow_link, 4) == pytest.approx([0.001, 0.002, 0.003, 0.004])


@pytest.mark.parametrize("kind", [DriveInOrder, DriveShared])
def test_limits(kind: type[pipeline.Drive]) -> None:
    deep = Pipeline(7 * GB, 1e18, slots=64)
    assert simulated_rate(deep, kind) == pytest.approx(7 * GB, rel=ROUGHLY)  # the link is no limit
    deep = replace(deep, drive=1e18, link=25 * GB)
    assert simulated_rate(deep, kind) == pytest.approx(25 * GB, rel=ROUGHLY)  # the drive is none
    latency = Pipeline(1e18, 1e18, slots=4)
    assert simulated_rate(latency, kind) == pytest.approx(4 * 2 * MIB / 260e-6, rel=ROUGHLY)  # neither is


def test_the_depth_that_is_needed_is_that_of_the_formula() -> None:
    """Q >= ENOUGH * (1 + D (a + t) / B + D / L), where the drive is slower than the link."""
    one = Pipeline(14 * GB, 25 * GB)
    exact = pipeline.ENOUGH * (1 + 14 * GB * 260e-6 / (2 * MIB) + 14 / 25)
    assert pipeline.slots_needed(one, closed_rate) == int(exact) + 1
    assert pipeline.slots_needed(one, pipeline.shared_rate) >= pipeline.slots_needed(one, closed_rate)


def test_the_defaults_are_enough_for_every_drive_and_link_of_the_table() -> None:
    for drive, link in product(pipeline.DRIVES, pipeline.LINKS.values()):
        defaults = Pipeline(drive, link)
        assert defaults.pinned == 48 * MIB
        assert min(closed_rate(defaults), pipeline.shared_rate(defaults)) >= pipeline.ENOUGH * defaults.limit


def test_the_page_shows_the_table_of_the_model() -> None:
    page = (ROOT / "docs" / "gpu.md").read_text()
    assert f"{pipeline.BEGIN}\n\n{pipeline.table()}\n\n{pipeline.END}" in page


def test_the_table_is_written_between_its_markers_alone(tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    page.write_text(f"before\n{pipeline.BEGIN}\nyesterday\n{pipeline.END}\nafter\n")
    pipeline.update(page)
    assert page.read_text() == f"before\n{pipeline.BEGIN}\n\n{pipeline.table()}\n\n{pipeline.END}\nafter\n"
    page.write_text("nothing here\n")
    with pytest.raises(SystemExit, match="has no place for the table"):
        pipeline.update(page)
