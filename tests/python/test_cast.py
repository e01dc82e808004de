"""dtype= converts on the way, bit for bit as torch does."""

from __future__ import annotations

from pathlib import Path

import helpers
import numpy as np
import penstock
import pytest
import torch

FLOATS = [
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
]


def values(dtype: torch.dtype) -> torch.Tensor:
    """Ordinary values, every small bit pattern, infinities, zeros and the edges of rounding."""
    if dtype.itemsize <= 2:
        bits = torch.arange(256 if dtype.itemsize == 1 else 65536, dtype=torch.int32)
        patterns = bits.to(torch.uint8) if dtype.itemsize == 1 else bits.to(torch.uint16)
        tensor = patterns.view(dtype)
        return tensor[~tensor.to(torch.float64).isnan()]
    generator = torch.Generator().manual_seed(3)
    spread = torch.randn(20000, generator=generator, dtype=torch.float64) * torch.logspace(
        -12, 12, 20000, dtype=torch.float64
    )
    edges = torch.tensor(
        [0.0, -0.0, 1.0, 448.0, 464.0, 480.0, 57344.0, 61440.0, 65504.0, 65520.0, float("inf"), -float("inf")]
    )
    return torch.cat([spread, edges.double()]).to(dtype)


@pytest.mark.parametrize("target", FLOATS)
@pytest.mark.parametrize("source", FLOATS)
def test_a_conversion_equals_that_of_torch(path: Path, source: str, target: str) -> None:
    tensor = values(getattr(torch, source))
    penstock.save({"x": tensor}, path)
    loaded = penstock.load(path, dtype=target)["x"]
    assert helpers.same(loaded, tensor.to(getattr(torch, target)))


def test_nan_stays_nan(path: Path) -> None:
    penstock.save({"x": torch.tensor([float("nan"), 1.0])}, path)
    for target in FLOATS:
        assert penstock.load(path, dtype=target)["x"].float().isnan().tolist() == [True, False]


def test_only_floating_tensors_are_converted(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    penstock.save(tensors, path)
    expected = {name: t.half() if t.is_floating_point() else t for name, t in tensors.items()}
    helpers.assert_same_tensors(penstock.load(path, dtype=torch.float16), expected)
    helpers.assert_same_tensors(dict(penstock.stream(path, dtype=torch.float16)), expected)


def test_a_lazy_tensor_converts_too(path: Path) -> None:
    tensor = torch.randn(4, 5)
    penstock.save({"x": tensor}, path)
    assert helpers.same(penstock.open(path)["x"].load(dtype="bfloat16"), tensor.bfloat16())


def test_a_type_that_cannot_be_a_target_is_refused(path: Path) -> None:
    penstock.save({"x": torch.ones(3)}, path)
    with pytest.raises(penstock.Error):
        penstock.load(path, dtype="int8")


def test_numpy_converts_without_having_the_source_type(path: Path) -> None:
    tensor = torch.randn(4, 5).bfloat16()
    penstock.save({"x": tensor}, path)
    array = penstock.load(path, framework="numpy", dtype="float32")["x"]
    assert np.array_equal(array, tensor.float().numpy())
