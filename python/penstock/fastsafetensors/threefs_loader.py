"""Loaders for the 3FS file system. Its own interface (USRBIO) is not used: its files are read by the mount."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..errors import LibraryError
from .loader import BaseSafeTensorsFileLoader
from .parallel_loader import PipelineParallel


class ThreeFSLoader(BaseSafeTensorsFileLoader):
    """Refused: it is for 3FS's own interface. Files of a mounted 3FS are loaded by `SafeTensorsFileLoader`."""

    @classmethod
    def process_extension_config(cls, ext_config: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """The arguments of the constructor; without a mount_point, the folder that all files are in."""
        arguments = dict(ext_config)
        files = kwargs.get("hf_weights_files") or ()
        if "mount_point" not in arguments and files:
            arguments["mount_point"] = os.path.commonpath([os.path.dirname(path) for path in files])
        return arguments

    def __init__(
        self,
        pg: Any | None,
        device: str = "cpu",
        mount_point: str = "/mnt/3fs",
        debug_log: bool = False,
        disable_cache: bool = True,
        framework: str = "pytorch",
        set_numa: bool = True,
        **kwargs: Any,
    ) -> None:
        raise LibraryError(
            f"{mount_point}: 3FS's own interface is not supported: use SafeTensorsFileLoader or ParallelLoader, "
            "which read its files through the mount"
        )


class ParallelThreeFSLoader(PipelineParallel):
    """Refused as `ThreeFSLoader` is; `ParallelLoader` reads files of a mounted 3FS."""

    def __init__(
        self,
        pg: Any | None,
        hf_weights_files: list[str],
        max_concurrent_producers: int = 1,
        queue_size: int = 0,
        use_tqdm_on_load: bool = True,
        device: str = "cpu",
        debug_log: bool = False,
        framework: str = "pytorch",
        **kwargs: Any,
    ) -> None:
        loader = ThreeFSLoader(pg, device, debug_log=debug_log, framework=framework)
        super().__init__(pg, loader, hf_weights_files, max_concurrent_producers, queue_size, use_tqdm_on_load)
