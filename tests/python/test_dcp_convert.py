"""Directories of torch.distributed.checkpoint from and to files, and what other readers say of them."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import dcp_rank
import helpers
import penstock
import penstock.dcp
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from penstock.__main__ import find_command

OBJECTS = dcp_rank.OBJECTS


def make_state() -> dict[str, Any]:
    layers = [{"weight": torch.randn(3, 5)}, {"weight": torch.randn(3, 5), "flag": True}]
    return {"model": dcp_rank.full_tensors(), "layers": layers, "extra": dict(OBJECTS)}


def assert_same(actual: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert helpers.same(actual, expected)
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key in expected:
            assert_same(actual[key], expected[key])
    elif isinstance(expected, list):
        assert isinstance(actual, list)
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other)
    else:
        assert actual == expected


def read_description(directory: Path) -> dict[str, Any]:
    document = json.loads((directory / "dcp.json").read_text())
    del document["crc32"]  # who edits it takes that away
    return document  # type: ignore[no-any-return]


def split(directory: Path, name: str) -> None:
    """Cuts a tensor in two chunks, as two ranks would have saved it."""
    document = read_description(directory)
    entry = document["tensors"][name]
    rows, *rest = entry["shape"]
    file = directory / document["files"][entry["chunks"][0]["file"]]
    tensors = safetensors.torch.load_file(file)
    upper, lower = tensors[name][: rows // 3].clone(), tensors[name][rows // 3 :].clone()
    penstock.save({**tensors, name: upper}, file, checksums=True)
    penstock.save({name: lower}, directory / "second.safetensors", checksums=True)
    document["files"].append("second.safetensors")
    entry["chunks"] = [
        {"file": entry["chunks"][0]["file"], "offsets": [0] * (1 + len(rest)), "shape": [rows // 3, *rest]},
        {"file": len(document["files"]) - 1, "offsets": [rows // 3, *[0] * len(rest)], "shape": list(lower.shape)},
    ]
    (directory / "dcp.json").write_text(json.dumps(document))
    (directory / "model.safetensors.index.json").unlink()


@pytest.fixture(scope="module")
def state() -> dict[str, Any]:
    return make_state()


@pytest.fixture(params=["ours", "chunks", "torch"])
def directory(request: pytest.FixtureRequest, state: dict[str, Any], tmp_path: Path) -> Path:
    path = tmp_path / "step"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if request.param == "torch":
            dcp.save(state, checkpoint_id=path)
        else:
            dcp.save(state, storage_writer=penstock.dcp.StorageWriter(path))
    if request.param == "chunks":
        split(path, "model.rows")
    return path


def test_a_checkpoint_is_loaded_whole(directory: Path, state: dict[str, Any]) -> None:
    assert_same(penstock.dcp.load(directory), state)


def test_a_torch_file_has_all_that_was_saved(directory: Path, state: dict[str, Any], tmp_path: Path) -> None:
    done = penstock.dcp.convert(directory, tmp_path / "all.pt")
    assert done.left_out == []
    assert done.tensors == 12
    assert_same(torch.load(tmp_path / "all.pt", weights_only=True), state)


def test_a_safetensors_file_has_the_tensors(directory: Path, state: dict[str, Any], tmp_path: Path) -> None:
    done = penstock.dcp.convert(directory, tmp_path / "all.safetensors")
    loaded = safetensors.torch.load_file(tmp_path / "all.safetensors")
    assert sorted(done.left_out) == ["extra.betas", "extra.names", "extra.rng", "extra.step", "layers.1.flag"]
    assert done.tensors == len(loaded) == 12
    for name, tensor in state["model"].items():
        assert helpers.same(loaded[f"model.{name}"], tensor)
    assert helpers.same(loaded["layers.1.weight"], state["layers"][1]["weight"])


def test_files_become_directories_and_files_again(state: dict[str, Any], tmp_path: Path) -> None:
    penstock.save(state, tmp_path / "all.pt")
    penstock.dcp.convert(tmp_path / "all.pt", tmp_path / "step")
    assert_same(penstock.dcp.load(tmp_path / "step"), state)
    penstock.save(state["model"], tmp_path / "model.safetensors")
    penstock.dcp.convert(tmp_path / "model.safetensors", tmp_path / "flat")
    assert_same(penstock.dcp.load(tmp_path / "flat"), state["model"])
    assert_same(dict(penstock.load(tmp_path / "flat")), state["model"])


def test_a_directory_of_torch_becomes_one_of_ours(directory: Path, state: dict[str, Any], tmp_path: Path) -> None:
    penstock.dcp.convert(directory, tmp_path / "other")
    assert (tmp_path / "other" / "dcp.json").exists()
    assert_same(penstock.dcp.load(tmp_path / "other"), state)


def test_targets_that_exist_are_kept_unless_asked(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "all.pt").write_text("something else")
    with pytest.raises(penstock.ArgumentError, match=r"all\.pt: exists; overwrite=True replaces it"):
        penstock.dcp.convert(directory, tmp_path / "all.pt")
    assert (tmp_path / "all.pt").read_text() == "something else"
    penstock.dcp.convert(directory, tmp_path / "all.pt", overwrite=True)
    with pytest.raises(penstock.ArgumentError, match="penstock.convert"):
        penstock.dcp.convert(tmp_path / "all.pt", tmp_path / "other.pt")
    torch.save([torch.ones(2)], tmp_path / "list.pt")
    with pytest.raises(penstock.ArgumentError, match="a checkpoint of a list"):
        penstock.dcp.convert(tmp_path / "list.pt", tmp_path / "listed")


def run_module(*arguments: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.dcp", "convert", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_converts_and_tells_what_is_wrong(tmp_path: Path) -> None:
    penstock.save({"a": torch.ones(4)}, tmp_path / "a.safetensors")
    done = run_module(tmp_path / "a.safetensors", tmp_path / "step")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'step'}: 1 tensors, 16 bytes\n")
    failed = run_module(tmp_path / "missing", tmp_path / "other")
    assert failed.returncode == 1
    assert failed.stderr.count("\n") == 1
    assert failed.stderr.startswith(f"penstock.dcp: {tmp_path / 'missing'}")


@pytest.mark.parametrize("directory", ["chunks", "torch"], indirect=True)
def test_those_who_read_files_alone_are_told_what_to_do(directory: Path) -> None:
    with pytest.raises(penstock.UnsupportedError, match=r"step: .* `penstock convert` makes a file of it"):
        penstock.load(directory)
    command = find_command()
    if command is None:
        pytest.skip("the native command is not installed")
    done = subprocess.run([command, "ls", directory], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "`penstock convert` makes a file of it" in done.stderr


def test_paths_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    penstock.save({"a": torch.ones(4), "b": torch.ones(4)}, tmp_path / "a.safetensors")
    penstock.dcp.convert(tmp_path / "a.safetensors", tmp_path / "step")
    document = read_description(tmp_path / "step")
    for paths in ({"a": ["x"], "b": ["x", "y"]}, {"a": ["x", 0], "b": ["x", "y"]}, {"a": ["x", 1 << 40], "b": ["b"]}):
        (tmp_path / "step" / "dcp.json").write_text(json.dumps({**document, "paths": paths}))
        with pytest.raises(penstock.FormatError, match="does not fit those of others"):
            penstock.dcp.load(tmp_path / "step")
    shutil.rmtree(tmp_path / "step")
    assert os.listdir(tmp_path) == ["a.safetensors"]


# ---- By the engine, in bounded memory -------------------------------------------------------------------------------


def run_command(*arguments: Any) -> subprocess.CompletedProcess[str]:
    command = find_command()
    if command is None:
        pytest.skip("the native command is not installed")
    return subprocess.run([command, *map(str, arguments)], capture_output=True, text=True, check=False)


def assert_has_tensors(path: Path, state: dict[str, Any]) -> None:
    loaded = penstock.load(path, verify="if-any")
    assert len(loaded) == 12
    for name, tensor in state["model"].items():
        assert helpers.same(loaded[f"model.{name}"], tensor), name
    for number, layer in enumerate(state["layers"]):
        assert helpers.same(loaded[f"layers.{number}.weight"], layer["weight"])


@pytest.mark.parametrize("target", ["all.safetensors", "all.flashpack", "all.pt", "set.safetensors"])
def test_the_engine_joins_chunks_to_files_of_any_format(
    directory: Path, state: dict[str, Any], tmp_path: Path, target: str
) -> None:
    shards = {"max_shard_size": "1MB"} if target.startswith("set") else {}
    done = penstock.convert(directory, tmp_path / target, **shards)  # type: ignore[arg-type]
    assert done.tensors == 12
    (note,) = (note for note in done.notes if "no tensors" in note)
    assert note.startswith("values that are no tensors are left out: ")
    assert note.endswith(" and 2 more")
    assert_has_tensors(tmp_path / (f"{target}.index.json" if shards else target), state)
    if target.endswith(".safetensors") and not shards:
        assert penstock.open(tmp_path / target).metadata == {"format": "pt"}


def test_the_command_converts_both_ways(directory: Path, state: dict[str, Any], tmp_path: Path) -> None:
    done = run_command("convert", directory, tmp_path / "all.safetensors", "--checksums")
    assert done.returncode == 0, done.stderr
    assert "12 tensors" in done.stdout
    assert "note: values that are no tensors are left out: " in done.stderr
    assert_has_tensors(tmp_path / "all.safetensors", state)
    done = run_command("convert", tmp_path / "all.safetensors", tmp_path / "again", "--format", "dcp")
    assert done.returncode == 0, done.stderr
    whole = penstock.dcp.load(tmp_path / "again")
    for name, tensor in state["model"].items():
        assert helpers.same(whole[f"model.{name}"], tensor), name
    assert_has_tensors(tmp_path / "again", state)
    assert sorted(os.listdir(tmp_path)) == ["again", "all.safetensors", "step"]


def test_a_directory_becomes_another_one(directory: Path, state: dict[str, Any], tmp_path: Path) -> None:
    penstock.convert(directory, tmp_path / "shards", format="dcp", max_shard_size="1MB")
    assert_has_tensors(tmp_path / "shards", state)
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 1
    target = {f"model.{name}": torch.zeros_like(tensor) for name, tensor in state["model"].items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(target, storage_reader=penstock.dcp.StorageReader(tmp_path / "shards"))
    for name, tensor in state["model"].items():
        assert helpers.same(target[f"model.{name}"], tensor), name


def test_some_tensors_are_joined_under_other_names_and_types(
    directory: Path, state: dict[str, Any], tmp_path: Path
) -> None:
    target = tmp_path / "some.safetensors"
    rename = penstock.strip_prefix("model.")
    penstock.convert(directory, target, select="model.[rc]*s", rename=rename, dtype=torch.float64)
    loaded = penstock.load(target)
    assert sorted(loaded) == ["columns", "rows"]
    for name, tensor in loaded.items():
        assert torch.equal(tensor, state["model"][name].double())
    with pytest.raises(penstock.UnknownTensorError, match=r"no tensor is called 'model.row'; .*model.rows"):
        penstock.convert(directory, tmp_path / "none.safetensors", select="model.row")
    with pytest.raises(penstock.UnknownTensorError, match="no tensor is called 'x'"):
        penstock.convert(directory, tmp_path / "none.safetensors", rename={"x": "y"})
    with pytest.raises(penstock.ArgumentError, match="no tensor of it was selected"):
        penstock.convert(directory, tmp_path / "none.safetensors", select=lambda tensor: False)
    done = run_command("convert", directory, tmp_path / "none.safetensors", "--select", "modle.*")
    assert done.returncode == 1
    assert "no tensor matches --select 'modle.*'" in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["some.safetensors", "step"]


def cut_in_boxes(directory: Path, name: str, tensor: torch.Tensor) -> None:
    """Nine chunks of a matrix, of uneven sizes, over three files."""
    document = read_description(directory)
    files = [f"box-{number}.safetensors" for number in range(3)]
    cuts = [[0, size // 5, size // 2 + 1, size] for size in tensor.shape]
    chunks = []
    for column in range(3):
        held = {}
        for row in range(3):
            begins, ends = [cuts[0][row], cuts[1][column]], [cuts[0][row + 1], cuts[1][column + 1]]
            part = tensor[begins[0] : ends[0], begins[1] : ends[1]].contiguous()
            held[name if row == 0 else f"{row}"] = part
            if row == 0:
                chunks.append({"file": len(document["files"]) + column, "offsets": begins, "shape": list(part.shape)})
            else:
                extra = f"box-{column}-{row}.safetensors"
                penstock.save({name: part}, directory / extra, checksums=True)
                files.append(extra)
                number = len(document["files"]) + len(files) - 1
                chunks.append({"file": number, "offsets": begins, "shape": list(part.shape)})
        penstock.save({name: held[name]}, directory / files[column], checksums=True)
    document["files"] += files
    document["tensors"][name] = {"dtype": "F32", "shape": list(tensor.shape), "chunks": chunks}
    (directory / "dcp.json").write_text(json.dumps(document))


def test_boxes_of_a_matrix_are_joined(tmp_path: Path) -> None:
    matrix = torch.randn(1031, 977)
    penstock.dcp.convert(write({"small": torch.ones(3)}, tmp_path), tmp_path / "step")
    cut_in_boxes(tmp_path / "step", "matrix", matrix)
    for cache in ("warm", "cold"):
        if cache == "cold":
            for path in (tmp_path / "step").iterdir():
                penstock.measure.drop_page_cache(path)
        penstock.convert(tmp_path / "step", tmp_path / f"{cache}.safetensors", checksums=True)
        loaded = penstock.load(tmp_path / f"{cache}.safetensors", verify=True)
        assert torch.equal(loaded["matrix"], matrix)
        assert torch.equal(loaded["small"], torch.ones(3))
    assert torch.equal(penstock.dcp.load(tmp_path / "step")["matrix"], matrix)


def write(state: dict[str, torch.Tensor], folder: Path) -> Path:
    penstock.save(state, folder / "plain.safetensors")
    return folder / "plain.safetensors"


def test_damage_to_a_chunk_stops_the_conversion(tmp_path: Path) -> None:
    matrix = torch.randn(500, 300)
    penstock.dcp.convert(write({"small": torch.ones(3)}, tmp_path), tmp_path / "step")
    cut_in_boxes(tmp_path / "step", "matrix", matrix)
    for path in sorted((tmp_path / "step").glob("*.safetensors")):
        good = path.read_bytes()
        path.write_bytes(good[:-2] + bytes([good[-2] ^ 4]) + good[-1:])
        with pytest.raises(penstock.FormatError, match=rf"{path.name}: tensor .* is corrupt: its CRC-32C"):
            penstock.convert(tmp_path / "step", tmp_path / "out.safetensors")
        assert not (tmp_path / "out.safetensors").exists()
        path.write_bytes(good)
    penstock.convert(tmp_path / "step", tmp_path / "out.safetensors")


@pytest.mark.parametrize("directory", ["ours", "chunks"], indirect=True)
def test_verify_and_seal_take_directories_of_chunks(directory: Path) -> None:
    report = penstock.verify(directory)
    assert report.ok
    assert report.against == "stored"
    assert len(report.tensors) == 12 + 5 + (1 if (directory / "second.safetensors").exists() else 0)
    for path in sorted(directory.glob("*.[sp]*s")):
        good = path.read_bytes()
        path.write_bytes(good[:-2] + bytes([good[-2] ^ 4]) + good[-1:])
        assert not penstock.verify(directory), path
        assert run_command("verify", directory).returncode == 1
        path.write_bytes(good)
    penstock.seal(directory)
    assert len(list(directory.glob("*.seal.json"))) == len(list(directory.iterdir())) / 2
    assert penstock.verify(directory).against == "seal"
    done = run_command("verify", directory)
    assert done.returncode == 0, done.stderr
    assert "every byte, against the seal" in done.stdout
    penstock.dcp.load(directory)
    description = directory / "dcp.json"
    description.write_bytes(description.read_bytes() + b" ")
    with pytest.raises(penstock.FormatError, match=r"dcp\.json: has \d+ bytes, and had"):
        penstock.verify(directory)


@pytest.mark.parametrize("directory", ["torch"], indirect=True)
def test_what_has_no_checksums_says_so(directory: Path) -> None:
    with pytest.raises(penstock.UnsupportedError, match="FileSystemWriter, which has no checksums"):
        penstock.verify(directory)


def test_a_flipped_bit_in_any_file_changes_nothing_that_is_loaded(tmp_path: Path) -> None:
    """It is an error, or of no consequence: a space in a header, the name of a key that nobody reads."""
    state = {"a": torch.randn(7, 5), "b": torch.arange(4), "step": 3, "names": ["x", "y"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(dict(state), storage_writer=penstock.dcp.StorageWriter(tmp_path / "step"))
    noticed = 0
    draw = random.Random(3)
    for path in sorted((tmp_path / "step").iterdir()):
        if path.name.endswith(".index.json"):
            continue  # which penstock.dcp does not read
        good = path.read_bytes()
        for _ in range(120):
            bit = draw.randrange(len(good) * 8)
            damaged = bytearray(good)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            for load, expected in ((penstock.dcp.load, state), (converted, {name: state[name] for name in ("a", "b")})):
                loaded = outcome_of(load, tmp_path / "step")
                if loaded is None:
                    noticed += 1
                else:
                    assert_same(loaded, expected)
        path.write_bytes(good)
    assert noticed > 400


def outcome_of(load: Any, path: Path) -> Any:
    try:
        return load(path)
    except penstock.Error:
        return None


def converted(directory: Path) -> dict[str, Any]:
    target = directory.with_name("converted.safetensors")
    penstock.convert(directory, target, overwrite=True)
    return dict(penstock.load(target))


def test_files_that_are_not_what_the_description_says_are_refused(directory: Path, tmp_path: Path) -> None:
    victim = next(path for path in sorted(directory.iterdir()) if path.suffix in (".safetensors", ".distcp"))
    good = victim.read_bytes()
    victim.write_bytes(good[: len(good) // 2])
    with pytest.raises(penstock.Error, match=victim.name):
        penstock.convert(directory, tmp_path / "out.safetensors")
    victim.unlink()
    with pytest.raises(penstock.NotFoundError, match=victim.name):
        penstock.convert(directory, tmp_path / "out.safetensors")
    if victim.suffix == ".safetensors":
        penstock.save({"model.rows": torch.ones(2, dtype=torch.int8)}, victim)
        with pytest.raises(penstock.FormatError, match=r"tensor .* by dcp\.json|has no tensor"):
            penstock.convert(directory, tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


def test_views_and_other_strides_in_directories_of_torch_are_joined(tmp_path: Path) -> None:
    wide = torch.randn(64, 1000)
    state = {"turned": wide.t(), "part": wide[:, 10:20], "half": wide.half(), "one": torch.tensor(2.5)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(dict(state), checkpoint_id=tmp_path / "step")
    penstock.convert(tmp_path / "step", tmp_path / "out.safetensors")
    helpers.assert_same_tensors(penstock.load(tmp_path / "out.safetensors"), state)


def test_a_metadata_of_torch_that_would_be_executed_is_not(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    (tmp_path / "step").mkdir()
    payload = b"cposix\nmkdir\n(X" + len(str(mark)).to_bytes(4, "little") + str(mark).encode() + b"tR."
    (tmp_path / "step" / ".metadata").write_bytes(b"\x80\x02" + payload)
    with pytest.raises(penstock.FormatError, match=r"\.metadata: is no metadata of torch's"):
        penstock.convert(tmp_path / "step", tmp_path / "out.safetensors")
    assert not mark.exists()


def test_a_new_directory_takes_the_place_of_a_checkpoint_and_of_nothing_else(tmp_path: Path) -> None:
    source = write({"a": torch.ones(4)}, tmp_path)
    other = tmp_path / "other.safetensors"
    penstock.save({"a": torch.zeros(4)}, other)
    penstock.convert(source, tmp_path / "step", format="dcp")
    with pytest.raises(penstock.ArgumentError, match="step: exists already"):
        penstock.convert(other, tmp_path / "step", format="dcp")
    penstock.convert(other, tmp_path / "step", format="dcp", overwrite=True)
    assert penstock.dcp.load(tmp_path / "step")["a"].tolist() == [0] * 4
    with pytest.raises(penstock.ArgumentError, match="has files of the source"):
        penstock.convert(tmp_path / "step", tmp_path / "step", format="dcp", overwrite=True)
    (tmp_path / "step" / "thesis.tex").write_text("years of work")
    with pytest.raises(penstock.ArgumentError, match=r"because it holds \"thesis.tex\", which is none"):
        penstock.convert(source, tmp_path / "step", format="dcp", overwrite=True)
    assert (tmp_path / "step" / "thesis.tex").read_text() == "years of work"
    with pytest.raises(penstock.NotFoundError):
        penstock.convert(source, tmp_path / "nowhere" / "step", format="dcp")
    (tmp_path / ".step.saving-0123456789abcdef").mkdir()  # of a dead process
    (tmp_path / "step" / "thesis.tex").unlink()
    penstock.convert(source, tmp_path / "step", format="dcp", overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["other.safetensors", "plain.safetensors", "step"]


def test_a_conversion_to_a_directory_that_fails_leaves_nothing(tmp_path: Path) -> None:
    source = write({"a": torch.randn(1000, 1000), "b": torch.ones(3)}, tmp_path)
    with pytest.raises(penstock.CancelledError):
        penstock.convert(source, tmp_path / "step", format="dcp", progress=lambda done, total: False)
    penstock.save({"c": torch.ones(3, dtype=torch.complex128)}, tmp_path / "complex.pt")
    with pytest.raises(penstock.UnsupportedError, match="C128"):
        penstock.convert(tmp_path / "complex.pt", tmp_path / "step", format="dcp")
    assert sorted(os.listdir(tmp_path)) == ["complex.pt", "plain.safetensors"]
