"""The penstock engine. The public API is the package around this module."""

from collections.abc import Callable, Mapping, Sequence
import os
import pathlib
from typing import Any, overload


def version() -> str:
    """The version of the engine."""

def detect_format(path: str | os.PathLike[str]) -> str | None:
    """
    The format that a file's bytes look like; None for no format that can be read.
    """

def format_for_suffix(path: str | os.PathLike[str]) -> str | None:
    """The format that the suffix of a path stands for; None for no format."""

def dtypes() -> list[tuple[str, str, int, str]]:
    """
    Every element type: name, torch's name ("": it has none), bits, and kind: "floating", "complex", "bool" or "integer".
    """

def find_dtype(text: str) -> str:
    """
    The element type that text stands for: F32, float32, torch.float32, fp32, float ...
    """

class Memory:
    """
    A block of memory that loaded tensors point into; on the host a writable buffer.
    """

    def __len__(self) -> int: ...

    @property
    def address(self) -> int: ...

    @property
    def is_on_host(self) -> bool:
        """Whether it is a buffer."""

    def capsule(self, dtype: str, shape: tuple[int, ...], offset: int) -> Any:
        """One tensor of it, for another library's from_dlpack."""

class MemoryPool:
    """
    The host memory that loads land in. Memory that the last tensor lets go of is kept, up to
    `max_kept_bytes`, and handed out again: faulting in fresh memory costs as much as reading the
    drive does. A pool may be shared by any number of loads and threads.
    """

    def __init__(self, max_kept_bytes: int | None = None, huge_pages: bool = False) -> None: ...

    @staticmethod
    def process_default() -> MemoryPool:
        """The pool of loads that name none."""

    @property
    def kept_bytes(self) -> int:
        """Bytes kept for reuse now."""

    @property
    def used_bytes(self) -> int:
        """Bytes handed out and not yet released."""

    def take(self, nbytes: int) -> Memory:
        """Memory for the caller's own use, contents undefined."""

    def trim(self) -> None:
        """Gives everything kept back to the system."""

def read_process(process: int, address: int, nbytes: int, stride: int, count: int, to: int) -> None:
    """Stretches of another process's memory, put side by side at an address."""

def let_siblings_read() -> None:
    """
    Allows the parent of this process and its other children to read its memory.
    """

class Allocator:
    """Where a load's tensors are to be."""

    def __init__(self, allocate: Callable[[int], tuple[int, Any, int, int | None]], device: tuple[int, int]) -> None:
        """
        allocate: takes a number of bytes and gives an address, what keeps the memory, the device's number as the
        driver counts, and the address of the stream whose queued work may still use it.
        device: its type and number as DLPack counts.
        """

def allocate_on_device(device: int, nbytes: int, place: tuple[int, int]) -> Memory:
    """
    Memory of the driver's; of one that shares its memory with the host, memory that both can use.
    """

def device_of(address: int) -> int | None:
    """
    The number of the device whose memory this is, as its driver counts; None for memory of the host.
    """

def copy_to_host(to: int, device_address: int, nbytes: int) -> None:
    """Copies between addresses, by pinned memory, and waits."""

def copy_to_device(device_address: int, source: int, nbytes: int) -> None:
    """Copies between addresses, by pinned memory, and waits."""

def list_devices() -> list[dict[str, Any]]:
    """The devices that the engine can use."""

class IoOptions:
    """How bytes are moved; 0 and "auto" mean: choose."""

    def __init__(self, **fields: Any) -> None: ...

class LoadOptions:
    """What is loaded, and how fast."""

    def __init__(self, **fields: Any) -> None: ...

class SaveOptions:
    """What is written, how safely, and how fast."""

    def __init__(self, **fields: Any) -> None: ...

class StreamOptions:
    """How a file is written from front to back."""

    def __init__(self, **fields: Any) -> None: ...

class VerifyOptions:
    """What is checked."""

    def __init__(self, **fields: Any) -> None: ...

class SealOptions:
    """What a seal holds."""

    def __init__(self, **fields: Any) -> None: ...

def parse_size(size: int | str) -> int:
    """Bytes: 5000, "5GB" (decimal), "4MiB" or "4M" (binary)."""

class TensorStream:
    """Tensors in the order they lie in the files, as their bytes land."""

    def start(self) -> None: ...

    def next(self) -> tuple[list[Memory], list[tuple[str, str, tuple[int, ...], int, int, int]]] | None: ...

    def stats(self) -> dict[str, Any]: ...

    def close(self) -> None: ...

class Reader:
    """An open checkpoint."""

    @overload
    def __init__(self, path: str | os.PathLike[str]) -> None: ...

    @overload
    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None: ...

    def __len__(self) -> int: ...

    def names(self) -> list[str]: ...

    def infos(self) -> list[tuple[str, str, tuple[int, ...], int, int, int]]: ...

    def find(self, name: str) -> tuple[str, str, tuple[int, ...], int, int, int] | None: ...

    def files(self) -> list[tuple[pathlib.Path, int, str, dict[str, str]]]: ...

    def opaque(self) -> list[tuple[str, str]]: ...

    def metadata(self) -> dict[str, str]: ...

    def resident_bytes(self) -> int: ...

    def load(self, names: Sequence[str] | None, options: LoadOptions, progress: Callable[[int, int], Any] | None, build: Callable[[list[Memory], list[tuple[str, str, tuple[int, ...], int, int, int]]], Any], allocator: Allocator | None = None, parts: dict[str, Sequence[Sequence[tuple[int, int, int]]]] = {}) -> tuple[Any, dict[str, Any]]: ...

    def load_into(self, targets: list[tuple[str, int, int, str | None]] | list[tuple[str, int, int, str | None, Sequence[Sequence[tuple[int, int, int]]]]] | list[tuple[str, int, int, str | None, Sequence[Sequence[tuple[int, int, int]]], Sequence[int]]], options: LoadOptions, progress: Callable[[int, int], Any] | None) -> dict[str, Any]: ...

    def load_slice(self, name: str, ranges: Sequence[tuple[int, int]], options: LoadOptions, allocator: Allocator | None = None) -> tuple[list[Memory], list[tuple[str, str, tuple[int, ...], int, int, int]]]: ...

    def stream(self, names: Sequence[str] | None, options: LoadOptions, parts: dict[str, Sequence[Sequence[tuple[int, int, int]]]] = {}, allocator: Allocator | None = None) -> TensorStream: ...

def open_side_by_side(files: Sequence[tuple[str | os.PathLike[str], tuple[int, int] | None]]) -> Reader:
    """
    Checkpoints, or stretches of files (offset, length) that are such, whose tensors may share names: "3/weight".
    """

def flashpack_footer(path: str | os.PathLike[str]) -> str:
    """The JSON of a FlashPack file's footer, once all of it was checked."""

def open_flashpack_blocks(path: str | os.PathLike[str]) -> Reader:
    """A FlashPack file's blocks as tensors "0", "1", ..."""

class Writer:
    """Collects tensors, whose memory it borrows, and saves them."""

    def __init__(self, path: str | os.PathLike[str], options: SaveOptions, progress: Callable[[int, int], Any] | None) -> None: ...

    def add(self, name: str, dtype: str, shape: Sequence[int], address: int, byte_strides: Sequence[int] | None) -> None: ...

    def add_produced(self, name: str, dtype: str, shape: Sequence[int], read: Callable[[int, int, int], None]) -> None: ...

    @property
    def nbytes(self) -> int: ...

    def commit(self) -> dict[str, Any]: ...

class SaveJob:
    """A save that runs in the background."""

    def staged(self, timeout: float | None) -> bool: ...

    def wait(self, timeout: float | None) -> dict[str, Any] | None: ...

    def cancel(self) -> None: ...

    @property
    def done(self) -> bool: ...

    @property
    def progress(self) -> tuple[int, int, float]: ...

class ParallelSave:
    """One process's part of a save by several."""

    def __init__(self, writer: Writer) -> None: ...

    @property
    def fingerprint(self) -> int: ...

    def create(self) -> str: ...

    def join(self, names: str) -> None: ...

    def write(self, rank: int, count: int) -> list[tuple[int, int, int, int]]: ...

    def commit(self, checksums: Sequence[tuple[int, int, int, int]]) -> dict[str, Any]: ...

class FileSet:
    """Files that are laid out by the caller and appear together."""

    def __init__(self, writer: Writer, files: Sequence[tuple[str, bytes, int, Sequence[tuple[str, int, int]]]], min_free_bytes: int) -> None: ...

    def write(self) -> None: ...

    def descriptor(self, file: int) -> int: ...

    def publish_set(self) -> list[pathlib.Path]: ...

    def publish_each(self) -> None: ...

    def abandon(self) -> None: ...

class SetWriter:
    """Files that are written one after the other and appear together."""

    def __init__(self, path: str | os.PathLike[str], durable: bool) -> None: ...

    def add(self, writer: Writer) -> None: ...

    @property
    def count(self) -> int: ...

    def publish(self, metadata: Mapping[str, str]) -> list[str]: ...

def save_async(writer: Writer, snapshot: bool, pool: MemoryPool | None, on_device: bool = False, allocator: Allocator | None = None) -> SaveJob: ...

def convert(sources: Sequence[str | os.PathLike[str]], target: str | os.PathLike[str], *, names: Sequence[str] | None, dtype: str | None, rename: Callable[[str], str] | None, keep_metadata: bool, overwrite: bool, verify: str, save: SaveOptions, progress: Callable[[int, int], Any] | None) -> dict[str, Any]: ...

def source_tensors(sources: Sequence[str | os.PathLike[str]]) -> list[tuple[str, str, tuple[int, ...], int, int, int]]: ...

def verify(path: str | os.PathLike[str], options: VerifyOptions, progress: Callable[[int, int], Any] | None) -> dict[str, Any]: ...

def seal(paths: Sequence[str | os.PathLike[str]], options: SealOptions, progress: Callable[[int, int], Any] | None) -> dict[str, Any]: ...

def measure_read(path: str | os.PathLike[str], io: IoOptions, max_bytes: int) -> dict[str, Any]: ...

def measure_write(directory: str | os.PathLike[str], io: IoOptions, method: str, nbytes: int) -> dict[str, Any]: ...

def drop_page_cache(path: str | os.PathLike[str]) -> None: ...

def available_backends() -> str: ...

def diagnose(path: str | os.PathLike[str], options: LoadOptions) -> dict[str, Any]: ...

def remove_leftovers(directory: str | os.PathLike[str]) -> list[tuple[pathlib.Path, bool]]: ...

class AioHandle:
    """
    Reads and writes of plain files, several at a time and in the background.
    """

    def __init__(self, block_size: int, queue_depth: int, single_submit: bool, overlap_events: bool, intra_op_parallelism: int) -> None: ...

    @property
    def alignment(self) -> int: ...

    @property
    def pending(self) -> int: ...

    def read(self, address: int, nbytes: int, owner: object, path: str | os.PathLike[str], offset: int, validate: bool, background: bool) -> None: ...

    def write(self, address: int, nbytes: int, owner: object, path: str | os.PathLike[str], offset: int | None, validate: bool, background: bool) -> None: ...

    def write_descriptor(self, address: int, nbytes: int, owner: object, fd: int, offset: int) -> None: ...

    def wait(self) -> int: ...

class StreamFile:
    """A file that is written from front to back."""

    def __init__(self, path: str | os.PathLike[str], options: StreamOptions) -> None: ...

    def write(self, buffer: Any) -> int: ...

    def write_memory(self, pieces: Sequence[tuple[int, int]]) -> None: ...

    def reserve(self, nbytes: int) -> None: ...

    def flush(self) -> None: ...

    def finish(self) -> None: ...

    def abandon(self) -> None: ...

    def stats(self) -> dict[str, Any]: ...

def locked_memory(nbytes: int) -> tuple[Memory, bool]:
    """Memory at a page boundary, and whether it could be locked there."""

class TorchCheckpoint:
    """What a file of torch.save holds, as data."""

    def __init__(self, path: str | os.PathLike[str], opaque: str = 'refuse') -> None: ...

    def storages(self) -> list[tuple[str, str, str, int]]: ...

    def tensors(self) -> list[tuple[int, str, int, tuple[int, ...], tuple[int, ...], bool, bool, bool, bool, bool]]: ...

    def needs_data(self) -> bool: ...

    def open_storages(self) -> Reader: ...

    def build(self, tensors: list[Any], make: dict[str, Callable[..., Any]]) -> Any: ...
