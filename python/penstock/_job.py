"""SaveJob: a save that runs in the background."""

from __future__ import annotations

import _thread
import atexit
import os
import sys
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ._options import Stats
from .errors import CancelledError, Error

if TYPE_CHECKING:
    from ._queue import Job


class SaveJob:
    """A save that runs in the background.

    It goes on when its handle is dropped, and the process waits for it before it exits. A failure is raised by `wait`;
    one that nobody has asked for, and nobody can any more, is shown as a warning.
    """

    def __init__(self, job: Job, path: str, owners: list[Any], nbytes: int) -> None:
        _forget_finished()
        self._save = Save(job, path, owners, nbytes, weakref.ref(self))
        _running.add(self._save)
        # No threading.Thread, whose start() waits for ever where the new thread finds no memory to begin with.
        with suppress(RuntimeError):  # While the interpreter exits there are no new threads, and no need of one.
            _thread.start_new_thread(_release_when_staged, (job, owners))

    @property
    def path(self) -> str:
        """Where it saves to."""
        return self._save.path

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._save.done

    @property
    def progress(self) -> tuple[int, int]:
        """(bytes_done, bytes_total)"""
        done, total, _ = self._save.job.progress
        return done, total or self._save.nbytes  # before it has begun there is no total

    def staged(self, timeout: float | None = None) -> bool:
        """Waits until the tensors' memory may change again. False when that takes longer than `timeout` seconds.

        Raises what went wrong when the save has failed.
        """
        save = self._save
        try:
            staged = save.job.staged(timeout)
        except Error:
            save.asked = True
            if save.done:  # else other ranks are still being told
                save.end()
            raise
        if staged:
            save.owners.clear()
        return staged

    def wait(self, timeout: float | None = None) -> Stats:
        """Waits for the end and returns what was done, or raises what went wrong, every time it is called.

        Raises TimeoutError when it takes longer than `timeout` seconds; the save goes on.
        """
        return Stats(self._save.wait(timeout))

    def cancel(self) -> None:
        """Asks it to stop; `wait` then raises CancelledError, unless it had finished. Nothing is left behind."""
        self._save.asked = True
        self._save.job.cancel()

    def __repr__(self) -> str:
        done, total = self.progress
        return f"<penstock.SaveJob of {self.path}, {'done' if self.done else f'{done} of {total} bytes'}>"


class Save:
    """What there is of a save in the background, whether or not somebody keeps its handle."""

    def __init__(
        self, job: Job, path: str, owners: list[Any], nbytes: int, handle: Callable[[], SaveJob | None]
    ) -> None:
        self.job = job
        self.path = path
        self.owners = owners
        self.nbytes = nbytes
        self.asked = False
        self._handle = handle

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self.job.done

    def wait(self, timeout: float | None = None) -> dict[str, Any]:
        """Waits for the end. Raises what went wrong, or TimeoutError."""
        try:
            result = self.job.wait(timeout)
        except Error:
            self.end()
            raise
        if result is None:
            raise TimeoutError(f"{self.path}: the save is not done after {timeout} s")
        self.end()
        return result

    def end(self) -> None:
        """It is over, and somebody knows."""
        self.asked = True
        self.owners.clear()
        _running.discard(self)

    def forget(self) -> None:
        """Lets go of a save that is over, unless it failed and there is somebody who may still ask."""
        try:
            self.job.wait(0)
        except Exception:
            if not self.asked and self._handle() is not None:
                return
        self.finish()

    def finish(self) -> None:
        """Waits, and says what went wrong if nobody has asked."""
        asked = self.asked
        try:
            self.wait()
        except Exception as error:
            if not asked:
                warn_of(error)

    def finish_or_give_up(self) -> KeyboardInterrupt | None:
        """At exit: waits, or stops the save when that is interrupted."""
        try:
            self.finish()
        except KeyboardInterrupt as interrupt:
            self._give_up()
            return interrupt
        return None

    def _give_up(self) -> None:
        self.job.cancel()
        try:
            self.wait()
        except CancelledError:
            _warn(f"{self.path}: the save was interrupted and not written")
        except Exception as error:
            warn_of(error)


_running: set[Save] = set()
os.register_at_fork(after_in_child=_running.clear)  # A fork does not have the threads that save.


def jobs_under_way() -> list[Save]:
    """Those of this process that are not over."""
    return [job for job in list(_running) if not job.done]


def _release_when_staged(job: Job, owners: list[Any]) -> None:
    """Lets the tensors go as soon as their memory is not needed, though nobody may ask."""
    with suppress(Error):
        job.staged(None)
    owners.clear()


def warn_of(problem: Exception) -> None:
    """Tells of a failure that there is nobody to raise to."""
    _warn(f"a background save failed: {problem}")


def _warn(message: str) -> None:
    """Shows a warning. Where warnings are errors there is no caller to raise this one to: it is printed."""
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=4)
    except RuntimeWarning as warning:
        print(f"RuntimeWarning: {warning}", file=sys.stderr)


def _forget_finished() -> None:
    for job in list(_running):
        if job.done:
            job.forget()


@atexit.register
def _finish_all() -> None:
    for interrupt in [job.finish_or_give_up() for job in list(_running)]:
        if interrupt is not None:
            raise interrupt
