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

import growth
import inputs
import machine
import present
import report
import run_results
from cases import EXTRA_GROUPS, GROUPS, RACES, Case, all_cases
from runner import MEMORY_AT_HAND, MEMORY_REST_SECONDS, MeasurementError, Series, Setting, find_peer_python, run_rounds

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
GROWTH = "growth"
STOPPED = "stopped before its end"
PEERS = [
    *("safetensors", "fastsafetensors", "flashpack", "runai-model-streamer", "tensorizer", "deepspeed"),
    *("accelerate", "torch", "numpy"),
]
# What two minutes have time for.
QUICK = (
    *("cold: fio direct read", "cold: safetensors load_file", "cold: fastsafetensors", "cold: penstock.load"),
    *("warm: safetensors load_file", "warm: penstock.load"),
    *("save: fio direct write", "save: safetensors save_file + fsync", "save: penstock.save"),
    *("1mib-warm: safetensors load_file", "1mib-warm: penstock.load"),
)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    names = ",".join([*GROUPS, GROWTH, *EXTRA_GROUPS])
    keys = ",".join(race.key for race in RACES)
    parser.add_argument("--quick", action="store_true", help="a few cases, half a GiB, three rounds: two minutes")
    parser.add_argument("--size", type=float, metavar="GIB", help="size of the model (default: 2)")
    parser.add_argument(
        "--races",
        default="",
        metavar="NAMES",
        help=f"groups ({names}) and races ({keys}); default: all but {','.join(EXTRA_GROUPS)}",
    )
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="only cases that match, as in 'cold: penstock.load'"
    )
    parser.add_argument("--all", action="store_true", help="also the cases that are not raced by default")
    parser.add_argument("--list", action="store_true", help="print the cases and stop")
    parser.add_argument(
        "--from",
        type=Path,
        dest="source",
        metavar="JSON",
        help="measure nothing: show what an earlier run has measured",
    )
    parser.add_argument(
        "--document", type=Path, metavar="FILE", help="write the tables between the markers of this Markdown file"
    )
    parser.add_argument("--rounds", type=int, help="measurements per case, twice as many cold loads (default: 5)")
    parser.add_argument(
        "--directory", type=Path, default=ROOT / "results" / "data", help="where the files are (default: %(default)s)"
    )
    parser.add_argument(
        "--idle", type=float, default=1.0, metavar="SECONDS", help="least rest before each start (default: 1)"
    )
    parser.add_argument(
        "--drop",
        choices=["file", "everything"],
        default="file",
        help="what leaves the page cache before a cold start: the raced files (default), or all of it (as root)",
    )
    parser.add_argument(
        "--memory",
        choices=["as-it-is", "at-hand"],
        default="as-it-is",
        help="fresh memory: as processes and hypervisor leave it (default), or had from the latter before each start",
    )
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="of the random order")
    parser.add_argument(
        "--chart", type=Path, metavar="DIR", help="draw charts for light and dark pages, as .svg, there"
    )
    parser.add_argument("--python", default=sys.executable, help="that has penstock (default: this one)")
    parser.add_argument(
        "--peer-python", default=find_peer_python(ROOT), help="that has the others (default: .venv-bench)"
    )
    return parser.parse_args()


def without_those_that_cannot_run(
    cases: list[Case], arguments: argparse.Namespace
) -> tuple[list[Case], dict[str, str]]:
    """Tries what the cases need, once per Python, and says aloud what is left out.

    Gives the others, and the reasons.
    """
    problems: dict[tuple[str, str], str] = {}
    left_out = {}
    for case in filter(lambda case: case.needs, cases):
        python = arguments.python if case.role == "ours" else arguments.peer_python
        key = (case.needs, python)
        if key not in problems:
            command = [python, "-c", case.needs, str(arguments.directory)]
            tried = subprocess.run(command, cwd=BENCH, capture_output=True, text=True)
            problems[key] = tried.stderr.strip().splitlines()[-1] if tried.returncode else ""
        if problems[key]:
            print(f"[bench] left out: {case.key} ({problems[key]})")
            left_out[case.key] = problems[key]
    return [case for case in cases if case.key not in left_out], left_out


def chosen_races(arguments: argparse.Namespace) -> list[str]:
    """The keys of races that were asked for, with GROWTH if that was; groups stand for theirs."""
    known = {race.key: [race.key] for race in RACES} | {GROWTH: [GROWTH]}
    known |= {name: [race.key for race in races] for name, races in (GROUPS | EXTRA_GROUPS).items()}
    known |= {race.key: [race.key] for races in EXTRA_GROUPS.values() for race in races}
    names = arguments.races.split(",") if arguments.races else [*GROUPS, GROWTH]
    for name in names:
        if name not in known:
            raise SystemExit(f"[bench] there is no race or group '{name}'; there are {', '.join(known)}")
    return list(dict.fromkeys(key for name in names for key in known[name]))


def choose_cases(arguments: argparse.Namespace) -> list[Case]:
    races = chosen_races(arguments)
    chosen = [
        case
        for case in all_cases()
        if case.race.key in races
        and (arguments.all or case.in_default_race or arguments.only)
        and re.search(arguments.only, case.key)
    ]
    if arguments.quick and not (arguments.races or arguments.only):
        chosen = [case for case in chosen if case.key in QUICK]
    if not chosen and not grows(arguments):
        raise SystemExit("[bench] no case matches; --list shows all")
    if any(case.role == "ceiling" for case in chosen) and shutil.which("fio") is None:
        raise SystemExit("[bench] fio was not found; scripts/setup.sh installs it")
    return chosen


def grows(arguments: argparse.Namespace) -> bool:
    """Whether growth is measured: when it was asked for, or everything was."""
    asked_for_all = not (arguments.races or arguments.only or arguments.quick)
    return asked_for_all or (bool(arguments.races) and GROWTH in chosen_races(arguments))


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


def prepare(cases: list[Case], arguments: argparse.Namespace, gib: float) -> Setting:
    keys = {case.race.input for case in cases} | {"model"}
    made = inputs.ensure(keys, gib, arguments.directory.resolve())
    return Setting(
        arguments.directory.resolve(),
        made["model"].file,
        made["model"].file,
        made["model"].expected,
        arguments.python,
        arguments.peer_python,
        arguments.idle,
        arguments.drop == "everything",
        arguments.memory == "at-hand",
        made,
    )


def memory_of_starts(setting: Setting) -> dict[str, float]:
    if setting.memory_at_hand:
        return {"memory_at_hand": MEMORY_AT_HAND}
    return {"memory_rest_seconds": MEMORY_REST_SECONDS}


def describe(setting: Setting, arguments: argparse.Namespace, rounds: int) -> dict[str, Any]:
    fio = (
        subprocess.run(["fio", "--version"], capture_output=True, text=True).stdout.strip()
        if shutil.which("fio")
        else ""
    )
    return {
        **machine.describe(setting.directory, setting.drop_everything),
        "model": f"{report.payload_gib(setting.expected.nbytes)} bf16, {setting.expected.tensors} tensors",
        "inputs": {
            key: f"{one.expected.tensors} tensors, {one.expected.nbytes / (1 << 20):.1f} MiB"
            for key, one in setting.extra.items()
        },
        "rounds": rounds,
        "seed": arguments.seed,
        "idle_seconds": setting.idle_seconds,
        **memory_of_starts(setting),
        "penstock": versions(setting.python, ["penstock", "torch", "numpy"]),
        "peers": {**versions(setting.peer_python, PEERS), **({"fio": fio.removeprefix("fio-")} if fio else {})},
    }


def run(
    cases: list[Case],
    setting: Setting,
    rounds: int,
    seed: int,
    left_out: dict[str, str] | None = None,
    into: dict[str, Series] | None = None,
) -> list[Series]:
    """With `left_out` a competitor that fails goes there, aloud, and doesn't cost the others their race.

    `into` holds what was measured even when this is interrupted.
    """
    all_series: dict[str, Series] = {} if into is None else into

    def failed(case: Case, reason: str) -> None:
        assert left_out is not None
        print(f"[bench] FAILED, and left out: {case.key}: {reason}", flush=True)
        left_out[case.key] = f"failed: {reason.splitlines()[0]}"
        all_series.pop(case.key, None)

    total, begin = sum(min(rounds, case.race.most_rounds) * case.race.per_round for case in cases), time.monotonic()
    rounds_of_all = run_rounds(cases, setting, rounds, seed, None if left_out is None else failed)
    for done, (series, number) in enumerate(rounds_of_all, start=1):
        all_series[series.case.key] = series
        tell(f"round {number + 1}/{rounds}  {series.case.key}", series, done, total, begin)
    return list(all_series.values())


def grow(measured: run_results.Results, setting: Setting, gib: float, rounds: int, seed: int) -> None:
    begin = time.monotonic()
    try:
        for series, amount, done, total in growth.run(setting, gib, min(rounds, growth.ROUNDS), seed):
            measured.add_grown(series, amount)
            unit = "MiB" if series.case.race in growth.BY_SIZE else "tensors"
            shown = amount >> 20 if unit == "MiB" else amount
            tell(f"{series.case.key}, {shown} {unit}", series, done, total, begin)
    except (MeasurementError, subprocess.CalledProcessError) as error:
        print(f"[bench] FAILED: growth: {error}", flush=True)
        measured.left_out["growth"] = f"failed: {error}"


def tell(what: str, series: Series, done: int, total: int, begin: float) -> None:
    left = (time.monotonic() - begin) / done * (total - done)
    milliseconds = 1000 * series.results[-1]["seconds"]
    print(f"[bench] {done:3}/{total}  {what:57} {milliseconds:9.1f} ms   {left / 60:.1f} minutes to go", flush=True)


def measure(arguments: argparse.Namespace, cases: list[Case]) -> run_results.Results:
    rounds = arguments.rounds or (3 if arguments.quick else 5)
    gib = arguments.size or (0.5 if arguments.quick else 2.0)
    arguments.directory.mkdir(parents=True, exist_ok=True)
    cases, left_out = without_those_that_cannot_run(cases, arguments)
    setting = prepare(cases, arguments, gib)
    measured = run_results.Results(describe(setting, arguments, rounds), left_out=left_out)
    for key, value in measured.about.items():
        print(f"[bench] {key.replace('_', ' ')}: {value}")
    begin = time.monotonic()
    found: dict[str, Series] = {}
    try:
        run(cases, setting, rounds, arguments.seed, measured.left_out, found)
        if grows(arguments):
            grow(measured, setting, gib, rounds, arguments.seed)
    except KeyboardInterrupt:
        if not found:
            raise
        print(f"\n[bench] {STOPPED}; this is what was measured until then", flush=True)
        measured.left_out["the rest"] = STOPPED
    measured.series = list(found.values())
    measured.about["minutes"] = round((time.monotonic() - begin) / 60, 1)
    return measured


def main() -> int:
    arguments = parse_arguments()
    if arguments.source:
        measured = run_results.read(arguments.source)
    else:
        cases = choose_cases(arguments)
        if arguments.list:
            print("\n".join(f"{case.key:55} {case.role}" for case in cases))
            return 0
        try:
            measured = measure(arguments, cases)
        except (MeasurementError, subprocess.CalledProcessError) as error:
            print(f"[bench] FAILED: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("\n[bench] stopped", file=sys.stderr)
            return 130
    report.show(measured)
    if not arguments.source:
        path = ROOT / "results" / time.strftime("race-%Y%m%d-%H%M%S.json")
        run_results.write(path, run_results.as_json(measured))
        print(f"[bench] every measurement: {path.relative_to(ROOT)}")
    present.write(measured, arguments.chart, arguments.document)
    if STOPPED in measured.left_out.values():
        return 130
    return 1 if any(reason.startswith("failed: ") for reason in measured.left_out.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
