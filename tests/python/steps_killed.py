"""Kills a process at every line that it runs of penstock._steps and of what removes directories, one line after the
other, and prints what each death left behind and what was there once the dead had been removed. One JSON line each."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from penstock import _steps

TRACED = {_steps.__file__, shutil.__file__}
OLD = {"a": "old", "sub/b": "old"}
NEW = {"a": "new", "sub/c": "new"}


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)


def create(parent: Path) -> None:
    with _steps.StagedDirectory(parent / "step") as staged:
        write(staged.path, NEW)
        staged.commit()


def replace(parent: Path) -> None:
    with _steps.StagedDirectory(parent / "step") as staged:
        write(staged.path, NEW)
        staged.commit(replace=True)


def replace_in_two_steps(parent: Path) -> None:
    _steps._rename = lambda *_: False
    replace(parent)


def remove(parent: Path) -> None:
    _steps.remove_directory(parent / "step")


def abandon(parent: Path) -> None:
    with _steps.StagedDirectory(parent / "step") as staged:
        write(staged.path, NEW)


def clean_up(parent: Path) -> None:
    """Removes what another process left, and dies meanwhile."""
    put_aside = parent / f".step.replaced-{'0' * 16}"
    os.rename(parent / "step", put_aside)
    half_made = parent / f".step.saving-{'1' * 16}"
    half_made.mkdir()
    write(half_made, NEW)
    _steps.remove_dead(parent)


# Each, and whether there was an old step before.
SCENARIOS: dict[str, tuple[Callable[[Path], None], bool]] = {
    "create": (create, False),
    "replace": (replace, True),
    "replace_in_two_steps": (replace_in_two_steps, True),
    "remove": (remove, True),
    "abandon": (abandon, True),
    "clean_up": (clean_up, True),
}


def seen(parent: Path) -> dict[str, str] | None:
    root = parent / "step"
    if not root.exists():
        return None
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def kill_at(line: int) -> Callable[[FrameType, str, Any], Any]:
    """A tracing function that kills the process when it comes to its `line`th line."""
    left = line

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in TRACED:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace


def run(action: Callable[[Path], None], parent: Path, line: int) -> bool:
    """Whether it came to its end before that line."""
    child = os.fork()
    if child == 0:
        sys.settrace(kill_at(line))
        action(parent)
        sys.settrace(None)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return False
    if status != 0:
        sys.exit("the child failed")
    return True


def main(scenario: str, root: Path) -> None:
    action, has_old = SCENARIOS[scenario]
    line, ended = 0, False
    while not ended:
        line += 1
        parent = root / str(line)
        parent.mkdir()
        if has_old:
            (parent / "step").mkdir()
            write(parent / "step", OLD)
        ended = run(action, parent, line)
        after_death = seen(parent)
        _steps.remove_dead(parent)
        names = sorted(path.name for path in parent.iterdir())
        print(json.dumps({"ended": ended, "left": after_death, "recovered": seen(parent), "names": names}))
        shutil.rmtree(parent)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
