"""penstock.safetensors: the names, signatures and results of the safetensors package."""

from __future__ import annotations

import inspect
import tempfile
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import penstock
import penstock.safetensors
import penstock.safetensors.numpy
import penstock.safetensors.torch
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from torch import nn

TORCH_FUNCTIONS = ["load", "load_file", "load_model", "save", "save_file", "save_model"]
NUMPY_FUNCTIONS = ["load", "load_file", "save", "save_file"]


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("name", TORCH_FUNCTIONS)
def test_torch_functions_have_the_same_parameters(name: str) -> None:
    assert parameters(getattr(penstock.safetensors.torch, name)) == parameters(getattr(safetensors.torch, name))
    assert getattr(penstock.safetensors, name) is getattr(penstock.safetensors.torch, name)


@pytest.mark.parametrize("name", NUMPY_FUNCTIONS)
def test_numpy_functions_have_the_same_parameters(name: str) -> None:
    assert parameters(getattr(penstock.safetensors.numpy, name)) == parameters(getattr(safetensors.numpy, name))


def test_safe_open_has_the_same_parameters_and_methods() -> None:
    ours = [(name, kind) for name, kind, _ in parameters(penstock.safetensors.safe_open)]
    theirs = [(name, kind) for name, kind, _ in parameters(safetensors.safe_open)]
    assert ours == theirs
    public = {name for name in dir(safetensors.safe_open) if not name.startswith("_")}
    assert public <= set(dir(penstock.safetensors.safe_open))


@pytest.fixture
def file(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    return path


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_load_file_gives_the_same_dict_in_the_same_order(file: Path, backend: str) -> None:
    ours = penstock.safetensors.torch.load_file(file, backend=backend)
    theirs = safetensors.torch.load_file(file, backend=backend)
    assert list(ours) == list(theirs)
    helpers.assert_same_tensors(ours, theirs)
    helpers.assert_same_tensors(penstock.safetensors.torch.load_file(str(file), "cpu"), theirs)


def test_bytes_go_both_ways(tensors: dict[str, torch.Tensor]) -> None:
    ours = penstock.safetensors.torch.save(tensors, {"a": "b"})
    helpers.assert_same_tensors(safetensors.torch.load(ours), tensors)
    helpers.assert_same_tensors(penstock.safetensors.torch.load(safetensors.torch.save(tensors, {"a": "b"})), tensors)
    with pytest.raises(penstock.ArgumentError, match="expected bytes, not str"):
        penstock.safetensors.torch.load("text")
    with pytest.raises(penstock.FormatError):
        penstock.safetensors.torch.load(b"junk")


def test_save_file_writes_what_the_reference_reads(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    assert penstock.safetensors.torch.save_file(tensors, path, {"a": "b"}) is None
    helpers.assert_same_tensors(safetensors.torch.load_file(path), tensors)
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"a": "b"}


def test_save_file_refuses_shared_memory(path: Path) -> None:
    tensor = torch.ones(3)
    with pytest.raises(penstock.safetensors.SafetensorError):
        penstock.safetensors.torch.save_file({"a": tensor, "b": tensor}, path)


def test_numpy_functions_agree_with_the_reference(path: Path) -> None:
    arrays = {"a": np.arange(6.0).reshape(2, 3).T, "b": np.arange(4, dtype=">i4"), "c": np.float32([1, 2])}
    penstock.safetensors.numpy.save_file(arrays, path)
    theirs = safetensors.numpy.load_file(path)
    helpers.assert_same_tensors(penstock.safetensors.numpy.load_file(path), theirs)
    assert np.array_equal(theirs["a"], arrays["a"])
    assert np.array_equal(theirs["b"], arrays["b"])
    data = penstock.safetensors.numpy.save(arrays, {"k": "v"})
    helpers.assert_same_tensors(safetensors.numpy.load(data), theirs)
    helpers.assert_same_tensors(penstock.safetensors.numpy.load(safetensors.numpy.save(theirs)), theirs)


@pytest.mark.parametrize("framework", ["pt", "torch", "pytorch", "np", "numpy"])
def test_safe_open_gives_the_same_tensors(file: Path, tensors: dict[str, torch.Tensor], framework: str) -> None:
    names = [name for name, tensor in tensors.items() if tensor.dtype != torch.bfloat16]
    with penstock.safetensors.safe_open(file, framework) as ours, safetensors.safe_open(file, framework) as theirs:
        assert ours.keys() == theirs.keys()
        assert ours.offset_keys() == theirs.offset_keys()
        assert ours.metadata() == theirs.metadata()
        for name in names:
            assert helpers.same(ours.get_tensor(name), theirs.get_tensor(name))
            assert ours.get_slice(name).get_shape() == theirs.get_slice(name).get_shape()
            assert ours.get_slice(name).get_dtype() == theirs.get_slice(name).get_dtype()
        assert set(ours.get_tensors()) == set(tensors)


INDICES: list[Any] = [
    slice(None),
    0,
    -1,
    (slice(0, 1), 1),
    (slice(None), slice(None, None, 2)),
    ...,
    (..., 1),
    None,
    (0, 0, 0),
    (slice(None), [0, 2]),
    [0, 1],
    slice(1, 100),
    slice(-1, None),
    (),
    slice(2, 1),
    True,
    torch.tensor([0, 1]),
    np.int64(1),
    (slice(None), slice(1, -1)),
    (slice(None), slice(0, 0)),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_slices_are_those_of_the_reference(path: Path, index: Any) -> None:
    safetensors.torch.save_file({"x": torch.arange(24.0).reshape(2, 3, 4)}, path)
    with penstock.safetensors.safe_open(path, "pt") as ours, safetensors.safe_open(path, "pt") as theirs:
        assert helpers.same(ours.get_slice("x")[index], theirs.get_slice("x")[index])


@pytest.mark.parametrize("index", [5, (0, 0, 0, 0), (slice(None), 9)])
def test_slices_out_of_bounds_are_index_errors(path: Path, index: Any) -> None:
    safetensors.torch.save_file({"x": torch.arange(24.0).reshape(2, 3, 4)}, path)
    with penstock.safetensors.safe_open(path, "pt") as ours, pytest.raises(IndexError):
        ours.get_slice("x")[index]


def test_a_closed_file_and_an_unknown_name_are_errors(file: Path) -> None:
    with penstock.safetensors.safe_open(file, "pt") as opened:
        kept = opened.get_tensor("steps")
        for get in (opened.get_tensor, opened.get_slice):
            with pytest.raises(penstock.safetensors.SafetensorError, match="does not contain tensor absent"):
                get("absent")
    assert kept.item() == 12345
    for use in (opened.keys, opened.get_tensors, lambda: opened.get_tensor("steps")):
        with pytest.raises(penstock.safetensors.SafetensorError):
            use()


def test_a_file_without_metadata_has_none(path: Path) -> None:
    safetensors.torch.save_file({"x": torch.ones(1)}, path)
    assert penstock.safetensors.safe_open(path, "pt").metadata() is None


@pytest.mark.parametrize("arguments", [{"framework": "jaxx"}, {"framework": "pt", "backend": "carrier pigeon"}])
def test_bad_arguments_are_errors(file: Path, arguments: dict[str, str]) -> None:
    with pytest.raises(penstock.safetensors.SafetensorError):
        penstock.safetensors.safe_open(file, **arguments)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3, bias=False)
        self.b = nn.Linear(3, 3, bias=False)
        self.b.weight = self.a.weight
        self.c = nn.Linear(2, 2)
        self.register_buffer("part", self.a.weight.data[1])


def test_models_go_both_ways(tmp_path: Path) -> None:
    model = Tied()
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    penstock.safetensors.save_model(model, str(ours), {"z": "1"})
    safetensors.torch.save_model(model, str(theirs), {"z": "1"})
    helpers.assert_same_tensors(safetensors.torch.load_file(ours), safetensors.torch.load_file(theirs))
    assert penstock.open(ours).metadata == penstock.open(theirs).metadata
    for load in (penstock.safetensors.load_model, safetensors.torch.load_model):
        for path in (ours, theirs):
            fresh = Tied()
            missing, unexpected = load(fresh, path)
            assert (set(missing), list(unexpected)) == (set(), [])
            assert fresh.b.weight is fresh.a.weight
            helpers.assert_same_tensors(dict(fresh.state_dict()), dict(model.state_dict()))


def test_a_model_that_does_not_fit_is_told_as_the_reference_does(path: Path) -> None:
    safetensors.torch.save_file({"a.weight": torch.zeros(3, 3), "zz": torch.zeros(1)}, path)
    with pytest.raises(
        penstock.safetensors.SafetensorError,
        match=r'Missing key\(s\) in state_dict: "c.bias", "c.weight"; Unexpected key\(s\) in state_dict: "zz"$',
    ):
        penstock.safetensors.load_model(Tied(), path)
    ours = penstock.safetensors.load_model(Tied(), path, strict=False)
    theirs = safetensors.torch.load_model(Tied(), path, strict=False)
    assert (set(ours[0]), ours[1]) == (set(theirs[0]), theirs[1])


class Renaming(nn.Linear):
    """Takes the names of an older version."""

    def _load_from_state_dict(self, state: Any, prefix: str, *arguments: Any) -> None:
        if prefix + "old" in state:
            state[prefix + "weight"] = state.pop(prefix + "old")
        super()._load_from_state_dict(state, prefix, *arguments)


class Copying(nn.Linear):
    """Its state_dict() gives copies."""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in ("weight", "bias"):
            destination[prefix + name] = destination[prefix + name].detach().clone()


def outcome(load: Any, make: Any, path: Path, strict: bool) -> tuple[Any, dict[str, Any]]:
    """What a load_model says, and what is in the model then."""
    torch.manual_seed(0)
    model = make()
    try:
        missing, unexpected = load(model, path, strict=strict)
        told: Any = (sorted(missing), sorted(unexpected))
    except RuntimeError:
        told = RuntimeError
    return told, {name: tensor.tolist() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(
    ("make", "state"),
    [
        (lambda: Renaming(2, 2), {"old": torch.eye(2), "bias": torch.ones(2)}),
        (lambda: Copying(2, 2), {"weight": torch.eye(2), "bias": torch.ones(2)}),
        (lambda: nn.Linear(2, 2), {"weight": torch.eye(2, dtype=torch.int32), "bias": torch.ones(2)}),
        (
            lambda: nn.BatchNorm1d(2),
            {name: torch.full((2,), 3.0) for name in ("weight", "bias", "running_mean", "running_var")},
        ),
        (lambda: nn.Linear(2, 2), {"weight": torch.eye(3), "bias": torch.ones(2)}),
        (lambda: nn.Linear(2, 2), {"weight": torch.eye(2)}),
        (lambda: nn.Linear(2, 2), {"weight": torch.eye(2), "bias": torch.ones(2), "more": torch.ones(1)}),
    ],
    ids=["renamed", "copies", "integers", "old batch norm", "shape", "missing", "unexpected"],
)
@pytest.mark.parametrize("strict", [True, False])
def test_load_model_does_what_the_reference_does(path: Path, make: Any, state: dict[str, Any], strict: bool) -> None:
    safetensors.torch.save_file(state, path)
    results = [
        outcome(load, make, path, strict) for load in (penstock.safetensors.load_model, safetensors.torch.load_model)
    ]
    assert results[0] == results[1]


def test_a_file_that_does_not_fit_its_model_is_told_in_one_line(path: Path) -> None:
    safetensors.torch.save_file({"weight": torch.eye(3), "bias": torch.ones(2)}, path)
    with pytest.raises(penstock.ArgumentError, match="size mismatch for weight") as caught:
        penstock.safetensors.load_model(nn.Linear(2, 2), path)
    assert isinstance(caught.value, RuntimeError)
    assert "\n" not in str(caught.value)


def test_both_names_of_a_tie_in_the_file_are_told_as_the_reference_does(path: Path) -> None:
    safetensors.torch.save_file({"a.weight": torch.zeros(3, 3), "b.weight": torch.ones(3, 3)}, path)
    ours = penstock.safetensors.load_model(Tied(), path, strict=False)
    theirs = safetensors.torch.load_model(Tied(), path, strict=False)
    assert (set(ours[0]), sorted(ours[1])) == (set(theirs[0]), sorted(theirs[1]))


def test_load_model_leaves_the_model_on_its_device(path: Path) -> None:
    model = nn.Linear(2, 2)
    penstock.save(model, path)
    with pytest.raises(penstock.safetensors.SafetensorError):
        penstock.safetensors.load_model(model, path, device="meta")
    assert model.weight.device.type == "cpu"


@pytest.mark.parametrize("function", ["save", "save_file"])
def test_refusals_are_also_what_the_reference_raises(path: Path, function: str) -> None:
    tensor = torch.ones(3)
    arguments = () if function == "save" else (path,)
    for tensors, kind in [({"a": tensor, "b": tensor}, RuntimeError), ({"a": torch.eye(3).to_sparse()}, ValueError)]:
        with pytest.raises(kind):
            getattr(safetensors.torch, function)(tensors, *arguments)
        with pytest.raises(kind) as caught:
            getattr(penstock.safetensors.torch, function)(tensors, *arguments)
        assert isinstance(caught.value, penstock.safetensors.SafetensorError)
        assert kind is ValueError or str(caught.value).endswith(
            'tensors "a" and "b" share memory; save_model stores what is shared once'
        )
        assert "/dev/shm" not in str(caught.value)


def test_bytes_are_made_where_there_is_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a /dev/shm of 64 MB and more than that to save."""
    directories = []

    def save_with_little_memory(tensors: Any, path: Path, **arguments: Any) -> None:
        directories.append(path.parent.parent)
        if path.is_relative_to("/dev/shm"):
            raise penstock.NoSpaceError(f"{path}: no space left on device")
        penstock.save(tensors, path, **arguments)

    monkeypatch.setattr("penstock.safetensors._bytes.save", save_with_little_memory)
    data = penstock.safetensors.torch.save({"x": torch.ones(3)})
    assert safetensors.torch.load(data)["x"].tolist() == [1, 1, 1]
    assert directories[-1] == Path(tempfile.gettempdir())


def test_errors_in_bytes_say_bytes() -> None:
    with pytest.raises(penstock.FormatError, match="^<bytes>: "):
        penstock.safetensors.torch.load(b"x" * 100)


def test_bytearrays_are_bytes(tensors: dict[str, torch.Tensor]) -> None:
    data = safetensors.torch.save(tensors)
    helpers.assert_same_tensors(penstock.safetensors.torch.load(bytearray(data)), tensors)
    helpers.assert_same_tensors(penstock.safetensors.torch.load(memoryview(data)), tensors)


@pytest.mark.parametrize("index", [slice(0, 1), [0, 1]])
def test_a_slice_outlives_its_file(path: Path, index: Any) -> None:
    safetensors.torch.save_file({"x": torch.arange(6.0)}, path)
    with penstock.safetensors.safe_open(path, "pt") as ours, safetensors.safe_open(path, "pt") as theirs:
        slices = ours.get_slice("x"), theirs.get_slice("x")
    assert helpers.same(slices[0][index], slices[1][index])


def test_empty_metadata_is_not_none(path: Path) -> None:
    safetensors.torch.save_file({"x": torch.ones(1)}, path, metadata={})
    with penstock.safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {}


@pytest.mark.parametrize(("framework", "device"), [("pt", "foo"), ("np", "cuda:0"), ("np", 0)])
def test_a_device_that_is_none_is_refused_at_once(file: Path, framework: str, device: Any) -> None:
    with pytest.raises(safetensors.SafetensorError):
        safetensors.safe_open(file, framework, device)
    with pytest.raises(penstock.safetensors.SafetensorError):
        penstock.safetensors.safe_open(file, framework, device)
    with pytest.raises(penstock.ArgumentError):
        penstock.stream(file, device, framework=framework)


def test_a_single_element_is_an_array(path: Path) -> None:
    safetensors.torch.save_file({"x": torch.arange(24.0).reshape(2, 3, 4)}, path)
    with penstock.safetensors.safe_open(path, "np") as ours, safetensors.safe_open(path, "np") as theirs:
        for file in (ours, theirs):
            element = file.get_slice("x")[1, 1, 1]
            assert (type(element), element.shape, element.item()) == (np.ndarray, (), 17)


def test_tensors_that_cover_each_other_only_in_part_cannot_be_a_model(path: Path) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            block = torch.zeros(6)
            self.register_buffer("a", block[:4])
            self.register_buffer("b", block[2:])

    with pytest.raises(penstock.ArgumentError, match="a, b share memory, and none of them holds it all"):
        penstock.safetensors.save_model(Odd(), str(path))
