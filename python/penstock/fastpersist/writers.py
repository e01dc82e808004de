"""Writers: file objects for `torch.save`, and for the storages of a checkpoint in one list.

`FastFileWriter` writes at the speed of the drive. `PyFileWriter` is Python's own file, to compare with; of both the
file appears whole, when the writer is closed, and takes the place of what was there. `MockFileWriter` counts, and
writes nothing.
"""

from __future__ import annotations

import os
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _core
from .._options import path_text
from .._replacement import Replacement
from ..errors import ArgumentError, UnsupportedError
from ._storages import StorageParts
from .stats import BASE_KEYS, STORAGE_KEYS, fast_stats, rate

if TYPE_CHECKING:
    from types import TracebackType

    import torch
    from typing_extensions import Self

    from .._options import Path

# torch writes around a file object that has a descriptor.
NO_DESCRIPTOR = -1


@dataclass
class FastFileWriterConfig:
    """How a `FastFileWriter` works.

    dnvme_handle: an `aio_handle`, or None; the writer has an engine of its own and does not need it.
    pinned_tensor: its size bounds the writer's staging memory. None leaves that to the engine.
    double_buffer: write one block while the next is filled.
    num_parallel_writers, writer_rank, global_rank: one writer makes the whole file.
    durable: sync the file before it gets its name.
    """

    dnvme_handle: Any = None
    pinned_tensor: torch.Tensor | None = None
    double_buffer: bool = True
    num_parallel_writers: int = 1
    writer_rank: int = 0
    global_rank: int = 0
    durable: bool = True


class FileWriter(ABC):
    """What the writers have in common: the calls of a file, counted."""

    def __init__(self, file_path: Path) -> None:
        self._file_path = path_text(file_path)
        self._stats: dict[str, Any] = dict.fromkeys((*BASE_KEYS, *STORAGE_KEYS), 0)
        self._closed = True  # until it is open

    def file_path(self) -> str:
        return self._file_path

    @property
    def closed(self) -> bool:
        return self._closed

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """Always -1: whoever writes to the file must do it with `write`."""
        self._stats["fileno"] += 1
        return NO_DESCRIPTOR

    def write(self, buffer: Any) -> int:
        """Takes any object with a contiguous buffer, and returns how many bytes that has."""
        self._require_open()
        started = time.perf_counter()
        try:
            nbytes = self._write(buffer)
        finally:
            self._stats["write_secs"] += time.perf_counter() - started
        self._stats["write"] += 1
        self._stats["bytes"] += nbytes
        return nbytes

    def save_torch_storage_object_list(self, storage_obj_list: Iterable[Any], save_size: bool) -> int:
        """Writes storages, given as (UntypedStorage, dtype), one after the other.

        With `save_size` each has its number of elements in front, as an int64. Returns the bytes written.
        """
        self._require_open()
        parts = StorageParts(storage_obj_list, bool(save_size))
        started = time.perf_counter()
        try:
            self._write_storages(parts)
        finally:
            self._stats["write_secs"] += time.perf_counter() - started
        self._stats["write"] += len(parts)
        self._stats["bytes"] += parts.nbytes
        self._stats["save_storage"] += parts.storages
        self._stats["save_storage_bytes"] += parts.nbytes
        return parts.nbytes

    def flush(self) -> None:
        self._stats["flush"] += 1
        if not self._closed:
            self._flush()

    def close(self) -> None:
        """The end of the file. Again: does nothing."""
        self._stats["close"] += 1
        if self._closed:
            return
        self._closed = True
        started = time.perf_counter()
        try:
            self._finish()
        finally:
            self._stats["write_secs"] += time.perf_counter() - started

    def abandon(self) -> None:
        """The end without a file: for what failed halfway."""
        if not self._closed:
            self._closed = True
            self._abandon()

    @property
    def stats(self) -> dict[str, Any]:
        """What was done so far; see `penstock.fastpersist.stats`."""
        stats = dict(self._stats)
        stats["write_GB/s"] = rate(stats["bytes"], stats["write_secs"])
        stats["path"] = self._file_path
        return stats

    def get_stats(self) -> dict[str, Any]:
        return self.stats

    def _dump_state(self) -> None:
        """Prints the statistics, in one line."""
        print(f"stats = {self.stats}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def __del__(self) -> None:
        if getattr(self, "_closed", True):
            return
        message = f"{self._file_path}: the writer was never closed, nothing was saved"
        warnings.warn(message, ResourceWarning, stacklevel=2, source=self)
        self.abandon()

    def _require_open(self) -> None:
        if self._closed:
            raise ArgumentError(f"{self._file_path}: the writer is closed")

    @abstractmethod
    def _write(self, buffer: Any) -> int: ...

    @abstractmethod
    def _write_storages(self, parts: StorageParts) -> None: ...

    @abstractmethod
    def _flush(self) -> None: ...

    @abstractmethod
    def _finish(self) -> None: ...

    @abstractmethod
    def _abandon(self) -> None: ...


class FastFileWriter(FileWriter):
    """Writes at the speed of the drive; the file appears under its name, whole, when the writer is closed.

    Whatever fails, the path is what it was; the error is raised by the next call, and by `close`. Without `close`
    nothing is saved. As a context manager it closes, or after an exception leaves the path alone.
    """

    def __init__(self, file_path: Path, config: FastFileWriterConfig | None = None) -> None:
        super().__init__(file_path)
        config = config or FastFileWriterConfig()
        if config.num_parallel_writers != 1:
            raise UnsupportedError(
                f"{self._file_path}: a FastFileWriter writes a whole file; {config.num_parallel_writers} writers of "
                "one file need the parallel save over torch.distributed"
            )
        pinned = config.pinned_tensor
        options = _core.StreamOptions(
            durable=config.durable,
            overlap=config.double_buffer,
            max_staging=0 if pinned is None else pinned.numel() * pinned.element_size(),
        )
        self._file = _core.StreamFile(self._file_path, options)
        self._closed = False

    @property
    def stats(self) -> dict[str, Any]:
        return {**super().stats, **fast_stats(self._file.stats())}

    def _write(self, buffer: Any) -> int:
        return self._file.write(buffer)

    def _write_storages(self, parts: StorageParts) -> None:
        self._file.reserve(parts.nbytes)
        self._file.write_memory(parts.pieces())

    def _flush(self) -> None:
        self._file.flush()

    def _finish(self) -> None:
        self._file.finish()

    def _abandon(self) -> None:
        self._file.abandon()


class PyFileWriter(FileWriter):
    """Python's own file, elsewhere until it is closed. Nothing is synced."""

    def __init__(self, file_path: Path) -> None:
        super().__init__(file_path)
        self._replacement = Replacement(self._file_path)
        self._file = open(self._replacement.path, "wb")  # noqa: SIM115 (it is what this is)
        self._closed = False

    def _write(self, buffer: Any) -> int:
        self._file.write(buffer)
        return memoryview(buffer).nbytes

    def _write_storages(self, parts: StorageParts) -> None:
        for view in parts.views():
            self._file.write(view)

    def _flush(self) -> None:
        self._file.flush()

    def _finish(self) -> None:
        try:
            self._file.close()
        except BaseException:
            self._replacement.discard()
            raise
        self._replacement.publish()

    def _abandon(self) -> None:
        try:
            self._file.close()
        finally:
            self._replacement.discard()


class MockFileWriter(FileWriter):
    """Counts what it is given and writes nothing: the time of a save without its I/O.

    Makes an empty file where there is none.
    """

    def __init__(self, file_path: Path) -> None:
        super().__init__(file_path)
        os.close(os.open(self._file_path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
        self._closed = False

    def _write(self, buffer: Any) -> int:
        return memoryview(buffer).nbytes

    def _write_storages(self, parts: StorageParts) -> None:
        pass

    def _flush(self) -> None:
        pass

    def _finish(self) -> None:
        pass

    def _abandon(self) -> None:
        pass
