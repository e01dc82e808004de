"""StorageWriter: what dcp.save and dcp.async_save write with."""

from __future__ import annotations

import dataclasses
import json
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.distributed.checkpoint import storage
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.staging import AsyncStager
from torch.futures import Future

from .._options import IoTuning, Stats, target_text
from .._save import save
from .._steps import StagedDirectory, naming, remove_dead
from ..errors import ArgumentError, IoError, UnsupportedError
from ._metadata import Location, encode, key_of
from ._names import INDEX, METADATA, check_replaceable, object_file, tensor_file
from ._staging import Stager, shared_stager

if TYPE_CHECKING:
    from .._options import Path as AnyPath
    from .._types import Unpack


class SaveTuning(IoTuning, total=False):
    """How bytes are written: as in `penstock.save`."""

    landing: str
    method: str


class _Share(NamedTuple):
    """What the coordinator tells a rank by its plan."""

    directory: str  # the hidden one, which finish() gives its name
    rank: int
    world: int


class StorageWriter(storage.StorageWriter, AsyncStager):
    """Writes checkpoints of torch.distributed.checkpoint as safetensors files, committed by one rename.

        dcp.save(state_dict, storage_writer=penstock.dcp.StorageWriter("run/step-00000100"))

    Every rank writes one file with its chunks, straight from the tensors' memory and durably, into a hidden directory
    beside the target; the coordinator gives it its name when all have. A rank that fails or dies leaves the target as
    it was, and the next save removes what it left. With ``dcp.async_save`` the state dict is copied by a `Stager`.

    path: the directory that the checkpoint is to be; `checkpoint_id` of ``dcp.save`` takes its place.
    overwrite: whether a checkpoint that is there may be replaced: it is there until the new one is complete. What is
        no checkpoint is never replaced.
    checksums: store a CRC-32C of every chunk and pickle, which `StorageReader`, ``penstock.verify`` and
        ``load(verify=True)`` check.
    durable: wait until the drive has it all. Without, a power cut may lose the checkpoint.
    stager: what copies the state dict for ``dcp.async_save``; by default one that all writers of this process share.
    tuning: backend, block_size, queue_depth, threads, memory_budget, gds, landing and method, as in `penstock.save`.

    `stats` has what the last save of this rank did.
    """

    _synchronize_after_execute = False

    def __init__(
        self,
        path: AnyPath,
        *,
        overwrite: bool = True,
        checksums: bool = True,
        durable: bool = True,
        stager: Stager | None = None,
        **tuning: Unpack[SaveTuning],
    ) -> None:
        self.stats = Stats()
        self._target = _target(path)
        self._overwrite = overwrite
        self._checksums = checksums
        self._durable = durable
        self._stager = stager
        self._tuning = tuning
        self._is_coordinator = False
        self._staged: StagedDirectory | None = None
        self._abandon: Any = None

    @property
    def checkpoint_id(self) -> str:
        """The directory that the checkpoint is to be."""
        return str(self._target)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: AnyPath) -> bool:
        """Whether it is a path to a local directory that could be made."""
        try:
            target = _target(checkpoint_id)
        except ArgumentError:
            return False
        return any(parent.exists() and os.access(parent, os.W_OK) for parent in target.parents)

    def storage_meta(self) -> StorageMeta | None:
        """What planners may note of where the checkpoint goes."""
        return StorageMeta(checkpoint_id=self.checkpoint_id)

    def reset(self, checkpoint_id: AnyPath | None = None) -> None:
        """Begins another checkpoint; one that was not finished is given up."""
        self._give_up()
        if checkpoint_id:
            self._target = _target(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Looks whether the target can be what it is to be."""
        if not kwargs.get("use_collectives", True):
            raise UnsupportedError("use_collectives=False: ranks that don't speak to each other can't commit as one")
        self._give_up()
        self._is_coordinator = is_coordinator
        if is_coordinator:
            with naming(self._target):
                check_replaceable(self._target, self._overwrite)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """The plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Makes the hidden directory, after those of dead savers are removed, and tells all ranks of it."""
        parent = self._target.parent
        with naming(self._target):
            os.makedirs(parent, exist_ok=True)
            remove_dead(parent)
        staged = StagedDirectory(self._target, durable=self._durable)
        self._staged = staged
        self._abandon = weakref.finalize(self, staged.abandon)  # also where nobody finishes it
        shares = (_Share(str(staged.path), rank, len(plans)) for rank in range(len(plans)))
        return [dataclasses.replace(plan, storage_data=share) for plan, share in zip(plans, shares, strict=True)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[storage.WriteResult]]:
        """Writes this rank's items, which are durable when it returns."""
        future: Future[list[storage.WriteResult]] = Future()
        try:
            future.set_result(self._write_files(plan, planner))
        except BaseException:
            self._give_up()
            raise
        return future

    def finish(self, metadata: Metadata, results: list[list[storage.WriteResult]]) -> None:
        """Writes the metadata and gives the directory its name: from here on the checkpoint is there."""
        if self._staged is None:
            raise ArgumentError(f"{self._target}: finish() without a plan")
        locations = {key_of(each.index): each.storage_data for some in results for each in some}
        _write(self._staged.path / METADATA, encode(metadata, locations))
        if index := _index(metadata, results):
            _write(self._staged.path / INDEX, index)
        check_replaceable(self._target, self._overwrite)
        self._staged.commit(replace=self._overwrite)
        self._give_up()

    def stage(self, state_dict: Any) -> Any:
        """A copy of the state dict, for ``dcp.async_save``."""
        return (self._stager or shared_stager()).stage(state_dict)

    def synchronize_staging(self) -> None:
        """Nothing is left to wait for when `stage` has returned."""

    def close(self) -> None:
        """Gives back the stager's memory and what is left of a checkpoint that was not finished."""
        self._give_up()
        (self._stager or shared_stager()).close()

    def _write_files(self, plan: SavePlan, planner: SavePlanner) -> list[storage.WriteResult]:
        directory = self._directory(plan.storage_data)
        arguments: dict[str, Any] = {"checksums": self._checksums, "durable": self._durable, **self._tuning}
        self.stats = Stats()
        results = []
        for file in _arrange(plan.items, planner, plan.storage_data):
            path = directory / file.name
            notes = file.metadata()
            done = save(file.tensors, path, format="safetensors", metadata=notes, shared="duplicate", **arguments)
            self.stats = Stats(done, bytes=self.stats.get("bytes", 0) + done.bytes)
            results += file.results()
        return results

    def _give_up(self) -> None:
        if self._abandon is not None:
            self._abandon()
        self._staged = self._abandon = None

    def _directory(self, share: _Share) -> Path:
        """The hidden directory. A planner that caches plans gives that of an earlier save, which is gone."""
        directory = Path(share.directory)
        prefix = f".{self._target.name}.saving-"
        if directory.parent == self._target.parent and directory.name.startswith(prefix) and directory.is_dir():
            return directory
        with os.scandir(self._target.parent) as entries:
            found = [entry.path for entry in entries if entry.name.startswith(prefix)]
        if len(found) != 1:
            raise IoError(f"{self._target}: {len(found)} hidden directories of saves are beside it, expected one")
        return Path(found[0])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_staged": None, "_abandon": None}


def _target(path: AnyPath) -> Path:
    """Absolute: the process may be elsewhere by the time it is made."""
    return Path(os.path.abspath(target_text(path)))


class _File:
    """A file that a rank writes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.items: list[WriteItem] = []
        self.tensors: dict[str, torch.Tensor] = {}

    def add(self, item: WriteItem, tensor: torch.Tensor) -> None:
        self.items.append(item)
        self.tensors[item.index.fqn] = tensor

    def results(self) -> list[storage.WriteResult]:
        """What finish() is told."""
        sizes = ((item.index, self.tensors[item.index.fqn].nbytes) for item in self.items)
        return [storage.WriteResult(index, nbytes, Location(self.name, index.fqn)) for index, nbytes in sizes]

    def metadata(self) -> dict[str, str]:
        """Where chunks begin, as torch's HuggingFaceStorageWriter notes it."""
        chunks = {item.index.fqn: item.tensor_data.chunk for item in self.items if item.tensor_data is not None}
        if not chunks:
            return {}
        offsets = {name: {"saved_offsets": list(chunk.offsets)} for name, chunk in chunks.items()}
        return {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(offsets, separators=(",", ":"))}


def _arrange(items: list[WriteItem], planner: SavePlanner, share: _Share) -> list[_File]:
    """Which file what goes to: tensors to the first that has none of the same name."""
    tensors: list[_File] = []
    objects = _File(object_file(share.rank, share.world))
    for item in items:
        data: Any = planner.resolve_data(item)
        if item.type == WriteItemType.BYTE_IO:
            objects.add(item, _bytes_of(data))
            continue
        file = next((file for file in tensors if item.index.fqn not in file.tensors), None)
        if file is None:
            file = _File(tensor_file(share.rank, share.world, len(tensors)))
            tensors.append(file)
        file.add(item, data.detach())
    return [*tensors, objects] if objects.items else tensors


def _bytes_of(data: Any) -> torch.Tensor:
    memory = data.getbuffer()
    return torch.frombuffer(memory, dtype=torch.uint8) if len(memory) > 0 else torch.empty(0, dtype=torch.uint8)


def _index(metadata: Metadata, results: list[list[storage.WriteResult]]) -> bytes | None:
    """What transformers looks for; nothing where a tensor is in several chunks, which it can't say."""
    entries = [entry for entry in metadata.state_dict_metadata.values() if isinstance(entry, TensorStorageMetadata)]
    if not entries or any(len(entry.chunks) != 1 or entry.chunks[0].sizes != entry.size for entry in entries):
        return None
    written = [each for some in results for each in some if each.index.offset is not None]
    weight_map = {each.index.fqn: each.storage_data.file for each in written}
    total = sum(each.size_in_bytes for each in written)
    return (json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2) + "\n").encode()


def _write(path: Path, data: bytes) -> None:
    """commit() makes it durable."""
    try:
        path.write_bytes(data)
    except OSError as problem:
        raise IoError(f"{path}: {problem.strerror}") from problem
