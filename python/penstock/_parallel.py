"""save_parallel, which needs torch when it is called and not before."""

from __future__ import annotations

from ._frameworks import require_torch
from ._options import Path, SaveArguments, Stats
from ._types import State, Unpack

DEFAULT_TIMEOUT = 300.0


def save_parallel(
    obj: State,
    path: Path,
    *,
    partition: str = "replica",
    timeout: float = DEFAULT_TIMEOUT,
    **arguments: Unpack[SaveArguments],
) -> Stats:
    """Saves what every rank of the default process group holds, as one ordinary file or shards, in parallel.

    Every rank calls it with the same state (as data-parallel replicas have it) and the same arguments, which are those
    of `save`. Rank 0 lays the file out, reserves its space and, once all have written and synced their shares, gives it
    its name; with `max_shard_size` the shards and their index appear as one. If any rank fails, dies or takes longer
    than `timeout` seconds to answer, every rank raises and the old file stays. Where ranks name different files, each
    file is written by the first rank that names it, alone.

    partition: who writes: every "replica", or one rank of each "machine" (LOCAL_RANK 0), or two of it, one for each
        "socket" (the first of each half of its ranks).
    """
    require_torch("save_parallel")
    from ._torch.parallel import save_parallel as save

    return save(obj, path, partition=partition, timeout=timeout, **arguments)
