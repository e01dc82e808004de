"""convert, verify and inspect: whole files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from . import _core
from ._dtypes import dtype_name, numel
from ._load import title
from ._opaque import OpaqueValue
from ._options import FormatArguments, IoTuning, Path, Paths, Stats, open_reader, path_text, save_options, verify_word
from ._paths import explaining, path_texts, target_text
from ._progress import Progress, reporting
from ._reader import FileInfo
from ._rename import Rename, renamer
from ._select import Select, Source, TensorInfo, resolve
from ._types import DType, StatsDict, Unpack
from .errors import NotFoundError, UnsupportedError

if TYPE_CHECKING:
    from ._frameworks import Info


def convert(
    source: Paths,
    target: Path,
    *,
    select: Select = None,
    rename: Rename = None,
    dtype: DType = None,
    format: str | None = None,
    metadata: Mapping[str, str] | None = None,
    keep_metadata: bool = True,
    max_shard_size: int | str | None = None,
    checksums: bool = False,
    overwrite: bool = False,
    verify: bool | str = True,
    durable: bool = True,
    method: str = "auto",
    progress: Progress = None,
    stats: StatsDict | None = None,
    **tuning: Unpack[FormatArguments],
) -> Stats:
    """Copies a checkpoint to another format, element type or set of shards, in a stream, in bounded memory.

    `metadata` is added to what the source has (`keep_metadata`). An existing target is refused unless `overwrite` is
    set. A type that the target's format lacks is refused. What else it can't hold is left out, and told in the `notes`
    of what is returned, a line each: metadata and checksums in a torch file, values of a torch file that are no
    tensors. `select` speaks of the names in the source, `rename` gives those in the target. The other arguments are
    those of `load` and `save`.

    verify: check the source as it is read, against its seal or its own checksums where it has some: what is damaged
    would get new, right checksums. "seal", "stored" and "sha256" insist on one of these.

    The fragments ``PATH-0.N``, ``PATH-1.N`` ... that DeepSpeed's FastPersist leaves of a torch file are joined: name
    all of them, or ``PATH``, or their directory. The target is then the file that they are parts of, with the object as
    it was saved, unless a `format`, `dtype`, `select`, `rename` or `max_shard_size` asks for something else.

    A directory of torch.distributed.checkpoint, of `penstock.dcp` or torch's own, is joined too: the chunks that ranks
    wrote of each tensor. With ``format="dcp"`` the target is such a directory. `penstock.dcp.convert` also keeps values
    that are no tensors.
    """
    options = save_options(
        format=format,
        metadata=metadata,
        max_shard_size=max_shard_size,
        checksums=checksums,
        durable=durable,
        method=method,
        **tuning,
    )
    sources = path_texts(source)
    names = None if select is None else resolve(select, _open_source(sources))
    with explaining(sources), reporting(progress, f"converting {title(source)}") as callback:
        counters = _core.convert(
            sources,
            target_text(target),
            names=names,
            dtype=None if dtype is None else dtype_name(dtype),
            rename=renamer(rename, lambda: _open_source(sources)),
            keep_metadata=bool(keep_metadata),
            overwrite=bool(overwrite),
            verify=verify_word(verify),
            save=options,
            progress=callback,
        )
    if stats is not None:
        stats.update(counters)
    return Stats(counters)


class _Joined:
    """What a conversion joins: the tensors of fragments, or of ranks' chunks, which no Reader opens."""

    def __init__(self, sources: list[str]) -> None:
        self._sources = sources
        self._infos = _core.source_tensors(sources)

    def names(self) -> list[str]:
        return [info[0] for info in self._infos]

    def infos(self) -> list[Info]:
        return self._infos

    def files(self) -> list[tuple[str]]:
        return [(source,) for source in self._sources]


def _open_source(sources: list[str]) -> Source:
    try:
        return open_reader(sources)
    except (NotFoundError, UnsupportedError):
        return _Joined(sources)


class VerifiedTensor(NamedTuple):
    """What `verify` found of one tensor."""

    name: str
    crc32c: int | None
    expected_crc32c: int | None
    not_finite: int
    ok: bool


class VerifyReport(NamedTuple):
    """What `verify` found. True when all is well."""

    ok: bool
    problems: list[str]
    tensors: list[VerifiedTensor]
    had_checksums: bool
    against: str  # what the files were checked against: seal, stored, sha256; several with commas
    bytes: int
    bytes_read: int
    seconds: float
    opaque: list[OpaqueValue]  # what of a torch checkpoint is no data; tensors in it were checked

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        return f"<penstock.VerifyReport: {len(self.tensors)} tensors, {'; '.join(self.problems) or 'all is well'}>"


def verify(
    path: Path,
    *,
    finite: bool = False,
    checksums: bool | str = True,
    compute: bool = False,
    progress: Progress = None,
    **tuning: Unpack[IoTuning],
) -> VerifyReport:
    """Checks a checkpoint. A broken structure raises FormatError; what is wrong with the data is in the report.

    finite: look for NaN and infinities.
    checksums: check each file against what there is: its seal, checksums that it carries, or the name of its blob in
        the Hugging Face cache; "seal", "stored" or "sha256" insist on one of these.
    compute: give a CRC-32C of every tensor, whatever there is.
    """
    text = path_text(path)
    with explaining([text]), reporting(progress, f"verifying {title(path)}") as callback:
        found = _core.verify(
            text,
            _core.VerifyOptions(finite=finite, checksums=verify_word(checksums), compute=compute, **tuning),
            callback,
        )
    found["tensors"] = [VerifiedTensor(**tensor) for tensor in found["tensors"]]
    found["opaque"] = [OpaqueValue(**value) for value in found["opaque"]]
    return VerifyReport(**found)


class Summary(NamedTuple):
    """What is in a checkpoint."""

    files: list[FileInfo]
    tensors: list[TensorInfo]
    metadata: dict[str, str]
    parameters: int
    nbytes: int
    dtypes: dict[str, int]  # bytes of each
    opaque: list[OpaqueValue]  # what of a torch checkpoint is no data

    def __repr__(self) -> str:
        lines = [f"{len(self.tensors):,} tensors, {self.parameters:,} elements, {_size(self.nbytes)}"]
        lines += [f"  {file.path}  {file.format}  {_size(file.size)}" for file in self.files]
        lines += [f"  {dtype:<8} {_size(nbytes)}" for dtype, nbytes in self.dtypes.items()]
        lines += [f"  {key}: {value}" for key, value in self.metadata.items()]
        lines += [f"  opaque: {value}" for value in self.opaque]
        return "\n".join(lines)


def inspect(paths: Paths) -> Summary:
    """Tells what is in a checkpoint: files, tensors, metadata, totals. Reads headers only."""
    reader = open_reader(paths)
    tensors = [TensorInfo(info) for info in reader.infos()]
    dtypes: dict[str, int] = {}
    for tensor in tensors:
        dtypes[tensor.dtype] = dtypes.get(tensor.dtype, 0) + tensor.nbytes
    return Summary(
        files=[FileInfo(*file) for file in reader.files()],
        tensors=tensors,
        metadata=reader.metadata(),
        parameters=sum(numel(tensor.shape) for tensor in tensors),
        nbytes=sum(dtypes.values()),
        dtypes=dict(sorted(dtypes.items(), key=lambda item: -item[1])),
        opaque=[OpaqueValue(*value) for value in reader.opaque()],
    )


def _size(nbytes: int) -> str:
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
