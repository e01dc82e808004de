"""save: every kind of tensor, shared memory, shards, and how files appear."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import helpers
import ml_dtypes
import numpy as np
import penstock
import pytest
import safetensors
import safetensors.torch
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor


def saved(path: Path, tensors: Any, **arguments: Any) -> dict[str, torch.Tensor]:
    penstock.save(tensors, path, **arguments)
    return safetensors.torch.load_file(path)


STRIDED = {
    "transposed": lambda: torch.arange(24.0).reshape(4, 6).t(),
    "every other": lambda: torch.arange(40, dtype=torch.int16).reshape(4, 10)[1:, ::2],
    "permuted": lambda: torch.arange(120, dtype=torch.uint8).reshape(2, 3, 4, 5).permute(3, 1, 0, 2),
    "expanded": lambda: torch.arange(3.0).expand(5, 3),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "conjugated": lambda: torch.randn(3, 4, dtype=torch.complex64).conj(),
    "negative": lambda: torch.randn(3, 4, dtype=torch.complex64).conj().imag,
    "large": lambda: torch.randn(1200, 1700).t(),
    "f8": lambda: torch.randn(4, 6).to(torch.float8_e4m3fn).t(),
    "f4": lambda: torch.arange(24, dtype=torch.uint8).reshape(4, 6).view(torch.float4_e2m1fn_x2).t(),
    "offset": lambda: torch.arange(10, dtype=torch.uint8)[3:],
    "requires grad": lambda: torch.randn(3, requires_grad=True),
    "parameter": lambda: nn.Parameter(torch.randn(3)),
}


@pytest.mark.parametrize("name", STRIDED)
def test_a_tensor_is_saved_as_torch_sees_it(path: Path, name: str) -> None:
    tensor = STRIDED[name]()
    assert helpers.same(saved(path, {"x": tensor})["x"], tensor.detach().resolve_conj().resolve_neg())


ARRAYS = {
    "transposed": lambda: np.arange(24.0).reshape(4, 6).T,
    "reversed": lambda: np.arange(24, dtype=np.int32)[::-3],
    "big endian": lambda: np.arange(5, dtype=">f4"),
    "big endian, strided": lambda: np.arange(24, dtype=">i8").reshape(4, 6)[:, 1::2],
    "read only": lambda: np.frombuffer(b"abcdefgh", np.uint16),
    "broadcast": lambda: np.broadcast_to(np.arange(3.0), (4, 3)),
    "scalar": lambda: np.float32(2.5),
    "bfloat16": lambda: np.arange(5).astype(ml_dtypes.bfloat16),
    "float8": lambda: np.arange(5).astype(ml_dtypes.float8_e5m2),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_is_saved_as_numpy_sees_it(path: Path, name: str) -> None:
    array = np.asarray(ARRAYS[name]())
    penstock.save({"x": ARRAYS[name]()}, path)
    loaded = penstock.load(path, framework="numpy")["x"]
    assert loaded.shape == array.shape
    assert loaded.dtype == array.dtype.newbyteorder("=")
    assert np.array_equal(loaded, array)


def test_anything_with_dlpack_is_saved(path: Path) -> None:
    class Foreign:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor

        def __dlpack__(self, **arguments: Any) -> Any:
            return self.tensor.__dlpack__(**arguments)

        def __dlpack_device__(self) -> Any:
            return self.tensor.__dlpack_device__()

    tensor = torch.randn(3, 4).bfloat16()
    assert helpers.same(saved(path, {"x": Foreign(tensor)})["x"], tensor)


def test_a_module_and_a_lazy_tensor_can_be_saved(path: Path, tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    helpers.assert_same_tensors(saved(path, model), dict(model.state_dict()))
    with penstock.open(path) as reader:
        helpers.assert_same_tensors(saved(tmp_path / "copy.safetensors", reader), dict(model.state_dict()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.eye(3).to_sparse(), r"^x: a sparse_coo tensor can't be saved; call to_dense\(\)$"),
        (
            lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
            "^x: a quantised tensor can't be saved",
        ),
        (
            lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
            "^x: a (nested|jagged) tensor can't be saved",
        ),
        (lambda: TwoTensor(torch.ones(2), torch.ones(2)), "^x: a TwoTensor has no memory of its own$"),
        (lambda: torch.ones(2, device="meta"), "^x: a tensor on the meta device has no data$"),
        (lambda: np.ma.masked_array([1.0], [True]), r"^x: a masked array can't be saved; call filled\(\)$"),
        (lambda: np.array([object()]), "^x: arrays of object can't be saved$"),
        (lambda: 3, "^x: expected a tensor, not int$"),
        (lambda: "text", "^x: expected a tensor, not str$"),
        (lambda: None, "^x: expected a tensor, not NoneType$"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_is_no_plain_tensor_is_refused(path: Path, make: Any, message: str) -> None:
    with pytest.raises(penstock.Error, match=message):
        penstock.save({"x": make()}, path)
    assert not path.exists()


@pytest.mark.parametrize("tensors", [[torch.ones(1)], torch.ones(1), {1: torch.ones(1)}, 3])
def test_what_has_no_names_is_refused(path: Path, tensors: Any) -> None:
    with pytest.raises(penstock.ArgumentError):
        penstock.save(tensors, path)


@pytest.mark.parametrize("metadata", [{"a": 1}, {1: "a"}, {"a": None}])
def test_metadata_is_text(path: Path, metadata: Any) -> None:
    with pytest.raises(penstock.ArgumentError, match="both key and value must be strings"):
        penstock.save({"x": torch.ones(1)}, path, metadata=metadata)


def test_metadata_that_is_empty_is_written_as_the_reference_does(path: Path) -> None:
    for metadata, keys in (({}, {"__metadata__", "x"}), (None, {"x"})):
        penstock.save({"x": torch.ones(1)}, path, metadata=metadata)
        data = path.read_bytes()
        assert json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).keys() == keys
        assert data == safetensors.torch.save({"x": torch.ones(1)}, metadata)


def test_the_reference_reads_the_metadata(path: Path) -> None:
    penstock.save({"x": torch.ones(1)}, path, metadata={"format": "pt", "snow": "❄"})
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt", "snow": "❄"}


def test_shared_memory_is_refused_by_default(path: Path) -> None:
    tensor = torch.arange(6.0)
    for other in (tensor, tensor[1:3]):
        with pytest.raises(penstock.ArgumentError) as caught:
            penstock.save({"a": tensor, "b": other}, path)
        assert "a" in str(caught.value)
        assert "b" in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1
    assert not path.exists()


def test_neighbours_in_one_storage_are_not_shared(path: Path) -> None:
    tensor = torch.arange(6.0)
    helpers.assert_same_tensors(saved(path, {"a": tensor[:3], "b": tensor[3:]}), {"a": tensor[:3], "b": tensor[3:]})


def test_shared_memory_can_be_stored_once(path: Path) -> None:
    tensor = torch.arange(6.0)
    loaded = saved(path, {"a": tensor, "b": tensor}, shared="deduplicate")
    (stored,) = loaded
    (other,) = {"a", "b"} - {stored}
    assert torch.equal(loaded[stored], tensor)
    assert penstock.open(path).metadata == {other: stored}
    with pytest.raises(penstock.ArgumentError):
        penstock.save({"a": tensor, "b": tensor[1:3]}, path, shared="deduplicate")


def test_shared_memory_can_be_stored_twice(path: Path) -> None:
    tensor = torch.arange(6.0)
    expected = {"a": tensor, "b": tensor, "c": tensor[1:3]}
    helpers.assert_same_tensors(saved(path, expected, shared="duplicate"), expected)


@pytest.mark.parametrize("method", ["auto", "direct", "buffered"])
@pytest.mark.parametrize("durable", [True, False])
def test_every_method_writes_the_same_tensors(tmp_path: Path, method: str, durable: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    tensors = {f"t{i}": torch.randn(n, generator=generator) for i, n in enumerate([3_000_000, 1, 17, 500_000])}
    path = tmp_path / "ours.safetensors"
    stats = penstock.save(tensors, path, method=method, durable=durable)
    helpers.assert_same_tensors(safetensors.torch.load_file(path), tensors)
    assert stats.bytes == sum(tensor.nbytes for tensor in tensors.values())
    assert stats.path
    assert stats.backend


def test_an_empty_dict_is_a_file_without_tensors(path: Path) -> None:
    assert saved(path, {}) == {}
    assert penstock.load(path) == {}


def test_the_format_follows_the_suffix_or_the_argument(tmp_path: Path) -> None:
    tensors = {"x": torch.ones(2)}
    with pytest.raises(penstock.ArgumentError):
        penstock.save(tensors, tmp_path / "model.xyz")
    penstock.save(tensors, tmp_path / "model.xyz", format="safetensors")
    helpers.assert_same_tensors(penstock.load(tmp_path / "model.xyz"), tensors)
    with pytest.raises(penstock.ArgumentError):
        penstock.save(tensors, tmp_path / "model.safetensors", format="parquet")


def test_shards_have_an_index(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    penstock.save(tensors, tmp_path / "model.safetensors", max_shard_size="1KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(tensors)
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in tensors.values())
    assert set(index["weight_map"].values()) == {p.name for p in tmp_path.glob("*.safetensors")}
    for name, shard in index["weight_map"].items():
        assert helpers.same(safetensors.torch.load_file(tmp_path / shard)[name], tensors[name])


def test_an_existing_file_is_replaced_whole(path: Path) -> None:
    penstock.save({"x": torch.zeros(100_000)}, path)
    assert saved(path, {"y": torch.ones(2)})["y"].tolist() == [1, 1]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_has_the_mode_that_the_umask_leaves(path: Path, umask: int, mode: int) -> None:
    old = os.umask(umask)
    try:
        penstock.save({"x": torch.ones(1)}, path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_replaced_file_keeps_its_mode(path: Path) -> None:
    path.write_bytes(b"old")
    path.chmod(0o640)
    penstock.save({"x": torch.ones(1)}, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_symbolic_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link.safetensors"
    target.write_bytes(b"precious")
    link.symlink_to(target)
    penstock.save({"x": torch.ones(1)}, link)
    assert target.read_bytes() == b"precious"
    assert not link.is_symlink()
    assert penstock.load(link)["x"].tolist() == [1]


def test_links_to_files_are_read_through(tmp_path: Path) -> None:
    blob, snapshot = tmp_path / "blob", tmp_path / "model.safetensors"
    penstock.save({"x": torch.ones(1)}, blob, format="safetensors")
    snapshot.symlink_to(blob)
    assert penstock.load(snapshot)["x"].tolist() == [1]


def test_a_save_can_be_stopped_and_leaves_nothing(path: Path, no_leaks: None) -> None:
    path.write_bytes(b"old")
    with pytest.raises(penstock.CancelledError):
        penstock.save({"x": torch.zeros(2**22)}, path, progress=lambda done, total: False)
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == [path.name]


def test_what_a_progress_callable_raises_stops_the_save(path: Path, no_leaks: None) -> None:
    def fail(done: int, total: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        penstock.save({"x": torch.zeros(2**22)}, path, progress=fail)
    assert os.listdir(path.parent) == []


def test_progress_of_a_save_never_goes_back(path: Path) -> None:
    calls: list[tuple[int, int]] = []
    penstock.save({"x": torch.zeros(2**24)}, path, progress=lambda *call: calls.append(call))
    assert calls == sorted(calls)
    assert calls[-1][0] == calls[-1][1] >= 2**26


def test_what_saves_store_where_nobody_says_is_one_constant(
    tmp_path: Path, tensors: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no drop-in follows it: their files are those of the libraries."""
    from penstock import _save, flashpack
    from penstock.safetensors.torch import save_file

    def has(path: Path) -> bool:
        return penstock.verify(path).had_checksums

    files = {}
    for value in (False, True):
        monkeypatch.setattr(_save, "CHECKSUMS", value)
        penstock.save(tensors, tmp_path / "a.safetensors")
        penstock.save_async(tensors, tmp_path / "b.flashpack").wait()
        assert has(tmp_path / "a.safetensors") == has(tmp_path / "b.flashpack") == value
        penstock.save(tensors, tmp_path / "c.safetensors", checksums=not value)
        assert has(tmp_path / "c.safetensors") == (not value)
        penstock.save(tensors, tmp_path / "d.pt")
        penstock.save(tensors, tmp_path / "e.pt", checksums=None)
        save_file(tensors, tmp_path / "f.safetensors")
        some = {name: tensor for name, tensor in tensors.items() if tensor.dtype == torch.float32}
        flashpack.pack_to_file(some, str(tmp_path / "g.flashpack"), target_dtype=torch.float32)
        assert not has(tmp_path / "f.safetensors")
        files[value] = [(tmp_path / name).read_bytes() for name in ("f.safetensors", "g.flashpack")]
    assert files[False] == files[True]
