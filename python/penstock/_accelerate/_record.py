"""What was served and what fell through, and why."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from .._fork import new_lock

_MOST_REASONS = 20  # per entry point: reasons may name tensors, of which there are many
_OTHER = "other reasons"


class Accelerated(NamedTuple):
    """What `accelerated` returns: of this process, since it began. Printed, it is a table."""

    libraries: tuple[str, ...]
    """Those that run on penstock now."""
    served: dict[str, int]
    """Calls that penstock answered, by entry point: "safetensors.safe_open", "torch.load" and so on."""
    fell_through: dict[str, dict[str, int]]
    """Calls that went to the original, by entry point and reason."""

    def __str__(self) -> str:
        lines = [f"accelerated: {', '.join(self.libraries) or 'nothing'}"]
        lines += [f"{count:8}  {entry}" for entry, count in self.served.items()]
        for entry, reasons in self.fell_through.items():
            lines += [f"{count:8}  {entry}, by the original: {reason}" for reason, count in reasons.items()]
        return "\n".join(lines)


class Record:
    """Counts, from any thread."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._served: dict[str, int] = {}
        self._fell: dict[str, dict[str, int]] = {}

    def serve(self, entry: str) -> None:
        with self._lock:
            self._served[entry] = self._served.get(entry, 0) + 1

    def fall(self, entry: str, reason: str) -> None:
        with self._lock:
            reasons = self._fell.setdefault(entry, {})
            known = reason if reason in reasons or len(reasons) < _MOST_REASONS else _OTHER
            reasons[known] = reasons.get(known, 0) + 1

    def report(self, libraries: tuple[str, ...]) -> Accelerated:
        with self._lock:
            fell = {entry: dict(reasons) for entry, reasons in sorted(self._fell.items())}
            return Accelerated(libraries, dict(sorted(self._served.items())), fell)


RECORD = Record()


def reason_of(problem: BaseException, path: Any = None) -> str:
    """An error in one line, without the path: the same mistake in many files is one reason."""
    text = " ".join(str(problem).split()) or type(problem).__name__
    if isinstance(path, (str, os.PathLike)):
        text = text.removeprefix(f"{os.fspath(path)!s}: ")
    return text
