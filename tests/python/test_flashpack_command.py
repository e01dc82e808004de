"""python -m penstock.flashpack: convert, revert, metadata."""

from __future__ import annotations

import json
import os
import pty
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import helpers
import penstock
import pytest
import safetensors.torch
import torch
from penstock.flashpack import __main__ as command
from penstock.flashpack import commands, get_flashpack_file_metadata, pack_to_file, revert_from_file
from torch import nn


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    return {
        "embed.weight": torch.randn(5, 3),
        "head.weight": torch.randn(5, 3).bfloat16(),
        "head.bias": torch.randn(5),
        "steps": torch.tensor(12),
    }


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """The command in this process: its exit code, and what it printed."""
    try:
        code = command.main([str(argument) for argument in arguments])
    except SystemExit as ended:
        code = int(ended.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def run_module(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock.flashpack", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


# convert


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


def test_everything_takes_the_dtype(
    tmp_path: Path, state: dict[str, torch.Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    source, made = tmp_path / "model.safetensors", tmp_path / "small.flashpack"
    safetensors.torch.save_file(state, source)
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
    tmp_path: Path, state: dict[str, torch.Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    source, made = tmp_path / "model.safetensors", tmp_path / "other.flashpack"
    safetensors.torch.save_file(state, source)
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert", "broken.safetensors"], "broken.safetensors"),
        (["convert", "broken.pt"], "broken.pt: torch can't load it"),
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
        from penstock.flashpack.__main__ import main
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


# The functions behind it


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
