"""Files of torch.save, read and written through penstock's own functions, against torch itself."""

from __future__ import annotations

import collections
import io
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import penstock
import penstock.fastpersist.serialization
import pytest
import torch
from torch.utils.serialization import config
from trees import assert_same_trees

GOLDEN = Path(__file__).parent.parent / "data" / "torch"
FORMATS = pytest.mark.parametrize("format", ["torch", "torch-legacy"])


def views() -> dict[str, Any]:
    base = torch.arange(24.0)
    grid = base.view(4, 6)
    return {
        "base": base,
        "same": base,
        "turned": grid.t(),
        "columns": grid[:, 1:3],
        "every_other": base[::2],
        "expanded": base[3:4].expand(2, 3),
        "overlapping": base.as_strided((5, 4), (3, 1)),
        "offset": base[7:],
        "empty": base[24:],
        "scalar": base[5],
    }


def nested() -> dict[str, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters())
    torch.nn.functional.mse_loss(model(torch.ones(2, 3)), torch.ones(2, 4)).backward()
    optimizer.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "parameter": model[0].weight.detach(),
        "views": views(),
        "values": [1, -1, 1 << 70, 1.5, "t\u00e9xt", b"\x00\xff", None, True, 2j, {3}, frozenset({4}), torch.Size([5])],
        "types": (torch.float16, torch.device("cpu"), np.float32(1.5), np.int64(7)),
    }


def write_torch(obj: Any, path: Path, format: str, **arguments: Any) -> None:
    torch.save(obj, path, _use_new_zipfile_serialization=format == "torch", **arguments)


@FORMATS
def test_a_tree_loads_as_torch_loads_it(format: str, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    write_torch(nested(), path, format)
    assert_same_trees(penstock.load(path), torch.load(path, weights_only=False))


@FORMATS
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickles_of_every_protocol_load(format: str, protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    write_torch(nested(), path, format, pickle_protocol=protocol)
    assert_same_trees(penstock.load(path), torch.load(path, weights_only=False))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("name", [path.name for path in sorted(GOLDEN.glob("*.pt")) if path.name != "script.pt"])
def test_golden_files_load_as_torch_loads_them(name: str) -> None:
    # torch writes its younger types to legacy files, and fails to load them again.
    readable = name.replace("every_dtype.legacy", "every_dtype")
    assert_same_trees(penstock.load(GOLDEN / name), torch.load(GOLDEN / readable, weights_only=False))


@FORMATS
def test_torch_reads_what_was_saved_with_every_option(format: str, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    tree: dict[str, Any] = {"model": {"w": torch.randn(1000, 300), "b": torch.randn(7)}, "views": views(), "step": 3}
    tree["tied"] = tree["model"]["w"]
    penstock.save(tree, path, format=format)
    for weights_only in (True, False):
        assert_same_trees(torch.load(path, weights_only=weights_only), tree)
    assert torch.load(path, map_location="meta")["model"]["w"].device.type == "meta"
    if format == "torch":
        assert_same_trees(torch.load(path, mmap=True), tree)
    assert_same_trees(penstock.load(path), tree)
    assert penstock.verify(path).ok
    if format == "torch-legacy":
        penstock.seal(path)  # it has no checksums of its own
    assert_same_trees(penstock.load(path, verify=True), tree)


@pytest.mark.parametrize("alignment", [64, 4096])
@pytest.mark.parametrize("checksums", [True, False])
def test_zips_are_byte_for_byte_those_of_torch(alignment: int, checksums: bool, tmp_path: Path) -> None:
    for name, obj in {
        "tree": nested(),
        "views": views(),
        "large": {"w": torch.randn(700, 500), "x": torch.zeros(3)},
        "bytes": {"f8": torch.zeros(5).to(torch.float8_e4m3fn), "u": torch.arange(4).to(torch.uint16)},
        "t\u00e9xt": {"a": torch.ones(2)},
    }.items():
        path = tmp_path / f"{name}.pt"
        before = torch.serialization.get_crc32_options()
        torch.serialization.set_crc32_options(checksums)
        try:
            with config.patch("save.storage_alignment", alignment):  # type: ignore[attr-defined]
                torch.save(obj, path)
        finally:
            torch.serialization.set_crc32_options(before)
        expected = path.read_bytes()
        penstock.save(obj, path, record_alignment=alignment, record_checksums=checksums)
        assert path.read_bytes() == expected, name


def test_legacy_files_are_byte_for_byte_those_of_torch(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    objects: list[Any] = [nested(), views(), {"w": torch.randn(700, 500)}, torch.ones(3), [], {"n": torch.empty(0)}]
    for obj in objects:
        torch.save(obj, path, _use_new_zipfile_serialization=False)
        expected = path.read_bytes()
        penstock.save(obj, path, format="torch-legacy")
        assert path.read_bytes() == expected


def objects_of_every_kind() -> list[Any]:
    shared = torch.randn(4, 3)
    return [
        nested(),
        views(),
        collections.OrderedDict(weight=shared, tied=shared, parameter=torch.nn.Parameter(shared[1:])),
        {"parameters": [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.zeros(0), requires_grad=False)]},
        # Frames end at 64 KiB, batches of entries at 1000, and long strings have no frame.
        {f"layers.{i}.weight": torch.full((1 + i % 3,), float(i)) for i in range(2500)},
        [*range(-1500, 1500), "x" * 70_000, "y" * 300, b"z" * 70_000, bytearray(b"w" * 70_000), 1.5, None, True],
        torch.ones(3),
        [],
    ]


@FORMATS
@pytest.mark.parametrize("protocol", [2, 3, 4, 5, -1])
def test_pickles_of_every_protocol_are_byte_for_byte_those_of_torch(format: str, protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    for number, obj in enumerate(objects_of_every_kind()):
        write_torch(obj, path, format, pickle_protocol=protocol)
        expected = path.read_bytes()
        stats: dict[str, Any] = {}
        penstock.fastpersist.serialization.save(
            obj,
            path,
            pickle_protocol=protocol,
            _use_new_zipfile_serialization=format == "torch",
            classic=True,
            stats=stats,
        )
        assert path.read_bytes() == expected, number
        assert stats["path"] != "torch"
        assert_same_trees(torch.load(path, weights_only=False), obj)


def test_legacy_files_of_the_first_protocols_are_torchs(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    obj = {"w": torch.ones(3)}
    for protocol in (0, 1):
        stats: dict[str, Any] = {}
        penstock.fastpersist.serialization.save(
            obj, path, pickle_protocol=protocol, _use_new_zipfile_serialization=False, stats=stats
        )
        assert stats["reason"] == f"a legacy file with pickles of protocol {protocol}"


@pytest.mark.parametrize("count", [0, 1, 2, 999, 1000, 1001, 2000, 2001])
def test_pickles_made_without_python_are_those_of_torch(count: int, tmp_path: Path) -> None:
    tensors = {f"layers.{i}": torch.tensor([float(i)] * (1 + i % 3)) for i in range(count)}
    penstock.save(tensors, tmp_path / "m.safetensors")
    torch.save(tensors, tmp_path / "m.pt")
    expected = (tmp_path / "m.pt").read_bytes()
    reader = penstock.open(tmp_path / "m.pt")
    assert len(reader) == count
    # convert() reads in the order of the bytes, which is that of the dict here.
    (tmp_path / "out").mkdir()
    penstock.convert(tmp_path / "m.pt", tmp_path / "out" / "m.pt", record_alignment=64)
    assert (tmp_path / "out" / "m.pt").read_bytes() == expected
    penstock.convert(tmp_path / "m.pt", tmp_path / "out" / "old.pt", format="torch-legacy")
    assert_same_trees(torch.load(tmp_path / "out" / "old.pt"), tensors)


@FORMATS
def test_tensors_are_addressed_by_their_paths(format: str, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    write_torch(
        {"model": {"layer.0.weight": torch.ones(2)}, "list": [torch.zeros(1), 3], "views": views()}, path, format
    )
    with penstock.open(path) as reader:
        assert sorted(reader) == sorted(["model/layer.0.weight", "list/0", *(f"views/{name}" for name in views())])
        assert helpers.same(reader["model/layer.0.weight"].load(), torch.ones(2))
        for name, view in views().items():
            assert helpers.same(reader[f"views/{name}"].load(), view.contiguous()), name
        assert helpers.same(reader["views/turned"][1:3, 2:], views()["turned"][1:3, 2:].contiguous())
    streamed = dict(penstock.stream(path))
    assert set(streamed) == set(penstock.open(path))
    for name, view in views().items():
        assert helpers.same(streamed[f"views/{name}"], view.contiguous()), name


@FORMATS
@pytest.mark.parametrize("suffix", ["safetensors", "flashpack"])
def test_views_survive_conversions(format: str, suffix: str, tmp_path: Path) -> None:
    write_torch(views(), tmp_path / "m.pt", format)
    penstock.convert(tmp_path / "m.pt", tmp_path / f"m.{suffix}", checksums=True)
    found = penstock.load(tmp_path / f"m.{suffix}")
    for name, view in views().items():
        assert helpers.same(found[name].reshape(view.shape), view.contiguous()), name
    assert penstock.verify(tmp_path / f"m.{suffix}").ok


def test_tied_tensors_share_memory_after_a_load(tmp_path: Path) -> None:
    penstock.save(views(), tmp_path / "m.pt")
    tree = penstock.load(tmp_path / "m.pt")
    assert tree["same"] is tree["base"]
    assert tree["turned"].untyped_storage().data_ptr() == tree["base"].untyped_storage().data_ptr()
    tree["base"][0] = 100.0
    assert tree["turned"][0, 0] == 100.0


def test_locations_of_other_devices_load_on_the_cpu(tmp_path: Path) -> None:
    torch.save({"w": torch.arange(3.0)}, tmp_path / "m.pt")
    with zipfile.ZipFile(tmp_path / "m.pt") as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    records["m/data.pkl"] = records["m/data.pkl"].replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:1")
    rewrite(tmp_path / "m.pt", records)
    assert penstock.load(tmp_path / "m.pt")["w"].tolist() == [0.0, 1.0, 2.0]


def rewrite(path: Path, records: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in records.items():
            archive.writestr(name, data)


class Gadget:
    """Calls what it is told to when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@FORMATS
@pytest.mark.parametrize(
    ("function", "name"),
    [
        (eval, "__builtin__.eval"),
        (getattr, "__builtin__.getattr"),
        (Path.touch, "__builtin__.getattr"),  # by which the method is looked up
        (io.open, "io.open"),
    ],
)
def test_gadgets_are_named_and_never_called(format: str, function: Any, name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    mark = tmp_path / "executed"
    gadget = Gadget(eval, f"open({str(mark)!r}, 'w')") if function is eval else Gadget(function, mark)
    write_torch({"w": torch.ones(1), "gadget": gadget}, path, format)
    with pytest.raises(penstock.UnsupportedFormatError, match=r"byte \d+: the global ") as caught:
        penstock.load(path)
    assert str(path) in str(caught.value)
    assert f'"{name}"' in str(caught.value)
    assert 'it was not imported (opaque="keep" loads the rest)' in str(caught.value)
    for found in (penstock.open(path), penstock.verify(path), penstock.inspect(path)):
        assert found.opaque == [("gadget", name)]
    with pytest.warns(penstock.OpaqueWarning, match=rf"m.pt: left out .* gadget \({name}\)"):
        assert [each for each, _ in penstock.stream(path)] == ["w"]
    notes = penstock.convert(path, tmp_path / "m.safetensors")["notes"]
    assert f'objects are left out, but for the tensors in them: "gadget" ({name})' in notes
    assert list(penstock.load(tmp_path / "m.safetensors")) == ["w"]
    kept = penstock.load(path, opaque="keep")
    assert torch.equal(kept["w"], torch.ones(1))
    assert isinstance(kept["gadget"], penstock.Opaque)
    assert kept["gadget"].name == name
    assert not mark.exists()


def test_programs_and_archives_of_other_kinds_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(penstock.UnsupportedFormatError, match="a TorchScript archive, which is a program"):
        penstock.load(GOLDEN / "script.pt")
    with tarfile.open(tmp_path / "old.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("storages"))
    with pytest.raises(penstock.FormatError, match="a tar archive"):
        penstock.load(tmp_path / "old.tar")
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps({"a": 1}, protocol=2))
    with pytest.raises(penstock.FormatError, match="a Python pickle"):
        penstock.load(tmp_path / "plain.pkl")


def test_big_endian_files_and_missing_records_are_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(3)}, tmp_path / "m.pt")
    with zipfile.ZipFile(tmp_path / "m.pt") as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    rewrite(tmp_path / "m.pt", records | {"m/byteorder": b"big"})
    with pytest.raises(penstock.UnsupportedFormatError, match='its byte order is "big"'):
        penstock.load(tmp_path / "m.pt")
    del records["m/data/0"]
    rewrite(tmp_path / "m.pt", records)
    with pytest.raises(penstock.FormatError, match='storage "0" has no record'):
        penstock.load(tmp_path / "m.pt")


@FORMATS
def test_a_file_cut_anywhere_is_an_error(format: str, tmp_path: Path) -> None:
    write_torch({"w": torch.arange(3.0), "n": 1}, tmp_path / "whole.pt", format)
    whole = (tmp_path / "whole.pt").read_bytes()
    cut = tmp_path / "cut.pt"
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        with pytest.raises(penstock.FormatError):
            penstock.load(cut)


def test_verify_names_the_record_that_changed(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    torch.save({"a": torch.arange(100.0), "b": torch.arange(50.0)}, path)
    data = bytearray(path.read_bytes())
    data[data.find(struct.pack("<3f", 47, 48, 49), len(data) // 2)] ^= 1
    path.write_bytes(data)
    report = penstock.verify(path)
    assert not report.ok
    assert len(report.problems) == 1
    assert 'record "m/data/1" is corrupt: its CRC-32 is ' in report.problems[0]
    assert {tensor.name: tensor.ok for tensor in report.tensors} == {"a": True, "b": False}
    with pytest.raises(penstock.FormatError, match='record "m/data/1" is corrupt'):
        penstock.load(path, verify=True)


def test_marked_tensors_are_never_read_wrong(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    value = torch.tensor([1 + 2j, 3 - 4j])
    for obj in ({"t": value.conj()}, {"t": value.conj().imag}):
        torch.save(obj, path)
        loaded = penstock.load(path)["t"]
        assert loaded.is_conj() == obj["t"].is_conj()
        assert loaded.is_neg() == obj["t"].is_neg()
        assert torch.equal(loaded, obj["t"])
        # Its bytes are those of another tensor.
        assert list(penstock.open(path)) == []
        assert penstock.open(path).opaque == [("t", "a tensor that is marked as conjugated or negated")]


def test_hollow_files_above_4_gib_open_at_once(tmp_path: Path) -> None:
    """A storage of 5 GiB, then small ones: zip64 sizes, zip64 offsets and descriptors of 24 bytes."""
    path = tmp_path / "m.pt"
    huge = 5 << 30
    with torch.serialization.skip_data():
        torch.save(
            {"huge": torch.empty(huge, dtype=torch.uint8), "small": torch.arange(3.0), "empty": torch.empty(0)}, path
        )
    assert path.stat().st_size > huge
    with penstock.open(path) as reader:
        assert reader["huge"].shape == (huge,)
        assert reader["small"].shape == (3,)
        assert reader["huge"][huge - 2 :].tolist() == [0, 0]


def test_twenty_thousand_tiny_tensors_arrive(tmp_path: Path) -> None:
    tensors = collections.OrderedDict((f"t{i}", torch.full((2,), float(i))) for i in range(20_000))
    penstock.save(tensors, tmp_path / "m.pt", durable=False)
    found = penstock.load(tmp_path / "m.pt")
    assert list(found) == list(tensors)
    assert found["t19999"].tolist() == [19999.0, 19999.0]
    assert torch.load(tmp_path / "m.pt")["t12345"].tolist() == [12345.0, 12345.0]


CACHES = pytest.mark.parametrize("cache", ["auto", "copy", "direct", "buffered", "mmap"])


def overlapping() -> dict[str, Any]:
    """A tensor, and later parts of it that end before it does: of one storage, so of the same bytes of the file."""
    base = torch.arange(300_000, dtype=torch.float32)
    return {"whole": base, "part": base[200:300], "later": base[1000:2000], "turned": base.view(500, 600).t()}


@FORMATS
@CACHES
@pytest.mark.parametrize("warm", [True, False])
def test_tensors_over_the_same_bytes_are_each_read_in_full(tmp_path: Path, format: str, cache: str, warm: bool) -> None:
    path = tmp_path / "model.pt"
    torch.save(overlapping(), path, _use_new_zipfile_serialization=format == "torch")
    path.read_bytes() if warm else penstock.measure.drop_page_cache(path)
    expected = {name: tensor.contiguous() for name, tensor in overlapping().items()}
    loads: list[dict[str, Any]] = [
        penstock.load(path, framework="numpy", cache=cache),
        dict(penstock.stream(path, framework="numpy", cache=cache, max_buffer=4096)),
        {name: tensor.numpy() for name, tensor in penstock.open(path, cache=cache).items()},
    ]
    if format == "torch-legacy":
        penstock.seal(path)  # it has no checksums of its own
    if cache != "mmap":
        loads.append(penstock.load(path, framework="numpy", cache=cache, verify=True))
        loads.append(dict(penstock.stream(path, framework="numpy", cache=cache, verify=True, max_buffer=4096)))
    target = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    penstock.load_into(target, path, cache=cache)
    loads.append({name: tensor.numpy() for name, tensor in target.items()})
    for number, loaded in enumerate(loads):
        for name, tensor in expected.items():
            assert np.array_equal(loaded[name], tensor.numpy()), (number, name)


def test_a_verified_stream_checks_views_too(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"turned": torch.arange(10_000, dtype=torch.float32).view(100, 100).t(), "plain": torch.ones(9)}, path)
    with zipfile.ZipFile(path) as archive:
        record = max(archive.infolist(), key=lambda each: each.file_size)
    content = bytearray(path.read_bytes())
    at = content.find(struct.pack("<3f", 5000.0, 5001.0, 5002.0))
    content[at + 3] ^= 1
    path.write_bytes(content)
    for load in (penstock.load, penstock.stream):
        with pytest.raises(penstock.FormatError, match=f"record .{record.filename}. is corrupt"):
            dict(load(path, framework="numpy", verify=True))
    assert len(dict(penstock.stream(path, framework="numpy"))) == 2


def test_a_verified_stream_of_many_small_portions_reads_the_directory_once(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    state = {f"t{i}": torch.full((50,), float(i)) for i in range(500)}
    torch.save(state, path)
    loaded = dict(penstock.stream(path, verify=True, max_buffer=1024))
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
