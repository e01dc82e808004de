"""The Python package has layers too: here is which of its modules may import which, read from their import statements.

_accelerate                            other libraries, on the APIs below
             |
integrations                           inside libraries that train or serve
dcp, fast*, flashpack, safetensors     the APIs that people know from elsewhere
             |
          _torch                       all that is known of torch
             |
the modules of the package itself      and of _torch only within functions: torch need not be installed
"""

from __future__ import annotations

import ast
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "python" / "penstock"
APIS = ("dcp", "fastpersist", "fastsafetensors", "flashpack", "integrations", "safetensors")
# Layer -> the layers that it may import from. "" is the package itself.
BELOW: dict[str, set[str]] = {
    "": {"", "_torch"},
    "_torch": {"", "_torch"},
    **{api: {"", "_torch", api} for api in APIS},
    "_accelerate": {"", "_torch", "_accelerate", "fastpersist", "safetensors"},
}
# Who may import torch. penstock.safetensors.torch gets it through the others.
KNOWS_TORCH = {"_torch", "dcp", "fastpersist", "fastsafetensors", "flashpack", "integrations"}


class Import(NamedTuple):
    """An import statement: of `target` (dots and all, from the package: "_torch.tensors"), by `module`."""

    module: str
    target: str
    line: int
    is_late: bool  # within a function

    @property
    def layer(self) -> str:
        return layer_of(self.target)

    def __str__(self) -> str:
        return f"{self.module or '__init__'}, line {self.line}, imports {self.target}"


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def layer_of(module: str) -> str:
    head = module.split(".")[0]
    return head if head in BELOW else ""


class Statements(ast.NodeVisitor):
    """The import statements of a module that run, and whether each does so only when a function is called."""

    def __init__(self) -> None:
        self.found: list[tuple[ast.Import | ast.ImportFrom, bool]] = []
        self._functions = 0

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._functions += 1
        self.generic_visit(node)
        self._functions -= 1

    def visit_Import(self, node: ast.Import) -> None:
        self.found.append((node, self._functions > 0))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.found.append((node, self._functions > 0))


def parse(path: Path) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
    statements = Statements()
    statements.visit(ast.parse(path.read_text()))
    return statements.found


def own_imports(module: str) -> list[Import]:
    """What a module imports of the package."""
    path = MODULES[module]
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    package = [part for part in package if part]
    found = []
    for node, is_late in parse(path):
        if not isinstance(node, ast.ImportFrom) or node.level == 0:
            continue
        base = package[: len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
        for alias in node.names:
            name = ".".join([*base, alias.name])
            target = name if name in MODULES else ".".join(base)  # a module, or a name in one
            found.append(Import(module, target, node.lineno, is_late))
    return found


def foreign_imports(module: str) -> set[str]:
    """The libraries that a module imports."""
    names = set()
    for node, _ in parse(MODULES[module]):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif node.level == 0 and node.module:
            names.add(node.module)
    return {name.split(".")[0] for name in names} - sys.stdlib_module_names


def test_every_folder_is_a_known_layer() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and list(path.glob("*.py"))}
    assert folders == set(BELOW) - {""}


@pytest.mark.parametrize("layer", sorted(BELOW))
def test_a_layer_imports_only_what_is_below_it(layer: str) -> None:
    modules = [module for module in MODULES if layer_of(module) == layer]
    assert modules
    imports = [each for module in modules for each in own_imports(module)]
    assert [str(each) for each in imports if each.layer not in BELOW[layer]] == []


def test_the_package_itself_imports_torch_glue_only_when_it_is_needed() -> None:
    imports = [each for module in MODULES if layer_of(module) == "" for each in own_imports(module)]
    glue = [each for each in imports if each.layer == "_torch"]
    assert glue, "nothing of the glue is used: this test reads the wrong lines"
    assert [str(each) for each in glue if not each.is_late] == []


def test_torch_is_imported_by_the_glue_and_the_apis_made_for_it() -> None:
    importing = {layer_of(module) for module in MODULES if "torch" in foreign_imports(module)}
    assert importing == KNOWS_TORCH


def test_numpy_has_one_module() -> None:
    importing = {module for module in MODULES if layer_of(module) in {"", "safetensors"}}
    assert {module for module in importing if "numpy" in foreign_imports(module)} == {"_numpy"}


def test_modules_do_not_import_each_other_in_circles() -> None:
    graph = {
        module: {each.target for each in own_imports(module) if not each.is_late and each.target != module} - {""}
        for module in MODULES
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        pytest.fail(f"a circle: {' <- '.join(circle.args[1])}")
