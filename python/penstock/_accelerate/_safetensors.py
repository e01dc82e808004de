"""What takes the place of safetensors.safe_open, and of load_file and save_file of safetensors.torch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..errors import Error
from ..safetensors import PySafeSlice
from ..safetensors import safe_open as our_safe_open
from ..safetensors import torch as ours
from . import _save_sets
from ._doubt import is_final, why_not_replaced
from ._record import RECORD, reason_of

_FRAMEWORKS = ("pt", "torch", "pytorch", "np", "numpy")

OPEN = "safetensors.safe_open"
LOAD = "safetensors.torch.load_file"
SAVE = "safetensors.torch.save_file"


class _Slice(PySafeSlice):
    """An index that penstock refuses is the original's to answer."""

    def __getitem__(self, index: Any) -> Any:
        try:
            return super().__getitem__(index)
        except Error as problem:
            if is_final(problem, maps=True):
                raise
            name = self._tensor.name
            return self._file.ask_original(problem, lambda file: file.get_slice(name)[index])  # type: ignore[attr-defined]


class _OpenFile(our_safe_open):
    """A file that penstock reads; for a question that it has no answer to, the original opens the file too."""

    def __init__(self, open_original: Callable[[], Any], *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._open_original = open_original

    def get_tensor(self, name: str) -> Any:
        try:
            return super().get_tensor(name)
        except Error as problem:
            if is_final(problem, maps=True):
                raise
            return self.ask_original(problem, lambda file: file.get_tensor(name))

    def get_tensors(self) -> dict[str, Any]:
        try:
            return super().get_tensors()
        except Error as problem:
            if is_final(problem, maps=True):
                raise
            return self.ask_original(problem, lambda file: file.get_tensors())  # type: ignore[no-any-return]

    def get_slice(self, name: str) -> PySafeSlice:
        try:
            return _Slice(self, self._find(name))
        except Error as problem:
            if is_final(problem, maps=True):
                raise
            return self.ask_original(problem, lambda file: file.get_slice(name))  # type: ignore[no-any-return]

    def ask_original(self, problem: Error, question: Callable[[Any], Any]) -> Any:
        """The original's answer, or its error."""
        RECORD.fall(OPEN, reason_of(problem))
        with self._open_original() as file:
            return question(file)


def open_replacement(original: Any, is_on: Callable[[], bool]) -> Any:
    """A class, as the original is one: its instances are files of either kind."""

    class Opening(type):
        def __call__(cls, *arguments: Any, **named: Any) -> Any:
            if not is_on():
                return original(*arguments, **named)
            reason = _why_not_opened(arguments, named)
            if reason is None:
                try:
                    opened = _OpenFile(lambda: original(*arguments, **named), *arguments, **named)
                except (Error, TypeError, OSError) as problem:
                    if isinstance(problem, Error) and is_final(problem, maps=True):
                        raise
                    reason = reason_of(problem, arguments[0] if arguments else named.get("filename"))
                else:
                    RECORD.serve(OPEN)
                    return opened
            RECORD.fall(OPEN, reason)
            return original(*arguments, **named)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, (our_safe_open, original))

    named = {"__doc__": original.__doc__, "__module__": original.__module__, "__wrapped__": original}
    return Opening("safe_open", (), named)


def load_replacement(original: Callable[..., Any], is_on: Callable[[], bool]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load_file(filename: Any, *arguments: Any, **named: Any) -> Any:
        if not is_on():
            return original(filename, *arguments, **named)
        try:
            loaded = ours.load_file(filename, *arguments, **named)
        except (Error, TypeError) as problem:
            if isinstance(problem, Error) and is_final(problem, maps=True):
                raise
            RECORD.fall(LOAD, reason_of(problem, filename))
            return original(filename, *arguments, **named)
        RECORD.serve(LOAD)
        return loaded

    return load_file


def save_replacement(original: Callable[..., Any], is_on: Callable[[], bool]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save_file(tensors: Any, filename: Any, *arguments: Any, **named: Any) -> Any:
        if not is_on():
            return original(tensors, filename, *arguments, **named)
        save = _save_sets.saver_of(filename) or ours.save_file
        reason = why_not_replaced(filename)
        if reason is None:
            try:
                save(tensors, filename, *arguments, **named)
            except (Error, TypeError) as problem:
                if isinstance(problem, Error) and is_final(problem):
                    raise
                reason = reason_of(problem, filename)
        if reason is None:
            return RECORD.serve(SAVE)
        RECORD.fall(SAVE, reason)
        if save is not ours.save_file:
            # The file is one of a set, and all of that is the original's. It goes to the hidden folder first: what the
            # original refuses too is its error here, while the old set is as it was.
            original(tensors, filename, *arguments, **named)
            raise _save_sets.NotServedError(reason)
        return original(tensors, filename, *arguments, **named)

    return save_file


def _why_not_opened(arguments: tuple[Any, ...], named: dict[str, Any]) -> str | None:
    framework = arguments[1] if len(arguments) > 1 else named.get("framework")
    return None if framework in _FRAMEWORKS else f"framework={framework!r}"
