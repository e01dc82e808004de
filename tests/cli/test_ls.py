from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import cli_files as files
import pytest
from cli_command import Run


def test_every_tensor_is_listed_with_dtype_shape_size_and_name(run: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "m.safetensors", metadata={"format": "pt"})
    result = run("ls", "m.safetensors")
    assert result.returncode == 0
    assert result.stderr == ""
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["DTYPE", "SHAPE", "SIZE", "NAME"] in lines
    assert ["F32", "[2,", "3]", "24", "B", "embedding.weight"] in lines
    assert ["I64", "[]", "8", "B", "step"] in lines
    assert ["format", "pt"] in lines
    assert "4 tensors, 15 parameters, 56 B" in result.stdout


def test_columns_are_aligned_whatever_the_names(run: Run, tmp_path: Path) -> None:
    value = ("F32", [1], b"\0" * 4)
    files.write_file(tmp_path / "m.safetensors", {"a": value, "schön": value, "重み": value, "x" * 200: value})
    rows = [line for line in run("ls", "m.safetensors").stdout.splitlines() if line.startswith("  F32")]
    assert [row[: row.index("B") + 3] for row in rows] == ["  F32    [1]     4 B  "] * 4
    assert [row[row.index("B") + 3 :] for row in rows] == ["a", "schön", "重み", "x" * 200]


def test_json_tells_everything(run: Run, tmp_path: Path) -> None:
    path = files.write_file(tmp_path / "m.safetensors", metadata={"format": "pt", "quote": 'a "b"\n'})
    result = run("ls", "m.safetensors", "--json")
    assert result.stdout.count("\n") == 1
    listing = json.loads(result.stdout)
    assert listing["path"] == "m.safetensors"
    assert listing["metadata"] == {"format": "pt", "quote": 'a "b"\n'}
    assert listing["totals"]["tensors"] == 4
    assert listing["totals"]["parameters"] == 15
    assert listing["totals"]["nbytes"] == 56
    assert listing["totals"]["by_dtype"]["F32"] == {"tensors": 2, "parameters": 10, "nbytes": 40}
    assert listing["files"][0]["size"] == path.stat().st_size
    assert listing["files"][0]["format"] == "safetensors"
    first = listing["tensors"][0]
    assert first["name"] == "embedding.weight"
    assert first["dtype"] == "F32"
    assert first["shape"] == [2, 3]
    assert first["nbytes"] == 24
    assert first["offset"] == path.stat().st_size - 56


def test_strange_names_are_valid_json_and_harmless_on_a_terminal(run: Run, tmp_path: Path) -> None:
    name = 'a"b\\c\n\x1b[31mred\x7f\u202eé重'
    files.write_file(tmp_path / "m.safetensors", {name: ("U8", [1], b"\0")}, {"k\n": "v\x1b[2J"})
    listing = json.loads(run("ls", "m.safetensors", "--json").stdout)
    assert listing["tensors"][0]["name"] == name
    assert listing["metadata"] == {"k\n": "v\x1b[2J"}
    text = run("ls", "m.safetensors").stdout
    assert "\x1b" not in text
    assert 'a"b\\c\\n\\x1b[31mred\\x7f\\u202eé重' in text


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("name", ["embedding.weight", "layers.0.bias", "layers.0.weight", "step"]),
        ("size", ["embedding.weight", "layers.0.bias", "layers.0.weight", "step"]),
        ("offset", ["step", "layers.0.weight", "layers.0.bias", "embedding.weight"]),
    ],
)
def test_sort(run: Run, tmp_path: Path, key: str, expected: list[str]) -> None:
    files.write_file(tmp_path / "m.safetensors", dict(reversed(files.sample_tensors().items())))
    listing = json.loads(run("ls", "m.safetensors", "--json", "--sort", key).stdout)
    names = [tensor["name"] for tensor in listing["tensors"]]
    if key == "size":
        sizes = [tensor["nbytes"] for tensor in listing["tensors"]]
        assert sizes == sorted(sizes, reverse=True)
        assert names[:2] == expected[:2]
    else:
        assert names == expected


# It was called --filter once.
@pytest.mark.parametrize("option", ["--select", "--filter"])
def test_select_takes_globs_and_totals_follow(run: Run, tmp_path: Path, option: str) -> None:
    files.write_file(tmp_path / "m.safetensors")
    listing = json.loads(run("ls", "m.safetensors", "--json", option, "*.bias", "--select", "st?p").stdout)
    assert [tensor["name"] for tensor in listing["tensors"]] == ["layers.0.bias", "step"]
    assert listing["totals"]["nbytes"] == 24
    assert "2 of 4 tensors" in run("ls", "m.safetensors", option, "layers.*").stdout
    assert "--filter" not in run("ls", "--help").stdout


def test_a_pattern_that_matches_nothing_is_a_failure_that_names_the_nearest(run: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "a.safetensors")
    files.write_file(tmp_path / "b.safetensors", {"layer.0": ("U8", [1], b"x")})
    result = run("ls", "a.safetensors", "b.safetensors", "--select", "layer.*", "--json")
    assert result.returncode == 1
    assert [json.loads(line)["path"] for line in result.stdout.splitlines()] == ["b.safetensors"]
    assert result.stderr == (
        "penstock: a.safetensors: no tensor matches --select 'layer.*'; "
        "the nearest are 'layers.0.bias', 'layers.0.weight', 'embedding.weight'\n"
    )
    files.write_file(tmp_path / "empty.safetensors", {})
    assert run("ls", "empty.safetensors", "--select", "x").stderr.endswith("matches --select 'x'; there are none\n")


def test_summary_gives_totals_by_dtype_and_no_tensors(run: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "m.safetensors")
    text = run("ls", "-s", "m.safetensors").stdout
    assert re.search(r"F32 +2 +10 +40 B +71\.4%", text)
    assert "embedding" not in text
    assert "tensors" not in json.loads(run("ls", "--summary", "--json", "m.safetensors").stdout)


def test_shards_are_listed_as_one_checkpoint(run: Run, tmp_path: Path) -> None:
    files.write_shards(tmp_path / "model")
    for path in ("model", "model/model.safetensors.index.json"):
        listing = json.loads(run("ls", path, "--json").stdout)
        assert len(listing["files"]) == 2
        assert listing["totals"]["tensors"] == 4
    assert "model-00002-of-00002.safetensors" in run("ls", "model").stdout


def test_several_paths_are_listed_even_when_one_is_bad(run: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "a.safetensors")
    files.write_file(tmp_path / "b.safetensors")
    result = run("ls", "--json", "a.safetensors", "missing", "b.safetensors")
    assert result.returncode == 1
    assert [json.loads(line)["path"] for line in result.stdout.splitlines()] == ["a.safetensors", "b.safetensors"]
    assert result.stderr.startswith("penstock: missing: ")


def test_an_empty_file_of_no_tensors_is_fine(run: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "m.safetensors", {})
    result = run("ls", "m.safetensors")
    assert result.returncode == 0
    assert "0 tensors" in result.stdout


def test_a_hundred_thousand_tensors_are_listed(run: Run, tmp_path: Path) -> None:
    value = ("U8", [1], b"\0")
    files.write_file(tmp_path / "m.safetensors", {f"layer.{i}.weight": value for i in range(100_000)})
    assert run("ls", "m.safetensors").stdout.count("layer.") == 100_000
    assert len(json.loads(run("ls", "m.safetensors", "--json").stdout)["tensors"]) == 100_000


def test_a_closed_pipe_is_silent(command: str, tmp_path: Path) -> None:
    value = ("U8", [1], b"\0")
    files.write_file(tmp_path / "m.safetensors", {f"layer.{i}.weight": value for i in range(50_000)})
    result = subprocess.run(
        f"'{command}' ls m.safetensors | head -n 1",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "m.safetensors\n"
    assert result.stderr == ""


def test_output_that_cannot_be_written_is_a_failure(command: str, tmp_path: Path) -> None:
    files.write_file(tmp_path / "m.safetensors")
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [command, "ls", "m.safetensors"], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert result.returncode == 1
    assert result.stderr == "penstock: standard output: No space left on device\n"
