"""The two comparisons that FlashPack publishes of itself, with penstock beside it: see bench/README.md.

state-dict: GPT-2's weights into a model that is there. sizes: models of several sizes, saved and loaded.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import charts
import machine
import model
import report
import run_results
import size_chart
from cases import MODEL_LOAD, MODEL_SAVE, STATE_DICT, STATE_DICT_COLD, Race, all_cases
from race import ROOT, add_setting_arguments, run, versions
from runner import Input, MeasurementError, Series, Setting
from summary import Summary, summarise


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="0.5,1,2", metavar="GIB,...", help="of the models (default: %(default)s)")
    parser.add_argument("--skip", choices=["state-dict", "sizes"], help="leave one of the two out")
    add_setting_arguments(parser)
    return parser.parse_args()


def setting_of(arguments: argparse.Namespace, directory: Path, file: Path, expected: model.Expected) -> Setting:
    return Setting(
        directory,
        file,
        file,
        expected,
        arguments.python,
        arguments.peer_python,
        arguments.idle,
        arguments.drop == "everything",
        arguments.memory == "at-hand",
    )


def prepare(arguments: argparse.Namespace, gib: float) -> Setting:
    """The model of one size; the file of many tensors is not raced here."""
    directory: Path = arguments.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(directory).free < 3.5 * gib * model.GIB:
        raise SystemExit(
            f"[bench] {directory} has too little room for a model of {gib:g} GiB in two formats and a copy"
        )
    file = directory / f"model-{gib:g}GiB.safetensors"
    expected = model.ensure(file, model.transformer(model.layers_for(gib)))
    return setting_of(arguments, directory, file, expected)


def prepare_gpt2(arguments: argparse.Namespace) -> Setting:
    directory: Path = arguments.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "gpt2.safetensors"
    expected = model.ensure(file, model.gpt2())
    setting = setting_of(arguments, directory, file, expected)
    setting.extra["gpt2"] = Input(file, expected)
    return setting


def measure(races: tuple[Race, ...], setting: Setting, arguments: argparse.Namespace) -> list[Series]:
    cases = [case for case in all_cases() if case.race in races]
    return run(cases, setting, arguments.rounds or 5, arguments.seed)


def show(summaries: list[Summary], races: tuple[Race, ...], title: str) -> None:
    for race in races:
        table = report.race_table(summaries, race.key)
        assert table is not None
        table.title = f"{title}: {table.title}"
        table.show()


def compare_state_dicts(arguments: argparse.Namespace) -> dict[str, Any]:
    races = (STATE_DICT, STATE_DICT_COLD)
    series = measure(races, prepare_gpt2(arguments), arguments)
    summaries = [summarise(one) for one in series]
    show(summaries, races, "GPT-2, 0.46 GiB of float32")
    if arguments.chart:
        stem, forms = arguments.chart / "flashpack-state-dict", ((charts.LIGHT, charts.DARK), (".png", ".svg"))
        announce(charts.draw(summaries, "A state dict into a model (less is better)", stem, *forms, races))
    return run_results.as_json(run_results.Results({}, series))


def compare_sizes(arguments: argparse.Namespace) -> dict[str, Any]:
    races = (MODEL_LOAD, MODEL_SAVE)
    by_size: dict[float, list[Summary]] = {}
    measured = {}
    for gib in map(float, arguments.sizes.split(",")):
        setting = prepare(arguments, gib)
        series = measure(races, setting, arguments)
        by_size[gib] = [summarise(one) for one in series]
        measured[f"{gib:g} GiB"] = run_results.as_json(run_results.Results({}, series))
        show(by_size[gib], races, report.payload_gib(setting.expected.nbytes))
    if arguments.chart:
        title = "Models of bf16, saved and loaded (more is better)"
        announce(size_chart.draw(by_size, races, title, arguments.chart / "flashpack-sizes"))
    return measured


def announce(paths: list[Path]) -> None:
    for path in paths:
        print(f"[bench] chart: {path}")


def main() -> int:
    arguments = parse_arguments()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    peers = ["flashpack", "safetensors", "accelerate", "torch"]
    about: dict[str, Any] = {
        **machine.describe(arguments.directory, arguments.drop == "everything"),
        "penstock": versions(arguments.python, ["penstock", "torch"]),
        "peers": versions(arguments.peer_python, peers),
    }
    for key, value in about.items():
        print(f"[bench] {key.replace('_', ' ')}: {value}")
    content: dict[str, Any] = {"about": about}
    try:
        if arguments.skip != "state-dict":
            content["state_dict"] = compare_state_dicts(arguments)
        if arguments.skip != "sizes":
            content["sizes"] = compare_sizes(arguments)
    except (MeasurementError, subprocess.CalledProcessError) as error:
        print(f"[bench] FAILED: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\n[bench] stopped", file=sys.stderr)
        return 130
    path = ROOT / "results" / time.strftime("flashpack-%Y%m%d-%H%M%S.json")
    run_results.write(path, content)
    print(f"\n[bench] every measurement: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
