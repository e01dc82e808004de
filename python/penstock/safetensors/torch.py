"""Stands in for safetensors.torch. Beyond it, tensors that are not contiguous are saved, and saves are durable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .._into import load_into
from .._load import is_cpu, torch_device
from .._load import load as _load
from .._options import open_reader
from .._save import save as _save
from ..errors import ArgumentError
from ._arguments import cache_for
from ._bytes import load_bytes, save_bytes

if TYPE_CHECKING:
    import os

    from torch import Tensor
    from torch.nn import Module

__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model"]


def save_file(
    tensors: Mapping[str, Tensor], filename: str | os.PathLike[str], metadata: dict[str, str] | None = None
) -> None:
    """Saves tensors to a file. Tensors that share memory are refused."""
    _save(tensors, filename, format="safetensors", metadata=metadata)


def save(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """What `save_file` would write."""
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
    _save(
        {name: state[name] for name in kept}, filename, format="safetensors", metadata={**aliases, **(metadata or {})}
    )


def load_model(
    model: Module,
    filename: str | os.PathLike[str],
    strict: bool = True,
    device: str | int = "cpu",
    *,
    backend: str = "mmap",
) -> tuple[set[str], list[str]]:
    """Loads a file into a module's own memory. Returns the names that were missing and those that were not expected."""
    if not is_cpu(device):
        model.to(torch_device(device))
    missing, unexpected = _compare(model.state_dict(), open_reader(filename).names())
    if strict and (missing or unexpected):
        raise ArgumentError(f"{filename}: missing: {sorted(missing)}; not expected: {sorted(unexpected)}")
    load_into(model, filename, strict=False, assign=False, cache=cache_for(backend))
    return missing, unexpected


def _compare(state: Mapping[str, Tensor], names: list[str]) -> tuple[set[str], list[str]]:
    """What the file lacks and what the module lacks. A name is there when one is whose memory holds it."""
    _, aliases = _without_aliases(state)
    keepers = {name: aliases.get(name, name) for name in state}
    held = {keepers[name] for name in names if name in state and state[name].numel() == state[keepers[name]].numel()}
    present = set(names)
    missing = {name for name in state if name not in present and keepers[name] not in held}
    return missing, [name for name in names if name not in state]


def _without_aliases(state: Mapping[str, Tensor]) -> tuple[list[str], dict[str, str]]:
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
            keeper = _widest(group, state)
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


def _widest(names: list[str], state: Mapping[str, Tensor]) -> str:
    """The name to store: the first, in order, of those whose memory covers all the others'."""
    begin = min(_span(state[name])[0] for name in names)
    end = max(_span(state[name])[1] for name in names)
    whole = [
        name
        for name in sorted(names)
        if _span(state[name]) == (begin, end) and state[name].numel() * state[name].element_size() == end - begin
    ]
    if not whole:
        raise ArgumentError(f"{', '.join(sorted(names))} share memory, and none of them holds it all")
    return whole[0]
