"""Rates over model sizes, a line for each library and a band from its slowest to its fastest round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import charts
from cases import Race
from charts import Theme
from model import GIB
from summary import Summary

MARKERS = "osD^vP"


def draw(by_size: dict[float, list[Summary]], races: tuple[Race, ...], title: str, stem: Path) -> list[Path]:
    """A panel for each race. Writes STEM-light and STEM-dark, .png and .svg."""
    return charts.save(
        lambda theme: _figure(by_size, races, title, theme), stem, (charts.LIGHT, charts.DARK), (".png", ".svg")
    )


def _figure(by_size: dict[float, list[Summary]], races: tuple[Race, ...], title: str, theme: Theme) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.1 * len(races) + 0.6), layout="constrained")
    axes = figure.subplots(len(races), 1, squeeze=False)[:, 0]
    for axis, race in zip(axes, races, strict=True):
        _panel(axis, race, [one for summaries in by_size.values() for one in summaries if one.case.race == race], theme)
    axes[-1].set_xlabel("model, GiB", color=theme.text, fontsize=9)
    figure.suptitle(title, color=theme.text, fontsize=11, fontweight="bold")
    return figure


def _panel(axis: Any, race: Race, summaries: list[Summary], theme: Theme) -> None:
    names = list(dict.fromkeys(summary.case.name for summary in summaries))
    for number, name in enumerate(names):
        line = sorted((one for one in summaries if one.case.name == name), key=lambda one: one.payload_bytes)
        sizes = [one.payload_bytes / GIB for one in line]
        ours = line[0].case.role == "ours"
        colour = theme.colours[line[0].case.role]
        look = {"color": colour, "marker": MARKERS[number % len(MARKERS)], "linewidth": 2.2 if ours else 1.4}
        axis.plot(sizes, [one.value for one in line], label=name, linestyle="-" if ours else "--", **look)
        axis.fill_between(sizes, [one.low for one in line], [one.high for one in line], color=colour, alpha=0.15, lw=0)
    charts.style(axis, f"{race.name}, {race.unit}", theme)
    axis.grid(color=theme.faint, linewidth=0.6)
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False, labelcolor=theme.text, fontsize=9)
