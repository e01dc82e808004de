"""Distributed reading: real processes on gloo that read together, fail together, and never wait for ever."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import flashpack_rank
import helpers
import penstock
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from penstock.flashpack._shares import Step, contiguous_steps, single_reader_steps, window_steps
from penstock.flashpack.deserialization import read_flashpack_file_distributed, resolve_shard_strategy

# No rank may need longer: far above what a launch takes, far below torch's own half hour.
PATIENCE_SECONDS = 90

Outcomes = dict[str, list[dict[str, Any] | None]]  # by scenario: of each rank, None where it was gone


def launch(
    directory: Path, world: int, *scenarios: str, timeout: float = 30, stuck: int | None = None
) -> tuple[Outcomes, list[int]]:
    """Runs the scenarios on `world` processes. Returns their outcomes and exit codes; `stuck` is not waited for."""
    environment = {
        **os.environ,
        **helpers.rendezvous(),
        "FLASHPACK_SHARD_BYTES": str(5 * 4096),
        "PENSTOCK_DISTRIBUTED_TIMEOUT": str(timeout),
    }
    command = [sys.executable, "-W", "error", flashpack_rank.__file__]
    for old in directory.glob("results-*"):
        old.unlink()
    ranks = [
        subprocess.Popen([*command, str(rank), str(world), str(directory), *scenarios], env=environment)
        for rank in range(world)
    ]
    try:
        codes = [process.wait(PATIENCE_SECONDS) for rank, process in enumerate(ranks) if rank != stuck]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return collect(directory, world), codes


def collect(directory: Path, world: int) -> Outcomes:
    outcomes: Outcomes = defaultdict(lambda: [None] * world)
    for rank in range(world):
        with contextlib.suppress(FileNotFoundError):
            for line in (directory / f"results-{rank}").read_text().splitlines():
                entry = json.loads(line)
                outcomes[entry.pop("scenario")][rank] = entry
    return outcomes


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that ranks read, and broken ones."""
    directory = tmp_path_factory.mktemp("distributed")
    for name, tensors in flashpack_rank.make_tensors().items():
        penstock.save(tensors, directory / f"{name}.flashpack", durable=False)
    whole = (directory / "large.flashpack").read_bytes()
    (directory / "truncated.flashpack").write_bytes(whole[:-1000])
    penstock.save({"weight": flashpack_rank.make_tensors()["tiny"]["a"]}, directory / "other.flashpack", durable=False)
    return directory


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def together(request: pytest.FixtureRequest, files: Path) -> Outcomes:
    """One launch: everything that the processes survive, and then the death of one."""
    last = "kill 1, windows" if request.param == 2 else "kill 2, contiguous"
    outcomes, codes = launch(files, request.param, "well", "assign", "badly", "obey", last)
    assert [code for code in codes if code != 0] == [-9], "only the rank that is killed ends otherwise"
    return outcomes


@pytest.mark.parametrize("name", ["large", "mixed", "tiny"])
@pytest.mark.parametrize("mode", list(flashpack_rank.MODES))
def test_every_rank_gets_every_tensor(together: Outcomes, mode: str, name: str) -> None:
    assert all(outcome == {"value": True} for outcome in together[f"{mode}: {name}"])


def test_a_model_is_assigned_on_every_rank(together: Outcomes) -> None:
    assert all(outcome == {"value": True} for outcome in together["assign"])


def test_rank_0_decides_for_all(together: Outcomes) -> None:
    assert all(outcome == {"value": True} for outcome in together["rank 0 decides"])


def check_failure(outcomes: list[dict[str, Any] | None], failed: int, own_error: str, words: str) -> None:
    """The failing rank raises its own error, the others one that names it; nobody keeps the block."""
    for rank, outcome in enumerate(outcomes):
        assert outcome is not None
        assert outcome["error"] == (own_error if rank == failed else "DistributedError")
        assert words in outcome["message"]
        assert rank == failed or f"rank {failed} failed" in outcome["message"]
        assert outcome["kept"] == 0


@pytest.mark.parametrize("mode", ["contiguous", "windows"])
def test_a_missing_file_on_one_rank_fails_all(together: Outcomes, mode: str) -> None:
    outcomes = together[f"missing, {mode}"]
    check_failure(outcomes, len(outcomes) - 1, "NotFoundError", "missing.flashpack")


@pytest.mark.parametrize("mode", ["contiguous", "windows"])
def test_a_truncated_file_on_one_rank_fails_all(together: Outcomes, mode: str) -> None:
    outcomes = together[f"truncated, {mode}"]
    check_failure(outcomes, len(outcomes) - 1, "FormatError", "truncated.flashpack")


@pytest.mark.parametrize("mode", ["contiguous", "windows"])
def test_another_file_on_one_rank_fails_all(together: Outcomes, mode: str) -> None:
    outcomes = together[f"other, {mode}"]
    for outcome in outcomes:
        assert outcome is not None
        assert outcome["error"] == "DistributedError"
        assert f"rank {len(outcomes) - 1} has another file than rank 0" in outcome["message"]


def test_a_single_reader_is_the_only_one_that_needs_the_file(together: Outcomes) -> None:
    assert all(outcome == {"value": True} for outcome in together["missing, not needed"])
    check_failure(together["missing, needed"], 0, "NotFoundError", "missing.flashpack")


@pytest.mark.parametrize("mode", ["contiguous", "windows", "last reads"])
def test_an_error_half_way_fails_all_and_nobody_keeps_memory(together: Outcomes, mode: str) -> None:
    outcomes = together[f"half way, {mode}"]
    check_failure(outcomes, len(outcomes) - 1, "ValueError", "a cosmic ray")


def test_arguments_that_rank_0_refuses_fail_all(together: Outcomes) -> None:
    check_failure(together["rank 0's strategy"], 0, "ArgumentError", "unknown shard strategy 'diagonal'")
    check_failure(together["no such reader"], 0, "ArgumentError", "there is no rank")


def test_a_killed_rank_makes_the_others_raise(together: Outcomes) -> None:
    survivors = [outcome for outcome in together["lost"] if outcome is not None]
    assert len(survivors) == len(together["lost"]) - 1
    assert all(outcome["error"] == "DistributedError" for outcome in survivors)
    assert all("a rank is gone" in outcome["message"] for outcome in survivors)


def test_the_reader_that_is_killed_takes_the_store_with_it_and_the_others_raise(files: Path) -> None:
    outcomes, codes = launch(files, 2, "kill 0, single reader")
    assert codes == [-9, 0]
    reader, other = outcomes["lost"]
    assert reader is None
    assert other is not None
    assert other["error"] == "DistributedError"


@pytest.mark.parametrize("scenario", ["stall 1, windows", "stay away"])
def test_a_rank_that_does_not_answer_is_not_waited_for(files: Path, scenario: str) -> None:
    outcomes, codes = launch(files, 2, scenario, timeout=3, stuck=1)
    assert codes == [0]
    waiting, stuck = outcomes["lost"]
    assert stuck is None
    assert waiting is not None
    assert waiting["error"] == "DistributedError"
    assert "did not answer within 3 s" in waiting["message"]


def test_without_a_process_group_it_is_a_plain_read(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    storage, metadata = read_flashpack_file_distributed(files / "tiny.flashpack", sharded=True, silent=False)
    assert [block.dtype for block in storage.blocks] == [torch.float32, torch.bool]
    assert [entry["name"] for entry in metadata["index"]] == ["a", "b"]
    assert "read_metadata: " in capsys.readouterr().out


def test_a_strategy_has_a_name_that_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_shard_strategy() == "contiguous"
    monkeypatch.setenv("FLASHPACK_SHARD_STRATEGY", "windows")
    assert resolve_shard_strategy() == "windows"
    monkeypatch.setenv("PENSTOCK_SHARD_STRATEGY", "contiguous")
    assert resolve_shard_strategy() == "contiguous"
    assert resolve_shard_strategy(" Windows ") == "windows"
    with pytest.raises(penstock.ArgumentError, match="unknown shard strategy 'diagonal'"):
        resolve_shard_strategy("diagonal")


PLANS = {
    "contiguous": contiguous_steps,
    "windows": window_steps,
    "single reader": lambda sizes, world, piece: single_reader_steps(sizes, world, piece, world - 1),
}
sizes = st.lists(st.integers(0, 300_000), max_size=4)
worlds = st.integers(1, 9)
pieces = st.integers(1, 20).map(lambda pages: 4096 * pages)


def ranges(steps: list[Step], block: int, rank: int) -> list[tuple[int, int]]:
    return [step.shares[rank] for step in steps if step.block == block and step.shares[rank].nbytes > 0]


@pytest.mark.parametrize("plan", list(PLANS))
@given(sizes, worlds, pieces)
def test_all_shares_together_are_the_file_once(plan: str, sizes: list[int], world: int, piece: int) -> None:
    steps = PLANS[plan](sizes, world, piece)
    for block, nbytes in enumerate(sizes):
        shares = sorted(share for rank in range(world) for share in ranges(steps, block, rank))
        assert [begin for begin, _ in shares] == [0, *(end for _, end in shares[:-1])][: len(shares)]
        assert (shares[-1][1] if shares else 0) == nbytes


@pytest.mark.parametrize("plan", list(PLANS))
@given(sizes, worlds, pieces)
def test_shares_begin_on_pages_and_are_no_larger_than_a_piece(
    plan: str, sizes: list[int], world: int, piece: int
) -> None:
    for step in PLANS[plan](sizes, world, piece):
        assert len(step.shares) == world
        assert any(share.nbytes > 0 for share in step.shares)
        for share in step.shares:
            assert 0 <= share.nbytes <= piece
            assert share.nbytes == 0 or share.begin % 4096 == 0


@given(sizes, worlds, pieces)
def test_contiguous_shares_of_a_rank_are_one_stretch(sizes: list[int], world: int, piece: int) -> None:
    steps = contiguous_steps(sizes, world, piece)
    for block in range(len(sizes)):
        for rank in range(world):
            assert all(left[1] == right[0] for left, right in pairwise(ranges(steps, block, rank)))


def test_whole_windows_are_gathered_at_once_and_the_rest_is_not() -> None:
    steps = window_steps([3 * 4 * 8192 + 5000], world=4, piece=8192)
    assert [step.is_even for step in steps] == [True, True, True, False]
    assert [share.nbytes for share in steps[-1].shares] == [4096, 904, 0, 0]
