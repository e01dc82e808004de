"""Gives mutated files to penstock and to the library that the format comes from, and compares what the two say.

    python proof/differential.py --files 100000 --record

Both read the same, or both refuse; where one refuses alone, the reason must be one that docs/formats/ states. Anything
else is a finding: its file is kept in build/differential, and the exit code is 1. Files are read by a child: what
kills it counts as the library's refusal if penstock survives the file by itself.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib
import importlib.util
import io
import math
import mmap
import os
import random
import re
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mutator
import numpy as np
import record
import torch

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data"
KEPT = ROOT / "build" / "differential"
LARGEST = 8192  # bytes of a file that is mutated
BATCH = 2000

Read = Callable[[str], Any]
Rules = dict[str, str]  # a pattern of the refusal -> what the page says of it


@dataclass
class Pair:
    """A format's two readers."""

    name: str
    peer: str
    suffix: str
    files: list[bytes]
    change: Callable[[bytes, random.Random, list[bytes]], bytes]
    ours: Read
    theirs: Read
    stricter: Rules = field(default_factory=dict)  # what penstock refuses and the other one does not
    lenient: Rules = field(default_factory=dict)  # the other way round


def bytes_of(tensor: Any) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def plain(value: Any) -> Any:
    """What two readers must agree on, as values that can be compared."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_quantized or value.is_meta:
            return ("tensor of another kind", str(value.layout), tuple(value.shape))
        return ("tensor", str(value.dtype), tuple(value.shape), bytes_of(value.resolve_conj().resolve_neg()))
    if isinstance(value, dict):
        return ("dict", [(plain(key), plain(entry)) for key, entry in value.items()])
    if isinstance(value, (list, tuple)):
        return ("tuple" if isinstance(value, tuple) else "list", [plain(item) for item in value])
    if isinstance(value, (set, frozenset)):
        return ("set", sorted(map(repr, value)))
    if isinstance(value, float) and math.isnan(value):
        return ("nan",)
    if isinstance(value, np.ndarray):
        return ("array", str(value.dtype), value.shape, value.tobytes())
    return (type(value).__name__, repr(value))


def read_safetensors(module: Any) -> Read:
    def read(path: str) -> Any:
        tensors = module.deserialize(Path(path).read_bytes())
        return sorted((name, t["dtype"], list(t["shape"]), bytes(t["data"])) for name, t in tensors)

    return read


def read_with_penstock(path: str) -> Any:
    import penstock

    return plain(penstock.load(path, framework="torch", cache="buffered"))


def read_with_torch(path: str) -> Any:
    return plain(torch.load(path, weights_only=True))


def read_by_name(path: str) -> Any:
    """As flashpack gives them: scalars have one dimension."""
    import penstock

    tensors = penstock.load(path, framework="torch", cache="buffered")
    return sorted((name, str(t.dtype), tuple(t.shape) or (1,), bytes_of(t)) for name, t in tensors.items())


def read_with_flashpack(path: str) -> Any:
    from flashpack import deserialization

    storage, meta = deserialization.read_flashpack_file(path)
    tensors = deserialization.iterate_from_flash_tensor(storage, meta)
    return sorted((name, str(t.dtype), tuple(t.shape), bytes_of(t)) for name, t in tensors)


def read_verified(path: str) -> Any:
    """Every record is checked; what it holds is read_with_torch's."""
    import penstock

    penstock.load(path, framework="torch", verify=True, opaque="keep")
    return "sound"


def read_with_zipfile(path: str) -> Any:
    with zipfile.ZipFile(path) as archive:
        bad = archive.testzip()
        if bad is not None:
            raise ValueError(f"{bad} is damaged")
    return "sound"


def golden(pattern: str) -> list[bytes]:
    files = [path.read_bytes() for path in sorted(DATA.glob(pattern))]
    return [data for data in files if len(data) <= LARGEST]


def zip_files() -> list[bytes]:
    """Of objects that torch's own restricted unpickler loads."""
    torch.manual_seed(0)
    base = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    trees: list[Any] = [
        {"w": base, "b": torch.ones(5, dtype=torch.bfloat16)},
        OrderedDict(model=OrderedDict(a=base.clone(), b=torch.zeros(2, 0)), step=7, rate=0.5, name="x", none=None),
        {"tied": base, "again": base, "view": base[1:, ::2], "turned": base.t(), "scalar": torch.tensor(3)},
        [base.double(), (1, 2**40, -1), {3: torch.tensor([True, False])}, "text", True, {1, 2}],
        {"p": torch.nn.Parameter(base.clone()), "c": torch.ones(2, dtype=torch.complex64)},
        base.to(torch.int16),
    ]
    files = []
    for tree in trees:
        buffer = io.BytesIO()
        torch.save(tree, buffer)
        files.append(buffer.getvalue())
    return files


def legacy_files(zips: list[bytes]) -> list[bytes]:
    """The same, flat. In those that torch writes the keys are addresses, which no seed decides about."""
    import penstock

    files = []
    with tempfile.TemporaryDirectory() as folder:
        for i, data in enumerate(zips):
            source, target = Path(folder, f"{i}.pt"), Path(folder, f"{i}.legacy.pt")
            source.write_bytes(data)
            penstock.convert(source, target, format="torch-legacy")
            files.append(target.read_bytes())
    return files


# What one of the two refuses alone, by its message, and the words of docs/formats/ for it.
SAFETENSORS_STRICTER = {
    "appears twice": "a name or a key twice",
    "unknown|has no member|unexpected": "unknown members in a record",
    "a dimension of|2\\^64": "a dimension above 2^63 - 1, or an overflow behind a zero",
    "must start with": "white space before the {",
    "expected an object": "a record written as an array",
}
FLASHPACK_STRICTER = {
    "unknown field": "unknown members",
    " twice": "a member or a name given twice",
    "expected an integer": "numbers that are no plain integers",
    "but the payload has|says that the payload": "sizes that disagree with the payload's",
    "macroblocks have|length_bytes is": "counts of elements and of bytes that disagree",
    "overlap": "tensors or blocks that overlap",
    "go beyond": "tensors or blocks that reach into the footer",
    "which flashpack_v": "members of the other version",
    "is missing|Unexpected format": "a member missing, or given as another one first",
    "must start with": "white space before the {",
    "a dimension of": "a dimension above 2^63 - 1",
    "its length is": "a length that is not that of the shape",
    "fpz": "a compressed block",
    "expected an array|Unsupported dtype": "packed and quantised types, an index that is no array",
}
FLASHPACK_LENIENT = {"misaligned": "offsets that are no multiple of the alignment"}
PICKLE_STRICTER = {
    "more than one value": "a pickle that leaves more than one value",
    "memo entry": "an entry of the memo far beyond the pickle",
    "protocol ": "a protocol that there is not",
    "metadata is not a dict|in a way that data": "arguments that nothing needs",
}
ZIP_STRICTER = {
    "local header|descriptor|central directory": "headers that disagree",
    "end record|has a comment|several volumes": "comments, volumes, bytes behind it, end records that disagree",
    "extra field": "extra fields that are cut off",
    "overlap|belong to nothing": "records that overlap, bytes between them",
    "appears twice|differ in case": "a name twice",
    "has a NUL|not valid UTF-8": "NUL in a name, or what is no UTF-8",
    "is corrupt": "a checksum that is wrong",
    **PICKLE_STRICTER,
}
LEGACY_STRICTER = {
    "follow the last storage": "bytes behind the last storage",
    "has no bytes|twice": "storages that the list of keys leaves out",
    "elements, expected|has two sizes|needs element": "counts that disagree, tensors beyond their storage",
    "big-endian|not a format": "big-endian files, and starts that are none",
    **PICKLE_STRICTER,
}
TORCH_LENIENT = {
    "restore data location": "the location of a storage, which is not looked at",
    "multidisk": "zip64 records that count no volume",
    "Couldn't parse the version|hasRecord|not in a subdirectory|base 10": "records beside the checkpoint's",
    "Weights only load failed|not enough values|codec can't decode": "values that torch's restricted unpickler refuses",
}
VERIFIED_STRICTER = {"": "no checkpoint, or an archive that two readers could understand in two ways"}
VERIFIED_LENIENT = {
    "zip file version": "the version that is needed, which nobody looks at",
    "^ValueError: script|decompressing": "records that are code, which a load does not read",
}


def pairs() -> list[Pair]:
    import safetensors

    sys.path.append(str(next((ROOT / ".venv-bench").glob("lib/python*/site-packages"), ROOT)))
    ours = importlib.import_module("penstock.safetensors")
    archives, zips = golden("torch/*[!y].pt"), zip_files()
    legacy = legacy_files(zips)
    found = [
        Pair("safetensors", "safetensors 0.8.0", "safetensors", golden("safetensors/*.safetensors"),
             mutator.changed_safetensors, read_safetensors(ours), read_safetensors(safetensors), SAFETENSORS_STRICTER),
        Pair("zip", "torch.load", "pt", zips, mutator.changed_zip, read_with_penstock, read_with_torch,
             ZIP_STRICTER, TORCH_LENIENT),
        Pair("zip, verified", "zipfile", "pt", archives + zips, mutator.changed_zip, read_verified, read_with_zipfile,
             VERIFIED_STRICTER, VERIFIED_LENIENT),
        Pair("legacy", "torch.load", "pt", legacy, mutator.changed_bytes, read_with_penstock, read_with_torch,
             LEGACY_STRICTER, TORCH_LENIENT),
    ]  # fmt: skip
    if importlib.util.find_spec("flashpack"):
        files = golden("flashpack/*.flashpack")
        found.append(Pair("FlashPack", "flashpack 0.4.5", "flashpack", files, mutator.changed_flashpack,
                          read_by_name, read_with_flashpack, FLASHPACK_STRICTER, FLASHPACK_LENIENT))  # fmt: skip
    else:
        print("[differential] FlashPack: skipped, the package is not there (scripts/setup.sh bench)")
    return found


def attempt(read: Read, path: str) -> tuple[bool, Any]:
    """Whether it was read, and what; or why not."""
    try:
        return True, read(path)
    except Exception as error:  # whatever the other library raises is a refusal
        return False, f"{type(error).__name__}: {error}"


def rule_for(message: str, rules: Rules) -> str:
    return next((rule for pattern, rule in rules.items() if re.search(pattern, message, re.DOTALL)), "")


def different(ours: Any, theirs: Any) -> str:
    """Of two texts, from where they differ on."""
    first, second = repr(ours), repr(theirs)
    at = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), 0)
    return f"different values: {first[max(at - 40, 0) : at + 60]} instead of {second[max(at - 40, 0) : at + 60]}"


def compare(pair: Pair, path: str) -> tuple[str, str]:
    """A column of the table, and what there is to say."""
    ours_read, ours = attempt(pair.ours, path)
    theirs_read, theirs = attempt(pair.theirs, path)
    if ours_read and theirs_read:
        return ("same", "") if ours == theirs else ("FINDING", f"{different(ours, theirs)}")
    if not ours_read and not theirs_read:
        return ("refused", "")
    if theirs_read:
        if not ours.startswith(("FormatError", "UnsupportedFormatError", "SafetensorError")):
            return ("FINDING", f"no refusal: {ours[:300]}")
        rule = rule_for(ours, pair.stricter)
        return ("stricter", rule) if rule else ("FINDING", f"penstock alone refuses: {ours[:300]}")
    rule = rule_for(theirs, pair.lenient)
    return ("lenient", rule) if rule else ("FINDING", f"{pair.peer} alone refuses: {theirs[:300]}")


def file_number(pair: Pair, seed: int, number: int) -> bytes:
    rng = random.Random(f"{pair.name} {seed} {number}")
    return pair.change(rng.choice(pair.files), rng, pair.files)


def run_batch(pair: Pair, seed: int, begin: int, end: int, place: mmap.mmap, output: int, folder: str) -> None:
    """A line for each file."""
    warnings.simplefilter("ignore")
    with os.fdopen(output, "w") as lines:
        for number in range(begin, end):
            place[:8] = number.to_bytes(8, "little")
            path = f"{folder}/{number}.{pair.suffix}"
            Path(path).write_bytes(file_number(pair, seed, number))
            column, text = compare(pair, path)
            os.unlink(path)
            lines.write(f"{number}\t{column}\t{' '.join(text.split())}\n")
            lines.flush()


def in_child(work: Callable[[], object]) -> int:
    """Its process; it ends as the work does, and runs nothing else."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return child


def survives(pair: Pair, seed: int, number: int, folder: str) -> bool:
    """Whether penstock alone reads the file, or refuses it."""
    path = f"{folder}/alone.{pair.suffix}"
    Path(path).write_bytes(file_number(pair, seed, number))
    return os.waitpid(in_child(functools.partial(attempt, pair.ours, path)), 0)[1] == 0


def run_pair(pair: Pair, seed: int, count: int) -> tuple[Counter[str], Counter[str], list[tuple[int, str]]]:
    columns: Counter[str] = Counter()
    rules: Counter[str] = Counter()
    findings: list[tuple[int, str]] = []
    begin = 0
    with mmap.mmap(-1, 8) as place, tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        while begin < count:
            end = min(begin + BATCH, count)
            readable, writable = os.pipe()
            child = in_child(functools.partial(run_batch, pair, seed, begin, end, place, writable, folder))
            os.close(writable)
            with os.fdopen(readable, errors="replace") as lines:
                for line in lines:
                    number, column, text = line.rstrip("\n").split("\t")
                    columns[column] += 1
                    rules[text] += 1 if column in ("stricter", "lenient") else 0
                    if column == "FINDING":
                        findings.append((int(number), text))
            status = os.waitpid(child, 0)[1]
            if status and not os.WIFSIGNALED(status):
                raise SystemExit("[differential] FAILED: the program itself is wrong")
            if status:
                end = int.from_bytes(place[:8], "little") + 1
                columns["refused" if survives(pair, seed, end - 1, folder) else "FINDING"] += 1
                rules["the other reader died"] += 1
                if columns["FINDING"] > len(findings):
                    findings.append((end - 1, "penstock died"))
            begin = end
            print(f"[differential] {pair.name}: {begin:,} of {count:,}, {len(findings)} findings", flush=True)
    return columns, rules, findings


def show(pair: Pair, seed: int, rules: Counter[str], findings: list[tuple[int, str]]) -> None:
    for rule, number in rules.most_common():
        if rule:
            print(f"[differential] {pair.name}: {number:,} {rule}")
    KEPT.mkdir(parents=True, exist_ok=True)
    kinds: Counter[str] = Counter()
    for number, text in findings:
        kind = re.sub(r"[0-9]+|\"[^\"]*\"|'[^']*'|/\S+", "_", text)
        kinds[kind] += 1
        if kinds[kind] > 1:
            continue
        data = file_number(pair, seed, number)
        path = KEPT / f"{hashlib.sha256(data).hexdigest()[:16]}.{pair.suffix}"
        path.write_bytes(data)
        print(f"[differential] FINDING {pair.name} {path.relative_to(ROOT)}: {text}")
    for kind, number in kinds.most_common():
        print(f"[differential] {number:6,} x {kind[:200]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=100_000, help="in all (default: %(default)s)")
    parser.add_argument("--short", action="store_true", help="2,000 files")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--only", default="", help="formats that have this in their name")
    parser.add_argument("--record", action="store_true", help="write the table of docs/reliability.md")
    arguments = parser.parse_args()
    total = 2000 if arguments.short else arguments.files
    begin = time.monotonic()
    torch.set_num_threads(1)
    chosen = [pair for pair in pairs() if arguments.only in pair.name]
    if not chosen:
        return 0
    rows: list[list[record.Cell]] = []
    failed = False
    for pair in chosen:
        columns, rules, findings = run_pair(pair, arguments.seed, total // len(chosen))
        show(pair, arguments.seed, rules, findings)
        failed = failed or bool(findings)
        counts = [columns[name] for name in ("same", "refused", "stricter", "lenient", "FINDING")]
        rows.append([pair.name, pair.peer, sum(counts), *counts])
    names = [
        "format",
        "against",
        "files",
        "read alike",
        "refused by both",
        "penstock stricter",
        "more lenient",
        "findings",
    ]
    result = record.Record("differential", "Differential tests", names, rows, time.monotonic() - begin)
    print(record.as_markdown(result))
    if arguments.record:
        record.write(result)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
