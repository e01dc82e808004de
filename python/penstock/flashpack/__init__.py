"""For code that is written for the flashpack package: change the import, keep the rest.

    from penstock.flashpack import FlashPackMixin, assign_from_file, pack_to_file

The submodules have the names that they have there. What differs, on purpose:

- Loaded parameters and buffers are writable; an optimiser's step works.
- Names, shapes and types are checked, and everything is read, before a model changes; on any error it is as it was.
- Tied parameters stay tied, scalars keep the shape (), and tensors that are not contiguous can be saved.
- strict=False passes over what is missing or unexpected, and warns of what does not fit.
- Saves are atomic, durable and have normal permissions; target_dtype takes no second copy of the model.
- Commands never touch their source.
"""

from importlib import import_module
from typing import Any

from . import constants, deserialization, mixin, parallel_read, serialization, utils
from .deserialization import (
    FlashTensorStorage,
    assign_from_file,
    get_flashpack_file_metadata,
    is_flashpack_file,
    iterate_from_flash_tensor,
    read_flashpack_file,
    read_flashpack_file_distributed,
    revert_from_file,
)
from .mixin import FlashPackMixin
from .serialization import pack_to_file
from .version import __commit_id__, __version__, __version_tuple__, commit_id, version, version_tuple

__all__ = [
    "FlashPackMixin",
    "FlashTensorStorage",
    "__commit_id__",
    "__version__",
    "__version_tuple__",
    "assign_from_file",
    "commit_id",
    "constants",
    "deserialization",
    "get_flashpack_file_metadata",
    "install_as_flashpack",
    "is_flashpack_file",
    "iterate_from_flash_tensor",
    "mixin",
    "pack_to_file",
    "parallel_read",
    "patch_integrations",
    "read_flashpack_file",
    "read_flashpack_file_distributed",
    "revert_from_file",
    "serialization",
    "utils",
    "version",
    "version_tuple",
]

_SUBMODULES = frozenset({"commands", "integrations"})
_OF_INTEGRATIONS = frozenset({"install_as_flashpack", "patch_integrations"})


def __getattr__(name: str) -> Any:
    """The integrations are imported when they are asked for: they look for transformers and diffusers."""
    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")
    if name in _OF_INTEGRATIONS:
        return getattr(import_module(f"{__name__}.integrations"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
