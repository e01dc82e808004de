"""penstock.fastsafetensors has every public name, method and parameter of fastsafetensors 0.5.0.

What that has is in tests/data/fastsafetensors/surface.json, which make_surface.py beside it writes.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import penstock.fastsafetensors
import pytest

DATA = Path(__file__).parents[1] / "data" / "fastsafetensors"
SURFACE: dict[str, dict[str, Any]] = json.loads((DATA / "surface.json").read_text())

# Names that are absent on purpose, and why.
WITHOUT = {
    "loader.gl_set_numa": "a flag of its module's state: the engine does not move its threads",
    "loader.loaded_library": "a flag of its module's state: the engine finds libraries itself",
    "threefs_loader.loaded_library": "the same",
}
# Names that a module there has only because it imports them; where they are, they are checked.
IMPORTED = {"saver.DTYPE_SIZES": "st_types.DTYPE_SIZES"}
# Parts of what is a ctypes structure there: here they are made as DLPack wants them, without being classes of fields.
FIELDS = "CField"


def names() -> Iterator[tuple[str, str]]:
    for module, found in SURFACE.items():
        for name in found:
            if name != "TYPE_CHECKING" and f"{module}.{name}" not in WITHOUT | IMPORTED:
                yield module, name


def methods() -> Iterator[tuple[str, str, str]]:
    for module, name in names():
        for method, facts in SURFACE[module][name].get("class", {}).items():
            if facts.get("value") != FIELDS and module != "cpp":
                yield module, name, method


def ours(module: str) -> Any:
    return importlib.import_module(f"penstock.fastsafetensors.{module}" if module else "penstock.fastsafetensors")


def check_parameters(theirs: list[list[Any]] | None, function: Any) -> None:
    """That a call which is right there is right here."""
    if theirs is None or any(name.startswith("arg") and name[3:].isdigit() for name, _, _ in theirs):
        return  # compiled code, whose parameters have no names
    found = {each.name: each for each in inspect.signature(function).parameters.values() if each.name != "self"}
    catches_all = any(each.kind is each.VAR_KEYWORD for each in found.values())
    assert [name for name, kind, _ in theirs if name not in found and not kind.startswith("VAR_")] == []
    assert catches_all or not any(kind == "VAR_KEYWORD" for _, kind, _ in theirs)
    positional = [name for name, kind, _ in theirs if kind == "POSITIONAL_OR_KEYWORD"]
    here = [name for name, each in found.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert here[: len(positional)] == positional
    for name, _, default in theirs:
        if default is not None:
            check_default(default, found[name].default)
    extra = [each for name, each in found.items() if name not in {name for name, _, _ in theirs}]
    assert [each.name for each in extra if each.default is each.empty and not each.kind.name.startswith("VAR_")] == []


def check_default(theirs: str, here: Any) -> None:
    """The same value, where it is one that a text can tell."""
    assert here is not inspect.Parameter.empty
    if isinstance(here, (bool, int, float, str, type(None))) or (isinstance(here, Enum) and "<DType" in theirs):
        assert repr(here) == theirs


@pytest.mark.parametrize("module", SURFACE)
def test_every_module_is_there(module: str) -> None:
    assert ours(module).__name__.startswith("penstock.fastsafetensors")


@pytest.mark.parametrize(("module", "name"), list(names()))
def test_every_public_name_is_there(module: str, name: str) -> None:
    assert hasattr(ours(module), name)


@pytest.mark.parametrize(("module", "name"), list(names()))
def test_a_function_or_class_takes_the_same_parameters(module: str, name: str) -> None:
    value, facts = getattr(ours(module), name), SURFACE[module][name]
    if "parameters" in facts and not issubclass_of(value, (BaseException, Enum)) and module not in ("cpp", "dlpack"):
        check_parameters(facts["parameters"], value)


@pytest.mark.parametrize(("module", "name", "method"), list(methods()))
def test_a_class_has_the_same_methods_with_the_same_parameters(module: str, name: str, method: str) -> None:
    kind, facts = getattr(ours(module), name), SURFACE[module][name]["class"][method]
    if facts.get("value") == "member_descriptor" or method in getattr(kind, "__dataclass_fields__", {}):
        return  # a field, which instances have
    assert hasattr(kind, method)
    if "parameters" in facts:
        check_parameters(facts["parameters"], getattr(kind, method))


def issubclass_of(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, type) and issubclass(value, kinds)


@pytest.mark.parametrize("name", WITHOUT)
def test_what_is_left_out_on_purpose_is_not_there(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert not hasattr(ours(module), attribute)


def test_the_package_lists_what_it_offers() -> None:
    assert set(SURFACE[""]) <= set(penstock.fastsafetensors.__all__) <= set(dir(penstock.fastsafetensors))


def test_a_name_that_is_none_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        _ = penstock.fastsafetensors.no_such_name
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        _ = ours("cpp").no_such_name


def test_a_reader_of_the_compiled_module_says_that_the_engine_reads() -> None:
    with pytest.raises(NotImplementedError, match=r"cpp\.nogds_file_reader is not there: .*engine"):
        ours("cpp").nogds_file_reader(False, 16384, 16, True)


def test_the_list_is_that_of_the_installed_fastsafetensors() -> None:
    spec = importlib.util.find_spec("fastsafetensors")
    if spec is None or "penstock" in (spec.origin or ""):
        pytest.skip("fastsafetensors is not installed")
    maker_spec = importlib.util.spec_from_file_location("make_surface", DATA / "make_surface.py")
    assert maker_spec is not None
    assert maker_spec.loader is not None
    maker = importlib.util.module_from_spec(maker_spec)
    maker_spec.loader.exec_module(maker)
    found = maker.surface("fastsafetensors")
    found["parallel_loader"].setdefault("tqdm", SURFACE["parallel_loader"]["tqdm"])  # its own if tqdm is missing
    assert found == SURFACE
