"""examples/python/train.py is killed at random steps and started again: its losses are those of an unbroken run."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
from pathlib import Path

TRAIN = Path(__file__).parents[2] / "examples" / "python" / "train.py"
LOSS = re.compile(r"step (\d+): loss (\S+)")
FIRST = re.compile(r"from step (\d+)")
STEPS = 80


def run(directory: Path, kill_after: int | None) -> tuple[int, dict[int, str], int]:
    """The step it began with, the losses by step, and how it ended; killed once it has printed so many of them."""
    command = [sys.executable, str(TRAIN), str(directory), "--steps", str(STEPS), "--every", "7"]
    losses: dict[int, str] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = FIRST.match(process.stdout.readline())
        assert found is not None
        for line in process.stdout:
            if (loss := LOSS.match(line)) is not None:
                losses[int(loss[1])] = loss[2]
            if len(losses) == kill_after:
                process.kill()
    return int(found[1]), losses, process.returncode


def test_a_run_that_is_killed_again_and_again_has_the_losses_of_an_unbroken_one(tmp_path: Path) -> None:
    _, expected, code = run(tmp_path / "unbroken", None)
    assert code == 0
    assert sorted(expected) == list(range(1, STEPS + 1))
    generator, firsts, seen = random.Random(21), [], dict[int, str]()
    for attempt in range(5):
        kill_after = None if attempt == 4 else generator.randrange(9, 17)
        first, losses, code = run(tmp_path / "killed", kill_after)
        assert code == (0 if kill_after is None else -signal.SIGKILL)
        assert losses == {step: expected[step] for step in losses}
        firsts.append(first)
        seen.update(losses)
    assert seen == expected
    assert firsts[0] == 1
    assert firsts == sorted(firsts)
    assert firsts[-1] > 1  # it did not begin again
    names = sorted(path.name for path in (tmp_path / "killed").iterdir())
    assert names == [f"step-{step:08}" for step in (77, 80)]
