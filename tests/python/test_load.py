"""load and stream: every way to read gives the same bytes, and says what it did."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import penstock
import penstock.measure
import pytest
import torch
from penstock import _torch

MIB = 2**20
# What each policy may do with a file that is not in the page cache; not every filesystem takes direct reads.
WAYS = {
    "auto": {"direct", "mixed", "buffered"},
    "copy": {"direct", "mixed", "buffered"},
    "direct": {"direct", "buffered"},
    "buffered": {"buffered"},
    "mmap": {"mapped"},
}


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    """48 MiB in tensors of many sizes, some of them at odd places of the file."""
    generator = torch.Generator().manual_seed(1)
    tensors = {
        f"t{i}": torch.randint(0, 256, (size,), generator=generator, dtype=torch.uint8)
        for i, size in enumerate([20 * MIB + 3, 1, 10 * MIB - 1, 4097, 12 * MIB, 777, 5 * MIB])
    }
    tensors["wide"] = torch.randn(1000, 100, generator=generator)
    path = tmp_path_factory.mktemp("big") / "big.safetensors"
    penstock.save(tensors, path)
    return path, tensors


@pytest.mark.parametrize("backend", ["auto", "uring", "threads"])
@pytest.mark.parametrize("landing", ["auto", "in_place", "staged"])
@pytest.mark.parametrize("cache", ["auto", "copy", "direct", "buffered", "mmap"])
def test_every_way_gives_the_same_bytes(
    big: tuple[Path, dict[str, torch.Tensor]], cache: str, landing: str, backend: str
) -> None:
    path, tensors = big
    if backend == "uring" and "uring" not in penstock.measure.available_backends():
        pytest.skip("io_uring is not available here")
    if cache in ("auto", "copy", "direct"):
        penstock.measure.drop_page_cache(path)
    stats = penstock.Stats()
    loaded = penstock.load(path, cache=cache, landing=landing, backend=backend, stats=stats)
    helpers.assert_same_tensors(loaded, tensors)
    assert stats.bytes == sum(tensor.nbytes for tensor in tensors.values())
    assert stats.tensors == len(tensors)
    assert stats.path in WAYS[cache]
    assert stats.reason


@pytest.mark.parametrize(
    "tuning", [{"block_size": "64KiB", "queue_depth": 3, "threads": 1}, {"block_size": 8 * MIB}, {"threads": 3}]
)
def test_tuning_changes_only_the_speed(big: tuple[Path, dict[str, torch.Tensor]], tuning: dict[str, Any]) -> None:
    path, tensors = big
    helpers.assert_same_tensors(penstock.load(path, cache="direct", **tuning), tensors)
    helpers.assert_same_tensors(dict(penstock.stream(path, cache="direct", **tuning)), tensors)


def test_a_stream_keeps_the_order_of_the_file(big: tuple[Path, dict[str, torch.Tensor]]) -> None:
    path, tensors = big
    stats = penstock.Stats()
    streamed = list(penstock.stream(path, cache="direct", max_buffer="1MiB", stats=stats))
    assert [name for name, _ in streamed] == list(penstock.open(path))
    helpers.assert_same_tensors(dict(streamed), tensors)
    assert stats.bytes == sum(tensor.nbytes for tensor in tensors.values())


def test_a_stream_can_be_left_early(big: tuple[Path, dict[str, torch.Tensor]], no_leaks: None) -> None:
    path, tensors = big
    stream = penstock.stream(path, cache="direct", max_buffer="1MiB")
    name, tensor = next(stream)
    stream.close()
    assert helpers.same(tensor, tensors[name])


def test_a_stream_checks_its_arguments_at_once(tmp_path: Path) -> None:
    with pytest.raises(penstock.NotFoundError):
        penstock.stream(tmp_path / "missing.safetensors")


def test_paths_can_be_given_in_many_ways(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    path = tmp_path / "model.safetensors"
    penstock.save(tensors, path, max_shard_size=600)
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    for paths in (
        tmp_path,
        str(tmp_path),
        tmp_path / "model.safetensors.index.json",
        shards,
        tuple(map(str, shards)),
        iter(shards),
    ):
        helpers.assert_same_tensors(penstock.load(paths), tensors)


def test_frameworks_can_be_chosen(path: Path) -> None:
    penstock.save({"x": torch.ones(2)}, path)
    assert isinstance(penstock.load(path)["x"], torch.Tensor)
    assert isinstance(penstock.load(path, framework="pt")["x"], torch.Tensor)
    assert isinstance(penstock.load(path, framework="np")["x"], np.ndarray)
    with pytest.raises(penstock.ArgumentError, match="framework must be"):
        penstock.load(path, framework="caffe")


def test_a_device_moves_the_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    penstock.save(tensors, path)
    stats = penstock.Stats()
    moved = penstock.load(path, "meta", stats=stats)
    assert {name: (t.device.type, t.shape, t.dtype) for name, t in moved.items()} == {
        name: ("meta", t.shape, t.dtype) for name, t in tensors.items()
    }
    assert stats.tensors == len(tensors)
    assert penstock.load(path, torch.device("cpu"))["steps"].device.type == "cpu"
    with pytest.raises(penstock.ArgumentError, match="NumPy arrays can't be moved"):
        penstock.load(path, "cuda", framework="numpy")


def test_tensors_ignore_the_default_device(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    penstock.save(tensors, path)
    with torch.device("meta"):
        loaded = penstock.load(path)
    helpers.assert_same_tensors(loaded, tensors)


@pytest.mark.parametrize("argument", ["cache", "landing", "backend"])
def test_an_unknown_word_is_an_error_that_lists_the_known_ones(path: Path, argument: str) -> None:
    penstock.save({"x": torch.ones(2)}, path)
    with pytest.raises(penstock.ArgumentError, match=f'^{argument} must be one of "auto", .*, not "sideways"$'):
        penstock.load(path, **{argument: "sideways"})


def test_an_unknown_keyword_is_a_type_error(path: Path) -> None:
    penstock.save({"x": torch.ones(2)}, path)
    with pytest.raises(TypeError, match="dephth"):
        penstock.load(path, dephth=3)


@pytest.mark.parametrize("size", ["5 parsecs", "", "iB", "-1"])
def test_a_size_that_is_none_is_an_error(path: Path, size: str) -> None:
    penstock.save({"x": torch.ones(2)}, path)
    with pytest.raises(penstock.ArgumentError, match="is not a size"):
        penstock.load(path, block_size=size)


def test_checksums_are_verified_while_loading(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    penstock.save(tensors, path, checksums=True)
    helpers.assert_same_tensors(penstock.load(path, verify=True), tensors)
    damaged = bytearray(path.read_bytes())
    damaged[-3] ^= 1
    path.write_bytes(damaged)
    penstock.load(path)
    with pytest.raises(penstock.FormatError, match="checksum"):
        penstock.load(path, verify=True)


def test_progress_never_goes_back_and_ends_at_the_total(big: tuple[Path, dict[str, torch.Tensor]]) -> None:
    path, tensors = big
    total = sum(tensor.nbytes for tensor in tensors.values())
    for cache in ("auto", "copy", "direct", "buffered"):
        calls: list[tuple[int, int]] = []
        penstock.load(path, cache=cache, progress=lambda done, total, calls=calls: calls.append((done, total)))
        assert calls == sorted(calls)
        assert calls[-1] == (total, total)
    calls = []
    list(penstock.stream(path, progress=lambda done, total: calls.append((done, total))))
    assert calls == sorted(calls)
    assert calls[-1] == (total, total)


def test_a_progress_callable_can_stop_a_load(big: tuple[Path, dict[str, torch.Tensor]], no_leaks: None) -> None:
    with pytest.raises(penstock.CancelledError):
        penstock.load(big[0], cache="direct", progress=lambda done, total: False)
    with pytest.raises(penstock.CancelledError):
        list(penstock.stream(big[0], progress=lambda done, total: False))


def test_what_a_progress_callable_raises_arrives(big: tuple[Path, dict[str, torch.Tensor]], no_leaks: None) -> None:
    def fail(done: int, total: int) -> None:
        raise ZeroDivisionError("mine")

    for load in (penstock.load, lambda *a, **k: list(penstock.stream(*a, **k))):
        with pytest.raises(ZeroDivisionError, match="mine"):
            load(big[0], cache="direct", progress=fail)


@pytest.mark.parametrize("cache", ["direct", "buffered", "mmap"])
def test_tensors_are_made_while_bytes_are_on_their_way(
    big: tuple[Path, dict[str, torch.Tensor]], cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, tensors = big
    events: list[object] = []
    build = _torch.build

    def build_and_tell(memories: Any, rows: Any) -> dict[str, Any]:
        events.append("built")
        return build(memories, rows)

    monkeypatch.setattr(_torch, "build", build_and_tell)
    loaded = penstock.load(path, cache=cache, progress=lambda done, total: events.append(done))
    assert events.count("built") == 1
    assert (events[0] == "built") == (cache != "mmap")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("cache", ["direct", "buffered", "mmap"])
@pytest.mark.parametrize("problem", [ZeroDivisionError, KeyboardInterrupt])
def test_what_the_making_of_tensors_raises_ends_the_load(
    big: tuple[Path, dict[str, torch.Tensor]],
    cache: str,
    problem: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    no_leaks: None,
) -> None:
    def fail(memories: Any, rows: Any) -> None:
        raise problem

    monkeypatch.setattr(_torch, "build", fail)
    with pytest.raises(problem):
        penstock.load(big[0], cache=cache)


def test_progress_is_a_line_where_there_is_no_terminal(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    penstock.save({"x": torch.zeros(MIB)}, path, progress=True)
    penstock.load(path, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "saving model.safetensors: 4.0 of 4.0 MiB",
        "loading model.safetensors: 4.0 of 4.0 MiB",
    ]


def test_other_threads_run_while_bytes_are_read(big: tuple[Path, dict[str, torch.Tensor]]) -> None:
    """With a switch interval of hours a thread runs only when another lets the GIL go by itself."""
    counter = 0
    stop = threading.Event()

    def count() -> None:
        nonlocal counter
        while not stop.is_set():
            counter += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(10_000)
    try:
        thread.start()
        before = counter
        loaded = penstock.load(big[0], cache="direct", block_size="64KiB", queue_depth=1, threads=1)
        during = counter - before
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        thread.join()
    assert len(loaded) == len(big[1])
    assert during > 50


def test_loads_in_several_threads_do_not_disturb_each_other(big: tuple[Path, dict[str, torch.Tensor]]) -> None:
    path, tensors = big
    results: list[dict[str, torch.Tensor]] = []
    threads = [threading.Thread(target=lambda: results.append(penstock.load(path, cache="direct"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for result in results:
        helpers.assert_same_tensors(result, tensors)


def test_memory_returns_to_its_pool(big: tuple[Path, dict[str, torch.Tensor]]) -> None:
    path, tensors = big
    total = sum(tensor.nbytes for tensor in tensors.values())
    pool = penstock.MemoryPool(max_kept_bytes=2**30)
    loaded = penstock.load(path, cache="direct", pool=pool)
    assert total <= pool.used_bytes <= total + 64 * MIB
    one = loaded["wide"]
    del loaded
    gc.collect()
    assert pool.used_bytes > 0
    del one
    gc.collect()
    assert pool.used_bytes == 0
    assert pool.kept_bytes >= total
    helpers.assert_same_tensors(penstock.load(path, cache="direct", pool=pool), tensors)
    pool.trim()
    gc.collect()
    pool.trim()
    assert pool.kept_bytes == 0


def test_a_reader_is_a_mapping(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    penstock.save(tensors, path, metadata={"format": "pt"})
    reader = penstock.open(path)
    assert set(reader) == set(reader.keys()) == set(tensors)
    assert len(reader) == len(tensors)
    assert "steps" in reader
    assert "step" not in reader
    assert 3 not in reader
    assert reader.get("step") is None
    assert {name: lazy.shape for name, lazy in reader.items()} == {name: tuple(t.shape) for name, t in tensors.items()}
    assert reader.metadata == {"format": "pt"}
    assert reader.nbytes == sum(t.nbytes for t in tensors.values())
    assert 0 <= reader.resident_bytes <= reader.nbytes
    assert [(file.path, file.format, file.size) for file in reader.files] == [
        (path, "safetensors", path.stat().st_size)
    ]
    with pytest.raises(KeyError, match="no tensor is called 'step'"):
        reader["step"]


def test_a_closed_reader_says_so(path: Path, no_leaks: None) -> None:
    penstock.save({"x": torch.ones(2)}, path)
    with penstock.open(path) as reader:
        lazy = reader["x"]
        tensor = lazy.load()
    assert tensor.tolist() == [1, 1]
    for use in (lambda: reader["x"], lambda: lazy.load(), lambda: reader.metadata):
        with pytest.raises(penstock.ArgumentError, match="^the reader is closed$"):
            use()
    assert repr(reader) == "<penstock.Reader, closed>"


def test_inspect_sums_up(path: Path) -> None:
    penstock.save({"a": torch.zeros(3, 4), "b": torch.zeros(5, dtype=torch.int8)}, path, metadata={"k": "v"})
    summary = penstock.inspect(path)
    assert (summary.parameters, summary.nbytes, summary.dtypes) == (17, 53, {"F32": 48, "I8": 5})
    assert summary.metadata == {"k": "v"}
    assert {(info.name, info.dtype, info.shape) for info in summary.tensors} == {
        ("a", "F32", (3, 4)),
        ("b", "I8", (5,)),
    }
    assert "2 tensors, 17 elements, 53 B" in repr(summary)


def test_a_path_need_not_be_utf8(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.safetensors")
    penstock.save({"x": torch.ones(2)}, path)
    assert penstock.load(path)["x"].tolist() == [1, 1]
    with pytest.raises(penstock.NotFoundError, match="caf\udce9"):
        penstock.load(path + "x")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA")
@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_a_device_that_is_not_there_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    penstock.save({"x": torch.ones(2)}, path)
    for device in ("cuda", 0):
        for load in (penstock.load, lambda *arguments: list(penstock.stream(*arguments))):
            with pytest.raises(penstock.UnsupportedError, match="^the device 'cuda(:0)?' can't be used: .") as caught:
                load(path, device)
            assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize("progress", [0, False, None, ""])
def test_progress_that_is_false_reports_nothing(path: Path, progress: Any, capsys: pytest.CaptureFixture[str]) -> None:
    penstock.save({"x": torch.ones(2)}, path, progress=progress)
    penstock.load(path, progress=progress)
    assert capsys.readouterr().err == ""
