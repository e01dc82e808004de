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
    if callable(progress):
        yield progress
    elif not progress:
        yield None
    elif sys.stderr.isatty() and (make_bar := _bar_maker()) is not None:
        bar = _Bar(what, make_bar)
        try:
            yield bar
        finally:
            bar.close()
    else:
        yield _Lines(what)


def in_parts(callback: Callback | None, sizes: list[int]) -> list[Callback | None]:
    """A callable for each of several steps, which together report as one."""
    if callback is None:
        return [None] * len(sizes)
    return [_part(callback, sum(sizes[:step]), sum(sizes[step + 1 :])) for step in range(len(sizes))]


def _part(callback: Callback, before: int, after: int) -> Callback:
    return lambda done, total: callback(before + done, before + total + after)


def moved_text(done: int, total: int, seconds: float) -> str:
    """How far it is: "512.0 of 2,048.0 MiB, 1.95 GiB/s". There is no speed before there is time."""
    text = f"{done / 2**20:,.1f} of {total / 2**20:,.1f} MiB"
    return f"{text}, {done / 2**30 / seconds:.2f} GiB/s" if seconds > 0 else text


class _Bar:
    """A bar on standard error, drawn when the first bytes are known of: work without any draws none."""

    def __init__(self, what: str, make_bar: Callable[[], Any]) -> None:
        self._what = what
        self._make_bar = make_bar
        self._start = time.monotonic()
        self._bar: Any = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = self._make_bar()
            self._bar.start()
            self._task = self._bar.add_task(self._what, moved="")
        # Nothing of nothing is all of it, and the bar full.
        full = max(total, 1)
        moved = moved_text(done, total, time.monotonic() - self._start)
        self._bar.update(self._task, completed=done if total > 0 else full, total=full, moved=moved)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar_maker() -> Callable[[], Any] | None:
    """None without rich."""
    try:
        from rich import progress as widgets
        from rich.console import Console
    except ImportError:
        return None
    return lambda: widgets.Progress(
        widgets.TextColumn("{task.description}"),
        widgets.BarColumn(),
        widgets.TextColumn("{task.fields[moved]}"),
        widgets.TimeRemainingColumn(),
        console=Console(stderr=True),
    )


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
        print(f"{self._what}: {moved_text(done, total, now - self._start)}", file=sys.stderr)
