"""Kills saves of every kind (SIGKILL): after every single system call, and at random moments. Then looks what is there.

    proof/kills.py                  every kind, at least 10,000 kills
    proof/kills.py --short          some hundred
    proof/kills.py --only shards    the kinds whose names have that word

After each kill the checkpoint is loaded: it must be the old one or the new one, whole. What the dead saver has left
must be what the protocol lets it leave (docs/formats/sets.md), and one more save must leave its checkpoint alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # nothing here may have threads when it forks, and torch would

import record
import saves
import tracer
from tracer import Child, Run

MOST_FINDINGS = 5  # of a kind that are told
COLUMNS = ["save", "kills", "found old", "found new", "left something", "left after the next save", "lost"]


@dataclass
class Tally:
    """What the kills of a kind came to."""

    kills: int = 0
    old: int = 0
    new: int = 0
    left: int = 0
    left_after: int = 0
    lost: int = 0
    findings: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    @property
    def is_clean(self) -> bool:
        return not self.lost and not self.left_after and not self.findings

    def row(self, name: str) -> list[str | int | float | None]:
        return [name, self.kills, self.old, self.new, self.left, self.left_after, self.lost]


class Checker:
    """A fork that makes what was there before, and looks at what the dead have left: the killer loads nothing."""

    def __init__(self, kind: Any) -> None:
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        self._child = Child(partial(_serve, kind, orders, answers))
        os.close(orders)
        os.close(answers)
        self._child.go()
        self._lines = os.fdopen(self._answers)

    def ask(self, what: str, folder: Path) -> dict[str, Any]:
        os.write(self._orders, (json.dumps([what, str(folder)]) + "\n").encode())
        line = self._lines.readline()
        if not line:
            raise SystemExit("the process that looks at checkpoints died")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._child.kill()
        self._child.wait()
        self._lines.close()
        os.close(self._orders)


def _serve(kind: Any, orders: int, answers: int) -> None:
    with os.fdopen(orders) as lines:
        for line in lines:
            what, folder = json.loads(line)
            answer: dict[str, Any] = {}
            if what == "look":
                answer = look(kind, Path(folder))
            else:
                kind.before(Path(folder))
            os.write(answers, (json.dumps(answer) + "\n").encode())


def look(kind: Any, folder: Path) -> dict[str, Any]:
    """What is there after a kill, and after one more save."""
    found, problem = None, ""
    try:
        found = kind.find(folder)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    left = sorted(saves.names_in(folder) - kind.owned(folder))
    strange = [name for name in left if not saves.may_be_left(folder, name)]
    again = ""
    try:
        kind.again(folder)
        if kind.find(folder) != saves.NEXT:
            again = "something else is there"
    except Exception as error:
        again = f"{type(error).__name__}: {error}"
    after = sorted(saves.names_in(folder) - kind.owned(folder))
    return {"found": found, "problem": problem, "left": left, "strange": strange, "again": again, "after": after}


class Scene:
    """Saves of one kind, each over a copy of the same directory."""

    def __init__(self, kind: Any, root: Path) -> None:
        self.kind = kind
        self.tally = Tally()
        self._root = root
        self._numbers = itertools.count()
        self._before = root / "before"
        (self._before / "d").mkdir(parents=True)
        self._checker = Checker(kind)
        self._checker.ask("before", self._before / "d")
        self._warm_up()
        self._host = Child(partial(saves.host_store, root)) if kind.dies else None
        if self._host is not None:
            self._host.go()
            wait_for(root / "port")

    def close(self) -> None:
        self._checker.close()
        if self._host is not None:
            self._host.kill()
            self._host.wait()
        shutil.rmtree(self._root, ignore_errors=True)

    def _warm_up(self) -> None:
        """So that the children import nothing: only the calls of the save itself are counted."""
        copy = self._root / "warm"
        shutil.copytree(self._before, copy)
        self.kind.again(copy / "d")
        shutil.rmtree(copy)
        for _ in range(1000):
            if len(os.listdir("/proc/self/task")) == 1:
                return
            time.sleep(0.01)
        raise SystemExit(f"{self.kind.name}: a save left a thread, and what has threads is not forked")

    def round(self, end: End, where: str) -> list[Run]:
        """One save, which `end` sees to the end, and what is there then."""
        run = self._root / str(next(self._numbers))
        shutil.copytree(self._before, run)
        children = [self._child(run / "d", rank) for rank in range(2 if self.kind.dies else 1)]
        try:
            runs = end(self.kind, children)
        except TimeoutError as problem:
            self._tell(where, str(problem))
            runs = []
        for child in children:
            child.kill()
        for code in {each.code for each in runs} - {0, -signal.SIGKILL}:
            self._tell(where, f"a process that was not killed ended with {code}")
        self._judge(self._checker.ask("look", run / "d"), any(each.killed for each in runs), where)
        shutil.rmtree(run)
        return runs

    def _child(self, folder: Path, rank: int) -> Child:
        def prepare() -> None:
            os.environ["RANK"] = str(rank)
            if self.kind.prepare is not None:
                self.kind.prepare(folder)

        return Child(partial(self.kind.save, folder), prepare)

    def _judge(self, answer: dict[str, Any], killed: bool, where: str) -> None:
        tally, found = self.tally, answer["found"]
        is_new = found == self.kind.new
        tally.kills += killed
        tally.new += killed and is_new
        tally.old += killed and not is_new and found == self.kind.old
        tally.left += killed and bool(answer["left"])
        tally.left_after += bool(answer["after"])
        if not is_new and not (killed and found == self.kind.old):
            tally.lost += 1
            self._tell(where, f"found {found} {answer['problem']}, beside {answer['left']}")
        for name in ("strange", "again", "after"):
            if answer[name]:
                self._tell(where, f"{name}: {answer[name]}")

    def _tell(self, where: str, what: str) -> None:
        self.tally.findings.append(f"{self.kind.name}, {where}: {what}")


def wait_for(path: Path) -> None:
    for _ in range(3000):
        if path.exists() and path.stat().st_size > 0:
            return
        time.sleep(0.01)
    raise SystemExit(f"{path}: does not come")


End = Callable[[Any, list[Child]], list[Run]]


def victims_of(kind: Any, children: list[Child]) -> list[Child]:
    return {"first": children[:1], "second": children[1:]}.get(kind.dies, children)


def at_call(number: int | None, calls: dict[int, str] | None) -> End:
    """They die when one of them has made so many calls."""

    def end(kind: Any, children: list[Child]) -> list[Run]:
        victims = victims_of(kind, children)
        others = [child for child in children if child is not victims[0]]
        for child in children:
            child.wait_ready()
        for child in others:
            child.go()
        first = victims[0].trace(number, calls)
        for child in victims[1:]:
            if first.killed:
                child.kill()
        return [first, *(child.wait() for child in others)]

    return end


def at_moment(seconds: float) -> End:
    """They die after a while; 0: never."""

    def end(kind: Any, children: list[Child]) -> list[Run]:
        for child in children:
            child.wait_ready()
        for child in children:
            child.go(seconds if child in victims_of(kind, children) else 0.0)
        return [child.wait() for child in children]

    return end


def kill_at_every_call(scene: Scene, calls: dict[int, str] | None, stride: int, first: int) -> None:
    for number in itertools.count(first, stride):
        if not any(run.killed for run in scene.round(at_call(number, calls), f"call {number}")):
            return


def kill_at_random_moments(scene: Scene, count: int, choose: random.Random) -> None:
    took = sorted(max(run.seconds for run in scene.round(at_moment(0), "no kill")) for _ in range(3))[1]
    for _ in range(count):
        seconds = choose.uniform(0, 1.1 * took)
        scene.round(at_moment(seconds), f"after {seconds * 1000:.2f} ms")


@dataclass
class Plan:
    """Which kinds are killed, and how often each."""

    calls: dict[int, str] | None  # those after which it is; None: all
    stride: int
    moments: int
    seed: str = "kills"
    only: str = ""
    jobs: int = 1


def kill(kind: Any, folder: Path, plan: Plan, can_trace: bool) -> Tally:
    choose = random.Random(f"{plan.seed} {kind.name}")
    scene = Scene(kind, folder)
    try:
        if can_trace:
            # What ranks say to each other are many calls, of which few change files.
            calls = tracer.CALLS if kind.dies else plan.calls
            kill_at_every_call(scene, calls, plan.stride, 1 + choose.randrange(plan.stride))
        # What has torch takes ten times as long to fork.
        kill_at_random_moments(scene, plan.moments // 4 if "torch" in sys.modules else plan.moments, choose)
    finally:
        scene.close()
    return scene.tally


def work(job: int, kinds: Callable[[], Iterable[Any]], folder: Path, plan: Plan) -> None:
    """Kills every so many-th kind, and writes down what came of it."""
    can_trace = tracer.why_not() is None
    with (folder / f"job-{job}").open("w") as results:
        for number, kind in enumerate(kinds()):
            if number % plan.jobs != job or not (plan.only in kind.name or plan.only in kind.row):
                continue
            tally = kill(kind, folder / str(number), plan, can_trace)
            print(json.dumps([number, kind.row, vars(tally)]), file=results)
            tell(kind.name, tally)


def tell(name: str, tally: Tally) -> None:
    print(
        f"[kills] {name}: {tally.kills} kills, {tally.old} old, {tally.new} new, {tally.left} left something, "
        f"{tally.left_after} after the next save, {tally.lost} lost",
        flush=True,
    )
    for finding in tally.findings[:MOST_FINDINGS]:
        print(f"  FOUND {finding}", flush=True)


def run(kinds: Callable[[], Iterable[Any]], folder: Path, plan: Plan) -> dict[str, Tally]:
    """The tallies by the table's rows."""
    reason = tracer.why_not()
    if reason is not None:
        print(f"at random moments only: {reason}", flush=True)
    workers = [Child(partial(work, job, kinds, folder, plan)) for job in range(plan.jobs)]
    for worker in workers:
        worker.go()
    codes = [worker.wait(timeout=24 * 3600).code for worker in workers]
    if any(codes):
        raise SystemExit("a process that kills has failed")
    results = [json.loads(line) for job in range(plan.jobs) for line in (folder / f"job-{job}").open()]
    rows: dict[str, Tally] = {}
    for _, row, tally in sorted(results, key=lambda result: int(result[0])):
        rows.setdefault(row, Tally()).add(Tally(**tally))
    return rows


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="some hundred kills")
    parser.add_argument("--only", default="", metavar="WORD", help="kinds whose names or rows have this word")
    parser.add_argument("--moments", type=int, default=180, help="random moments for each kind; a quarter with torch")
    parser.add_argument("--stride", type=int, default=1, help="every so many-th call")
    parser.add_argument("--jobs", type=int, default=1, help="processes that kill at the same time")
    parser.add_argument("--seed", default="kills", help="of the random moments")
    parser.add_argument("--directory", type=Path, help="where to save; by default in memory, where calls are quick")
    parser.add_argument("--record", action="store_true", help="write the table of docs/reliability.md")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = parse_arguments(argv)

    calls, stride, moments = (tracer.CALLS, 4, 2) if options.short else (None, options.stride, options.moments)
    plan = Plan(calls, stride, moments, options.seed, options.only, options.jobs)
    began, commit = time.monotonic(), record.commit_now()
    with tempfile.TemporaryDirectory(prefix="kills-", dir=options.directory or default_directory()) as folder:
        rows = run(saves.kinds, Path(folder), plan)
    total = Tally()
    for tally in rows.values():
        total.add(tally)
    print(f"{total.kills} kills, {total.lost} lost, {len(total.findings)} findings, {time.monotonic() - began:.0f} s")
    if options.record:
        table = [tally.row(row) for row, tally in rows.items()] + [total.row("all")]
        record.write(record.Record("kills", "Kills", COLUMNS, table, time.monotonic() - began, commit=commit))
    return 0 if total.is_clean else 1


def default_directory() -> str | None:
    memory = "/dev/shm"
    return memory if os.access(memory, os.W_OK) else None


if __name__ == "__main__":
    sys.exit(main())
