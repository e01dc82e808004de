"""What a file does to those who read it: by Python in a child of its own, and by the command."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import struct
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import penstock
import penstock.dcp
import penstock.safetensors
import torch

PATIENCE = 120.0
LONGEST_MESSAGE = 4096
MIB = 1 << 20


class Run(NamedTuple):
    """outcome: "refused", "read", or what is wrong. milliseconds: of CPU time."""

    action: str
    outcome: str
    milliseconds: float
    mib: float


def actions(path: Path, target: Path) -> dict[str, Callable[[], object]]:
    """All that Python can do with a checkpoint of this kind."""

    def look() -> None:
        with penstock.open(path) as file:
            list(file.keys())
            _ = file.metadata

    ways: dict[str, Callable[[], object]] = {
        "open": look,
        "load": lambda: penstock.load(path),
        "inspect": lambda: penstock.inspect(path),
        "stream": lambda: list(penstock.stream(path)),
        "verify": lambda: penstock.verify(path),
        "convert": lambda: penstock.convert(path, target),
    }
    if path.suffix == ".pt":
        ways["load and keep"] = lambda: penstock.load(path, opaque="keep")
    if path.suffix == ".safetensors":
        ways["safetensors' load_file"] = lambda: penstock.safetensors.torch.load_file(path)
    if path.is_dir() and any(os.path.lexists(path / name) for name in ("dcp.json", ".metadata")):
        return {
            "read_metadata": lambda: penstock.dcp.StorageReader(path).read_metadata(),
            "dcp.load": lambda: penstock.dcp.load(path),
            "convert": lambda: penstock.convert(path, target),
        }
    return ways


# What nobody does who only reads data. Opening is told by the watch on the directory outside.
FORBIDDEN = (
    "exec", "compile", "import", "code.", "function.", "marshal.", "pickle.", "os.system", "os.exec", "os.fork",
    "os.posix", "os.spawn", "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod",
    "os.chown", "os.truncate", "os.kill", "os.putenv", "os.startfile", "subprocess.", "pty.", "ctypes.", "socket.",
    "shutil.", "urllib.", "webbrowser.", "builtins.input", "builtins.breakpoint", "cpython.", "setopencodehook", "sys.",
    "tempfile.", "glob.", "http.", "ftplib.",
)  # fmt: skip
HARMLESS = ("sys.unraisablehook", "sys._getframe", "sys._current_frames")


class Watch:
    """Who opens, changes or adds a file in a directory, by any means."""

    _EVENTS = (
        0x20 | 0x2 | 0x100 | 0x200 | 0x40 | 0x80 | 0x1 | 0x4
    )  # opened, changed, made, removed, moved, read, of mode

    def __init__(self, directory: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0 or libc.inotify_add_watch(self._fd, os.fsencode(directory), self._EVENTS) < 0:
            raise OSError(ctypes.get_errno(), f"cannot watch {directory}")

    def events(self) -> list[str]:
        found = []
        while select.select([self._fd], [], [], 0)[0]:
            data = os.read(self._fd, 1 << 16)
            while data:
                _, mask, _, length = struct.unpack_from("iIII", data)
                found.append(f"{data[16 : 16 + length].rstrip(bytes(1)).decode()} {mask:#x}")
                data = data[16 + length :]
        return found

    def close(self) -> None:
        os.close(self._fd)


def status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


def readable(message: str) -> str | None:
    """What is wrong with an error's text."""
    if len(message) > LONGEST_MESSAGE:
        return f"an error of {len(message)} characters"
    if "\n" in message or any(ord(each) < 0x20 or ord(each) == 0x7F for each in message):
        return f"an error that is not one line of text: {message[:200]!r}"
    return None


def judge(action: Callable[[], object]) -> str:
    try:
        action()
    except penstock.Error as problem:
        return readable(str(problem)) or "refused"
    except BaseException as problem:
        return f"{type(problem).__name__}: {str(problem)[:200]!r}"
    return "read"


def measured(name: str, action: Callable[[], object], events: list[str]) -> Run:
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    events.clear()
    started = time.process_time()
    outcome = judge(action)
    seconds = time.process_time() - started
    seen = list(events)
    mib = max(0, status("VmHWM") - before) / MIB
    if seen:
        outcome = f"did {', '.join(sorted(set(seen))[:3])}"
    return Run(name, outcome, seconds * 1000, mib)


def attend(path: Path, target: Path) -> list[Run]:
    """In the child."""
    events: list[str] = []

    def note(event: str, given: tuple[Any, ...]) -> None:
        if event.startswith(FORBIDDEN) and event not in HARMLESS:
            if event == "import" and given[0] in sys.modules:
                return
            events.append(f"{event} {str(given)[:80]}")

    sys.addaudithook(note)
    signal.alarm(int(PATIENCE))
    return [measured(name, action, events) for name, action in actions(path, target).items()]


def by_python(path: Path, target: Path) -> list[Run]:
    """Each in one child, so that what a file does to a process is gone with it."""
    gc.freeze()  # a collection in the child would copy all that the parent has
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 1)
            os.dup2(null, 2)
            os.close(receive)
            with os.fdopen(send, "w") as out:
                json.dump(attend(path, target), out)
        finally:
            os._exit(0)
    os.close(send)
    with os.fdopen(receive) as pipe:
        text = pipe.read()
    _, code = os.waitpid(child, 0)
    if code != 0 or not text:
        return [Run("python", f"ended with {os.waitstatus_to_exitcode(code)}", 0, 0)]
    return [Run(*each) for each in json.loads(text)]


# Starts commands from a process that is small: a child's peak begins with what its parent had.
LAUNCHER = """
import json, os, subprocess, sys, tempfile
for line in sys.stdin:
    given = json.loads(line)
    with tempfile.TemporaryFile() as out:
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
        process = subprocess.Popen(given["command"], env=given["environment"], **streams)
        try:
            _, code, usage = os.wait4(process.pid, 0)
        except KeyboardInterrupt:
            process.kill()
            raise
        out.seek(0)
        text = out.read(1 << 24).decode(errors="backslashreplace")
    answer = {"code": os.waitstatus_to_exitcode(code), "cpu": usage.ru_utime + usage.ru_stime}
    print(json.dumps({**answer, "rss": usage.ru_maxrss, "text": text}), flush=True)
"""


class Command:
    """The penstock command, and what it takes for nothing."""

    def __init__(self, program: Path, good: Path) -> None:
        self._program = program
        environment = {"PATH": "/usr/bin:/bin"}
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", LAUNCHER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._base = {"cpu": 0.0, "rss": 0}
        self._base = min((self._run(["ls", str(good)]) for _ in range(3)), key=lambda each: each["cpu"])

    def _run(self, arguments: list[str]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        command = ["timeout", "-s", "KILL", str(PATIENCE), str(self._program), *arguments]
        self._process.stdin.write(json.dumps({"command": command, "environment": {"PATH": "/usr/bin:/bin"}}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())  # type: ignore[no-any-return]

    def runs(self, path: Path, target: Path) -> Iterator[Run]:
        for arguments in (["ls"], ["ls", "--json"], ["verify"], ["convert"]):
            whole = [*arguments, str(path), *([str(target)] if arguments == ["convert"] else [])]
            done = self._run(whole)
            milliseconds = max(0.0, done["cpu"] - self._base["cpu"]) * 1000
            mib = max(0, done["rss"] - self._base["rss"]) / 1024
            yield Run(" ".join(["penstock", *arguments]), self._outcome(done), milliseconds, mib)

    def _outcome(self, done: dict[str, Any]) -> str:
        code, text = done["code"], done["text"]
        if code not in (0, 1, 2):
            return f"ended with {code}: {text[-200:]!r}"
        bad = [each for each in text if (ord(each) < 0x20 and each not in "\n\t") or 0x7F <= ord(each) < 0xA0]
        if bad:
            return f"printed {bad[0]!r}"
        if code != 0 and (len(text) > 2 * LONGEST_MESSAGE or not text.strip()):
            return f"said {len(text)} characters"
        return "refused" if code != 0 else "read"

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def warm_up(folder: Path) -> Path:
    """Has everything imported that a reader may want, by reading good files of each kind. One of them is returned."""
    warnings.simplefilter("ignore")
    folder.mkdir()
    tensors = {"x": torch.arange(4.0), "y": torch.arange(3)}
    suffixes = ("safetensors", "pt", "flashpack")
    for suffix in suffixes:
        penstock.save(tensors, folder / f"good.{suffix}")
    sparse = torch.eye(3).to_sparse()
    rich = {
        "s": sparse,
        "q": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        "n": torch.nested.nested_tensor([torch.ones(2)]),
        "p": torch.nn.Parameter(torch.ones(2)),
        "c": 1j,
        "b": bytearray(b"x"),
        "l": torch.strided,
        "o": argparse_namespace(),
    }
    torch.save(rich, folder / "rich.pt")
    (folder / "set").mkdir()
    penstock.save(
        {"x": torch.arange(99.0), "y": torch.arange(99.0)}, folder / "set" / "m.safetensors", max_shard_size=400
    )
    torch.distributed.checkpoint.save(tensors, checkpoint_id=folder / "torch", no_dist=True)
    torch.distributed.checkpoint.save(tensors, storage_writer=penstock.dcp.StorageWriter(folder / "dcp"), no_dist=True)
    bad = folder / "bad.pt"
    bad.write_bytes(b"x")
    paths = [
        *(folder / f"good.{suffix}" for suffix in suffixes),
        folder / "rich.pt",
        *map(folder.joinpath, ("set", "torch", "dcp")),
    ]
    for number, path in enumerate([*paths, bad, folder / "nothing"]):
        for action in actions(path, folder / f"{number}.safetensors").values():
            judge(action)
    return folder / "good.safetensors"


def argparse_namespace() -> Any:
    import argparse

    return argparse.Namespace(x=torch.ones(2))
