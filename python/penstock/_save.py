"""save and save_async."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import _core
from ._core import MemoryPool
from ._frameworks import PackedTensor, Source, get_framework, imported_frameworks, require_torch
from ._job import SaveJob, jobs_under_way
from ._load import title
from ._options import (
    TORCH_FORMATS,
    FormatArguments,
    Path,
    SaveArguments,
    Stats,
    checked_pool,
    checked_text,
    save_options,
    target_text,
)
from ._progress import Progress, reporting
from ._queue import QueuedJob
from ._reader import LazyTensor
from ._types import DType, State, StatsDict, Unpack
from .errors import ArgumentError, BusyError

if TYPE_CHECKING:
    from ._progress import Callback
    from ._queue import Job


# Whether saves store checksums where nobody says. docs/guides/verified.md says what they cost.
CHECKSUMS = False


def save(
    tensors: State,
    path: Path,
    *,
    format: str | None = None,
    dtype: DType = None,
    metadata: Mapping[str, str] | None = None,
    max_shard_size: int | str | None = None,
    checksums: bool | None = None,
    shared: str = "refuse",
    durable: bool = True,
    method: str = "auto",
    progress: Progress = None,
    stats: StatsDict | None = None,
    **tuning: Unpack[FormatArguments],
) -> Stats:
    """Saves tensors as one file, or shards: a crash leaves the old checkpoint or the whole new one, never a part.

    tensors: a mapping of name to tensor, or a torch module. Tensors are torch's, NumPy's, or anything with DLPack; they
        need not be contiguous, and may be on devices, several too: what is queued there comes first. For a torch file,
        any object that torch.save would take.
    format: "safetensors", "flashpack", "torch" (a zip, what .pt, .pth and .bin stand for) or "torch-legacy"; by default
        it follows the suffix of the path.
    dtype: convert floating tensors to it while they are written.
    metadata: strings to strings.
    max_shard_size: split into files of at most this many bytes, with an index beside them: a number, "5GB" (5 *
        1000**3), or "5GiB" or "5G" (5 * 1024**3). They appear as one, under names of their own where a set of that name
        is there: docs/formats/sets.md. What had the name before is removed, the shards that its index lists too.
    checksums: store a CRC-32C of every tensor, which `verify` and ``load(verify=True)`` check; by default not. What it
        costs: docs/guides/verified.md#what-checksums-cost-a-save. Torch files have none.
    shared: what to do with tensors whose memory overlaps: "refuse", "deduplicate" (store equal ones once and note the
        other names in the metadata) or "duplicate".
    durable: wait until the drive has it all. Without, a power cut may lose the file, and what it replaced.
    method: "direct" or "buffered"; by default what is quickest here.
    progress, stats: as in `load`; the statistics are returned too.
    tuning: backend, block_size, queue_depth, threads, memory_budget, gds, landing; see docs/tuning.md. For FlashPack
        also align_bytes, order ("format" or "given") and align_large, for torch zips record_alignment and
        record_checksums; see docs/formats.
    """
    arguments: dict[str, Any] = {
        "format": format,
        "dtype": dtype,
        "metadata": metadata,
        "max_shard_size": max_shard_size,
        "checksums": checksums,
        "shared": shared,
        "durable": durable,
        "method": method,
        **tuning,
    }
    with reporting(progress, f"saving {title(path)}") as callback:
        writer, owners = make_writer(tensors, path, arguments, callback)
        result = Stats(writer.commit())
    del owners  # Their memory was borrowed until here.
    if stats is not None:
        stats.update(result)
    return result


def save_async(
    tensors: State,
    path: Path,
    *,
    snapshot: bool | str = True,
    pool: MemoryPool | None = None,
    when_busy: str = "start",
    **arguments: Unpack[SaveArguments],
) -> SaveJob:
    """Saves in the background.

    snapshot: copy the tensors before anything is written, so that they may change again as soon as ``job.staged()``
        returns; a full disk is known by then. Without it they must not change until ``job.wait()`` has returned.
        "device" copies tensors of a device within it, which is soon done, where it has twice as much memory free as
        they take; else to the host, with the reason in the statistics.
    pool: where the snapshot's memory comes from.
    when_busy: what to do while other background saves of this process are under way: "start" at once beside them, each
        with a snapshot; "queue", which begins, with its snapshot too, when they are over, so that there is one at a
        time; or "refuse" with a BusyError.
    arguments: as in `save`, but for progress and stats: the job has both.
    """
    # The process may be elsewhere by the time the file is made.
    absolute = os.path.join(os.getcwd(), target_text(path))
    before = _jobs_before(absolute, when_busy)
    checked_pool(pool)
    if isinstance(snapshot, str) and snapshot != "device":
        raise ArgumentError(f'snapshot must be True, False or "device", not {snapshot!r}')
    writer, owners = make_writer(tensors, absolute, dict(arguments), None)
    nbytes = writer.nbytes

    def start() -> _core.SaveJob:
        on_device = snapshot == "device"
        return _core.save_async(writer, bool(snapshot), pool, on_device, _allocator_for(owners) if on_device else None)

    return SaveJob(QueuedJob(absolute, before, start) if before else start(), absolute, owners, nbytes)


def _allocator_for(owners: list[Any]) -> _core.Allocator | None:
    """Memory for a copy of the tensors on their device, from their library's allocator."""
    if "torch" not in sys.modules:
        return None
    from ._torch.devices import snapshot_allocator

    return snapshot_allocator(owners)


def _jobs_before(path: str, when_busy: str) -> list[Job]:
    """The jobs that a save has to wait for."""
    if when_busy not in ("start", "queue", "refuse"):
        raise ArgumentError(f'when_busy must be "start", "queue" or "refuse", not {when_busy!r}')
    if when_busy == "start":
        return []
    jobs = jobs_under_way()
    if jobs and when_busy == "refuse":
        raise BusyError(f"{path}: not saved, the save of {jobs[0].path} is under way")
    return [job.job for job in jobs]


def make_writer(
    tensors: Any, path: Path, arguments: dict[str, Any], callback: Callback | None
) -> tuple[_core.Writer, list[Any]]:
    """A writer with everything added, and what keeps the memory alive."""
    if is_torch_format(arguments.get("format"), path) and arguments.get("dtype") is None:
        require_torch(f"{target_text(path)}: a torch file")
        from ._torch.files import make_tree_writer

        return make_tree_writer(tensors, path, arguments, callback)
    if arguments.get("checksums") is None:
        arguments = {**arguments, "checksums": CHECKSUMS}
    named = _named_tensors(tensors)
    streams = [stream for framework in imported_frameworks() for stream in framework.streams(named.values())]
    writer = _core.Writer(target_text(path), save_options(**arguments, streams=streams), callback)
    owners = []
    for name, value in named.items():
        if not isinstance(name, str):
            raise ArgumentError(f"tensor names are strings, not {type(name).__name__}")
        source = make_source(checked_text("the name", name), value)
        if source.read is None:
            writer.add(name, source.dtype, source.shape, source.address, source.byte_strides)
        else:
            writer.add_produced(name, source.dtype, source.shape, source.read)
        owners.append(source.owner)
    return writer, owners


def is_torch_format(format: str | None, path: Path) -> bool:
    """Whether a save makes a torch file, which holds trees and not only tensors by name."""
    return (format or _core.format_for_suffix(target_text(path))) in TORCH_FORMATS


def _named_tensors(tensors: Any) -> Mapping[Any, Any]:
    if isinstance(tensors, Mapping):
        return tensors
    if hasattr(tensors, "state_dict"):
        return dict(tensors.state_dict())
    raise ArgumentError(f"expected a mapping of names to tensors or a module, not {type(tensors).__name__}")


def make_source(name: str, value: Any) -> Source:
    """How to write any kind of tensor."""
    if isinstance(value, PackedTensor):
        return make_source(name, value.data)._replace(dtype=value.dtype, shape=value.shape)
    if isinstance(value, Source):
        return value
    if isinstance(value, LazyTensor):
        return make_source(name, value.load())
    source = _known_source(name, value)
    if source is None and hasattr(value, "__dlpack__"):
        source = _known_source(name, _from_dlpack(value))
    if source is None:
        raise ArgumentError(f"{name}: expected a tensor, not {type(value).__name__}")
    return source


def _known_source(name: str, value: Any) -> Source | None:
    sources = (framework.source(name, value) for framework in imported_frameworks())
    return next((source for source in sources if source is not None), None)


def _from_dlpack(value: Any) -> Any:
    """torch knows more element types than NumPy does."""
    frameworks = imported_frameworks() or [get_framework("numpy")]
    return frameworks[0].from_any(value)
