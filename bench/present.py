"""Charts and the document of a race, from what was measured now or in an earlier run."""

from __future__ import annotations

from pathlib import Path

import charts
import document
import growth_chart
from run_results import Results

FORMS = ((charts.LIGHT, charts.DARK), (".svg",))


def write(measured: Results, chart_directory: Path | None, document_file: Path | None) -> None:
    if chart_directory:
        for path in draw(measured, chart_directory):
            print(f"[bench] chart: {path}")
    if document_file:
        document.update(document_file, measured)
        print(f"[bench] document: {document_file}")


def draw(measured: Results, directory: Path) -> list[Path]:
    """A file for each set of races of which at least one was run."""
    summaries = measured.summaries
    paths = []
    for name, (title, panels) in charts.SETS.items():
        if any(summary.case.race in panels for summary in summaries):
            paths += charts.draw(
                summaries, f"{title}\n{measured.about['model']}; {subtitle(measured)}", directory / name, *FORMS, panels
            )
    if measured.points:
        paths += growth_chart.draw(
            measured.points, f"How cost grows\n{subtitle(measured)}", directory / "race-growth", *FORMS
        )
    return paths


def subtitle(measured: Results) -> str:
    about = measured.about
    return f"{about['cores']} cores, {about['filesystem'].split()[0]}, Linux {about['kernel'].split('-')[0]}"
