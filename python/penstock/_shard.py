"""`shard=`: which part of each tensor of a checkpoint a rank reads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from ._nearest import has_wildcards, suggest
from ._parts import Part as Part
from ._parts import Range as Range
from ._parts import check_bytes, chunk, normal_part, slices_part, strided_chunk
from ._select import TensorInfo
from ._shard_styles import StylePlan
from .errors import ArgumentError, DistributedError, UnknownTensorError

if TYPE_CHECKING:
    from ._frameworks import Info

Plan = Union[Mapping[str, Any], Callable[[TensorInfo], Any]]


@dataclass(frozen=True)
class Shard:
    """A plan, and whose part of it is wanted: a rank of so many, this process's in a group, or its place in a mesh.

    plan: ``{pattern: how}``, a name before globs, the first glob that matches before later ones. `how` is a dimension
        that is split as torch.chunk does, None for the whole tensor, a tuple of slices, or placements of DTensor, one
        for each dimension of the mesh. Or a tensor-parallel plan of transformers, ``{module: style}``. Or a callable
        that is given each tensor's `TensorInfo` and returns `how`. What no pattern matches is read whole.
    rank, world: which of how many; no torch.distributed is needed.
    group: a process group of torch; by default the default one.
    mesh: a device mesh of torch. For other plans than placements it has one dimension: ``mesh["tp"]``.
    """

    plan: Plan
    rank: int | None = None
    world: int | None = None
    group: Any = None
    mesh: Any = None

    def __post_init__(self) -> None:
        if (self.rank is None) != (self.world is None):
            raise ArgumentError("Shard: rank and world are given together")
        if sum(each is not None for each in (self.rank, self.group, self.mesh)) > 1:
            raise ArgumentError("Shard: give one of rank and world, group, or mesh")
        if self.rank is not None and self.world is not None and not 0 <= self.rank < self.world:
            raise ArgumentError(f"Shard: rank {self.rank} is not one of {self.world}")


ShardLike = Union[Shard, Plan, None]


class ShardedParts(NamedTuple):
    """What a rank reads. `parts` has the tensors of which it does not read all; `infos` all that were asked about."""

    parts: dict[str, Part]
    rank: int
    world: int
    infos: Sequence[Info]
    shard: Shard
    unused: tuple[str, ...] = ()  # names of a transformers plan that the checkpoint has not: plans cover variants


class _Position:
    """Where this process stands, asked for when a plan needs it: one of slices does not."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    @cached_property
    def rank_and_world(self) -> tuple[int, int]:
        shard = self._shard
        if shard.rank is not None and shard.world is not None:
            return shard.rank, shard.world
        if shard.mesh is not None:
            if len(tuple(shard.mesh.shape)) != 1:
                raise ArgumentError(
                    f"shard: a mesh of shape {tuple(shard.mesh.shape)} needs placements in the plan, "
                    'one for each of its dimensions; or give one dimension of it, as mesh["tp"]'
                )
            return self.coordinate[0], int(shard.mesh.shape[0])
        return _rank_in(shard.group)

    @cached_property
    def coordinate(self) -> tuple[int, ...]:
        """This process's place in the mesh."""
        found = self._shard.mesh.get_coordinate()
        if found is None:
            raise ArgumentError("shard: this rank is not in the mesh")
        return tuple(found)

    @cached_property
    def for_stats(self) -> tuple[int, int]:
        """The rank and the number of ranks; (0, 1) where nobody needed to know."""
        if self._shard.mesh is None:
            known = self._shard.rank is not None or self._shard.group is not None or _initialized() is not None
            return self.rank_and_world if known else (0, 1)
        rank = 0
        world = 1
        for at, size in zip(self.coordinate, self._shard.mesh.shape, strict=True):
            rank, world = rank * int(size) + at, world * int(size)
        return rank, world

    def part(self, where: str, shape: tuple[int, ...], how: Any) -> Part:
        """What one entry of a plan gives of a tensor."""
        if how is None:
            return ()
        if isinstance(how, int) and not isinstance(how, bool):
            dim = _dimension(where, shape, how)
            rank, world = self.rank_and_world
            dims: list[list[Range]] = [[(0, size, 1)] for size in shape]
            dims[dim] = chunk(dims[dim], world, rank)
            return normal_part(shape, dims)
        if isinstance(how, slice) or how is Ellipsis:
            return slices_part(where, shape, [how])
        if _is_placement(how):
            return self._placed(where, shape, [how])
        if isinstance(how, (tuple, list)):
            if any(_is_placement(each) for each in how):
                return self._placed(where, shape, how)
            return slices_part(where, shape, how)
        raise ArgumentError(
            f"{where}: expected a dimension, None, slices or placements, not {type(how).__name__} ({how!r})"
        )

    def _placed(self, where: str, shape: tuple[int, ...], placements: Sequence[Any]) -> Part:
        mesh = self._shard.mesh
        if mesh is None:
            raise ArgumentError(f"{where}: placements need a mesh: penstock.Shard(plan, mesh=mesh)")
        return placed_part(where, shape, placements, tuple(mesh.shape), self.coordinate)


def placed_part(
    where: str, shape: Sequence[int], placements: Sequence[Any], mesh_shape: Sequence[int], coordinate: Sequence[int]
) -> Part:
    """What DTensor's placements, one for each dimension of a mesh, give to the rank at a place in it."""
    if len(placements) != len(mesh_shape):
        raise ArgumentError(
            f"{where}: {len(placements)} placement{'s' * (len(placements) != 1)} for a mesh of {len(mesh_shape)} "
            f"dimension{'s' * (len(mesh_shape) != 1)}"
        )
    dims: list[list[Range]] = [[(0, size, 1)] for size in shape]
    for placement, count, index in zip(placements, mesh_shape, coordinate, strict=True):
        if not _is_placement(placement):
            raise ArgumentError(f"{where}: {placement!r} is not a placement of DTensor")
        if placement.is_replicate():
            continue
        if placement.is_partial() or not isinstance(getattr(placement, "dim", None), int):
            raise ArgumentError(f"{where}: {placement!r} says nothing about which part a rank reads")
        dim = _dimension(where, tuple(shape), placement.dim)
        blocks = int(getattr(placement, "split_factor", 1))
        dims[dim] = strided_chunk(dims[dim], int(count), int(index), blocks)
    return normal_part(shape, dims)


def resolve_shard(shard: ShardLike, infos: Sequence[Info]) -> ShardedParts:
    """What this rank reads of each of these tensors."""
    asked = shard if isinstance(shard, Shard) else Shard({} if shard is None else shard)
    position = _Position(asked)
    parts: dict[str, Part] = {}
    find, unused = _finder(asked.plan, infos, position)
    for info in infos:
        part = find(info)
        if part:
            check_bytes(info, part)
            parts[info[0]] = part
    return ShardedParts(parts, *position.for_stats, infos, asked, unused)


def _finder(plan: Any, infos: Sequence[Info], position: _Position) -> tuple[Callable[[Info], Part], tuple[str, ...]]:
    """The function that gives a tensor's part, and what of the plan goes unused."""
    if callable(plan):
        return lambda info: position.part(f"shard: {info[0]}", info[2], plan(TensorInfo(info))), ()
    if not isinstance(plan, Mapping):
        raise ArgumentError(f"shard: expected a dict, a callable or penstock.Shard, not {type(plan).__name__}")
    for pattern in plan:
        if not isinstance(pattern, str):
            raise ArgumentError(f"shard: patterns are strings, not {type(pattern).__name__}")
    styles = [pattern for pattern, how in plan.items() if isinstance(how, str)]
    if not styles:
        matched = _match(plan, [info[0] for info in infos])
        return lambda info: position.part(f"shard: {info[0]}", info[2], matched.get(info[0])), ()
    if len(styles) < len(plan):
        other = next(pattern for pattern in plan if pattern not in styles)
        raise ArgumentError(f"shard: {styles[0]!r} has a style of transformers and {other!r} none: keep to one kind")
    return _style_finder(plan, infos, position)


def _style_finder(
    plan: Mapping[str, str], infos: Sequence[Info], position: _Position
) -> tuple[Callable[[Info], Part], tuple[str, ...]]:
    names = [info[0] for info in infos]
    styled = StylePlan(plan, names)
    styled.count_experts(names)

    def find(info: Info) -> Part:
        dims = styled.ranges(info[0], info[2], lambda: position.rank_and_world)
        return () if dims is None else normal_part(info[2], dims)

    return find, styled.unused


def _match(plan: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The plan's entry for each name that one matches. A pattern that matches nothing is an error."""
    known = set(names)
    globs = [pattern for pattern in plan if pattern not in known]
    matched: dict[str, Any] = {}
    used: set[str] = set()
    for name in names:
        pattern = name if name in plan else next((each for each in globs if fnmatchcase(name, each)), None)
        if pattern is not None:
            matched[name] = plan[pattern]
            used.add(pattern)
    for pattern in globs:
        if pattern not in used and not any(fnmatchcase(name, pattern) for name in names):
            what = "matches" if has_wildcards(pattern) else "is called"
            raise UnknownTensorError(f"shard: no tensor {what} {pattern!r}{suggest(pattern, names)}")
    return matched


def _dimension(where: str, shape: tuple[int, ...], dim: int) -> int:
    if not -len(shape) <= dim < len(shape):
        raise ArgumentError(
            f"{where}: its shape {shape} has no dimension {dim}; give it an entry of its own, None for all of it"
        )
    return dim % len(shape)


def _is_placement(value: Any) -> bool:
    return hasattr(value, "is_replicate") and hasattr(value, "is_partial")


def _initialized() -> Any:
    """torch.distributed, where it was initialised: who has done so has imported it."""
    distributed = sys.modules.get("torch.distributed")
    return distributed if distributed is not None and distributed.is_initialized() else None


def _rank_in(group: Any) -> tuple[int, int]:
    distributed = _initialized()
    if distributed is None:
        raise DistributedError(
            "shard: torch.distributed is not initialised, so this process has no rank: call init_process_group, "
            "or give one by penstock.Shard(plan, rank=0, world=4)"
        )
    rank, world = distributed.get_rank(group), distributed.get_world_size(group)
    if rank < 0:
        raise ArgumentError("shard: this rank is not in the group")
    return int(rank), int(world)
