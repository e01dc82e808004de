"""Completion of command lines, asked of the shells themselves."""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest
from cli_command import Run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "more.pt").touch()
    (tmp_path / "with space.pt").touch()
    (tmp_path / "models").mkdir()
    return tmp_path


def require(shell: str) -> str:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    return path


def bash_completes(run: Run, folder: Path, *words: str) -> list[str]:
    """What bash offers for the last word."""
    script = folder / "completion.bash"
    script.write_text(run("completion", "bash").stdout)
    asks = f"""
        set -u
        source '{script}'
        rm '{script}'
        [[ $(complete -p penstock) == 'complete -F _penstock penstock' ]] || exit 3
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _penstock
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    result = subprocess.run(
        [require("bash"), "--norc", "-c", asks, "bash", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    return sorted(result.stdout.split("\n")[:-1])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["penstock", "b"], ["bench"]),
        (["penstock", "co"], ["completion", "convert"]),
        (["penstock", "--v"], ["--version"]),
        (["penstock", "ls", "--so"], ["--sort"]),
        (["penstock", "ls", "--s"], ["--select", "--sort", "--summary"]),
        (["penstock", "ls", "--sort", ""], ["name", "offset", "size"]),
        (["penstock", "ls", "--sort", "="], ["name", "offset", "size"]),
        (["penstock", "ls", "--sort", "=", "n"], ["name"]),
        (["penstock", "ls", "--select", "mo"], [""]),
        (["penstock", "ls", "m"], ["model.safetensors", "models", "more.pt"]),
        (["penstock", "ls", "with"], ["with space.pt"]),
        (["penstock", "convert", "model.safetensors", "mor"], ["more.pt"]),
        (["penstock", "convert", "a", "b", "--format", "t"], ["torch", "torch-legacy"]),
        (["penstock", "convert", "a", "b", "--dtype", "b"], ["bf16"]),
        (["penstock", "convert", "a", "b", "--dtype", "B"], ["BF16"]),
        (["penstock", "convert", "a", "b", "--dtype", "f"], ["f16", "f32", "f64", "f8_e4m3", "f8_e5m2"]),
        (["penstock", "bench", "--dir", "m"], ["models"]),
        (["penstock", "verify", "--color", "a"], ["always", "auto"]),
        (["penstock", "completion", ""], ["bash", "fish", "zsh"]),
        (["penstock", "man", "do"], ["doctor"]),
        (["penstock", "nonsense", "--x"], [""]),
    ],
    ids=" ".join,
)
def test_bash(run: Run, folder: Path, words: list[str], expected: list[str]) -> None:
    assert bash_completes(run, folder, *words) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("penstock b", ["bench"]),
        ("penstock co", ["completion", "convert"]),
        ("penstock ls --so", ["--sort"]),
        ("penstock ls --sort ", ["name", "offset", "size"]),
        ("penstock ls --sort=n", ["--sort=name"]),
        ("penstock ls --select mo", []),
        ("penstock ls mo", ["model.safetensors", "models/", "more.pt"]),
        ("penstock bench --dir mo", ["models/"]),
        ("penstock completion ", ["bash", "fish", "zsh"]),
        ("penstock man do", ["doctor"]),
    ],
)
def test_fish(run: Run, folder: Path, line: str, expected: list[str]) -> None:
    script = folder / "completion.fish"
    script.write_text(run("completion", "fish").stdout)
    asks = f"complete -c penstock -e; source '{script}'; rm '{script}'; complete -C '{line}'"
    result = subprocess.run(
        [require("fish"), "--no-config", "-c", asks],
        cwd=folder,
        env={**os.environ, "HOME": str(folder / "models")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert sorted(offer.split("\t")[0] for offer in result.stdout.splitlines()) == expected


# What the completion adds is written down before it is shown; -O, -A and -D only sort it out.
ZSH_SETUP = """
stty -echo
PS1=READY: LISTMAX=10000
autoload -U compinit && compinit -u -D
source completion.zsh
rm completion.zsh setup.zsh
compadd() {
  local -a found
  if (( ! ${@[(I)-[OAD]]} )); then
    builtin compadd -O found "$@"
    print -rl -- $found >>models/offers
  fi
  builtin compadd "$@"
}
"""


def read_until(terminal: int, mark: bytes | None) -> None:
    text = b""
    with contextlib.suppress(OSError):  # the shell has gone
        while mark is None or mark not in text:
            text += os.read(terminal, 65536)


def zsh_completes(run: Run, folder: Path, line: str) -> list[str]:
    (folder / "completion.zsh").write_text(run("completion", "zsh").stdout)
    (folder / "setup.zsh").write_text(ZSH_SETUP)
    shell = require("zsh")
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.execve(shell, [shell, "-f", "-i"], {"TERM": "xterm", "PATH": os.environ["PATH"], "HOME": str(folder)})
    os.write(terminal, b"source ./setup.zsh\n")
    read_until(terminal, b"READY:")
    # The line, a tab, away with the line, and the end.
    os.write(terminal, f"{line}\t\x15exit\n".encode())
    read_until(terminal, None)
    os.close(terminal)
    os.waitpid(process, 0)
    offers = folder / "models" / "offers"
    return sorted(set(offers.read_text().split("\n")) - {""}) if offers.exists() else []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("penstock b", ["bench"]),
        ("penstock co", ["completion", "convert"]),
        ("penstock ls --so", ["--sort"]),
        ("penstock ls --sort ", ["name", "offset", "size"]),
        ("penstock ls --select mo", []),
        ("penstock ls mo", ["model.safetensors", "models", "more.pt"]),
        ("penstock bench --dir mo", ["models"]),
        ("penstock completion ", ["bash", "fish", "zsh"]),
        ("penstock man do", ["doctor"]),
    ],
)
def test_zsh(run: Run, folder: Path, line: str, expected: list[str]) -> None:
    assert zsh_completes(run, folder, line) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_read_without_complaint(run: Run, shell: str) -> None:
    script = run("completion", shell).stdout
    result = subprocess.run([require(shell), "-n"], input=script, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
