"""What takes the place of torch.load and torch.save."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..errors import Error
from ._doubt import is_final, why_not_replaced
from ._record import RECORD, reason_of

LOAD = "torch.load"
SAVE = "torch.save"


def load_replacement(original: Callable[..., Any], is_on: Callable[[], bool]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(f: Any, *arguments: Any, **named: Any) -> Any:
        if not is_on():
            return original(f, *arguments, **named)
        from ..fastpersist import serialization  # not before: it may be penstock itself that is importing torch

        stats: dict[str, Any] = {}
        try:
            loaded = serialization.load(f, *arguments, **named, stats=stats)
        except Error as problem:
            if is_final(problem, maps=named.get("mmap") is True):
                raise
            RECORD.fall(LOAD, reason_of(problem, f))
            return original(f, *arguments, **named)
        except Exception as problem:  # torch was asked already
            RECORD.fall(LOAD, f"it raised {type(problem).__name__}")
            raise
        _count(LOAD, stats, f)
        return loaded

    return load


def save_replacement(original: Callable[..., Any], is_on: Callable[[], bool]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(obj: Any, f: Any, *arguments: Any, **named: Any) -> Any:
        if not is_on():
            return original(obj, f, *arguments, **named)
        from ..fastpersist import serialization

        reason = why_not_replaced(f)
        if reason is None:
            stats: dict[str, Any] = {}
            try:
                serialization.save(obj, f, *arguments, **named, stats=stats)
            except Error as problem:
                if is_final(problem):
                    raise
                reason = reason_of(problem, f)
            else:
                return _count(SAVE, stats, f)
        RECORD.fall(SAVE, reason)
        return original(obj, f, *arguments, **named)

    return save


def _count(entry: str, stats: dict[str, Any], path: Any) -> None:
    """The drop-in leaves to torch what it can't do, and says so."""
    if stats.get("path") == "torch":
        RECORD.fall(entry, str(stats["reason"]).removeprefix(f"{path}: "))
    else:
        RECORD.serve(entry)
