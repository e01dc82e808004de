"""What a target can't hold is left out by `convert` and told in its notes; nothing is refused for it."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import penstock
import pytest
import torch

SUFFIXES = ["safetensors", "flashpack", "pt"]
STATE = {"a": torch.arange(6, dtype=torch.float32).reshape(2, 3), "b": torch.tensor([1, 2, 3])}


def save_as(path: Path) -> Path:
    """As Hugging Face's libraries save: with metadata, where there is a place for it."""
    penstock.save(STATE, path, metadata=None if path.suffix == ".pt" else {"format": "pt"})
    return path


@pytest.mark.parametrize("source", SUFFIXES)
@pytest.mark.parametrize("target", SUFFIXES)
def test_every_format_becomes_every_other(tmp_path: Path, source: str, target: str) -> None:
    stats = penstock.convert(save_as(tmp_path / f"in.{source}"), tmp_path / f"out.{target}")
    assert stats.tensors == 2
    loaded = penstock.load(tmp_path / f"out.{target}")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in STATE.items())
    if source == "pt" or target != "pt":
        assert stats.notes == []
    else:
        assert stats.notes == ['metadata is left out, because a torch file holds none: "format"']


@pytest.mark.parametrize("format", ["torch", "torch-legacy"])
def test_shards_become_a_torch_file_that_torch_loads(tmp_path: Path, format: str) -> None:
    (tmp_path / "model").mkdir()
    penstock.save(STATE, tmp_path / "model/m.safetensors", metadata={"format": "pt", "by": "us"}, max_shard_size=30)
    stats: dict[str, object] = {}
    penstock.convert(tmp_path / "model", tmp_path / "m.pt", format=format, stats=stats)
    assert stats["notes"] == ['metadata is left out, because a torch file holds none: "by", "format"']
    loaded = torch.load(tmp_path / "m.pt", weights_only=True)
    assert torch.equal(loaded["a"], STATE["a"])


def test_metadata_and_checksums_that_are_asked_for_are_left_out_aloud_too(tmp_path: Path) -> None:
    source = save_as(tmp_path / "in.safetensors")
    stats = penstock.convert(source, tmp_path / "zip.pt", checksums=True, metadata={"by": "us"}, keep_metadata=False)
    assert stats.notes == [
        'metadata is left out, because a torch file holds none: "by"',
        "CRC-32Cs of tensors are left out, because a torch file holds none; the zip has checksums of its own",
    ]
    stats = penstock.convert(source, tmp_path / "old.pt", checksums=True, keep_metadata=False, format="torch-legacy")
    assert stats.notes == ["CRC-32Cs of tensors are left out, because a torch file holds none"]


def test_checksums_of_the_source_are_told_unless_there_are_new_ones(tmp_path: Path) -> None:
    penstock.save(STATE, tmp_path / "in.safetensors", checksums=True)
    stats = penstock.convert(tmp_path / "in.safetensors", tmp_path / "plain.safetensors")
    assert stats.notes == ["the checksums of the source are left out; checksums=True (--checksums) writes new ones"]
    assert not penstock.verify(tmp_path / "plain.safetensors").had_checksums
    stats = penstock.convert(tmp_path / "in.safetensors", tmp_path / "new.safetensors", checksums=True)
    assert stats.notes == []
    assert penstock.verify(tmp_path / "new.safetensors").had_checksums


CHECKPOINT = {
    "model": OrderedDict(STATE),
    "epoch": 3,
    "optimizer": {"param_groups": [{"lr": 0.1, "betas": (0.9, 0.99)}]},
    "none": None,
    "empty": {},
}


@pytest.mark.parametrize("legacy", [False, True])
def test_values_that_are_no_tensors_are_counted_and_the_first_named(tmp_path: Path, legacy: bool) -> None:
    torch.save(CHECKPOINT, tmp_path / "in.pt", _use_new_zipfile_serialization=not legacy)
    values = (
        'values that are no tensors are left out: "epoch", "optimizer/param_groups/0/lr", '
        '"optimizer/param_groups/0/betas/0" and 2 more'
    )
    assert penstock.convert(tmp_path / "in.pt", tmp_path / "out.safetensors").notes == [values]
    assert penstock.convert(tmp_path / "in.pt", tmp_path / "out.pt").notes == [
        values,
        'the tree becomes one dict of tensors by their paths: "model/a", "model/b"',
    ]


def test_what_hangs_in_two_places_is_counted_once(tmp_path: Path) -> None:
    shared = [7]
    torch.save({"list": [torch.zeros(2), 1], "x": 1, "once": shared, "again": shared}, tmp_path / "in.pt")
    stats = penstock.convert(tmp_path / "in.pt", tmp_path / "out.safetensors")
    assert stats.notes == ['values that are no tensors are left out: "list/1", "x", "once/0"']


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_tied_tensors_are_written_in_full_and_told(tmp_path: Path, suffix: str) -> None:
    weight = torch.arange(8, dtype=torch.float32)
    torch.save({"embed": weight, "head": weight, "part": weight[2:4], "own": torch.ones(3)}, tmp_path / "in.pt")
    stats = penstock.convert(tmp_path / "in.pt", tmp_path / f"out.{suffix}")
    assert stats.notes == ['tensors that share bytes with others are written in full: "head", "part"']
    loaded = penstock.load(tmp_path / f"out.{suffix}")
    assert torch.equal(loaded["head"], weight)
    assert torch.equal(loaded["part"], weight[2:4])
    # Only those that are converted count.
    stats = penstock.convert(tmp_path / "in.pt", tmp_path / f"one.{suffix}", select=["head", "own"])
    assert stats.notes == []


def test_metadata_that_files_disagree_about_is_told(tmp_path: Path) -> None:
    for name, by in (("a", "us"), ("b", "them")):
        penstock.save({name: STATE["a"]}, tmp_path / f"{name}.safetensors", metadata={"by": by, "format": "pt"})
    stats = penstock.convert([tmp_path / "a.safetensors", tmp_path / "b.safetensors"], tmp_path / "out.safetensors")
    assert stats.notes == ['files disagree about metadata, the first one counts: "by"']
    assert penstock.inspect(tmp_path / "out.safetensors").metadata == {"by": "us", "format": "pt"}


def test_a_type_without_a_place_in_the_target_is_still_an_error(tmp_path: Path) -> None:
    penstock.save({"x": torch.zeros(4, dtype=torch.complex128)}, tmp_path / "in.pt")
    with pytest.raises(penstock.Error, match="safetensors has no C128"):
        penstock.convert(tmp_path / "in.pt", tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()
