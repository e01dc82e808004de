"""CheckpointEngine: the shape of DeepSpeed's checkpoint engines, over penstock's saves and loads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from .._job import warn_of
from .._options import path_text
from .._save import save, save_async
from ..errors import ArgumentError, Error
from .config import read_config
from .save import save_stats
from .serialization import load
from .writers import MockFileWriter, PyFileWriter

if TYPE_CHECKING:
    from .._job import SaveJob
    from .._options import Path
    from ._by_ranks import SaverOfRanks
    from .writers import FileWriter

_DEFAULT_TIMEOUT = 300.0
_BUSY = ("queue", "refuse")


class CheckpointEngine:
    """Saves and loads checkpoints of one or more files, each an ordinary torch file.

        engine = CheckpointEngine("ds_config.json")
        engine.create("step-100")
        engine.save(model.state_dict(), "step-100/model.pt")      # decoupled: returns when the tensors may change
        engine.save(optimizer.state_dict(), "step-100/optim.pt")
        engine.commit("step-100")                                 # all of it is on the drive, or this raises

    config_params: see `penstock.fastpersist.config`.
    dp_writer_config: not needed.
    optimize_dp_state: False where every rank has files of its own (ZeRO 3), so that data_parallel changes nothing.
    when_busy: a decoupled save while another background save of the process is under way waits for it ("queue"), so
        that there is one snapshot in memory at a time, or raises BusyError ("refuse").
    weights_only: as of torch.load.
    durable: as of `penstock.save`.
    timeout: with data_parallel, the seconds that ranks wait for each other.

    What fails in the background is raised by the next `save`, by `wait` and by `commit`; what nobody asked for is shown
    when the process exits, which waits for saves. An engine is used by one thread.
    """

    def __init__(
        self,
        config_params: Any = None,
        dp_writer_config: Any = None,
        optimize_dp_state: Any = None,
        *,
        when_busy: str = "queue",
        weights_only: bool = True,
        durable: bool = True,
        timeout: float = _DEFAULT_TIMEOUT,
    ) -> None:
        if when_busy not in _BUSY:
            raise ArgumentError(f'when_busy must be "queue" or "refuse", not {when_busy!r}')
        self.name = type(self).__name__
        self.config = read_config(config_params)
        self.stats: list[dict[str, Any]] = []  # of each file since `create`
        self._when_busy = when_busy
        self._weights_only = weights_only
        self._durable = durable
        self._timeout = timeout
        self._shares_files = optimize_dp_state is None or bool(optimize_dp_state)
        self._saver: SaverOfRanks | None = None
        self._commit_info: Any = None
        self._jobs: list[SaveJob] = []
        self._failures: list[Error] = []

    def create(self, info: Any) -> None:
        """Begins a checkpoint. `info` is its name, or anything that `commit` will be given again."""
        self._commit_info = info
        self.stats = []

    def makedirs(self, path: Path, exist_ok: bool = False) -> None:
        os.makedirs(path, exist_ok=exist_ok)

    def save(self, state_dict: Any, path: Path) -> None:
        """Saves one file. In the background it returns when the tensors may change again.

        With data_parallel every rank calls it, for the same files in the same order.
        """
        by_ranks = self.config.writer.type == "fast" and self._is_parallel()
        if by_ranks and self.config.writer.decoupled:
            self._saver_of_ranks().take_turn(path)  # so that what went wrong before is known to all ranks, or none
        fresh = self._collect(finished_only=True)
        if fresh:
            raise fresh[0]
        if self.config.writer.type != "fast":
            self._save_by_python(state_dict, path)
        elif by_ranks and self.config.writer.decoupled:
            self._save_by_ranks_in_background(state_dict, path)
        elif by_ranks:
            self._save_by_ranks(state_dict, path)
        elif self.config.writer.decoupled:
            self._save_in_background(state_dict, path)
        else:
            self._add_stats(save_stats(path_text(path), save(state_dict, path, **self._arguments())))

    def load(self, path: Path, map_location: Any = None) -> Any:
        """What was saved, as torch.load returns it."""
        return load(path, map_location, weights_only=self._weights_only)

    def commit(self, info: Any) -> bool:
        """Waits until every file is there.

        Raises what went wrong with any of them: the checkpoint is not whole then.
        """
        if self._commit_info is not None and info != self._commit_info:
            raise ArgumentError(f"commit of {info!r}, but the checkpoint that was created is {self._commit_info!r}")
        self._collect(finished_only=False)
        self._commit_info = None
        failures, self._failures = self._failures, []
        for other in failures[1:]:
            warn_of(other)
        if failures:
            raise failures[0]
        return True

    def wait(self) -> None:
        """Waits for what is under way, and raises what went wrong since the last commit."""
        self._collect(finished_only=False)
        if self._failures:
            raise self._failures[0]

    def cleanup(self) -> None:
        """The end: commits what was created and not committed, and waits."""
        try:
            self.commit(self._commit_info)
        finally:
            if self._saver is not None:
                self._saver.close()
                self._saver = None

    def set_commit_info(self, info: Any) -> None:
        """As `create`, without forgetting the statistics."""
        self._commit_info = info

    def get_commit_info(self) -> Any:
        """What was created and not committed."""
        return self._commit_info

    def is_decoupled(self) -> bool:
        return self.config.writer.decoupled

    def is_data_parallel_writer(self, dp_rank: int) -> bool:
        """Whether this rank calls `save` for the model's own file.

        With data_parallel all do; who writes is found there.
        """
        return dp_rank == 0 or not self._shares_files or self.config.writer.data_parallel is not None

    def preserves_storage_sharing(self) -> bool:
        """A view is saved with all of its storage, as torch.save does it."""
        return True

    def _save_in_background(self, state_dict: Any, path: Path) -> None:
        job = save_async(state_dict, path, when_busy=self._when_busy, **self._arguments())
        try:
            job.staged()
        except Error as problem:
            self._failures.append(problem)
            raise
        self._jobs.append(job)

    def _save_by_ranks(self, state_dict: Any, path: Path) -> None:
        from .._torch.parallel import save_parallel

        counters = save_parallel(
            state_dict, path, partition=self._partition, timeout=self._timeout, **self._arguments()
        )
        self._add_stats(save_stats(path_text(path), counters))

    def _save_by_ranks_in_background(self, state_dict: Any, path: Path) -> None:
        job = self._saver_of_ranks().save(state_dict, path, self._arguments())
        self._jobs.append(job)
        job.staged()

    def _saver_of_ranks(self) -> SaverOfRanks:
        """Made by the first save, by all ranks together."""
        if self._saver is None or not self._saver.is_current:
            from ._by_ranks import SaverOfRanks

            self._saver = SaverOfRanks(self._partition, self._timeout, self._when_busy)
        return self._saver

    def _save_by_python(self, state_dict: Any, path: Path) -> None:
        writer: FileWriter = MockFileWriter(path) if self.config.writer.type == "mock" else PyFileWriter(path)
        with writer:
            file: Any = writer  # has what torch.save asks for
            torch.save(state_dict, file, _use_new_zipfile_serialization=self.config.checkpoint_serialization)
        self._add_stats(writer.stats)

    @property
    def _partition(self) -> str:
        return self.config.writer.data_parallel or "replica"

    def _is_parallel(self) -> bool:
        if self.config.writer.data_parallel is None or not self._shares_files:
            return False
        if not torch.distributed.is_available():
            return False
        return torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1

    def _arguments(self) -> dict[str, Any]:
        format = "torch" if self.config.checkpoint_serialization else "torch-legacy"
        return {"format": format, "durable": self._durable, **self.config.tuning()}

    def _collect(self, finished_only: bool) -> list[Error]:
        """Takes the jobs that are over, or waits for all, and returns what went wrong with them."""
        fresh: list[Error] = []
        for job in list(self._jobs):
            if finished_only and not job.done:
                continue
            try:
                counters = job.wait()
            except Error as problem:
                fresh.append(problem)
            else:
                self._add_stats(save_stats(job.path, counters))
            self._jobs.remove(job)
        self._failures += fresh
        return fresh

    def _add_stats(self, stats: dict[str, Any]) -> None:
        self.stats.append(stats)
        if self.config.writer.show_statistics:
            print(f"stats = {stats}")
