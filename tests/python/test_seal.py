"""penstock.seal, and what is checked against seals and the blob names of the Hugging Face cache."""

from __future__ import annotations

import hashlib
import os
import random
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import penstock
import pytest
import torch

GOLDEN = Path(__file__).parents[1] / "data"
BLOCK = 512
FORMATS = ["safetensors", "flashpack", "torch", "torch-legacy"]
SUFFIXES = {"safetensors": "safetensors", "flashpack": "flashpack", "torch": "pt", "torch-legacy": "legacy.pt"}


def make_state() -> dict[str, torch.Tensor]:
    torch.manual_seed(7)
    return {
        "wte": torch.randn(60, 32),
        "layer.w": torch.randn(33, 7).bfloat16(),
        "layer.b": torch.arange(5),
        "empty": torch.zeros(0, 3),
        "steps": torch.tensor(3),
    }


def write(folder: Path, format: str) -> Path:
    path = folder / f"model.{SUFFIXES[format]}"
    if format.startswith("torch"):
        torch.save(make_state(), path, _use_new_zipfile_serialization=format == "torch")
    else:
        penstock.save(make_state(), path)
    return path


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def seal_of(path: Path) -> Path:
    return path.with_name(path.name + ".seal.json")


def load_streamed(path: Path, **arguments: Any) -> dict[str, Any]:
    return dict(penstock.stream(path, **arguments))


def load_all_into(path: Path, **arguments: Any) -> dict[str, torch.Tensor]:
    target = {name: torch.zeros_like(tensor) for name, tensor in make_state().items()}
    penstock.load_into(target, path, **arguments)
    return target


LOADS = [penstock.load, load_streamed, load_all_into]


@pytest.fixture(params=FORMATS)
def sealed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = write(tmp_path, request.param)
    penstock.seal(path, block_size=BLOCK)
    return path


def test_a_seal_is_what_the_page_of_its_format_says(tmp_path: Path) -> None:
    for name, sha256 in (("shapes", False), ("dtypes", True), ("nothing", False)):
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes((GOLDEN / "safetensors" / path.name).read_bytes())
        (made,) = penstock.seal(path, block_size=BLOCK, sha256=sha256)
        assert Path(made.seal).read_bytes() == seal_of(GOLDEN / "seal" / path.name).read_bytes()
        assert made.sha256 == (hashlib.sha256(path.read_bytes()).hexdigest() if sha256 else None)
        assert made.nbytes == path.stat().st_size


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("verify", [True, "seal"])
def test_a_sealed_file_loads_as_it_is(sealed: Path, load: Callable[..., dict[str, Any]], verify: bool | str) -> None:
    helpers.assert_same_tensors(load(sealed, verify=verify), make_state())
    report = penstock.verify(sealed)
    assert report.ok
    assert report.had_checksums
    assert report.against == "seal"


def test_the_file_itself_is_not_touched(sealed: Path) -> None:
    before = (sealed.read_bytes(), sealed.stat())
    penstock.seal(sealed, sha256=True)
    assert (sealed.read_bytes(), sealed.stat()) == before


def ranges_of(path: Path) -> dict[str, tuple[int, int]]:
    infos = penstock.inspect(path).tensors
    return {info.name: (info.offset, info.offset + info.nbytes) for info in infos}


def test_every_flipped_bit_is_reported_with_its_block_and_tensor(sealed: Path) -> None:
    ranges = ranges_of(sealed)
    good = sealed.read_bytes()
    draw = random.Random(1)
    for _ in range(100):
        bit = draw.randrange(len(good) * 8)
        flip(sealed, bit)
        with pytest.raises(penstock.Error) as damage:
            penstock.verify(sealed).ok or raise_problem(penstock.verify(sealed))
        begin = bit // 8 // BLOCK * BLOCK
        expected = f"{sealed}: bytes {begin} to {min(begin + BLOCK, len(good))} ("
        assert str(damage.value).startswith(expected), bit
        hit = [name for name, (first, end) in ranges.items() if first <= bit // 8 < end]
        place = f'(tensor "{hit[0]}") are corrupt: ' if hit else "(outside of any tensor) are corrupt: "
        assert place in str(damage.value), bit
        for load in LOADS:
            with pytest.raises(penstock.Error):
                load(sealed, verify=True)
        sealed.write_bytes(good)
    assert penstock.verify(sealed)


def raise_problem(report: penstock.VerifyReport) -> None:
    (problem,) = report.problems
    raise penstock.FormatError(problem)


@pytest.mark.parametrize("max_buffer", [1, 4096, "256MiB"])
def test_a_stream_raises_before_it_yields_a_damaged_tensor(sealed: Path, max_buffer: int | str) -> None:
    for name, (begin, end) in ranges_of(sealed).items():
        if begin == end:
            continue
        flip(sealed, begin * 8 + 5)
        yielded = []
        with pytest.raises(penstock.FormatError, match="corrupt"):
            for each, _ in penstock.stream(sealed, verify="seal", max_buffer=max_buffer):
                yielded.append(each)
        assert name not in yielded
        flip(sealed, begin * 8 + 5)
    helpers.assert_same_tensors(dict(penstock.stream(sealed, verify=True, max_buffer=max_buffer)), make_state())


def test_a_filtered_load_checks_what_it_reads(sealed: Path) -> None:
    begin, _ = ranges_of(sealed)["wte"]
    flip(sealed, begin * 8)
    for load in (penstock.load, load_streamed):
        found = load(sealed, select=["layer.*"], verify=True)
        assert torch.equal(found["layer.w"], make_state()["layer.w"])
        with pytest.raises(penstock.FormatError, match='tensor "wte" is corrupt: its CRC-32C is [0-9a-f]{8}, the seal'):
            load(sealed, select=["wte", "layer.b"], verify=True)


def test_a_filtered_load_of_a_header_that_says_something_else_is_refused(tmp_path: Path) -> None:
    path = penstock_file(tmp_path, {"a": torch.ones(4, dtype=torch.int32), "b": torch.ones(4)})
    penstock.seal(path)
    content = path.read_bytes()
    assert content.count(b'"I32"') == 1
    path.write_bytes(content.replace(b'"I32"', b'"F32"'))
    with pytest.raises(penstock.FormatError, match='its table of contents has another tensor "a" than was sealed'):
        penstock.load(path, select="a", verify=True)
    assert penstock.load(path, select="b", verify=True)


def penstock_file(folder: Path, state: dict[str, torch.Tensor], **arguments: Any) -> Path:
    path = folder / "model.safetensors"
    penstock.save(state, path, **arguments)
    return path


def test_conversions_while_loading_are_verified_too(sealed: Path) -> None:
    loaded = penstock.load(sealed, dtype="float32", verify=True, framework="numpy")
    assert np.array_equal(loaded["layer.w"], make_state()["layer.w"].float().numpy())
    begin, _ = ranges_of(sealed)["layer.w"]
    flip(sealed, begin * 8)
    with pytest.raises(penstock.FormatError, match="layer.w"):
        penstock.load(sealed, dtype="float32", verify=True, framework="numpy")


def test_several_damaged_blocks_are_one_problem(tmp_path: Path) -> None:
    path = penstock_file(tmp_path, {"a": torch.zeros(1000), "b": torch.zeros(1000), "c": torch.zeros(1000)})
    penstock.seal(path, block_size=BLOCK)
    content = bytearray(path.read_bytes())
    start = len(content) - 12000
    content[start : start + 8000] = b"\1" * 8000
    path.write_bytes(content)
    report = penstock.verify(path)
    assert [tensor.ok for tensor in report.tensors] == [False, False, True]
    (problem,) = report.problems
    assert re.search(r'\(tensors "a" and "b"\) are corrupt: \d+ blocks differ from those that were sealed', problem)


def test_a_file_without_anything_to_check_against_is_an_error(tmp_path: Path) -> None:
    path = penstock_file(tmp_path, make_state())
    for load in LOADS:
        with pytest.raises(penstock.FormatError, match="carries no checksums, and has no seal; `penstock seal` makes"):
            load(path, verify=True)
        with pytest.raises(penstock.FormatError, match="has no seal to be verified against"):
            load(path, verify="seal")
        with pytest.raises(penstock.FormatError, match="carries no checksums to be verified against"):
            load(path, verify="stored")
        with pytest.raises(penstock.FormatError, match="has no SHA-256 .* `penstock seal --sha256`"):
            load(path, verify="sha256")
    report = penstock.verify(path)
    assert report.ok
    assert not report.had_checksums
    assert report.against == ""
    with pytest.raises(penstock.FormatError, match="has no seal"):
        penstock.verify(path, checksums="seal")


def test_what_is_insisted_on_is_used(tmp_path: Path) -> None:
    path = penstock_file(tmp_path, make_state(), checksums=True)
    assert penstock.verify(path).against == "stored"
    penstock.seal(path, sha256=True)
    for against in ("seal", "stored", "sha256"):
        assert penstock.verify(path, checksums=against).against == against
        helpers.assert_same_tensors(penstock.load(path, verify=against), make_state())
    flip(path, 9 * 8)  # in the header's text: no tensor's checksum covers that
    with pytest.raises(penstock.Error):
        penstock.load(path, verify="sha256")
    with pytest.raises(penstock.ArgumentError, match='verify must be True, False or one of "if-any", "seal", "stored"'):
        penstock.load(path, verify="md5")


def test_the_digest_of_a_seal_is_checked(sealed: Path) -> None:
    penstock.seal(sealed, sha256=True)
    begin, _ = ranges_of(sealed)["wte"]
    flip(sealed, begin * 8)
    for load in (*LOADS, load_one):
        with pytest.raises(
            penstock.FormatError, match="the file is corrupt: its SHA-256 is [0-9a-f]{64}, its seal says"
        ):
            load(sealed, verify="sha256")
    assert not penstock.verify(sealed, checksums="sha256")


def load_one(path: Path, **arguments: Any) -> dict[str, Any]:
    return penstock.load(path, select="layer.b", **arguments)


def write_cache(root: Path, state: dict[str, torch.Tensor], **arguments: Any) -> Path:
    """A snapshot as the Hugging Face hub leaves it in its cache."""
    repository = root / "models--some--model"
    snapshot = repository / "snapshots" / ("5" * 40)
    (repository / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (root / "new").mkdir()
    penstock.save(state, root / "new" / "model.safetensors", **arguments)
    for file in (root / "new").iterdir():
        content = file.read_bytes()
        if file.suffix == ".json":
            name = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
        else:
            name = hashlib.sha256(content).hexdigest()
        (repository / "blobs" / name).write_bytes(content)
        (snapshot / file.name).symlink_to(f"../../blobs/{name}")
    return snapshot


@pytest.mark.parametrize("shards", [None, 3000])
def test_the_blob_names_of_the_hub_cache_are_checked(tmp_path: Path, shards: int | None) -> None:
    snapshot = write_cache(tmp_path, make_state(), max_shard_size=shards)
    for verify in (True, "sha256"):
        helpers.assert_same_tensors(penstock.load(snapshot, verify=verify), make_state())
    assert penstock.verify(snapshot).against == "sha256"
    blobs = sorted((snapshot.parents[1] / "blobs").iterdir())
    assert len(blobs) == (1 if shards is None else 3)
    for blob in blobs:
        good = blob.read_bytes()
        # The last byte of an index is a newline, which means nothing to who reads it.
        blob.write_bytes(good[:-1] + bytes([good[-1] ^ (1 if len(blob.name) == 64 else 0x2A)]))
        with pytest.raises(penstock.FormatError, match=f"corrupt: its SHA-.* is called {blob.name}|JSON"):
            penstock.load(snapshot, verify=True)
        blob.write_bytes(good)


def test_an_index_with_another_space_is_not_the_blob_that_it_was(tmp_path: Path) -> None:
    snapshot = write_cache(tmp_path, make_state(), max_shard_size=3000)
    index = (snapshot / "model.safetensors.index.json").resolve()
    index.write_bytes(index.read_bytes()[:-1] + b" ")
    assert not penstock.verify(snapshot)
    with pytest.raises(penstock.FormatError, match="its SHA-1 as git takes it is"):
        penstock.load(snapshot, verify=True)


def test_of_a_set_every_shard_and_the_index_are_sealed(tmp_path: Path) -> None:
    penstock.save(make_state(), tmp_path / "model.safetensors", max_shard_size=3000)
    files = sorted(tmp_path.iterdir())
    made = penstock.seal(tmp_path)
    assert sorted(Path(each.path) for each in made) == files
    helpers.assert_same_tensors(penstock.load(tmp_path, verify="seal"), make_state())
    index = tmp_path / "model.safetensors.index.json"
    for path in files:
        good = path.read_bytes()
        path.write_bytes(good[:-1] + (b" " if path == index else bytes([good[-1] ^ 1])))
        with pytest.raises(penstock.FormatError, match=re.escape(str(path)) + ": bytes 0 to"):
            penstock.load(tmp_path, verify=True)
        assert not penstock.verify(tmp_path)
        path.write_bytes(good)
    seal_of(files[0]).unlink()
    with pytest.raises(penstock.FormatError, match=re.escape(str(files[0])) + ": has no seal"):
        penstock.load(tmp_path, verify="seal")


def test_a_file_that_was_changed_after_sealing_is_told_so(sealed: Path) -> None:
    os.utime(seal_of(sealed), ns=(0, 0))
    begin, _ = ranges_of(sealed)["wte"]
    flip(sealed, begin * 8)
    with pytest.raises(
        penstock.FormatError, match="was written to after it was sealed: .* `penstock seal` makes a new"
    ):
        penstock.load(sealed, verify=True)
    with sealed.open("ab") as file:
        file.write(b"more")
    with pytest.raises(penstock.Error):
        penstock.load(sealed, verify=True)


def test_another_size_is_told_before_anything_is_read(tmp_path: Path) -> None:
    path = penstock_file(tmp_path, make_state())
    penstock.seal(path)
    kept = seal_of(path).read_bytes()
    penstock.save({"x": torch.ones(3)}, path)
    assert not seal_of(path).exists()
    seal_of(path).write_bytes(kept)
    with pytest.raises(
        penstock.FormatError, match=r"has \d+ bytes, and had \d+ when model.safetensors.seal.json was made"
    ):
        penstock.load(path, verify=True)


@pytest.mark.parametrize("shards", [None, 3000])
def test_a_save_removes_the_seals_of_what_it_replaces(tmp_path: Path, shards: int | None) -> None:
    path = tmp_path / "model.safetensors"
    penstock.save(make_state(), path, max_shard_size=3000)
    penstock.seal(tmp_path)
    assert len(list(tmp_path.glob("*.seal.json"))) == 3
    penstock.save(make_state(), path, max_shard_size=shards)
    assert not list(tmp_path.glob("*.seal.json"))
    penstock.seal(tmp_path)
    penstock.save(make_state(), path, max_shard_size=3000)
    assert not list(tmp_path.glob("*.seal.json"))
    with pytest.raises(penstock.FormatError, match="has no seal"):
        penstock.load(tmp_path, verify=True)


def test_a_damaged_seal_is_told_from_a_damaged_file(sealed: Path) -> None:
    flip(seal_of(sealed), 8 * 40)
    with pytest.raises(penstock.FormatError, match=r"seal.json: the seal itself is damaged, or was edited"):
        penstock.load(sealed, verify=True)
    seal_of(sealed).write_text("{}")
    with pytest.raises(penstock.FormatError, match=r"seal.json: is no seal"):
        penstock.verify(sealed)
    helpers.assert_same_tensors(penstock.load(sealed), make_state())


def test_a_seal_that_is_no_file_is_an_error(tmp_path: Path) -> None:
    path = penstock_file(tmp_path, make_state())
    seal_of(path).mkdir()
    with pytest.raises(penstock.DirectoryError):
        penstock.load(path, verify=True)
    seal_of(path).rmdir()
    os.mkfifo(seal_of(path))
    with pytest.raises(penstock.Error, match="regular file"):
        penstock.load(path, verify=True)
    seal_of(path).unlink()
    seal_of(path).symlink_to("nowhere")
    with pytest.raises(penstock.NotFoundError):
        penstock.load(path, verify=True)


def test_a_file_that_its_own_checksums_call_damaged_is_not_sealed(tmp_path: Path) -> None:
    path = penstock_file(tmp_path, make_state(), checksums=True)
    begin, _ = ranges_of(path)["wte"]
    flip(path, begin * 8)
    with pytest.raises(penstock.FormatError, match='is not sealed: tensor "wte" is corrupt'):
        penstock.seal(path)
    assert not seal_of(path).exists()


@pytest.mark.parametrize("block_size", [0, 1000, 256, "2GiB"])
def test_block_sizes_that_can_not_be_are_refused(tmp_path: Path, block_size: int | str) -> None:
    path = penstock_file(tmp_path, make_state())
    with pytest.raises(penstock.ArgumentError, match="block_size must be a power of two from 512 to 1073741824"):
        penstock.seal(path, block_size=block_size)


def test_a_seal_is_replaced_while_others_read(sealed: Path) -> None:
    stop = threading.Event()

    def reseal() -> None:
        while not stop.is_set():
            penstock.seal(sealed, block_size=BLOCK, durable=False)
            penstock.seal(sealed, durable=False)

    thread = threading.Thread(target=reseal)
    thread.start()
    try:
        for _ in range(20):
            helpers.assert_same_tensors(penstock.load(sealed, verify="seal"), make_state())
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("target", ["copy.safetensors", "copy.pt", "copy.flashpack"])
@pytest.mark.parametrize("proof", ["seal", "stored"])
def test_a_conversion_of_a_damaged_file_makes_nothing(tmp_path: Path, proof: str, target: str) -> None:
    path = penstock_file(tmp_path, make_state(), checksums=proof == "stored")
    if proof == "seal":
        penstock.seal(path)
    arguments: dict[str, Any] = {} if target.endswith(".pt") else {"checksums": True}
    penstock.convert(path, tmp_path / target, **arguments)
    (tmp_path / target).unlink()
    begin, _ = ranges_of(path)["layer.w"]
    flip(path, begin * 8 + 3)
    with pytest.raises(penstock.FormatError, match="layer.w"):
        penstock.convert(path, tmp_path / target, **arguments)
    assert not (tmp_path / target).exists()
    penstock.convert(path, tmp_path / target, select="wte")
    penstock.convert(path, tmp_path / target, verify=False, overwrite=True, **arguments)
    assert (tmp_path / target).exists()


def test_a_large_conversion_reads_nothing_wrong(tmp_path: Path) -> None:
    state = {f"t{i}": torch.randn(100_003 + i) for i in range(20)}
    path = penstock_file(tmp_path, state, checksums=True)
    for source in ("stored", "seal"):
        for suffix in ("safetensors", "flashpack"):
            target = tmp_path / f"{source}.{suffix}"
            penstock.convert(path, target, checksums=True, verify=source if source == "stored" else True)
            helpers.assert_same_tensors(penstock.load(target, verify=True), state)
        penstock.seal(path)
    penstock.convert(path, tmp_path / "half.safetensors", dtype="float16", verify="seal")


def test_a_large_file_is_checked_in_every_block(tmp_path: Path) -> None:
    path = penstock_file(tmp_path, {f"t{i}": torch.randn(700_001) for i in range(8)})
    penstock.seal(path)
    size = path.stat().st_size
    ranges = ranges_of(path)
    draw = random.Random(3)
    for load in (penstock.load, load_streamed):
        for _ in range(6):
            at = draw.randrange(size)
            flip(path, at * 8)
            hit = [name for name, (first, end) in ranges.items() if first <= at < end]
            with pytest.raises(penstock.Error, match=hit[0] if hit else "") as damage:
                load(path, verify=True, **({"max_buffer": "24MiB"} if load is load_streamed else {}))
            if hit:
                assert f"bytes {at >> 20 << 20} to {min((at >> 20) + 1 << 20, size)} " in str(damage.value)
            flip(path, at * 8)


def test_views_and_shared_storages_of_torch_are_sealed(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    base = torch.arange(3000.0)
    torch.save({"all": base, "part": base[100:200], "turned": base[:600].view(20, 30).t()}, path)
    penstock.seal(path, block_size=BLOCK)
    loaded = penstock.load(path, verify="seal")
    assert torch.equal(loaded["turned"], base[:600].view(20, 30).t())
    for arguments in ({"framework": "numpy"}, {"select": "turned"}, {"select": "part"}):
        found = penstock.load(path, verify="seal", **arguments)
        assert all(np.array_equal(np.asarray(found[name]), np.asarray(loaded[name])) for name in found)
    begin = path.read_bytes().index(base.numpy().tobytes())
    flip(path, (begin + 4 * 150) * 8)
    for arguments in ({}, {"framework": "numpy"}, {"select": "turned"}, {"select": "part"}):
        with pytest.raises(penstock.FormatError, match="corrupt"):
            penstock.load(path, verify="seal", **arguments)


def test_progress_can_stop_a_seal(tmp_path: Path) -> None:
    path = penstock_file(tmp_path, {"x": torch.zeros(4_000_000)})
    for sha256 in (False, True):
        with pytest.raises(penstock.CancelledError):
            penstock.seal(path, sha256=sha256, progress=lambda done, total: False)
    assert not seal_of(path).exists()
