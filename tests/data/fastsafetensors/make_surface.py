"""Writes surface.json: what the installed fastsafetensors has for others to use, as facts and without its words.

    python make_surface.py        (in an environment that has fastsafetensors 0.5.0)

Of each module its public names; of functions and methods their parameters as [name, kind, default]; of classes their
public methods and properties. A default is its repr, and null where there is none.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = "fastsafetensors"


def modules(package: str) -> list[str]:
    """The modules, by their names below the package; "" is the package itself. Private ones are left out."""
    root = importlib.import_module(package)
    found = [""]
    for each in pkgutil.walk_packages(root.__path__, f"{package}."):
        name = each.name.removeprefix(f"{package}.")
        if not any(part.startswith("_") for part in name.split(".")):
            found.append(name)
    return sorted(found)


def surface(package: str) -> dict[str, Any]:
    """Everything, by module."""
    return {name: module_surface(package, name) for name in modules(package)}


def module_surface(package: str, name: str) -> dict[str, Any]:
    """The public names that a module defines; of the package itself also those that it imports from its modules."""
    try:
        module = importlib.import_module(f"{package}.{name}" if name else package)
    except ImportError:  # needs what is not there, as paddle or another system
        return {}
    found = {}
    for key, value in sorted(vars(module).items()):
        if not key.startswith("_") and is_defined_in(module, key, value, is_root=not name):
            found[key] = describe(value)
    return found


def is_defined_in(module: ModuleType, key: str, value: Any, is_root: bool) -> bool:
    """Whether a name is the module's own, and not one that it imported."""
    if inspect.ismodule(value):
        return False
    home = getattr(value, "__module__", None)
    if inspect.isclass(value) or inspect.isroutine(value):
        return home == module.__name__ or (is_root and str(home).startswith(module.__name__))
    if home in ("typing", "__future__") or key == "logger" or repr(value).startswith(("typing.", "~")):
        return False
    return is_root is False or isinstance(value, (str, int))


def describe(value: Any) -> Any:
    """What a name stands for."""
    if inspect.isclass(value):
        return {"class": members(value), "parameters": parameters(value)}
    if inspect.isroutine(value):
        return {"parameters": parameters(value)}
    return {"value": type(value).__name__}


def members(kind: type) -> dict[str, Any]:
    """Public methods and properties, also those that are inherited from classes of the package."""
    found = {}
    for base in reversed([base for base in kind.__mro__ if base.__module__.startswith(PACKAGE)]):
        for key, value in vars(base).items():
            if key.startswith("_"):
                continue
            plain = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
            is_method = inspect.isroutine(plain)
            found[key] = {"parameters": parameters(plain)} if is_method else {"value": type(value).__name__}
    return dict(sorted(found.items()))


def parameters(function: Any) -> list[list[Any]] | None:
    """[name, kind, default] of each, without self and cls; null where Python can't tell."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return from_text(getattr(function, "__doc__", None) or "")
    return [
        [each.name, each.kind.name, None if each.default is each.empty else constant(each.default)]
        for each in signature.parameters.values()
        if each.name not in ("self", "cls")
    ]


def from_text(text: str) -> list[list[Any]] | None:
    """Names of the parameters of a compiled function, which its first line tells: name(a: int, b: str) -> int."""
    found = re.match(r"\w+\((.*?)\)", text.split("\n")[0])
    if found is None or "*" in found[1]:
        return None
    names = [part.split(":")[0].strip() for part in found[1].split(",") if part.strip()]
    return [[name, "POSITIONAL_OR_KEYWORD", None] for name in names if name != "self"]


def constant(value: Any) -> str:
    """A default, without addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


if __name__ == "__main__":
    sys.path.pop(0)
    (Path(__file__).parent / "surface.json").write_text(json.dumps(surface(PACKAGE), indent=1, sort_keys=True) + "\n")
