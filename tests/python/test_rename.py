"""rename=: by dict, by callable, by prefix, in loads, streams and conversions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock
import pytest
import torch

TENSORS = {"model.a": torch.ones(2), "model.b": torch.full((3,), 2.0), "head": torch.zeros(1)}


@pytest.fixture
def file(path: Path) -> Path:
    penstock.save(TENSORS, path)
    return path


def loaded(file: Path, **arguments: Any) -> dict[str, Any]:
    return penstock.load(file, **arguments)


def streamed(file: Path, **arguments: Any) -> dict[str, Any]:
    return dict(penstock.stream(file, **arguments))


def converted(file: Path, **arguments: Any) -> dict[str, Any]:
    target = file.with_name("renamed.safetensors")
    penstock.convert(file, target, **arguments)
    return penstock.load(target)


WAYS = pytest.mark.parametrize("way", [loaded, streamed, converted])


@WAYS
@pytest.mark.parametrize(
    ("rename", "expected"),
    [
        ({"model.a": "x"}, {"x": "model.a", "model.b": "model.b", "head": "head"}),
        (penstock.strip_prefix("model."), {"a": "model.a", "b": "model.b", "head": "head"}),
        (penstock.strip_prefix("head"), {"model.a": "model.a", "model.b": "model.b", "head": "head"}),
        (penstock.add_prefix("m/"), {"m/model.a": "model.a", "m/model.b": "model.b", "m/head": "head"}),
        (str.upper, {"MODEL.A": "model.a", "MODEL.B": "model.b", "HEAD": "head"}),
        ({"model.a": "model.b", "model.b": "model.a"}, {"model.b": "model.a", "model.a": "model.b", "head": "head"}),
    ],
)
def test_tensors_get_their_new_names(
    way: Callable[..., Any], file: Path, rename: Any, expected: dict[str, str]
) -> None:
    found = way(file, rename=rename)
    assert set(found) == set(expected)
    for new, old in expected.items():
        assert torch.equal(found[new], TENSORS[old])


@WAYS
def test_a_selection_speaks_of_the_names_in_the_file(way: Callable[..., Any], file: Path) -> None:
    assert set(way(file, select="model.*", rename=penstock.strip_prefix("model."))) == {"a", "b"}
    assert set(way(file, select=["head"], rename={"head": "x", "model.a": "head"}, **over(way))) == {"x"}


def over(way: Callable[..., Any]) -> dict[str, bool]:
    return {"overwrite": True} if way is converted else {}


@WAYS
def test_two_tensors_of_one_name_are_refused(way: Callable[..., Any], file: Path) -> None:
    with pytest.raises(penstock.ArgumentError) as caught:
        way(file, rename={"model.a": "head"})
    assert "model.a" in str(caught.value)
    assert "would both be called" in str(caught.value)
    assert not file.with_name("renamed.safetensors").exists()


@WAYS
@pytest.mark.parametrize(
    ("rename", "kind", "message"),
    [
        (
            {"model.A": "x"},
            penstock.UnknownTensorError,
            "no tensor is called 'model.A'; the nearest are 'model.a', 'model.b'",
        ),
        (lambda name: 3, penstock.ArgumentError, "the new name of 'head' must be a string, not int"),
        (lambda name: "", penstock.ArgumentError, "rename: the new name of 'head' is empty"),
        ({"head": ""}, penstock.ArgumentError, "rename: the new name of 'head' is empty"),
        (7, penstock.ArgumentError, "rename: expected a dict or a callable, not int"),
        (lambda name: name + "\ud800", penstock.ArgumentError, "can't be written as UTF-8"),
    ],
)
def test_what_makes_no_name_is_refused(
    way: Callable[..., Any], file: Path, rename: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as caught:
        way(file, select=["head"] if callable(rename) else None, rename=rename)
    assert message in str(caught.value)


@WAYS
def test_what_the_callable_raises_arrives(way: Callable[..., Any], file: Path) -> None:
    def fail(name: str) -> str:
        raise LookupError(name)

    with pytest.raises(LookupError):
        way(file, rename=fail)


def test_a_torch_file_that_is_renamed_comes_by_paths(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"model": {"w": torch.ones(2)}, "step": 3}, path)
    found = penstock.load(path, rename=penstock.strip_prefix("model/"))
    assert list(found) == ["w"]
    assert found["w"].tolist() == [1, 1]


def test_a_renamed_file_is_written_by_its_new_names(file: Path) -> None:
    penstock.convert(file, file.with_name("out.flashpack"), rename=penstock.strip_prefix("model."))
    assert set(penstock.open(file.with_name("out.flashpack"))) == {"a", "b", "head"}
