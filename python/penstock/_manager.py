"""CheckpointManager: the checkpoints of a training run, each a directory that is there whole or not at all."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from ._alone import Alone
from ._counters import add_counters
from ._job import SaveJob, warn_of
from ._options import Stats, target_text
from ._parallel import DEFAULT_TIMEOUT
from ._step_files import Entry, SavedStep, check_loadable, read_entries, start_saves
from ._steps import StagedDirectory, remove_dead, remove_directory, sync_directory
from ._thread_job import ThreadJob
from .errors import ArgumentError, BusyError, CancelledError, DistributedError, Error, NotFoundError

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from ._options import Path as AnyPath
    from ._torch.step_ranks import StepPart, StepRanks

    Ranks = Union[Alone, StepPart]

_STEP = re.compile(r"step-(\d{8,})")
_WRITE = Callable[[Path], object]


class CheckpointManager:
    """The checkpoints of a training run, in one directory: each a step, committed by one rename.

        manager = penstock.CheckpointManager("run", keep=3, every=10_000)
        progress = {"epoch": 0}
        state = {"model": model, "optimizer": optimizer, "rng": penstock.Rng(), "progress": progress}
        saved = manager.restore(into=state)  # None when the run begins
        with manager:
            for step in range(saved.step + 1 if saved else 1, 100_001):
                train_step()
                if step % 500 == 0:
                    manager.save_async(step, state)

    A step is the directory ``step-00000500`` with a file for each entry of the state: ``model.pt``, ``optimizer.pt``.
    It appears when all of it is on the drive. Whoever is killed leaves the steps that are there, and a hidden directory
    that the next save removes.

    The state is a dict. Of objects with ``state_dict()`` (modules, optimizers, schedulers, loaders) that is saved; all
    else is any tree that `penstock.save` takes as a torch file. A name that ends in ".safetensors" makes a file of that
    format. Entries that could only be loaded by executing code are refused.

    keep: how many steps to keep, the highest; None keeps all. The step just saved is always kept.
    every: steps that are a multiple of it are kept for ever.
    per_rank: with torch.distributed, the entries that each rank has for itself: random generators, loaders, optimizers
        that are split into ranks' shares (ZeRO). All others must be the same on every rank, and are saved once.
    when_busy: what a save does while the last one is under way: "wait", or "refuse" with a BusyError.
    durable: whether a step is on the drive when it is committed. Without, a power cut may take it back.
    timeout: the seconds that ranks wait for each other.

    With torch.distributed all ranks call `save`, `save_async`, `restore` and `close`, in the same order. Where one of
    them fails, dies or does not come, all raise and no step is committed. What fails in the background is raised by the
    next of these calls, or by `wait`; at exit it is shown as a warning. A manager is used by one thread.
    """

    def __init__(
        self,
        directory: AnyPath,
        *,
        keep: int | None = None,
        every: int | None = None,
        per_rank: Collection[str] = ("rng", "loader"),
        when_busy: str = "wait",
        durable: bool = True,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        self.directory = Path(os.path.join(os.getcwd(), target_text(directory)))
        self.keep = _checked_count("keep", keep)
        self.every = _checked_count("every", every)
        if isinstance(per_rank, str):
            raise ArgumentError(f"per_rank must be names, not the text {per_rank!r}")
        if when_busy not in ("wait", "refuse"):
            raise ArgumentError(f'when_busy must be "wait" or "refuse", not {when_busy!r}')
        self._per_rank = tuple(name.removesuffix(".pt") for name in per_rank)
        self._when_busy = when_busy
        self._durable = durable
        self._timeout = timeout
        self._team: Alone | StepRanks = Alone()
        self._job: SaveJob | None = None

    def steps(self) -> list[int]:
        """The committed steps, in order."""
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        return sorted(int(found[1]) for found in map(_STEP.fullmatch, names) if found)

    def latest(self) -> int | None:
        """The highest committed step; None where there is none."""
        return max(self.steps(), default=None)

    def path(self, step: int) -> Path:
        """The directory of a step, whether or not it is there."""
        return self.directory / f"step-{_checked_step(step):08}"

    def save(self, step: int, state: Mapping[str, Any], *, write: _WRITE | None = None) -> Stats:
        """Saves a step, and returns when it is committed. A step that is there is replaced.

        write: called with the directory (on rank 0) before the commit, to write what else belongs to the step: a
            configuration, a tokenizer.
        """
        target = self.path(step)
        with self._meet(str(target)) as ranks:
            entries = self._begin(ranks, target, state)
            new = _NewStep(ranks, target, self._durable)
            try:
                counters: dict[str, Any] = {}
                for entry in entries:
                    save = ranks.save_own if entry.is_own else ranks.save_shared
                    path = os.path.join(new.path, entry.file)
                    counters = add_counters(counters, save(entry.value, path, entry.arguments(self._durable)))
                self._finish(ranks, new, entries, step, write)
            except BaseException:
                new.abandon()
                raise
        return Stats(counters)

    def save_async(
        self,
        step: int,
        state: Mapping[str, Any],
        *,
        snapshot: bool | str = True,
        write: _WRITE | None = None,
    ) -> SaveJob:
        """Saves a step in the background. Returns when a snapshot is taken: training may go on and change the state.

        snapshot: as in `penstock.save_async`. With False the state must not change before the job's `wait` returns.
        write: as in `save`; it is called before this returns.
        """
        target = self.path(step)
        jobs: list[SaveJob] = []
        with self._meet(str(target)) as ranks:
            entries = self._begin(ranks, target, state)
            new = _NewStep(ranks, target, self._durable)
            own = _share(entries, ranks)
            try:
                ranks.together(lambda: start_saves(own, new.path, self._durable, snapshot, jobs))
                ranks.together(lambda: new.write(write))
            except BaseException:
                _cancel(jobs)
                new.abandon()
                raise
        size = sum(job.progress[1] for job in jobs)
        job = _StepJob(str(target), jobs, lambda _: self._commit_in_background(new, own, jobs, step))
        self._job = SaveJob(job, str(target), [], size)
        return self._job

    def restore(
        self, step: int | None = None, into: Mapping[str, Any] | None = None, *, verify: bool | str = False
    ) -> SavedStep | None:
        """Loads a step, the latest one by default. Returns None where there is none yet.

        into: what to fill, by the names of the state: modules (their memory is filled, so an optimizer that was made
            before goes on), anything with ``load_state_dict``, and dicts, which get what was saved as their content.
            Entries that are not named here are loaded when they are asked of what this returns.
        verify: compare what is loaded with its checksums, as in `load`.
        """
        with self._meet(str(self.directory)) as ranks:
            ranks.together(self._finish_last)
            chosen = step if step is not None else self._agreed_latest(ranks)
            if chosen is None:
                return None
            return ranks.together(lambda: self._restore(chosen, into or {}, ranks, verify))

    def remove(self, step: int) -> None:
        """Removes a step. To go back for good, remove the steps after the one that you restore."""
        remove_directory(self.path(step))

    def wait(self) -> None:
        """Waits for the save that is under way, and raises what went wrong with it."""
        self._finish_last()

    def close(self) -> None:
        """The same, and leaves the groups of ranks. The manager can be used again."""
        try:
            self._finish_last()
        finally:
            self._team.close()
            self._team = Alone()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Error as problem:
            if error is None:
                raise
            warn_of(problem)

    def __repr__(self) -> str:
        return f"<penstock.CheckpointManager of {self.directory}: {len(self.steps())} steps, latest {self.latest()}>"

    def _meet(self, title: str, *, in_background: bool = False) -> Ranks:
        """The ranks for one action."""
        if not in_background:
            self._find_team(title)
        return self._team.meet(title, in_background=in_background)

    def _find_team(self, title: str) -> None:
        """torch.distributed may have begun, or begun again, since the last call."""
        if "torch.distributed" not in sys.modules:
            return
        from ._torch.step_ranks import StepRanks, world_size

        if isinstance(self._team, Alone) and world_size() > 1:
            self._team = StepRanks(title, self._timeout)
        elif not self._team.is_current:
            self._team = StepRanks(title, self._timeout) if world_size() > 1 else Alone()

    def _begin(self, ranks: Ranks, target: Path, state: Any) -> list[Entry]:
        """What is to be saved, once no other save is under way."""
        ranks.together(self._take_turn)
        entries = ranks.together(lambda: read_entries(state, self._per_rank, ranks.rank, ranks.world))
        names = "\n".join([str(target), *(f"{entry.name} {entry.is_own}" for entry in entries)])
        other = ranks.first_that_differs(hashlib.sha256(os.fsencode(names)).digest())
        if other is not None:
            raise DistributedError(f"{target}: rank {other} saves another step, or other entries, than rank 0")
        return entries

    def _take_turn(self) -> None:
        if self._when_busy == "refuse" and self._job is not None and not self._job.done:
            raise BusyError(f"the save of {self._job.path} is under way")
        self._finish_last()

    def _finish_last(self) -> None:
        """Waits for the last save, and raises what went wrong, once."""
        job, self._job = self._job, None
        if job is None:
            return
        is_known = job._save.asked
        try:
            job.wait()
        except CancelledError:
            pass  # by whoever has its handle
        except Error:
            if not is_known:
                raise
        except BaseException:
            self._job = job  # it goes on
            raise

    def _commit_in_background(
        self, new: _NewStep, entries: list[Entry], jobs: list[SaveJob], step: int
    ) -> dict[str, Any]:
        try:
            with self._meet(str(new.target), in_background=True) as ranks:
                counters = ranks.together(lambda: _wait_for_all(jobs))
                self._finish(ranks, new, entries, step, None)
            return counters
        except BaseException:
            _cancel(jobs)
            new.abandon()
            raise

    def _finish(self, ranks: Ranks, new: _NewStep, entries: list[Entry], step: int, write: _WRITE | None) -> None:
        def check() -> None:
            for entry in entries:
                path = os.path.join(new.path, entry.file)
                if os.path.exists(path):  # else other ranks look at it
                    check_loadable(path, entry.name)
            new.write(write)

        def commit() -> None:
            if ranks.rank == 0:
                new.commit()
                self._retain(step)

        ranks.together(check)
        ranks.together(commit)

    def _retain(self, saved: int) -> None:
        """Removes the steps that are not to be kept."""
        if self.keep is None:
            return
        kept = {saved, *self.steps()[-self.keep :]}
        for step in self.steps():
            if step not in kept and not (self.every and step % self.every == 0):
                with suppress(NotFoundError):  # somebody else did
                    self.remove(step)

    def _agreed_latest(self, ranks: Ranks) -> int | None:
        """Rank 0's: others may not see it yet, over a network."""
        latest = ranks.together(self.latest if ranks.rank == 0 else lambda: None)
        text = ranks.send(b"" if latest is None else str(latest).encode(), 0).decode()
        return int(text) if text else None

    def _restore(self, step: int, targets: Mapping[str, Any], ranks: Ranks, verify: bool | str) -> SavedStep:
        path = self.path(step)
        if not path.is_dir():
            known = ", ".join(map(str, self.steps())) or "none"
            raise NotFoundError(f"{path}: there is no step {step}, only {known}")
        saved = SavedStep(step, path, ranks.rank, ranks.world)
        saved.restore(targets, verify)
        return saved


class _NewStep:
    """The directory of a step that is being made: rank 0's, the others write into it."""

    def __init__(self, ranks: Ranks, target: Path, durable: bool) -> None:
        self.target = target
        self._staged: StagedDirectory | None = None
        try:
            made = ranks.together(lambda: self._make(durable) if ranks.rank == 0 else b"")
            self.path = os.fsdecode(ranks.send(made, 0))
        except BaseException:
            self.abandon()
            raise

    def write(self, write: _WRITE | None) -> None:
        if write is not None and self._staged is not None:
            write(self._staged.path)

    def commit(self) -> None:
        if self._staged is not None:
            self._staged.commit(replace=True)

    def abandon(self) -> None:
        if self._staged is not None:
            self._staged.abandon()

    def _make(self, durable: bool) -> bytes:
        parent = self.target.parent
        if not parent.is_dir():
            os.makedirs(parent, exist_ok=True)
            if durable:
                sync_directory(parent.parent)
        remove_dead(parent)
        self._staged = StagedDirectory(self.target, durable=durable)
        return os.fsencode(self._staged.path)


class _StepJob(ThreadJob):
    """The commit of a step, in a thread, once its files are there."""

    def __init__(self, path: str, jobs: list[SaveJob], run: Callable[[Any], dict[str, Any]]) -> None:
        self._files = jobs
        super().__init__(path, None, run)

    def cancel(self) -> None:
        for job in self._files:
            job.cancel()

    @property
    def progress(self) -> tuple[int, int, float]:
        amounts = [job.progress for job in self._files]
        return (sum(done for done, _ in amounts), sum(total for _, total in amounts), super().progress[2])


def _share(entries: list[Entry], ranks: Ranks) -> list[Entry]:
    """What this rank saves: its own, and of what all have every so many-th."""
    return [entry for number, entry in enumerate(entries) if entry.is_own or number % ranks.world == ranks.rank]


def _wait_for_all(jobs: list[SaveJob]) -> dict[str, Any]:
    counters: dict[str, Any] = {}
    for job in jobs:
        counters = add_counters(counters, job.wait())
    return counters


def _cancel(jobs: list[SaveJob]) -> None:
    for job in jobs:
        job.cancel()
    for job in jobs:
        with suppress(Error):
            job.wait()


def _checked_count(name: str, value: Any) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ArgumentError(f"{name} must be a number of steps from 1 on, or None, not {value!r}")
    return value


def _checked_step(step: Any) -> int:
    if isinstance(step, bool) or not hasattr(step, "__index__") or step.__index__() < 0:
        raise ArgumentError(f"a step is a whole number from 0 on, not {step!r}")
    return int(step.__index__())
