"""Every command on FlashPack files, as on safetensors."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cli_files as files
import cli_flashpack as flashpack
import pytest
from cli_command import Run

COMPLEX = {"z": ("C128", [1], struct.pack("<2d", 1, 2))}


def test_ls_lists_a_flashpack_file_as_it_lists_others(run: Run, tmp_path: Path) -> None:
    flashpack.write_file(tmp_path / "m.flashpack", metadata={"format": "pt"})
    result = run("ls", "m.flashpack")
    assert result.returncode == 0
    assert result.stderr == ""
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["DTYPE", "SHAPE", "SIZE", "NAME"] in lines
    assert ["F32", "[2,", "3]", "24", "B", "embedding.weight"] in lines
    assert ["I64", "[]", "8", "B", "step"] in lines
    assert ["format", "pt"] in lines
    assert result.stdout.endswith("4 tensors, 15 parameters, 56 B  flashpack\n")


def test_ls_tells_the_same_of_both_formats_but_for_places(run: Run, tmp_path: Path) -> None:
    flashpack.write_file(tmp_path / "m.flashpack")
    files.write_file(tmp_path / "m.safetensors")
    listings = [json.loads(run("ls", name, "--json").stdout) for name in ("m.flashpack", "m.safetensors")]
    assert listings[0]["totals"] == listings[1]["totals"]
    assert [listing["files"][0]["format"] for listing in listings] == ["flashpack", "safetensors"]
    assert listings[0]["files"][0]["size"] == (tmp_path / "m.flashpack").stat().st_size
    tensors = [{tensor["name"]: {**tensor, "offset": None} for tensor in listing["tensors"]} for listing in listings]
    assert tensors[0] == tensors[1]
    assert [tensor["offset"] for tensor in listings[0]["tensors"]] == [0, 24, 40, 48]


def test_ls_summary_filter_and_sort_work(run: Run, tmp_path: Path) -> None:
    flashpack.write_file(tmp_path / "m.flashpack", {**files.sample_tensors(), **COMPLEX})
    assert "C128" in run("ls", "m.flashpack", "--summary").stdout
    listing = json.loads(run("ls", "m.flashpack", "--json", "--sort", "size", "--filter", "[ez]*").stdout)
    assert [tensor["name"] for tensor in listing["tensors"]] == ["embedding.weight", "z"]
    assert listing["totals"]["by_dtype"]["C128"] == {"tensors": 1, "parameters": 1, "nbytes": 16}


def test_the_suffix_of_a_source_does_not_matter(run: Run, tmp_path: Path) -> None:
    flashpack.write_file(tmp_path / "m.safetensors")
    assert run("ls", "m.safetensors").stdout.endswith("flashpack\n")


def test_conversions_go_there_and_back(run: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "a.safetensors", metadata={"format": "pt"})
    result = run("convert", "a.safetensors", "b.flashpack")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("ok b.flashpack  4 tensors, 56 B")
    assert flashpack.read_file(tmp_path / "b.flashpack") == (files.sample_tensors(), {"format": "pt"})
    footer = flashpack.read_footer(tmp_path / "b.flashpack")
    assert footer["format"] == "flashpack_v4"
    assert footer["align_bytes"] == 128
    assert run("convert", "b.flashpack", "c.safetensors").returncode == 0
    assert files.read_file(tmp_path / "c.safetensors") == (files.sample_tensors(), {"format": "pt"})


def test_a_named_format_wins_over_the_suffix(run: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "a.safetensors")
    assert run("convert", "a.safetensors", "b.unknown", "--format", "flashpack").returncode == 0
    assert flashpack.read_file(tmp_path / "b.unknown")[0] == files.sample_tensors()


@pytest.mark.parametrize(
    ("name", "torch_name"),
    [("bf16", "bfloat16"), ("bfloat16", "bfloat16"), ("FP16", "float16"), ("half", "float16"), ("Float", "float32")],
)
def test_one_floating_dtype_makes_a_version_3(run: Run, tmp_path: Path, name: str, torch_name: str) -> None:
    tensors = {key: value for key, value in files.sample_tensors().items() if key != "step"}
    files.write_file(tmp_path / "a.safetensors", tensors)
    assert run("convert", "a.safetensors", "b.flashpack", "--dtype", name).returncode == 0
    footer = flashpack.read_footer(tmp_path / "b.flashpack")
    assert footer["format"] == "flashpack_v3"
    assert footer["target_dtype"] == torch_name
    stored, _ = flashpack.read_file(tmp_path / "b.flashpack")
    code = {"bfloat16": "<4H", "float16": "<4e", "float32": "<4f"}[torch_name]
    values = [0x3F80, 0x4000, 0x4040, 0x4080] if torch_name == "bfloat16" else [1, 2, 3, 4]
    assert stored["layers.0.bias"][2] == struct.pack(code, *values)
    assert stored["layers.0.weight"][2] == struct.pack(code, *values)


@pytest.mark.parametrize("name", ["long", "complex64", "cdouble", "F4", "float4_e2m1fn_x2", "bool", "fp", "torch", ""])
def test_a_dtype_that_nothing_is_converted_to_is_wrong_usage(misused: Run, tmp_path: Path, name: str) -> None:
    files.write_file(tmp_path / "a.safetensors")
    assert "--dtype: " in misused("convert", "a.safetensors", "b.flashpack", "--dtype", name).stderr
    assert files.names_in(tmp_path) == ["a.safetensors"]


@pytest.mark.parametrize(("text", "nbytes"), [("0", 0), ("64", 64), ("4KiB", 4096), ("3", 3)])
def test_the_alignment_can_be_chosen(run: Run, tmp_path: Path, text: str, nbytes: int) -> None:
    files.write_file(tmp_path / "a.safetensors")
    assert run("convert", "a.safetensors", "b.flashpack", "--align-bytes", text).returncode == 0
    assert flashpack.read_footer(tmp_path / "b.flashpack")["align_bytes"] == nbytes
    assert flashpack.read_file(tmp_path / "b.flashpack")[0] == files.sample_tensors()
    listing = json.loads(run("ls", "b.flashpack", "--json").stdout)
    assert all(tensor["offset"] % max(nbytes, 1) == 0 for tensor in listing["tensors"])


def names_of(path: Path) -> list[str]:
    return [record["name"] for record in flashpack.read_footer(path)["index"]]


def test_the_order_can_be_kept(run: Run, tmp_path: Path) -> None:
    flashpack.write_file(
        tmp_path / "a.flashpack", {name: ("U8", [size], b"x" * size) for name, size in {"a": 1, "b": 9, "c": 3}.items()}
    )
    assert run("convert", "a.flashpack", "b.flashpack").returncode == 0
    assert names_of(tmp_path / "b.flashpack") == ["b", "c", "a"]
    assert run("convert", "a.flashpack", "c.flashpack", "--keep-order").returncode == 0
    assert names_of(tmp_path / "c.flashpack") == ["a", "b", "c"]


def test_large_tensors_can_be_placed_on_pages(run: Run, tmp_path: Path) -> None:
    size = 256 * 1024
    tensors: files.Tensors = {"small": ("U8", [5], b"12345"), "large": ("U8", [size], b"x" * size)}
    flashpack.write_file(tmp_path / "a.flashpack", tensors)
    offsets = []
    for arguments in ([], ["--align-large"]):
        run("convert", "a.flashpack", "b.flashpack", "--force", "--keep-order", *arguments)
        listing = json.loads(run("ls", "b.flashpack", "--json").stdout)
        offsets.append({tensor["name"]: tensor["offset"] for tensor in listing["tensors"]})
        assert flashpack.read_file(tmp_path / "b.flashpack")[0] == tensors
    assert offsets == [{"small": 0, "large": 128}, {"small": 0, "large": 4096}]


@pytest.mark.parametrize("arguments", [["--align-bytes", "64"], ["--keep-order"], ["--align-large"]], ids=" ".join)
def test_its_options_are_wrong_usage_for_safetensors(misused: Run, tmp_path: Path, arguments: list[str]) -> None:
    files.write_file(tmp_path / "a.safetensors")
    assert "FlashPack files only" in misused("convert", "a.safetensors", "b.safetensors", *arguments).stderr
    assert files.names_in(tmp_path) == ["a.safetensors"]


@pytest.mark.parametrize("text", ["-1", "many", "2GiB"])
def test_an_impossible_alignment_is_wrong_usage(misused: Run, tmp_path: Path, text: str) -> None:
    files.write_file(tmp_path / "a.safetensors")
    misused("convert", "a.safetensors", "b.flashpack", "--align-bytes", text)
    assert files.names_in(tmp_path) == ["a.safetensors"]


def test_a_type_that_safetensors_lacks_is_refused(run: Run, fails: Run, tmp_path: Path) -> None:
    flashpack.write_file(tmp_path / "a.flashpack", COMPLEX)
    result = fails("convert", "a.flashpack", "b.safetensors")
    assert 'tensor "z": safetensors has no C128' in result.stderr
    assert files.names_in(tmp_path) == ["a.flashpack"]
    assert run("convert", "a.flashpack", "b.flashpack").returncode == 0
    assert flashpack.read_file(tmp_path / "b.flashpack")[0] == COMPLEX


def test_nothing_to_store_is_wrong_usage(misused: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "a.safetensors", {})
    assert "there is nothing to store" in misused("convert", "a.safetensors", "b.flashpack").stderr
    assert files.names_in(tmp_path) == ["a.safetensors"]


def test_shards_are_made_and_joined_again(run: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "a.safetensors")
    (tmp_path / "out").mkdir()
    assert run("convert", "a.safetensors", "out/m.flashpack", "--max-shard-size", "32").returncode == 0
    index = json.loads((tmp_path / "out/m.flashpack.index.json").read_text())
    shards = set(index["weight_map"].values())
    assert len(shards) > 1
    assert files.names_in(tmp_path / "out") == sorted([*shards, "m.flashpack.index.json"])
    assert f"flashpack, {len(shards)} files" in run("ls", "out").stdout
    assert run("convert", "out", "joined.flashpack").returncode == 0
    assert flashpack.read_file(tmp_path / "joined.flashpack")[0] == files.sample_tensors()


def test_a_directory_of_flashpack_files_is_a_checkpoint(run: Run, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    for name, tensor in files.sample_tensors().items():
        flashpack.write_file(tmp_path / "model" / f"{name}.flashpack", {name: tensor})
    assert run("ls", "model").stdout.endswith("4 tensors, 15 parameters, 56 B  flashpack, 4 files\n")


def test_an_existing_target_is_kept_without_force(run: Run, fails: Run, tmp_path: Path) -> None:
    flashpack.write_file(tmp_path / "a.flashpack")
    (tmp_path / "b.flashpack").write_text("precious")
    assert fails("convert", "a.flashpack", "b.flashpack").stderr.endswith("--force replaces it\n")
    assert (tmp_path / "b.flashpack").read_text() == "precious"
    assert run("convert", "a.flashpack", "b.flashpack", "--force").returncode == 0


def test_the_source_is_never_its_own_target(misused: Run, tmp_path: Path) -> None:
    source = flashpack.write_file(tmp_path / "a.flashpack")
    before = source.read_bytes()
    misused("convert", "a.flashpack", "a.flashpack", "--force")
    assert source.read_bytes() == before


def test_json_tells_the_phases_of_a_conversion(run: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "a.safetensors")
    report = json.loads(run("convert", "a.safetensors", "b.flashpack", "--json").stdout)
    assert list(report["phases"]) == ["build_index", "reserve", "write", "sync", "rename"]


def test_verify_checks_stored_checksums(run: Run, tmp_path: Path) -> None:
    files.write_file(tmp_path / "a.safetensors")
    assert run("convert", "a.safetensors", "m.flashpack", "--checksums").returncode == 0
    result = run("verify", "m.flashpack")
    assert result.returncode == 0
    assert result.stdout.startswith("ok m.flashpack  4 tensors")
    assert "every tensor has the bytes that were saved" in result.stdout
    listing = json.loads(run("ls", "m.flashpack", "--json").stdout)
    raw = bytearray((tmp_path / "m.flashpack").read_bytes())
    raw[listing["tensors"][0]["offset"]] ^= 1
    (tmp_path / "m.flashpack").write_bytes(raw)
    result = run("verify", "m.flashpack", "--json")
    assert result.returncode == 1
    broken = [tensor["name"] for tensor in json.loads(result.stdout)["tensors"] if not tensor["ok"]]
    assert broken == [listing["tensors"][0]["name"]]


def test_verify_prints_checksums_and_finds_what_is_not_finite(run: Run, tmp_path: Path) -> None:
    values = struct.pack("<4d", 1.0, float("nan"), float("inf"), 2.0)
    flashpack.write_file(tmp_path / "m.flashpack", {"digits": ("U8", [9], b"123456789"), "z": ("C128", [2], values)})
    assert "  e3069283  digits\n" in run("verify", "m.flashpack", "--checksums").stdout
    result = run("verify", "m.flashpack", "--finite", "--json")
    assert result.returncode == 1
    assert {tensor["name"]: tensor["not_finite"] for tensor in json.loads(result.stdout)["tensors"]} == {
        "digits": 0,
        "z": 2,
    }


def test_bench_takes_a_flashpack_file_and_leaves_it_alone(run: Run, tmp_path: Path) -> None:
    path = flashpack.write_file(tmp_path / "m.flashpack", {**files.sample_tensors(), **COMPLEX})
    before = path.read_bytes()
    result = run("bench", "m.flashpack", "--rounds", "1", "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["format"] == "flashpack"
    assert report["tensors"] == 5
    assert [step["name"] for step in report["results"]][-1] == "save"
    assert path.read_bytes() == before
    assert files.names_in(tmp_path) == ["m.flashpack"]


def test_bench_can_make_a_flashpack_model(run: Run, misused: Run, tmp_path: Path) -> None:
    report = json.loads(run("bench", "--size", "4MiB", "--rounds", "1", "--format", "flashpack", "--json").stdout)
    assert report["format"] == "flashpack"
    assert len(report["results"]) == 7
    assert files.names_in(tmp_path) == []
    misused("bench", "--format", "zip")


def test_bench_settings_reads_a_flashpack_file(run: Run, tmp_path: Path) -> None:
    path = flashpack.write_file(tmp_path / "m.flashpack")
    result = run("bench", "m.flashpack", "--settings", "--rounds", "1", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["bytes"] == path.stat().st_size
    assert files.names_in(tmp_path) == ["m.flashpack"]


def test_help_tells_of_the_format(run: Run) -> None:
    for arguments in (["--help"], ["convert", "--help"], ["ls", "--help"], ["bench", "--help"]):
        assert "flashpack" in run(*arguments).stdout.lower()
    text = run("convert", "--help").stdout
    for option in ("--align-bytes", "--keep-order", "--align-large"):
        assert option in text


def changed(**fields: object) -> bytes:
    """A version 3 of eight bytes, with some fields of its footer changed."""
    footer: dict[str, Any] = {
        "format": "flashpack_v3",
        "target_dtype": "float32",
        "align_bytes": 128,
        "total_elems": 2,
        "index": [{"name": "a", "shape": [2], "offset": 0, "length": 2}],
    }
    return flashpack.encode({**footer, **fields}, b"\0" * 8)


def entry(name: str = "a", shape: list[int] | None = None, offset: int = 0, length: int = 2) -> dict[str, Any]:
    return {"name": name, "shape": [2] if shape is None else shape, "offset": offset, "length": length}


def block(**fields: object) -> dict[str, Any]:
    return {"dtype": "uint8", "offset_bytes": 0, "length_bytes": 8, "length_elems": 8, **fields}


BLOCKS: dict[str, list[dict[str, Any]]] = {
    "compressed": [block(fpz={"codec": 1})],
    "overlapping_blocks": [block(), block(dtype="int8", offset_bytes=7, length_bytes=1, length_elems=1)],
    "block_out_of_range": [block(length_bytes=9, length_elems=9)],
    "block_sizes_disagree": [block(length_elems=7)],
}

BAD_BYTES: dict[str, bytes] = {
    "mark_alone": flashpack.MAGIC,
    "no_footer": flashpack.encode(b"", b""),
    "length_beyond_the_file": b"{}" + struct.pack("<Q", 2**62) + flashpack.MAGIC,
    "not_an_object": flashpack.encode(b"[1]", b""),
    "unfinished": flashpack.encode(b'{"format":', b""),
    "bad_utf8": flashpack.encode(b'{"\xff":1}', b""),
    "unexpected_format": changed(format="flashpack_v9"),
    "unknown_dtype": changed(target_dtype="float31"),
    "packed_dtype": changed(target_dtype="float4_e2m1fn_x2"),
    "unknown_field": changed(extra=1),
    "index_is_no_list": changed(index={}),
    "negative_offset": changed(index=[entry(offset=-1)]),
    "fraction": changed(total_elems=2.5),
    "overflow": changed(index=[entry(shape=[2**62, 2**62], length=0)]),
    "out_of_range": changed(index=[entry(offset=1)]),
    "overlap": changed(index=[entry(), entry("b", [1], 1, 1)]),
    "sizes_disagree": changed(index=[entry(length=1)]),
    "payload_disagrees": changed(total_elems=3),
    "duplicate_name": changed(index=[entry(shape=[1], length=1), entry(shape=[1], offset=1, length=1)]),
    **{
        kind: flashpack.encode({"format": "flashpack_v4", "macroblocks": blocks, "index": []}, b"\0" * 8)
        for kind, blocks in BLOCKS.items()
    },
}

READERS: dict[str, Callable[[str], list[str]]] = {
    "ls": lambda source: ["ls", source],
    "verify": lambda source: ["verify", source],
    "convert": lambda source: ["convert", source, "target.flashpack"],
    "bench": lambda source: ["bench", source, "--rounds", "1"],
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", BAD_BYTES)
def test_bad_bytes_are_refused(fails: Run, tmp_path: Path, kind: str, reader: str) -> None:
    (tmp_path / f"{kind}.flashpack").write_bytes(BAD_BYTES[kind])
    result = fails(*READERS[reader](f"{kind}.flashpack"))
    assert result.stderr.startswith(f"penstock: {kind}.flashpack: ")
    assert result.stdout == ""
    assert files.names_in(tmp_path) == [f"{kind}.flashpack"]


def test_a_file_that_lost_its_end_is_refused(fails: Run, tmp_path: Path) -> None:
    flashpack.write_file(tmp_path / "m.flashpack")
    raw = (tmp_path / "m.flashpack").read_bytes()
    (tmp_path / "m.flashpack").write_bytes(raw[:-1])
    assert "not a format that this version reads" in fails("ls", "m.flashpack").stderr
