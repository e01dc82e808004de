"""The calls by which vLLM 0.33 and SGLang 0.5.23 load with fastsafetensors, and one rank that makes them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import helpers
import torch
import torch.distributed as dist
from penstock.fastsafetensors import install_as_fastsafetensors

FILES = 5

Weights = Iterator[tuple[str, torch.Tensor]]


def vllm(files: list[str], pg: Any) -> Weights:
    """vLLM's iterator: it tries once more without GDS where an error speaks of it."""
    from fastsafetensors.parallel_loader import ParallelLoader

    def load(nogds: bool) -> Weights:
        loader = ParallelLoader(
            pg=pg, hf_weights_files=files, queue_size=0, use_tqdm_on_load=True, device="cpu", nogds=nogds
        )
        try:
            yield from loader.iterate_weights()
        finally:
            loader.close()

    try:
        yield from load(nogds=pg.size() > 1)
    except RuntimeError as error:
        if "gds" not in str(error):
            raise
        yield from load(nogds=True)


def sglang(files: list[str], pg: Any) -> Weights:
    """SGLang's iterator: one file of each rank at a time."""
    from fastsafetensors import SafeTensorsFileLoader

    for first in range(0, len(files), pg.size()):
        chosen = files[first : first + pg.size()]
        loader = SafeTensorsFileLoader(pg, torch.device("cpu"), nogds=True)
        loader.add_filenames({rank: [path] for rank, path in enumerate(chosen)})
        try:
            buffer = loader.copy_files_to_device()
            try:
                for name in list(buffer.key_to_rank_lidx):
                    yield name, buffer.get_tensor(name)
            finally:
                buffer.close()
        finally:
            loader.close()


def limited(files: list[str], pg: Any, **arguments: Any) -> Weights:
    """ParallelLoader with little memory: the large tensors of a file come in batches of their own."""
    from fastsafetensors import ParallelLoader

    limits = arguments or {"max_batch_bytes": 300 * 257 * 2}
    loader = ParallelLoader(pg, files, use_tqdm_on_load=False, device="cpu", nogds=True, **limits)
    try:
        yield from loader.iterate_weights()
    finally:
        loader.close()


def serial(files: list[str], pg: Any) -> Weights:
    """ParallelLoader that reads a batch when the one before was used."""
    return limited(files, pg, queue_size=-1)


def buffered(files: list[str], pg: Any) -> Weights:
    """ParallelLoader that reads several batches ahead."""
    return limited(files, pg, queue_size=3)


def local(files: list[str], pg: Any) -> Weights:
    """ParallelLoader of ranks that read everything for themselves."""
    return limited(files, pg, all_local=True, tensor_filter=lambda name: not name.endswith("absent"))


def factories(files: list[str], pg: Any) -> Weights:
    """Code that drives copiers and tensor factories by itself."""
    from fastsafetensors import SafeTensorsMetadata
    from fastsafetensors.copier import create_copier_constructor
    from fastsafetensors.frameworks import get_framework_op
    from fastsafetensors.st_types import Device
    from fastsafetensors.tensor_factory import LazyTensorFactory

    framework = get_framework_op("pytorch")
    group = framework.get_process_group(pg)
    construct = create_copier_constructor("nogds", Device())
    for number, path in enumerate(files):
        reader = number % group.size()
        metadata = SafeTensorsMetadata.from_file(path, framework)
        copier = construct(metadata, Device(), framework)
        is_reader = reader == group.rank()
        factory = LazyTensorFactory(metadata, Device(), reader, is_reader, 4, number, copier, framework)
        factory.submit_io(True, 2**20)
        factory.wait_io()
        for name in metadata.tensors:
            yield name, factory.shuffle(group, name, -1).get_raw()
        weight = f"layers.{number}.weight"
        whole = factory.shuffle(group, weight, -1).get_raw()
        rows = whole.chunk(group.size(), 0)[group.rank()]
        assert torch.equal(factory.shuffle(group, weight, 0).get_raw(), rows)
        own = whole.chunk(group.size(), 1)[group.rank()]  # blocks, rounded up, of 257 columns
        assert torch.equal(factory.shuffle(group, weight, 1).get_raw(), own)
        assert torch.equal(factory.shuffle_multi_cols(group, [weight, weight], 1).get_raw(), torch.cat([own, own], 1))
        last = group.size() - 1
        pushed = factory.push(group, weight, last, reader)
        assert (pushed is None) == (group.rank() != last)
        assert pushed is None or torch.equal(pushed.get_raw(), whole)
        factory.free_dev_ptrs()


SERVERS: dict[str, Callable[[list[str], Any], Weights]] = {
    "vllm": vllm,
    "sglang": sglang,
    "limited": limited,
    "serial": serial,
    "buffered": buffered,
    "local": local,
    "factories": factories,
}


def write_files(directory: Path) -> list[str]:
    """A checkpoint whose files have large and tiny tensors of several types, and don't divide among two ranks."""
    from safetensors.torch import save_file

    paths = []
    for number in range(FILES):
        generator = torch.Generator().manual_seed(number)
        tensors = {
            f"layers.{number}.weight": torch.randn(300, 257, generator=generator).to(torch.bfloat16),
            f"layers.{number}.scale": torch.randn(11, generator=generator).to(torch.float8_e4m3fn),
            f"layers.{number}.bias": torch.randn(7, generator=generator),
            f"layers.{number}.empty": torch.empty(0, 3),
        }
        paths.append(str(directory / f"model-{number}.safetensors"))
        save_file(tensors, paths[-1])
    return paths


def run_rank(directory: Path, files: list[str]) -> None:
    """Loads as each server does, and writes the names in order and a digest of the bytes."""
    install_as_fastsafetensors()
    dist.init_process_group("gloo")
    found = {}
    for server, iterate in SERVERS.items():
        tensors = list(iterate(files, dist.group.WORLD))  # also what is used after the loader was closed
        found[server] = [(name, helpers.bits_of(tensor).hex()) for name, tensor in tensors]
    (directory / f"rank-{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run_rank(Path(sys.argv[1]), sys.argv[2:])
    sys.stdout.flush()
    os._exit(0)
