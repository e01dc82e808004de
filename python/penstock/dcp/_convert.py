"""Whole checkpoints in one process: directories of torch.distributed.checkpoint from and to files."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, TensorStorageMetadata

from .. import _core
from .._files import convert as convert_file
from .._load import load as load_file
from .._options import TORCH_FORMATS, Stats, open_reader, path_text, target_text
from .._save import save as save_file
from ..errors import ArgumentError, FormatError
from ._names import METADATA, TORCH_METADATA, check_replaceable
from ._reader import StorageReader
from ._writer import StorageWriter

if TYPE_CHECKING:
    from .._options import Path as AnyPath


class Converted(NamedTuple):
    """What `convert` did."""

    tensors: int
    bytes: int
    left_out: list[str]  # values that are no tensors, which the target has no place for


def load(path: AnyPath, *, verify: bool | str = True, trust_pickles: bool = False) -> dict[str, Any]:
    """A whole checkpoint in the memory of this process, as the state dict that was saved: chunks are joined.

    No process group is needed. The arguments are those of `StorageReader`.
    """
    flat, metadata = _load_flat(path, verify=verify, trust_pickles=trust_pickles)
    return _nested(flat, metadata.planner_data or {}, path)


def convert(source: AnyPath, target: AnyPath, *, overwrite: bool = False) -> Converted:
    """Makes a file of a directory of torch.distributed.checkpoint, or a directory of a file.

    source: a directory that `StorageWriter` or torch wrote, or a file of any format.
    target: where it ends in the suffix of a format, such a file: a torch file has all that was saved, as the nested
        dict that it was, and any other the tensors by their names. Else a directory as `StorageWriter` writes it.
    overwrite: whether the target may be replaced.

    Tensors pass through memory block by block where the target is a file that holds nothing else, and where the source
    is one. What also has other values passes as a whole: from and to torch files, and from directory to directory.
    """
    to = target_text(target)
    format = _core.format_for_suffix(to)
    if not overwrite and os.path.lexists(to):
        raise ArgumentError(f"{to}: exists; overwrite=True replaces it")
    if not os.path.isdir(path_text(source)):
        if format is not None:
            raise ArgumentError(f"{to}: of a file a directory is made; penstock.convert() makes files of files")
        if open_reader(source).files()[0][2] in TORCH_FORMATS:
            return _save_directory(load_file(source), to)
        return _converted(convert_file(source, to, format="dcp", overwrite=overwrite), [])
    if format is None:
        return _save_directory(load(source), to)
    if format in TORCH_FORMATS:
        state = load(source)
        save_file(state, to)
        return _told(state, [])
    if any(os.path.exists(os.path.join(path_text(source), name)) for name in (METADATA, TORCH_METADATA)):
        metadata = StorageReader(source).read_metadata().state_dict_metadata
        done = convert_file(source, to, overwrite=overwrite)
        return _converted(done, [name for name in metadata if isinstance(metadata[name], BytesStorageMetadata)])
    flat, _ = _load_flat(source)  # safetensors whose headers say where chunks begin
    tensors = {name: value for name, value in flat.items() if isinstance(value, torch.Tensor)}
    save_file(tensors, to)
    return _told(tensors, [name for name in flat if name not in tensors])


def _load_flat(path: AnyPath, **arguments: Any) -> tuple[dict[str, Any], Metadata]:
    """Everything by its name. What dcp.load does, without a word to other ranks."""
    reader = StorageReader(path, **arguments)
    metadata = reader.read_metadata()
    state: dict[str, Any] = {}
    for name, entry in metadata.state_dict_metadata.items():
        state[name] = None
        if isinstance(entry, TensorStorageMetadata):
            state[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(state, metadata, is_coordinator=True)
    plan = planner.finish_plan(planner.create_local_plan())
    reader.read_data(plan, planner).wait()
    return state, metadata


def _save_directory(state: dict[str, Any], path: str) -> Converted:
    """What dcp.save does, without a word to other ranks."""
    if not isinstance(state, dict):
        raise ArgumentError(
            f"{path}: a checkpoint of a {type(state).__name__}, and not of a dict, can't be a directory"
        )
    check_replaceable(Path(path), overwrite=True)
    writer = StorageWriter(path)
    planner = DefaultSavePlanner()
    planner.set_up_planner(state, writer.storage_meta(), is_coordinator=True)
    writer.set_up_storage_writer(True)
    plans, metadata = planner.create_global_plan([writer.prepare_local_plan(planner.create_local_plan())])
    plan = planner.finish_plan(writer.prepare_global_plan(plans)[0])
    try:
        writer.finish(metadata, [writer.write_data(plan, planner).value()])
    except BaseException:
        writer.reset()
        raise
    return _told(planner.state_dict, [])


def _converted(done: Stats, left_out: list[str]) -> Converted:
    return Converted(done.tensors, done.bytes, left_out)


def _told(state: Any, left_out: list[str]) -> Converted:
    tensors = list(_tensors_in(state))
    return Converted(len(tensors), sum(tensor.nbytes for tensor in tensors), left_out)


def _tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for each in inner for tensor in _tensors_in(each)]


def _nested(flat: dict[str, Any], paths: dict[str, tuple[Any, ...]], path: AnyPath) -> dict[str, Any]:
    """The state dict that it was: keys lead into dicts, and numbers into lists."""
    state: dict[str, Any] = {}
    for name, value in flat.items():
        inner: Any = state
        steps = paths.get(name, (name,))
        try:
            for step, following in pairwise(steps):
                inner = _entered(inner, step, [] if isinstance(following, int) else {}, len(flat))
            _entered(inner, steps[-1], value, len(flat))
        except (IndexError, KeyError, TypeError) as problem:
            raise FormatError(f"{path_text(path)}: the path of {name!r} does not fit those of others") from problem
    return state


def _entered(container: Any, step: Any, value: Any, most: int) -> Any:
    """What is in a container at a step; the value where nothing is yet."""
    if isinstance(container, dict):
        return container.setdefault(step, value)
    if not isinstance(container, list) or not isinstance(step, int) or not 0 <= step <= most + len(container):
        raise TypeError("no such step")
    container += [None] * (step + 1 - len(container))
    if container[step] is None:
        container[step] = value
    return container[step]
