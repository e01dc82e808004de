"""What the engine tells Python, so that Python has no tables of its own: formats, element types, sizes, options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import penstock
import pytest
import torch
from penstock import _core


@pytest.mark.parametrize(
    ("size", "nbytes"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("64K", 64 * 2**10),
        ("5G", 5 * 2**30),
        ("5GiB", 5 * 2**30),
        ("5GB", 5 * 10**9),
        ("1.5 mib", 3 * 2**19),
        ("2T", 2 * 2**40),
    ],
)
def test_sizes_follow_one_rule(size: int | str, nbytes: int) -> None:
    assert _core.parse_size(size) == nbytes


@pytest.mark.parametrize("size", ["1.5", "5G\0", "\ud800", "5 G B", 1.5, None])
def test_what_is_no_size_is_refused(size: Any) -> None:
    with pytest.raises(penstock.ArgumentError, match="is not a size"):
        _core.parse_size(size)


@pytest.mark.parametrize("format", ["safetensors", "flashpack", "torch", "torch-legacy"])
def test_a_format_is_known_by_the_bytes(tmp_path: Path, format: str) -> None:
    path = tmp_path / "model.of.no.suffix"
    penstock.save({"x": torch.ones(3)}, path, format=format)
    assert _core.detect_format(path) == format


def test_other_bytes_are_no_format(tmp_path: Path) -> None:
    for content in (b"", b"GGUF", b"\x80\x02nonsense", bytes(100)):
        (tmp_path / "file").write_bytes(content)
        assert _core.detect_format(tmp_path / "file") is None
    with pytest.raises(penstock.NotFoundError):
        _core.detect_format(tmp_path / "nowhere")


def test_a_suffix_stands_for_a_format() -> None:
    expected = {
        "a/model.safetensors": "safetensors",
        "model.flashpack": "flashpack",
        "model.pt": "torch",
        "model.pth": "torch",
        "model.bin": "torch",
        "model.gguf": None,
        "model": None,
    }
    assert {path: _core.format_for_suffix(path) for path in expected} == expected


def test_the_element_types() -> None:
    rows = {name: rest for name, *rest in _core.dtypes()}
    assert rows["BF16"] == ["bfloat16", 16, "floating"]
    assert rows["BOOL"] == ["bool", 8, "bool"]
    assert rows["C128"] == ["complex128", 128, "complex"]
    assert rows["I64"] == ["int64", 64, "integer"]
    assert rows["F6_E2M3"] == ["", 6, "floating"]


def test_options_of_a_struct_within_are_keywords_of_the_whole() -> None:
    _core.SaveOptions(block_size="4MiB", align_bytes=0, record_alignment=64, durable=False)
    for options in (_core.IoOptions, _core.LoadOptions, _core.SaveOptions, _core.StreamOptions, _core.VerifyOptions):
        options()
        with pytest.raises(TypeError, match="got an unexpected keyword argument 'io'"):
            options(io=options())  # how structs lie in each other is the engine's affair
        with pytest.raises(TypeError, match="got an unexpected keyword argument 'progress'"):
            options(progress=None)


def test_tensors_that_share_memory_are_an_error_of_their_own(tmp_path: Path) -> None:
    tensor = torch.ones(4)
    with pytest.raises(penstock.SharedMemoryError, match="share memory"):
        penstock.save({"a": tensor, "b": tensor}, tmp_path / "model.safetensors")
