"""The checkpoint engine of a DeepSpeed run: what a tag's directory and `latest` name is whole at every moment.

DeepSpeed saves a directory of files for each tag, in turn on every rank, and then writes the tag into `latest`.
Here the files go into a hidden directory beside the tag's (see `penstock._steps`). `commit`, which every rank calls,
waits for the files of all ranks, gives the directory the tag's name in one step, and only then replaces `latest`.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .._alone import Alone
from .._job import warn_of
from .._options import path_text
from .._steps import StagedDirectory, remove_dead
from .._torch.step_ranks import StepRanks, world_size
from ..errors import ArgumentError, DistributedError, Error
from .engine import CheckpointEngine
from .writers import FastFileWriter

if TYPE_CHECKING:
    from .._options import Path

_LATEST = "latest"
_OF_A_CHECKPOINT = "_states.pt"  # how the names of all files that DeepSpeed saves for a tag end


class DeepSpeedCheckpointEngine(CheckpointEngine):
    """`CheckpointEngine` for `DeepSpeedEngine.save_checkpoint`, which `install_into_deepspeed` gives it.

    settings: the JSON's "checkpoint" and "aio". timeout: the seconds that ranks wait for each other.

    What fails on any rank while a checkpoint is saved is raised by `commit`, on every rank: then the tag and `latest`
    are what they were.
    """

    def __init__(self, settings: Any, optimize_dp_state: bool, *, timeout: float) -> None:
        super().__init__(settings, None, optimize_dp_state, weights_only=False, timeout=timeout)
        self._ranks: Alone | StepRanks | None = None
        self._target = ""  # the tag's directory
        self._hidden = ""  # the one that is written; "" between checkpoints
        self._staged: StagedDirectory | None = None  # of rank 0
        self._problems: list[Exception] = []
        self._is_to_name_latest = False
        self._names_latest = False
        self._is_everyones = False  # whether all ranks save the file that is being saved
        _engines.add(self)

    @contextmanager
    def saving(self, save_latest: bool) -> Iterator[None]:
        """While DeepSpeed saves a checkpoint. `commit` names it in `latest`, which DeepSpeed itself leaves alone."""
        self._is_to_name_latest = save_latest
        try:
            yield
        except BaseException:
            self.give_up()
            raise
        finally:
            self._is_to_name_latest = False

    def create(self, info: Any) -> None:
        """Begins a checkpoint, on all ranks. One that is not committed yet is committed first."""
        self.finish()
        super().create(info)
        self._problems = []
        self._names_latest = self._is_to_name_latest or bool(info.save_latest)
        try:
            self._begin(info)
        except BaseException:
            self.give_up()
            raise

    def makedirs(self, path: Path, exist_ok: bool = False) -> None:
        """What is to be in the tag's directory is made in the hidden one."""
        super().makedirs(self._place(path)[0], exist_ok=exist_ok)

    def save(self, state_dict: Any, path: Path) -> None:
        """Saves one file. Within a checkpoint `commit` raises what goes wrong."""
        place, self._is_everyones = self._place(path)
        if not self._hidden:
            super().save(state_dict, place)
            return
        try:
            super().save(state_dict, place)
        except Exception as problem:  # the other ranks go on, and wait in `commit`
            self._problems.append(problem)

    def commit(self, info: Any) -> bool:
        """Waits for the files of every rank, gives their directory the tag's name, and names the tag in `latest`."""
        if not self._hidden:
            return super().commit(info)
        assert self._ranks is not None
        try:
            with self._ranks.meet(self._target) as ranks:
                ranks.together(lambda: self._require_files(info))
                ranks.together(lambda: self._publish(info))
        finally:
            self.give_up()
        return True

    def finish(self) -> None:
        """Commits what was created and not committed; all ranks call it."""
        if self._commit_info is not None:
            self.commit(self._commit_info)

    def cleanup(self) -> None:
        """The end: commits what was created and not committed."""
        try:
            super().cleanup()
        finally:
            ranks, self._ranks = self._ranks, None
            if ranks is not None:
                ranks.close()

    def give_up(self) -> None:
        """Ends the checkpoint that was created. What was not committed of it is removed."""
        staged, self._staged = self._staged, None
        self._hidden, self._commit_info = "", None
        self._collect(finished_only=False)
        self._failures = []
        if staged is not None:
            staged.abandon()

    def finish_at_exit(self) -> None:
        """What a script that ends without `engine.destroy()` leaves. Alone where others may never come to it."""
        if self._commit_info is None:
            return
        title = self._target
        if hasattr(sys, "last_type") and not isinstance(self._ranks, Alone):
            self.give_up()
            warn_of(DistributedError(f"{title}: not committed, this rank ends with an error"))
            return
        try:
            self.finish()
        except Exception as problem:
            warn_of(problem)

    def _begin(self, info: Any) -> None:
        """Rank 0 makes the hidden directory, and tells all ranks of it."""
        if self._ranks is None or not self._ranks.is_current:
            self._ranks = Alone() if world_size() == 1 else StepRanks(str(info.save_dir), self._timeout)
        save_dir, tag = path_text(info.save_dir), str(info.tag)
        self._target = os.path.normpath(os.path.join(os.getcwd(), save_dir, tag))
        with self._ranks.meet(self._target) as ranks:
            other = ranks.first_that_differs(hashlib.sha256(tag.encode()).digest())
            if other is not None:
                raise ArgumentError(f"{self._target}: rank {other} saves another tag than rank 0")
            self._staged = ranks.together(lambda: self._stage(save_dir) if ranks.rank == 0 else None)
            name = ranks.send(b"" if self._staged is None else os.fsencode(self._staged.path.name), 0)
            hidden = os.path.join(os.path.dirname(self._target), os.fsdecode(name))
            ranks.together(lambda: _require_directory(hidden))
        self._hidden = hidden

    def _stage(self, save_dir: str) -> StagedDirectory:
        parent = os.path.dirname(self._target)
        if os.path.commonpath([parent, os.path.abspath(save_dir)]) != os.path.abspath(save_dir):
            raise ArgumentError(f"{self._target}: a tag must name a directory within {save_dir}")
        os.makedirs(parent, exist_ok=True)
        remove_dead(parent)
        return StagedDirectory(self._target, durable=self._durable)

    def _place(self, path: Path) -> tuple[str, bool]:
        """Where a file is written, and whether it is one of the checkpoint's."""
        text = path_text(path)
        if not self._hidden:
            return text, True
        absolute = os.path.abspath(text)
        if absolute == self._target:
            return self._hidden, True
        if absolute.startswith(self._target + os.sep):
            return self._hidden + absolute[len(self._target) :], True
        return text, False  # a file beside it, which rank 0 saves alone: save_16bit_model

    def _require_files(self, info: Any) -> None:
        """Waits for this rank's files. Raises what went wrong with the first."""
        try:
            super().commit(info)
        except Error as problem:
            if problem not in self._problems:
                self._problems.append(problem)
        for other in self._problems[1:]:
            warn_of(other)
        if self._problems:
            raise self._problems[0]

    def _publish(self, info: Any) -> None:
        """By rank 0. What writes no tensors makes no checkpoint."""
        staged = self._staged
        if staged is None or self.config.writer.type == "mock" or not os.listdir(staged.path):
            return
        _keep_others(self._target, staged.path)
        staged.commit(replace=True, sync_files=self.config.writer.type == "python")
        if self._names_latest:
            with FastFileWriter(os.path.join(path_text(info.save_dir), _LATEST)) as latest:
                latest.write(str(info.tag).encode())

    def _is_parallel(self) -> bool:
        return self._is_everyones and super()._is_parallel()

    def _add_stats(self, stats: dict[str, Any]) -> None:
        """By the names that files are to have."""
        path = os.path.abspath(stats["path"])
        if self._hidden and path.startswith(self._hidden + os.sep):
            stats["path"] = self._target + path[len(self._hidden) :]
        super()._add_stats(stats)


def _require_directory(path: str) -> None:
    if not os.path.isdir(path):
        raise ArgumentError(f"{path}: is not there, though rank 0 has made it: ranks must save to the same directory")


def _keep_others(old: str, new: Path) -> None:
    """Links what somebody else put into an older directory of the tag, so that its successor has it too."""
    for folder, folders, names in os.walk(old):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in [*names, *links]:
            if not name.endswith(_OF_A_CHECKPOINT):
                place = os.path.join(path_text(new), os.path.relpath(folder, old))
                os.makedirs(place, exist_ok=True)
                _link_or_copy(os.path.join(folder, name), os.path.join(place, name))


def _link_or_copy(path: str, other: str) -> None:
    try:
        os.link(path, other, follow_symlinks=False)
    except OSError:  # not every filesystem has links
        shutil.copy2(path, other, follow_symlinks=False)


_engines: weakref.WeakSet[DeepSpeedCheckpointEngine] = weakref.WeakSet()


@atexit.register
def _finish_engines() -> None:
    for engine in list(_engines):
        engine.finish_at_exit()
