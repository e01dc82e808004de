"""penstock.safetensors has every public name of the safetensors package, and errors of the same kinds."""

from __future__ import annotations

import importlib
import inspect
import io
from pathlib import Path
from types import ModuleType
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

MODULES = ["", ".torch", ".numpy", ".flax", ".tensorflow", ".mlx", ".paddle"]
LIBRARY_OF = {".flax": "jax", ".tensorflow": "tensorflow", ".mlx": "mlx", ".paddle": "paddle"}


def is_theirs(value: Any) -> bool:
    """Whether it is safetensors' own, and not what a module of it has imported. Its classes say "builtins"."""
    module = getattr(value, "__module__", None) or ""
    return module.startswith("safetensors") or (
        module == "builtins" and getattr(safetensors, value.__name__, 0) is value
    )


def public_names(module: ModuleType) -> dict[str, Any]:
    found = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return {name: value for name, value in found.items() if not isinstance(value, ModuleType) and is_theirs(value)}


def parameters(function: Any) -> list[tuple[str, Any, bool]]:
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default is not inspect.Parameter.empty) for p in found if p.name != "self"]


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_here_with_the_same_parameters(module: str) -> None:
    if module in LIBRARY_OF:
        pytest.importorskip(LIBRARY_OF[module], reason=f"{LIBRARY_OF[module]} is not installed")
    theirs = public_names(importlib.import_module(f"safetensors{module}"))
    ours = importlib.import_module(f"penstock.safetensors{module}")
    assert {"load_file", "save_file"} <= set(theirs) or module == ""
    assert set(theirs) <= set(ours.__all__)
    for name, value in theirs.items():
        if not (isinstance(value, type) and issubclass(value, Exception)):
            assert parameters(getattr(ours, name)) == parameters(value), name


@pytest.mark.parametrize("name", ["safe_open", "_safe_open_handle", "TensorSpec"])
def test_classes_have_the_same_methods(name: str) -> None:
    theirs, ours = getattr(safetensors, name), getattr(penstock.safetensors, name)
    public = {method for method in dir(theirs) if not method.startswith("_")} | {"__enter__", "__exit__"} & set(
        dir(theirs)
    )
    assert public
    for method in public:
        if callable(getattr(theirs, method)) and not method.startswith("__"):
            assert parameters(getattr(ours, method)) == parameters(getattr(theirs, method)), method
        assert hasattr(ours, method)


def test_the_version_is_that_of_the_names() -> None:
    assert penstock.safetensors.__version__ == safetensors.__version__


TENSOR = torch.arange(6.0).reshape(2, 3)
MISTAKES: dict[str, tuple[Any, str]] = {
    "meta": ({"a": torch.zeros(2, device="meta")}, "Cannot copy out of meta tensor"),
    "sparse": ({"a": TENSOR.to_sparse()}, "to_dense"),
    "not contiguous": ({"a": TENSOR.T}, "non contiguous"),
    "shared": ({"a": TENSOR, "b": TENSOR}, "share memory"),
    "a dict": ({"a": {}}, "expected"),
    "nothing": ({"a": None}, "expected"),
    "no dict": ("text", "a dict of"),
    "a list": ([TENSOR], "a dict of"),
    "a number as name": ({1: TENSOR}, "int"),
}


@pytest.mark.parametrize(("tensors", "words"), MISTAKES.values(), ids=MISTAKES.keys())
@pytest.mark.parametrize("function", ["save", "save_file"])
def test_what_can_not_be_saved_is_the_same_kind_of_error(path: Path, function: str, tensors: Any, words: str) -> None:
    arguments = () if function == "save" else (path,)
    with pytest.raises(Exception, match=words) as theirs:
        getattr(safetensors.torch, function)(tensors, *arguments)
    with pytest.raises(type(theirs.value), match=words) as ours:
        getattr(penstock.safetensors.torch, function)(tensors, *arguments)
    assert isinstance(ours.value, penstock.safetensors.SafetensorError)
    assert not path.exists()


@pytest.mark.parametrize("metadata", [{"a": 1}, {1: "a"}, "text", [("a", "b")]], ids=str)
@pytest.mark.parametrize("module", ["torch", "numpy"])
def test_metadata_of_the_wrong_type_is_a_type_error(path: Path, module: str, metadata: Any) -> None:
    tensors = {"a": TENSOR if module == "torch" else TENSOR.numpy()}
    for package in ("safetensors", "penstock.safetensors"):
        functions = importlib.import_module(f"{package}.{module}")
        with pytest.raises(TypeError):
            functions.save_file(tensors, path, metadata)
        with pytest.raises(TypeError):
            functions.save(tensors, metadata)


def test_arguments_of_the_wrong_type_are_type_errors(path: Path) -> None:
    safetensors.torch.save_file({"a": TENSOR}, path)
    with path.open("rb") as opened:
        for use in (
            lambda package, torch_module: package.safe_open(path, None),
            lambda package, torch_module: package.safe_open(path, "pt", backend=None),
            lambda package, torch_module: package.safe_open(3, "pt"),
            lambda package, torch_module: package.safe_open(path, "pt").get_tensor(1),
            lambda package, torch_module: torch_module.load_file(opened),
            lambda package, torch_module: torch_module.load("text"),
            lambda package, torch_module: torch_module.save_file({"a": TENSOR}, 3),
            lambda package, torch_module: package.deserialize("text"),
            lambda package, torch_module: package.serialize("text"),
            lambda package, torch_module: package.serialize({"a": {"dtype": "float32"}}),
            lambda package, torch_module: package.TensorSpec("float32", [1], 0, 0),
            lambda package, torch_module: package.TensorSpec(dtype=3, shape=[1], data_ptr=0, data_len=0),
            lambda package, torch_module: package.TensorSpec(dtype="int8", shape=3, data_ptr=0, data_len=0),
            lambda package, torch_module: package.TensorSpec(dtype="int8", shape=[1], data_ptr="a", data_len=0),
        ):
            with pytest.raises(TypeError):
                use(safetensors, safetensors.torch)
            with pytest.raises(TypeError):
                use(penstock.safetensors, penstock.safetensors.torch)


@pytest.mark.parametrize("function", ["load_file", "safe_open"])
def test_a_missing_file_is_a_file_not_found_error(tmp_path: Path, function: str) -> None:
    for package in ("safetensors", "penstock.safetensors"):
        module = importlib.import_module(f"{package}.torch")
        with pytest.raises(FileNotFoundError, match="No such file or directory"):
            getattr(module, function)(tmp_path / "none", *(["pt"] if function == "safe_open" else []))


def spec(array: Any, **changes: Any) -> dict[str, Any]:
    fields = {"dtype": array.dtype.name, "shape": list(array.shape), "data_ptr": array.ctypes.data}
    return {**fields, "data_len": array.nbytes, **changes}


def test_serialize_gives_the_bytes_of_the_reference(path: Path) -> None:
    arrays = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.zeros((2, 2), np.uint8), "e": np.empty((0, 3))}
    results = []
    for package in (safetensors, penstock.safetensors):
        specs = {name: package.TensorSpec(**spec(array)) for name, array in arrays.items()}
        assert package.serialize_file(specs, path, {"k": "v"}) is None
        assert path.read_bytes() == package.serialize(specs, metadata={"k": "v"})
        assert dict(package.deserialize(path.read_bytes()))["b"]["data"] == arrays["b"].tobytes()
        found = dict(package.deserialize(path.read_bytes()))  # in any order
        results.append((package.serialize(specs), found, package.serialize({})))
    assert results[0] == results[1]


def test_deserialize_knows_types_that_no_framework_has() -> None:
    data = helpers.header_bytes(helpers.one_tensor("F6_E2M3", [4], 3)) + b"\x01\x02\x03"
    expected = [("x", {"dtype": "F6_E2M3", "shape": [4], "data": bytearray(b"\x01\x02\x03")})]
    assert penstock.safetensors.deserialize(data) == safetensors.deserialize(data) == expected


def test_a_tensor_spec_is_that_of_the_reference() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    ours, theirs = penstock.safetensors.TensorSpec(**spec(array)), safetensors.TensorSpec(**spec(array))
    assert repr(ours) == repr(theirs)
    assert (ours.dtype, ours.shape, ours.data_ptr, ours.data_len) == ("F32", [2, 3], array.ctypes.data, 24)
    with pytest.raises(AttributeError):
        ours.shape = [6]
    for packed in (penstock.safetensors.TensorSpec, safetensors.TensorSpec):
        assert packed(**spec(array, dtype="float4_e2m1fn_x2", shape=[2, 3])).shape == [2, 6]


@pytest.mark.parametrize("dtype", ["F32", "nonsense", "complex128", "float", "torch.float32"])
def test_an_unknown_dtype_is_refused_when_the_spec_is_made(dtype: str) -> None:
    for package in (safetensors, penstock.safetensors):
        with pytest.raises(package.SafetensorError, match=f"(?i)unknown dtype .{dtype}"):
            package.TensorSpec(dtype=dtype, shape=[1], data_ptr=0, data_len=0)


def test_specs_that_do_not_add_up_are_refused() -> None:
    array = np.zeros(6, np.float32)
    make = penstock.safetensors.TensorSpec
    with pytest.raises(penstock.ArgumentError, match=r"a: F32 of shape \[6\] takes 24 bytes, and data_len is 20"):
        penstock.safetensors.serialize({"a": make(**spec(array, data_len=20))})
    with pytest.raises(penstock.ArgumentError, match="data_ptr is 0, and 24 bytes are to be read there"):
        penstock.safetensors.serialize({"a": make(**spec(array, data_ptr=0))})
    for field in ({"shape": [-1]}, {"data_len": -1}, {"data_ptr": -1}):
        with pytest.raises(penstock.ArgumentError, match="-1 is not between 0 and"):
            make(**spec(array, **field))


def test_storage_functions_are_those_of_the_reference() -> None:
    whole = torch.zeros(4, 4)
    for tensor in (whole, whole[1], whole[0, ::2], torch.zeros(2, device="meta"), torch.empty(0)):
        for name in ("storage_ptr", "storage_size", "_is_complete", "_end_ptr"):
            ours, theirs = getattr(penstock.safetensors.torch, name), getattr(safetensors.torch, name)
            if not (tensor.is_meta and name == "_end_ptr"):  # a tensor without memory ends nowhere
                assert ours(tensor) == theirs(tensor), (name, tensor)
    assert penstock.safetensors.torch.storage_ptr(whole.to_sparse()) == 0


def test_shared_tensors_are_found_as_the_reference_does() -> None:
    block, other = torch.zeros(6), torch.zeros(3)
    state = {"all": block, "part": block[:2], "other": other, "again": other, "meta": torch.zeros(1, device="meta")}
    for names in (["all", "part"], ["other", "again", "all"], ["meta"], list(state)):
        some = {name: state[name] for name in names}
        ours, theirs = (
            penstock.safetensors.torch._find_shared_tensors(some),
            safetensors.torch._find_shared_tensors(some),
        )
        assert ours == theirs
        remove = [module._remove_duplicate_names for module in (penstock.safetensors.torch, safetensors.torch)]
        for choice in ({}, {"preferred_names": ["other"]}, {"discard_names": ["again"]}):
            assert remove[0](some, **choice) == remove[1](some, **choice)
    with pytest.raises(RuntimeError):
        penstock.safetensors.torch._remove_duplicate_names({"part": block[:2]})


def test_a_model_is_saved_contiguous_only_when_it_may_be(path: Path) -> None:
    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.arange(6.0).reshape(2, 3).T)

    for module in (safetensors.torch, penstock.safetensors.torch):
        with pytest.raises(ValueError, match=r"use save_model\(..., force_contiguous=True\)"):
            module.save_model(Transposed(), str(path), force_contiguous=False)
        module.save_model(Transposed(), str(path))
        assert safetensors.torch.load_file(path)["weight"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_an_open_file_is_read_after_it_was_closed(path: Path) -> None:
    safetensors.torch.save_file({"a": TENSOR}, path)
    with path.open("rb") as file:
        file.read(5)
        handle = penstock.safetensors._safe_open_handle(file, "pt")
    path.unlink()
    with handle:
        assert handle.metadata() is None
        assert helpers.same(handle.get_tensor("a"), TENSOR)
    with pytest.raises(TypeError, match="expected an open file, not str"):
        penstock.safetensors._safe_open_handle("text", "pt")
    with pytest.raises(io.UnsupportedOperation):
        penstock.safetensors._safe_open_handle(io.BytesIO(b"text"), "pt")
    path.write_bytes(b"junk" * 20)
    with path.open("rb") as file, pytest.raises(penstock.FormatError, match=f"^{path}: "):
        penstock.safetensors._safe_open_handle(file, "pt")


def test_the_header_entry_of_a_tensor_is_what_the_file_says(path: Path) -> None:
    safetensors.torch.save_file({"a": TENSOR, "b": torch.zeros(3, dtype=torch.uint8), "e": torch.empty(0, 4)}, path)
    with penstock.safetensors.safe_open(path, "pt") as file:
        assert file.get_tensor_meta("a") == ("F32", [2, 3], (0, 24))
        assert file.get_tensor_meta("b").data_offsets == (24, 27)
        assert file.get_tensor_meta("e").shape == [0, 4]
        with pytest.raises(penstock.safetensors.SafetensorError, match="does not contain tensor absent"):
            file.get_tensor_meta("absent")
