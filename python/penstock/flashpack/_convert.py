"""Files to FlashPack and back. Nothing here ever writes to its source, and a target appears whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .. import _core
from .._files import convert, inspect
from .._load import load
from .._options import TORCH_FORMATS, path_text
from .._torch import DTYPES
from ..errors import ArgumentError, FormatError
from ._cast import engine_converts
from ._torch_files import save_torch_file
from .deserialization import get_flashpack_file_metadata, revert_from_file
from .serialization import pack_to_file
from .utils import checked_dtype, filter_state_dict, is_ignored_tensor_name, print_phases, string_to_dtype

if TYPE_CHECKING:
    from .._progress import Progress
    from .._select import TensorInfo

_TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")


class Ignored(NamedTuple):
    """Tensors to leave out."""

    names: list[str] | None = None
    prefixes: list[str] | None = None
    suffixes: list[str] | None = None

    def covers(self, name: str) -> bool:
        """Whether this tensor is one of them."""
        return is_ignored_tensor_name(name, self.names, self.prefixes, self.suffixes)


def parsed_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """A dtype as it is, or by one of its names: "bfloat16", "half", "bf16"."""
    if dtype is None:
        return None
    return checked_dtype(_named_dtype(dtype.removeprefix("torch.")) if isinstance(dtype, str) else dtype)


def _named_dtype(name: str) -> torch.dtype:
    return DTYPES[name.upper()] if name.upper() in DTYPES else string_to_dtype(name)


def state_dict_to_flashpack(
    state: Mapping[str, Any],
    target: str,
    dtype: torch.dtype | str | None,
    ignored: Ignored,
    *,
    silent: bool = True,
    overwrite: bool = True,
    progress: Progress = None,
    align_large: bool = False,
) -> str:
    """Saves what is not ignored."""
    check_target(None, target, overwrite)
    kept = filter_state_dict(dict(state), ignored.names, ignored.prefixes, ignored.suffixes)
    pack_to_file(kept, target, parsed_dtype(dtype), silent=silent, align_large=align_large, progress=progress)
    return target


def file_to_flashpack(
    source: str,
    target: str | None,
    dtype: torch.dtype | str | None,
    ignored: Ignored,
    *,
    silent: bool = True,
    overwrite: bool = True,
    progress: Progress = None,
    align_large: bool = False,
) -> str:
    """Converts a file of weights; without a target, to one beside it with the suffix .flashpack."""
    target = target or with_suffix(source, ".flashpack")
    check_target(source, target, overwrite)
    kind = parsed_dtype(dtype)
    if _is_torch_file(source):
        state = _load_torch_file(source)
    elif _engine_converts_all(source, target, kind, ignored):
        os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)
        stats = convert(
            source,
            target,
            format="flashpack",
            dtype=kind if kind is not None and engine_converts(kind, kind) else None,
            select=partial(_is_kept, ignored) if any(ignored) else None,
            keep_metadata=False,  # as the original does; the files are the same
            overwrite=overwrite,
            progress=progress,
            align_large=align_large,
        )
        print_phases(stats.phases, silent)
        return target
    else:
        state = load(source, framework="torch")
    return state_dict_to_flashpack(
        state,
        target,
        kind,
        ignored,
        silent=silent,
        overwrite=overwrite,
        progress=progress,
        align_large=align_large,
    )


def _is_kept(ignored: Ignored, tensor: TensorInfo) -> bool:
    return not ignored.covers(tensor)


def _engine_converts_all(source: str, target: str, dtype: torch.dtype | None, ignored: Ignored) -> bool:
    """Whether a stream will do: the engine leaves alone what is not floating, and here everything is converted."""
    summary = inspect(source)
    for file in summary.files:  # of a folder or an index there may be many
        check_target(str(file.path), target, overwrite=True)
    found = {DTYPES.get(tensor.dtype) for tensor in summary.tensors if not ignored.covers(tensor)}
    return dtype is None or all(kind is not None and (kind == dtype or engine_converts(kind, dtype)) for kind in found)


def flashpack_to_file(
    source: str, target: str | None, *, silent: bool, overwrite: bool, progress: Progress = None
) -> str:
    """Converts back, to safetensors or by the suffix to a torch checkpoint."""
    get_flashpack_file_metadata(source)  # refuses what is no FlashPack file before anything else
    target = target or with_suffix(source, ".safetensors")
    check_target(source, target, overwrite)
    suffix = os.path.splitext(target)[1].lower()
    if suffix not in (".safetensors", *_TORCH_SUFFIXES):
        known = ", ".join((".safetensors", *_TORCH_SUFFIXES))
        raise ArgumentError(f"{target}: the suffix must say what to write: {known}")
    os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)
    if suffix == ".safetensors":
        # transformers asks for this key before it reads a file.
        stats = convert(
            source, target, format="safetensors", metadata={"format": "pt"}, overwrite=overwrite, progress=progress
        )
        print_phases(stats.phases, silent)
    else:
        save_torch_file(revert_from_file(source, silent=silent), target)
    return target


def with_suffix(path: str, suffix: str) -> str:
    """The path with this suffix in place of that of a weights file, or after any other."""
    stem, old = os.path.splitext(path)
    return (stem if old.lower() in (".safetensors", ".flashpack", *_TORCH_SUFFIXES) else path) + suffix


def check_target(source: str | None, target: str, overwrite: bool) -> None:
    """Refuses to write over the source, ever, and over another file unless that is wanted."""
    path_text(target)
    if os.path.isdir(target):
        raise ArgumentError(f"{target}: is a directory")
    if source is not None:
        with suppress(FileNotFoundError):
            if os.path.samefile(source, target):
                raise ArgumentError(f"{target}: is the source; name another destination")
    if os.path.lexists(target) and not overwrite:
        raise ArgumentError(f"{target}: exists; --force replaces it")


def _is_torch_file(path: str) -> bool:
    return os.path.isfile(path) and _core.detect_format(path) in TORCH_FORMATS


def _load_torch_file(path: str) -> Mapping[str, Any]:
    """The state dict of a checkpoint. torch's restricted unpickler runs no code."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=_core.detect_format(path) == "torch")
    except Exception as problem:  # torch raises whatever its unpickler happens to meet
        raise FormatError(f"{path}: torch can't load it: {str(problem).splitlines()[0]}") from problem
    if not isinstance(state, Mapping):
        raise FormatError(f"{path}: holds a {type(state).__name__}, not a state dict")
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            raise FormatError(f"{path}: {name!r} is a {type(value).__name__}, not a tensor")
    return state
