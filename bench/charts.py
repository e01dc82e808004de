"""Bar charts of a race, for light and dark pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cases import (
    ASSIGN_COLD,
    ASSIGN_WARM,
    BLOCKED,
    COLD_LOAD,
    PACK,
    SAVE,
    TORCH_COLD,
    TORCH_MANY,
    TORCH_SAVE,
    TORCH_WARM,
    TRAINING,
    WARM_LOAD,
    Race,
)
from summary import Summary, best_first


@dataclass(frozen=True)
class Theme:
    name: str
    background: str
    text: str
    faint: str
    colours: dict[str, str]  # by role


LIGHT = Theme("light", "#ffffff", "#1f2328", "#d0d7de", {"ours": "#0969da", "peer": "#9aa4af", "ceiling": "#d9a441"})
DARK = Theme("dark", "#0d1117", "#e6edf3", "#30363d", {"ours": "#4493f8", "peer": "#6e7681", "ceiling": "#d9a441"})
LEGEND = {"ours": "penstock", "peer": "others", "ceiling": "fio (the drive)"}
PANELS = (COLD_LOAD, WARM_LOAD, SAVE)
FLASHPACK_PANELS = (ASSIGN_COLD, ASSIGN_WARM, PACK)
TORCH_PANELS = (TORCH_SAVE, TORCH_COLD, TORCH_WARM, TORCH_MANY)
BACKGROUND_PANELS = (BLOCKED, TRAINING)


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


def _figure(summaries: list[Summary], title: str, theme: Theme, races: tuple[Race, ...]) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    panels = [(race, best_first(summaries, race.key)) for race in races]
    panels = [(race, chosen) for race, chosen in panels if chosen]
    heights = [len(chosen) + 1.2 for _, chosen in panels]
    figure = Figure(figsize=(9, 0.36 * sum(heights) + 0.8), layout="constrained")
    axes = figure.subplots(len(panels), 1, height_ratios=heights, squeeze=False)
    for axis, (race, chosen) in zip(axes[:, 0], panels, strict=True):
        _panel(axis, race, chosen, theme)
    roles = [role for role in LEGEND if any(summary.case.role == role for summary in summaries)]
    labels = LEGEND if races != BACKGROUND_PANELS else {**LEGEND, "ceiling": "the least it takes"}
    handles = [Patch(color=theme.colours[role], label=labels[role]) for role in roles]
    figure.suptitle(title, color=theme.text, fontsize=11, fontweight="bold")
    figure.legend(
        handles=handles, loc="outside lower center", ncols=3, frameon=False, labelcolor=theme.text, fontsize=9
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
        axis.text(summary.high + room * 0.015, i, f"{summary.value:.2f}", va="center", color=theme.text, fontsize=9)


def style(axis: Any, title: str, theme: Theme) -> None:
    axis.set_facecolor(theme.background)
    axis.set_title(title, loc="left", color=theme.text, fontsize=10)
    axis.tick_params(colors=theme.text, labelsize=9, length=0)
    axis.set_axisbelow(True)
    for side in axis.spines.values():
        side.set_visible(False)
