"""SafeTensorsFileLoader and fastsafe_open: which rank reads which files, and where their tensors go."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Union

from ..errors import ArgumentError, UnknownTensorError, UnsupportedError
from ._read import FileTensors, OwnFiles, in_turns, names_of
from .common import SafeTensorsMetadata, TensorFrame
from .file_buffer import FilesBufferOnDevice
from .frameworks import TensorBase, get_framework_op
from .st_types import Device, DeviceType, DType

if TYPE_CHECKING:
    from ._exchange_group import RankGroup

_GIB = 2**30

# Names of ways to copy a file. All mean the engine here, which uses GPUDirect Storage where it is there.
_ENGINE = frozenset(("gds", "fgds", "nogds", "unified", "dstorage", "3fs"))

Filenames = Union[str, "os.PathLike[str]", list[str], dict[int, list[str]]]


class BaseSafeTensorsFileLoader:
    """Files, spread over the ranks of a group, that are loaded together.

    Every rank makes the loader, adds the same files and makes the same calls in the same order. A rank that fails tells
    the others, whose next collective call raises an error that names the rank and the cause.

    pg: a torch process group; None or a SingleGroup for one process.
    device: where tensors go.
    copier_type: accepted: all files are read by penstock's engine, with GPUDirect Storage where there is one.
    set_numa: accepted; the engine does not move its threads.
    disable_cache: False keeps what a collective call gave, and a repeated call is answered with a copy of that.
    framework: "pytorch" ("pt"), "numpy" or "paddle".
    timeout: seconds that another rank is waited for; by default $PENSTOCK_TIMEOUT, else 300.
    """

    @classmethod
    def process_extension_config(cls, ext_config: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """The arguments of the constructor that a configuration's extension stands for. Subclasses may rename some."""
        return dict(ext_config)

    def __init__(
        self,
        pg: Any | None,
        device: Device,
        copier_type: str,
        set_numa: bool = True,
        disable_cache: bool = True,
        framework: str = "pytorch",
        timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        if copier_type not in _ENGINE:
            raise ArgumentError(f"there is no copier {copier_type!r}: choose one of {', '.join(sorted(_ENGINE))}")
        self.framework = get_framework_op(framework)
        self.pg = self.framework.get_process_group(pg)
        self.device = device
        self.meta: dict[str, tuple[SafeTensorsMetadata, int]] = {}
        self.frames: dict[str, TensorFrame] = {}
        self.disable_cache = disable_cache
        self._tensor_filter: Callable[[str], bool] | None = None
        self._metadata_cache: dict[str, SafeTensorsMetadata] = {}
        self._chunk_plan: dict[str, tuple[set[str], list[tuple[int, int]], int | None]] = {}
        self._is_closed = False
        self._loads = 0
        self._group = self._make_group(timeout)

    def init_numa(self, set_numa: bool = True) -> None:
        """Nothing: the engine does not move its threads."""

    def reset(self) -> None:
        """Forgets the files, so that others can be added."""
        self.frames = {}
        self.meta = {}
        self._chunk_plan = {}

    def close(self) -> None:
        """Forgets the files and ends the loader; tensors and buffers stay. It may be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        self.reset()
        self._metadata_cache.clear()
        if self._group is not None:
            self._group.release()

    def get_keys(self) -> list[str]:
        """The names of all tensors of all files, without those that are filtered out."""
        keep = self._tensor_filter
        return [name for name in self.frames if keep is None or keep(name)]

    def get_shape(self, tensor_name: str) -> list[int]:
        """A tensor's shape, as its file says it."""
        if self._tensor_filter is not None and not self._tensor_filter(tensor_name):
            raise ArgumentError(f"get_shape: {tensor_name} is filtered out")
        if tensor_name not in self.frames:
            raise UnknownTensorError(f"get_shape: {tensor_name} is in none of the files")
        return self.frames[tensor_name].shape

    def set_tensor_filter(self, keep_tensor: Callable[[str], bool] | None) -> None:
        """From now on only tensors for which ``keep_tensor(name)`` is true exist, and only they are read. None: all."""
        self._tensor_filter = keep_tensor

    def add_filenames(self, filenames: dict[int, list[str]]) -> None:
        """Adds files: of each rank, those that it is to read. The headers of all are read here, by every rank.

        Files are taken in turn, one of each rank, and of these tensors in turn, which is the order of `get_keys`.
        """
        with self._telling_failures():
            for position in range(max(map(len, filenames.values()), default=0)):
                turn = [
                    self._add(rank, os.fsdecode(paths[position]))
                    for rank, paths in filenames.items()
                    if position < len(paths)
                ]
                frames = {name: frame for metadata in turn for name, frame in metadata.tensors.items()}
                order = in_turns((metadata, metadata.tensors) for metadata in turn)
                self.frames.update((name, frames[name]) for name in order)

    def copy_files_to_device(
        self,
        dtype: DType = DType.AUTO,
        use_buf_register: bool = True,
        max_copy_block_size: int = 16 * _GIB,
        allow_inflight: bool = False,
        borrowed_tensors: bool = False,
    ) -> FilesBufferOnDevice:
        """Loads this rank's files, and returns what gives the tensors of all files to all ranks.

        In one process everything is read here. In a group, or with `allow_inflight`, reading begins here and goes on
        while tensors are asked for; at most one file is read ahead of what is taken. An error of the drive is then
        raised by the call that needs the bytes, on every rank.

        dtype: convert all tensors to this type on the way; AUTO keeps what the files have. Wider types are taken too.
        borrowed_tensors: accepted in one process: tensors own their memory here and stay valid in any case.
        use_buf_register, max_copy_block_size: accepted and not needed.
        """
        if borrowed_tensors and self.pg.size() != 1:
            raise ArgumentError("borrowed_tensors is for a single process")
        if self._is_closed:
            raise ArgumentError("the loader was closed")
        with self._telling_failures():
            return self._copy(None if dtype == DType.AUTO else dtype, allow_inflight, borrowed_tensors)

    def _set_chunk_plan(self, chunk_plan: dict[str, tuple[set[str], list[tuple[int, int]], int | None]]) -> None:
        """The next copy_files_to_device takes only these tensors of these files: path -> (names, byte ranges, size)."""
        self._chunk_plan = chunk_plan

    def _set_metadata_cache(self, metadata: dict[str, SafeTensorsMetadata]) -> None:
        """Headers that were read already."""
        self._metadata_cache = dict(metadata)

    def _make_group(self, timeout: float | None) -> RankGroup | None:
        if self.pg.size() == 1:
            return None
        process_group = getattr(self.pg, "real_pg", None)
        if process_group is None:
            raise UnsupportedError(f"{self.framework.get_name()}: several ranks need a process group of torch")
        from ._exchange_group import RankGroup, chosen_timeout

        return RankGroup(process_group, chosen_timeout(timeout))

    def _telling_failures(self) -> _TellingFailures:
        return _TellingFailures(self._group)

    def _add(self, rank: int, path: str) -> SafeTensorsMetadata:
        if not 0 <= rank < self.pg.size():
            raise ArgumentError(f"{path}: there is no rank {rank}: the group has {self.pg.size()}")
        metadata = self._metadata_cache.get(path)
        if metadata is None:
            metadata = SafeTensorsMetadata.from_file(path, self.framework)
        self.meta[path] = (metadata, rank)
        return metadata

    def _copy(self, dtype: DType | None, allow_inflight: bool, borrowed_tensors: bool) -> FilesBufferOnDevice:
        files = [(path, *entry) for path, entry in sorted(self.meta.items(), key=lambda item: item[0])]
        own_files = [(path, metadata) for path, metadata, rank in files if rank == self.pg.rank()]
        keep = self._keep()
        own = OwnFiles(
            [path for path, _ in own_files],
            [name for _, metadata in own_files for name in names_of(metadata, keep)],
            self._place(),
            None if dtype is None else dtype.value,
            "numpy" if self.framework.get_name() == "numpy" and self._group is None else "torch",
            read_ahead=self._group is not None or allow_inflight,
        )
        try:
            rank_loaders: dict[int, list[FileTensors]] = {rank: [] for rank in range(self.pg.size())}
            for _, metadata, rank in files:
                there = own if rank == self.pg.rank() else None
                rank_loaders[rank].append(FileTensors(metadata, rank, len(rank_loaders[rank]), there))
            self._loads += 1
            buffer = FilesBufferOnDevice(
                rank_loaders,
                self.pg,
                self.framework,
                keep_tensor=keep,
                borrowed_tensors=borrowed_tensors,
                device=self.device,
                dtype=dtype,
                group=self._group,
                number=self._loads,
                disable_cache=self.disable_cache,
            )
            if self._group is None and not allow_inflight:
                own.read_all()
        except BaseException:
            own.close()
            raise
        return buffer

    def _keep(self) -> Callable[[str], bool] | None:
        if not self._chunk_plan:
            return self._tensor_filter
        chunk = set().union(*(names for names, _, _ in self._chunk_plan.values()))
        return chunk.__contains__

    def _place(self) -> str:
        """The device as torch names it."""
        if self.device.type == DeviceType.GPU:
            return Device(DeviceType.CUDA, self.device.index).as_str()
        return self.device.as_str()


class SafeTensorsFileLoader(BaseSafeTensorsFileLoader):
    """Loads safetensors files, each by one rank of a group.

        loader = SafeTensorsFileLoader(pg, "cpu")
        loader.add_filenames({0: ["a.safetensors"], 1: ["b.safetensors"]})
        buffer = loader.copy_files_to_device()
        weight = buffer.get_sharded("weight", 0)
        buffer.close()
        loader.close()

    device: "cpu", "cuda:1", or a torch.device.
    nogds, use_fgds: True for either is taken; without GPUDirect Storage files are read through the host's memory.
    bbuf_size_kb, max_threads, set_numa, debug_log: accepted; the engine chooses for itself.
    The other arguments are those of `BaseSafeTensorsFileLoader`.
    """

    @classmethod
    def process_extension_config(cls, ext_config: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """``copier_type`` becomes ``nogds`` and ``use_fgds``; the rest is passed on."""
        arguments = dict(ext_config)
        copier_type = arguments.pop("copier_type", "gds")
        arguments["nogds"] = copier_type not in ("gds", "fgds")
        if copier_type == "fgds":
            arguments["use_fgds"] = True
        else:
            arguments.setdefault("use_fgds", False)
        return arguments

    def __init__(
        self,
        pg: Any | None,
        device: Any = "cpu",
        bbuf_size_kb: int = 16 * 1024,
        max_threads: int = 16,
        nogds: bool = False,
        set_numa: bool = True,
        disable_cache: bool = True,
        debug_log: bool = False,
        framework: str = "pytorch",
        use_fgds: bool = False,
        **kwargs: Any,
    ) -> None:
        operations = get_framework_op(framework)
        place = (
            device if isinstance(device, Device) else operations.get_device(device, operations.get_process_group(pg))
        )
        copier_type = "nogds" if nogds else "fgds" if use_fgds else "gds"
        super().__init__(pg, place, copier_type, set_numa, disable_cache, framework, **kwargs)


class fastsafe_open:  # noqa: N801
    """Files as one lazy dictionary of tensors; a context manager. Tensors stay valid after it.

    filenames: a file, several (read by rank 0), or those of each rank.
    The other arguments are those of `SafeTensorsFileLoader`.
    """

    def __init__(
        self,
        filenames: Filenames,
        framework: str = "pt",
        pg: Any | None = None,
        device: Any = "cpu",
        nogds: bool = False,
        debug_log: bool = False,
        max_copy_block_size: int = 16 * _GIB,
        use_fgds: bool = False,
    ) -> None:
        self.loader = SafeTensorsFileLoader(
            pg, device, nogds=nogds, debug_log=debug_log, framework=framework, use_fgds=use_fgds
        )
        try:
            self.loader.add_filenames(_by_rank(filenames))
            self.fb = self.loader.copy_files_to_device(max_copy_block_size=max_copy_block_size)
        except BaseException:
            self.loader.close()
            raise

    def metadata(self) -> dict[str, dict[str, str]]:
        """Of each file, what its header says beside the tensors."""
        return {path: metadata.metadata for path, (metadata, _) in self.loader.meta.items()}

    def keys(self) -> list[str]:
        """The names of all tensors."""
        return list(self.fb.key_to_rank_lidx)

    def get_tensor_wrapped(self, name: str) -> TensorBase:
        """A tensor, in the wrapper of its framework; in a group on every rank."""
        return self.fb.get_tensor_wrapped(name)

    def get_tensor(self, name: str) -> Any:
        """A tensor; in a group on every rank."""
        return self.fb.get_tensor(name)

    def __enter__(self) -> fastsafe_open:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.fb.close()
        self.loader.close()


class _TellingFailures:
    """What fails here, outside of any collective call, is told to the other ranks."""

    def __init__(self, group: RankGroup | None) -> None:
        self._group = group

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._group is not None:
            self._group.fail(error)


def _by_rank(filenames: Filenames) -> dict[int, list[str]]:
    if isinstance(filenames, dict):
        return filenames
    return {0: [os.fsdecode(filenames)] if isinstance(filenames, (str, os.PathLike)) else list(filenames)}
