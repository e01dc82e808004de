"""CheckpointEngine: the shape of DeepSpeed's checkpoint engines, over penstock's saves and loads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from .._job import warn_of
from .._options import path_text
from .._save import save, save_async
from ..errors import ArgumentError, Error, UnsupportedError
from .config import read_config
from .save import save_stats
from .serialization import load
from .writers import MockFileWriter, PyFileWriter

if TYPE_CHECKING:
    from .._job import SaveJob
    from .._options import Path
    from .writers import FileWriter

_BUSY = ("queue", "refuse")


class CheckpointEngine:
    """Saves and loads checkpoints of one or more files, each an ordinary torch file.

        engine = CheckpointEngine("ds_config.json")
        engine.create("step-100")
        engine.save(model.state_dict(), "step-100/model.pt")      # decoupled: returns when the tensors may change
        engine.save(optimizer.state_dict(), "step-100/optim.pt")
        engine.commit("step-100")                                 # all of it is on the drive, or this raises

    config_params: see `penstock.fastpersist.config`. dp_writer_config, optimize_dp_state: not needed. when_busy: a decoupled
    save while another background save of the process is under way waits for it ("queue"), so that there is one snapshot
    in memory at a time, or raises BusyError ("refuse"). weights_only: as of torch.load. durable: as of `penstock.save`.

    What fails in the background is raised by the next `save`, by `wait` and by `commit`; what nobody asked for is shown when
    the process exits, which waits for saves. An engine is used by one thread.
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
    ) -> None:
        if when_busy not in _BUSY:
            raise ArgumentError(f'when_busy must be "queue" or "refuse", not {when_busy!r}')
        self.name = type(self).__name__
        self.config = read_config(config_params)
        self.stats: list[dict[str, Any]] = []  # of each file since `create`
        self._when_busy = when_busy
        self._weights_only = weights_only
        self._durable = durable
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
        """Saves one file. In the background it returns when the tensors may change again."""
        fresh = self._collect(finished_only=True)
        if fresh:
            raise fresh[0]
        if self.config.writer.type != "fast":
            self._save_by_python(state_dict, path)
        elif self._is_parallel():
            self._save_in_parallel(state_dict, path)
        elif self.config.writer.decoupled:
            self._save_in_background(state_dict, path)
        else:
            self._add_stats(save_stats(path_text(path), save(state_dict, path, **self._arguments())))

    def load(self, path: Path, map_location: Any = None) -> Any:
        """What was saved, as torch.load returns it."""
        return load(path, map_location, weights_only=self._weights_only)

    def commit(self, info: Any) -> bool:
        """Waits until every file is there. Raises what went wrong with any of them: the checkpoint is not whole then."""
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
        self.commit(self._commit_info)

    def get_commit_info(self) -> Any:
        """What was created and not committed."""
        return self._commit_info

    def is_decoupled(self) -> bool:
        return self.config.writer.decoupled

    def is_data_parallel_writer(self, dp_rank: int) -> bool:
        """Every rank calls `save`; who writes is found there."""
        return True

    def _save_in_background(self, state_dict: Any, path: Path) -> None:
        job = save_async(state_dict, path, when_busy=self._when_busy, **self._arguments())
        try:
            job.staged()
        except Error as problem:
            self._failures.append(problem)
            raise
        self._jobs.append(job)

    def _save_in_parallel(self, state_dict: Any, path: Path) -> None:
        from .._parallel import save_parallel

        if self.config.writer.decoupled:
            raise UnsupportedError(f"{path}: several ranks write one file only with decoupled: false")
        partition = self.config.writer.data_parallel or "replica"
        counters = save_parallel(state_dict, path, partition=partition, **self._arguments())
        self._add_stats(save_stats(path_text(path), counters))

    def _save_by_python(self, state_dict: Any, path: Path) -> None:
        writer: FileWriter = MockFileWriter(path) if self.config.writer.type == "mock" else PyFileWriter(path)
        with writer:
            torch.save(state_dict, writer, _use_new_zipfile_serialization=self.config.checkpoint_serialization)  # type: ignore[arg-type]
        self._add_stats(writer.stats)

    def _is_parallel(self) -> bool:
        if self.config.writer.data_parallel is None or not torch.distributed.is_available():
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
