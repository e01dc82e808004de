"""Whole model directories to FlashPack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import penstock
import pytest
import tiny_models
import torch
from penstock import ArgumentError, FormatError, NotFoundError
from penstock.flashpack import get_flashpack_file_metadata, revert_from_file
from penstock.flashpack.integrations._convert import convert_pretrained
from penstock.flashpack.integrations.diffusers.auto_model import AutoFlashPackModel
from tiny_models import assert_same_state, diffusers, transformers


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_holds(path: str, state: dict[str, torch.Tensor]) -> None:
    found = revert_from_file(path)
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        assert torch.equal(found[name], tensor), name


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    tiny_models.llama().save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def test_one_file_is_packed_beside_it(llama: Path) -> None:
    before = contents(llama)
    path = convert_pretrained(llama)
    assert path == str(llama / "model.flashpack")
    assert_holds(path, tiny_models.llama().state_dict())
    after = contents(llama)
    del after["model.flashpack"]
    assert after == before


def test_shards_are_packed_into_one_file(tmp_path: Path) -> None:
    model = tiny_models.llama()
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert not (tmp_path / "model.safetensors").exists()
    assert_holds(convert_pretrained(tmp_path, tmp_path / "out.flashpack"), model.state_dict())


def test_models_of_diffusers_and_their_variants_are_found(tmp_path: Path) -> None:
    model = tiny_models.unet()
    model.save_pretrained(tmp_path / "pipe" / "unet")
    model.half().save_pretrained(tmp_path / "pipe" / "unet", variant="fp16")
    plain = convert_pretrained(tmp_path / "pipe", subfolder="unet")
    half = convert_pretrained(tmp_path / "pipe", subfolder="unet", variant="fp16")
    assert plain == str(tmp_path / "pipe" / "unet" / "model.flashpack")
    assert half == str(tmp_path / "pipe" / "unet" / "model.fp16.flashpack")
    assert get_flashpack_file_metadata(plain)["target_dtype"] == "float32"
    assert get_flashpack_file_metadata(half)["target_dtype"] == "float16"


def test_sharded_variants_are_found(tmp_path: Path) -> None:
    model = tiny_models.unet()
    model.save_pretrained(tmp_path, variant="fp16", max_shard_size="50KB")
    assert (tmp_path / "diffusion_pytorch_model.safetensors.index.fp16.json").is_file()
    assert_holds(convert_pretrained(tmp_path, variant="fp16"), model.state_dict())


@pytest.mark.parametrize("shards", [1, 2])
def test_files_of_torch_are_packed_where_there_is_nothing_better(tmp_path: Path, shards: int) -> None:
    state = {f"layer.{number}": torch.randn(4, 4) for number in range(4)}
    if shards == 1:
        torch.save(state, tmp_path / "pytorch_model.bin")
    else:
        names = {name: f"pytorch_model-{int(name[-1]) // 2}.bin" for name in state}
        for file in set(names.values()):
            torch.save({name: state[name] for name in state if names[name] == file}, tmp_path / file)
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": names}))
    assert_holds(convert_pretrained(tmp_path), state)
    other = {"other": torch.ones(2)}
    penstock.save(other, tmp_path / "model.safetensors")
    assert_holds(convert_pretrained(tmp_path, overwrite=True), other)


def test_an_index_that_lies_is_refused(tmp_path: Path) -> None:
    index = tmp_path / "pytorch_model.bin.index.json"
    torch.save({"a": torch.ones(1)}, tmp_path / "part.bin")
    index.write_text(json.dumps({"weight_map": {"a": "../part.bin"}}))
    with pytest.raises(FormatError, match=r"'\.\./part\.bin' is not a file beside it"):
        convert_pretrained(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "part.bin", "b": "part.bin"}}))
    with pytest.raises(FormatError, match=r"b is not in part\.bin"):
        convert_pretrained(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "none.bin"}}))
    with pytest.raises(NotFoundError, match=r"none\.bin: no such file"):
        convert_pretrained(tmp_path)
    index.write_text("{}")
    with pytest.raises(FormatError, match=r"has no weight_map"):
        convert_pretrained(tmp_path)
    assert not (tmp_path / "model.flashpack").exists()


def test_a_directory_gets_the_configuration_too(llama: Path, tmp_path: Path) -> None:
    path = convert_pretrained(llama, tmp_path / "new" / "place", dtype="bfloat16")
    assert path == str(tmp_path / "new" / "place" / "model.flashpack")
    assert set(contents(tmp_path / "new" / "place")) == {"config.json", "generation_config.json", "model.flashpack"}
    loaded = AutoFlashPackModel.from_pretrained_flashpack(tmp_path / "new" / "place")
    assert isinstance(loaded, transformers.LlamaForCausalLM)
    assert loaded.dtype == torch.bfloat16
    assert loaded.config.dtype == torch.bfloat16


def test_names_are_left_out(llama: Path, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"ignore_names": ["lm_head.weight"], "ignore_suffixes": ["norm.weight"]}
    arguments["ignore_prefixes"] = ["model.layers.0."]
    kept = {
        name: tensor
        for name, tensor in tiny_models.llama().state_dict().items()
        if name != "lm_head.weight" and not name.startswith("model.layers.0.") and not name.endswith("norm.weight")
    }
    assert kept
    assert_holds(convert_pretrained(llama, tmp_path / "a.flashpack", **arguments), kept)
    path = convert_pretrained(llama, tmp_path / "b.flashpack", library="transformers", **arguments)
    assert_holds(path, kept)
    path = convert_pretrained(llama, tmp_path / "folder", library="transformers", **arguments)
    assert_holds(path, kept)


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_of_transformers_is_packed_by_its_class(tmp_path: Path, tied: bool) -> None:
    model = tiny_models.llama(tied=tied).half()
    model.save_pretrained(tmp_path / "usual")
    path = convert_pretrained(tmp_path / "usual", tmp_path / "file.flashpack", library="transformers")
    assert_holds(path, model.state_dict())
    convert_pretrained(tmp_path / "usual", tmp_path / "packed", library="transformers", dtype="bfloat16")
    assert json.loads((tmp_path / "packed" / "config.json").read_text())["dtype"] == "bfloat16"
    loaded = AutoFlashPackModel.from_pretrained_flashpack(tmp_path / "packed")
    assert_same_state(loaded, model.bfloat16())
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) is tied


def test_a_model_of_diffusers_is_packed_by_its_class_as_stored(tmp_path: Path) -> None:
    model = tiny_models.unet().half()
    model.save_pretrained(tmp_path / "usual")
    path = convert_pretrained(tmp_path / "usual", tmp_path / "packed", library="diffusers")
    assert get_flashpack_file_metadata(path)["target_dtype"] == "float16"
    loaded = AutoFlashPackModel.from_pretrained_flashpack(tmp_path / "packed")
    assert isinstance(loaded, diffusers.UNet2DModel)
    assert_same_state(loaded, model)


def test_nothing_is_replaced_unasked(llama: Path) -> None:
    (llama / "model.flashpack").write_bytes(b"old")
    with pytest.raises(ArgumentError, match=r"model\.flashpack: exists"):
        convert_pretrained(llama)
    assert (llama / "model.flashpack").read_bytes() == b"old"
    assert_holds(convert_pretrained(llama, overwrite=True), tiny_models.llama().state_dict())


def test_the_source_is_never_replaced(tmp_path: Path) -> None:
    tiny_models.llama().save_pretrained(tmp_path, max_shard_size="10KB")
    before = contents(tmp_path)
    shard = next(name for name in before if name.startswith("model-"))
    (tmp_path / "link.flashpack").symlink_to(shard)
    with pytest.raises(ArgumentError, match=r"link\.flashpack: belongs to the source"):
        convert_pretrained(tmp_path, tmp_path / "link.flashpack", overwrite=True)
    (tmp_path / "link.flashpack").unlink()
    assert contents(tmp_path) == before


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"has no weights of the variant fp16: none of model\.fp16\.safetensors"):
        convert_pretrained(tmp_path, variant="fp16")
    with pytest.raises(ArgumentError, match=r'library is "transformers" or "diffusers", not \'keras\''):
        convert_pretrained(tmp_path, library="keras")
    with pytest.raises(NotFoundError, match=r"has no subfolder 'unet'"):
        convert_pretrained(tmp_path, subfolder="unet")


@pytest.mark.parametrize("library", [None, "transformers"])
@pytest.mark.parametrize("align_large", [True, False])
def test_large_tensors_can_be_aligned_however_the_model_is_read(
    tmp_path: Path, library: str | None, align_large: bool
) -> None:
    model = tiny_models.llama(words=4099)  # two tensors of more than 256 KiB
    model.save_pretrained(tmp_path / "usual")
    path = convert_pretrained(tmp_path / "usual", tmp_path / "packed", library=library, align_large=align_large)
    large = [record for record in get_flashpack_file_metadata(path)["index"] if record["length"] * 4 >= 2**18]
    assert len(large) == 2
    assert all(record["offset"] * 4 % 4096 == 0 for record in large) == align_large
    assert_holds(path, model.state_dict())
