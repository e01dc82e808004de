"""load_into: a checkpoint into a model, or into tensors that exist."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ._counters import add_counters
from ._dtypes import KINDS, dtype_name
from ._load import TensorStream, landing_on, title
from ._match import Pair, check, check_memory, in_a_list, match, prefix_hint
from ._options import LoadTuning, Paths, load_options, open_reader
from ._places import find_places, is_module, names_on_meta
from ._progress import Progress, in_parts, reporting
from ._rename import Rename, new_names
from ._select import Select, resolve
from ._sharing import part_nbytes
from ._types import DType, Module, StatsDict, Tensor, Unpack
from .errors import ArgumentError

if TYPE_CHECKING:
    from . import _core
    from ._frameworks import Framework, Info, Landing, Place
    from ._match import Matched
    from ._progress import Callback
    from ._shard import Part


class _LeftOver(NamedTuple):
    missing_keys: list[str]
    unexpected_keys: list[str]


class LoadedInto(_LeftOver):
    """What `load_into` left over: a pair, as torch's load_state_dict gives it.

    `meta_keys` names what of the target is still on the meta device: what was missing, and buffers that are not
    persistent, which no checkpoint holds.
    """

    meta_keys: list[str]

    def __new__(cls, missing_keys: list[str], unexpected_keys: list[str], meta_keys: list[str]) -> LoadedInto:
        self = super().__new__(cls, missing_keys, unexpected_keys)
        self.meta_keys = meta_keys
        return self

    def _replace(self, **fields: Any) -> LoadedInto:
        meta_keys = fields.pop("meta_keys", self.meta_keys)
        return LoadedInto(*super()._replace(**fields), meta_keys)

    def __repr__(self) -> str:
        fields = ((name, getattr(self, name)) for name in (*self._fields, "meta_keys"))
        return f"LoadedInto({', '.join(f'{name}={value!r}' for name, value in fields)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return LoadedInto, (*self, self.meta_keys)


def load_into(
    target: Module | MutableMapping[str, Tensor],
    paths: Paths,
    *,
    strict: bool = True,
    assign: bool | None = None,
    select: Select = None,
    rename: Rename = None,
    dtype: DType = None,
    cache: str = "auto",
    verify: bool | str = False,
    progress: Progress = None,
    stats: StatsDict | None = None,
    **tuning: Unpack[LoadTuning],
) -> LoadedInto:
    """Loads a checkpoint into a torch module, or into a dict of tensors or arrays.

    Bytes are read straight into the memory that is there, and converted to its element type as they land: an optimizer
    that was made before, and whoever else holds the tensors, sees the new values. Tensors on the meta device, which
    have no memory, are replaced by the loaded ones, in the file's element type or `dtype`.

    Parameters that are DTensors, as tensor parallelism and FSDP2 make them, are filled by each rank with its own part,
    straight from the files and without a word to the other ranks; those on the meta device become DTensors of the same
    mesh and placements.

    Names, shapes and element types are checked before anything changes; an error while reading leaves the memory partly
    overwritten. Tensors of the target that are tied (the same memory under several names) stay tied, and one of their
    names in the file is enough.

    strict: every name must be in both the target and the file.
    assign: True replaces every tensor, which maps a cached file without copying it, but leaves an optimizer that was
        made before with the old ones. False replaces none, and refuses a target on the meta device.
    rename: as in `load`; it gives the names that the target has. A file of a wrapped model, whose names all start with
        "module.", needs ``rename=penstock.strip_prefix("module.")``.
    The other arguments are those of `load`.
    """
    reader = open_reader(paths)
    places, framework = find_places(target)
    infos = _infos(reader, select, rename)
    matched = match(places, infos)
    check(matched, places, infos, strict=strict)
    assigned, filled = _divide(matched.pairs, assign)
    check_memory(filled, None if dtype is None else dtype_name(dtype))
    arguments: dict[str, Any] = {"verify": verify, "cache": cache, **tuning}
    load = _Load(target, reader, framework, arguments)
    with reporting(progress, f"loading {title(paths)}") as callback:
        load.run(assigned, filled, dtype, callback)
    if stats is not None:
        stats.update(load.counters)
    return _tell(target, places, infos, matched)


def _infos(reader: _core.Reader, select: Select, rename: Rename) -> dict[str, Info]:
    """What is wanted of the file, by the names that it is to have."""
    names = resolve(select, reader)
    renamed = new_names(rename, reader, names)
    wanted = None if names is None else set(names)
    infos = (info for info in reader.infos() if wanted is None or info[0] in wanted)
    return {info[0] if renamed is None else renamed[info[0]]: info for info in infos}


def _divide(pairs: list[Pair], assign: bool | None) -> tuple[list[Pair], list[Pair]]:
    """Those whose tensors are replaced, and those whose memory is filled."""
    assigned: list[Pair] = []
    filled: list[Pair] = []
    for pair in pairs:
        replaced = pair.place.on_meta if assign is None else assign
        (assigned if replaced else filled).append(pair)
    return assigned, filled


def _tell(target: Any, places: Mapping[str, Place], infos: Mapping[str, Info], matched: Matched) -> LoadedInto:
    """What is left over, with a warning of what nobody would expect."""
    on_meta = names_on_meta(target)
    if nowhere := [name for name in on_meta if name not in places]:
        warnings.warn(
            f"still on the meta device, because no checkpoint holds buffers that are not persistent: "
            f"{in_a_list(nowhere)}; make them again, or build their modules off the meta device",
            stacklevel=3,
        )
    if not matched.pairs and (hint := prefix_hint(places, infos)):
        warnings.warn(f"nothing was loaded: {hint}", stacklevel=3)
    return LoadedInto(matched.missing, matched.unexpected, on_meta)


class _Load:
    """The reads of a load_into. `counters` adds up what they did."""

    def __init__(self, target: Any, reader: _core.Reader, framework: Framework, arguments: dict[str, Any]) -> None:
        self._target = target
        self._reader = reader
        self._framework = framework
        self._arguments = arguments
        self.counters: dict[str, Any] = {}

    def run(self, assigned: list[Pair], filled: list[Pair], dtype: Any, callback: Callback | None) -> None:
        """Whatever can fail before the target changes comes first."""
        straight = [pair for pair in filled if _lands_in_place(pair)]
        beside = [pair for pair in filled if not _lands_in_place(pair)]
        options = load_options(**self._arguments)
        loads, copies = _by_device(assigned), _by_device(beside)
        parts = [sum(_stored_bytes(pair) for pair in part) for part in (*loads.values(), straight, *copies.values())]
        callbacks = iter(in_parts(callback, parts))
        replacements: dict[str, Any] = {}
        for device, pairs in loads.items():
            converting = load_options(dtype=dtype, **self._arguments)
            replacements.update(self._load(pairs, self._landing(device), converting, next(callbacks)))
        progress = next(callbacks)
        if straight or not (assigned or beside):
            self._read_in_place(straight, progress)
        handed: dict[str, Any] = {}
        for device, pairs in copies.items():
            handed.update(self._copy(pairs, self._landing(device), options, next(callbacks)))
        if is_module(self._target):
            _hand_over(self._target, replacements, assign=True)
            _hand_over(self._target, handed, assign=False)
        else:
            for name, tensor in replacements.items():
                self._target[name] = tensor

    def _landing(self, device: Any) -> Landing:
        return landing_on(self._framework, device, self._arguments["cache"])

    def _load(
        self, pairs: list[Pair], landing: Landing, options: _core.LoadOptions, callback: Callback | None
    ) -> dict[str, Any]:
        """What takes the place of the target's tensors, by their names."""
        names = [pair.info[0] for pair in pairs]
        loaded, counters = self._reader.load(names, options, callback, landing.build, landing.allocator, _parts(pairs))
        self._count(counters)
        replacements: dict[str, Any] = {}
        for info, _, tied in pairs:
            # Two parameters over one memory stay two.
            values = {id(value): value for value in tied.values()}
            made = {key: self._framework.replacement(value, loaded[info[0]]) for key, value in values.items()}
            replacements.update((name, made[id(value)]) for name, value in tied.items())
        return replacements

    def _read_in_place(self, pairs: list[Pair], callback: Callback | None) -> None:
        streams = self._framework.streams(place.value for _, place, _ in pairs if place.device is not None)
        options = load_options(streams=streams, **self._arguments)
        rows: list[tuple[str, int, int, str | None, Part]] = [
            (info[0], place.address or 0, place.nbytes, None if info[1] == place.dtype else place.dtype, place.part)
            for info, place, _ in pairs
            if place.nbytes > 0
        ]
        try:
            self._count(self._reader.load_into(rows, options, callback))
        finally:
            for _, place, _ in pairs:
                if place.nbytes > 0:
                    self._framework.mark_changed(place.value)

    def _copy(
        self, pairs: list[Pair], landing: Landing, options: _core.LoadOptions, callback: Callback | None
    ) -> dict[str, Any]:
        """What could not be read in place passes by in a stream. Returns what only the module itself can take."""
        handed: dict[str, Any] = {}
        by_name = {pair.info[0]: pair for pair in pairs}
        stream = TensorStream(self._reader, list(by_name), options, landing, callback, _parts(pairs))
        for name, tensor in stream:
            pair = by_name[name]
            if pair.place.is_copy:
                handed.update(dict.fromkeys(pair.tied, tensor))
            else:
                place = pair.place
                self._framework.copy_into(place.value if place.local is None else place.local, tensor)
        self._count(stream.stats)
        return handed

    def _count(self, counters: dict[str, Any]) -> None:
        self.counters = add_counters(self.counters, counters)


def _parts(pairs: list[Pair]) -> dict[str, Part]:
    """What of tensors that ranks share is this rank's."""
    return {pair.info[0]: pair.place.part for pair in pairs if pair.place.part}


def _stored_bytes(pair: Pair) -> int:
    return part_nbytes(pair.info, pair.place.part)


def _lands_in_place(pair: Pair) -> bool:
    """Whether the engine can put the bytes where they belong. It converts floating types."""
    (_, dtype, *_), place, _ = pair
    if place.is_copy:
        return False
    if place.nbytes == 0:  # there is nothing to put anywhere
        return True
    if place.address is None:
        return False
    return dtype == place.dtype or KINDS[dtype] == "floating"


def _by_device(pairs: list[Pair]) -> dict[Any, list[Pair]]:
    """The pairs by where their tensors are; None for the CPU, and for those that are nowhere."""
    groups: dict[Any, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair.place.device, []).append(pair)
    return groups


def _hand_over(module: Any, tensors: dict[str, Any], *, assign: bool) -> None:
    """Lets the module take tensors by its own rules."""
    if not tensors:
        return
    try:
        refused = module.load_state_dict(tensors, strict=False, assign=assign).unexpected_keys
    except RuntimeError as problem:
        raise ArgumentError(f"the module can't take what was loaded: {' '.join(str(problem).split())}") from problem
    if refused:
        raise ArgumentError(
            f"the module's load_state_dict does not take what its state_dict gives: {in_a_list(refused)}"
        )
