"""The conversation of a FUSE filesystem with the kernel, over /dev/fuse, as <linux/fuse.h> describes it."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from contextlib import suppress

FORGET, INTERRUPT, BATCH_FORGET = 2, 36, 42  # these are not answered
HEADER = struct.Struct("<IIQQIIII")
ANSWER = struct.Struct("<IiQ")
ROOM_FOR_HEADERS = 1 << 16

# Of a request's code, node and body: an errno or 0, and what is said.
Answer = Callable[[int, int, bytes], tuple[int, bytes]]


def serve(connection: int, max_write: int, answer: Answer) -> None:
    """Answers requests, one after the other, until the filesystem is unmounted."""
    while True:
        try:
            request = os.read(connection, max_write + ROOM_FOR_HEADERS)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                continue
            raise
        _, code, unique, node, *_ = HEADER.unpack_from(request)
        if code in (FORGET, BATCH_FORGET, INTERRUPT):
            continue
        number, said = answer(code, node, request[HEADER.size :])
        with suppress(FileNotFoundError):  # who asked is gone
            os.writev(connection, (ANSWER.pack(ANSWER.size + len(said), -number, unique), said))
