"""Planned shards become files, which appear together: the engine writes tensors, or a fill has the files as memory."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .. import _core
from .._paths import target_text
from .._save import make_writer
from ..errors import ArgumentError, IoError
from ._shard_plan import shard_paths

if TYPE_CHECKING:
    from .saver import FillFn, ShardPlan, WriteEntry

Work = list[tuple[memoryview, "WriteEntry"]]

_SHARD = re.compile(r"(.*[^/])-\d{5,}-of-\d{5,}\.safetensors", re.DOTALL)


def check_sizes(plans: Sequence[ShardPlan]) -> None:
    """That a plan has a place of the right size for each entry. Where in the file that may be, the engine knows."""
    for plan in plans:
        for entry in plan.entries:
            place = plan.offsets.get(entry.name)
            if place is None or place[0] < 0 or place[1] - place[0] != entry.nbytes:
                raise ArgumentError(
                    f"{plan.path}: {entry.name}: expected a place of {entry.nbytes} bytes among the plan's offsets, "
                    f"found {place}"
                )


def write_files(
    plans: Sequence[ShardPlan],
    fill: FillFn,
    sources: Mapping[str, Any] | None,
    min_free_bytes: int,
    fsync: bool,
) -> list[str]:
    """Writes the files of plans and publishes them; from `sources`, tensors by name, or else by `fill`."""
    if not callable(fill):
        raise ArgumentError(f"fill must be a function, not {fill!r}")
    if min_free_bytes < 0:
        raise ArgumentError(f"min_free_bytes must not be negative: {min_free_bytes}")
    if not plans:
        return []
    paths = [target_text(plan.path) for plan in plans]
    base = _base_of(paths)
    for folder in dict.fromkeys(os.path.dirname(path) or "." for path in paths):
        _make_folder(folder)
    name = paths[0] if base is None else f"{base}.safetensors"
    arguments: dict[str, Any] = {"format": "safetensors", "shared": "duplicate", "durable": fsync, "checksums": False}
    writer, owners = make_writer(sources or {}, name, arguments, None)
    order = sorted(range(len(plans)), key=lambda number: (len(paths[number]), paths[number]))
    ordered = [plans[number] for number in order]
    files = _core.FileSet(writer, [_file_of(plan) for plan in ordered], min_free_bytes)
    try:
        if sources:
            files.write()
        else:
            _fill_through_maps(files, ordered, fill)
        del owners  # Their memory was borrowed until here.
        if base is None:
            files.publish_each()
            return paths
        return [os.fspath(path) for _, path in sorted(zip(order, files.publish_set(), strict=True))]
    finally:
        files.abandon()


def _base_of(paths: list[str]) -> str | None:
    """What the paths of all shards of one set, in any order, have in front of their numbers. None: they are others."""
    match = _SHARD.fullmatch(paths[0])
    return match[1] if match and set(shard_paths(match[1], len(paths))) == set(paths) else None


def _make_folder(folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as problem:
        raise IoError(f"{folder}: cannot be made: {problem.strerror}") from problem


def _file_of(plan: ShardPlan) -> tuple[str, bytes, int, list[tuple[str, int, int]]]:
    places = [(entry.name, plan.offsets[entry.name][0], entry.nbytes) for entry in plan.entries]
    return target_text(plan.path), bytes(plan.header), plan.total_bytes, places


class _Maps:
    """The new files as memory."""

    def __init__(self, files: _core.FileSet, plans: Sequence[ShardPlan]) -> None:
        self._maps: list[mmap.mmap] = []
        self._work: Work = []
        for number, plan in enumerate(plans):
            self._maps.append(mmap.mmap(files.descriptor(number), plan.total_bytes))
            with memoryview(self._maps[-1]) as whole:
                self._work += [(whole[slice(*plan.offsets[entry.name])], entry) for entry in plan.entries]
        self._work.sort(key=lambda item: -item[1].nbytes)

    def work(self) -> Work:
        """The tensors' memory, the largest first."""
        return list(self._work)

    def close(self) -> None:
        """Takes the memory back. Raises BufferError for what is still in use, and leaves that alone."""
        in_use = [kept for view, _ in self._work if (kept := _problem(view.release))]
        in_use += [kept for each in self._maps if (kept := _problem(each.close))]
        if in_use:
            raise in_use[0]


def _problem(release: Callable[[], None]) -> BufferError | None:
    try:
        release()
    except BufferError as problem:
        return problem
    return None


def _fill_through_maps(files: _core.FileSet, plans: Sequence[ShardPlan], fill: FillFn) -> None:
    maps = _Maps(files, plans)
    try:
        fill(maps.work())
    except BaseException:
        with suppress(BufferError):
            maps.close()
        raise
    try:
        maps.close()
    except BufferError:
        raise ArgumentError(
            f"{plans[0].path}: the set is not saved: fill has kept some of the memory that it was given"
        ) from None
