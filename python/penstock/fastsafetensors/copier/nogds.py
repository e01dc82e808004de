"""The copier that passes files through the host's memory."""

from __future__ import annotations

from typing import Any

from ..common import ODIRECT_HINT, SafeTensorsMetadata
from ..frameworks import FrameworkOpBase
from ..st_types import Device
from ._engine import EngineCopier, constructor_of
from .registry import CopierConstructFunc, register_copier_constructor

__all__ = ["ODIRECT_HINT", "NoGdsFileCopier", "load_library_func", "new_nogds_file_copier"]


class NoGdsFileCopier(EngineCopier):
    """Reads one file. `reader` is not needed."""

    def __init__(
        self, metadata: SafeTensorsMetadata, device: Device, reader: Any, framework: FrameworkOpBase[Any, Any]
    ) -> None:
        super().__init__(metadata, device, framework)


def load_library_func(framework: Any = None) -> None:
    """Nothing: the engine finds GPU libraries when it first needs one."""


@register_copier_constructor("nogds", NoGdsFileCopier)
def new_nogds_file_copier(
    device: Device, bbuf_size_kb: int = 16 * 1024, max_threads: int = 16, **kwargs: Any
) -> CopierConstructFunc:
    """Makes copiers. The sizes are accepted; the engine chooses for itself."""
    return constructor_of(NoGdsFileCopier, None)
