"""What is no path: URLs and names of the hub. The message says how to come by a local copy."""

from __future__ import annotations

import json
from pathlib import Path

import cli_files as files
import pytest
from cli_command import Run

NOT_FOUND = "cannot open: No such file or directory"
LOCAL = "only local paths are read and written"
HUB = "only local paths are read: for a model of the Hugging Face hub, hf download"


@pytest.mark.parametrize(
    "before_and_after",
    [("ls",), ("verify",), ("doctor",), ("bench",), ("convert", "o.pt"), ("convert", "o.pt", "--select", "*")],
    ids=" ".join,
)
@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("s3://x/y", f"{LOCAL}; to copy it: aws s3 cp s3://x/y ."),
        ("s3:/x/y", f"{LOCAL}; to copy it: aws s3 cp s3://x/y ."),
        ("gs://x/y.safetensors", f"{LOCAL}; to copy it: gcloud storage cp gs://x/y.safetensors ."),
        ("https://x/y.pt?a=1&b=2", f"{LOCAL}; to copy it: curl -LO 'https://x/y.pt?a=1&b=2'"),
        ("hf://me/llama/model.safetensors", f"{LOCAL}; to copy it: hf download me/llama --local-dir llama"),
        ("ftp://x/y", f"{LOCAL}; copy it first"),
        ("file:///x/y.pt", "expected a path, not a URL; give '/x/y.pt'"),
        ("meta-llama/Llama-3.1-8B", f"{HUB} meta-llama/Llama-3.1-8B --local-dir Llama-3.1-8B"),
        ("gpt2", f"{HUB} gpt2 --local-dir gpt2"),
    ],
)
def test_a_source_that_is_elsewhere(
    fails: Run, tmp_path: Path, before_and_after: tuple[str, ...], path: str, hint: str
) -> None:
    command, *after = before_and_after
    assert fails(command, path, *after).stderr == f"penstock: {path}: {NOT_FOUND}; {hint}\n"
    assert files.names_in(tmp_path) == []


def test_a_target_that_is_elsewhere(fails: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "m.safetensors")
    assert fails("convert", "m.safetensors", "s3://x/y.pt").stderr == (
        "penstock: s3://x/y.pt: cannot open the directory s3://x: No such file or directory; "
        f"{LOCAL}; write to a local file and copy that\n"
    )
    assert files.names_in(tmp_path) == ["m.safetensors"]


@pytest.mark.parametrize(
    "path",
    [
        "missing.safetensors",
        "missing.gguf",
        "folder/missing",
        "nowhere/missing.pt",
        "nowhere/model.json",
        "a/b/c",
        "./missing",
        "/missing",
        "missing/",
        "my model",
        "c:/model",
        "here:/model",
    ],
)
def test_a_path_that_is_only_missing_gets_no_hint(fails: Run, tmp_path: Path, path: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "here:").mkdir()
    assert fails("ls", path).stderr == f"penstock: {path}: {NOT_FOUND}\n"


def test_a_target_in_a_missing_folder_is_no_name_of_the_hub(fails: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "m.safetensors")
    assert fails("convert", "m.safetensors", "nowhere/x", "--format", "torch").stderr == (
        "penstock: nowhere/x: cannot open the directory nowhere: No such file or directory\n"
    )


def test_json_has_the_problem_and_the_line_for_people_has_the_hint(fails: Run) -> None:
    result = fails("verify", "s3://x/y", "--json")
    assert json.loads(result.stdout)["problems"] == [f"s3://x/y: {NOT_FOUND}"]
    assert result.stderr.endswith("aws s3 cp s3://x/y .\n")
