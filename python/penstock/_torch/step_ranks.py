"""The ranks that save steps of training together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .._save import save
from ..errors import DistributedError
from .parallel import Part
from .ranks import Ranks, control_group, gist

if TYPE_CHECKING:
    from .._options import Stats

_CPU = torch.device("cpu")


def world_size() -> int:
    """How many ranks there are; 1 where nothing is distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class StepRanks:
    """All ranks. They talk through groups of their own: one for the threads that train, one for those that save."""

    def __init__(self, title: str, timeout: float) -> None:
        self._timeout = timeout
        self._world = dist.group.WORLD
        try:
            self._caller = control_group(timeout)
            self._background = control_group(timeout)
        except RuntimeError as problem:
            raise DistributedError(
                f"{title}: a rank is gone, or did not come within {timeout:g} s ({gist(problem)})"
            ) from problem

    @property
    def is_current(self) -> bool:
        """Whether torch.distributed still runs as it did."""
        return dist.is_initialized() and dist.group.WORLD is self._world

    def meet(self, title: str, *, in_background: bool = False) -> StepPart:
        """The ranks for one action; a context manager. All come to it in the same order."""
        group = self._background if in_background else self._caller
        return StepPart(title, _CPU, self._timeout, group)

    def close(self) -> None:
        """Leaves the groups. Nothing is under way."""
        if self.is_current:
            dist.destroy_process_group(self._caller)
            dist.destroy_process_group(self._background)


class StepPart(Ranks):
    """The ranks while they act, and the save of what all of them have."""

    def save_shared(self, value: Any, path: str, arguments: dict[str, Any]) -> Stats:
        """One file of what every rank has, each writing its share."""
        return Part(self, path, arguments).save(value, "replica")

    def save_own(self, value: Any, path: str, arguments: dict[str, Any]) -> Stats:
        """A file of this rank alone."""
        return self.together(lambda: save(value, path, **arguments))
