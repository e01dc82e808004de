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


@pytest.mark.parametrize("kind", ["safetensors", "flashpack", "torch", "torch-legacy"])
def test_bench_measures_every_format(run: Run, tmp_path: Path, kind: str) -> None:
    """A model of its own, and a file of the user's."""
    made = json.loads(run("bench", "--format", kind, "--size", "2MiB", "--rounds", "1", "--json").stdout)
    files.write_file(tmp_path / "m.safetensors")
    assert run("convert", "m.safetensors", "own", "--format", kind).returncode == 0
    own = json.loads(run("bench", "own", "--rounds", "1", "--json").stdout)
    for report in (made, own):
        assert report["format"] == kind
        assert [step["name"] for step in report["results"]] == STEPS
    assert own["bytes"] == 56
    assert files.names_in(tmp_path) == ["m.safetensors", "own"]


@pytest.mark.parametrize("path", ["model", "model/", "model/model.safetensors.index.json"])
def test_bench_measures_shards(run: Run, tmp_path: Path, path: str) -> None:
    files.write_shards(tmp_path / "model")
    before = files.names_in(tmp_path / "model")
    report = json.loads(run("bench", path, "--rounds", "1", "--json").stdout)
    assert [step["name"] for step in report["results"]] == STEPS
    assert (report["tensors"], report["bytes"]) == (4, 56)
    assert files.names_in(tmp_path / "model") == before
    assert files.names_in(tmp_path) == ["model"]


def test_bench_measures_no_more_of_a_file_than_it_is_told(run: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "m.safetensors", {name: ("U8", [2**20], b"x" * 2**20) for name in "abcd"})
    report = json.loads(run("bench", "m.safetensors", "--rounds", "1", "--size", "2MiB", "--json").stdout)
    assert (report["tensors"], report["bytes"]) == (2, 2**21)
    assert any(note.startswith("2.0 MiB of it were measured") for note in report["notes"])


def test_bench_of_scattered_tensors_can_be_warm(run: Run, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"view": torch.zeros(1000, 100)[:, ::2]}, tmp_path / "m.pt")
    report = json.loads(run("bench", "m.pt", "--rounds", "1", "--json").stdout)
    assert report["bytes"] == 200_000
    assert report["notes"] == []


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
        assert not (report[direction]["worth_setting"] and ranking[0]["default"])
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


def test_tune_reads_a_file_and_leaves_it_alone(run: Run, tmp_path: Path) -> None:
    path = files.write_file(tmp_path / "m.safetensors", {"x": ("U8", [2**20], b"x" * 2**20)})
    before = path.read_bytes()
    result = run("tune", "m.safetensors", "--seconds", "1", "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["path"] == "m.safetensors"
    assert report["bytes"] == len(before)  # no more than there is
    assert report["reads"]["best"]["gib_per_second"] > 0
    assert path.read_bytes() == before
    assert files.names_in(tmp_path) == ["m.safetensors"]


def test_tune_of_nothing_fails(fails: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert fails("tune", "empty").stderr == "penstock: empty: is empty\n"
    assert fails("tune", "missing").stderr.startswith("penstock: missing: ")
    assert files.names_in(tmp_path) == ["empty"]
