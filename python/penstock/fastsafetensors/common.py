"""What a safetensors file says of itself, and small questions about the machine."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _core
from .._collector import GarbageCollectionPaused
from ..errors import ArgumentError, FormatError, NotFoundError, TensorIndexError
from .cpp import gds_device_buffer, is_cuda_found, is_hip_found, read_buffer
from .dlpack import from_cuda_buffer, nbytes_of
from .frameworks import FrameworkOpBase, TensorBase
from .st_types import Device, DType

if TYPE_CHECKING:
    from .allocation import SharedDeviceAllocation

ODIRECT_HINT = "set FASTSAFETENSORS_ODIRECT=0 to use buffered reads"

_MAX_HEADER_BYTES = 100_000_000
_NETWORK = frozenset(
    ("9p", "afs", "beegfs", "ceph", "cifs", "fuse.sshfs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4")
)
_NETWORK |= {"smb3", "smbfs", "sshfs", "virtiofs"}
_MEMORY = frozenset(("ramfs", "tmpfs"))


def init_logger(name: str) -> logging.Logger:
    """The logger of a module."""
    return logging.getLogger(name)


def set_debug() -> None:
    """Prints what all loggers have to say."""
    logging.basicConfig(format="[%(levelname)s] %(message)s", level=logging.DEBUG, force=True)


def is_debug(logger: logging.Logger) -> bool:
    """Whether the logger passes on what it is told for debugging."""
    return logger.isEnabledFor(logging.DEBUG)


def is_gpu_found() -> bool:
    """Whether there is a GPU, of any maker."""
    return is_cuda_found() or is_hip_found()


def get_fs_type(path: str, mounts_file: str = "/proc/mounts") -> str:
    """The type of the filesystem that a path is on, such as "ext4"; "" where it can't be told."""
    try:
        with open(mounts_file, encoding="utf-8", errors="surrogateescape") as mounts:
            rows = [fields for fields in (line.split() for line in mounts) if len(fields) >= 3]
    except OSError:
        return ""
    real = os.path.realpath(path)
    found = [
        (len(point), kind) for point, kind in ((_unescaped(row[1]), row[2]) for row in rows) if _is_in(real, point)
    ]
    return max(found, key=lambda each: each[0])[1] if found else ""  # the first of those that are equally deep


def _unescaped(point: str) -> str:
    return point.replace("\\040", " ").replace("\\011", "\t")


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def is_odirect_enabled(path: str, buffered_ram_fs: bool = False) -> bool:
    """Whether reads of this file may pass by the page cache.

    FASTSAFETENSORS_ODIRECT, 1 or 0, decides; without it network filesystems are read through the cache, and with
    `buffered_ram_fs` those in memory too.
    """
    if not hasattr(os, "O_DIRECT"):
        return False
    said = os.environ.get("FASTSAFETENSORS_ODIRECT")
    if said is not None:
        return said == "1"
    kind = get_fs_type(path)
    return kind not in _NETWORK and not (buffered_ram_fs and kind in _MEMORY)


def get_device_numa_node(device: int | None) -> int | None:
    """The NUMA node that a GPU is attached to; None where there is no such GPU, or the system does not tell."""
    if device is None or not sys.platform.startswith("linux"):
        return None
    for found in _core.list_devices():
        if found["number"] == device:
            node = found["numa_node"]
            return None if node is None or node < 0 else int(node)
    return None


def resolve_runtime_lib_name(framework: Any = None) -> str:
    """The GPU library that goes with a framework: "libcudart.so", "libamdhip64.so", "" for none."""
    version = "" if framework is None else framework.get_cuda_ver()
    return {"hip": "libamdhip64.so", "cuda": "libcudart.so"}.get(version.partition("-")[0], "")


class SingleGroup:
    """The group of a process that loads alone."""

    def size(self) -> int:
        """One."""
        return 1

    def rank(self) -> int:
        """The first."""
        return 0


class SafeTensorsMetadata:
    """The header of a safetensors file, checked: what its tensors are and where they lie.

    A header that breaks the rules of the format is a FormatError, bytes after the last tensor among them.
    """

    def __init__(
        self,
        string: str,
        header_length: int,
        size_bytes: int,
        framework: FrameworkOpBase[Any, Any],
        src: str = "",
        keep_orig_dict: bool = False,
    ) -> None:
        self.src = src
        self.framework = framework
        self.header_length = header_length
        self.size_bytes = size_bytes
        self.aligned = header_length % framework.get_device_ptr_align() == 0
        with GarbageCollectionPaused():
            entries = _parse_json(string, src)
            self.metadata: Any = _checked_metadata(entries.pop("__metadata__", ""), src)
            if keep_orig_dict:
                self.ser = entries
            self.tensors = _checked_frames(entries, src)
        end = header_length + max((frame.data_offsets[1] for frame in self.tensors.values()), default=0)
        if end != size_bytes:
            relation = "is cut off" if end > size_bytes else "has bytes after its last tensor"
            raise FormatError(f"{src}: {relation}: its header describes {end} bytes, and there are {size_bytes}")

    @classmethod
    def from_buffer(
        cls, buf: int, buffer_len: int, filename: str, framework: FrameworkOpBase[Any, Any]
    ) -> SafeTensorsMetadata:
        """Of a file that lies in memory of the host, at an address."""
        length = _header_length(read_buffer(buf, min(buffer_len, 8)), buffer_len, filename)
        return cls(_text(read_buffer(buf + 8, length), filename), length + 8, buffer_len, framework, filename)

    @classmethod
    def from_fd(
        cls, fd: int, filename: str, framework: FrameworkOpBase[Any, Any], keep_orig_dict: bool = False
    ) -> SafeTensorsMetadata:
        """Of an open file, from its start; where the descriptor stands does not matter and does not change."""
        size = os.fstat(fd).st_size
        length = _header_length(_read_exactly(fd, 0, min(size, 8), filename), size, filename)
        header = _text(_read_exactly(fd, 8, length, filename), filename)
        return cls(header, length + 8, size, framework, filename, keep_orig_dict)

    @classmethod
    def from_file(cls, filename: str, framework: FrameworkOpBase[Any, Any]) -> SafeTensorsMetadata:
        """Of the file of that name."""
        try:
            fd = os.open(filename, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise NotFoundError(f"{filename}: there is no such file") from None
        try:
            return cls.from_fd(fd, filename, framework)
        finally:
            os.close(fd)

    def get_tensors(
        self,
        gbuf: gds_device_buffer,
        device: Device,
        copy_start_offset: int,
        dtype: DType = DType.AUTO,
        owner: SharedDeviceAllocation | None = None,
    ) -> dict[str, TensorBase]:
        """All tensors, over memory that holds the file's bytes from `copy_start_offset` on.

        They keep `owner`; without one the memory must outlive them. With a `dtype` they are converted copies.
        """
        return self._get_tensors(gbuf, device, copy_start_offset, dtype, owner=owner)

    def _get_tensors(
        self,
        gbuf: gds_device_buffer,
        device: Device,
        copy_start_offset: int,
        dtype: DType = DType.AUTO,
        names: set[str] | None = None,
        owner: SharedDeviceAllocation | None = None,
    ) -> dict[str, TensorBase]:
        made = {}
        for name, frame in self.tensors.items():
            if names is None or name in names:
                made[name] = self._tensor(name, frame, gbuf, device, copy_start_offset, owner).to(dtype=dtype)
        return made

    def _tensor(
        self,
        name: str,
        frame: TensorFrame,
        gbuf: gds_device_buffer,
        device: Device,
        copy_start_offset: int,
        owner: SharedDeviceAllocation | None,
    ) -> TensorBase:
        framework = self.framework
        begin, end = frame.data_offsets
        if begin == end:
            empty: TensorBase = framework.get_empty_tensor(frame.shape, frame.dtype, device)
            return empty
        offset = self.header_length + begin - copy_start_offset
        if offset < 0 or offset + end - begin > gbuf.get_length():
            raise ArgumentError(f"{self.src}: {name}: its bytes are not in the memory that was given")
        passed = framework.as_workaround_dtype(frame.dtype)
        shape, strides = framework.get_storage_shape(frame.dtype, frame.shape, frame.strides)
        capsule = from_cuda_buffer(gbuf.get_base_address() + offset, shape, strides, passed, device, owner)
        tensor: TensorBase = framework.from_dlpack(capsule, device, passed)
        if passed is not frame.dtype:
            tensor = tensor.view(frame.dtype)
        native = framework.get_native_shape(frame.dtype, frame.shape)
        return tensor if native == shape else tensor.reshape(native)

    def select_byte_ranges(self, keep_tensor: Callable[[str], bool], merge_gap: int = 4096) -> list[tuple[int, int]]:
        """The parts [start, end) of the file, in order, that hold the tensors that are kept.

        Parts that are at most `merge_gap` bytes apart are one.
        """
        merged: list[tuple[int, int]] = []
        for name, frame in self.tensors.items():  # in the order of the file
            start, end = (self.header_length + offset for offset in frame.data_offsets)
            if start == end or not keep_tensor(name):
                continue
            if merged and start - merged[-1][1] <= merge_gap:
                start = merged.pop()[0]
            merged.append((start, end))
        return merged

    def __repr__(self) -> str:
        return str({"__metadata__": self.metadata, "tensors": self.tensors})


@dataclass
class TensorFrame:
    """A tensor of a file: type, shape, where its bytes lie after the header, and which of them an index picks."""

    dtype: DType
    shape: list[int]
    data_offsets: list[int]
    strides: list[int]
    offsets: list[int]
    sliced: bool

    @classmethod
    def from_buffer(cls, entry: Mapping[str, Any]) -> TensorFrame:
        """Of an entry of the header."""
        shape = entry["shape"]
        if not isinstance(shape, list) or not all(_is_size(size) for size in shape):
            raise FormatError(f"shape must contain nonnegative integers: {shape!r}")
        offsets = entry["data_offsets"]
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(offset) for offset in offsets):
            raise FormatError(f"data_offsets must be two nonnegative integers: {offsets!r}")
        strides = [1] * len(shape)
        for dim in range(len(shape) - 1, 0, -1):
            strides[dim - 1] = strides[dim] * shape[dim]
        return cls(_dtype(entry["dtype"]), shape, list(offsets), strides, [0] * len(shape), False)

    def __repr__(self) -> str:
        return str({"dtype": self.dtype, "shape": self.shape, "data_offsets": self.data_offsets})

    def __getitem__(self, _val: int | slice | tuple[int | slice, ...]) -> TensorFrame:
        """The part that an index picks. An integer keeps its dimension, with the size 1."""
        index = _val if isinstance(_val, tuple) else (_val,)
        if len(index) > len(self.shape):
            raise TensorIndexError(f"{len(index)} indices for a tensor of {len(self.shape)} dimensions")
        picked = [_range(each, dim, self.shape) for dim, each in enumerate(index)]
        if any(len(each) == 0 for each in picked):
            return TensorFrame(self.dtype, [], self.data_offsets, [], [], False)
        rest = slice(len(index), None)
        return TensorFrame(
            self.dtype,
            [len(each) for each in picked] + self.shape[rest],
            self.data_offsets,
            [stride * each.step for stride, each in zip(self.strides, picked, strict=False)] + self.strides[rest],
            [offset + each.start for offset, each in zip(self.offsets, picked, strict=False)] + self.offsets[rest],
            True,
        )


def _range(index: Any, dim: int, shape: list[int]) -> range:
    size = shape[dim]
    if isinstance(index, slice):
        return range(*index.indices(size))
    if not isinstance(index, int):
        raise TensorIndexError(f"an index is an integer or a slice, not {index!r}")
    if not -size <= index < size:
        raise TensorIndexError(f"index {index} is outside of dimension {dim} of the shape {shape}")
    return range(index % size, index % size + 1)


def _is_size(value: object) -> bool:
    return type(value) is int and value >= 0


def _dtype(name: object) -> DType:
    try:
        found = DType(name)
    except ValueError:
        found = DType.AUTO
    if found is DType.AUTO:
        raise FormatError(f"unknown dtype {name!r}")
    return found


def _header_length(first: bytes, size: int, filename: str) -> int:
    if len(first) < 8:
        raise FormatError(f"{filename}: has {size} bytes, too few for a header")
    length = int.from_bytes(first, "little")
    if length > _MAX_HEADER_BYTES:
        raise FormatError(f"{filename}: a header of {length} bytes, more than {_MAX_HEADER_BYTES}")
    if length > size - 8:
        raise FormatError(f"{filename}: a header of {length} bytes in a file of {size}")
    return length


def _read_exactly(fd: int, offset: int, length: int, filename: str) -> bytes:
    parts = []
    while length > 0:
        part = os.pread(fd, length, offset)
        if not part:
            raise FormatError(f"{filename}: ends at byte {offset}, within its header")
        parts.append(part)
        offset += len(part)
        length -= len(part)
    return b"".join(parts)


def _text(header: bytes, filename: str) -> str:
    try:
        return header.decode()
    except UnicodeDecodeError as problem:
        raise FormatError(f"{filename}: the header is not UTF-8: {problem.reason} at byte {problem.start}") from None


def _parse_json(string: str, src: str) -> dict[str, Any]:
    try:
        parsed = json.loads(string, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as problem:
        raise FormatError(f"{src}: the header is not valid JSON: {problem}") from None
    if not isinstance(parsed, dict):
        raise FormatError(f"{src}: the header is not an object")
    return parsed


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the name {next(name for name in names if names.count(name) > 1)!r} twice")
    return made


def _checked_metadata(metadata: Any, src: str) -> Any:
    if metadata == "":
        return metadata
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise FormatError(f"{src}: __metadata__ is not an object of strings")
    return metadata


def _checked_frames(entries: dict[str, Any], src: str) -> dict[str, TensorFrame]:
    """The tensors in the order of their bytes, which lie one after the other without gaps."""
    frames = {name: _frame(name, entry, src) for name, entry in entries.items()}
    ordered = dict(sorted(frames.items(), key=lambda each: each[1].data_offsets))
    position = 0
    for name, frame in ordered.items():
        begin, end = frame.data_offsets
        if begin != position or end < begin:
            raise FormatError(f"{src}: {name}: its bytes {begin} to {end} do not follow on byte {position}")
        expected = nbytes_of(frame.shape, frame.dtype)
        if end - begin != expected:
            what = f"{frame.dtype.value} of shape {frame.shape}"
            raise FormatError(f"{src}: {name}: {end - begin} bytes for {what}, which has {expected}")
        position = end
    return ordered


def _frame(name: str, entry: Any, src: str) -> TensorFrame:
    try:
        return TensorFrame.from_buffer(entry)
    except (KeyError, TypeError) as problem:
        raise FormatError(f"{src}: {name}: no dtype, shape or data_offsets ({problem})") from None
    except FormatError as problem:
        raise FormatError(f"{src}: {name}: {problem}") from None
