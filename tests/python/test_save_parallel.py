"""Parallel saves: real processes on gloo write one ordinary file together, or fail together and leave the old one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import helpers
import parallel_rank
import penstock
import pytest
import torch

# No rank may need longer: far above what a launch takes, far below torch's own half hour.
PATIENCE_SECONDS = 150
OLD = {"old": torch.arange(10)}


class Launch:
    """What came of one launch: a directory of files, and what each rank said of each scenario."""

    def __init__(self, directory: Path, world: int) -> None:
        self.directory = directory
        self.world = world
        penstock.save(OLD, directory / "old.safetensors")
        (directory / "shards").mkdir()
        environment = {**os.environ, **helpers.rendezvous()}
        command = [sys.executable, parallel_rank.__file__]
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

    def said(self, scenario: str) -> list[str | None]:
        """Of each rank; empty where all went well, None where it was gone."""
        everyone: list[str | None] = []
        for rank in range(self.world):
            lines = (self.directory / f"outcome-{rank}").read_text().splitlines()
            entries = {entry["scenario"]: entry["said"] for entry in map(json.loads, lines)}
            everyone.append(entries.get(scenario))
        return everyone


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def launch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    return Launch(tmp_path_factory.mktemp("parallel"), request.param)


@pytest.mark.parametrize("name", parallel_rank.FORMATS)
def test_ranks_write_the_file_that_one_process_would(launch: Launch, tmp_path: Path, name: str) -> None:
    assert launch.said("save_all") == [""] * launch.world
    saved = launch.directory / f"saved.{parallel_rank.FORMATS[name]}"
    alone = tmp_path / saved.name
    penstock.save(parallel_rank.state_for(name), alone, format=name, shared="duplicate")
    if name == "torch-legacy":  # its keys are addresses
        expected, found = torch.load(alone), torch.load(saved)
        assert torch.equal(found["model"]["view"], expected["model"]["view"])
        assert found["tied"].untyped_storage().data_ptr() == found["model"]["layer.1"].untyped_storage().data_ptr()
    else:
        assert saved.read_bytes() == alone.read_bytes()


def test_torch_reads_what_ranks_wrote(launch: Launch) -> None:
    loaded = torch.load(launch.directory / "saved.pt", weights_only=True)
    state = parallel_rank.make_state()
    assert loaded["step"] == 7
    assert loaded["model"].keys() == state.keys()
    assert all(torch.equal(loaded["model"][name], tensor) for name, tensor in state.items())


def test_checksums_of_shares_are_those_of_the_tensors(launch: Launch) -> None:
    assert launch.said("save_with_checksums") == [""] * launch.world
    report = penstock.verify(launch.directory / "checked.safetensors")
    assert report.ok
    assert report.had_checksums


def test_ranks_write_the_shards_that_one_process_would_in_place_of_an_older_set(launch: Launch, tmp_path: Path) -> None:
    assert launch.said("save_shards") == [""] * launch.world
    assert all("rank" in (said or "") or "odd" in (said or "") for said in launch.said("fails_with_shards"))
    for limit in ("1MiB", "3MiB"):
        penstock.save(
            parallel_rank.make_state(),
            tmp_path / "m.safetensors",
            max_shard_size=limit,
            checksums=True,
            shared="duplicate",
        )
    saved = launch.directory / "shards"
    assert sorted(os.listdir(saved)) == sorted(os.listdir(tmp_path))
    assert len(os.listdir(saved)) > 2
    assert all((saved / name).read_bytes() == (tmp_path / name).read_bytes() for name in os.listdir(saved))
    assert penstock.verify(saved / "m.safetensors.index.json").had_checksums


@pytest.mark.parametrize("partition", ["machine", "socket"])
def test_one_machine_can_write_with_fewer_ranks(launch: Launch, partition: str) -> None:
    assert launch.said("save_by_machine") == [""] * launch.world
    loaded = penstock.load(launch.directory / f"{partition}.safetensors")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in parallel_rank.make_state().items())


@pytest.mark.parametrize("name", ["safetensors", "flashpack"])
def test_what_is_on_devices_is_copied_by_those_who_write_it(launch: Launch, name: str) -> None:
    assert launch.said("save_from_devices") == [""] * launch.world
    saved = launch.directory / f"saved.{parallel_rank.FORMATS[name]}"
    assert (launch.directory / f"remote.{name}").read_bytes() == saved.read_bytes()
    whole = sum(tensor.nbytes for tensor in parallel_rank.make_state().values())
    copied = [
        [int(line) for line in (launch.directory / f"copied-{rank}").read_text().splitlines()]
        for rank in range(launch.world)
    ]
    assert all(max(counts) < whole for counts in copied)
    assert [sum(counts) for counts in zip(*copied, strict=True)] == [whole, whole]


def test_a_rank_with_other_tensors_fails_all(launch: Launch) -> None:
    for said in launch.said("other_tensors"):
        assert said is not None
        assert said.endswith(f"old.safetensors: rank {launch.world - 1} has other tensors than rank 0")


def test_a_rank_with_a_bad_state_fails_all(launch: Launch) -> None:
    said = launch.said("bad_state")
    assert said[1] == "ArgumentError: a: expected a tensor, not object"
    assert all("rank 1 failed: a: expected a tensor, not object" in (one or "") for one in said[:1] + said[2:])


def test_a_rank_that_fails_while_it_writes_fails_all(launch: Launch) -> None:
    said = launch.said("fails_while_writing")
    assert said[1] == "OSError: the drive is on fire"
    assert all("rank 1 failed: OSError: the drive is on fire" in (one or "") for one in said[:1] + said[2:])


def test_a_missing_directory_fails_all(launch: Launch) -> None:
    assert all("No such file or directory" in (one or "") for one in launch.said("no_directory"))


def test_a_rank_that_dies_fails_all_that_live(launch: Launch) -> None:
    *living, dead = launch.said("dies_while_writing")
    assert dead is None
    assert launch.codes == [0] * (launch.world - 1) + [-9]
    assert all((one or "").startswith("DistributedError: ") for one in living)
    assert all((one or "").endswith("; threads left: 0") for one in living), living


def test_failures_leave_the_old_file_and_nothing_else(launch: Launch) -> None:
    assert torch.equal(penstock.load(launch.directory / "old.safetensors")["old"], OLD["old"])
    hidden = [path.name for path in launch.directory.iterdir() if path.name.startswith(".")]
    assert hidden == []


def test_a_single_process_just_saves(tmp_path: Path) -> None:
    stats = penstock.save_parallel(OLD, tmp_path / "x.safetensors")
    assert stats.bytes == 80
    assert torch.equal(penstock.load(tmp_path / "x.safetensors")["old"], OLD["old"])


def test_an_unknown_partition_is_refused(tmp_path: Path) -> None:
    with pytest.raises(penstock.ArgumentError, match="partition must be one of replica, socket, machine, not 'planet'"):
        penstock.save_parallel(OLD, tmp_path / "x.safetensors", partition="planet")
