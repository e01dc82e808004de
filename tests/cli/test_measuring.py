"""bench: what it prints and that it cleans up. How fast anything is, is not tested."""

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


def test_bench_settings_measures_a_table_and_removes_its_files(run: Run, tmp_path: Path) -> None:
    result = run("bench", "--settings", "--size", "8MiB", "--rounds", "1", "--json")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    report = json.loads(result.stdout)
    for direction in (report["reads"], report["writes"]):
        cells = direction["table"]
        combinations = {(cell["block_size"], cell["queue_depth"], cell["threads"]) for cell in cells}
        assert len(combinations) == len(cells) > 10
        assert all(len(cell["rounds"]) == 1 and cell["gib_per_second"] > 0 for cell in cells)
        best, defaults = direction["best"], direction["defaults"]
        assert (best["block_size"], best["queue_depth"], best["threads"]) in combinations
        assert (direction["environment"] is not None) == (min(best["rounds"]) > max(defaults["rounds"]))
    assert files.names_in(tmp_path) == []


def test_bench_settings_prints_tables_and_a_verdict(run: Run) -> None:
    result = run("bench", "--settings", "--size", "2MiB", "--rounds", "1")
    assert result.returncode == 0, result.stderr
    for title in ("Reads", "Writes"):
        assert f"  {title} " in result.stdout
        assert f"  {title}, measured again: the defaults " in result.stdout
    verdicts = result.stdout.count("nothing to set") + result.stdout.count("export PENSTOCK_BLOCK_SIZE=")
    assert verdicts == 2


def test_the_variables_of_bench_settings_are_heeded(run: Run, fails: Run, tmp_path: Path) -> None:
    """The names that it prints are those that a load asks for."""
    files.write_file(tmp_path / "m.safetensors")
    for name in ("PENSTOCK_BLOCK_SIZE", "PENSTOCK_QUEUE_DEPTH", "PENSTOCK_THREADS"):
        assert name in fails("verify", "m.safetensors", "--checksums", environment={name: "nonsense"}).stderr
    environment = {"PENSTOCK_BLOCK_SIZE": "2M", "PENSTOCK_QUEUE_DEPTH": "8", "PENSTOCK_THREADS": "1"}
    assert run("verify", "m.safetensors", "--checksums", environment=environment).returncode == 0


def test_bench_settings_reads_a_file_and_leaves_it_alone(run: Run, tmp_path: Path) -> None:
    path = files.write_file(tmp_path / "m.safetensors", {"x": ("U8", [2**20], b"x" * 2**20)})
    before = path.read_bytes()
    result = run("bench", "m.safetensors", "--settings", "--rounds", "1", "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["path"] == "m.safetensors"
    assert report["bytes"] == len(before)  # no more than there is
    assert report["reads"]["best"]["gib_per_second"] > 0
    assert path.read_bytes() == before
    assert files.names_in(tmp_path) == ["m.safetensors"]


def test_bench_settings_reads_the_largest_shard(run: Run, tmp_path: Path) -> None:
    files.write_shards(tmp_path / "model")
    largest = max(path.stat().st_size for path in (tmp_path / "model").glob("*.safetensors"))
    report = json.loads(run("bench", "model", "--settings", "--rounds", "1", "--json").stdout)
    assert report["bytes"] == largest


def test_bench_settings_says_when_it_cannot_write(run: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "m.safetensors")
    report = json.loads(run("bench", "m.safetensors", "--settings", "--rounds", "1", "--dir", "/proc", "--json").stdout)
    assert "writes" not in report
    assert any(note.startswith("saving was not measured: /proc: ") for note in report["notes"])


def test_bench_of_nothing_fails(fails: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for options in ([], ["--settings"]):
        assert fails("bench", "empty", *options).stderr.startswith("penstock: empty: ")
        assert fails("bench", "missing", *options).stderr.startswith("penstock: missing: ")
    assert files.names_in(tmp_path) == ["empty"]


def test_tune_says_what_to_type_instead(misused: Run) -> None:
    assert "penstock bench --settings --dir DIR" in misused("tune", "/data").stderr
