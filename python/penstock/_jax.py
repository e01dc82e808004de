"""All that penstock knows of JAX. Its arrays are made of NumPy's, which know the same element types by ml_dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from . import _numpy
from ._frameworks import Landing, PackedTensor, Place, Source
from .errors import ArgumentError, LibraryError, UnsupportedError

try:
    import jax
except ImportError as problem:
    raise LibraryError(f'framework="jax" needs jax, which can\'t be imported ({problem}): pip install jax') from problem

if TYPE_CHECKING:
    from ._frameworks import Info, Row
    from ._indexing import Basic

# JAX makes other types of these unless it is told to keep them.
_WIDE = frozenset({"F64", "I64", "U64", "C128"})

Where = Callable[[str], Any]  # a tensor's device or sharding; None: JAX's default device


def require(infos: Callable[[], Iterable[Info]]) -> None:
    """Raises for a type that JAX would change, or that NumPy lacks."""
    _numpy.require(infos)
    config: Any = jax.config
    if config.jax_enable_x64:
        return
    for name, dtype, *_ in infos():
        if dtype in _WIDE:
            raise _narrowed(name, dtype)


def _narrowed(name: str, dtype: str) -> UnsupportedError:
    return UnsupportedError(
        f'{name}: JAX would narrow {dtype}: call jax.config.update("jax_enable_x64", True) first, '
        'leave the tensor out with select=, or use framework="numpy"'
    )


def build(memories: Sequence[Any], rows: Iterable[Row]) -> dict[str, Any]:
    """Arrays by name, on the CPU. One that starts at a multiple of 64 bytes lies in the memories, others are copies."""
    return _put(_numpy.build(memories, rows), lambda _: jax.devices("cpu")[0])


def _put(arrays: Mapping[str, Any], where: Where) -> dict[str, Any]:
    return {name: _put_one(name, array, where(name)) for name, array in arrays.items()}


def _put_one(name: str, array: Any, where: Any) -> Any:
    if isinstance(array, PackedTensor):
        return array._replace(data=_put_one(name, array.data, where))
    try:
        placed = jax.device_put(array, where, may_alias=True)
    except (RuntimeError, TypeError, ValueError) as problem:
        reason = str(problem).strip().partition("\n")[0]
        raise UnsupportedError(f"{name}: JAX can't place {array.dtype}{list(array.shape)}: {reason}") from problem
    if placed.dtype != array.dtype:
        raise _narrowed(name, _numpy.NAMES[array.dtype])
    return placed


def pick(tensor: Any, basic: Basic) -> Any:
    """What an index picks of the array that covers it."""
    index = (*basic.picks(), ...)
    return tensor[index]


def device(device: Any) -> Any:
    """A device of JAX, a sharding, their names, or a dict of these by tensor names and globs."""
    if isinstance(device, Mapping):
        return {pattern: _target(each) for pattern, each in device.items()}
    return _target(device)


def _target(device: Any) -> Any:
    if isinstance(device, (jax.Device, jax.sharding.Sharding)):
        return device
    if isinstance(device, str):
        platform, _, number = device.partition(":")
        if not number or number.isdecimal():
            return _numbered(device, "gpu" if platform == "cuda" else platform, int(number or 0))
    elif isinstance(device, int) and not isinstance(device, bool):
        return _numbered(str(device), None, device)
    raise ArgumentError(
        f"device must be a device or a sharding of JAX, a name such as 'gpu:0', or a dict of these, not {device!r}"
    )


def _numbered(text: str, platform: str | None, number: int) -> Any:
    try:
        found = jax.devices(platform)
    except RuntimeError as problem:
        reason = str(problem).strip().partition("\n")[0]
        raise UnsupportedError(f"device {text!r}: JAX has none of its kind: {reason}") from problem
    if not 0 <= number < len(found):
        raise UnsupportedError(f"device {text!r}: JAX has {len(found)} of its kind")
    return found[number]


def landing(device: Any) -> Landing:
    """Through the host's memory, a few tensors at a time, which is let go of when JAX has its copies."""
    where: Where = _finder(device) if isinstance(device, Mapping) else lambda _: device

    def build_there(memories: Sequence[Any], rows: Iterable[Row]) -> dict[str, Any]:
        return _put(_numpy.build(memories, rows), where)

    return Landing(build_there, device=device, passes_host=True)


def _finder(places: Mapping[str, Any]) -> Where:
    def find(name: str) -> Any:
        if name in places:
            return places[name]
        return next((place for pattern, place in places.items() if fnmatchcase(name, pattern)), None)

    return find


def streams(values: Iterable[Any]) -> list[tuple[int, int]]:
    """None: an array is waited for when it is taken."""
    return []


def source(name: str, value: Any) -> Source | None:
    """How to write an array; None when the value is none. One of other devices is copied to the host."""
    if not isinstance(value, jax.Array):
        return None
    if not value.is_fully_addressable:
        raise UnsupportedError(f"{name}: a part of this array lies in other processes, which can't be saved from here")
    return _numpy.source(name, jax.device_get(value))


def from_any(value: Any) -> Any:
    """An array over the memory of another library's, which has DLPack."""
    return _numpy.from_any(value)


def place(name: str, value: Any) -> Place | None:
    """Refuses: arrays of JAX never change."""
    if not isinstance(value, jax.Array):
        return None
    raise UnsupportedError(f'{name}: an array of JAX can\'t be loaded into: use penstock.load(..., framework="jax")')


def replacement(old: Any, loaded: Any) -> Any:
    """An array needs nothing more."""
    return loaded


def mark_changed(value: Any) -> None:
    """Arrays never change."""


def copy_into(old: Any, loaded: Any) -> None:
    """`place` lets nothing come here."""
    raise UnsupportedError("an array of JAX can't be loaded into")
