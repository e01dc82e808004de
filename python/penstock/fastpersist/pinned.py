"""Memory that stays where it is: page-locked by CUDA where there is one, else by the system as far as it allows."""

from __future__ import annotations

import torch

from .. import _core
from ..errors import ArgumentError
from .config import refuse_gds


def locked_tensor(numel: int, dtype: torch.dtype) -> torch.Tensor:
    """A zeroed tensor that starts at a page. Where the limit on locked memory is too low it is an ordinary one."""
    if numel < 0:
        raise ArgumentError(f"a tensor can't have {numel} elements")
    if torch.cuda.is_available():
        return torch.zeros(numel, dtype=dtype, pin_memory=True)
    if numel == 0:
        return torch.empty(0, dtype=dtype)
    memory, _ = _core.locked_memory(numel * dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype, count=numel)


def get_pinned_buffer(size_mb: int = 256, use_gds: bool = False, gds_handle: object = None) -> torch.Tensor:
    """A buffer of bytes for `FastFileWriterConfig` or an `aio_handle`."""
    if use_gds or gds_handle is not None:
        refuse_gds()
    if size_mb <= 0:
        raise ArgumentError(f"size_mb must be positive, not {size_mb!r}")
    return locked_tensor(size_mb * 2**20, torch.uint8)
