"""Medians, spreads and ratios of what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from cases import COMPARISONS, RACES, Case
from model import GIB
from runner import Series


@dataclass(frozen=True)
class Summary:
    """One case: medians over its rounds."""

    case: Case
    rounds: int
    value: float  # in the race's unit: GiB/s (more is better) or ms (less is better)
    low: float
    high: float
    cpu_seconds: float | None
    payload_bytes: float
    peak_bytes: float | None  # resident memory above what there was before, at its highest
    anonymous_bytes: float | None  # of it, memory of its own, at its highest
    file_bytes: float | None  # of it, pages of mapped files, at its highest
    cache_growth_bytes: float | None  # page cache that the load or save left behind
    device_bytes: float | None  # moved by the drive, for everybody
    io_bytes: float | None  # moved by the drive for this process, as it is accounted to it

    def speed_over(self, other: Summary) -> float:
        """How many times as fast as the other."""
        return self.value / other.value if self.case.race.unit == "GiB/s" else other.value / self.value


def summarise(series: Series) -> Summary:
    results = series.results
    if series.case.race.unit == "GiB/s":
        values = [result["bytes"] / GIB / result["seconds"] for result in results]
    else:
        values = [1000 * result["seconds"] for result in results]
    direction = "written_bytes" if series.case.race.saves else "read_bytes"
    return Summary(
        case=series.case,
        rounds=len(results),
        value=median(values),
        low=min(values),
        high=max(values),
        cpu_seconds=median_of(results, "cpu_seconds"),
        payload_bytes=median_of(results, "bytes") or 0,
        peak_bytes=median_of(results, "peak_bytes"),
        anonymous_bytes=median_of(results, "peak_anonymous_bytes"),
        file_bytes=median_of(results, "peak_file_bytes"),
        cache_growth_bytes=median_of(results, "cache_growth_bytes"),
        device_bytes=median_of(results, f"device_{direction}"),
        io_bytes=median_of(results, f"io_{direction}"),
    )


def median_of(results: list[dict[str, Any]], key: str) -> float | None:
    values = [result[key] for result in results if result.get(key) is not None]
    return median(values) if values else None


def best_first(summaries: list[Summary], race_key: str) -> list[Summary]:
    chosen = [summary for summary in summaries if summary.case.race.key == race_key]
    return sorted(
        chosen, key=lambda summary: summary.value, reverse=bool(chosen) and chosen[0].case.race.unit == "GiB/s"
    )


def best_with_role(summaries: list[Summary], race_key: str, role: str) -> Summary | None:
    return next((summary for summary in best_first(summaries, race_key) if summary.case.role == role), None)


def not_first(summaries: list[Summary]) -> list[tuple[Summary, Summary, float]]:
    """Every race that a peer won: our best, the winner, and what share of its speed ours has."""
    found = []
    for key in (race.key for race in (*RACES, *COMPARISONS)):
        ours, peer = best_with_role(summaries, key, "ours"), best_with_role(summaries, key, "peer")
        if ours and peer and ours.speed_over(peer) < 1:
            found.append((ours, peer, ours.speed_over(peer)))
    return found
