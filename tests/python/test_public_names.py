"""What dir(), help() and type checkers show of the package."""

from __future__ import annotations

import ast
import inspect
import pydoc
import typing
from pathlib import Path
from types import FunctionType, ModuleType

import helpers
import penstock
import pytest
from test_import import BLOCK

SUBMODULES = ["dcp", "fastpersist", "flashpack", "measure", "safetensors"]
FUNCTIONS = [name for name in penstock.__all__ if isinstance(getattr(penstock, name), FunctionType)]


def test_dir_shows_the_public_names_and_no_others() -> None:
    assert dir(penstock) == sorted([*penstock.__all__, *SUBMODULES, "__version__"])
    assert len(set(penstock.__all__)) == len(penstock.__all__)
    assert "save_parallel" in penstock.__all__
    for name in dir(penstock):
        assert getattr(penstock, name) is not None


def test_every_public_name_can_be_imported_at_once() -> None:
    script = "from penstock import *; print(save_parallel.__name__, doctor.__name__, strip_prefix('a.')('a.b'))"
    assert helpers.run_python(script).stdout == "save_parallel doctor b\n"


def test_all_names_are_there_without_torch() -> None:
    script = (
        """
    BLOCKED = {"torch"}
    """
        + BLOCK
        + """
    import penstock, pydoc
    from penstock import *
    text = pydoc.render_doc(penstock, renderer=pydoc.plaintext)
    print("save_parallel(" in text, "flashpack" in dir(penstock), "torch" in sys.modules)
    """
    )
    assert helpers.run_python(script).stdout == "True False False\n"


def test_help_shows_every_public_function() -> None:
    text = pydoc.render_doc(penstock, renderer=pydoc.plaintext)
    assert FUNCTIONS
    for name in FUNCTIONS:
        assert f"\n    {name}(" in text


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures_use_names_that_can_be_read_and_found(name: str) -> None:
    function = getattr(penstock, name)
    assert "Any" not in str(inspect.signature(function))
    assert typing.get_type_hints(function).keys() - {"return"} == set(inspect.signature(function).parameters)
    assert inspect.getdoc(function)


def test_everything_public_is_documented() -> None:
    for name in penstock.__all__:
        value = getattr(penstock, name)
        assert isinstance(value, ModuleType) or inspect.getdoc(value), name


def test_type_checkers_are_shown_the_same_names() -> None:
    """They take what `__all__` lists, and `import x as x`; a `__getattr__` would make them take anything."""
    tree = ast.parse(Path(penstock.__file__).read_text())
    shown = set(penstock.__all__)
    for node in tree.body:
        assert not (isinstance(node, ast.FunctionDef) and node.name == "__getattr__")
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            aliases = [alias for each in node.body if isinstance(each, ast.ImportFrom) for alias in each.names]
            shown |= {alias.name for alias in aliases if alias.asname == alias.name}
    assert sorted([*shown, "__version__"]) == dir(penstock)
