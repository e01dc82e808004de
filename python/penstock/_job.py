"""SaveJob: a save that runs in the background."""

from __future__ import annotations

import atexit
import warnings
from typing import TYPE_CHECKING, Any

from ._options import Stats
from .errors import Error

if TYPE_CHECKING:
    from . import _core


class SaveJob:
    """A save that runs in the background.

    It goes on when its handle is dropped, and the process waits for it before it exits. An error that nobody asked for
    with `wait` is shown as a warning then.
    """

    def __init__(self, job: _core.SaveJob, path: str, owners: list[Any]) -> None:
        self._job = job
        self._path = path
        self._owners = owners
        self._asked = False
        _forget_finished()
        _running.add(self)

    @property
    def path(self) -> str:
        """Where it saves to."""
        return self._path

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._job.done

    @property
    def progress(self) -> tuple[int, int]:
        """(bytes_done, bytes_total)"""
        done, total, _ = self._job.progress
        return done, total

    def staged(self, timeout: float | None = None) -> bool:
        """Waits until the tensors' memory may change again. False when that takes longer than `timeout` seconds."""
        return self._job.staged(timeout)

    def wait(self, timeout: float | None = None) -> Stats:
        """Waits for the end and returns what was done, or raises what went wrong, every time it is called.

        Raises TimeoutError when it takes longer than `timeout` seconds; the save goes on.
        """
        try:
            result = self._job.wait(timeout)
        except Error:
            self._end()
            raise
        if result is None:
            raise TimeoutError(f"{self._path}: the save is not done after {timeout} s")
        self._end()
        return Stats(result)

    def cancel(self) -> None:
        """Asks it to stop; `wait` then raises CancelledError, unless it had finished. Nothing is left behind."""
        self._asked = True
        self._job.cancel()

    def _end(self) -> None:
        self._asked = True
        self._owners = []
        _running.discard(self)

    def _finish(self) -> None:
        """Waits, and says what went wrong if nobody has asked."""
        asked = self._asked
        try:
            self.wait()
        except Error as error:
            if not asked:
                warnings.warn(f"a background save failed: {error}", RuntimeWarning, stacklevel=2)

    def _finish_or_cancel(self) -> None:
        try:
            self._finish()
        except KeyboardInterrupt:
            self.cancel()
            self._finish()

    def __repr__(self) -> str:
        done, total = self.progress
        return f"<penstock.SaveJob of {self._path}, {'done' if self.done else f'{done} of {total} bytes'}>"


_running: set[SaveJob] = set()


def _forget_finished() -> None:
    for job in [job for job in _running if job.done]:
        job._finish()


@atexit.register
def _finish_all() -> None:
    for job in list(_running):
        job._finish_or_cancel()
