"""The chart of bench/paper.py: a panel for each number of ranks, a group of bars for each model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import charts
from charts import Theme
from rank_ways import BY_KEY, WAYS


@dataclass(frozen=True)
class Bar:
    """GiB/s of one way: the median, and the slowest and the fastest round."""

    model: str
    ranks: int
    way: str  # a key of rank_ways.WAYS
    value: float
    low: float
    high: float


def colours_of(theme: Theme) -> dict[str, str]:
    """By the key of a way: ours are shades of one colour."""
    ours = theme.colours["ours"]
    return {
        "safetensors": theme.colours["peer"],
        "peer-files": theme.lines[0],
        "peer-parallel": theme.colours["ceiling"],
        "load": ours,
        "files": mixed(ours, theme.background, 0.35),
        "parallel": mixed(ours, theme.background, 0.6),
    }


def mixed(colour: str, other: str, share: float) -> str:
    """A colour with a share of another, both as #rrggbb."""
    pairs = zip(bytes.fromhex(colour[1:]), bytes.fromhex(other[1:]), strict=True)
    return "#" + bytes(round((1 - share) * one + share * two) for one, two in pairs).hex()


def draw(bars: list[Bar], about: dict[str, Any], directory: Path) -> list[Path]:
    cores, filesystem = about["cores"], str(about["filesystem"]).split()[0]
    title = f"Cold loads of scaled-down models, every byte in memory: GiB/s\n{cores} cores, {filesystem}, gloo"
    themes = (charts.LIGHT, charts.DARK)
    return charts.save(lambda theme: _figure(bars, title, theme), directory / "paper", themes, (".svg",))


def _figure(bars: list[Bar], title: str, theme: Theme) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    counts = sorted({bar.ranks for bar in bars})
    figure = Figure(figsize=(11, 3.1 * len(counts) + 1.4), layout="constrained")
    axes = figure.subplots(len(counts), 1, squeeze=False)[:, 0]
    for axis, count in zip(axes, counts, strict=True):
        _panel(axis, count, [bar for bar in bars if bar.ranks == count], theme)
    shown = [way.key for way in WAYS if any(bar.way == way.key for bar in bars)]
    colours = colours_of(theme)
    figure.legend(
        handles=[Patch(color=colours[key], label=BY_KEY[key].name) for key in shown],
        loc="outside lower center",
        ncols=3,
        frameon=False,
        labelcolor=theme.text,
        fontsize=charts.TEXT,
    )
    figure.suptitle(title, color=theme.text, fontsize=14, fontweight="bold")
    return figure


def places_of(bars: list[Bar]) -> list[tuple[float, Bar]]:
    """Where each bar stands: a model's bars side by side around its whole number, in the order of WAYS."""
    models = list(dict.fromkeys(bar.model for bar in bars))
    ways = [way.key for way in WAYS if any(bar.way == way.key for bar in bars)]
    width = 0.84 / len(ways)
    return [(models.index(bar.model) + width * (ways.index(bar.way) - (len(ways) - 1) / 2), bar) for bar in bars]


def _panel(axis: Any, count: int, bars: list[Bar], theme: Theme) -> None:
    models = list(dict.fromkeys(bar.model for bar in bars))
    places, colours = places_of(bars), colours_of(theme)
    axis.bar(
        [place for place, _ in places],
        [bar.value for bar in bars],
        width=0.8 / len({bar.way for bar in bars}),
        color=[colours[bar.way] for bar in bars],
        yerr=[[bar.value - bar.low for bar in bars], [bar.high - bar.value for bar in bars]],
        error_kw={"ecolor": theme.text, "elinewidth": 0.8},
    )
    for place, bar in places:
        axis.annotate(
            f"{bar.value:.1f}",
            (place, bar.high),
            xytext=(0, 2),
            textcoords="offset points",
            ha="center",
            color=theme.text,
            fontsize=9,
        )
    charts.style(axis, "1 process" if count == 1 else f"{count} ranks", theme)
    axis.set_xticks(range(len(models)), models)
    axis.grid(axis="y", color=theme.faint, linewidth=0.6)
    axis.margins(y=0.12)
