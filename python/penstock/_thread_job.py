"""A save that Python makes in a thread, with the face of the engine's own job."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .errors import ArgumentError, CancelledError, Error

if TYPE_CHECKING:
    from ._progress import Callback


class ThreadJob:
    """A save in a thread, with the face of the engine's own job.

    unstaged: why the snapshot could not be made. run: saves, given a callback that stops it by raising.
    """

    def __init__(self, path: str, unstaged: BaseException | None, run: Callable[[Callback], dict[str, Any]]) -> None:
        self._path = path
        self._unstaged = unstaged
        self._process = os.getpid()
        self._started = time.monotonic()
        self._over = threading.Event()
        self._cancelled = False
        self._moved = (0, 0)
        self._result: dict[str, Any] = {}
        self._problem: Error | None = None
        self._thread = threading.Thread(target=self._run, args=(run,), daemon=True)
        self._thread.start()

    def staged(self, timeout: float | None) -> bool:
        if self._unstaged is not None:
            raise self._unstaged
        return True

    def wait(self, timeout: float | None) -> dict[str, Any] | None:
        if os.getpid() != self._process:
            raise ArgumentError("the save belongs to the process that this one was forked from")
        if not self._over.wait(timeout):
            return None
        self._thread.join()  # to its very end: what it holds of torch must not outlive the interpreter
        if self._problem is not None:
            raise self._problem
        return self._result

    def cancel(self) -> None:
        """Takes effect when this rank next writes; the others fail then too."""
        self._cancelled = True

    @property
    def done(self) -> bool:
        return self._over.is_set()

    @property
    def progress(self) -> tuple[int, int, float]:
        return (*self._moved, time.monotonic() - self._started)

    def _run(self, run: Callable[[Callback], dict[str, Any]]) -> None:
        try:
            self._result = run(self._tick)
        except BaseException as problem:
            # The frames hold the file that was begun, which goes away with them.
            traceback.clear_frames(problem.__traceback__)
            known = problem if isinstance(problem, Error) else Error(describe(self._path, problem))
            self._problem = known.with_traceback(None)
        finally:
            self._over.set()

    def _tick(self, done: int, total: int) -> None:
        self._moved = (done, total)
        if self._cancelled:
            raise CancelledError(f"{self._path}: the save was cancelled")


def describe(path: str, problem: BaseException | None) -> str:
    """A problem of a save, in one line."""
    return f"{path}: {type(problem).__name__}: {problem}".removesuffix(": ")
