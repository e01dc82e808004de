"""doctor: what it says of files, of limits that are provoked, and of what would help."""

from __future__ import annotations

import json
import os
import re
import resource
import struct
from pathlib import Path
from typing import Any

import cli_denied as denied
import cli_files as files
import cli_flashpack
import pytest
from cli_command import Run

LARGE = 16 * 2**20  # beyond what is read by the calling thread


def write_model(path: Path) -> Path:
    """A file with data on the drive, none of it in the page cache."""
    content = os.urandom(2**20) * (LARGE // 2**20)
    files.write_file(path, {"large": ("U8", [LARGE], content)})
    return drop(path)


def drop(path: Path) -> Path:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def write_misaligned(path: Path) -> Path:
    return files.write_file(
        path, {"odd": ("U8", [3], b"abc"), "floats": ("F32", [2], b"\0" * 8), "even": ("U8", [4], b"defg")}
    )


@pytest.fixture
def diagnose(run: Run) -> Any:
    def run_doctor(path: object, **changes: Any) -> dict[str, Any]:
        result = run("doctor", path, "--json", **changes)
        assert result.returncode == 0, result.stderr
        assert result.stderr == ""
        assert result.stdout.count("\n") == 1
        report: dict[str, Any] = json.loads(result.stdout)
        return report

    return run_doctor


def topics(report: dict[str, Any]) -> list[str]:
    return [advice["topic"] for advice in report["advice"]]


def require_drive(report: dict[str, Any]) -> None:
    if report["files"][0]["in_memory"] or not report["files"][0]["direct"]:
        pytest.skip(f"the temporary directory is on {report['files'][0]['filesystem']}: nothing is read directly there")


def test_the_json_has_all_that_is_known(diagnose: Any, tmp_path: Path) -> None:
    write_model(tmp_path / "m.safetensors")
    report = diagnose("m.safetensors")
    assert list(report) == [
        "path",
        "tensors",
        "bytes",
        "tensors_misaligned",
        "bytes_misaligned",
        "tensors_scattered",
        "open_seconds",
        "files",
        "now",
        "cold",
        "cold_reused",
        "staging_bytes",
        "staging_registered",
        "open_files_needed",
        "machine",
        "devices",
        "advice",
    ]
    assert report["path"] == "m.safetensors"
    assert (report["tensors"], report["bytes"]) == (1, LARGE)
    (file,) = report["files"]
    assert file["format"] == "safetensors"
    assert file["size"] == (tmp_path / "m.safetensors").stat().st_size
    assert file["span"] == LARGE
    assert report["machine"]["kernel"] == os.uname().release
    assert report["machine"]["open_files_limit"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert 0 < report["machine"]["memory_available"] <= report["machine"]["memory_limit"]


def test_a_cold_file_is_read_directly_and_a_resident_one_mapped(diagnose: Any, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.safetensors")
    report = diagnose("m.safetensors")
    require_drive(report)
    assert report["files"][0]["resident_bytes"] < LARGE / 100
    assert report["now"]["path"] == "direct"
    # What shares a page with the header is in the page cache with it.
    assert report["now"]["bytes_direct"] + report["now"]["bytes_buffered"] == LARGE
    assert report["now"]["bytes_direct"] > LARGE - 4096
    path.read_bytes()
    report = diagnose("m.safetensors")
    assert report["files"][0]["resident_bytes"] == LARGE
    assert report["now"]["path"] == "mapped"
    assert report["now"]["bytes_mapped"] == LARGE
    assert report["cold"]["path"] == "direct"


def test_looking_leaves_nothing_in_the_page_cache(diagnose: Any, tmp_path: Path) -> None:
    write_model(tmp_path / "m.safetensors")
    for _ in range(2):
        report = diagnose("m.safetensors")
    require_drive(report)
    assert report["files"][0]["resident_bytes"] < LARGE / 100


def test_people_get_facts_and_reasons(run: Run, tmp_path: Path) -> None:
    write_misaligned(tmp_path / "m.safetensors")
    result = run("doctor", "m.safetensors")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "m.safetensors  safetensors, 3 tensors, 15 B"
    labels = [line[2:17].strip() for line in lines if line.startswith("  ") and line[2] != " "]
    for label in ("filesystem", "direct I/O", "page cache", "a load now", "io_uring", "memory", "open files"):
        assert label in labels
    assert "  tensors        1 misaligned (8 B)" in lines
    assert "                 not mapped: some tensors are misaligned in the file and have to be moved" in lines
    assert "What would make it faster" in lines
    assert "    penstock convert m.safetensors NEW.safetensors aligns them" in lines


def test_the_healthy_are_told_so(run: Run, tmp_path: Path) -> None:
    path = files.write_file(tmp_path / "m.safetensors")
    drop(path)
    assert run("doctor", "m.safetensors").stdout.endswith("What would make it faster\n  ok nothing to change here\n")


def test_misaligned_tensors_are_aligned_by_the_advice(diagnose: Any, run: Run, tmp_path: Path) -> None:
    write_misaligned(tmp_path / "m.safetensors")
    report = diagnose("m.safetensors")
    assert (report["tensors_misaligned"], report["bytes_misaligned"]) == (1, 8)
    assert topics(report) == ["misaligned"]
    command = report["advice"][0]["remedy"].removesuffix(" aligns them").split()[1:]
    assert run(*command).returncode == 0
    assert diagnose("NEW.safetensors")["tensors_misaligned"] == 0


def test_a_small_file_is_read_by_the_calling_thread(diagnose: Any, tmp_path: Path) -> None:
    drop(files.write_file(tmp_path / "m.safetensors"))
    report = diagnose("m.safetensors")
    for forecast in (report["now"], report["cold"] or report["now"]):
        assert forecast["backend"] == "inline"
        assert forecast["threads"] == 0
    assert report["advice"] == []


def test_shards_are_one_checkpoint(diagnose: Any, run: Run, tmp_path: Path) -> None:
    files.write_shards(tmp_path / "model")
    for path in ("model", "model/model.safetensors.index.json"):
        report = diagnose(path)
        names = [Path(file["path"]).name for file in report["files"]]
        assert names == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
        assert report["tensors"] == 4
    assert run("doctor", "model").stdout.startswith("model  safetensors, 2 files, 4 tensors, 56 B\n")


def test_flashpack_is_understood(diagnose: Any, tmp_path: Path) -> None:
    cli_flashpack.write_file(tmp_path / "m.flashpack")
    report = diagnose("m.flashpack")
    assert report["files"][0]["format"] == "flashpack"
    assert report["tensors"] == 4


@pytest.mark.parametrize("kind", ["torch", "torch-legacy"])
def test_torch_files_are_understood(diagnose: Any, run: Run, tmp_path: Path, kind: str) -> None:
    files.write_file(tmp_path / "m.safetensors")
    assert run("convert", "m.safetensors", "m.pt", "--format", kind).returncode == 0
    report = diagnose("m.pt")
    assert report["files"][0]["format"] == kind
    assert report["tensors"] == 4
    # A legacy file puts each tensor where the one before it ended, and a word of 8 bytes between.
    assert (report["tensors_misaligned"] > 0) == ("misaligned" in topics(report))


def test_scattered_tensors_are_to_be_converted(diagnose: Any, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"view": torch.zeros(100, 100)[:, ::2], "whole": torch.zeros(3)}, tmp_path / "m.pt")
    report = diagnose("m.pt")
    assert report["tensors_scattered"] == 1
    assert topics(report) == ["scattered"]


def test_threads_by_the_environment_are_told_and_advised_against(diagnose: Any, tmp_path: Path) -> None:
    write_model(tmp_path / "m.safetensors")
    report = diagnose("m.safetensors", environment={"PENSTOCK_BACKEND": "threads"})
    assert report["machine"]["environment"] == ["PENSTOCK_BACKEND=threads"]
    require_drive(report)
    assert report["now"]["backend"] == "threads"
    assert report["now"]["backend_reason"] == "PENSTOCK_BACKEND asks for threads"
    if not report["machine"]["uring"]:
        pytest.skip("there is no io_uring here, so threads are no loss")
    assert report["advice"][0]["remedy"] == "unset PENSTOCK_BACKEND"


def test_an_environment_that_makes_no_sense_is_wrong_usage(run: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "m.safetensors")
    result = run("doctor", "m.safetensors", environment={"PENSTOCK_BACKEND": "magic"})
    assert result.returncode == 2
    assert result.stderr.startswith("penstock: PENSTOCK_BACKEND=")


def test_a_filter_that_refuses_io_uring_is_named(diagnose: Any, tmp_path: Path) -> None:
    write_model(tmp_path / "m.safetensors")
    report = diagnose("m.safetensors", preexec_fn=denied.without_uring())
    assert report["machine"]["uring"] is False
    assert report["machine"]["seccomp"] is True
    require_drive(report)
    assert report["now"]["backend"] == "threads"
    assert report["now"]["backend_reason"] == "the kernel refuses io_uring to this process"
    if report["machine"]["uring_disabled"]:
        pytest.skip("io_uring is disabled on this machine, which is told first")
    assert topics(report) == ["io_uring"]
    assert "seccomp" in report["advice"][0]["problem"]


def test_a_filesystem_that_refuses_direct_io_is_named(diagnose: Any, run: Run, tmp_path: Path) -> None:
    write_model(tmp_path / "m.safetensors")
    require_drive(diagnose("m.safetensors"))
    report = diagnose("m.safetensors", preexec_fn=denied.without_direct_io())
    (file,) = report["files"]
    assert file["direct"] is False
    assert file["direct_refusal"] == "open with O_DIRECT: Invalid argument"
    assert report["now"]["path"] == "buffered"
    assert report["now"]["bytes_dropped"] > LARGE - 4096 * 1024
    assert report["now"]["reason"].startswith("direct I/O is refused here")
    assert topics(report) == ["direct_io"]
    text = run("doctor", "m.safetensors", preexec_fn=denied.without_direct_io()).stdout
    assert "  direct I/O     no: open with O_DIRECT: Invalid argument\n" in text


def test_too_little_locked_memory_is_told(diagnose: Any, tmp_path: Path, ordinary_user: dict[str, Any]) -> None:
    """Root may lock what it likes."""
    path = write_model(tmp_path / "m.safetensors")
    path.chmod(0o644)
    limit = denied.with_limit(resource.RLIMIT_MEMLOCK, 2**16)
    report = diagnose("m.safetensors", preexec_fn=limit, **ordinary_user)
    assert report["machine"]["locked_memory_limit"] == 2**16
    require_drive(report)
    if report["now"]["backend"] != "uring":
        pytest.skip("there is no io_uring here to register memory with")
    assert report["staging_registered"] is False
    assert topics(report) == ["locked_memory"]
    assert "RLIMIT_MEMLOCK is 64.0 KiB" in report["advice"][0]["problem"]


def test_huge_pages_that_are_off_are_told(diagnose: Any, tmp_path: Path) -> None:
    write_model(tmp_path / "m.safetensors")
    report = diagnose("m.safetensors", preexec_fn=denied.without_huge_pages)
    assert report["machine"]["huge_pages"] == "never"
    require_drive(report)
    assert topics(report) == ["huge_pages"]


def test_too_few_open_files_are_told(diagnose: Any, fails: Run, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    for i in range(8):
        drop(files.write_file(directory / f"{i}.safetensors", {f"tensor.{i}": ("U8", [4], b"1234")}))
    require_drive(diagnose("model"))
    report = diagnose("model", preexec_fn=denied.with_limit(resource.RLIMIT_NOFILE, 16))
    assert report["open_files_needed"] > 16
    assert topics(report) == ["open_files"]
    error = fails("doctor", "model", preexec_fn=denied.with_limit(resource.RLIMIT_NOFILE, 6)).stderr
    assert error.endswith("Too many open files (the limit is 6; ulimit -n raises it)\n")


def test_more_than_fits_in_memory_is_to_be_streamed(diagnose: Any, tmp_path: Path) -> None:
    """A hole: no drive is large enough for the point to be made in earnest."""
    files.write_large(tmp_path / "m.safetensors", 2**40)
    report = diagnose("m.safetensors")
    assert report["bytes"] == 2**40
    assert topics(report)[0] == "memory"
    assert "stream" in report["advice"][0]["remedy"]


def test_a_file_in_many_pieces_is_told(diagnose: Any, tmp_path: Path) -> None:
    """Data between holes is as scattered as a file can be made on purpose."""
    path = files.write_large(tmp_path / "m.safetensors", LARGE)
    with path.open("r+b") as file:
        for offset in range(2**16, LARGE, 2**17):
            file.seek(offset)
            file.write(b"x" * 2**16)
        os.fsync(file.fileno())
    report = diagnose("m.safetensors")
    extents = report["files"][0]["extents"]
    if extents is None or extents < 64:
        pytest.skip(f"{report['files'][0]['filesystem']} keeps it in {extents} pieces")
    assert "fragmented" in topics(report)
    assert f"m.safetensors lies in {extents} pieces" in report["advice"][-1]["problem"]


def test_a_file_in_memory_is_never_cold(diagnose: Any, tmp_path: Path) -> None:
    if not Path("/dev/shm").is_dir():
        pytest.skip("there is no /dev/shm")
    path = Path("/dev/shm") / f"penstock-{tmp_path.name}-{os.getpid()}.safetensors"
    try:
        files.write_file(path)
        report = diagnose(path)
    finally:
        path.unlink()
    if report["files"][0]["filesystem"] != "tmpfs":
        pytest.skip("/dev/shm is no tmpfs here")
    assert report["files"][0]["in_memory"] is True
    assert report["now"]["path"] == "mapped"
    assert report["cold"] is None
    assert report["advice"] == []


def test_who_may_not_see_the_page_cache_gets_a_sample(
    diagnose: Any, tmp_path: Path, ordinary_user: dict[str, Any]
) -> None:
    if not ordinary_user:
        pytest.skip("only root can make a file that belongs to another")
    path = write_model(tmp_path / "m.safetensors")
    path.chmod(0o444)
    path.read_bytes()
    report = diagnose("m.safetensors", **ordinary_user)
    assert report["files"][0]["residency_source"] == "sample"
    assert report["files"][0]["resident_bytes"] == LARGE


def test_the_forecast_is_what_python_loads(diagnose: Any, tmp_path: Path) -> None:
    penstock = pytest.importorskip("penstock")
    pytest.importorskip("numpy")
    write_model(tmp_path / "m.safetensors")
    expected = diagnose("m.safetensors")["now"]
    stats: dict[str, Any] = {}
    penstock.load(tmp_path / "m.safetensors", framework="numpy", stats=stats)
    for key in ("path", "landing", "backend", "reason", "block_size", "queue_depth", "threads", "requests"):
        assert stats[key] == expected[key], key


def test_an_empty_checkpoint_is_healthy(diagnose: Any, tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    report = diagnose("m.safetensors")
    assert (report["tensors"], report["bytes"]) == (0, 0)
    assert report["advice"] == []


def without_memory(text: str) -> list[str]:
    """The lines but for one: memory comes and goes."""
    return [line for line in text.splitlines() if not line.startswith("  memory ")]


def test_colours_change_nothing_but_the_colour(run: Run, tmp_path: Path) -> None:
    write_misaligned(tmp_path / "m.safetensors")
    coloured = run("doctor", "m.safetensors", "--color=always").stdout
    assert "\x1b[" in coloured
    plain = run("doctor", "m.safetensors").stdout
    assert without_memory(re.sub(r"\x1b\[\d+m", "", coloured)) == without_memory(plain)
