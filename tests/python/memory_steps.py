"""What a process in a small memory cgroup does with a checkpoint of 2 GiB: python memory_steps.py STEP FOLDER.

Tensors to be saved are mapped: a process that has no memory for them can have them only so.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import penstock
import torch

TENSORS = 64
ELEMENTS = 16 << 20  # of two bytes
NBYTES = TENSORS * ELEMENTS * 2


def make(folder: Path) -> None:
    """One file, and shards of 256 MiB."""
    model = {f"layers.{i}.weight": torch.full((ELEMENTS,), i, dtype=torch.bfloat16) for i in range(TENSORS)}
    penstock.save(model, folder / "model.safetensors")
    (folder / "set").mkdir()
    penstock.save(model, folder / "set" / "model.safetensors", max_shard_size="256MiB")


def is_of_one_value(tensor: torch.Tensor) -> bool:
    """Without a tensor of the comparison's results, which would be half as large."""
    low, high = torch.aminmax(tensor.view(torch.int16))
    return bool(low == high)


def check(tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    seen = 0
    for name, tensor in tensors:
        assert is_of_one_value(tensor), name
        assert tensor[0].item() == int(name.split(".")[1]), name
        seen += tensor.numel()
    assert seen == TENSORS * ELEMENTS


def check_file(path: Path) -> None:
    check(penstock.stream(path))


def mapped(folder: Path) -> dict[str, torch.Tensor]:
    return penstock.load(folder / "model.safetensors", cache="mmap")


def stream(folder: Path) -> None:
    check_file(folder / "model.safetensors")
    check_file(folder / "set")


def stream_direct(folder: Path) -> None:
    check(penstock.stream(folder / "model.safetensors", cache="direct"))


def stream_in_a_budget(folder: Path) -> None:
    check(penstock.stream(folder / "model.safetensors", cache="copy", memory_budget="100MiB"))


def load(folder: Path) -> None:
    try:
        penstock.load(folder / "model.safetensors", cache="copy")
    except penstock.OutOfMemoryError as error:
        print(error)
    else:
        raise AssertionError("2 GiB were loaded")


def load_with_the_other_half_elsewhere(folder: Path) -> None:
    """A part that fits: the rest is not even looked at."""
    some = penstock.load(folder / "model.safetensors", select=["layers.1.*"], cache="copy")
    assert len(some) == 1


def load_mapped(folder: Path) -> None:
    check(mapped(folder).items())


def convert(folder: Path) -> None:
    for name in ("model.flashpack", "model.pt", "again.safetensors"):
        penstock.convert(folder / "model.safetensors", folder / name)
        check_file(folder / name)
        (folder / name).unlink()
    penstock.convert(folder / "set", folder / "one.safetensors", checksums=True)
    assert penstock.verify(folder / "one.safetensors").ok


def verify(folder: Path) -> None:
    penstock.seal(folder / "model.safetensors", sha256=True)
    assert penstock.verify(folder / "model.safetensors").ok
    check(penstock.stream(folder / "model.safetensors", verify=True))


def save(folder: Path) -> None:
    for suffix in ("safetensors", "flashpack", "pt"):
        target = folder / f"saved.{suffix}"
        penstock.save(mapped(folder), target)
        check_file(target)
        target.unlink()
    penstock.save(mapped(folder), folder / "narrow.safetensors", dtype="float8_e4m3fn", max_shard_size="300MB")


def save_async(folder: Path) -> None:
    job = penstock.save_async(mapped(folder), folder / "saved.safetensors")
    job.staged()
    print(job.wait().reason)
    check_file(folder / "saved.safetensors")


def save_of_a_part(folder: Path) -> None:
    """Snapshots that fit one by one, and not together."""
    some = [penstock.load(folder / "model.safetensors", cache="mmap", select=[f"layers.{i}?.*"]) for i in (1, 2, 3, 4)]
    some = [dict(list(each.items())[:4]) for each in some]  # 128 MiB each
    jobs = [penstock.save_async(each, folder / f"{i}.safetensors") for i, each in enumerate(some)]
    assert any("no snapshot" not in job.wait().reason for job in jobs)
    for i, each in enumerate(some):
        saved = penstock.load(folder / f"{i}.safetensors", cache="mmap")
        assert all(torch.equal(saved[name], tensor) for name, tensor in each.items())


def manager(folder: Path) -> None:
    steps = penstock.CheckpointManager(folder / "run", keep=1)
    with steps:
        steps.save_async(1, {"model.safetensors": mapped(folder)})
    check_file(steps.path(1) / "model.safetensors")


def safetensors(folder: Path) -> None:
    from penstock.safetensors import safe_open
    from penstock.safetensors.torch import save_file

    with safe_open(str(folder / "model.safetensors"), framework="pt") as file:
        check((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118
        check((name, file.get_slice(name)[:]) for name in file.keys())  # noqa: SIM118
    save_file(mapped(folder), str(folder / "saved.safetensors"))
    check_file(folder / "saved.safetensors")


def fastsafetensors(folder: Path) -> None:
    from penstock.fastsafetensors import ParallelLoader, SingleGroup

    files = sorted(str(path) for path in (folder / "set").glob("*.safetensors"))
    loader = ParallelLoader(SingleGroup(), files, device="cpu", nogds=True)
    check(loader.iterate_weights())
    loader.close()


def flashpack(folder: Path) -> None:
    from penstock.flashpack import pack_to_file

    pack_to_file(mapped(folder), str(folder / "saved.flashpack"), target_dtype=torch.bfloat16)
    check_file(folder / "saved.flashpack")


def fastpersist(folder: Path) -> None:
    from penstock.fastpersist import fastpersist_save

    fastpersist_save(mapped(folder), str(folder / "saved.pt"))
    check_file(folder / "saved.pt")


def dcp(folder: Path) -> None:
    import penstock.dcp
    import torch.distributed.checkpoint as torch_dcp

    state: dict[str, Any] = mapped(folder)
    torch_dcp.save(state, storage_writer=penstock.dcp.StorageWriter(folder / "dcp"))
    some = {"layers.7.weight": torch.zeros(ELEMENTS, dtype=torch.bfloat16)}
    torch_dcp.load(some, storage_reader=penstock.dcp.StorageReader(folder / "dcp"))
    assert some["layers.7.weight"][-1].item() == 7


def dcp_convert(folder: Path) -> None:
    """To a directory and back, and its chunks checked."""
    import penstock.dcp

    penstock.dcp.convert(folder / "model.safetensors", folder / "step")
    assert penstock.verify(folder / "step").ok
    penstock.dcp.convert(folder / "step", folder / "again.safetensors")
    check_file(folder / "again.safetensors")


def dcp_async(folder: Path) -> None:
    """What has no room for a copy says so, with the numbers, and nothing is killed."""
    import penstock.dcp
    import torch.distributed as dist
    import torch.distributed.checkpoint as torch_dcp

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    state: dict[str, Any] = mapped(folder)
    try:
        torch_dcp.async_save(state, storage_writer=penstock.dcp.StorageWriter(folder / "dcp")).result()
    except penstock.OutOfMemoryError as error:
        print(error)
    else:
        raise AssertionError("2 GiB were copied")


def llama(folder: Path) -> Any:
    """A model of transformers over the mapped file, as large as that."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=1))
    for name in [name for name, _ in model.named_parameters()]:
        owner, _, leaf = name.rpartition(".")
        delattr(model.get_submodule(owner), leaf)
    for number, tensor in enumerate(mapped(folder).values()):
        model.register_parameter(f"p{number}", torch.nn.Parameter(tensor, requires_grad=False))
    return model


def save_pretrained(folder: Path) -> None:
    model = llama(folder)
    with penstock.accelerate():
        model.save_pretrained(folder / "llama", max_shard_size="300MB")
    report = penstock.accelerated()
    assert report.served["transformers.save_pretrained"] == 1
    seen = 0
    for name, tensor in penstock.stream(folder / "llama"):
        assert is_of_one_value(tensor), name
        seen += tensor.numel()
    assert seen == TENSORS * ELEMENTS


def slices_that_are_kept(folder: Path) -> None:
    """All of them at once, as from_pretrained keeps them: what memory has no room for is mapped."""
    from penstock.safetensors import safe_open

    with safe_open(str(folder / "model.safetensors"), framework="pt") as file:
        kept = {name: file.get_slice(name)[:] for name in file.keys()}  # noqa: SIM118
    spare = bytearray(32 << 20)  # others have room too
    check(kept.items())
    assert not any(spare)


def small_slices_that_are_kept(folder: Path) -> None:
    """Of 4 MiB each: none of them by itself is worth a look at how much memory is left."""
    from penstock.safetensors import safe_open

    rows = ELEMENTS // 8
    with safe_open(str(folder / "model.safetensors"), framework="pt") as file:
        kept = {
            (name, begin): file.get_slice(name)[begin : begin + rows]
            for name in file.keys()  # noqa: SIM118
            for begin in range(0, ELEMENTS, rows)
        }
    spare = bytearray(32 << 20)
    assert sum(part.numel() for part in kept.values()) == TENSORS * ELEMENTS
    for (name, _), part in kept.items():
        assert part.min() == part.max() == int(name.split(".")[1])
    assert not any(spare)


def accelerated_files(folder: Path) -> None:
    """Under accelerate() what the original does by mapping is done within the limit too."""
    import safetensors.torch

    with penstock.accelerate():
        loaded = safetensors.torch.load_file(folder / "model.safetensors")
        check(loaded.items())
        with safetensors.safe_open(folder / "model.safetensors", framework="pt") as file:
            kept = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        check(kept.items())


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
