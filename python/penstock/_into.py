"""load_into: a checkpoint into a model, or into tensors that exist."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ._dtypes import BITS, KINDS
from ._load import title
from ._options import load_options, open_reader
from ._places import find_places, is_module
from ._progress import reporting
from ._select import resolve
from .errors import ArgumentError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from . import _core
    from ._frameworks import Framework, Info, Place
    from ._options import LoadTuning, Paths
    from ._progress import Callback, Progress
    from ._select import Select

_NAMES_IN_A_MESSAGE = 5


class LoadedInto(NamedTuple):
    """What `load_into` left over, as torch's load_state_dict tells it."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def load_into(
    target: Any,
    paths: Paths,
    *,
    strict: bool = True,
    assign: bool = True,
    select: Select = None,
    dtype: Any = None,
    cache: str = "auto",
    verify: bool = False,
    progress: Progress = None,
    stats: dict[str, Any] | None = None,
    **tuning: Unpack[LoadTuning],
) -> LoadedInto:
    """Loads a checkpoint into a torch module, or into a dict of tensors or arrays.

    Names, shapes and element types are checked before anything changes. Tensors of the target that are tied (the same
    memory under several names) stay tied, and one of their names in the file is enough.

    strict: every name must be in both the target and the file.
    assign: replace the target's tensors by the loaded ones, in the file's element type or `dtype`. It is the quickest way,
        and the one for modules on the meta device. Without it the bytes are read straight into the memory that is there
        and converted to its element type; an error while reading leaves it partly overwritten.
    The other arguments are those of `load`.
    """
    if dtype is not None and not assign:
        raise ArgumentError("dtype= needs assign=True: otherwise the target's own types decide")
    reader = open_reader(paths)
    places, framework = find_places(target)
    matched = _match(places, reader, resolve(select, reader))
    _check(matched, places, strict=strict, assign=assign)
    options = load_options(dtype=dtype, verify=verify, cache=cache, **tuning)
    with reporting(progress, f"loading {title(paths)}") as callback:
        if assign:
            counters = _assign(target, matched, places, framework, reader, options, callback)
        else:
            counters = _read_into(target, matched, framework, reader, options, callback)
    if stats is not None:
        stats.update(counters)
    return LoadedInto(matched.missing, matched.unexpected)


class _Matched(NamedTuple):
    """Which tensor of the file goes where. `ties` are all names of the target that share a place."""

    pairs: list[tuple[Info, Place]]
    ties: dict[str, list[str]]  # by the name in the file
    missing: list[str]
    unexpected: list[str]


def _match(places: Mapping[str, Place], reader: _core.Reader, names: list[str] | None) -> _Matched:
    wanted = None if names is None else set(names)
    infos = {info[0]: info for info in reader.infos() if wanted is None or info[0] in wanted}
    groups: dict[Any, list[str]] = {}
    for name, place in places.items():
        groups.setdefault(place.identity, []).append(name)
    matched = _Matched([], {}, [], [name for name in infos if name not in places])
    for tied in groups.values():
        found = next((name for name in tied if name in infos), None)
        if found is None:
            matched.missing.extend(tied)
        else:
            matched.pairs.append((infos[found], places[found]))
            matched.ties[found] = tied
    return matched


def _check(matched: _Matched, places: Mapping[str, Place], *, strict: bool, assign: bool) -> None:
    problems = []
    if strict and matched.missing:
        problems.append(f"not in the file: {_list(matched.missing)}")
    if strict and matched.unexpected:
        problems.append(f"not in the target: {_list(matched.unexpected)}")
    mismatches = [problem for info, place in matched.pairs if (problem := _mismatch(info, place, assign=assign))]
    if mismatches:
        problems.append(_list(mismatches))
    if problems:
        raise ArgumentError(f"the checkpoint does not fit its target: {'; '.join(problems)}")


def _mismatch(info: Info, place: Place, *, assign: bool) -> str | None:
    name, dtype, shape, *_ = info
    if shape != place.shape:
        return f"{name} has shape {list(shape)} in the file and {list(place.shape)} in the target"
    if dtype != place.dtype and (KINDS[dtype] != KINDS[place.dtype] or min(BITS[dtype], BITS[place.dtype]) < 8):
        return f"{name} is {dtype} in the file and {place.dtype} in the target"
    if not assign and place.obstacle is not None:
        return f"{name} {place.obstacle}"
    return None


def _list(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMES_IN_A_MESSAGE])
    more = len(names) - _NAMES_IN_A_MESSAGE
    return f"{shown} and {more} more" if more > 0 else shown


def _assign(
    target: Any,
    matched: _Matched,
    places: Mapping[str, Place],
    framework: Framework,
    reader: _core.Reader,
    options: _core.LoadOptions,
    callback: Callback | None,
) -> dict[str, Any]:
    loaded, counters = reader.load([info[0] for info, _ in matched.pairs], options, callback, framework.build)
    replacements: dict[str, Any] = {}
    for name, tied in matched.ties.items():
        values = {id(places[other].value): places[other].value for other in tied}
        made = {key: framework.replacement(value, loaded[name]) for key, value in values.items()}
        replacements.update((other, made[id(places[other].value)]) for other in tied)
    if is_module(target):
        _hand_over(target, replacements, assign=True)
    else:
        _update(target, replacements)
    return counters


def _update(target: MutableMapping[str, Any], replacements: dict[str, Any]) -> None:
    for name, tensor in replacements.items():
        target[name] = tensor


def _hand_over(module: Any, tensors: dict[str, Any], *, assign: bool) -> None:
    """Lets the module take tensors by its own rules."""
    try:
        refused = module.load_state_dict(tensors, strict=False, assign=assign).unexpected_keys
    except RuntimeError as problem:
        raise ArgumentError(f"the module can't take what was loaded: {' '.join(str(problem).split())}") from problem
    if refused:
        raise ArgumentError(f"the module's load_state_dict does not take what its state_dict gives: {_list(refused)}")


def _read_into(
    target: Any,
    matched: _Matched,
    framework: Framework,
    reader: _core.Reader,
    options: _core.LoadOptions,
    callback: Callback | None,
) -> dict[str, Any]:
    """What can be read in place is; the rest is loaded beside and copied, or handed to the module."""
    rows: list[tuple[str, int, int, str | None]] = []
    changed: list[Any] = []
    beside: dict[str, Place] = {}
    for (name, dtype, *_), place in matched.pairs:
        if place.is_copy or place.address is None or (dtype != place.dtype and KINDS[dtype] != "floating"):
            beside[name] = place
        elif place.nbytes > 0:
            rows.append((name, place.address, place.nbytes, None if dtype == place.dtype else place.dtype))
            changed.append(place.value)
    loaded = _load_beside(list(beside), framework, reader, options)
    try:
        counters = reader.load_into(rows, options, callback)
    finally:
        for value in changed:
            framework.mark_changed(value)
    handed: dict[str, Any] = {}
    for name, tensor in loaded.items():
        if beside[name].is_copy:
            handed.update(dict.fromkeys(matched.ties[name], tensor))
        else:
            framework.copy_into(beside[name].value, tensor)
    if handed:
        _hand_over(target, handed, assign=False)
    return counters


def _load_beside(
    names: list[str], framework: Framework, reader: _core.Reader, options: _core.LoadOptions
) -> dict[str, Any]:
    if not names:
        return {}
    loaded: dict[str, Any] = reader.load(names, options, None, framework.build)[0]
    return loaded
