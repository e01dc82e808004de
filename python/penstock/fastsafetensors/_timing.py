"""Small helpers that fastsafetensors.parallel_loader has beside its loaders."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from .frameworks import FrameworkOpBase

T = TypeVar("T")


def enable_tqdm(use_tqdm_on_load: bool, framework: FrameworkOpBase[Any, Any] | None = None) -> bool:
    """Whether this process shows a bar: only the first of several does."""
    return use_tqdm_on_load and (framework is None or framework.get_global_rank() == 0)


def parse_time(timestamp_ms: float) -> str:
    """Seconds since 1970, as local time with milliseconds."""
    whole = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(timestamp_ms))
    return f"{whole}.{int(timestamp_ms % 1 * 1000):03d}"


def tqdm(iterable: Iterable[T], *args: Any, **kwargs: Any) -> Iterable[T]:
    """The iterable itself: loads report by penstock's own bar."""
    return iterable


class TimingContext:
    """Measures what runs within it: `elapsed_ms`, and a line to `logger` where it took at least `threshold_ms`."""

    def __init__(
        self,
        name: str,
        logger: Callable[[str], Any] | None = None,
        batch_id: int | None = None,
        threshold_ms: float = 0,
        log_on_exit: bool = True,
    ) -> None:
        self.name = name
        self.logger = logger
        self.batch_id = batch_id
        self.threshold_ms = threshold_ms
        self.log_on_exit = log_on_exit
        self.elapsed_ms = 0.0

    def __enter__(self) -> TimingContext:
        self._start = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.elapsed_ms = (time.monotonic() - self._start) * 1000
        if self.logger is None or not self.log_on_exit or (kind is None and self.elapsed_ms < self.threshold_ms):
            return
        batch = "" if self.batch_id is None else f"Batch {self.batch_id}: "
        self.logger(f"{batch}{self.name} took {self.elapsed_ms:.3f} ms")


class FileBatch:
    """A batch of files that is loaded: its buffer, the names in it, and how long each step took."""

    def __init__(self, fb: Any, keys: list[str], batch_id: int) -> None:
        self.fb = fb
        self.keys = keys
        self.batch_id = batch_id
        self.load_time: float | None = None
        self.add_filenames_time: float | None = None
        self.copy_files_time: float | None = None
