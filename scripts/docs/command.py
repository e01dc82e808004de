"""The command as a Markdown page: what `penstock --help` and `penstock COMMAND --help` print, a section for each."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path


def render(command: Path) -> str:
    """All of it, asked of the program itself."""
    top = ask(command)
    parts = [section("penstock", top)]
    parts += [section(f"penstock {name}", ask(command, name)) for name in subcommands(top)]
    return "\n".join(parts)


def ask(command: Path, *names: str) -> str:
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run([command, *names, "--help"], check=True, capture_output=True, text=True, env=environment)
    return done.stdout.rstrip()


def subcommands(text: str) -> list[str]:
    """The names in the list of commands, which ends with an empty line."""
    listed = re.search(r"^Commands\n((?:  .*\n)+)", text, re.MULTILINE)
    names = re.findall(r"^  (\w[\w-]*)", listed[1], re.MULTILINE) if listed else []
    if not names:
        raise ValueError(f"scripts/docs/command.py finds no list of subcommands in this help:\n{text}")
    return names


def section(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text}\n```\n"
