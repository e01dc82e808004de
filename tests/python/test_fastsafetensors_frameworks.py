"""Frameworks by their names, copiers and tensor factories: the pieces below the loaders."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import helpers
import numpy
import pytest
import torch
from penstock.fastsafetensors import SafeTensorsMetadata, SingleGroup, fastsafe_open, live_allocation_count
from penstock.fastsafetensors.copier import (
    CopierInterface,
    GdsFileCopier,
    copier_class_of,
    create_copier_constructor,
    get_copier_class,
    register_copier_constructor,
)
from penstock.fastsafetensors.copier.base import (
    DummyDeviceBuffer,
    validated_byte_ranges,
    validated_chunk_allocation_size,
)
from penstock.fastsafetensors.copier.gds import init_gds
from penstock.fastsafetensors.copier.threefs import ThreeFSFileCopier
from penstock.fastsafetensors.frameworks import get_framework_op
from penstock.fastsafetensors.st_types import Device, DType
from penstock.fastsafetensors.tensor_factory import LazyTensorFactory
from safetensors.torch import load_file, save_file

TENSORS = {
    "a": torch.arange(24.0).reshape(4, 6),
    "b": torch.arange(12, dtype=torch.int32).reshape(4, 3),
    "c": torch.ones(4, 2).to(torch.bfloat16),
    "d": torch.full((4, 6), 7.0),
    "empty": torch.empty(0, 3),
}
BLOCK = 2**20


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = str(tmp_path / "file.safetensors")
    save_file(TENSORS, path)
    return path


def metadata_of(file: str, framework: str = "pytorch") -> SafeTensorsMetadata:
    return SafeTensorsMetadata.from_file(file, get_framework_op(framework))


@pytest.mark.parametrize(("name", "kind"), [("pt", torch.Tensor), ("pytorch", torch.Tensor), ("numpy", numpy.ndarray)])
def test_frameworks_give_tensors_of_their_own(file: str, name: str, kind: type) -> None:
    with fastsafe_open(file, framework=name) as opened:
        found = opened.get_tensor("a")
    assert isinstance(found, kind)
    assert (numpy.asarray(found) == TENSORS["a"].numpy()).all()


def test_a_framework_that_there_is_not_is_named() -> None:
    with pytest.raises(ValueError, match="tensorflow"):
        get_framework_op("tensorflow")


def test_paddle_is_asked_for_by_name_where_it_is_not_installed(file: str) -> None:
    try:
        import paddle  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match="pip install paddlepaddle"):
            fastsafe_open(file, framework="paddle")
    else:
        pytest.skip("paddle is installed")


@pytest.mark.parametrize("copier_type", ["gds", "nogds", "fgds", "unified", "3fs"])
@pytest.mark.parametrize("framework", ["pytorch", "numpy"])
def test_every_copier_gives_the_tensors_of_its_file(file: str, copier_type: str, framework: str) -> None:
    operations = get_framework_op(framework)
    arguments: dict[str, Any] = {"fgds": {"framework": operations}, "3fs": {"mount_point": "/mnt"}}.get(copier_type, {})
    construct = create_copier_constructor(copier_type, Device(), **arguments)
    copier = construct(metadata_of(file, framework), Device(), operations)
    assert isinstance(copier, copier_class_of(construct))
    assert get_copier_class(copier_type) is copier_class_of(construct)
    found = copier.wait_io(copier.submit_io(True, BLOCK))
    assert list(found) == list(metadata_of(file).tensors)
    assert {name: helpers.bits_of(tensor.get_raw()) for name, tensor in found.items()} == {
        name: helpers.bits_of(tensor) for name, tensor in load_file(file).items()
    }


def test_a_copier_reads_only_a_chunk_or_some_ranges(file: str) -> None:
    metadata = metadata_of(file)
    copier = GdsFileCopier(metadata, Device(), None, get_framework_op("pytorch"))
    copier.set_byte_ranges(metadata.select_byte_ranges(lambda name: name == "a", merge_gap=0))
    assert sorted(copier.wait_io(copier.submit_io(True, BLOCK))) == ["a", "empty"]
    copier.set_chunk(metadata.select_byte_ranges(lambda name: name in "bd"), {"b", "d"}, 10**6)
    found = copier.wait_io(copier.submit_io(True, BLOCK), dtype=DType.F32)
    assert sorted(found) == ["b", "d"]
    assert found["b"].get_raw().dtype is torch.float32
    copier.set_byte_ranges(None)
    assert len(copier.wait_io(copier.submit_io(True, BLOCK))) == len(TENSORS)
    with pytest.raises(ValueError, match="there is no tensor 'x'"):
        copier.set_chunk([], {"x"})
    with pytest.raises(ValueError, match="max_copy_block_size must be positive"):
        copier.submit_io(True, 0)
    with pytest.raises(ValueError, match="wait_io without submit_io"):
        copier.wait_io(DummyDeviceBuffer())


@pytest.mark.parametrize(
    "ranges", [[(0, 9)], [(900, 800)], [(10**6, 10**6 + 1)], [(1,)], [(True, 900)], [("a", "b")]], ids=repr
)
def test_ranges_outside_of_the_data_are_refused(file: str, ranges: Any) -> None:
    with pytest.raises(ValueError, match=r"byte_ranges\[0\]"):
        validated_byte_ranges(metadata_of(file), ranges)


def test_ranges_and_sizes_that_fit_are_given_back(file: str) -> None:
    metadata = metadata_of(file)
    ranges = metadata.select_byte_ranges(lambda name: True)
    assert validated_byte_ranges(metadata, ranges) == ranges
    assert validated_byte_ranges(metadata, None) is None
    with pytest.raises(ValueError, match="byte_ranges"):
        validated_byte_ranges(metadata, ranges + ranges)
    assert validated_chunk_allocation_size([(10, 20), (30, 40)], 30) == 30
    assert validated_chunk_allocation_size([(10, 20)], None) is None
    with pytest.raises(ValueError, match="allocation_size=29 is less than the 30 bytes"):
        validated_chunk_allocation_size([(10, 20), (30, 40)], 29)


def test_a_copier_that_there_is_not_is_named() -> None:
    with pytest.raises(KeyError, match="there is no copier 'mine'"):
        create_copier_constructor("mine", Device())


def test_a_copier_of_the_callers_own_can_be_registered() -> None:
    @register_copier_constructor("own for this test")
    def make(device: Device, **_: Any) -> Any:
        return lambda metadata, device, framework: None

    construct = create_copier_constructor("own for this test", Device())
    assert copier_class_of(construct) is get_copier_class("own for this test") is CopierInterface


def test_asking_for_gds_itself_is_an_error_that_says_gds_where_there_is_none() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine may have GPUDirect Storage")
    with pytest.raises(RuntimeError, match="gds"):
        init_gds()


class HostReader:
    """What ThreeFSFileCopier takes: it reads to an address."""

    def read_chunked(self, path: str, dev_ptr: int, file_offset: int, total_length: int, chunk_size: int) -> int:
        import ctypes

        data = Path(path).read_bytes()[file_offset : file_offset + total_length]
        ctypes.memmove(dev_ptr, data, len(data))
        return len(data)


def test_tensors_over_shared_memory_keep_it_until_the_last_is_gone(file: str) -> None:
    operations = get_framework_op("pytorch")
    before = live_allocation_count()
    copier = ThreeFSFileCopier(metadata_of(file), Device(), HostReader(), operations)
    factory = LazyTensorFactory(metadata_of(file), Device(), 0, True, 1, 0, copier, operations)
    factory.submit_io(True, BLOCK)
    factory.wait_io()
    group = operations.get_process_group(SingleGroup())
    found = {name: factory.shuffle(group, name, -1).get_raw() for name in TENSORS}
    joined = factory.shuffle_multi_cols(group, ["a", "d"], 1).get_raw()
    pushed = factory.push(group, "b", 0, 0)
    assert pushed is not None
    assert live_allocation_count() == before + 1
    factory.free_dev_ptrs()
    factory.free_dev_ptrs()
    gc.collect()
    helpers.assert_same_tensors(found, TENSORS)
    assert torch.equal(joined, torch.cat([TENSORS["a"], TENSORS["d"]], 1))
    assert live_allocation_count() == before + 1
    with pytest.raises(KeyError, match="'a' is not read, or was let go"):
        factory.shuffle(group, "a", -1)
    del found, pushed
    gc.collect()
    assert live_allocation_count() == before


def test_a_short_read_of_the_callers_reader_is_an_error(file: str) -> None:
    class Short(HostReader):
        def read_chunked(self, *arguments: Any, **keywords: Any) -> int:
            return super().read_chunked(*arguments, **keywords) - 1

    copier = ThreeFSFileCopier(metadata_of(file), Device(), Short(), get_framework_op("pytorch"))
    with pytest.raises(OSError, match=r"file\.safetensors: \d+ of \d+ bytes were read"):
        copier.submit_io(True, BLOCK)
