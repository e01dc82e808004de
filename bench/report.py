"""Tables for the terminal (rich where it is there, aligned text in a pipe) and the JSON of a race."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cases import RACES
from model import GIB
from promises import judge
from runner import Series
from summary import Summary, best_first, best_with_role

MIB = 1 << 20


@dataclass
class Table:
    """Rows of text; the first column is to the left, the others to the right."""

    title: str
    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)
    highlighted: set[int] = field(default_factory=set)

    def add(self, cells: list[str], highlight: bool = False) -> None:
        if highlight:
            self.highlighted.add(len(self.rows))
        self.rows.append(cells)

    def show(self) -> None:
        if not sys.stdout.isatty() or not self._show_rich():
            self._show_plain()

    def _show_plain(self) -> None:
        widths = [max(len(row[i]) for row in [self.columns, *self.rows]) for i in range(len(self.columns))]
        print(f"\n{self.title}")
        for row in [self.columns, ["-" * width for width in widths], *self.rows]:
            first = row[0].ljust(widths[0])
            print("  ".join([first, *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]))

    def _show_rich(self) -> bool:
        try:
            from rich import box
            from rich.console import Console
            from rich.table import Table as RichTable
        except ImportError:
            return False
        table = RichTable(title=self.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        for i, column in enumerate(self.columns):
            table.add_column(column, justify="left" if i == 0 else "right")
        for i, row in enumerate(self.rows):
            table.add_row(*row, style="bold cyan" if i in self.highlighted else None)
        Console().print(table)
        return True


def number(value: float | None, digits: int = 2, scale: float = 1) -> str:
    return "" if value is None else f"{value / scale:.{digits}f}"


def ratio(summary: Summary, other: Summary | None) -> str:
    return "" if other is None else f"{summary.speed_over(other):.2f}x"


def race_table(summaries: list[Summary], race_key: str) -> Table | None:
    """All cases of a race, the best first, beside the ceiling (fio, mostly) and the best peer."""
    chosen = best_first(summaries, race_key)
    if not chosen:
        return None
    race = chosen[0].case.race
    ceiling = best_with_role(summaries, race_key, "ceiling")
    peer = best_with_role(summaries, race_key, "peer")
    rounds = min(summary.rounds for summary in chosen)
    columns = ["", race.unit, "min - max", "over ceiling", "over best peer", "CPU s"]
    columns += ["peak MiB", "anonymous", "cached MiB", "drive MiB"]
    table = Table(f"{race.name} (median of {rounds})", columns)
    for summary in chosen:
        cells = [
            summary.case.name,
            number(summary.value),
            f"{summary.low:.2f} - {summary.high:.2f}",
            ratio(summary, ceiling),
            ratio(summary, peer),
            number(summary.cpu_seconds),
            number(summary.peak_bytes, 0, MIB),
            number(summary.anonymous_bytes, 0, MIB),
            number(summary.cache_growth_bytes, 0, MIB),
            number(summary.device_bytes, 0, MIB),
        ]
        table.add(cells, highlight=summary.case.role == "ours")
    return table


def promise_table(summaries: list[Summary]) -> Table:
    table = Table("what penstock promises", ["", "measured", "promised", ""])
    for promise, figure, holds in judge(summaries):
        limit = f"{'at least' if promise.at_least else 'at most'} {promise.limit:.2f}"
        table.add([promise.text, number(figure), limit, "holds" if holds else "MISSED"], highlight=not holds)
    return table


def show(summaries: list[Summary]) -> None:
    for race in RACES:
        table = race_table(summaries, race.key)
        if table:
            table.show()
    promises = promise_table(summaries)
    if promises.rows:
        promises.show()


def as_json(summaries: list[Summary], series: list[Series], about: dict[str, Any]) -> dict[str, Any]:
    raw = {one.case.key: one.results for one in series}
    cases = [
        {
            "case": summary.case.name,
            "race": summary.case.race.name,
            "role": summary.case.role,
            "unit": summary.case.race.unit,
            "median": summary.value,
            "min": summary.low,
            "max": summary.high,
            "cpu_seconds": summary.cpu_seconds,
            "peak_bytes": summary.peak_bytes,
            "cache_growth_bytes": summary.cache_growth_bytes,
            "measurements": raw[summary.case.key],
        }
        for summary in summaries
    ]
    promises = [
        {"text": p.text, "measured": figure, "limit": p.limit, "holds": ok} for p, figure, ok in judge(summaries)
    ]
    return {"about": about, "cases": cases, "promises": promises}


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def payload_gib(nbytes: int) -> str:
    return f"{nbytes / GIB:.2f} GiB"
