"""fastpersist_save and fastpersist_save_legacy: whole checkpoints, in one call, at the drive's rate."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .._options import path_text
from .._torch.files import make_tree_writer
from .stats import rate

if TYPE_CHECKING:
    import torch

    from .._options import Path


def fastpersist_save(
    obj: Any,
    file_path: Path,
    aio_handle: Any = None,
    pinned_buffer: torch.Tensor | None = None,
    use_gds: bool = False,
    show_stats: bool = False,
    double_buffer: bool = True,
    num_parallel_writers: int = 1,
    pickle_protocol: int = 2,
) -> dict[str, Any]:
    """Saves any object that torch.save takes as a zip that torch.load reads, and returns the statistics.

    The file appears when all of it is there, synced; after an error the path is what it was. aio_handle and
    pinned_buffer are not needed: the engine has its own. use_gds: GPUDirect Storage for tensors on devices, also where
    penstock would not choose it by itself; where it can't be used, `gds` of the statistics says why. show_stats: print
    the statistics. double_buffer: write while the next bytes are prepared. num_parallel_writers: whoever calls this
    writes the whole file.
    """
    return _save(obj, file_path, "torch", use_gds, show_stats, double_buffer, pickle_protocol)


def fastpersist_save_legacy(
    obj: Any,
    file_path: Path,
    aio_handle: Any = None,
    pinned_buffer: torch.Tensor | None = None,
    use_gds: bool = False,
    show_stats: bool = False,
    double_buffer: bool = True,
    num_parallel_writers: int = 1,
    pickle_protocol: int = 2,
) -> dict[str, Any]:
    """The same in the legacy format (``_use_new_zipfile_serialization=False``)."""
    return _save(obj, file_path, "torch-legacy", use_gds, show_stats, double_buffer, pickle_protocol)


def _save(
    obj: Any, file_path: Path, format: str, use_gds: bool, show_stats: bool, double_buffer: bool, protocol: int
) -> dict[str, Any]:
    started = time.perf_counter()
    arguments: dict[str, Any] = {"format": format}
    if not double_buffer:
        arguments["queue_depth"] = 1
    if use_gds:
        arguments["gds"] = "on"
    writer, owners = make_tree_writer(obj, file_path, arguments, None, protocol=protocol, whole_modules=True)
    counters = writer.commit()
    del owners  # Their memory was borrowed until here.
    stats = save_stats(path_text(file_path), counters)
    stats["total_secs"] = time.perf_counter() - started
    if show_stats:
        print(f"stats = {stats}")
    return stats


def save_stats(path: str, counters: Mapping[str, Any]) -> dict[str, Any]:
    """What the engine counted in a save, under the names that FastPersist gives it.

    write counts the requests, bytes are those of the file, and write_secs is the time until it had its name. aio_bytes
    went past the page cache, slow_bytes through it; both took the time in which requests were under way.
    fill_buffer_count is how many blocks the copied bytes fill; copying overlaps with writing and has no time of its
    own. With tensors on devices there is also gds, "used" or why GPUDirect Storage was not.
    """
    direct, slow = counters["bytes_direct"], counters["bytes_buffered"]
    seconds = counters["seconds"]
    write_seconds = counters["phases"].get("write", seconds)  # a rank's share of a file has no phases
    blocks = -(-counters["bytes_copied"] // max(1, counters["block_size"]))
    return {
        "close": 1,
        "fileno": 0,
        "flush": 0,
        "write": counters["requests"],
        "bytes": direct + slow,
        "write_secs": seconds,
        "write_GB/s": rate(direct + slow, seconds),
        "aio_write_secs": write_seconds if direct else 0.0,
        "aio_bytes": direct,
        "aio_GB/s": rate(direct, write_seconds),
        "slow_bytes": slow,
        "slow_write_secs": write_seconds if slow else 0.0,
        "fill_buffer_count": blocks,
        "fill_buffer_secs": 0.0,
        "fill_buffer_GB/s": 0.0,
        "save_storage": counters["tensors"],
        "save_storage_bytes": counters["bytes"],
        "path": path,
        **({"gds": counters["gds"]} if counters.get("gds") else {}),
    }
