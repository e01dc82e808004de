"""Runs the native command. PENSTOCK_COMMAND names it; otherwise `penstock` is taken from PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli_command import Result, Run


def find_command() -> str:
    command = os.environ.get("PENSTOCK_COMMAND") or shutil.which("penstock")
    if command is None:
        pytest.skip("there is no penstock command: set PENSTOCK_COMMAND or install it")
    return str(Path(command).resolve())


@pytest.fixture(scope="session")
def command() -> str:
    return find_command()


@pytest.fixture
def run(command: str, tmp_path: Path) -> Run:
    """run("ls", "model.safetensors"): in the test's own directory, with its output captured."""

    def run_command(*arguments: object, environment: dict[str, str] | None = None, **changes: Any) -> Result:
        return subprocess.run(
            [command, *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            **changes,
        )

    return run_command


@pytest.fixture
def ordinary_user(command: str, tmp_path: Path) -> dict[str, Any]:
    """Arguments for `run` under which file permissions count: root becomes nobody."""
    if os.geteuid() != 0:
        return {}
    tmp_path.chmod(0o755)
    user: dict[str, Any] = {"user": "nobody", "group": "nogroup", "extra_groups": []}
    try:
        subprocess.run([command, "--version"], cwd=tmp_path, capture_output=True, check=True, **user)
    except (OSError, LookupError) as error:
        pytest.skip(f"root can't run the command as nobody: {error}")
    return user


@pytest.fixture
def fails(run: Run) -> Run:
    """Runs a command that must fail with exit code 1 and one line on standard error; gives its result."""

    def run_failing(*arguments: object, **changes: Any) -> Result:
        result = run(*arguments, **changes)
        assert result.returncode == 1, result
        assert result.stderr.startswith("penstock: "), result.stderr
        assert result.stderr.count("\n") == 1, result.stderr
        return result

    return run_failing


@pytest.fixture
def misused(run: Run) -> Run:
    """The same for exit code 2: the command line is wrong."""

    def run_misused(*arguments: object) -> Result:
        result = run(*arguments)
        assert result.returncode == 2, result
        assert result.stdout == ""
        assert result.stderr.startswith("penstock: "), result.stderr
        assert result.stderr.count("\n") == 1, result.stderr
        return result

    return run_misused
