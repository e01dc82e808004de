"""`progress=`: a callable, or True for a bar on a terminal and an occasional line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Union

Callback = Callable[[int, int], Any]
Progress = Union[bool, Callback, None]

_SECONDS_BETWEEN_LINES = 2.0


@contextmanager
def reporting(progress: Progress, what: str) -> Iterator[Callback | None]:
    """The callable to give to the engine, for as long as the work takes."""
    if progress is None or progress is False:
        yield None
    elif callable(progress):
        yield progress
    elif sys.stderr.isatty() and (bar := _make_bar()) is not None:
        with bar:
            yield _draw_into(bar, what)
    else:
        yield _Lines(what)


def _make_bar() -> Any:
    """A bar on standard error; None without rich."""
    try:
        from rich import progress as widgets
        from rich.console import Console
    except ImportError:
        return None
    return widgets.Progress(
        widgets.TextColumn("{task.description}"),
        widgets.BarColumn(),
        widgets.DownloadColumn(binary_units=True),
        widgets.TransferSpeedColumn(),
        widgets.TimeRemainingColumn(),
        console=Console(stderr=True),
    )


def _draw_into(bar: Any, what: str) -> Callback:
    task = bar.add_task(what, total=None)

    def update(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)

    return update


class _Lines:
    """Prints a line every two seconds and one at the end."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._start = self._last = time.monotonic()
        self._ended = False

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        ended = done >= total
        if self._ended or (not ended and now - self._last < _SECONDS_BETWEEN_LINES):
            return
        self._last, self._ended = now, ended
        seconds = now - self._start
        print(f"{self._what}: {done / 2**20:,.0f} of {total / 2**20:,.0f} MiB, {seconds:.1f} s", file=sys.stderr)
