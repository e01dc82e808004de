"""shard= and DTensors by several ranks: real processes on gloo get what slicing gives, or fail together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import helpers
import pytest
import shard_rank

# No rank may need longer: far above what a launch takes, far below torch's own half hour.
PATIENCE_SECONDS = 200
# After a failure every rank has its error within the time-out and the search for who is gone.
BOUND_SECONDS = shard_rank.TIMEOUT_SECONDS + 15

AGREE = [
    "every_way",
    "every_byte_once",
    "conversions",
    "arrays",
    "narrow_types",
    "own_plans",
    "meshes",
    "chosen_by_measure",
    "fully_sharded",
    "placed",
    "converted_into",
    "works_again",
]
FAIL = ["missing_file", "other_tensors", "stopped"]


class Launch:
    """What came of one launch: what each rank said of each scenario."""

    def __init__(self, directory: Path, world: int) -> None:
        self.directory = directory
        self.world = world
        shard_rank.write_files(directory)
        environment = {**os.environ, **helpers.rendezvous(), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, shard_rank.__file__, str(directory)]
        command += AGREE if world == 1 else [*AGREE[:-1], *FAIL, AGREE[-1], "dies"]
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


@pytest.fixture(scope="module", params=[1, 2, 4], ids=["1 rank", "2 ranks", "4 ranks"])
def launch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    return Launch(tmp_path_factory.mktemp("ranks"), request.param)


@pytest.fixture
def several(launch: Launch) -> Launch:
    if launch.world == 1:
        pytest.skip("one rank has no others to fail with")
    return launch


@pytest.mark.parametrize("scenario", AGREE)
def test_ranks_get_what_slices_of_whole_tensors_are(launch: Launch, scenario: str) -> None:
    assert launch.said(scenario) == [""] * launch.world


def test_a_file_that_one_rank_misses_fails_all(several: Launch) -> None:
    *others, last = several.said("missing_file")
    assert last.startswith("NotFoundError: ")
    assert "missing.safetensors" in last
    assert len(others) == several.world - 1
    for said in others:
        assert f"rank {several.world - 1} failed: " in said
        assert "missing.safetensors: cannot open: No such file or directory" in said


def test_ranks_that_load_different_tensors_are_told_so(several: Launch) -> None:
    expected = "DistributedError: the ranks disagree on what load(plan='scatter') is to move"
    assert several.said("other_tensors") == [expected] * several.world


def test_a_rank_that_is_asked_to_stop_stops_all(several: Launch) -> None:
    *others, last = several.said("stopped")
    assert last == "CancelledError: the progress callable asked to stop"
    expected = f"load(plan='scatter'): rank {several.world - 1} failed: the progress callable asked to stop"
    assert others == [f"DistributedError: {expected}"] * (several.world - 1)


def test_a_rank_that_is_killed_is_named_by_all_others(several: Launch) -> None:
    outcomes = several.outcomes("dies")
    assert outcomes[-1] is None
    assert several.codes == [0] * (several.world - 1) + [-9]
    for outcome in outcomes[:-1]:
        assert outcome is not None
        assert f"rank {several.world - 1} is gone" in outcome["said"]
        assert outcome["seconds"] < BOUND_SECONDS


def test_torchrun_starts_ranks_that_load_their_parts(tmp_path: Path) -> None:
    shard_rank.write_files(tmp_path)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [shard_rank.__file__, str(tmp_path), "every_way", "fully_sharded"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        lines = (tmp_path / f"outcome-{rank}").read_text().splitlines()
        assert [json.loads(line)["said"] for line in lines] == ["", ""]


@pytest.mark.parametrize("family", ["Llama", "Mixtral"])
def test_plans_of_transformers_give_each_rank_what_transformers_gives_it(tmp_path: Path, family: str) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("transformers.distributed", reason="this transformers has no tensor parallelism on the CPU")
    shard_rank.tiny_model(family).save_pretrained(tmp_path / family)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [shard_rank.__file__, str(tmp_path), f"transformers_{family.lower()}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        lines = (tmp_path / f"outcome-{rank}").read_text().splitlines()
        assert [json.loads(line)["said"] for line in lines] == [""]
