"""Stands in for safetensors.torch. Beyond it, saves are atomic and durable."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .._load import load as _load
from .._save import save as _save
from ..errors import ArgumentError, LayoutError, ModelError
from ._bytes import load_bytes, save_bytes
from ._reference import as_reference, cache_for, checked_tensors, one_path
from ._safe_open import safe_open
from ._serialize import TensorSpec, deserialize, serialize, serialize_file
from ._sharing import end_ptr as _end_ptr
from ._sharing import find_shared_tensors as _find_shared_tensors
from ._sharing import is_complete as _is_complete
from ._sharing import remove_duplicate_names as _remove_duplicate_names
from ._sharing import storage_ptr, storage_size
from ._sharing import without_aliases as _without_aliases

if TYPE_CHECKING:
    import os

    from torch import Tensor
    from torch.nn import Module

# Those with an underscore are private there too, and used all the same. The names of the package are here too.
__all__ = [
    "TensorSpec",
    "_end_ptr",
    "_find_shared_tensors",
    "_is_complete",
    "_remove_duplicate_names",
    "deserialize",
    "load",
    "load_file",
    "load_model",
    "safe_open",
    "save",
    "save_file",
    "save_model",
    "serialize",
    "serialize_file",
    "storage_ptr",
    "storage_size",
]


def save_file(
    tensors: Mapping[str, Tensor], filename: str | os.PathLike[str], metadata: dict[str, str] | None = None
) -> None:
    """Saves tensors to a file. Tensors that share memory, or are not contiguous, are refused."""
    with writing(tensors, metadata) as checked:
        _save(checked, one_path(filename), format="safetensors", metadata=metadata, checksums=False)


@contextmanager
def writing(tensors: Any, metadata: Any) -> Iterator[Mapping[str, Any]]:
    """The tensors that `save_file` writes, with its errors for what it refuses, here and in the body."""
    checked = _contiguous(checked_tensors(tensors, metadata))
    with as_reference():
        yield checked


def save(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """What `save_file` would write."""
    checked = _contiguous(checked_tensors(tensors, metadata))
    with as_reference():
        return save_bytes(checked, metadata)


def load_file(
    filename: str | os.PathLike[str], device: str | int = "cpu", *, backend: str = "mmap"
) -> dict[str, Tensor]:
    """Loads a file onto a device."""
    return _load(one_path(filename), device, framework="torch", cache=cache_for(backend))


def load(data: bytes) -> dict[str, Tensor]:
    """Loads what `save` gave."""
    return load_bytes(data, "torch")


def save_model(
    model: Module, filename: str, metadata: dict[str, str] | None = None, force_contiguous: bool = True
) -> None:
    """Saves a module's state. Of tensors that share memory one is stored; the metadata notes the others' names."""
    state = checked_tensors(model.state_dict(), metadata)
    kept, aliases = _without_aliases(state)
    stored = {name: state[name] for name in kept}
    if not force_contiguous:
        _contiguous(stored, "use save_model(..., force_contiguous=True)")
    _write(_with_data(stored), filename, {**aliases, **(metadata or {})})


def load_model(
    model: Module,
    filename: str | os.PathLike[str],
    strict: bool = True,
    device: str | int = "cpu",
    *,
    backend: str = "mmap",
) -> tuple[set[str], list[str]]:
    """Loads a file through a module's load_state_dict. Returns the names that were missing and those not expected.

    The file is loaded onto `device` first; the module stays where it is. Of names that share memory the file holds one.
    `penstock.load_into` reads into the module's own memory, and changes nothing when the file does not fit.
    """
    state = load_file(filename, device, backend=backend)
    _, aliases = _without_aliases(model.state_dict(), preferred=state)
    try:
        result = model.load_state_dict(state, strict=False)
    except RuntimeError as problem:
        raise ModelError(f"{filename}: {' '.join(str(problem).split())}") from problem
    missing, unexpected = set(result.missing_keys), list(result.unexpected_keys)
    unexpected += [name for name in aliases if name not in missing]
    missing -= aliases.keys()
    if strict and (missing or unexpected):
        raise ModelError(f"{filename}: {_misfit(missing, unexpected)}")
    return missing, unexpected


def _write(tensors: Mapping[str, Any], filename: str | os.PathLike[str], metadata: dict[str, str] | None) -> None:
    with as_reference():
        _save(tensors, one_path(filename), format="safetensors", metadata=metadata, checksums=False)


def _contiguous(tensors: Mapping[str, Any], advice: str = "call contiguous() on it") -> Mapping[str, Any]:
    """The tensors; refused when the elements of one are not in a row."""
    torch = sys.modules.get("torch")  # whoever has a tensor has imported it
    for name, tensor in _with_data(tensors).items():
        if torch is None or not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            continue
        if not tensor.is_contiguous():
            raise ArgumentError(f"{name} is a non contiguous tensor, which is not saved as it is: {advice}")
    return tensors


def _with_data(tensors: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tensors; refused, in the words that torch has for it, when one is on the meta device."""
    for name, tensor in tensors.items():
        if getattr(tensor, "is_meta", False):
            raise LayoutError(f"{name}: Cannot copy out of meta tensor; no data!")
    return tensors


def _misfit(missing: set[str], unexpected: list[str]) -> str:
    """In the words of torch's load_state_dict, in one line."""
    problems = {"Missing": sorted(missing), "Unexpected": sorted(unexpected)}
    quoted = {kind: ", ".join(f'"{name}"' for name in names) for kind, names in problems.items() if names}
    return "; ".join(f"{kind} key(s) in state_dict: {names}" for kind, names in quoted.items())
