"""safe_open.prefetch: tensors that are read in the background and handed out once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import penstock
import penstock.safetensors
import penstock.safetensors._prefetch
import pytest
import torch
from penstock import _core
from penstock.safetensors import safe_open


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    return {
        "matrix": torch.arange(12.0).reshape(3, 4),
        "brain": torch.arange(8).reshape(2, 4).bfloat16(),
        "cube": torch.arange(24).reshape(2, 3, 4).half(),
        "scalar": torch.tensor(7.5),
        "empty": torch.empty(0, 5),
        "whole": torch.arange(5),
    }


@pytest.fixture
def file(path: Path, state: dict[str, torch.Tensor]) -> Path:
    penstock.safetensors.save_file(state, path)
    return path


@pytest.mark.parametrize("backend", ["mmap", "pread"])
@pytest.mark.parametrize("cold", [False, True], ids=["cached", "cold"])
def test_every_tensor_comes_once_in_the_order_of_the_file(
    file: Path, state: dict[str, torch.Tensor], backend: str, cold: bool
) -> None:
    if cold:
        _core.drop_page_cache(file)
    with safe_open(file, "pt", backend=backend) as opened, opened.prefetch() as loader:
        assert loader.names() == opened.offset_keys()
        assert len(loader) == len(state)
        found = list(loader)
        assert [name for name, _ in found] == loader.names()
        assert list(loader) == []
    helpers.assert_same_tensors(dict(found), state)


@pytest.mark.parametrize("cold", [False, True], ids=["cached", "cold"])
def test_rows_of_a_plan_are_those_rows(file: Path, state: dict[str, torch.Tensor], cold: bool) -> None:
    if cold:
        _core.drop_page_cache(file)
    plan = {"matrix": slice(1, 3), "whole": slice(-3, None), "cube": None, "brain": slice(1, 1), "empty": slice(0, 0)}
    with safe_open(file, "pt").prefetch(plan) as loader:
        assert set(loader.names()) == set(plan)
        found = dict(loader)
    expected = {name: state[name] if rows is None else state[name][rows] for name, rows in plan.items()}
    helpers.assert_same_tensors(found, expected)


def test_only_the_rows_are_read(path: Path) -> None:
    penstock.safetensors.save_file({"large": torch.arange(4 * 2**20, dtype=torch.int32).reshape(4, -1)}, path)
    pool = penstock.MemoryPool(max_kept_bytes=0)
    opened = safe_open(path, "pt", backend="pread")
    opened._reader.options.keywords["pool"] = pool
    with opened.prefetch({"large": slice(2, 3)}) as loader:
        rows = loader.take("large")
        assert 4 * 2**20 <= pool.used_bytes < 8 * 2**20
    assert rows[0, 0].item() == 2 * 2**20


def test_rows_of_packed_elements_are_whole_bytes(path: Path) -> None:
    helpers.write_raw(path, helpers.one_tensor("F4", [4, 8], 16), bytes(range(16)))
    rows = safe_open(path, "pt").prefetch({"x": slice(1, 3)}).take("x")
    assert rows.view(torch.uint8).flatten().tolist() == list(range(4, 12))
    helpers.write_raw(path, helpers.one_tensor("F4", [4, 3], 6), bytes(6))
    with pytest.raises(penstock.UnsupportedError, match='"x": a slice of F4 must start and end on whole bytes'):
        safe_open(path, "pt").prefetch({"x": slice(1, 3)})


def test_tensors_are_taken_in_any_order(file: Path, state: dict[str, torch.Tensor]) -> None:
    with safe_open(file, "pt") as opened, opened.prefetch() as loader:
        names = loader.names()
        taken = {name: loader.take(name) for name in reversed(names[3:])}
        left = dict(loader)
        assert list(left) == names[:3]
    helpers.assert_same_tensors({**taken, **left}, state)


def test_what_lies_far_ahead_is_read_alone_and_nothing_piles_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(penstock.safetensors._prefetch, "_MAX_BUFFER", 8 * 2**20)
    state = {f"t{number:02}": torch.full((2**20,), float(number)) for number in range(16)}  # 4 MiB each
    penstock.safetensors.save_file(state, path)
    pool = penstock.MemoryPool(max_kept_bytes=0)
    opened = safe_open(path, "pt", backend="pread")
    opened._reader.options.keywords["pool"] = pool
    most = 0
    with opened.prefetch() as loader:
        for name in reversed(loader.names()):
            assert loader.take(name)[0].item() == float(name[1:])
            most = max(most, pool.used_bytes)
        assert list(loader) == []
    assert (
        most <= 8 * 2**20 + 34 * 2**20
    )  # the buffer, and what a load needs to stage bytes: not the 64 MiB of the file
    with opened.prefetch() as loader:
        last = loader.take("t15")
        rest = dict(loader)
    helpers.assert_same_tensors({**rest, "t15": last}, state)


def test_each_tensor_is_handed_out_once(file: Path) -> None:
    with safe_open(file, "pt").prefetch({"matrix": None, "whole": None}) as loader:
        loader.take("matrix")
        with pytest.raises(penstock.ArgumentError, match="matrix was already delivered"):
            loader.take("matrix")
        with pytest.raises(KeyError, match="cube is not in the prefetch plan"):
            loader.take("cube")
        with pytest.raises(TypeError):
            loader.take(1)
        assert [name for name, _ in loader] == ["whole"]


def test_a_loader_outlives_its_file_and_tensors_their_loader(file: Path, state: dict[str, torch.Tensor]) -> None:
    with safe_open(file, "pt") as opened:
        loader = opened.prefetch()
    file.unlink()
    found = dict(loader)
    loader.close()
    del loader
    helpers.assert_same_tensors(found, state)
    with pytest.raises(penstock.ArgumentError, match="closed"):
        opened.prefetch()


def test_a_closed_loader_gives_nothing(file: Path) -> None:
    loader = safe_open(file, "pt").prefetch()
    tensors = iter(loader)
    next(tensors)
    loader.close()
    loader.close()
    for use in (lambda: next(tensors), lambda: loader.take("matrix"), lambda: dict(loader)):
        with pytest.raises(penstock.ArgumentError, match="the prefetch loader is closed"):
            use()


@pytest.mark.usefixtures("no_leaks")
def test_a_loader_that_is_dropped_leaves_nothing(file: Path) -> None:
    before = threading.active_count()
    for _ in range(3):
        loader = safe_open(file, "pt").prefetch()
        next(iter(loader))
    del loader
    assert threading.active_count() == before


def test_several_threads_share_a_loader(path: Path) -> None:
    state = {f"t{number:03}": torch.full((1000,), float(number)) for number in range(200)}
    penstock.safetensors.save_file(state, path)
    found: list[tuple[str, torch.Tensor]] = []
    with safe_open(path, "pt") as opened, opened.prefetch(threads=2) as loader:
        workers = [threading.Thread(target=lambda: found.extend(loader)) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert len(found) == len(state)
    helpers.assert_same_tensors(dict(found), state)


BAD_PLANS: dict[str, tuple[Any, type[Exception], str]] = {
    "unknown": ({"absent": None}, KeyError, "does not contain tensor absent"),
    "step": ({"matrix": slice(0, 3, 2)}, ValueError, "rows are taken with step 1"),
    "no step": ({"matrix": slice(0, 3, 0)}, ValueError, "invalid prefetch plan slice 0:3:0"),
    "scalar": ({"scalar": slice(0, 1)}, ValueError, "a 0-d tensor has no rows"),
    "number": ({"matrix": 3}, TypeError, "None or a slice"),
    "beyond": ({"matrix": slice(0, 10)}, ValueError, "out of range, the tensor has 3 rows"),
    "before": ({"matrix": slice(-4, 2)}, ValueError, "out of range, the tensor has 3 rows"),
    "backwards": ({"matrix": slice(2, 1)}, ValueError, "out of range, the tensor has 3 rows"),
    "text": ({"matrix": slice("a", "b")}, TypeError, "the bounds are integers"),
    "nothing": ({}, ValueError, "selects no tensors"),
    "a list": (["matrix"], TypeError, "plan must be a dict"),
}


@pytest.mark.parametrize(("plan", "kind", "words"), BAD_PLANS.values(), ids=BAD_PLANS.keys())
def test_plans_that_make_no_sense_are_refused_at_once(file: Path, plan: Any, kind: type[Exception], words: str) -> None:
    with safe_open(file, "pt") as opened, pytest.raises(kind, match=words) as caught:
        opened.prefetch(plan)
    assert isinstance(caught.value, penstock.safetensors.SafetensorError)


@pytest.mark.parametrize("threads", [0, -1, "two", None])
def test_threads_are_a_number_from_one_on(file: Path, threads: Any) -> None:
    with pytest.raises(penstock.ArgumentError, match="threads must be a number from 1 on"):
        safe_open(file, "pt").prefetch(threads=threads)
    assert dict(safe_open(file, "pt").prefetch(threads=10_000)).keys() == set(safe_open(file, "pt").keys())


def test_a_device_is_the_loaders_own_or_the_files(file: Path) -> None:
    with safe_open(file, "pt") as opened:
        assert opened.prefetch(device="meta").take("matrix").device.type == "meta"
        assert opened.prefetch().take("matrix").device.type == "cpu"
    with safe_open(file, "pt", "meta") as opened:
        assert opened.prefetch().take("matrix").device.type == "meta"
        assert opened.prefetch(device="cpu").take("matrix").device.type == "cpu"
        with pytest.raises(penstock.ArgumentError, match="'foo' is not a device"):
            opened.prefetch(device="foo")


def test_arrays_are_prefetched_too(path: Path) -> None:
    arrays = {"a": np.arange(6.0), "b": np.arange(4).reshape(2, 2)}
    penstock.save(arrays, path)
    helpers.assert_same_tensors(dict(safe_open(path, "np").prefetch()), arrays)


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_a_file_that_shrank_is_an_error_at_every_call(path: Path, backend: str) -> None:
    penstock.safetensors.save_file({"a": torch.zeros(2**20), "b": torch.zeros(2**20)}, path)
    opened = safe_open(path, "pt", backend=backend)
    with path.open("r+b") as file:
        file.truncate(2**20)
    loader = opened.prefetch()
    for _ in range(2):
        with pytest.raises(penstock.ChangedError):
            loader.take("a")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA")
def test_a_device_that_is_not_there_is_refused(path: Path) -> None:
    penstock.save({"x": torch.ones(2)}, path)
    with penstock.safetensors.safe_open(path, "pt", "cuda") as file:
        with pytest.raises(penstock.UnsupportedError, match="^the device 'cuda' can't be used: ."):
            file.get_tensor("x")
        with pytest.raises(penstock.UnsupportedError, match="'cuda' can't be used: ."):
            file.prefetch()
