"""ParallelLoader and AutoLoader in one process: pipelines, budgets, what stays, and when it ends."""

from __future__ import annotations

import gc
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import helpers
import penstock
import pytest
import torch
from penstock import _core
from penstock.fastsafetensors import (
    AutoLoader,
    BudgetInfeasibleError,
    ParallelLoader,
    SafeTensorsFileLoader,
    SingleGroup,
    live_allocation_bytes,
    live_allocation_count,
)
from penstock.fastsafetensors.parallel_loader import PipelineParallel
from safetensors.torch import load_file, save_file

MIB = 2**20
TENSOR_BYTES = 4 * MIB
FILES, TENSORS = 4, 8
# What the engine has in flight beside the tensors, in the host's memory.
STAGING_BYTES = 24 * MIB


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    directory = tmp_path_factory.mktemp("model")
    paths = []
    for number in range(FILES):
        paths.append(str(directory / f"{number}.safetensors"))
        save_file(
            {
                f"{number}.{index:02d}": torch.full((TENSOR_BYTES // 4,), number + index / 100)
                for index in range(TENSORS)
            },
            paths[-1],
        )
        with open(paths[-1], "rb") as file:
            os.fsync(file.fileno())
    return paths


def drop(files: list[str]) -> None:
    """What is cached would be mapped, and take no memory."""
    for path in files:
        _core.drop_page_cache(path)


def make(files: list[str], **arguments: Any) -> ParallelLoader:
    return ParallelLoader(None, files, **{"use_tqdm_on_load": False, **arguments})


def expected(files: list[str]) -> dict[str, torch.Tensor]:
    return {name: tensor for path in files for name, tensor in load_file(path).items()}


@pytest.mark.parametrize(
    "arguments",
    [
        {"queue_size": -1},
        {},
        {"queue_size": 3},
        {"overlap_io": False},
        {"max_batch_bytes": TENSOR_BYTES},
        {"max_batch_bytes": 3 * TENSOR_BYTES, "use_chunk_budget_as_allocation_size": True},
        {"device_memory_budget": 2**30},
        {"all_local": True, "nogds": True},
        {"accumulate_resident": False, "borrowed_tensors": True},
    ],
    ids=repr,
)
def test_all_pipelines_give_all_tensors_in_the_order_of_the_files(files: list[str], arguments: dict[str, Any]) -> None:
    loader = make(files, **arguments)
    found = dict(loader.iterate_weights())
    loader.close()
    gc.collect()
    assert list(found) == [f"{number}.{index:02d}" for number in range(FILES) for index in range(TENSORS)]
    helpers.assert_same_tensors(found, expected(files))


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["this thread", "another thread"])
def test_who_iterates_is_told_that_the_loader_was_closed_before_the_end(files: list[str], is_elsewhere: bool) -> None:
    loader = ParallelLoader(None, files, use_tqdm_on_load=False)
    weights = loader.iterate_weights()
    next(weights)
    closing = threading.Thread(target=loader.close)
    if is_elsewhere:
        closing.start()
        closing.join()
    else:
        loader.close()
    with pytest.raises(penstock.CancelledError, match="the loader was closed"):
        next(weights)
    assert list(weights) == []


def test_tensors_stay_valid_after_close_and_when_the_iteration_is_broken_off(files: list[str]) -> None:
    loader = ParallelLoader(SingleGroup(), files, use_tqdm_on_load=False)
    iterator = loader.iterate_weights()
    found = dict(next(iterator) for _ in range(3))
    loader.close()
    loader.close()
    gc.collect()
    everything = expected(files)
    helpers.assert_same_tensors(found, {name: everything[name] for name in found})
    with pytest.raises(ValueError, match="the loader was closed"):
        loader.iterate_weights()


def peak_bytes(files: list[str], **arguments: Any) -> int:
    """The most memory of loads at any time, by a caller who lets go of each tensor before the next."""
    pool = penstock.MemoryPool.process_default()
    gc.collect()
    drop(files)
    before, peak = pool.used_bytes, 0
    loader = make(files, **arguments)
    for _, tensor in loader.iterate_weights():
        time.sleep(0.01)  # the reader runs ahead as far as it may
        peak = max(peak, pool.used_bytes - before)
        del tensor
    loader.close()
    return peak


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_batch_bytes": 2 * TENSOR_BYTES},
        {"max_batch_bytes": 2 * TENSOR_BYTES, "queue_size": 4},
        {"device_memory_budget": 3 * TENSOR_BYTES, "accumulate_resident": False},
    ],
    ids=repr,
)
def test_what_is_read_ahead_is_bounded(files: list[str], arguments: dict[str, Any]) -> None:
    assert peak_bytes(files, **arguments) <= 3 * TENSOR_BYTES + STAGING_BYTES < FILES * TENSORS * TENSOR_BYTES / 3


def test_live_allocations_are_those_of_tensors_that_are_held(files: list[str]) -> None:
    gc.collect()
    count, nbytes = live_allocation_count(), live_allocation_bytes()
    loader = make(files)
    held = []
    for number, (_, tensor) in enumerate(loader.iterate_weights()):
        if number < 5:
            held.append(tensor)
        del tensor
    loader.close()
    assert live_allocation_count() - count == 5
    assert live_allocation_bytes() - nbytes == 5 * TENSOR_BYTES
    held.clear()
    gc.collect()
    assert (live_allocation_count(), live_allocation_bytes()) == (count, nbytes)


def test_a_batch_that_is_less_than_a_tensor_is_refused(files: list[str]) -> None:
    with pytest.raises(ValueError, match=rf"max_batch_bytes={TENSOR_BYTES - 1} is less than .* of '0\.00'"):
        make(files, max_batch_bytes=TENSOR_BYTES - 1)


@pytest.mark.parametrize("value", [0, -1])
def test_a_batch_of_nothing_is_refused(files: list[str], value: int) -> None:
    with pytest.raises(ValueError, match="max_batch_bytes must be positive"):
        make(files, max_batch_bytes=value)


TOTAL = FILES * TENSORS * TENSOR_BYTES


@pytest.mark.parametrize(
    ("arguments", "least"),
    [
        ({}, TOTAL),
        ({"accumulate_resident": False}, 2 * TENSOR_BYTES),
        ({"resident_tensor": lambda name: name.startswith("1.")}, TENSORS * TENSOR_BYTES + 2 * TENSOR_BYTES),
    ],
    ids=["all stay", "none stays", "some stay"],
)
def test_a_budget_that_cannot_be_kept_is_refused_and_the_least_is_enough(
    files: list[str], arguments: dict[str, Any], least: int
) -> None:
    with pytest.raises(BudgetInfeasibleError, match=f"at least {least} bytes"):
        make(files, device_memory_budget=least - 1, **arguments)
    loader = make(files, device_memory_budget=least, **arguments)
    assert sum(1 for _ in loader.iterate_weights()) == FILES * TENSORS
    loader.close()
    assert issubclass(BudgetInfeasibleError, ValueError)


def test_a_filter_makes_a_budget_feasible(files: list[str]) -> None:
    loader = make(files, device_memory_budget=TENSOR_BYTES, tensor_filter=lambda name: name == "2.03")
    assert [name for name, _ in loader.iterate_weights()] == ["2.03"]
    loader.close()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_concurrent_producers": 2}, "max_concurrent_producers must be 1"),
        ({"use_chunk_budget_as_allocation_size": True}, "needs max_batch_bytes or device_memory_budget"),
        ({"accumulate_resident": False, "resident_tensor": bool}, "resident_tensor is for accumulate_resident=True"),
        ({"borrowed_tensors": True}, "borrowed_tensors is for a single process"),
        ({"broadcast_run_bytes": -1}, "can't be negative"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_arguments_that_contradict_each_other_are_refused(
    files: list[str], arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        make(files, **arguments)


def test_without_gds_the_default_falls_back(files: list[str]) -> None:
    loader = make(files[:1], nogds=False, use_fgds=False)
    assert len(list(loader.iterate_weights())) == TENSORS
    loader.close()


def test_a_bar_is_shown_where_it_is_asked_for(files: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    for _ in make(files, use_tqdm_on_load=False).iterate_weights():
        pass
    assert capfd.readouterr().err == ""
    for _ in make(files, use_tqdm_on_load=True).iterate_weights():
        pass
    assert f"{TOTAL // MIB}.0 of {TOTAL // MIB}.0 MiB" in capfd.readouterr().err


def test_no_files_are_no_tensors() -> None:
    assert list(make([]).iterate_weights()) == []


def test_a_pipeline_takes_a_loader_that_the_caller_made(files: list[str]) -> None:
    loader = SafeTensorsFileLoader(None, "cpu")
    with PipelineParallel(None, loader, files[:1], use_tqdm_on_load=False) as pipeline:
        assert len(dict(pipeline.iterate_weights())) == TENSORS


def test_auto_loader_loads_as_the_configuration_says(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {
        "parallel": {"use_pipeline": True, "queue_size": 2, "use_tqdm_on_load": False, "max_batch_bytes": 2**23},
        "base": {"copier_type": "nogds", "max_threads": 4},
    }
    (tmp_path / "mine.json").write_text(json.dumps(config))
    monkeypatch.setenv("FASTSAFETENSORS_CONFIG", str(tmp_path / "mine.json"))
    loader = AutoLoader(None, files)
    helpers.assert_same_tensors(dict(loader.iterate_weights()), expected(files))
    assert (loader.config.queue_size, loader.config.max_batch_bytes) == (2, 2**23)
    loader.close()


def test_auto_loader_names_a_loader_that_there_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.json").write_text('{"loader": "mine"}')
    monkeypatch.setenv("FASTSAFETENSORS_CONFIG", str(tmp_path / "mine.json"))
    with pytest.raises(ValueError, match="Unknown loader type: 'mine'"):
        AutoLoader(None, [])
    (tmp_path / "mine.json").write_text('{"loader": "3fs"}')
    with pytest.raises(ImportError, match="3FS's own interface is not supported"):
        AutoLoader(None, [])
