"""The code blocks of README.md run.

Python and shell blocks run in the order they stand in, in one temporary directory: the Python ones share a namespace, the
shell ones have `set -e`. C++ blocks with a main are then built against the installed library, as a user would build them,
and run in the same directory. A block after the comment `<!-- not run -->` is left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
RELEASE_BUILD = ROOT / "build" / "release"
NOT_RUN = "<!-- not run -->"
RUN_LANGUAGES = {"python", "sh", "cpp"}

pytestmark = pytest.mark.skipif(not README.exists(), reason="README.md is not written yet")


@dataclass(frozen=True)
class Block:
    language: str
    line: int
    code: str
    run: bool

    @property
    def name(self) -> str:
        return f"README.md line {self.line} ({self.language})"


def code_blocks(text: str) -> list[Block]:
    blocks = []
    for fence in re.finditer(r"^```(\w+)[^\n]*\n(.*?)^```\s*$", text, re.MULTILINE | re.DOTALL):
        before = text[: fence.start()].rstrip()
        blocks.append(Block(fence[1], text.count("\n", 0, fence.start()) + 1, fence[2], not before.endswith(NOT_RUN)))
    return blocks


def readme_blocks() -> list[Block]:
    return [block for block in code_blocks(README.read_text()) if block.language in RUN_LANGUAGES and block.run]


def run_checked(command: list[str | Path], directory: Path, name: str) -> str:
    """Runs a program with the environment's own commands first in the path; fails with all that it printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        check=False,
        cwd=directory,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{name} failed with exit code {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def run_python(block: Block, names: dict[str, object]) -> None:
    """Compiled at its own line of README.md, which is then what a failure points at."""
    exec(compile("\n" * block.line + block.code, str(README), "exec"), names)


def run_cpp(block: Block, directory: Path, prefix: Path) -> None:
    project = directory / f"cpp_{block.line}"
    project.mkdir()
    (project / "main.cc").write_text(block.code)
    (project / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\n"
        "project(readme LANGUAGES CXX)\n"
        "find_package(penstock REQUIRED)\n"
        "add_executable(readme main.cc)\n"
        "target_link_libraries(readme PRIVATE penstock::penstock)\n"
    )
    configure = ["cmake", "-S", project, "-B", project / "build", f"-DCMAKE_PREFIX_PATH={prefix}"]
    run_checked(configure, directory, f"configuring {block.name}")
    run_checked(["cmake", "--build", project / "build"], directory, f"building {block.name}")
    run_checked([project / "build" / "readme"], directory, block.name)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readme")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (RELEASE_BUILD / "CMakeCache.txt").exists():
        pytest.skip("the library is not built in build/release (`make test STAGES=release` does)")
    prefix = tmp_path_factory.mktemp("prefix")
    run_checked(["cmake", "--install", RELEASE_BUILD, "--prefix", prefix], ROOT, "installing the library")
    return prefix


def test_readme_has_blocks_in_all_three_languages() -> None:
    assert {block.language for block in readme_blocks()} == RUN_LANGUAGES


def test_python_and_shell_blocks_run(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)
    names: dict[str, object] = {"__name__": "__main__"}
    for block in readme_blocks():
        if block.language == "python":
            run_python(block, names)
        elif block.language == "sh":
            run_checked(["bash", "-c", "set -e\n" + block.code], directory, block.name)


def test_cpp_blocks_build_and_run(directory: Path, installed: Path) -> None:
    for block in readme_blocks():
        if block.language == "cpp" and "main(" in block.code:
            run_cpp(block, directory, installed)


def test_a_block_marked_as_not_run_is_left_out() -> None:
    text = f"```sh\ntrue\n```\n{NOT_RUN}\n```sh\nfalse\n```\n"
    assert [(block.code, block.run) for block in code_blocks(text)] == [("true\n", True), ("false\n", False)]
