"""The smallest copier: what a class of your own needs."""

from __future__ import annotations

from typing import Any

from ..allocation import SharedDeviceAllocation
from ..common import SafeTensorsMetadata
from ..cpp import gds_device_buffer
from ..frameworks import FrameworkOpBase, TensorBase
from ..st_types import Device, DType
from .base import CopierInterface, DummyDeviceBuffer
from .registry import CopierConstructFunc


class ExampleCopier(CopierInterface):
    """Reads nothing."""

    def __init__(
        self, metadata: SafeTensorsMetadata, device: Device, reader: Any, framework: FrameworkOpBase[Any, Any]
    ) -> None:
        self.metadata = metadata

    def submit_io(self, use_buf_register: bool, max_copy_block_size: int) -> gds_device_buffer:
        """No memory."""
        return DummyDeviceBuffer()

    def wait_io(
        self,
        gbuf: gds_device_buffer,
        dtype: DType = DType.AUTO,
        noalign: bool = False,
        owner: SharedDeviceAllocation | None = None,
    ) -> dict[str, TensorBase]:
        """No tensors."""
        return {}


def new_gds_file_copier(
    device: Device, bbuf_size_kb: int = 16 * 1024, max_threads: int = 16, nogds: bool = False
) -> CopierConstructFunc:
    """Makes copiers."""

    def construct(
        metadata: SafeTensorsMetadata, device: Device, framework: FrameworkOpBase[Any, Any]
    ) -> CopierInterface:
        return ExampleCopier(metadata, device, None, framework)

    return construct
