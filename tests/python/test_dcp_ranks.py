"""penstock.dcp by several ranks: real processes on gloo save together, load what others saved, and fail together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import dcp_rank
import penstock
import penstock.dcp
import pytest
import torch
import torch.distributed.checkpoint as dcp

# No launch may need longer: far above what it takes, far below torch's own half hour.
PATIENCE_SECONDS = 300
# After a failure every rank has its error within the group's time-out and a launch's own work.
BOUND_SECONDS = dcp_rank.TIMEOUT_SECONDS + 15
AGREE = [name for name in dcp_rank.SCENARIOS if "-" not in name]


def launch(directory: Path, world: int, *scenarios: str, patience: float = PATIENCE_SECONDS) -> None:
    """Forked ranks that do not outlive this."""
    command = [sys.executable, dcp_rank.__file__, str(directory), str(world), *scenarios]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True)
    try:
        process.wait(patience)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def outcomes(directory: Path, world: int, scenario: str) -> list[dict[str, Any]]:
    """Of each rank that lived to tell."""
    files = [directory / f"outcome-{world}-{rank}" for rank in range(world)]
    entries = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [entry for entry in entries if entry["scenario"] == scenario]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the launches of 4, 2 and 1 ranks meet, in this order."""
    return tmp_path_factory.mktemp("dcp")


@pytest.fixture(scope="module", params=[4, 2, 1], ids=["4 ranks", "2 ranks", "1 rank"])
def launched(request: pytest.FixtureRequest, shared: Path) -> tuple[Path, int]:
    launch(shared, request.param, *AGREE)
    return shared, request.param


@pytest.mark.parametrize("scenario", AGREE)
def test_ranks_agree(launched: tuple[Path, int], scenario: str) -> None:
    directory, world = launched
    assert [entry["said"] for entry in outcomes(directory, world, scenario)] == [""] * world


def save_step(directory: Path, step: int) -> None:
    state = {"model": dcp_rank.full_tensors(step), "extra": dict(dcp_rank.OBJECTS)}
    dcp.save(state, storage_writer=penstock.dcp.StorageWriter(directory / f"step-{step}"), no_dist=True)


def assert_is_there(directory: Path, step: int) -> None:
    """The whole of a step can be loaded."""
    model = {name: torch.zeros_like(each) for name, each in dcp_rank.full_tensors(step).items()}
    state: dict[str, Any] = {"model": model, "extra": dict.fromkeys(dcp_rank.OBJECTS)}
    dcp.load(state, storage_reader=penstock.dcp.StorageReader(directory / f"step-{step}"), no_dist=True)
    dcp_rank.check(state, step)


def steps_in(directory: Path) -> list[str]:
    """All that saves have left there, hidden or not."""
    ours = ("outcome", "codes", "process")
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith(ours))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for every kill, with a step that was committed before."""
    directory = tmp_path_factory.mktemp("killed")
    names = [f"{stage}-{victims}" for stage, victims in dcp_rank.KILLS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            save_step(directory / name, 1)
    launch(directory, 2, "--apart", *names)
    return directory


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize(("stage", "victims"), dcp_rank.KILLS)
def test_a_kill_at_any_stage_leaves_the_last_committed_step(killed: Path, stage: str, victims: str) -> None:
    directory = killed / f"{stage}-{victims}"
    codes = json.loads((directory / "codes-2").read_text())
    dead = {"0": {0}, "1": {1}, "all": {0, 1}}[victims]
    assert {rank for rank, code in enumerate(codes) if code == -signal.SIGKILL} == dead
    told = outcomes(directory, 2, f"{stage}-{victims}")
    assert len(told) == 2 - len(dead)
    assert all(entry["said"] != "" and entry["seconds"] < BOUND_SECONDS for entry in told)
    assert_is_there(directory, 1)
    if stage == "renamed":
        assert_is_there(directory, 2)
        assert steps_in(directory) == ["step-1", "step-2"]
    else:
        # A coordinator that is killed leaves its hidden directory; one that lives removes it.
        assert len(steps_in(directory)) == (1 if victims == "1" else 2)
        assert not (directory / "step-2").exists()
    save_step(directory, 3)
    assert steps_in(directory) == (["step-1", "step-2", "step-3"] if stage == "renamed" else ["step-1", "step-3"])
    assert_is_there(directory, 3)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize(
    ("victims", "way", "stride"), [("all", "now", 1), ("all", "async", 3), ("0", "now", 4), ("1", "now", 3)]
)
def test_a_kill_at_every_point_leaves_the_old_checkpoint_or_the_new_one(
    tmp_path: Path, victims: str, way: str, stride: int
) -> None:
    """Over a checkpoint of the same name: before and after each thing that a rank does in a save."""
    directory = tmp_path / f"points-{victims}-{way}-{stride}"
    save_step(directory / "before", 1)
    save_step(directory / "before", 4)
    (directory / "before" / "step-4").rename(directory / "before" / "step-2")
    launch(tmp_path, 2, "--apart", directory.name, patience=3 * PATIENCE_SECONDS)  # dozens of launches
    folders = sorted((path for path in directory.iterdir() if path.name != "before"), key=lambda path: int(path.name))
    dead = {"0": {0}, "1": {1}, "all": {0, 1}}[victims]
    found = []
    for folder in folders:
        codes = json.loads((folder / "codes-2").read_text())
        killed = {rank for rank, code in enumerate(codes) if code == -signal.SIGKILL}
        assert killed == (dead if folder is not folders[-1] else set())
        assert all(
            entry["seconds"] < BOUND_SECONDS for entry in outcomes(folder, 2, f"point-{folder.name}-{victims}-{way}")
        )
        assert_is_there(folder, 1)
        found.append(step_at(folder / "step-2"))
        save_step(folder, 3)
        assert steps_in(folder) == ["step-1", "step-2", "step-3"]
        assert step_at(folder / "step-2") == found[-1]
    assert len(found) > (12 if victims == "1" else 20) // stride
    assert found == sorted(found, reverse=True)  # 4, the old one, up to the rename, and then 2
    assert found[-1] == 2


def step_at(path: Path) -> int:
    """Which step's values are there: all are of one."""
    for step in (2, 4):
        state: dict[str, Any] = penstock.dcp.load(path)
        if torch.equal(state["model"]["rows"], dcp_rank.full_tensors(step)["rows"]):
            dcp_rank.check(state, step)
            return step
    raise AssertionError(f"{path}: neither the old checkpoint nor the new one")
