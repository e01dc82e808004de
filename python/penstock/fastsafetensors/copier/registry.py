"""Copiers by their names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...errors import UnknownTensorError
from ..common import SafeTensorsMetadata
from ..frameworks import FrameworkOpBase
from ..st_types import Device
from .base import CopierInterface

CopierType = str
CopierConstructFunc = Callable[[SafeTensorsMetadata, Device, FrameworkOpBase[Any, Any]], CopierInterface]
CopierConstructorFactory = Callable[..., CopierConstructFunc]

_factories: dict[CopierType, CopierConstructorFactory] = {}
_classes: dict[CopierType, type[CopierInterface]] = {}


def register_copier_constructor(
    copier_type: CopierType, copier_class: type[CopierInterface] | None = None
) -> Callable[[CopierConstructorFactory], CopierConstructorFactory]:
    """Decorates a factory: it is found by this name, and what it constructs is known to be of `copier_class`."""

    def register(factory: CopierConstructorFactory) -> CopierConstructorFactory:
        @functools.wraps(factory)
        def tagged(*args: Any, **kwargs: Any) -> CopierConstructFunc:
            construct = factory(*args, **kwargs)
            if getattr(construct, "copier_class", None) is None and hasattr(construct, "__dict__"):
                vars(construct)["copier_class"] = copier_class
            return construct

        _factories[copier_type] = tagged
        if copier_class is not None:
            _classes[copier_type] = copier_class
        return tagged

    return register


def get_copier_class(copier_type: CopierType) -> type[CopierInterface]:
    """The class that was registered with a name; `CopierInterface` where none was."""
    return _classes.get(copier_type, CopierInterface)


def copier_class_of(construct: CopierConstructFunc) -> type[CopierInterface]:
    """The class of what a constructor makes; `CopierInterface` where it is not known."""
    found: type[CopierInterface] | None = getattr(construct, "copier_class", None)
    return found or CopierInterface


def create_copier_constructor(copier_type: CopierType, device: Device, **kwargs: Any) -> CopierConstructFunc:
    """What makes copiers of a kind, one for each file."""
    if copier_type not in _factories:
        raise UnknownTensorError(f"there is no copier {copier_type!r}: there are {', '.join(sorted(_factories))}")
    return _factories[copier_type](device, **kwargs)
