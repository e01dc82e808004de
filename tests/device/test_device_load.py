"""Loads to a device: every format and option gives the bytes of the file, by pinned memory, in the caller's order."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import penstock
import pytest
import torch
from device_states import SUFFIXES, assert_there, bytes_here, bytes_there, make_state, save_state, write_narrow
from penstock import _core
from penstock._options import load_options, open_reader
from penstock._torch import landing
from sim_device import Simulator

formats = pytest.mark.parametrize("suffix", SUFFIXES)


@formats
@pytest.mark.parametrize("cache", ["auto", "copy", "direct", "buffered"])
def test_a_load_gives_every_byte(sim: Simulator, tmp_path: Path, suffix: str, cache: str) -> None:
    state = make_state()
    path = save_state(tmp_path, suffix, state)
    stats = penstock.Stats()
    contexts = sim.counters().contexts_made[1]
    with sim.watched() as counters:
        loaded = penstock.load(path, "sim", cache=cache, stats=stats)
    assert_there(sim, loaded, state)
    assert stats["device"] == "cuda:0 (Simulated Accelerator)"
    assert stats["pinning"] == "registered"
    payload = sum(tensor.nbytes for tensor in state.values())
    assert payload <= counters.bytes_to_device <= payload + 65536
    assert counters.contexts_made[1] == contexts


@formats
def test_what_the_page_cache_holds_goes_through_pinned_memory_too(sim: Simulator, tmp_path: Path, suffix: str) -> None:
    state = make_state()
    path = save_state(tmp_path, suffix, state)
    path.read_bytes()
    stats: dict[str, Any] = {}
    with sim.watched():
        loaded = penstock.load(path, "sim", stats=stats)
    assert_there(sim, loaded, state)
    assert stats["bytes_buffered"] > 0
    assert stats["bytes_mapped"] == 0


def test_the_models_bytes_are_never_all_in_the_hosts_memory(sim: Simulator, tmp_path: Path) -> None:
    path = save_state(tmp_path, "safetensors", {"x": torch.ones(2**26)})  # 256 MiB
    pool = penstock.MemoryPool()
    with sim.watched():
        loaded = penstock.load(path, "sim", pool=pool, cache="direct")
    assert pool.used_bytes == pool.kept_bytes == 0
    assert sim.allocated() < 2**28 + 2**20
    del loaded


@formats
def test_selected_tensors_take_the_memory_that_they_need(sim: Simulator, tmp_path: Path, suffix: str) -> None:
    state = make_state()
    path = save_state(tmp_path, suffix, state)
    with sim.watched():
        loaded = penstock.load(path, "sim", select=["half", "f*"], rename=penstock.add_prefix("model."))
    assert_there(sim, loaded, {f"model.{name}": state[name] for name in ("half", "fp8", "flags")})
    assert sim.allocated() < 200_000


@formats
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_types_are_converted_on_the_way(sim: Simulator, tmp_path: Path, suffix: str, dtype: torch.dtype) -> None:
    path = save_state(tmp_path, suffix, make_state())
    with sim.watched():
        loaded = penstock.load(path, "sim", dtype=dtype)
    assert_there(sim, loaded, penstock.load(path, dtype=dtype))


@formats
def test_checksums_are_checked_as_bytes_land(sim: Simulator, tmp_path: Path, suffix: str) -> None:
    state = make_state()
    path = save_state(tmp_path, suffix, state, **({} if suffix == "pt" else {"checksums": True}))
    with sim.watched():
        assert_there(sim, penstock.load(path, "sim", verify=True), state)
    data = bytearray(path.read_bytes())
    place = bytes(data).index(bytes_here(state["large"])[:64])
    data[place] ^= 1
    path.write_bytes(data)
    with sim.watched(), pytest.raises(penstock.FormatError, match="checksum|CRC-32"):
        penstock.load(path, "sim", verify=True)


@formats
@pytest.mark.parametrize("max_buffer", [1, 100_000, "256MiB"])
def test_a_stream_gives_every_byte(sim: Simulator, tmp_path: Path, suffix: str, max_buffer: int | str) -> None:
    state = make_state()
    path = save_state(tmp_path, suffix, state)
    with sim.watched():
        loaded = dict(penstock.stream(path, "sim:1", max_buffer=max_buffer))
    assert_there(sim, loaded, state, "sim:1")


def test_a_stream_gives_memory_back_as_it_goes(sim: Simulator, tmp_path: Path) -> None:
    path = save_state(tmp_path, "safetensors", {f"x{i}": torch.full((2**20,), i) for i in range(16)})
    sim.empty_cache()
    sim.clear_counters()
    with sim.watched():
        for name, tensor in penstock.stream(path, "sim", max_buffer="16MiB"):
            assert bytes_there(sim, tensor)[:8] == int(name[1:]).to_bytes(8, "little")
            del tensor
    assert sim.counters().device_bytes_peak < 48 << 20  # of 128 MiB


def test_a_stream_that_is_closed_leaves_nothing(sim: Simulator, tmp_path: Path) -> None:
    path = save_state(tmp_path, "safetensors", {f"x{i}": torch.full((2**19,), i) for i in range(16)})
    with sim.watched():
        stream = penstock.stream(path, "sim")
        next(stream)
        stream.close()  # type: ignore[attr-defined]
    assert sim.allocated() == 0


def test_shards_are_loaded_as_one(sim: Simulator, tmp_path: Path) -> None:
    state = make_state()
    folder = tmp_path / "shards"
    folder.mkdir()
    penstock.save(state, folder / "model.safetensors", max_shard_size="300kB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    with sim.watched():
        loaded = penstock.load(folder, "sim:0")
    assert_there(sim, loaded, state)


def test_twenty_thousand_tiny_tensors(sim: Simulator, tmp_path: Path) -> None:
    state = {f"layer.{i}": torch.full((3,), i, dtype=torch.int32) for i in range(20_000)}
    path = save_state(tmp_path, "safetensors", state)
    with sim.watched() as counters:
        loaded = penstock.load(path, "sim")
    assert counters.copies_to_device < 100  # runs of bytes, not tensors
    for i in (0, 1, 9_999, 19_999):
        assert bytes_there(sim, loaded[f"layer.{i}"]) == bytes_here(state[f"layer.{i}"])
    whole = torch.cat([loaded[name] for name in state]).cpu()
    assert torch.equal(whole, torch.cat(list(state.values())))


def test_types_narrower_than_a_byte(sim: Simulator, tmp_path: Path) -> None:
    path = tmp_path / "narrow.safetensors"
    expected = write_narrow(path)
    with sim.watched():
        loaded = penstock.load(path, "sim")
    assert (loaded["f4"].dtype, loaded["f4"].shape) == (torch.float4_e2m1fn_x2, (64, 64))
    assert bytes_there(sim, loaded["f4"]) == expected["f4"]
    assert (loaded["f6"].dtype, loaded["f6"].shape) == ("F6_E2M3", (400,))
    assert loaded["f6"].data.device == torch.device("sim:0")
    assert bytes_there(sim, loaded["f6"].data) == expected["f6"]


def test_a_file_without_bytes(sim: Simulator, tmp_path: Path) -> None:
    state = {"a": torch.empty(0), "b": torch.empty(3, 0, dtype=torch.int8)}
    for suffix in ("safetensors", "pt"):
        path = save_state(tmp_path, suffix, state)
        with sim.watched():
            assert_there(sim, penstock.load(path, "sim"), state)


def test_tensors_outlive_each_other_and_give_their_memory_back_with_the_last(sim: Simulator, tmp_path: Path) -> None:
    state = make_state()
    path = save_state(tmp_path, "safetensors", state)
    loaded = penstock.load(path, "sim")
    kept = loaded["counter"]
    del loaded
    assert bytes_there(sim, kept) == bytes_here(state["counter"])
    assert sim.allocated() > 5_000_000  # one piece for all
    del kept
    assert sim.allocated() == 0


def test_two_threads_load_to_two_devices_at_once(sim: Simulator, tmp_path: Path) -> None:
    states = {device: make_state(device) for device in (0, 1)}
    paths = {}
    for device, state in states.items():
        (tmp_path / str(device)).mkdir()
        paths[device] = save_state(tmp_path / str(device), "safetensors", state)
    loaded: dict[int, Any] = {}

    def load(device: int) -> None:
        for _ in range(3):
            loaded[device] = penstock.load(paths[device], f"sim:{device}", cache="direct")

    with sim.watched():
        threads = [threading.Thread(target=load, args=(device,)) for device in states]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for device, state in states.items():
        assert_there(sim, loaded[device], state, f"sim:{device}")


@pytest.mark.parametrize("own_stream", [False, True], ids=["the default stream", "a stream of the caller's"])
@pytest.mark.parametrize("how", ["load", "stream", "tree"])
def test_work_that_the_caller_has_queued_comes_first(
    sim: Simulator, tmp_path: Path, own_stream: bool, how: str
) -> None:
    """torch gives out memory that a slow kernel is still to write to."""
    state = {"x": torch.arange(2**18, dtype=torch.int32)}
    path = save_state(tmp_path, "pt" if how == "tree" else "safetensors", state)
    stream = torch.Stream("sim:0") if own_stream else torch.accelerator.current_stream("sim:0")
    with stream:
        old = torch.empty(state["x"].nbytes + 16384, dtype=torch.uint8, device="sim")
        address = old.data_ptr()
        sim.fill_late(old, 255, 100)
        del old
        with sim.watched():
            loaded = dict(penstock.stream(path, "sim")) if how == "stream" else penstock.load(path, "sim")
    assert address <= loaded["x"].data_ptr() < address + 16384  # else this test shows nothing
    assert_there(sim, loaded, state)


def test_without_that_wait_the_bytes_would_be_wrong(sim: Simulator, tmp_path: Path) -> None:
    """What the test above relies on: a planted mistake, an allocator that does not name the stream."""
    state = {"x": torch.arange(2**18, dtype=torch.int32)}
    path = save_state(tmp_path, "safetensors", state)
    old = torch.empty(state["x"].nbytes + 16384, dtype=torch.uint8, device="sim")
    sim.fill_late(old, 255, 200)
    del old

    def give(nbytes: int) -> tuple[int, Any, int, int | None]:
        memory = torch.empty(nbytes, dtype=torch.uint8, device="sim")
        return memory.data_ptr(), memory, 0, None

    place = landing(torch.device("sim"))
    allocator = _core.Allocator(give, (12, 0))
    loaded, _ = open_reader(path).load(None, load_options(), None, place.build, allocator)
    torch.accelerator.synchronize()
    assert bytes_there(sim, loaded["x"]) == b"\xff" * state["x"].nbytes


@pytest.mark.parametrize("device", ["cpu:0", torch.device("cpu", 0), torch.device("cpu"), None])
def test_the_host_is_no_device(sim: Simulator, tmp_path: Path, device: Any) -> None:
    path = save_state(tmp_path, "safetensors", {"x": torch.ones(3)})
    loaded = penstock.load(path, device)
    assert loaded["x"].device.type == "cpu"
    assert sim.counters().copies_to_device == 0


def test_a_device_is_named_as_torch_does(tmp_path: Path) -> None:
    path = save_state(tmp_path, "safetensors", {"x": torch.ones(3)})
    for device, found in {"sim": "sim:0", "sim:1": "sim:1", torch.device("sim", 1): "sim:1"}.items():
        assert penstock.load(path, device)["x"].device == torch.device(found)


def test_the_current_device_stays_what_it_is(sim: Simulator, tmp_path: Path) -> None:
    path = save_state(tmp_path, "safetensors", {"x": torch.ones(3)})
    with torch.accelerator.device_index(1):
        penstock.load(path, "sim:0")
        assert torch.accelerator.current_device_index() == 1
        assert penstock.load(path, "sim")["x"].device == torch.device("sim:1")


def test_progress_is_told_and_may_stop_the_load(sim: Simulator, tmp_path: Path) -> None:
    path = save_state(tmp_path, "safetensors", make_state())
    calls: list[tuple[int, int]] = []
    penstock.load(path, "sim", progress=lambda done, total: calls.append((done, total)))
    assert calls[-1][0] == calls[-1][1] > 0
    with sim.watched(), pytest.raises(penstock.CancelledError):
        penstock.load(path, "sim", progress=lambda done, total: False)
    assert sim.allocated() == 0


def test_unified_memory_is_read_into_in_place(sim: Simulator, tmp_path: Path) -> None:
    sim.set(unified=1)
    state = make_state()
    path = save_state(tmp_path, "safetensors", state)
    with sim.watched() as counters:
        loaded = penstock.load(path, "sim", cache="direct")
    assert (counters.copies_to_device, counters.bytes_to_device) == (0, 0)
    assert counters.managed_bytes > 5_000_000
    assert sim.allocated() == 0  # of torch's
    assert_there(sim, loaded, state)
    del loaded


def test_numpy_has_no_devices(tmp_path: Path) -> None:
    path = save_state(tmp_path, "safetensors", {"x": torch.ones(3)})
    with pytest.raises(penstock.ArgumentError, match="^NumPy arrays can't be moved to 'sim'$"):
        penstock.load(path, "sim", framework="numpy")
    assert isinstance(penstock.load(path, framework="numpy")["x"], np.ndarray)


def test_a_device_that_is_not_there_says_what_there_is(tmp_path: Path) -> None:
    path = save_state(tmp_path, "safetensors", {"x": torch.ones(3)})
    for load in (penstock.load, penstock.stream):
        with pytest.raises(
            penstock.UnsupportedError, match="^the device 'sim:7' can't be used: there are sim:0 to sim:1$"
        ):
            load(path, "sim:7")


def test_a_torch_without_cuda_says_so(tmp_path: Path) -> None:
    path = save_state(tmp_path, "safetensors", {"x": torch.ones(3)})
    with pytest.raises(
        penstock.UnsupportedError, match="^the device 'cuda:0' can't be used: Torch not compiled with CUDA"
    ):
        penstock.load(path, "cuda:0")


def test_what_is_mapped_is_the_hosts(tmp_path: Path) -> None:
    path = save_state(tmp_path, "safetensors", {"x": torch.ones(3)})
    for load in (penstock.load, penstock.stream):
        with pytest.raises(penstock.ArgumentError, match='^cache="mmap" is for the memory of the host, and not for'):
            load(path, "sim", cache="mmap")


def test_memory_of_a_device_is_no_buffer(tmp_path: Path) -> None:
    path = save_state(tmp_path, "safetensors", {"x": torch.ones(3)})
    place = landing(torch.device("sim"))
    memories: list[Any] = []
    open_reader(path).load(None, load_options(), None, lambda given, rows: memories.extend(given), place.allocator)
    with pytest.raises(BufferError, match="^the memory is on a device, where the host can't reach it$"):
        memoryview(memories[0])
