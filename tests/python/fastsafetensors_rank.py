"""One rank of the tests of penstock.fastsafetensors: runs scenarios in turn, and writes what came of each as a line."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import helpers
import pytest
import torch
import torch.distributed as dist
from penstock.fastsafetensors import file_buffer
from penstock.fastsafetensors._read import OwnFiles
from penstock.fastsafetensors.file_buffer import FilesBufferOnDevice
from penstock.fastsafetensors.loader import SafeTensorsFileLoader, fastsafe_open
from penstock.fastsafetensors.st_types import DType

TIMEOUT_SECONDS = 6.0
FILES = 3


def make_tensors(number: int) -> dict[str, torch.Tensor]:
    """What file `number` holds: large and tiny tensors, odd lengths, narrow types, an empty one and a single number."""
    generator = torch.Generator().manual_seed(number)
    made: dict[str, torch.Tensor] = {
        f"{number}.large": torch.randn(700, 513, generator=generator),
        f"{number}.odd": torch.randn(7, 5, 3, generator=generator).to(torch.bfloat16),
        f"{number}.one_row": torch.randn(1, 9, generator=generator),
        f"{number}.numbers": torch.arange(23),
        f"{number}.flags": torch.arange(13) % 3 == 0,
        f"{number}.float8": torch.randn(6, 10, generator=generator).to(torch.float8_e4m3fn),
        f"{number}.single": torch.tensor(number + 0.5),
        f"{number}.empty": torch.empty(0, 4),
    }
    made |= {f"{number}.tiny.{index}": torch.full((3,), float(index)) for index in range(40)}
    return made


def file_of(directory: Path, number: int) -> str:
    return str(directory / f"part-{number}.safetensors")


def files_by_rank(directory: Path, world: int) -> dict[int, list[str]]:
    """Spread over the ranks; the last may have none."""
    spread: dict[int, list[str]] = {rank: [] for rank in range(world)}
    for number in range(FILES):
        spread[number % world].append(file_of(directory, number))
    return spread


def everything() -> dict[str, torch.Tensor]:
    return {name: tensor for number in range(FILES) for name, tensor in make_tensors(number).items()}


def part(tensor: torch.Tensor, dim: int, rank: int, world: int) -> torch.Tensor:
    """The rule: blocks of the length over the ranks, rounded up."""
    block = -(-tensor.shape[dim] // world)
    begin = min(rank * block, tensor.shape[dim])
    return tensor.narrow(dim, begin, min(block, tensor.shape[dim] - begin))


def check(found: Any, expected: torch.Tensor, name: str) -> None:
    assert helpers.same(found, expected.contiguous()), name


@contextmanager
def opened(
    directory: Path,
    world: int,
    pg: Any = None,
    files: dict[int, list[str]] | None = None,
    *,
    are_remote: bool = False,
    **arguments: Any,
) -> Iterator[FilesBufferOnDevice]:
    """are_remote: as if ranks could not read each other's memory."""
    group = dist.group.WORLD if pg is None else pg
    loader = SafeTensorsFileLoader(group, "cpu", nogds=True, timeout=TIMEOUT_SECONDS)
    if are_remote:
        assert loader._group is not None
        loader._group._knows_processes = True
    buffer = None
    try:
        loader.add_filenames(files_by_rank(directory, world) if files is None else files)
        buffer = loader.copy_files_to_device(**arguments)
        yield buffer
    finally:
        if buffer is not None:
            buffer.close()
        loader.close()


def whole_tensors(rank: int, world: int, directory: Path) -> None:
    with opened(directory, world) as buffer:
        found = {name: buffer.get_tensor(name) for name in buffer.key_to_rank_lidx}
    expected = everything()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():  # after close
        check(found[name], tensor, name)
        found[name].flatten()[:1] = 1  # nobody else's memory
    with opened(directory, world) as buffer:
        for name, tensor in reversed(expected.items()):
            check(buffer.get_tensor(name), tensor, name)


def parts_of_tensors(rank: int, world: int, directory: Path) -> None:
    with opened(directory, world) as buffer:
        for name, tensor in everything().items():
            for dim in range(tensor.dim()):
                check(buffer.get_sharded(name, dim), part(tensor, dim, rank, world), f"{name} {dim}")
            check(buffer.get_sharded(name, -1), tensor, name)


def parts_that_are_sent(rank: int, world: int, directory: Path) -> None:
    with opened(directory, world, are_remote=True) as buffer:
        for name, tensor in everything().items():
            for dim in (*range(tensor.dim()), -1):
                expected = tensor if dim == -1 else part(tensor, dim, rank, world)
                check(buffer.get_sharded(name, dim), expected, f"{name} {dim}")
    with opened(directory, world, are_remote=True) as buffer:
        wanted = {
            name: -1 if index % 3 else tensor.dim() - 1 for index, (name, tensor) in enumerate(everything().items())
        }
        for name, found in buffer.as_dict(wanted).items():
            tensor, dim = everything()[name], wanted[name]
            check(found.get_raw(), tensor if dim == -1 else part(tensor, dim, rank, world), name)


# Types of less than a byte and of one, and two in between that torch can't hold.
NARROW: list[tuple[str, str, list[int], int]] = [
    ("before", "F32", [5], 20),
    ("six_bits", "F6_E2M3", [8], 6),
    ("pairs", "F4", [3, 8], 12),
    ("odd_pairs", "F4", [2, 3], 3),
    ("scales", "F8_E8M0", [7], 7),
    ("float8", "F8_E5M2", [2, 9], 18),
    ("after", "BF16", [3, 5], 30),
]


def narrow_bytes(name: str, nbytes: int) -> bytes:
    return bytes((index * 7 + len(name)) % 256 for index in range(nbytes))


def write_narrow(path: Path) -> None:
    header, end = {}, 0
    for name, dtype, shape, nbytes in NARROW:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + nbytes]}
        end += nbytes
    text = json.dumps(header).encode()
    content = b"".join(narrow_bytes(name, nbytes) for name, _, _, nbytes in NARROW)
    path.write_bytes(len(text).to_bytes(8, "little") + text + content)


def narrow_types(rank: int, world: int, directory: Path) -> None:
    """Those that torch can't hold are refused when they are asked for, and don't hinder their neighbours."""
    with opened(directory, world, files={1: [str(directory / "narrow.safetensors")]}) as buffer:
        for name, _, shape, nbytes in NARROW:
            if name in ("six_bits", "odd_pairs"):
                with pytest.raises(NotImplementedError, match=f"{name}: .*torch"):
                    buffer.get_sharded(name, 0)
                continue
            row = nbytes // shape[0]
            block = -(-shape[0] // world)
            found = buffer.get_sharded(name, 0)
            first, last = rank * block * row, (rank + 1) * block * row
            assert helpers.bits_of(found) == narrow_bytes(name, nbytes)[first:last], name
        assert buffer.get_sharded("pairs", 1).shape == (3, 4 // world)


def mixed_calls_read_once(rank: int, world: int, directory: Path) -> None:
    """What came whole with another tensor is cut, pushed and put side by side, and not read again."""
    with opened(directory, world) as buffer, reads_again() as again:
        expected = everything()
        check(buffer.get_tensor("0.single"), expected["0.single"], "0.single")
        for number in range(FILES):
            for index in range(0, 40, 4):
                names = [f"{number}.tiny.{index + step}" for step in range(4)]
                check(buffer.get_sharded(names[0], 0), part(expected[names[0]], 0, rank, world), names[0])
                found = buffer.as_dict({names[1]: 0})[names[1]].get_raw()
                check(found, part(expected[names[1]], 0, rank, world), names[1])
                pushed = buffer.push_tensor(names[2], world - 1)
                assert (pushed is not None) == (rank == world - 1), names[2]
                if pushed is not None:
                    check(pushed, expected[names[2]], names[2])
                check(buffer.get_tensor(names[3]), expected[names[3]], names[3])
            check(buffer.get_sharded(f"{number}.large", 1), part(expected[f"{number}.large"], 1, rank, world), "large")
        assert again == []


@contextmanager
def reads_again() -> Iterator[list[str]]:
    """The tensors that are read a second time."""
    names: list[str] = []
    read_again = OwnFiles._read_again

    def counting(own: OwnFiles, name: str) -> Any:
        names.append(name)
        return read_again(own, name)

    OwnFiles._read_again = counting  # type: ignore[method-assign]
    try:
        yield names
    finally:
        OwnFiles._read_again = read_again  # type: ignore[method-assign]


def ahead_is_bounded(rank: int, world: int, directory: Path) -> None:
    """Who asks for few of the tensors keeps few of the others."""
    limits = file_buffer.BUNDLE_BYTES, file_buffer._AHEAD_BYTES
    file_buffer.BUNDLE_BYTES, file_buffer._AHEAD_BYTES = 60, 100
    try:
        with opened(directory, world) as buffer:
            for index in range(0, 40, 6):
                name = f"0.tiny.{index}"
                check(buffer.get_sharded(name, 0), part(everything()[name], 0, rank, world), name)
                assert sum(tensor.nbytes for tensor in buffer._ahead.values()) == buffer._ahead_bytes <= 100
    finally:
        file_buffer.BUNDLE_BYTES, file_buffer._AHEAD_BYTES = limits


def dictionaries(rank: int, world: int, directory: Path) -> None:
    wanted = {name: tensor.dim() - 1 if "tiny" not in name else -1 for name, tensor in everything().items()}
    with opened(directory, world) as buffer:
        found = buffer.as_dict(wanted)
    for name, tensor in everything().items():
        dim = wanted[name]
        check(found[name].get_raw(), tensor if dim == -1 else part(tensor, dim, rank, world), name)


def few_collectives(rank: int, world: int, directory: Path) -> None:
    """Forty tiny tensors, and what else is small, go together."""
    calls = 0
    with opened(directory, world) as buffer:
        buffer.get_tensor("0.large")
        group = buffer._group
        assert group is not None
        agree = group.agree

        def counting(*arguments: Any, **named: Any) -> None:
            nonlocal calls
            calls += 1
            agree(*arguments, **named)

        group.agree = counting  # type: ignore[method-assign]
        for name in make_tensors(0):
            if name != "0.large":
                buffer.get_tensor(name)
        assert calls <= 3, calls
        calls = 0
        for index, (name, tensor) in enumerate(make_tensors(2).items()):
            if name != "2.large" and tensor.dim() > 0:
                buffer.get_sharded(name, index % tensor.dim())
        assert calls <= 4, calls  # what lies before the first in the file comes with another
        calls = 0
        buffer.as_dict({name: -1 for name in make_tensors(1) if name != "1.large"})
        assert calls <= 4, calls


def pushes(rank: int, world: int, directory: Path) -> None:
    with opened(directory, world) as buffer:
        for destination in range(world):
            for name in ("0.large", "1.float8", "2.empty", "2.single"):
                found = buffer.push_tensor(name, destination)
                if rank == destination:
                    check(found, everything()[name], name)
                else:
                    assert found is None


def columns(rank: int, world: int, directory: Path) -> None:
    names = ["2.odd", "0.odd", "1.odd"]
    with opened(directory, world) as buffer:
        for dim in range(3):
            found = buffer.get_multi_cols(names, dim).get_raw()
            expected = torch.cat([part(everything()[name], dim, rank, world) for name in names], dim)
            check(found, expected, str(dim))


def subgroups(rank: int, world: int, directory: Path) -> None:
    """Halves, in which ranks have other numbers, work at the same time."""
    members = [list(range(world // 2)), list(range(world // 2, world))]
    halves = [dist.new_group(half) for half in members]
    own = int(rank >= world // 2)
    size, place = len(members[own]), members[own].index(rank)
    files = {place: [file_of(directory, place)] for place in range(size)}
    with opened(directory, size, halves[own], files) as buffer:
        for number in range(size):
            for name, tensor in make_tensors(number).items():
                check(buffer.get_tensor(name), tensor, name)
                if tensor.dim() > 0:
                    check(buffer.get_sharded(name, 0), part(tensor, 0, place, size), name)
            pushed = buffer.push_tensor(f"{number}.odd", size - 1)
            assert (pushed is not None) == (place == size - 1)
            if pushed is not None:
                check(pushed, make_tensors(number)[f"{number}.odd"], "pushed")


def conversions(rank: int, world: int, directory: Path) -> None:
    with opened(directory, world, dtype=DType.F16) as buffer:
        for name in ("0.large", "1.odd", "2.numbers", "2.single"):
            check(buffer.get_tensor(name), everything()[name].to(torch.float16), name)
        check(buffer.get_tensor("1.large", dtype=DType.BF16), everything()["1.large"].half().bfloat16(), "later")


def filtered(rank: int, world: int, directory: Path) -> None:
    loader = SafeTensorsFileLoader(dist.group.WORLD, "cpu", timeout=TIMEOUT_SECONDS)
    loader.set_tensor_filter(lambda name: name.endswith("odd"))
    loader.add_filenames(files_by_rank(directory, world))
    buffer = loader.copy_files_to_device()
    loader.close()  # the buffer stays usable
    assert sorted(buffer.key_to_rank_lidx) == ["0.odd", "1.odd", "2.odd"]
    check(buffer.get_tensor("1.odd"), everything()["1.odd"], "1.odd")
    buffer.close()


def arrays(rank: int, world: int, directory: Path) -> None:
    loader = SafeTensorsFileLoader(dist.group.WORLD, "cpu", framework="numpy", timeout=TIMEOUT_SECONDS)
    loader.add_filenames(files_by_rank(directory, world))
    buffer = loader.copy_files_to_device()
    found = buffer.get_sharded("1.large", 0)
    assert type(found).__module__ == "numpy"
    assert found.tobytes() == helpers.bits_of(part(everything()["1.large"], 0, rank, world))
    buffer.close()
    loader.close()


def opened_together(rank: int, world: int, directory: Path) -> None:
    with fastsafe_open(files_by_rank(directory, world), pg=dist.group.WORLD) as files:
        assert sorted(files.keys()) == sorted(everything())
        assert files.metadata()[file_of(directory, 1)] == {"number": "1"}
        check(files.get_tensor("2.numbers"), everything()["2.numbers"], "2.numbers")


def cached(rank: int, world: int, directory: Path) -> None:
    loader = SafeTensorsFileLoader(dist.group.WORLD, "cpu", disable_cache=False, timeout=TIMEOUT_SECONDS)
    loader.add_filenames(files_by_rank(directory, world))
    buffer = loader.copy_files_to_device()
    for _ in range(2):
        found = buffer.get_sharded("0.large", 0)
        check(found, part(everything()["0.large"], 0, rank, world), "part")
        found.zero_()
        check(buffer.get_tensor("0.large"), everything()["0.large"], "whole")
    buffer.close()
    loader.close()


def descriptors(rank: int, world: int, directory: Path) -> None:
    """Loads, also failed ones, leave none open."""
    counts = []
    for _ in range(3):
        with opened(directory, world) as buffer:
            buffer.get_tensor("0.large")
            with suppress(ValueError):
                buffer.get_tensor("nowhere")
        del buffer
        gc.collect()
        dist.barrier()
        time.sleep(0.2)  # gloo's thread closes sockets
        counts.append(len(helpers.open_descriptors()))
    assert counts[2] <= counts[1], counts


def unknown_on_one_rank(rank: int, world: int, directory: Path) -> None:
    with opened(directory, world) as buffer:
        try:
            buffer.get_tensor("nowhere" if rank == world - 1 else "0.large")
        finally:
            check(buffer.get_tensor("1.odd"), everything()["1.odd"], "the group goes on")


def other_order(rank: int, world: int, directory: Path) -> None:
    with opened(directory, world) as buffer:
        buffer.get_tensor("0.large" if rank == 0 else "1.large")


def other_dimension(rank: int, world: int, directory: Path) -> None:
    with opened(directory, world) as buffer:
        buffer.get_sharded("0.large", 0 if rank == 0 else 1)


def other_order_of_tiny_ones(rank: int, world: int, directory: Path) -> None:
    """They came together, so that each rank finds its part by itself; the next call that asks the others tells."""
    with opened(directory, world) as buffer:
        for index in range(3):
            buffer.get_sharded(f"0.tiny.{index}", 0)
        buffer.get_sharded("0.tiny.4" if rank == world - 1 else "0.tiny.3", 0)
        try:
            buffer.get_tensor("1.large")
        finally:
            check(buffer.get_tensor("1.large"), everything()["1.large"], "the group goes on")


def other_files(rank: int, world: int, directory: Path) -> None:
    files = files_by_rank(directory, world)
    if rank == world - 1:
        files[0] = [file_of(directory, 1)]
        files[1] = [file_of(directory, 0)]
    with opened(directory, world, files=files) as buffer:
        buffer.get_tensor("0.large")


def missing_file(rank: int, world: int, directory: Path) -> None:
    files = files_by_rank(directory, world)
    if rank == 1:
        files[1] = [str(directory / "missing.safetensors")]
    with opened(directory, world, files=files) as buffer:
        buffer.get_tensor("0.large")


def bad_file(rank: int, world: int, directory: Path) -> None:
    files = files_by_rank(directory, world)
    if rank == 1:
        files[1] = [str(directory / "bad.safetensors")]
    with opened(directory, world, files=files) as buffer:
        buffer.get_tensor("0.large")


def shrinks_while_loading(rank: int, world: int, directory: Path) -> None:
    """The file of rank 1 loses its end after the headers were read."""
    files: dict[int, list[str]] = {place: [] for place in range(world)}
    files[1] = [str(directory / "shrinks.safetensors")]
    loader = SafeTensorsFileLoader(dist.group.WORLD, "cpu", timeout=TIMEOUT_SECONDS)
    loader.add_filenames(files)
    dist.barrier()
    if rank == 1:
        os.truncate(files[1][0], 4096)
    dist.barrier()
    try:
        buffer = loader.copy_files_to_device()
        buffer.get_tensor("0.large")
    finally:
        loader.close()


def stays_away(rank: int, world: int, directory: Path) -> None:
    """The last rank makes its calls too late."""
    with opened(directory, world) as buffer:
        buffer.get_tensor("0.large")
        if rank == world - 1:
            time.sleep(TIMEOUT_SECONDS + 3)
        buffer.get_tensor("1.large")


def works_again(rank: int, world: int, directory: Path) -> None:
    dist.barrier()
    with opened(directory, world) as buffer:
        check(buffer.get_tensor("1.large"), everything()["1.large"], "1.large")


def dies(rank: int, world: int, directory: Path) -> None:
    with opened(directory, world) as buffer:
        buffer.get_tensor("0.large")
        if rank == world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        buffer.get_tensor("1.large")
        buffer.get_tensor("2.large")


def dies_before_the_others_come(rank: int, world: int, directory: Path) -> None:
    """Nobody can meet, and rank 0, which has the store, is the first whose time is over."""
    if rank == world - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1.0 * (rank > 0))
    with opened(directory, world) as buffer:
        buffer.get_tensor("0.large")


def first_rank_fails_early(rank: int, world: int, directory: Path) -> None:
    """Rank 0 fails, and would be gone with the store, before the others look."""
    if rank == 0:
        files = files_by_rank(directory, world)
        files[0] = [str(directory / "missing.safetensors")]
        with opened(directory, world, files=files):
            pass
    time.sleep(0.3)
    with opened(directory, world) as buffer:
        buffer.get_tensor("0.large")


class LastEntry(dist.Store):
    """A store whose user is killed once it has written where it can be reached."""

    def __init__(self, store: Any) -> None:
        super().__init__()
        self._store = store

    def set(self, key: str, value: Any) -> None:
        self._store.set(key, value)

    def wait(self, *_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    get = multi_get = check = wait

    def has_extended_api(self) -> bool:
        return False


def dies_while_connecting(rank: int, world: int, directory: Path) -> None:
    """Global rank 1. Who waits for its connection, and who makes one, is chance. Rank 0 has the store, and no part."""
    group = dist.new_group(list(range(1, world)))
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.wait([f"over/{other}" for other in range(2, world)], timedelta(seconds=100))
        return
    if rank == 1:
        real = dist.ProcessGroupGloo
        dist.ProcessGroupGloo = lambda store, *arguments: real(LastEntry(store), *arguments)  # type: ignore[misc]
    try:
        with opened(directory, world - 1, group, {0: [file_of(directory, 0)], 1: [file_of(directory, 1)]}) as buffer:
            buffer.get_tensor("0.large")
    finally:
        store.set(f"over/{rank}", "")


def slow_messages(rank: int, world: int, directory: Path) -> None:
    """A rank is waited for as long as the time-out says, also for what goes from one to another."""
    with opened(directory, world) as buffer:
        buffer.get_tensor("0.tiny.0")
        group = buffer._group
        assert group is not None
        attempt = max(TIMEOUT_SECONDS / 5, 2.0)
        data = torch.full((3,), float(rank))
        if rank == 0:
            time.sleep(attempt + 1.5)
            group.finish([group.lane.send([data], world - 1, 0)])
        elif rank == world - 1:
            with group.reachable("slow_messages"):
                group.finish([group.lane.recv([data], 0, 0)])
            assert data.tolist() == [0.0] * 3


# Each by itself: the process ends with it.
LAST_WORDS: dict[str, Callable[[int, int, Path], None]] = {
    scenario.__name__: scenario
    for scenario in (dies_before_the_others_come, dies_while_connecting, first_rank_fails_early)
}
SCENARIOS: dict[str, Callable[[int, int, Path], None]] = {
    scenario.__name__: scenario
    for scenario in (
        whole_tensors,
        parts_of_tensors,
        parts_that_are_sent,
        narrow_types,
        mixed_calls_read_once,
        ahead_is_bounded,
        dictionaries,
        few_collectives,
        pushes,
        columns,
        subgroups,
        conversions,
        filtered,
        arrays,
        opened_together,
        cached,
        slow_messages,
        descriptors,
        unknown_on_one_rank,
        other_order,
        other_dimension,
        other_order_of_tiny_ones,
        other_files,
        missing_file,
        bad_file,
        shrinks_while_loading,
        stays_away,
        works_again,
        dies,  # last: nobody can meet again after it
    )
}


def main() -> None:
    rank, world, directory = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), Path(sys.argv[1])
    chosen = sys.argv[2:] or list(SCENARIOS)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    with (directory / f"outcome-{rank}").open("w", buffering=1) as outcomes:
        for name in chosen:
            begin = time.monotonic()
            try:
                (SCENARIOS | LAST_WORDS)[name](rank, world, directory)
                said = ""
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            seconds = time.monotonic() - begin
            print(json.dumps({"scenario": name, "said": said, "seconds": seconds}), file=outcomes)
    os._exit(0)  # a group with a dead member can't be left in order


if __name__ == "__main__":
    main()
