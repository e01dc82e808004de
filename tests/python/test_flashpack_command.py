"""python -m penstock.flashpack: usage and errors, revert, metadata, the process."""

from __future__ import annotations

import json
import os
import pty
import re
import stat
import subprocess
import sys
from pathlib import Path

import helpers
import penstock
import pytest
import safetensors.torch
import torch
from flashpack_command import make_state, run, run_module
from penstock.flashpack import get_flashpack_file_metadata, pack_to_file, revert_from_file
from torch import nn


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    return make_state()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert", "broken.safetensors"], "broken.safetensors"),
        (["convert", "broken.pt"], "broken.pt: this is a Python pickle"),
        (["convert", "torn.pt"], "torn.pt: torch can't load it"),
        (["convert", "nowhere.safetensors"], "nowhere.safetensors: no such file or folder"),
        (["convert", "good.safetensors", "--dtype", "float33"], "'float33' is not the name of a torch dtype"),
        (["convert", "good.safetensors", "--dtype", "qint8"], "can't hold elements of torch.qint8"),
        (["convert", "good.safetensors", "--ignore-prefixes", ""], "nothing|no tensors"),
        (["convert", "good.safetensors", "folder"], "folder: is a directory"),
        (["revert", "good.safetensors"], "good.safetensors"),
        (["revert", "nowhere.flashpack"], "nowhere.flashpack"),
        (["revert", "good.flashpack", "out.xyz"], r"out.xyz: the suffix must say what to write"),
        (["metadata", "good.safetensors"], "good.safetensors"),
        (["metadata", "folder"], "folder"),
    ],
)
def test_errors_are_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    no_leaks: None,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken.safetensors").write_bytes(b"\x00" * 20)
    (tmp_path / "broken.pt").write_bytes(b"\x80\x02nonsense")
    (tmp_path / "torn.pt").write_bytes(b"PK\3\4" + bytes(40))
    penstock.save({"x": torch.ones(2)}, "good.safetensors")
    penstock.save({"x": torch.ones(2)}, "good.flashpack")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    code, out, err = run(capsys, *arguments, *(["--force"] if arguments[0] != "metadata" else []))
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("penstock-flashpack: ")
    assert re.search(message, err)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["convert"],
        ["frobnicate"],
        ["metadata", "a", "--wrong"],
        ["convert", "a", "--use-transformers", "--use-diffusers"],
    ],
)
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("usage: penstock-flashpack")


@pytest.mark.parametrize("arguments", [[], ["convert"], ["revert"], ["metadata"]])
def test_everything_has_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *arguments, "--help")
    assert (code, err) == (0, "")
    options = {
        "convert": [
            *("--subfolder", "--variant", "--dtype", "--ignore-names", "--ignore-prefixes", "--ignore-suffixes"),
            *("--use-transformers", "--use-diffusers", "--force", "-v"),
        ],
        "revert": ["--force", "-v"],
        "metadata": ["-i", "--show-index", "-j", "--json"],
    }
    for option in options[arguments[0]] if arguments else options:
        assert option in out


# revert


@pytest.mark.parametrize("name", ["model.flashpack", "model.weights", "model"])
def test_a_file_is_reverted_to_safetensors_beside_itself(
    tmp_path: Path, state: dict[str, torch.Tensor], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / name
    penstock.save(state, source, format="flashpack")
    before = source.read_bytes()
    made = tmp_path / ("model.safetensors" if name != "model.weights" else "model.weights.safetensors")
    assert run(capsys, "revert", source) == (0, f"saved to {made}\n", "")
    helpers.assert_same_tensors(safetensors.torch.load_file(made), state)
    with safetensors.safe_open(made, "pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert source.read_bytes() == before
    assert run(capsys, "revert", source)[0] == 1
    assert run(capsys, "revert", source, "--force")[0] == 0


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".ckpt"])
def test_a_file_is_reverted_to_a_torch_checkpoint(
    tmp_path: Path, state: dict[str, torch.Tensor], suffix: str, capsys: pytest.CaptureFixture[str], no_leaks: None
) -> None:
    source, made = tmp_path / "model.flashpack", tmp_path / "new" / f"model{suffix}"
    pack_to_file(state, source)
    old = os.umask(0o026)
    try:
        assert run(capsys, "revert", source, made)[0] == 0
    finally:
        os.umask(old)
    helpers.assert_same_tensors(torch.load(made, weights_only=True), state)
    assert stat.S_IMODE(made.stat().st_mode) == 0o640
    made.chmod(0o600)
    assert run(capsys, "revert", source, made, "--force")[0] == 0
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert os.listdir(made.parent) == [made.name]


def test_a_torch_checkpoint_that_can_not_be_written_leaves_nothing(
    tmp_path: Path, state: dict[str, torch.Tensor]
) -> None:
    source = tmp_path / "model.flashpack"
    pack_to_file({"x": torch.ones(2**20)}, source)
    script = """
        import os, resource, sys
        from penstock.flashpack._command import main
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
        print(main(["revert", sys.argv[1], sys.argv[2]]), os.listdir(os.path.dirname(sys.argv[1])))
    """
    result = helpers.run_python(script, str(source), str(tmp_path / "model.pt"))
    assert result.stdout == "1 ['model.flashpack']\n"
    assert len(result.stderr.splitlines()) == 1


# metadata


def test_metadata_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.flashpack"
    pack_to_file({"big": torch.ones(2, 3), "odd\n": torch.ones(1), "step": torch.tensor(1)}, path)
    code, out, err = run(capsys, "metadata", path)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "format: flashpack_v4",
        "align_bytes: 128",
        "total_payload_bytes: 264",
        "total_elems: 34",
        "tensors: 3",
        "macroblocks:",
        "  0: float32    bytes 0 to 132",
        "  1: int64      bytes 256 to 264",
    ]
    index = run(capsys, "metadata", path, "-i")[1].splitlines()[8:]
    assert index == [
        "index:",
        "  0: float32    elements 0 to 6  big [2, 3]",
        '  0: float32    elements 32 to 33  "odd\\n" [1]',
        "  1: int64      elements 0 to 1  step []",
    ]
    pack_to_file({"x": torch.ones(3).half()}, path)
    assert "  0: float16    bytes 0 to 6" in run(capsys, "metadata", path)[1].splitlines()


def test_metadata_is_shown_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.flashpack"
    pack_to_file({"é": torch.ones(2)}, path)
    metadata = get_flashpack_file_metadata(path)
    code, out, _ = run(capsys, "metadata", path, "--json", "--show-index")
    assert code == 0
    assert json.loads(out) == metadata
    assert '"é"' in out
    del metadata["index"]
    assert json.loads(run(capsys, "metadata", path, "-j")[1]) == metadata


# The process


def test_the_module_runs_as_a_command(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    source = tmp_path / "model.safetensors"
    safetensors.torch.save_file(state, source)
    result = run_module("convert", "model.safetensors", "-v", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    *phases, last = result.stdout.splitlines()
    assert last == f"saved to {tmp_path}/model.flashpack"
    assert {"build_index", "write", "sync", "rename"} <= {line.split(":")[0] for line in phases}
    result = run_module("convert", "model.safetensors", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "penstock-flashpack: model.flashpack: exists; --force replaces it\n"
    assert run_module("--version").stdout == f"penstock {penstock.__version__}\n"


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "many.flashpack"
    pack_to_file({f"tensor.{i}": torch.ones(1) for i in range(20_000)}, path, align_bytes=0)
    result = subprocess.run(
        f"{sys.executable} -m penstock.flashpack metadata -i {path} | head -1; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "format: flashpack_v3\n", "")


def test_a_terminal_gets_a_bar(tmp_path: Path) -> None:
    source = tmp_path / "model.safetensors"
    penstock.save({"x": torch.ones(2**20)}, source)
    leader, follower = pty.openpty()
    result = subprocess.run(
        [sys.executable, "-m", "penstock.flashpack", "convert", str(source)],
        stdout=subprocess.PIPE,
        stderr=follower,
        timeout=120,
    )
    os.close(follower)
    shown = os.read(leader, 100_000).decode()
    os.close(leader)
    assert result.returncode == 0
    assert "converting model.safetensors" in shown


def test_a_folder_is_no_flashpack_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack_to_file({"weight": torch.ones(2, 2), "bias": torch.ones(2)}, tmp_path / "model.flashpack")
    calls = [
        get_flashpack_file_metadata,
        revert_from_file,
        penstock.flashpack.deserialization.read_flashpack_file,
        penstock.flashpack.read_flashpack_file_distributed,
        lambda path: penstock.flashpack.assign_from_file(nn.Linear(2, 2), path),
        lambda path: penstock.flashpack.assign_from_file(nn.Linear(2, 2), path, keep_flash_ref_on_model=True),
    ]
    for call in calls:
        with pytest.raises(IsADirectoryError, match=f"{tmp_path}: cannot read: Is a directory"):
            call(tmp_path)  # type: ignore[operator]
    assert not penstock.flashpack.is_flashpack_file(tmp_path)
    for name in ("revert", "metadata"):
        expected = f"penstock-flashpack: {tmp_path}: cannot read: Is a directory\n"
        assert run(capsys, name, tmp_path) == (1, "", expected)
