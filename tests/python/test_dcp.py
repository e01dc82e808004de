"""penstock.dcp in one process: what is saved and loaded, what is refused, and what stays safe."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import warnings
from collections import Counter, OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import penstock
import penstock.dcp
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from penstock.dcp import Stager, StorageReader, StorageWriter, _metadata
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

EVERY_TYPE = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.bool,
    torch.complex64,
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is ")
        yield


def make_state() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    wide = torch.randn(64, 1000, generator=generator)
    model: dict[str, Any] = {
        "large": torch.randn(1000, 1100, generator=generator),
        "turned": wide.t(),
        "every other": wide[:, ::2],
        "number": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "parameter": torch.nn.Parameter(torch.ones(3)),
    }
    model |= {str(dtype): torch.arange(12).reshape(3, 4).to(dtype) for dtype in EVERY_TYPE}
    model["tied"] = model["large"]
    return {"model": model, "step": 7, "rate": 0.5, "name": "run", "none": None, "state": ((1, 2), b"x", {3})}


def emptied(value: Any) -> Any:
    """The same structure, to be loaded into."""
    if isinstance(value, dict):
        return {key: emptied(each) for key, each in value.items()}
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else "not loaded"


def assert_same(actual: Any, expected: Any, where: str = "") -> None:
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key in expected:
            assert_same(actual[key], expected[key], f"{where}/{key}")
    elif isinstance(expected, torch.Tensor):
        assert helpers.same(actual, expected.detach()), where
    else:
        assert type(actual) is type(expected), where
        assert actual == expected, where


def load(path: Path, like: Any, **arguments: Any) -> Any:
    state = emptied(like)
    dcp.load(state, storage_reader=StorageReader(path, **arguments))
    return state


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dcp") / "step-1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(make_state(), storage_writer=StorageWriter(path))
    return path


@pytest.mark.parametrize("verify", [True, False, "all"])
@pytest.mark.parametrize("cache", ["auto", "direct", "buffered"])
def test_what_is_saved_is_loaded(saved: Path, cache: str, verify: bool | str) -> None:
    assert_same(load(saved, make_state(), cache=cache, verify=verify), make_state())


def test_files_are_ordinary_safetensors(saved: Path) -> None:
    assert sorted(os.listdir(saved)) == [
        "dcp.json",
        "model-00001-of-00001.safetensors",
        "model.safetensors.index.json",
        "objects-00001-of-00001.pickles",
    ]
    state = make_state()["model"]
    loaded = safetensors.torch.load_file(saved / "model-00001-of-00001.safetensors")
    assert_same(loaded, {f"model.{name}": tensor for name, tensor in state.items()})
    assert_same(dict(penstock.load(saved)), loaded)
    assert penstock.verify(saved).had_checksums


def test_torch_reads_what_was_saved(saved: Path) -> None:
    state = {f"model.{name}": torch.zeros_like(tensor) for name, tensor in make_state()["model"].items()}
    del state["model.torch.complex64"], state["model.torch.uint16"]  # which its table of types lacks
    dcp.load(state, storage_reader=HuggingFaceStorageReader(str(saved)))
    assert torch.equal(state["model.large"], make_state()["model"]["large"])


def test_a_model_of_transformers_is_loaded_from_a_step(tmp_path: Path) -> None:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=48, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    model = transformers.LlamaForCausalLM(config)
    dcp.save(model.state_dict(), storage_writer=StorageWriter(tmp_path / "step"))
    config.save_pretrained(tmp_path / "step")
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "step").state_dict()
    assert_same(dict(found), dict(model.state_dict()))


def test_a_state_is_made_anew_from_metadata_alone(saved: Path) -> None:
    state = _load_state_dict_from_keys(storage_reader=StorageReader(saved))
    assert_same(state["model"]["large"], make_state()["model"]["large"])
    assert state["state"] == ((1, 2), b"x", {3})


def test_other_types_and_strides_of_targets_are_filled(saved: Path) -> None:
    original = make_state()["model"]
    half = torch.zeros(1000, 1100, dtype=torch.float16)
    padded = torch.zeros(1000, 2000)
    turned = torch.zeros(64, 1000).t()
    counted = torch.zeros(3, 4, dtype=torch.float32)
    state = {"model": {"large": half, "tied": padded[:, 300:1400], "turned": turned, "torch.int64": counted}}
    before = half._version
    dcp.load(state, storage_reader=StorageReader(saved))
    assert torch.equal(half, original["large"].half())
    assert torch.equal(padded[:, 300:1400], original["large"])
    assert padded[:, :300].count_nonzero() == padded[:, 1400:].count_nonzero() == 0
    assert torch.equal(turned, original["turned"])
    assert torch.equal(counted, original["torch.int64"].float())
    assert half._version > before


def test_planners_of_others_are_asked(tmp_path: Path) -> None:
    class Halving(dcp.DefaultSavePlanner):
        def transform_object(self, write_item: Any, object: Any) -> Any:
            return object / 2 if isinstance(object, torch.Tensor) else super().transform_object(write_item, object)

    class Committed(dcp.DefaultLoadPlanner):
        def commit_tensor(self, read_item: Any, tensor: torch.Tensor) -> None:
            tensor += 1

    state = {"a": torch.full((3, 5), 8.0), "b": "text"}
    dcp.save(state, storage_writer=StorageWriter(tmp_path / "flat"), planner=Halving(flatten_state_dict=False))
    found = {"a": torch.zeros(3, 5), "b": None}
    dcp.load(found, storage_reader=StorageReader(tmp_path / "flat"), planner=Committed(False, False))
    assert torch.equal(found["a"], torch.full((3, 5), 5.0))
    assert found["b"] == "text"


def test_checkpoint_id_takes_the_place_of_the_path(tmp_path: Path) -> None:
    writer, reader = StorageWriter(tmp_path / "a"), StorageReader(tmp_path / "a")
    for step in (1, 2):
        dcp.save({"x": torch.full((4,), step)}, checkpoint_id=tmp_path / str(step), storage_writer=writer)
    for step in (1, 2):
        state = {"x": torch.zeros(4, dtype=torch.int64)}
        dcp.load(state, checkpoint_id=str(tmp_path / str(step)), storage_reader=reader)
        assert state["x"].tolist() == [step] * 4
    assert sorted(os.listdir(tmp_path)) == ["1", "2"]


def test_a_checkpoint_is_replaced_by_one_step(tmp_path: Path) -> None:
    path = tmp_path / "step"
    dcp.save({"x": torch.zeros(4)}, checkpoint_id=path)  # torch's
    for value in (1.0, 2.0):
        dcp.save({"x": torch.full((4,), value)}, storage_writer=StorageWriter(path))
        assert load(path, {"x": torch.zeros(4)})["x"].tolist() == [value] * 4
        assert os.listdir(tmp_path) == ["step"]
    with pytest.raises(dcp.api.CheckpointException, match="overwrite=True replaces the checkpoint"):
        dcp.save({"x": torch.zeros(4)}, storage_writer=StorageWriter(path, overwrite=False))


def test_what_is_no_checkpoint_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("a file")
    with pytest.raises(dcp.api.CheckpointException, match=r"because it holds 'thesis.tex', which is none"):
        dcp.save({"x": torch.zeros(4)}, storage_writer=StorageWriter(tmp_path / "home"))
    with pytest.raises(dcp.api.CheckpointException, match="is a file, and no directory"):
        dcp.save({"x": torch.zeros(4)}, storage_writer=StorageWriter(tmp_path / "file"))
    assert (tmp_path / "home" / "thesis.tex").read_text() == "years of work"
    assert sorted(os.listdir(tmp_path)) == ["file", "home"]


class Marker:
    """Executed by whoever unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_pickles_are_never_executed(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    state = {"x": torch.zeros(4), "harmful": Marker(mark)}
    dcp.save(state, storage_writer=StorageWriter(tmp_path / "ours"))
    dcp.save(state, checkpoint_id=tmp_path / "torch")
    for name in ("ours", "torch"):
        with pytest.raises(dcp.api.CheckpointException, match=rf"{name}: 'harmful': .*mkdir"):
            load(tmp_path / name, {"x": torch.zeros(4), "harmful": None})
        assert not mark.exists()
        found = {"x": torch.ones(4)}  # the rest can be had
        dcp.load(found, storage_reader=StorageReader(tmp_path / name))
        assert found["x"].count_nonzero() == 0
    load(tmp_path / "ours", {"harmful": None}, trust_pickles=True)
    assert mark.exists(), "the pickle does nothing: this test shows nothing"


def test_metadata_of_torch_is_never_executed(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    dcp.save({"x": torch.zeros(4)}, checkpoint_id=tmp_path / "torch")
    (tmp_path / "torch" / ".metadata").write_bytes(pickle.dumps(Metadata({}, planner_data=Marker(mark))))
    with pytest.raises(dcp.api.CheckpointException, match=r"\.metadata: posix\.mkdir is not of torch's metadata"):
        load(tmp_path / "torch", {"x": torch.zeros(4)})
    assert not mark.exists()


class Allowed:
    def __init__(self) -> None:
        self.value = 5


def test_classes_that_the_caller_allows_are_made(tmp_path: Path) -> None:
    dcp.save({"x": Allowed()}, storage_writer=StorageWriter(tmp_path / "step"))
    with pytest.raises(dcp.api.CheckpointException, match="add_safe_globals"):
        load(tmp_path / "step", {"x": None})
    with torch.serialization.safe_globals([Allowed]):
        assert load(tmp_path / "step", {"x": None})["x"].value == 5


def test_values_of_many_classes_are_data(tmp_path: Path) -> None:
    values = {
        "ordered": OrderedDict(b=1),
        "counter": Counter("aab"),
        "array": np.arange(5, dtype=np.float32),
        "scalar": np.float64(2.5),
        "dtype": torch.bfloat16,
        "size": torch.Size([2, 3]),
        "big": 10**40,
        "complex": 1 + 2j,
        "text": "ü" * 1000,
    }
    dcp.save({"all": [values]}, storage_writer=StorageWriter(tmp_path / "step"), planner=dcp.DefaultSavePlanner(False))
    found: dict[str, Any] = {"all": None}
    dcp.load(found, storage_reader=StorageReader(tmp_path / "step"), planner=dcp.DefaultLoadPlanner(False, False))
    loaded = found["all"][0]
    assert (loaded.pop("array") == values.pop("array")).all()
    assert_same(loaded, values)


def test_flipped_bits_are_found_wherever_they_are(saved: Path, tmp_path: Path) -> None:
    for name in ("model-00001-of-00001.safetensors", "objects-00001-of-00001.pickles"):
        copy = tmp_path / name
        copy.mkdir()
        for path in saved.iterdir():
            (copy / path.name).write_bytes(path.read_bytes())
        data = bytearray((copy / name).read_bytes())
        data[-3] ^= 16
        (copy / name).write_bytes(data)
        with pytest.raises(dcp.api.CheckpointException, match=rf"{name}: tensor .* is corrupt: its CRC-32C is"):
            load(copy, make_state())


def test_without_checksums_nothing_is_checked(tmp_path: Path) -> None:
    dcp.save({"x": torch.zeros(4)}, storage_writer=StorageWriter(tmp_path / "step", checksums=False))
    assert load(tmp_path / "step", {"x": torch.ones(4)})["x"].tolist() == [0] * 4
    assert "penstock.crc32c" not in penstock.open(tmp_path / "step").metadata


def _broken(document: dict[str, Any], *path: Any, value: Any) -> dict[str, Any]:
    changed = json.loads(json.dumps(document))
    del changed["crc32"]  # who edits it takes that away
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


CHUNK = ("tensors", "x", "chunks", 0)
BROKEN = {
    "\"format\" is 'other'": (("format",), "other"),
    '"version" is 2; this penstock reads 1': (("version",), 2),
    "'../x' is not a plain file name": (("files", 0), "../x"),
    "'/etc/x' is not a plain file name": (("files", 0), "/etc/x"),
    "unknown dtype 'F99'": (("tensors", "x", "dtype"), "F99"),
    "tensor 'x' is list, and no dict": (("tensors", "x"), []),
    "the chunk [4] at [1] is not within [4]": ((*CHUNK, "offsets"), [1]),
    "5 is none of 2 files": ((*CHUNK, "file"), 5),
    "True is none of 2 files": ((*CHUNK, "file"), True),
    "its chunks is NoneType, and no list": (("tensors", "x", "chunks"), None),
    "the shape of a chunk is [-4]": ((*CHUNK, "shape"), [-4]),
    "'y' is a tensor and an object": (("tensors", "y"), {"dtype": "F32", "shape": [0], "chunks": []}),
    "'x' has no path": (("paths",), {"y": ["y"]}),
    "the path of 'x' is not one of keys and numbers": (("paths", "x"), [[]]),
    "'x': has shape [4], and [2] by the metadata": (("tensors", "x"), None),
}


@pytest.mark.parametrize("problem", BROKEN)
def test_broken_metadata_is_named(tmp_path: Path, problem: str) -> None:
    path = tmp_path / "step"
    dcp.save({"x": torch.zeros(4), "y": 1}, storage_writer=StorageWriter(path))
    document = json.loads((path / "dcp.json").read_text())
    place, value = BROKEN[problem]
    if value is None and place == ("tensors", "x"):
        value = {"dtype": "F32", "shape": [2], "chunks": [{"file": 0, "offsets": [0], "shape": [2]}]}
    (path / "dcp.json").write_text(json.dumps(_broken(document, *place, value=value)))
    size = value["shape"][0] if place == ("tensors", "x") and isinstance(value, dict) else 4
    with pytest.raises(dcp.api.CheckpointException) as raised:
        load(path, {"x": torch.zeros(size), "y": None})
    assert problem in str(raised.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "\ufffe", "[" * 100_000, '{"format": "penstock.dcp"}'])
def test_metadata_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "dcp.json").write_text(text, errors="surrogatepass")
    with pytest.raises(penstock.FormatError, match=r"dcp\.json: "):
        StorageReader(tmp_path).read_metadata()


def test_directories_that_hold_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(penstock.NotFoundError, match="has no dcp.json, no .metadata and no"):
        StorageReader(tmp_path).read_metadata()
    with pytest.raises(penstock.NotFoundError, match="the directory does not exist"):
        StorageReader(tmp_path / "missing").read_metadata()


def test_a_description_that_cannot_be_asked_about_keeps_no_descriptor(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> os.stat_result:
        raise OSError(errno.ENOMEM, "no memory")

    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patched:
        patched.setattr("penstock.dcp._metadata.os.fstat", fail)
        with pytest.raises(OSError, match="no memory"):
            _metadata.read_small_file(saved / "dcp.json", 1 << 20)
    assert os.listdir("/proc/self/fd") == before


def test_a_missing_file_is_named(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "dcp.json").write_bytes((saved / "dcp.json").read_bytes())
    with pytest.raises(dcp.api.CheckpointException, match=r"model-00001-of-00001\.safetensors"):
        load(tmp_path, make_state())


def test_arguments_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(penstock.ArgumentError, match='verify must be True, False or "all", not 3'):
        StorageReader(tmp_path, verify=3)  # type: ignore[arg-type]
    with pytest.raises(penstock.ArgumentError, match="cache"):
        StorageReader(tmp_path, cache="warm")
    with pytest.raises(penstock.ArgumentError, match="only local paths"):
        StorageWriter("s3://bucket/step")
    assert not StorageWriter.validate_checkpoint_id("s3://bucket/step")
    assert StorageWriter.validate_checkpoint_id(tmp_path / "a" / "b")
    assert StorageReader.validate_checkpoint_id(tmp_path)
    assert not StorageReader.validate_checkpoint_id(tmp_path / "missing")
    with pytest.raises(penstock.UnsupportedError, match="use_collectives=False"):
        dcp.save({"x": torch.ones(2)}, storage_writer=StorageWriter(tmp_path / "s"), use_collectives=False)


def test_torch_formats_are_read(tmp_path: Path) -> None:
    state = make_state()
    dcp.save(state, checkpoint_id=tmp_path / "torch")
    assert_same(load(tmp_path / "torch", state), state)
    writer = dcp.FileSystemWriter(tmp_path / "threads", thread_count=3, single_file_per_rank=False)
    dcp.save(state, storage_writer=writer)
    assert_same(load(tmp_path / "threads", state), state)
    tensors = {name: tensor for name, tensor in state["model"].items() if name != "tied"}
    penstock.save(tensors, tmp_path / "plain" / "model.safetensors") if (tmp_path / "plain").mkdir() is None else None
    assert_same(load(tmp_path / "plain", tensors), tensors)


def test_truncated_files_of_torch_are_refused(tmp_path: Path) -> None:
    dcp.save({"x": torch.ones(1000), "y": 3}, checkpoint_id=tmp_path)
    file = tmp_path / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(dcp.api.CheckpointException, match="__0_0.distcp: .* past its end"):
        load(tmp_path, {"x": torch.ones(1000)})


def test_background_saves_have_the_values_of_their_call(tmp_path: Path) -> None:
    stager = Stager()
    stager.reserve(make_state())
    for step in range(3):
        state = make_state()
        state["model"]["large"] += step
        future = dcp.async_save(state, storage_writer=StorageWriter(tmp_path / str(step), stager=stager))
        state["model"]["large"].zero_()
        state["model"]["parameter"].data.zero_()
        state["state"] = None
        future.result()
        expected = make_state()
        expected["model"]["large"] += step
        assert_same(load(tmp_path / str(step), expected), expected)


def test_copies_keep_structure_classes_and_ties() -> None:
    stager = Stager()
    state: dict[str, Any] = make_state()
    state["ordered"] = OrderedDict(a=torch.ones(2), b=[torch.zeros(1), (torch.ones(1), 3)])
    state["sparse"] = torch.eye(3).to_sparse()
    copy = stager.stage(state)
    assert_same(copy["model"], state["model"])
    assert copy["model"]["tied"] is copy["model"]["large"] is not state["model"]["large"]
    assert type(copy["ordered"]) is OrderedDict
    assert copy["ordered"]["b"][1] == (torch.ones(1), 3)
    assert torch.equal(copy["sparse"].to_dense(), torch.eye(3))
    for name, tensor in copy["model"].items():
        assert tensor.untyped_storage().nbytes() == tensor.nbytes, name
        assert not tensor.requires_grad


def test_memory_of_copies_is_used_again_when_they_are_gone() -> None:
    stager = Stager()
    state = {"a": torch.ones(1 << 20), "b": torch.zeros(1000)}
    first = stager.stage(state)
    second = stager.stage(state)
    addresses = [copy["a"].data_ptr() for copy in (first, second)]
    assert addresses[0] != addresses[1]
    kept = second["b"]
    del first, second
    third = stager.stage(state)
    assert third["a"].data_ptr() == addresses[0], "a tensor of the second copy is alive, and its memory is not free"
    assert torch.equal(kept, state["b"])
    del third, kept
    stager.close()


def test_writers_and_stagers_go_to_other_processes(tmp_path: Path) -> None:
    writer = pickle.loads(pickle.dumps(StorageWriter(tmp_path / "step", stager=Stager())))
    dcp.save({"x": torch.arange(5)}, storage_writer=writer)
    assert load(tmp_path / "step", {"x": torch.zeros(5, dtype=torch.int64)})["x"].tolist() == [0, 1, 2, 3, 4]


def test_failed_saves_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(dcp.DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> torch.Tensor | io.BytesIO:
            raise ValueError("no data")

    writer = StorageWriter(tmp_path / "step")
    with pytest.raises(dcp.api.CheckpointException, match="no data"):
        dcp.save({"x": torch.ones(3)}, storage_writer=writer, planner=Failing())
    writer.close()
    assert os.listdir(tmp_path) == []
    with pytest.raises(dcp.api.CheckpointException, match="safetensors has no C128"):
        dcp.save({"x": torch.ones(3, dtype=torch.complex128)}, storage_writer=StorageWriter(tmp_path / "step"))
    assert os.listdir(tmp_path) == []
