"""All that penstock knows of NumPy and ml_dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ._dtypes import BITS, FLOATING, TORCH_NAMES
from ._frameworks import Landing, PackedTensor, Place, Source
from .errors import ArgumentError, UnsupportedError

if TYPE_CHECKING:
    from ._frameworks import Info, Row
    from ._indexing import Basic


# NumPy's own floating types; the others come from the ml_dtypes package.
_NATIVE_FLOATING = frozenset({"F16", "F32", "F64"})
ML_DTYPES = frozenset(name for name in FLOATING - _NATIVE_FLOATING if BITS[name] >= 8)
NOWHERE = frozenset({"C32"})  # neither NumPy nor ml_dtypes has it


def _native_dtypes() -> dict[str, np.dtype[Any]]:
    return {
        name: np.dtype(numpy_name)
        for name, numpy_name in TORCH_NAMES.items()
        if name not in ML_DTYPES and name not in NOWHERE and BITS[name] >= 8
    }


def _extended_dtypes() -> dict[str, np.dtype[Any]]:
    try:
        import ml_dtypes
    except ImportError:
        return {}
    found = {name: getattr(ml_dtypes, TORCH_NAMES[name], None) for name in ML_DTYPES}
    return {name: np.dtype(dtype) for name, dtype in found.items() if dtype is not None}


DTYPES: dict[str, np.dtype[Any]] = _native_dtypes() | _extended_dtypes()
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def _missing(name: str, dtype: str) -> UnsupportedError:
    if dtype in NOWHERE:
        return UnsupportedError(f'{name}: NumPy has no {dtype}: use framework="torch"')
    return UnsupportedError(
        f"{name}: NumPy has no {dtype}: install ml_dtypes, load with dtype= a type that NumPy has, "
        'or use framework="torch"'
    )


def require(infos: Callable[[], Iterable[Info]]) -> None:
    """Raises for a type that NumPy lacks, and ml_dtypes too or is not installed."""
    lacking = (ML_DTYPES | NOWHERE) - DTYPES.keys()
    if not lacking:
        return
    for name, dtype, *_ in infos():
        if dtype in lacking:
            raise _missing(name, dtype)


def build(memories: Sequence[Any], rows: Iterable[Row]) -> dict[str, Any]:
    """Writable arrays by name, which point into the memories."""
    tensors: dict[str, Any] = {}
    for name, dtype_name, shape, memory, offset, nbytes in rows:
        dtype = DTYPES.get(dtype_name)
        if dtype is None and BITS[dtype_name] >= 8:
            raise _missing(name, dtype_name)
        element, array_shape = (dtype, shape) if dtype is not None else (np.dtype(np.uint8), (nbytes,))
        if nbytes == 0:
            array: Any = np.empty(array_shape, element)
        else:
            array = np.ndarray(array_shape, element, memories[memory], offset)
        tensors[name] = array if dtype is not None else PackedTensor(dtype_name, shape, array)
    return tensors


def pick(tensor: Any, basic: Basic) -> Any:
    """What an index picks of the array that covers it: always an array, also of a single element."""
    index = (*basic.picks(), ...)
    return tensor[index]


def device(device: Any) -> Any:
    """Arrays live on the CPU."""
    raise ArgumentError(f"NumPy arrays can't be moved to {str(device)!r}")


def landing(device: Any) -> Landing:
    """There is no device for arrays."""
    return Landing(build)


def streams(values: Iterable[Any]) -> list[tuple[int, int]]:
    """Arrays live on the CPU."""
    return []


def source(name: str, value: Any) -> Source | None:
    """How to write an array or a NumPy scalar; None when the value is none."""
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray):
        return None
    if isinstance(value, np.ma.MaskedArray):
        raise UnsupportedError(f"{name}: a masked array can't be saved; call filled()")
    if not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    dtype = NAMES.get(value.dtype)
    if dtype is None:
        raise UnsupportedError(f"{name}: arrays of {value.dtype} can't be saved")
    strides = None if value.flags.c_contiguous else value.strides
    return Source(dtype, value.shape, value.ctypes.data, strides, value)


def from_any(value: Any) -> Any:
    """An array over the memory of another library's, which has DLPack."""
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError) as problem:
        raise UnsupportedError(f"NumPy can't take this {type(value).__name__}: {problem}") from problem


def from_buffer(value: Any, dtype: str) -> Any:
    """The bytes of an array of another library, which NumPy may not know the type of, as an array of `dtype`."""
    return np.asarray(value).view(DTYPES[dtype])


def place(name: str, value: Any) -> Place | None:
    """An array that can be loaded into; None when the value is none."""
    if not isinstance(value, np.ndarray):
        return None
    dtype = NAMES.get(value.dtype.newbyteorder("="))
    if dtype is None:
        raise UnsupportedError(f"{name}: no file holds {value.dtype}")
    direct = value.flags.c_contiguous and value.flags.writeable and value.dtype.isnative
    identity: Any = id(value) if value.size == 0 else (value.ctypes.data, value.shape, value.strides, value.dtype)
    obstacle = None if value.flags.writeable else "is read-only, which needs assign=True"
    return Place(value, dtype, value.shape, value.nbytes, identity, value.ctypes.data if direct else None, obstacle)


def replacement(old: Any, loaded: Any) -> Any:
    """An array needs nothing more."""
    return loaded


def mark_changed(value: Any) -> None:
    """Arrays don't count their changes."""


def copy_into(old: Any, loaded: Any) -> None:
    """Copies where the memory could not be read into."""
    old[...] = loaded


def rng_state() -> tuple[Any, ...]:
    """The state of the generator behind `numpy.random`'s functions."""
    return tuple(np.random.get_state(legacy=True))


def set_rng_state(state: tuple[Any, ...]) -> None:
    """The same, backwards."""
    np.random.set_state(tuple(state))
