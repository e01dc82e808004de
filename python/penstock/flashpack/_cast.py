"""target_dtype: what the engine can't convert while it writes, torch does, piece by piece."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .._dtypes import BITS, FLOATING
from .._torch.tensors import NAMES, converted_source, describe, is_plain, is_reachable
from ..errors import ArgumentError

EXTRA_STATE = "_extra_state"


def engine_converts(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether the engine converts while it writes: between floating types of whole bytes."""
    return all(name in FLOATING and BITS[name] >= 8 for name in (NAMES.get(source, "F4"), NAMES.get(target, "F4")))


def is_extra_state(name: str) -> bool:
    """Whether a name of a state dict is that of what a module adds to its parameters and buffers."""
    return name.rpartition(".")[2] == EXTRA_STATE


def converted(tensors: Mapping[str, Any], target: torch.dtype) -> dict[str, Any]:
    """The tensors; those that the engine can't convert (integers, booleans, complex, unknown devices) as sources."""
    return {
        name: _convert(name, tensor, target) if _needs_torch(name, tensor, target) else tensor
        for name, tensor in tensors.items()
    }


def _needs_torch(name: str, tensor: Any, target: torch.dtype) -> bool:
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(f"{name}: expected a torch tensor, not {type(tensor).__name__}")
    if is_extra_state(name):
        return False  # it is the module's own, often bytes
    return tensor.dtype != target and not (engine_converts(tensor.dtype, target) and is_reachable(tensor))


def _convert(name: str, tensor: torch.Tensor, target: torch.dtype) -> Any:
    if not is_plain(tensor):
        raise ArgumentError(f"{name}: {describe(tensor)} can't be converted to {target}")
    return converted_source(name, tensor, target)
