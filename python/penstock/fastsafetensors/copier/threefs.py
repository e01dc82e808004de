"""The copier for 3FS: a reader that the caller gives, or files through the mount."""

from __future__ import annotations

from typing import Any

from ...errors import IoError
from ..allocation import SharedDeviceAllocation
from ..common import SafeTensorsMetadata
from ..cpp import gds_device_buffer
from ..frameworks import FrameworkOpBase, TensorBase
from ..st_types import Device, DType
from ._engine import EngineCopier, constructor_of
from .base import CopierInterface
from .registry import CopierConstructFunc, register_copier_constructor


class ThreeFSFileCopier(CopierInterface):
    """Reads one file by ``reader.read_chunked(path=, dev_ptr=, file_offset=, total_length=, chunk_size=)``."""

    def __init__(
        self, metadata: SafeTensorsMetadata, device: Device, reader: Any, framework: FrameworkOpBase[Any, Any]
    ) -> None:
        self.metadata = metadata
        self.device = device
        self.reader = reader
        self.framework = framework

    def submit_io(self, use_buf_register: bool, max_copy_block_size: int) -> gds_device_buffer:
        """Reads the whole file, and returns the memory that it is in."""
        start, length = self.metadata.header_length, self.metadata.size_bytes - self.metadata.header_length
        memory: gds_device_buffer = self.framework.alloc_tensor_memory(length, self.device)
        count = self.reader.read_chunked(
            path=self.metadata.src,
            dev_ptr=memory.get_base_address(),
            file_offset=start,
            total_length=length,
            chunk_size=max(max_copy_block_size, 0),
        )
        if count != length:
            self.framework.free_tensor_memory(memory, self.device)
            raise IoError(f"{self.metadata.src}: {count} of {length} bytes were read")
        return memory

    def wait_io(
        self,
        gbuf: gds_device_buffer,
        dtype: DType = DType.AUTO,
        noalign: bool = False,
        owner: SharedDeviceAllocation | None = None,
    ) -> dict[str, TensorBase]:
        """The tensors, over that memory."""
        return self.metadata.get_tensors(gbuf, self.device, self.metadata.header_length, dtype, owner)


@register_copier_constructor("3fs", EngineCopier)
def new_threefs_file_copier(
    device: Device,
    mount_point: str,
    entries: int = 64,
    io_depth: int = 0,
    buffer_size: int = 64 * 2**20,
    **kwargs: Any,
) -> CopierConstructFunc:
    """Makes copiers that read through the mount: 3FS's own library is not used here."""
    return constructor_of(EngineCopier)
