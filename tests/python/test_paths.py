"""What is no path: URLs, names of models elsewhere, open files."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock
import pytest
import torch

OPENING: list[Callable[[Any], Any]] = [
    penstock.load,
    penstock.open,
    penstock.stream,
    penstock.inspect,
    penstock.verify,
    penstock.doctor,
    lambda path: penstock.load_into({}, path),
    lambda path: penstock.convert(path, "target.safetensors"),
]
SAVING: list[Callable[[Any], Any]] = [
    lambda path: penstock.save({"x": torch.ones(1)}, path),
    lambda path: penstock.save_async({"x": torch.ones(1)}, path),
    lambda path: penstock.save({"x": torch.ones(1)}, path, format="torch"),
]


def refusal(use: Callable[[Any], Any], path: Any, kind: type[Exception] = penstock.ArgumentError) -> str:
    with pytest.raises(kind) as caught:
        use(path)
    return str(caught.value)


@pytest.mark.parametrize("use", OPENING)
@pytest.mark.parametrize(
    ("url", "how"),
    [
        ("s3://bucket/model.safetensors", "to copy it: aws s3 cp s3://bucket/model.safetensors ."),
        ("gs://bucket/model.safetensors", "to copy it: gcloud storage cp gs://bucket/model.safetensors ."),
        ("https://host/model.safetensors", "to copy it: curl -LO https://host/model.safetensors"),
        ("hf://owner/model/a.safetensors", "to copy it: huggingface_hub.snapshot_download('owner/model')"),
        ("az://bucket/model.safetensors", "copy it to one first"),
    ],
)
def test_a_url_says_how_to_get_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[Any], Any], url: str, how: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for given in (url, Path(url)):
        message = refusal(use, given)
        assert message == f"{url}: only local paths are read and written; {how}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("use", [*SAVING, lambda path: penstock.convert("source.safetensors", path)])
@pytest.mark.parametrize(
    ("url", "how"),
    [
        ("s3://bucket/model.safetensors", "aws s3 cp FILE s3://bucket/model.safetensors"),
        ("gs://bucket/model.safetensors", "gcloud storage cp FILE gs://bucket/model.safetensors"),
        ("hf://owner/model/a.safetensors", "hf upload owner/model FILE"),
        ("az://bucket/model.safetensors", "copy it there"),
    ],
)
def test_a_url_to_save_to_says_how_to_get_the_file_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[Any], Any], url: str, how: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for given in (url, Path(url)):
        message = refusal(use, given)
        assert message == f"{url}: only local paths are read and written; save to a local path, then {how}"
    assert list(tmp_path.iterdir()) == []


def test_a_file_url_says_its_path(tmp_path: Path) -> None:
    message = refusal(penstock.load, "file:///models/a.safetensors")
    assert message == "file:///models/a.safetensors: expected a path, not a URL; give '/models/a.safetensors'"


def test_a_folder_that_is_called_like_a_scheme_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:" / "bucket").mkdir(parents=True)
    penstock.save({"x": torch.ones(2)}, "s3://bucket/model.safetensors")
    assert penstock.load("s3://bucket/model.safetensors")["x"].tolist() == [1, 1]


@pytest.mark.parametrize("name", ["meta-llama/Llama-3-8B", "gpt2"])
@pytest.mark.parametrize("use", OPENING)
def test_a_name_of_the_hub_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[Any], Any], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    message = refusal(use, name, penstock.NotFoundError)
    assert message.startswith(f"{name}: ")
    assert message.endswith(
        "; only local paths are read: for a model of the Hugging Face hub, "
        f"huggingface_hub.snapshot_download({name!r}) gives one"
    )


@pytest.mark.parametrize("path", ["model.safetensors", "here/model.safetensors", "./owner/model", "a/b/c", "~/model"])
def test_a_path_that_does_not_exist_is_only_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert "hub" not in refusal(penstock.load, path, FileNotFoundError)
    (tmp_path / "owner").mkdir()
    assert "hub" not in refusal(penstock.load, "owner/model", FileNotFoundError)


@pytest.mark.parametrize("use", OPENING + SAVING)
def test_an_open_file_says_that_a_path_is_wanted(path: Path, use: Callable[[Any], Any]) -> None:
    path.write_bytes(b"old")
    with path.open("rb") as file:
        message = refusal(use, file)
    assert message == f"expected a path, not an open file: penstock opens files itself; give {str(path)!r}"
    message = refusal(use, io.BytesIO(b"x"))
    assert message.startswith(
        "expected a path, not a BytesIO: penstock opens files itself; for bytes in memory there are "
    )
    assert path.read_bytes() == b"old"


def test_what_the_message_about_bytes_names_works() -> None:
    from penstock.safetensors.torch import load, save

    assert load(save({"x": torch.ones(2)}))["x"].tolist() == [1, 1]
