"""Saves in the background by several ranks: each copies its state, and a thread of each writes its share of one file.

What the ranks tell each other meanwhile goes through a gloo group that is made once, by the thread that calls `save`,
and used by the saving thread alone: training goes on with the default group and never meets these messages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .._job import SaveJob, jobs_under_way
from .._options import path_text
from .._thread_job import ThreadJob, describe
from .._torch.parallel import Part
from .._torch.pickles import Pickled, pickle_object
from .._torch.ranks import Ranks, control_group
from ..errors import BusyError, DistributedError, Error
from ._snapshot import Staging

if TYPE_CHECKING:
    from .._options import Path
    from .._progress import Callback

_CPU = torch.device("cpu")


class SaverOfRanks:
    """One rank's saves of an engine. Every rank makes one and calls it in the same order, each from one thread.

    partition, timeout: as of `penstock.save_parallel`. when_busy: as of the engine.
    """

    def __init__(self, partition: str, timeout: float, when_busy: str) -> None:
        self._partition = partition
        self._timeout = timeout
        self._world = dist.group.WORLD
        self._control = control_group(timeout)
        # Whether to begin is asked by the caller's thread, while the other group may be in use.
        self._entrance = control_group(timeout) if when_busy == "refuse" else None
        self._staging = Staging()
        self._is_broken = False

    @property
    def is_current(self) -> bool:
        """Whether torch.distributed still runs as it did."""
        return dist.is_initialized() and dist.group.WORLD is self._world

    def take_turn(self, path: Path) -> None:
        """Waits until no background save of this process is under way, or raises BusyError on every rank."""
        text = path_text(path)
        if self._is_broken:
            raise DistributedError(f"{text}: not saved, a rank did not answer in an earlier save: make a new engine")
        if self._entrance is not None:
            self._refuse_if_busy(text)
        for job in jobs_under_way():
            with suppress(Error):  # which is told to whoever asks that one
                job.job.wait(None)

    def save(self, state: Any, path: Path, arguments: dict[str, Any]) -> SaveJob:
        """Copies the state and starts. Where copying fails the others are told, and `staged` of the job raises."""
        absolute = os.path.join(os.getcwd(), path_text(path))
        copy, problem = self._snapshot(state, arguments["format"] == "torch-legacy")

        def take() -> Pickled:
            if copy is None:
                raise Error(describe(absolute, problem))
            return copy

        def run(callback: Callback) -> dict[str, Any]:
            with self._ranks(absolute, self._control) as ranks:
                return Part(ranks, absolute, arguments, callback).save_pickled(take, self._partition)

        return SaveJob(ThreadJob(absolute, problem, run), absolute, [], 0)

    def close(self) -> None:
        """Leaves the groups. All saves are over."""
        if self.is_current:
            for group in (self._control, self._entrance):
                if group is not None:
                    dist.destroy_process_group(group)

    def _refuse_if_busy(self, path: str) -> None:
        jobs = jobs_under_way()
        with self._ranks(path, self._entrance) as ranks:
            busy = [rank for rank in range(ranks.world) if ranks.send(b"\1" if jobs else b"\0", rank) == b"\1"]
            if jobs:
                raise BusyError(f"{path}: not saved, the save of {jobs[0].path} is under way")
            if busy:
                raise BusyError(f"{path}: not saved, rank {busy[0]} has a save under way")

    @contextmanager
    def _ranks(self, path: str, group: dist.ProcessGroup | None) -> Iterator[Ranks]:
        with Ranks(path, _CPU, self._timeout, group) as ranks:
            try:
                yield ranks
            finally:
                self._is_broken = self._is_broken or ranks.is_broken

    def _snapshot(self, state: Any, legacy: bool) -> tuple[Pickled | None, BaseException | None]:
        """The copy, or what went wrong when it was made."""
        try:
            state = state.state_dict() if isinstance(state, torch.nn.Module) else state
            return self._staging.copy(pickle_object(state, legacy=legacy)), None
        except BaseException as problem:
            return None, problem
