"""The asynchronous I/O handle: tensors from and to plain files, several at a time and in the background."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, Union, cast

import torch

from .. import _core
from .._options import path_text
from .._torch.tensors import is_reachable, settle
from ..errors import ArgumentError, UnsupportedError
from .config import refuse_gds_handle
from .pinned import free_locked, is_locked, locked_tensor

if TYPE_CHECKING:
    from .._options import Path

Target = Union[str, "os.PathLike[str]", int]
_Method = TypeVar("_Method", bound=Callable[..., Any])


def _also_named(**names: str) -> Callable[[_Method], _Method]:
    """Keywords of DeepSpeed's that can't be ours: `async` is a word of the language, `example_tenosr` is none."""

    def decorate(method: _Method) -> _Method:
        @wraps(method)
        def call(*arguments: Any, **keywords: Any) -> Any:
            return method(*arguments, **{names.get(name, name): value for name, value in keywords.items()})

        return cast(_Method, call)

    return decorate


class aio_handle:  # noqa: N801 (the name that it has in DeepSpeed)
    """Reads and writes tensors in blocks of `block_size`, `queue_depth` of them in flight on each of
    `intra_op_parallelism` threads.

    Bytes pass by the page cache where file, offset and address allow it (those of `new_cpu_locked_tensor` do); every
    completion is checked. What starts in the background must be waited for with `wait`, which raises what went wrong;
    leave the tensor alone until then. `single_submit` and `overlap_events` change nothing here.

    A write without `file_offset` makes a whole file: an older, longer one is cut. With an offset, 0 included, the bytes
    around it stay. Nothing is synced to the drive.

    A tensor may be on a device: all of it is in the host's memory too for as long as an operation takes.
    """

    def __init__(
        self,
        block_size: int = 2**20,
        queue_depth: int = 128,
        single_submit: bool = False,
        overlap_events: bool = False,
        intra_op_parallelism: int = 1,
    ) -> None:
        for name, value in (
            ("block_size", block_size),
            ("queue_depth", queue_depth),
            ("intra_op_parallelism", intra_op_parallelism),
        ):
            if not isinstance(value, int) or not 0 < value < 2**31:
                raise ArgumentError(f"{name} must be a positive whole number, not {value!r}")
        self._block_size = block_size
        self._queue_depth = queue_depth
        self._single_submit = bool(single_submit)
        self._overlap_events = bool(overlap_events)
        self._intra_op_parallelism = intra_op_parallelism
        self._engine = _core.AioHandle(
            block_size, queue_depth, self._single_submit, self._overlap_events, intra_op_parallelism
        )

    def get_block_size(self) -> int:
        return self._block_size

    def get_queue_depth(self) -> int:
        return self._queue_depth

    def get_single_submit(self) -> bool:
        return self._single_submit

    def get_overlap_events(self) -> bool:
        return self._overlap_events

    def get_intra_op_parallelism(self) -> int:
        return self._intra_op_parallelism

    def get_alignment(self) -> int:
        """What sizes are best a multiple of; any other works too."""
        return self._engine.alignment

    def read(self, buffer: torch.Tensor, filename: Path, validate: bool = False, file_offset: int = 0) -> int:
        """Fills the tensor; 0 when it is done. `validate` reads the bytes again in another way and compares."""
        self._read(buffer, filename, validate, False, file_offset)
        return 0

    def write(
        self, buffer: torch.Tensor, filename: Path, validate: bool = False, file_offset: int | None = None
    ) -> int:
        """Writes the tensor; 0 when it is done."""
        self._write(buffer, filename, validate, False, file_offset)
        return 0

    @_also_named(**{"async": "asynchronous"})
    def pread(
        self,
        buffer: torch.Tensor,
        filename: Path,
        validate: bool,
        asynchronous: bool,
        file_offset: int = 0,
    ) -> int:
        """Fills the tensor: 1 when that is done, 0 when it was started in the background."""
        return self._read(buffer, filename, validate, asynchronous, file_offset)

    @_also_named(**{"async": "asynchronous"})
    def pwrite(
        self,
        buffer: torch.Tensor,
        filename: Path,
        validate: bool,
        asynchronous: bool,
        file_offset: int | None = None,
    ) -> int:
        """Writes the tensor: 1 when that is done, 0 when it was started in the background."""
        return self._write(buffer, filename, validate, asynchronous, file_offset)

    def sync_pread(self, buffer: torch.Tensor, filename: Path, file_offset: int = 0) -> int:
        return self._read(buffer, filename, False, False, file_offset)

    def sync_pwrite(self, buffer: torch.Tensor, filename: Path, file_offset: int | None = None) -> int:
        return self._write(buffer, filename, False, False, file_offset)

    def async_pread(self, buffer: torch.Tensor, filename: Path, file_offset: int = 0) -> int:
        return self._read(buffer, filename, False, True, file_offset)

    def async_pwrite(
        self,
        buffer: torch.Tensor,
        filename: Target | None = None,
        file_offset: int | None = None,
        *,
        fd: int | None = None,
    ) -> int:
        """`fd`, or `filename` if it is a number, is the descriptor of an open file, which is never cut."""
        if (filename is None) == (fd is None):
            raise ArgumentError("async_pwrite takes a filename or an fd")
        target = filename if filename is not None else fd
        if not isinstance(target, int):
            return self._write(buffer, cast("Path", target), False, True, file_offset)
        address, nbytes = _memory(buffer)
        self._engine.write_descriptor(address, nbytes, buffer, target, _offset(file_offset or 0))
        return 0

    def wait(self) -> int:
        """Waits for everything in the background and returns how many operations it was.

        Raises the error of the first that failed; all are over then.
        """
        return self._engine.wait()

    @_also_named(example_tenosr="example_tensor")
    def new_cpu_locked_tensor(self, num_elem: int, example_tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the example's type in page-locked memory (as far as the system allows)."""
        return locked_tensor(num_elem, example_tensor.dtype)

    def free_cpu_locked_tensor(self, tensor: torch.Tensor) -> bool:
        """Forgets such a tensor, of any handle; False when it is not one.

        Its memory goes with the last tensor that uses it.
        """
        return free_locked(tensor)

    def is_pinned(self, buffer: torch.Tensor) -> bool:
        """Whether the tensor is page-locked by CUDA, or part of one that a handle of this process made."""
        return buffer.is_pinned() or is_locked(buffer)

    def _read(self, buffer: torch.Tensor, filename: Path, validate: bool, background: bool, file_offset: int) -> int:
        address, nbytes = _memory(buffer)
        self._engine.read(
            address, nbytes, buffer, path_text(filename), _offset(file_offset), bool(validate), bool(background)
        )
        return 0 if background else 1

    def _write(
        self, buffer: torch.Tensor, filename: Path, validate: bool, background: bool, file_offset: int | None
    ) -> int:
        address, nbytes = _memory(buffer)
        offset = None if file_offset is None else _offset(file_offset)
        self._engine.write(address, nbytes, buffer, path_text(filename), offset, bool(validate), bool(background))
        return 0 if background else 1


def _memory(buffer: torch.Tensor) -> tuple[int, int]:
    """Where a tensor's bytes are, and how many."""
    if not isinstance(buffer, torch.Tensor):
        raise ArgumentError(f"the buffer must be a tensor, not {type(buffer).__name__}")
    if not is_reachable(buffer):
        raise UnsupportedError(f"the buffer is on {buffer.device}: copy it to the CPU, or from there")
    if not buffer.is_contiguous():
        raise ArgumentError("the buffer must be contiguous")
    settle(buffer.device)
    return buffer.data_ptr(), buffer.numel() * buffer.element_size()


def _offset(file_offset: int) -> int:
    if not isinstance(file_offset, int) or not 0 <= file_offset < 2**63:
        raise ArgumentError(f"file_offset must be a place in a file, not {file_offset!r}")
    return file_offset


def aio_read(
    buffer: torch.Tensor,
    filename: Path,
    block_size: int,
    queue_depth: int,
    single_submit: bool,
    overlap_events: bool,
    validate: bool,
) -> int:
    """Fills the tensor by a handle of its own; 0 when it is done."""
    return aio_handle(block_size, queue_depth, single_submit, overlap_events).read(buffer, filename, validate)


def aio_write(
    buffer: torch.Tensor,
    filename: Path,
    block_size: int,
    queue_depth: int,
    single_submit: bool,
    overlap_events: bool,
    validate: bool,
) -> int:
    """Writes the tensor as a whole file by a handle of its own; 0 when it is done."""
    return aio_handle(block_size, queue_depth, single_submit, overlap_events).write(buffer, filename, validate)


def get_aio_handle(
    block_size: int = 16 * 2**20,
    queue_depth: int = 64,
    single_submit: bool = False,
    overlap_events: bool = True,
    intra_op_parallelism: int = 4,
) -> aio_handle:
    """An `aio_handle` for checkpoints."""
    return aio_handle(block_size, queue_depth, single_submit, overlap_events, intra_op_parallelism)


def get_gds_handle(
    block_size: int = 16 * 2**20,
    queue_depth: int = 64,
    single_submit: bool = False,
    overlap_events: bool = True,
    intra_op_parallelism: int = 4,
) -> NoReturn:
    """There is no GPUDirect Storage for raw files: always an UnsupportedError."""
    refuse_gds_handle()
