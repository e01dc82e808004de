"""Writers: what torch.save makes with them is what it makes by itself."""

from __future__ import annotations

import io
import os
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import helpers
import penstock
import pytest
import torch
from penstock.fastpersist import FastFileWriter, FastFileWriterConfig, MockFileWriter, PyFileWriter, get_pinned_buffer
from penstock.fastpersist.stats import BASE_KEYS, FAST_KEYS, STORAGE_KEYS

MIB = 2**20

WRITERS: dict[str, Callable[[Any], Any]] = {
    "fast": FastFileWriter,
    "single": lambda path: FastFileWriter(path, FastFileWriterConfig(None, None, double_buffer=False)),
    "bounded": lambda path: FastFileWriter(path, FastFileWriterConfig(None, torch.empty(MIB, dtype=torch.uint8))),
    "volatile": lambda path: FastFileWriter(path, FastFileWriterConfig(durable=False)),
    "python": PyFileWriter,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.pt"


@pytest.fixture(scope="module")
def large() -> dict[str, Any]:
    """64 MiB and a little, in tensors of many sizes."""
    generator = torch.Generator().manual_seed(3)
    state: dict[str, Any] = {f"w{i}": torch.randn(2**i + i, generator=generator) for i in range(23)}
    state["big"] = torch.randn(8 * MIB, generator=generator).bfloat16()
    state["tied"] = state["big"]
    state["nothing"] = torch.empty(0)
    state["nested"] = {"steps": 12, "view": state["w10"][3:7]}
    return state


def saved(obj: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(obj, buffer, **options)
    return buffer.getvalue()


def assert_same_state(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(actual) == list(expected)
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert helpers.same(actual[name], value), name
    assert actual["nested"]["steps"] == 12
    assert torch.equal(actual["nested"]["view"], expected["nested"]["view"])


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("kind", WRITERS)
def test_torch_save_writes_what_it_writes_itself(path: Path, large: dict[str, Any], kind: str, zipped: bool) -> None:
    path.write_bytes(b"old" * 30 * MIB)
    writer = WRITERS[kind](path)
    torch.save(large, writer, _use_new_zipfile_serialization=zipped)
    writer.close()
    content = path.read_bytes()
    assert content == saved(large, _use_new_zipfile_serialization=zipped)
    assert_same_state(torch.load(path), large)
    if zipped:
        assert_same_state(torch.load(path, mmap=True), large)
    stats = writer.stats
    assert stats["bytes"] == len(content)
    assert stats["close"] == 1
    assert stats["path"] == str(path)
    assert stats["write_secs"] > 0
    assert stats["write_GB/s"] == pytest.approx(len(content) / stats["write_secs"] / 2**30)


def test_files_that_torch_saves_with_its_options_are_the_same(path: Path, large: dict[str, Any]) -> None:
    serialization = pytest.importorskip("torch.serialization")
    if not hasattr(serialization, "set_crc32_options"):
        pytest.skip("this torch always writes checksums")
    try:
        serialization.set_crc32_options(False)
        with FastFileWriter(path) as writer:
            torch.save(large, writer)
        assert path.read_bytes() == saved(large)
    finally:
        serialization.set_crc32_options(True)


def test_a_module_and_its_optimizer_come_back(path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(50, 70), torch.nn.ReLU(), torch.nn.Linear(70, 3))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 50)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    with FastFileWriter(path) as writer:
        torch.save(state, writer)
    loaded = torch.load(path)
    for name, tensor in model.state_dict().items():
        assert helpers.same(loaded["model"][name], tensor)
    assert loaded["optimizer"]["state"][0]["step"] == 1


def legacy_storages(state: dict[str, torch.Tensor]) -> list[tuple[torch.UntypedStorage, torch.dtype]]:
    return [(tensor.untyped_storage(), tensor.dtype) for tensor in state.values()]


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("save_size", [True, False])
def test_a_list_of_storages_is_counts_and_bytes(path: Path, kind: str, save_size: bool) -> None:
    tensors = {
        "a": torch.randn(5),
        "b": torch.randn(3 * MIB).half(),
        "c": torch.empty(0),
        "d": torch.arange(7, dtype=torch.int64),
        "e": torch.tensor([True, False]),
    }
    expected = b""
    for tensor in tensors.values():
        expected += (struct.pack("<q", tensor.numel()) if save_size else b"") + helpers.bits_of(tensor)
    writer = WRITERS[kind](path)
    writer.write(b"header")
    assert writer.save_torch_storage_object_list(legacy_storages(tensors), save_size) == len(expected)
    writer.close()
    assert path.read_bytes() == b"header" + expected
    stats = writer.stats
    assert stats["save_storage"] == 5
    assert stats["save_storage_bytes"] == len(expected)
    assert stats["bytes"] == 6 + len(expected)
    assert stats["write"] == 1 + (10 if save_size else 5)


def test_typed_storages_are_taken_too(path: Path) -> None:
    tensor = torch.randn(10)
    typed = torch.storage.TypedStorage(wrap_storage=tensor.untyped_storage(), dtype=torch.float32, _internal=True)
    with FastFileWriter(path) as writer:
        writer.save_torch_storage_object_list([typed, (typed, torch.float32)], True)
    assert path.read_bytes() == (struct.pack("<q", 10) + helpers.bits_of(tensor)) * 2


def test_a_list_of_something_else_is_refused(path: Path) -> None:
    with FastFileWriter(path) as writer:
        with pytest.raises(penstock.ArgumentError, match="expected .UntypedStorage, dtype., not Tensor"):
            writer.save_torch_storage_object_list([torch.ones(3)], True)
        with pytest.raises(penstock.UnsupportedError, match="meta device"):
            meta = torch.ones(3, device="meta").untyped_storage()
            writer.save_torch_storage_object_list([(meta, torch.float32)], True)
    assert path.read_bytes() == b""


def test_the_fast_writer_counts_every_byte_once(path: Path, large: dict[str, Any]) -> None:
    writer = FastFileWriter(path)
    torch.save(large, writer)
    writer.close()
    stats = writer.stats
    assert set(stats) == {*BASE_KEYS, *STORAGE_KEYS, *FAST_KEYS, "path"}
    assert stats["aio_bytes"] + stats["slow_bytes"] == stats["bytes"] == path.stat().st_size
    assert stats["aio_GB/s"] == pytest.approx(stats["aio_bytes"] / stats["aio_write_secs"] / 2**30)
    assert stats["fill_buffer_count"] >= stats["aio_bytes"] / (2 * MIB)
    assert stats["fill_buffer_secs"] > 0
    assert stats["flush"] == 1
    assert stats["fileno"] == 0
    assert writer.get_stats() == stats
    small = FastFileWriter(path)
    small.write(b"abc")
    small.close()
    assert small.stats["slow_bytes"] == 3
    assert small.stats["aio_bytes"] == 0
    assert small.stats["aio_GB/s"] == 0


def test_the_mock_counts_and_writes_nothing(path: Path, large: dict[str, Any]) -> None:
    writer = MockFileWriter(path)
    torch.save(large, writer)
    writer.save_torch_storage_object_list([(torch.ones(5).untyped_storage(), torch.float32)], True)
    writer.close()
    assert writer.stats["bytes"] == len(saved(large)) + 28
    assert writer.stats["save_storage_bytes"] == 28
    assert path.read_bytes() == b""
    path.write_bytes(b"old")
    with MockFileWriter(path) as again:
        again.write(b"new")
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("kind", ["fast", "python"])
def test_a_writer_has_no_descriptor_that_torch_could_write_to(path: Path, kind: str) -> None:
    with WRITERS[kind](path) as writer:
        assert writer.fileno() == -1
        assert writer.writable()
        assert writer.file_path() == str(path)
    assert writer.stats["fileno"] == 1


def test_the_state_is_printed_in_one_line(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FastFileWriter(path) as writer:
        writer.write(b"abc")
    writer._dump_state()
    line = capsys.readouterr().out
    assert line.startswith("stats = {'close': 1, 'fileno': 0, 'flush': 0, 'write': 1, 'bytes': 3,")
    assert line.count("\n") == 1


@pytest.mark.parametrize("kind", ["fast", "python", "mock"])
def test_closing_twice_is_closing_once_and_writing_after_it_is_refused(path: Path, kind: str) -> None:
    writer = {**WRITERS, "mock": MockFileWriter}[kind](path)
    writer.write(b"abc")
    assert not writer.closed
    writer.close()
    before = path.read_bytes()
    writer.close()
    writer.flush()
    assert writer.closed
    assert writer.stats["close"] == 2
    for use in (lambda: writer.write(b"d"), lambda: writer.save_torch_storage_object_list([], True)):
        with pytest.raises(penstock.ArgumentError, match="model.pt: the writer is closed"):
            use()
    assert path.read_bytes() == before


def test_the_file_appears_when_it_is_closed(path: Path, no_leaks: None) -> None:
    path.write_bytes(b"old")
    writer = FastFileWriter(path)
    writer.write(bytes(10 * MIB))
    writer.flush()
    assert path.read_bytes() == b"old"
    writer.close()
    assert path.read_bytes() == bytes(10 * MIB)


def test_an_exception_in_a_with_block_leaves_the_old_file(path: Path, no_leaks: None) -> None:
    path.write_bytes(b"old")
    with pytest.raises(AttributeError), FastFileWriter(path) as writer:
        torch.save({"x": torch.ones(3 * MIB), "f": lambda: 1}, writer, _use_new_zipfile_serialization=False)
    assert path.read_bytes() == b"old"
    with pytest.raises(penstock.ArgumentError, match="closed"):
        writer.write(b"x")


def test_a_writer_that_is_never_closed_saves_nothing_and_warns(path: Path, no_leaks: None) -> None:
    path.write_bytes(b"old")

    def forget_to_close() -> None:
        writer = FastFileWriter(path)
        writer.write(bytes(5 * MIB))

    with pytest.warns(ResourceWarning, match="the writer was never closed, nothing was saved"):
        forget_to_close()
    assert path.read_bytes() == b"old"


def test_permissions_follow_the_umask_or_the_old_file(path: Path) -> None:
    before = os.umask(0o027)
    try:
        FastFileWriter(path).close()
        assert path.stat().st_mode & 0o777 == 0o640
        path.chmod(0o604)
        FastFileWriter(path).close()
        assert path.stat().st_mode & 0o777 == 0o604
    finally:
        os.umask(before)


def test_what_can_be_written_is_any_contiguous_buffer(path: Path) -> None:
    import numpy as np

    parts: list[Any] = [b"abc", bytearray(b"def"), memoryview(b"ghi"), np.arange(4, dtype=np.int32).reshape(2, 2), b""]
    with FastFileWriter(path) as writer:
        assert [writer.write(part) for part in parts] == [3, 3, 3, 16, 0]
        with pytest.raises(TypeError):
            writer.write("text")
        with pytest.raises((BufferError, ValueError), match="contiguous"):
            writer.write(np.ones((4, 4))[:, ::2])
    assert path.read_bytes() == b"abcdefghi" + np.arange(4, dtype=np.int32).tobytes()


def test_more_than_one_writer_of_a_file_is_another_function(path: Path) -> None:
    for count in (0, 2):
        config = FastFileWriterConfig(None, None, num_parallel_writers=count, writer_rank=1, global_rank=1)
        with pytest.raises(penstock.UnsupportedError, match=f"{count} writers of one file need the parallel save"):
            FastFileWriter(path, config)
    config = FastFileWriterConfig(None, get_pinned_buffer(1), True, 1, 0, 5)
    with FastFileWriter(file_path=str(path), config=config) as writer:
        writer.write(b"x")
    assert path.read_bytes() == b"x"


def test_places_where_no_file_can_be_are_refused(tmp_path: Path) -> None:
    for kind in (FastFileWriter, PyFileWriter, MockFileWriter):
        with pytest.raises(FileNotFoundError):
            kind(tmp_path / "missing" / "file")
        with pytest.raises(IsADirectoryError):
            kind(tmp_path)


def test_other_threads_run_while_it_writes(path: Path) -> None:
    ticks = 0
    stop = threading.Event()

    def count() -> None:
        nonlocal ticks
        while not stop.is_set():
            ticks += 1

    tensor = torch.ones(64 * MIB, dtype=torch.uint8)
    thread = threading.Thread(target=count)
    thread.start()
    try:
        with FastFileWriter(path) as writer:
            before = ticks
            writer.write(tensor.numpy())
            during = ticks - before
    finally:
        stop.set()
        thread.join()
    assert during > 100
    assert path.stat().st_size == 64 * MIB


def test_several_threads_take_turns(path: Path) -> None:
    lines = [bytes([number]) * (3 * MIB + number) for number in range(4)]
    with FastFileWriter(path) as writer:
        threads = [threading.Thread(target=writer.write, args=(line,)) for line in lines]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    content = path.read_bytes()
    assert len(content) == sum(map(len, lines))
    assert all(content.count(bytes([number])) == len(line) for number, line in enumerate(lines))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with helpers.mounted_disk(tmp_path / "disk", "8m") as folder:
        yield folder


@pytest.mark.parametrize("zipped", [True, False])
def test_a_full_disk_is_an_error_and_leaves_the_old_file(small_disk: Path, zipped: bool, no_leaks: None) -> None:
    path = small_disk / "x.pt"
    with FastFileWriter(path) as writer:
        torch.save({"x": torch.ones(MIB)}, writer)
    before = path.read_bytes()
    writer = FastFileWriter(path)
    with pytest.raises((penstock.NoSpaceError, RuntimeError)) as caught:
        torch.save({"x": torch.ones(4 * MIB)}, writer, _use_new_zipfile_serialization=zipped)
        writer.flush()
    # torch's zip writer puts a complaint of its own on top.
    assert isinstance(caught.value.__context__ or caught.value, penstock.NoSpaceError)
    with pytest.raises(penstock.NoSpaceError, match="x.pt: .*No space left on device") as again:
        writer.close()
    assert again.value.errno == 28
    writer.close()
    assert path.read_bytes() == before
    assert os.listdir(small_disk) == [path.name]


def test_a_list_that_does_not_fit_is_refused_before_it_is_written(small_disk: Path, no_leaks: None) -> None:
    path = small_disk / "x.pt"
    storages = legacy_storages({"x": torch.ones(4 * MIB)})
    with pytest.raises(penstock.NoSpaceError, match="needs 16781312 bytes"), FastFileWriter(path) as writer:
        writer.save_torch_storage_object_list(storages, True)
    assert os.listdir(small_disk) == []


def test_a_quota_leaves_the_old_file(path: Path) -> None:
    """The limit on a file's size stands in for it: it can't be seen before it is hit."""
    script = """
        import os, resource, sys, penstock
        from penstock.fastpersist import FastFileWriter
        path = sys.argv[1]
        with FastFileWriter(path) as writer:
            writer.write(b"old")
        resource.setrlimit(resource.RLIMIT_FSIZE, (5 * 2**20, 5 * 2**20))
        writer = FastFileWriter(path)
        errors = []
        for use in (lambda: [writer.write(bytes(2**20)) for _ in range(50)], writer.flush, writer.close, writer.close):
            try:
                use()
            except penstock.NoSpaceError as error:
                errors.append(str(error))
        print(len(errors), len(set(errors)), path + ": write of " in errors[0])
        print(os.listdir(os.path.dirname(path)), open(path, "rb").read())
    """
    result = helpers.run_python(script, str(path))
    assert result.stdout.splitlines() == ["3 1 True", "['model.pt'] b'old'"]


def test_an_interrupt_stops_a_long_write_and_nothing_is_saved(path: Path, no_leaks: None) -> None:
    path.write_bytes(b"old")
    writer = FastFileWriter(path)
    parts = torch.zeros(256 * MIB, dtype=torch.uint8).numpy()
    timer = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        for _ in range(50):
            writer.write(parts)
    timer.join()
    writer.abandon()
    assert path.read_bytes() == b"old"
