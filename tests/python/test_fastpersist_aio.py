"""The asynchronous I/O handle, and memory for it."""

from __future__ import annotations

import gc
import inspect
import os
import threading
from pathlib import Path
from typing import Any

import helpers
import penstock
import pytest
import torch
from penstock import fastpersist
from penstock.fastpersist import aio_handle

MIB = 2**20


def random_tensor(nbytes: int, seed: int = 0) -> torch.Tensor:
    return torch.frombuffer(bytearray(helpers.random_bytes(nbytes, seed)), dtype=torch.uint8)


@pytest.fixture
def handle() -> aio_handle:
    return aio_handle(block_size=2**16, queue_depth=4, intra_op_parallelism=2)


def test_getters_say_what_it_was_made_with() -> None:
    default = aio_handle()
    assert default.get_block_size() == MIB
    assert default.get_queue_depth() == 128
    assert default.get_single_submit() is False
    assert default.get_overlap_events() is False
    assert default.get_intra_op_parallelism() == 1
    assert default.get_alignment() == 512
    other = aio_handle(4096, 7, True, True, 3)
    assert other.get_block_size() == 4096
    assert other.get_queue_depth() == 7
    assert other.get_single_submit() is True
    assert other.get_overlap_events() is True
    assert other.get_intra_op_parallelism() == 3
    assert other.get_alignment() == 3 * 512
    assert fastpersist.get_aio_handle().get_block_size() == 16 * MIB
    assert fastpersist.get_aio_handle(block_size=MIB, queue_depth=3).get_queue_depth() == 3


@pytest.mark.parametrize("nbytes", [0, 1, 4096, 2**16 - 1, 2**16 + 1, 3 * MIB + 5])
@pytest.mark.parametrize("locked", [False, True])
def test_every_way_to_write_and_read_moves_the_same_bytes(
    tmp_path: Path, handle: aio_handle, nbytes: int, locked: bool
) -> None:
    source = random_tensor(nbytes) if nbytes else torch.empty(0, dtype=torch.uint8)
    if locked:
        copy = handle.new_cpu_locked_tensor(nbytes, source)
        copy.copy_(source)
        source = copy
    path = str(tmp_path / "file")
    writes: list[Any] = [
        lambda: handle.write(source, path, False),
        lambda: handle.write(source, path, True, 0),
        lambda: handle.pwrite(source, path, False, False) - 1,
        lambda: handle.pwrite(source, path, True, True) or handle.wait() - 1,
        lambda: handle.sync_pwrite(source, path) - 1,
        lambda: handle.sync_pwrite(source, path, 0) - 1,
        lambda: handle.async_pwrite(source, path) or handle.wait() - 1,
    ]
    for write in writes:
        Path(path).unlink(missing_ok=True)
        assert write() == 0
        assert Path(path).read_bytes() == helpers.bits_of(source)
    target = torch.empty_like(source)
    reads: list[Any] = [
        lambda: handle.read(target, path, False),
        lambda: handle.read(target, path, True, 0),
        lambda: handle.pread(target, path, False, False) - 1,
        lambda: handle.pread(target, path, True, True) or handle.wait() - 1,
        lambda: handle.sync_pread(target, path) - 1,
        lambda: handle.sync_pread(target, path, 0) - 1,
        lambda: handle.async_pread(target, path) or handle.wait() - 1,
    ]
    for read in reads:
        target.zero_()
        assert read() == 0
        assert torch.equal(target, source)


def test_parts_of_a_file_are_written_and_read_at_their_offsets(tmp_path: Path, handle: aio_handle) -> None:
    path = tmp_path / "file"
    whole = random_tensor(10 * 100_000)
    for i in reversed(range(10)):
        assert handle.async_pwrite(whole[i * 100_000 : (i + 1) * 100_000], path, i * 100_000) == 0
    assert handle.wait() == 10
    assert path.read_bytes() == helpers.bits_of(whole)
    parts = [torch.empty(100_000, dtype=torch.uint8) for _ in range(10)]
    for i, part in enumerate(parts):
        handle.async_pread(part, path, i * 100_000)
    assert handle.wait() == 10
    assert torch.equal(torch.cat(parts), whole)
    assert handle.wait() == 0


def test_any_type_of_tensor_is_its_bytes(tmp_path: Path, handle: aio_handle) -> None:
    source = torch.randn(1000, 7).bfloat16()
    handle.sync_pwrite(source, tmp_path / "file")
    target = torch.empty_like(source)
    handle.sync_pread(target, tmp_path / "file")
    assert helpers.same(source, target)


def test_a_whole_file_leaves_nothing_of_a_longer_one_and_a_part_leaves_the_rest(
    tmp_path: Path, handle: aio_handle
) -> None:
    path = tmp_path / "file"
    old = helpers.random_bytes(3 * MIB)
    source = random_tensor(MIB + 100, 1)
    new = helpers.bits_of(source)
    for write in (
        lambda: handle.write(source, path, False),
        lambda: handle.sync_pwrite(source, path),
        lambda: handle.async_pwrite(source, path) or handle.wait(),
    ):
        path.write_bytes(old)
        write()
        assert path.read_bytes() == new
    path.write_bytes(old)
    handle.sync_pwrite(source, path, 0)
    assert path.read_bytes() == new + old[len(new) :]


def test_a_descriptor_can_be_written_to(tmp_path: Path, handle: aio_handle) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\0" * 300_000)
    source = random_tensor(100_000)
    descriptor = os.open(path, os.O_WRONLY)
    try:
        assert handle.async_pwrite(source, descriptor, 4096) == 0
        assert handle.async_pwrite(buffer=source, fd=descriptor, file_offset=150_000) == 0
        assert handle.wait() == 2
        os.fstat(descriptor)
    finally:
        os.close(descriptor)
    data = helpers.bits_of(source)
    assert path.read_bytes() == bytes(4096) + data + bytes(150_000 - 104_096) + data + bytes(50_000)


@pytest.mark.parametrize("offset", [0, 1024, 3072])
def test_a_descriptor_may_be_open_for_direct_io(tmp_path: Path, handle: aio_handle, offset: int) -> None:
    path = tmp_path / "file"
    whole = handle.new_cpu_locked_tensor(8192, torch.empty(0, dtype=torch.uint8))
    whole.copy_(random_tensor(8192))
    source = whole[offset : offset + 1024]
    descriptor = os.open(path, os.O_DIRECT | os.O_CREAT | os.O_WRONLY)
    try:
        assert handle.async_pwrite(buffer=source, fd=descriptor, file_offset=offset) == 0
        assert handle.wait() == 1
    finally:
        os.close(descriptor)
    assert path.read_bytes() == bytes(offset) + helpers.bits_of(source)


# The methods of DeepSpeed 0.19.8's handle, with the keywords that its bindings name.
KEYWORDS = {
    "__init__": "block_size queue_depth single_submit overlap_events intra_op_parallelism",
    "read": "buffer filename validate file_offset",
    "write": "buffer filename validate file_offset",
    "pread": "buffer filename validate async file_offset",
    "pwrite": "buffer filename validate async file_offset",
    "sync_pread": "buffer filename file_offset",
    "sync_pwrite": "buffer filename file_offset",
    "async_pread": "buffer filename file_offset",
    "async_pwrite": "buffer filename file_offset",
    "new_cpu_locked_tensor": "num_elem example_tenosr",
    "free_cpu_locked_tensor": "tensor",
    "is_pinned": "buffer",
}
OURS = {"async": "asynchronous", "example_tenosr": "example_tensor"}  # what Python or spelling asks for


@pytest.mark.parametrize("method", KEYWORDS)
def test_a_method_takes_its_arguments_in_deepspeeds_order(method: str) -> None:
    parameters = list(inspect.signature(getattr(aio_handle, method)).parameters)[1:]
    expected = [OURS.get(name, name) for name in KEYWORDS[method].split()]
    assert parameters[: len(expected)] == expected


def test_every_keyword_of_deepspeeds_is_taken(tmp_path: Path, handle: aio_handle) -> None:
    path = tmp_path / "file"
    example = torch.empty(0, dtype=torch.uint8)
    source = handle.new_cpu_locked_tensor(num_elem=5000, example_tenosr=example)  # type: ignore[call-arg]
    source.copy_(random_tensor(5000))
    target = torch.empty_like(source)
    given: dict[str, Any] = {"filename": path, "validate": True, "file_offset": 7}
    for in_background in (False, True):
        assert handle.pwrite(**given, **{"buffer": source, "async": in_background}) == (not in_background)
        assert not in_background or handle.wait() == 1
        target.zero_()
        assert handle.pread(**given, **{"buffer": target, "async": in_background}) == (not in_background)
        assert not in_background or handle.wait() == 1
        assert torch.equal(source, target)
    assert handle.is_pinned(buffer=source)
    assert handle.free_cpu_locked_tensor(tensor=source)
    with pytest.raises(TypeError, match="asynchron"):
        handle.pread(target, path, False)  # type: ignore[call-arg]


def test_a_write_in_the_background_has_one_target(tmp_path: Path, handle: aio_handle) -> None:
    for arguments in ({}, {"filename": tmp_path / "file", "fd": 1}):
        with pytest.raises(penstock.ArgumentError, match="async_pwrite takes a filename or an fd"):
            handle.async_pwrite(torch.ones(1), **arguments)
    assert os.listdir(tmp_path) == []


def test_a_file_can_be_moved_without_a_handle(tmp_path: Path) -> None:
    from penstock.fastpersist.aio import aio_read, aio_write

    path = tmp_path / "file"
    path.write_bytes(bytes(10_000))
    source = random_tensor(5000)
    target = torch.empty_like(source)
    assert aio_write(source, path, 4096, 2, False, True, True) == 0
    assert path.read_bytes() == helpers.bits_of(source)
    assert aio_read(target, path, 4096, 2, False, True, True) == 0
    assert torch.equal(source, target)


def test_the_buffer_lives_until_it_is_written(tmp_path: Path, handle: aio_handle) -> None:
    path = tmp_path / "file"
    source = random_tensor(8 * MIB)
    expected = helpers.bits_of(source)
    handle.async_pwrite(source, path)
    del source
    gc.collect()
    assert handle.wait() == 1
    assert path.read_bytes() == expected


def test_a_handle_that_is_dropped_finishes_its_work(tmp_path: Path) -> None:
    source = random_tensor(8 * MIB + 3)
    handle = aio_handle()
    handle.async_pwrite(source, tmp_path / "file")
    del handle
    gc.collect()
    assert (tmp_path / "file").read_bytes() == helpers.bits_of(source)


def test_files_have_the_permissions_of_the_umask(tmp_path: Path, handle: aio_handle) -> None:
    before = os.umask(0o027)
    try:
        handle.sync_pwrite(torch.ones(10), tmp_path / "file")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_errors_name_the_file(tmp_path: Path, handle: aio_handle, no_leaks: None) -> None:
    buffer = torch.empty(10, dtype=torch.uint8)
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "missing")):
        handle.sync_pread(buffer, tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "no/file")):
        handle.async_pwrite(buffer, tmp_path / "no/file")
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        handle.read(buffer, tmp_path, False)
    (tmp_path / "short").write_bytes(b"abc")
    with pytest.raises(penstock.ArgumentError, match="short: 10 bytes at offset 0 reach past its end, it has 3 bytes"):
        handle.async_pread(buffer, tmp_path / "short")
    with pytest.raises(penstock.ArgumentError, match="short: 10 bytes at offset 3"):
        handle.async_pread(buffer, tmp_path / "short", 3)
    with pytest.raises(penstock.NotFoundError, match="descriptor 999"):
        handle.async_pwrite(buffer, 999)
    assert handle.wait() == 0


def test_a_quota_is_an_error_of_wait(tmp_path: Path) -> None:
    """The limit on a file's size stands in for it."""
    script = """
        import resource, sys, torch, penstock
        from penstock.fastpersist import aio_handle
        handle = aio_handle()
        aligned = handle.new_cpu_locked_tensor(4 * 2**20, torch.empty(0, dtype=torch.uint8))
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
        for buffer in (torch.ones(2**20), aligned):
            try:
                handle.async_pwrite(buffer, sys.argv[1])
                handle.wait()
            except penstock.NoSpaceError as error:
                print(error.errno, sys.argv[1] in str(error), len(str(error).splitlines()))
    """
    assert helpers.run_python(script, str(tmp_path / "x")).stdout.splitlines() == ["27 True 1"] * 2


def test_validation_tells_when_memory_and_file_differ(tmp_path: Path, handle: aio_handle) -> None:
    path = tmp_path / "file"
    source = random_tensor(2**18)
    assert handle.pwrite(source, path, True, False) == 1
    target = torch.zeros_like(source)
    handle.pread(target, path, True, True)
    while not torch.equal(target, source):
        pass
    target[123] ^= 1
    with pytest.raises(penstock.ChangedError, match="file: the byte at offset 123 is not the one in memory"):
        handle.wait()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"block_size": 0}, "block_size must be a positive whole number, not 0"),
        ({"queue_depth": -1}, "queue_depth must be a positive whole number, not -1"),
        ({"intra_op_parallelism": 1.5}, "intra_op_parallelism must be a positive whole number, not 1.5"),
        ({"intra_op_parallelism": 1000}, "parallelism 1000: expected 1 to 256 threads"),
    ],
)
def test_a_handle_that_makes_no_sense_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(penstock.ArgumentError, match=message):
        aio_handle(**arguments)


def test_buffers_that_make_no_sense_are_refused(tmp_path: Path, handle: aio_handle) -> None:
    path = tmp_path / "file"
    with pytest.raises(penstock.ArgumentError, match="must be contiguous"):
        handle.sync_pwrite(torch.ones(4, 4).t(), path)
    with pytest.raises(penstock.ArgumentError, match="must be a tensor, not bytes"):
        handle.sync_pwrite(b"abc", path)  # type: ignore[arg-type]
    with pytest.raises(penstock.UnsupportedError, match="the buffer is on meta"):
        handle.sync_pwrite(torch.ones(4, device="meta"), path)
    with pytest.raises(penstock.ArgumentError, match="file_offset must be a place in a file, not -1"):
        handle.sync_pwrite(torch.ones(4), path, -1)
    with pytest.raises(penstock.ArgumentError, match="can't be the name of a file"):
        handle.sync_pwrite(torch.ones(4), "a\0b")
    assert not path.exists()


def test_other_threads_run_while_it_works(tmp_path: Path) -> None:
    handle = aio_handle(block_size=4096, queue_depth=1)
    source = random_tensor(16 * MIB)
    ticks = 0
    stop = threading.Event()

    def count() -> None:
        nonlocal ticks
        while not stop.is_set():
            ticks += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        before = ticks
        handle.sync_pwrite(source, tmp_path / "file")
        during = ticks - before
    finally:
        stop.set()
        thread.join()
    assert during > 100


def test_threads_may_share_a_handle(tmp_path: Path, handle: aio_handle) -> None:
    problems = []

    def work(number: int) -> None:
        source = random_tensor(300_000 + number, number)
        target = torch.empty_like(source)
        for _ in range(5):
            handle.sync_pwrite(source, tmp_path / str(number))
            handle.sync_pread(target, tmp_path / str(number))
            if not torch.equal(source, target):
                problems.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_a_fork_leaves_the_handle_to_its_parent(tmp_path: Path) -> None:
    script = """
        import os, sys, torch, penstock, warnings
        from penstock.fastpersist import FastFileWriter, aio_handle
        warnings.simplefilter("ignore")
        handle = aio_handle()
        handle.sync_pwrite(torch.ones(2**20), sys.argv[1])
        writer = FastFileWriter(sys.argv[1] + ".pt")
        writer.write(bytes(10 * 2**20))
        child = os.fork()
        if child == 0:
            for use in (lambda: handle.sync_pwrite(torch.ones(1), sys.argv[1]), lambda: writer.write(b"x")):
                try:
                    use()
                except penstock.ArgumentError as error:
                    print(error, flush=True)
            del handle, writer
            os._exit(0)
        os.waitpid(child, 0)
        handle.sync_pwrite(torch.ones(3), sys.argv[1])
        writer.close()
        print(os.path.getsize(sys.argv[1]), os.path.getsize(sys.argv[1] + ".pt"))
    """
    lines = helpers.run_python(script, str(tmp_path / "x")).stdout.splitlines()
    assert lines == ["it belongs to the process that this one was forked from"] * 2 + ["12 10485760"]


def test_locked_tensors_are_known_to_every_handle(handle: aio_handle) -> None:
    other = aio_handle()
    tensor = handle.new_cpu_locked_tensor(1000, torch.empty(0, dtype=torch.float16))
    assert tensor.dtype == torch.float16
    assert tensor.shape == (1000,)
    assert tensor.data_ptr() % 4096 == 0
    for each in (handle, other):
        assert each.is_pinned(tensor)
        assert each.is_pinned(tensor[10:20])
        assert each.is_pinned(tensor.view(torch.uint8)[-1:])
        assert not each.is_pinned(torch.ones(3))
        assert not each.is_pinned(torch.empty(0))
        assert not each.is_pinned(torch.empty(3, device="meta"))
        assert not each.free_cpu_locked_tensor(torch.ones(3))
    del handle
    gc.collect()
    assert other.is_pinned(tensor)
    assert other.is_pinned(fastpersist.get_pinned_buffer(1))
    assert other.free_cpu_locked_tensor(tensor)
    assert not other.free_cpu_locked_tensor(tensor)
    assert not other.is_pinned(tensor)
    tensor.fill_(1)
    assert tensor.sum() == 1000


def test_an_empty_locked_tensor_is_one_too(handle: aio_handle) -> None:
    tensor = handle.new_cpu_locked_tensor(0, torch.empty(0, dtype=torch.int64))
    assert (tensor.dtype, tensor.shape) == (torch.int64, (0,))
    assert handle.is_pinned(tensor)
    assert handle.free_cpu_locked_tensor(tensor)
    assert not handle.is_pinned(tensor)


def test_locked_memory_leaves_with_its_last_tensor(handle: aio_handle) -> None:
    from penstock.fastpersist.pinned import _locked

    before = set(_locked)
    tensor = handle.new_cpu_locked_tensor(2**20, torch.empty(0, dtype=torch.uint8))
    view = tensor[4096:]
    address = tensor.data_ptr()
    assert set(_locked) == before | {address}
    del tensor
    gc.collect()
    assert handle.is_pinned(view)
    del view
    gc.collect()
    assert address not in _locked


def test_pinned_buffers_are_bytes_at_a_page() -> None:
    buffer = fastpersist.get_pinned_buffer(2)
    assert buffer.dtype == torch.uint8
    assert buffer.numel() == 2 * MIB
    assert buffer.data_ptr() % 4096 == 0
    assert int(buffer.sum()) == 0
    assert fastpersist.get_pinned_buffer().numel() == 256 * MIB
    with pytest.raises(penstock.ArgumentError, match="size_mb must be positive"):
        fastpersist.get_pinned_buffer(0)


def test_what_can_not_be_locked_is_ordinary_memory() -> None:
    script = """
        import os, resource, torch
        from penstock import _core
        from penstock.fastpersist import get_pinned_buffer
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (2**16, 2**16))
        print(_core.locked_memory(2**14)[1], _core.locked_memory(2**20)[1])
        buffer = get_pinned_buffer(1)
        print(buffer.fill_(1).sum().item(), buffer.data_ptr() % 4096)
    """
    assert helpers.run_python(script).stdout.splitlines() == ["True False", "1048576 0"]


def test_gpudirect_storage_for_raw_files_is_refused_by_name() -> None:
    with pytest.raises(penstock.UnsupportedError, match="^GPUDirect Storage is for saves and loads, not for raw files"):
        fastpersist.get_gds_handle()
    with pytest.raises(NotImplementedError, match="^GPUDirect Storage is for saves and loads, not for raw files"):
        fastpersist.get_pinned_buffer(1, use_gds=True)
