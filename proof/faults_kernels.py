"""Loads and saves where the kernel itself says no: failing, full and read-only filesystems, limits, dead servers.

Every attempt is a child process of its own, which has three minutes.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import faults_cases
import faults_fuse
import numpy as np
import penstock
from faults_cases import NEW, OLD, Case
from faults_inject import Unusable, refuse

LIMIT = 180.0
MIB = 1 << 20
NOBODY = 65534
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"
SAVES = ("save safetensors", "save shards", "save FlashPack", "save torch zip")
LOADS = ("load safetensors", "load safetensors, mapped", "load shards", "load torch zip", "load a stream")


@dataclass
class Attempt:
    """What came of one: `error` is the message, `problem` what should not have happened."""

    error: str = ""
    problem: str = ""
    hung: bool = False


def command(*words: object) -> None:
    environment = {**os.environ, "PATH": PATH}
    program = shutil.which(str(words[0]), path=PATH)
    if program is None:
        raise Unusable(f"there is no {words[0]}")
    done = subprocess.run([program, *map(str, words[1:])], capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise Unusable(f"{words[0]}: {done.stderr.strip().splitlines()[-1] if done.stderr else done.returncode}")


def in_child(work: Callable[[], bytes], limit: float = LIMIT) -> Attempt:
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        status = 1
        try:
            os.write(writing, work())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    deadline = time.monotonic() + limit
    while (ended := os.waitpid(process, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.002)
    if ended[0] == 0:
        os.kill(process, 9)
        os.waitpid(process, 0)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    if ended[0] == 0:
        return Attempt(problem="hung", hung=True)
    if not text:
        return Attempt(problem=f"died with {os.waitstatus_to_exitcode(ended[1])}")
    told = json.loads(text)
    return Attempt(told["error"] or "", "; ".join(told["problems"]))


Step = Callable[[], None]
Attempts = Callable[[Path, bool], Iterator["Attempt"]]


def nothing() -> None:
    """Where nobody counts calls."""


def try_case(case: Case, folder: Path, before: Step = nothing, after: Step = nothing, fails: str = "") -> Attempt:
    """Once with what `before` has done to this world, and once more when `after` has undone it."""
    return in_child(lambda: faults_cases.play(case, folder, fails, before, after))


def warm_up(folder: Path) -> None:
    """What is imported late, which nobody may not. Not io_uring: a process finds out once whether there is one."""
    os.environ["PENSTOCK_BACKEND"] = "threads"
    for case in chosen(*SAVES, *LOADS):
        problem, _ = faults_cases.attempt(case, fresh(case, folder))
        if problem is not None:
            raise SystemExit(f"{case.name}: {problem.text}")
    os.environ["PENSTOCK_THREADS"] = "2"  # so little is else moved without any engine
    del os.environ["PENSTOCK_BACKEND"]


def chosen(*names: str) -> list[Case]:
    return [case for case in faults_cases.cases() if case.name in names]


def fresh(case: Case, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    case.prepare(folder)
    return folder


def require_root() -> None:
    if os.geteuid() != 0:
        raise Unusable("only root can")


# ---- a filesystem that fails


def failing_filesystem(folder: Path, short: bool) -> Iterator[Attempt]:
    require_root()
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise Unusable("there is no /dev/fuse")
    real, place = folder / "real", folder / "place"
    real.mkdir()
    place.mkdir()
    ways = {
        "read": ("EIO", "short", "ESTALE"), "write": ("EIO", "ENOSPC"), "fsync": ("EIO",), "fsyncdir": ("EIO",),
        "open": ("EIO", "ESTALE"), "getattr": ("EIO", "ESTALE"), "rename": ("EIO",), "link": ("EIO",),
        "create": ("EDQUOT",), "fallocate": ("ENOSPC",), "setattr": ("EIO",), "lookup": ("EIO",), "unlink": ("EIO",),
    }  # fmt: skip
    with faults_fuse.mounted(real, place):
        for case in chosen(*SAVES, *LOADS):
            template = fresh(case, folder / "template")
            for turn, fault in enumerate(_requests(case, template, real, place, ways)):
                if short and turn % 9:
                    continue
                name = f"{case.name.replace(' ', '-')}-{turn}"
                shutil.copytree(template, real / name)
                attempt = try_case(
                    case,
                    place / name,
                    lambda fault=fault: faults_fuse.order(place, fault),  # type: ignore[misc]
                    lambda: faults_fuse.order(place),
                    fault,
                )
                if attempt.problem:
                    attempt.problem += f" ({case.name}, {fault})"
                yield attempt
                shutil.rmtree(real / name)


def _requests(case: Case, template: Path, real: Path, place: Path, ways: dict[str, tuple[str, ...]]) -> list[str]:
    """What to fail: each request that the case makes."""
    shutil.rmtree(real / "count", ignore_errors=True)
    shutil.copytree(template, real / "count")
    done = try_case(case, place / "count", lambda: faults_fuse.order(place), lambda: faults_fuse.order(place))
    if done.error or done.problem:
        raise SystemExit(f"{case.name}, over FUSE without any fault: {done}")
    counts = faults_fuse.counted(real)
    return [
        f"{request} {number} {how}"
        for request, hows in ways.items()
        for number in range(min(counts.get(request, 0), 12))
        for how in hows
    ]


def server_gone(folder: Path, short: bool) -> Iterator[Attempt]:
    """The server of the filesystem dies in the middle, as that of NFS may with `soft`."""
    require_root()
    real, place = folder / "gone", folder / "gone-place"
    real.mkdir()
    place.mkdir()
    for case in chosen(*SAVES, *LOADS):
        template = fresh(case, folder / "template")
        for request in ("read 1", "lookup 1", "write 3", "getattr 2")[: 2 if short else 4]:
            shutil.rmtree(real / "m", ignore_errors=True)
            shutil.copytree(template, real / "m")
            with faults_fuse.mounted(real, place):
                order = f"{request} DIE"
                attempt = in_child(lambda: _alone(case, place / "m", lambda: faults_fuse.order(place, order)))  # noqa: B023
            yield attempt if attempt.problem or not case.is_save else _whole(case, real / "m", attempt)


def _alone(case: Case, folder: Path, before: Callable[[], None]) -> bytes:
    """Once. The files are not looked at: they may be out of reach."""
    before()
    problem, result = faults_cases.attempt(case, folder)
    problems = []
    if problem is not None:
        problems = [faults_cases.judge_error(problem, folder, "")]
    elif not case.is_save and not faults_cases.same(result, OLD):
        problems = ["wrong bytes"]
    error = None if problem is None else problem.text
    return json.dumps({"error": error, "problems": [each for each in problems if each]}).encode()


def _whole(case: Case, folder: Path, attempt: Attempt) -> Attempt:
    attempt.problem = faults_cases.judge_state(case, folder, True, None)
    return attempt


# ---- full and read-only filesystems


@contextmanager
def disk(folder: Path, kind: str, megabytes: int) -> Iterator[Path]:
    """A small filesystem; in a file, where it is one for drives."""
    require_root()
    place, image = folder / kind, folder / f"{kind}.img"
    place.mkdir()
    if kind == "tmpfs":
        command("mount", "-t", "tmpfs", "-o", f"size={megabytes}M", "tmpfs", place)
    else:
        with image.open("wb") as file:
            file.truncate(megabytes * MIB)
        command(f"mkfs.{kind}", "-q", *(["-m", "0"] if kind == "ext4" else []), image)  # nothing set aside for root
        command("mount", "-o", "loop", image, place)
    try:
        yield place
    finally:
        for _ in range(100):
            if subprocess.run(["umount", str(place)], capture_output=True).returncode == 0:
                break
            time.sleep(0.1)
        image.unlink(missing_ok=True)


def full(kind: str, megabytes: int) -> Attempts:
    """Less and less is free, until there is room for nothing."""

    def attempts(folder: Path, short: bool) -> Iterator[Attempt]:
        with disk(folder, kind, megabytes) as place:
            for case in chosen(*SAVES):
                for room in range(0, 5 * MIB, MIB if short else MIB // 4):
                    work = fresh(case, place / "m")
                    left = os.statvfs(place)
                    filler = left.f_bavail * left.f_frsize - room
                    fill(place / "filler", filler)
                    free = os.statvfs(place).f_bavail * left.f_frsize
                    attempt = try_case(case, work, nothing, (place / "filler").unlink)
                    (place / "filler").unlink(missing_ok=True)
                    yield attempt if case.name == "save shards" else _truthful(attempt, free)

    return attempts


def fill(path: Path, nbytes: int) -> None:
    """So much, or what the filesystem gives to one file."""
    with path.open("wb") as file:
        while nbytes > 0 and not _reserves(file.fileno(), nbytes):
            nbytes -= MIB


def _reserves(descriptor: int, nbytes: int) -> bool:
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError:
        return False
    return True


def _truthful(attempt: Attempt, free: int) -> Attempt:
    """The number in the message is what there was."""
    told = re.search(r"has (\d+) available", attempt.error)
    if told and not attempt.problem and abs(int(told[1]) - free) > MIB:
        attempt.problem = f"says that {told[1]} bytes are available, of {free}"
    return attempt


def read_only(folder: Path, short: bool) -> Iterator[Attempt]:
    with disk(folder, "tmpfs", 32) as place:
        for case in chosen(*SAVES, *LOADS):
            work = fresh(case, place / "m")
            yield try_case(
                case,
                work,
                lambda: command("mount", "-o", "remount,ro", place),
                lambda: command("mount", "-o", "remount,rw", place),
            )


# ---- limits


def limited(what: int, steps: Callable[[bool], Iterator[int]], as_nobody: bool) -> Attempts:
    def attempts(folder: Path, short: bool) -> Iterator[Attempt]:
        if as_nobody:
            require_root()
        for case in chosen(*SAVES, *LOADS):
            template = fresh(case, folder / "template")
            for step in steps(short):
                work = folder / "work"
                faults_cases.copy_of(template, work)
                if as_nobody:
                    for path in (folder, work, *work.rglob("*")):
                        os.chmod(path, 0o777)
                        os.chown(path, NOBODY, NOBODY)
                yield in_child(lambda step=step: _limited(case, work, what, step, as_nobody))  # type: ignore[misc] # noqa: B023

    return attempts


def _limited(case: Case, folder: Path, what: int, step: int, as_nobody: bool) -> bytes:
    if as_nobody:
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    soft, hard = resource.getrlimit(what)
    limit = step + (len(os.listdir("/proc/self/fd")) if what == resource.RLIMIT_NOFILE else 0)
    return faults_cases.play(
        case,
        folder,
        "",
        lambda: resource.setrlimit(what, (limit, hard)),
        lambda: resource.setrlimit(what, (soft, hard)),
    )


def memory_group(folder: Path, short: bool) -> Iterator[Attempt]:
    """A load that is larger than what the group may have is refused; nobody is killed."""
    require_root()
    root = Path("/sys/fs/cgroup/memory")
    limits, procs = "memory.limit_in_bytes", "cgroup.procs"
    if not root.is_dir():
        root, limits = Path("/sys/fs/cgroup"), "memory.max"
    group = root / f"penstock-faults-{os.getpid()}"
    try:
        group.mkdir()
        (group / limits).write_text(str(160 * MIB))
    except OSError as problem:
        raise Unusable(f"no memory cgroup can be made: {problem}") from problem
    file = folder / "large.safetensors"
    penstock.save({"x": np.zeros(256 * MIB, np.uint8)}, file)
    try:
        for cache in ("copy", "direct", "auto"):
            yield in_child(lambda cache=cache: _in_group(group / procs, file, cache))  # type: ignore[misc]
    finally:
        for _ in range(100):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.05)


def _in_group(procs: Path, file: Path, cache: str) -> bytes:
    procs.write_text(str(os.getpid()))
    try:
        found = penstock.load(file, framework="numpy", cache=cache)
        return json.dumps({"error": None, "problems": [] if found["x"].size == 256 * MIB else ["wrong"]}).encode()
    except penstock.OutOfMemoryError as problem:
        return json.dumps({"error": str(problem), "problems": []}).encode()


# ---- no io_uring


def uring_refused(folder: Path, short: bool) -> Iterator[Attempt]:
    """By seccomp, as containers do."""
    for how in ("EPERM", "ENOSYS"):
        for case in chosen(*SAVES, *LOADS):
            yield _without_uring(case, folder, lambda how=how: refuse("io_uring_setup", how))  # type: ignore[misc]


def uring_switched_off(folder: Path, short: bool) -> Iterator[Attempt]:
    """kernel.io_uring_disabled=1, for who has no privileges."""
    require_root()
    switch = Path("/proc/sys/kernel/io_uring_disabled")
    if not switch.exists():
        raise Unusable("the kernel has no kernel.io_uring_disabled")
    was = switch.read_text()
    try:
        switch.write_text("1")
        for case in chosen(*SAVES, *LOADS):
            yield _without_uring(case, folder, _become_nobody)
    finally:
        switch.write_text(was)


def _become_nobody() -> None:
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def _without_uring(case: Case, folder: Path, first: Callable[[], None]) -> Attempt:
    work = fresh(case, folder / "work")
    if os.geteuid() == 0:
        for path in (folder, work, *work.rglob("*")):
            os.chmod(path, 0o777)
            os.chown(path, NOBODY, NOBODY)

    def play() -> bytes:
        first()
        return faults_cases.play(case, work, "", nothing, nothing)

    attempt = in_child(play)
    if attempt.error and not attempt.problem:
        attempt.problem = f"needs io_uring: {attempt.error}"
    return attempt


def nfs(folder: Path, short: bool) -> Iterator[Attempt]:
    """Of a server on this machine that is stopped in the middle."""
    require_root()
    with suppress(Unusable):
        command("modprobe", "nfs")
    if "nfs4" not in Path("/proc/filesystems").read_text():
        raise Unusable("the kernel has no NFS; ESTALE and a server that goes away come from FUSE here")
    exported, place = folder / "exported", folder / "nfs"
    exported.mkdir()
    place.mkdir()
    command("exportfs", "-o", "rw,no_root_squash,fsid=99,no_subtree_check", f"127.0.0.1:{exported}")
    try:
        command("mount", "-t", "nfs4", "-o", "soft,timeo=5,retrans=1", f"127.0.0.1:{exported}", place)
        try:
            for case in chosen(*SAVES, *LOADS):
                yield try_case(case, fresh(case, place / "m"))
                fresh(case, exported / "stale")
                yield in_child(lambda: _alone(case, place / "stale", lambda: shutil.rmtree(exported / "stale")))  # noqa: B023
        finally:
            command("umount", "-f", "-l", place)
    finally:
        command("exportfs", "-u", f"127.0.0.1:{exported}")


def _descriptors(short: bool) -> Iterator[int]:
    yield from range(0, 16, 4 if short else 1)


def _file_sizes(short: bool) -> Iterator[int]:
    yield from range(0, 3 * MIB, MIB if short else MIB // 4)


def _locked(_: bool) -> Iterator[int]:
    yield from (0, 64 << 10)


KERNELS: dict[str, Attempts] = {
    "io_uring refused by seccomp": uring_refused,  # before anything has found out that there is one
    "io_uring switched off, as nobody": uring_switched_off,
    "requests that fail (FUSE)": failing_filesystem,
    "a server that goes away (FUSE)": server_gone,
    "full tmpfs": full("tmpfs", 24),
    "full ext4": full("ext4", 48),
    "full xfs": full("xfs", 320),
    "read-only": read_only,
    "RLIMIT_FSIZE": limited(resource.RLIMIT_FSIZE, _file_sizes, as_nobody=False),
    "RLIMIT_NOFILE, as nobody": limited(resource.RLIMIT_NOFILE, _descriptors, as_nobody=True),
    "RLIMIT_MEMLOCK, as nobody": limited(resource.RLIMIT_MEMLOCK, _locked, as_nobody=True),
    "memory cgroup": memory_group,
    "NFS": nfs,
}

assert NEW is not OLD
