"""FilesBufferOnDevice: the tensors of files that the ranks of a group have read, given to whoever is to have them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError, DistributedError, UnsupportedError
from ._read import in_turns, names_of
from .frameworks import FrameworkOpBase, ProcessGroupBase, TensorBase
from .st_types import Device, DeviceType, DType

if TYPE_CHECKING:
    import torch

    from ._exchange import Exchange, Wanted
    from ._exchange_group import RankGroup
    from ._read import FileTensors
    from .common import TensorFrame

# Tensors up to this size go in one collective with those that follow them in their file, up to a bundle.
SMALL_BYTES = 4 * 2**20
# The same where ranks want parts, and all of each would go to every rank over a network.
SMALL_SENT_BYTES = 256 * 2**10
BUNDLE_BYTES = 16 * 2**20
_AHEAD_BYTES = 128 * 2**20  # of the bundles of all ranks' files

_WHOLE = -1


class FilesBufferOnDevice:
    """Tensors of files that `SafeTensorsFileLoader.copy_files_to_device` loads.

    In a group every rank makes the same calls in the same order: get_tensor, get_sharded, push_tensor, get_multi_cols
    and as_dict are collective. Ranks that call different things, or whose peers fail or die, get an error that names
    the rank and the cause. Each such call costs one small all-reduce beside the data; small tensors that follow each
    other in a file come with the first of them, and as_dict moves all small ones of a file together.

    Tensors own their memory and stay valid after `close`. In one process the same tensor is given each time. In a group
    a tensor's reader gives up its memory once it was delivered; asked for again, it is read again.

    rank_loaders: of each rank, its files. pg, framework: as the loader has them. keep_tensor: which tensors exist.
    auto_mem_delete: False keeps delivered tensors too.
    """

    def __init__(
        self,
        rank_loaders: dict[int, list[FileTensors]],
        pg: ProcessGroupBase[Any],
        framework: FrameworkOpBase[Any, Any],
        auto_mem_delete: bool = True,
        keep_tensor: Callable[[str], bool] | None = None,
        borrowed_tensors: bool = False,
        *,
        device: Device | None = None,
        dtype: DType | None = None,
        group: RankGroup | None = None,
        number: int = 0,
        disable_cache: bool = True,
    ) -> None:
        self.rank_loaders = rank_loaders
        self.pg = pg
        self.framework = framework
        self.borrowed_tensors = borrowed_tensors
        self.auto_mem_delete = auto_mem_delete and pg.size() > 1
        self.key_to_rank_lidx = _index(rank_loaders, keep_tensor)
        self._device = Device() if device is None else device
        self._dtype = dtype
        self._group = None if group is None else group.hold()
        self._number = number
        self._exchange: Exchange | None = None  # once the ranks have agreed on the files
        self._ahead: dict[str, torch.Tensor] = {}  # came whole with another tensor, and was not asked for yet
        self._ahead_bytes = 0
        self._is_split = False  # get_sharded has asked the others
        self._delivered: set[str] = set()
        self._next: dict[str, str] = {}  # of each tensor, the one behind it in its file
        self._cache: dict[tuple[str, int], Any] | None = None if disable_cache or group is None else {}

    def close(self) -> None:
        """Lets go of what is left. Tensors that were handed out stay valid. It may be called again."""
        for files in self.rank_loaders.values():
            for file in files:
                file.free_dev_ptrs()
        self.rank_loaders = {}
        self._ahead = {}
        self._cache = None
        if self._group is not None:
            self._group.release()
            self._group = None

    def get_filename(self, tensor_name: str) -> str:
        """The file that holds a tensor."""
        return self._file(tensor_name).metadata.src

    def get_shape(self, tensor_name: str) -> list[int]:
        """A tensor's shape, as its file says it."""
        return self._frame(tensor_name).shape

    def get_tensor(self, tensor_name: str, device: Device | None = None, dtype: DType = DType.AUTO) -> Any:
        """A whole tensor, on every rank. In a group it is broadcast by the rank that reads it."""
        return self.get_tensor_wrapped(tensor_name, device, dtype).get_raw()

    def get_tensor_wrapped(
        self, tensor_name: str, device: Device | None = None, dtype: DType = DType.AUTO
    ) -> TensorBase:
        """The same, in the wrapper of the framework."""
        return self.get_sharded_wrapped(tensor_name, _WHOLE, device, dtype)

    def get_sharded(self, tensor_name: str, dim: int, device: Device | None = None, dtype: DType = DType.AUTO) -> Any:
        """This rank's part of a tensor that is split in dimension `dim`; with -1 all of it, on every rank.

        Parts are blocks of the length divided by the number of ranks, rounded up: the last ranks may get less, or
        nothing.
        """
        return self.get_sharded_wrapped(tensor_name, dim, device, dtype).get_raw()

    def get_sharded_wrapped(
        self, tensor_name: str, dim: int, device: Device | None = None, dtype: DType = DType.AUTO
    ) -> TensorBase:
        """The same, in the wrapper of the framework."""
        raw = self._take_local(tensor_name) if self._group is None else self._share(self._group, tensor_name, dim)
        return self._wrapped(tensor_name, raw).to(device=device, dtype=dtype)

    def push_tensor(
        self, tensor_name: str, dst_rank: int, device: Device | None = None, dtype: DType = DType.AUTO
    ) -> Any | None:
        """A whole tensor on rank `dst_rank`, and None on the others. All ranks of the group call it."""
        group = self._group
        raw = self._take_local(tensor_name) if group is None else self._push(group, tensor_name, dst_rank)
        return None if raw is None else self._wrapped(tensor_name, raw).to(device=device, dtype=dtype).get_raw()

    def get_multi_cols(
        self, tensor_names: list[str], dim: int, device: Device | None = None, dtype: DType = DType.AUTO
    ) -> TensorBase:
        """This rank's parts of several tensors, side by side in dimension `dim`, in the order of the names."""
        if not tensor_names:
            raise ArgumentError("get_multi_cols needs the name of a tensor")
        if self._group is None:
            parts = [self._wrapped(name, self._take_local(name)) for name in tensor_names]
        else:
            shared = self._share_all(self._group, "get_multi_cols", [(name, dim) for name in tensor_names])
            parts = [self._wrapped(name, raw) for name, raw in zip(tensor_names, shared, strict=True)]
        self._check_columns(tensor_names, dim)
        joined: TensorBase = self.framework.concat_tensors(parts, dim=dim)
        return joined.to(device=device, dtype=dtype)

    def as_dict(self, tensor_shard_dim: Mapping[str, int]) -> dict[str, TensorBase]:
        """This rank's parts of many tensors: {name: dim}. Small ones that lie in one file are moved together."""
        names = list(tensor_shard_dim)
        if self._group is None:
            return {name: self._wrapped(name, self._take_local(name)) for name in names}
        shared = self._share_all(self._group, "as_dict", list(tensor_shard_dim.items()))
        return {name: self._wrapped(name, raw) for name, raw in zip(names, shared, strict=True)}

    def iter_local_tensors(self, tensor_names: Iterable[str]) -> Iterator[tuple[str, Any]]:
        """Yields (name, tensor) in a single process."""
        if self.pg.size() != 1:
            raise DistributedError("iter_local_tensors is for a single process")
        for name in tensor_names:
            yield name, self._wrapped(name, self._take_local(name)).get_raw()

    # In one process.

    def _take_local(self, name: str) -> Any:
        return self._file(name).take(name, keep=True)

    # In a group.

    def _share(self, group: RankGroup, name: str, dim: int) -> Any:
        """One tensor's part. Small ones that follow a small one come with it, whole, and are cut when asked for."""
        call = f"get_sharded({name!r}, {dim})" if dim != _WHOLE else f"get_tensor({name!r})"
        cached = None if self._cache is None else self._cache.get((name, dim))
        if cached is not None:
            return cached.clone()
        if name in self._ahead:
            group.note(call)
            found = self._cut_ahead(self._wanted(name, dim))
        else:
            batch, (found, *others) = self._deliver(group, call, partial(self._bundle, name, dim))
            self._ahead.update((one.name, tensor) for one, tensor in zip(batch[1:], others, strict=True))
            self._ahead_bytes += sum(one.nbytes for one in batch[1:])
            self._is_split = self._is_split or dim != _WHOLE
            if dim != batch[0].dim:
                found = self._ready().cut(self._wanted(name, dim), found)
        if self._cache is not None:
            self._cache[name, dim] = found.clone()
        return found

    def _cut_ahead(self, wanted: Wanted) -> Any:
        self._ahead_bytes -= wanted.nbytes
        return self._ready().cut(wanted, self._ahead.pop(wanted.name))

    def _share_all(self, group: RankGroup, operation: str, requests: Sequence[tuple[str, int]]) -> list[Any]:
        """Parts of many, in bundles."""
        call = f"{operation} of {len(requests)} tensors"
        detail = repr(requests).encode() + self._detail()
        self._meet(group)
        wanted: list[Wanted] = group.together(call, lambda: [self._wanted(*request) for request in requests], detail)
        found = {number: self._cut_ahead(one) for number, one in enumerate(wanted) if one.name in self._ahead}
        numbers = [number for number in range(len(wanted)) if number not in found]
        parts: list[Any] = []
        for batch in self._batches([wanted[number] for number in numbers]):
            parts += self._deliver(group, call, partial(list, batch))[1]
        found.update(zip(numbers, parts, strict=True))
        return [found[number] for number in range(len(wanted))]

    def _push(self, group: RankGroup, name: str, destination: int) -> Any | None:
        call = f"push_tensor({name!r}, {destination})"

        def prepare() -> list[Wanted]:
            if not 0 <= destination < group.size:
                raise ArgumentError(f"{name}: there is no rank {destination}: the group has {group.size}")
            return [self._wanted(name, _WHOLE)]

        if name in self._ahead and 0 <= destination < group.size:
            group.note(call)
            found = self._cut_ahead(self._wanted(name, _WHOLE))
            return found if destination == group.rank else None
        self._meet(group)
        (wanted,), sources = group.together(call, partial(self._with_sources, prepare), self._detail())
        with group.reachable(call):
            pushed = self._ready().push(wanted, self._file(name).rank, destination, sources[0] if sources else None)
        self._delivered.add(name)
        return pushed

    def _deliver(
        self, group: RankGroup, call: str, prepare: Callable[[], list[Wanted]]
    ) -> tuple[list[Wanted], list[Any]]:
        """Moves tensors of one file, once all ranks have agreed on them and their reader has them."""
        self._meet(group)
        action = partial(self._with_sources, prepare)
        # Who shares a history has bundles of one length: a call that failed on some may have left them with others.
        batch, sources = group.together(call, action, lambda found: self._detail() + b" %d" % len(found[0]))
        with group.reachable(call):
            found = self._ready().deliver(batch, self._file(batch[0].name).rank, sources)
        self._delivered.update(one.name for one in batch)
        return batch, found

    def _with_sources(self, prepare: Callable[[], list[Wanted]]) -> tuple[list[Wanted], list[torch.Tensor] | None]:
        batch = prepare()
        return batch, self._sources(batch)

    def _detail(self) -> bytes:
        """What a call means beside its words: of which load it is."""
        return str(self._number).encode()

    def _meet(self, group: RankGroup) -> None:
        """Agrees on the files, once."""
        if self._exchange is not None:
            return
        from .._torch.devices import device as torch_device
        from ._exchange import Exchange

        files = [file.metadata for files in self.rank_loaders.values() for file in files]
        names = ", ".join(os.path.basename(metadata.src) for metadata in files[:8])
        more = f" and {len(files) - 8} more" if len(files) > 8 else ""
        call = f"copy_files_to_device of {names or 'no files'}{more}: {len(self.key_to_rank_lidx)} tensors"
        group.agree(call, self._fingerprint())
        place = "cuda" if self._device.type == DeviceType.GPU else self._device.type.value
        index = "" if self._device.index is None else f":{self._device.index}"
        self._exchange = Exchange(group, torch_device(place + index))

    def _ready(self) -> Exchange:
        if self._exchange is None:
            raise ArgumentError("the buffer was closed")
        return self._exchange

    def _fingerprint(self) -> bytes:
        """Of all that the ranks must have in common: the tensors, their types and shapes, and who has them."""
        digest = hashlib.blake2b(repr((self._dtype, self.auto_mem_delete)).encode())
        for name, place in self.key_to_rank_lidx.items():
            frame = self._frame(name)
            digest.update(repr((name, place, frame.dtype, frame.shape)).encode())
        return digest.digest()

    def _sources(self, batch: Sequence[Wanted]) -> list[torch.Tensor] | None:
        """The tensors, on the rank that reads them."""
        file = self._file(batch[0].name)
        if file.rank != self.pg.rank():
            return None
        found = [file.take(one.name, keep=not self.auto_mem_delete) for one in batch]
        for one, tensor in zip(batch, found, strict=True):
            if not hasattr(tensor, "data_ptr"):
                raise UnsupportedError(f"{one.name}: torch has no type for what this tensor holds")
        return found if self.auto_mem_delete else [tensor.clone() for tensor in found]

    def _wanted(self, name: str, dim: int) -> Wanted:
        from .._torch import DTYPES
        from ._exchange import Wanted, check_split

        frame = self._frame(name)
        kind = frame.dtype if self._dtype is None else self._dtype
        if kind.value not in DTYPES:
            raise UnsupportedError(f"{name}: this version of torch has no {kind.value}")
        shape, unit = tuple(frame.shape), 1
        if kind == DType.F4:
            if not shape or shape[-1] % 2:
                raise UnsupportedError(f"{name}: torch holds F4 in pairs, and the last of {list(shape)} is odd")
            shape, unit = (*shape[:-1], shape[-1] // 2), 2
        wanted = Wanted(name, DTYPES[kind.value], shape, dim, unit)
        check_split(wanted, self.pg.size())
        return wanted

    def _bundle(self, name: str, dim: int) -> list[Wanted]:
        """The tensor, and whole the small ones behind it in its file that were not delivered yet."""
        first = self._wanted(name, dim)
        is_sent = self._is_split and not self._ready().is_local
        small = SMALL_SENT_BYTES if is_sent else SMALL_BYTES
        room = min(BUNDLE_BYTES, _AHEAD_BYTES // self.pg.size(), _AHEAD_BYTES - self._ahead_bytes) - first.nbytes
        if not self.auto_mem_delete or first.nbytes > small or name in self._delivered:
            return [first]
        bundle = [self._wanted(name, _WHOLE)]
        with suppress(UnsupportedError):  # of a tensor that nobody has asked for yet
            for other in self._following(name):
                one = self._wanted(other, _WHOLE)
                room -= one.nbytes
                if one.nbytes > small or room < 0 or other in self._delivered:
                    break
                bundle.append(one)
        return bundle if len(bundle) > 1 else [first]

    def _following(self, name: str) -> Iterator[str]:
        """The tensors behind this one in its file."""
        if not self._next:
            last: dict[tuple[int, int], str] = {}
            for behind, place in self.key_to_rank_lidx.items():
                if place in last:
                    self._next[last[place]] = behind
                last[place] = behind
        following = self._next.get(name)
        while following is not None:
            yield following
            following = self._next.get(following)

    def _batches(self, wanted: Sequence[Wanted]) -> Iterator[list[Wanted]]:
        """Neighbours of one file that are small together; what is large goes alone."""
        batch: list[Wanted] = []
        total = 0
        for one in wanted:
            place = self.key_to_rank_lidx[one.name]
            is_small = one.nbytes <= SMALL_BYTES
            if batch and (
                not is_small or place != self.key_to_rank_lidx[batch[0].name] or total + one.nbytes > BUNDLE_BYTES
            ):
                yield batch
                batch, total = [], 0
            batch.append(one)
            total += one.nbytes
            if not is_small:
                yield batch
                batch, total = [], 0
        if batch:
            yield batch

    # Of either.

    def _file(self, name: str) -> FileTensors:
        if name not in self.key_to_rank_lidx:
            raise ArgumentError(f"{name} is in none of the files")
        rank, lidx = self.key_to_rank_lidx[name]
        if not self.rank_loaders:
            raise ArgumentError(f"{name}: the buffer was closed")
        return self.rank_loaders[rank][lidx]

    def _frame(self, name: str) -> TensorFrame:
        return self._file(name).metadata.tensors[name]

    def _check_columns(self, names: Sequence[str], dim: int) -> None:
        shapes = {tuple(size for axis, size in enumerate(self.get_shape(name)) if axis != dim) for name in names}
        if len(shapes) > 1:
            raise ArgumentError(f"{', '.join(names)}: the shapes differ beside dimension {dim}")

    def _wrapped(self, name: str, raw: Any) -> TensorBase:
        """A tensor in its framework's wrapper; what the exchange has moved is torch's."""
        kind = self._frame(name).dtype if self._dtype is None else self._dtype
        if self.framework.get_name() == "paddle":
            shared: TensorBase = self.framework.from_dlpack(raw, self._device, kind)
            return shared
        if self.framework.get_name() == "numpy" and self._group is not None:
            raw = _as_array(raw, kind.value)
        wrapped: TensorBase = self.framework.wrap_tensor(raw)
        return wrapped


def _index(
    rank_loaders: Mapping[int, Sequence[FileTensors]], keep: Callable[[str], bool] | None
) -> dict[str, tuple[int, int]]:
    """Of each tensor, its rank and which of the rank's files holds it.

    The first files of all ranks come first, tensor by tensor in turn, then the second ones.
    """
    found: dict[str, tuple[int, int]] = {}
    for turn in zip_longest(*(rank_loaders[rank] for rank in sorted(rank_loaders))):
        files = [file for file in turn if file is not None]
        places: dict[str, tuple[int, int]] = {}
        for file in files:
            for name in names_of(file.metadata, keep):
                if name in found or name in places:
                    raise ArgumentError(f"{file.metadata.src}: tensor {name!r} is in another file too")
                places[name] = (file.rank, file.lidx)
        order = in_turns((file.metadata, names_of(file.metadata, keep)) for file in files)
        found.update((name, places[name]) for name in order)
    return found


def _as_array(tensor: torch.Tensor, dtype: str) -> Any:
    """A NumPy array over a tensor of the host's, also of types that only ml_dtypes has."""
    from .._frameworks import PackedTensor
    from .._numpy import DTYPES
    from ._exchange import flat_bytes

    data = flat_bytes(tensor).numpy()
    if dtype not in DTYPES:
        shape = (*tensor.shape[:-1], tensor.shape[-1] * 2)
        return PackedTensor(dtype, shape, data)
    return data.view(DTYPES[dtype]).reshape(tuple(tensor.shape))
