"""penstock.fastsafetensors in one process: loader, buffer and fastsafe_open."""

from __future__ import annotations

import gc
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import helpers
import penstock
import pytest
import torch
from penstock import _core
from penstock.fastsafetensors import live_allocation_bytes, live_allocation_count
from penstock.fastsafetensors.common import SingleGroup
from penstock.fastsafetensors.loader import SafeTensorsFileLoader, fastsafe_open
from penstock.fastsafetensors.st_types import Device, DType
from safetensors.torch import load_file, save_file

FIRST = {"a": torch.arange(30.0).reshape(5, 6), "b": torch.arange(7), "tiny": torch.ones(3, dtype=torch.bfloat16)}
SECOND = {"c": torch.randn(64, 33), "empty": torch.empty(0, 2), "narrow": torch.ones(4).to(torch.float8_e5m2)}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = [str(tmp_path / "first.safetensors"), str(tmp_path / "second.safetensors")]
    save_file(FIRST, paths[0], metadata={"number": "1"})
    save_file(SECOND, paths[1])
    return paths


def make_loader(files: list[str], **arguments: Any) -> SafeTensorsFileLoader:
    loader = SafeTensorsFileLoader(arguments.pop("pg", None), **arguments)
    loader.add_filenames({0: files})
    return loader


@pytest.mark.parametrize("pg", [None, SingleGroup()], ids=["no group", "SingleGroup"])
@pytest.mark.parametrize("allow_inflight", [False, True])
def test_tensors_are_those_of_the_files_also_after_close(files: list[str], pg: Any, allow_inflight: bool) -> None:
    loader = make_loader(files, pg=pg, device="cpu", nogds=True)
    buffer = loader.copy_files_to_device(allow_inflight=allow_inflight)
    assert loader.get_keys() == list(buffer.key_to_rank_lidx)
    found = {name: buffer.get_tensor(name) for name in buffer.key_to_rank_lidx}
    buffer.close()
    loader.close()
    gc.collect()
    helpers.assert_same_tensors(found, load_file(files[0]) | load_file(files[1]))


@pytest.mark.parametrize("allow_inflight", [False, True])
@pytest.mark.parametrize("framework", ["pytorch", "numpy"])
def test_tensors_count_as_live_until_they_are_gone(files: list[str], allow_inflight: bool, framework: str) -> None:
    gc.collect()
    before = live_allocation_count(), live_allocation_bytes()
    with closing(make_loader(files[:1], framework=framework)) as loader:
        with closing(loader.copy_files_to_device(allow_inflight=allow_inflight)) as buffer:
            kept = [buffer.get_tensor("a"), buffer.get_tensor("a")]
            if not allow_inflight:  # where it is given, those that have landed
                assert live_allocation_count() - before[0] == len(FIRST)
        gc.collect()
        assert (live_allocation_count() - before[0], live_allocation_bytes() - before[1]) == (1, 120)
        del kept
        gc.collect()
        assert (live_allocation_count(), live_allocation_bytes()) == before


@pytest.mark.parametrize(
    "arguments",
    [{}, {"nogds": True}, {"use_fgds": True}, {"device": torch.device("cpu")}, {"bbuf_size_kb": 64, "max_threads": 2}],
    ids=str,
)
def test_arguments_without_a_meaning_here_are_taken(files: list[str], arguments: dict[str, Any]) -> None:
    buffer = make_loader(files, **arguments).copy_files_to_device(use_buf_register=False, max_copy_block_size=1 << 20)
    assert helpers.same(buffer.get_tensor("c"), SECOND["c"])


def test_places_and_shapes_are_told(files: list[str]) -> None:
    loader = make_loader(files)
    buffer = loader.copy_files_to_device()
    assert buffer.key_to_rank_lidx["a"] == (0, 0)
    assert buffer.key_to_rank_lidx["c"] == (0, 1)
    assert buffer.get_filename("c") == files[1]
    assert buffer.get_shape("a") == loader.get_shape("a") == [5, 6]


def test_one_process_gets_all_of_what_is_split(files: list[str]) -> None:
    buffer = make_loader(files).copy_files_to_device()
    assert helpers.same(buffer.get_sharded("a", 1), FIRST["a"])
    assert helpers.same(buffer.push_tensor("a", 0), FIRST["a"])
    assert helpers.same(buffer.get_multi_cols(["a", "a"], 1).get_raw(), torch.cat([FIRST["a"], FIRST["a"]], 1))
    assert helpers.same(buffer.as_dict({"b": 0})["b"].get_raw(), FIRST["b"])
    ((name, tensor),) = buffer.iter_local_tensors(["c"])
    assert name == "c"
    assert helpers.same(tensor, SECOND["c"])


def test_wrapped_tensors_know_their_type_and_place(files: list[str]) -> None:
    wrapped = make_loader(files).copy_files_to_device().get_tensor_wrapped("narrow")
    assert wrapped.dtype == DType.F8_E5M2
    assert wrapped.device == Device.from_str("cpu")
    assert wrapped.get_shape() == [4]


def test_all_types_are_converted_on_the_way_and_afterwards(files: list[str]) -> None:
    buffer = make_loader(files).copy_files_to_device(dtype=DType.F16)
    for name in ("a", "b", "tiny"):
        assert helpers.same(buffer.get_tensor(name), FIRST[name].to(torch.float16))
    assert helpers.same(buffer.get_tensor("c", dtype=DType.BF16), SECOND["c"].half().bfloat16())


def test_narrow_types_can_be_widened(files: list[str]) -> None:
    buffer = make_loader(files).copy_files_to_device(dtype=DType.F32)
    assert helpers.same(buffer.get_tensor("narrow"), torch.ones(4))


def test_filtered_tensors_do_not_exist_and_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    save_file({"large": torch.zeros(64 * 2**20, dtype=torch.uint8), "small": torch.ones(5)}, path)
    pool = penstock.MemoryPool.process_default()
    with path.open("rb") as file:
        os.fsync(file.fileno())
    _core.drop_page_cache(path)  # what is cached would be mapped
    before = pool.used_bytes
    loader = SafeTensorsFileLoader(None)
    loader.set_tensor_filter(lambda name: name == "small")
    loader.add_filenames({0: [str(path)]})
    buffer = loader.copy_files_to_device()
    assert loader.get_keys() == list(buffer.key_to_rank_lidx) == ["small"]
    assert helpers.same(buffer.get_tensor("small"), torch.ones(5))
    assert pool.used_bytes - before < 2**20
    for ask in (buffer.get_tensor, buffer.get_filename, buffer.get_shape, loader.get_shape):
        with pytest.raises(ValueError, match="large"):
            ask("large")


def test_a_loader_takes_other_files_after_a_reset(files: list[str]) -> None:
    loader = make_loader(files[:1])
    loader.copy_files_to_device().close()
    loader.reset()
    assert loader.get_keys() == []
    loader.add_filenames({0: files[1:]})
    assert helpers.same(loader.copy_files_to_device().get_tensor("c"), SECOND["c"])


def test_closing_twice_is_nothing_and_what_was_closed_is_refused(files: list[str]) -> None:
    loader = make_loader(files)
    buffer = loader.copy_files_to_device()
    for _ in range(2):
        buffer.close()
        loader.close()
    with pytest.raises(ValueError, match="closed"):
        buffer.get_tensor("a")
    with pytest.raises(ValueError, match="closed"):
        loader.copy_files_to_device()


@pytest.mark.parametrize("framework", ["pt", "pytorch"])
def test_fastsafe_open_gives_tensors_and_metadata_of_each_file(files: list[str], framework: str) -> None:
    with fastsafe_open(files, framework=framework) as opened:
        assert sorted(opened.keys()) == sorted([*FIRST, *SECOND])
        assert opened.metadata()[files[0]] == {"number": "1"}
        kept = opened.get_tensor("a")
        assert opened.get_tensor_wrapped("b").dtype == DType.I64
    assert helpers.same(kept, FIRST["a"])
    with fastsafe_open(files[1]) as opened:
        assert sorted(opened.keys()) == sorted(SECOND)
    with fastsafe_open({0: files[:1]}) as opened:
        assert sorted(opened.keys()) == sorted(FIRST)


def test_numpy_gets_arrays(files: list[str]) -> None:
    with fastsafe_open(files, framework="numpy") as opened:
        array = opened.get_tensor("a")
    assert type(array).__module__ == "numpy"
    assert array.tobytes() == helpers.bits_of(FIRST["a"])


def test_pairs_of_four_bits_are_loaded_as_torch_has_them(tmp_path: Path) -> None:
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this version of torch has no float4_e2m1fn_x2")
    path = helpers.write_raw(tmp_path / "four.safetensors", helpers.one_tensor("F4", [2, 6], 6), bytes(range(6)))
    with fastsafe_open(str(path)) as opened:
        tensor = opened.get_tensor("x")
    assert tensor.dtype == torch.float4_e2m1fn_x2
    assert tensor.shape == (2, 3)
    assert tensor.view(torch.uint8).flatten().tolist() == list(range(6))


def test_a_missing_file_is_an_error_that_names_it() -> None:
    with pytest.raises(FileNotFoundError, match="/nowhere.safetensors"):
        make_loader(["/nowhere.safetensors"])


def test_a_tensor_in_two_files_is_refused(files: list[str], tmp_path: Path) -> None:
    again = str(tmp_path / "again.safetensors")
    save_file({"a": torch.ones(2)}, again)
    with pytest.raises(ValueError, match="a"):
        make_loader([*files, again]).copy_files_to_device()


def test_an_unknown_tensor_is_refused(files: list[str]) -> None:
    loader = make_loader(files)
    buffer = loader.copy_files_to_device()
    for ask in (buffer.get_tensor, buffer.get_filename, buffer.get_shape):
        with pytest.raises(ValueError, match="nowhere"):
            ask("nowhere")
    with pytest.raises(KeyError, match="nowhere"):
        loader.get_shape("nowhere")


def test_a_rank_that_is_not_there_is_refused(files: list[str]) -> None:
    with pytest.raises(ValueError, match="there is no rank 1"):
        SafeTensorsFileLoader(None).add_filenames({1: files})


def test_a_time_out_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.fastsafetensors._exchange_group import chosen_timeout

    monkeypatch.setenv("PENSTOCK_TIMEOUT", "12.5")
    assert chosen_timeout(None) == 12.5
    assert chosen_timeout(3) == 3.0
    monkeypatch.setenv("PENSTOCK_TIMEOUT", "soon")
    with pytest.raises(ValueError, match="PENSTOCK_TIMEOUT is 'soon', not a number of seconds"):
        chosen_timeout(None)
    monkeypatch.delenv("PENSTOCK_TIMEOUT")
    assert chosen_timeout(None) == 300.0


def test_loads_leave_no_descriptor_open(files: list[str]) -> None:
    make_loader(files).copy_files_to_device().close()
    before = helpers.open_descriptors()
    for allow_inflight in (False, True):
        loader = make_loader(files)
        buffer = loader.copy_files_to_device(allow_inflight=allow_inflight)
        buffer.get_tensor("a")
        buffer.close()
        loader.close()
        with pytest.raises(RuntimeError):
            make_loader([files[0], "/nowhere"])
    del loader, buffer
    gc.collect()
    assert helpers.open_descriptors() == before
