"""Saving what is on another device: the file is the same, and little of it is in the host's memory at a time."""

from __future__ import annotations

import gc
import itertools
import threading
import types
from pathlib import Path
from typing import Any

import penstock
import pytest
import torch
from penstock._torch import tensors as torch_tensors
from penstock.flashpack import assign_from_file, pack_to_file
from remote_tensors import HOST, PAGE, Host, Remote

BLOCK = 2**16


class Broken(Remote):
    """One whose device fails after a while."""

    problem: Exception = RuntimeError("the device fell over\nand more about it")

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if function is torch.ops.aten.copy_.default and HOST.copies > 2:
            raise type(cls.problem)(*cls.problem.args)  # a new one: an exception keeps the frames it went through
        return super().__torch_dispatch__(function, types, arguments, keywords)


class SilentError(Exception):
    """One that can't say what it is."""

    def __str__(self) -> str:
        raise ValueError("nothing to say")


class Wrapper(Remote):
    """As torch's distributed tensors: it says what it is made of, and has nothing of its own."""

    def __tensor_flatten__(self) -> Any:
        return ["local"], None


class Unconvertible(Remote):
    """One whose device has no such conversion."""

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if function is torch.ops.aten.copy_.default:
            raise NotImplementedError("no such kernel")
        return super().__torch_dispatch__(function, types, arguments, keywords)


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    HOST.__init__()  # type: ignore[misc]
    monkeypatch.setenv("PENSTOCK_BLOCK_SIZE", str(BLOCK))
    return HOST


def make_state() -> dict[str, torch.Tensor]:
    """Several pieces of some, tiny and empty ones, names that JSON escapes, views."""
    torch.manual_seed(3)
    return {
        "large": torch.randn(300, 400),
        'odd\n"é\x01': torch.randn(1001),
        "half": torch.randn(70_001).half(),
        "turned": torch.randn(200, 300).t(),
        "counter": torch.tensor(12345),
        "flags": torch.rand(33) > 0.5,
        "complex": torch.randn(9, dtype=torch.complex64).conj(),
        "empty": torch.empty(0, 4),
        "last": torch.empty(0, dtype=torch.bool),
    }


FELL_OVER = "^x: a tensor of torch.float32 on the xla device can't be read: the device fell over"


def remote(state: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: Remote(tensor.resolve_conj()) for name, tensor in state.items()}


@pytest.mark.parametrize("align_large", [True, False])
@pytest.mark.parametrize("align_bytes", [0, 1, 96, 128, 4096])
def test_the_file_is_the_one_that_the_engine_writes(tmp_path: Path, align_bytes: int, align_large: bool) -> None:
    state = make_state()
    options: dict[str, Any] = {"align_bytes": align_bytes, "align_large": align_large}
    pack_to_file(state, tmp_path / "local", **options)
    pack_to_file(remote(state), tmp_path / "remote", **options)
    assert HOST.copies > 0
    assert (tmp_path / "remote").read_bytes() == (tmp_path / "local").read_bytes()


@pytest.mark.parametrize("target", [torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int16])
@pytest.mark.parametrize("name_order", [None, ["half", "counter", "nothing", "large"]])
def test_types_are_converted_as_the_engine_does(
    tmp_path: Path, target: torch.dtype, name_order: list[str] | None
) -> None:
    state = make_state()
    del state["complex"]
    pack_to_file(state, tmp_path / "local", target, name_order)
    pack_to_file(remote(state), tmp_path / "remote", target, name_order)
    assert (tmp_path / "remote").read_bytes() == (tmp_path / "local").read_bytes()


def test_only_pieces_are_in_the_hosts_memory_at_a_time(tmp_path: Path) -> None:
    state = remote({**make_state(), "huge": torch.zeros(2**25, dtype=torch.uint8)})
    pack_to_file(state, tmp_path / "remote")
    whole = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    assert HOST.nbytes == whole  # every byte came once
    assert HOST.copies > whole // BLOCK
    assert 0 < HOST.most <= BLOCK
    assert len(HOST.pages) * PAGE <= whole // 8


def test_what_is_local_is_not_copied(tmp_path: Path) -> None:
    state = make_state()
    mixed: dict[str, Any] = {**state, "half": Remote(state["half"])}
    pack_to_file(state, tmp_path / "local")
    pack_to_file(mixed, tmp_path / "mixed")
    assert HOST.copies == 3
    assert (tmp_path / "mixed").read_bytes() == (tmp_path / "local").read_bytes()


def test_a_module_comes_back(tmp_path: Path) -> None:
    model, other = torch.nn.Linear(100, 200), torch.nn.Linear(100, 200)
    pack_to_file(remote(model.state_dict()), tmp_path / "remote")
    assign_from_file(other, tmp_path / "remote")
    assert torch.equal(other.weight, model.weight)


def test_an_error_or_a_stop_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "model.flashpack"
    path.write_bytes(b"old")
    with pytest.raises(penstock.CancelledError, match="^cancelled$"):
        pack_to_file(remote(make_state()), path, progress=lambda done, total: done < total // 2)
    with pytest.raises(penstock.ArgumentError, match="nothing to store"):
        pack_to_file(remote({"empty": torch.empty(0)}), path)
    with pytest.raises(penstock.IoError, match=f"{FELL_OVER}$"):
        pack_to_file({"x": Broken(torch.zeros(2**20))}, path)
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["model.flashpack"]


def test_what_no_file_holds_is_refused_by_name(tmp_path: Path) -> None:
    state: dict[str, Any] = {**remote(make_state()), "nowhere": torch.empty(3, device="meta")}
    with pytest.raises(penstock.UnsupportedError, match="nowhere: a tensor on the meta device has no data"):
        pack_to_file(state, tmp_path / "model.flashpack")


@pytest.mark.parametrize("format", ["safetensors", "flashpack"])
@pytest.mark.parametrize("snapshot", [True, False])
@pytest.mark.parametrize("options", [{}, {"dtype": "bfloat16"}, {"checksums": True}])
def test_every_way_of_saving_writes_the_same(tmp_path: Path, format: str, snapshot: bool, options: Any) -> None:
    state = make_state()
    if format == "safetensors":
        del state["complex"]
    penstock.save(state, tmp_path / "local", format=format, **options)
    penstock.save(remote(state), tmp_path / "remote", format=format, **options)
    assert HOST.copies > 0
    job = penstock.save_async(remote(state), tmp_path / "background", format=format, snapshot=snapshot, **options)
    job.wait()
    expected = (tmp_path / "local").read_bytes()
    assert (tmp_path / "remote").read_bytes() == expected
    assert (tmp_path / "background").read_bytes() == expected


def test_shards_are_the_same(tmp_path: Path) -> None:
    state = {f"t{i}": torch.randn(100, 300 + i) for i in range(8)}
    for folder, tensors in (("local", state), ("remote", remote(state))):
        (tmp_path / folder).mkdir()
        penstock.save(tensors, tmp_path / folder / "model.safetensors", max_shard_size=300_000)
    names = sorted(each.name for each in (tmp_path / "local").iterdir())
    assert len(names) > 3
    for name in names:
        assert (tmp_path / "remote" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()


@pytest.mark.parametrize("snapshot", [True, False])
@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (RuntimeError("the device fell over\nand more about it"), f"^IoError: {FELL_OVER[1:]}$"),
        (ValueError("the library\nis strange"), "^ValueError: the library$"),
        (ValueError("\udcff"), r"^ValueError: \?$"),
        (SilentError(), "^SilentError$"),
    ],
)
def test_what_fails_behind_a_save_is_told_by_it(
    tmp_path: Path, snapshot: bool, problem: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Broken, "problem", problem)
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"old")
    job = penstock.save_async({"x": Broken(torch.zeros(2**23))}, path, snapshot=snapshot)
    for _ in range(2):
        with pytest.raises(penstock.IoError, match=message):
            job.wait()
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["model.safetensors"]


def test_what_another_library_raises_arrives_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broken, "problem", SilentError())
    with pytest.raises(SilentError):
        penstock.save({"x": Broken(torch.zeros(2**23))}, tmp_path / "model.safetensors")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("fails", [True, False])
def test_a_job_that_is_over_keeps_no_tensors(tmp_path: Path, fails: bool) -> None:
    tensor = (Broken if fails else Remote)(torch.zeros(2**20))
    job = penstock.save_async({"x": tensor}, tmp_path / "model.safetensors", snapshot=False)
    if fails:
        with pytest.raises(penstock.IoError):
            job.wait()
    else:
        job.wait()
    del tensor
    gc.collect()
    assert len(HOST.made) > 1
    assert [made() for made in HOST.made] == [None] * len(HOST.made)


@pytest.mark.parametrize("target", [None, torch.float16])
def test_what_the_caller_has_queued_is_done_before_anything_is_read(
    tmp_path: Path, target: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's threads have streams of their own, which would not wait for the caller's."""
    waited = []

    class Stream:
        def synchronize(self) -> None:
            waited.append((threading.current_thread(), HOST.copies))

    device = types.SimpleNamespace(current_stream=lambda device: Stream())
    monkeypatch.setattr(torch, "xla", device, raising=False)
    pack_to_file({"x": Remote(torch.ones(100))}, tmp_path / "model.flashpack", target)
    assert waited == [(threading.current_thread(), 0)]
    assert HOST.copies > 0


def test_wrappers_are_refused(tmp_path: Path) -> None:
    state = {"x": Wrapper(torch.ones(3, dtype=torch.float32))}
    with pytest.raises(penstock.UnsupportedError, match="^x: a Wrapper has no memory of its own$"):
        penstock.save(state, tmp_path / "model.safetensors")
    with pytest.raises(penstock.ArgumentError, match="^x: .*can't be converted to torch.float16$"):
        pack_to_file(state, tmp_path / "model.flashpack", torch.float16)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_any_elements_of_any_view_come_in_order(order: tuple[int, ...]) -> None:
    tensor = torch.arange(2 * 3 * 4).reshape(2, 3, 4).permute(order)
    flat = tensor.reshape(-1)
    for begin, end in itertools.combinations(range(25), 2):
        assert torch.equal(torch_tensors._elements(tensor, begin, end - begin), flat[begin:end])


def test_what_can_not_be_converted_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        penstock.ArgumentError,
        match=r"^x: a tensor of torch.int8 on the xla device can't be converted to torch.float16$",
    ):
        pack_to_file({"x": Unconvertible(torch.zeros(8, dtype=torch.int8))}, tmp_path / "model.flashpack", torch.half)
    assert not any(tmp_path.iterdir())
