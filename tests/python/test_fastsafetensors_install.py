"""penstock.fastsafetensors in the place of the fastsafetensors package."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType

import penstock.fastsafetensors
import pytest
from helpers import run_python
from penstock.fastsafetensors import SUBMODULES, install_as_fastsafetensors, uninstall_as_fastsafetensors


def aliases() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "fastsafetensors"]


@pytest.fixture(autouse=True)
def taken_back() -> Iterator[None]:
    assert aliases() == []
    yield
    uninstall_as_fastsafetensors()
    for name in aliases():
        del sys.modules[name]


def test_the_package_and_its_modules_are_ours_one_object_each() -> None:
    install_as_fastsafetensors()
    assert importlib.import_module("fastsafetensors") is penstock.fastsafetensors
    for name in (*SUBMODULES, "copier.base", "copier.gds", "copier.registry"):
        theirs = importlib.import_module(f"fastsafetensors.{name}")
        assert theirs is importlib.import_module(f"penstock.fastsafetensors.{name}")
        assert theirs.__spec__ is not None
        assert theirs.__spec__.name == f"penstock.fastsafetensors.{name}"


def test_the_package_is_found_among_those_that_are_installed() -> None:
    install_as_fastsafetensors()
    assert importlib.util.find_spec("fastsafetensors") is not None
    assert importlib.metadata.version("fastsafetensors") == "0.5.0"
    assert importlib.metadata.metadata("fastsafetensors")["Name"] == "fastsafetensors"


def test_installing_again_changes_nothing_and_it_can_be_taken_back() -> None:
    before = list(sys.meta_path)
    install_as_fastsafetensors()
    installed = list(sys.meta_path)
    install_as_fastsafetensors()
    assert sys.meta_path == installed
    uninstall_as_fastsafetensors()
    uninstall_as_fastsafetensors()
    assert sys.meta_path == before
    assert aliases() == []


def test_a_fastsafetensors_that_is_imported_already_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = ModuleType("fastsafetensors")
    stock.__file__ = "/some/where/fastsafetensors/__init__.py"
    monkeypatch.setitem(sys.modules, "fastsafetensors", stock)
    with pytest.raises(ValueError, match=r"imported already, from /some/where/.*call install_as_fastsafetensors\(\)"):
        install_as_fastsafetensors()
    assert sys.modules["fastsafetensors"] is stock


def test_a_module_that_is_not_there_is_an_import_error() -> None:
    install_as_fastsafetensors()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("fastsafetensors.no_such_module")


def test_importing_and_installing_brings_no_torch() -> None:
    code = """
        import sys
        from penstock.fastsafetensors import install_as_fastsafetensors
        install_as_fastsafetensors()
        import fastsafetensors
        print("torch" in sys.modules, fastsafetensors.__version__)
    """
    assert run_python(code).stdout.split() == ["False", "0.5.0"]
