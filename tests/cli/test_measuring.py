"""bench and tune: what they print and that they clean up. How fast anything is, is not tested."""

from __future__ import annotations

import json
from pathlib import Path

import cli_files as files
import pytest
from cli_command import Run

STEPS = ["read_ceiling", "cold_load", "cold_load_reused", "warm_load", "warm_load_copied", "write_ceiling", "save"]


def test_bench_measures_a_model_of_its_own_and_removes_it(run: Run, tmp_path: Path) -> None:
    result = run("bench", "--size", "8MiB", "--rounds", "2", "--json")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    report = json.loads(result.stdout)
    assert [step["name"] for step in report["results"]] == STEPS
    for step in report["results"]:
        assert len(step["rounds"]) == 2
        assert step["gib_per_second"] > 0
        assert ("of_drive" in step) == (not step["name"].endswith("ceiling"))
    assert abs(report["bytes"] - 8 * 2**20) < 2**20
    assert files.names_in(tmp_path) == []


def test_bench_prints_a_table(run: Run) -> None:
    result = run("bench", "--size", "4MiB", "--rounds", "1")
    assert result.returncode == 0, result.stderr
    for title in ("drive, direct read", "cold load, fresh memory", "warm load", "durable save"):
        assert f"  {title} " in result.stdout


def test_bench_takes_a_file_and_leaves_it_alone(run: Run, tmp_path: Path) -> None:
    path = files.write_file(tmp_path / "m.safetensors")
    before = path.read_bytes()
    result = run("bench", "m.safetensors", "--rounds", "1", "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["path"] == "m.safetensors"
    assert report["tensors"] == 4
    assert report["bytes"] == 56
    assert path.read_bytes() == before
    assert files.names_in(tmp_path) == ["m.safetensors"]


def test_bench_says_when_it_cannot_save(run: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "m.safetensors")
    report = json.loads(run("bench", "m.safetensors", "--rounds", "1", "--dir", "/proc", "--json").stdout)
    assert [step["name"] for step in report["results"]] == STEPS[:5]
    assert any(note.startswith("saving was not measured: /proc: ") for note in report["notes"])


def test_bench_says_when_the_page_cache_cannot_be_dropped(run: Run) -> None:
    if not Path("/dev/shm").is_dir():
        pytest.skip("there is no /dev/shm, whose files live in the page cache")
    result = run("bench", "--dir", "/dev/shm", "--size", "4MiB", "--rounds", "1")
    assert result.returncode == 0, result.stderr
    assert "the page cache could not be dropped" in result.stdout


def test_tune_ranks_settings_and_says_how_to_set_them(run: Run, tmp_path: Path) -> None:
    result = run("tune", ".", "--size", "4MiB", "--seconds", "2", "--json")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    report = json.loads(result.stdout)
    for direction in ("reads", "writes"):
        ranking = report[direction]["ranking"]
        rates = [entry["gib_per_second"] for entry in ranking]
        assert rates == sorted(rates, reverse=True)
        assert report[direction]["best"] == ranking[0]
        for entry in ranking:
            if not entry["default"]:
                assert f"PENSTOCK_QUEUE_DEPTH={entry['queue_depth']}" in entry["environment"]
    assert files.names_in(tmp_path) == []


def test_the_settings_that_tune_prints_are_understood(run: Run, tmp_path: Path) -> None:
    result = run("tune", ".", "--size", "4MiB", "--seconds", "2", "--json")
    settings = [e["environment"] for e in json.loads(result.stdout)["reads"]["ranking"] if not e["default"]]
    files.write_file(tmp_path / "m.safetensors")
    for setting in settings:
        environment = dict(word.split("=") for word in setting.split())
        assert run("verify", "m.safetensors", "--checksums", environment=environment).returncode == 0


def test_tune_prints_tables(run: Run) -> None:
    result = run("tune", ".", "--size", "2MiB", "--seconds", "1")
    assert result.returncode == 0, result.stderr
    assert "Reads " in result.stdout
    assert "Writes " in result.stdout


def test_tune_of_something_else_than_a_directory_fails(fails: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "m.safetensors")
    assert fails("tune", "m.safetensors").stderr.startswith("penstock: m.safetensors: ")
    assert fails("tune", "missing").stderr.startswith("penstock: missing: ")
