"""StorageReader: what dcp.load reads with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint import storage
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from .._counters import add_counters
from .._options import LoadTuning, Stats, load_options, path_text
from .._steps import naming
from ..errors import ArgumentError, FormatError, NotFoundError
from ._landing import Landings
from ._metadata import Location, Locations, key_of, read
from ._names import METADATA, TORCH_METADATA
from ._pickles import checked_pickle, given_pickle
from ._torch_directory import read_safetensors, read_torch

if TYPE_CHECKING:
    from .._options import Path as AnyPath
    from .._types import Unpack


class StorageReader(storage.StorageReader):
    """Reads checkpoints of torch.distributed.checkpoint: those of `StorageWriter`, and torch's own.

        dcp.load(state_dict, storage_reader=penstock.dcp.StorageReader("run/step-00000100"))

    Of every file a rank reads only what its plan wants, in one go, straight into the memory of the tensors: whole
    chunks and parts of chunks, so that ranks of another number or mesh get theirs. Torch's own are directories of its
    FileSystemWriter and of safetensors files, with or without chunks.

    Values that are no tensors are pickles. They are read as data, and planners are given a pickle of the value that was
    made here: what a file says is never executed. What is more than data is refused, unless its class is one of
    ``torch.serialization.add_safe_globals``.

    path: the directory; `checkpoint_id` of ``dcp.load`` takes its place.
    verify: True checks the CRC-32C of every chunk that is read as a whole and of every pickle, as bytes land. "all"
        also reads those chunks as wholes, beside the tensors, of which only a part is wanted. False checks none.
        Torch's own directories have no checksums.
    trust_pickles: give planners the pickles as they are, which torch's DefaultLoadPlanner executes. For files of your
        own only.
    tuning: cache, backend, block_size, queue_depth, threads, memory_budget, gds and landing, as in `penstock.load`.

    `stats` has what the last load of this rank did.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        verify: bool | str = True,
        trust_pickles: bool = False,
        cache: str = "auto",
        **tuning: Unpack[LoadTuning],
    ) -> None:
        if verify not in (True, False, "all"):
            raise ArgumentError(f'verify must be True, False or "all", not {verify!r}')
        self.stats = Stats()
        self._directory = Path(path_text(path))
        self._verify = verify
        self._trust_pickles = trust_pickles
        self._tuning: dict[str, Any] = {"cache": cache, **tuning}
        self._locations: Locations = {}
        load_options(**self._tuning)  # refuses what makes no sense before anything is read

    @property
    def checkpoint_id(self) -> str:
        """The directory."""
        return str(self._directory)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: AnyPath) -> bool:
        """Whether it is a directory that there is."""
        try:
            return os.path.isdir(path_text(checkpoint_id))
        except ArgumentError:
            return False

    def reset(self, checkpoint_id: AnyPath | None = None) -> None:
        """Begins another load."""
        self._locations = {}
        if checkpoint_id:
            self._directory = Path(path_text(checkpoint_id))

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What the checkpoint holds."""
        if kwargs.get("rank") is not None:
            raise NotFoundError(
                f"{self._directory}: checkpoints of ranks that did not speak to each other are not read"
            )
        with naming(self._directory):
            metadata, self._locations = read_directory(self._directory)
        metadata.storage_meta = StorageMeta(checkpoint_id=self.checkpoint_id)
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing is left to do when the metadata was read."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """The plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """The plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads this rank's items."""
        landings = Landings(self._directory, self._verify)
        tensors = []
        pickles: list[tuple[ReadItem, Any]] = []
        for item in plan.items:
            location = self._locate(item)
            if item.type == LoadItemType.BYTE_IO:
                pickles.append((item, landings.add_pickle(location)))
                continue
            target = planner.resolve_tensor(item)
            landings.add(item, location, target.detach())
            tensors.append((item, target))
        self.stats = Stats()
        for counters in landings.load(self._tuning):
            self.stats = Stats(add_counters(self.stats, counters))
        for item, target in tensors:
            planner.commit_tensor(item, target)
        for item, pickle in pickles:
            what = f"{self._directory}: {item.storage_index.fqn!r}"
            make = given_pickle if self._trust_pickles else checked_pickle
            planner.load_bytes(item, make(pickle(), what))
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _locate(self, item: ReadItem) -> Location:
        location = self._locations.get(key_of(item.storage_index))
        if location is None:
            raise FormatError(f"{self._directory}: its metadata does not say where {item.storage_index.fqn!r} is")
        return location


def read_directory(directory: Path) -> tuple[Metadata, Locations]:
    """What a directory holds, whoever wrote it."""
    if (directory / METADATA).exists():
        return read(directory)
    if (directory / TORCH_METADATA).exists():
        return read_torch(directory)
    if any(directory.glob("*.safetensors")):
        return read_safetensors(directory)
    if not directory.is_dir():
        raise NotFoundError(f"{directory}: the directory does not exist")
    raise NotFoundError(f"{directory}: the directory has no {METADATA}, no {TORCH_METADATA} and no *.safetensors file")
