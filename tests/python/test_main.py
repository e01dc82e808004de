"""python -m penstock is the native command."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import penstock
import penstock.__main__ as module
import pytest

NOWHERE = {**os.environ, "PATH": "/nonexistent"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments], capture_output=True, text=True, check=False, env=NOWHERE
    )


def test_the_command_is_found_without_a_path() -> None:
    assert run("--version").stdout == f"penstock {penstock.__version__}\n"


def test_arguments_and_exit_codes_are_the_commands(tmp_path: Path) -> None:
    result = run("ls", str(tmp_path / "with space.safetensors"))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"penstock: {tmp_path}/with space.safetensors: ")
    assert run("lss").returncode == 2


def test_a_closed_pipe_ends_it_as_it_ends_the_command() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "man"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=NOWHERE
    )
    assert process.stdout is not None
    process.stdout.close()  # as head does
    process.communicate()
    assert process.returncode in (0, -signal.SIGPIPE)


def test_a_package_without_its_command_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "find_command", lambda: None)
    assert module.main() == 1
    assert "the native command is not installed" in capsys.readouterr().err


def test_another_program_of_that_name_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    impostor = tmp_path / "penstock"
    shutil.copy("/bin/true", impostor)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = module.find_command()
    assert found is not None
    assert found.parent != tmp_path


def test_the_program_that_a_wheel_carries_beside_the_package_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "penstock.scripts" / "penstock"
    program.parent.mkdir()
    shutil.copy("/bin/true", program)
    monkeypatch.setattr(module, "__file__", str(tmp_path / "penstock" / "__main__.py"))
    assert module.find_command() == program
    program.chmod(0o644)
    assert module.find_command() != program
