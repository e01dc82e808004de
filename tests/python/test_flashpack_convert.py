"""python -m penstock.flashpack convert, and the functions behind it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import helpers
import penstock
import pytest
import safetensors.torch
import torch
from flashpack_command import make_state, run
from penstock.flashpack import commands, get_flashpack_file_metadata, pack_to_file, revert_from_file
from torch import nn


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    return make_state()


def test_a_safetensors_file_is_converted_beside_itself(
    tmp_path: Path, state: dict[str, torch.Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "model.safetensors"
    safetensors.torch.save_file(state, source, metadata={"format": "pt"})
    before = source.read_bytes()
    made = tmp_path / "model.flashpack"
    assert run(capsys, "convert", source) == (0, f"saved to {made}\n", "")
    helpers.assert_same_tensors(revert_from_file(made), state)
    assert source.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["model.flashpack", "model.safetensors"]
    expected = tmp_path / "packed.flashpack"
    pack_to_file(safetensors.torch.load_file(source), expected)
    assert made.read_bytes() == expected.read_bytes()


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".ckpt", ".weights", ""])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_torch_checkpoint_is_converted_and_never_overwritten(
    tmp_path: Path, state: dict[str, torch.Tensor], suffix: str, zipped: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / f"model{suffix}"
    torch.save(state, source, _use_new_zipfile_serialization=zipped)
    before = source.read_bytes()
    code, out, err = run(capsys, "convert", source)
    made = tmp_path / ("model.flashpack" if suffix not in (".weights", "") else f"model{suffix}.flashpack")
    assert (code, out, err) == (0, f"saved to {made}\n", "")
    helpers.assert_same_tensors(revert_from_file(made), state)
    assert source.read_bytes() == before


@pytest.fixture
def source(tmp_path: Path, state: dict[str, torch.Tensor]) -> Path:
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(state, path)
    return path


def test_everything_takes_the_dtype(
    tmp_path: Path, state: dict[str, torch.Tensor], source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "small.flashpack"
    for name, dtype in (
        ("float16", torch.float16),
        ("bf16", torch.bfloat16),
        ("half", torch.float16),
        ("int32", torch.int32),
    ):
        assert run(capsys, "convert", source, made, "--dtype", name, "--force")[0] == 0
        helpers.assert_same_tensors(revert_from_file(made), {n: t.to(dtype) for n, t in state.items()})
    assert run(capsys, "convert", made, tmp_path / "again.flashpack", "--dtype", "int32")[0] == 0
    assert (tmp_path / "again.flashpack").read_bytes() == made.read_bytes()
    # Of floating tensors alone nothing but a stream is needed; the bytes are the same.
    floats = {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}
    safetensors.torch.save_file(floats, source)
    assert run(capsys, "convert", source, made, "--dtype", "float8_e4m3fn", "--force")[0] == 0
    pack_to_file(safetensors.torch.load_file(source), tmp_path / "packed.flashpack", torch.float8_e4m3fn)
    assert made.read_bytes() == (tmp_path / "packed.flashpack").read_bytes()


def test_tensors_are_left_out(
    tmp_path: Path, state: dict[str, torch.Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    for source in (tmp_path / "model.safetensors", tmp_path / "model.pt"):
        (safetensors.torch.save_file if source.suffix == ".safetensors" else torch.save)(state, source)
        made = tmp_path / "part.flashpack"
        arguments = [
            "--ignore-names",
            "steps",
            "--ignore-names",
            "x",
            "--ignore-prefixes",
            "em",
            "--ignore-suffixes",
            "bias",
        ]
        assert run(capsys, "convert", source, made, *arguments, "--force")[0] == 0
        assert list(revert_from_file(made)) == ["head.weight"]


def test_a_folder_of_shards_is_converted(
    tmp_path: Path, state: dict[str, torch.Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "shards"
    folder.mkdir()
    penstock.save(state, folder / "model.safetensors", max_shard_size=64)
    assert len(list(folder.glob("*.safetensors"))) > 1
    assert run(capsys, "convert", folder) == (0, f"saved to {folder}/model.flashpack\n", "")
    helpers.assert_same_tensors(revert_from_file(folder / "model.flashpack"), state)
    shard = next(folder.glob("*.safetensors"))
    before = shard.read_bytes()
    assert run(capsys, "convert", folder / "model.safetensors.index.json", shard, "--force")[0] == 1
    assert shard.read_bytes() == before


def test_an_existing_destination_needs_force(
    tmp_path: Path, state: dict[str, torch.Tensor], source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "other.flashpack"
    made.write_bytes(b"precious")
    message = f"penstock-flashpack: {made}: exists; --force replaces it\n"
    assert run(capsys, "convert", source, made) == (1, "", message)
    assert made.read_bytes() == b"precious"
    assert run(capsys, "convert", source, made, "--force")[0] == 0
    helpers.assert_same_tensors(revert_from_file(made), state)


@pytest.mark.parametrize("alias", ["same", "symlink", "hardlink", "dotted"])
def test_the_source_is_never_the_destination(
    tmp_path: Path, state: dict[str, torch.Tensor], alias: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "model.flashpack"
    pack_to_file(state, source)
    before = source.read_bytes()
    destination = tmp_path / "alias.safetensors"
    if alias == "symlink":
        destination.symlink_to(source)
    elif alias == "hardlink":
        destination.hardlink_to(source)
    else:
        destination = source if alias == "same" else tmp_path / "." / ".." / tmp_path.name / source.name
    for name in ("convert", "revert"):
        code, out, err = run(capsys, name, source, destination, "--force")
        assert (code, out) == (1, "")
        assert err == f"penstock-flashpack: {destination}: is the source; name another destination\n"
    assert source.read_bytes() == before


def test_a_flashpack_file_is_not_converted_onto_itself(
    tmp_path: Path, state: dict[str, torch.Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "model.flashpack"
    pack_to_file(state, source)
    before = source.read_bytes()
    assert run(capsys, "convert", source, "--force")[0] == 1
    assert source.read_bytes() == before
    assert run(capsys, "convert", source, tmp_path / "half.flashpack", "--dtype", "half")[0] == 0
    assert get_flashpack_file_metadata(tmp_path / "half.flashpack")["target_dtype"] == "float16"


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def test_files_that_start_like_a_pickle_are_read_as_what_they_are(tmp_path: Path) -> None:
    weights = {"w" * 67: torch.arange(4.0)}  # of which the header has 128 bytes
    safetensors.torch.save_file(weights, tmp_path / "a.safetensors")
    packed = {"x": torch.tensor([0x80, 2, 3], dtype=torch.uint8)}
    pack_to_file(packed, tmp_path / "b.flashpack")
    for name, expected in (("a.safetensors", weights), ("b.flashpack", packed)):
        assert (tmp_path / name).read_bytes()[:1] == b"\x80"
        made = commands.convert_to_flashpack(str(tmp_path / name), str(tmp_path / "made.flashpack"))
        helpers.assert_same_tensors(revert_from_file(made), expected)


@pytest.mark.parametrize("arguments", [["--subfolder", "x"], ["--variant", "fp16"], ["--use-transformers"]])
def test_what_is_for_folders_is_refused_for_a_file(
    tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    penstock.save({"x": torch.ones(2)}, tmp_path / "a.safetensors")
    code, _, err = run(capsys, "convert", tmp_path / "a.safetensors", tmp_path / "b.flashpack", *arguments)
    assert (code, not (tmp_path / "b.flashpack").exists()) == (1, True)
    assert "a.safetensors: is a file; a subfolder, a variant or a library is for folders and repositories" in err


def test_what_is_no_state_dict_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases: dict[str, Any] = {
        "list": [torch.ones(1)],
        "nested": {"state_dict": {"x": torch.ones(1)}},
        "code": {"x": Evil(tmp_path / "run")},
    }
    for name, value in cases.items():
        source = tmp_path / f"{name}.pt"
        torch.save(value, source)
        code, out, err = run(capsys, "convert", source)
        assert (code, out) == (1, "")
        assert err.startswith(f"penstock-flashpack: {source}: ")
        assert len(err.splitlines()) == 1
        assert not source.with_suffix(".flashpack").exists()
    assert not (tmp_path / "run").exists()


def test_modules_and_state_dicts_are_converted(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    path = str(tmp_path / "model.flashpack")
    assert commands.convert_to_flashpack(model, path, "float16", ignore_names=["bias"]) == path
    assert revert_from_file(path)["weight"].dtype == torch.float16
    assert commands.convert_to_flashpack(dict(model.state_dict()), path) == path  # replaces it, as its namesake does
    helpers.assert_same_tensors(revert_from_file(path), dict(model.state_dict()))
    assert commands.convert_to_flashpack_from_model(model, path, torch.float64) == path
    assert commands.revert_from_flashpack(path) == str(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="needs a destination"):
        commands.convert_to_flashpack(model)
    with pytest.raises(ValueError, match="exclude each other"):
        commands.convert_to_flashpack("x", path, use_transformers=True, use_diffusers=True)


def test_keywords_are_filtered_by_signature() -> None:
    def narrow(a: int) -> None: ...

    def wide(a: int, **rest: int) -> None: ...

    assert commands.filter_kwargs_for_method({"a": 1, "b": 2}, narrow) == {"a": 1}
    assert commands.filter_kwargs_for_method({"a": 1, "b": 2}, wide) == {"a": 1, "b": 2}


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_large_tensors_can_be_aligned(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = {"small": torch.ones(3), "first": torch.ones(70_001), "second": torch.ones(70_000)}
    penstock.save(state, tmp_path / f"model.{suffix}")
    made = tmp_path / "model.flashpack"
    assert run(capsys, "convert", tmp_path / f"model.{suffix}", "--align-large")[0] == 0
    index = get_flashpack_file_metadata(made)["index"]
    assert {record["name"]: record["offset"] * 4 % 4096 for record in index} == {"first": 0, "second": 0, "small": 1536}
    helpers.assert_same_tensors(revert_from_file(made), state)
