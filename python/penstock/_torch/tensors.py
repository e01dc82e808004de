"""Tensors of torch: made of what was loaded, written, and loaded into."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.dlpack import from_dlpack

from .. import _core
from .._collector import GarbageCollectionPaused
from .._dtypes import BITS, TORCH_NAMES
from .._frameworks import PackedTensor, Place, Source
from ..errors import ArgumentError, IoError, UnsupportedError
from .dtensors import device_for, is_distributed, joined, local_part, local_tensor

if TYPE_CHECKING:
    from .._frameworks import Info, Row
    from .._indexing import Basic

# Older versions of torch lack some of the narrow types.
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, torch_name) for name, torch_name in TORCH_NAMES.items() if hasattr(torch, torch_name)
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

# Other classes may have their elements elsewhere.
_OVER_STORAGE = (torch.Tensor, torch.nn.Parameter)

# What from_dlpack has taken since the oldest torch that penstock works with.
_DLPACK = frozenset(("BOOL", "U8", "I8", "I16", "I32", "I64", "F16", "BF16", "F32", "F64", "C64", "C128"))


def require(infos: Callable[[], Iterable[Info]]) -> None:
    """Every type of a file has a form here."""


def build(memories: Sequence[_core.Memory], rows: Iterable[Row], device: torch.device | str = "cpu") -> dict[str, Any]:
    """Tensors by name. Each has a storage of its own: saving or copying one does not drag its neighbours along."""
    with GarbageCollectionPaused():
        return {row[0]: _tensor(memories, device, *row[1:]) for row in rows}


def _tensor(
    memories: Sequence[_core.Memory],
    device: torch.device | str,
    dtype_name: str,
    shape: tuple[int, ...],
    memory: int,
    offset: int,
    nbytes: int,
) -> Any:
    dtype = DTYPES.get(dtype_name)
    if dtype is None or BITS[dtype_name] < 8:
        place = None if nbytes == 0 else memories[memory]
        return _narrow(dtype, dtype_name, shape, place, offset, nbytes, device)
    if nbytes == 0:
        return torch.empty(shape, dtype=dtype, device=device)
    return view(memories[memory], dtype_name, shape, offset, nbytes)


def view(memory: _core.Memory, dtype_name: str, shape: tuple[int, ...], offset: int, nbytes: int) -> torch.Tensor:
    """A tensor that is all of its storage and nobody's view, over part of a memory that it keeps."""
    if dtype_name in _DLPACK:  # a quarter of the time
        return from_dlpack(memory.capsule(dtype_name, shape, offset))
    return elements(memory, DTYPES[dtype_name], shape, offset, nbytes)


def elements(
    memory: _core.Memory, dtype: torch.dtype, shape: tuple[int, ...], offset: int, nbytes: int
) -> torch.Tensor:
    """The same of any type, whose shape is counted in torch's elements."""
    if not memory.is_on_host:
        data = from_dlpack(memory.capsule("U8", (nbytes,), offset))
        return data if dtype is torch.uint8 and shape == (nbytes,) else over(data.untyped_storage(), dtype, shape)
    tensor = torch.frombuffer(memory, dtype=dtype, count=nbytes // dtype.itemsize, offset=offset)
    # resize_ keeps the storage and, unlike view(), leaves a tensor that is nobody's view.
    return tensor if len(shape) == 1 else tensor.resize_(shape)


def over(storage: torch.UntypedStorage, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A contiguous tensor from the first byte of a storage on."""
    tensor: Any = torch.empty(0, dtype=dtype, device=storage.device)
    made: torch.Tensor = tensor.set_(storage, 0, shape)
    return made


def _narrow(
    dtype: torch.dtype | None,
    dtype_name: str,
    shape: tuple[int, ...],
    memory: _core.Memory | None,
    offset: int,
    nbytes: int,
    device: torch.device | str,
) -> Any:
    """F4 as torch packs it, two elements in one of its own; other sub-byte types as bytes."""
    element, packed = _packing(dtype, shape, nbytes)
    if memory is None:
        data = torch.empty(packed, dtype=element, device=device)
    else:
        data = elements(memory, element, packed, offset, nbytes)
    return data if element is dtype else PackedTensor(dtype_name, shape, data)


def _packing(dtype: torch.dtype | None, shape: tuple[int, ...], nbytes: int) -> tuple[torch.dtype, tuple[int, ...]]:
    """The elements that a tensor of a sub-byte type has in torch, and their shape."""
    if dtype is not None and len(shape) > 0 and shape[-1] % 2 == 0:
        return dtype, (*shape[:-1], shape[-1] // 2)
    return torch.uint8, (nbytes,)


def from_bytes(data: torch.Tensor, dtype_name: str, shape: tuple[int, ...]) -> Any:
    """What a load would give, over the storage of a tensor of bytes that is all of it."""
    dtype = DTYPES.get(dtype_name)
    if dtype is not None and BITS[dtype_name] >= 8:
        return over(data.untyped_storage(), dtype, shape)
    element, packed = _packing(dtype, shape, data.numel())
    made = over(data.untyped_storage(), element, packed)
    return made if element is dtype else PackedTensor(dtype_name, shape, made)


def pick(tensor: Any, basic: Basic) -> Any:
    """torch has no negative steps: those dimensions are turned round first."""
    flipped = [axis for axis, step in enumerate(basic.steps) if step < 0]
    if flipped:
        tensor = tensor.flip(flipped)
    return tensor[basic.picks(absolute=True)]


def source(name: str, value: Any) -> Source | None:
    """How to write a torch tensor; None when the value is none."""
    if not isinstance(value, torch.Tensor):
        return None
    tensor = _dense(name, value)
    dtype = NAMES.get(tensor.dtype)
    if dtype is None:
        raise UnsupportedError(f"{name}: {tensor.dtype} can't be saved")
    if not is_reachable(tensor):
        if BITS[dtype] >= 8:
            return converted_source(name, tensor, tensor.dtype)
        tensor = tensor.cpu()
    shape = tuple(tensor.shape)
    strides = None
    if not tensor.is_contiguous():
        if dtype == "F4":
            tensor = tensor.contiguous()
        else:
            width = tensor.element_size()
            strides = tuple(stride * width for stride in tensor.stride())
    if dtype == "F4":
        shape = _unpacked_shape(shape)
    return Source(dtype, shape, _address(name, tensor), strides, tensor)


def is_reachable(tensor: torch.Tensor) -> bool:
    """Whether the engine reaches this tensor's memory itself: the host's, or of a device that it knows."""
    if tensor.device.type == "cpu" or tensor.numel() == 0:
        return True
    address = pointer(tensor)
    return address != 0 and _core.device_of(address) is not None


def from_any(value: Any) -> torch.Tensor:
    """A tensor over the memory of another library's, which has DLPack."""
    return from_dlpack(value)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether it has elements in memory of its own, of whatever device."""
    if tensor.layout is not torch.strided or hasattr(tensor, "__tensor_flatten__"):
        return False
    return not (tensor.is_nested or tensor.is_quantized or tensor.is_meta)


def describe(tensor: torch.Tensor) -> str:
    where = "" if tensor.device.type == "cpu" else f" on the {tensor.device.type} device"
    layout = "" if tensor.layout is torch.strided else f"{str(tensor.layout).removeprefix('torch.')} "
    return f"a {layout}tensor of {tensor.dtype}{where}"


def converted_source(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> Source:
    """How to write a tensor of any device as elements of `dtype`, piece by piece."""
    require_memory(tensor, name)
    tensor = tensor.detach().resolve_conj().resolve_neg()
    settle(tensor.device)
    return Source(NAMES[dtype], tuple(tensor.shape), 0, None, tensor, _Pieces(name, tensor, dtype).read)


def settle(device: torch.device) -> None:
    """Waits for what the caller has queued: the engine's threads copy on streams of their own, which don't."""
    current_stream = getattr(getattr(torch, device.type, None), "current_stream", None)
    if device.type != "cpu" and current_stream is not None:
        current_stream(device).synchronize()


class _Pieces:
    """A tensor that comes to the host's memory, and to its type there, while it is written."""

    def __init__(self, name: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
        self._name = name
        self._tensor = tensor
        self._dtype = dtype

    def read(self, offset: int, nbytes: int, address: int) -> None:
        width = self._dtype.itemsize
        memory = (ctypes.c_ubyte * nbytes).from_address(address)
        try:
            piece = _elements(self._tensor, offset // width, nbytes // width)
            torch.frombuffer(memory, dtype=self._dtype).copy_(piece)
        except RuntimeError as problem:
            raise self._explain(problem) from problem

    def _explain(self, problem: RuntimeError) -> Exception:
        tensor = self._tensor
        # On the CPU nothing else can go wrong; devices fail in many ways, which are theirs to tell.
        has_no_kernel = isinstance(problem, NotImplementedError) or tensor.device.type == "cpu"
        if tensor.dtype != self._dtype and has_no_kernel:
            return ArgumentError(f"{self._name}: {describe(tensor)} can't be converted to {self._dtype}")
        reason = str(problem).partition("\n")[0]
        return IoError(f"{self._name}: {describe(tensor)} can't be read: {reason}")


def _elements(tensor: torch.Tensor, begin: int, count: int) -> torch.Tensor:
    """Some of a tensor's elements in a row. Where they don't lie so, few more than these are copied."""
    while tensor.dim() > 1 and not tensor.is_contiguous():
        row = tensor.numel() // tensor.shape[0]
        first, last = begin // row, -(-(begin + count) // row)
        tensor, begin = tensor.narrow(0, first, last - first), begin - first * row
        if last - first > 1:
            break
        tensor = tensor.select(0, 0)
    return tensor.reshape(-1).narrow(0, begin, count)


def _unpacked_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in elements of what torch counts in pairs."""
    return (*shape[:-1], shape[-1] * 2) if shape else (2,)


def _dense(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as plain memory of its device; refused when it has none."""
    if tensor.layout is not torch.strided:
        raise UnsupportedError(
            f"{name}: a {str(tensor.layout).removeprefix('torch.')} tensor can't be saved; call to_dense()"
        )
    if tensor.is_nested:
        raise UnsupportedError(f"{name}: a nested tensor can't be saved; save its parts")
    if tensor.is_quantized:
        raise UnsupportedError(f"{name}: a quantised tensor can't be saved; call dequantize() or int_repr()")
    if tensor.is_meta:
        raise UnsupportedError(f"{name}: a tensor on the meta device has no data")
    if hasattr(tensor, "__tensor_flatten__"):
        raise _wrapper(name, tensor)
    require_memory(tensor, name)
    return tensor.detach().resolve_conj().resolve_neg()


def require_memory(tensor: torch.Tensor, name: str | None = None) -> None:
    """Refuses to save a tensor some of whose elements have no memory."""
    if lack := _lack_of_memory(tensor):
        raise UnsupportedError(f"{'' if name is None else f'{name}: '}a tensor that {lack} can't be saved")


def _lack_of_memory(tensor: torch.Tensor) -> str | None:
    """What is wrong with a tensor that reaches past its storage: torch lets others shrink it, FSDP to nothing."""
    if type(tensor) not in _OVER_STORAGE or tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta:
        return None
    count = tensor.numel()
    if count > 0 and not tensor.is_contiguous():
        count = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    needed = (tensor.storage_offset() + count) * tensor.element_size() if count > 0 else 0
    there = tensor.untyped_storage().nbytes()
    return f"needs a storage of {needed} bytes and has one of {there}" if there < needed else None


def _address(name: str, tensor: torch.Tensor) -> int:
    address = pointer(tensor)
    if address == 0 and tensor.numel() > 0:
        raise _wrapper(name, tensor)
    return address


def _wrapper(name: str, tensor: torch.Tensor) -> UnsupportedError:
    return UnsupportedError(f"{name}: a {type(tensor).__name__} has no memory of its own")


def pointer(tensor: Any) -> int:
    """Where the memory of a tensor or storage is; 0 for a tensor that only wraps others."""
    try:
        return int(tensor.data_ptr())
    except RuntimeError:
        return 0


def state_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The tensors of a module's state, themselves, by name."""
    state = module.state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def place(name: str, value: Any) -> Place | None:
    """A tensor that can be loaded into; None when the value is none."""
    if not isinstance(value, torch.Tensor):
        return None
    if is_distributed(value):
        return _distributed_place(name, value)
    if torch.nn.parameter.is_lazy(value) or value.is_nested:
        raise UnsupportedError(f"{name} has no shape yet: run the module once before it is loaded")
    dtype = NAMES.get(value.dtype)
    if dtype is None:
        raise UnsupportedError(f"{name}: no file holds {value.dtype}")
    shape = tuple(value.shape)
    if dtype == "F4":
        shape = _unpacked_shape(shape)
    identity: Any = id(value)
    address = None
    where = None if value.device.type in ("cpu", "meta") else value.device
    memory = 0 if value.is_meta or value.layout is not torch.strided else pointer(value)
    if memory != 0:
        identity = (value.device, memory, shape, value.stride(), dtype)
        plain = value.is_contiguous() and not value.is_neg() and not value.is_conj()
        if plain and is_reachable(value):
            address = memory
    nbytes = value.numel() * value.element_size()
    return Place(value, dtype, shape, nbytes, identity, address, _obstacle(value), value.is_meta, where)


def _distributed_place(name: str, value: Any) -> Place:
    """A tensor that ranks share: what this one has of it is loaded."""
    local = local_tensor(value)
    own = place(name, local)
    if own is None or own.dtype == "F4":
        raise UnsupportedError(f"{name}: a DTensor of {value.dtype} can't be loaded into")
    if own.on_meta:
        own = own._replace(device=device_for(value), identity=id(value))
    return own._replace(value=value, shape=tuple(value.shape), part=local_part(name, value), local=local)


def _obstacle(value: torch.Tensor) -> str | None:
    """Why a tensor can't be written to."""
    if value.is_meta:
        return "is on the meta device, which needs assign=True"
    if value.layout is not torch.strided:
        return f"is a {str(value.layout).removeprefix('torch.')} tensor, which needs assign=True"
    if lack := _lack_of_memory(value):
        return f"{lack}, which needs assign=True"
    if any(size > 1 and stride == 0 for size, stride in zip(value.shape, value.stride(), strict=True)):
        return "is an expanded tensor, several of whose elements are one in memory, which needs assign=True"
    return None


def replacement(old: torch.Tensor, loaded: Any) -> Any:
    """The loaded tensor in the role of the old one: its device, and a parameter where that was one."""
    if not isinstance(loaded, torch.Tensor):
        return loaded
    if is_distributed(old):
        loaded = joined(old, loaded)
        return torch.nn.Parameter(loaded, old.requires_grad) if isinstance(old, torch.nn.Parameter) else loaded
    if old.device.type not in ("cpu", "meta"):
        loaded = loaded.to(old.device)
    if isinstance(old, torch.nn.Parameter):
        return torch.nn.Parameter(loaded, requires_grad=old.requires_grad)
    return loaded.requires_grad_(old.requires_grad)


def mark_changed(value: torch.Tensor) -> None:
    """Tells autograd that the memory was written to, as an in-place operation would."""
    torch.autograd.graph.increment_version(local_tensor(value) if is_distributed(value) else value)


def copy_into(old: torch.Tensor, loaded: torch.Tensor) -> None:
    """Copies where the memory could not be read into."""
    # In this order: inference_mode(False) turns the gradients on.
    with torch.inference_mode(old.is_inference()), torch.no_grad():
        old.copy_(loaded)
