# ruff: noqa: E402 (the modules of bench/ can be imported only once it is in the path)
"""A tour of penstock on this machine: saves and loads a model in every format, checks every byte, and races the result.

Run by `make demo`. Files go to demo/ and are removed at the end, except for the chart.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

import charts
import machine
import model
import penstock
import torch
from cases import Case, find_case
from report import Table
from runner import MeasurementError, Setting, run_rounds
from summary import Summary, summarise
from tensors import as_bytes, read_into_memory

DEMO = ROOT / "demo"
DATA = DEMO / "data"
ROUNDS = 2
SHARDS = 4


@dataclass(frozen=True)
class Format:
    """A format of penstock's, as it is saved and found again."""

    name: str
    suffix: str
    shards: bool  # can it be saved as several files with an index?


FORMATS = [
    Format("safetensors", ".safetensors", shards=True),
    Format("flashpack", ".flashpack", shards=False),
    Format("torch", ".pt", shards=False),
    Format("torch-legacy", ".pt", shards=False),
]

# What is raced: a row of the table, and who takes part.
PLAYERS = ("penstock", "safetensors", "torch")
RACES = {
    "durable save": ("save: penstock.save", "save: safetensors save_file + fsync", "save: torch.save + fsync"),
    "cold load": ("cold: penstock.load", "cold: safetensors load_file", "cold: torch.load"),
    "warm load": ("warm: penstock.load", "warm: safetensors load_file", "warm: torch.load"),
}


class Screen:
    """Rich output on a terminal, plain lines in a pipe."""

    def __init__(self) -> None:
        self.live = sys.stdout.isatty()
        self._console: Any = None
        if self.live:
            from rich.console import Console

            self._console = Console(highlight=False)

    def say(self, text: str = "", style: str = "") -> None:
        if self._console:
            self._console.print(text, style=style, markup=False)
        else:
            print(text, flush=True)

    def title(self, text: str) -> None:
        self.say()
        self.say(text, style="bold")

    @contextlib.contextmanager
    def bar(self, what: str, total: int, unit_is_bytes: bool = True) -> Iterator[Callable[[int, int], None]]:
        """Gives a function of (done, total) that moves a bar; in a pipe it does nothing."""
        if not self.live:
            yield lambda _done, _total: None
            return
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TransferSpeedColumn,
        )

        text = TextColumn("  {task.description:44}")
        numbers = (
            [DownloadColumn(binary_units=True), TransferSpeedColumn()] if unit_is_bytes else [MofNCompleteColumn()]
        )
        with Progress(text, BarColumn(), *numbers, console=self._console, transient=True) as progress:
            task = progress.add_task(what, total=total)

            def advance(done: int, whole: int) -> None:
                progress.update(task, completed=done, total=whole)

            yield advance


def choose_gib() -> float:
    """One GiB, or what this machine's disk and memory have room for."""
    disk_gib = shutil.disk_usage(DEMO).free / model.GIB
    available_kib = int(machine.system_field("/proc/meminfo", "MemAvailable").split()[0])
    gib = min(1.0, disk_gib / 5, available_kib / (1 << 20) / 5)
    if gib < 0.1:
        raise SystemExit(
            f"[demo] too little room: {disk_gib:.1f} GiB of disk and {available_kib >> 10} MiB of memory are free"
        )
    return gib


def introduce(screen: Screen) -> None:
    about = machine.describe(DEMO)
    screen.say(f"penstock {penstock.__version__}: model weights between storage and memory", style="bold cyan")
    screen.say(f"{about['cores']} cores, {about['memory_gib']} GiB, Linux {about['kernel']}, {about['filesystem']}")


def make_model(screen: Screen) -> tuple[Path, model.Expected]:
    screen.title("A model")
    path = DATA / "model.safetensors"
    tensors = model.transformer(model.layers_for(choose_gib()))
    expected = model.write(path, tensors, seed=1)
    screen.say(
        f"  {expected.tensors} tensors of a transformer in bfloat16, "
        f"{expected.nbytes / model.GIB:.2f} GiB of random bits"
    )
    return path, expected


def verify(loaded: dict[str, torch.Tensor], original: dict[str, torch.Tensor]) -> None:
    """Every byte of every tensor, or the demo ends here."""
    if loaded.keys() != original.keys():
        raise SystemExit(f"[demo] FAILED: names differ: {sorted(loaded.keys() ^ original.keys())[:5]}")
    for name, tensor in original.items():
        same = loaded[name].shape == tensor.shape and loaded[name].dtype == tensor.dtype
        if not same or not (as_bytes(loaded[name]) == as_bytes(tensor)).all():
            raise SystemExit(f"[demo] FAILED: {name} is not what was saved")


def round_trip(screen: Screen, tensors: dict[str, torch.Tensor], nbytes: int, form: Format, shards: int) -> list[str]:
    """Saves, drops the page cache, loads and verifies; returns a row of the table."""
    folder = DATA / "tour"
    folder.mkdir()
    target = folder / f"model{form.suffix}"
    limit = -(-nbytes // shards) + (64 << 20) if shards > 1 else None
    label = f"{form.name}, {'sharded' if shards > 1 else 'one file'}"
    saved: dict[str, Any] = {}
    loaded_stats: dict[str, Any] = {}
    with screen.bar(f"saving {label}", nbytes) as progress:
        penstock.save(tensors, target, format=form.name, max_shard_size=limit, progress=progress, stats=saved)
    files = sorted(folder.glob(f"*{form.suffix}"))
    machine.drop_page_cache(files)
    with screen.bar(f"loading {label}", nbytes) as progress:
        loaded = penstock.load(folder if shards > 1 else target, progress=progress, stats=loaded_stats)
    verify(loaded, tensors)
    shutil.rmtree(folder)
    speeds = [f"{nbytes / model.GIB / stats['seconds']:.2f} GiB/s" for stats in (saved, loaded_stats)]
    return [form.name, str(len(files)), *speeds, str(loaded_stats["path"]), f"all {len(loaded)} tensors equal"]


def tour(screen: Screen, path: Path, expected: model.Expected) -> None:
    screen.title("Every format, there and back")
    tensors = read_into_memory(str(path))
    table = Table("saved, loaded cold, verified", ["format", "files", "save", "load", "path", "every byte"])
    for form in FORMATS:
        for shards in (1, SHARDS) if form.shards else (1,):
            row = round_trip(screen, tensors, expected.nbytes, form, shards)
            table.add(row, highlight=True)
    table.show()


def race(screen: Screen, path: Path, expected: model.Expected) -> list[Summary]:
    screen.title(
        f"Beside safetensors and torch: {ROUNDS} rounds in random order, a fresh process each, every page touched"
    )
    setting = Setting(DATA, path, path, expected, sys.executable, sys.executable, idle_seconds=0.3)
    found = [find_case(key) for keys in RACES.values() for key in keys]
    # Once in a round is enough for a first impression; `make bench` looks longer.
    cases: list[Case] = [replace(case, race=replace(case.race, per_round=1)) for case in found]
    per_round = len(cases)
    total, series = ROUNDS * per_round, {}
    with screen.bar("measuring", total, unit_is_bytes=False) as progress:
        for done, (one, _) in enumerate(run_rounds(cases, setting, ROUNDS, seed=time.time_ns()), start=1):
            series[one.case.key] = one
            progress(done, total)
            if not screen.live and done % per_round == 0:
                screen.say(f"  round {done // per_round} of {ROUNDS} measured")
    return [summarise(one) for one in series.values()]


def show_race(summaries: list[Summary]) -> None:
    by_key = {summary.case.key: summary for summary in summaries}
    columns = ["", *(f"{player}, GiB/s" for player in PLAYERS), "over safetensors", "over torch"]
    table = Table("medians", columns)
    for name, keys in RACES.items():
        ours, *others = (by_key[key] for key in keys)
        speeds = [f"{summary.value:.2f}" for summary in (ours, *others)]
        table.add([name, *speeds, *(f"{ours.speed_over(other):.1f}x" for other in others)])
    table.show()


def draw(screen: Screen, summaries: list[Summary], expected: model.Expected) -> None:
    title = f"{expected.nbytes / model.GIB:.2f} GiB in {expected.tensors} tensors, measured on this machine"
    (path,) = charts.draw(summaries, title, DEMO / "penstock-demo", (charts.LIGHT,), (".png",))
    screen.say()
    screen.say(f"The chart: {path.relative_to(ROOT)}", style="bold")


def say_what_is_next(screen: Screen) -> None:
    screen.title("Next")
    screen.say("  .venv/bin/penstock --help         the native command: ls, convert, verify, bench, doctor")
    screen.say("  .venv/bin/penstock ls FILE        what is in a checkpoint of yours")
    screen.say("  README.md                         twenty lines of Python, C++ and shell")
    screen.say("  make test, make bench             every test; the full race with its peers")


def main() -> int:
    screen = Screen()
    DEMO.mkdir(exist_ok=True)
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir()
    begin = time.monotonic()
    try:
        introduce(screen)
        path, expected = make_model(screen)
        tour(screen, path, expected)
        summaries = race(screen, path, expected)
        show_race(summaries)
        draw(screen, summaries, expected)
    except (MeasurementError, penstock.Error) as error:
        print(f"[demo] FAILED: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\n[demo] stopped", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(DATA, ignore_errors=True)
    say_what_is_next(screen)
    screen.say(f"\nDone in {time.monotonic() - begin:.0f} s; the model and its copies were removed.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
