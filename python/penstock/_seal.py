"""seal: manifests of checksums beside files."""

from __future__ import annotations

from typing import NamedTuple, TypedDict

from . import _core
from ._load import title
from ._options import Paths
from ._paths import explaining, path_texts
from ._progress import Progress, reporting
from ._types import Unpack


class ReadTuning(TypedDict, total=False):
    """How files are read for a seal."""

    backend: str
    queue_depth: int
    threads: int
    memory_budget: int | str


class SealedFile(NamedTuple):
    """A file that was sealed."""

    path: str
    seal: str  # the manifest beside it
    nbytes: int  # of the file
    sha256: str | None


def seal(
    paths: Paths,
    *,
    sha256: bool = False,
    block_size: int | str = "1MiB",
    durable: bool = True,
    progress: Progress = None,
    **tuning: Unpack[ReadTuning],
) -> list[SealedFile]:
    """Writes a manifest beside each file of a checkpoint, ``NAME.seal.json``, and leaves the file alone.

    It holds the CRC-32C of every block and of every tensor: ``load(verify=True)``, `stream`, `load_into` and `verify`
    check every bit of the file against it, at about the speed of an unchecked load. The file may have any format.
    A seal that is there already is replaced, atomically. A save over a sealed file removes its seal.

    paths: as in `load`. Of a set every shard is sealed, and its index.
    sha256: also the SHA-256 of every file, about 1 GB/s on each core.
    block_size: a power of two from 512 to 1 GiB: how exactly damage is located.
    durable: write the seals to the drive before returning.
    """
    texts = path_texts(paths)
    options = _core.SealOptions(sha256=sha256, block_size=block_size, durable=durable, **tuning)
    with explaining(texts), reporting(progress, f"sealing {title(paths)}") as callback:
        report = _core.seal(texts, options, callback)
    return [SealedFile(**{**file, "sha256": file["sha256"] or None}) for file in report["files"]]
