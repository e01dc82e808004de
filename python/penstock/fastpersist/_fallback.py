"""What is torch's to save and load, and why."""

from __future__ import annotations

import os
import zipfile
from typing import Any

# torch's own, also where `torch.save = penstock.fastpersist.serialization.save` was said: looked up there when they are
# called, ours would call themselves.
from torch.serialization import load as torch_load
from torch.serialization import save as torch_save

from .. import _core
from .._options import TORCH_FORMATS, open_reader
from .._replacement import Replacement
from ..errors import DamagedCheckpointError, FormatError
from ._torch_settings import fakes_tensors, maps_shared, reads_big_endian, skips_data

_TAR_MARK_AT = 257
_TAR_MARK = b"ustar"
_MAGIC_IN_TEXT = b"L119547037146038801333356L\n"


def needs_torch_to_save(f: Any, disable_byteorder_record: bool) -> str | None:
    """Why a save is torch's from the start; None when it is not."""
    if not _is_path(f):
        return f"a {type(f).__name__} is not a path"
    if disable_byteorder_record:
        return "the byte order is not to be recorded"
    if skips_data():
        return "the data is to be skipped"
    return None


def needs_torch_to_load(f: Any, pickle_module: Any, pickle_load_args: dict[str, Any]) -> str | None:
    """Why a load is torch's from the start; None when it is not."""
    if not _is_path(f):
        return f"a {type(f).__name__} is not a path"
    if pickle_module is not None or pickle_load_args:
        return "a pickle module or its arguments were given"
    if skips_data() or fakes_tensors():
        return "the data is to be skipped"
    if maps_shared():
        return "maps are to be shared"
    if reads_big_endian():
        return "files are taken to be big-endian"
    return None


def check_kind(path: str) -> None:
    """Refuses what is no file of torch.save, and says what it is: torch would not, nor name the path."""
    if _core.detect_format(path) in TORCH_FORMATS or _only_torch_reads(path):
        return
    try:
        open_reader(path)
    except FormatError as problem:
        raise DamagedCheckpointError(*problem.args) from None
    raise DamagedCheckpointError(f"{path}: not a torch checkpoint; penstock.load reads it")


def _only_torch_reads(path: str) -> bool:
    """Whether this is a tar archive, or a legacy file in a pickle protocol before 2."""
    with open(path, "rb") as file:
        head = file.read(_TAR_MARK_AT + len(_TAR_MARK))
    return head[_TAR_MARK_AT:] == _TAR_MARK or head.startswith(_MAGIC_IN_TEXT)


def check_pickle(path: str) -> None:
    """Refuses a zip whose pickle is not what was written: a damaged one can look like a program.

    The engine has done so already where the records are not compressed.
    """
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        for record in archive.infolist():
            if record.filename.endswith("/data.pkl") and record.CRC != 0:
                _check_record(path, archive, record)


def _check_record(path: str, archive: zipfile.ZipFile, record: zipfile.ZipInfo) -> None:
    try:
        archive.read(record)
    except zipfile.BadZipFile as problem:
        raise DamagedCheckpointError(
            f"{path}: record {record.filename!r}: its CRC-32 does not match its bytes"
        ) from problem


def save_by_torch(
    obj: Any, f: Any, pickle_module: Any, protocol: int, zipped: bool, disable_byteorder_record: bool
) -> None:
    """torch.save. To a path it writes another file, which takes the path's place.

    In place it would empty the old one first.
    """

    def save(file: Any) -> None:
        torch_save(
            obj,
            file,
            pickle_module=pickle_module,
            pickle_protocol=protocol,
            _use_new_zipfile_serialization=zipped,
            _disable_byteorder_record=disable_byteorder_record,
        )

    if _is_path(f):
        with Replacement(f) as path:
            save(path)
    else:
        save(f)


def load_by_torch(
    f: Any,
    map_location: Any,
    pickle_module: Any,
    weights_only: bool | None,
    mmap: bool | None,
    pickle_load_args: dict[str, Any],
) -> Any:
    """torch.load, whose default for weights_only was another one before torch 2.6."""
    if weights_only is None and pickle_module is None and "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD" not in os.environ:
        weights_only = True
    return torch_load(f, map_location, pickle_module, weights_only=weights_only, mmap=mmap, **pickle_load_args)


def _is_path(f: Any) -> bool:
    return isinstance(f, (str, os.PathLike))
