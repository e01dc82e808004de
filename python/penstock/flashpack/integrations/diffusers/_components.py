"""The components of a pipeline: whose classes they are, and how each is saved and loaded."""

from __future__ import annotations

import sys
import typing
from importlib import import_module
from pathlib import Path
from typing import Any

from ....errors import ArgumentError
from ...mixin import FlashPackMixin
from .._classes import find_class, plain_class
from .._libraries import is_installed, public_name
from . import model as diffusers_model


def save_component(name: str, component: Any, folder: Path, variant: str | None, pack: dict[str, Any]) -> None:
    """Saves a component: a model as a FlashPack file, others (schedulers, tokenizers) in their own way."""
    writer = _writer(component)
    if writer is not None:
        folder.mkdir(exist_ok=True)
        writer(component, folder, variant, pack)
    else:
        component.save_pretrained(folder)


def check_saveable(name: str, component: Any) -> None:
    """Refuses a component that can't be saved, before anything is."""
    if _writer(component) is None and not hasattr(component, "save_pretrained"):
        raise ArgumentError(f"the component {name} is a {type(component).__name__}, which can't be saved")


def _writer(component: Any) -> Any:
    if isinstance(component, public_name("diffusers", "ModelMixin")):
        return diffusers_model.write_model
    if is_transformers_class(type(component)):
        from ..transformers.model import write_model

        return write_model
    return None


def uncompiled(component: Any) -> Any:
    """The module that torch.compile has wrapped, or the component itself."""
    return getattr(component, "_orig_mod", component)


def is_transformers_class(cls: type) -> bool:
    """Whether a class is a model of transformers. Asking does not import it."""
    return "transformers" in sys.modules and issubclass(cls, public_name("transformers", "PreTrainedModel"))


def loader_of(cls: type) -> Any:
    """What loads a model of this class from a FlashPack file."""
    if issubclass(cls, public_name("diffusers", "ModelMixin")):
        return diffusers_model.load_model
    if is_transformers_class(cls):
        from ..transformers.model import load_model

        return load_model
    return None


def component_class(library: str, name: str) -> type:
    """The class that a pipeline's index names.

    Modules other than those of diffusers and transformers are never imported because a file says so; those that are
    imported already serve.
    """
    for module in _modules(library):
        found = find_class(module, name)
        if found is not None:
            return found
    raise ArgumentError(f"{name} of {library} is not known here; import its module, or pass the component yourself")


def _modules(library: str) -> list[Any]:
    pipelines = import_module("diffusers.pipelines")
    if library in {"diffusers", "transformers"}:
        return [import_module(library)] if is_installed(library) else []
    if not library.startswith("_") and hasattr(pipelines, library):
        return [getattr(pipelines, library)]
    # A class that was given the FlashPack methods elsewhere is one of these without them.
    given = [sys.modules[library]] if library in sys.modules else []
    return given + [import_module(name) for name in ("diffusers", "transformers") if is_installed(name)]


def annotated_class(pipeline_class: Any, component: str) -> type | None:
    """The FlashPack class that a pipeline's __init__ asks for, if it does."""
    try:
        hint = typing.get_type_hints(pipeline_class.__init__).get(component)
    except (NameError, TypeError):  # annotations of names that exist for type checkers only
        return None
    candidates = [hint, *typing.get_args(hint)]
    return next((one for one in candidates if isinstance(one, type) and issubclass(one, FlashPackMixin)), None)


def index_entry(component: Any, entry: Any) -> Any:
    """The entry of a component in the index, by its class without the FlashPack methods."""
    if component is None or not isinstance(uncompiled(component), FlashPackMixin):
        return entry
    roots = (public_name("diffusers", "ModelMixin"),)
    cls = plain_class(type(uncompiled(component)), FlashPackMixin, roots)
    library = cls.__module__.split(".")[0]
    return [library, cls.__name__] if library in {"diffusers", "transformers"} else entry
