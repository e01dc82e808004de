"""assign_from_file, where file and model do not agree: all or none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import helpers
import penstock
import pytest
import torch
from flashpack_models import KEEP, Model, Tied, assert_untouched, refused, snapshot
from penstock.flashpack import assign_from_file, pack_to_file
from torch import nn


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.flashpack"


# What does not fit


def test_missing_parameters_are_refused_by_default(path: Path) -> None:
    pack_to_file({"weight": torch.ones(1, 2)}, path)
    assert refused(nn.Linear(2, 1), path) == "Missing 1 parameters: bias"
    assert refused(nn.Linear(2, 1), path, strict=True) == "Missing 1 parameters: bias"
    assert refused(nn.Linear(2, 1), path, keep_flash_ref_on_model=True).endswith("bias")
    assign_from_file(nn.Linear(2, 1), path, strict_params=False)
    assign_from_file(nn.Linear(2, 1), path, strict=False)


def test_missing_buffers_are_refused_where_that_is_asked_for(path: Path) -> None:
    model = Model()
    state = dict(model.state_dict())
    del state["norm.running_mean"]
    pack_to_file(state, path)
    assign_from_file(model, path)
    message = "Missing 1 buffers: norm.running_mean"
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
    message = "Could not assign 1 names: extra (not in the model)"
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
        "Missing 1 parameters: 0.bias; "
        "Could not assign 8 names: extra.0, extra.1, extra.2, extra.3, extra.4 and 3 more (not in the model); "
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
    message = "dtype mismatch for parameter 'weight': int64 in the file and float32 in the model"
    assert refused(model, path) == f"{message} (coerce_dtype=True converts it)"
    with pytest.warns(UserWarning, match=message):
        assign_from_file(model, path, strict=False)
    assign_from_file(model, path, coerce_dtype=True)
    assert (model.weight.dtype, model.weight.tolist(), model.weight.requires_grad) == (torch.float32, [[1, 2]], True)


def test_a_buffer_keeps_its_type_or_is_refused(path: Path) -> None:
    model = nn.BatchNorm1d(2)
    pack_to_file(model, path, torch.float16)  # the counter too
    message = refused(model, path)
    assert "dtype mismatch for buffer 'running_mean': float16 in the file and float32 in the model" in message
    assert "dtype mismatch for buffer 'num_batches_tracked': float16 in the file and int64 in the model" in message
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
    match_names, read_blocks = _assign.match_names, deserialization.read_blocks

    def match_and_shrink(*arguments: Any) -> Any:
        os.truncate(path, 2**20)
        return match_names(*arguments)

    def shrink_and_read(reader: Any) -> Any:
        os.truncate(path, 2**20)
        return read_blocks(reader)

    monkeypatch.setattr(_assign, "match_names", match_and_shrink)
    monkeypatch.setattr(deserialization, "read_blocks", shrink_and_read)
    with pytest.raises(penstock.ChangedError, match=str(path)):
        assign_from_file(model, path, keep_flash_ref_on_model=keep)
    assert_untouched(model, before)


def test_no_descriptor_stays_open(path: Path, no_leaks: None) -> None:
    model = nn.Linear(3, 2)
    pack_to_file(model, path)
    for keep in (False, True):
        assign_from_file(model, path, keep_flash_ref_on_model=keep)


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
    with pytest.raises(penstock.ArgumentError, match="Could not assign 1 names: _extra_state"):
        assign_from_file(nn.ModuleDict({"inner": nn.Linear(2, 2)}), path)


def test_extra_state_that_is_missing_counts_as_a_buffer(path: Path) -> None:
    pack_to_file(nn.ModuleDict({"inner": nn.Linear(2, 2)}), path)
    model = Counting(torch.ones(1))
    assign_from_file(model, path)
    assert torch.equal(model.state, torch.ones(1))
    with pytest.raises(penstock.ArgumentError, match="Missing 1 buffers: _extra_state"):
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
