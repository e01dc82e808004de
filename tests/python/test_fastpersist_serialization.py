"""penstock.fastpersist.serialization: torch.save by other means, byte for byte."""

from __future__ import annotations

import inspect
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from penstock.fastpersist import serialization
from torch.utils.serialization import config
from torch_objects import FORMATS, TREES, save_both, tied_module
from trees import assert_same_trees

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # torch uses it itself


@pytest.fixture(params=TREES)
def tree(request: pytest.FixtureRequest) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of beta layouts
        return TREES[request.param]()


def test_the_signatures_are_torchs() -> None:
    for ours, theirs in ((serialization.save, torch.save), (serialization.load, torch.load)):
        expected = inspect.signature(theirs).parameters
        found = inspect.signature(ours).parameters
        assert [name for name in found if name in expected] == list(expected)
        for name, parameter in expected.items():
            assert (found[name].kind, found[name].default) == (parameter.kind, parameter.default), name


@FORMATS
def test_a_file_is_byte_for_byte_that_of_torch_save(tree: Any, zipped: bool, tmp_path: Path) -> None:
    ours, theirs = save_both(tree, tmp_path, _use_new_zipfile_serialization=zipped)
    assert ours == theirs


@FORMATS
def test_torch_files_load_as_torch_loads_them(tree: Any, zipped: bool, tmp_path: Path) -> None:
    torch.save(tree, tmp_path / "model.pt", _use_new_zipfile_serialization=zipped)
    assert_same_trees(serialization.load(tmp_path / "model.pt"), torch.load(tmp_path / "model.pt"))


@FORMATS
@pytest.mark.parametrize("classic", [True, False])
def test_torch_loads_our_files(tree: Any, zipped: bool, classic: bool, tmp_path: Path, no_leaks: None) -> None:
    path = tmp_path / "model.pt"
    torch.save(tree, tmp_path / "theirs.pt", _use_new_zipfile_serialization=zipped)
    serialization.save(tree, path, _use_new_zipfile_serialization=zipped, classic=classic, durable=False)
    expected = torch.load(tmp_path / "theirs.pt")
    for weights_only in (True, False):
        assert_same_trees(torch.load(path, weights_only=weights_only), expected)
    if zipped:
        assert_same_trees(torch.load(path, mmap=True), expected)
    assert_same_trees(serialization.load(path), expected)


@pytest.mark.parametrize("alignment", [64, 4096])
@pytest.mark.parametrize("checksums", [True, False])
def test_torchs_settings_for_zips_are_followed(alignment: int, checksums: bool, tmp_path: Path) -> None:
    obj = {"large": torch.ones(300_000), "small": torch.ones(3), "odd": torch.ones(7, dtype=torch.uint8)}
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(checksums)
    try:
        with config.patch("save.storage_alignment", alignment):
            ours, theirs = save_both(obj, tmp_path)
    finally:
        torch.serialization.set_crc32_options(before)
    assert ours == theirs
    assert_same_trees(torch.load(tmp_path / "ours" / "model.pt", mmap=True), obj)


def test_the_default_layout_aligns_large_tensors(tmp_path: Path) -> None:
    obj = {"small": torch.ones(3), "large": torch.arange(2.0**20), "last": torch.ones(5)}
    serialization.save(obj, tmp_path / "model.pt", durable=False)
    reader = torch._C.PyTorchFileReader(str(tmp_path / "model.pt"))
    assert reader.get_record_offset("data/1") % 4096 == 0
    assert_same_trees(torch.load(tmp_path / "model.pt"), obj)
    assert_same_trees(torch.load(tmp_path / "model.pt", mmap=True), obj)
    with config.patch("load.calculate_storage_offsets", True):
        assert_same_trees(torch.load(tmp_path / "model.pt", mmap=True), obj)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_of_pickle_makes_torchs_zip(protocol: int, tmp_path: Path) -> None:
    obj = {"tensor": torch.ones(3), "bytes": b"abc", "large": 2**70, "set": {1}, "long": "x" * 70_000}
    ours, theirs = save_both(obj, tmp_path, pickle_protocol=protocol)
    assert ours == theirs
    path = tmp_path / "theirs" / "model.pt"
    assert_same_trees(serialization.load(path), torch.load(path, weights_only=False))


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_legacy_files_of_other_protocols_are_read_by_torch(protocol: int, tmp_path: Path) -> None:
    obj = {"tensor": torch.ones(3), "bytes": b"abc"}
    path = tmp_path / "model.pt"
    serialization.save(obj, path, pickle_protocol=protocol, _use_new_zipfile_serialization=False)
    assert_same_trees(torch.load(path, weights_only=False), obj)
    assert_same_trees(serialization.load(path, weights_only=False), obj)


@FORMATS
def test_modules_are_saved_whole(zipped: bool, tmp_path: Path) -> None:
    module = tied_module()
    ours, theirs = save_both(module, tmp_path, _use_new_zipfile_serialization=zipped)
    assert ours == theirs
    path = tmp_path / "ours" / "model.pt"
    loaded = serialization.load(path, weights_only=False)
    assert loaded.a.weight is loaded.b.weight
    assert_same_trees(loaded.state_dict(), module.state_dict())
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        serialization.load(path)


def test_a_class_without_source_is_told_of_as_torch_does(tmp_path: Path) -> None:
    scope: dict[str, Any] = {"torch": torch, "__name__": __name__}
    exec("class Unwritten(torch.nn.Linear): pass", scope)
    globals()["Unwritten"] = scope["Unwritten"]
    with pytest.warns(UserWarning, match="source of Unwritten"):
        serialization.save(scope["Unwritten"](1, 1), tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    assert isinstance(torch.load(tmp_path / "a.pt", weights_only=False), scope["Unwritten"])
