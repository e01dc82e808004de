from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import cli_files as files
import pytest
from cli_command import Run


def test_a_copy_has_the_same_tensors_and_metadata(run: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "a.safetensors", metadata={"format": "pt"})
    result = run("convert", "a.safetensors", "b.safetensors")
    assert result.returncode == 0
    assert result.stdout.startswith("ok b.safetensors  4 tensors, 56 B")
    tensors, metadata = files.read_file(tmp_path / "b.safetensors")
    assert tensors == files.sample_tensors()
    assert metadata == {"format": "pt"}
    assert files.names_in(tmp_path) == ["a.safetensors", "b.safetensors"]


@pytest.mark.parametrize("arguments", [["b.pt"], ["b.bin"], ["b", "--format", "torch-legacy"]], ids=" ".join)
def test_what_the_target_cannot_hold_is_a_note_and_no_failure(run: Run, tmp_path: Path, arguments: list[str]) -> None:
    files.write_file(tmp_path / "a.safetensors", metadata={"format": "pt"})
    result = run("convert", "a.safetensors", *arguments)
    assert result.returncode == 0
    assert result.stdout.startswith(f"ok {arguments[0]}  4 tensors, 56 B")
    assert result.stderr == 'note: metadata is left out, because a torch file holds none: "format"\n'
    assert run("convert", arguments[0], "again.safetensors").stderr == ""
    assert files.read_file(tmp_path / "again.safetensors") == (files.sample_tensors(), {})


def test_json_has_the_notes(run: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "a.safetensors", metadata={"format": "pt", "by": "us"})
    result = run("convert", "a.safetensors", "b.pt", "--json")
    assert result.stderr == ""
    assert json.loads(result.stdout)["notes"] == [
        'metadata is left out, because a torch file holds none: "by", "format"'
    ]
    assert json.loads(run("convert", "a.safetensors", "b.safetensors", "--json").stdout)["notes"] == []


def test_json_says_what_was_done(run: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "a.safetensors")
    result = run("convert", "a.safetensors", "b.safetensors", "--json", "--no-durable")
    assert result.stderr == ""
    report = json.loads(result.stdout)
    assert report["target"] == "b.safetensors"
    assert report["tensors"] == 4
    assert report["bytes"] == 56
    assert report["durable"] is False


@pytest.mark.parametrize("name", ["F16", "f16", "float16", "half"])
def test_floating_tensors_change_their_dtype_and_others_do_not(run: Run, tmp_path: Path, name: str) -> None:
    files.write_file(tmp_path / "a.safetensors")
    assert run("convert", "a.safetensors", "b.safetensors", "--dtype", name).returncode == 0
    tensors, _ = files.read_file(tmp_path / "b.safetensors")
    assert tensors["layers.0.bias"] == ("F16", [4], struct.pack("<4e", 1, 2, 3, 4))
    assert tensors["layers.0.weight"] == ("F16", [2, 2], struct.pack("<4e", 1, 2, 3, 4))
    assert tensors["step"] == files.sample_tensors()["step"]


def test_select_keeps_what_any_pattern_matches(run: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "a.safetensors")
    arguments = ["--select", "layers.*", "--select", "step"]
    assert run("convert", "a.safetensors", "b.safetensors", *arguments).returncode == 0
    tensors, _ = files.read_file(tmp_path / "b.safetensors")
    assert sorted(tensors) == ["layers.0.bias", "layers.0.weight", "step"]


def test_a_pattern_that_matches_nothing_is_a_failure(fails: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "a.safetensors")
    result = fails("convert", "a.safetensors", "b.safetensors", "--select", "decoder.*")
    assert result.stderr == (
        "penstock: a.safetensors: no tensor matches --select 'decoder.*'; "
        "the nearest are 'embedding.weight', 'layers.0.bias', 'layers.0.weight'\n"
    )
    assert files.names_in(tmp_path) == ["a.safetensors"]


def test_names_change_after_the_selection(run: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "a.safetensors")
    arguments = ["--select", "layers.*", "--select", "step", "--rename", "step=steps", "--strip-prefix", "layers."]
    assert run("convert", "a.safetensors", "b.safetensors", *arguments, "--add-prefix", "x.").returncode == 0
    tensors, _ = files.read_file(tmp_path / "b.safetensors")
    assert sorted(tensors) == ["steps", "x.0.bias", "x.0.weight"]
    assert tensors["x.0.bias"] == files.sample_tensors()["layers.0.bias"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rename", "stop=x"], "there is no tensor 'stop' to rename; the nearest are 'step', "),
        (
            ["--strip-prefix", "layer.s"],
            "no name begins with --strip-prefix 'layer.s'; the nearest are 'layers.0.bias', ",
        ),
    ],
    ids=["rename", "strip-prefix"],
)
def test_names_that_are_not_there_are_a_failure(fails: Run, tmp_path: Path, arguments: list[str], message: str) -> None:
    files.write_file(tmp_path / "a.safetensors")
    assert fails("convert", "a.safetensors", "b.safetensors", *arguments).stderr.startswith(
        f"penstock: a.safetensors: {message}"
    )
    assert files.names_in(tmp_path) == ["a.safetensors"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rename", "b=c"], "there is no tensor 'b' to rename; there are none"),
        (["--strip-prefix", "b"], "no name begins with --strip-prefix 'b'; there are none"),
        (["--select", "b"], "no tensor matches --select 'b'; there are none"),
    ],
    ids=["rename", "strip-prefix", "select"],
)
def test_a_file_without_tensors_has_no_nearest_name(
    fails: Run, tmp_path: Path, arguments: list[str], message: str
) -> None:
    files.write_file(tmp_path / "a.safetensors", {})
    result = fails("convert", "a.safetensors", "b.safetensors", *arguments)
    assert result.stderr == f"penstock: a.safetensors: {message}\n"
    assert files.names_in(tmp_path) == ["a.safetensors"]


def test_two_tensors_never_get_one_name(misused: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "a.safetensors")
    result = misused("convert", "a.safetensors", "b.safetensors", "--rename", "step=layers.0.bias")
    assert "would both be called" in result.stderr
    misused("convert", "a.safetensors", "b.safetensors", "--rename", "step")
    misused("convert", "a.safetensors", "b.safetensors", "--rename", "=x")
    assert files.names_in(tmp_path) == ["a.safetensors"]


def test_shards_are_made_and_joined_again(run: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "a.safetensors")
    (tmp_path / "out").mkdir()
    assert run("convert", "a.safetensors", "out/m.safetensors", "--max-shard-size", "32").returncode == 0
    index = json.loads((tmp_path / "out/m.safetensors.index.json").read_text())
    assert sorted(index["weight_map"]) == sorted(files.sample_tensors())
    shards = set(index["weight_map"].values())
    assert len(shards) > 1
    assert files.names_in(tmp_path / "out") == sorted([*shards, "m.safetensors.index.json"])
    assert run("convert", "out", "joined.safetensors").returncode == 0
    assert files.read_file(tmp_path / "joined.safetensors")[0] == files.sample_tensors()


def test_an_existing_target_is_kept_without_force(run: Run, fails: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "a.safetensors")
    (tmp_path / "b.safetensors").write_text("precious")
    result = fails("convert", "a.safetensors", "b.safetensors")
    assert result.stderr == "penstock: b.safetensors: exists already; --force replaces it\n"
    assert (tmp_path / "b.safetensors").read_text() == "precious"
    assert run("convert", "a.safetensors", "b.safetensors", "--force").returncode == 0
    assert files.read_file(tmp_path / "b.safetensors")[0] == files.sample_tensors()


def test_existing_shards_and_index_are_kept_without_force(run: Run, fails: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "a.safetensors")
    arguments = ["convert", "a.safetensors", "m.safetensors", "--max-shard-size", "32"]
    assert run(*arguments).returncode == 0
    before = {name: (tmp_path / name).stat().st_ino for name in files.names_in(tmp_path)}
    fails(*arguments)
    assert {name: (tmp_path / name).stat().st_ino for name in files.names_in(tmp_path)} == before
    assert run(*arguments, "--force").returncode == 0


@pytest.mark.parametrize("force", [[], ["--force"]])
@pytest.mark.parametrize("target", ["a.safetensors", "./a.safetensors", "hard.safetensors", "link.safetensors"])
def test_the_source_is_never_its_own_target(misused: Run, tmp_path: Path, target: str, force: list[str]) -> None:
    source = files.write_file(tmp_path / "a.safetensors")
    os.link(source, tmp_path / "hard.safetensors")
    (tmp_path / "link.safetensors").symlink_to("a.safetensors")
    before = source.read_bytes()
    misused("convert", "a.safetensors", target, *force)
    assert source.read_bytes() == before
    assert (tmp_path / "link.safetensors").is_symlink()
    assert files.names_in(tmp_path) == ["a.safetensors", "hard.safetensors", "link.safetensors"]


def test_a_shard_of_the_source_is_never_the_target(misused: Run, tmp_path: Path) -> None:
    files.write_shards(tmp_path / "model")
    before = files.names_in(tmp_path / "model")
    shard = tmp_path / "model" / before[0]
    content = shard.read_bytes()
    misused("convert", "model", shard, "--force")
    assert shard.read_bytes() == content
    assert files.names_in(tmp_path / "model") == before


def test_a_directory_is_no_target(fails: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "a.safetensors")
    (tmp_path / "out").mkdir()
    fails("convert", "a.safetensors", "out", "--force")
    fails("convert", "a.safetensors", "missing/b.safetensors")
    assert files.names_in(tmp_path) == ["a.safetensors", "out"]
    assert files.names_in(tmp_path / "out") == []


def test_an_unknown_suffix_needs_a_format(run: Run, misused: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "a.safetensors")
    misused("convert", "a.safetensors", "b.unknown")
    misused("convert", "a.safetensors", "b.safetensors", "--format", "nonsense")
    assert run("convert", "a.safetensors", "b.unknown", "--format", "safetensors").returncode == 0
    assert files.read_file(tmp_path / "b.unknown")[0] == files.sample_tensors()


def test_the_new_file_has_the_mode_of_the_umask(run: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "a.safetensors")
    old = os.umask(0o027)
    try:
        run("convert", "a.safetensors", "b.safetensors")
    finally:
        os.umask(old)
    assert (tmp_path / "b.safetensors").stat().st_mode & 0o777 == 0o640


def test_shards_never_replace_shards_of_the_source(misused: Run, tmp_path: Path) -> None:
    directory = files.write_shards(tmp_path / "model")
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    misused("convert", "model", "model/model.safetensors", "--max-shard-size", "40", "--force")
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


def test_shards_never_replace_other_files_without_force(run: Run, fails: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "a.safetensors")
    precious = tmp_path / "m-00001-of-00002.safetensors"
    precious.write_text("precious")
    arguments = ["convert", "a.safetensors", "m.safetensors", "--max-shard-size", "40"]
    fails(*arguments)
    assert precious.read_text() == "precious"
    assert files.names_in(tmp_path) == ["a.safetensors", precious.name]
    assert run(*arguments, "--force").returncode == 0
