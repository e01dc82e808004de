"""LoaderConfig: what AutoLoader loads with, from a JSON file that the environment names, or ./fastsafetensors.json."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from .._nearest import suggest
from ..errors import ArgumentError, FormatError, NotFoundError
from .common import init_logger

logger = init_logger(__name__)

CONFIG_ENV_VAR = "FASTSAFETENSORS_CONFIG"
DEFAULT_CONFIG_PATH = "fastsafetensors.json"


@dataclass
class LoaderConfig:
    """What AutoLoader loads with; see `ParallelLoader` for most of it.

    loader: "base", or "3fs" where its library is. use_pipeline: read ahead of what is used (queue_size), else serially.
    Sections that bear another name ("base", "3fs") are for the loader of that name.
    """

    loader: str = "base"
    framework: str = "pytorch"
    debug_log: bool = False
    set_numa: bool = True
    disable_cache: bool = True
    use_pipeline: bool = False
    max_concurrent_producers: int = 1
    queue_size: int = 0
    use_tqdm_on_load: bool = True
    max_batch_bytes: int | None = None
    use_chunk_budget_as_allocation_size: bool = False
    device_memory_budget: int | None = None
    _extensions: dict[str, dict[str, Any]] = field(default_factory=dict)

    _GROUPS: ClassVar = ("parallel", "debug")
    _COMMON: ClassVar = ("framework", "debug_log", "set_numa", "disable_cache")

    def __post_init__(self) -> None:
        if self.max_concurrent_producers != 1:
            raise ArgumentError(f"max_concurrent_producers must be 1 (got {self.max_concurrent_producers})")

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LoaderConfig:
        """Of a dict as the file holds it. Keys that are none are named in a warning, with the nearest that is one."""
        known = [each.name for each in fields(cls) if not each.name.startswith("_")]
        values: dict[str, Any] = {}
        extensions: dict[str, dict[str, Any]] = {}
        for key, value in data.items():
            if not isinstance(value, dict):
                values[key] = value
            elif key in cls._GROUPS:
                values.update(value)
            else:
                extensions[key] = dict(value)
        for key in [key for key in values if key not in known]:
            logger.warning("fastsafetensors configuration: there is no %r%s", key, suggest(key, known))
            del values[key]
        return cls(**values, _extensions=extensions)

    @classmethod
    def from_file(cls, path: str) -> LoaderConfig:
        """Of a JSON file."""
        try:
            with open(path, encoding="utf-8") as file:
                data = json.load(file)
        except FileNotFoundError:
            raise NotFoundError(f"{path}: there is no such file") from None
        except (ValueError, RecursionError) as problem:
            raise FormatError(f"{path}: is not valid JSON: {problem}") from None
        if not isinstance(data, dict):
            raise FormatError(f"{path}: holds a {type(data).__name__} where an object is expected")
        return cls.from_dict(data)

    def get_extension_config(self, name: str) -> dict[str, Any]:
        """A copy of the section for the loader of that name, without what all loaders have in common."""
        return {key: value for key, value in self._extensions.get(name, {}).items() if key not in self._COMMON}

    def create_parallel_kwargs(self) -> dict[str, Any]:
        """The arguments for PipelineParallel."""
        limits = ("max_batch_bytes", "use_chunk_budget_as_allocation_size", "device_memory_budget")
        chosen = {name: getattr(self, name) for name in limits}
        if not self.use_pipeline:
            return {"queue_size": -1, **chosen}
        pipeline = ("max_concurrent_producers", "queue_size", "use_tqdm_on_load")
        return {name: getattr(self, name) for name in pipeline} | chosen


def load_config() -> LoaderConfig:
    """The file that $FASTSAFETENSORS_CONFIG names, else ./fastsafetensors.json, else the defaults."""
    named = os.environ.get(CONFIG_ENV_VAR)
    if named is not None:
        if not os.path.isfile(named):
            raise NotFoundError(f"{CONFIG_ENV_VAR}: there is no file {named!r}")
        return LoaderConfig.from_file(named)
    return LoaderConfig.from_file(DEFAULT_CONFIG_PATH) if os.path.isfile(DEFAULT_CONFIG_PATH) else LoaderConfig()
