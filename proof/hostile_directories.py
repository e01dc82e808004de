"""Directories whose indexes, metadata, journals and links lead elsewhere, and what is no file at all."""

from __future__ import annotations

import json
import os
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hostile_case import GOOD_SAFETENSORS, Case, Family
from hostile_case import pickles as p
from hostile_pickles import GADGETS, calls

ELSEWHERE = [
    "../outside/secret.safetensors",
    "../../outside/secret.safetensors",
    "/etc/passwd",
    "sub/../../outside/secret.safetensors",
    "./x.safetensors",
    "sub/x.safetensors",
    "..",
    ".",
    "",
    "/",
    "a\0b.safetensors",
    "..\\outside\\secret.safetensors",
    "file:///etc/passwd",
    "//etc/passwd",
    "~/secret.safetensors",
    "x" * 5000,
    "\x1b[2J.safetensors",
    "%2e%2e%2fsecret.safetensors",
]
INDEX = "model.safetensors.index.json"


class Maker:
    """Numbered directories with a sound shard in them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def __call__(self, files: dict[str, Any], shard: str = "x.safetensors") -> Path:
        folder = self._folder / str(self._count)
        self._count += 1
        folder.mkdir()
        (folder / shard).write_bytes(GOOD_SAFETENSORS)
        for name, content in files.items():
            text = content if isinstance(content, (str, bytes)) else json.dumps(content)
            (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
        return folder


def indexes(folder: Path) -> Iterator[Case]:
    make = Maker(folder)
    for name in ELSEWHERE:
        yield Case(f"an index that names {name[:40]!r}", make({INDEX: {"weight_map": {"x": name}}}))
        yield Case(
            f"an index with a second shard {name[:40]!r}",
            make({INDEX: {"weight_map": {"x": "x.safetensors", "y": name}}}),
        )
    deep = 100_000
    texts: dict[str, Any] = {
        "nothing": "",
        "a list": "[]",
        "no map": "{}",
        "a map of numbers": {"weight_map": {"x": 1}},
        "a map of lists": {"weight_map": {"x": ["x.safetensors"]}},
        "two maps": '{"weight_map":{"x":"x.safetensors"},"weight_map":{"x":"y.safetensors"}}',
        "a tensor twice": '{"weight_map":{"x":"x.safetensors","x":"x.safetensors"}}',
        "a tensor that is not there": {"weight_map": {"y": "x.safetensors"}},
        "a shard that is not there": {"weight_map": {"x": "y.safetensors"}},
        "itself": {"weight_map": {"x": INDEX}},
        "its directory": {"weight_map": {"x": "."}},
        "lists 100,000 deep": '{"weight_map":' + "[" * deep,
        "objects 100,000 deep": '{"weight_map":' + '{"a":' * deep,
        "metadata 100,000 deep": '{"metadata":' + "[" * deep + "]" * deep + ',"weight_map":{"x":"x.safetensors"}}',
        "a name of a million letters": {"weight_map": {"x" * 1_000_000: "x.safetensors"}},
        "bytes that are not UTF-8": b'{"weight_map":{"x":"\xff"}}',
        "100,000 shards": {"weight_map": {f"t{i}": f"s{i}.safetensors" for i in range(100_000)}},
        "a shard that is a pickle": {"weight_map": {"x": "x.pkl"}},
    }
    for title, text in texts.items():
        gadget = p.whole(calls(*GADGETS["os.system"])["REDUCE"])
        yield Case(f"an index: {title}", make({INDEX: text, "x.pkl": gadget}))
    many = make({f"{i}.{INDEX}": {"weight_map": {}} for i in range(2)})
    yield Case("two indexes", many)


def chunks(folder: Path) -> Iterator[Case]:
    make = Maker(folder)

    def document(**change: Any) -> dict[str, Any]:
        chunk = {"file": 0, "offsets": [0], "shape": [2], **change.pop("chunk", {})}
        tensor = {"dtype": "F32", "shape": [2], "chunks": [chunk], **change.pop("tensor", {})}
        whole = {"format": "penstock.dcp", "version": 1, "files": ["x.safetensors"], "tensors": {"x": tensor}}
        return {**whole, "objects": {}, **change}

    for name in ELSEWHERE:
        odd = "\x1b" in name  # a strange name, but one
        yield Case(f"a dcp.json that names {name[:40]!r}", make({"dcp.json": document(files=[name])}), sound=odd)
        if "\n" not in name:
            metadata = torch_metadata(name)
            directory = make({".metadata": metadata}, "__0_0.distcp")
            yield Case(f"a .metadata that names {name[:40]!r}", directory, sound=odd)
    values: list[Any] = [2**63, -1, 1.5, True, None, "x", [], {}, 10**30]
    documents: dict[str, Any] = {
        **{f"a file {value!r}": document(chunk={"file": value}) for value in values[:8]},
        **{f"an offset {value!r}": document(chunk={"offsets": [value]}) for value in values},
        **{f"a dimension {value!r}": document(tensor={"shape": [value]}) for value in values},
        **{f"a shape {value!r}": document(tensor={"shape": value}) for value in values},
        **{f"a dtype {value!r}": document(tensor={"dtype": value}) for value in values},
        **{f"files {value!r}": document(files=value) for value in values if value != []},
        **{f"tensors {value!r}": document(tensors=value) for value in values if value != {}},
        **{f"objects {value!r}": document(objects=value) for value in values if value != {}},
        **{f"paths {value!r}": document(paths=value) for value in values},
        **{f"version {value!r}": document(version=value) for value in values},
        "a shape of 100,000 large dimensions": document(tensor={"shape": [2**62] * 100_000}),
        "two chunks of the same elements": document(tensor={"chunks": [{"file": 0, "offsets": [0], "shape": [2]}] * 2}),
        "a chunk beyond its tensor": document(chunk={"offsets": [1]}),
        "a number of 5,000 digits": json.dumps(document()).replace('"version": 1', '"version": ' + "1" * 5000),
        "lists 100,000 deep": '{"format":"penstock.dcp","files":' + "[" * 100_000,
        "an object called as a tensor": document(objects={"x": 0}),
        "a checksum that is wrong": json.dumps(document())[:-1] + ',"crc32":"00000000"}',
        "a checksum of nonsense": json.dumps(document())[:-1] + ',"crc32":"\x1b[2J...x"}',
    }
    for title, text in documents.items():
        # The engine has no use for the paths of a state dict.
        sound = title in ("a file False", "version True") or title.startswith("paths")
        yield Case(f"a dcp.json with {title}", make({"dcp.json": text}), sound=sound)
    gadgets = {
        **{f"{name} by {way}": body for name in ("os.system", "builtins.eval", "pathlib.Path", "torch.load")
           for way, body in calls(*GADGETS[name]).items()},
        "a state for a class": CLASS + b"N}" + p.text("__init__") + p.text("x") + b"s\x86b",
        "a state for pathlib": p.name("pathlib", "PosixPath") + b"N}" + p.text("open") + p.name("torch", "Size")
        + b"s\x86b",
        "a memo entry of 2^32 - 2": b"Nr\xfe\xff\xff\xff",
        "tuples 100,000 deep": b"N" + b"\x85" * 100_000,
        "a long of 2 GB": b"\x8b\xff\xff\xff\x7f",
        "bytes of 2^62": b"\x8e" + (2**62).to_bytes(8, "little"),
        "a list in itself": b"]q\x00h\x00a",
        "nothing": b"N",
        "a path of a million letters": p.name("pathlib", "PosixPath") + p.text("x" * 1_000_000) + b"\x85R",
        "an extension": b"\x82\x01",
        "a persistent id": p.text("x") + b"Q",
    }  # fmt: skip
    for title, body in gadgets.items():
        yield Case(f"a .metadata with {title}", make({".metadata": p.whole(body)}, "__0_0.distcp"))


METADATA = "torch.distributed.checkpoint.metadata"
CLASS = p.name(METADATA, "Metadata")


def torch_metadata(file: str) -> bytes:
    """What torch's FileSystemWriter writes of a tensor of two elements, in a file of this name."""

    def make(name: str, module: str = METADATA, **state: bytes) -> bytes:
        fields = b"".join(p.text(key) + value for key, value in state.items())
        return p.name(module, name) + b")\x81}(" + fields + b"ub"

    def size(*values: int) -> bytes:
        return p.name("torch", "Size") + p.numbers(*values) + b"\x85R"

    layout = p.name("torch.serialization", "_get_layout") + p.text("torch.strided") + b"\x85R"
    memory = p.name(METADATA, "_MEM_FORMAT_ENCODING") + b"K\x00\x85R"
    parts = p.group(p.name("torch", "float32"), layout, b"\x89", memory, b"\x89")
    properties = p.name(METADATA, "TensorProperties") + b")\x81" + parts + b"b"
    chunk = make("ChunkStorageMetadata", offsets=size(0), sizes=size(2))
    tensor = make("TensorStorageMetadata", properties=properties, size=size(2), chunks=b"](" + chunk + b"e")
    index = make("MetadataIndex", fqn=p.text("x"), offset=size(0), index=b"K\x00")
    filesystem = "torch.distributed.checkpoint.filesystem"
    info = make("_StorageInfo", filesystem, relative_path=p.text(file), offset=b"K\x00", length=b"K\x64")
    entries = b"}" + p.text("x") + tensor + b"s"
    return p.whole(
        make("Metadata", state_dict_metadata=entries, planner_data=b"N", storage_data=b"}" + index + info + b"s")
    )


def links(folder: Path) -> Iterator[Case]:
    """Links are followed, for caches are made of them: what they lead to must be weights all the same."""
    make = Maker(folder)
    for title, target in {
        "a link to /etc/passwd": "/etc/passwd",
        "a link to a directory": "/etc",
        "a link to nothing": "nothing",
        "a link to itself": "y.safetensors",
        "a link to a device": "/dev/zero",
        "a link to /proc/self/mem": "/proc/self/mem",
        "a link to /proc/self/environ": "/proc/self/environ",
    }.items():
        directory = make({INDEX: {"weight_map": {"x": "x.safetensors", "y": "y.safetensors"}}})
        (directory / "y.safetensors").symlink_to(target)
        yield Case(f"{title}, from an index", directory)
        yield Case(title, directory / "y.safetensors")
    snapshot = make({})
    blobs = snapshot / "models--a--b" / "blobs"
    revision = snapshot / "models--a--b" / "snapshots" / "main"
    blobs.mkdir(parents=True)
    revision.mkdir(parents=True)
    (blobs / ("0" * 64)).write_bytes(GOOD_SAFETENSORS)
    (revision / "model.safetensors").symlink_to(f"../../blobs/{'0' * 64}")
    yield Case("a cache whose blob is not what its name says", revision, sound=True)
    (revision / "other.safetensors").symlink_to("../../../../../../outside")
    yield Case("a cache that links to a directory outside", revision)


def no_files(folder: Path) -> Iterator[Case]:
    kinds = {
        "a FIFO": os.mkfifo,
        "a directory": os.mkdir,
        "a socket": lambda path: socket.socket(socket.AF_UNIX).bind(os.path.relpath(path)),
        "a link to a terminal": lambda path: os.symlink("/dev/tty", path),
        "a link to /dev/zero": lambda path: os.symlink("/dev/zero", path),
        "a link to /dev/null": lambda path: os.symlink("/dev/null", path),
    }
    make = Maker(folder)
    for title, create in kinds.items():
        for suffix in ("safetensors", "pt", "flashpack"):
            directory = make({}, "good.safetensors")
            create(directory / f"y.{suffix}")
            yield Case(f"{title} called .{suffix}", directory / f"y.{suffix}")
        directory = make({INDEX: {"weight_map": {"x": "x.safetensors", "y": "y.safetensors"}}})
        create(directory / "y.safetensors")
        yield Case(f"{title} as a shard", directory)
        for name in (INDEX, "dcp.json", ".metadata"):
            directory = make({}, "x.distcp")
            create(directory / name)
            yield Case(f"{title} called {name}", directory)
        directory = make({})
        create(directory / "x.safetensors.seal.json")
        yield Case(f"{title} as a seal", directory / "x.safetensors", sound=True)
        directory = make({})
        create(directory / ".x.safetensors.saving")
        yield Case(f"{title} as a journal", directory, sound=True)


def journals(folder: Path) -> Iterator[Case]:
    """Of sets: a reader passes over shards that they say are to come, and touches nothing."""
    make = Maker(folder)
    start = b"penstock set 1\nindex 1 1 1 x\n"
    texts = {
        "nothing": b"",
        "no journal": b"\xff" * 1000,
        "a path": start + b"vanish 1 1 29 ../outside/secret.safetensors\nend\n",
        "a length of 2^64 - 1": start + b"vanish 1 1 18446744073709551615 x\nend\n",
        "a length of 2^70": start + b"vanish 1 1 1180591620717411303424 x\nend\n",
        "no end": start + b"vanish 1 1 1 x\n",
        "every shard": start + b"vanish 1 1 13 x.safetensors\nappear 1 1 13 x.safetensors\nend\n",
        "100,000 names": start + b"appear 1 1 13 x.safetensors\n" * 100_000 + b"end\n",
        "another version": b"penstock set 9\n" + b"x" * 100,
    }
    for title, text in texts.items():
        yield Case(
            f"a journal: {title}", make({".x.safetensors.saving": text, ".model.safetensors.saving": text}), sound=True
        )
    crc = zlib.crc32(b"")
    names = {"a temporary of another": f".x.safetensors.{crc:016x}.tmp", "a name of escapes": "\x1b[2J.safetensors"}
    for title, name in names.items():
        yield Case(title, make({name: b"{}"}), sound="temporary" in title)


FAMILIES: dict[str, Family] = {
    "indexes": indexes,
    "chunks of ranks": chunks,
    "links": links,
    "what is no file": no_files,
    "journals": journals,
}
