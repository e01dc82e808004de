"""Tables of a race: for the terminal (rich where it is there, aligned text in a pipe), and as Markdown."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import growth
import not_raced
from cases import COMPARISONS, GROWTH_RACES, RACES
from model import GIB
from promises import judge
from run_results import Results
from summary import Summary, best_first, best_with_role, not_first

MIB = 1 << 20


@dataclass
class Table:
    """Rows of text: the first columns are to the left, the others, of numbers, to the right."""

    title: str
    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)
    highlighted: set[int] = field(default_factory=set)
    text_columns: int = 1

    def add(self, cells: list[str], highlight: bool = False) -> None:
        if highlight:
            self.highlighted.add(len(self.rows))
        self.rows.append(cells)

    def show(self) -> None:
        if not sys.stdout.isatty() or not self._show_rich():
            self._show_plain()

    def markdown(self) -> str:
        """Without the title. Of highlighted rows the first cell is bold."""
        lines = [self.columns, ["---" if i < self.text_columns else "---:" for i in range(len(self.columns))]]
        for i, row in enumerate(self.rows):
            lines.append([f"**{row[0]}**", *row[1:]] if i in self.highlighted else row)
        return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)

    def _show_plain(self) -> None:
        widths = [max(len(row[i]) for row in [self.columns, *self.rows]) for i in range(len(self.columns))]
        print(f"\n{self.title}")
        for row in [self.columns, ["-" * width for width in widths], *self.rows]:
            cells = [
                cell.ljust(width) if i < self.text_columns else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            print("  ".join(cells).rstrip())

    def _show_rich(self) -> bool:
        try:
            from rich import box
            from rich.console import Console
            from rich.table import Table as RichTable
        except ImportError:
            return False
        table = RichTable(title=self.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        for i, column in enumerate(self.columns):
            table.add_column(column, justify="left" if i < self.text_columns else "right")
        for i, row in enumerate(self.rows):
            table.add_row(*row, style="bold cyan" if i in self.highlighted else None)
        Console().print(table)
        return True


def number(value: float | None, digits: int = 2, scale: float = 1) -> str:
    return "" if value is None else f"{value / scale:.{digits}f}"


def figure(value: float) -> str:
    """A speed or a time: what is beyond a hundred needs no fractions."""
    return number(value, 0 if value >= 100 else 2)


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
    columns = ["", race.unit, "min - max", "over ceiling", "over best peer", "CPU s"]
    columns += ["peak MiB", "anon", "file", "cached", "drive", "own I/O"]
    table = Table(f"{race.name} ({payload(chosen)}median of {min(summary.rounds for summary in chosen)})", columns)
    for summary in chosen:
        cells = [
            summary.case.name,
            figure(summary.value),
            f"{figure(summary.low)} - {figure(summary.high)}",
            ratio(summary, ceiling),
            ratio(summary, peer),
            number(summary.cpu_seconds),
        ]
        cells += [number(value, 0, MIB) for value in memory_and_drive(summary)]
        table.add(cells, highlight=summary.case.role == "ours")
    return table


def payload(chosen: list[Summary]) -> str:
    """What the tensors of a race take; nothing where they are not what is moved."""
    race, nbytes = chosen[0].case.race, min(summary.payload_bytes for summary in chosen)
    return f"{nbytes / GIB:.2f} GiB, " if race.unit == "GiB/s" else ""


def memory_and_drive(summary: Summary) -> tuple[float | None, ...]:
    return (
        summary.peak_bytes,
        summary.anonymous_bytes,
        summary.file_bytes,
        summary.cache_growth_bytes,
        summary.device_bytes,
        summary.io_bytes,
    )


def promise_table(summaries: list[Summary]) -> Table:
    table = Table("what penstock promises", ["", "measured", "promised", "", "the engine alone"])
    for verdict in judge(summaries):
        promise = verdict.promise
        limit = f"{'at least' if promise.at_least else 'at most'} {promise.limit:.2f}"
        words = "holds" if verdict.holds else "MISSED"
        alone = "" if verdict.engine_alone is None else number(verdict.engine_alone)
        table.add([promise.text, number(verdict.figure), limit, words, alone], highlight=not verdict.holds)
    return table


def loss_table(summaries: list[Summary]) -> Table:
    table = Table(
        "races that penstock did not win",
        ["", "penstock's best", "the winner", "penstock's speed over it"],
        text_columns=3,
    )
    for ours, first, share in not_first(summaries):
        measured = [f"{one.case.name}: {one.value:.2f} {one.case.race.unit}" for one in (ours, first)]
        table.add([ours.case.race.name, *measured, f"{share:.2f}x"])
    return table


def growth_tables(points: list[growth.Point]) -> list[Table]:
    """A row for each straight line: what there is to pay once, and for each further GiB or tensor."""
    rate = Table("growth with the size", ["", "once, ms", "then GiB/s"])
    each = Table("growth with the number of tensors", ["", "once, ms", "then microseconds per tensor"])
    order = {race.key: i for i, race in enumerate(GROWTH_RACES)}
    for line in sorted(growth.lines(points), key=lambda line: (order[line.case.race.key], line.slope)):
        once = number(1000 * line.fixed_seconds, 1)
        name, ours = f"{line.case.race.name}: {line.case.name}", line.case.role == "ours"
        if line.case.race in growth.BY_SIZE:
            rate.add([name, once, number(line.gib_per_second) if line.slope > 0 else "lost in noise"], highlight=ours)
        else:
            each.add([name, once, number(line.microseconds_each)], highlight=ours)
    return [table for table in (rate, each) if table.rows]


def not_raced_table(left_out: dict[str, str]) -> Table:
    table = Table("not raced", ["", "why"], text_columns=2)
    for name, reason in not_raced.all_reasons(left_out).items():
        table.add([name, reason])
    return table


def show(results: Results) -> None:
    summaries = results.summaries
    for race in (*RACES, *COMPARISONS):
        table = race_table(summaries, race.key)
        if table:
            table.show()
    for table in (*growth_tables(results.points), not_raced_table(results.left_out), promise_table(summaries)):
        if table.rows:
            table.show()
    print(f"\n[bench] {losses_in_words(summaries)}")


def losses_in_words(summaries: list[Summary]) -> str:
    if not summaries:
        return "no race was run"
    lost = [f"{ours.case.race.name} ({share:.2f}x of {first.case.name})" for ours, first, share in not_first(summaries)]
    return f"penstock is not first in: {'; '.join(lost)}" if lost else "penstock is first in every race that was run"


def payload_gib(nbytes: int) -> str:
    return f"{nbytes / GIB:.2f} GiB"
