"""save_pretrained as one: all files of a model's weights appear together, over whatever was there.

The library's own function runs, unchanged, on a hidden folder in the directory that it was given. What it saves there
by save_file goes into a `SetWriter`: files without a name in the directory itself. In the end the small files
(config.json and so on) take their places, those that differ from what is there, and the weights are published as a set:
a crash leaves the old weights or the new ones.
"""

from __future__ import annotations

import filecmp
import functools
import inspect
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .. import _core
from .._save import make_writer
from .._steps import StagedDirectory, remove_dead
from ..safetensors.torch import writing
from ._doubt import why_not_replaced
from ._record import RECORD, reason_of

_STAGED = "penstock"  # the folder is called .penstock.saving-<...>
_INDEX = ".index.json"
_SHARD = re.compile(r"(?P<stem>.+)-\d{5}-of-\d{5}(?P<suffix>\.[^.]+)")
_BARRIER = "barrier_after_gathered_checkpoint_save"


class NotServedError(Exception):
    """Raised through the library's function: the whole save is the original's."""


class SaveSet:
    """The weights that one call saves, by what each set is called: one name, unless a library saves several models."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._writers: dict[str, _core.SetWriter] = {}
        self._staged = StagedDirectory(os.path.join(directory, _STAGED), durable=False)
        self.folder = str(self._staged.path)
        self.published = False

    def save_file(self, tensors: Any, filename: Any, metadata: dict[str, str] | None = None) -> None:
        """Writes one file of a set, which has no name yet."""
        name = os.path.basename(filename)
        target = os.path.join(self._directory, name)
        shard = _SHARD.fullmatch(name)
        base = f"{shard['stem']}{shard['suffix']}" if shard else name
        reason = why_not_replaced(target) or why_not_replaced(os.path.join(self._directory, base))
        if reason is not None:
            raise NotServedError(reason)
        with writing(tensors, metadata) as checked:
            arguments = {"format": "safetensors", "metadata": metadata, "checksums": False}
            writer, owners = make_writer(checked, target, arguments, None)
            if base not in self._writers:
                self._writers[base] = _core.SetWriter(os.path.join(self._directory, base), True)
            self._writers[base].add(writer)
        del owners

    def publish(self) -> None:
        """Gives all files their names."""
        if self.published:
            return
        indexes = {base: self._take_index(base, writer.count) for base, writer in self._writers.items()}
        for name in _files_below(self.folder):
            _put(os.path.join(self.folder, name), os.path.join(self._directory, name))
        for base, writer in self._writers.items():
            writer.publish({key: json.dumps(value) for key, value in indexes[base].items()})
        if not self._writers:
            _sync_directory(self._directory)
        self.published = True

    def close(self) -> None:
        """Removes what was not published."""
        self._writers.clear()
        self._staged.abandon()

    def _take_index(self, base: str, count: int) -> dict[str, Any]:
        """The metadata of the index that the library wrote. The set writes the index itself, last."""
        path = os.path.join(self.folder, base + _INDEX)
        if os.path.exists(path) != (count > 1):
            raise NotServedError(f"{count} files of {base}, and " + ("no index" if count > 1 else "an index"))
        if count == 1:
            return {}
        with open(path, encoding="utf-8") as file:
            metadata = json.load(file).get("metadata") or {}
        os.remove(path)
        return dict(metadata)


_ACTIVE = threading.local()  # .sets: those that this thread is saving, the innermost last


def saver_of(filename: Any) -> Callable[..., None] | None:
    """How a file is saved that belongs to a set which this thread is saving."""
    if not isinstance(filename, (str, os.PathLike)):
        return None
    folder = os.path.dirname(os.path.abspath(os.fspath(filename)))
    found = [each for each in getattr(_ACTIVE, "sets", ()) if each.folder == folder]
    return found[0].save_file if found else None


def save_replacement(entry: str, original: Callable[..., Any], is_on: Callable[[], bool]) -> Callable[..., Any]:
    """Stands in for a method that saves a model to its argument `save_directory`."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def save(self: Any, *arguments: Any, **named: Any) -> Any:
        if not is_on():
            return original(self, *arguments, **named)
        reason = None
        try:
            given = signature.bind(self, *arguments, **named)
        except TypeError:
            reason = "other arguments"
        else:
            reason = _why_not_a_set(self, _by_name(given))
        if reason is None:
            try:
                result = _save_as_set(original, self, given)
            except NotServedError as problem:
                reason = reason_of(problem)
            else:
                RECORD.serve(entry)
                return result
        RECORD.fall(entry, reason)
        return original(self, *arguments, **named)

    return save


def _by_name(given: inspect.BoundArguments) -> dict[str, Any]:
    """All arguments, those behind ** too."""
    named = dict(given.arguments)
    for parameter in given.signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            named.update(named.pop(parameter.name, {}))
    return named


def _why_not_a_set(model: Any, arguments: dict[str, Any]) -> str | None:
    for name in ("push_to_hub", "distributed_checkpoint", "use_flashpack"):
        if arguments.get(name):
            return f"{name}="
    if arguments.get("variant") is not None:
        return "variant="
    if arguments.get("safe_serialization") is False:
        return "safe_serialization=False"
    if getattr(model, "hf_quantizer", None) is not None:
        return "the model is quantized"
    directory = arguments.get("save_directory")
    if not isinstance(directory, (str, os.PathLike)) or not os.fspath(directory):
        return "save_directory is not a path"
    if os.path.exists(directory) and not os.path.isdir(directory):
        return "save_directory is not a directory"
    return None


def _save_as_set(original: Callable[..., Any], model: Any, given: inspect.BoundArguments) -> Any:
    directory = os.path.abspath(os.fspath(given.arguments["save_directory"]))
    if isinstance(given.arguments.get("state_dict"), dict):
        given.arguments["state_dict"] = dict(given.arguments["state_dict"])  # the library empties it
    try:
        os.makedirs(directory, exist_ok=True)
        remove_dead(directory, of=_STAGED)
        current = SaveSet(directory)
    except OSError as problem:
        raise NotServedError(problem.strerror or str(problem)) from problem
    try:
        given.arguments["save_directory"] = current.folder
        with _saving(current), _published_before_barrier(model, current):
            result = original(*given.args, **given.kwargs)
        current.publish()
        return result
    finally:
        current.close()


@contextmanager
def _saving(current: SaveSet) -> Iterator[None]:
    sets = _ACTIVE.__dict__.setdefault("sets", [])
    sets.append(current)
    try:
        yield
    finally:
        sets.remove(current)


@contextmanager
def _published_before_barrier(model: Any, current: SaveSet) -> Iterator[None]:
    """transformers has other ranks wait for the one that writes: it publishes before it lets them go."""
    barrier = getattr(model, _BARRIER, None)
    if barrier is None:
        yield
        return

    def publish_first(*arguments: Any, **named: Any) -> Any:
        current.publish()
        return barrier(*arguments, **named)

    model.__dict__[_BARRIER] = publish_first
    try:
        yield
    finally:
        model.__dict__.pop(_BARRIER, None)


def _files_below(folder: str) -> list[str]:
    found = []
    for place, _, names in os.walk(folder):
        found += [os.path.relpath(os.path.join(place, name), folder) for name in names]
    return sorted(found)


def _put(source: str, target: str) -> None:
    """Durably, in one step; not at all where the same bytes are there."""
    target = os.path.realpath(target)
    with suppress(OSError):
        if filecmp.cmp(source, target, shallow=False):
            return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with suppress(FileNotFoundError):
        shutil.copymode(target, source)
    descriptor = os.open(source, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        os.replace(source, target)
    except OSError:  # a link leads to another filesystem
        shutil.copyfile(source, target)
    _sync_directory(os.path.dirname(target))


def _sync_directory(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
