"""load and stream."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from . import _core
from ._frameworks import Landing, get_framework, gives_torch
from ._opaque import warn_of_opaque
from ._options import TORCH_FORMATS, LoadTuning, Path, Paths, load_options, open_reader, path_text
from ._progress import Progress, reporting
from ._rename import Rename, new_names
from ._select import Select, resolve
from ._shard import ShardLike
from ._sharing import Sharing, meeting, part_nbytes
from ._types import Device, DType, StatsDict, Tensor, Unpack
from .errors import ArgumentError, CancelledError

if TYPE_CHECKING:
    from typing import TypeGuard

    from ._frameworks import Framework, Info
    from ._shard import Part


def load(
    paths: Paths,
    device: Device = "cpu",
    *,
    select: Select = None,
    dtype: DType = None,
    cache: str = "auto",
    framework: str | None = None,
    rename: Rename = None,
    shard: ShardLike = None,
    plan: str = "exact",
    verify: bool | str = False,
    opaque: str = "refuse",
    progress: Progress = None,
    stats: StatsDict | None = None,
    **tuning: Unpack[LoadTuning],
) -> dict[str, Tensor]:
    """Loads a checkpoint: a dict of tensors by name, in the order they lie in the files.

    Of a file that torch.save wrote, what was saved: dicts in dicts, numbers, strings and tensors, those over one
    storage sharing it. With `select`, `rename`, `dtype` or NumPy it is a dict as of any other file, by paths such as
    "model/layer.0.weight".

    The tensors of a load lie in a few large blocks of memory, and a block is kept for as long as any tensor in it is:
    to keep a few of many, `select` them, or clone those and drop the rest. `stream` gives memory back tensor by tensor.

    paths: a file, a directory of shards, an ``*.index.json``, or several files.
    device: where the tensors go, as torch names it ("cuda:1") or the number of a GPU. With JAX one of its devices, a
        sharding, or a dict of these by names and globs. NumPy's arrays stay on the CPU.
    select: what to load: a name, a glob, several of either, or a callable that is given each tensor's `TensorInfo` (its
        name, with dtype, shape and nbytes). Names that don't exist, and globs that match nothing, are an error.
    dtype: convert floating tensors to this on the way: a torch dtype, a NumPy dtype or a name.
    cache: "auto" maps a safetensors or FlashPack file of which the page cache holds at least half, after the rest was
        read into it. Of any other file, of torch files and of those that are open for writing it copies what the cache
        holds and reads the rest past it; "copy" does so for all. "direct", "buffered" and "mmap" force one way. Whoever
        truncates or rewrites a mapped file in place takes the tensors' bytes away (SIGBUS): save by replacing files, as
        penstock does, or "copy".
    framework: "torch", "numpy" or "jax"; by default torch where it is installed.
    rename: other names for what was selected: a dict, a callable that is given each name, or
        ``penstock.strip_prefix("model.")`` and ``penstock.add_prefix("model.")``. Two tensors of one name are refused.
    shard: what of each tensor this rank is to have: ``{"*.o_proj.weight": 1, "*.q_proj.*": 0}``, a tensor-parallel plan
        of transformers, or a `Shard` with a rank, a process group or a device mesh; see docs/guides/sharding.md. Only
        these bytes are read. Names are those of the file.
    plan: with `shard`: "exact", each rank reads its own bytes and talks to no other; "scatter", ranks read each byte
        once and send it to who wants it; "auto" chooses, and ``stats["plan"]`` says why.
    verify: True checks the files as bytes land, each against what there is: a seal (see `seal`), checksums that it
        carries, or the name of its blob in the Hugging Face cache. "seal", "stored" and "sha256" insist on one of
        these. Damage, and a file that there is nothing to check against, is a FormatError, and no tensor is returned;
        "if-any" lets such files pass. Not with `shard`: checksums are of whole tensors. See docs/guides/verified.md.
    opaque: what to do with values of a torch checkpoint that are more than data (objects of other classes, functions).
        Nothing is ever imported or executed. "refuse" raises UnsupportedFormatError that names the first; "keep" puts
        an `Opaque` in its place. A load by paths (`select`, `rename`, `dtype`, NumPy) leaves them out.
    progress: True for a bar, or a callable that is given (bytes_done, bytes_total) and may return False to stop.
    stats: a dict (such as `Stats()`) to be filled with what was done and why.
    tuning: backend, block_size, queue_depth, threads, memory_budget, gds, landing, pool; see docs/tuning.md.
    """
    with meeting(shard, plan) as group:
        made = get_framework(framework)
        landing = landing_on(made, device, cache)
        options = load_options(dtype=dtype, verify=verify, cache=cache, **tuning)
        check_opaque(opaque)
        if select is None and rename is None and dtype is None and shard is None and is_tree(paths, framework):
            tree: dict[str, Any] = _load_tree(
                paths, landing, options, opaque, progress, stats
            )  # or what else was saved
            return tree
        reader = open_reader(paths)
        names = resolve(select, reader)
        _require(made, reader, names, dtype)
        renamed = new_names(rename, reader, names)
        sharing = Sharing(shard, plan, reader, names, group)
        tensors: dict[str, Any]
        with reporting(progress, f"loading {title(paths)}") as callback:
            if sharing.scatters:
                tensors, counters = sharing.scatter(options, dtype, landing, made, callback)
            elif landing.passes_host:
                moved = TensorStream(reader, names, options, landing, callback, sharing.parts)
                tensors, counters = dict(moved), moved.stats
            else:
                tensors, counters = reader.load(
                    names, options, callback, landing.build, landing.allocator, sharing.parts
                )
        if stats is not None:
            stats.update(counters, **sharing.words)
        return tensors if renamed is None else {renamed[name]: tensor for name, tensor in tensors.items()}


def is_tree(paths: Paths, framework: str | None) -> TypeGuard[Path]:
    """Whether this is a file of torch.save, to be loaded as one."""
    if not isinstance(paths, (str, os.PathLike)) or not gives_torch(framework):
        return False
    path = path_text(paths)
    # A directory is none, and opening a pipe would wait.
    return os.path.isfile(path) and _core.detect_format(path) in TORCH_FORMATS


def check_opaque(opaque: str) -> None:
    """Refuses a word that is none, also where there is nothing to apply it to."""
    if opaque not in ("refuse", "keep"):
        raise ArgumentError(f'opaque must be one of "refuse", "keep", not {opaque!r}')


def _load_tree(
    path: Path, landing: Landing, options: _core.LoadOptions, opaque: str, progress: Progress, stats: StatsDict | None
) -> Any:
    from ._torch.trees import load_tree

    with reporting(progress, f"loading {title(path)}") as callback:
        tree, counters = load_tree(_core.TorchCheckpoint(path_text(path), opaque), options, callback, landing)
    if stats is not None:
        stats.update(counters)
    return tree


def stream(
    paths: Paths,
    device: Device = "cpu",
    *,
    select: Select = None,
    dtype: DType = None,
    cache: str = "auto",
    framework: str | None = None,
    rename: Rename = None,
    shard: ShardLike = None,
    verify: bool | str = False,
    max_buffer: int | str = "256MiB",
    progress: Progress = None,
    stats: StatsDict | None = None,
    **tuning: Unpack[LoadTuning],
) -> Iterator[tuple[str, Tensor]]:
    """Yields (name, tensor) in the order they lie in the files, as soon as each has landed, while later ones are read.

    At most `max_buffer` bytes (but always one tensor) are read ahead, so a checkpoint larger than memory can pass
    through. The other arguments are those of `load`; `stats` is filled at the end. Closing the iterator stops the
    reads. With `verify` a damaged tensor is an error before it is yielded, though others may have been yielded
    before. Of a torch checkpoint all tensors are given, also those in objects of other classes; an `OpaqueWarning`
    names what is left out.
    """
    made = get_framework(framework)
    landing = landing_on(made, device, cache)
    reader = open_reader(paths)
    if select is None:
        warn_of_opaque(reader, title(paths))
    names = resolve(select, reader)
    _require(made, reader, names, dtype)
    renamed = new_names(rename, reader, names)
    options = load_options(dtype=dtype, verify=verify, cache=cache, max_buffer=max_buffer, **tuning)
    sharing = Sharing(shard, "exact", reader, names)

    def generate() -> Iterator[tuple[str, Any]]:
        with reporting(progress, f"loading {title(paths)}") as callback:
            tensors = TensorStream(reader, names, options, landing, callback, sharing.parts)
            for name, tensor in tensors:
                yield name if renamed is None else renamed[name], tensor
        if stats is not None:
            stats.update(tensors.stats, **sharing.words)

    return generate()


class TensorStream:
    """The engine's stream as an iterator of (name, tensor) that counts what passes."""

    def __init__(
        self,
        reader: _core.Reader,
        names: list[str] | None,
        options: _core.LoadOptions,
        landing: Landing,
        callback: Callable[[int, int], Any] | None,
        parts: Mapping[str, Part] | None = None,
    ) -> None:
        self._arguments = (names, options, dict(parts or {}))
        self._reader = reader
        self._landing = landing
        self._callback = callback
        self._total = _total(_selected(reader, names), parts or {}) if callback is not None else 0
        self.stats: dict[str, Any] = {}

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        source = self._reader.stream(*self._arguments, allocator=self._landing.allocator)
        done = 0
        try:
            while (landed := source.next()) is not None:
                memories, rows = landed
                done += rows[0][5]
                yield from self._landing.build(memories, rows).items()
                self._report(done)
            self.stats = source.stats()
        finally:
            source.close()

    def _report(self, done: int) -> None:
        if self._callback is not None and self._callback(min(done, self._total), self._total) is False:
            raise CancelledError("the progress callable asked to stop")


def _total(infos: list[Info], parts: Mapping[str, Part]) -> int:
    return sum(part_nbytes(info, parts[info[0]]) if info[0] in parts else info[5] for info in infos)


def _selected(reader: _core.Reader, names: list[str] | None) -> list[Info]:
    wanted = None if names is None else set(names)
    return [info for info in reader.infos() if wanted is None or info[0] in wanted]


def _require(framework: Framework, reader: _core.Reader, names: list[str] | None, dtype: Any) -> None:
    """Refuses types that the framework has not got before anything is read."""
    if dtype is None:
        framework.require(lambda: _selected(reader, names))


def landing_on(framework: Framework, device: Any, cache: str) -> Landing:
    """Where tensors for a device are to be."""
    landing = Landing(framework.build) if is_cpu(device) else framework.landing(framework.device(device))
    if landing.device is not None and cache == "mmap":
        raise ArgumentError(f'cache="mmap" is for the memory of the host, and not for device={str(device)!r}')
    return landing


def is_cpu(device: Any) -> bool:
    """Whether a device argument means the CPU."""
    return device is None or (not isinstance(device, int) and str(device) == "cpu")


def title(paths: Paths) -> str:
    """What to call these files in a line of progress."""
    if isinstance(paths, (str, bytes, os.PathLike)):
        return os.path.basename(os.fsdecode(paths)) or os.fsdecode(paths)
    return "files"
