"""LazyTensorFactory: one file of a load, for code that spreads its tensors over a group by itself.

Loaders here use penstock's own exchange, which names ranks that fail; these methods are plain collectives.
"""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError, UnknownTensorError
from .allocation import SharedDeviceAllocation
from .common import SafeTensorsMetadata
from .copier.base import CopierInterface, DummyDeviceBuffer
from .cpp import gds_device_buffer
from .frameworks import FrameworkOpBase, ProcessGroupBase, TensorBase
from .st_types import Device, DType


class LazyTensorFactory:
    """One file: `submit_io` and `wait_io` read it on its rank, the rest gives its tensors to the others."""

    def __init__(
        self,
        metadata: SafeTensorsMetadata,
        device: Device,
        rank: int,
        local_rank: bool,
        factory_idx_bits: int,
        lidx: int,
        copier: CopierInterface | None,
        framework: FrameworkOpBase[Any, Any],
        disable_cache: bool = True,
    ) -> None:
        self.metadata = metadata
        self.device = device
        self.rank = rank
        self.factory_idx_bits = factory_idx_bits
        self.lidx = lidx
        self.copier = copier if local_rank else None
        self.framework = framework
        self.disable_cache = disable_cache
        self.tensors: dict[str, TensorBase] = {}
        self.shuffled: dict[str, TensorBase] = {}
        self.gbuf: gds_device_buffer | None = None
        self.allocation: SharedDeviceAllocation | None = None
        self.next_tag = 1

    def submit_io(self, use_buf_register: bool, max_copy_block_size: int, allow_inflight: bool = False) -> None:
        """Begins to read, on the rank that reads."""
        if self.copier is not None:
            self.gbuf = self.copier.submit_io(use_buf_register, max_copy_block_size)

    def wait_io(self, dtype: DType = DType.AUTO, noalign: bool = False, borrowed_tensors: bool = False) -> None:
        """Waits for the tensors. `borrowed_tensors`: they don't keep the memory of a copier that has one."""
        if self.copier is None or self.gbuf is None:
            return
        owns_memory = not isinstance(self.gbuf, DummyDeviceBuffer)
        self.allocation = SharedDeviceAllocation(self.gbuf, self.framework, self.device, owns_memory=owns_memory)
        owner = None if borrowed_tensors else self.allocation
        self.tensors = self.copier.wait_io(self.gbuf, dtype=dtype, noalign=noalign, owner=owner)
        self.copier = None

    def push(self, pg: ProcessGroupBase[Any], tensor_name: str, dst_rank: int, src_rank: int) -> TensorBase | None:
        """The tensor on rank `dst_rank`, None on the others."""
        if pg.size() == 1:
            return self._own(tensor_name)
        tag = self._tag()
        if pg.rank() == src_rank:
            own = self._own(tensor_name).clone().detach()
            if src_rank == dst_rank:
                return own
            pg.send(own, dst_rank, tag=tag)
        elif pg.rank() == dst_rank:
            received = self._empty(self.metadata.tensors[tensor_name].shape, tensor_name)
            pg.recv(received, src_rank, tag=tag)
            return received
        return None

    def shuffle(self, pg: ProcessGroupBase[Any], tensor_name: str, dim: int) -> TensorBase:
        """This rank's part of a tensor that is split in `dim`; with -1 all of it, on every rank."""
        if tensor_name in self.shuffled:
            return self.shuffled[tensor_name].clone().detach()
        if pg.size() == 1:
            return self._own(tensor_name)
        if dim == -1:
            made = self._broadcast(pg, tensor_name)
        else:
            parts = [self._part(tensor_name, dim, rank, pg) for rank in range(pg.size())] if self._is_here(pg) else []
            made = self._scatter(pg, self._shape(tensor_name, dim, pg), [tensor_name], dim, parts)
        if not self.disable_cache:
            self.shuffled[tensor_name] = made
        return made

    def shuffle_multi_cols(self, pg: ProcessGroupBase[Any], tensor_names: list[str], dim: int) -> TensorBase:
        """This rank's parts of several tensors, side by side in `dim`."""
        shapes = [self._shape(name, dim, pg) for name in tensor_names]
        others = {tuple(size for axis, size in enumerate(shape) if axis != dim) for shape in shapes}
        if len(others) != 1:
            raise ArgumentError(f"{', '.join(tensor_names)}: the shapes differ beside dimension {dim}")
        joined = []
        if self._is_here(pg):
            for rank in range(pg.size()):
                parts = [self._part(name, dim, rank, pg) for name in tensor_names]
                joined.append(self.framework.concat_tensors(parts, dim=dim))
        if pg.size() == 1:
            only: TensorBase = joined[0]
            return only
        shape = list(shapes[0])
        shape[dim] = sum(each[dim] for each in shapes)
        return self._scatter(pg, shape, tensor_names, dim, joined)

    def free_dev_ptrs(self) -> None:
        """Lets go of what it has; tensors that were handed out stay valid. It may be called again."""
        copier, self.copier = self.copier, None
        if copier is not None:
            copier.finish_io()
        self.tensors = {}
        self.shuffled = {}
        gbuf, self.gbuf = self.gbuf, None
        allocation, self.allocation = self.allocation, None
        if allocation is not None:
            allocation.release()
        elif gbuf is not None and not isinstance(gbuf, DummyDeviceBuffer):
            self.framework.free_tensor_memory(gbuf, self.device)

    def _is_here(self, pg: ProcessGroupBase[Any]) -> bool:
        return self.rank == pg.rank()

    def _own(self, name: str) -> TensorBase:
        if name not in self.tensors:
            raise UnknownTensorError(f"{self.metadata.src}: tensor {name!r} is not read, or was let go")
        return self.tensors[name]

    def _empty(self, shape: list[int], name: str) -> TensorBase:
        made: TensorBase = self.framework.get_empty_tensor(shape, self.metadata.tensors[name].dtype, self.device)
        return made

    def _broadcast(self, pg: ProcessGroupBase[Any], name: str) -> TensorBase:
        if self._is_here(pg):
            whole = self._own(name).clone().detach()
        else:
            whole = self._empty(self.metadata.tensors[name].shape, name)
        pg.broadcast(whole, self.rank)
        return whole

    def _scatter(
        self, pg: ProcessGroupBase[Any], shape: list[int], names: list[str], dim: int, parts: list[TensorBase]
    ) -> TensorBase:
        """Each rank's part. Collectives want parts of one size: others are sent one by one."""
        made = self._empty(shape, names[0])
        parts = [part.contiguous() for part in parts]
        if all(self.metadata.tensors[name].shape[dim] % pg.size() == 0 for name in names):
            pg.scatter(made, scatter_list=parts, src=self.rank)
            return made
        tag = self._tag()
        if not self._is_here(pg):
            if made.get_nbytes() > 0:
                pg.recv(made, self.rank, tag=tag)
            return made
        for rank, part in enumerate(parts):
            if rank != self.rank and part.get_nbytes() > 0:
                pg.send(part, rank, tag=tag)
        return parts[self.rank].clone().detach()

    def _tag(self) -> int:
        """Of the next message: the same on every rank, and another for each file and call."""
        tag = (self.next_tag << self.factory_idx_bits) + self.lidx
        self.next_tag += 1
        return tag

    def _range(self, name: str, dim: int, rank: int, pg: ProcessGroupBase[Any]) -> tuple[int, int]:
        """Blocks of the length divided by the ranks, rounded up."""
        size = self.metadata.tensors[name].shape[dim]
        block = -(-size // pg.size())
        return min(rank * block, size), min((rank + 1) * block, size)

    def _shape(self, name: str, dim: int, pg: ProcessGroupBase[Any]) -> list[int]:
        shape = list(self.metadata.tensors[name].shape)
        start, stop = self._range(name, dim, pg.rank(), pg)
        shape[dim] = stop - start
        return shape

    def _part(self, name: str, dim: int, rank: int, pg: ProcessGroupBase[Any]) -> TensorBase:
        frame = self.metadata.tensors[name]
        start, stop = self._range(name, dim, rank, pg)
        index = (slice(None),) * dim + (slice(start, stop),)
        return self._own(name)[self.framework.get_native_slices(frame.dtype, frame.shape, index)]
