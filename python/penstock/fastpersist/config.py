"""The checkpoint engine's settings, under the keys of DeepSpeed's JSON.

    {
      "checkpoint": {
        "checkpoint_serialization": true,
        "writer": {"type": "fast", "decoupled": true, "io_buffer_size": 64e6, "io_buffer_double": true,
                   "show_statistics": false, "data_parallel": "replica", "io_multiplier": 1}
      },
      "aio": {"block_size": 4194304, "queue_depth": 8, "intra_op_parallelism": 1, "single_submit": false,
              "overlap_events": true, "use_gds": false}
    }

Whatever else such a file holds is left alone. A key of "writer" or "aio" that nobody knows is refused.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from .._options import path_text
from ..errors import ArgumentError, FormatError, UnsupportedError

if TYPE_CHECKING:
    from .._options import IoTuning

WRITER_TYPES = ("mock", "python", "fast")
PARTITIONS = ("replica", "socket", "machine")

_DEFAULT_BUFFER = 64 * 2**20
_DEFAULT_BLOCK = 4 * 2**20
_DEFAULT_DEPTH = 16
_SMALLEST_BLOCK = 2**16  # that the engine takes, in powers of two
_LARGEST_BLOCK = 2**26


@dataclasses.dataclass(frozen=True)
class WriterConfig:
    """Who writes, and how.

    type: "fast" is the engine, "python" Python's own file, "mock" counts and writes nothing.
    decoupled: in the background.
    io_buffer_size: bound on the bytes in flight.
    io_buffer_double: write blocks while others are filled.
    show_statistics: print them.
    data_parallel: which ranks write their share of one file.
    io_multiplier: changes nothing, a rank writes one share.
    """

    type: str = "fast"
    decoupled: bool = False
    io_buffer_size: int | None = None
    io_buffer_double: bool = True
    show_statistics: bool = False
    data_parallel: str | None = None
    io_multiplier: int = 1


@dataclasses.dataclass(frozen=True)
class AioConfig:
    """How bytes are moved; what is not said the engine chooses.

    use_gds: GPUDirect Storage for tensors on devices, also where penstock would not choose it by itself. The three
    before it change nothing.
    """

    block_size: int | None = None
    queue_depth: int | None = None
    intra_op_parallelism: int = 1
    single_submit: bool = False
    overlap_events: bool = True
    use_gds: bool = False


@dataclasses.dataclass(frozen=True)
class EngineConfig:
    """All of it. checkpoint_serialization: make zips, else files of the legacy format."""

    checkpoint_serialization: bool = True
    writer: WriterConfig = dataclasses.field(default_factory=WriterConfig)
    aio: AioConfig = dataclasses.field(default_factory=AioConfig)

    def tuning(self) -> IoTuning:
        """What the engine is told of how to move bytes. Nothing where nothing was said."""
        blocks = self._blocks()
        return {**blocks, "gds": "on"} if self.aio.use_gds else blocks

    def _blocks(self) -> IoTuning:
        """Block size and queue depth, within io_buffer_size."""
        size, double = self.writer.io_buffer_size, self.writer.io_buffer_double
        block, depth = self.aio.block_size, self.aio.queue_depth
        if size is None and block is None and depth is None and double:
            return {}
        size = size or _DEFAULT_BUFFER
        block = max(_SMALLEST_BLOCK, _power_of_two(min(block or _DEFAULT_BLOCK, size, _LARGEST_BLOCK)))
        depth = max(1, min(depth or _DEFAULT_DEPTH, size // block)) if double else 1
        return {"block_size": block, "queue_depth": depth}


def _power_of_two(size: int) -> int:
    """The largest one that is not larger."""
    return 1 << (size.bit_length() - 1)


def read_config(source: Any = None) -> EngineConfig:
    """Settings out of a dict, a JSON file's path, or an object with checkpoint_config and aio_config."""
    if isinstance(source, EngineConfig):
        return source
    sections = _sections(source)
    checkpoint = _section(sections, "checkpoint")
    return EngineConfig(
        bool(checkpoint.get("checkpoint_serialization", True)),
        _checked_writer(_read(WriterConfig, "checkpoint.writer", _section(checkpoint, "writer"))),
        _read(AioConfig, "aio", _section(sections, "aio")),
    )


def _sections(source: Any) -> Mapping[str, Any]:
    if source is None:
        return {}
    if isinstance(source, Mapping):
        return source
    if isinstance(source, (str, os.PathLike)):
        return _read_json(path_text(source))
    if hasattr(source, "checkpoint_config"):
        return {"checkpoint": source.checkpoint_config, "aio": getattr(source, "aio_config", None)}
    raise ArgumentError(f"expected a dict or the path of a JSON file, not {type(source).__name__}")


def _read_json(path: str) -> Mapping[str, Any]:
    with open(path, encoding="utf-8") as file:
        try:
            sections = json.load(file)
        except ValueError as problem:
            raise FormatError(f"{path}: {problem}") from problem
    if not isinstance(sections, dict):
        raise FormatError(f"{path}: expected an object")
    return sections


def _section(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = parent.get(name)
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        raise ArgumentError(f'"{name}" must be an object, not {section!r}')
    return section


_Section = TypeVar("_Section", WriterConfig, AioConfig)


def _read(kind: type[_Section], name: str, section: Mapping[str, Any]) -> _Section:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for key, value in section.items():
        if key not in fields:
            raise ArgumentError(f"{name} has no {key!r}, only {', '.join(fields)}")
        if value is not None:
            values[key] = _convert(f"{name}.{key}", str(fields[key].type), value)
    return kind(**values)


def _convert(name: str, kind: str, value: Any) -> Any:
    """JSON's 64e6 is a whole number too, and DeepSpeed writes words in capitals."""
    if kind.startswith("bool") and isinstance(value, bool):
        return value
    if kind.startswith("str") and isinstance(value, str):
        return value.lower()
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind.startswith("int") and is_number and value == int(value) and value > 0:
        return int(value)
    raise ArgumentError(f"{name} can't be {value!r}")


def _checked_writer(writer: WriterConfig) -> WriterConfig:
    if writer.type not in WRITER_TYPES:
        raise ArgumentError(f"checkpoint.writer.type must be one of {', '.join(WRITER_TYPES)}, not {writer.type!r}")
    if writer.data_parallel is not None and writer.data_parallel not in PARTITIONS:
        raise ArgumentError(
            f"checkpoint.writer.data_parallel must be one of {', '.join(PARTITIONS)}, not {writer.data_parallel!r}"
        )
    if writer.decoupled and writer.type != "fast":
        raise ArgumentError(f'checkpoint.writer.decoupled needs the type "fast", not {writer.type!r}')
    return writer


def refuse_gds_handle() -> NoReturn:
    """Whoever wants one for raw files."""
    raise UnsupportedError(
        "GPUDirect Storage is for saves and loads, not for raw files: use get_aio_handle(), which takes tensors on "
        "devices"
    )
