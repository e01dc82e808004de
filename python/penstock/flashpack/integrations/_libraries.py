"""transformers, diffusers and huggingface_hub: imported when they are needed, by their public names."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ...errors import LibraryError

# Oldest and newest that were tried: the tests ran with these of transformers and diffusers, with huggingface_hub 2.4.0,
# and a download and an upload with 0.36.0.
WORKS_WITH = {
    "diffusers": "0.40.0 to 0.42.1",
    "huggingface_hub": "0.36.0 to 2.4.0",
    "transformers": "4.57.1 to 5.22.2",
}


def is_installed(library: str) -> bool:
    """Whether a library can be imported. Nothing is imported to find out."""
    return find_spec(library) is not None


def public_name(library: str, name: str) -> Any:
    """A public name of a library, or an error that says which versions have it."""
    if not is_installed(library):
        raise LibraryError(f"{library} is not installed; penstock.flashpack works with {WORKS_WITH[library]}")
    module = import_module(library)
    try:
        return getattr(module, name)
    except (AttributeError, ImportError) as problem:
        version = getattr(module, "__version__", "of unknown version")
        raise LibraryError(
            f"{library} {version} has no {name} that can be used; penstock.flashpack works with {WORKS_WITH[library]}"
        ) from problem
