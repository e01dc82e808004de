"""Ctrl-C and friends: exit code 128 + signal, nothing left behind."""

from __future__ import annotations

import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import cli_files as files
import pytest
from cli_command import PATIENCE_SECONDS, is_writing, wait_until


def interrupt_while_writing(command: list[str], directory: Path, signal_number: int) -> tuple[int, str]:
    """Runs a command on a.safetensors, sends a signal once it writes, and gives its exit code and standard error."""
    before = files.names_in(directory)
    heeded = partial(signal.signal, signal_number, signal.SIG_DFL)  # nohup, or a shell's background, has it ignored
    process = subprocess.Popen(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heeded
    )
    source = directory.resolve() / "a.safetensors"
    wait_until(lambda: is_writing(process, source), process)
    time.sleep(0.05)
    process.send_signal(signal_number)
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert files.names_in(directory) == before
    return process.returncode, errors


def interrupt_after(seconds: float, command: list[str], directory: Path) -> int:
    """Runs a command in an empty directory, presses Ctrl-C some time after its files appear, gives its exit code."""
    process = subprocess.Popen(command, cwd=directory, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: files.names_in(directory) != [], process)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_SECONDS)
    assert files.names_in(directory) == []
    return process.returncode


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_conversion_leaves_nothing_behind(command: str, tmp_path: Path, signal_number: int) -> None:
    files.write_large(tmp_path / "a.safetensors", 4 * 2**30)
    arguments = [command, "convert", "a.safetensors", "b.safetensors"]
    code, errors = interrupt_while_writing(arguments, tmp_path, signal_number)
    assert code == 128 + signal_number
    assert errors.splitlines()[-1] == "penstock: interrupted"


def test_an_interrupted_conversion_keeps_the_old_target(command: str, tmp_path: Path) -> None:
    files.write_large(tmp_path / "a.safetensors", 4 * 2**30)
    (tmp_path / "b.safetensors").write_text("precious")
    arguments = [command, "convert", "a.safetensors", "b.safetensors", "--force"]
    code, _ = interrupt_while_writing(arguments, tmp_path, signal.SIGINT)
    assert code == 130
    assert (tmp_path / "b.safetensors").read_text() == "precious"


@pytest.mark.parametrize("seconds", [0.0, 0.3, 1.0])
def test_an_interrupted_bench_removes_its_files(command: str, tmp_path: Path, seconds: float) -> None:
    arguments = [command, "bench", "--size", "512MiB", "--rounds", "50", "--json"]
    assert interrupt_after(seconds, arguments, tmp_path) == 130


@pytest.mark.parametrize("seconds", [0.0, 0.5])
def test_an_interrupted_bench_of_settings_removes_its_files(command: str, tmp_path: Path, seconds: float) -> None:
    arguments = [command, "bench", "--settings", "--size", "256MiB", "--rounds", "50", "--json"]
    assert interrupt_after(seconds, arguments, tmp_path) == 130


def test_a_conversion_goes_on_when_nobody_reads_its_progress(command: str, tmp_path: Path) -> None:
    files.write_file(tmp_path / "a.safetensors")
    process = subprocess.Popen(
        [command, "convert", "a.safetensors", "b.safetensors"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    process.stderr.close()
    assert process.wait(timeout=PATIENCE_SECONDS) == 0
    assert files.read_file(tmp_path / "b.safetensors")[0] == files.sample_tensors()
