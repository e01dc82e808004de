"""Loads and saves in which every single call fails once; real filesystems that fail; forks under load.

After each: an error of one line that names the file, or the right bytes. Never a wrong byte, a hang, a leak, or a lost
old file.

    python proof/faults.py                  # all of it, a quarter of an hour
    python proof/faults.py calls --short    # one part: calls, kernels or forks
    python proof/faults.py --record         # and write it into docs/reliability.md
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

# One thread for each library: children of this process are forked from it.
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PENSTOCK_BLOCK_SIZE="256K")

import faults_inject
import record
from faults_inject import READS, WRITES, Fault, Unusable

if TYPE_CHECKING:
    from faults_cases import Case

ENGINES = ("uring", "threads")
LIMIT = 60.0  # seconds for a round, of some milliseconds
_ARENA_MAX = -8  # of <malloc.h>
_STACK = 256 << 10
WORKERS = 3
MOST_GROWTH = 1500  # KiB that a process may grow by more than one whose calls all work

# What a call may fail with, and how. What is not here can't be made to fail, or not without the process knowing.
_DISK_FULL = ("EIO", "ENOSPC", "EDQUOT")
HOW: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(sorted(READS), ("EIO", "EINTR", "EAGAIN", "short")),
    **dict.fromkeys(sorted(WRITES), (*_DISK_FULL, "EINTR", "EAGAIN", "short", "torn")),
    **dict.fromkeys(("openat", "open"), ("EIO", "EMFILE", "ENOMEM")),
    **dict.fromkeys(("fsync", "fdatasync", "sync_file_range"), _DISK_FULL),
    "ftruncate": ("EIO", "ENOSPC"),
    "fallocate": (*_DISK_FULL, "EINTR", "EOPNOTSUPP"),
    **dict.fromkeys(("linkat", "link", "renameat", "renameat2", "rename", "mkdirat", "mkdir"), _DISK_FULL),
    **dict.fromkeys(("unlinkat", "unlink", "rmdir", "fchmod", "fchmodat", "chmod", "copy_file_range"), ("EIO",)),
    **dict.fromkeys(("fstat", "newfstatat", "stat", "lstat", "statx"), ("EIO", "ENOMEM")),
    **dict.fromkeys(("fstatfs", "statfs", "getdents64", "readlinkat", "readlink", "lseek", "ioctl"), ("EIO",)),
    **dict.fromkeys(("faccessat", "faccessat2", "access", "readahead", "fadvise64", "process_vm_readv"), ("EIO",)),
    **dict.fromkeys(("mmap", "mremap", "mprotect", "mincore", "sysinfo"), ("ENOMEM",)),
    "madvise": ("ENOMEM", "EAGAIN"),
    "mlock": ("ENOMEM",),
    **dict.fromkeys(("memfd_create", "eventfd2"), ("EMFILE", "ENOMEM")),
    "flock": ("EINTR", "ENOLCK"),
    "fcntl": ("EINVAL", "EIO"),
    "getrandom": ("EAGAIN", "EINTR"),
    "io_uring_setup": ("ENOMEM", "EPERM", "ENOSYS", "EMFILE"),
    "io_uring_enter": ("EINTR", "EAGAIN", "EBUSY"),
    "io_uring_register": ("ENOMEM", "EINVAL"),
    **dict.fromkeys(("clone", "clone3"), ("EAGAIN", "ENOMEM")),
}

# Kinds of calls, as the table has them.
KINDS = {
    "open": ("openat", "open", "memfd_create", "eventfd2"),
    "read": tuple(sorted(READS)),
    "write": tuple(sorted(WRITES)),
    "sync": ("fsync", "fdatasync", "sync_file_range"),
    "reserve, truncate": ("fallocate", "ftruncate"),
    "link, rename, mkdir": ("linkat", "link", "renameat", "renameat2", "rename", "mkdirat", "mkdir"),
    "unlink, rmdir, chmod": ("unlinkat", "unlink", "rmdir", "fchmod", "fchmodat", "chmod"),
    "lock": ("flock",),
    "mmap, madvise, mlock": ("mmap", "mremap", "mprotect", "madvise", "mlock", "mincore"),
    "io_uring": ("io_uring_setup", "io_uring_enter", "io_uring_register"),
    "threads": ("clone", "clone3"),
}
KIND_OF = {call: kind for kind, calls in KINDS.items() for call in calls}
COLUMNS = ["kind of call", "failed", "errors", "right bytes", "wrong", "hung", "leaked"]


@dataclass
class Tally:
    failed: int = 0
    errors: int = 0
    right: int = 0
    wrong: int = 0
    hung: int = 0
    leaked: int = 0

    def row(self, name: str) -> list[record.Cell]:
        return [name, self.failed, self.errors, self.right, self.wrong, self.hung, self.leaked]

    @property
    def findings(self) -> int:
        return self.wrong + self.hung + self.leaked


@dataclass
class Counts:
    kinds: dict[str, Tally] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    def add(self, others: Counts) -> None:
        self.findings += others.findings
        for kind, tally in others.kinds.items():
            mine = self.kinds.setdefault(kind, Tally())
            for name, count in vars(tally).items():
                setattr(mine, name, getattr(mine, name) + count)

    def of(self, call: str) -> Tally:
        return self.kinds.setdefault(KIND_OF.get(call, "what is asked (stat, statfs, ...)"), Tally())


class Round:
    """Rounds of a case: from files that are the same each time."""

    def __init__(self, case: Case, folder: Path) -> None:
        import faults_cases

        self.case, self.cases = case, faults_cases
        self.template, self.folder = folder / "template", folder / "work"
        self.template.mkdir(parents=True)
        case.prepare(self.template)
        self.usual: dict[str, int] = {}
        self._warm_up()

    def _warm_up(self) -> None:
        """Modules that are imported late, and memory that is kept."""
        for _ in range(2):
            self.cases.copy_of(self.template, self.folder)
            problem, _result = self.cases.attempt(self.case, self.folder)
            if problem is not None:
                raise problem
            self.cases.judge_state(self.case, self.folder, False, _result)

    def count(self) -> Counter[str]:
        """The calls of a round in which none fails."""
        watched, told = self.play(None)
        if told is None or told["problems"] or told["error"]:
            raise SystemExit(f"{self.case.name}, without any fault: {told}")
        self.usual = told["grown"]
        return watched.calls

    def play(self, fault: Fault | None) -> tuple[faults_inject.Watched, dict[str, object] | None]:
        self.cases.copy_of(self.template, self.folder)
        calls = sorted(HOW) if fault is None else [fault.call]
        fails = "" if fault is None else fault.call
        watched = faults_inject.run(
            lambda begin, end: self.cases.play(self.case, self.folder, fails, begin, end), calls, fault, LIMIT
        )
        return watched, None if watched.answer is None else json.loads(watched.answer)

    def leak(self, told: dict[str, object]) -> str:
        grown = told["grown"]
        assert isinstance(grown, dict)
        for name, nbytes in grown.items():
            if nbytes > self.usual[name] + (MOST_GROWTH if name == "VmSize" else 0):
                return f"{name} grows by {nbytes}, and else by {self.usual[name]}"
        return ""


def places(calls: Counter[str], short: bool, seed: int) -> Iterator[Fault]:
    """Every call, with all that it may fail with; or, in short, a few of each."""
    for call, count in sorted(calls.items()):
        ways = HOW[call]
        if not short:
            yield from (Fault(call, number, how) for number in range(count) for how in ways)
            continue
        for turn in range(min(len(ways), 2)):
            yield Fault(call, (seed * 7 + turn * 5) % count, ways[(seed + turn) % len(ways)])


def judge(round_: Round, fault: Fault, counts: Counts) -> None:
    watched, told = round_.play(fault)
    tally = counts.of(fault.call)
    if not watched.injected and told is not None and not told["problems"]:
        return  # there were fewer calls this time
    tally.failed += 1
    if watched.hung:
        tally.hung += 1
        problem = "hung"
    elif told is None:
        tally.wrong += 1
        problem = "died"
    elif told["problems"]:
        problem = "; ".join(map(str, told["problems"]))  # type: ignore[arg-type,call-overload]
        leaves = problem.startswith("leaves")
        tally.leaked += leaves
        tally.wrong += not leaves
    elif problem := round_.leak(told):
        tally.leaked += 1
    else:
        tally.errors += told["error"] is not None
        tally.right += told["error"] is None
        return
    line = f"{round_.case.name}, {os.environ['PENSTOCK_BACKEND']}: {fault.call} {fault.number} {fault.how}: {problem}"
    counts.findings.append(line)
    print(line, flush=True)


def fail_calls(short: bool, only: str, folder: Path) -> Counts:
    import faults_cases

    use_little_address_space()
    counts = Counts()
    started = time.monotonic()
    chosen = [number for number, case in enumerate(faults_cases.cases()) if only in case.name]
    tasks = [
        (engine, number, short, folder)
        for number in chosen
        for engine in ENGINES
        if not short or number % 2 == ENGINES.index(engine)
    ]
    with multiprocessing.get_context("fork").Pool(WORKERS) as pool:
        for name, found in pool.imap_unordered(fail_calls_of, tasks):
            counts.add(found)
            failed = sum(tally.failed for tally in found.kinds.values())
            print(f"[{time.monotonic() - started:4.0f} s] {name}: {failed}", flush=True)
    return counts


def fail_calls_of(task: tuple[str, int, bool, Path]) -> tuple[str, Counts]:
    """One case over one engine."""
    import faults_cases

    engine, number, short, folder = task
    os.environ["PENSTOCK_BACKEND"] = engine
    case = faults_cases.cases()[number]
    counts = Counts()
    round_ = Round(case, folder / f"{engine}-{number}")
    for fault in places(round_.count(), short, number):
        judge(round_, fault, counts)
    return f"{engine:7} {case.name}", counts


def use_little_address_space() -> None:
    """What the C library keeps of threads that are gone would look like leaks: arenas of 64 MiB, stacks of 8."""
    libc = ctypes.CDLL(None)
    libc.mallopt(_ARENA_MAX, 1)
    attributes = ctypes.create_string_buffer(64)
    libc.pthread_attr_init(attributes)
    libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(_STACK))
    libc.pthread_setattr_default_np(attributes)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", choices=["calls", "kernels", "forks", []], help="all, unless some are named")
    parser.add_argument("--short", action="store_true", help="a few of each")
    parser.add_argument("--record", action="store_true", help="write the tables of docs/reliability.md")
    parser.add_argument("--only", default="", help="of the calls: cases whose name has this in it")
    parser.add_argument("--folder", type=Path, default=None, help="where the files go (a temporary folder)")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    parts = arguments.part or ["calls", "kernels", "forks"]
    findings: list[str] = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        if "calls" in parts:
            began = time.monotonic()
            counts = fail_calls(arguments.short, arguments.only, Path(folder))
            rows = [counts.kinds[kind].row(kind) for kind in sorted(counts.kinds)]
            told = record.Record("faults-calls", "Calls that fail", COLUMNS, rows, time.monotonic() - began)
            print(record.as_markdown(told))
            findings += counts.findings
            if arguments.record and not counts.findings:
                record.write(told)
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Unusable as reason:
        sys.exit(f"can't be tested here: {reason}")
