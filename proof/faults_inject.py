"""Makes one system call of a process fail, be cut short or torn, whichever thread makes it.

The process has a seccomp filter by which the kernel asks this one about every call of a kind (SECCOMP_RET_USER_NOTIF).
The answer is that the call may go on, or what it returns without having been made. Short and torn transfers are made
here, on copies of the process's descriptors, and for as many bytes as they are to have. Needs Linux 5.6 and x86-64.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

NUMBERS = {
    "read": 0, "write": 1, "fstat": 5, "lseek": 8, "mmap": 9, "mprotect": 10, "ioctl": 16, "pread64": 17,
    "pwrite64": 18, "mremap": 25, "mincore": 27, "madvise": 28, "clone": 56, "fcntl": 72, "flock": 73, "fsync": 74,
    "fdatasync": 75, "ftruncate": 77, "fchmod": 91, "sysinfo": 99, "fstatfs": 138, "mlock": 149,
    "readahead": 187, "getdents64": 217, "fadvise64": 221, "openat": 257, "mkdirat": 258, "newfstatat": 262,
    "unlinkat": 263, "linkat": 265, "readlinkat": 267, "fchmodat": 268, "faccessat": 269, "sync_file_range": 277,
    "fallocate": 285, "eventfd2": 290, "preadv": 295, "pwritev": 296, "renameat": 264, "process_vm_readv": 310,
    "renameat2": 316, "getrandom": 318, "memfd_create": 319, "copy_file_range": 326, "preadv2": 327, "pwritev2": 328,
    "statx": 332, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "clone3": 435,
    "faccessat2": 439, "mkdir": 83, "rename": 82, "unlink": 87, "rmdir": 84, "open": 2, "stat": 4, "lstat": 6,
    "readv": 19, "access": 21, "readlink": 89, "statfs": 137, "link": 86, "chmod": 90,
}  # fmt: skip
NAMES = {number: name for name, number in NUMBERS.items()}
READS = {"read", "readv", "pread64", "preadv", "preadv2"}
WRITES = {"write", "pwrite64", "pwritev", "pwritev2"}
VECTORS = {"readv", "preadv", "preadv2", "pwritev", "pwritev2"}

_SECCOMP, _PIDFD_OPEN, _PIDFD_GETFD = 317, 434, 438
_SET_FILTER, _NEW_LISTENER, _NO_NEW_PRIVILEGES = 1, 1 << 3, 38
_LOAD, _EQUALS, _RETURN, _ALLOW, _ASK, _ERROR = 0x20, 0x15, 0x06, 0x7FFF0000, 0x7FC00000, 0x00050000
_RECEIVE, _ANSWER = 0xC0502100, 0xC0182101
_GO_ON = 1
_NOTICE = struct.Struct("<QIIiIQ6Q")
_REPLY = struct.Struct("<QqiI")
_GRANULE = 512  # of short transfers, for direct ones
_PAGE = 4096

_libc = ctypes.CDLL(None, use_errno=True)


class Unusable(Exception):  # noqa: N818 - a state, and no error
    """The kernel, or whoever runs this, has no such thing; says why."""


Mark = Callable[[], None]


@dataclass(frozen=True)
class Fault:
    """The call of this name and number (from 0) does not do what it should."""

    call: str
    number: int
    how: str  # the name of an errno, "short" or "torn"


@dataclass
class Watched:
    """What a process did that was watched."""

    calls: Counter[str] = field(default_factory=Counter)
    injected: bool = False
    answer: bytes | None = None  # null: it gave none in time, or died
    hung: bool = False


def run(work: Callable[[Mark, Mark], bytes], calls: Iterable[str], fault: Fault | None, limit: float) -> Watched:
    """Runs `work(begin, end)` in a child. The calls between `begin()` and `end()` are counted, and one fails."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        _work(work, list(calls), theirs)
    theirs.close()
    watched = Watched()
    try:
        _, descriptors, *_ = socket.recv_fds(ours, 1, 1)
        if not descriptors:
            raise Unusable("seccomp: the kernel does not ask about system calls (SECCOMP_RET_USER_NOTIF)")
        with os.fdopen(descriptors[0], "rb", buffering=0) as listener:
            ours.send(b"g")
            _Watch(watched, child, ours, listener.fileno(), fault).until(time.monotonic() + limit)
    finally:
        ours.close()
        if watched.answer is None:
            os.kill(child, 9)
        os.waitpid(child, 0)
    return watched


def _work(work: Callable[[Mark, Mark], bytes], calls: list[str], theirs: socket.socket) -> None:
    status = 1
    try:
        listener = _ask_about([NUMBERS[call] for call in calls])
        if listener < 0:
            theirs.send(b"-")
        else:
            socket.send_fds(theirs, [b"+"], [listener])
            os.close(listener)
            theirs.recv(1)
            answer = work(lambda: theirs.sendall(b"b"), lambda: theirs.sendall(b"e"))
            theirs.sendall(b"=" + answer)
            status = 0
    finally:
        os._exit(status)


def _ask_about(numbers: list[int]) -> int:
    program = [(_LOAD, 0, 0, 0)]
    program += [(_EQUALS, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    program += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ASK)]
    return _install(program, _NEW_LISTENER)


def _install(program: list[tuple[int, int, int, int]], flags: int) -> int:
    if platform.machine() != "x86_64":
        return -1
    code = b"".join(struct.pack("<HBBI", *each) for each in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    described = struct.pack("<H6xQ", len(program), ctypes.addressof(buffer))
    _libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    return int(_libc.syscall(_SECCOMP, _SET_FILTER, flags, ctypes.c_char_p(described)))


def refuse(call: str, how: str) -> None:
    """Every such call of this process fails from now on."""
    error = _ERROR | getattr(errno, how)
    if _install([(_LOAD, 0, 0, 0), (_EQUALS, 0, 1, NUMBERS[call]), (_RETURN, 0, 0, error), (_RETURN, 0, 0, _ALLOW)], 0):
        raise Unusable("seccomp: no filter can be installed")


class _Watch:
    def __init__(self, watched: Watched, child: int, ours: socket.socket, listener: int, fault: Fault | None) -> None:
        self.watched, self.ours, self.listener, self.fault = watched, ours, listener, fault
        self.process = _libc.syscall(_PIDFD_OPEN, child, 0)
        self.child = child
        self.received = b""
        ours.setblocking(False)

    def until(self, deadline: float) -> None:
        poll = select.poll()
        poll.register(self.ours, select.POLLIN)
        poll.register(self.listener, select.POLLIN)
        try:
            while True:
                ready = dict(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
                if not ready:
                    self.watched.hung = True
                    return
                if not self.listen():
                    return
                if ready.get(self.listener, 0) & select.POLLIN:
                    self.answer()
                elif self.listener in ready:
                    poll.unregister(self.listener)
        finally:
            os.close(self.process)

    def listen(self) -> bool:
        """Takes in what the process says of itself; false when it is through."""
        try:
            text = self.ours.recv(1 << 16)
        except BlockingIOError:
            return True
        self.received += text
        if text:
            return True
        if self.received.startswith(b"be="):
            self.watched.answer = self.received[3:]
        return False

    def answer(self) -> None:
        notice = bytearray(_NOTICE.size)
        try:
            fcntl.ioctl(self.listener, _RECEIVE, notice)
        except OSError:  # who asked is gone
            return
        token, _, _, number, _, _, *arguments = _NOTICE.unpack(notice)
        name = NAMES[number]
        result, error, go_on = 0, 0, _GO_ON
        if self.received == b"b":
            if self.fault is not None and name == self.fault.call and self.watched.calls[name] == self.fault.number:
                outcome = self.fail(name, arguments)
                if outcome is not None:
                    result, error, go_on = *outcome, 0
                    self.watched.injected = True
            self.watched.calls[name] += 1
        try:
            fcntl.ioctl(self.listener, _ANSWER, _REPLY.pack(token, result, error, go_on))
        except OSError:
            return

    def fail(self, name: str, arguments: list[int]) -> tuple[int, int] | None:
        """What the call returns, and its error; nothing where it can't be made so."""
        assert self.fault is not None
        if self.fault.how not in ("short", "torn"):
            return 0, -getattr(errno, self.fault.how)
        address, nbytes = self.buffer(name, arguments)
        part = nbytes // 2 // _GRANULE * _GRANULE or nbytes // 2
        if part == 0:
            return None
        offset = None if name in ("read", "readv", "write") else arguments[3]
        moved = self.move(name, arguments[0], address, part, offset)
        return (moved, 0) if self.fault.how == "short" else (0, -errno.EIO)

    def buffer(self, name: str, arguments: list[int]) -> tuple[int, int]:
        if name not in VECTORS:
            return arguments[1], arguments[2]
        return struct.unpack("<QQ", self.peek(arguments[1], 16))  # type: ignore[return-value]

    def move(self, name: str, descriptor: int, address: int, nbytes: int, offset: int | None) -> int:
        copy = _libc.syscall(_PIDFD_GETFD, self.process, descriptor, 0)
        if copy < 0:
            raise OSError(ctypes.get_errno(), "pidfd_getfd")
        memory = mmap.mmap(-1, -(-nbytes // _PAGE) * _PAGE)  # aligned, for direct transfers
        try:
            with memoryview(memory) as view, view[:nbytes] as part:
                if name in READS:
                    count = os.readv(copy, [part]) if offset is None else os.preadv(copy, [part], offset)
                    self.poke(address, bytes(part[:count]))
                else:
                    part[:] = self.peek(address, nbytes)
                    count = os.writev(copy, [part]) if offset is None else os.pwritev(copy, [part], offset)
            return count
        finally:
            os.close(copy)

    def peek(self, address: int, nbytes: int) -> bytes:
        buffer = ctypes.create_string_buffer(nbytes)
        self.transfer(_libc.process_vm_readv, ctypes.addressof(buffer), address, nbytes)
        return buffer.raw

    def poke(self, address: int, data: bytes) -> None:
        if data:
            buffer = ctypes.create_string_buffer(data, len(data))
            self.transfer(_libc.process_vm_writev, ctypes.addressof(buffer), address, len(data))

    def transfer(self, function: Callable[..., int], here: int, there: int, nbytes: int) -> None:
        local, remote = (ctypes.create_string_buffer(struct.pack("<QQ", at, nbytes), 16) for at in (here, there))
        if function(self.child, local, 1, remote, 1, 0) != nbytes:
            raise OSError(ctypes.get_errno(), "process_vm")
