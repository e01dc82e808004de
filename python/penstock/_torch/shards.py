"""`plan=` of a load with `shard=`: the ranks that load together, and which way serves them better."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from .._dtypes import BITS
from .._options import load_options
from .._parts import length_of, part_shape
from .._shard import Shard
from .._sharing import part_nbytes
from ..errors import ArgumentError, DistributedError
from .pieces import batches, grid_of
from .rank_group import Members, RankGroup, chosen_timeout
from .scatter import PieceReader, digest_of, gather_parts, shares_of

if TYPE_CHECKING:
    from .. import _core
    from .._frameworks import Info
    from .._parts import Part
    from .._shard import ShardedParts, ShardLike

CALL = "load(plan='auto')"
_LARGEST_GAP = 4095  # between wanted bytes: the engine reads across it
_DRIVE_PROBE = 16 * 2**20
_LINK_PROBE = 8 * 2**20
_LEAST_MEASURED = 64 * 2**20  # bytes of which no way is much faster than the other
_ADVANTAGE = 0.9  # scatter must be expected to take less than this of what exact takes


@contextmanager
def meet(shard: ShardLike) -> Iterator[RankGroup | None]:
    """The ranks that load together; None where there are no others. What fails in here is told to them."""
    members = _members(shard if isinstance(shard, Shard) else Shard({} if shard is None else shard))
    if members is None or len(members.ranks) == 1:
        yield None
        return
    group = RankGroup(members, chosen_timeout(None), "shard")
    try:
        yield group
    except DistributedError:  # the others know
        raise
    except BaseException as error:
        group.fail(error)
        raise
    finally:
        group.release()


def _members(shard: Shard) -> Members | None:
    if shard.rank is not None or not dist.is_initialized():
        return None
    if shard.mesh is not None:
        ranks = [int(rank) for rank in shard.mesh.mesh.flatten()]
        members = Members(f"mesh-{'-'.join(map(str, ranks))}", ranks)
    elif shard.group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ArgumentError("shard: this rank is not in the group")
    else:
        group: Any = dist.group.WORLD if shard.group is None else shard.group
        members = Members.of(group)
    if dist.get_rank() not in members.ranks:
        raise ArgumentError("shard: this rank is not in the mesh")
    return members


class _Measured(NamedTuple):
    """One rank's numbers. Rates are bytes per second, measured while all ranks measure."""

    exact: int  # bytes that it would read for itself
    wanted: int  # bytes that it is to have
    share: int  # bytes that it would read of what all read together
    drive: float
    link: float


def choose_way(group: RankGroup | None, resolved: ShardedParts, reader: _core.Reader) -> tuple[str, str]:
    """ "exact" or "scatter", the same on all ranks, and why."""
    if group is None:
        alone = "this rank was given by its number and knows no others" if resolved.world > 1 else "there is one rank"
        return "exact", alone
    group.agree(CALL, digest_of(resolved.infos))
    everyone = gather_parts(group, CALL, resolved.infos, resolved.parts)
    total = sum(info[5] for info in resolved.infos)
    if total < _LEAST_MEASURED:
        return "exact", f"{_size(total)} are too few to gain by sending"
    grids = {number: grid for number, info in enumerate(resolved.infos) if info[5] and (grid := grid_of(*info[1:3]))}
    share = shares_of(resolved.infos, grids, everyone)[group.rank]
    pieces = PieceReader(reader, load_options(cache="auto"), resolved.infos)
    probe = batches(share, grids, _DRIVE_PROBE)[:1]
    group.agree(CALL, b"probe")  # begin at the same time: drives are shared
    begin = time.monotonic()
    found = group.together(CALL, lambda: [pieces.read(batch, grids).counters for batch in probe], b"drive")
    seconds = time.monotonic() - begin
    drive = sum(counters["bytes"] for counters in found) / max(seconds, 1e-6)
    own = _Measured(
        sum(_bytes_read(info, resolved.parts.get(info[0], ())) for info in resolved.infos),
        sum(part_nbytes(info, resolved.parts.get(info[0], ())) for info in resolved.infos),
        sum((piece.end - piece.begin) * grids[piece.number].row_nbytes for piece in share),
        drive,
        _link_rate(group),
    )
    return judge([_Measured(*json.loads(each)) for each in group.gather(CALL, json.dumps(own).encode())])


def judge(ranks: list[_Measured]) -> tuple[str, str]:
    """The way that the slowest rank is done with first, by everybody's numbers."""
    drives = [max(each.drive, 1.0) for each in ranks]
    exact = max(each.exact / drive for each, drive in zip(ranks, drives, strict=True))
    others = 1 - 1 / len(ranks)
    reading = max(each.share / drive for each, drive in zip(ranks, drives, strict=True))
    sending = max(each.wanted * others / max(each.link, 1.0) for each in ranks)
    scatter = reading + sending  # they overlap, but for the same processors and memory: not to be counted on
    way = "scatter" if scatter < _ADVANTAGE * exact else "exact"
    rates = f"drive {_size(sum(drives))}/s, link {_size(sum(each.link for each in ranks))}/s, of all ranks"
    reason = (
        f"own parts are {_size(sum(each.exact for each in ranks))} in {exact:.3g} s; "
        f"{_size(sum(each.share for each in ranks))} read once and sent in {scatter:.3g} s ({rates})"
    )
    return way, reason


def _link_rate(group: RankGroup) -> float:
    """Bytes per second to this rank while every rank sends to the next, with the copies that a load makes of them."""
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    data = torch.zeros(_LINK_PROBE, dtype=torch.uint8)
    with group.reachable(CALL):
        for nbytes in (1, _LINK_PROBE):  # the first connects
            begin = time.monotonic()
            message, space = data[:nbytes].clone(), torch.empty(nbytes, dtype=torch.uint8)  # both fresh: page faults
            group.finish([group.lane.send([message], after, 0), group.lane.recv([space], before, 0)])
            space.clone()
    return _LINK_PROBE / max(time.monotonic() - begin, 1e-6)


def _bytes_read(info: Info, part: Part) -> int:
    """Bytes that the engine reads for a part: it reads across small gaps."""
    _, dtype, shape, *_ = info
    dim = len(part) - 1
    if dim < 0 or not part[dim]:
        return part_nbytes(info, part)
    stride = prod(shape[dim + 1 :]) * BITS[dtype] // 8
    outer = prod(part_shape(shape[:dim], part[:dim]))
    begin, end = part[dim][0][0], part[dim][-1][1]
    steps = max(step for _, _, step in part[dim])
    length = length_of(part[dim]) if (steps - 1) * stride > _LARGEST_GAP else end - begin
    if outer > 1 and length == end - begin and (shape[dim] - length) * stride <= _LARGEST_GAP:
        length = shape[dim]
    return outer * length * stride


def _size(nbytes: float) -> str:
    for unit in ("B", "KB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} GB"
