"""convert and verify: whole files."""

from __future__ import annotations

from pathlib import Path

import helpers
import penstock
import penstock.measure
import pytest
import safetensors.torch
import torch


@pytest.fixture
def source(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    penstock.save(tensors, path, metadata={"format": "pt"})
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "copy.safetensors"


def test_a_copy_has_the_same_tensors_and_metadata(source: Path, target: Path, tensors: dict[str, torch.Tensor]) -> None:
    stats = penstock.convert(source, target, metadata={"by": "penstock"})
    helpers.assert_same_tensors(safetensors.torch.load_file(target), tensors)
    assert penstock.open(target).metadata == {"format": "pt", "by": "penstock"}
    assert stats.tensors == len(tensors)


def test_metadata_can_be_left_behind(source: Path, target: Path) -> None:
    penstock.convert(source, target, keep_metadata=False)
    assert penstock.open(target).metadata == {}


def test_types_and_shards_and_selections_can_change(
    source: Path, target: Path, tensors: dict[str, torch.Tensor]
) -> None:
    penstock.convert(source, target, dtype="bfloat16", max_shard_size=600, select=["layers.*", "steps"], checksums=True)
    assert len(list(target.parent.glob("*.safetensors"))) > 1
    expected = {
        name: tensor.bfloat16() if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
        if name.startswith("layers") or name == "steps"
    }
    helpers.assert_same_tensors(penstock.load(target.parent, verify=True), expected)


def test_an_existing_target_is_kept_unless_asked(source: Path, target: Path, tensors: dict[str, torch.Tensor]) -> None:
    target.write_bytes(b"old")
    with pytest.raises(penstock.Error):
        penstock.convert(source, target)
    assert target.read_bytes() == b"old"
    penstock.convert(source, target, overwrite=True)
    helpers.assert_same_tensors(penstock.load(target), tensors)


def test_the_source_cannot_be_its_own_target(source: Path) -> None:
    before = source.read_bytes()
    with pytest.raises(penstock.ArgumentError):
        penstock.convert(source, source, overwrite=True)
    assert source.read_bytes() == before


def test_a_conversion_can_be_stopped(source: Path, target: Path) -> None:
    with pytest.raises(penstock.CancelledError):
        penstock.convert(source, target, progress=lambda done, total: False)
    assert list(target.parent.iterdir()) == []


def test_a_sound_file_verifies(source: Path, tensors: dict[str, torch.Tensor]) -> None:
    report = penstock.verify(source, finite=True, compute=True)
    assert report
    assert report.ok
    assert report.problems == []
    assert not report.had_checksums
    assert report.bytes == sum(tensor.nbytes for tensor in tensors.values())
    assert {tensor.name for tensor in report.tensors} == set(tensors)
    assert all(tensor.crc32c is not None and tensor.expected_crc32c is None for tensor in report.tensors)


def test_a_checksum_is_the_crc_32c_of_the_bytes(path: Path) -> None:
    penstock.save({"x": torch.tensor(list(b"123456789"), dtype=torch.uint8)}, path, checksums=True)
    (tensor,) = penstock.verify(path).tensors
    assert tensor.crc32c == tensor.expected_crc32c == 0xE3069283


def test_a_flipped_bit_is_found(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    penstock.save(tensors, path, checksums=True)
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 0x40
    path.write_bytes(damaged)
    report = penstock.verify(path)
    assert not report
    assert len(report.problems) == 1
    (bad,) = [tensor for tensor in report.tensors if not tensor.ok]
    assert bad.name in report.problems[0]
    assert bad.crc32c != bad.expected_crc32c
    assert penstock.verify(path, checksums=False)


def test_values_that_are_not_finite_are_counted(path: Path) -> None:
    bad = torch.tensor([1.0, float("nan"), float("inf"), -float("inf")])
    penstock.save({"good": torch.ones(4), "bad": bad.bfloat16()}, path)
    report = penstock.verify(path, finite=True)
    assert {tensor.name: tensor.not_finite for tensor in report.tensors} == {"good": 0, "bad": 3}
    assert not report.ok
    assert penstock.verify(path).ok


def test_the_ceilings_can_be_measured(source: Path, tmp_path: Path) -> None:
    read = penstock.measure.measure_read(source)
    assert read.bytes > 0
    written = penstock.measure.measure_write(tmp_path, nbytes="1MiB")
    assert written.bytes == 2**20
    assert sorted(tmp_path.iterdir()) == [source]
    with pytest.raises(penstock.ArgumentError, match='method must be one of "auto", .*, not "osmosis"'):
        penstock.measure.measure_write(tmp_path, method="osmosis")
