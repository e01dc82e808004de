"""Torch files on a device: trees with their sharing, views and types; the drop-in of torch.save and torch.load."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import penstock
import penstock.fastpersist
import pytest
import torch
from device_states import bytes_here, bytes_there, make_state, to_device
from penstock.fastpersist.serialization import load as fast_load
from penstock.fastpersist.serialization import save as fast_save
from sim_device import Simulator

legacy = pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])


def make_tree() -> dict[str, Any]:
    base = torch.arange(3000.0)
    return {
        "model": OrderedDict(make_state()),
        "views": [base[10:20], base.view(30, 100).t(), base],
        "parameter": torch.nn.Parameter(torch.randn(5, 6)),
        "tied": (base, base),
        "step": 7,
        "name": "run",
        "empty": torch.empty(0),
    }


def write(tmp_path: Path, tree: Any, legacy: bool) -> Path:
    path = tmp_path / "tree.pt"
    torch.save(tree, path, _use_new_zipfile_serialization=not legacy)
    return path


@legacy
def test_a_tree_is_what_was_saved(sim: Simulator, tmp_path: Path, legacy: bool) -> None:
    tree = make_tree()
    path = write(tmp_path, tree, legacy)
    stats: dict[str, Any] = {}
    with sim.watched():
        loaded: Any = penstock.load(path, "sim", stats=stats)
    assert stats["device"].startswith("cuda:0")
    assert (loaded["step"], loaded["name"]) == (7, "run")
    assert list(loaded["model"]) == list(tree["model"])
    for name, tensor in tree["model"].items():
        assert bytes_there(sim, loaded["model"][name]) == bytes_here(tensor), name
    assert loaded["empty"].device == torch.device("sim:0")
    assert isinstance(loaded["parameter"], torch.nn.Parameter)
    views = loaded["views"]
    assert views[1].stride() == (1, 100)
    assert len({view.untyped_storage().data_ptr() for view in (*views, *loaded["tied"])}) == 1
    for view, expected in zip(views, tree["views"], strict=True):
        assert view.device == torch.device("sim:0")
        assert torch.equal(view.cpu(), expected)


@legacy
def test_a_flat_load_of_views(sim: Simulator, tmp_path: Path, legacy: bool) -> None:
    base = torch.arange(3000.0)
    path = write(tmp_path, {"turned": base.view(30, 100).t(), "some": base[::3], "all": base}, legacy)
    with sim.watched():
        loaded = penstock.load(path, "sim", select="*")
    assert torch.equal(loaded["turned"].cpu(), base.view(30, 100).t())
    assert torch.equal(loaded["some"].cpu(), base[::3])
    target = {"turned": torch.zeros(100, 30, device="sim"), "some": torch.zeros(1000, device="sim")}
    with sim.watched():
        penstock.load_into(target, path, strict=False)
    assert torch.equal(target["turned"].cpu(), base.view(30, 100).t())
    assert torch.equal(target["some"].cpu(), base[::3])


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_tensors_that_are_made_of_others(sim: Simulator, tmp_path: Path) -> None:
    path = write(tmp_path, {"sparse": torch.eye(4).to_sparse_csr()}, legacy=False)
    loaded: Any = penstock.load(path, "sim")
    sparse = loaded["sparse"]
    assert (sparse.layout, sparse.device) == (torch.sparse_csr, torch.device("sim:0"))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_tensor_that_the_device_can_not_have_is_refused(sim: Simulator, tmp_path: Path) -> None:
    path = write(tmp_path, {"x": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)}, legacy=False)
    with pytest.raises(
        penstock.UnsupportedError,
        match=r"^a tensor that torch makes by _rebuild_qtensor can't be made: Could not run [^\n]* backend$",
    ):
        penstock.load(path, "sim")


@pytest.mark.parametrize("map_location", ["sim:1", "device", None], ids=["a name", "a device", "where it was"])
@legacy
def test_the_drop_in_loads_to_one_device(sim: Simulator, tmp_path: Path, map_location: Any, legacy: bool) -> None:
    state = make_state()
    path = write(tmp_path, to_device(state, "sim:1") if map_location is None else state, legacy)
    where = torch.device("sim:1") if map_location == "device" else map_location
    stats: dict[str, Any] = {}
    with sim.watched():
        loaded = fast_load(path, where, stats=stats)
    assert stats["device"].startswith("cuda:1")
    for name, tensor in state.items():
        assert loaded[name].device == torch.device("sim:1")
        assert bytes_there(sim, loaded[name]) == bytes_here(tensor), name


def test_the_drop_in_maps_locations_as_torch_does(sim: Simulator, tmp_path: Path) -> None:
    path = write(tmp_path, {"a": torch.ones(3), "b": torch.zeros(3, device="sim:0")}, legacy=False)
    loaded = fast_load(path, {"sim:0": "sim:1"})
    assert (loaded["a"].device, loaded["b"].device) == (torch.device("cpu"), torch.device("sim:1"))
    loaded = fast_load(path, "cpu")
    assert loaded["b"].device == torch.device("cpu")


@legacy
def test_the_drop_in_saves_what_is_on_a_device(sim: Simulator, tmp_path: Path, legacy: bool) -> None:
    state = make_state()
    if legacy:
        del state["fp8"]  # torch does not read its own there
    there = to_device(state)
    path = tmp_path / "tree.pt"
    with sim.watched():
        fast_save({"model": there}, path, _use_new_zipfile_serialization=not legacy)
    loaded = torch.load(path, map_location="cpu", weights_only=True)["model"]
    for name, tensor in state.items():
        assert bytes_here(loaded[name]) == bytes_here(tensor), name


@legacy
def test_background_saves_keep_the_tree(sim: Simulator, tmp_path: Path, legacy: bool) -> None:
    tree = {"views": [torch.arange(3000.0).to("sim")], "step": 3}
    tree["views"].append(tree["views"][0][5:9])
    path = tmp_path / "tree.pt"
    with sim.watched():
        penstock.save_async(tree, path, format="torch-legacy" if legacy else "torch").wait()
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    assert torch.equal(loaded["views"][1], torch.arange(3000.0)[5:9])
