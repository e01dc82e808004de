"""Saves of many tensors as a set of shards, which appear together: files laid out here, written by the engine.

    saver = ParallelSaver(num_shards=4, fsync=True)
    paths = saver.save(model.state_dict(), "/checkpoints/model")

makes model-00001-of-00004.safetensors and so on, and model.safetensors.index.json, which names them. Over an older set
the files have new names, model-g2-00001-of-00004.safetensors: the returned paths say which. The tensors go to the drive
by the engine. Who has bytes of other kinds gives a `fill`, which gets the memory of the new files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ..errors import Error, FormatError
from ._shard_files import check_sizes, write_files
from ._shard_plan import (
    KEY_SHARD_COUNT,
    KEY_SHARD_INDEX,
    KEY_SHARD_SET,
    Metadata,
    ShardMetadataFn,
    ShardPlan,
    WriteEntry,
    check_positive,
    plan_shards,
    shard_paths,
)
from .frameworks import TensorBase, get_framework_op
from .st_types import DType

if TYPE_CHECKING:
    from .common import SafeTensorsMetadata

__all__ = [
    "KEY_SHARD_COUNT",
    "KEY_SHARD_INDEX",
    "KEY_SHARD_SET",
    "DType",
    "FillFn",
    "ParallelSaver",
    "ShardMetadataFn",
    "ShardPlan",
    "ShardSetError",
    "WriteEntry",
    "per_entry_fill",
    "plain_entry",
    "plan_shards",
    "save_sharded",
    "shard_paths",
    "tensor_fill",
    "validate_shard_set",
    "write_shards",
]


class ShardSetError(FormatError):
    """Files that are not the shards of one set, all of them and in order. It is a ValueError."""


# Called once with the memory and the entry of every tensor, the largest first. It returns when all are filled, and
# keeps none of the memory.
FillFn = Callable[[list[tuple[memoryview, WriteEntry]]], None]
EntryFn = Callable[[memoryview, WriteEntry], None]


def validate_shard_set(metas: Sequence[SafeTensorsMetadata]) -> None:
    """Checks that these files are all the shards of one save, in their order. Raises ShardSetError."""
    if not metas:
        raise ShardSetError("a set of no shards")
    sets = set()
    for place, meta in enumerate(metas):
        said = meta.metadata if isinstance(meta.metadata, Mapping) else {}
        number, count = _number(said.get(KEY_SHARD_INDEX)), _number(said.get(KEY_SHARD_COUNT))
        if number is None or count is None or KEY_SHARD_SET not in said:
            raise ShardSetError(f"{meta.src}: its metadata does not say that it is a shard of a set")
        if (number, count) != (place, len(metas)):
            raise ShardSetError(f"{meta.src}: is shard {number} of {count}, expected {place} of {len(metas)}")
        sets.add(said[KEY_SHARD_SET])
    if len(sets) > 1:
        raise ShardSetError(f"{metas[0].src} and others: shards of {len(sets)} saves: {', '.join(sorted(sets))}")


def _number(text: Any) -> int | None:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() else None


def plain_entry(name: str, tensor: Any, *, framework: str = "pytorch") -> WriteEntry:
    """The entry of a tensor, of the framework or in its wrapper, as it is."""
    wrapped = _wrapped(name, tensor, framework)
    return WriteEntry(name, wrapped.dtype, wrapped.get_shape(), wrapped.get_nbytes(), tensor)


def _wrapped(name: str, tensor: Any, framework: str) -> TensorBase:
    if isinstance(tensor, TensorBase):
        return tensor
    operations = get_framework_op(framework)
    try:
        wrapped: TensorBase = operations.wrap_tensor(tensor)
    except Error as problem:
        raise type(problem)(f"{name}: {problem}") from None
    return wrapped


def write_shards(
    plans: Sequence[ShardPlan], fill: FillFn, *, min_free_bytes: int = 0, fsync: bool = False
) -> list[str]:
    """Writes planned files. Returns their paths.

    Space for all is taken first: a full disk is a NoSpaceError, and nothing is there then. No file has its name before
    all are complete. Where the paths are those of `shard_paths`, all of one base, the files then appear as one with
    their index, BASE.safetensors.index.json, in the place of an older set; a save that is killed leaves the old set or
    the new one. Files over an older set have new names, which are returned. Files of other paths get their names one
    by one, over what is there, and have no index: a save that is killed just then leaves some old and some new, each
    whole.

    fill: gets the memory of the new files, once, as [(memory, entry), ...], the largest first; what it raises leaves
        everything as it was. That of `tensor_fill` is not called: the engine writes from the tensors' memory.
    min_free_bytes: leave so many to others.
    fsync: wait until the drive has it all.
    """
    check_sizes(plans)
    sources = None
    if isinstance(fill, _TensorFill):
        sources = {entry.name: fill.tensor_of(entry) for plan in plans for entry in plan.entries}
    return write_files(plans, fill, sources or None, min_free_bytes, fsync)


def per_entry_fill(fn: EntryFn, num_threads: int = 8) -> FillFn:
    """A fill that calls ``fn(memory, entry)`` for each tensor, on several threads. The first error stops it."""
    check_positive("num_threads", num_threads)

    def fill(work: list[tuple[memoryview, WriteEntry]]) -> None:
        if num_threads == 1 or len(work) < 2:
            for buffer, entry in work:
                fn(buffer, entry)
            return
        with ThreadPoolExecutor(min(num_threads, len(work))) as pool:
            try:
                for future in [pool.submit(fn, buffer, entry) for buffer, entry in work]:
                    future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    return fill


class _TensorFill:
    """The default: `write_shards` knows it and has the engine write the tensors."""

    def __init__(self, num_threads: int, framework: str) -> None:
        self._fill = per_entry_fill(self._copy, num_threads)
        self._framework = framework

    def tensor_of(self, entry: WriteEntry) -> Any:
        """The tensor that an entry is written from."""
        return _wrapped(entry.name, entry.source, self._framework).get_raw()

    def _copy(self, buffer: memoryview, entry: WriteEntry) -> None:
        _wrapped(entry.name, entry.source, self._framework).copy_to_buffer(buffer)

    def __call__(self, work: list[tuple[memoryview, WriteEntry]]) -> None:
        """For a fill that hands some entries on to this one."""
        self._fill(work)


def tensor_fill(num_threads: int = 8, *, framework: str = "pytorch") -> FillFn:
    """The fill for entries whose sources are tensors: their bytes as they are.

    `write_shards` does not call it: the engine writes, with threads of its own. `num_threads` counts where another
    fill calls this one.
    """
    return _TensorFill(num_threads, framework)


def save_sharded(
    entries: Sequence[WriteEntry],
    base: str,
    *,
    num_shards: int = 16,
    fill: FillFn | None = None,
    framework: str = "pytorch",
    min_free_bytes: int = 0,
    fsync: bool = False,
    metadata: Metadata = None,
    shard0_metadata: Metadata = None,
    shard_metadata: ShardMetadataFn | None = None,
    header_align: int = 8,
) -> list[str]:
    """Writes entries as a set of shards: `plan_shards` over `shard_paths`, then `write_shards`. Returns the paths."""
    plans = plan_shards(
        entries,
        shard_paths(base, num_shards),
        metadata=metadata,
        shard0_metadata=shard0_metadata,
        shard_metadata=shard_metadata,
        header_align=header_align,
    )
    chosen = tensor_fill(framework=framework) if fill is None else fill
    return write_shards(plans, chosen, min_free_bytes=min_free_bytes, fsync=fsync)


class ParallelSaver:
    """Saves sets of shards, with settings that stay. Nothing is held between saves, so there is nothing to close.

    num_shards: files of a set; some may be empty.
    framework: whose tensors `save` takes: "pytorch" ("pt"), "numpy", or "paddle" where it is installed. They need not
        be contiguous, and may be on devices.
    num_threads: accepted; the engine chooses how many threads write tensors. A `fill` has threads of its own.
    shard_metadata: called with the entries of each file; the strings that it returns are for that file's metadata.
    fill: makes the bytes of all entries, see `write_shards`; None writes the tensors as they are.
    min_free_bytes: leave so many to others, or raise a NoSpaceError.
    fsync: wait until the drive has it all. Without, a power cut may lose the set, also what of the older one it
        replaced.
    """

    def __init__(
        self,
        *,
        num_shards: int = 16,
        framework: str = "pytorch",
        num_threads: int = 8,
        shard_metadata: ShardMetadataFn | None = None,
        fill: FillFn | None = None,
        min_free_bytes: int = 0,
        fsync: bool = False,
    ) -> None:
        check_positive("num_shards", num_shards)
        check_positive("num_threads", num_threads)
        self.num_shards = num_shards
        self.framework = framework
        self.num_threads = num_threads
        self.shard_metadata = shard_metadata
        self.fill = fill
        self.min_free_bytes = min_free_bytes
        self.fsync = fsync

    def save(
        self,
        tensors: Mapping[str, Any],
        base: str,
        *,
        metadata: Metadata = None,
        shard0_metadata: Metadata = None,
        header_align: int = 8,
    ) -> list[str]:
        """Saves tensors by name, the framework's or in its wrappers, as the set `base`. Returns the paths.

        The other arguments are those of `plan_shards`.
        """
        return self.save_entries(
            [plain_entry(name, tensor, framework=self.framework) for name, tensor in tensors.items()],
            base,
            metadata=metadata,
            shard0_metadata=shard0_metadata,
            header_align=header_align,
        )

    def save_entries(
        self,
        entries: Sequence[WriteEntry],
        base: str,
        *,
        metadata: Metadata = None,
        shard0_metadata: Metadata = None,
        header_align: int = 8,
    ) -> list[str]:
        """Saves entries, whose types, shapes and sizes in the files the caller knows. Returns the paths."""
        return save_sharded(
            entries,
            base,
            num_shards=self.num_shards,
            fill=tensor_fill(self.num_threads, framework=self.framework) if self.fill is None else self.fill,
            min_free_bytes=self.min_free_bytes,
            fsync=self.fsync,
            metadata=metadata,
            shard0_metadata=shard0_metadata,
            shard_metadata=self.shard_metadata,
            header_align=header_align,
        )
