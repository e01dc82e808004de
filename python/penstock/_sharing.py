"""`shard=` of a load: which part of each tensor this rank gets, and in which way the ranks come to their parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

from ._dtypes import BITS, dtype_name
from ._frameworks import get_framework, require_torch
from ._parts import part_shape
from .errors import ArgumentError

if TYPE_CHECKING:
    from . import _core
    from ._frameworks import Framework, Info, Landing
    from ._progress import Callback
    from ._shard import Part, ShardLike
    from ._torch.rank_group import RankGroup

PLANS = ("exact", "scatter", "auto")


def part_nbytes(info: Info, part: Part) -> int:
    """Bytes of a part, as they are stored."""
    _, dtype, shape, *_, nbytes = info
    return prod(part_shape(shape, part)) * BITS[dtype] // 8 if part else nbytes


@contextmanager
def meeting(shard: ShardLike, plan: str) -> Iterator[RankGroup | None]:
    """The ranks that load together; None where each is on its own. What fails in here is told to the others."""
    if plan not in PLANS:
        raise ArgumentError(f"plan must be one of {', '.join(PLANS)}, not {plan!r}")
    if plan == "exact":
        yield None
        return
    if shard is None:
        raise ArgumentError(f"plan={plan!r} needs shard=")
    require_torch(f"plan={plan!r}")
    from ._torch.shards import meet

    with meet(shard) as group:
        yield group


class Sharing:
    """What a load with `shard=` asks for. `parts` is what the engine reads for this rank; `words` goes to `stats`."""

    def __init__(
        self,
        shard: ShardLike,
        plan: str,
        reader: _core.Reader,
        names: Sequence[str] | None,
        group: RankGroup | None = None,
    ) -> None:
        self.parts: dict[str, Part] = {}
        self.words: dict[str, Any] = {}
        self.scatters = False
        if shard is None:
            return
        from ._shard import resolve_shard

        wanted = None if names is None else set(names)
        self._reader = reader
        self._group = group
        self._infos = [info for info in reader.infos() if wanted is None or info[0] in wanted]
        self._resolved = resolve_shard(shard, self._infos)
        self.parts = self._resolved.parts
        way, reason = self._choose(plan)
        self.scatters = way == "scatter"
        self.words = {"plan": f"{way}: {reason}", "rank": self._resolved.rank, "world": self._resolved.world}

    def _choose(self, plan: str) -> tuple[str, str]:
        if plan == "auto" or (plan == "scatter" and self._group is None and self._resolved.world == 1):
            from ._torch.shards import choose_way

            return choose_way(self._group, self._resolved, self._reader)
        if plan == "scatter" and self._group is None:
            raise ArgumentError(
                'plan="scatter" needs a process group or a mesh: a rank given by its number has no peers'
            )
        return plan, "it was asked for"

    def scatter(
        self, options: _core.LoadOptions, dtype: Any, landing: Landing, framework: Framework, callback: Callback | None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Reads each byte once, in all ranks together, and sends it to who wants it."""
        from ._torch.scatter import ToScatter, scatter_load

        assert self._group is not None
        as_arrays = framework is not get_framework("torch")
        converted = None if dtype is None else dtype_name(dtype)
        wanted = ToScatter(self._infos, self.parts, self._reader, options, converted, landing, as_arrays)
        return scatter_load(self._group, wanted, callback)
