"""Broken files and refusing systems: each has its error, in one line that names the file, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import helpers
import penstock
import penstock.fastpersist
import pytest
import safetensors.torch
import torch


def record(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def raw(header: Any, data: bytes = b"\0" * 8) -> bytes:
    return helpers.header_bytes(header) + data


GOOD = raw({"x": record()})
BROKEN: dict[str, bytes] = {
    "empty": b"",
    "shorter than a length": b"\0\0\0",
    "garbage": b"\xde\xad\xbe\xef" * 64,
    "text": b"<!DOCTYPE html><html><body>404 not found</body></html>",
    "a git lfs pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 12\n",
    "header longer than the file": struct.pack("<Q", 5000) + b'{"x":{}}',
    "header longer than the limit": struct.pack("<Q", 100_000_001) + b"{" + b" " * 100,
    "header length near 2**64": struct.pack("<Q", 2**64 - 1) + b"{}",
    "data cut off": GOOD[:-3],
    "bytes after the data": GOOD + b"\0",
    "header cut off": GOOD[:20],
    "not json": raw(b'{"x": '),
    "json array": raw(b"[1, 2]"),
    "json and more": raw(b'{} {"y": 1}', b""),
    "bad utf-8": raw(b'{"\xff\xfe":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'),
    "overlap": raw({"x": record(), "y": record(offsets=(4, 12))}, b"\0" * 12),
    "same range twice": raw({"x": record(), "y": record()}),
    "hole": raw({"x": record(), "y": record(offsets=(12, 20))}, b"\0" * 20),
    "hole at the start": raw({"x": record(offsets=(4, 12))}, b"\0" * 12),
    "backwards range": raw({"x": record(offsets=(8, 0))}),
    "duplicate name": raw(
        b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}'
    ),
    "duplicate name, escaped": raw(
        b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"\\u0078":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}'
    ),
    "duplicate metadata": raw(
        b'{"__metadata__":{"a":"1","a":"2"},"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    ),
    "metadata that is not text": raw({"__metadata__": {"a": 1}, "x": record()}),
    "unknown dtype": raw({"x": record(dtype="F33")}),
    "dtype that is not text": raw({"x": record(dtype=7)}),
    "shape that overflows": raw({"x": record(shape=(2**32, 2**32, 2**32))}),
    "shape that overflows into the right size": raw({"x": record(dtype="U8", shape=(2**61, 2**3 + 2**61, 8))}),
    "negative dimension": raw({"x": record(shape=(-1, -2))}),
    "fractional dimension": raw({"x": record(shape=(1.5,))}),
    "dimension beyond 64 bits": raw(b'{"x":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,8]}}'),
    "size does not match the shape": raw({"x": record(shape=(3,))}),
    "half a byte": raw({"x": record(dtype="F4", shape=(3,), offsets=(0, 1))}, b"\0"),
    "tensor as an array": raw({"x": ["F32", [2], [0, 8]]}),
    "missing shape": raw({"x": {"dtype": "F32", "data_offsets": [0, 8]}}),
    "three offsets": raw({"x": record(offsets=(0, 8, 9))}),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_file_is_refused_in_one_line(path: Path, how: str, no_leaks: None) -> None:
    path.write_bytes(BROKEN[how])
    uses: list[Callable[[], Any]] = [
        lambda: penstock.load(path),
        lambda: penstock.open(path),
        lambda: penstock.stream(path),
        lambda: penstock.verify(path),
        lambda: penstock.inspect(path),
        lambda: penstock.convert(path, path.with_name("out.safetensors")),
        lambda: penstock.load_into({}, path),
    ]
    for use in uses:
        with pytest.raises(penstock.FormatError) as caught:
            use()
        assert isinstance(caught.value, ValueError)
        assert str(path) in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1
    assert os.listdir(path.parent) == [path.name]


def test_the_good_file_that_the_broken_ones_came_from_is_good(path: Path) -> None:
    path.write_bytes(GOOD)
    assert penstock.load(path)["x"].tolist() == [0, 0]
    assert safetensors.torch.load_file(path)["x"].tolist() == [0, 0]


def test_a_missing_file_is_a_file_not_found_error(path: Path, no_leaks: None) -> None:
    for paths in (path, [path]):
        with pytest.raises(penstock.NotFoundError) as caught:
            penstock.load(paths)
        assert isinstance(caught.value, FileNotFoundError)
        assert caught.value.errno == 2
        assert str(path) in str(caught.value)


def test_a_directory_without_shards_is_refused(tmp_path: Path, no_leaks: None) -> None:
    with pytest.raises(penstock.Error, match=str(tmp_path)):
        penstock.load(tmp_path)


def test_a_directory_among_files_is_refused(tmp_path: Path, no_leaks: None) -> None:
    with pytest.raises((penstock.DirectoryError, penstock.Error), match=str(tmp_path)):
        penstock.load([tmp_path])


def test_saving_onto_a_directory_is_refused(tmp_path: Path, no_leaks: None) -> None:
    target = tmp_path / "dir.safetensors"
    target.mkdir()
    with pytest.raises(penstock.DirectoryError) as caught:
        penstock.save({"x": torch.ones(1)}, target)
    assert isinstance(caught.value, IsADirectoryError)
    assert os.listdir(tmp_path) == ["dir.safetensors"]
    assert os.listdir(target) == []


def test_a_pipe_is_refused(tmp_path: Path, no_leaks: None) -> None:
    pipe = tmp_path / "pipe.safetensors"
    os.mkfifo(pipe)
    with pytest.raises(penstock.Error, match=str(pipe)):
        penstock.load(pipe)


def test_an_unreadable_file_is_a_permission_error(public_dir: Path) -> None:
    path = public_dir / "secret.safetensors"
    penstock.save({"x": torch.ones(1)}, path)
    path.chmod(0)
    with helpers.unprivileged(), pytest.raises(penstock.PermissionDeniedError) as caught:
        penstock.load(path)
    assert isinstance(caught.value, PermissionError)
    assert caught.value.errno == 13
    assert str(path) in str(caught.value)


def test_a_read_only_directory_is_a_permission_error(public_dir: Path) -> None:
    public_dir.chmod(0o555)
    with helpers.unprivileged(), pytest.raises(penstock.PermissionDeniedError, match=str(public_dir)):
        penstock.save({"x": torch.ones(1)}, public_dir / "x.safetensors")
    assert os.listdir(public_dir) == []


def test_a_missing_directory_is_a_file_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(penstock.NotFoundError, match="no/x.safetensors"):
        penstock.save({"x": torch.ones(1)}, tmp_path / "no" / "x.safetensors")
    assert os.listdir(tmp_path) == []


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    penstock.save(
        {f"t{i}": torch.full((8,), float(i)) for i in range(4)}, tmp_path / "model.safetensors", max_shard_size=64
    )
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    return tmp_path


def rewrite_index(folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    changed = change(content)
    index.write_text(changed if isinstance(changed, str) else json.dumps(content))
    return index


def test_a_missing_shard_is_named(sharded: Path, no_leaks: None) -> None:
    shard = sharded / "model-00002-of-00002.safetensors"
    shard.unlink()
    for paths in (sharded, sharded / "model.safetensors.index.json"):
        with pytest.raises(penstock.NotFoundError, match=shard.name):
            penstock.load(paths)


def test_a_shard_listed_twice_is_refused(sharded: Path, no_leaks: None) -> None:
    shard = sharded / "model-00001-of-00002.safetensors"
    with pytest.raises(penstock.Error) as caught:
        penstock.load([shard, shard])
    assert shard.name in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        penstock.save({"x": torch.ones(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(penstock.Error, match="x"):
        penstock.load([tmp_path / "a.safetensors", tmp_path / "b.safetensors"])


@pytest.mark.parametrize("name", ["../escape.safetensors", "/etc/passwd", "sub/shard.safetensors", "", "..", "a\0b"])
def test_a_shard_name_that_leaves_the_folder_is_refused(sharded: Path, name: str, no_leaks: None) -> None:
    rewrite_index(sharded, lambda index: index["weight_map"].update(t0=name))
    with pytest.raises(penstock.FormatError, match=r"index\.json") as caught:
        penstock.load(sharded)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"weight_map": 3}',
        '{"weight_map": {"a": 3}}',
        '{"weight_map": {"a": "m.safetensors", "a": "m.safetensors"}}',
    ],
)
def test_a_broken_index_is_refused(sharded: Path, text: str, no_leaks: None) -> None:
    index = rewrite_index(sharded, lambda _: text or " ")
    with pytest.raises(penstock.FormatError, match=r"index\.json"):
        penstock.load(index)


def test_an_index_that_names_a_tensor_its_shard_lacks_is_refused(sharded: Path, no_leaks: None) -> None:
    rewrite_index(sharded, lambda index: index["weight_map"].update(t9="model-00001-of-00002.safetensors"))
    with pytest.raises(penstock.Error, match="t9"):
        penstock.load(sharded)


def test_a_file_that_shrank_since_it_was_opened_is_noticed(tmp_path: Path, no_leaks: None) -> None:
    path = tmp_path / "x.safetensors"
    for cache in ("auto", "copy", "direct", "buffered", "mmap"):
        penstock.save({"x": torch.arange(2**20)}, path)
        reader = penstock.open(path, cache=cache)
        os.truncate(path, 2**20)
        with pytest.raises(penstock.ChangedError) as caught:
            reader["x"].load()
        assert isinstance(caught.value, OSError)
        assert str(path) in str(caught.value)
        reader.close()


@pytest.mark.parametrize("cache", ["direct", "buffered"])
def test_a_file_that_shrinks_while_it_is_read_is_noticed(path: Path, cache: str, no_leaks: None) -> None:
    penstock.save({"x": torch.zeros(256 * 2**20, dtype=torch.uint8)}, path, durable=False)
    penstock.measure.drop_page_cache(path)

    def shrink(done: int, total: int) -> None:
        if done < total:
            os.truncate(path, 2**20)

    with pytest.raises(penstock.ChangedError, match=str(path)):
        penstock.load(path, cache=cache, progress=shrink, block_size="64KiB", queue_depth=1, threads=1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with helpers.mounted_disk(tmp_path / "disk", "2m") as folder:
        yield folder


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_full_disk_is_an_error_and_leaves_nothing(small_disk: Path, asynchronous: bool, no_leaks: None) -> None:
    path = small_disk / "x.safetensors"
    penstock.save({"x": torch.ones(1)}, path)
    before = path.read_bytes()
    with pytest.raises(penstock.NoSpaceError) as caught:
        if asynchronous:
            penstock.save_async({"x": torch.ones(2**20)}, path).wait()
        else:
            penstock.save({"x": torch.ones(2**20)}, path)
    assert isinstance(caught.value, OSError)
    assert caught.value.errno == 28
    assert str(path) in str(caught.value)
    assert os.listdir(small_disk) == [path.name]
    assert path.read_bytes() == before


def save_as_a_stream(tensors: dict[str, torch.Tensor], path: Path) -> None:
    with penstock.fastpersist.FastFileWriter(path) as writer:
        torch.save(tensors, writer)


@pytest.mark.parametrize("save", [penstock.save, save_as_a_stream])
def test_what_was_just_replaced_counts_as_free(tmp_path: Path, save: Callable[..., object]) -> None:
    """Two files fit: the third save needs what the second replaced, which a thread may still be freeing."""
    tensors = {"x": torch.ones(160 * 2**18)}
    with helpers.mounted_disk(tmp_path / "disk", "350m") as folder:
        for _ in range(8):
            save(tensors, folder / "x.safetensors")
        assert os.listdir(folder) == ["x.safetensors"]


@pytest.mark.parametrize("method", ["direct", "buffered"])
def test_a_disk_that_fills_up_while_writing_leaves_nothing(tmp_path: Path, method: str) -> None:
    """The limit on a file's size stands in for a quota: it can't be seen before it is hit."""
    script = """
        import os, resource, sys, numpy, penstock
        path, method = sys.argv[1:]
        penstock.save({"x": numpy.ones(1)}, path)
        before = open(path, "rb").read()
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
        try:
            penstock.save({"x": numpy.ones(2**20)}, path, method=method)
        except penstock.Error as error:
            print(type(error).__name__, isinstance(error, OSError), len(str(error).splitlines()), path in str(error))
        print(os.listdir(os.path.dirname(path)), open(path, "rb").read() == before)
    """
    result = helpers.run_python(script, str(tmp_path / "x.safetensors"), method)
    assert result.stdout.splitlines() == ["NoSpaceError True 1 True", "['x.safetensors'] True"]


def test_errors_can_be_pickled() -> None:
    import pickle

    for kind in (penstock.NotFoundError, penstock.FormatError, penstock.DamagedCheckpointError):
        error = kind("a: cannot open")
        error.errno = 2
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), copy.errno) == (kind, "a: cannot open", 2)


def test_every_error_is_a_penstock_error_and_a_builtin() -> None:
    expected = {
        "ArgumentError": ValueError,
        "ArgumentTypeError": TypeError,
        "BusyError": RuntimeError,
        "CancelledError": RuntimeError,
        "ChangedError": OSError,
        "DamagedCheckpointError": EOFError,
        "DeviceError": RuntimeError,
        "DirectoryError": IsADirectoryError,
        "DistributedError": RuntimeError,
        "FormatError": ValueError,
        "IoError": OSError,
        "LayoutError": ValueError,
        "LibraryError": ImportError,
        "ModelError": RuntimeError,
        "NoSpaceError": OSError,
        "NotFoundError": FileNotFoundError,
        "OutOfMemoryError": MemoryError,
        "PermissionDeniedError": PermissionError,
        "SharedMemoryError": ValueError,
        "TensorIndexError": IndexError,
        "UnknownTensorError": KeyError,
        "UnsupportedError": NotImplementedError,
        "UnsupportedFormatError": NotImplementedError,
        "UnsupportedTypeError": ValueError,
    }
    assert set(expected) | {"Error"} == set(penstock.errors.__all__)
    for name, builtin in expected.items():
        kind = getattr(penstock, name)
        assert issubclass(kind, penstock.Error)
        assert issubclass(kind, builtin)
        assert issubclass(kind, RuntimeError)
        assert str(kind("one line")) == "one line"
