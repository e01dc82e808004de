"""Torch files as they are found: objects beside the weights, old versions, arrays, compressed records."""

from __future__ import annotations

import argparse
import collections
import copy
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import penstock
import penstock.fastpersist.serialization
import pytest
import torch
from torch_pickles import ORDERED_DICT, group, name, number, storage, tensor, text, write_legacy, write_zip

FORMATS = pytest.mark.parametrize("legacy", [False, True])


def write(obj: Any, path: Path, legacy: bool = False) -> None:
    torch.save(obj, path, _use_new_zipfile_serialization=not legacy)


class Attributes(dict[str, Any]):
    """A dict with attributes, such as frameworks keep their settings in."""


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 4)
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self.norm(self.linear(x))
        return normed


# ---- Objects beside the weights.


@FORMATS
def test_weights_beside_objects_are_loaded_and_the_objects_named(legacy: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.ckpt"
    weights = {"w": torch.arange(6.0), "b": torch.ones(2, dtype=torch.bfloat16)}
    settings = Attributes(lr=0.1)
    settings.note = "x"  # type: ignore[attr-defined]
    write({"state": weights, "args": argparse.Namespace(depth=3, first=weights["w"]), "hp": settings}, path, legacy)
    with pytest.raises(
        penstock.UnsupportedFormatError, match=r'"argparse.Namespace" is not .* \(opaque="keep" loads the'
    ):
        penstock.load(path)
    tree = penstock.load(path, opaque="keep")
    assert torch.equal(tree["state"]["w"], weights["w"])
    assert torch.equal(tree["state"]["b"], weights["b"])
    assert tree["args"].name == "argparse.Namespace"
    assert tree["args"].arguments == ()
    assert tree["args"].state["depth"] == 3
    assert tree["args"].state["first"] is tree["state"]["w"]
    assert tree["hp"].name == f"{__name__}.Attributes"
    assert dict(tree["hp"].entries) == {"lr": 0.1}
    assert tree["hp"].state == {"note": "x"}
    assert repr(tree["args"]) == "<penstock.Opaque: argparse.Namespace>"
    with penstock.open(path) as reader:
        assert set(reader) == {"state/w", "state/b", "args/first"}
        assert torch.equal(reader["args/first"][2:4], torch.tensor([2.0, 3.0]))
        assert reader.opaque == [("args", "argparse.Namespace"), ("hp", f"{__name__}.Attributes")]
        assert str(reader.opaque[0]) == "args (argparse.Namespace)"


@FORMATS
def test_a_module_that_was_saved_whole_gives_up_its_tensors(legacy: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    net = Net()
    write(net, path, legacy)
    with penstock.open(path) as reader:
        found = {each: reader[each][...] for each in reader if reader[each].shape}
        assert reader.opaque == [("", f"{__name__}.Net")]
    assert torch.equal(found["_modules/linear/_parameters/weight"], net.linear.weight)
    assert torch.equal(found["_modules/norm/_buffers/running_var"], net.norm.running_var)
    kept = penstock.load(path, opaque="keep")
    linear = kept.state["_modules"]["linear"]
    assert linear.name == "torch.nn.modules.linear.Linear"
    assert torch.equal(linear.state["_parameters"]["bias"], net.linear.bias)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_program_gives_up_its_tensors_by_the_names_of_its_modules(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    scripted = torch.jit.script(Net())
    scripted.save(str(path))
    weights = scripted.state_dict()
    loaded = penstock.load(path, select=lambda info: True)
    assert {each.replace("/", ".") for each in loaded} == set(weights)
    for each, value in loaded.items():
        assert torch.equal(value, weights[each.replace("/", ".")])
    with pytest.raises(penstock.UnsupportedFormatError, match="a TorchScript archive, which is a program"):
        penstock.load(path)
    assert penstock.load(path, opaque="keep").name == "__torch__." + f"{__name__}.Net"


def test_objects_that_refer_to_each_other_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    first, second = argparse.Namespace(), argparse.Namespace()
    first.other, second.other, second.w = second, first, torch.ones(2)
    write([first, second, first], path)
    kept = penstock.load(path, opaque="keep")
    assert kept[0] is kept[2]
    assert kept[0].state["other"] is kept[1]
    assert kept[1].state["other"] is kept[0]
    assert list(penstock.open(path)) == ["0/other/w"]


def test_what_stands_for_an_object_is_never_saved_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    write({"w": torch.ones(1), "a": argparse.Namespace()}, path)
    kept = penstock.load(path, opaque="keep")
    with pytest.raises(TypeError, match="argparse.Namespace> can't be saved or copied"):
        penstock.save(kept, tmp_path / "again.pt")
    with pytest.raises(TypeError, match="can't be saved or copied"):
        copy.deepcopy(kept)
    assert not (tmp_path / "again.pt").exists()


def test_other_words_for_opaque_are_refused(tmp_path: Path) -> None:
    penstock.save({"w": torch.ones(1)}, tmp_path / "m.safetensors")
    with pytest.raises(penstock.ArgumentError, match='opaque must be one of "refuse", "keep", not \'drop\''):
        penstock.load(tmp_path / "m.safetensors", opaque="drop")


def test_nothing_is_imported_and_nothing_runs(tmp_path: Path) -> None:
    """In a process of its own, which tells every import and every process, file and name that is asked for."""
    path = tmp_path / "m.pt"
    mark = tmp_path / "executed"
    calls = [
        name("os", "system") + text(f"touch {mark}") + b"\x85R",
        name("builtins", "exec") + text(f"open({str(mark)!r}, 'w')") + b"\x85R",
        name("subprocess", "Popen") + text(f"touch {mark}") + b"\x85R",
        name("shelve", "open") + text(str(mark)) + b"\x85R",
        name("antigravity", "fly"),
        name("builtins", "__import__") + text("antigravity") + b"\x85R",
    ]
    write_zip(path, b"](" + b"".join(calls) + tensor(storage("FloatStorage", "0", 6), 0, (6,), (1,)) + b"e", b"x" * 24)
    script = f"""
import sys
import warnings
import penstock, torch, numpy
path = {str(path)!r}
penstock.load({str(path)!r}, opaque="keep")
before = set(sys.modules)
seen = []
sys.addaudithook(lambda event, arguments: seen.append((event, arguments)))
warnings.simplefilter("ignore")
penstock.load(path, opaque="keep")
list(penstock.stream(path))
penstock.open(path).opaque
penstock.verify(path)
try:
    penstock.load(path)
except penstock.UnsupportedFormatError:
    pass
bad = [event for event in seen if event[0] in ("import", "exec", "os.system", "subprocess.Popen", "os.posix_spawn")]
bad += [event for event in seen if event[0] == "open" and "executed" in str(event[1])]
print(sorted(set(sys.modules) - before), bad)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[] []"
    assert not mark.exists()


# ---- Arrays.

ARRAYS = {
    "f": np.arange(6, dtype=np.float32).reshape(2, 3),
    "big": np.arange(6, dtype=">f8").reshape(3, 2),
    "columns": np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3)),
    "bytes": np.arange(256, dtype=np.uint8),
    "flags": np.array([True, False]),
    "complex": np.array([1 + 2j], dtype=">c8"),
    "half": np.array(1.5, dtype=np.float16),
    "nothing": np.zeros((0, 3), dtype=np.int64),
}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@FORMATS
def test_numpy_arrays_are_tensors_and_come_back_as_arrays(legacy: bool, protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    torch.save(
        {**ARRAYS, "w": torch.ones(2)}, path, _use_new_zipfile_serialization=not legacy, pickle_protocol=protocol
    )
    tree = penstock.load(path)
    flat = dict(penstock.stream(path))
    verified = penstock.verify(path, compute=True)
    assert verified.ok
    penstock.convert(path, tmp_path / "m.safetensors")
    converted = penstock.load(tmp_path / "m.safetensors")
    assert set(flat) == set(converted) == {*ARRAYS, "w"}
    for key, array in ARRAYS.items():
        assert tree[key].dtype == array.dtype
        assert tree[key].flags.writeable
        assert np.array_equal(tree[key], array)
        native = torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C"))
        for found in (flat[key], converted[key]):
            assert found.dtype == native.dtype
            assert torch.equal(found, native)
    with penstock.open(path) as reader:
        assert torch.equal(reader["f"][1:], torch.tensor([[3.0, 4.0, 5.0]]))
        assert torch.equal(reader["columns"][:, 1], torch.tensor([1, 4], dtype=torch.int16))


def test_arrays_of_other_things_are_opaque(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    write(
        {"o": np.array([1, "a"], dtype=object), "t": np.array(["2020-01-01"], dtype="M8[D]"), "w": torch.ones(1)}, path
    )
    assert penstock.open(path).opaque == [("o", "numpy.ndarray"), ("t", "numpy.ndarray")]
    with pytest.raises(penstock.UnsupportedFormatError, match="is used in a way that data does not need"):
        penstock.load(path)
    assert penstock.load(path, opaque="keep")["o"].name == "numpy.ndarray"


# ---- Tensors that are more than a view of a storage.


def special_values() -> dict[str, Any]:
    torch.manual_seed(1)
    x = torch.randn(4, 3)
    marked = torch.ones(2)
    marked.tag = "attribute"  # type: ignore[attr-defined]
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.tag = 7  # type: ignore[attr-defined]
    return {
        "quantized": torch.quantize_per_tensor(x, 0.1, 3, torch.qint8),
        "by_channel": torch.quantize_per_channel(x, torch.rand(4) + 0.1, torch.zeros(4).long(), 0, torch.quint8),
        "sparse": x.relu().to_sparse(),
        "rows": x.relu().to_sparse_csr(),
        "sparse_parameter": torch.nn.Parameter(x.relu().to_sparse()),
        "meta": torch.empty(3, 4, device="meta"),
        "attributes": marked,
        "parameter": parameter,
        "counts": collections.Counter("abca"),
        "scheme": torch.per_channel_affine,
        "layout": torch.sparse_coo,
        "types": [torch.quint8, torch.uint16, torch.bits8, torch.int4],
        "surrogate": "a\ud800",
        "storage": torch.FloatStorage([1, 2, 3]),
    }


@FORMATS
@pytest.mark.filterwarnings("ignore")
def test_every_kind_of_value_that_torch_allows_comes_back(legacy: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    values = special_values()
    write(values, path, legacy)
    expected = torch.load(path, weights_only=True)
    for load in (penstock.load, penstock.fastpersist.serialization.load):
        stats: dict[str, Any] = {}
        found: Any = load(path, stats=stats)
        assert stats["path"] != "torch"  # by our own reader
        for key in ("quantized", "by_channel"):
            assert found[key].qscheme() == expected[key].qscheme()
            assert torch.equal(found[key].int_repr(), expected[key].int_repr())
            assert torch.equal(found[key].dequantize(), expected[key].dequantize())
        for key in ("sparse", "rows", "sparse_parameter"):
            assert type(found[key]) is type(expected[key])
            assert found[key].layout == expected[key].layout
            assert torch.equal(found[key].to_dense(), expected[key].to_dense())
        assert found["sparse"].is_coalesced() == expected["sparse"].is_coalesced()
        assert found["meta"].is_meta
        assert found["meta"].shape == (3, 4)
        assert found["attributes"].tag == "attribute"
        assert torch.equal(found["attributes"], expected["attributes"])
        assert type(found["parameter"]) is torch.nn.Parameter
        assert found["parameter"].tag == 7
        assert type(found["counts"]) is collections.Counter
        for key in ("counts", "scheme", "layout", "types", "surrogate"):
            assert found[key] == expected[key]
        assert list(found["storage"]) == [1, 2, 3]


def test_sparse_tensors_whose_indices_lie_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    with torch.sparse.check_sparse_tensor_invariants(enable=False):
        bad = torch.sparse_coo_tensor(torch.tensor([[1000]]), torch.ones(1), (3,))
        write({"s": bad}, path)
    with pytest.raises(penstock.FormatError, match="m.pt: data.pkl: byte"):
        penstock.load(path)


@FORMATS
@pytest.mark.filterwarnings("ignore")
def test_empty_storages_of_several_types_keep_theirs(legacy: bool, tmp_path: Path) -> None:
    write([torch.FloatStorage(0), torch.LongStorage(0), torch.zeros(0, dtype=torch.int8)], tmp_path / "m.pt", legacy)
    found = penstock.load(tmp_path / "m.pt")
    assert [each.dtype for each in found] == [torch.float32, torch.int64, torch.int8]


# ---- Old versions of torch and Python.


def old_tensor(store: bytes, shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
    parts = group(store, number(0), group(*map(number, shape)), group(*map(number, strides)))
    return name("torch._utils", "_rebuild_tensor") + parts + b"R"


def test_tensors_and_dicts_of_the_first_versions_are_read(tmp_path: Path) -> None:
    """torch before 0.4 on Python 2: four arguments, strings that are bytes, an OrderedDict with its items."""
    path = tmp_path / "m.pt"
    data = np.arange(6, dtype=np.float32).tobytes()
    pair = b"](U\x01w" + old_tensor(storage("FloatStorage", "0", 6), (2, 3), (3, 1)) + b"e"
    write_zip(path, name("collections", "OrderedDict") + b"](" + pair + b"e\x85R", data)
    expected = torch.load(path, weights_only=True)
    found = penstock.load(path)
    assert type(found) is collections.OrderedDict
    assert list(found) == list(expected) == ["w"]
    assert torch.equal(found["w"], expected["w"])
    assert torch.equal(found["w"], torch.arange(6.0).reshape(2, 3))


def test_integers_and_instances_as_python_2_wrote_them_are_read(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    write_zip(path, b"}(U\x04stepI12345678901\nU\x03old(" + name("mod", "Old") + b"o}U\x01aK\x05sbu")
    kept = penstock.load(path, opaque="keep")
    assert kept["step"] == 12345678901
    assert kept["old"].name == "mod.Old"
    assert kept["old"].state == {"a": 5}


def test_of_several_objects_in_a_legacy_file_the_first_is_loaded_as_torch_does(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    with path.open("wb") as file:
        for value in (1.0, 2.0):
            torch.save({"w": torch.full((3,), value)}, file, _use_new_zipfile_serialization=False)
    expected = torch.load(path, weights_only=True)
    assert torch.equal(penstock.load(path)["w"], expected["w"])
    assert torch.equal(penstock.load(path)["w"], torch.ones(3))
    assert penstock.verify(path).ok


def test_views_of_storages_in_legacy_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    view = group(text("v"), number(2), number(3))
    whole = name("torch", "FloatStorage")
    key = group(text("storage"), whole, text("11"), text("cpu"), number(6), view) + b"Q"
    data = (6).to_bytes(8, "little") + np.arange(6, dtype=np.float32).tobytes()
    write_legacy(path, tensor(key, 1, (2,), (1,)), ["11"], data)
    assert torch.equal(penstock.load(path), torch.tensor([3.0, 4.0]))
    assert torch.equal(penstock.load(path), torch.load(path, weights_only=True))


# ---- Compressed records.


def deflate(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        records = {each: archive.read(each) for each in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for each, data in records.items():
            archive.writestr(each, data)


@pytest.mark.parametrize("cache", ["auto", "copy", "direct", "buffered", "mmap"])
def test_compressed_files_are_read_like_others(cache: str, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    values = {"zeros": torch.zeros(1000, 1000), "w": torch.arange(1000.0), "t": torch.arange(12.0).reshape(3, 4).t()}
    write({"model": values, "step": 3}, path)
    deflate(path)
    assert path.stat().st_size < 100_000
    tree = penstock.load(path, cache=cache)
    assert tree["step"] == 3
    flat = dict(penstock.stream(path, cache=cache))
    picked = penstock.load(path, select="model/w", dtype=torch.bfloat16)
    for each, value in values.items():
        assert torch.equal(tree["model"][each], value)
        assert torch.equal(flat[f"model/{each}"], value)
    assert torch.equal(picked["model/w"], values["w"].bfloat16())
    with penstock.open(path, cache=cache) as reader:
        assert torch.equal(reader["model/w"][10:12], torch.tensor([10.0, 11.0]))
        assert [file.path for file in reader.files] == [path]
    tree["model"]["w"][0] = 7.0  # its memory is its own
    assert penstock.load(path, cache=cache)["model"]["w"][0] == 0.0
    assert penstock.load(path, verify=True)["step"] == 3
    assert penstock.verify(path).had_checksums
    penstock.convert(path, tmp_path / "m.safetensors", select="model/*")
    assert torch.equal(penstock.load(tmp_path / "m.safetensors")["model/w"], values["w"])
    layer = torch.nn.ParameterDict({"model/w": torch.nn.Parameter(torch.empty(1000))})
    penstock.load_into(layer, path, strict=False)
    assert torch.equal(layer["model/w"], values["w"])


def test_compressed_records_that_are_damaged_are_named(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    write({"w": torch.arange(1000.0)}, path)
    deflate(path)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("m/data/0")
        begin = info.header_offset + 30 + len(info.filename)
    for at in range(begin, begin + info.compress_size, 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        assert 'record "m/data/0"' in problem_of(path)


def problem_of(path: Path) -> str:
    """What verify says of a file: in its report, or by an error where there is nothing to report of."""
    try:
        return "; ".join(penstock.verify(path).problems)
    except penstock.FormatError as problem:
        return str(problem)


def test_a_size_that_deflate_can_not_give_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    write({"w": torch.zeros(1 << 20)}, path)
    deflate(path)
    data = bytearray(path.read_bytes())
    size = (4 << 20).to_bytes(4, "little")
    lie = (4 << 30) - 2
    while (at := data.find(size)) >= 0:
        data[at : at + 4] = lie.to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(penstock.FormatError, match="can't have 4294967294 bytes: deflate does not make them"):
        penstock.load(path)


def test_ordered_dicts_keep_what_was_set_after_they_were_made(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    write_zip(path, ORDERED_DICT + text("a") + number(1) + b"s")
    assert penstock.load(path) == {"a": 1}


# ---- Files that mean harm, and corners.


def test_selected_views_of_compressed_records_are_verified_by_their_bytes(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    grid = torch.arange(12.0).reshape(3, 4)
    write({"a": torch.arange(5.0), "t": grid.t()}, path)
    deflate(path)
    found = penstock.load(path, select=["a", "t"], verify=True)
    assert torch.equal(found["t"], grid.t())


def test_a_compressed_file_that_is_rewritten_while_it_is_open_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    write({"w": torch.arange(1000.0)}, path)
    deflate(path)
    reader = penstock.open(path)
    with path.open("r+b") as file:
        file.write(file.read())
    with pytest.raises(penstock.ChangedError, match="m.pt"):
        reader["w"][:]


@pytest.mark.filterwarnings("ignore")
def test_damage_in_a_compressed_storage_without_a_listed_tensor_is_found(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    write({"q": torch.quantize_per_tensor(torch.randn(1000), 0.1, 0, torch.qint8)}, path)
    deflate(path)
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("m/data/0")
        at = info.header_offset + 30 + len(info.filename) + info.compress_size // 2
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)
    assert 'record "m/data/0"' in problem_of(path)


def test_tensors_know_their_file_among_several(tmp_path: Path) -> None:
    write({"a": np.arange(3), "b": torch.ones(2)}, tmp_path / "x.pt")
    penstock.save({"z": torch.ones(1)}, tmp_path / "z.safetensors")
    with penstock.open([tmp_path / "x.pt", tmp_path / "z.safetensors"]) as reader:
        names = {each: reader.files[reader.core.find(each)[3]].path.name for each in reader}
    assert names == {"a": "x.pt", "b": "x.pt", "z": "z.safetensors"}


def test_a_class_that_a_legacy_file_names_by_its_source_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    net = Net()
    net.kind = torch.nn.BatchNorm2d  # type: ignore[assignment]
    write(net, path, legacy=True)
    assert penstock.load(path, opaque="keep").state["kind"].name == "torch.nn.modules.batchnorm.BatchNorm2d"


def test_what_must_be_read_to_be_made_is_left_to_torch_on_meta(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    write({"s": torch.eye(3).to_sparse()}, path)
    stats: dict[str, Any] = {}
    found = penstock.fastpersist.serialization.load(path, map_location="meta", stats=stats)
    assert stats["path"] == "torch"
    assert found["s"].is_meta


HOSTILE = {
    "long names again and again": b"](X\x00\x10\x00\x00" + b"m" * 4096 + b"q\x000" + b"h\x00h\x00\x93" * 10 + b"e",
    "arrays over the same bytes": b"](B\x00\x10\x00\x00"
    + bytes(4096)
    + b"q\x000cnumpy\ndtype\n(U\x02u1\x89\x88tRq\x010"
    + b"cnumpy.core.numeric\n_frombuffer\n(h\x00h\x01M\x00\x10\x85U\x01CtR" * 500
    + b"e",
    "a qtensor of nothing": name("torch._utils", "_rebuild_qtensor") + b"(K\x01K\x01K\x01K\x01)K\x01K\x01tR",
    "a layout that would be imported": name("torch.serialization", "_get_layout") + text("torch._inductor") + b"\x85R",
    "integers with a gradient": tensor(storage("LongStorage", "0", 3), 0, (3,), (1,)).replace(b"\x89", b"\x88", 1),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_values_are_refused_with_the_file_and_the_place(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    write_zip(path, HOSTILE[kind], bytes(24))
    with pytest.raises(penstock.FormatError, match=r"m.pt: data.pkl: byte \d+: "):
        penstock.load(path)


def test_a_layout_of_a_modules_name_imports_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    write_zip(path, HOSTILE["a layout that would be imported"])
    script = f"""
import sys
import penstock, torch
before = "torch._inductor" in sys.modules
try:
    penstock.load({str(path)!r})
except penstock.FormatError:
    print(before, "torch._inductor" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "False False\n"


def test_sparse_tensors_are_judged_by_bytes_that_are_there(tmp_path: Path) -> None:
    """Too many to be read at once: other tensors are made while their bytes are on the way."""
    path = tmp_path / "m.pt"
    indices = torch.zeros(1, 2_000_000, dtype=torch.int64)
    indices[0, -1] = 1000
    with torch.sparse.check_sparse_tensor_invariants(enable=False):
        write({"s": torch.sparse_coo_tensor(indices, torch.ones(2_000_000, dtype=torch.uint8), (3,))}, path)
    with pytest.raises(penstock.FormatError, match="m.pt: data.pkl: byte"):
        penstock.load(path, cache="direct")


def test_nested_tensors_with_stretched_offsets_are_not_read_out_of_bounds(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    longs = storage("LongStorage", "1", 1)
    stretched = tensor(longs, 0, (500,), (0,))
    sizes = tensor(longs, 0, (500, 1), (0, 0))
    buffer = tensor(storage("FloatStorage", "0", 6), 0, (6,), (1,))
    body = name("torch._utils", "_rebuild_nested_tensor") + group(buffer, sizes, sizes, stretched) + b"R"
    write_zip(path, body, bytes(24), (1).to_bytes(8, "little"))
    script = f"import penstock; t = penstock.load({str(path)!r}); print(len(t.unbind()), t.unbind()[499].tolist())"
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=False)
    assert run.stdout == "500 [0.0]\n", run.stderr


def test_an_attribute_and_an_entry_of_one_name_are_both_found(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    settings = Attributes(w=torch.ones(2))
    settings.w = torch.zeros(3)  # type: ignore[attr-defined]
    settings.same = settings["w"]  # type: ignore[attr-defined]
    write({"cfg": settings}, path)
    with penstock.open(path) as reader:
        assert sorted(tuple(reader[each].shape) for each in reader) == [(2,), (2,), (3,)]


def test_names_that_a_terminal_would_obey_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    write_zip(path, name("a\x1b[31m", "b"))
    assert repr(penstock.load(path, opaque="keep")) == "<penstock.Opaque: a\\x1b[31m.b>"
    assert str(penstock.open(path).opaque[0]) == "all of it (a\\x1b[31m.b)"
