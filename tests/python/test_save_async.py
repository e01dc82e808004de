"""save_async: saves in the background."""

from __future__ import annotations

import gc
import os
import threading
import warnings
import weakref
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import penstock
import pytest
import torch

SLOW = {"method": "direct", "block_size": "64KiB", "queue_depth": 1}


def test_the_result_is_that_of_save(path: Path, tensors: dict[str, torch.Tensor], no_leaks: None) -> None:
    job = penstock.save_async(tensors, path, metadata={"a": "b"}, checksums=True)
    stats = job.wait()
    assert stats.bytes == sum(tensor.nbytes for tensor in tensors.values())
    assert job.wait() == stats
    assert job.done
    assert job.progress[0] == job.progress[1]
    assert job.path == str(path)
    helpers.assert_same_tensors(penstock.load(path, verify=True), tensors)
    assert penstock.open(path).metadata["a"] == "b"
    del job


def test_tensors_may_change_once_they_are_staged(path: Path) -> None:
    tensor = torch.ones(2**22)
    job = penstock.save_async({"x": tensor}, path, **SLOW)
    assert job.staged()
    tensor.zero_()
    job.wait()
    assert torch.equal(penstock.load(path)["x"], torch.ones(2**22))


def test_without_a_snapshot_the_memory_is_borrowed(path: Path) -> None:
    tensor = torch.arange(2.0**20)
    job = penstock.save_async({"x": tensor}, path, snapshot=False)
    job.wait()
    assert torch.equal(penstock.load(path)["x"], tensor)


def test_tensors_are_kept_alive(path: Path) -> None:
    job = penstock.save_async({"x": torch.full((2**22,), 3.0)}, path, snapshot=False, **SLOW)
    for _ in range(20):
        torch.full((2**22,), 5.0)
    job.wait()
    assert penstock.load(path)["x"].unique().tolist() == [3.0]


def test_a_job_goes_on_when_its_handle_is_dropped(path: Path) -> None:
    script = """
        import sys, numpy, penstock
        penstock.save_async({"x": numpy.ones(2**22)}, sys.argv[1], method="direct", block_size="64KiB", queue_depth=1)
    """
    result = helpers.run_python(script, str(path))
    assert result.stderr == ""
    assert penstock.load(path)["x"].sum() == 2**22


def test_a_failure_that_nobody_asked_for_is_shown_at_exit(tmp_path: Path) -> None:
    script = """
        import sys, numpy, penstock
        penstock.save_async({"x": numpy.ones(2)}, sys.argv[1])
    """
    result = helpers.run_python(script, str(tmp_path / "no" / "such.safetensors"), check=False)
    assert "a background save failed" in result.stderr
    assert "such.safetensors" in result.stderr


def test_a_job_can_be_cancelled(path: Path, no_leaks: None) -> None:
    path.write_bytes(b"old")
    job = penstock.save_async({"x": torch.zeros(2**24)}, path, **SLOW)
    job.cancel()
    with pytest.raises(penstock.CancelledError):
        job.wait()
    with pytest.raises(penstock.CancelledError):
        job.wait()
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == [path.name]
    del job


def test_waiting_can_have_a_limit(path: Path) -> None:
    job = penstock.save_async({"x": torch.zeros(2**24)}, path, **SLOW)
    with pytest.raises(TimeoutError, match="the save is not done after 0 s"):
        job.wait(timeout=0)
    assert "of 67" in repr(job)
    job.wait(timeout=60)
    assert "done" in repr(job)


def test_a_failed_job_raises_every_time(tmp_path: Path) -> None:
    job = penstock.save_async({"x": torch.ones(2)}, tmp_path / "no" / "such.safetensors")
    for _ in range(2):
        with pytest.raises(penstock.NotFoundError):
            job.wait()


def test_bad_arguments_raise_at_once(path: Path) -> None:
    with pytest.raises(penstock.ArgumentError):
        penstock.save_async({"x": 3}, path)
    with pytest.raises(penstock.ArgumentError):
        penstock.save_async({"x": torch.ones(1)}, path, shared="perhaps")


def test_several_jobs_run_at_once(tmp_path: Path) -> None:
    jobs = [penstock.save_async({"x": torch.full((2**18,), float(i))}, tmp_path / f"{i}.safetensors") for i in range(5)]
    for i, job in enumerate(jobs):
        job.wait()
        assert penstock.load(tmp_path / f"{i}.safetensors")["x"].unique().tolist() == [float(i)]


def test_a_relative_path_is_where_the_process_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    job = penstock.save_async({"x": torch.zeros(2**22)}, "model.safetensors", **SLOW)
    monkeypatch.chdir(tmp_path / "elsewhere")
    job.wait()
    assert job.path == str(tmp_path / "model.safetensors")
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "model.safetensors"]


def finished_badly(directory: Path) -> penstock.SaveJob:
    """A job that failed, and that nobody asked."""
    job = penstock.save_async({"x": torch.ones(2)}, directory / "no" / "such.safetensors")
    while not job.done:
        threading.Event().wait(0.001)
    return job


def test_one_failure_is_not_anothers(tmp_path: Path, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished_badly(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        job = penstock.save_async({"x": torch.ones(2)}, path)
    assert "such.safetensors" in capsys.readouterr().err
    job.wait()
    assert penstock.load(path)["x"].tolist() == [1, 1]


def test_an_error_that_staged_raised_is_not_told_again(tmp_path: Path, path: Path) -> None:
    job = finished_badly(tmp_path)
    with pytest.raises(penstock.NotFoundError):
        job.staged()
    penstock.save_async({"x": torch.ones(2)}, path).wait()  # warnings are errors here


class AlreadyFailed:
    """The engine's job of a save that has failed by the time that Python sees it."""

    done = True
    progress = (0, 0, 0.0)

    def staged(self, timeout: float | None) -> bool:
        raise penstock.NotFoundError("no/such.safetensors: no such directory")

    def wait(self, timeout: float | None) -> dict[str, Any] | None:
        raise penstock.NotFoundError("no/such.safetensors: no such directory")

    def cancel(self) -> None:
        pass


def test_a_failure_that_is_asked_for_is_raised_and_not_shown(
    tmp_path: Path, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [penstock.SaveJob(AlreadyFailed(), "no/such.safetensors", [], 0), finished_badly(tmp_path)]
    penstock.save_async({"x": torch.ones(2)}, path).wait()  # looks at those that are over
    for job in jobs:
        with pytest.raises(penstock.NotFoundError):
            job.wait()
    assert capsys.readouterr().err == ""  # where warnings are errors they are printed


def test_a_failure_is_shown_once_its_handle_is_dropped(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = penstock.SaveJob(AlreadyFailed(), "no/such.safetensors", [], 0)
    penstock.save_async({"x": torch.ones(2)}, path).wait()
    assert capsys.readouterr().err == ""
    del job
    penstock.save_async({"x": torch.ones(2)}, path).wait()
    assert "a background save failed: no/such.safetensors: no such directory" in capsys.readouterr().err
    penstock.save_async({"x": torch.ones(2)}, path).wait()
    assert capsys.readouterr().err == ""


class Watched(np.ndarray):
    """An array that can be weakly referenced."""


@pytest.mark.parametrize("snapshot", [True, False])
def test_a_job_that_nobody_asks_lets_the_memory_go(path: Path, snapshot: bool) -> None:
    array = np.ones(2**10).view(Watched)
    gone = threading.Event()
    weakref.finalize(array, gone.set)
    job = penstock.save_async({"x": array}, path, snapshot=snapshot)
    del array
    gc.collect()
    assert gone.wait(60)
    job.wait()
    assert penstock.load(path)["x"].sum() == 2**10


def test_threads_may_start_jobs_at_once(tmp_path: Path) -> None:
    problems: list[Exception] = []

    def save_many(number: int) -> None:
        try:
            for i in range(40):
                penstock.save_async({"x": torch.ones(1)}, tmp_path / f"{number}-{i}.safetensors", durable=False)
        except Exception as problem:
            problems.append(problem)

    threads = [threading.Thread(target=save_many, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    for job in list(penstock._job._running):
        job.wait()
    assert len(os.listdir(tmp_path)) == 240


def test_what_a_job_held_is_free_when_it_is_over(tmp_path: Path) -> None:
    pool = penstock.MemoryPool()
    tensors = {"w": torch.ones(4 * 2**20)}
    for _ in range(3):
        penstock.save_async(tensors, tmp_path / "m.safetensors", pool=pool).wait()
        assert pool.used_bytes == 0
