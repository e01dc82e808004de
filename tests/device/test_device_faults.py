"""What goes wrong with devices: a line that names the device and the call, nothing left behind, the next one works."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock
import penstock.safetensors.torch
import pytest
import torch
from device_states import assert_there, bytes_here, bytes_there, make_state, save_state, to_device, zeros_like
from helpers import run_python
from penstock.fastpersist.serialization import load as fast_load
from penstock.flashpack import assign_from_file, pack_to_file
from sim_device import DEVICE_MEMORY, EVENTS, STREAMS, Simulator

ILLEGAL_ADDRESS = 700  # as after a kernel that failed
DEVICE = r"cuda:0 \(Simulated Accelerator\): "

Load = Callable[[Path, str], Any]

LOADS: dict[str, tuple[str, Load]] = {
    "load": ("safetensors", penstock.load),
    "stream": ("safetensors", lambda path, device: dict(penstock.stream(path, device))),
    "into": ("safetensors", lambda path, device: penstock.load_into(zeros_like(make_state(), device), path)),
    "flashpack": ("flashpack", penstock.load),
    "tree": ("pt", penstock.load),
    "drop-in of torch": ("pt", fast_load),
    "drop-in of safetensors": ("safetensors", penstock.safetensors.torch.load_file),
}
loads = pytest.mark.parametrize(("suffix", "load"), LOADS.values(), ids=LOADS)


def assert_one_line(problem: BaseException) -> None:
    assert "\n" not in str(problem)


@loads
@pytest.mark.parametrize("call", ["cuMemcpyHtoDAsync", "cuEventRecord", "cuEventQuery"])
@pytest.mark.parametrize("number", ["1", "3"], ids=["the first", "the third"])
def test_a_load_that_fails_leaves_nothing(
    sim: Simulator, tmp_path: Path, suffix: str, load: Load, call: str, number: str
) -> None:
    path = save_state(tmp_path, suffix, make_state())
    load(path, "sim")
    sim.empty_cache()
    before = sim.counters()
    sim.fail(f"{call}_v2:{number}:{ILLEGAL_ADDRESS}" if "Memcpy" in call else f"{call}:{number}+:{ILLEGAL_ADDRESS}")
    with pytest.raises(penstock.DeviceError, match=rf"^{DEVICE}{call} failed: CUDA_ERROR_ILLEGAL_ADDRESS") as caught:
        load(path, "sim")
    assert_one_line(caught.value)
    sim.fail("")
    del caught
    sim.empty_cache()
    after = sim.counters()
    assert sim.allocated() == 0
    assert (after.streams, after.events, after.copies_queued) == (before.streams, before.events, 0)
    assert sim.leaks(DEVICE_MEMORY) == []
    load(path, "sim")


def test_a_load_after_one_that_failed_has_every_byte(sim: Simulator, tmp_path: Path) -> None:
    state = make_state()
    path = save_state(tmp_path, "safetensors", state)
    for number in range(1, 6):
        sim.fail(f"cuMemcpyHtoDAsync_v2:{number}:{ILLEGAL_ADDRESS}")
        with pytest.raises(penstock.DeviceError):
            penstock.load(path, "sim", block_size="64KiB")
        sim.fail("")
        assert_there(sim, penstock.load(path, "sim"), state)


@pytest.mark.parametrize("snapshot", [None, True, "device"], ids=["at once", "by the host", "by the device"])
@pytest.mark.parametrize("suffix", ["safetensors", "flashpack", "pt"])
def test_a_save_that_fails_leaves_the_old_file(
    sim: Simulator, tmp_path: Path, suffix: str, snapshot: bool | str | None
) -> None:
    path = tmp_path / f"model.{suffix}"
    path.write_bytes(b"old")
    there = to_device(make_state())
    before = sim.counters()
    sim.fail(f"cuMemcpyDtoHAsync_v2:2:{ILLEGAL_ADDRESS}")
    with pytest.raises(penstock.DeviceError, match=rf"{DEVICE}cuMemcpyDtoHAsync failed") as caught:
        if snapshot is None:
            penstock.save(there, path)
        else:
            penstock.save_async(there, path, snapshot=snapshot).wait()
    assert_one_line(caught.value)
    sim.fail("")
    del caught  # its frames hold the writer
    gc.collect()
    after = sim.counters()
    assert (after.streams, after.events, after.copies_queued) == (before.streams, before.events, 0)
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_snapshot_that_fails_is_told_by_staged(sim: Simulator, tmp_path: Path) -> None:
    there = to_device(make_state())
    sim.fail(f"cuMemcpyDtoDAsync_v2:1:{ILLEGAL_ADDRESS}")
    job = penstock.save_async(there, tmp_path / "model.safetensors", snapshot="device")
    with pytest.raises(penstock.DeviceError, match=f"{DEVICE}cuMemcpyDtoDAsync failed"):
        job.staged()
    assert list(tmp_path.iterdir()) == []


UNPINNED = """
    import sys
    sys.path[:0] = sys.argv[2:]
    import penstock, sim_device
    sim = sim_device.start()
    sim.fail("cuMemHostRegister_v2:1+:801", "cuMemHostAlloc:1+:2")
    stats = {}
    loaded = penstock.load(sys.argv[1], "sim", stats=stats)
    print(stats["pinning"])
    print(bytes(loaded["bytes"].cpu().tolist()) == bytes(range(251)))
"""


def test_memory_that_can_not_be_pinned_is_used_with_a_reason(tmp_path: Path) -> None:
    """In a process of its own: pinned memory is kept."""
    path = save_state(tmp_path, "safetensors", make_state())
    pinning, same = run_python(UNPINNED, str(path), *sys.path[:2]).stdout.splitlines()
    assert pinning.startswith("unpinned: ")
    assert pinning.endswith("cuMemHostRegister failed: CUDA_ERROR_NOT_SUPPORTED: operation not supported")
    assert same == "True"


def test_running_out_of_memory_is_torchs_error(sim: Simulator, tmp_path: Path) -> None:
    path = save_state(tmp_path, "safetensors", make_state())
    sim.empty_cache()
    for load in (penstock.load, lambda path, device: dict(penstock.stream(path, device))):
        sim.fail("cuMemAlloc_v2:2+:2")
        with pytest.raises(torch.OutOfMemoryError, match=r"^sim:0 out of memory. Tried to allocate \d+ bytes$"):
            load(path, "sim")
        sim.fail("")
        sim.empty_cache()
        assert sim.allocated() == 0


MISSING: dict[str, tuple[str, str]] = {
    "a device too many": ("sim:2", "there are sim:0 to sim:1"),
    "a torch without CUDA": ("cuda", "Torch not compiled with CUDA enabled"),
    "a torch without the module": ("hpu", "No module named 'torch.hpu'"),
    "a torch without MPS": ("mps", "Could not run 'aten::empty.memory_format' with arguments from the 'MPS' backend"),
}


@pytest.mark.parametrize(("device", "reason"), MISSING.values(), ids=MISSING)
@pytest.mark.parametrize("suffix", ["safetensors", "flashpack", "pt"])
def test_a_device_that_is_not_there(tmp_path: Path, device: str, reason: str, suffix: str) -> None:
    path = save_state(tmp_path, suffix, make_state())
    for load in (penstock.load, penstock.stream):
        with pytest.raises(penstock.UnsupportedError) as caught:
            load(path, device)
        assert str(caught.value) == f"the device {device!r} can't be used: {reason}"


@pytest.mark.parametrize("device", ["sim:2", "cuda"])
def test_a_device_that_is_not_there_of_the_drop_ins(tmp_path: Path, device: str) -> None:
    model = torch.nn.Linear(3, 4)
    pack_to_file(model, tmp_path / "model.flashpack")
    path = save_state(tmp_path, "safetensors", make_state())
    message = f"^the device '{device}' can't be used: "
    with pytest.raises(penstock.UnsupportedError, match=message):
        assign_from_file(model, tmp_path / "model.flashpack", device=device)
    with pytest.raises(penstock.UnsupportedError, match=message):
        penstock.safetensors.torch.load_file(path, device)
    with (
        penstock.safetensors.safe_open(path, "pt") as file,
        pytest.raises(penstock.UnsupportedError, match=message),
    ):
        file.prefetch(device=device)
    with pytest.raises(RuntimeError, match="^Attempting to deserialize object on "):  # in torch's own words
        fast_load(save_state(tmp_path, "pt", make_state()), device)


@pytest.mark.parametrize(
    "device", ["nonsense", "", "sim:-1", "sim:x", "sim:256", "sim:99999", 256, -1, True, 1.5], ids=str
)
def test_what_is_no_device(tmp_path: Path, device: Any) -> None:
    path = save_state(tmp_path, "safetensors", {"x": torch.ones(3)})
    with pytest.raises(penstock.ArgumentError, match="is not a device$"):
        penstock.load(path, device)


@pytest.mark.parametrize("suffix", ["safetensors", "flashpack", "pt"])
def test_the_meta_device_has_shapes_and_no_memory(sim: Simulator, tmp_path: Path, suffix: str) -> None:
    state = make_state()
    path = save_state(tmp_path, suffix, state)
    for loaded in (penstock.load(path, "meta"), dict(penstock.stream(path, "meta"))):
        assert {name: (tensor.device.type, tensor.dtype, tensor.shape) for name, tensor in loaded.items()} == {
            name: ("meta", tensor.dtype, tensor.shape) for name, tensor in state.items()
        }
    assert sim.counters().copies_to_device == 0


@pytest.mark.parametrize("suffix", ["safetensors", "flashpack"])
def test_tensors_without_data_are_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"model.{suffix}"
    state = {"a": torch.ones(3, device="sim"), "x": torch.ones(3, device="meta")}
    with pytest.raises(penstock.UnsupportedError, match="^[^\n]*on the meta device has no data$"):
        penstock.save(state, path)
    with pytest.raises(penstock.UnsupportedError, match="^[^\n]*on the meta device has no data$"):
        penstock.save_async(state, path, snapshot="device")
    assert not path.exists()


@pytest.mark.parametrize("device", ["cpu", "sim"])
@pytest.mark.parametrize("left", [0, 400], ids=["nothing", "a part"])
@pytest.mark.parametrize("suffix", ["safetensors", "flashpack", "pt"])
def test_tensors_whose_memory_was_given_back_are_refused(tmp_path: Path, device: str, left: int, suffix: str) -> None:
    path = save_state(tmp_path, suffix, {"x": torch.arange(990.0)})
    before = path.read_bytes()
    lost = torch.ones(1000, device=device)[10:]
    lost.untyped_storage().resize_(left)
    problem = f"needs a storage of 4000 bytes and has one of {left}"
    for save in (penstock.save, penstock.save_async):
        with pytest.raises(penstock.UnsupportedError, match=f"a tensor that {problem} can't be saved$"):
            save({"x": lost}, path)
    with pytest.raises(penstock.ArgumentError, match=f": x {problem}, which needs assign=True$"):
        penstock.load_into({"x": lost}, path)
    assert path.read_bytes() == before
    target = {"x": lost}
    penstock.load_into(target, path, assign=True)
    assert torch.equal(target["x"].cpu(), torch.arange(990.0))


def test_torch_files_hold_tensors_without_data(sim: Simulator, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    penstock.save({"a": torch.ones(3, device="sim"), "x": torch.ones(3, device="meta")}, path)
    loaded = penstock.load(path, "sim:1")
    assert loaded["x"].is_meta
    assert bytes_there(sim, loaded["a"]) == bytes_here(torch.ones(3))


def in_a_child(act: Callable[[], Any]) -> str:
    """What comes of it in a child of fork."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            act()
            message = "done"
        except BaseException as problem:
            message = f"{type(problem).__name__}: {problem}"
        os.write(writer, message.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        message = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return message


def test_a_child_of_fork_is_told_that_it_can_not_use_the_parents_memory(sim: Simulator, tmp_path: Path) -> None:
    state = make_state()
    path = save_state(tmp_path, "safetensors", state)
    there = penstock.load(path, "sim")
    target = zeros_like(state)
    for act in (
        lambda: penstock.save(there, tmp_path / "again.safetensors"),
        lambda: penstock.save(there, tmp_path / "again.pt"),
        lambda: penstock.save_async(there, tmp_path / "again.safetensors", snapshot="device").wait(),
        lambda: penstock.load_into(target, path),
    ):
        message = in_a_child(act)
        assert message.startswith("DeviceError: memory of a device can't be used here: in a child of fork()")
        assert "\n" not in message
    assert [each.name for each in tmp_path.iterdir()] == ["model.safetensors"]
    assert bytes_there(sim, target["large"]) == bytes(state["large"].nbytes)


def test_a_child_of_fork_can_not_load_to_the_device_but_to_the_host(sim: Simulator, tmp_path: Path) -> None:
    path = save_state(tmp_path, "safetensors", make_state())
    penstock.load(path, "sim")
    for device in ("sim:0", "sim:1"):
        message = in_a_child(lambda device=device: penstock.load(path, device))
        assert message.startswith((f"UnsupportedError: the device '{device}' can't be used: ", "DeviceError: "))
        assert "\n" not in message
    assert in_a_child(lambda: penstock.load(path)) == "done"
    assert in_a_child(lambda: penstock.save(penstock.load(path), tmp_path / "again.safetensors")) == "done"
    assert sim.leaks(STREAMS | EVENTS) == []
