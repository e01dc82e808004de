"""Saves by several ranks: one ordinary file, or shards, each rank writing its share of the bytes."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .. import _core
from .._options import Stats
from .._parallel import DEFAULT_TIMEOUT as DEFAULT_TIMEOUT
from .._save import is_torch_format, make_writer
from ..errors import ArgumentError, DistributedError
from .files import make_pickled_writer
from .pickles import Pickled, pickle_object
from .ranks import Ranks

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._options import Path, SaveArguments
    from .._progress import Callback

_PARTITIONS = ("replica", "socket", "machine")
_CHECKSUM = struct.Struct("<IIQQ")

MakeWriter = Callable[..., "tuple[_core.Writer, list[Any]]"]


def save_parallel(
    obj: Any,
    path: Path,
    *,
    partition: str = "replica",
    timeout: float = DEFAULT_TIMEOUT,
    **arguments: Unpack[SaveArguments],
) -> Stats:
    """`penstock.save_parallel`, once torch is known to be there."""
    if partition not in _PARTITIONS:
        raise ArgumentError(f"partition must be one of {', '.join(_PARTITIONS)}, not {partition!r}")
    if not dist.is_initialized() or dist.get_world_size() == 1:
        from .._save import save

        return save(obj, path, **arguments)
    with Ranks(str(path), torch.device("cpu"), timeout) as ranks:
        return Part(ranks, path, dict(arguments)).save(obj, partition)


class Part:
    """One rank's part. All that the ranks tell each other goes through `ranks`."""

    def __init__(self, ranks: Ranks, path: Path, arguments: dict[str, Any], callback: Callback | None = None) -> None:
        self._ranks = ranks
        self._path = path
        self._arguments = arguments
        self._callback = callback

    def save(self, obj: Any, partition: str) -> Stats:
        if is_torch_format(self._arguments.get("format"), self._path):
            return self.save_pickled(lambda: self._pickle(obj), partition)
        make = partial(make_writer, obj)
        authors = self._authors()
        return self._run(make, partition) if authors is None else self._run_alone(make, authors)

    def save_pickled(self, take: Callable[[], Pickled], partition: str) -> Stats:
        """The same of what `take` returns, for a torch file. Where it raises, every rank fails."""
        own = self._ranks.together(take)
        authors = self._authors()
        if authors is not None:
            return self._run_alone(partial(make_pickled_writer, own), authors)
        return self._run(partial(make_pickled_writer, self._take_first(own)), partition)

    def _authors(self) -> list[int] | None:
        """None where all ranks have the same path; else, of each rank, the first one that has its path."""
        digests = self._ranks.digests(hashlib.sha256(os.fsencode(self._path)).digest())
        authors = [digests.index(digest) for digest in digests]
        return authors if any(authors) else None

    def _run_alone(self, make: MakeWriter, authors: list[int]) -> Stats:
        """Files of their own: each is written by its author."""

        def write() -> dict[str, Any]:
            if authors[self._ranks.rank] != self._ranks.rank:
                return {}
            writer, owners = make(self._path, dict(self._arguments), self._callback)
            stats = writer.commit()
            del owners  # Their memory was borrowed until here.
            return stats

        stats = self._everyone(json.dumps(self._ranks.together(write)).encode())
        return Stats(json.loads(stats[authors[self._ranks.rank]]))

    def _run(self, make: MakeWriter, partition: str) -> Stats:
        ranks = self._ranks
        writer, owners = ranks.together(lambda: make(self._path, dict(self._arguments), self._callback))
        save = ranks.together(lambda: _core.ParallelSave(writer))
        other = ranks.first_that_differs(struct.pack("<Q", save.fingerprint))
        if other is not None:
            raise DistributedError(f"{self._path}: rank {other} has other tensors than rank 0")
        writers = self._writers(partition)
        name = self._open(save)
        found = ranks.together(lambda: self._write(save, writers))
        checksums = self._gather(found)
        stats = ranks.together(lambda: save.commit(checksums) if ranks.rank == 0 else {})
        del name, owners
        return Stats(json.loads(ranks.send(json.dumps(stats).encode(), 0)))

    def _pickle(self, obj: Any) -> Pickled:
        state = obj.state_dict() if isinstance(obj, torch.nn.Module) else obj
        return pickle_object(state, legacy=self._arguments.get("format") == "torch-legacy")

    def _take_first(self, own: Pickled) -> Pickled:
        """Rank 0's pickle, over this rank's storages: the tree is the same, but addresses in it differ."""
        ranks = self._ranks
        data = ranks.send(own.data, 0)
        keys = ranks.send("\n".join(each.key for each in own.storages).encode(), 0).decode().splitlines()

        def match() -> Pickled:
            if len(keys) != len(own.storages):
                raise ArgumentError(f"{self._path}: {len(own.storages)} storages, where rank 0 has {len(keys)}")
            return Pickled(data, [each._replace(key=key) for each, key in zip(own.storages, keys, strict=True)])

        return ranks.together(match)

    def _writers(self, partition: str) -> list[int]:
        """The ranks that write, in order."""
        if partition == "replica":
            return list(range(self._ranks.world))
        local, count = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        chosen = local == 0 or (partition == "socket" and local == (count + 1) // 2)
        flags = self._everyone(b"\1" if chosen else b"\0")
        return [rank for rank, flag in enumerate(flags) if flag == b"\1"] or [0]

    def _open(self, save: _core.ParallelSave) -> str:
        ranks = self._ranks
        made = ranks.together(lambda: save.create() if ranks.rank == 0 else "")
        name = ranks.send(made.encode(), 0).decode()
        ranks.together(lambda: save.join(name) if ranks.rank != 0 else None)
        return name

    def _write(self, save: _core.ParallelSave, writers: list[int]) -> list[tuple[int, int, int, int]]:
        rank = self._ranks.rank
        if self._callback is not None:
            self._callback(0, 0)  # where it says stop: those who write nothing are asked here, and no other time
        return save.write(writers.index(rank), len(writers)) if rank in writers else []

    def _gather(self, found: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
        packed = b"".join(_CHECKSUM.pack(*row) for row in found)
        return [row for part in self._everyone(packed) for row in _CHECKSUM.iter_unpack(part)]

    def _everyone(self, content: bytes) -> list[bytes]:
        return [self._ranks.send(content, rank) for rank in range(self._ranks.world)]
