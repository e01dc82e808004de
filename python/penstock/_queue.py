"""Background saves one at a time: a save that waits for its turn, with the face of the engine's own job."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from ._fork import new_lock
from .errors import ArgumentError, CancelledError, Error

if TYPE_CHECKING:
    from . import _core


class Job(Protocol):
    """A save that runs in the background, as the engine has it."""

    def staged(self, timeout: float | None) -> bool: ...

    def wait(self, timeout: float | None) -> dict[str, Any] | None: ...

    def cancel(self) -> None: ...

    @property
    def done(self) -> bool: ...

    @property
    def progress(self) -> tuple[int, int, float]: ...


class QueuedJob:
    """Starts a save when those before it are over, well or not. Until then no memory is taken and none is read."""

    def __init__(self, path: str, before: Sequence[Job], start: Callable[[], _core.SaveJob]) -> None:
        self._path = path
        self._process = os.getpid()
        self._lock = new_lock()
        self._decided = threading.Event()  # it has started, or never will
        self._cancelled = False
        self._job: _core.SaveJob | None = None
        self._problem: Error | None = None
        threading.Thread(target=self._run, args=(list(before), start), daemon=True).start()

    def staged(self, timeout: float | None) -> bool:
        started = time.monotonic()
        if not self._wait_for_start(timeout):
            return False
        return self._started().staged(_left(timeout, started))

    def wait(self, timeout: float | None) -> dict[str, Any] | None:
        started = time.monotonic()
        if not self._wait_for_start(timeout):
            return None
        return self._started().wait(_left(timeout, started))

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            job = self._job
        if job is not None:
            job.cancel()

    @property
    def done(self) -> bool:
        if not self._decided.is_set():
            return False
        return self._job is None or self._job.done

    @property
    def progress(self) -> tuple[int, int, float]:
        return (0, 0, 0.0) if self._job is None else self._job.progress

    def _run(self, before: list[Job], start: Callable[[], _core.SaveJob]) -> None:
        for job in before:
            with suppress(Error):  # which is told to whoever asks that one
                job.wait(None)
        before.clear()
        try:
            with self._lock:
                if self._cancelled:
                    raise CancelledError(f"{self._path}: the save was cancelled before it began")
                self._job = start()
        except Error as problem:
            self._problem = problem
        finally:
            self._decided.set()

    def _wait_for_start(self, timeout: float | None) -> bool:
        if os.getpid() != self._process:
            raise ArgumentError("the save belongs to the process that this one was forked from")
        return self._decided.wait(timeout)

    def _started(self) -> _core.SaveJob:
        if self._job is not None:
            return self._job
        raise self._problem or Error(f"{self._path}: the save could not begin")


def _left(timeout: float | None, started: float) -> float | None:
    return None if timeout is None else max(0.0, timeout - (time.monotonic() - started))
