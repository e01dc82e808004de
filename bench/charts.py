"""Bar charts of a race, for light and dark pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cases import FLASHPACK_RACES, SHAPE_RACES, Race, races
from summary import Summary, best_first


@dataclass(frozen=True)
class Theme:
    name: str
    background: str
    text: str
    faint: str
    colours: dict[str, str]  # by role
    lines: tuple[str, ...]  # where peers have to be told apart


LIGHT = Theme(
    "light",
    "#ffffff",
    "#1f2328",
    "#d0d7de",
    {"ours": "#0969da", "peer": "#9aa4af", "ceiling": "#d9a441"},
    ("#bc4c00", "#1a7f37", "#8250df"),
)
DARK = Theme(
    "dark",
    "#0d1117",
    "#e6edf3",
    "#30363d",
    {"ours": "#4493f8", "peer": "#6e7681", "ceiling": "#d9a441"},
    ("#f0883e", "#3fb950", "#a371f7"),
)
LEGEND = {"ours": "penstock", "peer": "others", "ceiling": "the drive's ceiling (fio and alike)"}
TEXT = 12  # points, for all but titles: charts are shown at two thirds of their size
PANELS = races("cold", "warm", "save")
BACKGROUND_PANELS = races("async", "train")
# A chart each: its name, its title, and a panel for each race.
SETS: dict[str, tuple[str, tuple[Race, ...]]] = {
    "race": ("A model of bf16 in safetensors", PANELS),
    "race-states": ("The same, into used memory and half cached", races("cold-reused", "half")),
    "race-shapes-gib": ("Other shapes", tuple(race for race in SHAPE_RACES if race.unit == "GiB/s")),
    "race-shapes-ms": ("Small models (less is better)", tuple(race for race in SHAPE_RACES if race.unit == "ms")),
    "race-flashpack": ("FlashPack", FLASHPACK_RACES[:3]),
    "race-torch": ("Files of torch.save", races("torch-save", "torch-cold", "torch-warm", "torch-many")),
    "flashpack-state-dict": ("A state dict into a model (less is better)", races("state-dict", "state-dict-cold")),
    "flashpack-models": ("A model saved, and loaded into an empty one", races("model-load", "model-save")),
    "race-background": ("Saving while training (less is better)", BACKGROUND_PANELS),
}


def draw(
    summaries: list[Summary],
    title: str,
    stem: Path,
    themes: tuple[Theme, ...],
    suffixes: tuple[str, ...],
    panels: tuple[Race, ...] = PANELS,
) -> list[Path]:
    """Bars, a panel for each race. Writes STEM-THEME.SUFFIX for each (STEM.SUFFIX when there is one theme)."""
    return save(lambda theme: _figure(summaries, title, theme, panels), stem, themes, suffixes)


def save(
    make_figure: Callable[[Theme], Any], stem: Path, themes: tuple[Theme, ...], suffixes: tuple[str, ...]
) -> list[Path]:
    """Writes a figure in every theme and form; returns the paths."""
    import matplotlib

    matplotlib.use("Agg")
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = []
    for theme in themes:
        figure = make_figure(theme)
        for suffix in suffixes:
            name = stem.name if len(themes) == 1 else f"{stem.name}-{theme.name}"
            paths.append(stem.with_name(name + suffix))
            figure.savefig(paths[-1], dpi=144, facecolor=theme.background, bbox_inches="tight", pad_inches=0.25)
    return paths


def _figure(summaries: list[Summary], title: str, theme: Theme, shown_races: tuple[Race, ...]) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    panels = [(race, best_first(summaries, race.key)) for race in shown_races]
    panels = [(race, chosen) for race, chosen in panels if chosen]
    heights = [len(chosen) + 1.4 for _, chosen in panels]
    figure = Figure(figsize=(11, 0.42 * sum(heights) + 1.2), layout="constrained")
    figure.get_layout_engine().set(hspace=0.06)
    axes = figure.subplots(len(panels), 1, height_ratios=heights, squeeze=False)
    for axis, (race, chosen) in zip(axes[:, 0], panels, strict=True):
        _panel(axis, race, chosen, theme)
    shown = {summary.case.role for _, chosen in panels for summary in chosen}
    roles = [role for role in LEGEND if role in shown]
    labels = LEGEND if shown_races != BACKGROUND_PANELS else {**LEGEND, "ceiling": "the least it takes"}
    handles = [Patch(color=theme.colours[role], label=labels[role]) for role in roles]
    figure.suptitle(title, color=theme.text, fontsize=14, fontweight="bold")
    figure.legend(
        handles=handles, loc="outside lower center", ncols=3, frameon=False, labelcolor=theme.text, fontsize=TEXT
    )
    return figure


def _panel(axis: Any, race: Race, chosen: list[Summary], theme: Theme) -> None:
    names = [summary.case.name for summary in chosen]
    values = [summary.value for summary in chosen]
    spread = [[s.value - s.low for s in chosen], [s.high - s.value for s in chosen]]
    colours = [theme.colours[summary.case.role] for summary in chosen]
    axis.barh(
        names, values, color=colours, height=0.72, xerr=spread, error_kw={"ecolor": theme.text, "elinewidth": 0.8}
    )
    axis.invert_yaxis()
    style(axis, f"{race.name}, {race.unit}", theme)
    axis.grid(axis="x", color=theme.faint, linewidth=0.6)
    room = max(summary.high for summary in chosen)
    axis.set_xlim(0, room * 1.14)
    for i, summary in enumerate(chosen):
        axis.text(summary.high + room * 0.015, i, f"{summary.value:.2f}", va="center", color=theme.text, fontsize=TEXT)


def style(axis: Any, title: str, theme: Theme) -> None:
    axis.set_facecolor(theme.background)
    axis.set_title(title, loc="left", color=theme.text, fontsize=TEXT + 1)
    axis.tick_params(colors=theme.text, labelsize=TEXT, length=0)
    axis.set_axisbelow(True)
    for side in axis.spines.values():
        side.set_visible(False)
