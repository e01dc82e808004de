"""Real checkpoints, out of packages that ship them, against what torch and safetensors read of the same files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import penstock
import pytest
import safetensors.torch
import torch
from checkpoints import Case
from cli_command import Run
from opaque_trees import OpaqueComparison
from reference import ANY_KEY, named_tensors, read_tree


def as_tensor(value: Any) -> torch.Tensor:
    """A tensor, or an array as one, whatever its byte order."""
    if isinstance(value, torch.Tensor):
        return value
    return torch.from_numpy(np.array(value, dtype=value.dtype.newbyteorder("=")))


def expected_tensors(case: Case, path: Path) -> list[tuple[str, torch.Tensor]]:
    """With their paths, as another reader gives them."""
    tree = read_tree(path, case.member.reader)
    if case.member.reader == "script":
        return [(name.replace(".", "/"), tensor) for name, tensor in tree.items()]
    return [(name, as_tensor(value)) for name, value in named_tensors(tree)]


def summary(tensors: Iterable[tuple[str, torch.Tensor]]) -> list[tuple[str, str, tuple[int, ...], str]]:
    """All there is to know of tensors, in one order. Keys that are no text and no number have one name."""
    return sorted(
        (
            re.sub(r"(?<![^/])key\d+(?![^/])", ANY_KEY, name),
            str(tensor.dtype),
            tuple(tensor.shape),
            hashlib.sha256(helpers.bits_of(tensor)).hexdigest(),
        )
        for name, tensor in tensors
    )


def assert_same_tensors(actual: dict[str, torch.Tensor], expected: list[tuple[str, torch.Tensor]], case: Case) -> None:
    assert len(actual) == case.member.tensors
    found = summary(actual.items())
    if case.member.reader == "script":  # the state of a program is a part of its attributes
        names = {name for name, _ in expected}
        found = [each for each in found if each[0] in names]
    assert found == summary(expected)


def stream(path: Path, is_opaque: bool) -> dict[str, torch.Tensor]:
    """All that is streamed of a file, which says what it leaves out."""
    with pytest.warns(penstock.OpaqueWarning) if is_opaque else contextlib.nullcontext():
        return dict(penstock.stream(path))


def test_every_tensor_is_what_another_reader_finds(case: Case, checkpoint: Path) -> None:
    expected = expected_tensors(case, checkpoint)
    with penstock.open(checkpoint) as reader:
        assert bool(reader.opaque) == case.member.opaque
        assert_same_tensors({name: tensor.load() for name, tensor in reader.items()}, expected, case)
    assert_same_tensors(stream(checkpoint, case.member.opaque), expected, case)


def attribute(module: penstock.Opaque, name: str) -> Any:
    """What a program's module has under a name like "encoder.0.weight"."""
    value: Any = module
    for part in name.split("."):
        value = value.state[part]
    return value


def test_what_was_saved_is_what_another_reader_gives(case: Case, checkpoint: Path) -> None:
    if case.member.opaque:
        with pytest.raises(penstock.UnsupportedFormatError, match='opaque="keep"'):
            penstock.load(checkpoint)
    tree = penstock.load(checkpoint, opaque="keep")
    expected = read_tree(checkpoint, case.member.reader)
    if case.member.reader == "script":
        for name, tensor in expected.items():
            assert helpers.same(attribute(tree, name), tensor), name
    else:
        OpaqueComparison().compare(tree, expected, "tree")


def test_the_command_lists_and_verifies_it(case: Case, checkpoint: Path, run: Run) -> None:
    listing = run("ls", "--json", checkpoint)
    assert listing.returncode == 0, listing.stderr
    with penstock.open(checkpoint) as reader:
        expected = {name: (tensor.dtype, list(tensor.shape)) for name, tensor in reader.items()}
    assert {each["name"]: (each["dtype"], each["shape"]) for each in json.loads(listing.stdout)["tensors"]} == expected
    verified = run("verify", checkpoint)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_it_converts_to_safetensors_and_back(case: Case, checkpoint: Path, run: Run, tmp_path: Path) -> None:
    expected = stream(checkpoint, case.member.opaque)
    for source, target in ((checkpoint, "there.safetensors"), ("there.safetensors", "back.pt")):
        done = run("convert", "--quiet", source, target)
        assert done.returncode == 0, done.stderr
    there = safetensors.torch.load_file(tmp_path / "there.safetensors")
    back = torch.load(tmp_path / "back.pt", weights_only=True)
    for copy in (there, back):
        assert sorted(copy) == sorted(expected)
        assert [name for name in expected if not helpers.same(copy[name], expected[name])] == []
