"""What code for fastsafetensors finds in its compiled module, as far as it has a meaning here.

The engine below is penstock's own: its readers and handles are not objects that callers make.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import mmap
import os
import sys
from typing import TYPE_CHECKING, Any

from .. import _core
from .._fork import new_lock
from ..errors import UnsupportedError

_held: dict[int, Any] = {}
_lock = new_lock()


class gds_device_buffer:  # noqa: N801 - the name that callers know
    """Memory by its address. `owner`, where there is one, is kept for as long as this is."""

    def __init__(self, devPtr_base: int, length: int, use_cuda: bool, owner: Any = None) -> None:  # noqa: N803
        self._address = devPtr_base
        self._length = length
        self.use_cuda = use_cuda
        self.owner = owner

    def get_base_address(self) -> int:
        """The first byte's address."""
        return self._address

    def get_length(self) -> int:
        """How many bytes there are."""
        return self._length

    def cufile_register(self, offset: int, length: int) -> int:
        """0: the engine registers by itself what it moves without the host."""
        return 0

    def cufile_deregister(self, offset: int) -> int:
        """0, as `cufile_register`."""
        return 0

    def memmove(self, dst_off: int, src_off: int, tmp: gds_device_buffer, length: int) -> int:
        """Moves bytes within host memory; -1 for what reaches outside of it, and for memory of a device."""
        inside = 0 <= dst_off <= self._length - length and 0 <= src_off <= self._length - length
        if self.use_cuda or length < 0 or not inside:
            return -1
        ctypes.memmove(self._address + dst_off, self._address + src_off, length)
        return 0


def read_buffer(dst: int, length: int) -> bytes:
    """A copy of host memory."""
    return ctypes.string_at(dst, length)


def cpu_malloc(length: int) -> int:
    """Host memory at a page boundary, until `cpu_free`."""
    memory = mmap.mmap(-1, max(length, 1))
    view = (ctypes.c_char * len(memory)).from_buffer(memory)
    address = ctypes.addressof(view)
    with _lock:
        _held[address] = (view, memory)
    return address


def cpu_free(addr: int) -> None:
    """Lets go of what `cpu_malloc` gave."""
    with _lock:
        _held.pop(addr, None)


def is_cuda_found() -> bool:
    """Whether the engine reaches a GPU, and torch is not one for AMD's."""
    return bool(_core.list_devices()) and not _is_hip()


def is_hip_found() -> bool:
    """Whether the engine reaches a GPU of AMD's."""
    return _is_hip() and bool(_core.list_devices())


def _is_hip() -> bool:
    version = getattr(sys.modules.get("torch"), "version", None)
    return bool(getattr(version, "hip", None))


def get_device_pci_bus(deviceId: int) -> str:  # noqa: N803
    """The PCI address of a GPU as torch numbers them; "" where it can't be had."""
    try:
        import torch

        properties: Any = torch.cuda.get_device_properties(deviceId)
        parts = (properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id)
    except (ImportError, AssertionError, AttributeError, RuntimeError):
        return ""
    return "{:04x}:{:02x}:{:02x}.0".format(*parts)


def get_alignment_size() -> int:
    """Bytes to which memory and offsets of direct reads are aligned by those who do it themselves."""
    return 4096


def set_debug_log(debug_log: bool) -> None:
    """The engine keeps no log; what it did is in the statistics of each load."""


def get_gil_release() -> bool:
    """True: Python runs while bytes move."""
    return True


def set_gil_release(gil_release: bool) -> None:
    """Python always runs while bytes move."""


def is_gds_supported(deviceId: int) -> bool:  # noqa: N803
    """Whether GPUDirect Storage can be had for a GPU: it, cuFile's library, and its driver are there."""
    is_there = any(found["number"] == deviceId for found in _core.list_devices())
    return is_there and is_cufile_found() and os.path.exists("/proc/driver/nvidia-fs/stats")


def is_cufile_found() -> bool:
    """Whether cuFile's library is there."""
    return ctypes.util.find_library("cufile") is not None


def cufile_version() -> int:
    """0: cuFile is the engine's affair, which tells in the statistics of a load whether it took part."""
    return 0


def init_gds() -> int:
    """0 where GPUDirect Storage is there, else -1."""
    return 0 if is_gds_supported(0) else -1


def close_gds() -> int:
    """0: the engine closes what it opened."""
    return 0


def is_fgds_found() -> bool:
    """False: that library is not used here."""
    return False


def is_hipfile_memory_budget_supported() -> bool:
    """False: AMD's library for direct reads is not used here."""
    return False


def load_library_functions(cudart_lib_name: str) -> None:
    """Nothing: the engine finds GPU libraries when it first needs one."""


def set_numa_node(numa_node: int) -> int:
    """0: the engine does not move its threads."""
    return 0


# What reads, holds files open or has memory on devices there, and is the engine itself here.
_ENGINE_ONLY = frozenset(
    (
        "close_fgds",
        "cpp_metrics",
        "dma_completion",
        "dma_load_runs",
        "dma_load_runs_progress",
        "fgds_deregmem",
        "fgds_device_buffer",
        "fgds_file_handle",
        "fgds_file_reader",
        "fgds_regmem",
        "gds_device_cache_size",
        "gds_file_handle",
        "gds_file_reader",
        "get_cpp_metrics",
        "gpu_free",
        "gpu_malloc",
        "init_fgds",
        "load_fgds_library",
        "memcpy_h2d_async",
        "nogds_file_reader",
    )
)


if not TYPE_CHECKING:  # whose readers would take any name for one that is found here

    def __getattr__(name: str) -> Any:
        if name not in _ENGINE_ONLY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

        def refused(*args: Any, **kwargs: Any) -> Any:
            raise UnsupportedError(f"cpp.{name} is not there: files are read by penstock's engine, see penstock.load")

        return refused
