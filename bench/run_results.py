"""What a run has measured, as it is kept in a JSON file, and read from one again."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import growth
import not_raced
from cases import Case, all_cases
from promises import judge
from runner import Series
from summary import Summary, not_first, summarise


@dataclass
class Results:
    about: dict[str, Any]
    series: list[Series] = field(default_factory=list)
    grown: list[tuple[Case, int, list[dict[str, Any]]]] = field(default_factory=list)  # amount, measurements
    left_out: dict[str, str] = field(default_factory=dict)  # cases that could not run, and why

    @property
    def summaries(self) -> list[Summary]:
        return [summarise(one) for one in self.series]

    @property
    def points(self) -> list[growth.Point]:
        return [growth.point_of(*one) for one in self.grown]

    def add_grown(self, series: Series, amount: int) -> None:
        """Called after every measurement: the series grows, its entry stays."""
        if not any(case == series.case and known == amount for case, known, _ in self.grown):
            self.grown.append((series.case, amount, series.results))


def as_json(results: Results) -> dict[str, Any]:
    summaries = results.summaries
    return {
        "about": results.about,
        "cases": [case_as_json(one, summary) for one, summary in zip(results.series, summaries, strict=True)],
        "growth": [
            {"case": case.key, "amount": amount, "measurements": measurements}
            for case, amount, measurements in results.grown
        ],
        "lines": [
            {"case": line.case.key, "fixed_seconds": line.fixed_seconds, "slope": line.slope}
            for line in growth.lines(results.points)
        ],
        "promises": [
            {
                "text": verdict.promise.text,
                "measured": verdict.figure,
                "limit": verdict.promise.limit,
                "at_least": verdict.promise.at_least,
                "holds": verdict.holds,
                "engine_alone": verdict.engine_alone,
            }
            for verdict in judge(summaries)
        ],
        "not_first": [
            {"race": ours.case.race.name, "ours": ours.case.name, "first": first.case.name, "ratio": ratio}
            for ours, first, ratio in not_first(summaries)
        ],
        "left_out": results.left_out,
        "not_raced": not_raced.all_reasons(results.left_out),
    }


def case_as_json(series: Series, summary: Summary) -> dict[str, Any]:
    return {
        "key": series.case.key,
        "case": series.case.name,
        "race": series.case.race.name,
        "role": series.case.role,
        "unit": series.case.race.unit,
        "median": summary.value,
        "min": summary.low,
        "max": summary.high,
        "cpu_seconds": summary.cpu_seconds,
        "peak_bytes": summary.peak_bytes,
        "peak_anonymous_bytes": summary.anonymous_bytes,
        "peak_file_bytes": summary.file_bytes,
        "cache_growth_bytes": summary.cache_growth_bytes,
        "device_bytes": summary.device_bytes,
        "io_bytes": summary.io_bytes,
        "measurements": series.results,
    }


def write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def read(path: Path) -> Results:
    """Measurements of cases that there are no longer are left out."""
    content = json.loads(path.read_text())
    known = {case.key: case for case in all_cases()}
    series = [Series(known[entry["key"]], entry["measurements"]) for entry in content["cases"] if entry["key"] in known]
    grown = [
        (known[entry["case"]], entry["amount"], entry["measurements"])
        for entry in content.get("growth", [])
        if entry["case"] in known
    ]
    return Results(content["about"], series, grown, content.get("left_out", {}))
