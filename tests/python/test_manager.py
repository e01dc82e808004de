"""CheckpointManager in one process: what is saved comes back, what is kept, and what goes wrong."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import helpers
import manager_killed
import manager_lines_killed
import penstock
import pytest
import torch
from penstock import CheckpointManager
from training_runs import Run

ERRORS = penstock.errors


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def manager(tmp_path: Path) -> CheckpointManager:
    return CheckpointManager(tmp_path / "run")


@pytest.mark.parametrize("background", [False, True])
def test_a_run_goes_on_bit_for_bit(manager: CheckpointManager, background: bool) -> None:
    run = Run()
    run.steps(5)
    if background:
        manager.save_async(5, run.state)
    else:
        manager.save(5, run.state)
    expected = run.steps(4)
    manager.wait()
    again = Run(seed=1)
    again.steps(2)
    saved = manager.restore(into=again.state)
    assert saved is not None
    assert saved.step == 5
    assert again.steps(4) == expected
    assert again.progress == run.progress
    helpers.assert_same_tensors(again.model.state_dict(), run.model.state_dict())


def test_a_run_that_begins_has_nothing_to_restore(manager: CheckpointManager) -> None:
    run = Run()
    assert manager.restore(into=run.state) is None
    assert (manager.steps(), manager.latest()) == ([], None)
    assert not manager.directory.exists()


def test_a_step_is_a_directory_with_a_file_for_each_entry(manager: CheckpointManager) -> None:
    run = Run()
    run.step()
    stats = manager.save(42, {**run.state, "weights.safetensors": run.model})
    folder = manager.directory / "step-00000042"
    assert manager.path(42) == folder
    entries = ["loader.pt", "model.pt", "optimizer.pt", "progress.pt", "rng.pt", "scheduler.pt", "weights.safetensors"]
    assert names(folder) == entries
    helpers.assert_same_tensors(penstock.load(folder / "model.pt"), run.model.state_dict())
    helpers.assert_same_tensors(penstock.load(folder / "weights.safetensors"), run.model.state_dict())
    assert penstock.load(folder / "progress.pt") == run.progress
    assert stats.tensors > 0
    assert all(penstock.verify(folder / name).ok for name in entries if name.endswith(".pt"))


def test_every_file_can_be_loaded_by_torch_without_executing_code(manager: CheckpointManager) -> None:
    run = Run()
    run.step()
    manager.save(1, {name: value for name, value in run.state.items() if name != "rng"})
    for path in manager.path(1).iterdir():
        torch.load(path, weights_only=True)


def test_a_saved_step_is_a_mapping_that_loads_what_is_asked_for(manager: CheckpointManager) -> None:
    run = Run()
    manager.save(3, run.state)
    saved = manager.restore(3)
    assert saved is not None
    assert list(saved) == sorted(run.state)
    assert saved["progress"] == run.progress
    assert saved.path == manager.path(3)
    with pytest.raises(ERRORS.UnknownTensorError, match=r"step-00000003: has no 'ema', only loader, model, .*"):
        saved["ema"]


def test_a_models_memory_is_filled_and_its_optimizer_goes_on_with_it(manager: CheckpointManager) -> None:
    run = Run()
    manager.save(1, run.state)
    addresses = [parameter.data_ptr() for parameter in run.model.parameters()]
    run.steps(3)
    manager.restore(into=run.state)
    assert [parameter.data_ptr() for parameter in run.model.parameters()] == addresses


def test_only_what_is_named_is_restored(manager: CheckpointManager) -> None:
    run = Run()
    run.steps(2)
    manager.save(2, run.state)
    other = Run(seed=3)
    saved = manager.restore(into={"model": other.model})
    assert saved is not None
    helpers.assert_same_tensors(other.model.state_dict(), run.model.state_dict())
    assert other.loader.position == 0


def test_a_module_with_extra_state_is_restored_by_its_own_rules(manager: CheckpointManager) -> None:
    class Counting(torch.nn.Linear):
        count = 0

        def get_extra_state(self) -> dict[str, int]:
            return {"count": self.count}

        def set_extra_state(self, state: dict[str, int]) -> None:
            self.count = state["count"]

    model, other = Counting(2, 2), Counting(2, 2)
    model.count = 7
    manager.save(1, {"model": model})
    manager.restore(into={"model": other})
    assert other.count == 7
    assert torch.equal(other.weight, model.weight)


def test_the_last_steps_and_every_kth_are_kept(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, keep=2, every=4)
    for step in range(1, 11):
        manager.save_async(step, {"x": step})
    manager.wait()
    assert manager.steps() == [4, 8, 9, 10]
    assert names(tmp_path) == [f"step-{step:08}" for step in (4, 8, 9, 10)]


def test_a_step_that_was_just_saved_is_kept_though_higher_ones_are_there(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, keep=1)
    manager.save(20, {"x": 20})
    manager.save(10, {"x": 10})
    assert manager.steps() == [10, 20]
    manager.remove(20)
    assert manager.latest() == 10


def test_a_step_that_is_saved_again_is_replaced(manager: CheckpointManager) -> None:
    manager.save(1, {"x": "old", "y": 1})
    manager.save(1, {"x": "new"})
    saved = manager.restore(1)
    assert saved is not None
    assert dict(saved) == {"x": "new"}
    assert names(manager.directory) == ["step-00000001"]


def test_other_names_in_the_directory_are_no_steps(manager: CheckpointManager) -> None:
    manager.save(7, {"x": 1})
    for name in ("step-7", "step-00000008.old", "notes", ".step-00000009.saving-0123456789abcdef"):
        (manager.directory / name).mkdir()
    assert manager.steps() == [7]
    manager.save(10, {"x": 1})
    assert names(manager.directory) == ["notes", "step-00000007", "step-00000008.old", "step-00000010", "step-7"]


def test_what_write_adds_is_part_of_the_step(manager: CheckpointManager) -> None:
    def write(folder: Path) -> None:
        assert manager.steps() == []
        (folder / "config.json").write_text("{}")

    manager.save_async(1, {"x": 1}, write=write)
    manager.wait()
    assert names(manager.path(1)) == ["config.json", "x.pt"]


def test_a_write_that_fails_commits_nothing(manager: CheckpointManager) -> None:
    def write(folder: Path) -> None:
        raise ValueError("no")

    for save in (manager.save, manager.save_async):
        with pytest.raises(ValueError, match="no"):
            save(1, {"x": torch.ones(3)}, write=write)
    assert names(manager.directory) == []


def test_the_state_may_change_while_a_step_is_written(manager: CheckpointManager) -> None:
    weights = {"w": torch.ones(2**20)}
    manager.save_async(1, {"weights": weights})
    weights["w"].fill_(2)
    manager.wait()
    saved = manager.restore()
    assert saved is not None
    assert torch.equal(saved["weights"]["w"], torch.ones(2**20))


def test_one_save_is_under_way_at_a_time(tmp_path: Path) -> None:
    waiting = CheckpointManager(tmp_path / "a")
    jobs = [waiting.save_async(step, {"w": torch.ones(2**20)}) for step in (1, 2)]
    assert jobs[0].done
    jobs[1].wait()
    refusing = CheckpointManager(tmp_path / "b", when_busy="refuse")
    first = refusing.save_async(1, {"w": torch.ones(2**22)})
    refused = None
    if not first.done:
        try:
            refusing.save_async(2, {"w": torch.ones(1)})
        except penstock.BusyError as problem:
            refused = str(problem)
    assert refused in (None, f"the save of {refusing.path(1)} is under way")
    first.wait()


def test_a_manager_that_refuses_says_what_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = CheckpointManager(tmp_path, when_busy="refuse")
    job = manager.save_async(1, {"x": 1})
    job.wait()
    monkeypatch.setattr(type(job), "done", property(lambda job: False))
    with pytest.raises(penstock.BusyError, match=r"the save of .*step-00000001 is under way"):
        manager.save(2, {"x": 1})


def fail_to_sync(manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch) -> None:
    manager.directory.mkdir(exist_ok=True)

    def fail(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)


def test_what_fails_in_the_background_is_raised_by_the_next_call_once(
    manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.save(1, {"x": 1})
    with monkeypatch.context() as patch:
        fail_to_sync(manager, patch)
        manager.save_async(2, {"x": 2})
        with pytest.raises(penstock.NoSpaceError, match=r"step-00000002: No space left on device"):
            manager.save(3, {"x": 3})
    assert manager.steps() == [1]
    manager.save(4, {"x": 4})
    assert names(manager.directory) == ["step-00000001", "step-00000004"]


@pytest.mark.parametrize("call", ["wait", "close", "restore"])
def test_every_call_raises_it(manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    with monkeypatch.context() as patch:
        fail_to_sync(manager, patch)
        job = manager.save_async(2, {"x": 2})
        with pytest.raises(penstock.NoSpaceError):
            getattr(manager, call)()
    assert job.done
    getattr(manager, call)()


def test_what_somebody_knows_already_is_not_raised_again(
    manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail_to_sync(manager, patch)
        job = manager.save_async(2, {"x": 2})
        with pytest.raises(penstock.NoSpaceError):
            job.wait()
    manager.save(3, {"x": 3})
    assert manager.steps() == [3]


def test_the_end_of_a_with_raises_it_or_warns(manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_to_sync(manager, monkeypatch)
    with pytest.raises(penstock.NoSpaceError), manager:
        manager.save_async(2, {"x": 2})

    def fail() -> None:
        with manager:
            manager.save_async(2, {"x": 2})
            raise ValueError("first")

    with pytest.warns(RuntimeWarning, match="No space left"), pytest.raises(ValueError, match="first"):
        fail()


def test_a_process_that_ends_commits_its_last_step_first(tmp_path: Path) -> None:
    script = """
    import sys, torch, penstock
    manager = penstock.CheckpointManager(sys.argv[1])
    manager.save_async(5, {"w": torch.ones(2**22)})
    """
    assert helpers.run_python(script, str(tmp_path)).stderr == ""
    assert CheckpointManager(tmp_path).steps() == [5]


def test_a_failure_that_nobody_asked_for_is_told_at_exit(tmp_path: Path) -> None:
    script = """
    import os, sys, torch, penstock
    manager = penstock.CheckpointManager(sys.argv[1])
    def fail(fd): raise OSError(28, "No space left on device")
    os.fsync = fail
    manager.save_async(5, {"w": torch.ones(8)})
    """
    told = helpers.run_python(script, str(tmp_path)).stderr
    assert told.count("a background save failed") == 1
    assert "step-00000005: No space left on device" in told
    assert names(tmp_path) == []


def test_a_job_that_is_cancelled_commits_nothing(manager: CheckpointManager) -> None:
    job = manager.save_async(1, {"w": torch.ones(2**24)})
    job.cancel()
    try:
        job.wait()
    except penstock.CancelledError:
        assert names(manager.directory) == []
    else:
        assert manager.steps() == [1]
    manager.save(2, {"x": 1})


@pytest.mark.parametrize("background", [False, True])
def test_objects_that_only_code_could_load_are_refused(manager: CheckpointManager, background: bool) -> None:
    state = {"settings": {"nested": Namespace(lr=1)}}
    with pytest.raises(
        penstock.UnsupportedError, match=r"^settings: nested \(argparse.Namespace\) is an object that can't be loaded"
    ):
        (manager.save_async if background else manager.save)(1, state)
        manager.wait()
    assert names(manager.directory) == []


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ([1], "expected a state as a dict of names to models, optimizers, trees: not list"),
        ({"a/b": 1}, "'a/b' can't be the name of an entry"),
        ({"a.json": 1}, r"'a.json' can't be the name of an entry"),
        ({3: 1}, "3 can't be the name of an entry"),
        ({"a": 1, "a.pt": 2}, "'a': two entries of the state have the same file"),
        ({"a.safetensors": 1}, "expected a mapping of names to tensors"),
    ],
)
def test_states_that_make_no_sense_are_refused(manager: CheckpointManager, state: Any, message: str) -> None:
    for save in (manager.save, manager.save_async):
        with pytest.raises(ERRORS.ArgumentError, match=message):
            save(1, state)
    assert manager.steps() == []
    assert not manager.directory.exists() or names(manager.directory) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keep": 0}, "keep must be a number of steps from 1 on, or None, not 0"),
        ({"every": True}, "every must be a number of steps from 1 on, or None, not True"),
        ({"when_busy": "start"}, 'when_busy must be "wait" or "refuse", not \'start\''),
        ({"per_rank": "rng"}, "per_rank must be names, not the text 'rng'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(tmp_path: Path, arguments: Any, message: str) -> None:
    with pytest.raises(ERRORS.ArgumentError, match=message):
        CheckpointManager(tmp_path, **arguments)


@pytest.mark.parametrize("step", [-1, 1.5, "3", True, None])
def test_steps_are_whole_numbers(manager: CheckpointManager, step: Any) -> None:
    with pytest.raises(ERRORS.ArgumentError, match="a step is a whole number from 0 on, not"):
        manager.save(step, {"x": 1})


def test_a_step_that_is_not_there_is_refused_with_those_that_are(manager: CheckpointManager) -> None:
    manager.save(5, {"x": 1})
    with pytest.raises(ERRORS.NotFoundError, match=r"step-00000006: there is no step 6, only 5$"):
        manager.restore(6)


def test_what_does_not_fit_is_refused_before_anything_changes(manager: CheckpointManager) -> None:
    run = Run()
    manager.save(1, run.state)
    run.steps(2)
    before = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    with pytest.raises(ERRORS.ArgumentError, match="progress: can't be restored into int"):
        manager.restore(into={"model": run.model, "progress": 5})
    with pytest.raises(ERRORS.UnknownTensorError, match="has no 'ema'"):
        manager.restore(into={"model": run.model, "ema": run.model})
    with pytest.raises(ERRORS.Error, match="the checkpoint does not fit its target: not in the file: weight, bias"):
        manager.restore(into={"model": torch.nn.Linear(8, 3)})
    with pytest.raises(ERRORS.ArgumentError, match="optimizer: the SGD can't take what was saved: "):
        manager.restore(into={"optimizer": torch.optim.SGD(torch.nn.Linear(2, 2).parameters())})
    helpers.assert_same_tensors(run.model.state_dict(), before)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_flipped_bit_is_found_by_verify(manager: CheckpointManager, suffix: str) -> None:
    run = Run()
    name = f"model{suffix}"
    manager.save(1, {name: run.model})
    manager.restore(into={name: Run().model}, verify=True)
    path = manager.path(1) / name
    data = bytearray(path.read_bytes())
    data[data.index(run.model[0].weight.detach().numpy().tobytes())] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ERRORS.FormatError, match=rf"model\{suffix}"):
        manager.restore(into={name: Run().model}, verify=True)


@pytest.mark.usefixtures("no_leaks")
def test_nothing_is_left_open(manager: CheckpointManager) -> None:
    with manager:
        manager.save_async(1, {"w": torch.ones(2**20)})
        with pytest.raises(ERRORS.ArgumentError):
            manager.save(2, {"a/b": 1})
        manager.save(3, {"w": 1})


def test_a_run_that_is_killed_at_any_moment_resumes_from_a_whole_step(tmp_path: Path) -> None:
    """At random moments, some of them within a save: what is there is whole, and the next save removes the rest."""
    expected = Run().steps(manager_killed.STEPS)
    for attempt in range(manager_killed.ATTEMPTS + 1):
        command = [sys.executable, manager_killed.__file__, str(tmp_path), str(attempt)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
        manager = CheckpointManager(tmp_path)
        for step in manager.steps():
            saved = manager.restore(step)
            assert saved is not None
            assert saved["progress"]["losses"] == expected[:step]
        if result.returncode == 0:
            break
        assert result.returncode == -signal.SIGKILL, result.stderr
    assert result.returncode == 0
    assert manager.latest() == manager_killed.STEPS
    assert [name for name in names(tmp_path) if name.startswith(".")] == []
    saved = manager.restore()
    assert saved is not None
    assert saved["progress"]["losses"] == expected


def test_a_save_that_is_killed_at_any_line_leaves_whole_steps(tmp_path: Path) -> None:
    """In the background, with retention: at every eleventh line, over all threads."""
    command = [sys.executable, manager_lines_killed.__file__, str(tmp_path), "11"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    deaths = [json.loads(line) for line in run.stdout.splitlines()]
    assert [death["ended"] for death in deaths] == [False] * (len(deaths) - 1) + [True]
    assert len(deaths) > 20
    assert {death["latest"] for death in deaths} == {manager_lines_killed.OLD, manager_lines_killed.NEW}
    assert deaths[-1]["latest"] == manager_lines_killed.NEW
