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
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

# One thread for each library: children of this process are forked from it.
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PENSTOCK_BLOCK_SIZE="256K")

import faults_inject
import record
from faults_inject import READS, WRITES, Fault, Unusable

if TYPE_CHECKING:
    from faults_cases import Case

ENGINES = ("uring", "threads")
LIMIT = 180.0  # seconds for a round, of some milliseconds
_ARENA_MAX = -8  # of <malloc.h>
_STACK = 256 << 10
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
NOISE = 24 << 10  # KiB by which addresses may grow beyond those of a process in which all calls work: a heap has gaps

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
    "getrandom": ("EINTR",),
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
COLUMNS = ["failed", "errors", "right bytes", "wrong", "hung", "leaked"]


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

    def add(self, error: str, problem: str) -> None:
        self.failed += 1
        if not problem:
            self.errors += bool(error)
            self.right += not error
        elif problem == "hung":
            self.hung += 1
        elif problem.startswith("leaves"):
            self.leaked += 1
        else:
            self.wrong += 1


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
                raise SystemExit(f"{self.case.name}: {problem.text}")
            self.cases.judge_state(self.case, self.folder, False, _result)

    def count(self) -> Counter[str]:
        """The calls of a round in which none fails."""
        watched, told = self.play(None)
        if told is None or told["problems"] or told["error"]:
            raise SystemExit(f"{self.case.name}, without any fault: {told}")
        self.usual = told["grown"]
        return watched.calls

    def play(self, fault: Fault | None) -> tuple[faults_inject.Watched, dict[str, Any] | None]:
        self.cases.copy_of(self.template, self.folder)
        calls = sorted(HOW) if fault is None else [fault.call]
        fails = "" if fault is None else fault.call
        watched = faults_inject.run(
            lambda begin, end: self.cases.play(self.case, self.folder, fails, begin, end), calls, fault, LIMIT
        )
        return watched, None if watched.answer is None else json.loads(watched.answer)

    def leak(self, told: dict[str, Any]) -> str:
        for name, nbytes in told["grown"].items():
            usual = max(self.usual[name], 0)
            if nbytes > usual + (NOISE if name == "VmSize" else 0):
                return f"leaves {name} larger: it grows by {nbytes}, and else by {usual}"
        return ""


def places(calls: Counter[str], short: bool, most_ways: int, seed: int) -> Iterator[Fault]:
    """Every call, in the ways in which it may fail, or so many of them in turn; in short one or two calls of a name."""
    for call, count in sorted(calls.items()):
        ways = HOW[call]
        numbers = [(seed * 7 + turn * 5) % count for turn in range(2)] if short else range(count)
        for turn, number in enumerate(numbers):
            for way in range(1 if short else min(most_ways, len(ways))):
                yield Fault(call, number, ways[(seed + turn + way) % len(ways)])


def judge(round_: Round, fault: Fault, counts: Counts) -> None:
    watched, told = round_.play(fault)
    tally = counts.of(fault.call)
    if not watched.injected and told is not None and not told["problems"]:
        return  # there were fewer calls this time
    died = "hung" if watched.hung else "died"
    problem = died if told is None else "; ".join(told["problems"]) or round_.leak(told)
    for _ in range(2):  # addresses that are kept for the next call come and go; a leak is there each time
        if told is not None and "VmSize" in problem:
            told = round_.play(fault)[1]
            problem = died if told is None else round_.leak(told)
    tally.add("" if told is None else told["error"] or "", problem)
    if not problem:
        return
    line = f"{round_.case.name}, {os.environ['PENSTOCK_BACKEND']}: {fault.call} {fault.number} {fault.how}: {problem}"
    counts.findings.append(line)
    print(line, flush=True)


def fail_calls(short: bool, ways: int, only: str, workers: int, folder: Path) -> Counts:
    import faults_cases

    use_little_address_space()
    counts = Counts()
    started = time.monotonic()
    chosen = [number for number, case in enumerate(faults_cases.cases()) if only in case.name]
    tasks = [
        (engine, number, short, ways, folder)
        for number in chosen
        for engine in ENGINES
        if not short or number % 2 == ENGINES.index(engine)
    ]
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for name, found in pool.imap_unordered(fail_calls_of, tasks):
            counts.add(found)
            failed = sum(tally.failed for tally in found.kinds.values())
            print(f"[{time.monotonic() - started:4.0f} s] {name}: {failed}", flush=True)
    return counts


def fail_calls_of(task: tuple[str, int, bool, int, Path]) -> tuple[str, Counts]:
    """One case over one engine."""
    import faults_cases

    engine, number, short, ways, folder = task
    os.environ["PENSTOCK_BACKEND"] = engine
    case = faults_cases.cases()[number]
    counts = Counts()
    round_ = Round(case, folder / f"{engine}-{number}")
    for fault in places(round_.count(), short, ways, number):
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


def refuse_in_kernels(short: bool, only: str, folder: Path) -> Counts:
    """`kinds` are kernels here."""
    import faults_kernels

    folder.chmod(0o755)
    faults_kernels.warm_up(folder / "warm")
    counts = Counts()
    for number, (name, attempts) in enumerate(faults_kernels.KERNELS.items()):
        if only not in name:
            continue
        place = folder / f"kernel-{number}"
        place.mkdir()
        tally = Tally()
        try:
            for attempt in attempts(place, short):
                tally.add(attempt.error, attempt.problem)
                if attempt.problem:
                    counts.findings.append(f"{name}: {attempt.problem}")
                    print(counts.findings[-1], flush=True)
        except Unusable as reason:
            print(f"{name}: skipped: {reason}", flush=True)
            continue
        counts.kinds[name] = tally
        print(f"{name}: {tally.failed}", flush=True)
    return counts


def fork_under_load(short: bool) -> tuple[list[list[record.Cell]], list[str]]:
    """Over each engine in turn, several processes at once."""
    forks = 75 if short else 500
    command = [sys.executable, str(Path(__file__).with_name("faults_forks.py")), "--forks", str(forks)]
    runs = [
        subprocess.Popen(command, env={**os.environ, "PENSTOCK_BACKEND": engine}, stdout=subprocess.PIPE, text=True)
        for engine in (ENGINES if short else ENGINES * 2)
    ]
    done: Counter[str] = Counter()
    findings: list[str] = []
    for run in runs:
        text, _ = run.communicate()
        if run.returncode not in (0, 1):
            findings.append(f"a parent that forks ends with {run.returncode}")
            continue
        told = json.loads(text)
        done.update(told["forks"])
        findings += told["findings"]
    wrong = Counter(kind for kind in done for finding in findings if kind in finding)
    return [[kind, count, count - wrong[kind], wrong[kind]] for kind, count in done.items()], findings


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", choices=["kernels", "calls", "forks", []], help="all, unless some are named")
    parser.add_argument("--short", action="store_true", help="a few of each")
    parser.add_argument("--record", action="store_true", help="write the tables of docs/reliability.md")
    parser.add_argument("--ways", type=int, default=9, help="in how many ways each call fails, of all that there are")
    parser.add_argument("--workers", type=int, default=3, help="how many cases at once (%(default)s)")
    parser.add_argument("--only", default="", help="of the calls: cases whose name has this in it")
    parser.add_argument(
        "--folder", type=Path, default=MEMORY, help="where the files go: %(default)s, where syncs are quick"
    )
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    findings: list[str] = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        for part in arguments.part or ["kernels", "calls", "forks"]:
            began = time.monotonic()
            title, columns, rows, found = PARTS[part](arguments, folder)
            title += ", short form" if arguments.short else ""
            told = record.Record(f"faults-{part}", title, columns, rows, time.monotonic() - began)
            print(record.as_markdown(told), flush=True)
            findings += found
            if arguments.record and not found:
                record.write(told)
    print("\n".join(findings))
    return 1 if findings else 0


Part = tuple[str, list[str], list[list[record.Cell]], list[str]]


def calls_part(arguments: argparse.Namespace, folder: Path) -> Part:
    counts = fail_calls(arguments.short, arguments.ways, arguments.only, arguments.workers, folder)
    rows = [counts.kinds[kind].row(kind) for kind in sorted(counts.kinds)]
    return "Calls that fail", ["kind of call", *COLUMNS], rows, counts.findings


def kernels_part(arguments: argparse.Namespace, folder: Path) -> Part:
    counts = refuse_in_kernels(arguments.short, arguments.only, folder)
    rows = [tally.row(name) for name, tally in counts.kinds.items()]
    return "Kernels that say no", ["kernel", *COLUMNS], rows, counts.findings


def forks_part(arguments: argparse.Namespace, _: Path) -> Part:
    rows, findings = fork_under_load(arguments.short)
    return "Forks under load", ["child", "forks", "right", "wrong or hung"], rows, findings


PARTS = {"kernels": kernels_part, "calls": calls_part, "forks": forks_part}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Unusable as reason:
        sys.exit(f"can't be tested here: {reason}")
