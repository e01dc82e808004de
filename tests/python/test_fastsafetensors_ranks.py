"""penstock.fastsafetensors by several ranks: real processes on gloo share what each has read, or fail together."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import fastsafetensors_rank
import helpers
import pytest
from safetensors.torch import save_file

# No rank may need longer: far above what a launch takes, far below torch's own half hour.
PATIENCE_SECONDS = 200
# After a failure every rank has its error within the time-out and the search for who is gone.
BOUND_SECONDS = fastsafetensors_rank.TIMEOUT_SECONDS + 15


class Launch:
    """What came of one launch: what each rank said of each scenario."""

    def __init__(self, directory: Path, world: int, *scenarios: str) -> None:
        self.directory = directory
        self.world = world
        for number in range(fastsafetensors_rank.FILES):
            path = fastsafetensors_rank.file_of(directory, number)
            save_file(fastsafetensors_rank.make_tensors(number), path, metadata={"number": str(number)})
        shutil.copy(fastsafetensors_rank.file_of(directory, 0), directory / "shrinks.safetensors")
        fastsafetensors_rank.write_narrow(directory / "narrow.safetensors")
        (directory / "bad.safetensors").write_bytes(b"\xff" * 100)
        environment = {**os.environ, **helpers.rendezvous(), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, fastsafetensors_rank.__file__, str(directory), *scenarios]
        ranks = [subprocess.Popen(command, env={**environment, "RANK": str(rank)}) for rank in range(world)]
        try:
            self.codes = [process.wait(PATIENCE_SECONDS) for process in ranks]
        finally:
            for process in ranks:
                process.kill()
                process.wait()

    def outcomes(self, scenario: str) -> list[dict[str, Any] | None]:
        """Of each rank; None where it was gone."""
        everyone: list[dict[str, Any] | None] = []
        for rank in range(self.world):
            lines = (self.directory / f"outcome-{rank}").read_text().splitlines()
            entries = {entry["scenario"]: entry for entry in map(json.loads, lines)}
            everyone.append(entries.get(scenario))
        return everyone

    def said(self, scenario: str) -> list[str]:
        """Of each rank that was there; empty where all went well."""
        return [outcome["said"] for outcome in self.outcomes(scenario) if outcome is not None]


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def launch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    return Launch(tmp_path_factory.mktemp("ranks"), request.param)


@pytest.mark.parametrize(
    "scenario",
    [
        "whole_tensors",
        "parts_of_tensors",
        "parts_that_are_sent",
        "narrow_types",
        "mixed_calls_read_once",
        "ahead_is_bounded",
        "dictionaries",
        "few_collectives",
        "pushes",
        "columns",
        "subgroups",
        "conversions",
        "filtered",
        "arrays",
        "opened_together",
        "cached",
        "slow_messages",
        "descriptors",
        "works_again",
    ],
)
def test_ranks_get_the_tensors_of_all_files(launch: Launch, scenario: str) -> None:
    assert launch.said(scenario) == [""] * launch.world


def test_a_name_that_only_one_rank_asks_for_fails_all_and_the_group_goes_on(launch: Launch) -> None:
    *others, last = launch.said("unknown_on_one_rank")
    assert last == "ArgumentError: nowhere is in none of the files"
    expected = f"get_tensor('0.large'): rank {launch.world - 1} failed: nowhere is in none of the files"
    assert others == [f"DistributedError: {expected}"] * (launch.world - 1)


def test_ranks_that_ask_for_different_tensors_are_told_so(launch: Launch) -> None:
    expected = "the ranks disagree: rank 0 calls get_tensor('0.large'), rank 1 calls get_tensor('1.large')"
    assert launch.said("other_order") == [f"DistributedError: {expected}"] * launch.world


def test_ranks_that_split_in_different_dimensions_are_told_so(launch: Launch) -> None:
    expected = "the ranks disagree: rank 0 calls get_sharded('0.large', 0), rank 1 calls get_sharded('0.large', 1)"
    assert launch.said("other_dimension") == [f"DistributedError: {expected}"] * launch.world


def test_ranks_that_took_different_tiny_tensors_are_told_so_by_the_next_call(launch: Launch) -> None:
    first, other = "get_sharded('0.tiny.3', 0)", "get_sharded('0.tiny.4', 0)"
    expected = f"the ranks disagree: rank 0 calls {first}, rank {launch.world - 1} calls {other}"
    assert launch.said("other_order_of_tiny_ones") == [f"DistributedError: {expected}"] * launch.world


def test_ranks_that_load_different_files_are_told_so(launch: Launch) -> None:
    for said in launch.said("other_files"):
        assert said.startswith("DistributedError: the ranks disagree: rank 0 calls copy_files_to_device of part-0")
        assert f"rank {launch.world - 1} calls copy_files_to_device of part-1" in said


@pytest.mark.parametrize(
    ("scenario", "kind", "cause"),
    [
        ("missing_file", "NotFoundError", "missing.safetensors: there is no such file"),
        ("bad_file", "FormatError", "bad.safetensors: a header of 18446744073709551615 bytes"),
        ("shrinks_while_loading", "FormatError", "shrinks.safetensors: truncated"),
    ],
)
def test_a_file_that_one_rank_cannot_read_fails_all(launch: Launch, scenario: str, kind: str, cause: str) -> None:
    said = launch.said(scenario)
    assert len(said) == launch.world
    assert said[1].startswith(f"{kind}: ")
    assert cause in said[1]
    for other in said[:1] + said[2:]:
        assert other.startswith("DistributedError: ")
        assert "rank 1 failed: " in other
        assert cause in other


def test_a_rank_that_does_not_answer_is_named(launch: Launch) -> None:
    said = launch.said("stays_away")
    assert len(said) == launch.world
    for one in said:
        assert f"rank {launch.world - 1} is gone, or did not answer within 6 s" in one
    assert all(outcome["seconds"] < BOUND_SECONDS for outcome in launch.outcomes("stays_away") if outcome is not None)


def test_a_rank_that_is_killed_is_named_by_all_others(launch: Launch) -> None:
    outcomes = launch.outcomes("dies")
    assert outcomes[-1] is None
    assert launch.codes == [0] * (launch.world - 1) + [-9]
    for outcome in outcomes[:-1]:
        assert outcome is not None
        assert f"rank {launch.world - 1} is gone" in outcome["said"]
        assert outcome["seconds"] < BOUND_SECONDS


def test_a_rank_that_was_gone_before_is_named_by_all_others(tmp_path: Path) -> None:
    said = Launch(tmp_path, 3, "dies_before_the_others_come").said("dies_before_the_others_come")
    assert said == ["DistributedError: connecting the ranks: rank 2 did not come within 6 s"] * 2 or said == [
        "DistributedError: connecting the ranks: rank 2 did not come within 6 s",
        "DistributedError: rank 2 did not come within 6 s",
    ]


def test_a_failure_of_the_rank_with_the_store_reaches_those_who_come_later(tmp_path: Path) -> None:
    first, *others = Launch(tmp_path, 3, "first_rank_fails_early").said("first_rank_fails_early")
    assert first.startswith("NotFoundError: ")
    for other in others:
        assert other.startswith("DistributedError: rank 0 failed: ")
        assert "missing.safetensors: there is no such file" in other


def test_a_rank_that_dies_while_ranks_connect_is_named_within_the_time_out(tmp_path: Path) -> None:
    """Gloo by itself tries five times, each as long as the time-out."""
    idle, gone, *survivors = Launch(tmp_path, 5, "dies_while_connecting").outcomes("dies_while_connecting")
    assert idle is not None
    assert idle["said"] == ""
    assert gone is None
    for survivor in survivors:
        assert survivor is not None
        assert "rank 0 (global rank 1)" in survivor["said"]
        assert survivor["seconds"] < BOUND_SECONDS
