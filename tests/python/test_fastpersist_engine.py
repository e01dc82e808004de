"""CheckpointEngine, its settings, and background saves of trees."""

from __future__ import annotations

import json
import os
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import helpers
import penstock
import pytest
import torch
from penstock.fastpersist import CheckpointEngine
from penstock.fastpersist.config import AioConfig, EngineConfig, WriterConfig, read_config
from trees import assert_same_trees

SLOW = {"method": "direct", "block_size": "64KiB", "queue_depth": 1}
DECOUPLED = {"checkpoint": {"writer": {"decoupled": True}}}


def state(value: float = 1.0, numel: int = 2**12) -> dict[str, Any]:
    weight = torch.full((numel,), float(value))
    return {"model": {"weight": weight, "tied": weight}, "step": int(value)}


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_checkpoint_is_created_saved_committed_and_loaded(
    decoupled: bool, zipped: bool, tmp_path: Path, no_leaks: None
) -> None:
    settings = {"checkpoint": {"checkpoint_serialization": zipped, "writer": {"decoupled": decoupled}}}
    engine = CheckpointEngine(settings)
    assert engine.is_decoupled() is decoupled
    engine.create("step-1")
    assert engine.get_commit_info() == "step-1"
    engine.makedirs(tmp_path / "step-1", exist_ok=True)
    for i in range(3):
        engine.save(state(i), tmp_path / "step-1" / f"{i}.pt")
    assert engine.commit("step-1") is True
    assert engine.get_commit_info() is None
    for i in range(3):
        path = tmp_path / "step-1" / f"{i}.pt"
        assert_same_trees(torch.load(path), state(i))
        assert_same_trees(engine.load(path, map_location="cpu"), state(i))
        assert (path.read_bytes()[:2] == b"PK") == zipped
    assert [stats["save_storage"] for stats in engine.stats] == [1, 1, 1]
    assert [os.path.basename(stats["path"]) for stats in engine.stats] == ["0.pt", "1.pt", "2.pt"]
    engine.cleanup()
    engine.cleanup()


def test_tensors_may_change_when_a_decoupled_save_returns(tmp_path: Path) -> None:
    engine = CheckpointEngine({**DECOUPLED, "aio": {"block_size": 65536, "queue_depth": 1}})
    tree = state(numel=2**22)
    engine.save(tree, tmp_path / "model.pt")
    tree["model"]["weight"].zero_()
    engine.commit(None)
    assert_same_trees(torch.load(tmp_path / "model.pt"), state(numel=2**22))


def test_an_engine_saves_one_file_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = CheckpointEngine({**DECOUPLED, "aio": {"block_size": 65536, "queue_depth": 1}})
    for i in range(4):
        engine.save(state(i, 2**20), tmp_path / f"{i}.pt")
        under_way = penstock._job.jobs_under_way()
        assert [job.path for job in under_way] in ([str(tmp_path / f"{i}.pt")], [])
    engine.wait()
    assert [torch.load(tmp_path / f"{i}.pt")["step"] for i in range(4)] == [0, 1, 2, 3]


def test_an_engine_can_refuse_to_wait(tmp_path: Path) -> None:
    engine = CheckpointEngine(DECOUPLED, when_busy="refuse")
    job = penstock.save_async(state(numel=2**24), tmp_path / "first.pt", **SLOW)
    with pytest.raises(penstock.BusyError, match=r"second.pt: not saved, the save of .*first.pt is under way"):
        engine.save(state(), tmp_path / "second.pt")
    job.cancel()
    with pytest.raises(penstock.CancelledError):
        job.wait()
    engine.save(state(), tmp_path / "second.pt")
    assert engine.commit("any") is True
    assert os.listdir(tmp_path) == ["second.pt"]


def fail_in_the_background(engine: CheckpointEngine, directory: Path) -> None:
    """A save that was staged well and then finds that its directory is gone."""
    doomed = directory / "doomed"
    doomed.mkdir()
    blocker = penstock.save_async(state(numel=2**23), directory / "blocker.pt", **SLOW)
    thread = threading.Thread(target=lambda: (blocker.cancel(), doomed.rmdir()))
    thread.start()
    thread.join()
    with pytest.raises(penstock.NotFoundError, match="doomed"):
        engine.save(state(), doomed / "model.pt")
        engine.wait()
    with pytest.raises(penstock.CancelledError):
        blocker.wait()


def test_a_failure_is_raised_by_commit(tmp_path: Path) -> None:
    engine = CheckpointEngine(DECOUPLED)
    engine.create("a")
    fail_in_the_background(engine, tmp_path)
    engine.save(state(), tmp_path / "good.pt")
    with pytest.raises(penstock.NotFoundError, match="doomed"):
        engine.wait()
    with pytest.raises(penstock.NotFoundError, match="doomed"):
        engine.commit("a")
    assert engine.commit("b") is True
    assert_same_trees(torch.load(tmp_path / "good.pt"), state())


class Failing:
    """A job that was staged and ends badly."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.done = True

    def wait(self) -> Any:
        raise penstock.NoSpaceError(f"{self.path}: No space left on device")


def test_a_failure_is_raised_by_the_next_save_once_and_by_commit(tmp_path: Path) -> None:
    engine = CheckpointEngine(DECOUPLED)
    engine.create("a")
    engine._jobs.append(Failing("full.pt"))  # type: ignore[arg-type]
    with pytest.raises(penstock.NoSpaceError, match="full.pt"):
        engine.save(state(), tmp_path / "model.pt")
    assert os.listdir(tmp_path) == []
    engine.save(state(), tmp_path / "model.pt")
    with pytest.raises(penstock.NoSpaceError, match="full.pt"):
        engine.commit("a")
    assert_same_trees(torch.load(tmp_path / "model.pt"), state())


def test_of_several_failures_none_vanishes(capsys: pytest.CaptureFixture[str]) -> None:
    engine = CheckpointEngine(DECOUPLED)
    engine._jobs += [Failing("one.pt"), Failing("two.pt")]  # type: ignore[list-item]
    with pytest.raises(penstock.NoSpaceError, match="one.pt"):
        engine.commit("a")
    assert "a background save failed: two.pt: No space left" in capsys.readouterr().err  # warnings are errors here


def test_a_commit_must_be_that_of_what_was_created() -> None:
    engine = CheckpointEngine()
    engine.create({"tag": 1})
    with pytest.raises(penstock.ArgumentError, match="commit of 'other'"):
        engine.commit("other")
    assert engine.commit({"tag": 1}) is True


def test_exit_waits_for_what_was_not_committed(tmp_path: Path) -> None:
    script = """
    import sys, torch
    from penstock.fastpersist import CheckpointEngine
    aio = {"block_size": 65536, "queue_depth": 1}
    engine = CheckpointEngine({"checkpoint": {"writer": {"decoupled": True}}, "aio": aio})
    engine.create("a")
    engine.save({"x": torch.ones(2**22)}, sys.argv[1])
    """
    result = helpers.run_python(script, str(tmp_path / "model.pt"))
    assert result.stderr == ""
    assert_same_trees(torch.load(tmp_path / "model.pt"), {"x": torch.ones(2**22)})


def test_exit_tells_of_a_failure_that_was_not_committed(tmp_path: Path) -> None:
    script = """
    import os, sys, torch
    from penstock import _job
    from penstock.fastpersist import CheckpointEngine
    engine = CheckpointEngine({"checkpoint": {"writer": {"decoupled": True}}})
    blocker = __import__("penstock").save_async(
        {"x": torch.ones(2**23)}, sys.argv[1] + "/blocker.pt", method="direct", block_size="64KiB", queue_depth=1
    )
    engine._jobs.append(__import__("penstock").save_async(
        {"x": torch.ones(3)}, sys.argv[1] + "/doomed/model.pt", when_busy="queue"
    ))
    os.rmdir(sys.argv[1] + "/doomed")
    """
    (tmp_path / "doomed").mkdir()
    result = helpers.run_python(script, str(tmp_path))
    assert "a background save failed" in result.stderr
    assert "doomed" in result.stderr


RANK = """
    import sys, torch
    import torch.distributed as dist
    from penstock.fastpersist import CheckpointEngine

    directory, rank = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=2)
    engine = CheckpointEngine({"checkpoint": {"writer": {"data_parallel": "replica"}}})
    engine.create("a")
    engine.save({"x": torch.arange(2.0**20), "y": [torch.ones(3), 7]}, directory + "/model.pt")
    engine.commit("a")
    print(engine.stats[0]["bytes"])
    engine.save({"rank": torch.full((9,), rank)}, f"{directory}/own-{rank}.pt")
    engine.commit("b")
    dist.destroy_process_group()
"""


def test_ranks_write_one_file_together(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda rank: helpers.run_python(RANK, str(tmp_path), str(rank)), range(2)))
    shares = [int(result.stdout.split()[0]) for result in results]
    assert all(0 < share < 4 * 2**20 for share in shares)
    expected = {"x": torch.arange(2.0**20), "y": [torch.ones(3), 7]}
    assert_same_trees(torch.load(tmp_path / "model.pt"), expected)
    for rank in range(2):  # files of their own
        assert_same_trees(torch.load(tmp_path / f"own-{rank}.pt"), {"rank": torch.full((9,), rank)})


@pytest.mark.parametrize(
    ("partition", "partitioned", "writers"),
    [(None, None, [True, False]), ("replica", True, [True, True]), (None, False, [True, True])],
)
def test_who_saves_the_models_file(partition: str | None, partitioned: bool | None, writers: list[bool]) -> None:
    settings = {"checkpoint": {"writer": {"data_parallel": partition}}}
    engine = CheckpointEngine(settings, None, partitioned)
    assert [engine.is_data_parallel_writer(rank) for rank in range(2)] == writers
    assert engine.preserves_storage_sharing() is True


def test_python_and_mock_writers_are_there_to_compare_with(tmp_path: Path) -> None:
    python = CheckpointEngine({"checkpoint": {"writer": {"type": "python"}}})
    python.save(state(), tmp_path / "python.pt")
    assert_same_trees(torch.load(tmp_path / "python.pt"), state())
    mock = CheckpointEngine({"checkpoint": {"writer": {"type": "MOCK"}}})
    mock.save(state(), tmp_path / "mock.pt")
    assert (tmp_path / "mock.pt").stat().st_size == 0
    assert mock.stats[0]["bytes"] > 4 * 2**12


def test_statistics_are_printed_when_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for decoupled in (True, False):
        engine = CheckpointEngine({"checkpoint": {"writer": {"decoupled": decoupled, "show_statistics": True}}})
        engine.save(state(), tmp_path / "model.pt")
        engine.commit("a")
        assert capsys.readouterr().out == f"stats = {engine.stats[0]}\n"


def test_programs_are_loaded_by_choice(tmp_path: Path) -> None:
    engine = CheckpointEngine(weights_only=False)
    engine.save({"settings": types.SimpleNamespace(rate=0.1)}, tmp_path / "model.pt")
    assert engine.load(tmp_path / "model.pt")["settings"].rate == 0.1
    with pytest.raises(Exception, match="SimpleNamespace"):
        CheckpointEngine().load(tmp_path / "model.pt")


def test_settings_come_from_deepspeeds_keys(tmp_path: Path) -> None:
    settings = {
        "train_batch_size": 8,
        "checkpoint": {
            "tag_validation": "Warn",
            "checkpoint_serialization": False,
            "writer": {
                "type": "FAST",
                "decoupled": True,
                "io_buffer_size": 64e6,
                "io_buffer_double": True,
                "show_statistics": True,
                "data_parallel": "REPLICA",
                "io_multiplier": 2,
            },
        },
        "aio": {
            "block_size": 8388608,
            "queue_depth": 32,
            "intra_op_parallelism": 4,
            "single_submit": False,
            "overlap_events": True,
            "use_gds": False,
        },
    }
    expected = EngineConfig(
        False, WriterConfig("fast", True, 64_000_000, True, True, "replica", 2), AioConfig(8388608, 32, 4)
    )
    assert read_config(settings) == expected
    (tmp_path / "ds.json").write_text(json.dumps(settings))
    assert read_config(tmp_path / "ds.json") == expected
    assert read_config(expected) is expected
    parsed = types.SimpleNamespace(checkpoint_config=settings["checkpoint"], aio_config=settings["aio"])
    assert read_config(parsed) == expected
    assert read_config() == read_config({}) == read_config({"checkpoint": {"writer": None}}) == EngineConfig()


@pytest.mark.parametrize(
    ("writer", "aio", "tuning"),
    [
        ({}, {}, {}),
        ({}, {"use_gds": True}, {"gds": "on"}),
        ({"io_buffer_size": 2**20}, {}, {"block_size": 2**20, "queue_depth": 1}),
        ({"io_buffer_size": 64e6}, {"block_size": 2**20}, {"block_size": 2**20, "queue_depth": 16}),
        (
            {"io_buffer_size": 8 * 2**20},
            {"block_size": 2**20, "queue_depth": 128},
            {"block_size": 2**20, "queue_depth": 8},
        ),
        ({}, {"block_size": 2**24, "queue_depth": 64}, {"block_size": 2**24, "queue_depth": 4}),
        ({"io_buffer_double": False}, {}, {"block_size": 2**22, "queue_depth": 1}),
        ({"io_buffer_size": 5000}, {}, {"block_size": 2**16, "queue_depth": 1}),
        ({"io_buffer_size": 3e6}, {"block_size": 10**6}, {"block_size": 2**19, "queue_depth": 5}),
    ],
)
def test_the_buffer_bounds_what_is_in_flight(
    writer: dict[str, Any], aio: dict[str, Any], tuning: dict[str, Any], tmp_path: Path
) -> None:
    engine = CheckpointEngine({"checkpoint": {"writer": writer}, "aio": aio})
    assert engine.config.tuning() == tuning
    engine.save(state(), tmp_path / "model.pt")
    assert_same_trees(torch.load(tmp_path / "model.pt"), state())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"checkpoint": {"writer": {"type": "slow"}}}, "type must be one of mock, python, fast, not 'slow'"),
        ({"checkpoint": {"writer": {"decuopled": True}}}, "checkpoint.writer has no 'decuopled'"),
        ({"checkpoint": {"writer": {"decoupled": "yes"}}}, "checkpoint.writer.decoupled can't be 'yes'"),
        ({"checkpoint": {"writer": {"io_buffer_size": -1}}}, "io_buffer_size can't be -1"),
        ({"checkpoint": {"writer": {"data_parallel": "city"}}}, "data_parallel must be one of"),
        ({"checkpoint": {"writer": {"type": "python", "decoupled": True}}}, 'decoupled needs the type "fast"'),
        ({"checkpoint": {"writer": 3}}, '"writer" must be an object'),
        ({"aio": {"queue_depth": 1.5}}, "aio.queue_depth can't be 1.5"),
        (3, "expected a dict or the path of a JSON file, not int"),
    ],
)
def test_bad_settings_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(penstock.ArgumentError, match=message):
        CheckpointEngine(settings)


def test_other_bad_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(penstock.ArgumentError, match="when_busy"):
        CheckpointEngine(when_busy="perhaps")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(penstock.FormatError, match="bad.json"):
        CheckpointEngine(tmp_path / "bad.json")


# Background saves without an engine.


@pytest.mark.parametrize("format", ["torch", "torch-legacy"])
def test_trees_are_saved_in_the_background(format: str, tmp_path: Path) -> None:
    tree = state(numel=2**22)
    job = penstock.save_async(tree, tmp_path / "model.pt", format=format, **SLOW)
    assert job.staged()
    tree["model"]["weight"].fill_(7)
    tree["step"] = 9
    assert job.wait().bytes == 4 * 2**22
    assert_same_trees(torch.load(tmp_path / "model.pt"), state(numel=2**22))


def test_queued_saves_run_one_after_the_other(tmp_path: Path) -> None:
    first = penstock.save_async(state(1, 2**22), tmp_path / "a.pt", **SLOW)
    tree = state(2)
    second = penstock.save_async(tree, tmp_path / "a.pt", when_busy="queue")
    third = penstock.save_async(state(3), tmp_path / "b.pt", when_busy="queue")
    assert second.progress == (0, 4 * 2**12)
    assert not second.staged(timeout=0)
    with pytest.raises(TimeoutError):
        second.wait(timeout=0)
    tree["model"]["weight"].fill_(5)  # not staged yet: this is what is saved
    third.wait()
    assert first.done
    assert second.done
    assert second.wait().tensors == 1
    assert torch.load(tmp_path / "a.pt")["model"]["weight"][0] == 5
    assert torch.load(tmp_path / "b.pt")["step"] == 3


def test_a_queued_save_goes_on_after_a_failed_one(tmp_path: Path) -> None:
    first = penstock.save_async(state(numel=2**24), tmp_path / "a.pt", **SLOW)
    second = penstock.save_async(state(2), tmp_path / "b.pt", when_busy="queue")
    first.cancel()
    assert second.wait().bytes == 4 * 2**12
    with pytest.raises(penstock.CancelledError):
        first.wait()


def test_a_queued_save_can_be_cancelled(tmp_path: Path) -> None:
    first = penstock.save_async(state(numel=2**23), tmp_path / "a.pt", **SLOW)
    second = penstock.save_async(state(2), tmp_path / "b.pt", when_busy="queue")
    second.cancel()
    for _ in range(2):
        with pytest.raises(penstock.CancelledError, match="b.pt"):
            second.wait()
    first.wait()
    assert second.done
    assert os.listdir(tmp_path) == ["a.pt"]


def test_nobody_to_wait_for_means_no_wait(tmp_path: Path) -> None:
    for when_busy in ("queue", "refuse", "start"):
        penstock.save_async(state(), tmp_path / "a.pt", when_busy=when_busy).wait()
    with pytest.raises(penstock.ArgumentError, match="when_busy"):
        penstock.save_async(state(), tmp_path / "a.pt", when_busy="never")


def test_a_busy_process_can_refuse(tmp_path: Path) -> None:
    first = penstock.save_async(state(numel=2**23), tmp_path / "a.pt", **SLOW)
    with pytest.raises(penstock.BusyError, match="b.pt: not saved, the save of .*a.pt is under way"):
        penstock.save_async(state(), tmp_path / "b.pt", when_busy="refuse")
    first.wait()
    assert os.listdir(tmp_path) == ["a.pt"]


def test_snapshots_take_turns_in_memory(tmp_path: Path) -> None:
    pool = penstock.MemoryPool()
    tensor = torch.ones(2**21)
    jobs = [
        penstock.save_async({"x": tensor}, tmp_path / f"{i}.pt", when_busy="queue", pool=pool, durable=False)
        for i in range(6)
    ]
    most = 0
    while not jobs[-1].done:
        most = max(most, pool.used_bytes)
    for job in jobs:
        job.wait()
    assert most < 2 * tensor.nbytes
    assert len(os.listdir(tmp_path)) == 6


def test_a_fork_cannot_wait_for_a_queued_save(tmp_path: Path) -> None:
    script = """
    import os, sys, numpy, penstock
    slow = {"method": "direct", "block_size": "64KiB", "queue_depth": 1}
    first = penstock.save_async({"x": numpy.ones(2**24)}, sys.argv[1] + "/a.safetensors", **slow)
    second = penstock.save_async({"x": numpy.ones(2)}, sys.argv[1] + "/b.safetensors", when_busy="queue")
    child = os.fork()
    if child == 0:
        try:
            second.wait()
        except penstock.ArgumentError as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    first.cancel()
    second.wait()
    """
    result = helpers.run_python(script, str(tmp_path))
    assert result.stdout.strip() == "the save belongs to the process that this one was forked from"
    assert os.listdir(tmp_path) == ["b.safetensors"]


def test_exit_waits_for_queued_saves(tmp_path: Path) -> None:
    script = """
    import sys, numpy, penstock
    for i in range(3):
        penstock.save_async({"x": numpy.ones(2**20)}, f"{sys.argv[1]}/{i}.safetensors", when_busy="queue")
    """
    assert helpers.run_python(script, str(tmp_path)).stderr == ""
    assert sorted(os.listdir(tmp_path)) == ["0.safetensors", "1.safetensors", "2.safetensors"]
