"""load_into: modules and dicts, replaced or filled in place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import penstock
import pytest
import torch
from torch import nn


class Tied(nn.Module):
    """Two names for one parameter, a frozen one, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 6, bias=False)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight
        self.norm = nn.LayerNorm(4)
        self.norm.bias.requires_grad_(False)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {
        "embed.weight": torch.randn(6, 4, generator=generator),
        "norm.weight": torch.randn(4, generator=generator),
        "norm.bias": torch.randn(4, generator=generator),
        "count": torch.tensor(41),
    }


@pytest.fixture
def file(path: Path, state: dict[str, torch.Tensor]) -> Path:
    penstock.save(state, path)
    return path


def assert_loaded(model: Tied, state: dict[str, torch.Tensor]) -> None:
    helpers.assert_same_tensors(dict(model.state_dict()), {**state, "head.weight": state["embed.weight"]})
    assert model.head.weight is model.embed.weight
    assert {name: p.requires_grad for name, p in model.named_parameters()} == {
        "embed.weight": True,
        "norm.weight": True,
        "norm.bias": False,
    }


@pytest.mark.parametrize("assign", [True, False])
def test_a_module_is_loaded_and_its_ties_kept(file: Path, state: dict[str, torch.Tensor], assign: bool) -> None:
    model = Tied()
    result = penstock.load_into(model, file, assign=assign)
    assert result == ([], [])
    assert_loaded(model, state)
    model.norm(torch.ones(1, 4)).sum().backward()
    assert model.norm.weight.grad is not None


def test_a_module_on_the_meta_device_is_filled(file: Path, state: dict[str, torch.Tensor]) -> None:
    with torch.device("meta"):
        model = Tied()
    with pytest.raises(penstock.ArgumentError, match="is on the meta device, which needs assign=True"):
        penstock.load_into(model, file, assign=False)
    penstock.load_into(model, file)
    assert_loaded(model, state)


def test_reading_in_place_keeps_the_memory(file: Path, state: dict[str, torch.Tensor]) -> None:
    model = Tied()
    parameters = {name: (p, p.data_ptr()) for name, p in model.named_parameters()}
    stats = penstock.Stats()
    penstock.load_into(model, file, assign=False, stats=stats)
    for name, parameter in model.named_parameters():
        assert (parameter, parameter.data_ptr()) == parameters[name]
    assert stats.bytes == sum(tensor.nbytes for tensor in state.values())
    assert_loaded(model, state)


def test_any_of_the_tied_names_is_enough(path: Path, state: dict[str, torch.Tensor]) -> None:
    state["head.weight"] = state.pop("embed.weight")
    penstock.save(state, path)
    for assign in (True, False):
        model = Tied()
        assert penstock.load_into(model, path, assign=assign) == ([], [])
        assert torch.equal(model.embed.weight, state["head.weight"])
        assert model.head.weight is model.embed.weight


def test_ties_by_memory_are_kept_too(path: Path) -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
    model["b"].weight.data = model["a"].weight.data
    penstock.save({"a.weight": torch.eye(2)}, path)
    penstock.load_into(model, path)
    assert model["a"].weight.data_ptr() == model["b"].weight.data_ptr()
    assert torch.equal(model["b"].weight, torch.eye(2))


@pytest.mark.parametrize("assign", [True, False])
def test_a_trained_model_goes_on_training(path: Path, assign: bool) -> None:
    model = nn.Linear(3, 2)
    penstock.save(model, path)
    fresh = nn.Linear(3, 2)
    penstock.load_into(fresh, path, assign=assign)
    before = fresh.weight.detach().clone()
    fresh(torch.ones(1, 3)).sum().backward()
    with torch.no_grad():
        fresh.weight -= 0.1 * fresh.weight.grad
    assert torch.allclose(fresh.weight, before - 0.1)
    assert torch.equal(penstock.load(path)["weight"], model.weight)


def damaged(state: dict[str, torch.Tensor], how: str) -> dict[str, torch.Tensor]:
    return {
        "missing": {name: t for name, t in state.items() if name != "norm.bias"},
        "unexpected": {**state, "extra": torch.ones(1)},
        "shape": {**state, "norm.bias": torch.ones(5)},
        "kind": {**state, "count": torch.tensor(1.5)},
    }[how]


@pytest.mark.parametrize("assign", [True, False])
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing", "the checkpoint does not fit its target: not in the file: norm.bias"),
        ("unexpected", "the checkpoint does not fit its target: not in the target: extra"),
        ("shape", "norm.bias has shape [5] in the file and [4] in the target"),
        ("kind", "count is F32 in the file and I64 in the target"),
    ],
)
def test_what_does_not_fit_changes_nothing(
    path: Path, state: dict[str, torch.Tensor], how: str, message: str, assign: bool
) -> None:
    penstock.save(damaged(state, how), path)
    model = Tied()
    before = {name: (id(t), t.clone()) for name, t in model.state_dict(keep_vars=True).items()}
    with pytest.raises(penstock.ArgumentError) as caught:
        penstock.load_into(model, path, assign=assign)
    assert message in str(caught.value)
    for name, tensor in model.state_dict(keep_vars=True).items():
        assert id(tensor) == before[name][0]
        assert torch.equal(tensor, before[name][1])


def test_without_strict_the_rest_is_told(path: Path, state: dict[str, torch.Tensor]) -> None:
    del state["embed.weight"]
    penstock.save({**state, "extra": torch.ones(1)}, path)
    model = Tied()
    result = penstock.load_into(model, path, strict=False)
    assert sorted(result.missing_keys) == ["embed.weight", "head.weight"]
    assert result.unexpected_keys == ["extra"]
    assert torch.equal(model.norm.weight, state["norm.weight"])


def test_long_lists_of_names_are_cut(path: Path) -> None:
    penstock.save({f"n{i}": torch.ones(1) for i in range(9)}, path)
    with pytest.raises(penstock.ArgumentError, match=r"not in the target: n0, n1, n2, n3, n4 and 4 more$"):
        penstock.load_into({}, path)


def test_types_are_converted_into_the_memory(path: Path, state: dict[str, torch.Tensor]) -> None:
    penstock.save({name: t.bfloat16() if t.is_floating_point() else t for name, t in state.items()}, path)
    model = Tied()
    penstock.load_into(model, path, assign=False)
    assert model.norm.weight.dtype == torch.float32
    assert torch.equal(model.norm.weight, state["norm.weight"].bfloat16().float())


def test_assigned_tensors_keep_the_files_type_or_take_another(path: Path, state: dict[str, torch.Tensor]) -> None:
    penstock.save({name: t.bfloat16() if t.is_floating_point() else t for name, t in state.items()}, path)
    model = Tied()
    penstock.load_into(model, path)
    assert model.norm.weight.dtype == torch.bfloat16
    penstock.load_into(model, path, dtype=torch.float16)
    assert model.norm.weight.dtype == torch.float16
    assert isinstance(model.norm.weight, nn.Parameter)
    with pytest.raises(penstock.ArgumentError, match="needs assign=True"):
        penstock.load_into(model, path, dtype=torch.float16, assign=False)


def test_integers_are_converted_like_torch_does(path: Path) -> None:
    penstock.save({"x": torch.tensor([1, -2, 300])}, path)
    target = {"x": torch.zeros(3, dtype=torch.int16)}
    penstock.load_into(target, path, assign=False)
    assert target["x"].tolist() == [1, -2, 300]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(4, 6).t(),
        lambda: torch.zeros(6, 8)[:, ::2],
        lambda: torch.zeros(6, 4, requires_grad=True),
        lambda: torch.zeros(6, 4, dtype=torch.float64),
    ],
)
def test_any_tensor_can_be_read_into(path: Path, make: Callable[[], torch.Tensor]) -> None:
    tensor = torch.arange(24.0).reshape(6, 4)
    penstock.save({"x": tensor, "y": torch.ones(2)}, path)
    target = {"x": make(), "y": torch.zeros(2)}
    kept = target["x"]
    penstock.load_into(target, path, assign=False)
    assert target["x"] is kept
    assert torch.equal(kept.detach().float(), tensor)
    assert target["y"].tolist() == [1, 1]


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.zeros((6, 4), np.float32),
        lambda: np.zeros((4, 6), np.float32).T,
        lambda: np.zeros((6, 4), ">f4"),
        lambda: np.zeros((6, 4), np.float64),
    ],
)
def test_any_array_can_be_read_into(path: Path, make: Callable[[], Any]) -> None:
    array = np.arange(24, dtype=np.float32).reshape(6, 4)
    penstock.save({"x": array}, path)
    target = {"x": make()}
    kept = target["x"]
    penstock.load_into(target, path, assign=False)
    assert target["x"] is kept
    assert np.array_equal(kept, array)


def test_a_dict_of_tensors_is_replaced(file: Path, state: dict[str, torch.Tensor]) -> None:
    target = {name: torch.empty_like(tensor, device="meta") for name, tensor in state.items()}
    penstock.load_into(target, file)
    helpers.assert_same_tensors(target, state)
    arrays = {name: np.zeros(tensor.shape, tensor.numpy().dtype) for name, tensor in state.items()}
    penstock.load_into(arrays, file)
    helpers.assert_same_tensors(arrays, {name: tensor.numpy() for name, tensor in state.items()})


def test_a_selection_can_be_loaded_into_a_module(file: Path, state: dict[str, torch.Tensor]) -> None:
    model = Tied()
    before = model.embed.weight.detach().clone()
    penstock.load_into(model, file, select="norm.*", strict=False)
    assert torch.equal(model.norm.weight, state["norm.weight"])
    assert torch.equal(model.embed.weight, before)


@pytest.mark.parametrize("target", [3, [torch.zeros(1)], {"x": 3}, {"x": torch.zeros(1), "y": np.zeros(1)}])
def test_a_target_that_is_none_is_refused(file: Path, target: Any) -> None:
    with pytest.raises(penstock.ArgumentError):
        penstock.load_into(target, file)


class Copying(nn.Linear):
    """Its state_dict() gives copies: writing to those changes nothing."""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = destination[prefix + "weight"].detach().clone()


@pytest.mark.parametrize("assign", [True, False])
def test_a_module_whose_state_is_a_copy_is_loaded(path: Path, assign: bool) -> None:
    model = nn.Sequential(Copying(2, 2), nn.Linear(2, 2))
    state = {
        "0.weight": torch.eye(2),
        "0.bias": torch.tensor([3.0, 4.0]),
        "1.weight": torch.ones(2, 2),
        "1.bias": torch.zeros(2),
    }
    penstock.save(state, path)
    penstock.load_into(model, path, assign=assign)
    assert model[0].weight.tolist() == [[1, 0], [0, 1]]
    helpers.assert_same_tensors(dict(model.state_dict()), state)


def test_a_module_that_does_not_take_its_own_state_is_an_error(path: Path) -> None:
    class Odd(nn.Module):
        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            destination[prefix + "made"] = torch.zeros(2)

    penstock.save({"made": torch.ones(2)}, path)
    for assign in (True, False):
        with pytest.raises(penstock.ArgumentError, match="does not take what its state_dict gives: made"):
            penstock.load_into(Odd(), path, assign=assign)


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (np.zeros(3), read_only(np.zeros(3)), "b is read-only"),
        (np.zeros(3), np.broadcast_to(np.zeros(1), (3,)), "b is read-only"),
        (torch.zeros(3), torch.zeros(1).expand(3), "b is an expanded tensor"),
        (torch.zeros(3), torch.zeros(3).to_sparse(), "b is a sparse_coo tensor"),
        (torch.zeros(3), nn.UninitializedParameter(), "b has no shape yet"),
    ],
)
def test_what_cannot_be_written_to_is_refused_before_anything_changes(
    path: Path, first: Any, second: Any, message: str
) -> None:
    penstock.save({"a": np.ones(3), "b": np.ones(3)}, path)
    with pytest.raises(penstock.Error, match=message):
        penstock.load_into({"a": first, "b": second}, path, assign=False)
    assert first.tolist() == [0, 0, 0]


@pytest.mark.parametrize("assign", [True, False])
def test_a_lazy_module_is_refused(path: Path, assign: bool) -> None:
    penstock.save(nn.Linear(2, 2), path)
    with pytest.raises(penstock.Error, match="weight has no shape yet: run the module once"):
        penstock.load_into(nn.LazyLinear(2), path, assign=assign)


def test_an_optimizer_is_no_target(path: Path) -> None:
    model = nn.Linear(2, 2)
    penstock.save(model, path)
    with pytest.raises(penstock.ArgumentError, match="expected a torch module or a dict of tensors, not SGD"):
        penstock.load_into(torch.optim.SGD(model.parameters(), 0.1), path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autograd_notices_that_memory_was_read_into(path: Path, dtype: torch.dtype) -> None:
    model = nn.Linear(2, 2).to(dtype)
    penstock.save(nn.Linear(2, 2), path)
    loss = model(torch.ones(1, 2, dtype=dtype, requires_grad=True)).sum()
    penstock.load_into(model, path, assign=False)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_inference_tensors_are_read_into(path: Path) -> None:
    penstock.save({"a": torch.ones(3), "b": torch.ones(2, 2)}, path)
    with torch.inference_mode():
        target = {"a": torch.zeros(3), "b": torch.zeros(2, 2).t()}
    penstock.load_into(target, path, assign=False)
    assert (target["a"].sum(), target["b"].sum()) == (3, 4)
