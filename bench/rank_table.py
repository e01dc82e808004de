"""What groups of ranks have measured, as lines of a table."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

import model

MIB = 1 << 20


@dataclass(frozen=True)
class Row:
    """One entry in a table: medians over its rounds, memory at its highest."""

    key: str
    gib_per_second: float
    low: float
    high: float
    seconds: float
    cpu_seconds: float
    peak_bytes: float
    peak_anonymous_bytes: float
    kept_bytes: float
    read_over_checkpoint: float
    on_drive_over_checkpoint: float | None


def row_of(key: str, results: list[dict[str, Any]]) -> Row:
    rates = [result["bytes"] / result["seconds"] / model.GIB for result in results]
    on_drive = [one["bytes_on_drive"] / one["bytes"] for one in results if one["bytes_on_drive"] is not None]
    return Row(
        key,
        median(rates),
        min(rates),
        max(rates),
        median(result["seconds"] for result in results),
        median(result["cpu_seconds"] for result in results),
        max(result["peak_bytes"] for result in results),
        max(result["peak_anonymous_bytes"] for result in results),
        median(result["kept_bytes"] for result in results),
        median(result["io_read_bytes"] / result["bytes"] for result in results),
        median(on_drive) if on_drive else None,
    )


HEADING = (
    f"{'':48} {'GiB/s':>6} {'range':>13} {'seconds':>8} {'CPU s':>6} {'kept MiB':>9} {'peak MiB':>9} "
    f"{'of it own':>9} {'read':>6}"
)


def line_of(row: Row, name: str) -> str:
    return (
        f"{name:48} {row.gib_per_second:6.2f} {row.low:5.2f} - {row.high:5.2f} {row.seconds:8.3f} "
        f"{row.cpu_seconds:6.2f} {row.kept_bytes / MIB:9.0f} {row.peak_bytes / MIB:9.0f} "
        f"{row.peak_anonymous_bytes / MIB:9.0f} {row.read_over_checkpoint:6.3f}"
    )
