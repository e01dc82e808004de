"""For code that is written for the fastsafetensors package: change the import, keep the rest.

    from penstock.fastsafetensors import SafeTensorsFileLoader, fastsafe_open, ParallelLoader

or, without a change of the code, call ``penstock.fastsafetensors.install_as_fastsafetensors()`` first: every
``import fastsafetensors`` is this package then. The submodules have the names that they have there. What differs, on
purpose:

- Tensors stay valid when their loader, buffer or file is closed.
- A filtered load reads and allocates only what the filter keeps.
- Python runs while bytes move, and files that the page cache holds are taken from it.
- Headers that break the rules of the format are refused, bytes after the last tensor among them.
- A rank that fails is named by all others, within a time that is bounded.
- Saves are atomic as a set; a full disk is an error.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._install import install_as_fastsafetensors, uninstall_as_fastsafetensors
    from ._planner import BudgetInfeasibleError
    from .allocation import live_allocation_bytes, live_allocation_count
    from .auto_loader import AutoLoader
    from .common import SafeTensorsMetadata, SingleGroup, TensorFrame, get_device_numa_node
    from .config import LoaderConfig, load_config
    from .ep_slice import expert_parallel_filter, expert_parallel_filter_from_env, owned_expert_range
    from .file_buffer import FilesBufferOnDevice
    from .loader import SafeTensorsFileLoader, fastsafe_open
    from .parallel_loader import ParallelLoader
    from .saver import ParallelSaver

# The version whose interface this is; penstock's own is penstock.__version__.
__version__ = "0.5.0"

__all__ = [
    "AutoLoader",
    "BudgetInfeasibleError",
    "FilesBufferOnDevice",
    "LoaderConfig",
    "ParallelLoader",
    "ParallelSaver",
    "SafeTensorsFileLoader",
    "SafeTensorsMetadata",
    "SingleGroup",
    "TensorFrame",
    "__version__",
    "expert_parallel_filter",
    "expert_parallel_filter_from_env",
    "fastsafe_open",
    "get_device_numa_node",
    "install_as_fastsafetensors",
    "live_allocation_bytes",
    "live_allocation_count",
    "load_config",
    "owned_expert_range",
    "uninstall_as_fastsafetensors",
]

# Name -> the module that has it. They are imported when they are asked for: torch with the first loader.
_FROM = {
    "AutoLoader": "auto_loader",
    "BudgetInfeasibleError": "_planner",
    "FilesBufferOnDevice": "file_buffer",
    "LoaderConfig": "config",
    "ParallelLoader": "parallel_loader",
    "ParallelSaver": "saver",
    "SafeTensorsFileLoader": "loader",
    "SafeTensorsMetadata": "common",
    "SingleGroup": "common",
    "TensorFrame": "common",
    "expert_parallel_filter": "ep_slice",
    "expert_parallel_filter_from_env": "ep_slice",
    "fastsafe_open": "loader",
    "get_device_numa_node": "common",
    "install_as_fastsafetensors": "_install",
    "live_allocation_bytes": "allocation",
    "live_allocation_count": "allocation",
    "load_config": "config",
    "owned_expert_range": "ep_slice",
    "uninstall_as_fastsafetensors": "_install",
}
SUBMODULES = (
    "allocation",
    "auto_loader",
    "common",
    "config",
    "copier",
    "cpp",
    "dlpack",
    "ep_slice",
    "file_buffer",
    "frameworks",
    "loader",
    "parallel_loader",
    "saver",
    "st_types",
    "tensor_factory",
    "threefs_loader",
)


def __dir__() -> list[str]:
    return sorted({*__all__, *SUBMODULES})


if not TYPE_CHECKING:  # whose readers would take any name for one that is found here

    def __getattr__(name: str) -> Any:
        if name in SUBMODULES:
            return import_module(f"{__name__}.{name}")
        if name in _FROM:
            return getattr(import_module(f"{__name__}.{_FROM[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
