"""A training run that saves every step in the background and kills itself at a random line of what saves; the test
starts it again until it comes to its end."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from types import FrameType
from typing import Any

import penstock
from penstock import _manager, _step_files, _steps, _thread_job
from training_runs import Run

STEPS = 24
ATTEMPTS = 5  # that are killed
TRACED = {module.__file__ for module in (_manager, _step_files, _steps, _thread_job)}


class Death:
    """Kills the process when it comes to a line, counted over all threads."""

    def __init__(self, line: int) -> None:
        self._left = line

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in TRACED:
            return None
        if event == "line":
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return self


def main(directory: str, attempt: int) -> None:
    if attempt < ATTEMPTS:
        death = Death(random.Random(attempt).randrange(200, 2500))
        threading.settrace(death)
        sys.settrace(death)
    run = Run()
    manager = penstock.CheckpointManager(directory, keep=3)
    saved = manager.restore(into=run.state)
    with manager:
        for step in range(saved.step + 1 if saved else 1, STEPS + 1):
            run.step()
            manager.save_async(step, run.state)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
