from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import cli_files as files
from cli_command import Run


def corrupt_last_byte(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 0xFF
    path.write_bytes(raw)


def with_checksums(run: Run, tmp_path: Path) -> Path:
    files.write_file(tmp_path / "plain.safetensors")
    assert run("convert", "plain.safetensors", "m.safetensors", "--checksums").returncode == 0
    return tmp_path / "m.safetensors"


def test_a_good_file_passes(run: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "m.safetensors")
    result = run("verify", "m.safetensors")
    assert result.returncode == 0
    assert result.stderr == ""
    assert result.stdout.startswith("ok m.safetensors  4 tensors")


def test_stored_checksums_are_checked(run: Run, tmp_path: Path) -> None:
    path = with_checksums(run, tmp_path)
    report = json.loads(run("verify", path, "--json").stdout)
    assert report["ok"] is True
    assert report["had_checksums"] is True
    corrupt_last_byte(path)
    result = run("verify", path)
    assert result.returncode == 1
    assert re.search(r"checksums +bad +1 tensor differs\n", result.stdout)
    problems = [line for line in result.stdout.splitlines() if line.startswith("  bad ")]
    assert len(problems) == 1
    report = json.loads(run("verify", path, "--json").stdout)
    assert report["ok"] is False
    assert len(report["problems"]) == 1
    broken = [tensor for tensor in report["tensors"] if not tensor["ok"]]
    assert len(broken) == 1
    assert broken[0]["crc32c"] != broken[0]["expected_crc32c"]
    assert broken[0]["name"] in report["problems"][0]


def test_structure_alone_does_not_read_the_data(run: Run, tmp_path: Path) -> None:
    path = with_checksums(run, tmp_path)
    corrupt_last_byte(path)
    result = run("verify", path, "--structure", "--json")
    assert result.returncode == 0
    assert json.loads(result.stdout)["bytes_read"] == 0


def test_checksums_are_printed_and_right(run: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "m.safetensors", {"digits": ("U8", [9], b"123456789")})
    result = run("verify", "m.safetensors", "--checksums")
    assert result.returncode == 0
    assert "  e3069283  digits\n" in result.stdout
    report = json.loads(run("verify", "m.safetensors", "--compute", "--json").stdout)
    assert report["tensors"][0]["crc32c"] == "e3069283"


def test_finite_finds_nan_and_infinity(run: Run, tmp_path: Path) -> None:
    values = struct.pack("<4f", 1.0, float("nan"), float("inf"), 2.0)
    files.write_file(tmp_path / "m.safetensors", {"fine": ("F32", [1], b"\0" * 4), "broken": ("F32", [4], values)})
    assert run("verify", "m.safetensors").returncode == 0
    result = run("verify", "m.safetensors", "--finite")
    assert result.returncode == 1
    assert "2 elements NaN or infinite" in result.stdout
    report = json.loads(run("verify", "m.safetensors", "--finite", "--json").stdout)
    assert {tensor["name"]: tensor["not_finite"] for tensor in report["tensors"]} == {"fine": 0, "broken": 2}
    assert any("broken" in problem for problem in report["problems"])


def test_a_broken_structure_is_one_line_and_one_json_report(run: Run, tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(b"")
    result = run("verify", "m.safetensors", "--json")
    assert result.returncode == 1
    assert result.stderr.startswith("penstock: m.safetensors: ")
    report = json.loads(result.stdout)
    assert report["ok"] is False
    assert len(report["problems"]) == 1


def test_every_path_is_verified(run: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "a.safetensors")
    (tmp_path / "b.safetensors").write_bytes(b"")
    files.write_file(tmp_path / "c.safetensors")
    result = run("verify", "a.safetensors", "b.safetensors", "c.safetensors", "--json")
    assert result.returncode == 1
    assert [json.loads(line)["ok"] for line in result.stdout.splitlines()] == [True, False, True]


def test_seals_are_written_and_checked(run: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "m.safetensors")
    result = run("seal", "m.safetensors", "--sha256", "--block-size", "512")
    assert result.returncode == 0
    assert result.stdout.startswith("ok m.safetensors.seal.json  ")
    report = json.loads(run("seal", "m.safetensors", "--sha256", "--json").stdout)
    assert report["files"][0]["seal"] == "m.safetensors.seal.json"
    assert len(report["files"][0]["sha256"]) == 64
    for against in ("seal", "sha256"):
        assert json.loads(run("verify", "m.safetensors", "--json", "--against", against).stdout)["against"] == against
    result = run("verify", "m.safetensors")
    assert re.search(r"checksums +ok +every byte, against the seal\n", result.stdout)
    corrupt_last_byte(tmp_path / "m.safetensors")
    result = run("verify", "m.safetensors")
    assert result.returncode == 1
    assert re.search(r"checksums +bad +damaged, against the seal\n", result.stdout)
    assert '(tensor "step") are corrupt' in " ".join(result.stdout.split())
    result = run("convert", "m.safetensors", "copy.pt")
    assert result.returncode == 1
    assert "are corrupt" in result.stderr
    assert run("convert", "m.safetensors", "copy.pt", "--no-verify").returncode == 0


def test_a_header_that_is_damaged_is_named_by_its_seal(run: Run, tmp_path: Path) -> None:
    path = files.write_file(tmp_path / "m.safetensors")
    assert run("seal", "m.safetensors").returncode == 0
    raw = bytearray(path.read_bytes())
    raw[8] ^= 1
    path.write_bytes(raw)
    result = run("verify", "m.safetensors")
    assert result.returncode == 1
    assert re.search(r"m.safetensors: bytes 0 to \d+ \(outside of any tensor\) are corrupt: ", result.stderr)


def test_insisting_on_what_is_not_there_fails(run: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "m.safetensors")
    result = run("verify", "m.safetensors", "--against", "seal")
    assert result.returncode == 1
    assert "has no seal to be verified against; `penstock seal` makes a seal" in result.stderr
    assert run("verify", "m.safetensors", "--against", "md5").returncode == 2
