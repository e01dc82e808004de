"""The ranks that one loader serves. How they meet, agree and fail together is in `penstock._torch.rank_group`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._torch import rank_group
from .._torch.rank_group import chosen_timeout as chosen_timeout
from .._torch.rank_group import describe as describe

if TYPE_CHECKING:
    import torch.distributed as dist


class RankGroup(rank_group.RankGroup):
    """The ranks of a process group, over which tensors on GPUs go."""

    def __init__(self, pg: dist.ProcessGroup, timeout: float) -> None:
        super().__init__(rank_group.Members.of(pg), timeout, "fastsafetensors")
        self.process_group = pg
