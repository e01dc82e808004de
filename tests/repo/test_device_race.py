"""What bench/device_race.py makes of measurements."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import device_race  # noqa: E402
from cases import Case, Task  # noqa: E402
from cases import device_cases as devices  # noqa: E402
from runner import Series  # noqa: E402

GB, MIB = 1e9, 1 << 20
NBYTES = 1024 * MIB


@pytest.fixture(autouse=True)
def drive() -> Iterator[None]:
    devices.measured.drive = 2 * GB
    yield
    devices.measured.drive = 0.0


def of(case: Case, *seconds: float, **fields: Any) -> Series:
    known = {"pageable_copies": 0, "violations": 0, "pinned_bytes_peak": 48 * MIB, "cpu_seconds": 1.0}
    return Series(case, [{"bytes": NBYTES, "seconds": one, **known, **fields} for one in seconds])


def figures(*series: Series) -> dict[str, tuple[float, bool]]:
    found = device_race.figures_of(device_race.Measurements(list(series)))
    return {one.text: (one.value, one.holds) for one in found}


def test_a_device_is_held_against_the_host_by_medians() -> None:
    fast = of(devices.TO_DEVICE[2.0], 9.0, 1.0, 1.1, cpu_seconds=1.2)
    found = figures(fast, of(devices.HOST, 1.0, 1.0, 1.0, cpu_seconds=1.0))
    assert found["link 2 x drive: speed over the host"] == (pytest.approx(1 / 1.1), False)
    assert found["link 2 x drive: processor time over the host"] == (pytest.approx(1.2), False)
    assert found["pageable copies"] == (0, True)
    assert found["pinned memory, MiB"] == (48, True)


def test_one_bad_round_is_enough_to_miss_what_must_never_happen() -> None:
    loads = of(devices.TO_DEVICE[1.0], 1.0, 1.0)
    loads.results[1] |= {"pageable_copies": 3, "pinned_bytes_peak": 50 * MIB}
    found = figures(loads)
    assert found["pageable copies"] == (3, False)
    assert found["pinned memory, MiB"] == (50, False)


def test_a_slow_link_is_held_against_its_own_rate() -> None:
    assert figures(of(devices.TO_DEVICE[0.5], NBYTES / (0.96 * GB)))["link 0.5 x drive: speed over the link"] == (
        pytest.approx(0.96),
        True,
    )


def test_host_memory_is_that_of_a_first_load() -> None:
    first = of(devices.FIRST, 1.0, peak_anonymous_bytes=50 * MIB, peak_file_bytes=15 * MIB)
    assert figures(first)["host memory of a first load, MiB"] == (65, False)


def test_a_caller_is_held_no_longer_than_the_pure_copy_takes() -> None:
    found = figures(of(devices.PURE_COPY, 0.5), of(devices.HELD, 0.54))
    assert found["save_async: time until staged over the pure copy"] == (pytest.approx(1.08), True)


def test_the_host_is_compared_with_another_build() -> None:
    found = figures(of(devices.NOW[0], 2.0), of(devices.BEFORE[0], 1.0))
    assert found == {"host, cold load: speed over before": (0.5, False)}


def test_the_model_has_the_drive_from_reads_alone() -> None:
    block = 2 * MIB
    reads = of(devices.DRIVE, NBYTES / (2 * GB)), of(devices.DRIVE_ONE, NBYTES / block * (block / (2 * GB) + 0.001))
    loads = [of(case, 1.0) for case in devices.TO_DEVICE.values()]
    found = device_race.predictions_of(device_race.Measurements([*reads, *loads, of(devices.ONE_BLOCK, 1.0)]))
    predicted = {one.case.name: one.predicted for one in found}
    assert predicted["device, link 2 x drive"] == pytest.approx(2 * GB, rel=0.02)
    assert predicted["device, link 0.25 x drive"] == pytest.approx(0.5 * GB, rel=0.02)
    alone = block / (0.001 + device_race.COPY_LATENCY + block / (2 * GB) + block / (4 * GB))
    assert predicted["device, one block"] == pytest.approx(alone)
    assert all(one.measured == NBYTES for one in found)


def test_links_are_multiples_of_the_drive() -> None:
    case = devices.TO_DEVICE[0.25]
    assert case.native is not None
    command = case.native(Task(case.key, "model.safetensors"))
    assert f"PENSTOCK_SIM_LINK={round(0.5 * GB)}" in command
    assert command[-2:] == ["load", "model.safetensors"]
