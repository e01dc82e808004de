"""Kills a process by its system calls: all its threads are traced, and what they call is numbered as it returns.

child = Child(action)            # a fork, which waits
run = child.trace(kill_at=17)    # goes, and is killed (SIGKILL) when its 17th call has returned
run = child.kill_after(0.003)    # or after so many seconds, untraced
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

# The calls by which a save changes files or makes something durable, by their numbers.
CALLS = {
    "x86_64": {
        1: "write",
        18: "pwrite",
        20: "writev",
        26: "msync",
        40: "sendfile",
        73: "flock",
        74: "fsync",
        75: "fdatasync",
        76: "truncate",
        77: "ftruncate",
        82: "rename",
        83: "mkdir",
        84: "rmdir",
        86: "link",
        87: "unlink",
        88: "symlink",
        90: "chmod",
        91: "chmod",
        257: "create",
        258: "mkdir",
        263: "unlink",
        264: "rename",
        265: "link",
        268: "chmod",
        277: "sync_file_range",
        285: "fallocate",
        296: "pwritev",
        316: "rename",
        326: "copy_file_range",
        328: "pwritev",
        426: "io_uring_enter",
    },
    "aarch64": {
        32: "flock",
        34: "mkdir",
        35: "unlink",
        36: "symlink",
        37: "link",
        38: "rename",
        45: "truncate",
        46: "ftruncate",
        47: "fallocate",
        52: "chmod",
        53: "chmod",
        56: "create",
        64: "write",
        66: "writev",
        68: "pwrite",
        70: "pwritev",
        71: "sendfile",
        82: "fsync",
        83: "fdatasync",
        84: "sync_file_range",
        227: "msync",
        276: "rename",
        285: "copy_file_range",
        287: "pwritev",
        426: "io_uring_enter",
    },
}.get(platform.machine(), {})

_SYSCALL, _SEIZE, _INTERRUPT, _GET_SYSCALL_INFO = 24, 0x4206, 0x4207, 0x420E
_OPTIONS = 1 | 1 << 3 | 1 << 20  # system calls are marked, new threads are traced too, all die with the tracer
_MARKED = signal.SIGTRAP | 0x80
_ENTRY = 1
_ALL = 0x40000000  # __WALL: threads too
_NEW_NAME = os.O_CREAT | (os.O_TMPFILE & ~os.O_DIRECTORY)
_SET_DEATH_SIGNAL = 1
_GO = struct.Struct("<d")

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long
_info = ctypes.create_string_buffer(88)


@dataclass
class Run:
    """How a child ended."""

    status: int = 0  # as of waitpid
    calls: list[str] = field(default_factory=list)  # what was traced
    seconds: float = 0.0  # since it was told to go

    @property
    def killed(self) -> bool:
        return os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL

    @property
    def code(self) -> int:
        return os.waitstatus_to_exitcode(self.status)


class Child:
    """A fork that runs `action` when it is told to. It leaves with 0, or with 1 and a traceback.

    prepare: what it does before, and nobody traces.
    """

    def __init__(self, action: Callable[[], None], prepare: Callable[[], None] | None = None) -> None:
        ready, tell_ready = os.pipe()
        go, self._tell_go = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(ready)
            os.close(self._tell_go)
            _act(action, prepare, tell_ready, go)
        os.close(tell_ready)
        os.close(go)
        with suppress(ProcessLookupError, PermissionError):
            os.setpgid(self.pid, self.pid)
        self._ready: int | None = ready
        self._started = 0.0

    def go(self, dies_after: float = 0.0) -> None:
        """dies_after: a timer of its own kills it after so many seconds, however busy the machine is."""
        self.wait_ready()
        self._started = time.monotonic()
        with suppress(BrokenPipeError):
            os.write(self._tell_go, _GO.pack(dies_after))
        os.close(self._tell_go)

    def wait_ready(self) -> None:
        if self._ready is not None:
            os.read(self._ready, 1)
            os.close(self._ready)
            self._ready = None

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float = 120.0) -> Run:
        """Waits for its end. One that hangs is killed, and that is an error."""
        deadline = time.monotonic() + timeout
        while True:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                return Run(status, [], time.monotonic() - self._started)
            if time.monotonic() > deadline:
                self.kill()
                os.waitpid(self.pid, 0)
                raise TimeoutError(f"a child did not end within {timeout:g} s")
            time.sleep(0.0005)

    def kill_after(self, seconds: float) -> Run:
        self.go(seconds)
        return self.wait()

    def trace(self, kill_at: int | None = None, calls: dict[int, str] | None = None) -> Run:
        """Goes, and is killed once so many calls have returned.

        calls: those that are counted, by number; by default all, and the name of each is its number.
        """
        self.wait_ready()
        try:
            for task in map(int, os.listdir(f"/proc/{self.pid}/task")):
                # A thread that prepared something may be ending just now.
                with suppress(*(() if task == self.pid else (ProcessLookupError, PermissionError))):
                    _ptrace(_SEIZE, task, 0, _OPTIONS)
                    _ptrace(_INTERRUPT, task)
        except OSError:
            self.kill()
            os.waitpid(self.pid, 0)
            raise
        self.go()
        return self._follow(kill_at, calls)

    def _follow(self, kill_at: int | None, names: dict[int, str] | None) -> Run:
        calls: list[str] = []
        entered: dict[int, str | None] = {}
        while True:
            task, status = os.waitpid(-self.pid, _ALL)
            if not os.WIFSTOPPED(status):
                if task == self.pid:
                    return Run(status, calls, time.monotonic() - self._started)
                continue
            pass_on = 0
            if os.WSTOPSIG(status) == _MARKED:
                with suppress(ProcessLookupError):
                    stage, name = _call_at(task, names)
                    if stage == _ENTRY:
                        entered[task] = name
                    elif entered.pop(task, None) is not None:
                        calls.append(name or "")
                        if len(calls) == kill_at:
                            self.kill()
                            continue
            elif status >> 16 == 0:
                pass_on = os.WSTOPSIG(status)
            with suppress(ProcessLookupError):
                _ptrace(_SYSCALL, task, 0, pass_on)


def _act(action: Callable[[], None], prepare: Callable[[], None] | None, ready: int, go: int) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)
        libc.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
        if prepare is not None:
            prepare()
        os.write(ready, b"r")
        if told := os.read(go, _GO.size):
            _die_after(*_GO.unpack(told))
            action()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _die_after(seconds: float) -> None:
    if seconds <= 0:
        return
    event = ctypes.create_string_buffer(struct.pack("<QiI48x", 0, signal.SIGKILL, 0))
    timer = ctypes.c_void_p()
    moment = ctypes.create_string_buffer(struct.pack("<QQQQ", 0, 0, int(seconds), max(1, int(seconds % 1 * 1e9))))
    made = libc.timer_create(time.CLOCK_MONOTONIC, event, ctypes.byref(timer))
    if made != 0 or libc.timer_settime(timer, 0, moment, None) != 0:
        raise OSError(ctypes.get_errno(), "a timer that kills")


_last_name: dict[int, str | None] = {}


def _call_at(task: int, names: dict[int, str] | None) -> tuple[int, str | None]:
    """_ENTRY or not, and which call of interest it is."""
    _ptrace(_GET_SYSCALL_INFO, task, len(_info), ctypes.addressof(_info))
    stage = _info.raw[0]
    if stage != _ENTRY:
        return stage, _last_name.pop(task, None)
    number, flags = struct.unpack_from("<Q16xQ", _info.raw, 24)
    name = str(number) if names is None else names.get(number)
    _last_name[task] = None if name == "create" and not flags & _NEW_NAME else name
    return stage, _last_name[task]


def _ptrace(request: int, pid: int, address: int = 0, data: Any = 0) -> None:
    if libc.ptrace(request, pid, address, data) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"ptrace: {os.strerror(code)}")


def why_not() -> str | None:
    """Why processes can't be traced here."""
    if not CALLS:
        return "the numbers of system calls are known for x86-64 and arm64 only"
    child = Child(lambda: None)
    try:
        child.trace()
    except OSError as problem:
        return str(problem)
    return None
