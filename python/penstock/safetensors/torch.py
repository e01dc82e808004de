"""Stands in for safetensors.torch. Beyond it, tensors that are not contiguous are saved, and saves are durable."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING

from .._load import load as _load
from .._save import save as _save
from ..errors import ArgumentError, ModelError
from ._bytes import load_bytes, save_bytes
from ._reference import as_reference, cache_for

if TYPE_CHECKING:
    import os

    from torch import Tensor
    from torch.nn import Module

__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model"]


def save_file(
    tensors: Mapping[str, Tensor], filename: str | os.PathLike[str], metadata: dict[str, str] | None = None
) -> None:
    """Saves tensors to a file. Tensors that share memory are refused."""
    with as_reference():
        _save(tensors, filename, format="safetensors", metadata=metadata)


def save(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """What `save_file` would write."""
    with as_reference():
        return save_bytes(tensors, metadata)


def load_file(
    filename: str | os.PathLike[str], device: str | int = "cpu", *, backend: str = "mmap"
) -> dict[str, Tensor]:
    """Loads a file onto a device."""
    return _load(filename, device, framework="torch", cache=cache_for(backend))


def load(data: bytes) -> dict[str, Tensor]:
    """Loads what `save` gave."""
    return load_bytes(data, "torch")


def save_model(
    model: Module, filename: str, metadata: dict[str, str] | None = None, force_contiguous: bool = True
) -> None:
    """Saves a module's state. Of tensors that share memory one is stored; the metadata notes the others' names."""
    state = model.state_dict()
    kept, aliases = _without_aliases(state)
    loose = [name for name in kept if not state[name].is_contiguous()]
    if loose and not force_contiguous:
        raise ArgumentError(f"{loose[0]} is not contiguous; force_contiguous=True saves it all the same")
    save_file({name: state[name] for name in kept}, filename, {**aliases, **(metadata or {})})


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
        raise ModelError(f"{filename}: missing: {sorted(missing)}; not expected: {sorted(unexpected)}")
    return missing, unexpected


def _without_aliases(state: Mapping[str, Tensor], preferred: Container[str] = ()) -> tuple[list[str], dict[str, str]]:
    """The names to store, and for each other name the stored one whose memory holds it."""
    by_storage: dict[tuple[object, int], list[str]] = {}
    for name, tensor in state.items():
        storage = tensor.untyped_storage()
        key = (tensor.device, storage.data_ptr()) if storage.nbytes() and not tensor.is_meta else (name, 0)
        by_storage.setdefault(key, []).append(name)
    kept: list[str] = []
    aliases: dict[str, str] = {}
    for names in by_storage.values():
        for group in _overlapping(names, state):
            keeper = _widest(group, state, preferred)
            kept.append(keeper)
            aliases.update((name, keeper) for name in group if name != keeper)
    return kept, aliases


def _span(tensor: Tensor) -> tuple[int, int]:
    """The bytes that a tensor touches, first and one past the last."""
    if tensor.numel() == 0:
        return tensor.data_ptr(), tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _overlapping(names: list[str], state: Mapping[str, Tensor]) -> list[list[str]]:
    """Names of one storage, grouped by whether their memory overlaps."""
    groups: list[list[str]] = []
    end = -1
    for name in sorted(names, key=lambda name: (_span(state[name]), name)):
        begin, name_end = _span(state[name])
        if groups and begin < end:
            groups[-1].append(name)
        else:
            groups.append([name])
        end = max(end, name_end)
    return groups


def _widest(names: list[str], state: Mapping[str, Tensor], preferred: Container[str]) -> str:
    """The name to store: the first, in order, of those whose memory covers all the others', a preferred one if any."""
    begin = min(_span(state[name])[0] for name in names)
    end = max(_span(state[name])[1] for name in names)
    whole = [
        name
        for name in sorted(names)
        if _span(state[name]) == (begin, end) and state[name].numel() * state[name].element_size() == end - begin
    ]
    if not whole:
        raise ModelError(f"{', '.join(sorted(names))} share memory, and none of them holds it all")
    return next((name for name in whole if name in preferred), whole[0])
