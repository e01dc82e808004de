"""What is promised of penstock.fastsafetensors and of reads that are exact per rank, held against measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from ranks import Results

SHARE_OF_ENGINE = 0.9  # who is as fast as this needs no lead over a peer
ENGINE = "1 process, penstock.load"
LOADERS = ("SafeTensorsFileLoader", "ParallelLoader")
BATCH_BYTES = 128 << 20  # of the ParallelLoader whose memory is bounded


@dataclass(frozen=True)
class Figure:
    """Something that is promised; `of_engine` is how fast it was beside the engine alone, where that counts too."""

    text: str
    value: float
    limit: float
    at_least: bool = False
    of_engine: float | None = None

    @property
    def holds(self) -> bool:
        if self.of_engine is not None and self.of_engine >= SHARE_OF_ENGINE:
            return True
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def figures_of(results: Results) -> list[Figure]:
    """All that can be said of what was measured, in the order of the promises."""
    return [
        *speed_figures(results, "1 process", {"SafeTensorsFileLoader": 1.5, "ParallelLoader": 2.0}, ENGINE),
        *speed_figures(results, "2 ranks", dict.fromkeys(LOADERS, 1.5)),
        *memory_figures(results),
        *read_figures(results, "4 ranks, row slices", 1.02),
        *read_figures(results, "4 ranks, column slices", 1.2),
        *expert_figures(results),
    ]


def rate(results: Results, key: str) -> float:
    return median(result["bytes"] / result["seconds"] for result in results[key])


def speed_figures(results: Results, group: str, limits: dict[str, float], engine: str = "") -> list[Figure]:
    found = []
    for loader, limit in limits.items():
        ours, peer = f"{group}, penstock {loader}", f"{group}, fastsafetensors {loader}"
        if ours in results and peer in results:
            share = rate(results, ours) / rate(results, engine) if engine in results else None
            ratio = rate(results, ours) / rate(results, peer)
            found.append(Figure(f"{group}, {loader}: speed over the peer's", ratio, limit, True, share))
    return found


def memory_figures(results: Results) -> list[Figure]:
    """The rank that had most in any round, over what it keeps and one batch: the bytes that it is given at a time.

    Of SafeTensorsFileLoader these are all of the rank's files, of ParallelLoader one file, unless it was told less.
    """
    found = []
    for name, batch in (
        ("SafeTensorsFileLoader", lambda result: result["bytes"] / 2),
        ("ParallelLoader", lambda result: result["bytes"] / result["files"]),
        (f"ParallelLoader of {BATCH_BYTES >> 20} MiB", lambda result: BATCH_BYTES),
    ):
        key = f"2 ranks, penstock {name}"
        if key in results:
            most = max(over_shard_and_batch(result, batch) for result in results[key])
            found.append(Figure(f"2 ranks, {name}: peak memory over shard and batch", most, 1.0))
    return found


def over_shard_and_batch(result: dict[str, Any], batch: Callable[[dict[str, Any]], float]) -> float:
    return float(result["peak_bytes"] / (result["kept_bytes"] + batch(result)))


def read_figures(results: Results, group: str, limit: float) -> list[Figure]:
    """Of all ranks together, in any round: as the engine counts, and as the kernel does."""
    measured = results.get(f"{group}, penstock.load", [])
    found = []
    for text, name in (("bytes_on_drive", "bytes_on_drive"), ("the kernel's read_bytes", "io_read_bytes")):
        ratios = [result[name] / result["bytes"] for result in measured if result[name] is not None]
        if ratios:
            found.append(Figure(f"{group}: {text} over the checkpoint's", max(ratios), limit))
    return found


def expert_figures(results: Results) -> list[Figure]:
    found = []
    for name in ("penstock.load", "penstock ParallelLoader"):
        whole, part = f"50,000 tensors, {name}", f"50,000 tensors, experts 1/8, {name}"
        if whole in results and part in results:
            ratio = rate(results, whole) / rate(results, part)
            found.append(Figure(f"50,000 tensors, {name}: time of 1/8 of the experts over all", ratio, 1 / 6))
    return found


def show(figures: list[Figure]) -> None:
    print(f"\n{'figure':75} {'measured':>9} {'target':>8} {'of e':>6}")
    for figure in figures:
        bound = f"{'>=' if figure.at_least else '<='} {figure.limit:.3g}"
        share = f"{figure.of_engine:6.2f}" if figure.of_engine is not None else " " * 6
        verdict = "holds" if figure.holds else "MISSED"
        print(f"{figure.text:75} {figure.value:9.3f} {bound:>8} {share}  {verdict}")
    print(f"e: the engine alone, {ENGINE}, in this run; at least {SHARE_OF_ENGINE} of it holds as well.")


def as_json(figures: list[Figure]) -> list[dict[str, Any]]:
    return [
        {
            "text": one.text,
            "measured": one.value,
            "limit": one.limit,
            "at_least": one.at_least,
            "of_engine": one.of_engine,
            "holds": one.holds,
        }
        for one in figures
    ]
