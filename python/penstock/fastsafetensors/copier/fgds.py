"""The copier for another vendor's direct storage: the engine's own way is taken."""

from __future__ import annotations

from typing import Any

from ...errors import ArgumentError, DeviceError
from ..common import SafeTensorsMetadata
from ..frameworks import FrameworkOpBase
from ..st_types import Device, DeviceType
from ._engine import EngineCopier, constructor_of
from .registry import CopierConstructFunc, register_copier_constructor

ALIGN = 64 * 2**10
ALLOC_MINIMAL = 2 * 2**20


class FgdsFileCopier(EngineCopier):
    """Reads one file. `reader` and `max_threads` are not needed."""

    def __init__(
        self,
        metadata: SafeTensorsMetadata,
        device: Device,
        reader: Any,
        framework: FrameworkOpBase[Any, Any],
        max_threads: int = 16,
    ) -> None:
        super().__init__(metadata, device, framework)


def get_fgds_device_id(device: Device) -> int:
    """The number of a GPU; 0 for the current one."""
    if device.type not in (DeviceType.CUDA, DeviceType.GPU):
        raise ArgumentError(f"{device.as_str()} is not a GPU")
    return device.index or 0


def init_fgds(framework: FrameworkOpBase[Any, Any] | None = None) -> None:
    """An error that says "gds": this library is not used here."""
    raise DeviceError("init_fgds: fgds is not used here: files are read by penstock's engine")


@register_copier_constructor("fgds", FgdsFileCopier)
def new_fgds_file_copier(
    device: Device,
    framework: FrameworkOpBase[Any, Any],
    bbuf_size_kb: int = 16 * 1024,
    max_threads: int = 16,
    **kwargs: Any,
) -> CopierConstructFunc:
    """Makes copiers. The sizes are accepted; the engine chooses for itself."""
    return constructor_of(FgdsFileCopier, None)
