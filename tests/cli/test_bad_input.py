"""Each kind of broken input: one line on standard error, exit code 1, nothing left behind, by every reading command."""

from __future__ import annotations

import json
import os
import resource
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cli_files as files
import pytest
from cli_command import PATIENCE_SECONDS, Run, is_writing, wait_until

F32 = {"dtype": "F32", "shape": [2]}


def record(begin: int, end: int, **changes: object) -> dict[str, object]:
    return {**F32, "data_offsets": [begin, end], **changes}


BAD_BYTES: dict[str, bytes] = {
    "empty": b"",
    "garbage": b"this is no model at all, sorry",
    "seven_bytes": b"\x01" * 7,
    "truncated_header": struct.pack("<Q", 500) + b'{"a":',
    "header_longer_than_file": struct.pack("<Q", 99_999_999) + b"{}",
    "header_longer_than_100_mb": struct.pack("<Q", 100_000_001) + b"{}      ",
    "truncated_data": files.encode({"a": record(0, 8)}, b"\0" * 7),
    "trailing_data": files.encode({"a": record(0, 8)}, b"\0" * 9),
    "overlap": files.encode({"a": record(0, 8), "b": record(4, 12)}, b"\0" * 12),
    "hole": files.encode({"a": record(0, 8), "b": record(12, 20)}, b"\0" * 20),
    "duplicate_name": files.encode(
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}',
        b"\0" * 16,
    ),
    "bad_utf8": files.encode(b'{"\xff\xfe":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', b"\0" * 8),
    "unknown_dtype": files.encode({"a": record(0, 8, dtype="F31")}, b"\0" * 8),
    "overflowing_shape": files.encode({"a": record(0, 8, shape=[2**62, 2**62])}, b"\0" * 8),
    "negative_shape": files.encode({"a": record(0, 8, shape=[-2])}, b"\0" * 8),
    "shape_does_not_fit": files.encode({"a": record(0, 8, shape=[3])}, b"\0" * 8),
    "not_an_object": files.encode(b"[1, 2]", b""),
    "newline_in_name": files.encode({"a\nb\x1b[31m": record(0, 8, dtype="F31")}, b"\0" * 8),
}

# The commands that read a checkpoint, with a target for the one that writes.
READERS: dict[str, list[str]] = {
    "ls": ["ls", "SOURCE"],
    "verify": ["verify", "SOURCE"],
    "convert": ["convert", "SOURCE", "target.safetensors"],
    "bench": ["bench", "SOURCE", "--rounds", "1"],
    "doctor": ["doctor", "SOURCE"],
}

Check = Callable[..., str]


@pytest.fixture(params=READERS)
def refuse(request: pytest.FixtureRequest, fails: Run, tmp_path: Path) -> Check:
    """Runs a command on a source that it must refuse; gives the error line."""

    def run_on(source: Path, **changes: Any) -> str:
        before = files.names_in(tmp_path)
        arguments = [str(source.relative_to(tmp_path)) if word == "SOURCE" else word for word in READERS[request.param]]
        result = fails(*arguments, **changes)
        assert files.names_in(tmp_path) == before
        assert result.stdout == ""
        assert "\x1b" not in result.stderr
        return result.stderr

    return run_on


@pytest.mark.parametrize("kind", BAD_BYTES)
def test_bad_bytes_are_refused(refuse: Check, tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"{kind}.safetensors"
    path.write_bytes(BAD_BYTES[kind])
    assert refuse(path).startswith(f"penstock: {kind}.safetensors: ")


def test_a_missing_file_is_refused(refuse: Check, tmp_path: Path) -> None:
    assert refuse(tmp_path / "missing.safetensors").endswith("No such file or directory\n")


def test_a_directory_without_a_checkpoint_is_refused(refuse: Check, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    assert refuse(tmp_path / "model").startswith("penstock: model: ")


def test_a_file_without_permission_is_refused(refuse: Check, tmp_path: Path, ordinary_user: dict[str, Any]) -> None:
    path = files.write_file(tmp_path / "m.safetensors")
    path.chmod(0)
    assert refuse(path, **ordinary_user).endswith("Permission denied\n")


def test_a_missing_shard_is_refused(refuse: Check, tmp_path: Path) -> None:
    files.write_shards(tmp_path / "model")
    (tmp_path / "model/model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors" in refuse(tmp_path / "model")


def test_a_tensor_in_two_shards_is_refused(refuse: Check, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    for i in (1, 2):
        files.write_file(directory / f"model-{i:05}-of-00002.safetensors")
    assert "embedding.weight" in refuse(directory)


def test_an_index_that_does_not_fit_is_refused(refuse: Check, tmp_path: Path) -> None:
    files.write_shards(tmp_path / "model")
    index = tmp_path / "model/model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["nowhere"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(content))
    assert "nowhere" in refuse(index)


def test_an_index_that_names_a_path_is_refused(refuse: Check, tmp_path: Path) -> None:
    index = tmp_path / "m.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    assert "secret" in refuse(index)


def test_a_read_only_directory_is_refused(fails: Run, tmp_path: Path, ordinary_user: dict[str, Any]) -> None:
    files.write_file(tmp_path / "a.safetensors")
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o555)
    for arguments in (
        ["convert", "a.safetensors", "out/b.safetensors"],
        ["bench", "--dir", "out", "--size", "1M"],
        ["bench", "--settings", "--dir", "out", "--size", "1M"],
    ):
        assert fails(*arguments, **ordinary_user).stderr.endswith("Permission denied\n")
    assert files.names_in(out) == []


def test_a_directory_that_refuses_every_file_is_refused(fails: Run, tmp_path: Path) -> None:
    """Also as root: nobody can make a file in /proc."""
    files.write_file(tmp_path / "a.safetensors")
    fails("convert", "a.safetensors", "/proc/b.safetensors")
    fails("bench", "--dir", "/proc", "--size", "1M")
    fails("bench", "--settings", "--dir", "/proc", "--size", "1M")
    assert files.names_in(tmp_path) == ["a.safetensors"]


def test_a_file_that_grows_too_large_for_a_limit_is_refused(fails: Run, tmp_path: Path) -> None:
    files.write_large(tmp_path / "a.safetensors", 4 * 2**20)
    limit = 2**20
    result = fails(
        "convert",
        "a.safetensors",
        "b.safetensors",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert result.stderr.startswith("penstock: b.safetensors: ")
    assert result.stderr.endswith("File too large\n")
    assert files.names_in(tmp_path) == ["a.safetensors"]


def test_a_full_disk_is_refused_and_the_old_file_kept(command: str, tmp_path: Path) -> None:
    """On a filesystem of 1 MiB, mounted where only this test sees it."""
    files.write_large(tmp_path / "a.safetensors", 4 * 2**20)
    (tmp_path / "small").mkdir()
    script = f"""
        mount -t tmpfs -o size=1m none small || exit 99
        echo precious > small/b.safetensors
        '{command}' convert a.safetensors small/b.safetensors --force
        echo "exit code $?"; ls -A small; cat small/b.safetensors
    """
    result = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode == 99 or result.stderr.startswith("unshare:"):
        pytest.skip(f"no filesystem can be mounted here: {result.stderr}")
    assert result.stdout == "exit code 1\nb.safetensors\nprecious\n"
    assert result.stderr.startswith("penstock: small/b.safetensors: ")
    assert result.stderr.endswith("No space left on device\n")
    assert result.stderr.count("\n") == 1


def change_during_conversion(command: str, directory: Path, change: Callable[[Path], None]) -> str:
    """Changes the source of a conversion while it runs; gives the error line."""
    source = files.write_large(directory.resolve() / "a.safetensors", 4 * 2**30)
    process = subprocess.Popen(
        [command, "convert", "a.safetensors", "b.safetensors"],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: is_writing(process, source), process)
    change(source)
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert files.names_in(directory) == ["a.safetensors"]
    assert errors.count("\n") == 1
    return errors


def test_a_file_that_shrinks_while_it_is_read_is_an_error(command: str, tmp_path: Path) -> None:
    errors = change_during_conversion(command, tmp_path, lambda source: os.truncate(source, 2**20))
    assert errors.startswith("penstock: a.safetensors: ")


def test_a_file_that_changes_while_it_is_read_is_an_error(command: str, tmp_path: Path) -> None:
    def overwrite_a_byte(source: Path) -> None:
        with source.open("r+b") as file:
            file.seek(2**30)
            file.write(b"x")

    errors = change_during_conversion(command, tmp_path, overwrite_a_byte)
    assert errors.startswith("penstock: a.safetensors: ")
