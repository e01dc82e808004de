"""load_into: which tensor of a checkpoint goes where, and whether it fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from ._dtypes import BITS, FLOATING, KINDS
from .errors import ArgumentError

if TYPE_CHECKING:
    from ._frameworks import Info, Place

_NAMES_IN_A_MESSAGE = 5
_PREFIXES_TO_TRY = 50


class Pair(NamedTuple):
    """A tensor of the file, and where it goes. `tied` are the tensors of the target, by name, that share this place."""

    info: Info
    place: Place
    tied: dict[str, Any]


class Matched(NamedTuple):
    """What of a checkpoint and a target belongs together, and what of both is left over."""

    pairs: list[Pair]
    missing: list[str]
    unexpected: list[str]


def match(places: Mapping[str, Place], infos: Mapping[str, Info]) -> Matched:
    """Brings together the target's places and the tensors of the file, both by the names that the target knows."""
    groups: dict[Any, list[str]] = {}
    for name, place in places.items():
        groups.setdefault(place.identity, []).append(name)
    matched = Matched([], [], [name for name in infos if name not in places])
    for tied in groups.values():
        found = next((name for name in tied if name in infos), None)
        if found is None:
            matched.missing.extend(tied)
        else:
            matched.pairs.append(Pair(infos[found], places[found], {name: places[name].value for name in tied}))
    return matched


def check(matched: Matched, places: Mapping[str, Place], infos: Mapping[str, Info], *, strict: bool) -> None:
    """Refuses names that are only on one side, and shapes and kinds that differ."""
    problems = []
    if strict and matched.missing:
        problems.append(f"not in the file: {in_a_list(matched.missing)}")
    if strict and matched.unexpected:
        problems.append(f"not in the target: {in_a_list(matched.unexpected)}")
    if problems and (hint := prefix_hint(places, infos)):
        problems.append(hint)
    mismatches = [problem for pair in matched.pairs if (problem := _mismatch(pair))]
    if mismatches:
        problems.append(in_a_list(mismatches))
    _refuse(problems)


def check_memory(pairs: Iterable[Pair], dtype: str | None) -> None:
    """Refuses tensors that can't be written to, and a `dtype` that their memory is not of."""
    problems = [f"{pair.info[0]} {pair.place.obstacle}" for pair in pairs if pair.place.obstacle is not None]
    if dtype is not None:
        problems += [
            f"{info[0]} has memory of {place.dtype}: to make it {dtype}, dtype= needs assign=True"
            for info, place, _ in pairs
            if place.dtype in FLOATING and place.dtype != dtype
        ]
    _refuse([in_a_list(problems)] if problems else [])


def _refuse(problems: list[str]) -> None:
    if problems:
        raise ArgumentError(f"the checkpoint does not fit its target: {'; '.join(problems)}")


def _mismatch(pair: Pair) -> str | None:
    (name, dtype, shape, *_), place, _ = pair
    if shape != place.shape:
        return f"{name} has shape {list(shape)} in the file and {list(place.shape)} in the target"
    if dtype != place.dtype and (KINDS[dtype] != KINDS[place.dtype] or min(BITS[dtype], BITS[place.dtype]) < 8):
        return f"{name} is {dtype} in the file and {place.dtype} in the target"
    return None


def in_a_list(names: list[str]) -> str:
    """Some of these, and how many more there are."""
    shown = ", ".join(names[:_NAMES_IN_A_MESSAGE])
    more = len(names) - _NAMES_IN_A_MESSAGE
    return f"{shown} and {more} more" if more > 0 else shown


def prefix_hint(places: Mapping[str, Place], infos: Mapping[str, Info]) -> str | None:
    """What to type where names of the file and of the target differ by a prefix."""
    now = sum(name in places for name in infos)
    in_file = _best_prefix(infos, places)
    in_target = _best_prefix(places, infos)
    if max(in_file[0], in_target[0]) <= now:
        return None
    if in_file[0] >= in_target[0]:
        words, every = _how_many(in_file[1], infos, "the file")
        select = "" if every else f"select={in_file[1] + '*'!r}, "
        return f"{words}: {select}rename=penstock.strip_prefix({in_file[1]!r})"
    words, _ = _how_many(in_target[1], places, "the target")
    return f"{words}: rename=penstock.add_prefix({in_target[1]!r})"


def _how_many(prefix: str, names: Mapping[str, Any], where: str) -> tuple[str, bool]:
    count = sum(name.startswith(prefix) for name in names)
    if count == len(names):
        return f"every name in {where} starts with {prefix!r}", True
    return f"{count} of {len(names)} names in {where} start with {prefix!r}", False


def _best_prefix(names: Mapping[str, Any], others: Mapping[str, Any]) -> tuple[int, str]:
    """The prefix without which most of the names are among the others, and how many are."""
    counted = Counter(prefix for name in names for prefix in islice(_prefixes(name), 3))
    best = (0, "")
    for prefix, _ in counted.most_common(_PREFIXES_TO_TRY):
        hits = sum(name.removeprefix(prefix) in others for name in names if name.startswith(prefix))
        if hits > best[0]:
            best = (hits, prefix)
    return best


def _prefixes(name: str) -> Iterator[str]:
    """Those of "model.layers.0.weight": "model.", "model.layers." ..."""
    for index, character in enumerate(name[:-1]):
        if character in "./":
            yield name[: index + 1]
