"""The command as a process: the types of the fixtures that run it, and how to wait for what it does."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

Result = subprocess.CompletedProcess[str]
Run = Callable[..., Result]

PATIENCE_SECONDS = 60  # before a test is given up, not a measure of anything


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    for _ in range(PATIENCE_SECONDS * 500):
        if condition():
            return
        assert process.poll() is None, "it ended before it could be interrupted"
        time.sleep(0.002)
    pytest.fail("it never came so far")


def is_writing(process: subprocess.Popen[str], source: Path) -> bool:
    """True when a process has a file beside `source` open: its new file, which may not have a name yet."""
    for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed in the meantime
            target = descriptor.readlink()
            if target.parent == source.parent and target != source:
                return True
    return False


def output_on_terminal(
    command: list[str], directory: Path, environment: dict[str, str], columns: int = 80, code: int = 0
) -> str:
    """What a command prints to a terminal."""
    try:
        master, slave = pty.openpty()
    except OSError as error:
        pytest.skip(f"no pseudo-terminal can be had here: {error}")
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        command, cwd=directory, stdin=slave, stdout=slave, stderr=slave, env={**os.environ, **environment}
    )
    os.close(slave)
    text = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the terminal's other side was closed
            break
        if not part:
            break
        text += part
    os.close(master)
    assert process.wait(timeout=60) == code
    return text.decode()
