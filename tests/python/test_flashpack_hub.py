"""penstock.flashpack and the hub, of which a stand-in runs on this machine: no test leaves it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import tiny_models
import torch
from hub_server import TOKEN, Hub, running_hub
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError
from penstock import ArgumentError, NotFoundError
from penstock.flashpack.integrations import _hub, patch_integrations, unpatch_integrations
from penstock.flashpack.integrations._convert import convert_pretrained
from penstock.flashpack.integrations.diffusers import (
    AutoFlashPackModel,
    FlashPackDiffusersModelMixin,
    FlashPackDiffusionPipeline,
)
from penstock.flashpack.integrations.transformers import FlashPackTransformersModelMixin
from tiny_models import assert_same_state, diffusers, images, transformers

pytestmark = [
    # huggingface_hub's own, of the client that it uses.
    pytest.mark.filterwarnings("ignore:Use 'content=<...>' to upload raw bytes:DeprecationWarning"),
]


class FlashPackLlama(transformers.LlamaForCausalLM, FlashPackTransformersModelMixin):
    pass


class FlashPackUNet(diffusers.UNet2DModel, FlashPackDiffusersModelMixin):
    pass


class FlashPackDDPM(diffusers.DDPMPipeline, FlashPackDiffusionPipeline):
    pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub that huggingface_hub takes for the real one. Nobody is logged in."""
    constants = huggingface_hub.constants
    with running_hub() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
        template = server.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        if not huggingface_hub.hf_hub_url("a/b", "c").startswith(server.endpoint):
            pytest.skip(f"huggingface_hub {huggingface_hub.__version__} can't be pointed elsewhere once imported")
        huggingface_hub.utils.disable_progress_bars()
        yield server
        huggingface_hub.utils.enable_progress_bars()
        huggingface_hub.close_session()


def files_below(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture
def llama_files(tmp_path: Path) -> dict[str, bytes]:
    tiny_models.llama(FlashPackLlama).save_pretrained_flashpack(tmp_path / "made")
    return files_below(tmp_path / "made")


@pytest.fixture
def pipeline_files(tmp_path: Path) -> dict[str, bytes]:
    tiny_models.pipeline(FlashPackDDPM).save_pretrained_flashpack(tmp_path / "pipe")
    return files_below(tmp_path / "pipe")


def test_a_model_goes_up_and_comes_back(hub: Hub, tmp_path: Path) -> None:
    model = tiny_models.llama(FlashPackLlama)
    model.save_pretrained_flashpack(tmp_path / "here", push_to_hub=True, repo_id="someone/llama", token=TOKEN)
    stored = hub.files("someone/llama")
    assert stored["model.flashpack"] == (tmp_path / "here" / "model.flashpack").read_bytes()
    assert set(stored) >= {"config.json", "generation_config.json", "model.flashpack", "README.md"}
    loaded = FlashPackLlama.from_pretrained_flashpack("someone/llama")
    assert_same_state(loaded, model)
    assert loaded.name_or_path == "someone/llama"


def test_the_card_says_what_the_repository_holds(hub: Hub, tmp_path: Path) -> None:
    tiny_models.unet(FlashPackUNet).save_pretrained_flashpack(tmp_path / "unet", push_to_hub=True, token=TOKEN)
    card = huggingface_hub.ModelCard(hub.files("tester/unet")["README.md"].decode())
    assert card.data.library_name == "diffusers"
    assert card.data.tags == ["flashpack"]


def test_a_card_that_is_there_is_kept(hub: Hub, tmp_path: Path) -> None:
    hub.add("tester/unet", {"README.md": b"---\nlicense: mit\n---\nmine"})
    tiny_models.unet(FlashPackUNet).save_pretrained_flashpack(tmp_path / "unet", push_to_hub=True, token=TOKEN)
    assert hub.files("tester/unet")["README.md"] == b"---\nlicense: mit\n---\nmine"
    assert not (tmp_path / "unet" / "README.md").exists()


def test_only_what_was_saved_goes_up(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "unet").mkdir()
    (tmp_path / "unet" / "secret.txt").write_text("not for others")
    tiny_models.unet(FlashPackUNet).save_pretrained_flashpack(tmp_path / "unet", push_to_hub=True, token=TOKEN)
    assert set(hub.files("tester/unet")) == {".gitattributes", "README.md", "config.json", "model.flashpack"}


def test_a_private_repository_needs_its_token(hub: Hub, tmp_path: Path) -> None:
    model = tiny_models.unet(FlashPackUNet)
    model.save_pretrained_flashpack(tmp_path / "x", push_to_hub=True, repo_id="tester/x", private=True, token=TOKEN)
    assert hub.repositories["tester/x"].private
    with pytest.raises(RepositoryNotFoundError):
        FlashPackUNet.from_pretrained_flashpack("tester/x", token=False)
    assert_same_state(FlashPackUNet.from_pretrained_flashpack("tester/x", token=TOKEN), model)


def test_an_upload_without_a_token_is_refused(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(huggingface_hub.errors.HfHubHTTPError, match="401"):
        tiny_models.unet(FlashPackUNet).save_pretrained_flashpack(
            tmp_path, push_to_hub=True, repo_id="x/y", token=False
        )
    assert hub.repositories == {}


def test_a_pull_request_leaves_the_main_branch_alone(hub: Hub, tmp_path: Path) -> None:
    model = tiny_models.unet(FlashPackUNet)
    arguments: dict[str, Any] = {"push_to_hub": True, "repo_id": "tester/u", "token": TOKEN}
    model.save_pretrained_flashpack(tmp_path, create_pr=True, commit_message="please take it", **arguments)
    repository = hub.repositories["tester/u"]
    assert "model.flashpack" not in hub.files("tester/u")
    assert "model.flashpack" in hub.files("tester/u", "refs/pr/1")
    assert repository.messages[-1] == "please take it"
    assert_same_state(FlashPackUNet.from_pretrained_flashpack("tester/u", revision="refs/pr/1"), model)
    with pytest.raises(NotFoundError, match=r"tester/u: the repository has none of config\.json, model\.flashpack"):
        FlashPackUNet.from_pretrained_flashpack("tester/u")


def test_revisions_are_told_apart(hub: Hub, tmp_path: Path, llama_files: dict[str, bytes]) -> None:
    hub.add("a/b", llama_files)
    other = tiny_models.llama(FlashPackLlama)
    torch.nn.init.zeros_(other.lm_head.weight)
    other.save_pretrained_flashpack(tmp_path / "other")
    hub.add("a/b", files_below(tmp_path / "other"), branch="zeros")
    assert_same_state(FlashPackLlama.from_pretrained_flashpack("a/b", revision="zeros"), other)
    assert_same_state(FlashPackLlama.from_pretrained_flashpack("a/b"), tiny_models.llama())
    with pytest.raises(RevisionNotFoundError):
        FlashPackLlama.from_pretrained_flashpack("a/b", revision="ones")


def test_only_what_is_needed_comes_down(hub: Hub, llama_files: dict[str, bytes]) -> None:
    inside = {f"text/{name}": content for name, content in llama_files.items()}
    others = {"text/model.safetensors": b"x", "text/model.fp16.flashpack": b"x", "model.flashpack": b"x"}
    hub.add("a/b", {**inside, **others})
    loaded = FlashPackLlama.from_pretrained_flashpack("a/b", subfolder="text")
    assert_same_state(loaded, tiny_models.llama())
    assert {name.removeprefix("text/") for name in hub.downloads()} == set(llama_files)


def test_what_was_downloaded_serves_without_the_hub(hub: Hub, tmp_path: Path, llama_files: dict[str, bytes]) -> None:
    hub.add("a/b", llama_files)
    elsewhere = tmp_path / "elsewhere"
    with pytest.raises(LocalEntryNotFoundError):
        FlashPackLlama.from_pretrained_flashpack("a/b", cache_dir=elsewhere, local_files_only=True)
    FlashPackLlama.from_pretrained_flashpack("a/b", cache_dir=elsewhere)
    hub.requests.clear()
    loaded = FlashPackLlama.from_pretrained_flashpack("a/b", cache_dir=elsewhere, local_files_only=True)
    assert hub.requests == []
    assert_same_state(loaded, tiny_models.llama())


def test_a_local_directory_can_be_filled(hub: Hub, tmp_path: Path, llama_files: dict[str, bytes]) -> None:
    hub.add("a/b", llama_files)
    FlashPackLlama.from_pretrained_flashpack("a/b", local_dir=tmp_path / "filled")
    assert (tmp_path / "filled" / "model.flashpack").read_bytes() == llama_files["model.flashpack"]


def test_what_the_installed_version_does_not_take_is_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_proxies(repo_id: str, *, allow_patterns: Any = None, ignore_patterns: Any = None) -> str:
        raise AssertionError

    monkeypatch.setattr(huggingface_hub, "snapshot_download", without_proxies)
    with pytest.raises(ArgumentError, match=r"huggingface_hub [\d.]+ takes no proxies="):
        _hub.download("a/b", ["*"], None, {"proxies": {"https": "http://localhost:1"}, "token": None})


def test_a_repository_that_does_not_exist_is_the_hubs_own_error(hub: Hub) -> None:
    with pytest.raises(RepositoryNotFoundError):
        FlashPackLlama.from_pretrained_flashpack("no/such")


def test_a_pipeline_goes_up_and_comes_back(hub: Hub, tmp_path: Path) -> None:
    pipe = tiny_models.pipeline(FlashPackDDPM)
    pipe.save_pretrained_flashpack(tmp_path / "ddpm", push_to_hub=True, token=TOKEN)
    assert set(hub.files("tester/ddpm")) == {
        ".gitattributes",
        "README.md",
        "model_index.json",
        "scheduler/scheduler_config.json",
        "unet/config.json",
        "unet/model.flashpack",
    }
    loaded = FlashPackDiffusionPipeline.from_pretrained_flashpack("tester/ddpm")
    assert loaded.name_or_path == "tester/ddpm"
    assert np.array_equal(images(loaded), images(pipe))


def test_a_pipelines_other_weights_come_down_only_where_needed(
    hub: Hub, tmp_path: Path, pipeline_files: dict[str, bytes]
) -> None:
    usual = "unet/diffusion_pytorch_model.safetensors"
    hub.add("a/packed", {**pipeline_files, usual: b"x", "unet/model.onnx": b"x"})
    FlashPackDDPM.from_pretrained_flashpack("a/packed")
    assert set(hub.downloads()) == set(pipeline_files)
    tiny_models.pipeline().save_pretrained(tmp_path / "usual")
    hub.add("a/usual", files_below(tmp_path / "usual"))
    hub.requests.clear()
    loaded = FlashPackDDPM.from_pretrained_flashpack("a/usual")
    assert usual in hub.downloads()
    assert_same_state(loaded.unet, tiny_models.unet())


def test_the_auto_model_finds_a_part_of_a_repository(hub: Hub, pipeline_files: dict[str, bytes]) -> None:
    hub.add("a/pipe", pipeline_files)
    model = AutoFlashPackModel.from_pretrained_flashpack("a/pipe", subfolder="unet", revision="main")
    assert_same_state(model, tiny_models.unet())


def test_patched_auto_classes_load_from_the_hub(hub: Hub, llama_files: dict[str, bytes]) -> None:
    hub.add("a/b", llama_files)
    patch_integrations()
    try:
        loaded = transformers.AutoModelForCausalLM.from_pretrained("a/b", use_flashpack=True)
    finally:
        unpatch_integrations()
    assert_same_state(loaded, tiny_models.llama())


def test_a_repository_is_converted_with_its_configuration(hub: Hub, tmp_path: Path) -> None:
    model = tiny_models.llama(tied=True)
    model.save_pretrained(tmp_path / "usual")
    extra = {"pytorch_model.bin": b"not wanted", "tf_model.h5": b"not wanted"}
    hub.add("a/usual", {**files_below(tmp_path / "usual"), **extra})
    path = convert_pretrained("a/usual", tmp_path / "packed", revision="main")
    assert path == str(tmp_path / "packed" / "model.flashpack")
    assert json.loads((tmp_path / "packed" / "config.json").read_text())["model_type"] == "llama"
    loaded = FlashPackLlama.from_pretrained_flashpack(tmp_path / "packed")
    assert_same_state(loaded, model)
    with pytest.raises(ArgumentError, match=r"a/usual: no such directory, and a repository needs a destination"):
        convert_pretrained("a/usual")


def test_a_part_of_a_repository_is_converted_by_its_class(hub: Hub, tmp_path: Path) -> None:
    tiny_models.pipeline().save_pretrained(tmp_path / "usual", variant="fp16")
    hub.add("a/usual", files_below(tmp_path / "usual"))
    path = convert_pretrained(
        "a/usual", tmp_path / "u.flashpack", subfolder="unet", variant="fp16", library="diffusers"
    )
    assert path == str(tmp_path / "u.flashpack")
    assert set(hub.downloads()) == {"unet/config.json", "unet/diffusion_pytorch_model.fp16.safetensors"}
    model = FlashPackUNet.from_flashpack(path, FlashPackUNet.load_config(tmp_path / "usual" / "unet"), silent=True)
    assert_same_state(model, tiny_models.unet())
