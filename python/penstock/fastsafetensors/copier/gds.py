"""The copier that asks for GPUDirect Storage; without it files pass through the host's memory."""

from __future__ import annotations

from typing import Any

from ...errors import DeviceError
from ..common import SafeTensorsMetadata
from ..cpp import is_gds_supported
from ..frameworks import FrameworkOpBase
from ..st_types import Device
from ._engine import EngineCopier, constructor_of
from .registry import CopierConstructFunc, register_copier_constructor


class GdsFileCopier(EngineCopier):
    """Reads one file, without the host's memory where the system can. `reader` and `fallback_cache` are not needed."""

    def __init__(
        self,
        metadata: SafeTensorsMetadata,
        device: Device,
        reader: Any,
        framework: FrameworkOpBase[Any, Any],
        fallback_cache: Any = None,
    ) -> None:
        super().__init__(metadata, device, framework)

    def set_o_direct(self, enable: bool) -> None:
        """Accepted: the engine reads past the page cache what is not in it."""


def init_gds(framework: FrameworkOpBase[Any, Any] | None = None) -> None:
    """Checks that GPUDirect Storage is there; an error that says "gds" where it is not."""
    if not is_gds_supported(0):
        raise DeviceError(
            "init_gds: there is no GPUDirect Storage (gds) here: use nogds=True, or leave the choice to us"
        )


@register_copier_constructor("gds", GdsFileCopier)
def new_gds_file_copier(
    device: Device,
    bbuf_size_kb: int = 16 * 1024,
    max_threads: int = 16,
    device_memory_budget: int | None = None,
    **kwargs: Any,
) -> CopierConstructFunc:
    """Makes copiers. The sizes are accepted; the engine chooses for itself."""
    return constructor_of(GdsFileCopier, None)
