"""penstock.fastsafetensors.saver: sets of shards, by the engine and by fills, and what goes wrong with them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import penstock
import pytest
import torch
from penstock.fastsafetensors import ParallelSaver
from penstock.fastsafetensors.common import SafeTensorsMetadata
from penstock.fastsafetensors.frameworks import get_framework_op
from penstock.fastsafetensors.saver import (
    ShardPlan,
    ShardSetError,
    WriteEntry,
    per_entry_fill,
    plain_entry,
    plan_shards,
    save_sharded,
    shard_paths,
    tensor_fill,
    validate_shard_set,
    write_shards,
)
from penstock.fastsafetensors.st_types import DType
from safetensors.torch import load_file

STEP = 3 * 2**20
TENSORS = {
    "large": torch.arange(STEP // 4, dtype=torch.float32).reshape(3, -1),
    "turned": torch.arange(6000, dtype=torch.int64).reshape(60, 100).t(),
    "every other": torch.arange(100, dtype=torch.int16)[::2],
    "brain": torch.ones(7, 3, dtype=torch.bfloat16),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "empty": torch.empty(0, 4),
}


def through_maps(work: list[tuple[memoryview, WriteEntry]]) -> None:
    """What the default does, by way of the memory of the files."""
    tensor_fill(2)(work)


FILLS = pytest.mark.parametrize("fill", [None, through_maps], ids=["engine", "maps"])


def base_in(folder: Path) -> str:
    return str(folder / "model")


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def names_of(paths: list[str]) -> set[str]:
    return {os.path.basename(path) for path in paths}


def constant(value: float, count: int = 3, nbytes: int = 4096) -> dict[str, torch.Tensor]:
    return {f"t{number}": torch.full((nbytes // 4,), value) for number in range(count)}


def value_of(folder: Path) -> float:
    """Of a checkpoint that `constant` made; fails for a mixture."""
    values = {float(value) for tensor in penstock.load(folder).values() for value in tensor.unique()}
    assert len(values) == 1
    return values.pop()


def read_metadata(path: str) -> SafeTensorsMetadata:
    return SafeTensorsMetadata.from_file(path, get_framework_op("pt"))


def load_each(paths: list[str]) -> dict[str, torch.Tensor]:
    return {name: tensor for path in paths for name, tensor in load_file(path).items()}


@FILLS
@pytest.mark.parametrize("num_shards", [1, 3, 9])
@pytest.mark.parametrize("fsync", [False, True])
def test_a_set_is_what_others_and_we_load(tmp_path: Path, fill: Any, num_shards: int, fsync: bool) -> None:
    saver = ParallelSaver(num_shards=num_shards, fill=fill, fsync=fsync)
    paths = saver.save(TENSORS, str(tmp_path / "new folder" / "model"))
    assert paths == shard_paths(str(tmp_path / "new folder" / "model"), num_shards)
    expected = {name: tensor.contiguous() for name, tensor in TENSORS.items()}
    helpers.assert_same_tensors(load_each(paths), expected)
    index = tmp_path / "new folder" / "model.safetensors.index.json"
    helpers.assert_same_tensors(penstock.load(index), expected)
    helpers.assert_same_tensors(penstock.load(index.parent), expected)
    assert names_in(index.parent) == {*names_of(paths), index.name}
    said = json.loads(index.read_text())
    assert said["metadata"]["total_size"] == sum(tensor.nbytes for tensor in TENSORS.values())
    assert set(said["weight_map"]) == set(TENSORS)


@FILLS
@pytest.mark.parametrize("header_align", [8, 512])
def test_a_shard_byte_by_byte(tmp_path: Path, fill: Any, header_align: int) -> None:
    tensors = {"b": torch.arange(3, dtype=torch.uint8), "a": torch.arange(4.0), "ü": torch.zeros(1, dtype=torch.int16)}
    saver = ParallelSaver(num_shards=2, fill=fill, shard_metadata=lambda entries: {"entries": str(len(entries))})
    first, second = saver.save(
        tensors, base_in(tmp_path), metadata={"who": "me"}, shard0_metadata={"only": "here"}, header_align=header_align
    )
    set_id = read_metadata(first).metadata["fst.shard.set"]
    common = {"fst.shard.count": "2", "fst.shard.set": set_id}
    rows = {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}
    metadata = {"who": "me", "only": "here", "fst.shard.index": "0", **common, "entries": "1"}
    check_bytes(first, rows, metadata, tensors["a"].numpy().tobytes(), header_align)
    rows = {
        "b": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
        "ü": {"dtype": "I16", "shape": [1], "data_offsets": [3, 5]},
    }
    metadata = {"who": "me", "fst.shard.index": "1", **common, "entries": "2"}
    check_bytes(second, rows, metadata, b"\0\1\2\0\0", header_align)


def check_bytes(path: str, rows: dict[str, Any], metadata: dict[str, str], data: bytes, header_align: int) -> None:
    content = Path(path).read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert length % header_align == 0
    text = content[8 : 8 + length]
    assert text.endswith(b"}" + b" " * (len(text) - len(text.rstrip())))
    assert len(text) - len(text.rstrip()) < header_align
    assert json.loads(text) == {**rows, "__metadata__": metadata}
    assert b", " not in text
    assert content[8 + length :] == data


def test_the_largest_go_first_each_to_the_file_that_has_the_least() -> None:
    sizes = {"a": 5, "b": 9, "c": 5, "d": 4, "e": 1, "f": 0}
    entries = [WriteEntry(name, DType.U8, [size], size) for name, size in sizes.items()]
    plans = plan_shards(entries, ["x", "y"])
    assert [[entry.name for entry in plan.entries] for plan in plans] == [["b", "d"], ["a", "c", "e", "f"]]
    loads = [sum(entry.nbytes for entry in plan.entries) for plan in plans]
    assert loads == [13, 11]
    for plan in plans:
        end = len(plan.header)
        for entry in plan.entries:
            assert plan.offsets[entry.name] == (end, end + entry.nbytes)
            end += entry.nbytes
        assert plan.total_bytes == end


@FILLS
@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 5), (5, 2), (16, 1)])
def test_a_set_takes_the_place_of_an_older_one(tmp_path: Path, fill: Any, before: int, after: int) -> None:
    ParallelSaver(num_shards=before, fill=fill).save(constant(1), base_in(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    paths = ParallelSaver(num_shards=after, fill=fill).save(constant(2, 4), base_in(tmp_path))
    expected = [f"model-g2-{number + 1:05}-of-{after:05}.safetensors" for number in range(after)]
    assert [os.path.basename(path) for path in paths] == expected
    assert names_in(tmp_path) == {*expected, "model.safetensors.index.json", "config.json"}
    assert value_of(tmp_path) == 2
    assert len(penstock.load(tmp_path)) == 4
    validate_shard_set([read_metadata(path) for path in paths])
    paths = ParallelSaver(num_shards=1).save(constant(3), base_in(tmp_path))
    assert names_of(paths) == {"model-g3-00001-of-00001.safetensors"}
    assert len(names_in(tmp_path)) == 3
    penstock.save(constant(4), tmp_path / "model.safetensors")
    assert names_in(tmp_path) == {"model.safetensors", "config.json"}


def test_files_of_the_same_names_without_an_index_are_replaced(tmp_path: Path) -> None:
    """As fastsafetensors leaves them."""
    for path in [*shard_paths(base_in(tmp_path), 2), base_in(tmp_path) + "-00001-of-00007.safetensors"]:
        Path(path).write_bytes(b"other")
    paths = ParallelSaver(num_shards=2).save(constant(1), base_in(tmp_path))
    bystander = "model-00001-of-00007.safetensors"
    assert names_in(tmp_path) == {*names_of(paths), "model.safetensors.index.json", bystander}
    assert names_of(paths) == {"model-g2-00001-of-00002.safetensors", "model-g2-00002-of-00002.safetensors"}


def test_a_reader_of_the_old_set_keeps_its_files(tmp_path: Path) -> None:
    ParallelSaver(num_shards=2).save(constant(1), base_in(tmp_path))
    with penstock.open(tmp_path) as reader:
        ParallelSaver(num_shards=2).save(constant(2), base_in(tmp_path))
        assert {float(reader[name].load()[0]) for name in reader} == {1}


def test_paths_are_relative_where_the_base_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ParallelSaver(num_shards=1).save(constant(1), "model") == ["model-00001-of-00001.safetensors"]
    assert ParallelSaver(num_shards=1).save(constant(1), "sub/model") == ["sub/model-00001-of-00001.safetensors"]
    assert value_of(tmp_path / "sub") == 1


def test_numpy_arrays_and_wrapped_tensors_are_saved(tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    saver = ParallelSaver(num_shards=2, framework="numpy")
    wrapped = get_framework_op("pt").wrap_tensor(torch.arange(3))
    paths = saver.save({"a": array, "turned": array.T, "one": np.float32(7), "w": wrapped}, base_in(tmp_path))
    expected = {"a": torch.from_numpy(array), "turned": torch.from_numpy(array).t().contiguous()}
    expected |= {"one": torch.tensor(7.0), "w": torch.arange(3)}
    helpers.assert_same_tensors(load_each(paths), expected)


@FILLS
def test_every_type_is_saved(tmp_path: Path, fill: Any) -> None:
    types = (torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.uint16, torch.complex64)
    tensors = {str(dtype): torch.ones(6).to(dtype) for dtype in types}
    tensors["packed"] = torch.arange(6, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    tensors["trained"] = torch.ones(3, requires_grad=True)
    paths = ParallelSaver(num_shards=2, fill=fill).save(tensors, base_in(tmp_path))
    helpers.assert_same_tensors(penstock.load(paths), {name: tensor.detach() for name, tensor in tensors.items()})


def test_an_entry_of_another_type_than_its_source_has_its_bytes(tmp_path: Path) -> None:
    entry = WriteEntry("x", DType.F16, [4, 2], 16, torch.arange(16, dtype=torch.uint8))
    (path,) = ParallelSaver(num_shards=1).save_entries([entry], base_in(tmp_path))
    found = load_file(path)["x"]
    assert (found.dtype, found.shape) == (torch.float16, (4, 2))
    assert helpers.bits_of(found) == bytes(range(16))


def test_tensors_over_the_same_memory_are_each_written(tmp_path: Path) -> None:
    tensor = torch.arange(1000.0)
    paths = ParallelSaver(num_shards=2).save({"a": tensor, "b": tensor, "c": tensor[5:]}, base_in(tmp_path))
    helpers.assert_same_tensors(load_each(paths), {"a": tensor, "b": tensor, "c": tensor[5:]})


@pytest.mark.parametrize("fill", [tensor_fill(), through_maps], ids=["engine", "maps"])
def test_a_set_of_nothing(tmp_path: Path, fill: Any) -> None:
    paths = save_sharded([], base_in(tmp_path), num_shards=2, fill=fill)
    assert [read_metadata(path).tensors for path in paths] == [{}, {}]
    assert penstock.load(tmp_path) == {}
    assert write_shards([], fill) == []


def test_a_fill_gets_all_memory_once_the_largest_first(tmp_path: Path) -> None:
    calls = []

    def fill(work: list[tuple[memoryview, WriteEntry]]) -> None:
        calls.append([(entry.name, len(buffer), buffer.readonly, entry.source) for buffer, entry in work])
        assert names_in(tmp_path) == set()
        for buffer, entry in work:
            buffer[:] = bytes([len(entry.name)]) * len(buffer)
        work.clear()  # is the fill's own list

    sizes = {"a": 10, "bb": 5_000_000, "ccc": 0, "dddd": 4097}
    entries = [WriteEntry(name, DType.U8, [size], size, name.upper()) for name, size in sizes.items()]
    paths = ParallelSaver(num_shards=2, fill=fill).save_entries(entries, base_in(tmp_path))
    assert calls == [
        [("bb", 5_000_000, False, "BB"), ("dddd", 4097, False, "DDDD"), ("a", 10, False, "A"), ("ccc", 0, False, "CCC")]
    ]
    found = load_each(paths)
    assert {name: set(tensor.tolist()) for name, tensor in found.items()} == {
        "a": {1},
        "bb": {2},
        "ccc": set(),
        "dddd": {4},
    }


def test_memory_that_was_given_to_a_fill_is_released(tmp_path: Path, no_leaks: None) -> None:
    given: list[memoryview] = []
    ParallelSaver(num_shards=2, fill=lambda work: given.extend(buffer for buffer, _ in work)).save(
        constant(1), base_in(tmp_path)
    )
    assert len(given) == 3
    for buffer in given:
        with pytest.raises(ValueError, match="released"):
            buffer.tobytes()
    assert "model-" not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("keep", [lambda buffer: np.frombuffer(buffer, np.uint8), lambda buffer: buffer[1:]])
def test_a_fill_that_keeps_memory_is_refused(tmp_path: Path, keep: Callable[[memoryview], Any]) -> None:
    kept: list[Any] = []
    with pytest.raises(penstock.ArgumentError, match=r"fill has kept some of the memory") as caught:
        ParallelSaver(fill=lambda work: kept.append(keep(work[0][0]))).save(constant(1), base_in(tmp_path))
    assert base_in(tmp_path) in str(caught.value)
    assert names_in(tmp_path) == set()
    kept[0][:2] = keep(memoryview(bytearray(b"abc")))[:2]  # is not gone under who has it


@pytest.mark.parametrize("num_threads", [1, 4])
def test_the_first_error_of_a_fill_stops_it_and_leaves_nothing(
    tmp_path: Path, num_threads: int, no_leaks: None
) -> None:
    seen = []

    def encode(buffer: memoryview, entry: WriteEntry) -> None:
        seen.append(entry.name)
        raise KeyError(entry.name)

    ParallelSaver(num_shards=2).save(constant(1), base_in(tmp_path))
    before = names_in(tmp_path)
    with pytest.raises(KeyError):
        ParallelSaver(fill=per_entry_fill(encode, num_threads)).save(constant(2, 500), base_in(tmp_path))
    assert len(seen) < 500
    assert names_in(tmp_path) == before
    assert value_of(tmp_path) == 1


def test_entries_are_filled_on_several_threads(tmp_path: Path) -> None:
    together = threading.Barrier(3, timeout=60)
    fill = per_entry_fill(lambda buffer, entry: together.wait() and None, num_threads=3)
    ParallelSaver(fill=fill, num_shards=1).save(constant(1), base_in(tmp_path))


def test_python_runs_while_the_engine_writes(tmp_path: Path) -> None:
    ticks = 0
    over = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not over.wait(0.001):
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        ParallelSaver(num_shards=2).save({"x": torch.zeros(2**28, dtype=torch.uint8)}, base_in(tmp_path))
    finally:
        over.set()
        thread.join()
    assert ticks >= 3


def test_other_paths_are_replaced_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    paths = [str(tmp_path / "a.safetensors"), str(tmp_path / "sub" / "b.safetensors")]
    Path(paths[0]).write_bytes(b"old")
    entries = [plain_entry(name, tensor) for name, tensor in constant(1).items()]
    assert write_shards(plan_shards(entries, paths), tensor_fill(), fsync=True) == paths
    helpers.assert_same_tensors(load_each(paths), constant(1))
    assert names_in(tmp_path) == {"a.safetensors", "sub"}
    assert names_in(tmp_path / "sub") == {"b.safetensors"}


def test_shards_in_another_order_are_a_set_and_part_of_one_is_none(tmp_path: Path) -> None:
    entries = [plain_entry(name, tensor) for name, tensor in constant(1).items()]
    paths = shard_paths(base_in(tmp_path), 12)[::-1]
    ParallelSaver().save(constant(0), base_in(tmp_path))
    written = write_shards(plan_shards(entries, paths), tensor_fill())
    assert [name.replace("-g2", "") for name in written] == paths
    assert read_metadata(written[0]).metadata["fst.shard.index"] == "0"
    assert value_of(tmp_path) == 1
    others = shard_paths(str(tmp_path / "part" / "model"), 3)[1:]
    assert write_shards(plan_shards(entries, others), tensor_fill()) == others
    assert names_in(tmp_path / "part") == names_of(others)


def test_a_set_is_validated(tmp_path: Path) -> None:
    metas = [read_metadata(path) for path in ParallelSaver(num_shards=3).save(constant(1), base_in(tmp_path))]
    others = [read_metadata(path) for path in ParallelSaver(num_shards=3).save(constant(1), str(tmp_path / "other"))]
    validate_shard_set(metas)
    for wrong, message in (
        ([], "a set of no shards"),
        (metas[:2], r"model-00001-of-00003\.safetensors: is shard 0 of 3, expected 0 of 2"),
        ([metas[0], metas[2], metas[1]], "is shard 2 of 3, expected 1 of 3"),
        ([metas[0], others[1], metas[2]], "shards of 2 saves"),
    ):
        with pytest.raises(ShardSetError, match=message) as caught:
            validate_shard_set(wrong)
        assert isinstance(caught.value, (penstock.Error, ValueError))
    penstock.save(constant(1), tmp_path / "plain.safetensors")
    with pytest.raises(ShardSetError, match=r"plain\.safetensors: its metadata does not say"):
        validate_shard_set([read_metadata(str(tmp_path / "plain.safetensors"))])


ENTRY = WriteEntry("x", DType.U8, [4], 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: shard_paths("model", 0), "num_shards must be positive, not 0"),
        (lambda: ParallelSaver(num_shards=0), "num_shards must be positive"),
        (lambda: ParallelSaver(num_threads=0), "num_threads must be positive"),
        (lambda: tensor_fill(0), "num_threads must be positive"),
        (lambda: plan_shards([], []), "at least one file"),
        (lambda: plan_shards([], ["a", "./a"]), r"\./a: is twice"),
        (lambda: plan_shards([], ["s3://bucket/a"]), "only local paths"),
        (lambda: plan_shards([], ["a"], header_align=12), "header_align must be a positive multiple of 8, not 12"),
        (lambda: plan_shards([ENTRY, ENTRY], ["a"]), "x: two tensors have this name"),
        (lambda: plan_shards([WriteEntry("__metadata__", DType.U8, [1], 1)], ["a"]), "reserved"),
        (lambda: plan_shards([WriteEntry(3, DType.U8, [1], 1)], ["a"]), "names are strings, not int"),  # type: ignore[arg-type]
        (lambda: plan_shards([WriteEntry("\ud800", DType.U8, [1], 1)], ["a"]), "can't be written as UTF-8"),
        (lambda: plan_shards([WriteEntry("x", DType.AUTO, [1], 1)], ["a"]), "x: AUTO is not a type"),
        (lambda: plan_shards([WriteEntry("x", DType.U8, [-1], 1)], ["a"]), "has a negative size"),
        (lambda: plan_shards([WriteEntry("x", DType.F4, [2, 3], 3)], ["a"]), "the last dimension must be even"),
        (lambda: plan_shards([WriteEntry("x", DType.F16, [3], 3)], ["a"]), r"F16 of shape \[3\] has 6 bytes, not 3"),
        (lambda: plan_shards([], ["a"], metadata={"a": 1}), "metadata: 'a': both key and value must be strings"),  # type: ignore[dict-item]
        (lambda: plan_shards([], ["a"], shard0_metadata={1: "a"}), "shard0_metadata: 1: both"),  # type: ignore[dict-item]
        (
            lambda: plan_shards([], ["a"], shard_metadata=lambda _: {"fst.shard.set": "a"}),
            r"shard_metadata: the key fst\.shard\.set is the saver's own",
        ),
        (lambda: plain_entry("x", np.ones(1)), "x: expected a torch.Tensor, not ndarray"),
        (lambda: plain_entry("x", [1], framework="numpy"), "x: expected an array of NumPy, not list"),
        (lambda: plain_entry("x", torch.ones(1), framework="jax"), "Unknown framework name: 'jax'"),
        (lambda: write_shards(plan_shards([ENTRY], ["a"]), None), "fill must be a function, not None"),  # type: ignore[arg-type]
        (lambda: write_shards([], through_maps, min_free_bytes=-1), "min_free_bytes must not be negative"),
        (lambda: write_shards([ShardPlan("a", [ENTRY], b"head")], through_maps), "a: x: expected a place of 4 bytes"),
        (
            lambda: write_shards([ShardPlan("a", [ENTRY], b"head", {"x": (2, 6)}, 8)], through_maps),
            'a: tensor "x" of 4 bytes at offset 2 does not fit between byte 4 and the end, 8',
        ),
        (
            lambda: save_sharded([WriteEntry("x", DType.U8, [4], 4, torch.ones(4))], "model"),
            'tensor "x" has 16 bytes, and its place in the file 4',
        ),
    ],
)
def test_bad_input_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(penstock.ArgumentError, match=message) as caught:
        call()
    assert isinstance(caught.value, ValueError)
    assert len(str(caught.value).splitlines()) == 1
    assert names_in(tmp_path) == set()


def test_a_folder_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(penstock.IoError, match="file/sub: cannot be made: Not a directory"):
        ParallelSaver().save(constant(1), str(tmp_path / "file" / "sub" / "model"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with helpers.mounted_disk(tmp_path / "disk", "4m") as folder:
        yield folder


@FILLS
def test_a_full_disk_is_an_error_before_anything_is_written(small_disk: Path, fill: Any, no_leaks: None) -> None:
    ParallelSaver(num_shards=2, fill=fill).save(constant(1), base_in(small_disk))
    before = names_in(small_disk)
    called = False

    def watched(work: Any) -> None:
        nonlocal called
        called = True

    for chosen in (None, watched) if fill is None else (watched,):
        with pytest.raises(penstock.NoSpaceError, match="model-") as caught:
            ParallelSaver(fill=chosen).save(constant(2, nbytes=2**21), base_in(small_disk))
        assert isinstance(caught.value, OSError)
        assert caught.value.errno == 28
    assert not called
    assert names_in(small_disk) == before
    assert value_of(small_disk) == 1


def test_space_is_left_to_others(small_disk: Path) -> None:
    saver = ParallelSaver(num_shards=2, min_free_bytes=2**21)
    with pytest.raises(penstock.NoSpaceError, match=r"2097152 are to stay free, the filesystem has \d+ available"):
        saver.save(constant(1, nbytes=2**20), base_in(small_disk))
    assert names_in(small_disk) == set()
    saver.save(constant(1), base_in(small_disk))
    assert value_of(small_disk) == 1


def test_a_filesystem_that_can_not_reserve_is_filled_before_it_is_mapped(tmp_path: Path) -> None:
    """ext2 has no fallocate: a hole that is written to through a map would be a SIGBUS on a full disk."""
    image, folder = tmp_path / "image", tmp_path / "disk"
    image.write_bytes(bytes(2**23))
    folder.mkdir()
    commands = (["mkfs.ext2", "-q", str(image)], ["mount", "-o", "loop", str(image), str(folder)])
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip(f"{command[0]} is not installed")
        if done.returncode != 0:
            pytest.skip(f"no ext2 can be mounted here: {done.stderr.strip()}")
    try:
        blocks = []

        def fill(work: list[tuple[memoryview, WriteEntry]]) -> None:
            space = os.statvfs(folder)
            blocks.append(space.f_bavail * space.f_frsize)
            tensor_fill()(work)

        free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
        ParallelSaver(num_shards=2, fill=fill).save(constant(1, nbytes=2**20), base_in(folder))
        assert free - blocks[0] >= 3 * 2**20
        assert value_of(folder) == 1
        with pytest.raises(penstock.NoSpaceError):
            ParallelSaver(num_shards=2, fill=fill).save(constant(2, nbytes=2**21), base_in(folder))
        assert len(blocks) == 1
        assert value_of(folder) == 1
    finally:
        subprocess.run(["umount", str(folder)], check=True)


CHILD = """
import sys, numpy
from penstock.fastsafetensors.saver import ParallelSaver, tensor_fill

base, kind = sys.argv[1:]
fill = None if kind == "engine" else lambda work: tensor_fill(framework="numpy")(work)
print("ready", flush=True)
for value in range(2, 100000):
    tensors = {f"t{number}": numpy.full(1024, float(value), "float32") for number in range(3 + value % 2)}
    saver = ParallelSaver(num_shards=2 + value % 3, framework="numpy", fill=fill, fsync=value % 2 == 0)
    saver.save(tensors, base)
"""


@pytest.mark.parametrize("kind", ["engine", "maps"])
def test_a_save_that_is_killed_at_any_moment_leaves_a_whole_set(tmp_path: Path, kind: str) -> None:
    random = np.random.default_rng(1)
    for _ in range(12):
        ParallelSaver(num_shards=2).save(constant(1), base_in(tmp_path))
        child = subprocess.Popen([sys.executable, "-c", CHILD, base_in(tmp_path), kind], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(float(random.uniform(0, 0.15)))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        value = value_of(tmp_path)
        assert len(penstock.load(tmp_path)) == 3 + int(value != 1 and value % 2)
        index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
        assert all((tmp_path / name).exists() for name in index["weight_map"].values())
    paths = ParallelSaver(num_shards=3).save(constant(5), base_in(tmp_path))
    assert names_in(tmp_path) == {*names_of(paths), "model.safetensors.index.json"}


@pytest.mark.parametrize("kind", ["engine", "maps"])
def test_an_interrupt_leaves_what_was_there(tmp_path: Path, kind: str) -> None:
    script = """
        import os, signal, sys, threading, time, torch
        from penstock.fastsafetensors.saver import ParallelSaver, tensor_fill

        base, kind = sys.argv[1:]
        tensors = {f"t{number}": torch.zeros(2**25, dtype=torch.uint8) for number in range(16)}
        ParallelSaver(num_shards=2).save({"x": torch.ones(1)}, base)
        before = sorted(os.listdir(os.path.dirname(base)))

        def fill(work):
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):
                time.sleep(0.01)

        def written():
            return int(dict(line.split(": ") for line in open("/proc/self/io"))["write_bytes"])

        def interrupt():
            start = written()
            while written() < start + 2**21:
                time.sleep(0.0005)
            os.kill(os.getpid(), signal.SIGINT)

        if kind == "engine":
            threading.Thread(target=interrupt, daemon=True).start()
        try:
            ParallelSaver(num_shards=4, fill=None if kind == "engine" else fill, fsync=True).save(tensors, base)
            print("saved")
        except KeyboardInterrupt:
            print("interrupted", sorted(os.listdir(os.path.dirname(base))) == before)
        print(sum("model" in os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if n != "9999"
                  and os.path.exists(f"/proc/self/fd/{n}")))
    """
    assert helpers.run_python(script, base_in(tmp_path), kind).stdout.splitlines() == ["interrupted True", "0"]
