"""accelerate: other libraries load and save by penstock, in their own calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._nearest import nearest
from ..errors import ArgumentError, ArgumentTypeError
from ._record import RECORD, Accelerated
from ._switch import LIBRARIES, Switch

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Accelerated", "Acceleration", "accelerate", "accelerated", "decelerate"]

_SWITCH = Switch()


class Acceleration:
    """What `accelerate` returns: `undo` takes that call back, as the end of a ``with`` block does."""

    def __init__(self, libraries: tuple[str, ...]) -> None:
        self.libraries = libraries
        """What the call was for."""
        _SWITCH.turn_on(self, libraries)

    def undo(self) -> None:
        """Takes the call back. What another call wants too stays accelerated. A second time is nothing."""
        _SWITCH.turn_off(self)

    def __enter__(self) -> Acceleration:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()

    def __repr__(self) -> str:
        state = "" if _SWITCH.is_wanted_by(self) else ", undone"
        return f"<penstock.Acceleration of {', '.join(self.libraries)}{state}>"


def accelerate(*libraries: str) -> Acceleration:
    """Has libraries load and save by penstock, in their own calls: ``penstock.accelerate()`` and nothing else changes.

    libraries: of "transformers", "diffusers", "accelerate", "peft", "safetensors" and "torch"; by default all. They
        need not be imported, nor installed. "safetensors" is safe_open, load_file and save_file for the package itself
        and for all modules but those of the other libraries; "torch" is torch.load and torch.save.

    Results are the originals'. What penstock does not serve goes to the original; `accelerated` says what, and why.
    Files appear whole and durable, and a save_pretrained of several files as one.

    Returns what takes it back: ``accelerate().undo()``, or ``with accelerate(): ...``. Calls may be nested, repeated,
    and made from any thread. `decelerate` takes all of them back.
    """
    for name in libraries:
        if not isinstance(name, str):
            raise ArgumentTypeError(f"libraries are named by strings, not by {type(name).__name__}")
        if name not in LIBRARIES:
            near = nearest(name, LIBRARIES)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ArgumentError(f"{name!r} can't be accelerated, but {', '.join(LIBRARIES)} can{hint}")
    return Acceleration(tuple(dict.fromkeys(libraries)) or LIBRARIES)


def decelerate() -> None:
    """Takes back every call of `accelerate`: all libraries have their own functions again."""
    _SWITCH.turn_all_off()


def accelerated() -> Accelerated:
    """What runs on penstock now, and what was served and what fell through so far, and why. Print it."""
    return RECORD.report(_SWITCH.libraries)
