"""The checkpoints that are raced: a transformer in bfloat16, whole or in shards, a mixture of experts, files of very
many small tensors, of one large one, of 1 MiB, of three tensors, and a GPT-2.

All are plain safetensors, written here with the standard library alone so that no competitor had a hand in them. Beside
each lies a .json with what a correct load must give.
"""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

GIB = 1 << 30
PAGE_SIZE = 4096
HIDDEN, INTERMEDIATE, KEY_VALUE, VOCABULARY = 2048, 5632, 256, 32000

# name, dtype, shape
Tensor = tuple[str, str, list[int]]
ELEMENT_SIZE = {"BF16": 2, "F16": 2, "F32": 4}


@dataclass(frozen=True)
class Expected:
    """What the tensors of a file hold, for checking a load or a save."""

    nbytes: int
    tensors: int
    checksum: int  # CRC-32 over all tensors' bytes, by name
    page_sample: int  # sum of the first byte of every 4096 of each tensor: cheap enough for every round


def transformer(layers: int, vocabulary: int = VOCABULARY) -> list[Tensor]:
    """The tensors of a Llama-like model; 22 layers are 201 tensors and 2.05 GiB."""
    shapes: dict[str, list[int]] = {
        "model.embed_tokens.weight": [vocabulary, HIDDEN],
        "model.norm.weight": [HIDDEN],
        "lm_head.weight": [vocabulary, HIDDEN],
    }
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "input_layernorm.weight"] = [HIDDEN]
        shapes[prefix + "post_attention_layernorm.weight"] = [HIDDEN]
        shapes[prefix + "self_attn.q_proj.weight"] = [HIDDEN, HIDDEN]
        shapes[prefix + "self_attn.k_proj.weight"] = [KEY_VALUE, HIDDEN]
        shapes[prefix + "self_attn.v_proj.weight"] = [KEY_VALUE, HIDDEN]
        shapes[prefix + "self_attn.o_proj.weight"] = [HIDDEN, HIDDEN]
        shapes[prefix + "mlp.gate_proj.weight"] = [INTERMEDIATE, HIDDEN]
        shapes[prefix + "mlp.up_proj.weight"] = [INTERMEDIATE, HIDDEN]
        shapes[prefix + "mlp.down_proj.weight"] = [HIDDEN, INTERMEDIATE]
    return [(name, "BF16", shape) for name, shape in sorted(shapes.items())]


def layers_for(gib: float) -> int:
    """How many layers come closest to this size."""
    return min(range(1, 400), key=lambda layers: abs(sum(map(tensor_nbytes, transformer(layers))) - gib * GIB))


def transformer_of(gib: float) -> list[Tensor]:
    """The transformer that comes closest to this size; below half a GiB with a small vocabulary, to try things out."""
    return transformer(layers_for(gib)) if gib >= 0.5 else transformer(max(1, round(gib / 0.08)), VOCABULARY // 20)


def mixture_of_experts(gib: float) -> list[Tensor]:
    """Very many small matrices: at 2 GiB 50,007 tensors of 1.57 GiB, nearly all of them experts of 32 KiB."""
    layers, experts, width, rows = 26, max(1, round(320 * gib)), 256, 64
    tensors: list[Tensor] = [("model.embed_tokens.weight", "BF16", [VOCABULARY, width])]
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        tensors += [(f"{prefix}{norm}.weight", "BF16", [width]) for norm in ("input_layernorm", "post_layernorm")]
        tensors.append((f"{prefix}mlp.router.weight", "BF16", [experts, width]))
        for expert in range(experts):
            for part in ("gate_proj", "up_proj"):
                tensors.append((f"{prefix}mlp.experts.{expert}.{part}.weight", "BF16", [rows, width]))
            tensors.append((f"{prefix}mlp.experts.{expert}.down_proj.weight", "BF16", [width, rows]))
    return sorted(tensors)


def one_tensor(gib: float) -> list[Tensor]:
    return [("weight", "BF16", [int(gib * 32768), 16384])]


def one_mib() -> list[Tensor]:
    """A model of 1 MiB: sixteen matrices of 64 KiB and their biases."""
    return [
        tensor
        for layer in range(16)
        for tensor in (
            (f"layers.{layer}.weight", "BF16", [128, 256]),
            (f"layers.{layer}.bias", "BF16", [128]),
        )
    ]


def blocks(mib: int) -> list[Tensor]:
    """Matrices of 4 MiB, so that the size alone grows."""
    return [(f"blocks.{i:05}.weight", "BF16", [1024, 2048]) for i in range(mib // 4)]


def many_small(count: int = 100_000) -> list[Tensor]:
    return [(f"model.layers.{i // 100}.experts.{i % 100}.scale", "F32", [16]) for i in range(count)]


def tiny() -> list[Tensor]:
    """Next to nothing: what is measured is what a save or load costs by itself."""
    return [("layer.weight", "F32", [64, 32]), ("layer.bias", "F32", [64]), ("scale", "F32", [16])]


def gpt2() -> list[Tensor]:
    """The tensors of GPT-2, the smallest: 148, of 0.46 GiB."""
    width, layers = 768, 12
    shapes = {"wte.weight": [50257, width], "wpe.weight": [1024, width]}
    shapes |= {f"ln_f.{part}": [width] for part in ("weight", "bias")}
    for layer in range(layers):
        for name, rows, columns in (
            ("attn.c_attn", width, 3 * width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", width, 4 * width),
            ("mlp.c_proj", 4 * width, width),
        ):
            shapes[f"h.{layer}.{name}.weight"] = [rows, columns]
            shapes[f"h.{layer}.{name}.bias"] = [columns]
        shapes |= {f"h.{layer}.{norm}.{part}": [width] for norm in ("ln_1", "ln_2") for part in ("weight", "bias")}
    return [(name, "F32", shape) for name, shape in sorted(shapes.items())]


def tensor_nbytes(tensor: Tensor) -> int:
    _, dtype, shape = tensor
    count = ELEMENT_SIZE[dtype]
    for extent in shape:
        count *= extent
    return count


def encode_header(tensors: list[Tensor]) -> bytes:
    entries, end = {}, 0
    for name, dtype, shape in tensors:
        begin, end = end, end + tensor_nbytes((name, dtype, shape))
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def steps(nbytes: int, most: int = 1 << 26) -> Iterator[int]:
    """Whole pages, up to the last: Python makes at most 256 MiB of random bytes in one call."""
    while nbytes > 0:
        yield min(nbytes, most)
        nbytes -= most


def write(path: Path, tensors: list[Tensor], seed: int) -> Expected:
    """Writes seeded random bytes, and remembers what they were beside the file."""
    tensors = sorted(tensors)
    generator = random.Random(seed)
    checksum = page_sample = 0
    with path.open("wb") as file:
        file.write(encode_header(tensors))
        for tensor in tensors:
            for nbytes in steps(tensor_nbytes(tensor)):
                data = generator.randbytes(nbytes)
                file.write(data)
                checksum = zlib.crc32(data, checksum)
                page_sample += sum(data[::PAGE_SIZE])
    expected = Expected(sum(map(tensor_nbytes, tensors)), len(tensors), checksum, page_sample)
    path.with_suffix(".json").write_text(json.dumps({**asdict(expected), "seed": seed}))
    return expected


def ensure(path: Path, tensors: list[Tensor], seed: int = 1) -> Expected:
    """The file as `write` makes it; made only when it is not there."""
    nbytes = sum(map(tensor_nbytes, tensors))
    try:
        known = json.loads(path.with_suffix(".json").read_text())
        complete = path.stat().st_size == nbytes + len(encode_header(sorted(tensors)))
        if complete and known.pop("seed") == seed and known["nbytes"] == nbytes:
            return Expected(**known)
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not there, or not whole: write it
    print(f"[bench] writing {path.name} ({nbytes / GIB:.2f} GiB, {len(tensors)} tensors)", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write(path, tensors, seed)


def ensure_shards(directory: Path, tensors: list[Tensor], count: int = 8, seed: int = 1) -> Expected:
    """The tensors in several files of about the same size, with the index that Hugging Face puts beside them."""
    groups = split_evenly(sorted(tensors), count)
    files = [directory / f"model-{number + 1:05}-of-{count:05}.safetensors" for number in range(count)]
    directory.mkdir(parents=True, exist_ok=True)
    parts = [ensure(file, group, seed + i) for i, (file, group) in enumerate(zip(files, groups, strict=True))]
    weight_map = {tensor[0]: file.name for file, group in zip(files, groups, strict=True) for tensor in group}
    total = sum(part.nbytes for part in parts)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return Expected(total, len(weight_map), checksum_files(files), page_sample=sum(part.page_sample for part in parts))


def split_evenly(tensors: list[Tensor], count: int) -> list[list[Tensor]]:
    """Consecutive groups whose bytes differ by no more than a tensor or so."""
    groups: list[list[Tensor]] = [[] for _ in range(count)]
    total, placed = sum(map(tensor_nbytes, tensors)), 0
    for tensor in tensors:
        middle = placed + tensor_nbytes(tensor) / 2
        groups[min(count - 1, int(count * middle / total))].append(tensor)
        placed += tensor_nbytes(tensor)
    return groups


def read_header(path: Path) -> tuple[dict[str, dict[str, Any]], int]:
    """The entries of a safetensors file, and where its data begins."""
    with path.open("rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        entries = json.loads(file.read(length))
    entries.pop("__metadata__", None)
    return entries, 8 + length


def tensor_data(path: Path) -> Iterator[bytes]:
    """The bytes of every tensor, by name."""
    entries, base = read_header(path)
    with path.open("rb") as file:
        for _, entry in sorted(entries.items()):
            begin, end = entry["data_offsets"]  # type: ignore[misc]
            file.seek(base + begin)
            yield file.read(end - begin)


def checksum_file(path: Path) -> int:
    return checksum_files([path])


def checksum_files(paths: list[Path]) -> int:
    """Of files whose tensors, one file after the other, are in the order of their names."""
    checksum = 0
    for path in paths:
        for data in tensor_data(path):
            checksum = zlib.crc32(data, checksum)
    return checksum
