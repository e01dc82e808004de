"""A filesystem that shows a folder, and fails one request of the kernel's: a read, a write, a sync.

Other than with system calls that are kept from being made, it is the kernel that fails here: requests of io_uring end
with the error in their completion, pages of mappings and of the page cache can't be had, direct reads are short.

Only root can mount it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import struct
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import fuse

LOOKUP, GETATTR, SETATTR, MKDIR, UNLINK, RMDIR, RENAME, LINK, OPEN, READ = 1, 3, 4, 9, 10, 11, 12, 13, 14, 15
WRITE, STATFS, RELEASE, FSYNC, FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR = 16, 17, 18, 20, 25, 26, 27, 28, 29
FSYNCDIR, CREATE, FALLOCATE, RENAME2 = 30, 35, 43, 45
REQUESTS = {
    "lookup": LOOKUP, "getattr": GETATTR, "setattr": SETATTR, "open": OPEN, "create": CREATE, "read": READ,
    "write": WRITE, "fsync": FSYNC, "fsyncdir": FSYNCDIR, "fallocate": FALLOCATE, "link": LINK, "rename": RENAME2,
    "unlink": UNLINK, "mkdir": MKDIR, "statfs": STATFS, "opendir": OPENDIR, "readdir": READDIR, "flush": FLUSH,
}  # fmt: skip
NAMES = {code: name for name, code in REQUESTS.items()} | {RENAME: "rename"}

VERSION = (7, 31)
ASYNC_READ, BIG_WRITES, MAX_PAGES = 1, 1 << 5, 1 << 22
MAX_WRITE = 128 << 10
TRANSFER = struct.Struct("<QQIIQII")
SIZE, HANDLE = 1 << 3, 1 << 6  # of SETATTR
MODE = 1

libc = ctypes.CDLL(None, use_errno=True)


class Server:
    """`fault`: the name of a request, its number (from 0) and how it fails; "" for none."""

    def __init__(self, connection: int, folder: Path) -> None:
        self.connection = connection
        self.nodes: dict[int, Path] = {1: folder}
        self.numbers: dict[Path, int] = {folder: 1}
        self.fresh = count(2)
        self.counts: Counter[str] = Counter()
        self.fault: tuple[str, int, str] | None = None
        self.calls: dict[int, Callable[[int, bytes], bytes]] = {
            LOOKUP: lambda node, body: self.entry(self.child(node, body)),
            GETATTR: lambda node, body: self.attributes_of(node, body),
            SETATTR: self.set_attributes,
            MKDIR: self.make_folder,
            UNLINK: lambda node, body: self.gone(os.unlink, self.child(node, body)),
            RMDIR: lambda node, body: self.gone(os.rmdir, self.child(node, body)),
            LINK: self.link,
            RENAME: lambda node, body: self.rename(node, body[:8] + bytes(8) + body[8:]),
            RENAME2: self.rename,
            OPEN: lambda node, body: self.opened(os.open(self.nodes[node], self.flags(body))),
            CREATE: self.create,
            READ: self.read,
            WRITE: self.write,
            FALLOCATE: self.allocate,
            FSYNC: lambda *_: b"",
            FSYNCDIR: lambda *_: b"",
            FLUSH: lambda *_: b"",
            RELEASE: lambda _, body: self.closed(body),
            OPENDIR: lambda *_: self.opened(0),
            READDIR: self.list,
            RELEASEDIR: lambda *_: b"",
            STATFS: self.space,
            INIT: self.init,
        }

    def serve(self) -> None:
        fuse.serve(self.connection, MAX_WRITE, self.answer)

    def answer(self, code: int, node: int, body: bytes) -> tuple[int, bytes]:
        if node == 1 and code == LOOKUP and body.startswith(b".fault "):
            return self.order(body)
        if code not in self.calls:
            return errno.ENOSYS, b""
        name = NAMES.get(code, "")
        how = self.fault[2] if self.fault is not None and self.fault[:2] == (name, self.counts[name]) else ""
        self.counts[name] += 1
        if how == "DIE":
            os._exit(0)
        if how and how != "short":
            return getattr(errno, how), b""
        try:
            answer = self.calls[code](node, body)
            return 0, answer[: len(answer) // 2] if how else answer
        except OSError as error:
            return error.errno or errno.EIO, b""

    def order(self, body: bytes) -> tuple[int, bytes]:
        """`.fault read 3 EIO` is looked up: the fourth read from now on fails. What was counted is in a file beside."""
        text = body.rstrip(b"\0").decode().split()[1:]
        (self.nodes[1].parent / "counts").write_text(
            "\n".join(f"{name} {times}" for name, times in self.counts.items())
        )
        self.counts.clear()
        self.fault = (text[0], int(text[1]), text[2]) if len(text) == 3 else None
        return errno.ENOENT, b""

    def init(self, _: int, body: bytes) -> bytes:
        flags = struct.unpack_from("<IIII", body)[3] & (ASYNC_READ | BIG_WRITES | MAX_PAGES)
        return struct.pack("<IIIIHHIIHHIIH22x", *VERSION, 0, flags, 16, 12, MAX_WRITE, 1, MAX_WRITE // 4096, 0, 0, 0, 0)

    def child(self, node: int, name: bytes) -> Path:
        return self.nodes[node] / name.split(b"\0")[0].decode()

    def entry(self, path: Path) -> bytes:
        status = path.lstat()
        if path not in self.numbers:
            self.numbers[path] = next(self.fresh)
        node = self.numbers[path]
        self.nodes[node] = path
        return struct.pack("<QQQQII", node, 0, 0, 0, 0, 0) + self.attributes(status)

    @staticmethod
    def attributes(s: os.stat_result) -> bytes:
        times = (int(s.st_atime), int(s.st_mtime), int(s.st_ctime))
        parts = tuple(nanoseconds % 10**9 for nanoseconds in (s.st_atime_ns, s.st_mtime_ns, s.st_ctime_ns))
        more = (s.st_mode, s.st_nlink, s.st_uid, s.st_gid, 0, 4096, 0)
        return struct.pack("<6Q10I", s.st_ino, s.st_size, s.st_blocks, *times, *parts, *more)

    def attributes_of(self, node: int, body: bytes) -> bytes:
        flags, _, handle = struct.unpack_from("<IIQ", body)
        status = os.fstat(handle) if flags & 1 and handle else self.nodes[node].lstat()
        return struct.pack("<QII", 0, 0, 0) + self.attributes(status)

    def set_attributes(self, node: int, body: bytes) -> bytes:
        valid, _, handle, size = struct.unpack_from("<IIQQ", body)
        (mode,) = struct.unpack_from("<I", body, 68)
        target = handle if valid & HANDLE else self.nodes[node]
        if valid & SIZE:
            os.truncate(target, size)
        if valid & MODE:
            os.chmod(target, stat.S_IMODE(mode))
        return struct.pack("<QII", 0, 0, 0) + self.attributes(os.stat(target))

    def make_folder(self, node: int, body: bytes) -> bytes:
        path = self.child(node, body[8:])
        path.mkdir()
        return self.entry(path)

    def gone(self, remove: Callable[[Path], None], path: Path) -> bytes:
        remove(path)
        self.numbers.pop(path, None)
        return b""

    def link(self, node: int, body: bytes) -> bytes:
        path = self.child(node, body[8:])
        os.link(self.nodes[struct.unpack_from("<Q", body)[0]], path)
        return self.entry(path)

    def rename(self, node: int, body: bytes) -> bytes:
        folder, flags, _ = struct.unpack_from("<QII", body)
        old, new = (part.decode() for part in body[16:].split(b"\0")[:2])
        source, target = self.nodes[node] / old, self.nodes[folder] / new
        if libc.renameat2(-100, bytes(source), -100, bytes(target), flags) != 0:
            raise OSError(ctypes.get_errno(), "renameat2")
        number = self.numbers.pop(source, None)
        self.numbers.pop(target, None)
        if number is not None:
            self.numbers[target], self.nodes[number] = number, target
        return b""

    @staticmethod
    def flags(body: bytes) -> int:
        return struct.unpack_from("<I", body)[0] & ~(os.O_DIRECT | os.O_CREAT | os.O_EXCL)

    @staticmethod
    def opened(descriptor: int) -> bytes:
        return struct.pack("<QIi", descriptor, 0, 0)

    def create(self, node: int, body: bytes) -> bytes:
        flags, mode = struct.unpack_from("<II", body)
        path = self.child(node, body[16:])
        descriptor = os.open(path, flags & ~os.O_DIRECT, mode)
        return self.entry(path) + self.opened(descriptor)

    @staticmethod
    def closed(body: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", body)[0])
        return b""

    @staticmethod
    def read(_: int, body: bytes) -> bytes:
        handle, offset, size, *_ = TRANSFER.unpack_from(body)
        return os.pread(handle, size, offset)

    @staticmethod
    def write(_: int, body: bytes) -> bytes:
        handle, offset, size, *_ = TRANSFER.unpack_from(body)
        return struct.pack("<II", os.pwrite(handle, body[TRANSFER.size : TRANSFER.size + size], offset), 0)

    @staticmethod
    def allocate(_: int, body: bytes) -> bytes:
        handle, offset, length, _mode, _ = struct.unpack_from("<QQQII", body)
        os.posix_fallocate(handle, offset, length)
        return b""

    def list(self, node: int, body: bytes) -> bytes:
        _, offset, size, *_ = TRANSFER.unpack_from(body)
        answer = b""
        for number, name in enumerate(sorted(os.listdir(self.nodes[node]))[offset:], offset + 1):
            text = name.encode()
            entry = struct.pack("<QQII", 1, number, len(text), 0) + text
            entry += b"\0" * (-len(entry) % 8)
            if len(answer) + len(entry) > size:
                break
            answer += entry
        return answer

    def space(self, *_: object) -> bytes:
        s = os.statvfs(self.nodes[1])
        counts = (s.f_blocks, s.f_bfree, s.f_bavail, s.f_files, s.f_ffree)
        return struct.pack("<5Q4I24x", *counts, s.f_bsize, 255, s.f_frsize, 0)


@contextmanager
def mounted(folder: Path, place: Path) -> Iterator[int]:
    """Shows `folder` at `place`, by a process with this number. It may be killed: then every call fails."""
    connection = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={connection},rootmode=40000,user_id=0,group_id=0,allow_other"
    if libc.mount(b"failing", bytes(place), b"fuse", 0, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), "mount")
    server = os.fork()
    if server == 0:
        status = 1
        try:
            libc.prctl(1, signal.SIGKILL)  # with its parent
            Server(connection, folder).serve()
            status = 0
        finally:
            os._exit(status)
    os.close(connection)
    try:
        yield server
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
        with suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(server, 0)


def order(place: Path, text: str = "none") -> None:
    with suppress(FileNotFoundError):
        (place / f".fault {text}").lstat()


def counted(folder: Path) -> dict[str, int]:
    """Of the requests since the order before the last."""
    lines = (folder.parent / "counts").read_text().splitlines()
    return {name: int(count) for name, count in (line.split() for line in lines if not line.startswith(" "))}
