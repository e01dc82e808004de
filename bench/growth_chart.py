"""Time over size and over the number of tensors, both axes logarithmic: a line per library, its spread as a band."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import charts
import growth
from cases import GROWTH_RACES, Race
from charts import Theme
from model import GIB

LIBRARIES = ("safetensors", "fastsafetensors")  # each has its own colour in every panel
MARKERS = "os^vP"


def draw(
    points: list[growth.Point], title: str, stem: Path, themes: tuple[Theme, ...], suffixes: tuple[str, ...]
) -> list[Path]:
    return charts.save(lambda theme: _figure(points, title, theme), stem, themes, suffixes)


def _figure(points: list[growth.Point], title: str, theme: Theme) -> Any:
    from matplotlib.figure import Figure

    races = [race for race in GROWTH_RACES if any(point.case.race == race for point in points)]
    figure = Figure(figsize=(11, 4.6 * -(-len(races) // 2) + 0.6), layout="constrained")
    axes = figure.subplots(-(-len(races) // 2), min(2, len(races)), squeeze=False).ravel()
    for axis, race in zip(axes, races, strict=False):
        _panel(axis, race, [point for point in points if point.case.race == race], theme)
    for axis in axes[len(races) :]:
        axis.set_visible(False)
    figure.suptitle(title, color=theme.text, fontsize=14, fontweight="bold")
    return figure


def _panel(axis: Any, race: Race, points: list[growth.Point], theme: Theme) -> None:
    from matplotlib.ticker import NullFormatter

    by_size = race in growth.BY_SIZE
    for line in sorted(growth.lines(points), key=lambda line: (line.case.role != "ours", line.case.name)):
        own = sorted((point for point in points if point.case == line.case), key=lambda point: point.amount)
        _draw_line(axis, line, own, theme)
    axis.set_xscale("log")
    axis.set_yscale("log")
    charts.style(axis, f"{race.name}, seconds", theme)
    amounts = sorted({point.amount for point in points})
    axis.set_xticks(amounts, [size_in_words(amount) if by_size else f"{amount:,}" for amount in amounts])
    for direction in (axis.xaxis, axis.yaxis):
        direction.set_minor_formatter(NullFormatter())
    axis.tick_params(which="minor", length=0)
    axis.set_xlabel("size of the model" if by_size else "tensors", color=theme.text, fontsize=charts.TEXT)
    axis.grid(color=theme.faint, linewidth=0.6)
    axis.legend(frameon=False, labelcolor=theme.text, fontsize=charts.TEXT)


def _draw_line(axis: Any, line: growth.Line, points: list[growth.Point], theme: Theme) -> None:
    ours, library = line.case.role == "ours", line.case.name.split()[0]
    colour = theme.colours["ours"] if ours else theme.lines[LIBRARIES.index(library) % len(theme.lines)]
    amounts = [point.amount for point in points]
    axis.plot(
        amounts,
        [point.seconds for point in points],
        label=f"{line.case.name}: {slope_in_words(line)}",
        color=colour,
        marker="D" if ours else MARKERS[LIBRARIES.index(library) % len(MARKERS)],
        linewidth=2.6 if ours else 1.6,
        linestyle="-" if ours else "--",
    )
    low, high = [point.low for point in points], [point.high for point in points]
    axis.fill_between(amounts, low, high, color=colour, alpha=0.15, lw=0)


def slope_in_words(line: growth.Line) -> str:
    if line.slope <= 0:
        return "lost in noise"
    if line.case.race in growth.BY_SIZE:
        return f"{line.gib_per_second:.2f} GiB/s"
    return f"{line.microseconds_each:.2f} \N{MICRO SIGN}s per tensor"


def size_in_words(nbytes: int) -> str:
    return f"{nbytes / GIB:g} GiB" if nbytes >= GIB else f"{nbytes >> 20} MiB"
