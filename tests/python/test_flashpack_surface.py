"""penstock.flashpack has every public name of flashpack 0.4.5, and its errors the words of flashpack's own."""

from __future__ import annotations

import importlib
import inspect
import json
import struct
from pathlib import Path
from typing import Any

import penstock
import penstock.flashpack as flashpack
import pytest
import torch
from penstock.flashpack import utils
from torch import nn

# What each module of flashpack 0.4.5 defines for others.
NAMES = {
    "commands": "convert_to_flashpack convert_to_flashpack_from_diffusers_repo_id_or_dir "
    "convert_to_flashpack_from_model convert_to_flashpack_from_state_dict "
    "convert_to_flashpack_from_state_dict_file convert_to_flashpack_from_transformers_repo_id_or_dir "
    "filter_kwargs_for_method revert_from_flashpack",
    "deserialization": "FlashTensorStorage MacroblockSpec assign_from_file get_flashpack_file_metadata "
    "is_flashpack_file iterate_from_flash_tensor read_flashpack_file read_flashpack_file_distributed "
    "resolve_shard_strategy revert_from_file",
    "integrations.patch": "patch_integrations",
    "mixin": "FlashPackMixin",
    "parallel_read": "parallel_read_into_storage parallel_read_supported release_pinned_pool sharded_read_available",
    "serialization": "MacroblockPlan TensorIndexRecord pack_to_file",
    "utils": "diffusers_is_available dtype_to_string effective_read_threads filter_state_dict "
    "get_module_and_attribute get_packing_dtype human_duration human_num_elements "
    "is_ignored_tensor_name maybe_init_distributed require_zstandard string_to_dtype timer "
    "torch_dtype_to_numpy_dtype transformers_is_available",
}
SIGNATURES = {
    "parallel_read_into_storage": ["path", "specs", "blocks", "device"],
    "parallel_read_supported": ["device"],
    "release_pinned_pool": [],
    "sharded_read_available": [],
}


@pytest.mark.parametrize("module", NAMES)
def test_a_module_has_the_names_of_its_namesake(module: str) -> None:
    ours = importlib.import_module(f"penstock.flashpack.{module}")
    assert [name for name in NAMES[module].split() if not callable(getattr(ours, name, None))] == []


@pytest.mark.parametrize("module", NAMES)
def test_the_list_is_that_of_the_installed_flashpack(module: str) -> None:
    theirs = pytest.importorskip(f"flashpack.{module}", reason="flashpack is not installed")
    found = {
        name
        for name, value in vars(theirs).items()
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", "") == theirs.__name__
    }
    assert found == set(NAMES[module].split())
    ours = importlib.import_module(f"penstock.flashpack.{module}")
    missing = [name for name in getattr(theirs, "__all__", ()) if not hasattr(ours, name)]
    assert missing == []


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_parallel_reader_takes_what_its_namesake_takes(name: str) -> None:
    assert list(inspect.signature(getattr(flashpack.parallel_read, name)).parameters) == SIGNATURES[name]


def footer(**fields: Any) -> bytes:
    """A file of four bytes that says this of itself."""
    text = json.dumps(fields).encode()
    return bytes(4) + text + struct.pack("<Q", len(text)) + b"FLASHPK\0"


V3 = {"format": "flashpack_v3", "target_dtype": "uint8", "align_bytes": 0, "total_elems": 4}
V4 = {"format": "flashpack_v4", "align_bytes": 0, "total_payload_bytes": 4, "total_elems": 4}
BLOCK = {"dtype": "uint8", "offset_bytes": 0, "length_bytes": 4, "length_elems": 4}


def record(**fields: Any) -> dict[str, Any]:
    return {"name": "x", "shape": [4], "offset": 0, "length": 4, **fields}


# What code that reads messages, or a test of it, looks for.
BAD_FILES: dict[str, bytes] = {
    "File too small to contain footer": b"no",
    "Bad magic": bytes(64),
    "Corrupt footer length": bytes(4) + struct.pack("<Q", 99) + b"FLASHPK\0",
    "Unexpected format": footer(**{**V3, "format": "flashpack_v9"}, index=[record()]),
    "Missing macroblock metadata": footer(**V4, index=[record(macroblock=0)]),
    "Index entry references macroblock 3, but only 1": footer(**V4, macroblocks=[BLOCK], index=[record(macroblock=3)]),
    "Unsupported dtype string in metadata": footer(**{**V3, "target_dtype": "float33"}, index=[record()]),
}


@pytest.mark.parametrize("words", BAD_FILES)
def test_refused_files_are_told_in_words_that_include_flashpacks(words: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.flashpack"
    path.write_bytes(BAD_FILES[words])
    for read in (flashpack.get_flashpack_file_metadata, flashpack.read_flashpack_file, flashpack.revert_from_file):
        with pytest.raises(ValueError, match=f"^{path}: .*{words}") as caught:
            read(path)
        assert "\n" not in str(caught.value)


def test_a_model_that_does_not_fit_is_told_in_words_that_include_flashpacks(tmp_path: Path) -> None:
    path = tmp_path / "a.flashpack"
    flashpack.pack_to_file({"weight": torch.ones(2)}, path)
    norm = nn.BatchNorm1d(2)
    with pytest.raises(ValueError, match="Missing 1 parameters: bias$"):
        flashpack.assign_from_file(norm, path)
    with pytest.raises(ValueError, match="Missing 1 parameters and 3 buffers: bias, running_mean, running_var, num_b"):
        flashpack.assign_from_file(norm, path, strict=True)
    with pytest.raises(ValueError, match="Missing 3 buffers: running_mean"):
        flashpack.assign_from_file(norm, path, strict_params=False, strict_buffers=True)
    flashpack.pack_to_file({**norm.state_dict(), "more": torch.ones(1)}, path)
    with pytest.raises(ValueError, match=r"Could not assign 1 names: more \(not in the model\)"):
        flashpack.assign_from_file(norm, path)
    flashpack.pack_to_file({**norm.state_dict(), "running_var": torch.ones(2).half()}, path)
    with pytest.raises(ValueError, match="dtype mismatch for buffer 'running_var': float16 in the file and float32"):
        flashpack.assign_from_file(norm, path)


def test_small_mistakes_are_told_in_words_that_include_flashpacks(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="Unsupported dtype in metadata"):
        utils.dtype_to_string("float16")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Unsupported dtype for packing"):
        utils.get_packing_dtype("float16")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="4-bit data types are not supported"):
        utils.torch_dtype_to_numpy_dtype(torch.float4_e2m1fn_x2)
    with pytest.raises(ValueError, match="unknown shard strategy 'x'; expected one of contiguous, windows"):
        flashpack.deserialization.resolve_shard_strategy("x")
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(ImportError, match="optional 'zstandard' package") as caught:
        utils.require_zstandard()
    assert isinstance(caught.value, penstock.LibraryError)
