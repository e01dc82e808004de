"""Frameworks whose arrays are made of NumPy's: jax and flax, tensorflow, mlx, paddle."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import penstock
import penstock.safetensors
import penstock.safetensors.numpy
import pytest

LIBRARIES = {"flax": "jax", "tensorflow": "tensorflow", "mlx": "mlx", "paddle": "paddle"}
FRAMEWORKS = {
    "flax": "jax",
    "jax": "jax",
    "tf": "tensorflow",
    "tensorflow": "tensorflow",
    "mlx": "mlx",
    "paddle": "paddle",
}


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """No such library is installed."""
    known = importlib.import_module

    def find(name: str, *rest: Any) -> Any:
        if name.split(".")[0] in LIBRARIES.values():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return known(name, *rest)

    monkeypatch.setattr("penstock.safetensors._libraries.import_module", find)


@pytest.mark.usefixtures("absent")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_that_is_absent_is_named_with_what_to_type(path: Path, framework: str) -> None:
    penstock.safetensors.numpy.save_file({"a": np.zeros(2)}, path)
    with pytest.raises(
        ModuleNotFoundError, match=f"^{FRAMEWORKS[framework]} can't be imported .*: pip install "
    ) as caught:
        penstock.safetensors.safe_open(path, framework)
    assert isinstance(caught.value, penstock.LibraryError)


@pytest.mark.usefixtures("absent")
@pytest.mark.parametrize("module", LIBRARIES)
def test_importing_the_module_of_an_absent_framework_is_an_import_error(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.delitem(sys.modules, f"penstock.safetensors.{module}", raising=False)
    with pytest.raises(ImportError, match=f"^{LIBRARIES[module]} can't be imported"):
        __import__(f"penstock.safetensors.{module}")


@pytest.mark.parametrize("module", LIBRARIES)
def test_arrays_of_a_library_go_both_ways(path: Path, module: str) -> None:
    pytest.importorskip(LIBRARIES[module], reason=f"{LIBRARIES[module]} is not installed")
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    arrays = {
        "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
        "brain": np.arange(4).astype(ml_dtypes.bfloat16),
        "whole": np.arange(3, dtype=np.int32),
        "truth": np.array([True, False]),
        "scalar": np.array(2.5, np.float32),
        "empty": np.empty((2, 0), np.float32),
    }
    data = penstock.safetensors.numpy.save(arrays)
    functions = importlib.import_module(f"penstock.safetensors.{module}")
    loaded = functions.load(data)
    assert functions.save(loaded) == data
    functions.save_file(loaded, path, {"k": "v"})
    assert functions.save(functions.load_file(path)) == data
    with penstock.safetensors.safe_open(path, module) as file:
        assert file.metadata() == {"k": "v"}
        assert functions.save(file.get_tensors()) == data
        assert functions.save(dict(file.prefetch())) == data
        assert type(file.get_tensor("matrix")) is type(loaded["matrix"])
        assert np.asarray(file.get_slice("matrix")[1:, 1:]).tolist() == [[4, 5]]
        with pytest.raises(penstock.ArgumentError, match="made on its own default device, not on cuda:0"):
            penstock.safetensors.safe_open(path, module, "cuda:0")
    with pytest.raises(penstock.ArgumentError, match="a: expected"):
        functions.save({"a": None})


class Echo:
    """A library whose arrays are NumPy's, and which refuses one type."""

    @staticmethod
    def convert_to_tensor(array: Any) -> Any:
        if array.dtype == np.uint16:
            raise TypeError("no uint16\nand more lines")
        return array


def test_a_type_that_a_library_lacks_names_the_tensor(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.safetensors._libraries.import_module", lambda name: Echo)
    penstock.safetensors.numpy.save_file({"good": np.arange(3), "bad": np.zeros(2, np.uint16)}, path)
    file = penstock.safetensors.safe_open(path, "tf")
    assert file.get_tensor("good").tolist() == [0, 1, 2]
    with pytest.raises(penstock.UnsupportedError, match="^bad: tensorflow can't take uint16 of a file: no uint16$"):
        file.get_tensor("bad")
