"""The comparison of the fastsafetensors paper: safetensors, fastsafetensors and penstock, with 1, 2 and 4 ranks.

    bench/paper.py                                  # five models of 1 GiB, 3 rounds: three quarters of an hour
    bench/paper.py --quick                          # two models of 1/4 GiB, 1 and 2 ranks, 1 round: two minutes
    bench/paper.py --models "Llama 70B" --ranks 4   # some of it
    bench/paper.py --chart docs/images              # also the chart, for light and dark pages
    bench/paper.py --from results/paper-X.json --chart DIR

The models are Llama 7B, 13B and 70B, Falcon 40B and Bloom 176B, their dimensions scaled down: see paper_models.py. Each
rank ends with its part of what tensor parallelism splits, and the whole of the rest, every byte in memory. Cold files,
fresh processes, rounds in random order: see README.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import paper_chart
import paper_models as models
import rank_options
import ranks
import run_results
from model import GIB
from race import ROOT
from rank_table import HEADING, Row, line_of, row_of
from rank_ways import BY_KEY, WAYS, Way

QUICK_MODELS, QUICK_RANKS = ("Llama 7B", "Bloom 176B"), (1, 2)
ALL_RANKS = (1, 2, 4)


@dataclass(frozen=True)
class Result:
    """One way of loading one model with so many ranks."""

    model: str
    ranks: int
    way: str
    measurements: list[dict[str, Any]]

    @property
    def row(self) -> Row:
        return row_of(self.way, self.measurements)


def key_of(model: str, count: int, way: Way) -> str:
    return f"{model}, {count} rank{'' if count == 1 else 's'}, {way.name}"


def entries_of(scaled: models.Scaled, checkpoint: ranks.Checkpoint, counts: tuple[int, ...]) -> list[ranks.Entry]:
    plan = models.PLANS[scaled.architecture.family]
    return [
        ranks.Entry(key_of(checkpoint.name, count, way), way, checkpoint, count, plan)
        for count in counts
        for way in WAYS
    ]


def measure_model(
    scaled: models.Scaled, setting: ranks.Setting, arguments: argparse.Namespace, left_out: dict[str, str]
) -> list[Result]:
    """The checkpoint is written for it, and removed afterwards."""
    name = scaled.architecture.name
    folder = setting.directory / name.lower().replace(" ", "-")
    try:
        checkpoint = ranks.write_checkpoint(name, folder, models.shards_of(scaled.architecture))
        entries, unable = ranks.without_those_that_cannot_run(entries_of(scaled, checkpoint, arguments.ranks), setting)
        left_out |= unable
        results = ranks.run(entries, setting, arguments.rounds, arguments.seed, left_out)
    finally:
        if not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)
    return [Result(name, entry.ranks, entry.way.key, results[entry.key]) for entry in entries if entry.key in results]


def show(results: list[Result]) -> None:
    """A table for each model: the ways by speed, and how many times as fast as safetensors each is."""
    for model in dict.fromkeys(result.model for result in results):
        print(f"\n{model}\n{HEADING} {'x safetensors':>14}")
        for count in sorted({result.ranks for result in results if result.model == model}):
            rows = [result.row for result in results if (result.model, result.ranks) == (model, count)]
            base = next((row.gib_per_second for row in rows if row.key == "safetensors"), None)
            for row in sorted(rows, key=lambda row: -row.gib_per_second):
                ratio = f"{row.gib_per_second / base:14.2f}" if base else ""
                print(f"{line_of(row, f'{count} x {BY_KEY[row.key].name}')} {ratio}")


def as_json(about: dict[str, Any], results: list[Result], left_out: dict[str, str]) -> dict[str, Any]:
    return {
        "about": about,
        "results": [{**asdict(result), "summary": asdict(result.row)} for result in results],
        "left_out": left_out,
    }


def read(path: Path) -> tuple[dict[str, Any], list[Result], dict[str, str]]:
    content = json.loads(path.read_text())
    fields = ("model", "ranks", "way", "measurements")
    results = [Result(*(one[field] for field in fields)) for one in content["results"] if one["way"] in BY_KEY]
    return content["about"], results, content["left_out"]


def chosen_models(names: str) -> list[models.Architecture]:
    known = {one.name: one for one in models.ARCHITECTURES}
    wanted = [name.strip() for name in names.split(",")] if names else list(known)
    for name in wanted:
        if name not in known:
            raise SystemExit(f"[bench] there is no model {name!r}; there are {', '.join(known)}")
    return [known[name] for name in wanted]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two models of 1/4 GiB, 1 and 2 ranks, 1 round")
    parser.add_argument("--models", default="", metavar="A,B", help="some of them, by name (default: all five)")
    parser.add_argument("--ranks", metavar="1,2,4", help="how many ranks load a model")
    parser.add_argument("--size", type=float, metavar="GIB", help="what a model is scaled down to (default: 1)")
    parser.add_argument("--rounds", type=int, help="measurements of each (default: 3)")
    parser.add_argument("--chart", type=Path, metavar="DIR", help="draw the chart there, as paper-light.svg and -dark")
    parser.add_argument("--from", type=Path, dest="source", metavar="JSON", help="measure nothing: show an earlier run")
    rank_options.add_options(parser)
    arguments = parser.parse_args()
    quick = arguments.quick
    arguments.models = chosen_models(arguments.models or (",".join(QUICK_MODELS) if quick else ""))
    arguments.ranks = tuple(map(int, arguments.ranks.split(","))) if arguments.ranks else ALL_RANKS
    arguments.ranks = QUICK_RANKS if quick and arguments.ranks == ALL_RANKS else arguments.ranks
    arguments.size = arguments.size or (0.25 if quick else 1.0)
    arguments.rounds = arguments.rounds or (1 if quick else 3)
    return arguments


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Result], dict[str, str]]:
    setting = rank_options.setting_of(arguments)
    scaled = [models.scaled_to(one, round(arguments.size * GIB)) for one in arguments.models]
    about = rank_options.describe(setting, arguments.rounds, arguments.seed)
    about["models"] = {one.architecture.name: one.in_words() for one in scaled}
    rank_options.show_about({key: value for key, value in about.items() if key != "models"})
    left_out: dict[str, str] = {}
    results: list[Result] = []
    for one in scaled:
        if ranks.STOPPED in left_out.values():
            break
        print(f"\n[bench] {one.in_words()}", flush=True)
        results += measure_model(one, setting, arguments, left_out)
    return about, results, left_out


def main() -> int:
    arguments = parse_arguments()
    about, results, left_out = read(arguments.source) if arguments.source else measure(arguments)
    print(f"\n{chr(10).join(about['models'].values())}")
    show(results)
    if not arguments.source:
        path = arguments.output or ROOT / "results" / time.strftime("paper-%Y%m%d-%H%M%S.json")
        run_results.write(path, as_json(about, results, left_out))
        print(f"\n[bench] every measurement: {path}")
    if arguments.chart and results:
        bars = [
            paper_chart.Bar(one.model, one.ranks, one.way, row.gib_per_second, row.low, row.high)
            for one in results
            for row in [one.row]
        ]
        for path in paper_chart.draw(bars, about, arguments.chart):
            print(f"[bench] chart: {path}")
    if ranks.STOPPED in left_out.values():
        return 130
    return 1 if any(reason.startswith("failed: ") for reason in left_out.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
