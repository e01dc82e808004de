"""Cuts the power of a filesystem while a save runs on it or has just returned, in two ways, and looks what is left.

By shutdown: the filesystem itself is told to stop at once (FS_IOC_SHUTDOWN), and loses what it has not written; in
every second cut its journal is written first. The drive loses nothing. By replay: the save runs on a disk that
remembers its writes, and images of what a drive with a volatile cache may hold at some moment are made of them. Either
is then mounted, which replays the filesystem's journal, and the checkpoint is loaded.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from power_disk import Filesystem, copy_image, make_image, mounted
from power_fuse import read_log, remembering
from power_log import Cut, WriteLog

SAVERS = Path(__file__).with_name("power_savers.py")


@dataclass(frozen=True)
class Outcome:
    subject: str
    filesystem: str
    method: str
    returned: bool  # whether the save had returned before the cut
    found: str  # old, new, nothing, or why it is neither
    again: str | None  # why the next save did not do what it should
    where: str  # the cut, for who has to look into it

    @property
    def lost(self) -> bool:
        """Neither the old checkpoint nor the new one is there."""
        return self.found.startswith("neither") or (self.found == "nothing" and not self.from_nothing)

    @property
    def from_nothing(self) -> bool:
        return self.subject.endswith("over nothing")

    @property
    def broken(self) -> str | None:
        """What of the promise it breaks: old or new at any time, and new once the save has returned."""
        if self.lost or (self.returned and self.found != "new"):
            return f"{'returned' if self.returned else 'saving'}, and then {self.found}"
        return self.again


class Worker:
    """The process that saves and loads."""

    def __init__(self, python: Path, whose: str, scratch: Path) -> None:
        scratch.mkdir()
        command = [python, SAVERS, whose, scratch]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.subjects: list[str] = self.answer()["subjects"]

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"power_savers.py ended with {self.process.wait()}")
        return dict(json.loads(line))

    def ask(self, do: str, subject: str, folder: Path, **more: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, "subject": subject, "folder": str(folder), **more}) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        self.process.communicate()


class Bench:
    """One way to save on one filesystem; its images are in a directory, which is best one in memory."""

    def __init__(self, filesystem: Filesystem, worker: Worker, subject: str, directory: Path, again: bool) -> None:
        self.filesystem, self.worker, self.subject, self.again = filesystem, worker, subject, again
        self.prepared, self.image, self.log = (directory / name for name in ("prepared", "image", "log"))
        self.folder, self.disk = directory / "folder", directory / "disk"
        self.folder.mkdir(exist_ok=True)
        self.disk.mkdir(exist_ok=True)

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        answer = self.worker.ask(do, self.subject, self.folder, **more)
        if "error" in answer and do != "save":
            raise RuntimeError(f"{self.subject} on {self.filesystem.name}, {do}: {answer['error']}")
        return answer

    def mounted(self, image: Path) -> AbstractContextManager[Path]:
        return mounted(self.filesystem, image, self.folder)

    def prepare(self) -> None:
        """An image with the old checkpoint, unmounted in peace."""
        make_image(self.filesystem, self.prepared)
        with self.mounted(self.prepared):
            self.ask("prepare")

    def save(
        self, mark: Path | None = None, cut_after: float | str | None = None, with_journal: bool = False
    ) -> dict[str, Any]:
        answer = self.ask("save", mark=str(mark) if mark else None, cut_after=cut_after, with_journal=with_journal)
        if "error" in answer and cut_after is None:
            raise RuntimeError(f"{self.subject} on {self.filesystem.name}: {answer['error']}")
        return answer

    def outcome(self, method: str, returned: bool, where: str) -> Outcome:
        with self.mounted(self.image):
            seen = self.ask("look", again=self.again)
        return Outcome(self.subject, self.filesystem.name, method, returned, seen["found"], seen["again"], where)

    def shutdowns(self, count: int, choose: random.Random) -> Iterator[Outcome]:
        """Every third one right after the save has returned, the others from its beginning to a little later."""
        copy_image(self.prepared, self.image)
        with self.mounted(self.image):
            uncut = self.save()
        first, last = (uncut[name] - uncut["forked"] for name in ("begun", "returned"))
        for i in range(count):
            moment = "returned" if i % 3 == 0 else choose.uniform(0.9 * first, last + 0.2 * (last - first))
            with_journal = i % 2 == 1
            copy_image(self.prepared, self.image)
            with self.mounted(self.image):
                answer = self.save(cut_after=moment, with_journal=with_journal)
            returned = "returned" in answer and (moment == "returned" or answer["returned"] < answer["cut"])
            when = "on return" if moment == "returned" else f"after {moment * 1000:.1f} ms"
            where = f"shut down {when}, {'with' if with_journal else 'without'} its journal"
            yield self.outcome("shutdown", returned, where)

    def remember(self) -> WriteLog:
        """Everything that the drive was told from before the save until the filesystem was unmounted."""
        self.log.unlink(missing_ok=True)
        copy_image(self.prepared, self.image)
        with remembering(self.image, self.log, self.disk), self.mounted(self.disk / "disk"):
            self.save(mark=self.disk / "mark")
        return WriteLog(self.prepared, read_log(self.log))

    def replays(self, count: int | None, choose: random.Random) -> Iterator[Outcome]:
        """So many cuts of one save, half of them in the order of the log. None: all of those, and as many others."""
        log = self.remember()
        saving, returned = log.marks["saving"], log.marks["returned"]
        moments = [*log.moments(saving, returned), returned, *log.moments(returned, len(log.entries))]
        in_order = choose_evenly(moments, count // 2 if count else len(moments))
        shuffled = [choose.choice(moments) for _ in range(count - len(in_order) if count else len(moments))]
        cuts = [Cut(at, True) for at in in_order] + [Cut(at, False) for at in shuffled]
        for cut in log.images(cuts, self.image, choose):
            where = f"entry {cut.at} of {len(log.entries)}, {'in order' if cut.orders else 'any of the last'}"
            yield self.outcome("replay", cut.at >= returned, where)


def choose_evenly(moments: list[int], count: int) -> list[int]:
    step = max(1.0, len(moments) / max(1, count))
    return [moments[int(i * step)] for i in range(min(count, len(moments)))]
