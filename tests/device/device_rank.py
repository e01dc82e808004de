"""One rank of the tests of saves and loads by several ranks, each with its state on a simulated device."""

from __future__ import annotations

import sys
from pathlib import Path

_TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(_TESTS / "sim" / "torch"), str(_TESTS / "python")]

import sim_device  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from device_states import assert_there, make_state, to_device  # noqa: E402
from penstock import load, save_parallel  # noqa: E402
from penstock.fastpersist import CheckpointEngine  # noqa: E402
from penstock.flashpack import iterate_from_flash_tensor  # noqa: E402
from penstock.flashpack.deserialization import read_flashpack_file_distributed  # noqa: E402

SUFFIXES = ("safetensors", "flashpack", "pt")
TIMEOUT_SECONDS = 60


def main(rank: int, world: int, directory: Path) -> None:
    sim = sim_device.start()
    dist.init_process_group("gloo", rank=rank, world_size=world)
    device = f"sim:{rank}"
    state = make_state()
    there = to_device(state, device)
    with sim.watched() as counters:
        for suffix in SUFFIXES:
            save_parallel(there, directory / f"model.{suffix}", timeout=TIMEOUT_SECONDS)
    fetched = torch.tensor(counters.bytes_to_host, dtype=torch.int64)
    assert fetched > 0
    dist.all_reduce(fetched)
    payload = sum(tensor.nbytes for tensor in state.values()) * len(SUFFIXES)
    assert payload <= fetched <= payload + 65536, (payload, fetched)  # no rank fetches what another writes
    with sim.watched():
        assert_there(sim, load(directory / "model.safetensors", device), state, device)
    storage, metadata = read_flashpack_file_distributed(str(directory / "model.flashpack"), device)
    views = dict(iterate_from_flash_tensor(storage, metadata))
    assert all(torch.equal(views[name].cpu(), tensor) for name, tensor in state.items() if tensor.nbytes > 0)
    assert views["large"].device == torch.device(device)
    save_in_background(sim, there, directory / "decoupled.pt")
    assert sim.violations() == []
    dist.barrier()
    dist.destroy_process_group()


def save_in_background(sim: sim_device.Simulator, there: dict[str, torch.Tensor], path: Path) -> None:
    """The tensors change as soon as the save has its copies."""
    writer = {"decoupled": True, "data_parallel": "replica"}
    engine = CheckpointEngine({"checkpoint": {"writer": writer}}, timeout=TIMEOUT_SECONDS)
    with sim.watched():
        engine.save(there, path)
        for tensor in there.values():
            sim.fill_late(tensor, 255, 0) if tensor.nbytes > 0 else None
        engine.commit(None)
        torch.accelerator.synchronize(there["large"].device)
    engine.cleanup()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
