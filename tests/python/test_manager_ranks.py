"""CheckpointManager over torch.distributed: real processes on gloo commit a step together, or none of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import helpers
import manager_rank
import penstock
import pytest
from penstock import CheckpointManager

PATIENCE_SECONDS = 300


class Launch:
    """What came of one launch: a directory of runs, and what each rank said of each scenario."""

    def __init__(self, directory: Path, world: int) -> None:
        self.directory = directory
        self.world = world
        CheckpointManager(directory / "alone").save(1, {"rng": penstock.rng_state()})
        three = directory / "three" / "step-00000001"
        three.mkdir(parents=True)
        for rank in range(3):
            penstock.save({"position": rank}, three / f"loader.rank-{rank:05}-of-00003.pt")
        environment = {**os.environ, **helpers.rendezvous()}
        command = [sys.executable, manager_rank.__file__]
        ranks = [
            subprocess.Popen([*command, str(rank), str(world), str(directory)], env=environment)
            for rank in range(world)
        ]
        try:
            self.codes = [process.wait(PATIENCE_SECONDS) for process in ranks]
        finally:
            for process in ranks:
                process.kill()
                process.wait()

    def said(self, scenario: str) -> list[str]:
        """Of each rank; "gone" where it was."""
        everyone = []
        for rank in range(self.world):
            lines = (self.directory / f"outcome-{rank}").read_text().splitlines()
            entries = {entry["scenario"]: entry["said"] for entry in map(json.loads, lines)}
            everyone.append(entries.get(scenario, "gone"))
        return everyone

    def names(self, folder: str) -> list[str]:
        return sorted(path.name for path in (self.directory / folder).iterdir())


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def launch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    return Launch(tmp_path_factory.mktemp("manager"), request.param)


@pytest.mark.parametrize("scenario", ["resume_here", "resume_in_background"])
def test_ranks_go_on_bit_for_bit(launch: Launch, scenario: str) -> None:
    assert launch.said(scenario) == [""] * launch.world


@pytest.mark.parametrize("folder", ["here", "background"])
def test_what_all_have_is_saved_once_and_what_each_has_by_each(launch: Launch, folder: str) -> None:
    assert launch.names(folder) == ["step-00000003", "step-00000004"]
    own = [f"{name}.rank-{r:05}-of-{launch.world:05}.pt" for name in ("loader", "rng") for r in range(launch.world)]
    assert launch.names(f"{folder}/step-00000004") == sorted(
        [*own, "model.pt", "optimizer.pt", "progress.pt", "scheduler.pt"]
    )
    files = [launch.directory / folder / "step-00000004" / name for name in own[: launch.world]]
    assert [penstock.load(file)["position"] for file in files] == [10 * rank + 4 for rank in range(launch.world)]


@pytest.mark.parametrize("scenario", ["bad_state", "bad_own_state"])
def test_a_rank_whose_state_can_not_be_saved_fails_all(launch: Launch, scenario: str) -> None:
    said = launch.said(scenario)
    assert all("is an object that can't be loaded as data" in one for one in said), said
    assert all("rank 1 failed: " in one for rank, one in enumerate(said) if rank != 1)


def test_ranks_that_save_different_steps_are_told(launch: Launch) -> None:
    for said in launch.said("other_step"):
        assert f"rank {launch.world - 1} saves another step, or other entries, than rank 0" in said


def test_a_commit_that_fails_on_rank_0_fails_all(launch: Launch) -> None:
    first, *others = launch.said("fails_at_commit")
    assert first.startswith("NoSpaceError: ")
    assert all(one.startswith("DistributedError: ") and "No space left on device" in one for one in others)


def test_nothing_of_a_failed_step_is_left(launch: Launch) -> None:
    assert launch.names("bad") == ["step-00000001"]


def test_what_another_number_of_ranks_saved_for_themselves_is_refused(launch: Launch) -> None:
    for said in launch.said("other_world"):
        assert f"loader was saved by each of 3 ranks for itself, and now there are {launch.world}" in said


def test_what_ranks_have_parts_of_is_refused(launch: Launch) -> None:
    for said in launch.said("split_model"):
        assert said.startswith("UnsupportedError: optimizer: holds DTensors, of which each rank has a part")


def test_a_rank_that_dies_fails_all_that_live(launch: Launch) -> None:
    *living, dead = launch.said("dies_while_saving")
    assert dead == "gone"
    assert launch.codes == [0] * (launch.world - 1) + [-9]
    assert all(one.startswith("DistributedError: ") for one in living)
    assert launch.names("here") == ["step-00000003", "step-00000004"]


def test_one_process_reads_what_ranks_share(launch: Launch) -> None:
    saved = CheckpointManager(launch.directory / "here").restore()
    assert saved is not None
    assert len(saved["progress"]["losses"]) == 4
    with pytest.raises(penstock.ArgumentError, match=f"each of {launch.world} ranks for itself, and now there is 1"):
        saved["rng"]
