"""The copier for systems whose GPU shares the host's memory."""

from __future__ import annotations

from typing import Any

from ..common import SafeTensorsMetadata
from ..frameworks import FrameworkOpBase
from ..st_types import Device
from ._engine import EngineCopier, constructor_of
from .registry import CopierConstructFunc, register_copier_constructor


class UnifiedMemCopier(EngineCopier):
    """Reads one file. `dma_gate` is not needed."""

    def __init__(
        self,
        metadata: SafeTensorsMetadata,
        device: Device,
        framework: FrameworkOpBase[Any, Any],
        dma_gate: Any = None,
    ) -> None:
        super().__init__(metadata, device, framework)


def is_unified_memory_system(framework: FrameworkOpBase[Any, Any] | None = None) -> bool:
    """Whether GPU 0 is part of the processor, and works in the host's memory."""
    if framework is None or framework.get_name() != "pytorch":
        return False
    import torch

    if not torch.cuda.is_available():
        return False
    properties: Any = torch.cuda.get_device_properties(0)
    return bool(getattr(properties, "is_integrated", False))


@register_copier_constructor("unified", UnifiedMemCopier)
def new_unified_copier(device: Device, **kwargs: Any) -> CopierConstructFunc:
    """Makes copiers."""
    return constructor_of(UnifiedMemCopier)
