"""Cuts the power of filesystems under saves, and counts what is left: the second half of `make crash`.

Each way to save runs on each filesystem, is cut off while it saves or after it has returned, and what is there when the
filesystem is mounted again is compared with the old and the new checkpoint, byte by byte. power_cuts.py says how.
Savers that sync nothing run along: if none of theirs gets lost, nothing was proved.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import record
from power_cuts import Bench, Outcome, Worker
from power_disk import (
    FILESYSTEMS,
    Filesystem,
    UnusableError,
    end_with_parent,
    make_image,
    mounted,
    options_of,
    use_own_mounts,
    why_unusable,
)
from power_fuse import remembering

SKIPPED = 77  # what the program ends with where no power can be cut
PYTHONS = {"ours": record.ROOT / ".venv/bin/python", "peers": record.ROOT / ".venv-bench/bin/python"}

SUBJECTS = (
    *(
        f"{name} over {what}"
        for name in ("safetensors", "FlashPack", "torch zip", "torch legacy")
        for what in ("nothing", "a file")
    ),
    "set over nothing",
    "set over a file",
    "set over a set",
    "file over a set",
    "save_async over a file",
    "penstock.dcp over nothing",
    "penstock.dcp over a step",
    "CheckpointManager, keep=1",
    "convert to a file, over one",
    "convert to a set, over one",
)
CONTROLS = ("durable=False over nothing", "durable=False over a set", "rename without fsync")
PEERS = ("safetensors", "torch.save", "flashpack", "torch DCP", "FastPersist")
IN_SHORT = ("safetensors over a file", "set over a set", "penstock.dcp over a step", "CheckpointManager, keep=1")

# Who stands beside whom in the table of peers: its name there, and its subjects.
BESIDE = (
    *((name, (f"{name} over nothing", f"{name} over its like"), "peers") for name in PEERS),
    ("rename without fsync", ("rename without fsync",), "ours"),
    ("penstock, durable=False", ("durable=False over nothing", "durable=False over a set"), "ours"),
    ("penstock, safetensors", ("safetensors over nothing", "safetensors over a file"), "ours"),
    ("penstock, torch zip", ("torch zip over nothing", "torch zip over a file"), "ours"),
    ("penstock, FlashPack", ("FlashPack over nothing", "FlashPack over a file"), "ours"),
    ("penstock.dcp", ("penstock.dcp over nothing", "penstock.dcp over a step"), "ours"),
)


@dataclass(frozen=True)
class Task:
    whose: str
    subject: str
    filesystem: Filesystem
    shutdowns: int
    replays: int
    seed: int


@dataclass(frozen=True)
class Done:
    task: Task
    options: str
    outcomes: list[Outcome]


class Runner:
    """What one process of the pool keeps: its mounts, its directory, and the savers that it has started."""

    def __init__(self, root: Path) -> None:
        end_with_parent()
        use_own_mounts()
        self.directory = Path(tempfile.mkdtemp(dir=root))
        self.workers: dict[str, Worker] = {}

    def run(self, task: Task) -> Done:
        if task.whose not in self.workers:
            self.workers[task.whose] = Worker(PYTHONS[task.whose], task.whose, self.directory / task.whose)
        if task.subject not in self.workers[task.whose].subjects:
            return Done(task, "", [])
        again = task.whose == "ours" and task.subject in SUBJECTS
        bench = Bench(task.filesystem, self.workers[task.whose], task.subject, self.directory, again)
        choose = random.Random(f"{task.seed} {task.filesystem.name} {task.subject}")
        bench.prepare()
        with bench.mounted(bench.prepared):
            options = options_of(bench.folder)
        outcomes = list(bench.shutdowns(task.shutdowns, choose)) if task.filesystem.shuts_down else []
        return Done(task, options, outcomes + list(bench.replays(task.replays, choose)))


runner: Runner


def start_runner(root: Path) -> None:
    global runner
    runner = Runner(root)


def run_task(task: Task) -> Done:
    return runner.run(task)


def tasks(filesystems: list[Filesystem], arguments: argparse.Namespace) -> Iterator[Task]:
    """The slowest to start come first."""
    seed = arguments.seed
    for filesystem in filesystems:
        shutdowns, replays = (9, 19) if filesystem.shuts_down else (0, 28)
        if arguments.short:
            for subject in (*IN_SHORT, *CONTROLS):
                yield Task("ours", subject, filesystem, 4 if subject in CONTROLS else 2, 4, seed)
            continue
        if PYTHONS["peers"].exists():
            for name in PEERS:
                for over in ("nothing", "its like"):
                    yield Task("peers", f"{name} over {over}", filesystem, shutdowns, replays - 8, seed)
        for subject in (*SUBJECTS, *CONTROLS):
            yield Task("ours", subject, filesystem, shutdowns, replays, seed)


def usable(short: bool) -> list[Filesystem]:
    wanted = [filesystem for filesystem in FILESYSTEMS.values() if filesystem.shuts_down or not short]
    reasons = {filesystem.name: why_unusable(filesystem) for filesystem in wanted}
    for name, reason in reasons.items():
        if reason:
            print(f"{name} is left out: {reason}")
    return [filesystem for filesystem in wanted if not reasons[filesystem.name]]


def why_impossible(filesystems: list[Filesystem]) -> str | None:
    """Tries what every cut needs: a mount namespace, a loop device, FUSE."""
    if not filesystems:
        return "no filesystem is left"
    try:
        use_own_mounts()
        with tempfile.TemporaryDirectory() as name:
            image, log, disk, folder = (Path(name, part) for part in ("image", "log", "disk", "folder"))
            disk.mkdir()
            folder.mkdir()
            make_image(filesystems[0], image)
            with remembering(image, log, disk), mounted(filesystems[0], disk / "disk", folder):
                return None
    except (UnusableError, OSError) as error:
        return str(error)


def line_about(done: Done) -> str:
    task, outcomes = done.task, done.outcomes
    old = sum(outcome.found in ("old", "nothing") for outcome in outcomes)
    new = sum(outcome.found == "new" for outcome in outcomes)
    lost = sum(outcome.lost for outcome in outcomes)
    late = sum(outcome.returned and outcome.found != "new" for outcome in outcomes)
    return (
        f"{task.filesystem.name:6} {task.subject:32} {len(outcomes):4} cuts: {old:3} old {new:3} new {lost:3} lost, "
        f"{late:3} not there though it had returned"
    )


def findings(results: list[Done]) -> list[str]:
    """Promises that were broken, and controls that lost nothing."""
    found: list[str] = []
    seeing = dict.fromkeys((done.task.filesystem.name for done in results), 0)
    for done in results:
        task = done.task
        broken = [outcome for outcome in done.outcomes if outcome.broken]
        if task.subject in SUBJECTS and task.whose == "ours":
            found += [f"{task.filesystem.name}, {task.subject}: {o.broken} ({o.method}: {o.where})" for o in broken]
        seeing[task.filesystem.name] += len(broken) if task.subject in CONTROLS else 0
    found += [
        f"{name}: savers that sync nothing lost nothing, so the cuts prove nothing"
        for name in seeing
        if not seeing[name]
    ]
    return found


def count(outcomes: list[Outcome], wanted: Callable[[Outcome], object]) -> int:
    return sum(bool(wanted(outcome)) for outcome in outcomes)


def saves_table(results: list[Done], names: list[str]) -> tuple[list[str], list[list[record.Cell]]]:
    columns = ["save", *(column for name in names for column in (f"{name}: cuts", "old", "new", "lost"))]
    rows: list[list[record.Cell]] = []
    for subject in SUBJECTS:
        row: list[record.Cell] = [subject]
        for name in names:
            cuts = outcomes_of(results, "ours", (subject,), name)
            row += [
                len(cuts),
                count(cuts, lambda o: not o.broken and o.found != "new"),
                count(cuts, lambda o: not o.broken and o.found == "new"),
                count(cuts, lambda o: o.broken),
            ]
        rows.append(row)
    sums = [sum(int(row[i] or 0) for row in rows) for i in range(1, len(columns))]
    return columns, [*rows, ["all", *sums]]


def outcomes_of(results: list[Done], whose: str, subjects: tuple[str, ...], filesystem: str = "") -> list[Outcome]:
    return [
        outcome
        for done in results
        if done.task.whose == whose and done.task.subject in subjects
        if filesystem in ("", done.task.filesystem.name)
        for outcome in done.outcomes
    ]


def methods_table(results: list[Done], names: list[str]) -> tuple[list[str], list[list[record.Cell]]]:
    columns = ["filesystem", "mounted with", "cut by", "while saving: old", "new", "after it returned: new", "lost"]
    rows: list[list[record.Cell]] = []
    for name in names:
        options = next(done.options for done in results if done.task.filesystem.name == name)
        for method in ("shutdown", "replay"):
            cuts = [o for o in outcomes_of(results, "ours", SUBJECTS, name) if o.method == method]
            if cuts:
                before = [o for o in cuts if not o.returned and not o.broken]
                old = count(before, lambda o: o.found != "new")
                kept = count(cuts, lambda o: o.returned and not o.broken)
                lost = count(cuts, lambda o: o.broken)
                rows.append([name, options, method, old, len(before) - old, kept, lost])
    return columns, rows


def gone(outcome: Outcome) -> bool:
    """Returned, and there is no checkpoint at all."""
    return outcome.lost or (outcome.returned and outcome.found == "nothing")


def peers_table(results: list[Done], names: list[str]) -> tuple[list[str], list[list[record.Cell]]]:
    columns = ["saver", "cut while it saved", "lost", "cut after it returned", "old", "lost"]
    columns += [f"lost on {name}" for name in names]
    rows: list[list[record.Cell]] = []
    for title, subjects, whose in BESIDE:
        cuts = outcomes_of(results, whose, subjects)
        if cuts:
            saving = [o for o in cuts if not o.returned and not o.from_nothing]
            after = [o for o in cuts if o.returned]
            old = count(after, lambda o: o.found == "old")
            row: list[record.Cell] = [title, len(saving), count(saving, gone), len(after), old, count(after, gone)]
            rows.append(row + [count([o for o in (*saving, *after) if o.filesystem == name], gone) for name in names])
    return columns, rows


def write_records(results: list[Done], seconds: float, commit: str) -> None:
    names = [name for name in FILESYSTEMS if any(done.task.filesystem.name == name for done in results)]
    version = re.match(r"[\d.]*\d", platform.release())
    title = f"Linux {version[0] if version else platform.release()}"
    for name, table in (
        ("power-saves", saves_table),
        ("power-methods", methods_table),
        ("power-peers", peers_table),
    ):
        record.write(record.Record(name, title, *table(results, names), seconds, commit=commit))


def run_all(todo: list[Task]) -> list[Done]:
    """Mounting and syncing is mostly waiting, so several processes do it. Few of them start what peers need."""
    root = Path(tempfile.mkdtemp(prefix="power-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    results = []
    try:
        with ExitStack() as stack:
            begun = []
            for whose in ("ours", "peers"):
                mine = [task for task in todo if task.whose == whose]
                if mine:
                    pool = multiprocessing.Pool(
                        min(10 if whose == "ours" else 3, 1 + len(mine) // 8), start_runner, (root,)
                    )
                    begun.append(stack.enter_context(pool).imap_unordered(run_task, mine))
            for done in chain.from_iterable(begun):
                results.append(done)
                print(line_about(done), flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return results


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="some dozen cuts on ext4 and xfs, penstock alone")
    parser.add_argument("--record", action="store_true", help="write the tables of docs/reliability.md")
    parser.add_argument("--seed", type=int, default=1, help="where the cuts are")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    begin, commit = time.monotonic(), record.commit_now()
    filesystems = usable(given.short)
    with multiprocessing.Pool(1) as trial:
        reason = trial.apply(why_impossible, (filesystems,))
    if reason:
        print(f"skipped: power can't be cut here: {reason}")
        return SKIPPED
    if not given.short and not PYTHONS["peers"].exists():
        print("peers are left out: `scripts/setup.sh bench` makes the environment that has them")
    results = run_all(list(tasks(filesystems, given)))
    cuts = sum(len(done.outcomes) for done in results)
    found = findings(results)
    print(f"{cuts} cuts in {time.monotonic() - begin:.0f} s, seed {given.seed}: {len(found)} findings")
    print("".join(f"  {line}\n" for line in found), end="")
    if given.record:
        write_records(results, time.monotonic() - begin, commit)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
