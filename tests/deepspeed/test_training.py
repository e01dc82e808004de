"""Trainings by DeepSpeed that are killed, go on from `latest`, and have the losses of one that was not.

The unbroken one is DeepSpeed's alone, with its own checkpoint engine, and so each loads what the other saved.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import helpers
import pytest
import torch

RANK = Path(__file__).with_name("training_rank.py")
PATIENCE_SECONDS = 240
LAST, EVERY = 12, 3

Curve = dict[int, tuple[float, str]]  # step -> loss, digest of the parameters


class Run(NamedTuple):
    """What came of a launch: how each rank ended, the curves of each rank and part, and all that was printed."""

    codes: list[int]
    curves: list[list[Curve]]
    said: str


def launch(
    world: int, stage: int, writer: Any, parts: list[dict[str, Any]], *, penstock: bool, kill: Any = None
) -> Run:
    """Runs all ranks. When one is killed the others are, as a launcher would do it."""
    job = {"world": world, "stage": stage, "writer": writer, "penstock": penstock, "parts": parts, "kill": kill}
    environment = {**os.environ, **helpers.rendezvous()}
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank in range(world):
            output = stack.enter_context(Path(parts[0]["log"]).with_suffix(f".{rank}").open("w+"))
            command = [sys.executable, str(RANK), str(rank), json.dumps(job)]
            ranks.append((subprocess.Popen(command, env=environment, stdout=output, stderr=output), output))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while any(process.poll() is None for process, _ in ranks):
            broken = any(process.poll() not in (None, 0) for process, _ in ranks)
            if broken or time.monotonic() > deadline:
                for process, _ in ranks:
                    process.kill()
            time.sleep(0.05)
        said = []
        for _, output in ranks:
            output.seek(0)
            said.append(output.read())
    return Run(
        [process.returncode for process, _ in ranks], [read_curves(text, len(parts)) for text in said], "".join(said)
    )


def read_curves(text: str, parts: int) -> list[Curve]:
    curves: list[Curve] = [{} for _ in range(parts)]
    for line in text.splitlines():
        if line.startswith("[") and line.endswith("]"):
            with contextlib.suppress(ValueError):
                part, step, loss, digest = json.loads(line)
                curves[part][step] = (loss, digest)
    return curves


def files_of(world: int, stage: int) -> set[str]:
    ranks = range(world)
    optimizer = {f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in ranks} if stage else set()
    if stage < 3:
        return {"mp_rank_00_model_states.pt"} | optimizer
    return {f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" for rank in ranks} | optimizer


def assert_latest_is_whole(directory: Path, world: int, stage: int, steps: set[int]) -> None:
    tag = (directory / "latest").read_text()
    assert tag in {f"global_step{step}" for step in steps}
    assert {path.name for path in (directory / tag).iterdir()} == files_of(world, stage)
    for path in (directory / tag).iterdir():
        assert torch.load(path, map_location="cpu", weights_only=False)
    named = {path.name for path in directory.iterdir() if path.is_dir() and not path.name.startswith(".")}
    for name in named:  # there is no tag but whole ones
        assert {path.name for path in (directory / name).iterdir()} == files_of(world, stage)


FAST = {"type": "fast"}
DECOUPLED = {"type": "fast", "decoupled": True}


# A kill in the third checkpoint, after the ninth step: `latest` names that of the sixth, or the ninth.
@pytest.mark.parametrize(
    ("world", "stage", "writer", "kill", "steps"),
    [
        (1, 0, None, (0, 3, "after its first file"), {6}),
        (1, 1, DECOUPLED, (0, 3, "with all files saved"), {6}),
        (1, 2, FAST, (0, 3, "with the tag named"), {6}),
        (1, 3, {"type": "python"}, (0, 8, "in training"), {6}),
        (2, 0, {"type": "fast", "decoupled": True, "data_parallel": "replica"}, (1, 3, "after its first file"), {6}),
        (
            2,
            1,
            {"type": "fast", "data_parallel": "machine", "io_buffer_size": 1e6},
            (0, 3, "with all files saved"),
            {6},
        ),
        (2, 2, {"type": "fast", "decoupled": True, "data_parallel": "socket"}, (1, 11, "in training"), {9}),
        (2, 3, {**DECOUPLED, "data_parallel": "replica"}, (0, 3, "with the tag named"), {6}),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else None,
)
def test_a_training_that_is_killed_goes_on_with_equal_losses(
    tmp_path: Path, world: int, stage: int, writer: Any, kill: Any, steps: set[int]
) -> None:
    ours, its = tmp_path / "ours", tmp_path / "its"

    def part(name: str, **settings: Any) -> dict[str, Any]:
        return {"log": str(tmp_path / name), "last": LAST, **settings}

    killed = launch(world, stage, writer, [part("killed", directory=str(ours))], penstock=True, kill=list(kill))
    assert killed.codes == [-signal.SIGKILL] * world, killed.said
    assert_latest_is_whole(ours, world, stage, steps)
    tag = (ours / "latest").read_text()

    unbroken_parts = [part("unbroken", directory=str(its)), part("", load=str(ours), tag=tag)]
    unbroken = launch(world, stage, None, unbroken_parts, penstock=False)
    assert unbroken.codes == [0] * world, unbroken.said
    resumed_parts = [part("resumed", load=str(its), tag=f"global_step{EVERY}"), part("", directory=str(ours))]
    resumed = launch(world, stage, writer, resumed_parts, penstock=True)
    assert resumed.codes == [0] * world, resumed.said

    first = int(tag.removeprefix("global_step"))
    for rank in range(world):
        curve, its_from_ours = unbroken.curves[rank]
        ours_from_its, ours_from_ours = resumed.curves[rank]
        assert sorted(curve) == list(range(1, LAST + 1))
        assert killed.curves[rank][0] == {step: curve[step] for step in killed.curves[rank][0]}
        assert its_from_ours == ours_from_ours == {step: curve[step] for step in range(first + 1, LAST + 1)}
        assert ours_from_its == {step: curve[step] for step in range(EVERY + 1, LAST + 1)}
    assert_latest_is_whole(ours, world, stage, {LAST})
    assert not [path for path in ours.iterdir() if path.name.startswith(".")]  # what the killed one left is gone
