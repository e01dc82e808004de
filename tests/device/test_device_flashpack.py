"""The FlashPack drop-in on a device: blocks, models, the parallel reader, packing."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from device_states import bytes_here, bytes_there, make_state, save_state, to_device
from penstock import _core
from penstock.flashpack import FlashPackMixin, assign_from_file, pack_to_file
from penstock.flashpack.deserialization import MacroblockSpec, iterate_from_flash_tensor, read_flashpack_file
from penstock.flashpack.parallel_read import parallel_read_into_storage
from sim_device import Simulator
from torch import nn


def make_model(device: str = "cpu") -> nn.Module:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(300, 400), nn.BatchNorm1d(400), nn.Linear(400, 300))
    return model.to(device)


@pytest.mark.parametrize("keep", [False, True], ids=["tensors", "blocks"])
@pytest.mark.parametrize("start", ["cpu", "sim:0", "meta"])
def test_a_model_is_filled_on_the_device(sim: Simulator, tmp_path: Path, keep: bool, start: str) -> None:
    expected = make_model()
    path = tmp_path / "model.flashpack"
    pack_to_file(expected, path)
    model = make_model(start)
    with sim.watched():
        assign_from_file(model, path, device="sim:0", keep_flash_ref_on_model=keep, strict=True)
    for name, tensor in expected.state_dict().items():
        found = model.state_dict()[name]
        assert found.device == torch.device("sim:0"), name
        assert bytes_there(sim, found) == bytes_here(tensor), name


def test_the_device_of_the_model_is_the_default(sim: Simulator, tmp_path: Path) -> None:
    path = tmp_path / "model.flashpack"
    pack_to_file(make_model(), path)
    model = make_model("sim:1")
    with sim.watched():
        assign_from_file(model, path)
    assert model[0].weight.device == torch.device("sim:1")


def test_blocks_are_read_to_the_device(sim: Simulator, tmp_path: Path) -> None:
    state = make_state()
    path = save_state(tmp_path, "flashpack", state)
    with sim.watched():
        storage, metadata = read_flashpack_file(path, "sim")
    views = dict(iterate_from_flash_tensor(storage, metadata))
    for name, tensor in state.items():
        if tensor.nbytes > 0:
            assert bytes_there(sim, views[name]) == bytes_here(tensor), name


def test_the_parallel_reader_fills_blocks_of_a_device(sim: Simulator, tmp_path: Path) -> None:
    path = save_state(tmp_path, "flashpack", make_state())
    specs = [
        MacroblockSpec(torch.uint8, offset, nbytes, nbytes)
        for _, _, _, _, offset, nbytes in _core.open_flashpack_blocks(str(path)).infos()
    ]
    blocks = [torch.zeros(spec.length_bytes, dtype=torch.uint8, device="sim") for spec in specs]
    with sim.watched():
        parallel_read_into_storage(path, specs, blocks, torch.device("sim"))
    data = path.read_bytes()
    for spec, block in zip(specs, blocks, strict=True):
        assert bytes_there(sim, block) == data[spec.offset_bytes : spec.offset_bytes + spec.length_bytes]


class Model(nn.Linear, FlashPackMixin):
    """A model as a user writes it."""


@pytest.mark.parametrize("keep", [False, True], ids=["tensors", "blocks"])
def test_a_class_saves_from_the_device_and_loads_to_it(sim: Simulator, tmp_path: Path, keep: bool) -> None:
    model = Model(300, 400)
    there = copy.deepcopy(model).to("sim:1")
    path = tmp_path / "model.flashpack"
    with sim.watched():
        there.save_flashpack(path, target_dtype=torch.float32, silent=True)
        loaded = Model.from_flashpack(path, 300, 400, device="sim:0", silent=True, keep_flash_ref_on_model=keep)
    assert loaded.weight.device == torch.device("sim:0")
    for name, tensor in model.state_dict().items():
        assert bytes_there(sim, loaded.state_dict()[name]) == bytes_here(tensor), name


@pytest.mark.parametrize("target", [None, torch.bfloat16, torch.int16])
def test_packing_what_is_on_a_device(sim: Simulator, tmp_path: Path, target: torch.dtype | None) -> None:
    state = {name: tensor for name, tensor in make_state().items() if name != "fp8" or target is not torch.int16}
    there = to_device(state)
    pack_to_file(state, tmp_path / "here.flashpack", target)
    # Integers are torch's to convert, which reads them by itself.
    with sim.watched(pageable=0 if target is None else 1000):
        pack_to_file(there, tmp_path / "there.flashpack", target)
    assert (tmp_path / "there.flashpack").read_bytes() == (tmp_path / "here.flashpack").read_bytes()
