"""Decoupled checkpoints of several ranks: real processes on gloo write one file in the background, or fail together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fastpersist_rank
import helpers
import penstock
import pytest
import torch
from trees import assert_same_trees

# No rank may need longer: far above what a launch takes, far below torch's own half hour.
PATIENCE_SECONDS = 240
OLD = {"old": torch.arange(10)}


class Launch:
    """What came of one launch: a directory of files, how each rank ended, and what it wrote."""

    def __init__(self, directory: Path, world: int, ending: str) -> None:
        self.directory = directory
        self.world = world
        penstock.save(OLD, directory / "old.pt")
        environment = {**os.environ, **helpers.rendezvous()}
        command = [sys.executable, fastpersist_rank.__file__]
        ranks = [
            subprocess.Popen(
                [*command, str(rank), str(world), str(directory), ending],
                env=environment,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]
        try:
            self.errors = [process.communicate(timeout=PATIENCE_SECONDS)[1] for process in ranks]
            self.codes = [process.returncode for process in ranks]
        finally:
            for process in ranks:
                process.kill()
                process.wait()

    def found(self, scenario: str) -> list[Any]:
        """What each rank found; None where it was gone."""
        everyone = []
        for rank in range(self.world):
            lines = (self.directory / f"outcome-{rank}").read_text().splitlines()
            entries = {entry["scenario"]: entry["found"] for entry in map(json.loads, lines)}
            everyone.append(entries.get(scenario))
        return everyone

    def names(self) -> set[str]:
        return {path.name for path in self.directory.iterdir() if not path.name.startswith("outcome")}

    def assert_saved(self, name: str, value: float) -> None:
        assert_same_trees(torch.load(self.directory / name, weights_only=True), fastpersist_rank.make_state(value))


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def launch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    return Launch(tmp_path_factory.mktemp("ranks"), request.param, "run_scenarios")


def test_files_hold_what_was_there_when_save_was_called(launch: Launch) -> None:
    for found in launch.found("saves_while_training_goes_on"):
        assert found["under_way"] is True
        assert found["met"] == [launch.world] * 23
    launch.assert_saved("gated.pt", 0)
    for step in (1, 2, 3):
        launch.assert_saved(f"step-{step}.pt", step)


def test_every_rank_writes_a_share(launch: Launch) -> None:
    state = fastpersist_rank.make_state(1)
    whole = sum(tensor.nbytes for tensor in state["model"].values())
    shares = [found["bytes"] for found in launch.found("saves_while_training_goes_on")]
    assert len(shares[0]) == 4
    assert all(0 < share < whole for rank in shares for share in rank)


def test_legacy_files_are_written_too(launch: Launch) -> None:
    assert launch.found("saves_legacy_files") == [None] * launch.world
    launch.assert_saved("legacy.pt", 4)
    assert (launch.directory / "legacy.pt").read_bytes()[:2] == b"\x80\x02"


@pytest.mark.parametrize("partition", ["machine", "socket"])
def test_a_machine_can_write_with_fewer_ranks(launch: Launch, partition: str) -> None:
    assert launch.found("saves_by_machine_and_socket") == [None] * launch.world
    launch.assert_saved(f"{partition}.pt", 5)


def test_a_share_that_fails_fails_all_at_commit(launch: Launch) -> None:
    old = launch.directory / "old.pt"
    said = launch.found("a_share_fails")
    assert said.pop(1) == f"Error: {old}: OSError: the drive is on fire"
    assert said == [f"DistributedError: {old}: rank 1 failed: OSError: the drive is on fire"] * (launch.world - 1)
    launch.assert_saved("after.pt", 6)


def test_a_failure_is_told_by_the_next_save_and_by_commit(launch: Launch) -> None:
    for saved, committed in launch.found("a_failure_stops_the_next_save"):
        assert "nowhere" in saved
        assert "No such file or directory" in saved
        assert committed == saved
    assert "never.pt" not in launch.names()


def test_a_state_that_can_not_be_pickled_fails_all(launch: Launch) -> None:
    found = launch.found("a_state_can_not_be_pickled")
    saved, committed = found.pop(1)
    assert saved.startswith("TypeError: cannot pickle")
    assert "TypeError: cannot pickle" in committed
    for saved, committed in found:
        assert saved == ""
        assert committed.startswith(f"DistributedError: rank 1 failed: {launch.directory}/old.pt: TypeError: cannot")


def test_all_refuse_while_a_save_is_under_way(launch: Launch) -> None:
    for said in launch.found("all_refuse_when_one_is_busy"):
        assert said.startswith(f"BusyError: {launch.directory}/second.pt: not saved, the save of ")
    launch.assert_saved("first.pt", 7)
    launch.assert_saved("third.pt", 9)
    assert "second.pt" not in launch.names()


def test_a_rank_that_stalls_fails_all(launch: Launch) -> None:
    for said, again in launch.found("a_rank_stalls"):
        assert said.startswith("DistributedError: ")
        assert "a rank is gone, or did not answer within 3 s" in said
        assert again.endswith("old.pt: not saved, a rank did not answer in an earlier save: make a new engine")


def test_a_rank_that_dies_fails_all_that_live(launch: Launch) -> None:
    *living, dead = launch.found("a_rank_dies")
    assert dead is None
    assert launch.codes == [0] * (launch.world - 1) + [-9]
    assert all("a rank is gone" in said for said in living)


def test_failures_leave_the_old_file_and_nothing_else(launch: Launch) -> None:
    assert torch.equal(torch.load(launch.directory / "old.pt")["old"], OLD["old"])
    made = {"gated.pt", "step-1.pt", "step-2.pt", "step-3.pt", "legacy.pt", "machine.pt", "socket.pt"}
    assert launch.names() == made | {"old.pt", "after.pt", "first.pt", "third.pt"}


def test_exit_waits_for_what_was_not_committed(tmp_path: Path) -> None:
    launch = Launch(tmp_path, 2, "exit_without_commit")
    assert (launch.codes, launch.errors) == ([0, 0], ["", ""])
    launch.assert_saved("model.pt", 3)


def test_an_interrupted_exit_leaves_the_old_file(tmp_path: Path) -> None:
    launch = Launch(tmp_path, 2, "interrupted_at_exit")
    assert launch.names() == {"old.pt"}
    assert torch.equal(torch.load(tmp_path / "old.pt")["old"], OLD["old"])
    assert any("old.pt: the save was interrupted and not written" in text for text in launch.errors)
    assert all("KeyboardInterrupt" in text for text in launch.errors)
