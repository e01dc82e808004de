"""penstock.flashpack with models of transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from helpers import run_python
from penstock import ArgumentError, NotFoundError, UnsupportedError
from penstock.flashpack import get_flashpack_file_metadata, is_flashpack_file
from penstock.flashpack.integrations import _libraries, patch_integrations, unpatch_integrations
from penstock.flashpack.integrations.transformers import FlashPackTransformersModelMixin
from tiny_models import TOKENS, assert_same_state, transformers


class FlashPackLlama(transformers.LlamaForCausalLM, FlashPackTransformersModelMixin):
    pass


class FlashPackBert(transformers.BertModel, FlashPackTransformersModelMixin):
    pass


class FlashPackT5(transformers.T5ForConditionalGeneration, FlashPackTransformersModelMixin):
    pass


@pytest.fixture
def patched() -> Iterator[None]:
    patch_integrations()
    yield
    unpatch_integrations()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A directory with a Llama."""
    tiny_models.llama(FlashPackLlama).save_pretrained_flashpack(tmp_path / "llama")
    return tmp_path / "llama"


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found = model(TOKENS).logits
    assert isinstance(found, torch.Tensor)
    return found


@pytest.mark.parametrize("tied", [False, True])
def test_a_llama_comes_back_with_equal_logits_and_generates_the_same(tmp_path: Path, tied: bool) -> None:
    model = tiny_models.llama(FlashPackLlama, tied=tied)
    model.save_pretrained_flashpack(tmp_path)
    loaded = FlashPackLlama.from_pretrained_flashpack(tmp_path)
    assert type(loaded) is FlashPackLlama
    assert_same_state(loaded, model)
    assert torch.equal(logits(loaded), logits(model))
    arguments = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(loaded.generate(TOKENS, **arguments), model.generate(TOKENS, **arguments))


@pytest.mark.parametrize("tied", [False, True])
def test_tied_embeddings_stay_tied_and_others_apart(tmp_path: Path, tied: bool) -> None:
    tiny_models.llama(FlashPackLlama, tied=tied).save_pretrained_flashpack(tmp_path)
    loaded = FlashPackLlama.from_pretrained_flashpack(tmp_path)
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) is tied
    with torch.no_grad():
        loaded.model.embed_tokens.weight.add_(1)
    assert torch.equal(loaded.lm_head.weight, loaded.model.embed_tokens.weight) is tied


def test_a_loaded_model_is_in_eval_mode_and_can_be_trained(saved: Path) -> None:
    model = FlashPackLlama.from_pretrained_flashpack(saved)
    assert not model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    before = model.lm_head.weight.clone()
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(TOKENS, labels=TOKENS).loss.backward()
    optimizer.step()
    assert not torch.equal(model.lm_head.weight, before)


def test_parameters_take_no_memory_until_they_are_loaded(saved: Path) -> None:
    seen: list[bool] = []

    class Watched(FlashPackLlama):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            seen.extend(parameter.is_meta for parameter in self.parameters())

    loaded = Watched.from_pretrained_flashpack(saved)
    assert seen
    assert all(seen)
    assert not any(parameter.is_meta for parameter in loaded.parameters())


def test_buffers_that_are_not_saved_keep_their_computed_values(tmp_path: Path) -> None:
    model = tiny_models.bert(FlashPackBert)
    model.save_pretrained_flashpack(tmp_path)
    assert "embeddings.position_ids" not in model.state_dict()
    loaded = FlashPackBert.from_pretrained_flashpack(tmp_path)
    buffers = dict(model.named_buffers())
    assert "embeddings.position_ids" in buffers
    assert dict(loaded.named_buffers()).keys() == buffers.keys()
    for name, buffer in loaded.named_buffers():
        assert torch.equal(buffer, buffers[name]), name
    with torch.no_grad():
        assert torch.equal(loaded(TOKENS).last_hidden_state, model(TOKENS).last_hidden_state)


def test_a_t5_keeps_its_three_tied_embeddings_and_its_output(tmp_path: Path) -> None:
    model = tiny_models.t5(FlashPackT5)
    model.save_pretrained_flashpack(tmp_path)
    loaded = FlashPackT5.from_pretrained_flashpack(tmp_path)
    assert loaded.encoder.embed_tokens.weight is loaded.shared.weight
    assert loaded.decoder.embed_tokens.weight is loaded.shared.weight
    with torch.no_grad():
        expected = model(input_ids=TOKENS, decoder_input_ids=TOKENS).logits
        assert torch.equal(loaded(input_ids=TOKENS, decoder_input_ids=TOKENS).logits, expected)


def test_the_generation_config_is_kept(tmp_path: Path) -> None:
    model = tiny_models.llama(FlashPackLlama)
    model.generation_config.max_new_tokens = 17
    model.generation_config.do_sample = True
    model.generation_config.temperature = 0.25
    model.save_pretrained_flashpack(tmp_path)
    loaded = FlashPackLlama.from_pretrained_flashpack(tmp_path).generation_config
    assert (loaded.max_new_tokens, loaded.do_sample, loaded.temperature) == (17, True, 0.25)


def test_a_save_writes_the_configuration_and_one_flashpack_file(saved: Path) -> None:
    assert {path.name for path in saved.iterdir()} == {"config.json", "generation_config.json", "model.flashpack"}
    assert is_flashpack_file(saved / "model.flashpack")
    config = json.loads((saved / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "float32"


def test_target_dtype_is_what_is_stored_loaded_and_noted(tmp_path: Path) -> None:
    model = tiny_models.llama(FlashPackLlama)
    model.save_pretrained_flashpack(tmp_path, target_dtype=torch.bfloat16)
    assert model.dtype == torch.float32
    assert model.config.dtype != torch.bfloat16
    assert get_flashpack_file_metadata(tmp_path / "model.flashpack")["target_dtype"] == "bfloat16"
    loaded = FlashPackLlama.from_pretrained_flashpack(tmp_path)
    assert loaded.dtype == torch.bfloat16
    assert loaded.config.dtype == torch.bfloat16
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight.bfloat16())
    assert loaded.model.rotary_emb.inv_freq.dtype == torch.float32  # as transformers has it
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, "float16"])
def test_dtype_converts_what_is_loaded(saved: Path, dtype: Any) -> None:
    loaded = FlashPackLlama.from_pretrained_flashpack(saved, dtype=dtype)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float16}
    assert torch.equal(loaded.lm_head.weight, tiny_models.llama().lm_head.weight.half())


def test_variants_and_subfolders_are_found(tmp_path: Path) -> None:
    model = tiny_models.llama(FlashPackLlama)
    model.save_pretrained_flashpack(tmp_path / "text", variant="bf16", target_dtype=torch.bfloat16)
    assert (tmp_path / "text" / "model.bf16.flashpack").is_file()
    loaded = FlashPackLlama.from_pretrained_flashpack(tmp_path, subfolder="text", variant="bf16")
    assert loaded.dtype == torch.bfloat16
    with pytest.raises(NotFoundError, match=r"text/model\.flashpack: no such file"):
        FlashPackLlama.from_pretrained_flashpack(tmp_path, subfolder="text")


def test_other_processes_than_the_main_one_write_nothing(tmp_path: Path) -> None:
    tiny_models.llama(FlashPackLlama).save_pretrained_flashpack(tmp_path / "none", is_main_process=False)
    assert not (tmp_path / "none").exists()


def test_names_can_be_left_out_of_a_save_and_of_a_load(tmp_path: Path, saved: Path) -> None:
    model = tiny_models.llama(FlashPackLlama)
    model.save_pretrained_flashpack(tmp_path, ignore_prefixes=["lm_head"])
    with pytest.raises(ArgumentError, match=r"lm_head\.weight"):
        FlashPackLlama.from_pretrained_flashpack(tmp_path)
    with pytest.warns(UserWarning, match=r"lm_head\.weight"):
        loaded = FlashPackLlama.from_pretrained_flashpack(tmp_path, strict=False)
    assert loaded.lm_head.weight.is_meta
    with pytest.warns(UserWarning, match=r"model\.norm\.weight"):
        loaded = FlashPackLlama.from_pretrained_flashpack(saved, ignore_names=["model.norm.weight"])
    assert loaded.model.norm.weight.is_meta


def test_a_configuration_can_be_given_or_changed(saved: Path) -> None:
    changed = FlashPackLlama.from_pretrained_flashpack(saved, rms_norm_eps=0.5)
    assert changed.config.rms_norm_eps == 0.5
    assert changed.model.norm.variance_epsilon == 0.5
    config = transformers.LlamaConfig.from_pretrained(saved, attn_implementation="eager")
    given = FlashPackLlama.from_pretrained_flashpack(saved, config=config)
    assert given.config is config


def test_a_file_that_does_not_fit_the_configuration_is_refused(saved: Path) -> None:
    with pytest.raises(ArgumentError, match=r"lm_head\.weight has shape \[40, 32\] in the file and \[41, 32\]"):
        FlashPackLlama.from_pretrained_flashpack(saved, vocab_size=41)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere/deep/down: no such directory"):
        FlashPackLlama.from_pretrained_flashpack("nowhere/deep/down")
    with pytest.raises(NotFoundError, match=r"model\.flashpack: no such file"):
        FlashPackLlama.from_pretrained_flashpack(tmp_path)
    with pytest.raises(NotFoundError, match=r"has no subfolder 'x'"):
        FlashPackLlama.from_pretrained_flashpack(tmp_path, subfolder="x")
    with pytest.raises(ArgumentError, match=r"subfolder is a path inside"):
        FlashPackLlama.from_pretrained_flashpack(tmp_path, subfolder="../x")


def test_arguments_that_make_no_sense_are_refused(tmp_path: Path, saved: Path) -> None:
    model = tiny_models.llama(FlashPackLlama)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'target_type'"):
        model.save_pretrained_flashpack(tmp_path, target_type=torch.float16)
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match=r"file: is not a directory"):
        model.save_pretrained_flashpack(tmp_path / "file")
    with pytest.raises(ArgumentError, match=r"onto one device"):
        FlashPackLlama.from_pretrained_flashpack(saved, device_map="auto")
    with pytest.raises(ArgumentError, match=r"quantization_config is not supported"):
        FlashPackLlama.from_pretrained_flashpack(saved, quantization_config={"bits": 4})
    with pytest.raises(ArgumentError, match=r"torch has no dtype 'float99'"):
        FlashPackLlama.from_pretrained_flashpack(saved, dtype="float99")
    with pytest.raises(TypeError, match=r"no_such_argument"):
        FlashPackLlama.from_pretrained_flashpack(saved, no_such_argument=1)


def test_a_quantised_model_is_refused_before_its_weights_are_written(tmp_path: Path) -> None:
    model = tiny_models.llama(FlashPackLlama)
    model.hf_quantizer = object()
    with pytest.raises(UnsupportedError, match=r"the FlashPackLlama is quantised"):
        model.save_pretrained_flashpack(tmp_path)
    assert not (tmp_path / "model.flashpack").exists()


def test_a_plain_save_of_a_mixed_class_is_still_transformers_own(tmp_path: Path) -> None:
    model = tiny_models.llama(FlashPackLlama)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    assert_same_state(transformers.LlamaForCausalLM.from_pretrained(tmp_path), model)


@pytest.mark.usefixtures("patched")
def test_auto_classes_take_use_flashpack(saved: Path) -> None:
    expected = tiny_models.llama()
    for model in (
        transformers.AutoModelForCausalLM.from_pretrained(saved, use_flashpack=True),
        transformers.AutoModelForCausalLM.from_pretrained_flashpack(saved),
        transformers.LlamaForCausalLM.from_pretrained_flashpack(str(saved), device="cpu"),
    ):
        assert type(model) is transformers.LlamaForCausalLM
        assert_same_state(model, expected)
        assert torch.equal(logits(model), logits(expected))
        assert "use_flashpack" not in model.config.to_dict()


@pytest.mark.usefixtures("patched")
def test_patched_models_save_with_use_flashpack(tmp_path: Path) -> None:
    model = tiny_models.bert()
    model.save_pretrained(tmp_path / "one", use_flashpack=True)
    model.save_pretrained_flashpack(tmp_path / "two", target_dtype=torch.float16)
    assert is_flashpack_file(tmp_path / "one" / "model.flashpack")
    assert_same_state(transformers.AutoModel.from_pretrained(tmp_path / "one", use_flashpack=True), model)
    loaded = transformers.AutoModel.from_pretrained(tmp_path / "two", use_flashpack=True, dtype=torch.float32)
    assert loaded.dtype == torch.float32
    assert torch.equal(loaded.pooler.dense.weight, model.pooler.dense.weight.half().float())


@pytest.mark.usefixtures("patched")
def test_patched_classes_do_what_they_did_without_use_flashpack(tmp_path: Path) -> None:
    model = tiny_models.llama()
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    assert_same_state(transformers.AutoModelForCausalLM.from_pretrained(tmp_path), model)
    assert_same_state(transformers.AutoModelForCausalLM.from_pretrained(tmp_path, use_flashpack=False), model)


def test_patching_twice_is_patching_once_and_can_be_undone() -> None:
    base = transformers.PreTrainedModel
    before = {name: vars(base).get(name) for name in ("from_pretrained", "save_pretrained")}
    patch_integrations()
    once = vars(base)["from_pretrained"]
    patch_integrations()
    assert vars(base)["from_pretrained"] is once
    assert hasattr(transformers.AutoModel, "from_pretrained_flashpack")
    unpatch_integrations()
    assert {name: vars(base).get(name) for name in before} == before
    for owner in (base, transformers.AutoModel, transformers.AutoModelForCausalLM):
        assert not hasattr(owner, "from_pretrained_flashpack")
    unpatch_integrations()
    assert {name: vars(base).get(name) for name in before} == before


def test_a_patch_that_is_not_possible_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(vars(tiny_models.diffusers.ModelMixin))
    with monkeypatch.context() as patch:
        patch.delattr(transformers.PreTrainedModel, "save_pretrained")
        with pytest.raises(ImportError, match=r"transformers: PreTrainedModel has no save_pretrained; .* works with"):
            patch_integrations()
    assert dict(vars(tiny_models.diffusers.ModelMixin)) == before
    assert not hasattr(transformers.PreTrainedModel, "from_pretrained_flashpack")


def test_a_missing_public_name_is_an_error_that_names_versions() -> None:
    with pytest.raises(
        ImportError, match=r"transformers [\d.]+ has no NoSuchName that can be used; .* works with [\d.]+ to"
    ):
        _libraries.public_name("transformers", "NoSuchName")


def test_a_missing_library_is_an_error_that_names_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_libraries, "is_installed", lambda library: False)
    with pytest.raises(ImportError, match=r"diffusers is not installed; penstock\.flashpack works with [\d.]+ to"):
        _libraries.public_name("diffusers", "ModelMixin")


def test_importing_flashpack_imports_none_of_these_libraries() -> None:
    code = """
        import sys
        import penstock.flashpack
        import penstock.flashpack.integrations
        penstock.flashpack.patch_integrations, penstock.flashpack.install_as_flashpack
        print([name for name in ("transformers", "diffusers", "huggingface_hub", "accelerate") if name in sys.modules])
    """
    assert run_python(code).stdout.strip() == "[]"
