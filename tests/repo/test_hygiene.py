"""Small things that a reader of the repository should never meet."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PUBLIC_HEADERS = sorted((ROOT / "include" / "penstock").glob("*.h"))
TEXT_SUFFIXES = {".cc", ".h", ".py", ".pyi", ".md", ".txt", ".toml", ".json", ".cmake", ".sh", ".yml", ".yaml", ""}
# Golden files and fuzz seeds are bytes, whatever they look like.
DATA = (ROOT / "tests" / "data", ROOT / "fuzz" / "corpus")
# A person's or a build machine's own folder; /home/user stands for anybody's in documents.
HOME_PATH = re.compile(r"(?<![\w.])/(?:root|Users/\w+|home/(?!user\b)\w+)/")


def is_ours(folder: Path) -> bool:
    """False for what is built, installed or cached here."""
    name = folder.name
    at_the_top = folder.parent == ROOT and (name in {"demo", "results", "dist"} or name.startswith(("build", ".venv")))
    cache = name in {".git", "__pycache__", ".hypothesis"} or name.endswith(("_cache", ".egg-info"))
    return not at_the_top and not cache and folder not in DATA


def text_files() -> list[Path]:
    found = []
    for parent, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if is_ours(Path(parent, name))]
        found += [Path(parent, name) for name in names if Path(name).suffix in TEXT_SUFFIXES]
    return sorted(found)


def lines_matching(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in text_files():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    return found


def test_the_walk_sees_sources_and_no_build_output() -> None:
    names = {str(path.relative_to(ROOT)) for path in text_files()}
    assert {"CMakeLists.txt", "Makefile", "include/penstock/reader.h", "scripts/setup.sh"} <= names
    assert not any(name.startswith(("build/", ".venv", "results/")) for name in names)


def test_no_path_of_somebodys_home() -> None:
    assert lines_matching(HOME_PATH) == []


def test_no_trailing_spaces() -> None:
    assert lines_matching(re.compile(r"[ \t]+$")) == []


def test_text_files_end_with_a_newline() -> None:
    unfinished = [path for path in text_files() if path.stat().st_size and not path.read_bytes().endswith(b"\n")]
    assert [str(path.relative_to(ROOT)) for path in unfinished] == []


def test_scripts_can_be_run() -> None:
    scripts = [*(ROOT / "scripts").glob("*.sh"), ROOT / ".ci" / "run"]
    assert [str(path) for path in scripts if not path.stat().st_mode & 0o100] == []


def test_penstock_h_includes_every_public_header() -> None:
    included = set(re.findall(r'#include "penstock/(\w+\.h)"', (ROOT / "include/penstock/penstock.h").read_text()))
    assert included == {path.name for path in PUBLIC_HEADERS} - {"penstock.h"}


@pytest.mark.parametrize("header", PUBLIC_HEADERS, ids=lambda path: path.name)
def test_public_header_compiles_alone(header: Path, tmp_path: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    source = tmp_path / "alone.cc"
    source.write_text(f'#include "penstock/{header.name}"\n')
    command = [
        compiler,
        "-std=c++20",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fsyntax-only",
        "-I",
        str(ROOT / "include"),
        str(source),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_public_headers_include_only_the_standard_library_and_each_other() -> None:
    includes = re.compile(r'#include [<"]([^>"]+)[>"]')
    named = {(header.name, name) for header in PUBLIC_HEADERS for name in includes.findall(header.read_text())}
    assert {pair for pair in named if not re.fullmatch(r"penstock/\w+\.h|[a-z_]+", pair[1])} == set()


def project_version() -> str:
    found = re.search(r"project\(penstock VERSION (\d+\.\d+\.\d+)", (ROOT / "CMakeLists.txt").read_text())
    assert found, "CMakeLists.txt states no version"
    return found[1]


def test_changelog_has_the_current_version() -> None:
    changelog = ROOT / "CHANGELOG.md"
    if not changelog.exists():
        pytest.skip("CHANGELOG.md is not written yet")
    assert re.search(rf"^## .*\b{re.escape(project_version())}\b", changelog.read_text(), re.MULTILINE)


def test_continuous_integration_runs_what_contributors_run() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text()
