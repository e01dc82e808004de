"""A disk that remembers: a FUSE filesystem with a file `disk`, whose every write and sync goes to a log, in order.

A loop device over `disk` is the drive under a filesystem. It turns the filesystem's flushes, and the writes that have
to reach the platter (FUA), into fsync, so the log is what a drive with a volatile cache has been told. The file is
opened for direct I/O: no page cache between the loop device and the log. Requests are served one after the other.

What is written to the file `mark` becomes a mark in the log, in its place among the writes.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import fuse
from power_disk import call, end_with_parent, unmount

LOOKUP, GETATTR, SETATTR, OPEN, READ, WRITE, RELEASE, FSYNC = 1, 3, 4, 14, 15, 16, 18, 20
FLUSH, INIT = 25, 26
VERSION = (7, 31)
DIRECT_IO = 1
BIG_WRITES, MAX_PAGES = 1 << 5, 1 << 22
MAX_WRITE = 1 << 20
PAGES = MAX_WRITE // 4096

TRANSFER = struct.Struct("<QQIIQII")  # of READ and WRITE: handle, offset, size and what does not matter here
ENTRY = struct.Struct("<cQQ")  # of the log: what, where, how many bytes follow
WRITTEN, SYNCED, MARKED = b"w", b"s", b"m"

ROOT, DISK, MARK = 1, 2, 3
NAMES = {b"disk": DISK, b"mark": MARK}


class Server:
    def __init__(self, connection: int, image: Path, log: Path) -> None:
        self.connection = connection
        self.disk = os.open(image, os.O_RDWR)
        self.log = log.open("ab", buffering=0)
        self.calls: dict[int, Callable[[int, bytes], bytes]] = {
            INIT: self.init,
            LOOKUP: self.lookup,
            GETATTR: lambda node, _: struct.pack("<QII", 0, 0, 0) + self.attributes(node),
            SETATTR: lambda node, _: struct.pack("<QII", 0, 0, 0) + self.attributes(node),
            OPEN: lambda *_: struct.pack("<QIi", 0, DIRECT_IO, 0),
            READ: self.read,
            WRITE: self.write,
            FSYNC: self.sync,
            FLUSH: lambda *_: b"",
            RELEASE: lambda *_: b"",
        }

    def serve(self) -> None:
        """Until the filesystem is unmounted."""
        fuse.serve(self.connection, MAX_WRITE, self.answer)

    def answer(self, code: int, node: int, body: bytes) -> tuple[int, bytes]:
        if code not in self.calls:
            return errno.ENOSYS, b""
        try:
            return 0, self.calls[code](node, body)
        except OSError as error:
            return error.errno or errno.EIO, b""

    def init(self, _: int, body: bytes) -> bytes:
        flags = struct.unpack_from("<IIII", body)[3] & (BIG_WRITES | MAX_PAGES)
        return struct.pack("<IIIIHHIIHHIIH22x", *VERSION, 0, flags, 16, 12, MAX_WRITE, 1, PAGES, 0, 0, 0, 0)

    def lookup(self, _: int, body: bytes) -> bytes:
        node = NAMES.get(body.rstrip(b"\0"))
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "")
        return struct.pack("<QQQQII", node, 0, 0, 0, 0, 0) + self.attributes(node)

    def attributes(self, node: int) -> bytes:
        size = os.fstat(self.disk).st_size if node == DISK else 0
        mode = stat.S_IFDIR | 0o700 if node == ROOT else stat.S_IFREG | 0o600
        return struct.pack("<6Q10I", node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def read(self, node: int, body: bytes) -> bytes:
        _, offset, size, *_ = TRANSFER.unpack_from(body)
        return os.pread(self.disk, size, offset) if node == DISK else b""

    def write(self, node: int, body: bytes) -> bytes:
        _, offset, size, *_ = TRANSFER.unpack_from(body)
        data = body[TRANSFER.size : TRANSFER.size + size]
        if node == DISK:
            os.pwrite(self.disk, data, offset)
        self.note(WRITTEN if node == DISK else MARKED, offset, data)
        return struct.pack("<II", len(data), 0)

    def sync(self, node: int, _: bytes) -> bytes:
        if node == DISK:
            self.note(SYNCED, 0, b"")
        return b""

    def note(self, what: bytes, offset: int, data: bytes) -> None:
        os.writev(self.log.fileno(), (ENTRY.pack(what, offset, len(data)), data))


@dataclass(frozen=True)
class Entry:
    what: bytes
    offset: int
    data: bytes


def read_log(log: Path) -> list[Entry]:
    entries, text, at = [], log.read_bytes(), 0
    while at < len(text):
        what, offset, size = ENTRY.unpack_from(text, at)
        at += ENTRY.size
        entries.append(Entry(what, offset, text[at : at + size]))
        at += size
    return entries


@contextmanager
def remembering(image: Path, log: Path, folder: Path) -> Iterator[Path]:
    """FOLDER/disk is the image, FOLDER/mark takes marks; the log can be read when it is over."""
    connection = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={connection},rootmode=40000,user_id=0,group_id=0"
    call("mount", b"remembering", str(folder).encode(), b"fuse", 0, options.encode())
    server = os.fork()
    if server == 0:
        status = 1
        try:
            end_with_parent()
            Server(connection, image, log).serve()
            status = 0
        finally:
            os._exit(status)
    os.close(connection)
    try:
        yield folder
    finally:
        unmount(folder)
        _, status = os.waitpid(server, 0)
    if status != 0:
        raise OSError("the server of the remembering disk failed")
