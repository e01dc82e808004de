"""assign_from_file: a file's tensors in place of a model's, all or none."""

from __future__ import annotations

import copy
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import helpers
import penstock
import pytest
import torch
from penstock.flashpack import assign_from_file, pack_to_file
from torch import nn


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.flashpack"


class Model(nn.Module):
    """Parameters, buffers that are saved, and one that is not."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 7)
        self.scale = nn.Parameter(torch.rand(()), requires_grad=False)
        self.register_buffer("mask", torch.rand(3) > 0.5)
        self.register_buffer("cache", torch.rand(2), persistent=False)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


def snapshot(model: nn.Module) -> list[tuple[str, int, torch.Tensor]]:
    """Every tensor of a model: which object it is, and its values."""
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return [(name, id(tensor), tensor.detach().clone()) for name, tensor in tensors]


def assert_untouched(model: nn.Module, before: list[tuple[str, int, torch.Tensor]]) -> None:
    after = snapshot(model)
    assert [entry[:2] for entry in after] == [entry[:2] for entry in before]
    assert all(helpers.same(new, old) for (_, _, new), (_, _, old) in zip(after, before, strict=True))
    assert not hasattr(model, "_flash_shared_storage")


def refused(model: nn.Module, path: Path, **arguments: Any) -> str:
    """The one line that says why the file does not fit; the model must be as it was."""
    before = snapshot(model)
    with pytest.raises(penstock.ArgumentError) as caught:
        assign_from_file(model, path, **arguments)
    assert isinstance(caught.value, ValueError)
    assert_untouched(model, before)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{path} does not fit {type(model).__name__}: ")
    return line.removeprefix(f"{path} does not fit {type(model).__name__}: ")


KEEP = pytest.mark.parametrize("keep", [False, True], ids=["", "blocks kept"])


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


# What does not fit


def test_missing_parameters_are_refused_by_default(path: Path) -> None:
    pack_to_file({"weight": torch.ones(1, 2)}, path)
    assert refused(nn.Linear(2, 1), path) == "parameters that are not in the file: bias"
    assert refused(nn.Linear(2, 1), path, strict=True) == "parameters that are not in the file: bias"
    assert refused(nn.Linear(2, 1), path, keep_flash_ref_on_model=True).endswith("bias")
    assign_from_file(nn.Linear(2, 1), path, strict_params=False)
    assign_from_file(nn.Linear(2, 1), path, strict=False)


def test_missing_buffers_are_refused_where_that_is_asked_for(path: Path) -> None:
    model = Model()
    state = dict(model.state_dict())
    del state["norm.running_mean"]
    pack_to_file(state, path)
    assign_from_file(model, path)
    message = "buffers that are not in the file: norm.running_mean"
    assert refused(model, path, strict_buffers=True) == message
    assert refused(model, path, strict=True) == message
    assert refused(model, path, strict_params=False, strict_buffers=True) == message


def test_buffers_that_are_never_saved_are_not_missed(path: Path) -> None:
    model = Model()
    pack_to_file(model, path)
    assign_from_file(model, path, strict=True)
    # But one that is in a file is taken.
    pack_to_file({**model.state_dict(), "cache": torch.full((2,), 5.0)}, path)
    assign_from_file(model, path, strict=True)
    assert model.cache.tolist() == [5, 5]


def test_unexpected_names_are_refused_while_anything_is_strict(path: Path) -> None:
    pack_to_file({"weight": torch.ones(1, 2), "bias": torch.ones(1), "extra": torch.ones(1)}, path)
    message = "names that are not in the model: extra"
    assert refused(nn.Linear(2, 1), path) == message
    assert refused(nn.Linear(2, 1), path, strict_params=False, strict_buffers=True) == message
    model = nn.Linear(2, 1)
    for arguments in ({"strict": False}, {"strict_params": False}):
        assign_from_file(model, path, **arguments)
        assert model.weight.tolist() == [[1, 1]]


@KEEP
def test_another_shape_is_refused(path: Path, keep: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
    state = dict(model.state_dict())
    pack_to_file({**state, "0.weight": torch.ones(2, 1)}, path)
    message = "0.weight has shape [2, 1] in the file and [1, 2] in the model"
    for arguments in ({}, {"strict": True}, {"strict_params": False, "strict_buffers": True}):
        assert refused(model, path, keep_flash_ref_on_model=keep, **arguments) == message
    pack_to_file({**state, "1.running_var": torch.tensor(1.0)}, path)
    assert refused(model, path) == "1.running_var has shape [] in the file and [1] in the model"


def test_what_does_not_fit_is_left_out_with_a_warning_when_nothing_is_strict(path: Path) -> None:
    model = nn.Linear(2, 1)
    weight = model.weight
    pack_to_file({"weight": torch.ones(2, 1), "bias": torch.full((1,), 3.0)}, path)
    with pytest.warns(UserWarning, match=r"left out what does not fit: weight has shape \[2, 1\]"):
        assign_from_file(model, path, strict=False)
    assert model.weight is weight
    assert model.bias.tolist() == [3]


def test_every_problem_is_told_at_once_and_long_lists_are_cut(path: Path) -> None:
    pack_to_file({"0.weight": torch.ones(3), **{f"extra.{i}": torch.ones(1) for i in range(8)}}, path)
    assert refused(nn.Sequential(nn.Linear(2, 1)), path) == (
        "parameters that are not in the file: 0.bias; "
        "names that are not in the model: extra.0, extra.1, extra.2, extra.3, extra.4 and 3 more; "
        "0.weight has shape [3] in the file and [1, 2] in the model"
    )


def test_a_parameter_takes_the_type_of_the_file(path: Path) -> None:
    model = nn.Linear(2, 1)
    pack_to_file(nn.Linear(2, 1), path, torch.bfloat16)
    for coerce in (False, True):
        assign_from_file(model, path, coerce_dtype=coerce)
        assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_a_parameter_does_not_take_another_kind_of_type(path: Path) -> None:
    model = nn.Linear(2, 1)
    pack_to_file({"weight": torch.tensor([[1, 2]]), "bias": torch.tensor([3.0])}, path)
    message = "weight is int64 in the file and float32 in the model"
    assert refused(model, path) == f"{message} (coerce_dtype=True converts it)"
    with pytest.warns(UserWarning, match=message):
        assign_from_file(model, path, strict=False)
    assign_from_file(model, path, coerce_dtype=True)
    assert (model.weight.dtype, model.weight.tolist(), model.weight.requires_grad) == (torch.float32, [[1, 2]], True)


def test_a_buffer_keeps_its_type_or_is_refused(path: Path) -> None:
    model = nn.BatchNorm1d(2)
    pack_to_file(model, path, torch.float16)  # the counter too
    message = refused(model, path)
    assert "running_mean is float16 in the file and float32 in the model" in message
    assert "num_batches_tracked is float16 in the file and int64 in the model" in message
    assign_from_file(model, path, coerce_dtype=True)
    assert (model.running_mean.dtype, model.num_batches_tracked.dtype) == (torch.float32, torch.int64)
    assert model.weight.dtype == torch.float16
    assert model.num_batches_tracked.shape == ()


def test_ignored_tensors_are_left_alone(path: Path) -> None:
    model, other = Model(0), Model(1)
    pack_to_file({**other.state_dict(), "extra.a": torch.ones(1), "extra.b": torch.ones(1)}, path)
    kept = {name: model.state_dict()[name].clone() for name in ("embed.weight", "head.bias", "scale")}
    assign_from_file(
        model, path, ignore_names=["embed.weight", "scale"], ignore_prefixes=["extra."], ignore_suffixes=["d.bias"]
    )
    state = dict(model.state_dict())
    expected = {**other.state_dict(), **kept}
    helpers.assert_same_tensors(state, expected)
    # A missing tensor that is ignored is not missed.
    pack_to_file({"weight": torch.ones(1, 2)}, path)
    assign_from_file(nn.Linear(2, 1), path, ignore_names=["bias"], strict=True)


def test_ignored_tensors_are_not_read(path: Path) -> None:
    """They may be large: what a load takes is what it assigns."""
    script = """
        import sys, torch, penstock
        from penstock.flashpack import assign_from_file, pack_to_file
        pack_to_file({"weight": torch.ones(1, 2), "bias": torch.ones(1), "huge": torch.ones(2**24)}, sys.argv[1])
        penstock.measure.drop_page_cache(sys.argv[1])
        model = torch.nn.Linear(2, 1)
        pool = penstock.MemoryPool.process_default()
        pool.trim()
        assign_from_file(model, sys.argv[1], ignore_names=["huge"])
        print(model.weight.tolist(), pool.used_bytes + pool.kept_bytes < 2**20)
    """
    assert helpers.run_python(script, str(path)).stdout == "[[1.0, 1.0]] True\n"


# Failures on the way


class Stubborn(nn.Linear):
    """Objects to a new weight once it is told to."""

    stubborn = False

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "bias" and self.stubborn:
            object.__setattr__(self, "stubborn", False)
            raise RuntimeError("I like my bias")
        super().__setattr__(name, value)


def test_a_module_that_objects_gets_everything_back(path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), Stubborn(2, 2))
    pack_to_file(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), path)
    before = snapshot(model)
    model[1].stubborn = True
    with pytest.raises(RuntimeError, match="I like my bias"):
        assign_from_file(model, path)
    assert_untouched(model, before)


@pytest.mark.parametrize("keep", [False, True])
def test_a_read_that_fails_half_way_leaves_the_model(path: Path, keep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file shrinks after its footer was read."""
    from penstock.flashpack import _assign, deserialization

    model = nn.Sequential(nn.Linear(600, 600), nn.Linear(600, 600))
    pack_to_file(model, path)
    before = snapshot(model)
    match_names, read_blocks = _assign.match_names, deserialization._read_blocks

    def match_and_shrink(*arguments: Any) -> Any:
        os.truncate(path, 2**20)
        return match_names(*arguments)

    def shrink_and_read(reader: Any) -> Any:
        os.truncate(path, 2**20)
        return read_blocks(reader)

    monkeypatch.setattr(_assign, "match_names", match_and_shrink)
    monkeypatch.setattr(deserialization, "_read_blocks", shrink_and_read)
    with pytest.raises(penstock.ChangedError, match=str(path)):
        assign_from_file(model, path, keep_flash_ref_on_model=keep)
    assert_untouched(model, before)


def test_no_descriptor_stays_open(path: Path, no_leaks: None) -> None:
    model = nn.Linear(3, 2)
    pack_to_file(model, path)
    for keep in (False, True):
        assign_from_file(model, path, keep_flash_ref_on_model=keep)


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


# What is one tensor in the model and two in the file.


@pytest.mark.parametrize("keep", [True, False])
def test_tied_names_that_differ_in_the_file_are_refused(path: Path, keep: bool) -> None:
    model = Tied()
    before = snapshot(model)
    pack_to_file({"embed.weight": torch.zeros(5, 3), "head.weight": torch.ones(5, 3)}, path)
    problem = "does not fit Tied: embed.weight and head.weight are tied in the model and differ in the file"
    with pytest.raises(penstock.ArgumentError, match=problem):
        assign_from_file(model, path, keep_flash_ref_on_model=keep)
    assert_untouched(model, before)
    assign_from_file(model, path, strict=False)
    assert model.head.weight is model.embed.weight
    assert torch.equal(model.head.weight, torch.zeros(5, 3))
    assign_from_file(model, path, ignore_names=["embed.weight"])
    assert torch.equal(model.embed.weight, torch.ones(5, 3))


def test_tied_names_of_different_types_are_refused(path: Path) -> None:
    pack_to_file({"embed.weight": torch.zeros(5, 3), "head.weight": torch.zeros(5, 3).half()}, path)
    with pytest.raises(penstock.ArgumentError, match=r"embed.weight and head.weight are tied in the model and differ"):
        assign_from_file(Tied(), path)


def test_equal_copies_of_tied_tensors_may_hold_anything(path: Path) -> None:
    weight = torch.full((5, 3), float("nan"))
    pack_to_file({"embed.weight": weight, "head.weight": weight.clone()}, path)
    model = Tied()
    assign_from_file(model, path)
    assert model.head.weight is model.embed.weight
    assert model.head.weight.isnan().all()


# Extra state.


class Counting(nn.Module):
    """A module that saves more than parameters and buffers."""

    def __init__(self, state: Any = None) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.state = state
        self.refuses = False

    def get_extra_state(self) -> Any:
        return self.state

    def set_extra_state(self, state: Any) -> None:
        if self.refuses and state is not self.state:
            raise ValueError("not this state")
        self.state = state


@pytest.mark.parametrize("target_dtype", [None, torch.bfloat16])
def test_extra_state_comes_back(path: Path, target_dtype: torch.dtype | None) -> None:
    model = nn.Sequential(Counting(torch.tensor([1, 200], dtype=torch.uint8)))
    pack_to_file(model, path, target_dtype)
    loaded = nn.Sequential(Counting())
    assign_from_file(loaded, path, strict=True)
    assert helpers.same(loaded[0].state, torch.tensor([1, 200], dtype=torch.uint8))
    assert loaded[0].inner.weight.dtype == (target_dtype or torch.float32)


def test_extra_state_that_is_no_tensor_is_refused_when_it_is_saved(path: Path) -> None:
    message = "0._extra_state: a module's extra state is a dict, and a FlashPack file holds tensors only"
    with pytest.raises(penstock.ArgumentError, match=message):
        pack_to_file(nn.Sequential(Counting({"steps": 3})), path)
    assert not path.exists()


def test_extra_state_that_the_model_does_not_take_is_refused(path: Path) -> None:
    pack_to_file({**Counting(torch.ones(1)).state_dict()}, path)
    with pytest.raises(penstock.ArgumentError, match="names that are not in the model: _extra_state"):
        assign_from_file(nn.ModuleDict({"inner": nn.Linear(2, 2)}), path)


def test_extra_state_that_is_missing_counts_as_a_buffer(path: Path) -> None:
    pack_to_file(nn.ModuleDict({"inner": nn.Linear(2, 2)}), path)
    model = Counting(torch.ones(1))
    assign_from_file(model, path)
    assert torch.equal(model.state, torch.ones(1))
    with pytest.raises(penstock.ArgumentError, match="buffers that are not in the file: _extra_state"):
        assign_from_file(model, path, strict_buffers=True)


def test_a_module_that_refuses_its_state_leaves_the_model_untouched(path: Path) -> None:
    pack_to_file(Counting(torch.ones(1)), path)
    model = Counting(torch.zeros(1))
    model.refuses = True
    before = snapshot(model)
    with pytest.raises(ValueError, match="not this state"):
        assign_from_file(model, path)
    assert_untouched(model, before)
    assert torch.equal(model.state, torch.zeros(1))
