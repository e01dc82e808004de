"""Cuts in a log of writes and syncs: what a drive may hold when its power goes, as images.

At a moment of the log everything before the last sync is there. Of what came after that a drive with a volatile cache
has kept any part, in any order: all of it, which is a prefix of the log, or some blocks and others not.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from power_disk import copy_image
from power_fuse import MARKED, SYNCED, WRITTEN, Entry

BLOCK = 4096  # a drive writes such a block whole or not at all; btrfs needs that of its superblocks


@dataclass(frozen=True)
class Cut:
    at: int  # how many entries of the log the drive has been told
    orders: bool  # whether it keeps order, and so has all of them; else it has some of those after the last sync


class WriteLog:
    def __init__(self, image: Path, entries: list[Entry]) -> None:
        self.image = image  # before the first entry
        self.entries = entries
        marks = [(entry.data.decode(), i) for i, entry in enumerate(entries) if entry.what == MARKED]
        self.marks = dict(marks)
        self.syncs = [i for i, entry in enumerate(entries) if entry.what == SYNCED]

    def moments(self, begin: int, end: int) -> list[int]:
        """After each write and sync of a stretch of the log."""
        return [i + 1 for i in range(begin, end) if self.entries[i].what != MARKED]

    def last_sync(self, at: int) -> int:
        return max((i for i in self.syncs if i < at), default=0)

    def images(self, cuts: list[Cut], target: Path, choose: random.Random) -> Iterator[Cut]:
        """Makes the target the image of one cut after the other, in the order of the log."""
        durable = target.with_suffix(".durable")
        copy_image(self.image, durable)
        done = 0
        for cut in sorted(cuts, key=lambda cut: cut.at):
            synced = self.last_sync(cut.at)
            apply(durable, self.entries[done:synced])
            done = max(done, synced)
            copy_image(durable, target)
            rest = self.entries[synced : cut.at]
            apply(target, rest if cut.orders else some_of(rest, choose))
            yield cut
        durable.unlink()


def some_of(entries: list[Entry], choose: random.Random) -> list[Entry]:
    """Any blocks of the writes, kept in place, with a share of its own for each cut; whole writes are lost too."""
    share = choose.random()
    writes = [entry for entry in entries if entry.what == WRITTEN and choose.random() > 0.3 * (1 - share)]
    blocks = [
        Entry(WRITTEN, entry.offset + begin, entry.data[begin : begin + BLOCK])
        for entry in writes
        for begin in range(0, len(entry.data), BLOCK)
    ]
    return [block for block in blocks if choose.random() < share]


def apply(image: Path, entries: list[Entry]) -> None:
    file = os.open(image, os.O_RDWR)
    try:
        for entry in entries:
            if entry.what == WRITTEN:
                os.pwrite(file, entry.data, entry.offset)
    finally:
        os.close(file)
