"""Arrows between the layers point one way. docs/architecture.md draws them; here is what may include what."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)

# Layer -> the layers right below it. What these may include, the layer may include too.
BELOW: dict[str, set[str]] = {
    "base": set(),
    "device": {"base"},
    "io": {"base"},
    "format": {"base"},
    "memory": {"base"},
    "plan": {"format"},
    "transfer": {"plan", "io", "memory", "device"},
    "api": {"transfer"},
}
# Rooms of src/api -> the rooms that they may include from.
ROOMS: dict[str, set[str]] = {
    "files": set(),
    "load": {"files"},
    "save": set(),
    "convert": {"files", "load", "save"},
    "aio": {"save"},
    "doctor": {"files", "load", "save"},
}
# Outside of src/: only the public headers and their own.
EDGES = {"cli": ROOT / "cli", "bindings": ROOT / "python" / "bindings", "include": ROOT / "include" / "penstock"}


def reachable(layer: str) -> set[str]:
    allowed = {layer}
    for below in BELOW[layer]:
        allowed |= reachable(below)
    return allowed


def sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in {".h", ".cc"})


def included_layers(path: Path) -> set[str]:
    """The folders of src/ that a file includes from."""
    heads = {name.split("/")[0] for name in INCLUDE.findall(path.read_text()) if "/" in name}
    return heads & (set(BELOW) | {"testing"})


def backward_arrows(path: Path, allowed: set[str]) -> list[str]:
    return [f"{path.relative_to(ROOT)} includes {layer}/" for layer in sorted(included_layers(path) - allowed)]


def test_every_folder_of_src_is_a_known_layer() -> None:
    folders = {path.name for path in (ROOT / "src").iterdir() if path.is_dir() and sources(path)}
    assert folders <= set(BELOW) | {"testing"}


@pytest.mark.parametrize("layer", sorted(BELOW))
def test_layer_includes_only_what_is_below_it(layer: str) -> None:
    files = [path for path in sources(ROOT / "src" / layer) if not path.stem.endswith("_test")]
    if not files:
        pytest.skip(f"src/{layer} has no sources")
    assert [arrow for path in files for arrow in backward_arrows(path, reachable(layer))] == []


def test_every_folder_of_the_api_is_a_known_room() -> None:
    assert {path.name for path in (ROOT / "src" / "api").iterdir() if path.is_dir()} == set(ROOMS)
    assert sources(ROOT / "src" / "api") == sorted(
        path for room in ROOMS for path in sources(ROOT / "src" / "api" / room)
    )


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_room_of_the_api_includes_only_what_it_may(room: str) -> None:
    files = [path for path in sources(ROOT / "src" / "api" / room) if not path.stem.endswith("_test")]
    assert files
    for path in files:
        included = {name.split("/")[1] for name in INCLUDE.findall(path.read_text()) if name.startswith("api/")}
        assert included <= ROOMS[room] | {room}, path


@pytest.mark.parametrize("edge", sorted(EDGES))
def test_edge_includes_only_the_public_headers(edge: str) -> None:
    files = sources(EDGES[edge])
    assert files, f"{EDGES[edge]} has no sources"
    assert [arrow for path in files for arrow in backward_arrows(path, set())] == []


def test_formats_and_io_never_see_each_other() -> None:
    assert "io" not in reachable("format") | reachable("plan")
    assert "format" not in reachable("io") | reachable("memory")


def test_cmake_links_no_layer_against_its_arrows() -> None:
    text = (ROOT / "src" / "CMakeLists.txt").read_text()
    declared = re.findall(r"penstock_layer\((\w+)(?:\s+DEPENDS((?:\s+(?!LIBRARIES)\w+)+))?", text)
    assert {layer for layer, _ in declared} <= set(BELOW)
    for layer, depends in declared:
        assert set(depends.split()) <= reachable(layer) - {layer}, f"penstock_layer({layer} ...)"
