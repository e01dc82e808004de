"""AutoLoader: ParallelLoader with what the configuration says."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ..errors import ArgumentError
from .config import LoaderConfig, load_config
from .loader import BaseSafeTensorsFileLoader, SafeTensorsFileLoader
from .parallel_loader import PipelineParallel
from .threefs_loader import ThreeFSLoader

_LOADERS: dict[str, type[BaseSafeTensorsFileLoader]] = {"base": SafeTensorsFileLoader, "3fs": ThreeFSLoader}


class AutoLoader:
    """Iterates over the tensors of files; how is in the configuration, see `load_config`."""

    def __init__(self, pg: Any | None, hf_weights_files: list[str], device: str = "cpu") -> None:
        self._config = load_config()
        kind = _LOADERS.get(self._config.loader)
        if kind is None:
            raise ArgumentError(f"Unknown loader type: {self._config.loader!r}; there are {', '.join(_LOADERS)}")
        section = self._config.get_extension_config(self._config.loader)
        common: dict[str, Any] = {name: getattr(self._config, name) for name in LoaderConfig._COMMON}
        arguments = common | kind.process_extension_config(section, hf_weights_files=hf_weights_files)
        loader = kind(pg, device, **arguments)  # type: ignore[arg-type]  # both kinds take a name
        try:
            self._pipeline = PipelineParallel(pg, loader, hf_weights_files, **self._config.create_parallel_kwargs())
        except BaseException:
            loader.close()
            raise

    @property
    def config(self) -> LoaderConfig:
        """What it loads with."""
        return self._config

    def iterate_weights(self) -> Generator[tuple[str, Any], None, None]:
        """Yields (name, tensor), every tensor of every file, on every rank."""
        return self._pipeline.iterate_weights()

    def close(self) -> None:
        """Stops what runs and closes the loader."""
        self._pipeline.close()
