"""assign_from_file: a file's tensors in place of a model's."""

from __future__ import annotations

import copy
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import helpers
import penstock
import pytest
import torch
from flashpack_models import KEEP, Model, Tied
from penstock.flashpack import assign_from_file, pack_to_file
from torch import nn


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.flashpack"


@KEEP
def test_every_tensor_is_replaced(path: Path, keep: bool) -> None:
    model, other = Model(0), Model(1)
    pack_to_file(other, path)
    cache = model.cache
    assign_from_file(model, path, keep_flash_ref_on_model=keep)
    helpers.assert_same_tensors(dict(model.state_dict()), dict(other.state_dict()))
    assert model.cache is cache
    assert model.scale.shape == ()
    assert [p.requires_grad for p in model.parameters()] == [p.requires_grad for p in other.parameters()]
    assert all(isinstance(p, nn.Parameter) and p.is_leaf for p in model.parameters())
    assert model.training
    x = torch.randint(7, (5,))
    assert torch.equal(model.head(model.norm(model.embed(x))), other.head(other.norm(other.embed(x))))


@KEEP
def test_an_optimiser_step_works(path: Path, keep: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    pack_to_file(model, path)
    saved = path.read_bytes()
    assign_from_file(model, path, keep_flash_ref_on_model=keep)
    before = copy.deepcopy(model.state_dict())
    for optimiser in (torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(model.parameters())):
        model(torch.randn(6, 3)).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()
    assert all(not torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert path.read_bytes() == saved


def test_parameters_are_views_of_the_blocks_that_are_kept(path: Path) -> None:
    model = Model()
    pack_to_file(model, path)
    assign_from_file(model, path, keep_flash_ref_on_model=True)
    storage, metadata = model._flash_shared_storage, model._flash_shared_storage_meta
    assert metadata == penstock.flashpack.get_flashpack_file_metadata(path)
    block = storage.block(0)
    addresses = range(block.data_ptr(), block.data_ptr() + block.nbytes)
    assert all(parameter.data_ptr() in addresses for parameter in model.parameters())


def test_a_model_on_the_meta_device_is_loaded_to_the_cpu(path: Path) -> None:
    source = nn.Linear(3, 2)
    pack_to_file(source, path)
    with torch.device("meta"):
        model = nn.Linear(3, 2)
    assign_from_file(model, path)
    helpers.assert_same_tensors(dict(model.state_dict()), dict(source.state_dict()))


def test_a_device_can_be_named(path: Path) -> None:
    source = nn.Linear(3, 2)
    pack_to_file(source, path)
    for device in ("cpu", torch.device("cpu")):
        assign_from_file(source, path, device=device)
    for keep in (False, True):
        assign_from_file(source, path, device="meta", keep_flash_ref_on_model=keep)
        assert all(parameter.is_meta for parameter in source.parameters())


def test_the_model_may_say_where_it_is(path: Path) -> None:
    class Placed(nn.Linear):
        device = torch.device("meta:0")

    class Odd(nn.Linear):
        device = property(lambda self: 3)

    for model in (Placed(2, 2), Odd(2, 2), nn.Identity()):
        pack_to_file({"weight": torch.ones(2, 2), "bias": torch.ones(2)}, path)
        assign_from_file(model, path, strict=False)
        assert all(parameter.device.type == "cpu" for parameter in model.parameters())
        assert all(parameter.sum() > 1 for parameter in model.parameters())


def test_one_process_needs_no_group_to_load_together(path: Path) -> None:
    source, model = nn.Linear(3, 2), nn.Linear(3, 2)
    pack_to_file(source, path)
    for sharded in (False, True):
        assign_from_file(model, path, use_distributed_loading=True, distributed_sharded=sharded)
        helpers.assert_same_tensors(dict(model.state_dict()), dict(source.state_dict()))


TOGETHER = """
    import sys, torch
    from penstock.flashpack import assign_from_file

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    before = [id(parameter) for parameter in model.parameters()]
    try:
        assign_from_file(model, sys.argv[1], use_distributed_loading=True, distributed_sharded=True)
        print(torch.distributed.get_world_size(), sorted(model.state_dict()["0.weight"].flatten().tolist()))
    except ValueError as error:
        print(error, before == [id(parameter) for parameter in model.parameters()])
    torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize("fits", [True, False])
def test_ranks_load_together_and_a_mismatch_leaves_every_model(path: Path, fits: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    nn.init.constant_(model[0].weight, 4.0)
    pack_to_file(model if fits else {**model.state_dict(), "0.bias": torch.ones(7)}, path)
    environment = {**helpers.rendezvous(), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    with ThreadPoolExecutor(2) as pool:
        results = list(
            pool.map(lambda rank: helpers.run_python(TOGETHER, str(path), RANK=str(rank), **environment), range(2))
        )
    expected = "2 [4.0, 4.0, 4.0, 4.0, 4.0, 4.0]\n"
    problem = f"{path} does not fit Sequential: 0.bias has shape [7] in the file and [2] in the model True\n"
    assert [result.stdout for result in results] == [expected if fits else problem] * 2


# Ties


@KEEP
@pytest.mark.parametrize("names", [["embed.weight", "head.weight"], ["embed.weight"], ["head.weight"]])
def test_tied_parameters_stay_tied(path: Path, names: list[str], keep: bool) -> None:
    weight = torch.randn(5, 3)
    pack_to_file(dict.fromkeys(names, weight), path)
    for strict in (None, True):
        model = Tied()
        assign_from_file(model, path, strict=strict, keep_flash_ref_on_model=keep)
        assert model.head.weight is model.embed.weight
        assert torch.equal(model.head.weight, weight)


def test_a_tied_model_is_saved_and_loaded(path: Path) -> None:
    source, model = Tied(), Tied()
    pack_to_file(source, path)
    assert len(penstock.open(path)) == 2
    assign_from_file(model, path, strict=True)
    assert model.head.weight is model.embed.weight
    assert torch.equal(model.embed.weight, source.embed.weight)


def test_a_module_in_two_places_stays_one(path: Path) -> None:
    layer = nn.Linear(2, 2)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    source = nn.Sequential(nn.Linear(2, 2))
    pack_to_file(source, path)
    assign_from_file(model, path)
    assert model[0] is model[2]
    assert torch.equal(model[2].weight, source[0].weight)


def test_parameters_of_one_memory_share_it_afterwards(path: Path) -> None:
    model = nn.Module()
    model.a = nn.Parameter(torch.ones(4))
    model.b = nn.Parameter(model.a.detach(), requires_grad=False)
    pack_to_file({"a": torch.arange(4.0)}, path)
    assign_from_file(model, path)
    assert model.a is not model.b
    assert model.a.data_ptr() == model.b.data_ptr()
    assert (model.a.requires_grad, model.b.requires_grad) == (True, False)
    assert model.b.tolist() == [0, 1, 2, 3]


def test_an_ignored_name_of_a_tie_follows_the_other(path: Path) -> None:
    pack_to_file({"embed.weight": torch.ones(5, 3), "head.weight": torch.zeros(9)}, path)
    model = Tied()
    assign_from_file(model, path, ignore_names=["head.weight"])
    assert model.head.weight is model.embed.weight
    assert model.head.weight.sum() == 15


# Modules with ways of their own


def test_recurrent_layers_notice_their_new_weights(path: Path) -> None:
    source, model = nn.LSTM(3, 4, num_layers=2), nn.LSTM(3, 4, num_layers=2)
    pack_to_file(source, path)
    assign_from_file(model, path)
    x = torch.randn(5, 2, 3)
    assert torch.equal(model(x)[0], source(x)[0])


def test_a_lazy_layer_takes_the_shape_of_the_file(path: Path) -> None:
    source = nn.Linear(3, 2)
    pack_to_file(source, path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.LazyLinear(2)
    assign_from_file(model, path)
    x = torch.randn(4, 3)
    assert torch.equal(model(x), source(x))


def test_parametrised_weights_are_assigned(path: Path) -> None:
    source, model = (nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)) for _ in range(2))
    pack_to_file(source, path)
    assign_from_file(model, path)
    x = torch.randn(4, 3)
    assert torch.equal(model(x), source(x))


def test_a_loaded_model_can_be_copied_and_saved_by_torch(path: Path, tmp_path: Path) -> None:
    model = Model()
    pack_to_file(model, path)
    assign_from_file(model, path)
    helpers.assert_same_tensors(dict(copy.deepcopy(model).state_dict()), dict(model.state_dict()))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    helpers.assert_same_tensors(torch.load(tmp_path / "model.pt"), dict(model.state_dict()))
    pack_to_file(model, path)
    helpers.assert_same_tensors(penstock.load(path), dict(model.state_dict()))


def test_phases_and_totals_are_printed_unless_silent(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
    pack_to_file({**model[:1].state_dict(), "extra": torch.ones(1)}, path)
    assign_from_file(model, path, strict=False)
    assert capsys.readouterr().out == ""
    assign_from_file(model, path, strict=False, silent=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:4]] == ["read_metadata", "build_lookups", "read_payload", "assign"]
    assert lines[4:] == [
        "Not in the file: 2 parameters: 1.weight, 1.bias",
        "Not in the file: 3 buffers: 1.running_mean, 1.running_var, 1.num_batches_tracked",
        "Not in the model: 1 names: extra",
        "Assigned 3 elements to 2 parameters and 0 buffers",
    ]
