"""penstock.fastpersist.serialization: every option of torch.save and torch.load, and what goes wrong."""

from __future__ import annotations

import io
import os
import pickle
import resource
import struct
import sys
import threading
import time
import types
import weakref
import zipfile
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import penstock
import pytest
import torch
from penstock.fastpersist import _fallback, serialization
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.serialization import config
from torch_objects import FORMATS, Point, adam_state, save_both, shared_tensors
from trees import assert_same_trees

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # torch uses it itself


@FORMATS
def test_objects_are_loaded_by_torch_when_that_is_asked_for(zipped: bool, tmp_path: Path) -> None:
    obj = {"point": Point(3), "x": torch.ones(2)}
    ours, theirs = save_both(obj, tmp_path, _use_new_zipfile_serialization=zipped)
    assert ours == theirs
    path = tmp_path / "ours" / "model.pt"
    stats: dict[str, Any] = {}
    assert_same_trees(serialization.load(path, weights_only=False, stats=stats), obj)
    assert stats["path"] == "torch"
    assert "Point" in stats["reason"]
    for weights_only in (None, True):
        with pytest.raises(pickle.UnpicklingError, match="Point") as ours_refused:
            serialization.load(path, weights_only=weights_only)
        with pytest.raises(pickle.UnpicklingError, match="Point") as theirs_refused:
            torch.load(path)
        assert str(ours_refused.value) == str(theirs_refused.value)


def test_allowed_classes_load(tmp_path: Path) -> None:
    serialization.save({"point": Point(3)}, tmp_path / "a.pt")
    with torch.serialization.safe_globals([Point]):
        assert serialization.load(tmp_path / "a.pt") == {"point": Point(3)}


def test_nothing_is_executed(tmp_path: Path) -> None:
    class Gadget:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "executed"),)

    torch.save({"x": Gadget()}, tmp_path / "a.pt")
    for weights_only in (None, True):
        with pytest.raises(pickle.UnpicklingError):
            serialization.load(tmp_path / "a.pt", weights_only=weights_only)
    assert not (tmp_path / "executed").exists()


def test_torchs_switch_for_trusted_files_is_honoured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(Point(1), tmp_path / "a.pt")
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    with pytest.warns(UserWarning, match="TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"):
        assert serialization.load(tmp_path / "a.pt") == Point(1)


@FORMATS
@pytest.mark.parametrize(
    "map_location",
    [
        None,
        "cpu",
        torch.device("cpu"),
        {"cpu": "cpu"},
        {"elsewhere": "cpu"},
        lambda storage, location: storage,
        lambda storage, location: None,
        lambda storage, location: storage.clone(),
        {"cpu": "meta"},
        "meta",
        torch.device("meta"),
    ],
    ids=[
        "none",
        "str",
        "device",
        "dict",
        "other dict",
        "same",
        "default",
        "moved",
        "dict to meta",
        "meta",
        "meta device",
    ],
)
def test_map_location_is_torchs(map_location: Any, zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save(shared_tensors(), path, _use_new_zipfile_serialization=zipped)
    assert_same_trees(serialization.load(path, map_location), torch.load(path, map_location))


def test_a_callable_map_location_is_given_each_storage_once(tmp_path: Path) -> None:
    torch.save({**shared_tensors(), "other": torch.ones(2)}, tmp_path / "a.pt")
    calls: dict[Any, list[tuple[str, int, str]]] = {serialization.load: [], torch.load: []}
    for load, seen in calls.items():
        load(
            tmp_path / "a.pt",
            lambda storage, location, seen=seen: seen.append((type(storage).__name__, storage.nbytes(), location)),
        )
    assert (
        calls[serialization.load] == calls[torch.load] == [("UntypedStorage", 96, "cpu"), ("UntypedStorage", 8, "cpu")]
    )


def rename_location(path: Path, location: str) -> None:
    """A file as if its storages had been elsewhere."""
    data = path.read_bytes()
    assert len(location) == 6
    old = b"X\x03\x00\x00\x00cpu"
    assert data.count(old) == 1
    pickle_end = data.index(b".PK\x07\x08") if data[:2] == b"PK" else None
    assert pickle_end is None
    path.write_bytes(data.replace(old, b"X\x06\x00\x00\x00" + location.encode()))


def test_a_device_that_is_not_there_is_torchs_error(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save(torch.ones(3), path, _use_new_zipfile_serialization=False)
    rename_location(path, "cuda:0")
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(RuntimeError, match="Attempting to deserialize object on a CUDA device"):
        serialization.load(path)
    for map_location in ("cpu", {"cuda:0": "cpu"}, lambda storage, location: storage):
        assert_same_trees(serialization.load(path, map_location), torch.ones(3))


def test_meta_reads_no_storage(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    tree = {"x": torch.ones(2**20), "y": torch.ones(2**18)}
    torch.save(tree, path)
    expected = torch.load(path, "meta")
    penstock._core.drop_page_cache(path)
    before = penstock.open(path)._reader.resident_bytes()
    loaded = serialization.load(path, "meta")
    assert penstock.open(path)._reader.resident_bytes() - before < 2**20
    assert_same_trees(loaded, expected)
    for name in tree:
        offset = loaded[name].untyped_storage()._checkpoint_offset
        assert offset == expected[name].untyped_storage()._checkpoint_offset
        assert loaded[name].untyped_storage().nbytes() == tree[name].nbytes
        assert path.read_bytes()[offset : offset + 4] == struct.pack("<f", 1)


def test_mmap_maps(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save(shared_tensors(), path)
    stats: dict[str, Any] = {}
    loaded = serialization.load(path, mmap=True, stats=stats)
    assert stats["path"] == "mapped"
    assert_same_trees(loaded, torch.load(path, mmap=True))
    loaded["base"].fill_(5)  # privately
    assert torch.load(path)["base"][0] == 0
    with config.patch("load.mmap", True):
        stats.clear()
        serialization.load(path, stats=stats)
        assert stats["path"] == "mapped"
    torch.save(1, path, _use_new_zipfile_serialization=False)
    with pytest.raises(RuntimeError, match="mmap can only be used"):
        serialization.load(path, mmap=True)


@FORMATS
def test_file_objects_are_torchs(zipped: bool, tmp_path: Path) -> None:
    tree = adam_state()
    ours, theirs = io.BytesIO(), io.BytesIO()
    stats: dict[str, Any] = {}
    serialization.save(tree, ours, _use_new_zipfile_serialization=zipped, stats=stats)
    torch.save(tree, theirs, _use_new_zipfile_serialization=zipped)
    assert ours.getvalue() == theirs.getvalue()
    assert stats == {"path": "torch", "reason": "a BytesIO is not a path"}
    ours.seek(0)
    assert_same_trees(serialization.load(ours), tree)
    with open(tmp_path / "a.pt", "wb") as file:
        serialization.save(tree, file, _use_new_zipfile_serialization=zipped)
    with open(tmp_path / "a.pt", "rb") as file:
        assert_same_trees(serialization.load(file), tree)


def test_paths_of_every_kind_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("plain.pt", tmp_path / "modèle.pt", "no_suffix", "two.dots.pt"):
        serialization.save([1, torch.ones(2)], path, classic=True)
        ours = Path(path).read_bytes()
        torch.save([1, torch.ones(2)], path)
        assert ours == Path(path).read_bytes(), path
        assert_same_trees(serialization.load(path), [1, torch.ones(2)])
    with pytest.raises(AttributeError):
        serialization.save(1, 3)
    with pytest.raises(penstock.NotFoundError):
        serialization.load(tmp_path / "missing.pt")


class Shouting(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        return (str.upper, ("loud",)) if isinstance(value, Point) else NotImplemented


def test_custom_pickle_modules_are_used(tmp_path: Path) -> None:
    module: Any = types.ModuleType("loud")
    module.__dict__.update(vars(pickle))
    module.Pickler = Shouting
    obj = {"point": Point(1), "x": torch.ones(2)}
    ours, theirs = save_both(obj, tmp_path, pickle_module=module)
    assert ours == theirs
    path = tmp_path / "ours" / "model.pt"
    assert_same_trees(serialization.load(path, pickle_module=module), {"point": "LOUD", "x": torch.ones(2)})
    with pytest.raises(RuntimeError, match="explicit pickle_module"):
        serialization.load(path, pickle_module=module, weights_only=True)
    assert serialization.load(path, weights_only=False, encoding="latin1")["point"] == "LOUD"


def test_saves_without_data_are_torchs(tmp_path: Path) -> None:
    tree = {"x": torch.ones(1000)}
    stats: dict[str, Any] = {}
    with torch.serialization.skip_data():
        serialization.save(tree, tmp_path / "model.pt", stats=stats)
        loaded = serialization.load(tmp_path / "model.pt")
    assert stats["reason"] == "the data is to be skipped"
    assert loaded["x"].shape == (1000,)


def test_the_byte_order_can_be_left_to_torch(tmp_path: Path) -> None:
    ours, theirs = save_both({"x": torch.ones(3)}, tmp_path, _disable_byteorder_record=True)
    assert ours == theirs
    assert_same_trees(serialization.load(tmp_path / "ours" / "model.pt"), {"x": torch.ones(3)})


def test_fake_tensors_are_torchs(tmp_path: Path) -> None:
    torch.save({"x": torch.ones(4)}, tmp_path / "model.pt")
    with FakeTensorMode():
        loaded = serialization.load(tmp_path / "model.pt")
        expected = torch.load(tmp_path / "model.pt")
        assert type(loaded["x"]) is type(expected["x"])
        assert type(loaded["x"]).__name__ == "FakeTensor"
        with torch.serialization.skip_data(materialize_fake_tensors=True):
            serialization.save(loaded, tmp_path / "fake.pt")
    assert_same_trees(torch.load(tmp_path / "fake.pt", "meta"), torch.load(tmp_path / "model.pt", "meta"))


def test_types_that_share_memory_are_refused(tmp_path: Path) -> None:
    tensor = torch.ones(4)
    (tmp_path / "a.pt").write_bytes(b"old")
    for zipped in (True, False):
        with pytest.raises(penstock.ArgumentError, match="different types over the same memory"):
            serialization.save(
                [tensor, tensor.view(torch.int32)], tmp_path / "a.pt", _use_new_zipfile_serialization=zipped
            )
    assert (tmp_path / "a.pt").read_bytes() == b"old"


def test_numpy_scalars_load_without_being_allowed(tmp_path: Path) -> None:
    plain = {"loss": np.float32(0.5), "flag": np.bool_(True), "text": np.str_("abc"), "count": np.int64(-7)}
    torch.save(plain, tmp_path / "a.pt")
    assert_same_trees(serialization.load(tmp_path / "a.pt"), plain)
    dates = {"when": np.datetime64("2020-01-01"), "array": np.arange(3)}
    torch.save(dates, tmp_path / "a.pt")
    loaded = serialization.load(tmp_path / "a.pt", weights_only=False)
    assert loaded["when"] == dates["when"]
    assert loaded["array"].tolist() == [0, 1, 2]


def test_text_that_is_no_utf8_loads(tmp_path: Path) -> None:
    torch.save({"half": "\ud800"}, tmp_path / "a.pt")
    assert serialization.load(tmp_path / "a.pt") == {"half": "\ud800"}


def test_big_endian_files_are_torchs(tmp_path: Path) -> None:
    path = tmp_path / "big.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        torch.save({"x": torch.arange(3, dtype=torch.int32)}, tmp_path / "little.pt")
        with zipfile.ZipFile(tmp_path / "little.pt") as little:
            archive.writestr("big/data.pkl", little.read("little/data.pkl"))
        archive.writestr("big/byteorder", b"big")
        archive.writestr("big/data/0", struct.pack(">3i", 0, 1, 2))
        archive.writestr("big/version", b"3\n")
    assert_same_trees(serialization.load(path), {"x": torch.arange(3, dtype=torch.int32)})


def test_compressed_files_are_torchs(tmp_path: Path) -> None:
    torch.save({"x": torch.ones(100)}, tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as plain, zipfile.ZipFile(tmp_path / "small.pt", "w") as small:
        for name in plain.namelist():
            small.writestr(name, plain.read(name), zipfile.ZIP_DEFLATED)
    assert_same_trees(serialization.load(tmp_path / "small.pt"), {"x": torch.ones(100)})


@FORMATS
def test_damage_is_never_left_to_torch(zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.pt"
    torch.save({"x": torch.ones(1000), "y": torch.zeros(3)}, path, _use_new_zipfile_serialization=zipped)
    data = path.read_bytes()
    monkeypatch.setattr(_fallback, "torch_load", lambda *arguments, **others: pytest.fail("torch was asked"))
    # A legacy file with another object behind it is sound.
    for damaged in (data[:-1], data[: len(data) // 2], data[:100], data + b"\0", *([data + data] if zipped else [])):
        path.write_bytes(damaged)
        with pytest.raises(penstock.FormatError, match="a.pt"):
            serialization.load(path)
        with pytest.raises(penstock.FormatError, match="a.pt"):
            serialization.load(path, weights_only=False)


def test_a_pickle_that_was_changed_is_not_taken_for_a_program(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"x": torch.ones(3)}, path)
    data = path.read_bytes()
    assert data.count(b"FloatStorage") == 1
    path.write_bytes(data.replace(b"FloatStorage", b"FlowtStorage"))
    with pytest.raises(penstock.FormatError, match="data.pkl.*CRC-32"):
        serialization.load(path, weights_only=False)


def test_an_object_that_cannot_be_pickled_leaves_the_file(tmp_path: Path, no_leaks: None) -> None:
    path = tmp_path / "a.pt"
    serialization.save({"x": torch.ones(3)}, path)
    for zipped in (True, False):
        with pytest.raises((AttributeError, pickle.PicklingError)):
            serialization.save({"y": torch.ones(3), "f": lambda: 1}, path, _use_new_zipfile_serialization=zipped)
    assert_same_trees(serialization.load(path), {"x": torch.ones(3)})
    assert os.listdir(tmp_path) == ["a.pt"]


@FORMATS
def test_a_failed_write_leaves_the_file(zipped: bool, tmp_path: Path, no_leaks: None) -> None:
    path = tmp_path / "a.pt"
    serialization.save({"x": torch.ones(3)}, path)
    script = f"""
    import resource, sys, torch
    from penstock.fastpersist import _fallback, serialization
    import signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
    try:
        serialization.save(torch.ones(2**20), sys.argv[1], _use_new_zipfile_serialization={zipped})
    except OSError as error:
        print(type(error).__name__, error)
    """
    result = helpers.run_python(script, str(path))
    assert "a.pt" in result.stdout
    assert_same_trees(serialization.load(path), {"x": torch.ones(3)})
    assert os.listdir(tmp_path) == ["a.pt"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_a_longer_old_file_leaves_no_tail(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    for zipped in (True, False):
        serialization.save(torch.ones(2**16), path, _use_new_zipfile_serialization=zipped)
        serialization.save(torch.ones(3), path, _use_new_zipfile_serialization=zipped)
        assert path.stat().st_size < 4096
        assert_same_trees(torch.load(path), torch.ones(3))


def test_saved_storages_are_let_go(tmp_path: Path) -> None:
    gone = threading.Event()
    memory = np.ones(1000).view(Watched)
    weakref.finalize(memory, gone.set)
    tensor = torch.from_numpy(memory)
    del memory
    serialization.save(tensor, tmp_path / "a.pt")
    del tensor
    assert gone.is_set()  # with no help of the garbage collector


class Watched(np.ndarray):
    """An array that can be weakly referenced."""


def test_other_threads_run_meanwhile(tmp_path: Path) -> None:
    turns = 0
    stop = threading.Event()

    def count() -> None:
        nonlocal turns
        while not stop.is_set():
            turns += 1
            time.sleep(0)  # gives the others a turn

    interval = sys.getswitchinterval()
    sys.setswitchinterval(3600)  # whoever has the GIL keeps it, unless it gives it away
    thread = threading.Thread(target=count)
    thread.start()
    try:
        for work in (
            lambda: serialization.save(torch.ones(2**20), tmp_path / "a.pt"),
            lambda: serialization.load(tmp_path / "a.pt"),
        ):
            before = turns
            work()
            assert turns > before
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)


def test_a_default_device_does_not_matter(tmp_path: Path) -> None:
    torch.save(shared_tensors(), tmp_path / "a.pt")
    with torch.device("meta"):
        loaded, expected = serialization.load(tmp_path / "a.pt"), torch.load(tmp_path / "a.pt")
    assert_same_trees(loaded, expected)
    assert loaded["base"].device.type == "cpu"
