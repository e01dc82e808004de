"""Arguments that make no sense: each is refused at once, in one line that says which."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock
import pytest
import torch

SURROGATE = "half \ud800"


@pytest.fixture
def file(path: Path) -> Path:
    penstock.save({"x": torch.ones(2)}, path)
    return path


def refusal(kind: type[Exception], call: Callable[[], Any]) -> str:
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    assert message
    assert "\n" not in message
    assert "incompatible function arguments" not in message
    return message


@pytest.mark.parametrize("size", [5e9, 1.5e6, -1, 2**70, "-5", "many", [1], "9e9", "99999999TB"])
def test_sizes_that_are_none(file: Path, size: Any) -> None:
    for call in (
        lambda: penstock.save({"x": torch.ones(1)}, file, max_shard_size=size),
        lambda: penstock.load(file, block_size=size),
        lambda: list(penstock.stream(file, max_buffer=size)),
        lambda: penstock.measure.measure_read(file, size),
    ):
        assert refusal(penstock.ArgumentError, call) == (f'{size!r} is not a size such as 5000000, "5GB" or "4MiB"')


@pytest.mark.parametrize("name", ["queue_depth", "threads"])
@pytest.mark.parametrize("count", [-1, 1.5, "4", None, 2**40])
def test_counts_that_are_none(file: Path, name: str, count: Any) -> None:
    message = refusal(penstock.ArgumentError, lambda: penstock.load(file, **{name: count}))
    assert message == f"{name} must be a whole number that is not negative, not {count!r}"


@pytest.mark.parametrize("word", [None, 3, b"auto"])
def test_words_that_are_none(file: Path, word: Any) -> None:
    for name in ("cache", "landing", "backend"):
        for function in (penstock.load, penstock.open, penstock.stream):
            message = refusal(penstock.ArgumentError, lambda: function(file, **{name: word}))  # noqa: B023
            assert message == f'{name} must be a word such as "auto", not {word!r}'
    for name in ("method", "shared", "backend"):
        message = refusal(
            penstock.ArgumentError,
            lambda: penstock.save({"x": torch.ones(1)}, file, **{name: word}),  # noqa: B023
        )
        assert message == f'{name} must be a word such as "auto", not {word!r}'


def test_a_pool_that_is_none(file: Path) -> None:
    assert refusal(penstock.ArgumentError, lambda: penstock.load(file, pool=3)) == "pool must be a MemoryPool, not 3"
    message = refusal(penstock.ArgumentError, lambda: penstock.save_async({"x": torch.ones(1)}, file, pool=3))
    assert message == "pool must be a MemoryPool, not 3"


def test_text_that_is_not_unicode(file: Path) -> None:
    before = file.read_bytes()
    for tensors, metadata, message in [
        ({SURROGATE: torch.ones(1)}, {}, "the name 'half \\ud800' can't be written as UTF-8"),
        ({}, {SURROGATE: "v"}, "the metadata key 'half \\ud800' can't be written as UTF-8"),
        ({}, {"k": SURROGATE}, "metadata: 'k': the value 'half \\ud800' can't be written as UTF-8"),
    ]:
        assert refusal(penstock.ArgumentError, lambda: penstock.save(tensors, file, metadata=metadata)) == message  # noqa: B023
    assert file.read_bytes() == before


def test_a_name_that_is_not_unicode_is_unknown(file: Path) -> None:
    opened = penstock.open(file)
    assert SURROGATE not in opened
    assert "no tensor is called" in refusal(penstock.UnknownTensorError, lambda: opened[SURROGATE])
    assert "no tensor is called" in refusal(penstock.UnknownTensorError, lambda: penstock.load(file, select=SURROGATE))


@pytest.mark.parametrize("name", ["a\0b", SURROGATE])
def test_paths_that_are_none(file: Path, name: str) -> None:
    for call in (
        lambda: penstock.load(name),
        lambda: penstock.load([file, name]),
        lambda: penstock.save({"x": torch.ones(1)}, name),
        lambda: penstock.save_async({"x": torch.ones(1)}, name),
        lambda: penstock.verify(name),
        lambda: penstock.convert(file, name),
        lambda: penstock.measure.drop_page_cache(name),
    ):
        assert "can't be the name of a file" in refusal(penstock.ArgumentError, call)


@pytest.mark.parametrize("path", [3, None, 1.5, [3]])
def test_paths_of_another_type(path: Any) -> None:
    for function in (penstock.load, penstock.open, penstock.stream, penstock.inspect):
        assert "expected str, bytes or os.PathLike object" in refusal(TypeError, lambda: function(path))  # noqa: B023


def test_a_path_may_be_bytes(file: Path) -> None:
    assert penstock.load(bytes(file))["x"].tolist() == [1, 1]


def test_keywords_that_nobody_knows(file: Path) -> None:
    for call in (
        lambda: penstock.load(file, colour="red"),
        lambda: penstock.open(file, colour="red"),
        lambda: penstock.save({"x": torch.ones(1)}, file, colour="red"),
        lambda: penstock.save_async({"x": torch.ones(1)}, file, colour="red"),
        lambda: penstock.verify(file, colour="red"),
    ):
        assert refusal(TypeError, call) == "got an unexpected keyword argument 'colour'"
