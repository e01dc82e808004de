"""pack_to_file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from .._save import save
from ..errors import ArgumentError, UnsupportedTypeError
from ._cast import converted, engine_converts, is_extra_state
from ._storage import MacroblockPlan, TensorIndexRecord
from .constants import (
    DEFAULT_ALIGN_BYTES,
    DEFAULT_NUM_WRITE_WORKERS,
    FILE_FORMAT_V3,
    FILE_FORMAT_V4,
    MAGIC,
    U64LE,
)
from .utils import (
    checked_dtype,
    dtype_to_string,
    get_packing_dtype,
    print_phases,
    timer,
    torch_dtype_to_numpy_dtype,
)

if TYPE_CHECKING:
    from .._options import Path
    from .._progress import Progress

__all__ = [
    "DEFAULT_ALIGN_BYTES",
    "DEFAULT_NUM_WRITE_WORKERS",
    "FILE_FORMAT_V3",
    "FILE_FORMAT_V4",
    "MAGIC",
    "U64LE",
    "MacroblockPlan",
    "TensorIndexRecord",
    "dtype_to_string",
    "get_packing_dtype",
    "pack_to_file",
    "timer",
    "torch_dtype_to_numpy_dtype",
]


def pack_to_file(
    state_dict_or_model: Mapping[str, torch.Tensor] | torch.nn.Module,
    destination_path: Path,
    target_dtype: torch.dtype | None = None,
    name_order: list[str] | None = None,
    align_bytes: int = DEFAULT_ALIGN_BYTES,
    silent: bool = True,
    num_workers: int = DEFAULT_NUM_WRITE_WORKERS,
    *,
    align_large: bool = False,
    progress: Progress = None,
) -> None:
    """Saves a state dict or a module as a FlashPack file, atomically and durably. Missing folders are made.

    What is on another device, or of another type, comes over in pieces while it is written.

    target_dtype: convert every tensor to this, integers and booleans too (but for those of a module's extra state).
    name_order: write these names only, in this order; names that don't exist are passed over. By default large tensors
        come first.
    align_bytes: tensors begin at multiples of this; 0 packs them densely.
    align_large: tensors of at least 256 KiB begin at multiples of 4096 bytes too, from where they can be read directly.
    silent: don't print how long each phase took.
    num_workers: not needed, the engine chooses.
    progress: as in `penstock.save`.
    """
    tensors = _in_order(_state_of(state_dict_or_model), name_order)
    _check_extra_states(tensors)
    if align_bytes < 0:
        raise ArgumentError(f"align_bytes must be >= 0, not {align_bytes}")
    dtype = None
    if target_dtype is not None:
        if not isinstance(target_dtype, torch.dtype):
            raise UnsupportedTypeError(f"Unsupported dtype in state dict: {target_dtype!r} is not a torch dtype")
        checked_dtype(target_dtype)
        dtype = target_dtype if engine_converts(target_dtype, target_dtype) else None
    os.makedirs(os.path.dirname(os.path.abspath(os.fsdecode(destination_path))), exist_ok=True)
    if target_dtype is not None:
        tensors = converted(tensors, target_dtype)
    stats = save(
        tensors,
        destination_path,
        format="flashpack",
        dtype=dtype,
        align_bytes=align_bytes,
        align_large=align_large,
        order="format" if name_order is None else "given",
        shared="duplicate",
        checksums=False,
        progress=progress,
    )
    print_phases(stats.phases, silent)


def _state_of(state_dict_or_model: Any) -> Mapping[str, Any]:
    if isinstance(state_dict_or_model, torch.nn.Module):
        return state_dict_or_model.state_dict()
    if isinstance(state_dict_or_model, Mapping):
        return state_dict_or_model
    raise ArgumentError(f"expected a state dict or a module, not {type(state_dict_or_model).__name__}")


def _check_extra_states(tensors: Mapping[str, Any]) -> None:
    for name, value in tensors.items():
        if isinstance(name, str) and is_extra_state(name) and not isinstance(value, torch.Tensor):
            raise ArgumentError(
                f"{name}: a module's extra state is a {type(value).__name__}, and a FlashPack file holds tensors only"
            )


def _in_order(tensors: Mapping[str, Any], name_order: list[str] | None) -> dict[str, Any]:
    if name_order is None:
        names = list(tensors)
    else:
        names = [name for name in name_order if name in tensors]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ArgumentError(f"name_order has {twice!r} twice")
    if not names:
        raise ArgumentError("No tensors to pack")
    return {name: tensors[name] for name in names}
