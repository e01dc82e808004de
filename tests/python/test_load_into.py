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


@pytest.mark.parametrize("assign", [None, True, False])
def test_a_module_is_loaded_and_its_ties_kept(file: Path, state: dict[str, torch.Tensor], assign: bool | None) -> None:
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


def test_an_optimizer_made_before_goes_on_training_what_was_loaded(path: Path) -> None:
    torch.manual_seed(3)
    source = nn.Linear(8, 1)
    penstock.save(source, path)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    penstock.load_into(model, path)
    assert torch.equal(model.weight, source.weight)
    inputs, wanted = torch.randn(32, 8), torch.randn(32, 1)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_a_model_keeps_its_element_types(file: Path, state: dict[str, torch.Tensor]) -> None:
    model = Tied().bfloat16()
    penstock.load_into(model, file)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert torch.equal(model.norm.weight, state["norm.weight"].bfloat16())


def test_what_is_on_meta_is_assigned_and_the_rest_read_in_place(file: Path, state: dict[str, torch.Tensor]) -> None:
    with torch.device("meta"):
        model = Tied()
    model.norm = nn.LayerNorm(4).half()
    kept = model.norm.weight
    calls: list[tuple[int, int]] = []
    stats = penstock.Stats()
    result = penstock.load_into(model, file, stats=stats, progress=lambda done, total: calls.append((done, total)))
    assert result.meta_keys == []
    assert model.norm.weight is kept
    assert torch.equal(kept, state["norm.weight"].half())
    assert torch.equal(model.embed.weight, state["embed.weight"])
    assert model.head.weight is model.embed.weight
    nbytes = sum(tensor.nbytes for tensor in state.values())
    assert (stats.bytes, stats.tensors) == (nbytes, 4)
    assert calls[-1] == (nbytes, nbytes)
    assert calls == sorted(calls)


def test_reading_in_place_takes_no_second_copy_of_the_model(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    penstock.save({f"w{i}": torch.full((2**20,), float(i)) for i in range(16)}, path)
    pool = penstock.MemoryPool()
    most = 0

    def watch(done: int, total: int) -> None:
        nonlocal most
        most = max(most, pool.used_bytes)

    straight = {f"w{i}": torch.zeros(2**20) for i in range(16)}
    penstock.load_into(straight, path, pool=pool, cache="direct", progress=watch)
    assert most <= 16 * 2**20  # blocks on their way
    most = 0
    turned = {f"w{i}": torch.zeros(2**21)[::2] for i in range(16)}
    penstock.load_into(turned, path, pool=pool, cache="direct", progress=watch, max_buffer="4MiB")
    assert 0 < most <= 32 * 2**20
    for name, tensor in straight.items():
        assert torch.equal(tensor, turned[name])
        assert tensor[0] == float(name[1:])


class Turned(nn.Module):
    """A parameter whose elements don't follow each other in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 6).t())


@pytest.mark.parametrize("assign", [None, False])
def test_a_parameter_that_is_not_contiguous_is_copied_into(path: Path, assign: bool | None) -> None:
    penstock.save({"weight": torch.arange(24.0).reshape(6, 4)}, path)
    model = Turned()
    kept = model.weight
    penstock.load_into(model, path, assign=assign)
    assert model.weight is kept
    assert model.weight.requires_grad
    assert torch.equal(model.weight, torch.arange(24.0).reshape(6, 4))


class Elsewhere(torch.Tensor):
    """A tensor that has no memory of this process, as those of an accelerator. An ordinary one does its work."""

    @staticmethod
    def __new__(cls, local: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, local.shape, dtype=local.dtype, device="cpu")

    def __init__(self, local: torch.Tensor) -> None:
        self.local = local

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if function is torch.ops.aten.copy_.default:
            arguments[0].local.copy_(arguments[1])
            return arguments[0]
        assert function is torch.ops.aten.detach.default, f"{function} is not expected here"
        return cls(arguments[0].local)


@pytest.mark.parametrize("assign", [None, False])
def test_a_parameter_whose_memory_is_elsewhere_is_copied_into(path: Path, assign: bool | None) -> None:
    model = nn.Module()
    local = torch.zeros(2, 3)
    model.weight = nn.Parameter(Elsewhere(local))
    penstock.save({"weight": torch.arange(6.0).reshape(2, 3)}, path)
    kept = model.weight
    penstock.load_into(model, path, assign=assign)
    assert model.weight is kept
    assert model.weight.requires_grad
    assert torch.equal(local, torch.arange(6.0).reshape(2, 3))


class Rotary(nn.Module):
    """A buffer that no checkpoint holds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("frequencies", torch.ones(2), persistent=False)


def test_buffers_that_stay_on_meta_are_named(path: Path) -> None:
    penstock.save(Rotary(), path)
    with torch.device("meta"):
        model = nn.ModuleDict({"rotary": Rotary()})
    with pytest.warns(UserWarning, match="still on the meta device, .*: rotary.frequencies; make them again") as caught:
        result = penstock.load_into(model, path, rename=penstock.add_prefix("rotary."))
    assert caught[0].filename == __file__
    assert result == ([], [])
    assert result.meta_keys == ["rotary.frequencies"]
    assert "meta_keys=['rotary.frequencies']" in repr(result)
    assert not model["rotary"].linear.weight.is_meta


def test_what_is_missing_and_on_meta_is_told_without_a_warning(path: Path) -> None:
    penstock.save({"weight": torch.ones(2, 2)}, path)
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    result = penstock.load_into(model, path, strict=False)
    assert result == (["bias"], [])
    assert result.meta_keys == ["bias"]


@pytest.mark.parametrize(
    ("in_file", "in_target", "hint"),
    [
        ("model.", "", "every name in the file starts with 'model.': rename=penstock.strip_prefix('model.')"),
        ("", "module.", "every name in the target starts with 'module.': rename=penstock.add_prefix('module.')"),
        ("a.b/", "", "every name in the file starts with 'a.b/': rename=penstock.strip_prefix('a.b/')"),
    ],
)
def test_names_that_differ_by_a_prefix_say_what_to_type(path: Path, in_file: str, in_target: str, hint: str) -> None:
    penstock.save({f"{in_file}{name}": torch.ones(2) for name in ("x.weight", "x.bias")}, path)
    target = {f"{in_target}{name}": torch.zeros(2) for name in ("x.weight", "x.bias")}
    with pytest.raises(penstock.ArgumentError) as caught:
        penstock.load_into(target, path)
    assert str(caught.value).endswith(hint)
    with pytest.warns(UserWarning, match="nothing was loaded: every name"):
        penstock.load_into(target, path, strict=False)
    assert target[f"{in_target}x.bias"].tolist() == [0, 0]
    rename = eval(hint.partition("rename=")[2])  # what it says can be typed
    assert penstock.load_into(target, path, rename=rename) == ([], [])
    assert target[f"{in_target}x.bias"].tolist() == [1, 1]


def test_a_prefix_of_some_names_needs_a_selection_too(tmp_path: Path) -> None:
    path = tmp_path / "lightning.pt"
    torch.save({"state_dict": {"w": torch.ones(2), "b": torch.ones(1)}, "optimizer": {"m": torch.ones(2)}}, path)
    target = {"w": torch.zeros(2), "b": torch.zeros(1)}
    hint = "2 of 3 names in the file start with 'state_dict/': select='state_dict/*', rename=penstock.strip_prefix"
    with pytest.raises(penstock.ArgumentError) as caught:
        penstock.load_into(target, path)
    assert hint in str(caught.value)
    penstock.load_into(target, path, select="state_dict/*", rename=penstock.strip_prefix("state_dict/"))
    assert target["w"].tolist() == [1, 1]


def test_names_that_have_nothing_in_common_get_no_hint(path: Path) -> None:
    penstock.save({"a.b": torch.ones(1)}, path)
    with pytest.raises(penstock.ArgumentError) as caught:
        penstock.load_into({"c.d": torch.zeros(1)}, path)
    assert str(caught.value) == "the checkpoint does not fit its target: not in the file: c.d; not in the target: a.b"


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


@pytest.mark.parametrize("assign", [None, True, False])
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
    path: Path, state: dict[str, torch.Tensor], how: str, message: str, assign: bool | None
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
    penstock.load_into(model, path, assign=True)
    assert model.norm.weight.dtype == torch.bfloat16
    penstock.load_into(model, path, assign=True, dtype=torch.float16)
    assert model.norm.weight.dtype == torch.float16
    assert isinstance(model.norm.weight, nn.Parameter)


@pytest.mark.parametrize("assign", [None, False])
def test_memory_keeps_its_type_and_asking_for_another_is_refused(
    file: Path, state: dict[str, torch.Tensor], assign: bool | None
) -> None:
    model = Tied()
    with pytest.raises(penstock.ArgumentError, match="has memory of F32: to make it F16, dtype= needs assign=True"):
        penstock.load_into(model, file, dtype="half", assign=assign)
    assert not torch.equal(model.norm.weight, state["norm.weight"])
    penstock.load_into(model, file, dtype="fp32", assign=assign)
    assert torch.equal(model.norm.weight, state["norm.weight"])
    with torch.device("meta"):
        empty = Tied()
    penstock.load_into(empty, file, dtype="half")
    assert empty.norm.weight.dtype == torch.float16


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


def test_what_is_left_over_can_be_changed_in_a_copy() -> None:
    found = penstock.LoadedInto(["a"], ["b"], ["c"])
    assert repr(found._replace(missing_keys=[])) == (
        "LoadedInto(missing_keys=[], unexpected_keys=['b'], meta_keys=['c'])"
    )
    assert repr(found._replace(meta_keys=[])) == "LoadedInto(missing_keys=['a'], unexpected_keys=['b'], meta_keys=[])"
    with pytest.raises(ValueError, match="nobody"):
        found._replace(nobody=[])
