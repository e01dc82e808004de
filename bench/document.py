"""The generated part of docs/benchmarks.md: between two markers, every table of a race, as Markdown."""

from __future__ import annotations

from pathlib import Path

import charts
import report
from cases import GROUPS
from run_results import Results
from summary import Summary, not_first

BEGIN = "<!-- race.py --document writes from here -->"
END = "<!-- to here -->"
GROUP_TITLES = {
    "engine": "One file of safetensors, and what surrounds it",
    "flashpack": "FlashPack",
    "torch": "Files of torch.save",
    "shapes": "Other shapes of models",
}
ABOUT = {
    "processor": "Processor",
    "cores": "Cores",
    "memory_gib": "Memory, GiB",
    "python": "Python",
    "caches_dropped_by": "Page cache dropped by",
    "model": "Model",
    "rounds": "Rounds",
    "seed": "Seed of the order",
    "idle_seconds": "Rest before each start, s",
    "memory_rest_seconds": "From the last process's end to a load, at least, s",
    "memory_at_hand": "Memory at hand before each start, of the model's size",
    "date": "Date",
    "minutes": "The whole run, minutes",
}
NAMES_OF_CHARTS = {"engine": ("race", "race-states"), "flashpack": ("race-flashpack",)}
NAMES_OF_CHARTS |= {"torch": ("race-torch", "race-background"), "shapes": ("race-shapes-gib", "race-shapes-ms")}


def update(path: Path, measured: Results) -> None:
    """Replaces what lies between the markers, and nothing else."""
    text = path.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise SystemExit(f"[bench] {path} has no place for the tables: a line '{BEGIN}', and after it '{END}'")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n\n{render(measured, path.parent)}\n{END}{after}")


def render(measured: Results, directory: Path) -> str:
    """The tables, with those charts that lie in `images` beside the document."""
    summaries = measured.summaries
    parts = [machine_section(measured), losses_section(summaries), promises_section(summaries)]
    parts += [group_section(name, summaries, directory) for name in GROUPS]
    parts += [growth_section(measured, directory), not_raced_section(measured)]
    return "\n".join(part for part in parts if part)


def machine_section(measured: Results) -> str:
    table = report.Table("", ["The machine and the run", ""], text_columns=2)
    for key, title in ABOUT.items():
        if key in measured.about:
            table.add([title, str(measured.about[key])])
    table.add(["Kernel", str(measured.about.get("kernel", "unknown")).split("-")[0]])
    table.add(["Filesystem", str(measured.about.get("filesystem", "unknown")).split()[0]])
    for name, version in measured.about.get("peers", {}).items():
        table.add([name, str(version)])
    return f"### Where and when\n\n{table.markdown()}\n"


def losses_section(summaries: list[Summary]) -> str:
    if not not_first(summaries):
        return f"### Races that penstock did not win\n\nNone: {report.losses_in_words(summaries)}.\n"
    return f"### Races that penstock did not win\n\n{report.loss_table(summaries).markdown()}\n"


def promises_section(summaries: list[Summary]) -> str:
    table = report.promise_table(summaries)
    if not table.rows:
        return ""
    missed = len(table.highlighted)
    words = f"{len(table.rows) - missed} hold, {missed} were missed (bold)." if missed else "All hold."
    return f"### What penstock promises\n\n{words}\n\n{table.markdown()}\n"


def group_section(name: str, summaries: list[Summary], directory: Path) -> str:
    tables = [report.race_table(summaries, race.key) for race in GROUPS[name]]
    shown = [f"**{sentence(table.title)}**\n\n{table.markdown()}\n" for table in tables if table]
    if not shown:
        return ""
    pictures = "".join(picture(chart, charts.SETS[chart][0], directory) for chart in NAMES_OF_CHARTS[name])
    return f"### {GROUP_TITLES[name]}\n\n{pictures}" + "\n".join(shown)


def growth_section(measured: Results, directory: Path) -> str:
    tables = report.growth_tables(measured.points)
    if not tables:
        return ""
    shown = "\n".join(f"{table.markdown()}\n" for table in tables)
    return f"### How cost grows\n\n{picture('race-growth', 'How cost grows', directory)}{shown}"


def not_raced_section(measured: Results) -> str:
    return f"### Not raced\n\n{report.not_raced_table(measured.left_out).markdown()}\n"


def picture(name: str, title: str, directory: Path) -> str:
    if not (directory / "images" / f"{name}-light.svg").exists():
        return ""
    return (
        f'<picture>\n  <source media="(prefers-color-scheme: dark)" srcset="images/{name}-dark.svg">\n'
        f'  <img alt="{title}" src="images/{name}-light.svg">\n</picture>\n\n'
    )


def sentence(text: str) -> str:
    return text[0].upper() + text[1:]
