"""A process that is the only rank, with the face of several (see `penstock._torch.step_ranks`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ._save import save

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._options import Stats

T = TypeVar("T")


class Alone:
    """The only rank: what it does is done together."""

    rank = 0
    world = 1
    is_current = True

    def meet(self, title: str, *, in_background: bool = False) -> Self:
        """Itself."""
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        pass

    def together(self, action: Callable[[], T]) -> T:
        """Runs it."""
        return action()

    def send(self, content: bytes, sender: int) -> bytes:
        """The content."""
        return content

    def first_that_differs(self, digest: bytes) -> int | None:
        """Nobody."""
        return None

    def save_shared(self, value: Any, path: str, arguments: dict[str, Any]) -> Stats:
        """Saves it."""
        return save(value, path, **arguments)

    save_own = save_shared

    def close(self) -> None:
        """Nothing is open."""
