"""DTensors: what of a tensor that ranks share is in this process, and how what was loaded of it becomes one again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from .._parts import part_shape
from .._shard import placed_part
from ..errors import ArgumentError, UnsupportedError

if TYPE_CHECKING:
    from .._parts import Part


def is_distributed(value: Any) -> bool:
    """Whether it is a DTensor, without importing what makes them: who has one has done so."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def local_tensor(value: Any) -> torch.Tensor:
    """This rank's own tensor, itself."""
    with torch.no_grad():
        local: torch.Tensor = value.to_local()
    return local


def local_part(name: str, value: Any) -> Part:
    """What of the whole tensor this rank has."""
    mesh = value.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ArgumentError(f"{name}: this rank is not in the mesh of the DTensor")
    part = placed_part(name, tuple(value.shape), value.placements, tuple(mesh.shape), tuple(coordinate))
    expected, found = part_shape(tuple(value.shape), part), tuple(local_tensor(value).shape)
    if found != expected:
        raise UnsupportedError(
            f"{name}: this rank's part of the DTensor has shape {found}, where its placements "
            f"{tuple(value.placements)} give {expected}"
        )
    return part


def device_for(value: Any) -> torch.device | None:
    """Where the part of a DTensor on meta is to be: on this rank's device of the mesh; None for the CPU."""
    kind = value.device_mesh.device_type
    if kind in ("cpu", "meta"):
        return None
    return torch.device(kind, torch.get_device_module(kind).current_device())


def joined(old: Any, local: torch.Tensor) -> Any:
    """A DTensor of which this is this rank's part, shared as the old one was."""
    from torch.distributed.tensor import DTensor

    made = DTensor.from_local(
        local, old.device_mesh, old.placements, run_check=False, shape=old.shape, stride=old.stride()
    )
    return made.requires_grad_(old.requires_grad) if local.is_floating_point() else made
