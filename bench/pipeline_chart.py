"""The curves of bench/pipeline.py: rate over depth and over block size, a line per drive."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import charts
from charts import Theme
from pipeline import DRIVES, GB, LINKS, MIB, Pipeline, closed_rate, shared_rate

DEPTHS = tuple(range(1, 33))
BLOCKS = tuple(1 << power for power in range(16, 25))  # 64 KiB to 16 MiB
DEPTH_OF_BLOCKS = 8  # of the curves over block size: what the fastest drive of the table needs with 2 MiB


def draw(directory: Path) -> list[Path]:
    return charts.save(_figure, directory / "gpu-pipeline", (charts.LIGHT, charts.DARK), (".svg",))


def _figure(theme: Theme) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 9.2), layout="constrained")
    axes = figure.subplots(2, 2, sharey="row")
    for row, (name, link) in zip(axes, LINKS.items(), strict=True):
        for drive, colour in zip(DRIVES, (*theme.lines, theme.colours["ours"]), strict=True):
            base = Pipeline(drive, link)
            by_depth = [replace(base, slots=depth) for depth in DEPTHS]
            by_block = [replace(base, block=block, slots=DEPTH_OF_BLOCKS) for block in BLOCKS]
            _curve(row[0], DEPTHS, by_depth, colour)
            _curve(row[1], [block / MIB for block in BLOCKS], by_block, colour)
        _finish(row, f"{name}, {link / GB:g} GB/s", theme)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=len(DRIVES),
        frameon=False,
        labelcolor=theme.text,
        fontsize=charts.TEXT,
    )
    figure.suptitle("Disk to device, by the model: GB/s", color=theme.text, fontsize=14, fontweight="bold")
    return figure


def _curve(axis: Any, places: Any, pipelines: list[Pipeline], colour: str) -> None:
    label = f"drive of {pipelines[0].drive / GB:g} GB/s"
    axis.plot(places, [closed_rate(one) / GB for one in pipelines], color=colour, linewidth=2, label=label)
    axis.plot(places, [shared_rate(one) / GB for one in pipelines], color=colour, linewidth=1, linestyle=":")


def _finish(row: Any, link: str, theme: Theme) -> None:
    defaults = Pipeline(GB, GB)
    for axis, mark in ((row[0], defaults.slots), (row[1], defaults.block / MIB)):
        axis.set_ylim(bottom=0)
        axis.axvline(mark, color=theme.text, linewidth=0.8, linestyle="--")
        axis.grid(color=theme.faint, linewidth=0.6)
    charts.style(row[0], f"{link}: over depth, blocks of {_size(defaults.block)}", theme)
    charts.style(row[1], f"{link}: over block size, {DEPTH_OF_BLOCKS} blocks in flight", theme)
    row[1].set_xscale("log", base=2)
    row[1].set_xticks([block / MIB for block in BLOCKS[::2]], [_size(block) for block in BLOCKS[::2]])
    row[0].set_xlabel("blocks in flight", color=theme.text, fontsize=charts.TEXT)
    row[1].set_xlabel("block size", color=theme.text, fontsize=charts.TEXT)


def _size(block: int) -> str:
    return f"{block // MIB} MiB" if block >= MIB else f"{block >> 10} KiB"
