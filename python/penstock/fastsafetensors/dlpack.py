"""Tensors over memory that is known by its address, in the form that every library's from_dlpack takes."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import UnsupportedError
from .cpp import is_hip_found
from .st_types import DTYPE_SIZES, Device, DeviceType, DType

if TYPE_CHECKING:
    from .allocation import SharedDeviceAllocation

_CAPSULE_NAME = b"dltensor"

# What each capsule's consumer holds, by the address of its DLManagedTensor, until the consumer lets go.
_held: dict[int, tuple[Any, ...]] = {}


class DLDevice(ctypes.Structure):
    """A device, as DLPack counts them."""

    kDLCPU = 1  # noqa: N815
    kDLCUDA = 2  # noqa: N815
    kDLROCM = 10  # noqa: N815
    _fields_: ClassVar = [("device_type", ctypes.c_int), ("device_id", ctypes.c_int)]

    def __init__(self, dev: Device) -> None:
        super().__init__(self._kind(dev.type), dev.index or 0)

    def _kind(self, kind: DeviceType) -> int:
        if kind is DeviceType.CPU:
            return self.kDLCPU
        if kind in (DeviceType.CUDA, DeviceType.GPU):
            return self.kDLROCM if is_hip_found() else self.kDLCUDA
        raise UnsupportedError(f"memory of {kind.value!r} devices can't be passed by its address")


class c_DLDataType(ctypes.Structure):  # noqa: N801 - the name that callers know
    """An element type. Those that DLPack has no code for pass as bytes."""

    kDLInt = 0  # noqa: N815
    kDLUInt = 1  # noqa: N815
    kDLFloat = 2  # noqa: N815
    kDLBfloat = 4  # noqa: N815
    kDLComplex = 5  # noqa: N815
    kDLBool = 6  # noqa: N815
    _fields_: ClassVar = [("type_code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]

    STDataToDL: ClassVar[dict[DType, tuple[int, int, int]]] = {
        DType.BOOL: (kDLBool, 8, 1),
        DType.I8: (kDLInt, 8, 1),
        DType.I16: (kDLInt, 16, 1),
        DType.I32: (kDLInt, 32, 1),
        DType.I64: (kDLInt, 64, 1),
        DType.U8: (kDLUInt, 8, 1),
        DType.U16: (kDLUInt, 16, 1),
        DType.U32: (kDLUInt, 32, 1),
        DType.U64: (kDLUInt, 64, 1),
        DType.F16: (kDLFloat, 16, 1),
        DType.BF16: (kDLBfloat, 16, 1),
        DType.F32: (kDLFloat, 32, 1),
        DType.F64: (kDLFloat, 64, 1),
        DType.C64: (kDLComplex, 64, 1),
        DType.C128: (kDLComplex, 128, 1),
        DType.F8_E8M0: (kDLUInt, 8, 1),
        DType.F4: (kDLUInt, 8, 1),
    }

    def __init__(self, dtype: DType) -> None:
        if dtype not in self.STDataToDL:
            raise UnsupportedError(f"DLPack has no type for {dtype.value}: pass its bytes as U8")
        super().__init__(*self.STDataToDL[dtype])


class _Holder:
    """Arrays that a DLTensor points to, and the owner of its memory."""

    def __init__(self, shape: list[int], strides: list[int], owner: SharedDeviceAllocation | None = None) -> None:
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = (ctypes.c_int64 * len(strides))(*strides)
        self.owner = owner


class DLTensor(ctypes.Structure):
    """A tensor: where its memory is, and its type, shape and strides."""

    _fields_: ClassVar = [
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int),
        ("dtype", c_DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]

    def __init__(self, dev_ptr: int, dev: Device, dtype: DType, holder: _Holder) -> None:
        pointer = ctypes.POINTER(ctypes.c_int64)
        super().__init__(
            dev_ptr,
            DLDevice(dev),
            len(holder.shape),
            c_DLDataType(dtype),
            ctypes.cast(holder.shape, pointer),
            ctypes.cast(holder.strides, pointer),
            0,
        )

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(self.dtype.bits * self.dtype.lanes // 8)


class DLManagedTensor(ctypes.Structure):
    """A tensor with what keeps its memory: the consumer calls the deleter when it is done."""

    def as_py(
        self,
        dev_ptr: int,
        shape: list[int],
        strides: list[int],
        dtype: DType,
        dev: Device,
        owner: SharedDeviceAllocation | None = None,
    ) -> Any:
        """The capsule of a tensor over this memory."""
        holder = _Holder(shape, strides, owner)
        self.dl_tensor = DLTensor(dev_ptr, dev, dtype, holder)
        self.manager_ctx = None
        self.deleter = _release
        if owner is not None:
            owner.acquire()
        address = ctypes.addressof(self)
        _held[address] = (self, holder)
        return _new_capsule(address, _CAPSULE_NAME, _capsule_deleter)


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
DLManagedTensor._fields_ = [("dl_tensor", DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", _Deleter)]


def _let_go(address: int) -> None:
    """The consumer is done: the arrays go, and the memory with its last owner."""
    held = _held.pop(address, None)
    if held is not None and held[1].owner is not None:
        held[1].owner.release()


_release = _Deleter(_let_go)
_CapsuleDeleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)  # Python calls it with the GIL held


def _give_up(capsule: int) -> None:
    """A capsule that nobody consumed is given up with what it holds; a consumer has renamed its own."""
    if _is_valid(capsule, _CAPSULE_NAME):
        _let_go(_pointer(capsule, _CAPSULE_NAME))


_capsule_deleter = _CapsuleDeleter(_give_up)
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _CapsuleDeleter)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def from_cuda_buffer(
    dev_ptr: int,
    shape: list[int],
    strides: list[int],
    dtype: DType,
    dev: Device,
    owner: SharedDeviceAllocation | None = None,
) -> Any:
    """A capsule for from_dlpack over memory of the host or of a GPU; `owner` is kept until the tensor goes."""
    return DLManagedTensor().as_py(dev_ptr, shape, strides, dtype, dev, owner)


def nbytes_of(shape: list[int], dtype: DType) -> int:
    """Bytes of a tensor, those of packed types rounded up."""
    count = 1
    for size in shape:
        count *= size
    return -int(-count * DTYPE_SIZES[dtype] // 1)
