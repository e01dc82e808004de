"""select=: by name, by glob, by several, by callable."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import helpers
import penstock
import pytest
import torch


@pytest.fixture
def file(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    penstock.save({**tensors, "blocks[0].w": torch.ones(2)}, path)
    return path


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        ("layers.0.bias", {"layers.0.bias"}),
        ("layers.*", {"layers.0.weight", "layers.0.bias", "layers.1.weight"}),
        ("layers.?.weight", {"layers.0.weight", "layers.1.weight"}),
        ("blocks[0].w", {"blocks[0].w"}),
        (["steps", "mask"], {"steps", "mask"}),
        (("*.bias", "steps"), {"layers.0.bias", "steps"}),
        ({"steps"}, {"steps"}),
        ([], set()),
        (lambda name: name.endswith("weight"), {"embed.weight", "layers.0.weight", "layers.1.weight"}),
        (lambda info: info.nbytes > 1000, {"embed.weight", "layers.0.weight"}),
        (lambda info: info.dtype == "I64" and info.shape == (), {"steps"}),
    ],
)
def test_what_is_selected_is_what_comes(
    file: Path, tensors: dict[str, torch.Tensor], select: object, expected: set[str]
) -> None:
    assert set(penstock.load(file, select=select)) == expected
    assert {name for name, _ in penstock.stream(file, select=select)} == expected
    loaded = penstock.load(file, select=select)
    for name in expected & set(tensors):
        assert helpers.same(loaded[name], tensors[name])


@pytest.mark.parametrize("select", ["layers.9", ["steps", "layers.9"], {"layers.9"}])
def test_an_unknown_name_is_an_error(file: Path, select: object) -> None:
    with pytest.raises(penstock.UnknownTensorError) as caught:
        penstock.load(file, select=select)
    assert str(caught.value).startswith(f"{file}: no tensor is called 'layers.9'; the nearest are 'layers.")
    assert isinstance(caught.value, KeyError)


@pytest.mark.parametrize(
    ("select", "message"),
    [
        ("nobody.*", "no tensor matches 'nobody.*'; there are "),
        ("0.b*", "no tensor matches '0.b*'; the nearest is 'layers.0.bias'"),
        (["steps", "layer.0.*"], "no tensor matches 'layer.0.*'; the nearest are 'layers.0."),
        (["embed"], "no tensor is called 'embed'; the nearest is 'embed.weight'"),
    ],
)
def test_what_matches_nothing_is_an_error_everywhere(
    file: Path, tmp_path: Path, tensors: dict[str, torch.Tensor], select: object, message: str
) -> None:
    target = tmp_path / "out.safetensors"
    for use in (
        lambda: penstock.load(file, select=select),
        lambda: penstock.stream(file, select=select),
        lambda: penstock.load_into(dict(tensors), file, select=select, strict=False),
        lambda: penstock.convert(file, target, select=select),
    ):
        with pytest.raises(penstock.UnknownTensorError) as caught:
            use()
        assert message in str(caught.value)
    assert not target.exists()


def test_an_open_checkpoint_suggests_the_nearest_name(file: Path) -> None:
    with penstock.open(file) as opened:
        with pytest.raises(KeyError, match="no tensor is called 'layers.0.wieght'; the nearest are 'layers.0.weight'"):
            opened["layers.0.wieght"]
        assert opened.get("layers.0.wieght") is None
        assert opened.get("steps", 3).name == "steps"
        with pytest.raises(penstock.UnknownTensorError, match="no tensor is called 3"):
            opened[3]  # type: ignore[index]


def test_a_name_that_is_no_string_is_an_error(file: Path) -> None:
    with pytest.raises(penstock.ArgumentError, match="names are strings, not int"):
        penstock.load(file, select=[3])


def test_what_the_callable_raises_arrives(file: Path) -> None:
    def refuse(info: penstock.TensorInfo) -> bool:
        raise LookupError(info.name)

    with pytest.raises(LookupError):
        penstock.load(file, select=refuse)


def test_a_filtered_load_allocates_only_what_it_selects(tmp_path: Path) -> None:
    path = tmp_path / "two.safetensors"
    penstock.save({"big": torch.zeros(2**22), "small": torch.ones(2**10)}, path)
    pool = penstock.MemoryPool()
    loaded = penstock.load(path, select="small", cache="direct", pool=pool)
    assert torch.equal(loaded["small"], torch.ones(2**10))
    assert pool.used_bytes < 2**20


def test_what_is_known_of_a_tensor_can_be_copied_and_pickled(file: Path) -> None:
    info = next(tensor for tensor in penstock.inspect(file).tensors if tensor == "embed.weight")
    for made in (copy.deepcopy(info), copy.copy(info), pickle.loads(pickle.dumps(info))):
        assert type(made) is penstock.TensorInfo
        assert (made.name, made.dtype, made.shape) == ("embed.weight", "BF16", (50, 16))
        assert (made.file, made.offset, made.nbytes) == (info.file, info.offset, info.nbytes)


def test_an_index_takes_no_globs(file: Path) -> None:
    with penstock.open(file) as opened, pytest.raises(KeyError, match=r"no tensor is called '0\.\*'"):
        opened["0.*"]
