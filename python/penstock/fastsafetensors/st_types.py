"""Element types and devices, as code for fastsafetensors names them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .._dtypes import BITS


class DeviceType(Enum):
    """Kinds of devices. The last four are more than fastsafetensors has."""

    CPU = "cpu"
    CUDA = "cuda"
    GPU = "gpu"
    XPU = "xpu"
    NPU = "npu"
    META = "meta"
    PRIVATEUSEONE = "privateuseone"


@dataclass(frozen=True)
class Device:
    """A device and its number; without a number, the current one of its kind."""

    type: DeviceType = DeviceType.CPU
    index: int | None = None

    def as_str(self) -> str:
        """As torch names it: "cpu", "cuda:1"."""
        return self.type.value if self.index is None else f"{self.type.value}:{self.index}"

    @classmethod
    def from_str(cls, s: str) -> Device:
        """The device of a name such as "cuda:1"."""
        kind, colon, number = s.partition(":")
        try:
            device_type = DeviceType(kind.lower())
        except ValueError:
            raise ValueError(f"Unknown device type: {kind}") from None
        if not colon:
            return cls(device_type)
        try:
            return cls(device_type, int(number))
        except ValueError:
            raise ValueError(f"Invalid index: {number}") from None


class DType(Enum):
    """Element types by their names in files; AUTO is the one that the file has.

    The rows after F4 are more than fastsafetensors has.
    """

    BOOL = "BOOL"
    I8 = "I8"
    I16 = "I16"
    I32 = "I32"
    I64 = "I64"
    U8 = "U8"
    U16 = "U16"
    U32 = "U32"
    U64 = "U64"
    F16 = "F16"
    F32 = "F32"
    F64 = "F64"
    BF16 = "BF16"
    F8_E5M2 = "F8_E5M2"
    F8_E4M3 = "F8_E4M3"
    F8_E8M0 = "F8_E8M0"
    F4 = "F4"
    F6_E2M3 = "F6_E2M3"
    F6_E3M2 = "F6_E3M2"
    F8_E4M3FNUZ = "F8_E4M3FNUZ"
    F8_E5M2FNUZ = "F8_E5M2FNUZ"
    C32 = "C32"
    C64 = "C64"
    C128 = "C128"
    AUTO = "AUTO"


# Bytes of an element. Those of less than a byte are packed: F4 has two to the byte.
DTYPE_SIZES: dict[DType, float] = {
    dtype: BITS[dtype.value] // 8 if BITS[dtype.value] % 8 == 0 else BITS[dtype.value] / 8
    for dtype in DType
    if dtype is not DType.AUTO
}
