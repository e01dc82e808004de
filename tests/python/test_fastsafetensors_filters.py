"""Filters: experts of a rank, by arguments and by the environment; what is filtered out is not read."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import run_python
from penstock.fastsafetensors import (
    ParallelLoader,
    SafeTensorsFileLoader,
    expert_parallel_filter,
    expert_parallel_filter_from_env,
    owned_expert_range,
)
from safetensors.torch import save_file

NAME = "model.layers.0.mlp.experts.{}.w1.weight"
PREFIX = "FASTSAFETENSORS_EP_"
VARIABLES = (PREFIX + "SLICE", PREFIX + "NUM_EXPERTS", PREFIX + "SIZE", PREFIX + "RANK", "WORLD_SIZE", "RANK")


@pytest.mark.parametrize(
    ("experts", "size", "ranges"),
    [(8, 2, [(0, 4), (4, 8)]), (7, 3, [(0, 3), (3, 5), (5, 7)]), (2, 3, [(0, 1), (1, 2), (2, 2)])],
)
def test_experts_are_dealt_in_blocks_the_first_ranks_with_one_more(
    experts: int, size: int, ranges: list[tuple[int, int]]
) -> None:
    assert [owned_expert_range(experts, size, rank) for rank in range(size)] == ranges


@pytest.mark.parametrize(("size", "rank", "said"), [(0, 0, "ep_size must be positive"), (2, 2, "out of range")])
def test_a_rank_that_is_not_there_is_refused(size: int, rank: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        owned_expert_range(8, size, rank)


def test_a_rank_keeps_its_experts_and_all_that_is_no_expert() -> None:
    keep = expert_parallel_filter(8, 4, 1)
    assert [index for index in range(8) if keep(NAME.format(index))] == [2, 3]
    assert keep("model.embed_tokens.weight")
    assert keep("model.layers.0.mlp.shared_experts.w1.weight")
    other = expert_parallel_filter(4, 2, 0, re.compile(r"/e(\d+)/"))
    assert [other("/e1/"), other("/e2/"), other(NAME.format(3))] == [True, False, True]


def set_environment(monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in values.items():
        monkeypatch.setenv(name, value)


ASKED = {PREFIX + "SLICE": "1", PREFIX + "NUM_EXPERTS": "8"}


@pytest.mark.parametrize(
    "values",
    [
        {**ASKED, PREFIX + "SIZE": "4", PREFIX + "RANK": "1"},
        {**ASKED, "WORLD_SIZE": "4", "RANK": "1"},
    ],
    ids=["its own variables", "those of torchrun"],
)
def test_the_environment_asks_for_a_filter(monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    set_environment(monkeypatch, values)
    keep = expert_parallel_filter_from_env()
    assert keep is not None
    assert [index for index in range(8) if keep(NAME.format(index))] == [2, 3]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {**ASKED, PREFIX + "SLICE": "0", PREFIX + "SIZE": "4"},
        {PREFIX + "SLICE": "1", PREFIX + "SIZE": "4"},
        ASKED,
    ],
    ids=repr,
)
def test_the_environment_asks_for_none(monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    set_environment(monkeypatch, values)
    assert expert_parallel_filter_from_env() is None


def test_a_variable_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, {**ASKED, PREFIX + "NUM_EXPERTS": "many"})
    with pytest.raises(ValueError, match="FASTSAFETENSORS_EP_NUM_EXPERTS is 'many', not a number"):
        expert_parallel_filter_from_env()


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """64 experts of 1 MiB, and a tensor that is none."""
    path = tmp_path_factory.mktemp("moe") / "model.safetensors"
    tensors = {NAME.format(index): torch.full((2**18,), float(index)) for index in range(64)}
    save_file({"embedding": torch.ones(100), **tensors}, path)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return str(path)


COUNTED = """
    import sys
    import penstock
    from penstock import _core
    from penstock.fastsafetensors import ParallelLoader, SafeTensorsFileLoader, expert_parallel_filter
    def bytes_from_drive():
        return int(next(line for line in open("/proc/self/io") if line.startswith("read_bytes")).split()[1])
    import torch
    penstock.load(sys.argv[2])
    _core.drop_page_cache(sys.argv[1])
    before = bytes_from_drive()
    keep = expert_parallel_filter(64, 8, 3)
    if sys.argv[3] == "parallel":
        loader = ParallelLoader(None, [sys.argv[1]], use_tqdm_on_load=False, tensor_filter=keep)
        found = dict(loader.iterate_weights())
    else:
        loader = SafeTensorsFileLoader(None, "cpu")
        loader.set_tensor_filter(keep)
        loader.add_filenames({0: [sys.argv[1]]})
        buffer = loader.copy_files_to_device()
        found = {name: buffer.get_tensor(name) for name in buffer.key_to_rank_lidx}
    print(bytes_from_drive() - before, sum(tensor.nbytes for tensor in found.values()), len(found))
"""


@pytest.mark.parametrize("loader", ["parallel", "file"])
def test_only_the_bytes_that_a_filter_keeps_are_read(experts: str, tmp_path: Path, loader: str) -> None:
    save_file({"warm": torch.ones(3)}, tmp_path / "warm.safetensors")
    found: Any = run_python(COUNTED, experts, str(tmp_path / "warm.safetensors"), loader).stdout.split()
    from_drive, kept, count = map(int, found)
    assert (count, kept) == (9, 8 * 2**20 + 400)
    if from_drive == 0:
        pytest.skip("this filesystem does not count what is read from its drive")
    assert from_drive < 1.5 * kept  # of 64 MiB: readahead of the header is allowed


def test_a_filter_is_given_plain_names_and_what_it_returns_is_judged_by_its_truth(experts: str) -> None:
    given: list[object] = []

    def keep(name: str) -> Any:
        given.append(name)
        return [] if "experts" in name else [1]

    loader = ParallelLoader(None, [experts], use_tqdm_on_load=False, tensor_filter=keep)
    assert [name for name, _ in loader.iterate_weights()] == ["embedding"]
    loader.close()
    assert len(given) == 65
    assert {type(name) for name in given} == {str}


def test_both_loaders_give_what_the_filter_keeps(experts: str) -> None:
    keep = expert_parallel_filter(64, 16, 15)
    parallel = ParallelLoader(None, [experts], use_tqdm_on_load=False, tensor_filter=keep)
    names = {"embedding", *(NAME.format(index) for index in range(60, 64))}
    found = dict(parallel.iterate_weights())
    parallel.close()
    assert set(found) == names
    assert all(bool((found[NAME.format(index)] == index).all()) for index in range(60, 64))
    loader = SafeTensorsFileLoader(None)
    loader.set_tensor_filter(keep)
    loader.add_filenames({0: [experts]})
    assert set(loader.get_keys()) == names
    loader.close()
