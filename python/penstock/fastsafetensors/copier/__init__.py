"""Copiers: what moves the tensors of one file. All of them read with penstock's engine."""

from .base import CopierInterface
from .fgds import FgdsFileCopier
from .gds import GdsFileCopier
from .nogds import NoGdsFileCopier
from .registry import (
    CopierConstructFunc,
    CopierType,
    copier_class_of,
    create_copier_constructor,
    get_copier_class,
    register_copier_constructor,
)
from .threefs import ThreeFSFileCopier
from .unified import UnifiedMemCopier

__all__ = [
    "CopierConstructFunc",
    "CopierInterface",
    "CopierType",
    "FgdsFileCopier",
    "GdsFileCopier",
    "NoGdsFileCopier",
    "ThreeFSFileCopier",
    "UnifiedMemCopier",
    "copier_class_of",
    "create_copier_constructor",
    "get_copier_class",
    "register_copier_constructor",
]
