"""What the measured Python processes do with tensors. The same code serves every competitor."""

from __future__ import annotations

import ctypes
import os
import zlib
from array import array
from pathlib import Path
from typing import Any

import model
import programs


def as_bytes(tensor: Any) -> Any:
    """A flat uint8 view of a torch tensor."""
    import torch

    return tensor.reshape(-1).view(torch.uint8).numpy()


def touch_every_page(tensors: dict[str, Any]) -> int:
    """Reads a byte of every page, so that what was only mapped is really there. Their sum proves it."""
    if _touch is None:
        return sum(int(as_bytes(tensor)[:: model.PAGE_SIZE].sum()) for tensor in tensors.values())
    # Fifty thousand tensors would take NumPy longer than some take to load them.
    addresses = array("Q", [tensor.data_ptr() for tensor in tensors.values()])
    sizes = array("Q", [tensor.nbytes for tensor in tensors.values()])
    return int(_touch(addresses.buffer_info()[0], sizes.buffer_info()[0], len(addresses)))


def _load_touch() -> Any:
    """The native form of the above, where bench/native has been built."""
    library = programs.FOLDER / "libtouch.so"
    if not library.exists():
        return None
    touch = ctypes.CDLL(str(library)).touch_every_page
    touch.restype = ctypes.c_uint64
    touch.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return touch


_touch = _load_touch()


def checksum(tensors: dict[str, Any]) -> int:
    value = 0
    for _, tensor in sorted(tensors.items()):
        value = zlib.crc32(as_bytes(tensor), value)
    return value


def checkpoint_files(path: str) -> list[str]:
    """The files with tensors of a checkpoint: itself, or the shards in its directory."""
    return sorted(map(str, Path(path).glob("*.safetensors"))) if os.path.isdir(path) else [path]


def read_into_memory(path: str) -> dict[str, Any]:
    """The tensors in memory that torch allocated, one by one, as training leaves them."""
    import torch

    dtypes = {"BF16": torch.bfloat16, "F32": torch.float32}
    tensors = {}
    for one in checkpoint_files(path):
        entries, base = model.read_header(Path(one))
        with open(one, "rb") as file:
            for name, entry in entries.items():
                tensor = torch.empty(entry["shape"], dtype=dtypes[str(entry["dtype"])])
                file.seek(base + entry["data_offsets"][0])  # type: ignore[index]
                file.readinto(memoryview(as_bytes(tensor)))
                tensors[name] = tensor
    return tensors


def empty_tensors(path: str) -> dict[str, Any]:
    """Tensors with the names and shapes of a raced checkpoint, whose memory nobody has touched."""
    import torch

    dtypes = {"BF16": torch.bfloat16, "F32": torch.float32}
    return {name: torch.empty(shape, dtype=dtypes[dtype]) for name, (shape, dtype) in shapes_of(path).items()}


def sync_file(path: str) -> None:
    """A file, or a directory and the files in it."""
    inside = [entry.path for entry in os.scandir(path)] if os.path.isdir(path) else []
    for one in [*inside, path]:
        descriptor = os.open(one, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def same_tree(one: Any, other: Any) -> bool:
    """Whether two checkpoints are equal: dicts, lists and tuples of tensors, bit by bit, and of plain values."""
    import torch

    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same_kind = one.dtype == other.dtype and one.shape == other.shape
        return same_kind and bool((as_bytes(one.detach()) == as_bytes(other.detach())).all())
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same_tree(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same_tree, one, other))
    return bool(one == other)


def shapes_of(path: str) -> dict[str, tuple[list[int], str]]:
    """Names, shapes and element types of a raced file, whichever of its formats it has."""
    beside = Path(path).with_suffix(".safetensors")  # every other format was made from it
    entries, _ = model.read_header(beside)
    return {name: (list(entry["shape"]), str(entry["dtype"])) for name, entry in entries.items()}  # type: ignore[call-overload]


def empty_module(path: str) -> Any:
    """A module with the parameters of a raced file, on the meta device."""
    import torch

    dtypes = {"BF16": torch.bfloat16, "F32": torch.float32}
    root = torch.nn.Module()
    for name, (shape, dtype) in shapes_of(path).items():
        *parents, attribute = name.split(".")
        owner = root
        for parent in parents:
            if not hasattr(owner, parent):
                owner.add_module(parent, torch.nn.Module())
            owner = getattr(owner, parent)
        data = torch.empty(shape, dtype=dtypes[dtype], device="meta")
        owner.register_parameter(attribute, torch.nn.Parameter(data))
    return root


def filled_module(path: str) -> Any:
    """The same, with memory that was written to."""
    import torch

    module = empty_module(path).to_empty(device="cpu")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    return module
