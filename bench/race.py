"""The measured race: penstock beside fio and other loaders, in one run. See bench/README.md for how it measures."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import machine
import model
import report
from cases import RACES, Case, all_cases
from runner import Input, MeasurementError, Series, Setting, find_peer_python, run_rounds
from summary import summarise

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a model of half a GiB and three rounds")
    parser.add_argument("--size", type=float, metavar="GIB", help="size of the model (default: 2)")
    parser.add_argument(
        "--races", default="", metavar="KEYS", help=f"of {','.join(r.key for r in RACES)} (default: all)"
    )
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="only cases that match, as in 'cold: penstock.load'"
    )
    parser.add_argument("--all", action="store_true", help="also the cases that are not raced by default")
    parser.add_argument("--list", action="store_true", help="print the cases and stop")
    add_setting_arguments(parser)
    return parser.parse_args()


def add_setting_arguments(parser: argparse.ArgumentParser) -> None:
    """Where and with what, for every program that measures."""
    parser.add_argument("--rounds", type=int, help="measurements per case (default: 5)")
    parser.add_argument(
        "--directory", type=Path, default=ROOT / "results" / "data", help="where the files are (default: %(default)s)"
    )
    parser.add_argument(
        "--idle", type=float, default=1.0, metavar="SECONDS", help="rest before each start (default: 1)"
    )
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="of the random order")
    parser.add_argument(
        "--chart", type=Path, metavar="DIR", help="draw charts for light and dark pages, .png and .svg, there"
    )
    parser.add_argument("--python", default=sys.executable, help="that has penstock (default: this one)")
    parser.add_argument(
        "--peer-python", default=find_peer_python(ROOT), help="that has the others (default: .venv-bench)"
    )


def without_those_that_cannot_run(cases: list[Case], arguments: argparse.Namespace) -> list[Case]:
    """Tries what the cases need, once per Python, and says aloud what is left out."""
    problems: dict[tuple[str, str], str] = {}
    for case in filter(lambda case: case.needs, cases):
        python = arguments.python if case.role == "ours" else arguments.peer_python
        key = (case.needs, python)
        if key not in problems:
            command = [python, "-c", case.needs]
            tried = subprocess.run(command, cwd=BENCH, capture_output=True, text=True)
            problems[key] = tried.stderr.strip().splitlines()[-1] if tried.returncode else ""
        if problems[key]:
            print(f"[bench] left out: {case.key} ({problems[key]})")
            cases = [one for one in cases if one is not case]
    return cases


def choose_cases(arguments: argparse.Namespace) -> list[Case]:
    races = arguments.races.split(",") if arguments.races else [race.key for race in RACES]
    chosen = [
        case
        for case in all_cases()
        if case.race.key in races
        and (arguments.all or case.runs_by_default or arguments.only)
        and re.search(arguments.only, case.key)
    ]
    if not chosen:
        raise SystemExit("[bench] no case matches; --list shows all")
    if any(case.role == "ceiling" for case in chosen) and shutil.which("fio") is None:
        raise SystemExit("[bench] fio was not found; scripts/setup.sh installs it")
    return chosen


def versions(python: str, modules: list[str]) -> dict[str, str]:
    program = (
        "import json, sys; from importlib.metadata import version, PackageNotFoundError\n"
        "found = {}\n"
        "for name in sys.argv[1:]:\n"
        "    try: found[name] = version(name)\n"
        "    except PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    text = subprocess.run([python, "-c", program, *modules], check=True, capture_output=True, text=True).stdout
    return dict(json.loads(text))


def prepare(arguments: argparse.Namespace) -> Setting:
    gib = arguments.size or (0.5 if arguments.quick else 2.0)
    directory = arguments.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"model-{gib:g}GiB.safetensors"
    many = directory / "many.safetensors"
    many_torch = directory / "many-torch.safetensors"
    if shutil.disk_usage(directory).free < 3.5 * gib * model.GIB:
        raise SystemExit(f"[bench] {directory} has too little room for the model in two formats and a saved copy")
    expected = model.ensure(file, model.transformer(model.layers_for(gib)))
    setting = Setting(directory, file, many, expected, arguments.python, arguments.peer_python, arguments.idle)
    setting.extra["many"] = Input(many, model.ensure(many, model.many_small()))
    setting.extra["many-torch"] = Input(many_torch, model.ensure(many_torch, model.many_small(20_000)))
    tiny = directory / "tiny.safetensors"
    setting.extra["tiny"] = Input(tiny, model.ensure(tiny, model.tiny()))
    return setting


def run(cases: list[Case], setting: Setting, rounds: int, seed: int) -> list[Series]:
    all_series: dict[str, Series] = {}
    total, begin = rounds * len(cases), time.monotonic()
    for done, (series, number) in enumerate(run_rounds(cases, setting, rounds, seed), start=1):
        all_series[series.case.key] = series
        last = series.results[-1]
        left = (time.monotonic() - begin) / done * (total - done)
        print(
            f"[bench] round {number + 1}/{rounds}  {done:3}/{total}  {series.case.key:45} "
            f"{1000 * last['seconds']:9.1f} ms   {left / 60:.1f} minutes to go",
            flush=True,
        )
    return list(all_series.values())


def main() -> int:
    arguments = parse_arguments()
    cases = choose_cases(arguments)
    if arguments.list:
        print("\n".join(f"{case.key:45} {case.role}" for case in cases))
        return 0
    rounds = arguments.rounds or (3 if arguments.quick else 5)
    cases = without_those_that_cannot_run(cases, arguments)
    setting = prepare(arguments)
    about: dict[str, Any] = {
        **machine.describe(setting.directory),
        "model": f"{report.payload_gib(setting.expected.nbytes)} bf16, {setting.expected.tensors} tensors",
        "rounds": rounds,
        "seed": arguments.seed,
        "idle_seconds": setting.idle_seconds,
        "penstock": versions(setting.python, ["penstock", "torch", "numpy"]),
        "peers": versions(
            setting.peer_python, ["safetensors", "fastsafetensors", "flashpack", "deepspeed", "torch", "numpy"]
        ),
    }
    for key, value in about.items():
        print(f"[bench] {key.replace('_', ' ')}: {value}")
    try:
        series = run(cases, setting, rounds, arguments.seed)
    except (MeasurementError, subprocess.CalledProcessError) as error:
        print(f"[bench] FAILED: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\n[bench] stopped", file=sys.stderr)
        return 130
    summaries = [summarise(one) for one in series]
    report.show(summaries)
    path = ROOT / "results" / time.strftime("race-%Y%m%d-%H%M%S.json")
    report.write_json(path, report.as_json(summaries, series, about))
    print(f"\n[bench] every measurement: {path.relative_to(ROOT)}")
    if arguments.chart:
        draw(summaries, about, arguments.chart)
    return 0


def draw(summaries: list[Any], about: dict[str, Any], directory: Path) -> None:
    import charts

    title = f"{about['model']}, {about['cores']} cores, {about['filesystem'].split()[0]}"
    forms = ((charts.LIGHT, charts.DARK), (".png", ".svg"))
    for name, panels in (
        ("race", charts.PANELS),
        ("race-flashpack", charts.FLASHPACK_PANELS),
        ("race-torch", charts.TORCH_PANELS),
        ("race-background", charts.BACKGROUND_PANELS),
    ):
        if any(summary.case.race in panels for summary in summaries):
            for path in charts.draw(summaries, title, directory / name, *forms, panels):
                print(f"[bench] chart: {path}")


if __name__ == "__main__":
    sys.exit(main())
