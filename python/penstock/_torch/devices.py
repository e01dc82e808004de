"""Devices of torch: where loaded tensors are to be, and what the caller has queued there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from .. import _core
from .._frameworks import Landing, PackedTensor
from ..errors import ArgumentError, UnsupportedError
from .tensors import build, is_reachable, pointer, settle

if TYPE_CHECKING:
    from .._frameworks import Row

_OWN_BACKEND = "privateuseone"  # whatever somebody has called theirs


def device(given: Any) -> torch.device:
    """A number is an accelerator's."""
    named = f"cuda:{given}" if isinstance(given, int) else given
    try:
        made = torch.device(named)
    except (RuntimeError, TypeError) as problem:
        raise ArgumentError(f"{given!r} is not a device") from problem
    # torch keeps eight bits of a number: "cuda:256" would be cuda:0.
    if made.index is not None and (made.index < 0 or not str(named).endswith(f":{made.index}")):
        raise ArgumentError(f"{given!r} is not a device")
    return made


def landing(device: torch.device) -> Landing:
    """Tensors on a device: filled by the engine where its driver knows the memory, else moved there."""
    if device.type == "cpu":
        return Landing(build)
    probe = _probe(device)
    place = probe.device
    number = None if probe.is_meta else _core.device_of(probe.data_ptr())
    allocator = None if number is None else _allocator(place, number)
    if allocator is None:
        return Landing(partial(_build_and_move, place), device=place, passes_host=True)
    return Landing(partial(_build_on, place), allocator, place)


def current_stream(device: torch.device) -> int | None:
    """The address of the stream that the caller uses; None where it can't be had: then what is queued has passed."""
    if device.type == "cuda":
        return int(torch.cuda.current_stream(device).cuda_stream)
    find = getattr(torch.get_device_module(device), "current_stream", None)
    if find is None:
        return None
    stream = find(device)
    try:
        return int(stream.native_handle)
    except (AttributeError, RuntimeError):
        stream.synchronize()
        return None


def streams(values: Iterable[Any]) -> list[tuple[int, int]]:
    """Of each device that the engine reaches and a value is on: its number, and the address of the caller's stream."""
    found: list[tuple[int, int]] = []
    for device, number in devices_of(values).items():
        stream = current_stream(device)
        if stream is not None:
            found.append((number, stream))
    return found


def devices_of(values: Iterable[Any]) -> dict[torch.device, int]:
    """The devices of tensors and storages among the values that the engine reaches, and the driver's numbers."""
    found: dict[torch.device, int] = {}
    for value in values:
        held = value.data if isinstance(value, PackedTensor) else value
        device = getattr(held, "device", None)
        if not isinstance(device, torch.device) or device.type in ("cpu", "meta") or device in found:
            continue
        address = pointer(held)
        number = _core.device_of(address) if address != 0 else None
        if number is not None:
            found[device] = number
    return found


def snapshot_allocator(values: Iterable[Any]) -> _core.Allocator | None:
    """Memory from torch's allocator for copies of these; None where they are on several devices, or on none."""
    devices = devices_of(values)
    return _allocator(*devices.popitem()) if len(devices) == 1 else None


def copied_to_host(memory: torch.Tensor, source: torch.Tensor) -> None:
    """Copies bytes that lie in a row in both, by pinned memory where they come from a device."""
    if memory.nbytes == 0:
        return
    if source.device.type != "cpu" and is_reachable(source):
        settle(source.device)
        _core.copy_to_host(memory.data_ptr(), source.data_ptr(), source.nbytes)
    else:
        memory.copy_(source)


def copied_to_device(memory: torch.Tensor, source: torch.Tensor) -> None:
    """The same in the other direction."""
    if memory.nbytes == 0:
        return
    if memory.device.type != "cpu" and source.device.type == "cpu" and is_reachable(memory):
        settle(memory.device)
        _core.copy_to_device(memory.data_ptr(), source.data_ptr(), source.nbytes)
    else:
        memory.copy_(source)


def _probe(device: torch.device) -> torch.Tensor:
    """A byte of the device's memory: one that can't be used says so here."""
    try:
        return torch.empty(1, dtype=torch.uint8, device=device)
    except torch.cuda.OutOfMemoryError:
        raise
    except (AssertionError, ImportError, RuntimeError) as problem:  # the first two where torch is without the device
        raise UnsupportedError(f"the device {str(device)!r} can't be used: {_reason(device, problem)}") from problem


def _reason(device: torch.device, problem: Exception) -> str:
    count = getattr(getattr(torch, device.type, None), "device_count", lambda: 0)()
    if device.index is None or not 0 < count <= device.index:
        line = str(problem).partition("\n")[0]
        return line.partition(". ")[0] if isinstance(problem, NotImplementedError) else line  # an essay on backends
    return f"there is only {device.type}:0" if count == 1 else f"there are {device.type}:0 to {device.type}:{count - 1}"


def _dlpack_type(device: torch.device) -> int | None:
    """What DLPack calls this kind of device; None for those whose memory no driver that we know can have given."""
    if device.type == "cuda":
        return 10 if torch.version.hip else 2
    named = getattr(torch._C, "_get_privateuse1_backend_name", lambda: _OWN_BACKEND)()
    return 12 if device.type == named else None


def _allocator(device: torch.device, number: int) -> _core.Allocator | None:
    kind = _dlpack_type(device)
    if kind is None or device.index is None:
        return None
    give = _give_shared if _is_unified(number) else _give
    return _core.Allocator(partial(give, device, number, kind), (kind, device.index))


def _is_unified(number: int) -> bool:
    return any(device["unified"] for device in _core.list_devices() if device["number"] == number)


def _give(device: torch.device, number: int, _kind: int, nbytes: int) -> tuple[int, Any, int, int | None]:
    """Memory from torch's allocator, which hands out again what work that is queued may still use."""
    memory = torch.empty(nbytes, dtype=torch.uint8, device=device)
    return memory.data_ptr(), memory, number, current_stream(device)


def _give_shared(device: torch.device, number: int, kind: int, nbytes: int) -> tuple[int, Any, int, int | None]:
    """Memory that the device and the host both reach: bytes are read to where they belong."""
    memory = _core.allocate_on_device(number, nbytes, (kind, device.index))
    return memory.address, memory, number, None


def _build_on(device: torch.device, memories: Sequence[_core.Memory], rows: Iterable[Row]) -> dict[str, Any]:
    return build(memories, rows, device)


def _build_and_move(device: torch.device, memories: Sequence[_core.Memory], rows: Iterable[Row]) -> dict[str, Any]:
    return {name: _move(tensor, device) for name, tensor in build(memories, rows).items()}


def _move(tensor: Any, device: torch.device) -> Any:
    if isinstance(tensor, PackedTensor):
        return tensor._replace(data=tensor.data.to(device))
    return tensor.to(device)
