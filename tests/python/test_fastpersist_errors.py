"""penstock.fastpersist.serialization in torch's place: what code for torch catches, and torch.save itself."""

from __future__ import annotations

import io
import pickle
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import helpers
import penstock
import pytest
import safetensors.torch
import torch
from penstock.fastpersist import serialization
from torch_objects import FORMATS

# What torch.load raises for damage, depending on where it is.
KINDS = (RuntimeError, EOFError, pickle.UnpicklingError)


def rewritten(data: bytes, change: Callable[[str, bytes], bytes | None]) -> bytes:
    """A zip whose records went through `change`; None leaves one out."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(made, "w") as target:
        for name in source.namelist():
            content = change(name, source.read(name))
            if content is not None:
                target.writestr(name, content)
    return made.getvalue()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "one byte": lambda data: data[:1],
    "five bytes": lambda data: data[:5],
    "twenty bytes": lambda data: data[:20],
    "a hundred bytes": lambda data: data[:100],
    "three hundred bytes": lambda data: data[:300],
    "half": lambda data: data[: len(data) // 2],
    "without its end": lambda data: data[:-30],
    "text": lambda data: b"<html>not found</html>",
    "zeros": lambda data: bytes(1000),
}
DAMAGES_OF_ZIPS: dict[str, Callable[[bytes], bytes]] = {
    "a storage is missing": lambda data: rewritten(data, lambda name, content: None if "data/0" in name else content),
    "the pickle is missing": lambda data: rewritten(
        data, lambda name, content: None if "data.pkl" in name else content
    ),
    "half a pickle": lambda data: rewritten(
        data, lambda name, content: content[: len(content) // 2] if "data.pkl" in name else content
    ),
    "another zip": lambda data: rewritten(data, lambda name, content: content if "version" in name else None),
}
DAMAGES_OF_LEGACY_FILES: dict[str, Callable[[bytes], bytes]] = {
    "another magic": lambda data: data[:5] + bytes([data[5] ^ 1]) + data[6:],
}


def assert_caught_as_torchs(call: Callable[[Any], Any], theirs: Callable[[Any], Any]) -> None:
    """Whoever catches what torch raises catches ours."""
    with warnings.catch_warnings(), pytest.raises(Exception) as expected:  # noqa: PT011
        warnings.simplefilter("ignore")
        theirs(torch)
    # An index that torch itself stumbles over is nothing that anybody catches.
    stumbles = isinstance(expected.value, LookupError)
    kind = penstock.DamagedCheckpointError if stumbles else type(expected.value)
    with warnings.catch_warnings(), pytest.raises(kind) as caught:
        warnings.simplefilter("ignore")
        call(serialization)
    if isinstance(caught.value, penstock.Error):
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize(
    ("zipped", "damage"),
    [
        *((True, name) for name in {**DAMAGES, **DAMAGES_OF_ZIPS}),
        *((False, name) for name in {**DAMAGES, **DAMAGES_OF_LEGACY_FILES}),
    ],
)
def test_damage_is_caught_as_torchs(zipped: bool, damage: str, weights_only: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    # Of a small zip without its end torch says "[Errno 22] Invalid argument", which nobody catches.
    torch.save({"x": torch.arange(60_000.0), "y": torch.ones(3)}, path, _use_new_zipfile_serialization=zipped)
    make = {**DAMAGES, **DAMAGES_OF_ZIPS, **DAMAGES_OF_LEGACY_FILES}[damage]
    path.write_bytes(make(path.read_bytes()))

    def load(module: Any) -> Any:
        return module.load(path, weights_only=weights_only)

    assert_caught_as_torchs(load, load)


@FORMATS
def test_damage_is_each_kind_that_torch_raises_and_our_own(zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"x": torch.arange(1000.0)}, path, _use_new_zipfile_serialization=zipped)
    path.write_bytes(path.read_bytes()[:-100])
    for kind in (*KINDS, ValueError, penstock.FormatError, penstock.DamagedCheckpointError):
        with pytest.raises(kind, match="^.*a.pt: "):
            serialization.load(path)
    for kind in (RuntimeError, ValueError, penstock.FormatError):
        with pytest.raises(kind, match="^.*a.pt: "):
            penstock.load(path)


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"\x80\x02\x8a\n\x6c", "this is a Python pickle, "),  # five bytes of a legacy file
        (pickle.dumps({"a": 1}), "this is a Python pickle, "),
        (b"\x07random\xff" * 100, "not a format that this version reads "),
        (bytes(2000), "not a format that this version reads "),
        (b"<!DOCTYPE html><html></html>", "this is an HTML page, "),
        (b"version https://git-lfs.github.com/spec/v1\n", "this is a Git LFS pointer, not the file it stands for"),
        (b"abc", "not a format that this version reads "),
        (safetensors.torch.save({"x": torch.ones(2)}), "not a torch checkpoint; penstock.load reads it"),
    ],
)
def test_what_is_no_checkpoint_is_refused_by_its_path(
    data: bytes, message: str, weights_only: bool, tmp_path: Path
) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(data)
    with pytest.raises(penstock.DamagedCheckpointError) as caught:
        serialization.load(path, weights_only=weights_only)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert isinstance(caught.value, KINDS)


@pytest.mark.parametrize("protocol", [0, 1])
def test_a_legacy_file_in_an_old_protocol_is_torchs_to_load(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save([1, 2], path, pickle_protocol=protocol, _use_new_zipfile_serialization=False)
    stats: dict[str, Any] = {}
    assert serialization.load(path, weights_only=False, stats=stats) == [1, 2]
    assert stats["path"] == "torch"


def test_a_tar_archive_is_torchs_to_load(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("pickle"))
    assert_caught_as_torchs(lambda ours: ours.load(path), lambda torchs: torchs.load(path))
    with pytest.raises(Exception, match="tar") as caught:
        serialization.load(path)
    assert not isinstance(caught.value, penstock.Error)


def test_an_older_checkpoint_is_fallen_back_to(tmp_path: Path) -> None:
    serialization.save({"step": 1}, tmp_path / "step-1.pt")
    serialization.save({"step": 2}, tmp_path / "step-2.pt")
    (tmp_path / "step-2.pt").write_bytes((tmp_path / "step-2.pt").read_bytes()[:-20])

    def newest(load: Callable[[Path], Any]) -> Any:
        for step in (3, 2, 1):
            try:
                return load(tmp_path / f"step-{step}.pt")
            except (FileNotFoundError, RuntimeError):  # noqa: PERF203
                continue
        return None

    assert newest(serialization.load) == newest(torch.load) == newest(penstock.load) == {"step": 1}


@pytest.mark.parametrize(
    "map_location",
    ["bogus", "cpu:1", {"cpu": "bogus"}, 5, ["cpu"], b"cpu", lambda storage, location: 3],
    ids=[
        "a word",
        "a second CPU",
        "a word in a dict",
        "a number",
        "a list",
        "bytes",
        "a callable that returns no storage",
    ],
)
def test_a_bad_map_location_is_caught_as_torchs(map_location: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save(torch.ones(3), path)
    assert_caught_as_torchs(lambda ours: ours.load(path, map_location), lambda torchs: torchs.load(path, map_location))


@pytest.mark.parametrize("path", [".", "missing.pt", "a\0b", None, 3, b"bytes.pt"])
def test_a_path_that_leads_nowhere_is_caught_as_torchs(
    path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_caught_as_torchs(lambda ours: ours.load(path), lambda torchs: torchs.load(path))


def pickled_by_nobody() -> Any:
    return lambda: 1


def seen_as_two_types() -> Any:
    tensor = torch.ones(4)
    return [tensor, tensor.view(torch.int32)]


@FORMATS
@pytest.mark.parametrize(
    ("make", "path", "arguments"),
    [
        (dict, "no/such/folder.pt", {}),
        (dict, ".", {}),
        (dict, "/proc/a.pt", {}),
        (dict, None, {}),
        (dict, 3, {}),
        (dict, "a.pt", {"pickle_protocol": 77}),
        (dict, "a.pt", {"pickle_module": 3}),
        (pickled_by_nobody, "a.pt", {}),
        (seen_as_two_types, "a.pt", {}),
    ],
)
def test_what_can_not_be_saved_is_caught_as_torchs(
    make: Any, path: Any, arguments: Any, zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def save(module: Any) -> None:
        module.save(make(), path, _use_new_zipfile_serialization=zipped, **arguments)

    assert_caught_as_torchs(save, save)


# torch.save = serialization.save

PATCHES = {
    "after the import": """
        from penstock.fastpersist import serialization
        torch.save, torch.load = serialization.save, serialization.load
    """,
    "before its first use": """
        def save(*arguments, **options):
            from penstock.fastpersist import serialization
            return serialization.save(*arguments, **options)
        def load(*arguments, **options):
            from penstock.fastpersist import serialization
            return serialization.load(*arguments, **options)
        torch.save, torch.load = save, load
    """,
    "in both places": """
        from penstock.fastpersist import serialization
        torch.save = torch.serialization.save = serialization.save
        torch.load = torch.serialization.load = serialization.load
    """,
    "twice": """
        import importlib
        from penstock.fastpersist import serialization
        torch.save, torch.load = serialization.save, serialization.load
        serialization = importlib.reload(serialization)
        torch.save, torch.load = serialization.save, serialization.load
    """,
}


@pytest.mark.parametrize("patch", PATCHES)
def test_torchs_functions_can_be_replaced_by_ours(patch: str, tmp_path: Path) -> None:
    """With what is ours to do, and with what is handed to torch: it must be torch's that is called."""
    script = f"""
        import io, sys, torch
        {patch.join("##")}
        class Point:
            x = 3
        path = sys.argv[1]
        torch.save({{"x": torch.ones(3)}}, path)
        print(torch.load(path)["x"].tolist())
        torch.save(torch.eye(2).to_sparse(), path)
        print(torch.load(path).to_dense().tolist())
        buffer = io.BytesIO()
        torch.save([1], buffer)
        buffer.seek(0)
        print(torch.load(buffer))
        torch.save(Point(), path)
        print(torch.load(path, weights_only=False).x)
        from penstock.fastpersist import CheckpointEngine
        engine = CheckpointEngine({{"checkpoint": {{"writer": {{"type": "python"}}}}}})
        engine.save({{"x": torch.ones(2)}}, path)
        print(engine.load(path)["x"].tolist())
    """
    script = script.replace(f"#{patch}#", PATCHES[patch].strip())
    result = helpers.run_python(script, str(tmp_path / "a.pt"), check=False)
    expected = ["[1.0, 1.0, 1.0]", "[[1.0, 0.0], [0.0, 1.0]]", "[1]", "3", "[1.0, 1.0]"]
    assert (result.stdout.splitlines(), result.stderr[-2000:]) == (expected, "")
