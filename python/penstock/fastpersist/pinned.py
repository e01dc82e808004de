"""Memory that stays where it is: page-locked by CUDA where there is one, else by the system as far as it allows."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch

from .. import _core
from ..errors import ArgumentError
from .config import refuse_gds_handle

# The locked tensors of this process, whoever asked for them: by the address, what keeps the memory. It leaves with the
# last tensor that uses it.
_locked: WeakValueDictionary[int, Any] = WeakValueDictionary()


def locked_tensor(numel: int, dtype: torch.dtype) -> torch.Tensor:
    """A zeroed tensor that starts at a page. Where the limit on locked memory is too low it is an ordinary one."""
    if numel < 0:
        raise ArgumentError(f"a tensor can't have {numel} elements")
    if torch.cuda.is_available():
        tensor = torch.zeros(numel, dtype=dtype, pin_memory=True)
        _locked[_address(tensor)] = tensor
        return tensor
    memory: Any = _core.locked_memory(max(numel, 1) * dtype.itemsize)[0]
    owner = np.frombuffer(memory, np.uint8)  # which, unlike the memory, can be referred to weakly
    tensor = torch.frombuffer(owner, dtype=dtype)
    _locked[_address(tensor)] = owner
    return tensor if numel > 0 else tensor[:0]


def is_locked(tensor: torch.Tensor) -> bool:
    """Whether all of the tensor is in memory that `locked_tensor` gave, and that was not freed."""
    if tensor.device.type != "cpu":
        return False
    begin = _address(tensor)
    end = begin + tensor.nbytes
    return any(base <= begin and end <= base + owner.nbytes for base, owner in list(_locked.items()))


def free_locked(tensor: torch.Tensor) -> bool:
    """Forgets a locked tensor; False when it is none. Its memory goes with the last tensor that uses it."""
    return _locked.pop(_address(tensor), None) is not None


def _address(tensor: torch.Tensor) -> int:
    """Where its elements are; an empty tensor's own pointer is null."""
    return tensor.data_ptr() or tensor.untyped_storage().data_ptr()


def get_pinned_buffer(size_mb: int = 256, use_gds: bool = False, gds_handle: object = None) -> torch.Tensor:
    """A buffer of bytes for `FastFileWriterConfig` or an `aio_handle`."""
    if use_gds or gds_handle is not None:
        refuse_gds_handle()
    if size_mb <= 0:
        raise ArgumentError(f"size_mb must be positive, not {size_mb!r}")
    return locked_tensor(size_mb * 2**20, torch.uint8)
